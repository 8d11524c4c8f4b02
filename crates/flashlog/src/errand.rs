//! What a request brings to a redo disk besides what it does, and takes away besides its outcome.
//!
//! Never changes what is durable where.

use crate::counters::Skip;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What a request brings along.
#[derive(Clone, Debug, Default)]
pub struct Errand {
    /// It waits for the disk alone, for this reason. What may be in a ring already goes there all the same: replay must not undo
    /// what is newer.
    pub past: Option<Skip>,
    /// Told who has answered it, if it is a redo write.
    pub verdict: Option<Arc<Verdict>>,
}

/// Who has answered a redo write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The disk.
    Disk,
    /// The flash log.
    Flash,
    /// Neither: it has failed.
    Nobody,
}

/// Who has answered a redo write, once it is.
#[derive(Debug, Default)]
pub struct Verdict(AtomicU8);

impl Verdict {
    /// `by_ring`: flash; none: neither.
    pub(crate) fn tell(&self, by_ring: Option<bool>) {
        let code = match by_ring {
            Some(false) => 1,
            Some(true) => 2,
            None => 3,
        };
        self.0.store(code, Ordering::Release);
    }

    /// None: it is not answered, or was no redo write, since there was nothing to make durable.
    #[must_use]
    pub fn get(&self) -> Option<Answered> {
        match self.0.load(Ordering::Acquire) {
            1 => Some(Answered::Disk),
            2 => Some(Answered::Flash),
            3 => Some(Answered::Nobody),
            _ => None,
        }
    }
}
