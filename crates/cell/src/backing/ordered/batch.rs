//! Cuts and batches: what the disk gets, when, and how.
//!
//! 1. A cut, with the barrier held: no write is under way, what is dirty is noted and held on flash.
//! 2. Flash makes it durable. It is written to the journal in disk order; flush; a header says so.
//! 3. The journal is written in place; flush; a header says that the journal is void.
//! 4. What was in the cut is called clean.
//!
//! Whatever fails before the header of step 2 ends the batch without a trace; afterwards the disk goes on from the journal,
//! in this life or the next. Never waits for a range, and keeps nothing held on flash while a disk does not answer.

use crate::backing::ordered::journal::{Applied, CHUNK_PARTS, Journal, JournalError};
use crate::backing::ordered::{Door, OrderedParts};
use crate::backing::write_back::{Pace, StillDirty};
use crate::base::range_lock::LockMode;
use crate::base::units::PART_BYTES;
use crate::base::work::RETRY_AFTER;
use crate::base::work::StopSignal;
use crate::disk::grid_disk::{Binding, GridDisk};
use device::sync::lock;
use device::{Buf, Bufs, WallTime, World};
use flashcache::{DestagedList, DirtyRun, RunLimits, Sabotage};
use futures_util::future::{Either, select};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long a batch lets requests go first before each stretch.
const YIELD: Duration = Duration::from_millis(1);
/// How long what is in a batch is held on flash for a piece of the journal. A disk that takes longer stalls, and what it
/// keeps held would in time keep others from flash.
const HELD_MAX: Duration = Duration::from_secs(10);
/// Attempts in a row that may fail before writes that wait for one do: a flash device that is given up fails one, and the
/// next finds the other copy.
const ATTEMPTS_MAX: u32 = 3;
/// A cut takes everything at once: the journal is its limit.
const ALL: RunLimits = RunLimits { parts_max: u64::MAX, runs_max: usize::MAX, run_parts_max: CHUNK_PARTS };

/// What was dirty at a moment at which no write was under way, held on flash as it was then.
#[derive(Debug)]
pub(crate) struct Cut {
    number: u64,
    as_of: WallTime,
    parts: u64,
    /// In disk order, each with the place of its member in the cache.
    runs: Vec<(usize, DirtyRun)>,
}

impl Cut {
    /// The moment.
    pub(crate) fn as_of(&self) -> WallTime {
        self.as_of
    }

    /// Whether nothing was dirty.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts == 0
    }
}

impl GridDisk {
    /// Note a cut. The caller holds the barrier exclusively.
    pub(crate) fn note_cut(&self, binding: &Binding) -> Option<Cut> {
        let mut runs = Vec::new();
        let mut parts = 0;
        for member in 0..binding.cache.members().count() {
            let (found, more) = binding.cache.dirty_runs(member, &binding.disk, 0, ALL);
            assert!(more.is_none(), "a cut is listed whole");
            for mut run in found {
                if !binding.cache.confirm_current(&mut run) {
                    return None;
                }
                parts += run.parts.end - run.parts.start;
                runs.push((member, run));
            }
        }
        runs.sort_by_key(|(_, run)| run.parts.start);
        let mut shared = lock(&self.ordered.shared);
        shared.cuts += 1;
        shared.in_batch = parts;
        shared.since_cut = 0;
        shared.pressed = false;
        shared.oldest_in_batch = [shared.oldest_in_batch, shared.oldest.take()].into_iter().flatten().min();
        shared.wanted = None;
        self.counters.ordered_cuts.one();
        Some(Cut { number: shared.cuts, as_of: binding.cache.world().clock.wall(), parts, runs })
    }

    /// At a FLUSH of the grid disk: if a cut is wanted, this is the moment for it.
    pub(crate) async fn cut_at_flush(&self) {
        let Some(OrderedParts { binding, .. }) = self.ordered_parts() else { return };
        let wanted = |g: &GridDisk| {
            let shared = lock(&g.ordered.shared);
            let is_wanted = shared.wanted.is_some() && shared.cut.is_none() && shared.door == Door::Flash;
            is_wanted && g.frozen_until().is_none()
        };
        if !wanted(self) {
            return;
        }
        let barrier = self.ordered.barrier.acquire(0..1, LockMode::Exclusive).await;
        if wanted(self)
            && let Some(cut) = self.note_cut(&binding)
        {
            self.counters.ordered_cuts_at_flush.one();
            lock(&self.ordered.shared).cut = Some(cut);
        }
        drop(barrier);
        self.ordered.wake.notify_all();
    }

    /// Make one batch of a cut. The caller holds the turn.
    pub(crate) async fn batch(
        &self,
        binding: &Binding,
        journal: &Journal,
        cut: Cut,
        pace: Option<&World>,
    ) -> Result<(), StillDirty> {
        if cut.parts == 0 {
            return Ok(());
        }
        let (as_of, number) = (cut.as_of, cut.number);
        if self.sabotage == Some(Sabotage::OrderedWithoutJournal) {
            return self.batch_in_place(binding, cut).await;
        }
        lock(&self.ordered.shared).journaling = true;
        let filled = self.fill_journal(binding, journal, cut).await;
        let committed = match filled {
            Some((lists, (draft, table_crc))) => {
                journal.commit(draft, table_crc, as_of).await.map_err(|_| StillDirty).map(|()| lists)
            }
            None => Err(StillDirty),
        };
        lock(&self.ordered.shared).journaling = false;
        let lists = committed.inspect_err(|_| self.counters.destage_errors.one())?;
        self.counters.ordered_batches.one();
        self.settle_journal(journal, pace).await?;
        self.call_clean(binding, number, lists).await
    }

    /// What cut `number` had is on the disk.
    async fn call_clean(
        &self,
        binding: &Binding,
        number: u64,
        lists: BTreeMap<usize, DestagedList>,
    ) -> Result<(), StillDirty> {
        let mut all = Ok(());
        for (member, list) in lists {
            if binding.cache.commit_destaged(member, &list).await.is_err() {
                // Its mirror still calls dirty what it held: that comes with the next cut.
                all = Err(StillDirty);
            }
        }
        if all.is_ok() {
            let mut shared = lock(&self.ordered.shared);
            // A newer cut counts what has been written since: without that, more could be dirty than the journal takes, for ever.
            if shared.cuts == number {
                shared.in_batch = 0;
                shared.oldest_in_batch = None;
            }
            drop(shared);
            self.ordered.changed.notify_all();
        }
        all
    }

    /// Step 2 but for the header: what the disk will get is in the journal, durably.
    async fn fill_journal(
        &self,
        binding: &Binding,
        journal: &Journal,
        cut: Cut,
    ) -> Option<(BTreeMap<usize, DestagedList>, (crate::backing::ordered::journal::Draft, u32))> {
        let losses = self.losses.epoch();
        let mut lists: BTreeMap<usize, DestagedList> = BTreeMap::new();
        for (member, run) in &cut.runs {
            lists.entry(*member).or_default().push(run);
        }
        let mut runs = cut.runs;
        for member in lists.keys() {
            // It may need a segment that cannot be given back as long as this cut holds what was overwritten since.
            let limit = 2 * binding.cache.config().hard_limit;
            let prepare = binding.cache.prepare_destage(*member);
            let (prepared, in_time) = self.within(binding, limit, prepare, &mut runs).await;
            if prepared.is_err() || !in_time {
                return None;
            }
        }
        if cut.parts > journal.parts_max() {
            return None;
        }
        let mut draft = journal.begin(cut.parts);
        let mut queue = std::mem::take(&mut runs).into_iter().peekable();
        while queue.peek().is_some() {
            let mut data = Bufs::new();
            let mut parts = Vec::new();
            while parts.len() < CHUNK_PARTS as usize {
                let Some((_, run)) = queue.next() else { break };
                for hit in run.hits {
                    let range = hit.parts();
                    // From the heap: what frees the cache must not wait for memory that waits for the cache.
                    let piece = Buf::zeroed(((range.end - range.start) * PART_BYTES) as usize);
                    let (read, back) = binding.cache.read_hit(hit, piece.into()).await;
                    let (Ok(()), Some(back)) = (read, back) else {
                        return None;
                    };
                    data.append(back);
                    parts.extend(range);
                }
            }
            self.counters.journal_bytes.add(data.len_bytes() as u64);
            let mut rest: Vec<(usize, DirtyRun)> = queue.collect();
            let append = journal.append(&mut draft, parts.into_iter(), data.freeze());
            let (appended, in_time) = self.within(binding, HELD_MAX, append, &mut rest).await;
            if appended.is_err() || !in_time {
                return None;
            }
            queue = rest.into_iter().peekable();
        }
        let table_crc = journal.finish(&draft).await.ok()?;
        // A flush that failed, whoever asked for it, may have dropped some of the journal.
        self.losses.covers_change(losses).ok().map(|_covered| (lists, (draft, table_crc)))
    }

    /// Await something; when it takes longer than flash may be held, what is held is let go.
    async fn within<T>(
        &self,
        binding: &Binding,
        limit: Duration,
        what: impl Future<Output = T>,
        held: &mut Vec<(usize, DirtyRun)>,
    ) -> (T, bool) {
        let what = std::pin::pin!(what);
        match select(what, binding.cache.world().clock.sleep(limit)).await {
            Either::Left((done, _)) => (done, true),
            Either::Right(((), what)) => {
                held.clear();
                (what.await, false)
            }
        }
    }

    /// Bring the journal to an end: what counts there is put in place, and the journal is void. The caller holds the turn.
    pub(crate) async fn settle_journal(&self, journal: &Journal, pace: Option<&World>) -> Result<(), StillDirty> {
        let Some(header) = journal.now() else {
            // A header that was not written: the batch was not begun, or has been put in place. (At a start: neither can be
            // read. What it may have held is dirty on flash.)
            return journal.make_void(WallTime(0)).await.map_err(|_| StillDirty);
        };
        if journal.is_void() {
            return Ok(());
        }
        let how = || if pace.is_none() || self.is_batch_awaited() { Pace::Hurried } else { Pace::Yielding };
        let between = |now: Pace| async move {
            if let Some(world) = pace
                && now == Pace::Yielding
                && !self.locks.is_empty()
            {
                world.clock.sleep(YIELD).await;
            }
        };
        let losses = self.losses.epoch();
        let applied = journal.apply(&self.disk, how, between).await;
        let as_of = match applied {
            Ok(Applied { writes, bytes }) => {
                self.counters.count_destages(writes, bytes);
                if self.flush_since(losses).await.is_none() {
                    self.counters.destage_errors.one();
                    return Err(StillDirty);
                }
                header.as_of
            }
            Err(JournalError::Io) => {
                self.counters.destage_errors.one();
                return Err(StillDirty);
            }
            // All of it is still dirty on flash, and in the next batch. Until that is in place, nobody may believe the disk.
            Err(JournalError::Rotten) => {
                self.counters.destage_errors.one();
                WallTime(0)
            }
        };
        journal.make_void(as_of).await.map_err(|_| StillDirty)
    }

    /// Whether writes wait for the end of a batch, or dirty data crowds the cache.
    fn is_batch_awaited(&self) -> bool {
        lock(&self.ordered.shared).waiting > 0 || self.ordered_parts().is_some_and(|parts| parts.binding.is_crowded())
    }

    /// A deliberate fault: what the cut holds goes to the disk at once.
    async fn batch_in_place(&self, binding: &Binding, cut: Cut) -> Result<(), StillDirty> {
        let (losses, number) = (self.losses.epoch(), cut.number);
        let mut lists: BTreeMap<usize, DestagedList> = BTreeMap::new();
        for (member, mut run) in cut.runs {
            if binding.cache.prepare_destage(member).await.is_err() || !self.destage_run(binding, &mut run).await {
                return Err(StillDirty);
            }
            lists.entry(member).or_default().push(&run);
        }
        if self.flush_since(losses).await.is_none() {
            return Err(StillDirty);
        }
        self.counters.ordered_batches.one();
        self.call_clean(binding, number, lists).await
    }

    /// A batch of what is dirty now, or of a cut that a FLUSH has made.
    pub(crate) async fn batch_once(&self, parts: &OrderedParts, pace: Option<&World>) -> Result<(), StillDirty> {
        let _turn = self.ordered.turn.0.acquire(1).await;
        self.check(0, 0).map_err(|_| StillDirty)?;
        let OrderedParts { binding, journal } = parts;
        self.settle_journal(journal, pace).await?;
        let kept = {
            let mut shared = lock(&self.ordered.shared);
            let cuts = shared.cuts;
            shared.cut.take().filter(|cut| cut.number == cuts)
        };
        let cut = match kept {
            Some(cut) => Some(cut),
            None => {
                let _barrier = self.ordered.barrier.acquire(0..1, LockMode::Exclusive).await;
                self.note_cut(binding)
            }
        };
        self.batch(binding, journal, cut.ok_or(StillDirty)?, pace).await
    }

    /// Give the disk everything: nothing is dirty afterwards, and writes go to the disk.
    ///
    /// # Errors
    /// The disk or the flash refuses, or `goes_on` says no.
    pub(crate) async fn make_whole(&self, goes_on: impl Fn() -> bool) -> Result<(), StillDirty> {
        let Some(parts) = self.ordered_parts() else { return Ok(()) };
        let OrderedParts { binding, journal } = &parts;
        // With writes going on, so that little is left for the time without.
        if binding.cache.has_dirty(&binding.disk) {
            self.batch_once(&parts, None).await?;
        }
        let _turn = self.ordered.turn.0.acquire(1).await;
        self.settle_journal(journal, None).await?;
        if !goes_on() {
            return Err(StillDirty);
        }
        let _barrier = self.ordered.barrier.acquire(0..1, LockMode::Exclusive).await;
        lock(&self.ordered.shared).cut = None;
        if binding.cache.has_dirty(&binding.disk) {
            let cut = self.note_cut(binding).ok_or(StillDirty)?;
            self.batch(binding, journal, cut, None).await?;
        }
        if binding.cache.has_dirty(&binding.disk) {
            return Err(StillDirty);
        }
        let now = binding.cache.now();
        {
            let mut shared = lock(&self.ordered.shared);
            shared.door = Door::Disk;
            shared.closed_until = shared.whole_wanted.then(|| now.after(shared.closed_for));
            (shared.whole_wanted, shared.pressed) = (false, false);
            (shared.since_cut, shared.in_batch) = (0, 0);
            (shared.oldest, shared.oldest_in_batch, shared.wanted) = (None, None, None);
        }
        self.counters.ordered_wholes.one();
        self.ordered.changed.notify_all();
        Ok(())
    }

    /// Wait for the end of a batch under way; none begins as long as what is returned lives.
    pub(crate) async fn end_batches(&self) -> device::sync::Permits {
        self.ordered.turn.0.acquire(1).await
    }

    /// Whether the disk should be given what is dirty now.
    fn batch_is_due(&self, binding: &Binding, after: Duration) -> Due {
        let now = binding.cache.now();
        let mut shared = lock(&self.ordered.shared);
        let limit = shared.journal.as_ref().map_or(0, |journal| journal.parts_max());
        let taken = shared.reserved + shared.since_cut + shared.in_batch;
        let age =
            |since: Option<device::Instant>| since.is_some_and(|s| u128::from(now.ns_since(s)) >= after.as_nanos());
        let oldest = [shared.oldest_in_batch, shared.oldest].into_iter().flatten().min();
        let crowded = binding.is_crowded();
        if shared.whole_wanted {
            return Due::Whole;
        }
        if shared.door == Door::Disk || self.frozen_until().is_some() {
            return Due::NotYet;
        }
        if shared.cut.is_some() || shared.pressed {
            return Due::Now;
        }
        if crowded || taken * 2 > limit || age(oldest) {
            let since = *shared.wanted.get_or_insert(now);
            // Nobody flushes: a moment of our own.
            if crowded || age(Some(since)) {
                return Due::Now;
            }
        }
        Due::NotYet
    }
}

enum Due {
    NotYet,
    Now,
    Whole,
}

/// Make batches of a grid disk whenever they are due, until it is dropped; does nothing while it is in another mode.
pub(crate) async fn run_ordered(disk: Arc<GridDisk>, world: World, after: Duration, stop: Arc<StopSignal>) {
    let pause = (after / 4).max(Duration::from_millis(1));
    lock(&disk.ordered.shared).closed_for = pause;
    let mut failed = 0;
    loop {
        let ticket = disk.ordered.wake.ticket();
        let due = match disk.ordered_parts() {
            Some(parts) if parts.binding.cache.has_lost(&parts.binding.disk) => {
                disk.ordered.failed();
                None
            }
            Some(parts) => Some((disk.batch_is_due(&parts.binding, after), parts)),
            None => {
                // Who waits looks again, and finds that it is in another mode.
                disk.ordered.changed.notify_all();
                None
            }
        };
        let done = match due {
            Some((Due::Whole, _)) => Some(Box::pin(disk.make_whole(|| true)).await),
            Some((Due::Now, parts)) if parts.binding.cache.has_dirty(&parts.binding.disk) => {
                Some(Box::pin(disk.batch_once(&parts, Some(&world))).await)
            }
            _ => None,
        };
        let pause = match done {
            Some(Ok(())) => {
                failed = 0;
                continue;
            }
            Some(Err(StillDirty)) => {
                failed += 1;
                if failed >= ATTEMPTS_MAX {
                    disk.ordered.failed();
                }
                if failed == 1 { pause } else { RETRY_AFTER }
            }
            None => pause,
        };
        if failed > 0 && done.is_some() {
            // Whoever rings now has to wait for the disk as well.
            if stop.sleep(&world, pause).await {
                return;
            }
            continue;
        }
        let rung = std::pin::pin!(disk.ordered.wake.wait(ticket));
        let slept = std::pin::pin!(stop.sleep(&world, pause));
        let stopped = match select(slept, rung).await {
            Either::Left((stopped, _)) => stopped,
            Either::Right(_) => stop.is_stopped(),
        };
        if stopped || disk.is_gone() {
            return;
        }
    }
}
