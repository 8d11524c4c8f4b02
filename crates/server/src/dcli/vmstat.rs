//! `--vmstat`: the program runs on every cell, and each of its rows is printed for all of them at once, with minimum, maximum
//! and average.
//!
//! A cell that falls behind or ends is printed without numbers; it holds up nobody.

use super::hosts::Target;
use super::pool::{Answer, End, Limits, run_steps};
use super::remote::Remote;
use super::show::print;
use super::{BATCH_MAX, DcliError};
use std::collections::VecDeque;
use std::sync::mpsc;

/// Rows a cell may be behind the quickest before the others are printed without it.
const LAG_ROWS_MAX: usize = 2;
/// Lines on their way from readers to the printer.
const LINES_WAITING_MAX: usize = 1024;
/// Rows between heads.
const ROWS_PER_HEAD: usize = 20;
/// Columns taken: vmstat has 17, and a time.
const COLUMNS_MAX: usize = 32;

/// Whether these options of vmstat make a row every interval; the others make a table, which is an ordinary command's output.
pub(super) fn has_rows(options: &str) -> bool {
    let letters = |word: &str| {
        word.starts_with('-') && !word.starts_with("--") && word.contains(['s', 'd', 'D', 'f', 'm', 'p', 'V', 'h'])
    };
    let words = ["--stats", "--disk", "--disk-sum", "--forks", "--slabs", "--partition", "--version", "--help"];
    !options.split_whitespace().any(|word| letters(word) || words.contains(&word))
}

enum Event {
    Line(usize, String),
    End(usize, End),
}

/// Run it to its end.
pub(super) fn run(
    targets: &[&Target],
    remote: &Remote,
    options: &str,
    limits: &Limits,
) -> Result<Vec<Answer>, DcliError> {
    if targets.len() > BATCH_MAX {
        return Err(DcliError::Bounds { option: "cells of --vmstat:", value: targets.len(), max: BATCH_MAX });
    }
    let (give, take) = mpsc::sync_channel(LINES_WAITING_MAX);
    std::thread::scope(|scope| {
        for (index, target) in targets.iter().enumerate() {
            let (give, step) = (give.clone(), remote.command(target, &format!("vmstat {options}")));
            scope.spawn(move || {
                // Refused when nobody prints any more.
                let end = run_steps(&[step], limits, &mut |line| drop(give.send(Event::Line(index, line.to_owned()))));
                let _ = give.send(Event::End(index, end));
            });
        }
        drop(give);
        let mut table = Table::new(targets.iter().map(|target| target.name.clone()).collect());
        for event in take {
            let text = match event {
                Event::Line(index, line) => table.line(index, &line),
                Event::End(index, end) => table.end(index, end),
            };
            print(&text)?;
        }
        print(&table.rest())?;
        Ok(table
            .cells
            .into_iter()
            .map(|cell| Answer { lines: cell.said, cut: 0, end: cell.end.unwrap_or(End::Unreached) })
            .collect())
    })
}

struct Cell {
    name: String,
    rows: VecDeque<Vec<String>>,
    /// What is no row and no head: messages of ssh.
    said: Vec<String>,
    end: Option<End>,
}

struct Table {
    cells: Vec<Cell>,
    /// What vmstat calls its columns.
    head: Vec<String>,
    printed: usize,
}

impl Table {
    fn new(names: Vec<String>) -> Table {
        let cell = |name| Cell { name, rows: VecDeque::new(), said: Vec::new(), end: None };
        Table { cells: names.into_iter().map(cell).collect(), head: Vec::new(), printed: 0 }
    }

    /// A line of a cell; what can be printed now.
    fn line(&mut self, index: usize, line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().take(COLUMNS_MAX).map(str::to_owned).collect();
        match words.first() {
            None => String::new(),
            Some(first) if first.parse::<u64>().is_ok() => {
                self.cells[index].rows.push_back(words);
                self.ready()
            }
            Some(first) if first.starts_with("procs") => String::new(),
            Some(first) if first == "r" => {
                self.head = words;
                String::new()
            }
            Some(_) => format!("{}: {line}\n", self.cells[index].name),
        }
    }

    fn end(&mut self, index: usize, end: End) -> String {
        self.cells[index].end = Some(end);
        self.ready()
    }

    /// Rows that need not wait: every cell that still runs has one, or somebody is too far ahead.
    fn ready(&mut self) -> String {
        let mut text = String::new();
        loop {
            let any = self.cells.iter().any(|cell| !cell.rows.is_empty());
            let all = self.cells.iter().all(|cell| !cell.rows.is_empty() || cell.end.is_some());
            let ahead = self.cells.iter().any(|cell| cell.rows.len() > LAG_ROWS_MAX);
            if !any || !(all || ahead) {
                return text;
            }
            text.push_str(&self.group());
        }
    }

    /// What is left when everybody has ended.
    fn rest(&mut self) -> String {
        let mut text = String::new();
        while self.cells.iter().any(|cell| !cell.rows.is_empty()) {
            text.push_str(&self.group());
        }
        text
    }

    /// One row of every cell, and what they are together.
    fn group(&mut self) -> String {
        let name_width = self.cells.iter().map(|cell| cell.name.len()).max().unwrap_or(0).max("Minimum".len()) + 1;
        let rows: Vec<(String, Option<Vec<String>>)> =
            self.cells.iter_mut().map(|cell| (format!("{}:", cell.name), cell.rows.pop_front())).collect();
        let columns = rows.iter().filter_map(|(_, row)| row.as_ref().map(Vec::len)).max().unwrap_or(0);
        let heads = &self.head;
        let together: Vec<(&str, Vec<String>)> = ["Minimum:", "Maximum:", "Average:"]
            .into_iter()
            .map(|kind| (kind, (0..columns).map(|column| combine(kind, &rows, column)).collect()))
            .collect();
        let width = |column: usize| {
            let of = |row: &Vec<String>| row.get(column).map_or(0, String::len);
            let shown = rows.iter().filter_map(|(_, row)| row.as_ref()).chain([heads]);
            shown.map(of).max().unwrap_or(0).max(2)
        };
        let line = |name: &str, words: &[String]| {
            let mut text = format!("{name:<name_width$}");
            words.iter().enumerate().for_each(|(i, word)| text.push_str(&format!(" {word:>width$}", width = width(i))));
            text + "\n"
        };
        let mut text = String::new();
        if self.printed.is_multiple_of(ROWS_PER_HEAD) {
            text.push_str(&line("", heads));
        }
        self.printed += 1;
        for (name, row) in &rows {
            let none = vec!["-".to_owned(); columns];
            text.push_str(&line(name, row.as_ref().unwrap_or(&none)));
        }
        together.iter().for_each(|(kind, words)| text.push_str(&line(kind, words)));
        text
    }
}

/// The least, greatest or mean number of a column, rounded down; a hyphen where there is none.
fn combine(kind: &str, rows: &[(String, Option<Vec<String>>)], column: usize) -> String {
    let numbers = rows.iter().filter_map(|(_, row)| row.as_ref()?.get(column)?.parse::<u64>().ok());
    let numbers: Vec<u64> = numbers.collect();
    let value = match kind {
        "Minimum:" => numbers.iter().min().copied(),
        "Maximum:" => numbers.iter().max().copied(),
        _ => numbers
            .iter()
            .map(|n| u128::from(*n))
            .sum::<u128>()
            .checked_div(numbers.len() as u128)
            .and_then(|mean| u64::try_from(mean).ok()),
    };
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_cells() {
        let mut table = Table::new(vec!["exa1cel01".to_owned(), "exa1cel02".to_owned()]);
        let mut text = String::new();
        for index in 0..2 {
            text.push_str(&table.line(index, "procs -----------memory----------"));
            text.push_str(&table.line(index, " r  b   swpd   free"));
        }
        text.push_str(&table.line(0, " 1  0      0 123456"));
        assert_eq!(text, "", "the other has not answered");
        text.push_str(&table.line(1, " 4  1    100 700001"));
        text.push_str(&table.end(1, End::Unreached));
        text.push_str(&table.line(0, " 2  0      0 123000"));
        text.push_str(&table.line(1, "ssh: lost"));
        expect_test::expect![[r#"
                        r  b swpd   free
            exa1cel01:  1  0    0 123456
            exa1cel02:  4  1  100 700001
            Minimum:    1  0    0 123456
            Maximum:    4  1  100 700001
            Average:    2  0   50 411728
            exa1cel01:  2  0    0 123000
            exa1cel02:  -  -    -      -
            Minimum:    2  0    0 123000
            Maximum:    2  0    0 123000
            Average:    2  0    0 123000
            exa1cel02: ssh: lost
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_silent_cell_holds_up_nobody() {
        let mut table = Table::new(vec!["a".to_owned(), "b".to_owned()]);
        let mut rows = 0;
        for i in 0..10 {
            rows += table.line(0, &format!("{i} 0")).matches("a:").count();
        }
        assert_eq!(rows, 10 - LAG_ROWS_MAX);
    }

    #[test]
    fn options_of_vmstat() {
        for (options, expected) in
            [("-a 3 5", true), ("1", true), ("", true), ("-s", false), ("-d 1", false), ("--stats", false)]
        {
            assert_eq!(has_rows(options), expected, "{options}");
        }
    }
}
