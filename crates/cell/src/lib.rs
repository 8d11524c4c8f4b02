//! One cell: the request path, range locks, counters, and what it serves.
//!
//! This crate never opens a socket, never knows a wire or text format, and has no threads of its own.

mod access;
mod activate;
mod active;
pub mod admin;
mod adopted;
mod cache_mode;
mod cached;
pub mod cell;
mod cell_disks;
mod client_io;
mod compared;
pub mod counters;
mod discard;
mod divert;
mod early;
mod edges;
mod expel;
pub mod feed;
pub mod fence;
mod flush;
pub mod freeze;
pub mod grid_disk;
pub mod housekeeping;
pub mod iorm;
mod loss;
mod membership;
pub mod metrics;
pub mod note;
pub mod offer;
pub mod open;
pub mod ordered;
mod path;
mod pin;
pub mod range_lock;
mod rebind;
mod recorder;
mod redo;
mod refill;
pub mod request;
pub mod saving;
pub mod session;
pub mod stamps;
mod streams;
mod tally;
mod tiers;
mod traced;
mod transfer;
mod write_back;

pub use activate::{Deactivation, Hindrance};
pub use active::{ACTIVE_PER_SESSION_MAX, ActiveKind, ActiveRequest};
pub use admin::{AdminError, GridDiskLabels};
pub use cache_mode::FLASH_CACHE_MODE;
pub use cell::{Cell, CellConfig};
pub use feed::FeedConfig;
pub use fence::Fence;
pub use flashlog::Answered;
pub use flush::FlushStatus;
pub use grid_disk::{GridDisk, GridDiskParts, PART_BYTES};
pub use loss::CellDevice;
pub use note::Note;
pub use offer::{Offered, VictimSink};
pub use open::{CellError, NewDevice, OpenReport};
pub use ordered::LastCopy;
pub use recorder::{RECORDED_MAX, Recorded};
pub use redo::{FLASH_LOG_BYTES_DEFAULT, FLASH_LOG_SHARE_OF_FLASH, NoRoomForLog, RING_BYTES_MIN, RedoWrite};
pub use refill::HotLists;
pub use request::{
    Allocation, CachingMode, Context, ExportLimits, Extent, IoClass, Purpose, RequestError, Tier, ZeroFlags,
};
pub use session::Session;
pub use tally::Tallied;
pub use traced::TracedRequest;
