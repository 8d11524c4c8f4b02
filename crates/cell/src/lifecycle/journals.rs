//! Journals at a start: a batch that counts is put in place before anything else looks at its disk, with flash or without. That of an adopted volume
//! that others may have used waits until the volume has been compared with its flash.
//!
//! Applying one twice does no harm: nothing else has reached the disk since. Never decides whether the grid disk is served.

use crate::backing::ordered::format::Owner;
use crate::backing::ordered::journal::{Journal, JournalError};
use crate::backing::write_back::Pace;
use crate::lifecycle::adopted::{Found, forget_fingerprint, used_note};
use crate::lifecycle::open::OpenReport;
use celldisk::{CellStore, DeviceId, GridDiskId};
use device::{Device, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The journals of a cell's grid disks.
pub(crate) type Journals = BTreeMap<GridDiskId, Arc<Journal>>;

/// Whose journal that of a grid disk is.
pub(crate) fn owner_of(store: &CellStore, record: &celldisk::GridDisk) -> Owner {
    Owner { cell: store.cell_id().0, device: record.cell_disk.0, grid_disk: record.id.0 }
}

/// What has become of the journals of a cell's grid disks.
#[derive(Default)]
pub(crate) struct RecoveredJournals {
    pub(crate) journals: Journals,
    /// Grid disks whose journal could not be used now, with the reason.
    pub(crate) failed: BTreeMap<GridDiskId, String>,
    /// Grid disks of adopted volumes that were used without the cell: what counts in their journals was left there, with the reason.
    pub(crate) left: BTreeMap<GridDiskId, String>,
}

/// Read every journal and put in place what counts, but not over what somebody else has made of a volume (`used`), unless flash is `believed`;
/// and not before it has been compared with its flash where that has to tell (`volumes`), see [`crate::lifecycle::compared`].
pub(crate) async fn recover_journals(
    store: &Arc<CellStore>,
    volumes: &BTreeMap<DeviceId, Found>,
    used: &BTreeSet<GridDiskId>,
    believed: Option<DeviceId>,
    report: &mut OpenReport,
) -> RecoveredJournals {
    let RecoveredJournals { mut journals, mut failed, mut left } = RecoveredJournals::default();
    for record in store.catalog().grid_disks.values() {
        let (Ok(device), Ok(disk)) = (store.journal_slice(record.id), store.slice(record.id)) else { continue };
        let opened = Journal::open(device, owner_of(store, record)).await;
        let recovered = match opened {
            Ok(journal) if used.contains(&record.id) => {
                if !journal.is_void() {
                    left.insert(record.id, used_note(&record.name));
                }
                journals.insert(record.id, Arc::new(journal));
                continue;
            }
            Ok(journal) => {
                let waits = volumes.get(&record.cell_disk).is_some_and(Found::is_uncertain)
                    && record.is_write_back()
                    && is_flash_there(store, record);
                // From here on an adopted volume is not as it was left.
                let may_change = waits
                    || journal.is_void()
                    || believed == Some(record.cell_disk)
                    || forget_fingerprint(store, record.cell_disk).await.is_ok();
                let recovered = match may_change {
                    true if waits => Ok(0),
                    true => put_in_place(&journal, &(disk as Device)).await,
                    false => Err(JournalError::Io),
                };
                journals.insert(record.id, Arc::new(journal));
                recovered
            }
            Err(error) => Err(error),
        };
        failed.extend(told(&record.name, recovered, report).map(|why| (record.id, why)));
    }
    RecoveredJournals { journals, failed, left }
}

/// Whether all flash that may have what the disk has not is there, so that there is something to compare the disk with.
fn is_flash_there(store: &CellStore, record: &celldisk::GridDisk) -> bool {
    store.cell_disk(record.cell_disk).is_some_and(|home| {
        home.label()
            .flash_members
            .iter()
            .all(|(id, flash)| !flash.state.holds_dirty() || store.cell_disk(*id).is_some())
    })
}

/// Put a journal in place that had to wait. Why its grid disk has to stay offline, if it could not be.
pub(crate) async fn put_late(name: &str, journal: &Journal, disk: &Device, report: &mut OpenReport) -> Option<String> {
    let recovered = put_in_place(journal, disk).await;
    told(name, recovered, report)
}

/// What became of a journal, for the log. Why its grid disk has to stay offline, if it has to.
fn told(name: &str, recovered: Result<u64, JournalError>, report: &mut OpenReport) -> Option<String> {
    let note = match recovered {
        Ok(0) => return None,
        Ok(bytes) => format!("grid disk {name}: a batch of {bytes} bytes in its journal was put in place"),
        Err(JournalError::Rotten) => {
            format!("grid disk {name}: its journal is rotten, so its disk is not whole without its flash")
        }
        Err(JournalError::Io) => {
            let why = format!(
                "grid disk {name} is offline: its journal could not be read or put in place; hint: see to its disk and restart the cell"
            );
            report.notes.push(why.clone());
            return Some(why);
        }
    };
    report.notes.push(note);
    None
}

async fn put_in_place(journal: &Journal, disk: &Device) -> Result<u64, JournalError> {
    let header = journal.now().ok_or(JournalError::Rotten)?;
    if journal.is_void() {
        return Ok(0);
    }
    let applied = journal.apply(disk, || Pace::Hurried, |_| async {}).await?;
    if disk.flush().await.outcome != Outcome::Done {
        return Err(JournalError::Io);
    }
    journal.make_void(header.as_of).await?;
    Ok(applied.bytes)
}
