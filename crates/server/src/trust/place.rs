//! Where a cell is, and files that only their owner reads.

use super::{TrustError, fail, usage};
use crate::config::FILE_NAME;
use crate::dir::{self, Dir};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A cell that is to be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its directory on this host.
    Here(PathBuf),
    /// Its directory elsewhere.
    There {
        /// `[USER@]HOST`.
        host: String,
        /// Absolute.
        dir: String,
    },
}

impl Place {
    /// `DIR`, `[USER@]HOST:DIR`, or `[USER@]HOST` with a directory for all of them.
    pub(super) fn parse(text: &str, at: Option<&str>) -> Result<Place, TrustError> {
        let hint = "a cell is DIR, [USER@]HOST:/DIR, or HOST with --at /DIR";
        let path = Path::new(text);
        if path.join(FILE_NAME).exists() || text.starts_with(['/', '.']) {
            return Ok(Place::Here(path.to_owned()));
        }
        let (host, dir) = match text.split_once(":/") {
            Some((host, dir)) => (host, format!("/{dir}")),
            None => match at {
                Some(at) => (text, at.to_owned()),
                None => return Err(usage(format!("{text:?}: where is its directory?"), hint)),
            },
        };
        if !dir.starts_with('/') || dir.chars().any(char::is_control) || host.is_empty() || host.contains('/') {
            return Err(usage(format!("{text:?} is no cell"), hint));
        }
        Ok(Place::There { host: host.to_owned(), dir })
    }

    /// What it is reached by.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Place::Here(_) => {
                let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
                let uname = rustix::system::uname();
                names.extend(uname.nodename().to_str().ok().map(str::to_owned).filter(|name| !name.is_empty()));
                names
            }
            Place::There { host, .. } => {
                vec![host.split_once('@').map_or(host.as_str(), |(_, host)| host).to_owned()]
            }
        }
    }
}

/// Where a user's own certificates and keys are kept: every file in it is of mode 600.
pub(super) struct Keep(Dir);

impl Keep {
    /// A directory that only its owner enters, made where there is none; one that is there keeps its mode.
    pub(super) fn open_or_make(path: &Path) -> Result<Keep, TrustError> {
        Dir::open_or_make(path).map(Keep).map_err(fail(path))
    }

    /// Write a file, whole or not at all.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), TrustError> {
        let written = self.0.write(OsStr::new(name), dir::PRIVATE, None, text.as_bytes());
        written.map_err(|error| fail(&self.0.path().join(name))(error))
    }

    /// Another name for a file; one that is there already stays.
    pub(super) fn link(&self, name: &str, file: &str) -> Result<(), TrustError> {
        self.0.link(name, file).map_err(|error| fail(&self.0.path().join(name))(error))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn places() {
        let there = |host: &str, dir: &str| Place::There { host: host.to_owned(), dir: dir.to_owned() };
        let parse = |text, at| Place::parse(text, at).ok();
        assert_eq!(parse("/srv/cell", None), Some(Place::Here("/srv/cell".into())));
        assert_eq!(parse("./cell", None), Some(Place::Here("./cell".into())));
        assert_eq!(parse("root@exa1cel01:/srv/cell", None), Some(there("root@exa1cel01", "/srv/cell")));
        assert_eq!(parse("exa1cel01", Some("/srv/cell")), Some(there("exa1cel01", "/srv/cell")));
        for bad in ["exa1cel01", "exa1cel01:srv", "a/b:/c", ":/c", "a:/b\nc"] {
            assert_eq!(parse(bad, None), None, "{bad}");
        }
        assert_eq!(parse("exa1cel01", Some("srv")), None);
        assert_eq!(there("root@c1", "/x").names(), ["c1"]);
    }

    #[test]
    fn files_are_their_owners() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own/k");
        let keep = Keep::open_or_make(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "old").unwrap();
        keep.write("k", "new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for _ in 0..2 {
            keep.link("l", "k").unwrap();
        }
        assert_eq!(std::fs::read(path.with_file_name("l")).unwrap(), b"new");
    }
}
