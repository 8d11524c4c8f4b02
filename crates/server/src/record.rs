//! `flashcell redo record` and `flashcell trace record`: the redo writes of a running cell as they are answered, its requests in the
//! order they begin.
//!
//! Asks the cell a few times a second; what it has missed in between is counted and told. A signal that ends it waits until what the cell
//! has is kept. Never decides in which form: its caller does.

use crate::admin::{RecordAnswer, RecordRequest, Recordable};
use crate::console::{ConsoleError, address_of};
use crate::http::{AskError, Client, HttpError};
use device::HeldSignals;
use std::io;
use std::time::{Duration, Instant};

/// Between two questions: the cell keeps some seconds' worth.
const EVERY: Duration = Duration::from_millis(250);
/// A cell that does not answer for so long has forgotten who asked; a signal waits no longer for it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why a recording ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Which cell.
    #[error(transparent)]
    Cell(#[from] ConsoleError),
    /// The cell does not answer, refuses, or is not understood.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Signals cannot be held back.
    #[error("cannot hold back signals: {0}")]
    Signals(io::Error),
    /// What came cannot be kept.
    #[error("cannot write the recording: {0}")]
    Output(io::Error),
}

impl From<HttpError> for RecordError {
    fn from(error: HttpError) -> RecordError {
        RecordError::Ask(error.into())
    }
}

/// What a recording has come to.
#[derive(Debug)]
pub struct RecordEnd {
    /// How many came that the cell could not keep between two questions.
    pub missed: u64,
    /// A signal that ended it acts when this is dropped.
    pub held: HeldSignals,
}

/// Record what a cell does for so long, or until ^C, or until `keep` wants no more (a broken pipe). `keep` is told when nothing comes after
/// that; signals are still held back then, also where the cell has gone away.
///
/// # Errors
/// The cell is not known, does not answer or is of another release; or `keep` fails otherwise.
pub fn record<T: Recordable>(
    cell: Option<&str>,
    time: Option<Duration>,
    keep: &mut dyn FnMut(&[T], bool) -> io::Result<()>,
) -> Result<RecordEnd, RecordError> {
    let held = HeldSignals::hold().map_err(RecordError::Signals)?;
    let client = Client::new(address_of(cell)?)?.patient_for(PATIENCE);
    let ask = |after: Option<u64>, last: bool| -> Result<RecordAnswer<T>, RecordError> {
        Ok(client.ask(T::PATH, &RecordRequest { after, last })?)
    };
    let begun = Instant::now();
    let mut next = ask(None, false)?.next;
    let (mut missed, mut is_kept) = (0, false);
    loop {
        let left = time.map(|time| time.saturating_sub(begun.elapsed()));
        let interrupted = held.pause(left.map_or(EVERY, |left| left.min(EVERY))).is_err();
        let last = interrupted || left.is_some_and(|left| left <= EVERY);
        let answer = ask(Some(next), last).inspect_err(|_| {
            if is_kept {
                // The error tells why it ends here.
                let _ = keep(&[], true);
            }
        })?;
        is_kept = true;
        next = answer.next;
        missed += answer.missed;
        match keep(&answer.recorded, last) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(RecordEnd { missed, held }),
            kept => kept.map_err(RecordError::Output)?,
        }
        if last {
            return Ok(RecordEnd { missed, held });
        }
    }
}
