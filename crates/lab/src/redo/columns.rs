//! Numbers in columns: one a line, or a table with or without names, as R, awk, CSV writers and people leave them.
//!
//! Fields are separated by commas, semicolons, tabs or blanks, and may stand in double quotes. A first line without a number
//! names the columns; with one name fewer than fields the first field is a row's name, as in what R's `write.table` writes.
//! Never guesses between several columns.

use super::format::{Parsed, Timed};
use super::unit::{Unit, decimal_ps};

/// Names that say by themselves which column is meant, when nobody says so.
const NAMES: [&str; 6] = ["latency_ns", "latency_us", "latency_ms", "latency_s", "latency", "ela"];
/// The most columns that are told apart; a line of [`crate::input::LINE_BYTES_MAX`] bytes holds no more fields of one digit.
const COLUMNS_MAX: usize = 2048;

/// Which column is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Columns {
    /// From 0.
    index: usize,
    /// The first line that is not a remark names the columns, and has not come yet.
    named: bool,
    /// What the column's name says of its unit.
    pub(super) unit: Option<Unit>,
    /// Its name.
    pub(super) name: Option<String>,
}

/// Why no column can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoColumn {
    /// There are several, and nobody said which.
    Several(Vec<String>),
    /// There is none of that name or number.
    Missing(Vec<String>),
}

impl Columns {
    /// The column of a file that begins so: the asked one, by name or number from 1, or the only one.
    pub(super) fn from_head(head: &[u8], asked: Option<&str>) -> Result<Columns, NoColumn> {
        let mut lines =
            head.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).filter(|l| !l.is_empty() && !l.starts_with(b"#"));
        let first = lines.next().unwrap_or_default();
        let named = !has_number(first);
        let mut names: Vec<Option<String>> = Vec::new();
        for field in fields(first).take(COLUMNS_MAX) {
            names.push(named.then(|| String::from_utf8_lossy(field).into_owned()));
        }
        if named && lines.next().is_some_and(|second| fields(second).count() == names.len() + 1) {
            names.insert(0, None);
        }
        let told = || {
            let name = |(at, name): (usize, &Option<String>)| name.clone().unwrap_or_else(|| (at + 1).to_string());
            names.iter().enumerate().map(name).collect::<Vec<String>>()
        };
        let by_name = |wanted: &str| names.iter().position(|name| name.as_deref() == Some(wanted));
        let index = match asked {
            Some(asked) => {
                let number = || asked.parse::<usize>().ok()?.checked_sub(1).filter(|at| *at < names.len());
                by_name(asked).or_else(number).ok_or_else(|| NoColumn::Missing(told()))?
            }
            None => {
                let mut candidates = names.iter().enumerate().filter(|(_, name)| named == name.is_some());
                match (candidates.next(), candidates.next()) {
                    (Some((at, _)), None) => at,
                    (None, _) => 0,
                    _ => NAMES.iter().find_map(|name| by_name(name)).ok_or_else(|| NoColumn::Several(told()))?,
                }
            }
        };
        let name = names.get(index).cloned().flatten();
        let unit = name.as_deref().and_then(|name| name.rsplit_once('_')).and_then(|(_, unit)| unit.parse().ok());
        Ok(Columns { index, named, unit, name })
    }

    /// One line.
    pub(super) fn parse<'a>(&mut self, line: &'a [u8], unit: Unit) -> Parsed<'a> {
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(None);
        }
        if std::mem::take(&mut self.named) {
            return Ok(None);
        }
        let field = fields(line).nth(self.index).ok_or("too few columns")?;
        decimal_ps(field, unit).map(|ps| Some(Timed { kind: b"", ps }))
    }
}

/// Whether some field of a line is a number.
pub(super) fn has_number(line: &[u8]) -> bool {
    fields(line).any(|field| decimal_ps(field, Unit::Ns).is_ok())
}

/// The fields of a line.
fn fields(line: &[u8]) -> Box<dyn Iterator<Item = &[u8]> + '_> {
    let separator = [b',', b';', b'\t'].into_iter().find(|separator| line.contains(separator));
    match separator {
        Some(separator) => Box::new(line.split(move |b| *b == separator).map(|field| unquoted(field.trim_ascii()))),
        None => Box::new(line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).map(unquoted)),
    }
}

fn unquoted(field: &[u8]) -> &[u8] {
    match field {
        [b'"', inner @ .., b'"'] => inner,
        _ => field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redo::unit::{NOT_A_NUMBER, US_PS};

    /// All numbers of a text in thousandths of a microsecond, and how many lines were malformed.
    fn read(text: &str, asked: Option<&str>) -> Result<(Vec<i64>, usize), NoColumn> {
        let mut columns = Columns::from_head(text.as_bytes(), asked)?;
        let unit = columns.unit.unwrap_or(Unit::Us);
        let (mut values, mut bad) = (Vec::new(), 0);
        for line in text.lines() {
            match columns.parse(line.trim().as_bytes(), unit) {
                Ok(Some(timed)) => values.push(timed.ps / (US_PS / 1000)),
                Ok(None) => {}
                Err(_) => bad += 1,
            }
        }
        Ok((values, bad))
    }

    fn good(text: &str, asked: Option<&str>, values: &[i64]) {
        assert_eq!(read(text, asked), Ok((values.to_vec(), 0)), "{text}");
    }

    #[test]
    fn one_column() {
        good("452\n500.5\n", None, &[452_000, 500_500]);
        good("# remark\n\n-1.6\r\n+2\n", None, &[-1_600, 2_000]);
        good("x\n1\n2\n", None, &[1_000, 2_000]);
        good("latency_ms\n1.5\n", None, &[1_500_000]);
        good("latency_ns\n1500\n", None, &[1_500]);
        good("", None, &[]);
        // What is no number later on is malformed; so is what R calls NA.
        assert_eq!(read("1\nx\nNA\n2\n", None), Ok((vec![1_000, 2_000], 2)));
    }

    /// As R's `write.table(data.frame(x = ...))` and `write.csv` leave it.
    #[test]
    fn tables_of_r() {
        good("\"x\"\n\"1\" 4.5\n\"2\" 5\n", None, &[4_500, 5_000]);
        good("\"\",\"x\"\n\"1\",4.5\n\"2\",5\n", Some("x"), &[4_500, 5_000]);
        good("\"extra\" \"group\"\n\"1\" 0.7 \"1\"\n\"2\" -1.6 \"1\"\n", Some("extra"), &[700, -1_600]);
    }

    #[test]
    fn several_columns_are_never_guessed() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(read("1 2\n", None), Err(NoColumn::Several(names(&["1", "2"]))));
        assert_eq!(read("a;b\n1;2\n", None), Err(NoColumn::Several(names(&["a", "b"]))));
        assert_eq!(read("a b\n1 2\n", Some("c")), Err(NoColumn::Missing(names(&["a", "b"]))));
        assert_eq!(read("1 2\n", Some("3")), Err(NoColumn::Missing(names(&["1", "2"]))));
        assert_eq!(read("1 2\n", Some("0")), Err(NoColumn::Missing(names(&["1", "2"]))));
        good("1\t2\n3\t4\n", Some("2"), &[2_000, 4_000]);
        good("a;b\n1;2\n", Some("b"), &[2_000]);
        good("time,latency_us\n1,2\n", None, &[2_000]);
        assert_eq!(read("1,2\n3\n5,6\n", Some("2")), Ok((vec![2_000, 6_000], 1)));
    }

    #[test]
    fn reasons() {
        let mut columns = Columns::default();
        assert_eq!(columns.parse(b"x", Unit::Us), Err(NOT_A_NUMBER));
        columns.index = 1;
        assert_eq!(columns.parse(b"1", Unit::Us), Err("too few columns"));
    }
}
