//! What of a grid disk is written before the index of the flash cache is whole.

use crate::base::units::PART_BYTES;
use crate::disk::grid_disk::GridDisk;
use device::sync::lock;
use flashcache::REGION_BYTES;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
/// Pieces remembered of a grid disk, some megabytes of memory; with more, they become coarser.
const PIECES_MAX: usize = 1 << 16;
/// By how much.
const COARSER: u64 = 16;
/// What of a grid disk has been written while no index could be told of it.
#[derive(Debug, Default)]
pub(crate) struct EarlyWrites {
    on: AtomicBool,
    written: Mutex<Pieces>,
    /// Of that, what may still happen: nobody knows how it ended.
    unknown: Mutex<Pieces>,
}

/// Bytes of a grid disk, in pieces of one size.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    piece_bytes: u64,
    numbers: BTreeSet<u64>,
}

impl Pieces {
    fn add(&mut self, range: &Range<u64>) {
        self.piece_bytes = self.piece_bytes.max(PART_BYTES);
        self.numbers.extend(range.start / self.piece_bytes..range.end.div_ceil(self.piece_bytes));
        while self.numbers.len() > PIECES_MAX {
            self.piece_bytes *= COARSER;
            self.numbers = self.numbers.iter().map(|number| number / COARSER).collect();
        }
    }

    /// Neighbours together, but not across regions, none beyond `end`.
    pub(crate) fn ranges(&self, end: u64) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = Vec::new();
        for number in &self.numbers {
            let (mut start, stop) = (number * self.piece_bytes, ((number + 1) * self.piece_bytes).min(end));
            while start < stop {
                let until = stop.min((start / REGION_BYTES + 1) * REGION_BYTES);
                match all.last_mut() {
                    Some(last) if last.end == start && start % REGION_BYTES != 0 => last.end = until,
                    _ => all.push(start..until),
                }
                start = until;
            }
        }
        all
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let bytes = self.piece_bytes.max(PART_BYTES);
        self.numbers.range(range.start / bytes..range.end.div_ceil(bytes)).next().is_some()
    }
}

impl EarlyWrites {
    pub(crate) fn begin(&self) {
        self.on.store(true, Ordering::Release);
    }

    /// A write that begins. Whether it is to be remembered.
    pub(crate) fn note(&self, range: &Range<u64>) -> bool {
        let on = self.on.load(Ordering::Acquire);
        if on {
            lock(&self.written).add(range);
        }
        on
    }

    /// One that was noted may still happen.
    pub(crate) fn note_unknown(&self, range: &Range<u64>) {
        lock(&self.unknown).add(range);
    }

    /// Nothing is written past the cache any more.
    pub(crate) fn end(&self) -> (Pieces, Pieces) {
        self.on.store(false, Ordering::Release);
        (std::mem::take(&mut *lock(&self.written)), std::mem::take(&mut *lock(&self.unknown)))
    }
}

impl GridDisk {
    /// Whether its requests wait until the index of the flash cache is whole.
    #[must_use]
    pub fn is_waiting_for_index(&self) -> bool {
        self.held.is_set()
    }

    /// Wait until the index of the flash cache is whole, where requests need it.
    pub(crate) async fn await_release(&self) {
        self.held.until(false).await;
    }
}
