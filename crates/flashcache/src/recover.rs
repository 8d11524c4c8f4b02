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
use crate::units::{BlockKey, SegmentId};
use device::sync::lock;
use device::{Buf, Outcome};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Segments read at the same time.
const READS_IN_FLIGHT_MAX: usize = 32;

/// A segment's records, each with the sequence of its chunk, in order.
pub(crate) struct Found {
    pub(crate) life: SegmentLife,
    pub(crate) records: Vec<(u64, Record)>,
    pub(crate) last_sequence: u64,
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
    let mut found = Found { life, records: Vec::new(), last_sequence: header.sequence, footer };
    found.records.extend(records.into_iter().map(|r| (header.sequence, r)));
    let mut position = header.pages;
    while position + shape.align < shape.segment_pages {
        let page = read_bytes(member, start + u64::from(position) * 4096, unit).await?;
        let Ok((header, records)) = format::decode_chunk(&page, owner) else { break };
        if header.life != life || header.position.0 != position || header.sequence <= found.last_sequence {
            break;
        }
        found.last_sequence = header.sequence;
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
    let mut found = Found { life, records: Vec::new(), last_sequence: trailer.sequence, footer: Footer::Whole };
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
}

type Place = (SegmentId, u32, u32);

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
        let mut killed: BTreeMap<Place, u16> = BTreeMap::new();
        let mut marks: BTreeMap<RegionKey, (u64, bool)> = BTreeMap::new();
        let mut last_sequence = 0;
        for segment in found.values() {
            last_sequence = last_sequence.max(segment.last_sequence);
            result.walked += u64::from(segment.footer != Footer::Whole);
            result.torn_footers += u64::from(segment.footer == Footer::Torn);
            for (sequence, record) in &segment.records {
                match record {
                    Record::Free { segment, generation } => {
                        let last = freed.entry(*segment).or_insert(0);
                        *last = (*last).max(*generation);
                    }
                    Record::Invalidation { segment, generation, position, mask } => {
                        *killed.entry((*segment, *generation, position.0)).or_insert(0) |= mask;
                    }
                    Record::Mark { disk, generation, region, set } => {
                        if let Some(key) = self.region_key(*disk, *generation, *region) {
                            let mark = marks.entry(key).or_insert((*sequence, *set));
                            if *sequence >= mark.0 {
                                *mark = (*sequence, *set);
                            }
                        }
                    }
                    Record::Entry { .. } | Record::Chunk { .. } => {}
                }
            }
        }
        self.restore_segments(&found, &freed, last_sequence);
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
        result.entries = self.restore_entries(&found, &killed, owned);
        self.sync_at_last().await?;
        Ok(result)
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
                    segment.state = SegmentState::Sealed(f.life.head);
                    segment.proven = true;
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
        log.set_next_sequence(last_sequence + 1);
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

    fn restore_entries(
        &self,
        found: &BTreeMap<SegmentId, Found>,
        killed: &BTreeMap<Place, u16>,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> u64 {
        let mut in_order: Vec<(u64, SegmentId, &Record)> = Vec::new();
        for (id, segment) in found {
            in_order.extend(segment.records.iter().map(|(sequence, record)| (*sequence, *id, record)));
        }
        // Stable: records of one chunk keep their order.
        in_order.sort_by_key(|&(sequence, _, _)| sequence);
        for (_, id, record) in in_order {
            let Record::Entry { kind: EntryKind::Clean, name, mask, position, crcs } = record else { continue };
            let Some(slot) = self.slot_of(name.disk, name.generation) else { continue };
            if u32::from(*mask) >> self.block_parts != 0 || name.block >= 1 << 44 {
                continue;
            }
            let end = position.0 + mask.count_ones();
            if end > self.shape.segment_pages {
                continue;
            }
            let Some(segment) = found.get(&id) else { continue };
            let dead = killed.get(&(id, segment.life.generation, position.0)).copied().unwrap_or(0);
            if mask & !dead == 0 {
                continue;
            }
            let page = self.shape.page(id, position.0);
            for (k, crc) in crcs.iter().enumerate() {
                self.crcs[page.0 as usize + k].store(*crc, std::sync::atomic::Ordering::Release);
            }
            let region = name.block * u64::from(self.block_parts) / crate::units::REGION_PARTS;
            let suspect =
                !self.sabotaged(Sabotage::UnflushedFillKept) && self.regions.is_marked(RegionKey { slot, region });
            if !owned(name.disk, region) {
                // Another member serves the region now: writes there will not end this copy, so it ends here.
                let mut dead_here = KilledList::new();
                dead_here.push(Killed { page, mask: mask & !dead });
                self.append_deaths(&mut lock(&self.log), &dead_here);
                continue;
            }
            let key = BlockKey::new(slot, name.block);
            let entry = Entry::new(key, page, *mask, 0, suspect).without(dead);
            if let Ok(superseded) = self.index.insert(entry)
                && !superseded.is_empty()
            {
                self.append_deaths(&mut lock(&self.log), &superseded);
            }
        }
        self.index.len() as u64
    }
}
