//! The crate from outside: codec, front end, client and remote disk, in a world of their own.

#![expect(clippy::unwrap_used, reason = "tests")]

mod client;
mod client_losses;
mod codec;
mod corpus;
mod doors;
mod dying;
mod fair;
mod fenced;
mod leaving;
mod raw;
mod remote;
mod session;
mod tls;
mod transcripts;
mod world;
