//! What reports have in common: JSON strings, text inside markup, tables that are Markdown too, files.
//!
//! Never decides what is reported.

use std::fmt::Write;
use std::io;
use std::path::Path;

/// A file with this text, in place of what is there.
pub(crate) fn save(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)
}

/// A string of JSON.
pub(crate) fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 32 => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Text for HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The beginning of a picture of so many pixels, on white.
pub(crate) fn svg_head(width: u64, height: u64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui,sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// A table whose first line is its head. `words` are the columns of words, set to the left; the others are numbers.
pub(crate) fn table(lines: &[impl AsRef<[String]>], words: &[usize]) -> String {
    let columns = lines.first().map_or(0, |line| line.as_ref().len());
    let width = |column: usize| lines.iter().map(|line| line.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        for ((column, cell), width) in line.as_ref().iter().enumerate().zip(&widths) {
            let _ = if words.contains(&column) {
                write!(text, "| {cell:<width$} ")
            } else {
                write!(text, "| {cell:>width$} ")
            };
        }
        text.push_str("|\n");
        if i == 0 {
            for (column, width) in widths.iter().enumerate() {
                let right = if words.contains(&column) { '-' } else { ':' };
                let _ = write!(text, "|-{}{right}", "-".repeat(*width));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Words up to this are not broken into lines.
const SHORT_CHARS: usize = 36;

/// A table as HTML that is well-formed XML. Classes: `n` a number, `s` few words.
pub(crate) fn html_table(lines: &[impl AsRef<[String]>], words: &[usize]) -> String {
    let mut text = String::from("<table>\n");
    for (i, line) in lines.iter().enumerate() {
        let cell = if i == 0 { "th" } else { "td" };
        text.push_str(match i {
            0 => "<thead><tr>",
            1 => "<tbody>\n<tr>",
            _ => "<tr>",
        });
        for (column, words_or_number) in line.as_ref().iter().enumerate() {
            let class = match words.contains(&column) {
                false => " class=\"n\"",
                true if words_or_number.chars().count() <= SHORT_CHARS => " class=\"s\"",
                true => "",
            };
            let _ = write!(text, "<{cell}{class}>{}</{cell}>", escaped(words_or_number));
        }
        text.push_str(if i == 0 { "</tr></thead>\n" } else { "</tr>\n" });
    }
    text.push_str(if lines.len() > 1 { "</tbody></table>\n" } else { "</table>\n" });
    text
}
