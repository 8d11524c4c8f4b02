//! Going on without flash that is lost: what a disk in write-back in flush order has is old, and was the grid disk at one
//! moment. An operator may accept that; nobody else does.
//!
//! Never for plain write-back, whose disk may be torn.

use crate::backing::ordered::journal::as_of;
use crate::disk::error::AdminError;
use crate::disk::error::CellError;
use crate::disk::last_copy::LastCopy;
use crate::disk::last_copy::told;
use crate::lifecycle::adopted::forget_fingerprint;
use crate::lifecycle::cell::Cell;
use celldisk::{CachingMode, DeviceId, FlashState, GridDiskId};
use device::WallTime;
use device::sync::lock;
use std::sync::Arc;

impl Cell {
    /// What is given up where a grid disk is dropped or goes on without its flash. `None`: nothing, since it is not offline.
    #[must_use]
    pub fn last_copy(&self, name: &str) -> Option<LastCopy> {
        let disk = self.grid_disk(name).filter(|disk| disk.offline().is_some())?;
        let record = self.record(&disk)?;
        if self.waits_for_redo(&disk) {
            return Some(LastCopy { bytes_max: None, as_of: None });
        }
        let on_failed_flash = disk.dirty_bytes();
        let marked = self.store().cell_disk(record.cell_disk).map_or(record.size_bytes, |home| {
            let label = home.label();
            let shared = |&(at, len): &(u64, u64), from: u64, to: u64| (at + len).min(to).saturating_sub(at.max(from));
            let of_extent = |(from, bytes): (u64, u64)| -> u64 {
                label.dirty.ranges().iter().map(|range| shared(range, from, from + bytes)).sum()
            };
            record.extents.iter().map(|e| of_extent((e.offset(label.au_bytes), e.len_bytes(label.au_bytes)))).sum()
        });
        let bytes_max = if on_failed_flash > 0 { on_failed_flash } else { marked.min(record.size_bytes) };
        Some(LastCopy { bytes_max: Some(bytes_max), as_of: self.stale_as_of(name) })
    }

    /// Of which moment an offline grid disk's own disk is; none when it is not known to be of one.
    #[must_use]
    pub fn stale_as_of(&self, name: &str) -> Option<WallTime> {
        let disk = self.grid_disk(name).filter(|disk| disk.offline().is_some())?;
        let id = GridDiskId(disk.id());
        let state = lock(&self.state);
        state.offline.get(&id)?;
        as_of(state.journals.get(&id)?)
    }

    /// Serve an offline grid disk from its disk alone, as it was at some moment: what was written since is given up for ever.
    /// It is in write-through afterwards.
    ///
    /// # Errors
    /// Its disk is not known to be of one moment, or a device fails.
    pub async fn accept_stale(self: &Arc<Self>, name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        if disk.offline().is_none() {
            return Ok(());
        }
        let Some(record) = self.record(&disk) else { return Err(AdminError::NoGridDisk(name.to_owned())) };
        if self.waits_for_redo(&disk) {
            return self.give_up_waiting(record.cell_disk).await;
        }
        if !record.is_write_back() || record.journal.is_empty() {
            return Err(AdminError::MayBeTorn(disk.name()));
        }
        let id = GridDiskId(disk.id());
        if !lock(&self.state).offline.contains_key(&id) {
            return Err(AdminError::RestartFirst(disk.name()));
        }
        // What somebody else has made of an adopted volume is his to judge, and the operator's.
        let is_of_others = lock(&self.state).used_without_us.contains(&id);
        let of_when = match self.stale_as_of(name).filter(|_| !is_of_others) {
            Some(as_of) => format!("from its disk alone, as of {}: writes since then", told(as_of)),
            None if is_of_others => "from its volume as it is: writes that flash alone had".to_owned(),
            None => return Err(AdminError::MayBeTorn(disk.name())),
        };
        // Whatever flash has of it, and comes back with, is void from here on.
        let (mode, policy) = (CachingMode::WriteThrough, record.caching_policy);
        let _ = self.stood(self.store().free_journal(id, mode, policy, true).await?);
        lock(&self.state).journals.remove(&id);
        disk.ordered.set_journal(None, 0, self.world.clock.now());
        if !is_of_others {
            self.give_up_flash(&record).await;
        }
        // From here on the volume is written to.
        let home = self.store().cell_disk(record.cell_disk).ok_or_else(|| AdminError::NoCellDisk(disk.name()))?;
        forget_fingerprint(self.store(), record.cell_disk).await.map_err(|error| CellError::label(&home, error))?;
        {
            let mut state = lock(&self.state);
            state.offline.remove(&id);
            state.disk_awaited.remove(&id);
            state.used_without_us.remove(&id);
            state.uncompared.remove(&id);
        }
        self.alert(format!("grid disk {} goes on {of_when} are given up", disk.name()));
        if let Some(now) = self.record(&disk) {
            self.rebind(&disk, &now).await;
            if now.purpose == celldisk::Purpose::Redo {
                self.let_redo_pend(now.cell_disk).await;
            }
            self.tune_redo(&disk, &now);
        }
        disk.set_online();
        if is_of_others {
            // The flash is there, and works on: nothing of it counts by the new generation.
            self.settle_dirty_label(record.cell_disk, false).await;
        }
        Ok(())
    }

    /// The label of the disk does not wait for flash on behalf of this grid disk any more.
    async fn give_up_flash(&self, record: &celldisk::GridDisk) {
        let home: DeviceId = record.cell_disk;
        let catalog = self.store().catalog();
        let others = catalog.grid_disks.values().any(|g| g.cell_disk == home && g.id != record.id && g.is_write_back());
        let Some(disk) = self.store().cell_disk(home) else { return };
        let au_bytes = disk.label().au_bytes;
        let extents: Vec<(u64, u64)> =
            record.extents.iter().map(|e| (e.offset(au_bytes), e.len_bytes(au_bytes))).collect();
        let written = disk.update_label(|label| {
            if others {
                // They wait still. Granules they share stay marked.
                extents.iter().for_each(|&(offset, len)| label.dirty.clear(offset, len));
                return;
            }
            label.dirty.clear_all();
            for member in label.flash_members.values_mut().filter(|member| member.state == FlashState::Dirty) {
                member.state = FlashState::Expelled;
            }
        });
        // A label that stays as it was costs caution at the next start, and nothing of this grid disk: its generation is new.
        let _ = written.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(told(WallTime(seconds * 1_000_000_000 + 5)), text);
        }
    }
}
