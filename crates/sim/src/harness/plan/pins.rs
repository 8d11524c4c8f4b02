//! Pins: commands that give ranges a caching policy of their own, put between the steps of a plan.
//!
//! Drawn apart from everything else, so that a plan without them stays what it was.

use super::{Admin, Setup, Step, pick};
use celldisk::CachingPolicy;
use device::Prng;

/// Two seeds in three pin ranges, some between requests and some beside other commands.
pub(super) fn add(steps: &mut Vec<Step>, setup: &Setup, prng: &mut Prng) {
    if prng.chance(1, 3) {
        return;
    }
    let one_in = prng.between(40, 200);
    let mut next = Vec::with_capacity(steps.len());
    for step in steps.drain(..) {
        let pins = match &step {
            Step::Io(_) => prng.chance(1, one_in),
            Step::Admin(_) => prng.chance(1, 3),
            Step::Mishap(_) | Step::Crash(_) | Step::Rest(_) => false,
        };
        next.push(step);
        if pins {
            next.push(Step::Admin(pin(setup, prng)));
        }
    }
    *steps = next;
}

fn pin(setup: &Setup, prng: &mut Prng) -> Admin {
    let disk = prng.below(setup.grid_disks.len() as u64);
    let size_bytes = setup.grid_disks[disk as usize].size_bytes;
    let policies = [
        Some(CachingPolicy::Keep),
        Some(CachingPolicy::Keep),
        Some(CachingPolicy::Keep),
        Some(CachingPolicy::Default),
        None,
        Some(CachingPolicy::None),
    ];
    let len_max = size_bytes / pick(prng, &[1, 2, 8]);
    Admin::Pin { disk, offset: prng.below(size_bytes), len: prng.between(1, len_max), policy: pick(prng, &policies) }
}
