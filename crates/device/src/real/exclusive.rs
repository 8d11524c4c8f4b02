//! The lasting claim on a block device: one exclusive descriptor (O_EXCL) for each, shared by all its users in this process,
//! so that mkfs, mount, pvcreate and the like find it busy for as long as anybody here has it open. And the same bytes by two
//! names: a file, and a loop device on it.
//!
//! No request goes through that descriptor: no ring holds it open beyond its users.

use crate::probe::sysfs_device;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
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

/// Of sysfs, whatever sectors the device has.
const SECTOR_BYTES: u64 = 512;

/// What the kernel tells a file by, whatever path, hard link or bind mount leads to it: device and inode.
type FileId = (u64, u64);

fn id_of(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// What the kernel tells of a loop device in sysfs. The device itself is not opened: that waits while others sync or close it, for as long
/// as what is below it does not answer.
struct LoopInSysfs {
    /// The path that its file was opened by.
    file: PathBuf,
    /// Where in the file it begins and ends, in bytes; the end is at a whole sector.
    bytes: Range<u64>,
}

impl LoopInSysfs {
    /// By its directory there. `None`: it is no loop device, or is not configured.
    fn read(sysfs: &Path) -> Option<LoopInSysfs> {
        let text = |name: &str| std::fs::read_to_string(sysfs.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let file = PathBuf::from(text("loop/backing_file")?.trim_end_matches('\n'));
        let start = number("loop/offset")?;
        Some(LoopInSysfs { file, bytes: start..start + number("size")? * SECTOR_BYTES })
    }

    /// Whether its file is this one.
    fn is_on(&self, file: &Metadata) -> bool {
        // Before its path is followed, which asks a file system that may be another, and not answer.
        self.bytes.end <= file.len() && std::fs::metadata(&self.file).is_ok_and(|found| id_of(&found) == id_of(file))
    }
}

/// The loop device that has the file at `path` as its content, if there is one.
pub(crate) fn loop_device_on(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        LoopInSysfs::read(&entry.path()).filter(|found| found.is_on(&file)).map(|_| format!("/dev/{name}"))
    })
}

/// The file of the loop device at `path`, open for its lock; `None` for another device, and for a file that no path of this process leads
/// to.
pub(crate) fn content_of_loop_device(path: &Path) -> Option<File> {
    let sysfs = sysfs_device(std::fs::metadata(path).ok()?.rdev())?;
    let found = LoopInSysfs::read(&sysfs)?;
    // Looked at before it is opened: opening another kind of file may wait.
    let file = std::fs::metadata(&found.file).ok().filter(Metadata::is_file)?;
    File::open(&found.file).ok().filter(|opened| opened.metadata().is_ok_and(|opened| id_of(&opened) == id_of(&file)))
}
