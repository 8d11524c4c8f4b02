//! The table of the field's `cellcli.pl`: a row for each metric, one number for all, or a column for each cell.
//!
//! Fits a terminal: columns of cells go on in further blocks, descriptions below their rows. Never cuts a number or a word.

use super::MetricsOptions;
use super::combine::{How, combine, how};
use super::number::Number;
use super::reading::{Metric, Reading};
use regex_lite::Regex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The least width of the name's column, and of numbers: the field's.
const NAME_WIDTH: usize = 23;
const NUMBER_WIDTH: usize = 12;
/// Beside the numbers if at least so much is left of the terminal's width.
const DESCRIPTION_WIDTH: usize = 30;
/// Of a description below its row.
const INDENT: usize = 4;

/// One value and where it is from.
type Entry = (usize, Number, Option<Number>);

struct Group {
    metric: Arc<Metric>,
    how: How,
    entries: Vec<Entry>,
}

/// The table; `width` of the terminal, none for as wide as it gets.
pub(super) fn text(
    options: &MetricsOptions,
    readings: &[Reading],
    mask: Option<&Regex>,
    width: Option<usize>,
) -> String {
    let groups = groups(options, readings, mask);
    let shown = |number: Option<Number>| match number {
        None => String::new(),
        Some(number) if options.scientific => number.scientific(),
        Some(number) => number.to_string(),
    };
    let all_sums = groups.values().all(|group| group.how == How::Sum);
    let mut fixed = vec![Column::new("Name", NAME_WIDTH, false)];
    if options.objects {
        fixed.push(Column::new("Object", 0, false));
    }
    let mut numbers = vec![Column::new(if all_sums { "Sum" } else { "Value" }, NUMBER_WIDTH, true)];
    if !all_sums {
        numbers.push(Column::new("Is", 0, false));
    }
    if options.cells {
        let mut names: Vec<&str> = readings.iter().map(|reading| reading.cell.as_str()).collect();
        numbers.extend(names.drain(..).map(|name| Column::new(name, NUMBER_WIDTH, true)));
    }
    if options.stats {
        numbers.extend(["Min", "Max", "Avg"].map(|name| Column::new(name, NUMBER_WIDTH, true)));
    }
    let mut descriptions = Vec::new();
    for ((name, object), group) in &groups {
        fixed[0].cells.push(name.clone());
        if options.objects {
            fixed[1].cells.push(object.clone());
        }
        let of = |keep: &dyn Fn(usize) -> bool| {
            let kept = group.entries.iter().filter(|entry| keep(entry.0));
            combine(&group.how, &kept.map(|(_, value, weight)| (*value, *weight)).collect::<Vec<_>>())
        };
        let mut row = vec![shown(of(&|_| true))];
        if !all_sums {
            row.push(group.how.word().to_owned());
        }
        if options.cells {
            row.extend((0..readings.len()).map(|cell| shown(of(&|index| index == cell))));
        }
        if options.stats {
            let plain: Vec<_> = group.entries.iter().map(|(_, value, _)| (*value, None)).collect();
            row.extend([How::Minimum, How::Maximum, How::Mean].map(|how| shown(combine(&how, &plain))));
        }
        numbers.iter_mut().zip(row).for_each(|(column, text)| column.cells.push(text));
        let metric = &group.metric;
        let unit = if metric.unit.is_empty() { String::new() } else { format!(" [{}]", metric.unit) };
        descriptions.push(format!("{}{unit}", metric.description));
    }
    laid_out(&fixed, &numbers, options.describe.then_some(&descriptions[..]), width)
}

fn groups(options: &MetricsOptions, readings: &[Reading], mask: Option<&Regex>) -> BTreeMap<(String, String), Group> {
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    for (cell, reading) in readings.iter().enumerate() {
        let mut weights: Option<HashMap<(&str, &str), Number>> = None;
        for value in &reading.values {
            let metric = &value.metric;
            if !mask.is_none_or(|mask| mask.is_match(&metric.name)) {
                continue;
            }
            let object = if options.objects { value.object.clone() } else { String::new() };
            let group = groups.entry((metric.name.clone(), object)).or_insert_with(|| Group {
                metric: metric.clone(),
                how: how(metric),
                entries: Vec::new(),
            });
            let weight = match &group.how {
                How::Weighted(names) => {
                    // Looked up only where something is weighted.
                    let all = weights.get_or_insert_with(|| {
                        let of = |it: &'_ super::reading::Value| it.value;
                        reading
                            .values
                            .iter()
                            .map(|it| ((it.metric.name.as_str(), it.object.as_str()), of(it)))
                            .collect()
                    });
                    names.iter().find_map(|name| all.get(&(name.as_str(), value.object.as_str())).copied())
                }
                _ => None,
            };
            group.entries.push((cell, value.value, weight));
        }
    }
    groups
}

struct Column {
    head: String,
    width_min: usize,
    right: bool,
    cells: Vec<String>,
}

impl Column {
    fn new(head: &str, width_min: usize, right: bool) -> Column {
        Column { head: head.to_owned(), width_min, right, cells: Vec::new() }
    }

    fn width(&self) -> usize {
        let widest = self.cells.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        widest.max(self.head.chars().count()).max(self.width_min)
    }

    fn padded(&self, text: &str) -> String {
        let width = self.width();
        if self.right { format!("{text:>width$}") } else { format!("{text:<width$}") }
    }
}

/// Blocks of columns, each with the fixed ones first, none wider than the terminal if that can be.
fn laid_out(fixed: &[Column], numbers: &[Column], descriptions: Option<&[String]>, width: Option<usize>) -> String {
    let fixed_width = fixed.iter().map(|column| column.width() + 1).sum::<usize>();
    let mut blocks: Vec<Vec<&Column>> = vec![Vec::new()];
    let mut used = fixed_width;
    for column in numbers {
        let needed = column.width() + 1;
        let full = width.is_some_and(|width| used + needed > width + 1);
        if full && blocks.last().is_some_and(|block| !block.is_empty()) {
            blocks.push(Vec::new());
            used = fixed_width;
        }
        used += needed;
        blocks.iter_mut().next_back().into_iter().for_each(|block| block.push(column));
    }
    let rows = fixed.first().map_or(0, |column| column.cells.len());
    let mut text = String::new();
    for (index, block) in blocks.iter().enumerate() {
        let columns: Vec<&Column> = fixed.iter().chain(block.iter().copied()).collect();
        let taken: usize = columns.iter().map(|column| column.width() + 1).sum();
        let last = index + 1 == blocks.len();
        let descriptions = descriptions.filter(|_| last);
        // Beside the row, wrapped below it, or all of it below.
        let beside = width.is_none_or(|width| width >= taken + DESCRIPTION_WIDTH);
        let mut line = |words: Vec<String>, description: Option<&str>| {
            let row = words.join(" ");
            match description {
                Some(description) if beside => {
                    let room = width.map_or(usize::MAX, |width| width - taken);
                    let mut pieces = wrapped(description, room).into_iter();
                    let first = pieces.next().unwrap_or_default();
                    text.push_str(format!("{row} {first}").trim_end());
                    for piece in pieces {
                        text.push_str(&format!("\n{:taken$}{piece}", ""));
                    }
                }
                Some(description) => {
                    text.push_str(row.trim_end());
                    let room = width.unwrap_or(usize::MAX).saturating_sub(INDENT).max(DESCRIPTION_WIDTH);
                    for piece in wrapped(description, room) {
                        text.push_str(&format!("\n{:INDENT$}{piece}", ""));
                    }
                }
                None => text.push_str(row.trim_end()),
            }
            text.push('\n');
        };
        let head = |column: &&Column| column.padded_head();
        line(columns.iter().map(head).collect(), descriptions.filter(|_| beside).map(|_| "Description"));
        let rule = |column: &&Column| "-".repeat(column.width());
        line(columns.iter().map(rule).collect(), descriptions.filter(|_| beside).map(|_| "-----------"));
        for row in 0..rows {
            let words = columns.iter().map(|column| column.padded(&column.cells[row])).collect();
            line(words, descriptions.map(|all| all[row].as_str()));
        }
        if !last {
            text.push('\n');
        }
    }
    text
}

impl Column {
    /// Heads stand at the left, as the field's.
    fn padded_head(&self) -> String {
        format!("{:<width$}", self.head, width = self.width())
    }
}

/// Words in lines of at most so many characters; a longer word has a line of its own.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::reading::{Type, Value};
    use super::*;

    fn readings() -> Vec<Reading> {
        let metric = |name: &str, metric_type, unit: &str, description: &str| {
            Arc::new(Metric {
                name: name.to_owned(),
                metric_type,
                object_type: "X".to_owned(),
                unit: unit.to_owned(),
                description: description.to_owned(),
            })
        };
        let hits = metric("FC_IO_RQ_R", Type::Cumulative, "IO requests", "reads served whole from the cache");
        let skips = metric("FC_IO_RQ_R_SKIP", Type::Cumulative, "IO requests", "reads that went past the cache");
        let rate = metric("FC_IO_RQ_R_SKIP_SEC", Type::Rate, "IO/sec", "the same, a second");
        let time = metric("CD_IO_TM_R_SM_RQ", Type::Rate, "us/request", "time of a small read");
        let small = metric("CD_IO_RQ_R_SM_SEC", Type::Rate, "IO/sec", "small reads");
        let value = |metric: &Arc<Metric>, object: &str, value: &str| Value {
            metric: metric.clone(),
            object: object.to_owned(),
            value: Number::parse(value).unwrap(),
        };
        let cell = |name: &str, values| Reading { cell: name.to_owned(), at_ms: 1, values };
        vec![
            cell(
                "exa1cel01",
                vec![
                    value(&hits, "FLASHCACHE", "8551640"),
                    value(&skips, "FLASHCACHE", "174200000"),
                    value(&rate, "FLASHCACHE", "33.6"),
                    value(&time, "CD_00", "1000"),
                    value(&time, "CD_01", "101000"),
                    value(&small, "CD_00", "990"),
                    value(&small, "CD_01", "10"),
                ],
            ),
            cell(
                "exa1cel02",
                vec![
                    value(&hits, "FLASHCACHE", "4"),
                    value(&rate, "FLASHCACHE", "0.1"),
                    value(&time, "CD_00", "3000"),
                    value(&small, "CD_00", "1000"),
                ],
            ),
        ]
    }

    fn shown(change: impl FnOnce(&mut MetricsOptions), mask: &str, width: Option<usize>) -> String {
        let mut options = MetricsOptions::default();
        change(&mut options);
        text(&options, &readings(), Some(&super::super::mask(mask).unwrap()), width)
    }

    /// The field's lines.
    #[test]
    fn the_table_of_the_field() {
        expect_test::expect![[r#"
            Name                    Sum
            ----------------------- ------------
            FC_IO_RQ_R               8.55164e+06
            FC_IO_RQ_R_SKIP            1.742e+08
            FC_IO_RQ_R_SKIP_SEC             33.7
        "#]]
        .assert_eq(&shown(|options| options.scientific = true, "FC_IO_RQ_R", None));
        expect_test::expect![[r#"
            Name                    Sum
            ----------------------- ------------
            FC_IO_RQ_R                   8551644
            FC_IO_RQ_R_SKIP            174200000
            FC_IO_RQ_R_SKIP_SEC             33.7
        "#]]
        .assert_eq(&shown(|_| (), "fc_io_rq_r", None));
    }

    #[test]
    fn kinds_objects_cells_and_statistics() {
        expect_test::expect![[r#"
            Name                    Value        Is   exa1cel01    exa1cel02
            ----------------------- ------------ ---- ------------ ------------
            CD_IO_RQ_R_SM_SEC               2000 sum          1000         1000
            CD_IO_TM_R_SM_RQ                2500 mean         2000         3000
        "#]]
        .assert_eq(&shown(|options| options.cells = true, "CD_", None));
        expect_test::expect![[r#"
            Name                    Object Value        Is   Min          Max          Avg
            ----------------------- ------ ------------ ---- ------------ ------------ ------------
            CD_IO_TM_R_SM_RQ        CD_00      2005.025 mean         1000         3000         2000
            CD_IO_TM_R_SM_RQ        CD_01        101000 mean       101000       101000       101000
        "#]]
        .assert_eq(&shown(
            |options| {
                options.objects = true;
                options.stats = true;
            },
            "CD_IO_TM",
            None,
        ));
    }

    #[test]
    fn it_fits_the_terminal() {
        let narrow = shown(|options| options.cells = true, "FC_", Some(50));
        expect_test::expect![[r#"
            Name                    Sum          exa1cel01
            ----------------------- ------------ ------------
            FC_IO_RQ_R                   8551644      8551640
            FC_IO_RQ_R_SKIP            174200000    174200000
            FC_IO_RQ_R_SKIP_SEC             33.7         33.6

            Name                    exa1cel02
            ----------------------- ------------
            FC_IO_RQ_R                         4
            FC_IO_RQ_R_SKIP
            FC_IO_RQ_R_SKIP_SEC              0.1
        "#]]
        .assert_eq(&narrow);
        let described = shown(|options| options.describe = true, "FC_IO_RQ_R$", Some(70));
        expect_test::expect![[r#"
            Name                    Sum          Description
            ----------------------- ------------ -----------
            FC_IO_RQ_R                   8551644 reads served whole from the cache
                                                 [IO requests]
        "#]]
        .assert_eq(&described);
        let below = shown(|options| options.describe = true, "FC_IO_RQ_R$", Some(40));
        expect_test::expect![[r#"
            Name                    Sum
            ----------------------- ------------
            FC_IO_RQ_R                   8551644
                reads served whole from the cache
                [IO requests]
        "#]]
        .assert_eq(&below);
        for width in [40, 50, 70, 100] {
            let all = |options: &mut MetricsOptions| {
                options.cells = true;
                options.stats = true;
                options.describe = true;
            };
            let text = shown(all, ".*", Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
        }
    }
}
