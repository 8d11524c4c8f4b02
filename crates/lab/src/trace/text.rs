//! Lines of text traces. Empty lines and lines that start with `#` are skipped.

use super::{DeviceName, Format, Op, Parsed, RawRequest, capture};

const SECTOR_BYTES: u64 = 512;

/// What a text format remembers between lines.
#[derive(Debug, Default)]
pub(super) struct TextState {
    columns: Option<Columns>,
    fio_version: u8,
}

/// Which column of a CSV file holds what.
#[derive(Clone, Copy, Debug)]
struct Columns {
    start: usize,
    start_unit_bytes: u64,
    count: usize,
    count_unit_bytes: u64,
    op: Option<usize>,
    device: Option<usize>,
}

/// Without a line of names: time, LBA in sectors, bytes, operation.
const COLUMNS_UNNAMED: Columns =
    Columns { start: 1, start_unit_bytes: SECTOR_BYTES, count: 2, count_unit_bytes: 1, op: Some(3), device: None };

impl TextState {
    pub(super) fn parse(&mut self, format: Format, line: &[u8]) -> Parsed {
        if format == Format::Capture {
            return capture::parse(line);
        }
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(None);
        }
        match format {
            Format::Lis => lis(line),
            Format::Lirs => lirs(line),
            Format::Csv => self.csv(line),
            Format::Msr => msr(line),
            Format::FioLog => self.fio(line),
            Format::Blkparse => blkparse(line),
            Format::DiskSim => disksim(line, SECTOR_BYTES),
            Format::DiskSimBytes => disksim(line, 1),
            Format::Spelled => spelled(line),
            Format::Vscsi1 | Format::Vscsi2 | Format::Nbd | Format::Capture => Err("not a text format"),
        }
    }

    fn csv(&mut self, line: &[u8]) -> Parsed {
        let fields: Vec<&[u8]> = line.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
        let Some(columns) = self.columns else {
            if number(fields[0]).is_none() && decimal(fields[0]).is_none() {
                self.columns = Some(columns_named(&fields)?);
                return Ok(None);
            }
            self.columns = Some(COLUMNS_UNNAMED);
            return self.csv(line);
        };
        let field = |at: usize| fields.get(at).copied().ok_or("too few columns");
        let scaled = |at: usize, unit: u64, what| number(field(at)?).and_then(|n| n.checked_mul(unit)).ok_or(what);
        Ok(Some(RawRequest {
            device: match columns.device {
                Some(at) => DeviceName::Text(field(at)?.to_vec()),
                None => DeviceName::Number(0),
            },
            start: scaled(columns.start, columns.start_unit_bytes, "the address is not a number")?,
            count: scaled(columns.count, columns.count_unit_bytes, "the size is not a number")?,
            op: match columns.op.and_then(|at| fields.get(at)) {
                Some(word) => op_of(word).ok_or("neither a read nor a write")?,
                None => Op::Unknown,
            },
        }))
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
        Ok(Some(RawRequest { device: DeviceName::Text(name.to_vec()), start, count, op }))
    }
}

fn columns_named(names: &[&[u8]]) -> Result<Columns, &'static str> {
    let lower: Vec<Vec<u8>> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    let find = |wanted: &[(&str, u64)]| {
        wanted.iter().find_map(|&(name, unit)| lower.iter().position(|n| n == name.as_bytes()).map(|at| (at, unit)))
    };
    let start = [
        ("offset", 1),
        ("offset_bytes", 1),
        ("byte_offset", 1),
        ("lba", SECTOR_BYTES),
        ("lbn", SECTOR_BYTES),
        ("sector", SECTOR_BYTES),
    ];
    let count = [
        ("bytes", 1),
        ("size", 1),
        ("size_bytes", 1),
        ("length", 1),
        ("len", 1),
        ("sectors", SECTOR_BYTES),
        ("blocks", SECTOR_BYTES),
    ];
    let (start, start_unit_bytes) = find(&start).ok_or("no column named offset, lba or sector")?;
    let (count, count_unit_bytes) = find(&count).ok_or("no column named bytes, size, length or sectors")?;
    let op = find(&[("op", 1), ("operation", 1), ("type", 1), ("rw", 1), ("rwbs", 1), ("iotype", 1)]);
    let device = find(&[("device", 1), ("dev", 1), ("disk", 1), ("griddisk", 1), ("volume", 1)]);
    let at = |found: Option<(usize, u64)>| found.map(|(at, _)| at);
    Ok(Columns { start, start_unit_bytes, count, count_unit_bytes, op: at(op), device: at(device) })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
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
    Ok(Some(RawRequest { device: DeviceName::Number(0), start, count, op: Op::Unknown }))
}

fn lirs(line: &[u8]) -> Parsed {
    if line.trim_ascii() == b"*" {
        return Ok(None);
    }
    let start = number(line.trim_ascii()).ok_or("not a block number")?;
    Ok(Some(RawRequest { device: DeviceName::Number(0), start, count: 1, op: Op::Unknown }))
}

fn msr(line: &[u8]) -> Parsed {
    let fields: Vec<&[u8]> = line.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
    let [_, host, disk, op, start, count, ..] = fields[..] else { return Err("too few columns") };
    let device = DeviceName::Text([host, b",", disk].concat());
    let op = op_of(op).ok_or("neither a read nor a write")?;
    let start = number(start).ok_or("the offset is not a number")?;
    let count = number(count).ok_or("the size is not a number")?;
    Ok(Some(RawRequest { device, start, count, op }))
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
    let mut words = words.skip(4);
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
    Ok(Some(RawRequest { device: DeviceName::Text(device.to_vec()), start: bytes(start)?, count: bytes(count)?, op }))
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
    Ok(Some(RawRequest { device: DeviceName::Number(device), start: bytes(start)?, count: bytes(count)?, op }))
}

fn spelled(line: &[u8]) -> Parsed {
    let mut words = words(line);
    words.next().and_then(decimal).ok_or("the time is not a number")?;
    let device = words.next().ok_or("too few columns")?;
    let start = words.next().and_then(number).ok_or("the offset is not a number")?;
    let count = words.next().and_then(number).ok_or("the size is not a number")?;
    let op = words.next().and_then(op_of).ok_or("neither a read nor a write")?;
    Ok(Some(RawRequest { device: DeviceName::Text(device.to_vec()), start, count, op }))
}
