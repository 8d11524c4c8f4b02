//! Requests as a cell records them (`flashcell trace record`): a text file that other tools read too.
//!
//! ```text
//! # flashcell trace capture v2
//! time_ns,grid_disk,database,request,offset_bytes,bytes,latency_ns
//! 1700000000000000000,DATA_CD_00_cell,SPOT,read,8192,4096,740000
//! ```
//!
//! The first line is the magic and the version; further lines that start with `#` are remarks, so that captures may be put one
//! after the other. The line of names follows; a version has exactly these columns in this order. Names hold no comma: see
//! [`names`]. The latency is empty where it is not known. A new column is a new version: version 1, without the last, is read too. Never keeps
//! anything, never does I/O of its own.

use super::{DeviceName, Op, Parsed, RawRequest};
use crate::names;
use std::fmt;

/// The first line, up to the number of the version.
const MAGIC: &str = "# flashcell trace capture v";
/// The version written.
const VERSION: u32 = 2;
/// The first that is read.
const VERSION_MIN: u32 = 1;
/// The names of the columns of version 1; each version has those of the one before.
const COLUMNS: &str = "time_ns,grid_disk,database,request,offset_bytes,bytes";
/// The name of the one that version 2 has besides.
const LATENCY: &str = ",latency_ns";

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable.
    Flush,
    /// Give up content.
    Trim,
    /// Make zeroes.
    Zero,
    /// Bring into the flash cache.
    Prefetch,
}

impl Kind {
    /// All of them, as written.
    pub const ALL: [(&'static str, Kind); 6] = [
        ("read", Kind::Read),
        ("write", Kind::Write),
        ("flush", Kind::Flush),
        ("trim", Kind::Trim),
        ("zero", Kind::Zero),
        ("prefetch", Kind::Prefetch),
    ];

    fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it began, nanoseconds since 1970.
    pub time_ns: u64,
    /// The grid disk.
    pub grid_disk: &'a str,
    /// The database that asked; empty where the connection names none.
    pub database: &'a str,
    /// What it does.
    pub kind: Kind,
    /// From the start of the grid disk.
    pub offset_bytes: u64,
    /// How much; 0 for a flush.
    pub bytes: u64,
    /// How long it took, in nanoseconds, where that is known.
    pub latency_ns: Option<u64>,
}

/// The lines a capture begins with; each [`Record`] is one more.
#[must_use]
pub fn head() -> String {
    format!("{MAGIC}{VERSION}\n{COLUMNS}{LATENCY}\n")
}

/// A line of a capture, without its end.
impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},", self.time_ns)?;
        names::write(f, self.grid_disk)?;
        f.write_str(",")?;
        names::write(f, self.database)?;
        write!(f, ",{},{},{},", self.kind.name(), self.offset_bytes, self.bytes)?;
        self.latency_ns.map_or(Ok(()), |ns| write!(f, "{ns}"))
    }
}

/// Whether a file that begins so is a capture, of whatever version.
pub(super) fn is_capture(head: &[u8]) -> bool {
    names::version(head, MAGIC).is_some()
}

/// One line: what reads, writes and flushes. Trims and prefetches are no work of a cache's policy.
pub(super) fn parse(line: &[u8]) -> Parsed {
    if names::version(line, MAGIC).is_some_and(|version| !(VERSION_MIN..=VERSION).contains(&version)) {
        return Err("a capture of another version of flashcell");
    }
    let is_names =
        line.strip_prefix(COLUMNS.as_bytes()).is_some_and(|rest| rest.is_empty() || rest == LATENCY.as_bytes());
    if line.is_empty() || line.starts_with(b"#") || is_names {
        return Ok(None);
    }
    let fields: Vec<&[u8]> = line.split(|b| *b == b',').collect();
    let &[time, grid_disk, database, kind, offset, bytes, ref latency @ ..] = fields.as_slice() else {
        return Err("neither six nor seven columns");
    };
    let latency_ns = match *latency {
        [] | [b""] => None,
        [latency] => Some(names::number(latency)?),
        _ => return Err("neither six nor seven columns"),
    };
    let (time_ns, device, _) = (names::number(time)?, names::parse(grid_disk)?, names::parse(database)?);
    let (start, count) = (names::number(offset)?, names::number(bytes)?);
    let kind = Kind::ALL.iter().find(|(name, _)| name.as_bytes() == kind);
    let op = match kind.ok_or("no request of this version")?.1 {
        Kind::Read => Op::Read,
        Kind::Write | Kind::Zero => Op::Write,
        Kind::Flush => Op::Flush,
        Kind::Trim | Kind::Prefetch => return Ok(None),
    };
    let device = DeviceName::Text(device.into_owned().into_bytes());
    Ok(Some(RawRequest { device, start, count, op, time_ns: Some(time_ns), latency_ns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: Kind) -> Record<'static> {
        let (time_ns, offset_bytes, bytes, latency_ns) = (1_700_000_000_000_000_000, 8192, 4096, Some(740_000));
        Record { time_ns, grid_disk: "DATA_CD_00_cell", database: "a,b %", kind, offset_bytes, bytes, latency_ns }
    }

    #[test]
    fn the_form_is_fixed() {
        let (offset_bytes, bytes, latency_ns) = (0, 0, None);
        let flush = Record { offset_bytes, bytes, latency_ns, database: "", ..record(Kind::Flush) };
        expect_test::expect![[r"
            # flashcell trace capture v2
            time_ns,grid_disk,database,request,offset_bytes,bytes,latency_ns
            1700000000000000000,DATA_CD_00_cell,a%2Cb%20%25,read,8192,4096,740000
            1700000000000000000,DATA_CD_00_cell,,flush,0,0,
        "]]
        .assert_eq(&format!("{}{}\n{flush}\n", head(), record(Kind::Read)));
    }

    #[test]
    fn what_is_written_is_read() {
        for (_, kind) in Kind::ALL {
            let got = parse(record(kind).to_string().as_bytes()).unwrap_or(None);
            let got = got.map(|got| (got.start, got.count, got.op, got.latency_ns));
            let op = match kind {
                Kind::Read => Some(Op::Read),
                Kind::Write | Kind::Zero => Some(Op::Write),
                Kind::Flush => Some(Op::Flush),
                Kind::Trim | Kind::Prefetch => None,
            };
            assert_eq!(got, op.map(|op| (8192, 4096, op, Some(740_000))), "{kind:?}");
        }
        assert!(matches!(parse(head().as_bytes().trim_ascii_end()), Ok(None)));
    }

    #[test]
    fn versions_one_and_two_are_read() {
        for line in [
            "# flashcell trace capture v1",
            "# flashcell trace capture v2",
            COLUMNS,
            head().lines().last().unwrap_or(""),
        ] {
            assert!(matches!(parse(line.as_bytes()), Ok(None)), "{line}");
        }
        for (line, latency_ns) in [("1,R,D,read,0,1", None), ("1,R,D,read,0,1,", None), ("1,R,D,read,0,1,0", Some(0))] {
            let got = parse(line.as_bytes()).unwrap_or(None).map(|got| (got.count, got.latency_ns));
            assert_eq!(got, Some((1, latency_ns)), "{line}");
        }
    }

    #[test]
    fn malformed_lines() {
        for (line, what) in [
            ("1,R,D,read,0", "neither six nor seven columns"),
            ("1,R,D,read,0,1,2,3", "neither six nor seven columns"),
            ("1,R,D,read,0,1,-2", "not a number"),
            ("1,R,D,read,0,1,2.5", "not a number"),
            ("-1,R,D,read,0,1", "not a number"),
            ("1,R,D,read,0x0,1", "not a number"),
            ("1,R,D,read,0,", "not a number"),
            ("1,R%2,D,read,0,1", "not a name"),
            ("1,R,D,erase,0,1", "no request of this version"),
            ("# flashcell trace capture v0", "a capture of another version of flashcell"),
            ("# flashcell trace capture v3", "a capture of another version of flashcell"),
        ] {
            assert_eq!(parse(line.as_bytes()).err(), Some(what), "{line}");
        }
    }
}
