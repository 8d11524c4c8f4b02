//! Opening a file or block device, and creating a file for one.
//!
//! Never changes the content of what it opens.

use super::exclusive;
use super::files::{FileKind, Opened};
use super::sys;
use crate::io::{Class, Geometry};
use crate::probe;
use std::fs::{File, OpenOptions as FsOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// How long an opening waits for a lock: the ring of a process that was killed may hold the file a moment longer than the
/// process lives.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
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
    /// until the last request of the first has completed; of a block device also the exclusive claim, which others than
    /// ourselves heed (mkfs, mount); of a file look for loop devices on it; of a loop device take the lock of its file. On by
    /// default.
    pub lock: bool,
    /// True page in bytes: a power of two from 512 to 1 MiB, at least the logical unit.
    pub page_override: Option<u32>,
    /// An image that takes the space of its file system as it needs it: zeroing and discarding give space back. Off by default:
    /// an image keeps what is allocated to it, so that others who fill the file system cannot keep it from being written.
    pub sparse: bool,
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
            sparse: false,
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
        by: String,
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

/// What of a new file's space is there from the beginning.
pub enum Space<'a> {
    /// Nothing: it takes what it needs from its file system, and fails when that is full.
    Sparse,
    /// All of it, not written yet: the file system notes at the first write of each part that it has been written.
    Reserved,
    /// All of it, written once: no write to the file changes what the file system knows of it.
    Written {
        /// Hears the bytes written so far.
        progress: &'a mut dyn FnMut(u64),
    },
}

/// What a file is written with.
const FILL_PIECE_BYTES: usize = 4 << 20;
/// Written between two syncs: progress means what the medium has taken, and the page cache is left to others.
const FILL_SYNC_BYTES: u64 = 64 << 20;

/// Create a file of `size_bytes` zeroes, readable and writable by its owner only. The file and its directory entry are durable
/// when this returns. Blocks.
///
/// # Errors
/// `AlreadyExists` when there is something at `path`, `StorageFull` when there is no room, or the system's error; nothing is
/// left behind then.
pub fn create_file(path: impl AsRef<Path>, size_bytes: u64, space: Space<'_>) -> io::Result<()> {
    let path = path.as_ref();
    let file = FsOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let made = (|| {
        file.set_len(size_bytes)?;
        match space {
            Space::Sparse => {}
            Space::Reserved => match sys::reserve(file.as_raw_fd(), 0, size_bytes) {
                // What cannot be reserved can be written.
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => fill(&file, size_bytes, &mut |_| ())?,
                reserved => reserved?,
            },
            Space::Written { progress } => fill(&file, size_bytes, progress)?,
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

/// Write zeroes over the whole of a file.
fn fill(mut file: &File, size_bytes: u64, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    // In one piece where the file system can reserve: fewer extents.
    match sys::reserve(file.as_raw_fd(), 0, size_bytes) {
        Err(e) if e.raw_os_error() != Some(libc::EOPNOTSUPP) => return Err(e),
        _ => {}
    }
    let zeroes = vec![0; FILL_PIECE_BYTES];
    let mut done = 0;
    while done < size_bytes {
        let piece = (size_bytes - done).min(FILL_PIECE_BYTES as u64);
        file.write_all(&zeroes[..piece as usize])?;
        done += piece;
        if done.is_multiple_of(FILL_SYNC_BYTES) {
            file.sync_data()?;
        }
        progress(done);
    }
    Ok(())
}

/// Bytes that a file made in this directory may take. Blocks.
///
/// # Errors
/// The system's.
pub fn free_bytes(directory: impl AsRef<Path>) -> io::Result<u64> {
    sys::free_bytes(File::open(directory)?.as_raw_fd())
}

/// The name of the file system of a file or directory, where that writes to new places what is overwritten: space that is
/// allocated to an image does not keep its writes from failing when the file system is full. XFS is none of these: it does so
/// for files only that were copied with reflinks, which cannot be told beforehand. Blocks.
///
/// # Errors
/// The system's.
pub fn copies_on_write(path: impl AsRef<Path>) -> io::Result<Option<&'static str>> {
    Ok(sys::copies_on_write(File::open(path)?.as_raw_fd()))
}

/// Try until there is something, for [`LOCK_PATIENCE`].
fn patiently<T>(attempt: impl Fn() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    let until = std::time::Instant::now() + LOCK_PATIENCE;
    loop {
        let got = attempt()?;
        if got.is_some() || std::time::Instant::now() >= until {
            return Ok(got);
        }
        std::thread::sleep(LOCK_PAUSE);
    }
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
            let by = "it is mounted, part of an array, or another process has claimed it".to_owned();
            OpenError::InUse { path: name.clone(), by }
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
    let locked = options.lock && !options.read_only;
    if kind == FileKind::Regular
        && locked
        && let Some(device) = exclusive::loop_device_on(path)
    {
        return Err(OpenError::InUse { path: name, by: format!("it is the content of {device}") });
    }
    let exclusive = if kind == FileKind::Block && locked {
        let claimed = patiently(|| match exclusive::claim(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(None),
            claimed => claimed.map(Some),
        });
        let claimed = claimed.map_err(fail)?.ok_or_else(|| fail(io::ErrorKind::ResourceBusy.into()))?;
        let content = exclusive::content_of_loop_device(path);
        // A lock that the file system does not have keeps nobody out, as with a file that is opened itself.
        let is_locked = |file: &File| patiently(|| Ok(sys::lock_file(file.as_raw_fd())?.then_some(())));
        if let Some(file) = &content
            && matches!(is_locked(file), Ok(None))
        {
            let by = "the file that it is a loop device of is open, here or in another process".to_owned();
            return Err(OpenError::InUse { path: name, by });
        }
        Some(exclusive::Held::new(claimed, content))
    } else {
        None
    };
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
    if locked && patiently(|| Ok(sys::lock_file(file.as_raw_fd())?.then_some(()))).map_err(fail)?.is_none() {
        let by = "another process, or another opening here, has it locked".to_owned();
        return Err(OpenError::InUse { path: name, by });
    }
    let found = probe::probe(&file, kind == FileKind::Block, direct).map_err(fail)?;
    if found.size_bytes == 0 {
        return Err(OpenError::Empty { path: name });
    }
    let keeps_space = kind == FileKind::Regular && !options.sparse;
    let geometry = match found.geometry(options) {
        // What is discarded would have to be zeroed to keep its space, and is as good as it is.
        Ok(geometry) if keeps_space => Geometry { discard_bytes: 0, ..geometry },
        Ok(geometry) => geometry,
        Err(page_bytes) => {
            return Err(OpenError::Page { path: name, page_bytes, logical_bytes: found.logical_bytes });
        }
    };
    let name = options.name.clone().unwrap_or(name);
    let fd = OwnedFd::from(file);
    let in_memory = sys::is_in_memory(fd.as_raw_fd());
    let fua_by_flush = kind == FileKind::Regular && sys::ignores_write_sync(fd.as_raw_fd());
    Ok(Opened {
        name,
        fd,
        kind,
        direct,
        read_only: options.read_only,
        locked,
        exclusive,
        in_memory,
        fua_by_flush,
        keeps_space,
        geometry,
    })
}
