//! What a cell exports to a client: names, sizes, flags.

use super::FrontEndLimits;
use super::door::Client;
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

/// Why a client cannot have an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoExport {
    /// There is none of that name for this client. Whether there is one for others is not told, not even by how long the answer takes.
    Unknown,
    /// The client may not have it: why, for people.
    NotForYou(String),
    /// Its operator has taken this grid disk out of service.
    Inactive(String),
    /// The default export is a grid disk of this name, which there is not.
    NoDefault(String),
}

/// Where a handshake looks exports up.
pub trait Exports {
    /// Names and descriptions, in the order they are listed.
    fn list(&self) -> Vec<(String, String)>;
    /// The export a client means by `name`.
    ///
    /// # Errors
    /// See [`NoExport`].
    fn find(&self, name: &str) -> Result<ExportInfo, NoExport>;
    /// The present instance stamp.
    fn instance_stamp(&self) -> u128;
}

/// No exports at all, and why.
pub(super) struct NoExports(pub(super) String);

impl Exports for NoExports {
    fn list(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn find(&self, _name: &str) -> Result<ExportInfo, NoExport> {
        Err(NoExport::NotForYou(self.0.clone()))
    }

    fn instance_stamp(&self) -> u128 {
        0
    }
}

/// The grid disks of a cell, as far as they are for a client.
pub(super) struct CellExports<'a> {
    pub(super) client: &'a Client,
    pub(super) cell: &'a cell::Cell,
    pub(super) limits: &'a FrontEndLimits,
    /// The grid disk that the empty name means; none: the only one there is for the client.
    pub(super) default: Option<&'a str>,
}

impl CellExports<'_> {
    /// Those for the client, in the order they are listed.
    fn own(&self) -> Vec<Arc<cell::GridDisk>> {
        let mut disks = self.cell.grid_disks();
        disks.retain(|disk| self.client.may_use(&disk.available_to()));
        disks
    }

    /// Of these, those in service.
    fn in_service(&self) -> Vec<Arc<cell::GridDisk>> {
        let mut disks = self.own();
        disks.retain(|disk| !disk.is_inactive());
        disks
    }

    /// The export of a grid disk that is for the client.
    fn open(&self, disk: &cell::GridDisk, tag: Option<&str>) -> Result<ExportInfo, NoExport> {
        let (name, who) = (disk.name(), &self.client.who);
        if disk.is_inactive() {
            return Err(NoExport::Inactive(name));
        }
        let Some(database) = self.client.tag(tag) else {
            let (tag, own) = (tag.unwrap_or_default(), self.client.database.as_deref().unwrap_or_default());
            return Err(NoExport::NotForYou(format!("{who} does not work for {tag}; hint: {name}@{own}")));
        };
        Ok(self.describe(disk, tag, database))
    }

    fn describe(&self, disk: &cell::GridDisk, tag: Option<&str>, database: Option<Arc<str>>) -> ExportInfo {
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
            .with_if(TransmissionFlags::READ_ONLY, limits.read_only || !self.client.may_write);
        ExportInfo {
            name: tag.map_or_else(|| grid_disk.clone(), |tag| format!("{grid_disk}@{tag}")),
            description: describe(disk),
            grid_disk,
            database,
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
        self.in_service().iter().map(|disk| (disk.name(), describe(disk))).collect()
    }

    fn find(&self, name: &str) -> Result<ExportInfo, NoExport> {
        let (grid_disk, tag) = match name.split_once('@') {
            Some((_, tag)) if tag.is_empty() || tag.len() > DATABASE_BYTES_MAX => return Err(NoExport::Unknown),
            Some((grid_disk, tag)) => (grid_disk, Some(tag)),
            None => (name, None),
        };
        if grid_disk.is_empty() {
            // The default export: the one that is named so, or the only one that this client can mean.
            let in_service = self.in_service();
            let may_be_meant = if in_service.is_empty() { self.own() } else { in_service };
            return match (self.default, &may_be_meant[..]) {
                (Some(name), _) => match self.cell.grid_disk(name) {
                    Some(disk) => self.open(&disk, tag),
                    None => Err(NoExport::NoDefault(name.to_owned())),
                },
                (None, [only]) => self.open(only, tag),
                (None, _) => Err(NoExport::Unknown),
            };
        }
        // Looked for among those that are for the client: the work is the same whether or not there is another one of that name.
        let found = self.own().into_iter().find(|disk| disk.name().eq_ignore_ascii_case(grid_disk));
        let disk = found.ok_or(NoExport::Unknown)?;
        self.open(&disk, tag)
    }

    fn instance_stamp(&self) -> u128 {
        self.cell.instance_stamp()
    }
}
