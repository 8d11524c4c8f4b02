//! Files that are there whole or as they were, whatever happens while they are written.
//!
//! Never for what is written often: each time everything is written and made durable.

use std::fs::{File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// For its owner alone.
pub(crate) const PRIVATE: u32 = 0o600;
/// For everybody, as far as the mask of the process lets them.
pub(crate) const PUBLIC: u32 = 0o666;

/// Write a file of this mode, durably; one that is there is replaced. It is made beside it first, as `{path}.new`.
pub(crate) fn write(path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = File::options().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
    if mode == PRIVATE {
        // One that was left there may have another.
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_is_replaced_and_its_mode_is_what_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(dir.path().join("file.new"), "left by one that was cut off").unwrap();
        write(&path, PRIVATE, b"one").unwrap();
        write(&path, PRIVATE, b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(write(&dir.path().join("none/file"), PUBLIC, b"").is_err());
    }
}
