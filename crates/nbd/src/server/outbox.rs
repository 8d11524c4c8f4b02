//! Replies that wait to be sent, and their gathering into one vectored send.
//!
//! Never copies payload; never holds back a reply for company.

use super::account::Held;
use crate::codec::{
    Command, Cookie, Errno, StatusExtent, encode_data_header, encode_error, encode_hole, encode_none, encode_simple,
    encode_status,
};
use device::{SharedBuf, SharedBufs};
use std::collections::VecDeque;

/// Most replies in one send: two pieces each stay below the system's limit of 1024 per call.
const BATCH_REPLIES_MAX: usize = 384;
/// Payload bytes after which a send is closed: the unit in which a slow client's progress is seen.
const BATCH_BYTES_MAX: usize = 2 << 20;
/// A run of zeroes is sent as a hole from this length on; shorter ones are not looked for.
const HOLE_BYTES_MIN: usize = 32 * 1024;
/// Holes begin and end at multiples of this.
const HOLE_UNIT_BYTES: usize = 4096;
/// A guess of the head's bytes per reply.
const HEAD_BYTES: usize = 40;

/// What a reply says.
pub(super) enum Say {
    /// Success without data.
    Done { command: Command },
    /// Data of a read. `done`: it is all of the reply. `one_chunk`: not to be cut.
    Data { offset: u64, data: SharedBufs, done: bool, one_chunk: bool },
    /// Extents by context number.
    Status(Vec<(u32, Vec<StatusExtent>)>),
    /// Failure.
    Error { errno: Errno, message: String, offset: Option<u64> },
}

/// A reply, or a part of one.
pub(super) struct Reply {
    pub(super) cookie: Cookie,
    pub(super) say: Say,
    /// What is held until it is sent.
    pub(super) held: Held,
}

/// A send.
pub(super) struct Batch {
    pub(super) data: SharedBufs,
    pub(super) replies: u64,
    /// What is held until it is sent.
    pub(super) held: Held,
}

pub(super) struct Outbox {
    structured: bool,
    replies: VecDeque<Reply>,
}

impl Outbox {
    pub(super) fn new(structured: bool) -> Outbox {
        Outbox { structured, replies: VecDeque::new() }
    }

    pub(super) fn push(&mut self, reply: Reply) {
        self.replies.push_back(reply);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Throw everything away.
    pub(super) fn clear(&mut self) {
        self.replies = VecDeque::new();
    }

    /// Everything that is ready, up to the limits of one send; none when nothing is.
    pub(super) fn batch(&mut self) -> Option<Batch> {
        let count = self.replies.len().min(BATCH_REPLIES_MAX);
        let Reply { cookie, say, held } = self.replies.pop_front()?;
        let mut gather =
            Gather { head: Vec::with_capacity(count * HEAD_BYTES), cuts: Vec::with_capacity(count), payload_bytes: 0 };
        gather.reply(cookie, say, self.structured);
        let mut batch = Batch { data: SharedBufs::new(), replies: 1, held };
        while batch.replies < count as u64 && gather.payload_bytes < BATCH_BYTES_MAX {
            let Some(Reply { cookie, say, held }) = self.replies.pop_front() else { break };
            batch.held.merge(held);
            batch.replies += 1;
            gather.reply(cookie, say, self.structured);
        }
        batch.data = gather.finish();
        Some(batch)
    }
}

/// Heads in one allocation, payload by reference: `cuts` says after how many bytes of head which payload goes.
struct Gather {
    head: Vec<u8>,
    cuts: Vec<(usize, SharedBufs)>,
    payload_bytes: usize,
}

impl Gather {
    fn reply(&mut self, cookie: Cookie, say: Say, structured: bool) {
        let head = &mut self.head;
        match say {
            Say::Done { command: Command::Read | Command::BlockStatus } if structured => encode_none(head, cookie),
            Say::Done { .. } => encode_simple(head, cookie, None),
            Say::Error { errno, message, offset } if structured => encode_error(head, cookie, errno, &message, offset),
            Say::Error { errno, .. } => encode_simple(head, cookie, Some(errno)),
            Say::Status(contexts) => {
                let last = contexts.len().saturating_sub(1);
                for (i, (context, extents)) in contexts.iter().enumerate() {
                    encode_status(head, cookie, *context, extents, i == last);
                }
            }
            Say::Data { data, .. } if !structured => {
                encode_simple(head, cookie, None);
                self.payload(data);
            }
            Say::Data { offset, data, done, one_chunk } => self.chunks(cookie, offset, data, done, one_chunk),
        }
    }

    fn chunks(&mut self, cookie: Cookie, offset: u64, data: SharedBufs, done: bool, one_chunk: bool) {
        let runs = if one_chunk { Vec::new() } else { zero_runs(&data, offset) };
        let len = data.len_bytes();
        if runs.is_empty() {
            encode_data_header(&mut self.head, cookie, offset, len as u32, done);
            return self.payload(data);
        }
        let mut at = 0;
        for (start, run_len) in runs {
            if at < start {
                encode_data_header(&mut self.head, cookie, offset + at as u64, (start - at) as u32, false);
                self.payload(data.slice(at..start));
            }
            at = start + run_len;
            encode_hole(&mut self.head, cookie, offset + start as u64, run_len as u32, done && at == len);
        }
        if at < len {
            encode_data_header(&mut self.head, cookie, offset + at as u64, (len - at) as u32, done);
            self.payload(data.slice(at..len));
        }
    }

    fn payload(&mut self, data: SharedBufs) {
        self.payload_bytes += data.len_bytes();
        self.cuts.push((self.head.len(), data));
    }

    fn finish(self) -> SharedBufs {
        let head = SharedBuf::from(self.head);
        let mut out = SharedBufs::new();
        let mut at = 0;
        for (cut, data) in self.cuts {
            out.push(head.slice(at..cut));
            at = cut;
            for piece in data.pieces() {
                out.push(piece.clone());
            }
        }
        out.push(head.slice(at..head.len()));
        out
    }
}

/// Start and length of every run of zeroes worth a hole in `data`, which is read from `offset` on.
fn zero_runs(data: &SharedBufs, offset: u64) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    if data.len_bytes() < HOLE_BYTES_MIN || !offset.is_multiple_of(HOLE_UNIT_BYTES as u64) {
        return runs;
    }
    let (mut at, mut start) = (0, None);
    let mut close = |start: Option<usize>, end: usize| {
        if let Some(start) = start.filter(|start| end - start >= HOLE_BYTES_MIN) {
            runs.push((start, end - start));
        }
    };
    for unit in data.pieces().iter().flat_map(|piece| piece.chunks(HOLE_UNIT_BYTES)) {
        // A unit cut by the end of a piece or of the read counts as data: it would end a hole off the grid.
        if unit.len() == HOLE_UNIT_BYTES && at % HOLE_UNIT_BYTES == 0 && is_zero(unit) {
            start = start.or(Some(at));
        } else {
            close(start.take(), at);
        }
        at += unit.len();
    }
    close(start, at);
    runs
}

/// Whether a unit is all zeroes. Most that are not differ in their first bytes.
fn is_zero(unit: &[u8]) -> bool {
    static ZEROES: [u8; HOLE_UNIT_BYTES] = [0; HOLE_UNIT_BYTES];
    unit[..16] == ZEROES[..16] && unit == &ZEROES[..unit.len()]
}

#[cfg(test)]
mod tests {
    use super::super::account::{Account, Kind, Pools};
    use super::*;
    use device::Buf;

    fn rope(pieces: &[&[u8]]) -> SharedBufs {
        let mut rope = SharedBufs::new();
        pieces.iter().for_each(|p| rope.push(Buf::padded(p, 1).freeze()));
        rope
    }

    #[test]
    fn zero_runs_are_long_and_on_the_grid() {
        let zeroes = vec![0_u8; 64 * 1024];
        assert_eq!(zero_runs(&rope(&[&zeroes]), 4096), [(0, 64 * 1024)]);
        assert_eq!(zero_runs(&rope(&[&zeroes]), 512), []);
        assert_eq!(zero_runs(&rope(&[&zeroes[..28 * 1024]]), 0), []);
        assert_eq!(zero_runs(&rope(&[&zeroes[..32 * 1024 + 100]]), 0), [(0, 32 * 1024)]);
        let mut spot = zeroes.clone();
        spot[33 * 1024] = 1;
        assert_eq!(zero_runs(&rope(&[&spot]), 0), [(0, 32 * 1024)]);
        spot[20 * 1024] = 1;
        assert_eq!(zero_runs(&rope(&[&spot]), 0), []);
        // Pieces that do not end on the grid hide the units they cut.
        assert_eq!(zero_runs(&rope(&[&zeroes[..100], &zeroes]), 0), []);
        assert_eq!(zero_runs(&rope(&[&zeroes[..8192], &zeroes]), 0), [(0, 72 * 1024)]);
    }

    #[test]
    fn a_batch_is_one_rope_of_heads_and_payload() {
        let mut outbox = Outbox::new(true);
        let account = Account::new(Pools::new(4, 1 << 20, 1));
        let take = |kind| account.take(kind, 1, 1).expect("there is some left");
        let say = Say::Data { offset: 7, data: rope(&[b"abc"]), done: true, one_chunk: false };
        let mut held = take(Kind::Slots);
        held.merge(take(Kind::Bytes));
        outbox.push(Reply { cookie: Cookie(1), say, held });
        let done = Say::Done { command: Command::Write };
        outbox.push(Reply { cookie: Cookie(2), say: done, held: take(Kind::Slots) });
        let batch = outbox.batch().expect("two replies wait");
        let mut want = Vec::new();
        encode_data_header(&mut want, Cookie(1), 7, 3, true);
        want.extend_from_slice(b"abc");
        encode_simple(&mut want, Cookie(2), None);
        assert_eq!(batch.data.to_vec(0..batch.data.len_bytes()), want);
        assert_eq!((batch.replies, account.held(Kind::Slots), account.held(Kind::Bytes)), (2, 2, 1));
        assert!(outbox.batch().is_none() && outbox.is_empty());
        drop(batch);
        assert_eq!((account.held(Kind::Slots), account.held(Kind::Bytes)), (0, 0));
    }
}
