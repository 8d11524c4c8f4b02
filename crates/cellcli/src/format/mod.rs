//! Answers to text: columns, DETAIL, DESCRIBE, JSON, XML, and the lines that tell of success.
//!
//! The text forms follow the vendor's layout to the blank, since scripts cut them by column. Never prints: it gives pieces
//! of text, one an object, so that nobody needs to hold a long answer whole. Each line is ended by a line feed; an empty answer is an
//! empty text.

mod json;
mod messages;
mod text;
mod xml;

pub use json::{describe_json, json};
pub use messages::{altered, created, dropped, services_done, services_starting};
pub use text::{describe, text};
pub use xml::xml;
