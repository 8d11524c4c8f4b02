//! A whole cell in the virtual world, life after life, judged by the model: plans drawn from seeds, mishaps, crashes,
//! checkers, shrinking, broken builds.
mod admin;
mod between;
mod book;
mod canary;
mod direct;
mod far;
mod iorm;
mod machine;
mod members;
mod pins;
mod plan;
mod redo;
mod short;
mod stage;
mod stale;
mod tell;
mod victims;
mod watch;

pub use canary::{Canary, HostSabotage};
pub use plan::OPERATIONS_MIN;
pub use short::{ShrunkSeed, shrink_seed};

use crate::situations::Situations;
use std::sync::Arc;

/// What became of one seed.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Requests and commands of clients.
    pub operations: u64,
    /// Power cuts and process deaths.
    pub crashes: u64,
    /// Reads served whole from flash.
    pub hits: u64,
    /// Over every scheduling decision, request and outcome.
    pub trace_hash: u64,
    /// How many of them.
    pub trace_events: u64,
    /// Which rare situations came about.
    pub situations: Situations,
    /// The invariant that did not hold, and what was seen.
    pub broken: Option<String>,
    /// The last events, when it is broken.
    pub log: String,
}

/// What is run: a plan drawn from a seed, by the good build or by a broken one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// Client operations of the plan, at least.
    pub operations: u64,
    /// The deliberate fault, if one is wanted.
    pub sabotage: Option<Canary>,
}

impl Case {
    /// A seed at its usual length, by the good build.
    #[must_use]
    pub const fn of_seed(seed: u64) -> Case {
        Case { seed, operations: OPERATIONS_MIN, sabotage: None }
    }
}

/// Run a case; `log_events` events are kept for the report of a failure.
#[must_use]
pub fn run_seed(case: Case, log_events: usize) -> SeedReport {
    let outcome = direct::run_plan(&Arc::new(plan::Plan::of_case(case)), case.sabotage, log_events);
    SeedReport {
        seed: case.seed,
        operations: outcome.operations,
        crashes: outcome.crashes,
        hits: outcome.hits,
        trace_hash: outcome.trace_hash,
        trace_events: outcome.trace_events,
        situations: outcome.situations,
        broken: outcome.broken.map(|broken| format!("{} broken: {}", broken.invariant, broken.text)),
        log: outcome.log,
    }
}
