//! Reads and hits of a grid disk by place, since the cell was started: which table the flash cache serves is told by where its reads were.
//!
//! A place is 64 KiB, or as much more as keeps the counts of a grid disk at 512 KiB. A read counts where it begins. Two reads of one place
//! at one moment may count as one: that costs a count, and no locked instruction on the way of a hit. Nothing is kept for a grid disk that
//! nobody reads through a cache.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The smallest place is 2^16 bytes.
const PLACE_BITS_MIN: u32 = 16;
/// A grid disk has at most 2^16 places.
const PLACES_BITS: u32 = 16;
/// Grid disks of less than 2^26 bytes have the places of one of so many.
const SIZE_BITS_MIN: u32 = 26;
/// Sizes of grid disks by their bits: the largest that is cached has less than 2^52 bytes.
const LEVELS: usize = (52 - SIZE_BITS_MIN + 1) as usize;

#[derive(Debug, Default)]
struct Place {
    reads: AtomicU32,
    hits: AtomicU32,
}

/// Reads and hits by place.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By the bits of the size. A grid disk that has grown to more counts in others, and what was counted before stays counted.
    levels: [OnceLock<Box<[Place]>>; LEVELS],
}

/// Reads of a range. Fractions where a place is in the range in part: its reads are shared out by length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tallied {
    /// All.
    pub reads: f64,
    /// Those that flash served whole.
    pub hits: f64,
}

/// The level that a grid disk of so many bytes counts in.
fn level_of(size_bytes: u64) -> usize {
    let bits = u64::BITS - size_bytes.leading_zeros();
    (bits.saturating_sub(SIZE_BITS_MIN) as usize).min(LEVELS - 1)
}

fn size_bits(level: usize) -> u32 {
    SIZE_BITS_MIN + level as u32
}

fn place_bits(level: usize) -> u32 {
    size_bits(level).saturating_sub(PLACES_BITS).max(PLACE_BITS_MIN)
}

/// Places of a level.
fn places_of(level: usize) -> u64 {
    1 << (size_bits(level) - place_bits(level))
}

/// Memory for the counts of a grid disk of so many bytes, once it is read; twice as much if it has grown from less since the start.
pub(crate) fn memory_bytes(size_bytes: u64) -> u64 {
    places_of(level_of(size_bytes)) * size_of::<Place>() as u64
}

/// One more, as long as it can be told.
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
}

impl Tally {
    /// A read at `offset` of a grid disk of `size_bytes` has ended; `is_hit`: flash has served all of it.
    pub(crate) fn count(&self, size_bytes: u64, offset: u64, is_hit: bool) {
        let level = level_of(size_bytes);
        let places = self.levels[level].get_or_init(|| (0..places_of(level)).map(|_| Place::default()).collect());
        // One beyond was read while the grid disk shrank or grew.
        if let Some(place) = places.get((offset >> place_bits(level)) as usize) {
            count(&place.reads);
            if is_hit {
                count(&place.hits);
            }
        }
    }

    /// What was read of a range, in bytes.
    pub(crate) fn of(&self, range: &Range<u64>) -> Tallied {
        let mut sum = Tallied::default();
        let levels = self.levels.iter().enumerate().filter_map(|(level, places)| Some((level, places.get()?)));
        for (level, places) in levels {
            let bits = place_bits(level);
            let first = (range.start >> bits) as usize;
            let end = (range.end.div_ceil(1 << bits) as usize).min(places.len());
            for (n, place) in places.iter().enumerate().take(end).skip(first) {
                let (start, stop) = ((n as u64) << bits, (n as u64 + 1) << bits);
                let shared = stop.min(range.end).saturating_sub(start.max(range.start));
                let share = shared as f64 / (1_u64 << bits) as f64;
                sum.reads += share * f64::from(place.reads.load(Ordering::Relaxed));
                sum.hits += share * f64::from(place.hits.load(Ordering::Relaxed));
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every read is told of where it was, whatever the size and however it grows. Method: counted by hand.
    use super::*;

    const KIB: u64 = 1 << 10;
    const GIB: u64 = 1 << 30;

    fn of(reads: f64, hits: f64) -> Tallied {
        Tallied { reads, hits }
    }

    #[test]
    fn reads_are_told_by_place_and_shared_out_by_length() {
        let tally = Tally::default();
        for (offset, is_hit) in [(0, true), (60 * KIB, false), (64 * KIB, true), (GIB - 1, true)] {
            tally.count(GIB, offset, is_hit);
        }
        assert_eq!(tally.of(&(0..GIB)), of(4.0, 3.0));
        assert_eq!(tally.of(&(0..64 * KIB)), of(2.0, 1.0));
        assert_eq!(tally.of(&(32 * KIB..64 * KIB)), of(1.0, 0.5), "half of a place");
        assert_eq!(tally.of(&(16 * KIB..80 * KIB)), of(1.75, 1.0));
        assert_eq!(tally.of(&(128 * KIB..GIB - 64 * KIB)), of(0.0, 0.0));
        assert_eq!(tally.of(&(5..5)), of(0.0, 0.0));
    }

    #[test]
    fn what_was_counted_before_a_grid_disk_grew_stays_counted() {
        let tally = Tally::default();
        for size_bytes in [2 * GIB, 3 * GIB, 64 * GIB, 16 << 40] {
            tally.count(size_bytes, size_bytes - 1, true);
            tally.count(size_bytes, GIB, false);
        }
        assert_eq!(tally.of(&(0..16 << 40)), of(8.0, 4.0));
        assert_eq!(tally.of(&(2 * GIB - 64 * KIB..2 * GIB)).hits, 1.0);
    }

    #[test]
    fn a_small_grid_disk_that_grows_is_counted_whole() {
        let tally = Tally::default();
        tally.count(16 << 20, 0, true);
        tally.count(3 * GIB, 3 * GIB - 1, true);
        assert_eq!(tally.of(&(3 * GIB - 64 * KIB..3 * GIB)), of(1.0, 1.0));
        assert_eq!(tally.of(&(0..3 * GIB)), of(2.0, 2.0));
    }

    #[test]
    fn the_counts_of_a_grid_disk_are_bounded() {
        for size_bytes in [0, 1, GIB, 4 * GIB - 1, 4 * GIB, 1 << 40, (1 << 40) + 1, 1 << 50] {
            let tally = Tally::default();
            tally.count(size_bytes, 0, false);
            let bytes: usize =
                tally.levels.iter().filter_map(|level| level.get()).map(|places| size_of_val(&**places)).sum();
            assert_eq!(bytes as u64, memory_bytes(size_bytes));
            assert!(bytes <= 1 << 19, "{bytes} bytes for {size_bytes}");
            assert_eq!(tally.of(&(0..u64::MAX)).reads, 1.0);
        }
    }

    #[test]
    fn a_full_count_stays_full() {
        let full = AtomicU32::new(u32::MAX);
        count(&full);
        assert_eq!(full.load(Ordering::Relaxed), u32::MAX);
    }
}
