//! What this host knows of a device: where it is mounted, in whatever mount namespace; who uses it; what is on it.
//!
//! Reads `/proc` and `/sys` alone, never looks into a mounted file system: one whose server is gone would answer to nobody.

use super::AttachError;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Users that are named; there may be thousands.
const USERS_MAX: usize = 8;

/// Where a device is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// A process of the mount namespace; none: this one's.
    pub(super) pid: Option<u32>,
    pub(super) path: PathBuf,
    pub(super) fs: String,
}

/// `major:minor` of a device.
pub(super) fn number(device: &Path) -> Option<String> {
    let name = device.file_name()?;
    Some(fs::read_to_string(Path::new("/sys/block").join(name).join("dev")).ok()?.trim().to_owned())
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}

/// Every mount of a device (`major:minor`), the one to be unmounted first first.
pub(super) fn mounts(number: &str) -> Vec<Mount> {
    let own = link(Path::new("/proc/self/ns/mnt"));
    let mut namespaces: BTreeMap<PathBuf, Option<u32>> = BTreeMap::new();
    namespaces.extend(own.map(|own| (own, None)));
    for pid in processes() {
        if let Some(namespace) = link(Path::new(&format!("/proc/{pid}/ns/mnt"))) {
            namespaces.entry(namespace).or_insert(Some(pid));
        }
    }
    let mut found = Vec::new();
    for pid in namespaces.into_values() {
        let who = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        let text = fs::read(format!("/proc/{who}/mountinfo")).unwrap_or_default();
        let mut here: Vec<Mount> = text.split(|byte| *byte == b'\n').filter_map(|line| mount(line, number)).collect();
        here.iter_mut().for_each(|mount| mount.pid = pid);
        found.extend(here.into_iter().rev());
    }
    found
}

/// A line of `mountinfo`, when it is of the device.
fn mount(line: &[u8], number: &str) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let dev = words.nth(2)?;
    let path = words.nth(1)?;
    let fs = words.skip_while(|word| *word != b"-").nth(1)?;
    if dev != number.as_bytes() {
        return None;
    }
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&unescape(path)));
    Some(Mount { pid: None, path, fs: String::from_utf8_lossy(fs).into_owned() })
}

/// `\040` is a blank.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digits = text.get(at + 1..at + 4).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) if text[at] == b'\\' => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                at += 4;
            }
            _ => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

/// Users to be told of, where something is in use.
pub(super) fn told(users: Option<String>) -> String {
    users.unwrap_or_else(|| "nobody that can be seen from here".to_owned())
}

/// Who has something open at or below `path`, or works there: `NAME (pid N)`. This process does not count.
pub(super) fn users(path: &Path) -> Option<String> {
    let inside = |target: Option<PathBuf>| target.is_some_and(|target| target.starts_with(path));
    let mut found = Vec::new();
    for pid in processes().into_iter().filter(|pid| *pid != std::process::id()) {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let named = ["cwd", "root", "exe"].into_iter().any(|name| inside(link(&dir.join(name))));
        let open = || fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().any(|fd| inside(link(&fd.path())));
        if named || open() {
            let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(format!("{} (pid {pid})", name.trim()));
        }
    }
    let more = found.len().saturating_sub(USERS_MAX);
    found.truncate(USERS_MAX);
    match (found.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(found.join(", ")),
        (false, more) => Some(format!("{} and {more} more", found.join(", "))),
    }
}

/// Devices on top of it (LVM, device mapper), and swap.
pub(super) fn holders(device: &Path) -> Vec<String> {
    let name = device.file_name().unwrap_or_default();
    let entries = fs::read_dir(Path::new("/sys/block").join(name).join("holders")).into_iter().flatten().flatten();
    let mut held: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next().is_some_and(|path| Path::new(path) == device)) {
        held.push("swap".to_owned());
    }
    held
}

/// Run a program of the system to its end.
pub(super) fn run(command: &mut Command) -> Result<(), AttachError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command
        .output()
        .map_err(|source| AttachError::Command { command: name.clone(), why: format!("{source}; is it installed?") })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let why = if said.trim().is_empty() { done.status.to_string() } else { said.trim().to_owned() };
    Err(AttachError::Command { command: name, why })
}

/// Unmount, in its own mount namespace.
pub(super) fn unmount(mount: &Mount, lazily: bool) -> Result<(), AttachError> {
    let Some(pid) = mount.pid else {
        return device::real::unmount(&mount.path, lazily).map_err(|source| match source.kind() {
            std::io::ErrorKind::ResourceBusy => {
                let users = told(users(&mount.path));
                AttachError::Busy { what: mount.path.display().to_string(), users }
            }
            _ => AttachError::File { path: mount.path.clone(), source },
        });
    };
    let mut command = Command::new("nsenter");
    command.arg("-t").arg(pid.to_string()).args(["-m", "umount"]);
    if lazily {
        command.arg("-l");
    }
    run(command.arg(&mount.path))
}

/// What is on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing but zeroes where file systems, partition tables and volume managers leave their marks.
    Empty,
    Ext4,
    Xfs,
    Other,
}

/// Bytes at either end in which all of these leave marks.
const MARKS_BYTES: usize = 1 << 20;

pub(super) fn content(device: &Path, size_bytes: u64) -> Result<Content, AttachError> {
    use std::os::unix::fs::FileExt;
    let io = |source| AttachError::File { path: device.to_owned(), source };
    let file = fs::File::open(device).map_err(io)?;
    let mut first = vec![0; MARKS_BYTES.min(usize::try_from(size_bytes).unwrap_or(MARKS_BYTES))];
    let mut last = first.clone();
    let unread = |error: std::io::Error| AttachError::FileSystem {
        what: format!("the grid disk cannot be read: {}: {error}", device.display()),
        hint: "LIST GRIDDISK ATTRIBUTES name, status and LIST ALERTHISTORY of the cell say why, and the ways out"
            .to_owned(),
    };
    file.read_exact_at(&mut first, 0).map_err(unread)?;
    let from = size_bytes - last.len() as u64;
    file.read_exact_at(&mut last, from).map_err(unread)?;
    Ok(judge(&first, &last))
}

fn judge(first: &[u8], last: &[u8]) -> Content {
    match () {
        () if first.starts_with(b"XFSB") => Content::Xfs,
        () if first.get(1080..1082) == Some(&[0x53, 0xef]) => Content::Ext4,
        () if first.iter().chain(last).all(|byte| *byte == 0) => Content::Empty,
        () => Content::Other,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_mounts_is_read() {
        let line = br"36 35 7:3 / /mnt/with\040blank rw,noatime shared:1 - ext4 /dev/loop3 rw";
        let found = mount(line, "7:3").unwrap();
        assert_eq!((found.path.as_path(), &*found.fs), (Path::new("/mnt/with blank"), "ext4"));
        assert_eq!(mount(line, "7:30"), None);
        assert_eq!(mount(b"36 35", "7:3"), None);
    }

    #[test]
    fn content_is_told_by_its_marks() {
        let zeroes = vec![0; 4096];
        assert_eq!(judge(&zeroes, &zeroes), Content::Empty);
        let mut ext4 = zeroes.clone();
        ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(judge(&ext4, &zeroes), Content::Ext4);
        assert_eq!(judge(b"XFSB", &zeroes), Content::Xfs);
        assert_eq!(judge(&zeroes, b"\0a backup GPT"), Content::Other);
    }
}
