//! Text of tools that look at the kernel: BCC's biosnoop, and the ring of ftrace as `trace`, `trace_pipe`, trace-cmd or perf print it.

use super::capture::Kind;
pub use super::text::SECTOR_BYTES;
use super::text::{number, seconds_ns, words};
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

/// A request as `block_bio_queue` tells of it, whatever it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// By the clock of the events.
    pub time_ns: u64,
    /// Major and minor number of the disk.
    pub disk: (u32, u32),
    /// The request's operations, in order: a durable write is a write and a flush.
    pub kinds: Vec<Kind>,
    /// First sector of 512 bytes on the disk.
    pub sector: u64,
    /// Sectors; 0 for a flush alone.
    pub sectors: u64,
}

/// The operations that the kernel's letters of a request (`blk_fill_rwbs`) name: a flush before the request, the request, and a flush behind a
/// durable one.
fn kinds_of_rwbs(rwbs: &[u8], sectors: u64) -> Vec<Kind> {
    let (before, rest) = match rwbs {
        [b'F', rest @ ..] if !rest.is_empty() => (true, rest),
        all => (false, all),
    };
    let moves = match rest.first() {
        Some(b'R') => Some(Kind::Read),
        Some(b'W') => Some(Kind::Write),
        Some(b'D') => Some(Kind::Trim),
        Some(b'N') => Some(Kind::Zero),
        _ => None,
    };
    let moves = moves.filter(|_| sectors > 0);
    let is_flush = before || rest.first() == Some(&b'F');
    let is_durable = moves.is_some_and(|kind| matches!(kind, Kind::Write | Kind::Zero)) && rest[1..].contains(&b'F');
    let flush = |is_one: bool| is_one.then_some(Kind::Flush);
    [flush(is_flush), moves, flush(is_durable)].into_iter().flatten().collect()
}

/// A line of `trace_pipe`: the request that it tells of; none where it tells of something else.
///
/// # Errors
/// It begins as an event of a request does and does not go on so.
pub fn queued(line: &[u8]) -> Result<Option<Queued>, &'static str> {
    let Some((0, before, behind)) = event_of(line) else { return Ok(None) };
    let time_ns = words(before).filter_map(|word| word.strip_suffix(b":")).filter_map(seconds_ns).last();
    let mut fields = words(behind);
    let mut next = || fields.next().ok_or("too few columns");
    let (disk, rwbs, sector, plus, sectors) = (next()?, next()?, next()?, next()?, next()?);
    let mut numbers = disk.split(|byte| *byte == b',').map(|part| number(part).and_then(|n| u32::try_from(n).ok()));
    let (Some(Some(major)), Some(Some(minor)), None) = (numbers.next(), numbers.next(), numbers.next()) else {
        return Err("no numbers of a device");
    };
    if plus != b"+" {
        return Err("no range of sectors");
    }
    let sector = number(sector).ok_or("the sector is not a number")?;
    let sectors = number(sectors).ok_or("the number of sectors is not a number")?;
    let time_ns = time_ns.ok_or("no time")?;
    Ok(Some(Queued { time_ns, disk: (major, minor), kinds: kinds_of_rwbs(rwbs, sectors), sector, sectors }))
}

/// How many events a line of `trace_pipe` says the kernel had no memory for: `CPU:1 [LOST 5 EVENTS]`.
#[must_use]
pub fn lost(line: &[u8]) -> Option<u64> {
    let mut fields = words(line.strip_prefix(b"CPU:")?).skip(1);
    (fields.next()? == b"[LOST").then(|| fields.next().and_then(number)).flatten()
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
        Ok(Some(RawRequest {
            device: DeviceName::Text(disk.to_vec()),
            start,
            count,
            op,
            time_ns: Some(time_ns),
            latency_ns: None,
        }))
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
        Ok(Some(RawRequest { device, start: bytes(sector)?, count: bytes(sectors)?, op, time_ns, latency_ns: None }))
    }

    /// That event is counted.
    pub(super) fn count(&mut self, event: usize) {
        self.event = Some(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_queued_request_asks_for() {
        let kinds = |rwbs: &str, sectors| kinds_of_rwbs(rwbs.as_bytes(), sectors);
        assert_eq!(kinds("R", 8), [Kind::Read]);
        assert_eq!(kinds("RAM", 8), [Kind::Read]);
        assert_eq!((kinds("WS", 8), kinds("WSM", 8)), (vec![Kind::Write], vec![Kind::Write]));
        assert_eq!(
            (kinds("FW", 0), kinds("FWS", 0), kinds("F", 0)),
            (vec![Kind::Flush], vec![Kind::Flush], vec![Kind::Flush])
        );
        assert_eq!(kinds("WFS", 8), [Kind::Write, Kind::Flush]);
        assert_eq!(kinds("FWFSM", 8), [Kind::Flush, Kind::Write, Kind::Flush]);
        assert_eq!(
            (kinds("D", 8), kinds("DE", 8), kinds("NS", 8)),
            (vec![Kind::Trim], vec![Kind::Trim], vec![Kind::Zero])
        );
        assert_eq!((kinds("", 8), kinds("ZA", 8), kinds("FF", 0)), (vec![], vec![], vec![Kind::Flush]));
    }

    #[test]
    fn lines_of_the_pipe() {
        let line = b"            fio-4242    [001] ..... 12345.678901: block_bio_queue: 259,3 WFS 2048 + 16 [fio]";
        let (kinds, time_ns) = (vec![Kind::Write, Kind::Flush], 12_345_678_901_000);
        assert_eq!(queued(line), Ok(Some(Queued { time_ns, disk: (259, 3), kinds, sector: 2048, sectors: 16 })));
        // Names of programs are anybody's.
        let odd = b"  1: a 2.5:-7 [0] . 1.000002: block_bio_queue: 7,0 R 0 + 8 [x + y]";
        assert_eq!(queued(odd).map(|got| got.map(|got| (got.time_ns, got.sectors))), Ok(Some((1_000_002_000, 8))));
        for other in
            ["", "# tracer: nop", "x-1 [0] . 1.0: block_rq_issue: 7,0 R 4096 () 0 + 8 [x]", "CPU:0 [LOST 5 EVENTS]"]
        {
            assert_eq!(queued(other.as_bytes()), Ok(None), "{other}");
        }
        for bad in [
            "1.0: block_bio_queue: 7 R 0 + 8",
            "1.0: block_bio_queue: 7,0 R 0 8 +",
            "1.0: block_bio_queue: 7,0 R",
            "block_bio_queue: 7,0 R 0 + 8",
        ] {
            assert!(queued(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(
            (lost(b"CPU:0 [LOST 5 EVENTS]"), lost(b"CPU:12 [LOST 70000 EVENTS]"), lost(b"CPU:0")),
            (Some(5), Some(70000), None)
        );
    }
}
