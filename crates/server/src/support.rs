//! `flashcell support`: one archive with what somebody who is to help needs to see of a cell and its host, without data and without secrets.
//!
//! Only reads, and asks a running cell with statements that anybody may give. What cannot be had is named in `missing.txt`: a cell that is
//! down is when a bundle is wanted most. Values of the configuration that may be secrets (where alerts go, and with which words) are taken
//! out of it, and out of everything else in which they stand.

use crate::admin::Form;
use crate::config::Config;
use crate::console::{ConsoleError, Session, address_of, backup};
use crate::doctor::{DoctorOptions, doctor, json};
use crate::http::Client;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most of one file: the end of a log, the beginning of anything else.
const PART_BYTES_MAX: u64 = 16 << 20;
/// Lines of the journal.
const JOURNAL_LINES: &str = "20000";
/// The text that `support` puts in the place of a value that may be a secret.
const REMOVED: &str = "(removed)";
/// Shorter values are not looked for elsewhere: they would be found by chance.
const SECRET_BYTES_MIN: usize = 6;

/// The types of objects that `support` lists of a cell, with all their attributes.
const LISTED: &[&str] = &[
    "CELL",
    "CELLDISK",
    "GRIDDISK",
    "PHYSICALDISK",
    "FLASHCACHE",
    "FLASHLOG",
    "IORMPLAN",
    "DATABASE",
    "PIN",
    "THRESHOLD",
    "METRICDEFINITION",
    "METRICCURRENT",
    "ALERTDEFINITION",
    "ALERTHISTORY",
    "ACTIVEREQUEST",
];

/// Files of the host that tell which it is and how it fares; none with names of users, nor with options of mounts.
const HOST_FILES: &[&str] = &[
    "/etc/os-release",
    "/proc/version",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/diskstats",
    "/proc/partitions",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
];

/// Of the process that serves the cell.
const PROCESS_FILES: &[&str] = &["status", "limits", "io", "stat", "wchan", "cgroup"];

/// The options of `flashcell support`.
#[derive(Clone, Debug, Default)]
pub struct SupportOptions {
    /// The cell, as in [`crate::console::ConsoleOptions::cell`].
    pub cell: Option<String>,
    /// The archive; when not given, named after the cell and the time, in the current directory.
    pub output: Option<PathBuf>,
}

/// The archive that `support` has written.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The archive.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The files in it.
    pub files: Vec<String>,
    /// The parts that `support` could not get, each with the reason.
    pub missing: Vec<(String, String)>,
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum SupportError {
    /// No cell is named, or not so that one can be found.
    #[error(transparent)]
    Cell(ConsoleError),
    /// The archive cannot be written.
    #[error("{}: {source}\nhint: -o FILE names another, which must not be there yet", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// What is put into the archive.
#[derive(Default)]
struct Parts {
    files: Vec<(String, Vec<u8>)>,
    missing: Vec<(String, String)>,
}

impl Parts {
    fn put(&mut self, name: impl Into<String>, content: Result<Vec<u8>, String>) {
        match content {
            Ok(bytes) => self.files.push((name.into(), bytes)),
            Err(why) => self.missing.push((name.into(), why)),
        }
    }
}

/// Write a bundle for a cell.
///
/// # Errors
/// No cell can be found by what was given, or the archive cannot be written. What of the cell does not answer is named in the bundle.
pub fn support(options: &SupportOptions) -> Result<Bundle, SupportError> {
    let address = address_of(options.cell.as_deref()).map_err(SupportError::Cell)?;
    let here = options.cell.clone().unwrap_or_else(|| ".".to_owned());
    let located = Some(Path::new(&here)).filter(|path| path.exists()).map(Config::load);
    let mut parts = Parts::default();
    let (mut secrets, mut name) = (Vec::new(), here.clone());
    match &located {
        Some(Ok(located)) => {
            let text = std::fs::read_to_string(&located.path).map_err(|error| error.to_string());
            let safe = text.and_then(|text| without_secrets(&text, &mut secrets));
            parts.put("cell.toml", safe.map(String::into_bytes));
            let dir = located.dir.canonicalize().unwrap_or_else(|_| located.dir.clone());
            name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or(name);
            parts.put("directory.txt", listing(&located.dir));
            process(&mut parts, &located.dir);
        }
        Some(Err(error)) => parts.put("cell.toml", Err(error.to_string())),
        None => parts.put("cell.toml", Err("the cell is on another host".to_owned())),
    }
    asked(&mut parts, Client::new(address).map_err(|error| error.to_string()));
    let again = backup(options.cell.as_deref());
    parts.put("backup.cli", again.map(String::into_bytes).map_err(|error| error.to_string()));
    if located.is_some() {
        host(&mut parts);
        let options = DoctorOptions {
            cell: located.as_ref().and_then(|l| l.as_ref().ok()).map(|located| located.path.clone()),
            devices: Vec::new(),
            postgres: Vec::new(),
            sync_time: Duration::ZERO,
            l2arc: None,
        };
        let findings = doctor(&options).map(|findings| json(&findings).into_bytes());
        parts.put("host/doctor.json", findings.map_err(|error| error.to_string()));
        parts.put("log.txt", journal(&name));
    }
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    write(options, &name, parts, &secrets)
}

/// What the cell answers.
fn asked(parts: &mut Parts, client: Result<Client, String>) {
    let session = client.map(|client| Session::new(client, true, Form::Json));
    for word in LISTED {
        let listed = session.as_ref().map_err(Clone::clone).and_then(|session| {
            let outcomes = session.ask(&format!("LIST {word} ATTRIBUTES ALL")).map_err(|error| error.to_string())?;
            match outcomes.iter().find_map(|outcome| outcome.error.clone()) {
                Some(error) => Err(error.trim_end().to_owned()),
                None => Ok(outcomes.into_iter().map(|outcome| outcome.output).collect::<String>().into_bytes()),
            }
        });
        let is_down = listed.is_err() && session.is_err();
        parts.put(format!("cell/{}.json", word.to_lowercase()), listed);
        if is_down {
            return;
        }
    }
}

/// Names, sizes and modes of the files of a cell's directory.
fn listing(dir: &Path) -> Result<Vec<u8>, String> {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).map_err(|error| error.to_string())?;
    let mut lines: Vec<String> = Vec::new();
    for entry in entries.flatten() {
        let Ok(about) = entry.metadata() else { continue };
        let (mode, uid, blocks) = (about.mode(), about.uid(), about.blocks());
        let name = entry.file_name().to_string_lossy().into_owned();
        lines.push(format!("{mode:o} uid {uid} {} bytes, {} allocated  {name}\n", about.len(), blocks * 512));
    }
    lines.sort_unstable();
    Ok(lines.concat().into_bytes())
}

fn beginning_of(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(PART_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn host(parts: &mut Parts) {
    for path in HOST_FILES {
        parts.put(format!("host{path}"), beginning_of(Path::new(path)));
    }
}

/// The process that serves a cell, and what its threads do.
fn process(parts: &mut Parts, dir: &Path) {
    let served = crate::lock::holder(dir);
    let Some(process) = served else {
        return parts.put("process/", Err("no process serves the cell".to_owned()));
    };
    let of = PathBuf::from(format!("/proc/{process}"));
    for name in PROCESS_FILES {
        parts.put(format!("process/{name}"), beginning_of(&of.join(name)));
    }
    let threads = std::fs::read_dir(of.join("task")).map_err(|error| error.to_string()).map(|tasks| {
        let mut text = String::new();
        for task in tasks.flatten() {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let _ = writeln!(text, "{} waits in {:?}\n{}", read("comm").trim(), read("wchan"), read("stat").trim());
        }
        text.into_bytes()
    });
    parts.put("process/threads", threads);
}

/// The end of what systemd has kept of the cell's log.
fn journal(name: &str) -> Result<Vec<u8>, String> {
    let unit = format!("flashcell@{name}");
    let mut command = Command::new("journalctl");
    command.args(["--no-pager", "--output=short-iso-precise", "-n", JOURNAL_LINES, "-u", &unit]);
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("journalctl: {error}"))?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).trim().to_owned());
    }
    let start = done.stdout.len().saturating_sub(PART_BYTES_MAX as usize);
    Ok(done.stdout[start..].to_vec())
}

/// A configuration without the values that may be secrets, which are added to `secrets`: all that is said of where alerts go.
fn without_secrets(text: &str, secrets: &mut Vec<String>) -> Result<String, String> {
    let mut config: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    if let Some(alerts) = config.get_mut("alerts") {
        remove(alerts, secrets);
    }
    toml::to_string(&config).map_err(|error| error.to_string())
}

/// Take the text out of a value, however deep.
fn remove(value: &mut toml::Value, secrets: &mut Vec<String>) {
    match value {
        toml::Value::String(text) => secrets.push(std::mem::replace(text, REMOVED.to_owned())),
        toml::Value::Array(values) => values.iter_mut().for_each(|value| remove(value, secrets)),
        toml::Value::Table(table) => table.iter_mut().for_each(|(_, value)| remove(value, secrets)),
        _ => {}
    }
}

fn cleaned(bytes: Vec<u8>, secrets: &[String]) -> Vec<u8> {
    let found = secrets.iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    for secret in found {
        text = text.replace(secret.as_str(), REMOVED);
    }
    text.into_bytes()
}

fn write(options: &SupportOptions, name: &str, mut parts: Parts, secrets: &[String]) -> Result<Bundle, SupportError> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let stem = format!("flashcell-support-{name}-{seconds}");
    let path = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{stem}.tar.gz")));
    let mut readme = format!(
        "Flashcell {}, cell {name}, {seconds} s after 1970-01-01 UTC.\n\nconfiguration, attributes, metrics and alerts of the cell, its process, its host, its log; \
         no data, no keys, no certificates, no tokens, no audit log, and nothing of where alerts go.\nNames of grid disks, databases, users \
         of this host and hosts are in it: look through it before you hand it on.\n",
        crate::VERSION
    );
    if !parts.missing.is_empty() {
        let lines: Vec<String> = parts.missing.iter().map(|(what, why)| format!("{what}: {why}\n")).collect();
        parts.files.push(("missing.txt".to_owned(), lines.concat().into_bytes()));
        readme.push_str("\nmissing.txt tells what could not be had, and why.\n");
    }
    parts.files.insert(0, ("README".to_owned(), readme.into_bytes()));
    let failed = |source| SupportError::Write { path: path.clone(), source };
    // For its owner alone; never through a link, never over what is there.
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let mut archive = tar::Builder::new(GzEncoder::new(made, Compression::default()));
    let mut files = Vec::new();
    for (file, bytes) in parts.files {
        let bytes = cleaned(bytes, secrets);
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        archive.append_data(&mut header, format!("{stem}/{file}"), bytes.as_slice()).map_err(failed)?;
        files.push(file);
    }
    let mut made = archive.into_inner().and_then(GzEncoder::finish).map_err(failed)?;
    made.flush().and_then(|()| made.sync_all()).map_err(failed)?;
    let bytes = made.metadata().map_err(failed)?.len();
    Ok(Bundle { path, bytes, files, missing: parts.missing })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_in_no_part() {
        let text = "threads = 2\n[[alerts.webhook]]\nurl = \"https://alerts.example/T0KEN-of-webhook\"\ntimeout_s = 10\n\
                    [[alerts.command]]\nargv = [\"/usr/local/bin/page\", \"--key=s3cr3t-key\"]\n";
        let mut secrets = Vec::new();
        let safe = without_secrets(text, &mut secrets).unwrap();
        assert!(!safe.contains("T0KEN") && !safe.contains("s3cr3t"), "{safe}");
        assert!(safe.contains("threads = 2") && safe.contains("timeout_s = 10"), "{safe}");
        let log = b"WARN https://alerts.example/T0KEN-of-webhook: refused; page --key=s3cr3t-key".to_vec();
        let log = String::from_utf8(cleaned(log, &secrets)).unwrap();
        assert_eq!(log, "WARN (removed): refused; page (removed)");
        assert!(without_secrets("threads = ", &mut secrets).is_err(), "what cannot be read is left out");
    }
}
