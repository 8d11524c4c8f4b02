//! What a block device is made of, down to the devices at the bottom: partitions, device mapper (LVM, encryption), loop devices on files.
//!
//! Never guesses: of what is put together in another way (RAID, stripes, thin volumes) it says so.

use super::place::PlaceError;
use super::walk::{self, Extent};
use device::real::LoopDevice;
use rustix::fs::{major, makedev, minor};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel counts in these, whatever the device's own are.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Devices above one another.
const DEPTH_MAX: u32 = 16;

/// A part of a device, and where it lies on one at the bottom, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Where on the device.
    pub(super) from: u64,
    pub(super) len: u64,
    /// The device at the bottom.
    pub(super) on: u64,
    /// Where on that.
    pub(super) at: u64,
}

/// Where a file lies: on which device, and its pieces.
pub(super) type Lies<'a> = dyn Fn(&str, &Path) -> io::Result<(u64, Vec<Extent>)> + 'a;

/// What the kernel tells of devices.
pub(super) struct Stack<'a> {
    /// /sys/dev/block.
    pub(super) sys: &'a Path,
    /// The table of a device-mapper device, a line for each part.
    pub(super) table: &'a dyn Fn(u64) -> io::Result<String>,
    /// Of the file of a loop device, from the device's name and the path that the kernel tells.
    pub(super) lies: &'a Lies<'a>,
    /// Whether a device is at the bottom though it is made of others.
    pub(super) is_bottom: &'a dyn Fn(u64) -> bool,
}

impl Stack<'_> {
    /// What a device is made of, in its order.
    pub(super) fn parts(&self, device: u64) -> Result<Vec<Part>, PlaceError> {
        self.parts_below(device, DEPTH_MAX)
    }

    fn parts_below(&self, device: u64, depth: u32) -> Result<Vec<Part>, PlaceError> {
        let dir = self.dir(device)?;
        let name = name(&dir);
        let Some(depth) = depth.checked_sub(1) else {
            return Err(PlaceError::Stacked { name, of: "too many".to_owned() });
        };
        let len = number(&dir.join("size"))? * SECTOR_BYTES;
        let bottom = |skipped: u64| vec![Part { from: 0, len, on: device, at: skipped }];
        if (self.is_bottom)(device) {
            return Ok(bottom(0));
        }
        let above = if dir.join("partition").exists() {
            let at = number(&dir.join("start"))? * SECTOR_BYTES;
            let whole = dir.parent().map(|dir| dir.join("dev")).unwrap_or_default();
            vec![Part { from: 0, len, on: device_number(&read(&whole)?).ok_or_else(|| strange(&whole))?, at }]
        } else if dir.join("dm").exists() {
            let unreadable = |source| PlaceError::Table { name: name.clone(), source };
            mapped(&name, &(self.table)(device).map_err(unreadable)?)?
        } else if dir.join("md").exists() || fs::read_dir(dir.join("slaves")).is_ok_and(|mut all| all.next().is_some())
        {
            return Err(PlaceError::Stacked { name, of: "RAID or the like".to_owned() });
        } else if dir.join("loop").exists() {
            let skipped = number(&dir.join("loop/offset"))?;
            let file = PathBuf::from(read(&dir.join("loop/backing_file"))?.trim_end_matches('\n'));
            // One on no device (a FUSE file, say), or that is not for this user, is the bottom.
            match (self.lies)(&name, &file) {
                Ok((on, extents)) if self.dir(on).is_ok() => looped(&extents, skipped, len, on),
                _ => return Ok(bottom(skipped)),
            }
        } else {
            return Ok(bottom(0));
        };
        let mut parts = Vec::new();
        for part in above {
            let below = self.parts_below(part.on, depth)?;
            parts.extend(below.iter().filter_map(|lower| through(&part, lower)));
        }
        Ok(parts)
    }

    pub(super) fn dir(&self, device: u64) -> Result<PathBuf, PlaceError> {
        let (major, minor) = (major(device), minor(device));
        fs::canonicalize(self.sys.join(format!("{major}:{minor}"))).map_err(|_| PlaceError::NoDevice { major, minor })
    }
}

/// What of a part lies on a part of the device below.
fn through(upper: &Part, lower: &Part) -> Option<Part> {
    let from = upper.at.max(lower.from);
    let to = upper.at.saturating_add(upper.len).min(lower.from.saturating_add(lower.len));
    (from < to).then(|| Part {
        from: upper.from + (from - upper.at),
        len: to - from,
        on: lower.on,
        at: lower.at + (from - lower.from),
    })
}

/// What of a loop device lies where, from what its file does.
fn looped(extents: &[Extent], skipped: u64, len: u64, on: u64) -> Vec<Part> {
    let of_file = extents.iter().map(|extent| Part { from: extent.from, len: extent.len, on, at: extent.at });
    let upper = Part { from: 0, len, on, at: skipped };
    of_file.filter_map(|lower| through(&upper, &lower)).collect()
}

/// The parts of a device-mapper device, from its table: `START SECTORS KIND …`.
fn mapped(name: &str, table: &str) -> Result<Vec<Part>, PlaceError> {
    let part = |line: &str| -> Result<Part, PlaceError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let stacked = |of: &str| PlaceError::Stacked { name: name.to_owned(), of: of.to_owned() };
        let kind = words.get(2).copied().unwrap_or(line);
        // The device below and where on it: last of what is linear, before the options of what is encrypted.
        let below = match kind {
            "linear" => words.get(3..5),
            "crypt" => words.get(6..8),
            other => return Err(stacked(other)),
        };
        let bytes = |word: &str| word.parse::<u64>().ok().and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
        let parsed = || {
            let &[device, at] = below? else { return None };
            Some(Part { from: bytes(words[0])?, len: bytes(words[1])?, on: device_number(device)?, at: bytes(at)? })
        };
        parsed().ok_or_else(|| stacked(line))
    };
    table.lines().filter(|line| !line.trim().is_empty()).map(part).collect()
}

/// `MAJOR:MINOR`.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

pub(super) fn name(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read(path: &Path) -> Result<String, PlaceError> {
    fs::read_to_string(path).map_err(|source| PlaceError::Unreadable { path: path.to_owned(), source })
}

fn strange(path: &Path) -> PlaceError {
    PlaceError::Unreadable { path: path.to_owned(), source: io::ErrorKind::InvalidData.into() }
}

pub(super) fn number(path: &Path) -> Result<u64, PlaceError> {
    read(path)?.trim().parse().map_err(|_| strange(path))
}

/// The table of a device, as device mapper's own program tells it.
pub(super) fn table_of(device: u64) -> io::Result<String> {
    let mut command = Command::new("dmsetup");
    // Keys stay out of it: they are shown as zeroes.
    command.args(["table", "--major", &major(device).to_string(), "--minor", &minor(device).to_string()]);
    let done = command.output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

/// Where the file of a loop device lies. A path is but a name, and may lead to another file from here.
pub(super) fn lies(device: &str, path: &Path) -> io::Result<(u64, Vec<Extent>)> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    let backing = LoopDevice::open(&Path::new("/dev").join(device))?.backing();
    if !found.is_file() || backing != Some((found.dev(), found.ino())) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((found.dev(), walk::extents_of(&file)?))
}

#[cfg(test)]
pub(super) mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::symlink;

    const MIB: u64 = 1 << 20;

    /// Numbers, kernel's names and files of devices.
    pub(in super::super) type Devices<'a> = &'a [(&'a str, &'a str, &'a [(&'a str, &'a str)])];

    /// A /sys/dev/block of them.
    pub(in super::super) fn sys(devices: Devices<'_>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, dir, files) in devices {
            for (path, text) in [("dev", *number)].iter().chain(*files) {
                let path = root.path().join(dir).join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            symlink(root.path().join(dir), root.path().join(number)).unwrap();
        }
        root
    }

    fn parts(root: &tempfile::TempDir, table: &str, extents: &[Extent]) -> Result<Vec<Part>, String> {
        let stack = Stack {
            sys: root.path(),
            table: &|_| Ok(table.to_owned()),
            lies: &|device, path| {
                assert_eq!((device, path), ("loop0", Path::new("/srv/an image")));
                if extents.is_empty() {
                    Err(io::Error::from_raw_os_error(95))
                } else {
                    Ok((makedev(43, 0), extents.to_vec()))
                }
            },
            is_bottom: &|device| device == makedev(43, 0),
        };
        stack.parts(makedev(253, 0)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_volume_of_two_pieces_on_a_partition_lies_in_two_places() {
        let root = sys(&[
            ("253:0", "dm-0", &[("size", "6144"), ("dm/name", "vg-lv")]),
            ("43:0", "nbd0", &[("size", "16384")]),
            ("43:1", "nbd0/nbd0p1", &[("size", "12288"), ("partition", "1"), ("start", "2048")]),
        ]);
        let on = makedev(43, 0);
        // The second piece lies before the first: a volume that was extended into a hole.
        let table = "0 4096 linear 43:1 8192\n4096 2048 linear 43:1 2048\n";
        let wanted =
            [Part { from: 0, len: 2 * MIB, on, at: 5 * MIB }, Part { from: 2 * MIB, len: MIB, on, at: 2 * MIB }];
        assert_eq!(parts(&root, table, &[]).unwrap(), wanted);
        let crypt = "0 6144 crypt aes-xts-plain64 :64:logon:cryptsetup:x 0 43:1 4096 1 allow_discards\n";
        assert_eq!(parts(&root, crypt, &[]).unwrap(), [Part { from: 0, len: 3 * MIB, on, at: 3 * MIB }]);
        for (table, told) in
            [("0 6144 striped 2 128 43:1 0 43:1 4096", "striped"), ("0 6144 linear 43:1", "linear 43:1")]
        {
            let refused = parts(&root, table, &[]).unwrap_err();
            assert!(refused.contains("dm-0") && refused.contains(told), "{refused}");
        }
        // A table that leads to itself ends.
        assert!(parts(&root, "0 6144 linear 253:0 0", &[]).unwrap_err().contains("too many"));
    }

    #[test]
    fn a_loop_device_lies_where_its_file_does() {
        let loop0 = [("size", "4096"), ("loop/offset", "4096"), ("loop/backing_file", "/srv/an image\n")];
        let root = sys(&[("253:0", "loop0", &loop0), ("43:0", "nbd0", &[("size", "16384")])]);
        let extents = [
            Extent { from: 0, at: 4 * MIB, len: MIB },
            // A hole, and what is past the device's end.
            Extent { from: 2 * MIB, at: MIB, len: 2 * MIB },
        ];
        let on = makedev(43, 0);
        let wanted = [
            Part { from: 0, len: MIB - 4096, on, at: 4 * MIB + 4096 },
            Part { from: 2 * MIB - 4096, len: 4096, on, at: MIB },
        ];
        assert_eq!(parts(&root, "", &extents).unwrap(), wanted);
        // On no device: it is the bottom itself.
        let bottom = Part { from: 0, len: 2 * MIB, on: makedev(253, 0), at: 4096 };
        assert_eq!(parts(&root, "", &[]).unwrap(), [bottom]);
    }
}
