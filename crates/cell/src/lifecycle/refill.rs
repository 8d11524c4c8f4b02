//! What was hot on flash that has gone is brought back when other flash comes: a list of names in memory, made anew from time to
//! time, and reads of the disk in heat order at a bounded rate that let requests go first.
//!
//! The list of a member is as old as `hot_every` when the member fails; of one that leaves while it works it is made then. Who
//! keeps the lists of a life gives them to the next one. Never a promise: what is not brought back is read from disk when it is
//! asked for. Never believed: a name that is wrong costs a read.

use crate::base::request::Context;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::{CacheAtWork, Cell};
use celldisk::DeviceId;
use device::sync::lock;
use flashcache::hot::{HotBlock, in_heat_order};
use flashcache::{FlashCache, Residence};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The field's rate of an idle feed is 8 MB/s; four times as much, since this comes to an end, and still a part of what a disk reads.
const REFILL_BYTES_PER_SECOND: u64 = 32 << 20;
/// How long it lets requests go first, for each block, and how often at most, so that it ends.
const YIELD: Duration = Duration::from_millis(1);
const YIELDS_MAX: u32 = 16;
/// Blocks between two looks at which grid disks there are.
const LOOK_EVERY: usize = 256;

/// What is hot, by member of the flash cache, each list in heat order.
pub type HotLists = BTreeMap<DeviceId, Arc<[HotBlock]>>;

impl Cell {
    /// Keep the lists of a cache's members, until it or the cell has ended. Between two looks nothing of the cache is held: its devices
    /// are closed when it is dropped, and can be used again.
    pub(crate) async fn run_hot(self: Arc<Self>, at_work: CacheAtWork) {
        let (weak, devices) = (Arc::downgrade(&at_work.cache), at_work.devices.clone());
        drop(at_work);
        // At once: a member that comes back from a stop knows what was hot before it.
        loop {
            let Some(cache) = weak.upgrade() else { return };
            for (index, id) in devices.iter().enumerate() {
                if !self.is_at_work(&cache) {
                    return;
                }
                let list = cache.hot_blocks(index).await;
                if !list.is_empty() {
                    lock(&self.state).hot.insert(*id, list.into());
                }
            }
            drop(cache);
            if self.stop.sleep(&self.world, self.config.hot_every).await {
                return;
            }
        }
    }

    fn is_at_work(&self, cache: &Arc<FlashCache>) -> bool {
        lock(&self.state).cache.as_ref().is_some_and(|now| Arc::ptr_eq(&now.cache, cache))
    }

    /// What is known to be hot on the members of the flash cache, those that have failed or are missing among them.
    #[must_use]
    pub fn hot_lists(&self) -> HotLists {
        lock(&self.state).hot.clone()
    }

    /// What an earlier life of the cell knew to be hot. Of a member that is not at work it is for what comes in its place; what
    /// one had that holds nothing any more is brought back, now or when the index is whole: how many blocks now. Lists of
    /// others are left out.
    pub fn remember_hot(self: &Arc<Self>, lists: HotLists) -> usize {
        let Some(record) = self.store().catalog().flash_cache.clone() else { return 0 };
        for (id, list) in lists.into_iter().filter(|(id, _)| record.regions.contains_key(id)) {
            // What this life knows is newer.
            lock(&self.state).hot.entry(id).or_insert(list);
        }
        if self.is_opening() { 0 } else { self.refill_empty() }
    }

    /// Bring back what was hot on members that hold nothing: how many blocks.
    pub(crate) fn refill_empty(self: &Arc<Self>) -> usize {
        let Some(at_work) = self.cache_at_work() else { return 0 };
        let lists = self.hot_lists();
        let seats = at_work.devices.iter().zip(at_work.cache.members());
        let empty = seats.filter(|(_, member)| !member.has_failed() && member.entries() == 0);
        let mut lost: Vec<HotBlock> =
            empty.filter_map(|(id, _)| lists.get(id)).flat_map(|list| list.iter().copied()).collect();
        in_heat_order(&mut lost);
        let count = lost.len();
        self.start_refill(&at_work.cache, lost);
        count
    }

    /// What is hot on all members of a cache that is about to have others: a region's blocks may go with it. Those of a member
    /// that has failed, or was not at work in this life, are from before.
    pub(crate) async fn hot_of(&self, old: Option<&CacheAtWork>) -> Vec<HotBlock> {
        let mut all = Vec::new();
        if let Some(old) = old {
            for index in 0..old.devices.len() {
                all.extend(old.cache.hot_blocks(index).await);
            }
        }
        // The cache knows better of those that work.
        let works = |id: &DeviceId| {
            let seats = old.iter().flat_map(|c| c.devices.iter().zip(c.cache.members()));
            seats.into_iter().any(|(device, member)| device == id && !member.has_failed())
        };
        for (_, list) in self.hot_lists().into_iter().filter(|(id, _)| !works(id)) {
            all.extend(list.iter().copied());
        }
        in_heat_order(&mut all);
        all
    }

    /// Bring blocks back, hottest first, in the background.
    pub(crate) fn start_refill(self: &Arc<Self>, cache: &Arc<FlashCache>, list: Vec<HotBlock>) {
        if list.is_empty() {
            return;
        }
        let (cell, cache) = (self.clone(), cache.clone());
        self.world.spawn.spawn(Box::pin(async move { cell.run_refill(cache, list).await }));
    }

    async fn run_refill(self: Arc<Self>, cache: Arc<FlashCache>, list: Vec<HotBlock>) {
        let block_bytes = u64::from(self.block_bytes);
        let pause = Duration::from_nanos(block_bytes * 1_000_000_000 / REFILL_BYTES_PER_SECOND);
        for some in list.chunks(LOOK_EVERY) {
            let disks: BTreeMap<u64, Arc<GridDisk>> = self.grid_disks().into_iter().map(|d| (d.id(), d)).collect();
            for hot in some {
                if self.stop.is_stopped() || !self.is_at_work(&cache) {
                    return;
                }
                let Some(disk) = disks.get(&hot.disk) else { continue };
                if disk.wants_refill(&cache, hot.block) {
                    for _ in 0..YIELDS_MAX {
                        if disk.locks.is_empty() {
                            break;
                        }
                        self.world.clock.sleep(YIELD).await;
                    }
                    let offset = hot.block * block_bytes;
                    let len = block_bytes.min(disk.size_bytes().saturating_sub(offset));
                    if len > 0
                        && let Ok(populates) = disk.prefetch_piece(&Context::default(), offset, len).await
                    {
                        disk.counters.cache_populates.add(u64::from(populates));
                        self.refilled_blocks.fetch_add(1, Ordering::Relaxed);
                    }
                    if self.stop.sleep(&self.world, pause).await {
                        return;
                    }
                }
            }
            device::spawn::yield_now().await;
        }
    }

    /// Blocks brought back to flash that has come in the place of other flash, since the cell was started.
    #[must_use]
    pub fn refilled_blocks(&self) -> u64 {
        self.refilled_blocks.load(Ordering::Relaxed)
    }
}

impl GridDisk {
    /// Whether a block may be cached, in this cache, and is not.
    fn wants_refill(&self, cache: &Arc<FlashCache>, block: u64) -> bool {
        let Some(offset) = block.checked_mul(self.block_bytes) else { return false };
        let Some(binding) = self.serving_cache().filter(|b| Arc::ptr_eq(&b.cache, cache)) else { return false };
        if offset >= self.size_bytes() || self.is_stopping() || self.offline().is_some() {
            return false;
        }
        let end = (offset + self.block_bytes).min(self.size_bytes());
        let parts = offset / crate::base::units::PART_BYTES..end / crate::base::units::PART_BYTES;
        binding.cache.residence(&binding.disk, parts).iter().any(|(_, residence)| *residence == Residence::Disk)
    }
}
