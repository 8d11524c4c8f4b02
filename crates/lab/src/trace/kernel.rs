//! Text of tools that look at the kernel: BCC's biosnoop, and the ring of ftrace as `trace`, `trace_pipe`, trace-cmd or perf print it.

use super::text::{SECTOR_BYTES, number, seconds_ns, words};
use super::{DeviceName, Op, Parsed, RawRequest};

/// Events of the block layer of which one a request is counted, the best first: what is queued is what a program asked for.
const EVENTS: [&[u8]; 4] = [b"block_bio_queue:", b"block_rq_insert:", b"block_rq_issue:", b"block_rq_complete:"];
/// Columns behind the bytes that biosnoop has: the latency, and before it perhaps the time in the queue.
const TRAILING_MAX: usize = 2;

/// What is remembered between lines.
#[derive(Debug, Default)]
pub(super) struct KernelText {
    /// Index into [`EVENTS`].
    event: Option<usize>,
    /// Columns behind the bytes.
    trailing: Option<usize>,
}

/// The event of a line of ftrace, as an index into [`EVENTS`], and what stands before and behind its name.
fn event_of(line: &[u8]) -> Option<(usize, &[u8], &[u8])> {
    EVENTS.iter().enumerate().find_map(|(n, event)| {
        let at = line.windows(event.len()).position(|window| window == *event)?;
        Some((n, &line[..at], &line[at + event.len()..]))
    })
}

/// The event to count, of those in the beginning of a file.
pub(super) fn event_among<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    lines.filter_map(event_of).map(|(event, ..)| event).min()
}

fn op_of_rwbs(rwbs: &[u8]) -> Option<Op> {
    if rwbs.contains(&b'D') {
        // A discard.
        return None;
    }
    if rwbs.contains(&b'R') {
        return Some(Op::Read);
    }
    rwbs.contains(&b'W').then_some(Op::Write)
}

/// Whether a line is the one that names biosnoop's columns; how many columns it has behind the bytes.
pub(super) fn biosnoop_names(line: &[u8]) -> Option<usize> {
    let names: Vec<&[u8]> = words(line).collect();
    let bytes = names.iter().position(|name| *name == b"BYTES")?;
    let known: [&[u8]; 5] = [b"COMM", b"PID", b"DISK", b"T", b"SECTOR"];
    let is_one = names.first().is_some_and(|name| name.starts_with(b"TIME")) && names.get(bytes - 5..bytes)? == known;
    let trailing = names.len() - bytes - 1;
    (is_one && (1..=TRAILING_MAX).contains(&trailing)).then_some(trailing)
}

impl KernelText {
    /// `TIME(s) COMM PID DISK T SECTOR BYTES [QUE(ms)] LAT(ms)`; the command may have spaces in it.
    pub(super) fn biosnoop(&mut self, line: &[u8]) -> Parsed {
        if words(line).next().is_some_and(|word| word.starts_with(b"TIME")) {
            let trailing = biosnoop_names(line)
                .ok_or("biosnoop with other columns than TIME COMM PID DISK T SECTOR BYTES … LAT")?;
            self.trailing = Some(trailing);
            return Ok(None);
        }
        let Some(trailing) = self.trailing else { return Err("the line of biosnoop's names is missing") };
        let fields: Vec<&[u8]> = words(line).collect();
        let Some(last) = fields.len().checked_sub(trailing + 1).filter(|last| *last >= 6) else {
            return Err("too few columns");
        };
        let [disk, kind, sector, bytes] = [last - 3, last - 2, last - 1, last].map(|at| fields[at]);
        let time_ns = seconds_ns(fields[0]).ok_or("the time is not a number")?;
        let sector = number(sector).ok_or("the sector is not a number")?;
        let count = number(bytes).ok_or("the size is not a number")?;
        let Some(op) = op_of_rwbs(kind) else {
            // Flushes and discards.
            return if kind.iter().all(u8::is_ascii_uppercase) { Ok(None) } else { Err("neither a read nor a write") };
        };
        let start = sector.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB")?;
        Ok(Some(RawRequest { device: DeviceName::Text(disk.to_vec()), start, count, op, time_ns: Some(time_ns) }))
    }

    /// `command-pid [cpu] flags seconds: block_…: major,minor rwbs [bytes (command)] sector + sectors …`. The first event of a file decides
    /// which one counts: a request passes through several.
    pub(super) fn ftrace(&mut self, line: &[u8]) -> Parsed {
        if line.starts_with(b"CPU:") && line.windows(4).any(|window| window == b"LOST") {
            return Err("events were lost: record with a larger buffer");
        }
        let Some((event, before, behind)) = event_of(line).filter(|_| !line.starts_with(b"#")) else { return Ok(None) };
        if *self.event.get_or_insert(event) != event {
            return Ok(None);
        }
        // perf writes `block:` between the time and the event.
        let time_ns = words(before).filter_map(|word| word.strip_suffix(b":")).filter_map(seconds_ns).last();
        let mut fields = words(behind);
        let (Some(device), Some(rwbs)) = (fields.next(), fields.next()) else { return Err("too few columns") };
        let Some(op) = op_of_rwbs(rwbs) else { return Ok(None) };
        let fields: Vec<&[u8]> = fields.collect();
        let Some(plus) = fields.iter().position(|field| *field == b"+").filter(|plus| *plus > 0) else {
            return Err("no range of sectors");
        };
        let sector = number(fields[plus - 1]).ok_or("the sector is not a number")?;
        let sectors =
            fields.get(plus + 1).and_then(|word| number(word)).ok_or("the number of sectors is not a number")?;
        let bytes = |sectors: u64| sectors.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB");
        let device = DeviceName::Text(device.to_vec());
        Ok(Some(RawRequest { device, start: bytes(sector)?, count: bytes(sectors)?, op, time_ns }))
    }

    /// That event is counted.
    pub(super) fn count(&mut self, event: usize) {
        self.event = Some(event);
    }
}
