//! One client session: its settings, and what it does with each statement.

use super::ConsoleError;
use super::flush::{self, Waited};
use crate::admin::{DateStyle, Form, Outcome, Request, Response};
use crate::http::{AskError, Client};
use cellcli::command::{Change, Command, DateFormat, Operation, Spool, SpoolMode};
use cellcli::{ErrorCode, ObjectType, failure_text, format, help, parse_script};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Files that START one another; deeper is a file that starts itself.
const START_DEPTH_MAX: usize = 16;

/// A session.
pub(crate) struct Session {
    client: Client,
    monitor: bool,
    form: Form,
    dates: DateStyle,
    echo: bool,
    spool: Option<(PathBuf, File)>,
    good: bool,
    /// Somebody types at a prompt.
    prompts: bool,
    /// Each statement is told, with how long its answer took.
    tells_times: bool,
}

impl Session {
    pub(crate) fn new(client: Client, monitor: bool, form: Form) -> Session {
        let dates = DateStyle::default();
        Session {
            client,
            monitor,
            form,
            dates,
            echo: false,
            spool: None,
            good: true,
            prompts: false,
            tells_times: false,
        }
    }

    /// Somebody types at a prompt: ^C leads back to it.
    pub(super) fn prompts(&mut self) {
        self.prompts = true;
    }

    /// Each statement is told on stderr from now on, with how long its answer took.
    pub(super) fn tells_times(&mut self, tells: bool) {
        self.tells_times = tells;
    }

    /// Whether every statement so far was carried out.
    pub(super) fn is_good(&self) -> bool {
        self.good
    }

    /// Carry out the statements of a text; true when one of them leaves the session.
    pub(super) fn run(&mut self, text: &str) -> Result<bool, ConsoleError> {
        self.run_at(text, 0)
    }

    /// As [`Session::run`], for a script on stdin: SET ECHO shows its statements.
    pub(super) fn run_in_script(&mut self, text: &str) -> Result<bool, ConsoleError> {
        self.run_at(text, 1)
    }

    /// `depth` 0 is typed, more is a script.
    fn run_at(&mut self, text: &str, depth: usize) -> Result<bool, ConsoleError> {
        for statement in parse_script(text) {
            if self.echo && depth > 0 {
                self.print(&format!("> {}\n", statement.text))?;
            }
            let command = match statement.command {
                Ok(command) => command,
                Err(error) => {
                    self.complain(&error.render(text));
                    continue;
                }
            };
            if self.monitor && !command.is_read_only() {
                let what = format!("{} is not allowed in a monitor session", command.verb().word());
                self.complain(&failure_text(ErrorCode::ReadOnlySession, &what, Some("leave out -m")));
                continue;
            }
            match command {
                Command::Exit | Command::Quit => return Ok(true),
                Command::Remark(_) => {}
                Command::Help { verb, object } => self.print(&help(verb, object))?,
                Command::Describe(object) => self.print(&match self.form {
                    Form::Json => format::describe_json(object),
                    Form::Text | Form::Xml => format::describe(object),
                })?,
                Command::SetDateFormat(DateFormat::Standard) => self.dates = DateStyle::Standard,
                Command::SetDateFormat(DateFormat::Local) => self.dates = DateStyle::Local,
                Command::SetEcho(Some(on)) => self.echo = on,
                Command::SetEcho(None) => {
                    let line = format!("echo {}\n", if self.echo { "ON" } else { "OFF" });
                    self.print(&line)?;
                }
                Command::Spool(spool) => self.spool(spool)?,
                Command::Start(path) => {
                    if self.start(&path, depth)? {
                        return Ok(true);
                    }
                }
                Command::Alter(change)
                    if change.operation == Some(Operation::Flush)
                        && !change.no_wait
                        && std::io::stderr().is_terminal() =>
                {
                    if self.flush(statement.text, &change)? {
                        return Ok(true);
                    }
                }
                Command::List(_)
                | Command::Create(_)
                | Command::Alter(_)
                | Command::Drop(_)
                | Command::Calibrate { .. } => {
                    self.ask_and_print(statement.text)?;
                }
            }
        }
        Ok(false)
    }

    fn ask_and_print(&mut self, text: &str) -> Result<(), ConsoleError> {
        let began = Instant::now();
        let answer = self.ask(text);
        if self.tells_times {
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            // There is nowhere to tell that stderr is gone.
            let _ = writeln!(std::io::stderr(), "{} ms: {line}", began.elapsed().as_millis());
        }
        self.print_answer(answer)
    }

    /// A FLUSH, with its progress shown. True: ^C has ended the waiting, and with it the session.
    fn flush(&mut self, text: &str, change: &Change) -> Result<bool, ConsoleError> {
        let statement = text.to_owned();
        match flush::wait(self, change, move |session| session.ask(&statement)) {
            Waited::Answered(answer) => self.print_answer(answer).map(|()| false),
            Waited::Left => {
                self.good = false;
                Ok(!self.prompts)
            }
        }
    }

    fn print_answer(&mut self, answer: Result<Vec<Outcome>, AskError>) -> Result<(), ConsoleError> {
        match answer {
            Err(error) => self.complain(&error.to_string()),
            Ok(results) => {
                for Outcome { output, error } in results {
                    self.print(&output)?;
                    if let Some(error) = error {
                        self.complain(&error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Have the cell carry out statements.
    pub(crate) fn ask(&self, text: &str) -> Result<Vec<Outcome>, AskError> {
        let request = Request { text: text.to_owned(), monitor: self.monitor, form: self.form, dates: self.dates };
        let response: Response = self.client.ask("/v1/cellcli", &request)?;
        Ok(response.results)
    }

    /// A read-only session with the same cell, for [`Session::names`].
    pub(super) fn asker(&self) -> Session {
        Session::new(self.client.clone(), true, Form::Text)
    }

    /// The same, answered in JSON.
    pub(super) fn watcher(&self) -> Session {
        Session::new(self.client.clone(), true, Form::Json)
    }

    /// One that asks as this one does.
    pub(super) fn twin(&self) -> Session {
        Session { dates: self.dates, ..Session::new(self.client.clone(), self.monitor, self.form) }
    }

    /// The names of all objects of a type, for completion; none when the cell does not answer.
    pub(super) fn names(&self, object: ObjectType) -> Vec<String> {
        let statement = format!("LIST {} ATTRIBUTES name", object.spec().word);
        let outcomes = self.ask(&statement).unwrap_or_default();
        outcomes.iter().flat_map(|outcome| outcome.output.lines()).map(|line| line.trim().to_owned()).collect()
    }

    fn start(&mut self, path: &str, depth: usize) -> Result<bool, ConsoleError> {
        if depth >= START_DEPTH_MAX {
            let what = format!("{START_DEPTH_MAX} files start one another; {path} is not run");
            self.complain(&failure_text(ErrorCode::TooLarge, &what, Some("does a file start itself?")));
            return Ok(false);
        }
        match std::fs::read_to_string(path) {
            Ok(text) => self.run_at(&text, depth + 1),
            Err(error) => {
                self.complain(&failure_text(ErrorCode::NoSuchObject, &format!("cannot read {path}: {error}"), None));
                Ok(false)
            }
        }
    }

    fn spool(&mut self, spool: Spool) -> Result<(), ConsoleError> {
        match spool {
            Spool::Show => {
                let line = match &self.spool {
                    Some((path, _)) => format!("currently spooling to {}\n", path.display()),
                    None => "not spooling currently\n".to_owned(),
                };
                self.print(&line)
            }
            Spool::Off => {
                self.spool = None;
                Ok(())
            }
            Spool::To { path, mode } => {
                let mut options = File::options();
                match mode {
                    SpoolMode::Create => options.write(true).create_new(true),
                    SpoolMode::Replace => options.write(true).create(true).truncate(true),
                    SpoolMode::Append => options.append(true).create(true),
                };
                match options.open(&path) {
                    Ok(file) => self.spool = Some((Path::new(&path).to_owned(), file)),
                    Err(error) => {
                        let what = format!("cannot write {path}: {error}");
                        self.complain(&failure_text(ErrorCode::NotPermittedNow, &what, None));
                    }
                }
                Ok(())
            }
        }
    }

    /// To stdout, and to the spool file.
    pub(super) fn print(&mut self, text: &str) -> Result<(), ConsoleError> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(ConsoleError::Output)?;
        drop(stdout);
        self.copy(text);
        Ok(())
    }

    /// To stderr, and to the spool file; the session is not good any more.
    fn complain(&mut self, text: &str) {
        self.good = false;
        // There is nowhere to tell that stderr is gone.
        let _ = writeln!(std::io::stderr().lock(), "{text}");
        self.copy(&format!("{text}\n"));
    }

    fn copy(&mut self, text: &str) {
        let Some((path, file)) = &mut self.spool else { return };
        if let Err(error) = file.write_all(text.as_bytes()) {
            let line = format!("cannot write {}: {error}; SPOOL is off", path.display());
            self.spool = None;
            self.complain(&line);
        }
    }
}
