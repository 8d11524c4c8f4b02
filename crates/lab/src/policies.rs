//! Replacement policies on recorded traces: what each would miss, and what the cache of this project would write.
//!
//! The production policy runs over the production accounting of segments; the others are exact at block granularity and
//! pay for nothing but blocks. Never starts a cell, never writes anything but the files it is told to.

pub mod log;
pub mod reference;
mod report;
mod run;
mod size;

pub use run::{DEFAULT_POLICY, ON_LOG, PoliciesError, PoliciesOptions, Row, Written, replay};
pub(crate) use run::{STDIN, spool};
pub use size::Size;

use crate::output;
use std::path::Path;

/// Replay traces and write what is asked for; the table. Progress goes to stderr.
///
/// # Errors
/// See [`PoliciesError`].
pub fn policies(options: &PoliciesOptions) -> Result<String, PoliciesError> {
    let rows = replay(options, &mut std::io::stderr())?;
    if let Some(path) = &options.json {
        save(path, &report::json(&rows))?;
    }
    if let Some(path) = &options.plot {
        save(path, &report::plot(&rows))?;
    }
    Ok(report::table(&rows))
}

fn save(path: &Path, text: &str) -> Result<(), PoliciesError> {
    output::save(path, text).map_err(|source| PoliciesError::Write { path: path.to_owned(), source })
}
