//! The lasting claim on a block device: one exclusive descriptor (O_EXCL) for each, shared by all its users in this process,
//! so that mkfs, mount, pvcreate and the like find it busy for as long as anybody here has it open. And what else may be on
//! a file: loop devices.
//!
//! No request goes through that descriptor: no ring holds it open beyond its users.

use crate::sync::lock;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

/// By device number; bounded by the devices that are open.
static CLAIMED: Mutex<BTreeMap<u64, Weak<File>>> = Mutex::new(BTreeMap::new());

/// Claim the block device at `path`, or share the claim that this process has.
///
/// # Errors
/// `ResourceBusy`: it is mounted, part of an array or claimed by another process.
pub(crate) fn claim(path: &Path) -> io::Result<Arc<File>> {
    let number = std::fs::metadata(path)?.rdev();
    let mut claimed = lock(&CLAIMED);
    if let Some(file) = claimed.get(&number).and_then(Weak::upgrade) {
        return Ok(file);
    }
    let file = Arc::new(OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path)?);
    claimed.retain(|_, file| file.strong_count() > 0);
    claimed.insert(number, Arc::downgrade(&file));
    Ok(file)
}

/// The loop device that has the file at `path` as its content, if there is one.
pub(crate) fn loop_device_on(path: &Path) -> Option<String> {
    let wanted = path.canonicalize().ok()?;
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        (Path::new(file.trim_end_matches('\n')) == wanted).then(|| format!("/dev/{name}"))
    })
}
