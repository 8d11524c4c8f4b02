//! The floor of the house: five seams (I/O, network, time, randomness, tasks) and what every layer above is built of.
//!
//! Everything from `device` to `nbd` is ordinary `async` code over these seams, handed in by constructors. The real
//! world's implementations live here; the virtual world's live in the `sim` crate. Only this crate may hold
//! `unsafe`, `std::fs`, sockets and `Instant::now`.
//!
//! This crate never knows what a cell, a cache or a client is.

pub mod buf;
pub mod clock;
mod durability;
pub mod fields;
pub mod io;
pub mod layers;
pub mod net;
pub mod prng;
mod probe;
pub mod real;
pub mod spawn;
pub mod sum;
pub mod sync;

pub use buf::{Arena, Buf, Bufs, SharedBuf, SharedBufs, View};
pub use clock::{Clock, Instant, Timer, WallTime};
pub use durability::{Durability, Ground, durability};
pub use fields::Fields;
pub use io::{
    Class, Completed, Completer, Completion, Device, DeviceExtent, FailKind, Geometry, Io, Op, Outcome, Verb,
};
pub use net::{Address, Conn, Credentials, HangUp, Listener, Net, NetError};
pub use prng::Prng;
pub use real::{
    Backend, Direct, HeldSignals, MemoryGuard, OpenError, OpenOptions, Runtime, RuntimeConfig, RuntimeError, Space,
    copies_on_write, create_file, free_bytes, give_back_memory, guard_memory, may_skip_own_io,
};
pub use spawn::{Spawn, Task};
pub use sum::data_sum;

use std::sync::Arc;

/// The seams of one world that are not devices, handed to every constructor that needs them.
#[derive(Clone)]
pub struct World {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Network.
    pub net: Arc<dyn Net>,
    /// Randomness: fork it by name, never share it.
    pub prng: Prng,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}
