//! What a device may have lost, what is durable, and which clients have been told of a loss. No I/O: the proofs are in the tests of [`losses`].

pub(crate) mod losses;
pub(crate) mod promises;
