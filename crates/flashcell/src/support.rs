//! The command line of `flashcell support`.

use crate::Failure;
use clap::Args;
use server::support::{SupportOptions, support};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Support {
    /// The cell: its directory, or host[:port]; else $FLASHCELL_CELL, or the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// Where to write; flashcell-support-CELL-TIME.tar.gz in the current directory unless stated
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Write the bundle; its name on stdout, what is not in it on stderr.
pub(crate) fn run(options: Support) -> Result<bool, Failure> {
    let Support { cell, output } = options;
    let bundle = support(&SupportOptions { cell, output })?;
    let mut stderr = std::io::stderr();
    for (what, why) in &bundle.missing {
        let _ = writeln!(stderr, "not in it: {what} ({})", why.lines().next().unwrap_or_default());
    }
    let _ = writeln!(
        stderr,
        "{} files, {} KiB; look through it before you hand it on",
        bundle.files.len(),
        bundle.bytes.div_ceil(1024)
    );
    let _ = writeln!(std::io::stdout(), "{}", bundle.path.display());
    Ok(true)
}
