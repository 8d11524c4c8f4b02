//! What a device may have lost, and who is told of it.

pub(crate) mod promises;
