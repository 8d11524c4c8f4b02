//! One cell: the request path, range locks, counters, and what it serves.
//!
//! This crate never opens a socket, never knows a wire or text format, and has no threads of its own.

mod admin;
mod backing;
mod base;
mod disk;
mod durability;
mod fill;
mod lifecycle;
pub mod metrics;
pub mod plan;
mod redo;
mod request;

pub use admin::GridDiskLabels;
pub use admin::activate::{Deactivation, Hindrance};
pub use admin::cache_mode::FLASH_CACHE_MODE;
pub use admin::freeze::{FREEZE_DEFAULT, FrozenDisk};
pub use admin::iorm::PlanChange;
pub use backing::ordered::{BatchStage, journal_space_bytes};
pub use base::active::{ACTIVE_PER_SESSION_MAX, ActiveKind, ActiveRequest};
pub use base::counters::SMALL_BYTES_MAX;
pub use base::fence::Fence;
pub use base::log_room::{FLASH_LOG_BYTES_DEFAULT, FLASH_LOG_SHARE_OF_FLASH, NoRoomForLog, RING_BYTES_MIN};
pub use base::recorder::{RECORDED_MAX, Recorded};
pub use base::request::{
    Allocation, CachingMode, Context, ExportLimits, Extent, IoClass, Purpose, RequestError, Tier, ZeroFlags,
};
pub use base::tally::Tallied;
pub use base::units::PART_BYTES;
pub use disk::error::{AdminError, CellError};
pub use disk::grid_disk::{GridDisk, GridDiskParts};
pub use disk::last_copy::LastCopy;
pub use disk::loss::CellDevice;
pub use disk::redo_record::RedoWrite;
pub use disk::traced::TracedRequest;
pub use fill::feed::FeedConfig;
pub use fill::note::Note;
pub use fill::offer::{Offered, VictimSink};
pub use flashlog::Answered;
pub use lifecycle::cell::{Cell, CellConfig, FlushStatus, SEQUENTIAL_CUTOFF_BYTES};
pub use lifecycle::open::{NewDevice, OpenReport};
pub use lifecycle::refill::HotLists;
pub use lifecycle::stamps::EVERY as STAMPS_EVERY;
pub use request::session::Session;
