//! Goal: of two hosts that reach one device at most one writes to it at any time, and a start waits only where it must.
//! Method: processes of the virtual world on one device in memory, each with the claim of a host and boot of its own; one is
//! killed, stopped clean, paused for longer than its claim lasts, or goes on while the other starts. Without claims the same
//! two processes write over one another, which the check must notice; so must it with each way in which a claim may be broken.
#![expect(clippy::unwrap_used, reason = "tests")]

use celldisk::claim::{ClaimError, Claimed, Holder, OVERDUE_AFTER, RENEW_EVERY, Sabotage, WATCH_FOR};
use celldisk::layout::{CLAIM_OFFSET, DATA_OFFSET};
use device::layers::{Action, Fault, Faults, Memory, WatchedDevice};
use device::sync::lock;
use device::{
    Buf, Bufs, Clock, Completed, Completion, Device, FailKind, Geometry, Instant, Io, Op, Outcome, Prng, Spawn, Timer,
    Verb, WallTime, World,
};
use sim::executor::{Executor, Process};
use sim::plain::{full_of, in_an_executor, process_of};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 16 << 20;

fn holder(host: u128, boot: u128, instance: u128) -> Holder {
    // Each race of a process has an instance of its own, counted up.
    Holder { host, boot, instance: instance << 64, process: 1, process_started: 1, host_name: format!("host{host}") }
}

/// A clock whose wall time can be moved: what a host sees that was suspended.
struct Suspended {
    inner: Arc<dyn Clock>,
    slept_ns: AtomicU64,
}

impl Clock for Suspended {
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn wall(&self) -> WallTime {
        WallTime(self.inner.wall().0 + self.slept_ns.load(Ordering::Relaxed))
    }
    fn sleep_until(&self, at: Instant) -> Timer {
        self.inner.sleep_until(at)
    }
}

/// One host that uses a device.
struct User {
    process: Process,
    world: World,
    clock: Arc<Suspended>,
    claimed: Arc<Claimed>,
    holder: Holder,
    /// Whom its start was told to be waiting for.
    watched: Mutex<Vec<Option<Holder>>>,
}

impl User {
    fn new(executor: &Executor, medium: &Device, holder: Holder) -> User {
        User::sabotaged(executor, medium, holder, None)
    }

    fn sabotaged(executor: &Executor, medium: &Device, holder: Holder, sabotage: Option<Sabotage>) -> User {
        let (process, mut world) = process_of(executor);
        let clock = Arc::new(Suspended { inner: world.clock.clone(), slept_ns: AtomicU64::new(0) });
        world.clock = clock.clone();
        let watched = WatchedDevice::new(medium.clone(), world.spawn.clone());
        let claimed = Claimed::sabotaged(&watched, &world, sabotage);
        User { process, world, clock, claimed, holder, watched: Mutex::default() }
    }

    /// Take the claim as a server does; how long it took.
    async fn start(&self, others_alive: bool) -> Result<Duration, ClaimError> {
        let began = self.world.clock.now();
        let tell = |other: Option<&Holder>| lock(&self.watched).push(other.cloned());
        self.claimed.take(self.holder.clone(), |_| others_alive, tell).await?;
        self.renew();
        Ok(Duration::from_nanos(self.world.clock.now().ns_since(began)))
    }

    fn renew(&self) {
        let (claimed, clock) = (Arc::downgrade(&self.claimed), self.world.clock.clone());
        self.process.spawn(Box::pin(async move { drop(Claimed::renew(claimed, clock).await) }));
    }

    async fn write(&self, fill: u8) -> Outcome {
        let device: Device = self.claimed.clone();
        device.write(DATA_OFFSET, full_of(4096, fill), true).await.outcome
    }

    fn watched(&self) -> Vec<Option<Holder>> {
        lock(&self.watched).clone()
    }
}

async fn first_byte(medium: &Device) -> u8 {
    medium.read(DATA_OFFSET, Bufs::from(Buf::zeroed(4096))).await.bufs.to_vec(0..1)[0]
}

const GONE: Outcome = Outcome::Failed(FailKind::Gone);
const MOMENT: Duration = Duration::from_secs(1);

/// A process that was killed is there until the kernel has taken back its memory and closed its devices.
#[test]
fn a_start_waits_for_a_process_that_ends_no_longer_than_it_is_there() {
    in_an_executor(async |executor| {
        for (boot, ends_after) in [(1, Some(MOMENT * 2)), (1, None), (2, Some(MOMENT * 2))] {
            let medium: Device = Memory::new(SIZE);
            let first = User::new(executor, &medium, holder(1, 1, 10));
            first.start(false).await.unwrap();
            first.process.kill();
            let next = User::new(executor, &medium, holder(1, boot, 11));
            let began = next.world.clock.now();
            let is_there = |_: &Holder| {
                let age = Duration::from_nanos(next.world.clock.now().ns_since(began));
                ends_after.is_none_or(|ends| age < ends)
            };
            next.claimed.take(next.holder.clone(), is_there, |_| ()).await.unwrap();
            let took = Duration::from_nanos(next.world.clock.now().ns_since(began));
            let is_known = boot == 1 && ends_after.is_some();
            assert_eq!(took < WATCH_FOR / 2, is_known, "boot {boot}, ends after {ends_after:?}: {took:?}");
            assert!(took >= MOMENT * 2, "it is there: {took:?}");
        }
    });
}

#[test]
fn a_start_waits_only_after_an_unclean_stop_by_another_host_or_boot() {
    in_an_executor(async |executor| {
        for clean in [false, true] {
            for (host, boot) in [(1, 1), (1, 2), (2, 1)] {
                let medium: Device = Memory::new(SIZE);
                let first = User::new(executor, &medium, holder(1, 1, 10));
                assert!(first.start(false).await.unwrap() < MOMENT, "nobody has used it");
                assert_eq!(first.write(1).await, Outcome::Done);
                if clean {
                    first.claimed.release().await.unwrap();
                    assert_eq!(first.write(2).await, GONE, "it has been given back");
                }
                first.process.kill();
                let next = User::new(executor, &medium, holder(host, boot, 11));
                let took = next.start(false).await.unwrap();
                let waits = !clean && (host, boot) != (1, 1);
                assert_eq!(took >= WATCH_FOR, waits, "clean {clean}, host {host}, boot {boot}: {took:?}");
                let told = if waits { vec![Some(first.holder.clone())] } else { Vec::new() };
                assert_eq!(next.watched(), told, "the log names whom it waits for");
                assert_eq!(next.write(3).await, Outcome::Done);
            }
        }
    });
}

#[test]
fn a_device_in_use_is_refused_and_its_user_is_named() {
    in_an_executor(async |executor| {
        let medium: Device = Memory::new(SIZE);
        let first = User::new(executor, &medium, holder(1, 1, 10));
        first.start(false).await.unwrap();
        for (host, boot) in [(1, 1), (1, 2), (2, 1)] {
            let other = User::new(executor, &medium, holder(host, boot, 11));
            let refused = other.start(true).await.unwrap_err();
            assert_eq!(refused, ClaimError::InUse(first.holder.clone()));
            assert!(refused.to_string().contains("host1") && refused.to_string().contains("boot 0"), "{refused}");
            assert_eq!(first.write(1).await, Outcome::Done, "the refused one has written nothing");
            other.process.kill();
        }
        // A copy of the device, made while it is used: nobody renews the stamp on it.
        let copy = medium.read(CLAIM_OFFSET, Bufs::from(Buf::zeroed(4096))).await.bufs.freeze();
        let snapshot: Device = Memory::new(SIZE);
        assert_eq!(snapshot.write(CLAIM_OFFSET, copy, true).await.outcome, Outcome::Done);
        let user = User::new(executor, &snapshot, holder(1, 1, 12));
        assert!(user.start(true).await.unwrap() >= WATCH_FOR);
    });
}

#[test]
fn a_paused_host_looks_before_it_writes_and_finds_the_other() {
    in_an_executor(async |executor| {
        let medium: Device = Memory::new(SIZE);
        let paused = User::new(executor, &medium, holder(1, 1, 10));
        let tell = |_: Option<&Holder>| ();
        // Paused: it has its claim, and nothing of it runs.
        paused.claimed.take(paused.holder.clone(), |_| false, tell).await.unwrap();
        let other = User::new(executor, &medium, holder(2, 2, 11));
        assert!(other.start(false).await.unwrap() >= WATCH_FOR);
        assert_eq!(other.write(2).await, Outcome::Done);
        // It goes on: its clock has stood still or has gone on, both are seen.
        assert_eq!(paused.write(1).await, GONE);
        let device: Device = paused.claimed.clone();
        assert_eq!(device.flush().await.outcome, GONE);
        assert_eq!(device.write_zeroes(DATA_OFFSET, 4096, true, true).await.outcome, GONE);
        assert_eq!(device.discard(DATA_OFFSET, 4096).await.outcome, GONE);
        assert_eq!(device.read(DATA_OFFSET, Bufs::from(Buf::zeroed(4096))).await.outcome, Outcome::Done);
        assert_eq!(first_byte(&medium).await, 2);
    });
}

#[test]
fn a_suspended_host_whose_monotonic_clock_stood_still_looks_first() {
    in_an_executor(async |executor| {
        for taken_over in [false, true] {
            let medium: Device = Memory::new(SIZE);
            let suspended = User::new(executor, &medium, holder(1, 1, 10));
            suspended.claimed.take(suspended.holder.clone(), |_| false, |_| ()).await.unwrap();
            if taken_over {
                // In no time, as its own clock sees it.
                let other = User::new(executor, &medium, holder(1, 1, 11));
                other.start(false).await.unwrap();
                assert_eq!(other.write(2).await, Outcome::Done);
            }
            suspended.clock.slept_ns.store(OVERDUE_AFTER.as_nanos() as u64 + 1, Ordering::Relaxed);
            let expected = if taken_over { GONE } else { Outcome::Done };
            assert_eq!(suspended.write(1).await, expected, "taken over: {taken_over}");
        }
    });
}

#[test]
fn a_foreign_stamp_ends_writes_with_the_next_renewal_and_is_named() {
    in_an_executor(async |executor| {
        let medium: Device = Memory::new(SIZE);
        let first = User::new(executor, &medium, holder(1, 1, 10));
        first.claimed.take(first.holder.clone(), |_| false, |_| ()).await.unwrap();
        let (claimed, clock) = (Arc::downgrade(&first.claimed), first.world.clock.clone());
        let lost = Claimed::renew(claimed, clock);
        // Of the same host and boot, thought dead: nobody waits.
        let other = User::new(executor, &medium, holder(1, 1, 11));
        other.start(false).await.unwrap();
        let began = first.world.clock.now();
        assert_eq!(lost.await, Some(other.holder.clone()));
        assert!(first.world.clock.now().ns_since(began) <= 2 * RENEW_EVERY.as_nanos() as u64);
        assert_eq!(first.write(1).await, GONE);
        assert_eq!(other.write(2).await, Outcome::Done);
        assert_eq!(first.claimed.release().await, Ok(()), "nothing of its own is there to be given back");
        assert_eq!(other.write(3).await, Outcome::Done);
    });
}

#[test]
fn a_claim_that_was_wiped_or_cannot_be_read_is_written_anew() {
    in_an_executor(async |executor| {
        for fill in [0, 0x5a] {
            let medium: Device = Memory::new(SIZE);
            let first = User::new(executor, &medium, holder(1, 1, 10));
            first.start(false).await.unwrap();
            assert_eq!(medium.write(CLAIM_OFFSET, full_of(4096, fill), true).await.outcome, Outcome::Done);
            first.world.clock.sleep(2 * RENEW_EVERY).await;
            assert_eq!(first.write(1).await, Outcome::Done);
            let other = User::new(executor, &medium, holder(2, 2, 11));
            assert_eq!(other.start(false).await, Err(ClaimError::InUse(first.holder.clone())), "it is there again");
        }
    });
}

#[test]
fn without_claims_two_hosts_write_over_one_another() {
    in_an_executor(async |executor| {
        let medium: Device = Memory::new(SIZE);
        let [a, b] = [10, 11].map(|instance| User::new(executor, &medium, holder(instance, 1, instance)));
        assert_eq!((a.write(1).await, b.write(2).await), (Outcome::Done, Outcome::Done));
        a.world.clock.sleep(OVERDUE_AFTER).await;
        assert_eq!(a.write(1).await, Outcome::Done, "nothing stops it");
        assert_eq!(first_byte(&medium).await, 1);
    });
}

/// What a random history has shown.
#[derive(Default)]
struct Seen {
    written: u32,
    not_written: u32,
    refused: u32,
    /// What must not be, if it was.
    violation: Option<String>,
}

/// Users of three hosts, in as many boots, come and go on one device: they write, are paused from their start on, killed, or stopped
/// clean. Nobody's write may be taken after another has begun to use the device.
async fn history(executor: &Executor, sabotage: Option<Sabotage>, seed: u64) -> Seen {
    let mut prng = Prng::new(seed);
    let mut seen = Seen::default();
    let medium: Device = Memory::new(SIZE);
    // With whether they live. They began to use the device in this order.
    let mut users: Vec<(User, bool)> = Vec::new();
    for step in 0..40_u128 {
        let chosen = prng.below(users.len().max(1) as u64) as usize;
        match (prng.below(8), users.get_mut(chosen)) {
            (0 | 1, _) | (_, None) => {
                let host = u128::from(prng.below(3));
                let holder = holder(host, u128::from(prng.below(2)), 100 + step);
                let user = User::sabotaged(executor, &medium, holder.clone(), sabotage);
                let is_alive = |other: &Holder| users.iter().any(|(user, alive)| *alive && user.holder == *other);
                match user.claimed.take(holder, is_alive, |_| ()).await {
                    Ok(()) => {
                        if prng.chance(2, 3) {
                            user.renew();
                        }
                        users.push((user, true));
                    }
                    Err(_) => seen.refused += 1,
                }
            }
            (2, Some((user, alive))) => {
                user.process.kill();
                *alive = false;
            }
            // What has stopped clean may still be asked to write, by whoever holds the device.
            (3, Some((user, true))) => user.claimed.release().await.unwrap(),
            (4, _) => users[0].0.world.clock.sleep(Duration::from_millis(prng.below(12_000))).await,
            (_, Some((user, true))) => {
                let taken = user.write(1).await == Outcome::Done;
                *if taken { &mut seen.written } else { &mut seen.not_written } += 1;
                let last = &users[users.len() - 1].0.holder;
                let writer = &users[chosen].0.holder;
                if taken && last != writer {
                    seen.violation = Some(format!("step {step}: {writer} wrote to what {last} uses"));
                    return seen;
                }
            }
            (_, Some((_, false))) => {}
        }
    }
    users.iter().filter(|(_, alive)| *alive).for_each(|(user, _)| user.process.kill());
    seen
}

/// The first history that shows a violation, and all figures up to it.
fn check(sabotage: Option<Sabotage>, seeds: u64) -> Seen {
    let mut all = Seen::default();
    for seed in 0..seeds {
        let seen = in_an_executor(async |executor| history(executor, sabotage, seed).await);
        all.written += seen.written;
        all.not_written += seen.not_written;
        all.refused += seen.refused;
        if let Some(violation) = seen.violation {
            all.violation = Some(format!("seed {seed}, {violation}"));
            break;
        }
    }
    all
}

#[test]
fn nobody_writes_to_what_another_uses_whatever_the_history() {
    let seen = check(None, 500);
    assert_eq!(seen.violation, None);
    assert!(
        seen.written > 500 && seen.not_written > 500 && seen.refused > 100,
        "the histories have everything in them"
    );
}

#[test]
fn a_broken_claim_is_caught() {
    // The others are caught by `claim_races`.
    for sabotage in Sabotage::ALL.into_iter().filter(|sabotage| !Sabotage::RACES.contains(sabotage)) {
        let seen = check(Some(sabotage), 500);
        assert!(seen.violation.is_some(), "{sabotage:?} is not caught");
    }
}

/// A device that acknowledges writes and does not have them.
struct Loses(Device);

impl Io for Loses {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&self, op: Op) -> Completion {
        match op {
            Op::Write { .. } => Completion::ready(Completed::bare(Outcome::Done)),
            other => self.0.submit(other),
        }
    }
}

#[test]
fn a_device_that_loses_the_claim_is_in_use_by_nobody() {
    in_an_executor(async |executor| {
        let medium: Device = Memory::new(SIZE);
        let first = User::new(executor, &medium, holder(1, 1, 10));
        first.start(false).await.unwrap();
        first.process.kill();
        let loses: Device = Arc::new(Loses(medium));
        let next = User::new(executor, &loses, holder(1, 1, 11));
        assert_eq!(
            next.start(false).await,
            Err(ClaimError::NotThere),
            "nobody has written: the stamp of before is there"
        );
    });
}

#[test]
fn a_claim_that_cannot_be_read_at_first_is_that_of_whom_it_names() {
    in_an_executor(async |executor| {
        let medium: Device = Memory::new(SIZE);
        let first = User::new(executor, &medium, holder(1, 1, 10));
        first.start(false).await.unwrap();
        let faults = Faults::new(medium, first.world.spawn.clone());
        let fails = || faults.add(Fault::next(Verb::Read, Action::Fail(FailKind::Media)));
        // One that is alive is found out, whatever was read first.
        fails();
        let device: Device = faults.clone();
        let other = User::new(executor, &device, holder(2, 1, 11));
        assert_eq!(other.start(false).await, Err(ClaimError::InUse(first.holder.clone())));
        first.process.kill();
        fails();
        let next = User::new(executor, &device, holder(1, 1, 12));
        assert!(next.start(false).await.unwrap() < WATCH_FOR / 2, "its process is dead, once its stamp can be read");
    });
}
