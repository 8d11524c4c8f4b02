//! Block devices by what sysfs says of them: sectors, scheduler, TRIM, alignment, caches.

use super::{Examined, Finding, Root, Verdict};
use crate::config::DeviceKind;
use rustix::fs::{FileType, Stat, major, minor, stat};
use std::path::{Path, PathBuf};

/// What flash is erased and written by is at least this, whatever a drive says.
const FLASH_PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;

/// The block device of a path: itself, or what the file lies on. None where there is none.
pub(super) fn of_path(root: &Root, path: &Path, kind: Option<DeviceKind>) -> Option<Examined> {
    let stat: Stat = stat(path).ok()?;
    let (number, is_raw) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (stat.st_rdev, true),
        FileType::RegularFile | FileType::Directory => (stat.st_dev, false),
        _ => return None,
    };
    let link = root.path(format!("sys/dev/block/{}:{}", major(number), minor(number)));
    let sysfs = std::fs::canonicalize(link).ok()?;
    let name = format!("/dev/{}", sysfs.file_name()?.to_str()?);
    Some(Examined { name, sysfs: sysfs.strip_prefix("/").ok()?.to_path_buf(), kind, is_raw })
}

/// All disks of the host: neither loop and RAM devices nor those without a medium.
pub(super) fn all(root: &Root) -> Vec<Examined> {
    let is_disk = |name: &String| {
        !["loop", "ram", "zram", "sr", "fd", "nbd", "ublkb"].iter().any(|other| name.starts_with(other))
    };
    let examined = |name: String| {
        let sysfs = PathBuf::from("sys/block").join(&name);
        (root.number(sysfs.join("size")) != Some(0)).then(|| Examined {
            name: format!("/dev/{name}"),
            sysfs,
            kind: None,
            is_raw: true,
        })
    };
    names(root, Path::new("sys/block")).into_iter().filter(is_disk).filter_map(examined).collect()
}

/// The whole disks that a device is made of, by md, LVM, dm-crypt and the like, down to the last.
pub(super) fn below(root: &Root, device: &Examined) -> Vec<Examined> {
    let mut found: Vec<Examined> = Vec::new();
    for leg in names(root, &disk(root, device).join("slaves")) {
        let whole = PathBuf::from("sys/block").join(&leg);
        let of_partition = || {
            let holds = |name: &String| root.exists(PathBuf::from("sys/block").join(name).join(&leg).join("partition"));
            names(root, Path::new("sys/block")).into_iter().find(holds)
        };
        let Some(name) = root.exists(&whole).then(|| leg.clone()).or_else(of_partition) else { continue };
        let disk = Examined {
            name: format!("/dev/{name}"),
            sysfs: PathBuf::from("sys/block").join(&name),
            kind: device.kind,
            is_raw: false,
        };
        let further = below(root, &disk);
        found.extend([disk].into_iter().chain(further));
    }
    found
}

/// The names in a directory, in order.
fn names(root: &Root, dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.path(dir)).into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The directory of the whole disk: a partition has no queue.
fn disk(root: &Root, device: &Examined) -> PathBuf {
    let parent = device.sysfs.parent().map(Path::to_path_buf);
    match parent {
        Some(parent) if root.exists(device.sysfs.join("partition")) => parent,
        _ => device.sysfs.clone(),
    }
}

/// Whether it says that it is a disk that turns. Virtual disks and network volumes say so too.
pub(super) fn is_rotating(root: &Root, device: &Examined) -> bool {
    root.number(disk(root, device).join("queue/rotational")) == Some(1)
}

pub(super) fn examine(root: &Root, device: &Examined) -> Vec<Finding> {
    let disk = disk(root, device);
    let queue = |name: &str| root.text(disk.join("queue").join(name));
    let number = |name: &str| queue(name).and_then(|text| text.parse::<u64>().ok());
    let (Some(logical), Some(physical)) = (number("logical_block_size"), number("physical_block_size")) else {
        let nothing = Finding::good("device", &device.name, "sysfs says nothing of it");
        return vec![nothing.with(Verdict::Unknown, "it has no queue, as devices of some drivers")];
    };
    let is_flash = device.kind == Some(DeviceKind::Flash) || number("rotational") == Some(0);
    let of = Disk {
        name: &device.name,
        disk: disk.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
        is_flash,
    };
    let mut findings =
        vec![of.sectors(logical, physical), of.scheduler(queue("scheduler").unwrap_or_default().as_str())];
    findings.push(of.trim(number("discard_max_bytes").unwrap_or(0)));
    let start = root.number(device.sysfs.join("start")).unwrap_or(0) * SECTOR_BYTES;
    findings.push(of.alignment(
        start,
        physical,
        root.text(device.sysfs.join("alignment_offset")).unwrap_or_default().as_str(),
    ));
    // Of a whole disk its partitions, as far as they are not as they should be.
    for name in names(root, &device.sysfs) {
        let partition = device.sysfs.join(&name);
        if !root.exists(partition.join("partition")) {
            continue;
        }
        let start = root.number(partition.join("start")).unwrap_or(0) * SECTOR_BYTES;
        let offset = root.text(partition.join("alignment_offset")).unwrap_or_default();
        let finding = Disk { name: &format!("/dev/{name}"), ..of }.alignment(start, physical, &offset);
        findings.extend((finding.verdict != Verdict::Good).then_some(finding));
    }
    findings.extend(of.caches(queue("write_cache").as_deref()));
    if device.kind == Some(DeviceKind::Flash) && number("rotational") == Some(1) {
        findings.push(
            Finding::good("kind", of.name, "is flash to the cell, and says that it turns")
                .with(Verdict::Note, "virtual disks often say so; the kernel then orders requests as for a disk")
                .mended_by(format!("echo 0 > /sys/block/{}/queue/rotational", of.disk)),
        );
    }
    for (name, bad, found, why) in [
        ("ro", 1, "is read-only", "a cell cannot be on it"),
        (
            "removable",
            1,
            "is removable",
            "it may go away under the cell: a USB bridge, too, often answers a flush before anything is durable",
        ),
    ] {
        if root.number(disk.join(name)) == Some(bad) {
            findings.push(Finding::good("medium", of.name, found).with(Verdict::Warning, why));
        }
    }
    findings
}

#[derive(Clone, Copy)]
struct Disk<'a> {
    name: &'a str,
    /// The name of the whole disk in sysfs.
    disk: &'a str,
    is_flash: bool,
}

impl Disk<'_> {
    /// Reference S3: redo in 512-byte blocks on flash that said 512 and had pages of 4 KiB was up to 20 times slower than on disks.
    fn sectors(&self, logical: u64, physical: u64) -> Finding {
        let finding = Finding::good("sectors", self.name, format!("logical {logical}, physical {physical} bytes"));
        if self.is_flash && physical < FLASH_PAGE_BYTES {
            finding
                .with(
                    Verdict::Note,
                    "no flash has pages of that size: what others write in 512-byte blocks makes it read, change and write its pages. \
                     The cell writes whole 4 KiB in any case",
                )
                .mended_by("write in 4 KiB blocks (redo: blocksize 4096); NVMe: nvme id-ns -H, nvme format --lbaf=N destroys all data and gives 4 KiB sectors")
        } else if physical > logical {
            finding.with(
                Verdict::Good,
                "writes of less than the physical size make it read first; attached grid disks have 4 KiB sectors unless stated",
            )
        } else {
            finding
        }
    }

    /// Reference S13: the default elevator held back a flash device's bursts: 2 ms instead of 0.3 at 10,000 IOPS.
    fn scheduler(&self, text: &str) -> Finding {
        let active = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or(text);
        let active = if active.is_empty() { "none" } else { active };
        let finding = Finding::good("scheduler", self.name, active);
        let rule = |wanted: &str| {
            format!(
                "echo {wanted} > /sys/block/{disk}/queue/scheduler; to stay: \
                 ACTION==\"add|change\", KERNEL==\"{disk}\", ATTR{{queue/scheduler}}=\"{wanted}\" in /etc/udev/rules.d",
                disk = self.disk
            )
        };
        match active {
            "none" | "noop" | "kyber" => finding,
            "mq-deadline" | "deadline" if self.is_flash => finding
                .with(Verdict::Note, "flash has nothing to gain by an order of requests; `none` takes less processor time")
                .mended_by(rule("none")),
            "mq-deadline" | "deadline" => finding,
            _ if self.is_flash => finding
                .with(Verdict::Warning, "it holds back bursts that flash would take at once: several times the latency at thousands of IOPS")
                .mended_by(rule("none")),
            _ => finding
                .with(Verdict::Note, "it shares the disk between processes; to it, all of a cell is one")
                .mended_by(rule("mq-deadline")),
        }
    }

    fn trim(&self, bytes_max: u64) -> Finding {
        let finding = Finding::good("TRIM", self.name, if bytes_max > 0 { "yes" } else { "no" });
        if self.is_flash && bytes_max == 0 {
            finding
                .with(
                    Verdict::Note,
                    "the drive copies what the cell has given up long ago: leave a part of it unused instead",
                )
                .mended_by("behind a RAID controller: its pass-through mode; in a guest: discard=unmap")
        } else {
            finding
        }
    }

    fn alignment(&self, start_bytes: u64, physical: u64, offset: &str) -> Finding {
        let unit = physical.max(FLASH_PAGE_BYTES);
        let finding = Finding::good(
            "alignment",
            self.name,
            format!("begins at {start_bytes}, offset {}", if offset.is_empty() { "0" } else { offset }),
        );
        if !start_bytes.is_multiple_of(unit) || !matches!(offset, "" | "0") {
            finding
                .with(
                    Verdict::Warning,
                    format!("each block of the cell lies on two of the device's {unit}-byte pages: twice the writes"),
                )
                .mended_by("make the partition anew at a multiple of 1 MiB (sgdisk does)")
        } else {
            finding
        }
    }

    fn caches(&self, write_cache: Option<&str>) -> Vec<Finding> {
        match write_cache {
            Some("write through") => vec![
                Finding::good(
                    "write cache",
                    self.name,
                    "none, or protected: writes are durable when they are answered",
                ),
                Finding::good("power loss", self.name, "nothing to lose, by what the device says"),
            ],
            Some(other) => vec![
                Finding::good("write cache", self.name, other)
                    .with(Verdict::Good, "it is flushed when a client asks for durability"),
                Finding::good("power loss", self.name, "protection is not told")
                    .with(Verdict::Unknown, "with it a flush takes microseconds; without it, milliseconds")
                    .mended_by(format!("its data sheet (\"power-loss protection\"); smartctl -x /dev/{}", self.disk)),
            ],
            None => {
                vec![Finding::good("write cache", self.name, "?").with(Verdict::Unknown, "the kernel does not say")]
            }
        }
    }
}
