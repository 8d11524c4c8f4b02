//! One cell: the request path, range locks, counters, and what it serves.
//!
//! This crate never opens a socket, never knows a wire or text format, and has no threads of its own.

mod cached;
pub mod cell;
pub mod counters;
pub mod grid_disk;
pub mod housekeeping;
mod path;
pub mod range_lock;
pub mod request;
pub mod session;

pub use cell::Cell;
pub use grid_disk::{GridDisk, GridDiskParts, PART_BYTES};
pub use request::{CachingMode, Context, ExportLimits, Extent, IoClass, Purpose, RequestError, Tier, ZeroFlags};
pub use session::Session;
