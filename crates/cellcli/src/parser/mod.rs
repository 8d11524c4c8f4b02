//! Recursive descent over the tokens of one statement, guided by the table.
//!
//! Text in, [`Command`] out. Never panics on any text, never looks at a cell, never executes: a statement that parses may
//! still be refused by the server.

mod change;
mod list;
mod session;
mod value;

pub use list::WHERE_COMPARISONS_MAX;
pub(crate) use list::{CLAUSES, clauses_of};

use crate::command::Command;
use crate::error::{ErrorKind, Position, PositionCursor, StatementError};
use crate::lexer::{Fault, Lexer, Raw, Span, TEXT_BYTES_MAX, Token, TokenKind};
use crate::suggest::nearest;
use crate::table::{OBJECTS, ObjectSpec, ObjectType, VERBS, Verb};

/// Nesting of parentheses in WHERE and in plan directives; each level is one stack frame.
pub const NESTING_MAX: usize = 32;

/// Statements taken from one text: a hundred times the longest scripts seen, and a bound on what a text of nothing but short
/// statements costs in memory.
pub const STATEMENTS_MAX: usize = 10_000;

/// One statement of a text, understood or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement<'text> {
    /// The statement as written, without its end mark; for a refused quote or character, what was read of it.
    pub text: &'text str,
    /// Where it begins, or for a refused one where the fault is.
    pub position: Position,
    /// What it means.
    pub command: Result<Command, StatementError>,
}

/// Parses all statements of `text`, at most [`TEXT_BYTES_MAX`] bytes. A refused statement does not stop the ones after it from
/// being parsed: whether they run is for the caller to decide. After [`STATEMENTS_MAX`] statements comes one that is refused as
/// too large, and no more. Blank text gives no statement.
#[must_use]
pub fn parse_script(text: &str) -> Vec<Statement<'_>> {
    statements(text).collect()
}

/// The statements of `text` as [`parse_script`] gives them. Each is parsed when it is asked for, so that a long text costs the memory of one statement.
#[must_use]
pub const fn statements(text: &str) -> Statements<'_> {
    Statements { text, lexer: Lexer::new(text), cursor: PositionCursor::new(text), parsed: 0 }
}

/// See [`statements`].
#[derive(Debug)]
pub struct Statements<'text> {
    text: &'text str,
    lexer: Lexer<'text>,
    cursor: PositionCursor<'text>,
    parsed: usize,
}

impl<'text> Iterator for Statements<'text> {
    type Item = Statement<'text>;

    fn next(&mut self) -> Option<Statement<'text>> {
        if self.parsed > STATEMENTS_MAX {
            return None;
        }
        if self.text.len() > TEXT_BYTES_MAX {
            self.parsed = STATEMENTS_MAX + 1;
            let kind = ErrorKind::TooLarge { what: "the length in bytes", max: TEXT_BYTES_MAX };
            return Some(self.refused("", Fault { kind, at: 0 }));
        }
        let raw = self.lexer.next_statement()?;
        let is_over = self.parsed == STATEMENTS_MAX;
        self.parsed += 1;
        Some(match raw {
            Ok((_, span)) if is_over => {
                let kind = ErrorKind::TooLarge { what: "the number of statements", max: STATEMENTS_MAX };
                self.refused("", Fault { kind, at: span.start })
            }
            Ok((raw, span)) => {
                let position = self.cursor.advance(span.start);
                let text = self.text.get(span.start..span.end).unwrap_or("");
                match parse_raw(raw, span) {
                    Ok(command) => Statement { text, position, command: Ok(command) },
                    Err(fault) => self.refused(text, fault),
                }
            }
            Err(fault) => self.refused("", fault),
        })
    }
}

impl<'text> Statements<'text> {
    fn refused(&mut self, text: &'text str, fault: Fault) -> Statement<'text> {
        let position = self.cursor.advance(fault.at);
        Statement { text, position, command: Err(StatementError { kind: fault.kind, position }) }
    }
}

/// Parses `text` as exactly one statement.
///
/// # Errors
/// The first statement's error; or, when there is none or more than one, a syntax error.
pub fn parse_one(text: &str) -> Result<Command, StatementError> {
    let mut statements = statements(text);
    let first = statements.next();
    let unexpected = |found: &str, expected: &str, position| StatementError {
        kind: ErrorKind::Unexpected { found: found.into(), expected: expected.into(), nearest: None },
        position,
    };
    match (first, statements.next()) {
        (Some(only), None) => only.command,
        (Some(first), Some(second)) => {
            first.command?;
            Err(unexpected("another statement", "the end of the text", second.position))
        }
        (None, _) => Err(unexpected("nothing", "a statement", Position { offset_bytes: 0, line: 1, column: 1 })),
    }
}

fn parse_raw(raw: Raw, span: Span) -> Result<Command, Fault> {
    match raw {
        Raw::Remark(text) => Ok(Command::Remark(text)),
        Raw::Tokens(tokens) => {
            let mut parser = Parser { tokens: &tokens, at: 0, end: span.end, comparisons: 0 };
            let command = parser.command()?;
            parser.expect_end()?;
            Ok(command)
        }
    }
}

struct Parser<'tokens> {
    tokens: &'tokens [Token],
    at: usize,
    /// Offset behind the last token.
    end: usize,
    /// Comparisons read so far of the current WHERE.
    comparisons: usize,
}

type Parsed<T> = Result<T, Fault>;

impl Parser<'_> {
    fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn peek_second(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at + 1).map(|token| &token.kind)
    }

    /// Offset of the current token, or of the end.
    fn here(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |token| token.span.start)
    }

    fn fault<T>(&self, kind: ErrorKind) -> Parsed<T> {
        Err(Fault { kind, at: self.here() })
    }

    /// What stands here, for messages.
    fn found(&self) -> String {
        match self.peek() {
            None => "the end of the statement".into(),
            Some(TokenKind::Word(word)) => shortened(word),
            Some(TokenKind::Quoted(text)) if text.is_empty() => "an empty text".into(),
            Some(TokenKind::Quoted(text)) => format!("'{}'", shortened(text)),
            Some(TokenKind::Symbol(symbol)) => format!("'{symbol}'"),
        }
    }

    fn unexpected<T>(&self, expected: impl Into<String>) -> Parsed<T> {
        self.unexpected_among(expected, [])
    }

    /// As [`Self::unexpected`], with the nearest of the keywords that may stand here as a hint.
    fn unexpected_among<T>(
        &self,
        expected: impl Into<String>,
        keywords: impl IntoIterator<Item = &'static str>,
    ) -> Parsed<T> {
        let nearest = match self.peek() {
            Some(TokenKind::Word(word)) => nearest(word, keywords.into_iter()),
            _ => None,
        };
        self.fault(ErrorKind::Unexpected { found: self.found(), expected: expected.into(), nearest })
    }

    fn expect_end(&self) -> Parsed<()> {
        if self.peek().is_none() { Ok(()) } else { self.unexpected("the end of the statement") }
    }

    fn is_word(&self, wanted: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Word(word)) if word.eq_ignore_ascii_case(wanted))
    }

    fn is_symbol(&self, wanted: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Symbol(symbol)) if *symbol == wanted)
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        let taken = self.is_word(wanted);
        self.at += usize::from(taken);
        taken
    }

    fn take_symbol(&mut self, wanted: &str) -> bool {
        let taken = self.is_symbol(wanted);
        self.at += usize::from(taken);
        taken
    }

    fn expect_word(&mut self, wanted: &str) -> Parsed<()> {
        if self.take_word(wanted) { Ok(()) } else { self.unexpected(wanted) }
    }

    fn expect_symbol(&mut self, wanted: &str) -> Parsed<()> {
        if self.take_symbol(wanted) { Ok(()) } else { self.unexpected(format!("'{wanted}'")) }
    }

    /// A bare or quoted word.
    fn text(&mut self, expected: &str) -> Parsed<String> {
        let text = match self.peek() {
            Some(TokenKind::Word(text) | TokenKind::Quoted(text)) => text.clone(),
            _ => return self.unexpected(expected),
        };
        self.at += 1;
        Ok(text)
    }

    /// A name: a bare or quoted word that is not empty.
    fn name(&mut self) -> Parsed<String> {
        if matches!(self.peek(), Some(TokenKind::Quoted(text)) if text.is_empty()) {
            return self.unexpected("a name");
        }
        self.text("a name")
    }

    /// `name [, name]...`
    fn names(&mut self) -> Parsed<Vec<String>> {
        let mut names = vec![self.name()?];
        while self.take_symbol(",") {
            names.push(self.name()?);
        }
        Ok(names)
    }

    fn command(&mut self) -> Parsed<Command> {
        let word = match self.peek() {
            Some(TokenKind::Word(word)) => word.clone(),
            _ => return self.unexpected("a command"),
        };
        // `@file` needs no blank between the verb and its file.
        if let Some(path) = word.strip_prefix('@').filter(|path| !path.is_empty()) {
            self.at += 1;
            return Ok(Command::Start(path.to_owned()));
        }
        let Some(verb) = Verb::from_word(&word) else {
            let nearest = nearest(&word, VERBS.iter().map(|spec| spec.verb.word()));
            return self.fault(ErrorKind::UnknownVerb { found: shortened(&word), nearest });
        };
        self.at += 1;
        match verb {
            Verb::List => self.list().map(Command::List),
            Verb::Describe => Ok(Command::Describe(self.object(verb)?.object)),
            Verb::Create => self.change(verb).map(Command::Create),
            Verb::Alter => self.change(verb).map(Command::Alter),
            Verb::Drop => self.change(verb).map(Command::Drop),
            Verb::Calibrate => Ok(Command::Calibrate { force: self.take_word("FORCE") }),
            Verb::Help => self.help(),
            Verb::Exit => Ok(Command::Exit),
            Verb::Quit => Ok(Command::Quit),
            Verb::Set => self.set(),
            Verb::Spool => self.spool().map(Command::Spool),
            Verb::Start => Ok(Command::Start(self.name()?)),
            // The lexer takes comments; one can only get here as `REM` is not the whole first word.
            Verb::Remark => self.unexpected("a comment on a line of its own"),
        }
    }

    /// The object type after `verb`, which must take it.
    fn object(&mut self, verb: Verb) -> Parsed<&'static ObjectSpec> {
        let word = match self.peek() {
            Some(TokenKind::Word(word)) => word.clone(),
            _ => return self.unexpected("an object type"),
        };
        let Some(object) = ObjectType::from_word(&word) else {
            let candidates = OBJECTS.iter().filter(|spec| spec.takes(verb)).map(|spec| spec.word);
            let nearest = nearest(&word, candidates);
            return self.fault(ErrorKind::UnknownObjectType { found: shortened(&word), nearest });
        };
        let spec = object.spec();
        if !spec.takes(verb) {
            return self.fault(ErrorKind::VerbNotTaken { verb, object });
        }
        self.at += 1;
        Ok(spec)
    }

    /// The attribute here, which `object` must have.
    fn attribute(&mut self, object: &ObjectSpec) -> Parsed<&'static crate::table::Attribute> {
        let word = match self.peek() {
            Some(TokenKind::Word(word)) => word.clone(),
            _ => return self.unexpected("an attribute"),
        };
        let Some(attribute) = object.attribute(&word) else {
            let nearest = nearest(&word, object.attributes.iter().map(|attribute| attribute.name));
            return self.fault(ErrorKind::UnknownAttribute { object: object.object, found: shortened(&word), nearest });
        };
        self.at += 1;
        Ok(attribute)
    }
}

/// Characters of a word shown in a message.
const SHOWN_CHARS_MAX: usize = 64;

fn shortened(text: &str) -> String {
    if text.chars().count() <= SHOWN_CHARS_MAX {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    short.push_str("...");
    short
}
