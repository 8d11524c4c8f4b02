//! Loop devices: an open file as a block device of this host.
//!
//! Never leaves a device configured that it has not told of: what fails is undone.

use super::sys::check;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Of `linux/loop.h`: not in the libc crate.
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const NAME_BYTES: usize = 64;
/// Another process may take the free device first; that many in a row are not chance.
const TRIES_MAX: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

fn no_info() -> Info {
    // SAFETY: all zeroes is a valid value of this plain structure.
    unsafe { std::mem::zeroed() }
}

fn call(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: usize) -> Result<i32> {
    // SAFETY: the argument is an integer, or the address of a structure of the request's size that lives for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })
}

/// A block device. It stays configured when this is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: File,
}

impl LoopDevice {
    /// The device that a path names; it need not be configured.
    ///
    /// # Errors
    /// It is not there, or not for this user.
    pub fn open(path: &Path) -> Result<LoopDevice> {
        Ok(LoopDevice { file: OpenOptions::new().read(true).open(path)?, path: path.to_owned() })
    }

    /// A free device on `backing`, whose requests go past the page cache. `name` is what it says it is of: 63 bytes of it.
    ///
    /// # Errors
    /// There is no /dev/loop-control, no leave, or no device is free.
    pub fn configure(backing: &File, block_bytes: u32, read_only: bool, name: &str) -> Result<LoopDevice> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..TRIES_MAX {
            let number = call(control.as_fd(), LOOP_CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = OpenOptions::new().read(true).write(!read_only).open(&path)?;
            let flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
            let mut info = Info { flags, ..no_info() };
            for (to, from) in info.file_name.iter_mut().zip(name.bytes().take(NAME_BYTES - 1)) {
                *to = from;
            }
            let fd = backing.as_raw_fd() as u32;
            let config = Config { fd, block_size: block_bytes, info, reserved: [0; 8] };
            match call(file.as_fd(), LOOP_CONFIGURE, (&raw const config).addr()) {
                Ok(_) => return Ok(LoopDevice { path, file }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::from_raw_os_error(libc::EBUSY))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file it is on: device and inode; none when it is not configured, or cannot tell.
    #[must_use]
    pub fn backing(&self) -> Option<(u64, u64)> {
        let mut info = no_info();
        call(self.file.as_fd(), LOOP_GET_STATUS64, (&raw mut info).addr()).ok()?;
        Some((info.device, info.inode))
    }

    /// What it says it is of; none when it is not configured, empty when it cannot tell because what it is on is gone (the kernel looks
    /// at that first).
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let mut info = no_info();
        match call(self.file.as_fd(), LOOP_GET_STATUS64, (&raw mut info).addr()) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return None,
            Err(_) => return Some(String::new()),
        }
        let end = info.file_name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        Some(String::from_utf8_lossy(&info.file_name[..end]).into_owned())
    }

    /// Look again how large what it is on is.
    ///
    /// # Errors
    /// The system's.
    pub fn look_for_growth(&self) -> Result<()> {
        call(self.file.as_fd(), LOOP_SET_CAPACITY, 0).map(drop)
    }

    /// Make durable what was written to it.
    ///
    /// # Errors
    /// What is below could not.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all()
    }

    /// Take it apart: at once, or when the last who has it open closes it. One that is apart already stays so.
    ///
    /// # Errors
    /// The system's.
    pub fn clear(&self) -> Result<()> {
        match call(self.file.as_fd(), LOOP_CLR_FD, 0) {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether anybody has a block device open for himself: a mounted file system, swap, a device on top.
#[must_use]
pub fn is_held(device: &Path) -> bool {
    let held = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
    held.err().and_then(|error| error.raw_os_error()) == Some(libc::EBUSY)
}

/// Unmount what is mounted last at `path` in this process's mount namespace; `lazily`: it is out of sight at once, and gone when
/// nobody uses it any more.
///
/// # Errors
/// `EBUSY`: it is in use.
pub fn unmount(path: &Path, lazily: bool) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: a live string.
    check(unsafe { libc::umount2(path.as_ptr(), flags) }).map(drop)
}
