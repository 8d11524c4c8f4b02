//! A checksum of what a file system changes whenever it is mounted and used: tells an adopted volume that was used without the cell.
//!
//! Of ext2, ext3, ext4, XFS and btrfs the first and the last 128 KiB, where their superblocks are. Of ext3 and ext4 the superblock of the journal as
//! well, of XFS the place in the log where the next record goes, and the log before it. Of anything else there is none: what is in partitions, or
//! encrypted, is used without a trace in any place that could be known here. Never proves that nothing was changed: who writes past the file system, or
//! puts all of these places back as they were, is not seen. Never writes.

use crate::error::IoError;
use crate::label::Adopted;
use crate::layout::{DATA_OFFSET, PAGE_BYTES};
use crate::media;
use device::{Device, data_sum};

/// Of each end of the volume. The superblock of btrfs is at 64 KiB.
const END_BYTES: u64 = 128 << 10;
/// Of the log of XFS, before its head.
const LOG_BYTES: u64 = 64 << 10;
/// XFS counts its log in these, and each begins with the number of the round it was written in.
const SECTOR_BYTES: u64 = 512;
/// Where ext2, ext3 and ext4 have their superblock.
const EXT_SUPERBLOCK: usize = 1024;
/// What a record of the log begins with, in place of the round.
const XLOG_MAGIC: u32 = 0xfeed_babe;

/// The fingerprint of the volume of an adopted disk, `device` being a [`crate::Beside`]; 0: it holds no file system that has one.
///
/// # Errors
/// The volume cannot be read.
pub async fn fingerprint(device: &Device, adopted: Adopted) -> Result<u64, IoError> {
    let volume = Volume { device, bytes: adopted.volume_bytes };
    let mut seen = volume.read(0, END_BYTES).await?;
    let head = seen.clone();
    let xfs = xfs_log(&head).filter(|(start, sectors)| {
        sectors
            .checked_mul(SECTOR_BYTES)
            .and_then(|bytes| start.checked_add(bytes))
            .is_some_and(|end| end <= volume.bytes)
    });
    if xfs.is_none() && !is_ext(&head) && !is_btrfs(&head) {
        return Ok(0);
    }
    seen.extend(volume.read(volume.bytes.saturating_sub(END_BYTES), END_BYTES).await?);
    if let Some(at) = ext_journal(&head) {
        seen.extend(volume.read(at, PAGE_BYTES).await?);
    }
    if let Some((start, sectors)) = xfs {
        let at = xfs_head(&volume, start, sectors).await?;
        seen.extend(at.to_le_bytes());
        let from = (at * SECTOR_BYTES).saturating_sub(LOG_BYTES);
        seen.extend(volume.read(start + from, LOG_BYTES).await?);
    }
    let sum = u64::from(data_sum(&seen)) << 32 | u64::from(crc32c::crc32c(&seen));
    Ok(sum.max(1))
}

struct Volume<'a> {
    device: &'a Device,
    bytes: u64,
}

impl Volume<'_> {
    /// The whole pages that hold these bytes, as far as the volume goes.
    async fn read(&self, from: u64, len: u64) -> Result<Vec<u8>, IoError> {
        let low = from / PAGE_BYTES * PAGE_BYTES;
        let high = from.saturating_add(len).min(self.bytes).max(low);
        // Whole pages: what a grid disk has more than the volume is not the volume's.
        let pages = (high - low) / PAGE_BYTES * PAGE_BYTES;
        media::read(self.device, DATA_OFFSET + low, pages as usize).await
    }
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn is_ext(head: &[u8]) -> bool {
    le16(head, EXT_SUPERBLOCK + 56) == Some(0xef53)
}

fn is_btrfs(head: &[u8]) -> bool {
    head.get(0x1_0040..0x1_0048) == Some(b"_BHRfS_M")
}

/// Where the journal of ext3 or ext4 begins: the superblock has a copy of the place of its inode.
fn ext_journal(head: &[u8]) -> Option<u64> {
    const SUPERBLOCK: usize = EXT_SUPERBLOCK;
    let block_bytes = 1024_u64.checked_shl(le32(head, SUPERBLOCK + 24)?).filter(|bytes| *bytes <= 65536)?;
    // The copy is of the journal's inode, which is within the volume.
    let has_copy = *head.get(SUPERBLOCK + 253)? == 1 && le32(head, SUPERBLOCK + 224)? != 0;
    if !is_ext(head) || !has_copy {
        return None;
    }
    let blocks = SUPERBLOCK + 268;
    let first = if le16(head, blocks)? == 0xf30a {
        // A tree of extents: of depth 0 its first entry is the place, else that of the next node, which is as good as far as it goes.
        let entry = blocks + 12;
        match le16(head, blocks + 6)? {
            0 => u64::from(le16(head, entry + 6)?) << 32 | u64::from(le32(head, entry + 8)?),
            _ => u64::from(le16(head, entry + 8)?) << 32 | u64::from(le32(head, entry + 4)?),
        }
    } else {
        u64::from(le32(head, blocks)?)
    };
    first.checked_mul(block_bytes).filter(|at| *at > 0)
}

/// First byte and sectors of the log of an XFS file system that has it on the same volume.
fn xfs_log(head: &[u8]) -> Option<(u64, u64)> {
    if head.get(..4)? != b"XFSB" {
        return None;
    }
    let block_bytes = u64::from(be32(head, 4)?);
    let start = u64::from(be32(head, 48)?) << 32 | u64::from(be32(head, 52)?);
    let (group_blocks, log_blocks) = (u64::from(be32(head, 84)?), u64::from(be32(head, 96)?));
    let group_bits = u32::from(*head.get(124)?);
    if start == 0 || log_blocks == 0 || !(512..=65536).contains(&block_bytes) || group_bits > 31 {
        return None;
    }
    let block = (start >> group_bits).checked_mul(group_blocks)?.checked_add(start & ((1 << group_bits) - 1))?;
    Some((block.checked_mul(block_bytes)?, log_blocks * block_bytes / SECTOR_BYTES))
}

/// The sector of the log that is written next: those before it are of the newest round, those from it on of the one before.
async fn xfs_head(volume: &Volume<'_>, start: u64, sectors: u64) -> Result<u64, IoError> {
    let first = xfs_round(volume, start, 0).await?;
    let (mut low, mut high) = (0, sectors);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if xfs_round(volume, start, middle).await? == first { low = middle } else { high = middle }
    }
    Ok(high)
}

async fn xfs_round(volume: &Volume<'_>, start: u64, sector: u64) -> Result<u32, IoError> {
    let at = start + sector * SECTOR_BYTES;
    let page = volume.read(at, SECTOR_BYTES.max(PAGE_BYTES)).await?;
    let within = (at % PAGE_BYTES) as usize;
    let word = |at| be32(&page, at).unwrap_or_default();
    Ok(if word(within) == XLOG_MAGIC { word(within + 4) } else { word(within) })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::beside::{Beside, METADATA_BYTES};
    use device::layers::Memory;
    use device::{Buf, Bufs, Outcome};
    use futures_util::FutureExt;
    use std::sync::Arc;

    const VOLUME_BYTES: u64 = 4 << 20;

    struct Rig {
        volume: Device,
        both: Device,
    }

    impl Rig {
        fn new() -> Rig {
            let volume: Device = Memory::new(VOLUME_BYTES);
            let both = Beside::new(Memory::new(METADATA_BYTES), volume.clone(), VOLUME_BYTES).unwrap();
            Rig { volume, both }
        }
        fn write(&self, at: u64, bytes: &[u8]) {
            let from = at / 512 * 512;
            let len = (at + bytes.len() as u64).next_multiple_of(512) - from;
            let old = self.volume.read(from, Bufs::from(Buf::zeroed(len as usize))).now_or_never().unwrap();
            let mut all = Vec::new();
            old.bufs.for_each(0..len as usize, |piece| all.extend_from_slice(piece));
            all[(at - from) as usize..][..bytes.len()].copy_from_slice(bytes);
            let mut buf = Buf::zeroed(len as usize);
            buf.copy_from_slice(&all);
            let done = self.volume.write(from, Bufs::from(buf).freeze(), true).now_or_never().unwrap();
            assert_eq!(done.outcome, Outcome::Done);
        }
        fn print(&self) -> u64 {
            let adopted = Adopted { volume_bytes: VOLUME_BYTES, fingerprint: 0 };
            fingerprint(&self.both, adopted).now_or_never().unwrap().unwrap()
        }
        /// Whether a change of the byte there is seen.
        fn sees(&self, at: u64) -> bool {
            let before = self.print();
            self.write(at, &[0x5a]);
            before != self.print()
        }
    }

    #[test]
    fn the_ends_of_a_file_system_that_is_known_count() {
        let rig = Rig::new();
        assert!(!rig.sees(0) && rig.print() == 0, "nothing is known of anything else");
        rig.write(0x1_0040, b"_BHRfS_M");
        assert!(rig.print() != 0 && rig.sees(1) && rig.sees(131_071));
        assert!(rig.sees(VOLUME_BYTES - 1) && rig.sees(VOLUME_BYTES - 131_072));
        assert!(!rig.sees(131_072) && !rig.sees(1 << 20));
    }

    #[test]
    fn the_journal_superblock_of_ext4_counts() {
        let rig = Rig::new();
        let le = u32::to_le_bytes;
        rig.write(1024 + 24, &le(2));
        rig.write(1024 + 56, &[0x53, 0xef]);
        rig.write(1024 + 224, &le(8));
        rig.write(1024 + 253, &[1]);
        assert!(!rig.sees(500 * 4096 + 24));
        // One extent from block 500.
        rig.write(1024 + 268, &[0x0a, 0xf3, 1, 0, 4, 0, 0, 0]);
        rig.write(1024 + 268 + 12 + 8, &le(500));
        assert!(rig.sees(500 * 4096 + 25) && !rig.sees(501 * 4096));
        // The same as a list of blocks.
        rig.write(1024 + 268, &le(600));
        assert!(rig.sees(600 * 4096 + 24) && !rig.sees(500 * 4096 + 26));
        // A place beyond the end is nowhere.
        rig.write(1024 + 268, &le(1 << 30));
        rig.print();
    }

    #[test]
    fn the_head_of_the_log_of_xfs_counts() {
        let rig = Rig::new();
        let be = u32::to_be_bytes;
        rig.write(0, b"XFSB");
        rig.write(4, &be(4096));
        // Groups of 256 blocks; the log is 64 blocks from block 16 of group 1.
        rig.write(84, &be(256));
        rig.write(124, &[8]);
        rig.write(52, &be(256 + 16));
        rig.write(96, &be(64));
        let log = (256 + 16) * 4096_u64;
        for sector in 0..300 {
            rig.write(log + sector * 512, &be(7));
        }
        rig.write(log + 299 * 512, &[be(XLOG_MAGIC), be(7)].concat());
        let before = rig.print();
        rig.write(log + 300 * 512, &be(7));
        assert_ne!(before, rig.print(), "one more sector in the log");
        assert!(rig.sees(log + 290 * 512 + 9), "what the log says before its head");
        assert!(!rig.sees(log + 400 * 512 + 9), "what an older round has left");
        assert!(Arc::strong_count(&rig.volume) > 0);
    }
}
