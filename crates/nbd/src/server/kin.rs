//! The connections of one client to one grid disk, as far as the order of their changes goes.
//!
//! Connections that are open side by side do not wait for each other. Once one has ended, what its client writes on any other is later: such a change waits
//! until nothing of the ended connection is under way ([`cell::Fence`]). The ends have an order, and a connection waits for those alone that ended before it
//! ended itself, so that none waits in a circle. Never waits for ever: after a limit the change fails, and the next one waits anew. Price: one load a change
//! while no connection of the client has just ended.

use cell::{Fence, RequestError};
use device::Clock;
use device::sync::lock;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// See the module's head.
#[derive(Default)]
pub(super) struct Kin {
    /// The fences of connections that have ended, in that order, until nothing of them is under way. Bounded by the connections.
    ended: Mutex<Vec<Arc<Fence>>>,
    count: AtomicUsize,
}

/// Connections that ended before a change was received.
pub(super) struct Predecessors {
    fences: Vec<Arc<Fence>>,
    clock: Arc<dyn Clock>,
    limit: Duration,
}

impl Kin {
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<Fence>>) -> T) -> T {
        let mut ended = lock(&self.ended);
        let changed = change(&mut ended);
        self.count.store(ended.len(), Ordering::Release);
        changed
    }

    /// A connection ends; the first time counts.
    pub(super) fn leaves(&self, fence: &Arc<Fence>) {
        self.change(|ended| {
            if !ended.iter().any(|other| Arc::ptr_eq(other, fence)) {
                ended.push(fence.clone());
            }
        });
    }

    /// Whether a connection has ended, and is not forgotten.
    pub(super) fn has_left(&self, fence: &Arc<Fence>) -> bool {
        self.count.load(Ordering::Acquire) > 0 && lock(&self.ended).iter().any(|other| Arc::ptr_eq(other, fence))
    }

    /// Nothing of a connection is under way, and nothing will be.
    pub(super) fn forget(&self, fence: &Arc<Fence>) {
        self.change(|ended| ended.retain(|other| !Arc::ptr_eq(other, fence)));
    }

    /// What a change waits for that has just been received on the connection with this fence.
    pub(super) fn predecessors(
        &self,
        own: &Arc<Fence>,
        clock: &Arc<dyn Clock>,
        limit: Duration,
    ) -> Option<Box<Predecessors>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let fences: Vec<_> = self.change(|ended| {
            // What is quiet stays quiet. One of them may still be asked whether it has left, and is over anyway.
            ended.retain(|fence| !fence.is_quiet());
            ended.iter().take_while(|fence| !Arc::ptr_eq(fence, own)).cloned().collect()
        });
        (!fences.is_empty()).then(|| Box::new(Predecessors { fences, clock: clock.clone(), limit }))
    }
}

impl Predecessors {
    /// Wait until nothing of them is under way.
    ///
    /// # Errors
    /// Something still was at the limit.
    pub(super) async fn over(self: Box<Self>) -> Result<(), RequestError> {
        let quiet = async {
            for fence in &self.fences {
                fence.quiet().await;
            }
        };
        match select(pin!(quiet), self.clock.sleep(self.limit)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(RequestError::Predecessor),
        }
    }
}
