//! Commands back to text: what is printed parses to the same command. Used for echo, audit and forwarding to other cells.
//!
//! Text with control characters cannot be written in the language; the parser never makes such a command, and a server that
//! builds one by hand gets text that is refused, never text that means something else.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::answer::{size_text, suffixed_size_text};
use crate::command::{
    Change, Command, Comparison, DateFormat, Filter, Flag, List, Literal, Operation, Operator, Projection,
    SettingValue, Spool, SpoolMode, Target,
};
use crate::lexer::is_bare_word;
use crate::parser::CLAUSES;
use crate::table::OBJECTS;

impl Display for Command {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(self.verb().word())?;
        match self {
            Self::List(list) => write_list(out, list),
            Self::Describe(object) => write!(out, " {}", object.spec().word),
            Self::Create(change) | Self::Alter(change) | Self::Drop(change) => write_change(out, change),
            Self::Help { verb, object } => {
                if let Some(verb) = verb {
                    write!(out, " {}", verb.word())?;
                }
                if let Some(object) = object {
                    write!(out, " {}", object.spec().word)?;
                }
                Ok(())
            }
            Self::Calibrate { force } => out.write_str(if *force { " FORCE" } else { "" }),
            Self::Exit | Self::Quit => Ok(()),
            Self::SetDateFormat(DateFormat::Standard) => out.write_str(" DATEFORMAT STANDARD"),
            Self::SetDateFormat(DateFormat::Local) => out.write_str(" DATEFORMAT LOCAL"),
            Self::SetEcho(None) => out.write_str(" ECHO"),
            Self::SetEcho(Some(on)) => write!(out, " ECHO {}", if *on { "ON" } else { "OFF" }),
            Self::Spool(spool) => write_spool(out, spool),
            Self::Start(path) => write!(out, " {}", name_text(path)),
            Self::Remark(text) if text.is_empty() => Ok(()),
            Self::Remark(text) => write!(out, " {text}"),
        }
    }
}

fn write_spool(out: &mut Formatter<'_>, spool: &Spool) -> fmt::Result {
    match spool {
        Spool::Show => Ok(()),
        Spool::Off => out.write_str(" OFF"),
        Spool::To { path, mode } => {
            let mode = match mode {
                SpoolMode::Create => "CREATE",
                SpoolMode::Replace => "REPLACE",
                SpoolMode::Append => "APPEND",
            };
            write!(out, " {} {mode}", quoted(path))
        }
    }
}

fn write_list(out: &mut Formatter<'_>, list: &List) -> fmt::Result {
    write!(out, " {}", list.object.spec().word)?;
    write_names(out, &list.names)?;
    if let Some(filter) = &list.filter {
        write!(out, " WHERE {filter}")?;
    }
    match &list.projection {
        Projection::Default => {}
        Projection::All => out.write_str(" ATTRIBUTES ALL")?,
        Projection::Attributes(attributes) => write!(out, " ATTRIBUTES {}", attributes.join(", "))?,
    }
    if list.detail {
        out.write_str(" DETAIL")?;
    }
    for (index, key) in list.order_by.iter().enumerate() {
        let before = if index == 0 { " ORDER BY" } else { "," };
        write!(out, "{before} {}{}", key.attribute, if key.descending { " DESC" } else { "" })?;
    }
    if let Some(limit) = list.limit {
        write!(out, " LIMIT {limit}")?;
    }
    if let Some(over) = &list.over {
        write!(out, " OVER {}", over.minutes)?;
        over.aggregates.iter().try_for_each(|aggregate| write!(out, " {}", aggregate.word()))?;
    }
    if list.memory { out.write_str(" MEMORY") } else { Ok(()) }
}

fn write_change(out: &mut Formatter<'_>, change: &Change) -> fmt::Result {
    write!(out, " {}", change.object.spec().word)?;
    match &change.target {
        Target::Whole => {}
        Target::All(disk_type) => {
            out.write_str(" ALL")?;
            if let Some(disk_type) = disk_type {
                write!(out, " {}", disk_type.word())?;
            }
        }
        Target::Names(names) => write_names(out, names)?,
    }
    for (index, setting) in change.settings.iter().enumerate() {
        write!(out, "{} {}={}", if index == 0 { "" } else { "," }, setting.name, setting.value)?;
    }
    if let Some(filter) = &change.filter {
        write!(out, " WHERE {filter}")?;
    }
    if let Some(operation) = &change.operation {
        write!(out, " {operation}")?;
    }
    for (flag, given) in [(Flag::Force, change.force), (Flag::NoWait, change.no_wait)] {
        if given {
            write!(out, " {}", flag.word())?;
        }
    }
    Ok(())
}

fn write_names(out: &mut Formatter<'_>, names: &[String]) -> fmt::Result {
    for (index, name) in names.iter().enumerate() {
        write!(out, "{} {}", if index == 0 { "" } else { "," }, name_text(name))?;
    }
    Ok(())
}

impl Display for Operation {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => out.write_str("ACTIVE"),
            Self::Inactive => out.write_str("INACTIVE"),
            Self::Flush => out.write_str("FLUSH"),
            Self::CancelFlush => out.write_str("CANCEL FLUSH"),
            Self::Freeze => out.write_str("FREEZE"),
            Self::Thaw => out.write_str("THAW"),
            Self::ValidateMail => out.write_str("VALIDATE MAIL"),
            Self::Services { action, service } => write!(out, "{} SERVICES {}", action.word(), service.word()),
        }
    }
}

impl Display for SettingValue {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => out.write_str(&quoted(text)),
            Self::List(names) => out.write_str(&quoted(&names.join(","))),
            Self::SizeBytes(size_bytes) => out.write_str(&size_text(*size_bytes)),
            Self::Number(number) => write!(out, "{number}"),
            Self::Choice(word) => out.write_str(&word_or_quoted(word)),
            Self::DateTime(timestamp) => out.write_str(&timestamp.exact_text()),
            Self::Directives(directives) if directives.is_empty() => out.write_str("''"),
            Self::Directives(directives) => {
                let pair = |(name, value): &(String, String)| format!("{name}={}", word_or_quoted(value));
                let one =
                    |directive: &Vec<_>| format!("({})", directive.iter().map(pair).collect::<Vec<_>>().join(","));
                write!(out, "({})", directives.iter().map(one).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Display for Filter {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let (conditions, joiner) = match self {
            Self::Compare(comparison) => return comparison.fmt(out),
            Self::And(conditions) => (conditions, " AND "),
            Self::Or(conditions) => (conditions, " OR "),
        };
        for (index, condition) in conditions.iter().enumerate() {
            if index > 0 {
                out.write_str(joiner)?;
            }
            match (self, condition) {
                (_, Self::Compare(_)) | (Self::Or(_), Self::And(_)) => condition.fmt(out)?,
                _ => write!(out, "({condition})")?,
            }
        }
        Ok(())
    }
}

impl Display for Comparison {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(self.attribute)?;
        out.write_char(' ')?;
        let operator = match self.operator {
            Operator::Equal => "=",
            Operator::Less => "<",
            Operator::LessOrEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterOrEqual => ">=",
            Operator::Like => "LIKE",
        };
        match (self.negated, self.operator) {
            (false, _) => {}
            (true, Operator::Equal) => out.write_char('!')?,
            (true, _) => out.write_str("NOT ")?,
        }
        write!(out, "{operator} {}", self.literal)
    }
}

impl Display for Literal {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => out.write_str("NULL"),
            Self::Text(text) => out.write_str(&quoted(text)),
            Self::Number(number) => number.fmt(out),
            Self::Size(size_bytes) => out.write_str(&suffixed_size_text(*size_bytes)),
            Self::DateTime(timestamp) => out.write_str(&timestamp.exact_text()),
        }
    }
}

/// Text in quotes; a quote inside is written twice.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A value of a closed set of words or a plan option: bare when it reads back as the same word.
fn word_or_quoted(text: &str) -> String {
    if is_bare_word(text) { text.to_owned() } else { quoted(text) }
}

/// A name: bare unless it would read as something else.
fn name_text(name: &str) -> String {
    if is_bare_word(name) && !is_reserved(name) { name.to_owned() } else { quoted(name) }
}

/// Words that mean something where a name may stand.
fn is_reserved(word: &str) -> bool {
    let operations = OBJECTS.iter().flat_map(|spec| spec.forms).flat_map(|form| form.operations);
    let mut words = operations
        .flat_map(|operation| operation.words[0].iter().copied())
        .chain(CLAUSES)
        .chain(Flag::ALL.map(Flag::word))
        .chain(["ALL"]);
    words.any(|it| it.eq_ignore_ascii_case(word))
}
