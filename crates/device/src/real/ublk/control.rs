//! Making a ublk device, and taking it apart.

use super::layout::{
    FUA, IOCTL_ENCODE, Info, Parameters, READ_ONLY, ROTATIONAL, SECTOR_SHIFT, STATE_LIVE, UPDATE_SIZE, USER_COPY,
    USER_RECOVERY, USER_RECOVERY_REISSUE, VOLATILE_CACHE, control_argument,
};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/ublk-control";
/// Requests under way at once.
pub(super) const QUEUE_DEPTH: u16 = 128;
/// Longest discard and write of zeroes: below the 4 GiB that an NBD request can say.
const RANGE_BYTES_MAX: u64 = 2 << 30;
/// Older ublk drivers answer commands they do not know with this error of the kernel's own.
const ENOTSUPP: i32 = 524;
/// Any number that is free.
const NEW: u32 = u32::MAX;

/// A command's code: its direction (read, or both), the length of what it takes, its kind, its number.
pub(super) const fn code(direction: u32, argument_bytes: u32, number: u32) -> u32 {
    direction << 30 | argument_bytes << 16 | (b'u' as u32) << 8 | number
}
const READ: u32 = 2;
pub(super) const BOTH: u32 = 3;
const CONTROL_BYTES: u32 = 32;
const ADD: u32 = code(BOTH, CONTROL_BYTES, 0x04);
const DELETE: u32 = code(BOTH, CONTROL_BYTES, 0x05);
const START: u32 = code(BOTH, CONTROL_BYTES, 0x06);
const STOP: u32 = code(BOTH, CONTROL_BYTES, 0x07);
const SET_PARAMETERS: u32 = code(BOTH, CONTROL_BYTES, 0x08);
const START_RECOVERY: u32 = code(BOTH, CONTROL_BYTES, 0x10);
const END_RECOVERY: u32 = code(BOTH, CONTROL_BYTES, 0x11);
const GET_INFO: u32 = code(READ, CONTROL_BYTES, 0x02);
const GET_FEATURES: u32 = code(READ, CONTROL_BYTES, 0x13);
/// Linux 6.9.
const DELETE_LATER: u32 = code(READ, CONTROL_BYTES, 0x14);
/// Linux 6.16.
const RESIZE: u32 = code(BOTH, CONTROL_BYTES, 0x15);

/// Have the driver carry out a command, and wait for it. `buffer` is what the command reads or fills.
fn control(code: u32, device: u32, buffer: Option<&mut [u8]>, data: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(CONTROL)?;
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(2)?;
    let argument = control_argument(device, buffer, data);
    let entry = opcode::UringCmd80::new(types::Fd(file.as_raw_fd()), code).cmd(argument).build();
    // SAFETY: the entry names a descriptor and, in its argument, a buffer of the caller's; both live until it has completed, below.
    unsafe { ring.submission().push(&entry) }.map_err(|_| Error::from_raw_os_error(libc::EAGAIN))?;
    let result = loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
            _ => {}
        }
        if let Some(completed) = ring.completion().next() {
            break completed.result();
        }
    };
    if result < 0 { Err(Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// The features of this kernel's ublk driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkFeatures(u64);

impl UblkFeatures {
    /// Whether a device can be served as it is here: data copied by the server, requests kept when it dies (Linux 6.5).
    #[must_use]
    pub fn suffice(self) -> bool {
        let needed = USER_COPY | USER_RECOVERY | USER_RECOVERY_REISSUE | IOCTL_ENCODE;
        self.0 & needed == needed
    }

    /// Whether a device can change its size while it is used (Linux 6.16).
    #[must_use]
    pub fn can_resize(self) -> bool {
        self.0 & UPDATE_SIZE != 0
    }
}

/// The properties a new ublk device is made with.
#[derive(Clone, Copy, Debug)]
pub struct UblkSetup {
    /// A multiple of a block.
    pub size_bytes: u64,
    /// Logical and physical block: a power of two from 512 to a page.
    pub block_bytes: u32,
    /// Longest read and write.
    pub transfer_bytes_max: u32,
    /// Nothing is written.
    pub read_only: bool,
    /// Seeking costs.
    pub rotational: bool,
    /// Ranges can be discarded.
    pub trims: bool,
    /// Ranges can be zeroed.
    pub zeroes: bool,
    /// A number that tells the device from others; the kernel keeps it with the device.
    pub tag: u64,
}

/// A ublk device. It stays when this is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UblkDevice {
    path: PathBuf,
    index: u32,
}

impl UblkDevice {
    /// The features of this kernel's ublk driver.
    ///
    /// # Errors
    /// `ENOENT`: the module is not loaded. `EOPNOTSUPP`: it is older than Linux 6.5, or knows the old codes only.
    pub fn features() -> Result<UblkFeatures> {
        let mut bytes = [0; 8];
        control(GET_FEATURES, NEW, Some(&mut bytes), 0)?;
        Ok(UblkFeatures(u64::from_ne_bytes(bytes)))
    }

    /// The device of a number.
    #[must_use]
    pub fn numbered(index: u32) -> UblkDevice {
        UblkDevice { path: PathBuf::from(format!("/dev/ublkb{index}")), index }
    }

    /// The device that a path names, as `/dev/ublkb3`; it need not be there.
    #[must_use]
    pub fn of(path: &Path) -> Option<UblkDevice> {
        let index = path.file_name()?.to_str()?.strip_prefix("ublkb")?.parse().ok()?;
        Some(UblkDevice { path: path.to_owned(), index })
    }

    /// Make a device. It is a block device as soon as somebody serves it ([`super::UblkEnd`]) and has called [`UblkDevice::start`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(setup: &UblkSetup) -> Result<UblkDevice> {
        let wanted = Info {
            queue_depth: QUEUE_DEPTH,
            state: 0,
            transfer_bytes_max: setup.transfer_bytes_max,
            device: NEW,
            flags: USER_COPY | USER_RECOVERY | USER_RECOVERY_REISSUE | IOCTL_ENCODE,
            tag: setup.tag,
        };
        let mut bytes = wanted.encode();
        control(ADD, NEW, Some(&mut bytes), 0)?;
        let device = UblkDevice::numbered(Info::decode(&bytes).device);
        let attribute = |is: bool, attribute: u32| if is { attribute } else { 0 };
        let parameters = Parameters {
            attributes: VOLATILE_CACHE
                | FUA
                | attribute(setup.read_only, READ_ONLY)
                | attribute(setup.rotational, ROTATIONAL),
            block_bytes: setup.block_bytes,
            transfer_bytes_max: setup.transfer_bytes_max,
            size_bytes: setup.size_bytes,
            discard_bytes_max: if setup.trims { RANGE_BYTES_MAX } else { 0 },
            zeroes_bytes_max: if setup.zeroes { RANGE_BYTES_MAX } else { 0 },
        };
        if let Err(error) = control(SET_PARAMETERS, device.index, Some(&mut parameters.encode()), 0) {
            let _ = device.remove();
            return Err(error);
        }
        Ok(device)
    }

    /// Where it is, once it has been started.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its number.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    fn info(&self) -> Result<Info> {
        let mut bytes = [0; Info::BYTES];
        control(GET_INFO, self.index, Some(&mut bytes), 0)?;
        Ok(Info::decode(&bytes))
    }

    /// Whether the device is there and was made with this number ([`UblkSetup::tag`]): numbers of devices are used again.
    #[must_use]
    pub fn has_tag(&self, tag: u64) -> bool {
        self.info().is_ok_and(|info| info.tag == tag)
    }

    /// Whether it is a block device that somebody serves.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.info().is_ok_and(|info| info.state == STATE_LIVE)
    }

    /// Have it be a block device. Waits until this process serves all of its queue, and answers what the kernel reads of it meanwhile.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(&self) -> Result<()> {
        control(START, self.index, None, u64::from(std::process::id()))
    }

    /// Its server has died, and this process will serve it.
    ///
    /// # Errors
    /// `EBUSY`: the kernel is not through with the one that died. `EINVAL`: another has said so already, and died before it served.
    pub fn start_recovery(&self) -> Result<()> {
        control(START_RECOVERY, self.index, None, 0)
    }

    /// As [`UblkDevice::start`], after [`UblkDevice::start_recovery`]: what had no answer comes again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn end_recovery(&self) -> Result<()> {
        control(END_RECOVERY, self.index, None, u64::from(std::process::id()))
    }

    /// It has another size from here on.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: this kernel's cannot ([`UblkFeatures::can_resize`]).
    pub fn resize(&self, size_bytes: u64) -> Result<()> {
        control(RESIZE, self.index, None, size_bytes >> SECTOR_SHIFT)
    }

    /// Take it apart: what is under way fails. Its number is free when its server has ended and nobody has it open. One that is
    /// apart already stays so.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self) -> Result<()> {
        let gone = |result: Result<()>| match result {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            result => result,
        };
        gone(control(STOP, self.index, None, 0))?;
        match control(DELETE_LATER, self.index, None, 0) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | ENOTSUPP)) => {
                gone(control(DELETE, self.index, None, 0))
            }
            result => gone(result),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// As the kernel's header makes them: `_IOWR('u', 0x04, struct ublksrv_ctrl_cmd)` and `_IOR('u', 0x13, …)`.
    #[test]
    fn codes_are_those_of_the_kernel() {
        assert_eq!((ADD, GET_FEATURES), (0xc020_7504, 0x8020_7513));
    }

    #[test]
    fn a_path_names_a_device() {
        assert_eq!(UblkDevice::of(Path::new("/dev/ublkb12")).unwrap(), UblkDevice::numbered(12));
        for other in ["/dev/ublkb", "/dev/ublkb0p1", "/dev/ublkc0", "/dev/loop0", "ublkb-1", "/"] {
            assert_eq!(UblkDevice::of(Path::new(other)), None, "{other}");
        }
    }
}
