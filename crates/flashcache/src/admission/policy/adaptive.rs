//! The default: a log of segments with a small and a main head, run by whichever of several strategies would have missed least
//! lately, within an allowance of writes.

use crate::admission::policy::ghosts::Ghosts;
use crate::admission::policy::purse::Purse;
use crate::admission::policy::shadow::{Shadow, sample_limit};
use crate::admission::policy::sketch::{Bar, Sketch};
use crate::admission::policy::strategy::{MOVED_QUARTERS_MAX, STRATEGIES, Side, Strategy};
use crate::admission::policy::{Admission, CacheShape, HeadPages, Judgement, Policy, Resident, Verdict};
use crate::base::mechanism::Mechanism;
use crate::base::units::BlockKey;
use crate::format::HeadKind;
use device::sync::lock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

/// See the module.
pub struct AdaptiveLog {
    shape: CacheShape,
    ghosts: Mutex<Ghosts>,
    /// How often blocks were asked for lately.
    sketch: Sketch,
    /// How often those that the main head gave up were.
    bar: Bar,
    /// How often in a row the small head was to give up its oldest segment.
    small_in_a_row: AtomicU32,
    purse: Purse,
    /// Blocks with a hash below this are shown to the models.
    sample_limit: u64,
    shadow: Mutex<Shadow>,
    /// The strategy in force.
    pub(crate) strategy: AtomicUsize,
    draws: AtomicU64,
    /// The mechanism that an experiment has taken away.
    without: Option<Mechanism>,
}

impl AdaptiveLog {
    /// A policy for a cache of this shape.
    #[must_use]
    pub fn new(shape: CacheShape) -> AdaptiveLog {
        AdaptiveLog::without(shape, None)
    }

    /// The same without a mechanism, of which [`Mechanism::Learning`] and [`Mechanism::Probation`] are the policy's.
    #[must_use]
    pub fn without(shape: CacheShape, without: Option<Mechanism>) -> AdaptiveLog {
        AdaptiveLog {
            shape,
            ghosts: Mutex::new(Ghosts::new(shape.blocks())),
            sketch: Sketch::new(shape.blocks()),
            bar: Bar::new(),
            small_in_a_row: AtomicU32::new(0),
            purse: Purse::new(&shape),
            sample_limit: sample_limit(&shape),
            shadow: Mutex::new(Shadow::new(&shape)),
            strategy: AtomicUsize::new(0),
            draws: AtomicU64::new(0),
            without,
        }
    }

    /// Bytes it uses for a cache of `blocks` blocks, about.
    #[must_use]
    pub fn memory_bytes(blocks: u64) -> u64 {
        Ghosts::memory_bytes(blocks) + Sketch::memory_bytes(blocks) + Shadow::memory_bytes(blocks)
    }

    /// Of these, the names of blocks that left and how often blocks were asked for.
    #[must_use]
    pub fn ghost_bytes(blocks: u64) -> u64 {
        Ghosts::memory_bytes(blocks) + Sketch::memory_bytes(blocks)
    }

    /// Index into [`STRATEGIES`] of the one in force.
    #[must_use]
    pub fn strategy_in_force(&self) -> usize {
        self.strategy.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn scores(&self) -> Vec<u64> {
        lock(&self.shadow).scores()
    }

    fn strategy(&self) -> Strategy {
        STRATEGIES[self.strategy_in_force()]
    }

    fn follow(&self, strategy: usize) {
        if self.without != Some(Mechanism::Learning) {
            self.strategy.store(strategy, Ordering::Relaxed);
        }
    }

    fn asked_for_more(&self, key: BlockKey) -> bool {
        self.bar.is_passed(key.hash(), &self.sketch)
    }

    fn sampled(&self, key: BlockKey) -> Option<&Mutex<Shadow>> {
        (key.hash() <= self.sample_limit).then_some(&self.shadow)
    }

    /// An even draw from 0 to 1023; a race costs a repeated draw, nothing else.
    fn draw(&self) -> u32 {
        let next =
            self.draws.load(Ordering::Relaxed).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.draws.store(next, Ordering::Relaxed);
        (next >> 54) as u32
    }
}

impl Policy for AdaptiveLog {
    fn name(&self) -> &'static str {
        "flashcell"
    }

    fn expect(&self, key: BlockKey) {
        self.sketch.expect(key.hash());
    }

    fn hit(&self, key: BlockKey) {
        self.sketch.count(key.hash());
        let Some(shadow) = self.sampled(key) else { return };
        // Whoever comes while another looks at the models is not sampled: the hit path never waits.
        let guard = match shadow.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut shadow) = guard {
            self.follow(shadow.access(key, false));
        }
    }

    fn overwritten(&self, key: BlockKey, frequency: u8) {
        if frequency > 0 {
            lock(&self.ghosts).put(key);
        }
    }

    fn admit(&self, key: BlockKey, pages: u32, overwrites: bool) -> Admission {
        self.sketch.count(key.hash());
        if let Some(shadow) = self.sampled(key) {
            self.follow(lock(shadow).access(key, overwrites));
        }
        let strategy = self.strategy();
        self.purse.earn(pages);
        let mut ghosts = lock(&self.ghosts);
        let known = ghosts.take(key, strategy.ghost_epochs);
        if overwrites {
            // The client has asked for this write: it is none of those that are allowed for each miss.
            return Admission::To(HeadKind::Main);
        }
        if !known && !strategy.admits(self.draw()) {
            ghosts.put(key);
            return Admission::Refuse;
        }
        drop(ghosts);
        self.purse.spend(pages);
        let side = strategy.enters(known, || self.asked_for_more(key));
        Admission::To(if side == Side::Main || self.without == Some(Mechanism::Probation) {
            HeadKind::Main
        } else {
            HeadKind::Small
        })
    }

    fn refused(&self, key: BlockKey, pages: u32) {
        self.purse.refund(pages);
        lock(&self.ghosts).put(key);
    }

    fn victim(&self, held: HeadPages, must: bool) -> HeadKind {
        match self.strategy().victim(held.small, held.main, self.small_in_a_row.load(Ordering::Relaxed), must) {
            Side::Small => {
                self.small_in_a_row.fetch_add(1, Ordering::Relaxed);
                HeadKind::Small
            }
            Side::Main => {
                self.small_in_a_row.store(0, Ordering::Relaxed);
                HeadKind::Main
            }
        }
    }

    fn judge(&self, head: HeadKind, held: HeadPages, residents: &[Resident], must: bool) -> Judgement {
        let strategy = self.strategy();
        let side = if head == HeadKind::Small { Side::Small } else { Side::Main };
        let hot: u64 = residents.iter().filter(|r| r.frequency > 0).map(|r| u64::from(r.pages)).sum();
        let left: u64 = residents.iter().map(|r| u64::from(r.pages)).sum();
        let segment = u64::from(self.shape.segment_written_pages);
        let adopts = side == Side::Small && strategy.adopts(held.small, held.main, left, segment);
        if !must && (adopts || strategy.keeps(side, hot, u64::from(self.shape.segment_data_pages))) {
            return Judgement::Keep(HeadKind::Main);
        }
        let mut room = self.shape.segment_data_pages * MOVED_QUARTERS_MAX / 4;
        let mut verdicts = vec![Verdict::Evict; residents.len()];
        // The hottest first, as far as room and allowance go.
        for hits in (1..=3_u8).rev() {
            for (resident, verdict) in residents.iter().zip(&mut verdicts).filter(|(r, _)| r.frequency == hits) {
                if strategy.moves(side, hits, || self.asked_for_more(resident.key))
                    && resident.pages <= room
                    && self.purse.try_spend(resident.pages)
                {
                    room -= resident.pages;
                    *verdict = Verdict::Move(HeadKind::Main, Strategy::frequency_moved(side, hits));
                }
            }
        }
        let mut ghosts = lock(&self.ghosts);
        for (resident, _) in residents.iter().zip(&verdicts).filter(|(_, v)| **v == Verdict::Evict) {
            ghosts.put(resident.key);
            if side == Side::Main {
                self.bar.gave_up(resident.key.hash());
            }
        }
        Judgement::Reclaim(verdicts)
    }

    /// The strategy in force.
    fn note(&self) -> u8 {
        self.strategy_in_force() as u8 + 1
    }

    fn remind(&self, note: u8) {
        let suits = |at: &usize| STRATEGIES.get(*at).is_some_and(|strategy| strategy.suits(&self.shape));
        let Some(strategy) = usize::from(note).checked_sub(1).filter(suits) else { return };
        lock(&self.shadow).follow(strategy);
        self.follow(strategy);
    }
}

impl std::fmt::Debug for AdaptiveLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AdaptiveLog(strategy {})", self.strategy_in_force())
    }
}
