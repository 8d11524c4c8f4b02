//! The command line of `flashcell contents`: what is on flash, by range of the grid disks or by file.

use clap::Args;
use server::config::Size;
use server::files::FilesOptions;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Contents {
    /// The grid disk; none: all
    #[arg(value_name = "GRIDDISK")]
    grid_disk: Option<String>,
    /// Files, and directories with all below them, of one mounted file system that is on the grid disk; none: by range
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Where on the grid disk the file system begins (LVM, say); else as the kernel tells of its device
    #[arg(long, value_name = "SIZE", requires = "paths")]
    offset: Option<Size>,
    /// The cell: its directory, or host[:port]; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// In JSON, every file, with sizes in bytes
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(contents: Contents) -> Result<bool, crate::Failure> {
    let Contents { grid_disk, paths, offset, cell, json } = contents;
    let Some(grid_disk) = grid_disk else { return crate::carry_out("LIST FLASHCACHECONTENT".to_owned(), cell, json) };
    if paths.is_empty() {
        return crate::carry_out(format!("LIST FLASHCACHECONTENT {}", crate::quoted(&grid_disk)?), cell, json);
    }
    let options = FilesOptions { cell, grid_disk, offset_bytes: offset.map(|Size(bytes)| bytes), paths };
    let mut talk = std::io::stderr();
    let told = talk.is_terminal();
    let mut progress = |done: usize, all: usize| {
        if told {
            let end = if done == all { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r{done} of {all} files{end}");
        }
    };
    let report = server::files::files(&options, &mut progress)?;
    let shown = if json { report.json() } else { report.text() };
    // A reader that has gone has what it wanted.
    let _ = std::io::stdout().write_all(shown.as_bytes());
    for (path, why) in &report.skipped {
        let _ = writeln!(talk, "{}: {why}", path.display());
    }
    Ok(report.skipped.is_empty())
}
