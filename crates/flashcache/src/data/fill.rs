//! Filling and invalidating: how blocks enter the cache and how writes end them.
//!
//! A fill never waits: it copies what it can into staging memory and appends it, or says why not. The caller holds the
//! range exclusively, so a fill that started before a write cannot land after it.

use crate::admission::governor::{Allowance, admits};
use crate::admission::policy::carried;
use crate::admission::worth::{Worth, WorthMap};
use crate::base::counters::add;
use crate::base::disk::DiskHandle;
use crate::base::disk::FillCause;
use crate::base::regions::{Begin, RegionKey};
use crate::base::sabotage::Sabotage;
use crate::base::tenant::Tenant;
use crate::base::units::{BlockKey, DiskSlot, PART_BYTES, REGION_PARTS};
use crate::data::room::Waiter;
use crate::format::{BlockName, EntryKind, HeadKind, Record};
use crate::index::{Entry, IndexFull, Killed};
use crate::log::{FILL_RESERVE_SEGMENTS, PENDING_RECORDS_MAX, WRITE_RESERVE_SEGMENTS};
use crate::member::{Member, MemberError};
use device::sync::lock;
use device::{SharedBufs, View};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Free segments beyond those that reclaim keeps that are not free for everybody: what it has just given back, and what it needs to.
const DISPLACING_SEGMENTS: usize = 2;
/// The same of the entries of an index that has a limit: one of so many, twice what makes reclaim run.
const DISPLACING_ENTRIES: usize = 16;

/// What became of the blocks of an offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillReport {
    /// On flash now, in part at least.
    pub taken: u32,
    /// There already.
    pub there: u32,
    /// Refused for want of room or memory, or since flash is slow.
    pub crowded: u32,
    /// Nothing was looked at: regions have gone to other members since the data was read.
    pub stale: bool,
}

impl Member {
    /// Before a write to `parts` is issued to the disk: its regions are marked durably, and the cached copies end.
    ///
    /// # Errors
    /// The member has failed: its content is void, the write may go on once that is durable in the disk's label.
    pub(crate) async fn begin_write(self: &Arc<Self>, slot: DiskSlot, parts: Range<u64>) -> Result<(), MemberError> {
        // This function and `mark` box the waits that most writes do not need: they would make the future of every write larger.
        if lock(&self.log).pending_records() > PENDING_RECORDS_MAX {
            Box::pin(self.sync()).await?;
        }
        let _ = self.wait_for_room(Waiter::Through, self.world.clock.now()).await;
        let regions = parts.start / REGION_PARTS..parts.end.div_ceil(REGION_PARTS);
        for region in regions.clone() {
            if let Err(error) = self.mark(RegionKey { slot, region }).await {
                for counted in regions.start..region {
                    self.regions.end_write(RegionKey { slot, region: counted });
                }
                return Err(error);
            }
        }
        self.invalidate(slot, parts);
        Ok(())
    }

    async fn mark(self: &Arc<Self>, key: RegionKey) -> Result<(), MemberError> {
        loop {
            if self.has_failed() {
                return Err(self.error());
            }
            if self.regions.needs_mark(key) {
                Box::pin(self.wait_for_space()).await?;
            }
            let Some(name) = self.disk_name(key.slot) else { return Err(self.error()) };
            let mark = Record::Mark { disk: name.id, generation: name.generation, region: key.region, set: true };
            let append = || {
                lock(&self.log).append_record(mark);
                add(&self.counters.marks, 1);
            };
            let Begin::AwaitMark(number) = self.regions.begin_write(key, append) else { return Ok(()) };
            Box::pin(self.sync()).await?;
            self.regions.mark_durable(key, number);
        }
    }

    /// Writers leave the last free segments to reclaim, whose own records need room: without them the log would be stuck.
    async fn wait_for_space(&self) -> Result<(), MemberError> {
        loop {
            let ticket = self.changed.ticket();
            if self.has_failed() {
                return Err(self.error());
            }
            let room = lock(&self.log).free.len() > WRITE_RESERVE_SEGMENTS;
            if room || self.stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            add(&self.counters.space_waits, 1);
            self.changed.wait(ticket).await;
        }
    }

    /// Whether what is filled now makes reclaim look for room: it keeps so many segments free, and an index that is limited not quite
    /// full, and runs below.
    pub(crate) fn would_displace(&self) -> bool {
        let entries_max = self.index.entries_max();
        if entries_max < self.sums.len() && self.index.len() >= entries_max - entries_max / DISPLACING_ENTRIES {
            return true;
        }
        if self.is_roomy() {
            // Garbage makes room.
            return false;
        }
        let kept_free = self.free_segments_low();
        let log = lock(&self.log);
        // Where no segment is sealed there is nothing to push out.
        log.free.len() <= kept_free + DISPLACING_SEGMENTS && log.sealed.iter().any(|sealed| !sealed.is_empty())
    }

    /// The most bytes it could hold.
    pub(crate) fn data_bytes_max(&self) -> u64 {
        u64::from(self.shape.segments) * u64::from(self.shape.segment_pages) * PART_BYTES
    }

    /// The write has ended, whatever became of it.
    pub(crate) fn end_write(&self, slot: DiskSlot, parts: Range<u64>) {
        for region in parts.start / REGION_PARTS..parts.end.div_ceil(REGION_PARTS) {
            self.regions.end_write(RegionKey { slot, region });
        }
    }

    /// End the cached copies of `parts`, none of which is dirty.
    pub(crate) fn invalidate(&self, slot: DiskSlot, parts: Range<u64>) {
        for (block, mask) in blocks_of(parts, self.block_parts) {
            let key = BlockKey::new(slot, block);
            // Whoever holds the range finds nothing new there, so that what is not cached costs no lock of the log.
            if !self.index.has_any(key, mask) {
                continue;
            }
            let (dead, frequency) = {
                let mut log = lock(&self.log);
                let dead = self.index.under(&mut log).kill(key, mask);
                let Some(age) = dead.age() else { continue };
                let frequency = dead.frequency();
                self.lifetimes.ended(key, age, frequency);
                let is_forgotten = self.sabotaged(Sabotage::InvalidationForgotten);
                (if is_forgotten { dead.unsaid() } else { dead.record(self) }, frequency)
            };
            assert!(dead.iter().all(|killed| !killed.dirty), "dirty data ends when newer data is on flash");
            self.policy.overwritten(key, frequency);
            add(&self.counters.invalidations, dead.len() as u64);
        }
    }

    /// Offer the data of `parts`. Never waits, never fails: what is refused is counted.
    pub(crate) fn fill(
        self: &Arc<Self>,
        disk: &DiskHandle,
        parts: Range<u64>,
        data: View<'_>,
        cause: FillCause,
        report: &mut FillReport,
    ) {
        let (slot, tenant) = (disk.slot, disk.tenant);
        let is_slow = self.is_slow();
        if is_slow || self.has_failed() || self.stopping.load(Ordering::Acquire) {
            add(&self.counters.fill_skips_slow, u64::from(is_slow));
            report.crowded += 1;
            return;
        }
        let Some(name) = self.disk_name(slot) else { return };
        let allowance = self.allowance();
        let keeping = self.config.worths.keeping(slot);
        let mut writes = Vec::new();
        for (block, mask) in blocks_of(parts.clone(), self.block_parts) {
            let key = BlockKey::new(slot, block);
            let first = block * u64::from(self.block_parts);
            let crc_of = |part: u32| {
                let at = ((first + u64::from(part) - parts.start) * PART_BYTES) as usize;
                name.part_sum(first + u64::from(part), data.slice(at..at + PART_BYTES as usize))
            };
            let mask = mask & !self.already_there(key, mask, &crc_of);
            if mask == 0 {
                add(&self.counters.fill_skips_exists, 1);
                report.there += 1;
                continue;
            }
            let is_keep = |map: &Arc<WorthMap>| map.has_in_block(block, self.block_parts, mask, Worth::Keep);
            let mut kept = keeping.as_ref().is_some_and(is_keep);
            if kept && self.keep_is_full() {
                self.refuse_share();
                kept = false;
            }
            let overwrites = if cause == FillCause::Write { self.lifetimes.take(key) } else { None };
            let admit = || self.admit(key, mask, cause, allowance, overwrites);
            let admitted = if kept { self.admit_keep(allowance) } else { admit() };
            let Some(mut head) = admitted else { continue };
            // Held until the block is in the index.
            let turn = self.quota_turn(tenant);
            if turn.is_some() && !self.has_room(tenant, mask.count_ones(), None) {
                add(&self.counters.fill_skips_quota, 1);
                continue;
            }
            let bytes = mask.count_ones() as usize * PART_BYTES as usize;
            let Some(mut copy) = self.config.staging.try_alloc(bytes) else {
                add(&self.counters.fill_skips_buffer, 1);
                report.crowded += 1;
                continue;
            };
            let mut sums: SmallVec<[u32; 4]> = SmallVec::new();
            for (k, part) in (0..self.block_parts).filter(|p| mask >> p & 1 == 1).enumerate() {
                let at = ((first + u64::from(part) - parts.start) * PART_BYTES) as usize;
                copy.copy_in_view(k * PART_BYTES as usize, data.slice(at..at + PART_BYTES as usize));
                sums.push(crc_of(part));
            }
            let entry = NewEntry {
                key,
                name: BlockName { disk: name.id, generation: name.generation, block },
                mask,
                sums,
                tenant,
                frequency: overwrites.map_or(0, |overwritten| carried(overwritten.frequency)),
            };
            let copy = copy.freeze();
            let again = (head == HeadKind::Keep).then(|| (entry.clone(), copy.clone()));
            let mut appended = self.append(head, entry, copy, &mut writes);
            // The open segment of the keep head was its last.
            if let (Err(AppendRefused::Space), Some((entry, copy)), true) = (&appended, again, self.keep_is_full()) {
                self.refuse_share();
                let Some(other) = admit() else { continue };
                head = other;
                appended = self.append(head, entry, copy, &mut writes);
            }
            match appended {
                Ok(()) => {
                    report.taken += 1;
                    add(&self.counters.ghost_hits, u64::from(head == HeadKind::Main));
                    if head == HeadKind::Keep {
                        add(&self.counters.keep_fills, u64::from(mask.count_ones()));
                        add(&self.counters.keep_fill_bytes, bytes as u64);
                    }
                    if cause == FillCause::ReadMiss {
                        self.was_read(key, mask);
                    }
                    let (fills, fill_bytes) = match cause {
                        FillCause::ReadMiss => (&self.counters.fills, &self.counters.fill_bytes),
                        FillCause::Write => (&self.counters.write_fills, &self.counters.write_fill_bytes),
                        FillCause::Insert => (&self.counters.inserts, &self.counters.insert_bytes),
                    };
                    add(fills, u64::from(mask.count_ones()));
                    add(fill_bytes, bytes as u64);
                }
                Err(AppendRefused::Space) => {
                    add(&self.counters.fill_skips_space, 1);
                    report.crowded += 1;
                }
                Err(AppendRefused::Index) => {
                    add(&self.counters.fill_skips_index, 1);
                    report.crowded += 1;
                }
            }
        }
        self.issue(writes);
        self.changed.notify_all();
    }

    /// KEEP data needs no policy's word, only a budget.
    fn admit_keep(&self, allowance: Allowance) -> Option<HeadKind> {
        if admits(allowance, HeadKind::Keep) {
            return Some(HeadKind::Keep);
        }
        add(&self.counters.fill_skips_endurance, 1);
        None
    }

    /// KEEP data goes where DEFAULT data goes: its share is full.
    fn refuse_share(&self) {
        add(&self.counters.keep_skips_share, 1);
        self.keep.room_wanted();
    }

    /// Which parts of `mask` need no fill: cached already, or suspect with the same content, which revalidation will find.
    fn already_there(&self, key: BlockKey, mask: u16, crc_of: &dyn Fn(u32) -> u32) -> u16 {
        let mut there = 0;
        let mut stale = 0;
        self.index.visit(key, |entry| {
            let both = entry.valid() & mask;
            if !entry.suspect() {
                there |= both;
                return;
            }
            for part in (0..16).filter(|p| both >> p & 1 == 1) {
                let known = self.sums[entry.page_of_part(part).0 as usize].load(Ordering::Acquire);
                if known == crc_of(part) { there |= 1 << part } else { stale |= 1 << part }
            }
        });
        if stale != 0 {
            let dead = self.index.under(&mut lock(&self.log)).kill(key, stale).record(self);
            add(&self.counters.revalidated_stale, dead.len() as u64);
        }
        there
    }

    /// Append an entry's data to the log and its name to the index.
    fn append(
        &self,
        head: HeadKind,
        entry: NewEntry,
        data: SharedBufs,
        writes: &mut Vec<crate::log::LogWrite>,
    ) -> Result<(), AppendRefused> {
        let NewEntry { key, name, mask, sums, tenant, frequency } = entry;
        let record = |position| Record::Entry { kind: EntryKind::Clean, name, mask, position, sums: sums.clone() };
        let mut log = lock(&self.log);
        let reserve = log.left_by(head, FILL_RESERVE_SEGMENTS);
        let page = log.append_entry(head, &record, data, reserve, writes).map_err(|_| AppendRefused::Space)?;
        // Before the lock is released: nobody can reach the page without the index, and the pages are ours.
        for (k, sum) in sums.iter().enumerate() {
            self.sums[page.0 as usize + k].store(*sum, Ordering::Release);
        }
        let inserted = self.index.under(&mut log).insert(Entry::new(key, page, mask, frequency, false).of(tenant));
        let inserted = inserted.map(|dead| drop(dead.record(self)));
        if inserted.is_err() {
            self.append_deaths(&mut log, &[Killed::clean(page, mask)].into_iter().collect());
        }
        drop(log);
        if self.has_failed() {
            // It may have come after all that was there has ended, and would be counted for ever.
            self.index.clear();
        }
        inserted.map_err(|IndexFull| AppendRefused::Index)
    }

    /// Compare suspect entries that lie whole within `parts` with what the disk holds there: good ones are trusted again,
    /// others end. The caller holds the range exclusively.
    pub(crate) fn revalidate(&self, slot: DiskSlot, parts: Range<u64>, data: View<'_>) {
        let Some(name) = self.disk_name(slot) else { return };
        for (block, mask) in blocks_of(parts.clone(), self.block_parts) {
            let first = block * u64::from(self.block_parts);
            let mut stale = 0;
            self.index.visit(BlockKey::new(slot, block), |entry| {
                if !entry.suspect() || entry.valid() & !mask != 0 {
                    return;
                }
                let mut good = true;
                for part in (0..16).filter(|p| entry.valid() >> p & 1 == 1) {
                    let at = ((first + u64::from(part) - parts.start) * PART_BYTES) as usize;
                    let sum = name.part_sum(first + u64::from(part), data.slice(at..at + PART_BYTES as usize));
                    if sum != self.sums[entry.page_of_part(part).0 as usize].load(Ordering::Acquire) {
                        stale |= 1 << part;
                        good = false;
                    }
                }
                if good {
                    entry.set_suspect(false);
                    add(&self.counters.revalidated_good, 1);
                }
            });
            if stale != 0 {
                let key = BlockKey::new(slot, block);
                let dead = self.index.under(&mut lock(&self.log)).kill(key, stale).record(self);
                add(&self.counters.revalidated_stale, dead.len() as u64);
                // What is left of such entries is good.
                self.index.visit(BlockKey::new(slot, block), |entry| {
                    if entry.valid() & !mask == 0 {
                        entry.set_suspect(false);
                    }
                });
            }
        }
    }

    /// The parts of a region that hold suspect entries, as ranges that cover whole entries, in disk order.
    pub(crate) fn suspect_parts(&self, key: RegionKey) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let blocks_per_region = (REGION_PARTS / u64::from(self.block_parts)).max(1);
        for block in key.region * blocks_per_region..(key.region + 1) * blocks_per_region {
            let mut found: Option<Range<u64>> = None;
            self.index.visit(BlockKey::new(key.slot, block), |entry| {
                if entry.suspect() {
                    let first = block * u64::from(self.block_parts);
                    let low = first + u64::from(entry.valid().trailing_zeros());
                    let high = first + 16 - u64::from(entry.valid().leading_zeros());
                    found = Some(match &found {
                        None => low..high,
                        Some(r) => r.start.min(low)..r.end.max(high),
                    });
                }
            });
            match (ranges.last_mut(), found) {
                (Some(last), Some(next)) if last.end == next.start => last.end = next.end,
                (_, Some(next)) => ranges.push(next),
                _ => {}
            }
        }
        ranges
    }

    /// A flush of the slow disk has failed: what was cached of its unsettled regions has to be compared with it again.
    pub(crate) fn distrust(&self, slot: DiskSlot) {
        for key in self.regions.distrust(slot) {
            let blocks_per_region = (REGION_PARTS / u64::from(self.block_parts)).max(1);
            for block in key.region * blocks_per_region..(key.region + 1) * blocks_per_region {
                self.index.visit(BlockKey::new(slot, block), |entry| entry.set_suspect(!entry.dirty()));
            }
        }
    }

    /// Forget a grid disk: NONE, drop, void content.
    pub(crate) fn forget_disk(&self, slot: DiskSlot) {
        let mut doomed = Vec::new();
        self.index.for_each(|e| {
            if e.key().slot() == slot {
                doomed.push((e.key(), e.page()));
            }
        });
        for (key, page) in doomed {
            // The generation of the grid disk is raised, durably: nobody believes what is not said to be dead.
            for killed in self.index.under(&mut lock(&self.log)).cut_at(key, page, u16::MAX).unsaid() {
                if killed.dirty {
                    self.dirty.leave(self.segment_of(page), killed.mask.count_ones());
                }
            }
        }
        self.dirty.blocks(slot).into_iter().for_each(|key| self.dirty.settle(&self.index, key));
        self.regions.forget(slot);
    }

    /// Forget what is left under the slot of a grid disk that is gone. Whether it may be another's: no write of that one may still
    /// happen.
    pub(crate) fn clear_slot(&self, slot: DiskSlot) -> bool {
        self.forget_disk(slot);
        !self.regions.any(slot) && !self.dirty.any(slot)
    }
}

/// An entry about to be made.
#[derive(Clone)]
pub(crate) struct NewEntry {
    pub(crate) key: BlockKey,
    pub(crate) name: BlockName,
    pub(crate) mask: u16,
    pub(crate) sums: SmallVec<[u32; 4]>,
    pub(crate) tenant: Tenant,
    /// How often it counts as hit already.
    pub(crate) frequency: u8,
}

/// Why an entry was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendRefused {
    Space,
    Index,
}

/// The blocks of a range of parts, each with the mask of its parts in the range.
pub(crate) fn blocks_of(parts: Range<u64>, block_parts: u32) -> impl Iterator<Item = (u64, u16)> + Clone {
    let per_block = u64::from(block_parts);
    (parts.start / per_block..parts.end.div_ceil(per_block)).map(move |block| {
        let low = parts.start.saturating_sub(block * per_block).min(per_block) as u32;
        let high = (parts.end - block * per_block).min(per_block) as u32;
        let below = |n: u32| ((1_u32 << n) - 1) as u16;
        (block, below(high) & !below(low))
    })
}
