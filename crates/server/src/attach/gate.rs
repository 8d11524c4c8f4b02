//! What the keeper holds of a device so that it outlives its driver: the end that requests come out of, and what leads to the device.
//!
//! Never waits for the device itself: only a driver can answer.

use super::AttachError;
use super::block::BlockDevice;
use super::nbd_front;
use super::spec::{Kind, Spec};
use super::wire::{self, Message, TRANSFER_BYTES_MAX};
use device::real::{
    FuseChannel, FuseMount, FuseRoot, LoopDevice, NbdDevice, NbdSetup, UblkDevice, UblkSetup, hang_up, pass_on,
    stream_pair,
};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// For the kernel's first message.
const START: Duration = Duration::from_secs(20);
/// For requests on a device whose connection nobody holds any more, neither keeper nor driver: then they fail. While the keeper lives
/// they have another connection at once.
const DEAD_FOR: Duration = Duration::from_secs(10);
/// After so long the kernel looks after a request that has no answer: on a connection that is gone it is sent again, on one that lives it
/// waits on (and the kernel's log says so each time). So this is the pause that the death of a driver makes.
const LOOK_AFTER: Duration = Duration::from_secs(5);
/// For the kernel to be through with a connection that is gone. Its receiver calls the device's connection dead when it comes to that; if it
/// came to that late, it would be the new one.
const SETTLE: Duration = Duration::from_millis(200);
/// For the kernel to notice that a connection is gone.
const NOTICE: Duration = Duration::from_secs(5);
const NOTICE_EVERY: Duration = Duration::from_millis(20);
/// For a ublk device to be there once its driver is up.
const APPEAR_EVERY: Duration = Duration::from_millis(5);
/// What a ublk device of an older kernel lacks.
pub(super) const NO_GROWTH: &str = "this kernel's device does not grow while it is attached (Linux 6.16 and later do): detach and attach after `alter griddisk … size=`";

pub(super) enum Gate {
    Fuse {
        channel: OwnedFd,
        /// None: the file may go, and the file system with it.
        root: Option<Arc<FuseRoot>>,
    },
    Nbd {
        /// The driver's end.
        ours: OwnedFd,
        /// The kernel's, until it has it.
        kernels: Option<OwnedFd>,
        device: Option<NbdDevice>,
    },
    /// The kernel keeps the device for whoever serves it next: a driver needs its number alone.
    Ublk {
        device: UblkDevice,
        /// Whether it has come about: one that has not goes with the gate.
        is_made: bool,
    },
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Gate::Ublk { device, is_made: false } = self {
            let _ = device.remove();
        }
    }
}

/// What came of making a gate ready for another driver.
pub(super) enum Renewed {
    Ready,
    /// The device is gone.
    Gone,
    Failed(io::Error),
}

/// Has the device see its new size. To be called where waiting for the driver hurts nobody.
pub(super) type Grow = Box<dyn FnOnce(u64) -> io::Result<()> + Send>;

fn failed(spec: &Spec, why: impl std::fmt::Display) -> AttachError {
    AttachError::Failed { grid_disk: spec.grid_disk.clone(), why: why.to_string() }
}

impl Gate {
    pub(super) fn new(spec: &Spec) -> Result<Gate, AttachError> {
        match spec.driver {
            Kind::Fuse => {
                let mount = FuseMount::new(&spec.device_name(), TRANSFER_BYTES_MAX).map_err(|error| {
                    failed(spec, format!("{error}\nhint: root, Linux 5.4 or later, and /dev/fuse are needed"))
                })?;
                let (channel, root) = mount.into_parts();
                Ok(Gate::Fuse { channel: greet(spec, channel)?, root: Some(Arc::new(root)) })
            }
            Kind::Nbd => {
                let (ours, kernels) = stream_pair().map_err(|error| failed(spec, format!("socket pair: {error}")))?;
                Ok(Gate::Nbd { ours, kernels: Some(kernels), device: None })
            }
            Kind::Ublk => Ok(Gate::Ublk { device: add_ublk_device(spec)?, is_made: false }),
        }
    }

    /// What a driver is started with: the name of the option, and its value.
    pub(super) fn end(&self) -> io::Result<(&'static str, String)> {
        Ok(match self {
            Gate::Fuse { channel, .. } => ("--fuse", pass_on(channel)?.to_string()),
            Gate::Nbd { ours, .. } => ("--nbd", pass_on(ours)?.to_string()),
            Gate::Ublk { device, .. } => ("--ublk", device.index().to_string()),
        })
    }

    /// The device there is before a driver is: a ublk device, which outlives who made it.
    pub(super) fn early_device(&self) -> Option<&Path> {
        match self {
            Gate::Ublk { device, .. } => Some(device.path()),
            _ => None,
        }
    }

    /// Make the block device. The driver is up and answers; `died` says why it does no more.
    pub(super) fn make_device(
        &mut self,
        spec: &Spec,
        died: &mut dyn FnMut() -> Option<String>,
    ) -> Result<BlockDevice, AttachError> {
        let made = match self {
            Gate::Fuse { root, .. } => BlockDevice::Loop(make_loop_device(spec, root.as_deref())?),
            Gate::Nbd { kernels, device, .. } => {
                let end = kernels.take().ok_or_else(|| failed(spec, "the kernel has its end already"))?;
                let made = make_nbd_device(spec, &end)?;
                *device = Some(made.clone());
                BlockDevice::Nbd(made)
            }
            Gate::Ublk { device, is_made } => {
                await_ublk_device(spec, device, died)?;
                *is_made = true;
                BlockDevice::Ublk(device.clone())
            }
        };
        tune(spec, &made);
        Ok(made)
    }

    /// Before another driver is started. Requests on a FUSE channel are whole, so the next driver goes on with it; in a stream the one
    /// that died may have stood anywhere, so there is a new connection. A ublk device is taken over by the driver itself.
    pub(super) fn renew(&mut self, spec: &Spec) -> Renewed {
        let (ours, device) = match self {
            Gate::Nbd { ours, device: Some(device), .. } => (ours, device),
            Gate::Ublk { device, .. } if !device.has_tag(spec.device_tag()) => return Renewed::Gone,
            _ => return Renewed::Ready,
        };
        hang_up(ours);
        std::thread::sleep(SETTLE);
        let until = Instant::now() + NOTICE;
        loop {
            let (new, kernels) = match stream_pair() {
                Ok(pair) => pair,
                Err(error) => return Renewed::Failed(error),
            };
            match device.reconnect(&spec.device_name(), &kernels) {
                Ok(()) => drop(kernels),
                Err(error) => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                    Some(rustix::io::Errno::INVAL | rustix::io::Errno::NODEV) => return Renewed::Gone,
                    _ => return Renewed::Failed(error),
                },
            }
            if !is_hung_up(&new) {
                *ours = new;
                return Renewed::Ready;
            }
            // The kernel says that all is well when it had no dead connection to replace, and has not taken this one.
            if Instant::now() >= until {
                return Renewed::Failed(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(NOTICE_EVERY);
        }
    }

    /// The device may go.
    pub(super) fn let_go(&mut self) {
        if let Gate::Fuse { root, .. } = self {
            *root = None;
        }
    }

    /// None: it may go, and does not grow any more.
    pub(super) fn grow(&self, spec: &Spec, path: &Path) -> Option<Grow> {
        match self {
            Gate::Fuse { root, .. } => {
                let (root, path) = (root.clone()?, path.to_owned());
                Some(Box::new(move |_| {
                    root.open(true)?.metadata()?;
                    LoopDevice::open(&path)?.look_for_growth()
                }))
            }
            Gate::Nbd { device, .. } => {
                let (device, name, sector) = (device.clone()?, spec.device_name(), u64::from(spec.sector_bytes));
                Some(Box::new(move |size_bytes| device.resize(&name, size_bytes - size_bytes % sector)))
            }
            Gate::Ublk { device, .. } => {
                let (device, sector, tag) = (device.clone(), u64::from(spec.sector_bytes), spec.device_tag());
                Some(Box::new(move |size_bytes| {
                    if !UblkDevice::features()?.can_resize() {
                        return Err(io::Error::new(io::ErrorKind::Unsupported, NO_GROWTH));
                    }
                    // One that is stopped has no size, and a number may be another's.
                    if !device.has_tag(tag) || !device.is_live() {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    device.resize(size_bytes - size_bytes % sector)
                }))
            }
        }
    }
}

/// Whether nobody has the other end any more.
fn is_hung_up(end: &OwnedFd) -> bool {
    use rustix::net::{RecvFlags, recv};
    let mut byte = [0_u8];
    recv(end, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count == 0)
}

/// The kernel's first message, which comes once: no driver that takes over would ever see it.
fn greet(spec: &Spec, fuse: OwnedFd) -> Result<OwnedFd, AttachError> {
    let channel = FuseChannel::new(fuse);
    let mut buf = vec![0; wire::MESSAGE_BYTES_MAX];
    let late = i32::try_from(START.as_millis()).unwrap_or(i32::MAX);
    let count = channel.next_blocking(&mut buf, late).map_err(|error| failed(spec, format!("/dev/fuse: {error}")))?;
    let strange = |what: &dyn std::fmt::Display| failed(spec, format!("{what}\nhint: Linux 5.4 or later is needed"));
    let (unique, message) = wire::decode(&buf[..count]).map_err(|error| strange(&error))?;
    let Message::Init { major, minor, readahead, flags } = message else {
        return Err(strange(&"the kernel does not begin with INIT"));
    };
    let (answer, resends) = wire::init(major, minor, readahead, flags).map_err(|error| strange(&error))?;
    if !resends {
        warn!(
            "when the driver dies, what it has taken and not answered is lost: this kernel does not hand it out again (6.9 does)"
        );
    }
    let head = wire::answer(unique, 0, answer.len());
    let sent = channel.send(&[IoSlice::new(&head), IoSlice::new(&answer)]);
    sent.map_err(|error| failed(spec, format!("/dev/fuse: {error}")))?;
    channel.into_fd().ok_or_else(|| failed(spec, "the descriptor is in use"))
}

fn make_loop_device(spec: &Spec, root: Option<&FuseRoot>) -> Result<LoopDevice, AttachError> {
    let root = root.ok_or_else(|| failed(spec, "it is detached already"))?;
    // A loop device takes the size that the kernel has on record, which on Linux 6.12 is none until somebody has asked.
    let opened = root.open(spec.read_only).and_then(|file| file.metadata().map(|_| file));
    let file = opened.map_err(|error| failed(spec, format!("cannot open the file: {error}")))?;
    LoopDevice::configure(&file, spec.sector_bytes, spec.read_only, &spec.device_name()).map_err(|error| {
        let hint = "`modprobe loop`; in a container, pass /dev/loop-control and /dev/loop*";
        failed(spec, format!("no loop device: {error}\nhint: {hint}"))
    })
}

fn make_nbd_device(spec: &Spec, end: &OwnedFd) -> Result<NbdDevice, AttachError> {
    let setup = NbdSetup {
        size_bytes: spec.size_bytes,
        block_bytes: spec.sector_bytes,
        flags: nbd_front::flags(spec.trims, spec.zeroes, spec.rotational, spec.read_only).bits(),
        name: &spec.device_name(),
        dead_for: DEAD_FOR,
    };
    NbdDevice::connect(&setup, end).map_err(|error| {
        let hint = "`modprobe nbd`, Linux 5.14 or later; in a container, pass /dev/nbd*; or --driver fuse";
        failed(spec, format!("no nbd device: {error}\nhint: {hint}"))
    })
}

fn add_ublk_device(spec: &Spec) -> Result<UblkDevice, AttachError> {
    let setup = UblkSetup {
        size_bytes: spec.size_bytes,
        block_bytes: spec.sector_bytes,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        read_only: spec.read_only,
        rotational: spec.rotational,
        trims: spec.trims,
        zeroes: spec.zeroes,
        tag: spec.device_tag(),
    };
    UblkDevice::add(&setup).map_err(|error| {
        let hint = "`modprobe ublk_drv`; in a container, pass /dev/ublk*; or --driver nbd, --driver fuse";
        failed(spec, format!("no ublk device: {error}\nhint: {hint}"))
    })
}

/// Wait until the driver has started the device.
fn await_ublk_device(
    spec: &Spec,
    device: &UblkDevice,
    died: &mut dyn FnMut() -> Option<String>,
) -> Result<(), AttachError> {
    let until = Instant::now() + START;
    while !(device.is_live() && device.path().exists()) {
        if let Some(why) = died() {
            return Err(failed(spec, why));
        }
        if Instant::now() >= until {
            let hint = "in a container, pass /dev/ublk*; or --driver nbd, --driver fuse";
            return Err(failed(spec, format!("{} does not appear\nhint: {hint}", device.path().display())));
        }
        std::thread::sleep(APPEAR_EVERY);
    }
    Ok(())
}

/// Settings of the kernel's for the device.
fn tune(spec: &Spec, device: &BlockDevice) {
    let Some(name) = device.path().file_name() else { return };
    let queue = Path::new("/sys/block").join(name).join("queue");
    let set = |setting: &str, value: String| std::fs::write(queue.join(setting), value);
    // It works without.
    let _ = set("rotational", u8::from(spec.rotational).to_string());
    if let BlockDevice::Nbd(_) = device {
        // As long as over FUSE, instead of 128 KiB.
        let _ = set("max_sectors_kb", (TRANSFER_BYTES_MAX >> 10).to_string());
        if let Err(error) = set("io_timeout", LOOK_AFTER.as_millis().to_string()) {
            warn!(
                "the death of a driver makes a pause of half a minute: {}: {error}",
                queue.join("io_timeout").display()
            );
        }
    }
}
