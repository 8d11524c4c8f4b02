//! Counters of one grid disk: plain atomics, read by the metric registry.
//!
//! Never reset while the cell runs; differences are the reader's business.

use crate::base::service_times::ServiceTimes;
use std::sync::atomic::{AtomicU64, Ordering};

/// The boundary between small and large I/O in the metrics, in bytes: up to this it is small.
pub const SMALL_BYTES_MAX: u64 = 128 << 10;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Add one.
    pub fn one(&self) {
        self.add(1);
    }
    /// Add `n`.
    pub fn add(&self, n: u64) {
        if cfg!(not(uncounted)) {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }
    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests and bytes of one direction and size class.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Requests.
    pub requests: Counter,
    /// Bytes.
    pub bytes: Counter,
}

/// Small and large traffic.
#[derive(Debug, Default)]
pub struct TrafficBySize {
    /// Requests up to [`SMALL_BYTES_MAX`].
    pub small: Traffic,
    /// Longer ones.
    pub large: Traffic,
}

impl Traffic {
    /// Count one request.
    pub fn count(&self, bytes: u64) {
        self.requests.one();
        self.bytes.add(bytes);
    }
}

impl TrafficBySize {
    /// Count one request.
    pub fn count(&self, bytes: u64) {
        let traffic = if bytes <= SMALL_BYTES_MAX { &self.small } else { &self.large };
        traffic.count(bytes);
    }
}

/// What a grid disk has served to clients.
#[derive(Debug, Default)]
pub struct GridDiskCounters {
    /// Reads.
    pub reads: TrafficBySize,
    /// Writes.
    pub writes: TrafficBySize,
    /// Flushes.
    pub flushes: Counter,
    /// Trims.
    pub trims: Traffic,
    /// Write-zeroes.
    pub zeroes: Traffic,
    /// Requests answered with an error.
    pub errors: Counter,
    /// Reads served whole from flash.
    pub cache_hits: Traffic,
    /// Reads that flash and disk served together, missed or skipped as a whole (bytes: what flash served).
    pub cache_partial_hits: Traffic,
    /// Reads that needed the disk, part or all (bytes: what the disk served).
    pub cache_misses: Traffic,
    /// Reads that went past the cache, part or all, for whatever reason; those with a reason of their own are below (bytes: what the disk
    /// served).
    pub cache_read_skips: Traffic,
    /// Reads that went past the cache since they are large.
    pub cache_read_skips_large: Traffic,
    /// Reads that went past the cache since flash was slow or rotten.
    pub cache_read_skips_flash: Traffic,
    /// Reads that were hits and that the disk served since flash was busy.
    pub cache_read_skips_busy: Traffic,
    /// Reads whose misses were not kept in the cache since flash was busy.
    pub cache_fill_skips_busy: Traffic,
    /// Reads whose misses were not kept in the cache since they belong to a scan and would have pushed out others.
    pub cache_fill_skips_scan: Traffic,
    /// Reads that went past the cache since the I/O plan keeps their database from it.
    pub cache_read_skips_plan: Traffic,
    /// Reads, prefetched ranges and blocks brought back of which something was filled.
    pub cache_populates: Counter,
    /// Writes that flash keeps, in part at least, clean or dirty (bytes: what it keeps).
    pub cache_writes: Traffic,
    /// Those of which it keeps nothing, for whatever reason; those with a reason of their own are below (bytes: of these, and what of
    /// others it does not keep).
    pub cache_write_skips: Traffic,
    /// Writes not kept in the cache since the I/O plan keeps their database from it.
    pub cache_write_skips_plan: Traffic,
    /// Writes not kept in the cache since they belong to a scan and would have pushed out others.
    pub cache_write_skips_scan: Traffic,
    /// Writes not kept in the cache since they are large.
    pub cache_write_skips_large: Traffic,
    /// Reads of KEEP data served whole from flash (bytes: what it served of others too).
    pub keep_hits: Traffic,
    /// Reads of KEEP data of which a part or all came from disk (bytes: that part).
    pub keep_misses: Traffic,
    /// Writes not kept in the cache since flash was busy.
    pub cache_write_fill_skips_busy: Traffic,
    /// How long reads from disk and from flash took.
    pub times: ServiceTimes,
    /// Reads of the slow device.
    pub disk_reads: Traffic,
    /// Writes to the slow device.
    pub disk_writes: Traffic,
    /// Of these, what was dirty.
    pub destages: Traffic,
    /// Dirty stretches that could not be read from flash or written to the disk, and batches that failed.
    pub destage_errors: Counter,
    /// Moments at which it was noted what is dirty, for a batch (write-back in flush order).
    pub ordered_cuts: Counter,
    /// Those at a FLUSH of a client.
    pub ordered_cuts_at_flush: Counter,
    /// Batches of such moments that count: they reach the disk whole.
    pub ordered_batches: Counter,
    /// Writes taken while a batch was being written to the journal.
    pub ordered_writes_during_batch: Counter,
    /// Bytes of data written to the journal.
    pub journal_bytes: Counter,
    /// Times it was whole, so that writes went to the disk.
    pub ordered_wholes: Counter,
    /// Data that was fed, or offered by a buffer cache: written to flash.
    pub inserts: Counter,
    /// There already.
    pub insert_skips_exists: Counter,
    /// Changed since it was read.
    pub insert_skips_not_current: Counter,
    /// Flash was busier than the disk, or had no room.
    pub insert_skips_overloaded: Counter,
    /// Not to be cached, or not worth its wear.
    pub insert_skips_not_useful: Counter,
    /// Of the inserts, what was fed.
    pub fed: Counter,
    /// Reads that waited for the feeder, or could not, and made room for others.
    pub feed_overruns: Counter,
    /// Reads that followed others and were left out.
    pub feed_skips_prefetch: Counter,
}

impl GridDiskCounters {
    /// Requests of clients that change something.
    #[must_use]
    pub fn changes(&self) -> u64 {
        let of = [&self.writes.small, &self.writes.large, &self.trims, &self.zeroes];
        of.iter().map(|traffic| traffic.requests.get()).sum()
    }

    /// Destaging has given the slow device so many writes.
    pub(crate) fn count_destages(&self, requests: u64, bytes: u64) {
        for traffic in [&self.disk_writes, &self.destages] {
            traffic.requests.add(requests);
            traffic.bytes.add(bytes);
        }
    }

    /// Whether clients have asked anything of it.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let (reads, writes) = (&self.reads, &self.writes);
        let transfers = [&reads.small, &reads.large, &writes.small, &writes.large, &self.trims, &self.zeroes];
        let requests = transfers.map(|traffic| &traffic.requests);
        requests.into_iter().chain([&self.flushes, &self.errors]).any(|counter| counter.get() > 0)
    }
}
