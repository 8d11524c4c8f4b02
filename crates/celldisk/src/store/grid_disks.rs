//! Grid disk commands: create, drop, resize, alter, cache generation, caching mode switch.
//!
//! New space is zeroed durably before the catalog names it, so a grid disk never shows what lay there before. Nothing
//! here waits for data requests: who drops or shrinks has seen the last of them complete.

use super::{CellStore, ChangeError, Changed, GridDiskError};
use crate::allocate::{allocate, append, count, cut};
use crate::catalog::{
    CachingMode, CachingPolicy, Catalog, Extent, FillStrategy, FlashLogMode, GridDisk, ModeSwitch, Purpose, ranges,
};
use crate::disk::CellDisk;
use crate::error::IoError;
use crate::ids::{DeviceId, GridDiskId};
use crate::layout::{AU_BYTES_MIN, EXTENTS_MAX, PAGE_BYTES};
use crate::media;
use device::WallTime;
use device::sync::lock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A grid disk to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridDiskSpec {
    /// Name.
    pub name: String,
    /// The cell disk to put it on.
    pub cell_disk: DeviceId,
    /// Bytes, as clients see them; rounded up by [`grid_disk_bytes`]. It takes whole allocation units on its cell disk.
    pub size_bytes: u64,
    /// What it carries.
    pub purpose: Purpose,
    /// Caching mode.
    pub caching_mode: CachingMode,
    /// Caching policy.
    pub caching_policy: CachingPolicy,
    /// When it is filled.
    pub fill: FillStrategy,
    /// Clients may not write.
    pub read_only: bool,
    /// Clients it is available to; empty for all.
    pub available_to: String,
    /// Comment.
    pub comment: String,
    /// Now.
    pub created: WallTime,
}

impl GridDiskSpec {
    /// A grid disk of `size_bytes` for data, cached in write-through by the usual rules, which anybody may write.
    #[must_use]
    pub fn new(name: &str, cell_disk: DeviceId, size_bytes: u64, created: WallTime) -> GridDiskSpec {
        GridDiskSpec {
            name: name.to_owned(),
            cell_disk,
            size_bytes,
            purpose: Purpose::Data,
            caching_mode: CachingMode::WriteThrough,
            caching_policy: CachingPolicy::Default,
            fill: FillStrategy::Read,
            read_only: false,
            available_to: String::new(),
            comment: String::new(),
            created,
        }
    }
}

impl GridDisk {
    /// A grid disk that has neither an id nor a place yet.
    pub(super) fn of_spec(spec: GridDiskSpec, size_bytes: u64) -> GridDisk {
        GridDisk {
            id: GridDiskId(0),
            name: spec.name,
            cell_disk: spec.cell_disk,
            extents: Vec::new(),
            size_bytes,
            purpose: spec.purpose,
            caching_mode: spec.caching_mode,
            mode_switch: None,
            caching_policy: spec.caching_policy,
            fill: spec.fill,
            caching_ranges: Vec::new(),
            flash_log_mode: FlashLogMode::Auto,
            journal: Vec::new(),
            cache_generation: 1,
            given_up: false,
            redo_behind: false,
            read_only: spec.read_only,
            inactive: false,
            available_to: spec.available_to,
            comment: spec.comment,
            created: spec.created,
            asm: BTreeMap::new(),
        }
    }
}

/// Space set aside while it is being zeroed. Not given back when dropped in mid-work: a zeroing request may still be under
/// way then and must not hit a later grid disk. A restart frees it.
pub(super) struct Reservation<'a> {
    store: &'a CellStore,
    device_id: DeviceId,
    pub(super) extents: Vec<Extent>,
}

impl Reservation<'_> {
    /// Give it back, or leave it to the catalog that names it now.
    pub(super) fn release(self) {
        let mut state = lock(&self.store.state);
        for extent in &self.extents {
            let entry = (self.device_id, *extent);
            if let Some(index) = state.reserved.iter().position(|reserved| *reserved == entry) {
                state.reserved.swap_remove(index);
            }
        }
    }
}

pub(super) fn grid_disk(catalog: &mut Catalog, id: GridDiskId) -> Result<&mut GridDisk, GridDiskError> {
    catalog.grid_disks.get_mut(&id).ok_or(GridDiskError::NoSuch)
}

pub(super) fn raise_generation(g: &mut GridDisk) -> Result<u32, GridDiskError> {
    g.cache_generation = g.cache_generation.checked_add(1).ok_or(GridDiskError::Generations)?;
    Ok(g.cache_generation)
}

/// What is not cached any more is of a former generation from then on.
pub(super) fn raise_if_uncached(now: &mut GridDisk, old: &GridDisk) -> Result<(), GridDiskError> {
    let uncached = |g: &GridDisk| g.caching_mode == CachingMode::None || g.caching_policy == CachingPolicy::None;
    if uncached(now) && !uncached(old) && now.cache_generation == old.cache_generation {
        raise_generation(now)?;
    }
    Ok(())
}

/// The size of a grid disk of which so many bytes are asked for, rounded up to [`AU_BYTES_MIN`]: so no block of the flash cache,
/// of which that is the largest, reaches beyond its end.
#[must_use]
pub fn grid_disk_bytes(size_bytes: u64) -> u64 {
    size_bytes.checked_next_multiple_of(AU_BYTES_MIN).unwrap_or(u64::MAX / AU_BYTES_MIN * AU_BYTES_MIN)
}

/// Physical stretches of `from..to` of something that lies in `extents`.
fn stretches(extents: &[Extent], au_bytes: u64, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut start = 0;
    for extent in extents {
        let end = start + extent.len_bytes(au_bytes);
        let (low, high) = (from.max(start), to.min(end));
        if low < high {
            out.push((extent.offset(au_bytes) + (low - start), high - low));
        }
        start = end;
    }
    out
}

impl CellStore {
    pub(super) fn disk_in_service(&self, device_id: DeviceId) -> Result<Arc<CellDisk>, GridDiskError> {
        let state = lock(&self.state);
        let Some(member) = state.catalog.members.get(&device_id) else { return Err(GridDiskError::NoSuch) };
        match state.disks.get(&device_id) {
            Some(disk) if !state.out.contains_key(&device_id) => Ok(disk.clone()),
            _ => Err(GridDiskError::NotPresent { name: member.name.clone() }),
        }
    }

    /// Set space aside; counts as used until released.
    pub(super) fn reserve(
        &self,
        device_id: DeviceId,
        count_au: u64,
        after: Option<Extent>,
        extents_max: usize,
    ) -> Result<Reservation<'_>, GridDiskError> {
        let mut state = lock(&self.state);
        let free = state.catalog.free_extents(device_id, &state.reserved);
        let Some(extents) = allocate(&free, count_au, after, extents_max) else {
            let (name, au_bytes) =
                state.catalog.members.get(&device_id).map_or((String::new(), 0), |m| (m.name.clone(), m.au_bytes));
            let free_bytes = count(&free) * au_bytes;
            return Err(GridDiskError::NoSpace { name, free_bytes, wanted_bytes: count_au.saturating_mul(au_bytes) });
        };
        state.reserved.extend(extents.iter().map(|extent| (device_id, *extent)));
        Ok(Reservation { store: self, device_id, extents })
    }

    /// Zero physical stretches and make that durable; `progress` hears (done, total) bytes.
    async fn zero(
        disk: &CellDisk,
        stretches: &[(u64, u64)],
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<(), IoError> {
        assert!(disk.label().adopted.is_none(), "nothing of an adopted volume is ever zeroed");
        let total = stretches.iter().map(|(_, len)| len).sum();
        let mut before = 0;
        for (offset, len) in stretches {
            media::zero(disk.device(), *offset, *len, &mut |done| progress(before + done, total)).await?;
            before += len;
        }
        Ok(())
    }

    /// Create a grid disk. Reads as zeroes. Other commands run meanwhile.
    ///
    /// # Errors
    /// No such cell disk or not in service, no space, a name that is taken or not valid, or the device fails. A power cut
    /// leaves it made or not made.
    pub async fn create_grid_disk(
        &self,
        spec: GridDiskSpec,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Changed<GridDisk>, GridDiskError> {
        let disk = self.disk_in_service(spec.cell_disk)?;
        // It would be zeroed, and is somebody's file system.
        self.check_not_adopted(spec.cell_disk, "it has one grid disk, which is all of the volume")?;
        let au_bytes = disk.au_bytes();
        if spec.size_bytes == 0 {
            return Err(GridDiskError::TooSmall { size_bytes: 0, au_bytes });
        }
        let size_bytes = grid_disk_bytes(spec.size_bytes);
        let count_au = size_bytes.div_ceil(au_bytes);
        let mut new = GridDisk::of_spec(spec, size_bytes);
        let reservation = self.reserve(new.cell_disk, count_au, None, EXTENTS_MAX)?;
        new.extents.clone_from(&reservation.extents);
        // What would be refused in the end is refused before terabytes are zeroed.
        let insert = |catalog: &mut Catalog, mut new: GridDisk| {
            new.id = catalog.next_grid_disk_id;
            let next = new.id.0.checked_add(1).ok_or(GridDiskError::Generations)?;
            catalog.next_grid_disk_id = GridDiskId(next);
            catalog.grid_disks.insert(new.id, new.clone());
            Ok::<_, GridDiskError>(new)
        };
        let mut trial = (*self.catalog()).clone();
        if let Err(error) = insert(&mut trial, new.clone()).and_then(|_| Ok(trial.validate_after(&self.catalog())?)) {
            reservation.release();
            return Err(error);
        }
        let total_bytes = new.size_bytes;
        let to_zero = stretches(&new.extents, au_bytes, 0, total_bytes);
        if let Err(error) = CellStore::zero(&disk, &to_zero, progress).await {
            if !error.is_unknown() {
                reservation.release();
            }
            return Err(GridDiskError::Zeroing { name: disk.name(), error });
        }
        let changed = self.change(|catalog| insert(catalog, new)).await;
        reservation.release();
        Ok(changed?)
    }

    /// Drop a grid disk. Its space is free at once and its id never comes back; its slice fails every further request.
    /// Requests that were submitted before must have completed.
    ///
    /// # Errors
    /// No such grid disk, or no durable device took the change.
    pub async fn drop_grid_disk(&self, id: GridDiskId) -> Result<Changed<GridDisk>, GridDiskError> {
        let changed = self.change(|catalog| catalog.grid_disks.remove(&id).ok_or(GridDiskError::NoSuch)).await?;
        Ok(changed)
    }

    /// Grow or shrink a grid disk to `size_bytes`, rounded up by [`grid_disk_bytes`]. New space reads as zeroes. A
    /// shrink raises the cache generation; requests beyond the new end must have completed.
    ///
    /// # Errors
    /// No bytes at all, no space, cell disk missing or failing, or another command changed it meanwhile.
    pub async fn resize_grid_disk(
        &self,
        id: GridDiskId,
        size_bytes: u64,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Changed<GridDisk>, GridDiskError> {
        let catalog = self.catalog();
        let old = catalog.grid_disks.get(&id).ok_or(GridDiskError::NoSuch)?;
        let Some(member) = catalog.members.get(&old.cell_disk) else { return Err(GridDiskError::NoSuch) };
        let au_bytes = member.au_bytes;
        self.check_not_adopted(old.cell_disk, "its grid disk is as large as the volume")?;
        if size_bytes == 0 {
            return Err(GridDiskError::TooSmall { size_bytes, au_bytes });
        }
        let size_bytes = grid_disk_bytes(size_bytes);
        let count_au = size_bytes.div_ceil(au_bytes);
        if size_bytes <= old.size_bytes {
            return self.shrink(old, size_bytes, count_au).await;
        }
        let disk = self.disk_in_service(old.cell_disk)?;
        let mut new = old.clone();
        new.size_bytes = size_bytes;
        // A piece that continues the last extent costs no entry.
        let pieces_max = (EXTENTS_MAX + 1).saturating_sub(old.extents.len());
        let more = count_au - count(&old.extents);
        let reservation = self.reserve(old.cell_disk, more, old.extents.last().copied(), pieces_max)?;
        append(&mut new.extents, &reservation.extents);
        if new.extents.len() > EXTENTS_MAX {
            reservation.release();
            let (name, wanted_bytes) = (member.name.clone(), more * au_bytes);
            return Err(GridDiskError::NoSpace { name, free_bytes: catalog.free_bytes(old.cell_disk), wanted_bytes });
        }
        let to_zero = stretches(&new.extents, au_bytes, old.size_bytes, new.size_bytes);
        if let Err(error) = CellStore::zero(&disk, &to_zero, progress).await {
            if !error.is_unknown() {
                reservation.release();
            }
            return Err(GridDiskError::Zeroing { name: disk.name(), error });
        }
        let changed = self
            .change(|catalog| {
                let now = grid_disk(catalog, id)?;
                if (&now.extents, now.size_bytes) != (&old.extents, old.size_bytes) {
                    return Err(GridDiskError::Busy);
                }
                now.extents = new.extents;
                now.size_bytes = new.size_bytes;
                Ok(now.clone())
            })
            .await;
        reservation.release();
        Ok(changed?)
    }

    async fn shrink(&self, old: &GridDisk, size_bytes: u64, count_au: u64) -> Result<Changed<GridDisk>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let now = grid_disk(catalog, old.id)?;
                if (&now.extents, now.size_bytes) != (&old.extents, old.size_bytes) {
                    return Err(GridDiskError::Busy);
                }
                if size_bytes < now.size_bytes {
                    cut(&mut now.extents, count_au);
                    now.size_bytes = size_bytes;
                    ranges::trim(&mut now.caching_ranges, now.size_bytes);
                    raise_generation(now)?;
                }
                Ok(now.clone())
            })
            .await?;
        Ok(changed)
    }

    /// Change attributes: name, caching policy, availableTo, comment, ASM attributes, purpose, caching mode (directly, when
    /// nothing is cached that a switch would have to carry over). Setting mode or policy to none raises the generation.
    ///
    /// # Errors
    /// [`GridDiskError::Fixed`] for id, cell disk, extents, size, creation time, mode switch and a generation that is not
    /// higher; no such grid disk; not valid.
    pub async fn alter_grid_disk(
        &self,
        id: GridDiskId,
        alter: impl FnOnce(&mut GridDisk),
    ) -> Result<Changed<GridDisk>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let now = grid_disk(catalog, id)?;
                let old = now.clone();
                alter(now);
                let fixed = [
                    ("id", old.id == now.id),
                    ("cell disk", old.cell_disk == now.cell_disk),
                    ("extents", old.extents == now.extents),
                    ("size", old.size_bytes == now.size_bytes),
                    ("pinned ranges", old.caching_ranges == now.caching_ranges),
                    ("journal", old.journal == now.journal),
                    ("creation time", old.created == now.created),
                    ("mode switch", old.mode_switch == now.mode_switch),
                    ("cache generation", old.cache_generation <= now.cache_generation),
                    ("caching mode", old.caching_mode == now.caching_mode || old.mode_switch.is_none()),
                ];
                if let Some((field, _)) = fixed.into_iter().find(|(_, same)| !same) {
                    return Err(GridDiskError::Fixed { field });
                }
                raise_if_uncached(now, &old)?;
                if (now.caching_mode, now.purpose) != (old.caching_mode, old.purpose) {
                    self.check_adopted_mode(now)?;
                }
                Ok(now.clone())
            })
            .await?;
        Ok(changed)
    }

    /// Give a range of a grid disk a caching policy of its own; none: that of the grid disk counts there again. What was
    /// said of the same bytes before is replaced, of others it stays.
    ///
    /// # Errors
    /// No such grid disk; the range is empty, not of whole pages or reaches beyond the end; too many ranges.
    pub async fn set_caching_range(
        &self,
        id: GridDiskId,
        bytes: Range<u64>,
        policy: Option<CachingPolicy>,
    ) -> Result<Changed<GridDisk>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let now = grid_disk(catalog, id)?;
                let whole = bytes.start.is_multiple_of(PAGE_BYTES) && bytes.end.is_multiple_of(PAGE_BYTES);
                if bytes.is_empty() || bytes.end > now.size_bytes || !whole {
                    return Err(GridDiskError::Range { size_bytes: now.size_bytes });
                }
                ranges::set(&mut now.caching_ranges, bytes, policy);
                Ok(now.clone())
            })
            .await?;
        Ok(changed)
    }

    /// Make all cached content of a grid disk void, durably; the new generation.
    ///
    /// # Errors
    /// No such grid disk, or no durable device took the change.
    pub async fn raise_cache_generation(&self, id: GridDiskId) -> Result<Changed<u32>, GridDiskError> {
        let changed = self.change(|catalog| raise_generation(grid_disk(catalog, id)?)).await?;
        Ok(changed)
    }

    /// The redo of these grid disks that was missing is had, or given up.
    ///
    /// # Errors
    /// No durable device took the change.
    pub async fn settle_redo_behind(&self, ids: &[GridDiskId]) -> Result<Changed<()>, GridDiskError> {
        let settle = |catalog: &mut Catalog| -> Result<(), GridDiskError> {
            ids.iter().for_each(|id| {
                if let Some(disk) = catalog.grid_disks.get_mut(id) {
                    disk.redo_behind = false;
                }
            });
            Ok(())
        };
        Ok(self.change(settle).await?)
    }

    /// The same for several at once, until [`CellStore::restore_cache_generations`] takes it back.
    ///
    /// # Errors
    /// No such grid disk, or no durable device took the change.
    pub async fn raise_cache_generations(&self, ids: &[GridDiskId]) -> Result<Changed<()>, GridDiskError> {
        let raise = |catalog: &mut Catalog| {
            ids.iter().try_for_each(|id| raise_generation(grid_disk(catalog, *id)?).map(|_| ()))
        };
        Ok(self.change(raise).await?)
    }

    /// What [`CellStore::raise_cache_generations`] made void counts again, but of those whose content has become void for another reason since.
    /// Nothing may have been cached in the generation between; that is the caller's word.
    ///
    /// # Errors
    /// No durable device took the change: at the next start either generation may be in force.
    pub async fn restore_cache_generations(
        &self,
        before: &BTreeMap<GridDiskId, u32>,
    ) -> Result<Changed<()>, GridDiskError> {
        let restore = |catalog: &mut Catalog| -> Result<(), GridDiskError> {
            for (id, generation) in before {
                let Some(disk) = catalog.grid_disks.get_mut(id) else { continue };
                if generation.checked_add(1) == Some(disk.cache_generation) {
                    disk.cache_generation = *generation;
                }
            }
            Ok(())
        };
        Ok(self.change(restore).await?)
    }

    /// Record that the caching mode is on its way to `to`; survives a crash.
    ///
    /// # Errors
    /// A switch is under way already, or it is in that mode.
    pub async fn begin_mode_switch(
        &self,
        id: GridDiskId,
        to: CachingMode,
    ) -> Result<Changed<ModeSwitch>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let g = grid_disk(catalog, id)?;
                if g.mode_switch.is_some() {
                    return Err(GridDiskError::Switch { why: "a caching mode switch is under way" });
                }
                if g.caching_mode == to {
                    return Err(GridDiskError::Switch { why: "the grid disk is in that caching mode" });
                }
                self.check_adopted_mode(&GridDisk { caching_mode: to, ..g.clone() })?;
                let switch = ModeSwitch { from: g.caching_mode, to };
                g.mode_switch = Some(switch);
                Ok(switch)
            })
            .await?;
        Ok(changed)
    }

    /// The switch has reached its mode: that is in force now. To none, the generation is raised.
    ///
    /// # Errors
    /// No switch is under way.
    pub async fn finish_mode_switch(&self, id: GridDiskId) -> Result<Changed<GridDisk>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let g = grid_disk(catalog, id)?;
                let Some(switch) = g.mode_switch.take() else {
                    return Err(GridDiskError::Switch { why: "no caching mode switch is under way" });
                };
                g.caching_mode = switch.to;
                if switch.to == CachingMode::None {
                    raise_generation(g)?;
                }
                Ok(g.clone())
            })
            .await?;
        Ok(changed)
    }

    /// Give up a switch that has not begun to matter: the old mode stays.
    ///
    /// # Errors
    /// No switch is under way.
    pub async fn cancel_mode_switch(&self, id: GridDiskId) -> Result<Changed<()>, GridDiskError> {
        let changed = self
            .change(|catalog| match grid_disk(catalog, id)?.mode_switch.take() {
                Some(_) => Ok(()),
                None => Err(GridDiskError::Switch { why: "no caching mode switch is under way" }),
            })
            .await?;
        Ok(changed)
    }

    /// Set what the cell itself carries: attributes, IORM plan, instance stamp, name. A thin front of
    /// [`CellStore::change`] that leaves devices, grid disks and flash alone.
    ///
    /// # Errors
    /// A text beyond its limit, or no durable device took the change.
    pub async fn alter_cell(&self, alter: impl FnOnce(&mut Catalog)) -> Result<Changed<()>, GridDiskError> {
        let changed = self
            .change(|catalog| {
                let old = catalog.clone();
                alter(catalog);
                let kept = old.members == catalog.members
                    && old.grid_disks == catalog.grid_disks
                    && old.flash_cache == catalog.flash_cache
                    && old.flash_log == catalog.flash_log
                    && old.next_grid_disk_id == catalog.next_grid_disk_id
                    && old.created == catalog.created;
                if kept { Ok(()) } else { Err(GridDiskError::Fixed { field: "an object of the cell" }) }
            })
            .await
            .map_err(|error: ChangeError<GridDiskError>| GridDiskError::from(error))?;
        Ok(changed)
    }
}
