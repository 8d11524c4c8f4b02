//! Opening a file or block device, and creating a file for one.
//!
//! Never changes the content of what it opens.

use super::files::{FileKind, Opened};
use super::sys;
use crate::io::Class;
use crate::probe;
use std::fs::{File, OpenOptions as FsOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// How long an opening waits for a lock: the ring of a process that was killed may hold the file a moment longer than the
/// process lives.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
/// Between two attempts.
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Past the page cache or through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direct {
    /// O_DIRECT where the file system has it, else through the page cache.
    #[default]
    Auto,
    /// O_DIRECT or an error.
    Always,
    /// Through the page cache.
    Never,
}

/// How to open a device. Overrides win over what probing finds.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// See [`Direct`].
    pub direct: Direct,
    /// Take the advisory lock of a writable device, so that a second opening, here or in another process, is refused
    /// until the last request of the first has completed. On by default.
    pub lock: bool,
    /// True page in bytes: a power of two from 512 to 1 MiB, at least the logical unit.
    pub page_override: Option<u32>,
    /// Durability class.
    pub class_override: Option<Class>,
    /// Whether completed writes need a flush.
    pub volatile_cache_override: Option<bool>,
    /// Whether seeks cost time.
    pub rotational_override: Option<bool>,
    /// Name in messages and lists; the path if none.
    pub name: Option<String>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            direct: Direct::Auto,
            lock: true,
            page_override: None,
            class_override: None,
            volatile_cache_override: None,
            rotational_override: None,
            name: None,
        }
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing is there.
    #[error("{path}: no such file or device\nhint: check the path; a disk may have another name after a restart")]
    NotFound {
        /// Which.
        path: String,
    },
    /// Not allowed.
    #[error("{path}: permission denied\nhint: run as a user who may {verb} it, or change its owner or group")]
    Permission {
        /// Which.
        path: String,
        /// "read" or "read and write".
        verb: &'static str,
    },
    /// Somebody else has it.
    #[error("{path} is in use: {by}\nhint: stop what uses it")]
    InUse {
        /// Which.
        path: String,
        /// What is known about who.
        by: &'static str,
    },
    /// A directory, socket or the like.
    #[error("{path} is neither a file nor a block device\nhint: name a file, or a device under /dev")]
    NotADevice {
        /// Which.
        path: String,
    },
    /// It has no bytes.
    #[error("{path} is empty\nhint: create it with a size")]
    Empty {
        /// Which.
        path: String,
    },
    /// O_DIRECT was demanded and refused.
    #[error("{path}: the file system has no direct I/O\nhint: open it with direct = auto, or put it on another one")]
    NoDirect {
        /// Which.
        path: String,
    },
    /// An override makes no sense.
    #[error("{path}: a page of {page_bytes} bytes cannot be\nhint: a power of two from {logical_bytes} to 1048576")]
    Page {
        /// Which.
        path: String,
        /// The page asked for.
        page_bytes: u32,
        /// The device's logical unit.
        logical_bytes: u32,
    },
    /// Any other system error.
    #[error("{path}: {source}\nhint: look at the kernel's log for this device")]
    Errno {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Create a file of `size_bytes` zeroes, readable and writable by its owner only. Unless `sparse`, its space is
/// reserved. The file and its directory entry are durable when this returns. Blocks.
///
/// # Errors
/// `AlreadyExists` when there is something at `path`, or the system's error; nothing is left behind then.
pub fn create_file(path: impl AsRef<Path>, size_bytes: u64, sparse: bool) -> io::Result<()> {
    let path = path.as_ref();
    let file = FsOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let made = (|| {
        file.set_len(size_bytes)?;
        if !sparse && size_bytes > 0 {
            // SAFETY: no memory is passed.
            sys::check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size_bytes as i64) })?;
        }
        file.sync_all()?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    })();
    if made.is_err() {
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Open and probe. Blocks.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let name = path.display().to_string();
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => OpenError::NotFound { path: name.clone() },
        io::ErrorKind::PermissionDenied => {
            let verb = if options.read_only { "read" } else { "read and write" };
            OpenError::Permission { path: name.clone(), verb }
        }
        io::ErrorKind::ResourceBusy => {
            OpenError::InUse { path: name.clone(), by: "the kernel has it mounted or claimed" }
        }
        _ => OpenError::Errno { path: name.clone(), source },
    };
    // Before the open: opening a fifo would wait for its other end.
    let kind = std::fs::metadata(path).map_err(fail)?.file_type();
    let kind = if kind.is_file() {
        FileKind::Regular
    } else if kind.is_block_device() {
        FileKind::Block
    } else {
        return Err(OpenError::NotADevice { path: name });
    };
    let how = |flags: i32| FsOptions::new().read(true).write(!options.read_only).custom_flags(flags).open(path);
    if kind == FileKind::Block && options.lock && !options.read_only {
        // Refused when it is mounted or part of an array. Given back at once: a ring may hold our own descriptor open
        // for a moment after the close, and the next opening must not fail for that.
        drop(how(libc::O_EXCL).map_err(fail)?);
    }
    let (file, direct) = match options.direct {
        Direct::Never => (how(0).map_err(fail)?, false),
        Direct::Always => match how(libc::O_DIRECT) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Err(OpenError::NoDirect { path: name }),
            opened => (opened.map_err(fail)?, true),
        },
        Direct::Auto => match how(libc::O_DIRECT) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (how(0).map_err(fail)?, false),
            opened => (opened.map_err(fail)?, true),
        },
    };
    let locked = options.lock && !options.read_only;
    if locked {
        let until = std::time::Instant::now() + LOCK_PATIENCE;
        while !sys::lock_file(file.as_raw_fd()).map_err(fail)? {
            if std::time::Instant::now() >= until {
                return Err(OpenError::InUse {
                    path: name,
                    by: "another process, or another opening here, has it locked",
                });
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }
    let found = probe::probe(&file, kind == FileKind::Block, direct).map_err(fail)?;
    if found.size_bytes == 0 {
        return Err(OpenError::Empty { path: name });
    }
    let geometry = match found.geometry(options) {
        Ok(geometry) => geometry,
        Err(page_bytes) => {
            return Err(OpenError::Page { path: name, page_bytes, logical_bytes: found.logical_bytes });
        }
    };
    let name = options.name.clone().unwrap_or(name);
    let fd = OwnedFd::from(file);
    let in_memory = sys::is_in_memory(fd.as_raw_fd());
    let fua_by_flush = kind == FileKind::Regular && sys::ignores_write_sync(fd.as_raw_fd());
    Ok(Opened { name, fd, kind, direct, read_only: options.read_only, locked, in_memory, fua_by_flush, geometry })
}
