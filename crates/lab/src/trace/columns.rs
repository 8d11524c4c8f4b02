//! Lines of columns: which holds what, by the format, by a line of names, or as the command line says.
//!
//! Never guesses a unit: where a column's meaning is open, the line is refused with what would settle it.

use super::text::{SECTOR_BYTES, decimal, number, op_of, scaled_ns, words};
use super::{DeviceName, Format, Op, Parsed, RawRequest, Unit};
use std::fmt;
use std::str::FromStr;

/// How a column says what a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// Words: `R`, `write`, `0x2a`. Bare 0 and 1 say nothing.
    Words,
    /// Words that begin with an R or a W, nothing else.
    Letters,
    /// 0 for one of the two, 1 for the other: whether 0 reads.
    Digit { zero_reads: bool },
    /// SCSI commands as decimal numbers; what moves no blocks is passed over.
    Scsi,
}

/// Which column, counted from 0, holds what, in units of so much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// White space between them, in place of commas.
    spaced: bool,
    /// Exactly so many.
    count_exact: Option<usize>,
    start: (usize, u64),
    /// None: the start is an object, or a block of the trace's own.
    bytes: Option<(usize, u64)>,
    op: Option<(usize, Code)>,
    /// The column of the operation may be missing.
    op_optional: bool,
    device: Option<usize>,
    /// In units of so many nanoseconds.
    time: Option<(usize, u64)>,
    /// Starts are names of objects, not addresses.
    objects: bool,
}

const S: u64 = 1_000_000_000;
const US: u64 = 1_000;

const fn five(start: (usize, u64), bytes: (usize, u64), op: (usize, Code), time: (usize, u64)) -> Columns {
    Columns {
        spaced: false,
        count_exact: Some(5),
        start,
        bytes: Some(bytes),
        op: Some(op),
        op_optional: false,
        device: None,
        time: Some(time),
        objects: false,
    }
}

/// `device_id,opcode,offset,length,timestamp`, in bytes and microseconds.
const ALIBABA: Columns = Columns { device: Some(0), ..five((2, 1), (3, 1), (1, Code::Letters), (4, US)) };
/// `Timestamp,Offset,Size,IOType,VolumeID`, in seconds and sectors of 512 bytes; type 0 reads.
const TENCENT: Columns = Columns {
    device: Some(4),
    ..five((1, SECTOR_BYTES), (2, SECTOR_BYTES), (3, Code::Digit { zero_reads: true }), (0, S))
};
/// `ASU,LBA,Size,Opcode,Timestamp` and perhaps more: sectors of 512 bytes, bytes, seconds.
const SPC: Columns =
    Columns { device: Some(0), count_exact: None, ..five((1, SECTOR_BYTES), (2, 1), (3, Code::Letters), (4, S)) };
/// `version,time,op,size,lbn`: microseconds, SCSI commands, bytes, sectors of 512 bytes.
const CLOUDPHYSICS: Columns = five((4, SECTOR_BYTES), (3, 1), (2, Code::Scsi), (1, US));
/// `time,obj_id,obj_size` and perhaps more.
const LIBCACHESIM: Columns = Columns {
    count_exact: None,
    bytes: None,
    op: None,
    objects: true,
    ..five((1, 1), (2, 1), (0, Code::Words), (0, S))
};
/// Without a line of names: time, LBA in sectors, bytes, operation.
const UNNAMED: Columns = Columns {
    count_exact: None,
    op_optional: true,
    time: None,
    ..five((1, SECTOR_BYTES), (2, 1), (3, Code::Words), (0, 1))
};

/// Lines of names of the formats that have one.
pub(super) const NAMES_ALIBABA: &str = "device_id,opcode,offset,length,timestamp";
pub(super) const NAMES_TENCENT: &str = "timestamp,offset,size,iotype,volumeid";
pub(super) const NAMES_SPC: &str = "asu,lba,size,opcode,timestamp";
pub(super) const NAMES_CLOUDPHYSICS: &str = "version,time,op,size,lbn";

/// A line of names, without case and white space.
pub(super) fn names_of(line: &[u8]) -> String {
    let names = line.split(|&b| b == b',').map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase());
    names.collect::<Vec<_>>().join(",")
}

/// Whether a field begins a line of names, not one of values.
fn is_name(field: &[u8]) -> bool {
    number(field).is_none() && decimal(field).is_none()
}

impl Columns {
    /// The columns of a format, by its first line; whether that is a line of names.
    pub(super) fn of_first(format: Format, line: &[u8]) -> Result<(Columns, bool), &'static str> {
        let first = line.split(|&b| b == b',').next().unwrap_or_default().trim_ascii();
        let (columns, names) = match format {
            Format::Alibaba => (ALIBABA, NAMES_ALIBABA),
            Format::Tencent => (TENCENT, NAMES_TENCENT),
            Format::Spc => (SPC, NAMES_SPC),
            Format::CloudPhysicsCsv => (CLOUDPHYSICS, NAMES_CLOUDPHYSICS),
            Format::LibCacheSimCsv if is_name(first) => return Ok((Columns::objects_named(line)?, true)),
            Format::LibCacheSimCsv => return Ok((LIBCACHESIM, false)),
            Format::Csv if is_name(first) => return Ok((Columns::named(line)?, true)),
            Format::Csv => return Ok((UNNAMED, false)),
            _ => return Err("not a format of columns"),
        };
        if !is_name(first) {
            return Ok((columns, false));
        }
        if names_of(line) != names {
            return Err("the names of the columns are not those of the format");
        }
        Ok((columns, true))
    }

    fn objects_named(line: &[u8]) -> Result<Columns, &'static str> {
        let names = names_of(line);
        let names: Vec<&str> = names.split(',').collect();
        let find = |wanted: &[&str]| names.iter().position(|name| wanted.contains(name));
        let start = find(&["obj_id", "object", "object_id", "id", "key"]).ok_or("no column named obj_id")?;
        Ok(Columns {
            start: (start, 1),
            time: find(&["time", "timestamp", "clock_time"]).map(|at| (at, S)),
            ..LIBCACHESIM
        })
    }

    fn named(line: &[u8]) -> Result<Columns, &'static str> {
        let names = names_of(line);
        let names: Vec<&str> = names.split(',').collect();
        let find = |wanted: &[(&str, u64)]| {
            wanted.iter().find_map(|&(name, unit)| names.iter().position(|n| *n == name).map(|at| (at, unit)))
        };
        let start = [
            ("offset", 1),
            ("offset_bytes", 1),
            ("byte_offset", 1),
            ("lba", SECTOR_BYTES),
            ("lbn", SECTOR_BYTES),
            ("sector", SECTOR_BYTES),
        ];
        let bytes = [
            ("bytes", 1),
            ("size", 1),
            ("size_bytes", 1),
            ("length", 1),
            ("len", 1),
            ("sectors", SECTOR_BYTES),
            ("blocks", SECTOR_BYTES),
        ];
        let op =
            find(&[("op", 1), ("operation", 1), ("opcode", 1), ("type", 1), ("rw", 1), ("rwbs", 1), ("iotype", 1)]);
        let device = find(&[
            ("device", 1),
            ("device_id", 1),
            ("dev", 1),
            ("disk", 1),
            ("griddisk", 1),
            ("volume", 1),
            ("volumeid", 1),
            ("asu", 1),
        ]);
        if names.contains(&"iotype") && names.contains(&"volumeid") {
            return Err("Tencent's columns in another order: name them with --columns, they count sectors");
        }
        Ok(Columns {
            start: find(&start).ok_or("no column named offset, lba or sector")?,
            bytes: Some(find(&bytes).ok_or("no column named bytes, size, length or sectors")?),
            op: op.map(|(at, _)| (at, Code::Words)),
            device: device.map(|(at, _)| at),
            ..UNNAMED
        })
    }

    /// In what requests count.
    pub(super) fn unit(&self) -> Unit {
        if self.objects { Unit::Objects } else { Unit::Bytes }
    }

    /// One line.
    pub(super) fn parse(&self, line: &[u8]) -> Parsed {
        let fields: Vec<&[u8]> = if self.spaced {
            words(line).collect()
        } else {
            line.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect()
        };
        if self.count_exact.is_some_and(|exact| fields.len() != exact) {
            return Err("not as many columns as the format has");
        }
        let field = |at: usize| fields.get(at).copied().ok_or("too few columns");
        let scaled = |(at, unit): (usize, u64), what| number(field(at)?).and_then(|n| n.checked_mul(unit)).ok_or(what);
        let op = match self.op {
            None => Op::Unknown,
            Some((at, _)) if self.op_optional && fields.len() <= at => Op::Unknown,
            Some((at, code)) => match op_by(code, field(at)?)? {
                Some(op) => op,
                None => return Ok(None),
            },
        };
        let start = field(self.start.0)?;
        Ok(Some(RawRequest {
            device: match self.device {
                Some(at) => DeviceName::Text(field(at)?.to_vec()),
                None => DeviceName::Number(0),
            },
            start: match number(start) {
                None if self.objects => name_hash(start),
                _ => scaled(self.start, "the address is not a number")?,
            },
            count: match self.bytes {
                Some(bytes) => scaled(bytes, "the size is not a number")?,
                None => 1,
            },
            op,
            time_ns: match self.time {
                Some((at, unit)) => Some(scaled_ns(field(at)?, unit).ok_or("the time is not a number")?),
                None => None,
            },
            latency_ns: None,
        }))
    }
}

/// Objects may have names that are no numbers: FNV-1a, in 63 bits.
fn name_hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)) >> 1
}

/// None: it moves no blocks.
fn op_by(code: Code, word: &[u8]) -> Result<Option<Op>, &'static str> {
    let neither = "neither a read nor a write";
    match code {
        Code::Words => op_of(word).map(Some).ok_or(neither),
        Code::Letters => match word.first().map(u8::to_ascii_lowercase) {
            Some(b'r') => Ok(Some(Op::Read)),
            Some(b'w') => Ok(Some(Op::Write)),
            _ => Err(neither),
        },
        Code::Digit { zero_reads } => match number(word) {
            Some(digit @ 0..=1) => Ok(Some(if (digit == 0) == zero_reads { Op::Read } else { Op::Write })),
            _ => Err("neither 0 nor 1"),
        },
        Code::Scsi => match number(word).ok_or("the command is not a number")? {
            0x08 | 0x28 | 0x88 | 0xa8 => Ok(Some(Op::Read)),
            0x0a | 0x2a | 0x8a | 0xaa => Ok(Some(Op::Write)),
            0..=255 => Ok(None),
            _ => Err("no command of SCSI"),
        },
    }
}

impl FromStr for Columns {
    type Err = String;

    /// `time=1:us,op=3,offset=4:sectors,bytes=5,device=2`, columns counted from 1; `space` for white space between them.
    fn from_str(text: &str) -> Result<Columns, String> {
        const HINT: &str = "hint: offset=N[:bytes|sectors|BYTES],bytes=N[:bytes|sectors|BYTES],op=N[:r0|r1|scsi],device=N,\
                            time=N[:s|ms|us|ns] with columns counted from 1, or id=N for objects; space for white space between them";
        let wrong = |what: String| format!("{what}\n{HINT}");
        let mut columns = Columns { count_exact: None, bytes: None, op: None, time: None, ..UNNAMED };
        columns.op_optional = false;
        let mut start = None;
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',') {
            if part == "space" {
                columns.spaced = true;
                continue;
            }
            let (key, value) = part.split_once('=').ok_or_else(|| wrong(format!("no column: {part}")))?;
            if seen.contains(&key) {
                return Err(wrong(format!("{key} is there twice")));
            }
            seen.push(key);
            let (number, unit) = value.split_once(':').map_or((value, None), |(number, unit)| (number, Some(unit)));
            let at = match number.parse::<usize>() {
                Ok(at @ 1..=1000) => at - 1,
                _ => return Err(wrong(format!("no number of a column: {number}"))),
            };
            let bytes = || match unit {
                None | Some("bytes") => Ok(1),
                Some("sectors") => Ok(SECTOR_BYTES),
                Some(other) => match other.parse::<u64>() {
                    Ok(bytes @ 1..=1_048_576) => Ok(bytes),
                    _ => Err(wrong(format!("no unit of bytes: {other}"))),
                },
            };
            let none = || unit.map_or(Ok(()), |unit| Err(wrong(format!("{key} has no unit: {unit}"))));
            match key {
                "offset" => start = Some(((at, bytes()?), false)),
                "id" => {
                    none()?;
                    start = Some(((at, 1), true));
                }
                "bytes" | "size" => columns.bytes = Some((at, bytes()?)),
                "device" => {
                    none()?;
                    columns.device = Some(at);
                }
                "op" => {
                    let code = match unit {
                        None => Code::Letters,
                        Some("r0") => Code::Digit { zero_reads: true },
                        Some("r1") => Code::Digit { zero_reads: false },
                        Some("scsi") => Code::Scsi,
                        Some(other) => return Err(wrong(format!("no kind of operation: {other}"))),
                    };
                    columns.op = Some((at, code));
                }
                "time" => {
                    let unit_ns = match unit {
                        None | Some("s") => S,
                        Some("ms") => 1_000_000,
                        Some("us") => US,
                        Some("ns") => 1,
                        Some(other) => return Err(wrong(format!("no unit of time: {other}"))),
                    };
                    columns.time = Some((at, unit_ns));
                }
                other => return Err(wrong(format!("no column {other}"))),
            }
        }
        let (start, objects) = start.ok_or_else(|| wrong("neither offset nor id".to_owned()))?;
        (columns.start, columns.objects) = (start, objects);
        if objects == columns.bytes.is_some() {
            let what = if objects { "an object has no size of its own here: leave bytes out" } else { "no bytes" };
            return Err(wrong(what.to_owned()));
        }
        Ok(columns)
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "columns, {} in units of {}", if self.objects { "objects" } else { "offsets" }, self.start.1)
    }
}
