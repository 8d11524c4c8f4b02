//! The files below some paths, and where they lie on the device of their file system.
//!
//! Never follows a link it finds, never leaves the device it began on.

use super::FilesError;
use fiemap::{Fiemap, FiemapExtentFlags};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device that all paths are on.
pub(super) fn device_of(paths: &[PathBuf]) -> Result<u64, FilesError> {
    let mut first: Option<(&Path, u64)> = None;
    for path in paths {
        let device = std::fs::metadata(path).map_err(|source| FilesError::Path { path: path.clone(), source })?.dev();
        match first {
            Some((first, known)) if known != device => {
                return Err(FilesError::TwoFileSystems { first: first.to_owned(), other: path.clone() });
            }
            _ => first = first.or(Some((path, device))),
        }
    }
    Ok(first.map_or(0, |(_, device)| device))
}

/// Regular files with their lengths, each once however many names it has.
pub(super) fn walk(
    paths: &[PathBuf],
    device: u64,
    skipped: &mut Vec<(PathBuf, io::Error)>,
) -> Result<Vec<(PathBuf, u64)>, FilesError> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut todo = Vec::new();
    let mut take = |path: PathBuf, metadata: &Metadata, todo: &mut Vec<PathBuf>| {
        if metadata.dev() != device || !seen.insert(metadata.ino()) {
            return;
        }
        if metadata.is_dir() {
            todo.push(path);
        } else if metadata.is_file() {
            found.push((path, metadata.len()));
        }
    };
    for path in paths {
        // What was named may be a link; what is found may not.
        let metadata = std::fs::metadata(path).map_err(|source| FilesError::Path { path: path.clone(), source })?;
        take(path.clone(), &metadata, &mut todo);
    }
    while let Some(dir) = todo.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(source) => {
                skipped.push((dir, source));
                continue;
            }
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok((path, metadata)) => take(path, &metadata, &mut todo),
                Err(source) => skipped.push((dir.clone(), source)),
            }
        }
    }
    Ok(found)
}

/// A piece of a file that has a place on the device of its file system, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Where in the file.
    pub(super) from: u64,
    /// Where on the device.
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Where a file lies: its pieces, in its order.
pub(super) fn extents_of(file: &File) -> io::Result<Vec<Extent>> {
    let nowhere = FiemapExtentFlags::UNKNOWN | FiemapExtentFlags::DELALLOC | FiemapExtentFlags::DATA_INLINE;
    let mut extents: Vec<Extent> = Vec::new();
    for extent in Fiemap::new(file) {
        let extent = extent?;
        if extent.fe_flags.intersects(nowhere) || extent.fe_length == 0 {
            continue;
        }
        let (from, at, len) = (extent.fe_logical, extent.fe_physical, extent.fe_length);
        match extents.last_mut() {
            Some(last) if last.at + last.len == at && last.from + last.len == from => last.len += len,
            _ => extents.push(Extent { from, at, len }),
        }
    }
    Ok(extents)
}

/// The same by its path: offset on the device and length of each.
pub(super) fn extents(path: &Path) -> io::Result<Vec<(u64, u64)>> {
    Ok(extents_of(&File::open(path)?)?.into_iter().map(|extent| (extent.at, extent.len)).collect())
}

pub(super) fn is_no_map(error: &io::Error) -> bool {
    // ENOTTY, EOPNOTSUPP.
    matches!(error.raw_os_error(), Some(25 | 95))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_file_with_two_names_is_found_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        std::fs::write(dir.path().join("below/a"), "12345").unwrap();
        std::fs::hard_link(dir.path().join("below/a"), dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("away")).unwrap();
        let device = device_of(&[dir.path().to_owned()]).unwrap();
        let mut skipped = Vec::new();
        let found = walk(&[dir.path().to_owned(), dir.path().join("b")], device, &mut skipped).unwrap();
        assert_eq!(found, [(dir.path().join("b"), 5)]);
        assert!(skipped.is_empty());
        let missing = device_of(&[dir.path().join("none")]).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
