//! ZFS's L2ARC (S12): how soon it is warm at 8 and at 162 MB/s, what its record size costs, and what a scan leaves in it.

use super::chart::{Axis, Bar, Bars, Chart, Curve, Curves};
use super::field::run_all;
use super::l2arc::{Figures, Levels, Second};
use super::machine::MANY_DISKS;
use super::on_cell::{self, Wanted};
use super::told::{Object, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use crate::model::Modelled;
use crate::model::flash::Flash;
use crate::model::raid::Raid;
use buffercache::Version;
use buffercache::page::{PART_BYTES, Stamp};
use cell::CellConfig;
use celldisk::FillStrategy;
use device::sync::{lock, one_shot};
use device::{Clock, Device, Prng};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) const NAME: &str = "s12";
pub(super) const ABOUT: &str = "ZFS's L2ARC: how soon it is warm at 8 and 162 MB/s, record sizes, prefetch (S12)";

const BLOCK: u64 = 8192;
/// Blocks that are asked for. Assumed: 50,000 (10,000 to 1,000,000), one in eight of the table, all alike.
const HOT: u64 = 50_000;
const SPARSE: u64 = 8;
/// Assumed: 64 MiB (1/10 to 1/2 of what is hot), in every arm.
const MEMORY_BYTES: u64 = 64 << 20;
/// Assumed: a quarter more than what is hot.
const FLASH_BYTES: u64 = 512 << 20;
/// Assumed: 64 sessions (16 to 256) that compute 4 ms (1 to 20) between two blocks.
const SESSIONS: usize = 64;
const THINK: Duration = Duration::from_millis(4);
const SECONDS: u64 = 60;
/// The table of the scan: three times memory, less than the flash.
const SCAN_BYTES: u64 = 192 << 20;
const SCAN_RECORD: u64 = 128 << 10;
/// Assumed: a record's processing (0.1 to 2 ms).
const SCAN_THINK: Duration = Duration::from_micros(500);

/// Document: the default, and twice 700 GB x 10 a day in bytes a second.
const SLOW: u64 = 8 << 20;
const FAST: u64 = 162_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    Nothing,
    L2arc { write_max: u64, noprefetch: bool },
    Ours { fill: FillStrategy },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arm {
    name: &'static str,
    cache: Cache,
    record: u64,
    is_scan: bool,
}

const fn warm(name: &'static str, cache: Cache, record: u64) -> Arm {
    Arm { name, cache, record, is_scan: false }
}

const fn scan(name: &'static str, cache: Cache) -> Arm {
    Arm { name, cache, record: SCAN_RECORD, is_scan: true }
}

const fn l2arc(write_max: u64, noprefetch: bool) -> Cache {
    Cache::L2arc { write_max, noprefetch }
}

const ARMS: [Arm; 12] = [
    warm("no flash", Cache::Nothing, BLOCK),
    warm("L2ARC, 8 MB/s, records of 128 KiB", l2arc(SLOW, true), SCAN_RECORD),
    warm("L2ARC, 8 MB/s, records of 8 KiB", l2arc(SLOW, true), BLOCK),
    warm("L2ARC, 162 MB/s, records of 128 KiB", l2arc(FAST, true), SCAN_RECORD),
    warm("L2ARC, 162 MB/s, records of 8 KiB", l2arc(FAST, true), BLOCK),
    warm("flashcell, defaults", Cache::Ours { fill: FillStrategy::Read }, BLOCK),
    warm("flashcell, fed", Cache::Ours { fill: FillStrategy::Feed }, BLOCK),
    scan("no flash", Cache::Nothing),
    scan("L2ARC, 162 MB/s, noprefetch=1", l2arc(FAST, true)),
    scan("L2ARC, 162 MB/s, noprefetch=0", l2arc(FAST, false)),
    scan("L2ARC, 8 MB/s, noprefetch=0", l2arc(SLOW, false)),
    scan("flashcell, defaults", Cache::Ours { fill: FillStrategy::Read }),
];

#[derive(Default)]
struct Outcomes {
    /// Reads in each second; of a scan, seconds of each pass.
    series: Vec<f64>,
    verified: u64,
    figures: Figures,
    flash_bytes: u64,
    elapsed_s: f64,
}

struct Row {
    arm: Arm,
    outcomes: Outcomes,
}

/// What the sessions share.
struct Work {
    levels: Arc<Levels>,
    clock: Arc<dyn Clock>,
    by_second: Mutex<Vec<u64>>,
    begun: u64,
    reads_max: u64,
}

fn check(offset: u64, data: &[u8]) {
    for (n, bytes) in data.chunks_exact(PART_BYTES).enumerate() {
        let part = offset / PART_BYTES as u64 + n as u64;
        assert!(Stamp::of(bytes) == Some(Stamp { part, version: Version(1) }), "part {part} of the table");
    }
}

impl Work {
    async fn session(self: Arc<Self>, mut prng: Prng) {
        for _ in 0..self.reads_max {
            self.clock.sleep(THINK).await;
            let key = prng.below(HOT);
            // One of the blocks of its stretch, always the same.
            let block = key * SPARSE + (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) % SPARSE;
            let data = self.levels.read(block * BLOCK, BLOCK as usize, false).await;
            check(block * BLOCK, &data);
            let second = (self.clock.now().0 - self.begun) / 1_000_000_000;
            let mut by_second = lock(&self.by_second);
            match by_second.get_mut(second as usize) {
                Some(count) => *count += 1,
                None => return,
            }
        }
    }

    async fn scan(&self, bytes: u64) -> f64 {
        let begun = self.clock.now();
        for offset in (0..bytes).step_by(SCAN_RECORD as usize) {
            // The first read of a file is no prefetch.
            let data = self.levels.read(offset, SCAN_RECORD as usize, offset > 0).await;
            check(offset, &data);
            self.clock.sleep(SCAN_THINK).await;
        }
        self.clock.now().ns_since(begun) as f64 / 1e9
    }
}

fn run_arm(arm: &Arm, seed: u64, reads: Option<u64>) -> Result<Outcomes, Stuck> {
    let plain = ExecutorConfig::plain(seed);
    let limits = ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    // The same keys in every arm.
    let prng = executor.prng("keys");
    executor.run(async {
        let machine = &MANY_DISKS;
        let table_bytes = if arm.is_scan { SCAN_BYTES } else { HOT * SPARSE * BLOCK };
        let disks = Raid::of_disks(machine.disk, machine.disks, machine.stripe_bytes, &world);
        let disk = Modelled::new(disks, table_bytes.next_multiple_of(16 << 20) + (256 << 20), true);
        let flash = Modelled::new(Flash::new(machine.flash, &world), FLASH_BYTES + (256 << 20), true);
        let (below, second, made): (Device, _, _) = match arm.cache {
            Cache::Ours { fill } => {
                let wanted = Wanted {
                    config: CellConfig::default(),
                    cache: Some(Some(FLASH_BYTES)),
                    home: on_cell::DISK,
                    bytes: table_bytes,
                };
                let made =
                    on_cell::make([&disk.device(), &flash.device()], wanted, |spec| spec.fill = fill, &world).await;
                made.fill(&disk, table_bytes);
                (made.device.clone(), None, Some(made))
            }
            Cache::Nothing | Cache::L2arc { .. } => {
                disk.fill(0, table_bytes);
                let second = match arm.cache {
                    Cache::L2arc { write_max, noprefetch } => {
                        Some(Second { flash: flash.device(), bytes: FLASH_BYTES, write_max, noprefetch })
                    }
                    _ => None,
                };
                (disk.device(), second, None)
            }
        };
        let levels = Levels::new(below, arm.record, MEMORY_BYTES, second, &world);
        let begun = world.clock.now();
        let work = Arc::new(Work {
            levels: levels.clone(),
            clock: world.clock.clone(),
            by_second: Mutex::new(vec![0; SECONDS as usize]),
            begun: begun.0,
            reads_max: reads.map_or(u64::MAX, |reads| reads / SESSIONS as u64),
        });
        let mut outcomes = Outcomes::default();
        if arm.is_scan {
            let bytes =
                reads.map_or(table_bytes, |reads| (reads * BLOCK).next_multiple_of(SCAN_RECORD).min(table_bytes));
            for _ in 0..3 {
                outcomes.series.push(work.scan(bytes).await);
            }
            outcomes.verified = 3 * bytes / BLOCK;
        } else {
            let mut ends = Vec::new();
            for n in 0..SESSIONS {
                let (sender, receiver) = one_shot();
                let session = work.clone().session(prng.fork(&format!("session {n}")));
                world.spawn.spawn(Box::pin(async move {
                    session.await;
                    sender.send(());
                }));
                ends.push(receiver);
            }
            for end in ends {
                end.await;
            }
            outcomes.series = lock(&work.by_second).iter().map(|count| *count as f64).collect();
            outcomes.verified = lock(&work.by_second).iter().sum();
        }
        levels.end();
        outcomes.elapsed_s = world.clock.now().ns_since(begun) as f64 / 1e9;
        outcomes.figures = levels.figures();
        if let Some(made) = &made {
            // What was not in memory was asked of the cell.
            outcomes.figures.flash_hits = made.grid_disk.counters.cache_hits.requests.get();
            outcomes.figures.misses = outcomes.figures.misses.saturating_sub(outcomes.figures.flash_hits);
        }
        outcomes.flash_bytes = flash.asked().written_bytes;
        outcomes
    })
}

impl Row {
    /// Reads in the last second.
    fn at_end(&self) -> f64 {
        self.outcomes.series.last().copied().unwrap_or(0.0)
    }

    /// When reads were first at nine tenths of what `best` came to, in seconds.
    fn warm_after(&self, best: f64) -> Option<usize> {
        self.outcomes.series.iter().position(|count| *count >= 0.9 * best).map(|second| second + 1)
    }
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    tell(&format!("{NAME}: {} arms", ARMS.len()));
    let results = run_all(&ARMS, |arm| run_arm(arm, options.seed, options.syncs));
    let mut rows = Vec::new();
    for (arm, outcomes) in ARMS.into_iter().zip(results) {
        let outcomes = outcomes.map_err(|source| RunError::Stuck {
            part: part(&arm).to_owned(),
            configuration: arm.name.to_owned(),
            source,
        })?;
        rows.push(Row { arm, outcomes });
    }
    // A short run is not long enough to be warm.
    let bounds = if options.syncs.is_none() { bounds(&rows) } else { Vec::new() };
    Ok(Experiment { told: told(&rows), bounds, notes: NOTES.to_owned() })
}

fn part(arm: &Arm) -> &'static str {
    if arm.is_scan { "three scans" } else { "random reads of 50,000 blocks" }
}

fn bounds(rows: &[Row]) -> Vec<Bound> {
    let of = |name: &str, is_scan: bool| rows.iter().find(|row| row.arm.name == name && row.arm.is_scan == is_scan);
    let best = best(rows);
    let mut bounds = Vec::new();
    let mut add = |what: &str, slow: f64, fast: f64, times: f64| {
        let text = format!("{what}: {slow:.1} and {fast:.1}");
        bounds.push(Bound { text, holds: slow >= times * fast });
    };
    let after = |name: &str| {
        of(name, false).map_or(f64::NAN, |row| row.warm_after(best).map_or(SECONDS as f64, |seconds| seconds as f64))
    };
    let (slow, fast) = ("L2ARC, 8 MB/s, records of 8 KiB", "L2ARC, 162 MB/s, records of 8 KiB");
    add("seconds until warm, 8 MB/s and 162 MB/s: at least twice", after(slow), after(fast), 2.0);
    add("seconds until warm, 162 MB/s and ours: ours no later", after(fast), after("flashcell, defaults"), 1.0);
    let end = |name: &str| of(name, false).map_or(f64::NAN, Row::at_end);
    let wide = "L2ARC, 162 MB/s, records of 128 KiB";
    add("reads a second at the end, records of 8 KiB and 128 KiB: at least twice", end(fast), end(wide), 2.0);
    let second = |name: &str| of(name, true).and_then(|row| row.outcomes.series.get(2).copied()).unwrap_or(f64::NAN);
    let (without, with) = ("L2ARC, 162 MB/s, noprefetch=1", "L2ARC, 162 MB/s, noprefetch=0");
    add("third scan in seconds, noprefetch=1 and 0: a quarter more", second(without), second(with), 1.25);
    bounds
}

fn best(rows: &[Row]) -> f64 {
    rows.iter().filter(|row| !row.arm.is_scan).map(Row::at_end).fold(0.0, f64::max)
}

fn told(rows: &[Row]) -> Told {
    let head = [
        "part",
        "configuration",
        "reads a second at first",
        "at the end",
        "warm after s",
        "scans s",
        "hits in memory",
        "on flash",
        "misses",
        "MB written to flash",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let best = best(rows);
    for row in rows {
        let Outcomes { series, figures, flash_bytes, .. } = &row.outcomes;
        let (is_scan, dash) = (row.arm.is_scan, || "-".to_owned());
        let rate = |at: usize| if is_scan { dash() } else { series.get(at).map_or_else(dash, |v| format!("{v:.0}")) };
        let scans: Vec<String> = series.iter().map(|s| format!("{s:.2}")).collect();
        lines.push(vec![
            part(&row.arm).to_owned(),
            row.arm.name.to_owned(),
            rate(0),
            rate(series.len().saturating_sub(1)),
            row.warm_after(best).filter(|_| !is_scan).map_or_else(dash, |s| s.to_string()),
            if is_scan { scans.join(", ") } else { dash() },
            figures.memory_hits.to_string(),
            figures.flash_hits.to_string(),
            figures.misses.to_string(),
            format!("{:.0}", *flash_bytes as f64 / 1e6),
        ]);
    }
    let object = |row: &Row| {
        let Outcomes { series, figures, flash_bytes, verified, elapsed_s } = &row.outcomes;
        let is_scan = row.arm.is_scan;
        let scans = |n: usize| series.get(n).copied().filter(|_| is_scan);
        Object {
            experiment: NAME,
            row: part(&row.arm),
            configuration: row.arm.name,
            elapsed_s: *elapsed_s,
            ratio_to_all_flash: None,
            verified_blocks: *verified,
            waits: &[],
            field_elapsed_s: None,
            further: &[
                ("reads_per_s_at_end", Some(row.at_end()).filter(|_| !is_scan)),
                ("warm_after_s", row.warm_after(best).filter(|_| !is_scan).map(|s| s as f64)),
                ("first_scan_s", scans(0)),
                ("second_scan_s", scans(1)),
                ("third_scan_s", scans(2)),
                ("memory_hits", Some(figures.memory_hits as f64)),
                ("l2arc_hits", Some(figures.flash_hits as f64)),
                ("misses", Some(figures.misses as f64)),
                ("flash_bytes_written", Some(*flash_bytes as f64)),
            ],
            verdict: "-",
        }
        .json()
    };
    Told {
        lines,
        words: vec![0, 1, 5],
        objects: rows.iter().map(object).collect(),
        charts: charts(rows),
        verdicts: [0, 0],
    }
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    let curve = |row: &Row| {
        let points = row.outcomes.series.iter().enumerate();
        Curve {
            name: row.arm.name.to_owned(),
            points: points.map(|(second, reads)| (second as f64 + 1.0, *reads)).collect(),
        }
    };
    let curves: Vec<Curve> = rows.iter().filter(|row| !row.arm.is_scan).map(curve).collect();
    let highest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    let warm = Curves {
        title: "warming up: random reads of 50,000 blocks".to_owned(),
        x: Axis { low: 0.0, ..Axis::linear("seconds since the start", SECONDS as f64) },
        y: Axis::linear("reads a second", highest),
        curves,
        dots: false,
        has_tops: false,
    };
    let bar = |row: &Row| Bar {
        name: row.arm.name.to_owned(),
        note: format!("{} s in all", super::chart::plain(row.outcomes.series.iter().sum())),
        parts: row.outcomes.series.clone(),
        field: None,
    };
    let scans = Bars {
        title: "three scans one after another: seconds".to_owned(),
        unit: "s",
        mark: "",
        kinds: vec!["first", "second", "third"],
        bars: rows.iter().filter(|row| row.arm.is_scan).map(bar).collect(),
    };
    vec![Chart::Curves(warm), Chart::Bars(scans)]
}

const NOTES: &str = "The field has rules and no figures here but 8 MB/s and 162 MB/s: nothing is compared with it. What is asked for lies in one of eight blocks of\n\
     the table, so a record of 128 KiB has two blocks that somebody wants. Warm is nine tenths of the reads a second that the best arm has in the\n\
     end. A change of the record size holds for new files only: each arm has a table of its own.\n";

#[cfg(test)]
mod tests {
    //! Goal: what is read is right whatever level it comes from: else it would panic; and it is the same every time. Method: a short run, twice.
    use super::*;

    #[test]
    fn levels_agree() {
        let options = RunOptions { seed: 1, syncs: Some(20_000), ..RunOptions::default() };
        let run_once = || run(&options, &mut |_| {}).map(|e| e.told.objects).map_err(|e| e.to_string());
        let first = run_once();
        assert!(first.as_ref().is_ok_and(|objects| objects.len() == ARMS.len()), "{first:?}");
        assert_eq!(first, run_once());
    }
}
