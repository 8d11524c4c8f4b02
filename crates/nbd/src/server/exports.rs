//! What a cell exports: names, sizes, flags.

use super::FrontEndLimits;
use crate::codec::TransmissionFlags;
use std::sync::Arc;

/// Longest database name in an export name: longer than any database allows.
pub const DATABASE_BYTES_MAX: usize = 128;

/// An export as a handshake sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The canonical export name.
    pub name: String,
    /// The grid disk behind it.
    pub grid_disk: String,
    /// The database the name tags the connection with.
    pub database: Option<Arc<str>>,
    /// A line for people.
    pub description: String,
    /// Bytes.
    pub size_bytes: u64,
    /// What it can do, structured replies aside.
    pub flags: TransmissionFlags,
    /// Fast from here on.
    pub block_bytes_preferred: u32,
    /// Longest payload.
    pub block_bytes_max: u32,
}

/// Where a handshake looks exports up.
pub trait Exports {
    /// Names and descriptions, in the order they are listed.
    fn list(&self) -> Vec<(String, String)>;
    /// The export a client means by `name`.
    fn find(&self, name: &str) -> Option<ExportInfo>;
    /// The present instance stamp.
    fn instance_stamp(&self) -> u128;
}

/// The grid disks of a cell.
pub(super) struct CellExports<'a> {
    pub(super) cell: &'a cell::Cell,
    pub(super) limits: &'a FrontEndLimits,
}

impl CellExports<'_> {
    fn describe(&self, disk: &cell::GridDisk, database: Option<&str>) -> ExportInfo {
        let limits = disk.limits();
        let grid_disk = disk.name();
        let flags = TransmissionFlags::HAS_FLAGS
            .with(TransmissionFlags::SEND_FLUSH)
            .with(TransmissionFlags::SEND_FUA)
            .with(TransmissionFlags::SEND_TRIM)
            .with(TransmissionFlags::SEND_WRITE_ZEROES)
            .with(TransmissionFlags::SEND_FAST_ZERO)
            .with(TransmissionFlags::SEND_CACHE)
            .with(TransmissionFlags::CAN_MULTI_CONN)
            .with_if(TransmissionFlags::ROTATIONAL, limits.rotational)
            .with_if(TransmissionFlags::READ_ONLY, limits.read_only);
        ExportInfo {
            name: database.map_or_else(|| grid_disk.clone(), |d| format!("{grid_disk}@{d}")),
            description: describe(disk),
            grid_disk,
            database: database.map(Arc::from),
            size_bytes: disk.size_bytes(),
            flags,
            // The protocol wants a power of two between 512 and the maximum.
            block_bytes_preferred: limits
                .preferred_bytes
                .clamp(512, self.limits.payload_bytes_max)
                .checked_next_power_of_two()
                .unwrap_or(4096),
            block_bytes_max: self.limits.payload_bytes_max,
        }
    }
}

fn describe(disk: &cell::GridDisk) -> String {
    format!("grid disk, {} MiB", disk.size_bytes() >> 20)
}

impl Exports for CellExports<'_> {
    fn list(&self) -> Vec<(String, String)> {
        self.cell.grid_disks().iter().map(|disk| (disk.name(), describe(disk))).collect()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let (grid_disk, database) = match name.split_once('@') {
            Some((_, database)) if database.is_empty() || database.len() > DATABASE_BYTES_MAX => return None,
            Some((grid_disk, database)) => (grid_disk, Some(database)),
            None => (name, None),
        };
        if grid_disk.is_empty() {
            // The default export: there is one only when nobody can mean another.
            return match &self.cell.grid_disks()[..] {
                [only] => Some(self.describe(only, database)),
                _ => None,
            };
        }
        self.cell.grid_disk(grid_disk).map(|disk| self.describe(&disk, database))
    }

    fn instance_stamp(&self) -> u128 {
        self.cell.instance_stamp()
    }
}
