//! The language from outside: parsing, printing, messages, completion. One program, so that it is linked once.

mod completion;
mod format;
mod help;
mod messages;
mod reference;
mod roundtrip;
mod statements;
mod table;
