//! What a remote disk keeps until a FLUSH has covered it (DESIGN I9): every write, in the order it was sent.
//!
//! Never grows beyond the memory reserved for it; never forgets a write that was acknowledged and not flushed.

use device::sync::{Notify, lock};
use device::{Arena, SharedBufs};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The place of a write among all writes sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteSeq(u64);

/// A point in the order of acknowledgements: what was acknowledged up to it is covered by a FLUSH issued after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AckPoint(u64);

/// What was written.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Bytes { offset: u64, data: SharedBufs },
    Zeroes { offset: u64, len: u32, no_hole: bool },
}

impl Kept {
    /// First byte and the one behind the last.
    pub(super) fn range(&self) -> (u64, u64) {
        match self {
            Kept::Bytes { offset, data } => (*offset, offset + data.len_bytes() as u64),
            Kept::Zeroes { offset, len, .. } => (*offset, offset + u64::from(*len)),
        }
    }
}

struct Entry {
    what: Kept,
    acked: Option<AckPoint>,
}

#[derive(Default)]
struct State {
    next_seq: u64,
    last_ack: u64,
    entries: BTreeMap<WriteSeq, Entry>,
}

pub(super) struct Keep {
    arena: Arena,
    /// Zeroes carry no bytes, so their number has a limit of its own.
    entries_max: usize,
    state: Mutex<State>,
    /// Something was acknowledged, forgotten or flushed.
    changed: Notify,
}

/// Bytes of memory per entry that is allowed: an entry of one page costs about so much beside its page.
const BYTES_PER_ENTRY: usize = 4096;

impl Keep {
    pub(super) fn new(bytes_max: usize) -> Keep {
        let arena = Arena::new(bytes_max);
        let entries_max = arena.size_bytes() / BYTES_PER_ENTRY;
        Keep { arena, entries_max, state: Mutex::default(), changed: Notify::new() }
    }

    /// Longest write it can ever keep, in bytes: half of it, so that one write never needs all of it.
    pub(super) fn write_bytes_max(&self) -> u32 {
        u32::try_from(self.arena.size_bytes() / 2).unwrap_or(u32::MAX)
    }

    /// Whether a write of so many bytes would find room now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        lock(&self.state).entries.len() < self.entries_max && self.arena.free_bytes() >= bytes
    }

    /// See [`Notify`]: for waiting until something was acknowledged, forgotten or flushed.
    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Keep `data` from before it is sent; none when there is no room: flush, then try again.
    pub(super) fn bytes(&self, offset: u64, data: &SharedBufs) -> Option<(WriteSeq, SharedBufs)> {
        if lock(&self.state).entries.len() >= self.entries_max {
            return None;
        }
        let mut copy = self.arena.try_alloc(data.len_bytes())?;
        copy.copy_in_rope(0, data);
        let copy = copy.freeze();
        Some((self.add(Kept::Bytes { offset, data: copy.clone() }), copy))
    }

    /// Keep a zeroing from before it is sent; none when there is no room.
    pub(super) fn zeroes(&self, offset: u64, len: u32, no_hole: bool) -> Option<WriteSeq> {
        if lock(&self.state).entries.len() >= self.entries_max {
            return None;
        }
        Some(self.add(Kept::Zeroes { offset, len, no_hole }))
    }

    fn add(&self, what: Kept) -> WriteSeq {
        let mut state = lock(&self.state);
        let seq = WriteSeq(state.next_seq);
        state.next_seq += 1;
        state.entries.insert(seq, Entry { what, acked: None });
        seq
    }

    /// The server acknowledged it.
    pub(super) fn acked(&self, seq: WriteSeq) {
        let mut state = lock(&self.state);
        state.last_ack += 1;
        let point = AckPoint(state.last_ack);
        if let Some(entry) = state.entries.get_mut(&seq) {
            entry.acked = Some(point);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The server acknowledged it as durable. It need not be kept, unless what is kept would undo it when it is written again.
    pub(super) fn durable(&self, seq: WriteSeq) {
        let is_alone = {
            let state = lock(&self.state);
            let Some((start, end)) = state.entries.get(&seq).map(|entry| entry.what.range()) else { return };
            let overlaps = |entry: &Entry| entry.what.range().0 < end && start < entry.what.range().1;
            !state.entries.range(..seq).any(|(_, entry)| overlaps(entry))
        };
        // What comes in between is newer.
        if is_alone { self.forget(seq) } else { self.acked(seq) }
    }

    /// It failed, or nobody knows: it was not acknowledged and need not be kept.
    pub(super) fn forget(&self, seq: WriteSeq) {
        let gone = lock(&self.state).entries.remove(&seq);
        drop(gone);
        self.changed.notify_all();
    }

    /// Now, in the order of acknowledgements.
    pub(super) fn point(&self) -> AckPoint {
        AckPoint(lock(&self.state).last_ack)
    }

    /// A FLUSH issued after `point` succeeded.
    pub(super) fn flushed(&self, point: AckPoint) {
        let gone: Vec<Entry> = {
            let mut state = lock(&self.state);
            let covered = |e: &Entry| e.acked.is_some_and(|a| a <= point);
            let seqs: Vec<WriteSeq> = state.entries.iter().filter(|(_, e)| covered(e)).map(|(s, _)| *s).collect();
            seqs.into_iter().filter_map(|seq| state.entries.remove(&seq)).collect()
        };
        // Freed outside the lock: it wakes those who wait for memory.
        drop(gone);
        self.changed.notify_all();
    }

    /// Everything kept, in order; those under way too, since an acknowledgement may be on its way.
    pub(super) fn all(&self) -> Vec<Kept> {
        lock(&self.state).entries.values().map(|e| e.what.clone()).collect()
    }

    /// Bytes of what was acknowledged and not flushed.
    pub(super) fn acked_bytes(&self) -> u64 {
        let state = lock(&self.state);
        let acked = state.entries.values().filter(|entry| entry.acked.is_some());
        acked.map(|entry| entry.what.range()).map(|(start, end)| end - start).sum()
    }

    /// Whether nothing is kept.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.state).entries.is_empty()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A durable write is forgotten, but for one whose place an older write has too: written again alone, that would undo it.
    #[test]
    fn a_durable_write_is_kept_where_an_older_one_is() {
        let keep = Keep::new(1 << 20);
        let write = |offset| keep.zeroes(offset, 4096, true).unwrap();
        let (old, beside) = (write(0), write(8192));
        keep.acked(old);
        let over = write(2048);
        keep.durable(over);
        assert_eq!(keep.acked_bytes(), 8192);
        keep.durable(beside);
        assert_eq!(keep.all().len(), 2);
        keep.flushed(keep.point());
        assert!(keep.is_empty());
        let alone = write(0);
        let newer = write(0);
        keep.durable(alone);
        keep.acked(newer);
        assert_eq!(keep.acked_bytes(), 4096);
    }
}
