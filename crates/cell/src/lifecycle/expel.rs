//! Going on without a flash device that has failed (I3, I7): first durable in the label of a disk, then writes to that disk
//! that waited for its marks go on.
//!
//! Each disk by itself: one that stalls or refuses its label keeps nobody waiting but those who write to it. Never takes a
//! flash device back: that is for the next open, which voids its content.

use crate::base::work::RETRY_AFTER;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::{CacheAtWork, Cell};
use crate::lifecycle::open::{expel_from, offline_note};
use celldisk::{CellDisk, DeviceId, GridDiskError, GridDiskId, Role};
use device::sync::lock;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Cell {
    /// Expel members as they fail, until the cache has stopped.
    pub(crate) async fn run_expel(self: Arc<Self>, at_work: CacheAtWork) {
        let mut known = BTreeSet::new();
        while let Some(index) = at_work.cache.next_failure(&known).await {
            known.insert(index);
            let (cell, at_work) = (self.clone(), at_work.clone());
            self.world.spawn.spawn(Box::pin(async move { cell.expel(&at_work, index).await }));
        }
    }

    /// Expel one member from every disk.
    async fn expel(&self, at_work: &CacheAtWork, index: usize) {
        let id = at_work.devices[index];
        let why = at_work.cache.members().nth(index).and_then(|m| m.failure()).unwrap_or_default();
        self.alert(format!("flash {id} expelled: {why}"));
        self.store().take_out(id, &why);
        let disks = self.store().cell_disks().into_iter().filter(|d| d.role() == Role::Disk);
        join_all(disks.map(|disk| self.expel_from_one(at_work, index, disk))).await;
    }

    /// A disk whose label cannot be written fails the writes to its grid disks; it is tried until it takes the label or
    /// the cell has stopped.
    async fn expel_from_one(&self, at_work: &CacheAtWork, index: usize, disk: Arc<CellDisk>) {
        let id = at_work.devices[index];
        let mut told = false;
        let waiting = loop {
            let why = match self.go_on_without(at_work, &disk, id).await {
                Ok(waiting) => break waiting,
                Err(why) => why,
            };
            at_work.cache.expulsion_refused(index, disk.id().0);
            if !told {
                self.alert(format!("cell disk {}: cannot record that flash {id} is expelled: {why}", disk.name()));
                told = true;
            }
            if self.stop.is_stopped() {
                return;
            }
            self.world.clock.sleep(RETRY_AFTER).await;
        };
        for grid_disk in waiting.iter().filter(|g| g.offline().is_none()) {
            let why = offline_note(&grid_disk.name(), &id.to_string());
            self.alert(why.clone());
            grid_disk.set_offline(why);
        }
        // Its regions go to the other members now, which have no marks of what was written until here.
        let bars: Vec<_> = if at_work.devices.len() > 1 {
            self.grid_disks_on(disk.id()).into_iter().map(|g| (g.bar(), g)).collect()
        } else {
            Vec::new()
        };
        // Should the member be back at the next start, it counts with what it has of them now.
        for binding in waiting.iter().filter_map(|g| g.cache()) {
            at_work.cache.await_member(index, &binding.disk);
        }
        at_work.cache.confirm_expelled(index, disk.id().0);
        for (bar, grid_disk) in bars {
            self.flush_before_filling(&grid_disk, bar).await;
        }
    }

    /// Make it durable that a disk goes on without a flash device. With dirty data of some of its grid disks there, the disk goes on
    /// waiting for it, and so do all of its grid disks in write-back, as at an open: what they have on flash that is left is not
    /// void, and may be all there is. Returned are these; what the flash holds of the others is void.
    async fn go_on_without(
        &self,
        at_work: &CacheAtWork,
        disk: &Arc<CellDisk>,
        flash: DeviceId,
    ) -> Result<Vec<Arc<GridDisk>>, String> {
        let here = self.grid_disks_on(disk.id());
        let is_lost = |g: &Arc<GridDisk>| g.offline().is_some() || g.check_not_lost().is_err();
        let offline_at_open = {
            let catalog = self.store().catalog();
            let state = lock(&self.state);
            state.offline.keys().any(|id| catalog.grid_disks.get(id).is_some_and(|r| r.cell_disk == disk.id()))
        };
        if !offline_at_open && !here.iter().any(is_lost) {
            let expelled = expel_from(disk, &[flash]).await;
            return expelled.map(|()| Vec::new()).map_err(|failure| failure.error.to_string());
        }
        let some_left = at_work.cache.members().any(|member| !member.has_failed());
        let waits = |g: &Arc<GridDisk>| is_lost(g) || some_left && g.is_write_back();
        let (waiting, others): (Vec<_>, Vec<_>) = here.into_iter().partition(waits);
        for grid_disk in others {
            match self.store().raise_cache_generation(GridDiskId(grid_disk.id())).await {
                // Dropped meanwhile: nothing of it counts any more.
                Ok(_) | Err(GridDiskError::NoSuch) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(waiting)
    }
}
