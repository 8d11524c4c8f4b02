//! What recovery keeps of a log while it reads it, 16 bytes an entry, and how that becomes the index.
//!
//! Entries are put into the index shard by shard, those of each block in the order of their sequences: the outcome is that
//! of all of them in the order of their sequences, but memory is touched in order. Never does I/O.

use crate::base::regions::RegionKey;
use crate::base::sabotage::Sabotage;
use crate::base::units::{BLOCKS_MAX, BlockKey, DiskSlot, Opening, Position, REGION_PARTS, SegmentId};
use crate::format::{BlockName, EntryKind, Record, Seen, SeenEntry, SegmentLife};
use crate::index::{Dead, Entry, IndexFull, Killed, KilledList};
use crate::member::segment::{Found, Gather};
use crate::member::{DiskName, Member};
use device::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// How often an entry counts as hit that was found in the log: hits are not in it, and what is cached has lasted there. With 0 the first
/// segments that are looked at would all be cold, whatever was hot before the crash.
const FREQUENCY_FOUND: u8 = 1;

/// An entry of a registered grid disk, as its segment names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundEntry {
    key: BlockKey,
    /// At most 2^14, see [`crate::base::units::SEGMENT_PAGES_MAX`].
    position: u16,
    mask: u16,
    /// Parts that are not dead, and of them those newer than the disk; known once everything has been read.
    alive: u16,
    dirty: u16,
}

const _: () = assert!(std::mem::size_of::<FoundEntry>() == 16);
const _: () = assert!(crate::base::units::SEGMENT_PAGES_MAX <= 1 << 16);

/// The entries of a chunk: those from `first` on, up to the next chunk's; none lies before page `position`.
#[derive(Clone, Copy, Debug)]
struct ChunkEntries {
    sequence: u64,
    first: u32,
    position: u32,
}

/// What a segment says, without what nobody needs again: checksums go where they stay.
#[derive(Debug, Default)]
pub(crate) struct Sparse {
    chunks: Vec<ChunkEntries>,
    entries: Vec<FoundEntry>,
    /// Marks, invalidations, free records and links, each with the sequence of its chunk.
    pub(crate) notes: Vec<(u64, Record)>,
    /// Dirty entries: those of registered grid disks by place in `entries`, all others as they are.
    dirty: Vec<u32>,
    strangers: Vec<(u64, Record)>,
    /// The grid disk of the last entry.
    last: Option<((u64, u32), Option<DiskSlot>)>,
}

impl Gather for Sparse {
    fn gather(&mut self, member: &Member, life: SegmentLife, sequence: u64, seen: Seen<'_>) {
        if self.chunks.last().is_none_or(|chunk| chunk.sequence != sequence) {
            // Entries lie one behind the other in a segment, in the order of their records.
            let position = self.entries.last().map_or(0, |entry| u32::from(entry.position) + 1);
            self.chunks.push(ChunkEntries { sequence, first: self.entries.len() as u32, position });
        }
        match seen {
            Seen::Entry(entry) => self.gather_entry(member, life, sequence, &entry),
            Seen::Other(note) => self.notes.push((sequence, note)),
        }
    }
}

impl Sparse {
    fn gather_entry(&mut self, member: &Member, life: SegmentLife, sequence: u64, seen: &SeenEntry<'_>) {
        let SeenEntry { kind, name, mask, position, .. } = *seen;
        let is_dirty = matches!(kind, EntryKind::Dirty | EntryKind::Mirror);
        if !is_dirty && kind != EntryKind::Clean || position.0 + mask.count_ones() > member.shape.segment_pages {
            return;
        }
        let named = (name.disk, name.generation);
        let slot = match self.last {
            Some((last, slot)) if last == named => slot,
            _ => member.slot_of(name.disk, name.generation),
        };
        self.last = Some((named, slot));
        let is_within = u32::from(mask) >> member.block_parts == 0 && name.block < BLOCKS_MAX;
        let Some(slot) = slot.filter(|_| is_within) else {
            if is_dirty {
                self.strangers.push((sequence, Record::of(Seen::Entry(*seen))));
            }
            return;
        };
        // Whether the entry counts or not: nobody else's data lies there.
        let page = member.shape.page(life.segment, position.0);
        for (k, sum) in seen.sums().enumerate() {
            member.sums[page.0 as usize + k].store(sum, Ordering::Release);
        }
        if is_dirty {
            self.dirty.push(self.entries.len() as u32);
        }
        let (key, position) = (BlockKey::new(slot, name.block), position.0 as u16);
        if self.entries.is_empty() {
            // As many whole blocks as a segment holds: most segments have about that many.
            self.entries.reserve((member.shape.segment_pages / member.block_parts) as usize);
        }
        self.entries.push(FoundEntry { key, position, mask, alive: mask, dirty: 0 });
    }

    /// The sequence of the chunk of the entry with this number.
    fn sequence_of(&self, entry: u32) -> u64 {
        let at = self.chunks.partition_point(|chunk| chunk.first <= entry);
        self.chunks.get(at.wrapping_sub(1)).map_or(0, |chunk| chunk.sequence)
    }

    /// The same by its position.
    fn sequence_at(&self, position: u32) -> u64 {
        let at = self.chunks.partition_point(|chunk| chunk.position <= position);
        self.chunks.get(at.wrapping_sub(1)).map_or(0, |chunk| chunk.sequence)
    }

    /// The clean entries of a chunk that are alive.
    fn clean_of(&self, chunk: u32) -> impl Iterator<Item = &FoundEntry> {
        let first = self.chunks[chunk as usize].first as usize;
        let end = self.chunks.get(chunk as usize + 1).map_or(self.entries.len(), |next| next.first as usize);
        self.entries[first..end].iter().filter(|entry| entry.alive != 0 && entry.dirty == 0)
    }

    /// Sequences of its chunks.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.iter().map(|chunk| chunk.sequence)
    }

    /// Dirty entries of chunks after `durable`, in their order: place, name, mask and checksums.
    pub(crate) fn dirty_after(&self, member: &Member, life: SegmentLife, durable: u64) -> Vec<Record> {
        let known = self.dirty.iter().map(|&at| (self.sequence_of(at), at));
        let mut all: Vec<Record> = Vec::new();
        for (_, at) in known.filter(|(sequence, _)| *sequence > durable) {
            let entry = &self.entries[at as usize];
            let Some(name) = member.disk_name(entry.key.slot()) else { continue };
            let page = member.shape.page(life.segment, u32::from(entry.position)).0 as usize;
            let sums = &member.sums[page..page + entry.mask.count_ones() as usize];
            all.push(Record::Entry {
                kind: EntryKind::Dirty,
                name: BlockName { disk: name.id, generation: name.generation, block: entry.key.block() },
                mask: entry.mask,
                position: Position(u32::from(entry.position)),
                sums: sums.iter().map(|sum| sum.load(Ordering::Acquire)).collect(),
            });
        }
        let strangers = self.strangers.iter().filter(|(sequence, _)| *sequence > durable);
        all.extend(strangers.map(|(_, record)| record.clone()));
        // A segment is filled from its first page to its last.
        all.sort_by_key(|record| match record {
            Record::Entry { position, .. } => position.0,
            _ => 0,
        });
        all
    }
}

/// A segment, an opening of it, a position.
pub(crate) type Place = (SegmentId, Opening, u32);

/// What a record says of parts of an entry elsewhere.
#[derive(Clone, Copy, Debug)]
struct Word {
    opening: Opening,
    segment: SegmentId,
    /// The position, and in the top bit whether they are clean, though the entry was dirty; otherwise they are dead.
    position_and_cleaned: u16,
    mask: u16,
}

const CLEANED_BIT: u16 = 1 << 15;
const _: () = assert!(crate::base::units::SEGMENT_PAGES_MAX <= CLEANED_BIT as u32);

impl Word {
    fn position(&self) -> u32 {
        u32::from(self.position_and_cleaned & !CLEANED_BIT)
    }
    fn cleaned(&self) -> bool {
        self.position_and_cleaned & CLEANED_BIT != 0
    }
    fn place(&self) -> Place {
        (self.segment, self.opening, self.position())
    }
}

const _: () = assert!(std::mem::size_of::<Word>() == 16);

/// What records say of entries elsewhere, by place.
#[derive(Debug, Default)]
pub(crate) struct Said {
    words: Vec<Word>,
    sorted: bool,
}

impl Said {
    pub(crate) fn say(&mut self, place: Place, mask: u16, cleaned: bool) {
        let (segment, opening, position) = place;
        let position_and_cleaned = position as u16 | if cleaned { CLEANED_BIT } else { 0 };
        self.words.push(Word { opening, segment, position_and_cleaned, mask });
        self.sorted = false;
    }

    /// Before anything is asked.
    pub(crate) fn sort(&mut self) {
        self.words.sort_unstable_by_key(Word::place);
        self.sorted = true;
    }

    /// What is said of one life of a segment.
    fn of(&self, segment: SegmentId, opening: Opening) -> &[Word] {
        assert!(self.sorted, "what was said is sorted before it is asked");
        let from = self.words.partition_point(|word| word.place() < (segment, opening, 0));
        let len = self.words[from..].partition_point(|word| (word.segment, word.opening) == (segment, opening));
        &self.words[from..from + len]
    }

    /// Of an entry's parts: those that are alive and newer than the disk.
    pub(crate) fn dirty(&self, place: Place, kind: EntryKind, mask: u16) -> u16 {
        let (dead, cleaned) = said_of(self.of(place.0, place.1), place.2);
        if matches!(kind, EntryKind::Dirty | EntryKind::Mirror) { mask & !dead & !cleaned } else { 0 }
    }
}

/// Dead and cleaned parts of the entry at a position.
fn said_of(words: &[Word], position: u32) -> (u16, u16) {
    let from = words.partition_point(|word| word.position() < position);
    let (mut dead, mut cleaned) = (0, 0);
    for word in words[from..].iter().take_while(|word| word.position() == position) {
        *(if word.cleaned() { &mut cleaned } else { &mut dead }) |= word.mask;
    }
    (dead, cleaned)
}

/// Entries between two moments at which others go on, a millisecond or so: a large index takes many seconds, and grid disks may be served
/// meanwhile.
const TURN_ENTRIES: usize = 1 << 14;

/// Gives way to others now and then.
#[derive(Default)]
struct Turns(usize);

impl Turns {
    async fn after(&mut self, entries: usize) {
        self.0 += entries;
        if self.0 >= TURN_ENTRIES {
            self.0 = 0;
            device::spawn::yield_now().await;
        }
    }
}

/// What was found, by segment.
pub(crate) type FoundSparse = BTreeMap<SegmentId, Found<Sparse>>;

/// An entry that ends others, or itself: its sequence and position, and the dead.
type Ended = ((u64, u32), KilledList);

/// What has to be known of a clean entry before it goes into the index.
struct Sieve<'a> {
    member: &'a Member,
    disks: Vec<Option<DiskName>>,
    /// Regions whose blocks have to be compared with the disk, ascending.
    marked: Vec<RegionKey>,
    owned: &'a (dyn Fn(u64, u64) -> bool + Sync),
}

impl Sieve<'_> {
    /// The entry for the index; or it ends, since another member serves the region now: writes there would not end it.
    fn look(&self, id: SegmentId, found: &FoundEntry) -> Result<Entry, KilledList> {
        let page = self.member.shape.page(id, u32::from(found.position));
        if !self.is_owned(found.key) {
            return Err([Killed::clean(page, found.alive)].into_iter().collect());
        }
        let suspect = self.is_suspect(found.key);
        Ok(Entry::new(found.key, page, found.mask, FREQUENCY_FOUND, suspect).without(found.mask & !found.alive))
    }

    fn region_of(&self, key: BlockKey) -> u64 {
        key.block() * u64::from(self.member.block_parts) / REGION_PARTS
    }

    fn is_owned(&self, key: BlockKey) -> bool {
        let name = self.disks.get(usize::from(key.slot().0)).copied().flatten();
        name.is_some_and(|name| (self.owned)(name.id, self.region_of(key)))
    }

    fn is_suspect(&self, key: BlockKey) -> bool {
        let region = || RegionKey { slot: key.slot(), region: self.region_of(key) };
        !self.marked.is_empty() && self.marked.binary_search(&region()).is_ok()
    }
}

impl Member {
    /// Clean entries in the order of their sequences, then dirty ones: what is dirty and not dead is newer than every clean
    /// copy, whichever was written later. `said` is sorted.
    pub(crate) async fn restore_entries(
        &self,
        mut found: FoundSparse,
        said: &Said,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> u64 {
        let mut turns = Turns::default();
        let mut counts = vec![0; self.index.shards()];
        let mut chunks: Vec<(u64, SegmentId, u32)> = Vec::new();
        let mut dirty: Vec<(u64, SegmentId, FoundEntry)> = Vec::new();
        for (&id, segment) in &mut found {
            let words = said.of(id, segment.life.opening);
            let sparse = &mut segment.records;
            if !words.is_empty() {
                for entry in &mut sparse.entries {
                    entry.alive = entry.mask & !said_of(words, u32::from(entry.position)).0;
                }
            }
            for &at in &sparse.dirty {
                let entry = &mut sparse.entries[at as usize];
                entry.dirty = entry.alive & !said_of(words, u32::from(entry.position)).1;
                let entry = *entry;
                if entry.dirty != 0 {
                    dirty.push((sparse.sequence_of(at), id, entry));
                }
            }
            for n in 0..sparse.chunks.len() as u32 {
                sparse.clean_of(n).for_each(|entry| counts[self.index.shard_of(entry.key)] += 1);
                chunks.push((sparse.chunks[n as usize].sequence, id, n));
            }
            turns.after(sparse.entries.len()).await;
        }
        chunks.sort_unstable();
        dirty.sort_by_key(|&(sequence, id, _)| (sequence, id));
        let sieve = self.sieve(owned);
        let mut ended = if self.index.takes(&counts) {
            self.restore_by_shard(found, &chunks, &counts, &sieve).await
        } else {
            self.restore_one_by_one(&found, &chunks, &sieve).await
        };
        ended.sort_by_key(|(at, _)| *at);
        {
            let mut log = lock(&self.log);
            ended.iter().for_each(|(_, killed)| self.append_deaths(&mut log, killed));
        }
        for (sequence, id, entry) in dirty {
            self.restore_dirty(id, &entry);
            lock(&self.testimony).found(self.shape.page(id, u32::from(entry.position)), sequence);
            turns.after(1).await;
        }
        self.index.len() as u64
    }

    fn sieve<'a>(&'a self, owned: &'a (dyn Fn(u64, u64) -> bool + Sync)) -> Sieve<'a> {
        let marked = if self.sabotaged(Sabotage::UnflushedFillKept) { Vec::new() } else { self.regions.keys() };
        let disks = self.disk_names();
        Sieve { member: self, disks, marked, owned }
    }

    /// Put entries of which none overlaps another into the index: clean ones by shard, and dirty ones.
    pub(crate) async fn restore_index(
        &self,
        shards: Vec<Vec<Entry>>,
        dirty: Vec<Entry>,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> u64 {
        let mut turns = Turns::default();
        let sieve = self.sieve(owned);
        let counts: Vec<u32> = shards.iter().map(|entries| entries.len() as u32).collect();
        let room_for_all = self.index.takes(&counts);
        let mut ended: Vec<KilledList> = Vec::new();
        for (shard, mut entries) in shards.into_iter().enumerate() {
            turns.after(entries.len()).await;
            entries.retain_mut(|entry| {
                let owned = sieve.is_owned(entry.key());
                entry.set_suspect(sieve.is_suspect(entry.key()));
                if !owned {
                    ended.push([Killed::clean(entry.page(), entry.valid())].into_iter().collect());
                }
                owned
            });
            if room_for_all {
                self.index.fill(shard, entries, &mut |_, killed| ended.push(killed));
                continue;
            }
            for entry in entries {
                let inserted = self.index.under(&mut lock(&self.log)).insert(entry).map(Dead::unsaid);
                ended
                    .push(inserted.unwrap_or_else(|IndexFull| {
                        [Killed::clean(entry.page(), entry.valid())].into_iter().collect()
                    }));
            }
        }
        {
            let mut log = lock(&self.log);
            ended.iter().for_each(|killed| self.append_deaths(&mut log, killed));
        }
        for entry in dirty {
            let segment = self.segment_of(entry.page());
            let mut log = lock(&self.log);
            let inserted = self.dirty.insert(self.index.under(&mut log), entry, segment, self.world.clock.now());
            inserted.map(|superseded| superseded.record(self)).ok();
        }
        self.index.len() as u64
    }

    /// Sort entries by shard, then build each shard in one go.
    async fn restore_by_shard(
        &self,
        mut found: FoundSparse,
        chunks: &[(u64, SegmentId, u32)],
        counts: &[u32],
        sieve: &Sieve<'_>,
    ) -> Vec<Ended> {
        let mut turns = Turns::default();
        let mut ended = Vec::new();
        let mut shards: Vec<Vec<Entry>> = counts.iter().map(|&count| Vec::with_capacity(count as usize)).collect();
        for &(sequence, id, n) in chunks {
            let Some(segment) = found.get_mut(&id) else { continue };
            turns.after(1 + segment.records.entries.len() / segment.records.chunks.len().max(1)).await;
            for found in segment.records.clean_of(n) {
                match sieve.look(id, found) {
                    Ok(entry) => shards[self.index.shard_of(found.key)].push(entry),
                    Err(killed) => ended.push(((sequence, u32::from(found.position)), killed)),
                }
            }
            // Chunks of a segment come in their order: after the last one nobody asks for its entries again.
            if n as usize + 1 == segment.records.chunks.len() {
                segment.records.entries = Vec::new();
            }
        }
        for (shard, entries) in shards.into_iter().enumerate() {
            turns.after(entries.len()).await;
            self.index.fill(shard, entries, &mut |entry, killed| {
                let (id, position) = self.shape.place(entry.page());
                let sequence = found.get(&id).map_or(0, |segment| segment.records.sequence_at(position.0));
                ended.push(((sequence, position.0), killed));
            });
        }
        ended
    }

    /// The same where not all of them find room: who comes first has it.
    async fn restore_one_by_one(
        &self,
        found: &FoundSparse,
        chunks: &[(u64, SegmentId, u32)],
        sieve: &Sieve<'_>,
    ) -> Vec<Ended> {
        let mut turns = Turns::default();
        let mut ended = Vec::new();
        for &(sequence, id, n) in chunks {
            let Some(segment) = found.get(&id) else { continue };
            turns.after(1 + segment.records.entries.len() / segment.records.chunks.len().max(1)).await;
            for found in segment.records.clean_of(n) {
                let killed = match sieve.look(id, found) {
                    Ok(entry) => {
                        let mut log = lock(&self.log);
                        let inserted = self.index.under(&mut log).insert(entry).map(Dead::unsaid);
                        inserted.unwrap_or_else(|IndexFull| {
                            // Older copies end as if it had come in, and so does it: nobody would name it when it is
                            // overwritten, and a start with more memory would serve it stale.
                            let mut killed = self.index.under(&mut log).kill(found.key, found.alive).unsaid();
                            killed.push(Killed::clean(entry.page(), found.alive));
                            killed
                        })
                    }
                    Err(killed) => killed,
                };
                if !killed.is_empty() {
                    ended.push(((sequence, u32::from(found.position)), killed));
                }
            }
        }
        ended
    }

    fn restore_dirty(&self, id: SegmentId, found: &FoundEntry) {
        let page = self.shape.page(id, u32::from(found.position));
        // Parts of it that are clean have a younger dirty version elsewhere, or the disk has them.
        let clean = found.alive & !found.dirty;
        if clean != 0 {
            let ended = [Killed::clean(page, clean)].into_iter().collect();
            self.append_deaths(&mut lock(&self.log), &ended);
        }
        let mut entry = Entry::new(found.key, page, found.mask, 0, false).without(found.mask & !found.dirty);
        entry.set_dirty(true);
        let mut log = lock(&self.log);
        let inserted = self.dirty.insert(self.index.under(&mut log), entry, id, self.world.clock.now());
        inserted.map(|superseded| superseded.record(self)).ok();
    }
}
