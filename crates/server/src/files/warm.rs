//! Has what is to be kept in flash there: reads what is not, and reads again what the cell had no memory or room for at the time.
//!
//! Never reads what is on flash already, and never goes on with what does not stay there: KEEP data may be more than there is room for.

use super::pin::PinError;
use super::ranges::{PAGE_BYTES, Ranges};
use super::target::Target;
use super::{Batch, FilesError};
use crate::admin::{HELD_PATH, HeldAnswer, HeldRequest};
use device::sync::lock;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// What is read at a time: long enough for a disk, short enough that others get between.
pub(super) const READ_BYTES: usize = 256 << 10;
/// Who read at the same time: one alone leaves a disk idle between its requests (an emulated sata-7200: 67 of 113 MB/s).
const READERS: usize = 4;
/// Times that the same is read in one pass.
const ATTEMPTS: usize = 4;
/// For the cell to have memory again.
const BETWEEN: Duration = Duration::from_millis(300);
/// Before the next look, when there is nothing left to read or the last look was of use; doubled each time that it was not, up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Looks take no more than this share of the time: a look asks of every block.
const SHARE: u32 = 20;

/// A piece of a file.
pub(super) struct Piece<'a> {
    pub(super) path: &'a Path,
    /// Where in the file.
    pub(super) from: u64,
    /// Where on the grid disk.
    pub(super) at: u64,
    pub(super) len: u64,
}

/// See the module.
pub(super) struct Warmer(Mutex<Next>);

struct Next {
    due: Instant,
    pause: Duration,
}

impl Warmer {
    pub(super) fn new() -> Warmer {
        Warmer(Mutex::new(Next { due: Instant::now(), pause: PAUSE_MIN }))
    }

    /// Read what of the pieces is not on flash; how many bytes are still not there then. None: not looked, since the last look is not long
    /// ago and nothing `is_new`.
    pub(super) fn warm(
        &self,
        target: &Target,
        pieces: &[Piece<'_>],
        is_new: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<u64>, PinError> {
        let mut next = lock(&self.0);
        let began = Instant::now();
        if !is_new && began < next.due {
            return Ok(None);
        }
        let mut left = missing(target, pieces)?;
        let (mut looked, mut of_use) = (began.elapsed(), true);
        for attempt in 0..ATTEMPTS {
            if left.is_empty() {
                break;
            }
            if attempt > 0 {
                std::thread::sleep(BETWEEN);
            }
            read(pieces, &left, progress)?;
            let asked = Instant::now();
            let after = missing(target, pieces)?;
            looked += asked.elapsed();
            of_use = is_of_use(left.bytes(), after.bytes());
            left = after;
            if !of_use {
                break;
            }
        }
        next.pause = if of_use { PAUSE_MIN } else { (next.pause * 2).min(PAUSE_MAX) };
        next.due = Instant::now() + next.pause.max(looked * SHARE);
        Ok(Some(left.bytes()))
    }
}

/// Whether reading has brought an eighth of what was missing.
fn is_of_use(before: u64, after: u64) -> bool {
    u128::from(after) * 8 <= u128::from(before) * 7
}

/// What of the pieces is not on flash, in steps of [`READ_BYTES`].
fn missing(target: &Target, pieces: &[Piece<'_>]) -> Result<Ranges, PinError> {
    let whole: Vec<(u64, u64)> = pieces.iter().map(|piece| (piece.at, piece.len)).collect();
    let parts = incomplete(target, &whole)?.into_iter().flat_map(|(at, len)| {
        (0..len).step_by(READ_BYTES).map(move |step| (at + step, (len - step).min(READ_BYTES as u64)))
    });
    let parts: Vec<(u64, u64)> = parts.collect();
    Ok(Ranges::new(incomplete(target, &parts)?.into_iter().map(|(at, len)| (at, at + len))))
}

/// Those of the ranges (offset, length) that are not on flash whole.
fn incomplete(target: &Target, ranges: &[(u64, u64)]) -> Result<Vec<(u64, u64)>, PinError> {
    let cached = cached_of(target, ranges)?;
    Ok(ranges.iter().zip(cached).filter(|((_, len), cached)| cached < len).map(|(range, _)| *range).collect())
}

/// How many bytes of each range (offset, length) are on flash.
pub(super) fn cached_of(target: &Target, ranges: &[(u64, u64)]) -> Result<Vec<u64>, FilesError> {
    let mut cached = vec![0; ranges.len()];
    let mut send = |asked: &[(u64, u64)], owners: &[usize]| -> Result<(), FilesError> {
        let request = HeldRequest { grid_disk: target.grid_disk.clone(), ranges: asked.to_vec() };
        let answer: HeldAnswer = target.client.ask(HELD_PATH, &request)?;
        owners.iter().zip(&answer.held).for_each(|(owner, held)| cached[*owner] += held.cached_bytes);
        Ok(())
    };
    let mut batch = Batch::default();
    for (owner, &(at, len)) in ranges.iter().enumerate() {
        batch.add(owner, at, len, &mut send)?;
    }
    batch.send(&mut send)?;
    Ok(cached)
}

/// A part of a piece that is to be read.
struct Step {
    piece: usize,
    /// Where on the grid disk, and how much: [`READ_BYTES`] at most.
    at: u64,
    len: usize,
}

/// What is wanted of the pieces, in their order.
fn steps_of(pieces: &[Piece<'_>], wanted: &Ranges) -> Vec<Step> {
    let mut steps = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let here = Ranges::new([(piece.at, piece.at + piece.len)]);
        for (start, end) in here.minus(&here.minus(wanted)).iter() {
            let starts = (start..end).step_by(READ_BYTES);
            steps.extend(starts.map(|at| Step { piece: index, at, len: (end - at).min(READ_BYTES as u64) as usize }));
        }
    }
    steps
}

/// Read ranges once, past the page cache: what is asked for is cached. Several readers, so that the disk has the next request while a
/// reader is told of the last; each takes the next step, so that they go through the disk together.
fn read(pieces: &[Piece<'_>], wanted: &Ranges, progress: &mut dyn FnMut(u64, u64)) -> Result<(), PinError> {
    let (steps, all) = (steps_of(pieces, wanted), wanted.bytes());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (told, heard) = mpsc::channel();
        for _ in 0..READERS.min(steps.len()) {
            let (told, steps, next) = (told.clone(), &steps, &next);
            scope.spawn(move || {
                // Who hears has gone with the first error.
                let read = read_steps(pieces, steps, next, &mut |bytes| told.send(Ok(bytes)).is_ok());
                if let Err(error) = read {
                    let _ = told.send(Err(error));
                }
            });
        }
        drop(told);
        let mut done = 0;
        for bytes in heard {
            done += bytes?;
            progress(done.min(all), all);
        }
        Ok(())
    })
}

/// Read step after step, until there is none or nobody listens.
fn read_steps(
    pieces: &[Piece<'_>],
    steps: &[Step],
    next: &AtomicUsize,
    told: &mut dyn FnMut(u64) -> bool,
) -> Result<(), PinError> {
    let mut buf = vec![0_u8; READ_BYTES + PAGE_BYTES as usize];
    let skip = buf.as_ptr().align_offset(PAGE_BYTES as usize);
    let buf = &mut buf[skip..skip + READ_BYTES];
    let mut open: Option<(usize, File)> = None;
    while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
        let piece = &pieces[step.piece];
        let failed = |source| PinError::Read { path: piece.path.to_owned(), source };
        let file = match open.take().filter(|(index, _)| *index == step.piece) {
            Some((_, file)) => file,
            None => match File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(piece.path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            },
        };
        // Shorter at the end of the file, or when it has been cut meanwhile.
        file.read_at(&mut buf[..step.len], piece.from + (step.at - piece.at)).map_err(failed)?;
        open = Some((step.piece, file));
        if !told(step.len as u64) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_of_use;

    #[test]
    fn an_eighth_is_of_use_and_less_is_not() {
        assert!(is_of_use(800, 700) && is_of_use(800, 0));
        assert!(!is_of_use(800, 701) && !is_of_use(800, 900));
    }
}
