//! The kernel's elevator before a flash device (S13): a regular random load is not hurt by it, a bursty mixed one is.
//!
//! The field's three points are one device that answers in 0.3 ms. By Little's law the database has 10,000 x 2 ms = 20 requests under way with
//! the elevator, and 50,000 x 0.3 ms = 15 and its processor without: a load of 20 requests in a closed loop, whatever the elevator is.

use super::chart::{Bar, Bars, Chart};
use super::machine::{s13_flash, seagate};
use super::told::{self, Object, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use crate::model::Timing;
use crate::model::elevator::{Elevator, Order};
use crate::model::flash::Flash;
use crate::model::raid::Raid;
use device::sync::{lock, one_shot};
use device::{Clock, Instant, Prng, World};
use futures_util::future::join_all;
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) const NAME: &str = "s13";
pub(super) const ABOUT: &str = "the kernel's elevator before flash: a regular random load and a bursty mixed one (S13)";

/// Requests of an arm unless told otherwise.
const REQUESTS: u64 = 100_000;
/// Assumed: a block of the database.
const LEN: u64 = 8192;
/// Assumed: what the load goes over.
const SPAN_BYTES: u64 = 32 << 30;
/// Document: 10,000 a second.
const REGULAR_NS: u64 = 100_000;
/// Assumed: so many threads issue the regular load (1 to 32).
const REGULAR_ISSUERS: u64 = 8;
/// Fitted to 2 ms at 10,000 a second: 20 requests under way. Assumed: 5 sessions with 4 each (2 to 10 sessions).
const SESSIONS: usize = 5;
const BURST: u64 = 4;
/// Fitted to 50,000 a second without the elevator; between two bursts, of the processor.
const THINK_NS: u64 = 100_000;
/// Assumed: "less random", the next block of an index range within 1 MiB (16 KiB to 4 MiB).
const NEAR_BYTES: u64 = 1 << 20;
/// Assumed: "some writes", a writer that writes 16 blocks anywhere every 10 ms (4 to 100).
const WRITES: u64 = 16;
const WRITES_EVERY_NS: u64 = 10_000_000;
/// Requests the driver of the flash takes at once. Assumed: 64 (31 to 255).
const DEPTH: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// One after another in even time, anywhere.
    Regular,
    /// Sessions of so many nodes, in bursts.
    Bursty { nodes: usize },
    /// Sessions that read anywhere, one by one.
    Disk,
}

/// A part of the experiment: name, load, and of each elevator the field's requests a second and milliseconds.
struct Part {
    name: &'static str,
    load: Load,
    field: [Option<(f64, f64)>; 3],
}

const ORDERS: [(Order, &str); 3] =
    [(Order::None, "none (noop)"), (Order::Deadline, "deadline"), (Order::Fair, "fair (CFQ, the kernel's default)")];

const PARTS: [Part; 4] = [
    Part {
        name: "regular random load, 10,000 a second",
        load: Load::Regular,
        field: [None, None, Some((10_000.0, 0.3))],
    },
    Part {
        name: "bursts of a database, some writes",
        load: Load::Bursty { nodes: 1 },
        field: [Some((50_000.0, 0.3)), None, Some((10_000.0, 2.0))],
    },
    Part {
        name: "the same from two nodes",
        load: Load::Bursty { nodes: 2 },
        field: [Some((100_000.0, f64::NAN)), None, None],
    },
    Part { name: "random reads on a disk without a queue", load: Load::Disk, field: [None; 3] },
];

/// What reads took, which is what a session waits for; writes are counted.
#[derive(Default)]
struct Times {
    /// Held back, then at the device, in nanoseconds.
    held_ns: u64,
    device_ns: u64,
    reads_ns: Vec<u64>,
    writes: u64,
}

impl Times {
    fn requests(&self) -> u64 {
        self.reads_ns.len() as u64 + self.writes
    }
}

struct Row {
    part: &'static str,
    load: Load,
    order: Order,
    name: &'static str,
    requests: u64,
    reads: u64,
    elapsed_s: f64,
    held_ms: f64,
    device_ms: f64,
    p99_9_ms: f64,
    field: Option<(f64, f64)>,
    verdict: String,
}

impl Row {
    fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed_s
    }

    fn mean_ms(&self) -> f64 {
        self.held_ms + self.device_ms
    }
}

/// What issues requests.
struct Issuers {
    elevator: Arc<Elevator>,
    clock: Arc<dyn Clock>,
    times: Mutex<Times>,
}

impl Issuers {
    async fn request(&self, issuer: u32, is_read: bool, offset: u64) {
        let (held, device) = self.elevator.request(issuer, is_read, offset, LEN).await;
        let mut times = lock(&self.times);
        if is_read {
            times.held_ns += held;
            times.device_ns += device;
            times.reads_ns.push(held + device);
        } else {
            times.writes += 1;
        }
    }

    fn count(&self) -> u64 {
        lock(&self.times).requests()
    }

    async fn session(self: Arc<Self>, issuer: u32, mut prng: Prng, load: Load, requests: u64) {
        let blocks = SPAN_BYTES / LEN;
        let mut at = prng.below(blocks);
        while self.count() < requests {
            self.clock.sleep(Duration::from_nanos(THINK_NS)).await;
            let burst = if load == Load::Disk { 1 } else { BURST };
            let offsets: Vec<u64> = (0..burst)
                .map(|_| {
                    let step = if load == Load::Disk { blocks } else { NEAR_BYTES / LEN };
                    at = (at + 1 + prng.below(step)) % blocks;
                    at * LEN
                })
                .collect();
            join_all(offsets.into_iter().map(|offset| self.request(issuer, true, offset))).await;
        }
    }

    async fn writer(self: Arc<Self>, issuer: u32, mut prng: Prng, requests: u64) {
        while self.count() < requests {
            self.clock.sleep(Duration::from_nanos(WRITES_EVERY_NS)).await;
            let offsets: Vec<u64> = (0..WRITES).map(|_| prng.below(SPAN_BYTES / LEN) * LEN).collect();
            join_all(offsets.into_iter().map(|offset| self.request(issuer, false, offset))).await;
        }
    }
}

/// One arm: in which time, and how long each took.
fn arm(seed: u64, load: Load, order: Order, requests: u64) -> Result<(f64, Times), Stuck> {
    let limits = ExecutorConfig {
        steps_max: u64::MAX,
        time_ns_max: u64::MAX / 2,
        log_events_max: 0,
        ..ExecutorConfig::plain(seed)
    };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    // The same in every arm.
    let prng = executor.prng("sessions");
    executor.run(async { in_world(load, order, requests, &world, prng).await })
}

async fn in_world(load: Load, order: Order, requests: u64, world: &World, mut prng: Prng) -> (f64, Times) {
    let (timing, depth): (Arc<dyn Timing>, usize) = match load {
        Load::Disk => (Raid::of_disks(seagate().outer(), 1, SPAN_BYTES, world), 1),
        Load::Regular | Load::Bursty { .. } => (Flash::new(s13_flash(), world), DEPTH),
    };
    let issuers = Arc::new(Issuers {
        elevator: Elevator::new(order, depth, timing, world),
        clock: world.clock.clone(),
        times: Mutex::default(),
    });
    let mut ends = Vec::new();
    let mut start = |task: device::Task| {
        let (sender, receiver) = one_shot();
        world.spawn.spawn(Box::pin(async move {
            task.await;
            sender.send(());
        }));
        ends.push(receiver);
    };
    let begun = world.clock.now();
    match load {
        Load::Regular => {
            for n in 0..requests {
                let (issuers, offset) = (issuers.clone(), prng.below(SPAN_BYTES / LEN) * LEN);
                world.clock.sleep_until(Instant(begun.0 + n * REGULAR_NS)).await;
                start(Box::pin(async move { issuers.request((n % REGULAR_ISSUERS) as u32, true, offset).await }));
            }
        }
        Load::Bursty { .. } | Load::Disk => {
            let (sessions, writers) = match load {
                Load::Bursty { nodes } => (nodes * SESSIONS, nodes),
                _ => (SESSIONS * BURST as usize, 0),
            };
            for n in 0..sessions {
                let fork = prng.fork(&format!("session {n}"));
                start(Box::pin(issuers.clone().session(n as u32, fork, load, requests)));
            }
            for n in 0..writers {
                let fork = prng.fork(&format!("writer {n}"));
                start(Box::pin(issuers.clone().writer((sessions + n) as u32, fork, requests)));
            }
        }
    }
    for end in ends {
        end.await;
    }
    let elapsed_s = world.clock.now().ns_since(begun) as f64 / 1e9;
    let times = std::mem::take(&mut *lock(&issuers.times));
    (elapsed_s, times)
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let mut rows: Vec<Row> = Vec::new();
    for part in PARTS {
        tell(&format!("{NAME}: {}", part.name));
        // A disk is a hundred times slower: as many requests there would say no more.
        let requests = options.syncs.unwrap_or(REQUESTS) / if part.load == Load::Disk { 10 } else { 1 };
        for ((order, name), field) in ORDERS.into_iter().zip(part.field) {
            let (elapsed_s, mut times) = arm(options.seed, part.load, order, requests.max(1)).map_err(|source| {
                RunError::Stuck { part: part.name.to_owned(), configuration: name.to_owned(), source }
            })?;
            times.reads_ns.sort_unstable();
            let reads = times.reads_ns.len();
            let mean_ms = |ns: u64| ns as f64 / reads.max(1) as f64 / 1e6;
            rows.push(Row {
                part: part.name,
                load: part.load,
                order,
                name,
                requests: times.requests(),
                reads: reads as u64,
                elapsed_s,
                held_ms: mean_ms(times.held_ns),
                device_ms: mean_ms(times.device_ns),
                p99_9_ms: times.reads_ns.get(reads * 999 / 1_000).map_or(0.0, |ns| *ns as f64 / 1e6),
                // A part of the work has no figure of the field beside it.
                field: field.filter(|_| options.syncs.is_none()),
                verdict: "-".to_owned(),
            });
        }
    }
    rows.iter_mut().for_each(judge_row);
    Ok(Experiment { told: told(&rows), bounds: bounds(&rows), notes: NOTES.to_owned() })
}

/// The device's 0.3 ms and the processor's part of 50,000 a second calibrate; the rest are predictions.
fn judge_row(row: &mut Row) {
    let Some((per_second, ms)) = row.field else { return };
    row.verdict = match (row.load, row.order) {
        (Load::Regular, _) | (Load::Bursty { nodes: 1 }, Order::None) => {
            let off = (row.per_second() / per_second - 1.0).abs().max((row.mean_ms() / ms - 1.0).abs());
            let word = if off <= 0.1 { "calibrated" } else { "NOT calibrated" };
            format!("{word}, within {:.0} %", 100.0 * off)
        }
        // The worse of the two.
        _ if ms.is_finite() && (row.mean_ms() / ms - 1.0).abs() > (row.per_second() / per_second - 1.0).abs() => {
            told::verdict(row.mean_ms(), ms)
        }
        _ => told::verdict(row.per_second(), per_second),
    };
}

fn bounds(rows: &[Row]) -> Vec<Bound> {
    let of = |load: Load, order: Order| rows.iter().find(|row| row.load == load && row.order == order);
    let mut bounds = Vec::new();
    let mut add = |what: &str, load: Load, orders: [Order; 2], holds: &dyn Fn(f64) -> bool| {
        let (Some(none), Some(other)) = (of(load, orders[0]), of(load, orders[1])) else { return };
        let ratio = other.mean_ms() / none.mean_ms();
        let figures = format!("{:.3} ms, {:.3} ms with {}", none.mean_ms(), other.mean_ms(), other.name);
        bounds.push(Bound { text: format!("{}: {what}: {figures}", other.part), holds: holds(ratio) });
    };
    let one = Load::Bursty { nodes: 1 };
    add("the regular load is not hurt", Load::Regular, [Order::None, Order::Fair], &|ratio| ratio < 1.1);
    add("the regular load is not hurt", Load::Regular, [Order::None, Order::Deadline], &|ratio| ratio < 1.1);
    add("the bursty load is hurt by the kernel's default", one, [Order::None, Order::Fair], &|ratio| ratio > 3.0);
    add("the bursty load is not hurt by deadline", one, [Order::None, Order::Deadline], &|ratio| ratio < 1.1);
    add("reordering is for disks", Load::Disk, [Order::None, Order::Deadline], &|ratio| ratio < 0.8);
    bounds
}

fn told(rows: &[Row]) -> Told {
    let head = [
        "part",
        "elevator",
        "requests",
        "per second",
        "read, mean ms",
        "held back ms",
        "device ms",
        "p99.9 ms",
        "field per second",
        "field ms",
        "verdict",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let dash = || "-".to_owned();
    let known = |value: Option<f64>| value.filter(|v| v.is_finite());
    for row in rows {
        lines.push(vec![
            row.part.to_owned(),
            row.name.to_owned(),
            row.requests.to_string(),
            format!("{:.0}", row.per_second()),
            format!("{:.3}", row.mean_ms()),
            format!("{:.3}", row.held_ms),
            format!("{:.3}", row.device_ms),
            format!("{:.3}", row.p99_9_ms),
            known(row.field.map(|f| f.0)).map_or_else(dash, |v| format!("{v:.0}")),
            known(row.field.map(|f| f.1)).map_or_else(dash, |v| format!("{v:.1}")),
            row.verdict.clone(),
        ]);
    }
    let object = |row: &Row| {
        let s = |ms: f64| ms * row.reads as f64 / 1e3;
        Object {
            experiment: NAME,
            row: row.part,
            configuration: row.name,
            elapsed_s: row.elapsed_s,
            ratio_to_all_flash: None,
            verified_blocks: 0,
            waits: &[("elevator", s(row.held_ms)), ("device", s(row.device_ms))],
            field_elapsed_s: None,
            further: &[
                ("requests_per_s", Some(row.per_second())),
                ("mean_ms", Some(row.mean_ms())),
                ("p99_9_ms", Some(row.p99_9_ms)),
                ("field_requests_per_s", row.field.map(|f| f.0)),
                ("field_ms", row.field.map(|f| f.1)),
            ],
            verdict: &row.verdict,
        }
        .json()
    };
    let chart = |rows: &[Row]| {
        let bar = |row: &Row| Bar {
            name: row.name.to_owned(),
            note: format!("{} ms at {:.0} a second", super::chart::plain(row.mean_ms()), row.per_second()),
            parts: vec![row.device_ms, row.held_ms],
            field: known(row.field.map(|f| f.1)),
        };
        let title = rows.first().map_or(String::new(), |row| format!("{}: mean time of a read, ms", row.part));
        let bars = rows.iter().map(bar).collect();
        Chart::Bars(Bars {
            title,
            unit: "ms",
            mark: "the field",
            kinds: vec!["device", "held back by the elevator"],
            bars,
        })
    };
    Told {
        lines,
        words: vec![0, 1, 10],
        objects: rows.iter().map(object).collect(),
        charts: rows.chunk_by(|a, b| a.part == b.part).map(chart).collect(),
        verdicts: told::count(rows.iter().map(|row| row.verdict.as_str())),
    }
}

const NOTES: &str = "The device's 0.3 ms is calibrated, and so is the processor's time between bursts (50,000 a second without the elevator). The field does\n\
     not name its elevator: the default of kernels then was CFQ. It holds requests back where it believes that the issuer's next one is near;\n\
     whoever reads at random it does not wait for. Under it one session in turn has the device: most reads are quick, and a few wait for\n\
     the slices of all others, which makes the mean (see the percentile). Whether the field's 2 ms were spread like that its report does not say.\n\
     How many sessions share the 20 requests under way is assumed, and decides. Deadline, which waits for nobody, does not show what the field saw.\n";

#[cfg(test)]
mod tests {
    //! Goal: what the field saw comes from the rules of the elevator, not from a delay. Method: a short run of the experiment.
    use super::*;

    #[test]
    fn the_kernels_default_hurts_bursts_and_nothing_else() {
        let options = RunOptions { seed: 1, syncs: Some(10_000), ..RunOptions::default() };
        let Ok(Experiment { told, bounds, .. }) = run(&options, &mut |_| {}) else { unreachable!("it runs") };
        let missed: Vec<&str> = bounds.iter().filter(|bound| !bound.holds).map(|bound| bound.text.as_str()).collect();
        assert!(missed.is_empty(), "{missed:?}\n{}", crate::output::table(&told.lines, &told.words));
    }
}
