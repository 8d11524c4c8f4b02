//! Dirty data: writes that live on flash until the slow disk has them.
//!
//! A write is taken when its chunk, and all chunks before it in its segment, are on the device, so that the death of the
//! process finds it; it is durable after a sync. Deaths of dirty entries are recorded only once their successor is durable,
//! and the disk is given an entry only when it is durable and every older version of it durably dead. So at
//! recovery what is dirty and not dead is newer than the disk and than every clean copy, and the youngest of several counts.
//!
//! Never touches the slow disk, and never waits for a range: whoever destages holds one, or skips.

use crate::counters::add;
use crate::fill::{NewEntry, blocks_of};
use crate::format::{BlockName, EntryKind, HeadKind, Record, part_crc_seed};
use crate::index::Entry;
use crate::log::{DIRTY_RESERVE_SEGMENTS, LogWrite, NoSpace, SegmentState};
use crate::member::{Member, MemberError};
use crate::read::Hit;
use crate::sabotage::Sabotage;
use crate::units::{BlockKey, DiskSlot, PART_BYTES, Page, SegmentId};
use device::SharedBufs;
use device::sync::lock;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why dirty data was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyRefused {
    /// No room for it now: write it to the disk, after what is dirty of it has been destaged.
    NoRoom,
    /// The flash device has failed.
    Failed,
}

/// Some parts of a dirty entry on their way to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destaged {
    key: BlockKey,
    page: Page,
    mask: u16,
}

/// A stretch of consecutive dirty parts, read and written to the disk as one.
#[derive(Debug)]
pub struct DirtyRun {
    /// Which parts.
    pub parts: Range<u64>,
    /// Where they lie, in order.
    pub hits: SmallVec<[Hit; 4]>,
    entries: SmallVec<[Destaged; 4]>,
}

/// Dirty entries the disk has been given: to be confirmed after a flush of it.
#[derive(Debug, Default)]
pub struct DestagedList {
    /// By block and first page: which parts.
    entries: BTreeMap<(BlockKey, Page), u16>,
}

impl DirtyRun {
    /// Whether all of it is still what counts. The caller holds its range, which keeps it so: before, it may have been
    /// overwritten, and the disk been given something newer.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let Some(member) = self.hits.first().map(Hit::member) else { return false };
        self.entries.iter().all(|&Destaged { key, page, mask }| {
            member.index.get_at(key, page).is_some_and(|entry| entry.dirty() && entry.valid() & mask == mask)
        })
    }
}

impl DestagedList {
    /// The run has been written to the disk.
    pub fn push(&mut self, run: &DirtyRun) {
        for &Destaged { key, page, mask } in &run.entries {
            *self.entries.entry((key, page)).or_insert(0) |= mask;
        }
    }

    /// Whether nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Member {
    /// Segments dirty data may take before writes go to the disk: enough stay for clean data that reclaim always finds
    /// something to give back.
    fn dirty_segments_max(&self) -> usize {
        (self.shape.segments as usize / 2).saturating_sub(2)
    }

    /// Take the data of whole parts as dirty. `again`: it is dirty already, so that it may go nowhere else before that has
    /// been destaged; it may use more room then. The caller holds the range exclusively.
    ///
    /// # Errors
    /// [`DirtyRefused`]; some of it may have been taken all the same, and is dirty then.
    pub(crate) async fn write_dirty(
        self: &Arc<Self>,
        slot: DiskSlot,
        parts: Range<u64>,
        data: &SharedBufs,
        again: bool,
    ) -> Result<(), DirtyRefused> {
        let mut last = None;
        for (block, mask) in blocks_of(parts.clone(), self.block_parts) {
            let first = block * u64::from(self.block_parts) + u64::from(mask.trailing_zeros());
            let at = (first - parts.start) as usize * PART_BYTES as usize;
            let piece = data.slice(at..at + mask.count_ones() as usize * PART_BYTES as usize);
            last = Some(self.take_block(slot, block, mask, piece, again)?);
        }
        self.send_dirty();
        let count = parts.end - parts.start;
        add(&self.counters.dirty_writes, count);
        add(&self.counters.dirty_write_bytes, count * PART_BYTES);
        match last {
            Some(page) if !self.sabotaged(Sabotage::DirtyAckedFromMemory) => self.wait_arrived(page).await,
            _ => Ok(()),
        }
    }

    fn send_dirty(self: &Arc<Self>) {
        let mut writes = Vec::new();
        lock(&self.log).push_dirty(&mut writes);
        self.issue(writes);
    }

    /// Take the data of one block. Where its last page lies.
    fn take_block(
        self: &Arc<Self>,
        slot: DiskSlot,
        block: u64,
        mask: u16,
        data: SharedBufs,
        again: bool,
    ) -> Result<Page, DirtyRefused> {
        let Some(name) = self.disk_name(slot) else { return Err(DirtyRefused::Failed) };
        let first = block * u64::from(self.block_parts);
        let mut crcs: SmallVec<[u32; 4]> = SmallVec::new();
        for (k, part) in (0..16).filter(|p| mask >> p & 1 == 1).enumerate() {
            let mut crc = part_crc_seed(name.id, name.generation, first + part);
            let at = k * PART_BYTES as usize;
            data.view(at..at + PART_BYTES as usize).for_each(|bytes| crc = crc32c::crc32c_append(crc, bytes));
            crcs.push(crc);
        }
        let name = BlockName { disk: name.id, generation: name.generation, block };
        let key = BlockKey::new(slot, block);
        if self.has_failed() {
            return Err(DirtyRefused::Failed);
        }
        let mut writes = Vec::new();
        let taken = self.append_dirty(NewEntry { key, name, mask, crcs }, data, again, &mut writes);
        self.issue(writes);
        taken.map_err(|NoSpace| {
            add(&self.counters.dirty_skips_space, 1);
            self.config.dirty_wanted.notify_all();
            if self.has_failed() { DirtyRefused::Failed } else { DirtyRefused::NoRoom }
        })
    }

    fn append_dirty(
        &self,
        entry: NewEntry,
        data: SharedBufs,
        again: bool,
        writes: &mut Vec<LogWrite>,
    ) -> Result<Page, NoSpace> {
        let NewEntry { key, name, mask, crcs } = entry;
        let now = self.world.clock.now();
        let mut log = lock(&self.log);
        let reserve = DIRTY_RESERVE_SEGMENTS + usize::from(!again);
        let much = log.sealed[HeadKind::Dirty as usize].len() >= self.dirty_segments_max() || self.index.is_full();
        if !again && much {
            return Err(NoSpace);
        }
        let record = |position| Record::Entry { kind: EntryKind::Dirty, name, mask, position, crcs: crcs.clone() };
        let page = log.append_entry(HeadKind::Dirty, &record, data, reserve, writes)?;
        for (k, crc) in crcs.iter().enumerate() {
            self.crcs[page.0 as usize + k].store(*crc, Ordering::Release);
        }
        let mut entry = Entry::new(key, page, mask, 0, false);
        entry.set_dirty(true);
        let inserted = self.dirty.insert(&self.index, entry, self.segment_of(page), now);
        let dead = inserted.map_err(|_| NoSpace)?;
        let again: u32 = dead.iter().filter(|killed| killed.dirty).map(|killed| killed.mask.count_ones()).sum();
        add(&self.counters.dirty_overwrites, u64::from(again));
        self.append_deaths(&mut log, &dead);
        Ok(Page(page.0 + mask.count_ones() - 1))
    }

    /// The page, and everything before it in its segment, is on the device.
    pub(crate) async fn wait_arrived(&self, page: Page) -> Result<(), DirtyRefused> {
        let (segment, position) = self.shape.place(page);
        loop {
            let ticket = self.changed.ticket();
            if self.has_failed() {
                return Err(DirtyRefused::Failed);
            }
            if lock(&self.log).has_arrived(segment, position) {
                return Ok(());
            }
            self.changed.wait(ticket).await;
        }
    }

    /// The dirty stretches of a grid disk's blocks from `block` on, in disk order, up to `parts_max` parts or `runs_max`
    /// stretches, none longer than `run_parts_max`. The block to go on from, if there are more.
    pub(crate) fn dirty_runs(
        self: &Arc<Self>,
        slot: DiskSlot,
        block: u64,
        limits: RunLimits,
    ) -> (Vec<DirtyRun>, Option<u64>) {
        let mut runs: Vec<DirtyRun> = Vec::new();
        let mut parts = 0;
        let mut next = self.dirty.next(slot, block);
        while let Some(block) = next {
            if parts >= limits.parts_max || runs.len() >= limits.runs_max {
                break;
            }
            let key = BlockKey::new(slot, block);
            let first = block * u64::from(self.block_parts);
            for (hit, page) in self.dirty_hits(slot, first..first + u64::from(self.block_parts)) {
                let range = hit.parts();
                let mask = (range.clone().fold(0, |mask, part| mask | 1_u32 << (part - first))) as u16;
                let destaged = Destaged { key, page, mask };
                parts += range.end - range.start;
                match runs.last_mut() {
                    Some(run)
                        if run.parts.end == range.start && range.end - run.parts.start <= limits.run_parts_max =>
                    {
                        run.parts.end = range.end;
                        run.entries.push(destaged);
                        run.hits.push(hit);
                    }
                    _ => runs.push(DirtyRun {
                        parts: range,
                        hits: SmallVec::from_iter([hit]),
                        entries: SmallVec::from_iter([destaged]),
                    }),
                }
            }
            next = self.dirty.next(slot, block + 1);
        }
        (runs, next)
    }

    /// Before the disk is given what is dirty now: it becomes durable, then the deaths of what it has replaced. Otherwise a
    /// power cut could lose it, and leave what it replaced beside what the disk was given.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn prepare_destage(self: &Arc<Self>) -> Result<(), MemberError> {
        self.sync_destaged().await?;
        self.sync_destaged().await
    }

    /// The disk has these entries durably: record it, then call them clean. Those that were overwritten meanwhile are not
    /// looked for any more. How many pages are clean now.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn commit_destaged(self: &Arc<Self>, list: &DestagedList) -> Result<u64, MemberError> {
        {
            let mut log = lock(&self.log);
            for (&(key, page), mask) in &list.entries {
                let whole = |entry: &Entry| entry.dirty() && entry.valid() & !mask == 0;
                if let Some(entry) = self.index.get_at(key, page).filter(whole) {
                    let record = self.names(&log, page, entry.valid(), true);
                    log.append_record(record);
                }
            }
        }
        self.sync_destaged().await?;
        let mut cleaned = 0;
        for (&(key, page), mask) in &list.entries {
            let mut pages = 0;
            self.index.visit(key, |entry| {
                if entry.page() == page && entry.dirty() && entry.valid() & !mask == 0 {
                    entry.set_dirty(false);
                    pages = entry.valid().count_ones();
                }
            });
            if pages > 0 {
                cleaned += u64::from(pages);
                self.dirty.leave(self.segment_of(page), pages);
                self.dirty.settle(&self.index, key);
            }
        }
        add(&self.counters.destages, cleaned);
        add(&self.counters.destage_bytes, cleaned * PART_BYTES);
        self.release_dirty_segments().await?;
        Ok(cleaned)
    }

    /// Segments of the dirty head that hold no dirty page any more become segments like others. Whether there were any.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn release_dirty_segments(self: &Arc<Self>) -> Result<bool, MemberError> {
        let ready: Vec<SegmentId> = {
            let log = lock(&self.log);
            let queue = log.sealed[HeadKind::Dirty as usize].iter().copied();
            queue.filter(|&id| !self.dirty.holds(id)).collect()
        };
        if ready.is_empty() {
            return Ok(false);
        }
        // What has replaced their pages must be durable before they can be freed.
        self.sync_destaged().await?;
        {
            let mut log = lock(&self.log);
            for id in ready {
                // Somebody else may have done so meanwhile.
                let queue = &mut log.sealed[HeadKind::Dirty as usize];
                let Some(at) = queue.iter().position(|&other| other == id) else { continue };
                let _ = queue.remove(at);
                log.segments[id.0 as usize].state = SegmentState::Sealed(HeadKind::Small);
                log.sealed[HeadKind::Small as usize].push_back(id);
            }
        }
        self.changed.notify_all();
        Ok(true)
    }

    pub(crate) fn dirty_bytes_of(&self, slot: DiskSlot) -> u64 {
        let mut parts = 0;
        for key in self.dirty.blocks(slot) {
            self.index.visit(key, |e| parts += if e.dirty() { u64::from(e.valid().count_ones()) } else { 0 });
        }
        parts * PART_BYTES
    }

    /// Bytes that live here alone.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.pages() * PART_BYTES
    }

    /// When the oldest of them was acknowledged, at the latest.
    #[must_use]
    pub fn oldest_dirty(&self) -> Option<device::Instant> {
        self.dirty.oldest()
    }

    /// Whether so much is dirty that it should go to the disk now.
    #[must_use]
    pub fn is_crowded_with_dirty(&self) -> bool {
        let log = lock(&self.log);
        log.sealed[HeadKind::Dirty as usize].len() >= self.dirty_segments_max() / 2
    }
}

/// How much to destage at a time.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    /// Parts in all.
    pub parts_max: u64,
    /// Stretches in all.
    pub runs_max: usize,
    /// Parts of a stretch.
    pub run_parts_max: u64,
}
