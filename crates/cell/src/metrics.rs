//! The metrics of a cell as one table: what each is called, counts and means, and how its value is read.
//!
//! Names are the vendor's where it has one for the same thing; only what this cell really counts has a row. Values are
//! integers in a base unit (bytes, nanoseconds, requests); turning them into MB or rates a second is for whoever shows
//! them, with [`between`] for rates. Never samples by itself, never keeps a value, never prints.

use crate::Cell;
use crate::counters::{GridDiskCounters, Traffic};
use crate::grid_disk::GridDisk;
use crate::iorm::Account;
use crate::member_metrics::MemberFigures;
use crate::redo_metrics::LogTotals;
use device::sync::lock;
use flashcache::{EnduranceFigures, KeepUsage};
use std::collections::BTreeMap;

/// How a value is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Grows since the cell was started.
    Cumulative,
    /// As it is now.
    Instantaneous,
    /// Over the last period.
    Rate,
}

/// The type of the object a value is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricObject {
    /// The cell; its name is the object's.
    Cell,
    /// A cell disk.
    CellDisk,
    /// The flash cache; the object's name is always `FLASHCACHE`.
    FlashCache,
    /// The flash log; the object's name is always `FLASHLOG`.
    FlashLog,
    /// A grid disk.
    GridDisk,
    /// A database, by the tag of its connections; those without are [`OTHER_DATABASE`](crate::iorm::OTHER_DATABASE).
    Database,
}

/// The base unit of a sample's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Bytes.
    Bytes,
    /// I/O requests.
    Requests,
    /// Events or things.
    Count,
    /// Nanoseconds.
    Nanoseconds,
    /// Thousandths: of a load average.
    Milli,
    /// Thousandths of one per cent.
    MilliPercent,
}

/// One metric.
#[derive(Debug)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// What it counts or measures, one line.
    pub description: &'static str,
    /// The type of the objects it is about.
    pub object: MetricObject,
    /// Unit of the value; for rates of what is divided.
    pub base: Base,
    /// How it is formed.
    pub formula: Formula,
}

/// How the value of a metric is formed.
#[derive(Clone, Copy, Debug)]
pub enum Formula {
    /// Read from counters, only grows.
    Counter(Reading),
    /// Read, as it is now.
    Gauge(Reading),
    /// The growth of the named counter in a second.
    PerSecond(&'static str),
    /// The growth of the named counter in a minute.
    PerMinute(&'static str),
    /// The growth of the first named counter for one of the second.
    PerRequest(&'static str, &'static str),
    /// Thousandths of one per cent: growth of a counter of nanoseconds against time passed.
    ShareOfTime(&'static str),
}

/// Where a value is read.
#[derive(Clone, Copy, Debug)]
pub enum Reading {
    /// From the counters of each grid disk.
    GridDisk(fn(&GridDiskCounters) -> u64),
    /// From each grid disk itself.
    ServedDisk(fn(&GridDisk) -> u64),
    /// From the counters of all flash cache members and grid disks together.
    FlashCache(fn(&CacheTotals) -> u64),
    /// From what all redo grid disks and rings have counted together.
    FlashLog(fn(&LogTotals) -> u64),
    /// From what passed to each physical device.
    CellDisk(fn(&DeviceIo) -> u64),
    /// From each member of the flash cache, by its cell disk; none where there is nothing to tell.
    Member(fn(&EnduranceFigures) -> Option<u64>),
    /// From what the process uses.
    Cell(fn(&ProcessUse) -> u64),
    /// From what each database has done.
    Database(fn(&Account) -> u64),
    /// From the I/O plan; none where there is nothing to tell.
    Plan(fn(&crate::iorm::Iorm) -> Option<u64>),
}

impl Definition {
    /// How the value is formed, in one word.
    #[must_use]
    pub fn metric_type(&self) -> MetricType {
        match self.formula {
            Formula::Counter(_) => MetricType::Cumulative,
            Formula::Gauge(_) => MetricType::Instantaneous,
            _ => MetricType::Rate,
        }
    }
}

/// Requests of one kind to a physical device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Requests that were done.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nanoseconds from submission to completion, summed.
    pub busy_ns: u64,
}

/// What has passed to one physical device, counted below the cell. Small is up to
/// [`SMALL_BYTES_MAX`](crate::counters::SMALL_BYTES_MAX).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Cell disk name.
    pub name: String,
    /// Small reads.
    pub read_small: IoTotals,
    /// Large reads.
    pub read_large: IoTotals,
    /// Small writes.
    pub write_small: IoTotals,
    /// Large writes.
    pub write_large: IoTotals,
    /// Flushes.
    pub flush: IoTotals,
    /// Requests of any kind that failed, fell short or have an unknown fate.
    pub errors: u64,
    /// Requests under way.
    pub in_flight: u64,
}

/// What the process that serves the cell uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// Processor time, all threads.
    pub cpu_ns: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Memory of the host.
    pub host_memory_bytes: u64,
    /// Memory of the host that is not to be had without swapping.
    pub host_memory_used_bytes: u64,
    /// Swap space of the host.
    pub host_swap_bytes: u64,
    /// Swap space of the host in use.
    pub host_swap_used_bytes: u64,
    /// Processor time of the host in use since it started, in the mean of its processors.
    pub host_cpu_ns: u64,
    /// Load average of the host over a minute, in thousandths.
    pub load_milli: u64,
}

/// What all members of the flash cache and all grid disks have counted, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheTotals {
    members: BTreeMap<&'static str, u64>,
    used_bytes: u64,
    size_bytes: u64,
    dirty_bytes: u64,
    stale_dirty_bytes: u64,
    dirty_age_ns: u64,
    entries: u64,
    refills: u64,
    index_bytes: u64,
    memory_bytes: u64,
    memory_bytes_max: u64,
    hits: Sum,
    partial: Sum,
    misses: Sum,
    read_skips_large: Sum,
    read_skips_flash: Sum,
    read_skips_busy: Sum,
    read_skips_plan: Sum,
    write_skips_plan: Sum,
    fill_skips_busy: Sum,
    write_skips_large: Sum,
    keep: KeepUsage,
    keep_hits: Sum,
    keep_misses: Sum,
    write_fill_skips_busy: Sum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    requests: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, traffic: &Traffic) {
        self.requests += traffic.requests.get();
        self.bytes += traffic.bytes.get();
    }
}

impl CacheTotals {
    fn of(cell: &Cell) -> CacheTotals {
        let mut totals = CacheTotals::default();
        if let Some(cache) = cell.flash_cache() {
            (totals.dirty_bytes, totals.stale_dirty_bytes) = cache.all_dirty_bytes();
            totals.refills = cell.refilled_blocks();
            for (&name, value) in &lock(&cell.state).left_counters {
                *totals.members.entry(name).or_default() += value;
            }
            for member in cache.members() {
                let need = member.memory_need();
                totals.entries += member.entries() as u64;
                totals.index_bytes += member.index_bytes();
                totals.memory_bytes += need.all_bytes() - need.index_bytes + member.index_bytes();
                totals.memory_bytes_max += need.all_bytes();
                totals.used_bytes += member.used_bytes();
                totals.size_bytes += member.size_bytes();
                let keep = member.keep_usage();
                totals.keep.used_bytes += keep.used_bytes;
                totals.keep.dirty_bytes += keep.dirty_bytes;
                if !member.has_failed() {
                    let age_ns = member.oldest_dirty().map_or(0, |since| cell.world.clock.now().ns_since(since));
                    totals.dirty_age_ns = totals.dirty_age_ns.max(age_ns);
                }
                for (name, value) in member.counters.snapshot() {
                    *totals.members.entry(name).or_default() += value;
                }
            }
        }
        for disk in cell.grid_disks() {
            let c = &disk.counters;
            totals.hits.add(&c.cache_hits);
            totals.partial.add(&c.cache_partial_hits);
            totals.misses.add(&c.cache_misses);
            totals.read_skips_large.add(&c.cache_read_skips_large);
            totals.read_skips_flash.add(&c.cache_read_skips_flash);
            totals.read_skips_busy.add(&c.cache_read_skips_busy);
            totals.read_skips_plan.add(&c.cache_read_skips_plan);
            totals.write_skips_plan.add(&c.cache_write_skips_plan);
            totals.fill_skips_busy.add(&c.cache_fill_skips_busy);
            totals.write_skips_large.add(&c.cache_write_skips_large);
            totals.keep_hits.add(&c.keep_hits);
            totals.keep_misses.add(&c.keep_misses);
            totals.write_fill_skips_busy.add(&c.cache_write_fill_skips_busy);
        }
        totals
    }

    pub(crate) fn member(&self, counter: &str) -> u64 {
        self.members.get(counter).copied().unwrap_or(0)
    }

    pub(crate) fn keep_usage(&self) -> KeepUsage {
        self.keep
    }

    /// Reads that the I/O plan kept from the cache: requests and bytes.
    pub(crate) fn read_skips_plan(&self) -> (u64, u64) {
        (self.read_skips_plan.requests, self.read_skips_plan.bytes)
    }

    /// Writes that it kept from the cache: requests and bytes.
    pub(crate) fn write_skips_plan(&self) -> (u64, u64) {
        (self.write_skips_plan.requests, self.write_skips_plan.bytes)
    }

    /// Reads of KEEP data from flash alone: requests and bytes.
    pub(crate) fn keep_hits(&self) -> (u64, u64) {
        (self.keep_hits.requests, self.keep_hits.bytes)
    }

    /// Reads of KEEP data that needed the disk: requests and bytes.
    pub(crate) fn keep_misses(&self) -> (u64, u64) {
        (self.keep_misses.requests, self.keep_misses.bytes)
    }
}

/// The value of one metric for one object.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What it means.
    pub definition: &'static Definition,
    /// The object.
    pub object: String,
    /// In [`Definition::base`].
    pub value: u64,
}

/// A rate: `amount` in the base unit of its definition for every `per`, which is nanoseconds for rates over time and
/// requests for those per request. `per` is never 0.
#[derive(Clone, Debug)]
pub struct RateSample {
    /// What it means.
    pub definition: &'static Definition,
    /// The object.
    pub object: String,
    /// How much it grew.
    pub amount: u64,
    /// In how many nanoseconds or requests.
    pub per: u64,
}

/// A counter and its growth a second: two rows.
macro_rules! counter {
    ($object:ident, $name:literal, $base:ident, $description:literal, $read:expr) => {
        &[
            Definition {
                name: $name,
                description: $description,
                object: MetricObject::$object,
                base: Base::$base,
                formula: Formula::Counter(Reading::$object($read)),
            },
            Definition {
                name: concat!($name, "_SEC"),
                description: concat!($description, ", a second"),
                object: MetricObject::$object,
                base: Base::$base,
                formula: Formula::PerSecond($name),
            },
        ]
    };
}

/// One row.
macro_rules! metric {
    ($object:ident, $name:literal, $base:ident, $description:literal, $formula:expr) => {
        &[Definition {
            name: $name,
            description: $description,
            object: MetricObject::$object,
            base: Base::$base,
            formula: $formula,
        }]
    };
}

pub(crate) use {counter, metric};

/// Time spent on requests of one kind and how long one took: two rows.
macro_rules! latency {
    ($name:literal, $requests:literal, $description:literal, $read:expr) => {
        &[
            Definition {
                name: $name,
                description: concat!("time of ", $description),
                object: MetricObject::CellDisk,
                base: Base::Nanoseconds,
                formula: Formula::Counter(Reading::CellDisk($read)),
            },
            Definition {
                name: concat!($name, "_RQ"),
                description: concat!("time of one of ", $description),
                object: MetricObject::CellDisk,
                base: Base::Nanoseconds,
                formula: Formula::PerRequest($name, $requests),
            },
        ]
    };
}

/// Every metric, grouped as the rows were made. Small is up to 128 KiB, large is more.
const TABLE: &[&[Definition]] = &[
    // The cell.
    metric!(
        Cell,
        "CL_CPUT_CS",
        MilliPercent,
        "processor time of the cell server, of one processor",
        Formula::ShareOfTime("CL_CPU_TM_CS")
    ),
    metric!(
        Cell,
        "CL_CPU_TM_CS",
        Nanoseconds,
        "processor time of the cell server",
        Formula::Counter(Reading::Cell(|u| u.cpu_ns))
    ),
    metric!(
        Cell,
        "CL_MEMUT_CS",
        MilliPercent,
        "memory of the host that the cell server holds",
        Formula::Gauge(Reading::Cell(|u| milli_percent(u.resident_bytes, u.host_memory_bytes)))
    ),
    metric!(
        Cell,
        "CL_RUNQ",
        Milli,
        "processes that run or wait to run, in the mean over a minute",
        Formula::Gauge(Reading::Cell(|u| u.load_milli))
    ),
    metric!(
        Cell,
        "CL_VIRTMEM_CS",
        Bytes,
        "address space of the cell server",
        Formula::Gauge(Reading::Cell(|u| u.virtual_bytes))
    ),
    // Cell disks.
    counter!(CellDisk, "CD_IO_BY_R_LG", Bytes, "bytes of large reads from a cell disk", |d| d.read_large.bytes),
    counter!(CellDisk, "CD_IO_BY_R_SM", Bytes, "bytes of small reads from a cell disk", |d| d.read_small.bytes),
    counter!(CellDisk, "CD_IO_BY_W_LG", Bytes, "bytes of large writes to a cell disk", |d| d.write_large.bytes),
    counter!(CellDisk, "CD_IO_BY_W_SM", Bytes, "bytes of small writes to a cell disk", |d| d.write_small.bytes),
    metric!(
        CellDisk,
        "CD_IO_ERRS",
        Count,
        "requests to a cell disk that failed",
        Formula::Counter(Reading::CellDisk(|d| d.errors))
    ),
    metric!(
        CellDisk,
        "CD_IO_ERRS_MIN",
        Count,
        "requests to a cell disk that failed, a minute",
        Formula::PerMinute("CD_IO_ERRS")
    ),
    counter!(CellDisk, "CD_IO_FLUSH", Requests, "flushes of a cell disk", |d| d.flush.requests),
    metric!(
        CellDisk,
        "CD_IO_LOAD",
        Count,
        "requests to a cell disk under way",
        Formula::Gauge(Reading::CellDisk(|d| d.in_flight))
    ),
    counter!(CellDisk, "CD_IO_RQ_R_LG", Requests, "large reads from a cell disk", |d| d.read_large.requests),
    counter!(CellDisk, "CD_IO_RQ_R_SM", Requests, "small reads from a cell disk", |d| d.read_small.requests),
    counter!(CellDisk, "CD_IO_RQ_W_LG", Requests, "large writes to a cell disk", |d| d.write_large.requests),
    counter!(CellDisk, "CD_IO_RQ_W_SM", Requests, "small writes to a cell disk", |d| d.write_small.requests),
    latency!("CD_IO_TM_FLUSH", "CD_IO_FLUSH", "flushes of a cell disk", |d| d.flush.busy_ns),
    latency!("CD_IO_TM_R_LG", "CD_IO_RQ_R_LG", "large reads from a cell disk", |d| d.read_large.busy_ns),
    latency!("CD_IO_TM_R_SM", "CD_IO_RQ_R_SM", "small reads from a cell disk", |d| d.read_small.busy_ns),
    latency!("CD_IO_TM_W_LG", "CD_IO_RQ_W_LG", "large writes to a cell disk", |d| d.write_large.busy_ns),
    latency!("CD_IO_TM_W_SM", "CD_IO_RQ_W_SM", "small writes to a cell disk", |d| d.write_small.busy_ns),
    // The flash cache.
    metric!(
        FlashCache,
        "FC_BY_ALLOCATED",
        Bytes,
        "flash given to the cache",
        Formula::Gauge(Reading::FlashCache(|c| c.size_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_DIRTY",
        Bytes,
        "data in the cache that is newer than on disk",
        Formula::Gauge(Reading::FlashCache(|c| c.dirty_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM",
        Bytes,
        "memory of the cache: index, checksums, names of blocks that left",
        Formula::Gauge(Reading::FlashCache(|c| c.memory_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM_INDEX",
        Bytes,
        "memory of the cache's index",
        Formula::Gauge(Reading::FlashCache(|c| c.index_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM_MAX",
        Bytes,
        "the most memory the cache may take",
        Formula::Gauge(Reading::FlashCache(|c| c.memory_bytes_max))
    ),
    metric!(
        FlashCache,
        "FC_ENTRIES",
        Count,
        "entries of the cache's index: one a block, or more where its parts came by themselves",
        Formula::Gauge(Reading::FlashCache(|c| c.entries))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM_INDEX_ENTRY",
        Bytes,
        "memory of the cache's index for each of its entries, rounded up",
        Formula::Gauge(Reading::FlashCache(|c| if c.entries == 0 { 0 } else { c.index_bytes.div_ceil(c.entries) }))
    ),
    metric!(
        FlashCache,
        "FC_BY_STALE_DIRTY",
        Bytes,
        "data newer than on disk on flash that has failed: its grid disks are offline",
        Formula::Gauge(Reading::FlashCache(|c| c.stale_dirty_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_USED",
        Bytes,
        "valid data in the cache",
        Formula::Gauge(Reading::FlashCache(|c| c.used_bytes))
    ),
    metric!(
        FlashCache,
        "FC_DIRTY_AGE",
        Nanoseconds,
        "age of the oldest acknowledged write that is not on disk, at most",
        Formula::Gauge(Reading::FlashCache(|c| c.dirty_age_ns))
    ),
    counter!(FlashCache, "FC_IO_BY_DISK_WRITE", Bytes, "bytes destaged: newer than on disk, written there", |c| c
        .member("destage_bytes")),
    counter!(FlashCache, "FC_IO_RQ_DISK_WRITE", Requests, "4 KiB parts destaged", |c| c.member("destages")),
    counter!(FlashCache, "FC_IO_RQ_W_FIRST", Requests, "4 KiB parts that a write made newer than on disk", |c| c
        .member("dirty_writes")
        .saturating_sub(c.member("dirty_overwrites"))),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_OVERWRITE",
        Requests,
        "4 KiB parts written again before they were destaged: writes the disk was spared",
        |c| c.member("dirty_overwrites")
    ),
    counter!(FlashCache, "FC_IO_BY_DISCARD", Bytes, "bytes of flash discarded before they were reused", |c| c
        .member("discard_bytes")),
    counter!(FlashCache, "FC_IO_BY_FLASH_W", Bytes, "bytes written to flash, headers and records included", |c| c
        .member("flash_bytes_written")),
    counter!(FlashCache, "FC_IO_BY_R", Bytes, "bytes read from the cache", |c| c.hits.bytes + c.partial.bytes),
    counter!(FlashCache, "FC_IO_BY_R_MISS", Bytes, "bytes of reads of which nothing was cached", |c| c.misses.bytes),
    counter!(FlashCache, "FC_IO_BY_R_SKIP", Bytes, "bytes of reads that went past the cache", |c| c
        .read_skips_large
        .bytes
        + c.read_skips_flash.bytes
        + c.read_skips_busy.bytes
        + c.read_skips_plan().1),
    counter!(
        FlashCache,
        "FC_IO_BY_R_SKIP_FC_BUSY",
        Bytes,
        "bytes of reads that were cached and came from disk since flash was busier",
        |c| c.read_skips_busy.bytes
    ),
    counter!(FlashCache, "FC_IO_BY_W", Bytes, "bytes written into the cache", |c| c.member("fill_bytes")
        + c.member("write_fill_bytes")
        + c.member("insert_bytes")
        + c.member("dirty_write_bytes")),
    counter!(FlashCache, "FC_IO_BY_W_POPULATE", Bytes, "bytes filled after read misses", |c| c.member("fill_bytes")),
    counter!(FlashCache, "FC_IO_BY_W_SKIP", Bytes, "bytes of writes that went past the cache", |c| c
        .write_skips_large
        .bytes
        + c.write_fill_skips_busy.bytes
        + c.write_skips_plan().1),
    metric!(
        FlashCache,
        "FC_IO_ERRS",
        Count,
        "I/O errors of flash",
        Formula::Counter(Reading::FlashCache(|c| c.member("errors")))
    ),
    metric!(
        FlashCache,
        "FC_IO_ROT",
        Count,
        "cached 4 KiB parts whose checksum did not match",
        Formula::Counter(Reading::FlashCache(|c| c.member("rot_parts")))
    ),
    counter!(FlashCache, "FC_IO_RQ_DISCARD", Requests, "segments discarded before they were reused", |c| c
        .member("discards")),
    counter!(FlashCache, "FC_IO_RQ_EVICT", Requests, "blocks that left the cache", |c| c.member("evictions")),
    counter!(FlashCache, "FC_IO_RQ_R", Requests, "reads served whole from the cache", |c| c.hits.requests),
    counter!(FlashCache, "FC_IO_RQ_R_MISS", Requests, "reads that needed the disk, part or all", |c| c.misses.requests
        + c.partial.requests),
    counter!(FlashCache, "FC_IO_RQ_R_PARTIAL", Requests, "reads of which a part was cached", |c| c.partial.requests),
    counter!(FlashCache, "FC_IO_RQ_R_SKIP", Requests, "reads that went past the cache", |c| c
        .read_skips_large
        .requests
        + c.read_skips_flash.requests
        + c.read_skips_busy.requests
        + c.read_skips_plan().0),
    counter!(
        FlashCache,
        "FC_IO_RQ_R_SKIP_FC_BUSY",
        Requests,
        "reads that were cached and came from disk since flash was busier",
        |c| c.read_skips_busy.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_R_SKIP_FC_THROTTLE",
        Requests,
        "reads that went past the cache since flash was slow or its content rotten",
        |c| c.read_skips_flash.requests
    ),
    counter!(FlashCache, "FC_IO_RQ_R_SKIP_LG", Requests, "reads that went past the cache since they are large", |c| c
        .read_skips_large
        .requests),
    metric!(
        FlashCache,
        "FC_IO_RQ_MOVE_SKIP_ENDURANCE",
        Requests,
        "blocks not written again at reclaim since the endurance budget was empty",
        Formula::Counter(Reading::FlashCache(|c| c.member("move_skips_endurance")))
    ),
    metric!(
        FlashCache,
        "FC_IO_RQ_REPLACEMENT_ATTEMPTED",
        Requests,
        "segments reclaimed to make room",
        Formula::Counter(Reading::FlashCache(|c| c.member("reclaims")))
    ),
    metric!(
        FlashCache,
        "FC_IO_RQ_REPLACEMENT_FAILED",
        Requests,
        "fills refused since no segment was free",
        Formula::Counter(Reading::FlashCache(|c| c.member("fill_skips_space")))
    ),
    counter!(FlashCache, "FC_IO_RQ_W", Requests, "4 KiB parts written into the cache", |c| c.member("fills")
        + c.member("write_fills")
        + c.member("inserts")),
    counter!(FlashCache, "FC_IO_RQ_W_POPULATE", Requests, "4 KiB parts filled after read misses", |c| c
        .member("fills")),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_POPULATE_SKIP_FC_BUSY",
        Requests,
        "reads whose misses were not kept in the cache since flash was busier than the disk",
        |c| c.fill_skips_busy.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_REFILL",
        Requests,
        "blocks brought back to flash that came in the place of other flash",
        |c| c.refills
    ),
    counter!(FlashCache, "FC_IO_RQ_W_SKIP", Requests, "writes that went past the cache", |c| c
        .write_skips_large
        .requests
        + c.write_fill_skips_busy.requests
        + c.write_skips_plan().0),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_FC_BUSY",
        Requests,
        "writes not kept in the cache since flash was busier than the disk",
        |c| c.write_fill_skips_busy.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_ENDURANCE",
        Requests,
        "blocks not filled since the endurance budget was low",
        |c| c.member("fill_skips_endurance")
    ),
    counter!(FlashCache, "FC_IO_RQ_W_SKIP_LG", Requests, "writes that went past the cache since they are large", |c| c
        .write_skips_large
        .requests),
    // Grid disks.
    counter!(GridDisk, "GD_IO_BY_R_LG", Bytes, "bytes of large reads of a grid disk", |c| c.reads.large.bytes.get()),
    counter!(GridDisk, "GD_IO_BY_R_SM", Bytes, "bytes of small reads of a grid disk", |c| c.reads.small.bytes.get()),
    counter!(GridDisk, "GD_IO_BY_W_LG", Bytes, "bytes of large writes to a grid disk", |c| c.writes.large.bytes.get()),
    counter!(GridDisk, "GD_IO_BY_W_SM", Bytes, "bytes of small writes to a grid disk", |c| c.writes.small.bytes.get()),
    metric!(
        GridDisk,
        "GD_IO_ERRS",
        Count,
        "requests to a grid disk answered with an error",
        Formula::Counter(Reading::GridDisk(|c| c.errors.get()))
    ),
    metric!(
        GridDisk,
        "GD_IO_ERRS_MIN",
        Count,
        "requests to a grid disk answered with an error, a minute",
        Formula::PerMinute("GD_IO_ERRS")
    ),
    counter!(GridDisk, "GD_IO_FLUSH", Requests, "flushes of a grid disk", |c| c.flushes.get()),
    counter!(GridDisk, "GD_IO_RQ_R_LG", Requests, "large reads of a grid disk", |c| c.reads.large.requests.get()),
    counter!(GridDisk, "GD_IO_RQ_R_SM", Requests, "small reads of a grid disk", |c| c.reads.small.requests.get()),
    counter!(GridDisk, "GD_IO_RQ_W_LG", Requests, "large writes to a grid disk", |c| c.writes.large.requests.get()),
    counter!(GridDisk, "GD_IO_RQ_W_SM", Requests, "small writes to a grid disk", |c| c.writes.small.requests.get()),
];

pub(crate) fn milli_percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100_000).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// Every metric.
pub fn definitions() -> impl Iterator<Item = &'static Definition> {
    let tables = [
        TABLE,
        crate::member_metrics::ROWS,
        crate::saving::ROWS,
        crate::keep_metrics::ROWS,
        crate::ordered_metrics::ROWS,
        crate::redo_metrics::ROWS,
        crate::fill_metrics::ROWS,
        crate::host_metrics::ROWS,
        crate::iorm_metrics::ROWS,
    ];
    tables.into_iter().flatten().copied().flatten()
}

/// The metric of that name.
#[must_use]
pub fn definition(name: &str) -> Option<&'static Definition> {
    definitions().find(|d| d.name == name)
}

/// Every counter and gauge of every object as it is now, in the order of the table, rates left out. Costs a walk over the
/// cache's index: for once a second, not for every request.
#[must_use]
pub fn samples(cell: &Cell, cell_name: &str, devices: &[DeviceIo], process: &ProcessUse) -> Vec<Sample> {
    let totals = cell.flash_cache().is_some().then(|| CacheTotals::of(cell));
    let log = cell.flash_log().map(|_| LogTotals::of(cell));
    let members = MemberFigures::all(cell);
    let grid_disks = cell.grid_disks();
    let accounts = cell.iorm().accounts();
    let mut samples = Vec::new();
    for definition in definitions() {
        let (Formula::Counter(reading) | Formula::Gauge(reading)) = definition.formula else { continue };
        let mut push = |object: String, value: u64| samples.push(Sample { definition, object, value });
        match reading {
            Reading::GridDisk(read) => grid_disks.iter().for_each(|disk| push(disk.name(), read(&disk.counters))),
            Reading::ServedDisk(read) => grid_disks.iter().for_each(|disk| push(disk.name(), read(disk))),
            Reading::FlashCache(read) => totals.iter().for_each(|totals| push("FLASHCACHE".to_owned(), read(totals))),
            Reading::FlashLog(read) => log.iter().for_each(|totals| push("FLASHLOG".to_owned(), read(totals))),
            Reading::CellDisk(read) => devices.iter().for_each(|device| push(device.name.clone(), read(device))),
            Reading::Member(read) => {
                let known = members.iter().filter_map(|member| Some((member, read(&member.endurance)?)));
                known.for_each(|(member, value)| push(member.name.clone(), value));
            }
            Reading::Cell(read) => push(cell_name.to_owned(), read(process)),
            Reading::Database(read) => accounts.iter().for_each(|one| push(one.name().to_owned(), read(one))),
            Reading::Plan(read) => read(cell.iorm()).into_iter().for_each(|value| push(cell_name.to_owned(), value)),
        }
    }
    samples
}

/// Every rate over the time between two calls of [`samples`], `elapsed_ns` apart. An object that is new has grown from 0;
/// a rate per request without a request is left out.
#[must_use]
pub fn between(before: &[Sample], after: &[Sample], elapsed_ns: u64) -> Vec<RateSample> {
    let key = |s: &Sample| (s.definition.name, s.object.clone());
    let before: BTreeMap<_, u64> = before.iter().map(|s| (key(s), s.value)).collect();
    let mut grown: BTreeMap<&'static str, BTreeMap<&str, u64>> = BTreeMap::new();
    for sample in after {
        let growth = sample.value.saturating_sub(before.get(&key(sample)).copied().unwrap_or(0));
        grown.entry(sample.definition.name).or_default().insert(&sample.object, growth);
    }
    let none = BTreeMap::new();
    let of = |name: &str| grown.get(name).unwrap_or(&none);
    let mut rates = Vec::new();
    for definition in definitions() {
        let (base, requests) = match definition.formula {
            Formula::Counter(_) | Formula::Gauge(_) => continue,
            Formula::PerSecond(base) | Formula::PerMinute(base) | Formula::ShareOfTime(base) => (base, None),
            Formula::PerRequest(base, requests) => (base, Some(requests)),
        };
        for (object, amount) in of(base) {
            let per = requests.map_or(elapsed_ns, |requests| of(requests).get(object).copied().unwrap_or(0));
            if per > 0 {
                rates.push(RateSample { definition, object: (*object).to_owned(), amount: *amount, per });
            }
        }
    }
    rates
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_say_their_object() {
        let mut seen = BTreeSet::new();
        for d in definitions() {
            assert!(seen.insert(d.name), "{} stands twice", d.name);
            let prefix = match d.object {
                MetricObject::Cell => "CL_",
                MetricObject::CellDisk => "CD_",
                MetricObject::FlashCache => "FC_",
                MetricObject::FlashLog => "FL_",
                MetricObject::GridDisk => "GD_",
                MetricObject::Database => "DB_",
            };
            assert!(d.name.starts_with(prefix) || d.name == "IORM_MODE", "{}", d.name);
        }
    }

    #[test]
    fn rates_are_of_counters_of_the_same_object() {
        for d in definitions() {
            let bases = match d.formula {
                Formula::Counter(_) | Formula::Gauge(_) => continue,
                Formula::PerSecond(base) | Formula::PerMinute(base) | Formula::ShareOfTime(base) => vec![base],
                Formula::PerRequest(base, requests) => vec![base, requests],
            };
            for base in bases {
                let base = definition(base).unwrap();
                assert!(matches!(base.formula, Formula::Counter(_)), "{} is a rate of {}", d.name, base.name);
                assert_eq!(base.object, d.object, "{}", d.name);
            }
        }
    }

    /// Reading a counter that the cache does not have would show 0 for ever.
    #[test]
    fn every_member_counter_that_is_read_exists() {
        let known: BTreeMap<_, _> =
            flashcache::Counters::default().snapshot().into_iter().map(|(n, _)| (n, 1)).collect();
        let totals = CacheTotals { members: known, ..CacheTotals::default() };
        let read_from_members = ["FC_IO_BY_FLASH_W", "FC_IO_BY_W", "FC_IO_ERRS", "FC_IO_ROT", "FC_IO_RQ_EVICT"];
        let more =
            ["FC_IO_RQ_W", "FC_IO_RQ_REPLACEMENT_ATTEMPTED", "FC_IO_RQ_REPLACEMENT_FAILED", "FC_IO_BY_W_POPULATE"];
        let discards = ["FC_IO_BY_DISCARD", "FC_IO_RQ_DISCARD"];
        let endurance = ["FC_IO_RQ_W_SKIP_ENDURANCE", "FC_IO_RQ_MOVE_SKIP_ENDURANCE"];
        let keep = ["FC_BYKEEP_OVERWR", "FC_IO_BYKEEP_W", "FC_IO_RQKEEP_W", "FC_IO_RQKEEP_W_SKIP_SHARE"];
        for name in read_from_members.into_iter().chain(more).chain(discards).chain(endurance).chain(keep) {
            let Formula::Counter(Reading::FlashCache(read)) = definition(name).unwrap().formula else {
                panic!("{name}")
            };
            assert!(read(&totals) > 0, "{name} reads a counter that does not exist");
        }
    }

    fn sample(name: &str, object: &str, value: u64) -> Sample {
        Sample { definition: definition(name).unwrap(), object: object.to_owned(), value }
    }

    #[test]
    fn rates_between_two_readings() {
        let before = [sample("CD_IO_TM_R_SM", "d", 100), sample("CD_IO_RQ_R_SM", "d", 10)];
        let after = [
            sample("CD_IO_TM_R_SM", "d", 1_100),
            sample("CD_IO_RQ_R_SM", "d", 14),
            sample("CD_IO_TM_R_SM", "new", 50),
            sample("CD_IO_RQ_R_SM", "new", 0),
        ];
        let rates: BTreeMap<_, _> = between(&before, &after, 7)
            .into_iter()
            .map(|r| ((r.definition.name, r.object), (r.amount, r.per)))
            .collect();
        let rate = |name, object: &str| rates.get(&(name, object.to_owned())).copied();
        assert_eq!(rate("CD_IO_RQ_R_SM_SEC", "d"), Some((4, 7)));
        assert_eq!(rate("CD_IO_TM_R_SM_RQ", "d"), Some((1_000, 4)));
        assert_eq!(rate("CD_IO_RQ_R_SM_SEC", "new"), Some((0, 7)));
        assert_eq!(rate("CD_IO_TM_R_SM_RQ", "new"), None, "no request, no time of one");
    }
}
