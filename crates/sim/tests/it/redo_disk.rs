//! The flash log by itself: clients on a redo disk over a simulated disk and flash devices, judged by the model.
//!
//! Goal: nothing acknowledged is lost, stale or flips over process deaths and power cuts, whatever the mode, and each
//! deliberately broken build is caught. Method: as `passthrough.rs`, with the log between; disks stall and refuse.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::Buf;
use device::{Bufs, Class, Clock, Completion, Device, FailKind, Geometry, Io, Op, Outcome, Prng, Spawn, World};
use flashlog::{
    LogConfig, LogReader, Mode, Owner, RedoDisk, RedoDiskConfig, ReplayTarget, RingDevice, RingFound, Sabotage, Skip,
};
use sim::disk::{DiskConfig, SimDevice};
use sim::executor::{Executor, Stuck};
use sim::model::Model;
use sim::net::{NetConfig, SimNet};
use sim::situations::Situations;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 256 * 512;
const RING_BYTES: u64 = 8 << 20;

/// A disk that stalls, and refuses writes and flushes, when it is told to.
struct Moody {
    below: Device,
    clock: Arc<dyn Clock>,
    stalled_until: AtomicU64,
    refuses: AtomicBool,
}

impl Io for Moody {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let is_change = matches!(op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Flush);
        if is_change && self.refuses.load(Ordering::Acquire) {
            return Completion::failed(FailKind::Media, op);
        }
        let until = self.stalled_until.load(Ordering::Acquire);
        if is_change && until > self.clock.now().0 {
            let timer = self.clock.sleep_until(device::Instant(until));
            let below = self.below.clone();
            return Completion::future(async move {
                timer.await;
                below.submit(op).await
            });
        }
        self.below.submit(op)
    }
}

/// As the request path of a cell: nobody reads or changes bytes while somebody's change of them is not acknowledged.
#[derive(Default)]
struct Ranges {
    held: Mutex<Vec<std::ops::Range<u64>>>,
    changed: device::sync::Notify,
}

impl Ranges {
    async fn hold(&self, range: &std::ops::Range<u64>) {
        loop {
            let ticket = self.changed.ticket();
            {
                let mut held = self.held.lock().unwrap();
                if held.iter().all(|r| r.end <= range.start || range.end <= r.start) {
                    held.push(range.clone());
                    return;
                }
            }
            self.changed.wait(ticket).await;
        }
    }

    fn let_go(&self, range: &std::ops::Range<u64>) {
        let mut held = self.held.lock().unwrap();
        let at = held.iter().position(|r| r == range).unwrap();
        held.swap_remove(at);
        drop(held);
        self.changed.notify_all();
    }
}

async fn client(model: Arc<Mutex<Model>>, ranges: Arc<Ranges>, device: Arc<RedoDisk>, mut prng: Prng) {
    let device: Device = device;
    loop {
        let sectors = prng.between(1, 16);
        // Commits rewrite the same page again and again.
        let start = if prng.chance(1, 2) { 0 } else { 512 * prng.below(SIZE / 512 - sectors + 1) };
        let range = start..start + 512 * sectors;
        let what = prng.below(10);
        if what >= 3 {
            ranges.hold(&range).await;
        }
        match what {
            0..3 => {
                let flush = model.lock().unwrap().flush_begin();
                match device.flush().await.outcome {
                    Outcome::Done => model.lock().unwrap().flush_ack(flush),
                    _ => model.lock().unwrap().flush_fail(flush),
                }
            }
            3 => {
                let fua = prng.chance(1, 3);
                let op = model.lock().unwrap().begin_zeroes(range.clone(), fua);
                let outcome = device.write_zeroes(start, 512 * sectors, fua, false).await.outcome;
                assert!(outcome == Outcome::Done, "I3 broken, zeroes refused though the disk takes them: {outcome:?}");
                model.lock().unwrap().ack(op);
            }
            4..8 => {
                let fua = prng.chance(1, 3);
                let (op, bytes) = {
                    let mut model = model.lock().unwrap();
                    let op = model.begin_write(range.clone(), fua);
                    (op, model.bytes(op))
                };
                let data = Bufs::from(Buf::padded(&bytes, 512)).freeze();
                let outcome = device.write(start, data, fua).await.outcome;
                assert!(outcome == Outcome::Done, "I3 broken, a write refused though the disk takes it: {outcome:?}");
                model.lock().unwrap().ack(op);
            }
            _ => {
                let read = model.lock().unwrap().read_begin(range.clone());
                let done = device.read(start, Buf::zeroed(512 * sectors as usize).into()).await;
                assert_eq!(done.outcome, Outcome::Done);
                let got = done.bufs.to_vec(0..done.bufs.len_bytes());
                let judged = model.lock().unwrap().check_read(read, &got);
                judged.unwrap_or_else(|violation| panic!("{violation}"));
            }
        }
        if what >= 3 {
            ranges.let_go(&range);
        }
    }
}

#[derive(Default)]
struct Seen {
    flash_first: u64,
    disk_first: u64,
    skips: u64,
    replayed: u64,
    refusals: u64,
}

fn seed_run(seed: u64, sabotage: Option<Sabotage>, seen: &mut Seen) -> (Result<(), Stuck>, u64) {
    let executor = Executor::seeded(seed);
    let mut prng = executor.prng("plan");
    let mut config = DiskConfig::random("disk", SIZE, false, &mut prng);
    config.geometry.logical_bytes = 512;
    config.geometry.class = Class::Durable;
    // A cell cuts what is too long for a device below the log.
    config.geometry.transfer_bytes_max = 4 << 20;
    let situations = Situations::new();
    let disk = SimDevice::new(config, &executor.handle(), &situations);
    let rings = prng.between(1, 3);
    let flash: Vec<Arc<SimDevice>> = (0..rings)
        .map(|n| {
            let mut config = DiskConfig::random(&format!("flash{n}"), RING_BYTES, true, &mut prng);
            config.geometry.class = Class::Durable;
            config.geometry.page_bytes = config.geometry.page_bytes.max(4096);
            config.geometry.transfer_bytes_max = 4 << 20;
            SimDevice::new(config, &executor.handle(), &situations)
        })
        .collect();
    let model = Arc::new(Mutex::new(Model::new(seed, SIZE)));
    let root = executor.root();
    let result = executor.run(async {
        let clock: &(dyn Clock + 'static) = &root;
        for life in 0..6 {
            let process = executor.process("server");
            let net = SimNet::new(NetConfig::plain(), &executor.handle(), &situations);
            let world: World = process.world(net.host("server", &process), "server");
            let moody = Arc::new(Moody {
                below: disk.connect(&process),
                clock: world.clock.clone(),
                stalled_until: AtomicU64::new(0),
                refuses: AtomicBool::new(false),
            });
            let devices = flash
                .iter()
                .enumerate()
                .map(|(n, flash)| RingDevice {
                    device: flash.connect(&process),
                    owner: Owner { cell_id: 1, device_id: n as u128, log_id: 7 },
                })
                .collect();
            let log_config = LogConfig {
                unflushed_bytes_max: 2 << 20,
                outlier: Duration::from_millis(5),
                hard_limit: Duration::from_secs(30),
                sabotage,
                ..LogConfig::default()
            };
            let believed = (0..rings as usize).collect();
            let target =
                ReplayTarget { id: 3, device: moody.clone(), size_bytes: SIZE, rings: believed, lives: 0..=u64::MAX };
            let opened = {
                let (sender, receiver) = device::sync::one_shot();
                let world = world.clone();
                process.spawn(Box::pin(async move {
                    let reader = LogReader::read(devices, log_config.sabotage).await;
                    let serving: Vec<usize> = (0..rings as usize).collect();
                    assert!(
                        serving.iter().all(|ring| reader.found(*ring) == RingFound::Whole),
                        "no ring has come to harm"
                    );
                    let replayed = reader.replay(&target).await.unwrap_or_else(|e| panic!("{e}"));
                    let life = reader.life() + 1;
                    let log = reader.begin(log_config, life, &serving, |_, _| false, world).await;
                    sender.send((log, replayed));
                }));
                receiver.await
            };
            let (log, replayed) = opened.unwrap();
            seen.replayed += replayed.records;
            let mode = Mode::ALL[prng.below(5) as usize];
            let device = log.attach(RedoDiskConfig {
                id: 3,
                device: moody.clone(),
                mode,
                barred: None,
                void: vec![false; rings as usize],
                is_flushed: true,
                counters: Arc::default(),
            });
            let ranges = Arc::new(Ranges::default());
            for n in 0..prng.between(1, 5) {
                let prng = prng.fork(&format!("{life} {n}"));
                process.spawn_on(n as usize, Box::pin(client(model.clone(), ranges.clone(), device.clone(), prng)));
            }
            for _ in 0..prng.between(1, 4) {
                clock.sleep(Duration::from_nanos(prng.between(100_000, 20_000_000))).await;
                match prng.below(4) {
                    0 => device.set_mode(Mode::ALL[prng.below(5) as usize]),
                    1 => {
                        let until = clock.now().0 + prng.between(1_000_000, 3_000_000_000);
                        moody.stalled_until.store(until, Ordering::Release);
                    }
                    2 if device.mode() != Mode::Off => {
                        // While the disk refuses, the ring is all there is.
                        moody.refuses.store(true, Ordering::Release);
                        clock.sleep(Duration::from_millis(prng.between(1, 20))).await;
                        moody.refuses.store(false, Ordering::Release);
                        seen.refusals += 1;
                    }
                    _ => {}
                }
            }
            let counters = &device.counters;
            let skips: u64 = Skip::ALL.iter().map(|why| counters.skips[*why as usize].get()).sum();
            let firsts = counters.disk_first.get() + counters.flash_first.get();
            assert_eq!(firsts + skips, counters.redo_writes.get(), "each is counted once");
            seen.disk_first += counters.disk_first.get();
            seen.flash_first += counters.flash_first.get();
            seen.skips += skips;
            process.kill();
            drop((device, log));
            if prng.chance(1, 2) {
                disk.power_cut();
                flash.iter().for_each(|flash| flash.power_cut());
                model.lock().unwrap().power_cut();
            } else {
                disk.settle();
                flash.iter().for_each(|flash| flash.settle());
                model.lock().unwrap().process_kill();
            }
        }
    });
    (result, executor.trace().hash())
}

#[test]
fn nothing_acknowledged_is_lost_or_stale() {
    let mut seen = Seen::default();
    for seed in 0..150 {
        let (result, hash) = seed_run(seed, None, &mut seen);
        result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if seed % 30 == 0 {
            assert_eq!(hash, seed_run(seed, None, &mut Seen::default()).1, "seed {seed} twice");
        }
    }
    let Seen { flash_first, disk_first, skips, replayed, refusals } = seen;
    assert!(flash_first > 100 && disk_first > 100 && skips > 10 && replayed > 100 && refusals > 100, "all are reached");
}

/// The invariants a broken build is accused of over at most so many seeds, until it has been three times.
fn accusations(sabotage: Sabotage, seeds: u64) -> (BTreeSet<String>, u64) {
    let mut names = BTreeSet::new();
    let mut caught = 0;
    for seed in 0..seeds {
        if let Err(Stuck::Panicked { message, .. }) = seed_run(seed, Some(sabotage), &mut Seen::default()).0 {
            caught += 1;
            names.insert(message.split(": bytes").next().unwrap().to_owned());
        }
        if caught == 3 {
            break;
        }
    }
    (names, caught)
}

#[test]
fn broken_builds_are_caught_by_name() {
    for sabotage in [
        Sabotage::AckBeforeDurable,
        Sabotage::DiskOnlyOverRecord,
        Sabotage::SavedRedoForgotten,
        Sabotage::ReplayOverNewer,
        Sabotage::OverlappingDiskWrites,
        Sabotage::JoinedIssuedFlush,
    ] {
        let (names, caught) = accusations(sabotage, 600);
        let accused = |name: &String| name.starts_with('I');
        // Writes that overlap are counted twice by the ledger: its arithmetic may see it first.
        let counted = |name: &String| sabotage == Sabotage::OverlappingDiskWrites && name.ends_with("with overflow");
        let all = names.iter().all(|name| accused(name) || counted(name));
        assert!(caught > 0 && all && names.iter().any(accused), "{sabotage:?}: {caught} {names:?}");
    }
}
