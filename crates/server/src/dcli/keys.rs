//! Keys for logging in without a password: this side's, and authorized_keys of the cells.
//!
//! Safe where the field's script was not: ed25519, directory 700, file 600, each key once, other keys untouched. Never replaces a
//! key that exists, never sends a private one.

use super::DcliError;
use super::remote::Remote;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Adds the line `$2` to authorized_keys unless a key `$1` is there.
pub(super) const PUSH: &str = "umask 077; d=$HOME/.ssh; f=$d/authorized_keys; \
     mkdir -p \"$d\" && chmod 700 \"$d\" && touch \"$f\" && chmod 600 \"$f\" || exit 1; \
     if grep -v '^[[:space:]]*#' \"$f\" | grep -qF -e \"$1\"; then echo 'ssh key already exists'; exit 0; fi; \
     if [ -n \"$(tail -c 1 \"$f\")\" ]; then echo >> \"$f\"; fi; \
     printf '%s\\n' \"$2\" >> \"$f\" && echo 'ssh key added'";

/// Takes every line with the key `$1` out of authorized_keys, by a new file beside it.
pub(super) const DROP: &str = "umask 077; f=$HOME/.ssh/authorized_keys; \
     if ! grep -qsF -e \"$1\" \"$f\"; then echo 'ssh key does not exist'; exit 0; fi; \
     grep -vF -e \"$1\" \"$f\" > \"$f.dcli.$$\"; [ $? -le 1 ] && mv \"$f.dcli.$$\" \"$f\" && echo 'ssh key dropped'";

/// The public key that is pushed or dropped.
pub(super) struct LocalKey {
    /// Its kind and base64: what makes it this key, whatever its comment.
    pub(super) blob: String,
    /// The whole line.
    pub(super) line: String,
}

impl LocalKey {
    /// The key `-s "-i FILE"` names, else `~/.ssh/id_ed25519`; made when it is to be pushed and there is none.
    pub(super) fn find(remote: &Remote, make: bool) -> Result<LocalKey, DcliError> {
        let private = match remote.identity() {
            Some(path) => PathBuf::from(path),
            None => {
                let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
                let home = home.ok_or_else(|| DcliError::Key("HOME is not set: where is the key?".to_owned()))?;
                Path::new(&home).join(".ssh/id_ed25519")
            }
        };
        let public = suffixed(&private, ".pub");
        if !public.exists() {
            if private.exists() {
                let shown = keygen(&["-y", "-f"], &private)?;
                return LocalKey::parse(&shown, &private);
            }
            if !make {
                return Err(DcliError::Key(format!("{}: no such key, nothing to drop", public.display())));
            }
            generate(&private)?;
        }
        let text = std::fs::read_to_string(&public)
            .map_err(|error| DcliError::Key(format!("{}: {error}", public.display())))?;
        LocalKey::parse(&text, &public)
    }

    fn parse(text: &str, path: &Path) -> Result<LocalKey, DcliError> {
        let fail = |what: String| Err(DcliError::Key(format!("{}: {what}", path.display())));
        let line = text.trim();
        let mut words = line.split_whitespace();
        let (Some(kind), Some(key)) = (words.next(), words.next()) else { return fail("not a public key".to_owned()) };
        let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
        if line.lines().count() != 1 || !key.starts_with("AAAA") || !key.chars().all(base64) {
            return fail("not a public key".to_owned());
        }
        if kind == "ssh-dss" {
            return fail("DSA keys are not safe\nhint: ssh-keygen -t ed25519".to_owned());
        }
        Ok(LocalKey { blob: format!("{kind} {key}"), line: line.to_owned() })
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn generate(private: &Path) -> Result<(), DcliError> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = private.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| DcliError::Key(format!("{}: {error}", dir.display())))?;
    // Talk; nobody is left to tell when stderr is gone.
    let _ = writeln!(std::io::stderr(), "making the key {} (ed25519, no passphrase)", private.display());
    keygen(&["-q", "-t", "ed25519", "-N", "", "-f"], private).map(|_| ())
}

fn keygen(args: &[&str], path: &Path) -> Result<String, DcliError> {
    let fail = |what: String| DcliError::Key(format!("ssh-keygen for {}: {what}", path.display()));
    let done = Command::new("ssh-keygen").args(args).arg(path).stdin(std::process::Stdio::null()).output();
    let done = done.map_err(|error| fail(format!("{error}\nhint: install openssh-client")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(fail(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB root@db1";

    fn sh(text: &str, home: &Path) -> String {
        let key = LocalKey::parse(KEY, Path::new("k")).unwrap();
        let done = Command::new("sh").args(["-c", text, "dcli", &key.blob, &key.line]).env("HOME", home).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    #[test]
    fn keys_come_once_and_go() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".ssh/authorized_keys");
        assert_eq!(sh(PUSH, home.path()), "ssh key added\n");
        assert_eq!(sh(PUSH, home.path()), "ssh key already exists\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{KEY}\n"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        // Beside another key without a final newline, a comment of this key, and too wide a mode.
        std::fs::write(&file, format!("# {KEY}\nssh-ed25519 AAAAother x")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(sh(PUSH, home.path()), "ssh key added\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("# {KEY}\nssh-ed25519 AAAAother x\n{KEY}\n"));
        assert_eq!(mode(&file), 0o600);
        assert_eq!(sh(DROP, home.path()), "ssh key dropped\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "ssh-ed25519 AAAAother x\n");
        assert_eq!(mode(&file), 0o600);
        assert_eq!(sh(DROP, home.path()), "ssh key does not exist\n");
        // The last key of a file.
        std::fs::write(&file, format!("{KEY}\n")).unwrap();
        assert_eq!(sh(DROP, home.path()), "ssh key dropped\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let parse = |text: &str| LocalKey::parse(text, Path::new("k.pub")).map(|key| key.blob);
        assert_eq!(parse(KEY).unwrap(), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB");
        for bad in ["", "ssh-ed25519", "ssh-ed25519 x'y", "-----BEGIN OPENSSH PRIVATE KEY-----", "a AAAA\nb AAAA"] {
            assert!(parse(bad).is_err_and(|error| error.to_string().contains("not a public key")), "{bad}");
        }
        assert!(parse("ssh-dss AAAAB3").is_err_and(|error| error.to_string().contains("ed25519")));
    }
}
