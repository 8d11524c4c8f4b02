//! The flash log: which grid disks carry redo, and commands about it put between the steps of a plan.
//!
//! Drawn apart from everything else, so that a plan without a flash log stays what it was.

use super::{AU_BYTES, Admin, Mishap, Setup, Step, Verb, pick};
use celldisk::FlashLogMode;
use device::{Class, Prng};
use std::time::Duration;

/// The flash log of a run.
#[derive(Clone, Debug)]
pub(in crate::harness) struct RedoSetup {
    /// On each durable flash device.
    pub(in crate::harness) ring_bytes: u64,
    /// Memory for what the disks do not have durably.
    pub(in crate::harness) unflushed_bytes: usize,
}

fn mode(prng: &mut Prng) -> FlashLogMode {
    let modes = [
        FlashLogMode::Auto,
        FlashLogMode::Race,
        FlashLogMode::Race,
        FlashLogMode::Hedge,
        FlashLogMode::Flash,
        FlashLogMode::Flash,
        FlashLogMode::Off,
    ];
    pick(prng, &modes)
}

/// One seed in three with durable flash has a flash log. Its clients flush more than others.
pub(super) fn add(steps: &mut Vec<Step>, setup: &mut Setup, prng: &mut Prng) {
    let durable = setup.flashes.iter().any(|flash| flash.geometry.class == Class::Durable);
    if !prng.chance(1, 3) || !durable {
        return;
    }
    let ring_bytes = cell::RING_BYTES_MIN + AU_BYTES * prng.below(8);
    for flash in &mut setup.flashes {
        flash.geometry.size_bytes += ring_bytes;
    }
    let unflushed_bytes = pick(prng, &[256 << 10, 1 << 20, 4 << 20]);
    setup.redo = Some(RedoSetup { ring_bytes, unflushed_bytes });
    for (n, grid_disk) in setup.grid_disks.iter_mut().enumerate() {
        grid_disk.redo = (n == 0 || prng.chance(1, 2)).then(|| mode(prng));
        if grid_disk.redo.is_some() {
            // In write-back it is refused, and there would be none.
            grid_disk.caching = grid_disk.caching.of_redo();
        }
    }
    let one_in = prng.between(60, 300);
    let flushes = prng.between(4, 20);
    let mut next = Vec::with_capacity(steps.len());
    for mut step in steps.drain(..) {
        let commands = match &mut step {
            Step::Io(io) => {
                if matches!(io.verb, Verb::Write { .. }) && prng.chance(1, 6) {
                    io.verb = Verb::Write { fua: true };
                }
                prng.chance(1, one_in)
            }
            Step::Admin(Admin::Create { redo, .. }) => {
                *redo = prng.chance(1, 2).then(|| mode(prng));
                prng.chance(1, 2)
            }
            Step::Admin(_) => prng.chance(1, 3),
            Step::Mishap(_) | Step::Crash(_) | Step::Rest(_) => false,
        };
        let io = if let Step::Io(io) = &step { Some(*io) } else { None };
        if let (Step::Crash(_), true) = (&step, prng.chance(1, 2)) {
            // What flash alone has by then has to be replayed.
            let disk = prng.below(64);
            next.push(Step::Mishap(Mishap::DiskStall { disk, time: Duration::from_millis(prng.between(5, 2_000)) }));
        }
        next.push(step);
        if let Some(io) = io.filter(|_| prng.chance(1, flushes)) {
            next.push(Step::Io(super::Io { verb: Verb::Flush, offset: 0, len: 0, ..io }));
        }
        if commands {
            next.push(Step::Admin(command(prng)));
        }
    }
    *steps = next;
}

fn command(prng: &mut Prng) -> Admin {
    let disk = prng.below(64);
    match prng.below(16) {
        0..=6 => Admin::SetRedo { disk, redo: Some(mode(prng)) },
        7..=9 => Admin::SetRedo { disk, redo: None },
        10 | 11 => Admin::DropFlashLog { force: false },
        12 => Admin::DropFlashLog { force: true },
        13 => Admin::AcceptStale { disk },
        _ => Admin::CreateFlashLog,
    }
}
