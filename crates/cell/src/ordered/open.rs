//! Journals at a start: a batch that counts is put in place before anything else looks at its disk, with flash or without.
//!
//! Applying one twice does no harm: nothing else has reached the disk since. Never decides whether the grid disk is served.

use super::format::Owner;
use super::journal::{Journal, JournalError};
use crate::adopted::{forget_fingerprint, used_note};
use crate::open::OpenReport;
use crate::write_back::Pace;
use celldisk::{CellStore, DeviceId, GridDiskId};
use device::{Device, Outcome, WallTime};
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

/// Read every journal and put in place what counts, but not over what somebody else has made of a volume (`used`), unless flash is `believed`.
pub(crate) async fn recover_journals(
    store: &Arc<CellStore>,
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
                // From here on an adopted volume is not as it was left.
                let may_change = journal.is_void()
                    || believed == Some(record.cell_disk)
                    || forget_fingerprint(store, record.cell_disk).await.is_ok();
                let recovered = match may_change {
                    true => put_in_place(&journal, &(disk as Device)).await,
                    false => Err(JournalError::Io),
                };
                journals.insert(record.id, Arc::new(journal));
                recovered
            }
            Err(error) => Err(error),
        };
        match recovered {
            Ok(0) => {}
            Ok(bytes) => report
                .notes
                .push(format!("grid disk {}: a batch of {bytes} bytes in its journal was put in place", record.name)),
            Err(JournalError::Rotten) => report.notes.push(format!(
                "grid disk {}: its journal is rotten, so its disk is not whole without its flash",
                record.name
            )),
            Err(JournalError::Io) => {
                let why = format!(
                    "grid disk {} is offline: its journal could not be read or put in place; hint: see to its disk and \
                     restart the cell",
                    record.name
                );
                report.notes.push(why.clone());
                failed.insert(record.id, why);
            }
        }
    }
    RecoveredJournals { journals, failed, left }
}

async fn put_in_place(journal: &Journal, disk: &Device) -> Result<u64, JournalError> {
    let header = journal.now().ok_or(JournalError::Rotten)?;
    if journal.is_void() {
        return Ok(0);
    }
    let bytes = journal.apply(disk, || Pace::Hurried, |_| async {}).await?;
    if disk.flush().await.outcome != Outcome::Done {
        return Err(JournalError::Io);
    }
    journal.make_void(header.as_of).await?;
    Ok(bytes)
}

/// Of which moment of the grid disk its disk is; none when that is not known.
pub(crate) fn as_of(journal: &Journal) -> Option<WallTime> {
    journal.now().filter(|header| journal.is_void() && header.as_of > WallTime(0)).map(|header| header.as_of)
}
