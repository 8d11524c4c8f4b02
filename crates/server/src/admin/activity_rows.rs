//! ACTIVEREQUEST and FLASHCACHECONTENT: what goes on, and what lies on flash.
//!
//! Both are bounded, and both look at what they tell of without stopping it.

use super::Context;
use super::answers::ANSWER_BYTES_MAX;
use cell::{ActiveKind, ActiveRequest, GridDisk};
use cellcli::answer::Matcher;
use cellcli::command::List;
use cellcli::{ErrorCode, ObjectType, Row, Source, Value, failure_text};
use device::Instant;
use device::sync::lock;
use flashcache::{Content, Tenant};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Requests of all clients that are listed: a hundred and fifty connections with all their places taken.
const REQUESTS_MAX: usize = 10_000;
/// Ranges a grid disk is shown in, at most.
const RANGES_MAX: u64 = 64;
/// Ranges of one answer: what 1,024 grid disks have, with some that databases share.
const CONTENT_ROWS_MAX: usize = 100_000;
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

/// The part of each range of the grid disks that is in the flash cache.
pub(super) struct Contents {
    disks: BTreeMap<u64, DiskFacts>,
    ranges: Vec<Range>,
}

/// The facts of a grid disk that all of its ranges share.
struct DiskFacts {
    name: String,
    size_bytes: u64,
    range_bytes: u64,
    /// Reads from flash and from disk; none where it is not served.
    hits_and_misses: Option<(u64, u64)>,
}

struct Range {
    disk: u64,
    number: u64,
    database: Option<Arc<str>>,
    content: Content,
}

const _: () = assert!(
    CONTENT_ROWS_MAX * size_of::<Range>() <= ANSWER_BYTES_MAX,
    "the longest answer fits into the memory for one"
);

impl Contents {
    fn row_of(&self, range: &Range) -> Row {
        let row = Row::new(ObjectType::FlashCacheContent);
        let Some(disk) = self.disks.get(&range.disk) else { return row };
        let Content { cached_bytes, keep_bytes, dirty_bytes } = range.content;
        let offset = range.number * disk.range_bytes;
        let mut row = row
            .with("name", disk.name.as_str())
            .with("cachedKeepSize", Value::SizeBytes(keep_bytes))
            .with("cachedSize", Value::SizeBytes(cached_bytes))
            .with("cachedWriteSize", Value::SizeBytes(dirty_bytes))
            .with("length", Value::SizeBytes(disk.range_bytes.min(disk.size_bytes.saturating_sub(offset))))
            .with("offset", Value::SizeBytes(offset));
        if let Some(database) = &range.database {
            row = row.with("dbUniqueName", &**database);
        }
        if let Some((hits, misses)) = disk.hits_and_misses {
            row = row.with("hitCount", integer(hits)).with("missCount", integer(misses));
        }
        row
    }
}

impl Source for Contents {
    fn count(&self) -> usize {
        self.ranges.len()
    }

    fn row(&self, place: usize) -> Row {
        self.row_of(&self.ranges[place])
    }

    fn bytes(&self) -> usize {
        let of_disk = |disk: &DiskFacts| 2 * size_of::<DiskFacts>() + disk.name.capacity();
        self.disks.values().map(of_disk).sum::<usize>() + self.ranges.capacity() * size_of::<Range>()
    }
}

/// The ranges that a query asks for; the query is left with no condition to look at again. Never more than [`CONTENT_ROWS_MAX`].
pub(super) fn flash_cache_content(context: &Context, query: &mut List) -> Result<Contents, String> {
    let mut contents = Contents { disks: BTreeMap::new(), ranges: Vec::new() };
    // `cellcli::select` refuses a condition that cannot be evaluated.
    let Ok(filter) = Matcher::of(query) else { return Ok(contents) };
    query.filter = None;
    let Some(cache) = context.cell.flash_cache() else { return Ok(contents) };
    let catalog = context.cell.store().catalog();
    let wanted = catalog.grid_disks.iter().filter(|(_, record)| query.asks_for(&record.name));
    let ranges: BTreeMap<u64, u64> = wanted.map(|(id, record)| (id.0, range_bytes(record.size_bytes))).collect();
    let content = cache.content(&ranges);
    for (id, range_bytes) in ranges {
        let is_cached = content.range((id, 0, Tenant::default())..).next().is_some_and(|((disk, ..), _)| *disk == id);
        let Some(record) = catalog.grid_disks.get(&celldisk::GridDiskId(id)).filter(|_| is_cached) else { continue };
        let of_disk = |disk: Arc<GridDisk>| {
            let counters = &disk.counters;
            (counters.cache_hits.requests.get(), counters.cache_misses.requests.get())
        };
        let hits_and_misses = context.cell.grid_disk(&record.name).map(of_disk);
        let (name, size_bytes) = (record.name.clone(), record.size_bytes);
        contents.disks.insert(id, DiskFacts { name, size_bytes, range_bytes, hits_and_misses });
    }
    for ((disk, number, tenant), content) in content {
        let range = Range { disk, number, database: context.cell.iorm().database_of(tenant), content };
        if filter.as_ref().is_some_and(|filter| !filter.matches(&contents.row_of(&range))) {
            continue;
        }
        if contents.ranges.len() == CONTENT_ROWS_MAX {
            let what = format!("the answer has more than {CONTENT_ROWS_MAX} ranges");
            let hint = "ask for less: LIST FLASHCACHECONTENT WHERE name = '...', or WHERE cachedSize > 1M";
            return Err(failure_text(ErrorCode::TooLarge, &what, Some(hint)));
        }
        contents.ranges.push(range);
    }
    contents.ranges.shrink_to_fit();
    let Contents { disks, ranges } = &mut contents;
    ranges.sort_by(|left, right| {
        let name = |range: &Range| disks.get(&range.disk).map(|disk| &disk.name);
        name(left).cmp(&name(right))
    });
    Ok(contents)
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
