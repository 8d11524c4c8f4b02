//! Lines of text traces. Empty lines and lines that start with `#` are skipped.

use super::columns::Columns;
use super::kernel::{self, KernelText};
use super::{DeviceName, Format, Op, Parsed, RawRequest, capture};

/// The kernel and most tools count in these, whatever sectors the device has.
pub const SECTOR_BYTES: u64 = 512;

/// What a text format remembers between lines.
#[derive(Debug, Default)]
pub(super) struct TextState {
    /// Which column holds what, once that is known.
    pub(super) columns: Option<Columns>,
    fio_version: u8,
    kernel: KernelText,
}

impl TextState {
    /// Of the events of ftrace, the one of those in the beginning of a file that says best what was asked for.
    pub(super) fn count_event_of(&mut self, head: &[u8]) {
        if let Some(event) = kernel::event_among(head.split(|b| *b == b'\n')) {
            self.kernel.count(event);
        }
    }

    pub(super) fn parse(&mut self, format: Format, line: &[u8]) -> Parsed {
        if format == Format::Capture {
            return capture::parse(line);
        }
        if format == Format::Ftrace {
            // Its remarks may say that events were lost.
            return self.kernel.ftrace(line);
        }
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(None);
        }
        match format {
            Format::Lis => lis(line),
            Format::Lirs => lirs(line),
            Format::Csv
            | Format::Alibaba
            | Format::Tencent
            | Format::Spc
            | Format::CloudPhysicsCsv
            | Format::LibCacheSimCsv
            | Format::Columns => {
                let columns = match &self.columns {
                    Some(columns) => columns,
                    None => {
                        let (columns, is_names) = Columns::of_first(format, line)?;
                        let columns = self.columns.insert(columns);
                        if is_names {
                            return Ok(None);
                        }
                        columns
                    }
                };
                columns.parse(line)
            }
            Format::Biosnoop => self.kernel.biosnoop(line),
            Format::Msr => msr(line),
            Format::FioLog => self.fio(line),
            Format::Blkparse => blkparse(line),
            Format::DiskSim => disksim(line, SECTOR_BYTES),
            Format::DiskSimBytes => disksim(line, 1),
            Format::Spelled => spelled(line),
            Format::Vscsi1
            | Format::Vscsi2
            | Format::Nbd
            | Format::Blktrace
            | Format::OracleGeneral
            | Format::Ftrace
            | Format::Capture => Err("not a text format"),
        }
    }

    fn fio(&mut self, line: &[u8]) -> Parsed {
        if let Some(rest) = line.strip_prefix(b"fio version ") {
            self.fio_version = match rest.first() {
                Some(b'2') => 2,
                Some(b'3') => 3,
                _ => return Err("fio's iolog has version 2 or 3"),
            };
            return Ok(None);
        }
        let skip = match self.fio_version {
            2 => 0,
            3 => 1,
            _ => return Err("the first line of an iolog names its version"),
        };
        let mut words = words(line).skip(skip);
        let (Some(name), Some(action)) = (words.next(), words.next()) else { return Err("too few columns") };
        let op = match action {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"add" | b"open" | b"close" | b"wait" | b"sync" | b"datasync" | b"trim" => return Ok(None),
            _ => return Err("no action of an iolog"),
        };
        let start = words.next().and_then(number).ok_or("the offset is not a number")?;
        let count = words.next().and_then(number).ok_or("the length is not a number")?;
        Ok(Some(RawRequest {
            device: DeviceName::Text(name.to_vec()),
            start,
            count,
            op,
            time_ns: None,
            latency_ns: None,
        }))
    }
}

pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// A whole number, decimal or 0x.
pub(super) fn number(word: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(word).ok()?;
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

/// A decimal number, as times are; its value does not matter here.
pub(super) fn decimal(word: &[u8]) -> Option<()> {
    let text = std::str::from_utf8(word).ok()?;
    let digits = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+');
    (text.bytes().all(digits) && text.bytes().any(|b| b.is_ascii_digit())).then_some(())
}

/// Seconds with a fraction, or without, in nanoseconds.
pub(super) fn seconds_ns(word: &[u8]) -> Option<u64> {
    scaled_ns(word, 1_000_000_000)
}

/// The same of a time in units of so many nanoseconds.
pub(super) fn scaled_ns(word: &[u8], unit_ns: u64) -> Option<u64> {
    let text = std::str::from_utf8(word).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(9)];
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let part = u128::from(part) * u128::from(unit_ns) / 10_u128.pow(fraction.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(unit_ns)?.checked_add(part as u64)
}

/// A word for an operation: `R`, `Read`, `WS`, `0x2a` …
pub(super) fn op_of(word: &[u8]) -> Option<Op> {
    if let Some(code) = number(word) {
        return match code {
            0x28 | 0x88 => Some(Op::Read),
            0x2a | 0x8a => Some(Op::Write),
            // Bare 0 and 1 mean either thing in different traces.
            0 | 1 => Some(Op::Unknown),
            _ => None,
        };
    }
    match word.first()?.to_ascii_lowercase() {
        b'r' | b'g' => Some(Op::Read),
        b'w' | b's' | b'p' => Some(Op::Write),
        _ => None,
    }
}

fn lis(line: &[u8]) -> Parsed {
    let mut words = words(line);
    let start = words.next().and_then(number).ok_or("the first column is not a block number")?;
    let count = words.next().and_then(number).ok_or("the second column is not a count")?;
    Ok(Some(RawRequest {
        device: DeviceName::Number(0),
        start,
        count,
        op: Op::Unknown,
        time_ns: None,
        latency_ns: None,
    }))
}

fn lirs(line: &[u8]) -> Parsed {
    if line.trim_ascii() == b"*" {
        return Ok(None);
    }
    let start = number(line.trim_ascii()).ok_or("not a block number")?;
    Ok(Some(RawRequest {
        device: DeviceName::Number(0),
        start,
        count: 1,
        op: Op::Unknown,
        time_ns: None,
        latency_ns: None,
    }))
}

fn msr(line: &[u8]) -> Parsed {
    let fields: Vec<&[u8]> = line.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
    let [time, host, disk, op, start, count, ..] = fields[..] else { return Err("too few columns") };
    let device = DeviceName::Text([host, b",", disk].concat());
    let op = op_of(op).ok_or("neither a read nor a write")?;
    let start = number(start).ok_or("the offset is not a number")?;
    let count = number(count).ok_or("the size is not a number")?;
    // Windows counts in 100 ns.
    let time_ns = number(time).and_then(|ticks| ticks.checked_mul(100));
    Ok(Some(RawRequest { device, start, count, op, time_ns, latency_ns: None }))
}

/// `major,minor cpu sequence time pid action rwbs sector + sectors [process]`.
fn blkparse(line: &[u8]) -> Parsed {
    let mut words = words(line);
    let Some(device) = words.next() else { return Ok(None) };
    let device_like = device.iter().all(|b| b.is_ascii_digit() || *b == b',') && device.contains(&b',');
    if !device_like {
        // The summary at the end.
        return Ok(None);
    }
    let mut words = words.skip(2);
    let time_ns = words.next().and_then(seconds_ns);
    let mut words = words.skip(1);
    let (Some(action), Some(rwbs)) = (words.next(), words.next()) else { return Err("too few columns") };
    if action != b"Q" {
        return Ok(None);
    }
    let op = match rwbs {
        r if r.contains(&b'D') => return Ok(None),
        r if r.contains(&b'R') => Op::Read,
        r if r.contains(&b'W') => Op::Write,
        _ => return Ok(None),
    };
    let Some(start) = words.next().and_then(number) else { return Err("the sector is not a number") };
    if words.next() != Some(b"+") {
        // A flush without a range.
        return Ok(None);
    }
    let count = words.next().and_then(number).ok_or("the number of sectors is not a number")?;
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB");
    let device = DeviceName::Text(device.to_vec());
    Ok(Some(RawRequest { device, start: bytes(start)?, count: bytes(count)?, op, time_ns, latency_ns: None }))
}

fn disksim(line: &[u8], unit_bytes: u64) -> Parsed {
    let mut words = words(line);
    words.next().and_then(decimal).ok_or("the time is not a number")?;
    let device = words.next().and_then(number).ok_or("the device is not a number")?;
    let start = words.next().and_then(number).ok_or("the address is not a number")?;
    let count = words.next().and_then(number).ok_or("the size is not a number")?;
    let flags = words.next().and_then(number).ok_or("the flags are not a number")?;
    let bytes = |n: u64| n.checked_mul(unit_bytes).ok_or("an address beyond 64 PiB");
    let op = if flags & 1 == 1 { Op::Read } else { Op::Write };
    Ok(Some(RawRequest {
        device: DeviceName::Number(device),
        start: bytes(start)?,
        count: bytes(count)?,
        op,
        time_ns: None,
        latency_ns: None,
    }))
}

fn spelled(line: &[u8]) -> Parsed {
    let mut words = words(line);
    let time = words.next();
    time.and_then(decimal).ok_or("the time is not a number")?;
    let device = words.next().ok_or("too few columns")?;
    let start = words.next().and_then(number).ok_or("the offset is not a number")?;
    let count = words.next().and_then(number).ok_or("the size is not a number")?;
    let op = words.next().and_then(op_of).ok_or("neither a read nor a write")?;
    let time_ns = time.and_then(seconds_ns);
    Ok(Some(RawRequest { device: DeviceName::Text(device.to_vec()), start, count, op, time_ns, latency_ns: None }))
}
