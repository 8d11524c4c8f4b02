//! What is inside a flash drive (S15): the field's arithmetic on a drive without a translation layer, one with it against data sheets, how it
//! degrades as it fills, with TRIM and without, and what caches do to it.

use super::block_cache::BlockCache;
use super::chart::{Axis, Bar, Bars, Chart, Curve, Curves};
use super::field::run_all;
use super::machine::{DUAL_CORE, FTL_DRIVE, ftl_drive_of_8};
use super::on_cell::{self, Wanted};
use super::told::{self, Object, Told};
use super::{Bound, Experiment, RunError, RunOptions};
use crate::devices::endurance::Cell;
use crate::model::Modelled;
use crate::model::raid::Raid;
use crate::model::translated::Translated;
use buffercache::Version;
use buffercache::page::{PART_BYTES, Stamp};
use cell::CellConfig;
use device::{Buf, Bufs, Device, Outcome, Prng};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::ftl::{Collect, Ftl, FtlConfig, FtlFigures};
use sim::plain::process_of;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(super) const NAME: &str = "s15";
pub(super) const ABOUT: &str =
    "what is inside a flash drive: writes as it fills, with and without TRIM, and under caches (S15)";

const PAGE: u64 = 4096;
/// Document: write of an empty page, and of one in use.
const WRITE_NS: u64 = 250_000;
const UPDATE_NS: u64 = 2_000_000;
/// Document, in percent: the field reckons 687 us and 1,562 us for two of them.
const NAIVE_SHARES: [(u64, Option<f64>); 5] =
    [(0, None), (25, Some(687.0)), (50, None), (75, Some(1_562.0)), (100, None)];
/// Writes to the drive without translation, unless told otherwise.
const WRITES: u64 = 100_000;
/// Shares of the drive that are in use, in percent.
const SHARES: [u64; 5] = [25, 50, 75, 90, 100];
/// A drive is written over so many times before it counts, in percent of it, and as much again while it does.
const SETTLE_PERCENT: u64 = 200;
/// Requests under way.
const DEPTH: usize = 32;
/// Assumed: 80 % of the writes go to 20 % of the pages (50 to 95 %).
const HOT: (u64, u64) = (80, 20);
/// Of a cache on the drive: a table of so many times the drive, and reads of so many times.
const TABLE_TIMES: u64 = 4;
const READ_TIMES: u64 = 4;
const BLOCK: u64 = 8192;

struct Row {
    part: &'static str,
    configuration: String,
    value: f64,
    unit: &'static str,
    /// What somebody else says, and who.
    reference: Option<(f64, &'static str)>,
    figures: Option<FtlFigures>,
    /// Virtual time of what was measured.
    elapsed_s: f64,
    verified: u64,
    verdict: String,
}

impl Row {
    fn amplification(&self) -> Option<f64> {
        self.figures.filter(|f| f.written > 0).map(|f| f.programmed as f64 / f.written as f64)
    }

    /// How often its user may write all of the drive until blocks of such cells are worn, wear being level.
    fn drive_writes(&self, cell: Cell) -> Option<f64> {
        let FtlConfig { channels, blocks_per_channel, pages_per_block, logical_pages, .. } = *FTL_DRIVE;
        let pages = (channels * blocks_per_channel * pages_per_block) as f64;
        let times = cell.erases() as f64 * pages / logical_pages as f64;
        self.amplification().filter(|_| self.part != SHEET).map(|amplification| times / amplification)
    }
}

const NAIVE: &str = "a drive without translation, mean write";
const SHEET: &str = "a drive with translation";
const FILLING: &str = "random writes of 4 KiB as the drive fills";
const CACHES: &str = "a cache on the drive, random reads that miss";

/// A drive that erases before it writes a page again. The share in use stays: what is written is taken away again.
fn naive(seed: u64, writes: u64) -> Vec<Row> {
    let pages = 1_000_u64;
    let mut rows = Vec::new();
    for (percent, field) in NAIVE_SHARES {
        let mut prng = Prng::new(seed).fork("naive");
        let mut in_use: Vec<bool> = (0..pages).map(|page| page * 100 < percent * pages).collect();
        for page in (1..pages).rev() {
            in_use.swap(page as usize, prng.below(page + 1) as usize);
        }
        let page_ns = |page: u64| if in_use[page as usize] { UPDATE_NS } else { WRITE_NS };
        let total: u64 = (0..writes).map(|_| page_ns(prng.below(pages))).sum();
        let value = total as f64 / writes as f64 / 1e3;
        rows.push(Row {
            part: NAIVE,
            configuration: format!("{percent} % in use"),
            value,
            unit: "us",
            reference: field.map(|us| (us, "the field's arithmetic")),
            figures: None,
            elapsed_s: total as f64 / 1e9,
            verified: 0,
            verdict: field.map_or_else(|| "-".to_owned(), |us| told::verdict(value, us)),
        });
    }
    rows
}

/// Requests in a closed loop of so many: the time from the first to the last.
fn closed_loop(
    ftl: &mut Ftl,
    begun: u64,
    depth: usize,
    requests: u64,
    mut each: impl FnMut(&mut Ftl, u64) -> u64,
) -> u64 {
    let mut under_way: BinaryHeap<Reverse<u64>> = (0..depth).map(|_| Reverse(begun)).collect();
    let mut last = begun;
    for _ in 0..requests {
        let now = under_way.pop().map_or(begun, |Reverse(now)| now);
        let done = each(ftl, now);
        last = last.max(done);
        under_way.push(Reverse(done));
    }
    last
}

/// The drive against what the field and its data sheet say.
fn sheet(seed: u64, requests: u64) -> Vec<Row> {
    let config = *FTL_DRIVE;
    let bytes = config.logical_pages as u64 * PAGE;
    let pages = bytes / PAGE;
    let mut prng = Prng::new(seed).fork("sheet");
    let mut ftl = Ftl::new(config);
    let mut rows = Vec::new();
    let mut add =
        |what: &str, value: f64, unit: &'static str, reference: f64, who: &'static str, elapsed_ns: u64, ftl: &Ftl| {
            rows.push(Row {
                part: SHEET,
                configuration: what.to_owned(),
                value,
                unit,
                reference: Some((reference, who)),
                figures: Some(ftl.figures()),
                elapsed_s: elapsed_ns as f64 / 1e9,
                verified: 0,
                verdict: told::verdict(value, reference),
            });
        };
    let ns = ftl.write(0, 0, PAGE);
    add("first write of a page", ns as f64 / 1e3, "us", 250.0, "the field", ns, &ftl);
    let begun = 1_000_000_000;
    let ns = ftl.read(begun, 0, PAGE) - begun;
    add("read of a page", ns as f64 / 1e3, "us", 25.0, "the field", ns, &ftl);
    let megabytes = |ns: u64| bytes as f64 * 1e3 / ns as f64;
    // In pieces of 128 KiB, as data sheets have it.
    let piece = 128 << 10;
    let in_order = |write: bool| {
        let mut at = 0;
        move |ftl: &mut Ftl, now: u64| {
            let offset = at % (bytes / piece * piece);
            at += piece;
            if write { ftl.write(now, offset, piece) } else { ftl.read(now, offset, piece) }
        }
    };
    let mut now = 2_000_000_000;
    let end = closed_loop(&mut ftl, now, DEPTH, bytes / piece, in_order(true));
    add("writes in order, MB/s", megabytes(end - now), "MB/s", 170.0, "data sheet (X25-E)", end - now, &ftl);
    now = end;
    let end = closed_loop(&mut ftl, now, DEPTH, bytes / piece, in_order(false));
    add("reads in order, MB/s", megabytes(end - now), "MB/s", 250.0, "data sheet (X25-E)", end - now, &ftl);
    now = end;
    let per_second = |requests: u64, ns: u64| requests as f64 * 1e9 / ns as f64;
    let end = closed_loop(&mut ftl, now, DEPTH, requests, |ftl, now| ftl.read(now, prng.below(pages) * PAGE, PAGE));
    add(
        "random reads of 4 KiB",
        per_second(requests, end - now),
        "/s",
        35_000.0,
        "data sheet (X25-E)",
        end - now,
        &ftl,
    );
    // The whole drive at random, until it is as it will stay.
    now = closed_loop(&mut ftl, end, DEPTH, pages * SETTLE_PERCENT / 100, |ftl, now| {
        ftl.write(now, prng.below(pages) * PAGE, PAGE)
    });
    let end = closed_loop(&mut ftl, now, DEPTH, requests, |ftl, now| ftl.write(now, prng.below(pages) * PAGE, PAGE));
    let value = per_second(requests, end - now);
    add("random writes of 4 KiB, sustained", value, "/s", 3_300.0, "data sheet (X25-E)", end - now, &ftl);
    add("the same beside S9", value, "/s", 2_000.0, "the field", end - now, &ftl);
    rows
}

#[derive(Clone, Copy)]
struct Fill {
    seed: u64,
    percent: u64,
    trim: bool,
    collect: Collect,
    scale: u64,
}

const FILLS: [(bool, Collect, &str); 4] = [
    (true, Collect::Greedy, "with TRIM, greedy"),
    (true, Collect::CostBenefit, "with TRIM, cost and benefit"),
    (false, Collect::Greedy, "without TRIM, greedy"),
    (false, Collect::CostBenefit, "without TRIM, cost and benefit"),
];

/// A drive that was full once, of which so much is in use: writes a second, and figures of them.
fn fill(&Fill { seed, percent, trim, collect, scale }: &Fill) -> (f64, FtlFigures, f64) {
    let config = FtlConfig { collect, ..*FTL_DRIVE };
    let pages = config.logical_pages as u64;
    let used = pages * percent / 100;
    let mut ftl = Ftl::new(config);
    let mut now = ftl.write(0, 0, pages * PAGE);
    if trim {
        ftl.trim(used * PAGE, (pages - used) * PAGE);
    }
    let mut prng = Prng::new(seed).fork("fill");
    let hot = (used * HOT.1 / 100).max(1);
    let mut write = |ftl: &mut Ftl, now: u64| {
        let is_hot = prng.below(100) < HOT.0;
        let page = if is_hot { prng.below(hot) } else { hot + prng.below((used - hot).max(1)) };
        // Hot pages lie anywhere.
        let page = page * 7_919 % used;
        ftl.write(now, page * PAGE, PAGE)
    };
    let writes = pages * SETTLE_PERCENT / 100 / scale;
    now = closed_loop(&mut ftl, now, DEPTH, writes, &mut write);
    let before = ftl.figures();
    let end = closed_loop(&mut ftl, now, DEPTH, writes, &mut write);
    let after = ftl.figures();
    let figures = FtlFigures {
        written: after.written - before.written,
        programmed: after.programmed - before.programmed,
        erased: after.erased - before.erased,
        ..after
    };
    (writes as f64 * 1e9 / (end - now) as f64, figures, (end - now) as f64 / 1e9)
}

fn filling(seed: u64, scale: u64) -> Vec<Row> {
    let fills: Vec<Fill> = SHARES
        .iter()
        .flat_map(|&percent| FILLS.map(|(trim, collect, _)| Fill { seed, percent, trim, collect, scale }))
        .collect();
    let results = run_all(&fills, fill);
    let names = FILLS.iter().cycle().map(|(.., name)| *name);
    let row = |((fill, name), (value, figures, elapsed_s)): ((&Fill, &str), (f64, FtlFigures, f64))| Row {
        part: FILLING,
        configuration: format!("{} % in use, {name}", fill.percent),
        value,
        unit: "/s",
        reference: None,
        figures: Some(figures),
        elapsed_s,
        verified: 0,
        verdict: "-".to_owned(),
    };
    fills.iter().zip(names).zip(results).map(row).collect()
}

/// Ours or the vendor's, on which drive.
fn on_drive() -> [(bool, FtlConfig, &'static str); 3] {
    [
        (false, *FTL_DRIVE, "caching block device (vendor), 8 KiB"),
        (true, *FTL_DRIVE, "flashcell, defaults"),
        (true, ftl_drive_of_8(), "flashcell, a drive of 8 channels"),
    ]
}

/// A cache on all of the drive, and reads anywhere in a table that is larger: what the drive had to write for it.
fn cache(seed: u64, &(is_ours, config, name): &(bool, FtlConfig, &str), reads: u64) -> Result<Row, Stuck> {
    let plain = ExecutorConfig::plain(seed);
    let limits = ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    let mut prng = executor.prng("reads");
    executor.run(async {
        let flash_bytes = FTL_DRIVE.logical_pages as u64 * PAGE;
        let table_bytes = flash_bytes * TABLE_TIMES;
        let disks = Raid::of_disks(DUAL_CORE.disk, DUAL_CORE.disks, DUAL_CORE.stripe_bytes, &world);
        let disk = Modelled::new(disks, table_bytes + (256 << 20), true);
        let drive = Translated::new(config, 0, &world);
        let flash = Modelled::new(drive.clone(), flash_bytes, true);
        let (device, _made): (Device, _) = if is_ours {
            let config = CellConfig::default();
            let wanted = Wanted { config, cache: Some(None), home: on_cell::DISK, bytes: table_bytes };
            let made = on_cell::make([&disk.device(), &flash.device()], wanted, |_| (), &world).await;
            made.fill(&disk, table_bytes);
            (made.device.clone(), Some(made))
        } else {
            disk.fill(0, table_bytes);
            let cache = BlockCache::new(disk.device(), flash.device(), flash_bytes, BLOCK, &world);
            (cache, None)
        };
        let begun = world.clock.now();
        for _ in 0..reads {
            let offset = prng.below(table_bytes / BLOCK) * BLOCK;
            let read = device.read(offset, Bufs::from(Buf::zeroed(BLOCK as usize))).await;
            assert!(read.outcome == Outcome::Done, "no device fails here");
            for (n, bytes) in read.bufs.to_vec(0..BLOCK as usize).chunks_exact(PART_BYTES).enumerate() {
                let part = offset / PART_BYTES as u64 + n as u64;
                assert!(Stamp::of(bytes) == Some(Stamp { part, version: Version(1) }), "part {part} of the table");
            }
        }
        let elapsed_s = world.clock.now().ns_since(begun) as f64 / 1e9;
        let figures = drive.figures();
        Row {
            part: CACHES,
            configuration: name.to_owned(),
            value: figures.programmed as f64 / figures.written.max(1) as f64,
            unit: "times",
            reference: None,
            figures: Some(figures),
            elapsed_s,
            verified: reads,
            verdict: "-".to_owned(),
        }
    })
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let seed = options.seed;
    let requests = options.syncs.unwrap_or(WRITES).max(1);
    let pages = FTL_DRIVE.logical_pages as u64;
    // A short run wears the drive less.
    let scale = if options.syncs.is_some() { 8 } else { 1 };
    tell(&format!("{NAME}: {NAIVE}"));
    let mut rows = naive(seed, requests);
    tell(&format!("{NAME}: {SHEET}"));
    rows.extend(sheet(seed, requests));
    tell(&format!("{NAME}: {FILLING}"));
    rows.extend(filling(seed, scale));
    tell(&format!("{NAME}: {CACHES}"));
    let reads = options.syncs.unwrap_or(READ_TIMES * pages * PAGE / BLOCK);
    for row in run_all(&on_drive(), |arm| cache(seed, arm, reads)) {
        rows.push(row.map_err(|source| RunError::Stuck {
            part: CACHES.to_owned(),
            configuration: "a cache".to_owned(),
            source,
        })?);
    }
    Ok(Experiment { told: told(&rows), bounds: bounds(&rows, options.syncs.is_some()), notes: NOTES.to_owned() })
}

fn bounds(rows: &[Row], is_short: bool) -> Vec<Bound> {
    let of = |configuration: &str| rows.iter().find(|row| row.configuration == configuration);
    let mut bounds = Vec::new();
    let mut add = |what: &str, a: Option<&Row>, b: Option<&Row>, holds: &dyn Fn(f64, f64) -> bool| {
        let (Some(a), Some(b)) = (a, b) else { return };
        let figures =
            format!("{} {}, {} {}", super::chart::plain(a.value), a.unit, super::chart::plain(b.value), b.unit);
        bounds.push(Bound { text: format!("{}: {what}: {figures}", a.part), holds: holds(a.value, b.value) });
    };
    let half = [of("50 % in use, with TRIM, greedy"), of("50 % in use, without TRIM, greedy")];
    add("TRIM makes a half empty drive a quarter quicker", half[0], half[1], &|with, without| with > 1.25 * without);
    let trimmed = [of("25 % in use, with TRIM, greedy"), of("100 % in use, with TRIM, greedy")];
    add("a drive degrades as it fills", trimmed[0], trimmed[1], &|empty, full| empty > 1.5 * full);
    if !is_short {
        let caches = [of("flashcell, defaults"), of("caching block device (vendor), 8 KiB")];
        add("with ours the drive copies next to nothing (1.1)", caches[0], caches[1], &|ours, _| ours <= 1.1);
    }
    bounds
}

fn told(rows: &[Row]) -> Told {
    let head = [
        "part",
        "configuration",
        "value",
        "unit",
        "reference",
        "whose",
        "write amplification",
        "pages written",
        "erased",
        "drive writes, SLC",
        "drive writes, MLC",
        "verdict",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let dash = || "-".to_owned();
    for row in rows {
        let number = |of: fn(&FtlFigures) -> u64| row.figures.as_ref().map_or_else(dash, |f| of(f).to_string());
        lines.push(vec![
            row.part.to_owned(),
            row.configuration.clone(),
            format!("{:.2}", row.value),
            row.unit.to_owned(),
            row.reference.map_or_else(dash, |(value, _)| super::chart::plain(value)),
            row.reference.map_or_else(dash, |(_, who)| who.to_owned()),
            row.amplification().map_or_else(dash, |times| format!("{times:.3}")),
            number(|f| f.written),
            number(|f| f.erased),
            row.drive_writes(Cell::Slc).map_or_else(dash, |times| format!("{times:.0}")),
            row.drive_writes(Cell::Mlc).map_or_else(dash, |times| format!("{times:.0}")),
            row.verdict.clone(),
        ]);
    }
    let object = |row: &Row| {
        let of = |of: fn(&FtlFigures) -> u64| row.figures.as_ref().map(|f| of(f) as f64);
        Object {
            experiment: NAME,
            row: row.part,
            configuration: &row.configuration,
            elapsed_s: row.elapsed_s,
            ratio_to_all_flash: None,
            verified_blocks: row.verified,
            waits: &[("drive", row.elapsed_s)],
            field_elapsed_s: None,
            further: &[
                (row.unit_key(), Some(row.value)),
                ("reference", row.reference.map(|(value, _)| value)),
                ("write_amplification", row.amplification()),
                ("pages_written", of(|f| f.written)),
                ("pages_programmed", of(|f| f.programmed)),
                ("blocks_erased", of(|f| f.erased)),
                ("drive_writes_slc", row.drive_writes(Cell::Slc)),
                ("drive_writes_mlc", row.drive_writes(Cell::Mlc)),
                ("erases_least", of(|f| f.erases.0)),
                ("erases_most", of(|f| f.erases.1)),
            ],
            verdict: &row.verdict,
        }
        .json()
    };
    Told {
        lines,
        words: vec![0, 1, 3, 5, 11],
        objects: rows.iter().map(object).collect(),
        charts: charts(rows),
        verdicts: told::count(rows.iter().map(|row| row.verdict.as_str())),
    }
}

impl Row {
    fn unit_key(&self) -> &'static str {
        match self.unit {
            "us" => "time_us",
            "MB/s" => "megabytes_per_s",
            "/s" => "requests_per_s",
            _ => "times",
        }
    }
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    let bars = |part: &str, unit: &'static str, title: &str, kind: &'static str| {
        let of = rows.iter().filter(|row| row.part == part && row.unit == unit);
        let bar = |row: &Row| Bar {
            name: row.configuration.clone(),
            note: format!("{} {unit}", super::chart::plain(row.value)),
            parts: vec![row.value],
            field: row.reference.map(|(value, _)| value),
        };
        Chart::Bars(Bars {
            title: title.to_owned(),
            unit,
            mark: "the field or the data sheet",
            kinds: vec![kind],
            bars: of.map(bar).collect(),
        })
    };
    let curves = |title: &str, y: &str, value: &dyn Fn(&Row) -> Option<f64>| {
        let of = |name: &str| -> Vec<(f64, f64)> {
            let points = SHARES.iter().map(|percent| (*percent, format!("{percent} % in use, {name}")));
            let found = |(percent, wanted): (u64, String)| {
                let row = rows.iter().find(|row| row.configuration == wanted)?;
                Some((percent as f64, value(row)?))
            };
            points.filter_map(found).collect()
        };
        let curves: Vec<Curve> =
            FILLS.iter().map(|(.., name)| Curve { name: (*name).to_owned(), points: of(name) }).collect();
        let highest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
        let marks = SHARES.iter().map(|percent| (*percent as f64, format!("{percent} %"))).collect();
        let x = Axis { name: "of the drive in use".to_owned(), low: 20.0, high: 102.0, marks };
        let title = title.to_owned();
        Chart::Curves(Curves { title, x, y: Axis::linear(y, highest), curves, dots: true, has_tops: false })
    };
    vec![
        bars(NAIVE, "us", "a drive without translation: mean time of a write, us", "erase and write"),
        bars(SHEET, "/s", "random requests of 4 KiB against the data sheet, a second", "the model"),
        curves("random writes as the drive fills", "writes a second", &|row| Some(row.value)),
        curves("pages programmed for each page written", "write amplification", &Row::amplification),
        bars(CACHES, "times", "pages programmed for each page that a cache wrote", "write amplification"),
    ]
}

const NOTES: &str = "In bars the mark is the field's figure or the data sheet's. The drive is a 32nd of an X25-E in blocks, with its channels and its share of\n\
     spare blocks; rates do not depend on its size. The field's 25 us and 250 us are the flash alone and go into the model; a request has channel\n\
     and link as well. What a drive's controller takes for a request and what it buffers is in no document: without them the model is quicker\n\
     at small requests than the drive. Nothing was fitted.\n";

#[cfg(test)]
mod tests {
    //! Goal: the arithmetic of the field comes out, and TRIM does what it is for. Method: a short run of the experiment.
    use super::*;

    /// Goal: 687 and 1,562 us. Method: the experiment's own arithmetic.
    #[test]
    fn the_field_s_arithmetic_comes_out() {
        let rows = naive(1, WRITES);
        let mean = |percent: u64| {
            rows.iter().find(|row| row.configuration == format!("{percent} % in use")).map(|row| row.value)
        };
        let near = |value: Option<f64>, us: f64| value.is_some_and(|value| (value / us - 1.0).abs() < 0.01);
        assert!(near(mean(25), 687.5) && near(mean(75), 1_562.5), "{:?} {:?}", mean(25), mean(75));
        assert!(near(mean(0), 250.0) && near(mean(100), 2_000.0), "{:?} {:?}", mean(0), mean(100));
    }

    #[test]
    fn drives_degrade_as_they_fill() {
        let options = RunOptions { seed: 1, syncs: Some(4_000), ..RunOptions::default() };
        let Ok(Experiment { told, bounds, .. }) = run(&options, &mut |_| {}) else { unreachable!("it runs") };
        let text = crate::output::table(&told.lines, &told.words);
        assert!(bounds.len() == 2 && bounds.iter().all(|bound| bound.holds), "{text}");
        assert!(told.verdicts[0] >= 2, "{text}");
    }
}
