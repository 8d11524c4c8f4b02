//! Errors of the store and of grid disk commands.

use crate::catalog::CatalogError;
use crate::disk::CellDisk;
use crate::error::{CellDiskError, IoError};
use crate::ids::{CellId, DeviceId};
use std::fmt::Display;

/// A device that did not take a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFailure {
    /// Which.
    pub device_id: DeviceId,
    /// Its cell disk name.
    pub name: String,
    /// Why.
    pub error: CellDiskError,
}

impl ReplicaFailure {
    /// A cell disk, under the name it has now.
    #[must_use]
    pub fn of(disk: &CellDisk, error: CellDiskError) -> ReplicaFailure {
        ReplicaFailure { device_id: disk.id(), name: disk.name(), error }
    }
}

impl Display for ReplicaFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cell disk {}: {}", self.name, self.error)
    }
}

fn list(failed: &[ReplicaFailure]) -> String {
    failed.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why a set of devices does not make a cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// None of the devices can be opened.
    #[error("no device of the cell can be opened{}", .unusable.first().map(|(n, e)| format!(": device {n}: {e}")).unwrap_or_default())]
    NoDevice {
        /// By place in the list given.
        unusable: Vec<(usize, CellDiskError)>,
    },
    /// Two devices have the same identity: one is a copy of the other.
    #[error("devices {first} and {second} are both cell disk {name}")]
    Duplicate {
        /// Place in the list given.
        first: usize,
        /// Place in the list given.
        second: usize,
        /// Cell disk name.
        name: String,
    },
    /// A device of another cell.
    #[error("device {index} is cell disk {name} of cell {found}, not of cell {expected}")]
    ForeignCell {
        /// Place in the list given.
        index: usize,
        /// Cell disk name.
        name: String,
        /// Its cell.
        found: CellId,
        /// The cell that is being opened.
        expected: CellId,
    },
    /// No device has a catalog: the cell was never finished.
    #[error("no device carries a catalog")]
    NoCatalog,
    /// A catalog for a new cell or a new member is not valid.
    #[error(transparent)]
    Invalid(#[from] CatalogError),
    /// No durable device took the new term: nothing may be served.
    #[error("no device took the new term: {}", list(.failed))]
    Lost {
        /// What failed where.
        failed: Vec<ReplicaFailure>,
    },
}

impl StoreError {
    /// What the operator can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            StoreError::Duplicate { .. } => Some("detach the copy, or give it to another cell after formatting it"),
            StoreError::ForeignCell { .. } => Some("remove it from the configuration"),
            StoreError::NoCatalog => Some("run init again with --force"),
            StoreError::NoDevice { unusable } => unusable.first().and_then(|(_, error)| error.hint()),
            StoreError::Invalid(error) => error.hint(),
            StoreError::Lost { failed } => failed.first().and_then(|failure| failure.error.hint()),
        }
    }
}

/// Why a change of the catalog did not happen. `E`: why the caller's own function refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError<E> {
    /// The caller's function said no. Nothing happened.
    #[error("{0}")]
    Refused(E),
    /// The result would not be a valid catalog. Nothing happened.
    #[error(transparent)]
    Invalid(#[from] CatalogError),
    /// No durable device is known to have it. After a restart the old or the new catalog is in force.
    #[error("no durable device took the change: {}", list(.failed))]
    Lost {
        /// What failed where.
        failed: Vec<ReplicaFailure>,
    },
}

/// Why a grid disk or flash command did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridDiskError {
    /// No such object.
    #[error("no such object")]
    NoSuch,
    /// There can be only one, and there is.
    #[error("{what} exists already")]
    Exists {
        /// Which.
        what: &'static str,
    },
    /// Its cell disk is missing or out of service.
    #[error("cell disk {name} is not present")]
    NotPresent {
        /// Cell disk name.
        name: String,
    },
    /// Not enough free space, or only in too many pieces.
    #[error("cell disk {name} has {free_bytes} bytes free, {wanted_bytes} more are needed")]
    NoSpace {
        /// Cell disk name.
        name: String,
        /// What is free.
        free_bytes: u64,
        /// What was asked.
        wanted_bytes: u64,
    },
    /// A range to pin that cannot be.
    #[error("a range is pinned in whole pages of 4096 bytes within the grid disk, which has {size_bytes} bytes")]
    Range {
        /// Of the grid disk.
        size_bytes: u64,
    },
    /// Below one allocation unit.
    #[error("{size_bytes} bytes are less than one allocation unit of {au_bytes}")]
    TooSmall {
        /// What was asked.
        size_bytes: u64,
        /// The unit.
        au_bytes: u64,
    },
    /// It is an adopted volume, which stays as it is.
    #[error("cell disk {name} is an adopted volume: {what}")]
    Adopted {
        /// Cell disk name.
        name: String,
        /// What stands against the change.
        what: &'static str,
    },
    /// Another command changed the grid disk meanwhile.
    #[error("the grid disk was changed by another command")]
    Busy,
    /// A field that only its own command changes.
    #[error("{field} cannot be set this way")]
    Fixed {
        /// Which.
        field: &'static str,
    },
    /// The cache generation has run out.
    #[error("the cache generation has reached its end")]
    Generations,
    /// A caching mode switch is under way, or none is.
    #[error("{why}")]
    Switch {
        /// What is wrong.
        why: &'static str,
    },
    /// The new space could not be zeroed.
    #[error("new space on cell disk {name} could not be zeroed: {error}")]
    Zeroing {
        /// Cell disk name.
        name: String,
        /// What failed.
        error: IoError,
    },
    /// A label could not be written.
    #[error("cell disk {name}: {error}")]
    Label {
        /// Cell disk name.
        name: String,
        /// What failed.
        error: CellDiskError,
    },
    /// The result would not be a valid catalog. Nothing happened.
    #[error(transparent)]
    Invalid(#[from] CatalogError),
    /// No durable device is known to have the change. After a restart the old or the new catalog is in force.
    #[error("no durable device took the change: {}", list(.failed))]
    Lost {
        /// What failed where.
        failed: Vec<ReplicaFailure>,
    },
}

impl GridDiskError {
    /// What the operator can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            GridDiskError::NoSpace { .. } => Some("ask for less, or drop grid disks on that cell disk"),
            GridDiskError::NotPresent { .. } => Some("attach the device and restart the cell"),
            GridDiskError::Range { .. } => Some("round the offset down and the length up to multiples of 4K"),
            GridDiskError::Busy => Some("try again"),
            GridDiskError::Adopted { .. } => Some(super::adopted::HINT),
            GridDiskError::Exists { .. } => Some("drop it first"),
            GridDiskError::Generations => Some("drop the grid disk and create it anew"),
            GridDiskError::Zeroing { error, .. } => Some(error.hint()),
            GridDiskError::Label { error, .. } => error.hint(),
            GridDiskError::Invalid(error) => error.hint(),
            GridDiskError::Lost { failed } => failed.first().and_then(|failure| failure.error.hint()),
            GridDiskError::NoSuch
            | GridDiskError::TooSmall { .. }
            | GridDiskError::Fixed { .. }
            | GridDiskError::Switch { .. } => None,
        }
    }
}

impl From<ChangeError<GridDiskError>> for GridDiskError {
    fn from(error: ChangeError<GridDiskError>) -> GridDiskError {
        match error {
            ChangeError::Refused(error) => error,
            ChangeError::Invalid(error) => GridDiskError::Invalid(error),
            ChangeError::Lost { failed } => GridDiskError::Lost { failed },
        }
    }
}
