//! Filling by `evict`: a buffer cache above the cell lets go of a clean block and offers it, so that flash holds what memory
//! does not. And the last step of `feed`, which is the same.
//!
//! Whether what is offered is still what is there is decided by a [`Note`], under the range lock. Never reads the disk.

use crate::base::range_lock::LockMode;
use crate::base::units::PART_BYTES;
use crate::disk::grid_disk::GridDisk;
use crate::fill::note::Note;
use crate::request::session::Session;
use device::SharedBufs;
use flashcache::{FillCause, FillReport};
use std::future::Future;
use std::pin::Pin;

/// What became of an offered block: the words of the database flash cache's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offered {
    /// It is on flash, some of it at least.
    Inserted,
    /// All of it was there.
    Exists,
    /// It has changed since it was read, or is cached otherwise by now.
    NotCurrent,
    /// Flash is busier than the disk, or has no room at the moment.
    WriterOverloaded,
    /// It is not to be cached, or would not be worth its wear.
    NotUseful,
}

/// Where a buffer cache puts the clean blocks it lets go of.
pub trait VictimSink: Send + Sync {
    /// Before a block of `len` bytes at `offset` is read: what an offer of it has to bring along. None: it is not cached.
    fn note(&self, offset: u64, len: u64) -> Pin<Box<dyn Future<Output = Option<Note>> + Send + '_>>;

    /// Offer a block, as it was read after the note was taken. Never fails: what is refused is counted.
    fn offer(&self, note: Note, data: SharedBufs) -> Pin<Box<dyn Future<Output = Offered> + Send + '_>>;
}

impl VictimSink for Session {
    fn note(&self, offset: u64, len: u64) -> Pin<Box<dyn Future<Output = Option<Note>> + Send + '_>> {
        Box::pin(async move {
            let whole = len > 0 && offset.is_multiple_of(PART_BYTES) && len.is_multiple_of(PART_BYTES);
            let fits =
                whole && len <= crate::base::units::PIECE_BYTES_MAX && self.grid_disk().check(offset, len).is_ok();
            if fits { self.grid_disk().note(self.context(), offset..offset + len).await } else { None }
        })
    }

    fn offer(&self, note: Note, data: SharedBufs) -> Pin<Box<dyn Future<Output = Offered> + Send + '_>> {
        Box::pin(self.grid_disk().insert(note, data))
    }
}

impl GridDisk {
    /// Write data to flash that was read after `note` was taken, unless there is a reason not to.
    pub(crate) async fn insert(&self, note: Note, data: SharedBufs) -> Offered {
        let offered = self.try_insert(&note, &data).await;
        let counters = &self.counters;
        match offered {
            Offered::Inserted => &counters.inserts,
            Offered::Exists => &counters.insert_skips_exists,
            Offered::NotCurrent => &counters.insert_skips_not_current,
            Offered::WriterOverloaded => &counters.insert_skips_overloaded,
            Offered::NotUseful => &counters.insert_skips_not_useful,
        }
        .one();
        offered
    }

    async fn try_insert(&self, note: &Note, data: &SharedBufs) -> Offered {
        let bytes = note.bytes();
        if data.len_bytes() as u64 != bytes.end - bytes.start {
            return Offered::NotCurrent;
        }
        let parts = bytes.start / PART_BYTES..bytes.end / PART_BYTES;
        let Some(binding) = self.serving_cache() else { return Offered::NotCurrent };
        if binding.declines_fill(parts.start) {
            return Offered::WriterOverloaded;
        }
        let _guard = self.lock_bytes(bytes.start, bytes.end - bytes.start, LockMode::Exclusive).await;
        let whole = || self.check_not_lost().is_ok() && self.check(bytes.start, bytes.end - bytes.start).is_ok();
        let Some(binding) = self.as_noted(note).filter(|_| whole()) else { return Offered::NotCurrent };
        if binding.cache.is_dirty(&binding.disk, &parts) {
            // Flash has it, newer than the disk. (With a flush that fails now, the copies below end; dirty data must not.)
            return Offered::Exists;
        }
        let view = data.view(0..data.len_bytes());
        let FillReport { taken, there, crowded, stale } =
            self.fill(&binding, parts, view, FillCause::Insert, note.permit);
        match (taken > 0, stale, crowded > 0, there > 0) {
            (true, ..) => Offered::Inserted,
            (false, true, ..) => Offered::NotCurrent,
            (false, false, true, _) => Offered::WriterOverloaded,
            (false, false, false, true) => Offered::Exists,
            (false, false, false, false) => Offered::NotUseful,
        }
    }
}
