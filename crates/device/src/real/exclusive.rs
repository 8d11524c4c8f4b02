//! The lasting claim on a block device: one exclusive descriptor (O_EXCL) for each, shared by all its users in this process,
//! so that mkfs, mount, pvcreate and the like find it busy for as long as anybody here has it open. And the same bytes by two
//! names: a file, and a loop device on it.
//!
//! No request goes through that descriptor: no ring holds it open beyond its users.

use super::loop_device::LoopDevice;
use crate::probe::sysfs_device;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
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

/// What keeps others from a block device that is open here. No request goes through it.
#[derive(Debug)]
pub(crate) struct Held {
    _claim: Arc<File>,
    /// Of a loop device: its file, locked as a cell that has opened the file itself locks it.
    _content: Option<File>,
}

impl Held {
    pub(crate) fn new(claim: Arc<File>, content: Option<File>) -> Held {
        Held { _claim: claim, _content: content }
    }
}

/// What the kernel tells a file by, whatever path, hard link or bind mount leads to it: device and inode.
type FileId = (u64, u64);

fn id_of(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// The file that the loop device `name` is on, and the path of it that the kernel has; none when it is not configured. `sysfs`: its
/// directory there. Where the device may not be opened the path tells.
fn content_of(name: &str, sysfs: &Path) -> Option<(FileId, PathBuf)> {
    let path = std::fs::read_to_string(sysfs.join("loop/backing_file")).ok()?;
    let path = PathBuf::from(path.trim_end_matches('\n'));
    let told = LoopDevice::open(&Path::new("/dev").join(name)).ok().and_then(|device| device.backing());
    let id = told.or_else(|| std::fs::metadata(&path).ok().map(|metadata| id_of(&metadata)))?;
    Some((id, path))
}

/// The loop device that has the file at `path` as its content, if there is one.
pub(crate) fn loop_device_on(path: &Path) -> Option<String> {
    let wanted = id_of(&std::fs::metadata(path).ok()?);
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let (id, _) = content_of(&name, &entry.path())?;
        (id == wanted).then(|| format!("/dev/{name}"))
    })
}

/// The file of the loop device at `path` (or of which that is a partition), open for its lock; none for another device, and for a
/// file that no path of this process leads to.
pub(crate) fn content_of_loop_device(path: &Path) -> Option<File> {
    let sysfs = sysfs_device(std::fs::metadata(path).ok()?.rdev())?;
    let name = sysfs.file_name()?.to_str().filter(|name| name.starts_with("loop"))?;
    let (id, path) = content_of(name, &sysfs)?;
    let is_regular = |file: &File| file.metadata().is_ok_and(|it| it.is_file() && id_of(&it) == id);
    // Looked at before it is opened: opening another kind of file may wait.
    std::fs::metadata(&path).ok().filter(Metadata::is_file)?;
    File::open(&path).ok().filter(is_regular)
}
