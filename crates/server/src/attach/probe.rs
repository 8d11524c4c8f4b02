//! Which driver this host has.

use super::gate::NO_GROWTH;
use super::spec::Kind;
use super::{AttachError, Driver};
use device::real::{NbdDevice, UblkDevice, UblkFeatures};
use std::collections::VecDeque;
use std::io;
use std::process::{Command, Stdio};
use tracing::warn;

/// Lines of kernels whose driver for ublk brings the host down: 6.17 (longhorn/longhorn#13509, a panic when a device is made). Elsewhere a
/// device that cannot be added is noticed when it is tried.
const UBLK_PANICS: [&str; 1] = ["6.17."];

/// The kernel's own namespace of processes.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The ways that may work here, the best first, and why others were passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ways {
    usable: VecDeque<Kind>,
    passed: Vec<(Kind, String)>,
    /// The user left the choice, and is told of it.
    is_choice: bool,
    /// What the user is told of the way named.
    note: Option<String>,
}

impl Ways {
    fn named(kind: Kind, note: Option<String>) -> Ways {
        Ways { usable: VecDeque::from([kind]), passed: Vec::new(), is_choice: false, note }
    }

    /// The way to take, unless it has failed.
    pub(super) fn best(&self) -> Kind {
        self.usable.front().copied().unwrap_or_default()
    }

    /// A line for the user: the way taken, and why no better one.
    pub(super) fn told(&self) -> Option<String> {
        if !self.is_choice {
            return self.note.clone();
        }
        let passed: Vec<String> = self.passed.iter().map(|(kind, why)| format!("{}: {why}", kind.word())).collect();
        let why = if passed.is_empty() { String::new() } else { format!(" ({})", passed.join("; ")) };
        Some(format!("driver {}{why}", self.best().word()))
    }

    /// Try one way after the other. `attempt` is told whether another way is left, and then fails within seconds. A device that did not come
    /// about is tried the next way; any other error is final.
    pub(super) fn first_that_works<T>(
        &mut self,
        mut attempt: impl FnMut(Kind, bool) -> Result<T, AttachError>,
    ) -> Result<T, AttachError> {
        loop {
            let has_another = self.usable.len() > 1;
            match attempt(self.best(), has_another) {
                Err(AttachError::Failed { why, .. }) if has_another => {
                    let why = why.lines().next().unwrap_or_default().to_owned();
                    warn!("driver {}: {why}: the next one is tried", self.best().word());
                    self.passed.extend(self.usable.pop_front().map(|kind| (kind, why)));
                }
                done => return done,
            }
        }
    }
}

/// The ways to try.
pub(super) fn probe(driver: Driver) -> Result<Ways, AttachError> {
    match driver {
        Driver::Ublk => match ublk() {
            Ok(features) => {
                let note = (!features.can_resize()).then(|| format!("driver ublk: {NO_GROWTH}"));
                Ok(Ways::named(Kind::Ublk, note))
            }
            Err(why) => Err(AttachError::Driver {
                driver: "ublk",
                why,
                hint: "`modprobe ublk_drv`, Linux 6.5 or later; in a container, pass /dev/ublk-control and /dev/ublk*; or --driver nbd, \
                       --driver fuse, or without --driver",
            }),
        },
        Driver::Nbd => match nbd() {
            Ok(()) => Ok(Ways::named(Kind::Nbd, None)),
            Err(why) => Err(AttachError::Driver {
                driver: "nbd",
                why,
                hint: "`modprobe nbd`, in the host's own network namespace; or --driver fuse, or without --driver",
            }),
        },
        Driver::Fuse => fuse().map(|()| Ways::named(Kind::Fuse, None)),
        Driver::Auto => {
            let ublk = match ublk() {
                Ok(features) if !features.can_resize() => Err(NO_GROWTH.to_owned()),
                Ok(_) if !is_host() => Err("this is a container: its devices would not appear here".to_owned()),
                Ok(_) => Ok(()),
                Err(why) => Err(why),
            };
            choose(ublk, nbd(), fuse())
        }
    }
}

/// The ways in order: ublk where it has all that the others have, then the kernel's NBD client, then FUSE.
fn choose(
    ublk: Result<(), String>,
    nbd: Result<(), String>,
    fuse: Result<(), AttachError>,
) -> Result<Ways, AttachError> {
    let mut ways = Ways { usable: VecDeque::new(), passed: Vec::new(), is_choice: true, note: None };
    for (kind, works) in [(Kind::Ublk, ublk), (Kind::Nbd, nbd)] {
        match works {
            Ok(()) => ways.usable.push_back(kind),
            Err(why) => ways.passed.push((kind, why)),
        }
    }
    match fuse {
        Ok(()) => ways.usable.push_back(Kind::Fuse),
        Err(error) if ways.usable.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(ways)
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn failed(why: &str) -> AttachError {
        AttachError::Failed { grid_disk: "data".to_owned(), why: why.to_owned() }
    }

    #[test]
    fn a_device_that_cannot_be_added_is_tried_the_next_way() {
        let mut ways = choose(Ok(()), Ok(()), Ok(())).unwrap();
        assert_eq!(ways.told().unwrap(), "driver ublk");
        let mut tried = Vec::new();
        let done = ways.first_that_works(|kind, has_another| {
            tried.push((kind, has_another));
            match kind {
                Kind::Ublk => Err(failed("no ublk device: EINVAL\nhint: something")),
                Kind::Nbd => Err(failed("no nbd device: EBUSY")),
                Kind::Fuse => Ok("/dev/loop0"),
            }
        });
        assert_eq!(done.unwrap(), "/dev/loop0");
        assert_eq!(tried, [(Kind::Ublk, true), (Kind::Nbd, true), (Kind::Fuse, false)]);
        let told = "driver fuse (ublk: no ublk device: EINVAL; nbd: no nbd device: EBUSY)";
        assert_eq!(ways.told().unwrap(), told);
    }

    #[test]
    fn other_errors_and_the_last_way_are_final() {
        let mut ways = choose(Ok(()), Err("no module".to_owned()), Ok(())).unwrap();
        let held = || AttachError::Held { grid_disk: "data".to_owned(), holder: "process 1".to_owned() };
        let done = ways.first_that_works(|_, _| Err::<(), _>(held()));
        assert!(matches!(done, Err(AttachError::Held { .. })));
        let done = ways.first_that_works(|kind, _| Err::<(), _>(failed(kind.word())));
        assert!(matches!(done, Err(AttachError::Failed { why, .. }) if why == "fuse"));
        assert_eq!(ways.told().unwrap(), "driver fuse (nbd: no module; ublk: ublk)");
        let mut named = Ways::named(Kind::Ublk, None);
        assert!(named.first_that_works(|_, has_another| Err::<(), _>(failed(&has_another.to_string()))).is_err());
        assert_eq!(named.told(), None);
        assert!(choose(Err(String::new()), Err(String::new()), Err(failed("fuse"))).is_err());
    }
}
