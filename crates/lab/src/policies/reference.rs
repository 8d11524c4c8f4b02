//! Policies from the literature, exact, a block at a time: what the log-structured one is measured against.
//!
//! Blocks are dense numbers, handed out by whoever reads the trace. Reads and writes both allocate; nothing is charged for
//! metadata. Never does I/O, never uses randomness.

mod arc;
mod fifo;
mod lirs;
mod list;
mod s3fifo;
mod tinylfu;

pub use arc::Arc;
pub use fifo::{Clock, Fifo, Lru, Sieve};
pub use lirs::Lirs;
pub use s3fifo::S3Fifo;
pub use tinylfu::WTinyLfu;

/// A block in the order of its first appearance.
pub type BlockId = u32;

/// A cache of a fixed number of blocks.
pub trait BlockCache: Send {
    /// Ask for a block and bring it in if it is not there; whether it was. `left` is told who leaves for it, which may be the block itself.
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool;
}

/// The policies by the names the command line takes.
pub const NAMES: [&str; 8] = ["fifo", "lru", "clock", "arc", "lirs", "s3-fifo", "sieve", "w-tinylfu"];

/// The policy of that name for a cache of `size` blocks out of `distinct`.
///
/// # Panics
/// When `size` is 0.
#[must_use]
pub fn by_name(name: &str, size: u32, distinct: u32) -> Option<Box<dyn BlockCache>> {
    assert!(size > 0, "a cache holds a block");
    Some(match name {
        "fifo" => Box::new(Fifo::new(size, distinct)),
        "lru" => Box::new(Lru::new(size, distinct)),
        "clock" => Box::new(Clock::new(size, distinct)),
        "arc" => Box::new(Arc::new(size, distinct)),
        "lirs" => Box::new(Lirs::new(size, distinct)),
        "s3-fifo" => Box::new(S3Fifo::new(size, distinct)),
        "sieve" => Box::new(Sieve::new(size, distinct)),
        "w-tinylfu" => Box::new(WTinyLfu::new(size, distinct)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
