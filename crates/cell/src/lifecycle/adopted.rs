//! Adopted volumes: file systems that were there before the cell, in place, and may be used without it.
//!
//! What is cached of one counts at a start only if the volume is as the cell left it: after a clean stop its fingerprint is compared, and after
//! any other stop nothing tells, so that the cache begins empty. Never writes to a volume but what clients write.
//!
//! In write-back-ordered, for which the operator has given his word that nobody else uses the volume, flash has writes that the volume does not
//! have, so that what is cached cannot be dropped as a whole. Where the volume was used nevertheless, the grid disk stays offline until the
//! operator has said which of the two counts; where nothing tells, [`crate::lifecycle::compared`] looks at some of what should be the same on both.

use crate::disk::error::AdminError;
use crate::disk::error::CellError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::open::{NewDevice, OpenReport};
use celldisk::{Adopted, CachingMode, CellDiskError, CellStore, DeviceId, GridDiskId, GridDiskSpec, Role, fingerprint};
use device::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A volume beside what the cell has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The same.
    AsLeft,
    /// Another program has used the volume.
    Used,
    /// It holds nothing that has a fingerprint.
    Traceless,
    /// It cannot be read.
    Unread(String),
    /// The cell has never served it.
    First,
    /// The cell ended without a clean stop, and nobody knows what was written last.
    Unclean,
}

impl Found {
    /// Whether nothing tells if somebody else has used it, so that the comparison has to.
    pub(crate) fn is_uncertain(&self) -> bool {
        matches!(self, Found::Traceless | Found::Unread(_) | Found::Unclean)
    }
}

/// How the volumes are. Before anything is written to one: a journal that is put in place changes it.
pub(crate) async fn look(store: &Arc<CellStore>) -> BTreeMap<DeviceId, Found> {
    let mut found = BTreeMap::new();
    for disk in store.cell_disks() {
        let label = disk.label();
        let Some(adopted) = label.adopted else { continue };
        let now = fingerprint(disk.device(), adopted).await;
        // With a journal beside it there is a fingerprint only while the volume is as it was then.
        let is_known = adopted.fingerprint != 0 && (label.clean_stop || store.is_adopted_for_write_back(disk.id()));
        let is = match now {
            _ if adopted.fingerprint == Adopted::USED => Found::Used,
            Ok(now) if is_known && now == adopted.fingerprint => Found::AsLeft,
            Err(error) => Found::Unread(error.to_string()),
            Ok(_) if adopted.fingerprint == Adopted::UNCOMPARED => Found::Unclean,
            Ok(0) => Found::Traceless,
            Ok(_) if is_known => Found::Used,
            Ok(_) if label.clean_stop => Found::First,
            Ok(_) => Found::Unclean,
        };
        found.insert(disk.id(), is);
    }
    found
}

/// The volume of which flash is `to_be_believed`, if somebody else has used it. Before anything is written to it, its label says so for good: a
/// release that comes to nothing leaves it as it was found.
///
/// # Errors
/// Its label cannot be written.
pub(crate) async fn believed(
    store: &CellStore,
    found: &BTreeMap<DeviceId, Found>,
    to_be_believed: Option<DeviceId>,
) -> Result<Option<DeviceId>, CellError> {
    let used = to_be_believed.filter(|id| found.get(id) == Some(&Found::Used));
    let Some(disk) = used.and_then(|id| store.cell_disk(id)) else { return Ok(None) };
    set_fingerprint(&disk, Adopted::USED).await.map_err(|error| CellError::label(&disk, error))?;
    Ok(used)
}

/// Grid disks in write-back whose volume was used without the cell, but that whose flash is believed.
pub(crate) fn used_in_write_back(
    store: &CellStore,
    found: &BTreeMap<DeviceId, Found>,
    believed: Option<DeviceId>,
) -> BTreeSet<GridDiskId> {
    let catalog = store.catalog();
    let used = |record: &&celldisk::GridDisk| {
        found.get(&record.cell_disk) == Some(&Found::Used) && believed != Some(record.cell_disk)
    };
    catalog.grid_disks.values().filter(|record| record.is_write_back()).filter(used).map(|record| record.id).collect()
}

/// Why a grid disk is offline whose volume and flash have gone apart.
pub(crate) fn used_note(name: &str) -> String {
    format!(
        "grid disk {name} is offline: its volume was used without the cell, while flash holds writes that the volume does not have; \
         hint: keep the volume as it is and give those writes up, with ALTER GRIDDISK {name} ACTIVE FORCE, or with `flashcell release {name} \
         --discard-dirty` while the cell is stopped; or write them over what the volume has become, with `flashcell release {name} \
         --believe-cache`, and check the file system afterwards"
    )
}

/// Make void what is cached of volumes that may have been used since the cell has stopped, where nothing of it is on flash alone. `used`: grid
/// disks of such volumes that have something on flash alone, each with why it is offline; more are found. What is to be told the operator, and grid disks to be compared.
pub(crate) async fn void_what_may_differ(
    store: &Arc<CellStore>,
    found: &BTreeMap<DeviceId, Found>,
    used: &mut BTreeMap<GridDiskId, String>,
    believed: Option<DeviceId>,
    report: &mut OpenReport,
) -> Result<(Vec<String>, BTreeSet<GridDiskId>), CellError> {
    let (mut alerts, mut uncompared) = (Vec::new(), BTreeSet::new());
    let catalog = store.catalog();
    for record in catalog.grid_disks.values() {
        let Some(is) = found.get(&record.cell_disk).filter(|is| **is != Found::AsLeft) else { continue };
        let name = &record.name;
        let why = match is {
            Found::AsLeft => continue,
            Found::Unread(error) => format!("the superblock of grid disk {name} cannot be read ({error})"),
            Found::Traceless => {
                format!(
                    "nothing tells whether the volume of grid disk {name} was used without the cell: it is neither ext2, ext3, ext4, XFS nor btrfs"
                )
            }
            Found::Used => format!("the volume of grid disk {name} was used without the cell"),
            Found::First => format!("grid disk {name} is served for the first time"),
            Found::Unclean => {
                format!(
                    "nobody knows whether the volume of grid disk {name} was used since the cell ended without a clean stop"
                )
            }
        };
        let is_whole = store.cell_disk(record.cell_disk).is_some_and(|disk| disk.label().is_whole());
        if *is == Found::Used {
            if record.is_write_back() && believed == Some(record.cell_disk) {
                report.notes.push(format!("{why}: what flash has counts, as the operator wants it"));
                continue;
            }
            if used.contains_key(&record.id) || record.is_write_back() && !is_whole {
                // That it is offline is an alert by itself.
                report.notes.push(used.entry(record.id).or_insert_with(|| used_note(name)).clone());
                continue;
            }
            alerts.push(format!("{why}: what was cached of it is void"));
        } else if record.is_write_back() {
            report.notes.push(format!("{why}: some of what is cached of it is compared with it"));
            uncompared.insert(record.id);
            continue;
        }
        // Before the stamps are renewed: an open that is cut off here finds the same again.
        let _ = store.raise_cache_generation(record.id).await?;
        report.notes.push(format!("{why}: its cache begins empty"));
    }
    Ok((alerts, uncompared))
}

/// From here on the cell may write to these volumes: their labels say no longer how they were left. Not those of `offline` grid disks, to which
/// nobody writes, nor the one that was used and whose flash is `believed`.
pub(crate) async fn forget_fingerprints(
    store: &Arc<CellStore>,
    offline: &BTreeMap<GridDiskId, String>,
    believed: Option<DeviceId>,
) -> Result<(), CellError> {
    for record in store.catalog().grid_disks.values() {
        if offline.contains_key(&record.id) || believed == Some(record.cell_disk) {
            continue;
        }
        let Some(disk) = store.cell_disk(record.cell_disk) else { continue };
        forget_fingerprint(store, record.cell_disk).await.map_err(|error| CellError::label(&disk, error))?;
    }
    Ok(())
}

/// Clear the fingerprint in the label of one volume. Where there is no journal the label says by itself whether the stop was clean.
pub(crate) async fn forget_fingerprint(store: &Arc<CellStore>, id: DeviceId) -> Result<(), CellDiskError> {
    let Some(disk) = store.cell_disk(id).filter(|_| store.is_adopted_for_write_back(id)) else { return Ok(()) };
    if disk.label().adopted.is_none_or(|adopted| adopted.fingerprint == 0) {
        return Ok(());
    }
    set_fingerprint(&disk, 0).await
}

/// Write the fingerprint of a volume into its label.
pub(crate) async fn set_fingerprint(disk: &celldisk::CellDisk, now: u64) -> Result<(), CellDiskError> {
    disk.update_label(|label| label.adopted.iter_mut().for_each(|adopted| adopted.fingerprint = now)).await
}

/// Note how volumes are left. All of them have been flushed, and the labels do not say yet that the stop was clean. Of `uncompared` grid disks
/// nobody knows how they should be: the next open has to compare them as this one should have.
pub(crate) async fn leave_fingerprints(store: &Arc<CellStore>, uncompared: &BTreeSet<GridDiskId>) {
    let catalog = store.catalog();
    let unknown = uncompared.iter().filter_map(|id| catalog.grid_disks.get(id)).map(|record| record.cell_disk);
    let unknown: BTreeSet<DeviceId> = unknown.collect();
    for disk in store.cell_disks() {
        let Some(adopted) = disk.label().adopted else { continue };
        // The cell has not served this volume since the open: what the open found must not be forgotten.
        if adopted.fingerprint != 0 && store.is_adopted_for_write_back(disk.id()) {
            continue;
        }
        // What cannot be read is not known, and nothing is believed at the next start; so it is where the label cannot be written.
        let now = match unknown.contains(&disk.id()) {
            true => Adopted::UNCOMPARED,
            false => fingerprint(disk.device(), adopted).await.unwrap_or(0),
        };
        let _ = set_fingerprint(&disk, now).await;
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
        let (name, mode) = (new.name.clone(), spec.caching_mode);
        // Write-back in flush order comes with its journal.
        let first = if mode == CachingMode::WriteBackOrdered { CachingMode::WriteThrough } else { mode };
        // By force, for it is the volume that carries something.
        let cell_disk = self.create_cell_disk(new, true).await?;
        let made = self.store().adopt_volume(GridDiskSpec { cell_disk, caching_mode: first, ..spec }).await;
        let served = match made {
            Ok(changed) => self.serve(&self.stood(changed)).map_err(AdminError::from),
            Err(error) => Err(error.into()),
        };
        let adopted = match served {
            Ok(disk) if first != mode => self.set_caching(&disk.name(), Some(mode), None).await.map(|()| disk),
            served => served,
        };
        if adopted.is_err() {
            // Nothing was written to it: what knows of it is taken away again.
            if let Ok(_turn) = self.turn().await {
                for disk in self.grid_disks_on(cell_disk) {
                    let _ = self.take_away(&disk, true).await;
                }
            }
            let _ = self.drop_cell_disk(&name, false).await;
        }
        adopted
    }

    /// Whether a hard disk is at work besides this one.
    ///
    /// # Errors
    /// There is none.
    pub fn check_not_last(&self, id: DeviceId) -> Result<(), AdminError> {
        let disks = self.store().cell_disks().into_iter().filter(|disk| disk.role() == Role::Disk);
        let (this, others): (Vec<_>, Vec<_>) = disks.partition(|disk| disk.id() == id);
        match this.first() {
            Some(home) if others.is_empty() => Err(AdminError::LastDisk(home.name())),
            _ => Ok(()),
        }
    }

    /// Let an adopted volume go: everything of it is on it, durably, and the catalog knows it no more. Its label stays, in its metadata file.
    /// With `discard_dirty` the volume stays as it is where its grid disk is offline, and what flash alone has of it is given up.
    ///
    /// # Errors
    /// It is used, no other hard disk is at work, what flash holds cannot be written to it, or no device took the change: it is served as it was
    /// then, or in write-through.
    pub async fn release(self: &Arc<Self>, id: DeviceId, discard_dirty: bool) -> Result<(), AdminError> {
        for disk in self.grid_disks_on(id).iter().filter(|disk| disk.offline().is_none() && disk.sessions() == 0) {
            if self.record(disk).is_some_and(|record| record.is_write_back()) {
                // With this the volume gets what is dirty, in flush order, and its journal goes.
                self.set_caching(&disk.name(), Some(CachingMode::WriteThrough), None).await?;
            }
        }
        let _turn = self.turn().await?;
        let Some(home) = self.store().cell_disk(id) else { return Err(AdminError::NoCellDisk(id.to_string())) };
        self.check_not_last(id)?;
        for disk in self.grid_disks_on(id) {
            if disk.sessions() > 0 {
                return Err(AdminError::InUse(disk.name(), disk.sessions()));
            }
            if discard_dirty && disk.offline().is_some() {
                self.take_away(&disk, true).await?;
                continue;
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
