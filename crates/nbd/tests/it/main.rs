//! The crate from outside: codec, front end, client and remote disk, in a world of their own.

#![expect(clippy::unwrap_used, reason = "tests")]

mod codec;
mod session;
mod world;
