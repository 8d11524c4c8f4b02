//! Every fault by name: it strikes where the atlas permits it and nowhere else, does what it says, and can be undone.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::Buf;
use device::{Bufs, Class, Clock, Device, FailKind, Op, Outcome, Prng, SharedBufs, Spawn, Verb};
use sim::disk::{Armed, DiskConfig, FaultAtlas, FaultKind, Latency, SECTOR_BYTES, SimDevice};
use sim::executor::{Executor, ExecutorConfig, Process};
use sim::plain::full_of;
use sim::situations::Situations;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn filled(byte: u8, len: u64) -> SharedBufs {
    full_of(len as usize, byte)
}

async fn write(device: &Device, offset: u64, byte: u8) -> Outcome {
    device.write(offset, filled(byte, BLOCK), false).await.outcome
}

/// The bytes of a block, if it could be read.
async fn read(device: &Device, offset: u64) -> Result<Vec<u8>, Outcome> {
    let done = device.read(offset, Buf::zeroed(BLOCK as usize).into()).await;
    if done.outcome == Outcome::Done { Ok(done.bufs.to_vec(0..BLOCK as usize)) } else { Err(done.outcome) }
}

struct World {
    executor: Executor,
    device: Arc<SimDevice>,
    io: Device,
    clock: Process,
    situations: Situations,
}

fn world(seed: u64, change: impl FnOnce(&mut DiskConfig)) -> World {
    let executor = Executor::new(ExecutorConfig::plain(seed));
    let situations = Situations::new();
    let mut config = DiskConfig { latency: Latency::uniform(1000, 50_000), ..DiskConfig::plain("disk", SIZE) };
    change(&mut config);
    let device = SimDevice::new(config, &executor.handle(), &situations);
    let clock = executor.root();
    World { io: device.clone(), executor, device, clock, situations }
}

fn run<T>(world: &World, main: impl Future<Output = T>) -> T {
    world.executor.run(main).unwrap_or_else(|e| panic!("{e}\n{}", world.executor.trace().log()))
}

async fn sleep(clock: &Process, time: Duration) {
    let clock: &(dyn Clock + 'static) = clock;
    clock.sleep(time).await;
}

fn armed(kind: FaultKind, range: std::ops::Range<u64>) -> Armed {
    Armed { kind, range, fail: FailKind::Media, times: 1 }
}

fn everywhere(kind: FaultKind) -> impl FnOnce(&mut DiskConfig) {
    move |config| config.atlas = FaultAtlas::none().with(kind, 0..SIZE, 0)
}

#[test]
fn the_atlas_forbids_what_it_does_not_permit() {
    let w = world(1, |c| {
        c.atlas = FaultAtlas::none().with(FaultKind::Rot, 0..65536, 0).with(FaultKind::Lost, 65536..SIZE, 0);
    });
    assert!(!w.device.rot(65536..66048) && !w.device.rot(0..66048) && w.device.rot(0..512));
    assert!(!w.device.make_unreadable(0..512));
    for kind in FaultKind::ALL {
        assert_eq!(w.device.arm(armed(kind, 0..BLOCK)), kind == FaultKind::Rot, "{kind:?}");
    }
    // A request that reaches out of the zone is spared.
    assert!(w.device.arm(armed(FaultKind::Lost, 65536..131_072)));
    run(&w, async {
        let across = w.io.write(65536 - BLOCK, filled(7, 2 * BLOCK), false).await;
        assert_eq!(across.outcome, Outcome::Done);
        assert_eq!(w.device.faulty_sectors(), 1);
        assert_eq!(write(&w.io, 65536, 8).await, Outcome::Done);
        assert_eq!(read(&w.io, 65536).await.unwrap(), [7; BLOCK as usize]);
    });
}

#[test]
fn a_lost_write_is_acknowledged_and_is_not_there() {
    let w = world(1, everywhere(FaultKind::Lost));
    run(&w, async {
        write(&w.io, 0, 1).await;
        assert!(w.device.arm(armed(FaultKind::Lost, 0..BLOCK)));
        assert_eq!(write(&w.io, 0, 2).await, Outcome::Done);
        assert_eq!(read(&w.io, 0).await.unwrap(), [1; BLOCK as usize]);
        assert_eq!(w.device.pristine(0, BLOCK as usize), [2; BLOCK as usize]);
        w.io.flush().await;
        w.device.power_cut();
        assert_eq!(read(&w.io, 0).await.unwrap(), [1; BLOCK as usize]);
        w.device.repair(0..SIZE);
        assert_eq!(read(&w.io, 0).await.unwrap(), [2; BLOCK as usize]);
    });
}

#[test]
fn a_misdirected_write_is_missing_here_and_found_there() {
    let w = world(3, |c| c.atlas = FaultAtlas::none().with(FaultKind::Misdirected, 0..64 * 1024, 0));
    run(&w, async {
        assert!(w.device.arm(armed(FaultKind::Misdirected, 0..BLOCK)));
        write(&w.io, 0, 2).await;
        assert_ne!(read(&w.io, 0).await.unwrap(), [2; BLOCK as usize]);
        let all = w.io.read(0, Buf::zeroed(SIZE as usize).into()).await.bufs.to_vec(0..SIZE as usize);
        let twos = all.iter().filter(|&&b| b == 2).count();
        assert!(twos >= BLOCK as usize - SECTOR_BYTES, "{twos}");
        assert!(all[64 * 1024..].iter().all(|&b| b == 0), "outside its zone");
        assert_eq!(w.device.pristine(0, BLOCK as usize), [2; BLOCK as usize]);
    });
}

#[test]
fn rot_and_unreadable_sectors_stay_until_they_are_written() {
    let w = world(1, |c| {
        c.atlas = FaultAtlas::none().with(FaultKind::Rot, 0..SIZE, 0).with(FaultKind::Unreadable, 0..SIZE, 0);
    });
    run(&w, async {
        write(&w.io, 0, 1).await;
        assert!(w.device.rot(0..BLOCK));
        let got = read(&w.io, 0).await.unwrap();
        assert_eq!(got.iter().filter(|&&b| b != 1).count(), 1);
        assert_eq!(read(&w.io, 0).await.unwrap(), got);
        write(&w.io, 0, 2).await;
        assert_eq!(read(&w.io, 0).await.unwrap(), [2; BLOCK as usize]);
        assert!(w.device.make_unreadable(0..BLOCK));
        assert_eq!(read(&w.io, 0).await, Err(Outcome::Failed(FailKind::Media)));
        assert!(read(&w.io, BLOCK).await.is_ok());
        write(&w.io, 0, 3).await;
        assert_eq!(read(&w.io, 0).await.unwrap(), [3; BLOCK as usize]);
    });
}

#[test]
fn a_failed_read_leaves_garbage_and_a_short_one_only_its_first_part() {
    let w = world(5, |c| {
        c.atlas = FaultAtlas::none().with(FaultKind::ReadFails, 0..SIZE, 0).with(FaultKind::Short, 0..SIZE, 0);
    });
    run(&w, async {
        for round in 0..20 {
            w.device.arm(armed(FaultKind::ReadFails, 0..SIZE));
            let done = w.io.read(0, Buf::zeroed(BLOCK as usize).into()).await;
            assert_eq!(done.outcome, Outcome::Failed(FailKind::Media));
            assert_ne!(done.bufs.to_vec(0..BLOCK as usize), [0; BLOCK as usize]);

            w.device.arm(armed(FaultKind::Short, 0..SIZE));
            let done = w.io.write(0, filled(round + 1, BLOCK), false).await;
            let Outcome::Short(n) = done.outcome else { panic!("{:?}", done.outcome) };
            assert!(n < BLOCK && n % 512 == 0);
            let got = read(&w.io, 0).await.unwrap();
            let (new, old) = got.split_at(n as usize);
            assert!(new.iter().all(|&b| b == round + 1) && old.iter().all(|&b| b <= round));
        }
    });
}

#[test]
fn a_failed_flush_promises_nothing_and_may_drop_the_cache() {
    let (mut dropped, mut kept) = (0, 0);
    for seed in 0..60 {
        let w = world(seed, everywhere(FaultKind::FlushFails));
        run(&w, async {
            write(&w.io, 0, 1).await;
            w.io.flush().await;
            write(&w.io, 0, 2).await;
            w.device.arm(armed(FaultKind::FlushFails, 0..SIZE));
            assert_eq!(w.io.flush().await.outcome, Outcome::Failed(FailKind::Media));
            if read(&w.io, 0).await.unwrap() == [2; BLOCK as usize] { kept += 1 } else { dropped += 1 }
        });
    }
    assert!(dropped > 5 && kept > 5, "{dropped} {kept}");
}

#[test]
fn a_flush_does_not_cover_what_completes_while_it_is_under_way() {
    let mut lost = 0;
    for seed in 0..60 {
        let w = world(seed, |c| c.latency.spans[4] = sim::disk::Span::new(1_000_000, 1_000_000));
        run(&w, async {
            let flush = w.io.flush();
            assert_eq!(write(&w.io, 0, 1).await, Outcome::Done);
            assert_eq!(flush.await.outcome, Outcome::Done);
            w.device.power_cut();
            lost += usize::from(read(&w.io, 0).await.unwrap() != [1; BLOCK as usize]);
        });
    }
    assert!(lost > 20, "lost in {lost} of 60");
}

#[test]
fn without_a_volatile_cache_what_completed_survives() {
    for seed in 0..40 {
        let w = world(seed, |c| c.geometry.volatile_cache = false);
        run(&w, async {
            write(&w.io, 0, 1).await;
            w.device.power_cut();
            assert_eq!(read(&w.io, 0).await.unwrap(), [1; BLOCK as usize]);
        });
    }
}

#[test]
fn an_ephemeral_device_is_blank_after_a_power_cut_and_not_after_a_process_death() {
    let w = world(1, |c| {
        c.geometry.class = Class::Ephemeral;
        c.gone_after_power_cut = true;
    });
    let process = w.executor.process("cell");
    let io = w.device.connect(&process);
    run(&w, async {
        io.write(0, filled(1, BLOCK), true).await;
        process.kill();
        assert_eq!(read(&w.io, 0).await.unwrap(), [1; BLOCK as usize]);
        w.device.power_cut();
        assert_eq!(read(&w.io, 0).await.unwrap(), [0; BLOCK as usize]);
    });
}

#[test]
fn a_stall_holds_completions_until_it_is_released_or_its_time_is_up() {
    let w = world(1, |_| {});
    run(&w, async {
        w.device.stall(&[Verb::Flush], Some(Duration::from_secs(3)));
        let flush = w.io.flush();
        assert_eq!(write(&w.io, 0, 1).await, Outcome::Done);
        assert!(w.executor.now().0 < 1_000_000);
        flush.await;
        assert!(w.executor.now().0 >= 3_000_000_000);
        // A stall that ended does not end the next one.
        w.device.stall(&[], Some(Duration::from_secs(1)));
        w.device.stall(&[], None);
        let held = w.io.flush();
        sleep(&w.clock, Duration::from_secs(100)).await;
        assert_eq!(w.device.in_flight(), 1);
        w.device.release();
        held.await;
        assert!(w.executor.now().0 < 104_100_000_000);
    });
}

#[test]
fn a_device_that_vanishes_ends_every_request_and_keeps_what_it_held() {
    let w = world(1, |_| {});
    run(&w, async {
        write(&w.io, 0, 1).await;
        w.device.stall(&[], None);
        let under_way = w.io.read(0, Buf::zeroed(512).into());
        w.device.vanish();
        assert_eq!(under_way.await.outcome, Outcome::Failed(FailKind::Gone));
        assert_eq!(w.io.flush().await.outcome, Outcome::Failed(FailKind::Gone));
        w.device.reappear();
        assert_eq!(read(&w.io, 0).await.unwrap(), [1; BLOCK as usize]);
    });
}

#[test]
fn media_are_restored_blanked_and_swapped() {
    let w = world(1, |_| {});
    let other = SimDevice::new(DiskConfig::plain("other", SIZE), &w.executor.handle(), &w.situations);
    let other_io: Device = other.clone();
    run(&w, async {
        write(&w.io, 0, 1).await;
        let stale = w.device.snapshot();
        write(&w.io, 0, 2).await;
        write(&other_io, 0, 9).await;
        SimDevice::swap(&w.device, &other);
        assert_eq!(read(&w.io, 0).await.unwrap(), [9; BLOCK as usize]);
        assert_eq!(read(&other_io, 0).await.unwrap(), [2; BLOCK as usize]);
        w.device.restore(&stale);
        assert_eq!(read(&w.io, 0).await.unwrap(), [1; BLOCK as usize]);
        w.device.blank();
        assert_eq!(read(&w.io, 0).await.unwrap(), [0; BLOCK as usize]);
    });
}

#[test]
fn a_dead_process_is_not_served_and_its_writes_may_still_happen() {
    let mut happened = 0;
    for seed in 0..60 {
        let w = world(seed, |_| {});
        let process = w.executor.process("cell");
        let io = w.device.connect(&process);
        run(&w, async {
            let _under_way = io.write(0, filled(1, BLOCK), false);
            process.kill();
            let _refused = io.write(BLOCK, filled(2, BLOCK), false);
            if seed % 2 == 0 {
                w.device.settle();
                assert_eq!(w.device.in_flight(), 0);
            }
            sleep(&w.clock, Duration::from_secs(1)).await;
            assert_eq!(read(&w.io, BLOCK).await.unwrap(), [0; BLOCK as usize]);
            happened += usize::from(read(&w.io, 0).await.unwrap() == [1; BLOCK as usize]);
        });
    }
    assert!(happened > 30 && happened < 60, "{happened} of 60");
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let w = world(1, |c| {
        c.geometry.logical_bytes = 4096;
        c.geometry.discard_bytes = 0;
        c.memory_align_bytes = 4096;
    });
    run(&w, async {
        let invalid = Outcome::Failed(FailKind::Invalid);
        let bad = [
            Op::Read { offset: 512, bufs: Buf::zeroed(4096).into() },
            Op::Read { offset: 0, bufs: Buf::zeroed(512).into() },
            Op::Read { offset: 0, bufs: Bufs::new() },
            Op::Write { offset: SIZE, data: filled(1, BLOCK), fua: false },
            Op::Write { offset: u64::MAX - 4095, data: filled(1, BLOCK), fua: false },
            Op::Write { offset: 0, data: filled(1, BLOCK + 512).slice(512..512 + BLOCK as usize), fua: false },
            Op::WriteZeroes { offset: 0, len: 512, fua: false, may_unmap: false },
        ];
        let count = bad.len() as u64;
        for op in bad {
            assert_eq!(w.device.connect(&w.clock).submit(op).await.outcome, invalid);
        }
        assert_eq!(w.situations.count("disk: invalid request"), count);
        assert_eq!(w.io.discard(0, 4096).await.outcome, Outcome::Failed(FailKind::Unsupported));
        write(&w.io, 4 * BLOCK, 1).await;
        let done = w.io.submit(Op::Status { offset: 0, len: 64 << 10 }).await;
        let extents: Vec<(u64, bool)> = done.extents.iter().map(|e| (e.len, e.hole)).collect();
        assert_eq!(extents, [(16 << 10, true), (16 << 10, false), (32 << 10, true)]);
        w.device.grow(2 * SIZE);
        assert_eq!(read(&w.io, SIZE).await.unwrap(), [0; BLOCK as usize]);
    });
}

/// Far more device requests than the 2,000 operations of a harness seed give rise to; in a release build 20 us each,
/// most of it copying.
#[test]
fn twenty_thousand_requests_of_many_tasks_all_end() {
    let executor = Executor::seeded(11);
    let mut prng = Prng::new(11);
    let mut config = DiskConfig::random("disk", 64 << 20, false, &mut prng);
    config.geometry.logical_bytes = 512;
    let device = SimDevice::new(config, &executor.handle(), &Situations::new());
    let process = executor.process("p");
    let io = device.connect(&process);
    let (done, all) = (Arc::new(device::sync::Notify::new()), 32_u64);
    let left = Arc::new(std::sync::atomic::AtomicU64::new(all));
    for task in 0..all {
        let (io, mut prng, done, left) = (io.clone(), prng.fork(&format!("{task}")), done.clone(), left.clone());
        process.spawn_on(
            task as usize,
            Box::pin(async move {
                for _ in 0..20_000 / all {
                    let len = 4096 * prng.between(1, 8);
                    let offset = 512 * prng.below(((64 << 20) - len) / 512);
                    match prng.below(20) {
                        0 => drop(io.flush().await),
                        1..10 => drop(io.write(offset, filled(1, len), false).await),
                        _ => drop(io.read(offset, Buf::zeroed(len as usize).into()).await),
                    }
                }
                left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                done.notify_all();
            }),
        );
    }
    let main = async {
        loop {
            let ticket = done.ticket();
            if left.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                return;
            }
            done.wait(ticket).await;
        }
    };
    executor.run(main).unwrap();
    let counts = device.counts();
    assert_eq!(counts.requests.iter().sum::<u64>(), 20_000);
    assert_eq!(device.in_flight(), 0);
    assert!(executor.trace().events() > 60_000);
}
