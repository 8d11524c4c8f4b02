//! The grid disk that a file system is on, and its cell.

use super::FilesError;
use super::place::PlaceError;
use super::place::{Below, Layout};
use crate::admin::{HELD_PATH, HeldAnswer, HeldRequest};
use crate::console::address_of;
use crate::http::Client;
use std::path::{Path, PathBuf};

/// What was said of it; what was not is that of the attached grid disk that the file system is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// A cell's directory, or `HOST[:PORT]`; none, and not attached: as [`crate::console::ConsoleOptions::cell`].
    pub cell: Option<String>,
    /// The grid disk.
    pub grid_disk: Option<String>,
    /// Where on the grid disk the file system begins, bytes; none: as the kernel tells of its device.
    pub offset_bytes: Option<u64>,
}

/// See the module.
pub(super) struct Target {
    pub(super) client: Client,
    pub(super) grid_disk: String,
    pub(super) size_bytes: u64,
    /// Where on it the file system lies.
    pub(super) layout: Layout,
    /// The directory of the cell, when it is one of this host.
    pub(super) cell_dir: Option<PathBuf>,
}

impl Target {
    /// Of the file system of `path`, which is on `device` (`st_dev`).
    pub(super) fn find(device: u64, path: &Path, given: &Whereabouts) -> Result<Target, FilesError> {
        let below = Below::find(device);
        // What is told needs not be found out.
        let attached = match &below {
            Ok(below) => below.attached(given.grid_disk.as_deref())?,
            Err(_) => None,
        };
        let grid_disk = match (&given.grid_disk, attached, &below) {
            (Some(grid_disk), ..) => grid_disk.clone(),
            (None, Some(attached), _) => attached.grid_disk.clone(),
            (None, None, Err(PlaceError::NoDevice { .. }) | Ok(_)) => {
                return Err(FilesError::NotAttached { path: path.to_owned() });
            }
            (None, None, Err(_)) => {
                return Err(below.err().map_or(FilesError::NotAttached { path: path.to_owned() }, Into::into));
            }
        };
        let cell = given.cell.clone().or_else(|| attached?.cell.clone());
        let client = Client::new(address_of(cell.as_deref())?)?;
        // Whether there is such a grid disk, before a walk over a million files.
        let request = HeldRequest { grid_disk: grid_disk.clone(), ranges: Vec::new() };
        let size_bytes = client.ask::<_, HeldAnswer>(HELD_PATH, &request)?.size_bytes;
        let layout = match given.offset_bytes {
            Some(offset) => Layout::whole(offset, size_bytes),
            None => below?.layout(&grid_disk, size_bytes)?,
        };
        let cell_dir = cell.map(PathBuf::from).filter(|dir| dir.is_dir());
        Ok(Target { client, grid_disk, size_bytes, layout, cell_dir })
    }
}
