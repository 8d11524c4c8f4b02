//! Dirty data: writes that live on flash until the slow disk has them.
//!
//! A write is taken when its chunk, and all chunks before it in its segment, are on the device, so that the death of the
//! process finds it; it is durable after a sync. Deaths of dirty entries are recorded only once their successor is durable,
//! and the disk is given an entry only when it is durable and every older version of it durably dead. So at
//! recovery what is dirty and not dead is newer than the disk and than every clean copy, and the youngest of several counts.
//!
//! Never touches the slow disk, and never waits for a range: whoever destages holds one, or skips.

use crate::admission::policy::carried;
use crate::base::counters::add;
use crate::base::sabotage::Sabotage;
use crate::base::tenant::Tenant;
use crate::base::units::{BlockKey, DiskSlot, Opening, PART_BYTES, Page, Position, SegmentId};
use crate::data::fill::NewEntry;
use crate::data::read::{Hit, Pin};
use crate::data::sync::Need;
use crate::format::{BlockName, EntryKind, HeadKind, Record};
use crate::index::Entry;
use crate::log::sizing::open_heads;
use crate::log::{DIRTY_RESERVE_SEGMENTS, LogState, LogWrite, MOVE_RESERVE_SEGMENTS, NoSpace, SegmentState};
use crate::member::{Member, MemberError};
use device::sync::lock;
use device::{Instant, SharedBufs};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
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
pub(crate) struct Destaged {
    pub(crate) key: BlockKey,
    pub(crate) page: Page,
    /// Of the page's segment: once that is reused, another version of the same block may lie at the same place.
    pub(crate) opening: Opening,
    pub(crate) mask: u16,
}

/// Places of dirty entries: by block, first page and the opening of its segment, which parts.
pub(crate) type Places = BTreeMap<(BlockKey, Page, Opening), u16>;

/// A stretch of consecutive dirty parts, read and written to the disk as one.
#[derive(Debug)]
pub struct DirtyRun {
    /// Which parts.
    pub parts: Range<u64>,
    /// Where they lie, in order; none while it is let go.
    pub hits: SmallVec<[Hit; 4]>,
    pub(crate) member: Arc<Member>,
    pub(crate) entries: SmallVec<[Destaged; 4]>,
    /// The same on other members, by their places in the cache.
    pub(crate) mirrors: SmallVec<[(usize, Places); 1]>,
    /// What keeps those where they are: cleaning would leave a copy that nobody ends.
    pub(crate) pins: Vec<Arc<Pin>>,
}

/// Dirty entries the disk has been given: to be confirmed after a flush of it.
#[derive(Debug, Default)]
pub struct DestagedList {
    pub(crate) entries: Places,
    /// On other members, by their places in the cache.
    pub(crate) mirrors: BTreeMap<usize, Places>,
    pins: Vec<Arc<Pin>>,
}

impl DirtyRun {
    /// Hold nothing on flash any more: cleaning may take the segments meanwhile. [`FlashCache::confirm_current`](crate::FlashCache::confirm_current)
    /// takes hold again of what has not moved; what moves between that and its confirmation stays dirty and is destaged once more. A
    /// mirror's copy that moved would be ended by nobody, so a run with mirrors goes on holding both.
    pub fn let_go(&mut self) {
        self.hits.clear();
        if self.mirrors.is_empty() {
            self.pins.clear();
        }
    }

    /// Look up again where its parts lie. Whether that is where they lay when it was listed.
    pub(crate) fn take_hold(&mut self) -> bool {
        for &Destaged { key, page, mask, .. } in &self.entries {
            let first = key.block() * u64::from(self.member.block_parts);
            let range = first + u64::from(mask.trailing_zeros())..first + u64::from(16 - mask.leading_zeros());
            let hits = self.member.dirty_hits(key.slot(), range);
            if !hits.iter().all(|(_, of)| *of == page) {
                return false;
            }
            self.hits.extend(hits.into_iter().map(|(hit, _)| hit));
        }
        true
    }

    /// Whether all of it is still what counts.
    pub(crate) fn is_current(&self) -> bool {
        let member = &self.member;
        self.entries.iter().all(|&Destaged { key, page, opening, mask }| {
            member.opening_of(page) == opening
                && member.index.get_at(key, page).is_some_and(|entry| entry.dirty() && entry.valid() & mask == mask)
        })
    }
}

impl DestagedList {
    /// The run has been written to the disk.
    pub fn push(&mut self, run: &DirtyRun) {
        for &Destaged { key, page, opening, mask } in &run.entries {
            *self.entries.entry((key, page, opening)).or_insert(0) |= mask;
        }
        self.pins.extend(run.pins.iter().cloned());
        for (seat, places) in &run.mirrors {
            let known = self.mirrors.entry(*seat).or_default();
            places.iter().for_each(|(place, mask)| *known.entry(*place).or_insert(0) |= mask);
        }
    }

    /// Whether nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Which room dirty data may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// That of what goes to the disk instead where there is none.
    New,
    /// It is dirty already, and may go nowhere else before that has been destaged.
    Again,
    /// Another member has it dirty: all there is. Nobody destages while members are made to agree.
    Copy,
}

/// What an entry takes the place of.
#[derive(Default)]
struct Before {
    /// The hits of the version most hit; none: nothing is cached.
    frequency: Option<u8>,
    /// The heads in whose open chunks its dirty versions are.
    open: SmallVec<[HeadKind; 2]>,
}

impl Member {
    /// Segments dirty data may take before writes go to the disk: enough stay for clean data that reclaim always finds
    /// something to give back.
    pub(crate) fn dirty_segments_max(&self) -> usize {
        (self.shape.segments as usize / 2).saturating_sub(2)
    }

    /// The same for data that is dirty already: while its disk is gone, what is overwritten takes segments that only the disk frees. With these,
    /// those being appended to, and those that marks wait for, all are taken.
    fn dirty_again_segments_max(&self) -> usize {
        let others = open_heads(self.shape.segments) - 1 + DIRTY_RESERVE_SEGMENTS;
        (self.shape.segments as usize).saturating_sub(others).max(self.dirty_segments_max())
    }

    pub(crate) fn opening_of(&self, page: Page) -> Opening {
        lock(&self.log).opening_at(page)
    }

    pub(crate) fn send_dirty(self: &Arc<Self>) {
        let mut writes = Vec::new();
        lock(&self.log).push_dirty(&mut writes);
        self.issue(writes);
    }

    /// Name and checksums for the data of one block.
    pub(crate) fn dirty_entry(
        &self,
        (slot, tenant): (DiskSlot, Tenant),
        block: u64,
        mask: u16,
        data: &SharedBufs,
    ) -> Option<NewEntry> {
        let name = self.disk_name(slot)?;
        let first = block * u64::from(self.block_parts);
        let mut sums: SmallVec<[u32; 4]> = SmallVec::new();
        for (k, part) in (0..16).filter(|p| mask >> p & 1 == 1).enumerate() {
            let at = k * PART_BYTES as usize;
            sums.push(name.part_sum(first + part, data.view(at..at + PART_BYTES as usize)));
        }
        let name = BlockName { disk: name.id, generation: name.generation, block };
        Some(NewEntry { key: BlockKey::new(slot, block), name, mask, sums, tenant, frequency: 0 })
    }

    /// Whether dirty data may be taken. `again`: it is dirty already, so that it may go nowhere else before that has been
    /// destaged; it may use more room then. `sure`: an entry of so many pages is certain to find room.
    fn may_take(&self, log: &LogState, again: bool, sure: Option<&NewEntry>) -> bool {
        let segments_max = if again { self.dirty_again_segments_max() } else { self.dirty_segments_max() };
        let crowded = log.dirty_segments() >= segments_max || !again && self.index.is_full();
        let record_bytes = |entry: &NewEntry| dirty_record(EntryKind::Dirty, entry, Position(0)).encoded_bytes();
        let room = sure.is_none_or(|entry| {
            log.surely_takes(HeadKind::Dirty, entry.mask.count_ones(), record_bytes(entry), dirty_reserve(log, again))
        });
        !crowded && room
    }

    /// Append a dirty entry. Where its last page lies. `copied_since`: it is a copy of one of then, which it takes the place of.
    #[expect(clippy::too_many_arguments, reason = "each is another thing")]
    pub(crate) fn append_dirty(
        &self,
        log: &mut LogState,
        kind: EntryKind,
        entry: &NewEntry,
        data: SharedBufs,
        again: bool,
        copied_since: Option<Instant>,
        writes: &mut Vec<LogWrite>,
    ) -> Result<Page, NoSpace> {
        let record = |position| dirty_record(kind, entry, position);
        // A copy is about to free more than it takes.
        let reserve = if copied_since.is_some() { MOVE_RESERVE_SEGMENTS } else { dirty_reserve(log, again) };
        // A block that has lasted is not put among those that are written first, most of which go sooner. Only while that leaves a segment to
        // the other head, which takes whatever comes.
        let record_bytes = record(Position(0)).encoded_bytes();
        let has_own = copied_since.is_some()
            && self.has_classes()
            && log.surely_takes(HeadKind::DirtyLasting, entry.mask.count_ones(), record_bytes, reserve + 1);
        let head = if has_own { HeadKind::DirtyLasting } else { HeadKind::Dirty };
        let before = self.before(log, entry);
        if !self.sabotaged(Sabotage::PredecessorLeftOpen) {
            // Recovery believes the dirty version whose chunk has the highest sequence, and a chunk gets its sequence when it is closed.
            for other in before.open.into_iter().filter(|other| *other != head) {
                log.close_chunk(other, writes);
            }
        }
        let page = log.append_entry(head, &record, data, reserve, writes)?;
        for (k, sum) in entry.sums.iter().enumerate() {
            self.sums[page.0 as usize + k].store(*sum, Ordering::Release);
        }
        let frequency = if copied_since.is_some() { entry.frequency } else { before.frequency.map_or(0, carried) };
        let mut indexed = Entry::new(entry.key, page, entry.mask, frequency, false).of(entry.tenant);
        indexed.set_dirty(true);
        let index = self.index.under(log);
        let since = copied_since.unwrap_or_else(|| self.world.clock.now());
        let inserted = self.dirty.insert(index, indexed, self.segment_of(page), since);
        let dead = inserted.map_err(|_| NoSpace)?.record(self);
        let again: u32 = dead.iter().filter(|killed| killed.dirty).map(|killed| killed.mask.count_ones()).sum();
        if kind == EntryKind::Dirty && copied_since.is_none() {
            add(&self.counters.dirty_overwrites, u64::from(again));
        }
        Ok(Page(page.0 + entry.mask.count_ones() - 1))
    }

    /// What is cached of the parts of an entry that is about to take its place.
    fn before(&self, log: &LogState, entry: &NewEntry) -> Before {
        let mut before = Before::default();
        self.index.visit(entry.key, |e| {
            if e.valid() & entry.mask == 0 {
                return;
            }
            before.frequency = before.frequency.max(Some(e.frequency()));
            if e.dirty() {
                before.open.extend(log.open_chunk_of(e.page()));
            }
        });
        before
    }

    /// Take the data of one block. Where its last page lies.
    pub(crate) fn take_block(
        self: &Arc<Self>,
        kind: EntryKind,
        entry: &NewEntry,
        data: SharedBufs,
        room: Room,
    ) -> Result<Page, DirtyRefused> {
        if self.has_failed() {
            return Err(DirtyRefused::Failed);
        }
        let mut writes = Vec::new();
        let taken = {
            let mut log = lock(&self.log);
            let again = room != Room::New;
            if room == Room::Copy || self.may_take(&log, again, None) {
                self.append_dirty(&mut log, kind, entry, data, again, None, &mut writes)
            } else {
                Err(NoSpace)
            }
        };
        self.issue(writes);
        taken.map_err(|NoSpace| self.refuse_dirty())
    }

    /// Take the data of one block here, and its mirror on another member: both or neither, unless one fails meanwhile.
    /// Where the last page lies on either.
    pub(crate) fn take_block_twice(
        self: &Arc<Self>,
        mirror: &Arc<Member>,
        entry: &NewEntry,
        data: SharedBufs,
        again: bool,
    ) -> Result<(Page, Page), DirtyRefused> {
        if self.has_failed() || mirror.has_failed() {
            return Err(DirtyRefused::Failed);
        }
        let (mut writes, mut mirror_writes) = (Vec::new(), Vec::new());
        let taken = {
            // Always in the same order: two requests may want the same two logs.
            let (mut log, mut mirror_log);
            if self.config.owner.device_id < mirror.config.owner.device_id {
                log = lock(&self.log);
                mirror_log = lock(&mirror.log);
            } else {
                mirror_log = lock(&mirror.log);
                log = lock(&self.log);
            }
            if self.may_take(&log, again, Some(entry)) && mirror.may_take(&mirror_log, again, Some(entry)) {
                // The mirror first: the member that counts never has what the other refuses.
                let second = mirror.append_dirty(
                    &mut mirror_log,
                    EntryKind::Mirror,
                    entry,
                    data.clone(),
                    again,
                    None,
                    &mut mirror_writes,
                );
                second.and_then(|second| {
                    let first = self.append_dirty(&mut log, EntryKind::Dirty, entry, data, again, None, &mut writes)?;
                    Ok((first, second))
                })
            } else {
                Err(NoSpace)
            }
        };
        self.issue(writes);
        mirror.issue(mirror_writes);
        taken.map_err(|NoSpace| if mirror.has_failed() { DirtyRefused::Failed } else { self.refuse_dirty() })
    }

    fn refuse_dirty(&self) -> DirtyRefused {
        add(&self.counters.dirty_skips_space, 1);
        self.config.dirty_wanted.notify_all();
        if self.has_failed() { DirtyRefused::Failed } else { DirtyRefused::NoRoom }
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
    /// stretches, none longer than `run_parts_max`, of the blocks that are `mine`: of others this is the mirror. The block to
    /// go on from, if there are more.
    pub(crate) fn dirty_runs(
        self: &Arc<Self>,
        slot: DiskSlot,
        block: u64,
        limits: RunLimits,
        mine: &dyn Fn(u64) -> bool,
    ) -> (Vec<DirtyRun>, Option<u64>) {
        let mut runs: Vec<DirtyRun> = Vec::new();
        let mut parts = 0;
        let mut next = self.dirty.next(slot, block);
        while let Some(block) = next {
            if !mine(block) {
                next = self.dirty.next(slot, block + 1);
                continue;
            }
            if parts >= limits.parts_max || runs.len() >= limits.runs_max {
                break;
            }
            let key = BlockKey::new(slot, block);
            let first = block * u64::from(self.block_parts);
            for (hit, page) in self.dirty_hits(slot, first..first + u64::from(self.block_parts)) {
                let range = hit.parts();
                let mask = (range.clone().fold(0, |mask, part| mask | 1_u32 << (part - first))) as u16;
                // The hit holds the segment in this life of it.
                let destaged = Destaged { key, page, opening: self.opening_of(page), mask };
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
                        member: self.clone(),
                        hits: SmallVec::from_iter([hit]),
                        entries: SmallVec::from_iter([destaged]),
                        mirrors: SmallVec::new(),
                        pins: Vec::new(),
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

    /// The disk has these entries durably: record that they are clean. Those that were overwritten meanwhile are not looked
    /// for any more.
    pub(crate) fn record_clean(&self, entries: &Places) {
        let mut log = lock(&self.log);
        for (&(key, page, opening), mask) in entries {
            let same_life = log.opening_at(page) == opening;
            let whole = |entry: &Entry| same_life && entry.dirty() && entry.valid() & !mask == 0;
            if let Some(entry) = self.index.get_at(key, page).filter(whole) {
                let record = self.names(&log, page, entry.valid(), true);
                log.append_record(record);
            }
        }
    }

    /// That is durable: call them clean.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn call_clean(self: &Arc<Self>, entries: &Places) -> Result<(), MemberError> {
        let mut cleaned = 0;
        for (&(key, page, opening), mask) in entries {
            let mut pages = 0;
            // The log's lock keeps the segment in this life meanwhile.
            let log = lock(&self.log);
            let same_life = log.opening_at(page) == opening;
            self.index.visit(key, |entry| {
                if same_life && entry.page() == page && entry.dirty() && entry.valid() & !mask == 0 {
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
        if cleaned > 0 && self.config.quotas.any() {
            // What was too much and dirty may leave now.
            self.config.quotas.look();
        }
        add(&self.counters.destages, cleaned);
        add(&self.counters.destage_bytes, cleaned * PART_BYTES);
        self.release_dirty_segments().await.map(|_| ())
    }

    /// Record that mirrors are dead: the disk has them durably.
    pub(crate) fn record_dead(&self, entries: &Places) {
        let mut log = lock(&self.log);
        for (&(key, page, opening), mask) in entries {
            let same_life = log.opening_at(page) == opening;
            let dying = |entry: &Entry| same_life && entry.dirty() && entry.valid() & mask != 0;
            if let Some(entry) = self.index.get_at(key, page).filter(dying) {
                let record = self.names(&log, page, entry.valid() & mask, false);
                log.append_record(record);
            }
        }
    }

    /// That is durable: forget them.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn forget_dead(self: &Arc<Self>, entries: &Places) -> Result<(), MemberError> {
        self.forget(entries);
        self.release_dirty_segments().await.map(|_| ())
    }

    /// Dirty parts end in the index.
    pub(crate) fn forget(&self, entries: &Places) {
        for (&(key, page, opening), &mask) in entries {
            let pages = {
                // The log's lock keeps the segment in this life meanwhile.
                let mut log = lock(&self.log);
                let same_life = log.opening_at(page) == opening;
                // Their death is said already.
                let ended = same_life.then(|| self.index.under(&mut log).cut_at(key, page, mask).unsaid());
                ended.into_iter().flatten().map(|killed| killed.mask.count_ones()).sum()
            };
            if pages > 0 {
                self.dirty.leave(self.segment_of(page), pages);
                self.dirty.settle(&self.index, key);
            }
        }
    }

    /// Whose the dirty parts of a block are.
    pub(crate) fn dirty_tenant(&self, key: BlockKey, mask: u16) -> Option<Tenant> {
        let mut found = None;
        self.index.visit(key, |entry| {
            if entry.dirty() && entry.valid() & mask != 0 {
                found = Some(entry.tenant());
            }
        });
        found
    }

    /// Where parts of a block are dirty.
    pub(crate) fn dirty_places(&self, key: BlockKey, mask: u16) -> Places {
        let mut found: SmallVec<[(Page, u16); 2]> = SmallVec::new();
        self.index.visit(key, |entry| {
            if entry.dirty() && entry.valid() & mask != 0 {
                found.push((entry.page(), entry.valid() & mask));
            }
        });
        found.into_iter().map(|(page, mask)| ((key, page, self.opening_of(page)), mask)).collect()
    }

    /// The same, held there against cleaning; none where one of them is being copied.
    pub(crate) fn held_dirty_places(self: &Arc<Self>, key: BlockKey, mask: u16) -> Option<(Places, Vec<Arc<Pin>>)> {
        let mut pins = Vec::new();
        let mut places = Places::new();
        let mut is_moving = false;
        {
            // Cleaning takes a segment that nobody holds under this lock.
            let log = lock(&self.log);
            self.index.visit(key, |entry| {
                if entry.dirty() && entry.valid() & mask != 0 {
                    let segment = self.segment_of(entry.page());
                    is_moving |= log.segments[segment.0 as usize].state == SegmentState::Reclaiming;
                    pins.push(Arc::new(Pin::new(self, segment)));
                    places.insert((key, entry.page(), log.opening_at(entry.page())), entry.valid() & mask);
                }
            });
        }
        (!is_moving).then_some((places, pins))
    }

    /// Wait until none of what is dirty in these blocks is being copied. For who holds the range: copies wait for nobody.
    pub(crate) async fn wait_while_copied(&self, keys: impl Iterator<Item = BlockKey> + Clone) {
        loop {
            let ticket = self.changed.ticket();
            if self.has_failed() || !keys.clone().any(|key| self.is_copied(key)) {
                return;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Whether something of a block is dirty in a segment that is being cleaned.
    fn is_copied(&self, key: BlockKey) -> bool {
        let log = lock(&self.log);
        let mut found = false;
        self.index.visit(key, |entry| {
            let state = log.segments[self.segment_of(entry.page()).0 as usize].state;
            found |= entry.dirty() && state == SegmentState::Reclaiming;
        });
        found
    }

    /// The checksum of a part that is dirty here.
    pub(crate) fn dirty_crc(&self, key: BlockKey, part: u32) -> Option<u32> {
        let mut found = None;
        self.index.visit(key, |entry| {
            if entry.dirty() && entry.valid() >> part & 1 == 1 {
                found = Some(self.sums[entry.page_of_part(part).0 as usize].load(Ordering::Acquire));
            }
        });
        found
    }

    /// Segments of the dirty head that hold no dirty page any more become segments like others, unless somebody still reads them:
    /// an epoch holds what it was cut from until its disk has it, which may be for as long as that disk is gone, and
    /// reclaim would wait for it. Whether there were any.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn release_dirty_segments(self: &Arc<Self>) -> Result<bool, MemberError> {
        let (ready, superseded_at) = {
            let log = lock(&self.log);
            let is_ready = |&(id, _): &(SegmentId, HeadKind)| !self.dirty.holds(id) && !self.is_pinned(id);
            let ready: Vec<(SegmentId, HeadKind)> = log.sealed_dirty().filter(is_ready).collect();
            let superseded_at = ready.iter().map(|&(id, _)| log.superseded_at(id)).max();
            (ready, superseded_at.unwrap_or(0))
        };
        if ready.is_empty() {
            return Ok(false);
        }
        // Reclaim waits for that before it frees one; here room is not as short.
        self.sync_through(superseded_at, Need::Destage).await?;
        {
            let mut log = lock(&self.log);
            for (id, head) in ready {
                log.change_head(id, head, HeadKind::Small);
            }
        }
        self.changed.notify_all();
        Ok(true)
    }

    /// Walks over every block that is dirty.
    pub(crate) fn dirty_of(&self, slot: DiskSlot) -> DirtyOfDisk {
        let (mut parts, mut segments) = (0, BTreeSet::new());
        for key in self.dirty.blocks(slot) {
            self.index.visit(key, |entry| {
                if entry.dirty() {
                    parts += u64::from(entry.valid().count_ones());
                    segments.insert(self.segment_of(entry.page()));
                }
            });
        }
        let oldest = segments.into_iter().filter_map(|segment| self.dirty.since(segment, slot)).min();
        DirtyOfDisk { bytes: parts * PART_BYTES, oldest }
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

    /// Whether so much is dirty that it should go to the disk now: in a quarter of the segments.
    #[must_use]
    pub fn is_crowded_with_dirty(&self) -> bool {
        let log = lock(&self.log);
        log.dirty_segments() >= self.dirty_segments_max() / 2
    }

    /// Whether so much is dirty that it should go to the disk before that comes to be: in an eighth of the segments.
    #[must_use]
    pub fn is_filling_with_dirty(&self) -> bool {
        let log = lock(&self.log);
        log.dirty_segments() >= (self.dirty_segments_max() / 4).max(1)
    }
}

/// The dirty data of one grid disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyOfDisk {
    /// Of blocks with several parts, those that are dirty.
    pub bytes: u64,
    /// When the oldest of them was acknowledged, at the latest.
    pub oldest: Option<device::Instant>,
}

/// The longest record of a dirty block: its fixed bytes and a checksum for each of 16 parts.
pub(crate) const DIRTY_RECORD_BYTES_MAX: usize = 28 + 4 * 16;

/// Free segments that dirty data leaves; what is dirty already may use one more.
pub(crate) fn dirty_reserve(log: &LogState, again: bool) -> usize {
    log.left_by(HeadKind::Dirty, DIRTY_RESERVE_SEGMENTS + usize::from(!again))
}

fn dirty_record(kind: EntryKind, entry: &NewEntry, position: Position) -> Record {
    Record::Entry { kind, name: entry.name, mask: entry.mask, position, sums: entry.sums.clone() }
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
