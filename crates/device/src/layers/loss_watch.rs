//! The one place that hears what a device may have lost.
//!
//! A device that fails to make something durable may have dropped what any of its writers wrote, and its next flush may
//! succeed with nothing left to flush. That holds for a failed flush, and as well for a failed durable write (FUA) or
//! durable zero: the kernel reports a lost write once, to whichever of them comes first, whoever wrote it. So every writer of
//! a device has to pass the same watch: clients, destaging, labels, rings, and the claim on the device. [`WatchedDevice`] is a device
//! with its watch at the bottom; layers are put above it, and the claim takes nothing else.
//!
//! Listeners are told before the request that failed is answered, and before any flush is answered that ended after it.
//! Never retries, and never decides what a loss means.

use crate::io::{Completion, Device, FailKind, Geometry, Io, Op, Outcome};
use crate::spawn::Spawn;
use crate::sync::{UnderWay, lock};
use std::sync::{Arc, Mutex, Weak};

/// What has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// A flush.
    Flush,
    /// A durable write or zero.
    Durable,
}

/// Receives losses of a device.
pub trait LossListener: Send + Sync {
    /// Something that any writer of the device wrote may be gone.
    fn lost(&self, lost: Lost);
}

/// Receivers of one device's losses.
#[derive(Default)]
pub struct Losses {
    /// Bounded by the cells that use the device: one, and those that have just been closed.
    listeners: Mutex<Vec<Weak<dyn LossListener>>>,
}

impl Losses {
    /// Tell `listener` from now on, for as long as it lives.
    pub fn listen(&self, listener: Weak<dyn LossListener>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|one| one.strong_count() > 0);
        listeners.push(listener);
    }

    fn tell(&self, lost: Lost) {
        // Outside the lock: listeners wake tasks.
        let listeners: Vec<_> = lock(&self.listeners).iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.lost(lost));
    }
}

/// A device below which nothing writes, with the receivers of its losses.
pub struct WatchedDevice {
    device: Device,
    losses: Arc<Losses>,
}

impl WatchedDevice {
    /// Watch `below`, which nobody may write to by another way from now on.
    #[must_use]
    pub fn new(below: Device, spawn: Arc<dyn Spawn>) -> WatchedDevice {
        let losses = Arc::new(Losses::default());
        let hears_durable = below.geometry().volatile_cache;
        WatchedDevice { device: LossWatch::new(below, spawn, losses.clone(), hears_durable), losses }
    }

    /// The device, as all that writes to it has it.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its losses.
    #[must_use]
    pub fn losses(&self) -> &Arc<Losses> {
        &self.losses
    }
}

/// A device whose losses are told. Lies below whatever joins flushes.
pub struct LossWatch {
    below: Device,
    spawn: Arc<dyn Spawn>,
    losses: Arc<Losses>,
    /// Flushes, durable writes and durable zeroes that have been issued.
    under_way: UnderWay,
    hears_durable: bool,
}

impl LossWatch {
    /// A watch over `below` that tells `losses`. `hears_durable`: a failed durable write may tell of a loss, which is so unless the
    /// device has no volatile cache, where nothing that has completed can be dropped.
    #[must_use]
    pub fn new(below: Device, spawn: Arc<dyn Spawn>, losses: Arc<Losses>, hears_durable: bool) -> Arc<LossWatch> {
        Arc::new(LossWatch { below, spawn, losses, under_way: UnderWay::default(), hears_durable })
    }

    /// Runs to its end whether or not anybody waits for the answer: a loss is heard in any case.
    fn watched(&self, op: Op, what: Lost) -> Completion {
        let turn = self.under_way.begin();
        let (completer, completion) = Completion::pair();
        let done = self.below.submit(op);
        let (losses, under_way) = (self.losses.clone(), self.under_way.clone());
        self.spawn.spawn(Box::pin(async move {
            let done = done.await;
            let lost = is_loss(done.outcome);
            if lost {
                losses.tell(what);
            }
            drop(turn);
            if what == Lost::Flush && !lost {
                // One that fails may have had the report this flush did not get.
                under_way.ended().await;
            }
            completer.complete(done);
        }));
        completion
    }
}

/// Whether something may have been dropped. What was refused before it was issued has dropped nothing.
fn is_loss(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Done | Outcome::Failed(FailKind::Unsupported | FailKind::Invalid))
}

impl Io for LossWatch {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        match op {
            Op::Flush => self.watched(op, Lost::Flush),
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. } if self.hears_durable => {
                self.watched(op, Lost::Durable)
            }
            other => self.below.submit(other),
        }
    }
}
