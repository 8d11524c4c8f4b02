//! `flashcell metrics`: the metrics of many cells in one table (S8), over the admin protocol, all cells at once.
//!
//! ```text
//!   hosts --gather (so many at a time)--> readings --diff FILE--> differences --combine by kind--> table | JSON
//! ```
//!
//! A cell that does not answer, or answers something else, is named on stderr and costs the others nothing. Numbers are decimal
//! integers from the cell's text to the printed digit. Never changes anything on a cell.

mod combine;
mod diff;
mod gather;
mod number;
mod reading;
mod table;

use crate::dcli;
use reading::Reading;
use regex_lite::Regex;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Cells of one call: ten times the largest field anybody told of.
const HOSTS_MAX: usize = 10_000;
/// A list of cells larger than this is not one.
const GROUP_FILE_BYTES_MAX: u64 = 1 << 20;
/// Seconds for a connection, and again for its answer.
pub const TIMEOUT_DEFAULT_S: u64 = 5;
/// Lists of cells that are looked for when none are named.
const GROUP_FILES: [&str; 2] = [".flashcell/cells", "cell_group"];
/// The variable that names such a list.
pub const GROUP_VARIABLE: &str = "FLASHCELL_GROUP";

/// What to show.
#[derive(Clone, Debug, Default)]
pub struct MetricsOptions {
    /// Cells, separated by commas: directories, or `HOST[:PORT]`.
    pub hosts: Option<String>,
    /// A file with a cell on each line.
    pub group_file: Option<PathBuf>,
    /// Names that begin like this regular expression.
    pub mask: Option<String>,
    /// Descriptions and units.
    pub describe: bool,
    /// A column for each cell.
    pub cells: bool,
    /// Scientific notation where it is shorter.
    pub scientific: bool,
    /// Minimum, maximum and average over cells and objects.
    pub stats: bool,
    /// Objects apart.
    pub objects: bool,
    /// Keep this reading in a file.
    pub before: Option<PathBuf>,
    /// Show what has changed since the reading in a file.
    pub diff: Option<PathBuf>,
    /// Again and again, so many seconds apart.
    pub watch_s: Option<u64>,
    /// With watch: so many times, 0 until stopped.
    pub count: u64,
    /// As JSON.
    pub json: bool,
    /// Seconds for a cell to answer.
    pub timeout_s: Option<u64>,
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// No cells.
    #[error(
        "no cells are named\nhint: --hosts cell01,cell02 (or directories), or a file with one on each line: -g FILE, ${GROUP_VARIABLE}, \
         ~/.flashcell/cells, ~/cell_group"
    )]
    NoHosts,
    /// Too many.
    #[error("{0} cells are named, at most {HOSTS_MAX} are asked")]
    TooMany(usize),
    /// The mask.
    #[error("--mask {text:?} is not a regular expression: {reason}\nhint: '.*' stands for anything, not '%' or '*'")]
    Mask {
        /// What was given.
        text: String,
        /// Why not.
        reason: String,
    },
    /// A file.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Nobody answers.
    #[error("no cell answers")]
    Nobody,
    /// stdout.
    #[error("cannot write to stdout: {0}")]
    Output(std::io::Error),
}

/// Show it; whether every cell has answered. Who has not is told on stderr.
///
/// # Errors
/// See [`MetricsError`].
pub fn metrics(options: &MetricsOptions) -> Result<bool, MetricsError> {
    let hosts = hosts(options)?;
    let mask = options.mask.as_deref().map(mask).transpose()?;
    let before = options.diff.as_deref().map(reading::load).transpose()?;
    let timeout = Duration::from_secs(options.timeout_s.unwrap_or(TIMEOUT_DEFAULT_S).max(1));
    let mut rounds = 0;
    let mut good = true;
    loop {
        let (readings, failures) = gather::gather(&hosts, timeout, options.describe);
        for (host, why) in &failures {
            talk(&format!("{host}: {why}"));
        }
        good &= failures.is_empty();
        if readings.is_empty() {
            return Err(MetricsError::Nobody);
        }
        if let Some(path) = &options.before {
            reading::save(path, &readings)?;
        }
        let shown = match &before {
            None => readings,
            Some(before) => {
                let (shown, notes) = diff::difference(before, &readings);
                good &= notes.is_empty();
                notes.iter().for_each(|note| talk(note));
                shown
            }
        };
        match show(options, &shown, mask.as_ref()) {
            // Whoever reads has enough: `| head -1`.
            Err(MetricsError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(good),
            shown => shown?,
        }
        rounds += 1;
        match options.watch_s {
            Some(_) if options.count == rounds => return Ok(good),
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds.max(1))),
            None => return Ok(good),
        }
    }
}

/// Talk; nobody is left to tell when stderr is gone.
fn talk(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn mask(text: &str) -> Result<Regex, MetricsError> {
    // From the beginning of a name, as the field's; names are in capitals, and nobody types them so.
    Regex::new(&format!("(?i)^(?:{text})"))
        .map_err(|error| MetricsError::Mask { text: text.to_owned(), reason: error.to_string() })
}

fn show(options: &MetricsOptions, readings: &[Reading], mask: Option<&Regex>) -> Result<(), MetricsError> {
    let stdout = std::io::stdout();
    let mut text = String::new();
    if options.json {
        text.push_str(&reading::json(readings, mask));
    } else {
        let width = if stdout.is_terminal() { width() } else { None };
        if options.watch_s.is_some() && stdout.is_terminal() {
            // Home, and clear to the end: what stands there is replaced.
            text.push_str("\x1b[H\x1b[2J");
        }
        text.push_str(&table::text(options, readings, mask, width));
    }
    let mut stdout = stdout.lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(MetricsError::Output)
}

fn width() -> Option<usize> {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_col));
    columns.ok().filter(|columns| *columns > 0)
}

/// Who is asked: those named, those of a list, or the one cell that is meant without saying.
fn hosts(options: &MetricsOptions) -> Result<Vec<String>, MetricsError> {
    let mut all: Vec<String> = Vec::new();
    let split = |text: &str| text.split(',').map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect();
    if let Some(list) = &options.hosts {
        let named: Vec<String> = split(list);
        all.extend(named);
    }
    if let Some(path) = &options.group_file {
        all.extend(group(path)?);
    }
    if options.hosts.is_none() && options.group_file.is_none() {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = set("HOME").unwrap_or_default();
        let listed = GROUP_FILES.map(|file| Path::new(&home).join(file)).into_iter().find(|path| path.exists());
        if let Some(path) = set(GROUP_VARIABLE).map(PathBuf::from).or(listed) {
            all.extend(group(&path)?);
        } else if let Some(cell) = set(crate::console::CELL_VARIABLE) {
            all.push(cell.to_string_lossy().into_owned());
        } else if Path::new(crate::config::FILE_NAME).exists() {
            all.push(".".to_owned());
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|host| seen.insert(host.clone()));
    match all.len() {
        0 => Err(MetricsError::NoHosts),
        1..=HOSTS_MAX => Ok(all),
        many => Err(MetricsError::TooMany(many)),
    }
}

fn group(path: &Path) -> Result<Vec<String>, MetricsError> {
    let file = |reason: String| MetricsError::File { path: path.to_owned(), reason };
    let size = std::fs::metadata(path).map_err(|error| file(error.to_string()))?.len();
    if size > GROUP_FILE_BYTES_MAX {
        return Err(file(format!("{size} bytes are too many for a list of cells")));
    }
    std::fs::read_to_string(path).map(|text| dcli::names(&text)).map_err(|error| file(error.to_string()))
}

#[cfg(test)]
mod simulated;
