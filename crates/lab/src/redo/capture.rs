//! Redo syncs as a cell records them: a text file that other tools read too.
//!
//! ```text
//! # flashcell redo capture v1
//! time_ns,latency_ns,grid_disk,database,outcome
//! 1700000000000000000,452000,REDO_CD_00_cell,SPOT,flash-first
//! ```
//!
//! The first line is the magic and the version; further lines that start with `#` are remarks, so that captures may be put one
//! after the other. The line of names follows; a version has exactly these columns in this order. Names hold no comma:
//! see [`names`]. A new column is a new version. Never
//! keeps anything, never does I/O of its own.

use crate::names;
use std::borrow::Cow;
use std::fmt::{self, Write};

/// The first line, up to the number of the version.
pub const MAGIC: &str = "# flashcell redo capture v";
/// The version written.
pub const VERSION: u32 = 1;
/// The names of its columns.
pub const COLUMNS: &str = "time_ns,latency_ns,grid_disk,database,outcome";

/// Who was durable first, which is when the sync was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The disk.
    DiskFirst,
    /// The flash log.
    FlashFirst,
    /// Neither: it was answered with an error. Its time is no commit's.
    Failed,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 3] = [Outcome::DiskFirst, Outcome::FlashFirst, Outcome::Failed];

    /// As written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::DiskFirst => "disk-first",
            Outcome::FlashFirst => "flash-first",
            Outcome::Failed => "failed",
        }
    }
}

/// One sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was answered, nanoseconds since 1970.
    pub time_ns: u64,
    /// How long it took, nanoseconds.
    pub latency_ns: u64,
    /// The grid disk.
    pub grid_disk: Cow<'a, str>,
    /// The database that asked; empty where the connection names none.
    pub database: Cow<'a, str>,
    /// How it ended.
    pub outcome: Outcome,
}

/// The lines a capture begins with; each [`Record`] is one more.
#[must_use]
pub fn head() -> String {
    format!("{MAGIC}{VERSION}\n{COLUMNS}\n")
}

/// A line of a capture, without its end.
impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},", self.time_ns, self.latency_ns)?;
        for name in [&self.grid_disk, &self.database] {
            names::write(f, name)?;
            f.write_char(',')?;
        }
        f.write_str(self.outcome.name())
    }
}

/// The version of a capture that begins so; none where it is no capture.
#[must_use]
pub fn version(head: &[u8]) -> Option<u32> {
    names::version(head, MAGIC)
}

/// One line of a capture; none where it is a remark or the names.
///
/// # Errors
/// What is wrong with it.
pub fn parse(line: &[u8]) -> Result<Option<Record<'_>>, &'static str> {
    if line.is_empty() || line.starts_with(b"#") || line == COLUMNS.as_bytes() {
        return Ok(None);
    }
    let fields: Vec<&[u8]> = line.split(|b| *b == b',').collect();
    let &[time, latency, grid_disk, database, outcome] = fields.as_slice() else {
        return Err("not five columns");
    };
    let outcome = Outcome::ALL.into_iter().find(|known| known.name().as_bytes() == outcome);
    Ok(Some(Record {
        time_ns: names::number(time)?,
        latency_ns: names::number(latency)?,
        grid_disk: names::parse(grid_disk)?,
        database: names::parse(database)?,
        outcome: outcome.ok_or("no outcome of this version")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_form_is_fixed() {
        let record = Record {
            time_ns: 1_700_000_000_000_000_000,
            latency_ns: 452_000,
            grid_disk: "REDO_CD_00_cell".into(),
            database: "".into(),
            outcome: Outcome::FlashFirst,
        };
        let failed = Record { database: "a,b %".into(), outcome: Outcome::Failed, ..record.clone() };
        let text = format!("{}{record}\n{failed}\n", head());
        expect_test::expect![[r"
            # flashcell redo capture v1
            time_ns,latency_ns,grid_disk,database,outcome
            1700000000000000000,452000,REDO_CD_00_cell,,flash-first
            1700000000000000000,452000,REDO_CD_00_cell,a%2Cb%20%25,failed
        "]]
        .assert_eq(&text);
        assert_eq!(version(text.as_bytes()), Some(VERSION));
        assert_eq!(version(b"# flashcell redo capture v2\r\n"), Some(2));
        assert_eq!(version(b"452\n"), None);
    }

    #[test]
    fn malformed_lines() {
        for (line, what) in [
            ("1,2,R,D", "not five columns"),
            ("1,2,R,D,disk-first,x", "not five columns"),
            ("-1,2,R,D,disk-first", "not a number"),
            ("1,,R,D,disk-first", "not a number"),
            ("1,+2,R,D,disk-first", "not a number"),
            ("1,99999999999999999999,R,D,disk-first", "not a number"),
            ("1,2,R%2,D,disk-first", "not a name"),
            ("1,2,R%FF,D,disk-first", "not a name"),
            ("1,2,R,D,won", "no outcome of this version"),
        ] {
            assert_eq!(parse(line.as_bytes()), Err(what), "{line}");
        }
        assert_eq!(parse(b"# flashcell redo capture v1"), Ok(None));
        assert_eq!(parse(COLUMNS.as_bytes()), Ok(None));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            time_ns: u64, latency_ns: u64, grid_disk in ".*", database in ".*", outcome in 0_usize..3,
        ) {
            let outcome = Outcome::ALL[outcome];
            let record = Record { time_ns, latency_ns, grid_disk: grid_disk.into(), database: database.into(), outcome };
            let line = record.to_string();
            prop_assert!(!line.contains(char::is_whitespace));
            prop_assert_eq!(parse(line.as_bytes()), Ok(Some(record)));
        }
    }
}
