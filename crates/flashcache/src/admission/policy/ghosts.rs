//! Names of blocks that left, or were refused: two names of 2 bytes for each block of the cache.

use crate::base::units::BlockKey;

/// Names of blocks in a set-associative table: 11 bits of a hash, and the epoch it was put in.
pub(crate) struct Ghosts {
    slots: Vec<u16>,
    /// The epoch now, 1 to 31.
    epoch: u16,
    puts: u64,
    puts_per_epoch: u64,
    /// Where the sweep for expired names goes on.
    hand: usize,
}

const GHOST_WAYS: usize = 8;
const EPOCH_BITS: u32 = 5;
/// Epoch 0 marks an empty slot.
const EPOCHS: u16 = (1 << EPOCH_BITS) - 1;
/// Epochs while as many names are put as the cache has blocks: how finely age is told.
pub(crate) const EPOCHS_PER_CACHE: u16 = 8;
/// Older names are swept away before their epoch comes round again.
const AGE_MAX: u16 = EPOCHS - 4;
/// The fewest names there is room for: a few full sets.
const GHOSTS_MIN: u64 = 64;

impl Ghosts {
    /// A table for a cache of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Ghosts {
        let slots = ((2 * blocks).max(GHOSTS_MIN) as usize).next_multiple_of(GHOST_WAYS);
        let puts_per_epoch = (blocks / u64::from(EPOCHS_PER_CACHE)).max(1);
        Ghosts { slots: vec![0; slots], epoch: 1, puts: 0, puts_per_epoch, hand: 0 }
    }

    /// Its set's first slot, and its name without an epoch.
    fn place(&self, key: BlockKey) -> (usize, u16) {
        let hash = key.hash();
        let sets = self.slots.len() / GHOST_WAYS;
        let set = ((u128::from(hash) * sets as u128) >> 64) as usize;
        (set * GHOST_WAYS, (hash as u16) << EPOCH_BITS)
    }

    fn age(&self, slot: u16) -> u16 {
        let epoch = slot & EPOCHS;
        if epoch == 0 { u16::MAX } else { (self.epoch + EPOCHS - epoch) % EPOCHS }
    }

    /// Remember a block.
    pub(crate) fn put(&mut self, key: BlockKey) {
        self.puts += 1;
        if self.puts >= self.puts_per_epoch {
            self.puts = 0;
            self.epoch = self.epoch % EPOCHS + 1;
        }
        self.sweep();
        let (first, tag) = self.place(key);
        let set = first..first + GHOST_WAYS;
        let same = set.clone().find(|&i| self.slots[i] & EPOCHS != 0 && self.slots[i] & !EPOCHS == tag);
        let at = same.or_else(|| set.max_by_key(|&i| self.age(self.slots[i])));
        if let Some(at) = at {
            self.slots[at] = tag | self.epoch;
        }
    }

    /// The whole table is swept about twice an epoch, so that nothing expired is there when its epoch's number comes again.
    fn sweep(&mut self) {
        let some = (2 * self.slots.len()) as u64 / self.puts_per_epoch;
        for _ in 0..=some {
            if self.age(self.slots[self.hand]) > AGE_MAX {
                self.slots[self.hand] = 0;
            }
            self.hand = (self.hand + 1) % self.slots.len();
        }
    }

    /// Forget a block; whether it was put within the last `window` epochs.
    pub(crate) fn take(&mut self, key: BlockKey, window: u16) -> bool {
        let (first, tag) = self.place(key);
        for i in first..first + GHOST_WAYS {
            if self.slots[i] & EPOCHS != 0 && self.slots[i] & !EPOCHS == tag {
                let young = self.age(self.slots[i]) <= window;
                self.slots[i] = 0;
                return young;
            }
        }
        false
    }

    /// Bytes of the table of a cache of `blocks` blocks.
    pub(crate) fn memory_bytes(blocks: u64) -> u64 {
        (2 * blocks).max(GHOSTS_MIN) * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::DiskSlot;

    fn key(block: u64) -> BlockKey {
        BlockKey::new(DiskSlot(0), block)
    }

    #[test]
    fn remembers_for_the_window_and_answers_once() {
        let mut ghosts = Ghosts::new(64_000);
        (0..64_000).for_each(|b| ghosts.put(key(b)));
        let young = (63_000..64_000).filter(|&b| ghosts.take(key(b), 2)).count();
        assert!(young > 950, "{young} of the last 1000");
        assert!((63_000..64_000).filter(|&b| ghosts.take(key(b), 2)).count() < 20, "each is told once");
        let old = (0..1000).filter(|&b| ghosts.take(key(b), 2)).count();
        assert!(old < 20, "{old} were put 7 epochs ago");
    }

    #[test]
    fn the_expired_do_not_come_back() {
        let mut ghosts = Ghosts::new(8_000);
        for round in 0..200_u64 {
            (0..1000).for_each(|b| ghosts.put(key(round * 1000 + b)));
            // 40 rounds are 40 epochs: longer than the numbers of epochs last.
            if round >= 40 {
                let risen = (0..1000).filter(|b| ghosts.take(key((round - 40) * 1000 + b), 16)).count();
                assert!(risen < 30, "round {round}: {risen} names of another age");
            }
        }
    }
}
