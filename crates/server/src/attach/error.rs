//! Why something about an attachment was not done.

use std::path::PathBuf;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Not for this user.
    #[error("{what} needs root: it makes a block device\nhint: sudo flashcell {what} …")]
    NotRoot {
        /// The sub-command.
        what: &'static str,
    },
    /// The driver cannot be used here.
    #[error("driver {driver}: {why}\nhint: {hint}")]
    Driver {
        /// Which.
        driver: &'static str,
        /// Why.
        why: String,
        /// What helps.
        hint: &'static str,
    },
    /// Which cell.
    #[error(transparent)]
    Cell(#[from] crate::console::ConsoleError),
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// A cell that is not reached like this.
    #[error("{0}")]
    Reach(String),
    /// The cell does not answer, or has no such grid disk.
    #[error("grid disk {grid_disk} at {address}: {why}\nhint: {hint}")]
    Export {
        /// Which.
        grid_disk: String,
        /// Where.
        address: String,
        /// What it said.
        why: String,
        /// What helps.
        hint: &'static str,
    },
    /// It cannot be a device.
    #[error("grid disk {grid_disk} {why}\nhint: {hint}")]
    Unsuitable {
        /// Which.
        grid_disk: String,
        /// Why.
        why: String,
        /// What helps.
        hint: &'static str,
    },
    /// One at a time.
    #[error(
        "grid disk {grid_disk} is attached already: {holder}\nhint: `flashcell detach {grid_disk}` first, --take-over does it, --wait \
         waits for it"
    )]
    Held {
        /// Which.
        grid_disk: String,
        /// By whom.
        holder: String,
    },
    /// A file of ours, or of the system.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The device did not come about.
    #[error("cannot attach {grid_disk}: {why}")]
    Failed {
        /// Which.
        grid_disk: String,
        /// Why, with a hint where one helps.
        why: String,
    },
    /// The file system.
    #[error("{what}\nhint: {hint}")]
    FileSystem {
        /// What is wrong.
        what: String,
        /// What helps.
        hint: String,
    },
    /// A program of the system.
    #[error("{command}: {why}")]
    Command {
        /// Which.
        command: String,
        /// What it said.
        why: String,
    },
    /// Somebody uses the device.
    #[error("{what} is in use: {users}\nhint: end what uses it, or give it up with --force")]
    Busy {
        /// Device or mount point.
        what: String,
        /// By whom.
        users: String,
    },
    /// What is acknowledged cannot be made durable now.
    #[error(
        "{grid_disk} cannot be detached without a loss now: {why}\nhint: start the cell, or give it up with --force"
    )]
    Away {
        /// Which.
        grid_disk: String,
        /// Why.
        why: String,
    },
    /// Several fit.
    #[error("{target} may be {}\nhint: name the device", .found.join(" or "))]
    Ambiguous {
        /// What was named.
        target: String,
        /// What it may be.
        found: Vec<String>,
    },
    /// It does not end.
    #[error("{grid_disk} does not come to an end: {why}\nhint: --force")]
    Stuck {
        /// Which.
        grid_disk: String,
        /// What it waits for.
        why: String,
    },
}
