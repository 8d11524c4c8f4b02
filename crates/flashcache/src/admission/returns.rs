//! `Returns` remembers of each page whether a client has read it since flash was last written for it.
//!
//! Under a budget a page that nobody reads between two of its writes is not worth the next one: that costs wear and saves no read of the
//! disk. A bit for each page of each block, by the block's hash; blocks that share their bits are taken for each other, which costs a write or a
//! miss now and then. Kept only where there is a budget.

use crate::base::units::BlockKey;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits for each page that the flash holds: when it is full of what was read, two blocks in five share theirs with another.
const BITS_PER_PAGE: u64 = 2;

/// See the module.
pub(crate) struct Returns {
    words: Box<[AtomicU64]>,
    block_parts: u32,
}

impl Returns {
    /// Bytes of memory for so many pages of flash.
    pub(crate) fn memory_bytes(pages: u64) -> u64 {
        (pages * BITS_PER_PAGE).div_ceil(64).max(1) * 8
    }

    /// For so many pages of flash in blocks of `block_parts` (at most 16). To begin with all count as read: nothing is known of them.
    pub(crate) fn new(pages: u64, block_parts: u32) -> Returns {
        let words = Returns::memory_bytes(pages) / 8;
        Returns { words: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect(), block_parts }
    }

    /// The word and the bits of these parts of a block.
    fn place(&self, key: BlockKey, parts: u16) -> (&AtomicU64, u64) {
        let hash = key.hash();
        let word = (u128::from(hash) * self.words.len() as u128) >> 64;
        let slot = hash % u64::from(64 / self.block_parts);
        (&self.words[word as usize], u64::from(parts) << (slot * u64::from(self.block_parts)))
    }

    /// Parts of a block are read. On the hit path: never waits, and writes only what changes.
    pub(crate) fn read(&self, key: BlockKey, parts: u16) {
        let (word, bits) = self.place(key, parts);
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Flash is written for parts of a block, or would be: whether any was read since the last time.
    pub(crate) fn take(&self, key: BlockKey, parts: u16) -> bool {
        let (word, bits) = self.place(key, parts);
        word.fetch_and(!bits, Ordering::Relaxed) & bits != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::DiskSlot;

    #[test]
    fn a_page_counts_as_read_until_it_is_written_twice() {
        let returns = Returns::new(4000, 4);
        let key = |block| BlockKey::new(DiskSlot(1), block);
        let took = |blocks: std::ops::Range<u64>, parts| blocks.filter(|b| returns.take(key(*b), parts)).count();
        // Nothing is known of them; one in five or so comes after another with the same bits.
        let first = took(0..1000, 0b1111);
        assert!((740..860).contains(&first), "{first}");
        took(1000..2000, 0b1111);
        assert_eq!(took(0..2000, 0b1111), 0);
        returns.read(key(7), 0b0110);
        assert!(!returns.take(key(7), 0b1001), "its other pages were not read");
        assert_eq!((returns.take(key(7), 0b0011), returns.take(key(7), 0b0011)), (true, false));
        assert!(returns.take(key(7), 0b1111), "one of them is left");
        // Of those that were not read, some are taken for one that was.
        (0..1000).for_each(|block| returns.read(key(block), 0b1111));
        let mistaken = took(1000..2000, 0b1111);
        assert!((280..420).contains(&mistaken), "{mistaken}");
        assert_eq!((Returns::memory_bytes(4000), Returns::memory_bytes(1)), (1000, 8));
        let whole = Returns::new(4000, 16);
        whole.take(key(1), u16::MAX);
        whole.read(key(1), 1 << 15);
        assert!(whole.take(key(1), 1 << 15) && !whole.take(key(1), u16::MAX));
    }
}
