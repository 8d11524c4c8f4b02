//! What is printed: `cell: line`, the vendor's summaries, and on stderr who failed and how.

use super::hosts::Target;
use super::pool::{Answer, End};
use super::{DcliError, DcliOptions};
use regex_lite::Regex;
use std::cell::RefCell;
use std::io::Write;

/// The forms of output of one call.
pub(super) struct Show {
    abbreviate: bool,
    regex: Option<(Regex, String)>,
    /// Who had lines like the regular expression.
    alike: RefCell<Vec<String>>,
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
        Ok(Show { abbreviate: options.abbreviate, regex, alike: RefCell::default(), held: RefCell::default() })
    }

    /// `-t`.
    pub(super) fn targets(&self, targets: &[Target]) -> Result<(), DcliError> {
        print(&format!("Target cells: {}\n", list(targets.iter().map(|target| &*target.name))))
    }

    /// One line of one cell, at once.
    pub(super) fn line(&self, target: &Target, line: &str) -> Result<(), DcliError> {
        match self.text(target, line) {
            Some(text) => print(&text),
            None => Ok(()),
        }
    }

    /// All lines of one cell.
    pub(super) fn answer(&self, target: &Target, answer: &Answer) -> Result<(), DcliError> {
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
