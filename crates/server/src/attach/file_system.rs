//! The file system on an attached device: made where there is nothing and it is asked for, mounted where it is wanted.
//!
//! Never makes one where anything is.

use super::AttachError;
use super::host::{self, Content};
use std::path::Path;
use std::process::Command;

/// A file system that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    fn word(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }
}

/// What is to be mounted.
pub(super) struct Mounting<'a> {
    pub(super) device: &'a Path,
    pub(super) grid_disk: &'a str,
    pub(super) size_bytes: u64,
    pub(super) path: &'a Path,
    pub(super) mkfs: Option<FileSystem>,
    pub(super) options: Option<&'a str>,
    pub(super) read_only: bool,
}

impl Mounting<'_> {
    /// Mount it, unless it is mounted there.
    pub(super) fn carry_out(&self, notes: &mut Vec<String>) -> Result<(), AttachError> {
        let mounts = host::number(self.device).map(|number| host::mounts(&number)).unwrap_or_default();
        if mounts.iter().any(|mount| mount.pid.is_none() && mount.path == self.path) {
            return Ok(());
        }
        if !self.path.is_dir() {
            return Err(AttachError::FileSystem {
                what: format!("{} is not a directory", self.path.display()),
                hint: format!("mkdir -p {}", self.path.display()),
            });
        }
        self.make(notes)?;
        let mut command = Command::new("mount");
        if self.read_only {
            command.arg("-r");
        }
        if let Some(options) = self.options {
            command.args(["-o", options]);
        }
        host::run(command.arg(self.device).arg(self.path))
    }

    fn make(&self, notes: &mut Vec<String>) -> Result<(), AttachError> {
        let content = host::content(self.device, self.size_bytes)?;
        let what = |what: &str| format!("grid disk {} {what}", self.grid_disk);
        match (content, self.mkfs) {
            (Content::Ext4, None | Some(FileSystem::Ext4))
            | (Content::Xfs, None | Some(FileSystem::Xfs))
            | (Content::Other, None) => Ok(()),
            (Content::Empty, None) => Err(AttachError::FileSystem {
                what: what("is empty: there is no file system to mount"),
                hint: "--mkfs ext4 or --mkfs xfs makes one".to_owned(),
            }),
            (Content::Empty, Some(fs)) => {
                let mut command = Command::new(format!("mkfs.{}", fs.word()));
                host::run(command.arg("-q").arg(self.device))?;
                notes.push(format!("made a file system: {}", fs.word()));
                Ok(())
            }
            (_, Some(fs)) => Err(AttachError::FileSystem {
                what: what(&format!("is not empty and has no {}: none is made over it", fs.word())),
                hint: format!(
                    "without --mkfs it is mounted as it is; `wipefs -a {}` gives up what is there",
                    self.device.display()
                ),
            }),
        }
    }
}
