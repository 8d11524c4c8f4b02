//! Taking grid disks out of service and putting them back: ALTER GRIDDISK ... INACTIVE and ACTIVE.
//!
//! Out of service means that no client may use it; the cell goes on with what is its own: what is dirty of it goes to its disk, a restart
//! changes nothing. Never loses anything, FORCE or not: what its disk does not take stays on flash, as ever.

use crate::disk::error::AdminError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use celldisk::GridDiskId;
use flashlog::Skip;
use std::sync::Arc;
use std::time::Duration;

/// How long sessions that were told to end are waited for; whoever does not take their replies is cut off by then.
const SESSIONS_END_WITHIN: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a grid disk is taken out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deactivation {
    /// Though clients use it, or its disk does not take what is dirty.
    pub force: bool,
    /// Without waiting until its disk has everything: that follows.
    pub no_wait: bool,
}

/// Why a grid disk cannot go out of service without anybody missing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hindrance {
    /// Clients use it.
    #[error("connections that use it: {0}")]
    Connections(usize),
    /// Its disk is kept as it is.
    #[error("its disk is frozen")]
    Frozen,
    /// Neither disk nor flash has all of the grid disk.
    #[error("it is offline: what its disk does not have is on flash that is lost or missing")]
    Offline,
    /// Failed flash holds dirty data that cannot go to the disk.
    #[error("flash that holds dirty data of it has failed")]
    FlashLost,
}

impl Hindrance {
    fn refuse(self, disk: &GridDisk) -> AdminError {
        match self {
            Hindrance::Connections(count) => AdminError::InUse(disk.name(), count),
            Hindrance::Frozen => AdminError::IsFrozen(disk.name()),
            Hindrance::Offline | Hindrance::FlashLost => AdminError::StillDirty(disk.name()),
        }
    }
}

impl GridDisk {
    /// The hindrance that refuses INACTIVE without FORCE, if there is one. Dirty data that flash still has is none: INACTIVE destages it first.
    #[must_use]
    pub fn hindrance(&self) -> Option<Hindrance> {
        let lost = || self.cache().is_some_and(|binding| binding.cache.has_lost(&binding.disk));
        match self.sessions() {
            0 if self.offline().is_some() => Some(Hindrance::Offline),
            0 if self.frozen_until().is_some() => Some(Hindrance::Frozen),
            0 if lost() => Some(Hindrance::FlashLost),
            0 => None,
            count => Some(Hindrance::Connections(count)),
        }
    }
}

impl Cell {
    /// Take a grid disk out of service, durably: new clients are refused, and with FORCE the sessions there are end once what they have asked
    /// for is done. Then its disk gets what is dirty of it. `end_sessions` has the front ends end sessions of grid disks that are inactive.
    ///
    /// # Errors
    /// No such grid disk; without FORCE a [`Hindrance`], or its disk does not take everything; no device takes the change. It is in service as
    /// before then.
    pub async fn deactivate(
        self: &Arc<Self>,
        name: &str,
        how: Deactivation,
        end_sessions: &(dyn Fn() + Send + Sync),
    ) -> Result<(), AdminError> {
        // The index tells what is dirty only once it is whole.
        self.index_is_whole().await;
        let disk = self.named(name)?;
        let was_inactive = disk.is_inactive();
        // Looked at before as well: sessions of an inactive grid disk are ended by whoever sees it so.
        if !how.force
            && let Some(hindrance) = disk.hindrance()
        {
            return Err(hindrance.refuse(&disk));
        }
        // From here on new clients are refused; take_out looks again for those that came before.
        disk.set_inactive(true);
        let done = self.take_out(&disk, how, end_sessions).await;
        if done.is_err() && !was_inactive {
            disk.set_inactive(false);
        }
        done
    }

    async fn take_out(
        self: &Arc<Self>,
        disk: &Arc<GridDisk>,
        how: Deactivation,
        end_sessions: &(dyn Fn() + Send + Sync),
    ) -> Result<(), AdminError> {
        if !how.force
            && let Some(hindrance) = disk.hindrance()
        {
            return Err(hindrance.refuse(disk));
        }
        end_sessions();
        self.sessions_end(disk).await;
        if !how.force
            && let count @ 1.. = disk.sessions()
        {
            return Err(AdminError::InUse(disk.name(), count));
        }
        // Without the turn of administration: it may take long, and ACTIVE ends it.
        let drying = (!how.no_wait && disk.frozen_until().is_none()).then(|| disk.start_drying());
        let mut settled = false;
        if drying.is_some() {
            let epoch = disk.losses.epoch();
            settled = disk.dry(&self.world).await.is_ok() && disk.flush_since(epoch).await.is_some();
            if !settled && !how.force {
                return Err(AdminError::StillDirty(disk.name()));
            }
        }
        let _turn = self.turn().await?;
        if !disk.is_inactive() {
            return Err(AdminError::MadeActive(disk.name()));
        }
        if settled && !self.settle_redo(disk, Skip::DisabledGridDisk).await && !how.force {
            return Err(AdminError::RedoOnFlash(disk.name()));
        }
        let changed = self.store().alter_grid_disk(GridDiskId(disk.id()), |g| g.inactive = true).await;
        // No client writes redo to the grid disk now; the flash log is put back for those that do once it is active.
        if let Some(record) = self.record(disk) {
            self.tune_redo(disk, &record);
        }
        let _ = self.stood(changed?);
        // Its disk is whole without the flash from here on, if its other grid disks let it be.
        if settled && let Some(record) = self.close_door(disk).await {
            self.settle_dirty_label(record.cell_disk, false).await;
        }
        Ok(())
    }

    /// Wait for the sessions of a grid disk to end, for so long.
    async fn sessions_end(&self, disk: &GridDisk) {
        let until = self.world.clock.now().after(SESSIONS_END_WITHIN);
        while disk.sessions() > 0 && self.world.clock.now() < until {
            self.world.clock.sleep(LOOK_EVERY).await;
        }
    }

    /// Put a grid disk back into service, durably; nothing where it is.
    ///
    /// # Errors
    /// No such grid disk, or no device takes the change; it is offline and not inactive, so that only [`Cell::accept_stale`] would change anything.
    pub async fn activate(self: &Arc<Self>, name: &str) -> Result<(), AdminError> {
        let disk = self.named(name)?;
        if !disk.is_inactive()
            && let Some(what) = self.last_copy(name)
        {
            let statement = format!("ALTER GRIDDISK {} ACTIVE", disk.name());
            return Err(AdminError::LastCopy { name: disk.name(), what, statement });
        }
        // One that is being taken out of service hears of it.
        let _turn = self.turn().await?;
        if self.record(&disk).is_some_and(|record| record.inactive) {
            let _ = self.stood(self.store().alter_grid_disk(GridDiskId(disk.id()), |g| g.inactive = false).await?);
        }
        disk.set_inactive(false);
        Ok(())
    }
}
