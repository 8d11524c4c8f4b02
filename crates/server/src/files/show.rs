//! The files of a report as a table, or in JSON.
//!
//! Never prints a control character of a file's name.

use super::{FileHeld, FilesReport, Told};
use crate::admin::Held;
use cellcli::answer::size_text;
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

/// The name stands in the last.
const COLUMNS: usize = 9;

/// Whether it has a line of its own.
fn is_shown(file: &FileHeld) -> bool {
    file.held.cached_bytes > 0 || file.held.reads >= 0.5
}

/// Shown of files with something on flash or that were read, what has most on flash first; a line for all others, and one for all.
pub(super) fn text(report: &FilesReport) -> String {
    let mut shown: Vec<&FileHeld> = report.files.iter().filter(|file| is_shown(file)).collect();
    shown.sort_by(|a, b| b.held.cached_bytes.cmp(&a.held.cached_bytes).then_with(|| a.path.cmp(&b.path)));
    let head = ["cached", "%", "keep", "dirty", "size", "reads", "hit%", "saved", report.told.one()];
    let mut rows: Vec<[String; COLUMNS]> = vec![head.map(str::to_owned)];
    rows.extend(shown.iter().map(|file| row([file].into_iter().copied(), &name(&file.path))));
    let rest: Vec<&FileHeld> = report.files.iter().filter(|file| !is_shown(file)).collect();
    if !rest.is_empty() {
        rows.push(row(
            rest.iter().copied(),
            &format!("({} with nothing on flash and few reads)", report.told.counted(rest.len())),
        ));
    }
    rows.push(row(report.files.iter(), &format!("({} in all)", report.told.counted(report.files.len()))));
    let widths: Vec<usize> =
        (0..COLUMNS - 1).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, "{cell:>width$}  ");
        }
        let _ = writeln!(out, "{}", row[COLUMNS - 1]);
    }
    out
}

impl Told {
    fn one(self) -> &'static str {
        match self {
            Told::Files => "file",
            Told::Relations => "relation",
        }
    }

    fn counted(self, count: usize) -> String {
        format!("{count} {}{}", self.one(), if count == 1 { "" } else { "s" })
    }
}

/// The sum of some files.
fn row<'a>(files: impl Iterator<Item = &'a FileHeld>, name: &str) -> [String; COLUMNS] {
    let mut sum = FileHeld::default();
    for file in files {
        sum.size_bytes += file.size_bytes;
        sum.located_bytes += file.located_bytes;
        sum.held.add(&file.held);
    }
    let percent = match sum.located_bytes {
        0 => "-".to_owned(),
        located => format!("{:.1}", sum.held.cached_bytes as f64 * 100.0 / located as f64),
    };
    let size = |bytes| if bytes == 0 { "0".to_owned() } else { rounded(bytes) };
    let held = sum.held;
    [
        size(held.cached_bytes),
        percent,
        size(held.kept_bytes),
        size(held.dirty_bytes),
        size(sum.size_bytes),
        format!("{:.0}", held.reads),
        if held.reads < 0.5 { "-".to_owned() } else { format!("{:.1}", held.hits * 100.0 / held.reads) },
        saved(held.saved_ms),
        name.to_owned(),
    ]
}

/// A time to be read, from milliseconds.
fn saved(ms: f64) -> String {
    match ms {
        _ if ms < 0.5 => "0".to_owned(),
        _ if ms < 1e3 => format!("{ms:.0}ms"),
        _ if ms < 600e3 => format!("{:.1}s", ms / 1e3),
        _ if ms < 36_000e3 => format!("{:.1}min", ms / 60e3),
        _ => format!("{:.1}h", ms / 3_600e3),
    }
}

/// To be read: four digits at most, in whole or tenth units.
fn rounded(bytes: u64) -> String {
    let unit = (0..5).rev().map(|n| 1_u64 << (10 * n)).find(|unit| bytes >= *unit).unwrap_or(1);
    let tenths = (u128::from(bytes) * 10 / u128::from(unit)) as u64;
    if bytes.is_multiple_of(unit) || tenths >= 1000 {
        return size_text(bytes / unit * unit);
    }
    let letter = size_text(unit).trim_start_matches('1').to_owned();
    format!("{}.{}{letter}", tenths / 10, tenths % 10)
}

fn name(path: &Path) -> String {
    path.to_string_lossy()
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

pub(super) fn csv(report: &FilesReport) -> String {
    let mut out = String::new();
    for FileHeld { path, size_bytes, located_bytes, held } in &report.files {
        let Held { cached_bytes, kept_bytes, dirty_bytes, reads, hits, saved_ms } = held;
        let name = path.to_string_lossy().replace('"', "\"\"");
        let _ = writeln!(
            out,
            "\"{name}\",{size_bytes},{located_bytes},{cached_bytes},{kept_bytes},{dirty_bytes},{reads:.0},{hits:.0},{saved_ms:.0}"
        );
    }
    out
}

pub(super) fn json(report: &FilesReport) -> String {
    let file = |file: &FileHeld| {
        json!({
            report.told.one(): file.path.to_string_lossy(),
            "size": file.size_bytes,
            "located": file.located_bytes,
            "cachedSize": file.held.cached_bytes,
            "cachedKeepSize": file.held.kept_bytes,
            "cachedWriteSize": file.held.dirty_bytes,
            "reads": file.held.reads.round() as u64,
            "hits": file.held.hits.round() as u64,
            "savedMs": file.held.saved_ms.round() as u64,
        })
    };
    let files: Vec<_> = report.files.iter().map(file).collect();
    let skipped: Vec<_> = report
        .skipped
        .iter()
        .map(|(path, why)| json!({"file": path.to_string_lossy(), "why": why.to_string()}))
        .collect();
    format!("{:#}\n", json!({format!("{}s", report.told.one()): files, "skipped": skipped}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn most_first_then_the_rest_and_all() {
        let file = |path: &str, size_bytes, cached_bytes, dirty_bytes, (reads, hits, saved_ms)| FileHeld {
            path: path.into(),
            size_bytes,
            located_bytes: size_bytes,
            held: Held { cached_bytes, dirty_bytes, reads, hits, saved_ms, ..Held::default() },
        };
        let unread = (0.0, 0.0, 0.0);
        let files = vec![
            file("/pg/base/1", 8192, 4096, 0, (0.4, 0.2, 0.3)),
            file("/pg/base/2", 1 << 30, 3 << 28, 4096, (123_456.2, 98_765.0, 725_000.0)),
            file("/pg/base/3", 1 << 20, 0, 0, (7.0, 0.0, 0.0)),
            file("/pg/base/a\nb", 1_234_567, 0, 0, unread),
            file("/pg/empty", 0, 0, 0, unread),
        ];
        let report = FilesReport { files, ..FilesReport::default() };
        expect![[r#"
            cached     %  keep  dirty  size   reads  hit%    saved  file
              768M  75.0     0     4K    1G  123456  80.0  12.1min  /pg/base/2
                4K  50.0     0      0    8K       0     -        0  /pg/base/1
                 0   0.0     0      0    1M       7   0.0        0  /pg/base/3
                 0   0.0     0      0  1.1M       0     -        0  (2 files with nothing on flash and few reads)
              768M  74.8     0     4K  1.0G  123464  80.0  12.1min  (5 files in all)
        "#]]
        .assert_eq(&text(&report));
        assert_eq!(name(Path::new("a\u{1b}[2Jb")), "a\\u{1b}[2Jb");
    }

    #[test]
    fn sizes_have_four_digits_at_most() {
        for (bytes, shown) in
            [(1, "1"), (1023, "1023"), (1024, "1K"), (1536, "1.5K"), (123 << 20, "123M"), ((123 << 20) + 5, "123M")]
        {
            assert_eq!(rounded(bytes), shown);
        }
    }
}
