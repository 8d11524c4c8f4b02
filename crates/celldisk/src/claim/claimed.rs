//! A device whose changes go on only as long as its claim holds.

use super::block::decode;
use super::race::{End, Page, Race, Step};
use super::{
    Found, Holder, OVERDUE_AFTER, Pages, RENEW_EVERY, Renewal, Sabotage, Stamped, Start, WATCH_EVERY, WATCH_FOR,
    Watched, judge_renewal, judge_start, judge_watched,
};
use crate::error::IoError;
use crate::layout::{CLAIM_OFFSET, CLAIM_RECORD_OFFSET, PAGE_BYTES};
use crate::media;
use device::layers::WatchedDevice;
use device::sync::{Semaphore, lock};
use device::{
    Clock, Completed, Completion, Device, FailKind, Geometry, Instant, Io, Op, Outcome, Spawn, Verb, WallTime, World,
};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How often a start races. Two starts that beat each other watch each other for [`WATCH_FOR`] before they race again.
const RACES_MAX: usize = 3;

/// Two starts that beat each other race again at different times within this.
const APART_MS: u128 = 1000;

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
    Held(Held),
    /// Another holder's stamp was found.
    Lost(Holder),
    /// Given back.
    Released,
}

/// A claim that is held.
#[derive(Clone, Debug)]
struct Held {
    stamp: Stamped,
    /// The instance of the first race. Each further race has the next one.
    first: u128,
    looked: Looked,
}

impl Held {
    fn owns(&self, instance: u128) -> bool {
        instance.wrapping_sub(self.first) <= self.stamp.holder.instance.wrapping_sub(self.first)
    }
}

/// What has come of a race.
enum Raced {
    /// The stamp, and when the record was about to be written.
    Won(Stamped, Looked),
    /// Another process takes part, where the page can be read.
    Beaten(Option<Holder>),
    /// The device has lost what it acknowledged.
    NotThere,
}

/// What has come of a look.
enum Look {
    Held(Held),
    Lost(Holder),
    /// Changes may not go on for now.
    Refused(Held, FailKind),
}

/// What is left in the pages when a claim is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Stamp,
    Nothing,
}

/// When the claim was last looked at. Wall time tells of a host that was suspended, where monotonic time stood still; that it
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
    /// or boot, or a process that lives, has left its stamp it is watched for [`WATCH_FOR`] first: `tell` receives whose, if that can be read.
    /// Starts at the same moment are told apart by a race (see [`super::race`]). A start that another has beaten watches that one.
    ///
    /// # Errors
    /// Somebody uses the device, or the claim cannot be written.
    pub async fn take(
        &self,
        mut us: Holder,
        is_alive: impl Fn(&Holder) -> bool,
        tell: impl FnOnce(Option<&Holder>),
    ) -> Result<(), ClaimError> {
        let _turn = self.looking.acquire(1).await;
        let (first, mut tell, mut beaten_by) = (us.instance, Some(tell), None);
        for _ in 0..RACES_MAX {
            let mut pages = self.pages().await;
            if let Start::Watch(holder) = judge_start(&pages, &us, &is_alive)
                && self.sabotage != Some(Sabotage::StampIgnored)
            {
                if let Some(tell) = tell.take() {
                    tell(holder.as_ref());
                }
                pages = self.watch(pages, &us, &is_alive).await?;
            }
            match self.race(&us, &pages).await? {
                Raced::Won(stamp, looked) => {
                    *lock(&self.state) = State::Held(Held { stamp, first, looked });
                    return Ok(());
                }
                Raced::NotThere => return Err(ClaimError::NotThere),
                Raced::Beaten(by) => beaten_by = by,
            }
            us.instance = us.instance.wrapping_add(1);
            self.clock.sleep(Duration::from_millis((us.instance % APART_MS) as u64)).await;
        }
        Err(beaten_by.map_or(ClaimError::NotThere, ClaimError::InUse))
    }

    /// Watch the pages, which held `before`, for as long as a holder may be silent, or until they need not be watched: a process that was killed
    /// is there until the kernel has taken back what it had. Returns what the pages hold then.
    async fn watch(
        &self,
        mut before: Pages,
        us: &Holder,
        is_alive: &impl Fn(&Holder) -> bool,
    ) -> Result<Pages, ClaimError> {
        let mut until = self.clock.now().after(WATCH_FOR);
        loop {
            self.clock.sleep(WATCH_EVERY).await;
            // The last reading begins when the time is over: the process may be paused within each.
            let is_over = self.clock.now() >= until;
            let now = self.pages().await;
            match judge_watched(&before, &now) {
                Watched::Renewed(holder) => return Err(ClaimError::InUse(holder)),
                _ if judge_start(&now, us, is_alive) == Start::Take => return Ok(now),
                Watched::Still if is_over => return Ok(before),
                Watched::Still => {}
                Watched::Anew => (before, until) = (now, self.clock.now().after(WATCH_FOR)),
            }
        }
    }

    /// Race for the device, whose pages held `pages` when the instance in the record was judged to have ended.
    async fn race(&self, us: &Holder, pages: &Pages) -> Result<Raced, IoError> {
        let race = Race { us: us.instance, over: pages.record.instance() };
        let stamp = Stamped { holder: us.clone(), counter: 1, released: false, over: Some(race.over) };
        let page = stamp.encode();
        let (mut step, mut found, mut began) = (Step::Announce, Found::Nothing, Looked::at(&*self.clock));
        loop {
            found = match step {
                Step::Announce => {
                    media::write(&self.inner, CLAIM_OFFSET, &page).await?;
                    Found::Nothing
                }
                Step::Record => {
                    began = Looked::at(&*self.clock);
                    self.write_page(CLAIM_RECORD_OFFSET, &page).await?;
                    Found::Nothing
                }
                // A record that was unreadable for as long as it was watched is written anew: that repairs a bad sector.
                Step::Check if pages.record == Found::Unreadable => {
                    self.read(CLAIM_RECORD_OFFSET).await.unwrap_or(Found::Unreadable)
                }
                Step::Check | Step::Verify => self.read_again(CLAIM_RECORD_OFFSET).await?,
                Step::Confirm => self.read_again(CLAIM_OFFSET).await?,
                Step::End(End::Won) => return Ok(Raced::Won(stamp, began)),
                // Another process would have changed the page.
                Step::End(End::Beaten(Page::Claim)) if found == pages.claim => return Ok(Raced::NotThere),
                Step::End(End::Beaten(_)) => return Ok(Raced::Beaten(found.holder().cloned())),
                Step::End(End::NotThere) => return Ok(Raced::NotThere),
            };
            step = race.after(step, found.instance(), self.sabotage);
        }
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
                State::Held(_) => {}
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
        let state = std::mem::replace(&mut *lock(&self.state), State::Released);
        let State::Held(mut held) = state else {
            *lock(&self.state) = state;
            return Ok(());
        };
        let claim = self.read(CLAIM_OFFSET).await.unwrap_or(Found::Unreadable);
        if judge_renewal(&claim, |instance| held.owns(instance)) != Renewal::Renew {
            return Ok(());
        }
        match left {
            Left::Stamp => {
                (held.stamp.counter, held.stamp.released) = (held.stamp.counter.wrapping_add(1), true);
                self.write(&held.stamp).await
            }
            Left::Nothing => {
                let zeroes = [0; PAGE_BYTES as usize];
                media::write(&self.inner, CLAIM_OFFSET, &zeroes).await?;
                self.write_page(CLAIM_RECORD_OFFSET, &zeroes).await
            }
        }
    }

    /// Look at the claim, and write the stamp anew if it is still ours. With `if_overdue` only where nobody has looked meanwhile.
    /// Returned is why changes may not go on.
    async fn look(&self, if_overdue: bool) -> Option<FailKind> {
        let _turn = self.looking.acquire(1).await;
        let held = match &*lock(&self.state) {
            State::Open => return None,
            State::Lost(_) | State::Released => return Some(FailKind::Gone),
            State::Held(held) if if_overdue && !held.looked.is_overdue(&*self.clock) => return None,
            State::Held(held) => held.clone(),
        };
        let renewed = if self.must_race(&held) { None } else { self.renewed(held.clone()).await };
        let looked = match renewed {
            Some(looked) => looked,
            None => self.raced(held).await,
        };
        let (state, kind) = match looked {
            Look::Held(held) => (State::Held(held), None),
            Look::Lost(holder) => (State::Lost(holder), Some(FailKind::Gone)),
            Look::Refused(held, kind) => (State::Held(held), Some(kind)),
        };
        *lock(&self.state) = state;
        kind
    }

    /// Whether another process may have watched the claim for long enough.
    fn must_race(&self, held: &Held) -> bool {
        let is_sabotaged = matches!(self.sabotage, Some(Sabotage::LateRenewed | Sabotage::RenewedBlindly));
        held.looked.is_overdue(&*self.clock) && !is_sabotaged
    }

    /// A look by a holder that is not overdue. `None`: it has become so.
    async fn renewed(&self, mut held: Held) -> Option<Look> {
        let began = Looked::at(&*self.clock);
        let (claim, unread) = read_or_why(self.read(CLAIM_OFFSET).await);
        let renewal = match self.sabotage {
            Some(Sabotage::RenewedBlindly) => Renewal::Renew,
            _ => judge_renewal(&claim, |instance| held.owns(instance)),
        };
        match &renewal {
            Renewal::Renew => {}
            Renewal::Lost(holder) => return Some(Look::Lost(holder.clone())),
            Renewal::Replaced(holder) => {
                if let Some(by) = self.replaced(&held, holder).await {
                    return Some(Look::Lost(by));
                }
            }
        }
        // Not needed for safety: a late write would cover the stamp of a successor.
        if self.must_race(&held) {
            return None;
        }
        held.stamp.counter = held.stamp.counter.wrapping_add(1);
        let written = self.write(&held.stamp).await;
        // A race that writes the record after this reading finds this stamp in the claim, and fails.
        if let Renewal::Replaced(holder) = &renewal
            && let Some(by) = self.replaced(&held, holder).await
        {
            return Some(Look::Lost(by));
        }
        let (back, unread_back) = read_or_why(self.read(CLAIM_OFFSET).await);
        if self.must_race(&held) {
            return None;
        }
        let is_there = back == Found::Stamp(held.stamp.clone());
        let errors = [unread, written.err(), unread_back];
        if is_there || errors.iter().flatten().any(hides_nobody) {
            held.looked = began;
            return Some(Look::Held(held));
        }
        Some(match (unread, written) {
            (Some(error), Err(_)) => Look::Refused(held, kind_of(&error)),
            // Lost, or overwritten: the next look tells.
            _ => Look::Held(held),
        })
    }

    /// The process that has replaced `held`, in whose claim `holder` was found.
    async fn replaced(&self, held: &Held, holder: &Holder) -> Option<Holder> {
        match self.read(CLAIM_RECORD_OFFSET).await.unwrap_or(Found::Unreadable) {
            Found::Stamp(record) if held.owns(record.holder.instance) => None,
            Found::Stamp(record) => Some(record.holder),
            Found::Nothing | Found::Unreadable => Some(holder.clone()),
        }
    }

    /// A look by a holder that is overdue: it races to replace itself.
    async fn raced(&self, mut held: Held) -> Look {
        let began = Looked::at(&*self.clock);
        let pages = self.pages().await;
        if let Some(holder) = pages.record.holder().filter(|holder| !held.owns(holder.instance)) {
            return Look::Lost(holder.clone());
        }
        if let Renewal::Lost(holder) = judge_renewal(&pages.claim, |instance| held.owns(instance)) {
            return Look::Lost(holder);
        }
        held.stamp.holder.instance = held.stamp.holder.instance.wrapping_add(1);
        match self.race(&held.stamp.holder, &pages).await {
            Ok(Raced::Won(stamp, looked)) => Look::Held(Held { stamp, looked, ..held }),
            Ok(Raced::Beaten(Some(by))) if !held.owns(by.instance) => Look::Lost(by),
            // The pages hold neither the own stamp nor that of another process.
            Ok(Raced::Beaten(_) | Raced::NotThere) => Look::Refused(held, FailKind::Media),
            Err(error) if hides_nobody(&error) => Look::Held(Held { looked: began, ..held }),
            Err(error) => Look::Refused(held, kind_of(&error)),
        }
    }

    /// Both pages, the record first.
    async fn pages(&self) -> Pages {
        let record = self.read(CLAIM_RECORD_OFFSET).await.unwrap_or(Found::Unreadable);
        let claim = self.read(CLAIM_OFFSET).await.unwrap_or(Found::Unreadable);
        Pages { claim, record }
    }

    async fn read(&self, offset: u64) -> Result<Found, IoError> {
        media::read(&self.inner, offset, PAGE_BYTES as usize).await.map(|bytes| decode(&bytes))
    }

    /// Read once more where that fails: a start without a claim is not protected.
    async fn read_again(&self, offset: u64) -> Result<Found, IoError> {
        match self.read(offset).await {
            Err(_) => self.read(offset).await,
            found => found,
        }
    }

    async fn write(&self, stamp: &Stamped) -> Result<(), IoError> {
        self.write_page(CLAIM_OFFSET, &stamp.encode()).await
    }

    /// Written and flushed apart: a sector that cannot be written has lost nothing of other writers, a failed flush may have.
    async fn write_page(&self, offset: u64, page: &[u8]) -> Result<(), IoError> {
        media::write(&self.inner, offset, page).await?;
        media::flush(&self.inner).await
    }

    fn is_overdue(&self) -> bool {
        matches!(&*lock(&self.state), State::Held(held) if held.looked.is_overdue(&*self.clock))
    }

    /// Carry `op` out after a look. A look that took so long that it is overdue by its end permits nothing.
    fn after_a_look(&self, op: Op) -> Completion {
        let Some(this) = self.this.upgrade() else { return Completion::failed(FailKind::Gone, op) };
        let (completer, completion) = Completion::pair();
        self.spawn.spawn(Box::pin(async move {
            let refused = loop {
                let refused = this.look(true).await;
                if refused.is_some() || !this.is_overdue() {
                    break refused;
                }
            };
            let completed = match refused {
                None => this.inner.submit(op).await,
                Some(kind) => Completed { outcome: Outcome::Failed(kind), bufs: op.into_bufs(), extents: Vec::new() },
            };
            completer.complete(completed);
        }));
        completion
    }
}

/// What a page holds, and why it could not be read.
fn read_or_why(read: Result<Found, IoError>) -> (Found, Option<IoError>) {
    match read {
        Ok(found) => (found, None),
        Err(error) => (Found::Unreadable, Some(error)),
    }
}

/// A sector that cannot be read or written hides nobody: the device has answered, and whoever else uses it meets the same.
fn hides_nobody(error: &IoError) -> bool {
    matches!(error.outcome, Outcome::Failed(FailKind::Media | FailKind::NoSpace))
}

fn kind_of(error: &IoError) -> FailKind {
    error.outcome.ok().err().unwrap_or(FailKind::Gone)
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
            State::Held(_) if self.sabotage == Some(Sabotage::OverdueIgnored) => false,
            State::Held(held) => held.looked.is_overdue(&*self.clock),
            State::Released if self.sabotage == Some(Sabotage::ReleaseForgotten) => false,
            State::Lost(_) | State::Released => return Completion::failed(FailKind::Gone, op),
        };
        if overdue { self.after_a_look(op) } else { self.inner.submit(op) }
    }
}
