//! The administrator's commands about the flash log.

use super::admin::Pending;
use super::stage::{Life, Run};
use cell::AdminError;
use celldisk::{FlashLogMode, Purpose, Role};
use device::Class;
use std::sync::Arc;

impl Run {
    pub(super) async fn create_log(self: &Arc<Self>, life: &Life) {
        let store = life.cell.store();
        let Some(redo) = &self.plan.setup.redo else { return };
        let durable =
            |disk: &&Arc<celldisk::CellDisk>| disk.role() == Role::Flash && disk.label().class == Class::Durable;
        let count = store.cell_disks().iter().filter(durable).count() as u64;
        if store.catalog().flash_log.is_some() || count == 0 {
            return;
        }
        let (cell, size_bytes) = (life.cell.clone(), redo.ring_bytes * count);
        let then = |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: flash log created"),
            Err(error) => run.judge("create flash log", &error),
        };
        let work = async move { cell.create_flash_log(Some(size_bytes), &[]).await };
        self.command(life, Pending::Caching, work, then).await;
    }

    /// With force only where nothing can be lost by it: what is lost then, the operator has asked for. Nothing happens to a disk
    /// meanwhile ([`Run::mishap`]).
    pub(super) async fn drop_log(self: &Arc<Self>, life: &Life, force: bool) {
        if life.cell.flash_log().is_none() {
            return;
        }
        let well = !self.machine.some_disk_harmed(self.now());
        let absent = (0..self.machine.disk_count()).any(|n| self.machine.disk(n).is_gone());
        let force = force && well && !absent;
        let cell = life.cell.clone();
        let then = |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: flash log dropped"),
            Err(error) => run.judge("drop flash log", &error),
        };
        let pending = if force { Pending::GivingUp } else { Pending::Caching };
        self.command(life, pending, async move { cell.drop_flash_log(force).await }, then).await;
    }

    pub(super) async fn set_redo(self: &Arc<Self>, life: &Life, place: u64, redo: Option<FlashLogMode>) {
        let Some((_, name)) = self.target(place) else { return };
        if self.plan.setup.redo.is_none() {
            return;
        }
        let cell = life.cell.clone();
        let then = |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: use of the flash log changed"),
            Err(error) => run.judge("change the use of the flash log", &error),
        };
        let work = async move {
            match redo {
                Some(mode) => {
                    cell.set_flash_log_mode(&name, mode).await?;
                    cell.set_purpose(&name, Purpose::Redo).await
                }
                None => cell.set_purpose(&name, Purpose::Data).await,
            }
        };
        self.command(life, Pending::Caching, work, then).await;
    }

    /// What a life has done with redo.
    pub(super) fn note_redo(&self, life: &Life, crash: bool) {
        let cell = &life.cell;
        let mut kept_back = 0;
        for disk in cell.grid_disks() {
            let counters = &disk.redo_counters;
            self.situations.hit_times("redo: flash first", counters.flash_first.get());
            self.situations.hit_times("redo: disk first", counters.disk_first.get());
            for why in flashlog::Skip::ALL {
                let row = match why {
                    flashlog::Skip::Busy => "redo: flash skipped: busy",
                    flashlog::Skip::Large => "redo: flash skipped: large",
                    flashlog::Skip::NoBuffer => "redo: flash skipped: no buffer",
                    flashlog::Skip::NoFlashDisk => "redo: flash skipped: no flash disk",
                    flashlog::Skip::DisabledGridDisk => "redo: flash skipped: disabled",
                    flashlog::Skip::LogOnFlash => "redo: flash skipped: log on flash",
                    flashlog::Skip::IormPlan => "redo: flash skipped: by the I/O plan",
                };
                self.situations.hit_times(row, counters.skipped(why));
            }
            let skips: u64 = flashlog::Skip::ALL.iter().map(|why| counters.skipped(*why)).sum();
            let firsts = counters.disk_first.get() + counters.flash_first.get();
            if firsts + skips != counters.redo_writes.get() {
                let (name, all) = (disk.name(), counters.redo_writes.get());
                self.violate("I6", format!("grid disk {name}: {firsts} firsts and {skips} skips of {all} redo writes"));
            }
            if let Some(redo) = disk.redo() {
                kept_back += redo.saved_bytes();
                if crash && !redo.is_settled() {
                    self.situations.hit("redo: crash with redo that the disk does not have durably");
                }
            }
        }
        if kept_back > 0 {
            self.situations.hit("redo: life ends with redo that the disk refuses");
        }
        if cell.alerts().iter().any(|alert| alert.starts_with("flash log: ")) {
            self.situations.hit("redo: a ring is given up while serving");
        }
        if cell.flash_log().is_some_and(|log| log.kept_records() > 0) {
            self.situations.hit("redo: records kept for a disk that is absent or waits");
        }
    }
}
