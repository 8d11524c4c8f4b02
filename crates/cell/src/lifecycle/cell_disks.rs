//! Devices taken into a running cell, and out of it; devices that grow while it runs.
//!
//! Taken in means: it carries a label of this cell and the catalog names it; what it is used for is said by other commands. A disk is paired
//! with each flash device at work before anything of it can be cached. Never formats a device that carries anything unless told to.

use crate::disk::error::AdminError;
use crate::disk::error::CellError;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::open::NewDevice;
use celldisk::{CellDisk, CellStore, DeviceId, GridDiskError, MemberStatus, Renewal, Role};
use device::sync::lock;
use std::collections::BTreeSet;
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

    /// Make a cell disk of a device and take it in.
    ///
    /// # Errors
    /// The name is taken, the device carries something and `force` is not set, a disk comes while another waits for flash, or a device
    /// fails.
    pub async fn create_cell_disk(self: &Arc<Self>, new: NewDevice, force: bool) -> Result<DeviceId, AdminError> {
        let _turn = self.turn().await?;
        let role = new.role;
        if role == Role::Disk {
            // Their stamps are renewed with its own.
            self.check_nobody_waits_for_redo()?;
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
        if role == Role::Disk
            && let Err(error) = self.pair_new_disk(id).await
        {
            // What is not paired must not be cached, and would be after the next start.
            let _ = self.stood(self.store().remove(id).await?);
            lock(&self.losses).remove(&id);
            return Err(error);
        }
        Ok(id)
    }

    /// Let each flash device at work know a disk that has just come. They hold nothing of it, for its identity is new.
    async fn pair_new_disk(&self, id: DeviceId) -> Result<(), AdminError> {
        let at_work = self.cache_at_work();
        let members = at_work.iter().flat_map(|c| c.devices.iter().zip(c.cache.members()));
        let mut flash: BTreeSet<DeviceId> =
            members.filter(|(_, member)| !member.has_failed()).map(|(flash, _)| *flash).collect();
        flash.extend(self.log_at_work().map_or_else(Vec::new, |log| log.live()));
        if flash.is_empty() {
            return Ok(());
        }
        // What is not listed matches no more.
        let mut pairs = self.store().matching_pairs();
        pairs.extend(flash.into_iter().map(|flash| (id, flash)));
        // Nobody may be left out: a disk that waits for flash which is lost, or counts on a ring that is leaving.
        if let Some(disk) = self.store().left_out_of_renewal(&pairs).first() {
            let dirty =
                self.store().catalog().grid_disks.values().find(|g| g.cell_disk == disk.id()).map(|g| g.name.clone());
            return Err(match dirty.filter(|_| !disk.label().is_whole()) {
                Some(name) => AdminError::StillDirty(name),
                None => AdminError::RingLeaving(disk.name()),
            });
        }
        let mut prng = self.world.prng.fork(&format!("disk at {}", self.world.clock.now().0));
        let failed = self.store().renew_stamps(Renewal::Open, &pairs, &mut prng).await;
        if failed.is_empty() { Ok(()) } else { Err(CellError::Labels(failed).into()) }
    }

    /// Take a cell disk, present or missing, out of the cell for good, with `force` its grid disks first. One that is there is blank afterwards.
    ///
    /// # Errors
    /// The flash cache or the flash log is on it, grid disks are and `force` is not set, no other disk is at work; or no durable device took
    /// the change.
    pub async fn drop_cell_disk(self: &Arc<Self>, name: &str, force: bool) -> Result<(), AdminError> {
        if force {
            // What refuses the whole refuses it before anything is dropped.
            self.droppable(name, true)?;
            let id = self.store().catalog().member_named(name).map(|(id, _)| id);
            for disk in id.map_or_else(Vec::new, |id| self.grid_disks_on(id)) {
                self.drop_grid_disk(&disk.name(), true).await?;
            }
        }
        let _turn = self.turn().await?;
        let id = self.droppable(name, false)?;
        let catalog = self.store().catalog();
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
        let role = catalog.members.get(&id).map(|member| member.role);
        let _ = self.stood(self.store().remove(id).await?);
        lock(&self.losses).remove(&id);
        match role {
            Some(Role::Disk) => {
                self.log_at_work().iter().for_each(|log| log.forget_home(id));
                self.store().forget_disk(id).await;
            }
            Some(Role::Flash) | None => self.store().forget_flash(&[id]).await,
        }
        if let Some(disk) = disk
            && let Err(error) = disk.erase().await
        {
            self.alert(format!("cell disk {name} is out of the cell, but its label could not be erased: {error}"));
        }
        Ok(())
    }

    /// The cell disk of that name, if nothing stands against dropping it but, when they go first, its grid disks.
    fn droppable(&self, name: &str, grid_disks_go: bool) -> Result<DeviceId, AdminError> {
        let catalog = self.store().catalog();
        let (id, member) = catalog.member_named(name).ok_or_else(|| AdminError::NoCellDisk(name.to_owned()))?;
        let in_log = catalog.flash_log.as_ref().is_some_and(|log| log.regions.contains_key(&id));
        let what = if catalog.is_cached_on(&id) {
            Some("the flash cache is on it")
        } else if in_log {
            Some("the flash log is on it")
        } else {
            let stays = |g: &celldisk::GridDisk| {
                g.cell_disk == id && !(grid_disks_go && self.grid_disk(&g.name).is_some_and(|disk| disk.id() == g.id.0))
            };
            catalog.grid_disks.values().any(stays).then_some("grid disks are on it")
        };
        if let Some(what) = what {
            return Err(AdminError::CellDiskInUse(member.name.clone(), what));
        }
        // The catalog has to live on somewhere.
        let others = self.store().cell_disks().into_iter().filter(|disk| disk.role() == Role::Disk && disk.id() != id);
        if member.role == Role::Disk && others.count() == 0 {
            return Err(AdminError::LastDisk(member.name.clone()));
        }
        Ok(id)
    }
}
