//! How often a block was asked for lately, kept or not: a count-min sketch whose counters age.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of 4 bits, 15 of them in a word beside the word's age.
///
/// A block counts in three counters of one word, the lowest of them first (Estan and Varghese, TOCS 2003: conservative update), so that a
/// count costs one access to memory. Every [`PERIOD_CACHES`] cache sizes of counts all are halved (Einziger et al., TOS 2017: the reset of
/// TinyLFU): a word when it is next looked at, and a further one with every eighth count, so that nobody waits for all of them. Two threads
/// that count in one word at a time may lose a count, and at a halving halve it twice.
pub(crate) struct Sketch {
    words: Vec<AtomicU64>,
    period: u64,
    /// Counts since the last halving.
    counts: AtomicU64,
    /// How often all counters were halved.
    halvings: AtomicU64,
}

/// Counts between two halvings, in blocks of the cache.
const PERIOD_CACHES: u64 = 10;
/// Bytes a cached block.
const BYTES_PER_BLOCK: u64 = 2;
/// Counts between two words that are brought up to date: each is five times in a period.
const SWEPT_EVERY: u64 = 8;
const COUNTER_BITS: u32 = 4;
const COUNTERS: u64 = 15;
const COUNTER_MAX: u64 = 15;
/// Of a block in its word.
const PLACES: usize = 3;
/// Strides that never meet a counter twice: none has a divisor in common with [`COUNTERS`].
const STRIDES: [u64; 4] = [1, 2, 4, 7];
/// The age of a word lies above its counters, modulo 16.
const AGE_SHIFT: u32 = 60;
/// Each counter without its lowest bit, one place down.
const HALVED: u64 = 0x0777_7777_7777_7777;

impl Sketch {
    /// For a cache of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Sketch {
        let words = Sketch::memory_bytes(blocks) / 8;
        Sketch {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            period: (blocks * PERIOD_CACHES).max(1),
            counts: AtomicU64::new(0),
            halvings: AtomicU64::new(0),
        }
    }

    /// Bytes of the sketch of a cache of `blocks` blocks.
    pub(crate) fn memory_bytes(blocks: u64) -> u64 {
        (blocks * BYTES_PER_BLOCK / 8).max(16) * 8
    }

    fn word(&self, hash: u64) -> &AtomicU64 {
        &self.words[((u128::from(hash) * self.words.len() as u128) >> 64) as usize]
    }

    /// Bring a word up to date, so that none falls behind by as many halvings as its age can tell.
    fn sweep(&self, at: usize) {
        let halvings = self.halvings.load(Ordering::Relaxed);
        let before = self.words[at].load(Ordering::Relaxed);
        let after = aged(before, halvings) | halvings << AGE_SHIFT;
        if after != before {
            self.words[at].store(after, Ordering::Relaxed);
        }
    }

    /// A block may be counted soon: its word comes into the processor's cache beside the index's.
    pub(crate) fn expect(&self, hash: u64) {
        std::hint::black_box(self.word(hash).load(Ordering::Relaxed));
    }

    /// Counters as they are after all halvings, and where in a word this block's are.
    fn read(word: u64, hash: u64, halvings: u64) -> (u64, [u32; PLACES]) {
        let counters = aged(word, halvings);
        let (first, stride) = ((hash >> 8) % COUNTERS, STRIDES[(hash & 3) as usize]);
        (counters, std::array::from_fn(|i| ((first + i as u64 * stride) % COUNTERS) as u32 * COUNTER_BITS))
    }

    /// A block was asked for; `hash` is even in all its bits.
    pub(crate) fn count(&self, hash: u64) {
        let n = self.counts.fetch_add(1, Ordering::Relaxed);
        if n >= self.period {
            // A count of another thread in between makes the exchange fail; the next count tries again.
            let left = (n + 1).saturating_sub(self.period);
            if self.counts.compare_exchange(n + 1, left, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.halvings.fetch_add(1, Ordering::Relaxed);
            }
        }
        if n.is_multiple_of(SWEPT_EVERY) {
            self.sweep((n / SWEPT_EVERY) as usize % self.words.len());
        }
        let halvings = self.halvings.load(Ordering::Relaxed);
        let before = self.word(hash).load(Ordering::Relaxed);
        let (mut counters, places) = Sketch::read(before, hash, halvings);
        let least = lowest(counters, places);
        if least < COUNTER_MAX {
            for place in places {
                if counters >> place & COUNTER_MAX == least {
                    counters += 1 << place;
                }
            }
        }
        let after = counters | halvings << AGE_SHIFT;
        if after != before {
            self.word(hash).store(after, Ordering::Relaxed);
        }
    }

    /// How often it was, 0 to 15: as often or less.
    pub(crate) fn estimate(&self, hash: u64) -> u32 {
        let word = self.word(hash).load(Ordering::Relaxed);
        let (counters, places) = Sketch::read(word, hash, self.halvings.load(Ordering::Relaxed));
        lowest(counters, places) as u32
    }
}

/// The counters of a word as they are after all halvings.
fn aged(word: u64, halvings: u64) -> u64 {
    let behind = match halvings.wrapping_sub(word >> AGE_SHIFT) % 16 {
        // Another thread has brought it further meanwhile.
        15 => 0,
        behind => behind,
    };
    let counters = word & (u64::MAX >> COUNTER_BITS);
    (0..behind.min(u64::from(COUNTER_BITS))).fold(counters, |counters, _| counters >> 1 & HALVED)
}

fn lowest(counters: u64, places: [u32; PLACES]) -> u64 {
    places.into_iter().map(|place| counters >> place & COUNTER_MAX).min().unwrap_or(0)
}

/// Blocks that the main head gave up last: what is to take their place has to be asked for more often than they are now, kept or not.
pub(crate) struct Bar {
    gave_up: [AtomicU64; Bar::BLOCKS],
    next: AtomicUsize,
}

impl Bar {
    const BLOCKS: usize = 8;
    /// No hash that a block is likely to have: nothing was given up here.
    const NONE: u64 = u64::MAX;

    pub(crate) fn new() -> Bar {
        Bar { gave_up: [const { AtomicU64::new(Bar::NONE) }; Bar::BLOCKS], next: AtomicUsize::new(0) }
    }

    /// The main head gives up a block.
    pub(crate) fn gave_up(&self, hash: u64) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % Bar::BLOCKS;
        self.gave_up[at].store(hash, Ordering::Relaxed);
    }

    /// Whether a block is asked for more often than those, by a quarter of a count at least: what is asked for as often has been there longer
    /// and stays. Where nothing was given up, as if it had been asked for once.
    pub(crate) fn is_passed(&self, hash: u64, sketch: &Sketch) -> bool {
        let others = self.gave_up.iter().map(|gave_up| match gave_up.load(Ordering::Relaxed) {
            Bar::NONE => 1,
            other => sketch.estimate(other),
        });
        (sketch.estimate(hash) * 4).saturating_sub(1) * Bar::BLOCKS as u32 >= others.sum::<u32>() * 4
    }
}

#[cfg(test)]
mod tests {
    //! Goal: counts are those of the block asked for, age, and say who is asked for more often. Method: blocks counted so often as their number
    //! says; more counts than a period; a bar fed with a mix.

    use super::*;
    use crate::base::units::{BlockKey, DiskSlot};

    fn hash(block: u64) -> u64 {
        BlockKey::new(DiskSlot(0), block).hash()
    }

    #[test]
    fn a_block_counts_for_itself_up_to_fifteen() {
        let sketch = Sketch::new(10_000);
        (0..2_000_u64).for_each(|block| (0..block % 20).for_each(|_| sketch.count(hash(block))));
        let right = (0..2_000).filter(|block| u64::from(sketch.estimate(hash(*block))) == (block % 20).min(15)).count();
        assert!(right > 1_700, "{right} of 2,000 are told exactly");
        let less = (0..2_000).filter(|block| u64::from(sketch.estimate(hash(*block))) < (block % 20).min(15)).count();
        assert_eq!(less, 0, "an estimate is never too low within a period");
        let unknown = (10_000..12_000).filter(|block| sketch.estimate(hash(*block)) == 0).count();
        assert!(unknown > 1_000, "{unknown} of 2,000 that nobody asked for");
    }

    #[test]
    fn counts_are_halved_each_period_and_forgotten_after_four() {
        let sketch = Sketch::new(100);
        let ours = hash(7);
        (0..12).for_each(|_| sketch.count(ours));
        let mut seen = vec![sketch.estimate(ours)];
        // Others of other words, so that only age changes ours.
        let others: Vec<u64> = (100..10_000)
            .map(hash)
            .filter(|other| !std::ptr::eq(sketch.word(*other), sketch.word(ours)))
            .take(1_000)
            .collect();
        for _ in 0..4 {
            others.iter().for_each(|other| sketch.count(*other));
            seen.push(sketch.estimate(ours));
        }
        assert_eq!(seen, [12, 6, 3, 1, 0]);
        assert_eq!(sketch.halvings.load(Ordering::Relaxed), 4);
        // Nor does it come back when its word's age begins again.
        (0..12).for_each(|_| sketch.count(ours));
        for _ in 0..20 {
            others.iter().for_each(|other| sketch.count(*other));
        }
        assert_eq!(sketch.estimate(ours), 0);
        // A count keeps its place.
        (0..3).for_each(|_| sketch.count(ours));
        assert_eq!(sketch.estimate(ours), 3);
    }

    #[test]
    fn the_bar_is_what_was_given_up_last_as_it_is_asked_for_now() {
        let sketch = Sketch::new(1_000);
        let bar = Bar::new();
        let (once, twice, often) = (hash(1), hash(2), hash(3));
        sketch.count(once);
        (0..2).for_each(|_| sketch.count(twice));
        (0..8).for_each(|_| sketch.count(often));
        let passes = || [once, twice, often].map(|block| bar.is_passed(block, &sketch));
        assert_eq!(passes(), [false, true, true], "before anything was given up: as if all were asked for once");
        (0..Bar::BLOCKS).for_each(|_| bar.gave_up(twice));
        assert_eq!(passes(), [false, false, true], "as often is not more often");
        (0..Bar::BLOCKS as u64).for_each(|other| bar.gave_up(hash(100 + other)));
        assert_eq!(passes(), [true, true, true], "what nobody asks for was given up");
        // One of eight that is asked for eight times makes a mean of one.
        bar.gave_up(often);
        assert_eq!(passes(), [false, true, true]);
        (0..Bar::BLOCKS).for_each(|_| bar.gave_up(twice));
        (0..6).for_each(|_| sketch.count(twice));
        assert_eq!(passes(), [false, false, false], "it is asked for again after it was given up");
    }
}
