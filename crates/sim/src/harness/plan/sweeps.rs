//! Caches of many segments, and the loads that make them clean: one range of a grid disk is overwritten again and again, and the
//! power goes in the middle of a flush.
//!
//! From 128 segments on a flash cache keeps what it writes apart by its lifetime and cleans the segment with the most garbage. No
//! load that goes all over small grid disks brings it there. Drawn apart from everything else.

use super::{Caching, End, InFlush, Io, Setup, Step, Verb, pick};
use crate::disk::FLUSH_NS_MIN;
use celldisk::{CachingMode, CachingPolicy};
use device::Prng;

/// The smallest segments there are: virtual time and memory are by the byte.
pub(super) const SEGMENT_BYTES: u32 = 64 << 10;
/// With smaller segments no larger block has room.
pub(super) const BLOCK_BYTES_MAX: u32 = 32 << 10;
/// Above the 128 from which segments have classes, whatever is lost to rounding.
pub(super) const SEGMENTS_MIN: u64 = 132;
/// Not so many that a few thousand writes do not fill them.
pub(super) const SEGMENTS_MAX: u64 = 180;
/// Units of the first grid disk: several ranges' worth.
pub(super) const AU_COUNT: (u64, u64) = (64, 96);

/// Bytes that are overwritten: a tenth to a third of the cache.
const RANGE_BYTES: (u64, u64) = (768 << 10, 3 << 20);
/// Bytes written before a crash: as many as the cache has, or a few times that.
const WRITTEN_BYTES: (u64, u64) = (6 << 20, 16 << 20);

/// Whether a world has such a cache: three in eight of those with flash, and two in three where dirty data may be cleaned.
pub(super) fn wanted(flash_count: u64, cleans_dirty: bool, prng: &mut Prng) -> bool {
    let (chance, of) = if cleans_dirty { (2, 3) } else { (3, 8) };
    prng.chance(chance, of) && flash_count > 0
}

/// Sweeps before half of the crashes of a world with many segments.
pub(super) fn add(steps: &mut Vec<Step>, setup: &Setup, prng: &mut Prng) {
    if !setup.many_segments {
        return;
    }
    let mut next = Vec::with_capacity(steps.len());
    for step in steps.drain(..) {
        let Step::Crash(mut crash) = step else {
            next.push(step);
            continue;
        };
        if crash.end == End::CleanStop || prng.chance(1, 2) {
            next.push(Step::Crash(crash));
            continue;
        }
        if prng.chance(3, 4) {
            let after_ns = prng.below(FLUSH_NS_MIN);
            crash.end = End::PowerCut;
            crash.in_flush = Some(InFlush { flash: prng.chance(7, 8), earlier: prng.below(6), after_ns });
        }
        let mut writes = sweep(setup, prng);
        // Writes and flushes go on until the end comes.
        let rest = writes.len() / 8;
        let after = writes.split_off(writes.len() - rest);
        next.extend(writes);
        next.push(Step::Crash(crash));
        next.extend(after);
    }
    *steps = next;
}

/// Overwrite one range of the first grid disk, several times over.
fn sweep(setup: &Setup, prng: &mut Prng) -> Vec<Step> {
    let disk = 0;
    let size_bytes = setup.grid_disks[0].size_bytes;
    let len = pick(prng, &[16 << 10, 32 << 10, 32 << 10, 64 << 10]);
    let range_bytes = prng.between(RANGE_BYTES.0, RANGE_BYTES.1).min(size_bytes);
    let start = prng.below(size_bytes - range_bytes + 1) / 4096 * 4096;
    let places = (range_bytes / len).max(1);
    // One place after the other, or places far apart.
    let stride = pick(prng, &[1, 1, 7919]);
    let flush_every = prng.between(places / 8 + 1, places);
    let other = pick(prng, &[0, 0, 20]);
    let think_ns_max = pick(prng, &[1, 1, 200_000]);
    let written_bytes = prng.between(WRITTEN_BYTES.0, WRITTEN_BYTES.1);
    let mut steps = Vec::new();
    if prng.chance(1, 2) {
        let caching = Caching { mode: CachingMode::WriteThrough, policy: CachingPolicy::Default };
        let caching = caching.in_world(setup.write_back, setup.ordered);
        steps.push(Step::Admin(super::Admin::SetCaching { disk, caching }));
    }
    for n in 0..written_bytes / len {
        let offset = start + n * stride % places * len;
        let verb = match prng.below(100) {
            roll if roll >= other => Verb::Write { fua: false },
            roll if roll % 4 == 0 => Verb::Trim { fua: false },
            roll if roll % 4 == 1 => Verb::Zeroes { fua: false, no_hole: false, fast: false },
            _ => Verb::Read,
        };
        let think_ns = prng.below(think_ns_max);
        steps.push(Step::Io(Io { disk, verb, offset, len, odd_memory: false, think_ns }));
        if (n + 1) % flush_every == 0 {
            steps.push(Step::Io(Io { disk, verb: Verb::Flush, offset: 0, len: 0, odd_memory: false, think_ns: 0 }));
        }
    }
    steps
}
