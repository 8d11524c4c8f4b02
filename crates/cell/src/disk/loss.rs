//! What a device may have lost, told to every grid disk on it (I6).
//!
//! The watch at the bottom of a device ([`device::layers::loss_watch`]) says when; here is who is told: all grid disks on the
//! device, and what lives on it of the flash cache and the flash log. Never retries.

use crate::disk::grid_disk::GridDisk;
use device::Device;
use device::layers::{LossListener, Losses, Lost};
use device::sync::lock;
use flashcache::Member;
use flashlog::FlashLog;
use std::sync::{Arc, Mutex, Weak};

/// A device for a cell. What opens devices watches each at its bottom; a bare one is watched where the cell begins, which is
/// right only if nothing below writes to it.
#[derive(Clone)]
pub struct CellDevice {
    pub(crate) device: Device,
    pub(crate) losses: Option<Arc<Losses>>,
}

impl From<Device> for CellDevice {
    fn from(device: Device) -> CellDevice {
        CellDevice { device, losses: None }
    }
}

impl CellDevice {
    /// A device with what is heard by the watch at its bottom.
    #[must_use]
    pub fn new(device: Device, losses: Arc<Losses>) -> CellDevice {
        CellDevice { device, losses: Some(losses) }
    }
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
}

impl LossListener for LossListeners {
    fn lost(&self, lost: Lost) {
        // Outside the locks: grid disks and members wake tasks.
        let rings: Vec<_> = lock(&self.rings).iter().filter_map(|(log, ring)| Some((log.upgrade()?, *ring))).collect();
        let why = match lost {
            Lost::Flush => "a flush of its device has failed",
            Lost::Durable => "a durable write to its device has failed",
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
