//! What a cell is told to trust, and how its directory comes to say so: on this host, and by `flashcell trust --install` on another one,
//! which is told over ssh.
//!
//! Runs as root in directories of other users, so everything goes through [`Dir`]. Never writes a list that is shorter than the one it
//! could not read.

use super::{TrustError, fail, usage};
use crate::admin::{LIST_BYTES_MAX, Revoked};
use crate::config::{Config, FILE_NAME};
use crate::dir::{self, Dir};
use crate::tls;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;

/// Bytes of an order as text: three certificates and keys, with room for chains.
pub(super) const ORDER_BYTES_MAX: u64 = 1 << 20;

/// What a cell is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Order {
    /// Use these, as PEM.
    Certificates { authority: String, certificate: String, key: String },
    /// Take the token of this line, and no other of that name.
    Token { name: String, line: String },
    /// Take certificates and tokens of this name no more.
    Revoke { name: String },
}

impl Order {
    /// Carry it out in the cell of a directory; what has been done.
    pub(super) fn carry_out(&self, cell: &Path) -> Result<&'static str, TrustError> {
        let trust = Trusting::open(cell, matches!(self, Order::Certificates { .. }))?;
        match self {
            Order::Certificates { authority, certificate, key } => {
                let files =
                    [(tls::CA_CERTIFICATE, authority), (tls::CELL_KEY, key), (tls::CELL_CERTIFICATE, certificate)];
                files.into_iter().try_for_each(|(name, text)| trust.write(name, text))?;
                Ok("certificate installed")
            }
            Order::Token { name, line } => {
                trust.change_tokens(name, Some(line))?;
                Ok("token installed")
            }
            Order::Revoke { name } => {
                trust.revoke(name)?;
                trust.change_tokens(name, None)?;
                Ok("revoked")
            }
        }
    }
}

/// The directory of a cell's certificates, and whose everything in it is to be.
struct Trusting {
    dir: Dir,
    owner: dir::Owner,
}

impl Trusting {
    fn open(cell: &Path, makes: bool) -> Result<Trusting, TrustError> {
        let none = || usage(format!("{} is not the directory of a cell", cell.display()), "flashcell init makes one");
        if cell.is_dir() && !cell.join(FILE_NAME).exists() {
            return Err(none());
        }
        let located = Config::load(cell)?;
        let home = Dir::open(&located.dir).map_err(fail(cell))?;
        // The owner of the cell owns its certificates.
        let toml = located.path.file_name().unwrap_or(OsStr::new(FILE_NAME));
        let owner = home.owner_of(toml).map_err(fail(cell))?.ok_or_else(none)?;
        let path = located.trust_dir();
        let (parent, name) = Dir::of(&path).map_err(fail(&path))?;
        let theirs = |dir: &Dir| {
            let has = dir.owner().map_err(fail(dir.path()))?;
            // cell.toml names the directory, and is its owner's to write.
            if has.uid() == owner.uid() { Ok(()) } else { Err(foreign(dir.path(), owner)) }
        };
        let dir = if makes && !parent.has(name).map_err(fail(&path))? {
            if !parent.is(&home).map_err(fail(&path))? {
                theirs(&parent)?;
            }
            parent.make(name, owner).map_err(fail(&path))?
        } else {
            parent.sub(name).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => usage("no certificates here yet", "`flashcell trust DIR` makes them"),
                _ => fail(&path)(error),
            })?
        };
        theirs(&dir)?;
        Ok(Trusting { dir, owner })
    }

    fn write(&self, name: &str, text: &str) -> Result<(), TrustError> {
        let written = self.dir.write(OsStr::new(name), dir::PRIVATE, Some(self.owner), text.as_bytes());
        written.map_err(|error| fail(&self.dir.path().join(name))(error))
    }

    /// A list as it is now; none where there is none. A list that cannot be read whole is not written anew.
    fn list(&self, name: &str) -> Result<Option<String>, TrustError> {
        let unread = |reason: String| TrustError::List { path: self.dir.path().join(name), reason };
        let bytes = self.dir.read(name, LIST_BYTES_MAX).map_err(|error| unread(error.to_string()))?;
        bytes.map(|bytes| String::from_utf8(bytes).map_err(|_| unread("it is no text".to_owned()))).transpose()
    }

    fn write_list(&self, name: &str, lines: impl Iterator<Item = String>) -> Result<(), TrustError> {
        let text: String = lines.map(|line| line + "\n").collect();
        if text.len() as u64 > LIST_BYTES_MAX {
            let reason = format!("it would have more than {LIST_BYTES_MAX} bytes");
            return Err(TrustError::List { path: self.dir.path().join(name), reason });
        }
        self.write(name, &text)
    }

    fn revoke(&self, name: &str) -> Result<(), TrustError> {
        let before = self.list(tls::REVOKED)?.unwrap_or_default();
        let unread = |reason: String| TrustError::List { path: self.dir.path().join(tls::REVOKED), reason };
        Revoked::of_bytes(before.as_bytes()).map_err(|error| unread(error.to_string()))?;
        let others = before.lines().filter(|line| line.trim() != name).map(str::to_owned);
        self.write_list(tls::REVOKED, others.chain([name.to_owned()]))
    }

    /// Take the tokens of a name away, and another one in. Without a list there is nothing to take away.
    fn change_tokens(&self, name: &str, more: Option<&String>) -> Result<(), TrustError> {
        let before = self.list(tls::TOKENS)?;
        if before.is_none() && more.is_none() {
            return Ok(());
        }
        let before = before.unwrap_or_default();
        let others = before.lines().filter(|line| line.split_whitespace().nth(1) != Some(name)).map(str::to_owned);
        self.write_list(tls::TOKENS, others.chain(more.cloned()))
    }
}

fn foreign(path: &Path, owner: dir::Owner) -> TrustError {
    let what = format!("{} is not of the user that cell.toml is of, uid {}", path.display(), owner.uid());
    usage(what, "chown the directory, or name another one as admin.trust in cell.toml")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: lists keep what they have. Method: lists that cannot be read or make no sense.
    use super::*;

    fn cell() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cell.toml"), "").unwrap();
        std::fs::create_dir(dir.path().join("trust")).unwrap();
        let trust = dir.path().join("trust");
        (dir, trust)
    }

    #[test]
    fn a_list_is_never_written_shorter_than_it_was() {
        let (dir, trust) = cell();
        let revoke = |name: &str| Order::Revoke { name: name.to_owned() }.carry_out(dir.path());
        let revoked = trust.join("revoked");
        revoke("ann").unwrap();
        revoke("bob").unwrap();
        revoke("ann").unwrap();
        assert_eq!(std::fs::read_to_string(&revoked).unwrap(), "bob\nann\n");
        let long = "x\n".repeat(LIST_BYTES_MAX as usize / 2 + 1);
        for bad in [&b"ann\n\xff\n"[..], b"two words\n", b"ann\0bob", long.as_bytes()] {
            std::fs::write(&revoked, bad).unwrap();
            let error = revoke("carl").unwrap_err().to_string();
            assert!(error.contains("revoked") && error.contains("hint:"), "{error}");
            assert!(std::fs::read(&revoked).unwrap() == bad, "it is as it was");
        }
        std::fs::remove_file(&revoked).unwrap();
        std::fs::create_dir(&revoked).unwrap();
        assert!(revoke("carl").is_err());
        // Tokens too, and a name that is there is replaced.
        let tokens = trust.join("tokens");
        let token = |name: &str, line: &str| {
            Order::Token { name: name.to_owned(), line: line.to_owned() }.carry_out(dir.path())
        };
        token("p", "monitor p 1").unwrap();
        token("q", "monitor q 2").unwrap();
        token("p", "monitor p 3").unwrap();
        assert_eq!(std::fs::read_to_string(&tokens).unwrap(), "monitor q 2\nmonitor p 3\n");
        std::fs::write(&tokens, b"monitor \xff 1\n").unwrap();
        assert!(token("p", "monitor p 4").is_err());
        assert_eq!(std::fs::read(&tokens).unwrap(), b"monitor \xff 1\n");
    }

    #[test]
    fn an_order_is_text() {
        let order = Order::Revoke { name: "ann".to_owned() };
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(text, r#"{"revoke":{"name":"ann"}}"#);
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
    }
}
