//! The one way in which a segment is freed.
//!
//! A free record ends everything in its segment. One flush may carry that record and what took the place of the segment's dirty data, and a
//! power cut within the flush keeps any part of it: the record without the successors would end the last durable version. So the record is
//! appended against a proof that the successors are durable. The log alone makes such proofs, out of what its syncs have covered.
//!
//! What counts are entries that ended while they were dirty: their successor is in this log, an overwrite or a copy. What ended otherwise has
//! its successor elsewhere, durably, before the entry ends: the disk has what is called clean or dead after destaging, and the catalog has
//! the raised generation of what is dropped. Costs nothing in write-through, and in write-back one flush where none has been since the last
//! overwrite in the segment. Never does I/O.

use crate::base::units::{Opening, SegmentId};
use crate::format::Record;
use crate::log::carry::Carried;
use crate::log::{LogState, SegmentState};

/// Proof that whatever took the place of a segment's dirty data is durable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SuccessorsDurable {
    segment: SegmentId,
    opening: Opening,
    /// Things appended to the log up to here are durable.
    through: u64,
}

impl LogState {
    /// A dirty entry of a segment has ended, and what takes its place has been appended.
    pub(crate) fn superseded(&mut self, id: SegmentId) {
        let appended = self.appended;
        self.segments[id.0 as usize].superseded_at = appended;
    }

    /// Things appended that have to be durable before the segment is freed.
    pub(crate) fn superseded_at(&self, id: SegmentId) -> u64 {
        self.segments[id.0 as usize].superseded_at
    }

    /// The proof for a segment, if its successors are durable.
    pub(crate) fn successors_durable(&self, id: SegmentId) -> Option<SuccessorsDurable> {
        (self.synced >= self.superseded_at(id)).then(|| self.proof(id, self.synced))
    }

    /// A proof of nothing, for a broken build.
    pub(crate) fn successors_believed(&self, id: SegmentId) -> SuccessorsDurable {
        self.proof(id, u64::MAX)
    }

    fn proof(&self, id: SegmentId, through: u64) -> SuccessorsDurable {
        SuccessorsDurable { segment: id, opening: self.segments[id.0 as usize].opening, through }
    }

    /// Record that a segment taken as a victim is free.
    ///
    /// # Panics
    /// When the proof is of another opening, or a dirty entry of the segment has ended since it was made.
    pub(crate) fn append_free(&mut self, proof: SuccessorsDurable) {
        let SuccessorsDurable { segment, opening, through } = proof;
        let victim = &self.segments[segment.0 as usize];
        assert_eq!((victim.state, victim.opening), (SegmentState::Reclaiming, opening), "a proof is of one opening");
        assert!(victim.superseded_at <= through, "nothing dirty ends in a victim after its proof was made");
        self.append_any(Record::Free { segment, opening });
    }

    /// Write again what a segment that is freed says of others, free records of others among it. Their bytes.
    pub(crate) fn append_carried(&mut self, carried: Carried) -> u64 {
        let mut bytes = 0;
        for record in carried.into_records() {
            bytes += record.encoded_bytes() as u64;
            self.append_any(record);
        }
        bytes
    }
}
