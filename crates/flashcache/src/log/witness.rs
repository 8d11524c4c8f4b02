//! The witness of a segment that is being appended to: what a flush has covered, said in the segment's last true page, where its footer
//! will be.
//!
//! It is written in place after each flush, and no flush is waited for: a power cut may lose it, the death of the process does not. The
//! headers of a full segment are said twice by its footer; until then the parity in the witness is what makes a lost one again. Never written
//! once the footer is on its way.

use crate::base::units::SegmentId;
use crate::format::{self, SegmentLife, TRAILER_BYTES, Witness};
use crate::log::{HeadKind, LogState, LogWrite, Shape};
use device::{Buf, SharedBufs};
use std::collections::BTreeMap;

/// Headers of a segment one over the other: with all but one of them, what is left is that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parity {
    bytes: Vec<u8>,
    headers: u32,
    last_sequence: u64,
    /// A header that another release has written fills its page: none of the segment can be made again.
    is_whole: bool,
}

impl Parity {
    pub(crate) fn new(shape: Shape) -> Parity {
        let bytes = vec![0; shape.align as usize * 4096 - TRAILER_BYTES];
        Parity { bytes, headers: 0, last_sequence: 0, is_whole: true }
    }

    /// The next header of the segment.
    pub(crate) fn add(&mut self, page: &[u8], sequence: u64) {
        let header = format::used_bytes(page);
        self.is_whole &= header.len() <= self.bytes.len();
        over(&mut self.bytes, header);
        (self.headers, self.last_sequence) = (self.headers + 1, sequence);
    }

    fn witness(&self, life: SegmentLife, durable: u64) -> Witness {
        let Parity { ref bytes, headers, last_sequence, is_whole } = *self;
        if is_whole {
            return Witness { life, durable, headers, last_sequence, parity: bytes.clone() };
        }
        Witness { life, durable, headers: 0, last_sequence: 0, parity: vec![0; bytes.len()] }
    }
}

/// Lay bytes over others: what is there twice is gone.
pub(crate) fn over(bytes: &mut [u8], others: &[u8]) {
    bytes.iter_mut().zip(others).for_each(|(byte, other)| *byte ^= other);
}

/// A witness to write.
pub(crate) struct WitnessWrite {
    pub(crate) segment: SegmentId,
    pub(crate) position: u32,
    pub(crate) data: SharedBufs,
}

/// What waits for a witness on its way to the device.
#[derive(Default)]
struct Waiting {
    /// What is to be said next.
    next: Option<SharedBufs>,
    footer: Option<LogWrite>,
}

/// The witnesses on their way, at most one for each segment.
#[derive(Default)]
pub(crate) struct WitnessesOut(BTreeMap<SegmentId, Waiting>);

impl WitnessesOut {
    /// The footer of a segment, unless it has to wait.
    pub(crate) fn hold_footer(&mut self, footer: LogWrite) -> Option<LogWrite> {
        let Some(waiting) = self.0.get_mut(&footer.segment) else { return Some(footer) };
        // What would be said next is in the footer.
        *waiting = Waiting { next: None, footer: Some(footer) };
        None
    }
}

impl LogState {
    /// The headers that a sync which begins now is going to cover, where a witness has not said so.
    pub(crate) fn unwitnessed(&self) -> Vec<(SegmentLife, Parity)> {
        let open = self.heads.iter().flatten().filter(|open| open.parity != open.witnessed);
        open.map(|open| (open.life, open.parity.clone())).collect()
    }

    /// That sync has ended well: the witnesses that say so. At least one says up to where the member is durable, if a segment is open.
    pub(crate) fn witness(&mut self, covered: Vec<(SegmentLife, Parity)>) -> Vec<WitnessWrite> {
        let mut said = Vec::new();
        for (life, parity) in covered {
            let Some(open) = self.heads[life.head as usize].as_mut().filter(|open| open.life == life) else { continue };
            open.witnessed = parity;
            said.push(life.head);
        }
        if said.is_empty() {
            let dirty_first = HeadKind::DIRTY.into_iter().chain(HeadKind::ALL);
            said.extend(dirty_first.into_iter().find(|&head| self.heads[head as usize].is_some()));
        }
        said.into_iter().filter_map(|head| self.witness_of(head)).collect()
    }

    /// After recovery: witnesses of all that is gone on in.
    pub(crate) fn witness_reopened(&mut self) -> Vec<WitnessWrite> {
        let covered = self.unwitnessed();
        if covered.is_empty() { Vec::new() } else { self.witness(covered) }
    }

    /// None is on its way.
    pub(crate) fn is_witnessed(&self) -> bool {
        self.witnesses.0.is_empty()
    }

    /// What a head's segment has to say; none while another is on its way, which it follows.
    fn witness_of(&mut self, head: HeadKind) -> Option<WitnessWrite> {
        let open = self.heads[head as usize].as_ref()?;
        let segment = open.life.segment;
        let page = format::encode_witness(self.owner, &open.witnessed.witness(open.life, self.durable));
        let data = SharedBufs::from(Buf::padded(&page, 4096).freeze());
        if let Some(waiting) = self.witnesses.0.get_mut(&segment) {
            waiting.next = Some(data);
            return None;
        }
        self.witnesses.0.insert(segment, Waiting::default());
        Some(self.witness_write(segment, data))
    }

    fn witness_write(&self, segment: SegmentId, data: SharedBufs) -> WitnessWrite {
        WitnessWrite { segment, position: self.shape.segment_pages - self.shape.align, data }
    }

    /// A witness is on the device: the one that follows it, or the footer.
    pub(crate) fn witness_written(&mut self, segment: SegmentId, writes: &mut Vec<LogWrite>) -> Option<WitnessWrite> {
        let waiting = self.witnesses.0.remove(&segment)?;
        writes.extend(waiting.footer);
        let data = waiting.next?;
        self.witnesses.0.insert(segment, Waiting::default());
        Some(self.witness_write(segment, data))
    }
}
