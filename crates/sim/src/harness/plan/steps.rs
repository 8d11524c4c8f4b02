//! Draws the list of steps of a plan: requests in moods, commands, mishaps, crashes.

use super::{
    AU_BYTES, Admin, Between, CRASHES_MIN, Crash, End, Io, Mishap, Pass, Setup, Step, Verb, caching, in_world, pick,
};
use crate::disk::FaultKind;
use celldisk::FillStrategy;
use device::{FailKind, Prng};
use std::time::Duration;

/// What requests look like for a while.
struct Mood {
    writes: u64,
    hot: bool,
    sequential: bool,
    large: bool,
    aligned: bool,
    flushes: u64,
    think_ns_max: u64,
}

impl Mood {
    fn draw(prng: &mut Prng) -> Mood {
        Mood {
            writes: pick(prng, &[5, 20, 40, 60]),
            hot: prng.chance(3, 4),
            sequential: prng.chance(1, 5),
            large: prng.chance(1, 12),
            aligned: prng.chance(2, 3),
            flushes: pick(prng, &[0, 1, 3, 8]),
            think_ns_max: pick(prng, &[0, 50_000, 500_000, 5_000_000]),
        }
    }
}

/// Draws the list.
pub(super) struct Steps<'a> {
    pub(super) setup: &'a Setup,
    pub(super) prng: &'a mut Prng,
    mood: Mood,
    hot: Vec<u64>,
    next: Vec<u64>,
    pub(super) steps: Vec<Step>,
}

impl Steps<'_> {
    pub(super) fn draw(setup: &Setup, operations: u64, prng: &mut Prng) -> Vec<Step> {
        let mood = Mood::draw(prng);
        let sizes: Vec<u64> = setup.grid_disks.iter().map(|g| g.size_bytes).collect();
        let hot = sizes.iter().map(|&size| prng.below(size)).collect();
        let mut all = Steps { setup, prng, mood, hot, next: vec![0; sizes.len()], steps: Vec::new() };
        let crashes = all.prng.between(CRASHES_MIN + 1, 7);
        let per_life = (operations + 200) / (crashes + 1) + 1;
        // Most seeds have a kind of mishap they are about, so that others can be undisturbed.
        let mishaps = pick(all.prng, &[0, 1, 2, 4]);
        let admin = pick(all.prng, &[0, 1, 2, 4]);
        for life in 0..=crashes {
            let mut left = per_life;
            while left > 0 {
                let run = left.min(all.prng.between(10, 120));
                left -= run;
                if all.prng.chance(1, 3) {
                    all.mood = Mood::draw(all.prng);
                }
                for _ in 0..run {
                    all.io();
                }
                for _ in 0..all.prng.below(mishaps + 1) {
                    all.mishap();
                }
                if all.prng.below(4) < admin {
                    all.admin();
                }
            }
            if life < crashes {
                // Often hard upon the heels of a command.
                if all.prng.chance(1, 3) {
                    all.admin();
                }
                if all.prng.chance(2, 5) {
                    all.scene();
                } else {
                    all.crash(life >= CRASHES_MIN);
                }
            }
        }
        let mut steps = all.steps;
        steps.iter_mut().for_each(|step| in_world(step, setup.write_back, setup.ordered));
        steps
    }

    fn io(&mut self) {
        let prng = &mut *self.prng;
        let disk = prng.below(self.setup.grid_disks.len() as u64);
        let size = self.setup.grid_disks[disk as usize].size_bytes;
        let unit =
            if self.mood.aligned { pick(prng, &[4096, 4096, 4096, 512]) } else { pick(prng, &[1, 1, 512, 4096]) };
        let len = if self.mood.large && prng.chance(1, 4) {
            prng.between(64, 400) * 4096
        } else {
            unit * pick(prng, &[1, 1, 2, 4, prng.fork("len").between(1, 24)]).max(1)
        };
        let len = match prng.below(40) {
            0 => prng.between(1, 100_000),
            1 => 1,
            _ => len,
        }
        .min(size);
        let offset = if self.mood.sequential {
            self.next[disk as usize]
        } else if self.mood.hot && prng.chance(3, 4) {
            self.hot[disk as usize] + prng.below(size / 8 + 1)
        } else {
            prng.below(size)
        } / unit
            * unit;
        self.next[disk as usize] = offset + len;
        let fua = prng.chance(1, 8);
        let roll = prng.below(100);
        let verb = if roll < self.mood.flushes {
            Verb::Flush
        } else if prng.below(100) < self.mood.writes {
            match prng.below(16) {
                0 | 1 => Verb::Zeroes { fua, no_hole: prng.chance(1, 2), fast: prng.chance(1, 6) },
                2 | 3 => Verb::Trim { fua },
                _ => Verb::Write { fua },
            }
        } else {
            match prng.below(60) {
                0..=2 => Verb::Prefetch,
                6..=11 => Verb::Offer,
                3 | 4 => Verb::Status,
                5 => Verb::BeyondEnd { write: prng.chance(1, 2) },
                _ => Verb::Read,
            }
        };
        let think_ns = if self.mood.think_ns_max == 0 { 0 } else { prng.below(self.mood.think_ns_max) };
        let odd_memory = prng.chance(1, 16);
        self.steps.push(Step::Io(Io { disk, verb, offset, len, odd_memory, think_ns }));
    }

    fn admin(&mut self) {
        let prng = &mut *self.prng;
        let disk = prng.below(64);
        let admin = match prng.below(20) {
            0 | 1 => {
                let size_bytes = AU_BYTES * prng.between(1, 16);
                Admin::Create { home: prng.below(8), size_bytes, caching: caching(prng), redo: None }
            }
            2 => Admin::Drop { disk },
            3..=6 => Admin::Resize { disk, size_bytes: AU_BYTES * prng.between(1, 40) },
            7 => Admin::Rename { disk },
            8 | 9 => Admin::SetFill { disk, fill: pick(prng, &FillStrategy::ALL) },
            10..=12 => Admin::SetCaching { disk, caching: caching(prng) },
            13..=16 => Admin::Evict { disk },
            17 => Admin::DropFlashCache,
            _ => Admin::CreateFlashCache {
                all: prng.chance(2, 3),
                size_bytes: self.setup.flash_cache_bytes * prng.between(50, 150) / 100,
            },
        };
        self.steps.push(Step::Admin(admin));
    }

    fn mishap(&mut self) {
        let prng = &mut *self.prng;
        let (flash, disk) = (prng.below(64), prng.below(64));
        let limits = (self.setup.soft_limit, self.setup.hard_limit);
        let mishap = match prng.below(26) {
            0..=3 => {
                let kind = pick(
                    prng,
                    &[
                        FaultKind::ReadFails,
                        FaultKind::WriteFails,
                        FaultKind::FlushFails,
                        FaultKind::Short,
                        FaultKind::Unknown,
                        FaultKind::Unreadable,
                        FaultKind::Slow,
                        FaultKind::Slow,
                        FaultKind::Lost,
                        FaultKind::Misdirected,
                    ],
                );
                let fail = pick(prng, &[FailKind::Media, FailKind::Media, FailKind::Errno(5), FailKind::NoSpace]);
                Mishap::FlashFault { flash, kind, times: prng.between(1, 3) as u32, fail }
            }
            4..=8 => Mishap::FlashRot { flash, pick: prng.next_u64() },
            9..=11 => {
                let time = match prng.below(3) {
                    0 => limits.0 / 2,
                    1 => limits.0 + (limits.1 - limits.0) / 2,
                    _ => limits.1 * 2,
                };
                Mishap::FlashStall { flash, time }
            }
            12 => Mishap::FlashVanishes { flash },
            13 | 14 => Mishap::FlashSnapshot { flash },
            15..=17 => {
                let kind = pick(
                    prng,
                    &[
                        FaultKind::WriteFails,
                        FaultKind::WriteFails,
                        FaultKind::FlushFails,
                        FaultKind::FlushFails,
                        FaultKind::FlushFails,
                        FaultKind::ReadFails,
                        FaultKind::Short,
                        FaultKind::Slow,
                    ],
                );
                Mishap::DiskFault { disk, kind, times: prng.between(1, 3) as u32 }
            }
            18..=20 => Mishap::DiskHealed { disk },
            21 | 22 => Mishap::DiskStall { disk, time: Duration::from_millis(prng.between(1, 4_000)) },
            23 => Mishap::DiskVanishes { disk },
            _ => Mishap::DiskSnapshot { disk },
        };
        self.steps.push(Step::Mishap(mishap));
    }

    fn crash(&mut self, may_stop: bool) {
        let prng = &mut *self.prng;
        let end = |prng: &mut Prng| pick(prng, &[End::PowerCut, End::PowerCut, End::Kill]);
        let delay = |prng: &mut Prng| match prng.below(4) {
            0 => prng.below(100_000),
            1 => prng.below(2_000_000),
            _ => prng.below(50_000_000),
        };
        let flash = prng.below(64);
        let between = match prng.below(48) {
            0 | 1 => vec![Between::FlashAbsent { flash }],
            2 | 3 => vec![Between::FlashBlank { flash }],
            4..=6 => vec![Between::FlashStale { flash }],
            7 => vec![Between::FlashSwap { flash }],
            8 => vec![Between::DiskAbsent],
            9..=12 => vec![Between::DiskStale { disk: prng.below(64) }],
            13 => vec![Between::DiskStale { disk: prng.below(64) }, Between::FlashAbsent { flash }],
            14 => vec![Between::LabelRot { slot: prng.below(2) }],
            15 => vec![Between::LabelRot { slot: prng.below(2) }, Between::FlashAbsent { flash }],
            16..=18 => {
                let kind = pick(
                    prng,
                    &[
                        FaultKind::ReadFails,
                        FaultKind::ReadFails,
                        FaultKind::WriteFails,
                        FaultKind::FlushFails,
                        FaultKind::Short,
                        FaultKind::Unreadable,
                        FaultKind::Slow,
                    ],
                );
                vec![
                    Between::FlashBack { flash },
                    Between::FlashFault { flash, kind, ppm: pick(prng, &[5_000, 50_000, 300_000]) },
                ]
            }
            19..=30 => vec![Between::FlashBack { flash }, Between::DiskBack],
            31..=35 => vec![Between::DiskAbsent],
            36..=38 => vec![Between::FlashSwap { flash }],
            _ => Vec::new(),
        };
        let mut broken_opens = Vec::new();
        while broken_opens.len() < 3 && prng.chance(1, 4) {
            let after = match prng.below(3) {
                0 => prng.below(1_000_000),
                1 => prng.below(20_000_000),
                _ => prng.below(200_000_000),
            };
            broken_opens.push((end(prng), after));
        }
        let pass = match prng.below(4) {
            0 => Pass::Nothing,
            1 => Pass::Some { ranges: prng.between(1, 60) },
            _ => Pass::Everything { step_bytes: 4096 << prng.below(8) },
        };
        let crash = Crash {
            end: if may_stop && prng.chance(1, 3) { End::CleanStop } else { end(prng) },
            delay_ns: delay(prng),
            between,
            broken_opens,
            pass,
            evict: prng.chance(1, 3),
            in_flush: None,
        };
        self.steps.push(Step::Crash(crash));
    }
}
