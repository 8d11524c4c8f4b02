//! The command lines of `flashcell redo record` and `flashcell trace record`: what `server` records, in the form that `lab` reads.

use clap::Args;
use lab::redo::capture as redo;
use lab::trace::capture as trace;
use server::{Recordable, RecordedKind, RecordedOutcome, RecordedRequest, RecordedWrite};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct RedoRecord {
    #[command(flatten)]
    options: RecordOptions,
}

#[derive(Args)]
pub(crate) struct TraceRecord {
    #[command(flatten)]
    options: RecordOptions,
    /// Only of this grid disk; may be given again
    #[arg(long = "griddisk", value_name = "GRIDDISK")]
    grid_disks: Vec<String>,
}

#[derive(Args)]
struct RecordOptions {
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

fn write_line(text: &mut String, write: &RecordedWrite) {
    let line = redo::Record {
        time_ns: write.time_ns,
        latency_ns: write.latency_ns,
        grid_disk: write.grid_disk.as_str().into(),
        database: write.database.as_str().into(),
        outcome: match write.outcome {
            RecordedOutcome::DiskFirst => redo::Outcome::DiskFirst,
            RecordedOutcome::FlashFirst => redo::Outcome::FlashFirst,
            RecordedOutcome::Failed => redo::Outcome::Failed,
        },
    };
    let _ = writeln!(text, "{line}");
}

fn request_line(text: &mut String, request: &RecordedRequest) {
    let line = trace::Record {
        time_ns: request.time_ns,
        grid_disk: &request.grid_disk,
        database: &request.database,
        kind: match request.request {
            RecordedKind::Read => trace::Kind::Read,
            RecordedKind::Write => trace::Kind::Write,
            RecordedKind::Flush => trace::Kind::Flush,
            RecordedKind::Trim => trace::Kind::Trim,
            RecordedKind::Zero => trace::Kind::Zero,
            RecordedKind::Prefetch => trace::Kind::Prefetch,
        },
        offset_bytes: request.offset_bytes,
        bytes: request.bytes,
    };
    let _ = writeln!(text, "{line}");
}

pub(crate) fn record_redo(options: &RedoRecord) -> Result<bool, crate::Failure> {
    record(&options.options, redo::head(), "redo writes", &mut write_line)
}

pub(crate) fn record_trace(options: &TraceRecord) -> Result<bool, crate::Failure> {
    let wanted =
        |name: &str| options.grid_disks.is_empty() || options.grid_disks.iter().any(|n| n.eq_ignore_ascii_case(name));
    record(&options.options, trace::head(), "requests", &mut |text: &mut String, request: &RecordedRequest| {
        if wanted(&request.grid_disk) {
            request_line(text, request);
        }
    })
}

/// Record until told otherwise; `what`: what they are called.
fn record<T: Recordable>(
    options: &RecordOptions,
    head: String,
    what: &str,
    line: &mut dyn FnMut(&mut String, &T),
) -> Result<bool, crate::Failure> {
    let mut out: Box<dyn Write> = if options.file.as_os_str() == "-" {
        Box::new(io::stdout())
    } else {
        let made = File::options().write(true).create_new(true).open(&options.file);
        Box::new(made.map_err(|error| {
            format!("cannot make {}: {error}\nhint: name a file that is not there yet", options.file.display())
        })?)
    };
    let mut head = Some(head);
    let mut lines = 0;
    // Whole lines in one write, so that ^C ends no line in the middle.
    let mut keep = |items: &[T]| {
        let mut text = String::new();
        items.iter().for_each(|item| line(&mut text, item));
        lines += text.bytes().filter(|byte| *byte == b'\n').count();
        out.write_all(head.take().unwrap_or_default().as_bytes())?;
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    let time = options.time_ps.map(|ps| Duration::from_nanos(ps.unsigned_abs() / 1000));
    let missed = match server::record(options.cell.as_deref(), time, &mut keep)? {
        0 => String::new(),
        missed => format!("; {missed} more came too fast to be kept"),
    };
    let _ = writeln!(io::stderr(), "{lines} {what} recorded{missed}");
    Ok(true)
}
