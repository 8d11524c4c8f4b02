//! The flash log at a start: who is believed, what is replayed, and which disks have to wait.
//!
//! A ring is believed for a disk when the disk's label names it, all that was durable there can be read, and the two were left
//! together. With redo on several rings, one may be missing: every record is on two. A disk whose redo cannot be had waits
//! with all of its redo grid disks; nothing of them is served, and what the rings hold of them stays. So does what they hold of
//! disks that are not there.

use crate::disk::error::CellError;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::flash_log::{LogAtWork, is_paired};
use crate::lifecycle::open::OpenReport;
use celldisk::{CellDisk, CellStore, DeviceId, GridDiskId, Label, Role, Stamp};
use device::Class;
use device::sync::lock;
use flashlog::{LogReader, Owner, ReplayTarget, RingDevice, RingFound, Sabotage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A flash log that has been read and replayed, and has not begun its next life.
pub(crate) struct LogOpening {
    id: Stamp,
    reader: LogReader,
    /// By ring of the reader.
    devices: Vec<DeviceId>,
    life: u64,
    /// Disks that are not there or wait: of these lives and later ones their redo stays in the rings.
    kept: BTreeMap<GridDiskId, u64>,
    /// Disks that have to wait, and grid disks nobody may read or write, with the reason.
    waits: BTreeSet<DeviceId>,
    offline: BTreeMap<GridDiskId, String>,
}

/// Redo grid disks whose redo the flash log takes.
fn redo_grid_disks(store: &CellStore, home: DeviceId) -> Vec<celldisk::GridDisk> {
    let catalog = store.catalog();
    let here = |g: &&celldisk::GridDisk| g.cell_disk == home && g.is_logged();
    catalog.grid_disks.values().filter(here).cloned().collect()
}

/// Grid disks that are none of the flash log's any more, and may lack redo that it had of them.
fn redo_behind(store: &CellStore, home: DeviceId) -> Vec<celldisk::GridDisk> {
    let catalog = store.catalog();
    catalog.grid_disks.values().filter(|g| g.cell_disk == home && g.redo_behind).cloned().collect()
}

fn disks(store: &CellStore) -> Vec<Arc<CellDisk>> {
    store.cell_disks().into_iter().filter(|disk| disk.role() == Role::Disk).collect()
}

/// Pairs (disk, flash) where the disk waits for redo that the flash may hold, and the two were not left together.
pub(crate) fn strange_redo_pairs(store: &CellStore) -> BTreeSet<(DeviceId, DeviceId)> {
    let mut strange = BTreeSet::new();
    for disk in disks(store) {
        let label = disk.label();
        let pending = label.flash_members.iter().filter(|(_, member)| member.redo_pending.is_some()).map(|(id, _)| *id);
        strange.extend(pending.filter(|id| !is_paired(store, &label, *id)).map(|id| (disk.id(), id)));
    }
    strange
}

/// Read the rings of the catalog's flash log and replay them to the disks that are there.
///
/// # Errors
/// A label cannot be written.
pub(crate) async fn replay_redo(
    store: &Arc<CellStore>,
    sabotage: Option<Sabotage>,
    report: &mut OpenReport,
) -> Result<LogOpening, CellError> {
    let catalog = store.catalog();
    let id = catalog.flash_log.as_ref().map_or(Stamp::NONE, |log| log.id);
    let (mut devices, mut rings) = (Vec::new(), Vec::new());
    for flash in catalog.flash_log.iter().flat_map(|log| log.regions.keys()) {
        let Some(disk) = store.cell_disk(*flash).filter(|disk| disk.label().class == Class::Durable) else { continue };
        let Ok(device) = store.flash_log_slice(disk.id()) else { continue };
        let owner = Owner { cell_id: catalog.cell_id.0, device_id: flash.0, log_id: id.0 };
        rings.push(RingDevice { device, owner });
        devices.push(*flash);
    }
    let reader = LogReader::read(rings, sabotage).await;
    for (ring, flash) in devices.iter().enumerate() {
        match reader.found(ring) {
            RingFound::Whole => {}
            RingFound::Damaged => report.notes.push(format!("flash log: its ring on flash {flash} is damaged")),
            RingFound::Unreadable(why) => report.notes.push(format!("flash log: flash {flash}: {why}")),
        }
    }
    let lives = disks(store).into_iter().map(|disk| disk.label().ring_generation);
    let life = lives.max().unwrap_or(0).max(reader.life()) + 1;
    let mut opening = LogOpening {
        id,
        reader,
        devices,
        life,
        kept: BTreeMap::new(),
        waits: BTreeSet::new(),
        offline: BTreeMap::new(),
    };
    for disk in disks(store) {
        if disk.label().has_redo_pending() {
            opening.replay_to(store, &disk, report).await?;
        }
    }
    opening.settle_redo_behind(store).await?;
    let absent = catalog.grid_disks.values().filter(|g| store.cell_disk(g.cell_disk).is_none());
    opening.kept.extend(absent.map(|record| (record.id, 0)));
    for id in opening.offline.keys() {
        // What is cached of it may be newer than its disk.
        let _ = store.raise_cache_generation(*id).await?;
    }
    Ok(opening)
}

impl LogOpening {
    /// Rings that are believed for a disk whose label names them; none: they do not have all there is.
    fn believed(&self, store: &CellStore, label: &Label) -> Option<Vec<usize>> {
        let pending = label.flash_members.iter().filter(|(_, m)| m.redo_pending.is_some());
        let mut named = 0;
        let mut believed = Vec::new();
        for (flash, member) in pending {
            named += 1;
            let ring = self.devices.iter().position(|id| id == flash);
            let whole = |ring: &usize| self.reader.found(*ring) == RingFound::Whole;
            let is_this_log = member.redo_pending == Some(self.id);
            believed.extend(ring.filter(whole).filter(|_| is_this_log && is_paired(store, label, *flash)));
        }
        // With several each record is on two of them.
        let enough = believed.len() == named || named > 1 && believed.len() + 1 == named;
        enough.then_some(believed)
    }

    async fn replay_to(
        &mut self,
        store: &Arc<CellStore>,
        disk: &Arc<CellDisk>,
        report: &mut OpenReport,
    ) -> Result<(), CellError> {
        let label = disk.label();
        let records = redo_grid_disks(store, disk.id());
        let behind = redo_behind(store, disk.id());
        let mut refused = None;
        match self.believed(store, &label) {
            // The disk had all of theirs when they left the log; it has only been away.
            Some(_) if records.is_empty() => {}
            None if records.is_empty() && behind.is_empty() => {}
            None => refused = Some("cannot be used".to_owned()),
            Some(rings) => {
                for record in &records {
                    let Ok(device) = store.slice(record.id) else { continue };
                    let target = ReplayTarget {
                        id: record.id.0,
                        device,
                        size_bytes: record.size_bytes,
                        rings: rings.clone(),
                        lives: label.ring_generation_dead + 1..=u64::MAX,
                    };
                    match self.reader.replay(&target).await {
                        Ok(done) if done.records > 0 => report.notes.push(format!(
                            "grid disk {}: {} bytes of redo replayed from {} records of the flash log",
                            record.name, done.bytes, done.records
                        )),
                        Ok(_) => {}
                        Err(why) => refused = Some(format!("cannot be replayed ({why})")),
                    }
                }
            }
        }
        let Some(why) = refused else {
            let dead = self.life - 1;
            let written = disk.update_label(|label| void_redo(label, dead));
            return written.await.map_err(|error| CellError::label(disk, error));
        };
        self.waits.insert(disk.id());
        let flash: Vec<String> = label
            .flash_members
            .iter()
            .filter(|(_, m)| m.redo_pending.is_some())
            .map(|(id, _)| name(store, *id))
            .collect();
        for record in records.into_iter().chain(behind) {
            let note = redo_note(&record.name, &disk.name(), &flash.join(", "), &why);
            report.notes.push(note.clone());
            self.kept.insert(record.id, label.ring_generation_dead + 1);
            self.offline.insert(record.id, note);
        }
        Ok(())
    }

    /// Disks that do not wait have all there is.
    async fn settle_redo_behind(&self, store: &Arc<CellStore>) -> Result<(), CellError> {
        let here = disks(store).into_iter().map(|disk| disk.id()).filter(|id| !self.waits.contains(id));
        let settled: Vec<GridDiskId> = here.flat_map(|id| redo_behind(store, id)).map(|record| record.id).collect();
        let _ = store.settle_redo_behind(&settled).await?;
        Ok(())
    }

    /// Flash devices whose rings may take redo in this life, if they can be paired with the disks.
    pub(crate) fn candidates(&self) -> BTreeSet<DeviceId> {
        let readable = |ring: &usize| !matches!(self.reader.found(*ring), RingFound::Unreadable(_));
        (0..self.devices.len()).filter(readable).map(|ring| self.devices[ring]).collect()
    }
}

fn name(store: &CellStore, flash: DeviceId) -> String {
    store.catalog().members.get(&flash).map_or_else(|| flash.to_string(), |member| member.name.clone())
}

/// Nothing of these lives, or that was pending, counts for the disk any more.
pub(crate) fn void_redo(label: &mut Label, dead: u64) {
    label.flash_members.values_mut().for_each(|member| member.redo_pending = None);
    label.ring_generation_dead = label.ring_generation_dead.max(dead);
    label.ring_generation = label.ring_generation.max(dead);
}

fn redo_note(name: &str, home: &str, flash: &str, why: &str) -> String {
    format!(
        "grid disk {name} is offline: redo of it that flash {flash} holds and its disk does not have {why}; hint: bring that \
         flash and its disk in order and restart the cell, or give up the redo of all redo grid disks on cell disk {home} with \
         ALTER GRIDDISK {name} ACTIVE FORCE"
    )
}

impl Cell {
    /// Begin the next life of the flash log on the flash devices that have been paired with the disks, and let the disks' labels
    /// say that redo is pending there.
    pub(crate) async fn begin_flash_log(
        self: &Arc<Self>,
        opening: LogOpening,
        paired: &BTreeSet<DeviceId>,
        report: &mut OpenReport,
    ) {
        {
            let mut state = lock(&self.state);
            state.redo_offline = opening.offline.clone();
            state.redo_waits = opening.waits.clone();
        }
        let catalog = self.store().catalog();
        let Some(record) = &catalog.flash_log else { return };
        let candidates = opening.candidates();
        let serves = |ring: &usize| {
            let flash = &opening.devices[*ring];
            paired.contains(flash) && candidates.contains(flash)
        };
        let serving: Vec<usize> = (0..opening.devices.len()).filter(serves).collect();
        let devices: Vec<DeviceId> = serving.iter().map(|ring| opening.devices[*ring]).collect();
        let kept = opening.kept.clone();
        let keep = |grid_disk: u64, life: u64| kept.get(&GridDiskId(grid_disk)).is_some_and(|from| life >= *from);
        let config = self.log_config(record.outlier_ms);
        let log = opening.reader.begin(config, opening.life, &serving, keep, self.world.clone()).await;
        if log.kept_records() > 0 {
            report
                .notes
                .push(format!("flash log: {} records are kept for disks that wait or are absent", log.kept_records()));
        }
        self.start_flash_log(LogAtWork::new(opening.id, log, devices));
        for home in disks(self.store()) {
            if !redo_grid_disks(self.store(), home.id()).is_empty() && !self.let_redo_pend(home.id()).await {
                report.notes.push(format!("cell disk {}: its redo goes past the flash log", home.name()));
            }
        }
    }
}
