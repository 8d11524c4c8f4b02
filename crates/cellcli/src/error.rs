//! Everything that can be wrong with a statement: stable codes, one closed set of causes, position and hint.
//!
//! The first line of every message is `CELL-NNNNN: text.`; scripts test for the prefix `CELL-0`, so a code once given out
//! keeps its number and its meaning. Never prints: it renders text for whoever does.

use std::fmt;

use crate::table::{ObjectType, Verb};

/// The stable codes. Those below 9000 are the vendor's, those from 9001 on are Flashcell's own. The codes a statement that
/// parses can still fail with are for the server, through [`failure_text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    /// The I/O resource plan states what no plan states, or contradicts itself.
    BadPlan = 23,
    /// The statement does not follow the grammar.
    InvalidSyntax = 1504,
    /// The object type has no such attribute or option.
    UnknownAttribute = 9001,
    /// The attribute exists and ALTER cannot set it.
    NotModifiable = 9002,
    /// The value is not one the attribute or option takes.
    InvalidValue = 9003,
    /// The LIKE pattern is not a regular expression, or too large.
    InvalidPattern = 9004,
    /// An option the statement needs is missing.
    MissingOption = 9005,
    /// The statement exceeds a limit of the language.
    TooLarge = 9006,
    /// No object of that name.
    NoSuchObject = 9007,
    /// An object of that name is there already.
    ObjectExists = 9008,
    /// The state of the object or the cell does not permit it; where FORCE would, the hint says so.
    NotPermittedNow = 9009,
    /// The language has the statement, this cell does not carry it out.
    NotSupported = 9010,
    /// The session is read-only.
    ReadOnlySession = 9011,
    /// There is not enough free space.
    NoSpace = 9012,
    /// A device or the catalog failed while the statement was carried out.
    DeviceFailed = 9013,
    /// The role of the session does not permit it.
    NotAuthorized = 9014,
}

impl ErrorCode {
    /// Every code, ascending.
    pub const ALL: &[Self] = &[
        Self::BadPlan,
        Self::InvalidSyntax,
        Self::UnknownAttribute,
        Self::NotModifiable,
        Self::InvalidValue,
        Self::InvalidPattern,
        Self::MissingOption,
        Self::TooLarge,
        Self::NoSuchObject,
        Self::ObjectExists,
        Self::NotPermittedNow,
        Self::NotSupported,
        Self::ReadOnlySession,
        Self::NoSpace,
        Self::DeviceFailed,
        Self::NotAuthorized,
    ];

    /// What it means, in one line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::BadPlan => "the I/O resource plan contradicts itself, or asks for what is not there",
            Self::InvalidSyntax => "the statement does not follow the grammar",
            Self::UnknownAttribute => "the object type or statement has no such attribute or option",
            Self::NotModifiable => "the attribute exists and ALTER cannot set it",
            Self::InvalidValue => "the value is not one the attribute or option takes",
            Self::InvalidPattern => "the LIKE pattern is not a regular expression, or too large",
            Self::MissingOption => "an option the statement needs is missing",
            Self::TooLarge => "a limit of the language, of an answer or of the cell is exceeded",
            Self::NoSuchObject => "no object of that name",
            Self::ObjectExists => "an object of that name is there already",
            Self::NotPermittedNow => {
                "the state of the object or the cell does not permit it; where FORCE would, the hint says so"
            }
            Self::NotSupported => "the language has the statement, this cell does not carry it out",
            Self::ReadOnlySession => "the session is read-only",
            Self::NoSpace => "there is not enough free space",
            Self::DeviceFailed => "a device or the catalog failed while the statement was carried out",
            Self::NotAuthorized => "the role of the session does not permit it",
        }
    }

    /// The number after `CELL-`.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CELL-{:05}", self.number())
    }
}

/// The text of a failure while a statement is carried out: `CELL-NNNNN: text.`, and a `hint:` line when there is one.
/// A full stop is added when `text` lacks it.
#[must_use]
pub fn failure_text(code: ErrorCode, text: &str, hint: Option<&str>) -> String {
    let stop = if text.ends_with('.') { "" } else { "." };
    let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    format!("{code}: {text}{stop}{hint}")
}

/// Why a statement was refused. The text of each names what was found; [`ErrorKind::hint`] tells what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The first word is no verb.
    #[error("Invalid command syntax: no command begins with {found}")]
    UnknownVerb {
        /// The word.
        found: String,
        /// The verb most like it.
        nearest: Option<&'static str>,
    },
    /// The word after the verb is no object type.
    #[error("Invalid command syntax: {found} is not an object type")]
    UnknownObjectType {
        /// The word.
        found: String,
        /// The object type most like it.
        nearest: Option<&'static str>,
    },
    /// The object type does not take the verb.
    #[error("Invalid command syntax: {} does not take {}", object.spec().word, verb.word())]
    VerbNotTaken {
        /// The verb.
        verb: Verb,
        /// The object type.
        object: ObjectType,
    },
    /// Something else was expected.
    #[error("Invalid command syntax: expected {expected}, found {found}")]
    Unexpected {
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: String,
        /// The keyword most like it.
        nearest: Option<&'static str>,
    },
    /// The object type has no such attribute.
    #[error("{} has no attribute {found}", object.spec().word)]
    UnknownAttribute {
        /// The object type.
        object: ObjectType,
        /// The word.
        found: String,
        /// The attribute most like it.
        nearest: Option<&'static str>,
    },
    /// The statement has no such option.
    #[error("{} {} has no option {found}", verb.word(), object.spec().word)]
    UnknownOption {
        /// The verb.
        verb: Verb,
        /// The object type.
        object: ObjectType,
        /// The word.
        found: String,
        /// The option most like it.
        nearest: Option<&'static str>,
    },
    /// The attribute cannot be set.
    #[error("{attribute} of {} cannot be changed", object.spec().word)]
    NotModifiable {
        /// The object type.
        object: ObjectType,
        /// The attribute.
        attribute: &'static str,
    },
    /// The value is not of the kind.
    #[error("{name} takes {expected}, not {found}")]
    InvalidValue {
        /// The attribute, option or clause.
        name: &'static str,
        /// What it takes.
        expected: String,
        /// The value given.
        found: String,
    },
    /// The pattern does not compile.
    #[error("The LIKE pattern is not usable: {reason}")]
    InvalidPattern {
        /// What the expression engine says.
        reason: String,
    },
    /// A required option is missing.
    #[error("{} {} needs {option}={kind}", verb.word(), object.spec().word)]
    MissingOption {
        /// The verb.
        verb: Verb,
        /// The object type.
        object: ObjectType,
        /// The option.
        option: &'static str,
        /// The kind of its value, in one word.
        kind: &'static str,
    },
    /// An option only goes with another one.
    #[error("{option} needs {other} here")]
    OptionNeeds {
        /// The option given.
        option: &'static str,
        /// The option missing.
        other: &'static str,
    },
    /// An option or clause stands twice.
    #[error("Invalid command syntax: {what} is given twice")]
    Repeated {
        /// The option or clause.
        what: &'static str,
    },
    /// An ALTER that would change nothing.
    #[error("Invalid command syntax: {} {} does not say what to change", verb.word(), object.spec().word)]
    NothingToChange {
        /// The verb.
        verb: Verb,
        /// The object type.
        object: ObjectType,
    },
    /// An option and an operation exclude each other.
    #[error("Invalid command syntax: {option} cannot be set together with {operation}")]
    Conflict {
        /// The option.
        option: &'static str,
        /// The operation.
        operation: String,
    },
    /// The statement does not take the flag.
    #[error("Invalid command syntax: {flag} has no meaning here")]
    FlagNotTaken {
        /// The word.
        flag: &'static str,
    },
    /// A quote is not closed on its line.
    #[error("Invalid command syntax: the quote is not closed on this line")]
    UnterminatedQuote,
    /// A control character where text was expected.
    #[error("Invalid command syntax: control characters are not allowed")]
    ControlCharacter,
    /// A hyphen that neither continues a line nor belongs to a word.
    #[error("Invalid command syntax: a hyphen must be part of a word or end the line")]
    StrayHyphen,
    /// A limit of the language is exceeded.
    #[error("The statement is too large: {what} is limited to {max}")]
    TooLarge {
        /// What is limited.
        what: &'static str,
        /// The limit.
        max: usize,
    },
}

impl ErrorKind {
    /// The stable code of the cause.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownAttribute { .. } | Self::UnknownOption { .. } => ErrorCode::UnknownAttribute,
            Self::NotModifiable { .. } => ErrorCode::NotModifiable,
            Self::InvalidValue { .. } => ErrorCode::InvalidValue,
            Self::InvalidPattern { .. } => ErrorCode::InvalidPattern,
            Self::MissingOption { .. } | Self::OptionNeeds { .. } => ErrorCode::MissingOption,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::UnknownVerb { .. }
            | Self::UnknownObjectType { .. }
            | Self::VerbNotTaken { .. }
            | Self::Unexpected { .. }
            | Self::Repeated { .. }
            | Self::NothingToChange { .. }
            | Self::Conflict { .. }
            | Self::FlagNotTaken { .. }
            | Self::UnterminatedQuote
            | Self::ControlCharacter
            | Self::StrayHyphen => ErrorCode::InvalidSyntax,
        }
    }

    /// What to do about it, in one line.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let did_you_mean = |nearest: &Option<&str>, otherwise: String| match nearest {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => otherwise,
        };
        let help =
            |verb: Verb, object: ObjectType| format!("HELP {} {} shows the syntax", verb.word(), object.spec().word);
        Some(match self {
            Self::UnknownVerb { nearest, .. } => did_you_mean(nearest, "HELP lists the commands".into()),
            Self::UnknownObjectType { nearest, .. } => did_you_mean(nearest, "HELP lists the object types".into()),
            Self::UnknownAttribute { object, nearest, .. } => {
                did_you_mean(nearest, format!("DESCRIBE {} lists the attributes", object.spec().word))
            }
            Self::UnknownOption { verb, object, nearest, .. } => did_you_mean(nearest, help(*verb, *object)),
            Self::NotModifiable { object, .. } => {
                format!("DESCRIBE {} marks what can be changed", object.spec().word)
            }
            Self::VerbNotTaken { object, .. } => {
                format!("HELP {} shows what it takes", object.spec().word)
            }
            Self::MissingOption { verb, object, .. } | Self::NothingToChange { verb, object } => help(*verb, *object),
            Self::InvalidPattern { .. } => {
                "LIKE takes a regular expression over the whole value, as in 'FC_IO.*'".into()
            }
            Self::UnterminatedQuote => "a quote inside quotes is written twice".into(),
            Self::StrayHyphen => "put quotes around a name or path with such a hyphen".into(),
            Self::Unexpected { nearest, .. } => format!("did you mean {}?", (*nearest)?),
            Self::OptionNeeds { .. }
            | Self::InvalidValue { .. }
            | Self::Repeated { .. }
            | Self::Conflict { .. }
            | Self::FlagNotTaken { .. }
            | Self::ControlCharacter
            | Self::TooLarge { .. } => return None,
        })
    }
}

/// Where in the text something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Bytes from the start of the text.
    pub offset_bytes: usize,
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
}

/// Works out positions in ascending order in one pass over the text, however many there are.
#[derive(Debug)]
pub(crate) struct PositionCursor<'text> {
    text: &'text str,
    position: Position,
}

impl<'text> PositionCursor<'text> {
    pub(crate) const fn new(text: &'text str) -> Self {
        Self { text, position: Position { offset_bytes: 0, line: 1, column: 1 } }
    }

    /// The position of the byte `offset_bytes`, which is not before the last one asked for; the end of the text when it
    /// lies beyond.
    pub(crate) fn advance(&mut self, offset_bytes: usize) -> Position {
        let rest = self.text.get(self.position.offset_bytes..).unwrap_or("");
        for next in rest.chars() {
            if self.position.offset_bytes >= offset_bytes {
                break;
            }
            self.position.offset_bytes += next.len_utf8();
            self.position.column += 1;
            if next == '\n' {
                self.position.line += 1;
                self.position.column = 1;
            }
        }
        self.position
    }
}

/// A statement that was refused. `Display` gives the first line, `CELL-NNNNN: text.`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementError {
    /// Why.
    pub kind: ErrorKind,
    /// Where.
    pub position: Position,
}

impl fmt::Display for StatementError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}.", self.kind.code(), self.kind)
    }
}

impl std::error::Error for StatementError {}

/// Characters of a source line shown around the place of an error; longer lines are cut to this much before it.
const SHOWN_BEFORE_MAX: usize = 60;

impl StatementError {
    /// The message with the line of `text` it is about, a mark under the place, and the hint; an
    /// empty line is not shown. `text` is what was parsed.
    #[must_use]
    pub fn render(&self, text: &str) -> String {
        let line = text.lines().nth(self.position.line - 1).unwrap_or("");
        let skipped = (self.position.column - 1).saturating_sub(SHOWN_BEFORE_MAX);
        let shown: String = line.chars().skip(skipped).take(2 * SHOWN_BEFORE_MAX).map(printable).collect();
        let mark = " ".repeat(self.position.column - 1 - skipped);
        let mut message = self.to_string();
        if !line.trim().is_empty() {
            message.push_str(&format!("\n  {shown}\n  {mark}^"));
        }
        if let Some(hint) = self.kind.hint() {
            message.push_str("\nhint: ");
            message.push_str(&hint);
        }
        message
    }
}

/// One column for every character, so that the mark stays under its place.
fn printable(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}
