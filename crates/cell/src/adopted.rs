//! Adopted volumes: file systems that were there before the cell, in place, and may be used without it.
//!
//! What is cached of one counts at a start only if the volume is as the cell left it: after a clean stop its fingerprint is compared, and after
//! any other stop nothing tells, so that the cache begins empty. Nothing of a volume is ever on flash alone. Never writes to a volume
//! but what clients write.

use crate::admin::AdminError;
use crate::cell::Cell;
use crate::grid_disk::GridDisk;
use crate::open::{CellError, NewDevice, OpenReport};
use celldisk::{CellStore, DeviceId, GridDiskSpec, Role, fingerprint};
use device::sync::lock;
use std::sync::Arc;

/// Make void what is cached of volumes that may have been used since the cell has stopped. What is to be told the operator.
pub(crate) async fn void_what_may_differ(
    store: &Arc<CellStore>,
    report: &mut OpenReport,
) -> Result<Vec<String>, CellError> {
    let mut alerts = Vec::new();
    for disk in store.cell_disks() {
        let label = disk.label();
        let Some(adopted) = label.adopted else { continue };
        let now = fingerprint(disk.device(), adopted).await;
        let is_known = label.clean_stop && adopted.fingerprint != 0;
        if is_known && now.as_ref() == Ok(&adopted.fingerprint) {
            continue;
        }
        let catalog = store.catalog();
        for record in catalog.grid_disks.values().filter(|record| record.cell_disk == disk.id()) {
            // Before the stamps are renewed: an open that is cut off here finds the same again.
            let _ = store.raise_cache_generation(record.id).await?;
            let name = &record.name;
            let why = match (now, is_known) {
                (Err(error), _) => format!("the superblock of grid disk {name} cannot be read ({error})"),
                (Ok(0), _) => {
                    format!(
                        "nothing tells whether the volume of grid disk {name} was used without the cell: it is neither ext2, ext3, ext4, XFS nor btrfs"
                    )
                }
                (Ok(_), true) => {
                    let why = format!("the volume of grid disk {name} was used without the cell");
                    alerts.push(format!("{why}: what was cached of it is void"));
                    why
                }
                (Ok(_), false) if label.clean_stop => format!("grid disk {name} is served for the first time"),
                (Ok(_), false) => {
                    format!(
                        "nobody knows whether the volume of grid disk {name} was used since the cell ended without a clean stop"
                    )
                }
            };
            report.notes.push(format!("{why}: its cache begins empty"));
        }
    }
    Ok(alerts)
}

/// Note how volumes are left. All of them have been flushed, and the labels do not say yet that the stop was clean.
pub(crate) async fn leave_fingerprints(store: &Arc<CellStore>) {
    for disk in store.cell_disks() {
        let Some(adopted) = disk.label().adopted else { continue };
        // What cannot be read is not known, and nothing is believed at the next start; so it is where the label cannot be written.
        let now = fingerprint(disk.device(), adopted).await.unwrap_or(0);
        let _ = disk.update_label(|label| label.adopted.iter_mut().for_each(|adopted| adopted.fingerprint = now)).await;
    }
}

impl Cell {
    /// Take a volume in as it is: `new` says how large it is, and its device has the metadata beside it, which is blank. One grid disk, served
    /// when this returns, shows all of it.
    ///
    /// # Errors
    /// A name is taken, or a device fails. The volume is as it was, whatever happened.
    ///
    /// # Panics
    /// When `new` does not say that it is to be adopted.
    pub async fn adopt(self: &Arc<Self>, new: NewDevice, spec: GridDiskSpec) -> Result<Arc<GridDisk>, AdminError> {
        assert!(new.adopted_bytes.is_some(), "the format of an ordinary disk would wipe the volume");
        let name = new.name.clone();
        // By force, for it is the volume that carries something.
        let cell_disk = self.create_cell_disk(new, true).await?;
        let made = self.store().adopt_volume(GridDiskSpec { cell_disk, ..spec }).await;
        match made {
            Ok(changed) => {
                let record = self.stood(changed);
                Ok(self.serve(&record)?)
            }
            Err(error) => {
                let _ = self.drop_cell_disk(&name, false).await;
                Err(error.into())
            }
        }
    }

    /// Let an adopted volume go: everything of it is on it, durably, and the catalog knows it no more. Its label stays, in its metadata file.
    ///
    /// # Errors
    /// It is used, no other hard disk is at work, what flash holds cannot be written to it, or no device took the change: it is as it was then.
    pub async fn release(self: &Arc<Self>, id: DeviceId) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let Some(home) = self.store().cell_disk(id) else { return Err(AdminError::NoCellDisk(id.to_string())) };
        let others = self.store().cell_disks().into_iter().filter(|disk| disk.role() == Role::Disk && disk.id() != id);
        if others.count() == 0 {
            return Err(AdminError::LastDisk(home.name()));
        }
        for disk in self.grid_disks_on(id) {
            if disk.sessions() > 0 {
                return Err(AdminError::InUse(disk.name(), disk.sessions()));
            }
            let drying = self.dry(std::slice::from_ref(&disk)).await?;
            if disk.flush_all().await.is_err() || !home.label().is_whole() {
                return Err(AdminError::StillDirty(disk.name()));
            }
            self.take_away(&disk, false).await?;
            drop(drying);
        }
        let _ = self.stood(self.store().remove(id).await?);
        lock(&self.losses).remove(&id);
        self.log_at_work().iter().for_each(|log| log.forget_home(id));
        self.store().forget_disk(id).await;
        Ok(())
    }
}
