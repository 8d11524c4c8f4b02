//! A failing seed of a broken build is made short, and the short list breaks the same promise.

#![expect(clippy::unwrap_used, reason = "tests")]

use flashcache::Sabotage;
use sim::harness::{run_seed, shrink_seed};
use std::sync::Mutex;

/// Seeds in which the broken build has to be caught: it is in one of ten or so.
const SEEDS: u64 = 100;
/// Enough for a quarter of the steps, and quick.
const RUNS_MAX: usize = 80;

#[test]
fn a_forgotten_invalidation_is_made_short() {
    let sabotage = Some(Sabotage::InvalidationForgotten);
    let caught = |seed: &u64| run_seed(*seed, sabotage, 0).broken.is_some();
    let seed = (0..SEEDS).find(caught).unwrap();
    let before = run_seed(seed, sabotage, 0).broken.unwrap();
    let told = Mutex::new(Vec::new());
    let talk = |line: &str| told.lock().unwrap().push(line.to_owned());
    let short = shrink_seed(seed, sabotage, RUNS_MAX, 50, &talk).unwrap();
    let invariant = |text: &str| text.split_once(' ').unwrap().0.to_owned();
    assert_eq!(invariant(&short.broken), invariant(&before));
    assert!(short.steps.len() * 4 < short.steps_before, "{} of {} steps", short.steps.len(), short.steps_before);
    assert!(short.runs <= RUNS_MAX + 1, "{} runs", short.runs);
    assert!(!short.log.is_empty() && !short.setup.is_empty());
    assert!(told.into_inner().unwrap().len() > 1, "progress is told");
}

#[test]
fn a_good_seed_has_nothing_to_make_short() {
    assert!(shrink_seed(1, None, RUNS_MAX, 0, &|_: &str| ()).is_none());
}
