//! After a crash the log goes on in the segments that were being appended to.
//!
//! Recovery has to write again what only freed segments say, and what it finds dead: where no segment is free, the flash would
//! have to be given up without that. A segment without a footer has room behind its last whole chunk. What lies there may be chunks of the same
//! life that a power cut left behind a torn one: a walk takes a chunk only if its sequence is above that of the one before, and
//! sequences of a new life are above all older ones, so they never come back. Only adds behind what a walk has found.

use crate::format::{self, Record};
use crate::member::{Member, MemberError};
use crate::restore::{FoundSparse, Sparse};
use crate::segment::{Footer, Found, WalkedHeader};
use crate::units::SegmentId;
use device::sync::lock;
use std::collections::BTreeMap;

impl Member {
    /// What is not known to have been durable and was found is written again, for the caller to flush: a page that was discarded, and
    /// whose write was lost, may read as what was written and the next time as something else.
    ///
    /// # Errors
    /// The flash cannot be written.
    pub(crate) async fn write_headers_again(
        &self,
        found: &FoundSparse,
        alive: &(dyn Fn(&SegmentId, &Found<Sparse>) -> bool + Sync),
        durable: u64,
    ) -> Result<(), MemberError> {
        if self.config.device.geometry().discard_bytes == 0 {
            return Ok(());
        }
        for (id, segment) in found.iter().filter(|(id, segment)| alive(id, segment)) {
            for WalkedHeader { header, page } in segment.headers.iter().filter(|h| h.header.sequence > durable) {
                let offset = self.device_offset(self.shape.page(*id, header.position.0));
                self.write_again(offset, page).await?;
            }
        }
        Ok(())
    }

    /// How many segments the log goes on in.
    pub(crate) fn reopen(&self, found: &FoundSparse) -> u64 {
        // The youngest of each head was the one being appended to. A footer that cannot be read may be there, and would hide
        // what is added; one that is torn has been there: the segment was full.
        let mut youngest: BTreeMap<_, (u64, SegmentId)> = BTreeMap::new();
        for (&id, segment) in found.iter().filter(|(_, segment)| segment.footer == Footer::None) {
            let last = youngest.entry(segment.life.head).or_insert((segment.last_sequence, id));
            *last = (*last).max((segment.last_sequence, id));
        }
        let mut log = lock(&self.log);
        let goes_on = |(_, id): &(u64, SegmentId)| {
            found.get(id).is_some_and(|segment| {
                let end = segment.headers.last().map_or(0, |last| last.header.position.0 + last.header.pages);
                log.reopen(segment.life, end, self.records_of(segment))
            })
        };
        youngest.values().map(goes_on).filter(|goes_on| *goes_on).count() as u64
    }

    /// The records of a segment that was walked, as its footer will have them.
    fn records_of(&self, segment: &Found<Sparse>) -> Vec<Record> {
        let mut all = Vec::new();
        for WalkedHeader { header, page } in &segment.headers {
            all.push(Record::Chunk { position: header.position, sequence: header.sequence });
            // It has been decoded before.
            if let Ok((_, records)) = format::decode_chunk(page, &self.config.owner) {
                all.extend(records);
            }
        }
        all
    }
}
