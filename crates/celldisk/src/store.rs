//! The devices of a cell as one store: finds them by identity, decides which catalog is in force, changes it on all.
//!
//! Never serves before the new term is durable on every device that is in service; never lets a device that missed a
//! change back in before it is opened anew; never holds its lock across an await.

mod adopted;
mod elect;
mod error;
mod flash;
mod grid_disks;
mod journal;
mod open;
mod stamps;

pub use error::{ChangeError, GridDiskError, ReplicaFailure, StoreError};
pub use flash::{FlashCacheSpace, FlashCacheSpec, FlashLogSpec};
pub use grid_disks::{GridDiskSpec, grid_disk_bytes};
pub use journal::JournalSpace;
pub use open::{OpenOptions, Opened, StoreReport};
pub use stamps::{FlashPatience, Renewal};

use crate::catalog::{Catalog, CatalogError, Extent};
use crate::disk::CellDisk;
use crate::error::CellDiskError;
use crate::ids::{CellId, DeviceId, GridDiskId, Stamp};
use crate::label::Role;
use crate::slice::Slice;
use device::Class;
use device::sync::{Notify, Semaphore, lock};
use futures_util::future::{Either, join_all, select};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};

/// A value and what it cost: the change is in force and durable on every device still in service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "devices that failed are out of service until they are opened anew"]
pub struct Changed<T> {
    /// What the change returned.
    pub value: T,
    /// Devices that did not take it: out of service from now on.
    pub failed: Vec<ReplicaFailure>,
}

/// A device of the cell as the store sees it.
#[derive(Clone, Debug)]
pub enum MemberStatus {
    /// Open; takes all changes.
    InService(Arc<CellDisk>),
    /// Open, but a change did not reach it: it takes no more until it is opened anew. Its data may still be served.
    OutOfService(Arc<CellDisk>, String),
    /// Not found at open.
    Missing,
}

/// What a slice is made of. Regions carry the identity of their cache or log: a new one is another slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SliceKey {
    GridDisk(GridDiskId),
    Journal(GridDiskId),
    FlashCache(Stamp, DeviceId),
    FlashLog(Stamp, DeviceId),
}

/// The open devices of one cell and its catalog.
pub struct CellStore {
    cell_id: CellId,
    state: Mutex<State>,
    /// One change at a time, first come, first served.
    changing: Semaphore,
    /// Devices going out of service.
    taken_out: Notify,
}

struct State {
    catalog: Arc<Catalog>,
    /// Highest sequence any write of this term has carried.
    sequence_used: u64,
    disks: BTreeMap<DeviceId, Arc<CellDisk>>,
    out: BTreeMap<DeviceId, String>,
    /// Space that is being zeroed for creations and growth under way; in RAM only, so a crash frees it.
    reserved: Vec<(DeviceId, Extent)>,
    slices: BTreeMap<SliceKey, Weak<Slice>>,
}

impl CellStore {
    fn new(catalog: Arc<Catalog>, disks: BTreeMap<DeviceId, Arc<CellDisk>>, out: BTreeMap<DeviceId, String>) -> Self {
        let (reserved, slices) = (Vec::new(), BTreeMap::new());
        let (cell_id, sequence_used) = (catalog.cell_id, catalog.lineage.now.sequence);
        let state = Mutex::new(State { catalog, sequence_used, disks, out, reserved, slices });
        CellStore { cell_id, state, changing: Semaphore::new(1), taken_out: Notify::new() }
    }

    /// The cell.
    #[must_use]
    pub fn cell_id(&self) -> CellId {
        self.cell_id
    }

    /// The catalog in force.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        lock(&self.state).catalog.clone()
    }

    /// Every device the catalog names, with its status.
    #[must_use]
    pub fn members(&self) -> BTreeMap<DeviceId, MemberStatus> {
        let state = lock(&self.state);
        let status = |id: &DeviceId| match (state.disks.get(id), state.out.get(id)) {
            (Some(disk), None) => MemberStatus::InService(disk.clone()),
            (Some(disk), Some(why)) => MemberStatus::OutOfService(disk.clone(), why.clone()),
            (None, _) => MemberStatus::Missing,
        };
        state.catalog.members.keys().map(|id| (*id, status(id))).collect()
    }

    /// The cell disk of that identity, when it is present (in service or not).
    #[must_use]
    pub fn cell_disk(&self, device_id: DeviceId) -> Option<Arc<CellDisk>> {
        lock(&self.state).disks.get(&device_id).cloned()
    }

    /// All cell disks present, in the order of their identity.
    #[must_use]
    pub fn cell_disks(&self) -> Vec<Arc<CellDisk>> {
        lock(&self.state).disks.values().cloned().collect()
    }

    fn in_service(&self) -> Vec<Arc<CellDisk>> {
        let state = lock(&self.state);
        state.disks.values().filter(|disk| !state.out.contains_key(&disk.id())).cloned().collect()
    }

    /// Take a device out of service: it gets no more changes until it is opened anew, and a change that waits for it
    /// waits no longer (I7). For the layer that notices that it hangs.
    pub fn take_out(&self, device_id: DeviceId, why: &str) {
        lock(&self.state).out.entry(device_id).or_insert_with(|| why.to_owned());
        self.taken_out.notify_all();
    }

    /// Ready once the device is out of service.
    async fn out_of_service(&self, device_id: DeviceId) {
        loop {
            let ticket = self.taken_out.ticket();
            if lock(&self.state).out.contains_key(&device_id) {
                return;
            }
            self.taken_out.wait(ticket).await;
        }
    }

    /// Change the catalog; durable on every device in service, and in force, when this returns. Changes run one after the
    /// other in the order of the calls. One that changes nothing costs no write.
    ///
    /// `change` runs under no lock; what it does to `lineage` and `cell_id` is ignored.
    ///
    /// A device whose write fails goes out of service: it misses this and all later changes until it is opened anew, when
    /// the higher term of the others overrules its copy. The change stands when a durable disk has it (a durable flash
    /// device, or any, where nothing better is present): the loss of flash takes nothing back.
    ///
    /// # Errors
    /// [`ChangeError::Refused`] and [`ChangeError::Invalid`]: nothing happened. [`ChangeError::Lost`]: no such device is
    /// known to have it; the catalog in memory stays what it was, after a restart it may be the old or the new one.
    pub async fn change<T, E>(
        &self,
        change: impl FnOnce(&mut Catalog) -> Result<T, E>,
    ) -> Result<Changed<T>, ChangeError<E>> {
        let _turn = self.changing.acquire(1).await;
        let base = self.catalog();
        let mut next = (*base).clone();
        let value = change(&mut next).map_err(ChangeError::Refused)?;
        next.cell_id = base.cell_id;
        next.lineage = base.lineage.clone();
        for disk in next.grid_disks.values_mut() {
            disk.given_up &= !disk.may_be_dirty();
        }
        if next.same_content(&base) {
            return Ok(Changed { value, failed: Vec::new() });
        }
        if next.next_grid_disk_id < base.next_grid_disk_id {
            return Err(ChangeError::Invalid(CatalogError::Value { what: "next grid disk id" }));
        }
        {
            let mut state = lock(&self.state);
            state.sequence_used += 1;
            next.lineage.now.sequence = state.sequence_used;
        }
        next.lineage.changed = next.lineage.now;
        next.validate_after(&base)?;
        let failed = self.replicate(Arc::new(next)).await.map_err(|failed| ChangeError::Lost { failed })?;
        Ok(Changed { value, failed })
    }

    /// Write `next` to every device in service and put it in force. The caller holds the turn.
    ///
    /// Flash may die (I3) and ephemeral devices forget (I1), so one of the best devices that are present, in service or
    /// not, must have it. They come first: what none of them took must not be found on another after a restart.
    async fn replicate(&self, next: Arc<Catalog>) -> Result<Vec<ReplicaFailure>, Vec<ReplicaFailure>> {
        let trust = |disk: &Arc<CellDisk>| (disk.label().class == Class::Durable, disk.role() == Role::Disk);
        let best = lock(&self.state).disks.values().map(trust).max();
        let (first, others): (Vec<_>, Vec<_>) =
            self.in_service().into_iter().partition(|disk| Some(trust(disk)) == best);
        let (durable, mut failed) = self.write_to(&first, &next).await;
        if durable == 0 {
            return Err(failed);
        }
        failed.extend(self.write_to(&others, &next).await.1);
        self.publish(next);
        Ok(failed)
    }

    /// How many of the devices took a catalog, and which failed: those go out of service.
    async fn write_to(&self, disks: &[Arc<CellDisk>], next: &Arc<Catalog>) -> (usize, Vec<ReplicaFailure>) {
        let (durable, failed) = write_replicas(disks, next, |id| self.out_of_service(id)).await;
        let mut state = lock(&self.state);
        for failure in &failed {
            state.out.entry(failure.device_id).or_insert_with(|| failure.error.to_string());
        }
        (durable, failed)
    }

    /// Put a durable catalog in force: slices follow it.
    fn publish(&self, next: Arc<Catalog>) {
        let slices: Vec<(SliceKey, Arc<Slice>)> = {
            let mut state = lock(&self.state);
            state.catalog = next.clone();
            state.slices.retain(|_, slice| slice.strong_count() > 0);
            state.slices.iter().filter_map(|(key, slice)| Some((*key, slice.upgrade()?))).collect()
        };
        for (key, slice) in slices {
            match space(&next, key) {
                Some(space) => slice.remap(space.au_bytes, &space.extents, space.size_bytes),
                None => slice.close(),
            }
        }
    }

    /// The device of a grid disk. All callers share one slice, which follows the catalog: it grows and shrinks with the
    /// grid disk, and fails every request with `Gone` once that is dropped.
    ///
    /// # Errors
    /// No such grid disk, or its cell disk is missing.
    pub fn slice(&self, id: GridDiskId) -> Result<Arc<Slice>, GridDiskError> {
        self.slice_of(SliceKey::GridDisk(id))
    }

    /// The journal of a grid disk, as a device.
    ///
    /// # Errors
    /// No such grid disk, it has none, or its cell disk is missing.
    pub fn journal_slice(&self, id: GridDiskId) -> Result<Arc<Slice>, GridDiskError> {
        self.slice_of(SliceKey::Journal(id))
    }

    /// The flash cache's region on one flash device, as a device.
    ///
    /// # Errors
    /// There is none, or its device is missing.
    pub fn flash_cache_slice(&self, device_id: DeviceId) -> Result<Arc<Slice>, GridDiskError> {
        let id = self.catalog().flash_cache.as_ref().map_or(Stamp::NONE, |cache| cache.id);
        self.slice_of(SliceKey::FlashCache(id, device_id))
    }

    /// The flash log's region on one flash device, as a device.
    ///
    /// # Errors
    /// There is none, or its device is missing.
    pub fn flash_log_slice(&self, device_id: DeviceId) -> Result<Arc<Slice>, GridDiskError> {
        let id = self.catalog().flash_log.as_ref().map_or(Stamp::NONE, |log| log.id);
        self.slice_of(SliceKey::FlashLog(id, device_id))
    }

    fn slice_of(&self, key: SliceKey) -> Result<Arc<Slice>, GridDiskError> {
        let mut state = lock(&self.state);
        let Some(space) = space(&state.catalog, key) else { return Err(GridDiskError::NoSuch) };
        // A journal comes back with the identity of the one that was there before.
        if let Some(slice) = state.slices.get(&key).and_then(Weak::upgrade).filter(|slice| !slice.is_closed()) {
            return Ok(slice);
        }
        let Some(disk) = state.disks.get(&space.device_id) else {
            let name = state.catalog.members.get(&space.device_id).map_or_else(String::new, |m| m.name.clone());
            return Err(GridDiskError::NotPresent { name });
        };
        let Space { au_bytes, extents, size_bytes, .. } = &space;
        let slice = Slice::new(disk.device().clone(), &disk.label(), *au_bytes, extents, *size_bytes);
        let slice = Arc::new(slice);
        state.slices.insert(key, Arc::downgrade(&slice));
        Ok(slice)
    }
}

impl std::fmt::Debug for CellStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CellStore({})", self.cell_id)
    }
}

/// Where a slice lies by a catalog.
struct Space {
    device_id: DeviceId,
    au_bytes: u64,
    extents: Vec<Extent>,
    size_bytes: u64,
}

fn space(catalog: &Catalog, key: SliceKey) -> Option<Space> {
    let (device_id, extents, size_bytes) = match key {
        SliceKey::GridDisk(id) => {
            let g = catalog.grid_disks.get(&id)?;
            (g.cell_disk, &g.extents, g.size_bytes)
        }
        SliceKey::Journal(id) => {
            let g = catalog.grid_disks.get(&id).filter(|g| !g.journal.is_empty())?;
            let au_bytes = catalog.members.get(&g.cell_disk)?.au_bytes;
            (g.cell_disk, &g.journal, g.journal.iter().map(|extent| extent.len_bytes(au_bytes)).sum())
        }
        SliceKey::FlashCache(id, device_id) => {
            let cache = catalog.flash_cache.as_ref().filter(|cache| cache.id == id)?;
            (device_id, cache.regions.get(&device_id)?, cache.size_per_device_bytes)
        }
        SliceKey::FlashLog(id, device_id) => {
            let log = catalog.flash_log.as_ref().filter(|log| log.id == id)?;
            (device_id, log.regions.get(&device_id)?, log.size_per_device_bytes)
        }
    };
    let au_bytes = catalog.members.get(&device_id)?.au_bytes;
    Some(Space { device_id, au_bytes, extents: extents.clone(), size_bytes })
}

/// Write a replica to every disk at once: how many took it, which did not. A disk is waited for until `given_up` is ready; it
/// is latched then, because its write may still land.
async fn write_replicas<F: Future<Output = ()>>(
    disks: &[Arc<CellDisk>],
    catalog: &Arc<Catalog>,
    given_up: impl Fn(DeviceId) -> F,
) -> (usize, Vec<ReplicaFailure>) {
    let payload = catalog.payload();
    let written = join_all(disks.iter().map(|disk| {
        let (write, given_up) = (disk.write_catalog(catalog, &payload), given_up(disk.id()));
        async move {
            match select(pin!(write), pin!(given_up)).await {
                Either::Left((result, _)) => result,
                Either::Right(((), _)) => Err(CellDiskError::Latched {
                    device_id: disk.id(),
                    why: "it was taken out of service while a catalog write was under way".to_owned(),
                }),
            }
        }
    }))
    .await;
    let mut durable = 0;
    let mut failed = Vec::new();
    for (disk, result) in disks.iter().zip(written) {
        match result {
            Ok(()) => durable += 1,
            Err(error) => failed.push(ReplicaFailure::of(disk, error)),
        }
    }
    (durable, failed)
}
