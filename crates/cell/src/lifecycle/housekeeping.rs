//! Background work of a cell on its cached grid disks: settling regions and comparing suspect blocks with the disk.
//!
//! Yields to nobody's lock: it takes ranges like everybody else, in small pieces, and never holds one while it waits for a
//! flush.

use crate::backing::ordered::run_ordered;
use crate::backing::write_back::run_destage;
use crate::base::units::PART_BYTES;
use crate::base::units::PIECE_BYTES_MAX;
use crate::base::work::RETRY_AFTER;
use crate::base::work::StopSignal;
use crate::disk::grid_disk::{Binding, GridDisk};
use device::World;
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::time::Duration;

/// Regions settled in one round of one grid disk: bounds the records of a round.
const SETTLE_REGIONS_MAX: usize = 4096;
/// Settle the regions of a grid disk that have been quiet for a while, until it is dropped.
pub(crate) async fn run_settle(disk: Arc<GridDisk>, world: World, every: Duration, stop: Arc<StopSignal>) {
    let mut before: Option<Vec<u64>> = None;
    while !stop.sleep(&world, every).await && !disk.is_gone() {
        let Some(binding) = disk.cache() else { continue };
        let now = binding.cache.epochs();
        if let Some(before) = before {
            // On the heap: it is needed now and then, by one grid disk in a thousand.
            Box::pin(disk.settle_before(&binding, &before)).await;
        }
        before = Some(now);
    }
}

/// Compare suspect blocks of a grid disk with the disk, in disk order, whenever there are any.
pub(crate) async fn run_revalidate(disk: Arc<GridDisk>, world: World, stop: Arc<StopSignal>) {
    loop {
        let ticket = disk.alarm.ticket();
        if stop.is_stopped() || disk.is_gone() {
            return;
        }
        if let Some(binding) = disk.cache()
            && !Box::pin(disk.revalidate_all(&binding, &stop)).await
        {
            if stop.sleep(&world, RETRY_AFTER).await {
                return;
            }
            continue;
        }
        let alarm = std::pin::pin!(disk.alarm.wait(ticket));
        if stop.is_stopped() {
            return;
        }
        let (stopped, dropped) = (std::pin::pin!(stop.ended()), std::pin::pin!(disk.gone.until(true)));
        if let Either::Right(_) = select(alarm, select(stopped, dropped)).await {
            return;
        }
    }
}

impl GridDisk {
    /// Start the background work of a cached grid disk: regions quiet for `every` are settled, dirty data of a grid disk that nobody has
    /// written to for so long is destaged.
    pub fn start_housekeeping(self: &Arc<Self>, world: &World, every: Duration, stop: &Arc<StopSignal>) {
        let destage = run_destage(self.clone(), world.clone(), every, stop.clone());
        world.spawn.spawn(Box::pin(destage));
        world.spawn.spawn(Box::pin(run_ordered(self.clone(), world.clone(), every, stop.clone())));
        world.spawn.spawn(Box::pin(run_settle(self.clone(), world.clone(), every, stop.clone())));
        world.spawn.spawn(Box::pin(run_revalidate(self.clone(), world.clone(), stop.clone())));
    }

    /// Settle what nobody has written to since `before`; how many regions.
    pub(crate) async fn settle_before(&self, binding: &Binding, before: &[u64]) -> usize {
        let mut settled = 0;
        loop {
            let list = binding.cache.settle_list(&binding.disk, before, SETTLE_REGIONS_MAX);
            if list.is_empty() {
                return settled;
            }
            // The flush covers the writes of these regions: they had completed when the list was made.
            if self.flush_what_disk_shows().await.is_err() {
                return settled;
            }
            match binding.cache.settle(list).await {
                0 => return settled,
                n => settled += n,
            }
        }
    }

    /// Compare every suspect block; false when some could not be read.
    pub(crate) async fn revalidate_all(&self, binding: &Binding, stop: &StopSignal) -> bool {
        let suspects = binding.cache.suspects(&binding.disk);
        if suspects.is_empty() {
            return true;
        }
        // What is compared must not change its mind at a later power cut.
        if self.flush_since(self.losses.epoch()).await.is_none() {
            return false;
        }
        let mut all_read = true;
        for at in suspects {
            let mut region_read = true;
            for parts in binding.cache.suspect_parts(at) {
                let mut start = parts.start;
                while start < parts.end {
                    if stop.is_stopped() {
                        return true;
                    }
                    let end = parts.end.min(start + PIECE_BYTES_MAX / PART_BYTES);
                    region_read &= self.revalidate(binding, start..end).await.is_ok();
                    start = end;
                }
            }
            if region_read {
                binding.cache.trusted(at);
            }
            all_read &= region_read;
            device::spawn::yield_now().await;
        }
        all_read
    }
}
