//! How a cache of so many blocks is cut into segments, and the policies that run on that log.
//!
//! What a segment takes, which one is cleaned and what is written is told by `flashcache::model`, who stays by `flashcache::policy`: the
//! same code the cache runs. A cache too small for as many real segments as a cell has is a scale model: its segments are smaller, with
//! headers and footers in the proportion they have in full-size ones. A policy of whole blocks gets the same log: what it lets go is
//! garbage there, and it holds as much as the log keeps without evicting anything.

use super::reference::{BlockCache, BlockId};
use flashcache::format::HeadKind;
use flashcache::meter::Meter;
use flashcache::model::{LogModel, ModelShape};
use flashcache::policy::{Admission, CacheShape, HeadPages, Judgement, Policy, Resident, Verdict};
use flashcache::units::{BlockKey, SEGMENT_PAGES_MAX, SEGMENT_PAGES_MIN};
use std::sync::Arc;

/// Segments of a cache that is too small for so many of full size: those of 1 GiB. What is kept free and open weighs there as in a cell.
const SEGMENTS_OF_SMALL: u64 = 512;
/// Fewer, rather than segments of less than so many blocks: what is kept or given up is segments.
const MODEL_SEGMENT_BLOCKS_MIN: u64 = 8;
/// But so many at least, from which on the log keeps apart what lasts from what does not.
const MODEL_SEGMENTS_MIN: u64 = 128;
/// Full size.
const SEGMENT_BYTES: u64 = 2 << 20;
/// The smallest segments whose headers and footers are laid out for real; below, the cache is a scale model.
const SEGMENT_BYTES_REAL_MIN: u64 = 512 << 10;
/// Pages of data of a segment of a scale model, about: as in full size, so that shares of one can be told.
const MODEL_SEGMENT_PAGES: u64 = 500;
const PAGE_BYTES: u32 = 4096;

/// How a cache of so many bytes is cut.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// As the model of the log wants it.
    pub shape: ModelShape,
    block_bytes: u64,
}

impl Layout {
    /// A cache of `blocks` blocks' worth of flash, everything included.
    ///
    /// # Panics
    /// When `blocks` is 0 or the block is no whole number of pages.
    #[must_use]
    pub fn of(blocks: u64, block_bytes: u32) -> Layout {
        assert!(blocks > 0 && block_bytes >= PAGE_BYTES && block_bytes.is_multiple_of(PAGE_BYTES));
        let flash_bytes = blocks * u64::from(block_bytes);
        let segment = (flash_bytes / SEGMENTS_OF_SMALL).clamp(1, SEGMENT_BYTES);
        let segment = 1 << segment.ilog2();
        if segment >= SEGMENT_BYTES_REAL_MIN
            && let Some(layout) = Layout::real(blocks, block_bytes, segment as u32)
        {
            return layout;
        }
        // The proportions of a full-size segment with blocks of the default size.
        let mut meter = Meter::new(SEGMENT_BYTES as u32, PAGE_BYTES);
        let mut data = 0_u64;
        while meter.append(4) {
            data += 4;
        }
        let written = u64::from(meter.seal());
        let data_blocks = (blocks * data * u64::from(PAGE_BYTES) / SEGMENT_BYTES).max(1);
        let segments = (data_blocks / MODEL_SEGMENT_BLOCKS_MIN).clamp(MODEL_SEGMENTS_MIN, SEGMENTS_OF_SMALL);
        let segment_blocks = (data_blocks / segments).max(1);
        // What rounding loses comes back as more segments. A log has a few at least.
        let segments = (data_blocks / segment_blocks).max(16);
        let block_pages = (MODEL_SEGMENT_PAGES / segment_blocks).max(1);
        let segment_data_pages = segment_blocks * block_pages;
        let cache = CacheShape {
            segments: segments as u32,
            reserve: CacheShape::of(segments * SEGMENT_BYTES, SEGMENT_BYTES as u32, 16 << 10, PAGE_BYTES)
                .map_or(0, |shape| shape.reserve),
            segment_data_pages: segment_data_pages as u32,
            segment_written_pages: (segment_data_pages * written / data) as u32,
            block_pages: block_pages as u32,
        };
        Layout { shape: ModelShape { cache, real: None }, block_bytes: u64::from(block_bytes) }
    }

    /// The same in segments of so many bytes, as a cell has them; `None` where that is too small for a cache.
    #[must_use]
    pub fn real(blocks: u64, block_bytes: u32, segment_bytes: u32) -> Option<Layout> {
        let pages = segment_bytes / PAGE_BYTES;
        if !segment_bytes.is_power_of_two() || !(SEGMENT_PAGES_MIN..=SEGMENT_PAGES_MAX).contains(&pages) {
            return None;
        }
        let cache = CacheShape::of(blocks * u64::from(block_bytes), segment_bytes, block_bytes, PAGE_BYTES)?;
        let shape = ModelShape { cache, real: Some((segment_bytes, PAGE_BYTES)) };
        Some(Layout { shape, block_bytes: u64::from(block_bytes) })
    }

    /// Bytes of so many pages of the model.
    #[must_use]
    pub fn bytes_of(&self, pages: u64) -> u64 {
        (u128::from(pages) * u128::from(self.block_bytes) / u128::from(self.shape.cache.block_pages)) as u64
    }

    /// Blocks a policy of whole blocks holds on this log: as many as nothing has to leave for.
    #[must_use]
    pub fn usable_blocks(&self) -> u64 {
        self.shape.roomy_blocks()
    }
}

/// A policy of whole blocks over the log.
pub struct BlocksOnLog {
    blocks: Box<dyn BlockCache>,
    log: LogModel,
    left: Vec<BlockId>,
}

impl BlocksOnLog {
    /// An empty cache; `blocks` holds [`Layout::usable_blocks`].
    #[must_use]
    pub fn new(blocks: Box<dyn BlockCache>, layout: Layout, distinct: u32) -> BlocksOnLog {
        BlocksOnLog { blocks, log: LogModel::new(Arc::new(KeepsAll), layout.shape, distinct), left: Vec::new() }
    }

    /// What it has written, and for what.
    #[must_use]
    pub fn log(&self) -> &LogModel {
        &self.log
    }

    /// Read or write a block and bring it in if it is not there; whether it was.
    pub fn access(&mut self, block: BlockId, write: bool) -> bool {
        let left = &mut self.left;
        self.blocks.access(block, &mut |gone| left.push(gone));
        // Reclaim may have had to evict what the policy holds.
        let hit = self.log.holds(block);
        let (mut refused, log) = (false, &mut self.log);
        for gone in self.left.drain(..) {
            refused |= gone == block;
            log.remove(gone);
        }
        if (write || !hit) && !refused {
            log.put(block);
        }
        hit
    }
}

impl std::fmt::Debug for BlocksOnLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlocksOnLog({:?})", self.log)
    }
}

/// The log under a policy of whole blocks evicts nothing of its own accord.
struct KeepsAll;

impl Policy for KeepsAll {
    fn name(&self) -> &'static str {
        "none"
    }
    fn hit(&self, _: BlockKey) {}
    fn overwritten(&self, _: BlockKey, _: u8) {}
    fn admit(&self, _: BlockKey, _: u32, _: bool) -> Admission {
        Admission::To(HeadKind::Small)
    }
    fn refused(&self, _: BlockKey, _: u32) {}
    fn victim(&self, held: HeadPages, _: bool) -> HeadKind {
        if held.small > held.main { HeadKind::Small } else { HeadKind::Main }
    }
    fn judge(&self, _: HeadKind, _: HeadPages, residents: &[Resident], _: bool) -> Judgement {
        Judgement::Reclaim(vec![Verdict::Move(HeadKind::Main, 0); residents.len()])
    }
    fn note(&self) -> u8 {
        0
    }
    fn remind(&self, _: u8) {}
}
