//! What a device may have lost, told to every grid disk on it (I6).
//!
//! A device that fails to make something durable may have dropped what any of its users wrote, and its next flush may
//! succeed with nothing left to flush. That holds for a failed flush, and as well for a failed durable write (FUA) or
//! durable zero: the kernel reports somebody else's lost write once, to whichever of them comes first. So whoever asked (a
//! client, housekeeping, the creation of a grid disk), all grid disks on the device, and what lives on it of the flash cache
//! and the flash log, hear of it before the asker does, and before any flush is answered that ended after it. Never retries.

use crate::grid_disk::GridDisk;
use device::sync::{Notify, lock};
use device::{Completion, Device, FailKind, Geometry, Io, Op, Outcome, Spawn};
use flashcache::{Member, Sabotage};
use flashlog::FlashLog;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

/// What has failed.
#[derive(Clone, Copy)]
enum Failed {
    Flush,
    /// A durable write or zero.
    Durable,
}

/// Who is told of a device's losses.
#[derive(Default)]
pub(crate) struct LossListeners {
    grid_disks: Mutex<Vec<Weak<GridDisk>>>,
    members: Mutex<Vec<Weak<Member>>>,
    rings: Mutex<Vec<(Weak<FlashLog>, usize)>>,
}

impl LossListeners {
    /// Tell this grid disk from now on.
    pub(crate) fn add(&self, disk: &Arc<GridDisk>) {
        add(&self.grid_disks, disk);
    }

    /// Tell this member of the flash cache from now on: records it counts as written may be gone, and are written again.
    pub(crate) fn add_member(&self, member: &Arc<Member>) {
        add(&self.members, member);
    }

    /// Give this ring of the flash log up: records it counts as durable may be gone.
    pub(crate) fn add_ring(&self, log: &Arc<FlashLog>, ring: usize) {
        let mut rings = lock(&self.rings);
        rings.retain(|(log, _)| log.strong_count() > 0);
        rings.push((Arc::downgrade(log), ring));
    }

    fn tell(&self, failed: Failed) {
        // Outside the locks: grid disks and members wake tasks.
        let rings: Vec<_> = lock(&self.rings).iter().filter_map(|(log, ring)| Some((log.upgrade()?, *ring))).collect();
        let why = match failed {
            Failed::Flush => "a flush of its device has failed",
            Failed::Durable => "a durable write to its device has failed",
        };
        rings.iter().for_each(|(log, ring)| log.fail_ring(*ring, why));
        all(&self.grid_disks).iter().for_each(|disk| disk.disk_has_lost());
        all(&self.members).iter().for_each(|member| member.may_have_lost());
    }
}

fn add<T>(to: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut all = lock(to);
    // Before it would grow: looking through thousands for each that is added would be most of a start.
    if all.len() == all.capacity() {
        all.retain(|one| one.strong_count() > 0);
    }
    all.push(Arc::downgrade(one));
}

fn all<T>(of: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    lock(of).iter().filter_map(Weak::upgrade).collect()
}

/// A device whose losses are told. Lies below whatever joins flushes, so that each is told once.
pub(crate) struct LossWatch {
    below: Device,
    spawn: Arc<dyn Spawn>,
    watched: Arc<Watched>,
    /// A failed durable write may tell of a loss: without a volatile cache nothing that has completed can be dropped.
    hears_durable: bool,
}

struct Watched {
    listeners: Arc<LossListeners>,
    durable: Mutex<DurableOps>,
    changed: Notify,
}

/// Durable writes and zeroes under way. Bounded by the requests in flight above.
#[derive(Default)]
struct DurableOps {
    next: u64,
    under_way: BTreeSet<u64>,
}

impl LossWatch {
    pub(crate) fn new(
        below: Device,
        spawn: Arc<dyn Spawn>,
        sabotage: Option<Sabotage>,
    ) -> (Arc<LossWatch>, Arc<LossListeners>) {
        let listeners = Arc::new(LossListeners::default());
        let watched = Watched { listeners: listeners.clone(), durable: Mutex::default(), changed: Notify::new() };
        let hears_durable = below.geometry().volatile_cache && sabotage != Some(Sabotage::FailedFuaUnheard);
        (Arc::new(LossWatch { below, spawn, watched: Arc::new(watched), hears_durable }), listeners)
    }

    fn flush(&self) -> Completion {
        let flushed = self.below.submit(Op::Flush);
        let watched = self.watched.clone();
        Completion::future(async move {
            let done = flushed.await;
            if is_loss(done.outcome) {
                watched.listeners.tell(Failed::Flush);
            } else {
                // One that fails may have had the report this flush did not get.
                watched.durable_ops_ended().await;
            }
            done
        })
    }

    /// Runs to its end whether or not anybody waits for the answer: a loss is heard in any case.
    fn durable(&self, op: Op) -> Completion {
        let number = self.watched.durable_op_begins();
        let (completer, completion) = Completion::pair();
        let done = self.below.submit(op);
        let watched = self.watched.clone();
        self.spawn.spawn(Box::pin(async move {
            let done = done.await;
            if is_loss(done.outcome) {
                watched.listeners.tell(Failed::Durable);
            }
            watched.durable_op_ended(number);
            completer.complete(done);
        }));
        completion
    }
}

impl Watched {
    fn durable_op_begins(&self) -> u64 {
        let mut durable = lock(&self.durable);
        let number = durable.next;
        durable.next += 1;
        durable.under_way.insert(number);
        number
    }

    fn durable_op_ended(&self, number: u64) {
        lock(&self.durable).under_way.remove(&number);
        self.changed.notify_all();
    }

    /// Wait for those that are under way now.
    async fn durable_ops_ended(&self) {
        let next = lock(&self.durable).next;
        loop {
            let ticket = self.changed.ticket();
            if lock(&self.durable).under_way.first().is_none_or(|&oldest| oldest >= next) {
                return;
            }
            self.changed.wait(ticket).await;
        }
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
            Op::Flush => self.flush(),
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. } if self.hears_durable => self.durable(op),
            other => self.below.submit(other),
        }
    }
}
