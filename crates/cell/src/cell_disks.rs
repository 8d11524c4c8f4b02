//! Flash devices taken into a running cell, and out of it; devices that grow while it runs.
//!
//! Taken in means: it carries a label of this cell and the catalog names it; what it is used for is said by other commands. Only
//! flash: of a disk each flash device would have to know before anything of it is cached. Never formats a device that carries
//! anything unless told to.

use crate::admin::AdminError;
use crate::cell::Cell;
use crate::open::NewDevice;
use celldisk::{CellDisk, CellStore, DeviceId, GridDiskError, MemberStatus, Role};
use device::sync::lock;
use std::sync::Arc;

/// Devices that have grown: what there is more of them is free space from here on. One that cannot be told so stays as large as it
/// was. What is to be said of them.
pub(crate) async fn adopt_sizes(store: &Arc<CellStore>) -> Vec<String> {
    let mut notes = Vec::new();
    for disk in store.cell_disks() {
        let grown_au = grown_by(store, &disk);
        if grown_au == 0 {
            continue;
        }
        notes.push(match store.adopt_size(disk.id()).await {
            Ok(_) => {
                let bytes = u64::from(grown_au) * disk.au_bytes();
                format!("cell disk {} has grown by {bytes} bytes", disk.name())
            }
            Err(error) => format!("cell disk {} has grown, but stays as it was: {error}", disk.name()),
        });
    }
    notes
}

/// Allocation units that a device has and the catalog does not know.
fn grown_by(store: &CellStore, disk: &CellDisk) -> u32 {
    let known = store.catalog().members.get(&disk.id()).map_or(u32::MAX, |member| member.au_count);
    disk.au_count_possible().saturating_sub(known)
}

impl Cell {
    /// Whether a device has become larger than the cell knows, see [`Cell::use_growth`].
    #[must_use]
    pub fn has_grown(&self) -> bool {
        self.store().cell_disks().iter().any(|disk| grown_by(self.store(), disk) > 0)
    }

    /// Use what devices have more than they had, with I/O running: it is free space of their cell disks. What there is to say of
    /// it, a line for each that has grown.
    ///
    /// # Errors
    /// The cell is stopping.
    pub async fn use_growth(self: &Arc<Self>) -> Result<Vec<String>, AdminError> {
        let _turn = self.turn().await?;
        Ok(adopt_sizes(self.store()).await)
    }

    /// Make a cell disk of a flash device and take it in.
    ///
    /// # Errors
    /// It is no flash, the name is taken, the device carries something and `force` is not set, or a device fails.
    pub async fn create_cell_disk(self: &Arc<Self>, new: NewDevice, force: bool) -> Result<DeviceId, AdminError> {
        let _turn = self.turn().await?;
        if new.role != Role::Flash {
            return Err(AdminError::NotSupported("taking a hard disk into a running cell"));
        }
        if self.store().catalog().member_named(&new.name).is_some() {
            return Err(GridDiskError::Exists { what: "a cell disk of that name" }.into());
        }
        let (device, listeners) = Cell::gate(new.device.clone(), &self.world, self.config.sabotage);
        let now = self.world.clock.now().0;
        let mut prng = self.world.prng.fork(&format!("cell disk at {now}"));
        let random = || prng.next_u128().max(1);
        let disk = new.format(device, self.store().cell_id(), self.world.clock.wall(), force, random).await?;
        let id = disk.id();
        lock(&self.losses).insert(id, listeners);
        self.stood(self.store().add(disk).await?);
        Ok(id)
    }

    /// Take a flash cell disk, present or missing, out of the cell for good. One that is there is blank afterwards.
    ///
    /// # Errors
    /// It is no flash, or the flash cache, the flash log or grid disks are on it; or no durable device took the change.
    pub async fn drop_cell_disk(self: &Arc<Self>, name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let catalog = self.store().catalog();
        let (id, member) = catalog.member_named(name).ok_or_else(|| AdminError::NoCellDisk(name.to_owned()))?;
        if member.role != Role::Flash {
            return Err(AdminError::NotSupported("taking a hard disk out of a running cell"));
        }
        let in_log = catalog.flash_log.as_ref().is_some_and(|log| log.regions.contains_key(&id));
        let what = if catalog.is_cached_on(&id) {
            Some("the flash cache is on it")
        } else if in_log {
            Some("the flash log is on it")
        } else {
            catalog.grid_disks.values().any(|g| g.cell_disk == id).then_some("grid disks are on it")
        };
        if let Some(what) = what {
            return Err(AdminError::CellDiskInUse(member.name.clone(), what));
        }
        // A disk that was put back in time may wait for what was on it then.
        let disks = self.store().cell_disks().into_iter().filter(|disk| disk.role() == Role::Disk);
        let waits: Vec<DeviceId> = disks.filter(|disk| disk.label().is_dirty_on(&id)).map(|disk| disk.id()).collect();
        if let Some(record) = catalog.grid_disks.values().find(|record| waits.contains(&record.cell_disk)) {
            return Err(AdminError::StillDirty(record.name.clone()));
        }
        let pends = |disk: DeviceId| {
            let label = self.store().cell_disk(disk).map(|disk| disk.label());
            label.is_some_and(|l| l.flash_members.get(&id).is_some_and(|member| member.redo_pending.is_some()))
        };
        if let Some(record) = catalog.grid_disks.values().find(|record| pends(record.cell_disk)) {
            return Err(AdminError::RedoOnFlash(record.name.clone()));
        }
        let disk = match self.store().members().remove(&id) {
            Some(MemberStatus::InService(disk)) => Some(disk),
            _ => None,
        };
        let _ = self.stood(self.store().remove(id).await?);
        lock(&self.losses).remove(&id);
        self.store().forget_flash(&[id]).await;
        if let Some(disk) = disk
            && let Err(error) = disk.erase().await
        {
            self.alert(format!("cell disk {name} is out of the cell, but its label could not be erased: {error}"));
        }
        Ok(())
    }
}
