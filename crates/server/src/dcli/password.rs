//! One password for all cells, for pushing keys: read once without echo, handed to ssh's own asking program.
//!
//! It lies in a file of mode 600 in a directory of mode 700 while keys are pushed, and is in no command line and no
//! environment. Never kept longer, and never leaves the terminal without echo, however asking ends.

use super::DcliError;
use device::HeldSignals;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::{DirBuilder, File};
use std::io::{BufRead, Error, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A program that answers ssh, and what it answers. Both go when this goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answering {
    dir: PathBuf,
}

impl Answering {
    /// Ask at the terminal.
    pub(super) fn ask() -> Result<Answering, DcliError> {
        read().and_then(|password| Answering::with(&password)).map_err(DcliError::Password)
    }

    fn with(password: &str) -> std::io::Result<Answering> {
        let salt = getrandom::u64().map_err(|error| Error::other(error.to_string()))?;
        let dir = std::env::temp_dir().join(format!("dcli-{salt:016x}"));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let answering = Answering { dir };
        let create = |name: &str, mode: u32, text: String| {
            let mut options = std::fs::File::options();
            let file = options.write(true).create_new(true).mode(mode).open(answering.dir.join(name));
            file.and_then(|mut file| file.write_all(text.as_bytes()))
        };
        create("word", 0o600, format!("{password}\n"))?;
        create("ask", 0o700, "#!/bin/sh\nexec cat \"${0%/*}/word\"\n".to_owned())?;
        Ok(answering)
    }

    /// For `SSH_ASKPASS`.
    pub(super) fn program(&self) -> PathBuf {
        self.dir.join("ask")
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // Nothing is left to do about a directory that cannot be removed but to say so.
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            let _ = writeln!(std::io::stderr(), "{} holds a password: {error}", self.dir.display());
        }
    }
}

/// A terminal without echo as long as this lives.
struct Silent<'a> {
    terminal: &'a File,
    before: Termios,
}

impl Silent<'_> {
    fn begin(terminal: &File) -> std::io::Result<Silent<'_>> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        // What was typed ahead is thrown away.
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Silent { terminal, before })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // It can fail only where the terminal has gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// One line of the terminal, without echo. ^C, ^\, ^Z and what others send come through when the echo is back.
fn read() -> std::io::Result<String> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::new(ErrorKind::Unsupported, "stdin is no terminal"));
    }
    let terminal = File::options().read(true).write(true).open(Path::new("/dev/tty"))?;
    let held = HeldSignals::hold()?;
    // Before the question: what is typed as soon as it is seen is not thrown away.
    let silent = Silent::begin(&terminal)?;
    let mut stderr = std::io::stderr();
    let mut line = String::new();
    let asked = write!(stderr, "Password for all cells: ").and_then(|()| stderr.flush());
    let got = asked
        .and_then(|()| held.until_readable(terminal.as_fd()))
        .and_then(|()| std::io::BufReader::new(&terminal).read_line(&mut line));
    drop(silent);
    writeln!(stderr)?;
    // A signal that has come ends the process here.
    drop(held);
    got?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn it_answers_and_goes() {
        let answering = Answering::with("tiger's $word").unwrap();
        let said = std::process::Command::new(answering.program()).arg("root@c1's password: ").output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), "tiger's $word\n");
        let dir = answering.dir.clone();
        assert!(dir.exists());
        drop(answering);
        assert!(!dir.exists());
    }
}
