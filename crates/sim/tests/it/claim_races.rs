//! Goal: of several starts on one device at one moment at most one changes it at any time, and no start waits for that; a holder that was replaced
//! changes nothing more. Method: two to five processes of the virtual world start on one device with a volatile cache, most of them within
//! a second. Each has a path of its own, whose requests arrive, and are answered, after times drawn from nothing to seconds. Processes are paused at any
//! place for up to 40 s, killed, stopped clean, and started anew; the device loses writes of the claim, or its power alone. Each change is checked
//! when it arrives: none of a process comes after the first one of another process that began later.
#![expect(clippy::unwrap_used, reason = "tests")]

use celldisk::claim::{ClaimError, Claimed, Holder, OVERDUE_AFTER, Sabotage, Stamped, WATCH_FOR};
use celldisk::layout::{CLAIM_OFFSET, CLAIM_RECORD_OFFSET, DATA_OFFSET};
use device::layers::WatchedDevice;
use device::sync::lock;
use device::{Buf, Bufs, Completion, Device, FailKind, Geometry, Io, Op, Outcome, Prng, Spawn, Verb, World};
use sim::disk::{DiskConfig, FaultAtlas, FaultKind, SimDevice};
use sim::executor::{Executor, PausedClock, Process};
use sim::plain::{full_of, in_an_executor, process_of};
use sim::situations::Situations;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 16 << 20;
/// The longest way of a request, below `WATCH_FOR - OVERDUE_AFTER`.
const WAY_MS_MAX: u64 = 4_000;
const _: () = assert!(WAY_MS_MAX < (WATCH_FOR.as_millis() - OVERDUE_AFTER.as_millis()) as u64);
/// The longest way of a request of the claim, and the longest pause within a look.
const LATE_MS_MAX: u64 = 40_000;
const PROCESSES_MAX: usize = 5;
const RACES: u64 = 3_000;

/// The instance of a process: races count up from there.
fn instance_of(number: usize) -> u128 {
    (number as u128 + 1) << 64
}

fn number_of(instance: u128) -> Option<usize> {
    ((instance >> 64) as usize).checked_sub(1)
}

fn holder(host: u128, instance: u128) -> Holder {
    Holder { host, boot: 1, instance, process: 1, process_started: 1, host_name: format!("host{host}") }
}

/// What the starts on one device have come to.
#[derive(Default)]
struct Seen {
    /// The processes that have changed the device, in the order of their first changes.
    users: Vec<usize>,
    taken: u32,
    written: u32,
    refused: u32,
    lost: u32,
    violation: Option<String>,
}

impl Seen {
    /// A change of process `number` has arrived.
    fn changed(&mut self, number: usize) {
        self.written += 1;
        if !self.users.contains(&number) {
            self.users.push(number);
        } else if self.users.last() != Some(&number) && self.violation.is_none() {
            self.violation = Some(format!("process {number} goes on beside the later ones of {:?}", self.users));
        }
    }
}

/// What the path of a process does to its requests.
enum Ways {
    Drawn(Mutex<Prng>),
    Steady(Duration),
}

/// What happens to one request.
struct Way {
    there: Duration,
    back: Duration,
    /// The process is paused for so long when the request arrives.
    pauses: Option<Duration>,
}

impl Ways {
    fn next(&self, is_data: bool) -> Way {
        let Ways::Drawn(prng) = self else {
            let Ways::Steady(way) = *self else { unreachable!("the other kind") };
            return Way { there: way, back: way, pauses: None };
        };
        let mut prng = lock(prng);
        let mut way = || {
            let longest_ms = match prng.below(40) {
                0 => WAY_MS_MAX,
                1..10 => 200,
                _ => 20,
            };
            Duration::from_millis(prng.below(longest_ms))
        };
        let (mut there, back) = (way(), way());
        if is_data {
            return Way { there, back, pauses: None };
        }
        // Requests of the claim may take any time, and a process may be paused within a look.
        if prng.chance(1, 60) {
            there = Duration::from_millis(prng.below(LATE_MS_MAX));
        }
        Way { there, back, pauses: prng.chance(1, 60).then(|| Duration::from_millis(prng.below(LATE_MS_MAX))) }
    }
}

/// The path of a process to the device. It goes on while the process is paused, and when it is dead.
struct Far {
    inner: Device,
    outside: World,
    ways: Ways,
    seat: Arc<Seat>,
    seen: Arc<Mutex<Seen>>,
}

impl Io for Far {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if !self.seat.process.alive() {
            return Completion::failed(FailKind::Gone, op);
        }
        let (completer, completion) = Completion::pair();
        let is_data = op.verb() == Verb::Write && op.range().0 == DATA_OFFSET;
        let Way { there, back, pauses } = self.ways.next(is_data);
        let (inner, clock, seat, seen) =
            (self.inner.clone(), self.outside.clock.clone(), self.seat.clone(), self.seen.clone());
        seat.under_way.fetch_add(1, Ordering::Relaxed);
        self.outside.spawn.spawn(Box::pin(async move {
            clock.sleep(there).await;
            if is_data {
                lock(&seen).changed(seat.number);
            }
            let completed = inner.submit(op).await;
            seat.under_way.fetch_sub(1, Ordering::Relaxed);
            if let Some(pauses) = pauses {
                seat.process.pause(PausedClock::StandsStill);
                clock.sleep(pauses).await;
                seat.process.resume();
            }
            clock.sleep(back).await;
            completer.complete(completed);
        }));
        completion
    }
}

/// One process.
struct Seat {
    number: usize,
    host: u128,
    process: Process,
    /// Requests that have not reached the device yet: the kernel ends a process when they have.
    under_way: AtomicU32,
    /// It is to stop clean.
    stops: AtomicBool,
    has_ended: AtomicBool,
}

impl Seat {
    fn is_there(&self) -> bool {
        let runs = self.process.alive() && !self.has_ended.load(Ordering::Relaxed);
        runs || self.under_way.load(Ordering::Relaxed) > 0
    }
}

/// The processes of one race.
struct Rig<'a> {
    executor: &'a Executor,
    outside: World,
    medium: Arc<SimDevice>,
    sabotage: Option<Sabotage>,
    seats: Arc<Mutex<Vec<Arc<Seat>>>>,
    seen: Arc<Mutex<Seen>>,
}

impl Rig<'_> {
    /// Start a process on `host`, and write for as long as that is permitted.
    fn start(&self, host: u128, after: Duration, ways: Ways) {
        let (process, world) = process_of(self.executor);
        let number = lock(&self.seats).len();
        let seat = Arc::new(Seat {
            number,
            host,
            process,
            under_way: AtomicU32::new(0),
            stops: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        lock(&self.seats).push(seat.clone());
        let far: Device = Arc::new(Far {
            inner: self.medium.connect(&self.executor.root()),
            outside: self.outside.clone(),
            ways,
            seat: seat.clone(),
            seen: self.seen.clone(),
        });
        let claimed = Claimed::sabotaged(&WatchedDevice::new(far, world.spawn.clone()), &world, self.sabotage);
        let (seen, seats) = (self.seen.clone(), self.seats.clone());
        seat.process.clone().spawn(Box::pin(async move {
            world.clock.sleep(after).await;
            let is_alive = |other: &Holder| {
                let seats = lock(&seats);
                number_of(other.instance).and_then(|number| seats.get(number)).is_some_and(|seat| seat.is_there())
            };
            match claimed.take(holder(host, instance_of(number)), is_alive, |_| ()).await {
                Ok(()) => {
                    lock(&seen).taken += 1;
                    use_it(&claimed, &world, &seat, &seen).await;
                }
                Err(ClaimError::InUse(_)) => lock(&seen).refused += 1,
                Err(ClaimError::Io(_) | ClaimError::NotThere) => {}
            }
            seat.has_ended.store(true, Ordering::Relaxed);
        }));
    }

    /// Something that happens to one of the processes, or to the device.
    async fn happens(&self, prng: &mut Prng) {
        let latest_ms = if prng.chance(1, 2) { 1_500 } else { 25_000 };
        self.outside.clock.sleep(Duration::from_millis(prng.below(latest_ms))).await;
        let chosen = {
            let seats = lock(&self.seats);
            seats[prng.below(seats.len() as u64) as usize].clone()
        };
        match prng.below(8) {
            0..4 => {
                let lasts_ms = [700, 3_000, 18_000, 40_000][prng.below(4) as usize];
                chosen.process.pause(if prng.chance(1, 2) { PausedClock::StandsStill } else { PausedClock::GoesOn });
                let (clock, process) = (self.outside.clock.clone(), chosen.process.clone());
                let lasts = Duration::from_millis(prng.below(lasts_ms));
                self.outside.spawn.spawn(Box::pin(async move {
                    clock.sleep(lasts).await;
                    process.resume();
                }));
            }
            4 => chosen.process.kill(),
            5 => chosen.stops.store(true, Ordering::Relaxed),
            6 => self.medium.power_cut(),
            _ => {}
        }
        if lock(&self.seats).len() < PROCESSES_MAX && prng.chance(1, 2) {
            // Again on the host of that one, or on another.
            let host = if prng.chance(2, 3) { chosen.host } else { u128::from(prng.below(3)) };
            self.start(host, Duration::from_millis(prng.below(200)), Ways::Drawn(Mutex::new(prng.fork("again"))));
        }
    }
}

/// Write until the process is to stop, or may not.
async fn use_it(claimed: &Arc<Claimed>, world: &World, seat: &Seat, seen: &Mutex<Seen>) {
    let renewed = Claimed::renew(Arc::downgrade(claimed), world.clock.clone());
    world.spawn.spawn(Box::pin(async move { drop(renewed.await) }));
    let device: Device = claimed.clone();
    while !seat.stops.load(Ordering::Relaxed) {
        if device.write(DATA_OFFSET, full_of(4096, 1), false).await.outcome == Outcome::Failed(FailKind::Gone) {
            lock(seen).lost += 1;
            return;
        }
        world.clock.sleep(Duration::from_millis(97)).await;
    }
    let _ = claimed.release().await;
}

async fn put(medium: &Device, offset: u64, stamp: &Stamped) {
    let mut page = Buf::zeroed(4096);
    page.copy_from_slice(&stamp.encode());
    assert_eq!(medium.write(offset, Bufs::from(page).freeze(), true).await.outcome, Outcome::Done);
}

/// What the pages hold at first, by a process of host 0 that is gone: the claim, and the instance in the record.
async fn prepare(medium: &Device, prng: &mut Prng) {
    let (gone, released) = (holder(0, 5), prng.chance(1, 2));
    let stamp = |over| Stamped { holder: gone.clone(), counter: 9, released, over };
    let (claim, record) = match prng.below(5) {
        0 => return,
        // Of a release without records.
        1 => (stamp(None), None),
        2 => (Stamped { released: false, ..stamp(Some(4)) }, Some(4)),
        3 => (stamp(Some(4)), Some(6)),
        _ => (stamp(Some(4)), Some(5)),
    };
    put(medium, CLAIM_OFFSET, &claim).await;
    if let Some(instance) = record {
        let record = Stamped { holder: holder(0, instance), counter: 1, released: false, over: Some(0) };
        put(medium, CLAIM_RECORD_OFFSET, &record).await;
    }
}

/// The starts of a seed.
async fn race(executor: &Executor, sabotage: Option<Sabotage>, seed: u64) -> Seen {
    let mut prng = Prng::new(seed);
    let mut config = DiskConfig::plain("shared", SIZE);
    // Writes of the claim may be acknowledged and lost.
    let lost_ppm = if prng.chance(1, 4) { 50_000 } else { 0 };
    config.atlas = FaultAtlas::none().with(FaultKind::Lost, CLAIM_OFFSET..CLAIM_OFFSET + 4096, lost_ppm).with(
        FaultKind::Lost,
        CLAIM_RECORD_OFFSET..CLAIM_RECORD_OFFSET + 4096,
        lost_ppm,
    );
    let medium = SimDevice::new(config, &executor.handle(), &Situations::new());
    prepare(&medium.connect(&executor.root()), &mut prng).await;
    let rig = Rig {
        executor,
        outside: process_of(executor).1,
        medium,
        sabotage,
        seats: Arc::default(),
        seen: Arc::default(),
    };
    // Two processes of one host can reach an export.
    let one_host = prng.chance(1, 5);
    let within_ms = [3, 30, 200, 1000][prng.below(4) as usize];
    for number in 0..2 + prng.below(2) {
        let host = if one_host { 0 } else { u128::from(number) };
        // A foreign stamp that was not given back is watched first: the others may come at its end.
        let watched = if prng.chance(1, 3) { WATCH_FOR } else { Duration::ZERO };
        let after = watched + Duration::from_millis(prng.below(within_ms));
        let ways = if prng.chance(1, 4) {
            Ways::Steady(Duration::from_millis(prng.below(10)))
        } else {
            Ways::Drawn(Mutex::new(prng.fork(&format!("path {number}"))))
        };
        rig.start(host, after, ways);
    }
    for _ in 0..prng.below(7) {
        rig.happens(&mut prng).await;
    }
    rig.outside.clock.sleep(3 * WATCH_FOR).await;
    lock(&rig.seats).iter().for_each(|seat| seat.process.kill());
    std::mem::take(&mut *lock(&rig.seen))
}

/// The first race that shows a violation, and all figures up to it.
fn check(sabotage: Option<Sabotage>, seeds: u64) -> Seen {
    let mut all = Seen::default();
    for seed in 0..seeds {
        let seen = in_an_executor(async |executor| race(executor, sabotage, seed).await);
        all.taken += seen.taken;
        all.written += seen.written;
        all.refused += seen.refused;
        all.lost += seen.lost;
        if let Some(violation) = seen.violation {
            all.violation = Some(format!("seed {seed}: {violation}"));
            break;
        }
    }
    all
}

#[test]
fn of_several_starts_at_one_moment_one_changes_the_device() {
    let seen = check(None, RACES);
    assert_eq!(seen.violation, None);
    let figures =
        format!("{} taken, {} written, {} refused, {} lost", seen.taken, seen.written, seen.refused, seen.lost);
    assert!(
        seen.taken > 3000 && seen.written > 500_000 && seen.refused > 1000 && seen.lost > 50,
        "the races have everything in them: {figures}"
    );
}

#[test]
fn a_broken_start_is_caught() {
    for sabotage in Sabotage::RACES {
        let seen = check(Some(sabotage), RACES);
        assert!(seen.violation.is_some(), "{sabotage:?} is not caught");
    }
}

#[test]
fn a_page_that_cannot_be_read_is_written_anew() {
    in_an_executor(async |executor| {
        for offset in [CLAIM_OFFSET, CLAIM_RECORD_OFFSET] {
            let everywhere = FaultAtlas::none().with(FaultKind::Unreadable, 0..SIZE, 0);
            let config = DiskConfig { atlas: everywhere, ..DiskConfig::plain("shared", SIZE) };
            let medium = SimDevice::new(config, &executor.handle(), &Situations::new());
            let device = medium.connect(&executor.root());
            let start = async |instance| {
                let world = process_of(executor).1;
                let claimed = Claimed::new(&WatchedDevice::new(device.clone(), world.spawn.clone()), &world);
                let began = world.clock.now();
                claimed.take(holder(0, instance), |_| false, |_| ()).await.unwrap();
                (claimed, Duration::from_nanos(world.clock.now().ns_since(began)), world)
            };
            start(1 << 64).await;
            assert!(medium.make_unreadable(offset..offset + 4096));
            assert_eq!(start(2 << 64).await.1, WATCH_FOR, "it may name another");
            let (claimed, took, world) = start(3 << 64).await;
            assert_eq!(took, Duration::ZERO, "it was written anew");
            // So it is when its holder finds it so after a pause.
            assert!(medium.make_unreadable(offset..offset + 4096));
            world.clock.sleep(2 * OVERDUE_AFTER).await;
            let device: Device = claimed.clone();
            assert_eq!(device.write(DATA_OFFSET, full_of(4096, 1), false).await.outcome, Outcome::Done);
            assert_eq!(start(4 << 64).await.1, Duration::ZERO, "it was written anew");
        }
    });
}

#[test]
fn a_start_waits_for_a_stamp_that_was_left_behind_and_for_nothing_else() {
    in_an_executor(async |executor| {
        let stamp = |host, released, over| Stamped { holder: holder(host, 5), counter: 9, released, over };
        for (claim, record, waits) in [
            (None, None, false),
            // A clean stop, and one of this host and boot that is gone; also by a release without records.
            (Some(stamp(1, true, Some(4))), Some(5), false),
            (Some(stamp(0, false, Some(4))), Some(5), false),
            (Some(stamp(1, true, None)), None, false),
            (Some(stamp(0, false, None)), None, false),
            // Gone before it came to use the device.
            (Some(stamp(0, false, Some(4))), Some(4), false),
            (Some(stamp(1, false, Some(4))), Some(5), true),
            (Some(stamp(1, false, None)), None, true),
            // Another has taken the device since: the stamp was put over its one.
            (Some(stamp(1, true, Some(4))), Some(6), true),
            (Some(stamp(0, false, Some(4))), Some(6), true),
        ] {
            let medium = SimDevice::new(DiskConfig::plain("shared", SIZE), &executor.handle(), &Situations::new());
            let device = medium.connect(&executor.root());
            if let Some(claim) = &claim {
                put(&device, CLAIM_OFFSET, claim).await;
            }
            if let Some(instance) = record {
                let record = Stamped { holder: holder(1, instance), counter: 1, released: false, over: Some(0) };
                put(&device, CLAIM_RECORD_OFFSET, &record).await;
            }
            let world = process_of(executor).1;
            let claimed = Claimed::new(&WatchedDevice::new(device, world.spawn.clone()), &world);
            let began = world.clock.now();
            claimed.take(holder(0, 1 << 64), |_| false, |_| ()).await.unwrap();
            let took = Duration::from_nanos(world.clock.now().ns_since(began));
            let expected = if waits { WATCH_FOR } else { Duration::ZERO };
            assert_eq!(took, expected, "{claim:?}, {record:?}");
        }
    });
}
