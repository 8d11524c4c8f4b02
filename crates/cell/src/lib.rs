//! One cell: the request path, range locks, counters, and what it serves.
//!
//! This crate never opens a socket, never knows a wire or text format, and has no threads of its own.

pub mod admin;
mod cached;
pub mod cell;
pub mod counters;
mod discard;
mod divert;
mod expel;
mod flush;
pub mod grid_disk;
pub mod housekeeping;
mod keep_metrics;
mod loss;
pub mod member_metrics;
pub mod metrics;
pub mod open;
pub mod ordered;
mod ordered_metrics;
mod path;
mod pin;
pub mod range_lock;
mod rebind;
mod redo;
pub mod redo_metrics;
pub mod request;
pub mod saving;
pub mod session;
mod transfer;
mod write_back;

pub use admin::AdminError;
pub use cell::{Cell, CellConfig};
pub use grid_disk::{GridDisk, GridDiskParts, PART_BYTES};
pub use open::{CellError, NewDevice, OpenReport};
pub use redo::{FLASH_LOG_BYTES_DEFAULT, RING_BYTES_MIN};
pub use request::{CachingMode, Context, ExportLimits, Extent, IoClass, Purpose, RequestError, Tier, ZeroFlags};
pub use session::Session;
