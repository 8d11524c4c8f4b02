//! The journal of a grid disk in write-back in flush order: space on its own cell disk, which comes and goes with the mode.
//!
//! Never looks inside: who uses it makes it void before the catalog names it. Mode and journal change together, in one
//! change of the catalog, so that a crash leaves both as they were or both as they should be.

use super::grid_disks::{Reservation, grid_disk, raise_generation, raise_if_uncached};
use super::{CellStore, Changed, GridDiskError};
use crate::catalog::{CachingMode, CachingPolicy, Extent, GridDisk};
use crate::ids::GridDiskId;
use crate::layout::JOURNAL_EXTENTS_MAX;
use crate::slice::Slice;
use std::sync::Arc;

/// Space set aside for a journal, in no catalog yet.
pub struct JournalSpace<'a> {
    id: GridDiskId,
    reservation: Reservation<'a>,
    device: Arc<Slice>,
}

impl JournalSpace<'_> {
    /// The space as a device, to be made void.
    #[must_use]
    pub fn device(&self) -> Arc<Slice> {
        self.device.clone()
    }

    /// Give it back: nothing of it is under way any more.
    pub fn release(self) {
        self.reservation.release();
    }

    fn extents(&self) -> Vec<Extent> {
        self.reservation.extents.clone()
    }
}

impl CellStore {
    /// Set space aside for the journal of a grid disk: `size_bytes`, rounded up to whole allocation units.
    ///
    /// # Errors
    /// No such grid disk, it has a journal, its cell disk is not in service or has no room.
    pub fn reserve_journal(&self, id: GridDiskId, size_bytes: u64) -> Result<JournalSpace<'_>, GridDiskError> {
        let catalog = self.catalog();
        let record = catalog.grid_disks.get(&id).ok_or(GridDiskError::NoSuch)?;
        if !record.journal.is_empty() {
            return Err(GridDiskError::Exists { what: "the journal of the grid disk" });
        }
        self.check_adopted_mode(&GridDisk { caching_mode: CachingMode::WriteBackOrdered, ..record.clone() })?;
        let disk = self.disk_in_service(record.cell_disk)?;
        let au_bytes = disk.au_bytes();
        let count_au = size_bytes.div_ceil(au_bytes).max(1);
        let reservation = self.reserve(record.cell_disk, count_au, None, JOURNAL_EXTENTS_MAX)?;
        let (extents, label) = (&reservation.extents, disk.label());
        let device = Slice::new(disk.device().clone(), &label, au_bytes, extents, count_au * au_bytes);
        Ok(JournalSpace { id, reservation, device: Arc::new(device) })
    }

    /// The space is void and durably so: it is the grid disk's journal from now on, and the grid disk in write-back in flush
    /// order with this policy.
    ///
    /// # Errors
    /// The grid disk is gone or has got a journal meanwhile, or no durable device took the change.
    pub async fn take_journal(
        &self,
        space: JournalSpace<'_>,
        policy: CachingPolicy,
    ) -> Result<Changed<GridDisk>, GridDiskError> {
        let (id, extents) = (space.id, space.extents());
        let changed = self
            .change(|catalog| {
                let now = grid_disk(catalog, id)?;
                if !now.journal.is_empty() || now.mode_switch.is_some() {
                    return Err(GridDiskError::Busy);
                }
                let old = now.clone();
                now.journal = extents;
                (now.caching_mode, now.caching_policy) = (CachingMode::WriteBackOrdered, policy);
                raise_if_uncached(now, &old)?;
                Ok(now.clone())
            })
            .await;
        space.release();
        Ok(changed?)
    }

    /// Leave write-back in flush order for another mode, and give the journal back. It is void: that is the caller's word.
    /// With `forget`, whatever flash holds of the grid disk is void from then on.
    ///
    /// # Errors
    /// No such grid disk, or no durable device took the change.
    pub async fn free_journal(
        &self,
        id: GridDiskId,
        mode: CachingMode,
        policy: CachingPolicy,
        forget: bool,
    ) -> Result<Changed<GridDisk>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let now = grid_disk(catalog, id)?;
                let old = now.clone();
                now.journal.clear();
                (now.caching_mode, now.caching_policy) = (mode, policy);
                if forget {
                    raise_generation(now)?;
                    now.given_up = true;
                }
                raise_if_uncached(now, &old)?;
                Ok(now.clone())
            })
            .await?;
        Ok(changed)
    }
}
