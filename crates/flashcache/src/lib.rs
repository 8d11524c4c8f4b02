//! The flash cache: index, policy, segments, admission, recovery.
//!
//! Clean and dirty data in front of slow disks, appended in chunks to segments of flash, found again after a crash. The design is in
//! `docs/internals/flash-cache.md`. This crate never touches a slow disk, a socket or a client; policies never do I/O.

mod admission;
mod base;
mod data;
pub mod format;
mod index;
mod log;
mod member;
pub mod model;
mod placement;
mod recovery;

pub use admission::governor::{Endurance, EnduranceError, EnduranceFigures};
pub use admission::keep::KeepUsage;
pub use admission::quota::{Quota, Quotas};
pub use admission::worth::{Worth, WorthMap};
pub use admission::{governor, meter, policy};
pub use base::busy::{BusyFlash, BusyTuning, SHARE_WHOLE};
pub use base::counters::Counters;
pub use base::disk::{DiskHandle, FillCause};
pub use base::mechanism::Mechanism;
pub use base::regions::{RegionKey, Suspect};
pub use base::sabotage::Sabotage;
pub use base::tenant::{TENANTS_MAX, Tenant, TenantSet};
pub use base::units;
pub use base::units::{BLOCKS_MAX, DiskSlot, PART_BYTES, REGION_BYTES};
pub use data::fill::FillReport;
pub use data::read::{Hit, HitError, Residence, Stretch};
pub use data::write_back::{DestagedList, DirtyOfDisk, DirtyRefused, DirtyRun, RunLimits};
pub use format::checkpoint;
pub use member::memory::{MemoryNeed, MemoryShort, block_within, need_bytes};
pub use member::{Member, MemberConfig, MemberError, SegmentCounts, check_area};
pub use placement::cache::{CacheConfig, CachedDisk, FlashCache, LabelRefused, MemberDevice, SettleList, WriteTicket};
pub use placement::content::Content;
pub use placement::hot;
pub use recovery::recover::{Evidence, Recovered};
pub use recovery::snapshot::CheckpointPlace;
