//! The command lines of `flashcell adopt` and `flashcell release`.

use crate::Failure;
use clap::Args;
use server::adopt::{AdoptOptions, Counts, ReleaseOptions, adopt, release};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Adopt {
    /// The volume: a block device or an image file that holds a file system and is not in use
    volume: PathBuf,
    /// The cell: its directory or cell.toml; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<PathBuf>,
    /// The name of the grid disk; that of the volume unless stated
    #[arg(long, value_name = "GRIDDISK")]
    name: Option<String>,
    /// How it is cached: write-through, write-around, none, or with --exclusive-use write-back-ordered
    #[arg(long, value_name = "MODE", default_value = "write-through")]
    mode: String,
    /// Your word that nobody uses the volume but through the cell, from now on until it is released
    #[arg(long)]
    exclusive_use: bool,
}

#[derive(Args)]
pub(crate) struct Release {
    /// The volume that was adopted, or its grid disk
    #[arg(value_name = "VOLUME|GRIDDISK")]
    what: PathBuf,
    /// The cell: its directory or cell.toml; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<PathBuf>,
    /// Keep the volume as it is where its grid disk is offline; what flash alone has of it is lost
    #[arg(long, conflicts_with = "believe_cache")]
    discard_dirty: bool,
    /// Write what flash alone has to the volume though somebody else has used it
    #[arg(long)]
    believe_cache: bool,
}

/// Adopt; the name of the grid disk on stdout.
pub(crate) fn run(options: Adopt) -> Result<bool, Failure> {
    let Adopt { volume, cell, name, mode, exclusive_use } = options;
    let (grid_disk, lines) = adopt(&AdoptOptions { volume, cell, name, mode, exclusive_use })?;
    tell(&lines);
    let _ = writeln!(std::io::stdout(), "{grid_disk}");
    Ok(true)
}

/// Release.
pub(crate) fn run_release(options: Release) -> Result<bool, Failure> {
    let Release { what, cell, discard_dirty, believe_cache } = options;
    let counts = match (discard_dirty, believe_cache) {
        (true, _) => Some(Counts::Volume),
        (false, true) => Some(Counts::Cache),
        (false, false) => None,
    };
    tell(&release(&ReleaseOptions { what, cell, counts })?);
    Ok(true)
}

fn tell(lines: &[String]) {
    for line in lines {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
