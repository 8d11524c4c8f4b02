//! The flash cache: index, policy, segments, admission, recovery.
//!
//! Clean and dirty data in front of slow disks, appended in chunks to segments of flash, found again after a crash. The design is in
//! `docs/internals/flash-cache.md`. This crate never touches a slow disk, a socket or a client; policies never do I/O.

pub mod busy;
pub mod cache;
mod carry;
pub mod checkpoint;
mod content;
mod copy;
pub mod counters;
mod dirty;
mod fill;
pub mod format;
pub mod governor;
mod head;
mod health;
pub mod hot;
pub mod index;
mod keep;
mod lifetimes;
pub mod live;
mod log;
pub mod member;
pub mod memory;
pub mod meter;
mod mirror;
pub mod model;
pub mod policy;
pub mod quota;
mod read;
mod reclaim;
mod recover;
pub mod regions;
mod reopen;
mod restore;
pub mod sabotage;
mod sample;
mod segment;
mod slots;
mod snapshot;
pub mod succession;
mod sync;
pub mod tenant;
mod undurable;
pub mod units;
pub mod worth;
pub mod write_back;

pub use busy::{BusyFlash, BusyTuning};
pub use cache::{CacheConfig, CachedDisk, DiskHandle, FlashCache, LabelRefused, MemberDevice, SettleList, WriteTicket};
pub use content::Content;
pub use counters::Counters;
pub use fill::{FillCause, FillReport};
pub use governor::{Endurance, EnduranceError, EnduranceFigures};
pub use keep::KeepUsage;
pub use member::{Member, MemberConfig, MemberError, SegmentCounts, check_area};
pub use memory::{MemoryNeed, MemoryShort, block_within, need_bytes};
pub use quota::{Quota, Quotas};
pub use read::{Hit, HitError, Residence, Stretch};
pub use recover::{Evidence, Recovered};
pub use regions::{RegionKey, Suspect};
pub use sabotage::Sabotage;
pub use snapshot::CheckpointPlace;
pub use tenant::{TENANTS_MAX, Tenant, TenantSet};
pub use units::{BLOCKS_MAX, DiskSlot, PART_BYTES, REGION_BYTES};
pub use worth::{Worth, WorthMap};
pub use write_back::{DestagedList, DirtyOfDisk, DirtyRefused, DirtyRun, RunLimits};
