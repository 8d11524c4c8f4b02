//! What the cell knows of one database: the switches that count for it, and what it has done.
//!
//! Never decides; read by the request path, the scheduler and the metric registry. Its counters are plain atomics that only grow.

use crate::base::counters::{Counter, SMALL_BYTES_MAX};
use device::Op;
use flashcache::Tenant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The object name of all that is done by connections without a tag.
pub const OTHER_DATABASE: &str = "_OTHER_DATABASE_";

/// Bytes of requests that a database may have waiting in the plan before its connections are read from one request at a time: the
/// memory for requests is for all, and comes before the plan. More than it takes to be next whenever somebody is.
const WAITING_BYTES_MAX: u64 = 8 << 20;
/// A waiting request counts as so many bytes at least: requests have a limit of their own.
const WAITING_BYTES_MIN: u64 = 8 << 10;

/// Two figures: of small requests and of large ones.
#[derive(Debug, Default)]
pub struct BySize {
    /// Up to [`SMALL_BYTES_MAX`].
    pub small: Counter,
    /// Longer ones.
    pub large: Counter,
}

impl BySize {
    pub(crate) fn add(&self, bytes: u64, n: u64) {
        if bytes <= SMALL_BYTES_MAX { self.small.add(n) } else { self.large.add(n) }
    }

    /// Both together.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.small.get() + self.large.get()
    }
}

/// What a database has done on one kind of device. Times in nanoseconds.
#[derive(Debug, Default)]
pub struct Deeds {
    /// Requests.
    pub requests: BySize,
    /// Their bytes.
    pub bytes: Counter,
    /// From the plan's leave to the end.
    pub time_ns: BySize,
    /// Spent waiting in the plan.
    pub wait_ns: BySize,
    /// Of the device's time, while the plan delays anything.
    pub device_ns: BySize,
    under_way: AtomicU64,
}

impl Deeds {
    /// A request of so many bytes was served here.
    pub(crate) fn served(&self, bytes: u64) {
        self.requests.add(bytes, 1);
        self.bytes.add(bytes);
    }

    pub(crate) fn begins(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ends(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests that the plan has let go and that have not ended.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }
}

/// A request that waits, see [`Account::waits`].
#[derive(Debug)]
pub(crate) struct Waiting {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.account.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Account {
    pub(crate) id: u32,
    name: Arc<str>,
    /// In small letters: how plans are searched.
    pub(crate) folded: String,
    /// Shared by all: whether any request has to look further.
    delays: Arc<AtomicBool>,
    past_flash_cache: AtomicBool,
    past_flash_log: AtomicBool,
    /// Its number in the flash cache.
    tenant: AtomicU8,
    waiting_bytes: AtomicU64,
    /// On disks.
    pub disk: Deeds,
    /// On flash: what its cache served or took, and grid disks on flash.
    pub flash: Deeds,
    /// In the flash cache alone: requests.
    pub cache_requests: BySize,
    /// Their bytes.
    pub cache_bytes: Counter,
    /// Syncs of redo that used the flash log, or could have.
    pub log_requests: Counter,
    /// Bytes of redo that was written.
    pub log_bytes: Counter,
}

impl Account {
    pub(crate) fn new(id: u32, name: &str, delays: Arc<AtomicBool>) -> Account {
        Account {
            id,
            name: Arc::from(name),
            folded: name.to_lowercase(),
            delays,
            past_flash_cache: AtomicBool::new(false),
            past_flash_log: AtomicBool::new(false),
            tenant: AtomicU8::new(Tenant::NOBODY.bits()),
            waiting_bytes: AtomicU64::new(0),
            disk: Deeds::default(),
            flash: Deeds::default(),
            cache_requests: BySize::default(),
            cache_bytes: Counter::default(),
            log_requests: Counter::default(),
            log_bytes: Counter::default(),
        }
    }

    /// The database, as its first connection wrote it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag its connections carry; none for those without.
    pub(crate) fn tag(&self) -> Option<&str> {
        (self.id != 0).then_some(&*self.name)
    }

    /// Whether a request may have to wait: all that the request path does of the plan while there is none.
    pub(crate) fn may_wait(&self) -> bool {
        self.delays.load(Ordering::Relaxed)
    }

    /// A request waits in the plan as long as this lives.
    pub(crate) fn waits(self: &Arc<Account>, bytes: u64) -> Waiting {
        let bytes = bytes.max(WAITING_BYTES_MIN);
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        Waiting { account: self.clone(), bytes }
    }

    /// So much of it waits in the plan that others may want for memory.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.waiting_bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX
    }

    pub(crate) fn set_switches(&self, uses_cache: bool, uses_log: bool) {
        self.past_flash_cache.store(!uses_cache, Ordering::Release);
        self.past_flash_log.store(!uses_log, Ordering::Release);
    }

    /// Whose its blocks in the flash cache are.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        Tenant::from_bits(self.tenant.load(Ordering::Relaxed))
    }

    pub(crate) fn set_tenant(&self, tenant: Tenant) {
        self.tenant.store(tenant.bits(), Ordering::Relaxed);
    }

    /// Whether what it reads and writes goes past the flash cache.
    #[must_use]
    pub fn is_past_flash_cache(&self) -> bool {
        self.past_flash_cache.load(Ordering::Acquire)
    }

    /// Whether its redo does without the flash log.
    #[must_use]
    pub fn is_past_flash_log(&self) -> bool {
        self.past_flash_log.load(Ordering::Acquire)
    }

    /// A change or a flush of redo goes through the flash log.
    pub(crate) fn given_to_flash_log(&self, op: &Op) {
        if let Op::Write { data, .. } = op {
            self.log_bytes.add(data.len_bytes() as u64);
        }
        if matches!(op, Op::Flush | Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. }) {
            self.log_requests.one();
        }
    }

    /// A read that the flash cache served, or a write that it took.
    pub(crate) fn served_by_cache(&self, bytes: u64) {
        self.cache_requests.add(bytes, 1);
        self.cache_bytes.add(bytes);
        self.flash.served(bytes);
    }
}
