//! The fence of one client connection: what decides whether a change of the connection may still begin.
//!
//! A change *begins* when it enters the fence. A request does so for each of its pieces, at one place: it holds the piece's range lock
//! exclusively and has read the edges it needs, and the next step writes to flash or to the disk. Whatever a request waits for before that (a
//! request slot, memory, the I/O plan, the range lock, a frozen grid disk) it waits for outside. Once the fence is closed nothing enters; what has entered
//! goes on to its end, and [`Fence::quiet`] tells when. The fence knows no connection: the front end closes it. Price: two atomic operations a piece.

use crate::base::request::RequestError;
use device::sync::Notify;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set in the state once the fence is closed; the other bits count what is inside.
const CLOSED: u64 = 1 << 63;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Fence {
    state: AtomicU64,
    changed: Notify,
}

/// A change inside the fence, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a>(&'a Fence);

impl Fence {
    /// An open fence with nothing inside.
    #[must_use]
    pub fn new() -> Arc<Fence> {
        Arc::default()
    }

    /// Begin a change.
    ///
    /// # Errors
    /// The fence is closed.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, RequestError> {
        let enters = |state: u64| (state & CLOSED == 0).then_some(state + 1);
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, enters) {
            Ok(_) => Ok(Entered(self)),
            Err(_) => Err(RequestError::Fenced),
        }
    }

    /// Let nothing begin from now on.
    pub fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        self.changed.notify_all();
    }

    /// Whether nothing may begin any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether nothing may begin any more and all that had begun has ended.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// Wait until it is [quiet](Fence::is_quiet).
    pub async fn quiet(&self) {
        loop {
            let ticket = self.changed.ticket();
            if self.is_quiet() {
                return;
            }
            self.changed.wait(ticket).await;
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.0.state.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_enters_a_closed_fence_and_it_is_quiet_when_the_last_has_left() {
        let fence = Fence::new();
        let (one, two) = (fence.enter().expect("open"), fence.enter().expect("open"));
        assert!(!fence.is_quiet() && !fence.is_closed());
        fence.close();
        assert_eq!(fence.enter().err(), Some(RequestError::Fenced));
        drop(one);
        assert!(!fence.is_quiet());
        drop(two);
        assert!(fence.is_quiet());
    }
}
