//! Running the steps of every target: one after the other, or so many at a time.
//!
//! A target's steps run in order and end with the first that fails. Never prints.

use super::DcliError;
use super::hosts::Target;
use super::remote::Step;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// `--maxlines` at most.
pub(super) const LINES_MAX: usize = 10_000_000;
/// Text kept of one target while others are waited for: the default lines at 160 bytes each.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// A longer line is several lines.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Last bytes of a hidden stderr, shown when ssh itself fails.
const STDERR_TAIL_BYTES: usize = 4 << 10;
/// What ssh and scp exit with when the connection, not the command, failed.
const SSH_FAILED: i32 = 255;

/// Bounds and manners of a run.
pub(super) struct Limits {
    /// Lines kept of one target.
    pub(super) lines_max: usize,
    /// The remote stderr is not shown.
    pub(super) hide_stderr: bool,
    /// Command lines are told on stderr.
    pub(super) verbose: bool,
}

/// How a target ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Every step succeeded.
    Done,
    /// A step failed with this code.
    Failed(i32),
    /// A step was ended by this signal.
    Killed(i32),
    /// Not reached, or lost in the middle.
    Unreached,
    /// The program could not be started here.
    NotStarted(String),
}

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its lines, as kept.
    pub(super) lines: Vec<String>,
    /// Lines beyond what is kept.
    pub(super) cut: usize,
    /// How it ended.
    pub(super) end: End,
}

/// Run everything one target after the other; each line is told at once and none is kept.
pub(super) fn serial(
    targets: &[&Target],
    steps: &dyn Fn(&Target) -> Vec<Step>,
    limits: &Limits,
    told: &mut dyn FnMut(&Target, &str) -> Result<(), DcliError>,
) -> Result<Vec<Answer>, DcliError> {
    let mut answers = Vec::new();
    for &target in targets {
        let mut failed = None;
        let end = run_steps(&steps(target), limits, &mut |line| {
            if failed.is_none() {
                failed = told(target, line).err();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        answers.push(Answer { lines: Vec::new(), cut: 0, end });
    }
    Ok(answers)
}

/// Run at most `batch` targets at a time; each answer is told in the order of the targets, as soon as all before it are.
pub(super) fn parallel(
    targets: &[&Target],
    steps: &(dyn Fn(&Target) -> Vec<Step> + Sync),
    batch: usize,
    limits: &Limits,
    told: &mut dyn FnMut(&Target, &Answer) -> Result<(), DcliError>,
) -> Result<Vec<Answer>, DcliError> {
    let next = AtomicUsize::new(0);
    let (give, take) = mpsc::channel::<(usize, Answer)>();
    std::thread::scope(|scope| {
        for _ in 0..batch.min(targets.len()) {
            let (give, next) = (give.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(target) = targets.get(index) else { return };
                    let answer = kept(&steps(target), limits);
                    // Refused when nobody reads any more: stdout is gone.
                    if give.send((index, answer)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(give);
        let mut answers: Vec<Option<Answer>> = vec![None; targets.len()];
        let mut shown = 0;
        for (index, answer) in take {
            answers[index] = Some(answer);
            while let Some(answer) = answers.get_mut(shown).and_then(Option::as_mut) {
                told(targets[shown], answer)?;
                // Shown: its lines need not be kept while others are waited for.
                answer.lines.clear();
                shown += 1;
            }
        }
        Ok(answers.into_iter().flatten().collect())
    })
}

fn kept(steps: &[Step], limits: &Limits) -> Answer {
    let (mut lines, mut cut, mut bytes) = (Vec::new(), 0, 0);
    let end = run_steps(steps, limits, &mut |line| {
        bytes += line.len();
        if lines.len() < limits.lines_max && bytes <= KEPT_BYTES_MAX {
            lines.push(line.to_owned());
        } else {
            cut += 1;
        }
    });
    Answer { lines, cut, end }
}

/// Run the steps of one target; every line of theirs is told.
pub(super) fn run_steps(steps: &[Step], limits: &Limits, told: &mut dyn FnMut(&str)) -> End {
    for step in steps {
        if limits.verbose {
            let words = std::iter::once(step.program).chain(step.args.iter().map(String::as_str));
            let line = shlex::try_join(words).unwrap_or_else(|_| step.program.to_owned());
            // Talk; nobody is left to tell when stderr is gone.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        match run_step(step, limits, told) {
            Ok(End::Done) => {}
            Ok(end) => return end,
            Err(error) => return End::NotStarted(format!("{}: {error}", step.program)),
        }
    }
    End::Done
}

fn run_step(step: &Step, limits: &Limits, told: &mut dyn FnMut(&str)) -> std::io::Result<End> {
    let (reader, writer) = std::io::pipe()?;
    let mut command = Command::new(step.program);
    let stdin = if step.input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.args(&step.args).stdin(stdin).stdout(writer.try_clone()?);
    if let Some(password) = &step.password {
        command.env("SSH_ASKPASS", password.program()).env("SSH_ASKPASS_REQUIRE", "force");
    }
    if limits.hide_stderr {
        command.stderr(Stdio::piped());
    } else {
        // One pipe for both, so that lines keep their order.
        command.stderr(writer.try_clone()?);
    }
    let mut child = command.spawn()?;
    // The command holds the writing end, too: with it open the end would never be seen.
    drop((command, writer));
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), step.input.clone()) {
        // Beside the reading of what it says. It may end without reading: then its end tells why.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
    }
    let tail = child.stderr.take().map(|stderr| std::thread::spawn(move || tail(stderr)));
    each_line(reader, told)?;
    let status = child.wait()?;
    let tail = tail.and_then(|thread| thread.join().ok()).unwrap_or_default();
    Ok(match (status.code(), status.signal()) {
        (Some(0), _) => End::Done,
        (Some(SSH_FAILED), _) => {
            tail.lines().for_each(told);
            End::Unreached
        }
        (Some(code), _) => End::Failed(code),
        (None, signal) => End::Killed(signal.unwrap_or(0)),
    })
}

fn each_line(reader: impl Read, told: &mut dyn FnMut(&str)) -> std::io::Result<()> {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // A row's own leading blanks are trimmed, as by the vendor's tool.
        told(String::from_utf8_lossy(&line).trim());
    }
}

fn tail(mut stderr: impl Read) -> String {
    let mut last = VecDeque::new();
    let mut chunk = [0; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk) {
        last.extend(&chunk[..n]);
        let over = last.len().saturating_sub(STDERR_TAIL_BYTES);
        last.drain(..over);
    }
    String::from_utf8_lossy(last.make_contiguous()).into_owned()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { lines_max: 1000, hide_stderr: false, verbose: false }
    }

    fn sh(text: &str) -> Step {
        Step { program: "sh", args: vec!["-c".to_owned(), text.to_owned()], password: None, input: None }
    }

    #[test]
    fn ends_and_lines() {
        for (text, end, lines) in [
            ("echo a; echo '  b' >&2; printf c", End::Done, vec!["a", "b", "c"]),
            ("echo a; exit 3", End::Failed(3), vec!["a"]),
            ("exit 255", End::Unreached, vec![]),
            ("kill -9 $$", End::Killed(9), vec![]),
        ] {
            assert_eq!(
                kept(&[sh(text)], &limits()),
                Answer { lines: lines.into_iter().map(str::to_owned).collect(), cut: 0, end }
            );
        }
        let none = Step { program: "/nonexistent/ssh", ..sh("") };
        assert!(matches!(kept(&[none], &limits()).end, End::NotStarted(_)));
        // A step that fails is the last.
        assert_eq!(kept(&[sh("exit 1"), sh("echo never")], &limits()).lines, Vec::<String>::new());
    }

    #[test]
    fn stderr_is_hidden_but_for_the_end_of_ssh() {
        let hidden = Limits { hide_stderr: true, ..limits() };
        assert_eq!(kept(&[sh("echo a; echo b >&2")], &hidden).lines, ["a"]);
        assert_eq!(kept(&[sh("echo a; echo 'ssh: no' >&2; exit 255")], &hidden).lines, ["a", "ssh: no"]);
    }

    #[test]
    fn output_is_bounded() {
        let few = Limits { lines_max: 3, ..limits() };
        let answer = kept(&[sh("seq 10")], &few);
        assert_eq!((answer.lines.len(), answer.cut, answer.end), (3, 7, End::Done));
    }

    #[test]
    fn answers_come_in_order_whoever_is_first() {
        let targets: Vec<Target> = (0..8).map(|i| Target { name: format!("c{i}") }).collect();
        let all: Vec<&Target> = targets.iter().collect();
        let steps = |target: &Target| {
            // The later, the quicker; the fourth fails.
            let i: u32 = target.name[1..].parse().unwrap();
            vec![sh(&format!("sleep 0.{}; echo {i}; exit {}", 8 - i, u32::from(i == 3)))]
        };
        for batch in [1, 3, 8] {
            let mut seen = Vec::new();
            let answers = parallel(&all, &steps, batch, &limits(), &mut |target, answer| {
                seen.push(format!("{}={}", target.name, answer.lines.join(",")));
                Ok(())
            })
            .unwrap();
            let wanted: Vec<String> = (0..8).map(|i| format!("c{i}={i}")).collect();
            assert_eq!(seen, wanted);
            let failed: Vec<usize> = (0..8).filter(|i| answers[*i].end != End::Done).collect();
            assert_eq!(failed, [3]);
        }
    }
}
