//! Block traces: recorded requests of real systems, read as a stream.
//!
//! Knows the formats that block traces come in, tells them apart by their content, and unpacks zstd, gzip and xz. A line that
//! cannot be read is an error with file and line, never a guess; what two formats could be is refused, with the ways to say which. Never holds more than a buffer of the file in memory, never
//! writes.

mod binary;
pub mod capture;
mod columns;
pub mod kernel;
pub mod pairs;
mod sniff;
mod text;
mod understood;

pub use columns::Columns;
pub use understood::Understood;

use crate::input::{self, Input, Line};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The longest line that is read: longer ones are no trace.
pub const LINE_BYTES_MAX: usize = input::LINE_BYTES_MAX;
/// The largest request believed (4 GiB, what NBD can carry): larger ones are a wrong unit or a damaged file.
pub const REQUEST_BYTES_MAX: u64 = 1 << 32;
/// Addresses end here (64 PiB): what the cache's block numbers can hold.
pub const ADDRESS_MAX: u64 = 1 << 56;
/// The most devices of one trace: the cache's slots for grid disks.
pub const DEVICES_MAX: usize = 4096;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It makes durable what was written: of no bytes, and only where it is asked for, see [`TraceReader::with_flushes`].
    Flush,
    /// The trace does not say.
    Unknown,
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which device of the trace, numbered from 0 in order of appearance.
    pub device: u32,
    /// Where it starts, in the trace's [`Unit`].
    pub start: u64,
    /// How much, in the trace's [`Unit`]; 0 for a flush alone.
    pub count: u64,
    /// What it does.
    pub op: Op,
    /// When, in nanoseconds since whenever the trace counts from; where it says so in a unit that is known.
    pub time_ns: Option<u64>,
    /// How long it took where it was recorded, in nanoseconds; where the trace says so.
    pub latency_ns: Option<u64>,
}

impl Request {
    /// The blocks it touches: numbers of blocks of `block_bytes`, or of the trace's own units.
    #[must_use]
    pub fn blocks(&self, unit: Unit, block_bytes: u64) -> std::ops::Range<u64> {
        match unit {
            Unit::Blocks | Unit::Objects => self.start..self.start + self.count,
            Unit::Bytes => self.start / block_bytes..(self.start + self.count).div_ceil(block_bytes),
        }
    }
}

/// In what a trace counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Blocks of a size the trace does not tell.
    Blocks,
    /// Objects with numbers that are no addresses, each of which counts as a block.
    Objects,
}

/// The formats known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `start count ignored sequence`, in blocks: the traces of the ARC paper.
    Lis,
    /// One block number a line, `*` between phases: the traces of the LIRS paper.
    Lirs,
    /// Comma-separated time, LBA, size, operation; with a line of names in any order.
    Csv,
    /// `timestamp,host,disk,Read|Write,offset,bytes,response`: MSR Cambridge.
    Msr,
    /// fio's iolog, versions 2 and 3.
    FioLog,
    /// Text of `blkparse`; Q lines count.
    Blkparse,
    /// `time device sector sectors flags`, flag bit 0 set for reads: DiskSim.
    DiskSim,
    /// The same columns, in bytes.
    DiskSimBytes,
    /// `seconds device offset_bytes bytes R|W …`.
    Spelled,
    /// CloudPhysics VSCSI version 1: 32-byte records, little endian.
    Vscsi1,
    /// CloudPhysics VSCSI version 2: 40-byte records, little endian.
    Vscsi2,
    /// NBD request and reply headers, as nbd-tester-client reads them.
    Nbd,
    /// What `flashcell trace record` writes, see [`capture`].
    Capture,
    /// `device_id,opcode,offset,length,timestamp`, in bytes and microseconds: Alibaba's block traces.
    Alibaba,
    /// `Timestamp,Offset,Size,IOType,VolumeID`, in sectors: Tencent's block traces.
    Tencent,
    /// `ASU,LBA,Size,Opcode,Timestamp`: the Storage Performance Council's format, its ASUs as devices.
    Spc,
    /// `version,time,op,size,lbn`: CloudPhysics as comma-separated values.
    CloudPhysicsCsv,
    /// `time,obj_id,obj_size`: libCacheSim's comma-separated values, objects as blocks.
    LibCacheSimCsv,
    /// libCacheSim's oracleGeneral: 24-byte records, objects as blocks.
    OracleGeneral,
    /// What blktrace writes: 48-byte records and what follows them; queued requests count.
    Blktrace,
    /// Text of BCC's biosnoop.
    Biosnoop,
    /// Text of ftrace's ring with block events, as trace-cmd and perf print it too.
    Ftrace,
    /// As [`Columns`] say.
    Columns,
}

impl Format {
    /// All of them with the names the command line takes.
    pub const ALL: [(&'static str, Format); 22] = [
        ("lis", Format::Lis),
        ("lirs", Format::Lirs),
        ("csv", Format::Csv),
        ("msr", Format::Msr),
        ("fio", Format::FioLog),
        ("blkparse", Format::Blkparse),
        ("disksim", Format::DiskSim),
        ("disksim-bytes", Format::DiskSimBytes),
        ("spelled", Format::Spelled),
        ("vscsi1", Format::Vscsi1),
        ("vscsi2", Format::Vscsi2),
        ("nbd", Format::Nbd),
        ("capture", Format::Capture),
        ("alibaba", Format::Alibaba),
        ("tencent", Format::Tencent),
        ("spc", Format::Spc),
        ("cloudphysics-csv", Format::CloudPhysicsCsv),
        ("libcachesim-csv", Format::LibCacheSimCsv),
        ("oracle-general", Format::OracleGeneral),
        ("blktrace", Format::Blktrace),
        ("biosnoop", Format::Biosnoop),
        ("ftrace", Format::Ftrace),
    ];

    /// In what it counts.
    fn unit(self) -> Unit {
        match self {
            Format::Lis | Format::Lirs => Unit::Blocks,
            Format::OracleGeneral | Format::LibCacheSimCsv => Unit::Objects,
            _ => Unit::Bytes,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Format::ALL.iter().find(|(_, format)| format == self).map_or("columns", |(name, _)| name);
        f.write_str(name)
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let found = Format::ALL.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
        found.ok_or_else(|| {
            let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
            format!("no trace format {text}\nhint: one of {}", names.join(", "))
        })
    }
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Its content is like no format known.
    #[error(
        "{}: no trace format is like this\nhint: name it with --format, or what is in which column with --columns offset=N,bytes=N,op=N",
        path.display()
    )]
    Unrecognised {
        /// Which file.
        path: PathBuf,
    },
    /// Its content could mean more than one thing.
    #[error("{}: {what}\nhint: {hint}", path.display())]
    Ambiguous {
        /// Which file.
        path: PathBuf,
        /// What it could be.
        what: &'static str,
        /// What settles it.
        hint: &'static str,
    },
    /// A line or record that is not of the format.
    #[error("{}:{line}: {what} (read as {format})", path.display())]
    Bad {
        /// Which file.
        path: PathBuf,
        /// Line, or number of the record, from 1.
        line: u64,
        /// The format it was read as.
        format: Format,
        /// What is wrong.
        what: &'static str,
    },
}

/// What the beginning of a file says of its format.
enum Told {
    As(Format),
    Nothing,
    Either { what: &'static str, hint: &'static str },
}

/// What a decoder makes of one line or record.
type Parsed = Result<Option<RawRequest>, &'static str>;

/// A request before its device has a number.
struct RawRequest {
    device: DeviceName,
    start: u64,
    count: u64,
    op: Op,
    time_ns: Option<u64>,
    latency_ns: Option<u64>,
}

/// A device as a trace names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DeviceName {
    Number(u64),
    Text(Vec<u8>),
}

/// Numbers for names of devices, in order of appearance.
#[derive(Default)]
struct Devices(BTreeMap<DeviceName, u32>);

impl Devices {
    fn number(&mut self, name: DeviceName) -> Result<u32, &'static str> {
        let next = self.0.len();
        if let Some(&number) = self.0.get(&name) {
            return Ok(number);
        }
        if next >= DEVICES_MAX {
            return Err("more devices than a cache has slots for");
        }
        self.0.insert(name, next as u32);
        Ok(next as u32)
    }
}

/// A trace being read.
pub struct TraceReader {
    path: PathBuf,
    format: Format,
    unit: Unit,
    input: Input,
    /// Lines or records read.
    line: u64,
    devices: Devices,
    text: text::TextState,
    buffer: Vec<u8>,
    flushes: bool,
    done: bool,
}

impl TraceReader {
    /// Open a trace, unpacking it where it is packed. `format` is told from the content when it is not given.
    ///
    /// # Errors
    /// It cannot be read, or its format is not known.
    pub fn open(path: &Path, format: Option<Format>) -> Result<TraceReader, TraceError> {
        let io_error = |source| TraceError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io_error)?;
        TraceReader::over(path, Box::new(file), format)
    }

    /// The same over any bytes; `path` names them in errors.
    ///
    /// # Errors
    /// As [`TraceReader::open`].
    pub fn over(path: &Path, raw: Box<dyn Read + Send>, format: Option<Format>) -> Result<TraceReader, TraceError> {
        let io_error = |source| TraceError::Io { path: path.to_owned(), source };
        let (input, head) = Input::over(raw).map_err(io_error)?;
        let told = match format {
            Some(format) => Told::As(format),
            None => sniff::format_of(&head),
        };
        let format = match told {
            Told::As(format) => format,
            Told::Nothing => return Err(TraceError::Unrecognised { path: path.to_owned() }),
            Told::Either { what, hint } => return Err(TraceError::Ambiguous { path: path.to_owned(), what, hint }),
        };
        let mut text = text::TextState::default();
        if format == Format::Ftrace {
            text.count_event_of(&head);
        }
        Ok(TraceReader {
            path: path.to_owned(),
            format,
            unit: format.unit(),
            input,
            line: 0,
            devices: Devices::default(),
            text,
            buffer: Vec::new(),
            flushes: false,
            done: false,
        })
    }

    /// A trace whose columns are told.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn with_columns(path: &Path, columns: Columns) -> Result<TraceReader, TraceError> {
        let mut reader = TraceReader::open(path, Some(Format::Columns))?;
        reader.unit = columns.unit();
        reader.text.columns = Some(columns);
        Ok(reader)
    }

    /// Give flushes too, of the formats that have them: what `flashcell trace record` writes.
    #[must_use]
    pub fn with_flushes(mut self) -> TraceReader {
        self.flushes = true;
        self
    }

    /// The devices so far, by number, as the trace names them.
    #[must_use]
    pub fn device_names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.devices.0.len()];
        for (name, number) in &self.devices.0 {
            names[*number as usize] = match name {
                DeviceName::Number(number) => number.to_string(),
                DeviceName::Text(text) => String::from_utf8_lossy(text).into_owned(),
            };
        }
        names
    }

    /// The format it is read as.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// In what its requests count.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    fn bad(&self, what: &'static str) -> TraceError {
        TraceError::Bad { path: self.path.clone(), line: self.line, format: self.format, what }
    }

    /// The next line into the buffer, without its end; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        let line = self.input.read_line(&mut self.buffer);
        let line = line.map_err(|source| TraceError::Io { path: self.path.clone(), source })?;
        self.line += u64::from(line != Line::None);
        if line == Line::TooLong {
            return Err(self.bad("the line is too long"));
        }
        Ok(line != Line::None)
    }

    /// The next `bytes` into the buffer; false at the end of the file, an error when it ends within.
    fn read_record(&mut self, bytes: usize) -> Result<bool, TraceError> {
        let read = self.input.read_record(bytes, &mut self.buffer);
        let read = read.map_err(|source| TraceError::Io { path: self.path.clone(), source })?;
        self.line += u64::from(read > 0);
        match read {
            0 => Ok(false),
            n if n == bytes => Ok(true),
            _ => Err(self.bad("the file ends within a record")),
        }
    }

    /// One line or record; `None` at the end.
    fn step(&mut self) -> Result<Option<Option<RawRequest>>, TraceError> {
        let parsed = match self.format {
            Format::Vscsi1 | Format::Vscsi2 => {
                let bytes = binary::vscsi_bytes(self.format);
                if !self.read_record(bytes)? {
                    return Ok(None);
                }
                binary::vscsi(self.format, &self.buffer)
            }
            Format::OracleGeneral => {
                if !self.read_record(binary::ORACLE_BYTES)? {
                    return Ok(None);
                }
                binary::oracle(&self.buffer)
            }
            Format::Blktrace => {
                if !self.read_record(binary::BLKTRACE_BYTES)? {
                    return Ok(None);
                }
                let parsed = binary::blktrace(&self.buffer);
                let rest = binary::blktrace_rest(&self.buffer).map_err(|what| self.bad(what))?;
                self.line -= 1;
                if rest > 0 && !self.read_record(rest)? {
                    return Err(self.bad("the file ends within a record"));
                }
                self.line += u64::from(rest == 0);
                parsed
            }
            Format::Nbd => {
                if !self.read_record(binary::NBD_MAGIC_BYTES)? {
                    return Ok(None);
                }
                let Some(rest) = binary::nbd_rest(&self.buffer) else {
                    return Err(self.bad("neither the magic of a request nor of a reply"));
                };
                self.line -= 1;
                let magic = std::mem::take(&mut self.buffer);
                if !self.read_record(rest)? {
                    self.line += 1;
                    return Err(self.bad("the file ends within a record"));
                }
                binary::nbd(&magic, &self.buffer)
            }
            _ => {
                if !self.read_line()? {
                    return Ok(None);
                }
                self.text.parse(self.format, &self.buffer)
            }
        };
        parsed.map(Some).map_err(|what| self.bad(what))
    }

    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        while let Some(parsed) = self.step()? {
            let Some(raw) = parsed else { continue };
            let is_flush = raw.op == Op::Flush;
            if if is_flush { !self.flushes } else { raw.count == 0 } {
                continue;
            }
            let end = raw.start.checked_add(raw.count);
            let limit = match self.unit() {
                Unit::Bytes => ADDRESS_MAX,
                Unit::Blocks => ADDRESS_MAX >> 12,
                Unit::Objects => u64::MAX,
            };
            if end.is_none_or(|end| end > limit) {
                return Err(self.bad("an address beyond 64 PiB"));
            }
            if raw.count > REQUEST_BYTES_MAX {
                return Err(self.bad("a request of more than 4 GiB"));
            }
            let device = self.devices.number(raw.device).map_err(|what| self.bad(what))?;
            let RawRequest { start, count, op, time_ns, latency_ns, .. } = raw;
            return Ok(Some(Request { device, start, count, op, time_ns, latency_ns }));
        }
        Ok(None)
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    /// After an error it ends.
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.next_request().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceReader({} as {}, line {})", self.path.display(), self.format, self.line)
    }
}

#[cfg(test)]
mod tests;
