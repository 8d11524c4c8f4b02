//! Lanes of blocking threads: verbs that a ring would hand to shared kernel workers, and all transfers of the
//! `threads` back-end.
//!
//! A lane belongs to one device, so what a stalled device blocks is its own. Threads start when there is work and end
//! when there has been none for a while. Never waits for anything but its own queue.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A thread without work ends after this long.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A queue of jobs with up to `threads_max` threads. The queue is bounded by those who submit: each job is a request
/// whose buffers were reserved before.
pub(crate) struct Lane {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    threads_max: usize,
    state: Mutex<State>,
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Lane {
    pub(crate) fn new(name: &str, threads_max: usize) -> Lane {
        let (state, wanted) = (Mutex::default(), Condvar::new());
        Lane { shared: Arc::new(Shared { name: name.to_owned(), threads_max, state, wanted }) }
    }

    /// Queue a job. If no thread can be started it is run when one of the running ones is free; with none at all it is
    /// dropped, and whoever waits for it learns that the outcome is unknown.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let start = {
            let mut state = lock(&self.shared.state);
            state.jobs.push_back(Box::new(job));
            let start = state.idle < state.jobs.len() && state.threads < self.shared.threads_max;
            if start {
                state.threads += 1;
            }
            start
        };
        self.shared.wanted.notify_one();
        if start {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(self.shared.name.clone());
            if thread.spawn(move || shared.work()).is_err() {
                let dropped = {
                    let mut state = lock(&self.shared.state);
                    state.threads -= 1;
                    if state.threads == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() }
                };
                drop(dropped);
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Threads finish what is queued: a request owns its device, so there is nothing queued when the device goes.
        lock(&self.shared.state).closed = true;
        self.shared.wanted.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (next, timeout) = self.wanted.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}
