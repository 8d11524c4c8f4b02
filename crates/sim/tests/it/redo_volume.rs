//! Goal: on a volume whose writes take long, and not its flushes alone, commits take as long as flash does, and the disk has
//! them without delay all the same. Method: a volume and a flash device of fixed times, in virtual time.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::layers::{FlushGate, Memory};
use device::{Buf, Bufs, Clock, Completion, Device, Geometry, Io, Op, Outcome, World};
use flashlog::{LogConfig, LogReader, Mode, Owner, RedoDisk, RedoDiskConfig, RingDevice};
use sim::plain::in_a_world;
use std::sync::Arc;
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

struct Timed {
    below: Device,
    clock: Arc<dyn Clock>,
    times: Times,
}

impl Io for Timed {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.below.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        let (below, clock, times) = (self.below.clone(), self.clock.clone(), self.times);
        Completion::future(async move {
            let time = match &op {
                Op::Flush => times.flush,
                Op::Write { fua: true, .. } => times.write + times.flush,
                _ => times.write,
            };
            clock.sleep(time).await;
            below.submit(op).await
        })
    }
}

async fn redo_disk(mode: Mode, world: &World) -> Arc<RedoDisk> {
    let timed = |bytes, times| -> Device {
        let below: Device = Arc::new(Timed { below: Memory::new(bytes), clock: world.clock.clone(), times });
        FlushGate::new(below, world.spawn.clone())
    };
    let owner = Owner { cell_id: 1, device_id: 1, log_id: 1 };
    let reader = LogReader::read(vec![RingDevice { device: timed(32 << 20, FLASH), owner }], None).await;
    let log = reader.begin(LogConfig::default(), 1, &[0], |_, _| false, world.clone()).await;
    log.attach(RedoDiskConfig {
        id: 1,
        device: timed(LOG_BYTES, VOLUME),
        mode,
        barred: None,
        void: vec![false],
        is_flushed: true,
        counters: Arc::default(),
    })
}

/// So many commits, one after another, with pauses; how long the mean one of the second half took.
async fn commits(redo: &Arc<RedoDisk>, count: u64, pause: Duration, world: &World) -> Duration {
    let device: Device = redo.clone();
    let data = Bufs::from(Buf::padded(&[7; RECORD_BYTES as usize], RECORD_BYTES as usize)).freeze();
    let mut took_ns = 0;
    for n in 0..count {
        world.clock.sleep(pause).await;
        let begun = world.clock.now();
        let offset = n * RECORD_BYTES % LOG_BYTES;
        assert_eq!(device.write(offset, data.clone(), false).await.outcome, Outcome::Done);
        assert_eq!(device.flush().await.outcome, Outcome::Done);
        took_ns += if n >= count / 2 { world.clock.now().ns_since(begun) } else { 0 };
    }
    Duration::from_nanos(took_ns / count.div_ceil(2))
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
