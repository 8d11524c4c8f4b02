//! Which driver this host has.

use super::gate::NO_GROWTH;
use super::spec::Kind;
use super::{AttachError, Driver};
use device::real::{NbdDevice, UblkDevice, UblkFeatures};
use std::io;
use std::process::{Command, Stdio};

/// Lines of kernels whose driver for ublk brings the host down: 6.17 (longhorn/longhorn#13509, a panic when a device is made).
const UBLK_PANICS: [&str; 1] = ["6.17."];

/// The kernel's own namespace of processes.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The driver to take, and for who leaves the choice a word why.
pub(super) fn probe(driver: Driver) -> Result<(Kind, Option<String>), AttachError> {
    match driver {
        Driver::Ublk => match ublk() {
            Ok(features) => Ok((Kind::Ublk, (!features.can_resize()).then(|| format!("driver ublk: {NO_GROWTH}")))),
            Err(why) => Err(AttachError::Driver {
                driver: "ublk",
                why,
                hint: "`modprobe ublk_drv`, Linux 6.5 or later; in a container, pass /dev/ublk-control and /dev/ublk*; or --driver nbd, \
                       --driver fuse, or without --driver",
            }),
        },
        Driver::Nbd => match nbd() {
            Ok(()) => Ok((Kind::Nbd, None)),
            Err(why) => Err(AttachError::Driver {
                driver: "nbd",
                why,
                hint: "`modprobe nbd`, in the host's own network namespace; or --driver fuse, or without --driver",
            }),
        },
        Driver::Fuse => fuse().map(|()| (Kind::Fuse, None)),
        Driver::Auto => best(),
    }
}

/// The best there is: ublk where it has all that the others have, then the kernel's NBD client, then FUSE.
fn best() -> Result<(Kind, Option<String>), AttachError> {
    let no_ublk = match ublk() {
        Ok(features) if !features.can_resize() => NO_GROWTH.to_owned(),
        Ok(_) if !is_host() => "this is a container: its devices would not appear here".to_owned(),
        Ok(_) => return Ok((Kind::Ublk, Some("driver ublk".to_owned()))),
        Err(why) => why,
    };
    match nbd() {
        Ok(()) => Ok((Kind::Nbd, Some(format!("driver nbd (ublk: {no_ublk})")))),
        Err(no_nbd) => fuse().map(|()| (Kind::Fuse, Some(format!("driver fuse (ublk: {no_ublk}; nbd: {no_nbd})")))),
    }
}

/// What the kernel's driver for ublk can do, where a device can be served.
fn ublk() -> Result<UblkFeatures, String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if UBLK_PANICS.iter().any(|line| release.starts_with(line)) {
        return Err(format!("Linux {release} is known to panic when a device is made"));
    }
    let why = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "this kernel has no driver for it, or /dev/ublk-control is not here".to_owned(),
        io::ErrorKind::Unsupported => "the kernel's driver is older than Linux 6.5".to_owned(),
        _ => format!("/dev/ublk-control: {error}"),
    };
    match with_module("ublk_drv", UblkDevice::features).map_err(why)? {
        features if features.suffice() => Ok(features),
        _ => Err("the kernel's driver is older than Linux 6.5".to_owned()),
    }
}

/// Whether new devices of the kernel's appear below this /dev, and process numbers are the kernel's own: with both a ublk device can be served.
fn is_host() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dev = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/dev"));
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    dev.is_some_and(|line| line.split(' ').nth(2) == Some("devtmpfs")) && namespace.as_os_str() == FIRST_PID_NAMESPACE
}

/// Whether the kernel's NBD client is there.
fn nbd() -> Result<(), String> {
    with_module("nbd", NbdDevice::probe).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "this kernel has no NBD client, or not in this network namespace".to_owned(),
        _ => format!("the kernel's NBD client does not answer: {error}"),
    })
}

/// Ask, and when nobody answers load the module and ask again. As with file systems, a module is loaded when there is one and nobody has
/// forbidden it.
fn with_module<T>(module: &str, ask: fn() -> io::Result<T>) -> io::Result<T> {
    ask().or_else(|first| {
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["-b", "-q", module]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match modprobe.status() {
            Ok(status) if status.success() => ask(),
            _ => Err(first),
        }
    })
}

fn fuse() -> Result<(), AttachError> {
    let needed = [
        ("/dev/fuse", "`modprobe fuse`; in a container, pass /dev/fuse"),
        ("/dev/loop-control", "`modprobe loop`; in a container, pass /dev/loop-control and /dev/loop*"),
    ];
    for (path, hint) in needed {
        if let Err(error) = std::fs::File::options().read(true).write(true).open(path) {
            return Err(AttachError::Driver { driver: "fuse", why: format!("{path}: {error}"), hint });
        }
    }
    Ok(())
}
