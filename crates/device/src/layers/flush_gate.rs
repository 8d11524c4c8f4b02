//! At most one flush of a device in flight and one waiting, in the whole process (DESIGN §1).
//!
//! A flush that is asked for joins one that has not been issued yet, never one that has: the device may have passed
//! the point at which it would cover writes completed since. Never touches the other verbs.

use crate::io::{Completed, Completer, Completion, Device, Geometry, Io, Op, Outcome};
use crate::spawn::Spawn;
use crate::sync::lock;
use std::sync::{Arc, Mutex};

/// See the module's head. One per device, below everything that flushes it.
pub struct FlushGate {
    inner: Device,
    spawn: Arc<dyn Spawn>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    in_flight: bool,
    /// Who is covered by the next flush. Bounded by the requests in flight above.
    waiting: Vec<Completer>,
    issued: u64,
    asked: u64,
}

impl FlushGate {
    /// A gate before `inner`. Flushes run to their end on `spawn`, whether or not anybody still waits.
    #[must_use]
    pub fn new(inner: Device, spawn: Arc<dyn Spawn>) -> Arc<FlushGate> {
        Arc::new(FlushGate { inner, spawn, state: Arc::default() })
    }

    /// How many flushes were asked for, and how many were issued to the device.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.asked, state.issued)
    }

    fn flush(&self) -> Completion {
        let (completer, completion) = Completion::pair();
        {
            let mut state = lock(&self.state);
            state.asked += 1;
            if state.in_flight {
                state.waiting.push(completer);
                return completion;
            }
            state.in_flight = true;
            state.issued += 1;
        }
        // Issued now, not when the task first runs: it covers what has completed by now.
        let flushed = self.inner.submit(Op::Flush);
        let (inner, state) = (self.inner.clone(), self.state.clone());
        self.spawn.spawn(Box::pin(async move {
            answer(vec![completer], flushed.await.outcome);
            loop {
                let covered = {
                    let mut state = lock(&state);
                    if state.waiting.is_empty() {
                        state.in_flight = false;
                        return;
                    }
                    state.issued += 1;
                    std::mem::take(&mut state.waiting)
                };
                answer(covered, inner.submit(Op::Flush).await.outcome);
            }
        }));
        completion
    }
}

fn answer(waiting: Vec<Completer>, outcome: Outcome) {
    for completer in waiting {
        completer.complete(Completed::bare(outcome));
    }
}

impl Io for FlushGate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        match op {
            Op::Flush => self.flush(),
            other => self.inner.submit(other),
        }
    }
}
