//! Replacement policies on recorded traces: what each would miss, and what the cache of this project would write.
//!
//! The production policy runs over the production accounting of segments; the others are exact at block granularity and
//! pay for nothing but blocks. Never starts a cell, never writes anything but the files it is told to.

pub mod log;
pub mod reference;
