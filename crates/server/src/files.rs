//! `flashcell contents`: what of the files of a mounted file system is on flash. The file system tells where they lie on its device,
//! the cell what of that is on flash.
//!
//! Never reads a file or writes to one, never has the file system write out what it holds back, never leaves the file system it
//! begins in.

mod carry;
mod pin;
mod place;
mod ranges;
mod show;
mod stack;
mod table;
mod target;
mod view;
mod walk;
mod warm;

pub use carry::{CarriedOver, CarryError, CarryOptions, Saved, carry_over, save};
pub use pin::{FOLLOW_EVERY, FilePolicy, PinError, PinOptions, Pinned, PinnedFiles};
pub use place::PlaceError;
pub use table::{Table, TableError};
pub use target::Whereabouts;
pub use view::{VIEW, ViewOptions, drop_view, make_view};

use crate::admin::{HELD_BYTES_MAX, HELD_PATH, HELD_RANGES_MAX, Held, HeldAnswer, HeldRequest};
use crate::console::ConsoleError;
use crate::http::{AskError, HttpError};
use place::{Layout, Located, Outside};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use target::Target;

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct FilesOptions {
    /// The grid disk the file system is on.
    pub whereabouts: Whereabouts,
    /// Files, and directories with all below them, of one file system.
    pub paths: Vec<PathBuf>,
}

/// What of a database to look at.
#[derive(Clone, Debug)]
pub struct DatabaseOptions {
    /// The grid disk its tables are on.
    pub whereabouts: Whereabouts,
    /// Its name.
    pub database: String,
    /// PostgreSQL's client, and arguments it needs.
    pub psql: String,
}

/// What the lines of a report are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Files by their paths.
    #[default]
    Files,
    /// Tables and indexes by their names.
    Relations,
}

/// One file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileHeld {
    /// As it was found.
    pub path: PathBuf,
    /// Its length.
    pub size_bytes: u64,
    /// Bytes that have a place on the device; fewer than its length with holes, and where it has not been written out yet.
    pub located_bytes: u64,
    /// What of these is on flash, and what flash has served of them.
    pub held: Held,
}

/// All of them.
#[derive(Debug, Default)]
pub struct FilesReport {
    /// What they are.
    pub told: Told,
    /// As they were found.
    pub files: Vec<FileHeld>,
    /// What could not be looked at, and why: gone meanwhile, or not for this user.
    pub skipped: Vec<(PathBuf, io::Error)>,
}

impl FilesReport {
    /// A table: files with something on flash, most first, and the sums.
    #[must_use]
    pub fn text(&self) -> String {
        show::text(self)
    }

    /// Every file or relation in a line: name, length, located, cached, kept and dirty bytes, reads, hits, milliseconds saved.
    #[must_use]
    pub fn csv(&self) -> String {
        show::csv(self)
    }

    /// All of it, sizes in bytes.
    #[must_use]
    pub fn json(&self) -> String {
        show::json(self)
    }
}

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Which cell.
    #[error(transparent)]
    Cell(#[from] ConsoleError),
    /// The cell does not answer, refuses, or is not understood.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Of a database.
    #[error(transparent)]
    Table(#[from] TableError),
    /// No grid disk was named, and none is known of the file system.
    #[error(
        "{path} is on no grid disk that is attached to this host\nhint: name the grid disk, -c its cell, and --offset where on it the \
         file system begins"
    )]
    NotAttached {
        /// A file.
        path: PathBuf,
    },
    /// A path that was given.
    #[error("cannot look at {path}: {source}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Two file systems.
    #[error("{first} and {other} are on two file systems\nhint: ask for each by itself: each is on one grid disk")]
    TwoFileSystems {
        /// One that was given.
        first: PathBuf,
        /// Another.
        other: PathBuf,
    },
    /// Where the file system lies on the grid disk.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// It does not tell where files lie.
    #[error(
        "the file system of {path} does not tell where its files lie: {source}\nhint: ext4, XFS and most others do"
    )]
    NoMap {
        /// A file of it.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file system cannot be on that grid disk, at that offset.
    #[error(
        "{path} lies past the end of grid disk {grid_disk} ({size_bytes} bytes)\nhint: is the file system on this grid \
         disk? --offset tells where on it it begins"
    )]
    PastEnd {
        /// A file.
        path: PathBuf,
        /// The grid disk.
        grid_disk: String,
        /// Its size.
        size_bytes: u64,
    },
    /// Its file system lies on several devices.
    #[error(
        "{path} lies, at least in part, on another device than grid disk {grid_disk}\nhint: name files that lie on one grid disk alone"
    )]
    Elsewhere {
        /// A file.
        path: PathBuf,
        /// The grid disk.
        grid_disk: String,
    },
}

impl FilesError {
    /// A file that does not lie within what a grid disk has of its file system.
    fn outside(path: PathBuf, grid_disk: &str, size_bytes: u64, why: Outside) -> FilesError {
        let grid_disk = grid_disk.to_owned();
        match why {
            Outside::PastEnd => FilesError::PastEnd { path, grid_disk, size_bytes },
            Outside::Elsewhere => FilesError::Elsewhere { path, grid_disk },
        }
    }
}

impl From<HttpError> for FilesError {
    fn from(error: HttpError) -> FilesError {
        FilesError::Ask(error.into())
    }
}

/// What of each file is on flash at the moment. `progress` hears, after each question to the cell, how many files have been told of in
/// full and how many there are.
///
/// # Errors
/// See [`FilesError`]; a file below a directory that cannot be looked at is in the report and no error.
pub fn files(options: &FilesOptions, progress: &mut dyn FnMut(usize, usize)) -> Result<FilesReport, FilesError> {
    let device = walk::device_of(&options.paths)?;
    let path = options.paths.first().map_or(Path::new("/"), PathBuf::as_path);
    let target = Target::find(device, path, &options.whereabouts)?;
    let ask = |ranges: &[(u64, u64)]| -> Result<HeldAnswer, FilesError> {
        let request = HeldRequest { grid_disk: target.grid_disk.clone(), ranges: ranges.to_vec() };
        Ok(target.client.ask(HELD_PATH, &request)?)
    };
    let mut report = FilesReport::default();
    let found = walk::walk(&options.paths, device, &mut report.skipped)?;
    let place = Place { grid_disk: &target.grid_disk, size_bytes: target.size_bytes, layout: &target.layout };
    gather(found, &place, walk::extents, ask, progress, &mut report)?;
    Ok(report)
}

/// The same of the tables and indexes of a PostgreSQL database, each with all of its files: on however many grid disks its tablespaces
/// are. Those on none are in the report as skipped; where a grid disk is named, only what is on the file system of the first counts.
///
/// # Errors
/// See [`FilesError`].
pub fn relations(options: &DatabaseOptions, progress: &mut dyn FnMut(usize, usize)) -> Result<FilesReport, FilesError> {
    let mut names = BTreeMap::new();
    for (name, files) in table::relations(&options.database, &options.psql)? {
        names.extend(files.into_iter().filter(|path| path.exists()).map(|path| (path, name.clone())));
    }
    let mut by_device: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    let mut first = None;
    for path in names.keys() {
        // Dropped since.
        let Ok(device) = walk::device_of(std::slice::from_ref(path)) else { continue };
        first = first.or(Some(device));
        by_device.entry(device).or_default().push(path.clone());
    }
    if options.whereabouts.grid_disk.is_some() {
        by_device.retain(|device, _| Some(*device) == first);
    }
    let mut by_file = FilesReport::default();
    let (mut missing, count) = (None, by_device.len());
    for paths in by_device.into_values() {
        let first_path = paths.first().cloned();
        match files(&FilesOptions { whereabouts: options.whereabouts.clone(), paths }, progress) {
            Ok(report) => {
                by_file.files.extend(report.files);
                by_file.skipped.extend(report.skipped);
            }
            Err(FilesError::NotAttached { path }) => {
                by_file.skipped.push((
                    path.clone(),
                    io::Error::other("it and what else is on its file system are on no grid disk"),
                ));
                missing = Some(path);
            }
            // Nor can these be on one that is attached, as far as can be told: others may be.
            Err(FilesError::Place(
                why @ (PlaceError::Stacked { .. } | PlaceError::Table { .. } | PlaceError::NoDevice { .. }),
            )) if count > 1 => by_file.skipped.extend(first_path.map(|path| (path, io::Error::other(why.to_string())))),
            Err(error) => return Err(error),
        }
    }
    if let Some(path) = missing
        && count == 1
    {
        return Err(FilesError::NotAttached { path });
    }
    let mut sums: BTreeMap<&String, FileHeld> = BTreeMap::new();
    for file in &by_file.files {
        let Some(name) = names.get(&file.path) else { continue };
        let sum = sums.entry(name).or_default();
        sum.size_bytes += file.size_bytes;
        sum.located_bytes += file.located_bytes;
        sum.held.add(&file.held);
    }
    let named = |(name, sum): (&String, FileHeld)| FileHeld { path: PathBuf::from(name), ..sum };
    let files = sums.into_iter().map(named).collect();
    Ok(FilesReport { told: Told::Relations, files, skipped: by_file.skipped })
}

/// Offset and length of each, bytes.
type Ranges = Vec<(u64, u64)>;

/// Where the file system lies.
struct Place<'a> {
    grid_disk: &'a str,
    size_bytes: u64,
    layout: &'a Layout,
}

/// Ask of all files, as many at a time as fit into a question.
fn gather(
    found: Vec<(PathBuf, u64)>,
    place: &Place<'_>,
    extents_of: impl Fn(&Path) -> io::Result<Ranges>,
    ask: impl Fn(&[(u64, u64)]) -> Result<HeldAnswer, FilesError>,
    progress: &mut dyn FnMut(usize, usize),
    report: &mut FilesReport,
) -> Result<(), FilesError> {
    let all = found.len();
    let mut batch = Batch::default();
    for (path, size_bytes) in found {
        let extents = match extents_of(&path) {
            Ok(extents) => extents,
            Err(source) if walk::is_no_map(&source) => return Err(FilesError::NoMap { path, source }),
            Err(source) => {
                report.skipped.push((path, source));
                continue;
            }
        };
        let located: Result<Vec<_>, Outside> = extents.iter().map(|(at, len)| place.layout.of(*at, *len)).collect();
        let ranges: Vec<Located> = match located {
            Ok(located) => located.into_iter().flatten().collect(),
            Err(why) => return Err(FilesError::outside(path, place.grid_disk, place.size_bytes, why)),
        };
        let index = report.files.len();
        let located_bytes = ranges.iter().map(|range| range.len).sum();
        // Before its extents: a question may be full in the middle of them.
        report.files.push(FileHeld { path, size_bytes, located_bytes, held: Held::default() });
        for Located { at, len, .. } in ranges {
            batch.add(index, at, len, &mut |ranges, owners| {
                add_held(&mut report.files, owners, &ask(ranges)?);
                progress(index, all);
                Ok(())
            })?;
        }
    }
    batch.send(&mut |ranges, owners| {
        add_held(&mut report.files, owners, &ask(ranges)?);
        Ok(())
    })?;
    progress(all, all);
    Ok(())
}

fn add_held(files: &mut [FileHeld], owners: &[usize], answer: &HeldAnswer) {
    for (owner, held) in owners.iter().zip(&answer.held) {
        files[*owner].held.add(held);
    }
}

/// Ranges of one question, and whose they are.
#[derive(Default)]
struct Batch {
    ranges: Vec<(u64, u64)>,
    owners: Vec<usize>,
    bytes: u64,
}

type Send<'a> = dyn FnMut(&[(u64, u64)], &[usize]) -> Result<(), FilesError> + 'a;

impl Batch {
    /// Add a range; what is full is sent before.
    fn add(&mut self, owner: usize, at: u64, len: u64, send: &mut Send<'_>) -> Result<(), FilesError> {
        let end = at + len;
        let mut at = at;
        while at < end {
            if self.ranges.len() == HELD_RANGES_MAX || self.bytes == HELD_BYTES_MAX {
                self.send(send)?;
            }
            let piece = (end - at).min(HELD_BYTES_MAX - self.bytes);
            self.ranges.push((at, piece));
            self.owners.push(owner);
            self.bytes += piece;
            at += piece;
        }
        Ok(())
    }

    fn send(&mut self, send: &mut Send<'_>) -> Result<(), FilesError> {
        if !self.ranges.is_empty() {
            send(&self.ranges, &self.owners)?;
        }
        *self = Batch::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    type Question = (Vec<(u64, u64)>, Vec<usize>);

    fn ask_all(pieces: &[(usize, u64, u64)]) -> Vec<Question> {
        let mut sent = Vec::new();
        let mut send = |ranges: &[(u64, u64)], owners: &[usize]| {
            sent.push((ranges.to_vec(), owners.to_vec()));
            Ok(())
        };
        let mut batch = Batch::default();
        for &(owner, at, len) in pieces {
            batch.add(owner, at, len, &mut send).unwrap();
        }
        batch.send(&mut send).unwrap();
        sent
    }

    #[test]
    fn questions_keep_the_limits_and_lose_nothing() {
        let half = HELD_BYTES_MAX / 2;
        let sent = ask_all(&[(0, 0, half), (1, half, HELD_BYTES_MAX), (2, 4 * half, 1)]);
        assert_eq!(
            sent,
            [(vec![(0, half), (half, half)], vec![0, 1]), (vec![(2 * half, half), (4 * half, 1)], vec![1, 2]),]
        );
        let many: Vec<_> = (0..HELD_RANGES_MAX as u64 + 1).map(|n| (7, n * 8192, 4096)).collect();
        let sent = ask_all(&many);
        assert_eq!(sent.iter().map(|(ranges, _)| ranges.len()).collect::<Vec<_>>(), [HELD_RANGES_MAX, 1]);
        assert!(ask_all(&[(0, 5, 0)]).is_empty());
    }

    #[test]
    fn of_a_file_of_more_pieces_than_a_question_takes_every_piece_counts() {
        let pieces = HELD_RANGES_MAX as u64 * 2 + 1;
        let extents = |path: &Path| match path.to_str() {
            Some("many") => Ok((0..pieces).map(|n| (n * 8192, 4096)).collect()),
            _ => Ok(vec![(0, 3 * HELD_BYTES_MAX)]),
        };
        let ask = |ranges: &[(u64, u64)]| {
            let of = |&(_, len): &(u64, u64)| Held { cached_bytes: len, ..Held::default() };
            Ok(HeldAnswer { size_bytes: 0, held: ranges.iter().map(of).collect() })
        };
        let (large, little) = (Layout::whole(4096, 1 << 40), Layout::whole(4096, 1 << 20));
        let place = Place { grid_disk: "data", size_bytes: 1 << 40, layout: &large };
        let found = vec![("few".into(), 1), ("many".into(), 2)];
        let mut report = FilesReport::default();
        gather(found, &place, extents, ask, &mut |_, _| {}, &mut report).unwrap();
        let cached: Vec<u64> = report.files.iter().map(|file| file.held.cached_bytes).collect();
        assert_eq!(cached, [3 * HELD_BYTES_MAX, pieces * 4096]);

        let small = Place { size_bytes: 1 << 20, layout: &little, ..place };
        let found = vec![("few".into(), 1)];
        let refused = gather(found, &small, extents, ask, &mut |_, _| {}, &mut report).unwrap_err();
        assert!(refused.to_string().contains("few lies past the end of grid disk data"), "{refused}");
    }
}
