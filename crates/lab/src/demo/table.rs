//! The table: blocks that say which they are, how often they were written, and whether they are whole.
//!
//! ```text
//!   0 magic  8 table  16 block  24 version  32 rows (pseudo-random, decided by table, block and version)  8188 CRC32C
//! ```
//!
//! Never reads or writes by itself.

use device::{Buf, Prng};
use std::sync::atomic::{AtomicU64, Ordering};

/// The database's block.
pub(super) const BLOCK_BYTES: usize = 8192;
const MAGIC: u64 = 0x666c_6173_6864_656d;
const ROWS_OFFSET: usize = 32;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;

/// A table and the version each of its blocks must have.
pub(super) struct Table {
    id: u64,
    versions: Vec<AtomicU64>,
}

/// A block that is not what was written last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {table}, block {block}: expected version {version}, found {found}")]
pub struct WrongBlock {
    /// Which table.
    pub table: u64,
    /// Which block was asked for.
    pub block: u32,
    /// The version it must have.
    pub version: u64,
    /// What was read.
    pub found: String,
}

impl Table {
    /// A table of `blocks` blocks at version 1.
    #[must_use]
    pub(super) fn new(blocks: u32, id: u64) -> Table {
        Table { id, versions: (0..blocks).map(|_| AtomicU64::new(1)).collect() }
    }

    /// How many blocks.
    #[must_use]
    pub(super) fn blocks(&self) -> u32 {
        self.versions.len() as u32
    }

    /// Where a block begins.
    #[must_use]
    pub(super) fn offset(block: u32) -> u64 {
        u64::from(block) * BLOCK_BYTES as u64
    }

    /// The version a block has now.
    #[must_use]
    pub(super) fn version(&self, block: u32) -> u64 {
        self.versions[block as usize].load(Ordering::Acquire)
    }

    /// A write of `version` has been acknowledged.
    pub(super) fn wrote(&self, block: u32, version: u64) {
        self.versions[block as usize].store(version, Ordering::Release);
    }

    /// A block's bytes at a version.
    pub(super) fn fill(&self, block: u32, version: u64, into: &mut [u8]) {
        assert_eq!(into.len(), BLOCK_BYTES, "a block is filled whole");
        for (at, number) in [MAGIC, self.id, u64::from(block), version].into_iter().enumerate() {
            into[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        let seed = self.id << 56 ^ u64::from(block) << 24 ^ version;
        Prng::new(seed).fill(&mut into[ROWS_OFFSET..CRC_OFFSET]);
        let crc = crc32c::crc32c(&into[..CRC_OFFSET]);
        into[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
    }

    /// A block's bytes at a version, in memory of their own.
    #[must_use]
    pub(super) fn block(&self, block: u32, version: u64) -> Buf {
        let mut buf = Buf::zeroed(BLOCK_BYTES);
        self.fill(block, version, &mut buf);
        buf
    }

    /// Check what was read for a block. While it is being written, [`Table::version`] must not be asked: the caller names
    /// the version.
    ///
    /// # Errors
    /// It is another block, another version, or damaged.
    pub(super) fn verify(&self, block: u32, version: u64, bytes: &[u8]) -> Result<(), WrongBlock> {
        assert_eq!(bytes.len(), BLOCK_BYTES, "a block is verified whole");
        let mut word = [0; 8];
        let mut number = |at: usize| {
            word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(word)
        };
        let found = [number(0), number(1), number(2), number(3)];
        let expected = [MAGIC, self.id, u64::from(block), version];
        let stored = &bytes[CRC_OFFSET..];
        let whole = crc32c::crc32c(&bytes[..CRC_OFFSET]).to_le_bytes() == stored;
        if found == expected && whole {
            return Ok(());
        }
        let found = match found {
            [MAGIC, table, at, version] if whole => format!("version {version} of block {at} of table {table}"),
            [MAGIC, table, at, version] => {
                format!("a damaged block that says version {version} of block {at} of table {table}")
            }
            _ if bytes.iter().all(|byte| *byte == 0) => "zeroes".to_owned(),
            _ => "something that is no block of a table".to_owned(),
        };
        Err(WrongBlock { table: self.id, block, version, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_it_says() {
        let table = Table::new(4, 7);
        let block = table.block(3, 5);
        assert_eq!(table.verify(3, 5, &block), Ok(()));
        let says = |at, version, bytes: &[u8]| match table.verify(at, version, bytes) {
            Ok(()) => "good".to_owned(),
            Err(wrong) => wrong.found,
        };
        assert_eq!(says(3, 6, &block), "version 5 of block 3 of table 7", "stale");
        assert_eq!(says(2, 5, &block), "version 5 of block 3 of table 7", "misdirected");
        assert_eq!(says(0, 1, &[0; BLOCK_BYTES]), "zeroes");
        assert_eq!(says(0, 1, &[1; BLOCK_BYTES]), "something that is no block of a table");
        let other = Table::new(4, 8).block(3, 5);
        assert_eq!(says(3, 5, &other), "version 5 of block 3 of table 8", "foreign");
        for at in [0, 40, 4096, BLOCK_BYTES - 1] {
            let mut rotten = block.to_vec();
            rotten[at] ^= 1;
            assert_ne!(says(3, 5, &rotten), "good", "byte {at}");
        }
    }

    /// Torn: the first half of one version, the second of another.
    #[test]
    fn a_torn_block_is_noticed() {
        let table = Table::new(1, 1);
        let mut torn = table.block(0, 2).to_vec();
        torn[4096..].copy_from_slice(&table.block(0, 1)[4096..]);
        assert!(table.verify(0, 2, &torn).is_err());
        assert!(table.verify(0, 1, &torn).is_err());
    }
}
