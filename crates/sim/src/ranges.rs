//! Sets of sector ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of sectors as disjoint ranges that do not touch: start to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Everything that overlaps or touches becomes one.
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.0.remove(&s);
            if s < range.start {
                self.0.insert(s, range.start);
            }
            if range.end < e {
                self.0.insert(range.end, e);
            }
        }
    }

    /// The parts of `range` in the set, ascending.
    pub(crate) fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        if let Some((_, &e)) = self.0.range(..range.start).next_back()
            && e > range.start
        {
            out.push(range.start..e.min(range.end));
        }
        out.extend(self.0.range(range.start..range.end).map(|(&s, &e)| s..e.min(range.end)));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;
    use device::Prng;

    #[test]
    fn agrees_with_a_bit_for_each_sector() {
        let mut prng = Prng::new(3);
        for _ in 0..200 {
            let mut set = RangeSet::default();
            let mut bits = [false; 24];
            for _ in 0..30 {
                let (a, b) = (prng.below(25), prng.below(25));
                let range = a.min(b)..a.max(b);
                let add = prng.chance(1, 2);
                bits[range.start as usize..range.end as usize].fill(add);
                if add {
                    set.insert(range)
                } else {
                    set.remove(range)
                }
                let (a, b) = (prng.below(25), prng.below(25));
                let range = a.min(b)..a.max(b);
                let got: Vec<u64> = set.within(range.clone()).into_iter().flatten().collect();
                let expected: Vec<u64> = range.filter(|&s| bits[s as usize]).collect();
                assert_eq!(got, expected);
                assert!(set.0.iter().zip(set.0.iter().skip(1)).all(|(a, b)| a.1 < b.0), "disjoint and apart");
            }
        }
    }
}
