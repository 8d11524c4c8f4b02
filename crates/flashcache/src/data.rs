//! What a member does with blocks: reads, fills, dirty writes, copies, reclaim, sync.

pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod read;
pub(crate) mod reclaim;
pub(crate) mod room;
pub(crate) mod sync;
pub(crate) mod write_back;
