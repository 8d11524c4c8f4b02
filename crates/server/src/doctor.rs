//! `flashcell doctor`: what on a host, its devices and its databases stands in the way of durable and quick storage, each with the command
//! that mends it.
//!
//! Looks at files below a root (sysfs, procfs, configuration of PostgreSQL), so that tests show it hosts that are not there. Changes nothing:
//! the one thing it writes is a file of its own in a directory, for the time of syncs, which it takes away again. Never writes to a block device,
//! blank or not. Never asks a cell that runs.

mod block;
mod databases;
mod host;
mod l2arc;
mod syncs;

use crate::config::{Config, DeviceKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use l2arc::Rating;

/// How much a finding matters; the table shows findings in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Data may be lost, or much time is.
    Warning,
    /// It cannot be told from here.
    Unknown,
    /// Worth knowing.
    Note,
    /// As it should be.
    Good,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Note => "note",
            Verdict::Warning => "WARNING",
            Verdict::Unknown => "unknown",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The device, file or host that the check looked at.
    pub subject: String,
    /// How it is.
    pub verdict: Verdict,
    /// The value that the check found.
    pub found: String,
    /// Why that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command, or the setting, that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    fn good(check: &'static str, subject: &str, found: impl Into<String>) -> Finding {
        Finding {
            check,
            subject: subject.to_owned(),
            verdict: Verdict::Good,
            found: found.into(),
            why: None,
            mend: None,
        }
    }

    fn with(self, verdict: Verdict, why: impl Into<String>) -> Finding {
        Finding { verdict, why: Some(why.into()), ..self }
    }

    fn mended_by(self, mend: impl Into<String>) -> Finding {
        Finding { mend: Some(mend.into()), ..self }
    }
}

/// Where files are looked for: `/`, or a directory that stands for it.
#[derive(Clone, Debug)]
struct Root(PathBuf);

impl Root {
    fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        let below = below.as_ref();
        self.0.join(below.strip_prefix("/").unwrap_or(below))
    }

    /// The text of a file without the white space around it; none when it cannot be read.
    fn text(&self, below: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.path(below)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, below: impl AsRef<Path>) -> Option<u64> {
        self.text(below)?.parse().ok()
    }

    fn exists(&self, below: impl AsRef<Path>) -> bool {
        self.path(below).exists()
    }
}

/// What `doctor` examines.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    /// A cell: its directory or cell.toml. Its devices are examined for what they are to it.
    pub cell: Option<PathBuf>,
    /// Block devices, and files and directories on them; without any, and without a cell, all of the host.
    pub devices: Vec<PathBuf>,
    /// Data directories of PostgreSQL, besides those that Debian's packages made.
    pub postgres: Vec<PathBuf>,
    /// How long syncs are timed in each directory that is named or has images of the cell; zero: not at all.
    pub sync_time: Duration,
    /// A drive that is to be ZFS's second-level cache.
    pub l2arc: Option<Rating>,
}

/// A device to examine.
#[derive(Clone, Debug)]
struct Examined {
    name: String,
    /// Its directory below the root: `sys/block/sda`, `sys/block/sda/sda1`.
    sysfs: PathBuf,
    /// What it is to the cell.
    kind: Option<DeviceKind>,
    /// A device, and not a file on one.
    is_raw: bool,
}

/// Examine this host.
///
/// # Errors
/// The configuration of the cell cannot be read, or a device is none.
pub fn doctor(options: &DoctorOptions) -> Result<Vec<Finding>, DoctorError> {
    let root = Root(PathBuf::from("/"));
    let located = options.cell.as_deref().map(Config::load).transpose()?;
    let mut examined: Vec<Examined> = Vec::new();
    // Directories in which syncs are timed, each with whether its disk turns.
    let mut dirs: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for path in &options.devices {
        let found = block::of_path(&root, path, None).ok_or_else(|| DoctorError::Device(path.clone()))?;
        if path.is_dir() {
            dirs.insert(path.clone(), block::is_rotating(&root, &found));
        }
        examined.push(found);
    }
    for (located, device) in located.iter().flat_map(|located| located.config.device.iter().map(move |d| (located, d)))
    {
        let path = located.dir.join(&device.path);
        // NBD exports have nothing here to look at.
        let Some(found) = block::of_path(&root, &path, Some(device.kind)) else { continue };
        if let Some(dir) = path.parent().filter(|_| path.is_file()) {
            dirs.entry(dir.to_path_buf()).or_insert_with(|| block::is_rotating(&root, &found));
        }
        if examined.iter().all(|other| other.sysfs != found.sysfs || other.kind != found.kind) {
            examined.push(found);
        }
    }
    if located.is_none() && options.devices.is_empty() {
        examined = block::all(&root);
    }
    let lower: Vec<Examined> = examined.iter().flat_map(|device| block::below(&root, device)).collect();
    for device in lower {
        if examined.iter().all(|other| other.name != device.name) {
            examined.push(device);
        }
    }
    let mut findings = host::examine(&root);
    findings.extend(examined.iter().flat_map(|device| block::examine(&root, device)));
    findings.extend(databases::examine(&root, &options.postgres));
    findings.extend(l2arc::examine(&root, options.l2arc));
    findings.extend(located.iter().map(|located| host::free_space(&located.dir)));
    if !options.sync_time.is_zero() {
        findings.extend(dirs.iter().map(|(dir, is_rotating)| syncs::time(dir, options.sync_time, *is_rotating)));
        findings.extend(examined.iter().filter(|device| device.is_raw).map(|device| syncs::untimed(&root, device)));
    }
    Ok(findings)
}

/// Why nothing was examined.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The configuration of the cell.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// Not a block device, nor a file on one.
    #[error("{0} is neither a block device nor a file on one\nhint: `lsblk` lists the block devices of this host")]
    Device(PathBuf),
}

/// The findings as JSON, an array of objects.
#[must_use]
pub fn json(findings: &[Finding]) -> String {
    serde_json::to_string_pretty(findings).map_or_else(|_| "[]\n".to_owned(), |text| text + "\n")
}

/// The findings as text, the worst first, each with why it matters and what mends it.
#[must_use]
pub fn table(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.verdict);
    let width =
        |of: fn(&Finding) -> &str| findings.iter().map(|finding| of(finding).chars().count()).max().unwrap_or(0);
    let (checks, subjects) = (width(|f| f.check), width(|f| &f.subject));
    let mut text = String::new();
    for Finding { check, subject, verdict, found, why, mend } in sorted {
        text.push_str(&format!("{:<8}{check:<checks$}  {subject:<subjects$}  {found}\n", verdict.word()));
        let more = |label: &str, line: &Option<String>| {
            line.iter().flat_map(|line| line.lines()).map(|line| format!("        {label}{line}\n")).collect::<String>()
        };
        text.push_str(&more("", why));
        text.push_str(&more("mend: ", mend));
    }
    text
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
