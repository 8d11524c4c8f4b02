//! Sorts through a temporary segment (S14): on disk, on flash, on a temporary grid disk of a cell.

use super::chart::{Axis, Bar, Bars, Chart, Curve, Curves};
use super::database::PAGE_BYTES;
use super::field::run_all;
use super::machine::{QUAD_CORES_SCANNED, Under};
use super::on_cell::{self, Wanted};
use super::sort::{self, Outcomes, PAGES_MIN, Parts};
use super::told::{Object, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use cell::CellConfig;
use celldisk::{CachingMode, GridDiskSpec, Purpose};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Temp {
    Disk,
    /// A temporary grid disk on disks, behind a flash cache in write-back.
    Cached,
    /// A temporary grid disk on flash.
    OnFlash,
    Flash,
}

const TEMPS: [Temp; 4] = [Temp::Disk, Temp::Cached, Temp::OnFlash, Temp::Flash];

impl Temp {
    fn name(self) -> &'static str {
        match self {
            Temp::Disk => "temporary segment on disk",
            Temp::Cached => "flashcell, on disk, write-back",
            Temp::OnFlash => "flashcell, on flash",
            Temp::Flash => "temporary segment on flash",
        }
    }
}

/// One sort.
struct Arm {
    seed: u64,
    temp: Temp,
    pages: usize,
    /// It has memory for one of so many parts.
    part: usize,
    under: Under,
}

struct Row {
    temp: Temp,
    part: usize,
    outcomes: Outcomes,
}

impl Row {
    fn elapsed_s(&self) -> f64 {
        let Outcomes { table_ns, cpu_ns, temp_ns, .. } = self.outcomes;
        (table_ns + cpu_ns + temp_ns) as f64 / 1e9
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
        let table_bytes = arm.pages as u64 * PAGE_BYTES;
        let temp_bytes = temp_bytes(table_bytes);
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
        let parts = Parts {
            table: table.device,
            temp,
            temp_pages: (temp_bytes / PAGE_BYTES) as usize,
            pages: arm.pages,
            memory: arm.pages.div_ceil(arm.part),
            seed: arm.seed,
            clock: world.clock.clone(),
        };
        sort::sort(parts).await
    })
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let pages = options.syncs.unwrap_or(TABLE_BYTES / PAGE_BYTES).max(1) as usize;
    let under = Under::new(&QUAD_CORES_SCANNED, options);
    let on_temp = temp_bytes(pages as u64 * PAGE_BYTES) + LABELS_BYTES;
    under.check_room(on_temp, 2 * on_temp)?;
    let mut rows = Vec::new();
    for part in PARTS {
        if part > 1 && pages.div_ceil(part) < PAGES_MIN {
            continue;
        }
        tell(&format!("{NAME}: memory for a {part}th"));
        let arms: Vec<Arm> =
            TEMPS.map(|temp| Arm { seed: options.seed, temp, pages, part, under: under.clone() }).into();
        for (arm, outcomes) in arms.iter().zip(run_all(&arms, run_arm)) {
            let outcomes = outcomes.map_err(|source| RunError::Stuck {
                part: format!("memory for a {part}th"),
                configuration: arm.temp.name().to_owned(),
                source,
            })?;
            rows.push(Row { temp: arm.temp, part, outcomes });
        }
    }
    Ok(Experiment { told: told(&rows), bounds: bounds(&rows), notes: NOTES.to_owned() })
}

fn bounds(rows: &[Row]) -> Vec<Bound> {
    let of = |temp: Temp, part: usize| rows.iter().find(|row| row.temp == temp && row.part == part);
    let mut bounds = Vec::new();
    let mut add = |what: &str, row: Option<&Row>, other: Option<&Row>, times: f64| {
        let (Some(row), Some(other)) = (row, other) else { return };
        let (slow, fast) = (row.elapsed_s(), other.elapsed_s());
        let text = format!("{}, memory {}: {what}: {slow:.2} s and {fast:.2} s", row.temp.name(), row.memory());
        bounds.push(Bound { text, holds: slow <= times * fast });
    };
    let small = of(Temp::OnFlash, SMALL);
    add("at most twice as long as in memory", small, of(Temp::OnFlash, 1), 2.0);
    add("within 5 % of flash alone", small, of(Temp::Flash, SMALL), 1.05);
    add("no slower than on disk", of(Temp::Cached, SMALL), of(Temp::Disk, SMALL), 1.0);
    bounds
}

const KINDS: [&str; 3] = ["CPU", "table read", "temporary segment I/O"];

fn told(rows: &[Row]) -> Told {
    let head = [
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
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let of = |temp: Temp, part: usize| rows.iter().find(|row| row.temp == temp && row.part == part);
    let seconds = |ns: u64| ns as f64 / 1e9;
    let in_memory = |row: &Row| of(row.temp, 1).map_or(f64::NAN, |first| row.elapsed_s() / first.elapsed_s());
    for row in rows {
        let Outcomes { table_ns, cpu_ns, temp_ns, runs, verified, .. } = row.outcomes;
        lines.push(vec![
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
        ]);
    }
    let object = |row: &Row| {
        let Outcomes { table_ns, cpu_ns, temp_ns, runs, passes, verified, written } = row.outcomes;
        Object {
            experiment: NAME,
            row: &format!("memory {}", row.memory()),
            configuration: row.temp.name(),
            elapsed_s: row.elapsed_s(),
            ratio_to_all_flash: of(Temp::Flash, row.part).map(|flash| row.elapsed_s() / flash.elapsed_s()),
            verified_blocks: verified,
            waits: &[(KINDS[0], seconds(cpu_ns)), (KINDS[1], seconds(table_ns)), (KINDS[2], seconds(temp_ns))],
            field_elapsed_s: None,
            further: &[
                ("ratio_to_in_memory", Some(in_memory(row))),
                ("runs", Some(runs as f64)),
                ("passes", Some(passes as f64)),
                ("pages_written", Some(written as f64)),
            ],
            verdict: "-",
        }
        .json()
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
    let shown = if least >= SMALL { SMALL } else { least };
    let bars = [1, shown].map(|part| {
        let of = rows.iter().filter(|row| row.part == part);
        let bar = |row: &Row| {
            let Outcomes { table_ns, cpu_ns, temp_ns, .. } = row.outcomes;
            Bar {
                name: row.temp.name().to_owned(),
                note: format!("{:.2} s, {}", row.elapsed_s(), row.kind()),
                parts: [cpu_ns, table_ns, temp_ns].map(|ns| ns as f64 / 1e9).to_vec(),
                field: None,
            }
        };
        let memory = if part == 1 { "all of it".to_owned() } else { format!("1/{part}") };
        let title = format!("sort area {memory}: elapsed seconds");
        Chart::Bars(Bars { title, unit: "s", mark: "", kinds: KINDS.to_vec(), bars: of.map(bar).collect() })
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
        assert!(bounds.len() == 3 && bounds[1..].iter().all(|bound| bound.holds), "{text}");
    }
}
