//! How much of the cache databases may have, and how they are kept to it: a size never exceeded, a limit that counts while the cache
//! is full, a least that reclaim leaves them.
//!
//! Who is at his cap makes room among his own blocks: a hand goes round the index (CLOCK: Corbató 1968), what was asked for cools,
//! what was not leaves. A change of the operator's word, or the cache becoming full, has what is too much leave in the background.
//! Dirty data never leaves like this, and overwriting it is never refused. Never does I/O but for the records of what has left.

use crate::base::counters::add;
use crate::base::disk::DiskHandle;
use crate::base::tenant::{Tally, Tenant, TenantSet};
use crate::base::units::{BlockKey, PART_BYTES, Page, SegmentId};
use crate::format::HeadKind;
use crate::index::{Entry, Place};
use crate::log::{LogState, PENDING_RECORDS_MAX, SegmentState};
use crate::member::{Member, MemberError};
use crate::placement::cache::FlashCache;
use device::spawn::yield_now;
use device::sync::{Notify, lock};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Places of the index looked at for the room of one block: 8 KiB of memory read in a row, about as long as the copy of a block.
const PROBES_MAX: u32 = 512;
/// Blocks that leave under one hold of the log's lock.
const EVICTED_AT_ONCE_MAX: usize = 1024;
/// Rounds of the index until what is too much has left: a block cools three times at most, then leaves; in the last one KEEP data
/// does.
const ROUNDS_MAX: u32 = 5;
/// The cache is not full any more when reclaim has got so many segments ahead.
const AHEAD_SEGMENTS: usize = 4;
/// And, where memory is limited, with one in so many entries of the index free: twice what reclaim begins at.
const AHEAD_ENTRIES: usize = 16;
/// A segment of whose pages so many quarters have left in favour of others of their database is the next to be reclaimed: else it
/// would take room from other databases until its turn comes.
const EMPTIED_QUARTERS: u32 = 3;

/// How much of the cache some databases may have together. Bytes of flash, of all members; what is mirrored counts twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Who.
    pub tenants: TenantSet,
    /// Reclaim leaves them so much.
    pub min_bytes: u64,
    /// The most while the cache is full.
    pub limit_bytes: Option<u64>,
    /// The most at all times.
    pub size_bytes: Option<u64>,
}

impl Quota {
    fn min_parts(&self) -> u64 {
        self.min_bytes / PART_BYTES
    }

    fn is_bound(&self) -> bool {
        self.size_bytes.is_some() || self.limit_bytes.is_some()
    }

    fn cap_parts(&self, is_full: bool) -> Option<u64> {
        let limit = self.limit_bytes.filter(|_| is_full);
        self.size_bytes.into_iter().chain(limit).min().map(|bytes| bytes / PART_BYTES)
    }
}

/// The quotas in force, found by tenant.
#[derive(Debug, Default)]
struct Terms {
    quotas: Vec<Quota>,
    /// By number: one more than the place in `quotas`.
    places: Vec<u8>,
}

impl Terms {
    fn place_of(&self, tenant: Tenant) -> Option<usize> {
        let place = self.places.get(usize::from(tenant.bits())).copied().unwrap_or(0);
        usize::from(place).checked_sub(1)
    }

    fn of(&self, tenant: Tenant) -> Option<&Quota> {
        self.place_of(tenant).map(|place| &self.quotas[place])
    }
}

/// The operator's word, for all caches of a cell one after the other. None to begin with.
#[derive(Debug, Default)]
pub struct Quotas {
    /// Somebody has one: all that is looked at while nobody has.
    any: AtomicBool,
    terms: RwLock<Arc<Terms>>,
    /// Rung when there may be too much of somebody's.
    look: Notify,
}

impl Quotas {
    /// These instead of those there are, at once.
    ///
    /// # Panics
    /// When a tenant has two.
    pub fn set(&self, quotas: Vec<Quota>) {
        let mut places = vec![0; 1 + usize::from(Tenant::REST.bits())];
        for (n, quota) in quotas.iter().enumerate() {
            for tenant in quota.tenants.iter() {
                let place: &mut u8 = &mut places[usize::from(tenant.bits())];
                assert_eq!(*place, 0, "a tenant has one quota");
                *place = n as u8 + 1;
            }
        }
        self.any.store(!quotas.is_empty(), Ordering::Release);
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Terms { quotas, places });
        self.look.notify_all();
    }

    /// Whether anybody has one.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn terms(&self) -> Arc<Terms> {
        self.terms.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Somebody may have too much; or a member stops.
    pub(crate) fn look(&self) {
        self.look.notify_all();
    }
}

/// What a member knows for it.
#[derive(Debug)]
pub(crate) struct QuotaState {
    /// By tenant: where his hand stands, the shard above.
    hands: Box<[AtomicU64]>,
    /// Reclaim has begun to take segments.
    full: AtomicBool,
    /// By segment: pages that have left in favour of others of their database, in this life of it.
    left: Vec<AtomicU32>,
    /// Segments with little else.
    emptied: Mutex<VecDeque<SegmentId>>,
}

impl QuotaState {
    pub(crate) fn new(segments: u32) -> QuotaState {
        QuotaState {
            hands: (0..=Tenant::REST.bits()).map(|_| AtomicU64::new(0)).collect(),
            full: AtomicBool::new(false),
            left: (0..segments).map(|_| AtomicU32::new(0)).collect(),
            emptied: Mutex::default(),
        }
    }

    /// A segment begins another life.
    pub(crate) fn released(&self, id: SegmentId) {
        self.left[id.0 as usize].store(0, Ordering::Relaxed);
    }
}

/// What reclaim may take of the databases with a quota, while it looks at one segment.
pub(crate) struct Claims {
    terms: Arc<Terms>,
    /// By quota: parts beyond the cap, and parts beyond the least.
    left: Vec<(u64, u64)>,
}

impl Claims {
    /// Whether it is more than its database may have: it leaves, whatever the policy says.
    pub(crate) fn takes_excess(&mut self, entry: &Entry) -> bool {
        let Some(place) = self.terms.place_of(entry.tenant()) else { return false };
        let parts = u64::from(entry.valid().count_ones());
        let (over, spare) = &mut self.left[place];
        if *over == 0 {
            return false;
        }
        (*over, *spare) = (over.saturating_sub(parts), spare.saturating_sub(parts));
        true
    }

    /// Whether it may leave for want of endurance: its database keeps its least. What may is counted as gone.
    pub(crate) fn takes_spare(&mut self, entry: &Entry) -> bool {
        let Some(place) = self.terms.place_of(entry.tenant()) else { return true };
        let parts = u64::from(entry.valid().count_ones());
        let (over, spare) = &mut self.left[place];
        if self.terms.quotas[place].min_bytes > 0 && *spare < parts {
            return false;
        }
        (*over, *spare) = (over.saturating_sub(parts), spare.saturating_sub(parts));
        true
    }

    /// Of these entries those without which somebody would have less than his least, hottest first; they are taken out.
    pub(crate) fn guard<T>(&self, entries: &mut Vec<(T, Entry, bool)>) -> Vec<(T, Entry, bool)> {
        let mut here = vec![0_u64; self.left.len()];
        for (_, entry, _) in entries.iter() {
            if let Some(place) = self.terms.place_of(entry.tenant()) {
                here[place] += u64::from(entry.valid().count_ones());
            }
        }
        let mut missing: Vec<u64> = Vec::with_capacity(here.len());
        for (quota, (here, (_, spare))) in self.terms.quotas.iter().zip(here.iter().zip(&self.left)) {
            missing.push(if quota.min_bytes == 0 { 0 } else { here.saturating_sub(*spare) });
        }
        if missing.iter().all(|parts| *parts == 0) {
            return Vec::new();
        }
        let mut guarded = Vec::new();
        for wanted in (0..=3).rev() {
            let mut rest = Vec::with_capacity(entries.len());
            for (name, entry, kept) in entries.drain(..) {
                let place = self.terms.place_of(entry.tenant());
                match place.filter(|place| entry.frequency() == wanted && missing[*place] > 0) {
                    Some(place) => {
                        missing[place] = missing[place].saturating_sub(u64::from(entry.valid().count_ones()));
                        guarded.push((name, entry, kept));
                    }
                    None => rest.push((name, entry, kept)),
                }
            }
            *entries = rest;
        }
        guarded
    }
}

impl Member {
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        self.index.tally()
    }

    fn is_full(&self) -> bool {
        self.quota.full.load(Ordering::Acquire)
    }

    /// Reclaim is about to take a segment.
    pub(crate) fn note_full(&self) {
        if !self.quota.full.swap(true, Ordering::AcqRel) && self.config.quotas.any() {
            self.config.quotas.look();
        }
    }

    /// Reclaim rests with so many segments free, and wants more than so many.
    pub(crate) fn note_plenty(&self, free: usize, low: usize) {
        // Where memory is limited, the index is full long before the flash.
        let max = self.index.entries_max();
        let has_entries = max >= self.sums.len() || self.index.len() < max - max / AHEAD_ENTRIES;
        if free > low + AHEAD_SEGMENTS && has_entries {
            self.quota.full.store(false, Ordering::Release);
        }
    }

    /// To be held from [`Member::has_room`] to the entry; none: nothing bounds whose it will be.
    pub(crate) fn quota_turn(&self, tenant: Tenant) -> Option<MutexGuard<'_, ()>> {
        if !tenant.is_somebody() || !self.config.quotas.any() {
            return None;
        }
        let bound = self.config.quotas.terms().of(tenant).is_some_and(Quota::is_bound);
        bound.then(|| self.tally().turn())
    }

    /// Whether a tenant may have so many parts more, after blocks of his own have left if need be.
    pub(crate) fn has_room(self: &Arc<Self>, tenant: Tenant, parts: u32, others: Option<&Arc<Member>>) -> bool {
        let terms = self.config.quotas.terms();
        let Some(quota) = terms.of(tenant) else { return true };
        let Some(cap) = quota.cap_parts(self.is_full()) else { return true };
        for member in [Some(self), others].into_iter().flatten() {
            let wanted = (self.tally().parts_of(quota.tenants) + u64::from(parts)).saturating_sub(cap);
            if wanted > 0 && u64::from(parts) <= cap {
                member.make_room(tenant, quota.tenants, wanted);
            }
        }
        self.tally().parts_of(quota.tenants) + u64::from(parts) <= cap
    }

    /// Parts of `mask` that these tenants have already: who writes them again takes no more.
    pub(crate) fn parts_there(&self, key: BlockKey, mask: u16, tenant: Tenant) -> u32 {
        let terms = self.config.quotas.terms();
        let Some(quota) = terms.of(tenant) else { return 0 };
        let mut there = 0;
        self.index.visit(key, |entry| {
            if quota.tenants.contains(entry.tenant()) {
                there += (entry.valid() & mask).count_ones();
            }
        });
        there
    }

    /// Whether a tenant may take over a block that is nobody's: the turn to do so, if he needs one.
    pub(crate) fn may_adopt(&self, tenant: Tenant, parts: u32) -> (bool, Option<MutexGuard<'_, ()>>) {
        if !self.config.quotas.any() {
            return (true, None);
        }
        let terms = self.config.quotas.terms();
        let Some(quota) = terms.of(tenant) else { return (true, None) };
        let Some(cap) = quota.cap_parts(self.is_full()) else { return (true, None) };
        // Another time, if somebody has it now: he may wait for the lock that this one holds.
        let Some(turn) = self.tally().try_turn() else { return (false, None) };
        (self.tally().parts_of(quota.tenants) + u64::from(parts) <= cap, Some(turn))
    }

    /// The hand of a tenant goes on until `wanted` parts of these tenants have left, but not far.
    fn make_room(self: &Arc<Self>, tenant: Tenant, tenants: TenantSet, wanted: u64) {
        if self.has_failed() || self.stopping.load(Ordering::Acquire) {
            return;
        }
        let hand = &self.quota.hands[usize::from(tenant.bits())];
        let from = hand.load(Ordering::Relaxed);
        let from = Place { shard: (from >> 32) as u32, at: from as u32 };
        let (mut doomed, mut parts) = (SmallVec::<[(BlockKey, Page); 16]>::new(), 0);
        let to = self.index.go_round(from, PROBES_MAX, |entry| {
            let mine = !entry.dirty() && tenants.contains(entry.tenant());
            if mine && !self.keep.holds(self.segment_of(entry.page())) {
                if entry.frequency() > 0 {
                    entry.cool();
                } else {
                    doomed.push((entry.key(), entry.page()));
                    parts += u64::from(entry.valid().count_ones());
                }
            }
            parts >= wanted
        });
        hand.store(u64::from(to.shard) << 32 | u64::from(to.at), Ordering::Relaxed);
        if !doomed.is_empty() {
            let mut log = lock(&self.log);
            if log.pending_records() <= PENDING_RECORDS_MAX {
                self.evict(&mut log, &doomed);
            }
        }
    }

    /// Clean blocks leave.
    fn evict(&self, log: &mut LogState, doomed: &[(BlockKey, Page)]) {
        for &(key, page) in doomed {
            // Looked at again: since it was listed its segment may have been opened anew, with newer data of the same block at the same
            // place.
            let dead = self.index.under(log).end_clean(key, page).record(self);
            let Some(killed) = dead.first() else { continue };
            add(&self.counters.quota_evictions, 1);
            let id = self.segment_of(page);
            let parts = killed.mask.count_ones();
            let before = self.quota.left[id.0 as usize].fetch_add(parts, Ordering::Relaxed);
            let emptied = self.shape.segment_pages / 4 * EMPTIED_QUARTERS;
            if before < emptied && before + parts >= emptied {
                // Each segment once in its life: as many as there are at most.
                lock(&self.quota.emptied).push_back(id);
                self.changed.notify_all();
            }
        }
    }

    /// A sealed segment with little in it, as a victim, and its head.
    pub(crate) fn take_emptied(&self, log: &mut LogState) -> Option<(SegmentId, HeadKind)> {
        let mut emptied = lock(&self.quota.emptied);
        for _ in 0..emptied.len() {
            let id = emptied.pop_front()?;
            let pages = self.quota.left[id.0 as usize].load(Ordering::Relaxed);
            if pages < self.shape.segment_pages / 4 * EMPTIED_QUARTERS {
                continue;
            }
            let state = log.segments[id.0 as usize].state;
            match state {
                SegmentState::Sealed(head) if head.side().is_some() && log.take(id, head) => return Some((id, head)),
                // Of the others in their time, if it is not too late then: KEEP data is looked after elsewhere.
                SegmentState::Sealed(HeadKind::Keep) | SegmentState::Free | SegmentState::Reclaiming => {}
                SegmentState::Open(_) | SegmentState::Sealed(_) => emptied.push_back(id),
            }
        }
        None
    }

    /// What reclaim may take, if anybody has a quota.
    pub(crate) fn claims(&self) -> Option<Claims> {
        if !self.config.quotas.any() {
            return None;
        }
        let terms = self.config.quotas.terms();
        let left = |quota: &Quota| {
            let used = self.tally().parts_of(quota.tenants);
            let over = quota.cap_parts(self.is_full()).map_or(0, |cap| used.saturating_sub(cap));
            (over, used.saturating_sub(quota.min_parts()))
        };
        Some(Claims { left: terms.quotas.iter().map(left).collect(), terms })
    }

    /// Have what is too much leave; ends when the member stops or fails.
    pub(crate) async fn run_quotas(self: Arc<Self>) {
        loop {
            let ticket = self.config.quotas.look.ticket();
            let ends = || self.has_failed() || self.stopping.load(Ordering::Acquire);
            if ends() {
                return;
            }
            if self.config.quotas.any() && self.trim().await.is_err() {
                return;
            }
            if ends() {
                return;
            }
            self.config.quotas.look.wait(ticket).await;
        }
    }

    async fn trim(self: &Arc<Self>) -> Result<(), MemberError> {
        for quota in &self.config.quotas.terms().quotas {
            for round in 0..ROUNDS_MAX {
                if self.excess(quota) == 0 {
                    break;
                }
                for shard in 0..self.index.shards() {
                    if self.excess(quota) == 0 || self.stopping.load(Ordering::Acquire) {
                        break;
                    }
                    self.trim_shard(quota, shard, round + 1 == ROUNDS_MAX).await?;
                    yield_now().await;
                }
            }
        }
        Ok(())
    }

    fn excess(&self, quota: &Quota) -> u64 {
        let used = self.tally().parts_of(quota.tenants);
        quota.cap_parts(self.is_full()).map_or(0, |cap| used.saturating_sub(cap))
    }

    async fn trim_shard(self: &Arc<Self>, quota: &Quota, shard: usize, last: bool) -> Result<(), MemberError> {
        let (excess, mut parts) = (self.excess(quota), 0);
        let mut doomed: Vec<(BlockKey, Page)> = Vec::new();
        self.index.for_each_of(shard, |entry| {
            if parts >= excess || entry.dirty() || !quota.tenants.contains(entry.tenant()) {
                return;
            }
            if !last && (entry.frequency() > 0 || self.keep.holds(self.segment_of(entry.page()))) {
                entry.cool();
            } else {
                doomed.push((entry.key(), entry.page()));
                parts += u64::from(entry.valid().count_ones());
            }
        });
        for some in doomed.chunks(EVICTED_AT_ONCE_MAX) {
            let many = {
                let mut log = lock(&self.log);
                self.evict(&mut log, some);
                log.pending_records() > PENDING_RECORDS_MAX
            };
            if many {
                self.sync().await?;
            }
        }
        Ok(())
    }
}

impl DiskHandle {
    /// The same grid disk, on behalf of a tenant: what it fills and writes is his, and what is nobody's becomes his when it is hit.
    #[must_use]
    pub fn of(self, tenant: Tenant) -> DiskHandle {
        DiskHandle { tenant, ..self }
    }

    /// The same, whatever size he has: for writes that can go nowhere else.
    #[must_use]
    pub fn beyond_size(self) -> DiskHandle {
        DiskHandle { beyond: true, ..self }
    }
}

impl FlashCache {
    /// Bytes of flash that a tenant has; 0 of nobody.
    #[must_use]
    pub fn tenant_bytes(&self, tenant: Tenant) -> u64 {
        self.seats.first().map_or(0, |seat| seat.member.tally().parts(tenant)) * PART_BYTES
    }

    /// What a tenant has is nobody's from now on: his number will be another's. Costs a walk over the index.
    pub async fn disown(&self, tenant: Tenant) {
        for member in self.members() {
            for shard in 0..member.index.shards() {
                member.index.for_each_of(shard, |entry| {
                    if entry.tenant() == tenant {
                        entry.set_tenant(Tenant::NOBODY);
                    }
                });
                yield_now().await;
            }
        }
    }

    /// For checkers: a tenant of whom the tally says another number of parts than the index, with both.
    #[must_use]
    pub fn miscounted(&self) -> Option<(Tenant, u64, u64)> {
        let mut found = vec![0_u64; 1 + usize::from(Tenant::REST.bits())];
        for member in self.members() {
            member.index.for_each(|entry| {
                found[usize::from(entry.tenant().bits())] += u64::from(entry.valid().count_ones());
            });
        }
        let tally = self.seats.first()?.member.tally();
        let wrong = |tenant: &Tenant| tally.parts(*tenant) != found[usize::from(tenant.bits())];
        let tenant = Tenant::all().chain([Tenant::REST]).find(wrong)?;
        Some((tenant, tally.parts(tenant), found[usize::from(tenant.bits())]))
    }
}

#[cfg(test)]
mod tests;
