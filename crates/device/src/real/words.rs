//! Numbers that several processes share: memory without a path, that lives as long as one of them has it.
//!
//! Never holds more than a page.

use super::sys::{check, own};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// How many there are: what fits a page, with room to spare.
pub const SHARED_WORDS: usize = 64;
const BYTES: usize = SHARED_WORDS * size_of::<u64>();

/// The numbers, zero at first.
#[derive(Debug)]
pub struct SharedWords {
    fd: OwnedFd,
    start: NonNull<[AtomicU64; SHARED_WORDS]>,
}

// SAFETY: what it points to is atomic, and mapped as long as it lives.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// New ones.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> Result<SharedWords> {
        // SAFETY: a live string.
        let fd = own(check(unsafe { libc::memfd_create(c"flashcell".as_ptr(), libc::MFD_CLOEXEC) })?);
        // SAFETY: no memory is passed.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), BYTES as i64) })?;
        SharedWords::of(fd)
    }

    /// Those another process has passed on.
    ///
    /// # Errors
    /// It is not such a descriptor.
    pub fn of(fd: OwnedFd) -> Result<SharedWords> {
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: fills a live structure.
        check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
        if stat.st_size != BYTES as i64 {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: a new mapping of all of the file, which is never shortened: nobody but this code has it.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(pointer) if start != libc::MAP_FAILED => Ok(SharedWords { fd, start: pointer }),
            _ => Err(Error::last_os_error()),
        }
    }

    /// The number at `index`.
    ///
    /// # Panics
    /// When there is none there.
    #[must_use]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        // SAFETY: mapped as long as `self` lives, aligned to a page, and every content is a valid number.
        let words = unsafe { self.start.as_ref() };
        &words[index]
    }

    /// For passing them on.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length; no reference outlives `self`.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), BYTES) };
    }
}
