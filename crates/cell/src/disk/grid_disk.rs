//! One grid disk as the cell serves it: its device, its locks, its state, its sessions.
//!
//! Never parses, never touches a socket.

use crate::backing::divert::Diverter;
use crate::backing::ordered::Ordered;
use crate::backing::write_back::{DirtyGate, WriteBackState};
use crate::base::access::AccessRules;
use crate::base::active::{ActiveRequest, Sessions};
use crate::base::counters::GridDiskCounters;
use crate::base::range_lock::RangeLock;
use crate::base::request::CachingMode;
use crate::base::request::{Context, ExportLimits, RequestError};
use crate::base::streams::StreamWatch;
use crate::base::tally::{Tallied, Tally};
use crate::base::units::PART_BYTES;
use crate::disk::early::EarlyWrites;
use crate::disk::freeze::Freeze;
use crate::disk::port::RedoPort;
use crate::disk::seat::PlanSeat;
use crate::disk::traced::Records;
use crate::durability::losses::{Covered, Epoch, Losses};
use crate::fill::feed::{Filling, Streams};
use crate::fill::note::Changes;
use crate::request::session::Session;
use device::sync::{Flag, Notify, lock};
use device::{Arena, Buf, Device, Io, Outcome, SharedBuf};
use flashcache::{DirtyOfDisk, DiskHandle, FlashCache, Sabotage};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A grid disk being served.
pub struct GridDisk {
    id: u64,
    name: Mutex<String>,
    /// Its slice of a cell disk, or the flash log before that.
    pub(crate) disk: Device,
    pub(crate) port: Arc<RedoPort>,
    pub(crate) locks: Arc<RangeLock>,
    pub(crate) arena: Arena,
    pub(crate) block_bytes: u64,
    /// Smallest unit of the device below.
    pub(crate) logical_bytes: u64,
    /// A piece of zeroes, which all grid disks share.
    pub(crate) zeroes: SharedBuf,
    size_bytes: AtomicU64,
    /// Who may use it, and how.
    access: AccessRules,
    stopping: AtomicBool,
    pub(crate) sessions: AtomicUsize,
    /// Their requests under way.
    pub(crate) active: Sessions,
    pub(crate) losses: Losses,
    /// Bars held.
    barred: AtomicUsize,
    /// Why nobody may read or write it, if so.
    offline: Mutex<Option<String>>,
    is_offline: AtomicBool,
    pub(crate) write_back: WriteBackState,
    pub(crate) ordered: Ordered,
    pub(crate) freeze: Freeze,
    pub(crate) changes: Changes,
    pub(crate) filling: Mutex<Filling>,
    pub(crate) streams: Streams,
    pub(crate) watch: StreamWatch,
    /// Where its redo writes are recorded; none outside a cell.
    pub(crate) records: OnceLock<Arc<Records>>,
    /// Its place in the I/O plan; none outside a cell.
    pub(crate) seat: OnceLock<PlanSeat>,
    cache: Mutex<Option<Arc<Binding>>>,
    /// It has been dropped.
    pub(crate) gone: Flag,
    /// How it was cached until then.
    last_cache: Mutex<Option<Arc<Binding>>>,
    pub(crate) early: Arc<EarlyWrites>,
    /// Its requests wait until the index of the flash cache is whole.
    pub(crate) held: Flag,
    pub(crate) sabotage: Option<Sabotage>,
    /// Rung when cached blocks have to be compared with the disk again, or a flush has failed.
    pub(crate) alarm: Arc<Notify>,
    /// Where it was read.
    pub(crate) tally: Tally,
    /// What it has served.
    pub counters: GridDiskCounters,
    /// What the flash log has done for it, since it is served.
    pub redo_counters: Arc<flashlog::Counters>,
}

/// One piece for all grid disks of the process: one of each would be most of what an idle grid disk takes.
fn zeroes() -> SharedBuf {
    static ZEROES: OnceLock<SharedBuf> = OnceLock::new();
    ZEROES.get_or_init(|| Buf::zeroed(crate::base::units::PIECE_BYTES_MAX as usize).freeze()).clone()
}

/// Held while a grid disk must not hit or fill its cache, see [`GridDisk::bar`].
#[derive(Debug)]
pub(crate) struct Bar(Arc<GridDisk>);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.barred.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The cache of a grid disk, and how it is used.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) cache: Arc<FlashCache>,
    pub(crate) disk: DiskHandle,
    pub(crate) mode: CachingMode,
    /// What has to be passed before anything is dirty; none: nothing ever is.
    pub(crate) gate: Option<Arc<DirtyGate>>,
    /// Which hits the disk serves while flash is busy; none: never any.
    pub(crate) diverter: Option<Arc<Diverter>>,
}

/// What a grid disk is made of.
pub struct GridDiskParts {
    /// Identity, never reused.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The slow device (a slice of a cell disk), with at most one flush in flight.
    pub disk: Device,
    /// Bytes it shows.
    pub size_bytes: u64,
    /// Memory for bounce buffers, reserved at start.
    pub arena: Arena,
    /// The unit of locking and of the cache index: a power of two, 4 to 64 KiB.
    pub block_bytes: u64,
    /// Rung when a flush of the disk has failed.
    pub alarm: Arc<Notify>,
    /// Beyond so many bytes in a row requests are a scan, which pushes nothing out of the cache; 0: never.
    pub sequential_cutoff_bytes: u64,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
}

impl GridDisk {
    /// Serve a grid disk without a cache.
    #[must_use]
    pub fn new(parts: GridDiskParts) -> Arc<GridDisk> {
        assert!(parts.block_bytes.is_power_of_two() && (4096..=65536).contains(&parts.block_bytes));
        let port = RedoPort::new(parts.disk);
        Arc::new(GridDisk {
            id: parts.id,
            name: Mutex::new(parts.name),
            locks: Arc::new(RangeLock::new()),
            arena: parts.arena,
            block_bytes: parts.block_bytes,
            logical_bytes: u64::from(port.geometry().logical_bytes),
            disk: port.clone(),
            port,
            zeroes: zeroes(),
            size_bytes: AtomicU64::new(parts.size_bytes),
            access: AccessRules::default(),
            stopping: AtomicBool::new(false),
            sessions: AtomicUsize::new(0),
            active: Sessions::default(),
            losses: Losses::new(parts.sabotage),
            offline: Mutex::default(),
            is_offline: AtomicBool::new(false),
            write_back: WriteBackState::default(),
            ordered: Ordered::default(),
            freeze: Freeze::default(),
            changes: Changes::default(),
            filling: Mutex::default(),
            streams: Streams::default(),
            watch: StreamWatch::new(parts.sequential_cutoff_bytes),
            records: OnceLock::new(),
            seat: OnceLock::new(),
            barred: AtomicUsize::new(0),
            cache: Mutex::new(None),
            gone: Flag::default(),
            last_cache: Mutex::default(),
            early: Arc::default(),
            held: Flag::default(),
            sabotage: parts.sabotage,
            alarm: parts.alarm,
            tally: Tally::default(),
            counters: GridDiskCounters::default(),
            redo_counters: Arc::default(),
        })
    }

    /// Its identity: never reused within the cell.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its name, which is its export name.
    #[must_use]
    pub fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// Bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Reads of a range since the cell was started, in bytes from and to.
    #[must_use]
    pub fn tallied(&self, range: std::ops::Range<u64>) -> Tallied {
        self.tally.of(&range)
    }

    /// What clients may rely on.
    #[must_use]
    pub fn limits(&self) -> ExportLimits {
        let geometry = self.disk.geometry();
        ExportLimits {
            preferred_bytes: geometry.logical_bytes.max(PART_BYTES as u32),
            // In flush order zeroes are written on flash like everything else.
            fast_zeroes: geometry.fast_zeroes && !self.is_ordered(),
            read_only: self.access.is_read_only(),
            rotational: geometry.rotational,
        }
    }

    /// Whether zeroing so much is quicker than a client's writing zeroes. In flush order they are written on flash: quicker by the bytes
    /// that the client need not send, where they are few; and no hole comes of it, which is what `no_hole` asks to be sure of.
    pub(crate) fn zeroes_fast(&self, len: u64, no_hole: bool) -> bool {
        let few = !no_hole && len <= crate::base::units::ZERO_PIECE_BYTES_MAX;
        self.disk.geometry().fast_zeroes && (few || !self.is_ordered())
    }

    /// Who may use it from now on, names separated by commas, and whether they may write. A cell sets what its catalog says.
    pub fn set_access(&self, available_to: &str, read_only: bool) {
        self.access.set(available_to, read_only);
    }

    /// The clients it is available to, as its operator wrote them; empty: all. Who a client is, the front end knows.
    #[must_use]
    pub fn available_to(&self) -> Arc<[String]> {
        self.access.available_to()
    }

    /// Whether its operator has taken it out of service: front ends let nobody in, and end the sessions there are.
    #[must_use]
    pub fn is_inactive(&self) -> bool {
        self.access.is_inactive()
    }

    pub(crate) fn set_inactive(&self, inactive: bool) {
        self.access.set_inactive(inactive);
    }

    /// A session of one client connection.
    #[must_use]
    pub fn open_session(self: &Arc<Self>, context: Context) -> Session {
        let account = self.seat.get().map(|seat| seat.iorm.account(context.database.as_deref()));
        Session::new(self.clone(), Context { account, ..context })
    }

    /// Refuse new requests from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Take requests again after [`GridDisk::stop`].
    pub(crate) fn resume(&self) {
        self.stopping.store(false, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Wait until every request that holds or waits for a range now has ended.
    pub(crate) async fn drain(&self) {
        self.locks.drain().await;
    }

    /// Requests of its clients under way, at most `max`.
    #[must_use]
    pub fn active_requests(&self, max: usize) -> Vec<ActiveRequest> {
        self.active.look(max)
    }

    /// Open sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Acquire)
    }

    /// No hits and no fills as long as the bar is held; writes go on to mark and to end cached copies.
    pub(crate) fn bar(self: &Arc<Self>) -> Bar {
        self.barred.fetch_add(1, Ordering::AcqRel);
        Bar(self.clone())
    }

    /// The cache, if hits and fills are allowed.
    pub(crate) fn serving_cache(&self) -> Option<Arc<Binding>> {
        if self.is_barred() { None } else { self.cache() }
    }

    pub(crate) fn is_barred(&self) -> bool {
        self.barred.load(Ordering::Acquire) > 0
    }

    /// How often its device may have dropped something since the grid disk is served: what was written and not flushed
    /// before is suspect.
    #[must_use]
    pub fn lost_epoch(&self) -> u64 {
        self.losses.epoch().number()
    }

    /// How often acknowledged writes of it may have been lost since it is served. Follows the loss epoch.
    #[must_use]
    pub fn promises_broken(&self) -> u64 {
        self.losses.promises().count()
    }

    /// Its device has dropped what it had not made durable. What the flash log holds of that is written again.
    pub(crate) fn disk_has_lost(&self) {
        let redo_lost = self.port.redo().map(|redo| redo.disk_has_lost());
        match redo_lost {
            Some(true) => self.latch_lost(true),
            // No client has lost anything that it was not told of before. But a change that has failed, or that the log has counted as lost,
            // may have been there to be read and cached until now.
            Some(false) if !self.is_write_back() => self.doubt_cached(),
            // What is destaged, and the journal beside it, is not the log's to write again.
            Some(false) | None => self.latch_lost(false),
        }
    }

    /// How it uses the flash log, if there is one before it.
    #[must_use]
    pub fn redo(&self) -> Option<Arc<flashlog::RedoDisk>> {
        self.port.redo()
    }

    /// Its device may have dropped what was written and not flushed: that is suspect for every open session, and so is
    /// what is cached of it. `broken`: acknowledged writes are certainly among it.
    pub(crate) fn latch_lost(&self, broken: bool) {
        self.losses.lost(broken);
        self.doubt_cached();
    }

    /// Its device may have dropped what it has shown and not made durable: what is cached of that is compared with it again.
    fn doubt_cached(&self) {
        self.losses.dropped(|| {
            if let Some(binding) = self.cache() {
                binding.cache.distrust(&binding.disk);
            }
        });
        self.alarm.notify_all();
    }

    /// Flush the disk: everything that reads of it show is durable, if nothing was lost since `since`.
    pub(crate) async fn flush_since(&self, since: Epoch) -> Option<Covered> {
        let flushed = self.disk.flush().await.outcome == Outcome::Done;
        let flushed = flushed && self.flush_behind_redo().await == Outcome::Done;
        self.losses.covers_change(since).ok().filter(|_| flushed)
    }

    /// Flush the disk itself where the flash log is before it, which answers a flush without it. The flash log knows nothing of a change that has
    /// failed, and that the disk may show all the same until the power goes; and nothing of a disk that is gone.
    pub(crate) async fn flush_behind_redo(&self) -> Outcome {
        if self.port.redo().is_none() {
            return Outcome::Done;
        }
        self.port.below().flush().await.outcome
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        if self.is_stopping() {
            return Err(RequestError::Stopping);
        }
        if self.is_offline.load(Ordering::Acquire) {
            return Err(RequestError::Io);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(RequestError::OutOfRange),
        }
    }

    pub(crate) fn check_writable(&self) -> Result<(), RequestError> {
        if self.access.is_read_only() { Err(RequestError::ReadOnly) } else { Ok(()) }
    }

    /// Cache it from now on in this mode, or not at all. The range locks make the change safe at any moment: a request
    /// under way ends with what it began with.
    pub fn set_cache(&self, cache: Option<(Arc<FlashCache>, DiskHandle)>, mode: CachingMode) {
        self.set_cache_and_gate(cache, mode, None);
    }

    /// The same, with the door to dirty data for write-back.
    pub(crate) fn set_cache_and_gate(
        &self,
        cache: Option<(Arc<FlashCache>, DiskHandle)>,
        mode: CachingMode,
        gate: Option<Arc<DirtyGate>>,
    ) {
        let cached = cache.filter(|_| mode != CachingMode::None);
        *lock(&self.cache) = cached.map(|(cache, disk)| {
            let diverter = Diverter::of(&cache).map(Arc::new);
            Arc::new(Binding { cache, disk, mode, gate, diverter })
        });
    }

    /// It has been dropped and its requests have ended: its cache is forgotten, its background work ends, and what it is known by in the
    /// cache is given back when the last session has let go of it.
    pub(crate) fn go(&self) {
        let binding = lock(&self.cache).take();
        if let Some(binding) = &binding {
            binding.cache.forget(&binding.disk);
        }
        *lock(&self.last_cache) = binding;
        self.gone.set(true);
    }

    /// Whether it has been dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.is_set()
    }

    /// Nobody may read or write it from now on: the only copy of something written is not there.
    pub(crate) fn set_offline(&self, why: String) {
        *lock(&self.offline) = Some(why);
        self.is_offline.store(true, Ordering::Release);
    }

    /// It may be read and written again.
    pub(crate) fn set_online(&self) {
        *lock(&self.offline) = None;
        self.is_offline.store(false, Ordering::Release);
    }

    /// Why nobody may read or write it, if so.
    #[must_use]
    pub fn offline(&self) -> Option<String> {
        lock(&self.offline).clone()
    }

    /// Bytes of it that flash alone holds; of blocks with several parts, those that are dirty.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty().bytes
    }

    /// The data of this grid disk that flash alone holds, and since when. Walks over every dirty block of the grid disk.
    #[must_use]
    pub fn dirty(&self) -> DirtyOfDisk {
        self.cache().map(|binding| binding.cache.dirty(&binding.disk)).unwrap_or_default()
    }

    /// Whether acknowledged writes may live on flash alone.
    #[must_use]
    pub fn is_write_back(&self) -> bool {
        self.on_flash().is_some()
    }

    /// The disk itself was changed, well or not; `durable`: well, and a flush has nothing to add.
    pub(crate) fn wrote_to_disk(&self, durable: bool) {
        if !durable {
            self.losses.changed();
        }
    }

    pub(crate) fn cache(&self) -> Option<Arc<Binding>> {
        lock(&self.cache).clone()
    }

    /// Show another size from now on; the device below has it already.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Rename.
    pub fn set_name(&self, name: String) {
        *lock(&self.name) = name;
    }
}

impl Drop for GridDisk {
    fn drop(&mut self) {
        // Whoever uses the handle holds the grid disk.
        if let Some(binding) = lock(&self.last_cache).take() {
            binding.cache.give_back(&binding.disk);
        }
    }
}

impl std::fmt::Debug for GridDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GridDisk({} {})", self.id, self.name())
    }
}
