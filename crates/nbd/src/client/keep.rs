//! What a remote disk keeps until a FLUSH has covered it (DESIGN I9): every change (write, zeroing, trim), in the order it was sent.
//!
//! A change that failed is kept as well: the server may show it, and a replay of older changes alone would take it back.
//! Never grows beyond the memory reserved for it; never forgets a change that was acknowledged and not flushed.

use super::Sabotage;
use device::sync::{Notify, lock};
use device::{Arena, SharedBufs};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The place of a change among all changes sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteSeq(u64);

/// A point in the order of answers: a FLUSH issued after it covers what was answered up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AnswerPoint(u64);

/// A change.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Bytes { offset: u64, data: SharedBufs },
    Zeroes { offset: u64, len: u32, no_hole: bool },
    Trim { offset: u64, len: u32 },
}

impl Kept {
    /// First byte and the one behind the last.
    pub(super) fn range(&self) -> (u64, u64) {
        match self {
            Kept::Bytes { offset, data } => (*offset, offset + data.len_bytes() as u64),
            Kept::Zeroes { offset, len, .. } | Kept::Trim { offset, len } => (*offset, offset + u64::from(*len)),
        }
    }

    /// Bytes of content that are lost with it. A trim has none.
    fn content_bytes(&self) -> u64 {
        match self {
            Kept::Trim { .. } => 0,
            _ => self.range().1 - self.range().0,
        }
    }
}

/// The answer to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The change was sent once; no answer yet.
    UnderWay,
    /// The change is sent again; the outcome of an earlier attempt is in doubt.
    UnderWayAgain,
    /// The server acknowledged the change.
    Acked(AnswerPoint),
    /// The change failed, or its connection was lost: the server may show all of it, a part, or nothing.
    Doubtful(AnswerPoint),
}

/// A change to be sent again.
#[derive(Clone, Debug)]
pub(super) struct Again {
    pub(super) what: Kept,
    /// The change failed before, and may fail again.
    pub(super) is_doubtful: bool,
}

struct Entry {
    what: Kept,
    answer: Answer,
}

#[derive(Default)]
struct State {
    next_seq: u64,
    last_answer: u64,
    entries: BTreeMap<WriteSeq, Entry>,
    acked_bytes: u64,
}

impl State {
    fn next_point(&mut self) -> AnswerPoint {
        self.last_answer += 1;
        AnswerPoint(self.last_answer)
    }

    fn remove(&mut self, seq: WriteSeq) -> Option<Entry> {
        let gone = self.entries.remove(&seq)?;
        if let Answer::Acked(_) = gone.answer {
            self.acked_bytes -= gone.what.content_bytes();
        }
        Some(gone)
    }
}

pub(super) struct Keep {
    arena: Arena,
    /// Zeroes and trims carry no bytes, so their number has a separate limit.
    entries_max: usize,
    state: Mutex<State>,
    /// Raised when a change was answered, dropped or flushed.
    changed: Notify,
    sabotage: Option<Sabotage>,
}

/// Bytes of memory per entry that is allowed: an entry of one page costs about so much beside its page.
const BYTES_PER_ENTRY: usize = 4096;

impl Keep {
    pub(super) fn new(bytes_max: usize, sabotage: Option<Sabotage>) -> Keep {
        let arena = Arena::new(bytes_max);
        let entries_max = arena.size_bytes() / BYTES_PER_ENTRY;
        Keep { arena, entries_max, state: Mutex::default(), changed: Notify::new(), sabotage }
    }

    /// Longest write it can ever keep, in bytes: half of it, so that one write never needs all of it.
    pub(super) fn write_bytes_max(&self) -> u32 {
        u32::try_from(self.arena.size_bytes() / 2).unwrap_or(u32::MAX)
    }

    /// Whether a write of so many bytes would find room now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        lock(&self.state).entries.len() < self.entries_max && self.arena.free_bytes() >= bytes
    }

    /// See [`Notify`]: for waiting until a change was answered, dropped or flushed.
    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Keep `data` from before it is sent; `None` when there is no room: flush, then try again.
    pub(super) fn bytes(&self, offset: u64, data: &SharedBufs) -> Option<(WriteSeq, SharedBufs)> {
        if lock(&self.state).entries.len() >= self.entries_max {
            return None;
        }
        let mut copy = self.arena.try_alloc(data.len_bytes())?;
        copy.copy_in_rope(0, data);
        let copy = copy.freeze();
        Some((self.add(Kept::Bytes { offset, data: copy.clone() }), copy))
    }

    /// Keep a change without data from before it is sent; `None` when there is no room.
    pub(super) fn bare(&self, what: Kept) -> Option<WriteSeq> {
        if lock(&self.state).entries.len() >= self.entries_max {
            return None;
        }
        Some(self.add(what))
    }

    fn add(&self, what: Kept) -> WriteSeq {
        let mut state = lock(&self.state);
        let seq = WriteSeq(state.next_seq);
        state.next_seq += 1;
        state.entries.insert(seq, Entry { what, answer: Answer::UnderWay });
        seq
    }

    /// The server acknowledged the change.
    pub(super) fn acked(&self, seq: WriteSeq) {
        let mut state = lock(&self.state);
        let point = state.next_point();
        let mut bytes = 0;
        let mut is_trim = false;
        if let Some(entry) = state.entries.get_mut(&seq) {
            entry.answer = Answer::Acked(point);
            bytes = entry.what.content_bytes();
            is_trim = matches!(entry.what, Kept::Trim { .. });
        }
        state.acked_bytes += bytes;
        drop(state);
        if is_trim && self.sabotage == Some(Sabotage::TrimsNotKept) {
            return self.forget(seq);
        }
        self.changed.notify_all();
    }

    /// The server acknowledged the change as durable. It need not be kept, unless a replay of an older change would undo it.
    pub(super) fn durable(&self, seq: WriteSeq) {
        let is_alone = {
            let state = lock(&self.state);
            let Some((start, end)) = state.entries.get(&seq).map(|entry| entry.what.range()) else { return };
            let overlaps = |entry: &Entry| entry.what.range().0 < end && start < entry.what.range().1;
            !state.entries.range(..seq).any(|(_, entry)| overlaps(entry))
        };
        // Changes sent in between are newer.
        if is_alone { self.forget(seq) } else { self.acked(seq) }
    }

    /// The change failed, or its outcome is unknown. Until a FLUSH or a later acknowledgement the server may show it.
    pub(super) fn doubt(&self, seq: WriteSeq) {
        if self.sabotage == Some(Sabotage::FailedNotKept) {
            return self.forget(seq);
        }
        let mut state = lock(&self.state);
        let point = state.next_point();
        if let Some(entry) = state.entries.get_mut(&seq) {
            entry.answer = Answer::Doubtful(point);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The change is to be sent again after an attempt with an unknown or refused outcome. No FLUSH covers it until that has an answer.
    pub(super) fn again(&self, seq: WriteSeq) {
        if let Some(entry) = lock(&self.state).entries.get_mut(&seq) {
            entry.answer = Answer::UnderWayAgain;
        }
    }

    /// The server refused the change before it began: it is not kept, unless an earlier attempt is in doubt.
    pub(super) fn refused(&self, seq: WriteSeq) {
        let answer = lock(&self.state).entries.get(&seq).map(|entry| entry.answer);
        if answer == Some(Answer::UnderWayAgain) { self.doubt(seq) } else { self.forget(seq) }
    }

    fn forget(&self, seq: WriteSeq) {
        let gone = lock(&self.state).remove(seq);
        drop(gone);
        self.changed.notify_all();
    }

    /// Now, in the order of answers.
    pub(super) fn point(&self) -> AnswerPoint {
        AnswerPoint(lock(&self.state).last_answer)
    }

    /// A FLUSH issued after `point` succeeded.
    pub(super) fn flushed(&self, point: AnswerPoint) {
        let gone: Vec<Entry> = {
            let mut state = lock(&self.state);
            let covered = |entry: &Entry| match entry.answer {
                Answer::UnderWay | Answer::UnderWayAgain => false,
                Answer::Acked(at) | Answer::Doubtful(at) => at <= point,
            };
            let seqs: Vec<WriteSeq> = state.entries.iter().filter(|(_, e)| covered(e)).map(|(s, _)| *s).collect();
            seqs.into_iter().filter_map(|seq| state.remove(seq)).collect()
        };
        // Freed outside the lock: that wakes the tasks that wait for memory.
        drop(gone);
        self.changed.notify_all();
    }

    /// Everything kept, in order; those under way too, since an acknowledgement may be on its way.
    pub(super) fn all(&self) -> Vec<Again> {
        let again = |entry: &Entry| {
            let is_doubtful = matches!(entry.answer, Answer::UnderWayAgain | Answer::Doubtful(_));
            Again { what: entry.what.clone(), is_doubtful }
        };
        lock(&self.state).entries.values().map(again).collect()
    }

    /// Bytes of what was acknowledged and not flushed.
    pub(super) fn acked_bytes(&self) -> u64 {
        lock(&self.state).acked_bytes
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
        let keep = Keep::new(1 << 20, None);
        let write = |offset| keep.bare(Kept::Zeroes { offset, len: 4096, no_hole: true }).unwrap();
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
