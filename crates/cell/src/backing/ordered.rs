//! Write-back in flush order (I10): the disk of a grid disk changes by batches only, each of which brings it from one moment of
//! the grid disk to a later one, whole or not at all. So without any flash the disk is old, and never torn.
//!
//! Writes are taken on flash as in write-back. A *cut* names what is dirty at a moment at which no write is under way; a batch
//! writes that to a journal on the same disk, then in place, then calls it clean. What is in a batch is held on flash by pins:
//! who overwrites it meanwhile waits for nobody. While anything is dirty nothing reaches the disk by another way; where flash
//! cannot take a write, the grid disk becomes *whole* first (nothing dirty), and then writes go to the disk.
//!
//! Order of waiting for a write: memory, then room in the next batch, then the barrier, then the range. A cut takes the barrier
//! alone, and nothing else.

mod batch;
pub(crate) mod format;
pub(crate) mod held;
pub(crate) mod journal;
mod zeroed;

pub(crate) use batch::run_ordered;
pub(crate) use format::Owner;
pub(crate) use held::{Settled, cut_at_one_moment, hold_all};
pub(crate) use journal::Journal;

use crate::backing::write_back::OneAtATime;
use crate::base::range_lock::{LockMode, RangeGuard, RangeLock};
use crate::base::request::{CachingMode, Context, RequestError};
use crate::base::units::PART_BYTES;
use crate::disk::grid_disk::{Binding, GridDisk};
use crate::disk::seat::Leave;
use batch::Cut;
use celldisk::CachingMode as CatalogMode;
use device::sync::{Notify, lock};
use device::{Instant, SharedBufs};
use flashcache::DirtyRefused;
use std::sync::{Arc, Mutex};

/// Least journal: enough that a batch sorts well, little beside any real grid disk.
pub(crate) const JOURNAL_BYTES_MIN: u64 = 16 << 20;
/// Largest journal: a disk needs minutes of random writes for so much, and tables and pins of a batch take some megabytes.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 256 << 20;
/// Unless the configuration states it, one part in so many of the grid disk.
const JOURNAL_SHARE: u64 = 64;

/// Bytes of the journal of a grid disk of that size, unless stated otherwise.
#[must_use]
pub(crate) fn journal_bytes(size_bytes: u64) -> u64 {
    (size_bytes / JOURNAL_SHARE).clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX)
}

/// Room for a batch of a few blocks beside a journal's headers, whatever the configuration says.
const LEAST_BATCH_BYTES: u64 = 64 << 10;

/// Bytes that a journal takes on a disk with pages of that size; `stated`: what the configuration says.
#[must_use]
pub fn journal_space_bytes(stated: Option<u64>, size_bytes: u64, page_bytes: u32) -> u64 {
    let least_bytes = 2 * u64::from(page_bytes) + LEAST_BATCH_BYTES;
    stated.unwrap_or_else(|| journal_bytes(size_bytes)).max(least_bytes).min(JOURNAL_BYTES_MAX)
}

/// Where writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Door {
    /// To the disk: nothing is dirty.
    #[default]
    Disk,
    /// To flash.
    Flash,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStage {
    /// It is being written to the journal and does not count yet.
    Journal,
    /// It counts, and is being put in place.
    InPlace,
}

/// What an ordered grid disk remembers. All counts are parts.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    shared: Mutex<Shared>,
    /// Writes that wait for room or for the door.
    changed: Notify,
    /// The task that makes batches has something to do.
    wake: Notify,
    /// Held shared by each write, alone by a cut.
    barrier: Arc<RangeLock>,
    /// Held by whoever makes a batch, opens the door, or keeps the disk as it is.
    turn: OneAtATime,
    /// What clients have zeroed.
    pub(crate) zeroed: zeroed::Zeroed,
}

#[derive(Debug, Default)]
struct Shared {
    journal: Option<Arc<Journal>>,
    door: Door,
    /// Promised to writes that are on their way.
    reserved: u64,
    /// Taken since the last cut, each write counted.
    since_cut: u64,
    /// Of the last cut, until the disk has it.
    in_batch: u64,
    /// When the first of either was acknowledged, at the latest.
    oldest: Option<Instant>,
    oldest_in_batch: Option<Instant>,
    /// A cut is wanted since then: the next FLUSH makes it.
    wanted: Option<Instant>,
    cut: Option<Cut>,
    /// Cuts so far: one that another has overtaken is void.
    cuts: u64,
    /// A batch is being written to the journal.
    journaling: bool,
    /// A write has no room, or no place on flash: the disk has to get what is dirty, at once.
    pressed: bool,
    /// Writes that wait for the end of a batch.
    waiting: usize,
    /// Flash did not take a write: the disk has to become whole.
    whole_wanted: bool,
    /// Attempts that failed: who has waited for one hears of it.
    failures: u64,
    /// Flash is not asked before.
    closed_until: Option<Instant>,
    /// For so long.
    closed_for: std::time::Duration,
    /// Freezes so far.
    frozen_count: u64,
}

/// A write that waits for the end of a batch, until it is dropped.
struct Waiting<'a>(&'a Ordered);

impl Waiting<'_> {
    fn new(ordered: &Ordered) -> Waiting<'_> {
        lock(&ordered.shared).waiting += 1;
        Waiting(ordered)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.0.shared).waiting -= 1;
    }
}

/// Room in the next batch, promised to a write.
#[derive(Debug)]
struct Room<'a> {
    ordered: &'a Ordered,
    parts: u64,
}

impl Room<'_> {
    /// The write has been taken.
    fn take(mut self, now: Instant) {
        {
            let mut shared = lock(&self.ordered.shared);
            shared.reserved -= self.parts;
            shared.since_cut += self.parts;
            shared.oldest.get_or_insert(now);
            if shared.pressed {
                self.ordered.wake.notify_all();
            }
        }
        self.parts = 0;
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.parts > 0 {
            lock(&self.ordered.shared).reserved -= self.parts;
            self.ordered.changed.notify_all();
        }
    }
}

/// Held by a write of an ordered grid disk from before it takes its range until it has ended.
#[derive(Debug)]
pub(crate) struct Passed<'a> {
    room: Option<Room<'a>>,
    /// Bytes, from the first on, that flash has taken although it refused the rest: others may have written there since, so
    /// they are not written again.
    pub(crate) done_bytes: u64,
    _barrier: RangeGuard,
}

/// What became of a write of an ordered grid disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// Flash has it.
    Taken,
    /// The disk may be written to.
    ToDisk,
    /// Neither now: let go of everything and try again.
    NotNow,
}

/// A grid disk in this mode with what it takes.
pub(crate) struct OrderedParts {
    pub(crate) binding: Arc<Binding>,
    pub(crate) journal: Arc<Journal>,
}

impl Ordered {
    /// The journal of the grid disk from now on; `dirty_parts`: what flash has and the disk has not, or more. The next cut
    /// has all of it, so it takes room like what is written from now on.
    pub(crate) fn set_journal(&self, journal: Option<Arc<Journal>>, dirty_parts: u64, now: Instant) {
        self.zeroed.forget();
        let mut shared = lock(&self.shared);
        shared.journal = journal;
        if dirty_parts > 0 && shared.door == Door::Disk {
            shared.door = Door::Flash;
            shared.since_cut = dirty_parts;
            shared.oldest.get_or_insert(now);
        }
    }

    /// Its disk is frozen: `set` notes that, with the number of this freeze, in one step with the end of the cut that is not in a batch yet. What
    /// that holds on flash would be held all the time.
    pub(crate) fn note_frozen(&self, set: impl FnOnce(u64)) -> u64 {
        let mut shared = lock(&self.shared);
        (shared.cut, shared.wanted) = (None, None);
        shared.frozen_count += 1;
        set(shared.frozen_count);
        shared.frozen_count
    }

    /// Let the task that makes batches look again.
    pub(crate) fn wake(&self) {
        self.wake.notify_all();
    }

    pub(crate) fn journal(&self) -> Option<Arc<Journal>> {
        lock(&self.shared).journal.clone()
    }

    /// An attempt to give the disk what is dirty has failed.
    fn failed(&self) {
        lock(&self.shared).failures += 1;
        self.changed.notify_all();
    }
}

impl GridDisk {
    /// What an ordered grid disk takes; none when it is not ordered, or not cached.
    pub(crate) fn ordered_parts(&self) -> Option<OrderedParts> {
        let binding = self.cache().filter(|b| b.mode == CachingMode::WriteBackOrdered)?;
        Some(OrderedParts { binding, journal: self.ordered.journal()? })
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered_parts().is_some()
    }

    /// A write of so many bytes may begin; none where it is not ordered. Waits for room, for a cut that is being made, and
    /// until the disk is whole where flash does not take what is written. The caller holds memory at most.
    ///
    /// # Errors
    /// There is no room, and none can be made: the disk or the flash refuses.
    pub(crate) async fn pass(&self, leave: &mut Leave<'_>, len: u64) -> Result<Option<Passed<'_>>, RequestError> {
        // Boxed: writes of other modes do not carry it.
        if self.is_ordered() { Box::pin(self.pass_ordered(leave, len)).await } else { Ok(None) }
    }

    async fn pass_ordered(&self, leave: &mut Leave<'_>, len: u64) -> Result<Option<Passed<'_>>, RequestError> {
        let parts = len.div_ceil(PART_BYTES);
        let mut failures = None;
        loop {
            let Some(OrderedParts { binding, journal }) = self.ordered_parts() else { return Ok(None) };
            self.check_not_lost()?;
            self.check(0, 0)?;
            let ticket = self.ordered.changed.ticket();
            self.open_door(&binding, &journal).await;
            let room = {
                let mut shared = lock(&self.ordered.shared);
                let first = *failures.get_or_insert(shared.failures);
                if shared.failures > first {
                    return Err(RequestError::Io);
                }
                let taken = shared.reserved + shared.since_cut + shared.in_batch;
                match shared.door {
                    _ if shared.whole_wanted => None,
                    Door::Disk => Some(None),
                    Door::Flash if parts > journal.parts_max() => {
                        shared.whole_wanted = true;
                        None
                    }
                    Door::Flash if taken + parts <= journal.parts_max() => {
                        shared.reserved += parts;
                        if (taken + parts) * 2 > journal.parts_max() && shared.wanted.is_none() {
                            self.ordered.wake.notify_all();
                        }
                        Some(Some(Room { ordered: &self.ordered, parts }))
                    }
                    Door::Flash => {
                        shared.pressed = true;
                        None
                    }
                }
            };
            if let Some(room) = room {
                let barrier = self.ordered.barrier.acquire(0..1, LockMode::Shared).await;
                return Ok(Some(Passed { room, done_bytes: 0, _barrier: barrier }));
            }
            self.ordered.wake.notify_all();
            let _waits = Waiting::new(&self.ordered);
            let changed = self.ordered.changed.wait(ticket);
            match self.frozen_until() {
                None => changed.await,
                // There is no room before it ends.
                Some(_) => leave.without(changed).await,
            }
        }
    }

    /// Place a write of whole parts. The caller holds the range exclusively.
    ///
    /// # Errors
    /// Flash with dirty data of the grid disk has failed.
    pub(crate) async fn place(
        &self,
        context: &Context,
        passed: &mut Passed<'_>,
        offset: u64,
        data: &SharedBufs,
    ) -> Result<Placed, RequestError> {
        let Some(OrderedParts { binding, .. }) = self.ordered_parts() else { return Ok(Placed::NotNow) };
        let door = lock(&self.ordered.shared).door;
        let Some(room) = passed.room.take() else {
            // Opened since it was told to go to the disk.
            return Ok(if door == Door::Disk { Placed::ToDisk } else { Placed::NotNow });
        };
        let len = data.len_bytes() as u64;
        let whole = offset.is_multiple_of(PART_BYTES) && len.is_multiple_of(PART_BYTES);
        if door == Door::Disk || !whole || room.parts * PART_BYTES < len {
            return Ok(Placed::NotNow);
        }
        let parts = offset / PART_BYTES..(offset + len) / PART_BYTES;
        let open = match &binding.gate {
            Some(gate) => gate.pass().await,
            None => false,
        };
        let mut done = 0;
        let taken = if open {
            // It can go nowhere else, whatever the I/O plan says: order is all the grid disk has.
            let disk = binding.disk.of(context.tenant()).beyond_size();
            binding.cache.write_dirty_from(&disk, parts, data, false, &mut done).await
        } else {
            Err(DirtyRefused::NoRoom)
        };
        match taken {
            Ok(()) => {
                room.take(binding.cache.now());
                if self.is_of_zeroes(data) {
                    self.ordered.zeroed.done(offset..offset + len);
                }
                if self.batch_stage() == Some(BatchStage::Journal) {
                    self.counters.ordered_writes_during_batch.one();
                }
                Ok(Placed::Taken)
            }
            Err(_) if binding.cache.has_lost(&binding.disk) => Err(RequestError::Io),
            Err(_) => {
                passed.done_bytes = done * PART_BYTES;
                room.take(binding.cache.now());
                lock(&self.ordered.shared).whole_wanted = true;
                self.ordered.wake.notify_all();
                Ok(Placed::NotNow)
            }
        }
    }

    /// Let writes go to flash again, where they may: from a disk that has everything, durably.
    async fn open_door(&self, binding: &Binding, journal: &Journal) {
        let may_open = || {
            let shared = lock(&self.ordered.shared);
            let shut = shared.closed_until.is_some_and(|until| binding.cache.now() < until);
            shared.door == Door::Disk && !shut && !self.is_drying()
        };
        let Some(gate) = &binding.gate else { return };
        let well = binding.cache.takes_dirty() && !binding.cache.members().any(|member| member.has_failed());
        if !may_open() || !well {
            return;
        }
        let Some(_turn) = self.ordered.turn.0.try_acquire(1) else { return };
        let _barrier = self.ordered.barrier.acquire(0..1, LockMode::Exclusive).await;
        // Those that began when the grid disk was in another mode know no barrier.
        self.drain().await;
        if !may_open() {
            return;
        }
        let flushed = self.flush_since(self.losses.epoch()).await.is_some();
        let as_of = binding.cache.world().clock.wall();
        let opened = flushed && journal.make_void(as_of).await.is_ok() && gate.pass().await;
        let mut shared = lock(&self.ordered.shared);
        if opened && !self.is_drying() {
            shared.door = Door::Flash;
        } else {
            shared.closed_until = Some(binding.cache.now().after(shared.closed_for));
        }
    }

    /// Whether its writes are taken on flash, to reach the disk in batches; else they go to the disk.
    #[must_use]
    pub fn is_on_flash_in_order(&self) -> bool {
        self.is_ordered() && lock(&self.ordered.shared).door == Door::Flash
    }

    /// What the batch under way is doing, if there is one.
    #[must_use]
    pub fn batch_stage(&self) -> Option<BatchStage> {
        if self.journal_bytes_used() > 0 {
            return Some(BatchStage::InPlace);
        }
        lock(&self.ordered.shared).journaling.then_some(BatchStage::Journal)
    }

    /// Bytes of the journal that are not in place yet: of a batch that is being applied.
    #[must_use]
    pub fn journal_bytes_used(&self) -> u64 {
        self.ordered.journal().map_or(0, |journal| journal.used_bytes())
    }
}

/// Whether a grid disk of this mode has a journal.
pub(crate) fn needs_journal(mode: CatalogMode) -> bool {
    mode == CatalogMode::WriteBackOrdered
}
