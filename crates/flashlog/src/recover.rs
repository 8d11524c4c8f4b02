//! What a ring holds after a stop: the records that are not released, newest number last.
//!
//! Reads the ring once. Believes nothing of another log, another place or a released batch; what should be there and is not
//! (a batch that was durable, a record whose checksum does not match in one) is told, never guessed.

use crate::format::{self, BatchHeader, FormatError, Owner, Record, RecordKind};
use crate::ring::{LIFE_SHIFT, page_bytes, pages};
use device::{Buf, Bufs, Device, FailKind, Outcome};
use std::collections::BTreeMap;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// The flash did not answer: what the ring holds is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the flash log cannot be read at {offset}: {outcome:?}")]
pub struct ReadFailed {
    /// Where, in bytes from the start of the ring.
    pub offset: u64,
    /// How.
    pub outcome: Outcome,
}

/// A record that may have to be replayed.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) sequence: u64,
    /// The batch it lies in.
    pub(crate) batch: u64,
    pub(crate) grid_disk: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) kind: RecordKind,
    pub(crate) sum: u32,
    /// Where its data lies on the ring's device.
    pub(crate) at: u64,
}

impl Found {
    /// The life of the log it was written in.
    pub(crate) fn life(&self) -> u64 {
        self.batch >> LIFE_SHIFT
    }
}

/// A batch that is not released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundBatch {
    pub(crate) number: u64,
    pub(crate) start_page: u32,
    pub(crate) pages: u32,
}

/// What a ring says.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// In the order of their batches.
    pub(crate) records: Vec<Found>,
    /// Ascending.
    pub(crate) batches: Vec<FoundBatch>,
    /// Something that was durable is not there, or is rotten.
    pub(crate) damaged: bool,
    /// The last life that wrote to it.
    pub(crate) life: u64,
    /// The highest sequence of a change.
    pub(crate) sequence: u64,
}

async fn read(device: &Device, offset: u64, len: usize) -> Result<Vec<u8>, ReadFailed> {
    let done = device.read(offset, Bufs::from(Buf::zeroed(len))).await;
    match done.outcome {
        Outcome::Done => Ok(done.bufs.to_vec(0..len)),
        outcome => Err(ReadFailed { offset, outcome }),
    }
}

/// Read a ring.
///
/// # Errors
/// The flash does not answer a read.
pub(crate) async fn read_ring(device: &Device, owner: &Owner) -> Result<Content, ReadFailed> {
    let page = page_bytes(device);
    let all_pages = pages(device);
    let all = u64::from(all_pages) * page as u64;
    // A head may reach beyond the chunk it begins in.
    let beyond = format::head_bytes(format::BATCH_RECORDS_MAX).next_multiple_of(page);
    let step = READ_BYTES.next_multiple_of(page);
    let mut found: BTreeMap<u64, (BatchHeader, Vec<Record>)> = BTreeMap::new();
    let mut content = Content::default();
    let mut at = 0;
    while at < all {
        let len = ((all - at) as usize).min(step + beyond);
        let bytes = read(device, at, len).await?;
        for begin in (0..step.min(len)).step_by(page) {
            let Some(head) = format::claimed_head_bytes(&bytes[begin..]) else { continue };
            let Some(head) = bytes.get(begin..begin + head) else { continue };
            let (header, records) = match format::decode_head(head, owner, page, all_pages) {
                Ok(decoded) => decoded,
                // Of this log, and nobody here can read what it says.
                Err(FormatError::Version(_)) => {
                    content.damaged = true;
                    continue;
                }
                Err(_) => continue,
            };
            if u64::from(header.start_page) * page as u64 == at + begin as u64 {
                found.insert(header.number, (header, records));
            }
        }
        at += step as u64;
    }
    let Some((&last, _)) = found.last_key_value() else { return Ok(content) };
    content.life = last >> LIFE_SHIFT;
    let tail = found.values().map(|(header, _)| header.tail).max().unwrap_or(0);
    let mut durable: BTreeMap<u64, u64> = BTreeMap::new();
    for (header, _) in found.values().filter(|(header, _)| header.durable > 0) {
        let through = durable.entry(header.durable >> LIFE_SHIFT).or_insert(0);
        *through = (*through).max(header.durable);
    }
    for (life, through) in &durable {
        let first = ((life << LIFE_SHIFT) + 1).max(tail);
        content.damaged |= (first..=*through).any(|number| !found.contains_key(&number));
    }
    for (number, (header, records)) in found.range(tail..) {
        let was_durable = durable.get(&(number >> LIFE_SHIFT)).is_some_and(|through| number <= through);
        content.batches.push(FoundBatch { number: *number, start_page: header.start_page, pages: header.pages });
        let start = u64::from(header.start_page) * page as u64;
        let bytes = read(device, start, header.pages as usize * page).await?;
        let good = |record: &Record| match record.kind {
            RecordKind::Data => {
                let sum =
                    |data| format::record_sum(record.grid_disk, record.offset, record.sequence, device::data_sum(data));
                bytes.get(record.data.clone()).is_some_and(|data| sum(data) == record.sum)
            }
            RecordKind::Zeroes | RecordKind::Unmapped => true,
        };
        if !records.iter().all(good) {
            // Torn by the crash, unless it had been durable: then nobody was told of it, and the batch counts as a whole.
            content.damaged |= was_durable;
            continue;
        }
        for record in records {
            content.sequence = content.sequence.max(record.sequence);
            content.records.push(Found {
                sequence: record.sequence,
                batch: *number,
                grid_disk: record.grid_disk,
                offset: record.offset,
                len: u64::from(record.len),
                kind: record.kind,
                sum: record.sum,
                at: start + record.data.start as u64,
            });
        }
    }
    Ok(content)
}

/// The data of a record.
///
/// # Errors
/// The flash does not answer, or does not say what it said when the ring was read.
pub(crate) async fn read_data(device: &Device, found: &Found) -> Result<Vec<u8>, ReadFailed> {
    let page = page_bytes(device) as u64;
    let (low, high) = (found.at / page * page, (found.at + found.len).next_multiple_of(page));
    let bytes = read(device, low, (high - low) as usize).await?;
    let at = (found.at - low) as usize;
    let data = &bytes[at..at + found.len as usize];
    if format::record_sum(found.grid_disk, found.offset, found.sequence, device::data_sum(data)) != found.sum {
        return Err(ReadFailed { offset: found.at, outcome: Outcome::Failed(FailKind::Media) });
    }
    Ok(data.to_vec())
}
