//! What every room of the flash cache uses: units, counters, tenants, grid disks as the cache knows them, marked regions.
//!
//! Never knows a member.

pub(crate) mod busy;
pub(crate) mod counters;
pub(crate) mod disk;
pub(crate) mod mechanism;
pub(crate) mod regions;
pub(crate) mod sabotage;
pub(crate) mod tenant;
pub mod units;
