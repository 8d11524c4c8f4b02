//! The same run in the real world: a cell of its own, served by the real binary on files (or on devices that are given), with the same models as
//! delays, asked over NBD by the same sessions.
//!
//! Never touches a device that carries anything: `flashcell init` refuses it, and is forced only over what these runs have made.

use super::arm::{Counts, Placement, Run, Setting, device_bytes, mode_name};
use super::driver::{Destination, Target, drive};
use super::workload::{Call, Workload};
use super::world::grid_disk_name;
use crate::devices::DeviceModel;
use crate::served::{INIT, Plan, Server, ServerError, sum_milli};
use device::layers::Model;
use device::sync::lock;
use device::{Runtime, RuntimeConfig, RuntimeError};
use nbd::client::{Client, ClientError, ClientOptions};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What the cell is called; its cell disks are named after it.
const NAME: &str = "whatif";
/// Bytes of a megabyte of the metrics, in thousandths of which they are read.
const MB: u64 = 1 << 20;

/// How to run it. Clones know of each other that they have claimed the devices.
#[derive(Clone, Debug)]
pub struct RealOptions {
    /// The `flashcell` binary.
    pub binary: PathBuf,
    /// How often each configuration is run.
    pub runs: usize,
    /// Where files are made; where temporary files are when not given.
    pub dir: Option<PathBuf>,
    /// A device in place of a file for the disk: it is then as quick as it is, and no model slows it down.
    pub disk: Option<PathBuf>,
    /// The same for flash.
    pub flash: Option<PathBuf>,
    /// The devices that are given carry what a run has put there, and nothing else.
    is_claimed: Arc<Mutex<bool>>,
}

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// The server did not do its part.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A served cell has no such device.
    #[error(
        "{name} is modelled in virtual time only: a served cell delays requests by the models of the delay layer\nhint: with --real one of {known}, fixed:TIME[:PARALLEL], or a device of your own: --real-disk, --real-flash",
        known = Model::NAMES.join(", ")
    )]
    Model {
        /// Which.
        name: String,
    },
    /// A device that is given.
    #[error(
        "a device that is given cannot be used: {told}\nhint: name one that carries nothing; what `wipefs -a` or `blkdiscard` makes so is lost"
    )]
    Given {
        /// What `flashcell init` said.
        told: String,
    },
    /// No connection.
    #[error("no connection to the served cell: {0}\nhint: is the machine short of memory or of file descriptors?")]
    Client(#[from] ClientError),
    /// A request failed.
    #[error("a request to the served cell failed: {told}\nhint: its log is {}", log.display())]
    Request {
        /// What was asked and answered.
        told: String,
        /// The server's log.
        log: PathBuf,
    },
    /// The threads of the clients.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Run each configuration as often as is asked; in rounds, so that what else the machine does meets all of them.
pub(super) fn measure(
    options: &RealOptions,
    setting: &Setting,
    workload: &Workload,
    calls: &Arc<Vec<Call>>,
    placements: &[Placement],
) -> Result<Vec<Vec<Run>>, RealError> {
    options.check([&setting.disk, &setting.flash])?;
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })?;
    let passes = if setting.warm { 2 } else { 1 };
    let bar = super::bar((options.runs * placements.len() * passes * calls.len()) as u64, "requests in real time");
    let progress = super::progress(&bar);
    let mut measured: Vec<Vec<Run>> = placements.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.runs {
        for (placement, runs) in placements.iter().zip(&mut measured) {
            let one = One { options, setting, workload, calls, placement: *placement, runtime: &runtime };
            runs.push(one.run(progress.clone())?);
        }
    }
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    Ok(measured)
}

/// What a served cell is made on.
pub(crate) struct Layout {
    /// Its disk is what the flash is in other runs.
    pub(crate) on_flash: bool,
    /// Bytes of its disk.
    pub(crate) disk_bytes: u64,
    /// Bytes of its flash, if it has any.
    pub(crate) flash_bytes: Option<u64>,
    /// Sizes of `[flash_cache]`.
    pub(crate) tuning: Vec<(&'static str, String)>,
}

impl RealOptions {
    /// `runs` times, with files in `dir` or on the devices that are given.
    #[must_use]
    pub fn new(
        binary: PathBuf,
        runs: usize,
        dir: Option<PathBuf>,
        disk: Option<PathBuf>,
        flash: Option<PathBuf>,
    ) -> RealOptions {
        RealOptions { binary, runs, dir, disk, flash, is_claimed: Arc::default() }
    }

    /// That a served cell can have these devices.
    ///
    /// # Errors
    /// One is modelled in virtual time only, and no device is given in its place.
    pub(crate) fn check(&self, [disk, flash]: [&DeviceModel; 2]) -> Result<(), RealError> {
        for (given, device) in [(&self.disk, disk), (&self.flash, flash)] {
            if given.is_none() && device.delay().is_none() {
                return Err(RealError::Model { name: device.name().to_owned() });
            }
        }
        Ok(())
    }

    /// What to make: on the devices that are given, or on files with the models as delays.
    fn plan(&self, name: &str, [disk, flash]: [&DeviceModel; 2], layout: Layout) -> Plan {
        let size = |bytes: u64| format!("{}M", bytes >> 20);
        let text = |given: &Option<PathBuf>| given.as_ref().map(|path| path.display().to_string());
        let model = |given: &Option<PathBuf>, model: &DeviceModel| match given {
            Some(_) => None,
            None => model.delay().map(ToString::to_string),
        };
        let mut plan = Plan {
            binary: self.binary.clone(),
            name: name.to_owned(),
            within: self.dir.clone(),
            tuning: layout.tuning,
            ..Plan::default()
        };
        let (given, device) = if layout.on_flash { (&self.flash, flash) } else { (&self.disk, disk) };
        plan.force = given.is_some();
        plan.disk = text(given).unwrap_or_else(|| size(layout.disk_bytes));
        plan.disk_model = model(given, device);
        if let Some(bytes) = layout.flash_bytes {
            plan.force |= self.flash.is_some();
            plan.flash = Some(text(&self.flash).unwrap_or_else(|| size(bytes)));
            plan.flash_model = model(&self.flash, flash);
        }
        plan
    }

    /// Start a cell on these devices. What is given and carries anything that none of these runs has put there is refused.
    pub(crate) fn start(&self, name: &str, devices: [&DeviceModel; 2], layout: Layout) -> Result<Server, RealError> {
        self.claim(name)?;
        Ok(Server::start(&self.plan(name, devices, layout))?)
    }

    /// Take the devices that are given, before any is used: by a cell that nobody serves, which `flashcell init` makes on none that carries anything.
    /// Later cells are made over what it and others have left.
    fn claim(&self, name: &str) -> Result<(), RealError> {
        let mut given = [&self.disk, &self.flash].into_iter().flatten().map(|path| path.display().to_string());
        let mut is_claimed = lock(&self.is_claimed);
        let (Some(disk), false) = (given.next(), *is_claimed) else { return Ok(()) };
        let plan = Plan {
            binary: self.binary.clone(),
            name: name.to_owned(),
            within: self.dir.clone(),
            disk,
            flash: given.next(),
            ..Plan::default()
        };
        Server::make(&plan).map_err(refused)?;
        *is_claimed = true;
        Ok(())
    }
}

/// A device that is given and cannot be used has another way out than `flashcell init` tells of.
fn refused(error: ServerError) -> RealError {
    match error {
        ServerError::Failed { what, told } if what == INIT => RealError::Given {
            told: told
                .lines()
                .take_while(|line| !line.starts_with("hint: "))
                .map(|line| line.trim_start_matches("flashcell: "))
                .collect::<Vec<_>>()
                .join("\n"),
        },
        error => error.into(),
    }
}

/// Take away what `init` made on flash: caches are created as they are wanted.
pub(crate) fn clear_flash(server: &Server) -> Result<(), ServerError> {
    server.cellcli("drop flashcache")?;
    server.cellcli("drop flashlog").map(drop).or_else(|error| match error {
        ServerError::Failed { .. } => Ok(()),
        other => Err(other),
    })
}

struct One<'a> {
    options: &'a RealOptions,
    setting: &'a Setting,
    workload: &'a Workload,
    calls: &'a Arc<Vec<Call>>,
    placement: Placement,
    runtime: &'a Runtime,
}

impl One<'_> {
    fn layout(&self) -> Layout {
        let (mut flash_bytes, mut tuning) = (None, Vec::new());
        if let Placement::Cached { flash_bytes: bytes, .. } = self.placement {
            flash_bytes = Some(device_bytes(self.setting.cache_bytes(bytes)));
            let kib = |bytes: u32| format!("{}K", bytes >> 10);
            tuning.push(("segment", kib(self.setting.segment_bytes(bytes))));
            tuning.push(("block", kib(self.setting.block_bytes)));
        }
        let disk_bytes = device_bytes(self.workload.span_bytes());
        Layout { on_flash: self.placement == Placement::Flash, disk_bytes, flash_bytes, tuning }
    }

    fn run(&self, progress: Arc<dyn Fn(u64) + Send + Sync>) -> Result<Run, RealError> {
        let server = self.options.start(NAME, [&self.setting.disk, &self.setting.flash], self.layout())?;
        let mode = match self.placement {
            Placement::Cached { mode, flash_bytes } => {
                clear_flash(&server)?;
                let kib = self.setting.cache_bytes(flash_bytes) >> 10;
                server.cellcli(&format!("create flashcache all size={kib}K"))?;
                mode_name(mode)
            }
            Placement::Disk | Placement::Flash => "none",
        };
        for (number, device) in self.workload.devices.iter().enumerate() {
            let (name, size) = (grid_disk_name(number), device.span_bytes >> 20);
            let what = format!("celldisk=CD_00_{NAME}, size={size}M, cachingMode={mode}");
            server.cellcli(&format!("create griddisk {name} {what}"))?;
        }
        let address = server.nbd_address();
        let world = self.runtime.world(self.setting.seed);
        let (pace, warm, calls) = (self.setting.pace, self.setting.warm, self.calls.clone());
        let names: Vec<String> = (0..self.workload.devices.len()).map(grid_disk_name).collect();
        let at_once = if pace.open { super::driver::OPEN_MAX } else { pace.sessions };
        // Connections stay from the first pass to the second.
        let (connecting, at) = (world.clone(), address);
        let targets: Vec<Target> = self.runtime.block_on(async move {
            let mut targets = Vec::new();
            let asked = ClientOptions { requests_max: at_once.max(1), ..ClientOptions::default() };
            for name in names {
                targets.push(Target::Nbd(Client::connect(&connecting, &at, &name, &asked).await?));
            }
            Ok::<_, ClientError>(targets)
        })?;
        let targets: Vec<Destination> =
            self.workload.devices.iter().zip(targets).map(|(device, target)| device.destination(target)).collect();
        let pass = || {
            let (world, targets, calls, progress) = (world.clone(), targets.clone(), calls.clone(), progress.clone());
            let driven = self.runtime.block_on(async move { drive(&calls, targets, pace, &world, progress).await });
            driven.map_err(|told| RealError::Request { told, log: server.keep_log() })
        };
        if warm {
            pass()?;
        }
        let before = counts(&server)?;
        let tally = pass()?;
        let counts = counts(&server)?.since(before);
        drop(targets);
        server.stop()?;
        Ok(Run { placement: self.placement, tally, counts, passed: Vec::new() })
    }
}

/// As the cell counts them.
fn counts(server: &Server) -> Result<Counts, RealError> {
    let metrics = server.metrics()?;
    let requests = |name: &str| sum_milli(&metrics, |found| found == name, "FLASHCACHE") / 1000;
    Ok(Counts {
        hits: requests("FC_IO_RQ_R"),
        misses: requests("FC_IO_RQ_R_MISS"),
        skips: requests("FC_IO_RQ_R_SKIP"),
        flash_bytes: sum_milli(&metrics, |name| ["CD_IO_BY_W_SM", "CD_IO_BY_W_LG"].contains(&name), "FD_") * MB / 1000,
        inside: (0, 0),
    })
}
