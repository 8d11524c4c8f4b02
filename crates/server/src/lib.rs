//! The daemon: configuration, making a cell, serving it, the admin socket and its client.
//!
//! ```text
//!   cell.toml --config--> devices (real -> forgetful -> delay -> by size) --cell--> nbd front end   (executor threads)
//!                                                                          '------> admin socket    (tokio, one thread)
//! ```
//!
//! This crate alone has tokio, HTTP and serde, and uses them for administration only: no byte of a client's data passes
//! through them. It never decides what is cached or durable.

mod admin;
pub mod adopt;
mod again;
mod alerting;
pub mod attach;
mod certificates;
mod claim;
pub mod config;
pub mod console;
pub mod dcli;
mod devices;
mod dir;
pub mod doctor;
mod door;
mod durability;
pub mod files;
mod hot_file;
mod http;
mod images;
mod init;
mod lock;
pub mod metrics;
mod process;
mod record;
mod serve;
mod store;
mod supervisor;
pub mod support;
mod tls;
pub mod trust;
mod watch;

pub use admin::{Held, Recordable, RecordedKind, RecordedOutcome, RecordedRequest, RecordedWrite, Role};
pub use config::{Config, ConfigError};
pub use http::AskError;
pub use init::{GridDiskPlan, InitError, InitPlan, init};
pub use record::{RecordEnd, RecordError, record};
pub use serve::{ServeError, log_to_stderr, serve, stop_with_parent};
pub use tls::{TRUST_VARIABLE, TlsError};
pub use watch::{Events, WatchError, WatchedDevice, watch};

/// The version of this software, as CELL shows it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
