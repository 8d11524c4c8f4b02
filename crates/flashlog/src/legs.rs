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

/// What a disk's label says of the rings and lives, and what it is being told. What it is being told to be void may be so at any
/// moment, and nothing of it may be promised any more.
#[derive(Debug)]
pub(crate) struct Standings {
    rings: Vec<Standing>,
    /// By ring: the label is being told that nothing counts there.
    leaving: Vec<bool>,
    /// Nothing of this life or an earlier one counts.
    void_life: u64,
    /// Lives the label is being told are void.
    dying: SmallVec<[u64; 1]>,
}

impl Standings {
    pub(crate) fn new(void: &[bool]) -> Standings {
        let standing = |void: &bool| if *void { Standing::Void } else { Standing::Counts };
        let rings: Vec<Standing> = void.iter().map(standing).collect();
        Standings { leaving: vec![false; rings.len()], rings, void_life: 0, dying: SmallVec::new() }
    }

    /// By ring.
    pub(crate) fn all(&self) -> &[Standing] {
        &self.rings
    }

    /// Whether replay may find there what lies on a ring.
    pub(crate) fn counts(&self, ring: usize) -> bool {
        self.rings[ring] != Standing::Void
    }

    /// The label says this of a ring, and is not being told otherwise.
    pub(crate) fn set(&mut self, ring: usize, standing: Standing) {
        self.rings[ring] = standing;
        self.leaving[ring] = false;
    }

    /// The label is being told that nothing counts on a ring.
    pub(crate) fn leaves(&mut self, ring: usize) {
        self.leaving[ring] = true;
    }

    /// The label is being told that nothing of a life counts.
    pub(crate) fn dies(&mut self, life: u64) {
        self.dying.push(life);
    }

    /// It has been told, or (not `void`) could not be.
    pub(crate) fn has_died(&mut self, life: u64, void: bool) {
        self.dying.retain(|dying| *dying != life);
        if void {
            self.void_life = self.void_life.max(life);
        }
    }

    /// The label is being told something.
    fn is_changing(&self) -> bool {
        self.leaving.contains(&true) || !self.dying.is_empty()
    }

    /// Whether a record is one to rely on.
    fn holds(&self, ring: usize, leg: &Leg) -> bool {
        let void_life = self.dying.iter().fold(self.void_life, |last, life| last.max(*life));
        self.counts(ring) && !self.leaving[ring] && leg.batch.is_none_or(|number| number >> LIFE_SHIFT > void_life)
    }
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
    /// more.
    pub(crate) fn leg(&self, copies: usize, ring_failing: bool, standing: &Standings) -> RingLeg {
        let holding = || self.rings.iter().filter(|(ring, leg)| standing.holds(**ring, leg)).map(|(_, leg)| leg);
        let durable = holding().filter(|leg| leg.durable).count();
        let lacks = |ring: &usize| standing.counts(*ring) && !self.rings.contains_key(ring);
        if copies == 0 || holding().count() < copies || self.over.iter().any(lacks) {
            // Until the label says that nothing counts there, one copy fewer is not enough.
            let may_come = (ring_failing || standing.is_changing()) && !self.rings.is_empty();
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
    pub(crate) fn is_safe_without(&self, ring: usize, told: RingLeg, standing: &Standings) -> bool {
        let serves = |leg: &Leg| if told == RingLeg::Durable { leg.durable } else { leg.batch.is_some() };
        self.rings.iter().any(|(n, leg)| *n != ring && serves(leg) && standing.holds(*n, leg))
    }

    /// Whether every copy of it is of a later life.
    pub(crate) fn is_after(&self, life: u64) -> bool {
        !self.rings.is_empty() && self.rings.values().all(|leg| leg.batch.is_none_or(|n| n >> LIFE_SHIFT > life))
    }
}
