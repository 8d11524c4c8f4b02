//! How sure a prediction is: many sets of parameters, each drawn from its plausible range, and the share of them whose ratio to the row
//! without flash is within 20 % of the field's.
//!
//! The same seed draws the same sets. Work, table, memory and flash are reduced together, so that what is read again and what fits stay the
//! same shares. Never changes a range by what came out.

use super::chart::{Axis, Chart, Curve, Curves};
use super::database::{self, Load, PAGE_BYTES, Pass, Setup, Storage};
use super::field::{Part, run_all};
use super::ranges::Range;
use super::told::{Object, REPRODUCED_PERCENT, Told};
use super::{Experiment, RunError, RunOptions};
use device::Prng;
use std::fmt::Write;

/// A set calibrates when what it gives without flash, and with the table on flash, is within this of the field's.
const CALIBRATES_PERCENT: f64 = 20.0;
/// Sets between two lines of progress.
const BATCH: usize = 8;
/// A draw is one of 2^10 values of its range.
const DRAW_BITS: u32 = 10;

impl Range {
    /// A value of the range, all orders of magnitude alike: the geometric mean halves it ten times. In integers, so that a seed draws the
    /// same everywhere.
    fn draw(&self, prng: &mut Prng) -> u64 {
        let (mut low, mut high) = (self.low, self.high);
        for _ in 0..DRAW_BITS {
            let middle = (u128::from(low) * u128::from(high)).isqrt() as u64;
            *if prng.below(2) == 0 { &mut high } else { &mut low } = middle;
        }
        low
    }
}

/// The figures of a row in one set and one pass, in seconds of the field's work.
#[derive(Clone, Copy)]
struct Figures {
    disk_s: f64,
    vendor_s: f64,
    flash_s: f64,
    verified: u64,
}

/// A set has them for each pass.
type Outcome = Vec<Figures>;

/// One row of the field against all sets, in one pass.
struct Row {
    part: String,
    pass_name: &'static str,
    vendor: &'static str,
    nominal: Figures,
    field_ratio: f64,
    field_s: f64,
    /// Of each set, over the field's ratio, in order.
    ratios: Vec<f64>,
    within: usize,
    calibrated: usize,
    calibrated_within: usize,
    not_identifiable: bool,
    /// The pass that the field's figure is of, where that is another.
    figure_of: Option<&'static str>,
}

fn is_within(ratio: f64, percent: f64) -> bool {
    (ratio - 1.0).abs() * 100.0 <= percent
}

fn percent(count: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| 100.0 * count as f64 / of as f64)
}

impl Row {
    fn nominal_over_field(&self) -> f64 {
        self.nominal.vendor_s / self.nominal.disk_s / self.field_ratio
    }

    fn verdict(&self) -> String {
        let sets = self.ratios.len();
        let share = percent(self.within, sets).unwrap_or(0.0);
        let known = if self.not_identifiable { " (not identifiable)" } else { "" };
        if let Some(pass_name) = self.figure_of {
            format!("the field's is {pass_name}{known}, consistent with {share:.0} % of {sets} sets")
        } else if is_within(self.nominal_over_field(), REPRODUCED_PERCENT) {
            format!("reproduced{known}, consistent with {share:.0} % of {sets} sets")
        } else {
            format!("NOT reproduced{known}, consistent with {share:.0} % of {sets} sets")
        }
    }

    /// The ratio below which so many percent of the sets lie.
    fn quantile(&self, percent: usize) -> f64 {
        let last = self.ratios.len().saturating_sub(1);
        self.ratios.get(last * percent / 100).copied().unwrap_or(f64::NAN)
    }
}

/// Run parts with this many sets of parameters.
pub(super) fn run(
    experiment: &'static str,
    parts: &[Part],
    sets: usize,
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Experiment, RunError> {
    let (mut rows, mut notes) = (Vec::new(), NOTES.to_owned());
    for part in parts {
        // Writing to a string cannot fail.
        let _ = write!(notes, "\n| {}, reduced to one part of {}\n", part.name, part.reduced);
        for range in part.ranges.iter().copied().flatten() {
            let Range { what, low, high, unit, source, .. } = range;
            let _ = writeln!(notes, "| {what}: {low} to {high} {unit} ({source})");
        }
        let mut prng = Prng::new(options.seed).fork(experiment).fork(&part.name);
        // The first has what the model has, and does not count.
        let drawn = (0..sets).map(|_| drawn(part, &mut prng));
        let all: Vec<Part> = std::iter::once(part.clone()).chain(drawn).map(reduced).collect();
        let mut outcomes = Vec::new();
        for batch in all.chunks(BATCH) {
            tell(&format!("{experiment}: {}: set {} of {sets}", part.name, outcomes.len()));
            for outcome in run_all(batch, |part| outcome(part, options.seed)) {
                outcomes.push(outcome?);
            }
        }
        rows.extend(compare(part, &outcomes));
    }
    Ok(Experiment { told: told(experiment, &rows), bounds: Vec::new(), notes })
}

const NOTES: &str = "Each set has every parameter drawn from its range, all orders of magnitude alike; the share is of sets whose ratio to no flash is\n\
     within 20 % of the field's. A pass that the field has no figure for is held against its figure for the pass before. A set calibrates\n\
     where what it gives without flash and with the table on flash is within 20 % of the field's, too.\n";

fn drawn(part: &Part, prng: &mut Prng) -> Part {
    let mut part = part.clone();
    for range in part.ranges.iter().copied().flatten() {
        let value = range.draw(prng);
        (range.set)(&mut part, value);
    }
    // In every set all of the table fits on flash, as in the experiment.
    let table_bytes = part.setup.load.pages() * PAGE_BYTES;
    part.setup.flash_bytes = part.setup.flash_bytes.max(table_bytes / 4 * 5);
    part
}

/// The same with less of everything.
fn reduced(mut part: Part) -> Part {
    let by = part.reduced;
    let setup = &mut part.setup;
    let less = |count: u64| (count / by).max(1);
    match &mut setup.load {
        Load::Reads(keys) | Load::Updates(keys) => {
            (keys.count, keys.row_pages, keys.leaf_pages) =
                (less(keys.count), less(keys.row_pages), less(keys.leaf_pages));
            setup.operations = less(setup.operations);
            setup.later_operations = less(setup.later_operations).min(setup.operations);
            // What a drive reads ahead stays the same share of the table.
            setup.under.machine.disk.read_ahead_bytes = less(setup.under.machine.disk.read_ahead_bytes);
        }
        Load::Scan(pages) => *pages = less(*pages),
    }
    setup.frames = (setup.frames as u64 / by) as usize;
    setup.under.machine.flash.random_burst /= by;
    // Whole lines of a cache.
    setup.flash_bytes = less(setup.flash_bytes).next_multiple_of(1 << 20);
    part.scale *= by;
    part
}

fn outcome(part: &Part, seed: u64) -> Result<Outcome, RunError> {
    let passes = |storage: Storage| -> Result<Vec<Pass>, RunError> {
        let setup = Setup { storage, seed, ..part.setup.clone() };
        let configuration = || storage.name().to_owned();
        database::run(&setup).map_err(|source| RunError::Stuck {
            part: part.name.clone(),
            configuration: configuration(),
            source,
        })
    };
    let Some(vendor) = part.vendor() else { return Ok(Vec::new()) };
    let (disk, vendor, flash) = (passes(Storage::Disk)?, passes(vendor)?, passes(Storage::Flash)?);
    let seconds = |pass: &Pass| pass.elapsed_ns as f64 * part.scale as f64 / 1e9;
    let figures = |((disk, vendor), flash): ((&Pass, &Pass), &Pass)| Figures {
        disk_s: seconds(disk),
        vendor_s: seconds(vendor),
        flash_s: seconds(flash),
        verified: disk.verified + vendor.verified + flash.verified,
    };
    Ok(disk.iter().zip(&vendor).zip(&flash).map(figures).collect())
}

/// The rows of a part: for each pass, the figure that the field has for it, or for the pass before.
fn compare(part: &Part, outcomes: &[Outcome]) -> Vec<Row> {
    let (Some(vendor), Some((nominal, sets))) = (part.vendor(), outcomes.split_first()) else { return Vec::new() };
    let field = |storage: Storage, pass: usize| {
        let figures = part.arms.iter().find(|(arm, _)| *arm == storage).map(|(_, figures)| figures)?;
        (0..=pass.min(1)).rev().find_map(|n| figures[n])
    };
    let own = |pass: usize| part.arms.iter().find(|(arm, _)| *arm == vendor)?.1.get(pass).copied().flatten();
    let mut rows = Vec::new();
    for (n, (pass_name, nominal)) in part.passes.iter().zip(nominal).enumerate() {
        let (Some(disk_s), Some(vendor_s)) = (field(Storage::Disk, n), field(vendor, n)) else { continue };
        let flash_s = field(Storage::Flash, n).filter(|_| part.flash_calibrates);
        let field_ratio = vendor_s / disk_s;
        let over_field = |set: &Outcome| set.get(n).map_or(f64::NAN, |set| set.vendor_s / set.disk_s / field_ratio);
        // The field's figures for calibration are of its first pass.
        let calibrates = |set: &Outcome| {
            set.first().is_some_and(|set| {
                let disk_is = is_within(set.disk_s / field(Storage::Disk, 0).unwrap_or(disk_s), CALIBRATES_PERCENT);
                disk_is && flash_s.is_none_or(|field_s| is_within(set.flash_s / field_s, CALIBRATES_PERCENT))
            })
        };
        let within = |set: &&Outcome| is_within(over_field(set), REPRODUCED_PERCENT);
        let mut ratios: Vec<f64> = sets.iter().map(over_field).collect();
        ratios.sort_by(f64::total_cmp);
        rows.push(Row {
            part: part.name.clone(),
            pass_name,
            vendor: vendor.name(),
            nominal: *nominal,
            field_ratio,
            field_s: vendor_s,
            within: sets.iter().filter(within).count(),
            calibrated: sets.iter().filter(|set| calibrates(set)).count(),
            calibrated_within: sets.iter().filter(|set| calibrates(set)).filter(within).count(),
            ratios,
            not_identifiable: part.not_identifiable,
            figure_of: (n > 0 && own(n).is_none()).then(|| part.passes[n.min(2) - 1]),
        });
    }
    rows
}

fn told(experiment: &'static str, rows: &[Row]) -> Told {
    let verdicts: Vec<String> = rows.iter().map(Row::verdict).collect();
    Told {
        lines: lines(rows),
        words: vec![0, 1, 2, COLUMNS - 1],
        objects: rows.iter().map(|row| object(experiment, row)).collect(),
        charts: chart(rows).into_iter().collect(),
        verdicts: super::told::count(verdicts.iter().map(String::as_str)),
    }
}

const COLUMNS: usize = 12;

fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let head: [&str; COLUMNS] = [
        "part",
        "pass",
        "configuration",
        "field to no flash",
        "model, nominal",
        "5 % of sets",
        "median",
        "95 % of sets",
        "within 20 %",
        "sets that calibrate",
        "of these within",
        "verdict",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let quantile = |percent| format!("{:.3}", row.quantile(percent) * row.field_ratio);
        vec![
            row.part.clone(),
            row.pass_name.to_owned(),
            row.vendor.to_owned(),
            format!("{:.3}", row.field_ratio),
            format!("{:.3}", row.nominal.vendor_s / row.nominal.disk_s),
            quantile(5),
            quantile(50),
            quantile(95),
            format!("{} of {}", row.within, row.ratios.len()),
            row.calibrated.to_string(),
            row.calibrated_within.to_string(),
            row.verdict(),
        ]
    }));
    lines
}

fn object(experiment: &'static str, row: &Row) -> String {
    let further = [
        ("field_ratio_to_no_flash", Some(row.field_ratio)),
        ("ratio_to_no_flash", Some(row.nominal.vendor_s / row.nominal.disk_s)),
        ("sets", Some(row.ratios.len() as f64)),
        ("within_20_percent", Some(row.within as f64)),
        ("share_percent", percent(row.within, row.ratios.len())),
        ("sets_that_calibrate", Some(row.calibrated as f64)),
        ("of_these_within_20_percent", Some(row.calibrated_within as f64)),
        ("share_of_these_percent", percent(row.calibrated_within, row.calibrated)),
        ("ratio_p5", Some(row.quantile(5) * row.field_ratio)),
        ("ratio_median", Some(row.quantile(50) * row.field_ratio)),
        ("ratio_p95", Some(row.quantile(95) * row.field_ratio)),
    ];
    Object {
        experiment,
        row: &format!("{}, {}", row.part, row.pass_name),
        configuration: row.vendor,
        elapsed_s: row.nominal.vendor_s,
        ratio_to_all_flash: Some(row.nominal.vendor_s / row.nominal.flash_s),
        verified_blocks: row.nominal.verified,
        waits: &[],
        field_elapsed_s: Some(row.field_s),
        further: &further,
        verdict: &row.verdict(),
    }
    .json()
}

/// Ratios over the field's, the sets in order.
fn chart(rows: &[Row]) -> Option<Chart> {
    let most = rows.iter().flat_map(|row| &row.ratios).copied().fold(1.2, f64::max);
    let curve = |row: &Row| {
        let sets = row.ratios.len().max(1) as f64;
        let point = |(n, ratio): (usize, &f64)| (100.0 * (n + 1) as f64 / sets, *ratio);
        Curve {
            name: format!("{}, {}", row.part, row.pass_name),
            points: row.ratios.iter().enumerate().map(point).collect(),
        }
    };
    (!rows.is_empty()).then(|| {
        Chart::Curves(Curves {
            title: "Ratio to no flash, over the field's, of each set".to_owned(),
            x: Axis::linear("sets, percent", 100.0),
            y: Axis::linear("times the field's ratio", most),
            curves: rows.iter().map(curve).collect(),
            dots: false,
            has_tops: false,
        })
    })
}

#[cfg(test)]
mod tests {
    //! Goal: sets are drawn from their ranges, all of them, and the same seed draws the same. Method: many draws, and small runs.
    use super::*;
    use crate::run::ranges;

    #[test]
    fn draws_fill_their_range() {
        let range = &ranges::ROWS_DUAL[0];
        let draws = |seed| {
            let mut prng = Prng::new(seed);
            (0..1_000).map(|_| range.draw(&mut prng)).collect::<Vec<u64>>()
        };
        let first = draws(1);
        assert!(first.iter().all(|draw| (range.low..=range.high).contains(draw)));
        // The geometric mean of 0.5 and 6 million is 1.73: half lie below.
        let below = first.iter().filter(|draw| **draw < 1_732_050).count();
        assert!((450..=550).contains(&below), "{below}");
        assert!(first.iter().any(|draw| *draw < 520_000) && first.iter().any(|draw| *draw > 5_800_000));
        assert!(first == draws(1) && first != draws(2));
    }

    #[test]
    fn a_few_sets_run_and_repeat() {
        for (name, rows) in [("s9-updates", 4), ("s11", 3)] {
            let options = |seed| RunOptions {
                names: vec![name.to_owned()],
                seed,
                syncs: Some(4_000),
                sets: Some(2),
                ..RunOptions::default()
            };
            let run_once = |seed| crate::run::run(&options(seed)).map_err(|e| e.to_string());
            let first = run_once(1);
            let Ok((text, true)) = &first else { unreachable!("it runs: {first:?}") };
            assert_eq!(text.lines().filter(|line| line.contains("of 2 sets")).count(), rows, "{text}");
            assert_eq!(first, run_once(1), "{name}");
            assert_ne!(first, run_once(2), "{name}: the seed draws");
        }
        let options = RunOptions { names: vec!["redo-s1".to_owned()], sets: Some(2), ..RunOptions::default() };
        let error = crate::run::run(&options).err().map(|e| e.to_string());
        let expected =
            "redo-s1 has no ranges of parameters\nhint: these have them: s9-reads, s9-updates, s9-scan, s10, s11";
        assert_eq!(error.as_deref(), Some(expected));
    }
}
