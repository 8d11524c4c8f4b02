//! Flash devices that join and leave the flash cache while it runs: commands put between the steps of a plan, and short scenes
//! around crashes.
//!
//! Drawn apart from everything else, so that a plan without them stays what it was.

use super::{AU_BYTES, Admin, Between, Crash, End, Io, Mishap, Pass, Setup, Step, Verb, pick};
use crate::disk::DiskConfig;
use device::Prng;
use std::time::Duration;

/// Writes and reads around a change.
const PLACES_MAX: u64 = 14;

/// One machine in two that has flash has a device more, of which the cell knows and which no cache is on to begin with.
pub(super) fn spare(flashes: &[DiskConfig], prng: &mut Prng) -> Option<DiskConfig> {
    let first = flashes.first().filter(|_| prng.chance(1, 2))?;
    let size_bytes = flashes.iter().map(|flash| flash.geometry.size_bytes).max()?;
    let mut spare = first.clone();
    spare.name = format!("flash {}", flashes.len());
    spare.geometry.size_bytes = size_bytes;
    Some(spare)
}

/// Two in three of the seeds with more than one flash device change the members of the cache.
pub(super) fn add(steps: &mut Vec<Step>, setup: &Setup, prng: &mut Prng) {
    if setup.flashes.len() < 2 || prng.chance(1, 3) {
        return;
    }
    let one_in = prng.between(60, 300);
    let mut next = Vec::with_capacity(steps.len());
    for step in steps.drain(..) {
        match &step {
            Step::Io(_) if prng.chance(1, one_in) => next.push(change(prng)),
            Step::Mishap(Mishap::FlashVanishes { .. } | Mishap::FlashFault { .. }) if prng.chance(1, 2) => {
                next.push(step);
                next.push(change(prng));
                continue;
            }
            // The end comes while it is under way, or upon it.
            Step::Crash(crash) if crash.end != End::CleanStop && prng.chance(1, 4) => next.push(change(prng)),
            Step::Crash(_) if prng.chance(1, 5) => scene(&mut next, setup, prng),
            // A blank device at the start is replaced some time after it.
            Step::Crash(crash)
                if crash.between.iter().any(|b| matches!(b, Between::FlashBlank { .. })) && prng.chance(1, 2) =>
            {
                next.push(step);
                next.push(Step::Admin(Admin::ReplaceFlash { pick: prng.next_u64() }));
                continue;
            }
            _ => {}
        }
        next.push(step);
    }
    *steps = next;
}

/// Devices that are larger after a crash, or become so while the cell runs: of one seed in three, and hardly ever the same one
/// twice.
pub(super) fn grow(steps: &mut Vec<Step>, prng: &mut Prng) {
    if !prng.chance(1, 3) {
        return;
    }
    let more = |prng: &mut Prng| AU_BYTES * prng.between(1, 12) + pick(prng, &[0, 4096]);
    for step in &mut *steps {
        if let Step::Crash(crash) = step
            && prng.chance(1, 3)
        {
            let by_bytes = more(prng);
            crash.between.push(Between::DeviceGrows { device: prng.next_u64(), by_bytes });
        }
    }
    for _ in 0..prng.below(3) {
        let (device, by_bytes) = (prng.next_u64(), more(prng));
        steps.insert(prng.below(steps.len() as u64 + 1) as usize, Step::Admin(Admin::Grow { device, by_bytes }));
    }
}

fn change(prng: &mut Prng) -> Step {
    if prng.chance(1, 4) {
        return Step::Admin(Admin::ReplaceFlash { pick: prng.next_u64() });
    }
    Step::Admin(Admin::ChangeFlash { pick: prng.next_u64(), cancel: prng.chance(1, 8) })
}

/// Data is written and read, members change, it is written and read again, members change back; somewhere there is an end.
fn scene(steps: &mut Vec<Step>, setup: &Setup, prng: &mut Prng) {
    let disk = if prng.chance(1, 2) { 0 } else { prng.below(setup.grid_disks.len() as u64) };
    let pages = setup.grid_disks[disk as usize].size_bytes / 4096;
    let count = prng.between(2, PLACES_MAX);
    let places: Vec<u64> = (0..count).map(|_| prng.below(pages) * 4096).collect();
    let rest = |steps: &mut Vec<Step>| steps.push(Step::Rest(Duration::ZERO));
    let each = |steps: &mut Vec<Step>, verb: Verb| {
        for &offset in &places {
            steps.push(Step::Io(Io { disk, verb, offset, len: 4096, odd_memory: false, think_ns: 0 }));
        }
        rest(steps);
    };
    let end = |steps: &mut Vec<Step>, prng: &mut Prng, between: Vec<Between>| {
        let end = pick(prng, &[End::PowerCut, End::PowerCut, End::Kill]);
        let bound_ns = pick(prng, &[1, 300_000, 3_000_000, 30_000_000]);
        let delay_ns = prng.below(bound_ns);
        let pass = Pass::Some { ranges: 4 };
        steps.push(Step::Crash(Crash {
            end,
            delay_ns,
            between,
            broken_opens: Vec::new(),
            pass,
            evict: false,
            in_flush: None,
        }));
        rest(steps);
    };
    each(steps, Verb::Write { fua: false });
    each(steps, Verb::Read);
    if prng.chance(1, 4) {
        let flash = prng.below(64);
        steps.push(Step::Mishap(Mishap::FlashVanishes { flash }));
    }
    for _ in 0..prng.between(1, 3) {
        steps.push(change(prng));
        if prng.chance(1, 4) {
            end(steps, prng, Vec::new());
        } else if prng.chance(2, 3) {
            rest(steps);
        }
        each(steps, pick(prng, &[Verb::Write { fua: false }, Verb::Write { fua: true }, Verb::Read]));
        if prng.chance(1, 2) {
            each(steps, Verb::Read);
        }
    }
    if prng.chance(1, 3) {
        let flash = prng.below(64);
        let between =
            pick(prng, &[Between::FlashAbsent { flash }, Between::FlashBlank { flash }, Between::FlashBack { flash }]);
        end(steps, prng, vec![between]);
        each(steps, Verb::Read);
        steps.push(Step::Admin(Admin::ReplaceFlash { pick: prng.next_u64() }));
        if prng.chance(1, 4) {
            end(steps, prng, Vec::new());
        }
        rest(steps);
        steps.push(change(prng));
        rest(steps);
    }
    each(steps, Verb::Read);
}
