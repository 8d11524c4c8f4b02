//! What is printed: `cell: line`, the vendor's summaries, and on stderr who failed and how.

use super::hosts::Target;
use super::pool::{Answer, End};
use super::{DcliError, DcliOptions};
use regex_lite::Regex;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::io::Write;

/// The forms of output of one call.
pub(super) struct Show {
    abbreviate: bool,
    regex: Option<(Regex, String)>,
    /// Who had lines like the regular expression.
    alike: RefCell<Vec<String>>,
    /// Answers that have been printed in JSON; none: the output is text.
    as_json: Option<Cell<usize>>,
    /// With `-n`, lines of those that failed, until the list of the others is printed.
    held: RefCell<Vec<String>>,
}

impl Show {
    pub(super) fn new(options: &DcliOptions) -> Result<Show, DcliError> {
        let regex = match &options.regex {
            None => None,
            // From the beginning of a line, as the vendor's.
            Some(text) => match Regex::new(&format!("^(?:{text})")) {
                Ok(regex) => Some((regex, text.clone())),
                Err(error) => return Err(DcliError::Regex { text: text.clone(), reason: error.to_string() }),
            },
        };
        let as_json = options.json.then(Cell::default);
        Ok(Show { abbreviate: options.abbreviate, regex, alike: RefCell::default(), as_json, held: RefCell::default() })
    }

    /// `-t`.
    pub(super) fn targets(&self, targets: &[Target]) -> Result<(), DcliError> {
        if self.as_json.is_some() {
            let names: Vec<&str> = targets.iter().map(|target| &*target.name).collect();
            return print(&format!("{}\n", json!(names)));
        }
        print(&format!("Target cells: {}\n", list(targets.iter().map(|target| &*target.name))))
    }

    /// One line of one cell, at once.
    pub(super) fn line(&self, target: &Target, line: &str) -> Result<(), DcliError> {
        match self.text(target, line) {
            Some(text) => print(&text),
            None => Ok(()),
        }
    }

    /// A line about a key: talk, where the output is JSON.
    pub(super) fn key_line(&self, target: &Target, line: &str) -> Result<(), DcliError> {
        if self.as_json.is_some() {
            let _ = writeln!(std::io::stderr(), "{}: {line}", target.name);
            return Ok(());
        }
        self.line(target, line)
    }

    /// A cell that is asked nothing more, since its key could not be changed: in JSON, which has every cell once.
    pub(super) fn lost(&self, target: &Target, answer: &Answer) -> Result<(), DcliError> {
        if self.as_json.is_some() { self.answer(target, answer) } else { Ok(()) }
    }

    /// The end of the answers in JSON.
    pub(super) fn end_json(&self) -> Result<(), DcliError> {
        match &self.as_json {
            Some(printed) => print(if printed.get() == 0 { "[]\n" } else { "\n]\n" }),
            None => Ok(()),
        }
    }

    /// All lines of one cell.
    pub(super) fn answer(&self, target: &Target, answer: &Answer) -> Result<(), DcliError> {
        if let Some(printed) = &self.as_json {
            let before = if printed.replace(printed.get() + 1) == 0 { "[" } else { "," };
            return print(&format!("{before}\n {}", as_json(target, answer)));
        }
        if self.abbreviate && answer.end == End::Done {
            return Ok(());
        }
        let text: String = answer.lines.iter().filter_map(|line| self.text(target, line)).collect();
        if self.abbreviate {
            self.held.borrow_mut().push(text);
            return Ok(());
        }
        print(&text)
    }

    /// The lines of a cell as talk.
    pub(super) fn talk(&self, target: &Target, answer: &Answer) {
        for line in &answer.lines {
            // There is nowhere to tell that stderr is gone.
            let _ = writeln!(std::io::stderr(), "{}: {line}", target.name);
        }
    }

    fn text(&self, target: &Target, line: &str) -> Option<String> {
        if let Some((regex, _)) = &self.regex
            && regex.is_match(line)
        {
            let mut alike = self.alike.borrow_mut();
            if alike.last() != Some(&target.name) {
                alike.push(target.name.clone());
            }
            return None;
        }
        Some(format!("{}: {line}\n", target.name))
    }

    /// What `-n` and `-r` leave to be said.
    pub(super) fn summary(&self, targets: &[&Target], answers: &[Answer]) -> Result<(), DcliError> {
        if self.as_json.is_some() {
            return self.end_json();
        }
        let mut text = String::new();
        if self.abbreviate {
            let good = targets.iter().zip(answers).filter(|(_, answer)| answer.end == End::Done);
            text.push_str(&format!("OK: {}\n", list(good.map(|(target, _)| &*target.name))));
            self.held.borrow().iter().for_each(|lines| text.push_str(lines));
        }
        if let Some((_, regex)) = &self.regex
            && !self.alike.borrow().is_empty()
        {
            text.push_str(&format!("{regex}: {}\n", list(self.alike.borrow().iter().map(String::as_str))));
        }
        print(&text)
    }

    /// Who failed, on stderr; whether nobody did.
    pub(super) fn ends(&self, targets: &[&Target], answers: &[Answer]) -> bool {
        let text = ends(targets, answers);
        // There is nowhere to tell that stderr is gone.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
        answers.iter().all(|answer| answer.end == End::Done)
    }
}

fn ends(targets: &[&Target], answers: &[Answer]) -> String {
    let mut text = String::new();
    let mut unreached = Vec::new();
    for (target, answer) in targets.iter().zip(answers) {
        let name = &target.name;
        if answer.cut > 0 {
            text.push_str(&format!("{name}: {} lines more are not shown (--maxlines)\n", answer.cut));
        }
        match &answer.end {
            End::Done => {}
            End::Failed(code) => text.push_str(&format!("{name}: failed with exit code {code}\n")),
            End::Killed(signal) => text.push_str(&format!("{name}: the client was ended by signal {signal}\n")),
            End::NotStarted(why) => text.push_str(&format!("{name}: {why}\n")),
            End::Unreached => unreached.push(name.as_str()),
        }
    }
    if !unreached.is_empty() {
        // Also a cell that was lost in the middle, and a command that exits with ssh's own 255.
        text.push_str(&format!("Unable to connect to cells: {}\n", list(unreached.into_iter())));
    }
    text
}

/// One cell as a JSON object: its lines, and how its command ended.
fn as_json(target: &Target, answer: &Answer) -> Value {
    let (end, exit_code, why) = match &answer.end {
        End::Done => ("done", Some(0), None),
        End::Failed(code) => ("failed", Some(*code), None),
        End::Killed(signal) => ("killed", None, Some(format!("the client was ended by signal {signal}"))),
        End::NotStarted(why) => ("notStarted", None, Some(why.clone())),
        End::Unreached => ("unreached", None, None),
    };
    json!({
        "cell": target.name,
        "end": end,
        "exitCode": exit_code,
        "why": why,
        "lines": answer.lines,
        "linesNotKept": answer.cut,
    })
}

/// As Python prints it: scripts of the field cut it so.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    format!("[{}]", quoted.join(", "))
}

pub(super) fn print(text: &str) -> Result<(), DcliError> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(DcliError::Output)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn targets() -> Vec<Target> {
        ["c1", "c2", "c3", "c4"].map(|name| Target { name: name.to_owned() }).to_vec()
    }

    fn answer(end: End) -> Answer {
        Answer { lines: Vec::new(), cut: 0, end }
    }

    #[test]
    fn lines_and_what_is_alike() {
        let options = DcliOptions { regex: Some(".*normal".to_owned()), ..DcliOptions::default() };
        let show = Show::new(&options).unwrap();
        let all = targets();
        assert_eq!(show.text(&all[0], "FL normal"), None);
        assert_eq!(show.text(&all[0], "FC  normal"), None);
        assert_eq!(show.text(&all[1], "FC warning").unwrap(), "c2: FC warning\n");
        assert_eq!(*show.alike.borrow(), ["c1"]);
        let bad = DcliOptions { regex: Some("(".to_owned()), ..DcliOptions::default() };
        assert!(Show::new(&bad).is_err());
    }

    #[test]
    fn each_cell_is_one_object_in_json() {
        let all = targets();
        let told = |end, lines: &[&str]| {
            let lines = lines.iter().map(|line| (*line).to_owned()).collect();
            as_json(&all[0], &Answer { lines, cut: 2, end }).to_string()
        };
        expect_test::expect![[
            r#"{"cell":"c1","end":"failed","exitCode":3,"lines":["a \"b\""],"linesNotKept":2,"why":null}"#
        ]]
        .assert_eq(&told(End::Failed(3), &["a \"b\""]));
        expect_test::expect![[
            r#"{"cell":"c1","end":"notStarted","exitCode":null,"lines":[],"linesNotKept":2,"why":"ssh: no such file"}"#
        ]]
        .assert_eq(&told(End::NotStarted("ssh: no such file".to_owned()), &[]));
        let both = DcliOptions { json: true, ..DcliOptions::default() };
        assert!(Show::new(&both).unwrap().as_json.is_some());
    }

    #[test]
    fn who_failed_is_told() {
        let all = targets();
        let some: Vec<&Target> = all.iter().collect();
        let answers = [
            answer(End::Unreached),
            Answer { cut: 5, ..answer(End::Done) },
            answer(End::Failed(3)),
            answer(End::Unreached),
        ];
        expect_test::expect![[r#"
            c2: 5 lines more are not shown (--maxlines)
            c3: failed with exit code 3
            Unable to connect to cells: ['c1', 'c4']
        "#]]
        .assert_eq(&ends(&some, &answers));
    }
}
