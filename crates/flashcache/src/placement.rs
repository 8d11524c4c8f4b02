//! One cache over several members: which of them has a region, mirrors, who joins and who leaves.

pub(crate) mod cache;
pub(crate) mod content;
pub mod hot;
pub(crate) mod mirror;
pub(crate) mod sample;
pub(crate) mod seat;
pub(crate) mod slots;
pub(crate) mod succession;
