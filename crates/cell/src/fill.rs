//! What comes into the cache besides misses and writes: fills in the background, and blocks that a buffer cache offers.

pub(crate) mod feed;
pub(crate) mod note;
pub(crate) mod offer;
