//! Experiments in the virtual world: the engine of the cell on models of disks and flash, beside what the field measured.
//!
//! Same seed, same figures, whatever the machine. Never starts a cell, never writes anything but the files it is told to.

mod ablation;
mod arm;
mod block_cache;
mod chart;
mod client;
mod database;
mod field;
mod l2arc;
mod machine;
mod on_cell;
mod page;
mod ranges;
mod real;
mod redo_s1;
mod redo_s3;
mod report;
mod s10;
mod s11;
mod s12;
mod s13;
mod s14;
mod s15;
mod s16;
mod s9;
mod sets;
mod sort;
mod told;

pub(crate) use field::run_all;

use crate::devices::DeviceError;
use crate::output;
use crate::what_if::{Devices, RealError, RealOptions};
use arm::{Arm, Configuration};
use indicatif::{ProgressBar, ProgressStyle};
use report::Row;
use sim::executor::Stuck;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use told::Told;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Experiments by name.
    pub names: Vec<String>,
    /// Every one of them.
    pub all: bool,
    /// Decides every choice.
    pub seed: u64,
    /// Commits of an arm, over all of its sessions, or operations in front of a database; as the experiment has it when not given.
    pub syncs: Option<u64>,
    /// Numbers of sessions; as the experiment has them when empty.
    pub sessions: Vec<usize>,
    /// Disks of the experiment, by name; all when empty.
    pub disks: Vec<String>,
    /// Instead of what the experiment compares: ours whole, and without one mechanism at a time.
    pub ablation: bool,
    /// Instead: so many sets of parameters, each drawn from its plausible range.
    pub sets: Option<usize>,
    /// In place of the devices of the experiment.
    pub devices: Option<Devices>,
    /// Run it against served cells as well, on `devices`.
    pub real: Option<RealOptions>,
    /// Write the rows as JSON, those of all experiments in one document.
    pub json: Option<PathBuf>,
    /// Write a page of HTML with charts.
    pub report: Option<PathBuf>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Nothing of that name.
    #[error("no experiment {0}\nhint: flashcell lab list")]
    NoExperiment(String),
    /// Nothing was named.
    #[error("no experiment named\nhint: flashcell lab list shows them; --all runs them")]
    Nothing,
    /// No disk of that name.
    #[error("no disk '{name}' in the experiment\nhint: one of {known}")]
    NoDisk {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Nothing is taken away there.
    #[error("{name} has no ablation\nhint: these have one: {known}")]
    NoAblation {
        /// What was asked for.
        name: String,
        /// Those that have one.
        known: String,
    },
    /// Nothing is drawn there.
    #[error("{name} has no ranges of parameters\nhint: these have them: {known}")]
    NoRanges {
        /// What was asked for.
        name: String,
        /// Those that have them.
        known: String,
    },
    /// Its devices are part of what it is about.
    #[error("{name} has its own devices\nhint: these run on any: {known}")]
    NoDevices {
        /// What was asked for.
        name: String,
        /// Those that take others.
        known: String,
    },
    /// A device cannot be, or is too small.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It runs in virtual time only.
    #[error("{name} runs in virtual time only\nhint: these run on a served cell too: {known}")]
    NoReal {
        /// What was asked for.
        name: String,
        /// Those that do.
        known: String,
    },
    /// Mechanisms cannot be taken away from a served cell.
    #[error("ablations run in virtual time only\nhint: --real without --ablation")]
    AblationReal,
    /// A run against a served cell.
    #[error(transparent)]
    Real(#[from] RealError),
    /// A number that cannot be.
    #[error("{0} sessions cannot share {1} syncs\nhint: at least one session, and at least two syncs for each")]
    Few(usize, u64),
    /// A run did not end.
    #[error("{part}, {configuration}: {source}\nhint: please report this with the seed")]
    Stuck {
        /// Where.
        part: String,
        /// With what.
        configuration: String,
        /// How.
        source: Stuck,
    },
    /// It failed after experiments had ended.
    #[error("{failed}")]
    After {
        /// Their tables, for standard output.
        told: String,
        /// Why it failed.
        failed: Box<RunError>,
    },
    /// A result cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// What an experiment comes to.
struct Experiment {
    told: Told,
    bounds: Vec<Bound>,
    /// What to see beside it.
    notes: String,
}

/// Something that has to hold.
struct Bound {
    text: String,
    holds: bool,
}

impl Bound {
    fn of(row: &Row, what: &str, holds: bool, figures: String) -> Bound {
        Bound { text: format!("{}: {}: {what}: {figures}", row.part, row.name()), holds }
    }
}

type Runs = fn(&RunOptions, &mut dyn FnMut(&str)) -> Result<Experiment, RunError>;

/// The experiments: name, what it shows, how it is run.
const EXPERIMENTS: [(&str, &str, Runs); 12] = [
    (redo_s1::NAME, redo_s1::ABOUT, redo_s1::run),
    (redo_s3::NAME, redo_s3::ABOUT, redo_s3::run),
    (s9::READS, s9::ABOUT_READS, s9::reads),
    (s9::UPDATES, s9::ABOUT_UPDATES, s9::updates),
    (s9::SCAN, s9::ABOUT_SCAN, s9::scan),
    (s10::NAME, s10::ABOUT, s10::run),
    (s11::NAME, s11::ABOUT, s11::run),
    (s12::NAME, s12::ABOUT, s12::run),
    (s13::NAME, s13::ABOUT, s13::run),
    (s14::NAME, s14::ABOUT, s14::run),
    (s15::NAME, s15::ABOUT, s15::run),
    (s16::NAME, s16::ABOUT, s16::run),
];

/// Those that run on other devices than the experiment's own, and on a served cell.
const ON_ANY: [&str; 7] = [s9::READS, s9::UPDATES, s9::SCAN, s10::NAME, s11::NAME, s14::NAME, redo_s1::NAME];

/// Those with a database in front: something can be taken away from a cell of ours, and parameters have ranges.
const DATABASES: [&str; 5] = [s9::READS, s9::UPDATES, s9::SCAN, s10::NAME, s11::NAME];

/// The experiments: name, what it is about.
#[must_use]
pub fn list() -> String {
    let lines = EXPERIMENTS.map(|(name, about, _)| [name.to_owned(), about.to_owned()]);
    let head = ["name".to_owned(), "what it shows".to_owned()];
    let lines: Vec<[String; 2]> = std::iter::once(head).chain(lines).collect();
    output::table(&lines, &[0, 1])
}

/// Run experiments; what belongs on standard output, and whether every bound holds. Where standard error is a terminal, it shows how far
/// they are.
///
/// # Errors
/// See [`RunError`]. What had ended before an experiment failed is in [`RunError::After`], and in the files that were asked for.
pub fn run(options: &RunOptions) -> Result<(String, bool), RunError> {
    let is_known = |name: &str| EXPERIMENTS.iter().any(|(known, ..)| *known == name);
    if let Some(name) = options.names.iter().find(|name| !is_known(name)) {
        return Err(RunError::NoExperiment(name.clone()));
    }
    let wanted = |name: &str| options.all || options.names.iter().any(|n| n == name);
    let chosen: Vec<_> = EXPERIMENTS.iter().filter(|(name, ..)| wanted(name)).collect();
    if chosen.is_empty() {
        return Err(RunError::Nothing);
    }
    // The first that is not among these, and their names.
    let beyond = |known: &[&str]| {
        let name = chosen.iter().map(|(name, ..)| *name).find(|name| !known.contains(name))?;
        Some((name.to_owned(), known.join(", ")))
    };
    if options.ablation
        && let Some((name, known)) = beyond(&DATABASES)
    {
        return Err(RunError::NoAblation { name, known });
    }
    if options.sets.is_some()
        && let Some((name, known)) = beyond(&DATABASES)
    {
        return Err(RunError::NoRanges { name, known });
    }
    if options.real.is_some()
        && let Some((name, known)) = beyond(&ON_ANY)
    {
        return Err(RunError::NoReal { name, known });
    }
    if options.ablation && options.real.is_some() {
        return Err(RunError::AblationReal);
    }
    if options.devices.is_some()
        && let Some((name, known)) = beyond(&ON_ANY)
    {
        return Err(RunError::NoDevices { name, known });
    }
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(chosen.len() as u64);
        let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {elapsed} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_secs(1));
        bar
    });
    let mut tell = |line: &str| {
        if let Some(bar) = &bar {
            bar.set_message(line.to_owned());
        }
    };
    let (mut experiments, mut failed) = (Vec::new(), None);
    for (name, about, runs) in chosen {
        match runs(options, &mut tell) {
            Ok(experiment) => experiments.push((*name, *about, experiment)),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        if let Some(bar) = &bar {
            bar.inc(1);
        }
    }
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let saved = if experiments.is_empty() { Ok(()) } else { save(&experiments, options) };
    let mut told = text(&experiments);
    let failed = match (failed, saved) {
        (Some(failed), _) if experiments.is_empty() => return Err(failed),
        (Some(failed), Err(unsaved)) => {
            // Writing to a string cannot fail.
            let _ = writeln!(told, "not written: {unsaved}");
            failed
        }
        (Some(failed), Ok(())) | (None, Err(failed)) => failed,
        (None, Ok(())) => {
            let good = experiments.iter().all(|(.., experiment)| experiment.bounds.iter().all(|bound| bound.holds));
            return Ok((told, good));
        }
    };
    Err(RunError::After { told, failed: Box::new(failed) })
}

/// Write the files that are asked for.
fn save(experiments: &[(&str, &str, Experiment)], options: &RunOptions) -> Result<(), RunError> {
    let save = |path: &Path, text: &str| {
        output::save(path, text).map_err(|source| RunError::Write { path: path.to_owned(), source })
    };
    if let Some(path) = &options.json {
        let objects: Vec<&str> = experiments
            .iter()
            .flat_map(|(.., experiment)| experiment.told.objects.iter().map(String::as_str))
            .collect();
        save(path, &format!("[\n{}\n]\n", objects.join(",\n")))?;
    }
    if let Some(path) = &options.report {
        save(path, &page::page(experiments, options.seed))?;
    }
    Ok(())
}

/// For a terminal.
fn text(experiments: &[(&str, &str, Experiment)]) -> String {
    let mut text = String::new();
    for (name, about, Experiment { told, bounds, notes }) in experiments {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}: {about}\n\n{}\n{notes}", output::table(&told.lines, &told.words));
        let missed: Vec<&Bound> = bounds.iter().filter(|bound| !bound.holds).collect();
        let _ = writeln!(text, "{} bounds hold, {} do not", bounds.len() - missed.len(), missed.len());
        for bound in missed {
            let _ = writeln!(text, "missed: {}", bound.text);
        }
        text.push('\n');
    }
    text
}

/// That sessions have something to do.
fn check(arm: &Arm) -> Result<(), RunError> {
    match arm.sessions == 0 || arm.syncs < 2 * arm.sessions as u64 {
        true => Err(RunError::Few(arm.sessions, arm.syncs)),
        false => Ok(()),
    }
}

fn measure(
    experiment: &'static str,
    part: String,
    detail: &'static str,
    arm: Arm,
    tell: &mut dyn FnMut(&str),
) -> Result<Row, RunError> {
    check(&arm)?;
    tell(&format!("{experiment}: {part}: {}", arm.configuration.name()));
    let configuration = arm.configuration;
    match arm::run(arm) {
        Ok(outcomes) => Ok(Row::new(experiment, part, configuration, detail, outcomes)),
        Err(source) => Err(RunError::Stuck { part, configuration: configuration.name(), source }),
    }
}

/// Hold the rows of one part against the disk alone and flash alone. Of several on flash the last stands for it.
fn compare(rows: &mut [Row]) {
    let disk = rows.iter().find(|row| row.configuration == Configuration::Disk).map(Row::moments);
    let flash = rows.iter().rfind(|row| row.configuration == Configuration::Flash);
    let flash_s = flash.map(|row| row.outcomes.elapsed.as_secs_f64());
    for row in rows {
        row.flash_elapsed_s = flash_s;
        if let Some(disk) = disk.as_ref().filter(|_| row.configuration != Configuration::Disk) {
            row.compare(disk);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: experiments are repeatable, and what they claim of the log holds where few syncs can show it. Method: small runs.
    use super::*;

    fn options(name: &str, disks: &[&str]) -> RunOptions {
        RunOptions {
            names: vec![name.to_owned()],
            seed: 1,
            syncs: Some(2_000),
            sessions: vec![10],
            disks: disks.iter().map(|d| (*d).to_owned()).collect(),
            ..RunOptions::default()
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        let run_once = || run(&options("redo-s1", &["4 ms"]));
        let (Ok(first), Ok(second)) = (run_once(), run_once()) else { unreachable!("it runs") };
        assert_eq!(first, second);
        assert!(first.1, "{}", first.0);
    }

    #[test]
    fn the_ring_pads_what_a_device_misreports() {
        let Ok((text, good)) = run(&options("redo-s3", &[])) else { unreachable!("it runs") };
        assert!(good, "{text}");
    }

    /// Goal: experiments with a database in front are repeatable, whatever the threads they run on do; and nothing they read is wrong: that
    /// would be a panic. Method: each of them with little to do, those of S9 twice and with another seed.
    #[test]
    fn a_database_in_front_gives_the_same_bytes() {
        for (name, operations) in
            [("s9-reads", 1_500), ("s9-updates", 1_500), ("s9-scan", 3_000), ("s10", 500), ("s11", 3_000)]
        {
            let options = RunOptions { syncs: Some(operations), ..options(name, &[]) };
            let run_once = |seed| run(&RunOptions { seed, ..options.clone() }).map_err(|e| e.to_string());
            let first = run_once(1);
            assert!(first.is_ok(), "{name}: {first:?}");
            if name.starts_with("s9") {
                assert_eq!(first, run_once(1), "{name}");
                assert!(name == "s9-scan" || run_once(2) != first, "{name}: the seed decides");
            }
        }
    }

    /// Goal: experiments run on devices that are given, and the devices decide. Method: one disk that is twice as slow as another.
    #[test]
    fn other_devices_are_under_an_experiment() {
        let devices = |text: &str| text.parse::<Devices>().unwrap_or_else(|error| unreachable!("{error}"));
        for (name, operations) in [("s9-reads", 300), ("s9-updates", 300), ("s11", 600), ("s14", 400), ("redo-s1", 200)]
        {
            let run_on = |text: &str| {
                let options =
                    RunOptions { syncs: Some(operations), devices: Some(devices(text)), ..options(name, &[]) };
                let (text, _) = run(&options).unwrap_or_else(|error| unreachable!("{name}: {error}"));
                // What the devices are called is in no comparison.
                text.replace("fixed:4ms:8", "DISK").replace("fixed:8ms:8", "DISK")
            };
            let (quick, slow) = (run_on("fixed:4ms:8,sata-ssd"), run_on("fixed:8ms:8,sata-ssd"));
            assert!(quick != slow && quick == run_on("fixed:4ms:8,sata-ssd"), "{name}");
            assert!(name == "s14" || quick.contains("DISK and sata-ssd"), "{quick}");
        }
        let refused = |options: RunOptions| run(&options).err().map_or_else(String::new, |error| error.to_string());
        let small = Some(devices("seagate-7200.7,s15-drive"));
        let said = refused(RunOptions { devices: small, syncs: Some(30_000_000), ..options("s9-scan", &[]) });
        assert!(said.contains("seagate-7200.7 holds"), "{said}");
        let said = refused(RunOptions { devices: Some(devices("sata-7200,sata-ssd")), ..options("s13", &[]) });
        assert!(said.starts_with("s13 has its own devices") && said.contains("s9-reads"), "{said}");
        let real = Some(RealOptions::new(PathBuf::from("none"), 1, None, None, None));
        let on = |text: &str| Some(devices(text));
        let said = refused(RunOptions { real: real.clone(), devices: on("sata-7200,x25-e"), ..options("s11", &[]) });
        assert!(said.starts_with("x25-e is modelled in virtual time only"), "{said}");
        let said = refused(RunOptions { real: real.clone(), devices: on("sata-7200,sata-ssd"), ..options("s15", &[]) });
        assert!(said.starts_with("s15 runs in virtual time only"), "{said}");
        let ablation = RunOptions { real, devices: on("sata-7200,sata-ssd"), ablation: true, ..options("s11", &[]) };
        assert!(refused(ablation).starts_with("ablations run in virtual time only"));
    }

    /// Goal: an experiment that fails takes nothing away of those that had ended. Method: the second one has no room on its devices.
    #[test]
    fn what_had_ended_is_told() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let (json, disk) = (dir.path().join("rows.json"), dir.path().join("small.toml"));
        let small = include_str!("../devices/seagate-7200.7.toml").replace("value = 110_000", "value = 500");
        std::fs::write(&disk, small)?;
        let names = [redo_s1::NAME, s9::UPDATES].map(str::to_owned).to_vec();
        let devices = Some(format!("{},sata-ssd", disk.display()).parse::<Devices>()?);
        let options =
            RunOptions { names, devices, syncs: Some(200), json: Some(json.clone()), ..options(redo_s1::NAME, &[]) };
        let Err(RunError::After { told, failed }) = run(&options) else { return Err("it has room".into()) };
        assert!(told.contains("flash log, auto") && failed.to_string().contains(" holds "), "{failed}");
        assert!(std::fs::read_to_string(json)?.contains("\"experiment\":\"redo-s1\""));
        Ok(())
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = run(&options("redo-s9", &[])).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("no experiment redo-s9\nhint: flashcell lab list"));
        let error = run(&options("redo-s1", &["tape"])).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("one of healthy")));
    }
}
