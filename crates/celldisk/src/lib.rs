//! Physical disk to cell disk to grid disk: label, superblock, replicated catalog, allocation.
//!
//! Every device a cell manages, disk or flash, carries the same layout ([`layout`]): two superblock slots, each with the
//! device's [`Label`] and a replica of the cell's [`Catalog`], then allocation units. `docs/internals/disk-format.md`
//! draws it and gives the commit protocol.
//!
//! Knows no cache and no network; never decides what dirty data means, only records it. Never retries an I/O.

mod allocate;
mod beside;
pub mod catalog;
pub mod claim;
pub mod codec;
pub mod dirty;
mod disk;
mod error;
mod fingerprint;
pub mod ids;
pub mod label;
pub mod layout;
mod media;
mod names;
mod probe;
mod sabotage;
pub mod section;
mod signatures;
mod slice;
mod slots;
mod store;

pub use beside::{Beside, BesideError, METADATA_BYTES};
pub use catalog::{
    CachingMode, CachingPolicy, CachingRange, Catalog, CatalogError, Extent, FillStrategy, FlashCache, FlashLog,
    FlashLogMode, GridDisk, Lineage, Member, ModeSwitch, OUTLIER_MS_DEFAULT, Purpose, TermMark,
};
pub use codec::DecodeError;
pub use dirty::DirtyMap;
pub use disk::{CellDisk, FormatOptions};
pub use error::{CellDiskError, IoError};
pub use fingerprint::fingerprint;
pub use ids::{CellId, DeviceId, GridDiskId, Stamp};
pub use label::{Adopted, Checkpoint, DiskStamp, FlashMember, FlashState, Label, LabelError, Role};
pub use layout::{CACHING_RANGES_MAX, Place, Slot};
pub use probe::{Probe, probe};
pub use sabotage::Sabotage;
pub use slice::{Slice, join_outcomes};
pub use store::{
    CellStore, ChangeError, Changed, FlashCacheSpace, FlashCacheSpec, FlashLogSpec, FlashPatience, GridDiskError,
    GridDiskSpec, JournalSpace, MemberStatus, OpenOptions, Opened, Renewal, ReplicaFailure, StoreError, StoreReport,
    grid_disk_bytes,
};
