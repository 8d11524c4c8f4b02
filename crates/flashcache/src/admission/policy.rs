//! Who enters the flash, who stays: a small trait, and the default, which adapts to what is asked for.
//!
//! A policy never does I/O and never sees data. It answers three questions: where a new block goes, which head gives up its
//! oldest segment, and what becomes of that segment: it stays where it is, or its space comes free and some of its blocks
//! are written again. What it wants to know after a restart fits into a byte; the rest it learns anew.

mod adaptive;
mod ghosts;
mod purse;
mod shadow;
mod sketch;
mod strategy;

pub use adaptive::AdaptiveLog;
pub use strategy::{Entry, STRATEGIES, Strategy};

pub(crate) use strategy::MOVED_QUARTERS_MAX;

use crate::admission::meter::Meter;
use crate::base::units::BlockKey;
use crate::format::HeadKind;

/// Where a new block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// To this head.
    To(HeadKind),
    /// Not to flash at all.
    Refuse,
}

/// What becomes of a block whose segment is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves the cache.
    Evict,
    /// It is written again at this head, with this frequency.
    Move(HeadKind, u8),
}

/// What becomes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It stays where it is and becomes the youngest of this head; each of its blocks counts one hit less.
    Keep(HeadKind),
    /// Its space comes free; a verdict for each of its blocks, in the order they were given.
    Reclaim(Vec<Verdict>),
}

/// The frequency a block begins with that takes the place of a version with this frequency: an overwrite counts as a hit does. Without that
/// a block that is only ever written is always new.
#[must_use]
pub fn carried(frequency: u8) -> u8 {
    (frequency + 1).min(FREQUENCY_MAX)
}

/// The highest frequency that is told apart.
pub(crate) const FREQUENCY_MAX: u8 = 3;

/// A cached block of a segment that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The block.
    pub key: BlockKey,
    /// How often it was hit (0 to 3) since it was written or last looked at.
    pub frequency: u8,
    /// Pages of it that are still valid.
    pub pages: u32,
}

/// Pages held by each of the two clean heads' segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HeadPages {
    /// Of the small head.
    pub small: u64,
    /// Of the main head.
    pub main: u64,
}

/// The cache as a policy needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Segments, reserve included.
    pub segments: u32,
    /// Segments kept free.
    pub reserve: u32,
    /// Pages of data a segment holds when it is full.
    pub segment_data_pages: u32,
    /// Pages written for such a segment, headers and footer included.
    pub segment_written_pages: u32,
    /// Pages of a whole block.
    pub block_pages: u32,
}

impl CacheShape {
    /// The shape of a member on an area of `area_bytes`, as its log lays it out; `None` where that is too small for one.
    #[must_use]
    pub fn of(area_bytes: u64, segment_bytes: u32, block_bytes: u32, page_bytes: u32) -> Option<CacheShape> {
        let segments = u32::try_from(area_bytes / u64::from(segment_bytes)).ok()?;
        let block_pages = block_bytes / 4096;
        let reserve = crate::log::sizing::free_segments_low(segments);
        if segments <= reserve || block_pages == 0 {
            return None;
        }
        let mut meter = Meter::new(segment_bytes, page_bytes);
        let mut segment_data_pages = 0;
        while meter.append(block_pages) {
            segment_data_pages += block_pages;
        }
        let segment_written_pages = meter.seal();
        (segment_data_pages > 0).then_some(CacheShape {
            segments,
            reserve,
            segment_data_pages,
            segment_written_pages,
            block_pages,
        })
    }
    /// Pages of data in all segments that can be full at a time.
    #[must_use]
    pub fn data_pages(&self) -> u64 {
        u64::from(self.segments.saturating_sub(self.reserve).max(1)) * u64::from(self.segment_data_pages)
    }
    /// The same in whole blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        (self.data_pages() / u64::from(self.block_pages)).max(1)
    }
}

/// A replacement policy. Called from any thread.
pub trait Policy: Send + Sync {
    /// Its name, for reports.
    fn name(&self) -> &'static str;
    /// A block is looked up; when it is cached, [`Policy::hit`] may follow. Decides nothing, waits for nobody.
    fn expect(&self, _key: BlockKey) {}
    /// A cached block was asked for: called on the hit path, never waits.
    fn hit(&self, key: BlockKey);
    /// A cached block is being overwritten and may be offered anew; it had this frequency.
    fn overwritten(&self, key: BlockKey, frequency: u8);
    /// A block of which `pages` are not cached was read or written. `overwrites`: it was cached until this write.
    fn admit(&self, key: BlockKey, pages: u32, overwrites: bool) -> Admission;
    /// A block is not written for want of endurance: remember it as one that left. `pages` of it were granted, by [`Policy::admit`] to what does
    /// not overwrite or by [`Policy::judge`]; 0 of what asks for no grant.
    fn refused(&self, key: BlockKey, pages: u32);
    /// Space is needed: which head gives up its oldest segment. `must` as in [`Policy::judge`].
    fn victim(&self, held: HeadPages, must: bool) -> HeadKind;
    /// The oldest segment of a head, which holds `residents`; `held` without it. `must` when too many have been
    /// kept in a row: [`Judgement::Keep`] is then taken as giving up all of it.
    fn judge(&self, head: HeadKind, held: HeadPages, residents: &[Resident], must: bool) -> Judgement;
    /// What it wants to be told after a restart; 0 for nothing.
    fn note(&self) -> u8;
    /// After a restart: what it had noted last, or 0. A note it does not know is as 0.
    fn remind(&self, note: u8);
}

/// Segments kept in a row after which one has to be given up: reading their footers takes time that fills wait for.
pub const KEEPS_MAX: u32 = 64;

#[cfg(test)]
mod tests;
