//! Worlds whose clients are on other hosts: each grid disk is the device of one host, as `flashcell attach` makes it.
//!
//! A plan of such a world has neither requests nor commands that a block device of a host cannot have, and no mishap that
//! may cost the only copy of something: there every acknowledged write has to be there for as long as its host lives.

use super::{Admin, Between, Mishap, Plan, Setup, Step, Verb, pick};
use crate::disk::FaultKind;
use crate::net::NetConfig;
use device::Prng;
use std::time::Duration;

/// The network, and how a host uses it.
#[derive(Clone, Debug)]
pub(in crate::harness) struct FarSetup {
    pub(in crate::harness) net: NetConfig,
    /// Connections of a host to its grid disk.
    pub(in crate::harness) connections: usize,
    /// Memory of a host for writes that no FLUSH has covered, in bytes.
    pub(in crate::harness) keep_bytes_max: usize,
}

/// One world in this many.
const ONE_IN: u64 = 8;

/// Make a plan one of such a world, if it is drawn or `wanted`. Drawn apart from everything else.
pub(super) fn fit(plan: &mut Plan, wanted: bool, prng: &mut Prng) {
    if !prng.chance(1, ONE_IN) && !wanted {
        return;
    }
    let break_ppm = pick(prng, &[0, 0, 20, 200]);
    let net = NetConfig { break_ppm, ..NetConfig::random(prng) };
    // Packets of seven bytes take their time, and the hosts of a run have much to say.
    let net = NetConfig { packet_bytes_max: net.packet_bytes_max.max(1460), ..net };
    let connections = pick(prng, &[1, 1, 2, 3]);
    let keep_bytes_max = pick(prng, &[1 << 20, 2 << 20, 8 << 20]);
    plan.setup.far = Some(FarSetup { net, connections, keep_bytes_max });
    let setup = plan.setup.clone();
    plan.steps.retain_mut(|step| fits(step, &setup));
    for _ in 0..prng.between(1, 6) {
        let time = Duration::from_millis(pick(prng, &[5, 100, 2_000, 20_000]) + prng.below(20));
        let at = prng.below(plan.steps.len() as u64 + 1) as usize;
        let (host, breaks) = (prng.next_u64(), prng.chance(1, 2));
        plan.steps.insert(at, Step::Mishap(Mishap::Partition { host, time, breaks }));
    }
    for _ in 0..prng.below(6) {
        // One in two right before a death of the cell: nobody keeps then what no FLUSH has covered.
        let ends = |step: &Step| matches!(step, Step::Crash(_));
        let crashes: Vec<usize> = (0..plan.steps.len()).filter(|&at| ends(&plan.steps[at])).collect();
        let at = match prng.chance(1, 2) {
            true => pick(prng, &crashes),
            false => prng.below(plan.steps.len() as u64 + 1) as usize,
        };
        plan.steps.insert(at, Step::Mishap(Mishap::HostDies { host: prng.next_u64() }));
    }
}

/// Whether a step is of such a world; changed where only a part of it is.
fn fits(step: &mut Step, setup: &Setup) -> bool {
    let flash_may_fail = !setup.write_back && setup.redo.is_none();
    match step {
        Step::Io(io) => {
            if matches!(io.verb, Verb::Offer | Verb::BeyondEnd { .. } | Verb::Prefetch) {
                io.verb = Verb::Read;
            }
            // Neither is durable by itself there.
            if let Verb::Trim { fua } | Verb::Zeroes { fast: true, fua, .. } = &mut io.verb {
                *fua = false;
            }
            true
        }
        Step::Admin(admin) => !matches!(
            admin,
            Admin::Create { .. }
                | Admin::Drop { .. }
                | Admin::Resize { .. }
                | Admin::Rename { .. }
                | Admin::AcceptStale { .. }
                | Admin::ReplaceFlash { .. }
                | Admin::DropFlashLog { force: true }
        ),
        Step::Mishap(mishap) => match mishap {
            Mishap::FlashFault { kind, .. } => *kind != FaultKind::Rot && flash_may_fail,
            Mishap::FlashRot { .. }
            | Mishap::FlashVanishes { .. }
            | Mishap::FlashSnapshot { .. }
            | Mishap::DiskVanishes { .. }
            | Mishap::DiskSnapshot { .. } => false,
            Mishap::FlashStall { .. } => flash_may_fail,
            Mishap::FlashFull { .. }
            | Mishap::DiskFault { .. }
            | Mishap::DiskHealed { .. }
            | Mishap::DiskStall { .. }
            | Mishap::DiskFull { .. }
            | Mishap::ClockStep { .. }
            | Mishap::Pause { .. }
            | Mishap::Partition { .. }
            | Mishap::HostDies { .. } => true,
        },
        Step::Crash(crash) => {
            crash.between.retain(|between| {
                matches!(
                    between,
                    Between::DeviceGrows { .. } | Between::LabelRot { .. } | Between::CheckpointRot { .. }
                )
            });
            true
        }
        Step::Rest(_) => true,
    }
}
