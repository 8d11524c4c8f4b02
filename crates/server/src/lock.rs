//! One server for a cell's directory: a lock file that says who holds it.
//!
//! The lock that protects the data is the one on each device, which the device floor takes and the kernel gives back
//! only after the last request; this one gives the message, and covers a cell whose devices are all missing. It is gone
//! with the process, however that ends; the file stays.

use crate::dir::Dir;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "serve.lock";
/// A process id and a line feed; anything longer was not written by us.
const PID_BYTES_MAX: u64 = 32;

/// Held for as long as it lives.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another server holds it.
    #[error("{dir} is being served{}\nhint: stop that server first (SIGTERM is a clean stop)", .pid.map(|p| format!(" by process {p}")).unwrap_or_default())]
    Held {
        /// The cell's directory.
        dir: PathBuf,
        /// Who.
        pid: Option<u32>,
    },
    /// The lock file cannot be made.
    #[error("{path}: {source}\nhint: the server must be able to write to the cell's directory")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl DirLock {
    /// Take it, or say who has it.
    pub(crate) fn take(dir: &Path) -> Result<DirLock, LockError> {
        let path = dir.join(FILE_NAME);
        let io = |source: std::io::Error| LockError::Io { path: path.clone(), source };
        let mut file = Dir::open(dir).and_then(|dir| dir.change(FILE_NAME)).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.take(PID_BYTES_MAX).read_to_string(&mut text);
                return Err(LockError::Held { dir: dir.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(errno) => return Err(io(errno.into())),
        }
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(DirLock { _file: file })
    }
}

/// The process that serves the cell of a directory; none when there is none, or when that cannot be told.
pub(crate) fn holder(dir: &Path) -> Option<u32> {
    let mut file = File::open(dir.join(FILE_NAME)).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    Read::by_ref(&mut file).take(PID_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::take(dir.path()).unwrap();
        let message = DirLock::take(dir.path()).unwrap_err().to_string();
        assert!(message.contains(&format!("by process {}", std::process::id())), "{message}");
        assert_eq!(holder(dir.path()), Some(std::process::id()));
        drop(first);
        assert_eq!(holder(dir.path()), None);
        DirLock::take(dir.path()).unwrap();
    }
}
