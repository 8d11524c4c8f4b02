//! A device in memory that does everything a real one may do, and, where the atlas permits, what a broken one does.
//!
//! Sound behaviour (always on, as far as [`DiskConfig`] draws it): requests overlap, take effect in parts at any moment
//! between submission and completion, and complete in any order; completed writes lie in a volatile cache that
//! destages by itself; a flush covers exactly what completed before it was issued; a power cut keeps or loses each
//! 512-byte sector of everything not durable by itself; discarded sectors read as anything until overwritten.
//! Faults (see [`FaultKind`]) strike only where the [`FaultAtlas`] permits them.
//!
//! A device is hardware: it outlives processes. Each process gets a connection of its own ([`SimDevice::connect`]);
//! what a dead process had under way may still happen, but nobody is told. Never allocates from anybody's arena, never
//! keeps a caller's buffer past its completion.

mod config;
mod faults;
mod flight;
mod harm;
mod image;
mod medium;
mod outcome;

pub use config::{DiskConfig, FLUSH_NS_MIN, Latency, Span};
pub use faults::{Armed, FaultAtlas, FaultKind, FaultZone};

use crate::executor::{EventSink, Handle, Process};
use crate::situations::Situations;
use crate::trace::Trace;
use device::sync::lock;
use device::{Class, Completed, Completion, Device, FailKind, Geometry, Instant, Io, Op, Outcome, Prng, Verb};
use flight::{Flight, PartState};
use medium::Medium;
use outcome::{Told, content_hash, outcome_code, status, tell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

/// What is never torn, and the unit of every fault.
pub const SECTOR_BYTES: usize = 512;
/// Requests under way at once; a real queue is far shorter.
pub const FLIGHTS_MAX: usize = 1 << 16;
/// How long a request that [`FaultKind::Slow`] strikes takes at least and at most.
const SLOW_NS: Span = Span::new(10_000_000, 20_000_000_000);

/// Part numbers of event tokens; the rest of a token is the request's number.
const PART_BITS: u32 = 8;
const PART_COMPLETION: u64 = 0xff;
const PART_RELEASE: u64 = 0xfe;

/// Requests and bytes so far, by verb in the order of [`Verb::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Requests submitted.
    pub requests: [u64; Verb::ALL.len()],
    /// Their bytes.
    pub bytes: [u64; Verb::ALL.len()],
}

/// The content of a medium at some time, to be put back later or into another device.
#[derive(Clone)]
pub struct Snapshot {
    medium: Medium,
    size_bytes: u64,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} B)", self.size_bytes)
    }
}

struct Stall {
    number: u64,
    verbs: Vec<Verb>,
    /// What would have taken effect waits too; else only completions do.
    holds_effects: bool,
    held: Vec<u64>,
}

struct State {
    geometry: Geometry,
    prng: Prng,
    medium: Medium,
    flights: BTreeMap<u64, Flight>,
    next_op: u64,
    /// Completions of writes so far.
    done: u64,
    gone: bool,
    stall: Option<Stall>,
    armed: Vec<Armed>,
    atlas: FaultAtlas,
    counts: DiskCounts,
    on_flush: Option<FlushHook>,
    /// To be told once the lock is released.
    flush_news: Vec<FlushNews>,
}

/// What a device tells of its flushes, at the moment at which it happens and before anybody has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushNews {
    /// A flush with this number was submitted: it covers what has completed.
    Begun(u64),
    /// It succeeded.
    Done(u64),
    /// One failed, or a durable write did, and the volatile cache dropped completed writes.
    Dropped,
}

/// Called by a device, see [`SimDevice::on_flush`].
pub type FlushHook = Arc<dyn Fn(FlushNews) + Send + Sync>;

/// A simulated device. See the module's head.
pub struct SimDevice {
    config: DiskConfig,
    id: u64,
    handle: Handle,
    trace: Trace,
    situations: Situations,
    me: Weak<SimDevice>,
    state: Mutex<State>,
}

impl SimDevice {
    /// A blank device: it reads as zeroes.
    ///
    /// # Panics
    /// When the geometry is not in whole 512-byte sectors, or `parts_max` is 0 or above 100.
    #[must_use]
    pub fn new(config: DiskConfig, handle: &Handle, situations: &Situations) -> Arc<SimDevice> {
        let geometry = config.geometry.clone();
        assert!((geometry.logical_bytes as usize).is_multiple_of(SECTOR_BYTES), "blocks are whole sectors");
        assert!(geometry.size_bytes.is_multiple_of(u64::from(geometry.logical_bytes)), "a device is whole blocks");
        assert!((1..=100).contains(&config.parts_max), "1 to 100 parts");
        let prng = handle.prng(&format!("disk.{}", config.name));
        let state = State {
            geometry,
            prng: prng.clone(),
            medium: Medium::default(),
            flights: BTreeMap::new(),
            next_op: 1,
            done: 0,
            gone: false,
            stall: None,
            armed: Vec::new(),
            atlas: config.atlas.clone(),
            counts: DiskCounts::default(),
            on_flush: None,
            flush_news: Vec::new(),
        };
        Arc::new_cyclic(|me| SimDevice {
            id: prng.fork("id").next_u64(),
            config,
            handle: handle.clone(),
            trace: handle.trace(),
            situations: situations.clone(),
            me: me.clone(),
            state: Mutex::new(state),
        })
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// A connection for one process: once the process is killed it takes nothing more and tells nobody anything.
    #[must_use]
    pub fn connect(self: &Arc<Self>, process: &Process) -> Device {
        Arc::new(Connection { device: self.clone(), process: process.clone() })
    }

    /// Tell `hook` of flushes: a model of what may be read has to know the moment of a loss, and what was flushed by
    /// whom. The hook must not use this device.
    pub fn on_flush(&self, hook: FlushHook) {
        lock(&self.state).on_flush = Some(hook);
    }

    fn tell_flush(&self, news: &[FlushNews]) {
        if news.is_empty() {
            return;
        }
        let hook = lock(&self.state).on_flush.clone();
        if let Some(hook) = hook {
            news.iter().for_each(|news| hook(*news));
        }
    }

    fn submit_for(&self, op: Op, owner: Option<Process>) -> Completion {
        if owner.as_ref().is_some_and(|p| !p.alive()) {
            return Completion::future(std::future::pending());
        }
        let Some(me) = self.me.upgrade() else { return Completion::failed(FailKind::Gone, op) };
        let now = self.handle.now();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let verb = op.verb();
        let index = Verb::ALL.iter().position(|&v| v == verb).unwrap_or(0);
        let (offset, len) = op.range();
        state.counts.requests[index] += 1;
        state.counts.bytes[index] += len;
        let number = state.next_op;
        state.next_op += 1;
        self.trace.event(SUBMIT[index], [self.id, number, offset, len]);
        if state.gone {
            return Completion::failed(FailKind::Gone, op);
        }
        if verb == Verb::Discard && state.geometry.discard_bytes == 0 {
            return Completion::failed(FailKind::Unsupported, op);
        }
        if !flight::fits(&op, &state.geometry, self.config.memory_align_bytes) {
            self.situations.hit("disk: invalid request");
            self.trace.text("invalid", format!("{}: {op:?}", self.config.name));
            return Completion::failed(FailKind::Invalid, op);
        }
        assert!(state.flights.len() < FLIGHTS_MAX, "more than {FLIGHTS_MAX} requests under way on one device");
        let (mut flight, completion) = Flight::new(op, owner);
        flight.covers = state.done;
        let mut latency_ns = self.config.latency.draw(verb, len, &mut state.prng);
        let (fault, fail) = state.fate(verb, &(offset..offset + len));
        if fault == Some(FaultKind::Slow) {
            latency_ns = latency_ns.saturating_add(state.prng.between(SLOW_NS.min_ns, SLOW_NS.max_ns));
        }
        flight.complete_ns = now.0.saturating_add(latency_ns);
        if !matches!(verb, Verb::Flush | Verb::Status) {
            flight.cut_up(self.config.parts_max, now.0, &mut state.prng);
        }
        if let Some(fault) = fault {
            self.situations.hit(STRUCK[fault as usize]);
            self.trace.event(STRUCK[fault as usize], [self.id, number, 0, 0]);
            state.strike(&mut flight, fault, fail);
        }
        for (n, part) in flight.parts.iter().enumerate() {
            // What happens at the completion needs no event of its own.
            if part.state == PartState::Waiting && part.at_ns != flight.complete_ns {
                self.handle.schedule(Instant(part.at_ns), me.clone(), number << PART_BITS | n as u64);
            }
        }
        let at = Instant(flight.complete_ns);
        state.flights.insert(number, flight);
        self.handle.schedule(at, me, number << PART_BITS | PART_COMPLETION);
        drop(guard);
        if verb == Verb::Flush {
            self.tell_flush(&[FlushNews::Begun(number)]);
        }
        completion
    }

    /// Cut the power. Everything under way ends without an answer; each 512-byte sector that was not durable is kept
    /// or lost by itself; a stall ends. Kill the processes of that machine first. A device of class `ephemeral` is
    /// blank afterwards if so configured.
    pub fn power_cut(&self) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        self.trace.event("power cut", [self.id, state.flights.len() as u64, 0, 0]);
        if state.medium.has_unflushed() {
            self.situations.hit("disk: power cut with un-flushed writes");
        }
        let flights = std::mem::take(&mut state.flights);
        if flights.values().any(|f| f.verb == Verb::Flush && f.completer.is_some()) && state.medium.has_unflushed() {
            self.situations.hit("disk: power cut in the middle of a flush");
        }
        let mut parts: Vec<_> = Vec::new();
        for flight in flights.values() {
            for part in flight.parts.iter().filter(|p| p.state == PartState::Waiting) {
                if let Some(what) = flight.what_of(&part.sectors)
                    && !matches!(flight.fault, Some(FaultKind::Lost | FaultKind::Misdirected))
                {
                    parts.push((part.sectors.clone(), what));
                }
            }
        }
        // Any order: they were all under way together.
        for n in (1..parts.len()).rev() {
            let other = state.prng.below(n as u64 + 1) as usize;
            parts.swap(n, other);
        }
        state.medium.cut(parts, &mut state.prng, &self.situations);
        state.stall = None;
        if state.geometry.class == Class::Ephemeral && self.config.gone_after_power_cut {
            state.medium = Medium::default();
            self.situations.hit("disk: power cut blanks an ephemeral device");
        }
        drop(guard);
        // Their completers answer `Unknown` to whoever still listens.
        drop(flights);
    }

    /// What dead processes had under way happens now or never. Before a device is opened again by a new process, the
    /// kernel has finished the old one's requests; without this call they may still happen at their own time.
    pub fn settle(&self) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let dead = |f: &Flight| f.completer.is_none() || f.owner.as_ref().is_some_and(|p| !p.alive());
        let numbers: Vec<u64> = state.flights.iter().filter(|(_, f)| dead(f)).map(|(&n, _)| n).collect();
        let mut flights = Vec::new();
        for number in numbers {
            self.happen_or_not(state, number);
            flights.extend(state.flights.remove(&number));
            state.forget_held(number);
        }
        drop(guard);
        drop(flights);
    }

    /// Requests whose outcome has not been told.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        lock(&self.state).flights.values().filter(|f| f.completer.is_some()).count()
    }

    /// The number the next request will have.
    #[must_use]
    pub fn next_request(&self) -> u64 {
        lock(&self.state).next_op
    }

    /// The number of the oldest request whose outcome has not been told.
    #[must_use]
    pub fn oldest_request(&self) -> Option<u64> {
        lock(&self.state).flights.iter().find(|(_, f)| f.completer.is_some()).map(|(&number, _)| number)
    }

    /// Requests and bytes so far.
    #[must_use]
    pub fn counts(&self) -> DiskCounts {
        lock(&self.state).counts
    }

    /// What the medium would hold without faults: `len` bytes from `offset`, whole sectors, un-flushed writes included.
    #[must_use]
    pub fn pristine(&self, offset: u64, len: usize) -> Vec<u8> {
        assert!(offset.is_multiple_of(SECTOR_BYTES as u64) && len.is_multiple_of(SECTOR_BYTES), "whole sectors");
        let mut bytes = vec![0; len];
        lock(&self.state).medium.pristine(offset / SECTOR_BYTES as u64, &mut bytes);
        bytes
    }

    /// Bytes of the device.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        lock(&self.state).geometry.size_bytes
    }

    /// Enlarge the device; new space reads as zeroes.
    ///
    /// # Panics
    /// When it would become smaller or is not whole blocks.
    pub fn grow(&self, size_bytes: u64) {
        let mut state = lock(&self.state);
        assert!(size_bytes >= state.geometry.size_bytes, "a device only grows");
        assert!(size_bytes.is_multiple_of(u64::from(state.geometry.logical_bytes)), "a device is whole blocks");
        state.geometry.size_bytes = size_bytes;
    }

    /// The parts of a request that have not happened do so now, or never. What happened is over for the device: its next
    /// flush covers it, whether or not anybody is told.
    fn happen_or_not(&self, state: &mut State, number: u64) {
        let parts = state.flights.get(&number).map_or(0, |f| f.parts.len());
        for part in 0..parts {
            if state.prng.chance(1, 2) {
                self.happen(state, number, part);
            } else if let Some(flight) = state.flights.get_mut(&number)
                && flight.parts[part].state == PartState::Waiting
            {
                flight.parts[part].state = PartState::Never;
                self.situations.hit("disk: a dead request's write never happened");
            }
        }
        state.over(number);
    }

    /// Everything under way ends now: the device is no longer there.
    fn end_all(&self, state: &mut State) -> Told {
        let mut told = Told::new();
        let numbers: Vec<u64> = state.flights.keys().copied().collect();
        for number in numbers {
            self.happen_or_not(state, number);
            let Some(mut flight) = state.flights.remove(&number) else { continue };
            if let Some(completer) = flight.completer.take() {
                let unknown = flight.what.is_some() && state.prng.chance(1, 2);
                let outcome = if unknown { Outcome::Unknown } else { Outcome::Failed(FailKind::Gone) };
                told.push((completer, Completed { outcome, bufs: flight.bufs, extents: Vec::new() }));
            }
        }
        state.stall = None;
        told
    }

    /// A part takes effect, or is read.
    fn happen(&self, state: &mut State, number: u64, part: usize) {
        let Some(flight) = state.flights.get_mut(&number) else { return };
        if flight.parts[part].state != PartState::Waiting {
            return;
        }
        flight.parts[part].state = PartState::Happened;
        let sectors = flight.parts[part].sectors.clone();
        self.trace.event("effect", [self.id, number, sectors.start, sectors.end]);
        if let Some(what) = flight.what_of(&sectors) {
            if flight.completer.is_none() {
                self.situations.hit("disk: a write happened after its outcome was told");
            } else if flight.owner.as_ref().is_some_and(|p| !p.alive()) {
                self.situations.hit("disk: a dead process's write happened");
            }
            match flight.fault {
                Some(FaultKind::Lost) => state.medium.effect_lost(number, sectors, what, None),
                Some(FaultKind::Misdirected) => {
                    let skip = sectors.start - flight.offset / SECTOR_BYTES as u64;
                    let target = flight.elsewhere.map(|s| s + skip);
                    state.medium.effect_lost(number, sectors, what, target);
                }
                _ => state.medium.effect(number, sectors, what),
            }
            if flight.completer.is_none() {
                state.over(number);
            }
            if self.config.destage_ppm > 0 && state.prng.chance(u64::from(self.config.destage_ppm), 1_000_000) {
                state.medium.destage_some(&mut state.prng, &self.situations);
            }
        } else {
            let mut bytes = vec![0; (sectors.end - sectors.start) as usize * SECTOR_BYTES];
            if !state.medium.read(sectors.start, &mut bytes, &mut state.prng, &self.situations) {
                flight.outcome = Outcome::Failed(FailKind::Media);
            }
            let at = (sectors.start * SECTOR_BYTES as u64 - flight.offset) as usize;
            flight.bufs.copy_in(at, &bytes);
        }
    }

    /// A request's time is up: its outcome is told.
    fn complete(&self, state: &mut State, number: u64) -> Told {
        let Some(flight) = state.flights.get(&number) else { return Told::new() };
        // Only an unknown outcome leaves parts for later.
        let due: Vec<usize> = (0..flight.parts.len())
            .filter(|&n| flight.outcome != Outcome::Unknown || flight.parts[n].at_ns <= flight.complete_ns)
            .collect();
        for part in due {
            self.happen(state, number, part);
        }
        let Some(flight) = state.flights.get_mut(&number) else { return Told::new() };
        let Some(completer) = flight.completer.take() else { return Told::new() };
        let outcome = flight.outcome;
        let mut bufs = std::mem::take(&mut flight.bufs);
        let (verb, offset, len, covers) = (flight.verb, flight.offset, flight.len, flight.covers);
        let (fua, fault) = (flight.fua, flight.fault);
        let durable = fua || !state.geometry.volatile_cache;
        let silent = flight.owner.as_ref().is_some_and(|p| !p.alive());
        let mut extents = Vec::new();
        match verb {
            Verb::Read if outcome != Outcome::Done => {
                // What a failed read leaves behind is undefined: make sure nobody uses it.
                let good = if let Outcome::Short(n) = outcome { n as usize } else { 0 };
                let mut garbage = vec![0; bufs.len_bytes() - good];
                state.prng.fill(&mut garbage);
                bufs.copy_in(good, &garbage);
            }
            // Whatever happened of a failed one is not under way any more either.
            Verb::Write | Verb::WriteZeroes | Verb::Discard if outcome != Outcome::Unknown => {
                state.over(number);
                if durable && outcome == Outcome::Done {
                    state.medium.make_durable(number);
                }
            }
            Verb::Flush if outcome == Outcome::Done => {
                state.medium.flush(covers);
                state.flush_news.push(FlushNews::Done(number));
            }
            Verb::Flush if fault == Some(FaultKind::FlushFails) && state.prng.chance(1, 2) => {
                self.situations.hit("disk: failed flush drops the cache");
                if self.config.failed_flush_shows && state.prng.chance(1, 2) {
                    self.situations.hit("disk: what a failed flush drops goes on being read");
                    state.medium.lose_unflushed_unseen(&mut state.prng, &self.situations);
                } else {
                    state.medium.lose_unflushed(&mut state.prng, &self.situations);
                }
                state.flush_news.push(FlushNews::Dropped);
            }
            Verb::Status => extents = status(&state.medium, offset, len),
            _ => {}
        }
        let failed_fua =
            fua && outcome != Outcome::Done && self.config.failed_fua_drops && state.geometry.volatile_cache;
        if failed_fua && state.prng.chance(1, 2) {
            self.situations.hit("disk: failed durable write drops the cache");
            state.medium.lose_unflushed(&mut state.prng, &self.situations);
            state.flush_news.push(FlushNews::Dropped);
        }
        let content = content_hash(&bufs);
        self.trace.event("complete", [self.id, number, outcome_code(outcome), content]);
        if let Some(flight) = state.flights.get(&number)
            && flight.parts.iter().all(|p| p.state != PartState::Waiting)
        {
            state.flights.remove(&number);
        }
        if silent { Told::new() } else { vec![(completer, Completed { outcome, bufs, extents })] }
    }
}

impl State {
    /// Nothing of a write is under way any more.
    fn over(&mut self, number: u64) {
        let done = self.done;
        self.done += 1;
        self.medium.completed(number, done);
    }

    /// The fault that befalls a request, and how it fails.
    fn fate(&mut self, verb: Verb, range: &Range<u64>) -> (Option<FaultKind>, FailKind) {
        let range = if verb == Verb::Flush { 0..0 } else { range.clone() };
        for armed in &mut self.armed {
            // A request that reaches out of the zone would fail where nothing is permitted to fail.
            if armed.matches(verb, &range) && self.atlas.zone(armed.kind, &range).is_some() {
                armed.times -= 1;
                let fate = (Some(armed.kind), armed.fail);
                self.armed.retain(|a| a.times > 0);
                return fate;
            }
        }
        (self.atlas.strike(verb, &range, &mut self.prng), FailKind::Media)
    }

    fn strike(&mut self, flight: &mut Flight, fault: FaultKind, fail: FailKind) {
        let range = flight.offset..flight.offset + flight.len;
        flight.befall(fault, fail, u64::from(self.geometry.logical_bytes), &mut self.prng);
        match fault {
            FaultKind::Rot | FaultKind::Unreadable => self.damage(fault, &range),
            FaultKind::Misdirected => {
                let Some(zone) = self.atlas.zone(fault, &range) else { return };
                let (first, last) = (zone.range.start, zone.range.end - flight.len);
                flight.elsewhere = Some(self.prng.between(first, last) / SECTOR_BYTES as u64);
            }
            _ => {}
        }
    }

    fn damage(&mut self, kind: FaultKind, range: &Range<u64>) {
        let (first, last) = (range.start / SECTOR_BYTES as u64, (range.end - 1) / SECTOR_BYTES as u64);
        let sector = self.prng.between(first, last);
        match kind {
            FaultKind::Rot => self.medium.rot(sector, &mut self.prng),
            _ => self.medium.unreadable(sector),
        }
    }

    fn forget_held(&mut self, number: u64) {
        if let Some(stall) = &mut self.stall {
            stall.held.retain(|token| token >> PART_BITS != number);
        }
    }
}

impl EventSink for SimDevice {
    fn fire(self: Arc<Self>, token: u64) {
        let (number, part) = (token >> PART_BITS, token & ((1 << PART_BITS) - 1));
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if part == PART_RELEASE {
            if state.stall.as_ref().is_some_and(|s| s.number == number) {
                self.release_locked(state);
            }
            return;
        }
        let Some(flight) = state.flights.get(&number) else { return };
        if let Some(stall) = &mut state.stall
            && stall.verbs.contains(&flight.verb)
            && (part == PART_COMPLETION || stall.holds_effects)
        {
            stall.held.push(token);
            self.situations.hit("disk: a request was held by a stall");
            return;
        }
        let told = if part == PART_COMPLETION {
            self.complete(state, number)
        } else {
            self.happen(state, number, part as usize);
            let over = |f: &Flight| f.completer.is_none() && f.parts.iter().all(|p| p.state != PartState::Waiting);
            if state.flights.get(&number).is_some_and(over) {
                state.flights.remove(&number);
            }
            Told::new()
        };
        let news = std::mem::take(&mut state.flush_news);
        drop(guard);
        self.tell_flush(&news);
        tell(told);
    }
}

impl Io for SimDevice {
    fn geometry(&self) -> Geometry {
        lock(&self.state).geometry.clone()
    }
    fn submit(&self, op: Op) -> Completion {
        self.submit_for(op, None)
    }
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDevice({})", self.config.name)
    }
}

/// One process's way to a device.
struct Connection {
    device: Arc<SimDevice>,
    process: Process,
}

impl Io for Connection {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&self, op: Op) -> Completion {
        self.device.submit_for(op, Some(self.process.clone()))
    }
}

/// Event names by verb.
const SUBMIT: [&str; Verb::ALL.len()] = ["read", "write", "write zeroes", "discard", "flush", "status"];

/// Situation names by fault kind.
const STRUCK: [&str; FaultKind::ALL.len()] = [
    "fault: read failed",
    "fault: write failed",
    "fault: flush failed",
    "fault: short transfer",
    "fault: unknown outcome",
    "fault: lost write",
    "fault: misdirected write",
    "fault: rot",
    "fault: unreadable sector",
    "fault: slow request",
];
