//! The virtual world: the five seams of `device` without a machine under them.
//!
//! - [`executor`]: tasks, threads and time. One seed decides every scheduling choice; the clock jumps.
//! - [`disk`]: devices in memory, with caches that lose data, writes that tear and media that lie.
//! - [`ftl`]: a flash drive's translation layer: what it costs, and how it wears.
//! - [`net`]: byte streams that are delayed, cut up, cut off and partitioned.
//! - [`plain`]: a world without faults.
//! - [`model`]: what a grid disk may answer, whatever happened to it.
//! - [`harness`]: a whole cell, life after life, judged by the model; [`cli`] runs it by seeds.
//! - [`situations`]: which rare situations a run has reached.
//! - [`shrink`]: a failing list of operations made short.
//! - [`trace`]: a running hash and the last events, to compare two runs and to explain one.
//!
//! Same seed, same trace, byte for byte: nothing here reads real time, draws from the system's randomness, iterates a
//! randomly seeded map or looks at an address in memory. Nothing in production depends on this crate.

pub mod cli;
pub mod disk;
pub mod executor;
pub mod ftl;
pub mod harness;
pub mod model;
pub mod net;
pub mod plain;
mod ranges;
pub mod shrink;
pub mod situations;
pub mod trace;

pub use disk::{DiskConfig, SimDevice};
pub use executor::{Executor, Handle, Process, Stuck};
pub use model::{Model, Violation};
pub use net::SimNet;
pub use situations::Situations;
pub use trace::Trace;
