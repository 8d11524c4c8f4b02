//! The members of the flash cache change while it runs: which change a plan means, and what becomes of it.

use super::admin::Pending;
use super::direct::new_device;
use super::stage::{Life, Run};
use cell::{AdminError, Cell};
use celldisk::{DeviceId, MemberStatus, Role};
use device::sync::lock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Members before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlashChange {
    before: BTreeSet<DeviceId>,
    after: BTreeSet<DeviceId>,
}

fn members(cell: &Cell) -> Option<BTreeSet<DeviceId>> {
    Some(cell.store().catalog().flash_cache.as_ref()?.regions.keys().copied().collect())
}

/// Flash cell disks that may be members: by name.
fn candidates(cell: &Cell, before: &BTreeSet<DeviceId>) -> Vec<(String, DeviceId)> {
    let failed = |id: &DeviceId| {
        let cache = cell.flash_cache();
        let at_work = cell.flash_cache_devices();
        let place = at_work.iter().position(|at| at == id);
        place.is_none_or(|n| cache.iter().flat_map(|c| c.members()).nth(n).is_some_and(|m| m.has_failed()))
    };
    let mut out = Vec::new();
    for (id, status) in cell.store().members() {
        let MemberStatus::InService(disk) = status else { continue };
        if disk.role() == Role::Flash && !(before.contains(&id) && failed(&id)) {
            out.push((disk.name(), id));
        }
    }
    out.sort();
    out
}

impl Run {
    /// A device becomes larger while the cell runs, which is told to look for that.
    pub(super) async fn grow_online(self: &Arc<Self>, life: &Life, device: u64, by_bytes: u64) {
        self.machine.grow(device, by_bytes);
        // The cell may die before it has looked: then the next opening has to notice.
        lock(&self.history).grown = true;
        let (cell, looked) = (life.cell.clone(), life.cell.clone());
        let then = move |run: &Run, result: Result<Vec<String>, AdminError>| match result {
            Ok(notes) if notes.iter().any(|note| note.contains("stays as it was")) => {
                run.situations.hit("cell disk that has grown cannot be told so");
            }
            Ok(notes) => {
                run.situations.hit_times("cell disk has grown while serving", notes.len() as u64);
                run.check_grown(&looked);
            }
            Err(error) => run.judge("use growth", &error),
        };
        self.command(life, Pending::Growth, async move { cell.use_growth().await }, then).await;
    }

    pub(super) async fn change_flash(self: &Arc<Self>, life: &Life, pick: u64, cancel: bool) {
        let cell = life.cell.clone();
        let Some(before) = members(&cell) else { return };
        let all = candidates(&cell, &before);
        // Where one of two copies may go any time, there are two.
        let least = if self.plan.setup.mirrored { 2 } else { 1 };
        let mut wanted: Vec<(String, DeviceId)> = Vec::new();
        // Mostly something changes.
        for turn in 0..8 {
            let bits = pick.rotate_right(turn * 8);
            wanted = all.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1).map(|(_, one)| one.clone()).collect();
            let after: BTreeSet<DeviceId> = wanted.iter().map(|(_, id)| *id).collect();
            if wanted.len() >= least && after != before {
                break;
            }
        }
        let after: BTreeSet<DeviceId> = wanted.iter().map(|(_, id)| *id).collect();
        if wanted.len() < least || after == before {
            return;
        }
        let change = FlashChange { before: before.clone(), after };
        let names: Vec<String> = wanted.into_iter().map(|(name, _)| name).collect();
        let is_there = |id: &DeviceId| cell.store().cell_disk(*id).is_some();
        let missing = before.difference(&change.after).any(|id| !is_there(id));
        let failed = before
            .difference(&change.after)
            .any(|id| is_there(id) && !candidates(&cell, &before).iter().any(|(_, other)| other == id));
        let then = {
            let change = change.clone();
            move |run: &Run, result: Result<(), AdminError>| match result {
                Ok(()) => run.note_change(&change, missing, failed),
                Err(AdminError::FlushCancelled(_)) if cancel => run.situations.hit("members: a change is cancelled"),
                // It has failed since it was looked at.
                Err(AdminError::FlashNotAtWork(_)) if !lock(&run.book).hurt_flashes.is_empty() => {
                    run.situations.hit("members: a device has just failed");
                }
                Err(error) => run.judge("change flash cache", &error),
            }
        };
        let (other, clock) = (cell.clone(), self.clone());
        let work = async move {
            let mut ignore = |_, _| ();
            let change = cell.change_flash_cache(&names, &mut ignore);
            if !cancel {
                return change.await;
            }
            let cancelling = async {
                clock.sleep(Duration::from_micros(pick % 3_000)).await;
                other.cancel_flush(&[]).await
            };
            let (changed, _cancelled) = futures_util::future::join(change, cancelling).await;
            changed
        };
        self.command(life, Pending::Members(change), work, then).await;
    }

    /// A blank device that is there becomes a new cell disk, and a member in the place of those that are missing or have failed.
    pub(super) async fn replace_flash(self: &Arc<Self>, life: &Life, pick: u64) {
        let cell = life.cell.clone();
        let Some(before) = members(&cell) else { return };
        let live: Vec<String> = candidates(&cell, &before)
            .into_iter()
            .filter(|(_, id)| before.contains(id))
            .map(|(name, _)| name)
            .collect();
        if self.plan.setup.mirrored && live.is_empty() {
            return;
        }
        let name = |n: usize| {
            let mut admin = lock(&self.admin);
            admin.names += 1;
            format!("FD{n}r{}", admin.names)
        };
        let count = self.machine.flash_count();
        let mut blank = None;
        for turn in 0..count {
            let n = ((pick % count as u64) as usize + turn) % count;
            if self.machine.flash(n).is_gone() {
                continue;
            }
            let device = self.machine.flash(n).connect(&life.process);
            // Asked by the machine's owner, not by the cell.
            let (tx, rx) = device::sync::one_shot();
            let asked = device.clone();
            device::Spawn::spawn(
                &life.process,
                Box::pin(async move { tx.send(matches!(celldisk::probe(&asked).await, Ok(celldisk::Probe::Blank))) }),
            );
            if rx.await == Some(true) {
                blank = Some((device, name(n)));
                break;
            }
        }
        let Some((device, name)) = blank else { return };
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("members: a blank flash device takes the place of one that is gone"),
            Err(AdminError::FlashNotAtWork(_)) if !lock(&run.book).hurt_flashes.is_empty() => {
                run.situations.hit("members: a device has just failed");
            }
            Err(error) => run.judge("replace flash", &error),
        };
        let work = async move {
            let new = new_device(device, &name, Role::Flash);
            cell.create_cell_disk(new, false).await?;
            let names: Vec<String> = live.into_iter().chain([name]).collect();
            cell.change_flash_cache(&names, &mut |_, _| ()).await?;
            for (id, status) in cell.store().members() {
                let catalog = cell.store().catalog();
                let Some(member) = catalog.members.get(&id).filter(|member| member.role == Role::Flash) else {
                    continue;
                };
                // The flash log has to be dropped before flash that it is on.
                let is_free = !catalog.is_cached_on(&id)
                    && catalog.flash_log.as_ref().is_none_or(|log| !log.regions.contains_key(&id));
                if matches!(status, MemberStatus::Missing) && is_free {
                    cell.drop_cell_disk(&member.name, false).await?;
                }
            }
            Ok(())
        };
        self.command(life, Pending::Caching, work, then).await;
    }

    fn note_change(&self, change: &FlashChange, missing: bool, failed: bool) {
        let FlashChange { before, after } = change;
        let joins = after.difference(before).next().is_some();
        let leaves = before.difference(after).next().is_some();
        let write_back = self.plan.setup.write_back;
        let rows = [
            (joins, "members: flash joins a running cache"),
            (leaves, "members: flash leaves a running cache"),
            (joins && leaves, "members: flash leaves in whose place another comes"),
            (failed, "members: flash that has failed leaves"),
            (missing, "members: flash that is missing leaves"),
            (write_back && before.len() == 1 && after.len() > 1, "members: one flash device becomes two in write-back"),
            (write_back && before.len() > 1 && after.len() == 1, "members: two flash devices become one in write-back"),
        ];
        rows.into_iter().filter(|(is, _)| *is).for_each(|(_, row)| self.situations.hit(row));
        let mut admin = lock(&self.admin);
        if after.difference(before).any(|id| admin.flash_left.contains(id)) {
            self.situations.hit("members: flash that had left joins again");
        }
        admin.flash_left.extend(before.difference(after));
    }

    /// After a crash in a change: one or the other.
    pub(super) fn reconcile_members(&self, cell: &Cell, pending: &[Pending]) {
        for pending in pending {
            let Pending::Members(change) = pending else { continue };
            match members(cell) {
                Some(now) if now == change.after => self.situations.hit("members: crash in a change: the new members"),
                Some(now) if now == change.before => self.situations.hit("members: crash in a change: the old members"),
                // The catalog went back in time with its disk.
                _ if lock(&self.history).disk_was_restored => {}
                now => {
                    let text = format!("{change:?} was cut off, and the flash cache has {now:?}");
                    self.violate("I3", text);
                }
            }
        }
    }
}
