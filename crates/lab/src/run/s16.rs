//! Tiers and what they cost (S16): the times of the models beside the field's, the price of a table by how much is asked of it, and the field's
//! trend of disks reckoned again.

use super::chart::{Axis, Bar, Bars, Chart, Curve, Curves, plain};
use super::field::run_all;
use super::machine::{QUAD_CORES, cheetah, seagate, x25_e};
use super::on_cell::{self, Wanted};
use super::told::{self, Object, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use crate::model::flash::Flash;
use crate::model::raid::Raid;
use crate::model::{Modelled, Timing};
use buffercache::Version;
use buffercache::page::{PART_BYTES, Stamp};
use cell::CellConfig;
use device::{Buf, Bufs, Outcome, World};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;
use std::sync::Arc;

pub(super) const NAME: &str = "s16";
pub(super) const ABOUT: &str = "tiers: times of one read, and what a table costs by how much is asked of it (S16)";

const BLOCK: u64 = 8192;
/// Reads of an arm unless told otherwise.
const READS: u64 = 100_000;
/// A table for the cache, which has a tenth of it. Assumed: 1 GiB (the hit ratio hardly depends on it).
const TABLE_BYTES: u64 = 1 << 30;
const CACHE_PART: u64 = 10;
/// Assumed: four of five reads are of a tenth of the blocks (half to 95 %).
const HOT: (u64, u64) = (80, 10);

/// Document, prices of 2011: dollars a GB, and for an I/O a second.
const PRICES: [(&str, f64, f64); 6] = [
    ("Fusion-io PCIe SLC", 53.44, 0.06),
    ("Fusion-io PCIe MLC Duo", 24.92, 0.06),
    ("Intel SLC SATA", 21.88, 0.05),
    ("Intel MLC SATA", 6.88, 0.05),
    ("Seagate SAS disk", 1.00, 1.53),
    ("Seagate SATA disk", 0.09, 2.38),
];
const SAS: usize = 4;
const MLC: usize = 3;
/// Document: growth of I/O rate, capacity and processors from 2001 to 2009, in percent; and what I/O over the others really fell by.
const GROWTH: [f64; 3] = [260.0, 1_635.0, 1_013.0];
const FELL: [(&str, f64); 2] =
    [("I/O for its capacity, 2001 to 2009", -79.0), ("I/O for a processor, 2001 to 2009", -68.0)];

const TIMES: &str = "one read of 8 KiB";
const TREND: &str = "the trend of disks";
const CACHE: &str = "a cache of a tenth of the table";
const COSTS: &str = "cheapest for its I/O";

struct Row {
    part: &'static str,
    configuration: String,
    value: f64,
    unit: &'static str,
    field: Option<f64>,
    elapsed_s: f64,
    verified: u64,
    verdict: String,
}

#[derive(Clone, Copy)]
enum Tier {
    Pcie,
    SataFlash,
    Sas,
    Sata,
}

/// Document: seeks.
const TIERS: [(Tier, &str, f64); 4] = [
    (Tier::Pcie, "PCIe flash (ioDrive)", 25.0),
    (Tier::SataFlash, "SATA flash (X25-E)", 80.0),
    (Tier::Sas, "disk, 15,000 turns", 4_000.0),
    (Tier::Sata, "disk, 7,200 turns", 4_000.0),
];

impl Tier {
    fn timing(self, world: &World) -> Arc<dyn Timing> {
        match self {
            Tier::Pcie => Flash::new(QUAD_CORES.flash, world),
            Tier::SataFlash => Flash::new(x25_e(), world),
            Tier::Sas => Raid::of_disks(cheetah().outer(), 1, 1 << 20, world),
            Tier::Sata => Raid::of_disks(seagate().outer(), 1, 1 << 20, world),
        }
    }
}

fn limits(seed: u64) -> ExecutorConfig {
    let plain = ExecutorConfig::plain(seed);
    ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain }
}

/// One read after another, anywhere on 32 GiB: mean in microseconds, and all of the time in seconds.
fn one_by_one(tier: Tier, seed: u64, reads: u64) -> Result<(f64, f64), Stuck> {
    let executor = Executor::new(limits(seed));
    let (_process, world) = process_of(&executor);
    let mut prng = executor.prng("reads");
    executor.run(async {
        let timing = tier.timing(&world);
        for _ in 0..reads {
            timing.take(device::Verb::Read, prng.below((32 << 30) / BLOCK) * BLOCK, BLOCK, false).await;
        }
        let ns = world.clock.now().0 as f64;
        (ns / reads as f64 / 1e3, ns / 1e9)
    })
}

/// The hit ratio of a cell with a tenth of the table on flash, once it has seen as many reads, and the time of those that count.
fn cached(seed: u64, reads: u64) -> Result<(f64, f64), Stuck> {
    let executor = Executor::new(limits(seed));
    let (_process, world) = process_of(&executor);
    let mut prng = executor.prng("reads");
    executor.run(async {
        let machine = &QUAD_CORES;
        let disks = Raid::of_disks(machine.disk, machine.disks, machine.stripe_bytes, &world);
        let disk = Modelled::new(disks, TABLE_BYTES + (256 << 20), true);
        let cache_bytes = TABLE_BYTES / CACHE_PART;
        let flash = Modelled::new(Flash::new(machine.flash, &world), cache_bytes + (256 << 20), true);
        let (config, cache) = (CellConfig::default(), Some(Some(cache_bytes)));
        let wanted = Wanted { config, cache, home: on_cell::DISK, bytes: TABLE_BYTES };
        let made = on_cell::make([&disk.device(), &flash.device()], wanted, |_| (), &world).await;
        made.fill(&disk, TABLE_BYTES);
        let (blocks, hits) = (TABLE_BYTES / BLOCK, &made.grid_disk.counters.cache_hits.requests);
        let hot = blocks * HOT.1 / 100;
        let (mut hits_before, mut begun) = (0, world.clock.now());
        for n in 0..2 * reads {
            if n == reads {
                (hits_before, begun) = (hits.get(), world.clock.now());
            }
            let key = if prng.below(100) < HOT.0 { prng.below(hot) } else { hot + prng.below(blocks - hot) };
            // What is hot lies anywhere.
            let offset = key * 7_919 % blocks * BLOCK;
            let read = made.device.read(offset, Bufs::from(Buf::zeroed(BLOCK as usize))).await;
            assert!(read.outcome == Outcome::Done, "no device fails here");
            for (n, bytes) in read.bufs.to_vec(0..BLOCK as usize).chunks_exact(PART_BYTES).enumerate() {
                let part = offset / PART_BYTES as u64 + n as u64;
                assert!(Stamp::of(bytes) == Some(Stamp { part, version: Version(1) }), "part {part} of the table");
            }
        }
        let elapsed_s = world.clock.now().ns_since(begun) as f64 / 1e9;
        ((hits.get() - hits_before) as f64 / reads as f64, elapsed_s)
    })
}

/// Dollars for a GB of which so many I/Os a second are asked: whichever is more, its bytes or its I/O.
fn dollars((_, gb, iop): (&str, f64, f64), per_second: f64) -> f64 {
    gb.max(iop * per_second)
}

/// The same with a tenth of the bytes on flash as well, which answers that share.
fn dollars_cached(hit_ratio: f64, per_second: f64) -> f64 {
    let flash = (PRICES[MLC].1 / CACHE_PART as f64).max(PRICES[MLC].2 * per_second * hit_ratio);
    flash + dollars(PRICES[SAS], per_second * (1.0 - hit_ratio))
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let (seed, reads) = (options.seed, options.syncs.unwrap_or(READS).max(1));
    let stuck = |configuration: &str, source| RunError::Stuck {
        part: NAME.to_owned(),
        configuration: configuration.to_owned(),
        source,
    };
    tell(&format!("{NAME}: {TIMES}"));
    let mut rows = Vec::new();
    for ((_, name, field), result) in
        TIERS.into_iter().zip(run_all(&TIERS, |(tier, ..)| one_by_one(*tier, seed, reads)))
    {
        let (value, elapsed_s) = result.map_err(|source| stuck(name, source))?;
        let verdict = told::verdict(value, field);
        let (configuration, field) = (name.to_owned(), Some(field));
        rows.push(Row { part: TIMES, configuration, value, unit: "us", field, elapsed_s, verified: 0, verdict });
    }
    for ((name, field), over) in FELL.into_iter().zip(&GROWTH[1..]) {
        let value = 100.0 * ((100.0 + GROWTH[0]) / (100.0 + over) - 1.0);
        let verdict = told::verdict(value, field);
        let (configuration, field) = (name.to_owned(), Some(field));
        rows.push(Row { part: TREND, configuration, value, unit: "%", field, elapsed_s: 0.0, verified: 0, verdict });
    }
    tell(&format!("{NAME}: {CACHE}"));
    let (hit_ratio, elapsed_s) = cached(seed, reads).map_err(|source| stuck(CACHE, source))?;
    let own = |part, configuration: &str, value, unit, elapsed_s, verified| Row {
        part,
        configuration: configuration.to_owned(),
        value,
        unit,
        field: None,
        elapsed_s,
        verified,
        verdict: "-".to_owned(),
    };
    rows.push(own(CACHE, "flashcell, defaults: hits", 100.0 * hit_ratio, "%", elapsed_s, 2 * reads));
    // Where a line that rises with I/O meets a price for bytes.
    let [sas, mlc] = [PRICES[SAS], PRICES[MLC]];
    rows.push(own(COSTS, "MLC SATA flash instead of SAS disks, from", mlc.1 / sas.2, "a second and GB", 0.0, 0));
    let first =
        (1..100_000_u32).map(|n| f64::from(n) / 1_000.0).find(|x| dollars_cached(hit_ratio, *x) < dollars(sas, *x));
    let last = (1..100_000_u32)
        .rev()
        .map(|n| f64::from(n) / 1_000.0)
        .find(|x| dollars_cached(hit_ratio, *x) < dollars(mlc, *x));
    for (name, value) in
        [("SAS disks with a cache instead of more disks, from", first), ("and of MLC SATA flash, up to", last)]
    {
        rows.extend(value.map(|value| own(COSTS, name, value, "a second and GB", 0.0, 0)));
    }
    let cheaper = matches!((first, last), (Some(first), Some(last)) if first < last);
    let text = format!("{COSTS}: between disks and flash a cache is: {first:?} to {last:?}");
    let bounds = vec![Bound { text, holds: cheaper }];
    Ok(Experiment { told: told(&rows, hit_ratio), bounds, notes: NOTES.to_owned() })
}

fn told(rows: &[Row], hit_ratio: f64) -> Told {
    let head = ["part", "configuration", "value", "unit", "the field", "verdict"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        lines.push(vec![
            row.part.to_owned(),
            row.configuration.clone(),
            format!("{:.2}", row.value),
            row.unit.to_owned(),
            row.field.map_or_else(|| "-".to_owned(), plain),
            row.verdict.clone(),
        ]);
    }
    let object = |row: &Row| {
        Object {
            experiment: NAME,
            row: row.part,
            configuration: &row.configuration,
            elapsed_s: row.elapsed_s,
            ratio_to_all_flash: None,
            verified_blocks: row.verified,
            waits: &[],
            field_elapsed_s: None,
            further: &[("value", Some(row.value)), ("field_value", row.field)],
            verdict: &row.verdict,
        }
        .json()
    };
    Told {
        lines,
        words: vec![0, 1, 3, 5],
        objects: rows.iter().map(object).collect(),
        charts: charts(rows, hit_ratio),
        verdicts: told::count(rows.iter().map(|row| row.verdict.as_str())),
    }
}

fn charts(rows: &[Row], hit_ratio: f64) -> Vec<Chart> {
    let bar = |row: &Row| Bar {
        name: row.configuration.clone(),
        note: format!("{} us", plain(row.value)),
        parts: vec![row.value],
        field: row.field,
    };
    let bars = rows.iter().filter(|row| row.part == TIMES).map(bar).collect();
    let title = format!("{TIMES}, one after another: microseconds");
    let times = Bars { title, unit: "us", mark: "the field", kinds: vec!["the model"], bars };
    // Both axes by decades, from a hundredth to a hundred I/Os a second and GB.
    let decades = |names: std::ops::RangeInclusive<i32>| names.map(|n| (f64::from(n), plain(10_f64.powi(n)))).collect();
    let steps = || (0..=80).map(|n| f64::from(n) / 20.0 - 2.0);
    let curve = |name: &str, dollars: &dyn Fn(f64) -> f64| Curve {
        name: name.to_owned(),
        points: steps().map(|log| (log, dollars(10_f64.powf(log)).log10())).collect(),
    };
    let mut curves: Vec<Curve> = PRICES.iter().map(|price| curve(price.0, &|x| dollars(*price, x))).collect();
    curves.push(curve("SAS disk, flashcell on a tenth MLC", &|x| dollars_cached(hit_ratio, x)));
    let costs = Curves {
        title: "what a GB costs by what is asked of it, prices of 2011".to_owned(),
        x: Axis { name: "I/Os a second for each GB".to_owned(), low: -2.0, high: 2.0, marks: decades(-2..=2) },
        y: Axis { name: "dollars a GB".to_owned(), low: -2.0, high: 2.5, marks: decades(-2..=2) },
        curves,
        dots: false,
        has_tops: false,
    };
    vec![Chart::Bars(times), Chart::Curves(costs)]
}

const NOTES: &str = "The field's times are seeks; the model's are reads of 8 KiB with turn and transfer, anywhere on 32 GiB, which is a ninth of the faster disk and\n\
     two fifths of the slower one. Its prices are of 2011 and of devices alone: no watts, no mirrors, no shelves. The trend is its arithmetic done\n\
     right: charted as -630 and -390 it was growth over growth.\n";

#[cfg(test)]
mod tests {
    //! Goal: prices meet where they must, and a cache is worth something between. Method: prices by hand; a short run.
    use super::*;

    #[test]
    fn tiers_have_their_place() {
        assert!((dollars(PRICES[SAS], 0.1) - 1.0).abs() < 1e-9 && (dollars(PRICES[SAS], 10.0) - 15.3).abs() < 1e-9);
        assert!((dollars_cached(0.5, 1.0) - (0.688 + 1.0)).abs() < 1e-9);
        let options = RunOptions { seed: 1, syncs: Some(20_000), ..RunOptions::default() };
        let Ok(Experiment { told, bounds, .. }) = run(&options, &mut |_| {}) else { unreachable!("it runs") };
        assert!(bounds.iter().all(|bound| bound.holds), "{}", crate::output::table(&told.lines, &told.words));
    }
}
