//! The host: kernel, limits, what attaching needs, mounts, clock, room.

use super::{Finding, Root, Verdict};
use std::path::Path;

/// The first kernel whose io_uring the cell has been run on.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// The first with FUSE_NOTIFY_RESEND: what a driver of an attached device has taken goes to the next one.
const KERNEL_RESENDS: (u32, u32) = (6, 9);
/// Connections and devices: what the unit of the package asks for.
const OPEN_FILES_MIN: u64 = 8192;
const FREE_SHARE_MIN: f64 = 0.05;
const GIB: u64 = 1 << 30;

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    let mut found = vec![kernel(root), io_uring(root)];
    found.extend(limits(root));
    found.extend([attach(root), clock(root)]);
    found.extend(mounts(root));
    found
}

fn kernel(root: &Root) -> Finding {
    let Some(release) = root.text("proc/sys/kernel/osrelease") else {
        return Finding::good("kernel", "host", "?").with(Verdict::Unknown, "/proc is not there");
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => return Finding::good("kernel", "host", release).with(Verdict::Unknown, "its version cannot be told"),
    };
    let finding = Finding::good("kernel", "host", release);
    if version < KERNEL_MIN {
        finding
            .with(Verdict::Warning, "io_uring of kernels before 5.10 is young; the cell has not been run on one")
            .mended_by("upgrade the kernel, or set io = \"threads\" in cell.toml")
    } else if version < KERNEL_RESENDS {
        finding.with(
            Verdict::Note,
            "before 6.9 the requests that a driver of an attached device had taken hang when it dies, until `flashcell detach --force`",
        )
    } else {
        finding
    }
}

fn io_uring(root: &Root) -> Finding {
    let allowed = root.number("proc/sys/kernel/io_uring_disabled");
    let finding = |found: &str| Finding::good("io_uring", "host", found);
    match allowed {
        None => finding("allowed, by all that can be told"),
        Some(0) => finding("allowed"),
        Some(1) => finding("for the group of kernel.io_uring_group alone")
            .with(Verdict::Note, "a cell of another user does its I/O with threads, which costs processor time")
            .mended_by("sysctl -w kernel.io_uring_group=$(getent group flashcell | cut -d: -f3)"),
        Some(_) => finding("forbidden")
            .with(
                Verdict::Warning,
                "the cell does its I/O with threads, which costs a system call and two switches a request",
            )
            .mended_by("sysctl -w kernel.io_uring_disabled=0"),
    }
}

/// Of this process, as a service started in the same way has them.
fn limits(root: &Root) -> Vec<Finding> {
    let text = root.text("proc/self/limits").unwrap_or_default();
    // Name, soft limit, hard limit, unit; the name has spaces.
    let hard = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].split_whitespace().nth(1).map(str::to_owned)
    };
    let mut findings = Vec::new();
    if let Some(files) = hard("Max open files") {
        let finding = Finding::good("open files", "host", format!("at most {files}"));
        let is_few = files.parse::<u64>().is_ok_and(|files| files < OPEN_FILES_MIN);
        findings.push(if is_few {
            finding
                .with(Verdict::Note, "each NBD connection takes one: the cell serves fewer than its 4,096")
                .mended_by("ulimit -n 65536, or LimitNOFILE=65536 in the unit")
        } else {
            finding
        });
    }
    if let Some(memory) = hard("Max locked memory") {
        let finding = Finding::good("locked memory", "host", format!("at most {memory}"));
        findings.push(if memory == "unlimited" {
            finding
        } else {
            finding
                .with(Verdict::Note, "a cell whose memory is swapped out waits for the disk that may wait for the cell")
                .mended_by("ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit (that of the package has it)")
        });
    }
    findings
}

fn attach(root: &Root) -> Finding {
    let loaded: Vec<&str> = [("ublk_drv", "ublk"), ("nbd", "nbd")]
        .iter()
        .filter(|(module, _)| root.exists(format!("sys/module/{module}")))
        .map(|(_, name)| *name)
        .collect();
    let missing: Vec<&str> = [("dev/fuse", "fuse"), ("dev/loop-control", "loop")]
        .iter()
        .filter(|(path, _)| !root.exists(path))
        .map(|(_, name)| *name)
        .collect();
    let there = loaded.join(" and ");
    match (&loaded[..], &missing[..]) {
        ([], []) => Finding::good("attach", "host", "fuse and loop are there; ublk and nbd are not loaded"),
        ([], missing) => Finding::good("attach", "host", format!("missing: ublk, nbd, {}", missing.join(", ")))
            .with(
                Verdict::Note,
                "`flashcell attach` makes block devices of this host with ublk, with nbd, or with fuse and loop",
            )
            .mended_by(format!("modprobe nbd, or modprobe -a {}", missing.join(" "))),
        (_, []) => Finding::good("attach", "host", format!("{there}, fuse and loop are there")),
        (_, missing) => Finding::good("attach", "host", format!("{there} there; missing: {}", missing.join(", "))),
    }
}

fn clock(root: &Root) -> Finding {
    if root.exists("run/systemd/timesync/synchronized") {
        return Finding::good("clock", "host", "kept by systemd-timesyncd");
    }
    Finding::good("clock", "host", "not by systemd-timesyncd")
        .with(Verdict::Unknown, "histories, alerts and claims of several hosts are compared by time")
        .mended_by("chronyc tracking, or timedatectl set-ntp true")
}

/// File systems that do not flush the device when they should.
fn mounts(root: &Root) -> Vec<Finding> {
    let text = root.text("proc/self/mounts").unwrap_or_default();
    let mut findings = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(device), Some(at), Some(_), Some(options)) = (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        if let Some(option) = options.split(',').find(|option| matches!(*option, "nobarrier" | "barrier=0")) {
            findings.push(
                Finding::good("barriers", at, format!("{device} is mounted with {option}"))
                    .with(
                        Verdict::Warning,
                        "what is called durable stays in the device's cache: a power cut loses commits and breaks the file system",
                    )
                    .mended_by(format!("mount -o remount,barrier {at}, and the option out of /etc/fstab")),
            );
        }
    }
    if findings.is_empty() && !text.is_empty() {
        findings.push(Finding::good("barriers", "host", "no file system is mounted without"));
    }
    findings
}

/// Room for the history, the audit log and sparse images.
pub(super) fn free_space(dir: &Path) -> Finding {
    let subject = dir.display().to_string();
    let Ok(stat) = rustix::fs::statvfs(dir) else {
        return Finding::good("free space", &subject, "?").with(Verdict::Unknown, "the file system does not say");
    };
    let (free_bytes, all_bytes) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
    let share = free_bytes as f64 / all_bytes.max(1) as f64;
    let finding = Finding::good(
        "free space",
        &subject,
        format!("{:.1} GiB, {:.0} %", free_bytes as f64 / GIB as f64, share * 100.0),
    );
    if free_bytes < GIB || share < FREE_SHARE_MIN {
        finding
            .with(Verdict::Warning, "on a full file system changes of the cell are refused, since they cannot be audited, and sparse images fail writes")
            .mended_by(format!("df -h {subject}; du -xh --max-depth=1 {subject}"))
    } else {
        finding
    }
}
