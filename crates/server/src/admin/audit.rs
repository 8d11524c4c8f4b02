//! The audit log: who had the cell change what, and what was refused, a line of JSON each, beside cell.toml.
//!
//! A change is written durably before it is carried out and once more with its outcome, in `audit.log`. A change that cannot be written
//! there is not made, and there is an alert until the log can be written again: that is tried every second, and the log says then how many
//! changes were refused. A line that a crash or a full disk has cut short ends before the next one begins. Refusals are written to `audit-refused.log`, at most [`REFUSALS_PER_MINUTE`]; those beyond are counted and
//! the count is written: whoever may change nothing cannot push out what others have changed, nor fill the disk. Bounded: a file that is
//! full becomes one with `.1` behind its name, and the one of that name goes.

use super::access::Caller;
use crate::dir::Dir;
use device::sync::lock;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{Result, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Changes, in a cell's directory.
const CHANGES: &str = "audit.log";
/// Refusals.
const REFUSALS: &str = "audit-refused.log";
/// Bytes of the changes before the file is put aside: some hundred thousand of them.
const CHANGES_BYTES_MAX: u64 = 16 << 20;
/// The same of refusals: a week of them at the most there can be, with short statements.
const REFUSALS_BYTES_MAX: u64 = 4 << 20;
/// Refusals written in a minute: what a person or a script that is set up wrongly makes.
const REFUSALS_PER_MINUTE: u32 = 60;
/// Bytes of a statement that are kept of a change, and of a refusal.
const STATEMENT_BYTES_MAX: usize = 4 << 10;
const REFUSED_BYTES_MAX: usize = 256;
/// Bytes of a line at most: a statement, each byte of which may be written as six, and the rest.
const LINE_BYTES_MAX: u64 = 32 << 10;

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

/// How many refusals were not written.
#[derive(Serialize)]
struct Suppressed {
    time: String,
    event: &'static str,
    count: u64,
}

/// The log can be written again.
#[derive(Serialize)]
struct Resumed {
    time: String,
    event: &'static str,
    /// Changes that were not made since they could not be written.
    refused: u64,
}

/// The log.
pub(crate) struct Audit {
    changes: Mutex<Changes>,
    refusals: Mutex<Refusals>,
}

struct Changes {
    file: LogFile,
    /// Why it cannot be written, as far as is known, and how many changes were refused because of that.
    failure: Option<(String, u64)>,
}

impl Changes {
    fn write(&mut self, line: &impl Serialize, durable: Durable) -> Result<()> {
        let written = self.file.write(line, durable);
        if let Err(error) = &written {
            let refused = self.failure.take().map_or(0, |(_, refused)| refused);
            self.failure = Some((format!("{}: {error}", self.file.path().display()), refused));
        }
        written
    }

    /// Write that it can be written again, if it could not and can now.
    fn tell_resumed(&mut self, time: &dyn Fn() -> String) {
        let Some((_, refused)) = self.failure else { return };
        // This line is shorter than those that were refused.
        if self.file.has_room().is_ok()
            && self.file.write(&Resumed { time: time(), event: "resumed", refused }, Durable::Yes).is_ok()
        {
            self.failure = None;
        }
    }
}

struct Refusals {
    file: LogFile,
    /// Of the minute that began then.
    began: Instant,
    written: u32,
    suppressed: u64,
}

impl Refusals {
    /// Whether one more may be written now.
    fn has_room(&mut self, now: Instant) -> bool {
        if now.duration_since(self.began) >= Duration::from_secs(60) {
            (self.began, self.written) = (now, 0);
        }
        self.written < REFUSALS_PER_MINUTE
    }

    /// Write how many were not written, if any, and may be now.
    fn tell_suppressed(&mut self, now: Instant, time: impl FnOnce() -> String) -> Result<()> {
        if self.suppressed == 0 || !self.has_room(now) {
            return Ok(());
        }
        self.file.write(&Suppressed { time: time(), event: "suppressed", count: self.suppressed }, Durable::No)?;
        self.written += 1;
        self.suppressed = 0;
        Ok(())
    }
}

impl Audit {
    /// In a cell's directory; files are opened when there is something to write.
    pub(crate) fn new(dir: &Path) -> Audit {
        let file = |name, bytes_max| LogFile { dir: dir.to_owned(), name, bytes_max, open: None };
        let refusals =
            Refusals { file: file(REFUSALS, REFUSALS_BYTES_MAX), began: Instant::now(), written: 0, suppressed: 0 };
        let changes = Changes { file: file(CHANGES, CHANGES_BYTES_MAX), failure: None };
        Audit { changes: Mutex::new(changes), refusals: Mutex::new(refusals) }
    }

    /// Write that a change is about to be carried out; durable when this returns. `time` as ISO 8601, here and below.
    ///
    /// # Errors
    /// It could not be written: what the caller is told. The change must not be made.
    pub(super) fn begin(&self, time: String, caller: &Caller, statement: &str) -> std::result::Result<(), String> {
        let mut changes = lock(&self.changes);
        changes.tell_resumed(&|| time.clone());
        let line = line(time, Event::Begin, caller, statement, None, STATEMENT_BYTES_MAX);
        changes.write(&line, Durable::Yes).map_err(|error| {
            let path = changes.file.path();
            tracing::error!(path = %path.display(), %error, statement, "a change is refused: the audit log cannot be written");
            if let Some((_, refused)) = &mut changes.failure {
                *refused += 1;
            }
            format!("{}: {error}", path.display())
        })
    }

    /// Write what became of it.
    pub(super) fn end(&self, time: String, caller: &Caller, statement: &str, error: Option<&str>) {
        let mut changes = lock(&self.changes);
        changes.tell_resumed(&|| time.clone());
        let line = line(time, Event::End, caller, statement, error, STATEMENT_BYTES_MAX);
        if let Err(error) = changes.write(&line, Durable::No) {
            let path = changes.file.path();
            tracing::error!(path = %path.display(), %error, statement, "the outcome of a change is not in the audit log");
        }
    }

    /// Why changes cannot be written, and so are refused; tried again here, which may take as long as the disk takes.
    pub(super) fn failure(&self, time: &dyn Fn() -> String) -> Option<String> {
        let mut changes = lock(&self.changes);
        changes.tell_resumed(time);
        changes.failure.as_ref().map(|(why, _)| why.clone())
    }

    /// Write that somebody may not have what they asked for, or count it.
    pub(super) fn refused(&self, time: &dyn Fn() -> String, caller: &Caller, statement: &str, error: &str) {
        let mut refusals = lock(&self.refusals);
        let now = Instant::now();
        let told = refusals.tell_suppressed(now, time);
        if !refusals.has_room(now) {
            refusals.suppressed += 1;
            return;
        }
        refusals.written += 1;
        let line = line(time(), Event::Refused, caller, statement, Some(error), REFUSED_BYTES_MAX);
        if let Err(error) = told.and_then(|()| refusals.file.write(&line, Durable::No)) {
            let path = refusals.file.path();
            tracing::error!(path = %path.display(), %error, "a refusal is not in the audit log");
        }
    }

    /// Write how many refusals were not written, once that may be written.
    pub(super) fn tell_suppressed(&self, time: impl FnOnce() -> String) {
        let mut refusals = lock(&self.refusals);
        if let Err(error) = refusals.tell_suppressed(Instant::now(), time) {
            // Tried again with the next look.
            tracing::debug!(%error, "how many refusals there were is not in the audit log");
        }
    }
}

fn line<'a>(
    time: String,
    event: Event,
    caller: &'a Caller,
    statement: &'a str,
    error: Option<&'a str>,
    bytes_max: usize,
) -> Line<'a> {
    let end = (0..=bytes_max.min(statement.len())).rev().find(|end| statement.is_char_boundary(*end));
    let statement = &statement[..end.unwrap_or(0)];
    let error = error.map(|text| text.lines().next().unwrap_or(""));
    Line { time, event, who: &caller.who, role: caller.role.to_string(), statement, error }
}

/// Whether a line outlasts a power cut once it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    Yes,
    No,
}

/// One file, and the one it becomes when it is full.
struct LogFile {
    dir: PathBuf,
    name: &'static str,
    bytes_max: u64,
    /// Its length, and whether its last line has no end.
    open: Option<(File, u64, bool)>,
}

impl LogFile {
    fn path(&self) -> PathBuf {
        self.dir.join(self.name)
    }

    fn write(&mut self, line: &impl Serialize, durable: Durable) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        // One that has been taken away tells nobody anything.
        let open = self.open.take().filter(|(file, ..)| file.metadata().is_ok_and(|it| it.nlink() > 0));
        let (mut file, mut size, mut is_torn) = open.map_or_else(|| self.open(), Ok)?;
        if size > 0 && size + bytes.len() as u64 > self.bytes_max {
            Dir::open(&self.dir)?.rename(self.name, &format!("{}.1", self.name))?;
            (file, size, is_torn) = self.open()?;
        }
        if is_torn {
            bytes.insert(0, b'\n');
        }
        // One write: lines of this process never mix, and a crash leaves at most the last one short.
        let written =
            file.write_all(&bytes).and_then(|()| if durable == Durable::Yes { file.sync_all() } else { Ok(()) });
        if let Err(error) = written {
            // Part of a line tells nobody anything. Where it cannot be taken away either, the first error is the one to tell, and what is left
            // is found when the file is opened again.
            let _ = file.set_len(size);
            return Err(error);
        }
        self.open = Some((file, size + bytes.len() as u64, false));
        Ok(())
    }

    /// Whether there is room for the longest line, and not for a short one alone; where the file system can say so.
    fn has_room(&mut self) -> Result<()> {
        let (file, size, is_torn) = self.open.take().map_or_else(|| self.open(), Ok)?;
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, size, LINE_BYTES_MAX) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.open = Some((file, size, is_torn));
        Ok(())
    }

    fn open(&self) -> Result<(File, u64, bool)> {
        let file = Dir::open(&self.dir)?.append(self.name)?;
        let size = file.metadata()?.len();
        let mut last = [b'\n'];
        if size > 0 {
            file.read_exact_at(&mut last, size - 1)?;
        }
        Ok((file, size, last != [b'\n']))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: what is changed is written, whatever others do, or not made. Method: real files, full ones, and files that are none.
    use super::super::access::Role;
    use super::*;

    fn caller() -> Caller {
        Caller { role: Role::Administrator, who: "uid 0 pid 7".to_owned() }
    }

    fn monitor() -> Caller {
        Caller { role: Role::Monitor, who: "uid 9".to_owned() }
    }

    #[test]
    fn lines() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path());
        audit.begin("T1".to_owned(), &caller(), "DROP FLASHCACHE").unwrap();
        audit.end("T2".to_owned(), &caller(), "DROP \"x\"\n", Some("CELL-09007: no.\nhint: none"));
        audit.refused(&|| "T3".to_owned(), &monitor(), "DROP FLASHCACHE", "CELL-09011: no.");
        expect_test::expect![[r#"
            {"time":"T1","event":"begin","who":"uid 0 pid 7","role":"administrator","statement":"DROP FLASHCACHE"}
            {"time":"T2","event":"end","who":"uid 0 pid 7","role":"administrator","statement":"DROP \"x\"\n","error":"CELL-09007: no."}
        "#]]
        .assert_eq(&std::fs::read_to_string(dir.path().join(CHANGES)).unwrap());
        expect_test::expect![[r#"
            {"time":"T3","event":"refused","who":"uid 9","role":"monitor","statement":"DROP FLASHCACHE","error":"CELL-09011: no."}
        "#]]
        .assert_eq(&std::fs::read_to_string(dir.path().join(REFUSALS)).unwrap());
    }

    #[test]
    fn it_is_bounded_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let long = "é".repeat(3000);
        for _ in 0..2 {
            let audit = Audit::new(dir.path());
            lock(&audit.changes).file.bytes_max = 10_000;
            for _ in 0..5 {
                audit.begin(String::new(), &caller(), &long).unwrap();
            }
        }
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size("audit.log") <= 10_000 && size("audit.log.1") <= 10_000);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_line_that_was_cut_short_is_not_glued_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        for (name, write) in [
            (CHANGES, (|audit: &Audit| audit.begin("T".to_owned(), &caller(), "X").unwrap()) as fn(&Audit)),
            (REFUSALS, |audit| audit.refused(&|| "T".to_owned(), &caller(), "X", "no")),
        ] {
            std::fs::write(dir.path().join(name), "{\"time\":\"T0\"}\n{\"time\":\"T1\",\"eve").unwrap();
            let audit = Audit::new(dir.path());
            write(&audit);
            write(&audit);
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((lines.len(), lines[1]), (4, "{\"time\":\"T1\",\"eve"), "{text}");
            assert!(lines[2..].iter().all(|line| line.starts_with("{\"time\":\"T\"") && line.ends_with('}')), "{text}");
        }
    }

    #[test]
    fn refusals_push_nothing_out_and_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path());
        audit.begin("T".to_owned(), &caller(), "DROP GRIDDISK data").unwrap();
        let long = "x".repeat(STATEMENT_BYTES_MAX);
        let count = u64::from(REFUSALS_PER_MINUTE) + 10_000;
        for _ in 0..count {
            audit.refused(&String::new, &monitor(), &long, "no");
        }
        assert!(std::fs::read_to_string(dir.path().join(CHANGES)).unwrap().contains("DROP GRIDDISK data"));
        let lines = || std::fs::read_to_string(dir.path().join(REFUSALS)).unwrap();
        assert_eq!(lines().lines().count(), REFUSALS_PER_MINUTE as usize);
        assert!(lines().len() < 500 * REFUSALS_PER_MINUTE as usize, "only the beginning of a statement is kept");
        audit.tell_suppressed(String::new);
        assert!(!lines().contains("suppressed"), "nor is their count written while there is no room");
        // A minute later, by itself; and with the next one.
        for _ in 0..2 {
            lock(&audit.refusals).began -= Duration::from_secs(60);
            audit.tell_suppressed(|| "T".to_owned());
            assert!(lines().ends_with("{\"time\":\"T\",\"event\":\"suppressed\",\"count\":10000}\n"));
        }
    }

    #[test]
    fn what_cannot_be_written_is_told_before_the_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CHANGES);
        let audit = Audit::new(dir.path());
        let begin = || audit.begin(String::new(), &caller(), "DROP FLASHCACHE");
        // A full file system.
        let fill = || {
            lock(&audit.changes).file.open = Some((File::options().write(true).open("/dev/full").unwrap(), 0, false))
        };
        let time = || "T".to_owned();
        assert_eq!(audit.failure(&time), None);
        fill();
        let error = begin().unwrap_err();
        assert!(error.contains("audit.log: No space left"), "{error}");
        fill();
        let failure = audit.failure(&time);
        assert!(failure.is_some(), "the alert");
        assert_eq!(audit.failure(&time), None, "it can be written again");
        let resumed = "{\"time\":\"T\",\"event\":\"resumed\",\"refused\":1}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), resumed);
        begin().unwrap();
        // A file that is taken away is made again; what is no file is not written to.
        std::fs::remove_file(&path).unwrap();
        begin().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(begin().unwrap_err().contains("symbolic link"));
        // Where it can neither be put aside.
        std::fs::remove_file(&path).unwrap();
        begin().unwrap();
        lock(&audit.changes).file.bytes_max = 10;
        std::fs::create_dir(dir.path().join("audit.log.1")).unwrap();
        assert!(begin().is_err());
        std::fs::remove_dir(dir.path().join("audit.log.1")).unwrap();
        begin().unwrap();
    }
}
