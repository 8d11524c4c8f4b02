//! KEEP: a head of its own for data the operator wants to stay, its share, its ageing; and the blocks of NONE ranges.
//!
//! Whole segments change heads in memory: what has aged, or is not KEEP any more, is written again only if it is worth it as
//! DEFAULT data. A segment's head on flash is where it began: after a restart it ages anew. Never takes a segment from DEFAULT
//! data but by filling one, and never waits for a range.

use crate::admission::governor::{Allowance, admits};
use crate::admission::worth::{Worth, Worths};
use crate::base::counters::add;
use crate::base::units::{BlockKey, Opening, PART_BYTES, Page, SegmentId};
use crate::format::HeadKind;
use crate::member::{Member, MemberError};
use device::Instant;
use device::spawn::yield_now;
use device::sync::{Notify, lock};
use futures_util::future::select;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often, in the time after which KEEP data is unused, its segments are looked at: what ages does so at most an eighth of
/// that late, and another because it is first seen by such a look.
const AGE_LOOKS: u32 = 8;
/// Between two looks at the longest: room that is wanted is made in time.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(10);
/// And at the shortest.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);
/// Of a segment's pages, so many quarters may be KEEP data when it is cleaned: at least one is gained.
const CLEANED_QUARTERS_MAX: u32 = 3;
/// Blocks of NONE ranges remembered at a time: a megabyte.
const FREED_LISTED_MAX: usize = 64 << 10;
/// Of them, freed between two syncs: their records fit some chunks.
const FREED_AT_ONCE_MAX: usize = 1024;

/// What a member knows of its keep head beside the log.
#[derive(Debug)]
pub(crate) struct Keep {
    /// By segment: it is one of the keep head. Written by the log.
    kept: Arc<[AtomicBool]>,
    /// By segment: something of it was asked for since the last look.
    used: Vec<AtomicBool>,
    /// KEEP data was filled elsewhere for want of room since the last look.
    wanted: AtomicBool,
    /// What is KEEP or NONE has changed since the last look.
    changed: AtomicBool,
    /// By segment: its life, and when it was last seen to be used.
    ages: Mutex<BTreeMap<SegmentId, (Opening, Instant)>>,
    /// Rung when there is something to do.
    pub(crate) wake: Notify,
}

/// What KEEP data takes of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepUsage {
    /// Valid bytes in segments of the keep head.
    pub used_bytes: u64,
    /// Bytes of KEEP data that live here alone, in whatever segments.
    pub dirty_bytes: u64,
}

impl Keep {
    pub(crate) fn new(kept: Arc<[AtomicBool]>) -> Keep {
        Keep {
            used: kept.iter().map(|_| AtomicBool::new(false)).collect(),
            kept,
            wanted: AtomicBool::new(false),
            changed: AtomicBool::new(true),
            ages: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Whether a segment is one of the keep head.
    pub(crate) fn holds(&self, segment: SegmentId) -> bool {
        self.kept[segment.0 as usize].load(Ordering::Acquire)
    }

    /// Whether somebody has read from a segment since the last look at it, or since it left the keep head.
    pub(crate) fn is_used(&self, segment: SegmentId) -> bool {
        self.used[segment.0 as usize].load(Ordering::Relaxed)
    }

    /// Somebody reads from a segment.
    pub(crate) fn touch(&self, segment: SegmentId) {
        let used = &self.used[segment.0 as usize];
        // Written once between two looks, so that readers share the line.
        if !used.load(Ordering::Relaxed) {
            used.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn worth_changed(&self) {
        self.changed.store(true, Ordering::Release);
        self.wake.notify_all();
    }

    /// KEEP data goes elsewhere since its share is full.
    pub(crate) fn room_wanted(&self) {
        self.wanted.store(true, Ordering::Release);
    }
}

impl Member {
    /// Look after the keep head and NONE ranges; ends when the member stops or fails.
    pub(crate) async fn run_keep(self: Arc<Self>) {
        let every = (self.config.keep_unused / AGE_LOOKS).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
        loop {
            let ticket = self.keep.wake.ticket();
            if self.has_failed() || self.stopping.load(Ordering::Acquire) {
                return;
            }
            if self.tend_keep().await.is_err() {
                return;
            }
            let rung = std::pin::pin!(self.keep.wake.wait(ticket));
            if lock(&self.log).keep_segments() == 0 && !self.config.worths.any_keep() {
                rung.await;
            } else {
                let _ = select(rung, self.world.clock.sleep(every)).await;
            }
        }
    }

    /// One look: what is unused ages, what is not KEEP any more leaves the head, room is made where it is wanted, and blocks
    /// of NONE ranges are freed.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn tend_keep(self: &Arc<Self>) -> Result<(), MemberError> {
        self.age_keep();
        let changed = self.keep.changed.swap(false, Ordering::AcqRel);
        let wanted = self.keep.wanted.swap(false, Ordering::AcqRel);
        if changed || wanted {
            self.sift_keep(wanted).await;
        }
        if changed {
            self.free_none().await?;
        }
        Ok(())
    }

    /// Segments of the keep head nobody has read from for long become the oldest of the main head.
    fn age_keep(&self) {
        let now = self.world.clock.now();
        let unused_ns = self.config.keep_unused.as_nanos();
        let mut aged = 0;
        {
            let mut log = lock(&self.log);
            let mut ages = lock(&self.keep.ages);
            ages.retain(|id, _| self.keep.holds(*id));
            let sealed: Vec<SegmentId> = log.sealed[HeadKind::Keep as usize].iter().copied().collect();
            for id in sealed {
                let opening = log.segments[id.0 as usize].opening;
                let age = ages.entry(id).or_insert((opening, now));
                let used = self.keep.used[id.0 as usize].swap(false, Ordering::Relaxed);
                if used || age.0 != opening {
                    *age = (opening, now);
                } else if u128::from(now.ns_since(age.1)) >= unused_ns {
                    log.age(id);
                    aged += 1;
                }
            }
        }
        if aged > 0 {
            add(&self.counters.keep_aged, aged);
            self.changed.notify_all();
        }
    }

    /// What of the keep head's segments is KEEP data? Those with none leave it; when room is wanted, those with little are
    /// listed to be cleaned.
    async fn sift_keep(&self, wanted: bool) {
        let maps = self.config.worths.all();
        let mut pages: BTreeMap<SegmentId, u32> = BTreeMap::new();
        for shard in 0..self.index.shards() {
            self.index.for_each_of(shard, |e| {
                let id = self.segment_of(e.page());
                if self.keep.holds(id) && Worths::is(&maps, e.key(), self.block_parts, e.valid(), Worth::Keep) {
                    *pages.entry(id).or_insert(0) += e.valid().count_ones();
                }
            });
            yield_now().await;
        }
        // Cleaning writes again what is left, so it needs a budget.
        let wanted = wanted && admits(self.allowance(), HeadKind::Keep);
        let mut log = lock(&self.log);
        let sealed: Vec<SegmentId> = log.sealed[HeadKind::Keep as usize].iter().copied().collect();
        let mut little: Vec<(u32, SegmentId)> = Vec::new();
        for id in sealed {
            match pages.get(&id).copied().unwrap_or(0) {
                0 => {
                    log.change_head(id, HeadKind::Keep, HeadKind::Main);
                    add(&self.counters.keep_released, 1);
                }
                left if left <= self.shape.segment_pages / 4 * CLEANED_QUARTERS_MAX => little.push((left, id)),
                _ => {}
            }
        }
        little.sort_unstable();
        log.cleaning = if wanted { little.into_iter().map(|(_, id)| id).collect() } else { Default::default() };
        drop(log);
        self.changed.notify_all();
    }

    /// End the clean blocks of NONE ranges; one that reaches beyond its range leaves whole.
    async fn free_none(self: &Arc<Self>) -> Result<(), MemberError> {
        loop {
            let maps = self.config.worths.all();
            let mut doomed: Vec<(BlockKey, Page)> = Vec::new();
            for shard in 0..self.index.shards() {
                self.index.for_each_of(shard, |e| {
                    let refused = !e.dirty() && Worths::is(&maps, e.key(), self.block_parts, e.valid(), Worth::None);
                    if refused && doomed.len() < FREED_LISTED_MAX {
                        doomed.push((e.key(), e.page()));
                    }
                });
                yield_now().await;
            }
            if doomed.is_empty() {
                return Ok(());
            }
            for some in doomed.chunks(FREED_AT_ONCE_MAX) {
                {
                    let mut log = lock(&self.log);
                    for &(key, page) in some {
                        let dead = self.index.under(&mut log).end_clean(key, page).record(self);
                        add(&self.counters.none_frees, dead.len() as u64);
                    }
                }
                self.sync().await?;
            }
        }
    }

    /// Whether KEEP data finds no room at its head.
    pub(crate) fn keep_is_full(&self) -> bool {
        let log = lock(&self.log);
        log.keep_segments() >= log.keep_segments_max()
    }

    /// Take a segment of the keep head to be cleaned, if one is listed and there is a budget to write again what is left of it.
    pub(crate) fn take_cleaning(&self) -> Option<SegmentId> {
        if self.allowance() < Allowance::Returning {
            return None;
        }
        lock(&self.log).take_cleaning()
    }

    /// What KEEP data takes. Costs a walk over the index where there is any.
    #[must_use]
    pub fn keep_usage(&self) -> KeepUsage {
        let maps = self.config.worths.all();
        let mut usage = KeepUsage::default();
        if maps.is_empty() && lock(&self.log).keep_segments() == 0 {
            return usage;
        }
        self.index.for_each(|e| {
            let bytes = u64::from(e.valid().count_ones()) * PART_BYTES;
            if self.keep.holds(self.segment_of(e.page())) {
                usage.used_bytes += bytes;
            }
            if e.dirty() && Worths::is(&maps, e.key(), self.block_parts, e.valid(), Worth::Keep) {
                usage.dirty_bytes += bytes;
            }
        });
        usage
    }

    /// Segments of the keep head, and how many it may have now.
    #[must_use]
    pub fn keep_segments(&self) -> (usize, usize) {
        let log = lock(&self.log);
        (log.keep_segments(), log.keep_segments_max())
    }
}
