//! The deterministic executor: tasks on virtual threads, a clock that jumps, one seed.
//!
//! Everything runs on the caller's thread, one poll at a time; "threads" are lanes that are interleaved, delayed and
//! parked by seed. A [`Process`] is a group of tasks that can be killed whole, as `kill -9` does: nothing it still
//! does while its futures are dropped reaches a device or the network; or paused, as SIGSTOP does. Hardware (devices, links) is no process: it
//! schedules [`EventSink`] events and lives on.
//!
//! Never sleeps, never looks at real time, never keeps a task alive after its process.

mod config;
mod process;
mod state;

pub use config::{ExecutorConfig, Pick};
pub use process::Process;
pub use state::{EventSink, Handle, PausedClock};

use crate::trace::Trace;
use device::{Clock, Instant, Prng};
use state::{Chosen, MAIN, ROOT, Shared};
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Why a run did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// Nothing is ready, no timer runs, no hardware event is due, and the main future still waits.
    #[error("deadlock at {at_ns} ns: the main future and {tasks} tasks wait and nothing can wake them ({names})")]
    Deadlock {
        /// Virtual time.
        at_ns: u64,
        /// Tasks that wait, without the main future.
        tasks: usize,
        /// The first of them, as `process/thread#number`.
        names: String,
    },
    /// The step limit was reached.
    #[error("runaway at {at_ns} ns: {steps} steps without an end, {tasks} tasks alive (last polled: {names})")]
    Runaway {
        /// Virtual time.
        at_ns: u64,
        /// Steps of this run.
        steps: u64,
        /// Tasks alive, without the main future.
        tasks: usize,
        /// Who ran last.
        names: String,
    },
    /// The limit of virtual time was reached: only timers that repeat are left.
    #[error("nothing but timers: the main future still waits after {at_ns} ns of virtual time, with {tasks} tasks")]
    TimeUp {
        /// Virtual time.
        at_ns: u64,
        /// Tasks alive, without the main future.
        tasks: usize,
    },
    /// A task panicked: in a real process that ends the process.
    #[error("panic at {at_ns} ns in {task}: {message}")]
    Panicked {
        /// Virtual time.
        at_ns: u64,
        /// Which, as `process/thread#number`.
        task: String,
        /// The panic's message.
        message: String,
    },
}

impl Stuck {
    /// What to look at.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Stuck::Deadlock { .. } => "look at the last events: who was woken last, and who holds what they wait for",
            Stuck::Runaway { .. } => "a task wakes itself without progress, or a time-out is missing",
            Stuck::TimeUp { .. } => "the main future waits for something that only repeated timers could bring",
            Stuck::Panicked { .. } => "an assertion: a programmer error above the seam",
        }
    }
}

/// The executor of one run.
pub struct Executor {
    shared: Arc<Shared>,
}

impl Executor {
    /// An executor with nothing to do.
    ///
    /// # Panics
    /// When `config.threads` is 0.
    #[must_use]
    pub fn new(config: ExecutorConfig) -> Executor {
        assert!(config.threads > 0, "an executor has at least one thread");
        Executor { shared: Shared::new(config) }
    }

    /// An executor whose every choice, also how it behaves, comes from `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Executor {
        Executor::new(ExecutorConfig::seeded(seed))
    }

    /// What hardware needs: time, events, trace.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(self.shared.clone())
    }

    /// The process the main future belongs to: for the tasks of a test or a harness. It cannot be killed.
    #[must_use]
    pub fn root(&self) -> Process {
        Process::new(self.handle(), ROOT)
    }

    /// A new process with threads of its own; `name` is for messages.
    #[must_use]
    pub fn process(&self, name: &str) -> Process {
        self.handle().process(name)
    }

    /// The trace of this run.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.shared.trace.clone()
    }

    /// A generator for one purpose, by name.
    #[must_use]
    pub fn prng(&self, name: &str) -> Prng {
        self.handle().prng(name)
    }

    /// Virtual now.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.root().now()
    }

    /// Run until `main` is done. Other tasks are left as they are; a later run goes on with them.
    ///
    /// # Errors
    /// [`Stuck`]: deadlock, runaway, panic of a task. The executor can still be looked at.
    ///
    /// # Panics
    /// When called from within a run.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> Result<T, Stuck> {
        let mut main = pin!(main);
        let shared = &self.shared;
        let limits = shared.start_run();
        loop {
            if let Some(stuck) = shared.over(&limits) {
                return Err(stuck);
            }
            if let Some((sink, token)) = shared.due() {
                sink.fire(token);
                continue;
            }
            let (task, waker, future) = match shared.choose() {
                Chosen::Task { task, waker, future } => (task, waker, future),
                Chosen::TimePassed => continue,
                Chosen::Nothing => return Err(shared.deadlock()),
            };
            let mut cx = Context::from_waker(&waker);
            if task == MAIN {
                let polled = catch_unwind(AssertUnwindSafe(|| main.as_mut().poll(&mut cx)));
                shared.polled(MAIN, None);
                match polled {
                    Ok(Poll::Ready(out)) => {
                        shared.end_run();
                        return Ok(out);
                    }
                    Ok(Poll::Pending) => {}
                    Err(panic) => return Err(shared.panicked(MAIN, message(&*panic))),
                }
                continue;
            }
            let Some(mut future) = future else { unreachable!("a chosen task has its future") };
            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))) {
                Ok(Poll::Ready(())) => {
                    // Its destructors may wake and spawn: it still counts as the running task.
                    drop(future);
                    shared.polled(task, None);
                }
                // A killed task's future comes back to be dropped, outside the lock.
                Ok(Poll::Pending) => drop(shared.polled(task, Some(future))),
                Err(panic) => {
                    let stuck = shared.panicked(task, message(&*panic));
                    shared.polled(task, None);
                    return Err(stuck);
                }
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}

impl Drop for Executor {
    /// Tasks and events hold handles to the executor that holds them: taken apart here.
    fn drop(&mut self) {
        self.shared.clear();
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({} tasks)", self.shared.tasks())
    }
}
