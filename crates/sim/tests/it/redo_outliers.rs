//! Goal: `FL_PREVENTED_OUTLIERS` and its neighbours say what really was (S1). Method: a disk with a volatile cache whose flushes
//! stall at known times, in virtual time; beside the flash log's counters, what the disk did is written down below it, and who
//! would have waited how long for the disk alone is worked out from that.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::layers::{FlushGate, Memory};
use device::sync::{lock, one_shot};
use device::{Buf, Bufs, Clock, Completion, Device, Geometry, Instant, Io, Op, Outcome, Prng, Spawn, World};
use flashlog::{LogConfig, LogReader, Mode, Owner, RedoDiskConfig, RingDevice, Skip};
use sim::plain::in_a_world;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: u64 = 1_000_000;
const OUTLIER: Duration = Duration::from_millis(500);
/// A flush that begins in the first so long of each period ends with it.
const STALL_NS: u64 = 1_500 * MS;
const PERIOD_NS: u64 = 5_000 * MS;
const FLUSH_NS: u64 = 300_000;
const RECORD_BYTES: u64 = 4096;
const LOG_BYTES: u64 = 64 << 20;

/// What the disk did: when the write of each offset was complete, and when each flush was issued and done.
#[derive(Default)]
struct Deeds {
    writes: Vec<(u64, Instant)>,
    flushes: Vec<(Instant, Instant)>,
}

struct Stalling {
    below: Device,
    clock: Arc<dyn Clock>,
    deeds: Arc<Mutex<Deeds>>,
}

impl Io for Stalling {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.below.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        let (below, clock, deeds) = (self.below.clone(), self.clock.clone(), self.deeds.clone());
        Completion::future(async move {
            let issued = clock.now();
            let at = match &op {
                Op::Write { offset, .. } => Some(*offset),
                _ => None,
            };
            let is_flush = matches!(op, Op::Flush);
            if is_flush {
                let into = issued.0 % PERIOD_NS;
                clock.sleep(Duration::from_nanos(STALL_NS.saturating_sub(into).max(FLUSH_NS))).await;
            } else {
                clock.sleep(Duration::from_micros(40)).await;
            }
            let done = below.submit(op).await;
            let mut deeds = lock(&deeds);
            deeds.writes.extend(at.map(|at| (at, clock.now())));
            if is_flush {
                deeds.flushes.push((issued, clock.now()));
            }
            done
        })
    }
}

/// One commit: its sync from when to when, and where it had written.
#[derive(Clone, Copy)]
struct Commit {
    begun: Instant,
    ended: Instant,
    offset: u64,
}

/// What the counters say (actual, prevented), what the disk's deeds say, and how many are too near the limit to call.
fn run(mode: Mode, sessions: u64, commits: u64) -> ((u64, u64), (u64, u64), u64) {
    in_a_world(async |process, world: World| {
        let deeds = Arc::new(Mutex::new(Deeds::default()));
        let stalling: Device =
            Arc::new(Stalling { below: Memory::new(LOG_BYTES), clock: world.clock.clone(), deeds: deeds.clone() });
        let owner = Owner { cell_id: 1, device_id: 1, log_id: 1 };
        let flash: Device = FlushGate::new(Memory::new(32 << 20), world.spawn.clone());
        let reader = LogReader::read(vec![RingDevice { device: flash, owner }], None).await;
        let config = LogConfig { outlier: OUTLIER, ..LogConfig::default() };
        let log = reader.begin(config, 1, &[0], |_, _| false, world.clone()).await;
        let redo = log.attach(RedoDiskConfig {
            id: 1,
            device: FlushGate::new(stalling, world.spawn.clone()),
            mode,
            barred: None,
            void: vec![false],
            is_flushed: true,
            counters: Arc::default(),
        });
        let all: Arc<Mutex<Vec<Commit>>> = Arc::default();
        let mut ends = Vec::new();
        for session in 0..sessions {
            let (sender, receiver) = one_shot();
            let (redo, clock, all): (Device, _, _) = (redo.clone(), world.clock.clone(), all.clone());
            let mut prng: Prng = world.prng.fork(&format!("session {session}"));
            process.spawn(Box::pin(async move {
                let data = Bufs::from(Buf::padded(&[7; RECORD_BYTES as usize], RECORD_BYTES as usize)).freeze();
                for n in 0..commits {
                    clock.sleep(Duration::from_nanos(MS + prng.below(20 * MS))).await;
                    let offset = (session * commits + n) * RECORD_BYTES % LOG_BYTES;
                    assert_eq!(redo.write(offset, data.clone(), false).await.outcome, Outcome::Done);
                    let begun = clock.now();
                    assert_eq!(redo.flush().await.outcome, Outcome::Done);
                    lock(&all).push(Commit { begun, ended: clock.now(), offset });
                }
                sender.send(());
            }));
            ends.push(receiver);
        }
        for end in ends {
            end.await.unwrap();
        }
        // The disk's side of the last ones.
        assert!(redo.settle().await);
        world.clock.sleep(Duration::from_secs(1)).await;
        let deeds = lock(&deeds);
        let limit = OUTLIER.as_nanos() as u64;
        let (mut actual, mut prevented, mut near) = (0, 0, 0);
        for commit in lock(&all).iter() {
            let written = deeds.writes.iter().find(|(at, _)| *at == commit.offset).unwrap().1;
            // The disk alone: the first flush issued once the write was there.
            let by_disk = deeds.flushes.iter().find(|(issued, _)| *issued >= written).unwrap().1.ns_since(commit.begun);
            let took = commit.ended.ns_since(commit.begun);
            near += u64::from(by_disk.abs_diff(limit) < 30 * MS);
            actual += u64::from(took > limit);
            prevented += u64::from(by_disk > limit && took <= limit);
        }
        let counted = (&redo.counters.actual_outliers, &redo.counters.prevented_outliers);
        let counted = (counted.0.get(), counted.1.get());
        let by_reason = Skip::ALL.iter().map(|why| redo.counters.skipped(*why)).sum::<u64>();
        let told = redo.counters.disk_first.get() + redo.counters.flash_first.get() + by_reason;
        assert_eq!(
            (redo.counters.redo_writes.get(), told),
            (sessions * commits, sessions * commits),
            "each commit counts once"
        );
        log.stop();
        (counted, (actual, prevented), near)
    })
}

#[test]
fn outliers_prevented_are_those_that_the_disk_alone_would_have_been() {
    for mode in [Mode::Race, Mode::Hedge, Mode::Auto] {
        let (counted, worked_out, near) = run(mode, 1, 4_000);
        // In mode auto the disk may have been asked up to 20 ms after the commit began.
        let near = if mode == Mode::Auto { near } else { 0 };
        let apart = counted.1.abs_diff(worked_out.1);
        assert!(counted.0 == worked_out.0 && apart <= near, "{mode:?}, one session: {counted:?} {worked_out:?} {near}");
        assert!(worked_out.1 > 100, "{worked_out:?}: something was prevented");
        assert_eq!(worked_out.0, 0, "and nothing was left to be felt");
        // Others' writes that are under way count for the disk's time: what is within a flush of the limit may differ.
        let (counted, worked_out, near) = run(mode, 8, 1_000);
        let apart = counted.1.abs_diff(worked_out.1);
        assert!(apart <= near, "{mode:?}, eight sessions: {counted:?} {worked_out:?}, {near} near the limit");
    }
}

#[test]
fn without_the_log_all_are_felt_and_none_is_prevented() {
    let (counted, worked_out, _) = run(Mode::Off, 1, 2_000);
    assert_eq!(worked_out.1, 0);
    assert!(worked_out.0 > 5, "{worked_out:?}");
    // They are skipped, not raced: counted as skip outliers.
    assert_eq!(counted, (0, 0));
}
