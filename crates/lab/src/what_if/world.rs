//! A run in virtual time: the production engine on the models that the delay layer has, over devices that cost nothing themselves.
//!
//! The same layers in the same order as a served cell has them. Same seed, same figures. Network and
//! processors are two figures for each request.

use super::arm::{Counts, Placement, Run, Setting, device_bytes};
use super::driver::{Beside, Destination, Target, drive};
use super::workload::Workload;
use crate::devices::{DeviceModel, Made};
use crate::model::sparse::Sparse;
use crate::model::translated::Translated;
use cell::metrics::ProcessUse;
use cell::{Cell, CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::Stats;
use device::{Clock, Completion, Device, Geometry, Io, Op, Prng, Verb, World};
use flashcache::CacheConfig;
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::{cell_on, process_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Of processors, for each request: what a served cell and its client cannot do at the same time. Measured with 16 sessions on two processors over
/// devices of 20 us (`bench/run --rows what-if` measures it again): 7.8 to 9 us on disk and flash alone, 11.5 us through a cache.
const CPU_NS: u64 = 8_000;
const CPU_CACHED_NS: u64 = 11_000;
/// Whoever waits longer than this has let the processor sleep (the kernel's `haltpoll` looks for 200 us), which then takes so long to wake: in
/// the mean of requests of 1 to 16 ms on a virtual machine, beside what is above.
const ASLEEP_AFTER_NS: u64 = 200_000;
const WAKE_NS: u64 = 45_000;
/// There and back over a unix socket of this host, for each request (the default of `--way`).
const WAY_NS: u64 = 26_000;
const DISK: &str = "CD_00";
const FLASH: &str = "FD_00";

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum VirtualError {
    /// It did not end.
    #[error("{0}")]
    Stuck(Stuck),
    /// The cell refused.
    #[error("{0}")]
    Cell(String),
}

/// A device of the virtual world that takes as long as a model says, with the counters of a served cell's.
struct Counted {
    device: Arc<Stats>,
    translated: Option<Arc<Translated>>,
}

fn device(size_bytes: u64, model: &DeviceModel, world: &World, prng: Prng) -> Counted {
    let Made { device, translated } = model.over(Sparse::new(size_bytes), world, prng);
    Counted { device: Stats::new(waking(device, world), world.clock.clone()), translated }
}

/// A device as a client of a served cell has it.
pub(crate) struct Served {
    inner: Device,
    beside: Arc<Beside>,
    clock: Arc<dyn Clock>,
}

impl Served {
    /// `inner` with the way over a socket of this host, and the processors' work for each request.
    pub(crate) fn new(inner: Device, is_cached: bool, world: &World) -> Arc<Served> {
        let beside = Beside::new(WAY_NS, if is_cached { CPU_CACHED_NS } else { CPU_NS });
        Arc::new(Served { inner, beside, clock: world.clock.clone() })
    }
}

impl Io for Served {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let (beside, clock, inner) = (self.beside.clone(), self.clock.clone(), self.inner.clone());
        Completion::future(async move {
            beside.pass(&*clock).await;
            inner.submit(op).await
        })
    }
}

/// The same device; its answers find a processor asleep when they took long.
pub(crate) fn waking(inner: Device, world: &World) -> Device {
    Arc::new(Waking { inner, clock: world.clock.clone() })
}

/// A device whose answers find a processor asleep when they took long.
struct Waking {
    inner: Device,
    clock: Arc<dyn Clock>,
}

impl Io for Waking {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let (begun, clock, answer) = (self.clock.now(), self.clock.clone(), self.inner.submit(op));
        Completion::future(async move {
            let completed = answer.await;
            if clock.now().ns_since(begun) > ASLEEP_AFTER_NS {
                clock.sleep(Duration::from_nanos(WAKE_NS)).await;
            }
            completed
        })
    }
}

/// Run it; `progress` hears of requests done.
pub(super) fn run(
    setting: &Setting,
    workload: &Workload,
    calls: &Arc<Vec<super::workload::Call>>,
    placement: Placement,
    progress: Arc<dyn Fn(u64) + Send + Sync>,
) -> Result<Run, VirtualError> {
    let plain = ExecutorConfig::plain(setting.seed);
    let limits = ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    let (disk_prng, flash_prng) = (executor.prng("disk"), executor.prng("flash"));
    let ran = executor.run(async {
        let model = if placement == Placement::Flash { &setting.flash } else { &setting.disk };
        let disk = device(device_bytes(workload.span_bytes()), model, &world, disk_prng);
        let (mut devices, mut names): (Vec<Device>, _) = (vec![disk.device.clone()], vec![(DISK, Role::Disk)]);
        let mut flash = None;
        let mut config = CellConfig::default();
        config.cache.block_bytes = setting.block_bytes;
        if let Placement::Cached { flash_bytes, .. } = placement {
            let cache_bytes = setting.cache_bytes(flash_bytes);
            config.cache = CacheConfig { segment_bytes: setting.segment_bytes(flash_bytes), ..config.cache };
            let made = device(device_bytes(cache_bytes), &setting.flash, &world, flash_prng);
            devices.push(made.device.clone());
            names.push((FLASH, Role::Flash));
            flash = Some((made, cache_bytes));
        }
        let cell = cell_on(&devices, &names, config, &world).await;
        if let Some((_, cache_bytes)) = &flash {
            let created = cell.create_flash_cache(Some(*cache_bytes), &[]).await;
            created.map_err(|error| VirtualError::Cell(error.to_string()))?;
        }
        let cpu_ns = if placement.is_cached() { CPU_CACHED_NS } else { CPU_NS };
        let beside = Beside::new(setting.way_ns, cpu_ns);
        let targets = grid_disks(&cell, workload, placement, &beside, &world).await?;
        // What is written goes to flash where all is on it.
        let flash = if placement == Placement::Flash { Some(disk) } else { flash.map(|(device, _)| device) };
        let is_cached = placement.is_cached();
        let counts = |cell: &Cell| counts(cell, flash.as_ref(), is_cached);
        let failed = VirtualError::Cell;
        if setting.warm {
            drive(calls, targets.clone(), setting.pace, &world, progress.clone()).await.map_err(failed)?;
        }
        let (before, passed_before) = (counts(&cell), passed(&cell));
        let tally = drive(calls, targets, setting.pace, &world, progress).await.map_err(failed)?;
        let counts = counts(&cell).since(before);
        let mut passed: Vec<(u64, &'static str)> = passed(&cell)
            .into_iter()
            .map(|(why, count)| (count - passed_before.get(why).copied().unwrap_or(0), why))
            .filter(|(count, _)| *count > 0)
            .collect();
        passed.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        Ok(Run { placement, tally, counts, passed })
    });
    ran.map_err(VirtualError::Stuck)?
}

/// A grid disk for each device of the trace, all on the disk.
async fn grid_disks(
    cell: &Arc<Cell>,
    workload: &Workload,
    placement: Placement,
    beside: &Arc<Beside>,
    world: &World,
) -> Result<Vec<Destination>, VirtualError> {
    let Some((home, _)) = cell.store().catalog().member_named(DISK) else { unreachable!("it was made") };
    let mut targets = Vec::new();
    for (number, device) in workload.devices.iter().enumerate() {
        let mut spec = GridDiskSpec::new(&grid_disk_name(number), home, device.span_bytes, world.clock.wall());
        spec.caching_mode = match placement {
            Placement::Cached { mode, .. } => mode,
            Placement::Disk | Placement::Flash => CachingMode::None,
        };
        let made = cell.create_grid_disk(spec, &mut |_, _| ()).await;
        let grid_disk = made.map_err(|error| VirtualError::Cell(error.to_string()))?;
        let target = Target::Cell(Arc::new(grid_disk.open_session(Context::default())), beside.clone());
        targets.push(device.destination(target));
    }
    Ok(targets)
}

/// What the grid disk of a device of the trace is called: names of traces are none of a cell's.
pub(super) fn grid_disk_name(number: usize) -> String {
    format!("TRACE_{number}")
}

fn counts(cell: &Cell, flash: Option<&Counted>, is_cached: bool) -> Counts {
    let mut counts = Counts::default();
    for disk in cell.grid_disks() {
        counts.hits += disk.counters.cache_hits.requests.get();
        counts.misses += disk.counters.cache_misses.requests.get();
        counts.skips += disk.counters.cache_read_skips.requests.get();
    }
    counts.flash_bytes = flash.filter(|_| is_cached).map_or(0, |flash| flash.device.verb(Verb::Write).bytes);
    if let Some(drive) = flash.and_then(|flash| flash.translated.as_ref()) {
        let figures = drive.figures();
        counts.inside = (figures.written, figures.programmed);
    }
    counts
}

/// Requests that the cache did not serve or keep, by reason: the metrics of the cell that have one of their own.
fn passed(cell: &Cell) -> BTreeMap<&'static str, u64> {
    let samples = cell::metrics::samples(cell, "", &[], &ProcessUse::default(), &[]);
    let has_reason = |name: &str| {
        let named = ["FC_IO_RQ_R_SKIP_", "FC_IO_RQ_W_SKIP_", "FC_IO_RQ_W_POPULATE_SKIP_"]
            .iter()
            .any(|begins| name.starts_with(begins));
        (named || name == "FC_IO_RQ_REPLACEMENT_FAILED") && !name.ends_with("_SEC")
    };
    let reasons = samples.iter().filter(|sample| has_reason(sample.definition.name));
    reasons.map(|sample| (sample.definition.description, sample.value)).collect()
}
