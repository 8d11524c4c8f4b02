//! Goal: the policy decides what it decided when it was measured (`docs/policies.md`): where blocks go, what stays, which strategy is
//! followed. Method: a cache of names alone, run over phases that favour different strategies, counted exactly. A change of these
//! numbers is a change of the policy: measure it anew, then write down the new ones.

use super::*;
use crate::base::mechanism::Mechanism;
use crate::base::units::DiskSlot;
use device::Prng;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const SEGMENT_BYTES: u32 = 256 << 10;

/// What was counted in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    hits: u64,
    main: u64,
    refused: u64,
    moves: u64,
    keeps: u64,
}

/// Segments with names, as a member has them.
struct Cache {
    policy: AdaptiveLog,
    shape: CacheShape,
    /// By block: segment and frequency.
    there: BTreeMap<u64, (usize, u8)>,
    segments: Vec<Vec<u64>>,
    free: VecDeque<usize>,
    heads: [(Option<usize>, VecDeque<usize>); 2],
    counted: Counted,
}

fn key(block: u64) -> BlockKey {
    BlockKey::new(DiskSlot(1), block)
}

impl Cache {
    fn new(segments: u32) -> Cache {
        let shape = CacheShape::of(u64::from(segments) * u64::from(SEGMENT_BYTES), SEGMENT_BYTES, 16 << 10, 4096);
        let shape = shape.expect("large enough");
        Cache {
            policy: AdaptiveLog::new(shape),
            shape,
            there: BTreeMap::new(),
            segments: vec![Vec::new(); segments as usize],
            free: (0..segments as usize).collect(),
            heads: Default::default(),
            counted: Counted::default(),
        }
    }

    fn access(&mut self, block: u64) {
        if let Some((_, frequency)) = self.there.get_mut(&block) {
            *frequency = (*frequency + 1).min(3);
            self.policy.hit(key(block));
            self.counted.hits += 1;
            return;
        }
        match self.policy.admit(key(block), 4, false) {
            Admission::Refuse => self.counted.refused += 1,
            Admission::To(head) => {
                self.counted.main += u64::from(head == HeadKind::Main);
                self.append(block, 0, head);
            }
        }
        let mut keeps = 0;
        while self.free.len() < self.shape.reserve as usize {
            self.reclaim(&mut keeps);
        }
    }

    fn append(&mut self, block: u64, frequency: u8, head: HeadKind) {
        let full = (self.shape.segment_data_pages / self.shape.block_pages) as usize;
        let (open, sealed) = &mut self.heads[head as usize];
        let Some(id) = open.or_else(|| self.free.pop_front()) else { return };
        *open = Some(id);
        self.segments[id].push(block);
        self.there.insert(block, (id, frequency));
        if self.segments[id].len() == full {
            sealed.push_back(id);
            *open = None;
        }
    }

    fn held(&self) -> HeadPages {
        let pages = |head: usize| {
            (self.heads[head].1.len() + usize::from(self.heads[head].0.is_some())) as u64
                * u64::from(SEGMENT_BYTES / 4096)
        };
        HeadPages { small: pages(0), main: pages(1) }
    }

    fn reclaim(&mut self, keeps: &mut u32) {
        let head = self.policy.victim(self.held(), *keeps == KEEPS_MAX);
        let other = if head == HeadKind::Small { HeadKind::Main } else { HeadKind::Small };
        let head = if self.heads[head as usize].1.is_empty() { other } else { head };
        let Some(id) = self.heads[head as usize].1.pop_front() else { panic!("a head has a full segment") };
        let living: Vec<(u64, u8)> = self.segments[id]
            .iter()
            .filter_map(|block| self.there.get(block).filter(|(at, _)| *at == id).map(|(_, f)| (*block, *f)))
            .collect();
        let resident = |(block, frequency): &(u64, u8)| Resident { key: key(*block), frequency: *frequency, pages: 4 };
        let residents: Vec<Resident> = living.iter().map(resident).collect();
        match self.policy.judge(head, self.held(), &residents, *keeps == KEEPS_MAX) {
            Judgement::Keep(to) => {
                *keeps += 1;
                self.counted.keeps += 1;
                for (block, frequency) in living {
                    self.there.insert(block, (id, frequency.saturating_sub(1)));
                }
                self.heads[to as usize].1.push_back(id);
            }
            Judgement::Reclaim(verdicts) => {
                assert_eq!(verdicts.len(), residents.len());
                self.segments[id].clear();
                self.free.push_back(id);
                for ((block, _), verdict) in living.into_iter().zip(verdicts) {
                    self.there.remove(&block);
                    if let Verdict::Move(to, frequency) = verdict {
                        self.counted.moves += 1;
                        self.append(block, frequency, to);
                    }
                }
            }
        }
    }

    fn phase(&mut self, requests: u64, mut next: impl FnMut(u64) -> u64) -> (Counted, usize) {
        self.counted = Counted::default();
        (0..requests).for_each(|n| self.access(next(n)));
        (self.counted, self.policy.strategy_in_force())
    }
}

/// A few blocks often, many seldom: the least of three draws.
fn skewed(prng: &mut Prng, blocks: u64) -> u64 {
    (0..3).map(|_| prng.below(blocks)).min().unwrap_or(0)
}

#[test]
fn it_decides_what_it_decided_when_it_was_measured() {
    let mut cache = Cache::new(300);
    assert_eq!(cache.shape.blocks(), 4410);
    let mut prng = Prng::new(5);
    let mut found = Vec::new();
    found.push(cache.phase(60_000, |_| skewed(&mut prng, 12_000)));
    // Twice the cache, round and round.
    found.push(cache.phase(60_000, |n| 20_000 + n % 8_820));
    // A tenth of it, with a scan of what never comes again.
    found.push(cache.phase(60_000, |n| if n % 3 == 0 { prng.below(1_500) } else { 1_000_000 + n }));
    // Its place moves on.
    found.push(cache.phase(60_000, |n| 40_000 + n / 8 + skewed(&mut prng, 6_000)));
    let counted = |hits, main, refused, moves, keeps| Counted { hits, main, refused, moves, keeps };
    let expected = [
        (counted(35_283, 4_516, 92, 1_316, 841), 5),
        (counted(12_211, 5_135, 15_386, 3_925, 1_202), 4),
        (counted(14_527, 6_841, 0, 1_633, 25), 4),
        (counted(34_813, 9_145, 0, 3_527, 1_959), 6),
    ];
    assert_eq!(found, expected);
    // Those that are not followed as well.
    let scores = [
        2_121_927_014,
        2_266_360_498,
        2_164_239_198,
        2_557_481_745,
        2_608_360_016,
        2_654_273_523,
        2_081_474_266,
        2_078_462_548,
        2_594_792_807,
    ];
    assert_eq!(cache.policy.scores(), scores);
}

#[test]
fn a_strategy_that_misses_less_takes_over_and_is_remembered() {
    let shape = |segments| CacheShape::of(segments * u64::from(SEGMENT_BYTES), SEGMENT_BYTES, 16 << 10, 4096);
    let small = AdaptiveLog::new(shape(255).expect("large enough"));
    for (note, strategy) in [(8, 7), (9, 7), (5, 7), (4, 3)] {
        small.remind(note);
        assert_eq!(small.strategy_in_force(), strategy, "of few segments none that goes by frequency: {note}");
    }
    let policy = AdaptiveLog::new(shape(256).expect("large enough"));
    assert_eq!((policy.note(), policy.strategy_in_force()), (1, 0));
    for (note, strategy) in [(0, 0), (9, 8), (8, 7), (10, 7), (255, 7), (0, 7), (1, 0)] {
        policy.remind(note);
        assert_eq!((policy.strategy_in_force(), policy.note()), (strategy, strategy as u8 + 1), "after {note}");
    }
}

/// Goal: an ablation takes away what it names, and nothing else of the policy. Method: the same requests with and without it.
#[test]
fn a_policy_does_without_what_an_experiment_takes_away() {
    let shape = CacheShape::of(164 * u64::from(SEGMENT_BYTES), SEGMENT_BYTES, 16 << 10, 4096).expect("large enough");
    for without in [None, Some(Mechanism::Learning), Some(Mechanism::Probation)] {
        let policy = AdaptiveLog::without(shape, without);
        let unknown = if without == Some(Mechanism::Probation) { HeadKind::Main } else { HeadKind::Small };
        assert_eq!(policy.admit(key(1), 4, false), Admission::To(unknown), "{without:?}");
        policy.remind(8);
        let learnt = if without == Some(Mechanism::Learning) { 0 } else { 7 };
        assert_eq!(policy.strategy_in_force(), learnt, "{without:?}");
    }
}

#[test]
fn what_was_asked_for_and_overwritten_is_known_when_it_is_offered() {
    let policy = Cache::new(164).policy;
    for (frequency, head) in [(0, HeadKind::Small), (1, HeadKind::Main)] {
        let block = key(u64::from(frequency));
        policy.overwritten(block, frequency);
        assert_eq!(policy.admit(block, 4, false), Admission::To(head));
        assert_eq!(policy.admit(block, 4, false), Admission::To(HeadKind::Small), "known once");
    }
    assert_eq!(policy.name(), "flashcell");
}

/// Two references in three are to blocks that never come again, the others to three quarters of a cache. All of these read, or all written.
#[test]
fn what_is_written_again_and_again_stays_as_what_is_read_does() {
    let cache = CacheShape::of(160 * u64::from(SEGMENT_BYTES), SEGMENT_BYTES, 16 << 10, 4096).expect("large enough");
    let misses = |writes: bool| {
        let shape = crate::model::ModelShape { cache, real: Some((SEGMENT_BYTES, 4096)) };
        let policy = Arc::new(AdaptiveLog::new(cache));
        let mut model = crate::model::LogModel::new(policy, shape, 100_000);
        let mut prng = Prng::new(7);
        let mut missed = 0;
        for n in 0..150_000_u32 {
            if prng.chance(2, 3) {
                model.read(20_000 + n % 80_000);
                continue;
            }
            let block = prng.below(1_800) as u32;
            let was_there = if writes { model.write(block) } else { model.read(block) };
            missed += u64::from(n >= 50_000 && !was_there);
        }
        missed
    };
    let (written, read) = (misses(true), misses(false));
    // Some hundred of 33,000 each; five times as many where an overwrite does not count as a hit.
    assert!(written < read * 2, "{written} missed where they are written, {read} where they are read");
}

#[test]
fn what_is_overwritten_is_not_new_to_the_policy() {
    let policy = Cache::new(164).policy;
    for frequency in 0..=3 {
        policy.overwritten(key(1), frequency);
        assert_eq!(policy.admit(key(1), 4, true), Admission::To(HeadKind::Main));
        assert_eq!(policy.admit(key(1), 4, false), Admission::To(HeadKind::Small), "no name is left of it");
    }
    assert_eq!([0, 1, 2, 3].map(carried), [1, 2, 3, 3]);
}

#[test]
fn each_bound_of_a_strategy_is_where_it_says() {
    let strategy = Strategy {
        small_share: 512,
        entry: Entry::ComesBack,
        promote_hits: 2,
        ghost_epochs: 1,
        keep_small: 256,
        keep_main: 1024,
        admitted: 100,
    };
    // The small head is over its share, exactly at it, below; nothing in the main head.
    use strategy::Side::{Main, Small};
    assert_eq!(
        [(6, 5), (5, 5), (4, 5), (0, 0)].map(|(small, main)| strategy.victim(small, main, 100, false)),
        [Small, Main, Main, Small]
    );
    let by_frequency = Strategy { entry: Entry::AskedForMore, ..strategy };
    assert_eq!(
        [7, 8].map(|in_a_row| by_frequency.victim(6, 5, in_a_row, false)),
        [Small, Main],
        "the main head is looked at"
    );
    assert_eq!(by_frequency.victim(6, 0, 100, false), Small);
    assert_eq!(by_frequency.victim(6, 5, 100, true), Small, "where it could not stay it is not looked at");
    // Three segments of two above half of all.
    assert_eq!([(11, 5), (12, 5)].map(|(small, main)| by_frequency.adopts(small, main, 2, 2)), [false, true]);
    assert!(!by_frequency.adopts(12, 5, 1, 2), "half of it is gone");
    assert!(!strategy.adopts(12, 5, 2, 2));
    assert!(strategy.keeps(Small, 1, 4) && !strategy.keeps(Small, 1, 5) && !strategy.keeps(Small, 0, 0));
    assert!(strategy.keeps(Main, 4, 4) && !strategy.keeps(Main, 3, 4));
    let moves = |entry, side, hits, more| Strategy { entry, ..strategy }.moves(side, hits, || more);
    for more in [false, true] {
        assert_eq!([1, 2].map(|hits| moves(Entry::ComesBack, Small, hits, more)), [false, true]);
        for entry in [Entry::AskedForMore, Entry::ComesBackAskedForMore] {
            assert_eq!([1, 2].map(|hits| moves(entry, Small, hits, more)), [false, more]);
            assert_eq!([0, 1].map(|hits| moves(entry, Main, hits, more)), [false, true]);
        }
    }
    let enters = |entry, back, more| Strategy { entry, ..strategy }.enters(back, || more) == Main;
    let cases = [(false, false), (true, false), (false, true), (true, true)];
    for (entry, expected) in [
        (Entry::ComesBack, [false, true, false, true]),
        (Entry::AskedForMore, [false, false, true, true]),
        (Entry::ComesBackAskedForMore, [false, false, false, true]),
    ] {
        assert_eq!(cases.map(|(back, more)| enters(entry, back, more)), expected, "{entry:?}");
    }
    assert_eq!([(Small, 3), (Main, 3), (Main, 0)].map(|(side, hits)| Strategy::frequency_moved(side, hits)), [0, 2, 0]);
    assert!(strategy.admits(99) && !strategy.admits(100));
}

#[test]
fn shapes_of_caches_are_what_the_log_makes_of_them() {
    let shape = CacheShape::of(1 << 30, 2 << 20, 16 << 10, 4096);
    let expected =
        CacheShape { segments: 512, reserve: 10, segment_data_pages: 500, segment_written_pages: 510, block_pages: 4 };
    assert_eq!(shape, Some(expected));
    assert_eq!((expected.data_pages(), expected.blocks()), (251_000, 62_750));
    let of = |segments: u64, block_bytes| {
        CacheShape::of(segments * u64::from(SEGMENT_BYTES), SEGMENT_BYTES, block_bytes, 4096)
    };
    assert_eq!(of(4, 16 << 10), None, "the reserve alone");
    assert_eq!(of(5, 16 << 10).map(|shape| (shape.data_pages(), shape.blocks())), Some((60, 15)));
    assert_eq!((of(8, 2048), of(8, 1 << 20)), (None, None), "no block");
}

/// A cache that follows one strategy and has served a workload whose blocks have numbers below 12,000.
fn used_by(strategy: usize) -> Cache {
    let mut cache = Cache::new(166);
    cache.policy = AdaptiveLog::without(cache.shape, Some(Mechanism::Learning));
    cache.policy.strategy.store(strategy, std::sync::atomic::Ordering::Relaxed);
    let mut prng = Prng::new(5);
    cache.phase(60_000, |_| skewed(&mut prng, 12_000));
    cache
}

/// Goal: a loop of twice the cache keeps a part of itself in whatever was cached before. Method: each strategy that goes by frequency and lets in all
/// blocks, after a workload of another kind.
#[test]
fn a_loop_larger_than_the_cache_settles() {
    for note in [5, 9] {
        let mut cache = used_by(note - 1);
        cache.phase(60_000, |n| 20_000 + n % 4_800);
        let (counted, _) = cache.phase(48_000, |n| 20_000 + n % 4_800);
        // Half of it is what anything could hit.
        assert!(counted.hits > 18_000, "strategy {note}: {counted:?}");
        assert!(counted.main < 2_400, "and what is cached stays: {counted:?}");
    }
}

/// Goal: where nothing is asked for more often than what the main head gave up, what nobody asks for any more leaves it all the same, and what comes
/// now takes its place. Method: one workload fills the cache; a loop of twice the cache follows.
#[test]
fn what_nobody_asks_for_any_more_leaves_the_main_head() {
    for note in [5, 9] {
        let mut cache = used_by(note - 1);
        let left = |cache: &Cache| cache.there.keys().filter(|block| **block < 12_000).count();
        let before = left(&cache);
        assert!(before > 2_000, "strategy {note}: {before}");
        cache.phase(60_000, |n| 20_000 + n % 4_800);
        let after = left(&cache);
        assert!(after * 10 < before, "strategy {note}: {after} of {before}");
    }
}
