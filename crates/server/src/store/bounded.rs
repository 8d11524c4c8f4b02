//! A file as the store library wants it, that never grows beyond a bound.

use redb::StorageBackend;
use redb::backends::FileBackend;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file.
#[derive(Debug)]
pub(super) struct Bounded {
    file: FileBackend,
    size_bytes_max: u64,
}

impl Bounded {
    /// Open it, or make it, for its owner alone.
    pub(super) fn open(path: &Path, size_bytes_max: u64) -> Result<Bounded, redb::DatabaseError> {
        let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Bounded { file: FileBackend::new(file)?, size_bytes_max })
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
        self.file.set_len(len)
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.file.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }
}
