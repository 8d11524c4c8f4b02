//! Giving a disk what is newest of each byte: windows of pieces in disk order, a few at a time, each with its records read at once
//! and what is adjacent written in one.
//!
//! Pieces do not overlap, so none has to wait for another. Never begins anything after a failure, and never leaves anything under way.

use super::{LogReader, ReplayError};
use crate::format::RecordKind;
use crate::recover::Found;
use device::{Buf, Device, Outcome, SharedBufs};
use futures_util::StreamExt;
use futures_util::stream;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a window gives the disk, at most, unless one record has more: as much as a disk takes in one go.
const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// What is read for a window, at most, unless one record has more. Pieces of large records may need more than they give.
const WINDOW_READ_BYTES_MAX: u64 = 4 << 20;
/// Windows at a time.
const WINDOWS_MAX: usize = 4;
/// Reads of a window at a time, and writes.
const IN_FLIGHT_MAX: usize = 16;

/// A range and the record, by number, that has what is newest of it.
type Piece = (Range<u64>, usize);

/// Pieces in order, as windows.
struct Windows<'a, I: Iterator<Item = Piece>> {
    records: &'a [(usize, &'a Found)],
    pieces: Peekable<I>,
    /// The piece that comes next before others: what is left of a long run of zeroes, or what a window had no room for.
    rest: Option<Piece>,
}

impl<I: Iterator<Item = Piece>> Windows<'_, I> {
    fn next_piece(&mut self) -> Option<Piece> {
        let (range, n) = self.rest.take().or_else(|| self.pieces.next())?;
        let is_data = self.records[n].1.kind == RecordKind::Data;
        if is_data || range.end - range.start <= WINDOW_BYTES_MAX {
            return Some((range, n));
        }
        let cut = range.start + WINDOW_BYTES_MAX;
        self.rest = Some((cut..range.end, n));
        Some((range.start..cut, n))
    }
}

impl<I: Iterator<Item = Piece>> Iterator for Windows<'_, I> {
    type Item = Vec<Piece>;

    fn next(&mut self) -> Option<Vec<Piece>> {
        let mut window = Vec::new();
        let (mut bytes, mut read_bytes) = (0, 0);
        let mut read = BTreeSet::new();
        while let Some((range, n)) = self.next_piece() {
            let found = self.records[n].1;
            let reads = if found.kind == RecordKind::Data && !read.contains(&n) { found.len } else { 0 };
            bytes += range.end - range.start;
            read_bytes += reads;
            if !window.is_empty() && (bytes > WINDOW_BYTES_MAX || read_bytes > WINDOW_READ_BYTES_MAX) {
                // With what is left of it, if it was cut.
                let end = self.rest.take().map_or(range.end, |(rest, _)| rest.end);
                self.rest = Some((range.start..end, n));
                break;
            }
            read.insert(n);
            window.push((range, n));
        }
        (!window.is_empty()).then_some(window)
    }
}

impl LogReader {
    /// Write these pieces to a device; bytes written. Nothing is flushed.
    pub(super) async fn give(
        &self,
        records: &[(usize, &Found)],
        pieces: impl Iterator<Item = Piece> + Send,
        device: &Device,
    ) -> Result<u64, ReplayError> {
        let failed = AtomicBool::new(false);
        let failed = &failed;
        let windows = Windows { records, pieces: pieces.peekable(), rest: None };
        let given = stream::iter(windows).map(|window| async move {
            if failed.load(Ordering::Acquire) {
                return Ok(0);
            }
            let given = self.give_window(records, &window, device).await;
            failed.fetch_or(given.is_err(), Ordering::AcqRel);
            given
        });
        let add = async |sum: Result<u64, ReplayError>, given: Result<u64, ReplayError>| Ok(sum? + given?);
        given.buffer_unordered(WINDOWS_MAX).fold(Ok(0), add).await
    }

    async fn give_window(
        &self,
        records: &[(usize, &Found)],
        window: &[Piece],
        device: &Device,
    ) -> Result<u64, ReplayError> {
        let is_data = |n: &usize| records[*n].1.kind == RecordKind::Data;
        let wanted: BTreeSet<usize> = window.iter().map(|(_, n)| *n).filter(is_data).collect();
        let reads = stream::iter(wanted).map(|n| async move { (n, self.data_of(records, n).await) });
        let read: Vec<_> = reads.buffer_unordered(IN_FLIGHT_MAX).collect().await;
        let mut data = BTreeMap::new();
        for (n, bytes) in read {
            data.insert(n, bytes?);
        }
        let unit = device.geometry().logical_bytes as usize;
        let mut runs: Vec<(u64, SharedBufs)> = Vec::new();
        for (range, n) in window {
            let len = (range.end - range.start) as usize;
            let piece = match data.get(n) {
                Some(whole) => {
                    let skip = (range.start - records[*n].1.offset) as usize;
                    Buf::padded(&whole[skip..skip + len], unit)
                }
                None => Buf::zeroed(len),
            };
            match runs.last_mut() {
                Some((at, run)) if *at + run.len_bytes() as u64 == range.start => run.push(piece.freeze()),
                _ => runs.push((range.start, piece.freeze().into())),
            }
        }
        let writes = stream::iter(runs).map(|(at, run)| async move { device.write(at, run, false).await.outcome });
        let outcomes: Vec<Outcome> = writes.buffer_unordered(IN_FLIGHT_MAX).collect().await;
        match outcomes.into_iter().find(|outcome| *outcome != Outcome::Done) {
            Some(outcome) => Err(ReplayError::Disk(outcome)),
            None => Ok(window.iter().map(|(range, _)| range.end - range.start).sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Prng;

    #[test]
    fn windows_have_every_piece_once_in_order_and_keep_their_bounds() {
        let mut prng = Prng::new(3);
        let mut at = 0;
        let mut all = Vec::new();
        for n in 0..400 {
            let (len, kind) = match prng.below(8) {
                0 => (prng.between(1, 9) << 19, RecordKind::Zeroes),
                1 => (prng.between(1, 3) << 20, RecordKind::Data),
                _ => (prng.between(1, 16) << 12, RecordKind::Data),
            };
            let found = Found { kind, offset: at, len, sequence: n, batch: 1, grid_disk: 1, sum: 0, at: 0 };
            all.push((0, found));
            at += len + prng.below(2) * 512;
        }
        let records: Vec<(usize, &Found)> = all.iter().map(|(ring, found)| (*ring, found)).collect();
        let range = |found: &Found| found.offset..found.offset + found.len;
        let pieces: Vec<Piece> = all.iter().enumerate().map(|(n, (_, found))| (range(found), n)).collect();
        let windows = Windows { records: &records, pieces: pieces.iter().cloned().peekable(), rest: None };
        let mut given: Vec<Piece> = Vec::new();
        for window in windows {
            let bytes: u64 = window.iter().map(|(range, _)| range.end - range.start).sum();
            assert!(bytes <= WINDOW_BYTES_MAX || window.len() == 1, "{window:?}");
            for (range, n) in window {
                match given.last_mut() {
                    Some((last, of)) if *of == n && last.end == range.start => last.end = range.end,
                    _ => given.push((range, n)),
                }
            }
        }
        assert_eq!(given, pieces);
    }
}
