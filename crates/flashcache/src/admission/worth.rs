//! How much the cache values which part of a grid disk: the operator's word, by grid disk and by range of one.
//!
//! Plain tables, read on the request path: a grid disk of whose parts none is set apart costs one load of an atomic.
//! Never decides what is evicted, never does I/O.

use crate::base::disk::DiskHandle;
use crate::base::units::{BlockKey, DISK_SLOTS_MAX, DiskSlot};
use crate::placement::cache::FlashCache;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What a part of a grid disk is worth to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worth {
    /// It enters and leaves by merit.
    #[default]
    Default,
    /// It stays while it is used, as far as the share of such data goes.
    Keep,
    /// It is not cached; what is dirty of it stays until the disk has it.
    None,
}

/// The worth of every part of one grid disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorthMap {
    whole: Worth,
    /// Ascending, apart from each other, none empty.
    ranges: Vec<(Range<u64>, Worth)>,
}

impl WorthMap {
    /// A grid disk worth `whole` but for these ranges of parts.
    ///
    /// # Panics
    /// When ranges are empty, overlap or do not ascend.
    #[must_use]
    pub fn new(whole: Worth, ranges: Vec<(Range<u64>, Worth)>) -> WorthMap {
        assert!(ranges.iter().all(|(range, _)| range.start < range.end), "a range has parts");
        assert!(ranges.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start), "ranges ascend");
        WorthMap { whole, ranges }
    }

    /// The first range that does not end before a part.
    fn from(&self, part: u64) -> usize {
        self.ranges.partition_point(|(range, _)| range.end <= part)
    }

    /// What one part is worth.
    #[must_use]
    pub fn of(&self, part: u64) -> Worth {
        match self.ranges.get(self.from(part)) {
            Some((range, worth)) if range.start <= part => *worth,
            _ => self.whole,
        }
    }

    /// Parts cut where their worth changes, in order.
    #[must_use]
    pub fn pieces(&self, parts: Range<u64>) -> SmallVec<[(Range<u64>, Worth); 2]> {
        let mut pieces = SmallVec::new();
        let mut at = parts.start;
        for (range, worth) in &self.ranges[self.from(at)..] {
            if range.start >= parts.end {
                break;
            }
            if at < range.start {
                pieces.push((at..range.start, self.whole));
                at = range.start;
            }
            let end = range.end.min(parts.end);
            pieces.push((at..end, *worth));
            at = end;
        }
        if at < parts.end {
            pieces.push((at..parts.end, self.whole));
        }
        pieces
    }

    /// Whether a part among these is worth so much.
    #[must_use]
    pub fn has(&self, parts: Range<u64>, worth: Worth) -> bool {
        self.pieces(parts).iter().any(|(_, found)| *found == worth)
    }

    /// Whether any part of the grid disk is worth so much.
    fn has_anywhere(&self, worth: Worth) -> bool {
        self.whole == worth || self.ranges.iter().any(|(_, found)| *found == worth)
    }

    /// Whether a block has a part, of those in `mask`, that is worth so much.
    pub(crate) fn has_in_block(&self, block: u64, block_parts: u32, mask: u16, worth: Worth) -> bool {
        let first = block * u64::from(block_parts);
        let (low, high) = (u64::from(mask.trailing_zeros()), 16 - u64::from(mask.leading_zeros()));
        if self.ranges.is_empty() {
            return self.whole == worth;
        }
        self.pieces(first + low..first + high)
            .iter()
            .any(|(range, found)| *found == worth && range.clone().any(|part| mask >> (part - first) & 1 == 1))
    }
}

const HAS_KEEP: u8 = 1;
const HAS_NONE: u8 = 2;

/// The maps of all grid disks of a cache.
#[derive(Debug)]
pub(crate) struct Worths {
    /// By slot: what there is anywhere on the grid disk.
    flags: Box<[AtomicU8]>,
    maps: RwLock<BTreeMap<DiskSlot, Arc<WorthMap>>>,
}

impl Worths {
    pub(crate) fn new() -> Arc<Worths> {
        let flags = (0..DISK_SLOTS_MAX).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Worths { flags, maps: RwLock::default() })
    }

    /// Whether that changes anything.
    pub(crate) fn set(&self, slot: DiskSlot, map: WorthMap) -> bool {
        let mut flags = 0;
        flags |= if map.has_anywhere(Worth::Keep) { HAS_KEEP } else { 0 };
        flags |= if map.has_anywhere(Worth::None) { HAS_NONE } else { 0 };
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        let before = if flags == 0 { maps.remove(&slot) } else { maps.insert(slot, Arc::new(map)) };
        let now = maps.get(&slot);
        let changed = before.as_deref() != now.map(Arc::as_ref);
        self.flags[usize::from(slot.0)].store(flags, Ordering::Release);
        changed
    }

    fn flagged(&self, slot: DiskSlot, flag: u8) -> Option<Arc<WorthMap>> {
        if self.flags[usize::from(slot.0)].load(Ordering::Acquire) & flag == 0 {
            return None;
        }
        self.maps.read().unwrap_or_else(PoisonError::into_inner).get(&slot).cloned()
    }

    /// The map of a grid disk that has parts worth [`Worth::Keep`].
    pub(crate) fn keeping(&self, slot: DiskSlot) -> Option<Arc<WorthMap>> {
        self.flagged(slot, HAS_KEEP)
    }

    /// The map of a grid disk that has parts worth [`Worth::None`].
    pub(crate) fn refusing(&self, slot: DiskSlot) -> Option<Arc<WorthMap>> {
        self.flagged(slot, HAS_NONE)
    }

    /// Whether any grid disk has KEEP data.
    pub(crate) fn any_keep(&self) -> bool {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        maps.values().any(|map| map.has_anywhere(Worth::Keep))
    }

    /// Every map there is, for a walk over many entries.
    pub(crate) fn all(&self) -> BTreeMap<DiskSlot, Arc<WorthMap>> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether parts of a block are worth so much, by a copy of the maps.
    pub(crate) fn is(
        maps: &BTreeMap<DiskSlot, Arc<WorthMap>>,
        key: BlockKey,
        block_parts: u32,
        mask: u16,
        worth: Worth,
    ) -> bool {
        maps.get(&key.slot()).is_some_and(|map| map.has_in_block(key.block(), block_parts, mask, worth))
    }
}

impl FlashCache {
    /// Value the parts of a grid disk like this from now on: NONE parts are not hit any more (but for what is dirty of
    /// them) nor filled, and their blocks are freed in the background. The operator's word is durable before.
    pub fn set_worth(&self, disk: &DiskHandle, map: WorthMap) {
        if self.worths.set(disk.slot(), map) {
            self.members().for_each(|member| member.keep.worth_changed());
        }
    }

    /// Whether a part of these is KEEP data.
    #[must_use]
    pub fn is_keep(&self, disk: &DiskHandle, parts: &Range<u64>) -> bool {
        self.worths.keeping(disk.slot()).is_some_and(|map| map.has(parts.clone(), Worth::Keep))
    }

    /// Whether a part of these is not to be cached.
    #[must_use]
    pub fn is_refused(&self, disk: &DiskHandle, parts: &Range<u64>) -> bool {
        self.worths.refusing(disk.slot()).is_some_and(|map| map.has(parts.clone(), Worth::None))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a map says of each part what the list of ranges says. Method: every part of small maps against a search.
    use super::*;
    use device::Prng;

    #[test]
    fn pieces_and_parts_agree_with_the_list() {
        let worths = [Worth::Default, Worth::Keep, Worth::None];
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let whole = worths[prng.below(3) as usize];
            let (mut at, mut ranges) = (0, Vec::new());
            while prng.chance(3, 4) && at < 50 {
                let start = at + prng.below(5);
                let end = start + prng.between(1, 9);
                ranges.push((start..end, worths[prng.below(3) as usize]));
                at = end;
            }
            let map = WorthMap::new(whole, ranges.clone());
            let expected: Vec<Worth> = (0..70)
                .map(|part| ranges.iter().find(|(r, _)| r.contains(&part)).map_or(whole, |(_, worth)| *worth))
                .collect();
            let found: Vec<Worth> = (0..70).map(|part| map.of(part)).collect();
            assert_eq!(found, expected, "seed {seed}");
            let (low, len) = (prng.below(60), prng.between(1, 9));
            let pieces = map.pieces(low..low + len);
            let cut: Vec<Worth> = pieces.iter().flat_map(|(r, worth)| r.clone().map(move |_| *worth)).collect();
            assert_eq!(cut, expected[low as usize..(low + len) as usize], "seed {seed}");
            assert!(pieces[0].0.start == low && pieces.iter().all(|(r, _)| !r.is_empty()), "seed {seed}: {pieces:?}");
            let mask = prng.between(1, 15) as u16;
            let block = prng.below(15);
            for worth in worths {
                let wanted = (0..4).any(|p| mask >> p & 1 == 1 && expected[(block * 4 + p) as usize] == worth);
                assert_eq!(map.has_in_block(block, 4, mask, worth), wanted, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_grid_disk_without_anything_set_apart_has_no_map() {
        let worths = Worths::new();
        let slot = DiskSlot(3);
        assert!(!worths.set(slot, WorthMap::default()));
        let map = WorthMap::new(Worth::Default, vec![(1..3, Worth::Keep)]);
        assert!(worths.set(slot, map.clone()) && !worths.set(slot, map));
        assert!(worths.keeping(slot).is_some() && worths.refusing(slot).is_none());
        assert!(worths.set(slot, WorthMap::default()) && worths.all().is_empty());
    }
}
