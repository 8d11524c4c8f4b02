//! ACTIVEREQUEST and FLASHCACHECONTENT: what goes on, and what lies on flash.
//!
//! Both are bounded, and both look at what they tell of without stopping it.

use super::Context;
use cell::{ActiveKind, ActiveRequest};
use cellcli::{ObjectType, Row, Value};
use device::Instant;
use device::sync::lock;
use flashcache::Content;
use std::collections::BTreeMap;

/// Requests of all clients that are listed: a hundred and fifty connections with all their places taken.
const REQUESTS_MAX: usize = 10_000;
/// Ranges a grid disk is shown in, at most.
const RANGES_MAX: u64 = 64;
/// The shortest range: what the flash cache itself keeps together.
const RANGE_BYTES_MIN: u64 = flashcache::REGION_BYTES;

/// A request by grid disk and its own numbers.
type Identity = (u64, (u64, usize, u64));
/// When requests were first seen.
pub(super) type FirstSeen = BTreeMap<Identity, Instant>;

fn integer(n: u64) -> Value {
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}

fn under_way(context: &Context) -> Vec<(u64, String, ActiveRequest)> {
    let mut found = Vec::new();
    for disk in context.cell.grid_disks() {
        let requests = disk.active_requests(REQUESTS_MAX - found.len());
        found.extend(requests.into_iter().map(|request| (disk.id(), disk.name(), request)));
    }
    found
}

/// Remember what is under way, so that it is known later for how long.
pub(super) fn note(context: &Context) {
    let now = context.world.clock.now();
    let mut seen = lock(&context.requests_seen);
    let earlier = std::mem::take(&mut *seen);
    for (disk, _, request) in under_way(context) {
        let id = (disk, request.id);
        seen.insert(id, earlier.get(&id).copied().unwrap_or(now));
    }
}

pub(super) fn active_requests(context: &Context) -> Vec<Row> {
    let requests = under_way(context);
    let now = context.world.clock.now();
    let seen = lock(&context.requests_seen).clone();
    let row = |(disk, name, request): (u64, String, ActiveRequest)| {
        let since = seen.get(&(disk, request.id)).copied().unwrap_or(now);
        let (session, place, number) = request.id;
        let kind = match request.kind {
            ActiveKind::Read => "read",
            ActiveKind::Write => "write",
            ActiveKind::Flush => "flush",
            ActiveKind::Trim => "trim",
            ActiveKind::Zero => "zero",
            ActiveKind::Prefetch => "prefetch",
        };
        let row = Row::new(ObjectType::ActiveRequest)
            .with("name", format!("{disk}.{session}.{place}.{number}"))
            .with("age", integer(now.ns_since(since) / 1000))
            .with("dbName", request.database.as_deref().map_or(Value::Null, Value::from))
            .with("ioBytes", integer(request.len))
            .with("ioGridDisk", name)
            .with("ioOffset", integer(request.offset))
            .with("ioType", kind)
            .with("requestState", "active");
        match request.purpose {
            cell::Purpose::Unknown => row,
            purpose => row.with("ioReason", format!("{purpose:?}").to_lowercase()),
        }
    };
    requests.into_iter().map(row).collect()
}

/// How large the ranges are that a grid disk is shown in.
fn range_bytes(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(RANGES_MAX).next_power_of_two().max(RANGE_BYTES_MIN)
}

pub(super) fn flash_cache_content(context: &Context) -> Vec<Row> {
    let Some(cache) = context.cell.flash_cache() else { return Vec::new() };
    let catalog = context.cell.store().catalog();
    let ranges: BTreeMap<u64, u64> =
        catalog.grid_disks.iter().map(|(id, record)| (id.0, range_bytes(record.size_bytes))).collect();
    let mut rows = Vec::new();
    for ((id, range, tenant), content) in cache.content(&ranges) {
        let Content { cached_bytes, keep_bytes, dirty_bytes } = content;
        let Some(record) = catalog.grid_disks.get(&celldisk::GridDiskId(id)) else { continue };
        let range_bytes = ranges.get(&id).copied().unwrap_or(RANGE_BYTES_MIN);
        let offset = range * range_bytes;
        let mut row = Row::new(ObjectType::FlashCacheContent)
            .with("name", record.name.as_str())
            .with("cachedKeepSize", Value::SizeBytes(keep_bytes))
            .with("cachedSize", Value::SizeBytes(cached_bytes))
            .with("cachedWriteSize", Value::SizeBytes(dirty_bytes))
            .with("length", Value::SizeBytes(range_bytes.min(record.size_bytes.saturating_sub(offset))))
            .with("offset", Value::SizeBytes(offset));
        if let Some(database) = context.cell.iorm().database_of(tenant) {
            row = row.with("dbUniqueName", &*database);
        }
        if let Some(disk) = context.cell.grid_disk(&record.name) {
            let counters = &disk.counters;
            let misses = counters.cache_misses.requests.get();
            row = row.with("hitCount", integer(counters.cache_hits.requests.get())).with("missCount", integer(misses));
        }
        rows.push(row);
    }
    rows.sort_by_key(Row::name);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_disk_has_at_most_so_many_ranges() {
        for (size_bytes, expected) in
            [(1, 1 << 20), (64 << 20, 1 << 20), ((64 << 20) + 1, 2 << 20), (1 << 40, 16 << 30)]
        {
            let bytes = range_bytes(size_bytes);
            assert_eq!(bytes, expected);
            assert!(size_bytes.div_ceil(bytes) <= RANGES_MAX);
        }
    }
}
