//! What records of a segment that is given up must be said again: each thing once, whoever has said it how often.
//!
//! Copies of one record would otherwise beget copies with each segment that is given up, until the log holds nothing else.
//! Never looks at flash or memory of the cache: the caller decides what is still needed.

use crate::base::units::{Opening, Position, SegmentId};
use crate::format::{HeadKind, Record};
use std::collections::{BTreeMap, BTreeSet};

/// Records to be said again.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// Which parts of the entry there are dead, or clean.
    invalidations: BTreeMap<(SegmentId, Opening, u32, bool), u16>,
    /// The last opening of a segment that is free.
    frees: BTreeMap<SegmentId, Opening>,
    /// Marked regions, by grid disk and generation.
    marks: BTreeSet<(u64, u32, u64)>,
    /// Where a segment of this opening has its place among the others, and since when: the last word.
    kept: BTreeMap<SegmentId, (u64, Opening, HeadKind)>,
    /// What the policy asked to be told.
    policy_note: Option<u8>,
    /// The last chunk of a segment in use: its opening, its sequence, and whether it was durable for certain.
    links: BTreeMap<SegmentId, (Opening, u64, bool)>,
}

impl Carried {
    /// Say it again. Entries and chunks are not for carrying.
    pub(crate) fn add(&mut self, record: &Record) {
        match *record {
            Record::Invalidation { segment, opening, position, mask, cleaned } => {
                *self.invalidations.entry((segment, opening, position.0, cleaned)).or_insert(0) |= mask;
            }
            Record::Free { segment, opening } => {
                let last = self.frees.entry(segment).or_insert(opening);
                *last = (*last).max(opening);
            }
            Record::Mark { disk, generation, region, set: true } => {
                self.marks.insert((disk, generation, region));
            }
            Record::Kept { segment, opening, head, sequence } => {
                let last = self.kept.entry(segment).or_insert((sequence, opening, head));
                *last = (*last).max((sequence, opening, head));
            }
            Record::PolicyNote { note } => self.policy_note = Some(note),
            Record::Link { segment, opening, sequence, certain } => {
                let last = self.links.entry(segment).or_insert((opening, sequence, certain));
                *last = (*last).max((opening, sequence, certain));
            }
            Record::Mark { set: false, .. } | Record::Entry { .. } | Record::Chunk { .. } => {}
        }
    }

    /// A segment that stays says this durably: what it covers need not be said again. Marks are: which word on a region is the last
    /// one goes by the order of the log.
    pub(crate) fn is_said(&mut self, record: &Record) {
        match *record {
            Record::Invalidation { segment, opening, position, mask, cleaned } => {
                let key = (segment, opening, position.0, cleaned);
                if let Some(left) = self.invalidations.get_mut(&key) {
                    *left &= !mask;
                    if *left == 0 {
                        self.invalidations.remove(&key);
                    }
                }
            }
            Record::Free { segment, opening } if self.frees.get(&segment).is_some_and(|&last| last <= opening) => {
                self.frees.remove(&segment);
            }
            _ => {}
        }
    }

    /// Nothing to say.
    pub(crate) fn is_empty(&self) -> bool {
        let needed = self.invalidations.is_empty() && self.frees.is_empty() && self.marks.is_empty();
        needed && self.kept.is_empty() && self.policy_note.is_none() && self.links.is_empty()
    }

    /// The records.
    pub(crate) fn into_records(self) -> impl Iterator<Item = Record> {
        let invalidation = |((segment, opening, position, cleaned), mask): ((SegmentId, Opening, u32, bool), u16)| {
            Record::Invalidation { segment, opening, position: Position(position), mask, cleaned }
        };
        let free = |(segment, opening): (SegmentId, Opening)| Record::Free { segment, opening };
        let mark = |(disk, generation, region): (u64, u32, u64)| Record::Mark { disk, generation, region, set: true };
        let kept = |(segment, (sequence, opening, head))| Record::Kept { segment, opening, head, sequence };
        let invalidations = self.invalidations.into_iter().map(invalidation);
        let warmth = self.kept.into_iter().map(kept).chain(self.policy_note.map(|note| Record::PolicyNote { note }));
        let marks = self.marks.into_iter().map(mark);
        let link = |(segment, (opening, sequence, certain))| Record::Link { segment, opening, sequence, certain };
        let marks = marks.chain(self.links.into_iter().map(link));
        invalidations.chain(self.frees.into_iter().map(free)).chain(marks).chain(warmth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(segment: u32, position: u32, mask: u16, cleaned: bool) -> Record {
        Record::Invalidation {
            segment: SegmentId(segment),
            opening: Opening(1),
            position: Position(position),
            mask,
            cleaned,
        }
    }

    #[test]
    fn what_was_said_twice_is_said_once_and_parts_are_put_together() {
        let mut carried = Carried::default();
        let free = |opening| Record::Free { segment: SegmentId(4), opening: Opening(opening) };
        let mark = Record::Mark { disk: 1, generation: 2, region: 3, set: true };
        for record in [dead(1, 2, 1, false), dead(1, 2, 1, false), dead(1, 2, 6, false), dead(1, 2, 1, true), free(3)] {
            carried.add(&record);
        }
        for record in [free(2), mark.clone(), mark.clone()] {
            carried.add(&record);
        }
        let all: Vec<Record> = carried.into_records().collect();
        assert_eq!(all, [dead(1, 2, 7, false), dead(1, 2, 1, true), free(3), mark]);
    }

    #[test]
    fn what_a_segment_that_stays_says_is_left_out() {
        let mut carried = Carried::default();
        let free = |opening| Record::Free { segment: SegmentId(4), opening: Opening(opening) };
        let mark = Record::Mark { disk: 1, generation: 2, region: 3, set: true };
        for record in [dead(1, 2, 7, false), dead(1, 3, 1, false), free(3), mark.clone()] {
            carried.add(&record);
        }
        // Others, or less, or older: still to be said.
        for record in [dead(1, 2, 3, false), dead(1, 2, 4, true), free(2), mark.clone()] {
            carried.is_said(&record);
        }
        carried.is_said(&dead(1, 3, 9, false));
        let all: Vec<Record> = std::mem::take(&mut carried).into_records().collect();
        assert_eq!(all, [dead(1, 2, 4, false), free(3), mark]);
        carried.add(&free(3));
        carried.is_said(&free(3));
        assert!(carried.is_empty());
    }
}
