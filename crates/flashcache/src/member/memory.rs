//! What a member of the cache needs in memory, and the block size at which that fits a limit.
//!
//! Of every page a checksum, of every cached block an index entry, the names of blocks that left and how often blocks were asked for. Pages are what the flash
//! has; entries are one for a block that was filled at once and up to one a page where parts came by themselves, so a
//! limit is kept by the number of entries. Never allocates; figures only.

use crate::admission::policy::{AdaptiveLog, CacheShape};
use crate::index::Index;
use crate::index::live::Live;

/// The coarsest block.
pub(crate) const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// Bytes of a segment's state: its place in the log, its pins, what of it is readable, what of it is dirty.
const SEGMENT_STATE_BYTES: u64 = 104;
/// Whatever the limit, the index of a cache that is there holds an entry for one block in eight: less is no cache.
const BLOCKS_PER_ENTRY_MAX: u64 = 8;
/// And one for every page of so many segments: those that are being written give nothing back.
const SEGMENTS_MIN: u64 = 8;

/// What a member needs when it is full of whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Blocks its pages hold.
    pub blocks: u64,
    /// Entries its index may have.
    pub entries_max: u64,
    /// The index with that many entries.
    pub index_bytes: u64,
    /// The checksums of all pages.
    pub checksum_bytes: u64,
    /// Names of blocks that left, and how often blocks were asked for.
    pub ghost_bytes: u64,
    /// Sampled models of strategies, and the state of segments.
    pub other_bytes: u64,
}

impl MemoryNeed {
    /// Of an area with one entry a block, or `entries_max`.
    #[must_use]
    pub fn of(area_bytes: u64, segment_bytes: u32, block_bytes: u32, entries_max: Option<u64>) -> MemoryNeed {
        let segments = area_bytes / u64::from(segment_bytes);
        let pages = segments * u64::from(segment_bytes / 4096);
        let blocks = pages / u64::from(block_bytes / 4096);
        let entries_max = entries_max.unwrap_or(blocks);
        let ghost_bytes = AdaptiveLog::ghost_bytes(blocks);
        MemoryNeed {
            blocks,
            entries_max,
            index_bytes: Index::memory_bytes_max(entries_max),
            checksum_bytes: pages * 4,
            ghost_bytes,
            other_bytes: AdaptiveLog::memory_bytes(blocks) - ghost_bytes
                + segments * SEGMENT_STATE_BYTES
                + Live::memory_bytes(pages, segments),
        }
    }

    /// All of it.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        self.index_bytes + self.checksum_bytes + self.ghost_bytes + self.other_bytes
    }

    /// Bytes for each block, in thousandths.
    #[must_use]
    pub fn milli_bytes_per_block(&self) -> u64 {
        (self.all_bytes() * 1000).checked_div(self.blocks).unwrap_or(0)
    }
}

/// How many entries the index of an area may have, so that all of its memory is within `limit_bytes`: at most one a page.
pub(crate) fn entries_within(area_bytes: u64, segment_bytes: u32, block_bytes: u32, limit_bytes: u64) -> u64 {
    let none = MemoryNeed::of(area_bytes, segment_bytes, block_bytes, Some(0));
    let pages = none.checksum_bytes / 4;
    let fits =
        |entries: u64| MemoryNeed { index_bytes: Index::memory_bytes_max(entries), ..none }.all_bytes() <= limit_bytes;
    let (mut low, mut high) = (0, pages);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    let least = (none.blocks / BLOCKS_PER_ENTRY_MAX).max(SEGMENTS_MIN * u64::from(segment_bytes / 4096));
    low.max(least.min(pages))
}

/// The limit is too low for a cache of this size, whatever its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the flash cache needs {need_bytes} bytes of memory with blocks of {block_bytes} bytes, and may take {limit_bytes}\n\
     hint: raise index in [memory] of cell.toml, or give the cache less flash"
)]
pub struct MemoryShort {
    /// With the coarsest blocks.
    pub need_bytes: u64,
    /// Those.
    pub block_bytes: u32,
    /// What is allowed.
    pub limit_bytes: u64,
}

/// What caches on all `areas` need together.
#[must_use]
pub fn need_bytes(areas: &[u64], segment_bytes: u32, block_bytes: u32) -> u64 {
    areas.iter().map(|area| MemoryNeed::of(*area, segment_bytes, block_bytes, None).all_bytes()).sum()
}

/// The finest block, `block_bytes` or coarser, with which caches on all `areas` fit the limit.
///
/// # Errors
/// None does.
pub fn block_within(areas: &[u64], segment_bytes: u32, block_bytes: u32, limit_bytes: u64) -> Result<u32, MemoryShort> {
    let mut block = block_bytes;
    loop {
        let need_bytes = need_bytes(areas, segment_bytes, block);
        if need_bytes <= limit_bytes {
            return Ok(block);
        }
        let coarser = block.saturating_mul(2);
        let held = |area: &u64| CacheShape::of(*area, segment_bytes, coarser, 4096).is_some();
        if coarser > BLOCK_BYTES_MAX || !areas.iter().all(held) {
            return Err(MemoryShort { need_bytes, block_bytes: block, limit_bytes });
        }
        block = coarser;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const SEGMENT: u32 = 2 << 20;

    #[test]
    fn within_the_design_for_each_block() {
        for area in [1 << 30, 700_000_000_000, 15 << 40] {
            for block in [4096_u32, 16 << 10, 64 << 10] {
                let need = MemoryNeed::of(area, SEGMENT, block, None);
                assert!(need.index_bytes <= need.blocks * 20 + (1 << 20), "{area} {block}");
                assert_eq!(need.checksum_bytes, need.blocks * u64::from(block / 4096) * 4);
                // Names of blocks that left are 4 bytes a block more, counts 2; models have a size of their own, segments 104 bytes and a bit for
                // each page.
                assert_eq!(need.ghost_bytes, need.blocks * 6);
                assert!(need.other_bytes <= area / u64::from(SEGMENT) * (104 + 68) + (72 << 20), "{block}: {need:?}");
            }
        }
    }

    /// A change of these bytes is a change of what `docs` and the ready line promise.
    #[test]
    fn to_the_byte() {
        let need = MemoryNeed::of(64 << 30, SEGMENT, 16 << 10, None);
        let expected = MemoryNeed {
            blocks: 4 << 20,
            entries_max: 4 << 20,
            // 18 places for each of 256 shards, and 6 for each 5 entries, of 16 bytes.
            index_bytes: 80_604_368,
            checksum_bytes: 64 << 20,
            ghost_bytes: 24 << 20,
            // Nine models of 8192 blocks with 62 bytes each and the sketch of these, and 104 + 68 bytes for each segment.
            other_bytes: 10_223_616,
        };
        assert_eq!(need, expected);
        assert_eq!((need.all_bytes(), need.milli_bytes_per_block()), (183_102_672, 43_655));
        assert_eq!(MemoryNeed::default().milli_bytes_per_block(), 0);
        let few = MemoryNeed::of(64 << 30, SEGMENT, 16 << 10, Some(1000));
        assert_eq!((few.entries_max, few.index_bytes), (1000, 37_632));
        assert_eq!(MemoryNeed { index_bytes: need.index_bytes, entries_max: need.entries_max, ..few }, need);
        // A small one has smaller models and more names.
        let small = MemoryNeed::of(16 << 20, 1 << 20, 64 << 10, None);
        assert_eq!(
            (small.blocks, small.ghost_bytes, small.other_bytes, small.index_bytes),
            (256, 1536, 145_600, 23_360)
        );
    }

    #[test]
    fn a_coarser_block_when_memory_is_short() {
        let areas = [1 << 40, 1 << 40];
        let need = |block| areas.iter().map(|a| MemoryNeed::of(*a, SEGMENT, block, None).all_bytes()).sum::<u64>();
        let within = |limit| block_within(&areas, SEGMENT, 16 << 10, limit);
        assert_eq!(within(need(16 << 10)), Ok(16 << 10));
        assert_eq!(within(need(16 << 10) - 1), Ok(32 << 10));
        assert_eq!(within(need(64 << 10)), Ok(64 << 10));
        let short = within(need(64 << 10) - 1).unwrap_err();
        assert_eq!((short.need_bytes, short.block_bytes), (need(64 << 10), 64 << 10));
        assert!(short.to_string().contains("hint: raise index in [memory]"));
        // A segment of 64 KiB holds no block of 64 KiB with its header.
        assert_eq!(block_within(&[1 << 30], 64 << 10, 4096, 1).unwrap_err().block_bytes, 32 << 10);
    }

    #[test]
    fn as_many_entries_as_fit() {
        let area = 64 << 30;
        let one_a_block = MemoryNeed::of(area, SEGMENT, 16 << 10, None);
        for (limit, least, most) in [
            (u64::MAX, one_a_block.blocks * 4, one_a_block.blocks * 4),
            (one_a_block.all_bytes(), one_a_block.blocks, one_a_block.blocks + 1),
            (0, one_a_block.blocks / 8, one_a_block.blocks / 8),
        ] {
            let entries = entries_within(area, SEGMENT, 16 << 10, limit);
            assert!((least..=most).contains(&entries), "{limit}: {entries} of {least} to {most}");
        }
    }
}
