//! Making a store: a new cell out of formatted cell disks, or the devices of an existing one.

use super::elect::{self, Kinship};
use super::{CellStore, ChangeError, Changed, GridDiskError, ReplicaFailure, StoreError, write_replicas};
use crate::catalog::{Catalog, Member};
use crate::disk::CellDisk;
use crate::error::CellDiskError;
use crate::ids::{CellId, DeviceId, Stamp};
use crate::label::Role;
use crate::sabotage::Sabotage;
use device::sync::lock;
use device::{Device, WallTime};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::pending;
use std::sync::Arc;

/// How to open a cell.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The cell that is meant; `None`: that of the first device that can be opened.
    pub cell_id: Option<CellId>,
    /// Random mark of this open.
    pub term_stamp: Stamp,
    /// Take devices that were opened apart from the others as well, and give up what was changed on them alone.
    pub accept_diverged: bool,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
}

/// A store and what was noticed on the way.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Arc<CellStore>,
    /// For alerts and messages.
    pub report: StoreReport,
}

/// What was noticed when a cell was opened. All names are cell disk names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Devices of the cell that were not among those given.
    pub missing: Vec<String>,
    /// Devices given that cannot be used, by place in the list.
    pub unusable: Vec<(usize, CellDiskError)>,
    /// Copies brought up to date: their devices were absent, or a crash came in between.
    pub stale: Vec<String>,
    /// Copies with a change that nobody had been told of, replaced.
    pub superseded: Vec<String>,
    /// Devices opened and changed apart from the others: left untouched and not used, unless they were accepted.
    pub diverged: Vec<String>,
    /// Devices of this cell that its catalog does not name: left untouched and not used.
    pub unlisted: Vec<String>,
    /// Devices of which copies of the label or the catalog could not be read or were not whole, and how many; they were written anew
    /// from a whole one.
    pub mended: Vec<(String, u32)>,
    /// Devices that did not take the new term: not in service.
    pub failed: Vec<ReplicaFailure>,
}

/// A cell disk as the catalog lists it.
fn member_of(disk: &CellDisk) -> Member {
    let label = disk.label();
    Member {
        name: label.name.clone(),
        role: label.role,
        class: label.class,
        au_bytes: label.au_bytes,
        au_count: label.au_count(),
    }
}

impl CellStore {
    /// Make a cell of freshly formatted cell disks, all of the same cell id.
    ///
    /// A power cut before this returns may leave the catalog on some of them; opening those works and reports the rest
    /// as missing or brings them up to date.
    ///
    /// # Errors
    /// No disks, names that clash, cell disks of different cells, or a device that fails: a new cell starts whole.
    pub async fn create(
        cell_name: &str,
        disks: Vec<Arc<CellDisk>>,
        created: WallTime,
        instance_stamp: Stamp,
        term_stamp: Stamp,
    ) -> Result<Arc<CellStore>, StoreError> {
        let Some(first) = disks.first() else { return Err(StoreError::NoDevice { unusable: Vec::new() }) };
        let mut catalog = Catalog::new(first.cell_id(), cell_name, created, instance_stamp);
        let mut by_id = BTreeMap::new();
        for (index, disk) in disks.iter().enumerate() {
            insert(&mut by_id, catalog.cell_id, index, disk.clone())?;
            catalog.members.insert(disk.id(), member_of(disk));
        }
        catalog.lineage = elect::next_term(&catalog.lineage, 0, term_stamp);
        catalog.lineage.history.clear();
        catalog.lineage.changed = catalog.lineage.now;
        catalog.validate()?;
        let catalog = Arc::new(catalog);
        let (_, failed) = write_replicas(&disks, &catalog, |_| pending()).await;
        if !failed.is_empty() {
            return Err(StoreError::Lost { failed });
        }
        let by_id = by_id.into_iter().map(|(id, (_, disk))| (id, disk)).collect();
        Ok(Arc::new(CellStore::new(catalog, by_id, BTreeMap::new())))
    }

    /// Open the devices of a cell, in any order, found by what is on them. The catalog with the highest (term, sequence)
    /// is in force, unless every disk has gone its own way from it: flash alone never outvotes the disks; the term is raised durably on all devices in service before this returns.
    ///
    /// Devices that cannot be used, and members that are not there, do not stop it: see [`StoreReport`]. Neither does flash
    /// that is there twice: both are left out, since it may be missing but a wrong one must not be believed.
    ///
    /// # Errors
    /// None can be opened; two are the same disk; one belongs to another cell; no catalog; no durable device takes the
    /// new term.
    pub async fn open(devices: Vec<Device>, options: OpenOptions) -> Result<Opened, StoreError> {
        let mut report = StoreReport::default();
        let mut by_id = BTreeMap::new();
        let mut usable = Vec::new();
        let mut cell_id = options.cell_id;
        let opened = join_all(devices.into_iter().map(|device| CellDisk::open_broken(device, options.sabotage))).await;
        for (index, opened) in opened.into_iter().enumerate() {
            match opened {
                Ok(disk) => {
                    if disk.damaged_count() > 0 {
                        report.mended.push((disk.name(), disk.damaged_count()));
                    }
                    usable.push((index, disk));
                }
                Err(error) => report.unusable.push((index, error)),
            }
        }
        for (index, disk) in leave_out_twins(usable, &mut report) {
            insert(&mut by_id, *cell_id.get_or_insert(disk.cell_id()), index, disk)?;
        }
        if by_id.is_empty() {
            return Err(StoreError::NoDevice { unusable: report.unusable });
        }
        let replica = |(id, (_, disk)): (&DeviceId, &(usize, Arc<CellDisk>))| Some((*id, disk.catalog_replica()?));
        let copies: Vec<(DeviceId, Arc<Catalog>)> = by_id.iter().filter_map(replica).collect();
        let Some(newest) = elect::winner(&copies) else { return Err(StoreError::NoCatalog) };
        let on_disks: Vec<(DeviceId, Arc<Catalog>)> = copies
            .iter()
            .filter(|(id, _)| by_id.get(id).is_some_and(|(_, d)| d.role() == Role::Disk))
            .cloned()
            .collect();
        let winner = elect::not_by_flash_alone(newest, &on_disks);
        let term_max = copies.iter().map(|(_, catalog)| catalog.lineage.now.term).max().unwrap_or_default();

        let mut next = (*winner).clone();
        next.lineage = elect::next_term(&winner.lineage, term_max, options.term_stamp);
        let mut disks = BTreeMap::new();
        for (id, (index, disk)) in by_id {
            let known = winner.members.get(&id).map_or(0, |member| member.au_count);
            let apart =
                disk.catalog_replica().is_some_and(|replica| elect::kinship(&replica, &winner) == Kinship::Diverged);
            if known > disk.label().au_count() && known <= disk.au_count_possible() && !apart {
                // It has grown, and was put back to a time before: its label is told again. Refused below when that fails.
                let _ = disk.adopt_size().await;
            }
            if admit(&mut report, &winner, &disk, index, options.accept_diverged) {
                let member = next.members.entry(id).or_insert_with(|| member_of(&disk));
                // What only the device can know.
                member.class = disk.label().class;
                member.au_count = member.au_count.max(disk.label().au_count());
                disks.insert(id, disk);
            }
        }
        disks.values().for_each(|disk| note_redo_behind(&mut next, disk));
        let missing = winner.members.iter().filter(|(id, _)| !disks.contains_key(id));
        report.missing = missing.map(|(_, member)| member.name.clone()).collect();
        if disks.is_empty() {
            return Err(StoreError::NoDevice { unusable: report.unusable });
        }
        if !next.same_content(&winner) {
            next.lineage.changed = next.lineage.now;
        }
        next.validate()?;

        let store = CellStore::new(winner, disks, BTreeMap::new());
        lock(&store.state).sequence_used = next.lineage.now.sequence;
        match store.replicate(Arc::new(next)).await {
            Ok(failed) => report.failed = failed,
            Err(failed) => return Err(StoreError::Lost { failed }),
        }
        store.finish_renames(&mut report).await;
        Ok(Opened { store: Arc::new(store), report })
    }

    /// A rename changes the catalog, then the label; here what a crash left undone is done.
    async fn finish_renames(&self, report: &mut StoreReport) {
        let catalog = self.catalog();
        for disk in self.in_service() {
            let Some(member) = catalog.members.get(&disk.id()) else { continue };
            if disk.label().name == member.name {
                continue;
            }
            if let Err(error) = disk.update_label(|label| label.name.clone_from(&member.name)).await {
                self.take_out(disk.id(), &error.to_string());
                report.failed.push(ReplicaFailure { device_id: disk.id(), name: member.name.clone(), error });
            }
        }
    }

    /// Add a freshly formatted cell disk of this cell, or one that was left out as unlisted.
    ///
    /// # Errors
    /// Another cell's disk, a name that is taken, too many members, or no durable device took the change.
    pub async fn add(&self, disk: Arc<CellDisk>) -> Result<Changed<()>, GridDiskError> {
        if disk.cell_id() != self.cell_id {
            let error = crate::catalog::CatalogError::Device { what: "cell", device_id: disk.id() };
            return Err(GridDiskError::Invalid(error));
        }
        // In the set before the change, so that its own replica is written with all others.
        let known = lock(&self.state).disks.insert(disk.id(), disk.clone()).is_some();
        let member = member_of(&disk);
        let changed = self
            .change(|catalog| match catalog.members.entry(disk.id()) {
                Entry::Occupied(_) => Err(GridDiskError::Exists { what: "the cell disk" }),
                Entry::Vacant(entry) => {
                    entry.insert(member);
                    Ok(())
                }
            })
            .await;
        if let Err(ChangeError::Refused(_) | ChangeError::Invalid(_)) = &changed
            && !known
        {
            lock(&self.state).disks.remove(&disk.id());
        }
        Ok(changed?)
    }

    /// Take a device, present or missing, out of the cell for good. Nothing may lie on it. Its label stays until
    /// [`CellDisk::erase`].
    ///
    /// # Errors
    /// No such member, or grid disks or flash regions lie on it.
    pub async fn remove(&self, device_id: DeviceId) -> Result<Changed<Member>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let member = catalog.members.remove(&device_id).ok_or(GridDiskError::NoSuch)?;
                // Validation refuses what still refers to it.
                Ok::<_, GridDiskError>(member)
            })
            .await?;
        lock(&self.state).disks.remove(&device_id);
        Ok(changed)
    }

    /// Use the size a device has grown to, in its label and in the catalog; the allocation units it has now.
    ///
    /// # Errors
    /// No such member, the device is missing or fails, or no durable device took the change.
    pub async fn adopt_size(&self, device_id: DeviceId) -> Result<Changed<u32>, GridDiskError> {
        let disk = self.disk_in_service(device_id)?;
        disk.adopt_size().await.map_err(|error| GridDiskError::Label { name: disk.name(), error })?;
        let au_count = disk.label().au_count();
        let changed = self
            .change(|catalog| {
                let member = catalog.members.get_mut(&device_id).ok_or(GridDiskError::NoSuch)?;
                member.au_count = member.au_count.max(au_count);
                Ok::<_, GridDiskError>(member.au_count)
            })
            .await?;
        Ok(changed)
    }

    /// Rename a cell disk, in the catalog and in its label.
    ///
    /// # Errors
    /// No such member, a name that is taken or not valid, or the device is missing.
    pub async fn rename_cell_disk(&self, device_id: DeviceId, name: &str) -> Result<Changed<()>, GridDiskError> {
        let Some(disk) = self.cell_disk(device_id) else {
            return Err(GridDiskError::NotPresent { name: device_id.to_string() });
        };
        let changed = self
            .change(|catalog| {
                let member = catalog.members.get_mut(&device_id).ok_or(GridDiskError::NoSuch)?;
                name.clone_into(&mut member.name);
                Ok::<_, GridDiskError>(())
            })
            .await?;
        match disk.update_label(|label| name.clone_into(&mut label.name)).await {
            Ok(()) => Ok(changed),
            Err(error) => Err(GridDiskError::Label { name: name.to_owned(), error }),
        }
    }
}

/// A disk whose copy of the catalog is an old one may be as old itself, and wait for redo of grid disks that the flash log takes none of
/// any more: in one change with its copy's, or the next open would not know.
fn note_redo_behind(next: &mut Catalog, disk: &CellDisk) {
    if disk.role() != Role::Disk || !disk.label().has_redo_pending() {
        return;
    }
    let Some(then) = disk.catalog_replica() else { return };
    let logged = then.grid_disks.values().filter(|was| was.cell_disk == disk.id() && was.is_logged());
    for was in logged {
        if let Some(now) = next.grid_disks.get_mut(&was.id).filter(|now| now.cell_disk == disk.id()) {
            now.redo_behind |= !now.is_logged();
        }
    }
}

type ById = BTreeMap<DeviceId, (usize, Arc<CellDisk>)>;

/// Leave out flash devices of which there are two or more: an image of one was written over another.
fn leave_out_twins(opened: Vec<(usize, Arc<CellDisk>)>, report: &mut StoreReport) -> Vec<(usize, Arc<CellDisk>)> {
    let mut times: BTreeMap<DeviceId, usize> = BTreeMap::new();
    for (_, disk) in &opened {
        *times.entry(disk.id()).or_default() += 1;
    }
    let is_twin = |disk: &CellDisk| disk.role() == Role::Flash && times[&disk.id()] > 1;
    let (twins, rest): (Vec<_>, Vec<_>) = opened.into_iter().partition(|(_, disk)| is_twin(disk));
    report.unusable.extend(twins.into_iter().map(|(index, disk)| (index, CellDiskError::Twin { name: disk.name() })));
    rest
}

fn insert(by_id: &mut ById, expected: CellId, index: usize, disk: Arc<CellDisk>) -> Result<(), StoreError> {
    if disk.cell_id() != expected {
        return Err(StoreError::ForeignCell { index, name: disk.name(), found: disk.cell_id(), expected });
    }
    match by_id.entry(disk.id()) {
        Entry::Occupied(first) => Err(StoreError::Duplicate { first: first.get().0, second: index, name: disk.name() }),
        Entry::Vacant(entry) => {
            entry.insert((index, disk));
            Ok(())
        }
    }
}

/// Whether a device of the cell takes part, and why not.
fn admit(report: &mut StoreReport, winner: &Catalog, disk: &CellDisk, index: usize, accept_diverged: bool) -> bool {
    let label = disk.label();
    let Some(member) = winner.members.get(&disk.id()) else {
        report.unlisted.push(label.name.clone());
        return false;
    };
    if member.role != label.role || member.au_bytes != label.au_bytes || member.au_count > label.au_count() {
        let why = "its label does not fit the catalog's entry for it".to_owned();
        report.unusable.push((index, CellDiskError::Damaged { why }));
        return false;
    }
    let kinship = disk.catalog_replica().map_or(Kinship::Stale, |replica| elect::kinship(&replica, winner));
    match kinship {
        Kinship::Current => {}
        Kinship::Stale => report.stale.push(label.name.clone()),
        Kinship::Superseded => report.superseded.push(label.name.clone()),
        Kinship::Diverged => {
            report.diverged.push(label.name.clone());
            return accept_diverged;
        }
    }
    true
}
