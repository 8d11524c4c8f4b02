//! The flash log of a running cell, and whether the content of flash belongs to a disk.

use celldisk::{CellStore, DeviceId, Label, Stamp};
use device::sync::lock;
use flashlog::FlashLog;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The flash log at work.
#[derive(Clone)]
pub(crate) struct LogAtWork {
    pub(crate) id: Stamp,
    pub(crate) log: Arc<FlashLog>,
    /// Its rings' devices, in order.
    pub(crate) devices: Arc<[DeviceId]>,
    /// Cell disks whose labels say that redo is pending: their grid disks may use it.
    pub(crate) homes: Arc<Mutex<BTreeSet<DeviceId>>>,
}

impl LogAtWork {
    pub(crate) fn new(id: Stamp, log: Arc<FlashLog>, devices: Vec<DeviceId>) -> LogAtWork {
        LogAtWork { id, log, devices: devices.into(), homes: Arc::default() }
    }

    /// A cell disk has left the cell.
    pub(crate) fn forget_home(&self, disk: DeviceId) {
        lock(&self.homes).remove(&disk);
    }

    pub(crate) fn is_home(&self, disk: DeviceId) -> bool {
        lock(&self.homes).contains(&disk)
    }

    /// The devices of the rings that have not failed.
    pub(crate) fn live(&self) -> Vec<DeviceId> {
        let rings = self.devices.iter().zip(self.log.failures());
        rings.filter(|(_, failure)| failure.is_none()).map(|(flash, _)| *flash).collect()
    }

    pub(crate) fn forget_homes(&self) {
        lock(&self.homes).clear();
    }

    /// By ring: whether the disk's label says that nothing counts there.
    pub(crate) fn void(&self, label: &Label) -> Vec<bool> {
        let counts = |flash: &DeviceId| label.flash_members.get(flash).is_some_and(|m| m.redo_pending == Some(self.id));
        self.devices.iter().map(|flash| !counts(flash)).collect()
    }
}

/// Whether what a flash device holds is what this disk was left with (I5), whatever the state of the flash cache there.
pub(crate) fn is_paired(store: &CellStore, disk: &Label, flash: DeviceId) -> bool {
    let Some(flash_disk) = store.cell_disk(flash) else { return false };
    let of_flash = flash_disk.label();
    let member = disk.flash_members.get(&flash);
    member.is_some_and(|m| m.generation == of_flash.device_generation) && Label::stamps_match(disk, &of_flash)
}
