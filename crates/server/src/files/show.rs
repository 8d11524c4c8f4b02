//! The files of a report as a table, or in JSON.
//!
//! Never prints a control character of a file's name.

use super::{FileHeld, FilesReport, Told};
use crate::admin::HeldBytes;
use cellcli::answer::size_text;
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

/// Shown of files with something on flash, most first; a line for all others, and one for all.
pub(super) fn text(report: &FilesReport) -> String {
    let mut shown: Vec<&FileHeld> = report.files.iter().filter(|file| file.held.cached_bytes > 0).collect();
    shown.sort_by(|a, b| b.held.cached_bytes.cmp(&a.held.cached_bytes).then_with(|| a.path.cmp(&b.path)));
    let mut rows: Vec<[String; 6]> =
        vec![["cached", "%", "keep", "dirty", "size", report.told.one()].map(str::to_owned)];
    rows.extend(shown.iter().map(|file| row([file].into_iter().copied(), &name(&file.path))));
    let rest: Vec<&FileHeld> = report.files.iter().filter(|file| file.held.cached_bytes == 0).collect();
    if !rest.is_empty() {
        rows.push(row(rest.iter().copied(), &format!("({} with nothing on flash)", report.told.counted(rest.len()))));
    }
    rows.push(row(report.files.iter(), &format!("({} in all)", report.told.counted(report.files.len()))));
    let widths: Vec<usize> =
        (0..5).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, "{cell:>width$}  ");
        }
        let _ = writeln!(out, "{}", row[5]);
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
fn row<'a>(files: impl Iterator<Item = &'a FileHeld>, name: &str) -> [String; 6] {
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
        name.to_owned(),
    ]
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
        let HeldBytes { cached_bytes, kept_bytes, dirty_bytes } = held;
        let name = path.to_string_lossy().replace('"', "\"\"");
        let _ = writeln!(out, "\"{name}\",{size_bytes},{located_bytes},{cached_bytes},{kept_bytes},{dirty_bytes}");
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
        let file = |path: &str, size_bytes, cached_bytes, dirty_bytes| FileHeld {
            path: path.into(),
            size_bytes,
            located_bytes: size_bytes,
            held: HeldBytes { cached_bytes, kept_bytes: 0, dirty_bytes },
        };
        let files = vec![
            file("/pg/base/1", 8192, 4096, 0),
            file("/pg/base/2", 1 << 30, 3 << 28, 4096),
            file("/pg/base/a\nb", 1_234_567, 0, 0),
            file("/pg/empty", 0, 0, 0),
        ];
        let report = FilesReport { files, ..FilesReport::default() };
        expect![[r#"
            cached     %  keep  dirty  size  file
              768M  75.0     0     4K    1G  /pg/base/2
                4K  50.0     0      0    8K  /pg/base/1
                 0   0.0     0      0  1.1M  (2 files with nothing on flash)
              768M  74.9     0     4K  1.0G  (4 files in all)
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
