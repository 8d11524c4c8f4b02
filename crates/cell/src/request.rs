//! A client's request from its session to the disk and back: pieces, range locks, read-modify-write.

pub(crate) mod path;
pub(crate) mod session;
pub(crate) mod tiers;
