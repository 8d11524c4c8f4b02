//! Which mechanism of ours wins how much: a cell whole, and the same cell without one mechanism at a time, under the load of an experiment.
//!
//! Every arm is the production engine, and each mechanism is switched off by its configuration. Never compares with the field: it has no such
//! figures. The flash log is not among the mechanisms: redo of these experiments has a drive of its own in every arm, and never passes
//! through the cell (`redo-s1` is about it).

use super::chart::{Bar, Bars, Chart};
use super::database::{self, Load, PAGE_BYTES, Pass, Setup, Storage};
use super::field::{Part, run_all};
use super::told::{Object, Told};
use super::{Experiment, RunError, RunOptions};
use buffercache::Wait;
use cell::CellConfig;
use celldisk::{CachingMode, FillStrategy, GridDiskSpec};
use flashcache::Mechanism;

/// What a cell does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// Writes wait for the disk: write-through.
    WriteBack,
    /// The same, and what is written is not cached: write-around.
    WriteFill,
    /// A scan is cached like anything else: `sequential_cutoff = 0`.
    ScanDetection,
    /// What was read goes to flash later, at a bounded rate, and reads in a row do not: `fillStrategy=feed`.
    FillAtOnce,
    /// A mechanism of the flash cache.
    Of(Mechanism),
}

impl Lack {
    pub(super) fn name(self) -> &'static str {
        match self {
            Lack::WriteBack => "without write-back",
            Lack::WriteFill => "without write-back and fills by writes",
            Lack::ScanDetection => "without scan detection",
            Lack::FillAtOnce => "without fills at once",
            Lack::Of(Mechanism::Learning) => "without policy learning",
            Lack::Of(Mechanism::Probation) => "without the small head",
            Lack::Of(Mechanism::Cleaning) => "without cleaning",
            Lack::Of(Mechanism::Lifetimes) => "without heads by lifetime",
        }
    }
}

/// With reads alone nothing is written by clients: what concerns writes could not show anything.
const OF_READS: [Lack; 4] =
    [Lack::ScanDetection, Lack::FillAtOnce, Lack::Of(Mechanism::Learning), Lack::Of(Mechanism::Probation)];
const OF_UPDATES: [Lack; 8] = [
    Lack::WriteBack,
    Lack::WriteFill,
    Lack::ScanDetection,
    Lack::FillAtOnce,
    Lack::Of(Mechanism::Learning),
    Lack::Of(Mechanism::Probation),
    Lack::Of(Mechanism::Cleaning),
    Lack::Of(Mechanism::Lifetimes),
];

/// Segments of the flash cache in every arm: as many as 512 MiB have at 2 MiB. A cache of few segments does without some mechanisms anyway.
const SEGMENTS: u64 = 256;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 2 << 20;
/// The experiments have flash for all of their data, where little has to be decided. In the second size it is for one of so many parts.
const TIGHT: u64 = 3;
/// A flash cache cannot be much smaller.
const FLASH_BYTES_MIN: u64 = 32 << 20;

/// How the cell is configured.
pub(super) fn config(lack: Option<Lack>, flash_bytes: u64) -> CellConfig {
    let mut config = CellConfig::default();
    let segment_bytes = (1 << (flash_bytes / SEGMENTS).max(1).ilog2()).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    config.cache.segment_bytes = segment_bytes as u32;
    match lack {
        Some(Lack::ScanDetection) => config.sequential_cutoff_bytes = 0,
        Some(Lack::Of(mechanism)) => config.cache.without = Some(mechanism),
        Some(Lack::WriteBack | Lack::WriteFill | Lack::FillAtOnce) | None => {}
    }
    config
}

/// How its grid disk is.
pub(super) fn shape(lack: Option<Lack>, spec: &mut GridDiskSpec) {
    spec.caching_mode = match lack {
        Some(Lack::WriteBack) => CachingMode::WriteThrough,
        Some(Lack::WriteFill) => CachingMode::WriteAround,
        _ => CachingMode::WriteBack,
    };
    if lack == Some(Lack::FillAtOnce) {
        spec.fill = FillStrategy::Feed;
    }
}

/// One arm in one pass.
struct Row {
    part: String,
    flash: &'static str,
    pass_name: &'static str,
    name: &'static str,
    pass: Pass,
    elapsed_s: f64,
    /// To the whole, in the same pass.
    to_whole: f64,
    scale: f64,
    /// Reads are of one page, so that hits and misses are of the same kind.
    by_page: bool,
}

impl Row {
    fn hit_ratio(&self) -> Option<f64> {
        (self.by_page && self.pass.missed > 0).then(|| self.pass.hits as f64 / self.pass.missed as f64)
    }

    fn written_mb(&self) -> f64 {
        self.pass.flash.written_bytes as f64 * self.scale / 1e6
    }

    fn waits(&self) -> Vec<(&'static str, f64)> {
        let wait = |wait: &Wait| (wait.name(), self.pass.waits.ns(*wait) as f64 * self.scale / 1e9);
        Wait::ALL.iter().map(wait).collect()
    }
}

const NOTES: &str = "Ours, whole, is a cell in write-back with everything else as it is shipped; each other arm lacks one thing. Flash is for all of the\n\
     data, as in the experiment, then for a third of it. The flash log is not here: redo has a drive of its own in every arm.\n";

/// Run the load of these parts on a cell that lacks one thing at a time.
pub(super) fn run(
    experiment: &'static str,
    parts: &[Part],
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Experiment, RunError> {
    let mut rows = Vec::new();
    for part in parts {
        let data_bytes = part.setup.load.pages() * PAGE_BYTES;
        let tight_bytes = (data_bytes / TIGHT).next_multiple_of(SEGMENT_BYTES_MAX).max(FLASH_BYTES_MIN);
        for (flash, flash_bytes) in [("all of the data", part.setup.flash_bytes), ("a third of it", tight_bytes)] {
            rows.extend(arms(experiment, part, (flash, flash_bytes), options, tell)?);
        }
    }
    Ok(Experiment { told: told(experiment, &rows), bounds: Vec::new(), notes: NOTES.to_owned() })
}

fn arms(
    experiment: &'static str,
    part: &Part,
    (flash, flash_bytes): (&'static str, u64),
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, RunError> {
    let lacks: &[Lack] = if matches!(part.setup.load, Load::Updates(_)) { &OF_UPDATES } else { &OF_READS };
    let storages: Vec<Storage> =
        std::iter::once(None).chain(lacks.iter().copied().map(Some)).map(Storage::Ablated).collect();
    tell(&format!("{experiment}: {}: flash for {flash}: {} arms", part.name, storages.len()));
    let setup = |storage: &Storage| Setup { storage: *storage, seed: options.seed, flash_bytes, ..part.setup.clone() };
    let setups: Vec<Setup> = storages.iter().map(setup).collect();
    let mut rows = Vec::new();
    let mut whole_ns = Vec::new();
    for (storage, result) in storages.iter().zip(run_all(&setups, database::run)) {
        let passes = result.map_err(|source| RunError::Stuck {
            part: part.name.clone(),
            configuration: storage.name().to_owned(),
            source,
        })?;
        if whole_ns.is_empty() {
            whole_ns = passes.iter().map(|pass| pass.elapsed_ns).collect();
        }
        for ((pass, whole_ns), pass_name) in passes.into_iter().zip(&whole_ns).zip(part.passes) {
            rows.push(Row {
                part: part.name.clone(),
                flash,
                pass_name,
                name: storage.name(),
                elapsed_s: pass.elapsed_ns as f64 * part.scale as f64 / 1e9,
                to_whole: pass.elapsed_ns as f64 / *whole_ns as f64,
                scale: part.scale as f64,
                by_page: !matches!(part.setup.load, Load::Scan(_)),
                pass,
            });
        }
    }
    Ok(rows)
}

fn told(experiment: &'static str, rows: &[Row]) -> Told {
    Told {
        lines: lines(rows),
        words: vec![0, 1, 2, 3],
        objects: rows.iter().map(|row| object(experiment, row)).collect(),
        charts: charts(rows),
        verdicts: [0, 0],
    }
}

fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let head =
        ["part", "flash for", "pass", "configuration", "model s", "to ours whole", "hit ratio", "written to flash MB"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.part.clone(),
            row.flash.to_owned(),
            row.pass_name.to_owned(),
            row.name.to_owned(),
            format!("{:.1}", row.elapsed_s),
            format!("{:.3}", row.to_whole),
            row.hit_ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            format!("{:.0}", row.written_mb()),
        ]
    }));
    lines
}

fn object(experiment: &'static str, row: &Row) -> String {
    let further = [
        ("ratio_to_whole", Some(row.to_whole)),
        ("hits_per_miss_in_memory", row.hit_ratio()),
        ("flash_bytes_written", Some(row.pass.flash.written_bytes as f64 * row.scale)),
    ];
    let name = format!("{}, flash for {}, {}", row.part, row.flash, row.pass_name);
    Object {
        experiment,
        row: &name,
        configuration: row.name,
        elapsed_s: row.elapsed_s,
        ratio_to_all_flash: None,
        verified_blocks: row.pass.verified,
        waits: &row.waits(),
        field_elapsed_s: None,
        further: &further,
        verdict: "-",
    }
    .json()
}

/// The arms of a part with one size of flash in one pass: the mark is the whole.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let mut titles: Vec<String> = Vec::new();
    let title = |row: &Row| format!("{}, flash for {}, {}: elapsed seconds", row.part, row.flash, row.pass_name);
    for row in rows {
        if !titles.contains(&title(row)) {
            titles.push(title(row));
        }
    }
    let of = |wanted: String| {
        let bar = |row: &Row| Bar {
            name: row.name.to_owned(),
            note: format!("{:.1} s, {:.3} of the whole", row.elapsed_s, row.to_whole),
            parts: row.waits().into_iter().map(|(_, s)| s).collect(),
            field: Some(row.elapsed_s / row.to_whole),
        };
        let bars = rows.iter().filter(|row| title(row) == wanted).map(bar).collect();
        let kinds = Wait::ALL.map(Wait::name).to_vec();
        Chart::Bars(Bars { title: wanted, unit: "s", mark: "ours, whole", kinds, bars })
    };
    titles.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: each arm lacks what it says and nothing else. Method: its configuration beside the whole's, and small runs.
    use super::*;
    use celldisk::DeviceId;
    use device::WallTime;

    #[test]
    fn each_arm_lacks_one_thing() {
        let of = |lack| {
            let mut spec = GridDiskSpec::new("DATA", DeviceId(1), 1 << 30, WallTime(0));
            shape(lack, &mut spec);
            let config = config(lack, 512 << 20);
            let scans = config.sequential_cutoff_bytes > 0;
            (spec.caching_mode, spec.fill, scans, config.cache.without, config.cache.segment_bytes)
        };
        let whole = (CachingMode::WriteBack, FillStrategy::Read, true, None, 2 << 20);
        assert_eq!(of(None), whole);
        for lack in OF_UPDATES {
            let mut expected = whole;
            match lack {
                Lack::WriteBack => expected.0 = CachingMode::WriteThrough,
                Lack::WriteFill => expected.0 = CachingMode::WriteAround,
                Lack::ScanDetection => expected.2 = false,
                Lack::FillAtOnce => expected.1 = FillStrategy::Feed,
                Lack::Of(mechanism) => expected.3 = Some(mechanism),
            }
            assert_eq!(of(Some(lack)), expected, "{lack:?}");
        }
        assert!(OF_READS.iter().all(|lack| OF_UPDATES.contains(lack)));
    }

    #[test]
    fn small_ablations_run_and_repeat() {
        for (name, operations, arms) in [("s9-updates", 1_500, 9), ("s11", 3_000, 5)] {
            let options = RunOptions {
                names: vec![name.to_owned()],
                seed: 1,
                syncs: Some(operations),
                ablation: true,
                ..RunOptions::default()
            };
            let run_once = || crate::run::run(&options).map_err(|e| e.to_string());
            let first = run_once();
            let Ok((text, true)) = &first else { unreachable!("it runs: {first:?}") };
            let names =
                text.lines().filter(|line| line.contains("| without ") || line.contains("| ours, whole")).count();
            let (parts, passes) = if name == "s11" { (1, 3) } else { (2, 2) };
            assert_eq!(names, arms * 2 * parts * passes, "{text}");
            assert_eq!(first, run_once(), "{name}");
        }
        let options = RunOptions { names: vec!["s12".to_owned()], ablation: true, ..RunOptions::default() };
        let error = crate::run::run(&options).err().map(|e| e.to_string());
        let expected = "s12 has no ablation\nhint: these have one: s9-reads, s9-updates, s9-scan, s10, s11";
        assert_eq!(error.as_deref(), Some(expected));
    }
}
