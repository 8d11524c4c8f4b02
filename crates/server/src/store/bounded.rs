//! A file as the store library wants it, that never grows beyond a bound.

use crate::dir::Dir;
use redb::StorageBackend;
use redb::backends::FileBackend;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file.
#[derive(Debug)]
pub(super) struct Bounded {
    file: FileBackend,
    size_bytes_max: u64,
    refused: Arc<AtomicBool>,
}

/// The file system has no room, or takes nothing: that says nothing about what is in the file.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem | PermissionDenied)
}

impl Bounded {
    /// Open it, or make it, for its owner alone.
    /// `refused` tells afterwards whether the file system would not take something.
    pub(super) fn open(
        path: &Path,
        size_bytes_max: u64,
        refused: Arc<AtomicBool>,
    ) -> Result<Bounded, redb::DatabaseError> {
        let (dir, name) = Dir::of(path)?;
        let file = dir.change(name)?;
        Ok(Bounded { file: FileBackend::new(file)?, size_bytes_max, refused })
    }

    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(is_refusal) {
            self.refused.store(true, Ordering::Release);
        }
        result
    }
}

impl StorageBackend for Bounded {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        // A damaged file may ask for anything; what lies beyond it must not be made room for.
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.file.len().unwrap_or(0)) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        self.file.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // What a larger bound has made may stay; it shrinks as readings go.
        if len > self.size_bytes_max && len > self.file.len()? {
            let text = format!("{len} bytes are more than the {} it may have", self.size_bytes_max);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.noted(self.file.set_len(len))
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.noted(self.file.sync_data(eventual))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.noted(self.file.write(offset, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_about_the_file() {
        let is = |kind: io::ErrorKind| is_refusal(&io::Error::from(kind));
        assert!(is(io::ErrorKind::StorageFull) && is(io::ErrorKind::ReadOnlyFilesystem));
        assert!(
            !is(io::ErrorKind::UnexpectedEof) && !is(io::ErrorKind::InvalidData) && !is(io::ErrorKind::FileTooLarge)
        );
    }
}
