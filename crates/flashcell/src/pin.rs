//! The command line of `flashcell pin`: ranges of a grid disk, files, or tables of a database.

use clap::{Args, CommandFactory};
use server::config::Size;
use server::files::{FOLLOW_EVERY, FilePolicy, PinOptions, Pinned, PinnedFiles, Table, Whereabouts};
use std::io::{IsTerminal, Write};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct Pin {
    /// See above; a PATH has a / in it
    #[arg(value_name = "GRIDDISK [OFFSET LENGTH POLICY] | PATH... POLICY | POLICY")]
    words: Vec<String>,
    /// A table: DATABASE.SCHEMA.TABLE or DATABASE.TABLE; may be given more than once
    #[arg(long, value_name = "TABLE")]
    table: Vec<Table>,
    /// Keep it up while files grow, shrink and are written anew, looking every so many seconds (15)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u64).range(1..=3600))]
    follow: Option<Option<u64>>,
    /// The grid disk that the files' file system is on; else the attached one it is on
    #[arg(long, value_name = "GRIDDISK")]
    griddisk: Option<String>,
    /// Where on the grid disk that file system begins (stripes, say); else as the kernel tells of its device
    #[arg(long, value_name = "SIZE")]
    offset: Option<Size>,
    /// PostgreSQL's client with what it needs
    #[arg(long, value_name = "COMMAND", default_value = "psql")]
    psql: String,
    /// Do not read what is to be kept: it is cached as it is asked for
    #[arg(long)]
    no_read: bool,
    /// The cell: its directory, or host[:port]; else that of the attached grid disk, $FLASHCELL_CELL, or the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// In JSON, with raw numbers
    #[arg(long)]
    json: bool,
}

fn policy(word: &str) -> Option<FilePolicy> {
    match word.to_ascii_lowercase().as_str() {
        "keep" => Some(FilePolicy::Keep),
        "default" => Some(FilePolicy::Default),
        "none" => Some(FilePolicy::None),
        "off" => Some(FilePolicy::Off),
        _ => None,
    }
}

/// As clap ends when it does not understand: with the usage, exit code 2.
fn usage(what: impl std::fmt::Display) -> ! {
    let mut command = crate::CommandLine::command();
    command.build();
    match command.find_subcommand_mut("pin") {
        Some(pin) => pin.error(clap::error::ErrorKind::ValueValidation, what).exit(),
        None => command.error(clap::error::ErrorKind::ValueValidation, what).exit(),
    }
}

fn policy_of(word: Option<&String>) -> FilePolicy {
    match word.and_then(|word| policy(word)) {
        Some(policy) => policy,
        None => {
            let given = word.map_or_else(|| "nothing".to_owned(), |word| format!("{word:?}"));
            usage(format!("the last word is to be keep, default, none or off, and is {given}"))
        }
    }
}

pub(crate) fn run(pin: Pin) -> Result<bool, crate::Failure> {
    let is_by_file = !pin.table.is_empty() || pin.words.first().is_some_and(|word| word.contains('/'));
    if is_by_file {
        return run_files(pin);
    }
    if pin.follow.is_some() || pin.griddisk.is_some() || pin.offset.is_some() {
        return Err(
            "--follow, --griddisk and --offset are for files and tables\nhint: a PATH has a / in it: ./file".into()
        );
    }
    let statement = match &pin.words[..] {
        [name] => format!("LIST PIN {}", crate::quoted(name)?),
        [name, offset, length, word] => {
            let policy = policy_of(Some(word));
            let (name, offset, length) = (crate::quoted(name)?, crate::quoted(offset)?, crate::quoted(length)?);
            match policy {
                FilePolicy::Off => format!("DROP PIN {name} offset={offset}, length={length}"),
                _ => format!(
                    "CREATE PIN {name} offset={offset}, length={length}, cachingPolicy={}",
                    word.to_ascii_lowercase()
                ),
            }
        }
        _ => usage(
            "a range is GRIDDISK OFFSET LENGTH POLICY; GRIDDISK alone lists its ranges; a PATH has a / in it: ./file",
        ),
    };
    crate::carry_out(statement, pin.cell, pin.json)
}

fn run_files(pin: Pin) -> Result<bool, crate::Failure> {
    let mut words = pin.words;
    let last = words.pop();
    let policy = policy_of(last.as_ref());
    if pin.follow.is_some() && policy == FilePolicy::Off {
        usage("there is nothing to follow: off");
    }
    if let Some(word) = words.iter().find(|word| !word.contains('/')) {
        usage(format!("{word:?} is no path: a PATH has a / in it: ./{word}"));
    }
    let files = PinnedFiles::new(PinOptions {
        whereabouts: Whereabouts {
            cell: pin.cell,
            grid_disk: pin.griddisk,
            offset_bytes: pin.offset.map(|Size(bytes)| bytes),
        },
        paths: words.into_iter().map(Into::into).collect(),
        tables: pin.table,
        psql: pin.psql,
        policy,
        read: !pin.no_read,
    });
    let told = std::io::stderr().is_terminal();
    let mut progress = |done: u64, all: u64| {
        if told {
            let end = if done >= all { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r{} of {} MiB read into the cache{end}", done >> 20, all >> 20);
        }
    };
    let show = |pinned: &Pinned| {
        let line = if pin.json { pinned.json() } else { pinned.text() };
        // A reader that has gone has what it wanted.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    let pinned = files.pass(true, &mut progress)?;
    show(&pinned);
    let Some(every) = pin.follow else { return Ok(true) };
    let every = every.map_or(FOLLOW_EVERY, Duration::from_secs);
    let mut said = String::new();
    loop {
        std::thread::sleep(every);
        // The cell or the database may be away for a while, and files go between two looks.
        match files.pass(false, &mut progress) {
            Ok(pinned) => {
                if pinned.added_bytes > 0 || pinned.dropped_bytes > 0 {
                    show(&pinned);
                }
                said.clear();
            }
            Err(error) => {
                let error = error.to_string();
                if error != said {
                    let _ = writeln!(std::io::stderr(), "flashcell: {error}");
                    said = error;
                }
            }
        }
    }
}
