//! Cleaning: which segment to clean, where what it holds goes, and the copies.
//!
//! While what counts is below [`EVICTED_ABOVE_PERCENT`] of the flash, garbage alone makes room: the segment that gains most is cleaned, and
//! everything in it that counts is written again, apart by how often it has been. Nothing is evicted, but where an endurance budget is low.
//! Above, the policy decides who goes, but a segment that is mostly garbage is cleaned all the same. Never waits for a range: before it
//! moves an entry it looks whether the entry is still what it read.

use crate::admission::governor::{Allowance, admits};
use crate::base::counters::add;
use crate::base::mechanism::Mechanism;
use crate::base::units::{BlockKey, PART_BYTES, Page, SegmentId};
use crate::data::fill::NewEntry;
use crate::format::{BlockName, EntryKind, HeadKind, Record, part_sum};
use crate::index::{Entry, Killed, KilledList};
use crate::log::sizing::has_classes;
use crate::log::sizing::open_heads;
use crate::log::{LogState, MOVE_RESERVE_SEGMENTS, WRITE_RESERVE_SEGMENTS};
use crate::member::health::Trouble;
use crate::member::{Member, MemberError};
use device::sync::lock;
use device::{Buf, Bufs, Outcome};
use futures_util::StreamExt;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Above so much of what the flash can hold beside headers, the segments kept free and those being appended to, what counts may be evicted: cleaning writes more and
/// more for each page it gains. That is 85 % of a flash of 8 GB or more, 83 % of 800 MB, 76 % of 256 MB.
const EVICTED_ABOVE_PERCENT: u64 = 89;
/// Runs read at a time, and the most pages of one: 256 KiB.
const READS_IN_FLIGHT_MAX: usize = 4;
const RUN_PAGES_MAX: u32 = 64;
/// So many pages nobody wants are read rather than a run ended: half of what the next request would cost.
const RUN_GAP_MAX: u32 = 8;

/// A block that is to be written again.
pub(crate) struct Candidate {
    /// As which it is written: what is dirty stays so.
    pub(crate) kind: EntryKind,
    pub(crate) name: BlockName,
    pub(crate) key: BlockKey,
    pub(crate) entry: Entry,
    pub(crate) frequency: u8,
    pub(crate) head: HeadKind,
    /// It is KEEP data that counts as other data until it is hit.
    pub(crate) aged: bool,
}

/// What of a segment counts: KEEP data, other clean data, and what is dirty, with the kind of its record.
#[derive(Default)]
pub(crate) struct Residents {
    pub(crate) kept: Vec<(BlockName, Entry)>,
    pub(crate) others: Vec<(BlockName, Entry)>,
    pub(crate) dirty: Vec<(BlockName, Entry, EntryKind)>,
}

/// Blocks that are read together.
struct Run {
    pages: Range<u32>,
    candidates: Vec<Candidate>,
}

/// Blocks in as few reads as may be.
fn runs_of(mut candidates: Vec<Candidate>) -> Vec<Run> {
    candidates.sort_unstable_by_key(|candidate| candidate.entry.page());
    let mut runs: Vec<Run> = Vec::new();
    for candidate in candidates {
        let first = candidate.entry.page().0;
        let end = first + candidate.entry.mask().count_ones();
        match runs.last_mut() {
            Some(run) if first <= run.pages.end + RUN_GAP_MAX && end <= run.pages.start + RUN_PAGES_MAX => {
                run.pages.end = run.pages.end.max(end);
                run.candidates.push(candidate);
            }
            _ => runs.push(Run { pages: first..end, candidates: vec![candidate] }),
        }
    }
    runs
}

impl Member {
    /// Whether less of the flash counts than may: nothing has to leave for what comes.
    pub(crate) fn is_roomy(&self) -> bool {
        let held = self.free_segments_low() + open_heads(self.shape.segments);
        let segments = (self.shape.segments as usize).saturating_sub(held) as u64;
        self.live.pages() * 100 < segments * u64::from(self.cache_shape.segment_data_pages) * EVICTED_ABOVE_PERCENT
    }

    /// Whether an experiment has taken this away.
    pub(crate) fn is_without(&self, mechanism: Mechanism) -> bool {
        self.config.without == Some(mechanism)
    }

    /// Whether it keeps what it writes apart by how long it lasts.
    pub(crate) fn has_classes(&self) -> bool {
        has_classes(self.shape.segments) && !self.is_without(Mechanism::Lifetimes)
    }

    /// The head for blocks of a class, which is one of the two clean ones in a small cache.
    pub(crate) fn class(&self, head: HeadKind) -> HeadKind {
        if self.has_classes() { head } else { head.side().unwrap_or(head) }
    }

    /// The class of a block that is overwritten, or where the policy wants it: in a small cache, and where no class is known.
    pub(crate) fn class_or(&self, class: Option<HeadKind>, head: HeadKind) -> HeadKind {
        class.filter(|_| self.has_classes()).unwrap_or(head)
    }

    /// Take the segment that cleaning gains most from as a victim, if it is worth it, its copies have room, and there is a budget for them.
    pub(crate) fn take_garbage(&self) -> Option<(SegmentId, HeadKind)> {
        if self.is_without(Mechanism::Cleaning) {
            return None;
        }
        self.take_worth_cleaning(&mut lock(&self.log), &|_| true)
    }

    /// There is garbage, and whoever holds its segments lets go of them soon: nothing that counts has to leave meanwhile, as long as writers
    /// have room.
    pub(crate) fn garbage_is_held(&self) -> bool {
        has_classes(self.shape.segments)
            && !self.is_without(Mechanism::Cleaning)
            && self.is_roomy()
            && admits(self.allowance(), HeadKind::Warm)
            && lock(&self.log).free.len() > WRITE_RESERVE_SEGMENTS
    }

    /// The same of dirty data, when that has about as many segments as it may have, most of which is garbage: it takes no more then.
    pub(crate) fn take_sparse_dirty(&self) -> Option<(SegmentId, HeadKind)> {
        let mut log = lock(&self.log);
        let held = log.dirty_segments();
        let is_much = held >= self.dirty_segments_max() / 4 * 3;
        let is_sparse = self.dirty.pages() < held as u64 * u64::from(self.cache_shape.segment_data_pages) / 2;
        if !is_much || !is_sparse {
            return None;
        }
        self.take_worth_cleaning(&mut log, &HeadKind::is_dirty)
    }

    fn take_worth_cleaning(
        &self,
        log: &mut LogState,
        wanted: &dyn Fn(HeadKind) -> bool,
    ) -> Option<(SegmentId, HeadKind)> {
        // Copies of dirty data wait for nobody, and whoever reads from its segment may do so for long.
        let takes_dirty =
            log.free.len() > WRITE_RESERVE_SEGMENTS && !self.stopping.load(Ordering::Acquire) && !self.is_mirrored();
        let may = |id, head| wanted(head) && (!head.is_dirty() || takes_dirty && !self.is_pinned(id));
        let (id, head) = log.most_worth_cleaning(&self.live, self.cache_shape.segment_data_pages, &may)?;
        let copied = self.live.of(id);
        if copied > 0 && !admits(self.allowance(), HeadKind::Warm) {
            return None;
        }
        let pays = self.is_roomy() || copied <= self.cache_shape.segment_data_pages / 2;
        let free = log.free.len().saturating_sub(MOVE_RESERVE_SEGMENTS) as u64;
        let room = free * u64::from(self.cache_shape.segment_data_pages);
        if !pays || u64::from(copied) > room || !log.take(id, head) {
            return None;
        }
        let age = log.clock.saturating_sub(log.segments[id.0 as usize].full_at);
        if matches!(head, HeadKind::Hot | HeadKind::Warm | HeadKind::Small) {
            self.lifetimes.cleaned(age);
        }
        add(&self.counters.cleans, 1);
        Some((id, head))
    }

    /// All that a segment of head `from` holds, to be written again: KEEP data at its head as far as its share goes.
    pub(crate) fn copies(&self, from: HeadKind, residents: Residents, aged: bool) -> Vec<Candidate> {
        let Residents { kept, others, dirty } = residents;
        let mut claims = self.claims();
        let keep_head = if from != HeadKind::Keep && self.keep_is_full() { HeadKind::Warm } else { HeadKind::Keep };
        let kept = kept.into_iter().map(|(name, entry)| (name, entry, keep_head, entry.aged()));
        let others = others.into_iter().map(|(name, entry)| (name, entry, from.copied(), entry.aged() || aged));
        // Its copies had a budget when the segment was chosen.
        let allowance = self.allowance().max(Allowance::Returning);
        let stays = |(_, entry, head, _): &(BlockName, Entry, HeadKind, bool)| {
            // What a database has beyond what the I/O plan lets it have leaves.
            if claims.as_mut().is_some_and(|claims| claims.takes_excess(entry)) {
                return false;
            }
            let earned = *head == HeadKind::Keep || self.earned(entry.key(), entry.valid(), allowance);
            let leaves = !earned && claims.as_mut().is_none_or(|claims| claims.takes_spare(entry));
            if leaves {
                self.refuse_copy(entry.key(), 0);
            }
            !leaves
        };
        let candidate = |(name, entry, head, aged): (BlockName, Entry, HeadKind, bool)| {
            let head = if head == HeadKind::Keep { head } else { self.class(head) };
            let (kind, frequency) = (EntryKind::Clean, entry.frequency());
            Candidate { kind, name, key: entry.key(), entry, frequency, head, aged }
        };
        let clean = kept.chain(others).filter(stays).map(candidate);
        let dirty = dirty.into_iter().map(|(name, entry, kind)| {
            // For what has become clean until it is copied; what is dirty has a head of its own.
            let head = self.class(from.copied());
            Candidate { kind, name, key: entry.key(), entry, frequency: entry.frequency(), head, aged: false }
        });
        clean.chain(dirty).collect()
    }

    /// Write these blocks again. They are read in runs, several at a time.
    pub(crate) async fn copy_all(self: &Arc<Self>, moved: Vec<Candidate>) -> Result<(), MemberError> {
        let reads = runs_of(moved).into_iter().map(|run| async move {
            let bytes = run.pages.clone().count() * PART_BYTES as usize;
            // From the heap: reclaim must not depend on staging memory that waits for reclaim.
            let bufs = Bufs::from(Buf::zeroed(bytes));
            let bufs = self.read_to_copy(self.device_offset(Page(run.pages.start)), bufs).await?;
            Ok::<_, MemberError>((run, bufs))
        });
        let mut reads = futures_util::stream::iter(reads).buffered(READS_IN_FLIGHT_MAX);
        while let Some(read) = reads.next().await {
            let (run, bufs) = read?;
            for candidate in run.candidates {
                let first = candidate.entry.page().0;
                match &bufs {
                    Some(bufs) => self.copy(&candidate, bufs, (first - run.pages.start) as usize * PART_BYTES as usize),
                    None => {
                        let bytes = candidate.entry.mask().count_ones() as usize * PART_BYTES as usize;
                        let alone = Bufs::from(Buf::zeroed(bytes));
                        // What cannot be read leaves with its segment: it is clean, and the disk has it.
                        if let Some(bufs) = self.read_to_copy(self.device_offset(Page(first)), alone).await? {
                            self.copy(&candidate, &bufs, 0);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Write a block again whose data begins at byte `from` of `data`.
    fn copy(self: &Arc<Self>, candidate: &Candidate, data: &Bufs, from: usize) {
        if candidate.kind != EntryKind::Clean && self.copy_dirty(candidate, data, from) {
            return;
        }
        // The block is clean: destaging has ended it since cleaning listed it as dirty.
        let moved = self.move_entry(candidate, data, from);
        if let (true, Some(page)) = (candidate.aged, moved) {
            self.index.visit(candidate.key, |e| {
                if e.page() == page {
                    e.set_aged();
                }
            });
        }
    }

    /// Read what is to be written again; none: it cannot be read.
    async fn read_to_copy(self: &Arc<Self>, at: u64, bufs: Bufs) -> Result<Option<Bufs>, MemberError> {
        let mut bufs = bufs;
        let mut tries = 0;
        loop {
            let Some(done) = self.within_hard_limit(self.config.device.read(at, bufs)).await else {
                self.fail("a read took longer than the hard limit".to_owned());
                return Err(self.error());
            };
            bufs = done.bufs;
            if done.outcome == Outcome::Done {
                self.read_well();
                return Ok(Some(bufs));
            }
            tries += 1;
            match self.read_badly(at, done.outcome, tries) {
                Trouble::Again => self.pause(tries).await,
                Trouble::Part => return Ok(None),
                Trouble::Gone => return Err(self.error()),
            }
        }
    }

    /// Write what is dirty again, as dirty, if it still is: the death of this version is said once the copy is durable. What is not copied
    /// stays where it is. False: it has become clean.
    fn copy_dirty(self: &Arc<Self>, candidate: &Candidate, data: &Bufs, from: usize) -> bool {
        let Candidate { kind, name, key, .. } = *candidate;
        let page = candidate.entry.page();
        // Parts of it may have been overwritten since it was listed.
        let Some(entry) = self.index.get_at(key, page) else { return true };
        if !entry.dirty() {
            return false;
        }
        let Some((copy, sums)) = self.checked_copy(name, &entry, data, from) else { return true };
        let new =
            NewEntry { key, name, mask: entry.valid(), sums, tenant: entry.tenant(), frequency: entry.frequency() };
        let mut writes = Vec::new();
        {
            let mut log = lock(&self.log);
            let now = self.index.get_at(key, page);
            if now.is_some_and(|now| !now.dirty()) {
                return false;
            }
            let still = now.is_some_and(|now| now.valid() == entry.valid());
            let since = self.dirty.since(self.segment_of(page), key.slot());
            if still
                && self.append_dirty(&mut log, kind, &new, Bufs::from(copy).freeze(), true, since, &mut writes).is_ok()
            {
                add(&self.counters.dirty_copies, u64::from(new.mask.count_ones()));
                add(&self.counters.move_bytes, u64::from(new.mask.count_ones()) * PART_BYTES);
            }
        }
        self.issue(writes);
        true
    }

    /// The valid parts of an entry out of what was read, with their checksums, unless it has rotted.
    fn checked_copy(
        &self,
        name: BlockName,
        entry: &Entry,
        data: &Bufs,
        base: usize,
    ) -> Option<(Buf, SmallVec<[u32; 4]>)> {
        let valid = entry.valid();
        let first = name.block * u64::from(self.block_parts);
        let mut copy = Buf::zeroed(valid.count_ones() as usize * PART_BYTES as usize);
        let mut sums: SmallVec<[u32; 4]> = SmallVec::new();
        let mut rotten = false;
        for (k, part) in (0..16).filter(|p| valid >> p & 1 == 1).enumerate() {
            let from = base + (entry.page_of_part(part).0 - entry.page().0) as usize * PART_BYTES as usize;
            let to = k * PART_BYTES as usize;
            let mut filled = to;
            data.for_each(from..from + PART_BYTES as usize, |bytes| {
                copy[filled..filled + bytes.len()].copy_from_slice(bytes);
                filled += bytes.len();
            });
            let sum = part_sum(name.disk, name.generation, first + u64::from(part), &copy[to..filled]);
            let known = self.sums[entry.page_of_part(part).0 as usize].load(Ordering::Acquire);
            rotten |= sum != known;
            sums.push(known);
        }
        if rotten {
            add(&self.counters.rot_parts, 1);
            return None;
        }
        Some((copy, sums))
    }

    /// Write a clean entry again; where it is now, unless it is gone or there is no room.
    fn move_entry(self: &Arc<Self>, candidate: &Candidate, data: &Bufs, base: usize) -> Option<Page> {
        let Candidate { name, key, entry, frequency, head, .. } = *candidate;
        let valid = entry.valid();
        let (copy, sums) = self.checked_copy(name, &entry, data, base)?;
        let mut moved = None;
        let record_crcs = sums.clone();
        let record =
            |position| Record::Entry { kind: EntryKind::Clean, name, mask: valid, position, sums: record_crcs.clone() };
        let mut writes = Vec::new();
        {
            let mut log = lock(&self.log);
            let copy = Bufs::from(copy).freeze();
            let mut append = |log: &mut LogState, head| {
                log.append_entry(head, &record, copy.clone(), MOVE_RESERVE_SEGMENTS, &mut writes)
            };
            let mut appended = append(&mut log, head);
            let kept = head == HeadKind::Keep && appended.is_ok();
            // The share of KEEP data is full by now, or the last free segment is reclaim's own: what is open has room perhaps.
            for other in HeadKind::ALL.into_iter().filter(|other| other.side().is_some()) {
                if appended.is_ok() {
                    break;
                }
                appended = append(&mut log, other);
            }
            add(&self.counters.copy_skips_space, u64::from(appended.is_err()));
            // Without space it is simply not moved.
            if let Ok(page) = appended {
                for (k, sum) in sums.iter().enumerate() {
                    self.sums[page.0 as usize + k].store(*sum, Ordering::Release);
                }
                // Whichever of the two copies is not the living one stays dead, whatever survives a crash.
                let mut dead = KilledList::new();
                if self.index.under(&mut log).relocate(key, entry.page(), valid, page, frequency) {
                    dead.push(Killed::clean(entry.page(), valid));
                    moved = Some(page);
                    add(&self.counters.moves, 1);
                    add(&self.counters.keep_moves, u64::from(kept));
                    add(&self.counters.move_bytes, u64::from(valid.count_ones()) * PART_BYTES);
                } else {
                    dead.push(Killed::clean(page, valid));
                }
                self.append_deaths(&mut log, &dead);
            }
        }
        self.issue(writes);
        moved
    }
}
