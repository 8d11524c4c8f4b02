//! The writes that no flush has covered yet, and how they become durable on a device that has failed to flush.
//!
//! A failed flush, and a failed durable write of anybody else on the device, may have dropped what the device held in its volatile cache,
//! and its next flush may succeed with nothing left to flush. What was dropped may go on being read until the power goes. So after such
//! a failure no flush counts before everything since the last good one has been read back, compared with its checksums and written
//! again, in its place. A header or a footer that cannot be is made again from
//! the records in memory; clean data is dropped from the cache, since the disk has it; where dirty data is lost the device is given up. Never
//! keeps data in memory, which would be memory that clients wait for.

use crate::base::counters::add;
use crate::base::sabotage::Sabotage;
use crate::base::units::{BLOCKS_MAX, BlockKey, Position, SegmentId};
use crate::data::sync::SyncTurn;
use crate::format::{self, BlockName, ChunkHeader, Record, SegmentLife};
use crate::log::LogWrite;
use crate::member::health::TRIES_MAX;
use crate::member::segment::{read_bytes, read_what_can_be};
use crate::member::{Member, MemberError};
use device::sync::lock;
use device::{Buf, Outcome};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// A chunk or a footer that has been written and that no flush has covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unflushed {
    segment: SegmentId,
    position: u32,
    pages: u32,
    is_chunk: bool,
    /// As in [`LogWrite`].
    sequence: u64,
    durable: u64,
    /// Of a chunk the sum of its header, which has the sums of its data; of a footer the sum of all of it.
    head_sum: u32,
}

impl Unflushed {
    pub(crate) fn of(write: &LogWrite) -> Unflushed {
        let head_bytes = write.data.pieces().first().map_or(0, |head| head.len());
        Unflushed {
            segment: write.segment,
            position: write.position,
            pages: write.pages,
            is_chunk: write.chunk_of.is_some(),
            sequence: write.sequence,
            durable: write.durable,
            head_sum: write.data.view(0..head_bytes).sum(),
        }
    }
}

/// Those of a member, in the order in which they reached the device. A segment is freed by a record that a flush has covered, and with it
/// everything written to the segment: none of these names a segment that has been opened again.
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    next: u64,
    writes: BTreeMap<u64, Unflushed>,
    pages: u64,
}

impl Undurable {
    /// A write has reached the device.
    pub(crate) fn add(&mut self, write: Unflushed) {
        self.pages += u64::from(write.pages);
        self.writes.insert(self.next, write);
        self.next += 1;
    }

    /// A flush that is issued now covers every write added before this number.
    fn covered(&self) -> u64 {
        self.next
    }

    /// That flush has ended well.
    fn flushed(&mut self, before: u64) {
        self.writes = self.writes.split_off(&before);
        self.pages = self.writes.values().map(|write| u64::from(write.pages)).sum();
    }

    /// Pages of all of them.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }
}

impl Member {
    /// The device has failed to make something durable, whoever asked: what no flush has covered may not be durable after the next one.
    pub fn may_have_lost(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Nothing that the device is known to have failed to make durable lies before what has arrived. After a failure it may: recovery
    /// finds a segment up to the first chunk that is lost, so what is acknowledged behind one would be lost with it by the death of
    /// the process alone. So who acknowledges what has arrived waits until all of it has been read back and is durable. Costs two
    /// loads while nothing has failed; otherwise it is bounded like a flush.
    ///
    /// # Errors
    /// The member has failed: see [`Member::flush`].
    pub(crate) async fn await_losses_mended(&self) -> Result<(), MemberError> {
        let lost = || self.losses.load(Ordering::SeqCst) != self.losses_mended.load(Ordering::SeqCst);
        while lost()
            && self.config.device.geometry().volatile_cache
            && !self.sabotaged(Sabotage::AcknowledgedBehindLoss)
        {
            let ticket = self.changed.ticket();
            if self.has_failed() {
                return Err(self.error());
            }
            // One flush at a time: another could free a segment that this one writes again.
            let leads = !std::mem::replace(&mut lock(&self.log).syncing, true);
            if leads {
                let _turn = SyncTurn(self);
                self.flush().await?;
            } else {
                self.changed.wait(ticket).await;
            }
        }
        Ok(())
    }

    /// Make durable what has been written. The caller has set `syncing`: one flush at a time.
    ///
    /// # Errors
    /// The member has failed: the device is gone, has failed six flushes in a row, has no room for longer than it is waited for, or has lost what was written.
    pub(crate) async fn flush(&self) -> Result<(), MemberError> {
        if !self.config.device.geometry().volatile_cache {
            return Ok(());
        }
        let since = self.world.clock.now();
        for tries in 1.. {
            let heard = self.losses.load(Ordering::SeqCst);
            if heard != self.losses_mended.load(Ordering::SeqCst) && !self.sabotaged(Sabotage::FlashFlushTriedAgain) {
                // A write under way may have reached the device before the loss, and is listed only when it has completed.
                let under_way = lock(&self.log).writes_outstanding.clone();
                self.await_written(&under_way).await?;
                // Rare, and large: not in the future of each request.
                Box::pin(self.write_again()).await?;
            }
            let covered = lock(&self.log).undurable.covered();
            add(&self.counters.flash_flushes, 1);
            let Some(done) = self.within_hard_limit(self.config.device.flush()).await else {
                self.fail("a flush took longer than the hard limit".to_owned());
                return Err(self.error());
            };
            if done.outcome == Outcome::Done {
                // A loss that was heard meanwhile may have taken what this flush should have covered.
                if self.losses.load(Ordering::SeqCst) == heard {
                    self.losses_mended.store(heard, Ordering::SeqCst);
                    lock(&self.log).undurable.flushed(covered);
                    return Ok(());
                }
            } else {
                self.may_have_lost();
            }
            // One whose outcome is unknown may have dropped what a failed one may.
            let again = match done.outcome {
                Outcome::Done => tries < TRIES_MAX,
                outcome => self.tries_again(outcome, tries, since),
            };
            if !again {
                self.fail(format!("flush: {:?}", done.outcome));
            }
            if self.has_failed() {
                break;
            }
            self.pause(tries).await;
        }
        Err(self.error())
    }

    /// Write again, in its place, what no flush has covered.
    async fn write_again(&self) -> Result<(), MemberError> {
        let writes: Vec<Unflushed> = lock(&self.log).undurable.writes.values().copied().collect();
        for write in writes {
            let offset = self.device_offset(self.shape.page(write.segment, write.position));
            let read = read_bytes(self, offset, write.pages as usize * 4096).await;
            let bytes = match read {
                Ok(bytes) if self.is_as_written(&write, &bytes) => Buf::padded(&bytes, 4096),
                read => match self.made_again(&write).await {
                    Some(bytes) => Buf::padded(&bytes, 4096),
                    None => {
                        let why = read.map_or_else(|why| why.to_string(), |_| "reads as something else".to_owned());
                        return Err(self.lost(offset, &why));
                    }
                },
            };
            self.spend(bytes.len() as u64);
            self.write_in_place(offset, bytes.freeze().into(), false).await?;
            add(&self.counters.written_again, 1);
        }
        Ok(())
    }

    /// A write that does not read back as it was: its header or footer is that of before, from the records in memory, and its data is what can
    /// be read. Clean data that cannot be leaves the cache. `None`: dirty data is lost, or the device does not answer.
    async fn made_again(&self, write: &Unflushed) -> Option<Vec<u8>> {
        if self.sabotaged(Sabotage::CleanLossGivesUp) {
            return None;
        }
        let (life, records) = lock(&self.log).records_of(write.segment)?;
        let unit = self.shape.align as usize * 4096;
        if !write.is_chunk {
            let bytes = format::encode_footer(self.config.owner, life, write.sequence, write.durable, &records, unit);
            return (device::data_sum(&bytes) == write.head_sum).then_some(bytes);
        }
        let is_its = |record: &Record| matches!(record, Record::Chunk { sequence, .. } if *sequence == write.sequence);
        let is_chunk = |record: &Record| matches!(record, Record::Chunk { .. });
        let behind = &records[records.iter().position(is_its)? + 1..];
        let records = &behind[..behind.iter().position(is_chunk).unwrap_or(behind.len())];
        let head = self.header_of(write, life, records)?;
        let mut bytes = head;
        // As many pages at a time as a mask has bits.
        for from in (self.shape.align..write.pages).step_by(16) {
            let offset = self.device_offset(self.shape.page(write.segment, write.position + from));
            let pages = (write.pages - from).min(16) as usize;
            bytes.extend_from_slice(&read_what_can_be(self, offset, pages).await.ok()?.0);
        }
        self.end_lost(write, records, &bytes).then_some(bytes)
    }

    /// The header of a chunk as it was written.
    fn header_of(&self, write: &Unflushed, life: SegmentLife, records: &[Record]) -> Option<Vec<u8>> {
        let Unflushed { position, pages, sequence, durable, .. } = *write;
        let header =
            ChunkHeader { owner: self.config.owner, life, position: Position(position), pages, sequence, durable };
        let mut page = vec![0; self.shape.align as usize * 4096];
        format::encode_chunk(&header, records, &mut page);
        (device::data_sum(&page) == write.head_sum).then_some(page)
    }

    /// End the clean entries of a chunk whose data is not in `bytes`. False where one that is lost is dirty.
    fn end_lost(&self, write: &Unflushed, records: &[Record], bytes: &[u8]) -> bool {
        let mut log = lock(&self.log);
        let mut ended = Vec::new();
        for record in records {
            let Record::Entry { name, mask, position, sums, .. } = record else { continue };
            let from = position.0.checked_sub(write.position).map(|pages| pages as usize * 4096);
            let data = from.and_then(|from| bytes.get(from..from + mask.count_ones() as usize * 4096));
            let lost = data.map_or(*mask, |data| self.bad_parts(*name, *mask, sums, data));
            let Some(slot) = self.slot_of(name.disk, name.generation).filter(|_| name.block < BLOCKS_MAX) else {
                continue;
            };
            let (key, page) = (BlockKey::new(slot, name.block), self.shape.page(write.segment, position.0));
            match self.index.get_at(key, page).filter(|entry| entry.valid() & lost != 0) {
                Some(entry) if entry.dirty() => return false,
                Some(_) => ended.push((key, page, lost)),
                None => {}
            }
        }
        for (key, page, lost) in ended {
            let dead = self.index.under(&mut log).cut_at(key, page, lost).record(self);
            add(&self.counters.rot_parts, dead.iter().map(|killed| u64::from(killed.mask.count_ones())).sum());
        }
        true
    }

    fn lost(&self, offset: u64, why: &str) -> MemberError {
        self.fail(format!("after a failed flush of the device, what was written at {offset} is lost: {why}"));
        self.error()
    }

    /// Whether these are the bytes of a write.
    fn is_as_written(&self, write: &Unflushed, bytes: &[u8]) -> bool {
        let head_bytes = if write.is_chunk { self.shape.align as usize * 4096 } else { bytes.len() };
        let Some(head) = bytes.get(..head_bytes) else { return false };
        if device::data_sum(head) != write.head_sum {
            return false;
        }
        if !write.is_chunk {
            return true;
        }
        let Ok((_, records)) = format::decode_chunk(head, &self.config.owner) else { return false };
        records.iter().all(|record| match record {
            Record::Entry { name, mask, position, sums, .. } => {
                let len = mask.count_ones() as usize * 4096;
                let from = position.0.checked_sub(write.position).map(|pages| pages as usize * 4096);
                let data = from.and_then(|from| bytes.get(from..from + len));
                data.is_some_and(|data| self.bad_parts(*name, *mask, sums, data) == 0)
            }
            _ => true,
        })
    }

    /// The parts of an entry whose data does not have its checksum.
    pub(crate) fn bad_parts(&self, name: BlockName, mask: u16, sums: &[u32], data: &[u8]) -> u16 {
        let parts = (0..16_u32).filter(|part| mask >> part & 1 == 1);
        let mut bad = 0;
        for ((part, data), sum) in parts.zip(data.chunks_exact(4096)).zip(sums) {
            let number = name.block.saturating_mul(u64::from(self.block_parts)).saturating_add(u64::from(part));
            bad |= u16::from(format::part_sum(name.disk, name.generation, number, data) != *sum) << part;
        }
        bad
    }
}
