//! The text forms: one object a line, one attribute a line (DETAIL), and DESCRIBE.
//!
//! A line is TAB, blank, then fields padded to a common width with TAB, blank between them. With TABs at every eighth
//! column the first field stands at column 9, later ones at 8k+1.

use crate::answer::{Answer, Value};
use crate::command::DateFormat;
use crate::table::ObjectType;

/// Narrowest label column of DETAIL, its colon included: it puts the values at column 33, as scripts expect.
const DETAIL_LABEL_CHARS_MIN: usize = 20;

/// What begins a line and separates fields.
const GAP: &str = "\t ";

/// `answer` as columns, or one attribute a line when it is a DETAIL; one piece an object. Columns are as wide as their widest field, for which
/// all rows are looked at first.
pub fn text(answer: Answer, date_format: DateFormat) -> impl Iterator<Item = String> + Send {
    let fields = move |answer: &Answer, place| -> Vec<String> {
        answer.row(place).iter().map(|value| cell_text(value, date_format)).collect()
    };
    let widths = if answer.detail {
        Vec::new()
    } else {
        (0..answer.count()).fold(Vec::new(), |widths, place| widened(widths, &fields(&answer, place)))
    };
    (0..answer.count()).map(move |place| {
        let fields = fields(&answer, place);
        if answer.detail { detail(&answer.columns, &fields, place > 0) } else { columns(&fields, &widths) }
    })
}

/// The attributes of a type: name, then `modifiable` or `hidden` where it applies.
#[must_use]
pub fn describe(object: ObjectType) -> String {
    let rows: Vec<Vec<String>> = object
        .spec()
        .attributes
        .iter()
        .map(|attribute| {
            let mark = match (attribute.modifiable, attribute.hidden) {
                (true, _) => "modifiable",
                (false, true) => "hidden",
                (false, false) => "",
            };
            vec![attribute.name.to_owned(), mark.to_owned()]
        })
        .collect();
    let widths = rows.iter().fold(Vec::new(), |widths, row| widened(widths, row));
    rows.iter().map(|row| columns(row, &widths)).collect()
}

/// A value on one line: control characters, which only a server can bring in, become blanks.
fn cell_text(value: &Value, date_format: DateFormat) -> String {
    let text = match (value, date_format) {
        (Value::Timestamp(timestamp), DateFormat::Local) => timestamp.local_text(),
        _ => value.text(),
    };
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// The widths of columns that have room for these fields too.
fn widened(mut widths: Vec<usize>, row: &[String]) -> Vec<usize> {
    widths.resize(widths.len().max(row.len()), 0);
    for (width, field) in widths.iter_mut().zip(row) {
        *width = (*width).max(field.chars().count());
    }
    widths
}

/// Fields padded to the widest of their column, the last one not at all; no blanks at the end of a line.
fn columns(row: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (field, width) in row.iter().zip(widths) {
        line.push_str(GAP);
        push_padded(&mut line, field, *width);
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

/// `label: value` lines, after a blank line between objects.
fn detail(columns: &[&'static str], row: &[String], follows: bool) -> String {
    let longest = columns.iter().map(|column| column.chars().count() + 1).max().unwrap_or(0);
    let width = longest.max(DETAIL_LABEL_CHARS_MIN);
    let mut text = String::from(if follows { "\n" } else { "" });
    for (column, field) in columns.iter().zip(row) {
        let mut line = String::from(GAP);
        push_padded(&mut line, &format!("{column}:"), width);
        line.push_str(GAP);
        line.push_str(field);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn push_padded(line: &mut String, field: &str, width: usize) {
    line.push_str(field);
    for _ in field.chars().count()..width {
        line.push(' ');
    }
}
