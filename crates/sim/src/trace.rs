//! What happened, as a running hash over everything and the last events in words.
//!
//! Two runs of one seed are the same run if and only if their hashes and counts are equal. The log is bounded and is
//! formatted only when somebody asks. Never part of a decision: a run does not depend on its trace.

use device::sync::lock;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

/// Events kept for a failure report when nobody asks for another number: about what a person reads.
pub const LOG_EVENTS_DEFAULT: usize = 200;

/// One event of the log.
#[derive(Clone, Debug)]
struct Event {
    at_ns: u64,
    step: u64,
    kind: &'static str,
    args: [u64; 4],
    text: Option<String>,
}

struct State {
    hash: u64,
    events: u64,
    now_ns: u64,
    step: u64,
    log_events_max: usize,
    log: VecDeque<Event>,
}

/// A handle to the trace of one run; clones share it.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<State>>);

impl Trace {
    /// An empty trace that keeps the last `log_events_max` events in words (0: none).
    #[must_use]
    pub fn new(log_events_max: usize) -> Trace {
        let state =
            State { hash: 0x243f_6a88_85a3_08d3, events: 0, now_ns: 0, step: 0, log_events_max, log: VecDeque::new() };
        Trace(Arc::new(Mutex::new(state)))
    }

    /// Note an event: `kind` in a word or two, and up to four numbers that tell it from others of its kind.
    pub fn event(&self, kind: &'static str, args: [u64; 4]) {
        lock(&self.0).push(kind, args, None);
    }

    /// Note an event in words; the words count for the hash.
    pub fn text(&self, kind: &'static str, text: String) {
        lock(&self.0).push(kind, [0; 4], Some(text));
    }

    /// The hash over every event so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let state = lock(&self.0);
        mix(mix(state.hash, state.events), state.now_ns)
    }

    /// How many events there were.
    #[must_use]
    pub fn events(&self) -> u64 {
        lock(&self.0).events
    }

    /// The last events, one to a line, oldest first.
    #[must_use]
    pub fn log(&self) -> String {
        let state = lock(&self.0);
        let mut out = String::new();
        for event in &state.log {
            let _ = write!(out, "{:>14} ns  step {:>8}  {:<18}", event.at_ns, event.step, event.kind);
            match &event.text {
                Some(text) => {
                    let _ = writeln!(out, " {text}");
                }
                None => {
                    let _ = writeln!(out, " {:?}", event.args);
                }
            }
        }
        out
    }

    /// The executor's clock, for the log.
    pub(crate) fn set_time(&self, now_ns: u64, step: u64) {
        let mut state = lock(&self.0);
        state.now_ns = now_ns;
        state.step = step;
    }
}

impl State {
    fn push(&mut self, kind: &'static str, args: [u64; 4], text: Option<String>) {
        let mut hash = self.hash;
        for byte in kind.bytes().chain(text.iter().flat_map(|t| t.bytes())) {
            hash = mix(hash, u64::from(byte));
        }
        for arg in args {
            hash = mix(hash, arg);
        }
        self.hash = mix(hash, self.now_ns);
        self.events += 1;
        if self.log_events_max > 0 {
            if self.log.len() == self.log_events_max {
                self.log.pop_front();
            }
            self.log.push_back(Event { at_ns: self.now_ns, step: self.step, kind, args, text });
        }
    }
}

/// One step of the hash: a rotation, an exclusive or and a multiplication by an odd constant.
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trace({:016x} after {} events)", self.hash(), self.events())
    }
}
