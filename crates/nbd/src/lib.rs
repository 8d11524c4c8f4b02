//! NBD: a sans-I/O codec, the front end's sessions on a cell, a client, and an NBD export as a device.
//!
//! Everything runs over the seams of `device`, so it runs in the real and in the virtual world alike. Never holds a
//! socket, a thread or a clock of its own; never knows what lies below a cell.

pub mod client;
pub mod codec;
pub mod context;
pub mod server;
pub mod tls;

pub use client::{Client, ClientError, ClientOptions, RemoteDisk, RemoteExport, RemoteOptions, Uri};
pub use server::{FrontEnd, FrontEndLimits, FrontEndStats, Sabotage};
