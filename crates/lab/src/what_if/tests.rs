//! Goal: the answer is repeatable, its figures are in the order they must be in, and the advice is what the workload asks for. Method: small
//! traces whose answer is known, in virtual time.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::workload::tests::workload;
use super::*;
use advice::{Facts, Verdict, advise};
use device::Prng;
use std::fmt::Write as _;

/// Requests of a trace: device, verb, offset.
fn text(requests: impl Iterator<Item = (&'static str, &'static str, u64)>) -> String {
    let mut text = String::new();
    for (n, (device, verb, offset)) in requests.enumerate() {
        let _ = writeln!(text, "{},{device},,{verb},{offset},8192", 1_000_000 * n);
    }
    text
}

fn setting() -> Setting {
    Setting {
        seed: 1,
        disk: DeviceModel::find("fixed:8ms:4").unwrap(),
        flash: DeviceModel::find("fixed:200us:32").unwrap(),
        block_bytes: 16384,
        segment_bytes: None,
        pace: Pace { sessions: 8, speed_milli: None, open: false },
        way_ns: 26_000,
        warm: false,
    }
}

/// Runs of a trace with a cache of so many bytes, and the lines of the advice: device, range, verdict.
fn advised(trace: &str, flash_bytes: u64) -> (Vec<Run>, Vec<(String, bool, Verdict)>) {
    let Ok(mut workload) = workload(trace) else { unreachable!("it is a trace") };
    let calls = Arc::new(std::mem::take(&mut workload.calls));
    let mode = CachingMode::WriteThrough;
    let placements = [Placement::Disk, Placement::Cached { mode, flash_bytes }, Placement::Flash];
    let Ok(runs) = foretell(&setting(), &workload, &calls, &placements) else { unreachable!("it runs") };
    let Ok(prices) = Prices::read("2011") else { unreachable!("it is shipped") };
    let facts = Facts {
        workload: &workload,
        runs: &runs,
        prices: &prices,
        disk: prices.disk(&["sas-15k"]),
        flash: prices.flash(&["pcie-flash"]),
        drive_bytes: 0,
        years: vec![Some(5.0); runs.len()],
        seconds: 10.0,
    };
    let lines = advise(&facts).lines.into_iter().map(|line| (line.device, line.range.is_some(), line.verdict));
    let lines = lines.collect();
    (runs, lines)
}

const PAGE: u64 = 8192;

#[test]
fn a_cache_is_between_disk_and_flash_and_the_same_twice() {
    let mut prng = Prng::new(1);
    let requests = (0..4000).map(|_| ("a", if prng.below(4) == 0 { "write" } else { "read" }, prng.below(500) * PAGE));
    let trace = text(requests.collect::<Vec<_>>().into_iter());
    let (runs, lines) = advised(&trace, 32 << 20);
    let [disk, cached, flash] = &runs[..] else { unreachable!("three are run") };
    assert!(disk.tally.elapsed_ns > cached.tally.elapsed_ns && cached.tally.elapsed_ns > flash.tally.elapsed_ns);
    assert!(cached.hit_ppm().is_some_and(|ppm| ppm > 700_000) && disk.hit_ppm().is_none());
    assert!(cached.counts.flash_bytes > 1000 * PAGE, "fills and writes go to flash");
    assert_eq!(lines.len(), 1);
    assert!(advised(&trace, 32 << 20).0 == runs, "the same seed gives the same figures");
}

#[test]
fn what_is_read_once_is_left_and_what_comes_again_is_cached() {
    let mut prng = Prng::new(2);
    // One device is read from end to end in jumps, never twice; of the other 4 MiB are read all the time; a third is hardly used.
    let requests = (0..6000_u64).map(|n| match n % 4 {
        0 => ("once", "read", (n * 7919) % 6007 * 16384),
        _ if n % 1000 == 1 => ("idle", "read", n * PAGE),
        _ => ("again", "read", prng.below(512) * PAGE),
    });
    let (_, lines) = advised(&text(requests.collect::<Vec<_>>().into_iter()), 64 << 20);
    let verdict = |name: &str| lines.iter().find(|(device, range, _)| device == name && !range).map(|line| line.2);
    assert_eq!(verdict("idle"), Some(Verdict::Leave));
    assert_eq!(verdict("again"), Some(Verdict::Cache));
    assert!(matches!(verdict("once"), Some(Verdict::Leave | Verdict::Flash)), "a cache gives it nothing: {lines:?}");
}

#[test]
fn redo_is_not_for_a_cache() {
    let requests =
        (0..3000_u64).map(|n| if n % 3 == 0 { ("data", "read", n % 600 * PAGE) } else { ("redo", "write", n * PAGE) });
    // In order: each write begins where the one before it ended.
    let requests = requests.scan(0, |end, (device, verb, offset)| {
        let at = if device == "redo" { std::mem::replace(end, *end + PAGE) } else { offset };
        Some((device, verb, at))
    });
    let (_, lines) = advised(&text(requests), 32 << 20);
    let redo = lines.iter().find(|(device, ..)| device == "redo");
    assert_eq!(redo.map(|line| line.2), Some(Verdict::Leave));
}

#[test]
fn a_hot_range_is_found() {
    let mut prng = Prng::new(3);
    // Half of the reads are of 2 MiB at 64 MiB, the others of 256 MiB.
    let requests = (0..6000).map(|_| {
        let hot = prng.below(2) == 0;
        ("a", "read", if hot { (64 << 20) + prng.below(256) * PAGE } else { prng.below(32768) * PAGE })
    });
    let trace = text(requests.collect::<Vec<_>>().into_iter());
    let Ok(found) = workload(&trace) else { unreachable!("it is a trace") };
    let hottest =
        found.devices[0].parts.iter().enumerate().max_by_key(|(_, part)| part.requests).map(|(n, _)| n as u64);
    assert!(hottest.is_some_and(|n| (64..66).contains(&((n * found.devices[0].part_bytes) >> 20))));
}

#[test]
fn an_open_loop_takes_as_long_as_the_trace_and_counts_waiting() {
    let requests = (0..500_u64).map(|n| ("a", "read", n % 50 * PAGE));
    let Ok(mut workload) = workload(&text(requests)) else { unreachable!("it is a trace") };
    let calls = Arc::new(std::mem::take(&mut workload.calls));
    let at = |open, speed_milli| {
        let pace = Pace { sessions: 1, speed_milli: Some(speed_milli), open };
        let runs = foretell(&Setting { pace, ..setting() }, &workload, &calls, &[Placement::Disk]);
        let Ok(runs) = runs else { unreachable!("it runs") };
        (runs[0].tally.elapsed_ns / 1_000_000, runs[0].tally.reads.quantile_ns(990).unwrap_or(0) / 1_000_000)
    };
    // A request each 10 ms at a tenth of the speed, of 8 ms each.
    let (slow, waits) = at(true, 100);
    assert!((4990..5010).contains(&slow) && waits < 10, "{slow} ms, {waits} ms");
    // Each millisecond, of which the disk serves one in two: the queue grows to the end.
    let (fast, waits) = at(true, 1000);
    assert!((1000..1100).contains(&fast) && waits > 400, "{fast} ms, {waits} ms");
    // One session waits for its answers, and waiting to ask does not count.
    let (closed, waits) = at(false, 1000);
    assert!((4000..4100).contains(&closed) && waits < 10, "{closed} ms, {waits} ms");
}

/// Goal: a drive whose inside is modelled is worn by what it programs, not by what is written to it. Method: the drive of S15 as a cache that is
/// overwritten again and again, and with everything on it.
#[test]
fn what_a_drive_programs_inside_is_counted() {
    let mut prng = Prng::new(4);
    let requests: Vec<_> = (0..60_000).map(|_| ("a", "write", prng.below(25_000) * PAGE)).collect();
    let Ok(mut workload) = workload(&text(requests.into_iter())) else { unreachable!("it is a trace") };
    let calls = Arc::new(std::mem::take(&mut workload.calls));
    let flash = DeviceModel::find("s15-drive").unwrap();
    let endurance = flash.endurance().copied().unwrap();
    let setting = Setting { flash, ..setting() };
    let mode = CachingMode::WriteBack;
    let cached = Placement::Cached { mode, flash_bytes: 256 << 20 };
    let placements = [cached, Placement::Flash];
    let Ok(runs) = foretell(&setting, &workload, &calls, &placements) else { unreachable!("it runs") };
    for run in &runs {
        let (written, programmed) = run.counts.inside;
        assert!(written > 20_000 && programmed >= written, "{:?}: {written} {programmed}", run.placement);
        let left = endurance.writable_bytes(1 << 30, Some(run.counts.inside));
        assert!(left <= endurance.writable_bytes(1 << 30, None), "{left}");
    }
    // At random on a drive that is nearly full of it makes it copy.
    let each = |run: &Run| run.counts.inside.1 as f64 / run.counts.inside.0 as f64;
    assert!(each(&runs[1]) > 1.02, "{} {}", each(&runs[0]), each(&runs[1]));
    // Without a model of the inside there is nothing to count.
    let Ok(plain) = foretell(&self::setting(), &workload, &calls, &placements[..1]) else { unreachable!("it runs") };
    assert_eq!(plain[0].counts.inside, (0, 0));
}

#[test]
fn devices_are_two_names_or_a_pair() {
    let names = |text: &str| text.parse::<Devices>().map(|d| (d.disk.name().to_owned(), d.flash.name().to_owned()));
    let both = |disk: &str, flash: &str| Ok((disk.to_owned(), flash.to_owned()));
    assert_eq!(names("sata-7200,pcie-flash"), both("sata-7200", "pcie-flash"));
    assert_eq!(names("fixed:2ms:8,x25-e"), both("fixed:2ms:8", "x25-e"));
    assert_eq!(names("exadata-v2-cell"), both("exadata-v2-disks", "exadata-v2-flash"));
    for (wrong, part) in [
        ("x25-e", "the disk first"),
        ("sata-7200,tape", "tape"),
        ("tape", "tape"),
        ("exadata-v2-cell,x25-e", "stands alone"),
        ("a.toml,x25-e", "a.toml"),
        ("sata-7200,x25-e,x25-e", "no device x25-e,x25-e"),
    ] {
        let said = names(wrong).unwrap_err();
        assert!(said.contains(part) && said.contains("hint: "), "{wrong}: {said}");
    }
}
