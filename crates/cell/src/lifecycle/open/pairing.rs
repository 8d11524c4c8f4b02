//! Which flash goes with which disk at an open: expulsions and void content, durable in labels and catalog, and the new stamps of
//! those that go together.

use crate::backing::ordered::journal::as_of;
use crate::disk::error::CellError;
use crate::disk::last_copy::stale_note;
use crate::lifecycle::journals::Journals;
use crate::lifecycle::open::OpenReport;
use celldisk::{
    CellDisk, CellStore, DeviceId, FlashMember, FlashState, GridDiskId, Label, Renewal, ReplicaFailure, Role,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Flash devices of the cache that are not there: expelled in the label of every disk, durably.
/// Those expelled by any disk, and those that have to wait, see [`left_out`].
pub(crate) async fn expel_missing(
    store: &Arc<CellStore>,
    report: &mut OpenReport,
) -> Result<(BTreeSet<DeviceId>, BTreeSet<DeviceId>), CellError> {
    let catalog = store.catalog();
    let name = |id: &DeviceId| catalog.members.get(id).map_or_else(|| id.to_string(), |m| m.name.clone());
    let mut waiting = left_out(store);
    loop {
        let mut expelled = BTreeSet::new();
        for disk in store.cell_disks().into_iter().filter(|d| d.role() == Role::Disk) {
            let label = disk.label();
            let out = label.flash_members.iter().filter(|(_, m)| m.state == FlashState::Expelled);
            expelled.extend(out.map(|(id, _)| *id));
            let matching: BTreeSet<(DeviceId, DeviceId)> = store.matching_pairs().into_iter().collect();
            let gone = |id: &DeviceId, member: &FlashMember| {
                let is_there = store.cell_disk(*id).is_some();
                if !member.state.holds_dirty() {
                    return !is_there && !matches!(member.state, FlashState::Expelled | FlashState::Absent);
                }
                // Without flash that holds dirty data which no other has the disk waits for it instead. So it does where the
                // two do not match and either may be the one that was put back in time; unless the flash alone has missed
                // the last opening of the cell. (At later ones nobody knows who had.)
                let was_put_back = || {
                    !matching.contains(&(disk.id(), *id))
                        && report.store.stale == [name(id)]
                        && !waiting.contains_key(id)
                };
                (!is_there || waiting.contains_key(id) || was_put_back()) && is_covered(store, &disk, *id)
            };
            let missing: Vec<DeviceId> =
                label.flash_members.iter().filter(|(id, m)| gone(id, m)).map(|(id, _)| *id).collect();
            if missing.is_empty() {
                continue;
            }
            for id in &missing {
                let what = match store.cell_disk(*id) {
                    None => "is missing",
                    Some(_) if waiting.contains_key(id) => "has to wait",
                    Some(_) => "is not as it was left",
                };
                report.notes.push(format!("flash {} {what}: cell disk {} goes on without it", name(id), disk.name()));
            }
            expel_from(&disk, &missing).await.map_err(|f| CellError::Labels(vec![f]))?;
            expelled.extend(missing);
        }
        let now = left_out(store);
        if now == waiting {
            for (id, disk) in &waiting {
                report.notes.push(format!(
                    "flash {} is left out: cell disk {disk} is not whole without other flash; hint: it is taken in at \
                     the start after the next clean stop",
                    name(id)
                ));
            }
            return Ok((expelled, waiting.into_keys().collect()));
        }
        waiting = now;
    }
}

/// Whether other flash has all that is dirty on this one: everything is on two members as long as none of them has been
/// expelled since the disk was whole.
fn is_covered(store: &CellStore, disk: &CellDisk, gone: DeviceId) -> bool {
    let matching = store.matching_pairs();
    let label = disk.label();
    let has_all = |id: &DeviceId| label.is_dirty_on(id) && matching.contains(&(disk.id(), *id));
    let catalog = store.catalog();
    let Some(cache) = &catalog.flash_cache else { return false };
    let mut others = cache.regions.keys().filter(|id| **id != gone);
    cache.regions.len() > 1 && cache.regions.contains_key(&gone) && others.all(has_all)
}

/// Pairs (disk, flash) whose disk is not whole without the flash, while what the flash holds was not left by that disk: one
/// of them was restored from a snapshot, or used without the other. Flash outside the cache holds nothing, whatever its
/// stamps: it left when every disk was whole, so that this disk is one from before.
pub(crate) fn strange_dirty_pairs(store: &Arc<CellStore>) -> BTreeSet<(DeviceId, DeviceId)> {
    let catalog = store.catalog();
    let mut matching: BTreeSet<(DeviceId, DeviceId)> = store.matching_pairs().into_iter().collect();
    matching.retain(|(_, flash)| catalog.is_cached_on(flash));
    let mut strange = BTreeSet::new();
    for disk in store.cell_disks().into_iter().filter(|d| d.role() == Role::Disk) {
        let label = disk.label();
        let dirty = label.flash_members.iter().filter(|(_, m)| m.state.holds_dirty());
        strange.extend(dirty.map(|(id, _)| (disk.id(), *id)).filter(|pair| !matching.contains(pair)));
    }
    strange
}

/// Grid disks in write-back on disks that are not whole without a flash device which `which` (disk, flash) names.
pub(crate) fn write_back_disks(
    store: &Arc<CellStore>,
    which: impl Fn(Option<&Arc<CellDisk>>, DeviceId) -> bool,
) -> Vec<celldisk::GridDisk> {
    let catalog = store.catalog();
    let waits = |record: &&celldisk::GridDisk| {
        let home = store.cell_disk(record.cell_disk);
        let Some(label) = home.as_ref().map(|disk| disk.label()) else { return false };
        label.flash_members.iter().any(|(id, m)| m.state.holds_dirty() && which(home.as_ref(), *id))
    };
    catalog.grid_disks.values().filter(|record| record.is_write_back()).filter(waits).cloned().collect()
}

pub(crate) fn offline_note(name: &str, flash: &str) -> String {
    format!(
        "grid disk {name} is offline: flash {flash} holds writes that its disk does not have, and cannot be used; \
         hint: bring that flash back and restart the cell, or give the grid disk up with DROP GRIDDISK {name} FORCE"
    )
}

/// Disks that wait for flash with dirty data: their grid disks in write-back are offline; what flash holds of their other
/// grid disks, which go on without it, is void.
pub(crate) async fn void_without_dirty(
    store: &Arc<CellStore>,
    usable: &BTreeSet<DeviceId>,
    strange: &BTreeSet<(DeviceId, DeviceId)>,
    journals: &Journals,
    report: &mut OpenReport,
) -> Result<BTreeMap<GridDiskId, String>, CellError> {
    let missing = |disk: DeviceId, flash: DeviceId| !usable.contains(&flash) || strange.contains(&(disk, flash));
    let mut offline = BTreeMap::new();
    let mut waiting: BTreeMap<DeviceId, (DeviceId, Arc<Label>)> = BTreeMap::new();
    for disk in store.cell_disks().into_iter().filter(|d| d.role() == Role::Disk) {
        let label = disk.label();
        let lost = label.flash_members.iter().find(|(id, m)| m.state.holds_dirty() && missing(disk.id(), **id));
        waiting.extend(lost.map(|(flash, _)| (disk.id(), (*flash, label.clone()))));
    }
    for record in store.catalog().grid_disks.values() {
        let Some((flash, label)) = waiting.get(&record.cell_disk) else { continue };
        // A disk that was put back in time knows what was dirty then, the catalog may not; whichever flash shows that it was.
        let was_dirty = !record.given_up
            && strange.iter().any(|(disk, _)| *disk == record.cell_disk)
            && record
                .extents
                .iter()
                .any(|e| label.dirty.is_dirty(e.offset(label.au_bytes), e.len_bytes(label.au_bytes)));
        if record.is_write_back() || was_dirty {
            let catalog = store.catalog();
            let name = catalog.members.get(flash).map_or_else(|| flash.to_string(), |m| m.name.clone());
            let as_of = journals.get(&record.id).filter(|_| record.is_write_back()).and_then(|journal| as_of(journal));
            let why = match as_of {
                Some(as_of) => stale_note(&record.name, &name, as_of),
                None => offline_note(&record.name, &name),
            };
            report.notes.push(why.clone());
            offline.insert(record.id, why);
        } else {
            let _ = store.raise_cache_generation(record.id).await?;
        }
    }
    Ok(offline)
}

/// Write into a disk's label that flash devices are expelled.
pub(crate) async fn expel_from(disk: &Arc<CellDisk>, flash: &[DeviceId]) -> Result<(), ReplicaFailure> {
    let flash = flash.to_vec();
    let written = disk.update_label(move |label| {
        for id in flash {
            if let Some(member) = label.flash_members.get_mut(&id) {
                member.state = FlashState::Expelled;
            }
        }
    });
    written.await.map_err(|error| ReplicaFailure::of(disk, error))
}

/// Void what must not be believed: all of an expelled flash that came back (returned is flash where that cannot be
/// recorded, so that it must not be used), and every grid disk of a disk whose stamp does
/// not match a flash device that was paired with it.
pub(crate) async fn make_void(
    store: &Arc<CellStore>,
    expelled: &BTreeSet<DeviceId>,
    waiting: BTreeSet<DeviceId>,
    report: &mut OpenReport,
) -> Result<BTreeSet<DeviceId>, CellError> {
    let mut unusable = waiting;
    let labels: Vec<Arc<Label>> = store.cell_disks().iter().map(|d| d.label()).collect();
    let is_diverged =
        |id: &DeviceId| labels.iter().any(|l| l.device_id == *id && report.store.diverged.contains(&l.name));
    let is_back = |l: &&Arc<Label>| {
        // Cache generations of flash that was opened apart from the disks may have been given a second time by them.
        l.role == Role::Flash && (expelled.contains(&l.device_id) || report.store.diverged.contains(&l.name))
    };
    let back: Vec<DeviceId> =
        labels.iter().filter(is_back).map(|l| l.device_id).filter(|id| !unusable.contains(id)).collect();
    for id in &back {
        report.notes.push(format!("flash {id} had been expelled or opened apart: its content is void"));
    }
    // Flash that holds dirty data of another disk, or perhaps of one that is not there to tell, keeps its era: only what it
    // holds of the disks that expelled it is void.
    let catalog = store.catalog();
    let is_there = |disk: &DeviceId| labels.iter().any(|l| l.device_id == *disk);
    let keeps_dirty = |id: &DeviceId| {
        let mut stamped = labels.iter().filter(|l| l.device_id == *id).flat_map(|l| l.disk_stamps.keys());
        stamped.any(|disk| catalog.members.contains_key(disk) && !is_there(disk))
            || labels.iter().any(|l| l.is_dirty_on(id))
    };
    let (dirty, back): (Vec<DeviceId>, Vec<DeviceId>) = back.into_iter().partition(keeps_dirty);
    for id in dirty.iter().filter(|id| is_diverged(id)) {
        report.notes.push(format!("flash {id} was opened apart from its disks: it is left out"));
        unusable.insert(*id);
    }
    for id in &back {
        if let Err(error) = store.raise_cache_era([*id]).await {
            report.notes.push(format!("flash {id} is left out: its content cannot be declared void: {error}"));
            unusable.insert(*id);
        }
    }
    let matching: BTreeSet<(DeviceId, DeviceId)> = store.matching_pairs().into_iter().collect();
    // Of flash outside the cache nothing is believed anyway: it is void before it is taken in.
    let in_cache = |id: &DeviceId| catalog.is_cached_on(id) && !unusable.contains(id);
    let used = |l: &&Arc<Label>| l.role == Role::Flash && in_cache(&l.device_id);
    let flash: Vec<&Arc<Label>> = labels.iter().filter(used).collect();
    let strangers: Vec<DeviceId> = labels
        .iter()
        .filter(|l| l.role == Role::Disk)
        .filter(|l| {
            let doubtful = |f: &&Arc<Label>| {
                let member = l.flash_members.get(&f.device_id);
                if dirty.contains(&f.device_id) && member.is_some_and(|m| m.state == FlashState::Expelled) {
                    return true;
                }
                !back.contains(&f.device_id)
                    && member.is_none_or(|m| !m.state.holds_dirty())
                    && f.disk_stamps.contains_key(&l.device_id)
                    && !matching.contains(&(l.device_id, f.device_id))
            };
            flash.iter().any(doubtful)
        })
        .map(|l| l.device_id)
        .collect();
    for id in &strangers {
        report.notes.push(format!(
            "cell disk {id} and its flash are not of one moment, since one was used or restored without the other: its cached content is void"
        ));
    }
    let doomed: Vec<_> =
        store.catalog().grid_disks.values().filter(|g| strangers.contains(&g.cell_disk)).map(|g| g.id).collect();
    for id in doomed {
        let _ = store.raise_cache_generation(id).await?;
    }
    Ok(unusable)
}

/// Flash that has to wait until disks are whole without other flash, with the name of one such disk: it is new to it, or
/// void, and would be asked first for what the other has; or it has some of what the disk waits for. It is taken in at the
/// first start after that.
fn left_out(store: &Arc<CellStore>) -> BTreeMap<DeviceId, String> {
    let catalog = store.catalog();
    let cached: Vec<DeviceId> = catalog.flash_cache.iter().flat_map(|cache| cache.regions.keys().copied()).collect();
    let disks: Vec<Arc<CellDisk>> = store.cell_disks().into_iter().filter(|d| d.role() == Role::Disk).collect();
    let waits_for = |id: &DeviceId| {
        let waits = |disk: &&Arc<CellDisk>| {
            let label = disk.label();
            let mine = label.is_dirty_on(id);
            !mine && label.flash_members.iter().any(|(other, m)| other != id && m.state.holds_dirty())
        };
        disks.iter().find(waits).map(|disk| (*id, disk.name()))
    };
    let mut out: BTreeMap<DeviceId, String> =
        cached.iter().filter(|id| store.cell_disk(**id).is_some()).filter_map(waits_for).collect();
    // What others hold of a disk that has to wait must stay as it is until the flash it waits for is back: nobody writes
    // to them.
    let matching: BTreeSet<(DeviceId, DeviceId)> = store.matching_pairs().into_iter().collect();
    for disk in &disks {
        let label = disk.label();
        let has = |id: &DeviceId| matching.contains(&(disk.id(), *id));
        let dirty = || label.flash_members.iter().filter(|(_, m)| m.state.holds_dirty()).map(|(id, _)| id);
        if dirty().any(|id| !has(id) && (store.cell_disk(*id).is_some() || !is_covered(store, disk, *id))) {
            out.extend(dirty().filter(|id| has(id) && cached.contains(id)).map(|id| (*id, disk.name())));
        }
    }
    out
}

/// New open stamps for all pairs of disks and usable flash of the cache and the flash log; flash whose label cannot be written is expelled.
/// The flash devices that are paired.
pub(crate) async fn renew(
    store: &Arc<CellStore>,
    rings: &BTreeSet<DeviceId>,
    unusable: &BTreeSet<DeviceId>,
    strange: &BTreeSet<(DeviceId, DeviceId)>,
    prng: &mut device::Prng,
    report: &mut OpenReport,
) -> Result<BTreeSet<DeviceId>, CellError> {
    let catalog = store.catalog();
    let in_use = |id: &DeviceId| (catalog.is_cached_on(id) || rings.contains(id)) && !unusable.contains(id);
    let mut usable: BTreeSet<DeviceId> =
        store.cell_disks().iter().filter(|d| d.role() == Role::Flash && in_use(&d.id())).map(|d| d.id()).collect();
    loop {
        let disks: Vec<Arc<CellDisk>> = store.cell_disks().into_iter().filter(|d| d.role() == Role::Disk).collect();
        let pairs: Vec<(DeviceId, DeviceId)> = disks.iter().flat_map(|d| usable.iter().map(|f| (d.id(), *f))).collect();
        let pairs: Vec<_> = pairs.into_iter().filter(|pair| !strange.contains(pair)).collect();
        let failed = store.renew_stamps(Renewal::Open, &pairs, prng).await;
        let bad: Vec<DeviceId> = failed.iter().map(|f| f.device_id).filter(|id| usable.contains(id)).collect();
        if bad.is_empty() {
            // The label of flash that is not used may be as it likes.
            let failed: Vec<ReplicaFailure> =
                failed.into_iter().filter(|f| disks.iter().any(|d| d.id() == f.device_id)).collect();
            return if failed.is_empty() { Ok(usable) } else { Err(CellError::Labels(failed)) };
        }
        for disk in &disks {
            let label = disk.label();
            let waits_for = |id: &DeviceId| label.is_dirty_on(id) && !is_covered(store, disk, *id);
            let expelled: Vec<DeviceId> = bad.iter().copied().filter(|id| !waits_for(id)).collect();
            expel_from(disk, &expelled).await.map_err(|f| CellError::Labels(vec![f]))?;
        }
        for id in bad {
            report.notes.push(format!("flash {id}: its label cannot be written, going on without it"));
            usable.remove(&id);
        }
    }
}
