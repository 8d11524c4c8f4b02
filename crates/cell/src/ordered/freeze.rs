//! FREEZE and THAW: for a while the disk of an ordered grid disk stays as it is, so that its volume can be copied or
//! snapshot from outside. It is then the grid disk at one moment, and its journal is void.
//!
//! Requests go on: reads as ever, writes on flash, as long as the next batch has room. Never for longer than was said: what is
//! forgotten thaws by itself.

use super::OrderedParts;
use super::open::as_of;
use super::{Door, GridDisk};
use crate::admin::AdminError;
use crate::cell::Cell;
use device::sync::{Permits, lock};
use device::{Instant, WallTime, World};
use std::sync::Arc;
use std::time::Duration;

/// How long a grid disk stays frozen unless somebody says otherwise: a snapshot of a volume takes seconds.
pub const FREEZE_DEFAULT: Duration = Duration::from_secs(60);
/// The longest: dirty data grows meanwhile, and writes wait once the next batch is full.
pub const FREEZE_MAX: Duration = Duration::from_secs(3600);

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

    /// Keep the disk as it is, once what is under way has ended. As of when it is.
    async fn freeze(self: &Arc<Self>, world: &World, time: Duration) -> Result<WallTime, AdminError> {
        let refused = |why| AdminError::CannotFreeze(self.name(), why);
        let Some(OrderedParts { binding, journal }) = self.ordered_parts() else {
            return Err(refused("it is not in write-back-ordered, or not cached"));
        };
        if self.offline().is_some() {
            return Err(refused("it is offline"));
        }
        // Frozen anew, from now on.
        self.thaw(None);
        self.open_door(&binding, &journal).await;
        let turn = self.end_batches().await;
        if lock(&self.ordered.shared).door == Door::Disk {
            return Err(refused("flash does not take its writes at the moment, so they go to its disk"));
        }
        if self.settle_journal(&journal, None).await.is_err() {
            return Err(refused("its disk fails"));
        }
        let Some(as_of) = as_of(&journal) else { return Err(refused("its journal was rotten: try again later")) };
        let number = {
            let mut shared = lock(&self.ordered.shared);
            // What it holds on flash would be held all the time.
            (shared.cut, shared.wanted) = (None, None);
            shared.frozen_count += 1;
            let number = shared.frozen_count;
            shared.frozen = Some(Frozen { number, until: world.clock.now().after(time), _turn: turn });
            number
        };
        let (disk, clock) = (Arc::downgrade(self), world.clock.clone());
        world.spawn.spawn(Box::pin(async move {
            clock.sleep(time).await;
            if let Some(disk) = disk.upgrade() {
                disk.thaw(Some(number));
            }
        }));
        Ok(as_of)
    }
}

impl Cell {
    /// Keep the disks of these grid disks (all that are in write-back-ordered when none is named) as they are for `time`. Each
    /// with the moment of which its disk is.
    ///
    /// # Errors
    /// One cannot be frozen: then none is.
    pub async fn freeze(
        self: &Arc<Self>,
        names: &[String],
        time: Duration,
    ) -> Result<Vec<(String, WallTime)>, AdminError> {
        let _turn = self.turn().await?;
        let disks: Vec<Arc<GridDisk>> = if names.is_empty() {
            self.grid_disks().into_iter().filter(|disk| disk.is_ordered()).collect()
        } else {
            names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?
        };
        let mut frozen = Vec::new();
        for disk in &disks {
            match disk.freeze(&self.world, time.min(FREEZE_MAX)).await {
                Ok(as_of) => frozen.push((disk.name(), as_of)),
                Err(error) => {
                    disks.iter().take(frozen.len()).for_each(|disk| {
                        disk.thaw(None);
                    });
                    return Err(error);
                }
            }
        }
        Ok(frozen)
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
