//! The layers under test, in a small virtual world: one thread, a clock that jumps.

#![expect(clippy::unwrap_used, reason = "tests")]

mod delay;
mod forgetful;
mod plain;
mod world;
