//! What befalls the machine: while it runs, and between two lives.
//!
//! Devices are changed for others only while nobody runs, as pulling and plugging real ones would: a device that
//! vanished from under a process stays away from it. A snapshot is put back only when open stamps have been renewed since it
//! was taken, by an opening or, of flash, in service: a stamp cannot tell two moments between two renewals apart.

use super::canary::HostSabotage;
use super::plan::{Between, Mishap};
use super::stage::{Life, Run};
use crate::disk::{FaultKind, Snapshot};
use crate::executor::PausedClock;
use crate::model::Model;
use cell::{Cell, HotLists};
use celldisk::{Catalog, Extent, GridDiskId};
use device::sync::lock;
use device::{FailKind, Spawn};
use flashcache::format::Owner;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Where the grid disks of one disk lie.
type Layout = Vec<(GridDiskId, Vec<Extent>, u64)>;

/// A disk's content with what its models were then.
#[derive(Clone)]
struct KeptDisk {
    snapshot: Snapshot,
    opens: u64,
    layout: Layout,
    models: BTreeMap<u64, Model>,
}

/// Openings that succeeded, with every device that is waited for; and renewals in the life after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Renewals {
    pub(super) opens: u64,
    pub(super) in_service: u64,
}

/// What is remembered of former lives.
#[derive(Default)]
pub(super) struct History {
    /// Openings that succeeded, with every device that is waited for.
    pub(super) opens: u64,
    /// Renewals in service that ended in the last life.
    renewed: u64,
    kept_disks: BTreeMap<usize, KeptDisk>,
    /// The catalog as the last life left it.
    pub(super) catalog: Option<Arc<Catalog>>,
    /// At the end of the last life every disk had it.
    pub(super) all_in_service: bool,
    /// Some flash did not.
    flash_left_out: bool,
    /// What the next opening has to notice.
    pub(super) disk_was_restored: bool,
    pub(super) flash_was_restored: bool,
    /// Some device has become larger; the next opening has to notice.
    pub(super) grown: bool,
    /// What was hot on flash that is there or has gone.
    pub(super) hot: HotLists,
}

impl History {
    /// What a life left behind.
    pub(super) fn remember(&mut self, cell: &Cell) {
        let store = cell.store();
        // Of a life too short to have any, those of the one before: late, as a file may be.
        self.hot.extend(cell.hot_lists());
        let left_out = |status: &celldisk::MemberStatus| match status {
            celldisk::MemberStatus::InService(_) => false,
            celldisk::MemberStatus::OutOfService(disk, _) => disk.role() == celldisk::Role::Disk,
            celldisk::MemberStatus::Missing => true,
        };
        let catalog = store.catalog();
        let is_flash = |id| catalog.members.get(id).is_some_and(|member| member.role == celldisk::Role::Flash);
        let out = |status: &celldisk::MemberStatus| !matches!(status, celldisk::MemberStatus::InService(_));
        self.flash_left_out = store.members().iter().any(|(id, status)| is_flash(id) && out(status));
        self.renewed = cell.stamp_renewals().1;
        self.catalog = Some(catalog);
        self.all_in_service = !store.members().values().any(left_out);
    }

    /// A disk is not put back to what it was before now.
    pub(super) fn forget_snapshots(&mut self, home: usize) {
        self.kept_disks.remove(&home);
    }
}

fn layout(catalog: &Catalog, home: usize) -> Layout {
    let name = super::admin::disk_name(home);
    let Some((device_id, _)) = catalog.member_named(&name) else { return Layout::new() };
    let mine = catalog.grid_disks.values().filter(|g| g.cell_disk == device_id);
    mine.map(|g| (g.id, g.extents.clone(), g.size_bytes)).collect()
}

impl Run {
    fn flash_place(&self, flash: u64) -> Option<usize> {
        let count = self.machine.flash_count() as u64;
        self.plan.setup.victim.or_else(|| (count > 0).then(|| (flash % count) as usize))
    }

    fn disk_place(&self, disk: u64) -> usize {
        (disk % self.machine.disk_count() as u64) as usize
    }

    /// Something may cost what is dirty: anything where there is one copy of it, harm to both devices where there are two,
    /// or a disk that goes back in time.
    fn note_hurt(&self, hurts: bool, flash: Option<usize>) {
        let mut book = lock(&self.book);
        book.hurt_flashes.extend(flash.filter(|_| hurts));
        let costs = hurts && (!self.plan.setup.mirrored || book.hurt_flashes.len() > 1);
        book.flash_hurt |= costs;
        book.flash_ill |= costs;
    }

    /// The only copy of something may be gone.
    fn note_cost(&self) {
        let mut book = lock(&self.book);
        (book.flash_hurt, book.flash_ill) = (true, true);
    }

    /// Something happens to a device under a running process.
    pub(super) fn mishap(self: &Arc<Self>, life: &Life, mishap: &Mishap) {
        if self.life().is_none_or(|now| now.number != life.number) {
            return;
        }
        let harms_disk = matches!(
            mishap,
            Mishap::DiskFault { .. } | Mishap::DiskFull { .. } | Mishap::DiskStall { .. } | Mishap::DiskVanishes { .. }
        );
        if harms_disk && lock(&self.admin).pending == Some(super::admin::Pending::GivingUp) {
            return;
        }
        self.handle.trace().text("mishap", format!("{mishap:?}"));
        let harmless = matches!(
            mishap,
            Mishap::FlashSnapshot { .. }
                | Mishap::FlashFull { .. }
                | Mishap::DiskFull { .. }
                | Mishap::ClockStep { .. }
                | Mishap::DiskFault { .. }
                | Mishap::DiskHealed { .. }
                | Mishap::DiskStall { .. }
                | Mishap::DiskSnapshot { .. }
                | Mishap::Pause { .. }
                | Mishap::Partition { .. }
                | Mishap::HostDies { .. }
        );
        let hurt = match mishap {
            Mishap::FlashFault { flash, .. }
            | Mishap::FlashRot { flash, .. }
            | Mishap::FlashStall { flash, .. }
            | Mishap::FlashVanishes { flash } => self.flash_place(*flash),
            _ => None,
        };
        self.note_hurt(!harmless, hurt);
        match *mishap {
            Mishap::FlashFault { flash, kind, times, fail } => {
                if let Some(n) = self.flash_place(flash) {
                    self.machine.flash_fault(n, kind, times, fail);
                }
            }
            Mishap::FlashRot { flash, pick } => self.flash_rot(life, flash, pick),
            Mishap::FlashStall { flash, time } => {
                if let Some(n) = self.flash_place(flash) {
                    self.machine.flash_stall(n, time);
                }
            }
            Mishap::FlashVanishes { flash } => {
                if let Some(n) = self.flash_place(flash) {
                    self.machine.flash_vanishes(n);
                    self.situations.hit("flash vanished while serving");
                }
            }
            Mishap::FlashSnapshot { flash } => {
                if let Some(n) = self.flash_place(flash) {
                    // One that has begun may have reached this flash.
                    let in_service = life.cell.stamp_renewals().0;
                    self.machine.keep_flash(n, Renewals { opens: lock(&self.history).opens, in_service });
                }
            }
            Mishap::DiskFault { disk, kind, times } => {
                self.machine.disk_fault(self.disk_place(disk), kind, times, FailKind::Media);
            }
            Mishap::DiskHealed { disk } => self.machine.disk_healed(self.disk_place(disk), self.now()),
            Mishap::DiskStall { disk, time } => self.machine.disk_stall(self.disk_place(disk), time, self.now()),
            Mishap::DiskVanishes { disk } => {
                // The only disk of a cell takes everything with it: nothing left to see.
                if self.machine.disk_count() > 1 {
                    self.machine.disk_vanishes(self.disk_place(disk));
                    self.situations.hit("disk vanished while serving");
                }
            }
            Mishap::DiskSnapshot { disk } => self.keep_disk(life, self.disk_place(disk)),
            Mishap::FlashFull { flash, time } => {
                if let Some(n) = self.flash_place(flash) {
                    self.situations.hit("no room below a flash device");
                    self.machine.flash_fault(n, FaultKind::WriteFails, u32::MAX, FailKind::NoSpace);
                    self.later(time, move |run| run.machine.flash_has_room(n));
                }
            }
            Mishap::DiskFull { disk, time } => {
                let n = self.disk_place(disk);
                self.situations.hit("no room below a disk");
                self.machine.disk_fault(n, FaultKind::WriteFails, u32::MAX, FailKind::NoSpace);
                self.later(time, move |run| run.machine.disk_healed(n, run.now()));
            }
            Mishap::ClockStep { by, forward } => {
                self.situations.hit(if forward {
                    "the wall clock is set forward"
                } else {
                    "the wall clock is set back"
                });
                self.handle.step_wall(by, forward);
            }
            Mishap::Pause { time, host } => self.pause(life, time, host),
            Mishap::Partition { host, time, breaks } => self.partition(host, time, breaks),
            Mishap::HostDies { host } => self.host_dies(host),
        }
    }

    /// Do something to the machine after `time`, whatever has become of the cell.
    pub(super) fn later(self: &Arc<Self>, time: Duration, action: impl FnOnce(&Run) + Send + 'static) {
        let run = self.clone();
        self.root.spawn(Box::pin(async move {
            run.sleep(time).await;
            action(&run);
        }));
    }

    fn pause(self: &Arc<Self>, life: &Life, time: Duration, host: bool) {
        self.situations.hit(if host { "the host is paused" } else { "the process is paused" });
        self.machine.paused(time, host, self.now());
        let (process, run) = (life.process.clone(), self.clone());
        process.pause(match self.sabotage {
            Some(HostSabotage::PauseCounts) => PausedClock::GoesOn,
            None => PausedClock::StandsStill,
        });
        self.root.spawn(Box::pin(async move {
            run.sleep(time).await;
            // A pause of the host may be longer.
            let left = run.machine.host_pause_left(run.now());
            if left > Duration::ZERO {
                run.sleep(left).await;
            }
            process.resume();
        }));
    }

    fn flash_rot(&self, life: &Life, flash: u64, pick: u64) {
        let Some(n) = self.flash_place(flash) else { return };
        let store = life.cell.store();
        let catalog = store.catalog();
        let Some(cache) = &catalog.flash_cache else { return };
        // One that took the place of another has a name of its own.
        let (name, later) = (format!("FD{n}"), format!("FD{n}r"));
        let is_it = |member: &celldisk::Member| member.name == name || member.name.starts_with(&later);
        let Some((&id, _)) = catalog.members.iter().find(|(id, m)| is_it(m) && cache.regions.contains_key(id)) else {
            return;
        };
        let (Some(disk), Ok(slice)) = (store.cell_disk(id), store.flash_cache_slice(id)) else { return };
        let Some(area) = slice.physical(0) else { return };
        let owner = Owner { cell_id: catalog.cell_id.0, device_id: id.0, era: disk.label().cache_era };
        let segments = (area, u64::from(cache.segment_bytes));
        if pick.is_multiple_of(2) && self.machine.rot_first_page(n, &owner, segments, pick) {
            self.situations.hit("rot of the first page of a segment");
            return;
        }
        if self.machine.rot_data(n, &owner, segments, self.plan.setup.write_back, pick) {
            self.situations.hit("rot of cached data");
        }
    }

    fn keep_disk(&self, life: &Life, home: usize) {
        let device = self.machine.disk(home);
        if lock(&self.admin).pending.is_some() || device.is_gone() {
            return;
        }
        let catalog = life.cell.store().catalog();
        let book = lock(&self.book);
        let models: BTreeMap<u64, Model> =
            book.disks.iter().filter(|(_, d)| d.home == home).map(|(&id, d)| (id, d.model.clone())).collect();
        let mut history = lock(&self.history);
        let kept =
            KeptDisk { snapshot: device.snapshot(), opens: history.opens, layout: layout(&catalog, home), models };
        history.kept_disks.insert(home, kept);
    }

    /// Nobody runs: heal, then do what the plan says.
    pub(super) fn between(&self, steps: &[Between]) {
        let stays_bad = steps.contains(&Between::FlashStaysBad);
        let bad = self.machine.heal_all(stays_bad);
        if bad > 0 {
            self.situations.hit("flash with bad sectors at a start");
        } else {
            lock(&self.book).flash_ill = false;
        }
        let last = self.machine.disk_count() - 1;
        // Another disk has to have every change of the catalog, or it goes back in time.
        let absent = steps.contains(&Between::DiskAbsent) && last > 0 && lock(&self.history).all_in_service;
        for n in 0..=last {
            if !(absent && n == last) {
                self.machine.disk_back(n);
            }
        }
        for step in steps {
            self.handle.trace().text("between", format!("{step:?}"));
            let harmless = matches!(
                step,
                Between::FlashBack { .. }
                    | Between::DiskAbsent
                    | Between::DiskBack
                    | Between::DiskStale { .. }
                    | Between::DeviceGrows { .. }
                    | Between::LabelRot { .. }
                    | Between::FlashStaysBad
                    | Between::CheckpointRot { .. }
            );
            let hurt = match step {
                Between::FlashAbsent { flash }
                | Between::FlashBlank { flash }
                | Between::FlashStale { flash }
                | Between::FlashFault { flash, .. } => self.flash_place(*flash),
                _ => None,
            };
            self.note_hurt(!harmless, hurt);
            match *step {
                Between::FlashAbsent { flash } => {
                    if let Some(n) = self.flash_place(flash) {
                        self.machine.flash_vanishes(n);
                        self.situations.hit("flash absent at start");
                    }
                }
                Between::AllFlashAbsent => {
                    for n in 0..self.machine.flash_count() {
                        self.note_hurt(true, Some(n));
                        self.machine.flash_vanishes(n);
                    }
                    self.situations.hit("all flash absent at start");
                    for disk in lock(&self.book).disks.values_mut().filter(|disk| disk.in_order) {
                        disk.lost_at.get_or_insert(disk.model.last_end());
                    }
                }
                Between::FlashBack { .. } => {
                    for n in 0..self.machine.flash_count() {
                        if self.machine.flash(n).is_gone() {
                            self.machine.flash_back(n);
                            self.situations.hit("flash back after an absence");
                        }
                    }
                }
                Between::FlashBlank { flash } => {
                    if let Some(n) = self.flash_place(flash) {
                        self.machine.flash(n).blank();
                        self.situations.hit("flash blank at start");
                    }
                }
                Between::FlashStale { flash } => {
                    // Nobody can tell which of the two was put back in time.
                    self.note_cost();
                    self.flash_stale(flash);
                }
                Between::FlashSwap { flash } => {
                    let (Some(a), Some(b)) = (self.flash_place(flash), self.flash_place(flash + 1)) else { continue };
                    if a != b && self.machine.flash(a).size_bytes() == self.machine.flash(b).size_bytes() {
                        self.note_hurt(true, Some(a));
                        self.note_hurt(true, Some(b));
                        crate::disk::SimDevice::swap(&self.machine.flash(a), &self.machine.flash(b));
                        self.situations.hit("flash devices change places");
                    }
                }
                Between::DiskAbsent => {
                    if absent {
                        self.machine.disk_vanishes(last);
                        self.situations.hit("disk absent at start");
                    }
                }
                Between::DiskBack | Between::FlashStaysBad => {}
                Between::DiskStale { disk } => {
                    self.note_cost();
                    self.disk_stale(self.disk_place(disk));
                }
                Between::FlashFault { flash, kind, ppm } => {
                    if let Some(n) = self.flash_place(flash) {
                        // With the last label unreadable, the one before counts: as if it had been put back in time.
                        self.note_cost();
                        self.machine.flash_fault_at_open(n, kind, ppm);
                    }
                }
                Between::DeviceGrows { device, by_bytes } => {
                    self.machine.grow(device, by_bytes);
                    lock(&self.history).grown = true;
                }
                Between::LabelRot { slot } => {
                    let devices = self.machine.label_rot(slot);
                    self.situations.hit_times("two copies of a label rot", devices);
                }
                Between::CheckpointRot { flash, pick } => {
                    if let Some(n) = self.flash_place(flash)
                        && self.machine.checkpoint_rot(n, pick)
                    {
                        self.situations.hit("rot of an index checkpoint");
                    }
                }
            }
        }
    }

    fn flash_stale(&self, flash: u64) {
        let Some(n) = self.flash_place(flash) else { return };
        let Some(kept) = self.machine.kept_flash(n) else { return };
        let now = {
            let history = lock(&self.history);
            Renewals { opens: history.opens, in_service: history.renewed }
        };
        if kept.renewals < now {
            if kept.renewals.opens == now.opens {
                self.situations.hit("flash restored from an old snapshot of the same life");
            }
            let flash = self.machine.flash(n);
            flash.restore(&kept.snapshot);
            // What was wrong with it then is mended, as with all others at this moment: nobody counts it as harmed.
            flash.repair(0..flash.size_bytes());
            lock(&self.history).flash_was_restored = true;
            self.situations.hit("flash restored from an old snapshot");
        }
    }

    fn disk_stale(&self, home: usize) {
        let mut history = lock(&self.history);
        let Some(kept) = history.kept_disks.get(&home).cloned() else { return };
        let Some(catalog) = history.catalog.clone() else { return };
        let device = self.machine.disk(home);
        // Some other device must have every change, or the catalog goes back in time as well, as with a single disk: to a moment of
        // the disk's, unless flash that was left out has one of its own.
        let left_out = if self.machine.disk_count() == 1 { history.flash_left_out } else { !history.all_in_service };
        let changing = lock(&self.admin).pending.is_some() || left_out;
        if kept.opens >= history.opens || changing || device.is_gone() || layout(&catalog, home) != kept.layout {
            return;
        }
        device.restore(&kept.snapshot);
        device.repair(0..device.size_bytes());
        history.disk_was_restored = true;
        // Snapshots of the time that is given up belong to no past of what follows.
        let since = kept.opens;
        history.kept_disks.retain(|_, k| k.opens <= since);
        drop(history);
        self.situations.hit("disk restored from an old snapshot");
        let mut book = lock(&self.book);
        if self.machine.disk_count() == 1 {
            book.names_loose = true;
        }
        for (id, model) in kept.models {
            if let Some(disk) = book.disks.get_mut(&id) {
                let abandoned = std::mem::replace(&mut disk.model, Model::new(0, 512));
                disk.model = model.back_from(&abandoned);
                disk.limit = disk.model.size_bytes();
            }
        }
    }
}
