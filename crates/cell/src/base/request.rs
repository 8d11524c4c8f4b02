//! What a request to the cell carries and what can become of it.
//!
//! Never knows a wire format.

use crate::base::fence::{Entered, Fence};
use crate::plan::Account;
use flashcache::Tenant;
use std::sync::Arc;

/// What a request is for, as far as it is known. Admission and the I/O plan go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Purpose {
    /// Nothing is known.
    #[default]
    Unknown,
    /// Data and index blocks.
    Data,
    /// Redo (write-ahead log).
    Redo,
    /// Temporary segments.
    Temp,
    /// A sequential scan, a backup, a copy.
    Scan,
    /// The cell's own work.
    Internal,
}

/// Urgency for the I/O plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum IoClass {
    /// Somebody waits for it.
    #[default]
    Foreground,
    /// May yield to foreground.
    Background,
}

/// What a request carries from the start.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The database the connection is tagged with, if any.
    pub database: Option<Arc<str>>,
    /// What it is for.
    pub purpose: Purpose,
    /// How urgent it is.
    pub class: IoClass,
    /// A commit waits for it.
    pub sync: bool,
    /// Decides whether changes of its connection may still begin. `None`: they always may.
    pub fence: Option<Arc<Fence>>,
    /// The client compares the stamp of the instance when it connects, which tells it of losses while it was away.
    pub knows_instance: bool,
    /// What the cell keeps of the database: set when the session is opened, whatever stands here.
    pub account: Option<Arc<Account>>,
}

impl Context {
    /// Begin a change, see [`crate::base::fence`]. The caller holds its range, and writes next.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn enter_fence(&self) -> Result<Option<Entered<'_>>, RequestError> {
        self.fence.as_ref().map(|fence| fence.enter()).transpose()
    }

    /// Whether the plan keeps the database from the flash cache.
    pub(crate) fn is_past_flash_cache(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_past_flash_cache())
    }

    /// Whether the plan keeps redo of the database from the flash log.
    pub(crate) fn is_past_flash_log(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_past_flash_log())
    }

    /// Whose the blocks are that it brings into the flash cache.
    pub(crate) fn tenant(&self) -> Tenant {
        self.account.as_ref().map_or(Tenant::NOBODY, |account| account.tenant())
    }

    /// The flash cache has served it.
    pub(crate) fn served_by_cache(&self, bytes: u64) {
        if let Some(account) = &self.account {
            account.served_by_cache(bytes);
        }
    }
}

/// Why a request was not done. Each maps to one errno on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A device failed (EIO), or data is known to be lost and is not guessed.
    #[error("input/output error")]
    Io,
    /// The device below is out of space (ENOSPC).
    #[error("no space left on the device below")]
    NoSpace,
    /// Beyond the end or otherwise malformed (EINVAL; a write beyond the end is ENOSPC on the wire).
    #[error("request outside the grid disk")]
    OutOfRange,
    /// The grid disk is read-only (EPERM).
    #[error("grid disk is read-only")]
    ReadOnly,
    /// Not possible here (ENOTSUP): a fast zero that would be slow.
    #[error("not supported")]
    NotSupported,
    /// The client's connection ended before the request began: it is not carried out (ESHUTDOWN).
    #[error("connection has ended")]
    Fenced,
    /// An earlier connection of the client has ended, and changes of it are still under way in a device (EIO).
    #[error("an earlier connection of this client has ended, and its last writes are still under way in a device")]
    Predecessor,
    /// The cell is stopping (ESHUTDOWN).
    #[error("cell is shutting down")]
    Stopping,
}

/// How a grid disk uses the flash cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum CachingMode {
    /// Writes go to disk and, when they are worth it, into the cache.
    #[default]
    WriteThrough,
    /// Writes are acknowledged from flash and destaged later.
    WriteBack,
    /// The same, destaged so that the disk is always as the grid disk was at some moment (I10).
    WriteBackOrdered,
    /// Writes go to disk and end cached copies; reads fill.
    WriteAround,
    /// Not cached.
    None,
}

impl CachingMode {
    /// Whether flash may hold what the disk does not have.
    #[must_use]
    pub fn is_write_back(self) -> bool {
        matches!(self, CachingMode::WriteBack | CachingMode::WriteBackOrdered)
    }
}

/// Flags of a write-zeroes request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFlags {
    /// Keep the space allocated.
    pub no_hole: bool,
    /// Fail with [`RequestError::NotSupported`] rather than be as slow as writing.
    pub fast: bool,
    /// Durable when done.
    pub fua: bool,
}

/// Where the bytes of an extent live: the values of our `flashcell:tier` meta context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// On disk only.
    Disk,
    /// On disk and, clean, in the flash cache.
    CachedClean,
    /// In the flash cache, newer than on disk.
    CachedDirty,
    /// In the flash cache under KEEP.
    Kept,
}

/// What block status tells of a stretch's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// It may be anything.
    Data,
    /// It reads as zeroes, with space allocated to it.
    Zeroes,
    /// No space is allocated and it reads as zeroes.
    Hole,
}

/// A stretch of a grid disk as block status reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// What is known of its content, and of the space below.
    pub allocation: Allocation,
    /// Where it lives.
    pub tier: Tier,
}

/// What clients of an export may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportLimits {
    /// Smallest request that needs no read-modify-write anywhere below; requests down to one byte work.
    pub preferred_bytes: u32,
    /// Zeroing is much faster than writing.
    pub fast_zeroes: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// The medium below seeks.
    pub rotational: bool,
}
