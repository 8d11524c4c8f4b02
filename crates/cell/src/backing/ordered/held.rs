//! Grid disks in flush order that are to be frozen ([`crate::admin::freeze`]): no batch is made of them but that of one cut, which is of the same moment for
//! all of them.

use crate::backing::ordered::batch::Cut;
use crate::backing::ordered::{Door, GridDisk, OrderedParts};
use crate::backing::write_back::StillDirty;
use crate::base::range_lock::LockMode;
use crate::disk::error::AdminError;
use device::WallTime;
use device::sync::{Permits, lock};
use futures_util::future::join_all;
use std::sync::Arc;

/// Why a grid disk cannot be frozen.
pub(crate) const DISK_FAILS: &str = "its disk fails, or flash with writes of it";

impl GridDisk {
    /// Check that the grid disk can be frozen, and destage most of its dirty data while writes go on. Its cache and journal.
    async fn prepare_freeze(self: &Arc<Self>) -> Result<OrderedParts, AdminError> {
        let Some(parts) = self.ordered_parts() else { return Err(self.cannot_freeze("it is in another mode now")) };
        self.open_door(&parts.binding, &parts.journal).await;
        if parts.binding.cache.has_dirty(&parts.binding.disk) {
            self.batch_once(&parts, None).await.map_err(|_| self.cannot_freeze(DISK_FAILS))?;
        }
        Ok(parts)
    }

    /// End the batch under way, and let no other begin. None while its writes go to the disk.
    async fn hold_batches(self: &Arc<Self>, parts: OrderedParts) -> Result<Option<Held>, AdminError> {
        let turn = self.end_batches().await;
        if lock(&self.ordered.shared).door == Door::Disk {
            return Ok(None);
        }
        self.settle_journal(&parts.journal, None).await.map_err(|_| self.cannot_freeze(DISK_FAILS))?;
        Ok(Some(Held { disk: self.clone(), parts, turn }))
    }
}

/// A grid disk of which no batch is made.
pub(crate) struct Held {
    disk: Arc<GridDisk>,
    parts: OrderedParts,
    turn: Permits,
}

impl Held {
    /// Give the disk what was dirty at the cut. No batch is made as long as what is returned lives.
    async fn settle(self, cut: Cut) -> Result<Settled, AdminError> {
        let Held { disk, parts, turn } = self;
        let OrderedParts { binding, journal } = &parts;
        let as_of = cut.as_of();
        let done = if cut.is_empty() {
            journal.make_void(as_of).await.map_err(|_| StillDirty)
        } else {
            disk.batch(binding, journal, cut, None).await
        };
        if done.is_err() || crate::backing::ordered::journal::as_of(journal).is_none() {
            return Err(disk.cannot_freeze(DISK_FAILS));
        }
        Ok(Settled { disk, as_of, turn })
    }
}

/// A grid disk in flush order whose disk is of one moment, and stays so.
pub(crate) struct Settled {
    pub(crate) disk: Arc<GridDisk>,
    pub(crate) as_of: WallTime,
    pub(crate) turn: Permits,
}

/// Hold all of them; or, with none held, one whose writes go to its disk at the moment.
pub(crate) async fn hold_all(disks: &[Arc<GridDisk>]) -> Result<Result<Vec<Held>, Arc<GridDisk>>, AdminError> {
    let mut prepared = Vec::new();
    for disk in disks {
        prepared.push(disk.prepare_freeze().await?);
    }
    let mut held = Vec::new();
    for (disk, parts) in disks.iter().zip(prepared) {
        match disk.hold_batches(parts).await? {
            Some(one) => held.push(one),
            None => return Ok(Err(disk.clone())),
        }
    }
    Ok(Ok(held))
}

/// Cut all of them while no write of any is under way; then each disk gets its cut.
pub(crate) async fn cut_at_one_moment(held: Vec<Held>) -> Result<Vec<Settled>, AdminError> {
    let mut barriers = Vec::new();
    for Held { disk, .. } in &held {
        barriers.push(disk.ordered.barrier.acquire(0..1, LockMode::Exclusive).await);
    }
    let mut cuts = Vec::new();
    for Held { disk, parts, .. } in &held {
        let cut = disk.note_cut(&parts.binding);
        cuts.push(cut.ok_or_else(|| disk.cannot_freeze("flash with writes of it has failed"))?);
    }
    drop(barriers);
    let settled = held.into_iter().zip(cuts).map(|(held, cut)| held.settle(cut));
    join_all(settled).await.into_iter().collect()
}
