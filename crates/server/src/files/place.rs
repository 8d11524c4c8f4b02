//! Where a file system begins on the device of a grid disk, as the kernel tells of partitions and loop devices.
//!
//! Never guesses: what is stacked in another way (LVM, RAID, encryption) has to be told.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kernel counts in these, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// No block device that the kernel tells of.
    #[error(
        "the file system is on no block device of this host ({major}:{minor})\nhint: is it a network file system, or btrfs? \
         --offset tells where on the grid disk one begins that is on a single device"
    )]
    NoDevice {
        /// Its number.
        major: u32,
        /// And the other.
        minor: u32,
    },
    /// Other devices are put together to one.
    #[error(
        "{name} is made of other devices (LVM, RAID or encryption)\nhint: --offset tells where on the grid disk the file \
         system begins, if it lies there in one piece"
    )]
    Stacked {
        /// The kernel's name of it.
        name: String,
    },
    /// Another device, by its size.
    #[error(
        "the file system is on {name} of {device_bytes} bytes, grid disk {grid_disk} has {size_bytes}\nhint: name the grid disk \
         that is {name}; or --offset tells where on the grid disk the file system begins"
    )]
    OtherSize {
        /// The kernel's name.
        name: String,
        /// Its size.
        device_bytes: u64,
        /// The grid disk.
        grid_disk: String,
        /// Its size.
        size_bytes: u64,
    },
    /// What the kernel tells cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where the file system of a device (`st_dev`) begins on the grid disk that the whole device is, bytes.
pub(super) fn begins_at(device: u64, grid_disk: &str, size_bytes: u64) -> Result<u64, PlaceError> {
    begins_at_below(Path::new("/sys/dev/block"), device, grid_disk, size_bytes)
}

fn begins_at_below(sys: &Path, device: u64, grid_disk: &str, size_bytes: u64) -> Result<u64, PlaceError> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(mut dir) = fs::canonicalize(sys.join(format!("{major}:{minor}"))) else {
        return Err(PlaceError::NoDevice { major, minor });
    };
    let mut offset = 0;
    if dir.join("partition").exists() {
        offset = number(&dir.join("start"))? * SECTOR_BYTES;
        dir.pop();
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let slaves = fs::read_dir(dir.join("slaves")).is_ok_and(|mut all| all.next().is_some());
    if slaves || dir.join("dm").exists() || dir.join("md").exists() {
        return Err(PlaceError::Stacked { name });
    }
    let device_bytes = number(&dir.join("size"))? * SECTOR_BYTES;
    let skipped = if dir.join("loop").exists() { number(&dir.join("loop/offset"))? } else { 0 };
    // The kernel leaves out what is no whole sector at the end.
    if (device_bytes + skipped) / SECTOR_BYTES != size_bytes / SECTOR_BYTES {
        return Err(PlaceError::OtherSize { name, device_bytes, grid_disk: grid_disk.to_owned(), size_bytes });
    }
    offset += skipped;
    Ok(offset)
}

fn number(path: &Path) -> Result<u64, PlaceError> {
    let unreadable = |source| PlaceError::Unreadable { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(unreadable)?;
    text.trim()
        .parse()
        .map_err(|_| unreadable(io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number"))))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::symlink;

    /// A /sys/dev/block with one device 7:1.
    fn sys(files: &[(&str, &str)], dir: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        symlink(root.path().join(dir), root.path().join("7:1")).unwrap();
        root
    }

    fn asked(root: &tempfile::TempDir, size_bytes: u64) -> Result<u64, String> {
        let device = rustix::fs::makedev(7, 1);
        begins_at_below(root.path(), device, "data", size_bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_device_a_partition_and_a_loop_device_with_an_offset() {
        let whole = sys(&[("nbd0/size", "2048\n")], "nbd0");
        assert_eq!(asked(&whole, 1 << 20), Ok(0));
        assert!(asked(&whole, 2 << 20).unwrap_err().contains("nbd0 of 1048576 bytes, grid disk data has 2097152"));

        let partition = [("nbd0/size", "2048"), ("nbd0/nbd0p1/partition", "1"), ("nbd0/nbd0p1/start", "256")];
        assert_eq!(asked(&sys(&partition, "nbd0/nbd0p1"), 1 << 20), Ok(256 * 512));

        let looped = [("loop0/size", "2040"), ("loop0/loop/offset", "4096")];
        assert_eq!(asked(&sys(&looped, "loop0"), 1 << 20), Ok(4096));
    }

    #[test]
    fn what_is_stacked_or_not_there_has_to_be_told() {
        let stacked = sys(&[("dm-0/size", "2048"), ("dm-0/dm/name", "vg-lv")], "dm-0");
        assert!(asked(&stacked, 1 << 20).unwrap_err().contains("dm-0 is made of other devices"));
        let none = tempfile::tempdir().unwrap();
        assert!(asked(&none, 1 << 20).unwrap_err().contains("no block device of this host (7:1)"));
    }
}
