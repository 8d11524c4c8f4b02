//! The grid disk of an adopted volume, see [`crate::Beside`]: all of the volume, as it is, for as long as it is adopted.
//!
//! Never zeroes, never moves, and allocates nothing but a journal, beside the volume: every other command that would change what lies where on
//! such a cell disk is refused.

use super::{CellStore, Changed, GridDiskError, GridDiskSpec};
use crate::catalog::{CachingMode, Extent, GridDisk, Purpose};
use crate::ids::{DeviceId, GridDiskId};
use crate::label::{Adopted, Label};

/// Why write-back-ordered is refused where `--exclusive-use` was not said.
const WITHOUT_WORD: &str = "it was adopted without --exclusive-use, so that it is not cached in write-back-ordered";

/// Whether a label is that of an adopted volume with room for a journal beside it.
fn is_with_journal(label: &Label) -> bool {
    label.adopted.is_some_and(|adopted| label.au_count() > adopted.au_count())
}

/// The way out of everything that an adopted volume refuses.
pub(super) const HINT: &str = "`flashcell release` gives the volume back as it is; then make of it what you want";

impl CellStore {
    /// What a cell disk has adopted; none: it is an ordinary one, or not there.
    #[must_use]
    pub fn adopted(&self, device_id: DeviceId) -> Option<Adopted> {
        self.cell_disk(device_id).and_then(|disk| disk.label().adopted)
    }

    /// Refuse a change of what an adopted volume is.
    ///
    /// # Errors
    /// The cell disk is one.
    pub fn check_not_adopted(&self, device_id: DeviceId, what: &'static str) -> Result<(), GridDiskError> {
        match self.cell_disk(device_id).filter(|disk| disk.label().adopted.is_some()) {
            Some(disk) => Err(GridDiskError::Adopted { name: disk.name(), what }),
            None => Ok(()),
        }
    }

    /// Whether what flash has of an adopted volume may be newer than the volume: its owner has given his word that nobody else uses it,
    /// and so there is room for a journal beside it.
    #[must_use]
    pub fn is_adopted_for_write_back(&self, device_id: DeviceId) -> bool {
        self.cell_disk(device_id).map(|disk| disk.label()).is_some_and(|label| is_with_journal(&label))
    }

    /// Whether a grid disk may be like this on its cell disk.
    ///
    /// # Errors
    /// That is an adopted volume, and the grid disk would be in plain write-back, in write-back-ordered without room for a journal, or carry redo.
    pub fn check_adopted_mode(&self, disk: &GridDisk) -> Result<(), GridDiskError> {
        match disk.caching_mode {
            CachingMode::WriteBack => {
                self.check_not_adopted(
                    disk.cell_disk,
                    "it is not cached in write-back, for without its flash it would be torn",
                )?;
            }
            CachingMode::WriteBackOrdered if !self.is_adopted_for_write_back(disk.cell_disk) => {
                self.check_not_adopted(disk.cell_disk, WITHOUT_WORD)?;
            }
            _ => {}
        }
        if disk.purpose == Purpose::Redo {
            self.check_not_adopted(disk.cell_disk, "it carries no redo")?;
        }
        Ok(())
    }

    /// Make the grid disk of an adopted volume. It shows what is on the volume; `spec.size_bytes` does not count.
    ///
    /// # Errors
    /// The cell disk is no adopted volume, or has its grid disk; write-back, redo; a name that is taken or not valid; no device took the change.
    pub async fn adopt_volume(&self, spec: GridDiskSpec) -> Result<Changed<GridDisk>, GridDiskError> {
        let disk = self.disk_in_service(spec.cell_disk)?;
        let label = disk.label();
        let Some(adopted) = label.adopted else { return Err(GridDiskError::NoSuch) };
        let extent = Extent { start_au: 0, count_au: adopted.au_count() };
        let size_bytes = extent.len_bytes(label.au_bytes);
        let new = GridDisk { extents: vec![extent], ..GridDisk::of_spec(spec, size_bytes) };
        self.check_adopted_mode(&new)?;
        let changed = self
            .change(|catalog| {
                if catalog.grid_disks.values().any(|other| other.cell_disk == new.cell_disk) {
                    return Err(GridDiskError::Exists { what: "the grid disk of the volume" });
                }
                let id = catalog.next_grid_disk_id;
                catalog.next_grid_disk_id = GridDiskId(id.0.checked_add(1).ok_or(GridDiskError::Generations)?);
                let new = GridDisk { id, ..new };
                catalog.grid_disks.insert(id, new.clone());
                Ok(new)
            })
            .await?;
        Ok(changed)
    }
}
