//! The list of names whose certificates count no more: one on a line; empty lines and those that begin with `#` do not count.
//!
//! A list that is there and cannot be read whole is an error and never an empty one: it may name anybody. Never writes it; `trust` does.

use super::access::is_name;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Files of users, groups, tokens and revoked names are not longer: a hundred thousand names.
pub(crate) const LIST_BYTES_MAX: u64 = 8 << 20;

/// Why the list is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ListError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It has more than [`LIST_BYTES_MAX`] bytes.
    #[error("it has more than {LIST_BYTES_MAX} bytes")]
    TooLong,
    /// A line is no name.
    #[error("line {0} is not a name")]
    Malformed(usize),
}

/// The names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revoked(BTreeSet<String>);

impl Revoked {
    /// Those of a file; none where there is no file: nobody has been revoked.
    pub(crate) fn load(path: &Path) -> Result<Revoked, ListError> {
        let unreadable = |error: std::io::Error| ListError::Unreadable(error.to_string());
        // A pipe is not waited for.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match std::fs::File::options().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Revoked::default()),
            file => file.map_err(unreadable)?,
        };
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(ListError::Unreadable("it is no regular file".to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        Revoked::of_bytes(&bytes)
    }

    /// Those of the content of a file.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Revoked, ListError> {
        if bytes.len() as u64 > LIST_BYTES_MAX {
            return Err(ListError::TooLong);
        }
        let mut names = BTreeSet::new();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let name = std::str::from_utf8(line).ok().filter(|name| is_name(name));
            names.insert(name.ok_or(ListError::Malformed(index + 1))?.to_owned());
        }
        Ok(Revoked(names))
    }

    /// Whether a name is among them.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_known_whole_or_not_at_all() {
        let list = Revoked::of_bytes(b"ann\n\n # why\n# bob\n  carl \r\nd").unwrap();
        assert!(["ann", "carl", "d"].iter().all(|name| list.has(name)) && !list.has("bob") && !list.has(""));
        for (bad, line) in [(&b"ann\nb c\n"[..], 2), (b"\xff", 1), (b"ann\0\n", 1), (b"x\ny\nann\xc3", 3)] {
            assert_eq!(Revoked::of_bytes(bad), Err(ListError::Malformed(line)));
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("revoked");
        assert_eq!(Revoked::load(&path), Ok(Revoked::default()), "there is none");
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(Revoked::load(&path), Err(ListError::Unreadable(_))), "a directory");
        std::fs::remove_dir(&path).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(matches!(Revoked::load(&path), Err(ListError::Unreadable(_))), "a pipe nobody writes to");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("revoked", &path).unwrap();
        assert!(matches!(Revoked::load(&path), Err(ListError::Unreadable(_))), "a link to itself");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "x\n".repeat(LIST_BYTES_MAX as usize / 2 + 1)).unwrap();
        assert_eq!(Revoked::load(&path), Err(ListError::TooLong));
        std::fs::write(&path, "ann\n").unwrap();
        assert!(Revoked::load(&path).unwrap().has("ann"));
    }
}
