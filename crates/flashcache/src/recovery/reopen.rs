//! After a crash the log goes on in the segments that were being appended to.
//!
//! Recovery has to write again what only freed segments say, and what it finds dead: where no segment is free, the flash would
//! have to be given up without that. A segment without a footer has room behind its last whole chunk. What lies there may be chunks that a
//! power cut left behind a torn one. Sequences do not tell them from what is added: a life of which nothing was found had the
//! same sequences as the life after it. So the rest of the segment is overwritten before anything is added, and a walk that gets there
//! finds nothing. Only adds behind what a walk has found.

use crate::base::sabotage::Sabotage;
use crate::base::units::SegmentId;
use crate::format::{self, Record, SegmentLife};
use crate::log::{Parity, SegmentState};
use crate::member::segment::{Footer, Found, WalkedHeader, read_bytes, read_footer_with_chunks};
use crate::member::{Member, MemberError};
use crate::recovery::restore::{FoundSparse, Sparse};
use device::Buf;
use device::sync::lock;
use std::collections::BTreeMap;

/// Written at once when the rest of a segment is overwritten.
const CLEAR_BYTES: usize = 1 << 20;

impl Member {
    /// The headers and footers that were found and are not known to have been durable are written again, for the caller to flush. What was
    /// read may be lost with the next power cut all the same: a failed flush may have dropped it before the process died, and a page that
    /// was discarded, and whose write was lost, may read as what was written and the next time as something else.
    ///
    /// # Errors
    /// The flash cannot be written.
    pub(crate) async fn write_headers_again(
        &self,
        found: &FoundSparse,
        alive: &(dyn Fn(&SegmentId, &Found<Sparse>) -> bool + Sync),
        durable: u64,
    ) -> Result<(), MemberError> {
        for (id, segment) in found.iter().filter(|(id, segment)| alive(id, segment)) {
            let is_due = |walked: &&WalkedHeader| walked.is_rebuilt || walked.header.sequence > durable;
            for WalkedHeader { header, page, .. } in segment.headers.iter().filter(is_due) {
                let offset = self.device_offset(self.shape.page(*id, header.position.0));
                self.write_in_recovery(offset, Buf::padded(page, 4096).freeze()).await?;
            }
            if segment.footer == Footer::Whole && segment.last_sequence > durable {
                self.write_footer_again(*id, segment.life, durable).await?;
            }
        }
        Ok(())
    }

    /// Recovery writes the footer of a segment that was not walked again, and the headers of its chunks after `durable`.
    async fn write_footer_again(&self, id: SegmentId, life: SegmentLife, durable: u64) -> Result<(), MemberError> {
        let Some((bytes, chunks)) = read_footer_with_chunks(self, life).await else { return Ok(()) };
        let unit = self.shape.align as usize * 4096;
        for (position, sequence) in chunks.into_iter().filter(|(_, sequence)| *sequence > durable) {
            let offset = self.device_offset(self.shape.page(id, position.0));
            // The footer says what one says that cannot be read.
            let Ok(page) = read_bytes(self, offset, unit).await else { continue };
            let header = format::visit_chunk(&page, &self.config.owner, &mut |_, _| {});
            if header.is_ok_and(|header| header.life == life && header.sequence == sequence) {
                self.write_in_recovery(offset, Buf::padded(&page, 4096).freeze()).await?;
            }
        }
        let at = self.shape.segment_pages - (bytes.len() / 4096) as u32;
        let offset = self.device_offset(self.shape.page(id, at));
        self.write_in_recovery(offset, Buf::padded(&bytes, 4096).freeze()).await
    }

    /// The segments the log goes on in, each with its first page behind what was found.
    pub(crate) fn ends(
        &self,
        found: &FoundSparse,
        alive: &(dyn Fn(&SegmentId, &Found<Sparse>) -> bool + Sync),
    ) -> Vec<(SegmentId, u32)> {
        // The youngest of each head was the one being appended to. A footer that cannot be read may be there, and would hide
        // what is added; one that is torn has been there: the segment was full.
        let mut youngest: BTreeMap<_, (u64, SegmentId)> = BTreeMap::new();
        for (&id, segment) in found.iter().filter(|(_, segment)| segment.footer == Footer::None) {
            let last = youngest.entry(segment.life.head).or_insert((segment.last_sequence, id));
            *last = (*last).max((segment.last_sequence, id));
        }
        let end = |(_, id): &(u64, SegmentId)| {
            let segment = found.get(id).filter(|segment| alive(id, segment))?;
            Some((*id, segment.headers.last().map_or(0, |last| last.header.position.0 + last.header.pages)))
        };
        youngest.values().filter_map(end).collect()
    }

    /// Overwrite what lies behind these ends, for the caller to flush.
    ///
    /// # Errors
    /// The flash cannot be written.
    pub(crate) async fn clear_behind(&self, ends: &[(SegmentId, u32)]) -> Result<(), MemberError> {
        if self.sabotaged(Sabotage::TailKept) {
            return Ok(());
        }
        for &(id, end) in ends {
            let from = self.device_offset(self.shape.page(id, end));
            let until = self.device_offset(self.shape.page(id, 0)) + u64::from(self.config.segment_bytes);
            for offset in (from..until).step_by(CLEAR_BYTES) {
                let bytes = (until - offset).min(CLEAR_BYTES as u64) as usize;
                self.write_in_recovery(offset, Buf::zeroed(bytes).freeze()).await?;
            }
        }
        Ok(())
    }

    /// Go on behind these ends; in how many segments.
    pub(crate) fn reopen(&self, found: &FoundSparse, ends: &[(SegmentId, u32)]) -> u64 {
        let mut log = lock(&self.log);
        let goes_on = |(id, end): &&(SegmentId, u32)| {
            // What could not be read may fail to be read again, however it is overwritten.
            let found = found.get(id).filter(|segment| segment.cut.as_ref().is_none_or(|cut| !cut.is_unread));
            found.is_some_and(|segment| {
                log.reopen(segment.life, *end, self.records_of(segment), self.parity_of(segment))
            })
        };
        ends.iter().filter(goes_on).count() as u64
    }

    /// The footers of segments that have none and that the log does not go on in: nothing else has their records twice. A power cut that takes
    /// one leaves the headers.
    ///
    /// # Errors
    /// The flash cannot be written.
    pub(crate) async fn write_missing_footers(
        &self,
        found: &FoundSparse,
        alive: &(dyn Fn(&SegmentId, &Found<Sparse>) -> bool + Sync),
    ) -> Result<(), MemberError> {
        if self.sabotaged(Sabotage::FooterNotWrittenAgain) {
            return Ok(());
        }
        let is_open = |id: &SegmentId| matches!(lock(&self.log).segments[id.0 as usize].state, SegmentState::Open(_));
        let lacks = |(id, segment): &(&SegmentId, &Found<Sparse>)| {
            segment.footer != Footer::Whole && alive(id, segment) && !is_open(id)
        };
        for (id, segment) in found.iter().filter(lacks) {
            let Some((position, bytes)) = self.footer_by_walk(segment) else { continue };
            let offset = self.device_offset(self.shape.page(*id, position));
            self.write_in_recovery(offset, Buf::padded(&bytes, 4096).freeze()).await?;
        }
        Ok(())
    }

    /// The footer of a segment that was walked, and its first page. `None` where no chunk was found, or the footer would lie over one.
    pub(crate) fn footer_by_walk<R>(&self, segment: &Found<R>) -> Option<(u32, Vec<u8>)> {
        let Found { life, last_sequence, durable, ref headers, .. } = *segment;
        let last = headers.last()?.header;
        let (records, unit) = (self.records_of(segment), self.shape.align as usize * 4096);
        let bytes = format::encode_footer(self.config.owner, life, last_sequence, durable, &records, unit);
        let position = self.shape.segment_pages.checked_sub((bytes.len() / 4096) as u32)?;
        (position >= last.position.0 + last.pages).then_some((position, bytes))
    }

    fn parity_of(&self, segment: &Found<Sparse>) -> Parity {
        let mut parity = Parity::new(self.shape);
        segment.headers.iter().for_each(|walked| parity.add(&walked.page, walked.header.sequence));
        parity
    }

    /// The records of a segment that was walked, as its footer will have them.
    fn records_of<R>(&self, segment: &Found<R>) -> Vec<Record> {
        let mut all = Vec::new();
        for WalkedHeader { header, page, .. } in &segment.headers {
            all.push(Record::Chunk { position: header.position, sequence: header.sequence });
            // It has been decoded before.
            if let Ok((_, records)) = format::decode_chunk(page, &self.config.owner) {
                all.extend(records);
            }
        }
        all
    }
}
