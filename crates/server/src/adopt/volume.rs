//! Whether a volume may be adopted. Looks, and changes nothing.

use super::AdoptError;
use crate::attach;
use crate::devices::DeviceError;
use celldisk::Probe;
use device::{Device, OpenOptions, Runtime};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Less holds no file system that a cache would help.
const BYTES_MIN: u64 = 1 << 20;
/// What the host puts together by itself wherever it sees it, so that it would be there twice: on the volume, and on the grid disk.
const PARTS_OF_SOMETHING: [&str; 8] = [
    "an LVM physical volume",
    "a Linux RAID member",
    "a Linux RAID member (1.1)",
    "a Linux RAID member (1.2)",
    "a ZFS pool member",
    "a bcache device",
    "a Stratis block device",
    "a Ceph BlueStore device",
];

/// The volume, open for reading and writing and nobody else's, when it may be adopted; and what is on it.
pub(super) fn open(path: &Path, runtime: &Runtime) -> Result<(Device, String), AdoptError> {
    let name = path.display().to_string();
    let refuse = |what: String, hint| Err(AdoptError::Refused { what, hint });
    if let Some(at) = mounted_at(path) {
        return refuse(
            format!("{name} is mounted on {at}"),
            "unmount it first; the grid disk is attached and mounted in its place",
        );
    }
    // A kernel may let a block device be opened for writing, and refuse the writes.
    if is_read_only(path) {
        return refuse(format!("{name} is read-only"), "a grid disk is written to: make it writable first");
    }
    let options = OpenOptions { name: Some(name.clone()), ..OpenOptions::default() };
    let volume: Device = match runtime.open(path, &options) {
        Ok(volume) => volume,
        Err(error) => return Err(DeviceError::Open(error).into()),
    };
    let size_bytes = volume.geometry().size_bytes;
    if size_bytes < BYTES_MIN {
        return refuse(
            format!("{name} has {size_bytes} bytes: a volume of less than 1 MiB is not adopted"),
            "name another",
        );
    }
    let looked = volume.clone();
    let found = runtime.block_on(async move { celldisk::probe(&looked).await });
    match found.map_err(|error| DeviceError::Unusable { path: name.clone(), error })? {
        Probe::Flashcell(label) => refuse(
            format!("{name} is cell disk {} of a Flashcell cell", label.name),
            "a volume is adopted as it is; a cell disk stands in the cell.toml of its cell",
        ),
        Probe::Newer(_) | Probe::Damaged { .. } => refuse(
            format!("{name} carries the header of a Flashcell cell disk"),
            "see what it is before anything is done to it",
        ),
        Probe::Blank => refuse(
            format!("{name} holds nothing: there is nothing to be adopted"),
            "add it to cell.toml as a disk, and CREATE CELLDISK; or make a file system on it first",
        ),
        Probe::Foreign { what } if PARTS_OF_SOMETHING.contains(&what.as_str()) => refuse(
            format!("{name} is {what}"),
            "the host would find it twice: adopt the volume that is made of it, which holds the file system",
        ),
        Probe::Foreign { what } => Ok((volume, what)),
    }
}

/// The sectors that a file system on the volume was made for, and that its grid disk is to be attached with.
pub(super) fn sector_bytes(path: &Path, volume: &Device) -> u32 {
    let is_block = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    // Those of an image are what its host's disk has, not what the image was made for.
    if is_block { volume.geometry().logical_bytes } else { 512 }
}

/// Where a block device is mounted, in any mount namespace.
fn mounted_at(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = metadata.rdev();
    attach::mounted_at(&format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

/// Whether it is a block device or a file that takes no writes from anybody.
fn is_read_only(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        let file = format!("/sys/dev/block/{}:{}/ro", rustix::fs::major(number), rustix::fs::minor(number));
        return std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "1");
    }
    let of = rustix::fs::statvfs(path);
    // What the mode of the file says, opening it finds out: root is not bound by it.
    of.is_ok_and(|of| of.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
