//! The changes of a ledger, with what is asked of all of them kept beside: while a disk stalls there are tens of thousands, and
//! every sync asks.
//!
//! Never changes a change.

use super::{Change, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Index};

/// By sequence.
#[derive(Debug, Default)]
pub(super) struct Changes {
    all: BTreeMap<Seq, Change>,
    /// Those that are not durable: the only ones a sync waits for.
    open: BTreeSet<Seq>,
    /// Those that are on the disk, and no flush has covered them.
    unflushed: BTreeSet<Seq>,
    tally: Tally,
}

/// How many are so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    /// It has to be in a ring.
    bound: usize,
    /// Acknowledged, and durable on flash alone.
    flash_alone: usize,
}

impl Tally {
    fn of(change: &Change) -> Tally {
        Tally {
            bound: usize::from(change.must_ring),
            flash_alone: usize::from(change.acked && change.is_durable() && !change.on_disk),
        }
    }

    fn replace(&mut self, before: Tally, after: Tally) {
        self.bound = self.bound - before.bound + after.bound;
        self.flash_alone = self.flash_alone - before.flash_alone + after.flash_alone;
    }
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn contains_key(&self, seq: &Seq) -> bool {
        self.all.contains_key(seq)
    }

    pub(super) fn get(&self, seq: &Seq) -> Option<&Change> {
        self.all.get(seq)
    }

    /// A change to be changed: what is kept beside follows when what is returned ends.
    pub(super) fn edit(&mut self, seq: Seq) -> Option<Edit<'_>> {
        let change = self.all.get_mut(&seq)?;
        let before = Tally::of(change);
        let was_unflushed = change.is_unflushed();
        let (open, unflushed, tally) = (&mut self.open, &mut self.unflushed, &mut self.tally);
        Some(Edit { seq, before, was_unflushed, change, open, unflushed, tally })
    }

    pub(super) fn insert(&mut self, seq: Seq, change: Change) {
        self.remove(seq);
        self.tally.replace(Tally::default(), Tally::of(&change));
        if !change.is_durable() {
            self.open.insert(seq);
        }
        if change.is_unflushed() {
            self.unflushed.insert(seq);
        }
        self.all.insert(seq, change);
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Change> {
        let change = self.all.remove(&seq)?;
        self.open.remove(&seq);
        self.unflushed.remove(&seq);
        self.tally.replace(Tally::of(&change), Tally::default());
        Some(change)
    }

    /// All of them, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Seq, &Change)> + '_ {
        self.all.iter().map(|(seq, change)| (*seq, change))
    }

    /// Those that are not durable, oldest first.
    pub(super) fn open(&self) -> impl Iterator<Item = (Seq, &Change)> + '_ {
        self.open.iter().map(|seq| (*seq, &self.all[seq]))
    }

    /// The newest.
    pub(super) fn last(&self) -> Option<Seq> {
        self.all.last_key_value().map(|(seq, _)| *seq)
    }

    /// Sequences above this one.
    pub(super) fn newer_than(&self, seq: Seq) -> Vec<Seq> {
        self.all.range(seq + 1..).map(|(seq, _)| *seq).collect()
    }

    /// The oldest that is on the disk, and no flush has covered it.
    pub(super) fn first_unflushed(&self) -> Option<Seq> {
        self.unflushed.first().copied()
    }

    /// Some have to be in a ring.
    pub(super) fn has_bound(&self) -> bool {
        self.tally.bound > 0
    }

    /// Some that are acknowledged are durable on flash alone.
    pub(super) fn has_flash_alone(&self) -> bool {
        self.tally.flash_alone > 0
    }
}

impl Index<&Seq> for Changes {
    type Output = Change;

    fn index(&self, seq: &Seq) -> &Change {
        &self.all[seq]
    }
}

/// See [`Changes::edit`].
pub(super) struct Edit<'a> {
    seq: Seq,
    before: Tally,
    was_unflushed: bool,
    change: &'a mut Change,
    open: &'a mut BTreeSet<Seq>,
    unflushed: &'a mut BTreeSet<Seq>,
    tally: &'a mut Tally,
}

impl Deref for Edit<'_> {
    type Target = Change;

    fn deref(&self) -> &Change {
        self.change
    }
}

impl DerefMut for Edit<'_> {
    fn deref_mut(&mut self) -> &mut Change {
        self.change
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        self.tally.replace(self.before, Tally::of(self.change));
        if self.change.is_durable() {
            self.open.remove(&self.seq);
        } else {
            self.open.insert(self.seq);
        }
        match (self.was_unflushed, self.change.is_unflushed()) {
            (false, true) => _ = self.unflushed.insert(self.seq),
            (true, false) => _ = self.unflushed.remove(&self.seq),
            _ => {}
        }
    }
}

#[cfg(test)]
impl Changes {
    /// What is kept beside is what a look at all of them gives.
    pub(super) fn check(&self) {
        let mut tally = Tally::default();
        self.all.values().for_each(|change| tally.replace(Tally::default(), Tally::of(change)));
        assert_eq!(self.tally, tally);
        let open: BTreeSet<Seq> = self.all.iter().filter(|(_, c)| !c.is_durable()).map(|(seq, _)| *seq).collect();
        assert_eq!(self.open, open);
        let unflushed: BTreeSet<Seq> = self.all.iter().filter(|(_, c)| c.is_unflushed()).map(|(seq, _)| *seq).collect();
        assert_eq!(self.unflushed, unflushed);
        let waited_for = self.all.iter().filter(|(_, c)| !c.syncs.is_empty());
        waited_for.for_each(|(seq, _)| assert!(open.contains(seq), "a sync waits for {seq}, which is durable"));
    }
}
