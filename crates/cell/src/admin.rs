//! Changes to a running cell. Each is durable in the catalog when it returns, or says why not; one runs at a time.
//!
//! Never serves a state that the catalog does not have: what narrows (drop, shrink, NONE) stops first and is recorded
//! then; what widens is recorded first.

pub(crate) mod activate;
pub(crate) mod cache_mode;
pub(crate) mod flush;
pub(crate) mod freeze;
pub(crate) mod iorm;
pub(crate) mod pin;
pub(crate) mod redo;
pub(crate) mod stale;
use crate::backing::ordered::{Journal, Owner, journal_space_bytes, needs_journal};
use crate::backing::write_back::Drying;
use crate::base::request::CachingMode;
use crate::base::units::GRID_DISK_BYTES_MAX;
use crate::base::work::Progress;
use crate::disk::error::AdminError;
use crate::disk::error::CellError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::{Cell, cached_disk, mode_in_force, mode_wanted};
use crate::lifecycle::open::OpenReport;
use celldisk::{Changed, DeviceId, FlashCacheSpec, GridDiskError, GridDiskId, GridDiskSpec, Renewal, Role, Stamp};
use device::Io;
use device::sync::lock;
use flashcache::{MemoryShort, need_bytes};
use flashlog::Skip;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is written on a grid disk; what is not given stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GridDiskLabels {
    /// Comment.
    pub comment: Option<String>,
    /// Clients it is available to, separated by commas; empty for all.
    pub available_to: Option<String>,
    /// Clients may not write.
    pub read_only: Option<bool>,
}

/// Whether a grid disk may be of this size.
fn check_size(name: &str, size_bytes: u64) -> Result<(), AdminError> {
    if size_bytes > GRID_DISK_BYTES_MAX { Err(AdminError::TooLarge(name.to_owned(), size_bytes)) } else { Ok(()) }
}

/// Redo in write-back would go to the flash cache, past the flash log: a commit would wait for one copy there, and for nothing else.
pub(crate) fn check_redo_mode(
    name: &str,
    purpose: celldisk::Purpose,
    mode: celldisk::CachingMode,
) -> Result<(), AdminError> {
    let is_redo = purpose == celldisk::Purpose::Redo;
    let is_write_back = matches!(mode, celldisk::CachingMode::WriteBack | celldisk::CachingMode::WriteBackOrdered);
    if is_redo && is_write_back { Err(AdminError::RedoInWriteBack(name.to_owned())) } else { Ok(()) }
}

impl Cell {
    pub(crate) async fn turn(&self) -> Result<device::sync::Permits, AdminError> {
        let turn = self.changing.acquire(1).await;
        if self.stop.is_stopped() { Err(AdminError::Stopping) } else { Ok(turn) }
    }

    /// Whether a change is under way: what the catalog says and what is at work may differ until it is done.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.changing.try_acquire(1).is_none()
    }

    pub(crate) fn named(&self, name: &str) -> Result<Arc<GridDisk>, AdminError> {
        self.grid_disk(name).ok_or_else(|| AdminError::NoGridDisk(name.to_owned()))
    }

    /// A change that some device did not take: it stands, the operator is told.
    pub(crate) fn stood<T>(&self, changed: Changed<T>) -> T {
        for failure in changed.failed {
            self.alert(format!("cell disk {} is out of service: {}", failure.name, failure.error));
        }
        changed.value
    }

    /// Create a grid disk; it reads as zeroes. Served when this returns.
    ///
    /// # Errors
    /// The name is taken, no space, a device fails, or write-back is asked for where it would not be safe.
    pub async fn create_grid_disk(
        self: &Arc<Self>,
        spec: GridDiskSpec,
        progress: Progress<'_>,
    ) -> Result<Arc<GridDisk>, AdminError> {
        let _turn = self.turn().await?;
        check_size(&spec.name, spec.size_bytes)?;
        check_redo_mode(&spec.name, spec.purpose, spec.caching_mode)?;
        self.check_write_back(spec.caching_mode)?;
        if let Some(disk) = self.store().cell_disk(spec.cell_disk)
            && !disk.label().is_whole()
            && self.store().catalog().grid_disks.values().all(|record| record.cell_disk != spec.cell_disk)
        {
            // It was not told when its last grid disk went: the new one would wait for what is nobody's.
            self.call_whole(&disk).await?;
        }
        let mut spec = spec;
        let ordered = needs_journal(spec.caching_mode);
        if ordered {
            // Until it has its journal.
            spec.caching_mode = celldisk::CachingMode::WriteThrough;
        }
        let mut record = self.stood(self.store().create_grid_disk(spec, progress).await?);
        if ordered {
            match self.take_journal(&record, record.caching_policy).await {
                Ok(taken) => record = taken,
                Err(error) => {
                    let _ = self.stood(self.store().drop_grid_disk(record.id).await?);
                    return Err(error);
                }
            }
        }
        if record.is_logged() {
            self.let_redo_pend(record.cell_disk).await;
        }
        Ok(self.serve(&record)?)
    }

    /// Give a grid disk the journal that write-back in flush order needs, and that mode. Nothing is dirty of it.
    async fn take_journal(
        &self,
        record: &celldisk::GridDisk,
        policy: celldisk::CachingPolicy,
    ) -> Result<celldisk::GridDisk, AdminError> {
        let page_bytes = self.store().slice(record.id)?.geometry().page_bytes;
        let size_bytes = journal_space_bytes(self.config.journal_bytes, record.size_bytes, page_bytes);
        let space = self.store().reserve_journal(record.id, size_bytes)?;
        let owner = Owner { cell: self.store().cell_id().0, device: record.cell_disk.0, grid_disk: record.id.0 };
        let journal = Journal::new(space.device(), owner);
        if journal.make_void(self.world.clock.wall()).await.is_err() {
            // Not given back: its writes may still land.
            return Err(AdminError::NoJournal(record.name.clone()));
        }
        let taken = self.stood(self.store().take_journal(space, policy).await?);
        let device = self.store().journal_slice(record.id)?;
        let journal = Journal::open(device, owner).await.map_err(|_| AdminError::NoJournal(record.name.clone()));
        lock(&self.state).journals.insert(record.id, Arc::new(journal?));
        Ok(taken)
    }

    /// Drop a grid disk. Its content is gone.
    ///
    /// # Errors
    /// It has sessions and `force` is not set, or no device took the change: then it is served as before.
    pub async fn drop_grid_disk(self: &Arc<Self>, name: &str, force: bool) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        if let Some(record) = self.record(&disk) {
            self.store().check_not_adopted(record.cell_disk, "its grid disk is not dropped by itself")?;
        }
        if !force && let Some(what) = self.last_copy(name) {
            let statement = format!("DROP GRIDDISK {}", disk.name());
            return Err(AdminError::LastCopy { name: disk.name(), what, statement });
        }
        self.take_away(&disk, force).await
    }

    /// Take a grid disk out of the cell, in the turn of the caller.
    pub(crate) async fn take_away(self: &Arc<Self>, disk: &Arc<GridDisk>, force: bool) -> Result<(), AdminError> {
        if !force && disk.sessions() > 0 {
            return Err(AdminError::InUse(disk.name(), disk.sessions()));
        }
        let record = self.record(disk);
        let home = record.clone().filter(celldisk::GridDisk::is_write_back).map(|record| record.cell_disk);
        disk.stop();
        disk.drain().await;
        disk.thaw(None);
        let batches_ended = disk.end_batches().await;
        let redo = disk.port.redo();
        if let Some(redo) = &redo {
            // What is on its way to the disk must not reach space that is another's.
            redo.quiesce().await;
        }
        match self.store().drop_grid_disk(GridDiskId(disk.id())).await {
            Ok(changed) => {
                let _ = self.stood(changed);
                let (flushing, kept) = {
                    let mut state = lock(&self.state);
                    let kept = state.disk_awaited.remove(&GridDiskId(disk.id()));
                    state.offline.remove(&GridDiskId(disk.id()));
                    state.grid_disks.remove(&disk.name().to_lowercase());
                    state.journals.remove(&GridDiskId(disk.id()));
                    state.redo_offline.remove(&GridDiskId(disk.id()));
                    (state.flushing.remove(&GridDiskId(disk.id())), kept)
                };
                drop(flushing);
                // The cache has kept the dirty data of a grid disk that was offline.
                if let (Some(cache), Some(record), true) = (self.flash_cache(), &record, kept) {
                    cache.forget(&cache.disk(cached_disk(record, true)));
                }
                if let Some(redo) = redo {
                    redo.abandon();
                    self.detach_redo(disk).await;
                }
                disk.go();
                if let Some(home) = home {
                    self.settle_dirty_label(home, false).await;
                }
                Ok(())
            }
            Err(error) => {
                if let Some(redo) = redo {
                    redo.resume();
                }
                disk.resume();
                drop(batches_ended);
                Err(error.into())
            }
        }
    }

    /// Grow or shrink a grid disk. New space reads as zeroes; what a shrink cuts off is gone.
    ///
    /// # Errors
    /// Too small, no space, or a device fails.
    pub async fn resize_grid_disk(
        self: &Arc<Self>,
        name: &str,
        size_bytes: u64,
        progress: Progress<'_>,
    ) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        check_size(name, size_bytes)?;
        let size_bytes = celldisk::grid_disk_bytes(size_bytes);
        let id = GridDiskId(disk.id());
        let before = disk.size_bytes();
        let generation_before = self.record(&disk).map(|r| r.cache_generation);
        // A shrink voids what is cached, so nothing of it may be dirty.
        let _drying = if size_bytes < before { self.dry(std::slice::from_ref(&disk)).await? } else { Vec::new() };
        let bar = (size_bytes < before).then(|| disk.bar());
        if bar.is_some() {
            // Requests beyond the new end are refused from here on; fills end before the generation is raised.
            disk.set_size_bytes(size_bytes);
            disk.drain().await;
            // What is replayed later must not come back where the disk grows again.
            if !self.settle_redo(&disk, Skip::DisabledGridDisk).await {
                disk.set_size_bytes(before);
                return Err(AdminError::RedoOnFlash(disk.name()));
            }
        }
        let resized = self.store().resize_grid_disk(id, size_bytes, progress).await;
        let record = self.record(&disk);
        disk.set_size_bytes(record.as_ref().map_or(before, |r| r.size_bytes));
        if let Some(record) = record
            && Some(record.cache_generation) != generation_before
        {
            self.rebind(&disk, &record).await;
        } else if let Some(record) = self.record(&disk).filter(celldisk::GridDisk::is_write_back) {
            // Its place on the disk is another, which the label has to say before more of it is dirty.
            self.bind(&disk, &record);
        }
        if let Some(record) = self.record(&disk) {
            self.tune_redo(&disk, &record);
        }
        drop(bar);
        let _ = self.stood(resized?);
        Ok(())
    }

    /// Rename a grid disk.
    ///
    /// # Errors
    /// The name is taken or too long.
    pub async fn rename_grid_disk(self: &Arc<Self>, name: &str, new_name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        let to = new_name.to_owned();
        let changed = self.store().alter_grid_disk(GridDiskId(disk.id()), |g| g.name = to).await?;
        let _ = self.stood(changed);
        let mut state = lock(&self.state);
        state.grid_disks.remove(&disk.name().to_lowercase());
        disk.set_name(new_name.to_owned());
        state.grid_disks.insert(new_name.to_lowercase(), disk);
        Ok(())
    }

    /// Set what is written on a grid disk: comment, clients, whether clients may write. Clients count for connections made from now
    /// on, read-only for every request that begins from now on, on connections there are, too.
    ///
    /// # Errors
    /// Too long, or a device fails.
    pub async fn set_grid_disk_labels(self: &Arc<Self>, name: &str, labels: GridDiskLabels) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        let GridDiskLabels { comment, available_to, read_only } = labels;
        let changed = self.store().alter_grid_disk(GridDiskId(disk.id()), |g| {
            g.comment = comment.unwrap_or_else(|| std::mem::take(&mut g.comment));
            g.available_to = available_to.unwrap_or_else(|| std::mem::take(&mut g.available_to));
            g.read_only = read_only.unwrap_or(g.read_only);
        });
        let _ = self.stood(changed.await?);
        if let Some(record) = self.record(&disk) {
            disk.set_access(&record.available_to, record.read_only);
        }
        Ok(())
    }

    /// Change how a grid disk is cached, with I/O running. To NONE: hits stop at once, and its blocks are void.
    ///
    /// # Errors
    /// Write-back is asked for where it would not be safe, dirty data cannot go to the disk, or a device fails.
    pub async fn set_caching(
        self: &Arc<Self>,
        name: &str,
        mode: Option<celldisk::CachingMode>,
        policy: Option<celldisk::CachingPolicy>,
    ) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        if let Some(mode) = mode {
            self.check_write_back(mode)?;
        }
        let id = GridDiskId(disk.id());
        let Some(record) = self.record(&disk) else { return Err(AdminError::NoGridDisk(name.to_owned())) };
        if let Some(mode) = mode.filter(|mode| *mode != record.caching_mode) {
            check_redo_mode(&record.name, record.purpose, mode)?;
        }
        let mut next = record.clone();
        next.caching_mode = mode.unwrap_or(next.caching_mode);
        next.caching_policy = policy.unwrap_or(next.caching_policy);
        // Before anything is dried for it.
        self.store().check_adopted_mode(&next)?;
        // The catalog says write-back as long as anything may be dirty.
        let becomes_ordered = needs_journal(next.caching_mode) && record.journal.is_empty();
        // The journal it is to be ordered with comes with the change.
        let next_mode = mode_wanted(&next);
        let leaves_write_back = record.is_write_back() && !next_mode.is_write_back();
        let unordered = !needs_journal(next.caching_mode) && !record.journal.is_empty();
        let dries = leaves_write_back || record.is_write_back() && (becomes_ordered || unordered);
        let drying = if dries { self.dry(std::slice::from_ref(&disk)).await? } else { Vec::new() };
        // In write-back its redo goes to flash anyway, and comes to the disk in another order.
        if next_mode.is_write_back()
            && !record.is_write_back()
            && (self.waits_for_redo(&disk) || !self.settle_redo(&disk, Skip::LogOnFlash).await)
        {
            return Err(AdminError::RedoOnFlash(disk.name()));
        }
        let leaves = mode_in_force(&record) != CachingMode::None && next_mode == CachingMode::None;
        let bar = leaves.then(|| disk.bar());
        if bar.is_some() {
            // Hits and fills stop; writes go on to invalidate until the generation is raised durably.
            disk.drain().await;
        }
        let altered = async {
            if leaves {
                let _ = self.stood(self.store().raise_cache_generation(id).await?);
            }
            let (mode, policy) = (next.caching_mode, next.caching_policy);
            if becomes_ordered {
                self.take_journal(&record, policy).await?;
                return Ok(());
            }
            let changed = if unordered {
                // None is begun: nothing is dirty, and nothing becomes so.
                let _batches_ended = disk.end_batches().await;
                self.store().free_journal(id, mode, policy, false).await?
            } else {
                self.store().alter_grid_disk(id, |g| (g.caching_mode, g.caching_policy) = (mode, policy)).await?
            };
            let _ = self.stood(changed);
            if unordered {
                lock(&self.state).journals.remove(&id);
            }
            Ok(())
        }
        .await;
        // Whatever happened, serve as the catalog says.
        if let Some(now) = self.record(&disk) {
            let was_cached = mode_in_force(&record) != CachingMode::None;
            if was_cached && now.cache_generation == record.cache_generation {
                self.bind(&disk, &now);
            } else {
                self.rebind(&disk, &now).await;
            }
        }
        if let Some(now) = self.record(&disk) {
            if now.is_logged() {
                self.let_redo_pend(now.cell_disk).await;
            }
            self.tune_redo(&disk, &now);
        }
        drop(bar);
        match &altered {
            Ok(()) if leaves_write_back => self.settle_dirty_label(record.cell_disk, false).await,
            // The catalog may say by the next start that it is not in write-back: nothing may be dirty by then.
            Err(_) if dries => lock(&self.state).dry_for_good.extend(drying),
            _ => {}
        }
        altered
    }

    /// Fill a grid disk in another way from now on.
    ///
    /// # Errors
    /// There is no such grid disk, or a device fails.
    pub async fn set_fill(self: &Arc<Self>, name: &str, fill: celldisk::FillStrategy) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        let _ = self.stood(self.store().alter_grid_disk(GridDiskId(disk.id()), |g| g.fill = fill).await?);
        disk.set_filling(fill, &self.feed);
        Ok(())
    }

    /// Give the disks everything of these grid disks that is dirty; nothing more becomes dirty while what is returned lives.
    pub(crate) async fn dry(&self, disks: &[Arc<GridDisk>]) -> Result<Vec<Drying>, AdminError> {
        if let Some(disk) = disks.iter().find(|disk| disk.frozen_until().is_some()) {
            return Err(AdminError::IsFrozen(disk.name()));
        }
        let drying: Vec<Drying> = disks.iter().map(GridDisk::start_drying).collect();
        let dried = join_all(disks.iter().map(|disk| disk.dry(&self.world))).await;
        match disks.iter().zip(dried).find(|(_, dried)| dried.is_err()) {
            Some((disk, _)) => Err(AdminError::StillDirty(disk.name())),
            None => Ok(drying),
        }
    }

    /// Nothing is dirty of grid disks that are not served or offline either: they have nobody who could destage it.
    pub(crate) fn check_nothing_dirty(&self) -> Result<(), AdminError> {
        let offline: Vec<GridDiskId> = lock(&self.state).offline.keys().copied().collect();
        let served: u64 = self.dirty_bytes(&self.grid_disks());
        let (there, lost) = self.flash_cache().map_or((0, 0), |cache| cache.all_dirty_bytes());
        let all = there + lost;
        let catalog = self.store().catalog();
        if let Some(record) = offline.iter().find_map(|id| catalog.grid_disks.get(id)) {
            return Err(AdminError::StillDirty(record.name.clone()));
        }
        if all > served {
            let absent = catalog.grid_disks.values().find(|r| r.is_write_back() && self.grid_disk(&r.name).is_none());
            return Err(AdminError::StillDirty(absent.map_or_else(|| "?".to_owned(), |r| r.name.clone())));
        }
        Ok(())
    }

    /// No disk's label says that it waits for flash, or (`and_absent`) could say so: one that could not be written, or is not
    /// there, would wait for ever once the catalog has forgotten the flash.
    pub(crate) fn check_nobody_waits(&self, and_absent: bool) -> Result<(), AdminError> {
        let catalog = self.store().catalog();
        let waits = |record: &&celldisk::GridDisk| match self.store().cell_disk(record.cell_disk) {
            Some(disk) => !disk.label().is_whole() || and_absent && !disk.is_label_certain(),
            // Not in write-back any more does not say that its label took notice.
            None => and_absent,
        };
        match catalog.grid_disks.values().find(waits) {
            Some(record) => Err(AdminError::StillDirty(record.name.clone())),
            None => Ok(()),
        }
    }

    /// Whether a grid disk may be in this mode.
    pub(crate) fn check_write_back(&self, mode: celldisk::CachingMode) -> Result<(), AdminError> {
        match mode {
            celldisk::CachingMode::WriteBack | celldisk::CachingMode::WriteBackOrdered => match self.flash_cache() {
                Some(cache) if cache.is_short_of_members() => {
                    Err(AdminError::WriteBackUnsafe("all flash devices of the flash cache at work"))
                }
                Some(cache) if !cache.takes_dirty() => {
                    Err(AdminError::WriteBackUnsafe("flash devices that are durable"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Create the flash cache on the named flash cell disks (all when none is named), `size_total_bytes` over all of them
    /// or all that is free.
    ///
    /// # Errors
    /// There is one, no flash, no space, a grid disk still waits for flash that was in another, or a device fails.
    pub async fn create_flash_cache(
        self: &Arc<Self>,
        size_total_bytes: Option<u64>,
        cell_disks: &[String],
    ) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        // A disk put back to a time when flash held data of its own must not be paired with that flash as if all were well.
        self.check_nobody_waits(false)?;
        self.check_nobody_waits_for_redo()?;
        let catalog = self.store().catalog();
        let mut devices = Vec::new();
        for name in cell_disks {
            let found = catalog.member_named(name).ok_or_else(|| AdminError::NoCellDisk(name.clone()))?;
            devices.push(found.0);
        }
        // Those that take part, so that the size is divided by their number. With none, creating it fails below and says why.
        let devices = self.store().flash_devices(&devices).unwrap_or_default();
        let size_bytes = size_total_bytes.map(|all| all / devices.len().max(1) as u64);
        self.check_index_memory(&devices, size_bytes)?;
        let segment_bytes = self.config.cache.segment_bytes;
        if catalog.flash_cache.is_none() {
            // What no member could work with must not be in the catalog for a moment: a crash then would leave it there.
            let (devices, size_bytes) = self.store().flash_cache_area(&devices, size_bytes, segment_bytes)?;
            for disk in devices.iter().filter_map(|id| self.store().cell_disk(*id)) {
                let geometry = device::Geometry { size_bytes, ..disk.device().geometry() };
                flashcache::check_area(&geometry, segment_bytes, self.block_bytes).map_err(CellError::from)?;
            }
        }
        let mut prng = self.world.prng.fork("flash cache");
        let mut stamp = prng.next_u128();
        stamp ^= u128::from(self.world.clock.wall().0) << 64 | u128::from(self.world.clock.now().0);
        let spec = FlashCacheSpec {
            id: Stamp(stamp.max(1)),
            devices,
            size_per_device_bytes: size_bytes,
            segment_bytes,
            block_bytes: self.block_bytes,
            created: self.world.clock.wall(),
        };
        let record = self.stood(self.store().create_flash_cache(spec).await?);
        let members: BTreeSet<DeviceId> = record.regions.keys().copied().collect();
        let disks = self.store().cell_disks();
        let rings = self.flash_log_devices().into_iter().filter(|id| !members.contains(id));
        let flash: Vec<DeviceId> = members.iter().copied().chain(rings).collect();
        let pairs: Vec<(DeviceId, DeviceId)> =
            disks.iter().filter(|d| d.role() == Role::Disk).flat_map(|d| flash.iter().map(|f| (d.id(), *f))).collect();
        let opened = async {
            let failed = self.store().renew_stamps(Renewal::Open, &pairs, &mut prng).await;
            if !failed.is_empty() {
                return Err(CellError::Labels(failed).into());
            }
            self.discard_flash_areas(&members).await?;
            Ok(self.open_flash_cache(&members, &BTreeMap::new(), &mut OpenReport::default()).await?)
        };
        if let Err(error) = opened.await {
            // No member can work with it, or it is not known whether any can: the next start must not have to find out.
            let _ = self.stood(self.store().drop_flash_cache().await?);
            return Err(error);
        }
        let disks = self.grid_disks();
        let bound = disks.iter().filter_map(|disk| Some((disk, self.record(disk)?)));
        join_all(bound.map(|(disk, record)| async move { self.rebind(disk, &record).await })).await;
        if let Some(note) = self.other_blocks() {
            self.alert(note);
        }
        Ok(())
    }

    /// Whether a cache of so many bytes on each of these flash devices (all that is free without) keeps within the memory it may
    /// take.
    fn check_index_memory(&self, devices: &[DeviceId], size_bytes: Option<u64>) -> Result<(), AdminError> {
        let config = &self.config.cache;
        let Some(limit_bytes) = config.memory_bytes_max else { return Ok(()) };
        let catalog = self.store().catalog();
        let areas: Vec<u64> = devices.iter().map(|id| size_bytes.unwrap_or_else(|| catalog.free_bytes(*id))).collect();
        let need_bytes = need_bytes(&areas, config.segment_bytes, self.block_bytes);
        if need_bytes <= limit_bytes {
            return Ok(());
        }
        Err(MemoryShort { need_bytes, block_bytes: self.block_bytes, limit_bytes }.into())
    }

    /// Drop the flash cache, after what is dirty has gone to the disks.
    ///
    /// # Errors
    /// There is none, or a device fails.
    pub async fn drop_flash_cache(self: &Arc<Self>) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let drying = self.dry(&self.grid_disks()).await?;
        self.check_nothing_dirty()?;
        // Whatever becomes of this: it may be refused after the labels have been told.
        for disk in self.grid_disks() {
            self.close_door(&disk).await;
        }
        // Before the catalog forgets the flash: a label that waited for it would wait for ever.
        for disk in self.store().cell_disks().into_iter().filter(|d| d.role() == Role::Disk) {
            self.settle_dirty_label(disk.id(), true).await;
        }
        self.check_nobody_waits(true)?;
        let bars: Vec<_> = self.grid_disks().iter().map(GridDisk::bar).collect();
        for disk in self.grid_disks() {
            disk.drain().await;
        }
        let at_work = self.cache_at_work();
        // With the catalog's change the flash regions are gone: that is not a failure of their devices.
        at_work.iter().for_each(|c| c.cache.set_leaving(true));
        let dropped = self.store().drop_flash_cache().await;
        if self.store().catalog().flash_cache.is_some() {
            at_work.iter().for_each(|c| c.cache.set_leaving(false));
            // It may be in force after the next start, and nothing may be dirty by then.
            if let Err(GridDiskError::Lost { .. }) = &dropped {
                lock(&self.state).dry_for_good.extend(drying);
            }
            let _ = self.stood(dropped?);
            return Ok(());
        }
        at_work.iter().for_each(|c| c.cache.set_void());
        drop(bars);
        {
            let mut state = lock(&self.state);
            state.cache = None;
            // A cache that is made anew begins empty.
            state.hot.clear();
        }
        for disk in self.grid_disks() {
            disk.set_cache(None, CachingMode::None);
        }
        if let Some(at_work) = at_work {
            // Writes that began under it end under it.
            for disk in self.grid_disks() {
                disk.drain().await;
            }
            at_work.cache.stop().await;
        }
        let _ = self.stood(dropped?);
        Ok(())
    }
}
