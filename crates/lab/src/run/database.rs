//! One arm of an experiment with a database in front: a session over a buffer cache, over a disk, a disk with one of several flash caches, or
//! flash alone. Same memory, devices and processor in every arm.
//!
//! Every page that is read is held against the version it must have.

use super::ablation::{self, Lack};
use super::block_cache::BlockCache;
use super::machine::Machine;
use super::on_cell::{self, Made, Wanted};
use crate::model::flash::Flash;
use crate::model::raid::Raid;
use crate::model::{Asked, Modelled};
use buffercache::{
    BufferCache, CacheParts, Config, FlashCache, PageError, PageNumber, RedoLog, Session, Stamped, Version, Wait, Waits,
};
use cell::CellConfig;
use celldisk::{CachingMode, GridDiskSpec};
use device::{Device, Prng, World};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;
use std::sync::Arc;
use std::time::Duration;

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
const LABELS_BYTES: u64 = 256 << 20;

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

    fn row(&self, key: u64) -> PageNumber {
        let pages = self.row_pages;
        PageNumber(if self.scattered { Keys::spread(key, pages) } else { key * pages / self.count })
    }

    /// Of an index whose order is not that of the table: neighbours there are strangers here.
    fn leaf(&self, key: u64) -> PageNumber {
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
    pub(super) machine: Machine,
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

/// What an arm runs on, put together.
struct Bench {
    data: Device,
    flash_cache: Option<FlashCache>,
    disk: Arc<Modelled>,
    flash: Arc<Modelled>,
    line_cache: Option<Arc<BlockCache>>,
    on_cell: Option<Made>,
    /// Bytes of the buffer cache that go for what is on flash.
    header_bytes: u64,
}

impl Bench {
    async fn new(setup: &Setup, pages: u64, world: &World) -> Bench {
        let machine = setup.machine;
        let table_bytes = pages * PAGE_BYTES;
        let disks = Raid::of_disks(machine.disk, machine.disks, machine.stripe_bytes, world);
        let on_disk = setup.storage != Storage::Flash;
        let round = |bytes: u64| bytes.next_multiple_of(16 << 20) + LABELS_BYTES;
        let disk = Modelled::new(disks, round(table_bytes), on_disk);
        let flash_bytes = if on_disk { round(setup.flash_bytes) } else { table_bytes };
        let flash = Modelled::new(Flash::new(machine.flash, world), flash_bytes, setup.storage != Storage::Disk);
        let mut bench = Bench {
            data: disk.device(),
            flash_cache: None,
            line_cache: None,
            on_cell: None,
            header_bytes: 0,
            disk,
            flash,
        };
        let flash_pages = (setup.flash_bytes / PAGE_BYTES).min(pages);
        match setup.storage {
            Storage::Disk => bench.disk.fill(0, table_bytes),
            Storage::Flash => {
                bench.data = bench.flash.device();
                bench.flash.fill(0, table_bytes);
            }
            Storage::DatabaseFlashCache => {
                bench.disk.fill(0, table_bytes);
                let flash = FlashCache::new(bench.flash.device(), Some(setup.flash_bytes), PAGE_BYTES as usize);
                bench.flash_cache = Some(flash);
                bench.header_bytes = flash_pages * VENDOR_HEADER_BYTES;
            }
            Storage::LineCache(line_bytes) => {
                bench.disk.fill(0, table_bytes);
                let (disk, flash) = (bench.disk.device(), bench.flash.device());
                let cache = BlockCache::new(disk, flash, setup.flash_bytes, line_bytes, world);
                bench.data = cache.clone();
                bench.line_cache = Some(cache);
            }
            Storage::Cell { mode, fills_scans } => {
                let mut config = CellConfig::default();
                if fills_scans {
                    config.sequential_cutoff_bytes = 0;
                }
                let shape = |spec: &mut GridDiskSpec| spec.caching_mode = mode;
                bench.on_cell(setup, table_bytes, config, shape, world).await;
                bench.header_bytes = flash_pages * OUR_HEADER_BYTES;
            }
            Storage::Ablated(lack) => {
                let config = ablation::config(lack, setup.flash_bytes);
                bench.on_cell(setup, table_bytes, config, |spec| ablation::shape(lack, spec), world).await;
                bench.header_bytes = flash_pages * OUR_HEADER_BYTES;
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
        let made = on_cell::make([&self.disk, &self.flash], wanted, shape, world).await;
        made.fill(&self.disk, table_bytes);
        self.data = made.device.clone();
        self.on_cell = Some(made);
    }

    fn hits(&self, cache: &BufferCache<Stamped>) -> u64 {
        let in_database = cache.flash().map_or(0, |flash| flash.figures().hits);
        let lines = self.line_cache.as_ref().map_or(0, |lines| lines.hits());
        let on_cell = self.on_cell.as_ref().map_or(0, |made| made.grid_disk.counters.cache_hits.requests.get());
        in_database + lines + on_cell
    }
}

/// The client of the database.
struct Client {
    session: Session<Stamped>,
    load: Load,
    cpu: Duration,
    prng: Prng,
    /// The version each page has; 0: nobody has asked for it.
    versions: Vec<u32>,
    first: u64,
    verified: u64,
}

impl Client {
    fn check(versions: &mut [u32], first: &mut u64, verified: &mut u64, page: PageNumber, found: Version) {
        let version = &mut versions[page.0 as usize];
        if *version == 0 {
            *version = 1;
            *first += 1;
        }
        *verified += 1;
        assert!(found.0 == u64::from(*version), "page {}: version {} instead of {version}", page.0, found.0);
    }

    async fn get(&mut self, page: PageNumber) -> Result<(), PageError> {
        let found = self.session.get(page).await?;
        Client::check(&mut self.versions, &mut self.first, &mut self.verified, page, found);
        Ok(())
    }

    async fn pass(&mut self, operations: u64) -> Result<(), PageError> {
        match self.load {
            Load::Scan(pages) => {
                // In pieces: the processor's work comes between two reads.
                let piece = 128;
                for from in (0..pages).step_by(piece as usize) {
                    let end = (from + piece).min(pages);
                    let Client { session, versions, first, verified, .. } = self;
                    session
                        .scan(from..end, |page, found| Client::check(versions, first, verified, page, *found))
                        .await?;
                    session.compute(self.cpu * u32::try_from(end - from).unwrap_or(u32::MAX)).await;
                }
            }
            Load::Reads(keys) | Load::Updates(keys) => {
                for _ in 0..operations {
                    let key = self.prng.below(keys.count);
                    self.session.compute(self.cpu).await;
                    self.get(keys.leaf(key)).await?;
                    let row = keys.row(key);
                    self.get(row).await?;
                    if matches!(self.load, Load::Updates(_)) {
                        self.session.change(row, |version| version.0 += 1).await?;
                        self.versions[row.0 as usize] += 1;
                        self.session.commit().await?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Run it: what came of each pass.
///
/// # Errors
/// It does not end, or a page is not what it must be.
pub(super) fn run(setup: &Setup) -> Result<Vec<Pass>, Stuck> {
    let plain = ExecutorConfig::plain(setup.seed);
    let executor =
        Executor::new(ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain });
    let (_process, world) = process_of(&executor);
    let pages = setup.load.pages();
    // Keys are the same in every arm: arms differ by what they do, not by luck.
    let prng = executor.prng("keys");
    executor.run(async {
        let mut bench = Bench::new(setup, pages, &world).await;
        // A drive of its own.
        let redo = Modelled::new(Flash::new(setup.machine.redo, &world), 256 << 20, false);
        let frames = setup.frames.saturating_sub((bench.header_bytes / PAGE_BYTES) as usize).max(16);
        let parts = CacheParts {
            format: Stamped::new(PAGE_BYTES as usize),
            data: bench.data.clone(),
            redo: Some(RedoLog::new(redo.device())),
            flash: bench.flash_cache.take(),
            world: world.clone(),
        };
        let config = Config::new(frames);
        let config = Config { scan_pages: setup.scan_pages.min(config.scan_pages), ..config };
        let cache = BufferCache::start(config, parts);
        let mut client = Client {
            session: cache.session(),
            load: setup.load,
            cpu: Duration::from_nanos(setup.cpu_ns),
            prng,
            versions: vec![0; pages as usize],
            first: 0,
            verified: 0,
        };
        let mut passes = Vec::new();
        for n in 0..setup.passes {
            let operations = if n == 0 { setup.operations } else { setup.later_operations };
            let begun = world.clock.now();
            let before = (client.session.waits(), cache.figures(), bench.hits(&cache));
            let asked = (bench.disk.asked(), bench.flash.asked());
            (client.first, client.verified) = (0, 0);
            if let Err(error) = client.pass(operations).await {
                panic!("{error}");
            }
            let after = cache.figures();
            let mut waits = Waits::default();
            Wait::ALL.iter().for_each(|w| waits.add(*w, client.session.waits().ns(*w) - before.0.ns(*w)));
            let in_database = |f: &buffercache::Figures| f.reads + f.flash.map_or(0, |flash| flash.hits);
            passes.push(Pass {
                elapsed_ns: world.clock.now().ns_since(begun),
                waits,
                missed: in_database(&after) - in_database(&before.1),
                hits: bench.hits(&cache) - before.2,
                first: client.first,
                verified: client.verified,
                written: after.writes - before.1.writes,
                disk: bench.disk.asked().since(asked.0),
                flash: bench.flash.asked().since(asked.1),
            });
        }
        cache.stop().await;
        passes
    })
}
