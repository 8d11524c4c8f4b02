//! Losses of acknowledged writes, and which of them clients have been told of.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often acknowledged writes of a grid disk may have been lost, and of how many of these losses some client has been told.
///
/// Every session that is open at a loss fails until its client connects again. A loss that no session was told of fails the first FLUSH of a later one: a
/// client may have been away meanwhile. Linux keeps the errors of a file's write-back in the same way (`errseq_t`: who opens a file after an
/// error that nobody has seen hears of it). What a client has sent before its connection ended is told nothing.
#[derive(Debug, Default)]
pub(crate) struct BrokenPromises {
    count: AtomicU64,
    told: AtomicU64,
}

impl BrokenPromises {
    /// There was one more.
    pub(crate) fn again(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// A client is told of the first `count`. Returns whether one of these is news to all clients.
    pub(crate) fn tell(&self, count: u64) -> bool {
        self.told.fetch_max(count, Ordering::SeqCst) < count
    }
}
