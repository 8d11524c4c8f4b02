//! What blocks cost on flash: how many fit into a segment, and how many pages are written for them, without any data.
//!
//! Follows the log page by page, with the log's own rule for what a segment takes. For policies, which have to know their
//! costs, and for replays of traces without data.

use crate::log::{CHUNK_DATA_PAGES_MAX, Shape};

/// Bytes of the record of a clean entry, without its checksums.
const ENTRY_BYTES: usize = 28;
/// Bytes of a chunk's record in a footer.
const CHUNK_RECORD_BYTES: usize = 16;
/// Bytes of what a chunk says of the one before it.
const LINK_BYTES: usize = 24;

/// A segment being filled.
#[derive(Clone, Debug)]
pub struct Meter {
    shape: Shape,
    /// First page after the last closed chunk.
    next: u32,
    records_bytes: usize,
    chunk_pages: u32,
    chunk_records_bytes: usize,
    written: u32,
}

impl Meter {
    /// An empty segment on a device with true pages of `page_bytes`.
    #[must_use]
    pub fn new(segment_bytes: u32, page_bytes: u32) -> Meter {
        let align = (page_bytes.max(4096) / 4096).max(1);
        let shape = Shape { segments: 1, segment_pages: segment_bytes / 4096, align };
        Meter { shape, next: 0, records_bytes: 0, chunk_pages: 0, chunk_records_bytes: 0, written: 0 }
    }

    /// Add a block of `pages`; false when the segment does not take it: it has to be sealed.
    pub fn append(&mut self, pages: u32) -> bool {
        self.append_with(pages, &mut 0)
    }

    /// The same while so many bytes of records wait for a header: what room a chunk leaves, they take when it is closed.
    pub fn append_with(&mut self, pages: u32, waiting_bytes: &mut usize) -> bool {
        let record_bytes = ENTRY_BYTES + 4 * pages as usize;
        if self.chunk_pages > 0 {
            let fits = self.chunk_pages + pages <= CHUNK_DATA_PAGES_MAX
                && self.chunk_records_bytes + record_bytes <= self.shape.header_capacity()
                && self.shape.takes(self.next, self.chunk_pages + pages, self.records_bytes);
            if !fits {
                self.close_with(waiting_bytes);
            }
        }
        if self.chunk_pages == 0 && !self.shape.takes(self.next, pages, self.records_bytes) {
            return false;
        }
        self.chunk_pages += pages;
        self.chunk_records_bytes += record_bytes;
        if self.chunk_pages >= CHUNK_DATA_PAGES_MAX {
            self.close_with(waiting_bytes);
        }
        true
    }

    /// Close the open chunk, as a sync does.
    pub fn close(&mut self) {
        self.close_with(&mut 0);
    }

    /// The same with as many bytes of the records that wait as its header has room for.
    pub fn close_with(&mut self, waiting_bytes: &mut usize) {
        if self.chunk_pages == 0 {
            return;
        }
        let room = self.shape.header_capacity().saturating_sub(self.chunk_records_bytes + LINK_BYTES);
        let taken = room.min(*waiting_bytes);
        *waiting_bytes -= taken;
        self.records_bytes += taken;
        let pages = (self.shape.align + self.chunk_pages).next_multiple_of(self.shape.align);
        self.next += pages;
        self.written += pages;
        self.records_bytes += CHUNK_RECORD_BYTES + LINK_BYTES + self.chunk_records_bytes;
        self.chunk_pages = 0;
        self.chunk_records_bytes = 0;
    }

    /// Pages of data in the chunk that is open.
    #[must_use]
    pub fn open_pages(&self) -> u32 {
        self.chunk_pages
    }

    /// Pages written for the chunks that are closed.
    #[must_use]
    pub fn written_pages(&self) -> u32 {
        self.written
    }

    /// Write the footer and begin with an empty segment: pages written for the one before.
    pub fn seal(&mut self) -> u32 {
        self.seal_with(&mut 0)
    }

    /// The same with what waits for a header.
    pub fn seal_with(&mut self, waiting_bytes: &mut usize) -> u32 {
        self.close_with(waiting_bytes);
        let pages = self.written + self.shape.footer_pages(self.records_bytes);
        *self = Meter { next: 0, records_bytes: 0, written: 0, ..self.clone() };
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockName, EntryKind, HeadKind, Owner, Record};
    use crate::log::LogState;
    use device::{Buf, Bufs, Prng};
    use smallvec::SmallVec;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_full_size_segment_costs_two_percent() {
        let mut meter = Meter::new(2 << 20, 4096);
        let blocks = (0..1000).take_while(|_| meter.append(4)).count() as u32;
        let written = meter.seal();
        assert_eq!((blocks * 4, written), (500, 510));
    }

    /// Goal: the meter is the log. Method: the same blocks and syncs to both, segment by segment.
    #[test]
    fn agrees_with_the_log() {
        for seed in 0..20 {
            let mut prng = Prng::new(seed);
            let align = [1, 2, 4][prng.below(3) as usize];
            let segment_pages = [64, 128, 512][prng.below(3) as usize];
            let shape = Shape { segments: 5, segment_pages, align };
            let owner = Owner { cell_id: 1, device_id: 2, era: 3 };
            let mut log = LogState::new(shape, owner, 1, Arc::new(AtomicU64::new(1)), prng.fork("nonces"));
            log.free.extend((0..5).map(crate::base::units::SegmentId));
            let mut meter = Meter::new(segment_pages * 4096, align * 4096);
            let mut writes = Vec::new();
            let name = BlockName { disk: 1, generation: 1, block: 7 };
            // The first chunk of a log has none before it: it goes elsewhere.
            let first = move |position| Record::Entry {
                kind: EntryKind::Clean,
                name,
                mask: 1,
                position,
                sums: SmallVec::from_slice(&[0]),
            };
            let data = Bufs::from(Buf::zeroed(4096)).freeze();
            log.append_entry(HeadKind::Main, &first, data, 0, &mut writes).expect("room");
            log.close_all(0, &mut writes).expect("room");
            writes.clear();
            let mut metered = 0;
            let mut sealed = 0;
            while sealed < 3 {
                let pages = prng.between(1, 4) as u32;
                if prng.below(40) == 0 {
                    log.close_all(0, &mut writes).expect("room");
                    meter.close();
                }
                let record = move |position| {
                    let sums: SmallVec<[u32; 4]> = (0..pages).collect();
                    Record::Entry { kind: EntryKind::Clean, name, mask: (1 << pages) - 1, position, sums }
                };
                let data = Bufs::from(Buf::zeroed(pages as usize * 4096)).freeze();
                log.append_entry(HeadKind::Small, &record, data, 0, &mut writes).expect("room");
                if !meter.append(pages) {
                    metered += u64::from(meter.seal());
                    sealed += 1;
                    assert!(meter.append(pages));
                    let written: u64 = writes.iter().map(|w| u64::from(w.pages)).sum();
                    assert_eq!(log.sealed[0].len(), sealed, "seed {seed}");
                    assert_eq!(written, metered, "seed {seed}, segment {sealed}");
                }
            }
        }
    }
}
