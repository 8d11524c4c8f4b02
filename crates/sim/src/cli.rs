//! The simulator as a command: seeds, ranges of seeds, the same seed twice, broken builds.
//!
//! Text in, text out: prints nothing itself, reads no clock; who calls it passes how to tell of progress.

use crate::harness::{SeedReport, run_seed};
use crate::situations::Situations;
use flashcache::Sabotage;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Seeds a broken build gets before it counts as missed.
pub const CANARY_SEEDS_MAX: u64 = 400;
/// Ranges of at least this many seeds must reach every situation of [`SITUATIONS`].
pub const SITUATION_SEEDS_MIN: u64 = 200;

/// What a range of some hundred seeds must reach, or the simulator has stopped looking where it should.
pub const SITUATIONS: &[&str] = &[
    "power cut",
    "process killed",
    "clean stop",
    "restart after a clean stop",
    "crash during an opening",
    "crash right after an opening",
    "crash during reclaim",
    "crash during a flush",
    "crash between free record and reuse",
    "crash while a write waits for its mark on flash",
    "crash between the mark and the end of the disk write",
    "crash while a fill and a write race for a block",
    "crash with unsettled regions",
    "crash while a catalog change was under way",
    "overlapping requests in flight, one of them a write",
    "hit",
    "partial hit",
    "fill after a miss",
    "fill by a write",
    "block evicted",
    "block written again at reclaim",
    "cached copy ended by a write",
    "rot of cached data",
    "rot caught by a checksum",
    "suspect block compared: good",
    "suspect block compared: stale",
    "region settled",
    "segment reclaimed",
    "ghost hit: a block comes back soon after it left",
    "flash vanished while serving",
    "flash expelled while serving",
    "write acknowledged after flash was expelled while serving",
    "flash absent at start",
    "flash back after an absence",
    "flash blank at start",
    "flash devices change places",
    "flash restored from an old snapshot",
    "disk vanished while serving",
    "disk absent at start",
    "disk restored from an old snapshot",
    "slow flash bypassed by a read",
    "admin: grid disk created",
    "admin: grid disk dropped",
    "admin: grid disk grown",
    "admin: grid disk shrunk",
    "admin: caching changed",
    "admin: flash cache created",
    "admin: flash cache dropped",
    "caches again once everything is healed",
];

/// What to print on standard output, and whether it went well.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Nothing was found that should not be, or everything that should be.
    pub good: bool,
}

/// A seed as a user names it: a decimal number, or a 40-digit hexadecimal commit hash, cut to its first 64 bits.
///
/// # Errors
/// What is wrong with it.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    if text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return u64::from_str_radix(&text[..16], 16).map_err(|e| format!("seed {text}: {e}"));
    }
    text.parse().map_err(|_| format!("seed {text}: neither a number nor a commit hash of 40 hexadecimal digits"))
}

/// A range of seeds as `A..B`, without B.
///
/// # Errors
/// What is wrong with it.
pub fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (low, high) = text.split_once("..").ok_or_else(|| format!("seeds {text}: a range is written A..B"))?;
    let range = parse_seed(low)?..parse_seed(high)?;
    if range.is_empty() { Err(format!("seeds {text}: the range is empty")) } else { Ok(range) }
}

fn complaint(report: &SeedReport) -> String {
    let mut text = String::new();
    if let Some(broken) = &report.broken {
        let _ = writeln!(text, "seed {}: {broken}", report.seed);
        if !report.log.is_empty() {
            let _ = writeln!(text, "last events:\n{}", report.log);
        }
        let _ = writeln!(text, "reproduce: flashcell sim --seed {}", report.seed);
    }
    text
}

/// Run one seed, with the last events when it fails.
#[must_use]
pub fn one(seed: u64) -> Answer {
    let report = run_seed(seed, None, 200);
    let mut text = complaint(&report);
    let _ = writeln!(
        text,
        "seed {seed}: {} operations, {} crashes, {} hits, trace {:016x} of {} events",
        report.operations, report.crashes, report.hits, report.trace_hash, report.trace_events
    );
    Answer { text, good: report.broken.is_none() }
}

/// Run a range of seeds on `threads` threads; `progress` is told how many are done.
///
/// The first failing seed ends it. A long range that misses a situation fails as well.
#[must_use]
pub fn range(seeds: Range<u64>, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Answer {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicBool::new(false);
    let total = Mutex::new((0_u64, 0_u64, 0_u64, Situations::new(), String::new()));
    if let Ok(total) = total.lock() {
        total.3.expect(SITUATIONS);
    }
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut report = run_seed(seed, None, 0);
                    if report.broken.is_some() {
                        failed.store(true, Ordering::Relaxed);
                        // Once more with a log: the same seed does the same.
                        report = run_seed(seed, None, 200);
                    }
                    let Ok(mut total) = total.lock() else { return };
                    total.0 += 1;
                    total.1 += report.operations;
                    total.2 += report.crashes;
                    total.3.merge(&report.situations);
                    total.4.push_str(&complaint(&report));
                    progress(total.0);
                }
            });
        }
    });
    let (seeds_run, operations, crashes, situations, complaints) =
        total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut text = situations.table();
    let per_seed = operations.checked_div(seeds_run).unwrap_or(0);
    let _ = writeln!(text, "{seeds_run} seeds, {operations} operations ({per_seed} a seed), {crashes} crashes");
    let mut good = complaints.is_empty();
    text.push_str(&complaints);
    let missed: Vec<&str> = SITUATIONS.iter().copied().filter(|name| situations.count(name) == 0).collect();
    if good && seeds.end - seeds.start >= SITUATION_SEEDS_MIN && !missed.is_empty() {
        let _ = writeln!(text, "situations never reached: {}", missed.join("; "));
        good = false;
    }
    Answer { text, good }
}

/// Run a seed twice: the traces must be the same to the last event.
#[must_use]
pub fn twice(seed: u64) -> Answer {
    let (a, b) = (run_seed(seed, None, 0), run_seed(seed, None, 0));
    let good = (a.trace_hash, a.trace_events) == (b.trace_hash, b.trace_events);
    let mut text = format!(
        "seed {seed}: traces {:016x} of {} events and {:016x} of {} events\n",
        a.trace_hash, a.trace_events, b.trace_hash, b.trace_events
    );
    text.push_str(if good { "identical\n" } else { "different: something is not decided by the seed\n" });
    Answer { text, good }
}

/// Run deliberately broken builds: one by name, or all. Good when each is caught.
///
/// # Errors
/// No broken build has that name.
pub fn canary(name: Option<&str>) -> Result<Answer, String> {
    let chosen: Vec<Sabotage> = Sabotage::ALL.into_iter().filter(|s| name.is_none_or(|n| n == s.name())).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = Sabotage::ALL.iter().map(|s| s.name()).collect();
        return Err(format!("no broken build is named {}\nhint: one of {}", name.unwrap_or(""), names.join(", ")));
    }
    let mut text = String::new();
    let mut good = true;
    for sabotage in chosen {
        let caught = (0..CANARY_SEEDS_MAX).find_map(|seed| {
            let report = run_seed(seed, Some(sabotage), 0);
            report.broken.map(|broken| (seed, broken))
        });
        match caught {
            Some((seed, broken)) => {
                let first = broken.lines().next().unwrap_or_default();
                let _ = writeln!(text, "{}: caught at seed {seed}: {first}", sabotage.name());
            }
            None => {
                let _ = writeln!(text, "{}: NOT caught in {CANARY_SEEDS_MAX} seeds", sabotage.name());
                good = false;
            }
        }
    }
    if good {
        text.push_str("caught\n");
    }
    Ok(Answer { text, good })
}
