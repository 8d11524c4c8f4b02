//! The checkpoint of a member: written into free segments at a clean stop, read at the next open instead of all footers.
//!
//! It is written when nothing of the log changes any more, and names segments that stay free. The label of the flash device
//! says that it is there; whoever opens the device takes that away before anything changes. Parts that do not read back are no
//! loss: then recovery goes by the footers. Never writes where the log has data.

use crate::base::counters::add;
use crate::base::regions::RegionKey;
use crate::base::units::{BLOCKS_MAX, BlockKey, DiskSlot, Page, Position, SegmentId};
use crate::format::HeadKind;
use crate::format::checkpoint::{
    Binding, CHECKPOINT_SEGMENTS_MAX, Fate, IndexItem, IndexOut, Item, PART_BYTES, PART_FIXED_BYTES, Root, SegmentItem,
    Writer, decode_root, encode_root, visit_part,
};
use crate::index::Entry;
use crate::log::{LogState, LogWrite, Segment, SegmentState, Shape};
use crate::member::segment::read_bytes;
use crate::member::{DiskName, Member, MemberError};
use crate::recovery::recover::{Evidence, Recovered};
use device::sync::lock;
use device::{Buf, Outcome};
use futures_util::future::select;
use futures_util::stream::{FuturesUnordered, StreamExt};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Parts on their way at a time: 1 MiB.
const PARTS_IN_FLIGHT_MAX: usize = 16;
/// Longer than this a checkpoint may not take: a stop has a deadline, and the log says the same.
const WRITE_TIME_MAX: Duration = Duration::from_secs(20);
/// Between two looks whether the log has come to rest.
const REST_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Where a checkpoint begins, as the label of the flash device keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointPlace {
    /// Random, and in each of its parts. Not 0.
    pub token: u128,
    /// The segment of its first part.
    pub segment: u32,
}

/// How many segments have to be free at a clean stop for the checkpoint of a member, where blocks are mostly whole.
pub(crate) fn checkpoint_segments(shape: Shape, block_parts: u32) -> usize {
    let blocks = u64::from(shape.segments) * u64::from(shape.segment_pages) / u64::from(block_parts);
    let bytes = blocks * u64::from(20 + 4 * block_parts) * 5 / 4 + u64::from(shape.segments) * 24;
    let parts = bytes.div_ceil((PART_BYTES - PART_FIXED_BYTES - 128) as u64) + 2;
    parts.div_ceil(parts_per_segment(shape) as u64) as usize
}

fn parts_per_segment(shape: Shape) -> usize {
    shape.segment_pages as usize * 4096 / PART_BYTES
}

/// A log at rest, for the checkpoint: segments in the order in which they are to be found again.
struct AtRest {
    segments: Vec<Item<'static>>,
    free: Vec<SegmentId>,
    sequence: u64,
}

impl LogState {
    fn at_rest(&self) -> AtRest {
        let mut segments = Vec::with_capacity(self.segments.len());
        let mut say = |id: SegmentId, fate| {
            let segment = &self.segments[id.0 as usize];
            let Segment { opening, aged, last_sequence, .. } = *segment;
            segments.push(Item::Segment(SegmentItem { segment: id, opening, fate, aged, last_sequence }));
        };
        self.free.iter().for_each(|&id| say(id, Fate::Free));
        for head in HeadKind::ALL {
            self.sealed[head as usize].iter().for_each(|&id| say(id, Fate::Sealed(head)));
        }
        // The ones being appended to are the youngest of their heads.
        for (n, segment) in self.segments.iter().enumerate() {
            if let SegmentState::Open(head) = segment.state {
                say(SegmentId(n as u32), Fate::Sealed(head));
            }
        }
        // From the back: what is opened next is free of it for longest.
        AtRest { segments, free: self.free.iter().rev().copied().collect(), sequence: self.next_sequence() }
    }
}

impl Member {
    /// After a stop: nothing is written to the log any more. False when it does not come to rest.
    pub(crate) async fn freeze(self: &Arc<Self>) -> bool {
        let give_up = self.world.clock.now().after(self.config.hard_limit);
        while !self.has_failed() && self.world.clock.now() < give_up {
            // What was said once other things were durable needs another round.
            if self.sync_all().await.is_err() {
                return false;
            }
            let ticket = self.changed.ticket();
            let mut footers = Vec::new();
            let is_at_rest = {
                let mut log = lock(&self.log);
                let is_at_rest = log.rests();
                if is_at_rest {
                    // Under the log's lock: whatever is appended later is not written.
                    self.frozen.store(true, Ordering::Release);
                    log.seal_all(&mut footers);
                }
                is_at_rest
            };
            if is_at_rest {
                return self.write_footers(footers).await;
            }
            let rung = std::pin::pin!(self.changed.wait(ticket));
            let _ = select(rung, self.world.clock.sleep(REST_LOOK_EVERY)).await;
        }
        false
    }

    /// What has been open says twice what it holds: the next life does not go on in it, and nobody looks at its headers before they are
    /// needed. The caller flushes. False when they cannot be written.
    async fn write_footers(&self, footers: Vec<LogWrite>) -> bool {
        for footer in footers {
            let offset = self.device_offset(self.shape.page(footer.segment, footer.position));
            let (bytes, done) = (u64::from(footer.pages) * 4096, footer.done());
            self.spend(bytes);
            if self.write_in_place(offset, footer.data, false).await.is_err() {
                return false;
            }
            lock(&self.log).written(done, &mut Vec::new());
        }
        true
    }

    /// Write what a frozen member knows. None: it does not fit into the free segments, or cannot be written.
    pub(crate) async fn write_checkpoint(self: &Arc<Self>) -> Option<CheckpointPlace> {
        let (token, rest) = {
            let mut log = lock(&self.log);
            let token = u128::from(log.draw()) << 64 | u128::from(log.draw());
            (token.max(1), log.at_rest())
        };
        let binding = Binding { owner: self.config.owner, token };
        let per_segment = parts_per_segment(self.shape);
        let segments_max = rest.free.len().min(CHECKPOINT_SEGMENTS_MAX);
        let place = |part: u32| {
            let id = rest.free[..segments_max].get(part as usize / per_segment)?;
            let within = (part as usize % per_segment * PART_BYTES) as u64;
            Some(self.device_offset(self.shape.page(*id, 0)) + within)
        };
        let give_up = self.world.clock.now().after(WRITE_TIME_MAX);
        let mut under_way = FuturesUnordered::new();
        let mut writer = Writer::new(binding);
        let mut full: Vec<(u32, Vec<u8>)> = Vec::new();
        for (number, name) in self.disk_names().into_iter().enumerate() {
            let Some(DiskName { id, generation }) = name else { continue };
            full.extend(writer.push(&Item::Disk { number: number as u16, generation, id }));
        }
        full.extend(writer.push(&Item::PolicyNote(self.policy.note())));
        rest.segments.iter().for_each(|segment| full.extend(writer.push(segment)));
        for RegionKey { slot, region } in self.regions.keys() {
            full.extend(writer.push(&Item::Region { disk: slot.0, region }));
        }
        for shard in 0..=self.index.shards() {
            if self.world.clock.now() > give_up {
                return None;
            }
            for (part, bytes) in full.drain(..) {
                if under_way.len() >= PARTS_IN_FLIGHT_MAX {
                    under_way.next().await.filter(|done| *done)?;
                }
                under_way.push(self.write_part(place(part)?, bytes));
            }
            if shard < self.index.shards() {
                self.index.for_each_of(shard, |entry| full.extend(self.push_entry(&mut writer, entry)));
            }
        }
        let (parts, last) = (writer.parts(), writer.end());
        let segments = rest.free[..segments_max].get(..(parts as usize).div_ceil(per_segment))?.to_vec();
        let shape = self.checkpoint_shape();
        let place_of_root = CheckpointPlace { token, segment: segments.first()?.0 };
        let root = encode_root(&binding, &Root { parts, shape, sequence: rest.sequence, segments });
        under_way.push(self.write_part(place(last.0)?, last.1));
        under_way.push(self.write_part(place(0)?, root));
        while let Some(done) = under_way.next().await {
            done.then_some(())?;
        }
        let flushed = self.within_hard_limit(self.config.device.flush()).await?;
        (flushed.outcome == Outcome::Done).then_some(place_of_root)
    }

    fn checkpoint_shape(&self) -> [u32; 3] {
        [self.shape.segments, self.shape.segment_pages, self.block_parts]
    }

    fn push_entry(&self, writer: &mut Writer, entry: &Entry) -> Option<(u32, Vec<u8>)> {
        let (key, page, mask) = (entry.key(), entry.page().0, entry.mask());
        let sums = &self.sums[page as usize..(page + mask.count_ones()) as usize];
        let sums: SmallVec<[u32; 16]> = sums.iter().map(|sum| sum.load(Ordering::Acquire)).collect();
        let mut item = IndexItem::new(key.slot().0, key.block(), page, [mask, entry.valid()], entry.frequency());
        (item.dirty, item.aged) = (entry.dirty(), entry.aged());
        writer.push_entry(IndexOut { item, sums: &sums })
    }

    async fn write_part(&self, offset: u64, bytes: Vec<u8>) -> bool {
        let data = Buf::padded(&bytes, 4096).freeze();
        add(&self.counters.flash_bytes_written, bytes.len() as u64);
        let done = self.within_hard_limit(self.config.device.write(offset, data.into(), false)).await;
        done.is_some_and(|done| done.outcome == Outcome::Done)
    }

    /// Rebuild from a checkpoint. None: it does not say all there is to know, and nothing has changed here.
    ///
    /// # Errors
    /// The flash cannot be written.
    pub(crate) async fn load_checkpoint(
        self: &Arc<Self>,
        at: CheckpointPlace,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Option<Recovered>, MemberError> {
        let Some(loaded) = self.read_checkpoint(at).await else { return Ok(None) };
        let mut result = Recovered { evidence: Evidence::Checkpoint, ..Recovered::default() };
        result.segments = self.restore_log(&loaded);
        self.unverified.store(self.shape.segments, Ordering::Release);
        self.remind_policy(loaded.policy_note);
        for &key in &loaded.regions {
            self.regions.restore(key);
            result.unsettled_regions += 1;
        }
        result.entries = self.restore_index(loaded.shards, loaded.dirty, owned).await;
        result.dirty_parts = self.dirty.pages();
        add(&self.counters.dirty_recovered, result.dirty_parts);
        self.sync_all().await?;
        self.release_dirty_segments().await?;
        Ok(Some(result))
    }

    async fn read_checkpoint(&self, at: CheckpointPlace) -> Option<Loaded> {
        let binding = Binding { owner: self.config.owner, token: at.token };
        if at.segment >= self.shape.segments {
            return None;
        }
        let first = self.device_offset(self.shape.page(SegmentId(at.segment), 0));
        let root = decode_root(&binding, &read_bytes(self, first, PART_BYTES).await.ok()?).ok()?;
        let is_within = |id: &SegmentId| id.0 < self.shape.segments;
        if root.shape != self.checkpoint_shape() || !root.segments.iter().all(is_within) {
            return None;
        }
        let per_segment = parts_per_segment(self.shape);
        let place = |part: u32| {
            let id = root.segments.get(part as usize / per_segment)?;
            let within = (part as usize % per_segment * PART_BYTES) as u64;
            Some(self.device_offset(self.shape.page(*id, 0)) + within)
        };
        let mut loaded = Loaded::new(self, root.sequence);
        // In their order: grid disks come before what is theirs.
        let read = async |part: u32| match place(part) {
            Some(offset) => Some((part, read_bytes(self, offset, PART_BYTES).await.ok()?)),
            None => None,
        };
        let mut parts = futures_util::stream::iter(1..root.parts).map(read).buffered(PARTS_IN_FLIGHT_MAX);
        while let Some(part) = parts.next().await {
            let (part, bytes) = part?;
            visit_part(&binding, part, &bytes, &mut |item| loaded.take(self, &item)).ok()?;
        }
        drop(parts);
        loaded.is_all(self).then_some(loaded)
    }

    /// Segments as they were. How many have content.
    fn restore_log(&self, loaded: &Loaded) -> u64 {
        let mut log = lock(&self.log);
        let mut with_content = 0;
        for &SegmentItem { segment: id, opening, fate, aged, last_sequence } in &loaded.segments {
            let segment = &mut log.segments[id.0 as usize];
            (segment.opening, segment.last_sequence) = (opening, last_sequence);
            match fate {
                Fate::Free => log.free.push_back(id),
                Fate::Sealed(head) => {
                    with_content += 1;
                    segment.aged = aged;
                    log.set_state(id, SegmentState::Sealed(head));
                    log.found_full(id, head);
                }
            }
        }
        log.set_life_after(loaded.sequence);
        with_content
    }

    pub(crate) fn disk_names(&self) -> Vec<Option<DiskName>> {
        self.disks.read().unwrap_or_else(PoisonError::into_inner).by_slot().to_vec()
    }
}

/// A checkpoint while it is read.
struct Loaded {
    sequence: u64,
    /// The life that begins: what it says is of earlier ones.
    life: u32,
    policy_note: u8,
    /// By number in the checkpoint: the grid disk here, if it is registered in that generation.
    slots: Vec<Option<DiskSlot>>,
    /// Grid disks registered here that it knows.
    known: usize,
    segments: Vec<SegmentItem>,
    seen: Vec<bool>,
    regions: Vec<RegionKey>,
    shards: Vec<Vec<Entry>>,
    dirty: Vec<Entry>,
    /// Something in it cannot be.
    bad: bool,
}

impl Loaded {
    fn new(member: &Member, sequence: u64) -> Loaded {
        Loaded {
            sequence,
            life: lock(&member.log).life,
            policy_note: 0,
            slots: Vec::new(),
            known: 0,
            segments: Vec::with_capacity(member.shape.segments as usize),
            seen: vec![false; member.shape.segments as usize],
            regions: Vec::new(),
            shards: vec![Vec::new(); member.index.shards()],
            dirty: Vec::new(),
            bad: false,
        }
    }

    fn slot(&self, number: u16) -> Option<DiskSlot> {
        self.slots.get(usize::from(number)).copied().flatten()
    }

    fn take(&mut self, member: &Member, item: &Item<'_>) {
        match *item {
            Item::Disk { number, generation, id } => {
                let slot = member.slot_of(id, generation);
                self.slots.resize(self.slots.len().max(usize::from(number) + 1), None);
                self.slots[usize::from(number)] = slot;
                self.known += usize::from(slot.is_some());
            }
            Item::Segment(item) => match self.seen.get_mut(item.segment.0 as usize) {
                Some(seen) if !*seen && item.opening.life() < self.life => {
                    *seen = true;
                    self.segments.push(item);
                }
                _ => self.bad = true,
            },
            Item::PolicyNote(note) => self.policy_note = note,
            Item::Region { disk, region } => {
                self.regions.extend(self.slot(disk).map(|slot| RegionKey { slot, region }));
            }
            Item::Index(item) => self.take_entry(member, &item),
        }
    }

    fn take_entry(&mut self, member: &Member, item: &IndexItem<'_>) {
        let pages = u64::from(member.shape.segments) * u64::from(member.shape.segment_pages);
        let count = item.mask.count_ones();
        let Position(position) = member.shape.place(Page(item.page)).1;
        let fits =
            u64::from(item.page) < pages && position + count <= member.shape.segment_pages && item.block < BLOCKS_MAX;
        if !fits || u32::from(item.mask) >> member.block_parts != 0 {
            self.bad = true;
            return;
        }
        // A grid disk that is gone, or whose content is void since.
        let Some(slot) = self.slot(item.disk) else { return };
        for (k, sum) in item.sums().enumerate() {
            member.sums[item.page as usize + k].store(sum, Ordering::Release);
        }
        let key = BlockKey::new(slot, item.block);
        let mut entry =
            Entry::new(key, Page(item.page), item.mask, item.frequency, false).without(item.mask & !item.valid);
        entry.set_dirty(item.dirty);
        if item.aged {
            entry.set_aged();
        }
        if item.dirty {
            self.dirty.push(entry);
        } else {
            self.shards[member.index.shard_of(key)].push(entry);
        }
    }

    /// Whether it says all there is: of every segment, and of every grid disk that is registered here. What flash holds of a
    /// grid disk that was not served before the stop is not in it.
    fn is_all(&self, member: &Member) -> bool {
        let registered = member.disk_names().iter().flatten().count();
        !self.bad && self.known == registered && self.segments.len() == member.shape.segments as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0.3 % of the segments with blocks of 16 KiB, as the documentation says; one where segments hold many parts.
    #[test]
    fn segments_kept_free_for_a_checkpoint() {
        let shape = |segments, segment_pages| Shape { segments, segment_pages, align: 1 };
        let found = [
            (shape(32_768, 512), 4),
            (shape(32_768, 512), 1),
            (shape(32_768, 512), 16),
            (shape(8, 512), 4),
            (shape(64, 16), 4),
            (shape(1_000, 16_384), 4),
        ]
        .map(|(shape, block_parts)| checkpoint_segments(shape, block_parts));
        assert_eq!(found, [91, 242, 54, 1, 3, 3]);
        assert_eq!([16, 512, 16_384].map(|pages| parts_per_segment(shape(1, pages))), [1, 32, 1024]);
    }
}
