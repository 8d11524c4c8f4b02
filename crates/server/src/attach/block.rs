//! The block device of an attachment, whichever driver it is of.

use super::spec::Spec;
use device::real::{LoopDevice, NbdDevice, UblkDevice};
use std::io;
use std::path::Path;

/// It stays configured when this is dropped.
#[derive(Debug)]
pub(super) enum BlockDevice {
    Loop(LoopDevice),
    Nbd(NbdDevice),
    Ublk(UblkDevice),
}

impl BlockDevice {
    /// The device that a path names; it need not be configured.
    pub(super) fn open(path: &Path) -> io::Result<BlockDevice> {
        // One that is half made, or half taken apart, has a number and no path.
        if let Some(device) = UblkDevice::of(path).filter(|_| !path.exists()) {
            return Ok(BlockDevice::Ublk(device));
        }
        // A link of ours names it too.
        let path = &std::fs::canonicalize(path)?;
        match (NbdDevice::of(path), UblkDevice::of(path)) {
            (Some(device), _) => Ok(BlockDevice::Nbd(device)),
            (_, Some(device)) => Ok(BlockDevice::Ublk(device)),
            (None, None) => LoopDevice::open(path).map(BlockDevice::Loop),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            BlockDevice::Loop(device) => device.path(),
            BlockDevice::Nbd(device) => device.path(),
            BlockDevice::Ublk(device) => device.path(),
        }
    }

    /// Whether it is (still) the one of this attachment: numbers of devices are used again. A loop device that cannot tell is one whose
    /// driver is gone, as ours may be.
    pub(super) fn is_of(&self, spec: &Spec) -> bool {
        match self {
            BlockDevice::Loop(device) => device.name().is_some_and(|name| spec.device_name().starts_with(&*name)),
            BlockDevice::Nbd(device) => device.name().is_some_and(|name| name == spec.device_name()),
            BlockDevice::Ublk(device) => device.has_tag(spec.device_tag()),
        }
    }

    /// Whether anybody has it open for himself.
    pub(super) fn is_held(&self) -> bool {
        device::real::is_held(self.path())
    }

    /// Make durable what was written to it.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            BlockDevice::Loop(device) => device.sync(),
            BlockDevice::Nbd(_) | BlockDevice::Ublk(_) => std::fs::File::open(self.path())?.sync_all(),
        }
    }

    /// Take it apart: at once, or when the last who has it open closes it. One that is apart already stays so.
    pub(super) fn clear(&self) -> io::Result<()> {
        match self {
            BlockDevice::Loop(device) => device.clear(),
            BlockDevice::Nbd(device) => device.disconnect(),
            BlockDevice::Ublk(device) => device.remove(),
        }
    }
}
