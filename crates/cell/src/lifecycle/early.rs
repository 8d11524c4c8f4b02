//! Serving before the index of the flash cache is whole, which takes a tenth of a second for each million blocks.
//!
//! Grid disks that have all of their data on disk are served from there meanwhile. What they write then is in no log of the flash:
//! before they are served, all that flash has of them becomes void in the catalog, by the next cache generation, as if the cell
//! were about to die; and when the index is there, what was written is announced to it like any other write, and the generation
//! before is put in force again. Whoever dies in between has lost warmth, never data.
//! Requests to grid disks in write-back wait: flash alone knows what they hold.
//!
//! Never hits, never fills before all of that is durable.

use crate::base::range_lock::LockMode;
use crate::base::request::CachingMode;
use crate::base::units::PART_BYTES;
use crate::disk::error::CellError;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::{CacheAtWork, Cell, mode_in_force};
use crate::lifecycle::open::OpenReport;
use celldisk::{DeviceId, GridDiskId};
use device::sync::{Flag, Permits, lock};
use flashcache::{FlashCache, MemberError, Recovered, Sabotage};
use futures_util::StreamExt;
use futures_util::stream;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Pieces announced at the same time: those of one wait share a flush of the flash.
const ANNOUNCED_AT_ONCE: usize = 256;

/// What the opening of a flash cache gives.
pub(crate) type Opened = Result<(Arc<FlashCache>, Vec<Result<Recovered, MemberError>>), MemberError>;
/// The opening itself.
pub(crate) type OpeningWork = Pin<Box<dyn Future<Output = Opened> + Send>>;

/// A flash cache whose index is still being read.
pub(crate) struct Opening {
    pub(crate) work: OpeningWork,
    pub(crate) devices: Vec<DeviceId>,
}

/// How far the opening of the flash cache is.
#[derive(Debug, Default)]
pub(crate) struct OpeningState {
    under_way: Flag,
    report: Mutex<Option<OpenReport>>,
    written: AtomicU64,
}

impl GridDisk {
    /// Announce to its cache what was written while it had none. Nobody writes past the cache any more. How many
    /// pieces; none: the cache cannot be told.
    async fn announce_early(&self) -> Option<usize> {
        let (written, unknown) = self.early.end();
        let binding = self.cache()?;
        if self.sabotage == Some(Sabotage::EarlyWritesForgotten) {
            return Some(0);
        }
        let (binding, unknown) = (&binding, &unknown);
        let announced = stream::iter(written.ranges(self.size_bytes())).map(|range| async move {
            let guard = self.lock_bytes(range.start, range.end - range.start, LockMode::Exclusive).await;
            let parts = range.start / PART_BYTES..range.end.div_ceil(PART_BYTES);
            let ticket = binding.cache.begin_write(&binding.disk, parts).await.ok()?;
            if unknown.overlaps(&range) {
                std::mem::forget(ticket);
            } else {
                binding.cache.end_write(ticket);
            }
            drop(guard);
            Some(())
        });
        let all: Vec<Option<()>> = announced.buffer_unordered(ANNOUNCED_AT_ONCE).collect().await;
        all.into_iter().try_fold(0, |count, announced| announced.map(|()| count + 1))
    }
}

impl Cell {
    /// Whether the index of the flash cache is still being read.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.opening.under_way.is_set()
    }

    /// Wait until the index of the flash cache is whole.
    pub async fn index_is_whole(&self) {
        self.opening.under_way.until(false).await;
    }

    /// Pieces of grid disks that were written before the index was whole, and announced to it then.
    #[must_use]
    pub fn written_early(&self) -> u64 {
        self.opening.written.load(Ordering::Relaxed)
    }

    /// What was noticed when the index had become whole, if that was after the cell was open; once.
    #[must_use]
    pub fn take_late_report(&self) -> Option<OpenReport> {
        lock(&self.opening.report).take()
    }

    /// Before grid disks are served without the index: what flash has of those that need none is void from here on.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub(crate) async fn go_early(&self) -> Result<(), CellError> {
        let catalog = self.store().catalog();
        let offline: BTreeSet<GridDiskId> = {
            let state = lock(&self.state);
            state.offline.keys().chain(state.redo_offline.keys()).copied().collect()
        };
        let needs_none = |record: &&celldisk::GridDisk| {
            let mode = mode_in_force(record);
            !mode.is_write_back() && mode != CachingMode::None && !offline.contains(&record.id)
        };
        let early: BTreeMap<GridDiskId, u32> =
            catalog.grid_disks.values().filter(needs_none).map(|r| (r.id, r.cache_generation)).collect();
        if self.config.sabotage != Some(Sabotage::EarlyContentKept) {
            let ids: Vec<GridDiskId> = early.keys().copied().collect();
            self.stood(self.store().raise_cache_generations(&ids).await?);
        }
        lock(&self.state).early = early;
        self.opening.under_way.set(true);
        Ok(())
    }

    /// The cache generation of which flash holds something: that of the record, or while it is not believed the one before.
    pub(crate) fn generation_in_force(&self, record: &celldisk::GridDisk) -> u32 {
        let before = lock(&self.state).early.get(&record.id).copied();
        // It may have become void for another reason since.
        let still = |before: &u32| before.checked_add(1) == Some(record.cache_generation);
        before.filter(still).unwrap_or(record.cache_generation)
    }

    /// A grid disk that is being served for the first time in this life.
    pub(crate) fn serve_early(self: &Arc<Self>, disk: &Arc<GridDisk>, record: &celldisk::GridDisk) {
        if self.is_opening() && record.is_write_back() && disk.offline().is_none() {
            disk.held.set(true);
            return;
        }
        if lock(&self.state).early.contains_key(&record.id) {
            disk.early.begin();
        }
        self.bind(disk, record);
        disk.start_housekeeping(&self.world, self.config.settle_every, &self.stop);
    }

    /// The index is read while grid disks are served; nothing is changed meanwhile.
    pub(crate) async fn run_opening(self: Arc<Self>, turn: Permits, opening: Opening) {
        let mut report = OpenReport::default();
        match opening.work.await {
            Ok((cache, recovered)) => {
                let at_work = CacheAtWork { cache, devices: opening.devices.into() };
                self.take_flash_cache(at_work, recovered, &mut report);
            }
            Err(error) => self.alert(format!("the flash cache cannot be opened: {error}")),
        }
        self.compare_adopted(&mut report).await;
        self.end_early().await;
        *lock(&self.opening.report) = Some(report);
        self.opening.under_way.set(false);
        let _ = self.refill_empty();
        drop(turn);
    }

    async fn end_early(self: &Arc<Self>) {
        let mut bars = Vec::new();
        for disk in self.grid_disks() {
            let Some(record) = self.record(&disk) else { continue };
            if disk.is_waiting_for_index() {
                let why = lock(&self.state).offline.get(&record.id).cloned();
                if let Some(why) = why {
                    disk.set_offline(why);
                }
                self.bind(&disk, &record);
                disk.start_housekeeping(&self.world, self.config.settle_every, &self.stop);
                disk.held.set(false);
            } else if lock(&self.state).early.contains_key(&record.id) {
                bars.push((disk.bar(), disk.clone()));
                // From here on writes announce themselves.
                self.bind(&disk, &record);
            }
        }
        for (_, disk) in &bars {
            disk.drain().await;
        }
        let mut cold = Vec::new();
        for (_, disk) in &bars {
            match disk.announce_early().await {
                Some(pieces) => {
                    self.opening.written.fetch_add(pieces as u64, Ordering::Relaxed);
                }
                None => cold.push(disk.clone()),
            }
        }
        {
            let mut state = lock(&self.state);
            state.early.retain(|id, _| !cold.iter().any(|disk| disk.id() == id.0));
        }
        for disk in cold {
            self.alert(format!("grid disk {}: flash cannot be told what was written: it begins empty", disk.name()));
            if let Some(record) = self.record(&disk) {
                self.rebind(&disk, &record).await;
            }
        }
        let early = lock(&self.state).early.clone();
        match self.store().restore_cache_generations(&early).await {
            Ok(changed) => {
                self.stood(changed);
                lock(&self.state).early.clear();
            }
            // Either may be in force at the next start. What flash has is good in this life, but nothing may be dirty.
            Err(error) => {
                self.alert(format!("what flash holds may be void at the next start: {error}"));
                let drying: Vec<_> = bars.iter().map(|(_, disk)| disk.start_drying()).collect();
                lock(&self.state).dry_for_good.extend(drying);
            }
        }
        drop(bars);
        // There may be blocks to compare with the disk.
        self.alarm.notify_all();
    }
}
