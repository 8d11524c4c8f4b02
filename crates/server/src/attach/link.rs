//! The name of an attached device, `/dev/flashcell/CELL/GRIDDISK`: a link made here, and the same link made by udev where that runs.
//!
//! systemd knows a device by the names that udev gave it: what fstab names otherwise is waited for in vain. The rule in `packaging/udev` reads
//! what is written here, in a file by the device's name, when the kernel tells of a change of the device. A host without udev has the link alone.

use super::runtime_dir;
use super::spec::{Place, Spec};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use tracing::warn;

/// What the rule imports.
const KEY: &str = "FLASHCELL_LINK";

/// Give a device its name.
pub(super) fn make(place: &Place, spec: &Spec, device: &Path) {
    let link = spec.link();
    if fs::symlink_metadata(&link).is_ok_and(|found| found.is_symlink()) {
        // A dead one of ours, or that of another cell of this name, which is attached. The device is not asked: one that hangs would not
        // answer, and one that is open, if only for a moment, is in use.
        let target = fs::canonicalize(&link).unwrap_or_default();
        let has_it = |other: &Place| {
            other.dir != place.dir && other.is_live() && other.record().is_ok_and(|record| record.device == target)
        };
        if Place::all().iter().any(has_it) {
            return warn!("{} belongs to another attached cell of this name", link.display());
        }
        let _ = fs::remove_file(&link);
    }
    let made =
        link.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| std::os::unix::fs::symlink(device, &link));
    if let Err(error) = made {
        warn!("no link {}: {error}", link.display());
    }
    if let (Some(told), Some(path)) = (told(&link), told_path(device)) {
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, told));
        match written {
            Ok(()) => announce(device),
            Err(error) => warn!("udev does not hear of {}: {}: {error}", link.display(), path.display()),
        }
    }
}

/// Take the name away from a device that is no more, and maybe somebody else's by now.
pub(super) fn remove(spec: &Spec, device: &Path) {
    let link = spec.link();
    let told = told(&link);
    let path = told_path(device).filter(|path| told.is_some() && fs::read_to_string(path).ok() == told);
    if let Some(path) = &path {
        let _ = fs::remove_file(path);
    }
    if fs::symlink_metadata(&link).is_ok_and(|found| found.is_symlink())
        && fs::canonicalize(&link).is_ok_and(|target| target == device)
    {
        let _ = fs::remove_file(&link);
    }
    if path.is_some() {
        announce(device);
    }
}

/// What the file says; nothing where udev would make another name of it.
fn told(link: &Path) -> Option<String> {
    let name = link.strip_prefix("/dev").ok()?.to_str()?;
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.#+:=@".contains(c));
    is_plain.then(|| format!("{KEY}={name}\n"))
}

fn told_path(device: &Path) -> Option<PathBuf> {
    Some(runtime_dir().join("devices").join(device.file_name()?))
}

/// Have the kernel tell of a change of the device.
fn announce(device: &Path) {
    // Where /sys is read-only, as in a container, there is no udev either.
    let _ = fs::write(
        Path::new("/sys/class/block").join(device.file_name().unwrap_or(OsStr::new(""))).join("uevent"),
        "change",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udev_is_told_of_names_that_it_leaves_as_they_are() {
        assert_eq!(
            told(Path::new("/dev/flashcell/db/pgdata")).as_deref(),
            Some("FLASHCELL_LINK=flashcell/db/pgdata\n")
        );
        assert_eq!(told(Path::new("/dev/flashcell/my cell/pgdata")), None);
        assert_eq!(told(Path::new("/dev/flashcell/db/a\nb")), None);
    }
}
