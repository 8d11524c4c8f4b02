//! Small models of the cache, one a strategy, fed with a sample of the blocks: which strategy would miss least.
//!
//! Sampling is by the hash of the block (SHARDS, Waldspurger et al., FAST 2015), so that a model of 1/n of the cache sees 1/n
//! of the blocks with all their requests. A model has segments, heads, ghosts and a purse as the cache has, but no data.

#![expect(clippy::disallowed_types, reason = "a map with a fixed hasher, which is never walked")]

use crate::admission::policy::CacheShape;
use crate::admission::policy::carried;
use crate::admission::policy::purse::Purse;
use crate::admission::policy::sketch::{Bar, Sketch};
use crate::admission::policy::strategy::{MOVED_QUARTERS_MAX, STRATEGIES, Side, Strategy};
use crate::base::units::BlockKey;
use crate::log::CLEANED_GAIN_MIN;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Blocks of a model where the cache is large enough: with fewer, the sample tells too little.
const MODEL_BLOCKS_MIN: u64 = 2048;
/// One model block for so many of the cache, above that: memory stays below 2 bytes a cached block.
const BLOCKS_PER_MODEL_BLOCK: u64 = 512;
/// The most blocks of a model.
const MODEL_BLOCKS_MAX: u64 = 1 << 17;
/// The most segments of a model.
const MODEL_SEGMENTS_MAX: u64 = 128;
/// A score looks back on about so many model sizes of requests: shorter, and strategies change places by chance.
const WINDOW_MODELS: u64 = 16;
/// Early on, when few have been seen, on as many as that: about 2 to this power at least.
const SCORE_SHIFT_MIN: u32 = 8;
/// Sampled requests between two looks at the scores.
const LOOK_EVERY: u32 = 64;
/// A strategy takes over when it misses less than the one in force by 1 part in so many: what it takes over was cached for another, and costs misses
/// until that has been replaced.
const BETTER_BY: u64 = 32;

/// Below so much of what a model holds nothing is evicted.
const ROOMY_PERCENT: u64 = 85;

/// The models.
pub(crate) struct Shadow {
    /// By the place of their strategy; none for a strategy that does not suit the cache.
    models: Vec<Option<Model>>,
    /// How often the sampled blocks were asked for.
    sketch: Sketch,
    until_look: u32,
    best: usize,
}

/// Which blocks are sampled: those whose hash is below this.
pub(crate) fn sample_limit(shape: &CacheShape) -> u64 {
    let blocks = shape.blocks();
    u64::MAX / (blocks / model_blocks(blocks)).max(1)
}

fn model_blocks(blocks: u64) -> u64 {
    (blocks / BLOCKS_PER_MODEL_BLOCK).clamp(MODEL_BLOCKS_MIN, MODEL_BLOCKS_MAX).min(blocks)
}

impl Shadow {
    pub(crate) fn new(shape: &CacheShape) -> Shadow {
        let model = |strategy: &Strategy| strategy.suits(shape).then(|| Model::new(*strategy, shape));
        let models = STRATEGIES.iter().map(model).collect();
        let sketch = Sketch::new(model_blocks(shape.blocks()));
        Shadow { models, sketch, until_look: LOOK_EVERY, best: 0 }
    }

    /// This strategy is in force until another has proved better.
    pub(crate) fn follow(&mut self, strategy: usize) {
        self.best = strategy;
    }

    /// A sampled block was asked for: the strategy to follow from now on.
    pub(crate) fn access(&mut self, key: BlockKey, overwrites: bool) -> usize {
        let name = (key.hash() >> 8) as u32;
        self.sketch.count(mixed(name));
        self.models.iter_mut().flatten().for_each(|model| model.access(name, overwrites, &self.sketch));
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = LOOK_EVERY;
            let score = |(at, model): (usize, &Option<Model>)| Some((model.as_ref()?.score, at));
            let least = self.models.iter().enumerate().filter_map(score).min();
            if let (Some((least, at)), Some(current)) = (least, &self.models[self.best])
                && least + current.score / BETTER_BY < current.score
            {
                self.best = at;
            }
        }
        self.best
    }

    /// What each model missed lately, in 1/2^32.
    #[cfg(test)]
    pub(crate) fn scores(&self) -> Vec<u64> {
        self.models.iter().flatten().map(|model| model.score).collect()
    }

    /// Bytes of the models of a cache of `blocks` blocks, about.
    pub(crate) fn memory_bytes(blocks: u64) -> u64 {
        // A name in the map with its slack, for residents and for up to two ghosts each, and their queues.
        let blocks = model_blocks(blocks);
        STRATEGIES.len() as u64 * blocks * (3 * 14 + 4 + 2 * 8) + Sketch::memory_bytes(blocks)
    }
}

/// A name with its bits spread over all 64.
fn mixed(name: u32) -> u64 {
    u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Names are hashes already.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }
    fn write_u32(&mut self, name: u32) {
        self.0 = mixed(name);
    }
}

#[derive(Clone, Copy)]
enum Known {
    In { segment: u16, frequency: u8 },
    Left { put: u32 },
}

#[derive(Default)]
struct Segment {
    names: Vec<u32>,
    hot: u32,
    /// Names that are here still.
    live: u32,
}

struct Model {
    strategy: Strategy,
    segment_blocks: usize,
    reserve: usize,
    known: HashMap<u32, Known, BuildHasherDefault<NameHasher>>,
    segments: Vec<Segment>,
    free: Vec<u16>,
    sealed: [VecDeque<u16>; 2],
    open: [Option<u16>; 2],
    ghosts: VecDeque<(u32, u32)>,
    puts: u32,
    ghosts_max: usize,
    /// Names in all segments.
    live: u32,
    /// How often what the main head gave up was asked for.
    bar: Bar,
    /// How often in a row the small head gave up its oldest segment.
    small_in_a_row: u32,
    purse: Purse,
    /// Decayed share of misses, in 1/2^32.
    score: u64,
    score_shift: u32,
    accesses: u64,
    draws: u32,
}

impl Model {
    fn new(strategy: Strategy, shape: &CacheShape) -> Model {
        let blocks = model_blocks(shape.blocks());
        let usable = u64::from(shape.segments - shape.reserve);
        let count = usable.min(MODEL_SEGMENTS_MAX).min(blocks).max(4);
        let segment_blocks = (blocks / count).max(1);
        // What the segments' rounding loses comes back as one more segment.
        let count = (blocks / segment_blocks).max(4);
        let reserve = 1;
        let all = count + reserve;
        Model {
            strategy,
            segment_blocks: segment_blocks as usize,
            reserve: reserve as usize,
            known: HashMap::default(),
            segments: (0..all).map(|_| Segment::default()).collect(),
            free: (0..all as u16).collect(),
            sealed: Default::default(),
            open: [None; 2],
            ghosts: VecDeque::new(),
            puts: 0,
            live: 0,
            ghosts_max: (blocks * u64::from(strategy.ghost_epochs)
                / u64::from(crate::admission::policy::ghosts::EPOCHS_PER_CACHE)) as usize,
            purse: Purse::new(&CacheShape {
                segments: all as u32,
                reserve: reserve as u32,
                segment_data_pages: shape.segment_data_pages,
                segment_written_pages: shape.segment_written_pages,
                block_pages: shape.block_pages,
            }),
            bar: Bar::new(),
            small_in_a_row: 0,
            score: 1 << 32,
            score_shift: (blocks * WINDOW_MODELS).max(256).ilog2(),
            accesses: 0,
            draws: 0,
        }
    }

    fn access(&mut self, name: u32, overwrites: bool, sketch: &Sketch) {
        let known = self.known.get(&name).copied();
        let hit = matches!(known, Some(Known::In { .. }));
        self.accesses += 1;
        let shift = self.accesses.ilog2().clamp(SCORE_SHIFT_MIN, self.score_shift);
        self.score -= self.score >> shift;
        self.score += if hit { 0 } else { (1 << 32) >> shift };
        match known {
            Some(Known::In { segment, frequency }) if overwrites => self.overwrite(name, segment, frequency, sketch),
            Some(Known::In { segment, frequency }) => {
                if frequency < 3 {
                    self.segments[usize::from(segment)].hot += u32::from(frequency == 0);
                    self.known.insert(name, Known::In { segment, frequency: frequency + 1 });
                }
            }
            Some(Known::Left { .. }) => {
                self.purse.earn(1);
                self.fill(name, true, sketch);
            }
            None => {
                self.purse.earn(1);
                self.draws = self.draws.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                if self.strategy.admits(self.draws >> 22) {
                    self.fill(name, false, sketch);
                } else {
                    self.leave(name);
                }
            }
        }
    }

    fn fill(&mut self, name: u32, comes_back: bool, sketch: &Sketch) {
        self.purse.spend(1);
        let asked_for_more = || self.bar.is_passed(mixed(name), sketch);
        let side = self.strategy.enters(comes_back, asked_for_more);
        self.append(name, 0, side);
        self.make_room(sketch);
    }

    /// A new version of a name comes, and leaves garbage in the place of the old one.
    fn overwrite(&mut self, name: u32, segment: u16, frequency: u8, sketch: &Sketch) {
        self.purse.earn(1);
        let of = &mut self.segments[usize::from(segment)];
        if self.open[Side::Main as usize] == Some(segment) {
            of.hot += u32::from(frequency == 0);
            self.known.insert(name, Known::In { segment, frequency: carried(frequency) });
            return;
        }
        of.live -= 1;
        of.hot -= u32::from(frequency > 0);
        self.live -= 1;
        self.append(name, carried(frequency), Side::Main);
        self.make_room(sketch);
    }

    fn make_room(&mut self, sketch: &Sketch) {
        let mut keeps = 0;
        loop {
            let closed = self.open.iter().filter(|open| open.is_none()).count();
            if self.free.len() >= self.reserve + closed {
                return;
            }
            if !self.clean() && !self.reclaim(&mut keeps, sketch) {
                return;
            }
        }
    }

    /// A name that left; the oldest of them is forgotten.
    fn leave(&mut self, name: u32) {
        self.puts = self.puts.wrapping_add(1);
        self.known.insert(name, Known::Left { put: self.puts });
        self.ghosts.push_back((name, self.puts));
        while self.ghosts.len() > self.ghosts_max {
            let Some((oldest, put)) = self.ghosts.pop_front() else { return };
            if matches!(self.known.get(&oldest), Some(Known::Left { put: p }) if *p == put) {
                self.known.remove(&oldest);
            }
        }
    }

    fn append(&mut self, name: u32, frequency: u8, side: Side) {
        let open = &mut self.open[side as usize];
        if open.is_none() {
            *open = self.free.pop();
        }
        let Some(id) = *open else { return self.leave(name) };
        let segment = &mut self.segments[usize::from(id)];
        segment.names.push(name);
        segment.live += 1;
        self.live += 1;
        segment.hot += u32::from(frequency > 0);
        let full = segment.names.len() >= self.segment_blocks;
        self.known.insert(name, Known::In { segment: id, frequency });
        if full {
            self.sealed[side as usize].push_back(id);
            self.open[side as usize] = None;
        }
    }

    /// Clean the segment most of which is garbage, as the cache does: any while it is roomy, then those of which half is. What it holds is
    /// written again at no expense.
    fn clean(&mut self) -> bool {
        let all = self.segment_blocks as u32;
        let held_max = (self.segments.len() - self.reserve) as u64 * u64::from(all);
        let is_roomy = u64::from(self.live) * 100 < held_max * ROOMY_PERCENT;
        let live_max = if is_roomy { all - (all / CLEANED_GAIN_MIN).max(1) } else { all / 2 };
        let sealed = [Side::Small, Side::Main]
            .into_iter()
            .flat_map(|side| self.sealed[side as usize].iter().enumerate().map(move |(at, id)| (side, at, *id)));
        let least =
            sealed.map(|(side, at, id)| (self.segments[usize::from(id)].live, side, at)).min_by_key(|(live, ..)| *live);
        let Some((_, side, at)) = least.filter(|(live, ..)| *live <= live_max) else { return false };
        let Some(id) = self.sealed[side as usize].remove(at) else { return false };
        let Segment { names, live, .. } = std::mem::take(&mut self.segments[usize::from(id)]);
        self.live -= live;
        self.free.push(id);
        for name in names {
            if let Some(Known::In { segment, frequency }) = self.known.get(&name).copied()
                && segment == id
            {
                self.append(name, frequency, Side::Main);
            }
        }
        true
    }

    fn reclaim(&mut self, keeps: &mut u32, sketch: &Sketch) -> bool {
        let held =
            |side: Side| (self.sealed[side as usize].len() + usize::from(self.open[side as usize].is_some())) as u64;
        let wanted = self.strategy.victim(
            held(Side::Small),
            held(Side::Main),
            self.small_in_a_row,
            *keeps == crate::admission::policy::KEEPS_MAX,
        );
        let other = if wanted == Side::Small { Side::Main } else { Side::Small };
        let side = if self.sealed[wanted as usize].is_empty() { other } else { wanted };
        let small = held(Side::Small) - u64::from(side == Side::Small);
        let over_share = |left: u32, all: u64| {
            side == Side::Small && self.strategy.adopts(small * all, held(Side::Main) * all, u64::from(left), all)
        };
        let Some(front) = self.sealed[side as usize].front() else { return false };
        let adopts = over_share(self.segments[usize::from(*front)].live, self.segment_blocks as u64);
        let Some(id) = self.sealed[side as usize].pop_front() else { return false };
        self.small_in_a_row = if wanted == Side::Small { self.small_in_a_row.saturating_add(1) } else { 0 };
        let (hot, all) = {
            let segment = &self.segments[usize::from(id)];
            (u64::from(segment.hot), segment.names.len() as u64)
        };
        if *keeps < crate::admission::policy::KEEPS_MAX && (adopts || self.strategy.keeps(side, hot, all)) {
            *keeps += 1;
            self.age(id);
            self.sealed[Side::Main as usize].push_back(id);
            return true;
        }
        let Segment { names, live, .. } = std::mem::take(&mut self.segments[usize::from(id)]);
        self.live -= live;
        let mut left: Vec<(u8, u32)> = Vec::with_capacity(names.len());
        for name in names {
            if let Some(Known::In { segment, frequency }) = self.known.get(&name)
                && *segment == id
            {
                left.push((*frequency, name));
            }
        }
        self.free.push(id);
        left.sort_by_key(|(frequency, _)| std::cmp::Reverse(*frequency));
        let mut room = self.segment_blocks * MOVED_QUARTERS_MAX as usize / 4;
        for (frequency, name) in left {
            let asked_for_more = || self.bar.is_passed(mixed(name), sketch);
            if room > 0 && self.strategy.moves(side, frequency, asked_for_more) && self.purse.try_spend(1) {
                room -= 1;
                self.append(name, Strategy::frequency_moved(side, frequency), Side::Main);
            } else {
                self.leave(name);
                if side == Side::Main {
                    self.bar.gave_up(mixed(name));
                }
            }
        }
        true
    }

    fn age(&mut self, id: u16) {
        let Segment { names, live, .. } = std::mem::take(&mut self.segments[usize::from(id)]);
        let mut hot = 0;
        for name in &names {
            if let Some(Known::In { segment, frequency }) = self.known.get_mut(name)
                && *segment == id
            {
                *frequency = frequency.saturating_sub(1);
                hot += u32::from(*frequency > 0);
            }
        }
        self.segments[usize::from(id)] = Segment { names, hot, live };
    }
}
