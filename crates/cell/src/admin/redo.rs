//! Commands about the flash log: making and dropping it, how grid disks use it, going on without redo that is lost.
//!
//! What widens is recorded first, what narrows ends first: the catalog says that there is a flash log, and a grid disk carries
//! redo, as long as a ring may hold something of it.

use crate::admin::check_redo_mode;
use crate::base::log_room::RING_BYTES_MIN;
use crate::base::log_room::{NoRoomForLog, default_bytes_on_each};
use crate::base::request::CachingMode;
use crate::disk::error::AdminError;
use crate::disk::error::CellError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::flash_log::LogAtWork;
use crate::lifecycle::replay::void_redo;
use crate::redo::mode_of;
use celldisk::{DeviceId, FlashLogMode, FlashLogSpec, GridDiskId, OUTLIER_MS_DEFAULT, Purpose, Renewal, Role, Stamp};
use device::Class;
use device::sync::lock;
use flashlog::{LogReader, Owner, RingDevice, Skip};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often a disk is asked to take what is given up otherwise.
const LAST_ATTEMPTS: usize = 3;

impl Cell {
    /// Flash devices that can take a ring: durable, and the cache there, if any, at work with the disks.
    fn ring_candidates(&self) -> Vec<DeviceId> {
        let catalog = self.store().catalog();
        let at_work = self.flash_cache_devices();
        let flash = self.store().cell_disks().into_iter().filter(|disk| disk.role() == Role::Flash);
        let durable = flash.filter(|disk| disk.label().class == Class::Durable).map(|disk| disk.id());
        durable.filter(|id| !catalog.is_cached_on(id) || at_work.contains(id)).collect()
    }

    /// Create the flash log on the named flash cell disks (all that are durable when none is named), `size_total_bytes` over all
    /// of them.
    ///
    /// # Errors
    /// There is one, no durable flash, no space, a disk waits for redo of another, or a device fails.
    pub async fn create_flash_log(
        self: &Arc<Self>,
        size_total_bytes: Option<u64>,
        cell_disks: &[String],
    ) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        self.check_no_redo_waits()?;
        let catalog = self.store().catalog();
        let candidates = self.ring_candidates();
        let mut devices = Vec::new();
        for name in cell_disks {
            let (id, _) = catalog.member_named(name).ok_or_else(|| AdminError::NoCellDisk(name.clone()))?;
            if !candidates.contains(&id) {
                return Err(AdminError::NotForRedo(name.clone()));
            }
            devices.push(id);
        }
        if cell_disks.is_empty() {
            devices = candidates;
        }
        if devices.is_empty() {
            return Err(AdminError::NoDurableFlash);
        }
        devices.truncate(flashlog::RINGS_MAX);
        let on_each_bytes = match size_total_bytes {
            Some(total_bytes) => (total_bytes / devices.len() as u64).max(RING_BYTES_MIN),
            None => default_bytes_on_each(&catalog, &devices),
        };
        if catalog.flash_log.is_none()
            && let Some(no_room) = NoRoomForLog::find(&catalog, &devices, on_each_bytes)
        {
            return Err(AdminError::NoRoomForLog(Box::new(no_room)));
        }
        let mut prng = self.world.prng.fork("flash log");
        let mut stamp = prng.next_u128();
        stamp ^= u128::from(self.world.clock.wall().0) << 64 | u128::from(self.world.clock.now().0);
        let spec = FlashLogSpec {
            id: Stamp(stamp.max(1)),
            size_per_device_bytes: on_each_bytes,
            devices,
            outlier_ms: OUTLIER_MS_DEFAULT,
            created: self.world.clock.wall(),
        };
        let record = self.stood(self.store().create_flash_log(spec).await?);
        let begun = self.begin_new_flash_log(&record).await;
        if begun.is_err() {
            let _ = self.stood(self.store().drop_flash_log().await?);
        }
        begun
    }

    async fn begin_new_flash_log(self: &Arc<Self>, record: &celldisk::FlashLog) -> Result<(), AdminError> {
        // Disks that were left with a flash device by the cache stay paired with it; others are paired now.
        let catalog = self.store().catalog();
        let mut pairs = self.store().matching_pairs();
        let disks: Vec<DeviceId> =
            self.store().cell_disks().iter().filter(|d| d.role() == Role::Disk).map(|d| d.id()).collect();
        for flash in record.regions.keys().filter(|flash| !catalog.is_cached_on(flash)) {
            pairs.extend(
                disks.iter().map(|disk| (*disk, *flash)).filter(|pair| !pairs.contains(pair)).collect::<Vec<_>>(),
            );
        }
        let mut prng = self.world.prng.fork("flash log stamps");
        let failed = self.store().renew_stamps(Renewal::Open, &pairs, &mut prng).await;
        if !failed.is_empty() {
            return Err(CellError::Labels(failed).into());
        }
        let (mut rings, mut devices) = (Vec::new(), Vec::new());
        for flash in record.regions.keys() {
            let owner = Owner { cell_id: catalog.cell_id.0, device_id: flash.0, log_id: record.id.0 };
            rings.push(RingDevice { device: self.store().flash_log_slice(*flash)?, owner });
            devices.push(*flash);
        }
        let lives = self.store().cell_disks().into_iter().map(|disk| disk.label().ring_generation);
        let life = lives.max().unwrap_or(0) + 1;
        let reader = LogReader::read(rings, self.config.redo.sabotage).await;
        for (ring, flash) in devices.iter().enumerate() {
            if let flashlog::RingFound::Unreadable(why) = reader.found(ring) {
                return Err(AdminError::RingFailed(flash.to_string(), why.to_string()));
            }
        }
        let serving: Vec<usize> = (0..devices.len()).collect();
        let config = self.log_config(record.outlier_ms);
        let log = reader.begin(config, life, &serving, |_, _| false, self.world.clone()).await;
        if let Some((flash, why)) = devices.iter().zip(log.failures()).find_map(|(id, why)| Some((id, why?))) {
            log.stop();
            return Err(AdminError::RingFailed(flash.to_string(), why));
        }
        self.start_flash_log(LogAtWork::new(record.id, log, devices));
        self.attach_all_redo().await;
        Ok(())
    }

    /// Put the flash log before every redo grid disk that is served.
    async fn attach_all_redo(self: &Arc<Self>) {
        for disk in self.grid_disks() {
            if let Some(record) = self.record(&disk).filter(|record| record.purpose == Purpose::Redo) {
                self.let_redo_pend(record.cell_disk).await;
                self.attach_redo_online(&disk, &record).await;
            }
        }
    }

    /// Drop the flash log, after the disks have everything it holds. With `force` what a disk does not take, or is kept for one
    /// that is not there, is given up.
    ///
    /// # Errors
    /// There is none; redo is on flash alone and `force` is not set; a device fails: then it goes on.
    pub async fn drop_flash_log(self: &Arc<Self>, force: bool) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let Some(at_work) = self.log_at_work() else {
            return Err(celldisk::GridDiskError::NoSuch.into());
        };
        if !force {
            self.check_no_redo_waits()?;
            let catalog = self.store().catalog();
            let redo = |g: &&celldisk::GridDisk| g.purpose == Purpose::Redo;
            let absent = catalog.grid_disks.values().filter(redo).find(|g| self.grid_disk(&g.name).is_none());
            if let Some(record) = absent {
                return Err(AdminError::RedoOnFlash(record.name.clone()));
            }
        }
        let mut unsettled: Vec<Arc<GridDisk>> = Vec::new();
        let with_redo: Vec<Arc<GridDisk>> =
            self.grid_disks().into_iter().filter(|disk| disk.port.redo().is_some()).collect();
        for disk in &with_redo {
            // It stays barred: what flash acknowledged from now on would be given up as well.
            if !self.settle_and_bar(disk, Skip::NoFlashDisk).await {
                unsettled.push(disk.clone());
            }
        }
        if let Some(disk) = unsettled.first().filter(|_| !force) {
            self.use_redo_again(&with_redo);
            return Err(AdminError::RedoOnFlash(disk.name()));
        }
        for disk in &unsettled {
            if !self.settle_at_last(disk).await
                && let Err(error) = self.give_up_redo(disk).await
            {
                self.use_redo_again(&with_redo);
                return Err(error);
            }
        }
        // Should it go on after all, what comes then is of another life than the one that is void.
        let life = at_work.log.next_life();
        let mut told = Vec::new();
        for disk in self.store().cell_disks().into_iter().filter(|d| d.label().has_redo_pending()) {
            let waits = lock(&self.state).redo_waits.contains(&disk.id());
            if waits {
                // It is told by its operator, with ACTIVE FORCE, that it goes on without.
                continue;
            }
            lock(&at_work.homes).remove(&disk.id());
            if let Err(error) = disk.update_label(|label| void_redo(label, life)).await {
                // Those that have been told are told anew before anything of them is given to the rings. This one may have been
                // told or not: it stays barred.
                for home in told {
                    self.let_redo_pend(home).await;
                }
                self.use_redo_again(&with_redo);
                return Err(CellError::label(&disk, error).into());
            }
            told.push(disk.id());
        }
        at_work.forget_homes();
        // Records written while the labels were told may not be counted on: nothing is given to the rings since it was barred.
        for disk in &with_redo {
            self.detach_redo(disk).await;
        }
        at_work.log.stop();
        lock(&self.state).flash_log = None;
        match self.store().drop_flash_log().await {
            Ok(changed) => {
                let _ = self.stood(changed);
                Ok(())
            }
            // It is without use until the next start, or the next attempt to drop it, which goes on from here.
            Err(error) => {
                lock(&self.state).flash_log = Some(at_work);
                Err(error.into())
            }
        }
    }

    fn use_redo_again(&self, disks: &[Arc<GridDisk>]) {
        for disk in disks {
            if let Some(record) = self.record(disk) {
                self.tune_redo(disk, &record);
            }
        }
    }

    /// Whether the disk of a grid disk, asked again, takes what it has refused once: it may have been by chance.
    async fn settle_at_last(&self, disk: &Arc<GridDisk>) -> bool {
        for _ in 0..LAST_ATTEMPTS {
            if self.settle_and_bar(disk, Skip::NoFlashDisk).await {
                return true;
            }
        }
        false
    }

    /// What the disk of a grid disk has not taken is nobody's any more: its clients learn of it as of any loss.
    async fn give_up_redo(&self, disk: &Arc<GridDisk>) -> Result<(), AdminError> {
        let Some(redo) = disk.port.redo() else { return Ok(()) };
        let record = self.record(disk);
        // Flash takes nothing for the log of a grid disk in write-back: what the flash cache holds of it is not given up with it.
        let in_write_back = record.as_ref().is_some_and(celldisk::GridDisk::is_write_back);
        if !in_write_back {
            let _ = self.stood(self.store().raise_cache_generation(GridDiskId(disk.id())).await?);
            self.alert(format!("grid disk {}: redo that its disk has not taken is given up", disk.name()));
        }
        redo.quiesce().await;
        disk.port.set(None);
        redo.abandon();
        if in_write_back {
            return Ok(());
        }
        disk.latch_lost(true);
        if let Some(record) = record {
            self.rebind(disk, &record).await;
        }
        Ok(())
    }

    fn check_no_redo_waits(&self) -> Result<(), AdminError> {
        let state = lock(&self.state);
        let catalog = self.store().catalog();
        let offline = state.redo_offline.keys().find_map(|id| catalog.grid_disks.get(id));
        offline.map_or(Ok(()), |record| Err(AdminError::RedoOnFlash(record.name.clone())))
    }

    /// The same for commands that pair disks with flash anew: what was not left together would count as such.
    pub(crate) fn check_nobody_waits_for_redo(&self) -> Result<(), AdminError> {
        self.check_no_redo_waits()
    }

    /// Say from when on a redo write is an outlier.
    ///
    /// # Errors
    /// There is no flash log, 0 is given, or a device fails.
    pub async fn set_outlier_limit(self: &Arc<Self>, outlier_ms: u32) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        self.stood(self.store().set_outlier_ms(outlier_ms).await?);
        if let Some(at_work) = self.log_at_work() {
            at_work.log.set_outlier(Duration::from_millis(u64::from(outlier_ms)));
        }
        Ok(())
    }

    /// Change how a grid disk uses the flash log, with I/O running.
    ///
    /// # Errors
    /// A device fails.
    pub async fn set_flash_log_mode(self: &Arc<Self>, name: &str, mode: FlashLogMode) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        let changed = self.store().alter_grid_disk(GridDiskId(disk.id()), |g| g.flash_log_mode = mode).await?;
        let _ = self.stood(changed);
        if let Some(redo) = disk.port.redo() {
            redo.set_mode(mode_of(mode));
        }
        Ok(())
    }

    /// Change what a grid disk carries, with I/O running.
    ///
    /// # Errors
    /// It would leave the flash log and its disk does not take what that holds, or a device fails.
    pub async fn set_purpose(self: &Arc<Self>, name: &str, purpose: Purpose) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        let Some(before) = self.record(&disk) else { return Err(AdminError::NoGridDisk(name.to_owned())) };
        if before.purpose == purpose {
            return Ok(());
        }
        check_redo_mode(&before.name, purpose, before.caching_mode)?;
        if self.waits_for_redo(&disk) {
            return Err(AdminError::RedoOnFlash(disk.name()));
        }
        if before.purpose == Purpose::Redo && !self.settle_redo(&disk, Skip::DisabledGridDisk).await {
            return Err(AdminError::RedoOnFlash(disk.name()));
        }
        let changed = self.store().alter_grid_disk(before.id, |g| g.purpose = purpose).await;
        if let Some(now) = self.record(&disk) {
            if let Some(seat) = disk.seat.get() {
                seat.set_redo(now.purpose == Purpose::Redo);
            }
            if now.purpose == Purpose::Redo {
                self.let_redo_pend(now.cell_disk).await;
                self.attach_redo_online(&disk, &now).await;
                self.tune_redo(&disk, &now);
            } else {
                self.detach_redo(&disk).await;
            }
        }
        let _ = self.stood(changed?);
        Ok(())
    }

    /// The grid disks that go on together when one of them, which waits for redo, is told to go on without: none when it does
    /// not wait.
    #[must_use]
    pub fn redo_waiters(&self, name: &str) -> Vec<Arc<GridDisk>> {
        let Some(home) = self.grid_disk(name).filter(|disk| self.waits_for_redo(disk)).and_then(|d| self.record(&d))
        else {
            return Vec::new();
        };
        self.grid_disks_on(home.cell_disk).into_iter().filter(|disk| self.waits_for_redo(disk)).collect()
    }

    /// Whether a grid disk is offline since redo of it cannot be had.
    pub(crate) fn waits_for_redo(&self, disk: &GridDisk) -> bool {
        lock(&self.state).redo_offline.contains_key(&GridDiskId(disk.id()))
    }

    /// Go on without the redo that a disk waits for: all of its grid disks of that purpose do.
    pub(crate) async fn give_up_waiting(self: &Arc<Self>, home: DeviceId) -> Result<(), AdminError> {
        let Some(cell_disk) = self.store().cell_disk(home) else {
            return Err(AdminError::NoCellDisk(home.to_string()));
        };
        let mine: BTreeSet<GridDiskId> = {
            let catalog = self.store().catalog();
            let state = lock(&self.state);
            let here = |id: &&GridDiskId| catalog.grid_disks.get(id).is_some_and(|g| g.cell_disk == home);
            state.redo_offline.keys().filter(here).copied().collect()
        };
        for id in &mine {
            // What is cached may be newer than the disk is from here on.
            let _ = self.stood(self.store().raise_cache_generation(*id).await?);
        }
        let life = self.log_at_work().map_or(0, |at_work| at_work.log.life());
        let label = cell_disk.label();
        // Whatever the rings hold of it was written in earlier lives than this one.
        let dead = label.ring_generation.max(life.saturating_sub(1));
        let written = cell_disk.update_label(|label| void_redo(label, dead)).await;
        written.map_err(|error| CellError::label(&cell_disk, error))?;
        let given_up: Vec<GridDiskId> = mine.iter().copied().collect();
        self.stood(self.store().settle_redo_behind(&given_up).await?);
        {
            let mut state = lock(&self.state);
            state.redo_waits.remove(&home);
            state.redo_offline.retain(|id, _| !mine.contains(id));
        }
        self.let_redo_pend(home).await;
        for disk in self.grid_disks_on(home).into_iter().filter(|disk| mine.contains(&GridDiskId(disk.id()))) {
            self.alert(format!(
                "grid disk {} goes on without redo that its disk does not have: it is given up",
                disk.name()
            ));
            let Some(record) = self.record(&disk) else { continue };
            // Nothing has been asked of it: with what the label says now.
            self.detach_redo(&disk).await;
            self.attach_redo_online(&disk, &record).await;
            disk.set_cache(None, CachingMode::None);
            if !lock(&self.state).offline.contains_key(&record.id) {
                self.rebind(&disk, &record).await;
                disk.set_online();
            }
        }
        Ok(())
    }
}
