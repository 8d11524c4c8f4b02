//! What an attachment is, and where it is written down: one directory for each, which is there as long as it is attached.
//!
//! ```text
//!   /run/flashcell/attach/ID/spec.json     what was asked for
//!                           record.json    what came of it
//!                           lock           held by keeper and driver
//!                           control        the keeper's socket
//!                           log            what keeper and drivers say
//!   CELL/attach-GRIDDISK.lock              held too, by an attachment that writes: one at a time, whoever has which /run
//! ```

use super::AttachError;
use device::Address;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Where attachments are recorded; another directory than [`RUNTIME_DIR`].
pub const RUNTIME_VARIABLE: &str = "FLASHCELL_RUN";
const RUNTIME_DIR: &str = "/run/flashcell";
const SPEC: &str = "spec.json";
const RECORD: &str = "record.json";
const LOCK: &str = "lock";
/// Longer ones were not written by us.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Which way the block device comes about, chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// What was there before there was a choice.
    #[default]
    Fuse,
    Nbd,
    Ublk,
}

impl Kind {
    /// As it is written.
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Fuse => "fuse",
            Kind::Nbd => "nbd",
            Kind::Ublk => "ublk",
        }
    }
}

/// What was asked for. An attachment outlives the program that made it: what is new here has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) grid_disk: String,
    #[serde(default)]
    pub(super) driver: Kind,
    /// The name of the cell for people, and in the path of the link.
    pub(super) cell: String,
    /// Its directory, when it is one of this host.
    pub(super) cell_dir: Option<PathBuf>,
    /// Where NBD is served: a socket's path, or host and port.
    pub(super) socket: Option<PathBuf>,
    pub(super) host: Option<(String, u16)>,
    pub(super) size_bytes: u64,
    pub(super) rotational: bool,
    /// Space can be given back, and ranges zeroed.
    #[serde(default)]
    pub(super) trims: bool,
    #[serde(default)]
    pub(super) zeroes: bool,
    pub(super) read_only: bool,
    pub(super) sector_bytes: u32,
    pub(super) connections: usize,
    /// 0: everything fails at once.
    pub(super) on_loss_seconds: u64,
    /// A file system grows with the device.
    pub(super) grow_fs: bool,
    /// This program.
    pub(super) program: PathBuf,
}

impl Spec {
    pub(super) fn read(path: &Path) -> Result<Spec, AttachError> {
        read_json(path)
    }

    pub(super) fn device_address(&self) -> Address {
        match (&self.socket, &self.host) {
            (Some(path), _) => Address::Unix(path.clone()),
            (None, Some((host, port))) => Address::Tcp { host: host.clone(), port: *port },
            (None, None) => Address::Unix(PathBuf::new()),
        }
    }

    pub(super) fn export(&self) -> String {
        self.grid_disk.clone()
    }

    /// What a device of it says it is of.
    pub(super) fn device_name(&self) -> String {
        format!("flashcell:{}/{}", self.cell, self.grid_disk)
    }

    /// The same as a number, where there is room for no more.
    pub(super) fn device_tag(&self) -> u64 {
        let digest = ring::digest::digest(&ring::digest::SHA256, self.device_name().as_bytes());
        digest.as_ref().iter().take(8).fold(0, |tag, byte| tag << 8 | u64::from(*byte))
    }

    /// A name for its directory: readable, and of this grid disk alone.
    pub(super) fn id(&self) -> String {
        let whole = format!("{}/{}", self.device_address(), self.grid_disk.to_lowercase());
        let digest = ring::digest::digest(&ring::digest::SHA256, whole.as_bytes());
        let short: String = digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let name = self.grid_disk.to_lowercase();
        let readable: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        format!("{readable}-{short}{}", if self.read_only { "-ro" } else { "" })
    }

    /// Where the link to its device is.
    pub(super) fn link(&self) -> PathBuf {
        Path::new("/dev/flashcell").join(plain(&self.cell)).join(plain(&self.grid_disk))
    }

    /// The lock in the cell's directory.
    pub(super) fn cell_lock(&self) -> Option<PathBuf> {
        let dir = self.cell_dir.as_ref().filter(|_| !self.read_only)?;
        Some(lock_path(dir, &self.grid_disk))
    }
}

/// The lock of a grid disk in the directory of its cell.
fn lock_path(cell_dir: &Path, grid_disk: &str) -> PathBuf {
    cell_dir.join(format!("attach-{}.lock", plain(grid_disk).to_lowercase()))
}

/// Who has attached a grid disk of the cell of this directory for writing, in the holder's own words.
pub(crate) fn attached_by(cell_dir: &Path, grid_disk: &str) -> Option<String> {
    let path = lock_path(cell_dir, grid_disk);
    let file = File::open(&path).ok()?;
    // Shared, and let go at once: an attachment that begins in this very moment is told to try again.
    let is_held = flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK);
    is_held.then(|| signed(&path))
}

/// A name as one part of a path.
fn plain(name: &str) -> String {
    name.replace('/', "_")
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) device: PathBuf,
    pub(super) driver: String,
    pub(super) keeper_pid: u32,
    pub(super) driver_pid: u32,
    /// The device has not come about yet.
    #[serde(default)]
    pub(super) is_early: bool,
}

/// The directory of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
}

impl Place {
    /// Where all of them are.
    pub(super) fn root() -> PathBuf {
        let run = std::env::var_os(RUNTIME_VARIABLE).filter(|dir| !dir.is_empty());
        PathBuf::from(run.unwrap_or_else(|| RUNTIME_DIR.into())).join("attach")
    }

    pub(super) fn of(id: &str) -> Place {
        Place { dir: Place::root().join(id) }
    }

    /// Every one there is.
    pub(super) fn all() -> Vec<Place> {
        let Ok(entries) = std::fs::read_dir(Place::root()) else { return Vec::new() };
        let mut places: Vec<Place> = entries.flatten().map(|entry| Place { dir: entry.path() }).collect();
        places.sort_by(|a, b| a.dir.cmp(&b.dir));
        places
    }

    pub(super) fn make(&self) -> Result<(), AttachError> {
        std::fs::create_dir_all(&self.dir).map_err(|source| AttachError::File { path: self.dir.clone(), source })
    }

    pub(super) fn spec_path(&self) -> PathBuf {
        self.dir.join(SPEC)
    }

    pub(super) fn control_path(&self) -> PathBuf {
        self.dir.join("control")
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn spec(&self) -> Result<Spec, AttachError> {
        Spec::read(&self.spec_path())
    }

    pub(super) fn write_spec(&self, spec: &Spec) -> Result<(), AttachError> {
        write_json(&self.spec_path(), spec)
    }

    pub(super) fn record(&self) -> Result<Record, AttachError> {
        read_json(&self.dir.join(RECORD))
    }

    pub(super) fn write_record(&self, record: &Record) -> Result<(), AttachError> {
        write_json(&self.dir.join(RECORD), record)
    }

    /// The lock, unless somebody holds it.
    pub(super) fn lock(&self) -> Result<Option<File>, AttachError> {
        take_lock(&self.dir.join(LOCK))
    }

    /// Whether keeper or driver live.
    pub(super) fn is_live(&self) -> bool {
        let Ok(file) = File::open(self.dir.join(LOCK)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// It is not attached any more.
    pub(super) fn remove(&self) {
        // What is left is found dead, and removed by the next who looks.
        let _ = std::fs::remove_dir_all(&self.dir);
    }

    /// The last thing keeper and drivers said.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing was said").to_owned()
    }
}

/// An exclusive lock on a file that is made when it is not there; none when somebody else has it.
pub(super) fn take_lock(path: &Path) -> Result<Option<File>, AttachError> {
    let io = |source: std::io::Error| AttachError::File { path: path.to_owned(), source };
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(io(errno.into())),
    }
}

/// Say in a lock who holds it.
pub(super) fn sign(file: &mut File, text: &str) {
    // For people alone: the lock holds without it.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
}

/// What the holder of a lock has said.
pub(super) fn signed(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    if read.is_ok() && !text.trim().is_empty() { text.trim().to_owned() } else { "another process".to_owned() }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, AttachError> {
    let io = |source: std::io::Error| AttachError::File { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)).map_err(io)?;
    serde_json::from_str(&text).map_err(|error| io(error.into()))
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), AttachError> {
    let io = |source: std::io::Error| AttachError::File { path: path.to_owned(), source };
    let text = serde_json::to_string_pretty(value).map_err(|error| io(error.into()))?;
    // Whole or not at all for who reads it meanwhile.
    let new = path.with_extension("new");
    std::fs::write(&new, text + "\n").and_then(|()| std::fs::rename(&new, path)).map_err(io)
}
