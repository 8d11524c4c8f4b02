//! I/O resource plans: commands that state one, put between the steps of a plan.
//!
//! Drawn apart from everything else, so that a plan without them stays what it was.

use super::{Admin, Step};
use device::Prng;

/// One seed in two states plans, some between requests and some beside other commands.
pub(super) fn add(steps: &mut Vec<Step>, prng: &mut Prng) {
    if prng.chance(1, 2) {
        return;
    }
    let one_in = prng.between(60, 300);
    let mut next = Vec::with_capacity(steps.len());
    for step in steps.drain(..) {
        let states = match &step {
            Step::Io(_) => prng.chance(1, one_in),
            Step::Admin(_) => prng.chance(1, 4),
            Step::Mishap(_) | Step::Crash(_) | Step::Rest(_) => false,
        };
        next.push(step);
        if states {
            next.push(Step::Admin(Admin::Iorm { pick: prng.next_u64() }));
        }
    }
    *steps = next;
}
