//! The flash devices of the flash cache, changed with I/O running: some join, some leave, the others keep what they hold.
//!
//! What is dirty goes to the disks first, to its end, and nothing becomes dirty until the change is over: so no flash device
//! holds anything alone when the catalog changes, which is the one moment at which the change happens. A crash before it finds
//! the old members, one after it the new ones; see [`flashcache::succession`] for why nothing stale comes of either. Never
//! believes anything of a device that joins, never again anything of one that has left: its cache era is raised.

use crate::base::work::Progress;
use crate::disk::error::AdminError;
use crate::disk::error::CellError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::{CacheAtWork, Cell};
use crate::lifecycle::open::OpenReport;
use celldisk::{DeviceId, FlashCacheSpace, GridDiskError, GridDiskId, MemberStatus, Renewal, Role};
use device::Class;
use device::sync::lock;
use flashcache::format::Owner;
use flashcache::{MemberDevice, MemoryShort, Sabotage, need_bytes};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

/// Who joins, who leaves, who stays.
#[derive(Debug)]
struct Plan {
    joining: Vec<DeviceId>,
    leaving: Vec<DeviceId>,
    staying: Vec<DeviceId>,
    /// Bytes on each of those that join.
    on_each_bytes: u64,
}

impl Plan {
    fn is_nothing(&self) -> bool {
        self.joining.is_empty() && self.leaving.is_empty()
    }
}

impl Cell {
    /// Make the flash cache one of these flash cell disks (all that are at work, when none is named), with I/O running: those
    /// that are not of it yet join, with as much space as it has on each of the others; those of it that are not named leave.
    /// `progress` hears of bytes destaged and bytes in all; CANCEL FLUSH cancels as long as these go to the disks.
    ///
    /// # Errors
    /// There is no cache, a name is not that of a flash cell disk that is at work, no space or memory; dirty data cannot go to
    /// the disks, or it was cancelled; a device fails. The members are then what they were, unless the text says otherwise.
    pub async fn change_flash_cache(
        self: &Arc<Self>,
        cell_disks: &[String],
        progress: Progress<'_>,
    ) -> Result<(), AdminError> {
        // What would be refused in the end is refused before anything is destaged.
        if self.plan(cell_disks)?.is_nothing() {
            return Ok(());
        }
        self.flush_for_change(progress).await?;
        self.change_members(cell_disks).await
    }

    fn plan(&self, cell_disks: &[String]) -> Result<Plan, AdminError> {
        let catalog = self.store().catalog();
        let Some(cache) = &catalog.flash_cache else { return Err(GridDiskError::NoSuch.into()) };
        let at_work = self.cache_at_work();
        let works: BTreeSet<DeviceId> = at_work
            .iter()
            .flat_map(|c| c.devices.iter().zip(c.cache.members()))
            .filter(|(_, member)| !member.has_failed())
            .map(|(id, _)| *id)
            .collect();
        let statuses = self.store().members();
        let in_service = |id: &DeviceId| matches!(statuses.get(id), Some(MemberStatus::InService(_)));
        let mut wanted = BTreeSet::new();
        for name in cell_disks {
            let (id, member) = catalog.member_named(name).ok_or_else(|| AdminError::NoCellDisk(name.clone()))?;
            if member.role != Role::Flash {
                return Err(AdminError::NoFlash(member.name.clone()));
            }
            let usable = if cache.regions.contains_key(&id) { works.contains(&id) } else { in_service(&id) };
            if !usable {
                return Err(AdminError::FlashNotAtWork(member.name.clone()));
            }
            wanted.insert(id);
        }
        if cell_disks.is_empty() {
            let flash = catalog.members.iter().filter(|(_, member)| member.role == Role::Flash).map(|(id, _)| *id);
            let usable = |id: &DeviceId| {
                if cache.regions.contains_key(id) { works.contains(id) } else { in_service(id) }
            };
            wanted.extend(flash.filter(usable));
        }
        if wanted.is_empty() {
            return Err(AdminError::NoFlashLeft);
        }
        let is_in = |id: &&DeviceId| cache.regions.contains_key(id);
        let mut plan = Plan {
            on_each_bytes: cache.size_per_device_bytes,
            joining: wanted.iter().filter(|id| !is_in(id)).copied().collect(),
            leaving: cache.regions.keys().filter(|id| !wanted.contains(id)).copied().collect(),
            staying: wanted.iter().filter(is_in).copied().collect(),
        };
        plan.on_each_bytes = self.bytes_on_each(&plan);
        let full = plan.joining.iter().find(|id| catalog.free_bytes(**id) < plan.on_each_bytes);
        if let Some(full) = full {
            let name = catalog.members.get(full).map_or_else(String::new, |member| member.name.clone());
            let (free_bytes, wanted_bytes) = (catalog.free_bytes(*full), plan.on_each_bytes);
            return Err(GridDiskError::NoSpace { name, free_bytes, wanted_bytes }.into());
        }
        if let Some(at_work) = &at_work {
            let mut areas = Vec::new();
            for id in &plan.joining {
                let Some(disk) = self.store().cell_disk(*id) else { continue };
                let geometry = device::Geometry { size_bytes: plan.on_each_bytes, ..disk.device().geometry() };
                at_work.cache.check_device(&geometry).map_err(CellError::from)?;
                areas.push(plan.on_each_bytes);
            }
            if let Some(limit_bytes) = self.config.cache.memory_bytes_max {
                let leaving = at_work.cache.places_of(&plan.leaving.iter().map(|id| id.0).collect());
                let need_bytes = at_work.cache.memory_bytes_max_without(&leaving)
                    + need_bytes(&areas, cache.segment_bytes, cache.block_bytes);
                if !areas.is_empty() && need_bytes > limit_bytes {
                    return Err(MemoryShort { need_bytes, block_bytes: cache.block_bytes, limit_bytes }.into());
                }
            }
        }
        Ok(plan)
    }

    /// Bytes on each flash device that joins: as many as on each of the others. Where all are replaced, what is larger is used whole,
    /// unless the operator left room beside the cache before; the flash log finds its room there again.
    fn bytes_on_each(&self, plan: &Plan) -> u64 {
        let catalog = self.store().catalog();
        let Some(cache) = &catalog.flash_cache else { return 0 };
        let slack_bytes = |id: &DeviceId| {
            let au_bytes = catalog.members.get(id).map_or(0, |member| member.au_bytes);
            u64::from(cache.segment_bytes) + au_bytes
        };
        let was_whole = cache.regions.keys().any(|id| catalog.free_bytes(*id) < slack_bytes(id));
        if !plan.staying.is_empty() || !was_whole {
            return cache.size_per_device_bytes;
        }
        let moves = |log: &&celldisk::FlashLog| log.regions.keys().any(|id| plan.leaving.contains(id));
        let log_bytes = catalog.flash_log.as_ref().filter(moves).map_or(0, |log| log.size_per_device_bytes);
        let larger_bytes = self.store().larger_flash_cache(&plan.joining, log_bytes);
        larger_bytes.map_or(cache.size_per_device_bytes, |bytes| self.affordable(cache, bytes, plan.joining.len()))
    }

    /// The same, or what the memory for the index suffices for, and never less than now.
    fn affordable(&self, cache: &celldisk::FlashCache, on_each_bytes: u64, devices: usize) -> u64 {
        let Some(limit_bytes) = self.config.cache.memory_bytes_max else { return on_each_bytes };
        let unit_bytes = u64::from(cache.segment_bytes);
        let fits = |units: u64| {
            need_bytes(&vec![units * unit_bytes; devices], cache.segment_bytes, cache.block_bytes) <= limit_bytes
        };
        let (mut least, mut most) = (cache.size_per_device_bytes / unit_bytes, on_each_bytes / unit_bytes + 1);
        while most - least > 1 {
            let units = least.midpoint(most);
            *if fits(units) { &mut least } else { &mut most } = units;
        }
        if fits(on_each_bytes / unit_bytes) { on_each_bytes } else { least * unit_bytes }
    }

    /// A FLUSH of everything, that ends when it is done.
    async fn flush_for_change(self: &Arc<Self>, progress: Progress<'_>) -> Result<(), AdminError> {
        if self.config.sabotage == Some(Sabotage::RemovedBeforeDestage) {
            return Ok(());
        }
        if let Some(disk) = self.grid_disks().iter().find(|disk| disk.frozen_until().is_some()) {
            return Err(AdminError::IsFrozen(disk.name()));
        }
        let before: BTreeSet<GridDiskId> = lock(&self.state).flushing.keys().copied().collect();
        let flushed = self.flush_flash_cache(&[], progress).await;
        // What was flushed before stays so.
        let ended: Vec<_> = {
            let mut state = lock(&self.state);
            let mine: Vec<GridDiskId> = state.flushing.keys().filter(|id| !before.contains(id)).copied().collect();
            mine.into_iter().filter_map(|id| state.flushing.remove(&id)).collect()
        };
        drop(ended);
        flushed
    }

    async fn change_members(self: &Arc<Self>, cell_disks: &[String]) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let plan = self.plan(cell_disks)?;
        if plan.is_nothing() {
            return Ok(());
        }
        let bypass = self.config.sabotage == Some(Sabotage::RemovedBeforeDestage);
        // Little, since the flush: what became dirty between the two.
        let drying = if bypass { Vec::new() } else { self.dry(&self.grid_disks()).await? };
        if !bypass {
            self.check_nothing_dirty()?;
            self.close_doors().await;
            for disk in self.store().cell_disks().into_iter().filter(|d| d.role() == Role::Disk) {
                self.settle_dirty_label(disk.id(), true).await;
            }
            self.check_nobody_waits(true)?;
        }
        self.check_nobody_waits_for_redo()?;
        let space = self.store().reserve_flash_cache(&plan.joining, Some(plan.on_each_bytes))?;
        if let Err(error) = self.pair_for_change(&plan).await {
            space.release();
            return Err(error);
        }
        let left = match self.cache_at_work() {
            Some(old) => self.change_at_work(&plan, space, old).await,
            None => self.change_idle(&plan, space).await,
        };
        if let Err(error) = left {
            // It may be in force after the next start, and nothing may be dirty by then on what has left.
            if let AdminError::Store(GridDiskError::Lost { .. }) = &error {
                lock(&self.state).dry_for_good.extend(drying);
            }
            return Err(error);
        }
        drop(drying);
        self.store().forget_flash(&plan.leaving).await;
        let there = plan.leaving.iter().copied().filter(|id| self.store().cell_disk(*id).is_some());
        // Nobody believes it any more; this is for whoever would take it in by mistake.
        let _ = self.store().raise_cache_era(there).await;
        Ok(())
    }

    /// The doors that were passed are closed: whoever takes dirty data afterwards writes the label anew, for the members that
    /// are there then. Requests that have passed them end before that.
    async fn close_doors(self: &Arc<Self>) {
        for disk in self.open_doors() {
            disk.drain().await;
        }
    }

    /// New doors, all closed; the grid disks that have one.
    fn open_doors(self: &Arc<Self>) -> Vec<Arc<GridDisk>> {
        let mut bound = Vec::new();
        for disk in self.grid_disks() {
            if let Some(record) = self.record(&disk).filter(celldisk::GridDisk::is_write_back) {
                self.bind(&disk, &record);
                bound.push(disk);
            }
        }
        bound
    }

    /// What lies where new members will be is void, and each disk knows them, before they are members.
    async fn pair_for_change(&self, plan: &Plan) -> Result<(), AdminError> {
        if plan.joining.is_empty() {
            return Ok(());
        }
        self.store().raise_cache_era(plan.joining.iter().copied()).await?;
        // Nothing is waited for from here to the renewal: what fails and is expelled before it is not taken in again by it.
        let disks: Vec<DeviceId> =
            self.store().cell_disks().iter().filter(|d| d.role() == Role::Disk).map(|d| d.id()).collect();
        // Those that leave as well, until they have: a crash before that would find them strange. One that has failed may be
        // expelled any moment.
        let at_work = self.cache_at_work();
        let works = |id: &&DeviceId| {
            let seats = at_work.iter().flat_map(|c| c.devices.iter().zip(c.cache.members()));
            seats.into_iter().any(|(device, member)| device == *id && !member.has_failed())
        };
        let old = plan.staying.iter().chain(&plan.leaving).filter(works);
        let members = old.chain(&plan.joining);
        let mut pairs: Vec<(DeviceId, DeviceId)> =
            members.flat_map(|flash| disks.iter().map(|disk| (*disk, *flash))).collect();
        // What is not listed matches no more, and rings may be on other devices.
        let rings = self.log_at_work().map_or_else(Vec::new, |log| log.live());
        let mut with_rings = self.store().matching_pairs();
        with_rings.retain(|pair| rings.contains(&pair.1) && !pairs.contains(pair));
        pairs.extend(with_rings);
        // A ring that has failed leaves the labels when nothing depends on it any more.
        if let Some(disk) = self.store().left_out_of_renewal(&pairs).first() {
            return Err(AdminError::RingLeaving(disk.name()));
        }
        let mut prng = self.world.prng.fork(&format!("members at {}", self.world.clock.now().0));
        let failed = self.store().renew_stamps(Renewal::Open, &pairs, &mut prng).await;
        if failed.is_empty() { Ok(()) } else { Err(CellError::Labels(failed).into()) }
    }

    /// None of its members is at work in this life, so none stays: those that join are the cache.
    async fn change_idle(self: &Arc<Self>, plan: &Plan, space: FlashCacheSpace<'_>) -> Result<(), AdminError> {
        let joining: BTreeSet<DeviceId> = plan.joining.iter().copied().collect();
        self.discard_areas(joining.iter().filter_map(|id| Some((*id, space.device(*id)?)))).await?;
        let _ = self.stood(self.store().change_flash_cache(space, &plan.leaving).await?);
        let hot = self.hot_of(None).await;
        let mut report = OpenReport::default();
        self.open_flash_cache(&joining, &BTreeMap::new(), &mut report).await?;
        for disk in self.grid_disks() {
            if let Some(record) = self.record(&disk) {
                self.rebind(&disk, &record).await;
            }
        }
        if let Some(at_work) = self.cache_at_work() {
            lock(&self.state).hot.retain(|id, _| at_work.devices.contains(id));
            self.start_refill(&at_work.cache, hot);
        }
        Ok(())
    }

    /// Make the successor, give it what it needs, let the catalog have it, and serve with it.
    async fn change_at_work(
        self: &Arc<Self>,
        plan: &Plan,
        space: FlashCacheSpace<'_>,
        old: CacheAtWork,
    ) -> Result<(), AdminError> {
        let leaving = old.cache.places_of(&plan.leaving.iter().map(|id| id.0).collect());
        self.discard_areas(plan.joining.iter().filter_map(|id| Some((*id, space.device(*id)?)))).await?;
        let next = self.successor(plan, &space, &old, &leaving).await?;
        let hot = self.hot_of(Some(&old)).await;
        let disks = self.grid_disks();
        let bars: Vec<_> = disks.iter().map(|disk| (disk.bar(), disk)).collect();
        for disk in &disks {
            disk.drain().await;
        }
        next.cache.end_what_others_serve().await;
        // With the catalog's change the areas of those that leave are gone: that is no failure of their devices.
        old.cache.set_members_leaving(&leaving, true);
        if let Err(error) = self.commit(plan, space, &old, &leaving).await {
            old.cache.set_members_leaving(&leaving, false);
            old.cache.abandon(&next.cache);
            return Err(error);
        }
        old.cache.retire(&leaving, &next.cache);
        {
            let mut state = lock(&self.state);
            state.cache = Some(next.clone());
            state.hot.retain(|id, _| next.devices.contains(id));
            for member in old.cache.members().enumerate().filter(|(i, _)| leaving.contains(i)).map(|(_, m)| m) {
                for (name, value) in member.counters.snapshot() {
                    *state.left_counters.entry(name).or_default() += value;
                }
            }
        }
        self.resize_quotas();
        for disk in &disks {
            if let Some(record) = self.record(disk) {
                self.bind(disk, &record);
            }
        }
        self.start_member_work(next.clone());
        for (bar, disk) in bars {
            // Writes that began under the old one have ended when this returns.
            self.flush_before_filling(disk, bar).await;
        }
        if !plan.joining.is_empty() {
            self.start_refill(&next.cache, hot);
        }
        Ok(())
    }

    /// The catalog's change. One that leaves and fails meanwhile is not waited for.
    async fn commit(
        &self,
        plan: &Plan,
        space: FlashCacheSpace<'_>,
        old: &CacheAtWork,
        leaving: &[usize],
    ) -> Result<(), AdminError> {
        let commit = pin!(self.store().change_flash_cache(space, &plan.leaving));
        let hanging = pin!(async {
            let mut left = leaving.to_vec();
            while !left.is_empty() {
                let index = old.cache.failure_among(&left).await;
                left.retain(|i| *i != index);
                self.store().take_out(old.devices[index], "it failed while it was leaving the flash cache");
            }
            std::future::pending::<()>().await;
        });
        match select(commit, hanging).await {
            Either::Left((changed, _)) => {
                let _ = self.stood(changed?);
                Ok(())
            }
            Either::Right(((), _)) => unreachable!("it waits for ever"),
        }
    }

    async fn successor(
        &self,
        plan: &Plan,
        space: &FlashCacheSpace<'_>,
        old: &CacheAtWork,
        leaving: &[usize],
    ) -> Result<CacheAtWork, AdminError> {
        let catalog = self.store().catalog();
        let mut devices = Vec::new();
        let mut ids: Vec<DeviceId> =
            old.devices.iter().enumerate().filter(|(i, _)| !leaving.contains(i)).map(|(_, id)| *id).collect();
        for id in &plan.joining {
            let (Some(disk), Some(device)) = (self.store().cell_disk(*id), space.device(*id)) else {
                return Err(GridDiskError::NotPresent { name: id.to_string() }.into());
            };
            let label = disk.label();
            let owner = Owner { cell_id: catalog.cell_id.0, device_id: id.0, era: label.cache_era };
            devices.push(MemberDevice {
                device,
                owner,
                life: label.sequence,
                durable: label.class == Class::Durable,
                checkpoint: None,
            });
            ids.push(*id);
        }
        let share = self.config.cache.memory_bytes_max.map(|limit_bytes| {
            let rest_bytes = limit_bytes.saturating_sub(old.cache.memory_bytes_max_without(leaving));
            rest_bytes / plan.joining.len().max(1) as u64
        });
        let members = catalog.flash_cache.as_ref().map_or(0, |cache| cache.regions.len());
        let mirrored = members + plan.joining.len() - plan.leaving.len() > 1;
        let made = old.cache.successor(leaving, devices, mirrored, share, &self.world).await;
        let (cache, opened) = made.map_err(CellError::from)?;
        let at_work = CacheAtWork { cache, devices: ids.into() };
        let joined = at_work.devices.iter().zip(at_work.cache.members()).skip(old.devices.len() - leaving.len());
        for ((id, member), opened) in joined.zip(opened) {
            let listeners = lock(&self.losses).get(id).cloned();
            if let Some(listeners) = listeners {
                listeners.add_member(member);
            }
            if let Err(error) = opened {
                self.alert(format!("flash {id}: {error}"));
            }
        }
        Ok(at_work)
    }
}
