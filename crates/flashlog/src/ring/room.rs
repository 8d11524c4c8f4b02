//! Room on a ring: where the next batch may lie, whether a record still fits, and the bytes of a batch.

use super::{Ring, RingRecord, State};
use crate::format::{self, BATCH_BYTES_MAX, BatchHeader, Record, RecordKind};
use device::{Buf, Bufs, Device, SharedBufs};

impl Ring {
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.pages) * self.page_bytes as u64
    }

    pub(super) fn pages_of(&self, bytes: usize) -> u32 {
        bytes.div_ceil(self.page_bytes) as u32
    }

    /// Whether `bytes` more of records fit, with a release after them.
    pub(super) fn has_room(&self, state: &State, bytes: usize, must: bool) -> bool {
        // Each record may come to lie in a batch of its own, at worst at both ends of the ring.
        let records = state.queue.len() as u32 + 1;
        let need = self.pages_of(bytes) + records + self.pages_of(BATCH_BYTES_MAX) + 2;
        let used = match state.batches.front() {
            None => 0,
            Some(first) => (state.head_page + self.pages - first.start_page) % self.pages,
        };
        let kept = if must { 0 } else { self.pages / 8 };
        used + need + kept < self.pages
    }

    /// Where a batch of `pages` may lie.
    pub(super) fn place(&self, state: &State, pages: u32) -> Option<u32> {
        let head = state.head_page;
        let Some(first) = state.batches.front() else {
            return Some(if head + pages <= self.pages { head } else { 0 });
        };
        let first = first.start_page;
        if head > first {
            if head + pages <= self.pages {
                return Some(head);
            }
            return (pages < first).then_some(0);
        }
        (head + pages < first).then_some(head)
    }

    pub(super) fn encode(&self, header: &BatchHeader, taken: &[RingRecord], pages: u32) -> SharedBufs {
        let mut at = format::head_bytes(taken.len());
        let mut records = Vec::with_capacity(taken.len());
        for record in taken {
            let len = record.data.len_bytes();
            let sum = match record.kind {
                RecordKind::Data => {
                    let data_sum = record.data.view(0..len).sum();
                    format::record_sum(record.grid_disk, record.range.start, record.seq, data_sum)
                }
                RecordKind::Zeroes | RecordKind::Unmapped => 0,
            };
            records.push(Record {
                sequence: record.seq,
                grid_disk: record.grid_disk,
                offset: record.range.start,
                len: (record.range.end - record.range.start) as u32,
                kind: record.kind,
                sum,
                data: at..at + len,
            });
            at += len;
        }
        let head = format::encode_head(&self.config.owner, header, &records);
        // From the heap: few batches are under way, and the ring must not wait for memory that waits for it.
        let mut buf = Bufs::from(Buf::zeroed(pages as usize * self.page_bytes));
        buf.copy_in(0, &head);
        for (record, taken) in records.iter().zip(taken) {
            buf.copy_in_rope(record.data.start, &taken.data);
        }
        buf.freeze()
    }
}

/// The unit of a ring: the device's true page, never less than 4 KiB whatever it claims (S3 of the field).
pub(crate) fn page_bytes(device: &Device) -> usize {
    device.geometry().page_bytes.max(4096) as usize
}

pub(crate) fn pages(device: &Device) -> u32 {
    let pages = device.geometry().size_bytes / page_bytes(device) as u64;
    u32::try_from(pages).unwrap_or(u32::MAX)
}
