//! FREEZE and THAW: for a while the disks of grid disks stay as they are, so that their volumes can be copied or snapshot from outside. They are
//! then the grid disks at one moment, the same for all that are frozen together.
//!
//! In write-back-ordered that moment is a cut while no write is under way: each disk gets its cut by a batch before the freeze is answered, and
//! clients write on, on flash, as long as the next batch has room. In every other mode clients' writes wait for the end of the freeze, and the disk
//! gets what flash alone has of it, redo included. A client that writes to one grid disk after another has answered finds both in the
//! copies, or the first, or none: writes that wait are held on all grid disks before the cuts are made.
//!
//! Reads go on. Never for longer than was said: what is forgotten thaws by itself.

use crate::backing::ordered::held::DISK_FAILS;
use crate::backing::ordered::{Settled, cut_at_one_moment, hold_all};
use crate::disk::error::AdminError;
use crate::disk::freeze::{HeldWrites, Kept};
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use device::WallTime;
use flashlog::Skip;
use futures_util::future::{Either, join, join_all, select};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a grid disk stays frozen unless somebody says otherwise: a snapshot of a volume takes seconds.
pub const FREEZE_DEFAULT: Duration = Duration::from_secs(60);
/// The longest in write-back-ordered: dirty data grows meanwhile, and writes wait once the next batch is full.
pub(crate) const FREEZE_MAX: Duration = Duration::from_secs(3600);
/// The longest in other modes, in which writes wait all the time.
pub(crate) const FREEZE_WRITES_WAIT_MAX: Duration = Duration::from_secs(300);
/// How long a freeze waits for flash to take the writes of a grid disk again: it may have had no room for a moment.
const DOOR_WAIT: Duration = Duration::from_secs(30);
const DOOR_LOOK_EVERY: Duration = Duration::from_millis(50);
/// Why it cannot be frozen.
const THAWED: &str = "somebody has thawed it meanwhile";
const TOO_SLOW: &str = "its disk, or that of another one, takes longer than the freeze was to last";

/// A grid disk that has been frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenDisk {
    /// Its name.
    pub name: String,
    /// The moment its disk is of.
    pub as_of: WallTime,
    /// Clients' writes wait until the freeze ends.
    pub writes_wait: bool,
}

impl Cell {
    /// Keep the disks of these grid disks (all when none is named) as they are for `time`: all of them at one moment, which lies between the call and
    /// its end.
    ///
    /// # Errors
    /// One cannot be frozen: then none is.
    pub async fn freeze(self: &Arc<Self>, names: &[String], time: Duration) -> Result<Vec<FrozenDisk>, AdminError> {
        let _turn = self.turn().await?;
        let mut disks: Vec<Arc<GridDisk>> = if names.is_empty() {
            self.grid_disks().into_iter().filter(|disk| disk.offline().is_none()).collect()
        } else {
            names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?
        };
        // One that is named twice would wait for itself.
        let mut seen = BTreeSet::new();
        disks.retain(|disk| seen.insert(disk.name()));
        if let Some(disk) = disks.iter().find(|disk| disk.offline().is_some()) {
            return Err(disk.cannot_freeze("it is offline"));
        }
        let (ordered, others): (Vec<_>, Vec<_>) = disks.iter().cloned().partition(|disk| disk.is_ordered());
        if let Some(disk) = others.first().filter(|_| time > FREEZE_WRITES_WAIT_MAX) {
            return Err(AdminError::FreezeTooLong(disk.name()));
        }
        // It is somebody else's, whose copy would be of no moment.
        if let Some(disk) = disks.iter().find(|disk| disk.frozen_until().is_some()) {
            return Err(AdminError::IsFrozen(disk.name()));
        }
        let thaws = |disk: &Arc<GridDisk>| disk.freeze.thaws.load(Ordering::SeqCst);
        let thaws_before: Vec<u64> = disks.iter().map(thaws).collect();
        if self.ends.load(Ordering::SeqCst) {
            return Err(AdminError::Stopping);
        }
        // While writes go on, and from here on what is written goes to the disks.
        let drying = self.dry(&others).await?;
        let until = self.world.clock.now().after(DOOR_WAIT);
        let held = loop {
            match hold_all(&ordered).await? {
                Ok(held) => break held,
                Err(shut) if self.world.clock.now() >= until => {
                    return Err(shut.cannot_freeze("flash does not take its writes, so they go to its disk"));
                }
                Err(_) => self.world.clock.sleep(DOOR_LOOK_EVERY).await,
            }
        };
        let time = time.min(FREEZE_MAX);
        let writes_wait_until = self.world.clock.now().after(time);
        let writes: Vec<HeldWrites> = others.iter().map(HeldWrites::of).collect();
        let settling = async {
            join_all(others.iter().map(|disk| disk.drain())).await;
            let as_of = self.world.clock.wall();
            let written = join_all(others.iter().map(|disk| self.settle_frozen(disk)));
            let (settled, written) = join(cut_at_one_moment(held), written).await;
            (as_of, settled, written)
        };
        let settling = std::pin::pin!(settling);
        let (as_of, settled, written) = match select(settling, self.world.clock.sleep(time)).await {
            Either::Left((settled, _)) => settled,
            Either::Right(((), settling)) => {
                // Writes wait no longer than the freeze was to last.
                drop(writes);
                let _ = settling.await;
                return Err(disks[0].cannot_freeze(TOO_SLOW));
            }
        };
        drop(drying);
        let settled = settled?;
        written.into_iter().collect::<Result<Vec<()>, _>>()?;
        if self.ends.load(Ordering::SeqCst) {
            return Err(AdminError::Stopping);
        }
        if let Some((thawed, _)) = disks.iter().zip(thaws_before).find(|(disk, before)| thaws(disk) != *before) {
            return Err(thawed.cannot_freeze(THAWED));
        }
        // All of them end at one time: that which was said after writes began to wait, or where none wait, after the answer.
        let until = if writes.is_empty() { self.world.clock.now().after(time) } else { writes_wait_until };
        let mut frozen = Vec::new();
        for Settled { disk, as_of, turn } in settled {
            disk.keep_frozen(Kept::Batches { _turn: turn }, &self.world, until);
            frozen.push(FrozenDisk { name: disk.name(), as_of, writes_wait: false });
        }
        for (disk, held) in others.iter().zip(writes) {
            disk.keep_frozen(Kept::Writes { _held: held }, &self.world, until);
            frozen.push(FrozenDisk { name: disk.name(), as_of, writes_wait: true });
        }
        frozen.sort_by_key(|frozen| disks.iter().position(|disk| disk.name() == frozen.name));
        Ok(frozen)
    }

    /// Give the disk everything that was acknowledged before its writes were held, durably.
    async fn settle_frozen(&self, disk: &Arc<GridDisk>) -> Result<(), AdminError> {
        let settled = self.settle_redo(disk, Skip::DisabledGridDisk).await;
        if let Some(record) = self.record(disk) {
            self.tune_redo(disk, &record);
        }
        if !settled || disk.flush_all().await.is_err() {
            return Err(disk.cannot_freeze(DISK_FAILS));
        }
        Ok(())
    }

    /// Let the disks of these grid disks (all when none is named) change again.
    ///
    /// # Errors
    /// No such grid disk; or one that is named was not frozen, the others are thawed.
    pub fn thaw(&self, names: &[String]) -> Result<(), AdminError> {
        if names.is_empty() {
            self.grid_disks().iter().for_each(|disk| {
                disk.thaw(None);
            });
            return Ok(());
        }
        let mut disks: Vec<Arc<GridDisk>> = names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?;
        let mut seen = BTreeSet::new();
        disks.retain(|disk| seen.insert(disk.name()));
        let was: Vec<bool> = disks.iter().map(|disk| disk.thaw(None)).collect();
        match disks.iter().zip(was).find(|(_, was)| !was) {
            Some((disk, _)) => Err(AdminError::NotFrozen(disk.name())),
            None => Ok(()),
        }
    }

    /// The cell is about to stop: no freeze holds that up, and none begins.
    pub fn end_freezes(&self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = self.thaw(&[]);
    }
}
