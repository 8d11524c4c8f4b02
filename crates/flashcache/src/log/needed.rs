//! Which records of a segment that is reclaimed must be written again, since what they say still counts.

use crate::base::units::SegmentId;
use crate::format::Record;
use crate::log::carry::Carried;
use crate::log::{LogState, SegmentState};

impl LogState {
    /// A link of a segment that is being reclaimed, as it is written again while it is the last chunk of a segment in use: otherwise nobody
    /// would notice that all of that segment had vanished.
    pub(crate) fn link_still_needed(&self, record: &Record, reclaiming: SegmentId) -> Option<Record> {
        let Record::Link { segment, opening, sequence, certain } = *record else { return None };
        let target = self.segments.get(segment.0 as usize)?;
        let is_last = target.opening == opening && target.last_sequence == sequence;
        if segment == reclaiming || !is_last || target.state == SegmentState::Free {
            return None;
        }
        // What an earlier life has left was made durable by recovery. The opening does not tell: the log goes on in openings of earlier lives.
        let is_earlier =
            if self.goes_by_openings { opening.life() < self.life } else { self.is_of_earlier_life(sequence) };
        let certain = certain || sequence <= self.durable || is_earlier;
        Some(Record::Link { segment, opening, sequence, certain })
    }

    /// Add a record found in a segment that is being reclaimed to what is written again, if it is still needed.
    pub(crate) fn carry(&self, record: &Record, reclaiming: SegmentId, carried: &mut Carried) {
        if let Some(link) = self.link_still_needed(record, reclaiming) {
            carried.add(&link);
        } else if self.still_needed(record, reclaiming) {
            carried.add(record);
        }
    }

    /// Whether a record found in a segment that is being reclaimed is still needed, so that it must be written again.
    pub(crate) fn still_needed(&self, record: &Record, reclaiming: SegmentId) -> bool {
        match record {
            Record::Invalidation { segment, opening, .. } => {
                *segment != reclaiming
                    && self
                        .segments
                        .get(segment.0 as usize)
                        .is_some_and(|target| target.opening == *opening && target.state != SegmentState::Free)
            }
            Record::Free { segment, opening } => self
                .segments
                .get(segment.0 as usize)
                .is_some_and(|target| !(target.opening > *opening && target.proven)),
            Record::Kept { segment, opening, sequence, .. } => {
                *segment != reclaiming
                    && self
                        .segments
                        .get(segment.0 as usize)
                        .is_some_and(|target| target.opening == *opening && target.kept_at <= *sequence)
            }
            Record::PolicyNote { note } => *note == self.policy_note,
            _ => false,
        }
    }
}
