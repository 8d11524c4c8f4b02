//! What to do, in words, with the reasons: which configuration, and for each device of the trace and its hot ranges whether it belongs on
//! flash, is to be kept, to be cached or to be left where it is. In the manner of the field's advice ("S16").
//!
//! Text from figures, nothing else; every sentence has the figure it follows from.

use super::arm::{Placement, Run, mode_name};
use super::prices::{Medium, Prices};
use super::report::lasts;
use super::workload::{DeviceUse, PartUse, Workload};
use celldisk::CachingMode;

/// Of what the best cache saves, so much is enough for a smaller one to be preferred.
const ENOUGH: f64 = 0.9;
/// Write-back risks more than write-through, and must save so much more of what all flash would.
const MORE_BY_WRITE_BACK: f64 = 0.05;
/// A flash that lasts less is too small for the workload, or the mode is wrong.
const YEARS_MIN: f64 = 3.0;
/// A device with less of all waiting is not worth a thought.
const SHARE_MIN: f64 = 0.02;
/// Saved by flash at all, of what it waits for on disk.
const GAIN_MIN: f64 = 0.2;
/// A cache that saves so much of what all flash would is good for the device.
const GOOD: f64 = 0.8;
/// Reads of blocks that were touched before, of all: below it a cache has nothing to give.
const AGAIN_MIN: f64 = 0.2;
/// What is kept for certain may be so much of the cache: a cell keeps up to four fifths.
const KEEP_MAX: f64 = 0.5;
/// A range is hot when it is asked for so many times as often as the mean of what is touched.
const HOT_TIMES: f64 = 4.0;
/// And told when it has so much of the requests of its device.
const HOT_SHARE_MIN: f64 = 0.1;
/// A cache that saves so much of what flash would in a range holds it.
const HELD: f64 = 0.9;
/// Ranges of a device of each kind that are told.
const RANGES_MAX: usize = 4;
/// Writes that are not aligned are told from so many on.
const UNALIGNED_TOLD: f64 = 0.1;
/// Writes in order, such as redo: so much of the requests.
const REDO_WRITES: f64 = 0.9;
const REDO_ORDER: f64 = 0.8;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Flash,
    Keep,
    Cache,
    Leave,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Flash => "put on flash",
            Verdict::Keep => "keep",
            Verdict::Cache => "cache",
            Verdict::Leave => "leave",
        }
    }
}

/// Of one device or one range of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) device: String,
    /// From where on, and how long; the whole device without.
    pub(super) range: Option<(u64, u64)>,
    pub(super) verdict: Verdict,
    pub(super) reason: String,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    /// The configuration that is advised, by number; none where no cache is worth it.
    pub(super) chosen: Option<usize>,
    pub(super) summary: Vec<String>,
    pub(super) lines: Vec<Line>,
}

/// What the advice follows from.
pub(super) struct Facts<'a> {
    pub(super) workload: &'a Workload,
    pub(super) runs: &'a [Run],
    pub(super) prices: &'a Prices,
    pub(super) disk: &'a Medium,
    pub(super) flash: &'a Medium,
    /// What a flash drive has at least.
    pub(super) drive_bytes: u64,
    /// Years the flash of each run lasts.
    pub(super) years: Vec<Option<f64>>,
    /// Seconds in which the workload does what it does.
    pub(super) seconds: f64,
}

/// Bytes as people and `flashcell pin` write them; whole where they are.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    match units.iter().find(|(_, shift)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Exact where that is short.
pub(super) fn size(bytes: u64) -> String {
    let exact = size_text(bytes);
    if exact.len() <= 5 && !exact.ends_with('K') { exact } else { about(bytes) }
}

/// The same, rounded.
pub(super) fn about(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if (0.05..10.0).contains(&percent) { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Facts<'_> {
    fn run(&self, placement: Placement) -> &Run {
        let Some(run) = self.runs.iter().find(|run| run.placement == placement) else { unreachable!("it is run") };
        run
    }

    /// Of what all flash saves of waiting, so much does a run.
    fn gain(&self, run: &Run) -> f64 {
        let disk = self.run(Placement::Disk).waited_ns() as f64;
        let flash = self.run(Placement::Flash).waited_ns() as f64;
        if disk > flash { (disk - run.waited_ns() as f64) / (disk - flash) } else { 0.0 }
    }

    /// The least flash that gives nearly as much as the best, in write-through where that does; what lasts before what does not.
    fn choose(&self) -> Option<usize> {
        let cached = || self.runs.iter().enumerate().filter(|(_, run)| run.placement.is_cached());
        let lasts = |n: usize| self.years[n].is_none_or(|years| years >= YEARS_MIN);
        let any_lasts = cached().any(|(n, run)| lasts(n) && self.gain(run) > 0.0);
        let counts = |n: &usize| lasts(*n) || !any_lasts;
        let best = cached().filter(|(n, _)| counts(n)).map(|(_, run)| self.gain(run)).fold(0.0, f64::max);
        if best <= 0.0 {
            return None;
        }
        let key = |run: &Run| match run.placement {
            Placement::Cached { mode, flash_bytes } => {
                // Write-back is compared as if it saved less.
                let handicap = if mode == CachingMode::WriteThrough { 0.0 } else { MORE_BY_WRITE_BACK };
                // What is bought anyway costs nothing more.
                (flash_bytes.max(self.drive_bytes), self.gain(run) - handicap)
            }
            Placement::Disk | Placement::Flash => (0, 0.0),
        };
        let enough = cached().filter(|(n, run)| counts(n) && self.gain(run) >= ENOUGH * best);
        let (n, _) = enough.min_by(|(_, a), (_, b)| {
            let ((size_a, gain_a), (size_b, gain_b)) = (key(a), key(b));
            size_a.cmp(&size_b).then(gain_b.total_cmp(&gain_a))
        })?;
        Some(n)
    }

    fn money(&self, amount: f64) -> String {
        let digits = if amount < 10.0 { 2 } else { 0 };
        format!("{amount:.digits$} {}", self.prices.currency)
    }
}

fn seconds(run: &Run) -> String {
    let s = run.tally.elapsed_ns as f64 / 1e9;
    if s < 10.0 { format!("{s:.2} s") } else { format!("{s:.0} s") }
}

/// The advice.
pub(super) fn advise(facts: &Facts<'_>) -> Advice {
    let chosen = facts.choose();
    let mut lines = Vec::new();
    for (number, device) in facts.workload.devices.iter().enumerate().filter(|(_, device)| device.requests() > 0) {
        let line = of_device(facts, number, device, chosen);
        let is_cached = line.verdict == Verdict::Cache;
        lines.push(line);
        if is_cached {
            lines.extend(ranges(facts, number, device, chosen));
        }
    }
    Advice { chosen, summary: summary(facts, chosen), lines }
}

fn summary(facts: &Facts<'_>, chosen: Option<usize>) -> Vec<String> {
    let (disk, flash) = (facts.run(Placement::Disk), facts.run(Placement::Flash));
    let span = facts.workload.span_bytes();
    let flash_price = facts.flash.price(span.max(facts.drive_bytes));
    let mut text = vec![format!(
        "Disk alone takes {}, all on flash {}: {} of the waiting is the disk's.",
        seconds(disk),
        seconds(flash),
        percent(1.0 - ratio(flash.waited_ns(), disk.waited_ns()))
    )];
    let again: u64 = facts.workload.devices.iter().map(|device| device.read_again).sum();
    let read: u64 = facts.workload.devices.iter().map(|device| device.read_references).sum();
    match chosen.map(|n| (n, &facts.runs[n])) {
        Some((n, run)) if facts.gain(run) >= 0.1 => {
            let Placement::Cached { mode, flash_bytes } = run.placement else { unreachable!("a cache is chosen") };
            text.push(format!(
                "Take a flash cache of {} in {}: {}, which is {} of what all on flash would save, with flash for {} ({} for all of it).",
                size(flash_bytes),
                mode_name(mode),
                seconds(run),
                percent(facts.gain(run)),
                facts.money(facts.flash.price(flash_bytes.max(facts.drive_bytes))),
                facts.money(flash_price),
            ));
            if mode != CachingMode::WriteThrough {
                text.push(
                    "Until it is destaged what was written is on flash alone: with one flash device its loss is that of the data; take two.".to_owned(),
                );
            }
            text.extend(others(facts, n));
            let left = 1.0 - facts.gain(run);
            if facts.drive_bytes >= span {
                text.push(format!(
                    "The drive of {} has room for all {} of the data: all on it saves the other {} too, and costs no more.",
                    size(facts.drive_bytes),
                    about(span),
                    percent(left)
                ));
            } else if left >= 0.02 {
                let spared = facts.flash.price(flash_bytes.max(facts.drive_bytes)) + facts.disk.price(span);
                let more = facts.money((flash_price - spared).max(0.0));
                text.push(format!("All on flash saves the other {} of the waiting for {more} more, without the disk.", percent(left)));
            }
            let rate = facts.workload.requests() as f64 / (run.tally.elapsed_ns.max(1) as f64 / 1e9);
            text.push(format!(
                "Disks alone for the same {} requests a second, if all of them are random: {}.",
                short(rate),
                facts.money(rate * facts.disk.per_iop)
            ));
            if let Some(years) = facts.years[n].filter(|years| *years < YEARS_MIN) {
                text.push(format!(
                    "That flash would last {} at this rate: take a larger drive than the cache needs, or one rated for more writes, or set lifetime in \
                     cell.toml (the cell then fills less).",
                    lasts(Some(years))
                ));
            }
        }
        _ if read > 0 && ratio(again, read) < AGAIN_MIN => text.push(format!(
            "No cache of these sizes is worth it: {} of the blocks read were touched before in this trace. Is the trace long enough to come back to \
             what it has read?",
            percent(ratio(again, read))
        )),
        _ => text.push("No cache of these sizes and modes is worth it: try larger ones, or other modes.".to_owned()),
    }
    let writes: u64 = facts.workload.devices.iter().map(|device| device.writes).sum();
    let unaligned: u64 = facts.workload.devices.iter().map(|device| device.unaligned_writes).sum();
    if ratio(unaligned, writes) >= UNALIGNED_TOLD {
        text.push(format!(
            "{} of the writes do not begin and end at multiples of 4 KiB: in write-through the cache does not keep their ends, and reads there miss; \
             in write-back they wait for the disk. Align partitions and file systems to 4 KiB.",
            percent(ratio(unaligned, writes))
        ));
    }
    // S16's rule: disks are cheaper for bytes, flash for requests.
    let even = facts.flash.per_gb / facts.disk.per_iop;
    let asked = facts.workload.requests() as f64 / facts.seconds / (span as f64 / 1e9);
    text.push(format!(
        "Prices {}: from {} requests a second for each GB on, {} is cheaper than enough {}; this workload asks for {}.",
        facts.prices.name,
        short(even),
        facts.flash.text,
        facts.disk.text,
        short(asked)
    ));
    text
}

fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

/// What more flash and the other modes would change.
fn others(facts: &Facts<'_>, chosen: usize) -> Vec<String> {
    let run = &facts.runs[chosen];
    let Placement::Cached { mode, flash_bytes } = run.placement else { return Vec::new() };
    let mut text = Vec::new();
    let larger = facts.runs.iter().filter_map(|run| match run.placement {
        Placement::Cached { mode: m, flash_bytes: b } if m == mode && b > flash_bytes => Some((b, run)),
        _ => None,
    });
    if let Some((bytes, larger)) = larger.min_by_key(|(bytes, _)| *bytes) {
        text.push(format!("{} would take {}.", size(bytes), seconds(larger)));
    }
    for (n, other) in facts.runs.iter().enumerate() {
        if let Placement::Cached { mode: m, flash_bytes: b } = other.placement
            && m != mode
            && b == flash_bytes
        {
            text.push(format!(
                "The same in {} takes {} and writes {} to flash instead of {}, which then lasts {} instead of {}.",
                mode_name(m),
                seconds(other),
                about(other.counts.flash_bytes),
                about(run.counts.flash_bytes),
                lasts(facts.years[n]),
                lasts(facts.years[chosen])
            ));
        }
    }
    text
}

fn of_device(facts: &Facts<'_>, number: usize, device: &DeviceUse, chosen: Option<usize>) -> Line {
    let waited = |run: &Run| run.tally.waited[number].all_ns();
    let disk_run = facts.run(Placement::Disk);
    let (disk, flash) = (waited(disk_run), waited(facts.run(Placement::Flash)));
    let cached = chosen.map_or(disk, |n| waited(&facts.runs[n]));
    let share = ratio(disk, disk_run.waited_ns());
    let by_flash = 1.0 - ratio(flash, disk);
    let by_cache = 1.0 - ratio(cached, disk);
    let of_possible = if by_flash > 0.0 { by_cache / by_flash } else { 0.0 };
    let again = ratio(device.read_again, device.read_references);
    let cache_bytes = chosen.map_or(0, |n| match facts.runs[n].placement {
        Placement::Cached { flash_bytes, .. } => flash_bytes,
        Placement::Disk | Placement::Flash => 0,
    });
    let rate = device.requests() as f64 / facts.seconds / (device.span_bytes as f64 / 1e9);
    let even = facts.flash.per_gb / facts.disk.per_iop;
    let price = facts.money(facts.flash.price(device.span_bytes));
    let in_order = ratio(device.in_order, device.requests());
    let writes = ratio(device.writes, device.requests());
    let saves = format!(
        "{} of all waiting is for it; the cache saves {} of that, all on flash {}",
        percent(share),
        percent(by_cache.max(0.0)),
        percent(by_flash.max(0.0))
    );
    let (verdict, reason) = if writes >= REDO_WRITES && in_order >= REDO_ORDER {
        let how = "leave it on disk with a flash log in front (purpose=redo): never flash for redo alone";
        (Verdict::Leave, format!("{} of its requests write, in order, as redo does; {how}", percent(writes)))
    } else if share < SHARE_MIN {
        (Verdict::Leave, format!("{} of all waiting is for it", percent(share)))
    } else if by_flash < GAIN_MIN {
        (Verdict::Leave, format!("all on flash it would wait {} less", percent(by_flash.max(0.0))))
    } else if of_possible >= GOOD {
        (Verdict::Cache, saves)
    } else if cache_bytes > 0 && device.span_bytes as f64 <= KEEP_MAX * cache_bytes as f64 && again >= AGAIN_MIN {
        let small = format!("it is {}, a small part of the cache", size(device.span_bytes));
        (Verdict::Keep, format!("{saves}; {small}"))
    } else if rate >= even {
        let why = if device.reads > 0 && again < AGAIN_MIN {
            format!("{} of the blocks it reads were touched before, so that a cache has little to give", percent(again))
        } else {
            format!("{} requests a second for each GB, where flash is cheaper from {} on", short(rate), short(even))
        };
        (Verdict::Flash, format!("{saves}; {why}; {} of flash cost {price}", size(device.span_bytes)))
    } else if by_cache >= 0.1 {
        (Verdict::Cache, format!("{saves}; too large and too seldom asked for to be put on flash ({price})"))
    } else if device.reads > 0 && again < AGAIN_MIN {
        let once = percent(1.0 - again);
        (Verdict::Leave, format!("{once} of the blocks it reads are read for the first time: a cache only wears flash"))
    } else {
        (Verdict::Leave, saves)
    };
    Line { device: device.name.clone(), range: None, verdict, reason }
}

/// Parts of a device beside each other.
#[derive(Clone, Copy, Default)]
struct Stretch {
    from: usize,
    end: usize,
    requests: u64,
    references: u64,
    first: u64,
}

/// Stretches of the parts that are like that.
fn stretches(device: &DeviceUse, is_one: impl Fn(&PartUse) -> bool) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for (at, part) in device.parts.iter().enumerate().filter(|(_, part)| is_one(part)) {
        if found.last().is_none_or(|last| last.end < at) {
            found.push(Stretch { from: at, ..Stretch::default() });
        }
        if let Some(last) = found.last_mut() {
            last.end = at + 1;
            last.requests += part.requests;
            last.references += part.references;
            last.first += part.first;
        }
    }
    found
}

/// Its ranges that stand out: where a few of its parts have much of its requests, and what is read once from end to end.
fn ranges(facts: &Facts<'_>, number: usize, device: &DeviceUse, chosen: Option<usize>) -> Vec<Line> {
    let touched = device.parts.iter().filter(|part| part.requests > 0).count() as u64;
    let Some(n) = chosen.filter(|_| touched > 0) else { return Vec::new() };
    let Placement::Cached { flash_bytes, .. } = facts.runs[n].placement else { return Vec::new() };
    let mean = device.requests() as f64 / touched as f64;
    let mut hot = stretches(device, |part| part.requests as f64 >= HOT_TIMES * mean);
    hot.retain(|hot| {
        ratio(hot.requests, device.requests()) >= HOT_SHARE_MIN && 1.0 - ratio(hot.first, hot.references) >= AGAIN_MIN
    });
    hot.sort_by_key(|hot| std::cmp::Reverse(hot.requests));
    let references: u64 = device.parts.iter().map(|part| part.references).sum();
    let is_once = |part: &PartUse| {
        part.first * facts.workload.block_bytes >= device.part_bytes / 2
            && 1.0 - ratio(part.first, part.references) < AGAIN_MIN
    };
    let mut once = stretches(device, is_once);
    once.retain(|once| ratio(once.references, references) >= HOT_SHARE_MIN);
    once.sort_by_key(|once| std::cmp::Reverse(once.references));
    let place = |stretch: &Stretch| {
        let from = stretch.from as u64 * device.part_bytes;
        (from, (stretch.end as u64 * device.part_bytes).min(device.span_bytes) - from)
    };
    let line = |range, verdict, reason| Line { device: device.name.clone(), range: Some(range), verdict, reason };
    let of_hot = |stretch: &Stretch| {
        let (from, bytes) = place(stretch);
        let waited = |run: &Run| run.tally.by_part[number][stretch.from..stretch.end].iter().sum::<u64>();
        let (disk, flash) = (waited(facts.run(Placement::Disk)), waited(facts.run(Placement::Flash)));
        let saved = disk.saturating_sub(waited(&facts.runs[n])) as f64 / disk.saturating_sub(flash).max(1) as f64;
        let has = format!(
            "{} of its requests in {} of its space; the cache saves {} of what flash would there",
            percent(ratio(stretch.requests, device.requests())),
            percent(ratio(bytes, device.span_bytes)),
            percent(saved.clamp(0.0, 1.0))
        );
        match bytes as f64 <= KEEP_MAX * flash_bytes as f64 {
            true if saved < HELD => line((from, bytes), Verdict::Keep, has),
            true => line((from, bytes), Verdict::Cache, format!("{has}: it finds it by itself")),
            false => line((from, bytes), Verdict::Cache, format!("{has}, too small to keep all of it")),
        }
    };
    let of_once = |stretch: &Stretch| {
        let (from, bytes) = place(stretch);
        let reason = format!(
            "{} of the blocks asked for are here, and {} of them for the first time: a cache only wears flash for it",
            percent(ratio(stretch.references, references)),
            percent(ratio(stretch.first, stretch.references))
        );
        line((from, bytes), Verdict::Leave, reason)
    };
    let mut lines: Vec<Line> = hot.iter().take(RANGES_MAX).map(of_hot).collect();
    lines.extend(once.iter().take(RANGES_MAX).map(of_once));
    lines
}
