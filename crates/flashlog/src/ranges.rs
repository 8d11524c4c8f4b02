//! Which change owns which bytes: disjoint ranges of a device, each with a value.
//!
//! Never merges neighbours: a range is as long as it was put in, or what others have left of it.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint half-open ranges of bytes with a value each.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap<V>(BTreeMap<u64, (u64, V)>);

impl<V> Default for RangeMap<V> {
    fn default() -> RangeMap<V> {
        RangeMap(BTreeMap::new())
    }
}

impl<V: Copy> RangeMap<V> {
    pub(crate) fn new() -> RangeMap<V> {
        RangeMap(BTreeMap::new())
    }

    /// The pieces that overlap `range`, whole, ascending.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, V)> + '_ {
        let first = self.0.range(..=range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let from = first.map_or(range.start, |(start, _)| *start);
        let until = range.end.max(from);
        self.0.range(from..until).map(|(start, (end, value))| (*start..*end, *value))
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// The pieces of `range` with what owns them, ascending; `None` where nobody does.
    pub(crate) fn cut(&self, range: &Range<u64>) -> SmallVec<[(Range<u64>, Option<V>); 2]> {
        let mut out = SmallVec::new();
        let mut at = range.start;
        for (piece, value) in self.overlapping(range) {
            let (start, end) = (piece.start.max(range.start), piece.end.min(range.end));
            if at < start {
                out.push((at..start, None));
            }
            out.push((start..end, Some(value)));
            at = end;
        }
        if at < range.end {
            out.push((at..range.end, None));
        }
        out
    }

    /// Take `range` out; what was taken, ascending.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> SmallVec<[(Range<u64>, V); 2]> {
        let hit: SmallVec<[(Range<u64>, V); 2]> = self.overlapping(range).collect();
        let mut taken = SmallVec::new();
        for (piece, value) in hit {
            self.0.remove(&piece.start);
            if piece.start < range.start {
                self.0.insert(piece.start, (range.start, value));
            }
            if piece.end > range.end {
                self.0.insert(range.end, (piece.end, value));
            }
            taken.push((piece.start.max(range.start)..piece.end.min(range.end), value));
        }
        taken
    }

    /// Give `range` to `value`; what others lose by it, ascending.
    pub(crate) fn insert(&mut self, range: Range<u64>, value: V) -> SmallVec<[(Range<u64>, V); 2]> {
        let lost = self.remove(&range);
        if range.start < range.end {
            self.0.insert(range.start, (range.end, value));
        }
        lost
    }

    /// Change the values of the pieces that overlap `range`.
    pub(crate) fn update(&mut self, range: &Range<u64>, mut change: impl FnMut(V) -> V) {
        let hit: SmallVec<[u64; 4]> = self.overlapping(range).map(|(piece, _)| piece.start).collect();
        for start in hit {
            if let Some((_, value)) = self.0.get_mut(&start) {
                *value = change(*value);
            }
        }
    }

    /// Take out the pieces whose value `goes`.
    pub(crate) fn drop_where(&mut self, mut goes: impl FnMut(V) -> bool) {
        self.0.retain(|_, (_, value)| !goes(*value));
    }

    /// How many pieces there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All pieces from `from` on, ascending.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = (Range<u64>, V)> + '_ {
        self.0.range(from..).map(|(start, (end, value))| (*start..*end, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn like_an_array_of_owners(ops in prop::collection::vec((0u64..40, 1u64..12, 0u8..3), 1..60)) {
            let mut map = RangeMap::new();
            let mut naive = [None; 64];
            for (n, (start, len, what)) in ops.into_iter().enumerate() {
                let range = start..start + len;
                let cells = start as usize..(start + len) as usize;
                let got: Vec<(Range<u64>, usize)> = match what {
                    0 => map.remove(&range).into_vec(),
                    _ => map.insert(range.clone(), n).into_vec(),
                };
                let mut lost = [None; 64];
                for (piece, value) in got {
                    for at in piece {
                        lost[at as usize] = Some(value);
                    }
                }
                prop_assert_eq!(&lost[cells.clone()], &naive[cells.clone()]);
                naive[cells].fill((what != 0).then_some(n));
                for at in 0..64u64 {
                    let owner = map.cut(&(at..at + 1))[0].1;
                    prop_assert_eq!(owner, naive[at as usize]);
                    prop_assert_eq!(map.overlaps(&(at..at + 1)), naive[at as usize].is_some());
                }
                let all = map.cut(&(0..64));
                prop_assert_eq!(all.iter().map(|(r, _)| r.end - r.start).sum::<u64>(), 64);
            }
        }
    }
}
