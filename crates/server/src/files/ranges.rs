//! Sets of byte ranges: sorted, apart from each other, in whole pages of the cache.

/// The cache counts in these.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Start and end of each, bytes; sorted, no two touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Of any: the whole pages in each that is `(start, end)`.
    pub(super) fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Ranges {
        let whole = |(start, end): (u64, u64)| {
            let start = start.checked_next_multiple_of(PAGE_BYTES)?;
            let end = end / PAGE_BYTES * PAGE_BYTES;
            (start < end).then_some((start, end))
        };
        let mut all: Vec<(u64, u64)> = ranges.into_iter().filter_map(whole).collect();
        all.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (start, end) in all {
            match merged.last_mut() {
                Some((_, last)) if start <= *last => *last = end.max(*last),
                _ => merged.push((start, end)),
            }
        }
        Ranges(merged)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// What is in either.
    pub(super) fn union(&self, other: &Ranges) -> Ranges {
        Ranges::new(self.iter().chain(other.iter()))
    }

    /// What is here and not in the other.
    pub(super) fn minus(&self, other: &Ranges) -> Ranges {
        let mut left = Vec::new();
        let mut cuts = other.iter().peekable();
        for (start, end) in self.iter() {
            let mut at = start;
            while let Some(&(from, to)) = cuts.peek() {
                if from >= end {
                    break;
                }
                if from > at {
                    left.push((at, from));
                }
                at = at.max(to.min(end));
                // One that goes on past the end cuts the next as well.
                if to > end {
                    break;
                }
                cuts.next();
            }
            if at < end {
                left.push((at, end));
            }
        }
        Ranges(left)
    }

    /// As few as `most`, with the smallest gaps filled.
    pub(super) fn at_most(&self, most: usize) -> Ranges {
        let most = most.max(1);
        if self.len() <= most {
            return self.clone();
        }
        let mut gaps: Vec<(u64, usize)> =
            self.0.windows(2).enumerate().map(|(at, pair)| (pair[1].0 - pair[0].1, at + 1)).collect();
        gaps.sort_unstable();
        let mut filled = vec![false; self.len()];
        gaps[..self.len() - most].iter().for_each(|&(_, at)| filled[at] = true);
        let mut few: Vec<(u64, u64)> = Vec::with_capacity(most);
        for (&(start, end), filled) in self.0.iter().zip(filled) {
            match few.last_mut() {
                Some((_, last)) if filled => *last = end,
                _ => few.push((start, end)),
            }
        }
        Ranges(few)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PAGE_BYTES;

    fn of(pages: &[(u64, u64)]) -> Ranges {
        Ranges::new(pages.iter().map(|(start, end)| (start * P, end * P)))
    }

    #[test]
    fn ranges_are_merged_and_whole() {
        assert_eq!(of(&[(4, 6), (0, 2), (1, 4)]), of(&[(0, 6)]));
        assert_eq!(Ranges::new([(1, P), (1, 2 * P - 1), (5, 3 * P + 1)]), of(&[(1, 3)]));
        assert!(Ranges::new([(u64::MAX - 1, u64::MAX)]).is_empty());
        assert_eq!((of(&[(0, 2), (4, 5)]).bytes(), of(&[(0, 2), (4, 5)]).len()), (3 * P, 2));
    }

    /// Against a set of pages, for every pair of sets of six pages.
    #[test]
    fn union_and_difference_are_those_of_sets() {
        let pages = |bits: u32| Ranges::new((0..6).filter(|n| bits >> n & 1 == 1).map(|n| (n * P, (n + 1) * P)));
        for a in 0..64 {
            for b in 0..64 {
                assert_eq!(pages(a).minus(&pages(b)), pages(a & !b), "{a:b} without {b:b}");
                assert_eq!(pages(a).union(&pages(b)), pages(a | b), "{a:b} and {b:b}");
            }
        }
    }

    #[test]
    fn the_smallest_gaps_are_filled() {
        let many = of(&[(0, 1), (2, 3), (9, 10), (11, 12)]);
        assert_eq!(many.at_most(2), of(&[(0, 3), (9, 12)]));
        assert_eq!(many.at_most(1), of(&[(0, 12)]));
        assert_eq!(many.at_most(4), many);
        assert_eq!(many.at_most(0), many.at_most(1));
    }
}
