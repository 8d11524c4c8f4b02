//! Which pages of the flash hold data that counts, and how many of each segment: what cleaning a segment would have to copy, and what a
//! liveness record says of it.
//!
//! Kept by the index alone, in the step in which an entry comes, goes or moves. Never does I/O.

use crate::base::units::SegmentId;
use crate::index::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Live {
    segment_pages: u32,
    /// A bit for each page.
    bits: Box<[AtomicU64]>,
    by_segment: Box<[AtomicU32]>,
    all: AtomicU64,
}

impl Live {
    /// Of a member with so many segments, nothing of which counts.
    #[must_use]
    pub(crate) fn new(segments: u32, segment_pages: u32) -> Live {
        let words = (segments as usize * segment_pages as usize).div_ceil(64);
        Live {
            segment_pages,
            bits: (0..words).map(|_| AtomicU64::new(0)).collect(),
            by_segment: (0..segments).map(|_| AtomicU32::new(0)).collect(),
            all: AtomicU64::new(0),
        }
    }

    /// Bytes of memory for so many pages in so many segments.
    #[must_use]
    pub(crate) fn memory_bytes(pages: u64, segments: u64) -> u64 {
        pages.div_ceil(8) + 4 * segments
    }

    /// Pages that count.
    #[must_use]
    pub(crate) fn pages(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Pages of a segment that count.
    #[must_use]
    pub(crate) fn of(&self, segment: SegmentId) -> u32 {
        self.by_segment[segment.0 as usize].load(Ordering::Relaxed)
    }

    /// These parts of an entry begin to count.
    pub(crate) fn begin(&self, entry: &Entry, mask: u16) {
        self.change(entry, mask, true);
    }

    /// These parts of an entry count no more.
    pub(crate) fn end(&self, entry: &Entry, mask: u16) {
        self.change(entry, mask, false);
    }

    fn change(&self, entry: &Entry, mask: u16, live: bool) {
        // An index without segments, as tests have it, counts nothing.
        if self.by_segment.is_empty() {
            return;
        }
        let (mut left, mut changed) = (mask, 0);
        while left != 0 {
            let part = left.trailing_zeros();
            left &= left - 1;
            let page = entry.page_of_part(part).0;
            let (word, bit) = (&self.bits[page as usize / 64], 1_u64 << (page % 64));
            let before =
                if live { word.fetch_or(bit, Ordering::Relaxed) } else { word.fetch_and(!bit, Ordering::Relaxed) };
            // Pages that two entries name, as media may say, count once.
            changed += u32::from((before & bit == 0) == live);
        }
        let segment = &self.by_segment[(entry.page().0 / self.segment_pages) as usize];
        if live {
            segment.fetch_add(changed, Ordering::Relaxed);
            self.all.fetch_add(u64::from(changed), Ordering::Relaxed);
        } else {
            segment.fetch_sub(changed, Ordering::Relaxed);
            self.all.fetch_sub(u64::from(changed), Ordering::Relaxed);
        }
    }
}
