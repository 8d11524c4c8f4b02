//! Answers: rows of attribute values from the server, and what LIST makes of them.
//!
//! The server gives every object of the type as a [`Row`], from a [`Source`] that may make it when it is looked at; [`select`] filters,
//! sorts, limits and projects. An answer holds the source and the places of its rows, never their text. Never asks a cell for anything.

mod decimal;
mod matching;
mod select;
mod size;
mod timestamp;
mod unit;
mod value;

pub use decimal::{DECIMAL_INTEGER_DIGITS_MAX, DECIMAL_SCALE_MAX, Decimal};
pub use matching::{LIKE_PATTERN_BYTES_MAX, Matcher};
pub use select::{Answer, SelectError, Source, select};
pub use size::{parse_size, size_text};
pub use timestamp::Timestamp;
pub use unit::{Measure, Precision, Unit};
pub use value::{Row, Value};

pub(crate) use matching::compile_pattern;
pub(crate) use size::suffixed_size_text;
