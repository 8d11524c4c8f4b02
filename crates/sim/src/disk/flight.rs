//! Requests under way: how one will go is drawn when it is submitted.

use super::SECTOR_BYTES;
use super::faults::FaultKind;
use super::medium::What;
use crate::executor::Process;
use device::{Bufs, Completer, FailKind, Geometry, Op, Outcome, Prng, SharedBufs, Verb};
use std::ops::Range;
use std::sync::Arc;

/// One part of a request, which takes effect (or is read) at a moment of its own.
pub(super) struct Part {
    pub(super) sectors: Range<u64>,
    pub(super) state: PartState,
    /// When, if it happens.
    pub(super) at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    Waiting,
    Happened,
    Never,
}

/// A request under way.
pub(super) struct Flight {
    pub(super) verb: Verb,
    /// First byte and bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) fua: bool,
    /// What a write leaves behind, from its first sector on.
    pub(super) what: Option<What>,
    /// Where a read goes.
    pub(super) bufs: Bufs,
    pub(super) parts: Vec<Part>,
    /// Taken when the outcome is told; parts may still happen after that.
    pub(super) completer: Option<Completer>,
    pub(super) outcome: Outcome,
    pub(super) fault: Option<FaultKind>,
    /// For a misdirected write: the sector it lands on.
    pub(super) elsewhere: Option<u64>,
    /// For a flush: it covers what completed before this completion number.
    pub(super) covers: u64,
    pub(super) complete_ns: u64,
    /// Whose it is.
    pub(super) owner: Option<Process>,
}

impl Flight {
    /// The request without a fate yet.
    pub(super) fn new(op: Op, owner: Option<Process>) -> (Flight, device::Completion) {
        let (completer, completion) = device::Completion::pair();
        let verb = op.verb();
        let (offset, len) = op.range();
        let (mut fua, mut what, mut bufs) = (false, None, Bufs::new());
        match op {
            Op::Read { bufs: b, .. } => bufs = b,
            Op::Write { data, fua: f, .. } => {
                // Copied: the caller's memory comes back with the completion, the cache's copy lives on.
                what = Some(What::Data(Arc::new(data.to_vec(0..data.len_bytes())), 0));
                fua = f;
            }
            Op::WriteZeroes { fua: f, .. } => {
                what = Some(What::Zero);
                fua = f;
            }
            Op::Discard { .. } => what = Some(What::Discard),
            Op::Flush | Op::Status { .. } => {}
        }
        let flight = Flight {
            verb,
            offset,
            len,
            fua,
            what,
            bufs,
            parts: Vec::new(),
            completer: Some(completer),
            outcome: Outcome::Done,
            fault: None,
            elsewhere: None,
            covers: 0,
            complete_ns: 0,
            owner,
        };
        (flight, completion)
    }

    /// Cut it into up to `parts_max` parts, each with a moment between now and completion.
    pub(super) fn cut_up(&mut self, parts_max: u64, now_ns: u64, prng: &mut Prng) {
        let first = self.offset / SECTOR_BYTES as u64;
        let sectors = self.len / SECTOR_BYTES as u64;
        let parts = if parts_max > 1 && prng.chance(1, 3) { prng.between(1, parts_max).min(sectors) } else { 1 };
        let mut cuts: Vec<u64> = (1..parts).map(|_| prng.below(sectors)).collect();
        cuts.extend([0, sectors]);
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            // With nothing to interleave it happens at the end, as on a simple device.
            let at_ns = if parts_max > 1 { prng.between(now_ns, self.complete_ns) } else { self.complete_ns };
            let sectors = first + pair[0]..first + pair[1];
            self.parts.push(Part { sectors, state: PartState::Waiting, at_ns });
        }
    }

    /// Let `fault` decide how it goes.
    pub(super) fn befall(&mut self, fault: FaultKind, fail: FailKind, logical_bytes: u64, prng: &mut Prng) {
        self.fault = Some(fault);
        match fault {
            FaultKind::ReadFails | FaultKind::FlushFails => self.outcome = Outcome::Failed(fail),
            FaultKind::WriteFails => {
                self.outcome = Outcome::Failed(fail);
                for part in &mut self.parts {
                    let sectors = part.sectors.end - part.sectors.start;
                    if prng.chance(1, 2) {
                        part.state = PartState::Never;
                    } else {
                        let start = part.sectors.start + prng.below(sectors);
                        part.sectors = start..start + prng.between(1, part.sectors.end - start);
                    }
                }
            }
            FaultKind::Short => {
                let bytes = prng.below(self.len / logical_bytes) * logical_bytes;
                self.outcome = Outcome::Short(bytes);
                let end = (self.offset + bytes) / SECTOR_BYTES as u64;
                for part in &mut self.parts {
                    part.sectors.end = part.sectors.end.min(end);
                    if part.sectors.is_empty() {
                        part.state = PartState::Never;
                    }
                }
            }
            FaultKind::Unknown => {
                self.outcome = Outcome::Unknown;
                let late = self.complete_ns.saturating_add(LATE_NS_MAX);
                for part in &mut self.parts {
                    match prng.below(3) {
                        0 => part.state = PartState::Never,
                        1 => part.at_ns = prng.between(self.complete_ns, late),
                        _ => {}
                    }
                }
            }
            // Decided where the bytes and the medium are at hand.
            FaultKind::Lost | FaultKind::Misdirected | FaultKind::Rot | FaultKind::Unreadable | FaultKind::Slow => {}
        }
    }

    /// What a part of a write leaves in its sectors.
    pub(super) fn what_of(&self, sectors: &Range<u64>) -> Option<What> {
        let skip = (sectors.start - self.offset / SECTOR_BYTES as u64) as usize * SECTOR_BYTES;
        match &self.what {
            Some(What::Data(bytes, at)) => Some(What::Data(bytes.clone(), at + skip)),
            other => other.clone(),
        }
    }
}

/// How long after an unknown outcome the write may still happen.
const LATE_NS_MAX: u64 = 2_000_000_000;

/// Whether a request fits the device; an unfitting one is a programmer error above the seam.
pub(super) fn fits(op: &Op, geometry: &Geometry, memory_align_bytes: usize) -> bool {
    let (offset, len) = op.range();
    if op.verb() == Verb::Flush {
        return true;
    }
    let block = u64::from(geometry.logical_bytes);
    let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
    let inside = len > 0 && offset.checked_add(len).is_some_and(|end| end <= geometry.size_bytes);
    let moves = matches!(op, Op::Read { .. } | Op::Write { .. });
    let small = !moves || len <= u64::from(geometry.transfer_bytes_max);
    aligned && inside && small && memory_fits(op, memory_align_bytes)
}

fn memory_fits(op: &Op, align: usize) -> bool {
    let fits = |piece: &[u8]| piece.as_ptr().addr().is_multiple_of(align) && piece.len().is_multiple_of(align);
    let shared = |data: &SharedBufs| data.pieces().iter().all(|p| fits(p));
    match op {
        Op::Read { bufs, .. } => bufs.pieces().iter().all(|p| fits(p)),
        Op::Write { data, .. } => shared(data),
        _ => true,
    }
}
