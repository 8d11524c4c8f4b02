//! Sorts through a temporary segment (S14): on disk, on flash, on a temporary grid disk of a cell.

use super::chart::{Axis, Bar, Bars, Chart, Curve, Curves};
use super::database::PAGE_BYTES;
use super::field::run_all;
use super::machine::{QUAD_CORES_SCANNED, Under};
use super::on_cell::{self, Wanted};
use super::real::Real;
use super::sort::{self, Outcomes, PAGES_MIN, Parts};
use super::told::{self, Measured, Object, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use cell::CellConfig;
use celldisk::{CachingMode, GridDiskSpec, Purpose};
use device::{Device, World};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;

pub(super) const NAME: &str = "s14";
pub(super) const ABOUT: &str =
    "sorts in memory, in one pass and in several, through a temporary segment on disk and on flash (S14)";

/// What is sorted. Assumed: 64 MiB (the field's sort area went from 300 MB to 0).
const TABLE_BYTES: u64 = 64 << 20;
/// Memory as parts of what is sorted.
const PARTS: [usize; 9] = [1, 2, 4, 8, 15, 30, 60, 120, 240];
/// Bound of the design.
const SMALL: usize = 60;
/// Runs go round and round in so many times what is sorted.
const TEMP_TIMES: u64 = 4;
/// On the devices of a cell beside grid disk and cache.
const LABELS_BYTES: u64 = 256 << 20;

/// Where the temporary segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temp {
    Disk,
    /// A temporary grid disk on disks, behind a flash cache in write-back.
    Cached,
    /// A temporary grid disk on flash.
    OnFlash,
    Flash,
}

const TEMPS: [Temp; 4] = [Temp::Disk, Temp::Cached, Temp::OnFlash, Temp::Flash];

impl Temp {
    pub(super) fn name(self) -> &'static str {
        match self {
            Temp::Disk => "temporary segment on disk",
            Temp::Cached => "flashcell, on disk, write-back",
            Temp::OnFlash => "flashcell, on flash",
            Temp::Flash => "temporary segment on flash",
        }
    }
}

/// One sort.
pub(super) struct Arm {
    pub(super) seed: u64,
    pub(super) temp: Temp,
    pages: usize,
    /// It has memory for one of so many parts.
    part: usize,
    under: Under,
}

impl Arm {
    pub(super) fn table_bytes(&self) -> u64 {
        self.pages as u64 * PAGE_BYTES
    }

    /// Of the temporary segment.
    pub(super) fn temp_bytes(&self) -> u64 {
        temp_bytes(self.table_bytes())
    }

    /// The sort on these devices.
    pub(super) fn parts(&self, table: Device, temp: Device, world: &World) -> Parts {
        Parts {
            table,
            temp,
            temp_pages: (self.temp_bytes() / PAGE_BYTES) as usize,
            pages: self.pages,
            memory: self.pages.div_ceil(self.part),
            seed: self.seed,
            clock: world.clock.clone(),
        }
    }
}

struct Row {
    temp: Temp,
    part: usize,
    outcomes: Outcomes,
    /// The times and counts of the sort on a served cell.
    measured: Option<Outcomes>,
}

impl Row {
    fn elapsed_s(&self) -> f64 {
        seconds(self.outcomes.elapsed_ns())
    }

    fn measured_s(&self) -> Option<f64> {
        self.measured.map(|outcomes| seconds(outcomes.elapsed_ns()))
    }

    fn memory(&self) -> String {
        if self.part == 1 { "all of it".to_owned() } else { format!("1/{}", self.part) }
    }

    fn kind(&self) -> &'static str {
        match self.outcomes.passes {
            0 => "in memory",
            1 => "one pass",
            _ => "several passes",
        }
    }
}

/// Bytes of the temporary segment.
fn temp_bytes(table_bytes: u64) -> u64 {
    (table_bytes * TEMP_TIMES).next_multiple_of(16 << 20)
}

/// One sort in a world of its own.
fn run_arm(arm: &Arm) -> Result<Outcomes, Stuck> {
    let plain = ExecutorConfig::plain(arm.seed);
    let limits = ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    executor.run(async {
        let (table_bytes, temp_bytes) = (arm.table_bytes(), arm.temp_bytes());
        let table = arm.under.disk(table_bytes, true, &world);
        table.content.fill(0, table_bytes);
        // The table's disks and those of the temporary segment are not the same.
        let disk = arm.under.disk(temp_bytes + LABELS_BYTES, arm.temp != Temp::Flash, &world);
        let flash = arm.under.flash(2 * temp_bytes + LABELS_BYTES, arm.temp != Temp::Disk, &world);
        let (temp, _made) = match arm.temp {
            Temp::Disk => (disk.device.clone(), None),
            Temp::Flash => (flash.device.clone(), None),
            Temp::Cached | Temp::OnFlash => {
                let is_cached = arm.temp == Temp::Cached;
                let home = if is_cached { on_cell::DISK } else { on_cell::FLASH };
                let cache = is_cached.then_some(Some(temp_bytes));
                let wanted = Wanted { config: CellConfig::default(), cache, home, bytes: temp_bytes };
                let shape = |spec: &mut GridDiskSpec| {
                    spec.purpose = Purpose::Temp;
                    spec.caching_mode = if is_cached { CachingMode::WriteBack } else { CachingMode::None };
                };
                let made = on_cell::make([&disk.device, &flash.device], wanted, shape, &world).await;
                (made.device.clone(), Some(made))
            }
        };
        let temp = arm.under.reached(temp, arm.temp == Temp::Cached, &world);
        match sort::sort(arm.parts(table.device, temp, &world)).await {
            Ok(outcomes) => outcomes,
            Err(error) => panic!("no device fails here: {error}"),
        }
    })
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let pages = options.syncs.unwrap_or(TABLE_BYTES / PAGE_BYTES).max(1) as usize;
    let under = Under::new(&QUAD_CORES_SCANNED, options);
    let on_temp = temp_bytes(pages as u64 * PAGE_BYTES) + LABELS_BYTES;
    under.check_room(on_temp, 2 * on_temp)?;
    let real = Real::of(options)?;
    let (mut all_arms, mut rows) = (Vec::new(), Vec::new());
    for part in PARTS {
        if part > 1 && pages.div_ceil(part) < PAGES_MIN {
            continue;
        }
        tell(&format!("{NAME}: memory for a {part}th"));
        let arms = TEMPS.map(|temp| Arm { seed: options.seed, temp, pages, part, under: under.clone() });
        for (arm, outcomes) in arms.iter().zip(run_all(&arms, run_arm)) {
            let outcomes = outcomes.map_err(|source| RunError::Stuck {
                part: format!("memory for a {part}th"),
                configuration: arm.temp.name().to_owned(),
                source,
            })?;
            rows.push(Row { temp: arm.temp, part, outcomes, measured: None });
        }
        all_arms.extend(arms);
    }
    if let Some(real) = &real {
        real.say_how_long(rows.iter().map(|row| row.outcomes.elapsed_ns()).sum(), "");
        // A sort in memory asks the cell nothing.
        for (arm, row) in all_arms.iter().zip(&mut rows).filter(|(_, row)| row.outcomes.runs > 0) {
            let mut tell = |what: &str| tell(&format!("{NAME}: memory for a {}th: {what}", arm.part));
            row.measured = Some(real.sort(arm, &mut tell)?);
        }
    }
    Ok(Experiment { told: tell_rows(&rows), bounds: bounds(&rows, options.devices.is_some()), notes: NOTES.to_owned() })
}

/// The bounds that the rows have to keep. Given devices decide themselves how much flash can win.
fn bounds(rows: &[Row], is_moved: bool) -> Vec<Bound> {
    let of = |temp: Temp, part: usize| rows.iter().find(|row| row.temp == temp && row.part == part);
    let mut bounds = Vec::new();
    let mut add = |what: &str, row: Option<&Row>, other: Option<&Row>, times: f64| {
        let (Some(row), Some(other)) = (row, other) else { return };
        let (slow, fast) = (row.elapsed_s(), other.elapsed_s());
        let text = format!("{}, memory {}: {what}: {slow:.2} s and {fast:.2} s", row.temp.name(), row.memory());
        bounds.push(Bound { text, holds: slow <= times * fast });
    };
    let small = of(Temp::OnFlash, SMALL);
    add("within 5 % of flash alone", small, of(Temp::Flash, SMALL), 1.05);
    if !is_moved {
        add("at most twice as long as in memory", small, of(Temp::OnFlash, 1), 2.0);
        add("no slower than on disk", of(Temp::Cached, SMALL), of(Temp::Disk, SMALL), 1.0);
    }
    bounds.extend(rows.iter().filter_map(|row| {
        let (model, real) = (row.elapsed_s(), row.measured_s()?);
        let text = format!(
            "{}, memory {}: foretold within 20 % of what was measured: {model:.2} s and {real:.2} s",
            row.temp.name(),
            row.memory()
        );
        Some(Bound { text, holds: told::agrees(model, real) })
    }));
    bounds
}

const KINDS: [&str; 3] = ["CPU", "table read", "temporary segment I/O"];

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn waits(Outcomes { cpu_ns, table_ns, temp_ns, .. }: &Outcomes) -> [(&'static str, f64); 3] {
    [(KINDS[0], seconds(*cpu_ns)), (KINDS[1], seconds(*table_ns)), (KINDS[2], seconds(*temp_ns))]
}

/// Whether sorts ran on served cells as well.
fn is_measured(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.measured.is_some())
}

fn tell_rows(rows: &[Row]) -> Told {
    let mut head = vec![
        "memory",
        "temporary segment",
        "sort",
        "runs",
        "elapsed s",
        "CPU",
        "table",
        "temporary",
        "to in memory",
        "pages verified",
    ];
    let is_measured = is_measured(rows);
    if is_measured {
        head.extend(["measured s", "temporary, measured", "pages verified, measured"]);
    }
    let mut lines = vec![head.into_iter().map(str::to_owned).collect()];
    let of = |temp: Temp, part: usize| rows.iter().find(|row| row.temp == temp && row.part == part);
    let in_memory = |row: &Row| of(row.temp, 1).map_or(f64::NAN, |first| row.elapsed_s() / first.elapsed_s());
    for row in rows {
        let Outcomes { table_ns, cpu_ns, temp_ns, runs, verified, .. } = row.outcomes;
        let mut line = vec![
            row.memory(),
            row.temp.name().to_owned(),
            row.kind().to_owned(),
            runs.to_string(),
            format!("{:.2}", row.elapsed_s()),
            format!("{:.2}", seconds(cpu_ns)),
            format!("{:.2}", seconds(table_ns)),
            format!("{:.2}", seconds(temp_ns)),
            format!("{:.2}", in_memory(row)),
            verified.to_string(),
        ];
        if is_measured {
            line.extend(row.measured.map_or_else(
                || ["-"; 3].map(str::to_owned),
                |measured| {
                    let Outcomes { temp_ns, verified, .. } = measured;
                    let [elapsed_s, temp_s] = [measured.elapsed_ns(), temp_ns].map(|ns| format!("{:.2}", seconds(ns)));
                    [elapsed_s, temp_s, verified.to_string()]
                },
            ));
        }
        lines.push(line);
    }
    let object = |row: &Row| {
        let Outcomes { runs, passes, verified, written, .. } = row.outcomes;
        let object = Object {
            experiment: NAME,
            row: &format!("memory {}", row.memory()),
            configuration: row.temp.name(),
            elapsed_s: row.elapsed_s(),
            ratio_to_all_flash: of(Temp::Flash, row.part).map(|flash| row.elapsed_s() / flash.elapsed_s()),
            verified_blocks: verified,
            waits: &waits(&row.outcomes),
            field_elapsed_s: None,
            further: &[
                ("ratio_to_in_memory", Some(in_memory(row))),
                ("runs", Some(runs as f64)),
                ("passes", Some(passes as f64)),
                ("pages_written", Some(written as f64)),
            ],
            verdict: "-",
        };
        match &row.measured {
            None => object.json(),
            Some(measured) => object.json_beside(Some(&Measured {
                elapsed_s: seconds(measured.elapsed_ns()),
                verified_blocks: measured.verified,
                waits: &waits(measured),
            })),
        }
    };
    Told {
        lines,
        words: vec![0, 1, 2],
        objects: rows.iter().map(object).collect(),
        charts: charts(rows),
        verdicts: [0, 0],
    }
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    let least = rows.iter().map(|row| row.part).max().unwrap_or(1);
    let at = |part: usize| (part as f64).log2();
    let mut marks: Vec<(f64, String)> = Vec::new();
    for row in rows.iter().filter(|row| row.temp == Temp::Disk) {
        marks.push((at(row.part), row.memory()));
    }
    let curve = |temp: Temp| {
        let of = rows.iter().filter(|row| row.temp == temp);
        Curve { name: temp.name().to_owned(), points: of.map(|row| (at(row.part), row.elapsed_s())).collect() }
    };
    let highest = rows.iter().map(Row::elapsed_s).fold(0.0, f64::max);
    let low = -0.2;
    let curves = Curves {
        title: "a sort with less and less memory".to_owned(),
        x: Axis { name: "sort area, of what is sorted".to_owned(), low, high: at(least).max(1.0) + 0.2, marks },
        y: Axis::linear("elapsed seconds", highest),
        curves: TEMPS.map(curve).into(),
        dots: true,
        has_tops: false,
    };
    let mark = if is_measured(rows) { "measured" } else { "" };
    let shown = if least >= SMALL { SMALL } else { least };
    let bars = [1, shown].map(|part| {
        let of = rows.iter().filter(|row| row.part == part);
        let bar = |row: &Row| Bar {
            name: row.temp.name().to_owned(),
            note: format!("{:.2} s, {}", row.elapsed_s(), row.kind()),
            parts: waits(&row.outcomes).map(|(_, s)| s).to_vec(),
            field: row.measured_s(),
        };
        let memory = if part == 1 { "all of it".to_owned() } else { format!("1/{part}") };
        let title = format!("sort area {memory}: elapsed seconds");
        Chart::Bars(Bars { title, unit: "s", mark, kinds: KINDS.to_vec(), bars: of.map(bar).collect() })
    });
    std::iter::once(Chart::Curves(curves)).chain(bars).collect()
}

const NOTES: &str = "The field's chart has axes and no points in the text: there is nothing to be reproduced but its shape, flat in memory, a step at one pass,\n\
     a cliff at several. One session, which waits for each of its reads and writes; the temporary segment is on disks of its own.\n";

#[cfg(test)]
mod tests {
    //! Goal: sorts are real, whatever they go through: a wrong page or a row out of place would be a panic. Method: a short run.
    use super::*;

    #[test]
    fn a_sort_in_every_way() {
        let options = RunOptions { seed: 1, syncs: Some(2_000), ..RunOptions::default() };
        let Ok(Experiment { told, bounds, .. }) = run(&options, &mut |_| {}) else { unreachable!("it runs") };
        let text = crate::output::table(&told.lines, &told.words);
        assert!(["in memory", "one pass", "several passes"].iter().all(|kind| text.contains(kind)), "{text}");
        // So short a sort has too little memory for what the bounds are about, but not for what a cell's flash is for.
        let missed: Vec<&str> = bounds.iter().filter(|bound| !bound.holds).map(|bound| bound.text.as_str()).collect();
        assert!(bounds.len() == 3 && missed.iter().all(|text| text.contains("at most twice")), "{missed:?}");
    }
}
