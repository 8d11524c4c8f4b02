//! A device that takes as long as a model of a medium says, in real or in virtual time.
//!
//! The bytes go to the device below at once when the model begins to serve a request; the answer comes when both the
//! model and that device are done. Service times lie on a time line of their own, so late timers do not add up.
//! Never fails a request, never changes what is durable: a volatile cache of the model is one of time only.

mod model;

pub use model::{DISK_QUEUE_MAX, DiskModel, Model, PARALLEL_MAX, ParallelModel, UnknownModel};

use crate::clock::{Clock, Instant};
use crate::io::{Completer, Completion, Device, Geometry, Io, Op, Verb};
use crate::prng::Prng;
use crate::spawn::Spawn;
use crate::sync::lock;
use model::{Head, transfer_ns};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};

/// A request that has waited this long in a disk's queue is served next, however far away it is.
const STARVED_NS: u64 = 500_000_000;
/// Writes a disk's cache holds at most, besides its bytes.
const CACHED_WRITES_MAX: usize = 4096;

/// See the module's head.
pub struct Delay(Arc<Shared>);

struct Shared {
    inner: Device,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    model: Model,
    size_bytes: u64,
    state: Mutex<State>,
}

struct Waiting {
    op: Op,
    completer: Completer,
    since: Instant,
}

struct State {
    prng: Prng,
    /// In the order they came. Bounded by the requests in flight above.
    queue: VecDeque<Waiting>,
    busy: u32,
    /// When the actuator is free again.
    actuator_free_ns: u64,
    /// When the channels of a parallel medium are; those never used are missing, but for one.
    channels: BinaryHeap<Reverse<u64>>,
    /// When the bus is.
    bus_free_ns: u64,
    head: Head,
    /// Writes in the volatile cache not yet on the platter: by offset, length and number.
    cached: BTreeMap<u64, (u64, u64)>,
    cached_bytes: u64,
    /// The number of the one that is on its way.
    destaging: Option<u64>,
    /// The last step of the actuator was for the cache.
    destaged_last: bool,
    writes: u64,
    /// Flushes that wait for every cached write below a number.
    flushes: Vec<(u64, Completer)>,
}

/// What the actuator or a channel does next.
enum Step {
    /// Serve a request; it ends at the instant.
    Serve(Op, Completer, Instant),
    /// A cached write of so many bytes is on the platter at the instant.
    Destage { bytes: u64, end: Instant },
}

impl Delay {
    /// `inner` slowed down to `model`. Draws of chance come from `prng`.
    #[must_use]
    pub fn new(inner: Device, model: Model, clock: Arc<dyn Clock>, spawn: Arc<dyn Spawn>, prng: Prng) -> Arc<Delay> {
        let size_bytes = inner.geometry().size_bytes;
        let state = State {
            prng,
            queue: VecDeque::new(),
            busy: 0,
            actuator_free_ns: 0,
            channels: BinaryHeap::new(),
            bus_free_ns: 0,
            head: Head::default(),
            cached: BTreeMap::new(),
            cached_bytes: 0,
            destaging: None,
            destaged_last: false,
            writes: 0,
            flushes: Vec::new(),
        };
        Arc::new(Delay(Arc::new(Shared { inner, clock, spawn, model, size_bytes, state: Mutex::new(state) })))
    }
}

impl Io for Delay {
    fn geometry(&self) -> Geometry {
        let geometry = self.0.inner.geometry();
        match &self.0.model {
            Model::Disk(disk) => Geometry {
                rotational: true,
                volatile_cache: geometry.volatile_cache || disk.cache_bytes > 0,
                fast_zeroes: false,
                ..geometry
            },
            Model::Parallel(model) => Geometry {
                rotational: model.rotational,
                volatile_cache: geometry.volatile_cache || model.volatile_cache,
                ..geometry
            },
        }
    }

    fn submit(&self, op: Op) -> Completion {
        let (completer, completion) = Completion::pair();
        let now = self.0.clock.now();
        match (&self.0.model, op) {
            // Metadata of the device below: no medium is touched.
            (_, op @ Op::Status { .. }) => return self.0.inner.submit(op),
            (Model::Disk(disk), Op::Flush) if disk.cache_bytes > 0 => {
                let mut state = lock(&self.0.state);
                let barrier = state.writes;
                state.flushes.push((barrier, completer));
                drop(state);
                self.0.flush_ready();
            }
            (Model::Disk(disk), op @ Op::Write { fua: false, .. }) if disk.cache_bytes > 0 => {
                match self.0.cache(disk, &op, now) {
                    Some(end) => self.0.serve(op, completer, end, false),
                    None => self.0.queue(op, completer, now),
                }
            }
            (_, op) => self.0.queue(op, completer, now),
        }
        self.0.pump();
        completion
    }
}

impl Shared {
    /// Begin whatever can begin now.
    fn pump(self: &Arc<Self>) {
        loop {
            let step = {
                let mut state = lock(&self.state);
                let now = self.clock.now();
                match &self.model {
                    Model::Disk(disk) => state.next_of_disk(disk, self.size_bytes, now),
                    Model::Parallel(model) => state.next_of_parallel(model),
                }
            };
            match step {
                None => return,
                Some(Step::Serve(op, completer, end)) => {
                    self.serve(op, completer, end, true);
                }
                Some(Step::Destage { bytes, end }) => {
                    let shared = self.clone();
                    self.spawn.spawn(Box::pin(async move {
                        shared.clock.sleep_until(end).await;
                        {
                            let mut state = lock(&shared.state);
                            state.cached_bytes -= bytes;
                            state.destaging = None;
                        }
                        // First the answers, so that a flush is not kept waiting by the next step.
                        shared.flush_ready();
                        shared.freed();
                    }));
                }
            }
        }
    }

    fn queue(&self, op: Op, completer: Completer, since: Instant) {
        lock(&self.state).queue.push_back(Waiting { op, completer, since });
    }

    fn freed(self: &Arc<Self>) {
        lock(&self.state).busy -= 1;
        self.pump();
    }

    /// Take a write into the disk's cache if there is room: it ends after its transfer, at the instant.
    fn cache(&self, disk: &DiskModel, op: &Op, now: Instant) -> Option<Instant> {
        let (offset, len) = op.range();
        let mut state = lock(&self.state);
        if state.cached_bytes + len > disk.cache_bytes || state.cached.len() >= CACHED_WRITES_MAX {
            return None;
        }
        let number = state.writes;
        state.writes += 1;
        // A write of the same start replaces the older one but keeps its place in line for a flush.
        let entry = state.cached.entry(offset).or_insert((0, number));
        let grown = len.saturating_sub(entry.0);
        entry.0 += grown;
        state.cached_bytes += grown;
        let end_ns = now.0.max(state.bus_free_ns) + disk.command_ns + transfer_ns(len, disk.bus_bytes_per_s);
        state.bus_free_ns = end_ns;
        Some(Instant(end_ns))
    }

    /// Carry out a request that ends at `end` whatever the actuator does.
    fn serve(self: &Arc<Self>, op: Op, completer: Completer, end: Instant, is_busy: bool) {
        let inner = self.inner.submit(op);
        let shared = self.clone();
        self.spawn.spawn(Box::pin(async move {
            shared.clock.sleep_until(end).await;
            let completed = inner.await;
            if is_busy {
                shared.freed();
            }
            completer.complete(completed);
        }));
    }

    /// Issue the flushes whose writes are all on the platter.
    fn flush_ready(self: &Arc<Self>) {
        let ready: Vec<_> = {
            let mut state = lock(&self.state);
            if state.flushes.is_empty() {
                return;
            }
            let oldest = state.oldest_cached();
            let (ready, waiting) = std::mem::take(&mut state.flushes).into_iter().partition(|(b, _)| oldest >= *b);
            state.flushes = waiting;
            ready
        };
        for (_, completer) in ready {
            let inner = self.inner.submit(Op::Flush);
            self.spawn.spawn(Box::pin(async move { completer.complete(inner.await) }));
        }
    }
}

impl State {
    fn oldest_cached(&self) -> u64 {
        let cached = self.cached.values().map(|(_, number)| *number);
        cached.chain(self.destaging).min().unwrap_or(u64::MAX)
    }

    fn next_of_parallel(&mut self, model: &ParallelModel) -> Option<Step> {
        if self.busy >= model.parallel {
            return None;
        }
        let Waiting { op, completer, since } = self.queue.pop_front()?;
        self.busy += 1;
        let (_, len) = op.range();
        let (latency_ns, moved_bytes) = match op.verb() {
            Verb::Read => (self.prng.between(model.read_ns.0, model.read_ns.1), len),
            Verb::Write => (self.prng.between(model.write_ns.0, model.write_ns.1), len),
            Verb::WriteZeroes | Verb::Discard => (self.prng.between(model.write_ns.0, model.write_ns.1), 0),
            Verb::Flush | Verb::Status => (model.flush_ns, 0),
        };
        // A channel serves from when it was free, not from when a timer got round to saying so.
        let free_ns = self.channels.pop().map_or(0, |Reverse(ns)| ns);
        let mut end_ns = since.0.max(free_ns) + latency_ns;
        if moved_bytes > 0 && model.bytes_per_s > 0 {
            end_ns = end_ns.max(self.bus_free_ns) + transfer_ns(moved_bytes, model.bytes_per_s);
            self.bus_free_ns = end_ns;
        }
        self.channels.push(Reverse(end_ns));
        // Channels that have not been used yet are free since ever.
        if self.channels.len() < model.parallel as usize {
            self.channels.push(Reverse(0));
        }
        Some(Step::Serve(op, completer, Instant(end_ns)))
    }

    fn next_of_disk(&mut self, disk: &DiskModel, size_bytes: u64, now: Instant) -> Option<Step> {
        if self.busy > 0 {
            return None;
        }
        let pressed = !self.flushes.is_empty() || self.cached_bytes > disk.cache_bytes / 2;
        let destage = !self.cached.is_empty() && (self.queue.is_empty() || (pressed && !self.destaged_last));
        self.destaged_last = destage;
        if destage {
            return Some(self.destage(disk, size_bytes, now));
        }
        let starved = self.queue.front().is_some_and(|w| now.ns_since(w.since) > STARVED_NS);
        let window = if starved { 1 } else { DISK_QUEUE_MAX };
        let choice = self.queue.iter().take(window).enumerate();
        let (index, ready_ns) = choice
            .map(|(index, w)| {
                let start_ns = w.since.0.max(self.actuator_free_ns);
                (index, start_ns + self.reach_ns(disk, size_bytes, &w.op, start_ns))
            })
            .min_by_key(|(_, ready_ns)| *ready_ns)?;
        let Waiting { op, completer, .. } = self.queue.remove(index)?;
        let (offset, len) = op.range();
        let mut end_ns = ready_ns + disk.command_ns;
        if moves_head(&op) {
            end_ns += transfer_ns(len, disk.media_bytes_per_s);
            self.head = Head { at: offset + len, since_ns: end_ns };
        }
        self.actuator_free_ns = end_ns;
        self.busy = 1;
        Some(Step::Serve(op, completer, Instant(end_ns)))
    }

    /// How long until the platter is ready for a request.
    fn reach_ns(&self, disk: &DiskModel, size_bytes: u64, op: &Op, start_ns: u64) -> u64 {
        let reads = matches!(op, Op::Read { .. });
        if moves_head(op) { disk.position_ns(self.head, op.range().0, reads, size_bytes, start_ns) } else { 0 }
    }

    /// Bring one cached write to the platter: the quickest to reach of the next ones in the direction of the sweep.
    fn destage(&mut self, disk: &DiskModel, size_bytes: u64, now: Instant) -> Step {
        let start_ns = now.0.max(self.actuator_free_ns);
        let ahead = self.cached.range(self.head.at..).chain(self.cached.range(..self.head.at));
        let reached = ahead.take(DISK_QUEUE_MAX).map(|(at, _)| {
            let reach_ns = disk.position_ns(self.head, *at, false, size_bytes, start_ns);
            (start_ns + reach_ns, *at)
        });
        let Some((ready_ns, at)) = reached.min() else { unreachable!("the caller saw a cached write") };
        let Some((len, number)) = self.cached.remove(&at) else { unreachable!("it was found there") };
        let end_ns = ready_ns + transfer_ns(len, disk.media_bytes_per_s);
        self.head = Head { at: at + len, since_ns: end_ns };
        self.actuator_free_ns = end_ns;
        self.destaging = Some(number);
        self.busy = 1;
        Step::Destage { bytes: len, end: Instant(end_ns) }
    }
}

fn moves_head(op: &Op) -> bool {
    matches!(op, Op::Read { .. } | Op::Write { .. } | Op::WriteZeroes { .. })
}
