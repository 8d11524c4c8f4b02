//! `flashcell warm`: which parts of files are on flash here, written down by name; and on another host, whose files are the same by name and
//! content, read so that they are on flash there too: a standby that is warm when it is promoted.
//!
//! A list is never believed: a part that is wrong costs a read. Never leaves the directory that is named, never follows a link.

use super::pin::{PinError, locate};
use super::target::{Target, Whereabouts};
use super::warm::{Piece, READ_BYTES, Warmer, cached_of};
use super::{FilesError, walk};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

const VERSION: u32 = 1;
/// A list that is longer is none of ours: a hundred million parts.
const LIST_BYTES_MAX: u64 = 4 << 30;
/// A line of it.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// What to look at.
#[derive(Clone, Debug)]
pub struct CarryOptions {
    /// The grid disk that the directory is on.
    pub whereabouts: Whereabouts,
    /// The directory whose files are meant: a database's.
    pub dir: PathBuf,
}

/// Why it does not work.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// As for pins: files, cell.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The list.
    #[error("line {line} of the list: {why}\nhint: `flashcell warm DIR --save FILE` writes one")]
    List {
        /// Which, from one.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be read or written.
    #[error("the list: {0}")]
    Io(#[from] std::io::Error),
}

impl From<FilesError> for CarryError {
    fn from(error: FilesError) -> CarryError {
        CarryError::Pin(error.into())
    }
}

/// The first line of a list.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    flashcell_warm: u32,
}

/// A line for each file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    /// Below the directory.
    file: PathBuf,
    /// Where each begins, and how long it is, bytes.
    parts: Vec<(u64, u64)>,
}

/// What was written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// Files of which something is on flash.
    pub files: usize,
    /// Bytes of their parts.
    pub saved_bytes: u64,
}

impl Saved {
    /// A line, sizes in bytes.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A line.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} of {} files are on flash", cellcli::answer::size_text(self.saved_bytes), self.files)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CarriedOver {
    /// Files of the list.
    pub files: usize,
    /// Of these, not there, or no files.
    pub files_missing: usize,
    /// Bytes of the list.
    pub listed_bytes: u64,
    /// Of these, not in the files here.
    pub absent_bytes: u64,
    /// Of the rest, not on flash afterwards.
    pub missing_bytes: u64,
    /// How long it took.
    pub milliseconds: u64,
}

impl CarriedOver {
    /// A line, sizes in bytes.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A line.
    #[must_use]
    pub fn text(&self) -> String {
        let size = cellcli::answer::size_text;
        let there = self.listed_bytes - self.absent_bytes;
        let mut line = format!(
            "{} of {} on flash after {}.{} s",
            size(there - self.missing_bytes.min(there)),
            size(self.listed_bytes),
            self.milliseconds / 1000,
            self.milliseconds % 1000 / 100
        );
        if self.absent_bytes > 0 || self.files_missing > 0 {
            line += &format!("; {} of it and {} files are not here", size(self.absent_bytes), self.files_missing);
        }
        if self.missing_bytes > 0 {
            line += &format!("; {} did not find room on flash", size(self.missing_bytes));
        }
        line
    }
}

/// Files and their lengths, and where they are.
fn found(options: &CarryOptions) -> Result<(Target, Vec<(PathBuf, u64)>), FilesError> {
    let paths = std::slice::from_ref(&options.dir);
    let device = walk::device_of(paths)?;
    let target = Target::find(device, &options.dir, &options.whereabouts)?;
    // A file of a database may go at any moment.
    let found = walk::walk(paths, device, &mut Vec::new())?;
    Ok((target, found))
}

/// Write down which parts of the files below a directory are on flash.
///
/// # Errors
/// See [`CarryError`].
pub fn save(options: &CarryOptions, list: &mut dyn Write) -> Result<Saved, CarryError> {
    let (target, found) = found(options)?;
    let pieces = locate(&found, &target, false)?;
    let step = READ_BYTES as u64;
    let parts: Vec<(usize, u64, u64)> = pieces
        .iter()
        .enumerate()
        .flat_map(|(index, piece)| {
            (0..piece.len).step_by(READ_BYTES).map(move |at| (index, at, (piece.len - at).min(step)))
        })
        .collect();
    let ranges: Vec<(u64, u64)> = parts.iter().map(|&(index, at, len)| (pieces[index].at + at, len)).collect();
    let cached = cached_of(&target, &ranges)?;
    let mut by_file: BTreeMap<&Path, Vec<(u64, u64)>> = BTreeMap::new();
    let mut saved = Saved::default();
    for (&(index, at, len), cached) in parts.iter().zip(cached) {
        // A part is worth a read when half of it was worth its place.
        if cached * 2 < len {
            continue;
        }
        saved.saved_bytes += len;
        let from = pieces[index].from + at;
        let of_file = by_file.entry(pieces[index].path).or_default();
        match of_file.last_mut() {
            Some((last, last_len)) if *last + *last_len == from => *last_len += len,
            _ => of_file.push((from, len)),
        }
    }
    let mut line = |text: Result<String, serde_json::Error>| -> Result<(), CarryError> {
        writeln!(list, "{}", text.map_err(std::io::Error::from)?)?;
        Ok(())
    };
    line(serde_json::to_string(&Head { flashcell_warm: VERSION }))?;
    saved.files = by_file.len();
    for (path, parts) in by_file {
        let file = path.strip_prefix(&options.dir).unwrap_or(path).to_owned();
        line(serde_json::to_string(&Parts { file, parts }))?;
    }
    list.flush()?;
    Ok(saved)
}

/// The files of a list with their parts.
fn parse(list: impl Read) -> Result<BTreeMap<PathBuf, Vec<(u64, u64)>>, CarryError> {
    let mut lines = BufReader::new(list.take(LIST_BYTES_MAX));
    let mut files: BTreeMap<PathBuf, Vec<(u64, u64)>> = BTreeMap::new();
    for number in 1.. {
        let mut text = Vec::new();
        if (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        let wrong = |why: String| CarryError::List { line: number, why };
        if number == 1 {
            let head: Head = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
            if head.flashcell_warm != VERSION {
                return Err(wrong(format!("version {} is not known here", head.flashcell_warm)));
            }
            continue;
        }
        let parts: Parts = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let is_below = parts.file.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below || parts.file.as_os_str().is_empty() {
            return Err(wrong(format!("{} is no name below a directory", parts.file.display())));
        }
        if parts.parts.iter().any(|(from, len)| from.checked_add(*len).is_none()) {
            return Err(wrong("a part ends past every file".to_owned()));
        }
        files.entry(parts.file).or_default().extend(parts.parts);
    }
    if files.is_empty() { Err(CarryError::List { line: 1, why: "it is empty".to_owned() }) } else { Ok(files) }
}

/// Read what a list names of the files below a directory, so that it is on flash. `progress` hears how much is read, and of how much.
///
/// # Errors
/// See [`CarryError`].
pub fn carry_over(
    options: &CarryOptions,
    list: impl Read,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CarriedOver, CarryError> {
    let began = Instant::now();
    let wanted = parse(list)?;
    let (target, mut found) = found(options)?;
    found.retain(|(path, _)| path.strip_prefix(&options.dir).is_ok_and(|name| wanted.contains_key(name)));
    let here: BTreeSet<&Path> = found.iter().filter_map(|(path, _)| path.strip_prefix(&options.dir).ok()).collect();
    let mut report = CarriedOver {
        files: wanted.len(),
        files_missing: wanted.keys().filter(|name| !here.contains(name.as_path())).count(),
        listed_bytes: wanted.values().flatten().map(|(_, len)| len).sum(),
        ..CarriedOver::default()
    };
    let whole = locate(&found, &target, false)?;
    let mut pieces: Vec<Piece<'_>> = whole
        .iter()
        .flat_map(|piece| {
            let parts = piece.path.strip_prefix(&options.dir).ok().and_then(|name| wanted.get(name));
            parts.into_iter().flatten().filter_map(|&(from, len)| part_of(piece, from, from + len))
        })
        .collect();
    // As they lie on the disk, which is quickest.
    pieces.sort_by_key(|piece| piece.at);
    let there: u64 = pieces.iter().map(|piece| piece.len).sum();
    report.absent_bytes = report.listed_bytes.saturating_sub(there);
    report.missing_bytes = Warmer::new().warm(&target, &pieces, true, progress)?.unwrap_or(0);
    report.milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// What of a piece lies between two places of its file.
fn part_of<'a>(piece: &Piece<'a>, from: u64, end: u64) -> Option<Piece<'a>> {
    let (start, end) = (from.max(piece.from), end.min(piece.from + piece.len));
    (start < end).then(|| Piece {
        path: piece.path,
        from: start,
        at: piece.at + (start - piece.from),
        len: end - start,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn lists_that_name_what_they_must_not_are_refused() {
        let head = "{\"flashcell_warm\":1}\n";
        let of = |line: &str| parse(format!("{head}{line}\n").as_bytes());
        let good = of("{\"file\":\"base/5/1\",\"parts\":[[0,4096],[8192,4096]]}").unwrap();
        assert_eq!(good.get(Path::new("base/5/1")).unwrap(), &[(0, 4096), (8192, 4096)]);
        for bad in [
            "{\"file\":\"../x\",\"parts\":[[0,1]]}",
            "{\"file\":\"/etc/shadow\",\"parts\":[[0,1]]}",
            "{\"file\":\"\",\"parts\":[[0,1]]}",
            "{\"file\":\"a\",\"parts\":[[18446744073709551615,1]]}",
            "{\"file\":\"a\",\"parts\":[[-1,1]]}",
            "x",
        ] {
            assert!(of(bad).unwrap_err().to_string().starts_with("line 2 of the list: "), "{bad}");
        }
        assert!(parse(&b"{\"flashcell_warm\":2}\n"[..]).unwrap_err().to_string().contains("version 2"));
        assert!(parse(&b""[..]).unwrap_err().to_string().contains("it is empty"));
    }

    #[test]
    fn a_part_of_a_piece_lies_where_it_lies_in_the_file() {
        let piece = Piece { path: Path::new("x"), from: 100, at: 1000, len: 50 };
        let part = |from, end| part_of(&piece, from, end).map(|part| (part.from, part.at, part.len));
        assert_eq!(part(0, 1000), Some((100, 1000, 50)));
        assert_eq!(part(120, 130), Some((120, 1020, 10)));
        assert_eq!((part(0, 100), part(150, 200)), (None, None));
    }
}
