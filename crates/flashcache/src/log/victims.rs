//! Which sealed segment is the next victim, and how segments change heads.

use crate::base::units::SegmentId;
use crate::format::{HeadKind, Record};
use crate::index::live::Live;
use crate::log::space::{CHUNK_DATA_PAGES_MAX, CLEANED_GAIN_MIN};
use crate::log::{LogState, Segment, SegmentState};

/// Chunks that are closed before they are full for one segment that is cleaned: of its copies, at two heads, and of records.
const CHUNKS_CLOSED: u64 = 3;

impl LogState {
    /// Take a sealed segment out of a head; false when it is not there any more.
    pub(crate) fn take_out(&mut self, id: SegmentId, head: HeadKind) -> bool {
        let queue = &mut self.sealed[head as usize];
        queue.iter().position(|&other| other == id).is_some_and(|at| queue.remove(at).is_some())
    }

    /// A sealed segment becomes the youngest of another head, as it is, unless it has left this one.
    pub(crate) fn change_head(&mut self, id: SegmentId, from: HeadKind, to: HeadKind) {
        if self.take_out(id, from) {
            self.set_state(id, SegmentState::Sealed(to));
            let segment = &mut self.segments[id.0 as usize];
            (segment.aged, segment.left_with) = (false, None);
            self.sealed[to as usize].push_back(id);
            self.say_kept(id, to);
        }
    }

    /// A segment of the keep head has aged: it becomes the oldest of the main head.
    pub(crate) fn age(&mut self, id: SegmentId) {
        if self.take_out(id, HeadKind::Keep) {
            self.set_state(id, SegmentState::Sealed(HeadKind::Main));
            self.segments[id.0 as usize].aged = true;
            self.sealed[HeadKind::Main as usize].push_front(id);
        }
    }

    /// The next segment of the keep head that is to be cleaned, taken as a victim.
    pub(crate) fn take_cleaning(&mut self) -> Option<SegmentId> {
        while let Some(id) = self.cleaning.pop_front() {
            if self.take(id, HeadKind::Keep) {
                return Some(id);
            }
        }
        None
    }

    /// Pages of sealed and open segments of the two clean heads.
    pub(crate) fn held(&self) -> crate::admission::policy::HeadPages {
        let pages = |side: HeadKind| {
            let of = |head: &HeadKind| {
                let open = u64::from(self.heads[*head as usize].is_some());
                (self.sealed[*head as usize].len() as u64 + open) * u64::from(self.shape.segment_pages)
            };
            HeadKind::ALL.iter().filter(|head| head.side() == Some(side)).map(of).sum()
        };
        crate::admission::policy::HeadPages { small: pages(HeadKind::Small), main: pages(HeadKind::Main) }
    }

    /// The oldest sealed segment of a head, or of those that are one to the policy, whose writes are all done.
    pub(crate) fn take_victim(&mut self, side: HeadKind) -> Option<SegmentId> {
        let is_one = |head: &&HeadKind| **head == side || head.side() == Some(side);
        let oldest = |head: &HeadKind| {
            let written = |id: &&SegmentId| self.may_be_freed(**id);
            let id = *self.sealed[*head as usize].iter().find(written)?;
            let Segment { last_sequence, kept_at, .. } = self.segments[id.0 as usize];
            Some((last_sequence.max(kept_at), id, *head))
        };
        let (_, id, head) = HeadKind::ALL.iter().filter(is_one).filter_map(oldest).min_by_key(|(since, ..)| *since)?;
        self.take(id, head).then_some(id)
    }

    /// The sealed segment, of those that `may` be cleaned, that this gains most from, by what it holds that `live` says counts, with its head. None where all
    /// are so full of that that a copy of it gains less than one in [`CLEANED_GAIN_MIN`]. A segment that is written anew holds
    /// `data_pages`.
    ///
    /// Cost-benefit of Rosenblum and Ousterhout (1992): what comes free, times its age, for what is read and written. Young segments wait,
    /// since more of them is going to die. The age counts by its root: blocks are apart by their age already, and with all of it cleaning wrote
    /// a tenth more under zipfian overwrites.
    pub(crate) fn most_worth_cleaning(
        &self,
        live: &Live,
        data_pages: u32,
        may: &dyn Fn(SegmentId, HeadKind) -> bool,
    ) -> Option<(SegmentId, HeadKind)> {
        let mut best: Option<(u64, SegmentId, HeadKind)> = None;
        let all = u64::from(data_pages);
        for head in HeadKind::ALL {
            for &id in &self.sealed[head as usize] {
                let segment = &self.segments[id.0 as usize];
                if segment.left_with == Some(live.of(id)) {
                    continue;
                }
                let kept = u64::from(live.of(id));
                // Headers and padding of the chunks with what is copied and of those that are closed for it.
                let chunks = CHUNKS_CLOSED + kept / u64::from(CHUNK_DATA_PAGES_MAX);
                let gained = all.saturating_sub(kept + 2 * u64::from(self.shape.align) * chunks);
                if gained < (all / u64::from(CLEANED_GAIN_MIN)).max(1) || !self.may_be_freed(id) {
                    continue;
                }
                let age = self.clock.saturating_sub(segment.full_at) + all;
                // Scaled, so that the quotient is exact enough.
                let score = (gained << 20).saturating_mul(age.isqrt()) / (all + kept);
                if best.is_none_or(|(most, ..)| score > most) && may(id, head) {
                    best = Some((score, id, head));
                }
            }
        }
        best.map(|(_, id, head)| (id, head))
    }

    /// Take a sealed segment of a head as a victim, whatever its place; false when it is not there, or not on the device yet.
    pub(crate) fn take(&mut self, id: SegmentId, head: HeadKind) -> bool {
        let taken = self.may_be_freed(id) && self.take_out(id, head);
        if taken {
            self.set_state(id, SegmentState::Reclaiming);
        }
        taken
    }

    /// All of a segment is on the device, and nothing may be written there late.
    fn may_be_freed(&self, id: SegmentId) -> bool {
        let segment = &self.segments[id.0 as usize];
        segment.unwritten.is_empty() && !segment.set_aside
    }

    /// A write to a segment may take effect late: until a restart the segment is not reused.
    pub(crate) fn set_aside(&mut self, id: SegmentId) {
        self.segments[id.0 as usize].set_aside = true;
    }

    /// How many there are.
    pub(crate) fn segments_set_aside(&self) -> usize {
        self.segments.iter().filter(|segment| segment.set_aside).count()
    }

    /// A segment taken as a victim stays after all, as the youngest of a head.
    pub(crate) fn keep(&mut self, id: SegmentId, head: HeadKind) {
        assert_eq!(self.segments[id.0 as usize].state, SegmentState::Reclaiming, "only a victim is kept");
        self.set_state(id, SegmentState::Sealed(head));
        self.sealed[head as usize].push_back(id);
        self.say_kept(id, head);
    }

    /// The place of a segment among the others is worth finding again after a crash.
    fn say_kept(&mut self, segment: SegmentId, head: HeadKind) {
        let sequence = self.next_sequence();
        let kept = &mut self.segments[segment.0 as usize];
        kept.kept_at = sequence;
        let opening = kept.opening;
        self.append_record(Record::Kept { segment, opening, head, sequence });
    }

    /// After a restart: the next segment, in their order, that is full.
    pub(crate) fn found_full(&mut self, id: SegmentId, head: HeadKind) {
        self.clock += u64::from(self.shape.segment_pages);
        self.segments[id.0 as usize].full_at = self.clock;
        self.sealed[head as usize].push_back(id);
    }

    /// A reclaimed segment's free record is durable and nobody reads it: it may be opened again.
    pub(crate) fn release(&mut self, id: SegmentId) {
        assert_eq!(self.segments[id.0 as usize].state, SegmentState::Reclaiming, "only a reclaimed segment is freed");
        self.set_state(id, SegmentState::Free);
        self.free.push_back(id);
    }
}
