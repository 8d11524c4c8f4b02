//! Where the flash log finds room: its size where none is stated, and what holds the space that it does not find.
//!
//! Never allocates: it reads the catalog and says.

use celldisk::{Catalog, DeviceId, Role};
use std::fmt;

const MIB: u64 = 1 << 20;
/// The flash log over all flash devices unless stated: the vendor's.
pub const FLASH_LOG_BYTES_DEFAULT: u64 = 512 << 20;
/// And of all of it one part in so many at most: of small flash the cache makes more.
pub const FLASH_LOG_SHARE_OF_FLASH: u64 = 8;
/// The least on one flash device: a few of the longest batches, so that a commit finds room while others are released.
pub const RING_BYTES_MIN: u64 = 4 << 20;

/// Bytes on each of these flash devices unless stated: [`FLASH_LOG_BYTES_DEFAULT`] over all of them, and of small flash a share only, so
/// that most of it is left to the cache.
pub(crate) fn default_bytes_on_each(catalog: &Catalog, devices: &[DeviceId]) -> u64 {
    let size_bytes = |id: &DeviceId| {
        catalog.members.get(id).map_or(0, |member| member.au_bytes.saturating_mul(u64::from(member.au_count)))
    };
    let all_bytes: u64 = devices.iter().map(size_bytes).sum();
    let share_bytes = FLASH_LOG_BYTES_DEFAULT.min(all_bytes / FLASH_LOG_SHARE_OF_FLASH);
    let unit_bytes = unit_bytes(catalog, devices);
    (share_bytes / devices.len().max(1) as u64 / unit_bytes * unit_bytes)
        .max(RING_BYTES_MIN.next_multiple_of(unit_bytes))
}

/// The coarsest allocation unit of these devices, and whole MiB.
fn unit_bytes(catalog: &Catalog, devices: &[DeviceId]) -> u64 {
    devices.iter().filter_map(|id| catalog.members.get(id)).map(|member| member.au_bytes).fold(MIB, u64::max)
}

/// Flash without room for the flash log: who has it, and what makes some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoomForLog {
    cell_disk: String,
    wanted_bytes: u64,
    free_bytes: u64,
    /// Who holds how much of it, the largest first.
    holders: Vec<(String, u64)>,
    way_out: WayOut,
}

/// What makes room.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WayOut {
    /// The flash cache of so many bytes over all its devices, which are all there are or these.
    SmallerCache(u64, Option<String>),
    /// A log of so many bytes over all its devices fits as it is.
    SmallerLog(u64),
    /// A grid disk would have to go.
    GridDisk(String),
    /// Nothing does.
    LargerFlash,
}

impl NoRoomForLog {
    /// Why a log of so many bytes on each of these devices has no room, if so.
    pub(crate) fn find(catalog: &Catalog, devices: &[DeviceId], wanted_bytes: u64) -> Option<NoRoomForLog> {
        let units = |id: &DeviceId| {
            let au_bytes = catalog.members.get(id).map_or(1, |member| member.au_bytes.max(1));
            // A size nobody has room for is refused as one, not counted over the end of numbers.
            wanted_bytes.checked_next_multiple_of(au_bytes).unwrap_or(u64::MAX)
        };
        let full = devices.iter().filter(|id| catalog.free_bytes(**id) < units(id));
        let full = *full.min_by_key(|id| catalog.free_bytes(**id))?;
        let least_free_bytes = devices.iter().map(|id| catalog.free_bytes(*id)).min().unwrap_or(0);
        let smaller_bytes = least_free_bytes / unit_bytes(catalog, devices) * unit_bytes(catalog, devices);
        let holders = holders(catalog, full);
        let grid_disk = holders.iter().find(|(_, _, is_cache)| !is_cache).map(|(name, ..)| name.clone());
        let count = devices.len() as u64;
        let way_out = match smaller_cache(catalog, devices, units) {
            Some(bytes) => WayOut::SmallerCache(bytes, members_of_cache(catalog)),
            None if smaller_bytes >= RING_BYTES_MIN => WayOut::SmallerLog(smaller_bytes * count),
            None => grid_disk.map_or(WayOut::LargerFlash, WayOut::GridDisk),
        };
        Some(NoRoomForLog {
            cell_disk: catalog.members.get(&full).map_or_else(String::new, |member| member.name.clone()),
            wanted_bytes,
            free_bytes: catalog.free_bytes(full),
            holders: holders.into_iter().map(|(name, bytes, is_cache)| (titled(&name, is_cache), bytes)).collect(),
            way_out,
        })
    }
}

fn titled(name: &str, is_cache: bool) -> String {
    if is_cache { "the flash cache".to_owned() } else { format!("grid disk {name}") }
}

/// Name, bytes and whether it is the flash cache, the largest first.
fn holders(catalog: &Catalog, flash: DeviceId) -> Vec<(String, u64, bool)> {
    let au_bytes = catalog.members.get(&flash).map_or(0, |member| member.au_bytes);
    let cache = catalog.flash_cache.iter().flat_map(|cache| cache.regions.get(&flash));
    let mut all: Vec<(String, u64, bool)> = cache
        .map(|extents| (String::new(), extents.iter().map(|extent| extent.len_bytes(au_bytes)).sum(), true))
        .collect();
    let here = catalog.grid_disks.values().filter(|record| record.cell_disk == flash);
    all.extend(here.map(|record| {
        let extents = record.extents.iter().chain(&record.journal);
        (record.name.clone(), extents.map(|extent| extent.len_bytes(au_bytes)).sum(), false)
    }));
    all.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
    all
}

/// The largest flash cache beside such a log, in whole MiB on each of its devices; none where that is no cache any more.
fn smaller_cache(catalog: &Catalog, devices: &[DeviceId], wanted: impl Fn(&DeviceId) -> u64) -> Option<u64> {
    let cache = catalog.flash_cache.as_ref()?;
    let unit_bytes = u64::from(cache.segment_bytes).max(MIB);
    let mut least_bytes = u64::MAX;
    for id in cache.regions.keys() {
        let au_bytes = catalog.members.get(id)?.au_bytes;
        let held_bytes: u64 = cache.regions.get(id)?.iter().map(|extent| extent.len_bytes(au_bytes)).sum();
        let log_bytes = if devices.contains(id) { wanted(id) } else { 0 };
        least_bytes = least_bytes.min((held_bytes + catalog.free_bytes(*id)).saturating_sub(log_bytes));
    }
    let on_each_bytes = least_bytes / unit_bytes * unit_bytes;
    let others_fit = devices.iter().all(|id| cache.regions.contains_key(id) || catalog.free_bytes(*id) >= wanted(id));
    // A cache of a handful of segments is none.
    let is_cache = on_each_bytes >= 8 * unit_bytes && others_fit;
    is_cache.then(|| on_each_bytes * cache.regions.len() as u64)
}

/// The names of the flash cache's devices, where there is other flash.
fn members_of_cache(catalog: &Catalog) -> Option<String> {
    let cache = catalog.flash_cache.as_ref()?;
    let flash = catalog.members.iter().filter(|(_, member)| member.role == Role::Flash);
    let (inside, outside): (Vec<_>, Vec<_>) = flash.partition(|(id, _)| cache.regions.contains_key(id));
    let names: Vec<&str> = inside.iter().map(|(_, member)| member.name.as_str()).collect();
    (!outside.is_empty()).then(|| names.join(","))
}

/// Whole MiB, as the language takes them.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M", self.0 / MIB)
    }
}

impl fmt::Display for NoRoomForLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wanted, free) = (Mib(self.wanted_bytes), Mib(self.free_bytes));
        write!(f, "the flash log needs {wanted} on cell disk {}, which has {free} free", self.cell_disk)?;
        for (n, (who, bytes)) in self.holders.iter().enumerate() {
            let sep = if n == 0 { ": " } else { ", " };
            write!(f, "{sep}{who} has {}", Mib(*bytes))?;
        }
        write!(f, "\nhint: ")?;
        match &self.way_out {
            WayOut::SmallerCache(bytes, members) => {
                let on = members.as_ref().map_or_else(|| "ALL".to_owned(), |names| format!("cellDisk='{names}',"));
                write!(f, "ALTER FLASHCACHE {on} size={} (it begins empty), then CREATE FLASHLOG again", Mib(*bytes))
            }
            WayOut::SmallerLog(bytes) => write!(f, "CREATE FLASHLOG ALL size={}", Mib(*bytes)),
            WayOut::GridDisk(name) => {
                write!(f, "move the data of grid disk {name} elsewhere, then DROP GRIDDISK {name}")
            }
            WayOut::LargerFlash => write!(f, "give the cell a larger flash device"),
        }
    }
}
