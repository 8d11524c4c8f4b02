//! Which blocks come to flash, and which stay: policies, the endurance budget, worth, guarantees and quotas.
//!
//! Never does I/O.

pub mod governor;
pub(crate) mod keep;
pub(crate) mod lifetimes;
pub mod meter;
pub mod policy;
pub(crate) mod quota;
pub(crate) mod returns;
pub(crate) mod worth;
