//! Which driver this host has.

use super::spec::Kind;
use super::{AttachError, Driver};
use device::real::NbdDevice;
use std::process::{Command, Stdio};

/// The driver to take, and for who leaves the choice a word why.
pub(super) fn probe(driver: Driver) -> Result<(Kind, Option<String>), AttachError> {
    match driver {
        Driver::Ublk => Err(AttachError::Driver {
            driver: "ublk",
            why: "it is not in this release".to_owned(),
            hint: "--driver nbd, --driver fuse, or without --driver",
        }),
        Driver::Nbd => match nbd() {
            Ok(()) => Ok((Kind::Nbd, None)),
            Err(why) => Err(AttachError::Driver {
                driver: "nbd",
                why,
                hint: "`modprobe nbd`, in the host's own network namespace; or --driver fuse, or without --driver",
            }),
        },
        Driver::Fuse => fuse().map(|()| (Kind::Fuse, None)),
        Driver::Auto => match nbd() {
            Ok(()) => Ok((Kind::Nbd, Some("driver nbd".to_owned()))),
            Err(why) => fuse().map(|()| (Kind::Fuse, Some(format!("driver fuse (nbd: {why})")))),
        },
    }
}

/// Whether the kernel's NBD client is there. As with file systems, its module is loaded when there is one and nobody has forbidden it.
fn nbd() -> Result<(), String> {
    let Err(first) = NbdDevice::probe() else { return Ok(()) };
    let mut modprobe = Command::new("modprobe");
    modprobe.args(["-b", "-q", "nbd"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let why = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "this kernel has no NBD client, or not in this network namespace".to_owned(),
        _ => format!("the kernel's NBD client does not answer: {error}"),
    };
    match modprobe.status() {
        Ok(status) if status.success() => NbdDevice::probe().map_err(why),
        _ => Err(why(first)),
    }
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
