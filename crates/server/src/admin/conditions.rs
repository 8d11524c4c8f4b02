//! What is wrong with a cell now, for alerts.
//!
//! Looks, and never changes anything. What costs a walk over the cache's index is looked at with the reading of the metrics alone.

use super::{Context, rows};
use crate::alerting::{Condition, GRID_DISK_OFFLINE, Severity};
use cell::metrics::Sample;
use celldisk::{MemberStatus, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Writes that are on flash alone for so long are an alert: a disk that works has them within minutes, whatever else it does.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(3600);
const NS_PER_MINUTE: u64 = 60_000_000_000;

/// What has been seen, for what tells of a moment.
#[derive(Default)]
pub(super) struct Seen {
    /// Failed flushes by grid disk.
    lost_epochs: BTreeMap<u64, u64>,
    /// The notes of the cell.
    notes: Vec<String>,
    /// Rotten parts.
    rot: Option<u64>,
    /// Alerts of flash that was not at work, and its names.
    absent: BTreeSet<(&'static str, String)>,
}

/// What is seen at a glance.
pub(super) fn of_second(context: &Context, seen: &mut Seen) -> Vec<Condition> {
    use Severity::{Critical, Warning};
    let (cell, catalog) = (&context.cell, context.cell.store().catalog());
    let name_of = |id| catalog.members.get(id).map_or_else(|| format!("{id}"), |member| member.name.clone());
    let mut found = Vec::new();
    let statuses = cell.store().members();
    for (id, member) in &catalog.members {
        let severity = if member.role == Role::Disk { Critical } else { Warning };
        let name = &member.name;
        match statuses.get(id) {
            Some(MemberStatus::InService(_)) => {}
            Some(MemberStatus::OutOfService(_, why)) => {
                let what = format!("cell disk {name} is out of service: {why}");
                found.push(Condition::new("CellDisk_OutOfService", name, severity, what));
            }
            Some(MemberStatus::Missing) | None => {
                let what = format!("cell disk {name} is not present");
                found.push(Condition::new("CellDisk_NotPresent", name, severity, what));
            }
        }
    }
    let mut absent = BTreeSet::new();
    if let Some(record) = catalog.flash_cache.as_ref().filter(|_| !cell.is_opening()) {
        let members = cell.flash_cache();
        let failures: Vec<Option<String>> = members.iter().flat_map(|it| it.members()).map(|it| it.failure()).collect();
        let at_work = cell.flash_cache_devices();
        for id in record.regions.keys() {
            let name = name_of(id);
            let place = at_work.iter().position(|it| it == id);
            if let Some(why) = why_not(place, &failures) {
                let what = format!("the flash cache goes on without cell disk {name}: {why}");
                absent.extend(place.is_none().then(|| ("FlashCache_MemberFailed", name.clone())));
                found.push(Condition::new("FlashCache_MemberFailed", name, Warning, what));
            }
        }
    }
    if let Some(record) = &catalog.flash_log {
        let failures = cell.flash_log().map_or_else(Vec::new, |log| log.failures());
        let at_work = cell.flash_log_devices();
        for id in record.regions.keys() {
            let name = name_of(id);
            let place = at_work.iter().position(|it| it == id);
            if let Some(why) = why_not(place, &failures) {
                let what = format!("the flash log goes on without cell disk {name}: {why}");
                absent.extend(place.is_none().then(|| ("FlashLog_RingFailed", name.clone())));
                found.push(Condition::new("FlashLog_RingFailed", name, Warning, what));
            }
        }
    }
    // What is made, changed or dropped just now is in the catalog and not at work, or the other way round: that is no failure. What was
    // absent before the change began still is.
    let after = cell.store().catalog();
    if cell.is_changing() || after.flash_cache != catalog.flash_cache || after.flash_log != catalog.flash_log {
        let is_new = |it: &Condition| absent.iter().any(|new| new.0 == it.definition && new.1 == it.object);
        let was = |it: &Condition| seen.absent.iter().any(|old| old.0 == it.definition && old.1 == it.object);
        found.retain(|it| !is_new(it) || was(it));
        absent.retain(|it| seen.absent.contains(it));
    }
    seen.absent = absent;
    let served = cell.grid_disks();
    for disk in &served {
        let name = disk.name();
        if let Some(why) = disk.offline() {
            found.push(Condition::new(GRID_DISK_OFFLINE, &name, Critical, why));
        }
        let epoch = disk.lost_epoch();
        if seen.lost_epochs.insert(disk.id(), epoch).unwrap_or(0) != epoch {
            let what =
                format!("a flush of grid disk {name} failed: its un-flushed writes may be gone, clients are told");
            found.push(Condition::new("GridDisk_FlushFailed", name, Critical, what));
        }
    }
    let ids: BTreeSet<u64> = served.iter().map(|disk| disk.id()).collect();
    seen.lost_epochs.retain(|id, _| ids.contains(id));
    for record in catalog.grid_disks.values().filter(|record| !ids.contains(&record.id.0)) {
        let name = &record.name;
        let what = format!("grid disk {name} is not served: its cell disk {} is not there", name_of(&record.cell_disk));
        found.push(Condition::new("GridDisk_NotServed", name, Critical, what));
    }
    if let Some(why) = context.certificates.failure() {
        let what = format!("the certificates that are there are not used, but those before: {why}");
        found.push(Condition::new("Cell_Certificates", &catalog.cell_name, Warning, what));
    }
    if let Err(unknown) = context.access.revoked() {
        found.push(Condition::new("Cell_Revocations", &catalog.cell_name, Critical, unknown.to_string()));
    }
    if let Some(why) = context.audit.failure(&|| rows::timestamp(context.world.clock.wall()).text()) {
        let what = format!("every change is refused: the audit log cannot be written: {why}");
        found.push(Condition::new("Cell_Audit", &catalog.cell_name, Critical, what));
    }
    let notes = cell.alerts();
    let new = new_notes(&seen.notes, &notes).iter();
    found.extend(new.map(|note| Condition::new("Cell_Event", &catalog.cell_name, Warning, note.as_str())));
    seen.notes = notes;
    found
}

/// Why a device of the catalog takes no part: it has a place among those at work, each with its failure, or none.
fn why_not(place: Option<usize>, failures: &[Option<String>]) -> Option<String> {
    match place {
        Some(place) => failures.get(place).cloned().flatten(),
        None => Some("it is not at work".to_owned()),
    }
}

/// What was appended: the list grows at its end and may lose its beginning.
fn new_notes<'a>(told: &[String], now: &'a [String]) -> &'a [String] {
    let lost = (0..=told.len()).find(|lost| now.starts_with(&told[*lost..])).unwrap_or(told.len());
    &now[told.len() - lost..]
}

/// What a reading of the metrics tells.
pub(super) fn of_minute(samples: &[Sample], seen: &mut Seen) -> Vec<Condition> {
    let mut found = Vec::new();
    for Sample { definition, object, value } in samples {
        let object = &**object;
        let mib = value.div_ceil(1 << 20);
        match definition.name {
            "FL_BY_KEEP" if *value > 0 => {
                let what = format!("{mib} MB of redo are on flash alone: a disk does not take them");
                found.push(Condition::new("FlashLog_SavedRedo", object, Severity::Warning, what));
            }
            "FC_BY_STALE_DIRTY" if *value > 0 => {
                let what = format!("{mib} MB of data that no disk has are on flash that has failed");
                found.push(Condition::new("FlashCache_StaleDirty", object, Severity::Critical, what));
            }
            "CD_BY_FC_BUDGET" if *value == 0 => {
                let what = format!("the endurance budget of {object} is spent: nothing more is cached on it for now");
                found.push(Condition::new("FlashCache_EnduranceSpent", object, Severity::Warning, what));
            }
            "GD_FC_DIRTY_AGE" if Duration::from_nanos(*value) >= DIRTY_AGE_MAX => {
                let minutes = value / NS_PER_MINUTE;
                let what = format!(
                    "writes of {object} have been on flash alone for {minutes} minutes: its disk is behind, gone or frozen"
                );
                found.push(Condition::new("GridDisk_DirtyAge", object, Severity::Warning, what));
            }
            "FC_IO_ROT" => {
                let before = seen.rot.replace(*value).unwrap_or(0);
                if *value > before {
                    let what = format!("{} cached parts did not match their checksums", value - before);
                    found.push(Condition::new("FlashCache_Rot", object, Severity::Warning, what));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_notes_are_told() {
        let list = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(new_notes(&list(""), &list("ab")), list("ab"));
        assert_eq!(new_notes(&list("ab"), &list("ab")), list(""));
        assert_eq!(new_notes(&list("ab"), &list("abc")), list("c"));
        assert_eq!(new_notes(&list("abc"), &list("bcd")), list("d"), "the oldest went");
        assert_eq!(new_notes(&list("ab"), &list("cd")), list("cd"));
    }

    #[test]
    fn readings_that_tell_of_something() {
        let sample = |name: &str, value| Sample {
            definition: cell::metrics::definition(name).unwrap_or_else(|| panic!("no metric {name}")),
            object: "X".into(),
            value,
        };
        let names = |samples: &[Sample], seen: &mut Seen| -> Vec<String> {
            of_minute(samples, seen).into_iter().map(|it| it.definition).collect()
        };
        let mut seen = Seen::default();
        let hour_ns = 60 * NS_PER_MINUTE;
        let readings = |redo, stale, budget, age_ns| {
            let of = [
                ("FL_BY_KEEP", redo),
                ("FC_BY_STALE_DIRTY", stale),
                ("CD_BY_FC_BUDGET", budget),
                ("GD_FC_DIRTY_AGE", age_ns),
            ];
            of.map(|(name, value)| sample(name, value))
        };
        assert!(names(&readings(0, 0, 1, hour_ns - 1), &mut seen).is_empty());
        let loud = readings(1, 1, 0, hour_ns);
        let all = ["FlashLog_SavedRedo", "FlashCache_StaleDirty", "FlashCache_EnduranceSpent", "GridDisk_DirtyAge"];
        assert_eq!(names(&loud, &mut seen), all);
        assert_eq!(names(&[sample("FC_IO_ROT", 2)], &mut seen), ["FlashCache_Rot"]);
        assert!(names(&[sample("FC_IO_ROT", 2)], &mut seen).is_empty(), "told");
        let known = |condition: &str| crate::alerting::definition(condition).is_some();
        assert!(all.iter().all(|name| known(name)) && known("Cell_Event"));
    }
}
