//! The mode of the flash cache for all data of the cell at once, as the vendor's `ALTER CELL flashCacheMode`.
//!
//! One change of the catalog: after a crash all grid disks are in one mode or all in the other. Redo and temporary data keep the mode
//! they were given, and so does what is not cached or write-around.

use crate::disk::error::AdminError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use celldisk::{CachingMode, DeviceId, GridDiskError, GridDiskId, Purpose, Role};
use device::sync::lock;
use flashlog::Skip;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The attribute of the catalog that says so; without it, write-through.
pub const FLASH_CACHE_MODE: &str = "flashCacheMode";
/// Its one value.
const WRITE_BACK: &str = "WriteBack";

impl Cell {
    /// Whether grid disks for data are made in write-back unless something else is asked for.
    #[must_use]
    pub fn is_flash_cache_write_back(&self) -> bool {
        self.store().catalog().attributes.get(FLASH_CACHE_MODE).is_some_and(|mode| mode == WRITE_BACK)
    }

    /// Put all data of the cell's disks from write-through into write-back, or from write-back of either kind into write-through, with
    /// I/O running. Their names. New grid disks for data are of that mode from then on.
    ///
    /// # Errors
    /// Write-back would not be safe; dirty data cannot go to the disks, or a grid disk that may have some is not there; a device
    /// fails. Nothing has changed then.
    pub async fn set_flash_cache_mode(self: &Arc<Self>, write_back: bool) -> Result<Vec<String>, AdminError> {
        let _turn = self.turn().await?;
        let to = if write_back { CachingMode::WriteBack } else { CachingMode::WriteThrough };
        self.check_write_back(to)?;
        let disks = self.of_other_mode(write_back)?;
        let leaving: Vec<_> =
            disks.iter().filter(|disk| self.record(disk).is_some_and(|r| r.is_write_back())).cloned().collect();
        // The catalog says write-back as long as anything may be dirty.
        let drying = if write_back { Vec::new() } else { self.dry(&leaving).await? };
        for disk in disks.iter().filter(|_| write_back) {
            if self.waits_for_redo(disk) || !self.settle_redo(disk, Skip::LogOnFlash).await {
                return Err(AdminError::RedoOnFlash(disk.name()));
            }
        }
        let mut batches_ended = Vec::new();
        for disk in &leaving {
            batches_ended.push(disk.end_batches().await);
        }
        let ids: BTreeSet<GridDiskId> = disks.iter().map(|disk| GridDiskId(disk.id())).collect();
        let generations: BTreeMap<GridDiskId, u32> =
            self.store().catalog().grid_disks.iter().map(|(id, record)| (*id, record.cache_generation)).collect();
        let changed = self
            .store()
            .change(|catalog| {
                for id in &ids {
                    let record = catalog.grid_disks.get_mut(id).ok_or(GridDiskError::NoSuch)?;
                    record.caching_mode = to;
                    record.journal.clear();
                }
                if write_back {
                    catalog.attributes.insert(FLASH_CACHE_MODE.to_owned(), WRITE_BACK.to_owned());
                } else {
                    catalog.attributes.remove(FLASH_CACHE_MODE);
                }
                Ok(())
            })
            .await
            .map_err(GridDiskError::from);
        // Whatever happened, serve as the catalog says.
        for disk in &disks {
            let Some(now) = self.record(disk) else { continue };
            if now.journal.is_empty() {
                lock(&self.state).journals.remove(&now.id);
            }
            if generations.get(&now.id) == Some(&now.cache_generation) {
                self.bind(disk, &now);
            } else {
                self.rebind(disk, &now).await;
            }
            self.tune_redo(disk, &now);
        }
        drop(batches_ended);
        match changed {
            Ok(changed) => {
                self.stood(changed);
                let homes: BTreeSet<DeviceId> =
                    leaving.iter().filter_map(|disk| self.record(disk)).map(|record| record.cell_disk).collect();
                for home in homes {
                    self.settle_dirty_label(home, false).await;
                }
                Ok(disks.iter().map(|disk| disk.name()).collect())
            }
            Err(error) => {
                // The catalog may say by the next start that they are not in write-back: nothing may be dirty by then.
                lock(&self.state).dry_for_good.extend(drying);
                Err(error.into())
            }
        }
    }

    /// The most bytes a flash cache created now on the named flash cell disks (all when none is named) could have.
    #[must_use]
    pub fn flash_cache_bytes_max(&self, cell_disks: &[String]) -> Option<u64> {
        let catalog = self.store().catalog();
        let named: Option<Vec<DeviceId>> =
            cell_disks.iter().map(|name| catalog.member_named(name).map(|(id, _)| id)).collect();
        let area = self.store().flash_cache_area(&named?, None, self.config.cache.segment_bytes);
        area.ok().map(|(devices, size_bytes)| size_bytes * devices.len() as u64)
    }

    /// The grid disks that change. One that may be dirty and is not served has nobody who could destage it.
    fn of_other_mode(&self, write_back: bool) -> Result<Vec<Arc<GridDisk>>, AdminError> {
        let catalog = self.store().catalog();
        let is_on_disk = |id| catalog.members.get(id).is_some_and(|member| member.role == Role::Disk);
        let mut found = Vec::new();
        for record in catalog.grid_disks.values() {
            let changes = match record.caching_mode {
                CachingMode::WriteThrough => write_back,
                CachingMode::WriteBack | CachingMode::WriteBackOrdered => !write_back,
                CachingMode::WriteAround | CachingMode::None => false,
            };
            // An adopted volume is not cached in plain write-back, whatever the cell's mode.
            let adopted = self.store().adopted(record.cell_disk).is_some();
            if !changes || adopted && write_back || record.purpose != Purpose::Data || !is_on_disk(&record.cell_disk) {
                continue;
            }
            match self.grid_disk(&record.name) {
                Some(disk) if disk.offline().is_none() => found.push(disk),
                _ if write_back => {}
                _ => return Err(AdminError::StillDirty(record.name.clone())),
            }
        }
        Ok(found)
    }
}
