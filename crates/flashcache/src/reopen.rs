//! Where a crash has left no segment free, the log goes on in those that were being appended to.
//!
//! Recovery has to write again what only freed segments say, and what it finds dead: without room for that the flash would have
//! to be given up. A segment without a footer has room behind its last whole chunk. What lies there may be chunks of the same
//! life that a power cut left behind a torn one: a walk takes a chunk only if its sequence is above that of the one before, and
//! sequences of a new life are above all older ones, so they never come back. Only adds behind what a walk finds.

use crate::format::{self, Record, SegmentLife};
use crate::member::{Member, MemberError};
use crate::recover::{Footer, read_bytes};
use crate::restore::FoundSparse;
use crate::units::{Position, SegmentId};
use device::sync::lock;
use std::collections::BTreeMap;

impl Member {
    /// How many segments the log goes on in. Where others are free it goes on in those.
    ///
    /// # Errors
    /// A chunk that was read before cannot be read any more.
    pub(crate) async fn reopen(&self, found: &FoundSparse) -> Result<u64, MemberError> {
        if !lock(&self.log).free.is_empty() {
            return Ok(0);
        }
        // The youngest of each head was the one being appended to. A footer that cannot be read may be there, and would hide
        // what is added; one that is torn has been there: the segment was full.
        let mut youngest: BTreeMap<_, (u64, SegmentId)> = BTreeMap::new();
        for (&id, segment) in found.iter().filter(|(_, segment)| segment.footer == Footer::None) {
            let last = youngest.entry(segment.life.head).or_insert((segment.last_sequence, id));
            *last = (*last).max((segment.last_sequence, id));
        }
        let mut reopened = 0;
        for (last_sequence, id) in youngest.into_values() {
            let Some(segment) = found.get(&id) else { continue };
            let records = self.records_until(segment.life, segment.end).await?;
            reopened += u64::from(lock(&self.log).reopen(segment.life, segment.end, last_sequence, records));
        }
        Ok(reopened)
    }

    /// The records of a segment's chunks before page `end`, as its footer will have them.
    async fn records_until(&self, life: SegmentLife, end: u32) -> Result<Vec<Record>, MemberError> {
        let unit = self.shape.align as usize * 4096;
        let mut all = Vec::new();
        let mut position = 0;
        while position < end {
            let offset = self.device_offset(self.shape.page(life.segment, position));
            let page = read_bytes(self, offset, unit).await.ok();
            let chunk = page.and_then(|page| format::decode_chunk(&page, &self.config.owner).ok());
            let Some((header, records)) = chunk.filter(|(header, _)| header.life == life) else {
                return Err(MemberError::Failed(format!("recovery: the chunk at {offset} is there no more")));
            };
            all.push(Record::Chunk { position: Position(position), sequence: header.sequence });
            all.extend(records);
            position += header.pages;
        }
        Ok(all)
    }
}
