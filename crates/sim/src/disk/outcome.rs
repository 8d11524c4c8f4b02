//! What is told of a request, to its owner and to the trace.

use super::medium::Medium;
use device::{Bufs, Completed, Completer, DeviceExtent, FailKind, Outcome};

/// Results to be told once the lock is released.
pub(super) type Told = Vec<(Completer, Completed)>;

pub(super) fn tell(told: Told) {
    told.into_iter().for_each(|(completer, completed)| completer.complete(completed));
}

pub(super) fn status(medium: &Medium, offset: u64, len: u64) -> Vec<DeviceExtent> {
    let mut extents: Vec<DeviceExtent> = Vec::new();
    let mut at = offset;
    while at < offset + len {
        let (hole, end) = medium.hole_until(at);
        let len = end.min(offset + len) - at;
        match extents.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => extents.push(DeviceExtent { len, hole }),
        }
        at += len;
    }
    extents
}

pub(super) fn outcome_code(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Done => 0,
        Outcome::Short(n) => 1 << 32 | n,
        Outcome::Failed(kind) => match kind {
            FailKind::Media => 2,
            FailKind::NoSpace => 3,
            FailKind::Unsupported => 4,
            FailKind::Gone => 5,
            FailKind::Invalid => 6,
            FailKind::Errno(n) => 7 << 32 | u64::from(n.unsigned_abs()),
        },
        Outcome::Unknown => 8,
    }
}

/// A hash of what a read returned, for the trace: a word at a time.
pub(super) fn content_hash(bufs: &Bufs) -> u64 {
    let mut hash = 0_u64;
    for piece in bufs.pieces() {
        for word in piece.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            hash = (hash.rotate_left(5) ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    hash
}
