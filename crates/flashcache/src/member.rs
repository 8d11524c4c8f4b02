//! One member: a flash device (or the region of one) with its log, its index and its unsettled regions.
//!
//! Never knows the slow disk; never outlives trust: once failed, it answers nothing and is written to no more.

pub(crate) mod dirty;
pub(crate) mod health;
pub(crate) mod memory;
pub(crate) mod segment;
pub(crate) mod testimony;
pub(crate) mod undurable;

use crate::admission::governor::{Endurance, Governor};
use crate::admission::keep::Keep;
use crate::admission::lifetimes::Lifetimes;
use crate::admission::policy::{AdaptiveLog, CacheShape, Policy};
use crate::admission::quota::{QuotaState, Quotas};
use crate::admission::returns::Returns;
use crate::admission::worth::Worths;
use crate::base::counters::{Counters, add};
use crate::base::mechanism::Mechanism;
use crate::base::regions::Regions;
use crate::base::sabotage::Sabotage;
use crate::base::tenant::Tally;
use crate::base::units::{DISK_SLOTS_MAX, DiskSlot, Page, SEGMENT_PAGES_MAX, SEGMENT_PAGES_MIN, SegmentId};
use crate::data::room::Room;
use crate::format::{self, Owner, Record};
use crate::index::live::Live;
use crate::index::{Index, KilledList};
use crate::log::{LogState, LogWrite, SegmentState, Shape, WitnessWrite};
use crate::member::dirty::Dirty;
use crate::member::health::{Retry, retry};
use crate::member::memory::MemoryNeed;
use crate::member::testimony::Testimony;
use crate::member::undurable::Unflushed;
use crate::placement::slots::DiskNames;
use device::sync::{Notify, lock};
use device::{Arena, Completed, Device, Geometry, Outcome, SharedBufs, View, World};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// The fewest true pages of a segment: with fewer, the records of destaging, a chunk of a page or more for each, take the last
/// segment before what they say has freed another.
const SEGMENT_CHUNKS_MIN: u32 = 16;
/// One in so many segments may be set aside since a write there may take effect late; beyond that the device is given up.
const SET_ASIDE_ONE_IN: u32 = 8;

/// Lives have 32 bits of an [`crate::base::units::Opening`]. With a label written every second that is 136 years.
const LIVES_SPENT: &str = "the label of the flash device has been written 2^32 times: openings of the flash cache have no number left\n\
    hint: drop the cell disk and create it again";

/// Why a member cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The flash area is too small.
    #[error(
        "flash area of {0} bytes is too small for a cache\nhint: give it at least {1} bytes, or make segments smaller"
    )]
    TooSmall(u64, u64),
    /// A parameter is outside its limits.
    #[error("{0}")]
    Config(&'static str),
    /// The device failed; the cache goes on without it.
    #[error("flash device failed: {0}")]
    Failed(String),
}

/// What a member is made of.
#[derive(Clone)]
pub struct MemberConfig {
    /// The flash area, with at most one flush in flight.
    pub device: Device,
    /// Who writes.
    pub owner: Owner,
    /// Higher than at every opening of the device before, durably: see [`crate::placement::cache::MemberDevice::life`].
    pub life: u64,
    /// Bytes of a segment: a power of two, 64 KiB to 64 MiB.
    pub segment_bytes: u32,
    /// Bytes of a block: a power of two, 4 to 64 KiB.
    pub block_bytes: u32,
    /// Memory for data on its way to flash.
    pub staging: Arena,
    /// Slower than this, a read goes to the disk as well.
    pub soft_limit: Duration,
    /// Slower than this, the member is given up.
    pub hard_limit: Duration,
    /// A chunk that is not full is written after this time.
    pub chunk_age: Duration,
    /// What may be written to the flash; no limit without.
    pub endurance: Option<Endurance>,
    /// KEEP data unused for this long counts as DEFAULT data.
    pub keep_unused: Duration,
    /// What is KEEP and what NONE.
    pub(crate) worths: Arc<Worths>,
    /// The most memory the index, checksums and policy may take, in bytes; by the number of pages without.
    pub memory_bytes_max: Option<u64>,
    /// The mechanism that the cache does without, for experiments.
    pub without: Option<Mechanism>,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
    /// Rung when the member fails.
    pub alarm: Arc<Notify>,
    /// Rung when dirty data should go to the disk soon.
    pub dirty_wanted: Arc<Notify>,
    /// The cell-wide order of chunks: the next one to use.
    pub sequence: Arc<AtomicU64>,
    /// What is dirty here is on another member too, to begin with.
    pub mirrored: bool,
    /// Members of the cache that have failed.
    pub failures: Arc<AtomicUsize>,
    /// How much databases may have.
    pub(crate) quotas: Arc<Quotas>,
    /// How much they have, in all members of the cache together.
    pub(crate) tally: Arc<Tally>,
}

/// A grid disk as a member knows it: entries are valid only for this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskName {
    pub(crate) id: u64,
    pub(crate) generation: u32,
}

impl DiskName {
    /// The checksum of a part of it, see [`format::part_sum`].
    pub(crate) fn part_sum(self, part: u64, data: View<'_>) -> u32 {
        format::part_sum_seed(self.id, self.generation, part) ^ data.sum()
    }
}

/// How many segments of a member are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Nothing of them is believed; may be opened.
    pub free: u32,
    /// Being appended to.
    pub open: u32,
    /// Full.
    pub sealed: u32,
    /// Their blocks leave, or their free record is not durable yet.
    pub reclaiming: u32,
}

impl SegmentCounts {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u32 {
        self.free + self.open + self.sealed + self.reclaiming
    }
}

/// A flash device at work.
pub struct Member {
    pub(crate) config: MemberConfig,
    pub(crate) world: World,
    pub(crate) shape: Shape,
    pub(crate) cache_shape: CacheShape,
    pub(crate) block_parts: u32,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) index: Index,
    /// Which pages hold data that counts.
    pub(crate) live: Arc<Live>,
    /// How long blocks last before they are overwritten.
    pub(crate) lifetimes: Lifetimes,
    pub(crate) regions: Regions,
    /// What lives here alone.
    pub(crate) dirty: Dirty,
    /// What recovery has found out for [`crate::placement::cache::FlashCache::agree_on_dirty`], until that is done.
    pub(crate) testimony: Mutex<Testimony>,
    pub(crate) log: Mutex<LogState>,
    /// Something about the log has changed: a write completed, a segment came free, a sync ended, the member failed.
    pub(crate) changed: Notify,
    pub(crate) sums: Vec<AtomicU32>,
    pub(crate) pins: Vec<AtomicU32>,
    pub(crate) readable: Arc<[AtomicU32]>,
    /// What KEEP is about.
    pub(crate) keep: Keep,
    /// What is about sizes of databases.
    pub(crate) quota: QuotaState,
    /// By slot.
    pub(crate) disks: RwLock<DiskNames>,
    pub(crate) governor: Option<Governor>,
    /// Where there is a budget.
    pub(crate) returns: Option<Returns>,
    /// Writers that wait for reclaim.
    pub(crate) room: Room,
    failed: AtomicBool,
    /// It was the first to fail: what was dirty on it is on others.
    covered: AtomicBool,
    /// What is dirty here is on another member too.
    mirrored: AtomicBool,
    pub(crate) slow: AtomicBool,
    /// Reads that have failed since the last that has not.
    pub(crate) bad_reads: AtomicU32,
    /// How often the device has failed to make something durable, and up to which of these failures everything has been written again since.
    pub(crate) losses: AtomicU64,
    pub(crate) losses_mended: AtomicU64,
    failure: Mutex<Option<String>>,
    pub(crate) stopping: AtomicBool,
    /// Nothing is written to the log any more.
    pub(crate) frozen: AtomicBool,
    /// Segments that the verification of the log has not reached.
    pub(crate) unverified: AtomicU32,
    /// The verification writes.
    pub(crate) repairs: AtomicBool,
    /// What it has done.
    pub counters: Counters,
}

impl Member {
    /// A member that has not looked at its flash yet: recover it, then start it.
    ///
    /// # Errors
    /// Parameters outside their limits, or an area too small.
    pub(crate) fn new(config: MemberConfig, world: World) -> Result<Arc<Member>, MemberError> {
        let geometry = config.device.geometry();
        let (shape, cache_shape) = shape_of(&geometry, config.segment_bytes, config.block_bytes)?;
        let segment_pages = shape.segment_pages;
        let area_bytes = u64::from(shape.segments) * u64::from(config.segment_bytes);
        let pages = shape.segments as usize * segment_pages as usize;
        let beside_bytes = config.endurance.map_or(0, |_| Returns::memory_bytes(pages as u64));
        let entries_max = config.memory_bytes_max.map_or(pages, |limit_bytes| {
            let limit_bytes = limit_bytes.saturating_sub(beside_bytes);
            memory::entries_within(area_bytes, config.segment_bytes, config.block_bytes, limit_bytes) as usize
        });
        let life = if config.sabotage == Some(Sabotage::OpeningUsedAgain) { 1 } else { config.life };
        let life = u32::try_from(life).map_err(|_| MemberError::Config(LIVES_SPENT))?;
        let prng = world.prng.fork("flash log");
        let mut log = LogState::new(shape, config.owner, life, config.sequence.clone(), prng);
        if geometry.volatile_cache {
            log.keep_full_records();
        }
        log.goes_by_openings = config.sabotage == Some(Sabotage::LinkCertainByOpening);
        let readable = log.readable();
        let keep = Keep::new(log.kept());
        let live = Arc::new(Live::new(shape.segments, shape.segment_pages));
        let forgets_tenants = config.sabotage == Some(Sabotage::TenantLostWhenMoved);
        Ok(Arc::new(Member {
            shape,
            cache_shape,
            block_parts: config.block_bytes / 4096,
            policy: Arc::new(AdaptiveLog::without(cache_shape, config.without)),
            index: Index::new(entries_max)
                .with_dirty_max(pages)
                .with_tally(&config.tally, forgets_tenants)
                .with_live(&live),
            live,
            lifetimes: Lifetimes::new(pages as u64),
            regions: Regions::default(),
            dirty: Dirty::new(shape.segments),
            testimony: Mutex::default(),
            log: Mutex::new(log),
            changed: Notify::new(),
            sums: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            pins: (0..shape.segments).map(|_| AtomicU32::new(0)).collect(),
            readable,
            keep,
            quota: QuotaState::new(shape.segments),
            disks: RwLock::default(),
            room: Room::default(),
            returns: config.endurance.map(|_| Returns::new(pages as u64, config.block_bytes / 4096)),
            governor: config.endurance.map(|endurance| Governor::new(endurance, world.clock.now())),
            failed: AtomicBool::new(false),
            covered: AtomicBool::new(false),
            mirrored: AtomicBool::new(config.mirrored),
            slow: AtomicBool::new(false),
            bad_reads: AtomicU32::new(0),
            losses: AtomicU64::new(0),
            losses_mended: AtomicU64::new(0),
            failure: Mutex::new(None),
            stopping: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            unverified: AtomicU32::new(0),
            repairs: AtomicBool::new(false),
            counters: Counters::default(),
            config,
            world,
        }))
    }

    /// Make a grid disk's entries of one generation valid.
    pub(crate) fn register(&self, slot: DiskSlot, id: u64, generation: u32) {
        assert!(slot.0 < DISK_SLOTS_MAX, "slots have 14 bits");
        let mut disks = self.disks.write().unwrap_or_else(PoisonError::into_inner);
        disks.set(slot, DiskName { id, generation });
    }

    pub(crate) fn disk_name(&self, slot: DiskSlot) -> Option<DiskName> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner);
        disks.of(slot)
    }

    /// Whether it has been given up.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether it has failed with dirty data that nobody else has.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_failed() && !self.covered.load(Ordering::Acquire)
    }

    /// Whether it has failed with dirty data, all of which another member has.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.has_failed() && self.covered.load(Ordering::Acquire)
    }

    /// Why it was given up.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Slower than its soft limit at the moment: reads go to the disk, fills are skipped.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Acquire)
    }

    /// Give it up: nothing is read from it or written to it any more. Its owner must make that durable in the labels of
    /// the disks before the next write to them is acknowledged.
    pub fn fail(&self, why: String) {
        {
            let mut failure = lock(&self.failure);
            if failure.is_none() {
                *failure = Some(why);
                // A second one may have been the mirror of the first.
                let first = self.config.failures.fetch_add(1, Ordering::AcqRel) == 0;
                self.covered.store(first && self.mirrored.load(Ordering::Acquire), Ordering::Release);
            }
        }
        if !self.failed.swap(true, Ordering::AcqRel) {
            // What is dirty stays listed: it is lost.
            self.dirty.close();
            self.index.clear();
        }
        self.config.alarm.notify_all();
        self.changed.notify_all();
        self.keep.wake.notify_all();
        self.config.quotas.look();
    }

    /// It leaves the cache: nothing is read from it or written to it any more, and that is no failure.
    pub(crate) fn leave(&self) {
        {
            let mut failure = lock(&self.failure);
            if failure.replace("it has left the flash cache".to_owned()).is_some() {
                // One that had failed counts no more among those that are there.
                self.config.failures.fetch_sub(1, Ordering::AcqRel);
            }
            // It holds nothing that is dirty.
            self.covered.store(true, Ordering::Release);
        }
        self.failed.store(true, Ordering::Release);
        self.dirty.close();
        self.index.clear();
        self.stopping.store(true, Ordering::Release);
        self.config.alarm.notify_all();
        self.changed.notify_all();
        self.keep.wake.notify_all();
        self.config.quotas.look();
    }

    pub(crate) fn set_mirrored(&self, mirrored: bool) {
        self.mirrored.store(mirrored, Ordering::Release);
    }

    /// Whether what is dirty here is on another member too.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.mirrored.load(Ordering::Acquire)
    }

    pub(crate) fn error(&self) -> MemberError {
        MemberError::Failed(self.failure().unwrap_or_default())
    }

    /// Is this sabotage on?
    pub(crate) fn sabotaged(&self, which: Sabotage) -> bool {
        self.config.sabotage == Some(which)
    }

    /// Bytes of memory it may use beyond the staging arena: per page a checksum, and at most an index entry with the
    /// tables' slack; per block the policy's names and models.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_need().all_bytes()
    }

    /// The same by what it is for.
    #[must_use]
    pub fn memory_need(&self) -> MemoryNeed {
        let entries_max = Some(self.index.entries_max() as u64);
        let need = MemoryNeed::of(self.size_bytes(), self.config.segment_bytes, self.block_bytes(), entries_max);
        let returns_bytes = self.returns.as_ref().map_or(0, |_| Returns::memory_bytes(self.sums.len() as u64));
        MemoryNeed { other_bytes: need.other_bytes + returns_bytes, ..need }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_parts * 4096
    }

    /// Bytes its index uses now.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index.memory_bytes() as u64
    }

    /// Cached entries now.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.index.len()
    }

    /// Bytes of valid data now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.live.pages() * 4096
    }

    /// Bytes of its segments.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.shape.segments) * u64::from(self.shape.segment_pages) * 4096
    }

    /// Its segments by state.
    #[must_use]
    pub fn segments(&self) -> SegmentCounts {
        let mut counts = SegmentCounts::default();
        for segment in &lock(&self.log).segments {
            match segment.state {
                SegmentState::Free => counts.free += 1,
                SegmentState::Open(_) => counts.open += 1,
                SegmentState::Sealed(_) => counts.sealed += 1,
                SegmentState::Reclaiming => counts.reclaiming += 1,
            }
        }
        counts
    }

    /// The unsettled regions.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn device_offset(&self, page: Page) -> u64 {
        u64::from(page.0) * 4096
    }

    pub(crate) fn segment_of(&self, page: Page) -> SegmentId {
        self.shape.place(page).0
    }

    /// Record that entries died, so that they stay dead after a crash. Of a dirty one it is said once its successor, which
    /// has been appended, is durable. Of what leaves the index [`crate::index::Dead::record`] does it.
    pub(crate) fn append_deaths(&self, log: &mut LogState, dead: &KilledList) {
        for killed in dead {
            if killed.dirty {
                let segment = self.segment_of(killed.page);
                self.dirty.leave(segment, killed.mask.count_ones());
                log.superseded(segment);
            }
            let record = self.names(log, killed.page, killed.mask, false);
            if killed.dirty && !self.sabotaged(Sabotage::DirtyDeathTooEarly) {
                log.append_once_durable(record);
            } else {
                log.append_record(record);
            }
        }
    }

    /// The record that an entry is dead, or clean from now on, in the parts of `mask`.
    pub(crate) fn names(&self, log: &LogState, page: Page, mask: u16, cleaned: bool) -> Record {
        let (segment, position) = self.shape.place(page);
        let opening = log.opening_at(page);
        Record::Invalidation { segment, opening, position, mask, cleaned }
    }

    /// Issue log writes: each in a task of its own, since nobody may cancel them.
    pub(crate) fn issue(self: &Arc<Self>, writes: Vec<LogWrite>) {
        for write in writes {
            let member = self.clone();
            self.world.spawn.spawn(Box::pin(async move { member.write(write).await }));
        }
    }

    /// The same of witnesses.
    pub(crate) fn issue_witnesses(self: &Arc<Self>, witnesses: Vec<WitnessWrite>) {
        for witness in witnesses {
            let member = self.clone();
            self.world.spawn.spawn(Box::pin(async move { member.write_witness(witness).await }));
        }
    }

    async fn write_witness(self: Arc<Self>, first: WitnessWrite) {
        let mut next = Some(first);
        while let Some(WitnessWrite { segment, position, data }) = next {
            if self.has_failed() || self.frozen.load(Ordering::Acquire) {
                return;
            }
            if !self.sabotaged(Sabotage::WitnessNotWritten) {
                self.spend(data.len_bytes() as u64);
                let offset = self.device_offset(self.shape.page(segment, position));
                if self.write_in_place(offset, data, false).await.is_err() {
                    return;
                }
            }
            let mut footers = Vec::new();
            next = lock(&self.log).witness_written(segment, &mut footers);
            self.issue(footers);
            self.changed.notify_all();
        }
    }

    async fn write(self: Arc<Self>, write: LogWrite) {
        let offset = self.device_offset(self.shape.page(write.segment, write.position));
        let bytes = u64::from(write.pages) * 4096;
        if self.has_failed() || self.frozen.load(Ordering::Acquire) {
            return;
        }
        let done = write.done();
        let unflushed = self.config.device.geometry().volatile_cache.then(|| Unflushed::of(&write));
        self.spend(bytes);
        if self.write_in_place(offset, write.data, false).await.is_err() {
            return;
        }
        if done.chunk_of.is_some() {
            add(&self.counters.chunks, 1);
        }
        let mut next = Vec::new();
        {
            let mut log = lock(&self.log);
            log.written(done, &mut next);
            unflushed.into_iter().for_each(|write| log.undurable.add(write));
        }
        self.issue(next);
        self.changed.notify_all();
    }

    /// Write to the device, again where it could not place it at once. A device that does not take it is given up. `durable`: the write is on
    /// the medium when it has completed.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn write_in_place(&self, offset: u64, data: SharedBufs, durable: bool) -> Result<(), MemberError> {
        let bytes = data.len_bytes() as u64;
        let since = self.world.clock.now();
        for tries in 1.. {
            let completion = self.config.device.write(offset, data.clone(), durable);
            let Some(Completed { outcome, .. }) = self.within_hard_limit(completion).await else {
                self.fail("a write took longer than the hard limit".to_owned());
                break;
            };
            add(&self.counters.flash_bytes_written, bytes);
            if outcome == Outcome::Done {
                return Ok(());
            }
            if retry(outcome) == Retry::InDoubt && !self.may_set_aside(offset)
                || !self.tries_again(outcome, tries, since)
            {
                self.fail(format!("write of {bytes} bytes at {offset}: {outcome:?}"));
                break;
            }
            self.pause(tries).await;
        }
        Err(self.error())
    }

    /// A write there may take effect late: its segment is not reused before a restart. Whether few enough are.
    fn may_set_aside(&self, offset: u64) -> bool {
        let mut log = lock(&self.log);
        log.set_aside(self.segment_of(Page((offset / 4096) as u32)));
        log.segments_set_aside() <= (self.shape.segments / SET_ASIDE_ONE_IN).max(1) as usize
    }

    /// Await a device request for at most the hard limit, longer where the device holds the only copy of something. On a
    /// time-out the driver keeps the buffers.
    pub(crate) async fn within_hard_limit(&self, completion: device::Completion) -> Option<Completed> {
        let timer = self.world.clock.sleep(self.patience());
        match futures_util::future::select(completion, timer).await {
            futures_util::future::Either::Left((done, _)) => Some(done),
            futures_util::future::Either::Right(((), _)) => None,
        }
    }
}

/// Whether a device with this geometry could be a member of a cache with such segments and blocks.
///
/// # Errors
/// Why not: parameters outside their limits, or an area too small.
pub fn check_area(geometry: &Geometry, segment_bytes: u32, block_bytes: u32) -> Result<(), MemberError> {
    shape_of(geometry, segment_bytes, block_bytes).map(|_| ())
}

/// How a device is divided.
///
/// # Errors
/// Parameters outside their limits, or an area too small.
pub(crate) fn shape_of(
    geometry: &Geometry,
    segment_bytes: u32,
    block_bytes: u32,
) -> Result<(Shape, CacheShape), MemberError> {
    let segment_pages = segment_bytes / 4096;
    if !segment_bytes.is_power_of_two() || !(SEGMENT_PAGES_MIN..=SEGMENT_PAGES_MAX).contains(&segment_pages) {
        return Err(MemberError::Config("segment size must be a power of two from 64 KiB to 64 MiB"));
    }
    if !block_bytes.is_power_of_two() || !(4096..=65536).contains(&block_bytes) {
        return Err(MemberError::Config("block size must be a power of two from 4 to 64 KiB"));
    }
    let align = geometry.page_bytes.max(4096) / 4096;
    if align > 16 || !align.is_power_of_two() {
        return Err(MemberError::Config("true page size must be a power of two of at most 64 KiB"));
    }
    // Two segments a head, and the reserve.
    let segments_min = 8;
    let segments = (geometry.size_bytes / u64::from(segment_bytes)).min(u64::from(u32::MAX / segment_pages));
    if segments < segments_min {
        let need = segments_min * u64::from(segment_bytes);
        return Err(MemberError::TooSmall(geometry.size_bytes, need));
    }
    if segment_pages / align < SEGMENT_CHUNKS_MIN {
        return Err(MemberError::Config(
            "a segment must hold at least 16 true pages of the flash device\nhint: make segments larger",
        ));
    }
    let shape = Shape { segments: segments as u32, segment_pages, align };
    if !shape.holds(block_bytes / 4096) {
        return Err(MemberError::Config(
            "a segment must hold a block with a header and a footer\nhint: make segments larger, or blocks smaller",
        ));
    }
    let area_bytes = u64::from(shape.segments) * u64::from(segment_bytes);
    let Some(cache_shape) = CacheShape::of(area_bytes, segment_bytes, block_bytes, geometry.page_bytes) else {
        return Err(MemberError::Config("a segment must hold a block"));
    };
    Ok((shape, cache_shape))
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let log = lock(&self.log);
        let (segments, entries, dirty) = (self.shape.segments, self.index.len(), self.dirty.pages());
        let waits = self.counters.space_waits.load(Ordering::Relaxed);
        write!(
            f,
            "Member({segments} segments, {entries} entries, {dirty} dirty pages, {waits} waits for space, {:?})",
            *log
        )
    }
}
