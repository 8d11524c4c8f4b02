//! Connecting a grid disk that serves with its cache anew, so that nothing is cached that a power cut could take back.
//!
//! A fill copies what the disk shows, and what the disk shows may be un-flushed. That is safe where the write was marked
//! on the flash device that takes the fill: after a crash such blocks are compared with the disk. Writes that began
//! without the cache, under another cache generation, or while another member served the region have no such mark. So
//! before hits and fills begin, those writes have ended and a flush has covered them.

use crate::base::request::CachingMode;
use crate::base::work::RETRY_AFTER;
use crate::base::work::StopSignal;
use crate::disk::grid_disk::{Bar, GridDisk};
use crate::lifecycle::cell::Cell;
use device::World;
use std::sync::Arc;

impl Cell {
    /// Cache a grid disk as its record says from now on; for records whose generation is new, or that were not cached.
    pub(crate) async fn rebind(&self, disk: &Arc<GridDisk>, record: &celldisk::GridDisk) {
        let bar = disk.bar();
        // Nobody counts on marks of the old generation any more once those who set them have ended.
        disk.set_cache(None, CachingMode::None);
        disk.drain().await;
        self.bind(disk, record);
        if disk.cache().is_some() {
            self.flush_before_filling(disk, bar).await;
        }
    }

    /// Writes that began before have no mark where it counts: lift the bar once they are durable. Returns after the first
    /// attempt; further ones go on by themselves.
    pub(crate) async fn flush_before_filling(&self, disk: &Arc<GridDisk>, bar: Bar) {
        disk.drain().await;
        if disk.flush_what_disk_shows().await.is_ok() {
            drop(bar);
            return;
        }
        let (disk, world, stop) = (disk.clone(), self.world.clone(), self.stop.clone());
        self.world.spawn.spawn(Box::pin(async move { flush_until_done(disk, bar, world, stop).await }));
    }
}

async fn flush_until_done(disk: Arc<GridDisk>, bar: Bar, world: World, stop: Arc<StopSignal>) {
    while !stop.is_stopped() {
        world.clock.sleep(RETRY_AFTER).await;
        if disk.flush_what_disk_shows().await.is_ok() {
            break;
        }
    }
    drop(bar);
}
