//! The command line of `flashcell lab run`, and of runs in the real world.

use crate::Failure;
use clap::Args;
use lab::run::RunError;
use lab::what_if::{Devices, RealOptions};
use std::io::Write;
use std::path::PathBuf;

/// The field's longest experiment has 4,000,000; of so many pages the largest table takes some gigabytes of memory.
const SYNCS_MAX: u64 = 100_000_000;

#[derive(Args)]
pub(crate) struct LabRun {
    /// Experiments, see `flashcell lab list`
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Decides every choice
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Commits of each arm, over all of its sessions; in other experiments operations, requests or pages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SYNCS_MAX))]
    syncs: Option<u64>,
    /// Only with so many sessions
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    sessions: Vec<usize>,
    /// Only on these disks of the experiment
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    disks: Vec<String>,
    /// Ours whole and without one mechanism at a time, in place of what the experiment compares (s9-reads, s9-updates, s9-scan, s10, s11)
    #[arg(long, conflicts_with = "all")]
    ablation: bool,
    /// So many sets of parameters, each drawn from its plausible range: how many agree with the field (the same experiments)
    #[arg(long, value_name = "N", conflicts_with_all = ["all", "ablation", "syncs"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sets: Option<u32>,
    /// On these in place of the experiment's own (s9-reads, s9-updates, s9-scan, s10, s11, s14, redo-s1): a disk and a flash, names that `lab devices`
    /// lists, files in TOML, fixed:TIME[:PARALLEL]; or one name or file that is a pair
    #[arg(long, value_name = "DISK,FLASH", conflicts_with_all = ["sets", "disks"])]
    devices: Option<Devices>,
    #[command(flatten)]
    real: RealArgs,
    /// Write the rows as JSON, all experiments in one document
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts that needs nothing else
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// The devices of `what-if`, and of `lab run --real`, unless stated.
pub(crate) const DEVICES: &str = "sata-7200,pcie-flash";

/// A run against a served cell as well.
#[derive(Args)]
pub(crate) struct RealArgs {
    /// Run the same against a served cell as well, on files with the models as delays, and compare; exit code 1 where it is off
    #[arg(long)]
    real: bool,
    /// So often; once for experiments, five times for a trace unless stated
    #[arg(long, value_name = "N", requires = "real", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Its files are made in this directory
    #[arg(long, value_name = "DIR", requires = "real")]
    dir: Option<PathBuf>,
    /// This device in place of a file and its model; refused when it carries anything, and everything on it is lost
    #[arg(long, value_name = "PATH", requires = "real")]
    real_disk: Option<PathBuf>,
    /// This device in place of the flash's file and model, under the same conditions
    #[arg(long, value_name = "PATH", requires = "real")]
    real_flash: Option<PathBuf>,
}

impl RealArgs {
    pub(crate) fn options(self, runs: u32) -> Result<Option<RealOptions>, Failure> {
        if !self.real {
            return Ok(None);
        }
        let (binary, runs) = (std::env::current_exe()?, self.runs.unwrap_or(runs) as usize);
        Ok(Some(RealOptions::new(binary, runs, self.dir, self.real_disk, self.real_flash)))
    }
}

/// Carry it out; whether every bound holds.
pub(crate) fn run(asked: LabRun) -> Result<bool, Failure> {
    let real = asked.real.options(1)?;
    // A served cell is on devices that it can have.
    let served = || real.is_some().then(|| DEVICES.parse::<Devices>()).transpose();
    let devices = if asked.devices.is_some() { asked.devices } else { served()? };
    let options = lab::run::RunOptions {
        names: asked.names,
        all: asked.all,
        seed: asked.seed,
        syncs: asked.syncs,
        sessions: asked.sessions,
        disks: asked.disks,
        ablation: asked.ablation,
        sets: asked.sets.map(|n| n as usize),
        devices,
        real,
        json: asked.json,
        report: asked.report,
    };
    let (text, ended) = match lab::run::run(&options) {
        Ok((text, good)) => (text, Ok(good)),
        Err(RunError::After { told, failed }) => (told, Err((*failed).into())),
        Err(error) => return Err(error.into()),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    ended
}
