//! The deadline of a device while its cell starts: a device that does not answer must not keep the others from serving.
//!
//! A request that is not answered in time is answered for the device: a read as failed, anything else as unknown, since it may still
//! happen. From then on the device is silent: its requests fail at once, so that the start meets the deadline once and not
//! with each request. When the start is over, requests pass as they are.
//!
//! Never retries. A silent device stays so until it is opened anew: what it still has may land at any time.

use crate::clock::{Clock, Instant};
use crate::io::{Completed, Completer, Completion, Device, FailKind, Geometry, Io, Op, Outcome, Verb};
use crate::spawn::Spawn;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How long the start waits for one answer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartLimits {
    /// Until it says that it waits; less than `give_up_after`.
    pub tell_after: Duration,
    /// Until it goes on without the device.
    pub give_up_after: Duration,
}

/// What is told of a device that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The start waits for this request. Told once for each time the device falls silent.
    Waits {
        /// What was asked.
        verb: Verb,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The request of which [`Silence::Waits`] was told has been answered.
    Answered,
    /// The start goes on without the device.
    GivenUp,
}

/// Hears of silences.
pub type SilenceTeller = Arc<dyn Fn(Silence) + Send + Sync>;

/// See the module's head.
pub struct StartDeadline {
    below: Device,
    spawn: Arc<dyn Spawn>,
    shared: Arc<Shared>,
}

/// What the tasks of requests hold: not the device, which is closed when the layer is dropped.
struct Shared {
    clock: Arc<dyn Clock>,
    limits: StartLimits,
    tell: SilenceTeller,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    next: u64,
    /// Those of the start that are not answered, oldest first. Bounded by the requests in flight above.
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Requests have a deadline.
    Starting {
        /// The number of the request of which [`Silence::Waits`] was told last.
        told: Option<u64>,
    },
    /// Requests pass.
    Started,
    /// Requests fail.
    Silent,
}

struct Waiting {
    since: Instant,
    verb: Verb,
    range: (u64, u64),
    completer: Completer,
}

impl StartDeadline {
    /// `below`, with a deadline for each request until [`StartDeadline::end`].
    #[must_use]
    pub fn new(
        below: Device,
        clock: Arc<dyn Clock>,
        spawn: Arc<dyn Spawn>,
        limits: StartLimits,
        tell: SilenceTeller,
    ) -> Arc<StartDeadline> {
        let state = State { phase: Phase::Starting { told: None }, next: 0, waiting: BTreeMap::new() };
        let shared = Arc::new(Shared { clock, limits, tell, state: Mutex::new(state) });
        spawn.spawn(Box::pin(watch(Arc::downgrade(&shared))));
        Arc::new(StartDeadline { below, spawn, shared })
    }

    /// The start is over: requests have no deadline any more, nor have those that are under way.
    pub fn end(&self) {
        let mut state = lock(&self.shared.state);
        if state.phase != Phase::Silent {
            state.phase = Phase::Started;
        }
    }

    /// Whether the start goes on without the device.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        lock(&self.shared.state).phase == Phase::Silent
    }
}

/// Look at the oldest request whenever it may have met a limit, until the start is over or the device silent.
async fn watch(shared: Weak<Shared>) {
    loop {
        let timer = {
            let Some(shared) = shared.upgrade() else { return };
            let Some(at) = shared.look() else { return };
            shared.clock.sleep_until(at)
        };
        timer.await;
    }
}

impl Shared {
    /// Tell of the oldest request, or give the device up, when it is time for that. When to look again.
    fn look(&self) -> Option<Instant> {
        let StartLimits { tell_after, give_up_after } = self.limits;
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let Phase::Starting { told } = state.phase else { return None };
        let Some((&number, oldest)) = state.waiting.first_key_value() else { return Some(now.after(tell_after)) };
        let (tell_at, give_up_at) = (oldest.since.after(tell_after), oldest.since.after(give_up_after));
        if now >= give_up_at {
            state.phase = Phase::Silent;
            let unanswered = std::mem::take(&mut state.waiting);
            drop(state);
            (self.tell)(Silence::GivenUp);
            for waiting in unanswered.into_values() {
                waiting.completer.complete(unanswered_as(waiting.verb));
            }
            return None;
        }
        if now < tell_at {
            return Some(tell_at);
        }
        if told.is_none() {
            let (verb, (offset, len)) = (oldest.verb, oldest.range);
            state.phase = Phase::Starting { told: Some(number) };
            drop(state);
            (self.tell)(Silence::Waits { verb, offset, len });
        }
        Some(give_up_at)
    }

    /// The device has answered the request `number`. An answer that comes too late goes nowhere.
    fn answered(&self, number: u64, done: Completed) {
        let (waiting, was_told) = {
            let mut state = lock(&self.state);
            let was_told = state.phase == Phase::Starting { told: Some(number) };
            if was_told {
                state.phase = Phase::Starting { told: None };
            }
            (state.waiting.remove(&number), was_told)
        };
        if was_told {
            (self.tell)(Silence::Answered);
        }
        if let Some(waiting) = waiting {
            waiting.completer.complete(done);
        }
    }
}

/// The answer for a device that gives none: what may still happen is unknown.
fn unanswered_as(verb: Verb) -> Completed {
    Completed::bare(match verb {
        Verb::Read | Verb::Status => Outcome::Failed(FailKind::Gone),
        Verb::Write | Verb::WriteZeroes | Verb::Discard | Verb::Flush => Outcome::Unknown,
    })
}

impl Io for StartDeadline {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let (completer, completion) = Completion::pair();
        let number = {
            let mut state = lock(&self.shared.state);
            match state.phase {
                Phase::Started => return self.below.submit(op),
                Phase::Silent => return Completion::failed(FailKind::Gone, op),
                Phase::Starting { .. } => {}
            }
            let number = state.next;
            state.next += 1;
            let waiting = Waiting { since: self.shared.clock.now(), verb: op.verb(), range: op.range(), completer };
            state.waiting.insert(number, waiting);
            number
        };
        // Issued now, not when the task first runs: a flush covers what has completed by now.
        let answered = self.below.submit(op);
        let shared = self.shared.clone();
        self.spawn.spawn(Box::pin(async move { shared.answered(number, answered.await) }));
        completion
    }
}
