//! Whether an adopted volume in write-back-ordered was used without the cell, where its fingerprint cannot tell: after a stop that was not clean, and
//! for what has no fingerprint.
//!
//! Some of the clean blocks that flash has are compared with the volume, and those at its ends, where superblocks are; they must be the same. What is dirty on flash differs by its nature, and what
//! is suspect since the crash is compared elsewhere (`housekeeping`): neither counts here. What is in the journal is dirty on flash until it is in
//! place, which it is put after the comparison, so that nothing is written over what others have made of the volume. Never proves that nobody has used
//! the volume.

use crate::lifecycle::adopted::{set_fingerprint, used_note};
use crate::lifecycle::cell::{CacheAtWork, Cell, State, cached_disk};
use crate::lifecycle::journals::put_late;
use crate::lifecycle::open::OpenReport;
use celldisk::{Adopted, GridDiskId};
use device::sync::lock;
use device::{Buf, Device, Outcome};
use flashcache::{DiskHandle, PART_BYTES, Stretch};
use futures_util::future::ready;
use futures_util::{StreamExt, stream};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Blocks that are compared: a use that changed one in two hundred is noticed with 99 of a hundred.
const COMPARED_MAX: usize = 1000;
/// At each end of a volume, all: who mounts a file system changes its superblock. 128 KiB, as in the fingerprint.
const END_PARTS: u64 = 32;
/// Read at a time.
const AT_ONCE: usize = 32;

/// Result of the comparison of a volume with flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    /// So many clean blocks, and all of them are the same.
    Same(u64),
    /// Some are not.
    Different { different: u64, of: u64 },
    /// Flash has no clean block of it.
    NothingClean,
    /// The volume does not answer.
    Impossible(&'static str),
}

impl Cell {
    /// Compare what has to be, before it is served. The index of the flash cache is whole.
    pub(crate) async fn compare_adopted(self: &Arc<Self>, report: &mut OpenReport) {
        let ids = lock(&self.state).uncompared.clone();
        for id in ids {
            let catalog = self.store().catalog();
            let Some(record) = catalog.grid_disks.get(&id) else { continue };
            let Ok(slice) = self.store().slice(id) else { continue };
            let (name, slice) = (&record.name, slice as Device);
            // Flash that is of no use has nothing to compare the volume with.
            let is_offline = lock(&self.state).offline.contains_key(&id);
            let Some(at_work) = self.cache_at_work().filter(|_| !is_offline) else {
                self.put_in_place(id, name, &slice, report).await;
                continue;
            };
            let handle = at_work.cache.disk(cached_disk(record, true)).passing();
            let is_dirty = || {
                let in_journal = lock(&self.state).journals.get(&id).is_some_and(|journal| journal.used_bytes() > 0);
                in_journal || at_work.cache.has_dirty(&handle)
            };
            match self.compare(&at_work, &handle, &slice).await {
                Compared::Same(blocks) => {
                    report
                        .notes
                        .push(format!("grid disk {name}: {blocks} clean blocks are the same on flash and volume"));
                    self.put_in_place(id, name, &slice, report).await;
                }
                Compared::NothingClean => {
                    if is_dirty() {
                        self.alert(format!(
                            "nothing tells whether the volume of grid disk {name} was used without the cell, for flash has no clean block to \
                             compare it with: what flash holds for it is written to it"
                        ));
                    }
                    self.put_in_place(id, name, &slice, report).await;
                }
                Compared::Different { different, of } => {
                    let what =
                        format!("{different} of {of} clean blocks of grid disk {name} differ between flash and volume");
                    report.notes.push(what);
                    self.used_without_us(id, name, is_dirty(), report).await;
                }
                Compared::Impossible(why) => {
                    let why = format!(
                        "grid disk {name} is offline: the last stop was not clean, so that its volume has to be compared with its flash, and it \
                         cannot be {why}; hint: see to the volume and restart the cell"
                    );
                    report.notes.push(why.clone());
                    let mut state = lock(&self.state);
                    state.offline.insert(id, why);
                    // Flash keeps what it has of it.
                    state.disk_awaited.insert(id);
                }
            }
        }
        // Those that stay offline are as they were found: the next open has to compare them.
        let mut state = lock(&self.state);
        let State { uncompared, offline, .. } = &mut *state;
        uncompared.retain(|id| offline.contains_key(id));
    }

    /// The batch that the last life has left in its journal, before anything else is written to the volume.
    async fn put_in_place(&self, id: GridDiskId, name: &str, slice: &Device, report: &mut OpenReport) {
        let journal = lock(&self.state).journals.get(&id).cloned();
        let Some(journal) = journal else { return };
        if let Some(why) = put_late(name, &journal, slice, report).await {
            let mut state = lock(&self.state);
            let is_new = !state.offline.contains_key(&id);
            state.offline.entry(id).or_insert(why);
            // Flash keeps what it has, until its disk can be given it.
            if is_new {
                state.disk_awaited.insert(id);
            }
        }
    }

    /// The volume is not as it should be: nothing clean is believed, and what is dirty waits for the operator.
    async fn used_without_us(self: &Arc<Self>, id: GridDiskId, name: &str, is_dirty: bool, report: &mut OpenReport) {
        if !is_dirty {
            match self.store().raise_cache_generation(id).await {
                Ok(changed) => {
                    let _ = self.stood(changed);
                    return self.alert(format!(
                        "the volume of grid disk {name} was used without the cell: what was cached of it is void"
                    ));
                }
                // Cached blocks that are not void must not be served: the grid disk goes offline below.
                Err(error) => {
                    report.notes.push(format!("what is cached of grid disk {name} cannot be made void: {error}"))
                }
            }
        }
        let why = used_note(name);
        report.notes.push(why.clone());
        let home =
            self.store().catalog().grid_disks.get(&id).and_then(|record| self.store().cell_disk(record.cell_disk));
        if let Some(home) = home
            && let Err(error) = set_fingerprint(&home, Adopted::USED).await
        {
            report.notes.push(format!(
                "grid disk {name}: its label cannot be written ({error}), so that the next start compares again"
            ));
        }
        // That it is offline is an alert by itself.
        let mut state = lock(&self.state);
        state.offline.insert(id, why);
        state.used_without_us.insert(id);
    }

    async fn compare(&self, at_work: &CacheAtWork, handle: &DiskHandle, slice: &Device) -> Compared {
        // The comparison must see what the volume holds durably: a power cut must not bring back older blocks that flash has as well.
        if slice.flush().await.outcome != Outcome::Done {
            return Compared::Impossible("flushed");
        }
        let mut prng = self.world.prng.fork("blocks to compare");
        let end = slice.geometry().size_bytes / PART_BYTES;
        let ends = (0..END_PARTS.min(end)).chain(end.saturating_sub(END_PARTS)..end);
        let parts: BTreeSet<u64> = ends.chain(at_work.cache.sample_clean(handle, COMPARED_MAX, &mut prng)).collect();
        let compared = stream::iter(parts).map(|part| async move {
            let hit = at_work.cache.lookup(handle, part..part + 1).into_iter().next();
            let Some(Stretch::Hit(hit)) = hit.filter(|hit| matches!(hit, Stretch::Hit(hit) if !hit.is_dirty())) else {
                return None;
            };
            let (result, cached) = at_work.cache.read_hit(hit, Buf::zeroed(PART_BYTES as usize).into()).await;
            let cached = cached.filter(|_| result.is_ok())?;
            let below = slice.read(part * PART_BYTES, Buf::zeroed(PART_BYTES as usize).into()).await;
            let all = 0..PART_BYTES as usize;
            // None within: the volume cannot read it, which counts as neither same nor different.
            Some((below.outcome == Outcome::Done).then(|| cached.to_vec(all.clone()) == below.bufs.to_vec(all)))
        });
        let all: Vec<Option<bool>> = compared.buffer_unordered(AT_ONCE).filter_map(ready).collect().await;
        let count = |wanted| all.iter().filter(|same| **same == wanted).count() as u64;
        match (count(Some(true)), count(Some(false)), count(None)) {
            (same, different @ 1.., _) => Compared::Different { different, of: same + different },
            (same @ 1.., 0, _) => Compared::Same(same),
            (0, 0, 1..) => Compared::Impossible("read"),
            (0, 0, 0) => Compared::NothingClean,
        }
    }
}
