//! How long blocks last before they are overwritten: those that go soon are written together, so that their segments become garbage as a
//! whole (SepBIT; Wang, Lee and others, 2022, tells them apart by the lifetime of the version before, too).
//!
//! Time is data appended to the log, in pages. Never does I/O; a race or a collision costs a block its place, nothing else.

use crate::units::BlockKey;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks remembered between the end of their old version and the coming of the new: as many as writes are under way, and some.
const RECENT: usize = 4096;
/// The threshold follows the last 2^3 or so segments that were cleaned.
const SMOOTH_SHIFT: u32 = 3;

/// How a block that is overwritten is going to last, by how its last version did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// It goes soon.
    Short,
    /// Longer than what is written together with it.
    Long,
}

/// See the module.
pub(crate) struct Lifetimes {
    /// By the lower half of a key's hash: the upper half, and how long the version lasted.
    recent: Box<[AtomicU64]>,
    threshold: AtomicU64,
}

impl Lifetimes {
    /// Of a log of so many pages: to begin with, what is overwritten before all of it has been written once goes soon.
    pub(crate) fn new(pages: u64) -> Lifetimes {
        Lifetimes { recent: (0..RECENT).map(|_| AtomicU64::new(0)).collect(), threshold: AtomicU64::new(pages) }
    }

    fn place(&self, key: BlockKey) -> (&AtomicU64, u64) {
        let hash = key.hash();
        (&self.recent[hash as usize % RECENT], hash >> 32 | 1)
    }

    /// A version that was written so long ago is being overwritten.
    pub(crate) fn ended(&self, key: BlockKey, age_pages: u64) {
        let (place, name) = self.place(key);
        place.store(name << 32 | age_pages.min(u64::from(u32::MAX)), Ordering::Relaxed);
    }

    /// The new version comes: how the old one lasted, if it is remembered.
    pub(crate) fn take(&self, key: BlockKey) -> Option<Lifetime> {
        let (place, name) = self.place(key);
        let found = place.load(Ordering::Relaxed);
        if found >> 32 != name {
            return None;
        }
        place.store(0, Ordering::Relaxed);
        Some(self.of(found & u64::from(u32::MAX)))
    }

    /// How a version that was written so long ago has lasted.
    pub(crate) fn of(&self, age_pages: u64) -> Lifetime {
        if age_pages < self.threshold.load(Ordering::Relaxed) { Lifetime::Short } else { Lifetime::Long }
    }

    /// A segment of blocks that go soon has been cleaned, so long after it was full.
    pub(crate) fn cleaned(&self, age_pages: u64) {
        let before = self.threshold.load(Ordering::Relaxed);
        let after = before - (before >> SMOOTH_SHIFT) + (age_pages >> SMOOTH_SHIFT);
        self.threshold.store(after.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::DiskSlot;

    #[test]
    fn a_version_is_remembered_once_and_told_by_what_was_cleaned() {
        let lifetimes = Lifetimes::new(1000);
        let key = BlockKey::new(DiskSlot(1), 7);
        assert_eq!(lifetimes.take(key), None);
        lifetimes.ended(key, 999);
        assert_eq!((lifetimes.take(key), lifetimes.take(key)), (Some(Lifetime::Short), None));
        lifetimes.ended(key, 1000);
        assert_eq!(lifetimes.take(key), Some(Lifetime::Long));
        (0..64).for_each(|_| lifetimes.cleaned(80));
        assert_eq!((lifetimes.of(60), lifetimes.of(100)), (Lifetime::Short, Lifetime::Long));
    }
}
