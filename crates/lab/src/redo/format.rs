//! The formats redo times come in, told apart by their content, and their lines.
//!
//! One function a format turns a line into a time of some kind; a new format is a variant here and a function beside the others.
//! Never reads files, never panics on any bytes.

use super::capture::{self, Outcome};
use super::columns::{self, Columns};
use super::unit::{NOT_A_NUMBER, Unit, decimal_ps};
use std::fmt;

/// Lines that are looked at to tell a format.
const LINES_LOOKED_AT: usize = 200;

/// The formats known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Oracle's extended SQL trace, event 10046: `WAIT #…: nam='log file sync' ela= 452 …`.
    Oracle,
    /// fio's latency logs: `time (msec), latency, direction, block size, …`.
    Fio,
    /// Numbers in columns.
    Columns,
    /// What a cell has recorded of its own redo syncs ([`capture`]).
    Capture,
}

impl Format {
    /// All of them with the names the command line takes.
    pub const ALL: [(&'static str, Format); 4] =
        [("10046", Format::Oracle), ("fio", Format::Fio), ("columns", Format::Columns), ("capture", Format::Capture)];

    /// As a report names it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Format::Oracle => "10046 trace",
            Format::Fio => "fio latency log",
            Format::Columns => "column",
            Format::Capture => "redo capture",
        }
    }

    /// What its numbers count when nobody says otherwise.
    pub(super) fn unit(self) -> Unit {
        match self {
            Format::Oracle | Format::Columns => Unit::Us,
            Format::Fio | Format::Capture => Unit::Ns,
        }
    }

    /// Whether times of a kind count when none is asked for.
    pub(super) fn counts(self, kind: &[u8]) -> bool {
        match self {
            Format::Oracle => kind == b"log file sync",
            Format::Fio => kind == b"write",
            Format::Columns => true,
            Format::Capture => kind != Outcome::Failed.name().as_bytes(),
        }
    }

    /// The kinds that count by default, for a message.
    pub(super) fn counted(self) -> &'static str {
        match self {
            Format::Oracle => "log file sync",
            Format::Fio => "write",
            Format::Columns => "",
            Format::Capture => "disk-first or flash-first",
        }
    }

    /// The format of a file that begins so.
    pub(super) fn of(head: &[u8]) -> Option<Format> {
        // The last line may be cut.
        let cut = head.iter().rposition(|b| *b == b'\n').map_or(head.len(), |at| at + 1);
        let lines = || head[..cut].split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
        if lines().next().is_some_and(|line| line.starts_with(capture::MAGIC.as_bytes())) {
            return Some(Format::Capture);
        }
        // A trace says early what it is, and long before its first wait.
        if lines().any(of_a_trace) {
            return Some(Format::Oracle);
        }
        let lines: Vec<&[u8]> =
            lines().filter(|l| !l.is_empty() && !l.starts_with(b"#")).take(LINES_LOOKED_AT).collect();
        // A few bad lines do not hide what the others are.
        let most = |test: &dyn Fn(&[u8]) -> bool| {
            let alike = lines.iter().filter(|line| test(line)).count();
            alike > 0 && alike * 2 >= lines.len()
        };
        if most(&|line| matches!(fio(line, Unit::Ns), Ok(Some(_)))) {
            return Some(Format::Fio);
        }
        most(&columns::has_number).then_some(Format::Columns)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Format::ALL.iter().find(|(_, format)| format == self).map_or("", |(name, _)| name))
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let found = Format::ALL.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
        found.ok_or_else(|| {
            let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
            format!("no format {text}\nhint: one of {}", names.join(", "))
        })
    }
}

/// A time and what it was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timed<'a> {
    /// Name of the wait, direction, outcome; empty in plain columns.
    pub(super) kind: &'a [u8],
    /// How long, in picoseconds.
    pub(super) ps: i64,
}

/// What a line is: a time, nothing of interest, or malformed with the reason.
pub(super) type Parsed<'a> = Result<Option<Timed<'a>>, &'static str>;

const NEGATIVE: &str = "a time below zero";
const TOO_FEW: &str = "too few columns";

/// How the lines of one file are read.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// The format.
    pub(super) format: Format,
    /// What its numbers count.
    pub(super) unit: Unit,
    /// Which column, of plain ones.
    pub(super) columns: Columns,
}

impl Lines {
    /// One line. `unended`: the file ends in it, without a line feed.
    pub(super) fn parse<'a>(&mut self, line: &'a [u8], unended: bool) -> Parsed<'a> {
        match self.format {
            Format::Oracle => oracle(line, unended, self.unit),
            Format::Fio => fio(line, self.unit),
            Format::Columns => self.columns.parse(line, self.unit),
            Format::Capture => capture(line, self.unit),
        }
    }
}

/// Lines that hardly any other file has, seen in traces of Oracle 9.2 to 19c.
fn of_a_trace(line: &[u8]) -> bool {
    let starts: [&[u8]; 9] = [
        b"WAIT #",
        b"PARSING IN CURSOR #",
        b"PARSE #",
        b"EXEC #",
        b"FETCH #",
        b"BINDS #",
        b"XCTEND rlbk=",
        b"*** SESSION ID:(",
        b"Oracle Database ",
    ];
    starts.iter().any(|start| line.starts_with(start))
}

/// `WAIT #140661335857648: nam='log file sync' ela= 40174 buffer#=158 sync scn=38725244627216 p3=0 obj#=-1 tim=…`.
fn oracle(line: &[u8], unended: bool, unit: Unit) -> Parsed<'_> {
    if !line.starts_with(b"WAIT #") {
        return Ok(None);
    }
    let Some(name_at) = find(line, b"nam='").map(|at| at + 5) else { return Err("no name of the wait") };
    let rest = line.get(name_at..).unwrap_or_default();
    let Some(name_end) = find(rest, b"' ela=") else { return Err("no time after the name of the wait") };
    let (kind, rest) = rest.split_at(name_end);
    let time = rest.get(6..).unwrap_or_default().trim_ascii_start();
    let end = time.iter().position(u8::is_ascii_whitespace).unwrap_or(time.len());
    let digits = &time[..end];
    if unended && end == time.len() {
        return Err("the file ends within the line");
    }
    whole_ps(digits, unit).map(|ps| Some(Timed { kind, ps }))
}

/// `time (msec), latency, direction (0 read, 1 write, 2 trim), block size, offset, priority`; older fio and some options leave the
/// last ones out.
fn fio(line: &[u8], unit: Unit) -> Parsed<'_> {
    if line.is_empty() {
        return Ok(None);
    }
    let mut fields = line.split(|b| *b == b',').map(<[u8]>::trim_ascii);
    let mut next = || fields.next().ok_or(TOO_FEW);
    let (time, latency, direction, block) = (next()?, next()?, next()?, next()?);
    whole_ps(time, Unit::Ms)?;
    whole_ps(block, Unit::Ns)?;
    let kind: &[u8] = match direction {
        b"0" => b"read",
        b"1" => b"write",
        b"2" => b"trim",
        _ => return Err("no data direction"),
    };
    whole_ps(latency, unit).map(|ps| Some(Timed { kind, ps }))
}

fn capture(line: &[u8], unit: Unit) -> Parsed<'_> {
    let Some(record) = capture::parse(line)? else { return Ok(None) };
    let ps = i64::try_from(record.latency_ns).ok().and_then(|ns| ns.checked_mul(unit.ps()));
    Ok(Some(Timed { kind: record.outcome.name().as_bytes(), ps: ps.ok_or(super::unit::TOO_LONG)? }))
}

/// A whole number that is not below zero.
fn whole_ps(digits: &[u8], unit: Unit) -> Result<i64, &'static str> {
    if let [b'-', rest @ ..] = digits
        && !rest.is_empty()
        && rest.iter().all(u8::is_ascii_digit)
    {
        return Err(NEGATIVE);
    }
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(NOT_A_NUMBER);
    }
    decimal_ps(digits, unit)
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redo::unit::{TOO_LONG, US_PS};
    use proptest::prelude::*;

    /// As Oracle 19c writes it (first), 11.2 on AIX, and 9.2 without a blank and with p1 to p3.
    #[test]
    fn waits_of_oracle() {
        for (line, name, us) in [
            (
                "WAIT #140661335857648: nam='log file sync' ela= 40174 buffer#=158 sync scn=38725244627216 p3=0 obj#=-1 tim=14522473296109",
                "log file sync",
                40174,
            ),
            (
                "WAIT #4852512888: nam='SQL*Net message from client' ela= 3112993 driver id=675562835 #bytes=1 p3=0 obj#=-1 tim=105928471952213",
                "SQL*Net message from client",
                3_112_993,
            ),
            (
                "WAIT #0: nam='SQL*Net message to client' ela=4639 p1=1650815232 p2=1 p3=0",
                "SQL*Net message to client",
                4639,
            ),
            ("WAIT #1: nam='x' ela= 0", "x", 0),
        ] {
            assert_eq!(
                oracle(line.as_bytes(), false, Unit::Us),
                Ok(Some(Timed { kind: name.as_bytes(), ps: us * US_PS })),
                "{line}"
            );
        }
        for line in [
            "",
            "=====================",
            "EXEC #1:c=964,e=964",
            "update t set x=1 where nam='y' ela= 5",
            " WAIT #1: nam='x' ela= 1",
        ] {
            assert_eq!(oracle(line.as_bytes(), false, Unit::Us), Ok(None), "{line}");
        }
        for (line, what) in [
            ("WAIT #", "no name of the wait"),
            ("WAIT #1: nam='log file sync", "no time after the name of the wait"),
            ("WAIT #1: nam='log file sync' ela=", NOT_A_NUMBER),
            ("WAIT #1: nam='log file sync' ela= x", NOT_A_NUMBER),
            ("WAIT #1: nam='log file sync' ela= 4.5 p1=0", NOT_A_NUMBER),
            ("WAIT #1: nam='log file sync' ela= -17 p1=0", NEGATIVE),
            ("WAIT #1: nam='log file sync' ela= 99999999999999999 p1=0", TOO_LONG),
        ] {
            assert_eq!(oracle(line.as_bytes(), false, Unit::Us), Err(what), "{line}");
        }
        // A number that the end of the file may have cut.
        let cut = b"WAIT #1: nam='log file sync' ela= 45";
        assert_eq!(oracle(cut, true, Unit::Us), Err("the file ends within the line"));
        assert!(oracle(b"WAIT #1: nam='log file sync' ela= 45 p1", true, Unit::Us).is_ok());
        let hundredths = oracle(b"WAIT #1: nam='log file sync' ela= 2 p1=0", false, Unit::Cs);
        assert_eq!(hundredths.map(|t| t.map(|t| t.ps)), Ok(Some(20_000 * US_PS)));
    }

    /// Lines of fio 3.33 without and with the offset, and of its manual.
    #[test]
    fn lines_of_fio() {
        for (line, kind, ns) in [
            ("0, 72448, 0, 8192, 0", "read", 72448),
            ("0, 20420, 1, 8192, 0, 0", "write", 20420),
            ("17,5710948852,1,4194304", "write", 5_710_948_852),
            ("1, 2, 2, 4096, 4096, 0x2004", "trim", 2),
        ] {
            let timed = Timed { kind: kind.as_bytes(), ps: ns * 1000 };
            assert_eq!(fio(line.as_bytes(), Unit::Ns), Ok(Some(timed)), "{line}");
        }
        for line in
            ["1, 2, 1", "1", "a, 2, 1, 4", "1, b, 1, 4", "1, 2, 3, 4", "1, -2, 1, 4", "1, 2, 1, x", "1, 2.5, 1, 4"]
        {
            assert!(fio(line.as_bytes(), Unit::Ns).is_err(), "{line}");
        }
    }

    #[test]
    fn formats_are_told_apart() {
        for (head, format) in [
            ("# flashcell redo capture v1\n", Some(Format::Capture)),
            ("/u01/app/x.trc\nOracle Database 11g Enterprise Edition\n1\n2\n", Some(Format::Oracle)),
            ("Trace file\n*** SESSION ID:(52.55034) 2007-01-19 09:56:00.761\n", Some(Format::Oracle)),
            ("WAIT #0: nam='x' ela= 1 p1=2\n", Some(Format::Oracle)),
            ("0, 72448, 0, 8192, 0\n0, 58757, 0, 8192, 0\n", Some(Format::Fio)),
            ("broken\n0, 72448, 0, 8192, 0\n0, 58757, 0, 8192, 0\n", Some(Format::Fio)),
            ("452\n500\n", Some(Format::Columns)),
            ("452", Some(Format::Columns)),
            ("latency_us\n1.5\n", Some(Format::Columns)),
            ("# by hand\n\n\"x\" \"y\"\n\"1\" 4\n", Some(Format::Columns)),
            ("a,b\n1,2\n", Some(Format::Columns)),
            ("", None),
            ("\n\n", None),
            ("some text\nand more\n", None),
            ("\0\0\0\0", None),
        ] {
            assert_eq!(Format::of(head.as_bytes()), format, "{head}");
        }
        for (name, format) in Format::ALL {
            assert_eq!(name.parse(), Ok(format));
            assert_eq!(format.to_string(), name);
        }
        assert!("xml".parse::<Format>().is_err_and(|e| e.contains("10046, fio, columns, capture")));
    }

    proptest! {
        /// Any bytes, and lines that are almost right.
        #[test]
        fn no_line_makes_a_reader_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            keep in 0_usize..80,
            unended: bool,
        ) {
            let starts: [&[u8]; 4] = [
                b"WAIT #1: nam='log file sync' ela= 452 buffer#=158 p3=0",
                b"17, 5710948852, 1, 4194304, 0, 0",
                b"\"1\" 452.25;17,3",
                b"1700000000000000000,452000,REDO,SPOT,disk-first",
            ];
            for (_, format) in Format::ALL {
                for start in starts {
                    let line = [&start[..keep.min(start.len())], &bytes].concat();
                    let head = Columns::from_head(&line, None).unwrap_or_default();
                    let mut lines = Lines { format, unit: Unit::S, columns: head };
                    let _ = lines.parse(&line, unended);
                    let _ = Format::of(&line);
                }
            }
        }
    }
}
