//! The kernel's NBD client: one end of a connection as a block device of this host, configured over netlink.
//!
//! The other end is a process of ours. When that dies the device waits for another connection, and sends again what it had no answer to.
//!
//! Never opens the device to configure it: who has it open keeps it there.

use super::genl::{Attributes, Family, find};
use super::sys::{check, own};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Of `linux/nbd-netlink.h`: not in the libc crate.
const FAMILY: &str = "nbd";
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// A device of the kernel's NBD client. It stays connected when this is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDevice {
    path: PathBuf,
    index: u32,
}

/// The settings a device is connected with.
#[derive(Clone, Copy, Debug)]
pub struct NbdSetup<'a> {
    /// A multiple of a block.
    pub size_bytes: u64,
    /// Logical and physical block: a power of two from 512 to a page.
    pub block_bytes: u32,
    /// The protocol's transmission flags.
    pub flags: u16,
    /// The name that the kernel shows of the device (`/sys/block/nbdN/backend`).
    pub name: &'a str,
    /// How long requests wait for another connection when theirs is dead.
    pub dead_for: Duration,
}

fn sockets(end: &OwnedFd) -> Attributes {
    let socket = Attributes::new().u32(SOCKET_FD, end.as_raw_fd() as u32);
    Attributes::new().nested(SOCKET_ITEM, &socket)
}

impl NbdDevice {
    /// Whether the kernel's NBD client is there, and can be configured from here.
    ///
    /// # Errors
    /// `ENOENT`: the module is not loaded, or this is a network namespace of its own.
    pub fn probe() -> Result<()> {
        Family::open(FAMILY).map(drop)
    }

    /// The device that a path names, as `/dev/nbd3`; it need not be connected.
    #[must_use]
    pub fn of(path: &Path) -> Option<NbdDevice> {
        let index = path.file_name()?.to_str()?.strip_prefix("nbd")?.parse().ok()?;
        Some(NbdDevice { path: path.to_owned(), index })
    }

    /// A free device, or a new one, whose requests go into `end`.
    ///
    /// # Errors
    /// The kernel's; `NotFound`: it has no name below /dev, or the kernel is older than 5.14 and cannot say what it is of.
    pub fn connect(setup: &NbdSetup<'_>, end: &OwnedFd) -> Result<NbdDevice> {
        let asked = Attributes::new()
            .u64(SIZE_BYTES, setup.size_bytes)
            .u64(BLOCK_SIZE_BYTES, u64::from(setup.block_bytes))
            .u64(SERVER_FLAGS, u64::from(setup.flags))
            .u64(DEAD_CONN_TIMEOUT, setup.dead_for.as_secs())
            .text(BACKEND_IDENTIFIER, setup.name)
            .nested(SOCKETS, &sockets(end));
        let answer = Family::open(FAMILY)?.ask(CONNECT, &asked)?;
        let index = find(&answer, INDEX).and_then(|index| index.try_into().ok()).map(u32::from_ne_bytes);
        let index = index.ok_or_else(|| Error::from(ErrorKind::InvalidData))?;
        let device = NbdDevice { path: PathBuf::from(format!("/dev/nbd{index}")), index };
        let missing = match device.name() {
            None => Some("the kernel does not say what a device is of (Linux 5.14 does)".to_owned()),
            Some(_) if !device.path.exists() => Some(format!("there is no {}", device.path.display())),
            Some(_) => None,
        };
        match missing {
            None => Ok(device),
            Some(what) => {
                // A device without a name or a path would be found by no later command.
                let _ = device.disconnect();
                Err(Error::new(ErrorKind::NotFound, what))
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name it was connected with; none when it is not connected.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let text = std::fs::read_to_string(format!("/sys/block/nbd{}/backend", self.index)).ok()?;
        Some(text.trim_end_matches('\n').to_owned())
    }

    fn reconfigure(&self, name: &str, attributes: Attributes) -> Result<()> {
        let asked = attributes.u32(INDEX, self.index).text(BACKEND_IDENTIFIER, name);
        Family::open(FAMILY)?.ask(RECONFIGURE, &asked).map(drop)
    }

    /// Another connection in place of the one that is dead.
    ///
    /// # Errors
    /// `ENOSPC`: the kernel has not noticed yet that it is dead. `EINVAL`, `ENODEV`: the device is not connected, or is of something else.
    pub fn reconnect(&self, name: &str, end: &OwnedFd) -> Result<()> {
        self.reconfigure(name, Attributes::new().nested(SOCKETS, &sockets(end)))
    }

    /// It has another size from here on.
    ///
    /// # Errors
    /// As [`NbdDevice::reconnect`].
    pub fn resize(&self, name: &str, size_bytes: u64) -> Result<()> {
        self.reconfigure(name, Attributes::new().u64(SIZE_BYTES, size_bytes))
    }

    /// Take it apart: what is under way fails, and it is free when the last who has it open closes it. One that is apart already stays
    /// so.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disconnect(&self) -> Result<()> {
        let asked = Attributes::new().u32(INDEX, self.index);
        match Family::open(FAMILY)?.ask(DISCONNECT, &asked) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Both ends of a connection within this host.
///
/// # Errors
/// The system's.
pub fn stream_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: fills a live array of two.
    check(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) })?;
    Ok((own(ends[0]), own(ends[1])))
}

/// End a connection for everybody who has either end.
pub fn hang_up(end: &OwnedFd) {
    super::sys::shutdown(end.as_raw_fd());
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_device() {
        assert_eq!(NbdDevice::of(Path::new("/dev/nbd12")).unwrap().index, 12);
        for other in ["/dev/nbd", "/dev/nbd0p1", "/dev/loop0", "nbd-1", "/"] {
            assert_eq!(NbdDevice::of(Path::new(other)), None, "{other}");
        }
    }
}
