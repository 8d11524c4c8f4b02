//! Which blocks have parts that are newer than the slow disk, in disk order, and how many such pages each segment holds.
//!
//! A block is listed while it may have a dirty entry: entries go into the index under this list's lock, and a block leaves
//! the list only after a look into the index under it. After the failure of the device the list stays: it says what has
//! been lost. Never does I/O.

use crate::base::units::{BlockKey, DiskSlot, SegmentId};
use crate::index::{Dead, Ending, Entry, Index};
use device::Instant;
use device::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// See the module's head.
pub(crate) struct Dirty {
    blocks: Mutex<Blocks>,
    /// By segment and grid disk: when the first dirty page of the one was appended to the other.
    since: Mutex<BTreeMap<(SegmentId, DiskSlot), Instant>>,
    by_segment: Vec<AtomicU32>,
    pages: AtomicU64,
}

#[derive(Default)]
struct Blocks {
    listed: BTreeSet<BlockKey>,
    /// The device has failed: what is listed is lost, and nothing more is.
    closed: bool,
}

/// No dirty data is taken any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Dirty {
    pub(crate) fn new(segments: u32) -> Dirty {
        Dirty {
            blocks: Mutex::default(),
            since: Mutex::default(),
            by_segment: (0..segments).map(|_| AtomicU32::new(0)).collect(),
            pages: AtomicU64::new(0),
        }
    }

    /// Put a dirty entry of then, whose pages lie in `segment`, into the index.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When the entry is clean, or the index full: it has as many entries as there are pages.
    pub(crate) fn insert<'a>(
        &self,
        index: Ending<'a>,
        entry: Entry,
        segment: SegmentId,
        now: Instant,
    ) -> Result<Dead<'a>, Closed> {
        assert!(entry.dirty(), "clean entries go to the index alone");
        let mut blocks = lock(&self.blocks);
        if blocks.closed {
            return Err(Closed);
        }
        let count = entry.valid().count_ones();
        self.by_segment[segment.0 as usize].fetch_add(count, Ordering::AcqRel);
        self.pages.fetch_add(u64::from(count), Ordering::AcqRel);
        let Ok(dead) = index.insert(entry) else { panic!("an index has as many entries as there are pages") };
        blocks.listed.insert(entry.key());
        drop(blocks);
        let mut since = lock(&self.since);
        let first = since.entry((segment, entry.key().slot())).or_insert(now);
        *first = (*first).min(now);
        drop(since);
        Ok(dead)
    }

    /// The device has failed.
    pub(crate) fn close(&self) {
        lock(&self.blocks).closed = true;
    }

    /// Some dirty pages of a segment are dirty no more.
    pub(crate) fn leave(&self, segment: SegmentId, pages: u32) {
        let before = self.by_segment[segment.0 as usize].fetch_sub(pages, Ordering::AcqRel);
        assert!(before >= pages, "a dirty page leaves once");
        self.pages.fetch_sub(u64::from(pages), Ordering::AcqRel);
        if before == pages {
            let mut since = lock(&self.since);
            if !self.holds(segment) {
                since.retain(|&(of, _), _| of != segment);
            }
        }
    }

    /// Take a block off the list unless it has a dirty entry.
    pub(crate) fn settle(&self, index: &Index, key: BlockKey) {
        let mut blocks = lock(&self.blocks);
        let mut dirty = false;
        index.visit(key, |entry| dirty |= entry.dirty());
        if !dirty {
            blocks.listed.remove(&key);
        }
    }

    /// Whether the segment holds dirty pages.
    pub(crate) fn holds(&self, segment: SegmentId) -> bool {
        self.by_segment[segment.0 as usize].load(Ordering::Acquire) > 0
    }

    /// Dirty pages now.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    /// Since when a segment has held a dirty page of a grid disk, at the latest.
    pub(crate) fn since(&self, segment: SegmentId, slot: DiskSlot) -> Option<Instant> {
        lock(&self.since).get(&(segment, slot)).copied()
    }

    /// When the oldest of them was written, to the moment its segment got its first one: an upper bound of its age.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        lock(&self.since).values().min().copied()
    }

    /// When the oldest dirty page of a grid disk was written, as [`Dirty::oldest`] has it.
    pub(crate) fn oldest_of(&self, slot: DiskSlot) -> Option<Instant> {
        lock(&self.since).iter().filter(|((_, of), _)| *of == slot).map(|(_, since)| *since).min()
    }

    /// Whether the grid disk has a block listed.
    pub(crate) fn any(&self, slot: DiskSlot) -> bool {
        self.pages() > 0 && self.next(slot, 0).is_some()
    }

    /// The first listed block of a grid disk from `block` on.
    pub(crate) fn next(&self, slot: DiskSlot, block: u64) -> Option<u64> {
        let from = BlockKey::new(slot, block);
        let blocks = lock(&self.blocks);
        let next = blocks.listed.range((Bound::Included(from), Bound::Unbounded)).next()?;
        (next.slot() == slot).then(|| next.block())
    }

    /// Whether one of a range of blocks is listed.
    pub(crate) fn any_in(&self, slot: DiskSlot, blocks: std::ops::Range<u64>) -> bool {
        self.pages() > 0 && self.next(slot, blocks.start).is_some_and(|block| block < blocks.end)
    }

    /// Blocks listed for a grid disk.
    pub(crate) fn blocks(&self, slot: DiskSlot) -> Vec<BlockKey> {
        let from = BlockKey::new(slot, 0);
        let listed = lock(&self.blocks);
        listed.listed.range(from..).take_while(|key| key.slot() == slot).copied().collect()
    }
}
