//! The command line of `flashcell contents`: what is on flash, by range of the grid disks, by file, or by table of a database.

use clap::{Args, ValueEnum};
use server::config::Size;
use server::files::{DatabaseOptions, FilesOptions, VIEW, ViewOptions, Whereabouts};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Contents {
    /// The grid disk; none: all, or the attached one that the files are on
    #[arg(value_name = "GRIDDISK")]
    grid_disk: Option<String>,
    /// Files, and directories with all below them, of one mounted file system that is on the grid disk; with a / in the first where no grid
    /// disk is named. None: by range
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The tables and indexes of a PostgreSQL database
    #[arg(long, value_name = "DATABASE", conflicts_with = "paths")]
    database: Option<String>,
    /// PostgreSQL's client with what it needs
    #[arg(long, value_name = "COMMAND", default_value = "psql")]
    psql: String,
    /// Where on the grid disk the file system begins (stripes, say); else as the kernel tells of its device
    #[arg(long, value_name = "SIZE")]
    offset: Option<Size>,
    /// The cell: its directory, or host[:port]; else that of the attached grid disk, $FLASHCELL_CELL, or the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// In JSON, every file or relation, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Lines of every file or relation: its name, bytes of its length, located, cached, kept and dirty, then reads, hits and milliseconds saved
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Make the report the view flashcell.contents of the database, which its superusers and pg_monitor may read, or drop that view
    #[arg(long, value_name = "WHAT", requires = "database", conflicts_with_all = ["json", "csv"])]
    view: Option<ViewAction>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ViewAction {
    Make,
    Drop,
}

pub(crate) fn run(contents: Contents) -> Result<bool, crate::Failure> {
    let Contents { mut grid_disk, mut paths, database, psql, offset, cell, json, csv, view } = contents;
    if let Some(path) = grid_disk.take_if(|word| database.is_none() && word.contains('/')) {
        paths.insert(0, PathBuf::from(path));
    }
    if paths.is_empty() && database.is_none() {
        if offset.is_some() {
            return Err("--offset is for files\nhint: name them".into());
        }
        let Some(grid_disk) = grid_disk else {
            return crate::carry_out("LIST FLASHCACHECONTENT".to_owned(), cell, json);
        };
        return crate::carry_out(format!("LIST FLASHCACHECONTENT {}", crate::quoted(&grid_disk)?), cell, json);
    }
    let whereabouts = Whereabouts { cell, grid_disk, offset_bytes: offset.map(|Size(bytes)| bytes) };
    if let (Some(action), Some(database)) = (view, &database) {
        return carry_out_view(action, DatabaseOptions { whereabouts, database: database.clone(), psql });
    }
    let mut talk = std::io::stderr();
    let told = talk.is_terminal();
    let mut progress = |done: usize, all: usize| {
        if told {
            let end = if done == all { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r{done} of {all} files{end}");
        }
    };
    let report = match database {
        Some(database) => server::files::relations(&DatabaseOptions { whereabouts, database, psql }, &mut progress)?,
        None => server::files::files(&FilesOptions { whereabouts, paths }, &mut progress)?,
    };
    let shown = match () {
        () if json => report.json(),
        () if csv => report.csv(),
        () => report.text(),
    };
    // A reader that has gone has what it wanted.
    let _ = std::io::stdout().write_all(shown.as_bytes());
    for (path, why) in &report.skipped {
        let _ = writeln!(talk, "{}: {why}", path.display());
    }
    // A reader of CSV takes the rows there are: a table that is dropped meanwhile is no error.
    Ok(csv || report.skipped.is_empty())
}

fn carry_out_view(action: ViewAction, database: DatabaseOptions) -> Result<bool, crate::Failure> {
    let name = database.database.clone();
    let line = match action {
        ViewAction::Make => {
            let program = std::env::current_exe()?;
            server::files::make_view(&ViewOptions { database, program })?;
            format!("view {VIEW} made in database {name}")
        }
        ViewAction::Drop => {
            server::files::drop_view(&database)?;
            format!("view {VIEW} dropped from database {name}; the extension file_fdw stays")
        }
    };
    // A reader that has gone has what it wanted.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(true)
}
