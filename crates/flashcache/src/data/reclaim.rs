//! Reclaim: the oldest segment of a head gives up its space; blocks that were asked for again are written once more.
//!
//! It has its own segments in reserve and never waits for a range: before it moves an entry it looks whether the entry is
//! still what it read. A segment is reused only after its free record is durable and nobody reads from it.

use crate::admission::governor::Allowance;
use crate::admission::policy::{Judgement, KEEPS_MAX, MOVED_QUARTERS_MAX, Resident, Verdict};
use crate::admission::worth::{Worth, Worths};
use crate::base::counters::add;
use crate::base::regions::RegionKey;
use crate::base::sabotage::Sabotage;
use crate::base::units::{BLOCKS_MAX, BlockKey, DiskSlot, PART_BYTES, Position, SegmentId};
use crate::data::copy::{Candidate, Residents};
use crate::data::sync::Need;
use crate::format::{BlockName, EntryKind, HeadKind, Record};
use crate::index::Entry;
use crate::log::carry::Carried;
use crate::log::sizing::FREE_SEGMENTS_LOW;
use crate::log::sizing::free_segments_low;
use crate::log::{LogState, SegmentState, SuccessorsDurable, WRITE_RESERVE_SEGMENTS};
use crate::member::segment::{Found, Read, read_segment};
use crate::member::{DiskName, Member, MemberError};
use crate::recovery::snapshot::checkpoint_segments;
use device::Outcome;
use device::sync::lock;
use futures_util::future::select;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Whether the segment that is looked at after `keeps` others is given up in any case.
pub(crate) fn must_give_up(free_segments: usize, keeps: u32) -> bool {
    free_segments < FREE_SEGMENTS_LOW || keeps == KEEPS_MAX
}
/// Less than one in so many of the entries an index may have left: reclaim runs.
const ENTRIES_LOW: usize = 32;

/// Segments that cannot be cleaned since somebody reads from them are looked at so often.
const HELD_LOOK_EVERY: Duration = Duration::from_millis(20);

/// What became of a segment that was looked at.
enum Reclaimed {
    /// It stays.
    Kept,
    /// The same, at the main head, since the I/O plan guarantees databases what is in it: others are to give up something.
    Guarded,
    /// Its space is free.
    Freed,
    /// There is none to look at.
    Nothing,
}

/// Why a segment is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It is the oldest of a head that holds DEFAULT data.
    Head(HeadKind),
    /// It is the oldest of the keep head, which has more than its share.
    OverShare,
    /// Little of it is KEEP data, and room for such is wanted.
    Cleaning,
    /// Of this head: what it holds is copied, all of it, since more of it is garbage than of any other.
    Garbage(HeadKind),
}

/// What is to become of a segment.
enum Sorted {
    Stays(Reclaimed),
    /// These are written again, then it goes.
    Move(Vec<Candidate>),
}

impl Member {
    /// Keep segments free; ends when the member stops or fails.
    pub(crate) async fn run_reclaim(self: Arc<Self>) {
        loop {
            let ticket = self.changed.ticket();
            if self.has_failed() || self.stopping.load(Ordering::Acquire) {
                return;
            }
            let low = self.free_segments_low() + self.room.wanted_segments();
            let free = lock(&self.log).free.len();
            let index_is_short = self.index_is_short();
            if free > low && !index_is_short {
                self.room.set_stuck(false);
                self.note_plenty(free, low);
                // Only while segments are plenty: then what is KEEP is written again before the segment goes.
                if let Some(id) = self.take_cleaning() {
                    if self.look_at(id, Origin::Cleaning, KEEPS_MAX).await.is_err() {
                        return;
                    }
                    add(&self.counters.keep_cleans, 1);
                    continue;
                }
                let sparse = self.take_sparse_dirty();
                let copied = match sparse {
                    Some((id, head)) => self.look_at(id, Origin::Garbage(head), KEEPS_MAX).await,
                    None => Ok(Reclaimed::Nothing),
                };
                match copied {
                    Ok(Reclaimed::Freed) => {}
                    Ok(_) => self.changed.wait(ticket).await,
                    Err(_) => return,
                }
                continue;
            }
            self.note_full();
            let gained = match self.reclaim_one(index_is_short).await {
                Ok(false) => self.release_dirty_segments().await,
                gained => gained,
            };
            self.room.set_stuck(matches!(gained, Ok(false)));
            match gained {
                Ok(true) => {}
                Ok(false) => {
                    // What is left is dirty: the disk has to have it first, or whoever reads it lets go of it.
                    self.config.dirty_wanted.notify_all();
                    let rung = std::pin::pin!(self.changed.wait(ticket));
                    if self.garbage_is_held() {
                        let _ = select(rung, self.world.clock.sleep(HELD_LOOK_EVERY)).await;
                    } else {
                        rung.await;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Free segments below which reclaim runs: a clean stop finds room for the checkpoint.
    pub(crate) fn free_segments_low(&self) -> usize {
        checkpoint_segments(self.shape, self.block_parts).max(free_segments_low(self.shape.segments) as usize)
    }

    /// Whether entries have to leave although there are free segments: only where memory is limited.
    fn index_is_short(&self) -> bool {
        self.index.take_refused() || self.index_is_nearly_full()
    }

    /// Whether memory is limited and the index has few places left.
    fn index_is_nearly_full(&self) -> bool {
        let max = self.index.entries_max();
        max < self.sums.len() && self.index.len() >= max - max / ENTRIES_LOW
    }

    /// Reclaim one segment; false when there is none to reclaim. `entries`: not space is wanted, but places in the index.
    async fn reclaim_one(self: &Arc<Self>, entries: bool) -> Result<bool, MemberError> {
        if let Some((id, head)) = if entries { None } else { self.take_garbage() } {
            let done = self.look_at(id, Origin::Garbage(head), KEEPS_MAX).await?;
            return Ok(!matches!(done, Reclaimed::Kept));
        }
        if !entries && self.garbage_is_held() {
            return Ok(false);
        }
        let mut guarded = false;
        for keeps in 0..=KEEPS_MAX {
            match self.look_at_one(keeps, guarded).await? {
                Reclaimed::Kept => {}
                Reclaimed::Guarded => guarded = true,
                Reclaimed::Freed => return Ok(true),
                Reclaimed::Nothing => return Ok(false),
            }
        }
        unreachable!("the last segment looked at is not kept");
    }

    /// Look at the oldest segment of a head, after one was `guarded` rather not of the main head, where that is now: it is kept, or
    /// reclaimed.
    async fn look_at_one(self: &Arc<Self>, keeps: u32, guarded: bool) -> Result<Reclaimed, MemberError> {
        let victim = {
            let mut log = lock(&self.log);
            let emptied = self.take_emptied(&mut log).map(|(id, head)| (id, Origin::Head(head)));
            let over_share = emptied.is_none() && log.keep_segments() > log.keep_segments_max();
            let kept = if over_share { log.take_victim(HeadKind::Keep) } else { None };
            kept.map(|id| (id, Origin::OverShare)).or(emptied).or_else(|| {
                let must = must_give_up(log.free.len(), keeps);
                let head = if guarded { HeadKind::Small } else { self.policy.victim(log.held(), must) };
                let other = if head == HeadKind::Small { HeadKind::Main } else { HeadKind::Small };
                let oldest = [head, other].into_iter().find_map(|head| Some((log.take_victim(head)?, head)));
                oldest.map(|(id, head)| (id, Origin::Head(head)))
            })
        };
        match victim {
            Some((id, origin)) => self.look_at(id, origin, keeps).await,
            None => Ok(Reclaimed::Nothing),
        }
    }

    /// Look at a segment that was taken as a victim.
    async fn look_at(self: &Arc<Self>, id: SegmentId, origin: Origin, keeps: u32) -> Result<Reclaimed, MemberError> {
        lock(&self.log).reclaims = true;
        let stays = self.give_up(id, origin, keeps).await;
        lock(&self.log).reclaims = false;
        self.changed.notify_all();
        if let Some(stays) = stays? {
            return Ok(stays);
        }
        self.reuse(id).await
    }

    /// Let go of what is in a segment, unless it stays.
    async fn give_up(
        self: &Arc<Self>,
        id: SegmentId,
        origin: Origin,
        keeps: u32,
    ) -> Result<Option<Reclaimed>, MemberError> {
        let (opening, last_sequence) = {
            let log = lock(&self.log);
            let segment = &log.segments[id.0 as usize];
            (segment.opening, segment.last_sequence)
        };
        let found = read_segment::<Vec<(u64, Record)>>(self, id).await;
        // To its end: of a segment that has lost its footer and a chunk, a walk finds what came before.
        let is_whole = |f: &Found<_>| f.life.opening == opening && f.last_sequence == last_sequence;
        let found = match found {
            Ok(Read::Found(found)) if is_whole(&found) => Some(found),
            _ => None,
        };
        let Some(found) = found else {
            // Its records may name entries elsewhere that must stay dead: without them nothing here can be trusted.
            self.fail(format!("the records of segment {} cannot be read back", id.0));
            return Err(self.error());
        };
        let records = found.records;
        // Looking at one after the other takes time in which records use up space: nothing is kept when that is short.
        let must = must_give_up(lock(&self.log).free.len(), keeps);
        // What is guaranteed stays then too, while writers have room.
        let guards = keeps < KEEPS_MAX && origin != Origin::Cleaning;
        let moved = match self.sort_out(id, origin, &records, (must, guards)) {
            Sorted::Move(moved) => moved,
            Sorted::Stays(reclaimed) => {
                add(&self.counters.keeps, 1);
                return Ok(Some(reclaimed));
            }
        };
        let has_dirty = moved.iter().any(|candidate| candidate.kind != EntryKind::Clean);
        self.copy_all(moved).await?;
        if has_dirty && self.dirty.holds(id) {
            // There was no room for a copy, or it cannot be read: the disk has to have it first.
            let mut log = lock(&self.log);
            log.keep(id, HeadKind::Dirty);
            log.segments[id.0 as usize].left_with = Some(self.live.of(id));
            return Ok(Some(Reclaimed::Kept));
        }
        // Nothing dirty is left in it, so that nothing of it is superseded from here on.
        let proof = self.await_successors(id).await?;
        // Looked up before, since regions are locked before the log: a mark carried for a region that is settled meanwhile
        // costs a comparison, and one that is set meanwhile has a record of its own.
        let marked: Vec<bool> = records.iter().map(|(_, record)| self.is_mark_in_force(record)).collect();
        {
            // In one step under the log's lock: names leave the index, what must be remembered is appended, then the free
            // record. A write that comes later finds no name to invalidate, but settling its region needs a sync, which
            // makes the free record durable first; a write that came before has invalidated by name.
            let mut log = lock(&self.log);
            log.say_policy_note(self.policy.note());
            let mut carried = Carried::default();
            for ((_, record), marked) in records.iter().zip(marked) {
                match record {
                    Record::Entry { name, position, .. } => self.drop_entry(&mut log, id, *name, *position),
                    Record::Invalidation { .. } if self.sabotaged(Sabotage::TombstoneLostAtReclaim) => {}
                    Record::Mark { .. } if !marked => {}
                    Record::Mark { .. } => carried.add(record),
                    other => log.carry(other, id, &mut carried),
                }
            }
            add(&self.counters.carried_bytes, log.append_carried(carried));
            if !self.sabotaged(Sabotage::FreeRecordSkipped) {
                log.append_free(proof);
            }
        }
        self.sync_at_last().await?;
        Ok(None)
    }

    /// What took the place of a victim's dirty data, overwrites and copies, is durable when this returns. No flush where it is already.
    async fn await_successors(self: &Arc<Self>, id: SegmentId) -> Result<SuccessorsDurable, MemberError> {
        loop {
            let superseded_at = {
                let log = lock(&self.log);
                if self.sabotaged(Sabotage::FreedBeforeSuccessors) {
                    return Ok(log.successors_believed(id));
                }
                match log.successors_durable(id) {
                    Some(proof) => return Ok(proof),
                    None => log.superseded_at(id),
                }
            };
            self.sync_through(superseded_at, Need::Last).await?;
        }
    }

    /// A segment whose free record is durable is free once nobody reads from it.
    async fn reuse(self: &Arc<Self>, id: SegmentId) -> Result<Reclaimed, MemberError> {
        self.unpinned_wait(id).await;
        let geometry = self.config.device.geometry();
        if geometry.discard_bytes > 0 && !self.sabotaged(Sabotage::FreeRecordSkipped) {
            let bytes = u64::from(self.shape.segment_pages) * 4096;
            let offset = u64::from(id.0) * bytes;
            // What it reads as afterwards does not matter, nor whether it worked: the free record is durable.
            let Some(done) = self.within_hard_limit(self.config.device.discard(offset, bytes)).await else {
                // It may still happen, after the segment has been written anew.
                self.fail("a discard took longer than the hard limit".to_owned());
                return Err(self.error());
            };
            match done.outcome {
                Outcome::Done => {
                    add(&self.counters.discards, 1);
                    add(&self.counters.discard_bytes, bytes);
                }
                Outcome::Failed(_) | Outcome::Short(_) => add(&self.counters.discard_failures, 1),
                Outcome::Unknown => {
                    self.fail("nobody knows whether a discard has happened or will".to_owned());
                    return Err(self.error());
                }
            }
        }
        self.quota.released(id);
        lock(&self.log).release(id);
        add(&self.counters.reclaims, 1);
        self.changed.notify_all();
        Ok(Reclaimed::Freed)
    }

    /// Whether it is the mark of a region that is still marked.
    pub(crate) fn is_mark_in_force(&self, record: &Record) -> bool {
        let Record::Mark { disk, generation, region, set: true } = record else { return false };
        self.region_key(*disk, *generation, *region).is_some_and(|key| self.regions.is_marked(key))
    }

    pub(crate) fn slot_of(&self, disk: u64, generation: u32) -> Option<DiskSlot> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner);
        disks.slot_of(DiskName { id: disk, generation })
    }

    /// The entries that a segment's records name and that are still what counts.
    fn residents_of(&self, id: SegmentId, records: &[(u64, Record)], is_keep: &dyn Fn(&Entry) -> bool) -> Residents {
        let mut found = Residents::default();
        for (_, record) in records {
            let Record::Entry { kind, name, position, .. } = record else { continue };
            let Some(slot) = self.slot_of(name.disk, name.generation) else { continue };
            if name.block >= BLOCKS_MAX {
                continue;
            }
            let page = self.shape.page(id, position.0);
            let Some(entry) = self.index.get_at(BlockKey::new(slot, name.block), page) else { continue };
            match kind {
                EntryKind::Dirty | EntryKind::Mirror if entry.dirty() => found.dirty.push((*name, entry, *kind)),
                EntryKind::Clean | EntryKind::Dirty if is_keep(&entry) => found.kept.push((*name, entry)),
                EntryKind::Clean | EntryKind::Dirty => found.others.push((*name, entry)),
                _ => {}
            }
        }
        found
    }

    /// Ask the policy, but for KEEP data, which goes to its own head as far as its share goes, and for what the I/O plan
    /// guarantees, or is more than it gives; what is to be written again, unless the segment is kept.
    fn sort_out(
        &self,
        id: SegmentId,
        origin: Origin,
        records: &[(u64, Record)],
        (must, guards): (bool, bool),
    ) -> Sorted {
        let aged = lock(&self.log).segments[id.0 as usize].aged;
        let maps = self.config.worths.all();
        // What has aged counts as DEFAULT data until it is asked for again; old hits are no question.
        let asked_again = !aged || self.keep.is_used(id);
        let is_keep = |entry: &Entry| {
            !entry.dirty()
                && !entry.aged()
                && asked_again
                && (!aged || entry.frequency() > 0)
                && Worths::is(&maps, entry.key(), self.block_parts, entry.valid(), Worth::Keep)
        };
        let residents = self.residents_of(id, records, &is_keep);
        if let Origin::Garbage(from) = origin {
            return Sorted::Move(self.copies(from, residents, aged));
        }
        let Residents { kept, others, dirty } = residents;
        assert!(dirty.is_empty(), "segments with dirty data are cleaned, or wait for the disk");
        // With whether it is KEEP data.
        let mut rest: Vec<(BlockName, Entry, bool)> =
            others.into_iter().map(|(name, entry)| (name, entry, false)).collect();
        let kept_pages: u32 = kept.iter().map(|(_, entry)| entry.valid().count_ones()).sum();
        let joins = matches!(origin, Origin::Head(_)) && kept_pages > self.shape.segment_pages / 2;
        if joins && !must && !self.keep_is_full() {
            lock(&self.log).keep(id, HeadKind::Keep);
            add(&self.counters.keep_adopted, 1);
            return Sorted::Stays(Reclaimed::Kept);
        }
        // Down to what reclaim itself lives on, nothing is written again: records come first.
        let scarce = lock(&self.log).free.len() <= WRITE_RESERVE_SEGMENTS;
        let allowance = self.allowance();
        let mut room = if scarce || allowance == Allowance::MustOnly {
            0
        } else {
            self.shape.segment_pages / 4 * MOVED_QUARTERS_MAX
        };
        let has_share = origin == Origin::Cleaning || (origin != Origin::OverShare && !self.keep_is_full());
        let (mut moved, kind) = (Vec::new(), EntryKind::Clean);
        for (name, entry) in kept {
            let parts = entry.valid().count_ones();
            if has_share && parts <= room {
                room -= parts;
                let (frequency, head) = (entry.frequency(), HeadKind::Keep);
                moved.push(Candidate { kind, name, key: entry.key(), entry, frequency, head, aged: false });
            } else {
                rest.push((name, entry, true));
            }
        }
        let mut claims = self.claims();
        // Guaranteed blocks that are moved, and that leave; counted once the segment is sure not to stay as it is.
        let (mut guarded_moves, mut guarded_overwrites) = (0, 0);
        if let Some(claims) = &claims {
            let guarded = claims.guard(&mut rest);
            let pages: u32 = guarded.iter().map(|(_, entry, _)| entry.valid().count_ones()).sum();
            if guards && !scarce && pages > self.shape.segment_pages / 4 * MOVED_QUARTERS_MAX {
                guarded.iter().chain(&rest).for_each(|(_, entry, _)| self.cool(entry));
                lock(&self.log).keep(id, HeadKind::Main);
                add(&self.counters.quota_keeps, 1);
                return Sorted::Stays(Reclaimed::Guarded);
            }
            for (name, entry, is_kept) in guarded {
                let parts = entry.valid().count_ones();
                if parts <= room {
                    room -= parts;
                    let (frequency, head) = (entry.frequency().saturating_sub(1), HeadKind::Main);
                    let aged = entry.aged() || aged && !is_kept;
                    moved.push(Candidate { kind, name, key: entry.key(), entry, frequency, head, aged });
                    guarded_moves += 1;
                } else {
                    guarded_overwrites += 1;
                }
            }
        }
        let resident = |(_, entry, _): &(BlockName, Entry, bool)| Resident {
            key: entry.key(),
            frequency: entry.frequency(),
            pages: entry.valid().count_ones(),
        };
        let residents: Vec<Resident> = rest.iter().map(resident).collect();
        let (head, must) = match origin {
            Origin::Head(head) => (head, must),
            Origin::OverShare => (HeadKind::Main, must),
            Origin::Cleaning | Origin::Garbage(_) => (HeadKind::Main, true),
        };
        let held = lock(&self.log).held();
        let verdicts = match self.policy.judge(head, held, &residents, must) {
            Judgement::Keep(_) if must => Vec::new(),
            Judgement::Keep(head) => {
                rest.iter().for_each(|(_, entry, _)| self.cool(entry));
                lock(&self.log).keep(id, head);
                return Sorted::Stays(Reclaimed::Kept);
            }
            Judgement::Reclaim(verdicts) => verdicts,
        };
        add(&self.counters.quota_moves, guarded_moves);
        add(&self.counters.quota_overwrites, guarded_overwrites);
        let verdicts = verdicts.into_iter().chain(std::iter::repeat(Verdict::Evict));
        // With a budget cleaning would have made room and no block would have left, unless the index lacks places.
        let lacks_budget = allowance == Allowance::MustOnly && self.is_roomy() && !self.index_is_nearly_full();
        for ((name, entry, is_kept), verdict) in rest.into_iter().zip(verdicts) {
            let parts = entry.valid().count_ones();
            let excess = claims.as_mut().is_some_and(|claims| claims.takes_excess(&entry));
            match if excess { Verdict::Evict } else { verdict } {
                Verdict::Move(..)
                    if allowance == Allowance::MustOnly || !self.earned(entry.key(), entry.valid(), allowance) =>
                {
                    self.refuse_copy(entry.key(), parts);
                }
                Verdict::Move(head, frequency) if parts <= room => {
                    room -= parts;
                    let aged = entry.aged() || aged && !is_kept;
                    moved.push(Candidate { kind, name, key: entry.key(), entry, frequency, head, aged });
                    continue;
                }
                // The policy has let go of it: it is counted alone.
                Verdict::Evict if lacks_budget && !excess => add(&self.counters.move_skips_endurance, 1),
                // Its name leaves the index together with the free record.
                Verdict::Move(..) | Verdict::Evict => {}
            }
            if is_kept {
                add(&self.counters.keep_overwrites, 1);
                add(&self.counters.keep_overwritten_bytes, u64::from(parts) * PART_BYTES);
            }
        }
        Sorted::Move(moved)
    }

    /// One hit less of an entry, if it is still there.
    fn cool(&self, entry: &Entry) {
        self.index.visit(entry.key(), |e| {
            if e.page() == entry.page() {
                e.cool();
            }
        });
    }

    fn drop_entry(&self, log: &mut LogState, id: SegmentId, name: BlockName, position: Position) {
        let Some(slot) = self.slot_of(name.disk, name.generation) else { return };
        if name.block >= BLOCKS_MAX {
            return;
        }
        let page = self.shape.page(id, position.0);
        // The free record that follows says it of all of them.
        let dropped = self.index.under(log).end_clean(BlockKey::new(slot, name.block), page).unsaid();
        add(&self.counters.evictions, dropped.len() as u64);
    }

    /// Whether somebody reads from a segment.
    pub(crate) fn is_pinned(&self, segment: SegmentId) -> bool {
        self.pins[segment.0 as usize].load(Ordering::Acquire) > 0
    }

    /// A reader let go of a segment.
    pub(crate) fn unpinned(&self, segment: SegmentId) {
        let state = lock(&self.log).segments[segment.0 as usize].state;
        // Not for one that holds dirty data: those who destage it let go of it all the time, and reclaim rings for them.
        let waited_for = match state {
            SegmentState::Reclaiming => true,
            SegmentState::Sealed(head) if head.is_dirty() => !self.dirty.holds(segment),
            _ => false,
        };
        if waited_for {
            self.changed.notify_all();
        }
    }

    async fn unpinned_wait(&self, segment: SegmentId) {
        add(&self.counters.reader_waits, u64::from(self.is_pinned(segment)));
        loop {
            let ticket = self.changed.ticket();
            if !self.is_pinned(segment) || self.has_failed() {
                return;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// For recovery: marks and invalidations that only freed segments still hold.
    pub(crate) fn region_key(&self, disk: u64, generation: u32, region: u64) -> Option<RegionKey> {
        self.slot_of(disk, generation).map(|slot| RegionKey { slot, region })
    }
}

/// How much of each disk's data a member holds, for reports: bytes by slot.
pub(crate) fn bytes_by_disk(member: &Member) -> BTreeMap<DiskSlot, u64> {
    let mut bytes = BTreeMap::new();
    member.index.for_each(|e| {
        *bytes.entry(e.key().slot()).or_insert(0) += u64::from(e.valid().count_ones()) * PART_BYTES;
    });
    bytes
}
