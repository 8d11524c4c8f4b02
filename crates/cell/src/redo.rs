//! The flash log in the cell: which grid disks it serves, and what the labels of their disks say of its rings (I5).
//!
//! Before redo of a disk may be acknowledged by flash alone, the disk's label names the rings it may be in; they are taken out
//! when a ring has failed and nothing depends on it, and at a clean stop. What counts of a ring besides is decided by the life
//! of the log: the label says up to which life everything is on the disk.
//!
//! Never replays while a grid disk is served; never lets a disk be taken for whole that is not.

mod rings;

use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::flash_log::LogAtWork;
use celldisk::{DeviceId, FlashLogMode, Purpose, Role};
use device::sync::lock;
use flashlog::{FlashLog, Mode, RedoDisk, RedoDiskConfig, Skip};
use std::sync::Arc;

/// The mode of the flash log that a catalog's mode stands for.
pub(crate) fn mode_of(mode: FlashLogMode) -> Mode {
    match mode {
        FlashLogMode::Auto => Mode::Auto,
        FlashLogMode::Race => Mode::Race,
        FlashLogMode::Hedge => Mode::Hedge,
        FlashLogMode::Flash => Mode::Flash,
        FlashLogMode::Off => Mode::Off,
    }
}

impl Cell {
    pub(crate) fn log_at_work(&self) -> Option<LogAtWork> {
        lock(&self.state).flash_log.clone()
    }

    /// The flash log, if it is at work.
    #[must_use]
    pub fn flash_log(&self) -> Option<Arc<FlashLog>> {
        self.log_at_work().map(|at_work| at_work.log)
    }

    /// The cell disk identities of the flash log's rings, in order.
    #[must_use]
    pub fn flash_log_devices(&self) -> Vec<DeviceId> {
        self.log_at_work().map_or_else(Vec::new, |at_work| at_work.devices.to_vec())
    }

    /// Why flash takes nothing of a redo grid disk, if so.
    fn redo_barred(&self, at_work: &LogAtWork, record: &celldisk::GridDisk) -> Option<Skip> {
        let on_flash = self.store().cell_disk(record.cell_disk).is_some_and(|home| home.role() == Role::Flash);
        if record.is_write_back() || on_flash {
            return Some(Skip::LogOnFlash);
        }
        (!at_work.is_home(record.cell_disk)).then_some(Skip::NoFlashDisk)
    }

    /// Put the flash log before a grid disk of purpose redo, if there is one, and it is not. Where requests are under way, a
    /// flush counts only once they have ended and the disk is flushed.
    pub(crate) fn attach_redo(&self, disk: &GridDisk, record: &celldisk::GridDisk) -> Option<Arc<RedoDisk>> {
        let at_work = self.log_at_work()?;
        if record.purpose != Purpose::Redo || disk.port.redo().is_some() {
            return None;
        }
        let home = self.store().cell_disk(record.cell_disk)?;
        let redo = at_work.log.attach(RedoDiskConfig {
            id: record.id.0,
            device: disk.port.below().clone(),
            mode: mode_of(record.flash_log_mode),
            barred: self.redo_barred(&at_work, record),
            void: at_work.void(&home.label()),
            is_flushed: false,
            counters: disk.redo_counters.clone(),
        });
        disk.port.set(Some(redo.clone()));
        Some(redo)
    }

    /// The same with requests under way. Its disk's label has been told.
    pub(crate) async fn attach_redo_online(&self, disk: &Arc<GridDisk>, record: &celldisk::GridDisk) {
        if let Some(redo) = self.attach_redo(disk, record) {
            // Whatever went past it ends.
            disk.drain().await;
            redo.took_over();
        }
    }

    /// Use the flash log as a grid disk's record says.
    pub(crate) fn tune_redo(&self, disk: &GridDisk, record: &celldisk::GridDisk) {
        let (Some(at_work), Some(redo)) = (self.log_at_work(), disk.port.redo()) else { return };
        redo.set_mode(mode_of(record.flash_log_mode));
        redo.bar(self.redo_barred(&at_work, record));
    }

    /// Give the disk everything that the flash log holds of a grid disk, and see to it that nothing of it is ever replayed; the
    /// flash log takes nothing of it any more until [`Cell::tune_redo`]. False, and used as before: the disk does not take it.
    pub(crate) async fn settle_redo(&self, disk: &Arc<GridDisk>, why: Skip) -> bool {
        let settled = self.settle_and_bar(disk, why).await;
        if let Some(record) = self.record(disk).filter(|_| !settled) {
            self.tune_redo(disk, &record);
        }
        settled
    }

    /// The same, but that the flash log takes nothing of it in any case.
    pub(crate) async fn settle_and_bar(&self, disk: &Arc<GridDisk>, why: Skip) -> bool {
        let (Some(at_work), Some(redo)) = (self.log_at_work(), disk.port.redo()) else { return true };
        let Some(record) = self.record(disk) else { return true };
        redo.bar(Some(why));
        // Changes that had begun may still be given to it.
        disk.drain().await;
        redo.settle().await && self.begin_redo_anew(&at_work, record.cell_disk).await
    }

    /// Take the flash log away from a grid disk, of which it holds nothing any more.
    pub(crate) async fn detach_redo(&self, disk: &GridDisk) {
        if let Some(redo) = disk.port.redo() {
            redo.leaves();
        }
        disk.port.set(None);
        // Requests that went through it end there.
        disk.drain().await;
        if let Some(at_work) = self.log_at_work() {
            at_work.log.detach(disk.id());
        }
    }
}
