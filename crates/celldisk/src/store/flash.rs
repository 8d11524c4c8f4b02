//! Flash cache and flash log as objects of the catalog: which space on which flash devices.
//!
//! Never looks inside. A new cache raises the era of each of its devices before the catalog names it, so whatever segments
//! an older cache left there are void; a log is told from an older one by its identity.

use super::grid_disks::Reservation;
use super::{CellStore, Changed, GridDiskError, SliceKey};
use crate::catalog::{Extent, FlashCache, FlashLog};
use crate::ids::{DeviceId, Stamp};
use crate::label::Role;
use crate::layout::EXTENTS_MAX;
use crate::slice::Slice;
use device::WallTime;
use device::sync::lock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A flash cache to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashCacheSpec {
    /// Random identity.
    pub id: Stamp,
    /// Flash devices; empty for all in service.
    pub devices: Vec<DeviceId>,
    /// Bytes on each; `None`: what is free on the one with the least.
    pub size_per_device_bytes: Option<u64>,
    /// Segment.
    pub segment_bytes: u32,
    /// Cache block.
    pub block_bytes: u32,
    /// Now.
    pub created: WallTime,
}

/// A flash log to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashLogSpec {
    /// Random identity.
    pub id: Stamp,
    /// Flash devices; empty for all in service.
    pub devices: Vec<DeviceId>,
    /// Bytes on each.
    pub size_per_device_bytes: u64,
    /// A redo write that takes longer is an outlier: milliseconds.
    pub outlier_ms: u32,
    /// Now.
    pub created: WallTime,
}

/// What two creations under way have set aside, by device.
type Reserved<'a> = Vec<(DeviceId, Reservation<'a>)>;

/// Space set aside for new members of the flash cache, in no catalog yet.
pub struct FlashCacheSpace<'a> {
    reserved: Reserved<'a>,
    cache: Stamp,
    size_per_device_bytes: u64,
    devices: BTreeMap<DeviceId, Arc<Slice>>,
}

impl FlashCacheSpace<'_> {
    /// The space on one of the flash devices, as a device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<Arc<Slice>> {
        self.devices.get(&id).cloned()
    }

    /// Give it back: nothing of it is under way any more.
    pub fn release(self) {
        self.reserved.into_iter().for_each(|(_, one)| one.release());
    }
}

impl CellStore {
    /// The flash devices a command means that names these: all that are in service, when it names none. In order, each once.
    ///
    /// # Errors
    /// None is named, and no flash device is in service.
    pub fn flash_devices(&self, wanted: &[DeviceId]) -> Result<Vec<DeviceId>, GridDiskError> {
        let mut devices: Vec<DeviceId> = match wanted {
            [] => self.in_service().iter().filter(|d| d.role() == Role::Flash).map(|d| d.id()).collect(),
            some => some.to_vec(),
        };
        devices.sort_unstable();
        devices.dedup();
        if devices.is_empty() {
            return Err(GridDiskError::NoSuch);
        }
        Ok(devices)
    }

    /// The flash devices a flash cache on these (all that are in service, when none is named) would be on, and how many bytes of
    /// each it would have: `wanted`, or all that is free.
    ///
    /// # Errors
    /// No flash device is in service, or not even one unit is free.
    pub fn flash_cache_area(
        &self,
        devices: &[DeviceId],
        wanted: Option<u64>,
        segment_bytes: u32,
    ) -> Result<(Vec<DeviceId>, u64), GridDiskError> {
        let devices = self.flash_devices(devices)?;
        let size_bytes = self.region_bytes(&devices, wanted, segment_bytes.into())?;
        Ok((devices, size_bytes))
    }

    /// Whole allocation units of the coarsest device, and whole segments.
    fn region_bytes(
        &self,
        devices: &[DeviceId],
        wanted: Option<u64>,
        segment_bytes: u64,
    ) -> Result<u64, GridDiskError> {
        let catalog = self.catalog();
        let members = devices.iter().filter_map(|id| catalog.members.get(id));
        let au_bytes = members.map(|member| member.au_bytes).max().ok_or(GridDiskError::NoSuch)?;
        let free_bytes = devices.iter().map(|id| catalog.free_bytes(*id)).min().unwrap_or_default();
        let size_bytes = wanted.unwrap_or(free_bytes) / au_bytes * au_bytes;
        let size_bytes = size_bytes / segment_bytes.max(1) * segment_bytes.max(1);
        if size_bytes == 0 {
            return Err(GridDiskError::TooSmall { size_bytes: wanted.unwrap_or(free_bytes), au_bytes });
        }
        Ok(size_bytes)
    }

    fn reserve_on_each(&self, devices: &[DeviceId], size_bytes: u64) -> Result<Reserved<'_>, GridDiskError> {
        let mut reserved = Reserved::new();
        for id in devices {
            let one = self.disk_in_service(*id).and_then(|disk| {
                if disk.role() != Role::Flash {
                    return Err(GridDiskError::Fixed { field: "the role of a cell disk that is no flash" });
                }
                self.reserve(*id, size_bytes.div_ceil(disk.au_bytes()), None, EXTENTS_MAX)
            });
            match one {
                Ok(one) => reserved.push((*id, one)),
                Err(error) => {
                    reserved.into_iter().for_each(|(_, one)| one.release());
                    return Err(error);
                }
            }
        }
        Ok(reserved)
    }

    /// Raise the cache era of flash devices: segments written before are void.
    ///
    /// # Errors
    /// A label cannot be written.
    pub async fn raise_cache_era(&self, devices: impl IntoIterator<Item = DeviceId>) -> Result<(), GridDiskError> {
        for id in devices {
            let Some(disk) = self.cell_disk(id) else { continue };
            disk.update_label(|label| label.cache_era += 1)
                .await
                .map_err(|error| GridDiskError::Label { name: disk.name(), error })?;
        }
        Ok(())
    }

    /// Create the flash cache.
    ///
    /// # Errors
    /// There is one; no flash device, none in service or no space; a device fails.
    pub async fn create_flash_cache(&self, spec: FlashCacheSpec) -> Result<Changed<FlashCache>, GridDiskError> {
        if self.catalog().flash_cache.is_some() {
            return Err(GridDiskError::Exists { what: "the flash cache" });
        }
        let (devices, size_bytes) =
            self.flash_cache_area(&spec.devices, spec.size_per_device_bytes, spec.segment_bytes)?;
        let reserved = self.reserve_on_each(&devices, size_bytes)?;
        let cache = FlashCache {
            id: spec.id,
            size_per_device_bytes: size_bytes,
            regions: regions(&reserved),
            segment_bytes: spec.segment_bytes,
            block_bytes: spec.block_bytes,
            created: spec.created,
        };
        let made = match self.raise_cache_era(devices).await {
            Err(error) => Err(error),
            Ok(()) => {
                let change = self.change(|catalog| match &catalog.flash_cache {
                    Some(_) => Err(GridDiskError::Exists { what: "the flash cache" }),
                    None => Ok(catalog.flash_cache.insert(cache).clone()),
                });
                change.await.map_err(GridDiskError::from)
            }
        };
        reserved.into_iter().for_each(|(_, one)| one.release());
        made
    }

    /// How many bytes the flash cache may have on each of these devices when they replace all of its own, and `keep_bytes` stay free
    /// on each of them: none unless that is more than it has.
    #[must_use]
    pub fn larger_flash_cache(&self, devices: &[DeviceId], keep_bytes: u64) -> Option<u64> {
        let catalog = self.catalog();
        let cache = catalog.flash_cache.as_ref()?;
        let kept = |id: &DeviceId| {
            let au_bytes = catalog.members.get(id).map_or(1, |member| member.au_bytes.max(1));
            catalog.free_bytes(*id).saturating_sub(keep_bytes.next_multiple_of(au_bytes))
        };
        let free_bytes = devices.iter().map(kept).min()?;
        let size_bytes = self.region_bytes(devices, Some(free_bytes), cache.segment_bytes.into()).ok()?;
        (size_bytes > cache.size_per_device_bytes).then_some(size_bytes)
    }

    /// Set space aside on flash devices that are to join the flash cache: so much on each, and unless stated as much as it has on
    /// each of its own.
    ///
    /// # Errors
    /// There is no cache, a device is in it, is no flash, is not in service or has no room.
    pub fn reserve_flash_cache(
        &self,
        devices: &[DeviceId],
        size_per_device_bytes: Option<u64>,
    ) -> Result<FlashCacheSpace<'_>, GridDiskError> {
        let catalog = self.catalog();
        let cache = catalog.flash_cache.as_ref().ok_or(GridDiskError::NoSuch)?;
        if devices.iter().any(|id| cache.regions.contains_key(id)) {
            return Err(GridDiskError::Exists { what: "the area of the flash cache on that cell disk" });
        }
        let size_bytes = size_per_device_bytes.unwrap_or(cache.size_per_device_bytes);
        let reserved = self.reserve_on_each(devices, size_bytes)?;
        let slice = |(id, one): &(DeviceId, Reservation<'_>)| {
            let disk = self.cell_disk(*id)?;
            let label = disk.label();
            let slice = Slice::new(disk.device().clone(), &label, disk.au_bytes(), &one.extents, size_bytes);
            Some((*id, Arc::new(slice)))
        };
        let devices = reserved.iter().filter_map(slice).collect();
        Ok(FlashCacheSpace { reserved, cache: cache.id, size_per_device_bytes: size_bytes, devices })
    }

    /// Change the members of the flash cache, in one change of the catalog: those of `space` join, `leaving` leave. What was
    /// written by an older cache where new ones lie is void, and those that leave hold nothing dirty: that is the caller's word.
    ///
    /// # Errors
    /// There is no cache, none would be left of it, or no durable device took the change.
    pub async fn change_flash_cache(
        &self,
        space: FlashCacheSpace<'_>,
        leaving: &[DeviceId],
    ) -> Result<Changed<FlashCache>, GridDiskError> {
        let (joining, id, slices) = (regions(&space.reserved), space.cache, space.devices.clone());
        let size_bytes = space.size_per_device_bytes;
        let changed = self
            .change(|catalog| {
                let cache = catalog.flash_cache.as_mut().filter(|cache| cache.id == id).ok_or(GridDiskError::NoSuch)?;
                cache.regions.retain(|id, _| !leaving.contains(id));
                cache.regions.extend(joining);
                // Another size on each only where all are others: the catalog is refused else.
                cache.size_per_device_bytes = size_bytes;
                if cache.regions.is_empty() {
                    return Err(GridDiskError::NoSuch);
                }
                Ok(cache.clone())
            })
            .await;
        if changed.is_ok() {
            // They follow the catalog from here on.
            let slices =
                slices.iter().map(|(device, slice)| (SliceKey::FlashCache(id, *device), Arc::downgrade(slice)));
            lock(&self.state).slices.extend(slices);
        }
        space.release();
        Ok(changed?)
    }

    /// Disks forget flash devices that have left the flash cache, as far as nothing else of the cell is on them: their places in
    /// the labels are for others. A label that cannot be written keeps them, which costs nothing but the place.
    pub async fn forget_flash(&self, left: &[DeviceId]) {
        let catalog = self.catalog();
        let in_log = |id: &DeviceId| catalog.flash_log.as_ref().is_some_and(|log| log.regions.contains_key(id));
        for disk in self.in_service().into_iter().filter(|disk| disk.role() == Role::Disk) {
            let _ = disk
                .update_label(|label| {
                    label
                        .flash_members
                        .retain(|id, member| !left.contains(id) || member.redo_pending.is_some() || in_log(id));
                })
                .await;
        }
    }

    /// A disk is no device of the cell any more: flash devices forget that they were paired with it. What cannot be told now changes
    /// nothing: nobody shows that stamp again.
    pub async fn forget_disk(&self, left: DeviceId) {
        let paired =
            |flash: &Arc<crate::CellDisk>| flash.role() == Role::Flash && flash.label().disk_stamps.contains_key(&left);
        for flash in self.in_service().into_iter().filter(paired) {
            let _ = flash
                .update_label(|label| {
                    label.disk_stamps.remove(&left);
                })
                .await;
        }
    }

    /// Drop the flash cache. It must hold nothing dirty: that is the caller's word. Its segments are void for ever.
    ///
    /// # Errors
    /// There is none, or no durable device took the change. When only raising the era failed, the cache is dropped all the
    /// same; creating one raises it again.
    pub async fn drop_flash_cache(&self) -> Result<Changed<FlashCache>, GridDiskError> {
        let changed = self.change(|catalog| catalog.flash_cache.take().ok_or(GridDiskError::NoSuch)).await?;
        self.raise_cache_era(changed.value.regions.keys().copied()).await?;
        Ok(changed)
    }

    /// Create the flash log.
    ///
    /// # Errors
    /// There is one; no flash device, none in service or no space; a device fails.
    pub async fn create_flash_log(&self, spec: FlashLogSpec) -> Result<Changed<FlashLog>, GridDiskError> {
        if self.catalog().flash_log.is_some() {
            return Err(GridDiskError::Exists { what: "the flash log" });
        }
        let devices = self.flash_devices(&spec.devices)?;
        let size_bytes = self.region_bytes(&devices, Some(spec.size_per_device_bytes), 1)?;
        let reserved = self.reserve_on_each(&devices, size_bytes)?;
        let regions = regions(&reserved);
        let log = FlashLog {
            id: spec.id,
            size_per_device_bytes: size_bytes,
            regions,
            outlier_ms: spec.outlier_ms,
            created: spec.created,
        };
        let made = self
            .change(|catalog| match &catalog.flash_log {
                Some(_) => Err(GridDiskError::Exists { what: "the flash log" }),
                None => Ok(catalog.flash_log.insert(log).clone()),
            })
            .await;
        reserved.into_iter().for_each(|(_, one)| one.release());
        Ok(made?)
    }

    /// Say from when on a redo write is an outlier.
    ///
    /// # Errors
    /// There is no flash log, 0 is given, or no durable device took the change.
    pub async fn set_outlier_ms(&self, outlier_ms: u32) -> Result<Changed<()>, GridDiskError> {
        let changed = self.change(|catalog| {
            catalog.flash_log.as_mut().ok_or(GridDiskError::NoSuch)?.outlier_ms = outlier_ms;
            Ok(())
        });
        Ok(changed.await?)
    }

    /// Drop the flash log. It must hold nothing that is not on disk: that is the caller's word.
    ///
    /// # Errors
    /// There is none, or no durable device took the change.
    pub async fn drop_flash_log(&self) -> Result<Changed<FlashLog>, GridDiskError> {
        let changed = self.change(|catalog| catalog.flash_log.take().ok_or(GridDiskError::NoSuch)).await?;
        Ok(changed)
    }
}

fn regions(reserved: &Reserved<'_>) -> BTreeMap<DeviceId, Vec<Extent>> {
    reserved.iter().map(|(id, one)| (*id, one.extents.clone())).collect()
}
