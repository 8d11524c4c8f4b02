//! Files of redo times read into one sample: told apart, streamed, counted by what was waited for.
//!
//! A line that is malformed is counted and the first ones are kept to be shown; it never ends a run, since traces are cut off and
//! interleaved in practice. Never holds a file in memory, only distinct times.

use super::RedoError;
use super::capture;
use super::columns::{Columns, NoColumn};
use super::format::{Format, Lines};
use super::samples::Samples;
use super::unit::Unit;
use crate::input::{Input, Line};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The most kinds of waits kept apart: Oracle 19c knows about 2,000; a damaged file may invent any number.
const KINDS_MAX: usize = 4096;
/// Malformed lines that are shown: the first ones tell what is wrong with the others.
const MALFORMED_SHOWN_MAX: usize = 3;
/// Sessions' traces in a directory end so.
const TRACE_SUFFIX: &str = "trc";
/// Standard input, as a file is named.
pub(super) const STDIN: &str = "-";

/// How files are read, and what counts.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The format; told from the content when not given.
    pub format: Option<Format>,
    /// The wait (10046), direction (fio) or outcome (capture); the format's own default when not given.
    pub wait: Option<String>,
    /// What the numbers count; the format's own when not given.
    pub unit: Option<Unit>,
    /// Which of several columns, by name or number from 1.
    pub column: Option<String>,
    /// A time above this many picoseconds is an outlier.
    pub outlier_ps: i64,
    /// Times above this many picoseconds are left out.
    pub cut_ps: Option<i64>,
}

/// How often and how long something was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) count: u64,
    pub(super) ps: i128,
}

/// Lines that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Malformed {
    /// How many.
    pub count: u64,
    /// The first ones: file, line and reason.
    pub first: Vec<String>,
}

impl Malformed {
    fn add(&mut self, path: &str, line: u64, what: &str) {
        self.count += 1;
        if self.first.len() < MALFORMED_SHOWN_MAX {
            self.first.push(format!("{path}:{line}: {what}"));
        }
    }
}

/// All that was read of some files.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// The files, as a report names them.
    pub(super) name: String,
    /// Their formats, each once.
    pub(super) formats: Vec<Format>,
    /// What was asked for, or what counts by default; empty for columns.
    pub(super) wait: String,
    /// How many files.
    pub(super) files: usize,
    /// The times.
    pub(super) samples: Samples,
    /// What there was, counted or not.
    pub(super) kinds: BTreeMap<Vec<u8>, Kind>,
    /// Times above the cut.
    pub(super) left_out: u64,
    /// Lines that could not be read.
    pub(super) malformed: Malformed,
}

/// Read files as one sample: the traces of all sessions of a run belong together. A directory stands for the `.trc` files in
/// it, `-` for standard input.
pub(super) fn read(paths: &[PathBuf], reading: &Reading) -> Result<Pool, RedoError> {
    let mut pool = Pool {
        name: named(paths),
        formats: Vec::new(),
        wait: String::new(),
        files: 0,
        samples: Samples::new(reading.outlier_ps),
        kinds: BTreeMap::new(),
        left_out: 0,
        malformed: Malformed::default(),
    };
    for path in paths {
        let io_error = |source| RedoError::Io { path: path.clone(), source };
        if path.as_os_str() == STDIN {
            pool.read_one(Path::new("standard input"), Box::new(io::stdin()), reading)?;
        } else if path.is_dir() {
            let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let mut inside: Vec<PathBuf> = entries.map_err(io_error)?.iter().map(std::fs::DirEntry::path).collect();
            inside.retain(|path| path.extension().is_some_and(|suffix| suffix == TRACE_SUFFIX));
            inside.sort();
            if inside.is_empty() {
                return Err(RedoError::Directory { path: path.clone() });
            }
            // What does not look like a trace at its beginning, as that of a session that did nothing yet, has no waits.
            let reading = &Reading { format: reading.format.or(Some(Format::Oracle)), ..reading.clone() };
            for path in &inside {
                let file = File::open(path).map_err(|source| RedoError::Io { path: path.clone(), source })?;
                pool.read_one(path, Box::new(file), reading)?;
            }
        } else {
            pool.read_one(path, Box::new(File::open(path).map_err(io_error)?), reading)?;
        }
    }
    pool.samples.finish();
    if pool.samples.count() == 0 {
        return Err(pool.nothing());
    }
    Ok(pool)
}

/// One file by its name, several by the first and their number.
fn named(paths: &[PathBuf]) -> String {
    let name = |path: &Path| match path.file_name() {
        _ if path.as_os_str() == STDIN => "standard input".to_owned(),
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.display().to_string(),
    };
    match paths {
        [] => String::new(),
        [one] => name(one),
        [first, others @ ..] => format!("{} and {} more", name(first), others.len()),
    }
}

impl Pool {
    fn read_one(&mut self, path: &Path, raw: Box<dyn Read + Send>, reading: &Reading) -> Result<(), RedoError> {
        let io_error = |source| RedoError::Io { path: path.to_owned(), source };
        let (mut input, head) = Input::over(raw).map_err(io_error)?;
        let mut lines = lines_of(path, &head, reading)?;
        let format = lines.format;
        if !self.formats.contains(&format) {
            self.formats.push(format);
        }
        self.files += 1;
        if self.wait.is_empty() {
            self.wait = match (&reading.wait, &lines.columns.name) {
                (Some(wait), _) => wait.clone(),
                (None, Some(name)) if format == Format::Columns => name.clone(),
                _ => format.counted().to_owned(),
            };
        }
        let shown = path.display().to_string();
        let wanted = reading.wait.as_ref().map(|wait| wait.as_bytes());
        let (mut buffer, mut number) = (Vec::new(), 0_u64);
        loop {
            let line = input.read_line(&mut buffer).map_err(io_error)?;
            number += 1;
            let parsed = match line {
                Line::None => return Ok(()),
                // The text of a statement, in a trace. Elsewhere such a line is none of the format's.
                Line::TooLong if format == Format::Oracle && !buffer.starts_with(b"WAIT #") => continue,
                Line::TooLong => Err("the line is too long"),
                Line::Whole | Line::Unended => lines.parse(&buffer, line == Line::Unended),
            };
            match parsed {
                Ok(None) => {}
                Err(what) => self.malformed.add(&shown, number, what),
                Ok(Some(timed)) => {
                    self.count(timed.kind, timed.ps);
                    let counts =
                        wanted.map_or_else(|| format.counts(timed.kind), |w| timed.kind.eq_ignore_ascii_case(w));
                    match (counts, reading.cut_ps) {
                        (false, _) => {}
                        (true, Some(cut)) if timed.ps > cut => self.left_out += 1,
                        (true, _) => self.samples.push(timed.ps),
                    }
                }
            }
        }
    }

    fn count(&mut self, kind: &[u8], ps: i64) {
        let add = |known: &mut Kind| {
            known.count += 1;
            known.ps += i128::from(ps);
        };
        if let Some(known) = self.kinds.get_mut(kind) {
            return add(known);
        }
        let name: &[u8] = if self.kinds.len() >= KINDS_MAX { b"(others)" } else { kind };
        add(self.kinds.entry(name.to_vec()).or_default());
    }

    /// Why there is no time to look at.
    fn nothing(&self) -> RedoError {
        if self.left_out > 0 {
            return RedoError::AllCut { name: self.name.clone(), left_out: self.left_out };
        }
        if self.kinds.is_empty() {
            let first = self.malformed.first.first().map_or_else(String::new, |first| format!("; {first}"));
            return RedoError::Empty { name: self.name.clone(), malformed: self.malformed.count, first };
        }
        RedoError::NoWait { name: self.name.clone(), wait: self.wait.clone(), kinds: super::report::kinds(&self.kinds) }
    }
}

/// How a file that begins so is read.
fn lines_of(path: &Path, head: &[u8], reading: &Reading) -> Result<Lines, RedoError> {
    let format = reading.format.or_else(|| Format::of(head));
    let Some(format) = format else { return Err(RedoError::Unrecognised { path: path.to_owned() }) };
    match format {
        Format::Capture => {
            if let Some(version) = capture::version(head).filter(|version| *version != capture::VERSION) {
                return Err(RedoError::Version { path: path.to_owned(), version });
            }
            if reading.unit.is_some() {
                return Err(RedoError::OwnUnit { path: path.to_owned() });
            }
        }
        Format::Fio => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if ["_bw.", "_iops.", "_hist."].iter().any(|part| name.contains(part)) {
                return Err(RedoError::NotLatency { path: path.to_owned() });
            }
        }
        Format::Columns if reading.wait.is_some() => return Err(RedoError::NoKinds { path: path.to_owned() }),
        Format::Columns | Format::Oracle => {}
    }
    let columns = match format {
        Format::Columns => Columns::from_head(head, reading.column.as_deref()).map_err(|error| match error {
            NoColumn::Several(names) => RedoError::Several { path: path.to_owned(), names },
            NoColumn::Missing(names) => {
                RedoError::NoColumn { path: path.to_owned(), column: reading.column.clone().unwrap_or_default(), names }
            }
        })?,
        _ => Columns::default(),
    };
    let unit = reading.unit.or(columns.unit).unwrap_or(format.unit());
    Ok(Lines { format, unit, columns })
}
