//! The rings while the cell runs: letting redo pend, going on without a ring that has failed, and beginning anew where a ring
//! cannot release what it holds.
//!
//! Each step is durable in the disk's label before anybody relies on it. A disk whose label cannot be written keeps nobody
//! waiting but those who write to it.

use crate::base::work::RETRY_AFTER;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::flash_log::{LogAtWork, is_paired};
use crate::lifecycle::replay::void_redo;
use celldisk::{DeviceId, GridDiskId, Role};
use device::sync::lock;
use flashlog::{LogConfig, RedoDisk};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl Cell {
    pub(crate) fn log_config(&self, outlier_ms: u32) -> LogConfig {
        LogConfig {
            hard_limit: self.config.cache.hard_limit,
            outlier: Duration::from_millis(u64::from(outlier_ms)),
            told_of_losses: true,
            ..self.config.redo.clone()
        }
    }

    /// Watch over a flash log from here on.
    pub(crate) fn start_flash_log(self: &Arc<Self>, at_work: LogAtWork) {
        for (ring, flash) in at_work.devices.iter().enumerate() {
            let listeners = lock(&self.losses).get(flash).cloned();
            if let Some(listeners) = listeners {
                listeners.add_ring(&at_work.log, ring);
            }
        }
        lock(&self.state).flash_log = Some(at_work.clone());
        let (cell, failing) = (self.clone(), at_work.clone());
        self.world.spawn.spawn(Box::pin(async move { cell.run_ring_failures(failing).await }));
        let cell = self.clone();
        self.world.spawn.spawn(Box::pin(async move { cell.run_pleas(at_work).await }));
    }

    /// The redo disks of a cell disk's grid disks, and those that are leaving the log and still have requests.
    pub(crate) fn redo_on(&self, home: DeviceId) -> Vec<Arc<RedoDisk>> {
        let mut all: Vec<_> = self.grid_disks_on(home).iter().filter_map(|disk| disk.port.redo()).collect();
        let catalog = self.store().catalog();
        let here = |redo: &Arc<RedoDisk>| {
            catalog.grid_disks.get(&GridDiskId(redo.id())).is_some_and(|record| record.cell_disk == home)
        };
        let leaving = self.log_at_work().into_iter().flat_map(|at_work| at_work.log.disks()).filter(here);
        for redo in leaving {
            if !all.iter().any(|one| Arc::ptr_eq(one, &redo)) {
                all.push(redo);
            }
        }
        all
    }

    /// Let a disk's label say that redo may be in the rings at work; false: it may not be, and is not.
    pub(crate) async fn let_redo_pend(&self, home: DeviceId) -> bool {
        let Some(at_work) = self.log_at_work() else { return false };
        if at_work.is_home(home) {
            return true;
        }
        let Some(disk) = self.store().cell_disk(home).filter(|disk| disk.role() == Role::Disk) else { return false };
        let waits = lock(&self.state).redo_waits.contains(&home);
        let label = disk.label();
        let live = at_work.live();
        let paired = live.iter().all(|flash| is_paired(self.store(), &label, *flash));
        if waits || label.has_redo_pending() || live.is_empty() || !paired {
            return false;
        }
        let life = at_work.log.life();
        let written = disk.update_label(|label| {
            for flash in &live {
                if let Some(member) = label.flash_members.get_mut(flash) {
                    member.redo_pending = Some(at_work.id);
                }
            }
            label.ring_generation_dead = label.ring_generation_dead.max(life - 1);
            label.ring_generation = label.ring_generation.max(life);
        });
        if written.await.is_err() {
            return false;
        }
        lock(&at_work.homes).insert(home);
        true
    }

    /// See to it that nothing the rings hold of a disk by now is ever replayed: what comes is of another life. Whether that is so
    /// now: not where the disk refuses what they hold.
    pub(crate) async fn begin_redo_anew(&self, at_work: &LogAtWork, home: DeviceId) -> bool {
        if !at_work.is_home(home) {
            return true;
        }
        let Some(disk) = self.store().cell_disk(home) else { return false };
        let before = at_work.log.next_life();
        loop {
            for redo in self.redo_on(home) {
                if !redo.is_safe_without_life(before).await {
                    return false;
                }
            }
            // All of them in one go: none keeps its clients waiting while another waits.
            let on_it = self.redo_on(home);
            if on_it.iter().all(|redo| redo.leaves_life(before)) {
                break;
            }
            on_it.iter().for_each(|redo| redo.life_stays(before));
        }
        let written = disk.update_label(|label| {
            label.ring_generation_dead = label.ring_generation_dead.max(before);
            label.ring_generation = label.ring_generation.max(before + 1);
        });
        if written.await.is_err() {
            for redo in self.redo_on(home) {
                redo.life_stays(before);
                redo.label_refuses();
            }
            return false;
        }
        self.redo_on(home).iter().for_each(|redo| redo.life_is_void(before));
        true
    }

    /// Grid disks whose writes wait for releases that do not come begin anew, until the log has stopped.
    async fn run_pleas(self: Arc<Self>, at_work: LogAtWork) {
        while let Some(id) = at_work.log.next_plea().await {
            let catalog = self.store().catalog();
            let Some(record) = catalog.grid_disks.get(&GridDiskId(id)) else { continue };
            let (cell, at_work, home) = (self.clone(), at_work.clone(), record.cell_disk);
            // Each disk by itself: one that stalls keeps nobody else waiting.
            if lock(&self.state).pleading.insert(home) {
                self.world.spawn.spawn(Box::pin(async move {
                    cell.grant_plea(&at_work, home).await;
                    lock(&cell.state).pleading.remove(&home);
                }));
            }
        }
    }

    /// Have the grid disks of a disk begin anew, however long it takes to have everything. As long as it refuses what flash has of one of
    /// them, nobody waits for that.
    async fn grant_plea(&self, at_work: &LogAtWork, home: DeviceId) {
        while !self.begin_redo_anew(at_work, home).await && !at_work.log.is_stopped() {
            let on_it = self.redo_on(home);
            if on_it.iter().any(|redo| redo.disk_refuses()) {
                on_it.iter().for_each(|redo| redo.label_refuses());
            }
            self.world.clock.sleep(RETRY_AFTER).await;
        }
    }

    /// Go on without rings as they fail, until the log has stopped.
    async fn run_ring_failures(self: Arc<Self>, at_work: LogAtWork) {
        let mut known = BTreeSet::new();
        while let Some(ring) = at_work.log.next_failure(&known).await {
            known.insert(ring);
            let why = at_work.log.failures()[ring].clone().unwrap_or_default();
            self.alert(format!("flash log: flash {} is given up: {why}", at_work.devices[ring]));
            let homes: Vec<DeviceId> =
                self.store().cell_disks().iter().filter(|d| d.role() == Role::Disk).map(|d| d.id()).collect();
            let (cell, at_work) = (self.clone(), at_work.clone());
            self.world.spawn.spawn(Box::pin(async move {
                join_all(homes.iter().map(|home| cell.take_ring_from(&at_work, ring, *home))).await;
            }));
        }
    }

    /// Let a disk's label say that nothing in a ring counts, once nothing depends on it. As long as the disk refuses what was on that
    /// ring, nobody waits for that.
    async fn take_ring_from(&self, at_work: &LogAtWork, ring: usize, home: DeviceId) {
        let flash = at_work.devices[ring];
        let Some(disk) = self.store().cell_disk(home) else { return };
        if lock(&self.state).redo_waits.contains(&home) {
            // What it waits for may still be had from that flash at the next start.
            return;
        }
        let mut told = false;
        // Also while the cell is stopping: requests that it waits for may wait for this.
        while !at_work.log.is_stopped() {
            let on_it = self.redo_on(home);
            let mut safe = true;
            for redo in &on_it {
                safe &= redo.is_safe_without(ring).await;
            }
            if !safe {
                on_it.iter().for_each(|redo| redo.ring_stays(ring));
                self.world.clock.sleep(RETRY_AFTER).await;
                continue;
            }
            let on_it = self.redo_on(home);
            if !on_it.iter().all(|redo| redo.leaves_ring(ring)) {
                on_it.iter().for_each(|redo| redo.ring_leaves_not(ring));
                continue;
            }
            let written = disk.update_label(|label| {
                if let Some(member) = label.flash_members.get_mut(&flash).filter(|m| m.redo_pending == Some(at_work.id))
                {
                    member.redo_pending = None;
                }
            });
            let Err(why) = written.await else {
                self.redo_on(home).iter().for_each(|redo| redo.ring_is_void(ring));
                return;
            };
            self.redo_on(home).iter().for_each(|redo| redo.ring_stays(ring));
            if !std::mem::replace(&mut told, true) {
                self.alert(format!(
                    "cell disk {}: cannot record that the flash log has left flash {flash}: {why}",
                    disk.name()
                ));
            }
            self.world.clock.sleep(RETRY_AFTER).await;
        }
    }

    /// At a stop: the disks have everything of their redo, and their labels say so. False: one does not take it, or its label.
    pub(crate) async fn stop_redo(&self) -> bool {
        let Some(at_work) = self.log_at_work() else { return true };
        let mut good = true;
        let homes: Vec<DeviceId> = lock(&at_work.homes).iter().copied().collect();
        for home in homes {
            let settled = join_all(self.redo_on(home).into_iter().map(|redo| async move { redo.settle().await })).await;
            let settled = settled.into_iter().all(|settled| settled);
            let life = at_work.log.life();
            good &= settled;
            if let Some(disk) = self.store().cell_disk(home).filter(|_| settled) {
                good &= disk.update_label(|label| void_redo(label, life)).await.is_ok();
            }
        }
        at_work.log.stop();
        good
    }
}
