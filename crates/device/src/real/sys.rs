//! The system calls of the real world, each in a safe function of its own.
//!
//! Never retries anything but `EINTR`, never logs.

use crate::io::{DeviceExtent, FailKind, Outcome};
use crate::net::HangUp;
use std::io::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Extents in one answer of `Op::Status`: a fragmented file must not make the answer grow without bound.
pub(crate) const STATUS_EXTENTS_MAX: usize = 1024;

/// `_IO(0x12, 119)` and `_IO(0x12, 127)`: not in the libc crate. Argument: two u64, offset and length in bytes.
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;
/// Of `linux/prctl.h`: not in the libc crate.
const PR_SET_IO_FLUSHER: i32 = 57;

/// Turn a -1 into the errno.
pub(crate) fn check(result: i32) -> Result<i32> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

/// The errno of `error` as a negative result, as a ring reports it.
pub(crate) fn negative(error: &Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Take over a descriptor that a system call returned.
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass a descriptor the kernel has just given to this process; nobody else holds it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// An eventfd: blocking, because a ring completes a read of a non-blocking one at once with `EAGAIN`.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    // SAFETY: no memory is passed.
    Ok(own(check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?))
}

/// Make an eventfd readable. It can fail only when the counter is full, and then it is readable.
pub(crate) fn ring_bell(fd: RawFd) {
    let one = 1_u64;
    // SAFETY: eight bytes of a live integer.
    let _ = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Reset an eventfd known to be readable.
pub(crate) fn quiet_bell(fd: RawFd) {
    let mut count = 0_u64;
    // SAFETY: eight bytes of a live integer.
    let _ = unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Have the allocator give what is free in it back to the system.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer; nothing that is allocated is touched.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Whether a descriptor has something to read, or is at its end.
pub(crate) fn is_readable(fd: RawFd) -> Result<bool> {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure.
    Ok(check(unsafe { libc::poll(&raw mut asked, 1, 0) })? > 0)
}

/// How much of a connection the other side has ended; `None`: nothing.
pub(crate) fn hang_up(fd: RawFd) -> Option<HangUp> {
    let mut asked = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live structure.
    if check(unsafe { libc::poll(&raw mut asked, 1, 0) }).is_err() {
        return None;
    }
    match asked.revents {
        events if events & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 => Some(HangUp::Both),
        events if events & libc::POLLRDHUP != 0 => Some(HangUp::Sending),
        _ => None,
    }
}

/// Keep every page of this process in memory once it is there, those of later mappings too. Nothing is read in ahead.
pub(crate) fn lock_memory() -> Result<()> {
    // SAFETY: takes an integer; no content changes.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) }).map(drop)
}

/// Undo [`lock_memory`].
pub(crate) fn unlock_memory() -> Result<()> {
    // SAFETY: takes nothing; no content changes.
    check(unsafe { libc::munlockall() }).map(drop)
}

/// Whether this process may lock as much memory as it likes without a capability.
pub(crate) fn may_lock_without_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    let got = check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) });
    got.is_ok() && limit.rlim_cur == libc::RLIM_INFINITY
}

/// Let allocations of this thread, and of those it starts, not wait for I/O that may have to go through this process itself.
pub(crate) fn set_io_flusher() -> Result<()> {
    // SAFETY: takes integers.
    check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1_u64, 0_u64, 0_u64, 0_u64) }).map(drop)
}

/// Let timers of this thread fire within a microsecond: the default slack of 50 us would be seen in every short sleep.
pub(crate) fn set_timer_slack() {
    // SAFETY: takes an integer; failing leaves the default.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64, 0, 0, 0) };
}

/// How a failed request is to be reported. `changes`: it might have changed the medium.
pub(crate) fn outcome_of_errno(errno: i32, changes: bool) -> Outcome {
    let kind = match errno {
        libc::EIO | libc::EREMOTEIO | libc::EBADMSG | libc::ENODATA | libc::EILSEQ => FailKind::Media,
        libc::ENOSPC | libc::EDQUOT => FailKind::NoSpace,
        libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS => FailKind::Unsupported,
        libc::ENODEV | libc::ENXIO | libc::ENOTCONN | libc::ESHUTDOWN | libc::EBADF => FailKind::Gone,
        libc::EINVAL | libc::EFBIG | libc::EFAULT => FailKind::Invalid,
        // The block layer gave up waiting, or the request was taken back: nobody knows what the medium did.
        libc::ETIMEDOUT | libc::ECANCELED | libc::EINTR if changes => return Outcome::Unknown,
        other => FailKind::Errno(other),
    };
    Outcome::Failed(kind)
}

/// The outcome of a transfer of `want` bytes from the kernel's result.
pub(crate) fn outcome_of_transfer(result: i32, want: usize, changes: bool) -> Outcome {
    match usize::try_from(result) {
        Ok(done) if done == want => Outcome::Done,
        Ok(done) => Outcome::Short(done as u64),
        Err(_) => outcome_of_errno(-result, changes),
    }
}

/// `preadv2` at an offset; the result as a ring would report it.
///
/// # Safety
/// Every iovec must describe memory that may be written for the length of the call.
pub(crate) unsafe fn read_at(fd: RawFd, pieces: &[libc::iovec], offset: u64) -> i32 {
    loop {
        // SAFETY: promised by the caller.
        let done = unsafe { libc::preadv(fd, pieces.as_ptr(), pieces.len() as i32, offset as i64) };
        match check_size(done) {
            Ok(bytes) => return bytes as i32,
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return negative(&e),
        }
    }
}

/// `pwritev2` at an offset, durable when done if `fua`; the result as a ring would report it.
///
/// # Safety
/// Every iovec must describe memory that may be read for the length of the call.
pub(crate) unsafe fn write_at(fd: RawFd, pieces: &[libc::iovec], offset: u64, fua: bool) -> i32 {
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    loop {
        // SAFETY: promised by the caller.
        let done = unsafe { libc::pwritev2(fd, pieces.as_ptr(), pieces.len() as i32, offset as i64, flags) };
        match check_size(done) {
            Ok(bytes) => return bytes as i32,
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return negative(&e),
        }
    }
}

/// Whether a file's content lives in memory (tmpfs, ramfs): a transfer is a copy and never waits for a medium.
pub(crate) fn is_in_memory(fd: RawFd) -> bool {
    // TMPFS_MAGIC and RAMFS_MAGIC.
    matches!(file_system(fd), Some(0x0102_1994 | 0x8584_58f6))
}

/// Whether a direct write with RWF_DSYNC is not durable when done: the kernel's FUSE sends no FSYNC after it.
pub(crate) fn ignores_write_sync(fd: RawFd) -> bool {
    file_system(fd) == Some(libc::FUSE_SUPER_MAGIC as u32)
}

/// The magic number of the file system that has a file's content; none for a device, whose node lies in memory (devtmpfs) while what it
/// leads to does not.
pub(crate) fn file_system(fd: RawFd) -> Option<u32> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut node: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    check(unsafe { libc::fstat(fd, &raw mut node) }).ok()?;
    if node.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    check(unsafe { libc::fstatfs(fd, &raw mut stat) }).ok().map(|_| stat.f_type as u32)
}

/// Make completed writes durable.
pub(crate) fn fdatasync(fd: RawFd) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fdatasync(fd) }).map(drop)
}

fn allocate(fd: RawFd, mode: i32, offset: u64, len: u64) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(fd, mode | libc::FALLOC_FL_KEEP_SIZE, offset as i64, len as i64) }).map(drop)
}

/// Have space for a range of a file; what is written there stays.
pub(crate) fn reserve(fd: RawFd, offset: u64, len: u64) -> Result<()> {
    if len == 0 { Ok(()) } else { allocate(fd, 0, offset, len) }
}

/// Make a range of a file read as zeroes, giving its space back.
pub(crate) fn punch_file(fd: RawFd, offset: u64, len: u64) -> Result<()> {
    allocate(fd, libc::FALLOC_FL_PUNCH_HOLE, offset, len)
}

/// Make a range of a file read as zeroes, with space allocated for all of it.
pub(crate) fn zero_file(fd: RawFd, offset: u64, len: u64) -> Result<()> {
    match allocate(fd, libc::FALLOC_FL_ZERO_RANGE, offset, len) {
        // tmpfs has the two parts only. Somebody else may take the space in between: that is said as "no space" then.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            punch_file(fd, offset, len)?;
            reserve(fd, offset, len)
        }
        zeroed => zeroed,
    }
}

/// Bytes that files on the file system of an open file may take.
pub(crate) fn free_bytes(fd: RawFd) -> Result<u64> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    check(unsafe { libc::fstatvfs(fd, &raw mut stat) })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The name of the file system of an open file, if it writes what is overwritten to new places.
pub(crate) fn copies_on_write(fd: RawFd) -> Option<&'static str> {
    match file_system(fd)? {
        0x9123_683e => Some("btrfs"),
        0x2fc1_2fc1 => Some("ZFS"),
        0xca45_1a4e => Some("bcachefs"),
        _ => None,
    }
}

/// Make a range of a block device read as zeroes.
pub(crate) fn zero_block(fd: RawFd, offset: u64, len: u64) -> Result<()> {
    let range = [offset, len];
    // SAFETY: the ioctl reads two u64.
    check(unsafe { libc::ioctl(fd, BLKZEROOUT, range.as_ptr()) }).map(drop)
}

/// Tell a block device that a range is dead.
pub(crate) fn discard_block(fd: RawFd, offset: u64, len: u64) -> Result<()> {
    let range = [offset, len];
    // SAFETY: the ioctl reads two u64.
    check(unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }).map(drop)
}

/// Which parts of a file's range hold data: at most [`STATUS_EXTENTS_MAX`] stretches from its start, so the answer may
/// cover less than was asked.
pub(crate) fn extents(fd: RawFd, offset: u64, len: u64) -> Result<Vec<DeviceExtent>> {
    let seek = |at: u64, whence: i32| {
        // SAFETY: no memory is passed; requests carry their own offsets, so the file position is nobody's.
        let to = unsafe { libc::lseek(fd, at as i64, whence) };
        if to < 0 { Err(Error::last_os_error()) } else { Ok(to as u64) }
    };
    let end = offset + len;
    let mut at = offset;
    let mut found = Vec::new();
    while at < end && found.len() < STATUS_EXTENTS_MAX {
        let data = match seek(at, libc::SEEK_DATA) {
            Ok(to) => to.min(end),
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => end,
            Err(e) => return Err(e),
        };
        if data > at {
            found.push(DeviceExtent { len: data - at, hole: true });
            at = data;
            continue;
        }
        let hole = seek(at, libc::SEEK_HOLE)?.clamp(at, end);
        if hole == at {
            // The file changed between the two calls; the next round sees it as it is now.
            continue;
        }
        found.push(DeviceExtent { len: hole - at, hole: false });
        at = hole;
    }
    Ok(found)
}

/// Take the advisory lock of an open file; false when another descriptor holds it.
pub(crate) fn lock_file(fd: RawFd) -> Result<bool> {
    // SAFETY: no memory is passed.
    match check(unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Give up the lock now, though a ring may still hold the open file for a moment.
pub(crate) fn unlock_file(fd: RawFd) {
    // SAFETY: no memory is passed.
    let _ = unsafe { libc::flock(fd, libc::LOCK_UN) };
}

/// Shut down both directions of a socket, or a listening socket.
pub(crate) fn shutdown(fd: RawFd) {
    // SAFETY: no memory is passed; failing means that it is shut down already.
    let _ = unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Whether calls on a descriptor return at once when they would wait.
pub(crate) fn set_nonblocking(fd: RawFd, is: bool) -> Result<()> {
    // SAFETY: no memory is passed.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let flags = if is { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

/// Set an integer socket option.
pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> Result<()> {
    // SAFETY: four bytes of a live integer.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) }).map(drop)
}

/// The memlock limit of this process in bytes; none when unlimited.
pub(crate) fn memlock_limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a live struct.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY { Some(limit.rlim_cur) } else { None }
}
