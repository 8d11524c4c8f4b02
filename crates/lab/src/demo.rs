//! The main job end to end: one table on a slow disk, on that disk behind a flash cache, and on flash; random indexed
//! reads, primary-key updates and a full scan of each (field measurement S9), a mixture of both, and write-back; then redo
//! commits on the disk, with the flash log, and on flash (S1).
//!
//! The disk is emulated in real time (7200 rpm unless told otherwise); everything else is real: the `flashcell` binary,
//! its sockets, its files, NBD, and every block is verified by what it says.

mod measure;
mod report;
mod table;
mod workload;

pub use crate::served::ServerError;
pub use report::{Configuration, Row, Waits, Workload};
pub use table::WrongBlock;

use crate::output;
use crate::served::{self, Server};
use device::{Runtime, RuntimeConfig, RuntimeError};
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Meter, Timing};
use nbd::client::{Client, ClientError, ClientOptions};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{BLOCK_BYTES, Table};
use workload::{Keys, Phase};

/// The emulated disk when none is asked for.
pub const DISK_MODEL: &str = "sata-7200";
/// Blocks of the table: 64 MiB. The disk is little larger, so its arm travels as far as that of a full disk.
const TABLE_BLOCKS: u32 = 8192;
const MIB: u64 = 1 << 20;
/// The table in MiB.
const TABLE_MIB: u64 = TABLE_BLOCKS as u64 * BLOCK_BYTES as u64 / MIB;
/// Flash given to the cache: a quarter of the table, its own records included.
const CACHE_MIB: u64 = TABLE_MIB / 4;
/// Redo: on the disk, and on flash.
const REDO_MIB: u64 = 8;
/// Blocks of the redo.
const REDO_BLOCKS: u32 = (REDO_MIB * MIB) as u32 / BLOCK_BYTES as u32;
/// The flash log.
const LOG_MIB: u64 = 16;
/// Label, catalog, and rounding to allocation units.
const SLACK_MIB: u64 = 16;
/// Segments of the cache: small, since this cache is.
const SEGMENT: &str = "256K";
/// Sessions that work at the same time.
pub const SESSIONS: usize = 16;
/// Measured indexed reads.
const READS: usize = 1_500;
/// Reads before the measured ones of a warm cache.
const WARM_READS: usize = 8_000;
/// Measured updates.
const UPDATES: usize = 600;
/// Measured reads, every other one of which is an update.
const MIXED: usize = 800;
/// Measured commits.
const COMMITS: usize = 200;
/// What the flash cache has to give on indexed reads, in tenths.
const GAIN_TENTHS_MIN: u32 = 30;
/// Everything is decided by it.
const SEED: u64 = 9;

/// How to run.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The `flashcell` binary.
    pub binary: PathBuf,
    /// Write the rows as JSON.
    pub json: Option<PathBuf>,
    /// Write a page with bars.
    pub report: Option<PathBuf>,
    /// The disk to emulate: a name or `fixed:TIME[:PARALLEL]`.
    pub disk_model: String,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The server did not do its part.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A request failed.
    #[error("a request to the server failed: {0}\nhint: its log is {}", .log.display())]
    Client {
        /// Why.
        #[source]
        source: ClientError,
        /// The server's log.
        log: PathBuf,
    },
    /// A block was not what had been written: the worst there is.
    #[error("{0}\nhint: please report this, with the output of `flashcell --version`")]
    Wrong(#[from] WrongBlock),
    /// Threads of the client.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A result cannot be written.
    #[error("{path}: {source}")]
    Output {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a phase ended early.
#[derive(Debug)]
enum PhaseError {
    Client(ClientError),
    Wrong(WrongBlock),
}

impl From<ClientError> for PhaseError {
    fn from(error: ClientError) -> PhaseError {
        PhaseError::Client(error)
    }
}

impl From<WrongBlock> for PhaseError {
    fn from(error: WrongBlock) -> PhaseError {
        PhaseError::Wrong(error)
    }
}

/// A running experiment.
struct Demo {
    runtime: Runtime,
    server: Server,
    /// None when stderr is no terminal.
    bar: Option<ProgressBar>,
    rows: Vec<Row>,
}

/// Run it; whether the flash cache gave what it has to. Results go to stdout, talk to stderr.
///
/// # Errors
/// See [`DemoError`]; the server's directory is removed in any case.
pub fn demo(options: &DemoOptions) -> Result<bool, DemoError> {
    let began = Instant::now();
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })?;
    let server = Server::start(&served::Plan {
        binary: options.binary.clone(),
        name: "demo".to_owned(),
        disk: format!("{}M", TABLE_MIB + REDO_MIB + SLACK_MIB),
        flash: Some(format!("{}M", TABLE_MIB + CACHE_MIB + REDO_MIB + LOG_MIB + SLACK_MIB)),
        grid_disk: Some(format!("table_disk:{TABLE_MIB}M:none")),
        disk_model: Some(options.disk_model.clone()),
        tuning: vec![("segment", SEGMENT.to_owned())],
        ..served::Plan::default()
    })?;
    // The cell was made with a cache over all flash: a grid disk needs some of it.
    server.cellcli("drop flashcache")?;
    server.cellcli(&format!("create griddisk table_flash celldisk=FD_00_demo, size={TABLE_MIB}M, cachingMode=none"))?;
    for (name, cell_disk) in [("redo_disk", "CD_00_demo"), ("redo_flash", "FD_00_demo")] {
        let size = format!("size={REDO_MIB}M, purpose=redo, cachingMode=none");
        server.cellcli(&format!("create griddisk {name} celldisk={cell_disk}, {size}"))?;
    }
    server.cellcli(&format!("create flashcache all size={CACHE_MIB}M"))?;

    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg:48} {bar:30} {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    });
    let mut demo = Demo { runtime, server, bar, rows: Vec::new() };
    demo.run()?;
    if let Some(bar) = &demo.bar {
        bar.finish_and_clear();
    }
    let Demo { server, rows, .. } = demo;
    server.stop()?;

    let head = report::Head {
        table_mib: TABLE_MIB,
        cache_mib: CACHE_MIB,
        block_bytes: BLOCK_BYTES,
        sessions: SESSIONS,
        disk_model: options.disk_model.clone(),
        warm_reads: WARM_READS,
    };
    let mut stdout = std::io::stdout().lock();
    let printed = stdout.write_all(report::text(&head, &rows).as_bytes());
    printed.map_err(|source| DemoError::Output { path: "stdout".into(), source })?;
    for (path, content) in [(&options.json, report::json(&rows)), (&options.report, report::html(&head, &rows))] {
        if let Some(path) = path {
            output::save(path, &content).map_err(|source| DemoError::Output { path: path.clone(), source })?;
        }
    }
    let good = report::gain_tenths(&rows) >= Some(GAIN_TENTHS_MIN);
    let mut stderr = std::io::stderr().lock();
    // Nobody is left to tell when stderr is gone.
    let _ = write!(stderr, "\n{}", report::farewell(good, GAIN_TENTHS_MIN, began.elapsed()));
    Ok(good)
}

impl Demo {
    fn run(&mut self) -> Result<(), DemoError> {
        let disk = Arc::new(Table::new(TABLE_BLOCKS, 1));
        let flash = Arc::new(Table::new(TABLE_BLOCKS, 2));
        self.load(&disk, "table_disk")?;
        self.load(&flash, "table_flash")?;

        let keys = Keys::new(SEED, TABLE_BLOCKS);
        let reads = |purpose: &str| Phase::Reads(keys.draw(purpose, READS));
        let updates = || Phase::Updates(keys.draw("updates", UPDATES));
        let mixed = || Phase::Mixed(keys.draw("mixed", MIXED));

        let on_disk = (&disk, "table_disk");
        let none = Configuration::NoFlash;
        self.measure(none, Workload::IndexedReads, on_disk, reads("measured"))?;
        self.measure(none, Workload::Updates, on_disk, updates())?;
        self.measure(none, Workload::Mixed, on_disk, mixed())?;
        self.measure(none, Workload::Scan, on_disk, Phase::Scan)?;

        self.server.cellcli("alter griddisk table_disk cachingMode=write-through")?;
        let cache = Configuration::FlashCache;
        self.measure(Configuration::ColdFlashCache, Workload::IndexedReads, on_disk, reads("cold"))?;
        self.phase("warming the flash cache", &disk, "table_disk", Phase::Reads(keys.draw("warm", WARM_READS)))?;
        self.measure(cache, Workload::IndexedReads, on_disk, reads("measured"))?;
        self.measure(cache, Workload::Updates, on_disk, updates())?;
        self.measure(cache, Workload::Mixed, on_disk, mixed())?;
        self.measure(cache, Workload::Scan, on_disk, Phase::Scan)?;
        self.server.cellcli("alter griddisk table_disk cachingMode=write-back")?;
        self.measure(Configuration::WriteBack, Workload::Updates, on_disk, updates())?;
        self.measure(Configuration::WriteBack, Workload::Mixed, on_disk, mixed())?;

        let (all, on_flash) = (Configuration::TableOnFlash, (&flash, "table_flash"));
        self.measure(all, Workload::IndexedReads, on_flash, reads("measured"))?;
        self.measure(all, Workload::Updates, on_flash, updates())?;
        self.measure(all, Workload::Mixed, on_flash, mixed())?;
        self.measure(all, Workload::Scan, on_flash, Phase::Scan)?;
        self.commits()
    }

    /// Redo on the disk, on the disk with the flash log, and on flash.
    fn commits(&mut self) -> Result<(), DemoError> {
        let (disk, flash) = (Arc::new(Table::new(REDO_BLOCKS, 3)), Arc::new(Table::new(REDO_BLOCKS, 4)));
        self.load(&disk, "redo_disk")?;
        self.load(&flash, "redo_flash")?;
        let commits = |demo: &mut Demo, configuration, redo: (&Arc<Table>, &str)| {
            demo.measure(configuration, Workload::Commits, redo, Phase::Commits(COMMITS))
        };
        commits(self, Configuration::NoFlash, (&disk, "redo_disk"))?;
        self.server.cellcli(&format!("create flashlog all size={LOG_MIB}M"))?;
        commits(self, Configuration::FlashLog, (&disk, "redo_disk"))?;
        commits(self, Configuration::TableOnFlash, (&flash, "redo_flash"))?;
        // What was acknowledged is there.
        self.phase("verifying the redo", &disk, "redo_disk", Phase::Scan).map(|_| ())
    }

    fn load(&mut self, table: &Arc<Table>, export: &str) -> Result<(), DemoError> {
        self.phase(&format!("loading {export}"), table, export, Phase::Load).map(|_| ())
    }

    /// Run one phase and add its row.
    fn measure(
        &mut self,
        configuration: Configuration,
        workload: Workload,
        (table, export): (&Arc<Table>, &str),
        phase: Phase,
    ) -> Result<(), DemoError> {
        let before = Meter::read(&self.server)?;
        let told = format!("{}, {}", workload.name(), configuration.name());
        let (timing, verified_blocks) = self.phase(&told, table, export, phase)?;
        let used = Meter::read(&self.server)?.since(&before);
        self.rows.push(Row {
            configuration,
            workload,
            elapsed: timing.elapsed,
            verified_blocks,
            hit_ratio_milli: if configuration.has_cache() { used.hit_ratio_milli() } else { None },
            waits: used.waits(&timing, configuration.acknowledges_on_flash()),
        });
        Ok(())
    }

    /// Run one phase: how long it took, and how many blocks it verified.
    fn phase(&self, told: &str, table: &Arc<Table>, export: &str, phase: Phase) -> Result<(Timing, u64), DemoError> {
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_length(phase.steps(table) as u64);
            bar.set_message(told.to_owned());
        }
        let world = self.runtime.world(SEED);
        let (address, export, table) = (self.server.nbd_address(), export.to_owned(), table.clone());
        let bar = self.bar.clone();
        let done = self.runtime.block_on(async move {
            let client = Client::connect(&world, &address, &export, &ClientOptions::default()).await?;
            let began = world.clock.now();
            let progress = |done| {
                if let Some(bar) = &bar {
                    bar.inc(done);
                }
            };
            let done = phase.run(&client, &table, &progress).await?;
            let worked = world.clock.now();
            if phase.writes() {
                client.flush().await?;
            }
            let ended = world.clock.now();
            let timing = Timing {
                elapsed: Duration::from_nanos(ended.ns_since(began)),
                flush: done.flushes + Duration::from_nanos(ended.ns_since(worked)),
                sessions: phase.sessions(),
            };
            client.disconnect().await;
            Ok((timing, done.verified_blocks))
        });
        done.map_err(|error| match error {
            PhaseError::Client(source) => DemoError::Client { source, log: self.server.keep_log() },
            PhaseError::Wrong(wrong) => DemoError::Wrong(wrong),
        })
    }
}
