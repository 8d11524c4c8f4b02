//! Going on without a flash device that has failed (I3, I7): first durable in the label of a disk, then writes to that disk
//! that waited for its marks go on.
//!
//! Each disk by itself: one that stalls or refuses its label keeps nobody waiting but those who write to it. Never takes a
//! flash device back: that is for the next open, which voids its content.

use crate::cell::{CacheAtWork, Cell};
use crate::grid_disk::GridDisk;
use crate::open::expel_from;
use celldisk::{CellDisk, Role};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Pause between attempts to write the label of a disk that refuses it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
        while let Err(failure) = expel_from(&disk, &[id]).await {
            at_work.cache.expulsion_refused(index, disk.id().0);
            if !told {
                self.alert(format!(
                    "cell disk {}: cannot record that flash {id} is expelled: {}",
                    failure.name, failure.error
                ));
                told = true;
            }
            if self.stop.is_stopped() {
                return;
            }
            self.world.clock.sleep(RETRY_AFTER).await;
        }
        // Its regions go to the other members now, which have no marks of what was written until here.
        let bars: Vec<_> = if at_work.devices.len() > 1 {
            let here = |g: &Arc<GridDisk>| self.record(g).is_some_and(|r| r.cell_disk == disk.id());
            self.grid_disks().into_iter().filter(here).map(|g| (g.bar(), g)).collect()
        } else {
            Vec::new()
        };
        at_work.cache.confirm_expelled(index, disk.id().0);
        for (bar, grid_disk) in bars {
            self.flush_before_filling(&grid_disk, bar).await;
        }
    }
}
