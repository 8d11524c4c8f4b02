//! CellCLI: verbs x objects x attributes in one table -> parser, help, completion, formatter.
//!
//! Text in, [`Command`] out; rows in, text out:
//!
//! ```text
//!   text --parse_script--> Statement { Command } --(server carries it out)--> Source of rows --select--> Answer --format--> pieces of text
//! ```
//!
//! Everything the language knows stands in [`table`]; a new object type, attribute or statement form is a row there.
//!
//! This crate never touches a cell, never does I/O, never reads a clock, and depends on no other crate of the workspace.

pub mod answer;
pub mod command;
pub mod error;
pub mod format;
pub mod table;

mod complete;
mod help;
mod lexer;
mod parser;
mod print;
mod reference;
mod suggest;

pub use answer::{Answer, Decimal, Measure, Row, Source, Timestamp, Unit, Value, select};
pub use command::Command;
pub use complete::complete;
pub use error::{ErrorCode, StatementError, failure_text};
pub use help::help;
pub use lexer::{STATEMENT_TOKENS_MAX, TEXT_BYTES_MAX, needs_continuation};
pub use parser::{
    NESTING_MAX, STATEMENTS_MAX, Statement, Statements, WHERE_COMPARISONS_MAX, parse_one, parse_script, statements,
};
pub use reference::reference;
pub use table::{ObjectType, Verb};
