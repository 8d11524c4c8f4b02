//! Where a file system lies on a grid disk: in one piece, or in several.

use super::stack::{self, Part, SECTOR_BYTES, Stack};
use crate::attach;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

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
        "{name} is made of other devices in a way that is not followed: {of}\nhint: --offset tells where on the grid disk the file \
         system begins, if it lies there in one piece"
    )]
    Stacked {
        /// The kernel's name of it.
        name: String,
        /// How, in device mapper's words where it is of that.
        of: String,
    },
    /// Device mapper does not tell.
    #[error(
        "cannot ask what {name} is made of: dmsetup: {source}\nhint: root is needed, and dmsetup (it comes with LVM)"
    )]
    Table {
        /// The kernel's name of it.
        name: String,
        /// What it said.
        source: io::Error,
    },
    /// On several devices.
    #[error("the file system lies on {devices}\nhint: name one of their grid disks: each is asked by itself")]
    Several {
        /// The grid disks, or the kernel's names.
        devices: String,
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

/// Where a file system lies on a grid disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// In the order of the file system.
    parts: Vec<Part>,
    /// What lies on other devices, in that order too.
    elsewhere: Vec<Part>,
    /// Ranges between the parts are holes: of an image that lies in pieces. Otherwise what is in no part is past the end.
    has_holes: bool,
}

/// A range of a file system that has a place on the grid disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    /// Where in the file system.
    pub(super) from: u64,
    /// Where on the grid disk.
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Why a range has no place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outside {
    PastEnd,
    Elsewhere,
}

impl Layout {
    /// In one piece.
    pub(super) fn whole(begins_at: u64, size_bytes: u64) -> Layout {
        let part = Part { from: 0, len: size_bytes.saturating_sub(begins_at), on: 0, at: begins_at };
        Layout { parts: vec![part], elsewhere: Vec::new(), has_holes: false }
    }

    /// Where a range of the file system lies on the grid disk, in its order; holes are left out.
    pub(super) fn of(&self, from: u64, len: u64) -> Result<Vec<Located>, Outside> {
        let to = from.checked_add(len).ok_or(Outside::PastEnd)?;
        let mut found = Vec::new();
        let mut at = from;
        while at < to {
            let next = self.parts.partition_point(|part| part.from <= at);
            let part = next.checked_sub(1).map(|index| self.parts[index]).filter(|part| at - part.from < part.len);
            if let Some(part) = part {
                let skipped = at - part.from;
                let here = (part.len - skipped).min(to - at);
                found.push(Located { from: at, at: part.at + skipped, len: here });
                at += here;
                continue;
            }
            let until = self.parts.get(next).map_or(to, |part| part.from.min(to));
            if self.elsewhere.iter().any(|part| part.from < until && at < part.from.saturating_add(part.len)) {
                return Err(Outside::Elsewhere);
            }
            if !self.has_holes {
                return Err(Outside::PastEnd);
            }
            at = until;
        }
        Ok(found)
    }
}

/// What the file system of a device (`st_dev`) is made of.
pub(super) struct Below {
    /// Length of the device.
    len: u64,
    parts: Vec<Part>,
    /// The devices at the bottom that are attached, each with what it is attached as.
    attached: Vec<(u64, attach::AttachedAs)>,
}

impl Below {
    pub(super) fn find(device: u64) -> Result<Below, PlaceError> {
        Below::in_stack(&stack(&|device| attach::attached_as(device).is_some()), device, attach::attached_as)
    }

    fn in_stack(
        stack: &Stack<'_>,
        device: u64,
        attached_as: impl Fn(u64) -> Option<attach::AttachedAs>,
    ) -> Result<Below, PlaceError> {
        let parts = stack.parts(device)?;
        let bottoms: BTreeSet<u64> = parts.iter().map(|part| part.on).collect();
        let attached = bottoms.into_iter().filter_map(|on| Some((on, attached_as(on)?))).collect();
        let len = stack::number(&stack.dir(device)?.join("size"))? * SECTOR_BYTES;
        Ok(Below { len, parts, attached })
    }

    /// The attached grid disk it lies on: the one that is named, or the only one.
    pub(super) fn attached(&self, named: Option<&str>) -> Result<Option<&attach::AttachedAs>, PlaceError> {
        let is_it = |one: &attach::AttachedAs| named.is_none_or(|name| one.grid_disk.eq_ignore_ascii_case(name));
        let found: Vec<_> = self.attached.iter().map(|(_, one)| one).filter(|one| is_it(one)).collect();
        match &found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            several => {
                let names: Vec<&str> = several.iter().map(|one| &*one.grid_disk).collect();
                Err(PlaceError::Several { devices: format!("grid disks {}", names.join(" and ")) })
            }
        }
    }

    /// Where it lies on a grid disk of so many bytes.
    pub(super) fn layout(&self, grid_disk: &str, size_bytes: u64) -> Result<Layout, PlaceError> {
        self.layout_in(&stack(&|_| false), grid_disk, size_bytes)
    }

    fn layout_in(&self, stack: &Stack<'_>, grid_disk: &str, size_bytes: u64) -> Result<Layout, PlaceError> {
        let named = self.attached.iter().find(|(_, one)| one.grid_disk.eq_ignore_ascii_case(grid_disk));
        let mut bottoms: Vec<u64> = self.parts.iter().map(|part| part.on).collect();
        bottoms.sort_unstable();
        bottoms.dedup();
        let on = match (named, &bottoms[..]) {
            (Some((on, _)), _) => *on,
            (None, [on]) => *on,
            (None, several) => {
                let name = |on: &u64| stack.dir(*on).map(|dir| stack::name(&dir)).unwrap_or_default();
                let names: Vec<String> = several.iter().map(name).collect();
                return Err(PlaceError::Several { devices: names.join(" and ") });
            }
        };
        let dir = stack.dir(on)?;
        let device_bytes = stack::number(&dir.join("size"))? * SECTOR_BYTES;
        let skipped = if dir.join("loop").exists() { stack::number(&dir.join("loop/offset"))? } else { 0 };
        // The kernel leaves out what is no whole sector at the end.
        let (found, wanted) = ((device_bytes + skipped) / SECTOR_BYTES, size_bytes / SECTOR_BYTES);
        // What is attached is known to be this grid disk, which may have grown since.
        if found != wanted && (named.is_none() || found > wanted) {
            let (name, grid_disk) = (stack::name(&dir), grid_disk.to_owned());
            return Err(PlaceError::OtherSize { name, device_bytes, grid_disk, size_bytes });
        }
        let (parts, elsewhere): (Vec<Part>, Vec<Part>) = self.parts.iter().partition(|part| part.on == on);
        let mut end = 0;
        let is_gap = |part: &Part| {
            let gap = part.from > end;
            end = part.from.saturating_add(part.len);
            gap
        };
        let has_gaps = self.parts.iter().any(is_gap);
        let has_holes = has_gaps || end < self.len;
        Ok(Layout { parts, elsewhere, has_holes })
    }
}

fn stack<'a>(is_bottom: &'a dyn Fn(u64) -> bool) -> Stack<'a> {
    Stack { sys: Path::new("/sys/dev/block"), table: &stack::table_of, lies: &stack::lies, is_bottom }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::super::stack::tests::{Devices, sys};
    use super::*;
    use rustix::fs::makedev;

    /// Where 7:1 begins on grid disk `data`; `attached` is what of it.
    fn asked(devices: Devices<'_>, table: &str, attached: &[(u64, &str)], size_bytes: u64) -> Result<Layout, String> {
        let root = sys(devices);
        let as_what = |device: u64| {
            let (_, grid_disk) = attached.iter().find(|(one, _)| *one == device)?;
            Some(attach::AttachedAs { grid_disk: (*grid_disk).to_owned(), cell: None })
        };
        let stack = Stack {
            sys: root.path(),
            table: &|_| Ok(table.to_owned()),
            lies: &|_, _| Err(io::ErrorKind::Unsupported.into()),
            is_bottom: &|device| as_what(device).is_some(),
        };
        let below = Below::in_stack(&stack, makedev(7, 1), as_what).map_err(|error| error.to_string())?;
        below.layout_in(&stack, "data", size_bytes).map_err(|error| error.to_string())
    }

    /// Where in the file system, where on the grid disk, how long.
    fn lies(layout: &Layout, from: u64, len: u64) -> Result<Vec<(u64, u64, u64)>, Outside> {
        Ok(layout.of(from, len)?.iter().map(|one| (one.from, one.at, one.len)).collect())
    }

    #[test]
    fn a_whole_device_a_partition_and_a_loop_device_with_an_offset() {
        let whole: Devices<'_> = &[("7:1", "nbd0", &[("size", "2048\n")])];
        assert_eq!(lies(&asked(whole, "", &[], 1 << 20).unwrap(), 4096, 8192), Ok(vec![(4096, 4096, 8192)]));
        let refused = asked(whole, "", &[], 2 << 20).unwrap_err();
        assert!(refused.contains("nbd0 of 1048576 bytes, grid disk data has 2097152"), "{refused}");

        let partition: Devices<'_> = &[
            ("43:0", "nbd0", &[("size", "2048")]),
            ("7:1", "nbd0/nbd0p1", &[("size", "1024"), ("partition", "1"), ("start", "256")]),
        ];
        let layout = asked(partition, "", &[], 1 << 20).unwrap();
        assert_eq!(lies(&layout, 0, 4096), Ok(vec![(0, 256 * 512, 4096)]));
        assert_eq!(lies(&layout, 512 * 1024, 1), Err(Outside::PastEnd), "past the end of the partition");

        let looped: Devices<'_> =
            &[("7:1", "loop0", &[("size", "2040"), ("loop/offset", "4096"), ("loop/backing_file", "/x")])];
        assert_eq!(lies(&asked(looped, "", &[], 1 << 20).unwrap(), 0, 1), Ok(vec![(0, 4096, 1)]));
        // What is attached may have grown, and its device not.
        let attached = [(makedev(7, 1), "data")];
        assert!(asked(whole, "", &attached, 2 << 20).is_ok());
        assert!(asked(whole, "", &attached, 1 << 19).is_err(), "it is larger than the grid disk");
    }

    #[test]
    fn a_range_that_crosses_two_pieces_lies_in_two_places_and_one_on_another_grid_disk_in_none() {
        let devices: Devices<'_> = &[
            ("7:1", "dm-0", &[("size", "4096"), ("dm/name", "vg-lv")]),
            ("43:0", "nbd0", &[("size", "8192")]),
            ("43:1", "nbd1", &[("size", "2048")]),
        ];
        let attached = [(makedev(43, 0), "data"), (makedev(43, 1), "other")];
        let table = "0 1024 linear 43:0 4096\n1024 1024 linear 43:0 0\n2048 2048 linear 43:1 0\n";
        let layout = asked(devices, table, &attached, 4 << 20).unwrap();
        let (half, mib) = (512 << 10, 1 << 20);
        let at_seam = vec![(half - 4096, 2 * mib + half - 4096, 4096), (half, 0, 4096)];
        assert_eq!(lies(&layout, half - 4096, 8192), Ok(at_seam));
        assert_eq!(lies(&layout, mib - 4096, 8192), Err(Outside::Elsewhere));
        assert_eq!(lies(&layout, 2 * mib, 4096), Err(Outside::PastEnd));
        let refused = asked(devices, table, &[], 4 << 20).unwrap_err();
        assert!(refused.contains("nbd0 and nbd1"), "{refused}");
    }

    /// An image with a hole: what the file system has there is nowhere, and no error.
    #[test]
    fn holes_are_left_out() {
        let part = |from, at, len| Part { from, len, on: 1, at };
        let layout =
            Layout { parts: vec![part(0, 100, 10), part(30, 200, 10)], elsewhere: Vec::new(), has_holes: true };
        assert_eq!(lies(&layout, 5, 30), Ok(vec![(5, 105, 5), (30, 200, 5)]));
        assert_eq!(lies(&layout, 12, 4), Ok(Vec::new()));
        assert_eq!(lies(&layout, 38, 100), Ok(vec![(38, 208, 2)]));
    }

    #[test]
    fn what_is_stacked_in_another_way_or_not_there_has_to_be_told() {
        let raid: Devices<'_> = &[("7:1", "md0", &[("size", "2048"), ("md/level", "raid1")])];
        assert!(asked(raid, "", &[], 1 << 20).unwrap_err().contains("md0 is made of other devices"));
        assert!(asked(&[], "", &[], 1 << 20).unwrap_err().contains("no block device of this host (7:1)"));
    }
}
