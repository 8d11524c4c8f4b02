//! What is hot on a member: for whoever brings it back after the member has gone.
//!
//! A list of names, never of data: the disk is read again. Bounded, whatever the size of the index; walks the index a shard at a
//! time and lets others go between two.

use crate::member::Member;
use crate::placement::cache::FlashCache;
use device::spawn::yield_now;
use device::sync::lock;

/// The most blocks of a list: with blocks of 16 KiB 4 GiB, which is what a refill of two minutes brings; 6 MiB of memory.
pub const HOT_BLOCKS_MAX: usize = 256 << 10;

/// The most heat that the index tells.
pub const HEAT_MAX: u8 = 3;

/// A block that was asked for since it came into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotBlock {
    /// Grid disk.
    pub disk: u64,
    /// Block of it, in the cache's blocks.
    pub block: u64,
    /// How often, as far as the index counts: 1 to [`HEAT_MAX`].
    pub heat: u8,
}

/// Hottest first, those of the same heat in disk order; at most [`HOT_BLOCKS_MAX`].
pub fn in_heat_order(blocks: &mut Vec<HotBlock>) {
    blocks.sort_unstable_by_key(|hot| (std::cmp::Reverse(hot.heat), hot.disk, hot.block));
    blocks.dedup_by_key(|hot| (hot.disk, hot.block));
    blocks.truncate(HOT_BLOCKS_MAX);
}

impl Member {
    /// The most bytes the list of its hot blocks takes.
    #[must_use]
    pub fn hot_list_bytes_max(&self) -> u64 {
        (self.index.entries_max().min(HOT_BLOCKS_MAX) * size_of::<HotBlock>()) as u64
    }
}

impl FlashCache {
    /// The hottest blocks of member `index`, in heat order; nothing of one that has failed.
    pub async fn hot_blocks(&self, index: usize) -> Vec<HotBlock> {
        let Some(seat) = self.seats.get(index).filter(|seat| !seat.member.has_failed()) else { return Vec::new() };
        let ids = lock(&self.disks).ids();
        // Shards are by hash, so who finds a full list is not of one place.
        let mut by_heat: [Vec<HotBlock>; HEAT_MAX as usize] = std::array::from_fn(|_| Vec::new());
        for shard in 0..seat.member.index.shards() {
            seat.member.index.for_each_of(shard, |e| {
                let heat = e.frequency();
                let list = by_heat.get_mut(usize::from(heat).wrapping_sub(1)).filter(|l| l.len() < HOT_BLOCKS_MAX);
                if let (Some(list), Some(&disk)) = (list, ids.get(&e.key().slot())) {
                    list.push(HotBlock { disk, block: e.key().block(), heat });
                }
            });
            if by_heat.last().is_some_and(|hottest| hottest.len() == HOT_BLOCKS_MAX) {
                break;
            }
            yield_now().await;
        }
        let mut blocks = by_heat.into_iter().flatten().collect();
        in_heat_order(&mut blocks);
        blocks
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the order of a list, and its bound. Method: short lists by hand, a long one.
    use super::*;

    fn hot(disk: u64, block: u64, heat: u8) -> HotBlock {
        HotBlock { disk, block, heat }
    }

    #[test]
    fn hottest_first_then_by_place_each_once() {
        let mut list = vec![hot(2, 1, 1), hot(1, 9, 3), hot(1, 2, 1), hot(1, 3, 3), hot(1, 9, 3)];
        in_heat_order(&mut list);
        assert_eq!(list, [hot(1, 3, 3), hot(1, 9, 3), hot(1, 2, 1), hot(2, 1, 1)]);
        let mut long: Vec<HotBlock> = (0..HOT_BLOCKS_MAX as u64 + 10).map(|block| hot(1, block, 1)).collect();
        long.push(hot(7, 7, 2));
        in_heat_order(&mut long);
        assert_eq!((long.len(), long[0]), (HOT_BLOCKS_MAX, hot(7, 7, 2)));
    }
}
