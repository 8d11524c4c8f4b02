//! What all members of the flash cache and all grid disks have counted, together.
//!
//! Read once for all rows of a sample. Never keeps a value.

use crate::base::counters::Traffic;
use crate::lifecycle::cell::Cell;
use device::sync::lock;
use flashcache::KeepUsage;
use std::collections::BTreeMap;

/// What all members of the flash cache and all grid disks have counted, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheTotals {
    pub(crate) members: BTreeMap<&'static str, u64>,
    pub(crate) used_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) stale_dirty_bytes: u64,
    pub(crate) suspect_bytes: u64,
    pub(crate) unverified_bytes: u64,
    pub(crate) dirty_age_ns: u64,
    pub(crate) entries: u64,
    pub(crate) refills: u64,
    pub(crate) index_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_bytes_max: u64,
    pub(crate) hits: Sum,
    pub(crate) partial: Sum,
    pub(crate) misses: Sum,
    pub(crate) read_skips: Sum,
    pub(crate) read_skips_large: Sum,
    pub(crate) read_skips_flash: Sum,
    pub(crate) read_skips_busy: Sum,
    pub(crate) populates: u64,
    pub(crate) inserts: u64,
    pub(crate) writes: Sum,
    pub(crate) destages: Sum,
    pub(crate) write_skips: Sum,
    pub(crate) fill_skips_busy: Sum,
    pub(crate) fill_skips_scan: Sum,
    pub(crate) write_skips_scan: Sum,
    pub(crate) write_skips_large: Sum,
    pub(crate) keep: KeepUsage,
    pub(crate) keep_hits: Sum,
    pub(crate) keep_misses: Sum,
    pub(crate) write_fill_skips_busy: Sum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl Sum {
    fn add(&mut self, traffic: &Traffic) {
        self.requests += traffic.requests.get();
        self.bytes += traffic.bytes.get();
    }
}

impl CacheTotals {
    pub(crate) fn of(cell: &Cell) -> CacheTotals {
        let mut totals = CacheTotals::default();
        if let Some(cache) = cell.flash_cache() {
            (totals.dirty_bytes, totals.stale_dirty_bytes) = cache.all_dirty_bytes();
            totals.suspect_bytes = cache.suspect_bytes();
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
                totals.unverified_bytes += if member.has_failed() { 0 } else { member.unverified_bytes() };
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
            totals.read_skips.add(&c.cache_read_skips);
            totals.read_skips_large.add(&c.cache_read_skips_large);
            totals.read_skips_flash.add(&c.cache_read_skips_flash);
            totals.read_skips_busy.add(&c.cache_read_skips_busy);
            totals.populates += c.cache_populates.get();
            totals.inserts += c.inserts.get();
            totals.writes.add(&c.cache_writes);
            totals.destages.add(&c.destages);
            totals.write_skips.add(&c.cache_write_skips);
            totals.fill_skips_busy.add(&c.cache_fill_skips_busy);
            totals.fill_skips_scan.add(&c.cache_fill_skips_scan);
            totals.write_skips_scan.add(&c.cache_write_skips_scan);
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

    /// Reads of KEEP data from flash alone: requests and bytes.
    pub(crate) fn keep_hits(&self) -> (u64, u64) {
        (self.keep_hits.requests, self.keep_hits.bytes)
    }

    /// Reads of KEEP data that needed the disk: requests and bytes.
    pub(crate) fn keep_misses(&self) -> (u64, u64) {
        (self.keep_misses.requests, self.keep_misses.bytes)
    }
}
