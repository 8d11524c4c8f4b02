//! Recovery: the index and the unsettled regions back from the footers and chunks on flash.
//!
//! Reads footers of sealed segments, walks chunks only where there is no footer, and believes nothing of an older era,
//! generation or opening. It only adds to the log: what it finds in force and at risk is written again before anything
//! is served.

use crate::counters::add;
use crate::format::{self, EntryKind, HeadKind, Record, SegmentLife, TRAILER_BYTES};
use crate::index::{Entry, Killed, KilledList};
use crate::log::SegmentState;
use crate::member::{Member, MemberError};
use crate::regions::RegionKey;
use crate::sabotage::Sabotage;
use crate::units::{BlockKey, Position, SegmentId};
use device::sync::lock;
use device::{Buf, Outcome};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Segments read at the same time.
const READS_IN_FLIGHT_MAX: usize = 32;

/// A segment's records, each with the sequence of its chunk, in order.
pub(crate) struct Found {
    pub(crate) life: SegmentLife,
    pub(crate) records: Vec<(u64, Record)>,
    pub(crate) last_sequence: u64,
    /// What its headers say of the member: chunks up to this sequence were durable.
    pub(crate) durable: u64,
    pub(crate) footer: Footer,
}

/// What was found at the end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Footer {
    /// Whole.
    Whole,
    /// A footer of this life whose records do not match their checksum.
    Torn,
    /// None of this life.
    None,
}

/// The flash did not answer a read: what it holds there is not known, and may say that something elsewhere is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadFailed {
    pub(crate) offset: u64,
    pub(crate) outcome: Outcome,
}

async fn read_bytes(member: &Member, offset: u64, len: usize) -> Result<Vec<u8>, ReadFailed> {
    let read = member.config.device.read(offset, Buf::zeroed(len).into());
    match member.within_hard_limit(read).await {
        Some(done) if done.outcome == Outcome::Done => Ok(done.bufs.to_vec(0..len)),
        done => Err(ReadFailed { offset, outcome: done.map_or(Outcome::Unknown, |done| done.outcome) }),
    }
}

/// Read what a segment says of itself: by its footer, or chunk by chunk. None: nothing of this owner.
pub(crate) async fn read_segment(member: &Member, id: SegmentId) -> Result<Option<Found>, ReadFailed> {
    let (shape, owner) = (member.shape, &member.config.owner);
    let unit = shape.align as usize * 4096;
    let segment_bytes = shape.segment_pages as usize * 4096;
    let start = u64::from(id.0) * segment_bytes as u64;
    let first = read_bytes(member, start, unit).await?;
    let Ok((header, records)) = format::decode_chunk(&first, owner) else { return Ok(None) };
    if header.life.segment != id || header.position.0 != 0 {
        return Ok(None);
    }
    let life = header.life;
    let footer = match read_footer(member, life, start).await {
        Ok(found) => return Ok(Some(found)),
        Err(footer) => footer,
    };
    let mut found =
        Found { life, records: Vec::new(), last_sequence: header.sequence, durable: header.durable, footer };
    found.records.extend(records.into_iter().map(|r| (header.sequence, r)));
    let mut position = header.pages;
    while position + shape.align < shape.segment_pages {
        let page = read_bytes(member, start + u64::from(position) * 4096, unit).await?;
        let Ok((header, records)) = format::decode_chunk(&page, owner) else { break };
        if header.life != life || header.position.0 != position || header.sequence <= found.last_sequence {
            break;
        }
        found.last_sequence = header.sequence;
        found.durable = found.durable.max(header.durable);
        found.records.extend(records.into_iter().map(|r| (header.sequence, r)));
        position += header.pages;
    }
    Ok(Some(found))
}

/// A footer that cannot be read is none: the chunks say the same.
async fn read_footer(member: &Member, life: SegmentLife, start: u64) -> Result<Found, Footer> {
    let (shape, owner) = (member.shape, &member.config.owner);
    let unit = shape.align as usize * 4096;
    let segment_bytes = shape.segment_pages as usize * 4096;
    let last = read_bytes(member, start + (segment_bytes - unit) as u64, unit).await.map_err(|_| Footer::None)?;
    let trailer = format::decode_trailer(&last[unit - TRAILER_BYTES..], owner).map_err(|_| Footer::None)?;
    if trailer.life != life {
        return Err(Footer::None);
    }
    let bytes = format::footer_bytes(trailer.records_bytes, unit);
    let whole = if bytes == unit {
        last
    } else {
        let from = segment_bytes.checked_sub(bytes).ok_or(Footer::Torn)?;
        read_bytes(member, start + from as u64, bytes).await.map_err(|_| Footer::Torn)?
    };
    let (trailer, records) = format::decode_footer(&whole, owner).map_err(|_| Footer::Torn)?;
    let (last_sequence, durable) = (trailer.sequence, trailer.durable);
    let mut found = Found { life, records: Vec::new(), last_sequence, durable, footer: Footer::Whole };
    let mut sequence = 0;
    for record in records {
        match record {
            Record::Chunk { sequence: next, .. } => sequence = next,
            other => found.records.push((sequence, other)),
        }
    }
    Ok(found)
}

/// What recovery found, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments with content.
    pub segments: u64,
    /// Segments read chunk by chunk: they had no whole footer.
    pub walked: u64,
    /// Those of them that had a footer, but a torn one.
    pub torn_footers: u64,
    /// Entries in the index.
    pub entries: u64,
    /// Regions to compare with the disk.
    pub unsettled_regions: u64,
    /// Dirty parts: the disk has older data there.
    pub dirty_parts: u64,
    /// Dirty parts a crash had torn before they were durable.
    pub torn_parts: u64,
}

/// Sequences of each life of the cache begin at a multiple of 2^32: more chunks than a flash device survives.
const LIFE_SHIFT: u32 = 32;

/// In which life of the cache a chunk of this sequence was written.
fn life_of(sequence: u64) -> u64 {
    sequence >> LIFE_SHIFT
}

/// A segment, a generation of it, a position.
type Place = (SegmentId, u32, u32);

/// What records say of entries elsewhere: which parts are dead, which are clean although they were dirty.
#[derive(Default)]
struct Said {
    dead: BTreeMap<Place, u16>,
    cleaned: BTreeMap<Place, u16>,
}

impl Said {
    fn dead(&self, at: Place) -> u16 {
        self.dead.get(&at).copied().unwrap_or(0)
    }

    /// Of an entry's parts: those that are alive and newer than the disk.
    fn dirty(&self, at: Place, kind: EntryKind, mask: u16) -> u16 {
        let cleaned = self.cleaned.get(&at).copied().unwrap_or(0);
        if matches!(kind, EntryKind::Dirty | EntryKind::Mirror) { mask & !self.dead(at) & !cleaned } else { 0 }
    }
}

/// A chunk that was durable, by a later header, and whose segment has not been freed since, but which is not there. Its
/// records may be what ends entries elsewhere.
///
/// A header proves something of chunks of its own life only: what an earlier life had lost, undurable, was found missing then,
/// and is not there for a good reason.
fn missing_chunk(found: &BTreeMap<SegmentId, Found>, freed: &BTreeMap<SegmentId, u32>) -> Option<u64> {
    let mut durable: BTreeMap<u64, u64> = BTreeMap::new();
    for segment in found.values().filter(|segment| segment.durable > 0) {
        let last = durable.entry(life_of(segment.durable)).or_insert(0);
        *last = (*last).max(segment.durable);
    }
    let all = || found.values().flat_map(|segment| &segment.records);
    let there: BTreeSet<u64> = all().map(|(sequence, _)| *sequence).collect();
    let links = all().filter_map(|(_, record)| match record {
        Record::Link { segment, generation, sequence } => Some((*segment, *generation, *sequence)),
        _ => None,
    });
    let missing = |&(segment, generation, sequence): &(SegmentId, u32, u64)| {
        let freed_since = freed.get(&segment).is_some_and(|&last| last >= generation);
        let reused = found.get(&segment).is_some_and(|f| f.life.generation > generation);
        let was_durable = durable.get(&life_of(sequence)).is_some_and(|&last| sequence <= last);
        was_durable && !there.contains(&sequence) && !freed_since && !reused
    };
    links.filter(missing).map(|(_, _, sequence)| sequence).next()
}

impl Member {
    /// Rebuild from flash. Grid disks must be registered before; entries of others are void, and entries of regions that
    /// `owned` (grid disk id, region) says are another member's end here.
    ///
    /// # Errors
    /// The flash cannot be written, or a segment cannot be read: what it held may be what ends an entry elsewhere.
    pub(crate) async fn recover(
        self: &Arc<Self>,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Recovered, MemberError> {
        let mut found = self.read_all().await?;
        let mut result = Recovered::default();
        let mut freed: BTreeMap<SegmentId, u32> = BTreeMap::new();
        let mut said = Said::default();
        let mut durable = 0;
        let mut marks: BTreeMap<RegionKey, (u64, bool)> = BTreeMap::new();
        let mut last_sequence = 0;
        for segment in found.values() {
            last_sequence = last_sequence.max(segment.last_sequence);
            durable = durable.max(segment.durable);
            result.walked += u64::from(segment.footer != Footer::Whole);
            result.torn_footers += u64::from(segment.footer == Footer::Torn);
            for (sequence, record) in &segment.records {
                match record {
                    Record::Free { segment, generation } => {
                        let last = freed.entry(*segment).or_insert(0);
                        *last = (*last).max(*generation);
                    }
                    Record::Invalidation { segment, generation, position, mask, cleaned } => {
                        let list = if *cleaned { &mut said.cleaned } else { &mut said.dead };
                        *list.entry((*segment, *generation, position.0)).or_insert(0) |= mask;
                    }
                    Record::Mark { disk, generation, region, set } => {
                        if let Some(key) = self.region_key(*disk, *generation, *region) {
                            let mark = marks.entry(key).or_insert((*sequence, *set));
                            if *sequence >= mark.0 {
                                *mark = (*sequence, *set);
                            }
                        }
                    }
                    Record::Entry { .. } | Record::Chunk { .. } | Record::Link { .. } => {}
                }
            }
        }
        if let Some(sequence) = missing_chunk(&found, &freed) {
            return Err(MemberError::Failed(format!(
                "recovery: chunk {sequence} was acknowledged as durable and is not there: nothing on the device can be believed"
            )));
        }
        let alive = |id: &SegmentId, s: &Found| freed.get(id).is_none_or(|&g| g < s.life.generation);
        let torn = self.find_torn(&found, &alive, &said, durable).await?;
        self.restore_segments(&found, &freed, last_sequence);
        for &(place, mask) in &torn {
            result.torn_parts += u64::from(mask.count_ones());
            *said.dead.entry(place).or_insert(0) |= mask;
            let mut log = lock(&self.log);
            let (segment, generation, position) = (place.0, place.1, Position(place.2));
            log.append_record(Record::Invalidation { segment, generation, position, mask, cleaned: false });
        }
        add(&self.counters.dirty_torn, result.torn_parts);
        for (&key, &(_, set)) in &marks {
            if set {
                self.regions.restore(key);
                result.unsettled_regions += 1;
            }
        }
        // What only a freed segment still says would be lost with its reuse: say it again before anything is reused.
        for (id, segment) in &found {
            if freed.get(id).is_some_and(|&g| g >= segment.life.generation) {
                self.carry_from_freed(*id, segment);
            }
        }
        found.retain(|id, s| freed.get(id).is_none_or(|&g| g < s.life.generation));
        result.segments = found.len() as u64;
        result.entries = self.restore_entries(&found, &said, owned);
        result.dirty_parts = self.dirty.pages();
        add(&self.counters.dirty_recovered, result.dirty_parts);
        self.sync_at_last().await?;
        self.release_dirty_segments().await?;
        Ok(result)
    }

    /// Dirty parts of chunks that are not known to have been durable and whose data is not there: they were never written.
    /// What of them is there is made durable, before anybody is told of it.
    async fn find_torn(
        self: &Arc<Self>,
        found: &BTreeMap<SegmentId, Found>,
        alive: &(dyn Fn(&SegmentId, &Found) -> bool + Sync),
        said: &Said,
        durable: u64,
    ) -> Result<Vec<(Place, u16)>, MemberError> {
        let mut doubtful = Vec::new();
        for (id, segment) in found.iter().filter(|(id, segment)| alive(id, segment)) {
            for (_, record) in segment.records.iter().filter(|(sequence, _)| *sequence > durable) {
                let Record::Entry { kind, name, mask, position, crcs } = record else { continue };
                let place = (*id, segment.life.generation, position.0);
                let fits = position.0 + mask.count_ones() <= self.shape.segment_pages;
                if fits && said.dirty(place, *kind, *mask) != 0 {
                    doubtful.push((place, *name, *mask, crcs));
                }
            }
        }
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let mut torn = Vec::new();
        let mut under_way = FuturesUnordered::new();
        let mut next = doubtful.into_iter();
        loop {
            while under_way.len() < READS_IN_FLIGHT_MAX {
                let Some((place, name, mask, crcs)) = next.next() else { break };
                under_way.push(async move {
                    let offset = self.device_offset(self.shape.page(place.0, place.2));
                    let read = read_bytes(self, offset, mask.count_ones() as usize * 4096).await;
                    (place, name, mask, crcs, read)
                });
            }
            let Some((place, name, mask, crcs, read)) = under_way.next().await else { break };
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(ReadFailed { offset, outcome }) => {
                    add(&self.counters.errors, 1);
                    return Err(MemberError::Failed(format!("recovery: read at {offset}: {outcome:?}")));
                }
            };
            let mut bad = 0;
            let mut good: Vec<Range<usize>> = Vec::new();
            for (k, part) in (0..16_u64).filter(|p| mask >> p & 1 == 1).enumerate() {
                let number = name.block.saturating_mul(u64::from(self.block_parts)).saturating_add(part);
                let crc = format::part_crc(name.disk, name.generation, number, &bytes[k * 4096..(k + 1) * 4096]);
                bad |= u16::from(crc != crcs[k]) << part;
                match good.last_mut() {
                    _ if crc != crcs[k] => {}
                    Some(last) if last.end == k => last.end = k + 1,
                    _ => good.push(k..k + 1),
                }
            }
            if bad != 0 {
                torn.push((place, bad));
            }
            if self.config.device.geometry().discard_bytes > 0 {
                // A page that was discarded and whose write was lost may read as anything, as what it held before too, and
                // the next time as something else.
                for run in good {
                    let offset = self.device_offset(self.shape.page(place.0, place.2 + run.start as u32));
                    self.write_again(offset, &bytes[run.start * 4096..run.end * 4096]).await?;
                }
            }
        }
        // What was read here must not change its mind at a later power cut.
        match self.within_hard_limit(self.config.device.flush()).await {
            Some(done) if done.outcome == Outcome::Done => Ok(torn),
            done => Err(MemberError::Failed(format!("recovery: flush: {:?}", done.map(|d| d.outcome)))),
        }
    }

    async fn write_again(&self, offset: u64, bytes: &[u8]) -> Result<(), MemberError> {
        let data = Buf::padded(bytes, 4096).freeze();
        match self.within_hard_limit(self.config.device.write(offset, data.into(), false)).await {
            Some(done) if done.outcome == Outcome::Done => Ok(()),
            done => {
                add(&self.counters.errors, 1);
                let outcome = done.map(|done| done.outcome);
                Err(MemberError::Failed(format!("recovery: write at {offset}: {outcome:?}")))
            }
        }
    }

    async fn read_all(self: &Arc<Self>) -> Result<BTreeMap<SegmentId, Found>, MemberError> {
        let mut found = BTreeMap::new();
        let mut under_way = FuturesUnordered::new();
        let mut next = 0;
        loop {
            while next < self.shape.segments && under_way.len() < READS_IN_FLIGHT_MAX {
                let id = SegmentId(next);
                next += 1;
                under_way.push(async move { (id, read_segment(self, id).await) });
            }
            match under_way.next().await {
                Some((id, Ok(Some(segment)))) => {
                    found.insert(id, segment);
                }
                Some((_, Ok(None))) => {}
                Some((_, Err(ReadFailed { offset, outcome }))) => {
                    add(&self.counters.errors, 1);
                    return Err(MemberError::Failed(format!("recovery: read at {offset}: {outcome:?}")));
                }
                None => return Ok(found),
            }
        }
    }

    fn restore_segments(
        &self,
        found: &BTreeMap<SegmentId, Found>,
        freed: &BTreeMap<SegmentId, u32>,
        last_sequence: u64,
    ) {
        let mut log = lock(&self.log);
        let mut order: Vec<(u64, SegmentId, HeadKind)> = Vec::new();
        for index in 0..self.shape.segments {
            let id = SegmentId(index);
            let freed_at = freed.get(&id).copied().unwrap_or(0);
            let segment = &mut log.segments[index as usize];
            match found.get(&id) {
                Some(f) if f.life.generation > freed_at => {
                    segment.generation = f.life.generation;
                    segment.proven = true;
                    log.set_state(id, SegmentState::Sealed(f.life.head));
                    order.push((f.last_sequence, id, f.life.head));
                }
                other => {
                    segment.generation = other.map_or(freed_at, |f| f.life.generation.max(freed_at));
                    segment.state = SegmentState::Free;
                    log.free.push_back(id);
                }
            }
        }
        order.sort_unstable_by_key(|&(sequence, id, _)| (sequence, id));
        for (_, id, head) in order {
            log.sealed[head as usize].push_back(id);
        }
        log.set_next_sequence((life_of(last_sequence) + 1) << LIFE_SHIFT);
    }

    fn carry_from_freed(&self, id: SegmentId, segment: &Found) {
        for (_, record) in &segment.records {
            let marked = self.is_mark_in_force(record);
            let mut log = lock(&self.log);
            if marked || log.still_needed(record, id) {
                log.append_record(record.clone());
            }
        }
    }

    /// Clean entries in the order of their sequences, then dirty ones: what is dirty and not dead is newer than every clean
    /// copy, whichever was written later.
    fn restore_entries(
        &self,
        found: &BTreeMap<SegmentId, Found>,
        said: &Said,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> u64 {
        let mut in_order: Vec<(u64, SegmentId, &Record)> = Vec::new();
        for (id, segment) in found {
            in_order.extend(segment.records.iter().map(|(sequence, record)| (*sequence, *id, record)));
        }
        // Stable: records of one chunk keep their order.
        in_order.sort_by_key(|&(sequence, _, _)| sequence);
        for dirty_ones in [false, true] {
            for &(_, id, record) in &in_order {
                if let Some(segment) = found.get(&id) {
                    self.restore_entry(id, segment.life.generation, record, said, dirty_ones, owned);
                }
            }
        }
        self.index.len() as u64
    }

    fn restore_entry(
        &self,
        id: SegmentId,
        generation: u32,
        record: &Record,
        said: &Said,
        dirty_ones: bool,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) {
        let Record::Entry { kind, name, mask, position, crcs } = record else { return };
        if !matches!(kind, EntryKind::Clean | EntryKind::Dirty | EntryKind::Mirror) {
            return;
        }
        let Some(slot) = self.slot_of(name.disk, name.generation) else { return };
        if u32::from(*mask) >> self.block_parts != 0 || name.block >= 1 << 44 {
            return;
        }
        if position.0 + mask.count_ones() > self.shape.segment_pages {
            return;
        }
        let place = (id, generation, position.0);
        let (dead, dirty) = (said.dead(place), said.dirty(place, *kind, *mask));
        if mask & !dead == 0 || (dirty != 0) != dirty_ones {
            return;
        }
        let page = self.shape.page(id, position.0);
        for (k, crc) in crcs.iter().enumerate() {
            self.crcs[page.0 as usize + k].store(*crc, std::sync::atomic::Ordering::Release);
        }
        let key = BlockKey::new(slot, name.block);
        if dirty != 0 {
            // Parts of it that are clean have a younger dirty version elsewhere, or the disk has them.
            let clean = mask & !dead & !dirty;
            if clean != 0 {
                let mut ended = KilledList::new();
                ended.push(Killed::clean(page, clean));
                self.append_deaths(&mut lock(&self.log), &ended);
            }
            let mut entry = Entry::new(key, page, *mask, 0, false).without(!dirty);
            entry.set_dirty(true);
            if let Ok(superseded) = self.dirty.insert(&self.index, entry, id, self.world.clock.now()) {
                self.append_deaths(&mut lock(&self.log), &superseded);
            }
            return;
        }
        let region = name.block * u64::from(self.block_parts) / crate::units::REGION_PARTS;
        let suspect =
            !self.sabotaged(Sabotage::UnflushedFillKept) && self.regions.is_marked(RegionKey { slot, region });
        if !owned(name.disk, region) {
            // Another member serves the region now: writes there will not end this copy, so it ends here.
            let mut dead_here = KilledList::new();
            dead_here.push(Killed::clean(page, mask & !dead));
            self.append_deaths(&mut lock(&self.log), &dead_here);
            return;
        }
        let entry = Entry::new(key, page, *mask, 0, suspect).without(dead);
        let ended = self.index.insert(entry).unwrap_or_else(|crate::index::IndexFull| {
            // Older copies end as if it had come in, and so does it: nobody would name it when it is overwritten, and a start
            // with more memory would serve it stale.
            let mut ended = self.index.kill(key, mask & !dead);
            ended.push(Killed::clean(page, mask & !dead));
            ended
        });
        if !ended.is_empty() {
            self.append_deaths(&mut lock(&self.log), &ended);
        }
    }
}
