//! Whether the disk of a grid disk stays as it is for a while, and what waits for the end of that.
//!
//! Never begins a freeze: [`crate::admin::freeze`] does.

use crate::base::range_lock::{LockMode, RangeGuard};
use crate::base::request::RequestError;
use crate::disk::error::AdminError;
use crate::disk::grid_disk::GridDisk;
use crate::disk::seat::Leave;
use device::sync::{Flag, Permits, lock};
use device::{Instant, World};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Freeze state of a grid disk.
#[derive(Debug, Default)]
pub(crate) struct Freeze {
    pub(crate) frozen: Mutex<Option<Frozen>>,
    /// Changes that clients want wait.
    pub(crate) writes_wait: Flag,
    /// How often somebody has asked for a thaw: a freeze that is under way then comes to nothing.
    pub(crate) thaws: AtomicU64,
}

/// The disk stays as it is.
#[derive(Debug)]
pub(crate) struct Frozen {
    number: u64,
    until: Instant,
    /// Held for the sake of its end.
    _kept: Kept,
}

/// The guard that keeps a frozen disk unchanged.
#[derive(Debug)]
pub(crate) enum Kept {
    /// No batch is made.
    Batches { _turn: Permits },
    /// No client writes.
    Writes { _held: HeldWrites },
}

/// Clients' changes of a grid disk wait as long as this lives.
#[derive(Debug)]
pub(crate) struct HeldWrites(Weak<GridDisk>);

impl HeldWrites {
    pub(crate) fn of(disk: &Arc<GridDisk>) -> HeldWrites {
        disk.freeze.writes_wait.set(true);
        HeldWrites(Arc::downgrade(disk))
    }
}

impl Drop for HeldWrites {
    fn drop(&mut self) {
        if let Some(disk) = self.0.upgrade() {
            disk.freeze.writes_wait.set(false);
        }
    }
}

impl GridDisk {
    /// Until when its disk stays as it is, if it does.
    #[must_use]
    pub fn frozen_until(&self) -> Option<Instant> {
        lock(&self.freeze.frozen).as_ref().map(|frozen| frozen.until)
    }

    /// Its disk may change again; whether it was frozen. With a number, only that freeze ends.
    pub(crate) fn thaw(&self, number: Option<u64>) -> bool {
        let ended = lock(&self.freeze.frozen).take_if(|frozen| number.is_none_or(|number| number == frozen.number));
        let was = ended.is_some();
        drop(ended);
        if number.is_none() {
            self.freeze.thaws.fetch_add(1, Ordering::SeqCst);
            self.freeze.writes_wait.set(false);
        }
        self.ordered.wake();
        was
    }

    /// Keep its disk as it is until then.
    pub(crate) fn keep_frozen(self: &Arc<Self>, kept: Kept, world: &World, until: Instant) {
        let number = self.ordered.note_frozen(|number| {
            *lock(&self.freeze.frozen) = Some(Frozen { number, until, _kept: kept });
        });
        let (weak, clock) = (Arc::downgrade(self), world.clock.clone());
        world.spawn.spawn(Box::pin(async move {
            clock.sleep(Duration::from_nanos(until.ns_since(clock.now()))).await;
            if let Some(disk) = weak.upgrade() {
                disk.thaw(Some(number));
            }
        }));
    }

    /// Wait until clients may change it.
    pub(crate) async fn await_writes(&self) {
        self.freeze.writes_wait.until(false).await;
    }

    /// Hold a range for a client's change, or a piece of one, see [`GridDisk::claim_bytes`]. Who has it while writes begin to wait is waited for
    /// by the freeze; who asks later finds that they wait.
    pub(crate) async fn claim_change(
        &self,
        leave: &mut Leave<'_>,
        offset: u64,
        len: u64,
    ) -> Result<RangeGuard, RequestError> {
        loop {
            let guard = self.claim_bytes(offset, len, LockMode::Exclusive).await?;
            if !self.freeze.writes_wait.is_set() {
                return Ok(guard);
            }
            drop(guard);
            leave.without(self.await_writes()).await;
        }
    }

    pub(crate) fn cannot_freeze(&self, why: &'static str) -> AdminError {
        AdminError::CannotFreeze(self.name(), why)
    }
}
