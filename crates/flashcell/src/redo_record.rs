//! The command line of `flashcell redo record`: what `server` records, in the form that `lab` reads.

use clap::Args;
use lab::redo::capture::{self, Outcome, Record};
use server::{RecordedOutcome, RecordedWrite};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct RedoRecord {
    /// The cell: its directory, or HOST[:PORT]
    #[arg(short, long, value_name = "CELL")]
    cell: Option<String>,
    /// Record for so long, like 60s; until ^C unless given
    #[arg(long = "for", value_name = "TIME", value_parser = lab::redo::parse_time_ps)]
    time_ps: Option<i64>,
    /// Where to write; a file that is there is not overwritten, - for standard output
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

fn line(write: &RecordedWrite) -> Record<'_> {
    Record {
        time_ns: write.time_ns,
        latency_ns: write.latency_ns,
        grid_disk: write.grid_disk.as_str().into(),
        database: write.database.as_str().into(),
        outcome: match write.outcome {
            RecordedOutcome::DiskFirst => Outcome::DiskFirst,
            RecordedOutcome::FlashFirst => Outcome::FlashFirst,
            RecordedOutcome::Failed => Outcome::Failed,
        },
    }
}

pub(crate) fn run(options: &RedoRecord) -> Result<bool, crate::Failure> {
    let mut out: Box<dyn Write> = if options.file.as_os_str() == "-" {
        Box::new(io::stdout())
    } else {
        let made = File::options().write(true).create_new(true).open(&options.file);
        Box::new(made.map_err(|error| {
            format!("cannot make {}: {error}\nhint: name a file that is not there yet", options.file.display())
        })?)
    };
    let mut head = Some(capture::head());
    // Whole lines in one write, so that ^C ends no line in the middle.
    let mut keep = |writes: &[RecordedWrite]| {
        let mut text = head.take().unwrap_or_default();
        for write in writes {
            let _ = writeln!(text, "{}", line(write));
        }
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    let time = options.time_ps.map(|ps| Duration::from_nanos(ps.unsigned_abs() / 1000));
    let totals = server::record_redo(options.cell.as_deref(), time, &mut keep)?;
    let missed = match totals.missed {
        0 => String::new(),
        missed => format!("; {missed} more came too fast to be kept"),
    };
    let _ = writeln!(io::stderr(), "{} redo writes recorded{missed}", totals.recorded);
    Ok(true)
}
