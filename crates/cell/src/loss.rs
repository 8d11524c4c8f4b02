//! Failed flushes of a device, told to every grid disk on it (I6).
//!
//! A device that fails to flush may have dropped what any of its users wrote, and its next flush may succeed with nothing
//! left to flush. So whoever asked for the flush (a client, housekeeping, the creation of a grid disk), all grid disks on
//! the device, and what lives on it of the flash cache and the flash log, hear of it before the asker does. Never retries.

use crate::grid_disk::GridDisk;
use device::sync::lock;
use device::{Completion, Device, Geometry, Io, Op, Outcome};
use flashcache::Member;
use flashlog::FlashLog;
use std::sync::{Arc, Mutex, Weak};

/// Who is told of a device's failed flushes.
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

    /// Tell this member of the flash cache from now on: it is given up, since records it counts as written may be gone.
    pub(crate) fn add_member(&self, member: &Arc<Member>) {
        add(&self.members, member);
    }

    /// Give this ring of the flash log up: records it counts as durable may be gone.
    pub(crate) fn add_ring(&self, log: &Arc<FlashLog>, ring: usize) {
        let mut rings = lock(&self.rings);
        rings.retain(|(log, _)| log.strong_count() > 0);
        rings.push((Arc::downgrade(log), ring));
    }

    fn tell(&self) {
        // Outside the locks: grid disks and members wake tasks.
        let rings: Vec<_> = lock(&self.rings).iter().filter_map(|(log, ring)| Some((log.upgrade()?, *ring))).collect();
        rings.iter().for_each(|(log, ring)| log.fail_ring(*ring, "a flush of its device has failed"));
        all(&self.grid_disks).iter().for_each(|disk| disk.disk_has_lost());
        all(&self.members).iter().for_each(|member| member.fail("a flush of its device has failed".to_owned()));
    }
}

fn add<T>(to: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut all = lock(to);
    all.retain(|one| one.strong_count() > 0);
    all.push(Arc::downgrade(one));
}

fn all<T>(of: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    lock(of).iter().filter_map(Weak::upgrade).collect()
}

/// A device whose failed flushes are told. Lies below whatever joins flushes, so that each is told once.
pub(crate) struct LossWatch {
    below: Device,
    listeners: Arc<LossListeners>,
}

impl LossWatch {
    pub(crate) fn new(below: Device) -> (Arc<LossWatch>, Arc<LossListeners>) {
        let listeners = Arc::new(LossListeners::default());
        (Arc::new(LossWatch { below, listeners: listeners.clone() }), listeners)
    }
}

impl Io for LossWatch {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if !matches!(op, Op::Flush) {
            return self.below.submit(op);
        }
        let flushed = self.below.submit(op);
        let listeners = self.listeners.clone();
        Completion::future(async move {
            let done = flushed.await;
            if done.outcome != Outcome::Done {
                listeners.tell();
            }
            done
        })
    }
}
