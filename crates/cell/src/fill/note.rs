//! Whether a range has changed since somebody looked: for data that waits outside the range locks to be written to flash.
//!
//! Changes are counted by place, 64 KiB each, in a table that two places may share: "changed" may be wrong, "unchanged" never
//! is. Never holds data, and costs nothing until the first look.

use crate::backing::cached::FillPermit;
use crate::base::range_lock::LockMode;
use crate::base::request::Context;
use crate::disk::grid_disk::{Binding, GridDisk};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Places that are told apart: 128 KiB of counters, exact for a gigabyte in a row.
const PLACES: usize = 1 << 14;
const PLACE_BYTES: u64 = 64 << 10;

/// Counts of the changes of a grid disk.
#[derive(Debug, Default)]
pub(crate) struct Changes(OnceLock<Box<[AtomicU64]>>);

impl Changes {
    /// A change of these bytes begins. The caller holds them exclusively.
    pub(crate) fn begins(&self, bytes: Range<u64>) {
        if let Some(counts) = self.0.get() {
            places(bytes).for_each(|place| {
                counts[place].fetch_add(1, Ordering::AcqRel);
            });
        }
    }

    /// How often each place of these bytes has changed. The caller holds them, shared at least.
    fn now(&self, bytes: Range<u64>) -> SmallVec<[u64; 2]> {
        let counts = self.0.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(0)).collect());
        places(bytes).map(|place| counts[place].load(Ordering::Acquire)).collect()
    }
}

fn places(bytes: Range<u64>) -> impl Iterator<Item = usize> {
    (bytes.start / PLACE_BYTES..bytes.end.div_ceil(PLACE_BYTES)).map(|place| (place % PLACES as u64) as usize)
}

/// What a range was like at a look: taken before it was read, it tells later whether what was read is what is there.
#[derive(Clone, Debug)]
pub struct Note {
    bytes: Range<u64>,
    changes: SmallVec<[u64; 2]>,
    /// Of the cache as it was: what waits does not keep a cache that is gone.
    pub(crate) binding: Weak<Binding>,
    pub(crate) permit: FillPermit,
}

impl Note {
    /// Which bytes.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }
}

impl GridDisk {
    /// Look at a range that the caller holds, shared at least; what is read from disk under that lock is what is noted.
    pub(crate) fn note_held(&self, binding: &Arc<Binding>, bytes: Range<u64>, permit: FillPermit) -> Note {
        Note { changes: self.changes.now(bytes.clone()), bytes, permit, binding: Arc::downgrade(binding) }
    }

    /// The same, waiting for changes under way. None: it is not cached.
    pub(crate) async fn note(&self, context: &Context, bytes: Range<u64>) -> Option<Note> {
        let _guard = self.lock_bytes(bytes.start, bytes.end - bytes.start, LockMode::Shared).await;
        let binding = self.serving_cache()?;
        let permit = self.fill_permit(context, &binding);
        Some(self.note_held(&binding, bytes, permit))
    }

    /// The cache, if a range is what it was, in the same one. The caller holds the range exclusively.
    pub(crate) fn as_noted(&self, note: &Note) -> Option<Arc<Binding>> {
        let same = |now: &Arc<Binding>| std::ptr::eq(Arc::as_ptr(now), note.binding.as_ptr());
        let binding = self.serving_cache().filter(same)?;
        let unchanged = self.sabotage == Some(flashcache::Sabotage::NoteNotChecked)
            || self.changes.now(note.bytes.clone()) == note.changes;
        unchanged.then_some(binding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_in_every_place_it_touches_and_in_no_other() {
        let changes = Changes::default();
        // Nobody has looked yet.
        changes.begins(0..1);
        let (first, second, third) = (0..4096, PLACE_BYTES..PLACE_BYTES + 1, 2 * PLACE_BYTES..3 * PLACE_BYTES);
        let before: Vec<_> = [&first, &second, &third].map(|r| changes.now(r.clone())).into();
        assert_eq!(before[0].as_slice(), [0]);
        changes.begins(PLACE_BYTES - 1..PLACE_BYTES + 1);
        assert_ne!(changes.now(first), before[0]);
        assert_ne!(changes.now(second), before[1]);
        assert_eq!(changes.now(third.clone()), before[2]);
        // A place far away may share its counter.
        changes.begins(third.start + PLACES as u64 * PLACE_BYTES..third.start + PLACES as u64 * PLACE_BYTES + 1);
        assert_ne!(changes.now(third), before[2]);
    }
}
