//! The cell: its devices, its catalog, its flash cache, the grid disks it serves.
//!
//! This file holds the state and what the front ends ask of it; [`crate::lifecycle::open`] brings a cell up, [`crate::admin`] changes
//! it, [`crate::lifecycle::expel`] goes on without a failed flash device.

use crate::backing::write_back::{DirtyGate, Drying};
use crate::base::last_hour::LastHour;
use crate::base::recorder::Recorded;
use crate::base::request::CachingMode;
use crate::base::transfer::Transfers;
use crate::base::units::PART_BYTES;
use crate::base::work::StopSignal;
use crate::disk::error::CellError;
use crate::disk::grid_disk::{GridDisk, GridDiskParts};
use crate::disk::loss::{CellDevice, LossListeners};
use crate::disk::redo_record::RedoWrite;
use crate::disk::seat::PlanSeat;
use crate::disk::traced::{Records, TracedRequest};
use crate::fill::feed::{Feed, FeedConfig};
use crate::lifecycle::early::OpeningState;
use crate::lifecycle::flash_log::{LogAtWork, is_paired};
use crate::lifecycle::stamps::Renewals;
use crate::plan::{Iorm, Medium};
use celldisk::CachingPolicy;
use celldisk::{CellDisk, CellStore, DeviceId, FlashState, GridDiskError, GridDiskId};
use device::layers::{FlushGate, LossListener, LossWatch};
use device::sync::{Notify, lock};
use device::{Arena, Device, World};
use flashcache::Worth;
use flashcache::WorthMap;
use flashcache::{CacheConfig, CachedDisk, FlashCache, Sabotage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a cell works.
#[derive(Clone, Debug)]
pub struct CellConfig {
    /// The flash cache; block and segment size are those the catalog records.
    pub cache: CacheConfig,
    /// Memory for read-modify-write and background work.
    pub arena_bytes: usize,
    /// A region nobody wrote to for this long is settled.
    pub settle_every: Duration,
    /// Take in devices that were opened and changed apart from the others, giving up what was changed on them alone.
    pub accept_diverged: bool,
    /// The adopted volume whose data on flash counts although another program has used the volume. Its label says so until it is released.
    pub believe_cache: Option<DeviceId>,
    /// Bytes of the journal of a grid disk in write-back in flush order; none: by its size.
    pub journal_bytes: Option<u64>,
    /// The flash log; its time limit is the flash cache's, its outlier limit the catalog's.
    pub redo: flashlog::LogConfig,
    /// How grid disks whose fill strategy is feed are filled.
    pub feed: FeedConfig,
    /// Beyond so many bytes in a row requests are a scan, which pushes nothing out of the flash cache unless it comes back; 0: never.
    pub sequential_cutoff_bytes: u64,
    /// How often the list of what is hot on each flash device of the cache is made anew.
    pub hot_every: Duration,
    /// How long grid disks wait for the index of the flash cache at an open; then those that need none are served without it, see
    /// [`crate::lifecycle::early`]. None: until it is whole.
    pub index_wait: Option<Duration>,
    /// How often flash and disks get new open stamps while clients write, see [`crate::lifecycle::stamps`]; none: at each open alone.
    pub stamps_every: Option<Duration>,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
    /// Deliberate fault of labels and catalogs, for the checkers.
    pub disk_sabotage: Option<celldisk::Sabotage>,
}

/// As bcache has it: less is read sooner from a cache than from a disk that has to seek.
pub const SEQUENTIAL_CUTOFF_BYTES: u64 = 4 << 20;

impl Default for CellConfig {
    fn default() -> CellConfig {
        CellConfig {
            cache: CacheConfig::default(),
            arena_bytes: 64 << 20,
            settle_every: Duration::from_secs(5),
            accept_diverged: false,
            believe_cache: None,
            journal_bytes: None,
            redo: flashlog::LogConfig::default(),
            feed: FeedConfig::default(),
            sequential_cutoff_bytes: SEQUENTIAL_CUTOFF_BYTES,
            hot_every: Duration::from_secs(60),
            index_wait: None,
            stamps_every: Some(crate::lifecycle::stamps::EVERY),
            sabotage: None,
            disk_sabotage: None,
        }
    }
}

/// The flash cache at work, with the identities of its members in order.
#[derive(Clone)]
pub(crate) struct CacheAtWork {
    pub(crate) cache: Arc<FlashCache>,
    pub(crate) devices: Arc<[DeviceId]>,
}

/// One cell.
pub struct Cell {
    pub(crate) world: World,
    pub(crate) config: CellConfig,
    /// Unit of the flash cache's index and of range locks for this life: see [`crate::lifecycle::open`].
    pub(crate) block_bytes: u32,
    /// None for a cell of ready-made grid disks.
    pub(crate) store: Option<Arc<CellStore>>,
    pub(crate) state: Mutex<State>,
    pub(crate) stop: Arc<StopSignal>,
    /// It is about to stop, see [`Cell::end_freezes`].
    pub(crate) ends: AtomicBool,
    pub(crate) arena: Arena,
    /// Rung by grid disks whose flush has failed.
    pub(crate) alarm: Arc<Notify>,
    /// What waits to be written to flash.
    pub(crate) feed: Arc<Feed>,
    /// Who hears of failed flushes of a cell disk.
    pub(crate) losses: Mutex<BTreeMap<DeviceId, Arc<LossListeners>>>,
    /// For the metrics of the last hour.
    pub(crate) redo_hour: Mutex<LastHour>,
    pub(crate) refilled_blocks: AtomicU64,
    pub(crate) opening: OpeningState,
    /// The I/O plan.
    pub(crate) iorm: Arc<Iorm>,
    records: Arc<Records>,
    pub(crate) renewals: Renewals,
    /// One change at a time.
    pub(crate) changing: device::sync::Semaphore,
}

#[derive(Default)]
pub(crate) struct State {
    /// By folded name.
    pub(crate) grid_disks: BTreeMap<String, Arc<GridDisk>>,
    pub(crate) instance_stamp: u128,
    pub(crate) cache: Option<CacheAtWork>,
    pub(crate) flash_log: Option<LogAtWork>,
    /// Grid disks nobody may read or write since redo of theirs cannot be had, and why; and the cell disks that wait for it.
    pub(crate) redo_offline: BTreeMap<GridDiskId, String>,
    pub(crate) redo_waits: BTreeSet<DeviceId>,
    /// Cell disks that are being rid of what the rings hold of them.
    pub(crate) pleading: BTreeSet<DeviceId>,
    /// Grid disks nobody may read or write, and why: the only copy of something written is not there.
    pub(crate) offline: BTreeMap<GridDiskId, String>,
    /// Of these, grid disks that flash has all of, and their disks cannot be given it now.
    pub(crate) disk_awaited: BTreeSet<GridDiskId>,
    /// Of these, grid disks of adopted volumes that somebody else has used.
    pub(crate) used_without_us: BTreeSet<GridDiskId>,
    /// Grid disks of adopted volumes of which nothing tells whether somebody else has used them, see [`crate::lifecycle::compared`]. After the open, those that
    /// could not be compared and are offline.
    pub(crate) uncompared: BTreeSet<GridDiskId>,
    /// Cache generations of what flash has of grid disks that are, or were, served before the index was whole.
    pub(crate) early: BTreeMap<GridDiskId, u32>,
    /// Grid disks that take no dirty data since a FLUSH.
    pub(crate) flushing: BTreeMap<GridDiskId, Drying>,
    /// Of the operator's FLUSH, the last one or that under way.
    pub(crate) last_flush: Option<FlushStatus>,
    /// Grid disks that take no dirty data until the next start, since nobody knows whether they are in write-back.
    pub(crate) dry_for_good: Vec<Drying>,
    pub(crate) alerts: Vec<String>,
    /// Of grid disks that have one.
    pub(crate) journals: crate::lifecycle::journals::Journals,
    /// Counters of members that have left the flash cache, so that its own never go back.
    pub(crate) left_counters: BTreeMap<&'static str, u64>,
    /// What is hot on members of the flash cache, or was when they failed.
    pub(crate) hot: crate::lifecycle::refill::HotLists,
}

/// The most alerts kept; older ones go first.
const ALERTS_MAX: usize = 1000;

/// How a FLUSH of the operator stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushStatus {
    /// It is under way.
    Working,
    /// The disks have everything, and nothing becomes dirty until it is cancelled.
    Completed,
    /// It was cancelled, under way or done.
    Cancelled,
    /// It has ended, and why the disks do not have everything.
    Failed(String),
}

fn worth_of(policy: CachingPolicy) -> Worth {
    match policy {
        CachingPolicy::Default => Worth::Default,
        CachingPolicy::Keep => Worth::Keep,
        CachingPolicy::None => Worth::None,
    }
}

/// What the cache is told of a grid disk. One that is not cached has no worth of its own, whatever its ranges say.
pub(crate) fn worth_map(record: &celldisk::GridDisk) -> WorthMap {
    if mode_in_force(record) == CachingMode::None {
        return WorthMap::default();
    }
    let parts = |bytes: u64| bytes / PART_BYTES;
    let ranges = record.caching_ranges.iter();
    let ranges = ranges.map(|r| (parts(r.start_bytes)..parts(r.end_bytes), worth_of(r.policy))).collect();
    WorthMap::new(worth_of(record.caching_policy), ranges)
}

impl Cell {
    /// A cell that serves ready-made grid disks and nothing else: for tests and for the layers above.
    #[must_use]
    pub fn of_grid_disks(grid_disks: Vec<Arc<GridDisk>>, instance_stamp: u128, world: World) -> Arc<Cell> {
        let config = CellConfig { arena_bytes: 1, ..CellConfig::default() };
        let grid_disks = grid_disks.into_iter().map(|disk| (disk.name().to_lowercase(), disk)).collect();
        let state = State { grid_disks, instance_stamp, ..State::default() };
        Arc::new(Cell::assemble(world, config, None, state))
    }

    pub(crate) fn assemble(world: World, config: CellConfig, store: Option<Arc<CellStore>>, state: State) -> Cell {
        let mut config = config;
        // Its own, whoever else is configured alike.
        config.cache.quotas = Arc::default();
        Cell {
            arena: Arena::new(config.arena_bytes),
            iorm: Iorm::new(&world, config.cache.quotas.clone()),
            records: Records::new(&world.clock),
            renewals: Renewals::default(),
            world,
            block_bytes: config.cache.block_bytes,
            feed: Arc::new(Feed::new(config.feed)),
            config,
            store,
            state: Mutex::new(state),
            stop: Arc::new(StopSignal::default()),
            ends: AtomicBool::new(false),
            alarm: Arc::new(Notify::new()),
            losses: Mutex::default(),
            redo_hour: Mutex::default(),
            refilled_blocks: AtomicU64::new(0),
            opening: OpeningState::default(),
            changing: device::sync::Semaphore::new(1),
        }
    }

    /// Every grid disk served, in the order of names.
    #[must_use]
    pub fn grid_disks(&self) -> Vec<Arc<GridDisk>> {
        lock(&self.state).grid_disks.values().cloned().collect()
    }

    /// The grid disk of that name, whatever the case.
    #[must_use]
    pub fn grid_disk(&self, name: &str) -> Option<Arc<GridDisk>> {
        lock(&self.state).grid_disks.get(&name.to_lowercase()).cloned()
    }

    /// Changes whenever acknowledged but un-flushed data may be gone (I9).
    #[must_use]
    pub fn instance_stamp(&self) -> u128 {
        lock(&self.state).instance_stamp
    }

    /// The catalog and the devices.
    ///
    /// # Panics
    /// For a cell of ready-made grid disks, which has none.
    #[must_use]
    pub fn store(&self) -> &Arc<CellStore> {
        let Some(store) = &self.store else { panic!("a cell of ready-made grid disks has no catalog") };
        store
    }

    /// The flash cache, if there is one.
    #[must_use]
    pub fn flash_cache(&self) -> Option<Arc<FlashCache>> {
        lock(&self.state).cache.as_ref().map(|c| c.cache.clone())
    }

    /// The cell disk identities of the flash cache's members, in the order of [`FlashCache::members`].
    #[must_use]
    pub fn flash_cache_devices(&self) -> Vec<DeviceId> {
        lock(&self.state).cache.as_ref().map_or_else(Vec::new, |c| c.devices.to_vec())
    }

    pub(crate) fn cache_at_work(&self) -> Option<CacheAtWork> {
        lock(&self.state).cache.clone()
    }

    /// What an operator should know, oldest first.
    #[must_use]
    pub fn alerts(&self) -> Vec<String> {
        lock(&self.state).alerts.clone()
    }

    pub(crate) fn alert(&self, text: String) {
        let mut state = lock(&self.state);
        if state.alerts.len() == ALERTS_MAX {
            state.alerts.remove(0);
        }
        state.alerts.push(text);
    }

    /// Why a flash cache created now has other blocks than the configuration states, if so.
    #[must_use]
    pub fn other_blocks(&self) -> Option<String> {
        let (stated, block) = (self.config.cache.block_bytes, self.block_bytes);
        let why = match self.config.cache.memory_bytes_max {
            Some(_) if block > stated => "smaller ones need more memory than its index may take",
            _ => "as the cell had when it was started",
        };
        (block != stated).then(|| format!("the flash cache has blocks of {block} bytes instead of {stated}: {why}"))
    }

    /// Memory set aside by configuration, in bytes: bounce buffers, staging, and the most the cache index,
    /// batches in flush order and counts of reads may take.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let cache = self.flash_cache();
        let members: u64 = cache.iter().flat_map(|c| c.members()).map(|m| m.memory_bytes_max()).sum();
        let flash_members = cache.as_ref().map_or(0, |c| c.members().count() as u64);
        let staging = flash_members * self.config.cache.staging_bytes as u64;
        let batches: u64 = lock(&self.state).journals.values().map(|journal| journal.batch_memory_bytes()).sum();
        let at_work = self.flash_cache_devices();
        let of_gone = |(id, list): (&DeviceId, &Arc<[_]>)| if at_work.contains(id) { 0 } else { size_of_val(&**list) };
        let lists: u64 = cache.iter().flat_map(|c| c.members()).map(|m| m.hot_list_bytes_max()).sum::<u64>()
            + lock(&self.state).hot.iter().map(of_gone).sum::<usize>() as u64;
        let redo = self.flash_log().map_or(0, |log| log.memory_bytes_max());
        let tallies: u64 =
            self.grid_disks().iter().map(|disk| crate::base::tally::memory_bytes(disk.size_bytes())).sum();
        self.arena.size_bytes() as u64 + staging + members + batches + redo + lists + tallies
    }

    /// A physical device as all of the cell uses it: transfers of any length, at most one flush in flight and one waiting.
    pub(crate) fn gate(device: CellDevice, world: &World, sabotage: Option<Sabotage>) -> (Device, Arc<LossListeners>) {
        let listeners = Arc::new(LossListeners::default());
        let losses = device.losses.unwrap_or_default();
        let listener: Arc<dyn LossListener> = listeners.clone();
        losses.listen(Arc::downgrade(&listener));
        let below: Device = Transfers::new(device.device);
        let hears_durable = below.geometry().volatile_cache && sabotage != Some(Sabotage::FailedFuaUnheard);
        // Also where there is a watch at the bottom: what a layer above that refuses (a claim that was lost) was not made durable.
        let watch = LossWatch::new(below, world.spawn.clone(), losses, hears_durable);
        (FlushGate::new(watch, world.spawn.clone()), listeners)
    }

    /// Start to serve a grid disk of the catalog.
    pub(crate) fn serve(self: &Arc<Self>, record: &celldisk::GridDisk) -> Result<Arc<GridDisk>, GridDiskError> {
        let slice = self.store().slice(record.id)?;
        let disk = GridDisk::new(GridDiskParts {
            id: record.id.0,
            name: record.name.clone(),
            disk: slice,
            size_bytes: record.size_bytes,
            arena: self.arena.clone(),
            block_bytes: u64::from(self.block_bytes),
            alarm: self.alarm.clone(),
            sequential_cutoff_bytes: self.config.sequential_cutoff_bytes,
            sabotage: self.config.sabotage,
        });
        // Before anybody can find it.
        disk.set_access(&record.available_to, record.read_only);
        disk.set_inactive(record.inactive);
        let listeners = lock(&self.losses).get(&record.cell_disk).cloned();
        if let Some(listeners) = listeners {
            listeners.add(&disk);
            disk.losses.watch();
        }
        {
            let state = lock(&self.state);
            if let Some(why) = state.offline.get(&record.id).or_else(|| state.redo_offline.get(&record.id)) {
                disk.set_offline(why.clone());
            }
        }
        if let Some(redo) = self.attach_redo(&disk, record) {
            // Nothing is under way.
            redo.took_over();
        }
        let _ = disk.records.set(self.records.clone());
        let _ = disk.seat.set(PlanSeat::new(self.iorm.clone(), self.queue_of(record.cell_disk)));
        self.serve_early(&disk, record);
        lock(&self.state).grid_disks.insert(record.name.to_lowercase(), disk.clone());
        Ok(disk)
    }

    /// Redo writes that have been answered since `after`, which an earlier answer gave as [`Recorded::next`]; none: begin to record.
    /// Whoever does not ask for some seconds begins again.
    #[must_use]
    pub fn recorded_redo(&self, after: Option<u64>) -> Recorded<RedoWrite> {
        self.records.redo.since(after, false)
    }

    /// Requests of clients since `after`, in the order they began. The answer ends before the first request that has been under way for less than
    /// a second, unless this is the `last` question.
    #[must_use]
    pub fn recorded_trace(&self, after: Option<u64>, last: bool) -> Recorded<TracedRequest> {
        self.records.trace.since(after, last)
    }

    /// The I/O plan and the databases it knows.
    #[must_use]
    pub fn iorm(&self) -> &Arc<Iorm> {
        &self.iorm
    }

    /// The plan's queue of a cell disk.
    fn queue_of(&self, id: DeviceId) -> Arc<crate::plan::DeviceQueue> {
        let disk = self.store().cell_disk(id);
        let medium = Medium {
            rotational: disk.as_ref().is_some_and(|disk| disk.device().geometry().rotational),
            flash: disk.is_some_and(|disk| disk.role() == celldisk::Role::Flash),
        };
        self.iorm.queue(id, medium)
    }

    /// Connect a grid disk with the flash cache as its record says.
    pub(crate) fn bind(&self, disk: &Arc<GridDisk>, record: &celldisk::GridDisk) {
        {
            let state = lock(&self.state);
            if state.offline.contains_key(&record.id) || state.redo_offline.contains_key(&record.id) {
                // What the flash holds of it is not this disk's, or is not all of it.
                return;
            }
        }
        let mode = mode_in_force(record);
        disk.set_filling(record.fill, &self.feed);
        if let Some(seat) = disk.seat.get() {
            let members = self.cache_at_work().map_or_else(Vec::new, |c| c.devices.to_vec());
            let queues = members.into_iter().map(|id| self.queue_of(id)).collect();
            seat.bind(queues, record.purpose == celldisk::Purpose::Redo);
        }
        let mut gate = None;
        let cache = self.cache_at_work().and_then(|c| {
            if mode.is_write_back()
                && c.cache.takes_dirty()
                && let Some(home) = self.store().cell_disk(record.cell_disk)
                && c.devices.iter().all(|flash| is_paired(self.store(), &home.label(), *flash))
            {
                let au_bytes = home.label().au_bytes;
                let extents = record.extents.iter().map(|e| (e.offset(au_bytes), e.len_bytes(au_bytes))).collect();
                gate = Some(DirtyGate::new(home, c.devices.clone(), extents));
            }
            let generation = self.generation_in_force(record);
            let Some(handle) = c.cache.try_disk(CachedDisk { generation, ..cached_disk(record, true) }) else {
                self.alert(format!(
                    "grid disk {} is not cached: sessions or writes that have not ended still hold what dropped grid disks were known by; \
                     hint: end the sessions of dropped grid disks, or restart the cell",
                    record.name
                ));
                return None;
            };
            c.cache.set_worth(&handle, worth_map(record));
            Some((c.cache, handle))
        });
        let ordered = cache.as_ref().filter(|_| mode == CachingMode::WriteBackOrdered);
        let dirty_parts = ordered.map_or(0, |(cache, handle)| cache.dirty_bytes(handle).div_ceil(PART_BYTES));
        let journal = lock(&self.state).journals.get(&record.id).cloned();
        disk.ordered.set_journal(journal, dirty_parts, self.world.clock.now());
        disk.set_cache_and_gate(cache, mode, gate);
    }

    /// Close the door to dirty data that a grid disk may have passed, before the label of its disk is told that there is none:
    /// whoever takes some later writes the label anew, and requests that have passed it end before this returns. The record,
    /// if the grid disk is in write-back.
    pub(crate) async fn close_door(&self, disk: &Arc<GridDisk>) -> Option<celldisk::GridDisk> {
        let record = self.record(disk).filter(celldisk::GridDisk::is_write_back)?;
        self.bind(disk, &record);
        disk.drain().await;
        Some(record)
    }

    /// Nothing of a disk is dirty any more, and nothing will be: its label says so, so that it is whole without its flash.
    /// A label that cannot be written stays as it is, which costs nothing but caution.
    pub(crate) async fn settle_dirty_label(&self, home: DeviceId, stopping: bool) {
        let catalog = self.store().catalog();
        let here = |g: &&celldisk::GridDisk| g.cell_disk == home;
        let may_be_dirty = catalog.grid_disks.values().filter(here).any(|record| {
            let served = self.grid_disk(&record.name);
            if served.as_ref().is_some_and(|disk| disk.offline().is_some()) {
                // Whatever its mode is by now.
                return true;
            }
            let holds = served.as_ref().is_none_or(|disk| disk.cache().is_some_and(|b| b.cache.has_dirty(&b.disk)));
            let dry = stopping || served.is_some_and(|disk| disk.is_inactive() || self.is_flushing(&disk));
            record.is_write_back() && (holds || !dry)
        });
        let Some(disk) = self.store().cell_disk(home) else { return };
        if may_be_dirty {
            return;
        }
        if disk.label().is_whole() {
            // One that says otherwise may have landed though its write has failed.
            let _ = disk.make_label_certain().await;
            return;
        }
        let _ = self.call_whole(&disk).await;
    }

    /// Let a disk's label say that flash holds nothing which the disk does not have. The caller knows that it is so.
    ///
    /// # Errors
    /// The label cannot be written.
    pub(crate) async fn call_whole(&self, disk: &CellDisk) -> Result<(), CellError> {
        // The disk has gone on without flash that has failed: what is there is void from here on.
        let at_work = self.cache_at_work();
        let has_failed = |id: &DeviceId| {
            let seats = at_work.iter().flat_map(|c| c.devices.iter().zip(c.cache.members()));
            seats.into_iter().any(|(device, member)| device == id && member.has_failed())
        };
        let written = disk.update_label(|label| {
            label.dirty.clear_all();
            for (id, member) in label.flash_members.iter_mut().filter(|(_, member)| member.state.holds_dirty()) {
                member.state = if has_failed(id) { FlashState::Expelled } else { FlashState::Clean };
            }
        });
        written.await.map_err(|error| CellError::label(disk, error))
    }

    /// The grid disks served that lie on a cell disk.
    pub(crate) fn grid_disks_on(&self, home: DeviceId) -> Vec<Arc<GridDisk>> {
        let on_it = |disk: &Arc<GridDisk>| self.record(disk).is_some_and(|record| record.cell_disk == home);
        self.grid_disks().into_iter().filter(on_it).collect()
    }

    /// The catalog's record of a grid disk that is served.
    pub(crate) fn record(&self, disk: &GridDisk) -> Option<celldisk::GridDisk> {
        self.store().catalog().grid_disks.get(&GridDiskId(disk.id())).cloned()
    }
}

/// A grid disk as the flash cache wants it named.
pub(crate) fn cached_disk(record: &celldisk::GridDisk, is_home_there: bool) -> CachedDisk {
    CachedDisk { id: record.id.0, generation: record.cache_generation, home: record.cell_disk.0, is_home_there }
}

/// How a grid disk is cached once it has what its mode needs: the policy NONE overrides the mode.
pub(crate) fn mode_wanted(record: &celldisk::GridDisk) -> CachingMode {
    if record.caching_policy == celldisk::CachingPolicy::None {
        return CachingMode::None;
    }
    match record.caching_mode {
        celldisk::CachingMode::WriteThrough => CachingMode::WriteThrough,
        celldisk::CachingMode::WriteAround => CachingMode::WriteAround,
        celldisk::CachingMode::WriteBack => CachingMode::WriteBack,
        celldisk::CachingMode::WriteBackOrdered => CachingMode::WriteBackOrdered,
        celldisk::CachingMode::None => CachingMode::None,
    }
}

/// How a grid disk is cached in effect.
pub(crate) fn mode_in_force(record: &celldisk::GridDisk) -> CachingMode {
    match mode_wanted(record) {
        // Without its journal.
        CachingMode::WriteBackOrdered if !record.is_write_back() => CachingMode::WriteThrough,
        mode => mode,
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cell({} grid disks)", lock(&self.state).grid_disks.len())
    }
}
