//! The index: which parts of which blocks are on flash, and where. 16 bytes an entry, in sharded open-addressing tables
//! that grow by an eighth: 17 to 19.2 bytes of memory an entry.
//!
//! Robin Hood hashing (Celis, 1986): a chain is ordered by the homes of its entries, so a search ends early although the
//! tables are nearly full.
//!
//! A block may have several entries with disjoint valid parts. Locks are held for memory work only. Never does I/O, never
//! decides what is cached.

mod ending;
mod entry;
pub(crate) mod live;

use crate::base::tenant::{Tally, Tenant};
use crate::base::units::{BlockKey, Page};
use crate::index::live::Live;
use device::sync::lock;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) use ending::{Dead, Ending};
use entry::EMPTY;
pub(crate) use entry::{Entry, Killed};

/// How many shards at least: enough that threads seldom meet.
const SHARDS_MIN: usize = 64;
/// How many at most: their locks stay small beside the tables.
const SHARDS_MAX: usize = 4096;
/// Entries of a shard when the index is full: growing a table of so many takes well under a millisecond.
const SHARD_ENTRIES: usize = 16 << 10;
/// Places of a fresh shard.
const SHARD_PLACES_MIN: usize = 16;
/// A table grows when more than 15/16 of its places would be taken, by 1/8.
const fn places_enough(places: usize, entries: usize) -> bool {
    entries * 16 <= places * 15
}
const fn places_next(places: usize) -> usize {
    places + places / 8 + 1
}

/// The dead of one operation.
pub(crate) type KilledList = SmallVec<[Killed; 2]>;

/// The index has reached the size it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexFull;

/// The sharded index of one member.
pub(crate) struct Index {
    shards: Vec<Mutex<Shard>>,
    entries: AtomicUsize,
    entries_max: usize,
    dirty_max: usize,
    /// Of all tables, and what [`Index::memory_bytes_max`] allows: shards do not grow evenly.
    places: AtomicUsize,
    places_max: usize,
    /// An entry was refused.
    refused: AtomicBool,
    /// Which pages its entries hold.
    live: Arc<Live>,
    /// Of all indexes of a cache.
    tally: Arc<Tally>,
    /// Deliberate fault: an entry that has moved is nobody's, and counted as before.
    forgets_tenants: bool,
}

struct Shard {
    table: Vec<Entry>,
    len: usize,
}

impl Shard {
    fn new() -> Shard {
        Shard { table: vec![EMPTY; SHARD_PLACES_MIN], len: 0 }
    }

    /// The place a key wants: the upper half of its hash, scaled to the table. The lower half chose the shard.
    fn home(&self, key: BlockKey) -> usize {
        (((key.hash() >> 32) * self.table.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }

    /// How far from its home the entry at a place lies.
    fn distance(&self, at: usize) -> usize {
        let home = self.home(self.table[at].key());
        if at >= home { at - home } else { at + self.table.len() - home }
    }

    /// Call `f` with the places of the key's entries until it says enough.
    fn search(&self, key: BlockKey, mut f: impl FnMut(usize) -> bool) {
        let mut at = self.home(key);
        let mut distance = 0;
        while !self.table[at].is_empty() {
            if self.table[at].key() == key {
                if f(at) {
                    return;
                }
            } else if self.distance(at) < distance {
                return;
            }
            at = self.next(at);
            distance += 1;
        }
    }

    fn position(&self, key: BlockKey, wanted: impl Fn(&Entry) -> bool) -> Option<usize> {
        let mut found = None;
        self.search(key, |at| {
            if wanted(&self.table[at]) {
                found = Some(at);
            }
            found.is_some()
        });
        found
    }

    /// How many places more it needs before one more entry.
    fn growth(&self) -> usize {
        let places = self.table.len();
        if places_enough(places, self.len + 1) { 0 } else { places_next(places) - places }
    }

    /// How many places more it has when so many more entries have come, one by one.
    fn growth_by(&self, entries: usize) -> usize {
        let mut places = self.table.len();
        while !places_enough(places, self.len + entries) {
            places = places_next(places);
        }
        places - self.table.len()
    }

    fn grow(&mut self, places: usize) {
        let bigger = vec![EMPTY; self.table.len() + places];
        let old = std::mem::replace(&mut self.table, bigger);
        old.into_iter().filter(|e| !e.is_empty()).for_each(|e| self.place(e));
    }

    /// The caller has seen to it that there is room.
    fn put(&mut self, entry: Entry) {
        self.place(entry);
        self.len += 1;
    }

    /// Whoever is nearer to his home makes room.
    fn place(&mut self, entry: Entry) {
        let mut entry = entry;
        let mut at = self.home(entry.key());
        let mut distance = 0;
        while !self.table[at].is_empty() {
            let theirs = self.distance(at);
            if theirs < distance {
                std::mem::swap(&mut self.table[at], &mut entry);
                distance = theirs;
            }
            at = self.next(at);
            distance += 1;
        }
        self.table[at] = entry;
    }

    /// Remove by moving back whoever is not at home.
    fn remove(&mut self, at: usize) {
        let mut hole = at;
        let mut next = self.next(at);
        while !self.table[next].is_empty() && self.distance(next) > 0 {
            self.table[hole] = self.table[next];
            hole = next;
            next = self.next(next);
        }
        self.table[hole] = EMPTY;
        self.len -= 1;
    }

    /// End the validity of `mask` in every entry of the key.
    fn kill(&mut self, key: BlockKey, mask: u16, dead: &mut KilledList, live: &Live) -> usize {
        let before = self.len;
        while let Some(at) = self.position(key, |entry| entry.valid & mask != 0) {
            let entry = &mut self.table[at];
            live.end(entry, entry.valid & mask);
            dead.push(Killed {
                page: entry.page(),
                mask: entry.valid & mask,
                dirty: entry.dirty(),
                frequency: entry.frequency(),
                tenant: entry.tenant(),
            });
            entry.valid &= !mask;
            if entry.valid == 0 {
                self.remove(at);
            }
        }
        before - self.len
    }
}

impl Index {
    /// An index that never holds more than `entries_max` entries.
    #[must_use]
    pub(crate) fn new(entries_max: usize) -> Index {
        let shards = Index::shards_for(entries_max);
        let shards: Vec<_> = (0..shards).map(|_| Mutex::new(Shard::new())).collect();
        let places_max = Index::memory_bytes_max(entries_max as u64) / std::mem::size_of::<Entry>() as u64;
        Index {
            places: AtomicUsize::new(shards.len() * SHARD_PLACES_MIN),
            places_max: usize::try_from(places_max).unwrap_or(usize::MAX),
            shards,
            entries: AtomicUsize::new(0),
            entries_max,
            dirty_max: entries_max,
            refused: AtomicBool::new(false),
            live: Arc::default(),
            tally: Arc::default(),
            forgets_tenants: false,
        }
    }

    /// The same, which keeps `live` true.
    pub(crate) fn with_live(self, live: &Arc<Live>) -> Index {
        Index { live: live.clone(), ..self }
    }

    /// The same, counted together with others. `forgets_tenants`: deliberately wrong.
    pub(crate) fn with_tally(self, tally: &Arc<Tally>, forgets_tenants: bool) -> Index {
        Index { tally: tally.clone(), forgets_tenants, ..self }
    }

    /// How much each tenant has, in this index and those counted together with it.
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn uncount(&self, dead: &[Killed]) {
        dead.iter().for_each(|killed| self.tally.sub(killed.tenant, killed.mask.count_ones()));
    }

    /// Let somebody look at an entry, and count it anew when it has another tenant.
    fn shown(tally: &Tally, entry: &mut Entry, f: &mut impl FnMut(&mut Entry)) {
        let before = entry.tenant();
        f(entry);
        let after = entry.tenant();
        if before != after {
            tally.sub(before, entry.valid.count_ones());
            tally.add(after, entry.valid.count_ones());
        }
    }

    fn shards_for(entries_max: usize) -> usize {
        (entries_max / SHARD_ENTRIES).next_power_of_two().clamp(SHARDS_MIN, SHARDS_MAX)
    }

    /// The shard of a block.
    pub(crate) fn shard_of(&self, key: BlockKey) -> usize {
        key.hash() as usize & (self.shards.len() - 1)
    }

    fn shard(&self, key: BlockKey) -> &Mutex<Shard> {
        &self.shards[self.shard_of(key)]
    }

    /// The most entries.
    #[must_use]
    pub(crate) fn entries_max(&self) -> usize {
        self.entries_max
    }

    /// The same, but with room for up to `dirty_max` entries when one that is dirty comes: it is nowhere else. Whoever makes
    /// new ones looks before.
    #[must_use]
    pub(crate) fn with_dirty_max(self, dirty_max: usize) -> Index {
        Index { dirty_max: dirty_max.max(self.entries_max), ..self }
    }

    /// Whether an entry was refused since this was asked last.
    #[must_use]
    pub(crate) fn take_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) && self.refused.swap(false, Ordering::Relaxed)
    }

    /// Whether it holds as many entries as it may.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.entries_max
    }

    /// Entries now.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Bytes of its tables.
    #[must_use]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|s| lock(s).table.len() * std::mem::size_of::<Entry>()).sum()
    }

    /// Bytes of the tables of an index made for `entries` when they are all there: a table that has just grown has 9/8 of
    /// 16/15 places an entry.
    #[must_use]
    pub(crate) fn memory_bytes_max(entries: u64) -> u64 {
        let entry_bytes = std::mem::size_of::<Entry>() as u64;
        let fresh = Index::shards_for(usize::try_from(entries).unwrap_or(usize::MAX)) * (SHARD_PLACES_MIN + 2);
        fresh as u64 * entry_bytes + (entries * 6).div_ceil(5) * entry_bytes
    }

    /// Look at, and change the meta bits of, every entry of a block, under the shard's lock.
    pub(crate) fn visit(&self, key: BlockKey, mut f: impl FnMut(&mut Entry)) {
        let mut shard = lock(self.shard(key));
        let mut at = shard.home(key);
        let mut distance = 0;
        while !shard.table[at].is_empty() {
            if shard.table[at].key() == key {
                Self::shown(&self.tally, &mut shard.table[at], &mut f);
            } else if shard.distance(at) < distance {
                return;
            }
            at = shard.next(at);
            distance += 1;
        }
    }

    /// The entry of a block whose data starts at `page`.
    #[must_use]
    pub(crate) fn get_at(&self, key: BlockKey, page: Page) -> Option<Entry> {
        let shard = lock(self.shard(key));
        shard.position(key, |e| e.page == page.0).map(|at| shard.table[at])
    }

    /// Whether parts of a block are valid in any entry.
    #[must_use]
    pub(crate) fn has_any(&self, key: BlockKey, mask: u16) -> bool {
        let mut any = false;
        self.visit(key, |entry| any |= entry.valid & mask != 0);
        any
    }

    /// Add an entry; parts of it that older entries hold die there: see [`Ending::insert`].
    ///
    /// # Errors
    /// [`IndexFull`]: nothing was changed.
    fn insert(&self, entry: Entry) -> Result<KilledList, IndexFull> {
        // Reserved before it is added: two that come at once do not exceed the limit together.
        let max = if entry.dirty() { self.dirty_max } else { self.entries_max };
        let one_more = |n: usize| (n < max).then_some(n + 1);
        if self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            self.refused.store(true, Ordering::Relaxed);
            return Err(IndexFull);
        }
        let mut dead = KilledList::new();
        let mut shard = lock(self.shard(entry.key()));
        let growth = shard.growth();
        if growth > 0 {
            let places_max = if entry.dirty() { usize::MAX } else { self.places_max };
            let more = |places: usize| Some(places + growth).filter(|places| *places <= places_max);
            if self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
                self.entries.fetch_sub(1, Ordering::Relaxed);
                self.refused.store(true, Ordering::Relaxed);
                return Err(IndexFull);
            }
            shard.grow(growth);
        }
        let gone = shard.kill(entry.key(), entry.valid, &mut dead, &self.live);
        shard.put(entry);
        self.live.begin(&entry, entry.valid);
        self.entries.fetch_sub(gone, Ordering::Relaxed);
        self.uncount(&dead);
        self.tally.add(entry.tenant(), entry.valid.count_ones());
        Ok(dead)
    }

    /// Whether so many clean entries more by shard, dead ones among them counted, are sure to find room.
    pub(crate) fn takes(&self, counts: &[u32]) -> bool {
        let more: usize = counts.iter().map(|&count| count as usize).sum();
        let growth = self.shards.iter().zip(counts).map(|(shard, &count)| lock(shard).growth_by(count as usize));
        let places = self.places.load(Ordering::Relaxed) + growth.sum::<usize>();
        self.len() + more <= self.entries_max && places <= self.places_max
    }

    /// Add clean entries of one shard in their order, as [`Index::insert`] would; `f` is called with each that ended parts of
    /// others, and with those. The caller has asked [`Index::takes`], and nobody else adds any.
    pub(crate) fn fill(&self, shard: usize, entries: Vec<Entry>, f: &mut dyn FnMut(Entry, KilledList)) {
        let mut shard = lock(&self.shards[shard]);
        let growth = shard.growth_by(entries.len());
        if growth > 0 {
            self.places.fetch_add(growth, Ordering::Relaxed);
            shard.grow(growth);
        }
        let before = shard.len;
        for entry in entries {
            let mut dead = KilledList::new();
            shard.kill(entry.key(), entry.valid, &mut dead, &self.live);
            shard.put(entry);
            self.live.begin(&entry, entry.valid);
            self.uncount(&dead);
            self.tally.add(entry.tenant(), entry.valid.count_ones());
            if !dead.is_empty() {
                f(entry, dead);
            }
        }
        // One may have ended more than one.
        let after = shard.len;
        self.entries.fetch_add(after, Ordering::Relaxed);
        self.entries.fetch_sub(before, Ordering::Relaxed);
    }

    /// End the validity of parts of a block.
    fn kill(&self, key: BlockKey, mask: u16) -> KilledList {
        let mut dead = KilledList::new();
        let mut shard = lock(self.shard(key));
        let gone = shard.kill(key, mask, &mut dead, &self.live);
        self.entries.fetch_sub(gone, Ordering::Relaxed);
        self.uncount(&dead);
        dead
    }

    /// End the validity of `mask` in the entry whose data starts at `page`.
    fn cut_at(&self, key: BlockKey, page: Page, mask: u16) -> KilledList {
        let mut dead = KilledList::new();
        let mut shard = lock(self.shard(key));
        let Some(at) = shard.position(key, |e| e.page == page.0) else { return dead };
        let entry = &mut shard.table[at];
        let ended = entry.valid & mask;
        if ended == 0 {
            return dead;
        }
        let (dirty, frequency, tenant) = (entry.dirty(), entry.frequency(), entry.tenant());
        dead.push(Killed { page, mask: ended, dirty, frequency, tenant });
        self.live.end(entry, ended);
        entry.valid &= !mask;
        if entry.valid == 0 {
            shard.remove(at);
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        self.uncount(&dead);
        dead
    }

    /// The data of an entry was copied: if it still has the valid parts `expected`, it now starts at `to`, packed.
    /// Whether it was so.
    fn relocate(&self, key: BlockKey, from: Page, expected: u16, to: Page, frequency: u8) -> bool {
        let mut shard = lock(self.shard(key));
        let Some(at) = shard.position(key, |e| e.page == from.0) else { return false };
        let entry = shard.table[at];
        if entry.valid != expected || entry.dirty() {
            return false;
        }
        let tenant = if self.forgets_tenants { Tenant::NOBODY } else { entry.tenant() };
        self.live.end(&entry, entry.valid);
        shard.table[at] = Entry::new(key, to, expected, frequency, entry.suspect()).of(tenant);
        self.live.begin(&shard.table[at], expected);
        true
    }

    /// Call `f` with every entry, shard by shard, each under its lock.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&mut Entry)) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let all = shard.table.iter_mut().filter(|e| !e.is_empty());
            all.for_each(|entry| Self::shown(&self.tally, entry, &mut f));
        }
    }

    /// How many shards it has.
    #[must_use]
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Call `f` with every entry of one shard, under its lock: for walks that let others go between.
    ///
    /// # Panics
    /// When there is no such shard.
    pub(crate) fn for_each_of(&self, shard: usize, mut f: impl FnMut(&mut Entry)) {
        let mut shard = lock(&self.shards[shard]);
        let all = shard.table.iter_mut().filter(|e| !e.is_empty());
        all.for_each(|entry| Self::shown(&self.tally, entry, &mut f));
    }

    /// Go round from a place on, at most so many places, and call `f` with every entry there until it says enough. Where to go on.
    /// Tables change meanwhile: an entry may be missed in a round, or met twice.
    pub(crate) fn go_round(&self, from: Place, places_max: u32, mut f: impl FnMut(&mut Entry) -> bool) -> Place {
        let Place { shard, mut at } = from;
        let mut number = shard as usize % self.shards.len();
        let mut left = places_max as usize;
        loop {
            let mut shard = lock(&self.shards[number]);
            let end = shard.table.len().min((at as usize).saturating_add(left));
            for place in at as usize..end {
                let mut enough = false;
                let entry = &mut shard.table[place];
                if !entry.is_empty() {
                    Self::shown(&self.tally, entry, &mut |entry| enough = f(entry));
                }
                if enough {
                    return Place { shard: number as u32, at: place as u32 + 1 };
                }
            }
            left -= end.saturating_sub(at as usize);
            if end < shard.table.len() {
                return Place { shard: number as u32, at: end as u32 };
            }
            (number, at) = ((number + 1) % self.shards.len(), 0);
            if left == 0 {
                return Place { shard: number as u32, at };
            }
        }
    }

    /// Forget everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let all = shard.table.iter().filter(|e| !e.is_empty());
            all.for_each(|entry| {
                self.live.end(entry, entry.valid);
                self.tally.sub(entry.tenant(), entry.valid.count_ones());
            });
            self.entries.fetch_sub(shard.len, Ordering::Relaxed);
            self.places.fetch_sub(shard.table.len() - SHARD_PLACES_MIN, Ordering::Relaxed);
            *shard = Shard::new();
        }
    }
}

/// A place in the tables, see [`Index::go_round`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: u32,
    pub(crate) at: u32,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({} entries)", self.len())
    }
}

#[cfg(test)]
mod tests;
