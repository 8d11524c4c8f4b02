//! One arm of an experiment with a database in front: a session over a buffer cache, over a disk, a disk with one of several flash caches, or
//! flash alone. Same memory, devices and processor in every arm.

use super::ablation::{self, Lack};
use super::block_cache::BlockCache;
use super::client::Database;
use super::machine::Under;
use super::on_cell::{self, Made, Wanted};
use crate::devices::Medium;
use crate::model::Asked;
use buffercache::{FlashCache, PageNumber, Waits};
use cell::CellConfig;
use celldisk::{CachingMode, GridDiskSpec};
use device::{Device, World};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;
use std::sync::Arc;

/// A page of the database.
pub(super) const PAGE_BYTES: u64 = 8192;
/// What the vendor's flash cache takes of the buffer cache for each page on flash (Oracle's documentation: 100 bytes with one instance).
const VENDOR_HEADER_BYTES: u64 = 100;
/// What ours takes for a page: an entry of the index and two checksums.
const OUR_HEADER_BYTES: u64 = 28;
/// What a scan reads at once. Assumed: `db_file_multiblock_read_count` of 16, 128 KiB (8 to 128 pages). A cell caches no longer requests than
/// that, whatever its other settings.
pub(super) const SCAN_PAGES: usize = 16;
/// On the devices of the cell beside grid disk and cache.
pub(super) const LABELS_BYTES: u64 = 256 << 20;

/// What the data files lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Disks alone.
    Disk,
    /// Disks, with the database flash cache on flash.
    DatabaseFlashCache,
    /// Disks, with the vendor's cache of lines of so many bytes on flash.
    LineCache(u64),
    /// Disks behind a cell of ours with a flash cache.
    Cell {
        /// How it caches.
        mode: CachingMode,
        /// Scans are cached like anything else.
        fills_scans: bool,
    },
    /// The same with everything that it can do, or all but one thing.
    Ablated(Option<Lack>),
    /// Flash alone.
    Flash,
}

impl Storage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Storage::Disk => "no flash",
            Storage::DatabaseFlashCache => "database flash cache (vendor)",
            Storage::LineCache(_) => "caching block device (vendor)",
            Storage::Cell { mode: CachingMode::WriteBack, .. } => "flashcell, write-back",
            Storage::Cell { fills_scans: true, .. } => "flashcell, scans fill",
            Storage::Cell { .. } => "flashcell, defaults",
            Storage::Ablated(lack) => lack.map_or("ours, whole", Lack::name),
            Storage::Flash => "table on flash",
        }
    }

    pub(super) fn is_ours(self) -> bool {
        matches!(self, Storage::Cell { .. })
    }

    /// Scans are cached like anything else.
    pub(super) fn fills_scans(self) -> bool {
        matches!(self, Storage::Cell { fills_scans: true, .. })
    }

    pub(super) fn is_vendors(self) -> bool {
        matches!(self, Storage::DatabaseFlashCache | Storage::LineCache(_))
    }
}

/// Where keys lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    /// Keys asked for, all alike.
    pub(super) count: u64,
    /// Pages of the table, and leaves of its index behind them.
    pub(super) row_pages: u64,
    pub(super) leaf_pages: u64,
    /// Keys lie anywhere in the table and its index; else one after another.
    pub(super) scattered: bool,
}

impl Keys {
    fn spread(key: u64, pages: u64) -> u64 {
        let mut z = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((u128::from(z) * u128::from(pages)) >> 64) as u64
    }

    pub(super) fn row(&self, key: u64) -> PageNumber {
        let pages = self.row_pages;
        PageNumber(if self.scattered { Keys::spread(key, pages) } else { key * pages / self.count })
    }

    /// Of an index whose order is not that of the table: neighbours there are strangers here.
    pub(super) fn leaf(&self, key: u64) -> PageNumber {
        PageNumber(self.row_pages + Keys::spread(key ^ (1 << 40), self.leaf_pages))
    }

    pub(super) fn pages(&self) -> u64 {
        self.row_pages + self.leaf_pages
    }
}

/// What a session does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// Read a leaf of the index, then the row's page.
    Reads(Keys),
    /// The same, then change the row and commit.
    Updates(Keys),
    /// Read so many pages in order.
    Scan(u64),
}

impl Load {
    /// Of the table and its index.
    pub(super) fn pages(&self) -> u64 {
        match self {
            Load::Reads(keys) | Load::Updates(keys) => keys.pages(),
            Load::Scan(pages) => *pages,
        }
    }
}

/// An arm.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) under: Under,
    pub(super) storage: Storage,
    pub(super) load: Load,
    /// In the first pass; scans read the table once.
    pub(super) operations: u64,
    /// In each pass after it.
    pub(super) later_operations: u64,
    /// The first is cold.
    pub(super) passes: usize,
    /// Of the processor, for each operation; for each page of a scan.
    pub(super) cpu_ns: u64,
    /// What a scan reads at once.
    pub(super) scan_pages: usize,
    pub(super) frames: usize,
    pub(super) flash_bytes: u64,
}

/// What came of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub(super) elapsed_ns: u64,
    pub(super) waits: Waits,
    /// Pages that were not in memory.
    pub(super) missed: u64,
    /// Of those, served from flash.
    pub(super) hits: u64,
    /// Pages nobody had asked for before.
    pub(super) first: u64,
    /// Pages read and held against what they must be.
    pub(super) verified: u64,
    /// Pages the database writer wrote.
    pub(super) written: u64,
    pub(super) disk: Asked,
    pub(super) flash: Asked,
}

/// What an arm runs on in virtual time, put together.
struct Bench {
    data: Device,
    flash_cache: Option<FlashCache>,
    disk: Medium,
    flash: Medium,
    line_cache: Option<Arc<BlockCache>>,
    on_cell: Option<Made>,
}

impl Bench {
    async fn new(setup: &Setup, table_bytes: u64, world: &World) -> Bench {
        let on_disk = setup.storage != Storage::Flash;
        let round = |bytes: u64| bytes.next_multiple_of(16 << 20) + LABELS_BYTES;
        let disk = setup.under.disk(round(table_bytes), on_disk, world);
        let flash_bytes = if on_disk { round(setup.flash_bytes) } else { table_bytes };
        let flash = setup.under.flash(flash_bytes, setup.storage != Storage::Disk, world);
        let reached = |device: &Device| setup.under.reached(device.clone(), false, world);
        let data = reached(&disk.device);
        let mut bench = Bench { data, flash_cache: None, line_cache: None, on_cell: None, disk, flash };
        match setup.storage {
            Storage::Disk => bench.disk.content.fill(0, table_bytes),
            Storage::Flash => {
                bench.data = reached(&bench.flash.device);
                bench.flash.content.fill(0, table_bytes);
            }
            Storage::DatabaseFlashCache | Storage::LineCache(_) => {
                bench.disk.content.fill(0, table_bytes);
                let flash = reached(&bench.flash.device);
                let Vendors { data, flash_cache, line_cache } = setup.vendors(bench.data, flash, world);
                (bench.data, bench.flash_cache, bench.line_cache) = (data, flash_cache, line_cache);
            }
            Storage::Cell { mode, fills_scans } => {
                let mut config = CellConfig::default();
                if fills_scans {
                    config.sequential_cutoff_bytes = 0;
                }
                let shape = |spec: &mut GridDiskSpec| spec.caching_mode = mode;
                bench.on_cell(setup, table_bytes, config, shape, world).await;
            }
            Storage::Ablated(lack) => {
                let config = ablation::config(lack, setup.flash_bytes);
                bench.on_cell(setup, table_bytes, config, |spec| ablation::shape(lack, spec), world).await;
            }
        }
        bench
    }

    /// A cell with a flash cache, and one grid disk that is like `shape` wants it.
    async fn on_cell(
        &mut self,
        setup: &Setup,
        table_bytes: u64,
        config: CellConfig,
        shape: impl FnOnce(&mut GridDiskSpec),
        world: &World,
    ) {
        let wanted = Wanted { config, cache: Some(Some(setup.flash_bytes)), home: on_cell::DISK, bytes: table_bytes };
        let made = on_cell::make([&self.disk.device, &self.flash.device], wanted, shape, world).await;
        made.fill(&self.disk.content, table_bytes);
        self.data = setup.under.reached(made.device.clone(), true, world);
        self.on_cell = Some(made);
    }

    fn counts(&self) -> Counts {
        let lines = self.line_cache.as_ref().map_or(0, |lines| lines.hits());
        let on_cell = self.on_cell.as_ref().map_or(0, |made| made.grid_disk.counters.cache_hits.requests.get());
        Counts { hits: lines + on_cell, disk: self.disk.content.asked(), flash: self.flash.content.asked() }
    }
}

/// A cache of the vendor's between a database and its devices.
pub(super) struct Vendors {
    pub(super) data: Device,
    pub(super) flash_cache: Option<FlashCache>,
    pub(super) line_cache: Option<Arc<BlockCache>>,
}

/// What was counted beneath a database.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Reads that a cache beneath the database served.
    pub(super) hits: u64,
    pub(super) disk: Asked,
    pub(super) flash: Asked,
}

impl Setup {
    /// The vendor's cache of this arm; the disk alone where it has none.
    pub(super) fn vendors(&self, disk: Device, flash: Device, world: &World) -> Vendors {
        let mut vendors = Vendors { data: disk.clone(), flash_cache: None, line_cache: None };
        match self.storage {
            Storage::DatabaseFlashCache => {
                vendors.flash_cache = Some(FlashCache::new(flash, Some(self.flash_bytes), PAGE_BYTES as usize));
            }
            Storage::LineCache(line_bytes) => {
                let cache = BlockCache::new(disk, flash, self.flash_bytes, line_bytes, world);
                vendors.data = cache.clone();
                vendors.line_cache = Some(cache);
            }
            _ => {}
        }
        vendors
    }

    /// Bytes of the buffer cache that go for what is on flash.
    pub(super) fn header_bytes(&self) -> u64 {
        let flash_pages = (self.flash_bytes / PAGE_BYTES).min(self.load.pages());
        match self.storage {
            Storage::DatabaseFlashCache => flash_pages * VENDOR_HEADER_BYTES,
            Storage::Cell { .. } | Storage::Ablated(_) => flash_pages * OUR_HEADER_BYTES,
            Storage::Disk | Storage::LineCache(_) | Storage::Flash => 0,
        }
    }

    /// Operations of a pass.
    pub(super) fn operations_of(&self, pass: usize) -> u64 {
        if pass == 0 { self.operations } else { self.later_operations }
    }
}

impl Pass {
    /// With what was counted beneath the database meanwhile.
    pub(super) fn beneath(mut self, before: Counts, after: Counts) -> Pass {
        self.hits += after.hits - before.hits;
        self.disk = after.disk.since(before.disk);
        self.flash = after.flash.since(before.flash);
        self
    }
}

/// Run it in virtual time: what came of each pass.
///
/// # Errors
/// It does not end.
///
/// # Panics
/// A page is not what it must be.
pub(super) fn run(setup: &Setup) -> Result<Vec<Pass>, Stuck> {
    let plain = ExecutorConfig::plain(setup.seed);
    let executor =
        Executor::new(ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain });
    let (_process, world) = process_of(&executor);
    // Keys are the same in every arm: arms differ by what they do, not by luck.
    let prng = executor.prng("keys");
    executor.run(async {
        let mut bench = Bench::new(setup, setup.load.pages() * PAGE_BYTES, &world).await;
        let mut database = Database::start(setup, bench.data.clone(), bench.flash_cache.take(), prng, &world);
        let mut passes = Vec::new();
        for n in 0..setup.passes {
            let before = bench.counts();
            match database.pass(setup.operations_of(n)).await {
                Ok(pass) => passes.push(pass.beneath(before, bench.counts())),
                Err(error) => panic!("{error}"),
            }
        }
        database.stop().await;
        passes
    })
}
