//! Goal: what doctor says of disks whose files in sysfs are a kernel's own. Method: trees recorded from QEMU's disks under Linux 6.12 (`recorded/`, made by
//! `tests/guest/record-sysfs`; each says how its disk was made), and every finding of each as it is printed.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use expect_test::{Expect, expect};
use std::fs;
use tempfile::TempDir;

/// A tree of one disk: lines of PATH=VALUE. Its root and its path.
fn tree(text: &str) -> (TempDir, Root, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    assert!(text.starts_with("# recorded by tests/guest/record-sysfs: QEMU emulator version "), "{text}");
    let mut disk = PathBuf::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (path, value) = line.split_once('=').unwrap();
        let file = dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{value}\n")).unwrap();
        disk = Path::new(path).components().take(3).collect();
    }
    let root = Root(dir.path().to_path_buf());
    (dir, root, disk)
}

fn check(text: &str, kind: Option<DeviceKind>, expected: &Expect) {
    let (_dir, root, sysfs) = tree(text);
    // As a host is examined, and as a device of a cell is.
    let mut device = block::all(&root).remove(0);
    assert_eq!(device.sysfs, sysfs);
    device.kind = kind;
    let told = |finding: &Finding| {
        assert!(finding.verdict == Verdict::Good || finding.why.is_some(), "{finding:?}");
        format!("{} {} {}: {}\n", finding.verdict.word(), finding.check, finding.subject, finding.found)
    };
    expected.assert_eq(&block::examine(&root, &device).iter().map(told).collect::<String>());
}

#[test]
fn virtio_blk() {
    check(
        include_str!("recorded/virtio_blk.txt"),
        None,
        &expect![[r#"
            good sectors /dev/vda: logical 512, physical 512 bytes
            good scheduler /dev/vda: none
            good TRIM /dev/vda: yes
            good alignment /dev/vda: begins at 0, offset 0
            good write cache /dev/vda: write back
            unknown power loss /dev/vda: protection is not told
        "#]],
    );
    // What the cell takes for flash.
    check(
        include_str!("recorded/virtio_blk.txt"),
        Some(DeviceKind::Flash),
        &expect![[r#"
            note sectors /dev/vda: logical 512, physical 512 bytes
            good scheduler /dev/vda: none
            good TRIM /dev/vda: yes
            good alignment /dev/vda: begins at 0, offset 0
            good write cache /dev/vda: write back
            unknown power loss /dev/vda: protection is not told
            note kind /dev/vda: is flash to the cell, and says that it turns
        "#]],
    );
}

#[test]
fn virtio_blk_without_cache_and_discard() {
    let text = include_str!("recorded/virtio_blk_without_cache_and_discard.txt");
    check(
        text,
        None,
        &expect![[r#"
            good sectors /dev/vdb: logical 512, physical 512 bytes
            good scheduler /dev/vdb: none
            good TRIM /dev/vdb: no
            good alignment /dev/vdb: begins at 0, offset 0
            good write cache /dev/vdb: none, or protected: writes are durable when they are answered
            good power loss /dev/vdb: nothing to lose, by what the device says
        "#]],
    );
    check(
        text,
        Some(DeviceKind::Flash),
        &expect![[r#"
            note sectors /dev/vdb: logical 512, physical 512 bytes
            good scheduler /dev/vdb: none
            note TRIM /dev/vdb: no
            good alignment /dev/vdb: begins at 0, offset 0
            good write cache /dev/vdb: none, or protected: writes are durable when they are answered
            good power loss /dev/vdb: nothing to lose, by what the device says
            note kind /dev/vdb: is flash to the cell, and says that it turns
        "#]],
    );
}

#[test]
fn virtio_blk_4kn() {
    check(
        include_str!("recorded/virtio_blk_4kn.txt"),
        None,
        &expect![[r#"
            good sectors /dev/vdc: logical 4096, physical 4096 bytes
            good scheduler /dev/vdc: none
            good TRIM /dev/vdc: yes
            good alignment /dev/vdc: begins at 0, offset 0
            good write cache /dev/vdc: write back
            unknown power loss /dev/vdc: protection is not told
        "#]],
    );
}

#[test]
fn virtio_blk_read_only() {
    check(
        include_str!("recorded/virtio_blk_read_only.txt"),
        None,
        &expect![[r#"
            good sectors /dev/vdd: logical 512, physical 512 bytes
            good scheduler /dev/vdd: none
            good TRIM /dev/vdd: yes
            good alignment /dev/vdd: begins at 0, offset 0
            good write cache /dev/vdd: write back
            unknown power loss /dev/vdd: protection is not told
            WARNING medium /dev/vdd: is read-only
        "#]],
    );
}

#[test]
fn scsi_flash() {
    check(
        include_str!("recorded/scsi_flash.txt"),
        None,
        &expect![[r#"
            note sectors /dev/sda: logical 512, physical 512 bytes
            good scheduler /dev/sda: none
            good TRIM /dev/sda: yes
            good alignment /dev/sda: begins at 0, offset 0
            good write cache /dev/sda: write back
            unknown power loss /dev/sda: protection is not told
        "#]],
    );
}

#[test]
fn scsi_disk_512e() {
    check(
        include_str!("recorded/scsi_disk_512e.txt"),
        Some(DeviceKind::Disk),
        &expect![[r#"
            good sectors /dev/sdb: logical 512, physical 4096 bytes
            good scheduler /dev/sdb: none
            good TRIM /dev/sdb: yes
            good alignment /dev/sdb: begins at 0, offset 0
            good write cache /dev/sdb: write back
            unknown power loss /dev/sdb: protection is not told
        "#]],
    );
}

#[test]
fn scsi_disk_4kn() {
    check(
        include_str!("recorded/scsi_disk_4kn.txt"),
        None,
        &expect![[r#"
            good sectors /dev/sdc: logical 4096, physical 4096 bytes
            good scheduler /dev/sdc: none
            good TRIM /dev/sdc: yes
            good alignment /dev/sdc: begins at 0, offset 0
            good write cache /dev/sdc: none, or protected: writes are durable when they are answered
            good power loss /dev/sdc: nothing to lose, by what the device says
        "#]],
    );
}

#[test]
fn scsi_removable() {
    check(
        include_str!("recorded/scsi_removable.txt"),
        None,
        &expect![[r#"
            good sectors /dev/sdd: logical 512, physical 512 bytes
            good scheduler /dev/sdd: none
            good TRIM /dev/sdd: yes
            good alignment /dev/sdd: begins at 0, offset 0
            good write cache /dev/sdd: write back
            unknown power loss /dev/sdd: protection is not told
            WARNING medium /dev/sdd: is removable
        "#]],
    );
}

#[test]
fn nvme() {
    check(
        include_str!("recorded/nvme.txt"),
        None,
        &expect![[r#"
            note sectors /dev/nvme0n1: logical 512, physical 512 bytes
            good scheduler /dev/nvme0n1: none
            good TRIM /dev/nvme0n1: yes
            good alignment /dev/nvme0n1: begins at 0, offset 0
            good write cache /dev/nvme0n1: write back
            unknown power loss /dev/nvme0n1: protection is not told
        "#]],
    );
}

#[test]
fn nvme_4kn() {
    check(
        include_str!("recorded/nvme_4kn.txt"),
        Some(DeviceKind::Flash),
        &expect![[r#"
            good sectors /dev/nvme1n1: logical 4096, physical 4096 bytes
            good scheduler /dev/nvme1n1: none
            good TRIM /dev/nvme1n1: yes
            good alignment /dev/nvme1n1: begins at 0, offset 0
            good write cache /dev/nvme1n1: write back
            unknown power loss /dev/nvme1n1: protection is not told
        "#]],
    );
}

#[test]
fn ahci_flash() {
    check(
        include_str!("recorded/ahci_flash.txt"),
        None,
        &expect![[r#"
            note sectors /dev/sde: logical 512, physical 512 bytes
            good scheduler /dev/sde: none
            good TRIM /dev/sde: yes
            good alignment /dev/sde: begins at 0, offset 0
            good write cache /dev/sde: write back
            unknown power loss /dev/sde: protection is not told
        "#]],
    );
}

#[test]
fn ahci_disk_with_a_partition_that_begins_at_sector_63() {
    check(
        include_str!("recorded/ahci_disk_misaligned.txt"),
        None,
        &expect![[r#"
            good sectors /dev/sdf: logical 512, physical 4096 bytes
            good scheduler /dev/sdf: none
            good TRIM /dev/sdf: yes
            good alignment /dev/sdf: begins at 0, offset 0
            WARNING alignment /dev/sdf1: begins at 32256, offset 512
            good write cache /dev/sdf: write back
            unknown power loss /dev/sdf: protection is not told
        "#]],
    );
}

#[test]
fn dm_linear() {
    check(
        include_str!("recorded/dm_linear.txt"),
        None,
        &expect![[r#"
            good sectors /dev/dm-0: logical 4096, physical 4096 bytes
            good scheduler /dev/dm-0: none
            good TRIM /dev/dm-0: yes
            good alignment /dev/dm-0: begins at 0, offset 0
            good write cache /dev/dm-0: write back
            unknown power loss /dev/dm-0: protection is not told
        "#]],
    );
}

#[test]
fn md_mirror() {
    check(
        include_str!("recorded/md_mirror.txt"),
        None,
        &expect![[r#"
            good sectors /dev/md_pair: logical 512, physical 512 bytes
            good scheduler /dev/md_pair: none
            good TRIM /dev/md_pair: yes
            good alignment /dev/md_pair: begins at 0, offset 0
            good write cache /dev/md_pair: write back
            unknown power loss /dev/md_pair: protection is not told
        "#]],
    );
}

#[test]
fn what_lies_below_is_examined_too() {
    let whole = ["md_mirror", "virtio_blk", "virtio_blk_without_cache_and_discard"];
    let text = whole.map(|name| {
        fs::read_to_string(format!("{}/src/doctor/recorded/{name}.txt", env!("CARGO_MANIFEST_DIR"))).unwrap()
    });
    let (_dir, root, _) = tree(&text.concat());
    let disks = block::all(&root);
    let below = |name: &str| {
        let of = disks.iter().find(|disk| disk.name == name).unwrap();
        block::below(&root, of).into_iter().map(|disk| disk.name).collect::<Vec<_>>()
    };
    assert_eq!(below("/dev/md_pair"), ["/dev/vda", "/dev/vdb"]);
    assert_eq!(below("/dev/vda"), [""; 0]);
    // A partition of a disk counts as that disk, and what is on that is found through it.
    fs::create_dir_all(root.path("sys/block/vda/vda2")).unwrap();
    fs::write(root.path("sys/block/vda/vda2/partition"), "2").unwrap();
    fs::create_dir_all(root.path("sys/block/dm-0/slaves/vda2")).unwrap();
    fs::create_dir_all(root.path("sys/block/dm-1/slaves/dm-0")).unwrap();
    let dm = Examined { name: "/dev/dm-1".to_owned(), sysfs: "sys/block/dm-1".into(), kind: None, is_raw: true };
    let names: Vec<String> = block::below(&root, &dm).into_iter().map(|disk| disk.name).collect();
    assert_eq!(names, ["/dev/dm-0", "/dev/vda"]);
}

#[test]
fn the_syncs_of_a_device_are_not_timed_and_the_way_is_told() {
    let (dir, root, _) = tree(include_str!("recorded/nvme.txt"));
    fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    let mount = |text: &str| fs::write(dir.path().join("proc/self/mounts"), text).unwrap();
    let device =
        |kind| Examined { name: "/dev/nvme0n1".to_owned(), sysfs: "sys/block/nvme0n1".into(), kind, is_raw: true };
    let mend = |kind| {
        let finding = syncs::untimed(&root, &device(kind));
        assert_eq!((finding.verdict, finding.found.as_str()), (Verdict::Unknown, "not timed"));
        finding.mend.unwrap()
    };
    mount(
        "/dev/nvme0n10 /other ext4 rw 0 0\n/dev/nvme0n1p2 /ro ext4 ro 0 0\n/dev/nvme0n1p3 /with\\040space ext4 rw,relatime 0 0\n",
    );
    assert_eq!(mend(None), "flashcell doctor '/with space'");
    mount("/dev/nvme0n10 /other ext4 rw 0 0\n");
    assert!(mend(None).contains("fio --name=sync --filename=/dev/nvme0n1 ") && mend(None).contains("destroys"));
    assert!(mend(Some(DeviceKind::Flash)).contains("CD_IO_TM_FLUSH_RQ"));
}
