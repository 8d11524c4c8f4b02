//! Goal: on a volume whose writes take long, and not its flushes alone, commits take as long as flash does, and the disk has
//! them without delay all the same. Method: a volume and a flash device of fixed times, in virtual time.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::layers::{FlushGate, Memory};
use device::sync::one_shot;
use device::{Buf, Bufs, Clock, Completion, Device, Geometry, Io, Op, Outcome, SharedBufs, Spawn, World};
use flashlog::{LogConfig, LogReader, Mode, Owner, RedoDisk, RedoDiskConfig, RingDevice};
use sim::plain::in_a_world;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RECORD_BYTES: u64 = 8192;
const LOG_BYTES: u64 = 64 << 20;
const VOLUME: Times = Times { write: Duration::from_micros(1400), flush: Duration::from_micros(600) };
const FLASH: Times = Times { write: Duration::from_micros(60), flush: Duration::from_micros(90) };

/// How long a device takes.
#[derive(Clone, Copy)]
struct Times {
    write: Duration,
    flush: Duration,
}

/// What a device was asked, and whether it takes fifty times as long for now.
#[derive(Default)]
struct Asked {
    flushes: AtomicU64,
    durable_writes: AtomicU64,
    stalls: AtomicBool,
}

struct Timed {
    below: Device,
    clock: Arc<dyn Clock>,
    times: Times,
    asked: Arc<Asked>,
}

impl Io for Timed {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.below.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        let (below, clock, times) = (self.below.clone(), self.clock.clone(), self.times);
        let asked = &self.asked;
        asked.flushes.fetch_add(u64::from(matches!(op, Op::Flush)), Ordering::Relaxed);
        asked.durable_writes.fetch_add(u64::from(matches!(op, Op::Write { fua: true, .. })), Ordering::Relaxed);
        let slower = if asked.stalls.load(Ordering::Relaxed) { 50 } else { 1 };
        Completion::future(async move {
            let time = match &op {
                Op::Flush => times.flush,
                Op::Write { fua: true, .. } => times.write + times.flush,
                _ => times.write,
            };
            clock.sleep(time * slower).await;
            below.submit(op).await
        })
    }
}

async fn redo_disk(mode: Mode, world: &World) -> Arc<RedoDisk> {
    watched_redo_disk(mode, world, [Arc::default(), Arc::default()]).await
}

/// With what volume and flash are asked.
async fn watched_redo_disk(mode: Mode, world: &World, asked: [Arc<Asked>; 2]) -> Arc<RedoDisk> {
    redo_disk_on(VOLUME, mode, world, asked).await
}

async fn redo_disk_on(volume: Times, mode: Mode, world: &World, asked: [Arc<Asked>; 2]) -> Arc<RedoDisk> {
    let [of_volume, of_flash] = asked;
    let timed = |bytes, times, asked| -> Device {
        let below: Device = Arc::new(Timed { below: Memory::new(bytes), clock: world.clock.clone(), times, asked });
        FlushGate::new(below, world.spawn.clone())
    };
    let owner = Owner { cell_id: 1, device_id: 1, log_id: 1 };
    let reader = LogReader::read(vec![RingDevice { device: timed(32 << 20, FLASH, of_flash), owner }], None).await;
    let log = reader.begin(LogConfig::default(), 1, &[0], |_, _| false, world.clone()).await;
    log.attach(RedoDiskConfig {
        id: 1,
        device: timed(LOG_BYTES, volume, of_volume),
        mode,
        barred: None,
        void: vec![false],
        is_flushed: true,
        counters: Arc::default(),
    })
}

fn record() -> SharedBufs {
    Bufs::from(Buf::padded(&[7; RECORD_BYTES as usize], RECORD_BYTES as usize)).freeze()
}

/// A write and the sync of it.
async fn commit(device: &Device, offset: u64, data: &SharedBufs) {
    assert_eq!(device.write(offset, data.clone(), false).await.outcome, Outcome::Done);
    assert_eq!(device.flush().await.outcome, Outcome::Done);
}

/// So many commits, one after another, with pauses; how long the mean one of the second half took.
async fn commits(redo: &Arc<RedoDisk>, count: u64, pause: Duration, world: &World) -> Duration {
    let device: Device = redo.clone();
    let data = record();
    let mut took_ns = 0;
    for n in 0..count {
        world.clock.sleep(pause).await;
        let begun = world.clock.now();
        let offset = n * RECORD_BYTES % LOG_BYTES;
        commit(&device, offset, &data).await;
        took_ns += if n >= count / 2 { world.clock.now().ns_since(begun) } else { 0 };
    }
    Duration::from_nanos(took_ns / count.div_ceil(2))
}

/// With what volume and flash are asked, after commits enough to know how long both take.
async fn taught_redo_disk(mode: Mode, world: &World) -> (Arc<RedoDisk>, [Arc<Asked>; 2]) {
    let asked = [Arc::<Asked>::default(), Arc::default()];
    let redo = watched_redo_disk(mode, world, asked.clone()).await;
    commits(&redo, 500, Duration::ZERO, world).await;
    (redo, asked)
}

#[test]
fn commits_on_a_slow_volume_take_as_long_as_flash_does() {
    let mean = |mode| {
        in_a_world(async |_, world: World| {
            let redo = redo_disk(mode, &world).await;
            commits(&redo, 1000, Duration::ZERO, &world).await
        })
    };
    let (volume, flash) = (VOLUME.write + VOLUME.flush, FLASH.write + FLASH.flush);
    for mode in [Mode::Off, Mode::Hedge] {
        let mean = mean(mode);
        assert!(mean >= volume.mul_f64(0.98) && mean <= volume.mul_f64(1.02), "{}: {mean:?}", mode.name());
    }
    for mode in [Mode::Auto, Mode::Race, Mode::Flash] {
        let mean = mean(mode);
        assert!(mean <= flash.mul_f64(1.1), "{}: {mean:?}", mode.name());
    }
}

/// A volume whose writes are on its medium when they end, and that says otherwise: its flushes take nothing, and a commit takes as long as its
/// write. One session, as a database's log writer is.
#[test]
fn commits_on_a_volume_whose_flushes_take_nothing_take_as_long_as_flash_does() {
    let volume = Times { write: Duration::from_millis(2), flush: Duration::from_micros(1) };
    let mean = |mode, pause| {
        in_a_world(async |_, world: World| {
            let redo = redo_disk_on(volume, mode, &world, [Arc::default(), Arc::default()]).await;
            commits(&redo, 1000, pause, &world).await
        })
    };
    let flash = FLASH.write + FLASH.flush;
    for pause in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(5)] {
        let auto = mean(Mode::Auto, pause);
        assert!(auto <= flash.mul_f64(1.2), "{pause:?}: {auto:?}");
        assert!(mean(Mode::Hedge, pause) >= volume.write.mul_f64(0.98), "{pause:?}");
    }
}

/// Flash is asked at once and the disk for many commits together, in mode auto; in mode race for each.
#[test]
fn in_mode_auto_a_flush_of_the_disk_serves_many_commits() {
    let flushes = |mode| {
        in_a_world(async |_, world: World| {
            let (redo, asked) = taught_redo_disk(mode, &world).await;
            let (begun, before) = (world.clock.now(), asked[0].flushes.load(Ordering::Relaxed));
            commits(&redo, 2000, Duration::ZERO, &world).await;
            let took_ms = world.clock.now().ns_since(begun) / 1_000_000;
            assert!(redo.counters.flash_first.get() > 2300, "flash answers");
            (asked[0].flushes.load(Ordering::Relaxed) - before, took_ms)
        })
    };
    let (auto, auto_ms) = flushes(Mode::Auto);
    assert!(auto >= auto_ms / 30 && auto <= auto_ms / 15, "one in 20 ms: {auto} in {auto_ms} ms");
    let (race, race_ms) = flushes(Mode::Race);
    assert!(race >= race_ms, "one after the other: {race} in {race_ms} ms");
}

/// The same of several sessions, where a sync waits for the batches of others.
#[test]
fn in_mode_auto_a_flush_of_the_disk_serves_the_commits_of_many_sessions() {
    in_a_world(async |process, world: World| {
        let asked = [Arc::<Asked>::default(), Arc::default()];
        let redo = watched_redo_disk(Mode::Auto, &world, asked.clone()).await;
        commits(&redo, 300, Duration::ZERO, &world).await;
        let mut figures = Vec::new();
        for round in 0..2 {
            let (begun, before) = (world.clock.now(), asked[0].flushes.load(Ordering::Relaxed));
            let mut ends = Vec::new();
            for session in 0..8_u64 {
                let (sender, receiver) = one_shot();
                let (redo, world): (Device, _) = (redo.clone(), world.clone());
                let mut prng = world.prng.fork(&format!("session {session} of {round}"));
                process.spawn(Box::pin(async move {
                    let data = record();
                    for n in 0..500 {
                        world.clock.sleep(Duration::from_nanos(prng.below(400_000))).await;
                        commit(&redo, (session * 500 + n) * RECORD_BYTES, &data).await;
                    }
                    sender.send(());
                }));
                ends.push(receiver);
            }
            for end in ends {
                end.await.unwrap();
            }
            let took_ms = world.clock.now().ns_since(begun) / 1_000_000;
            figures.push((asked[0].flushes.load(Ordering::Relaxed) - before, took_ms));
        }
        // The first round has taught it how long they wait.
        let (flushes, took_ms) = figures[1];
        assert!(flushes <= took_ms / 8, "{figures:?}: for each commit it would be one in a millisecond");
        assert_eq!(redo.counters.prevented_outliers.get(), 0);
    });
}

/// A stall of the disk after which nobody commits: what was written meanwhile is flushed as it lands, and no time is counted that the disk
/// did not take.
#[test]
fn what_a_stall_of_the_disk_leaves_is_flushed_without_delay() {
    in_a_world(async |_, world: World| {
        let (redo, asked) = taught_redo_disk(Mode::Auto, &world).await;
        // Each write takes 70 ms, each flush 30 ms.
        asked[0].stalls.store(true, Ordering::Relaxed);
        commits(&redo, 400, Duration::ZERO, &world).await;
        asked[0].stalls.store(false, Ordering::Relaxed);
        world.clock.sleep(Duration::from_millis(250)).await;
        assert!(redo.is_settled(), "a second later it would be by itself");
        assert_eq!(redo.counters.prevented_outliers.get(), 0, "nothing took half a second");
    });
}

/// The disk is the hedge where flash is asked first: a stall of flash costs no more than its usual time and the disk's.
#[test]
fn in_mode_auto_the_disk_answers_where_flash_stalls() {
    in_a_world(async |_, world: World| {
        let (redo, asked) = taught_redo_disk(Mode::Auto, &world).await;
        let device: Device = redo.clone();
        let data = record();
        for n in 0..20 {
            // The disk has just been asked for the one before.
            commits(&redo, 100, Duration::ZERO, &world).await;
            asked[1].stalls.store(true, Ordering::Relaxed);
            let begun = world.clock.now();
            commit(&device, LOG_BYTES / 2 + n * RECORD_BYTES, &data).await;
            let took = Duration::from_nanos(world.clock.now().ns_since(begun));
            asked[1].stalls.store(false, Ordering::Relaxed);
            // A flush that is under way when this one is asked for does not count for it.
            let most = VOLUME.write + 2 * VOLUME.flush + 3 * (FLASH.write + FLASH.flush);
            assert!(took > VOLUME.write && took <= most, "{took:?} of {most:?}, flash alone takes longer");
        }
    });
}

/// Where a sync has followed each write flash makes the next durable as it takes it; where several are synced together it does not.
#[test]
fn a_write_that_a_sync_is_to_follow_is_durable_at_once() {
    in_a_world(async |_, world: World| {
        let asked = [Arc::<Asked>::default(), Arc::default()];
        let redo = watched_redo_disk(Mode::Auto, &world, asked.clone()).await;
        let counts = || [&asked[1].flushes, &asked[1].durable_writes].map(|count| count.load(Ordering::Relaxed));
        commits(&redo, 200, Duration::ZERO, &world).await;
        let before = counts();
        commits(&redo, 1000, Duration::ZERO, &world).await;
        let [flushes, durable] = [0, 1].map(|n| counts()[n] - before[n]);
        assert!(flushes < 100 && durable > 900, "{flushes} flushes, {durable} durable writes");
        let device: Device = redo.clone();
        let data = record();
        let write = |n: u64| device.write(LOG_BYTES / 2 + n * RECORD_BYTES, data.clone(), false);
        let mut before = counts();
        for n in 0..100 {
            for k in 0..8 {
                assert_eq!(write(n * 8 + k).await.outcome, Outcome::Done);
            }
            assert_eq!(device.flush().await.outcome, Outcome::Done);
            before = if n == 10 { counts() } else { before };
        }
        let [flushes, durable] = [0, 1].map(|n| counts()[n] - before[n]);
        assert!(flushes >= 89 && durable < 30, "{flushes} flushes, {durable} durable writes");
    });
}

#[test]
fn the_disk_has_what_flash_has_answered_without_delay() {
    in_a_world(async |_, world: World| {
        for mode in [Mode::Auto, Mode::Race] {
            let redo = redo_disk(mode, &world).await;
            commits(&redo, 200, Duration::ZERO, &world).await;
            let first_before = redo.counters.flash_first.get();
            for _ in 0..20 {
                commits(&redo, 1, Duration::from_secs(2), &world).await;
                world.clock.sleep(VOLUME.write + VOLUME.flush * 2).await;
                assert!(redo.is_settled(), "{}: nobody has asked the disk", mode.name());
            }
            assert!(redo.counters.flash_first.get() >= first_before + 20, "{}: flash answered", mode.name());
            assert_eq!(redo.counters.prevented_outliers.get(), 0, "{}: the disk took no longer", mode.name());
            let usual = Duration::from_nanos(redo.disk_medians_ns().0.unwrap());
            assert!(usual < 2 * (VOLUME.write + VOLUME.flush), "{}: {usual:?}", mode.name());
        }
    });
}

#[test]
fn nothing_of_it_is_left_in_memory_when_the_process_has_ended() {
    let redo = in_a_world(async |_, world: World| {
        let redo = redo_disk(Mode::Auto, &world).await;
        commits(&redo, 10, Duration::ZERO, &world).await;
        Arc::downgrade(&redo)
    });
    assert!(redo.upgrade().is_none(), "the log and its disks hold each other");
}
