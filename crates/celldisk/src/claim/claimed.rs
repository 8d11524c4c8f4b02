//! A device whose changes go on only as long as its claim holds.

use super::block::decode;
use super::{
    Found, Holder, OVERDUE_AFTER, RENEW_EVERY, Renewal, Sabotage, Stamped, Start, WATCH_EVERY, WATCH_FOR, Watched,
    judge_renewal, judge_start, judge_watched,
};
use crate::error::IoError;
use crate::layout::{CLAIM_OFFSET, PAGE_BYTES};
use crate::media;
use device::layers::WatchedDevice;
use device::sync::{Semaphore, lock};
use device::{
    Clock, Completed, Completion, Device, FailKind, Geometry, Instant, Io, Op, Outcome, Spawn, Verb, WallTime, World,
};
use std::sync::{Arc, Mutex, Weak};

/// Why a device is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Somebody works with it.
    #[error("it is in use by {0}")]
    InUse(Holder),
    /// The stamp cannot be written.
    #[error("the claim on it cannot be written: {0}")]
    Io(#[from] IoError),
    /// The device has lost the stamp that it took: what was there before is there still.
    #[error("the device acknowledged the claim on it, and does not have it")]
    NotThere,
}

/// A device with its claim. Until [`Claimed::take`] every request passes; from then on those that change something do so only
/// while the claim holds, and wait for a look at it where the last one is too long ago.
pub struct Claimed {
    inner: Device,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    state: Mutex<State>,
    /// One look at a time.
    looking: Semaphore,
    sabotage: Option<Sabotage>,
    /// For a request that has to wait while it is served.
    this: Weak<Claimed>,
}

#[derive(Clone, Debug)]
enum State {
    /// Nobody has asked for the claim.
    Open,
    Held {
        stamp: Stamped,
        looked: Looked,
    },
    /// Another holder's stamp was found.
    Lost(Holder),
    /// Given back.
    Released,
}

/// What is left in the block when a claim is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Stamp,
    Nothing,
}

/// When the block was last looked at. Wall time tells of a host that was suspended, where monotonic time stood still; that it
/// may be set decides nothing, it makes the holder look again.
#[derive(Clone, Copy, Debug)]
struct Looked {
    now: Instant,
    wall: WallTime,
}

impl Looked {
    fn at(clock: &dyn Clock) -> Looked {
        Looked { now: clock.now(), wall: clock.wall() }
    }

    fn is_overdue(&self, clock: &dyn Clock) -> bool {
        let limit_ns = OVERDUE_AFTER.as_nanos() as u64;
        clock.now().ns_since(self.now) > limit_ns || clock.wall().0.saturating_sub(self.wall.0) > limit_ns
    }
}

impl Claimed {
    /// `inner`, not claimed yet. A claim is renewed with a flush, which may get the report of what another writer of the device
    /// has lost: so it lies above the watch that all of them pass.
    #[must_use]
    pub fn new(inner: &WatchedDevice, world: &World) -> Arc<Claimed> {
        Claimed::sabotaged(inner, world, None)
    }

    /// The same, broken on purpose: for tests.
    #[must_use]
    pub fn sabotaged(inner: &WatchedDevice, world: &World, sabotage: Option<Sabotage>) -> Arc<Claimed> {
        let (inner, clock, spawn) = (inner.device().clone(), world.clock.clone(), world.spawn.clone());
        let (state, looking) = (Mutex::new(State::Open), Semaphore::new(1));
        Arc::new_cyclic(|this| Claimed { inner, clock, spawn, state, looking, sabotage, this: this.clone() })
    }

    /// Take the claim for `us`, a cell disk's label having been found. Nothing is written to the device before. Where another host
    /// or boot, or a process that lives, has left its stamp it is watched for [`WATCH_FOR`] first: `tell` hears whose, if that can be read.
    ///
    /// # Errors
    /// Somebody uses the device, or the claim cannot be written.
    pub async fn take(
        &self,
        us: Holder,
        is_alive: impl Fn(&Holder) -> bool,
        tell: impl FnOnce(Option<&Holder>),
    ) -> Result<(), ClaimError> {
        let _turn = self.looking.acquire(1).await;
        let before = self.read().await.0;
        if let Start::Watch(holder) = judge_start(&before, &us, &is_alive)
            && self.sabotage != Some(Sabotage::StampIgnored)
        {
            tell(holder.as_ref());
            self.watch(&before, &us, &is_alive).await?;
        }
        let looked = Looked::at(&*self.clock);
        let instance = us.instance;
        let stamp = Stamped { holder: us, counter: 1, released: false };
        self.write(&stamp).await?;
        let found = self.read().await.0;
        if let Renewal::Lost(holder) = judge_renewal(&found, instance) {
            // Two that started at once: the one that wrote last keeps it. Nobody has written where nothing has changed.
            return Err(if found == before { ClaimError::NotThere } else { ClaimError::InUse(holder) });
        }
        *lock(&self.state) = State::Held { stamp, looked };
        Ok(())
    }

    /// Watch the block, which held `before`, for as long as a holder may be silent, or until it need not be watched: a process that was killed
    /// is there until the kernel has taken back what it had.
    async fn watch(&self, before: &Found, us: &Holder, is_alive: &impl Fn(&Holder) -> bool) -> Result<(), ClaimError> {
        let mut before = before.clone();
        let mut until = self.clock.now().after(WATCH_FOR);
        while self.clock.now() < until {
            self.clock.sleep(WATCH_EVERY).await;
            let now = self.read().await.0;
            if before == Found::Unreadable && matches!(now, Found::Stamp(_)) {
                // The first stamp that can be read was not written just now: it is watched from here on.
                (before, until) = (now.clone(), self.clock.now().after(WATCH_FOR));
            }
            match judge_watched(&before, &now) {
                Watched::Still if judge_start(&now, us, is_alive) == Start::Take => return Ok(()),
                Watched::Still => {}
                Watched::Free => return Ok(()),
                Watched::Renewed(holder) => return Err(ClaimError::InUse(holder)),
            }
        }
        Ok(())
    }

    /// Renew the claim for as long as it is held and the device is used; the other holder, when it was lost to one.
    pub async fn renew(this: Weak<Claimed>, clock: Arc<dyn Clock>) -> Option<Holder> {
        loop {
            clock.sleep(RENEW_EVERY).await;
            let claimed = this.upgrade()?;
            claimed.look(false).await;
            match &*lock(&claimed.state) {
                State::Lost(holder) => return Some(holder.clone()),
                State::Open | State::Released => return None,
                State::Held { .. } => {}
            }
        }
    }

    /// Give the claim back: the next start waits for nobody. Nothing is written to the device after that.
    ///
    /// # Errors
    /// The device's.
    pub async fn release(&self) -> Result<(), IoError> {
        self.give_back(Left::Stamp).await
    }

    /// Give the claim back and leave no trace of it: the device is no cell disk any more, and what is found on it would be somebody's data.
    ///
    /// # Errors
    /// The device's.
    pub async fn wipe(&self) -> Result<(), IoError> {
        self.give_back(Left::Nothing).await
    }

    async fn give_back(&self, left: Left) -> Result<(), IoError> {
        let _turn = self.looking.acquire(1).await;
        let held = std::mem::replace(&mut *lock(&self.state), State::Released);
        let State::Held { mut stamp, .. } = held else {
            *lock(&self.state) = held;
            return Ok(());
        };
        match judge_renewal(&self.read().await.0, stamp.holder.instance) {
            Renewal::Lost(_) => Ok(()),
            Renewal::Renew => {
                (stamp.counter, stamp.released) = (stamp.counter.wrapping_add(1), true);
                match left {
                    Left::Stamp => self.write(&stamp).await,
                    Left::Nothing => self.write_page(&[0; PAGE_BYTES as usize]).await,
                }
            }
        }
    }

    /// Look at the block, and write the stamp anew if it is still ours. With `if_overdue` only where nobody has looked meanwhile.
    /// Returned is why changes may not go on.
    async fn look(&self, if_overdue: bool) -> Option<FailKind> {
        let _turn = self.looking.acquire(1).await;
        let mut stamp = match &*lock(&self.state) {
            State::Open => return None,
            State::Lost(_) | State::Released => return Some(FailKind::Gone),
            State::Held { looked, .. } if if_overdue && !looked.is_overdue(&*self.clock) => return None,
            State::Held { stamp, .. } => stamp.clone(),
        };
        let began = Looked::at(&*self.clock);
        let (found, unread) = self.read().await;
        if let Renewal::Lost(holder) = judge_renewal(&found, stamp.holder.instance)
            && self.sabotage != Some(Sabotage::RenewedBlindly)
        {
            *lock(&self.state) = State::Lost(holder);
            return Some(FailKind::Gone);
        }
        stamp.counter = stamp.counter.wrapping_add(1);
        let written = self.write(&stamp).await;
        // A sector that cannot be read or written hides nobody: the device has answered, and whoever else uses it meets the same.
        let answered = |outcome| matches!(outcome, Outcome::Failed(FailKind::Media | FailKind::NoSpace));
        let kind = match (unread, written) {
            (None, _) | (_, Ok(())) => None,
            (Some(error), _) if answered(error.outcome) => None,
            (Some(error), _) => Some(error.outcome.ok().err().unwrap_or(FailKind::Gone)),
        };
        if kind.is_none() {
            *lock(&self.state) = State::Held { stamp, looked: began };
        }
        kind
    }

    /// What the block holds, and why it could not be read.
    async fn read(&self) -> (Found, Option<IoError>) {
        match media::read(&self.inner, CLAIM_OFFSET, PAGE_BYTES as usize).await {
            Ok(bytes) => (decode(&bytes), None),
            Err(error) => (Found::Unreadable, Some(error)),
        }
    }

    /// Written and flushed apart: a sector that cannot be written has lost nothing of other writers, a failed flush may have.
    async fn write(&self, stamp: &Stamped) -> Result<(), IoError> {
        self.write_page(&stamp.encode()).await
    }

    async fn write_page(&self, page: &[u8]) -> Result<(), IoError> {
        media::write(&self.inner, CLAIM_OFFSET, page).await?;
        media::flush(&self.inner).await
    }

    /// Carry `op` out after a look.
    fn after_a_look(&self, op: Op) -> Completion {
        let Some(this) = self.this.upgrade() else { return Completion::failed(FailKind::Gone, op) };
        let (completer, completion) = Completion::pair();
        self.spawn.spawn(Box::pin(async move {
            let completed = match this.look(true).await {
                None => this.inner.submit(op).await,
                Some(kind) => Completed { outcome: Outcome::Failed(kind), bufs: op.into_bufs(), extents: Vec::new() },
            };
            completer.complete(completed);
        }));
        completion
    }
}

impl Io for Claimed {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        // A flush says that what was written is durable: nobody can say that of a device that others write to.
        if matches!(op.verb(), Verb::Read | Verb::Status) {
            return self.inner.submit(op);
        }
        let overdue = match &*lock(&self.state) {
            State::Open => false,
            State::Held { .. } if self.sabotage == Some(Sabotage::OverdueIgnored) => false,
            State::Held { looked, .. } => looked.is_overdue(&*self.clock),
            State::Released if self.sabotage == Some(Sabotage::ReleaseForgotten) => false,
            State::Lost(_) | State::Released => return Completion::failed(FailKind::Gone, op),
        };
        if overdue { self.after_a_look(op) } else { self.inner.submit(op) }
    }
}
