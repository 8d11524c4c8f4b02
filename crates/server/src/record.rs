//! `flashcell redo record` and `flashcell trace record`: the redo writes of a running cell as they are answered, its requests as they
//! begin.
//!
//! Asks the cell a few times a second; what it has missed in between is counted and told. Never decides in which form they are
//! kept: its caller does.

use crate::admin::{RecordAnswer, RecordRequest, Recordable};
use crate::console::{ConsoleError, address_of};
use crate::http::{AskError, Client, HttpError};
use std::io;
use std::time::{Duration, Instant};

/// Between two questions: the cell keeps some seconds' worth.
const EVERY: Duration = Duration::from_millis(250);

/// Why a recording ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Which cell.
    #[error(transparent)]
    Cell(#[from] ConsoleError),
    /// The cell does not answer, refuses, or is not understood.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// What came cannot be kept.
    #[error("cannot write the recording: {0}")]
    Output(io::Error),
}

impl From<HttpError> for RecordError {
    fn from(error: HttpError) -> RecordError {
        RecordError::Ask(error.into())
    }
}

/// Record what a cell does for so long, or until `keep` wants no more (a broken pipe). How many came that the cell could not keep
/// between two questions.
///
/// # Errors
/// The cell is not known, does not answer or is of another release; or `keep` fails otherwise.
pub fn record<T: Recordable>(
    cell: Option<&str>,
    time: Option<Duration>,
    keep: &mut dyn FnMut(&[T]) -> io::Result<()>,
) -> Result<u64, RecordError> {
    let client = Client::new(address_of(cell)?)?;
    let ask = |after: Option<u64>| -> Result<RecordAnswer<T>, RecordError> {
        Ok(client.ask(T::PATH, &RecordRequest { after })?)
    };
    let begun = Instant::now();
    let mut next = ask(None)?.next;
    let mut missed = 0;
    loop {
        let left = time.map(|time| time.saturating_sub(begun.elapsed()));
        std::thread::sleep(left.map_or(EVERY, |left| left.min(EVERY)));
        let answer = ask(Some(next))?;
        next = answer.next;
        missed += answer.missed;
        match keep(&answer.recorded) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(missed),
            kept => kept.map_err(RecordError::Output)?,
        }
        if left.is_some_and(|left| left <= EVERY) {
            return Ok(missed);
        }
    }
}
