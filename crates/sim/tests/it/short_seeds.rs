//! A failing seed of a broken build is made short, and the short list breaks the same promise.

#![expect(clippy::unwrap_used, reason = "tests")]

use flashcache::Sabotage;
use sim::harness::{Canary, Case, run_seed, shrink_seed};
use std::sync::Mutex;

/// Seeds in which the broken build has to be caught: it is in one of ten or so.
const SEEDS: u64 = 100;
/// Caught seeds of which one has to become short: a failure that needs a long history stays long in so few runs, and
/// which seed that is changes with every plan.
const TRIES: usize = 4;
/// Enough for a quarter of the steps, and quick.
const RUNS_MAX: usize = 80;

#[test]
fn a_forgotten_invalidation_is_made_short() {
    let sabotage = Some(Canary::Cache(Sabotage::InvalidationForgotten));
    let case = |seed| Case { sabotage, ..Case::of_seed(seed) };
    let caught = |seed: &u64| run_seed(case(*seed), 0).broken.is_some();
    let invariant = |text: &str| text.split_once(' ').unwrap().0.to_owned();
    let mut lengths = Vec::new();
    for seed in (0..SEEDS).filter(caught).take(TRIES) {
        let before = run_seed(case(seed), 0).broken.unwrap();
        let told = Mutex::new(Vec::new());
        let talk = |line: &str| told.lock().unwrap().push(line.to_owned());
        let short = shrink_seed(case(seed), RUNS_MAX, 50, &talk).unwrap();
        assert_eq!(invariant(&short.broken), invariant(&before));
        assert!(short.runs <= RUNS_MAX + 1, "{} runs", short.runs);
        assert!(!short.log.is_empty() && !short.setup.is_empty());
        assert!(told.into_inner().unwrap().len() > 1, "progress is told");
        if short.steps.len() * 4 < short.steps_before {
            return;
        }
        lengths.push((seed, short.steps.len(), short.steps_before));
    }
    panic!("no seed became short (seed, steps, steps before): {lengths:?}");
}

#[test]
fn a_good_seed_has_nothing_to_make_short() {
    assert!(shrink_seed(Case::of_seed(1), RUNS_MAX, 0, &|_: &str| ()).is_none());
}
