//! The index: which parts of which blocks are on flash, and where. 16 bytes an entry, in sharded open-addressing tables.
//!
//! A block may have several entries with disjoint valid parts. Locks are held for memory work only. Never does I/O, never
//! decides what is cached.

use crate::units::{BlockKey, Page};
use device::sync::lock;
use smallvec::SmallVec;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many shards: enough that threads seldom meet, few enough that tables stay large.
const SHARDS: usize = 64;
/// Entries of a fresh shard.
const SHARD_ENTRIES_MIN: usize = 64;
const META_BITS: u32 = 8;
const FREQUENCY_MASK: u8 = 0b11;
const SUSPECT_BIT: u8 = 0b100;

/// One entry: some parts of a block in consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    key_and_meta: u64,
    page: u32,
    /// The parts it was written with: gives their places.
    mask: u16,
    /// The parts still valid, a subset of `mask`.
    valid: u16,
}

const _: () = assert!(std::mem::size_of::<Entry>() == 16);

const EMPTY: Entry = Entry { key_and_meta: 0, page: 0, mask: 0, valid: 0 };

impl Entry {
    /// An entry with every part of `mask` valid.
    ///
    /// # Panics
    /// When `mask` is empty.
    #[must_use]
    pub fn new(key: BlockKey, page: Page, mask: u16, frequency: u8, suspect: bool) -> Entry {
        assert!(mask != 0, "an entry has parts");
        let meta = frequency & FREQUENCY_MASK | if suspect { SUSPECT_BIT } else { 0 };
        Entry { key_and_meta: key.0 << META_BITS | u64::from(meta), page: page.0, mask, valid: mask }
    }
    /// The same without the parts of `dead`.
    ///
    /// # Panics
    /// When none is left.
    #[must_use]
    pub fn without(mut self, dead: u16) -> Entry {
        self.valid &= !dead;
        assert!(self.valid != 0, "an entry has valid parts");
        self
    }
    /// The block.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        BlockKey(self.key_and_meta >> META_BITS)
    }
    /// The first page of its data.
    #[must_use]
    pub fn page(&self) -> Page {
        Page(self.page)
    }
    /// The parts it was written with.
    #[must_use]
    pub fn mask(&self) -> u16 {
        self.mask
    }
    /// The parts still valid.
    #[must_use]
    pub fn valid(&self) -> u16 {
        self.valid
    }
    /// Where a part of its mask lies.
    #[must_use]
    pub fn page_of_part(&self, part: u32) -> Page {
        Page(self.page + (self.mask & ((1 << part) - 1)).count_ones())
    }
    /// How often it was asked for, saturating at 3.
    #[must_use]
    pub fn frequency(&self) -> u8 {
        self.key_and_meta as u8 & FREQUENCY_MASK
    }
    /// Count a hit.
    pub fn touch(&mut self) {
        if self.frequency() < FREQUENCY_MASK {
            self.key_and_meta += 1;
        }
    }
    /// Count a hit less.
    pub fn cool(&mut self) {
        if self.frequency() > 0 {
            self.key_and_meta -= 1;
        }
    }
    /// It has to be compared with the disk before it is served.
    #[must_use]
    pub fn suspect(&self) -> bool {
        self.key_and_meta as u8 & SUSPECT_BIT != 0
    }
    /// Set or clear [`Entry::suspect`].
    pub fn set_suspect(&mut self, suspect: bool) {
        let bit = u64::from(SUSPECT_BIT);
        self.key_and_meta = if suspect { self.key_and_meta | bit } else { self.key_and_meta & !bit };
    }
    fn is_empty(&self) -> bool {
        self.mask == 0
    }
}

/// Parts of an entry that died: its first page, and which parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// The entry's first page.
    pub page: Page,
    /// The parts that died.
    pub mask: u16,
}

/// The dead of one operation.
pub type KilledList = SmallVec<[Killed; 2]>;

/// The index has reached the size it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFull;

/// The sharded index of one member.
pub struct Index {
    shards: Vec<Mutex<Shard>>,
    entries: AtomicUsize,
    entries_max: usize,
}

struct Shard {
    table: Vec<Entry>,
    len: usize,
}

impl Shard {
    fn home(&self, key: BlockKey) -> usize {
        (key.hash() >> 6) as usize & (self.table.len() - 1)
    }

    /// Positions of the key's entries; stable until something is inserted or removed.
    fn find(&self, key: BlockKey) -> SmallVec<[usize; 4]> {
        let mut found = SmallVec::new();
        let mut at = self.home(key);
        while !self.table[at].is_empty() {
            if self.table[at].key() == key {
                found.push(at);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        found
    }

    fn position(&self, key: BlockKey, page: Page) -> Option<usize> {
        self.find(key).into_iter().find(|&at| self.table[at].page == page.0)
    }

    fn put(&mut self, entry: Entry) {
        if (self.len + 1) * 8 > self.table.len() * 7 {
            let bigger = vec![EMPTY; self.table.len() * 2];
            let old = std::mem::replace(&mut self.table, bigger);
            old.into_iter().filter(|e| !e.is_empty()).for_each(|e| self.place(e));
        }
        self.place(entry);
        self.len += 1;
    }

    fn place(&mut self, entry: Entry) {
        let mut at = self.home(entry.key());
        while !self.table[at].is_empty() {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = entry;
    }

    /// Remove by shifting back what would lose its chain.
    fn remove(&mut self, at: usize) {
        let wrap = self.table.len() - 1;
        let mut hole = at;
        let mut next = (at + 1) & wrap;
        while !self.table[next].is_empty() {
            let home = self.home(self.table[next].key());
            // The entry may move into the hole unless its home lies cyclically in (hole, next].
            if (next.wrapping_sub(home) & wrap) >= (next.wrapping_sub(hole) & wrap) {
                self.table[hole] = self.table[next];
                hole = next;
            }
            next = (next + 1) & wrap;
        }
        self.table[hole] = EMPTY;
        self.len -= 1;
    }

    /// End the validity of `mask` in every entry of the key.
    fn kill(&mut self, key: BlockKey, mask: u16, dead: &mut KilledList) -> usize {
        let before = self.len;
        loop {
            let next = self.find(key).into_iter().find(|&at| self.table[at].valid & mask != 0);
            let Some(at) = next else { break };
            let entry = &mut self.table[at];
            dead.push(Killed { page: entry.page(), mask: entry.valid & mask });
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
    pub fn new(entries_max: usize) -> Index {
        let shard = || Mutex::new(Shard { table: vec![EMPTY; SHARD_ENTRIES_MIN], len: 0 });
        Index { shards: (0..SHARDS).map(|_| shard()).collect(), entries: AtomicUsize::new(0), entries_max }
    }

    fn shard(&self, key: BlockKey) -> &Mutex<Shard> {
        &self.shards[key.hash() as usize % SHARDS]
    }

    /// Entries now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its tables.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|s| lock(s).table.len() * std::mem::size_of::<Entry>()).sum()
    }

    /// Bytes of tables that hold at most `entries`: each shard starts with a minimum and doubles when it is full to 7/8.
    #[must_use]
    pub fn memory_bytes_max(entries: u64) -> u64 {
        let entry_bytes = std::mem::size_of::<Entry>() as u64;
        (SHARDS * SHARD_ENTRIES_MIN) as u64 * entry_bytes + (entries * 16).div_ceil(7) * entry_bytes
    }

    /// Look at, and change the meta bits of, every entry of a block, under the shard's lock.
    pub fn visit(&self, key: BlockKey, mut f: impl FnMut(&mut Entry)) {
        let mut shard = lock(self.shard(key));
        let mut at = shard.home(key);
        let wrap = shard.table.len() - 1;
        while !shard.table[at].is_empty() {
            if shard.table[at].key() == key {
                f(&mut shard.table[at]);
            }
            at = (at + 1) & wrap;
        }
    }

    /// The entry of a block whose data starts at `page`.
    #[must_use]
    pub fn get_at(&self, key: BlockKey, page: Page) -> Option<Entry> {
        let shard = lock(self.shard(key));
        shard.position(key, page).map(|at| shard.table[at])
    }

    /// Add an entry; parts of it that older entries hold die there. `f` runs under the lock with the dead.
    ///
    /// # Errors
    /// [`IndexFull`]: nothing was changed.
    pub fn insert(&self, entry: Entry) -> Result<KilledList, IndexFull> {
        if self.len() >= self.entries_max {
            return Err(IndexFull);
        }
        let mut dead = KilledList::new();
        let mut shard = lock(self.shard(entry.key()));
        let gone = shard.kill(entry.key(), entry.valid, &mut dead);
        shard.put(entry);
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.entries.fetch_sub(gone, Ordering::Relaxed);
        Ok(dead)
    }

    /// End the validity of parts of a block.
    #[must_use]
    pub fn kill(&self, key: BlockKey, mask: u16) -> KilledList {
        let mut dead = KilledList::new();
        let gone = lock(self.shard(key)).kill(key, mask, &mut dead);
        self.entries.fetch_sub(gone, Ordering::Relaxed);
        dead
    }

    /// Forget the entry whose data starts at `page`; the parts that were valid.
    pub fn remove_at(&self, key: BlockKey, page: Page) -> Option<Entry> {
        let mut shard = lock(self.shard(key));
        let at = shard.position(key, page)?;
        let entry = shard.table[at];
        shard.remove(at);
        self.entries.fetch_sub(1, Ordering::Relaxed);
        Some(entry)
    }

    /// The data of an entry was copied: if it still has the valid parts `expected`, it now starts at `to`, packed.
    /// Whether it was so.
    pub fn relocate(&self, key: BlockKey, from: Page, expected: u16, to: Page, frequency: u8) -> bool {
        let mut shard = lock(self.shard(key));
        let Some(at) = shard.position(key, from) else { return false };
        let entry = shard.table[at];
        if entry.valid != expected {
            return false;
        }
        shard.table[at] = Entry::new(key, to, expected, frequency, entry.suspect());
        true
    }

    /// Call `f` with every entry, shard by shard, each under its lock.
    pub fn for_each(&self, mut f: impl FnMut(&mut Entry)) {
        for shard in &self.shards {
            lock(shard).table.iter_mut().filter(|e| !e.is_empty()).for_each(&mut f);
        }
    }

    /// Forget everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            self.entries.fetch_sub(shard.len, Ordering::Relaxed);
            *shard = Shard { table: vec![EMPTY; SHARD_ENTRIES_MIN], len: 0 };
        }
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({} entries)", self.len())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the tables never lose, duplicate or confuse an entry. Method: random operations against a map from
    //! (block, part) to page.
    use super::*;
    use crate::units::DiskSlot;
    use device::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map_of_parts() {
        for seed in 0..40 {
            let mut prng = Prng::new(seed);
            let index = Index::new(10_000);
            let mut model: BTreeMap<(u64, u32), u32> = BTreeMap::new();
            let mut next_page = 0;
            for _ in 0..3000 {
                let key = BlockKey::new(DiskSlot(prng.below(3) as u16), prng.below(300));
                let mask = prng.between(1, 15) as u16;
                match prng.below(4) {
                    0 | 1 => {
                        index.insert(Entry::new(key, Page(next_page), mask, 0, false)).expect("room");
                        for (k, part) in (0..16).filter(|p| mask >> p & 1 == 1).enumerate() {
                            model.insert((key.0, part), next_page + k as u32);
                        }
                        next_page += 16;
                    }
                    2 => {
                        let dead = index.kill(key, mask);
                        let parts: u32 = dead.iter().map(|d| d.mask.count_ones()).sum();
                        let before = model.len();
                        model.retain(|&(k, part), _| k != key.0 || mask >> part & 1 == 0);
                        assert_eq!(parts as usize, before - model.len());
                    }
                    _ => {
                        let mut first = None;
                        index.visit(key, |e| first = first.or(Some(*e)));
                        if let Some(entry) = first {
                            assert!(index.relocate(key, entry.page(), entry.valid(), Page(next_page), 1));
                            for (k, part) in (0..16).filter(|p| entry.valid() >> p & 1 == 1).enumerate() {
                                model.insert((key.0, part), next_page + k as u32);
                            }
                            next_page += 16;
                        }
                    }
                }
            }
            let mut found = BTreeMap::new();
            let mut entries = 0;
            index.for_each(|e| {
                entries += 1;
                for part in (0..16).filter(|p| e.valid() >> p & 1 == 1) {
                    assert!(found.insert((e.key().0, part), e.page_of_part(part).0).is_none());
                }
            });
            assert_eq!(found, model, "seed {seed}");
            assert_eq!(index.len(), entries);
        }
    }
}
