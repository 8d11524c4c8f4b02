//! Failed flushes of a device, told to every grid disk on it (I6).
//!
//! A device that fails to flush may have dropped what any of its users wrote, and its next flush may succeed with nothing
//! left to flush. So whoever asked for the flush (a client, housekeeping, the creation of a grid disk), all grid disks on
//! the device hear of it before the asker does. Never retries.

use crate::grid_disk::GridDisk;
use device::sync::lock;
use device::{Completion, Device, Geometry, Io, Op, Outcome};
use std::sync::{Arc, Mutex, Weak};

/// Who is told of a device's failed flushes.
#[derive(Debug, Default)]
pub(crate) struct LossListeners(Mutex<Vec<Weak<GridDisk>>>);

impl LossListeners {
    /// Tell this grid disk from now on.
    pub(crate) fn add(&self, disk: &Arc<GridDisk>) {
        let mut all = lock(&self.0);
        all.retain(|disk| disk.strong_count() > 0);
        all.push(Arc::downgrade(disk));
    }

    fn tell(&self) {
        // Outside the lock: grid disks wake tasks.
        let all: Vec<Arc<GridDisk>> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|disk| disk.latch_lost());
    }
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
