//! An arm of an experiment in the real world: the same database and client against a served cell of its own, over NBD, on files with the models as
//! delays or on devices that are given.
//!
//! Vendors' caches run here as they do in virtual time, over grid disks of such a cell. Redo, which is on a drive of its own in every arm, goes to
//! the model of that drive, which takes its time on the real clock. Never touches a device that carries anything.

use super::RunOptions;
use super::arm::{Arm, Configuration, LOG_BYTES, LogFigures, Outcomes, RING_BYTES, commits};
use super::client::Database;
use super::database::{Counts, LABELS_BYTES, PAGE_BYTES, Pass, Setup, Storage};
use super::s14::{self, Temp};
use super::sort;
use crate::model::Asked;
use crate::served::{Server, ServerError, sum_milli};
use crate::what_if::real::{Layout, clear_flash};
use crate::what_if::{Devices, RealError, RealOptions, mode_name};
use buffercache::Version;
use buffercache::page::{PART_BYTES, Stamp};
use cell::CellConfig;
use device::{Address, Buf, Bufs, Device, Outcome, Runtime, RuntimeConfig, World};
use futures_util::future::join_all;
use nbd::client::{RemoteDisk, RemoteOptions};
use std::io::Write;
use std::sync::Arc;

/// What the cell is called; its cell disks are named after it.
const NAME: &str = "lab";
/// The grid disk of the database, and the one of a vendor's cache.
const DATA: &str = "DATA";
const VENDORS: &str = "VENDORS";
/// The grid disk of redo, and that of a temporary segment.
const REDO: &str = "REDO";
const TEMP: &str = "TEMP";
/// How the database is brought to the grid disk: in requests of so many bytes, so many at once.
const FILL_BYTES: u64 = 1 << 20;
const FILLS: u64 = 8;

/// Whole units of a cell disk.
fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(16 << 20)
}

/// A grid disk; `more` says what it is like.
fn grid_disk(server: &Server, name: &str, home: &str, bytes: u64, more: &str) -> Result<(), ServerError> {
    let what = format!("celldisk={home}_{NAME}, size={}M, {more}", whole(bytes) >> 20);
    server.cellcli(&format!("create griddisk {name} {what}")).map(drop)
}

/// A grid disk without the flash cache.
const UNCACHED: &str = "cachingMode=none";

/// The cache of a cell as virtual time has it.
fn tuning() -> Vec<(&'static str, String)> {
    let config = CellConfig::default().cache;
    let kib = |bytes: u32| format!("{}K", bytes >> 10);
    vec![("segment", kib(config.segment_bytes)), ("block", kib(config.block_bytes))]
}

/// Where one arm is measured.
pub(super) struct Real<'a> {
    options: &'a RealOptions,
    devices: &'a Devices,
    runtime: Runtime,
}

impl<'a> Real<'a> {
    /// Where arms are measured, if they are to be.
    ///
    /// # Errors
    /// No served cell can have these devices.
    pub(super) fn of(options: &'a RunOptions) -> Result<Option<Real<'a>>, RealError> {
        let (Some(options), Some(devices)) = (&options.real, &options.devices) else { return Ok(None) };
        options.check([&devices.disk, &devices.flash])?;
        let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })?;
        Ok(Some(Real { options, devices, runtime }))
    }

    /// How often each arm is run.
    pub(super) fn runs(&self) -> usize {
        self.options.runs
    }

    /// Say how long it will take, by what virtual time took; `more` is what comes to that.
    pub(super) fn say_how_long(&self, foretold_ns: u64, more: &str) {
        let minutes = (foretold_ns as f64 * self.runs() as f64 / 60e9).ceil();
        // Talk that nobody hears changes nothing.
        let _ = writeln!(
            std::io::stderr(),
            "in real time this takes some {minutes} min{more}; --syncs N takes less of the work"
        );
    }

    /// A cell with a disk, and flash beside it if it has any, that nothing is on yet.
    fn serve(&self, layout: Layout) -> Result<Server, RealError> {
        let has_flash = layout.flash_bytes.is_some();
        let server = self.options.start(NAME, [&self.devices.disk, &self.devices.flash], layout)?;
        if has_flash {
            clear_flash(&server)?;
        }
        Ok(server)
    }

    /// A cell for this storage, the grid disk of the database on it and, where a vendor's cache wants it, one on flash.
    fn serve_database(&self, setup: &Setup, table_bytes: u64) -> Result<Server, RealError> {
        let cached = !matches!(setup.storage, Storage::Disk | Storage::Flash);
        let cutoff = if setup.storage.fills_scans() { "0" } else { "4M" }.to_owned();
        let server = self.serve(Layout {
            on_flash: setup.storage == Storage::Flash,
            disk_bytes: whole(table_bytes) + LABELS_BYTES,
            flash_bytes: cached.then(|| whole(setup.flash_bytes) + LABELS_BYTES),
            tuning: tuning().into_iter().chain([("sequential_cutoff", cutoff)]).collect(),
        })?;
        grid_disk(&server, DATA, "CD_00", table_bytes, UNCACHED)?;
        if setup.storage.is_vendors() {
            grid_disk(&server, VENDORS, "FD_00", setup.flash_bytes, UNCACHED)?;
        }
        Ok(server)
    }

    /// Run it: what came of each pass. The database is brought to the grid disk before it has a cache.
    ///
    /// # Errors
    /// The server did not do its part, or a page is not what it must be.
    pub(super) fn run(&self, setup: &Setup, tell: &mut dyn FnMut(&str)) -> Result<Vec<Pass>, RealError> {
        let table_bytes = setup.load.pages() * PAGE_BYTES;
        let server = self.serve_database(setup, table_bytes)?;
        let world = self.runtime.world(setup.seed);
        let address = server.nbd_address();
        tell(&format!("{}: the table is written", setup.storage.name()));
        let data = self.disk(&world, &address, DATA)?;
        let filled = {
            let data = data.clone();
            self.runtime.block_on(async move { fill(&data, table_bytes).await })
        };
        filled.map_err(|told| RealError::Request { told, log: server.keep_log() })?;
        if let Storage::Cell { mode, .. } = setup.storage {
            server.cellcli(&format!("create flashcache all size={}K", setup.flash_bytes >> 10))?;
            server.cellcli(&format!("alter griddisk {DATA} cachingMode={}", mode_name(mode)))?;
        }
        let vendors = match setup.storage.is_vendors() {
            true => Some(setup.vendors(data.clone(), self.disk(&world, &address, VENDORS)?, &world)),
            false => None,
        };
        let lines = vendors.as_ref().and_then(|vendors| vendors.line_cache.clone());
        let (data, flash) = vendors.map_or((data, None), |vendors| (vendors.data, vendors.flash_cache));
        // Keys as in virtual time: by the seed and this name.
        let prng = world.prng.fork("keys");
        let mut database = {
            let (setup, world) = (setup.clone(), world.clone());
            self.runtime.block_on(async move { Database::start(&setup, data, flash, prng, &world) })
        };
        let mut passes = Vec::new();
        let counts = |server: &Server| -> Result<Counts, ServerError> {
            let mut counts = counts(server, setup.storage)?;
            counts.hits += lines.as_ref().map_or(0, |lines| lines.hits());
            Ok(counts)
        };
        for n in 0..setup.passes {
            tell(&format!("{}: pass {} of {} in real time", setup.storage.name(), n + 1, setup.passes));
            let before = counts(&server)?;
            let operations = setup.operations_of(n);
            let done = self.runtime.block_on(async move {
                let pass = database.pass(operations).await.map_err(|error| error.to_string());
                (database, pass)
            });
            database = done.0;
            let pass = done.1.map_err(|told| RealError::Request { told, log: server.keep_log() })?;
            passes.push(pass.beneath(before, counts(&server)?));
        }
        self.runtime.block_on(async move { database.stop().await });
        drop(lines);
        server.stop()?;
        Ok(passes)
    }

    /// Sessions commit on a redo grid disk: what came of it, of several runs the one whose elapsed time is the median.
    ///
    /// # Errors
    /// The server did not do its part, or a commit was refused.
    pub(super) fn commits(&self, arm: &Arm, tell: &mut dyn FnMut(&str)) -> Result<Outcomes, RealError> {
        let elapsed = |outcomes: &Outcomes| outcomes.elapsed;
        self.median_run(&arm.configuration.name(), tell, elapsed, || self.commits_once(arm))
    }

    /// Of as many runs as are asked for, the one whose elapsed time is the median.
    fn median_run<Done, Time: Ord>(
        &self,
        name: &str,
        tell: &mut dyn FnMut(&str),
        elapsed: impl Fn(&Done) -> Time,
        once: impl Fn() -> Result<Done, RealError>,
    ) -> Result<Done, RealError> {
        let runs = self.runs();
        let mut outcomes = Vec::new();
        for run in 1..=runs {
            tell(&format!("run {run} of {runs}: {name} in real time"));
            outcomes.push(once()?);
        }
        outcomes.sort_by_key(elapsed);
        Ok(outcomes.swap_remove(outcomes.len() / 2))
    }

    fn commits_once(&self, arm: &Arm) -> Result<Outcomes, RealError> {
        let mode = if let Configuration::Log(mode) = arm.configuration { Some(mode) } else { None };
        let server = self.serve(Layout {
            on_flash: arm.configuration == Configuration::Flash,
            disk_bytes: LOG_BYTES + LABELS_BYTES,
            flash_bytes: mode.map(|_| RING_BYTES + LABELS_BYTES),
            tuning: Vec::new(),
        })?;
        if mode.is_some() {
            server.cellcli(&format!("create flashlog all size={}M", RING_BYTES >> 20))?;
        }
        grid_disk(&server, REDO, "CD_00", LOG_BYTES, &format!("{UNCACHED}, purpose=redo"))?;
        if let Some(mode) = mode {
            server.cellcli(&format!("alter griddisk {REDO} flashLogMode={}", mode.name()))?;
        }
        let world = self.runtime.world(arm.seed);
        let device = self.disk(&world, &server.nbd_address(), REDO)?;
        let done = {
            let (arm, prng) = (arm.clone(), world.prng.fork("sessions"));
            self.runtime.block_on(async move { commits(device, &arm, prng, &world).await })
        };
        let (samples, elapsed) = done.map_err(|told| RealError::Request { told, log: server.keep_log() })?;
        let log = mode.map(|_| log_figures(&server)).transpose()?;
        server.stop()?;
        Ok(Outcomes { samples, elapsed, log, parts_of_pages: 0 })
    }

    /// A sort whose temporary segment is a grid disk; its table is on the model of the disk, which takes its time on the real clock. Of several
    /// runs the one whose elapsed time is the median.
    ///
    /// # Errors
    /// The server did not do its part, or the sort went wrong.
    pub(super) fn sort(&self, arm: &s14::Arm, tell: &mut dyn FnMut(&str)) -> Result<sort::Outcomes, RealError> {
        self.median_run(arm.temp.name(), tell, sort::Outcomes::elapsed_ns, || self.sort_once(arm))
    }

    fn sort_once(&self, arm: &s14::Arm) -> Result<sort::Outcomes, RealError> {
        let (table_bytes, temp_bytes) = (arm.table_bytes(), arm.temp_bytes());
        let has_flash = matches!(arm.temp, Temp::Cached | Temp::OnFlash);
        let server = self.serve(Layout {
            on_flash: arm.temp == Temp::Flash,
            disk_bytes: temp_bytes + LABELS_BYTES,
            flash_bytes: has_flash.then(|| 2 * temp_bytes + LABELS_BYTES),
            tuning: tuning(),
        })?;
        let (home, mode) = match arm.temp {
            Temp::Cached => ("CD_00", "cachingMode=write-back"),
            Temp::OnFlash => ("FD_00", UNCACHED),
            Temp::Disk | Temp::Flash => ("CD_00", UNCACHED),
        };
        if arm.temp == Temp::Cached {
            server.cellcli(&format!("create flashcache all size={}K", temp_bytes >> 10))?;
        }
        grid_disk(&server, TEMP, home, temp_bytes, &format!("{mode}, purpose=temp"))?;
        let world = self.runtime.world(arm.seed);
        let table = self.devices.disk.modelled(table_bytes, true, &world, world.prng.fork("disk"));
        table.content.fill(0, table_bytes);
        let temp = self.disk(&world, &server.nbd_address(), TEMP)?;
        let parts = arm.parts(table.device, temp, &world);
        let sorted = self.runtime.block_on(async move { sort::sort(parts).await });
        let outcomes =
            sorted.map_err(|error| RealError::Request { told: error.to_string(), log: server.keep_log() })?;
        server.stop()?;
        Ok(outcomes)
    }

    fn disk(&self, world: &World, address: &Address, name: &str) -> Result<Device, RealError> {
        let (world, address, name) = (world.clone(), address.clone(), name.to_owned());
        let connected = self
            .runtime
            .block_on(async move { RemoteDisk::connect(&world, &address, &name, RemoteOptions::default()).await });
        Ok(Arc::new(connected?))
    }
}

/// The first version of every page.
async fn fill(device: &Device, bytes: u64) -> Result<(), String> {
    let piece = FILL_BYTES.min(u64::from(device.geometry().transfer_bytes_max));
    let offsets: Vec<u64> = (0..bytes).step_by(piece as usize).collect();
    for together in offsets.chunks(FILLS as usize) {
        let writes = together.iter().map(|offset| {
            let len = piece.min(bytes - offset) as usize;
            let mut content = vec![0; len];
            for (n, part) in content.chunks_exact_mut(PART_BYTES).enumerate() {
                Stamp { part: offset / PART_BYTES as u64 + n as u64, version: Version(1) }.fill(part);
            }
            device.write(*offset, Bufs::from(Buf::padded(&content, 512)).freeze(), false)
        });
        for done in join_all(writes).await {
            if done.outcome != Outcome::Done {
                return Err(format!("the table could not be written: {:?}", done.outcome));
            }
        }
    }
    match device.flush().await.outcome {
        Outcome::Done => Ok(()),
        failed => Err(format!("the table could not be made durable: {failed:?}")),
    }
}

/// The counters of the flash log.
fn log_figures(server: &Server) -> Result<LogFigures, ServerError> {
    let metrics = server.metrics()?;
    let named = |name: &str| sum_milli(&metrics, |found| found == name, "") / 1000;
    let is_skip = |name: &str| name.starts_with("FL_IO_W_SKIP_") && !name.ends_with("_MIN");
    Ok(LogFigures {
        redo_writes: named("FL_RQ_W"),
        disk_first: named("FL_DISK_FIRST"),
        flash_first: named("FL_FLASH_FIRST"),
        skips: sum_milli(&metrics, is_skip, "") / 1000,
        flash_legs: named("FL_IO_W"),
        prevented: named("FL_PREVENTED_OUTLIERS"),
        actual: named("FL_ACTUAL_OUTLIERS"),
    })
}

/// As the cell counts them.
fn counts(server: &Server, storage: Storage) -> Result<Counts, ServerError> {
    let metrics = server.metrics()?;
    let sum = |names: [&str; 2], object: &str| sum_milli(&metrics, |name| names.contains(&name), object);
    let asked = |object: &str| Asked {
        reads: sum(["CD_IO_RQ_R_SM", "CD_IO_RQ_R_LG"], object) / 1000,
        read_bytes: sum(["CD_IO_BY_R_SM", "CD_IO_BY_R_LG"], object) * (1 << 20) / 1000,
        writes: sum(["CD_IO_RQ_W_SM", "CD_IO_RQ_W_LG"], object) / 1000,
        written_bytes: sum(["CD_IO_BY_W_SM", "CD_IO_BY_W_LG"], object) * (1 << 20) / 1000,
    };
    let hits = sum_milli(&metrics, |name| name == "FC_IO_RQ_R", "FLASHCACHE") / 1000;
    let (disk, flash) = (asked("CD_"), asked("FD_"));
    Ok(match storage {
        // What is flash in other arms is the disk of this cell.
        Storage::Flash => Counts { hits, disk: flash, flash: disk },
        _ => Counts { hits, disk, flash },
    })
}
