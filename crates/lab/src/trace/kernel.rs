//! Text of tools that look at the kernel: BCC's biosnoop, and the ring of ftrace as `trace`, `trace_pipe`, trace-cmd or perf print it.

use super::capture::Kind;
pub use super::text::SECTOR_BYTES;
use super::text::{number, scaled_ns, seconds_ns, words};
use super::{DeviceName, Op, Parsed, RawRequest};

/// Events of the block layer of which one a request is counted, the best first: what is queued is what a program asked for.
const EVENTS: [&[u8]; 5] =
    [b"block_bio_queue:", b"block_rq_insert:", b"block_rq_issue:", b"block_rq_complete:", b"block_bio_complete:"];
/// Those that are counted: the last may tell where a request has ended in place of where it began.
const COUNTED: usize = 4;
/// Indices of those that a recording takes.
const QUEUED: usize = 0;
const REQUEST_DONE: usize = 3;
const BIO_DONE: usize = 4;
/// Columns behind the bytes that biosnoop has: the latency, and before it perhaps the time in the queue.
const TRAILING_MAX: usize = 2;
const NS_PER_MS: u64 = 1_000_000;

/// What is remembered between lines.
#[derive(Debug, Default)]
pub(super) struct KernelText {
    /// Index into [`EVENTS`].
    event: Option<usize>,
    /// Columns behind the bytes.
    trailing: Option<usize>,
}

/// A line of ftrace: `command-pid [cpu] flags seconds: block_…: major,minor rwbs [bytes (command)] sector + sectors …`.
struct EventLine<'a> {
    /// Index into [`EVENTS`].
    event: usize,
    time_ns: Option<u64>,
    device: &'a [u8],
    rwbs: &'a [u8],
    rest: &'a [u8],
}

impl EventLine<'_> {
    /// None where it tells of no such event.
    fn of(line: &[u8]) -> Option<Result<EventLine<'_>, &'static str>> {
        let (event, before, behind) = EVENTS.iter().enumerate().find_map(|(n, event)| {
            let at = line.windows(event.len()).position(|window| window == *event)?;
            Some((n, &line[..at], &line[at + event.len()..]))
        })?;
        // perf writes `block:` between the time and the event.
        let time_ns = words(before).filter_map(|word| word.strip_suffix(b":")).filter_map(seconds_ns).last();
        let mut fields = words(behind);
        let (Some(device), Some(rwbs)) = (fields.next(), fields.next()) else { return Some(Err("too few columns")) };
        // Behind the letters, wherever that is in the line.
        let at = rwbs.as_ptr() as usize - behind.as_ptr() as usize + rwbs.len();
        Some(Ok(EventLine { event, time_ns, device, rwbs, rest: &behind[at..] }))
    }

    /// First sector, and sectors.
    fn range(&self) -> Result<(u64, u64), &'static str> {
        let mut sector = None;
        let mut fields = words(self.rest);
        while let Some(field) = fields.next() {
            if field == b"+" {
                let sector: &[u8] = sector.ok_or("no range of sectors")?;
                let sector = number(sector).ok_or("the sector is not a number")?;
                let sectors = fields.next().and_then(number).ok_or("the number of sectors is not a number")?;
                return Ok((sector, sectors));
            }
            sector = Some(field);
        }
        Err("no range of sectors")
    }

    /// Major and minor number.
    fn disk(&self) -> Result<(u32, u32), &'static str> {
        let part = |part: &[u8]| number(part).and_then(|n| u32::try_from(n).ok());
        let mut numbers = self.device.split(|byte| *byte == b',').map(part);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Some(major)), Some(Some(minor)), None) => Ok((major, minor)),
            _ => Err("no numbers of a device"),
        }
    }
}

/// The event to count, of those in the beginning of a file.
pub(super) fn event_among<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let events = lines.filter_map(|line| EventLine::of(line)?.ok()).map(|line| line.event);
    events.filter(|event| *event < COUNTED).min()
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

impl Queued {
    /// It is to be on the medium when it ends.
    pub(super) fn is_durable(&self) -> bool {
        self.sectors > 0 && self.kinds.last() == Some(&Kind::Flush)
    }
}

/// What `block_rq_complete` and `block_bio_complete` tell of the end of a request, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// By the clock of the events.
    pub time_ns: u64,
    /// Major and minor number of the disk.
    pub disk: (u32, u32),
    /// What it did; none for a flush of the elevator's own.
    pub kind: Option<Kind>,
    /// It was made durable with the request itself.
    pub is_durable: bool,
    /// It is the end of a request as it was queued, or of a piece of one: nothing follows.
    pub is_whole: bool,
    /// First sector of 512 bytes on the disk.
    pub sector: u64,
    /// Sectors; 0 for the end of a flush, and of what was to be flushed.
    pub sectors: u64,
}

/// What the kernel tells of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// It begins.
    Queued(Queued),
    /// It ends, or a part of it.
    Done(Done),
}

/// What the kernel's letters of a request (`blk_fill_rwbs`) say: whether a flush is before it, what it does itself, and whether that is durable.
fn letters(rwbs: &[u8]) -> (bool, Option<Kind>, bool) {
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
    let is_flush = before || rest.first() == Some(&b'F');
    let is_durable = moves.is_some_and(|kind| matches!(kind, Kind::Write | Kind::Zero)) && rest[1..].contains(&b'F');
    (is_flush, moves, is_durable)
}

/// The operations that the letters name: a flush before the request, the request, and a flush behind a durable one.
fn kinds_of_rwbs(rwbs: &[u8], sectors: u64) -> Vec<Kind> {
    let (is_flush, moves, is_durable) = letters(rwbs);
    let moves = moves.filter(|_| sectors > 0);
    let flush = |is_one: bool| is_one.then_some(Kind::Flush);
    [flush(is_flush), moves, flush(is_durable && moves.is_some())].into_iter().flatten().collect()
}

/// A line of `trace_pipe`: what it tells of a request; none where it tells of something else.
///
/// # Errors
/// It begins as an event of a request does and does not go on so.
pub fn event(line: &[u8]) -> Result<Option<KernelEvent>, &'static str> {
    let Some(line) = EventLine::of(line) else { return Ok(None) };
    let line = line?;
    if !matches!(line.event, QUEUED | REQUEST_DONE | BIO_DONE) {
        return Ok(None);
    }
    let (disk, (sector, sectors), time_ns) = (line.disk()?, line.range()?, line.time_ns.ok_or("no time")?);
    if line.event == QUEUED {
        let kinds = kinds_of_rwbs(line.rwbs, sectors);
        return Ok(Some(KernelEvent::Queued(Queued { time_ns, disk, kinds, sector, sectors })));
    }
    let (_, kind, is_durable) = letters(line.rwbs);
    let is_whole = line.event == BIO_DONE;
    Ok(Some(KernelEvent::Done(Done { time_ns, disk, kind, is_durable, is_whole, sector, sectors })))
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
        // LAT is counted from when the driver was asked to the end, QUE from when the request was made until then: a program waits for both. One
        // that biosnoop has not seen being made has a QUE of -1.
        let latency_ns =
            fields[last + 1..].iter().try_fold(0_u64, |sum, field| sum.checked_add(scaled_ns(field, NS_PER_MS)?));
        let start = sector.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB")?;
        let (device, time_ns) = (DeviceName::Text(disk.to_vec()), Some(time_ns));
        Ok(Some(RawRequest { device, start, count, op, time_ns, latency_ns }))
    }

    /// The first event of a file decides which one counts: a request passes through several.
    pub(super) fn ftrace(&mut self, line: &[u8]) -> Parsed {
        if line.starts_with(b"CPU:") && line.windows(4).any(|window| window == b"LOST") {
            return Err("events were lost: record with a larger buffer");
        }
        let Some(line) = EventLine::of(line).filter(|_| !line.starts_with(b"#")) else { return Ok(None) };
        let line = line?;
        if line.event >= COUNTED || *self.event.get_or_insert(line.event) != line.event {
            return Ok(None);
        }
        let Some(op) = op_of_rwbs(line.rwbs) else { return Ok(None) };
        let (sector, sectors) = line.range()?;
        let bytes = |sectors: u64| sectors.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB");
        let (device, time_ns) = (DeviceName::Text(line.device.to_vec()), line.time_ns);
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
    fn biosnoop_tells_how_long_a_request_took() {
        let took = |names: &str, line: &str| {
            let mut text = KernelText::default();
            assert!(matches!(text.biosnoop(names.as_bytes()), Ok(None)));
            text.biosnoop(line.as_bytes()).map(|request| request.and_then(|request| request.latency_ns))
        };
        let names = "TIME(s) COMM PID DISK T SECTOR BYTES LAT(ms)";
        assert_eq!(took(names, "0.1 bash 7 sda R 8 512 0.74"), Ok(Some(740_000)));
        assert_eq!(took(names, "0.1 bash 7 sda R 8 512 fast"), Ok(None));
        let names = "TIME(s) COMM PID DISK T SECTOR BYTES QUE(ms) LAT(ms)";
        assert_eq!(took(names, "0.1 my daemon 7 sda W 8 512 0.010 12.345"), Ok(Some(12_355_000)));
        assert_eq!(took(names, "0.1 my daemon 7 sda W 8 512 -1.000 12.345"), Ok(None));
    }

    #[test]
    fn lines_of_the_pipe() {
        let line = b"            fio-4242    [001] ..... 12345.678901: block_bio_queue: 259,3 WFS 2048 + 16 [fio]";
        let (kinds, time_ns) = (vec![Kind::Write, Kind::Flush], 12_345_678_901_000);
        let queued = |line: &[u8]| match event(line) {
            Ok(Some(KernelEvent::Queued(queued))) => Some(queued),
            _ => None,
        };
        assert_eq!(queued(line), Some(Queued { time_ns, disk: (259, 3), kinds, sector: 2048, sectors: 16 }));
        // Names of programs are anybody's.
        let odd = b"  1: a 2.5:-7 [0] . 1.000002: block_bio_queue: 7,0 R 0 + 8 [x + y]";
        assert_eq!(queued(odd).map(|got| (got.time_ns, got.sectors)), Some((1_000_002_000, 8)));
        let done = |line: &str| match event(line.as_bytes()) {
            Ok(Some(KernelEvent::Done(done))) => Some(done),
            _ => None,
        };
        let of_request = Done {
            time_ns: 2_000_003_000,
            disk: (7, 1),
            kind: Some(Kind::Write),
            is_durable: false,
            is_whole: false,
            sector: 800,
            sectors: 8,
        };
        let of_bio = Done { kind: Some(Kind::Read), is_whole: true, ..of_request.clone() };
        let of_flush = Done { kind: None, sector: u64::MAX, sectors: 0, ..of_request.clone() };
        let durable = Done { is_durable: true, ..of_request.clone() };
        for (line, wanted) in [
            ("x-1 [0] . 2.000003: block_rq_complete: 7,1 WS () 800 + 8 be,0,4 [0]", of_request),
            ("x-1 [0] . 2.000003: block_rq_complete: 7,1 WFS () 800 + 8 [0]", durable),
            ("x-1 [0] . 2.000003: block_rq_complete: 7,1 FF () 18446744073709551615 + 0 none,0,0 [0]", of_flush),
            ("x-1 [0] . 2.000003: block_bio_complete: 7,1 RA 800 + 8 [0]", of_bio),
        ] {
            assert_eq!(done(line), Some(wanted), "{line}");
        }
        for other in
            ["", "# tracer: nop", "x-1 [0] . 1.0: block_rq_issue: 7,0 R 4096 () 0 + 8 [x]", "CPU:0 [LOST 5 EVENTS]"]
        {
            assert_eq!(event(other.as_bytes()), Ok(None), "{other}");
        }
        for bad in [
            "1.0: block_bio_queue: 7 R 0 + 8",
            "1.0: block_bio_queue: 7,0 R 0 8 +",
            "1.0: block_bio_queue: 7,0 R",
            "block_bio_queue: 7,0 R 0 + 8",
        ] {
            assert!(event(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(
            (lost(b"CPU:0 [LOST 5 EVENTS]"), lost(b"CPU:12 [LOST 70000 EVENTS]"), lost(b"CPU:0")),
            (Some(5), Some(70000), None)
        );
    }
}
