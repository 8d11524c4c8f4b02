//! The simulated device against an oracle that keeps the whole history and decides by definition alone.
//!
//! Goal: the device never returns what no real disk could, and does reach everything a real disk may do. Method: a few
//! processes write, zero, discard, flush and read a handful of sectors at once, are killed, and lose power; every
//! write's content names it; the oracle asks of each sector read whether some order of the writes explains it.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::Buf;
use device::{Bufs, Clock, Device, Outcome, Prng, SharedBufs, Spawn};
use sim::disk::{DiskConfig, FaultAtlas, FaultKind, SECTOR_BYTES, SimDevice};
use sim::executor::Executor;
use sim::situations::Situations;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECTORS: u64 = 8;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Write {
    /// What its sectors hold; 0 for zeroes.
    value: u64,
    /// Reads as anything.
    discard: bool,
    sectors: std::ops::Range<u64>,
    begin: u64,
    /// It cannot happen any more after this.
    end: u64,
    /// It happened.
    sure: bool,
    /// Durable from here on.
    durable: u64,
    /// Survived a cut at this time, maybe.
    epoch: u64,
}

#[derive(Default)]
struct Oracle {
    now: u64,
    writes: Vec<Write>,
    /// For each sector, the value first read after the last cut, and when.
    pinned: [Option<(u64, u64)>; SECTORS as usize],
    last_cut: u64,
    seen: Situations,
}

impl Oracle {
    fn new() -> Oracle {
        let first =
            Write { value: 0, discard: false, sectors: 0..SECTORS, begin: 0, end: 0, sure: true, durable: 0, epoch: 0 };
        Oracle { writes: vec![first], ..Oracle::default() }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn begin(&mut self, value: u64, discard: bool, sectors: std::ops::Range<u64>) -> usize {
        let begin = self.tick();
        let epoch = self.last_cut;
        let (end, sure, durable) = (NEVER, false, NEVER);
        self.writes.push(Write { value, discard, sectors, begin, end, sure, durable, epoch });
        self.writes.len() - 1
    }

    fn end(&mut self, write: usize, outcome: Outcome, durable: bool) {
        let now = self.tick();
        let w = &mut self.writes[write];
        if w.epoch != self.last_cut {
            return;
        }
        match outcome {
            Outcome::Done => (w.end, w.sure) = (now, true),
            Outcome::Failed(_) | Outcome::Short(_) => w.end = now,
            Outcome::Unknown => {}
        }
        if outcome == Outcome::Done && durable {
            w.durable = now;
        }
    }

    fn flushed(&mut self, began: u64) {
        let now = self.tick();
        for w in &mut self.writes {
            if w.sure && w.end < began && w.durable == NEVER {
                w.durable = now;
            }
        }
    }

    /// The power went: what is left of the history is what may have survived, all of it unsure.
    fn cut(&mut self) {
        let now = self.tick();
        let old = std::mem::take(&mut self.writes);
        for s in 0..SECTORS {
            let of: Vec<&Write> = old.iter().filter(|w| w.sectors.contains(&s)).collect();
            for w in &of {
                let overwritten = of.iter().any(|y| y.durable < now && y.begin > w.end && y.sure);
                // A pinned survivor of an earlier cut is what it was.
                let unpinned = w.epoch == NEVER && self.pinned[s as usize].is_some_and(|(v, _)| v != w.value);
                if !overwritten && !unpinned {
                    let w = Write {
                        sectors: s..s + 1,
                        end: now,
                        sure: false,
                        durable: NEVER,
                        epoch: NEVER,
                        ..(*w).clone()
                    };
                    self.writes.push(w);
                }
            }
            if of.iter().filter(|w| w.end != NEVER).count() > 1 {
                self.seen.hit("oracle: cut with several versions of a sector");
            }
        }
        self.last_cut = now;
        self.pinned = [None; SECTORS as usize];
    }

    /// Nothing of before can happen any more.
    fn settled(&mut self) {
        let now = self.tick();
        for w in &mut self.writes {
            w.end = w.end.min(now);
        }
    }

    fn check(&mut self, sector: u64, value: u64, began: u64) -> Result<(), String> {
        let now = self.tick();
        let of: Vec<&Write> = self.writes.iter().filter(|w| w.sectors.contains(&sector)).collect();
        let pin = self.pinned[sector as usize];
        let valid = |w: &&&Write| {
            let overwritten = of.iter().any(|y| y.sure && y.begin > w.end && y.end < began);
            let unpinned = w.epoch == NEVER && pin.is_some_and(|(v, at)| v != w.value && at < began);
            !overwritten && !unpinned
        };
        let candidates: Vec<&&Write> = of.iter().filter(valid).collect();
        let Some(hit) = candidates.iter().find(|w| w.discard || w.value == value) else {
            return Err(format!("sector {sector}: read {value}, permitted {candidates:?}, of {of:?}"));
        };
        if hit.epoch == NEVER && candidates.len() > 1 && !hit.discard {
            let newest = candidates.iter().map(|w| w.begin).max();
            let oldest = candidates.iter().map(|w| w.begin).min();
            let name = match Some(hit.begin) {
                b if b == newest => "oracle: newest version after a cut",
                b if b == oldest => "oracle: oldest version after a cut",
                _ => "oracle: version in between after a cut",
            };
            self.seen.hit(name);
        }
        if hit.end == NEVER && !hit.discard {
            self.seen.hit("oracle: write read before it completed");
        }
        // Only an unambiguous answer pins.
        let old = |w: &&&&Write| w.epoch == NEVER;
        if candidates.iter().all(|w| !w.discard) && candidates.iter().filter(old).any(|w| w.value == value) {
            let fresh = candidates.iter().filter(|w| w.epoch != NEVER).any(|w| w.value == value);
            if !fresh && pin.is_none() {
                self.pinned[sector as usize] = Some((value, now));
            }
        }
        Ok(())
    }
}

fn data(value: u64, sectors: u64) -> SharedBufs {
    let mut buf = Buf::zeroed(sectors as usize * SECTOR_BYTES);
    for word in buf.chunks_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    Bufs::from(buf).freeze()
}

/// The value of a sector, or an error when its words differ: torn within 512 bytes.
fn value_of(sector: &[u8]) -> Result<u64, String> {
    let first = u64::from_le_bytes(sector[..8].try_into().unwrap());
    let same = sector.chunks(8).all(|w| w == &sector[..8]);
    if same { Ok(first) } else { Err("a sector is torn within itself".to_owned()) }
}

struct Run {
    oracle: Arc<Mutex<Oracle>>,
    device: Device,
    durable_at_once: bool,
    discards: bool,
}

/// One client: random requests until it is killed or done.
async fn client(run: Arc<Run>, mut prng: Prng, ids: u64) {
    for n in 1..30 {
        let first = prng.below(SECTORS);
        let count = prng.between(1, SECTORS - first);
        let (offset, len) = (first * SECTOR_BYTES as u64, count * SECTOR_BYTES as u64);
        let value = ids * 1000 + n;
        let fua = prng.chance(1, 4);
        let begin = |value, discard| run.oracle.lock().unwrap().begin(value, discard, first..first + count);
        let end = |write, outcome, durable: bool| run.oracle.lock().unwrap().end(write, outcome, durable);
        match prng.below(12) {
            0..4 => {
                let write = begin(value, false);
                let done = run.device.write(offset, data(value, count), fua).await;
                end(write, done.outcome, fua || run.durable_at_once);
            }
            4 => {
                let write = begin(0, false);
                let done = run.device.write_zeroes(offset, len, fua, true).await;
                end(write, done.outcome, fua || run.durable_at_once);
            }
            5 if run.discards => {
                let write = begin(u64::MAX, true);
                let done = run.device.discard(offset, len).await;
                end(write, done.outcome, run.durable_at_once);
            }
            5 | 6 => {
                let began = run.oracle.lock().unwrap().tick();
                if run.device.flush().await.outcome == Outcome::Done {
                    run.oracle.lock().unwrap().flushed(began);
                }
            }
            _ => {
                let began = run.oracle.lock().unwrap().tick();
                let done = run.device.read(offset, Buf::zeroed(len as usize).into()).await;
                if done.outcome == Outcome::Done {
                    let bytes = done.bufs.to_vec(0..len as usize);
                    let mut oracle = run.oracle.lock().unwrap();
                    for (s, sector) in (first..).zip(bytes.chunks(SECTOR_BYTES)) {
                        let garbage = oracle.writes.iter().any(|w| w.discard && w.sectors.contains(&s));
                        let value = match value_of(sector) {
                            Ok(value) => value,
                            Err(_) if garbage => u64::MAX - 1,
                            Err(e) => panic!("{e}"),
                        };
                        oracle.check(s, value, began).unwrap_or_else(|e| panic!("{e}"));
                    }
                }
            }
        }
    }
}

fn seed_run(seed: u64, faults: bool, situations: &Situations) -> u64 {
    let executor = Executor::seeded(seed);
    let mut prng = executor.prng("test");
    let mut config = DiskConfig::random("disk", SECTORS * SECTOR_BYTES as u64, false, &mut prng);
    config.geometry.logical_bytes = 512;
    config.geometry.size_bytes = SECTORS * SECTOR_BYTES as u64;
    config.geometry.discard_bytes = if prng.chance(1, 3) { 512 } else { 0 };
    if faults {
        let all = 0..config.geometry.size_bytes;
        let kinds =
            [FaultKind::ReadFails, FaultKind::WriteFails, FaultKind::Short, FaultKind::Unknown, FaultKind::Slow];
        config.atlas = kinds.into_iter().fold(FaultAtlas::none(), |a, kind| a.with(kind, all.clone(), 30_000));
    }
    let durable_at_once = !config.geometry.volatile_cache;
    let discards = config.geometry.discard_bytes > 0;
    let device = SimDevice::new(config, &executor.handle(), situations);
    let oracle = Arc::new(Mutex::new(Oracle::new()));
    let root = executor.root();
    let ended = executor.run(async {
        let clock: &dyn Clock = &root;
        for incarnation in 0..5 {
            let process = executor.process("client");
            let run = Run { oracle: oracle.clone(), device: device.connect(&process), durable_at_once, discards };
            let run = Arc::new(run);
            for n in 0..prng.between(1, 4) {
                let prng = prng.fork(&format!("client {incarnation} {n}"));
                process.spawn_on(n as usize, Box::pin(client(run.clone(), prng, 1 + incarnation * 4 + n)));
            }
            let time = Duration::from_nanos(prng.between(1_000, 2_000_000));
            clock.sleep(time).await;
            if prng.chance(1, 4) {
                let long = Duration::from_nanos(prng.between(1_000, 1_000_000));
                device.stall(&[], Some(long));
                clock.sleep(Duration::from_nanos(prng.between(0, 2_000_000))).await;
            }
            process.kill();
            if prng.chance(2, 3) {
                device.power_cut();
                oracle.lock().unwrap().cut();
            } else if prng.chance(1, 2) {
                device.settle();
                oracle.lock().unwrap().settled();
            }
        }
    });
    ended.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", executor.trace().log()));
    situations.merge(&oracle.lock().unwrap().seen);
    executor.trace().hash()
}

#[test]
fn the_device_returns_only_what_a_disk_may_and_reaches_all_of_it() {
    let situations = Situations::new();
    situations.expect(&[
        "disk: cache destaged by itself",
        "disk: cache destaged out of order",
        "disk: power cut with un-flushed writes",
        "disk: power cut with a write in flight",
        "disk: power cut tears a write",
        "disk: power cut loses a completed write",
        "disk: power cut keeps a write in flight",
        "disk: power cut keeps a newer write and loses an older",
        "disk: discarded sectors read as old data",
        "disk: discarded sectors read as zeroes",
        "disk: discarded sectors read as garbage",
        "disk: a dead process's write happened",
        "disk: a dead request's write never happened",
        "disk: stalled",
        "disk: a request was held by a stall",
        "oracle: cut with several versions of a sector",
        "oracle: newest version after a cut",
        "oracle: oldest version after a cut",
        "oracle: version in between after a cut",
        "oracle: write read before it completed",
    ]);
    for seed in 0..600 {
        seed_run(seed, false, &situations);
    }
    assert_eq!(situations.zero_rows(), [""; 0], "\n{}", situations.table());
}

#[test]
fn so_does_a_device_whose_requests_fail() {
    let situations = Situations::new();
    situations.expect(&[
        "fault: read failed",
        "fault: write failed",
        "fault: short transfer",
        "fault: unknown outcome",
        "fault: slow request",
        "disk: a write happened after its outcome was told",
    ]);
    for seed in 0..400 {
        seed_run(seed, true, &situations);
    }
    assert_eq!(situations.zero_rows(), [""; 0], "\n{}", situations.table());
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20 {
        let once = seed_run(seed, true, &Situations::new());
        assert_eq!(once, seed_run(seed, true, &Situations::new()), "seed {seed}");
    }
}
