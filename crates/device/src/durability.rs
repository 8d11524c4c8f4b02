//! Whether what a device acknowledged as flushed survives a stop of its host: what is found out, and what the operator states.
//!
//! A file is followed to the device of its file system, a device to the devices it lies on, a loop device to its file. One
//! end that is gone with the host makes the whole [`Class::Ephemeral`]. An end that cannot be seen (a file system over
//! several devices, over another file system or over the network) makes it unknown, and unknown is not counted as durable:
//! only the operator can answer. [`decide`] decides, and does no I/O. Never writes.

use crate::io::Class;
use crate::probe::sysfs_device;
use crate::real::file_system;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Models of cloud disks that are gone when the host stops, as sysfs shows them. Compared as whole words at the start,
/// since the network disks of the same cloud have longer names.
const INSTANCE_STORES: [(&str, Matching); 4] = [
    ("Amazon EC2 NVMe Instance Storage", Matching::Prefix),
    ("Microsoft NVMe Direct Disk", Matching::Prefix),
    // Google's local SSD; its persistent disk is "nvme_card-pd".
    ("nvme_card", Matching::Whole),
    // Google's local SSD on SCSI.
    ("EphemeralDisk", Matching::Whole),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Matching {
    Whole,
    Prefix,
}

/// Devices of the kernel whose content is in memory, by the name before the number.
const RAM_DEVICES: [&str; 3] = ["zram", "ram", "nullb"];

/// Devices below one another: device mapper over device mapper over md is three; more than this is a loop in what sysfs says.
const DEPTH_MAX: usize = 16;

/// File systems that keep their files in memory, by the number that `statfs` gives.
const IN_MEMORY: [(u32, &str); 3] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

/// File systems that lie on what cannot be seen from above, or on several devices of which one at most is seen. A file system
/// that is not listed and has no block device is one of them, too.
const OPAQUE: [(u32, &str); 13] = [
    (0x794c_7630, "overlay"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "ZFS"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "F2FS"),
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x00c3_6400, "Ceph"),
    (0x6175_6673, "aufs"),
];

/// The class of a device, and why it is that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// The class that the device counts as.
    pub class: Class,
    /// Why.
    pub ground: Ground,
}

/// Why a device has its class. Displayed, it is a part of a sentence: "tmpfs keeps its files in memory".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// The operator has stated it for this device.
    Stated,
    /// The device lies on these devices, and none of them is known to be gone with the host.
    Devices(Vec<String>),
    /// The device lies on one that is gone with the host: name and model of that one.
    GoneWithHost(String),
    /// The file system, of this name, keeps its files in memory.
    InMemory(&'static str),
    /// The devices below this one cannot be seen.
    Unknown(String),
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ground::Stated => f.write_str("stated in cell.toml"),
            Ground::Devices(devices) => write!(f, "it lies on {}", devices.join(", ")),
            Ground::GoneWithHost(device) => write!(f, "{device} is gone when the host stops"),
            Ground::InMemory(file_system) => write!(f, "{file_system} keeps its files in memory"),
            Ground::Unknown(what) => write!(f, "what is below {what} is not known"),
        }
    }
}

impl Durability {
    /// Whether a general answer of the operator ("what you cannot find out is durable") is about this device. What is known
    /// to be gone with the host needs a statement of its own. File systems in memory take part: test cells lie there.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.ground, Ground::Unknown(_) | Ground::InMemory(_))
    }
}

/// Where the bytes of a file or device end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    /// A device that lies on no other; the model is empty where it has none.
    Device { name: String, model: String },
    /// A file system that keeps its files in memory.
    InMemory(&'static str),
    /// A file system or device that does not show what it lies on.
    Opaque(String),
}

impl Leaf {
    fn gone_with_host(&self) -> Option<Ground> {
        match self {
            Leaf::InMemory(file_system) => Some(Ground::InMemory(file_system)),
            Leaf::Device { name, model } if is_instance_store(model) => {
                Some(Ground::GoneWithHost(format!("{name} ({model})")))
            }
            Leaf::Device { name, .. } if is_ram(name) => Some(Ground::GoneWithHost(format!("RAM disk {name}"))),
            Leaf::Device { .. } | Leaf::Opaque(_) => None,
        }
    }
}

/// The class of a device that ends in `leaves`, where `stated` is what the operator says of it.
pub(crate) fn decide(stated: Option<Class>, leaves: &[Leaf]) -> Durability {
    if let Some(class) = stated {
        return Durability { class, ground: Ground::Stated };
    }
    // One that is gone takes the whole with it: a mirror's other half may be older.
    if let Some(ground) = leaves.iter().find_map(Leaf::gone_with_host) {
        return Durability { class: Class::Ephemeral, ground };
    }
    let mut devices = Vec::new();
    for leaf in leaves {
        match leaf {
            Leaf::Device { name, model } if model.is_empty() => devices.push(name.clone()),
            Leaf::Device { name, model } => devices.push(format!("{name} ({model})")),
            Leaf::InMemory(_) => {}
            Leaf::Opaque(what) => {
                return Durability { class: Class::Ephemeral, ground: Ground::Unknown(what.clone()) };
            }
        }
    }
    if devices.is_empty() {
        let ground = Ground::Unknown("a device that sysfs does not show".to_owned());
        return Durability { class: Class::Ephemeral, ground };
    }
    Durability { class: Class::Durable, ground: Ground::Devices(devices) }
}

fn is_instance_store(model: &str) -> bool {
    INSTANCE_STORES.iter().any(|(name, matching)| match matching {
        Matching::Whole => model == *name,
        Matching::Prefix => model.starts_with(name),
    })
}

/// A kernel's device name: these words, and a number.
fn is_numbered(device: &str, word: &str) -> bool {
    device.strip_prefix(word).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn is_ram(device: &str) -> bool {
    RAM_DEVICES.iter().any(|word| is_numbered(device, word))
}

/// The end of a file system of this number (see `statfs`); `None` where its block device tells, if it has one.
fn end_of_file_system(magic: u32) -> Option<Leaf> {
    let named = |list: &[(u32, &'static str)]| list.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name);
    let in_memory = named(&IN_MEMORY).map(Leaf::InMemory);
    in_memory.or_else(|| named(&OPAQUE).map(|name| Leaf::Opaque(name.to_owned())))
}

/// The class of the file or block device at `path`, with what the operator has `stated` of it. Blocks.
///
/// # Errors
/// The file cannot be opened for reading.
pub fn durability(path: impl AsRef<Path>, stated: Option<Class>) -> io::Result<Durability> {
    Ok(decide(stated, &leaves(&File::open(path)?)?))
}

/// The ends of an open file or block device. Blocks.
pub(crate) fn leaves(file: &File) -> io::Result<Vec<Leaf>> {
    leaves_within(file, DEPTH_MAX)
}

fn leaves_within(file: &File, depth: usize) -> io::Result<Vec<Leaf>> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        return Ok(sysfs_device(metadata.rdev()).map_or_else(Vec::new, |device| leaves_of(&device, depth)));
    }
    let magic = file_system(file.as_raw_fd()).unwrap_or_default();
    if let Some(end) = end_of_file_system(magic) {
        return Ok(vec![end]);
    }
    Ok(match sysfs_device(metadata.dev()) {
        Some(device) => leaves_of(&device, depth),
        None => vec![Leaf::Opaque(format!("a file system without a block device (type {magic:#x})"))],
    })
}

/// The ends of `device`, a whole disk in sysfs: the slaves of its slaves, and for a slave that is a partition its disk.
fn leaves_of(device: &Path, depth: usize) -> Vec<Leaf> {
    let name = device.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let slaves = std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<PathBuf> = slaves.filter_map(|slave| std::fs::canonicalize(slave.path()).ok()).collect();
    if depth > 0 && is_numbered(&name, "loop") {
        // The path is the kernel's, which another mount namespace or a removed file makes unreachable.
        let backing = std::fs::read_to_string(device.join("loop/backing_file")).ok();
        let file = backing.and_then(|path| File::open(path.trim_end_matches('\n')).ok());
        let below = file.and_then(|file| leaves_within(&file, depth - 1).ok());
        return below.unwrap_or_else(|| vec![Leaf::Opaque(format!("loop device {name}"))]);
    }
    if below.is_empty() || depth == 0 {
        let model = std::fs::read_to_string(device.join("device/model")).unwrap_or_default().trim().to_owned();
        return vec![Leaf::Device { name, model }];
    }
    let whole = |slave: PathBuf| match slave.parent() {
        Some(disk) if slave.join("partition").exists() => disk.to_owned(),
        _ => slave,
    };
    below.into_iter().map(whole).flat_map(|slave| leaves_of(&slave, depth - 1)).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

    use super::*;

    fn device(name: &str, model: &str) -> Leaf {
        Leaf::Device { name: name.to_owned(), model: model.to_owned() }
    }

    /// A sysfs of disks (with their model), partitions, and devices over others, as the kernel links them.
    #[test]
    fn a_device_over_others_is_as_durable_as_the_least_of_them() {
        let root = std::env::temp_dir().join(format!("flashcell-probe-{}", std::process::id()));
        let block = root.join("block");
        let disk = |name: &str, model: &str| {
            std::fs::create_dir_all(block.join(name).join("device")).unwrap();
            std::fs::write(block.join(name).join("device/model"), format!("{model}   \n")).unwrap();
        };
        let partition = |disk: &str, name: &str| {
            std::fs::create_dir_all(block.join(disk).join(name)).unwrap();
            std::fs::write(block.join(disk).join(name).join("partition"), "1\n").unwrap();
        };
        let over = |name: &str, slaves: &[&str]| {
            let dir = block.join(name).join("slaves");
            std::fs::create_dir_all(&dir).unwrap();
            for slave in slaves {
                let link = dir.join(slave.rsplit('/').next().unwrap());
                std::os::unix::fs::symlink(format!("../../{slave}"), link).unwrap();
            }
        };
        disk("nvme0n1", "Amazon Elastic Block Store");
        disk("nvme1n1", "Amazon EC2 NVMe Instance Storage");
        disk("nvme2n1", "Amazon EC2 NVMe Instance Storage");
        partition("nvme1n1", "nvme1n1p1");
        over("dm-0", &["nvme0n1"]);
        over("dm-1", &["nvme1n1/nvme1n1p1"]);
        over("dm-2", &["dm-1"]);
        over("md0", &["nvme0n1", "nvme2n1"]);
        over("dm-3", &["md0"]);
        // A loop that no kernel shows must end too.
        over("dm-4", &["dm-4"]);
        // A loop device whose file is not to be found here.
        std::fs::create_dir_all(block.join("loop7/loop")).unwrap();
        std::fs::write(block.join("loop7/loop/backing_file"), format!("{}/gone\n", root.display())).unwrap();
        over("dm-5", &["loop7"]);
        let names = ["nvme0n1", "nvme1n1", "dm-0", "dm-1", "dm-2", "md0", "dm-3", "dm-4", "dm-5"];
        let class = |name: &str| decide(None, &leaves_of(&block.join(name).canonicalize().unwrap(), DEPTH_MAX));
        let found: Vec<_> = names.map(|name| (name, class(name))).into();
        std::fs::remove_dir_all(&root).unwrap();
        let durable = |on: &str| Durability { class: Class::Durable, ground: Ground::Devices(vec![on.to_owned()]) };
        let gone = |name: &str| {
            let device = format!("{name} (Amazon EC2 NVMe Instance Storage)");
            Durability { class: Class::Ephemeral, ground: Ground::GoneWithHost(device) }
        };
        let unknown = Ground::Unknown("loop device loop7".to_owned());
        let expected = [
            ("nvme0n1", durable("nvme0n1 (Amazon Elastic Block Store)")),
            ("nvme1n1", gone("nvme1n1")),
            ("dm-0", durable("nvme0n1 (Amazon Elastic Block Store)")),
            ("dm-1", gone("nvme1n1")),
            ("dm-2", gone("nvme1n1")),
            ("md0", gone("nvme2n1")),
            ("dm-3", gone("nvme2n1")),
            ("dm-4", durable("dm-4")),
            ("dm-5", Durability { class: Class::Ephemeral, ground: unknown }),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn instance_stores_and_ram_disks_are_ephemeral() {
        let class = |model: &str, name: &str| decide(None, &[device(name, model)]).class;
        for (model, device) in [
            ("Amazon EC2 NVMe Instance Storage", "nvme1n1"),
            ("nvme_card", "nvme0n1"),
            ("EphemeralDisk", "sdb"),
            ("Microsoft NVMe Direct Disk v2", "nvme2n1"),
            ("", "zram0"),
            ("", "ram3"),
            ("", "nullb0"),
        ] {
            assert_eq!(class(model, device), Class::Ephemeral, "{model} {device}");
        }
        for (model, device) in [
            ("Amazon Elastic Block Store", "nvme0n1"),
            ("nvme_card-pd", "nvme0n1"),
            ("Samsung SSD 980 PRO 1TB", "nvme0n1"),
            ("", "vda"),
            ("", "ramen1"),
        ] {
            assert_eq!(class(model, device), Class::Durable, "{model} {device}");
        }
    }

    /// The number of a file system × the end of its block device × the statement of the operator.
    #[test]
    fn every_decision() {
        let (ebs, store) = (device("nvme0n1", "Amazon Elastic Block Store"), device("sdb", "EphemeralDisk"));
        let (durable, ephemeral) = (Class::Durable, Class::Ephemeral);
        let file_on = |magic: u32, below: &Leaf| end_of_file_system(magic).unwrap_or_else(|| below.clone());
        for (magic, name, below, class, is_open) in [
            (0xef53, "ext4", &ebs, durable, false),
            (0xef53, "ext4", &store, ephemeral, false),
            (0x5846_5342, "XFS", &ebs, durable, false),
            (0x0102_1994, "tmpfs", &ebs, ephemeral, true),
            (0x8584_58f6, "ramfs", &ebs, ephemeral, true),
            (0x794c_7630, "overlay", &ebs, ephemeral, true),
            (0x9123_683e, "btrfs", &ebs, ephemeral, true),
            (0x2fc1_2fc1, "ZFS", &ebs, ephemeral, true),
            (0xca45_1a4e, "bcachefs", &ebs, ephemeral, true),
            (0x6969, "NFS", &ebs, ephemeral, true),
            (0xfe53_4d42, "SMB", &ebs, ephemeral, true),
            (0x0102_1997, "9P", &ebs, ephemeral, true),
            (0x6573_5546, "FUSE", &ebs, ephemeral, true),
        ] {
            let leaves = [file_on(magic, below)];
            let found = decide(None, &leaves);
            assert_eq!((found.class, found.is_open()), (class, is_open), "{name}: {}", found.ground);
            for stated in [durable, ephemeral] {
                let expected = Durability { class: stated, ground: Ground::Stated };
                assert_eq!(decide(Some(stated), &leaves), expected, "{name}: the operator's word is the last");
            }
        }
        // What is known to be gone is said before what is not known.
        let both = decide(None, &[Leaf::Opaque("overlay".to_owned()), store]);
        assert!(both.class == ephemeral && !both.is_open(), "{}", both.ground);
        assert!(decide(None, &[]).is_open(), "nothing is seen");
        assert_eq!(decide(None, &[Leaf::Opaque("btrfs".to_owned()), ebs]).class, ephemeral);
    }

    #[test]
    fn files_are_followed_to_what_they_lie_on() {
        let file = tempfile_in(&std::env::temp_dir());
        let found = durability(&file, None).unwrap();
        std::fs::remove_file(&file).unwrap();
        // This host's file system decides; its reason never is a statement of the operator.
        assert_ne!(found.ground, Ground::Stated);
        let memory = Path::new("/dev/shm");
        let is_tmpfs = std::fs::read_to_string("/proc/self/mounts").unwrap().contains("tmpfs /dev/shm tmpfs");
        if !is_tmpfs {
            eprintln!("skipped: /dev/shm is no tmpfs here");
            return;
        }
        let file = tempfile_in(memory);
        let found = durability(&file, None).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(found, Durability { class: Class::Ephemeral, ground: Ground::InMemory("tmpfs") });
    }

    fn tempfile_in(directory: &Path) -> PathBuf {
        let path = directory.join(format!("flashcell-durability-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        path
    }
}
