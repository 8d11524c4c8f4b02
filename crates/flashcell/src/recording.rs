//! The command lines of `flashcell redo record` and `flashcell trace record`: what `server` records, in the form that `lab` reads.

use clap::Args;
use lab::redo::capture as redo;
use lab::trace::capture as trace;
use lab::trace::kernel::{self, Queued, SECTOR_BYTES};
use lab::trace::pairs::Pairs;
use lab::zstd;
use server::{RecordEnd, Recordable, RecordedKind, RecordedOutcome, RecordedRequest, RecordedWrite, WatchedDevice};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    /// In place of a cell this block device of this host, which no cell has yet; may be given again. By the kernel's events: needs root
    #[arg(long = "device", value_name = "PATH", conflicts_with_all = ["cell", "grid_disks"])]
    devices: Vec<PathBuf>,
}

#[derive(Args)]
struct RecordOptions {
    /// The cell: its directory, or HOST[:PORT]
    #[arg(short, long, value_name = "CELL")]
    cell: Option<String>,
    /// Record for so long, like 60s; until ^C unless given
    #[arg(long = "for", value_name = "TIME", value_parser = lab::redo::parse_time_ps)]
    time_ps: Option<i64>,
    /// Where to write; a file that is there is not overwritten, - for standard output. Packed with zstd where its name ends in .zst
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
        latency_ns: request.latency_ns,
    };
    let _ = writeln!(text, "{line}");
}

pub(crate) fn record_redo(options: &RedoRecord) -> Result<bool, crate::Failure> {
    record(&options.options, redo::head(), "redo writes", &mut write_line)
}

pub(crate) fn record_trace(options: &TraceRecord) -> Result<bool, crate::Failure> {
    if !options.devices.is_empty() {
        return record_devices(options);
    }
    let wanted =
        |name: &str| options.grid_disks.is_empty() || options.grid_disks.iter().any(|n| n.eq_ignore_ascii_case(name));
    record(&options.options, trace::head(), "requests", &mut |text: &mut String, request: &RecordedRequest| {
        if wanted(&request.grid_disk) {
            request_line(text, request);
        }
    })
}

/// The lines of a request that the kernel tells of, one for each thing that it does, with the latency of all of it; none where nobody watches
/// that part of the disk.
fn queued_lines(
    text: &mut String,
    (queued, latency_ns): &(Queued, Option<u64>),
    devices: &[WatchedDevice],
    since_epoch_ns: i128,
) -> usize {
    let latency_ns = *latency_ns;
    let of_disk = devices.iter().filter(|device| device.disk == queued.disk);
    let holds = |device: &&WatchedDevice| {
        queued.sector.checked_sub(device.first_sector).is_some_and(|sector| sector < device.sectors)
    };
    // The innermost, where a disk and a part of it are both watched. A flush alone is one of the whole disk.
    let whose: Vec<&WatchedDevice> = match queued.sectors {
        0 => of_disk.collect(),
        _ => of_disk.filter(holds).min_by_key(|device| device.sectors).into_iter().collect(),
    };
    let time_ns = u64::try_from(i128::from(queued.time_ns) + since_epoch_ns).unwrap_or(0);
    let mut lines = 0;
    for device in whose {
        for &kind in &queued.kinds {
            let moves = kind != trace::Kind::Flush;
            let bytes = |sectors: u64| if moves { sectors.saturating_mul(SECTOR_BYTES) } else { 0 };
            let (offset_bytes, bytes) =
                (bytes(queued.sector.saturating_sub(device.first_sector)), bytes(queued.sectors));
            let (grid_disk, database) = (device.name.as_str(), "");
            let line = trace::Record { time_ns, grid_disk, database, kind, offset_bytes, bytes, latency_ns };
            let _ = writeln!(text, "{line}");
            lines += 1;
        }
    }
    lines
}

/// Record block devices that no cell has.
fn record_devices(options: &TraceRecord) -> Result<bool, crate::Failure> {
    let mut out = Output::make(&options.options.file, trace::head())?;
    let (mut requests, mut missed, mut odd) = (0, 0, 0_u64);
    let mut pairs = Pairs::default();
    let (time, mut begun) = (options.options.time(), false);
    let held = server::watch(&options.devices, time, &mut |devices, events| {
        if !std::mem::replace(&mut begun, true) {
            for device in devices.iter().filter(|device| device.drops_flushes) {
                let _ = writeln!(
                    io::stderr(),
                    "{}: has no volatile cache, and its flushes end in the kernel before they can be seen: they are not recorded",
                    device.name
                );
            }
        }
        let mut text = String::new();
        for line in events.lines.split(|byte| *byte == b'\n') {
            match kernel::event(line) {
                Ok(Some(event)) => pairs.add(event),
                Ok(None) => missed += kernel::lost(line).unwrap_or(0),
                Err(_) => odd += 1,
            }
            while let Some(request) = pairs.next(None, false) {
                requests += queued_lines(&mut text, &request, devices, events.since_epoch_ns);
            }
        }
        while let Some(request) = pairs.next(events.until_ns, events.is_last) {
            requests += queued_lines(&mut text, &request, devices, events.since_epoch_ns);
        }
        out.keep(&text, events.is_last)
    })?;
    if odd > 0 {
        let _ = writeln!(io::stderr(), "{odd} events of the kernel have a form that is not known; they are left out");
    }
    out.end(requests, "requests", missed, "events of the kernel");
    if requests == 0 {
        let _ = writeln!(
            io::stderr(),
            "hint: nothing was asked of it, or it is below an md RAID or a multipath device: name the device that the file system lies on"
        );
    }
    drop(held);
    Ok(true)
}

/// So much text is packed at once where it comes fast enough: smaller frames of zstd pack worse.
const FRAME_BYTES: usize = 128 << 10;
/// A frame is written after so long in any case: what a killed recorder loses.
const FRAME_EVERY: Duration = Duration::from_secs(5);

/// Where a recording goes: whole lines in one write, or a whole frame of zstd, so that nothing that ends it ends one in the middle.
struct Output {
    out: Box<dyn Write>,
    head: Option<String>,
    /// The file that was made, and how much of it is whole lines.
    made: Option<(PathBuf, File, u64)>,
    /// Where the file is packed: text for the next frame, and since when it waits.
    gathered: Option<(String, Instant)>,
}

impl Output {
    fn make(file: &Path, head: String) -> Result<Output, String> {
        if file.as_os_str() == "-" {
            return Ok(Output { out: Box::new(io::stdout()), head: Some(head), made: None, gathered: None });
        }
        let made = File::options().write(true).create_new(true).open(file);
        let out = made.map_err(|error| {
            format!("cannot make {}: {error}\nhint: name a file that is not there yet", file.display())
        })?;
        let again = out.try_clone().map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let gathered = file.extension().is_some_and(|name| name == "zst").then(|| (String::new(), Instant::now()));
        Ok(Output { out: Box::new(out), head: Some(head), made: Some((file.to_owned(), again, 0)), gathered })
    }

    /// Keep whole lines; `is_last`: none come after these.
    fn keep(&mut self, text: &str, is_last: bool) -> io::Result<()> {
        // The head at once: whoever waits for a recording to begin looks for it.
        if let Some(head) = &self.head {
            let text = [head, text].concat();
            let kept = if self.gathered.is_some() {
                self.write(&zstd::pack(text.as_bytes()))
            } else {
                self.write(text.as_bytes())
            };
            self.head = self.head.take().filter(|_| kept.is_err());
            return kept;
        }
        let Some((gathered, since)) = &mut self.gathered else { return self.write(text.as_bytes()) };
        if gathered.is_empty() {
            *since = Instant::now();
        }
        gathered.push_str(text);
        let is_frame = is_last || gathered.len() >= FRAME_BYTES || since.elapsed() >= FRAME_EVERY;
        if is_frame { self.write_gathered() } else { Ok(()) }
    }

    fn write_gathered(&mut self) -> io::Result<()> {
        let text = self.gathered.as_mut().map(|(text, _)| std::mem::take(text)).unwrap_or_default();
        if text.is_empty() { Ok(()) } else { self.write(&zstd::pack(text.as_bytes())) }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let kept = self.out.write_all(bytes).and_then(|()| self.out.flush());
        match (&kept, &mut self.made) {
            (Ok(()), Some((_, _, whole))) => *whole += bytes.len() as u64,
            // A device that is full ends a line anywhere.
            (Err(_), Some((_, file, whole))) => drop(file.set_len(*whole)),
            (_, None) => {}
        }
        kept
    }

    /// Say what there is.
    fn end(self, lines: usize, what: &str, missed: u64, missed_what: &str) {
        let missed = match missed {
            0 => String::new(),
            missed => format!("; {missed} more {missed_what} came too fast to be kept"),
        };
        let _ = writeln!(io::stderr(), "{lines} {what} recorded{missed}");
    }
}

impl Drop for Output {
    /// Write the last frame. A file without a record, for a reason that is told, is removed: the next try may have its name.
    fn drop(&mut self) {
        let _ = self.write_gathered();
        if let (Some(_), Some((file, ..))) = (&self.head, &self.made) {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl RecordOptions {
    fn time(&self) -> Option<Duration> {
        self.time_ps.map(|ps| Duration::from_nanos(ps.unsigned_abs() / 1000))
    }
}

/// Record until told otherwise; `what`: what they are called.
fn record<T: Recordable>(
    options: &RecordOptions,
    head: String,
    what: &str,
    line: &mut dyn FnMut(&mut String, &T),
) -> Result<bool, crate::Failure> {
    let mut out = Output::make(&options.file, head)?;
    let mut lines = 0;
    let mut keep = |items: &[T], is_last: bool| {
        let mut text = String::new();
        items.iter().for_each(|item| line(&mut text, item));
        lines += text.bytes().filter(|byte| *byte == b'\n').count();
        out.keep(&text, is_last)
    };
    let RecordEnd { missed, held } = server::record(options.cell.as_deref(), options.time(), &mut keep)?;
    out.end(lines, what, missed, what);
    drop(held);
    Ok(true)
}
