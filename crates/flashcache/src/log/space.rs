//! How much room the log has: the shape of segments and chunks, and the free segments that each kind of write leaves to others.

use crate::base::units::{Page, Position, SegmentId};
use crate::format::{self, HeadKind};
use crate::log::LogState;
use crate::log::sizing::free_segments_low;
use crate::log::sizing::open_heads;

/// Data pages of a chunk: 256 KiB, so that one header page costs under 2 %.
pub(crate) const CHUNK_DATA_PAGES_MAX: u32 = 64;
/// Records that may wait for the next chunk before a writer has to wait for it: a few header pages' worth.
pub(crate) const PENDING_RECORDS_MAX: usize = 4096;
/// Free segments that fills leave to records and reclaim.
pub(crate) const FILL_RESERVE_SEGMENTS: usize = 3;
/// Free segments that marks of writes leave to reclaim: one for what it records, one for what is recorded meanwhile.
pub(crate) const WRITE_RESERVE_SEGMENTS: usize = 2;
/// Free segments that dirty data leaves. Only the disk frees what it takes, and whoever waits for a segment may hold the
/// range that would have to be destaged: so it never takes what marks wait for.
pub(crate) const DIRTY_RESERVE_SEGMENTS: usize = WRITE_RESERVE_SEGMENTS + 1;
/// Chunks of dirty data under way at a time.
pub(crate) const DIRTY_CHUNKS_MAX: usize = 2;
/// Pages of dirty data that justify a second chunk under way: with fewer, they wait for the first to end, and whoever comes meanwhile shares
/// their header. A header for each 8 KiB write took a third of the segments of dirty data.
pub(crate) const DIRTY_SECOND_CHUNK_PAGES: u32 = 16;
/// Free segments that blocks moved by reclaim leave to its records.
pub(crate) const MOVE_RESERVE_SEGMENTS: usize = 1;
/// Free segments that records of everybody else leave to those of reclaim: with the free record it gives more than it takes.
pub(crate) const RECORD_RESERVE_SEGMENTS: usize = 1;
/// Cleaning a segment frees at least one in so many of the pages of data it can hold.
pub(crate) const CLEANED_GAIN_MIN: u32 = 16;
/// KEEP data takes at most four fifths of the segments, the vendor's share: the rest lets DEFAULT data find out what is worth it.
const KEEP_FIFTHS_MAX: usize = 4;
/// Segments that KEEP and dirty data together leave to others: those that reclaim holds free, one open for each other head, and
/// one for reclaim to give back. With them, when nothing but KEEP and dirty data is left, KEEP is beyond its share, so that
/// reclaim always finds something.
fn keep_leaves_segments(segments: usize) -> usize {
    free_segments_low(segments as u32) as usize + open_heads(segments as u32)
}

/// Shape of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) segments: u32,
    pub(crate) segment_pages: u32,
    /// Pages per true page of the device: chunks start and end on these.
    pub(crate) align: u32,
}

impl Shape {
    /// Bytes of records in the header of a chunk: what a witness needs for its trailer stays zero.
    pub(crate) fn header_capacity(&self) -> usize {
        self.align as usize * 4096 - format::CHUNK_FIXED_BYTES - format::TRAILER_BYTES
    }
    pub(crate) fn footer_pages(&self, records_bytes: usize) -> u32 {
        (format::footer_bytes(records_bytes, self.align as usize * 4096) / 4096) as u32
    }
    /// Whether a segment takes a chunk of `data_pages` at `position` and, after `records_bytes` of records so far, its footer:
    /// the chunk may fill its header with pending records when it is closed.
    pub(crate) fn takes(&self, position: u32, data_pages: u32, records_bytes: usize) -> bool {
        let end = position + (self.align + data_pages).next_multiple_of(self.align);
        end + self.footer_pages(records_bytes + 16 + self.header_capacity()) <= self.segment_pages
    }
    /// Whether a fresh segment takes a block of `pages` in a chunk whose header is full, and the footer for that.
    pub(crate) fn holds(&self, pages: u32) -> bool {
        let footer = self.footer_pages(16 + self.header_capacity());
        (self.align + pages).next_multiple_of(self.align) + footer <= self.segment_pages
    }
    pub(crate) fn page(&self, segment: SegmentId, position: u32) -> Page {
        format::page_of(segment, Position(position), self.segment_pages)
    }
    pub(crate) fn place(&self, page: Page) -> (SegmentId, Position) {
        (SegmentId(page.0 / self.segment_pages), Position(page.0 % self.segment_pages))
    }
}

impl LogState {
    /// Segments the keep head may have now, its open one included.
    pub(crate) fn keep_segments_max(&self) -> usize {
        let all = self.segments.len();
        let dirty = self.dirty_segments();
        (all * KEEP_FIFTHS_MAX / 5).min(all.saturating_sub(keep_leaves_segments(all) + dirty))
    }

    /// Segments the keep head has, its open one included.
    pub(crate) fn keep_segments(&self) -> usize {
        let keep = HeadKind::Keep as usize;
        self.sealed[keep].len() + usize::from(self.heads[keep].is_some())
    }

    /// Free segments that data at a head leaves to others: `reserve`, and while the small head has no segment one more. The next records open
    /// that one, and there may be nothing to reclaim in its place.
    pub(crate) fn left_by(&self, head: HeadKind, reserve: usize) -> usize {
        reserve + usize::from(head != HeadKind::Small && self.heads[HeadKind::Small as usize].is_none())
    }

    /// Whether a head takes a block of `pages` in the segment it is in, in the open chunk or the next one.
    pub(crate) fn open_takes(&self, head: HeadKind, pages: u32) -> bool {
        let Some(open) = &self.heads[head as usize] else { return false };
        let (next, records_bytes) = match &open.chunk {
            None => (open.next, open.records_bytes),
            Some(chunk) => {
                let end = chunk.position + (self.shape.align + chunk.data_pages).next_multiple_of(self.shape.align);
                (end, open.records_bytes + 16 + self.shape.header_capacity())
            }
        };
        self.shape.takes(next, pages, records_bytes)
    }
}
