//! A failing seed made short: the fewest steps, on the simplest machine, that break the same promise.
//!
//! Another plan takes other turns everywhere, so what remains is a failure of the same invariant, not the same moment.
//! Never looks at a cell: it only runs plans and compares the names of invariants.

use super::Case;
use super::canary::Canary;
use super::direct::{Outcome, run_plan};
use super::plan::{Between, Pass, Plan, Setup, Step};
use crate::shrink::{shrink, simplify};
use std::sync::Arc;
use std::time::Duration;

/// A short way to break the same promise.
#[derive(Clone, Debug)]
pub struct ShrunkSeed {
    /// What is broken in the short run.
    pub broken: String,
    /// Its last events.
    pub log: String,
    /// The machine and the cell, a line for each thing.
    pub setup: Vec<String>,
    /// A line for each step.
    pub steps: Vec<String>,
    /// Steps of the seed's own plan.
    pub steps_before: usize,
    /// Runs it took.
    pub runs: usize,
    /// No single step can be left out.
    pub minimal: bool,
}

/// Between two lines of progress.
const RUNS_BETWEEN_TALK: usize = 20;

struct Search<'a> {
    sabotage: Option<Canary>,
    invariant: &'static str,
    runs: usize,
    runs_max: usize,
    talk: &'a (dyn Fn(&str) + Sync),
}

impl Search<'_> {
    fn left(&self) -> usize {
        self.runs_max.saturating_sub(self.runs)
    }

    fn fails(&mut self, plan: &Plan) -> bool {
        self.runs += 1;
        let outcome = run_plan(&Arc::new(plan.clone()), self.sabotage, 0);
        let fails = outcome.broken.is_some_and(|b| b.invariant == self.invariant);
        if self.runs.is_multiple_of(RUNS_BETWEEN_TALK) {
            let what = if fails { "fails the same way" } else { "does not" };
            (self.talk)(&format!("{} runs: a list of {} steps {what}", self.runs, plan.steps.len()));
        }
        fails
    }

    /// A simpler machine, as long as there is one that fails.
    fn simpler_setup(&mut self, plan: &mut Plan) -> bool {
        let mut changed = false;
        while let Some(simpler) = simpler_setups(&plan.setup).into_iter().find_map(|setup| {
            let with = Plan { seed: plan.seed, setup, steps: plan.steps.clone() };
            (self.left() > 0 && self.fails(&with)).then_some(with)
        }) {
            *plan = simpler;
            changed = true;
        }
        changed
    }

    /// Fewer steps; whether no single one of them can be left out.
    fn fewer_steps(&mut self, plan: &mut Plan) -> bool {
        let (seed, setup, budget) = (plan.seed, plan.setup.clone(), self.left());
        let steps = std::mem::take(&mut plan.steps);
        let shrunk =
            shrink(steps, budget, |steps| self.fails(&Plan { seed, setup: setup.clone(), steps: steps.to_vec() }));
        plan.steps = shrunk.items;
        shrunk.minimal
    }

    fn simpler_steps(&mut self, plan: &mut Plan) {
        let (seed, setup, budget) = (plan.seed, plan.setup.clone(), self.left());
        let steps = std::mem::take(&mut plan.steps);
        plan.steps = simplify(steps, budget, simpler_step, |steps| {
            self.fails(&Plan { seed, setup: setup.clone(), steps: steps.to_vec() })
        })
        .items;
    }
}

/// Make a failing seed short in at most `runs_max` runs. `None` when it does not fail.
pub fn shrink_seed(case: Case, runs_max: usize, log_events: usize, talk: &(dyn Fn(&str) + Sync)) -> Option<ShrunkSeed> {
    let Case { seed, sabotage, .. } = case;
    let mut plan = Plan::of_case(case);
    let steps_before = plan.steps.len();
    let Outcome { broken, steps_taken, .. } = run_plan(&Arc::new(plan.clone()), sabotage, 0);
    let broken = broken?;
    let mut search = Search { sabotage, invariant: broken.invariant, runs: 1, runs_max, talk };
    talk(&format!("seed {seed} breaks {} after {steps_taken} of {steps_before} steps", broken.invariant));
    // What comes after the failure has no part in it, but for requests under way.
    let taken = Plan { seed, setup: plan.setup.clone(), steps: plan.steps[..steps_taken.min(steps_before)].to_vec() };
    if search.fails(&taken) {
        plan = taken;
    }
    search.simpler_setup(&mut plan);
    let mut minimal = search.fewer_steps(&mut plan);
    search.simpler_steps(&mut plan);
    // A short list often needs less of a machine, and then fewer steps.
    if search.simpler_setup(&mut plan) {
        minimal = search.fewer_steps(&mut plan);
    }
    let last = run_plan(&Arc::new(plan.clone()), sabotage, log_events);
    let broken = last.broken?;
    Some(ShrunkSeed {
        broken: format!("{} broken: {}", broken.invariant, broken.text),
        log: last.log,
        setup: super::tell::setup_lines(&plan.setup),
        steps: plan.steps.iter().map(ToString::to_string).collect(),
        steps_before,
        runs: search.runs + 1,
        minimal,
    })
}

/// Machines with one thing less, the boldest first. Steps name grid disks and devices by place, so they stay meaningful.
fn simpler_setups(setup: &Setup) -> Vec<Setup> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Setup)| {
        let mut simpler = setup.clone();
        change(&mut simpler);
        all.push(simpler);
    };
    if setup.clients > 1 || setup.depth > 1 {
        with(&|s| (s.clients, s.depth) = (1, 1));
    }
    if setup.clients > 1 {
        with(&|s| s.clients /= 2);
    }
    if setup.depth > 1 {
        with(&|s| s.depth = 1);
    }
    if setup.threads > 1 {
        with(&|s| s.threads = 1);
    }
    if !setup.flashes.is_empty() {
        with(&|s| s.flashes.truncate(s.flashes.len() - 1));
    }
    if setup.grid_disks.len() > 1 {
        with(&|s| s.grid_disks.truncate(s.grid_disks.len() - 1));
    }
    let last = setup.disks.len() - 1;
    if last > 0 && setup.grid_disks.iter().all(|g| g.home != last) {
        with(&|s| s.disks.truncate(last));
    }
    all
}

/// A step with one thing less. Every candidate has strictly less of something, so this ends.
fn simpler_step(step: &Step) -> Vec<Step> {
    let mut all = Vec::new();
    match step {
        Step::Io(io) => {
            if io.think_ns > 0 {
                all.push(Step::Io(super::plan::Io { think_ns: 0, ..*io }));
            }
            if io.odd_memory {
                all.push(Step::Io(super::plan::Io { odd_memory: false, ..*io }));
            }
        }
        Step::Crash(crash) => {
            let mut with = |change: &dyn Fn(&mut super::plan::Crash)| {
                let mut simpler = crash.clone();
                change(&mut simpler);
                all.push(Step::Crash(simpler));
            };
            if !crash.broken_opens.is_empty() {
                with(&|c| c.broken_opens = Vec::new());
            }
            if crash.between.iter().any(|b| !matches!(b, Between::FlashBack { .. } | Between::DiskBack)) {
                with(&|c| c.between.retain(|b| matches!(b, Between::FlashBack { .. } | Between::DiskBack)));
            } else if !crash.between.is_empty() {
                with(&|c| c.between = Vec::new());
            }
            if crash.evict {
                with(&|c| c.evict = false);
            }
            if crash.pass != Pass::Nothing {
                with(&|c| c.pass = Pass::Nothing);
            }
            if crash.in_flush.is_some() {
                with(&|c| c.in_flush = None);
            }
            if crash.delay_ns > 0 {
                with(&|c| c.delay_ns = 0);
            }
        }
        Step::Rest(time) if !time.is_zero() => all.push(Step::Rest(Duration::ZERO)),
        Step::Rest(_) | Step::Admin(_) | Step::Mishap(_) => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Plan, Step, simpler_setups, simpler_step};

    #[test]
    fn simpler_machines_and_steps_come_to_an_end() {
        for seed in 0..20 {
            let plan = Plan::of_case(crate::harness::Case::of_seed(seed));
            let mut setup = plan.setup.clone();
            let mut rounds = 0;
            while let Some(simpler) = simpler_setups(&setup).into_iter().next_back() {
                setup = simpler;
                rounds += 1;
                assert!(rounds < 100, "seed {seed}: goes round in circles");
            }
            assert!(!setup.disks.is_empty() && setup.grid_disks.len() == 1 && setup.clients == 1);
            assert!(setup.grid_disks.iter().all(|g| g.home < setup.disks.len()));
            for step in &plan.steps {
                let (mut step, mut rounds): (Step, u32) = (step.clone(), 0);
                while let Some(simpler) = simpler_step(&step).pop() {
                    step = simpler;
                    rounds += 1;
                    assert!(rounds < 100, "seed {seed}: {step:?} goes round in circles");
                }
            }
        }
    }
}
