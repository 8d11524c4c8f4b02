//! FREEZE and THAW: for a while the disks of ordered grid disks stay as they are, so that their volumes can be copied or
//! snapshot from outside. They are then the grid disks at one moment, the same for all that are frozen together, and their journals
//! are void.
//!
//! That moment is a cut while no write of any of them is under way: a client that writes to one of them after another has answered
//! finds both in the copy, or the first, or none. Each disk gets its cut by a batch before the freeze is answered.
//!
//! Requests go on: reads as ever, writes on flash, as long as the next batch has room. Never for longer than was said: what is
//! forgotten thaws by itself.

use super::batch::Cut;
use super::{Door, GridDisk, OrderedParts};
use crate::admin::AdminError;
use crate::cell::Cell;
use crate::range_lock::LockMode;
use crate::write_back::StillDirty;
use device::sync::{Permits, lock};
use device::{Instant, WallTime, World};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a grid disk stays frozen unless somebody says otherwise: a snapshot of a volume takes seconds.
pub const FREEZE_DEFAULT: Duration = Duration::from_secs(60);
/// The longest: dirty data grows meanwhile, and writes wait once the next batch is full.
pub const FREEZE_MAX: Duration = Duration::from_secs(3600);
/// How long a freeze waits for flash to take the writes of a grid disk again: it may have had no room for a moment.
const DOOR_WAIT: Duration = Duration::from_secs(30);
const DOOR_LOOK_EVERY: Duration = Duration::from_millis(50);
/// Why it cannot be frozen.
const DISK_FAILS: &str = "its disk fails, or flash with writes of it";

/// The disk stays as it is.
#[derive(Debug)]
pub(super) struct Frozen {
    number: u64,
    until: Instant,
    _turn: Permits,
}

impl GridDisk {
    /// Until when its disk stays as it is, if it does.
    #[must_use]
    pub fn frozen_until(&self) -> Option<Instant> {
        lock(&self.ordered.shared).frozen.as_ref().map(|frozen| frozen.until)
    }

    /// Batches may be made again; whether it was frozen. With a number, only that freeze ends.
    pub(crate) fn thaw(&self, number: Option<u64>) -> bool {
        let ended = {
            let mut shared = lock(&self.ordered.shared);
            shared.frozen.take_if(|frozen| number.is_none_or(|number| number == frozen.number))
        };
        let was = ended.is_some();
        drop(ended);
        self.ordered.wake.notify_all();
        was
    }

    /// Check that the grid disk can be frozen, and destage most of its dirty data while writes go on. Its cache and journal.
    async fn prepare_freeze(self: &Arc<Self>) -> Result<OrderedParts, AdminError> {
        let Some(parts) = self.ordered_parts() else {
            return Err(self.cannot_freeze("it is not in write-back-ordered, or not cached"));
        };
        if self.offline().is_some() {
            return Err(self.cannot_freeze("it is offline"));
        }
        // Frozen anew, from now on.
        self.thaw(None);
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

    fn cannot_freeze(&self, why: &'static str) -> AdminError {
        AdminError::CannotFreeze(self.name(), why)
    }
}

/// A grid disk of which no batch is made.
struct Held {
    disk: Arc<GridDisk>,
    parts: OrderedParts,
    turn: Permits,
}

impl Held {
    /// Give the disk what was dirty at the cut, and keep it so for `time`.
    async fn freeze_at(self, cut: Cut, world: &World, time: Duration) -> Result<(String, WallTime), AdminError> {
        let Held { disk, parts, turn } = self;
        let OrderedParts { binding, journal } = &parts;
        let as_of = cut.as_of();
        let done = if cut.is_empty() {
            journal.make_void(as_of).await.map_err(|_| StillDirty)
        } else {
            disk.batch(binding, journal, cut, None).await
        };
        if done.is_err() || super::as_of(journal).is_none() {
            return Err(disk.cannot_freeze(DISK_FAILS));
        }
        let number = {
            let mut shared = lock(&disk.ordered.shared);
            // What it holds on flash would be held all the time.
            (shared.cut, shared.wanted) = (None, None);
            shared.frozen_count += 1;
            let number = shared.frozen_count;
            shared.frozen = Some(Frozen { number, until: world.clock.now().after(time), _turn: turn });
            number
        };
        let (weak, clock) = (Arc::downgrade(&disk), world.clock.clone());
        world.spawn.spawn(Box::pin(async move {
            clock.sleep(time).await;
            if let Some(disk) = weak.upgrade() {
                disk.thaw(Some(number));
            }
        }));
        Ok((disk.name(), as_of))
    }
}

/// Hold all of them; or, with none held, one whose writes go to its disk at the moment.
async fn hold_all(disks: &[Arc<GridDisk>]) -> Result<Result<Vec<Held>, Arc<GridDisk>>, AdminError> {
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

impl Cell {
    /// Keep the disks of these grid disks (all that are in write-back-ordered when none is named) as they are for `time`: all of them
    /// at one moment, which lies between the call and its end. Each with that moment.
    ///
    /// # Errors
    /// One cannot be frozen: then none is.
    pub async fn freeze(
        self: &Arc<Self>,
        names: &[String],
        time: Duration,
    ) -> Result<Vec<(String, WallTime)>, AdminError> {
        let _turn = self.turn().await?;
        let mut disks: Vec<Arc<GridDisk>> = if names.is_empty() {
            self.grid_disks().into_iter().filter(|disk| disk.is_ordered()).collect()
        } else {
            names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?
        };
        // One that is named twice would wait for itself.
        let mut seen = BTreeSet::new();
        disks.retain(|disk| seen.insert(disk.name()));
        let until = self.world.clock.now().after(DOOR_WAIT);
        let held = loop {
            match hold_all(&disks).await? {
                Ok(held) => break held,
                Err(shut) if self.world.clock.now() >= until => {
                    return Err(shut.cannot_freeze("flash does not take its writes, so they go to its disk"));
                }
                Err(_) => self.world.clock.sleep(DOOR_LOOK_EVERY).await,
            }
        };
        self.cut_at_one_moment(held, time.min(FREEZE_MAX)).await
    }

    /// Cut all of them while no write of any is under way; then each disk gets its cut.
    async fn cut_at_one_moment(&self, held: Vec<Held>, time: Duration) -> Result<Vec<(String, WallTime)>, AdminError> {
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
        let disks: Vec<Arc<GridDisk>> = held.iter().map(|held| held.disk.clone()).collect();
        let frozen = held.into_iter().zip(cuts).map(|(held, cut)| held.freeze_at(cut, &self.world, time));
        let frozen: Result<Vec<_>, _> = join_all(frozen).await.into_iter().collect();
        if frozen.is_err() {
            disks.iter().for_each(|disk| {
                disk.thaw(None);
            });
        }
        frozen
    }

    /// Let the disks of these grid disks (all when none is named) change again.
    ///
    /// # Errors
    /// No such grid disk.
    pub fn thaw(&self, names: &[String]) -> Result<(), AdminError> {
        let disks: Vec<Arc<GridDisk>> = if names.is_empty() {
            self.grid_disks()
        } else {
            names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?
        };
        disks.iter().for_each(|disk| {
            disk.thaw(None);
        });
        Ok(())
    }
}
