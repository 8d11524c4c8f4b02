//! What the cache holds, by range of each grid disk: for reports.
//!
//! Walks the index shard by shard, each under its lock for as long as its memory takes to read, so that requests go on between.
//! Never more ranges than asked for.

use crate::base::tenant::Tenant;
use crate::base::units::{DiskSlot, PART_BYTES};
use crate::placement::cache::FlashCache;
use device::sync::lock;
use std::collections::BTreeMap;

/// Bytes of one range that are in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// In all.
    pub cached_bytes: u64,
    /// Of the keep head.
    pub keep_bytes: u64,
    /// Newer than on disk.
    pub dirty_bytes: u64,
}

impl FlashCache {
    /// The content of ranges of so many bytes each, by grid disk: `range_bytes` says how many of which disk, a multiple of a cache
    /// block. By disk, number of the range and whose the blocks are; those with nothing in the cache are left out.
    #[must_use]
    pub fn content(&self, range_bytes: &BTreeMap<u64, u64>) -> BTreeMap<(u64, u64, Tenant), Content> {
        let slots: BTreeMap<DiskSlot, (u64, u64)> = {
            let disks = lock(&self.disks);
            let wanted = disks.all().filter_map(|(id, slot)| Some((slot, (id, *range_bytes.get(&id)?))));
            wanted.filter(|(_, (_, bytes))| *bytes > 0).collect()
        };
        let mut all: BTreeMap<(u64, u64, Tenant), Content> = BTreeMap::new();
        for member in self.members().filter(|member| !member.has_failed()) {
            let block_bytes = u64::from(member.block_bytes());
            for shard in 0..member.index.shards() {
                member.index.for_each_of(shard, |entry| {
                    let Some((id, range_bytes)) = slots.get(&entry.key().slot()) else { return };
                    let range = entry.key().block() * block_bytes / range_bytes;
                    let bytes = u64::from(entry.valid().count_ones()) * PART_BYTES;
                    let content = all.entry((*id, range, entry.tenant())).or_default();
                    content.cached_bytes += bytes;
                    if member.keep.holds(member.segment_of(entry.page())) {
                        content.keep_bytes += bytes;
                    }
                    if entry.dirty() {
                        content.dirty_bytes += bytes;
                    }
                });
            }
        }
        all
    }
}
