//! The catalog: what the cell is made of, one for all its devices, a copy on each (DESIGN section 3 "Identity").
//!
//! A plain value with a codec. Which copy is in force is [`crate::CellStore`]'s business; free space is derived from it
//! (`allocate`), never stored.

mod codec;
mod packed;
pub(crate) mod ranges;
mod validate;

pub use validate::CatalogError;

use crate::ids::{CellId, DeviceId, GridDiskId, Stamp};
use crate::label::Role;
use crate::layout::DATA_OFFSET;
use device::{Class, WallTime};
use std::collections::BTreeMap;

/// A stretch of allocation units on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First allocation unit.
    pub start_au: u32,
    /// How many, at least 1.
    pub count_au: u32,
}

impl Extent {
    /// One past the last unit.
    #[must_use]
    pub fn end_au(self) -> u64 {
        u64::from(self.start_au) + u64::from(self.count_au)
    }

    /// First byte on the device.
    #[must_use]
    pub fn offset(self, au_bytes: u64) -> u64 {
        DATA_OFFSET + u64::from(self.start_au) * au_bytes
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(self, au_bytes: u64) -> u64 {
        u64::from(self.count_au) * au_bytes
    }
}

/// What a grid disk carries; decides about redo handling and admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Data files.
    Data,
    /// Redo logs: the flash log takes its writes.
    Redo,
    /// Temporary files.
    Temp,
}

/// When the flash log takes the writes of a grid disk of purpose redo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum FlashLogMode {
    /// With the disk while flash is clearly quicker, else as hedge.
    #[default]
    Auto,
    /// With the disk.
    Race,
    /// When the disk takes longer than it usually does.
    Hedge,
    /// Flash acknowledges, the disk gets it later.
    Flash,
    /// Not at all.
    Off,
}

impl FlashLogMode {
    /// Every mode.
    pub const ALL: [FlashLogMode; 5] =
        [FlashLogMode::Auto, FlashLogMode::Race, FlashLogMode::Hedge, FlashLogMode::Flash, FlashLogMode::Off];
}

/// How writes use the flash cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CachingMode {
    /// Acknowledged when on disk.
    WriteThrough,
    /// Acknowledged when on flash.
    WriteBack,
    /// As write-back, destaged in flush epochs (I10).
    WriteBackOrdered,
    /// Writes go past the cache.
    WriteAround,
    /// Not cached.
    None,
}

impl CachingMode {
    /// Whether flash may hold what the disk does not have.
    #[must_use]
    pub fn is_write_back(self) -> bool {
        matches!(self, CachingMode::WriteBack | CachingMode::WriteBackOrdered)
    }
}

/// How much the cache values a grid disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CachingPolicy {
    /// By merit.
    Default,
    /// Preferred, up to the cache's limit for that.
    Keep,
    /// Not cached; hits stop at once.
    None,
}

/// When data of a grid disk that is not dirty comes into the flash cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum FillStrategy {
    /// At once, when a read misses it or a write goes past.
    #[default]
    Read,
    /// When a buffer cache above lets go of it and offers it.
    Evict,
    /// After a read has missed it, at a bounded rate.
    Feed,
}

impl FillStrategy {
    /// Every strategy.
    pub const ALL: [FillStrategy; 3] = [FillStrategy::Read, FillStrategy::Evict, FillStrategy::Feed];
}

/// A stretch of a grid disk whose caching policy is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachingRange {
    /// First byte, a multiple of [`crate::layout::PAGE_BYTES`].
    pub start_bytes: u64,
    /// One past the last, likewise.
    pub end_bytes: u64,
    /// What is default of a grid disk that is default is in no range.
    pub policy: CachingPolicy,
}

/// A change of caching mode that has begun and not finished; survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSwitch {
    /// The mode left.
    pub from: CachingMode,
    /// The mode reached when it is finished.
    pub to: CachingMode,
}

/// A grid disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridDisk {
    /// Identity, never reused.
    pub id: GridDiskId,
    /// Name, unique in the cell whatever the case, 1 to [`crate::layout::GRID_DISK_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// The cell disk it lies on.
    pub cell_disk: DeviceId,
    /// Where, in the order of its bytes.
    pub extents: Vec<Extent>,
    /// Bytes: all of its extents, or up to one allocation unit less.
    pub size_bytes: u64,
    /// What it carries.
    pub purpose: Purpose,
    /// How it uses the flash log, if it carries redo.
    pub flash_log_mode: FlashLogMode,
    /// Caching mode in force.
    pub caching_mode: CachingMode,
    /// A change of mode under way.
    pub mode_switch: Option<ModeSwitch>,
    /// Caching policy.
    pub caching_policy: CachingPolicy,
    /// When it is filled.
    pub fill: FillStrategy,
    /// Where another caching policy counts, ascending; at most [`crate::layout::CACHING_RANGES_MAX`].
    pub caching_ranges: Vec<CachingRange>,
    /// Where the journal of its batches lies on the same cell disk (write-back in flush order); empty: it has none.
    pub journal: Vec<Extent>,
    /// Cached content of another generation is void. Raised durably before the first write that does not invalidate.
    pub cache_generation: u32,
    /// Its operator has given up what flash had of it: what the label of its disk says is dirty is of others, until it is in
    /// write-back again.
    pub given_up: bool,
    /// Clients may not write.
    pub read_only: bool,
    /// Its operator has taken it out of service: clients may not use it at all.
    pub inactive: bool,
    /// Its disk came back from a time when the flash log took its redo, which it does not any more: that redo is not had yet, nor
    /// given up.
    pub redo_behind: bool,
    /// Clients it is available to, as the operator wrote it; empty for all.
    pub available_to: String,
    /// Comment.
    pub comment: String,
    /// When it was created.
    pub created: WallTime,
    /// ASM attributes (`asmDiskgroupName`, …) as its user has set them.
    pub asm: BTreeMap<String, String>,
}

impl GridDisk {
    /// Whether flash may hold, or come to hold, what its disk does not have.
    #[must_use]
    pub fn may_be_dirty(&self) -> bool {
        self.caching_mode.is_write_back() || self.mode_switch.is_some_and(|switch| switch.to.is_write_back())
    }

    /// Whether flash may hold data of it that its disk does not have, by its mode in force.
    #[must_use]
    pub fn is_write_back(&self) -> bool {
        self.caching_policy != CachingPolicy::None
            && match self.caching_mode {
                CachingMode::WriteBack => true,
                // Mode and journal come and go in one change of the catalog.
                CachingMode::WriteBackOrdered => !self.journal.is_empty(),
                CachingMode::WriteThrough | CachingMode::WriteAround | CachingMode::None => false,
            }
    }

    /// Whether the flash log takes its redo, where there is one.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.purpose == Purpose::Redo && !self.is_write_back()
    }
}

/// A device of the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Cell disk name.
    pub name: String,
    /// Disk or flash.
    pub role: Role,
    /// Durability class.
    pub class: Class,
    /// Allocation unit, bytes.
    pub au_bytes: u64,
    /// Allocation units.
    pub au_count: u32,
}

/// The flash cache of the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashCache {
    /// Random identity, shown as a GUID.
    pub id: Stamp,
    /// Bytes on each device.
    pub size_per_device_bytes: u64,
    /// Where, by flash device.
    pub regions: BTreeMap<DeviceId, Vec<Extent>>,
    /// Segment.
    pub segment_bytes: u32,
    /// Cache block.
    pub block_bytes: u32,
    /// When it was created.
    pub created: WallTime,
}

/// A redo write that takes longer is an outlier, unless the flash log says otherwise: milliseconds.
pub const OUTLIER_MS_DEFAULT: u32 = 500;

/// The flash log of the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashLog {
    /// Random identity, shown as a GUID.
    pub id: Stamp,
    /// Bytes on each device.
    pub size_per_device_bytes: u64,
    /// Where, by flash device.
    pub regions: BTreeMap<DeviceId, Vec<Extent>>,
    /// A redo write that takes longer is an outlier: milliseconds, at least 1.
    pub outlier_ms: u32,
    /// When it was created.
    pub created: WallTime,
}

/// A point in the life of a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TermMark {
    /// Term: raised at each open.
    pub term: u64,
    /// Random mark of that open: two opens apart from each other may have the same number, never the same mark.
    pub stamp: Stamp,
    /// Sequence: raised at each write, never reset.
    pub sequence: u64,
}

/// How new a catalog is and where it comes from. Set by the store alone.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Lineage {
    /// This copy's place.
    pub now: TermMark,
    /// The last real change (an open that changed nothing does not move it).
    pub changed: TermMark,
    /// The ends of earlier terms, ascending, the newest [`crate::layout::TERMS_MAX`].
    pub history: Vec<TermMark>,
}

/// The catalog of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// The cell. Never changes.
    pub cell_id: CellId,
    /// Its name.
    pub cell_name: String,
    /// When it was created.
    pub created: WallTime,
    /// Version and ancestry; changes made to it by a caller are ignored.
    pub lineage: Lineage,
    /// Announced to clients; renewed when un-flushed data may be gone (I9).
    pub instance_stamp: Stamp,
    /// The id the next grid disk gets.
    pub next_grid_disk_id: GridDiskId,
    /// The devices of the cell.
    pub members: BTreeMap<DeviceId, Member>,
    /// The grid disks.
    pub grid_disks: BTreeMap<GridDiskId, GridDisk>,
    /// The flash cache, if there is one.
    pub flash_cache: Option<FlashCache>,
    /// The flash log, if there is one.
    pub flash_log: Option<FlashLog>,
    /// I/O resource plan as text; empty when there is none.
    pub iorm_plan: String,
    /// Attributes of the cell (`flashCacheMode`, `notificationPolicy`, …).
    pub attributes: BTreeMap<String, String>,
}

impl Catalog {
    /// A cell without devices.
    #[must_use]
    pub fn new(cell_id: CellId, cell_name: &str, created: WallTime, instance_stamp: Stamp) -> Catalog {
        Catalog {
            cell_id,
            cell_name: cell_name.to_owned(),
            created,
            lineage: Lineage::default(),
            instance_stamp,
            next_grid_disk_id: GridDiskId(1),
            members: BTreeMap::new(),
            grid_disks: BTreeMap::new(),
            flash_cache: None,
            flash_log: None,
            iorm_plan: String::new(),
            attributes: BTreeMap::new(),
        }
    }

    /// The grid disk of that name, whatever the case.
    #[must_use]
    pub fn grid_disk_named(&self, name: &str) -> Option<&GridDisk> {
        self.grid_disks.values().find(|g| g.name.eq_ignore_ascii_case(name))
    }

    /// The device whose cell disk has that name, whatever the case.
    #[must_use]
    pub fn member_named(&self, name: &str) -> Option<(DeviceId, &Member)> {
        self.members.iter().find(|(_, m)| m.name.eq_ignore_ascii_case(name)).map(|(id, m)| (*id, m))
    }

    /// Whether the flash cache has a region on a device.
    #[must_use]
    pub fn is_cached_on(&self, flash: &DeviceId) -> bool {
        self.flash_cache.as_ref().is_some_and(|cache| cache.regions.contains_key(flash))
    }

    /// Whether both say the same, whenever written.
    #[must_use]
    pub fn same_content(&self, other: &Catalog) -> bool {
        // Taken apart so that a new field cannot be forgotten.
        let Catalog {
            cell_id,
            cell_name,
            created,
            lineage: _,
            instance_stamp,
            next_grid_disk_id,
            members,
            grid_disks,
            flash_cache,
            flash_log,
            iorm_plan,
            attributes,
        } = self;
        *cell_id == other.cell_id
            && *cell_name == other.cell_name
            && *created == other.created
            && *instance_stamp == other.instance_stamp
            && *next_grid_disk_id == other.next_grid_disk_id
            && *members == other.members
            && *grid_disks == other.grid_disks
            && *flash_cache == other.flash_cache
            && *flash_log == other.flash_log
            && *iorm_plan == other.iorm_plan
            && *attributes == other.attributes
    }
}
