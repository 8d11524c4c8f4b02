//! `flashcell pin PATH…`, `--table`: the ranges of a grid disk that files lie on get a caching policy, once or for as long as it is kept up
//! (`--follow`), while the files grow, shrink and are written anew.
//!
//! What has been pinned for a set of files is remembered, before the cell hears of it, so that nothing stays pinned for files that
//! have gone. Never changes a range that it has not pinned itself, and never writes to a file.

use super::place::Located;
use super::ranges::{PAGE_BYTES, Ranges};
use super::table::{Table, TableError};
use super::target::{Target, Whereabouts};
use super::warm::{Piece, Warmer};
use super::{FilesError, walk};
use crate::admin::{Form, Outcome, Request, Response};
use crate::http::{AskError, Client};
use crate::{attach, dir};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Ranges with a policy that a grid disk may have (a limit of its label).
const RANGES_MAX: usize = celldisk::CACHING_RANGES_MAX;
/// Statements in one request to the cell.
const STATEMENTS_AT_ONCE: usize = 64;
/// Longer ones were not written by us.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// What the ranges are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePolicy {
    /// Kept in flash.
    Keep,
    /// By merit, whatever the grid disk says.
    Default,
    /// Not cached.
    None,
    /// As the grid disk says again.
    Off,
}

impl FilePolicy {
    fn word(self) -> &'static str {
        match self {
            FilePolicy::Keep => "keep",
            FilePolicy::Default => "default",
            FilePolicy::None => "none",
            FilePolicy::Off => "off",
        }
    }
}

/// What to pin.
#[derive(Clone, Debug)]
pub struct PinOptions {
    /// The grid disk they are on.
    pub whereabouts: Whereabouts,
    /// Files, and directories with all below them.
    pub paths: Vec<PathBuf>,
    /// Tables, with their indexes, TOAST and partitions.
    pub tables: Vec<Table>,
    /// PostgreSQL's client, and arguments it needs.
    pub psql: String,
    /// What they get.
    pub policy: FilePolicy,
    /// What is to be kept and is not on flash is read, so that it is.
    pub read: bool,
}

/// What came of it, of one grid disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// The grid disk.
    pub griddisk: String,
    /// What the ranges have now.
    pub caching_policy: String,
    /// Files that were found.
    pub files: usize,
    /// Their lengths.
    pub size_bytes: u64,
    /// What of them has a place on the device.
    pub located_bytes: u64,
    /// Ranges they lie on.
    pub ranges: usize,
    /// Bytes of those; more than the files have where small gaps were filled, since a grid disk has a limit of ranges.
    pub range_bytes: u64,
    /// Bytes that have the policy since this pass and had not before.
    pub added_bytes: u64,
    /// Bytes that had it for these files and have it no longer.
    pub dropped_bytes: u64,
    /// Bytes of the files that are to be kept and are not on flash after they were read; none: that was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_bytes: Option<u64>,
}

impl Pinned {
    /// All of it on a line, sizes in bytes.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A line.
    #[must_use]
    pub fn text(&self) -> String {
        let size = cellcli::answer::size_text;
        let files =
            format!("{} file{} of {}", self.files, if self.files == 1 { "" } else { "s" }, size(self.size_bytes));
        let missing = match self.missing_bytes {
            Some(bytes) if bytes > 0 => format!("; {} did not find room on flash", size(bytes)),
            _ => String::new(),
        };
        format!(
            "{}: {files}, {} of it on {} range{} ({}): {}; {} added, {} dropped{missing}",
            self.griddisk,
            size(self.located_bytes),
            self.ranges,
            if self.ranges == 1 { "" } else { "s" },
            size(self.range_bytes),
            self.caching_policy,
            size(self.added_bytes),
            size(self.dropped_bytes)
        )
    }
}

/// Why nothing was pinned, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// As for `contents`.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Of a table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The cell refuses a statement.
    #[error("{0}")]
    Refused(String),
    /// It has too many pieces.
    #[error(
        "the files lie on {pieces} ranges, and grid disk {grid_disk} has room for {room} more\nhint: `flashcell pin {grid_disk}` lists what is pinned; \
         a policy for the whole grid disk (ALTER GRIDDISK … cachingPolicy) needs none"
    )]
    TooMany {
        /// Of the files.
        pieces: usize,
        /// The grid disk.
        grid_disk: String,
        /// Left.
        room: usize,
    },
    /// What is remembered of earlier passes.
    #[error("cannot read or write {path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What became KEEP data cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl From<AskError> for PinError {
    fn from(error: AskError) -> PinError {
        PinError::Files(error.into())
    }
}

/// What is pinned for a set of files on a grid disk.
#[derive(Default, Serialize, Deserialize)]
struct State {
    /// For people.
    pinned: Vec<String>,
    ranges: Vec<(u64, u64)>,
}

/// Files that keep their pins: what `flashcell pin` repeats with `--follow`.
pub struct PinnedFiles {
    options: PinOptions,
    warmer: Warmer,
}

impl PinnedFiles {
    /// Nothing happens yet.
    #[must_use]
    pub fn new(options: PinOptions) -> PinnedFiles {
        PinnedFiles { options, warmer: Warmer::new() }
    }

    /// Give the ranges that the files have now the policy, and take it from those they had. `first`: what the file system has not given
    /// a place yet is written out before. What is to be kept and is not on flash is read; `progress` hears how much of that, and of how much.
    ///
    /// # Errors
    /// See [`PinError`]. What was begun is remembered: another pass, or one with [`FilePolicy::Off`], ends it.
    pub fn pass(&self, first: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Pinned, PinError> {
        let options = &self.options;
        let mut paths = options.paths.clone();
        for table in &options.tables {
            paths.extend(table.files(&options.psql)?);
        }
        // A file of a database may go at any moment.
        if !options.tables.is_empty() {
            paths.retain(|path| path.exists());
        }
        let device = walk::device_of(&paths)?;
        let path = paths.first().map_or(Path::new("/"), PathBuf::as_path);
        let target = Target::find(device, path, &options.whereabouts)?;
        let state = self.state_path(&target);
        let mut skipped = Vec::new();
        let found = walk::walk(&paths, device, &mut skipped)?;
        if let Some((path, source)) = skipped.into_iter().next() {
            return Err(FilesError::Path { path, source }.into());
        }
        let pieces = locate(&found, &target, first)?;
        let wanted = Ranges::new(pieces.iter().map(|piece| (piece.at, piece.at + piece.len)));
        let mut pinned = Pinned {
            griddisk: target.grid_disk.clone(),
            caching_policy: options.policy.word().to_owned(),
            files: found.len(),
            size_bytes: found.iter().map(|(_, len)| len).sum(),
            located_bytes: pieces.iter().map(|piece| piece.len).sum(),
            ..Pinned::default()
        };
        let before = read_state(&state)?;
        let wanted = if options.policy == FilePolicy::Off {
            // What others pinned of the files since goes as well: they are asked to be as the grid disk says.
            let all = before.union(&wanted);
            self.apply(&target, &Ranges::default(), &all)?;
            pinned.dropped_bytes = all.bytes();
            forget_state(&state)?;
            return Ok(pinned);
        } else {
            self.fitting(&target, wanted, &before)?
        };
        (pinned.ranges, pinned.range_bytes) = (wanted.len(), wanted.bytes());
        let (added, dropped) = (wanted.minus(&before), before.minus(&wanted));
        (pinned.added_bytes, pinned.dropped_bytes) = (added.bytes(), dropped.bytes());
        if first || !added.is_empty() || !dropped.is_empty() {
            self.write_state(&state, &before.union(&wanted))?;
            // All of it the first time: somebody else may have changed it.
            self.apply(&target, if first { &wanted } else { &added }, &dropped)?;
            self.write_state(&state, &wanted)?;
        }
        if options.read && options.policy == FilePolicy::Keep {
            pinned.missing_bytes = self.warmer.warm(&target, &pieces, first || !added.is_empty(), progress)?;
        }
        Ok(pinned)
    }

    /// In the cell's directory, where the pins are too; of a cell elsewhere, in this host's.
    fn state_path(&self, target: &Target) -> PathBuf {
        let dir = target.cell_dir.clone().unwrap_or_else(attach::runtime_dir);
        let names = format!("{}\n{}", target.grid_disk.to_lowercase(), self.names().join("\n"));
        let digest = ring::digest::digest(&ring::digest::SHA256, names.as_bytes());
        let short: String = digest.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        dir.join(format!("pinned-{short}.json"))
    }

    /// What was asked for, as it was.
    fn names(&self) -> Vec<String> {
        let paths = self.options.paths.iter().map(|path| path.display().to_string());
        paths.chain(self.options.tables.iter().map(Table::to_string)).collect()
    }

    /// As many ranges as the grid disk has room for: gaps between KEEP data may be kept as well, and what is not to be cached may not be more than it is.
    fn fitting(&self, target: &Target, wanted: Ranges, before: &Ranges) -> Result<Ranges, PinError> {
        let others = pins(target)?.minus(before);
        let room = RANGES_MAX.saturating_sub(others.len());
        if wanted.len() <= room {
            return Ok(wanted);
        }
        let fewer = wanted.at_most(room);
        if room == 0 || self.options.policy != FilePolicy::Keep {
            return Err(PinError::TooMany { pieces: wanted.len(), grid_disk: target.grid_disk.clone(), room });
        }
        Ok(fewer)
    }

    fn apply(&self, target: &Target, add: &Ranges, drop: &Ranges) -> Result<(), PinError> {
        let name = &target.grid_disk;
        let policy = self.options.policy.word();
        let dropping =
            drop.iter().map(|(start, end)| format!("DROP PIN '{name}' offset={start}, length={}", end - start));
        let adding = add.iter().map(|(start, end)| {
            format!("CREATE PIN '{name}' offset={start}, length={}, cachingPolicy={policy}", end - start)
        });
        let statements: Vec<String> = dropping.chain(adding).collect();
        for some in statements.chunks(STATEMENTS_AT_ONCE) {
            carry_out(&target.client, &some.join("\n"), Form::Text)?;
        }
        Ok(())
    }

    fn write_state(&self, path: &Path, ranges: &Ranges) -> Result<(), PinError> {
        let state = State { pinned: self.names(), ranges: ranges.iter().collect() };
        let failed = |source| PinError::State { path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(&state).map_err(|error| failed(error.into()))?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        dir::write(path, dir::PRIVATE, (text + "\n").as_bytes()).map_err(failed)
    }
}

fn read_state(path: &Path) -> Result<Ranges, PinError> {
    let failed = |source| PinError::State { path: path.to_owned(), source };
    let text = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Ranges::default()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if metadata.len() > STATE_BYTES_MAX => {
            return Err(failed(std::io::Error::other("it is too long to be ours")));
        }
        Ok(_) => std::fs::read_to_string(path).map_err(failed)?,
    };
    let state: State = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
    Ok(Ranges::new(state.ranges))
}

fn forget_state(path: &Path) -> Result<(), PinError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(PinError::State { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Have the cell carry out statements; what they answer.
fn carry_out(client: &Client, text: &str, form: Form) -> Result<String, PinError> {
    let request = Request { text: text.to_owned(), form, ..Request::default() };
    let response: Response = client.ask("/v1/cellcli", &request)?;
    let mut answer = String::new();
    for Outcome { output, error } in response.results {
        match error {
            Some(error) => return Err(PinError::Refused(error.trim_end().to_owned())),
            None => answer.push_str(&output),
        }
    }
    Ok(answer)
}

/// What is pinned of the grid disk, by whomever, whatever its policy.
fn pins(target: &Target) -> Result<Ranges, PinError> {
    #[derive(Deserialize)]
    struct Row {
        offset: u64,
        length: u64,
    }
    let answer = carry_out(&target.client, &format!("LIST PIN '{}'", target.grid_disk), Form::Json)?;
    let rows: Vec<Row> =
        if answer.trim().is_empty() { Vec::new() } else { serde_json::from_str(&answer).map_err(AskError::Form)? };
    Ok(Ranges::new(rows.iter().map(|row| (row.offset, row.offset.saturating_add(row.length)))))
}

pub(super) fn locate<'a>(
    found: &'a [(PathBuf, u64)],
    target: &Target,
    first: bool,
) -> Result<Vec<Piece<'a>>, PinError> {
    let mut pieces = Vec::new();
    for (path, size_bytes) in found {
        let told = |source| FilesError::Path { path: path.clone(), source };
        let extents = File::open(path).and_then(|file| {
            if first {
                // It gets a place on the device by that.
                file.sync_data()?;
            }
            walk::extents_of(&file)
        });
        let extents = match extents {
            Ok(extents) => extents,
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) if walk::is_no_map(&source) => {
                return Err(FilesError::NoMap { path: path.clone(), source }.into());
            }
            Err(source) => return Err(told(source).into()),
        };
        for extent in extents {
            // What was allocated past the end of the file is nobody's yet.
            let len = extent.len.min(size_bytes.next_multiple_of(PAGE_BYTES).saturating_sub(extent.from));
            let outside = |why| FilesError::outside(path.clone(), &target.grid_disk, target.size_bytes, why);
            for Located { from, at, len } in target.layout.of(extent.at, len).map_err(outside)? {
                pieces.push(Piece { path, from: extent.from + (from - extent.at), at, len });
            }
        }
    }
    Ok(pieces)
}

/// Between two passes of `--follow`, unless told otherwise.
pub const FOLLOW_EVERY: Duration = Duration::from_secs(15);
