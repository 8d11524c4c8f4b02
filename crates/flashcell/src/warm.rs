//! The command line of `flashcell warm`: what is on flash here, brought to flash elsewhere.

use clap::Args;
use server::config::Size;
use server::files::{CarryOptions, Whereabouts};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Warm {
    /// The directory whose files are meant: a database's
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Write down which parts of its files are on flash; -: to standard output
    #[arg(long, value_name = "FILE", required_unless_present = "from", conflicts_with = "from")]
    save: Option<PathBuf>,
    /// Read the parts that were written down, elsewhere or earlier, so that they are on flash here; -: from standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The grid disk that the directory's file system is on; else the attached one it is on
    #[arg(long, value_name = "GRIDDISK")]
    griddisk: Option<String>,
    /// Where on the grid disk that file system begins (stripes, say); else as the kernel tells of its device
    #[arg(long, value_name = "SIZE")]
    offset: Option<Size>,
    /// The cell: its directory, or host[:port]; else that of the attached grid disk, $FLASHCELL_CELL, or the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// In JSON, with raw numbers
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(warm: Warm) -> Result<bool, crate::Failure> {
    let Warm { dir, save, from, griddisk, offset, cell, json } = warm;
    let whereabouts = Whereabouts { cell, grid_disk: griddisk, offset_bytes: offset.map(|Size(bytes)| bytes) };
    let options = CarryOptions { whereabouts, dir };
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(path) = save {
        let saved = if path == Path::new("-") {
            server::files::save(&options, &mut std::io::stdout().lock())?
        } else {
            let file = File::create(&path).map_err(|error| named(&path, error))?;
            server::files::save(&options, &mut BufWriter::new(file))?
        };
        // The list itself may be on standard output.
        let _ = writeln!(std::io::stderr(), "{}", if json { saved.json() } else { saved.text() });
        return Ok(true);
    }
    let path = from.unwrap_or_else(|| PathBuf::from("-"));
    let told = std::io::stderr().is_terminal();
    let mut progress = |done: u64, all: u64| {
        if told {
            let end = if done >= all { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r{} of {} MiB read into the cache{end}", done >> 20, all >> 20);
        }
    };
    let report = if path == Path::new("-") {
        server::files::carry_over(&options, std::io::stdin().lock(), &mut progress)?
    } else {
        let file = File::open(&path).map_err(|error| named(&path, error))?;
        server::files::carry_over(&options, file, &mut progress)?
    };
    let line = if json { report.json() } else { report.text() };
    // A reader that has gone has what it wanted.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(true)
}
