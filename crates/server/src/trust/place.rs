//! Where a cell is, and files that only their owner reads.

use super::{TrustError, usage};
use crate::config::FILE_NAME;
use crate::whole_file;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
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

fn fail(path: &Path) -> impl Fn(std::io::Error) -> TrustError + '_ {
    |error| TrustError::File { path: path.to_owned(), reason: error.to_string() }
}

/// A directory that only its owner enters; one that is there keeps its mode.
pub(super) fn make_dir(dir: &Path) -> Result<(), TrustError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail(dir))
}

/// Write a file of mode 600, whole or not at all.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), TrustError> {
    whole_file::write(path, whole_file::PRIVATE, bytes).map_err(fail(path))
}

/// Give a file, or a directory with its files, to whoever owns another.
pub(super) fn owned_like(model: &Path, path: &Path) -> Result<(), TrustError> {
    let (uid, gid) = std::fs::metadata(model).map(|data| (data.uid(), data.gid())).map_err(fail(model))?;
    let give = |path: &Path| {
        let now = std::fs::metadata(path)?;
        if (now.uid(), now.gid()) == (uid, gid) {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(uid), Some(gid))
    };
    give(path).map_err(fail(path))?;
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(fail(path))? {
            let file = entry.map_err(fail(path))?.path();
            give(&file).map_err(fail(&file))?;
        }
    }
    Ok(())
}

/// Another name for a file beside it; one that is there already stays.
pub(super) fn link(path: &Path, file: &str) -> Result<(), TrustError> {
    match std::os::unix::fs::symlink(file, path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(fail(path)(error)),
        _ => Ok(()),
    }
}

/// Files on their way to hosts; gone with it.
pub(super) struct Staging {
    dir: PathBuf,
}

impl Staging {
    pub(super) fn new(dir: &Path) -> Result<Staging, TrustError> {
        let dir = dir.join(format!("sending-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&dir).map_err(fail(&dir))?;
        Ok(Staging { dir })
    }

    pub(super) fn file(&self, host: &str, name: &str, text: &str) -> Result<PathBuf, TrustError> {
        let dir = self.dir.join(host);
        make_dir(&dir)?;
        let path = dir.join(name);
        write(&path, text.as_bytes())?;
        Ok(path)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            super::talk(&format!("{} holds keys of cells: {error}", self.dir.display()));
        }
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
        let path = dir.path().join("k");
        std::fs::write(&path, "old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let staging = Staging::new(dir.path()).unwrap();
        let sent = staging.file("c1", "cell.key", "x").unwrap();
        assert!(sent.exists());
        drop(staging);
        assert!(!sent.exists() && std::fs::read_dir(dir.path()).unwrap().count() == 1);
    }
}
