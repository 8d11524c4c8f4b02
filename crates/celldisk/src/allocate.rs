//! Which allocation units are free, and which of them a request gets.
//!
//! Derived from the catalog (and the space that creations under way have reserved) at each request; never stored.

use crate::catalog::{Catalog, Extent};
use crate::ids::DeviceId;
use crate::layout::EXTENTS_MAX;

impl Catalog {
    /// Every extent in use on a device, in no order.
    fn extents_on(&self, device_id: DeviceId) -> impl Iterator<Item = Extent> + '_ {
        let grid_disks = self.grid_disks.values().filter(move |g| g.cell_disk == device_id);
        let cache = self.flash_cache.iter().filter_map(move |cache| cache.regions.get(&device_id));
        let log = self.flash_log.iter().filter_map(move |log| log.regions.get(&device_id));
        grid_disks.flat_map(|g| [&g.extents, &g.journal]).chain(cache).chain(log).flatten().copied()
    }

    /// Free stretches of a device, ascending; `reserved` counts as used.
    pub(crate) fn free_extents(&self, device_id: DeviceId, reserved: &[(DeviceId, Extent)]) -> Vec<Extent> {
        let Some(member) = self.members.get(&device_id) else { return Vec::new() };
        let reserved = reserved.iter().filter(|(id, _)| *id == device_id).map(|(_, extent)| *extent);
        let mut used: Vec<Extent> = self.extents_on(device_id).chain(reserved).collect();
        used.sort_unstable();
        let mut free = Vec::new();
        let mut next: u64 = 0;
        let end = Extent { start_au: member.au_count, count_au: 0 };
        for extent in used.into_iter().chain([end]) {
            let start = u64::from(extent.start_au);
            if start > next {
                // Both lie within a device, whose units are counted in 32 bits.
                free.push(Extent { start_au: next as u32, count_au: (start - next) as u32 });
            }
            next = next.max(extent.end_au());
        }
        free
    }

    /// Free allocation units of a device; 0 when the cell has no such device.
    #[must_use]
    pub fn free_au(&self, device_id: DeviceId) -> u64 {
        self.free_extents(device_id, &[]).iter().map(|extent| u64::from(extent.count_au)).sum()
    }

    /// Free bytes of a device.
    #[must_use]
    pub fn free_bytes(&self, device_id: DeviceId) -> u64 {
        self.members.get(&device_id).map_or(0, |member| self.free_au(device_id) * member.au_bytes)
    }
}

/// `count_au` units out of `free`: what directly follows `after` first (growth in place), then the first stretch that is
/// long enough, else the longest ones, so that there are few. `None` when there is too little, or it would take more than
/// `extents_max` pieces.
pub(crate) fn allocate(
    free: &[Extent],
    count_au: u64,
    after: Option<Extent>,
    extents_max: usize,
) -> Option<Vec<Extent>> {
    let mut free = free.to_vec();
    let mut taken = Vec::new();
    let mut left = count_au;
    if let Some(after) = after
        && let Some(next) = free.iter_mut().find(|extent| u64::from(extent.start_au) == after.end_au())
    {
        take(next, &mut left, &mut taken);
    }
    if left > 0
        && let Some(first) = free.iter_mut().find(|extent| u64::from(extent.count_au) >= left)
    {
        take(first, &mut left, &mut taken);
    }
    if left > 0 {
        // Longest first; of equal ones the first on the device.
        free.sort_by_key(|extent| (std::cmp::Reverse(extent.count_au), extent.start_au));
        for extent in &mut free {
            take(extent, &mut left, &mut taken);
        }
    }
    (left == 0 && taken.len() <= extents_max.min(EXTENTS_MAX)).then_some(taken)
}

fn take(from: &mut Extent, left: &mut u64, taken: &mut Vec<Extent>) {
    let count_au = u64::from(from.count_au).min(*left) as u32;
    if count_au > 0 {
        taken.push(Extent { start_au: from.start_au, count_au });
        from.start_au += count_au;
        from.count_au -= count_au;
        *left -= u64::from(count_au);
    }
}

/// Join `more` to the end of `extents`, as one where they touch.
pub(crate) fn append(extents: &mut Vec<Extent>, more: &[Extent]) {
    for &next in more {
        match extents.last_mut() {
            Some(last) if last.end_au() == u64::from(next.start_au) => last.count_au += next.count_au,
            _ => extents.push(next),
        }
    }
}

/// Keep the first `count_au` units.
pub(crate) fn cut(extents: &mut Vec<Extent>, count_au: u64) {
    let mut left = count_au;
    extents.retain_mut(|extent| {
        extent.count_au = u64::from(extent.count_au).min(left) as u32;
        left -= u64::from(extent.count_au);
        extent.count_au > 0
    });
}

/// Units in all.
pub(crate) fn count(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.count_au)).sum()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    fn e(start_au: u32, count_au: u32) -> Extent {
        Extent { start_au, count_au }
    }

    #[test]
    fn contiguous_first_fit_is_preferred() {
        let free = [e(0, 2), e(10, 5), e(20, 4), e(30, 5)];
        assert_eq!(allocate(&free, 2, None, 64).unwrap(), [e(0, 2)]);
        assert_eq!(allocate(&free, 4, None, 64).unwrap(), [e(10, 4)]);
        assert_eq!(allocate(&free, 7, None, 64).unwrap(), [e(10, 5), e(30, 2)]);
        assert_eq!(allocate(&free, 16, None, 64).unwrap().len(), 4);
        assert_eq!(allocate(&free, 17, None, 64), None);
        assert_eq!(allocate(&free, 16, None, 3), None, "too many pieces");
        assert_eq!(allocate(&free, 6, Some(e(5, 5)), 64).unwrap(), [e(10, 5), e(0, 1)]);
        assert_eq!(allocate(&[], 1, None, 64), None);
    }

    #[test]
    fn append_and_cut() {
        let mut extents = vec![e(3, 2)];
        append(&mut extents, &[e(5, 1), e(9, 2)]);
        assert_eq!(extents, [e(3, 3), e(9, 2)]);
        cut(&mut extents, 4);
        assert_eq!(extents, [e(3, 3), e(9, 1)]);
        cut(&mut extents, 3);
        assert_eq!(extents, [e(3, 3)]);
    }

    proptest! {
        /// Whatever is asked, the answer is free, disjoint and exactly as much; and there is one whenever room and the
        /// limit of pieces allow.
        #[test]
        fn against_a_map_of_units(used in proptest::collection::vec(any::<bool>(), 0..80), count_au in 1u64..40, after in 0u32..80) {
            let mut free: Vec<Extent> = Vec::new();
            for (au, &is_used) in used.iter().enumerate().filter(|(_, used)| !**used) {
                assert!(!is_used);
                append(&mut free, &[e(au as u32, 1)]);
            }
            let room = count(&free);
            match allocate(&free, count_au, Some(e(after, 1)), EXTENTS_MAX) {
                None => prop_assert!(room < count_au),
                Some(taken) => {
                    prop_assert_eq!(count(&taken), count_au);
                    let mut units: Vec<u64> = taken.iter().flat_map(|t| u64::from(t.start_au)..t.end_au()).collect();
                    units.sort_unstable();
                    prop_assert!(units.windows(2).all(|w| w[0] < w[1]));
                    prop_assert!(units.iter().all(|&au| !used[au as usize]));
                    let longest = free.iter().map(|f| u64::from(f.count_au)).max().unwrap();
                    let in_place = free.iter().any(|f| f.start_au == after + 1);
                    prop_assert!(taken.len() == 1 || longest < count_au || in_place);
                }
            }
        }
    }
}
