//! What the ledger shows: bytes that lie over the disk, what a ring record says, what is on flash alone.
//!
//! Changes nothing.

use super::{Before, Change, Content, Ledger, RingLeg, Seq};
use device::{Buf, SharedBufs};
use std::ops::Range;

/// What there is to be read now may be gone, or come, with the process.
#[derive(Debug)]
pub(crate) struct InDoubt;

impl Ledger {
    /// What lies over the disk in a range: held bytes that the disk does not have durably, ascending. Also what it has completed:
    /// a device that fails to flush drops that before anybody is told, and reads meanwhile would find what was there before.
    ///
    /// # Errors
    /// Somebody was told that a change of these bytes has failed, and the death of the process may bring it back, or make it undone:
    /// replay may find it, or what came before it, or the disk has some of it and memory alone what came before.
    pub(crate) fn overlay(&self, range: &Range<u64>) -> Result<Vec<(Range<u64>, Content)>, InDoubt> {
        let mut over = Vec::new();
        for (part, owner) in self.newest.cut(range) {
            let Some(seq) = owner else {
                if self.overwritten.overlapping(&part).any(|(_, before)| before == Before::Replayed) {
                    return Err(InDoubt);
                }
                continue;
            };
            let change = &self.changes[&seq];
            let is_safe = matches!(change.told, RingLeg::Written | RingLeg::Durable);
            if change.failed || !is_safe && self.overwritten.overlaps(&part) {
                return Err(InDoubt);
            }
            if !matches!(change.content, Content::Unheld) {
                let piece = self.piece(seq, &part);
                over.push((part, piece));
            }
        }
        Ok(over)
    }

    /// What a ring record of a change says: of each byte what is newest now. An older record that reached a ring after a newer
    /// change was acknowledged by the disk would undo that. None: that cannot be said, since nobody holds what is newest.
    pub(crate) fn record_of(&self, seq: Seq) -> Option<Content> {
        let change = self.changes.get(&seq)?;
        let parts = self.newest.cut(&change.range);
        if parts.iter().all(|(_, owner)| *owner == Some(seq)) {
            return Some(change.content.clone()).filter(|content| !matches!(content, Content::Unheld));
        }
        if !matches!(change.content, Content::Data(_)) {
            return None;
        }
        let mut all = SharedBufs::new();
        for (part, owner) in parts {
            // Nobody's: the disk has something newer durably.
            match self.piece(owner?, &part) {
                Content::Data(data) => all.append(data),
                Content::Zeroes { .. } => all.append(Buf::zeroed((part.end - part.start) as usize).freeze().into()),
                Content::Unheld => return None,
            }
        }
        Some(Content::Data(all))
    }

    /// Some bytes of a change.
    pub(super) fn piece(&self, seq: Seq, range: &Range<u64>) -> Content {
        let change = &self.changes[&seq];
        match &change.content {
            Content::Data(data) => {
                let at = (range.start - change.range.start) as usize;
                Content::Data(data.slice(at..at + (range.end - range.start) as usize))
            }
            other => other.clone(),
        }
    }

    pub(super) fn content_of(&self, parts: &[(Range<u64>, Seq)]) -> Content {
        let mut all = SharedBufs::new();
        for (range, seq) in parts {
            match self.piece(*seq, range) {
                Content::Data(data) => all.append(data),
                other => return other,
            }
        }
        Content::Data(all)
    }

    /// Changes of which somebody may have been told that flash has them, how far, and that the disk does not have as far.
    pub(crate) fn on_flash_alone(&self) -> impl Iterator<Item = (Seq, RingLeg)> + '_ {
        let alone = |c: &Change| match c.told {
            RingLeg::Durable => !c.on_disk,
            RingLeg::Written => c.done_at.is_none(),
            RingLeg::None | RingLeg::Asked | RingLeg::Refused => false,
        };
        self.changes.iter().filter(move |(_, c)| alone(c)).map(|(seq, c)| (seq, c.told))
    }

    /// In words, for who looks for what it waits for.
    pub(crate) fn told(&self) -> String {
        let one = |(seq, c): (Seq, &Change)| {
            format!(
                "{seq}: {:?} ring {:?} must {} acked {} done {:?} on disk {} left {} heirs {} syncs {}",
                c.range,
                c.ring,
                c.must_ring,
                c.acked,
                c.done_at,
                c.on_disk,
                c.left,
                c.heirs,
                c.syncs.len()
            )
        };
        let changes: Vec<String> = self.changes.iter().take(20).map(one).collect();
        format!(
            "held back {}, paused {}, writes {}; {}",
            self.held_back,
            self.paused,
            self.writes.len(),
            changes.join("; ")
        )
    }

    /// Changes that have to be in a ring, with their ranges.
    pub(crate) fn bound_to_ring(&self) -> Vec<(Seq, Range<u64>)> {
        self.changes.iter().filter(|(_, c)| c.must_ring).map(|(seq, c)| (seq, c.range.clone())).collect()
    }

    /// Bytes where the disk may have a write that failed, over what replay may bring back.
    pub(crate) fn undone_by_replay(&self) -> Vec<Range<u64>> {
        let pieces = self.overwritten.iter_from(0);
        pieces.filter(|(_, before)| *before == Before::Replayed).map(|(piece, _)| piece).collect()
    }

    /// Something acknowledged is durable on flash alone.
    pub(crate) fn has_flash_alone(&self) -> bool {
        self.changes.has_flash_alone()
    }

    /// Whether replay would undo a change unless a ring has that too.
    pub(crate) fn is_bound_to_ring(&self, seq: Seq) -> bool {
        self.changes.get(&seq).is_some_and(|change| change.must_ring)
    }

    pub(crate) fn has_bound_to_ring(&self) -> bool {
        self.changes.has_bound()
    }

    /// The newest change that is known.
    pub(crate) fn last(&self) -> Seq {
        self.changes.last().unwrap_or(0)
    }

    /// The oldest change that the disk does not have durably.
    pub(crate) fn first_off_disk(&self) -> Option<Seq> {
        self.changes.iter().find(|(_, c)| !c.on_disk).map(|(seq, _)| seq)
    }

    /// Bytes that flash has and the disk has refused: saved redo.
    pub(crate) fn saved_bytes(&self) -> u64 {
        let on_flash = |c: &&Change| matches!(c.ring, RingLeg::Written | RingLeg::Durable);
        self.changes.iter().map(|(_, c)| c).filter(|c| c.disk_failed).filter(on_flash).map(|c| c.left).sum()
    }
}
