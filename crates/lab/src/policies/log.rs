//! The production policy over the production accounting of segments, without data, index or devices.
//!
//! What a segment takes and what is written for it is told by `flashcache::meter`, who stays by `flashcache::policy`: the same
//! code the cache runs. A cache too small for real segments is a scale model: segments of 1/64 of it, with headers and footers
//! in the proportion they have in full-size ones. Never decides anything itself.

use super::reference::BlockId;
use flashcache::format::HeadKind;
use flashcache::meter::Meter;
use flashcache::policy::{Admission, CacheShape, HeadPages, Judgement, KEEPS_MAX, Policy, Resident, Verdict};
use flashcache::units::{BlockKey, DiskSlot};
use std::collections::VecDeque;
use std::sync::Arc;

/// Segments a cache is cut into when it is too small for segments of full size.
pub const SEGMENTS_OF_SMALL: u64 = 64;
/// Full size.
const SEGMENT_BYTES: u64 = 2 << 20;
/// The smallest segments whose headers and footers are laid out for real; below, the cache is a scale model.
const SEGMENT_BYTES_REAL_MIN: u64 = 512 << 10;
/// In a scale model: pages of a block, so that shares of a page can be told.
const MODEL_BLOCK_PAGES: u32 = 1024;
const PAGE_BYTES: u32 = 4096;

/// How a cache of so many bytes is cut.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What the policy is told.
    pub shape: CacheShape,
    /// Bytes of a segment; `None` in a scale model.
    pub segment_bytes: Option<u32>,
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
            && let Some(shape) = CacheShape::of(flash_bytes, segment as u32, block_bytes, PAGE_BYTES)
        {
            return Layout { shape, segment_bytes: Some(segment as u32), block_bytes: u64::from(block_bytes) };
        }
        // The proportions of a full-size segment with blocks of the default size.
        let mut meter = Meter::new(SEGMENT_BYTES as u32, PAGE_BYTES);
        let mut data = 0_u64;
        while meter.append(4) {
            data += 4;
        }
        let written = u64::from(meter.seal());
        let whole = SEGMENT_BYTES / u64::from(PAGE_BYTES);
        let segment_blocks = (blocks / SEGMENTS_OF_SMALL).max(1);
        let data_blocks = blocks * data / whole;
        let segments = (data_blocks / segment_blocks) as u32;
        let reserve =
            CacheShape::of(64 * SEGMENT_BYTES, SEGMENT_BYTES as u32, 16 << 10, PAGE_BYTES).map_or(0, |s| s.reserve);
        let segment_data_pages = segment_blocks as u32 * MODEL_BLOCK_PAGES;
        let segment_written_pages = (u64::from(segment_data_pages) * written / data) as u32;
        let shape = CacheShape {
            segments: segments.max(reserve + 4),
            reserve,
            segment_data_pages,
            segment_written_pages,
            block_pages: MODEL_BLOCK_PAGES,
        };
        Layout { shape, segment_bytes: None, block_bytes: u64::from(block_bytes) }
    }
}

#[derive(Clone, Default)]
struct Segment {
    blocks: Vec<BlockId>,
}

const NOWHERE: u32 = u32::MAX;

/// A log without data.
pub struct LogReplay {
    policy: Arc<dyn Policy>,
    layout: Layout,
    segments: Vec<Segment>,
    free: VecDeque<u32>,
    sealed: [VecDeque<u32>; 2],
    open: [Option<u32>; 2],
    meters: [Option<Meter>; 2],
    /// By block: its segment, how often it was hit.
    at: Vec<u32>,
    frequency: Vec<u8>,
    /// Pages written, of the model's size in a scale model.
    written_pages: u64,
}

impl LogReplay {
    /// An empty cache for blocks numbered below `distinct`.
    #[must_use]
    pub fn new(policy: Arc<dyn Policy>, layout: Layout, distinct: u32) -> LogReplay {
        let segments = layout.shape.segments;
        let meter = layout.segment_bytes.map(|bytes| Meter::new(bytes, PAGE_BYTES));
        LogReplay {
            policy,
            segments: vec![Segment::default(); segments as usize],
            free: (0..segments).collect(),
            sealed: Default::default(),
            open: [None; 2],
            meters: [meter.clone(), meter],
            at: vec![NOWHERE; distinct as usize],
            frequency: vec![0; distinct as usize],
            written_pages: 0,
            layout,
        }
    }

    /// Bytes written to flash for what has been sealed and for what is open, headers and footers included.
    #[must_use]
    pub fn flash_bytes_written(&self) -> u64 {
        let shape = &self.layout.shape;
        let open = |side: usize| {
            let blocks = self.open[side].map_or(0, |id| self.segments[id as usize].blocks.len() as u64);
            blocks * u64::from(shape.block_pages) * u64::from(shape.segment_written_pages)
                / u64::from(shape.segment_data_pages)
        };
        let pages = self.written_pages + open(0) + open(1);
        (u128::from(pages) * u128::from(self.layout.block_bytes) / u128::from(shape.block_pages)) as u64
    }

    /// Ask for a block and bring it in if the policy says so; whether it was there.
    pub fn access(&mut self, block: BlockId) -> bool {
        let at = block as usize;
        let key = BlockKey::new(DiskSlot(0), u64::from(block));
        if self.at[at] != NOWHERE {
            self.frequency[at] = (self.frequency[at] + 1).min(3);
            self.policy.hit(key);
            return true;
        }
        if let Admission::To(head) = self.policy.admit(key, self.layout.shape.block_pages) {
            // As the cache does: without a segment to spare a fill is skipped.
            self.append(block, 0, head, self.layout.shape.reserve as usize - 1);
            while self.free.len() <= self.layout.shape.reserve as usize && self.reclaim() {}
        }
        false
    }

    fn append(&mut self, block: BlockId, frequency: u8, head: HeadKind, leave_free: usize) {
        let side = usize::from(head != HeadKind::Small);
        if let Some(id) = self.open[side] {
            let full = match &mut self.meters[side] {
                Some(meter) => !meter.append(self.layout.shape.block_pages),
                None => {
                    let held = self.segments[id as usize].blocks.len() as u32;
                    held * self.layout.shape.block_pages >= self.layout.shape.segment_data_pages
                }
            };
            if full {
                self.seal(side);
            }
        }
        let id = match self.open[side] {
            Some(id) => id,
            None if self.free.len() <= leave_free => return,
            None => {
                let Some(id) = self.free.pop_front() else { return };
                if let Some(meter) = &mut self.meters[side] {
                    assert!(meter.append(self.layout.shape.block_pages), "an empty segment takes a block");
                }
                self.open[side] = Some(id);
                id
            }
        };
        self.segments[id as usize].blocks.push(block);
        self.at[block as usize] = id;
        self.frequency[block as usize] = frequency;
    }

    fn seal(&mut self, side: usize) {
        self.written_pages += u64::from(match &mut self.meters[side] {
            Some(meter) => meter.seal(),
            None => self.layout.shape.segment_written_pages,
        });
        self.sealed[side].extend(self.open[side].take());
    }

    /// As the cache does: look at oldest segments until one is given up.
    fn reclaim(&mut self) -> bool {
        (0..=KEEPS_MAX).any(|keeps| self.look_at_one(keeps))
    }

    /// Whether a segment came free.
    fn look_at_one(&mut self, keeps: u32) -> bool {
        let shape = self.layout.shape;
        let pages = |side: usize| {
            let segments = self.sealed[side].len() + usize::from(self.open[side].is_some());
            segments as u64 * u64::from(shape.segment_data_pages)
        };
        let wanted = self.policy.victim(HeadPages { small: pages(0), main: pages(1) });
        let first = usize::from(wanted != HeadKind::Small);
        let side = if self.sealed[first].is_empty() { 1 - first } else { first };
        let Some(id) = self.sealed[side].pop_front() else { return false };
        let head = if side == 0 { HeadKind::Small } else { HeadKind::Main };
        let blocks = std::mem::take(&mut self.segments[id as usize].blocks);
        let resident = |&block: &BlockId| Resident {
            key: BlockKey::new(DiskSlot(0), u64::from(block)),
            frequency: self.frequency[block as usize],
            pages: shape.block_pages,
        };
        let residents: Vec<Resident> = blocks.iter().map(resident).collect();
        let verdicts = match self.policy.judge(head, &residents, keeps == KEEPS_MAX) {
            Judgement::Keep(head) if keeps < KEEPS_MAX => {
                for &block in &blocks {
                    let frequency = &mut self.frequency[block as usize];
                    *frequency = frequency.saturating_sub(1);
                }
                self.segments[id as usize].blocks = blocks;
                self.sealed[usize::from(head != HeadKind::Small)].push_back(id);
                return false;
            }
            Judgement::Keep(_) => Vec::new(),
            Judgement::Reclaim(verdicts) => verdicts,
        };
        let verdicts = verdicts.into_iter().chain(std::iter::repeat(Verdict::Evict));
        for (block, verdict) in blocks.into_iter().zip(verdicts) {
            self.at[block as usize] = NOWHERE;
            if let Verdict::Move(head, frequency) = verdict {
                self.append(block, frequency, head, 1);
            }
        }
        // The free record is made durable by a sync, which closes the open chunks.
        self.meters.iter_mut().flatten().for_each(Meter::close);
        self.free.push_back(id);
        true
    }
}

impl std::fmt::Debug for LogReplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogReplay({:?})", self.layout)
    }
}
