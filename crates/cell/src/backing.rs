//! How a grid disk is cached: reads and fills, write-back, write-back in flush order, destaging.
//!
//! Never decides which mode a grid disk has.

pub(crate) mod cached;
pub(crate) mod divert;
pub(crate) mod edges;
pub(crate) mod ordered;
pub(crate) mod write_back;
