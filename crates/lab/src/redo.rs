//! Analysis of redo (commit) times (field measurement S2): what R did for the founding reports, in one command.
//!
//! Reads Oracle's 10046 traces, fio's latency logs, plain columns and the cell's own captures; tells R's `summary()`, percentiles
//! to 99.999 %, outliers, Welch's t-test as `t.test()` prints it, and which of two is better. Times are whole picoseconds until
//! they are printed, in microseconds always, whatever the files count in. Never starts a cell, never writes anything but the
//! files it is told to.

pub mod capture;
mod columns;
mod format;
pub(crate) mod plot;
mod report;
mod rprint;
mod samples;
mod source;
mod summary;
mod unit;
mod verdict;
mod welch;

pub use format::Format;
pub use samples::{APPROXIMATE_BITS, DISTINCT_MAX, Samples, Share};
pub use source::{Malformed, Reading};
pub use summary::Summary;
pub use unit::{Unit, parse_time_ps};
pub use verdict::{MATTERS_PERCENT, Side, Verdict};
pub use welch::{Moments, Welch, welch};

use crate::output::save;
use plot::Series;
use std::path::{Path, PathBuf};

/// How to read and what to write.
#[derive(Clone, Debug)]
pub struct RedoOptions {
    /// How files are read, and what counts.
    pub reading: Reading,
    /// Write JSON to a file; `-` stands for standard output, in place of the text.
    pub json: Option<PathBuf>,
    /// Write a picture.
    pub plot: Option<PathBuf>,
}

/// Why redo times cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum RedoError {
    /// A file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A directory without traces.
    #[error("{}: no .trc file in it\nhint: a directory stands for the traces in it; name other files one by one", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
    },
    /// Its content is like no format known.
    #[error("{}: neither a 10046 trace nor a latency log of fio, a capture, or numbers in columns\nhint: name the format with --format", path.display())]
    Unrecognised {
        /// Which file.
        path: PathBuf,
    },
    /// A capture of another version.
    #[error("{}: a redo capture of version {version}; this program reads version {}\nhint: a newer flashcell reads it", path.display(), capture::VERSION)]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// A log of fio that holds something else.
    #[error("{}: by its name a log of bandwidth, IOPS or histograms, not of latencies\nhint: fio writes latencies to NAME_lat, NAME_clat and NAME_slat with --write_lat_log=NAME", path.display())]
    NotLatency {
        /// Which file.
        path: PathBuf,
    },
    /// A unit for times that carry their own.
    #[error("{}: a redo capture is in nanoseconds\nhint: leave --unit away", path.display())]
    OwnUnit {
        /// Which file.
        path: PathBuf,
    },
    /// Several columns, and nobody said which.
    #[error("{}: several columns: {}\nhint: --column NAME, or its number from 1", path.display(), names.join(", "))]
    Several {
        /// Which file.
        path: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// No column of that name.
    #[error("{}: no column {column}\nhint: one of {}", path.display(), names.join(", "))]
    NoColumn {
        /// Which file.
        path: PathBuf,
        /// The column asked for.
        column: String,
        /// What there is.
        names: Vec<String>,
    },
    /// A wait was asked for where files do not tell waits apart.
    #[error("{}: columns do not say what was waited for\nhint: --column NAME chooses one", path.display())]
    NoKinds {
        /// Which file.
        path: PathBuf,
    },
    /// What was asked for is not there.
    #[error("{name}: no time of '{wait}', but of these:\n{kinds}\nhint: choose with --wait NAME")]
    NoWait {
        /// The files.
        name: String,
        /// What was asked for.
        wait: String,
        /// A table of what there is.
        kinds: String,
    },
    /// No time at all.
    #[error(
        "{name}: no times in it (malformed lines: {malformed}{first})\nhint: --format names another format; event 10046 records waits at levels 8 and 12"
    )]
    Empty {
        /// The files.
        name: String,
        /// Lines that could not be read.
        malformed: u64,
        /// The first of them.
        first: String,
    },
    /// The cut left nothing.
    #[error("{name}: all {left_out} times are above the cut\nhint: a larger --cut")]
    AllCut {
        /// The files.
        name: String,
        /// How many were left out.
        left_out: u64,
    },
    /// Standard input on both sides.
    #[error("standard input can be read once\nhint: put one side into a file")]
    StdinTwice,
    /// A result cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Read files as one sample and tell of it; what belongs on standard output.
///
/// # Errors
/// See [`RedoError`].
pub fn summary(files: &[PathBuf], options: &RedoOptions) -> Result<String, RedoError> {
    once(files.iter())?;
    let summary = Summary::of(source::read(files, &options.reading)?);
    let text = report::summary(&summary, options.reading.cut_ps);
    let series = [Series { name: &summary.name, samples: &summary.samples }];
    finish(options, &series, text, || report::summary_json(&summary))
}

/// Read two samples and compare them; what belongs on standard output.
///
/// # Errors
/// See [`RedoError`].
pub fn compare(a: &Path, b: &Path, options: &RedoOptions) -> Result<String, RedoError> {
    let (a, b) = (a.to_owned(), b.to_owned());
    once([&a, &b].into_iter())?;
    let a = Summary::of(source::read(&[a], &options.reading)?);
    let b = Summary::of(source::read(&[b], &options.reading)?);
    let test = welch(&a.moments(), &b.moments());
    let verdict = verdict::verdict(&a, &b, test.as_ref());
    let text = report::comparison(&a, &b, test.as_ref(), &verdict, options.reading.cut_ps);
    let names = [format!("A: {}", a.name), format!("B: {}", b.name)];
    let series = [Series { name: &names[0], samples: &a.samples }, Series { name: &names[1], samples: &b.samples }];
    finish(options, &series, text, || report::comparison_json(&a, &b, test.as_ref(), &verdict))
}

fn once<'a>(mut files: impl Iterator<Item = &'a PathBuf>) -> Result<(), RedoError> {
    let mut stdin = || files.find(|file| file.as_os_str() == source::STDIN);
    if stdin().is_some() && stdin().is_some() { Err(RedoError::StdinTwice) } else { Ok(()) }
}

/// Write what is asked for; what belongs on standard output.
fn finish(
    options: &RedoOptions,
    series: &[Series<'_>],
    text: String,
    json: impl FnOnce() -> String,
) -> Result<String, RedoError> {
    let write =
        |path: &Path, text: &str| save(path, text).map_err(|source| RedoError::Write { path: path.to_owned(), source });
    if let Some(path) = &options.plot {
        write(path, &plot::plot(series))?;
    }
    match &options.json {
        Some(path) if path.as_os_str() == source::STDIN => Ok(json()),
        Some(path) => write(path, &json()).map(|()| text),
        None => Ok(text),
    }
}
