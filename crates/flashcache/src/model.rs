//! A member without data: who is cached, what is written for it, what cleaning copies, for replays of traces.
//!
//! Victims, ages, lifetimes, the count of what counts and the policy are the cache's own ([`LogState`], [`Live`], [`Lifetimes`],
//! [`Policy`], [`Meter`]); what is here is the order in which reclaim asks them. `crates/lab/tests/policies_engine.rs` holds it against a
//! cell. It has no time: what waits for a moment in a cell happens at once, chunks close when they are full or a record needs them, and marks
//! of regions are not written. Records that reclaim carries on are not counted.

use crate::admission::lifetimes::{Lifetimes, Overwritten};
use crate::admission::meter::Meter;
use crate::admission::policy::{
    Admission, CacheShape, HeadPages, Judgement, KEEPS_MAX, MOVED_QUARTERS_MAX, Policy, Resident, Verdict, carried,
};
use crate::base::units::{BlockKey, DiskSlot, Opening, Page, SegmentId};
use crate::data::reclaim::must_give_up;
use crate::format::{HeadKind, Owner};
use crate::index::Entry;
use crate::index::live::Live;
use crate::log::sizing::free_segments_low;
use crate::log::sizing::{has_classes, open_heads};
use crate::log::{FILL_RESERVE_SEGMENTS, LogState, MOVE_RESERVE_SEGMENTS, SegmentState, Shape, WRITE_RESERVE_SEGMENTS};
use device::Prng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// As `copy.rs` has it: held against it by a test.
const EVICTED_ABOVE_PERCENT: u64 = 89;
/// Bytes of the record of a death, of a free segment, of a segment kept.
const DEATH_BYTES: usize = 20;
const FREE_BYTES: usize = 16;
const KEPT_BYTES: usize = 24;
/// Parts of an entry of the index.
const ENTRY_PARTS_MAX: u32 = 16;

/// Pages written, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenPages {
    /// Blocks that were not cached.
    pub fills: u64,
    /// Blocks that were, and were written by a client.
    pub overwrites: u64,
    /// Blocks written again at reclaim.
    pub copies: u64,
    /// Headers, footers and padding.
    pub headers: u64,
}

impl WrittenPages {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.fills + self.overwrites + self.copies + self.headers
    }
}

/// How a cache is cut.
#[derive(Clone, Copy, Debug)]
pub struct ModelShape {
    /// As the policy is told.
    pub cache: CacheShape,
    /// Bytes of a segment that is laid out for real, with true pages of so many bytes. `None`: a scale model, whose headers and footers are
    /// in the proportion of `cache`.
    pub real: Option<(u32, u32)>,
}

impl ModelShape {
    fn open_heads(&self) -> u64 {
        open_heads(self.cache.segments) as u64
    }

    /// Pages that may count without anything having to leave: 85 % of the flash.
    #[must_use]
    pub fn roomy_pages(&self) -> u64 {
        let held = u64::from(free_segments_low(self.cache.segments)) + self.open_heads();
        let segments = u64::from(self.cache.segments).saturating_sub(held);
        segments * u64::from(self.cache.segment_data_pages) * EVICTED_ABOVE_PERCENT / 100
    }

    /// The same in whole blocks, of which cleaning keeps each.
    #[must_use]
    pub fn roomy_blocks(&self) -> u64 {
        (self.roomy_pages() / u64::from(self.cache.block_pages)).saturating_sub(1).max(1)
    }
}

#[derive(Debug)]
struct Open {
    id: SegmentId,
    /// Pages of data appended.
    data: u32,
    meter: Option<Meter>,
}

/// Why a block is appended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Fill,
    Overwrite,
    Copy,
}

const NOWHERE: u32 = u32::MAX;

/// See the module.
pub struct LogModel {
    policy: Arc<dyn Policy>,
    shape: ModelShape,
    log: LogState,
    live: Live,
    lifetimes: Lifetimes,
    low: usize,
    open: [Option<Open>; HeadKind::COUNT],
    /// By segment: what was appended, the block and its first page.
    appended: Vec<Vec<(u32, Page)>>,
    /// By block: its first page, how often it was hit.
    at: Vec<u32>,
    frequency: Vec<u8>,
    sequence: Arc<AtomicU64>,
    /// Bytes of records that wait for a header.
    waiting_bytes: usize,
    written: WrittenPages,
    evictions: u64,
}

impl LogModel {
    /// An empty cache for blocks numbered below `distinct`.
    ///
    /// # Panics
    /// When there are as many pages as numbers for them.
    #[must_use]
    pub fn new(policy: Arc<dyn Policy>, shape: ModelShape, distinct: u32) -> LogModel {
        let (segments, segment_pages, align) = match shape.real {
            Some((segment_bytes, page_bytes)) => {
                (shape.cache.segments, segment_bytes / 4096, (page_bytes / 4096).max(1))
            }
            None => (shape.cache.segments, shape.cache.segment_data_pages, 1),
        };
        assert!(u64::from(segments) * u64::from(segment_pages) < u64::from(NOWHERE), "pages have numbers");
        let owner = Owner { cell_id: 0, device_id: 0, era: 0 };
        let sequence = Arc::new(AtomicU64::new(1));
        let log_shape = Shape { segments, segment_pages, align };
        let mut log = LogState::new(log_shape, owner, 1, sequence.clone(), Prng::new(1));
        log.free.extend((0..segments).map(SegmentId));
        LogModel {
            policy,
            log,
            live: Live::new(segments, segment_pages),
            lifetimes: Lifetimes::new(u64::from(segments) * u64::from(segment_pages)),
            low: free_segments_low(segments) as usize,
            open: Default::default(),
            appended: vec![Vec::new(); segments as usize],
            at: vec![NOWHERE; distinct as usize],
            frequency: vec![0; distinct as usize],
            sequence,
            waiting_bytes: 0,
            written: WrittenPages::default(),
            evictions: 0,
            shape,
        }
    }

    /// Pages written for what has been sealed and for what is open.
    #[must_use]
    pub fn written(&self) -> WrittenPages {
        let mut written = self.written;
        for open in self.open.iter().flatten() {
            written.headers += match &open.meter {
                Some(meter) => {
                    u64::from(meter.written_pages() + meter.open_pages()).saturating_sub(u64::from(open.data))
                }
                None => self.headers_of(open.data),
            };
        }
        written
    }

    /// In a scale model.
    fn headers_of(&self, data: u32) -> u64 {
        let CacheShape { segment_data_pages, segment_written_pages, .. } = self.shape.cache;
        u64::from(data) * u64::from(segment_written_pages - segment_data_pages) / u64::from(segment_data_pages)
    }

    /// Blocks that left at reclaim.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Whether a block is cached.
    #[must_use]
    pub fn holds(&self, block: u32) -> bool {
        self.at[block as usize] != NOWHERE
    }

    /// Whether less of the flash counts than may: nothing has to leave for what comes.
    #[must_use]
    pub fn is_roomy(&self) -> bool {
        let held = self.low + open_heads(self.shape.cache.segments);
        let segments = (self.shape.cache.segments as usize).saturating_sub(held) as u64;
        self.live.pages() * 100 < segments * u64::from(self.shape.cache.segment_data_pages) * EVICTED_ABOVE_PERCENT
    }

    /// A client reads a block: it is brought in if the policy says so. Whether it was there.
    pub fn read(&mut self, block: u32) -> bool {
        if self.holds(block) {
            let frequency = &mut self.frequency[block as usize];
            *frequency = (*frequency + 1).min(3);
            self.policy.hit(key(block));
            return true;
        }
        self.fill(block, None, Cause::Fill);
        false
    }

    /// A client writes a block: what was cached of it is garbage, and it is offered anew. Whether it was there.
    pub fn write(&mut self, block: u32) -> bool {
        let there = self.holds(block);
        if there {
            let frequency = self.frequency[block as usize];
            self.end(block);
            self.policy.overwritten(key(block), frequency);
        }
        let overwrites = self.lifetimes.take(key(block));
        self.fill(block, overwrites, if there { Cause::Overwrite } else { Cause::Fill });
        there
    }

    /// A policy of whole blocks wants a block here, whose data is at hand or written by a client.
    pub fn put(&mut self, block: u32) {
        let there = self.holds(block);
        if there {
            self.end(block);
        }
        let class = self.lifetimes.take(key(block)).map(|overwritten| overwritten.class);
        let head = self.class_or(class, HeadKind::Small);
        self.append(block, 0, head, FILL_RESERVE_SEGMENTS, if there { Cause::Overwrite } else { Cause::Fill });
        self.reclaim();
    }

    /// The same wants it to leave.
    pub fn remove(&mut self, block: u32) {
        if self.holds(block) {
            self.end(block);
            // It did not end since it was overwritten.
            let _ = self.lifetimes.take(key(block));
        }
    }

    /// What was cached of a block is garbage.
    fn end(&mut self, block: u32) {
        let page = Page(self.at[block as usize]);
        self.lifetimes.ended(key(block), self.log.age_of(page), self.frequency[block as usize]);
        self.count(block, page, false);
        self.at[block as usize] = NOWHERE;
        self.waiting_bytes += DEATH_BYTES;
    }

    fn count(&self, block: u32, page: Page, live: bool) {
        let pages = self.shape.cache.block_pages;
        for first in (0..pages).step_by(ENTRY_PARTS_MAX as usize) {
            let mask = ((1_u32 << (pages - first).min(ENTRY_PARTS_MAX)) - 1) as u16;
            let entry = Entry::new(key(block), Page(page.0 + first), mask, 0, false);
            if live { self.live.begin(&entry, mask) } else { self.live.end(&entry, mask) }
        }
    }

    fn class(&self, head: HeadKind) -> HeadKind {
        if has_classes(self.shape.cache.segments) { head } else { head.side().unwrap_or(head) }
    }

    fn class_or(&self, class: Option<HeadKind>, head: HeadKind) -> HeadKind {
        class.filter(|_| has_classes(self.shape.cache.segments)).unwrap_or(head)
    }

    fn fill(&mut self, block: u32, overwrites: Option<Overwritten>, cause: Cause) {
        let class = overwrites.map(|overwritten| overwritten.class);
        let head = match self.policy.admit(key(block), self.shape.cache.block_pages, overwrites.is_some()) {
            Admission::To(head) => self.class_or(class, head),
            // It displaces nothing.
            Admission::Refuse if self.is_roomy() => self.class_or(class, HeadKind::Small),
            Admission::Refuse => return,
        };
        // As the cache does: without a segment to spare a fill is skipped.
        let frequency = overwrites.map_or(0, |overwritten| carried(overwritten.frequency));
        self.append(block, frequency, head, FILL_RESERVE_SEGMENTS, cause);
        self.reclaim();
    }

    /// Whether there was room.
    fn append(&mut self, block: u32, frequency: u8, head: HeadKind, reserve: usize, cause: Cause) -> bool {
        let CacheShape { block_pages, segment_data_pages, .. } = self.shape.cache;
        if let Some(open) = &mut self.open[head as usize] {
            let takes = match &mut open.meter {
                Some(meter) => meter.append_with(block_pages, &mut self.waiting_bytes),
                None => open.data + block_pages <= segment_data_pages,
            };
            if !takes {
                self.seal(head);
            }
        }
        if self.open[head as usize].is_none() {
            let small_is_closed = head != HeadKind::Small && self.open[HeadKind::Small as usize].is_none();
            let left = reserve + usize::from(cause != Cause::Copy && small_is_closed);
            if self.log.free.len() <= left {
                return false;
            }
            let Some(id) = self.log.free.pop_front() else { return false };
            self.log.set_state(id, SegmentState::Open(head));
            let segment = &mut self.log.segments[id.0 as usize];
            (segment.opening, segment.kept_at, segment.last_sequence) = (Opening::new(1, 1), 0, 0);
            let mut meter = self.shape.real.map(|(segment, page)| Meter::new(segment, page));
            if let Some(meter) = &mut meter {
                assert!(meter.append_with(block_pages, &mut self.waiting_bytes), "an empty segment takes a block");
            }
            self.open[head as usize] = Some(Open { id, data: 0, meter });
        }
        let Some(open) = &mut self.open[head as usize] else { unreachable!("just opened") };
        let page = self.log.shape.page(open.id, open.data);
        open.data += block_pages;
        self.log.clock += u64::from(block_pages);
        self.appended[open.id.0 as usize].push((block, page));
        self.at[block as usize] = page.0;
        self.frequency[block as usize] = frequency;
        self.count(block, page, true);
        *match cause {
            Cause::Fill => &mut self.written.fills,
            Cause::Overwrite => &mut self.written.overwrites,
            Cause::Copy => &mut self.written.copies,
        } += u64::from(block_pages);
        true
    }

    fn seal(&mut self, head: HeadKind) {
        let Some(Open { id, data, mut meter }) = self.open[head as usize].take() else { return };
        self.written.headers += match &mut meter {
            Some(meter) => u64::from(meter.seal_with(&mut self.waiting_bytes) - data),
            None => self.headers_of(data),
        };
        self.log.set_state(id, SegmentState::Sealed(head));
        let clock = self.log.clock;
        let segment = &mut self.log.segments[id.0 as usize];
        (segment.full_at, segment.left_with) = (clock, None);
        segment.last_sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        self.log.sealed[head as usize].push_back(id);
    }

    /// Keep segments free.
    fn reclaim(&mut self) {
        while self.log.free.len() <= self.low && self.reclaim_one() {}
    }

    fn reclaim_one(&mut self) -> bool {
        if let Some((id, head)) = self.take_garbage() {
            let copied = self.class(head.copied());
            let living = self.living(id);
            for (block, page) in living {
                self.copy(block, page, copied, self.frequency[block as usize]);
            }
            self.free(id);
            return true;
        }
        let classes = has_classes(self.shape.cache.segments);
        if classes && self.is_roomy() && self.log.free.len() > WRITE_RESERVE_SEGMENTS {
            return false;
        }
        for keeps in 0..=KEEPS_MAX {
            match self.look_at_one(keeps) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        unreachable!("the last segment looked at is not kept")
    }

    fn take_garbage(&mut self) -> Option<(SegmentId, HeadKind)> {
        let data_pages = self.shape.cache.segment_data_pages;
        let (id, head) = self.log.most_worth_cleaning(&self.live, data_pages, &|_, _| true)?;
        let copied = self.live.of(id);
        let pays = self.is_roomy() || copied <= data_pages / 2;
        let free = self.log.free.len().saturating_sub(MOVE_RESERVE_SEGMENTS) as u64;
        if !pays || u64::from(copied) > free * u64::from(data_pages) || !self.log.take(id, head) {
            return None;
        }
        let age = self.log.clock.saturating_sub(self.log.segments[id.0 as usize].full_at);
        if matches!(head, HeadKind::Hot | HeadKind::Warm | HeadKind::Small) {
            self.lifetimes.cleaned(age);
        }
        Some((id, head))
    }

    /// What of a segment counts.
    fn living(&self, id: SegmentId) -> Vec<(u32, Page)> {
        let appended = self.appended[id.0 as usize].iter().copied();
        appended.filter(|(block, page)| self.at[*block as usize] == page.0).collect()
    }

    /// Write a block again, where it is wanted or where there is room.
    fn copy(&mut self, block: u32, from: Page, head: HeadKind, frequency: u8) {
        let others = HeadKind::ALL.into_iter().filter(|other| other.side().is_some());
        for head in std::iter::once(head).chain(others) {
            if self.append(block, frequency, head, MOVE_RESERVE_SEGMENTS, Cause::Copy) {
                self.count(block, from, false);
                self.waiting_bytes += DEATH_BYTES;
                return;
            }
        }
    }

    /// Whether a segment came free; none: there is none to look at.
    fn look_at_one(&mut self, keeps: u32) -> Option<bool> {
        let must = must_give_up(self.log.free.len(), keeps);
        let wanted = self.policy.victim(self.held(), must);
        let other = if wanted == HeadKind::Small { HeadKind::Main } else { HeadKind::Small };
        let (side, id) = match self.log.take_victim(wanted) {
            Some(id) => (wanted, id),
            None => (other, self.log.take_victim(other)?),
        };
        let living = self.living(id);
        let block_pages = self.shape.cache.block_pages;
        let resident = |(block, _): &(u32, Page)| Resident {
            key: key(*block),
            frequency: self.frequency[*block as usize],
            pages: block_pages,
        };
        let residents: Vec<Resident> = living.iter().map(resident).collect();
        let verdicts = match self.policy.judge(side, self.held(), &residents, must) {
            Judgement::Keep(_) if must => Vec::new(),
            Judgement::Keep(head) => {
                for (block, _) in living {
                    let frequency = &mut self.frequency[block as usize];
                    *frequency = frequency.saturating_sub(1);
                }
                self.keep(id, head);
                return Some(false);
            }
            Judgement::Reclaim(verdicts) => verdicts,
        };
        let scarce = self.log.free.len() <= WRITE_RESERVE_SEGMENTS;
        let mut room = if scarce { 0 } else { self.log.shape.segment_pages / 4 * MOVED_QUARTERS_MAX };
        let verdicts = verdicts.into_iter().chain(std::iter::repeat(Verdict::Evict));
        for ((block, page), verdict) in living.into_iter().zip(verdicts) {
            if let Verdict::Move(head, frequency) = verdict
                && block_pages <= room
            {
                room -= block_pages;
                self.copy(block, page, head, frequency);
            }
        }
        self.free(id);
        Some(true)
    }

    fn held(&self) -> HeadPages {
        let pages = |side: HeadKind| {
            let of = |head: &HeadKind| {
                let open = u64::from(self.open[*head as usize].is_some());
                (self.log.sealed[*head as usize].len() as u64 + open) * u64::from(self.log.shape.segment_pages)
            };
            HeadKind::ALL.iter().filter(|head| head.side() == Some(side)).map(of).sum()
        };
        HeadPages { small: pages(HeadKind::Small), main: pages(HeadKind::Main) }
    }

    /// A segment stays, as the youngest of a head.
    fn keep(&mut self, id: SegmentId, head: HeadKind) {
        self.log.set_state(id, SegmentState::Sealed(head));
        self.log.segments[id.0 as usize].kept_at = self.sequence.load(Ordering::Relaxed);
        self.log.sealed[head as usize].push_back(id);
        self.waiting_bytes += KEPT_BYTES;
    }

    /// What is left in a segment leaves, and its space is free, once that is durable.
    fn free(&mut self, id: SegmentId) {
        for (block, page) in self.living(id) {
            self.count(block, page, false);
            self.at[block as usize] = NOWHERE;
            self.evictions += 1;
        }
        self.appended[id.0 as usize].clear();
        self.waiting_bytes += FREE_BYTES;
        self.close_for_records();
        self.log.release(id);
    }

    /// Close as many chunks, the fullest first, as the records that wait need.
    fn close_for_records(&mut self) {
        if self.shape.real.is_none() {
            // A header, of the model's size.
            self.written.headers += 1;
            self.waiting_bytes = 0;
            return;
        }
        while self.waiting_bytes > 0 {
            let held = |head: &HeadKind| {
                let meter = self.open[*head as usize].as_ref()?.meter.as_ref()?;
                (meter.open_pages() > 0).then_some((meter.open_pages(), *head))
            };
            let fullest = HeadKind::ALL.iter().filter_map(held).max_by_key(|(pages, _)| *pages);
            let meter = fullest.and_then(|(_, head)| self.open[head as usize].as_mut()?.meter.as_mut());
            let Some(meter) = meter else {
                // A chunk of nothing else.
                self.written.headers += u64::from(self.log.shape.align);
                self.waiting_bytes = self.waiting_bytes.saturating_sub(self.log.shape.header_capacity());
                continue;
            };
            meter.close_with(&mut self.waiting_bytes);
        }
    }
}

fn key(block: u32) -> BlockKey {
    BlockKey::new(DiskSlot(0), u64::from(block))
}

impl std::fmt::Debug for LogModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogModel({:?}, {:?})", self.shape, self.log)
    }
}
