//! The audit log: who had the cell change what, and what was refused, a line of JSON each, in `audit.log` beside cell.toml.
//!
//! A change is written before it is carried out and once more with its outcome. Bounded: at [`FILE_BYTES_MAX`] the file becomes
//! `audit.log.1`, and the one of that name goes. Never holds back a change: a log that cannot be written is told in the server's
//! own log, since a full file system must not keep an operator from making room.

use super::access::Caller;
use device::sync::lock;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Mutex;

/// Name of the file in a cell's directory.
pub(crate) const FILE_NAME: &str = "audit.log";
/// Bytes of the file before it is put aside: some hundred thousand changes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a statement that are kept.
const STATEMENT_BYTES_MAX: usize = 4 << 10;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    /// A change is about to be carried out.
    Begin,
    /// It has been, or has failed.
    End,
    /// Somebody asked for what they may not have.
    Refused,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: Event,
    who: &'a str,
    role: String,
    statement: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// The log.
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<Option<(File, u64)>>,
    bytes_max: u64,
}

impl Audit {
    /// In a file of that name; opened when there is something to write.
    pub(crate) fn new(path: PathBuf) -> Audit {
        Audit { path, file: Mutex::new(None), bytes_max: FILE_BYTES_MAX }
    }

    /// Write one line. `time` as ISO 8601.
    pub(super) fn record(&self, time: String, event: Event, caller: &Caller, statement: &str, error: Option<&str>) {
        let end = (0..=STATEMENT_BYTES_MAX.min(statement.len())).rev().find(|end| statement.is_char_boundary(*end));
        let statement = &statement[..end.unwrap_or(0)];
        let error = error.map(|text| text.lines().next().unwrap_or(""));
        let line = Line { time, event, who: &caller.who, role: caller.role.to_string(), statement, error };
        let written = serde_json::to_vec(&line).map_err(std::io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            self.write(&bytes)
        });
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, statement, "the audit log cannot be written");
        }
    }

    fn write(&self, line: &[u8]) -> std::io::Result<()> {
        let mut held = lock(&self.file);
        let (mut file, size) = match held.take() {
            Some((file, size)) if size + line.len() as u64 <= self.bytes_max => (file, size),
            Some(_) => {
                let mut aside = self.path.clone().into_os_string();
                aside.push(".1");
                std::fs::rename(&self.path, aside)?;
                self.open()?
            }
            None => self.open()?,
        };
        // One write: lines of this process never mix, and a crash leaves at most the last one short.
        file.write_all(line)?;
        *held = Some((file, size + line.len() as u64));
        Ok(())
    }

    fn open(&self) -> std::io::Result<(File, u64)> {
        let file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::access::Role;
    use super::*;

    fn caller() -> Caller {
        Caller { role: Role::Administrator, who: "uid 0 pid 7".to_owned() }
    }

    #[test]
    fn lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let audit = Audit::new(path.clone());
        audit.record("T1".to_owned(), Event::Begin, &caller(), "DROP FLASHCACHE", None);
        audit.record("T2".to_owned(), Event::End, &caller(), "DROP \"x\"\n", Some("CELL-09007: no.\nhint: none"));
        expect_test::expect![[r#"
            {"time":"T1","event":"begin","who":"uid 0 pid 7","role":"administrator","statement":"DROP FLASHCACHE"}
            {"time":"T2","event":"end","who":"uid 0 pid 7","role":"administrator","statement":"DROP \"x\"\n","error":"CELL-09007: no."}
        "#]]
        .assert_eq(&std::fs::read_to_string(path).unwrap());
    }

    #[test]
    fn it_is_bounded_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let long = "é".repeat(3000);
        for _ in 0..2 {
            let audit = Audit { bytes_max: 10_000, ..Audit::new(path.clone()) };
            for _ in 0..5 {
                audit.record(String::new(), Event::Begin, &caller(), &long, None);
            }
        }
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size("audit.log") <= 10_000 && size("audit.log.1") <= 10_000);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
