//! Verification of the log after a start from a checkpoint.
//!
//! Each full segment has its records in two places: in the headers of its chunks and in its footer. A start from a checkpoint reads neither,
//! and the recovery after the next crash needs one of them. So this task reads both in the background, segment by segment, and writes again
//! what is lost from the other. Where both are lost, the index is the third place: it knows which entries of the segment count. What the lost
//! records may have said of other segments is recorded again first, then the segment gets a footer with its entries.
//!
//! The price is one read at a time for at most a quarter of the time, and the memory of one segment's records. Never reads data, never waits
//! for a range, and never touches a segment that has been opened in this life.

use crate::base::counters::add;
use crate::base::sabotage::Sabotage;
use crate::base::units::{BLOCKS_MAX, BlockKey, Opening, Position, SegmentId};
use crate::data::read::Pin;
use crate::format::{self, BlockName, ChunkHeader, EntryKind, HeadKind, Record, SegmentLife, Trailer};
use crate::log::carry::Carried;
use crate::log::{SegmentState, Shape};
use crate::member::segment::{Footer, Read, read_bytes, read_footer_records, read_segment};
use crate::member::{Member, MemberError};
use device::Buf;
use device::sync::lock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// For each nanosecond of reading the task pauses so many.
const PAUSE_PER_READ: u32 = 3;
/// The shortest pause between two segments.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The pause while the device is over its soft limit.
const PAUSE_WHILE_SLOW: Duration = Duration::from_millis(100);
/// Records appended between two syncs while records are said again: fewer than writers wait for.
const SAID_AT_ONCE_MAX: usize = 1024;

/// A full segment of an earlier life, held against reuse.
struct Held {
    segment: SegmentId,
    opening: Opening,
    /// The head it is full at, which need not be the one it was written at.
    head: HeadKind,
    last_sequence: u64,
    _pin: Pin,
}

/// What the two copies of a segment's records were.
enum Verified {
    /// Both are on flash, after so many pages have been written again.
    Whole(u64),
    /// Neither is.
    Damaged,
}

/// The task ends before it has read all segments: the member stops or has failed, or its device does not answer.
struct Interrupted;

impl From<MemberError> for Interrupted {
    fn from(_: MemberError) -> Interrupted {
        Interrupted
    }
}

/// A chunk as a footer has it.
struct Chunk<'a> {
    position: Position,
    sequence: u64,
    records: &'a [Record],
}

/// The chunks of a footer's records whose headers lie before the footer, each with the page behind it. A footer made from the index names
/// chunks without a header.
fn chunks_of(records: &[Record], shape: Shape, footer_pages: u32) -> Vec<(Chunk<'_>, u32)> {
    let mut chunks: Vec<Chunk<'_>> = Vec::new();
    let is_chunk = |record: &Record| matches!(record, Record::Chunk { .. });
    for (n, record) in records.iter().enumerate() {
        let Record::Chunk { position, sequence } = *record else { continue };
        let behind = &records[n + 1..];
        let len = behind.iter().position(is_chunk).unwrap_or(behind.len());
        if position.0 + footer_pages < shape.segment_pages {
            chunks.push(Chunk { position, sequence, records: &behind[..len] });
        }
    }
    let ends: Vec<u32> = chunks.iter().skip(1).map(|chunk| chunk.position.0).collect();
    let mut ends = ends.into_iter();
    let with_end = |chunk| {
        let end = ends.next().unwrap_or_else(|| end_of(&chunk, shape));
        (chunk, end)
    };
    chunks.into_iter().map(with_end).collect()
}

/// The page behind a chunk, by the data that its records name.
fn end_of(chunk: &Chunk<'_>, shape: Shape) -> u32 {
    let end = |record: &Record| match record {
        Record::Entry { position, sums, .. } => position.0 + sums.len() as u32,
        _ => 0,
    };
    let data_end = chunk.records.iter().map(end).max().unwrap_or(0);
    data_end.max(chunk.position.0 + shape.align).next_multiple_of(shape.align)
}

impl Member {
    /// Bytes of the segments that the verification after a start from a checkpoint has not reached, free ones included. 0 after any other start.
    #[must_use]
    pub fn unverified_bytes(&self) -> u64 {
        u64::from(self.unverified.load(Ordering::Acquire)) * u64::from(self.config.segment_bytes)
    }

    /// Verify the log where the start was from a checkpoint; ends when all of it has been read, or the member stops or fails.
    pub(crate) async fn run_verification(self: Arc<Self>) {
        if self.unverified_bytes() > 0 && !self.sabotaged(Sabotage::LogNotVerified) {
            let _ = self.verify_all().await;
        }
    }

    async fn verify_all(self: &Arc<Self>) -> Result<(), Interrupted> {
        let (all, life) = (self.shape.segments, lock(&self.log).life);
        // Each start begins elsewhere: a cell that is restarted often verifies all of the log nevertheless.
        let first = (u64::from(life).wrapping_mul(0x9e37_79b9) % u64::from(all)) as u32;
        for n in 0..all {
            let began = self.world.clock.now();
            let id = SegmentId(((u64::from(first) + u64::from(n)) % u64::from(all)) as u32);
            if let Some(held) = self.hold_earlier(id).await? {
                match self.verify_segment(&held).await? {
                    Verified::Whole(written) => add(&self.counters.log_repairs, written),
                    Verified::Damaged => {
                        drop(held);
                        let repaired = self.repair_from_index(id).await?;
                        add(if repaired { &self.counters.log_repairs } else { &self.counters.log_damage }, 1);
                    }
                }
                self.pause_verification(began).await?;
            }
            self.unverified.store(all - n - 1, Ordering::Release);
        }
        Ok(())
    }

    /// Let others have the device, for longer the longer it took to answer.
    async fn pause_verification(&self, began: device::Instant) -> Result<(), Interrupted> {
        let took = Duration::from_nanos(self.world.clock.now().ns_since(began));
        self.world.clock.sleep((took * PAUSE_PER_READ).max(PAUSE_MIN)).await;
        while self.slow.load(Ordering::Acquire) && !self.is_over() {
            self.world.clock.sleep(PAUSE_WHILE_SLOW).await;
        }
        if self.is_over() { Err(Interrupted) } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        self.has_failed() || self.stopping.load(Ordering::SeqCst) || self.frozen.load(Ordering::Acquire)
    }

    /// A segment, if it is full and of an earlier life. Waits while reclaim decides whether it stays.
    async fn hold_earlier(self: &Arc<Self>, id: SegmentId) -> Result<Option<Held>, Interrupted> {
        loop {
            let ticket = self.changed.ticket();
            if self.is_over() {
                return Err(Interrupted);
            }
            {
                let log = lock(&self.log);
                let segment = &log.segments[id.0 as usize];
                let (opening, last_sequence) = (segment.opening, segment.last_sequence);
                match segment.state {
                    _ if opening.life() >= log.life => return Ok(None),
                    // Under the log's lock: reclaim takes a segment under it, and waits for pins afterwards.
                    SegmentState::Sealed(head) => {
                        let pin = Pin::passing(self, id);
                        return Ok(Some(Held { segment: id, opening, head, last_sequence, _pin: pin }));
                    }
                    SegmentState::Reclaiming => {}
                    SegmentState::Free | SegmentState::Open(_) => return Ok(None),
                }
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Read both copies of a segment's records, and write again what of one is lost.
    async fn verify_segment(&self, held: &Held) -> Result<Verified, Interrupted> {
        let mut written = 0;
        let footer = match self.footer_of(held).await {
            Some(footer) => footer,
            None => match self.footer_by_headers(held).await? {
                Some(footer) => {
                    written += 1;
                    footer
                }
                None => return Ok(Verified::Damaged),
            },
        };
        let (trailer, records) = footer;
        let footer_pages = self.shape.footer_pages(trailer.records_bytes);
        for (chunk, end) in chunks_of(&records, self.shape, footer_pages) {
            written += u64::from(self.verify_header(&trailer, &chunk, end).await?);
        }
        Ok(Verified::Whole(written))
    }

    /// The footer of a segment, if it is there and is that of its opening.
    async fn footer_of(&self, held: &Held) -> Option<(Trailer, Vec<Record>)> {
        let (trailer, records) = read_footer_records(self, held.segment).await?;
        let is_its = (trailer.life.opening, trailer.sequence) == (held.opening, held.last_sequence);
        is_its.then_some((trailer, records))
    }

    /// Write the footer of a segment again, from its headers. None where one of those is lost too.
    async fn footer_by_headers(&self, held: &Held) -> Result<Option<(Trailer, Vec<Record>)>, Interrupted> {
        let found = match read_segment::<Vec<(u64, Record)>>(self, held.segment).await {
            Ok(Read::Found(found)) => found,
            Ok(Read::Unread(why)) | Err(why) if !why.is_of_part() => return Err(Interrupted),
            _ => return Ok(None),
        };
        let is_all = found.life.opening == held.opening && found.last_sequence == held.last_sequence;
        if !is_all || found.footer == Footer::Whole {
            return Ok(None);
        }
        let Some((position, bytes)) = self.footer_by_walk(&found) else { return Ok(None) };
        self.write_durably(held.segment, position, &bytes).await?;
        Ok(self.footer_of(held).await)
    }

    /// Write to a segment that is held. Nothing is written once the member stops: the device may have another owner soon.
    async fn write_durably(&self, segment: SegmentId, position: u32, bytes: &[u8]) -> Result<(), Interrupted> {
        // Before the look whether the member stops: whoever stops it looks at this afterwards.
        self.repairs.store(true, Ordering::SeqCst);
        let written = if self.is_over() {
            Err(Interrupted)
        } else {
            self.spend(bytes.len() as u64);
            let offset = self.device_offset(self.shape.page(segment, position));
            let data = Buf::padded(bytes, 4096).freeze();
            self.write_in_place(offset, data.into(), true).await.map_err(Interrupted::from)
        };
        self.repairs.store(false, Ordering::SeqCst);
        self.changed.notify_all();
        written
    }

    /// After the member has been told to stop: the last write of the verification has ended when this returns.
    pub(crate) async fn await_last_repair(&self) {
        loop {
            let ticket = self.changed.ticket();
            if !self.repairs.load(Ordering::SeqCst) || self.has_failed() {
                return;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Whether the header of a chunk had to be written again, from the footer.
    async fn verify_header(&self, trailer: &Trailer, chunk: &Chunk<'_>, end: u32) -> Result<bool, Interrupted> {
        let (owner, unit) = (self.config.owner, self.shape.align as usize * 4096);
        let offset = self.device_offset(self.shape.page(trailer.life.segment, chunk.position.0));
        let is_there = match read_bytes(self, offset, unit).await {
            Ok(page) => format::decode_chunk(&page, &owner).is_ok_and(|(header, records)| {
                let place = (header.life, header.position, header.sequence);
                place == (trailer.life, chunk.position, chunk.sequence) && records == chunk.records
            }),
            Err(why) if why.is_of_part() => false,
            Err(_) => return Err(Interrupted),
        };
        if is_there {
            return Ok(false);
        }
        let (position, pages) = (chunk.position, end - chunk.position.0);
        let (life, sequence, durable) = (trailer.life, chunk.sequence, trailer.durable);
        let header = ChunkHeader { owner, life, position, pages, sequence, durable };
        let mut page = vec![0; unit];
        format::encode_chunk(&header, chunk.records, &mut page);
        self.write_durably(life.segment, position.0, &page).await?;
        Ok(true)
    }

    /// Both copies of a segment's records are lost. Record again whatever they may have said of other segments, then write a footer with the
    /// entries of the index that lie in the segment. False where that cannot be known.
    async fn repair_from_index(self: &Arc<Self>, damaged: SegmentId) -> Result<bool, Interrupted> {
        let mut linked: BTreeSet<u64> = BTreeSet::new();
        for n in (0..self.shape.segments).filter(|&n| SegmentId(n) != damaged) {
            let began = self.world.clock.now();
            let Some(held) = self.hold_earlier(SegmentId(n)).await? else { continue };
            let Some((_, records)) = self.footer_or_headers(&held).await? else { continue };
            for record in &records {
                if let Record::Link { segment, sequence, .. } = record
                    && *segment == damaged
                {
                    linked.insert(*sequence);
                }
            }
            let Some(said) = self.said_of_segment(&held, &records) else { return Ok(false) };
            self.say_again(said).await?;
            self.pause_verification(began).await?;
        }
        self.say_again(self.said_of_log(damaged)).await?;
        self.sync_said().await?;
        let Some(held) = self.hold_earlier(damaged).await? else { return Ok(true) };
        self.footer_by_index(&held, linked).await
    }

    async fn footer_or_headers(&self, held: &Held) -> Result<Option<(Trailer, Vec<Record>)>, Interrupted> {
        match self.footer_of(held).await {
            Some(footer) => Ok(Some(footer)),
            None => self.footer_by_headers(held).await,
        }
    }

    /// What is known of a segment's entries that its own records do not say. `None`: a grid disk that is not served here may have dirty
    /// data in the segment, of which the index knows nothing.
    fn said_of_segment(&self, held: &Held, records: &[Record]) -> Option<Vec<Record>> {
        let names = self.disk_names();
        let is_served = |disk: u64| names.iter().flatten().any(|name| name.id == disk);
        let mut said = Vec::new();
        for record in records {
            let Record::Entry { kind, name, mask, position, .. } = record else { continue };
            let is_dirty = matches!(kind, EntryKind::Dirty | EntryKind::Mirror);
            let Some(slot) = self.slot_of(name.disk, name.generation) else {
                if is_dirty && !is_served(name.disk) {
                    return None;
                }
                continue;
            };
            if name.block >= BLOCKS_MAX {
                continue;
            }
            let page = self.shape.page(held.segment, position.0);
            let entry = self.index.get_at(BlockKey::new(slot, name.block), page);
            let valid = entry.map_or(0, |entry| entry.valid()) & mask;
            let of = |mask: u16, cleaned: bool| Record::Invalidation {
                segment: held.segment,
                opening: held.opening,
                position: *position,
                mask,
                cleaned,
            };
            if mask & !valid != 0 {
                said.push(of(mask & !valid, false));
            }
            if valid != 0 && is_dirty && entry.is_some_and(|entry| !entry.dirty()) {
                said.push(of(valid, true));
            }
        }
        Some(said)
    }

    /// Which segments are free, which chunks are the last ones of segments, and which regions are marked.
    fn said_of_log(&self, damaged: SegmentId) -> Vec<Record> {
        let marks = self.regions.keys().into_iter().filter_map(|key| {
            let name = self.disk_name(key.slot)?;
            Some(Record::Mark { disk: name.id, generation: name.generation, region: key.region, set: true })
        });
        let mut said: Vec<Record> = marks.collect();
        let log = lock(&self.log);
        for (n, segment) in log.segments.iter().enumerate() {
            let (id, opening) = (SegmentId(n as u32), segment.opening);
            let is_earlier = opening.life() < log.life;
            match segment.state {
                _ if opening == Opening::NEVER => {}
                SegmentState::Free => said.push(Record::Free { segment: id, opening }),
                _ if is_earlier && id != damaged => {
                    said.push(Record::Link { segment: id, opening, sequence: segment.last_sequence, certain: true });
                }
                _ if !is_earlier && !segment.proven => {
                    said.push(Record::Free { segment: id, opening: Opening(opening.0 - 1) });
                }
                _ => {}
            }
        }
        said
    }

    async fn say_again(self: &Arc<Self>, said: Vec<Record>) -> Result<(), Interrupted> {
        for some in said.chunks(SAID_AT_ONCE_MAX) {
            {
                let mut log = lock(&self.log);
                let mut carried = Carried::default();
                for record in some {
                    match record {
                        // The entry may have been overwritten a moment ago: its successor has to be durable first.
                        Record::Invalidation { cleaned: false, .. } => log.append_once_durable(record.clone()),
                        other => carried.add(other),
                    }
                }
                let _ = log.append_carried(carried);
            }
            if said.len() > SAID_AT_ONCE_MAX {
                self.sync().await?;
            }
        }
        Ok(())
    }

    /// Write a footer of the entries that count in a segment. `linked`: sequences of its chunks that other segments name.
    async fn footer_by_index(self: &Arc<Self>, held: &Held, mut linked: BTreeSet<u64>) -> Result<bool, Interrupted> {
        let life = self.life_of(held).await;
        let mut entries: Vec<Record> = Vec::new();
        for shard in 0..self.index.shards() {
            self.index.for_each_of(shard, |entry| {
                let (segment, position) = self.shape.place(entry.page());
                let Some(name) = (segment == held.segment).then(|| self.disk_name(entry.key().slot())).flatten() else {
                    return;
                };
                let sums = &self.sums[entry.page().0 as usize..][..entry.mask().count_ones() as usize];
                entries.push(Record::Entry {
                    kind: if entry.dirty() { EntryKind::Dirty } else { EntryKind::Clean },
                    name: BlockName { disk: name.id, generation: name.generation, block: entry.key().block() },
                    mask: entry.mask(),
                    position,
                    sums: sums.iter().map(|sum| sum.load(Ordering::Acquire)).collect(),
                });
            });
        }
        entries.sort_by_key(|record| match record {
            Record::Entry { position, .. } => position.0,
            _ => 0,
        });
        linked.insert(held.last_sequence);
        // Chunks without a header: what says that they were there has a record of no consequence, and the last has the entries.
        let (nowhere, note) = (Position(self.shape.segment_pages - 1), self.policy.note());
        let mut records: Vec<Record> = Vec::new();
        for sequence in linked {
            records.push(Record::Chunk { position: nowhere, sequence });
            records.push(Record::PolicyNote { note });
        }
        let end = entries.last().map_or(0, |record| match record {
            Record::Entry { position, sums, .. } => position.0 + sums.len() as u32,
            _ => 0,
        });
        records.extend(entries);
        let footer_pages = self.shape.footer_pages(records.iter().map(Record::encoded_bytes).sum());
        if end + footer_pages > self.shape.segment_pages {
            return Ok(false);
        }
        // Of entries that count in part: the footer must not bring the rest back.
        let Some(said) = self.said_of_segment(held, &records) else { return Ok(false) };
        self.say_again(said).await?;
        self.sync_said().await?;
        let (owner, sequence, unit) = (self.config.owner, held.last_sequence, self.shape.align as usize * 4096);
        // A clean stop has made all that was written before it durable.
        let bytes = format::encode_footer(owner, life, sequence, sequence, &records, unit);
        self.write_durably(held.segment, self.shape.segment_pages - footer_pages, &bytes).await?;
        Ok(self.footer_of(held).await.is_some())
    }

    /// The opening as the first page of the segment names it, which a footer has to agree with; where that is lost, nothing does.
    async fn life_of(&self, held: &Held) -> SegmentLife {
        let offset = self.device_offset(self.shape.page(held.segment, 0));
        let first = read_bytes(self, offset, self.shape.align as usize * 4096).await.ok();
        let header = first.and_then(|page| format::visit_chunk(&page, &self.config.owner, &mut |_, _| {}).ok());
        let life = header.map(|header| header.life).filter(|life| life.opening == held.opening);
        life.unwrap_or(SegmentLife { segment: held.segment, opening: held.opening, head: held.head })
    }

    /// All that was said again is durable: once for what is said at once, and once for what is said when its successor is durable.
    async fn sync_said(self: &Arc<Self>) -> Result<(), MemberError> {
        self.sync().await?;
        self.sync().await
    }
}
