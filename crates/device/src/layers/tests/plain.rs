//! memory, flush gate, stats, trace, fault.

use super::world::{Seam, World, all};
use crate::buf::{Buf, Bufs, SharedBufs};
use crate::clock::{Clock, Instant};
use crate::io::{Class, Completed, Completion, Device, FailKind, Geometry, Io, Op, Outcome, Verb};
use crate::layers::{
    Action, Delay, Fault, Faults, FlushGate, Histogram, Memory, Model, Silence, StartDeadline, StartLimits, Stats,
    Trace,
};
use crate::prng::Prng;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: usize = 1 << 20;

fn room(len: usize) -> Bufs {
    Buf::zeroed(len).into()
}

fn data(bytes: &[u8]) -> SharedBufs {
    Buf::padded(bytes, 1).freeze().into()
}

/// The result of a completion that is ready at once.
fn now(completion: Completion) -> Completed {
    let (world, _, _) = World::new();
    world.block_on(completion)
}

fn content(device: &Device) -> Vec<u8> {
    now(device.read(0, room(SIZE))).bufs.to_vec(0..SIZE)
}

#[test]
fn memory_agrees_with_an_array_and_forgets_what_it_may() {
    for forgets in [false, true] {
        let geometry = Geometry { class: Class::Ephemeral, ..Memory::new(SIZE as u64).geometry() };
        let memory = Memory::with_geometry(geometry, forgets);
        let device: Device = memory.clone();
        assert_eq!(device.geometry().volatile_cache, forgets);
        let mut prng = Prng::new(u64::from(forgets));
        let (mut model, mut durable) = (vec![0_u8; SIZE], vec![0_u8; SIZE]);
        for _ in 0..3000 {
            let start = prng.below(SIZE as u64 / 512) as usize * 512;
            let len = (prng.between(1, 300) as usize * 512).min(SIZE - start);
            let range = start..start + len;
            let fua = prng.chance(1, 4);
            match prng.below(100) {
                0..40 => {
                    let mut bytes = vec![0; len];
                    prng.fill(&mut bytes);
                    now(device.write(start as u64, data(&bytes), fua)).outcome.ok().unwrap();
                    model[range.clone()].copy_from_slice(&bytes);
                    if fua {
                        durable[range].copy_from_slice(&bytes);
                    }
                }
                40..55 => {
                    now(device.write_zeroes(start as u64, len as u64, fua, true)).outcome.ok().unwrap();
                    model[range.clone()].fill(0);
                    if fua {
                        durable[range].fill(0);
                    }
                }
                55..60 => {
                    now(device.discard(start as u64, len as u64)).outcome.ok().unwrap();
                    model[range].fill(0);
                }
                60..90 => {
                    let read = now(device.read(start as u64, room(len)));
                    assert!(read.bufs.to_vec(0..len) == model[range]);
                }
                90..97 => {
                    now(device.flush()).outcome.ok().unwrap();
                    durable.clone_from(&model);
                }
                _ => {
                    memory.power_cut();
                    if forgets {
                        model.clone_from(&durable);
                    } else {
                        durable.clone_from(&model);
                    }
                    assert!(content(&(memory.clone() as Device)) == model);
                }
            }
        }
    }
}

#[test]
fn memory_is_sparse_and_says_so() {
    let memory = Memory::new(1 << 40);
    let device: Device = memory.clone();
    assert_eq!(memory.used_bytes(), 0);
    now(device.write(1 << 39, data(&[1; 4096]), false)).outcome.ok().unwrap();
    assert_eq!(memory.used_bytes(), 65536);
    let status = now(device.submit(Op::Status { offset: (1 << 39) - 65536, len: 3 * 65536 }));
    let extents: Vec<_> = status.extents.iter().map(|e| (e.len, e.hole)).collect();
    assert_eq!(extents, [(65536, true), (65536, false), (65536, true)]);
    now(device.discard(1 << 39, 65536)).outcome.ok().unwrap();
    assert_eq!(memory.used_bytes(), 0);
    assert_eq!(now(device.read(1 << 40, room(512))).outcome, Outcome::Failed(FailKind::Invalid));
    memory.set_gone(true);
    assert_eq!(now(device.flush()).outcome, Outcome::Failed(FailKind::Gone));
}

#[test]
fn the_gate_lets_one_flush_through_and_one_wait() {
    let (world, _, spawn) = World::new();
    let faults = Faults::new(Memory::new(SIZE as u64), spawn.clone());
    let gate = FlushGate::new(faults.clone(), spawn);
    let device: Device = gate.clone();
    faults.add(Fault::every(Verb::Flush, Action::Stall));
    let first = device.flush();
    assert_eq!(faults.stalled(), 1, "issued at once");
    let rest: Vec<_> = (0..10).map(|_| device.flush()).collect();
    world.settle();
    assert_eq!(faults.stalled(), 1, "one in flight");
    faults.release();
    assert_eq!(world.block_on(first).outcome, Outcome::Done);
    world.settle();
    // The ten were not covered by the first: a second flush is in flight for all of them.
    assert_eq!((gate.counts(), faults.stalled()), ((11, 2), 1));
    // One that comes now is not covered by the second either.
    let late = device.flush();
    faults.clear();
    faults.release();
    assert!(world.block_on(all(rest)).iter().all(|c| c.outcome == Outcome::Done));
    assert_eq!(world.block_on(late).outcome, Outcome::Done);
    assert_eq!(gate.counts(), (12, 3));
}

#[test]
fn the_gate_goes_on_when_nobody_waits_and_hands_out_failures() {
    let (world, _, spawn) = World::new();
    let faults = Faults::new(Memory::new(SIZE as u64), spawn.clone());
    let gate = FlushGate::new(faults.clone(), spawn);
    let device: Device = gate.clone();
    faults.add(Fault::next(Verb::Flush, Action::Stall));
    drop(device.flush());
    drop(device.flush());
    let third = device.flush();
    faults.add(Fault { skip: 0, ..Fault::next(Verb::Flush, Action::Fail(FailKind::Media)) });
    faults.release();
    assert_eq!(world.block_on(third).outcome, Outcome::Failed(FailKind::Media));
    // The failure belongs to that flush alone.
    assert_eq!(world.block_on(device.flush()).outcome, Outcome::Done);
    assert_eq!(gate.counts().1, 3);
}

#[test]
fn histograms_are_within_a_thirty_second() {
    let histogram = Histogram::default();
    let mut prng = Prng::new(5);
    let mut values: Vec<u64> = (0..20_000)
        .map(|_| {
            let bits = prng.between(0, 38);
            prng.below(1 << bits)
        })
        .collect();
    for value in &values {
        histogram.record(*value);
    }
    values.sort_unstable();
    let snapshot = histogram.snapshot();
    assert_eq!(snapshot.count, values.len() as u64);
    assert_eq!(snapshot.sum, values.iter().sum::<u64>());
    assert_eq!(snapshot.quantile(1, 1), *values.last().unwrap());
    for (numerator, denominator) in [(0, 1), (1, 4), (1, 2), (3, 4), (99, 100), (999, 1000), (9999, 10_000)] {
        let rank = (values.len() as u64 * numerator).div_ceil(denominator).max(1);
        let exact = values[rank as usize - 1];
        let found = snapshot.quantile(numerator, denominator);
        assert!(found >= exact && found <= exact + exact / 32, "{numerator}/{denominator}: {found}, exactly {exact}");
    }
    let since = histogram.snapshot().since(&snapshot);
    assert_eq!((since.count, since.sum, since.quantile(1, 2), since.mean()), (0, 0, 0, 0));
    // The ends of the scale.
    histogram.record(u64::MAX >> 1);
    assert_eq!(histogram.snapshot().max, u64::MAX >> 1);
}

#[test]
fn stats_count_by_verb_and_outcome() {
    let (world, clock, spawn) = World::new();
    let delay =
        Delay::new(Memory::new(SIZE as u64), Model::fixed(4_000_000, 4), clock.clone(), spawn.clone(), Prng::new(1));
    let faults = Faults::new(delay, spawn);
    let stats = Stats::new(faults.clone(), clock);
    let device: Device = stats.clone();
    let reader = device.clone();
    world.block_on(async move { all((0..8).map(|i| reader.read(i * 4096, room(4096))).collect::<Vec<_>>()).await });
    let reads = stats.verb(Verb::Read);
    assert_eq!((reads.done, reads.bytes, reads.in_flight), (8, 8 * 4096, 0));
    // Four at a time: half of them after 4 ms, half after 8.
    assert_eq!((reads.latency_ns.mean(), reads.latency_ns.max), (6_000_000, 8_000_000));
    assert!(reads.latency_ns.quantile(1, 2).abs_diff(4_000_000) < 4_000_000 / 32);
    faults.add(Fault::next(Verb::Write, Action::Short(512)));
    faults.add(Fault::next(Verb::Write, Action::Fail(FailKind::NoSpace)));
    faults.add(Fault::next(Verb::Write, Action::Unknown { carried_out: false }));
    for _ in 0..3 {
        world.block_on(device.write(0, data(&[1; 1024]), false));
    }
    let waiting = device.write(0, data(&[1; 1024]), false);
    let writes = stats.verb(Verb::Write);
    assert_eq!((writes.short, writes.failed, writes.unknown, writes.in_flight), (1, 1, 1, 1));
    assert_eq!((writes.done, writes.bytes), (0, 512));
    drop(waiting);
    assert_eq!(stats.verb(Verb::Write).unknown, 2, "nobody will learn how it ended");
    assert_eq!(stats.snapshot().len(), Verb::ALL.len());
}

#[test]
fn the_trace_keeps_the_last_requests() {
    let (world, clock, spawn) = World::new();
    let delay = Delay::new(Memory::new(SIZE as u64), Model::fixed(1_000, 1), clock.clone(), spawn, Prng::new(1));
    let trace = Trace::new(delay, clock, 4);
    let device: Device = trace.clone();
    for step in 0..6_u64 {
        world.block_on(device.write(step * 512, data(&[1; 512]), step == 5));
    }
    let pending = device.read(0, room(512));
    let recent = trace.recent();
    let sequences: Vec<_> = recent.iter().map(|e| e.sequence).collect();
    assert_eq!(sequences, [3, 4, 5, 6]);
    let fua: Vec<_> = recent.iter().map(|e| e.fua).collect();
    assert_eq!(fua, [false, false, true, false]);
    let (end, outcome) = recent[2].end.unwrap();
    assert_eq!((end.ns_since(recent[2].start), outcome), (1_000, Outcome::Done));
    assert_eq!((recent[3].verb, recent[3].end), (Verb::Read, None));
    world.block_on(pending);
    assert!(trace.recent()[3].end.is_some());
}

#[test]
fn faults_strike_where_they_are_told_to() {
    let (world, _, spawn) = World::new();
    let memory = Memory::new(SIZE as u64);
    let faults = Faults::new(memory.clone(), spawn);
    let device: Device = faults.clone();
    world.block_on(device.write(0, data(&[7; 8192]), false)).outcome.ok().unwrap();
    // By range, by count, after some that pass.
    let id = faults.add(Fault {
        verbs: vec![Verb::Read],
        range: Some(4096..8192),
        skip: 1,
        count: 2,
        action: Action::Fail(FailKind::Media),
    });
    let outcomes: Vec<_> =
        (0..4).map(|_| world.block_on(device.read(4096, room(512))).outcome == Outcome::Done).collect();
    assert_eq!(outcomes, [true, false, false, true]);
    assert_eq!(world.block_on(device.read(0, room(4096))).outcome, Outcome::Done, "touches no byte of the range");
    faults.remove(id);
    // Short: the first bytes are there, whole units only, and all of the buffers come back.
    faults.add(Fault::next(Verb::Read, Action::Short(1000)));
    let read = world.block_on(device.read(0, room(4096)));
    assert_eq!((read.outcome, read.bufs.len_bytes()), (Outcome::Short(512), 4096));
    assert_eq!(read.bufs.to_vec(0..512), [7; 512]);
    faults.add(Fault::next(Verb::Write, Action::Short(512)));
    let written = world.block_on(device.write(0, data(&[9; 1024]), false));
    assert_eq!(written.outcome, Outcome::Short(512));
    assert_eq!(content(&(memory.clone() as Device))[..1024], [[9_u8; 512], [7; 512]].concat());
    // Unknown: done or not.
    faults.add(Fault::next(Verb::Write, Action::Unknown { carried_out: true }));
    faults.add(Fault::next(Verb::Write, Action::Unknown { carried_out: false }));
    assert_eq!(world.block_on(device.write(0, data(&[1; 512]), false)).outcome, Outcome::Unknown);
    assert_eq!(world.block_on(device.write(512, data(&[1; 512]), false)).outcome, Outcome::Unknown);
    assert_eq!(content(&(memory.clone() as Device))[..1024], [[1_u8; 512], [7; 512]].concat());
    assert_eq!(faults.struck(), 6);
    // A stall holds everything until it is released, also what nobody waits for.
    faults.clear();
    faults.add(Fault { verbs: Vec::new(), ..Fault::every(Verb::Flush, Action::Stall) });
    drop(device.write(0, data(&[3; 512]), false));
    let flush = device.flush();
    assert_eq!((faults.stalled(), content(&(memory.clone() as Device))[0]), (2, 1));
    faults.clear();
    faults.release();
    assert_eq!(world.block_on(flush).outcome, Outcome::Done);
    assert_eq!((faults.stalled(), content(&(memory.clone() as Device))[0]), (0, 3));
}

#[test]
fn layers_stack_as_one_device() {
    let (world, clock, spawn) = World::new();
    let memory: Device = Memory::new(SIZE as u64);
    let delay = Delay::new(memory, Model::fixed(10, 2), clock.clone(), spawn.clone(), Prng::new(1));
    let gate = FlushGate::new(Trace::new(Stats::new(delay, clock.clone()), clock, 8), spawn);
    let device: Device = gate;
    world.block_on(async move {
        device.write(512, data(&[5; 512]), true).await.outcome.ok().unwrap();
        device.flush().await.outcome.ok().unwrap();
        assert_eq!(device.read(512, room(512)).await.bufs.to_vec(0..512), [5; 512]);
    });
}

/// A device with a deadline of 30 s over one with faults, and what is told of its silences.
struct Starting {
    world: Arc<World>,
    faults: Arc<Faults>,
    device: Arc<StartDeadline>,
    told: Arc<Mutex<Vec<Silence>>>,
}

impl Starting {
    fn new() -> Starting {
        let (world, clock, spawn) = World::new();
        let faults = Faults::new(Memory::new(SIZE as u64), spawn.clone());
        let limits = StartLimits { tell_after: Duration::from_secs(2), give_up_after: Duration::from_secs(30) };
        let told = Arc::<Mutex<Vec<Silence>>>::default();
        let hears = told.clone();
        let tell = Arc::new(move |what| hears.lock().unwrap().push(what));
        let device = StartDeadline::new(faults.clone(), clock, spawn, limits, tell);
        Starting { world, faults, device, told }
    }

    fn submit(&self, op: Op) -> Completion {
        self.device.submit(op)
    }

    fn read(&self) -> Completion {
        self.submit(Op::Read { offset: 4096, bufs: room(512) })
    }

    fn told(&self) -> Vec<Silence> {
        std::mem::take(&mut self.told.lock().unwrap())
    }
}

const WAITS: Silence = Silence::Waits { verb: Verb::Read, offset: 4096, len: 512 };

#[test]
fn a_start_goes_on_without_a_device_that_does_not_answer() {
    let start = Starting::new();
    assert_eq!(start.world.block_on(start.read()).outcome, Outcome::Done);
    start.faults.add(Fault { verbs: Vec::new(), range: None, skip: 0, count: u64::MAX, action: Action::Stall });
    let (read, flush) = (start.read(), start.submit(Op::Flush));
    assert_eq!(start.world.block_on(read).outcome, Outcome::Failed(FailKind::Gone));
    assert_eq!(start.world.now_ns(), 30_000_000_000);
    assert_eq!(start.world.block_on(flush).outcome, Outcome::Unknown, "it may still happen");
    assert_eq!(start.world.now_ns(), 30_000_000_000, "both had the same deadline");
    assert_eq!(start.told(), [WAITS, Silence::GivenUp]);
    // The next ones do not wait, and nothing comes back by itself.
    start.faults.clear();
    start.faults.release();
    start.world.settle();
    start.device.end();
    assert_eq!(start.world.block_on(start.read()).outcome, Outcome::Failed(FailKind::Gone));
    assert_eq!((start.world.now_ns(), start.device.is_silent()), (30_000_000_000, true));
}

#[test]
fn a_slow_device_is_waited_for() {
    let start = Starting::new();
    start.faults.add(Fault::next(Verb::Read, Action::Stall));
    let (read, faults) = (start.read(), start.faults.clone());
    let clock = Seam(start.world.clone());
    start.world.block_on(clock.sleep_until(Instant(29_000_000_000)));
    assert_eq!(start.told(), [WAITS]);
    faults.release();
    assert_eq!(start.world.block_on(read).outcome, Outcome::Done);
    assert_eq!(start.told(), [Silence::Answered]);
    // After the start there is no deadline, for requests under way neither.
    start.faults.add(Fault { count: 2, ..Fault::every(Verb::Read, Action::Stall) });
    let before = start.read();
    start.device.end();
    let after = start.read();
    start.world.block_on(clock.sleep_until(Instant(100_000_000_000)));
    faults.release();
    assert_eq!(start.world.block_on(before).outcome, Outcome::Done);
    assert_eq!(start.world.block_on(after).outcome, Outcome::Done);
    assert_eq!((start.told(), start.device.is_silent()), (Vec::new(), false));
}
