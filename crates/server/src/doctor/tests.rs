//! Goal: each fault of a host is found, named and mended by something, and a good host has none. Method: trees constructed from the kernel's documentation
//! of these files, for what QEMU has no model of (what it has is in `recorded`), and two recorded on a virtual machine of a cloud (a virtio disk, a loop device).

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

/// A host of these files.
fn host(files: &[(&str, &str)]) -> (TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    let root = Root(dir.path().to_path_buf());
    (dir, root)
}

/// A disk: what its queue says, and what it says itself.
struct Tree {
    name: &'static str,
    kind: Option<DeviceKind>,
    logical: &'static str,
    physical: &'static str,
    rotational: &'static str,
    scheduler: &'static str,
    write_cache: &'static str,
    discard: &'static str,
    more: &'static [(&'static str, &'static str)],
}

const GOOD_FLASH: Tree = Tree {
    name: "nvme0n1",
    kind: Some(DeviceKind::Flash),
    logical: "4096",
    physical: "4096",
    rotational: "0",
    scheduler: "[none] mq-deadline kyber bfq",
    write_cache: "write through",
    discard: "2199023255040",
    more: &[],
};
const GOOD_DISK: Tree = Tree {
    name: "sda",
    kind: Some(DeviceKind::Disk),
    logical: "512",
    physical: "4096",
    rotational: "1",
    scheduler: "[mq-deadline] kyber bfq none",
    write_cache: "write back",
    discard: "0",
    more: &[],
};

/// What is not good.
type Expected = &'static [(&'static str, Verdict)];

/// What is not good, by check.
fn findings_of(tree: &Tree) -> BTreeMap<&'static str, Verdict> {
    let at = |file: &str| format!("sys/block/{}/{file}", tree.name);
    let mut files = vec![
        (at("size"), "536870912"),
        (at("queue/logical_block_size"), tree.logical),
        (at("queue/physical_block_size"), tree.physical),
        (at("queue/rotational"), tree.rotational),
        (at("queue/scheduler"), tree.scheduler),
        (at("queue/write_cache"), tree.write_cache),
        (at("queue/discard_max_bytes"), tree.discard),
    ];
    files.extend(tree.more.iter().map(|(file, text)| (at(file), *text)));
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let (_dir, root) = host(&files);
    let partition = tree.more.iter().any(|(file, _)| file.ends_with("/partition"));
    let below = if partition { format!("sys/block/{0}/{0}1", tree.name) } else { format!("sys/block/{}", tree.name) };
    let device = Examined { name: format!("/dev/{}", tree.name), sysfs: below.into(), kind: tree.kind, is_raw: true };
    let findings = block::examine(&root, &device);
    for finding in findings.iter().filter(|finding| finding.verdict == Verdict::Warning) {
        assert!(finding.why.is_some(), "{finding:?}");
    }
    findings
        .into_iter()
        .filter(|finding| finding.verdict != Verdict::Good)
        .map(|finding| (finding.check, finding.verdict))
        .collect()
}

#[test]
fn disks_are_told_apart() {
    let trees: [(&str, Tree, Expected); 12] = [
        ("constructed: NVMe with power-loss protection", GOOD_FLASH, &[]),
        ("constructed: a disk of 512e", GOOD_DISK, &[("power loss", Verdict::Unknown)]),
        (
            "recorded: virtio disk of a virtual machine",
            Tree {
                name: "vda",
                kind: None,
                scheduler: "none [mq-deadline] kyber bfq",
                discard: "1073741824",
                ..GOOD_DISK
            },
            &[("power loss", Verdict::Unknown)],
        ),
        (
            "recorded: loop device of an image on that disk",
            Tree {
                name: "loop0",
                kind: None,
                scheduler: "[none] mq-deadline kyber bfq",
                logical: "4096",
                discard: "4294966784",
                ..GOOD_DISK
            },
            &[("power loss", Verdict::Unknown)],
        ),
        (
            "constructed: flash that says 512 bytes (S3)",
            Tree { logical: "512", physical: "512", ..GOOD_FLASH },
            &[("sectors", Verdict::Note)],
        ),
        (
            "constructed: flash behind bfq (S13)",
            Tree { scheduler: "none mq-deadline [bfq]", ..GOOD_FLASH },
            &[("scheduler", Verdict::Warning)],
        ),
        (
            "constructed: SATA flash behind a RAID controller",
            Tree {
                name: "sdb",
                scheduler: "[mq-deadline] none",
                discard: "0",
                write_cache: "write back",
                logical: "512",
                ..GOOD_FLASH
            },
            &[("scheduler", Verdict::Note), ("TRIM", Verdict::Note), ("power loss", Verdict::Unknown)],
        ),
        (
            "constructed: a disk of a desktop",
            Tree { scheduler: "mq-deadline kyber [bfq] none", ..GOOD_DISK },
            &[("scheduler", Verdict::Note), ("power loss", Verdict::Unknown)],
        ),
        (
            "constructed: 4Kn disk without a cache",
            Tree { logical: "4096", write_cache: "write through", ..GOOD_DISK },
            &[],
        ),
        (
            "constructed: partition that begins at sector 63",
            Tree {
                more: &[("sda1/partition", "1"), ("sda1/start", "63"), ("sda1/alignment_offset", "0")],
                ..GOOD_DISK
            },
            &[("alignment", Verdict::Warning), ("power loss", Verdict::Unknown)],
        ),
        (
            "constructed: USB bridge",
            Tree { more: &[("removable", "1")], ..GOOD_DISK },
            &[("medium", Verdict::Warning), ("power loss", Verdict::Unknown)],
        ),
        (
            "constructed: an instance store that says it turns",
            Tree { name: "xvdb", rotational: "1", scheduler: "", ..GOOD_FLASH },
            &[("kind", Verdict::Note)],
        ),
    ];
    for (what, tree, expected) in trees {
        assert_eq!(findings_of(&tree), expected.iter().copied().collect(), "{what}");
    }
}

#[test]
fn a_host_is_examined_by_its_files() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                  Max open files            1024                 4096                 files\n\
                  Max locked memory         8388608              8388608              bytes";
    let (_dir, root) = host(&[
        ("proc/sys/kernel/osrelease", "5.4.0-150-generic"),
        ("proc/sys/kernel/io_uring_disabled", "2"),
        ("proc/self/limits", limits),
        ("proc/self/mounts", "/dev/sda1 / ext4 rw,relatime 0 0\n/dev/sdb1 /data ext4 rw,nobarrier 0 0"),
        ("dev/fuse", ""),
    ]);
    let found = host::examine(&root);
    let of = |check: &str| found.iter().find(|finding| finding.check == check).unwrap();
    for (check, verdict) in [
        ("kernel", Verdict::Warning),
        ("io_uring", Verdict::Warning),
        ("open files", Verdict::Note),
        ("locked memory", Verdict::Note),
        ("attach", Verdict::Note),
        ("clock", Verdict::Unknown),
        ("barriers", Verdict::Warning),
    ] {
        assert_eq!((of(check).verdict, of(check).mend.is_some()), (verdict, true), "{check}");
    }
    assert_eq!(
        (of("barriers").subject.as_str(), of("attach").mend.as_deref()),
        ("/data", Some("modprobe nbd, or modprobe -a loop"))
    );

    let unlimited = "Max open files            1048576              1048576              files\n\
                     Max locked memory         unlimited            unlimited            bytes";
    let (_dir, root) = host(&[
        ("proc/sys/kernel/osrelease", "6.12.9+deb13-amd64"),
        ("proc/sys/kernel/io_uring_disabled", "0"),
        ("proc/self/limits", unlimited),
        ("proc/self/mounts", "/dev/sda1 / ext4 rw,relatime 0 0"),
        ("dev/fuse", ""),
        ("dev/loop-control", ""),
        ("run/systemd/timesync/synchronized", ""),
    ]);
    let found = host::examine(&root);
    assert!(found.iter().all(|finding| finding.verdict == Verdict::Good), "{}", table(&found));

    // One way to attach is enough.
    let (_dir, root) = host(&[("sys/module/nbd/initstate", "live")]);
    let found = host::examine(&root);
    assert_eq!(found.iter().find(|finding| finding.check == "attach").unwrap().verdict, Verdict::Good);
}

#[test]
fn the_last_setting_of_postgresql_counts() {
    let (dir, root) = host(&[
        (
            "etc/postgresql/15/main/postgresql.conf",
            "data_directory = '/srv/pg'   # where\nfsync = off\nfull_page_writes = on",
        ),
        ("srv/pg/postgresql.auto.conf", "# Do not edit\nfsync = 'on'\nfull_page_writes = 'off'"),
    ]);
    let found = databases::examine(&root, &[]);
    let verdicts: Vec<_> = found.iter().map(|finding| (finding.check, finding.verdict)).collect();
    assert_eq!(
        verdicts,
        [("fsync", Verdict::Good), ("full_page_writes", Verdict::Warning), ("synchronous_commit", Verdict::Good)]
    );
    assert_eq!(found[1].mend.as_deref(), Some("ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()"));
    let found = databases::examine(&root, &[dir.path().join("nowhere")]);
    assert_eq!((found[0].check, found[0].verdict), ("postgresql", Verdict::Unknown));
}

#[test]
fn the_limit_of_an_l2arc_follows_from_the_rating_of_the_drive() {
    let rating: Rating = "700e9:10".parse().unwrap();
    let (_dir, root) = host(&[("sys/module/zfs/parameters/l2arc_write_max", "8388608")]);
    let found = l2arc::examine(&root, Some(rating));
    let why = found[0].why.as_deref().unwrap();
    assert_eq!(found[0].verdict, Verdict::Warning);
    assert!(
        why.starts_with("the rating allows 81.0 MB/s (77.3 MiB/s) all day")
            && why.contains("162037037 bytes/s (162 MB/s)"),
        "{why}"
    );
    assert!(found[0].mend.as_deref().unwrap().contains("set zfs:l2arc_write_max=162037037"));
    // The same drive with its GB taken for GiB.
    let found = l2arc::examine(&root, Some("700G:10".parse().unwrap()));
    assert!(found[0].why.as_deref().unwrap().contains("87.0 MB/s (83.0 MiB/s)"), "{found:?}");
    for wrong in ["700e9", "x:10", "700e9:0", "700e9:-1", "nan:1"] {
        assert!(wrong.parse::<Rating>().unwrap_err().contains("SIZE:WRITES-PER-DAY"), "{wrong}");
    }
    let (_dir, root) = host(&[]);
    assert_eq!(l2arc::examine(&root, None), []);
}

#[test]
fn a_disk_that_syncs_too_quickly_is_not_believed() {
    let judged = |ms: u64, is_rotating| syncs::judge("/srv", vec![Duration::from_millis(ms); 100], is_rotating).verdict;
    assert_eq!(judged(8, true), Verdict::Good);
    assert_eq!(judged(1, true), Verdict::Unknown);
    assert_eq!(judged(1, false), Verdict::Good);
    assert_eq!(judged(8, false), Verdict::Note);
    let dir = tempfile::tempdir().unwrap();
    let found = syncs::time(dir.path(), Duration::from_millis(20), false);
    assert!(found.found.contains("a second (median"), "{found:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn what_is_worst_comes_first() {
    let findings = [
        Finding::good("kernel", "host", "6.12"),
        Finding::good("fsync", "/srv/pg", "off")
            .with(Verdict::Warning, "lost")
            .mended_by("ALTER SYSTEM SET fsync = on"),
    ];
    let expected = "WARNING fsync   /srv/pg  off\n        lost\n        mend: ALTER SYSTEM SET fsync = on\ngood    kernel  host     6.12\n";
    assert_eq!(table(&findings), expected);
}
