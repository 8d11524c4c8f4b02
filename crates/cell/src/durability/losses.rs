//! What the device of a grid disk may have lost, and what of its changes a flush has made durable (I6). Counts and comparisons alone: no I/O.
//!
//! A device acknowledges changes into a volatile cache. When a flush, a durable write or a durable zero fails, it may drop any of them that no
//! flush has covered, and a later flush succeeds with nothing left to do. So each loss begins an *epoch*: what began in an earlier one proves
//! nothing. A change or a flush is acknowledged with a [`Covered`], and only [`Losses`] makes one.
//!
//! Three things follow from a loss, each with its count: changes under way are not acknowledged ([`Losses::covers_change`]); clients are told
//! where acknowledged changes may be gone ([`Losses::promises`]); and what is cached of the device is compared with it again ([`Losses::drops`]).

use crate::durability::promises::BrokenPromises;
use flashcache::Sabotage;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The losses of one grid disk.
#[derive(Debug)]
pub(crate) struct Losses {
    /// How many losses there were.
    epoch: AtomicU64,
    /// Losses of acknowledged changes. Raised after the epoch.
    promises: BrokenPromises,
    /// Losses of the device, those included that the flash log makes good: what was read before may not be there any more.
    drops: AtomicU64,
    /// Of these, those that the cache has heard of in full.
    drops_heard: AtomicU64,
    /// Changes of the device that have ended and are not durable by themselves. The first stands for what earlier lives of the cell left.
    changes: AtomicU64,
    /// Of these, those that a flush has covered.
    flushed: AtomicU64,
    /// The watch at the bottom of the device tells of every loss, so that nobody else need do so.
    is_watched: AtomicBool,
    sabotage: Option<Sabotage>,
}

/// A time without a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl Epoch {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// A flush that has begun.
#[derive(Debug)]
pub(crate) struct FlushBegun {
    changes: u64,
    epoch: Epoch,
}

/// What is acknowledged with this is as durable as it says: the device had it, and has lost nothing since it began.
#[must_use = "an acknowledgement takes it"]
#[derive(Debug)]
pub(crate) struct Covered(());

/// The device has lost something meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

impl Losses {
    pub(crate) fn new(sabotage: Option<Sabotage>) -> Losses {
        Losses {
            epoch: AtomicU64::new(0),
            promises: BrokenPromises::default(),
            drops: AtomicU64::new(0),
            drops_heard: AtomicU64::new(0),
            changes: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
            sabotage,
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// A change that began in this epoch is done. Where there was a loss, the change had perhaps reached the device before, and the next
    /// flush would call it durable.
    pub(crate) fn covers_change(&self, since: Epoch) -> Result<Covered, Lost> {
        if self.epoch() == since { Ok(Covered(())) } else { Err(Lost) }
    }

    /// A change of the device has ended, well or not, and is not durable by itself.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a flush has covered every change that has ended.
    pub(crate) fn all_flushed(&self) -> Option<Covered> {
        let changes = self.changes.load(Ordering::SeqCst);
        (changes == self.flushed.load(Ordering::Acquire)).then_some(Covered(()))
    }

    /// A flush begins: it covers what has ended by now.
    pub(crate) fn begin_flush(&self) -> FlushBegun {
        FlushBegun { changes: self.changes.load(Ordering::SeqCst), epoch: self.epoch() }
    }

    /// A flush has succeeded.
    pub(crate) fn flushed(&self, begun: &FlushBegun) -> Result<Covered, Lost> {
        // A flush that follows a failed one succeeds with nothing left to flush.
        if self.epoch() != begun.epoch && !self.believes_later_flush() {
            return Err(Lost);
        }
        self.flushed.fetch_max(begun.changes, Ordering::AcqRel);
        Ok(Covered(()))
    }

    /// There was a loss. `broken`: acknowledged changes are certainly among it; else where a change is not covered by a flush.
    pub(crate) fn lost(&self, broken: bool) {
        // The epoch first: a change that ends now either sees it, or is among those counted below.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let broken = broken || self.changes.load(Ordering::SeqCst) > self.flushed.load(Ordering::Acquire);
        if broken && self.sabotage != Some(Sabotage::LossUntold) {
            self.promises.again();
        }
    }

    /// The device may have dropped what it has shown. `distrust` tells the cache.
    pub(crate) fn dropped(&self, distrust: impl FnOnce()) {
        // First: a fill either sees it, or is among what is distrusted.
        self.drops.fetch_add(1, Ordering::SeqCst);
        distrust();
        self.drops_heard.fetch_add(1, Ordering::SeqCst);
    }

    /// How often the device may have dropped what it has shown: what was read before is not worth keeping.
    pub(crate) fn drops(&self) -> u64 {
        self.drops.load(Ordering::SeqCst)
    }

    /// Whether what the cache calls good is so, as far as the first `since` drops go.
    pub(crate) fn has_heard_of_drops(&self, since: u64) -> bool {
        self.drops_heard.load(Ordering::SeqCst) == since
    }

    /// Losses of acknowledged changes, and which of them clients have been told of.
    pub(crate) fn promises(&self) -> &BrokenPromises {
        &self.promises
    }

    /// From now on the watch at the bottom of the device tells of losses.
    pub(crate) fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Acquire)
    }

    /// A deliberate fault: a flush that waits behind a failing one is acknowledged when the next succeeds.
    pub(crate) fn believes_later_flush(&self) -> bool {
        self.sabotage == Some(Sabotage::FlushBehindLoss)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: nothing is acknowledged that may be lost, and no loss of something acknowledged goes untold. Method: every order of four writes,
    //! two flushes and a loss on a device that keeps what it acknowledges in a list and drops all of it at the loss.
    use super::*;

    /// A step of an order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        WriteBegins(usize),
        /// The device has it.
        WriteReaches(usize),
        WriteEnds(usize),
        FlushBegins(usize),
        /// The device has made durable what it had.
        FlushWorks(usize),
        FlushEnds(usize),
        Loss,
    }

    #[derive(Clone, Debug, Default)]
    struct Device {
        volatile: Vec<usize>,
        durable: Vec<usize>,
        lost: Vec<usize>,
    }

    fn steps(sequences: &[Vec<Step>]) -> Vec<Vec<Step>> {
        let mut all = Vec::new();
        for (place, sequence) in sequences.iter().enumerate() {
            let Some((first, rest)) = sequence.split_first() else { continue };
            let mut others = sequences.to_vec();
            others[place] = rest.to_vec();
            all.extend(steps(&others).into_iter().map(|tail| std::iter::once(*first).chain(tail).collect()));
        }
        if all.is_empty() { vec![Vec::new()] } else { all }
    }

    /// What is wrong with an order, if something is.
    fn carry_out(order: &[Step], sabotage: Option<Sabotage>) -> Option<String> {
        let losses = Losses::new(sabotage);
        // What earlier lives left.
        let _ = losses.flushed(&losses.begin_flush());
        let mut device = Device::default();
        let (mut begun, mut flushes) = ([Epoch(0); 2], [None, None]);
        let (mut acknowledged, mut before_flush) = (Vec::new(), [Vec::new(), Vec::new()]);
        for step in order {
            match *step {
                Step::WriteBegins(n) => begun[n] = losses.epoch(),
                Step::WriteReaches(n) => device.volatile.push(n),
                Step::WriteEnds(n) => {
                    losses.changed();
                    if losses.covers_change(begun[n]).is_ok() {
                        acknowledged.push(n);
                    }
                }
                Step::FlushBegins(n) => {
                    before_flush[n] = acknowledged.clone();
                    flushes[n] = Some(losses.begin_flush());
                }
                Step::FlushWorks(_) => device.durable.append(&mut device.volatile),
                Step::FlushEnds(n) => {
                    let covered = losses.flushed(&flushes[n].take()?).is_ok();
                    // As a session answers: after a loss of what was acknowledged everything fails.
                    let answers = losses.promises().count() == 0 || losses.believes_later_flush();
                    if covered
                        && answers
                        && let Some(gone) = before_flush[n].iter().find(|n| !device.durable.contains(n))
                    {
                        return Some(format!("write {gone} is not durable, and a flush says so"));
                    }
                }
                Step::Loss => {
                    device.lost.append(&mut device.volatile);
                    losses.lost(false);
                }
            }
        }
        let untold = device.lost.iter().find(|n| acknowledged.contains(n) && losses.promises().count() == 0);
        untold.map(|n| format!("write {n} was acknowledged and is lost, and no client is told"))
    }

    fn write(n: usize) -> Vec<Step> {
        vec![Step::WriteBegins(n), Step::WriteReaches(n), Step::WriteEnds(n)]
    }

    fn flush(n: usize) -> Vec<Step> {
        vec![Step::FlushBegins(n), Step::FlushWorks(n), Step::FlushEnds(n)]
    }

    #[test]
    fn in_every_order_of_writes_flushes_and_a_loss_nothing_is_acknowledged_that_is_gone() {
        let all = [
            vec![write(0), write(1), flush(0), vec![Step::Loss]],
            vec![write(0), flush(0), flush(1), vec![Step::Loss]],
        ];
        let mut count = 0;
        for sequences in &all {
            let orders = steps(sequences);
            count += orders.len();
            for sabotage in [Sabotage::LossUntold, Sabotage::FlushBehindLoss] {
                let caught = orders.iter().any(|order| carry_out(order, Some(sabotage)).is_some());
                assert!(caught, "{sabotage:?} is caught");
            }
            for order in orders {
                assert_eq!(carry_out(&order, None), None, "{order:?}");
            }
        }
        assert_eq!(count, 2 * 16_800, "10! / (3! 3! 3!) each");
    }

    #[test]
    fn a_drop_is_heard_of_when_the_cache_knows() {
        let losses = Losses::new(None);
        losses.dropped(|| assert!(losses.drops() == 1 && !losses.has_heard_of_drops(1)));
        assert!(losses.has_heard_of_drops(1));
    }
}
