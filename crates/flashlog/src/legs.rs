//! How far the records of one change are in the rings, and what the label of its disk says of a ring. No I/O, no time.

use crate::ledger::{RingLeg, Seq};
use crate::ring::LIFE_SHIFT;
use device::Instant;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where replay may find something of a range in one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A record that is on its way.
    Asked(Seq),
    /// In no batch above this one.
    Batch(u64),
}

/// What a disk's label says of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// What lies there is replayed.
    Counts,
    /// The same; it should not be, but the label could not be told.
    Refused,
    /// What lies there is never replayed.
    Void,
}

/// A record on one ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leg {
    /// The batch it was written in.
    pub(crate) batch: Option<u64>,
    pub(crate) durable: bool,
}

/// The records of one change.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    pub(crate) asked_at: Instant,
    pub(crate) range: Range<u64>,
    /// By ring: those that took it.
    pub(crate) rings: BTreeMap<usize, Leg>,
    /// Rings in which replay may find something older of its range: each must have this too, and all as far. What a ring has of a range
    /// it releases in order; two rings do not, and the older of the one would come back when the other has released the newer.
    pub(crate) over: Vec<usize>,
    /// Rings that have failed with a record of it, which may lie there or not: replay may find it as long as the label counts them.
    pub(crate) doubtful: SmallVec<[usize; 2]>,
}

impl Legs {
    /// How far it is, where it has to be on so many rings. `ring_failing`: a ring that counts has failed and may soon count no
    /// more; `standing` of each ring.
    pub(crate) fn leg(&self, copies: usize, ring_failing: bool, standing: &[Standing]) -> RingLeg {
        let durable = self.rings.values().filter(|leg| leg.durable).count();
        let lacks = |ring: &usize| standing[*ring] != Standing::Void && !self.rings.contains_key(ring);
        if copies == 0 || self.rings.len() < copies || self.over.iter().any(lacks) {
            // Until the label says that nothing counts there, one copy fewer is not enough.
            let may_come = ring_failing && !self.rings.is_empty();
            if may_come { RingLeg::Asked } else { RingLeg::Refused }
        } else if durable >= copies && (self.over.is_empty() || durable == self.rings.len()) {
            RingLeg::Durable
        } else if self.rings.values().all(|leg| leg.batch.is_some()) {
            RingLeg::Written
        } else {
            RingLeg::Asked
        }
    }

    /// Whether what somebody was told stays true without what lies on this ring.
    pub(crate) fn is_safe_without(&self, ring: usize, told: RingLeg) -> bool {
        let serves = |leg: &Leg| if told == RingLeg::Durable { leg.durable } else { leg.batch.is_some() };
        self.rings.iter().any(|(n, leg)| *n != ring && serves(leg))
    }

    /// Whether every copy of it is of a later life.
    pub(crate) fn is_after(&self, life: u64) -> bool {
        !self.rings.is_empty() && self.rings.values().all(|leg| leg.batch.is_none_or(|n| n >> LIFE_SHIFT > life))
    }
}
