//! A file whose requests come to this process through `/dev/fuse`, and that no path leads to.
//!
//! The file system is mounted, but in no namespace: its only file is reached through the descriptor of the mount. So nobody
//! walks into it, nothing is left behind in a table of mounts when its server dies, and it is gone with the last descriptor.
//!
//! Never looks into a message: the codec of who serves it does.

use super::executor;
use super::inbox::Message;
use super::request::Request;
use super::runtime::{Runtime, Shared};
use super::sys::{check, own};
use crate::sync::one_shot;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Error, IoSlice, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Of `linux/mount.h`: not in the libc crate.
const FSOPEN_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSMOUNT_CLOEXEC: u32 = 1;
/// nosuid, nodev, noexec.
const MOUNT_ATTRIBUTES: u32 = 2 | 4 | 8;
/// The device.
const FUSE_DEVICE: &str = "/dev/fuse";

/// A mounted file system of one file.
#[derive(Debug)]
pub struct FuseMount {
    channel: OwnedFd,
    mount: OwnedFd,
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct FuseError {
    /// What was tried.
    pub step: &'static str,
    /// Why it failed.
    pub source: Error,
}

fn step(step: &'static str) -> impl Fn(Error) -> FuseError {
    move |source| FuseError { step, source }
}

fn system_call(number: libc::c_long, arguments: [usize; 5]) -> Result<i32> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: callers pass integers, and pointers to strings that live for the length of the call; these calls only read them.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    check(i32::try_from(result).unwrap_or(-1))
}

fn set(context: &OwnedFd, key: &str, value: Option<&str>) -> Result<()> {
    let key = CString::new(key)?;
    let value = value.map(CString::new).transpose()?;
    let (kind, value) = match &value {
        Some(value) => (FSCONFIG_SET_STRING, value.as_ptr().addr()),
        None => (FSCONFIG_SET_FLAG, 0),
    };
    let fd = context.as_raw_fd() as usize;
    system_call(libc::SYS_fsconfig, [fd, kind as usize, key.as_ptr().addr(), value, 0]).map(drop)
}

impl FuseMount {
    /// Mount it. `name` is shown by tools that ask a file system for its source; `transfer_bytes_max` is the longest read.
    ///
    /// # Errors
    /// The step that failed: no /dev/fuse, no leave, a kernel before 5.2.
    pub fn new(name: &str, transfer_bytes_max: u32) -> std::result::Result<FuseMount, FuseError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let channel = OwnedFd::from(options.open(FUSE_DEVICE).map_err(step("open /dev/fuse"))?);
        let kind = CString::new("fuse").map_err(|e| step("fsopen")(e.into()))?;
        let context = system_call(libc::SYS_fsopen, [kind.as_ptr().addr(), FSOPEN_CLOEXEC as usize, 0, 0, 0]);
        let context = own(context.map_err(step("fsopen (Linux 5.2 or later)"))?);
        let (fd, longest) = (channel.as_raw_fd().to_string(), transfer_bytes_max.to_string());
        let settings = [
            ("source", Some(name)),
            ("subtype", Some("flashcell")),
            ("fd", Some(&*fd)),
            // A regular file, of which root may do what he likes.
            ("rootmode", Some("100600")),
            ("user_id", Some("0")),
            ("group_id", Some("0")),
            ("max_read", Some(&*longest)),
            ("allow_other", None),
        ];
        for (key, value) in settings {
            set(&context, key, value).map_err(step("set up the file system"))?;
        }
        let create = [context.as_raw_fd() as usize, FSCONFIG_CMD_CREATE as usize, 0, 0, 0];
        system_call(libc::SYS_fsconfig, create).map_err(step("make the file system"))?;
        let mount = [context.as_raw_fd() as usize, FSMOUNT_CLOEXEC as usize, MOUNT_ATTRIBUTES as usize, 0, 0];
        let mount = own(system_call(libc::SYS_fsmount, mount).map_err(step("mount the file system"))?);
        Ok(FuseMount { channel, mount })
    }

    /// The end its requests come out of, and the one that keeps the file there.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, FuseRoot) {
        (self.channel, FuseRoot(self.mount))
    }
}

/// What keeps the file there, and leads to it.
#[derive(Debug)]
pub struct FuseRoot(OwnedFd);

impl FuseRoot {
    /// Open the file, past the page cache. Waits for the server's answer.
    ///
    /// # Errors
    /// The server's.
    pub fn open(&self, read_only: bool) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        options.open(Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()))
    }
}

/// The end of a FUSE file system that its requests come out of, for who has no executor.
pub struct FuseChannel {
    fd: Arc<OwnedFd>,
    shared: Option<Arc<Shared>>,
}

impl std::fmt::Debug for FuseChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FuseChannel({})", self.fd.as_raw_fd())
    }
}

impl FuseChannel {
    /// Without an executor: [`FuseChannel::next_blocking`] alone waits.
    #[must_use]
    pub fn new(fd: OwnedFd) -> FuseChannel {
        FuseChannel { fd: Arc::new(fd), shared: None }
    }

    /// The next message, if there is one now; so many bytes of `buf`.
    fn take(&self, buf: &mut [u8]) -> Result<Option<usize>> {
        loop {
            // SAFETY: the buffer lives and has that length.
            let count = unsafe { libc::read(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) };
            if let Ok(count) = usize::try_from(count) {
                return Ok(Some(count));
            }
            let error = Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(None),
                // Interrupted, or a request that was taken back while it was handed over.
                Some(libc::EINTR | libc::ENOENT) => {}
                _ => return Err(error),
            }
        }
    }

    /// The next message, in the first so many bytes of `buf`, which has room for the longest one.
    ///
    /// # Errors
    /// `ENODEV`: the file system is gone.
    pub async fn next(&self, buf: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(count) = self.take(buf)? {
                return Ok(count);
            }
            let Some(shared) = &self.shared else { return Err(Error::from(std::io::ErrorKind::WouldBlock)) };
            let (reply, answer) = one_shot();
            let request = Request::Readable { fd: self.fd.clone(), reply };
            if let Some(unsent) = executor::start_here(shared, request) {
                shared.inboxes[0].send(Message::Start(unsent));
            }
            match answer.await {
                Some(result) if result >= 0 => {}
                Some(errno) => return Err(Error::from_raw_os_error(-errno)),
                None => return Err(Error::from_raw_os_error(libc::ECANCELED)),
            }
        }
    }

    /// As [`FuseChannel::next`], and this thread waits, for at most `milliseconds`.
    ///
    /// # Errors
    /// As there; `ETIMEDOUT` when none has come.
    pub fn next_blocking(&self, buf: &mut [u8], milliseconds: i32) -> Result<usize> {
        loop {
            if let Some(count) = self.take(buf)? {
                return Ok(count);
            }
            let mut asked = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live structure.
            if check(unsafe { libc::poll(&raw mut asked, 1, milliseconds) })? == 0 {
                return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
            }
        }
    }

    /// Hand over a reply or a notice, in pieces. It never waits.
    ///
    /// # Errors
    /// `ENOENT`: nobody waits for this reply any more. `ENODEV`: the file system is gone.
    pub fn send(&self, pieces: &[IoSlice<'_>]) -> Result<()> {
        loop {
            // SAFETY: an IoSlice is an iovec; all of them live for the length of the call and are only read.
            let sent = unsafe { libc::writev(self.fd.as_raw_fd(), pieces.as_ptr().cast(), pieces.len() as i32) };
            if sent >= 0 {
                return Ok(());
            }
            let error = Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(error);
            }
        }
    }

    /// The descriptor back, when nobody waits on it.
    #[must_use]
    pub fn into_fd(self) -> Option<OwnedFd> {
        Arc::into_inner(self.fd)
    }
}

impl Runtime {
    /// The end of a FUSE file system, on this runtime's executors.
    #[must_use]
    pub fn fuse_channel(&self, fd: OwnedFd) -> FuseChannel {
        FuseChannel { fd: Arc::new(fd), shared: Some(self.shared().clone()) }
    }
}

/// Let the processes that are started from here on have this descriptor, under the same number.
///
/// # Errors
/// The system's.
pub fn pass_on(fd: &OwnedFd) -> Result<RawFd> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) })?;
    Ok(fd.as_raw_fd())
}

/// Take a descriptor that the process which started this one has passed on. Once each, before anything is opened.
///
/// # Errors
/// There is none of that number.
pub fn passed_on(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and was put there for this process by who started it; the caller takes it once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
