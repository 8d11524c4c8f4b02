//! The simulator as a command: seeds, ranges of seeds, the same seed twice, broken builds, failing seeds made short.
//!
//! Text in, text out: prints nothing itself, reads no clock; who calls it passes how to tell of progress. An answer is
//! the same whatever the number of threads: reports are taken in the order of their seeds.

use crate::harness::{Canary, Case, OPERATIONS_MIN, SeedReport, ShrunkSeed, run_seed, shrink_seed};
use crate::situations::Situations;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Seeds a broken build gets before it counts as missed: the rarest to show, `dirty-death-too-early`, does so in about one of a thousand (one in
/// 0..1400 on 2026-11-26; tests of the flash cache show it at once).
pub const CANARY_SEEDS_MAX: u64 = 4_000;
/// Failing seeds told of with their first line; how many more there were is told as well.
pub const FAILURES_TOLD_MAX: usize = 50;
/// Runs that making a failing seed short may take: a run takes a fraction of a second, so a minute or two.
pub const SHRINK_RUNS_MAX: usize = 600;
/// Reports that wait for one of an earlier seed: enough that threads hardly ever wait for the slowest seed.
const AHEAD_MAX: usize = 256;
/// Events kept of a failing run, unless told otherwise.
pub const LOG_EVENTS: usize = 200;
/// Ranges of at least this many seeds must reach every situation of [`SITUATIONS`].
pub const SITUATION_SEEDS_MIN: u64 = 200;

/// What a range of some hundred seeds must reach, or the simulator has stopped looking where it should.
pub const SITUATIONS: &[&str] = &[
    "power cut",
    "power cut of one device alone",
    "disk: power cut in the middle of a flush",
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
    "fill refused: endurance budget low",
    "block evicted",
    "block written again at reclaim",
    "cached copy ended by a write",
    "disk: failed flush drops the cache",
    "disk: what a failed flush drops goes on being read",
    "disk: failed durable write drops the cache",
    "no room below a flash device",
    "no room below a disk",
    "the wall clock is set forward",
    "the wall clock is set back",
    "rot of cached data",
    "rot caught by a checksum",
    "rot of the first page of a segment",
    "segment known by its footer alone",
    "index checkpoint used",
    "index checkpoint not believed: rebuilt from the log",
    "index rebuilt from the log after a crash",
    "entry found again by an index checkpoint",
    "dirty part found again by an index checkpoint",
    "rot of an index checkpoint",
    "recovery goes on in a segment without a footer",
    "suspect block compared: good",
    "suspect block compared: stale",
    "region settled",
    "segment reclaimed",
    "segment cleaned for its garbage",
    "dirty part copied by cleaning",
    "part written dirty",
    "dirty part overwritten before it was destaged",
    "dirty part destaged",
    "dirty part found again after a restart",
    "dirty part torn by a power cut",
    "write-back refused: no room",
    "dirty part read from its mirror",
    "flash with dirty data fails while serving: its mirror goes on",
    "flash back or blank waits until what is dirty elsewhere is on the disks",
    "crash with dirty data",
    "grid disk goes offline while serving",
    "offered by a buffer cache: inserted",
    "offered by a buffer cache: exists",
    "offered by a buffer cache: not current",
    "offered by a buffer cache: writer overloaded",
    "offered by a buffer cache: not useful",
    "feed: written to flash",
    "feed: left out as prefetched",
    "ordered: batch that reaches the disk whole",
    "ordered: cut at a FLUSH of a client",
    "ordered: write taken while a batch is written to the journal",
    "ordered: grid disk whole, its writes go to the disk",
    "ordered: batch cut off in the journal",
    "ordered: batch cut off in place",
    "ordered: batch put in place at an opening",
    "ordered: stale state accepted without the flash",
    "ordered: stale state refused",
    "ordered: all of a disk without its flash is of one moment",
    "ordered: that moment is older than what was acknowledged",
    "admin: flushed",
    "fill of KEEP data",
    "KEEP data goes with others: its share is full",
    "KEEP data unused for long ages",
    "KEEP data is none any more",
    "KEEP data written again at reclaim",
    "segment joins the KEEP data as it is",
    "room made among KEEP data",
    "KEEP data left for want of room",
    "block of a NONE range freed",
    "admin: range pinned: keep",
    "admin: range pinned: none",
    "admin: range un-pinned",
    "admin: range pinned: default",
    "pinned ranges found again after a restart",
    "admin: I/O plan that delays",
    "admin: I/O plan that delays nobody",
    "I/O plan found again after a restart",
    "I/O plan: read past the cache",
    "I/O plan: write past the cache",
    "I/O plan: a database has waited",
    "redo: flash skipped: by the I/O plan",
    "ghost hit: a block comes back soon after it left",
    "flash vanished while serving",
    "flash expelled while serving",
    "write acknowledged after flash was expelled while serving",
    "flash absent at start",
    "flash back after an absence",
    "flash blank at start",
    "flash with bad sectors at a start",
    "flash devices change places",
    "flash restored from an old snapshot",
    "disk vanished while serving",
    "disk absent at start",
    "disk restored from an old snapshot",
    "slow flash bypassed by a read",
    "hit sent to the disk: flash busy",
    "fill declined: flash busy",
    "admin: grid disk created",
    "admin: grid disk dropped",
    "admin: grid disk grown",
    "admin: grid disk shrunk",
    "admin: caching changed",
    "admin: flash cache created",
    "admin: flash cache dropped",
    "members: flash joins a running cache",
    "members: flash leaves a running cache",
    "members: flash leaves in whose place another comes",
    "members: flash that has failed leaves",
    "members: flash that is missing leaves",
    "members: flash that had left joins again",
    "members: one flash device becomes two in write-back",
    "members: two flash devices become one in write-back",
    "members: a blank flash device takes the place of one that is gone",
    "members: hot block brought back to new flash",
    "members: hot block of an earlier life brought back to empty flash",
    "early: served before the index is whole",
    "early: written before the index is whole",
    "early: the index has become whole",
    "early: crash before the index is whole",
    "far: host connected",
    "far: nothing passes between a host and the cell",
    "far: request under way while its host connects again",
    "far: host died",
    "far: what a dead host left un-flushed is made durable",
    "far: what a dead host left un-flushed is told lost",
    "cell disk has grown at an opening",
    "cell disk has grown while serving",
    "members: a change is cancelled",
    "members: crash in a change: the old members",
    "members: crash in a change: the new members",
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

/// Told of progress, a line each time.
pub type Talk<'a> = &'a (dyn Fn(&str) + Sync);

/// The command that runs a case again.
fn again(case: Case) -> String {
    let broken = case.sabotage.map_or_else(String::new, |sabotage| format!(" --canary {}", sabotage.name()));
    let long =
        if case.operations == OPERATIONS_MIN { String::new() } else { format!(" --operations {}", case.operations) };
    format!("flashcell sim{broken} --seed {}{long}", case.seed)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn complaint(report: &SeedReport, case: Case) -> String {
    let mut text = String::new();
    if let Some(broken) = &report.broken {
        let _ = writeln!(text, "seed {}: {broken}", report.seed);
        if !report.log.is_empty() {
            let _ = writeln!(text, "last events:\n{}", report.log);
        }
        let again = again(case);
        let _ = writeln!(text, "hint: `{again} --shrink` finds a short list of steps that fails the same way");
        let _ = writeln!(text, "reproduce: {again}");
    }
    text
}

/// Run one case, with the last `events` when it fails.
#[must_use]
pub fn one(case: Case, events: usize) -> Answer {
    let report = run_seed(case, events);
    let mut text = complaint(&report, case);
    let _ = writeln!(
        text,
        "seed {}: {} operations, {} crashes, {} hits, trace {:016x} of {} events",
        report.seed, report.operations, report.crashes, report.hits, report.trace_hash, report.trace_events
    );
    Answer { text, good: report.broken.is_none() }
}

/// Run one case and, when it fails, look for a short list of steps that breaks the same promise.
#[must_use]
pub fn shrink(case: Case, events: usize, talk: Talk<'_>) -> Answer {
    let Some(short) = shrink_seed(case, SHRINK_RUNS_MAX, events, talk) else {
        let answer = one(case, events);
        return Answer { text: format!("{}nothing to make short: no promise is broken\n", answer.text), ..answer };
    };
    Answer { text: tell_short(case, &short), good: false }
}

fn tell_short(case: Case, short: &ShrunkSeed) -> String {
    let mut text = format!("seed {}: {}\n", case.seed, short.broken);
    let _ = writeln!(text, "last events of the short run:\n{}", short.log);
    let _ = writeln!(text, "machine and cell:");
    short.setup.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    if short.steps.is_empty() {
        let _ = writeln!(text, "no step is needed: it happens in the closing part of every run");
    } else {
        let _ = writeln!(text, "{} of {} steps are enough:", short.steps.len(), short.steps_before);
    }
    for (n, step) in short.steps.iter().enumerate() {
        let _ = writeln!(text, "{:5}  {step}", n + 1);
    }
    let minimal = if short.minimal { "none of them can be left out" } else { "not yet minimal: out of runs" };
    let _ = writeln!(text, "found in {} runs; {minimal}", short.runs);
    let _ = writeln!(text, "reproduce: {} --shrink", again(case));
    text
}

/// Reports on their way from threads, in any order, to one taker, in the order of their seeds.
struct Queue<T> {
    /// The next seed to run.
    next: u64,
    /// The next seed to be taken.
    turn: u64,
    waiting: BTreeMap<u64, SeedReport>,
    over: bool,
    taker: T,
}

fn held<T>(queue: &Mutex<Queue<T>>) -> MutexGuard<'_, Queue<T>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Run `seeds` on `threads` threads; `taker` gets the reports in the order of the seeds until it breaks off.
fn in_order<T>(seeds: &Range<u64>, threads: usize, run: impl Fn(u64) -> SeedReport + Sync, taker: T) -> T
where
    T: FnMut(SeedReport) -> ControlFlow<()> + Send,
{
    let start = seeds.start;
    let queue = Mutex::new(Queue { next: start, turn: start, waiting: BTreeMap::new(), over: false, taker });
    let moved = Condvar::new();
    let work = || {
        loop {
            let seed = {
                let mut queue = held(&queue);
                while !queue.over && queue.next < seeds.end && (queue.next - queue.turn) as usize >= AHEAD_MAX {
                    queue = moved.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                if queue.over || queue.next >= seeds.end {
                    return;
                }
                queue.next += 1;
                queue.next - 1
            };
            let report = run(seed);
            let mut queue = held(&queue);
            queue.waiting.insert(seed, report);
            while !queue.over {
                let turn = queue.turn;
                let Some(report) = queue.waiting.remove(&turn) else { break };
                queue.turn += 1;
                queue.over = (queue.taker)(report).is_break();
            }
            moved.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    queue.into_inner().unwrap_or_else(PoisonError::into_inner).taker
}

/// Run a range of seeds on `threads` threads. The lowest failing seed ends it, or, to `keep_going`, each is listed.
///
/// Plans have `operations_min` client operations at least. A long range that misses a situation fails as well. `hashes` receives a
/// line `SEED HASH EVENTS` for each seed: a change that should change nothing leaves all of them as they were.
#[must_use]
pub fn range(
    seeds: Range<u64>,
    operations_min: u64,
    threads: usize,
    keep_going: bool,
    hashes: &mut String,
    talk: Talk<'_>,
) -> Answer {
    let case = |seed| Case { operations: operations_min, ..Case::of_seed(seed) };
    let situations = Situations::new();
    situations.expect(SITUATIONS);
    let (mut seeds_run, mut operations, mut crashes) = (0_u64, 0_u64, 0_u64);
    let mut failed = Vec::new();
    let mut failed_count = 0_u64;
    let taker = |report: SeedReport| {
        seeds_run += 1;
        operations += report.operations;
        crashes += report.crashes;
        situations.merge(&report.situations);
        let _ = writeln!(hashes, "{} {:016x} {}", report.seed, report.trace_hash, report.trace_events);
        if seeds_run.is_multiple_of(100) {
            talk(&format!("{seeds_run} seeds, {failed_count} failed"));
        }
        let Some(broken) = report.broken else { return ControlFlow::Continue(()) };
        failed_count += 1;
        talk(&format!("seed {}: {}", report.seed, first_line(&broken)));
        if failed.len() < FAILURES_TOLD_MAX {
            failed.push((report.seed, first_line(&broken).to_owned()));
        }
        if keep_going { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let _taker = in_order(&seeds, threads, |seed| run_seed(case(seed), 0), taker);
    let mut text = situations.table();
    let per_seed = operations.checked_div(seeds_run).unwrap_or(0);
    let _ = writeln!(text, "{seeds_run} seeds, {operations} operations ({per_seed} a seed), {crashes} crashes");
    if !keep_going && let Some(&(seed, _)) = failed.first() {
        // Once more with a log: the same seed does the same.
        text.push_str(&complaint(&run_seed(case(seed), LOG_EVENTS), case(seed)));
    } else if failed_count > 0 {
        text.push_str(&tell_failed(&failed, failed_count, case));
    }
    let missed: Vec<&str> = SITUATIONS.iter().copied().filter(|name| situations.count(name) == 0).collect();
    let missing = seeds_run >= SITUATION_SEEDS_MIN && failed_count == 0 && !missed.is_empty();
    if missing {
        let _ = writeln!(text, "situations never reached: {}", missed.join("; "));
    }
    Answer { text, good: failed_count == 0 && !missing }
}

/// Every failing seed with its first line, and how to run the first again.
fn tell_failed(failed: &[(u64, String)], failed_count: u64, case: impl Fn(u64) -> Case) -> String {
    let mut text = String::new();
    for (seed, line) in failed {
        let _ = writeln!(text, "seed {seed}: {line}\n  reproduce: {}", again(case(*seed)));
    }
    if failed_count > failed.len() as u64 {
        let _ = writeln!(text, "and {} more", failed_count - failed.len() as u64);
    }
    let _ = writeln!(text, "{failed_count} seeds failed");
    if let Some((seed, _)) = failed.first() {
        let again = again(case(*seed));
        let _ = writeln!(text, "hint: `{again} --shrink` finds a short list of steps that fails the same way");
        let _ = writeln!(text, "reproduce: {again}");
    }
    text
}

/// Run a seed twice: the traces must be the same to the last event.
#[must_use]
pub fn twice(seed: u64) -> Answer {
    let (a, b) = (run_seed(Case::of_seed(seed), 0), run_seed(Case::of_seed(seed), 0));
    let good = (a.trace_hash, a.trace_events) == (b.trace_hash, b.trace_events);
    let mut text = format!(
        "seed {seed}: traces {:016x} of {} events and {:016x} of {} events\n",
        a.trace_hash, a.trace_events, b.trace_hash, b.trace_events
    );
    text.push_str(if good { "identical\n" } else { "different: something is not decided by the seed\n" });
    Answer { text, good }
}

/// A deliberately broken build by its name.
///
/// # Errors
/// None has that name.
pub fn parse_canary(name: &str) -> Result<Canary, String> {
    Canary::all().into_iter().find(|s| s.name() == name).ok_or_else(|| {
        let names: Vec<&str> = Canary::all().into_iter().map(Canary::name).collect();
        format!("no broken build is named {name}\nhint: one of {}", names.join(", "))
    })
}

/// Every deliberately broken build that some hundreds of seeds show. That of the labels takes two copies that are lost between two openings, one of
/// which forgets: on one head seed 197 showed it, on another 630, on a third none of 1,000. `labels.rs` of celldisk's tests catches it at once; by its name it is run
/// here too.
#[must_use]
pub fn canaries() -> Vec<Canary> {
    Canary::all().into_iter().filter(|canary| !matches!(canary, Canary::Disk(_))).collect()
}

/// Run deliberately broken builds, one after the other, each on `threads` threads until its lowest failing seed is known.
/// Good when each is caught.
#[must_use]
pub fn canary(chosen: &[Canary], threads: usize, talk: Talk<'_>) -> Answer {
    let mut text = String::new();
    let mut good = true;
    for &sabotage in chosen {
        let mut caught = None;
        let taker = |report: SeedReport| {
            let seed = report.seed;
            caught = report.broken.map(|broken| (seed, broken));
            if caught.is_none() && (seed + 1).is_multiple_of(50) {
                talk(&format!("{}: not caught in {} seeds yet", sabotage.name(), seed + 1));
            }
            if caught.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let _taker = in_order(
            &(0..CANARY_SEEDS_MAX),
            threads,
            |seed| run_seed(Case { sabotage: Some(sabotage), ..Case::of_seed(seed) }, 0),
            taker,
        );
        match caught {
            Some((seed, broken)) => {
                let _ = writeln!(text, "{}: caught at seed {seed}: {}", sabotage.name(), first_line(&broken));
                talk(&format!("{}: caught at seed {seed}", sabotage.name()));
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
    Answer { text, good }
}

#[cfg(test)]
mod tests {
    use super::{FAILURES_TOLD_MAX, in_order, parse_canary, parse_range, parse_seed, tell_failed};
    use crate::harness::SeedReport;
    use std::ops::ControlFlow;

    fn report(seed: u64, broken: bool) -> SeedReport {
        SeedReport {
            seed,
            operations: 1,
            crashes: 0,
            hits: 0,
            trace_hash: 0,
            trace_events: 0,
            situations: crate::Situations::new(),
            broken: broken.then(|| "I2 broken: stale".to_owned()),
            log: String::new(),
        }
    }

    #[test]
    fn the_lowest_failing_seed_is_the_answer_whichever_thread_is_first() {
        let run = |seed: u64| {
            if seed == 5 {
                // Seed 6 fails as well, and is done long before.
                std::thread::park_timeout(std::time::Duration::from_millis(50));
            }
            report(seed, seed == 5 || seed == 6)
        };
        let mut taken = Vec::new();
        let taker = |report: SeedReport| {
            taken.push(report.seed);
            if report.broken.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let _taker = in_order(&(2..100_000), 4, run, taker);
        assert_eq!(taken, [2, 3, 4, 5]);
    }

    #[test]
    fn every_seed_is_taken_once_and_in_order() {
        let mut taken = Vec::new();
        let taker = |report: SeedReport| {
            taken.push(report.seed);
            ControlFlow::Continue(())
        };
        let _taker = in_order(&(10..1_500), 3, |seed| report(seed, false), taker);
        assert_eq!(taken, (10..1_500).collect::<Vec<_>>());
    }

    #[test]
    fn a_long_list_of_failures_tells_how_many_more_there_are() {
        let failed: Vec<(u64, String)> =
            (0..FAILURES_TOLD_MAX as u64).map(|n| (n + 7, "I1 broken: lost".into())).collect();
        let text = tell_failed(&failed, 61, crate::harness::Case::of_seed);
        assert!(text.starts_with("seed 7: I1 broken: lost\n  reproduce: flashcell sim --seed 7\n"), "{text}");
        assert!(text.contains("\nand 11 more\n61 seeds failed\n"), "{text}");
        assert!(text.ends_with("reproduce: flashcell sim --seed 7\n"), "{text}");
    }

    #[test]
    fn seeds_ranges_and_names_are_read_or_refused() {
        assert_eq!(parse_seed("42"), Ok(42));
        assert_eq!(parse_seed("00000000000000ff000000000000000000000000"), Ok(255));
        assert!(parse_seed("4x").is_err() && parse_seed("").is_err());
        assert_eq!(parse_range("3..9"), Ok(3..9));
        assert!(parse_range("9..3").is_err() && parse_range("9").is_err());
        assert!(parse_canary("flush-not-waiting").is_ok());
        assert!(parse_canary("flush").is_err_and(|e| e.contains("hint: one of")));
    }
}
