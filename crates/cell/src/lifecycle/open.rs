//! Bringing a cell up and down: which flash content may be believed, new stamps, recovery, clean stop.
//!
//! Order of an open: the catalog's new term; journals and redo put in place; expulsions and void content durable; new open
//! stamps; then recovery of the flash; then grid disks are served, see [`crate::lifecycle::early`] for those that need not wait. Nothing is served
//! before what must be durable is.

mod pairing;

use crate::disk::error::CellError;
use crate::disk::grid_disk::GridDisk;
use crate::disk::loss::CellDevice;
use crate::lifecycle::adopted;
use crate::lifecycle::cell::{CacheAtWork, Cell, CellConfig, State, cached_disk};
use crate::lifecycle::cell_disks::adopt_sizes;
use crate::lifecycle::early::Opening;
use crate::lifecycle::journals::{RecoveredJournals, recover_journals};
use crate::lifecycle::replay::{replay_redo, strange_redo_pairs};
use celldisk::{
    CellDisk, CellId, CellStore, Checkpoint, DeviceId, FormatOptions, GridDiskId, OpenOptions, Renewal, Role, Stamp,
    StoreReport,
};
use device::sync::lock;
use device::{Class, Device, WallTime, World};
use flashcache::format::Owner;
use flashcache::{CachedDisk, CheckpointPlace, Evidence, FlashCache, MemberDevice, MemberError, Recovered, Sabotage};
use futures_util::future::{Either, select};
use pairing::{expel_missing, make_void, renew, strange_dirty_pairs, void_without_dirty, write_back_disks};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use pairing::{expel_from, offline_note};

/// The unit of the index and of range locks for this life of the cell: that of the flash cache there is, else the finest with
/// which a cache on all flash keeps within its memory.
fn block_bytes(store: &CellStore, config: &CellConfig, report: &mut OpenReport) -> u32 {
    let catalog = store.catalog();
    let wanted = config.cache.block_bytes;
    if let Some(cache) = &catalog.flash_cache {
        return cache.block_bytes;
    }
    let Some(limit_bytes) = config.cache.memory_bytes_max else { return wanted };
    let flash = store.cell_disks().into_iter().filter(|disk| disk.role() == Role::Flash);
    let areas: Vec<u64> = flash.map(|disk| catalog.free_bytes(disk.id())).collect();
    // Too little for all of the flash may do for a part of it, with the coarsest blocks.
    let block = flashcache::block_within(&areas, config.cache.segment_bytes, wanted, limit_bytes)
        .unwrap_or_else(|short| short.block_bytes);
    if block != wanted {
        report.notes.push(format!(
            "a flash cache on all flash needs more than {limit_bytes} bytes of memory with blocks of {wanted} bytes: \
             one that is created now has blocks of {block} bytes"
        ));
    }
    block
}

/// A device to become a cell disk of a new cell.
pub struct NewDevice {
    /// The device.
    pub device: CellDevice,
    /// Cell disk name.
    pub name: String,
    /// Disk or flash.
    pub role: Role,
    /// Durability class; `None`: what the device says.
    pub class: Option<Class>,
    /// True page; `None`: what the device says.
    pub page_bytes: Option<u32>,
    /// Allocation unit; `None`: by size.
    pub au_bytes: Option<u64>,
    /// It is a volume of so many bytes to be adopted, with its metadata beside it: nothing of the volume is written.
    pub adopted_bytes: Option<u64>,
}

impl NewDevice {
    /// A device of which nothing is said but what it is.
    #[must_use]
    pub fn new(device: impl Into<CellDevice>, name: impl Into<String>, role: Role) -> NewDevice {
        NewDevice {
            device: device.into(),
            name: name.into(),
            role,
            class: None,
            page_bytes: None,
            au_bytes: None,
            adopted_bytes: None,
        }
    }

    /// Make a cell disk of it; `device` is its device as the cell will use it.
    pub(crate) async fn format(
        self,
        device: Device,
        cell_id: CellId,
        created: WallTime,
        force: bool,
        mut random: impl FnMut() -> u128,
    ) -> Result<Arc<CellDisk>, CellError> {
        let options = FormatOptions {
            cell_id,
            device_id: DeviceId(random()),
            role: self.role,
            class: self.class,
            name: self.name.clone(),
            au_bytes: self.au_bytes,
            page_bytes: self.page_bytes,
            created,
            stamp: Stamp(random()),
            force,
            adopted_bytes: self.adopted_bytes,
        };
        CellDisk::format(device, options).await.map_err(|error| CellError::Format { name: self.name, error })
    }
}

/// What was noticed when a cell was opened.
#[derive(Debug, Default)]
pub struct OpenReport {
    /// By the store.
    pub store: StoreReport,
    /// The last stop was not clean.
    pub unclean: bool,
    /// Lines for the log: flash that was expelled, void or recovered.
    pub notes: Vec<String>,
    /// What recovery found on each flash device of the cache that could be read.
    pub recovered: Vec<(DeviceId, Recovered)>,
}

impl Cell {
    /// Make a new cell of these devices, with an empty catalog. Open it afterwards.
    ///
    /// # Errors
    /// A device that carries anything unless `force`, or an I/O error.
    pub async fn create(
        name: &str,
        devices: Vec<NewDevice>,
        force: bool,
        world: &World,
    ) -> Result<Arc<CellStore>, CellError> {
        let mut prng = world.prng.fork("identities");
        let mut random = || prng.next_u128().max(1);
        let cell_id = CellId(random());
        let created = world.clock.wall();
        let mut disks = Vec::new();
        for new in devices {
            let device = new.device.device.clone();
            disks.push(new.format(device, cell_id, created, force, &mut random).await?);
        }
        Ok(CellStore::create(name, disks, created, Stamp(random()), Stamp(random())).await?)
    }

    /// Open the devices of a cell, found by what is on them, recover, and serve.
    ///
    /// A flash device that is missing, blank, swapped or failing does not stop it: the cell goes on without it, which is
    /// durable in the labels before anything is served (I3). A grid disk whose cell disk is missing is not served.
    ///
    /// # Errors
    /// No usable catalog, or disks whose labels cannot be written.
    pub async fn open(
        devices: Vec<impl Into<CellDevice>>,
        config: CellConfig,
        world: World,
    ) -> Result<(Arc<Cell>, OpenReport), CellError> {
        let mut prng = world.prng.fork("open stamps");
        let mut random = || prng.next_u128().max(1);
        let (devices, listeners): (Vec<Device>, Vec<_>) =
            devices.into_iter().map(|device| Cell::gate(device.into(), &world, config.sabotage)).unzip();
        let gates = devices.clone();
        let options = OpenOptions {
            cell_id: None,
            term_stamp: Stamp(random()),
            accept_diverged: config.accept_diverged,
            sabotage: config.disk_sabotage,
        };
        let opened = CellStore::open(devices, options).await?;
        let (store, mut report) = (opened.store, OpenReport { store: opened.report, ..OpenReport::default() });
        report.notes.extend(adopt_sizes(&store).await);
        report.unclean = store.cell_disks().iter().any(|d| d.role() == Role::Disk && !d.label().clean_stop);

        let volumes = adopted::look(&store).await;
        let believed = adopted::believed(&store, &volumes, config.believe_cache).await?;
        let used = adopted::used_in_write_back(&store, &volumes, believed);
        let RecoveredJournals { journals, failed: unapplied, left: mut used } =
            recover_journals(&store, &volumes, &used, believed, &mut report).await;
        let log = replay_redo(&store, config.redo.sabotage, &mut report).await?;
        let (expelled, waiting) = expel_missing(&store, &mut report).await?;
        let strange = strange_dirty_pairs(&store);
        let unusable = make_void(&store, &expelled, waiting, &mut report).await?;
        let (used_without_us, uncompared) =
            adopted::void_what_may_differ(&store, &volumes, &mut used, believed, &mut report).await?;
        // Of what is left at the clean stop: the renewal takes it away, so nobody believes it after anything has changed.
        let checkpoints = checkpoints(&store, config.sabotage);
        // A disk that waits for redo which was not left by it must not be paired with that flash as if it had been.
        let apart: BTreeSet<(DeviceId, DeviceId)> = strange.union(&strange_redo_pairs(&store)).copied().collect();
        let flash =
            renew(&store, &log.candidates(), &unusable, &apart, &mut world.prng.fork("renewal"), &mut report).await?;
        if config.sabotage == Some(Sabotage::StaleCheckpoint) {
            leave_checkpoints(&store, &checkpoints).await;
        }
        let mut offline = void_without_dirty(&store, &flash, &strange, &journals, &mut report).await?;
        // Of these flash keeps what it has, until their disks can be given it.
        let disk_awaited: BTreeSet<GridDiskId> =
            unapplied.keys().chain(used.keys()).filter(|id| !offline.contains_key(id)).copied().collect();
        let used_without_us_ids = used.keys().copied().collect();
        offline.extend(unapplied);
        offline.extend(used);
        adopted::forget_fingerprints(&store, &offline, believed).await?;
        if report.unclean {
            let stamp = Stamp(random());
            let _ = store.alter_cell(|catalog| catalog.instance_stamp = stamp).await?;
        }

        let block_bytes = block_bytes(&store, &config, &mut report);
        let state = State {
            instance_stamp: store.catalog().instance_stamp.0,
            offline,
            disk_awaited,
            used_without_us: used_without_us_ids,
            uncompared,
            journals,
            ..State::default()
        };
        let mut cell = Cell::assemble(world, config, Some(store.clone()), state);
        cell.block_bytes = block_bytes;
        for disk in store.cell_disks() {
            let same = |gate: &&Device| std::ptr::addr_eq(Arc::as_ptr(gate), Arc::as_ptr(disk.device()));
            if let Some(at) = gates.iter().position(|gate| same(&gate)) {
                lock(&cell.losses).insert(disk.id(), listeners[at].clone());
            }
        }
        let cell = Arc::new(cell);
        cell.begin_flash_log(log, &flash, &mut report).await;
        let opening = cell.begin_flash_cache(&flash, &checkpoints, &mut report).await?;
        used_without_us.into_iter().for_each(|what| cell.alert(what));
        if opening.is_none() {
            cell.compare_adopted(&mut report).await;
        }
        cell.load_plan(&mut report);
        for record in store.catalog().grid_disks.values() {
            if let Err(error) = cell.serve(record) {
                report.notes.push(format!("grid disk {} is not served: {error}", record.name));
            }
        }
        if let Some(opening) = opening {
            // Before anybody else can ask for it.
            let turn = cell.changing.acquire(1).await;
            cell.world.spawn.spawn(Box::pin(cell.clone().run_opening(turn, opening)));
        }
        let alarm_task = cell.clone();
        cell.world.spawn.spawn(Box::pin(async move { alarm_task.run_instance_stamp().await }));
        let stamps_task = cell.clone();
        cell.world.spawn.spawn(Box::pin(async move { stamps_task.run_stamps().await }));
        cell.world.spawn.spawn(Box::pin(cell.feed.clone().run(cell.world.clone(), cell.stop.clone())));
        Ok((cell, report))
    }

    /// Bring up the flash cache of the catalog on the members that are there and were paired.
    pub(crate) async fn open_flash_cache(
        self: &Arc<Self>,
        usable: &BTreeSet<DeviceId>,
        checkpoints: &BTreeMap<DeviceId, Checkpoint>,
        report: &mut OpenReport,
    ) -> Result<(), CellError> {
        let Some(opening) = self.opening_of(usable, checkpoints, report) else { return Ok(()) };
        let (cache, recovered) = opening.work.await?;
        self.take_flash_cache(CacheAtWork { cache, devices: opening.devices.into() }, recovered, report);
        Ok(())
    }

    /// The same at an open. Returned is what is still to be done, if that takes too long for grid disks to wait for it.
    async fn begin_flash_cache(
        self: &Arc<Self>,
        usable: &BTreeSet<DeviceId>,
        checkpoints: &BTreeMap<DeviceId, Checkpoint>,
        report: &mut OpenReport,
    ) -> Result<Option<Opening>, CellError> {
        let Some(wait) = self.config.index_wait else {
            self.open_flash_cache(usable, checkpoints, report).await?;
            return Ok(None);
        };
        let Some(Opening { mut work, devices }) = self.opening_of(usable, checkpoints, report) else { return Ok(None) };
        if let Either::Left((opened, _)) = select(&mut work, self.world.clock.sleep(wait)).await {
            let (cache, recovered) = opened?;
            self.take_flash_cache(CacheAtWork { cache, devices: devices.into() }, recovered, report);
            return Ok(None);
        }
        self.go_early().await?;
        Ok(Some(Opening { work, devices }))
    }

    /// What has to be done to open the flash cache of the catalog on the members that are there and were paired.
    fn opening_of(
        &self,
        usable: &BTreeSet<DeviceId>,
        checkpoints: &BTreeMap<DeviceId, Checkpoint>,
        report: &mut OpenReport,
    ) -> Option<Opening> {
        let catalog = self.store().catalog();
        let record = catalog.flash_cache.as_ref()?;
        let mut members = Vec::new();
        let mut ids = Vec::new();
        for id in record.regions.keys().filter(|id| usable.contains(id)) {
            let (Some(disk), Ok(slice)) = (self.store().cell_disk(*id), self.store().flash_cache_slice(*id)) else {
                continue;
            };
            let owner = Owner { cell_id: catalog.cell_id.0, device_id: id.0, era: disk.label().cache_era };
            let checkpoint = checkpoints.get(id).map(|at| CheckpointPlace { token: at.token, segment: at.segment });
            members.push(MemberDevice {
                device: slice,
                owner,
                life: disk.label().sequence,
                durable: disk.label().class == Class::Durable,
                checkpoint,
            });
            ids.push(*id);
        }
        if members.is_empty() {
            report.notes.push("no flash device of the flash cache is usable: serving from disk alone".to_owned());
            return None;
        }
        let mut config = self.config.cache.clone();
        config.block_bytes = record.block_bytes;
        config.segment_bytes = record.segment_bytes;
        config.sabotage = self.config.sabotage;
        config.mirrored = record.regions.len() > 1;
        let offline: Vec<_> = {
            let state = lock(&self.state);
            let waits_for_flash = state.offline.keys().filter(|id| !state.disk_awaited.contains(id));
            waits_for_flash.chain(state.redo_offline.keys()).copied().collect()
        };
        let here = catalog.grid_disks.values().filter(|record| !offline.contains(&record.id));
        let is_there = |record: &celldisk::GridDisk| self.store().cell_disk(record.cell_disk).is_some();
        let disks: Vec<CachedDisk> = here.map(|record| cached_disk(record, is_there(record))).collect();
        let world = self.world.clone();
        let work = Box::pin(async move { FlashCache::open(config, members, &disks, world).await });
        Some(Opening { work, devices: ids })
    }

    /// The flash cache is open: it is at work from here on, and what was found is told.
    pub(crate) fn take_flash_cache(
        self: &Arc<Self>,
        at_work: CacheAtWork,
        recovered: Vec<Result<Recovered, MemberError>>,
        report: &mut OpenReport,
    ) {
        lock(&self.state).cache = Some(at_work.clone());
        self.resize_quotas();
        for (id, member) in at_work.devices.iter().zip(at_work.cache.members()) {
            let listeners = lock(&self.losses).get(id).cloned();
            if let Some(listeners) = listeners {
                listeners.add_member(member);
            }
        }
        for (index, result) in recovered.into_iter().enumerate() {
            match result {
                Ok(r) => {
                    let evidence = match r.evidence {
                        Evidence::Log => "",
                        Evidence::LogForCheckpoint => "; its checkpoint could not be used",
                        Evidence::Checkpoint => ", by its checkpoint",
                    };
                    report.notes.push(format!(
                        "flash {}: {} entries in {} segments, {} regions to compare with disk{evidence}",
                        at_work.devices[index], r.entries, r.segments, r.unsettled_regions
                    ));
                    if r.rebuilt_headers > 0 {
                        report.notes.push(format!(
                            "flash {}: {} headers of the log were rotten or unreadable and have been made again: nothing is lost",
                            at_work.devices[index], r.rebuilt_headers
                        ));
                    }
                    report.recovered.push((at_work.devices[index], r));
                }
                // Expelled by the task below; until that is durable writes wait.
                Err(error) => {
                    report.notes.push(format!("flash {}: {error}", at_work.devices[index]));
                    let id = at_work.devices[index];
                    let covered = at_work.cache.members().nth(index).is_some_and(|member| member.is_covered());
                    let lost = write_back_disks(self.store(), |disk, flash| !covered && disk.is_some() && flash == id);
                    for record in lost {
                        let why = offline_note(&record.name, &id.to_string());
                        report.notes.push(why.clone());
                        lock(&self.state).offline.insert(record.id, why);
                    }
                }
            }
        }
        self.start_member_work(at_work);
    }

    /// What goes on as long as a cache is at work: failures of its members, what is hot on them.
    pub(crate) fn start_member_work(self: &Arc<Self>, at_work: CacheAtWork) {
        let (cell, hot) = (self.clone(), at_work.clone());
        self.world.spawn.spawn(Box::pin(async move { cell.run_hot(hot).await }));
        let cell = self.clone();
        self.world.spawn.spawn(Box::pin(async move { cell.run_expel(at_work).await }));
    }

    /// Stop clean: everything durable, everything settled, labels say so. The front ends have drained before.
    ///
    /// # Errors
    /// A disk cannot be flushed, or a label not be written: the stop counts as unclean, nothing is lost.
    pub async fn stop(&self) -> Result<(), CellError> {
        let _turn = self.changing.acquire(1).await;
        self.stop.stop();
        self.alarm.notify_all();
        let disks = self.grid_disks();
        for disk in &disks {
            disk.stop();
            disk.drain().await;
            disk.thaw(None);
            drop(disk.end_batches().await);
        }
        let mut clean = true;
        for disk in &disks {
            clean &= self.settle_all(disk).await;
        }
        clean &= self.stop_redo().await;
        if let Some(at_work) = self.cache_at_work() {
            at_work.cache.stop().await;
        }
        let Some(store) = &self.store else { return Ok(()) };
        for disk in store.cell_disks().into_iter().filter(|d| d.role() == Role::Disk) {
            self.settle_dirty_label(disk.id(), true).await;
        }
        if !clean {
            return Err(CellError::Unflushed);
        }
        if let Some(at_work) = self.cache_at_work() {
            let places = at_work.cache.checkpoint().await;
            let by_device = at_work.devices.iter().copied().zip(places);
            let at = |place: CheckpointPlace| Checkpoint { token: place.token, segment: place.segment };
            leave_checkpoints(store, &by_device.filter_map(|(id, place)| Some((id, at(place?)))).collect()).await;
        }
        let uncompared = lock(&self.state).uncompared.clone();
        adopted::leave_fingerprints(store, &uncompared).await;
        let pairs = store.matching_pairs();
        let mut prng = self.world.prng.fork("stop stamps");
        let failed = store.renew_stamps(Renewal::CleanStop, &pairs, &mut prng).await;
        if failed.is_empty() { Ok(()) } else { Err(CellError::Labels(failed)) }
    }

    async fn settle_all(&self, disk: &Arc<GridDisk>) -> bool {
        if disk.flush_all().await.is_err() {
            return false;
        }
        if let Some(binding) = disk.cache() {
            let all: Vec<u64> = binding.cache.epochs();
            disk.settle_before(&binding, &all).await;
        }
        true
    }

    /// A flush has failed somewhere: clients learn by a new stamp that un-flushed data may be gone.
    async fn run_instance_stamp(self: Arc<Self>) {
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let mut prng = self.world.prng.fork("instance stamps");
        loop {
            let ticket = self.alarm.ticket();
            if self.stop.is_stopped() {
                return;
            }
            let mut lost = false;
            for disk in self.grid_disks() {
                let epoch = disk.lost_epoch();
                lost |= seen.insert(disk.id(), epoch).unwrap_or(0) != epoch;
            }
            if lost {
                let stamp = Stamp(prng.next_u128().max(1));
                // In memory first: a client must not see the old stamp because the catalog is slow to take the new one.
                lock(&self.state).instance_stamp = stamp.0;
                self.alert("a disk failed to flush: un-flushed writes may be gone".to_owned());
                let _ = self.store().alter_cell(|catalog| catalog.instance_stamp = stamp).await;
            }
            self.alarm.wait(ticket).await;
        }
    }
}

/// The checkpoints that flash devices were left with at a clean stop.
fn checkpoints(store: &Arc<CellStore>, sabotage: Option<Sabotage>) -> BTreeMap<DeviceId, Checkpoint> {
    let labels = store.cell_disks().into_iter().map(|disk| (disk.id(), disk.label()));
    let clean = labels.filter(|(_, label)| label.clean_stop || sabotage == Some(Sabotage::StaleCheckpoint));
    clean.filter_map(|(id, label)| Some((id, label.checkpoint?))).collect()
}

/// Say in the labels of flash devices where their checkpoints lie. Where that cannot be said, the next open does without.
async fn leave_checkpoints(store: &Arc<CellStore>, checkpoints: &BTreeMap<DeviceId, Checkpoint>) {
    for (id, at) in checkpoints {
        if let Some(disk) = store.cell_disk(*id) {
            let at = *at;
            let _ = disk.update_label(move |label| label.checkpoint = Some(at)).await;
        }
    }
}
