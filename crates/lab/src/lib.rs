//! Workloads, experiments and reports: what a cell gives, measured through its front door.
//!
//! Starts the real binary, speaks NBD to it over a real socket, checks every block it reads, and says where the time
//! went. Never looks inside a cell: figures come from its own metrics, as any user gets them. Nothing in production
//! depends on this crate.

pub mod demo;
pub mod devices;
mod input;
mod model;
mod names;
mod output;
pub mod policies;
pub mod redo;
pub mod run;
mod served;
pub mod trace;
pub mod what_if;
pub mod zstd;

pub use demo::{DemoError, DemoOptions, demo};
pub use policies::{PoliciesOptions, policies};
pub use what_if::{WhatIfOptions, what_if};
