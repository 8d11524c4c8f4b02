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

/// Where a file system lies on a grid disk: parts in the order of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout(Vec<Part>);

impl Layout {
    /// In one piece.
    pub(super) fn whole(begins_at: u64, size_bytes: u64) -> Layout {
        Layout(vec![Part { from: 0, len: size_bytes.saturating_sub(begins_at), on: 0, at: begins_at }])
    }

    /// Where a range of the file system lies on the grid disk: offsets and lengths, in its order; none when not all of it does.
    pub(super) fn of(&self, from: u64, len: u64) -> Option<Vec<(u64, u64)>> {
        let to = from.checked_add(len)?;
        let mut found = Vec::new();
        let mut at = from;
        while at < to {
            let next = self.0.partition_point(|part| part.from <= at);
            let part = self.0.get(next.checked_sub(1)?)?;
            let skipped = at - part.from;
            if skipped >= part.len {
                return None;
            }
            let here = (part.len - skipped).min(to - at);
            found.push((part.at + skipped, here));
            at += here;
        }
        Some(found)
    }

    /// Whether it lies there in one piece.
    pub(super) fn is_whole(&self) -> bool {
        self.0.len() == 1
    }
}

/// What the file system of a device (`st_dev`) is made of.
pub(super) struct Below {
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
        Ok(Below { parts, attached })
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
        if (device_bytes + skipped) / SECTOR_BYTES != size_bytes / SECTOR_BYTES {
            let (name, grid_disk) = (stack::name(&dir), grid_disk.to_owned());
            return Err(PlaceError::OtherSize { name, device_bytes, grid_disk, size_bytes });
        }
        Ok(Layout(self.parts.iter().filter(|part| part.on == on).copied().collect()))
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
            lies: &|_| Err(io::ErrorKind::Unsupported.into()),
            is_bottom: &|device| as_what(device).is_some(),
        };
        let below = Below::in_stack(&stack, makedev(7, 1), as_what).map_err(|error| error.to_string())?;
        below.layout_in(&stack, "data", size_bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_device_a_partition_and_a_loop_device_with_an_offset() {
        let whole: Devices<'_> = &[("7:1", "nbd0", &[("size", "2048\n")])];
        assert_eq!(asked(whole, "", &[], 1 << 20).unwrap().of(4096, 8192), Some(vec![(4096, 8192)]));
        let refused = asked(whole, "", &[], 2 << 20).unwrap_err();
        assert!(refused.contains("nbd0 of 1048576 bytes, grid disk data has 2097152"), "{refused}");

        let partition: Devices<'_> = &[
            ("43:0", "nbd0", &[("size", "2048")]),
            ("7:1", "nbd0/nbd0p1", &[("size", "1024"), ("partition", "1"), ("start", "256")]),
        ];
        let layout = asked(partition, "", &[], 1 << 20).unwrap();
        assert_eq!(layout.of(0, 4096), Some(vec![(256 * 512, 4096)]));
        assert_eq!(layout.of(512 * 1024, 1), None, "past the end of the partition");

        let looped: Devices<'_> =
            &[("7:1", "loop0", &[("size", "2040"), ("loop/offset", "4096"), ("loop/backing_file", "/x")])];
        assert_eq!(asked(looped, "", &[], 1 << 20).unwrap().of(0, 1), Some(vec![(4096, 1)]));
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
        assert_eq!(layout.of(half - 4096, 8192), Some(vec![(2 * mib + half - 4096, 4096), (0, 4096)]));
        assert_eq!(layout.of(mib - 4096, 8192), None);
        assert!(!layout.is_whole());
        let refused = asked(devices, table, &[], 4 << 20).unwrap_err();
        assert!(refused.contains("nbd0 and nbd1"), "{refused}");
    }

    #[test]
    fn what_is_stacked_in_another_way_or_not_there_has_to_be_told() {
        let raid: Devices<'_> = &[("7:1", "md0", &[("size", "2048"), ("md/level", "raid1")])];
        assert!(asked(raid, "", &[], 1 << 20).unwrap_err().contains("md0 is made of other devices"));
        assert!(asked(&[], "", &[], 1 << 20).unwrap_err().contains("no block device of this host (7:1)"));
    }
}
