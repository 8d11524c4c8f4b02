//! The operator's FLUSH of the flash cache: dirty data goes to the disks, and no more becomes dirty until FLUSH is cancelled or
//! the cell restarts.
//!
//! Touches dirty data only. It ends: what was dirty when it began may be overwritten on flash meanwhile, but what is left
//! after one round in disk order is held block by block until the disk has it. Never holds the turn of administration, so
//! that it can be cancelled.

use crate::disk::error::AdminError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::cell::FlushStatus;
use device::sync::lock;
use futures_util::future::{Either, join_all, select};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);

impl Cell {
    /// Give the disks all dirty data of these grid disks (all when none is named); `progress` hears of bytes done and
    /// bytes in all.
    ///
    /// # Errors
    /// No such grid disk, a device refuses, or it was cancelled: what is done by then stays done.
    pub async fn flush_flash_cache(
        self: &Arc<Self>,
        names: &[String],
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<(), AdminError> {
        // Nobody knows what is dirty before that.
        self.index_is_whole().await;
        let disks = self.flush_targets(names)?;
        // Its dirty data stays where it is until the freeze ends.
        if let Some(disk) = disks.iter().find(|disk| disk.is_ordered() && disk.frozen_until().is_some()) {
            return Err(AdminError::IsFrozen(disk.name()));
        }
        {
            let mut state = lock(&self.state);
            state.last_flush = Some(FlushStatus::Working);
            for disk in &disks {
                state.flushing.insert(celldisk::GridDiskId(disk.id()), disk.start_drying());
            }
        }
        let all_bytes = self.dirty_bytes(&disks);
        progress(0, all_bytes);
        let work = join_all(disks.iter().map(|disk| disk.dry(&self.world)));
        let mut work = std::pin::pin!(work);
        let results = loop {
            match select(work.as_mut(), self.world.clock.sleep(REPORT_EVERY)).await {
                Either::Left((results, _)) => break results,
                Either::Right(((), _)) => progress(all_bytes.saturating_sub(self.dirty_bytes(&disks)), all_bytes),
            }
        };
        let still = disks.iter().zip(results).find(|(_, dried)| dried.is_err());
        let ended = match still {
            None => {
                progress(all_bytes, all_bytes);
                self.settle_labels_after_flush(&disks).await;
                Ok(())
            }
            Some((disk, _)) if !self.is_flushing(disk) => Err(AdminError::FlushCancelled(disk.name())),
            Some((disk, _)) => Err(AdminError::StillDirty(disk.name())),
        };
        lock(&self.state).last_flush = Some(match &ended {
            // Perhaps while its labels were settled.
            Ok(()) if !disks.iter().all(|disk| self.is_flushing(disk)) => FlushStatus::Cancelled,
            Ok(()) => FlushStatus::Completed,
            Err(AdminError::FlushCancelled(_)) => FlushStatus::Cancelled,
            Err(error) => FlushStatus::Failed(error.to_string()),
        });
        ended
    }

    /// Of the last FLUSH since the cell was started, or of that under way.
    #[must_use]
    pub fn last_flush(&self) -> Option<FlushStatus> {
        lock(&self.state).last_flush.clone()
    }

    /// Disks none of whose grid disks is dirty, or can become so, are whole without their flash from here on.
    async fn settle_labels_after_flush(self: &Arc<Self>, disks: &[Arc<GridDisk>]) {
        let Ok(_turn) = self.turn().await else { return };
        let mut homes = BTreeSet::new();
        for disk in disks.iter().filter(|disk| self.is_flushing(disk)) {
            // Whoever takes dirty data after a cancel finds it closed.
            homes.extend(self.close_door(disk).await.map(|record| record.cell_disk));
        }
        for home in homes {
            self.settle_dirty_label(home, false).await;
        }
    }

    /// End a flush of these grid disks (all when none is named), under way or done: they take dirty data again.
    ///
    /// # Errors
    /// No such grid disk.
    pub async fn cancel_flush(&self, names: &[String]) -> Result<(), AdminError> {
        // Not while labels are settled; a flush under way holds no turn.
        let _turn = self.turn().await?;
        let disks = self.flush_targets(names)?;
        let mut ended = Vec::new();
        let mut state = lock(&self.state);
        for disk in disks {
            ended.extend(state.flushing.remove(&celldisk::GridDiskId(disk.id())));
        }
        // One under way hears of it by itself.
        if !ended.is_empty() && state.last_flush != Some(FlushStatus::Working) {
            state.last_flush = Some(FlushStatus::Cancelled);
        }
        drop(state);
        drop(ended);
        Ok(())
    }

    /// Whether a grid disk takes no dirty data since it was flushed.
    #[must_use]
    pub fn is_flushing(&self, disk: &GridDisk) -> bool {
        lock(&self.state).flushing.contains_key(&celldisk::GridDiskId(disk.id()))
    }

    fn flush_targets(&self, names: &[String]) -> Result<Vec<Arc<GridDisk>>, AdminError> {
        if names.is_empty() {
            return Ok(self.grid_disks());
        }
        let named = |name: &String| self.grid_disk(name).ok_or_else(|| AdminError::NoGridDisk(name.clone()));
        names.iter().map(named).collect()
    }

    /// Bytes of these grid disks that flash alone holds.
    #[must_use]
    pub fn dirty_bytes(&self, disks: &[Arc<GridDisk>]) -> u64 {
        disks.iter().map(|disk| disk.dirty_bytes()).sum()
    }
}
