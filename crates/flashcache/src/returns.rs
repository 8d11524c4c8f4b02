//! What flash got back for a write: whether a block has been read since flash was last written for it.
//!
//! Under a budget a block that nobody reads between two of its writes is not worth the next one: that costs wear and saves no read of the
//! disk. A bit for each block, by its hash; blocks that share one are taken for each other, which costs a write or a miss now and then. Kept
//! only where there is a budget.

use crate::units::BlockKey;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits for each block that the flash holds: with so many a block is taken for another that was read one time in five, at most.
const BITS_PER_BLOCK: u64 = 4;

/// See the module.
pub(crate) struct Returns {
    words: Box<[AtomicU64]>,
}

impl Returns {
    /// Bytes of memory for flash that holds so many blocks.
    pub(crate) fn memory_bytes(blocks: u64) -> u64 {
        blocks * BITS_PER_BLOCK / 8
    }

    /// For flash that holds so many blocks. To begin with all count as read: nothing is known of them.
    pub(crate) fn new(blocks: u64) -> Returns {
        let words = (blocks * BITS_PER_BLOCK).div_ceil(64).max(1);
        Returns { words: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    fn place(&self, key: BlockKey) -> (&AtomicU64, u64) {
        let hash = key.hash();
        let word = (u128::from(hash) * self.words.len() as u128) >> 64;
        (&self.words[word as usize], 1 << (hash % 64))
    }

    /// A block is read. On the hit path: never waits, and writes only what changes.
    pub(crate) fn read(&self, key: BlockKey) {
        let (word, bit) = self.place(key);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Flash is written for it, or would be: whether it was read since the last time.
    pub(crate) fn take(&self, key: BlockKey) -> bool {
        let (word, bit) = self.place(key);
        word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::DiskSlot;

    #[test]
    fn a_block_counts_as_read_until_it_is_written_twice() {
        let returns = Returns::new(1000);
        let key = |block| BlockKey::new(DiskSlot(1), block);
        let took = |blocks: std::ops::Range<u64>| blocks.filter(|block| returns.take(key(*block))).count();
        // Nothing is known of them; one in eight or so comes after another with the same bit.
        let first = took(0..1000);
        assert!((820..940).contains(&first), "{first}");
        assert!(took(1000..2000) > 600);
        assert_eq!(took(0..2000), 0);
        returns.read(key(7));
        assert_eq!((returns.take(key(7)), returns.take(key(7))), (true, false));
        // Of those that were not read, some are taken for one that was.
        (0..1000).for_each(|block| returns.read(key(block)));
        let mistaken = took(1000..2000);
        assert!((150..260).contains(&mistaken), "{mistaken}");
        assert_eq!(Returns::memory_bytes(1000), 500);
    }
}
