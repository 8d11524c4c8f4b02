//! Where the bytes of a grid disk live: for block status, and for who asks what of a file is on flash.
//!
//! Never waits for a client's request, and never counts as a hit.

use crate::base::request::{Allocation, Extent, RequestError, Tier};
use crate::base::units::PART_BYTES;
use crate::base::units::cover;
use crate::disk::grid_disk::GridDisk;
use device::{Op, Outcome};
use flashcache::Residence;
use std::ops::Range;

/// Step of a look-up: it takes a lock per block.
const STEP_BYTES: u64 = 1 << 20;

impl GridDisk {
    /// What of a range is on flash at the moment; what lies past the end is not, and what is newer than on disk does not count as
    /// KEEP. A look-up for each part: a terabyte takes seconds, during which requests go on.
    #[must_use]
    pub fn held(&self, range: Range<u64>) -> flashcache::Content {
        let mut held = flashcache::Content::default();
        self.walk_tiers(range.start, range.end.min(self.size_bytes()), |len, residence| {
            match residence {
                Residence::Disk => return true,
                Residence::Cached => {}
                Residence::Kept => held.keep_bytes += len,
                Residence::Dirty => held.dirty_bytes += len,
            }
            held.cached_bytes += len;
            true
        });
        held
    }

    pub(crate) async fn extents(&self, offset: u64, len: u64, extents_max: usize) -> Result<Vec<Extent>, RequestError> {
        let span = cover(offset, len, PART_BYTES);
        let done = self.disk.submit(Op::Status { offset: span.start, len: span.end - span.start }).await;
        let all_data = [device::DeviceExtent { len: span.end - span.start, hole: false }];
        let known =
            if done.outcome == Outcome::Done && !done.extents.is_empty() { &done.extents[..] } else { &all_data };
        let mut out = ExtentList { out: Vec::new(), extents_max };
        let mut at = span.start;
        for extent in known {
            let (low, high) = (at.max(offset), (at + extent.len).min(offset + len));
            at += extent.len;
            if low < high && !self.push_tiers(low, high, extent.hole, &mut out) {
                break;
            }
        }
        Ok(out.out)
    }

    /// Cut a stretch by where it is cached; false when the list is full.
    fn push_tiers(&self, low: u64, high: u64, hole: bool, out: &mut ExtentList) -> bool {
        let is_ordered = self.is_ordered();
        let mut at = low;
        self.walk_tiers(low, high, |len, residence| {
            let start = at;
            at += len;
            let (tier, hole) = match residence {
                Residence::Disk => (Tier::Disk, hole),
                Residence::Cached => (Tier::CachedClean, hole),
                Residence::Kept => (Tier::Kept, hole),
                // What the disk knows of it is old.
                Residence::Dirty => (Tier::CachedDirty, false),
            };
            match hole {
                true => out.push(len, Allocation::Hole, tier),
                false if is_ordered => self.ordered.zeroed.cut(start..at, &mut |len, zero| {
                    out.push(len, if zero { Allocation::Zeroes } else { Allocation::Data }, tier)
                }),
                false => out.push(len, Allocation::Data, tier),
            }
        })
    }

    /// Tell the stretches from `low` to `high` in order, each with its length, until `each` is false; whether it never was.
    fn walk_tiers(&self, low: u64, high: u64, mut each: impl FnMut(u64, Residence) -> bool) -> bool {
        let Some(binding) = self.cache() else { return low >= high || each(high - low, Residence::Disk) };
        let mut at = low;
        while at < high {
            let end = (at / STEP_BYTES + 1) * STEP_BYTES;
            let span = cover(at, end.min(high) - at, PART_BYTES);
            let mut start = span.start;
            for (parts, residence) in
                binding.cache.residence(&binding.disk, span.start / PART_BYTES..span.end / PART_BYTES)
            {
                let stretch = (start.max(at), (start + parts * PART_BYTES).min(high));
                start += parts * PART_BYTES;
                if stretch.0 < stretch.1 && !each(stretch.1 - stretch.0, residence) {
                    return false;
                }
            }
            at = span.end.min(high);
        }
        true
    }
}

struct ExtentList {
    out: Vec<Extent>,
    extents_max: usize,
}

impl ExtentList {
    fn push(&mut self, len: u64, allocation: Allocation, tier: Tier) -> bool {
        let full = self.out.len() == self.extents_max;
        match self.out.last_mut() {
            Some(last) if last.allocation == allocation && last.tier == tier => last.len += len,
            _ if full => return false,
            _ => self.out.push(Extent { len, allocation, tier }),
        }
        true
    }
}
