//! The writes that no flush has covered yet, and how they become durable on a device that has failed to flush.
//!
//! A failed flush, and a failed durable write of anybody else on the device, may have dropped what the device held in its volatile cache,
//! and its next flush may succeed with nothing left to flush. What was dropped may go on being read until the power goes. So after such
//! a failure no flush counts before everything since the last good one has been read back, compared with its checksums and written
//! again, in its place. What cannot be read back as it was written is lost: then the device is given up. Never keeps data in memory, which
//! would be memory that clients wait for.

use crate::counters::add;
use crate::format::{self, BlockName, Record};
use crate::health::TRIES_MAX;
use crate::log::LogWrite;
use crate::member::{Member, MemberError};
use crate::sabotage::Sabotage;
use crate::segment::read_bytes;
use crate::sync::SyncTurn;
use crate::units::SegmentId;
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
                self.write_again().await?;
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
                Ok(bytes) if self.is_as_written(&write, &bytes) => bytes,
                Ok(_) => return Err(self.lost(offset, "reads as something else")),
                Err(why) => return Err(self.lost(offset, &why.to_string())),
            };
            self.spend(bytes.len() as u64);
            self.write_in_place(offset, Buf::padded(&bytes, 4096).freeze().into(), false).await?;
            add(&self.counters.written_again, 1);
        }
        Ok(())
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
