//! What flash would give a workload: a trace replayed against the production engine, for each size and mode of the cache, beside the disk alone
//! and all on flash; what that costs and how long the flash lasts; and what to do, in words.
//!
//! In virtual time on models of the devices, and on request the same run against a served cell on real files with the same models as delays.
//! Never writes anything but the files it is told to and what it made itself.

mod advice;
mod arm;
mod driver;
mod prices;
pub(crate) mod real;
mod report;
mod size;
mod workload;
pub(crate) mod world;

pub use prices::{DEFAULT_PRICES, PriceError, prices};
pub use real::{RealError, RealOptions};
pub use size::FlashSize;
pub use world::VirtualError;

pub(crate) use arm::mode_name;

use crate::devices::{DeviceError, DeviceModel};
use crate::output;
use crate::policies::{self, PoliciesError, PoliciesOptions};
use crate::run::run_all;
use crate::trace::{Columns, Format, TraceError};
use arm::{Placement, Run, SEGMENTS_MIN, Setting};
use celldisk::CachingMode;
use driver::Pace;
use indicatif::{ProgressBar, ProgressStyle};
use prices::Prices;
use report::{CurvePoint, Report};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use workload::{CALLS_MAX, Reading, SPAN_BYTES_MAX, Workload};

/// The most devices of a trace: the cell's grid disks.
const DEVICES_MAX: usize = celldisk::layout::GRID_DISKS_MAX;
/// Sizes of the miss-ratio curve, of the data touched.
const CURVE: [u64; 9] = [10_000, 20_000, 50_000, 100_000, 200_000, 300_000, 500_000, 750_000, 1_200_000];

/// What is asked.
#[derive(Clone, Debug)]
pub struct WhatIfOptions {
    /// The trace.
    pub trace: PathBuf,
    /// How to read it; told from its content when not given.
    pub format: Option<Format>,
    /// Which column holds what, in place of a format.
    pub columns: Option<Columns>,
    /// Only so many requests from its beginning.
    pub requests_max: Option<usize>,
    /// Sizes of the flash cache.
    pub flash: Vec<FlashSize>,
    /// What the disk and the flash are.
    pub devices: Devices,
    /// Modes of the cache.
    pub modes: Vec<Mode>,
    /// Requests under way at a time.
    pub sessions: usize,
    /// Requests come when the trace says, whether or not earlier ones are answered.
    pub open: bool,
    /// Requests come no earlier than the trace says, at so many thousandths of its speed.
    pub speed_milli: Option<u64>,
    /// Run the trace through once before what is measured.
    pub warm: bool,
    /// What a request takes between client and cell and back.
    pub way_ns: u64,
    /// Bytes of a block of the cache.
    pub block_bytes: u32,
    /// Bytes of a segment; by the size of the cache when not given.
    pub segment_bytes: Option<u32>,
    /// The size of the flash drive, where the cache is only a part of it: what is rated and paid is the drive.
    pub drive_bytes: Option<u64>,
    /// A table of prices: a name or a file.
    pub prices: String,
    /// Decides every choice.
    pub seed: u64,
    /// Write the result as JSON.
    pub json: Option<PathBuf>,
    /// Run it against a served cell as well.
    pub real: Option<RealOptions>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It has nothing that reads or writes.
    #[error("{}: nothing reads or writes in it\nhint: is it recorded, and read as what it is? --format or --columns say", trace.display())]
    Empty {
        /// Which.
        trace: PathBuf,
    },
    /// More requests or blocks than are replayed.
    #[error("{}: more than {CALLS_MAX} requests, or more blocks than can be told apart\nhint: --requests N takes the first N", trace.display())]
    TooMany {
        /// Which.
        trace: PathBuf,
    },
    /// Addresses no disk has.
    #[error(
        "{}: its devices span {} TiB, more than the {} TiB of a disk\nhint: is its unit right? --columns says which column counts in what",
        trace.display(), bytes >> 40, SPAN_BYTES_MAX >> 40
    )]
    TooLarge {
        /// Which.
        trace: PathBuf,
        /// Bytes.
        bytes: u64,
    },
    /// More devices than a cell has grid disks.
    #[error("{}: {devices} devices, and a cell has at most {DEVICES_MAX} grid disks\nhint: --requests N takes the first N requests", trace.display())]
    Devices {
        /// Which.
        trace: PathBuf,
        /// How many.
        devices: usize,
    },
    /// Times are wanted that the trace does not tell.
    #[error("{}: it tells no times\nhint: leave --open and --speed away: sessions then ask as fast as they are answered", .0.display())]
    NoTimes(PathBuf),
    /// A cache too small.
    #[error(
        "a flash cache of {bytes} bytes is less than {SEGMENTS_MIN} segments of {segment_bytes}\nhint: a larger --flash, or smaller segments: --segment 256k"
    )]
    Flash {
        /// Bytes asked for.
        bytes: u64,
        /// Of a segment.
        segment_bytes: u32,
    },
    /// The prices.
    #[error(transparent)]
    Prices(#[from] PriceError),
    /// The devices.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The miss-ratio curve.
    #[error(transparent)]
    Curve(#[from] PoliciesError),
    /// A run in virtual time.
    #[error("{configuration}: {source}\nhint: please report this with the trace and the seed")]
    Virtual {
        /// Which.
        configuration: String,
        /// Why.
        source: VirtualError,
    },
    /// A run against a served cell.
    #[error(transparent)]
    Real(#[from] RealError),
    /// Standard input cannot be kept.
    #[error(
        "standard input, which is read twice, cannot be copied to a temporary file: {0}\nhint: room for it where TMPDIR says"
    )]
    Stdin(std::io::Error),
    /// A result cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// A disk and a flash.
#[derive(Clone, Debug)]
pub struct Devices {
    /// What the data is on.
    pub disk: Arc<DeviceModel>,
    /// What the cache is on.
    pub flash: Arc<DeviceModel>,
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let find = |name: &str| DeviceModel::find(name).map_err(|error| error.to_string());
        let form = |what: &str| format!("{what}\nhint: sata-7200,pcie-flash or disk.toml,flash.toml; the disk first");
        let Some((disk, flash)) = text.split_once(',') else {
            let both = find(text)?.pair();
            let (disk, flash) = both.ok_or_else(|| form(&format!("{text} is no DISK,FLASH, nor a pair of them")))?;
            return Ok(Devices { disk, flash });
        };
        let (disk, flash) = (find(disk)?, find(flash)?);
        for (device, name) in [(&disk, disk.name()), (&flash, flash.name())] {
            if device.pair().is_some() {
                return Err(form(&format!("{name} is a disk and a flash: it stands alone")));
            }
        }
        Ok(Devices { disk, flash })
    }
}

/// A mode of the cache that can be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(CachingMode);

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        let modes = [CachingMode::WriteThrough, CachingMode::WriteBack, CachingMode::WriteBackOrdered];
        let found = modes.into_iter().find(|mode| arm::mode_name(*mode) == name).map(Mode);
        found.ok_or_else(|| format!("no mode {name}\nhint: write-through, write-back or write-back-ordered"))
    }
}

/// Answer; what belongs on standard output, and whether what was measured agrees with what was foretold. Progress goes to stderr.
///
/// # Errors
/// See [`WhatIfError`].
pub fn what_if(options: &WhatIfOptions) -> Result<(String, bool), WhatIfError> {
    let prices = Prices::read(&options.prices)?;
    let spool = if options.trace == Path::new(policies::STDIN) { Some(policies::spool()?) } else { None };
    let (trace, name) = match &spool {
        Some(file) => (file.path(), "stdin".to_owned()),
        None => {
            let name = options.trace.file_name().map(|name| name.to_string_lossy().into_owned());
            (options.trace.as_path(), name.unwrap_or_default())
        }
    };
    let reading = Reading {
        format: options.format,
        columns: options.columns.as_ref(),
        requests_max: options.requests_max,
        block_bytes: u64::from(options.block_bytes),
    };
    let mut workload = Workload::read(trace, &reading)?;
    // Talk that nobody hears changes nothing.
    let _ = writeln!(std::io::stderr(), "{name}: {}", workload.understood);
    if workload.devices.len() > DEVICES_MAX {
        return Err(WhatIfError::Devices { trace: options.trace.clone(), devices: workload.devices.len() });
    }
    let wants_times = options.open || options.speed_milli.is_some();
    if wants_times && workload.span_ns.is_none() {
        return Err(WhatIfError::NoTimes(options.trace.clone()));
    }
    let setting = setting(options);
    let placements = placements(options, &workload, &setting)?;
    for placement in &placements {
        let disk = if *placement == Placement::Flash { &setting.flash } else { &setting.disk };
        disk.check_room(arm::device_bytes(workload.span_bytes()))?;
        if let Placement::Cached { flash_bytes, .. } = placement {
            setting.flash.check_room(arm::device_bytes(setting.cache_bytes(*flash_bytes)))?;
        }
    }
    let calls = Arc::new(std::mem::take(&mut workload.calls));

    let runs = foretell(&setting, &workload, &calls, &placements)?;
    let curve = curve(options, trace)?;
    let mut measured = Vec::new();
    if let Some(real) = &options.real {
        measured = real::measure(real, &setting, &workload, &calls, &placements)?;
    }
    let report = Report { name, options, workload: &workload, setting: &setting, runs, curve, measured, prices };
    if let Some(path) = &options.json {
        let written = output::save(path, &report.json());
        written.map_err(|source| WhatIfError::Write { path: path.clone(), source })?;
    }
    Ok((report.text(), report.agrees()))
}

fn setting(options: &WhatIfOptions) -> Setting {
    let speed_milli = options.speed_milli.or(options.open.then_some(1000));
    Setting {
        seed: options.seed,
        disk: options.devices.disk.clone(),
        flash: options.devices.flash.clone(),
        block_bytes: options.block_bytes,
        segment_bytes: options.segment_bytes,
        way_ns: options.way_ns,
        pace: Pace { sessions: options.sessions, speed_milli, open: options.open },
        warm: options.warm,
    }
}

/// What is compared: the disk alone, each size in each mode, all on flash.
fn placements(options: &WhatIfOptions, workload: &Workload, setting: &Setting) -> Result<Vec<Placement>, WhatIfError> {
    let mut placements = vec![Placement::Disk];
    for size in &options.flash {
        let flash_bytes = size.of(workload.footprint_bytes());
        let segment_bytes = setting.segment_bytes(flash_bytes);
        if flash_bytes < SEGMENTS_MIN * u64::from(segment_bytes) {
            return Err(WhatIfError::Flash { bytes: flash_bytes, segment_bytes });
        }
        let flash_bytes = setting.cache_bytes(flash_bytes);
        placements.extend(options.modes.iter().map(|mode| Placement::Cached { mode: mode.0, flash_bytes }));
    }
    placements.push(Placement::Flash);
    Ok(placements)
}

fn foretell(
    setting: &Setting,
    workload: &Workload,
    calls: &Arc<Vec<workload::Call>>,
    placements: &[Placement],
) -> Result<Vec<Run>, WhatIfError> {
    let passes = if setting.warm { 2 } else { 1 };
    let bar = bar((placements.len() * passes * calls.len()) as u64, "requests in virtual time");
    let progress = progress(&bar);
    let runs = run_all(placements, |placement| {
        world::run(setting, workload, calls, *placement, progress.clone())
            .map_err(|source| WhatIfError::Virtual { configuration: placement.name(), source })
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    runs.into_iter().collect()
}

/// How many reads miss, by the size of the cache: the policy of the cell over its log, without time.
fn curve(options: &WhatIfOptions, trace: &Path) -> Result<Vec<CurvePoint>, WhatIfError> {
    // The replay has the whole trace.
    if options.requests_max.is_some() {
        return Ok(Vec::new());
    }
    let replay = PoliciesOptions {
        traces: vec![trace.to_owned()],
        sizes: CURVE.map(policies::Size::SharePpm).to_vec(),
        block_bytes: options.block_bytes,
        segment_bytes: None,
        policies: vec![policies::DEFAULT_POLICY.to_owned()],
        format: options.format,
        columns: options.columns.clone(),
        json: None,
        plot: None,
    };
    let rows = match policies::replay(&replay, &mut std::io::sink()) {
        // A handful of blocks has no hundredth.
        Err(PoliciesError::Size { .. }) => return Ok(Vec::new()),
        rows => rows?,
    };
    let point = |(share_ppm, row): (u64, &policies::Row)| CurvePoint {
        share_ppm,
        bytes: row.size_blocks * u64::from(row.block_bytes),
        miss_ppm: row.misses * 1_000_000 / row.references.max(1),
        read_hit_ppm: row.read_hit_ppm(),
    };
    Ok(CURVE.into_iter().zip(&rows).map(point).collect())
}

/// On a terminal only.
fn bar(length: u64, what: &'static str) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(length);
        let style = ProgressStyle::with_template("{msg:26} {bar:30} {pos}/{len} {elapsed}, {eta} to go");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(500));
        bar
    })
}

fn progress(bar: &Option<ProgressBar>) -> Arc<dyn Fn(u64) + Send + Sync> {
    let bar = bar.clone();
    Arc::new(move |done| bar.iter().for_each(|bar| bar.inc(done)))
}

#[cfg(test)]
mod tests;
