//! Rows of the field beside rows of the model: run, compared, told.
//!
//! The rows without flash and with the table on flash calibrate the model; all others are predictions. A prediction is *reproduced* when its
//! ratio to the row without flash is within 20 % of the field's.

use super::ablation;
use super::chart::{Bar, Bars, Chart};
use super::database::{self, Pass, Setup, Storage};
use super::ranges::Range;
use super::real::Real;
use super::sets;
use super::told::{self, REPRODUCED_PERCENT, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use crate::output::json_string;
use buffercache::Wait;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A calibrated row within this is calibrated.
const CALIBRATED_PERCENT: f64 = 3.0;

/// Who measured what stands beside a row.
const FIELD: &str = "the field";

/// Ours counts as no slower than the vendor's up to so much: where both read the same from the same disk, chance decides.
const SLOWER_PERMILLE: u16 = 5;

/// One part of an experiment: the same work in every arm.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) name: String,
    /// Arms, each with the field's figure in seconds for its first pass and for its second.
    pub(super) arms: Vec<(Storage, [Option<f64>; 2])>,
    /// Like this, but for the storage.
    pub(super) setup: Setup,
    /// Names of the passes.
    pub(super) passes: &'static [&'static str],
    /// The model runs one of so many parts of the field's work, which is the same from beginning to end.
    pub(super) scale: u64,
    /// More free parameters than figures.
    pub(super) not_identifiable: bool,
    /// The row with the table on flash is the field's, or there is none.
    pub(super) flash_calibrates: bool,
    /// Plausible ranges of what the field's report does not say.
    pub(super) ranges: &'static [&'static [Range]],
    /// Each of many sets of parameters is run with one of so many parts of work, table, memory and flash.
    pub(super) reduced: u64,
}

impl Part {
    /// It is on other devices than the field's.
    fn is_moved(&self) -> bool {
        self.setup.under.devices.is_some()
    }

    /// The arm with the vendor's cache.
    pub(super) fn vendor(&self) -> Option<Storage> {
        self.arms.iter().map(|(storage, _)| *storage).find(|storage| storage.is_vendors())
    }
}

/// That the devices have room for each of them.
///
/// # Errors
/// One has not.
pub(super) fn check_room(parts: &[Part]) -> Result<(), RunError> {
    for Part { setup, .. } in parts {
        let table_bytes = setup.load.pages() * database::PAGE_BYTES;
        let with_labels = |bytes: u64| bytes + database::LABELS_BYTES;
        setup.under.check_room(with_labels(table_bytes), with_labels(setup.flash_bytes.max(table_bytes)))?;
    }
    Ok(())
}

/// One arm in one pass.
pub(super) struct Row {
    experiment: &'static str,
    part: String,
    pass_name: &'static str,
    pub(super) storage: Storage,
    pub(super) pass: Pass,
    pub(super) elapsed_s: f64,
    field_s: Option<f64>,
    /// To the row without flash and the row with the table on flash, in the same pass.
    to_disk: f64,
    to_flash: f64,
    /// h x t_flash + (1 - h) x t_disk, where h leaves out what nobody had asked for before.
    bound_s: Option<f64>,
    scale: u64,
    /// Reads are of one page, so that hits and misses are of the same kind.
    by_page: bool,
    /// What came of it on a served cell: of several runs the one whose elapsed time is the median.
    measured: Option<Pass>,
    verdict: String,
}

impl Row {
    fn wait_s(&self, wait: Wait) -> f64 {
        self.pass.waits.ns(wait) as f64 * self.scale as f64 / 1e9
    }

    fn measured_s(&self) -> Option<f64> {
        self.measured.map(|pass| pass.elapsed_ns as f64 * self.scale as f64 / 1e9)
    }

    /// To what was measured, here or else by the field.
    fn deviation(&self) -> Option<f64> {
        self.measured_s().or(self.field_s).map(|other| 100.0 * (self.elapsed_s / other - 1.0))
    }

    /// With what was measured here.
    fn agrees(&self) -> bool {
        self.measured_s().is_some_and(|measured| told::agrees(self.elapsed_s, measured))
    }

    fn hit_ratio(&self, pass: &Pass) -> Option<f64> {
        let has_cache = !matches!(self.storage, Storage::Disk | Storage::Flash);
        let counts = has_cache && self.by_page && pass.missed > 0;
        counts.then(|| pass.hits as f64 / pass.missed as f64)
    }
}

/// Run arms two at a time: each is a world of its own, so that the order changes nothing.
pub(crate) fn run_all<Arm: Sync, Result: Send>(arms: &[Arm], run: impl Fn(&Arm) -> Result + Sync) -> Vec<Result> {
    let results: Mutex<Vec<Option<Result>>> = Mutex::new(arms.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(arms.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((n, arm)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, arms.get(n)?)))
                {
                    let result = run(arm);
                    device::sync::lock(&results)[n] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.into_iter().flatten().collect()
}

/// Run the parts of an experiment, and tell.
pub(super) fn run(
    experiment: &'static str,
    parts: Vec<Part>,
    notes: &str,
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Experiment, RunError> {
    check_room(&parts)?;
    if options.ablation {
        return ablation::run(experiment, &parts, options, tell);
    }
    if let Some(count) = options.sets {
        return sets::run(experiment, &parts, count, options, tell);
    }
    let (rows, bounds) = rows(experiment, parts, options, tell)?;
    Ok(Experiment { told: told(&rows), bounds, notes: notes_of(notes, options) })
}

/// What is to be seen beside the rows.
pub(super) fn notes_of(notes: &str, options: &RunOptions) -> String {
    if options.devices.is_some() { MOVED.to_owned() } else { notes.to_owned() }
}

const MOVED: &str = "Tables, memory and the processor's time are those of the field's machine; the devices are not, so that its figures say nothing here.\n";

/// Run the parts of an experiment: their rows, and what is asked of them.
pub(super) fn rows(
    experiment: &'static str,
    parts: Vec<Part>,
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<(Vec<Row>, Vec<Bound>), RunError> {
    let (mut all, mut bounds) = (Vec::new(), Vec::new());
    let real = Real::of(options)?;
    for part in parts {
        tell(&format!("{experiment}: {}: {} arms", part.name, part.arms.len()));
        let arm = |(storage, _): &(Storage, _)| Setup { storage: *storage, seed: options.seed, ..part.setup.clone() };
        let setups: Vec<Setup> = part.arms.iter().map(arm).collect();
        let mut rows = Vec::new();
        for ((storage, field), result) in part.arms.iter().zip(run_all(&setups, database::run)) {
            let passes = result.map_err(|source| RunError::Stuck {
                part: part.name.clone(),
                configuration: storage.name().to_owned(),
                source,
            })?;
            for (n, pass) in passes.into_iter().enumerate() {
                rows.push(Row {
                    experiment,
                    part: part.name.clone(),
                    pass_name: part.passes.get(n).copied().unwrap_or_default(),
                    storage: *storage,
                    elapsed_s: pass.elapsed_ns as f64 * part.scale as f64 / 1e9,
                    pass,
                    // A part of the work, or other devices, have no figure of the field beside them.
                    field_s: field.get(n).copied().flatten().filter(|_| options.syncs.is_none() && !part.is_moved()),
                    to_disk: f64::NAN,
                    to_flash: f64::NAN,
                    bound_s: None,
                    scale: part.scale,
                    by_page: !matches!(part.setup.load, database::Load::Scan(_)),
                    measured: None,
                    verdict: String::new(),
                });
            }
        }
        if let Some(real) = &real {
            measure(real, &setups, &mut rows, &mut |what| tell(&format!("{experiment}: {}: {what}", part.name)))?;
        }
        compare(&part, &mut rows);
        bounds.extend(judge(&part, &rows));
        all.extend(rows);
    }
    Ok((all, bounds))
}

/// The same arms against served cells, as often as is asked; in rounds, so that what else the machine does meets all of them.
fn measure(real: &Real<'_>, setups: &[Setup], rows: &mut [Row], tell: &mut dyn FnMut(&str)) -> Result<(), RunError> {
    let runs = real.runs();
    real.say_how_long(rows.iter().map(|row| row.pass.elapsed_ns).sum(), " and the writing of each table");
    let mut measured: Vec<Vec<Vec<Pass>>> = vec![Vec::new(); setups.len()];
    for run in 1..=runs {
        for (setup, of_arm) in setups.iter().zip(&mut measured) {
            of_arm.push(real.run(setup, &mut |what| tell(&format!("run {run} of {runs}: {what}")))?);
        }
    }
    for (setup, of_arm) in setups.iter().zip(&measured) {
        for (n, row) in rows.iter_mut().filter(|row| row.storage == setup.storage).enumerate() {
            let mut passes: Vec<Pass> = of_arm.iter().filter_map(|passes| passes.get(n)).copied().collect();
            passes.sort_by_key(|pass| pass.elapsed_ns);
            row.measured = passes.get(passes.len() / 2).copied();
        }
    }
    Ok(())
}

fn compare(part: &Part, rows: &mut [Row]) {
    for pass in part.passes {
        let of = |storage: Storage| rows.iter().find(|row| row.storage == storage && row.pass_name == *pass);
        let (Some(disk), Some(flash)) = (of(Storage::Disk), of(Storage::Flash)) else { continue };
        let (disk_s, flash_s, disk_field_s) = (disk.elapsed_s, flash.elapsed_s, disk.field_s);
        let missed = disk.pass.missed;
        for row in rows.iter_mut().filter(|row| row.pass_name == *pass) {
            row.to_disk = row.elapsed_s / disk_s;
            row.to_flash = row.elapsed_s / flash_s;
            let has_cache = !matches!(row.storage, Storage::Disk | Storage::Flash);
            if has_cache && missed > 0 {
                // Everything fits on flash: what was asked for before can be there, if it had left memory.
                let hits = 1.0 - row.pass.first.min(missed) as f64 / missed as f64;
                row.bound_s = Some(hits * flash_s + (1.0 - hits) * disk_s);
            }
            let calibrates = row.storage == Storage::Disk || (row.storage == Storage::Flash && part.flash_calibrates);
            if let (Some(_), Some(deviation)) = (row.measured, row.deviation()) {
                let word = if row.agrees() { "agrees" } else { "OFF" };
                row.verdict = format!("{word}, {deviation:+.0} %");
                continue;
            }
            row.verdict = match (row.field_s, row.deviation()) {
                (Some(_), Some(deviation)) if calibrates => {
                    let is_calibrated = deviation.abs() <= CALIBRATED_PERCENT;
                    if is_calibrated { "calibrated" } else { "NOT calibrated" }.to_owned()
                }
                (Some(field), _) => {
                    let ratio = row.to_disk / (field / disk_field_s.unwrap_or(f64::NAN));
                    let is_reproduced = (ratio - 1.0).abs() * 100.0 <= REPRODUCED_PERCENT;
                    let verdict = if is_reproduced { "reproduced" } else { "NOT reproduced" };
                    let known = if part.not_identifiable { " (not identifiable)" } else { "" };
                    format!("{verdict}{known}, ratio {:+.0} %", 100.0 * (ratio - 1.0))
                }
                _ => "-".to_owned(),
            };
        }
    }
}

/// What is asked of ours, and of the mechanism.
fn judge(part: &Part, rows: &[Row]) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let mut add = |row: &Row, what: &str, holds: bool, figures: String| {
        let text = format!("{}, {}: {}: {what}: {figures}", part.name, row.pass_name, row.storage.name());
        bounds.push(Bound { text, holds });
    };
    for row in rows {
        if let Some(measured) = row.measured_s() {
            let figures = format!("{:.2} s foretold, {measured:.2} s measured", row.elapsed_s);
            add(row, "foretold within 20 % of what was measured", row.agrees(), figures);
        }
    }
    for pass in part.passes {
        let of_pass: Vec<&Row> = rows.iter().filter(|row| row.pass_name == *pass).collect();
        let Some(vendor) = of_pass.iter().find(|row| row.storage.is_vendors()) else { continue };
        for row in of_pass.iter().filter(|row| row.storage.is_ours()) {
            let figures = format!("{:.1} s against {:.1} s", row.elapsed_s, vendor.elapsed_s);
            let holds = row.elapsed_s * 1_000.0 <= vendor.elapsed_s * f64::from(1_000 + SLOWER_PERMILLE);
            add(row, "no slower than the vendor's", holds, figures);
        }
        // Where the devices are quick enough nobody waits for a buffer.
        if matches!(part.setup.load, database::Load::Updates(_)) && !part.is_moved() {
            let waits = |row: &Row| row.wait_s(Wait::FreeBuffer);
            let others = of_pass.iter().filter(|row| matches!(row.storage, Storage::Disk | Storage::Flash));
            let most = others.map(|row| waits(row)).fold(0.0, f64::max);
            let figures = format!("{:.1} s, the others at most {most:.1} s", waits(vendor));
            add(vendor, "free buffer waits are highest with the flash cache", waits(vendor) > most, figures);
        }
    }
    bounds
}

/// The rows in each form.
pub(super) fn told(rows: &[Row]) -> Told {
    let passes = rows.iter().map(|row| (row.part.as_str(), row.pass_name));
    let mut parts: Vec<(&str, &str)> = Vec::new();
    passes.for_each(|pass| {
        if !parts.contains(&pass) {
            parts.push(pass);
        }
    });
    let of = |(part, pass): &(&str, &str)| bars(rows.iter().filter(|row| row.part == *part && row.pass_name == *pass));
    Told {
        lines: lines(rows),
        words: vec![0, 1, 2, COLUMNS - 1],
        objects: objects(rows),
        charts: parts.iter().map(of).collect(),
        verdicts: told::count(rows.iter().map(|row| row.verdict.as_str())),
    }
}

/// The arms of a part in one pass, in the manner of the field's charts.
fn bars<'a>(rows: impl Iterator<Item = &'a Row>) -> Chart {
    let (mut title, mut mark) = (String::new(), FIELD);
    let bar = |row: &Row| {
        title = format!("{}, {}: elapsed seconds", row.part, row.pass_name);
        let other = row.measured_s().map(|s| ("measured", s)).or(row.field_s.map(|s| (FIELD, s)));
        let beside = other.map_or_else(String::new, |(who, s)| format!(", {who} {s:.1} s: {}", row.verdict));
        if let Some((who, _)) = other {
            mark = who;
        }
        Bar {
            name: row.storage.name().to_owned(),
            note: format!("{:.1} s{beside}", row.elapsed_s),
            parts: Wait::ALL.iter().map(|wait| row.wait_s(*wait)).collect(),
            field: other.map(|(_, s)| s),
        }
    };
    let bars = rows.map(bar).collect();
    Chart::Bars(Bars { title, unit: "s", mark, kinds: Wait::ALL.map(Wait::name).to_vec(), bars })
}

/// The table: elapsed time as waits.
fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let waits = Wait::ALL.map(Wait::name);
    let is_measured = rows.iter().any(|row| row.measured.is_some());
    let beside = if is_measured { "measured s" } else { "field s" };
    let mut lines = vec![columns(
        ["part", "pass", "configuration", beside, "model s", "off by"],
        waits,
        ["to no flash", "to all flash", "bound s", "hit ratio", "verdict"],
    )];
    let dash = || "-".to_owned();
    for row in rows {
        let first = [
            row.part.clone(),
            row.pass_name.to_owned(),
            row.storage.name().to_owned(),
            row.measured_s().or(row.field_s).map_or_else(dash, |s| format!("{s:.1}")),
            format!("{:.1}", row.elapsed_s),
            row.deviation().map_or_else(dash, |percent| format!("{percent:+.1} %")),
        ];
        let waits = Wait::ALL.map(|wait| format!("{:.1}", row.wait_s(wait)));
        let last = [
            format!("{:.3}", row.to_disk),
            format!("{:.2}", row.to_flash),
            row.bound_s.map_or_else(dash, |s| format!("{s:.1}")),
            hit_ratios(row),
            row.verdict.clone(),
        ];
        lines.push(columns(first, waits, last));
    }
    lines
}

/// As foretold, and as measured where it was.
fn hit_ratios(row: &Row) -> String {
    let of = |pass: &Pass| row.hit_ratio(pass).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
    match &row.measured {
        None => of(&row.pass),
        Some(measured) => format!("{}, measured {}", of(&row.pass), of(measured)),
    }
}

/// Of the table.
const COLUMNS: usize = 6 + Wait::ALL.len() + 5;

fn columns<T: ToString>(first: [T; 6], waits: [T; Wait::ALL.len()], last: [T; 5]) -> Vec<String> {
    first.into_iter().chain(waits).chain(last).map(|text| text.to_string()).collect()
}

/// The rows as scripts read them, an object each.
fn objects(rows: &[Row]) -> Vec<String> {
    let number = |value: f64| if value.is_finite() { format!("{value:.6}") } else { "null".to_owned() };
    let or_null = |value: Option<f64>| value.map_or_else(|| "null".to_owned(), number);
    let waits = |row: &Row, pass: &Pass| -> String {
        let seconds = |wait: &Wait| pass.waits.ns(*wait) as f64 * row.scale as f64 / 1e9;
        let wait = |wait: &Wait| format!("{}:{:.6}", json_string(wait.name()), seconds(wait));
        Wait::ALL.iter().map(wait).collect::<Vec<String>>().join(",")
    };
    let asked = |pass: &Pass| {
        format!(
            "\"disk_reads\":{},\"disk_writes\":{},\"flash_reads\":{},\"flash_writes\":{},\"flash_bytes_written\":{}",
            pass.disk.reads, pass.disk.writes, pass.flash.reads, pass.flash.writes, pass.flash.written_bytes
        )
    };
    let object = |row: &Row| {
        let pass = &row.pass;
        let measured = row.measured.map_or_else(String::new, |measured| {
            format!(
                ",\"measured\":{{\"elapsed_s\":{},\"hit_ratio\":{},\"verified_blocks\":{},\"waits\":{{{}}},{}}}",
                or_null(row.measured_s()),
                or_null(row.hit_ratio(&measured)),
                measured.verified,
                waits(row, &measured),
                asked(&measured)
            )
        });
        format!(
            "{{\"experiment\":{},\"row\":{},\"configuration\":{},\"pass\":{},\"elapsed_s\":{:.6},\"ratio_to_no_flash\":{},\
             \"ratio_to_all_flash\":{},\"hit_ratio\":{},\"verified_blocks\":{},\"waits\":{{{}}},\"field_elapsed_s\":{},\
             \"deviation_percent\":{},\"bound_s\":{},\"verdict\":{},\"missed_in_memory\":{},\"first_time\":{},\"written\":{},\
             {}{measured}}}",
            json_string(row.experiment),
            json_string(&row.part),
            json_string(row.storage.name()),
            json_string(row.pass_name),
            row.elapsed_s,
            number(row.to_disk),
            number(row.to_flash),
            or_null(row.hit_ratio(&row.pass)),
            pass.verified,
            waits(row, pass),
            or_null(row.field_s),
            or_null(row.deviation()),
            or_null(row.bound_s),
            json_string(&row.verdict),
            pass.missed,
            pass.first,
            pass.written,
            asked(pass),
        )
    };
    rows.iter().map(object).collect()
}
