//! What the disk does with changes: writes that end, are refused, or are taken back.
//!
//! Never gives up what somebody was told is taken.

use super::changes::Edit;
use super::{Before, Change, Content, DiskWrite, Effect, FLYING_MAX, Ledger, RingLeg, Seq, WriteId, below};
use crate::ranges::RangeMap;
use std::collections::BTreeSet;
use std::ops::Range;

impl Ledger {
    /// A disk write has ended; what the disk shall write next.
    pub(crate) fn disk_wrote(&mut self, id: WriteId, good: bool) -> Vec<DiskWrite> {
        let Some(flying) = self.writes.remove(&id) else { return Vec::new() };
        let (Some(first), Some(last)) = (flying.parts.first(), flying.parts.last()) else { return Vec::new() };
        let range = first.0.start..last.0.end;
        let _ = self.flying.remove(&range);
        if !good || flying.tainted {
            for (piece, seq) in flying.parts {
                if !self.changes.contains_key(&seq) {
                    continue;
                }
                if self.changes.get(&seq).is_some_and(|c| matches!(c.content, Content::Unheld)) {
                    // Some of it may be there: what it was written over is written again.
                    self.lose(seq, |_| true);
                    continue;
                }
                self.back_to_pending(seq, piece);
                if !good {
                    self.held_back = true;
                    self.disk_refuses(seq);
                }
            }
            return self.start(range);
        }
        self.event += 1;
        let _ = self.overwritten.remove(&range);
        for (piece, seq) in flying.parts {
            let Some(mut change) = self.changes.edit(seq) else { continue };
            change.left -= piece.end - piece.start;
            let (doomed, undone) = (change.doomed, change.failed && change.over_record);
            drop(change);
            if undone {
                // Kept since replay may find its record, or not, and then what is below it.
                let _ = self.overwritten.insert(piece, Before::Replayed);
            }
            if doomed {
                self.give_up(seq);
            }
            let Some(mut change) = self.changes.edit(seq) else { continue };
            change.needs_flush |= !flying.fua;
            if !change.needs_flush && change.left == 0 && change.heirs == 0 {
                change.on_disk = true;
            }
            drop(change);
            self.settle(seq);
        }
        let more = self.start(range);
        if more.is_empty() && self.writes.len() < FLYING_MAX { self.start(0..u64::MAX) } else { more }
    }

    /// Bytes that could not be written wait again, where nothing newer waits.
    pub(super) fn back_to_pending(&mut self, seq: Seq, piece: Range<u64>) {
        for (part, newer) in self.pending.cut(&piece) {
            match newer {
                None => {
                    let _ = self.pending.insert(part, seq);
                }
                Some(newer) => self.inherit(seq, newer, part.end - part.start),
            }
        }
        self.settle(seq);
    }

    /// Look whether the disk has all of a change by now, and of those that wait for it.
    pub(super) fn settle(&mut self, seq: Seq) {
        let mut look = vec![seq];
        while let Some(seq) = look.pop() {
            let Some(mut change) = self.changes.edit(seq) else { continue };
            if change.left > 0 || change.heirs > 0 || change.done_at.is_some() {
                continue;
            }
            change.done_at = Some(self.event);
            change.disk_failed = false;
            change.on_disk |= self.write_through;
            let heir_of = std::mem::take(&mut change.heir_of);
            drop(change);
            for older in heir_of {
                if let Some(mut older_change) = self.changes.edit(older) {
                    older_change.heirs -= 1;
                }
                look.push(older);
            }
            self.ack_if_possible(seq);
            self.check_durable(seq);
        }
    }

    pub(super) fn ack_if_possible(&mut self, seq: Seq) {
        let Some(mut change) = self.changes.edit(seq) else { return };
        if !change.acked && change.may_be_acked() {
            change.acked = true;
            // It was to fail, and a ring has it after all.
            change.doomed = false;
            let by_ring = change.done_at.is_none();
            self.effects.push(Effect::Acked { seq, by_ring });
        }
    }

    /// Tell syncs of a change that is durable, and forget one that the disk has.
    pub(super) fn check_durable(&mut self, seq: Seq) {
        let Some(mut change) = self.changes.edit(seq).filter(|change| change.is_durable()) else { return };
        let (by_ring, released) = (!change.on_disk, change.on_disk && change.acked);
        let syncs = std::mem::take(&mut change.syncs);
        drop(change);
        for sync in syncs {
            self.closer(sync, by_ring);
        }
        if released {
            self.forget(seq);
            self.effects.push(Effect::Released { seq });
        }
    }

    pub(super) fn forget(&mut self, seq: Seq) {
        let Some(change) = self.changes.remove(seq) else { return };
        for (part, owner) in self.newest.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.newest.remove(&part);
            }
        }
    }

    /// A change that nobody holds did not reach the disk, or was lost there; what was before it and `comes_back` is written again.
    pub(super) fn lose(&mut self, seq: Seq, comes_back: impl Fn(&Change) -> bool) {
        let Some(change) = self.changes.get(&seq) else { return };
        let (acked, syncs) = (change.acked, change.syncs.clone());
        self.withdraw(seq, comes_back);
        self.lost_acked += u64::from(acked);
        if !acked {
            self.effects.push(Effect::Failed { seq });
        }
        self.lose_syncs(&syncs);
    }

    /// Take a change back that nobody was told of, or that is lost: what was newest before it is so again, and is written where it
    /// waited behind this one, or this one may have been written over it. A failed write that could be read, and were gone after
    /// the death of the process, would be worse than none.
    pub(super) fn withdraw(&mut self, seq: Seq, comes_back: impl Fn(&Change) -> bool) {
        let Some(change) = self.changes.remove(seq) else { return };
        let mut heirs: Vec<Seq> = Vec::new();
        for id in self.changes.newer_than(seq) {
            let Some(mut newer) = self.changes.edit(id) else { continue };
            if newer.heir_of.contains(&seq) {
                heirs.push(id);
            }
            if newer.over.iter().any(|(_, owner)| *owner == seq) {
                let all = std::mem::take(&mut newer.over);
                newer.over = all.into_iter().flat_map(|(part, owner)| below(&change.over, part, owner, seq)).collect();
            }
        }
        for (part, owner) in self.newest.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.newest.remove(&part);
                for (piece, older) in below(&change.over, part, seq, seq) {
                    if self.changes.get(&older).is_some_and(&comes_back) {
                        let _ = self.newest.insert(piece.clone(), older);
                        self.written_over(older, piece, seq);
                    }
                }
            }
        }
        for (part, owner) in self.pending.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.pending.remove(&part);
                for (piece, older) in below(&change.over, part, seq, seq) {
                    if change.tried {
                        let _ = self.overwritten.insert(piece.clone(), Before::Held);
                    }
                    self.restore(older, piece, change.tried);
                }
            }
        }
        for older in change.heir_of {
            // What has replaced bytes of this one has replaced what this one had replaced.
            for heir in &heirs {
                self.wait_for_heir(older, *heir);
            }
            if let Some(mut older_change) = self.changes.edit(older) {
                older_change.heirs -= 1;
            }
            self.settle(older);
        }
        if !self.held_back && self.pending.len() > 0 {
            // Nothing may be under way that would begin it.
            self.effects.push(Effect::TryDisk);
        }
    }

    /// A change that is taken back may have been written over these bytes of an older one, but for what of it still waits.
    fn written_over(&mut self, older: Seq, piece: Range<u64>, gone: Seq) {
        for (part, waits) in self.pending.cut(&piece) {
            if waits == Some(gone) {
                continue;
            }
            let _ = self.overwritten.insert(part.clone(), Before::Held);
            if waits.is_none() {
                self.restore(older, part, true);
            }
        }
    }

    /// Bytes of a change are what the disk has to get after all, unless they are on their way or there durably. What had been
    /// written is written again, `over` also what was durable: what is taken back may lie over it.
    pub(super) fn restore(&mut self, seq: Seq, piece: Range<u64>, over: bool) {
        for (part, id) in self.flying.cut(&piece) {
            let parts = id.and_then(|id| self.writes.get(&id)).map(|w| w.parts.clone()).unwrap_or_default();
            let mut mine = RangeMap::new();
            for (r, _) in parts.iter().filter(|(r, s)| *s == seq && r.start < part.end && r.end > part.start) {
                let _ = mine.insert(r.start.max(part.start)..r.end.min(part.end), ());
            }
            for (rest, flies) in mine.cut(&part) {
                let waits = |c: &Edit<'_>| (over || !c.on_disk) && !matches!(c.content, Content::Unheld);
                if flies.is_none()
                    && let Some(mut change) = self.changes.edit(seq).filter(waits)
                {
                    (change.done_at, change.on_disk) = (None, false);
                    change.left += rest.end - rest.start;
                    let _ = self.pending.insert(rest, seq);
                }
            }
        }
    }

    /// The disk has refused a change, and with it those that wait for it as their heir: the ring is asked, and if that has
    /// refused one too, who waits for it is told.
    pub(super) fn disk_refuses(&mut self, seq: Seq) {
        let tried = self.changes.get(&seq).is_some_and(|change| change.tried);
        let mut refused = BTreeSet::new();
        let mut look = vec![seq];
        while let Some(seq) = look.pop() {
            if let Some(change) = self.changes.get(&seq).filter(|_| refused.insert(seq)) {
                look.extend(&change.heir_of);
            }
        }
        for seq in refused.into_iter().rev() {
            let Some(mut change) = self.changes.edit(seq) else { continue };
            change.disk_failed = true;
            change.tried |= tried;
            let ring = change.ring;
            drop(change);
            match ring {
                RingLeg::None => self.effects.push(Effect::DiskFailed { seq }),
                RingLeg::Refused => self.give_up(seq),
                RingLeg::Asked | RingLeg::Written | RingLeg::Durable => {}
            }
        }
    }

    /// Neither the disk nor the ring takes a change. Whoever was told that it is taken keeps it; whoever was not is told so, as
    /// soon as nothing of it is in flight.
    pub(super) fn give_up(&mut self, seq: Seq) {
        let flies = self.writes.values().any(|flying| flying.parts.iter().any(|(_, s)| *s == seq));
        let Some(mut change) = self.changes.edit(seq) else { return };
        let syncs = change.syncs.clone();
        if !change.acked && flies {
            return;
        }
        // A failed flush says nothing of a change that the disk has not been asked to write.
        if !change.acked && !change.tried && !change.doomed {
            change.disk_failed = false;
            self.effects.push(Effect::TryDisk);
            return;
        }
        let (fails, lies_in_ring) = (!std::mem::replace(&mut change.acked, true), change.lies_in_ring);
        let undone = change.tried && change.over_record;
        change.failed |= fails;
        if change.doomed {
            // Told so: what comes of it is nobody's business any more, and no later sync waits for what cannot come.
            change.must_ring = false;
        }
        drop(change);
        if fails {
            if undone {
                self.may_be_undone(seq);
            }
            self.effects.push(Effect::Failed { seq });
            if !lies_in_ring {
                self.withdraw(seq, |_| true);
            }
        }
        self.lose_syncs(&syncs);
    }

    /// A change that fails may lie on the disk over what replay brings back.
    fn may_be_undone(&mut self, seq: Seq) {
        let Some(change) = self.changes.get(&seq) else { return };
        for (part, owner) in self.newest.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.overwritten.insert(part, Before::Replayed);
            }
        }
    }

    /// Replay brings nothing back there any more: what the disk has counts.
    pub(crate) fn not_undone(&mut self, piece: &Range<u64>) {
        let _ = self.overwritten.remove(piece);
    }

    /// Start no disk write from now on, or go on. What is to be written then.
    pub(crate) fn pause(&mut self, paused: bool) -> Vec<DiskWrite> {
        self.paused = paused;
        self.start(0..u64::MAX)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// No disk write is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.writes.is_empty()
    }

    /// Try a disk that has refused writes again: in turn, so that each that waits is tried though only so many are at a time.
    pub(crate) fn retry(&mut self) -> Vec<DiskWrite> {
        self.held_back = false;
        let mut writes = self.start(self.retry_from..u64::MAX);
        writes.extend(self.start(0..self.retry_from));
        self.retry_from = writes.last().map_or(0, |write| write.range.end);
        writes
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// Acknowledged changes that were lost so far.
    pub(crate) fn lost_acked(&self) -> u64 {
        self.lost_acked
    }
}
