//! Errors of a single device. Each says what failed and why; `hint` says what to do.

use crate::codec::DecodeError;
use crate::ids::{CellId, DeviceId};
use crate::label::LabelError;
use device::{FailKind, Outcome, Verb};
use std::fmt;

/// A request to a device that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// What was asked.
    pub verb: Verb,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What became of it; never [`Outcome::Done`].
    pub outcome: Outcome,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::WriteZeroes => "zeroing",
            Verb::Discard => "discard",
            Verb::Flush => "flush",
            Verb::Status => "status",
        };
        if self.verb == Verb::Flush {
            write!(f, "{verb}: ")?;
        } else {
            write!(f, "{verb} of {} bytes at {}: ", self.len, self.offset)?;
        }
        match self.outcome {
            Outcome::Done => write!(f, "done"),
            Outcome::Short(done) => write!(f, "only {done} bytes were transferred"),
            Outcome::Failed(kind) => write!(f, "{kind}"),
            Outcome::Unknown => write!(f, "the device did not say whether it happened"),
        }
    }
}

impl std::error::Error for IoError {}

impl IoError {
    /// What the operator can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.outcome {
            Outcome::Failed(FailKind::NoSpace) => {
                "free space on the file system of the image, or in the pool of the volume; an image made without --sparse has its space"
            }
            _ => "check the device's log",
        }
    }

    /// Whether the request may still take effect later.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }
}

/// Why a device cannot be used as a cell disk, or a change of its label did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellDiskError {
    /// The device's geometry does not fit the format.
    #[error("the device cannot carry a cell disk: {why}")]
    Geometry {
        /// What does not fit.
        why: &'static str,
    },
    /// Too small for the metadata and one allocation unit.
    #[error("the device has {size_bytes} bytes, a cell disk needs at least {min_bytes}")]
    TooSmall {
        /// What it has.
        size_bytes: u64,
        /// What it needs.
        min_bytes: u64,
    },
    /// Nothing is on it.
    #[error("the device is blank")]
    Blank,
    /// It does not answer.
    #[error("its label has not been written in {seconds} s")]
    Late {
        /// How long that was waited for.
        seconds: u64,
    },
    /// Somebody else's data is on it.
    #[error("the device carries {what}")]
    Foreign {
        /// What was recognised.
        what: String,
    },
    /// It is a cell disk already.
    #[error("the device is cell disk {name} of cell {cell_id}")]
    InUse {
        /// Its name.
        name: String,
        /// Its cell.
        cell_id: CellId,
    },
    /// It was a cell disk, and no copy of its label is whole.
    #[error("no copy of the cell disk label is valid: {why}")]
    Damaged {
        /// What is wrong with the copies.
        why: String,
    },
    /// Written by a newer release.
    #[error("the device was written by a newer release: {0}")]
    Newer(DecodeError),
    /// The device is smaller than its label says.
    #[error("cell disk {name} was made with {label_bytes} bytes, the device has {device_bytes}")]
    Shrunk {
        /// Cell disk name.
        name: String,
        /// Recorded size.
        label_bytes: u64,
        /// Real size.
        device_bytes: u64,
    },
    /// A request failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Another device carries the same identity, and nothing tells which of the two is meant.
    #[error("another device is cell disk {name} as well: one is a copy of the other")]
    Twin {
        /// Cell disk name.
        name: String,
    },
    /// The change is not allowed.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// An earlier write has an unknown fate and may still land: nothing is written until the device is opened anew.
    #[error("device {device_id} takes no more changes: {why}")]
    Latched {
        /// Device.
        device_id: DeviceId,
        /// What happened.
        why: String,
    },
}

impl CellDiskError {
    /// What the operator can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            CellDiskError::Foreign { .. } => Some("its content would be lost; add --force if that is wanted"),
            CellDiskError::InUse { .. } => Some("serve it with its cell, or add --force to destroy it"),
            CellDiskError::Blank => Some("check that it is the right device; format it with init"),
            CellDiskError::Damaged { .. } => {
                Some("check cabling and the device's log; restore it from a copy, or add --force to format it")
            }
            CellDiskError::Twin { .. } => Some("detach the copy; the cell goes on without both until then"),
            CellDiskError::Newer(_) => Some("install the newer release"),
            CellDiskError::Shrunk { .. } => Some("give the device back the size it had"),
            CellDiskError::TooSmall { .. } => Some("use a larger device"),
            CellDiskError::Latched { .. } | CellDiskError::Late { .. } => {
                Some("restart the cell once the device answers again")
            }
            CellDiskError::Io(error) => Some(error.hint()),
            CellDiskError::Geometry { .. } | CellDiskError::Label(_) => None,
        }
    }
}
