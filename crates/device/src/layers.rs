//! Layers: each is an [`Io`](crate::Io) over an [`Io`](crate::Io) (or, for `memory`, over nothing) with the same verbs.
//!
//! A layer does one thing. It never changes what bytes mean, never hides an outcome of the device below, and knows the
//! world only through the seams, so it works in virtual time too.

pub mod delay;
pub mod fault;
pub mod flush_gate;
pub mod forgetful;
pub mod loss_watch;
pub mod memory;
pub mod start_deadline;
pub mod stats;
pub mod trace;

pub use delay::{Delay, Model};
pub use fault::{Action, Fault, Faults};
pub use flush_gate::FlushGate;
pub use forgetful::Forgetful;
pub use loss_watch::{LossListener, LossWatch, Losses, Lost, WatchedDevice};
pub use memory::Memory;
pub use start_deadline::{Silence, SilenceTeller, StartDeadline, StartLimits};
pub use stats::{Histogram, Stats};
pub use trace::{Trace, TraceEntry};

#[cfg(test)]
mod tests;
