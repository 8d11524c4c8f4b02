//! Write-back in the request path: which part of a change goes to flash, how reads see it, and how the disk gets it.
//!
//! What is dirty and is written again goes to flash again, whatever mode, bar or switch says: the disk must not be written
//! past data that will be destaged over it. What is dirty is read from flash, or the request fails: the disk's older data
//! is never served for it. Destaging never waits for a range that a request holds; only drying up does, which no request
//! waits for.

use crate::base::counters::SMALL_BYTES_MAX;
use crate::base::range_lock::LockMode;
use crate::base::request::{CachingMode, Context, RequestError};
use crate::base::units::PART_BYTES;
use crate::base::units::cover;
use crate::base::work::RETRY_AFTER;
use crate::base::work::StopSignal;
use crate::disk::grid_disk::{Binding, GridDisk};
use crate::durability::losses::Epoch;
use celldisk::{CellDisk, DeviceId, FlashState};
use device::sync::Semaphore;
use device::{Buf, Bufs, Instant, Outcome, SharedBufs, World};
use flashcache::{DestagedList, DirtyRefused, DirtyRun, Residence, RunLimits, Sabotage, Stretch};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Stretches written to the disk at the same time: enough for it to sort, few enough for foreground reads to get between.
const RUNS_AT_ONCE: usize = 4;
/// The same while clients wait for room: half of what a disk's own queue takes (32, SATA's NCQ), which it sorts better than four. With four a
/// disk that takes 4 ms takes 8 MB/s of scattered pages.
const RUNS_AT_ONCE_HURRIED: usize = 16;
/// What is destaged between two flushes of the disk.
const ROUND: RunLimits = RunLimits { parts_max: 8192, runs_max: 1024, run_parts_max: 256 };
/// One block, for what is destaged while its range is held.
const ONE: RunLimits = RunLimits { parts_max: 1, runs_max: 1, run_parts_max: 16 };
/// How long destaging lets requests go first, unless dirty data crowds the cache.
const YIELD: Duration = Duration::from_millis(1);
/// Attempts of an operator's command to dry up a grid disk whose disk or flash refuses.
const DRY_ATTEMPTS_MAX: usize = 5;

/// How a round of destaging goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Requests go first.
    Yielding,
    /// Dirty data crowds the cache.
    Hurried,
    /// Somebody waits for its end, and may change his mind: it goes on while a [`Drying`] is held.
    WhileDrying,
}

impl Pace {
    /// Stretches under way on the disk at the same time.
    pub(crate) fn runs_at_once(self) -> usize {
        match self {
            Pace::Yielding | Pace::WhileDrying => RUNS_AT_ONCE,
            Pace::Hurried => RUNS_AT_ONCE_HURRIED,
        }
    }
}

/// Dirty data cannot be given to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillDirty;

/// Why what a range holds now could not be read.
#[derive(Debug)]
struct Unread {
    error: RequestError,
    /// The parts that were dirty when they were looked up and that flash could not give.
    dirty: Option<Range<u64>>,
}

/// The door to a flash device's dirty data: before anything of a grid disk is dirty there, the label of its disk says so
/// durably (I5), so that the disk is never taken for whole without the flash.
#[derive(Debug)]
pub(crate) struct DirtyGate {
    disk: Arc<CellDisk>,
    /// All of the cache: what is dirty may be on any two of them.
    flash: Arc<[DeviceId]>,
    /// Where the grid disk lies on its disk, in bytes.
    extents: Vec<(u64, u64)>,
    open: AtomicBool,
    turn: Semaphore,
}

impl DirtyGate {
    pub(crate) fn new(disk: Arc<CellDisk>, flash: Arc<[DeviceId]>, extents: Vec<(u64, u64)>) -> Arc<DirtyGate> {
        Arc::new(DirtyGate { disk, flash, extents, open: AtomicBool::new(false), turn: Semaphore::new(1) })
    }

    /// Whether dirty data may be taken now; writes the label if nobody has.
    pub(crate) async fn pass(&self) -> bool {
        if self.open.load(Ordering::Acquire) {
            return true;
        }
        let _turn = self.turn.acquire(1).await;
        if self.open.load(Ordering::Acquire) {
            return true;
        }
        let (flash, extents) = (self.flash.clone(), self.extents.clone());
        let mut paired = false;
        let written = self.disk.update_label(|label| {
            let there = |id: &DeviceId| {
                let member = label.flash_members.get(id);
                member.is_some_and(|m| !matches!(m.state, FlashState::Expelled | FlashState::Absent))
            };
            if !flash.iter().all(there) {
                return;
            }
            for id in flash.iter() {
                let Some(member) = label.flash_members.get_mut(id) else { continue };
                member.state = FlashState::Dirty;
            }
            extents.iter().for_each(|&(offset, len)| {
                label.dirty.set(offset, len);
            });
            paired = true;
        });
        let passed = written.await.is_ok() && paired;
        self.open.store(passed, Ordering::Release);
        passed
    }
}

/// Held while a grid disk takes no new dirty data: what is dirty may only be overwritten.
#[derive(Debug)]
pub(crate) struct Drying(Arc<GridDisk>);

impl Drop for Drying {
    fn drop(&mut self) {
        self.0.write_back.drying.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What write-back remembers of a grid disk.
#[derive(Debug, Default)]
pub(crate) struct WriteBackState {
    drying: AtomicUsize,
    /// One round of destaging at a time: the disk gets versions of a block in their order.
    round: OneAtATime,
}

/// A turn that one task has at a time.
#[derive(Debug)]
pub(crate) struct OneAtATime(pub(crate) Semaphore);

impl Default for OneAtATime {
    fn default() -> OneAtATime {
        OneAtATime(Semaphore::new(1))
    }
}

fn parts_of(offset: u64, len: u64) -> Range<u64> {
    let span = cover(offset, len, PART_BYTES);
    span.start / PART_BYTES..span.end / PART_BYTES
}

impl Binding {
    /// Whether the disk should get dirty data at once: it crowds the cache, or has lost its second copy.
    pub(crate) fn is_crowded(&self) -> bool {
        self.cache.is_short_of_members() || self.cache.members().any(|member| member.is_crowded_with_dirty())
    }
}

impl GridDisk {
    pub(crate) fn start_drying(self: &Arc<Self>) -> Drying {
        self.write_back.drying.fetch_add(1, Ordering::AcqRel);
        Drying(self.clone())
    }

    pub(crate) fn is_drying(&self) -> bool {
        self.write_back.drying.load(Ordering::Acquire) > 0
    }

    /// The smallest unit a change is made in: parts, where some of it may go to flash.
    pub(crate) fn change_unit(&self) -> u64 {
        let parts = self.cache().is_some_and(|b| b.mode.is_write_back() || b.cache.has_dirty(&b.disk));
        if parts { self.logical_bytes.max(PART_BYTES) } else { self.logical_bytes }
    }

    /// Dirty data of it was on flash that has failed.
    ///
    /// # Errors
    /// So it is.
    pub(crate) fn check_not_lost(&self) -> Result<(), RequestError> {
        match self.cache() {
            Some(binding) if binding.cache.has_lost(&binding.disk) => Err(RequestError::Io),
            _ => Ok(()),
        }
    }

    /// Read the disk, and over it what is dirty. The caller holds the range.
    pub(crate) async fn read_current(&self, offset: u64, bufs: Bufs) -> (Result<(), RequestError>, Bufs) {
        let mut bufs = bufs;
        loop {
            let Some(binding) = self.cache().filter(|b| b.cache.has_dirty(&b.disk)) else {
                return self.read_disk(offset, bufs).await;
            };
            let failed = || binding.cache.members().filter(|member| member.has_failed()).count();
            let failed_before = failed();
            let (result, back) = self.read_over(&binding, offset, bufs).await;
            bufs = back;
            let Err(unread) = result else { return (Ok(()), bufs) };
            // The disk has it by now: nothing in the range becomes dirty meanwhile, so this ends.
            let is_destaged = unread.dirty.is_some_and(|parts| {
                let found = binding.cache.residence(&binding.disk, parts);
                found.iter().any(|(_, residence)| *residence != Residence::Dirty)
            });
            // Or another member has what that one had.
            let is_elsewhere = failed() > failed_before && !binding.cache.has_lost(&binding.disk);
            if !is_destaged && !is_elsewhere {
                return (Err(unread.error), bufs);
            }
        }
    }

    /// The same, once, with what this cache says is dirty.
    async fn read_over(&self, binding: &Binding, offset: u64, bufs: Bufs) -> (Result<(), Unread>, Bufs) {
        let len = bufs.len_bytes() as u64;
        // Looked up before the disk is read: what is destaged meanwhile is not dirty afterwards, and not in what was read.
        let mut at = offset / PART_BYTES;
        let mut dirty = Vec::new();
        for stretch in binding.cache.lookup(&binding.disk, parts_of(offset, len)) {
            let start = at;
            at += u64::from(stretch.parts());
            if let Stretch::Hit(hit) = stretch
                && hit.is_dirty()
            {
                dirty.push((start..at, hit));
            }
        }
        let (result, mut bufs) = self.read_disk(offset, bufs).await;
        if let Err(error) = result {
            return (Err(Unread { error, dirty: None }), bufs);
        }
        for (parts, hit) in dirty {
            let piece = Buf::zeroed(((parts.end - parts.start) * PART_BYTES) as usize);
            let (result, back) = binding.cache.read_hit(hit, piece.into()).await;
            let (Ok(()), Some(back)) = (result, back) else {
                return (Err(Unread { error: RequestError::Io, dirty: Some(parts) }), bufs);
            };
            // The request may begin or end within a part.
            let low = (parts.start * PART_BYTES).max(offset);
            let high = (parts.end * PART_BYTES).min(offset + len);
            let skip = (low - parts.start * PART_BYTES) as usize;
            let mut to = (low - offset) as usize;
            back.for_each(skip..skip + (high - low) as usize, |bytes| {
                bufs.copy_in(to, bytes);
                to += bytes.len();
            });
        }
        if binding.cache.has_lost(&binding.disk) {
            return (Err(Unread { error: RequestError::Io, dirty: None }), bufs);
        }
        (Ok(()), bufs)
    }

    /// Stretches of a range by whether they are dirty, in order; `None` when nothing is. The caller holds the range.
    pub(crate) fn dirty_stretches(&self, offset: u64, len: u64) -> Option<Vec<(Range<u64>, bool)>> {
        let binding = self.cache().filter(|b| b.cache.has_dirty(&b.disk))?;
        let parts = parts_of(offset, len);
        if !binding.cache.is_dirty(&binding.disk, &parts) {
            return None;
        }
        let mut at = parts.start;
        let mut stretches: Vec<(Range<u64>, bool)> = Vec::new();
        for (count, residence) in binding.cache.residence(&binding.disk, parts) {
            let (range, dirty) = (at..at + count, residence == Residence::Dirty);
            at += count;
            match stretches.last_mut() {
                Some((last, same)) if *same == dirty => last.end = range.end,
                _ => stretches.push((range, dirty)),
            }
        }
        Some(stretches)
    }

    /// Whether a write belongs to a scan.
    pub(crate) fn is_scanned(&self, offset: u64, len: u64) -> bool {
        self.cache().is_some() && self.watch.writes(&parts_of(offset, len))
    }

    /// Whether a scan's write goes to the disk at once although the grid disk is in write-back: on flash it would push others out. What
    /// is dirty already is overwritten there.
    pub(crate) fn passes_write_back(&self, offset: u64, len: u64) -> bool {
        let Some(binding) = self.cache().filter(|b| b.mode == CachingMode::WriteBack && !self.is_drying()) else {
            return false;
        };
        let parts = parts_of(offset, len);
        binding.cache.would_displace(&binding.disk, parts.start) && !binding.cache.is_dirty(&binding.disk, &parts)
    }

    /// Take whole parts as dirty if the grid disk is in write-back and there is room; false: write them to the disk.
    ///
    /// # Errors
    /// Flash with dirty data of the grid disk has failed.
    pub(crate) async fn try_write_dirty(
        &self,
        context: &Context,
        offset: u64,
        data: &SharedBufs,
        fua: bool,
    ) -> Result<bool, RequestError> {
        let Some(binding) = self.cache() else { return Ok(false) };
        let len = data.len_bytes() as u64;
        let is_long = len > WRITE_BACK_BYTES_MAX && !fua;
        // Less than whole parts: it was in another mode when the request began.
        let whole = offset.is_multiple_of(PART_BYTES) && len.is_multiple_of(PART_BYTES);
        if binding.mode != CachingMode::WriteBack || self.is_drying() || is_long || !whole {
            return Ok(false);
        }
        let Some(gate) = &binding.gate else { return Ok(false) };
        if binding.cache.is_refused(&binding.disk, &parts_of(offset, len)) {
            return Ok(false);
        }
        if !gate.pass().await || self.is_drying() {
            return Ok(false);
        }
        let disk = binding.disk.of(context.tenant());
        match binding.cache.write_dirty(&disk, parts_of(offset, len), data, false).await {
            Ok(()) => Ok(true),
            Err(DirtyRefused::NoRoom) => Ok(false),
            Err(DirtyRefused::Failed) if binding.cache.has_lost(&binding.disk) => Err(RequestError::Io),
            Err(DirtyRefused::Failed) => Ok(false),
        }
    }

    /// Overwrite parts that are dirty; false: there is no room, see [`GridDisk::clear_dirty`].
    ///
    /// # Errors
    /// The flash has failed.
    pub(crate) async fn overwrite_dirty(&self, parts: Range<u64>, data: &SharedBufs) -> Result<bool, RequestError> {
        let Some(binding) = self.cache() else { return Err(RequestError::Io) };
        match binding.cache.write_dirty(&binding.disk, parts, data, true).await {
            Ok(()) => Ok(true),
            Err(DirtyRefused::NoRoom) => Ok(false),
            Err(DirtyRefused::Failed) => Err(RequestError::Io),
        }
    }

    /// Give the disk what is dirty in a range, so that it may be written to. The caller holds the range exclusively: nobody
    /// waits for room on flash while holding a range that would have to be destaged to make it.
    ///
    /// # Errors
    /// The disk or the flash refuses.
    pub(crate) async fn clear_dirty(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        let Some(binding) = self.cache() else { return Err(RequestError::Io) };
        loop {
            let failed = || binding.cache.members().filter(|member| member.has_failed()).count();
            let failed_before = failed();
            match self.clear_dirty_once(&binding, offset, len).await {
                Ok(_) if self.dirty_stretches(offset, len).is_none() => return Ok(()),
                // Another member has what that one had, and may have been looked at before.
                _ if failed() > failed_before && !binding.cache.has_lost(&binding.disk) => {}
                Err(error) => return Err(error),
                Ok(false) => return Err(RequestError::Io),
                Ok(true) => binding.cache.wait_while_copied(&binding.disk, &parts_of(offset, len)).await,
            }
        }
    }

    /// The same, once. Whether it has to be done again: something was listed that others have destaged in part.
    async fn clear_dirty_once(&self, binding: &Binding, offset: u64, len: u64) -> Result<bool, RequestError> {
        let mut again = false;
        // Whole blocks, as the lock is: an entry with a hole is several stretches, and is clean once the disk has all of them.
        let blocks = self.blocks_of(&parts_of(offset, len));
        let parts_end = blocks.end * self.block_bytes / PART_BYTES;
        for member in 0..binding.cache.members().count() {
            let mut from = Some(blocks.start);
            while let Some(block) = from {
                let losses = self.losses.epoch();
                let (runs, next) = binding.cache.dirty_runs(member, &binding.disk, block, ONE);
                from = next.filter(|next| *next < blocks.end);
                if runs.is_empty() {
                    continue;
                }
                if binding.cache.prepare_destage(member).await.is_err() {
                    return Err(RequestError::Io);
                }
                let mut list = DestagedList::default();
                for mut run in runs.into_iter().filter(|run| run.parts.start < parts_end) {
                    if !binding.cache.confirm_current(&mut run) {
                        // A round that had written it, or some of it, before has just been confirmed.
                        again = true;
                        continue;
                    }
                    if !self.destage_run(binding, &mut run).await {
                        return Err(RequestError::Io);
                    }
                    list.push(&run);
                }
                if !self.commit(binding, member, &list, losses).await {
                    return Err(RequestError::Io);
                }
            }
        }
        Ok(again)
    }

    /// Everything the grid disk has on flash alone is durable there.
    ///
    /// # Errors
    /// Some of it was on flash that has failed.
    pub(crate) async fn sync_dirty(&self) -> Result<(), RequestError> {
        let Some(binding) = self.on_flash() else { return Ok(()) };
        let synced = binding.cache.sync(&binding.disk).await;
        if binding.cache.has_lost(&binding.disk) {
            return Err(RequestError::Io);
        }
        // Where there is one flash device and it has failed, it had nothing of this grid disk alone.
        if binding.cache.config().mirrored { synced.map_err(|_| RequestError::Io) } else { Ok(()) }
    }

    /// The cache, where acknowledged writes may live on flash alone.
    pub(crate) fn on_flash(&self) -> Option<Arc<Binding>> {
        self.cache().filter(|b| b.mode.is_write_back() || b.cache.has_dirty(&b.disk))
    }

    // --- destaging ------------------------------------------------------------------------------------------------

    /// Give the disk a stretch. Whether it has it now; not yet durably.
    pub(crate) async fn destage_run(&self, binding: &Binding, run: &mut DirtyRun) -> bool {
        match self.read_run(binding, run).await {
            Some(data) => self.give_run(run, data).await,
            None => false,
        }
    }

    /// Read a stretch from flash; none: flash refuses.
    async fn read_run(&self, binding: &Binding, run: &mut DirtyRun) -> Option<Bufs> {
        // From the heap: what frees the cache must not wait for memory that waits for the cache. At most
        // `RUNS_AT_ONCE_HURRIED` runs at a time, of 1 MiB each.
        let mut data = Bufs::new();
        for hit in std::mem::take(&mut run.hits) {
            let bytes = (hit.parts().end - hit.parts().start) * PART_BYTES;
            let (result, back) = binding.cache.read_hit(hit, Buf::zeroed(bytes as usize).into()).await;
            let (Ok(()), Some(back)) = (result, back) else {
                self.counters.destage_errors.one();
                return None;
            };
            data.append(back);
        }
        Some(data)
    }

    async fn give_run(&self, run: &DirtyRun, data: Bufs) -> bool {
        self.counters.count_destages(1, data.len_bytes() as u64);
        let outcome = self.disk.write(run.parts.start * PART_BYTES, data.freeze(), false).await.outcome;
        if outcome != Outcome::Done {
            self.counters.destage_errors.one();
        }
        outcome == Outcome::Done
    }

    /// Confirm what the disk was given since loss epoch `losses`; whether that is durable now.
    async fn commit(&self, binding: &Binding, member: usize, list: &DestagedList, losses: Epoch) -> bool {
        if list.is_empty() {
            return true;
        }
        // What a loss may have dropped is written again.
        let durable = self.sabotage == Some(Sabotage::DestageNotFlushed) || self.flush_since(losses).await.is_some();
        durable && binding.cache.commit_destaged(member, list).await.is_ok()
    }

    /// Give the disk everything that is dirty now and that no request is changing, in disk order. Whether all of it went
    /// well. `pace`: whether requests go first, and whether it goes on at all.
    pub(crate) async fn destage_round(&self, binding: &Binding, world: &World, pace: Pace) -> bool {
        let _turn = self.write_back.round.0.acquire(1).await;
        let mut well = true;
        for member in 0..binding.cache.members().count() {
            let mut next = Some(0);
            while let Some(from) = next {
                // Another with other members may have taken its place: who begins anew asks that one.
                if pace == Pace::WhileDrying && !self.is_drying() || binding.cache.is_retired() {
                    return false;
                }
                let losses = self.losses.epoch();
                let (mut runs, more) = binding.cache.dirty_runs(member, &binding.disk, from, ROUND);
                next = more;
                // Until its turn comes, and while the disk takes it, cleaning may have its segment: a round takes seconds, and what it has
                // to do lies in nearly every segment with dirty data.
                runs.iter_mut().for_each(DirtyRun::let_go);
                if !runs.is_empty() && binding.cache.prepare_destage(member).await.is_err() {
                    return false;
                }
                let mut list = DestagedList::default();
                let mut under_way = futures_util::stream::iter(runs.into_iter().map(|mut run| async move {
                    if pace == Pace::WhileDrying && !self.is_drying() {
                        return (run, None);
                    }
                    if pace == Pace::Yielding && !self.locks.is_empty() {
                        world.clock.sleep(YIELD).await;
                    }
                    let blocks = self.blocks_of(&run.parts);
                    // A request that changes it holds it, or has done so since it was listed.
                    let guard = self.locks.try_acquire(blocks, LockMode::Shared);
                    // Whoever drops or shrinks it refuses requests first, then waits for those that hold a range.
                    let (offset, len) = (run.parts.start * PART_BYTES, (run.parts.end - run.parts.start) * PART_BYTES);
                    let written = match &guard {
                        Some(_) if self.check(offset, len).is_ok() && binding.cache.confirm_current(&mut run) => {
                            match self.read_run(binding, &mut run).await {
                                Some(data) => {
                                    run.let_go();
                                    Some(self.give_run(&run, data).await)
                                }
                                None => Some(false),
                            }
                        }
                        _ => None,
                    };
                    (run, written)
                }))
                .buffered(pace.runs_at_once());
                while let Some((run, written)) = under_way.next().await {
                    match written {
                        Some(true) => list.push(&run),
                        Some(false) => well = false,
                        None => {}
                    }
                }
                drop(under_way);
                well &= self.commit(binding, member, &list, losses).await;
                if !well {
                    return false;
                }
            }
        }
        well
    }

    fn blocks_of(&self, parts: &Range<u64>) -> Range<u64> {
        let span = cover(parts.start * PART_BYTES, (parts.end - parts.start) * PART_BYTES, self.block_bytes);
        span.start / self.block_bytes..span.end / self.block_bytes
    }

    /// Give the disk what is dirty, block by block, each held against requests until it is clean: what requests keep
    /// overwriting comes to an end like this. The caller holds a [`Drying`].
    async fn destage_held(&self, binding: &Binding) -> bool {
        for member in 0..binding.cache.members().count() {
            let mut from = 0;
            loop {
                let (runs, _) = binding.cache.dirty_runs(member, &binding.disk, from, ONE);
                let Some(parts) = runs.first().map(|run| run.parts.clone()) else { break };
                // Pins are let go before waiting for the range.
                drop(runs);
                let blocks = self.blocks_of(&parts);
                let guard = self.locks.acquire(blocks.clone(), LockMode::Exclusive).await;
                let (offset, len) = (blocks.start * self.block_bytes, (blocks.end - blocks.start) * self.block_bytes);
                if self.clear_dirty(offset, len).await.is_err() {
                    return false;
                }
                drop(guard);
                if !self.is_drying() {
                    return false;
                }
                from = blocks.start;
            }
        }
        true
    }

    /// Give the disk everything that is dirty, to the end. The caller holds a [`Drying`].
    ///
    /// # Errors
    /// The disk or the flash refuses, or the last [`Drying`] was dropped.
    pub(crate) async fn dry(&self, world: &World) -> Result<(), StillDirty> {
        if self.offline().is_some() {
            return Err(StillDirty);
        }
        for attempt in 0..DRY_ATTEMPTS_MAX {
            let Some(binding) = self.cache() else { return Ok(()) };
            if binding.cache.has_lost(&binding.disk) {
                return Err(StillDirty);
            }
            if self.is_ordered() {
                if self.make_whole(|| self.is_drying()).await.is_ok() {
                    return Ok(());
                }
                if !self.is_drying() {
                    break;
                }
                world.clock.sleep(RETRY_AFTER).await;
                continue;
            }
            // Dirty data on its way when drying began ends here.
            self.drain().await;
            if !binding.cache.has_dirty(&binding.disk) {
                return Ok(());
            }
            if self.destage_round(&binding, world, Pace::WhileDrying).await && self.destage_held(&binding).await {
                continue;
            }
            if !self.is_drying() {
                break;
            }
            if attempt + 1 < DRY_ATTEMPTS_MAX {
                world.clock.sleep(RETRY_AFTER).await;
            }
        }
        let dirty = self.cache().is_some_and(|binding| binding.cache.has_dirty(&binding.disk));
        if dirty { Err(StillDirty) } else { Ok(()) }
    }
}

/// Longer writes go to the disk: they are sequential, which a disk does well, and would wear the flash for nothing. Not what must be durable when it
/// is acknowledged (FUA): somebody waits for each of those, as for a long commit.
const WRITE_BACK_BYTES_MAX: u64 = SMALL_BYTES_MAX;

/// Dirty data of a grid disk that goes on being written to is destaged when the oldest of it is so many times as old as what is quiet has to
/// be: 120 s. What is overwritten before costs the disk nothing. Of the bytes written in the CloudPhysics trace (two hours of a VM) 14 % are
/// overwritten within 5 s, 33 % within 60 s, 41 % within 120 s, and no more within half an hour.
const BUSY_PERIODS: u32 = 24;

/// Whether a grid disk has been written to of late, as far as looks now and then tell.
struct Quiet {
    changes: u64,
    since: Instant,
}

impl Quiet {
    fn new(disk: &GridDisk, now: Instant) -> Quiet {
        Quiet { changes: disk.counters.changes(), since: now }
    }

    /// How long nothing has been changed.
    fn look(&mut self, disk: &GridDisk, now: Instant) -> Duration {
        let changes = disk.counters.changes();
        if changes != self.changes {
            *self = Quiet { changes, since: now };
        }
        Duration::from_nanos(now.ns_since(self.since))
    }
}

/// How a round of destaging goes that is due now; none is where what is dirty may be overwritten yet, which saves the disk a write. `quiet`:
/// how long nothing has been changed; `wanted`: room was asked for, of the flash or of a database's part of it.
fn due(binding: &Binding, now: Instant, quiet: Duration, wanted: bool, after: Duration) -> Option<Pace> {
    if binding.is_crowded() {
        return Some(Pace::Hurried);
    }
    let oldest = binding.cache.oldest_dirty(&binding.disk)?;
    let age = Duration::from_nanos(now.ns_since(oldest));
    let filling = || binding.cache.members().any(|member| member.is_filling_with_dirty());
    let due = age >= after && (quiet >= after || wanted) || age >= after * BUSY_PERIODS || filling();
    due.then_some(Pace::Yielding)
}

/// Destage a grid disk's dirty data when nobody writes to it for `after`, when it is old, and when there is much of it, until it is dropped.
pub(crate) async fn run_destage(disk: Arc<GridDisk>, world: World, after: Duration, stop: Arc<StopSignal>) {
    let pause = (after / 4).max(Duration::from_millis(1));
    let mut quiet = Quiet::new(&disk, world.clock.now());
    loop {
        let wanted = disk.cache().map(|binding| binding.cache.dirty_wanted().clone());
        let (stopped, wanted) = match wanted {
            Some(wanted) => {
                let ticket = wanted.ticket();
                let rung = std::pin::pin!(wanted.wait(ticket));
                let slept = std::pin::pin!(stop.sleep(&world, pause));
                // The ring first: one that comes with the end of the sleep is not missed.
                match select(rung, slept).await {
                    Either::Left(_) => (stop.is_stopped(), true),
                    Either::Right((stopped, _)) => (stopped, false),
                }
            }
            None => (stop.sleep(&world, pause).await, false),
        };
        if stopped || disk.is_gone() {
            return;
        }
        let now = world.clock.now();
        let quiet_for = quiet.look(&disk, now);
        let mine = |b: &Arc<Binding>| b.mode != CachingMode::WriteBackOrdered && b.cache.has_dirty(&b.disk);
        let Some(binding) = disk.cache().filter(mine).filter(|b| !b.cache.has_lost(&b.disk)) else { continue };
        let drying = disk.is_drying().then_some(Pace::Yielding);
        let Some(pace) = due(&binding, now, quiet_for, wanted, after).or(drying) else { continue };
        if !Box::pin(disk.destage_round(&binding, &world, pace)).await && stop.sleep(&world, RETRY_AFTER).await {
            return;
        }
    }
}
