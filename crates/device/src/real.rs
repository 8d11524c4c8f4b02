//! The real world: executor threads with one io_uring each (or a poller and blocking threads where io_uring is
//! forbidden), files and block devices, sockets, the clock.
//!
//! Tries a transfer again only when the kernel was short of something for it (`again`), never spins, never frees memory the
//! kernel may still write.

mod again;
mod backend;
mod driver;
mod exclusive;
mod executor;
mod files;
mod fuse;
mod genl;
mod inbox;
mod loop_device;
mod memory;
mod nbd_device;
mod net;
mod open;
mod poller;
mod request;
mod running;
mod runtime;
mod signals;
mod sys;
mod timers;
mod ublk;
mod uring;
mod words;
mod worker;

pub use backend::Backend;
pub use fuse::{FuseChannel, FuseError, FuseMount, FuseRoot, pass_on, passed_on};
pub use loop_device::{LoopDevice, is_held, unmount};
pub use memory::{MemoryGuard, give_back_memory, guard_memory, may_skip_own_io};
pub use nbd_device::{NbdDevice, NbdSetup, hang_up, stream_pair};
pub use open::{Direct, OpenError, OpenOptions, Space, copies_on_write, create_file, free_bytes};
pub use runtime::{InFlightDevice, Runtime, RuntimeConfig, RuntimeError, ShutdownError, THREADS_MAX};
pub use signals::HeldSignals;
pub(crate) use sys::file_system;
pub use ublk::{UblkDevice, UblkEnd, UblkFeatures, UblkOp, UblkQueue, UblkRequest, UblkSetup};
pub use words::{SHARED_WORDS, SharedWords};

#[cfg(test)]
mod tests;
