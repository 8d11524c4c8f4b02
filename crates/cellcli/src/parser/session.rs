//! The statements about the session: HELP, SET, SPOOL.

use super::{Parsed, Parser, shortened};
use crate::command::{Command, DateFormat, Spool, SpoolMode};
use crate::error::ErrorKind;
use crate::lexer::TokenKind;
use crate::suggest::nearest;
use crate::table::{OBJECTS, ObjectType, VERBS, Verb};

impl Parser<'_> {
    /// `HELP [verb [object type] | object type]`
    pub(super) fn help(&mut self) -> Parsed<Command> {
        let word = match self.peek() {
            None => return Ok(Command::Help { verb: None, object: None }),
            Some(TokenKind::Word(word)) => word.clone(),
            Some(_) => return self.unexpected("a command or an object type"),
        };
        if let Some(object) = ObjectType::from_word(&word) {
            self.at += 1;
            return Ok(Command::Help { verb: None, object: Some(object) });
        }
        let Some(verb) = Verb::from_word(&word) else {
            let known = VERBS.iter().map(|spec| spec.verb.word()).chain(OBJECTS.iter().map(|spec| spec.word));
            return self.fault(ErrorKind::UnknownVerb { found: shortened(&word), nearest: nearest(&word, known) });
        };
        self.at += 1;
        let object =
            if self.peek().is_some() && verb.spec().on_objects { Some(self.object(verb)?.object) } else { None };
        Ok(Command::Help { verb: Some(verb), object })
    }

    /// `SET DATEFORMAT {LOCAL|STANDARD}` or `SET ECHO [ON|OFF]`
    pub(super) fn set(&mut self) -> Parsed<Command> {
        if self.take_word("DATEFORMAT") {
            return if self.take_word("STANDARD") {
                Ok(Command::SetDateFormat(DateFormat::Standard))
            } else if self.take_word("LOCAL") {
                Ok(Command::SetDateFormat(DateFormat::Local))
            } else {
                self.unexpected("LOCAL or STANDARD")
            };
        }
        if self.take_word("ECHO") {
            return if self.take_word("ON") {
                Ok(Command::SetEcho(Some(true)))
            } else if self.take_word("OFF") {
                Ok(Command::SetEcho(Some(false)))
            } else {
                Ok(Command::SetEcho(None))
            };
        }
        self.unexpected("DATEFORMAT or ECHO")
    }

    /// `SPOOL [file [CREATE|REPLACE|APPEND] | OFF]`; a file called `off` is written in quotes.
    pub(super) fn spool(&mut self) -> Parsed<Spool> {
        if self.peek().is_none() {
            return Ok(Spool::Show);
        }
        if self.take_word("OFF") {
            return Ok(Spool::Off);
        }
        let path = self.name()?;
        let modes = [("CREATE", SpoolMode::Create), ("REPLACE", SpoolMode::Replace), ("APPEND", SpoolMode::Append)];
        let given = modes.into_iter().find(|(word, _)| self.is_word(word));
        self.at += usize::from(given.is_some());
        Ok(Spool::To { path, mode: given.map_or(SpoolMode::default(), |(_, mode)| mode) })
    }
}
