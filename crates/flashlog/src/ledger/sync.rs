//! Syncs and the flushes that bring them on, and what is written again after a flush has failed.
//!
//! Never counts a flush for what was not complete when it was issued.

use super::{Change, Content, DiskWrite, Effect, FLUSH_OWED, Ledger, RingLeg, Seq, Sync, SyncId};
use crate::ranges::RangeMap;
use std::ops::Range;

impl Ledger {
    /// A sync of every acknowledged change (of `only`, if given); none when there is nothing to wait for.
    pub(crate) fn begin_sync(&mut self, only: Option<Seq>) -> Option<SyncId> {
        let id = self.next_sync;
        let mut open = 0;
        // What flash alone has made durable already is part of it.
        let by_ring = match only {
            None => self.changes.has_flash_alone(),
            Some(only) => self.changes.get(&only).is_some_and(|c| c.is_durable() && !c.on_disk),
        };
        let waits = |seq: Seq, c: &Change| only.map_or(c.acked, |only| only == seq);
        let waited_for: Vec<Seq> = self.changes.open().filter(|(seq, c)| waits(*seq, c)).map(|(seq, _)| seq).collect();
        for seq in waited_for {
            if let Some(mut change) = self.changes.edit(seq) {
                if change.range.is_empty() && change.done_at.is_none() {
                    // What goes past the ledger and is not complete is not covered. Whoever asks may be what its end waits for:
                    // a request that began before the ledger took over and flushes on its way.
                    self.event += 1;
                    self.past.push((self.event, id));
                    open += 1;
                } else {
                    change.syncs.push(id);
                    open += 1;
                }
            }
        }
        if open == 0 {
            return None;
        }
        self.next_sync += 1;
        self.syncs.insert(id, Sync { open, by_ring });
        // The disk decides about what it alone can make durable, now and not at its next turn.
        if self.held_back {
            let refused = |c: &Change| c.disk_failed && c.ring == RingLeg::Refused && c.syncs.contains(&id);
            let refused: Vec<Seq> = self.changes.open().filter(|(_, c)| refused(c)).map(|(seq, _)| seq).collect();
            if !refused.is_empty() {
                self.effects.push(Effect::TryDisk);
            }
            for seq in refused {
                if let Some(mut change) = self.changes.edit(seq) {
                    change.disk_failed = false;
                }
            }
        }
        Some(id)
    }

    /// A flush of the disk is issued now; give what is returned to [`Ledger::flush_ended`].
    pub(crate) fn flush_begins(&self) -> u64 {
        self.event
    }

    /// It has ended. After a failure everything the disk had not made durable is written again; what is not held is lost.
    pub(crate) fn flush_ended(&mut self, begun_at: u64, good: bool) -> Vec<DiskWrite> {
        if !good {
            return self.write_again();
        }
        let covered = |c: &Change| !c.on_disk && c.done_at.is_some_and(|at| at <= begun_at);
        let complete: Vec<Seq> = self.changes.iter().filter(|(_, c)| covered(c)).map(|(seq, _)| seq).collect();
        let past: Vec<SyncId> = self.past.extract_if(.., |(at, _)| *at <= begun_at).map(|(_, sync)| sync).collect();
        past.into_iter().for_each(|sync| self.closer(sync, false));
        for seq in complete {
            if let Some(mut change) = self.changes.edit(seq) {
                change.on_disk = true;
            }
            self.check_durable(seq);
        }
        Vec::new()
    }

    /// The disk may have dropped whatever it had not made durable: of each byte the newest change is written again.
    pub(super) fn write_again(&mut self) -> Vec<DiskWrite> {
        // Not at once again: a disk that refuses flushes would be given the same bytes without a pause.
        (self.wanted, self.wanted_together) = (None, None);
        let lost_before = self.lost_acked;
        let was_owed = self.changes.contains_key(&FLUSH_OWED);
        let open: Vec<Seq> = self.changes.iter().filter(|(_, c)| !c.on_disk).map(|(seq, _)| seq).collect();
        let mut again = Vec::new();
        // First what nobody holds: what is newest in its place decides what is written.
        for &seq in &open {
            let Some(change) = self.changes.get(&seq) else { continue };
            if change.range.is_empty() {
                // What went past the ledger: some of it may still be under way.
                let syncs = change.syncs.clone();
                // FLUSH_OWED stands for a loss that has been counted.
                self.lost_acked += u64::from(seq != FLUSH_OWED);
                self.lose_syncs(&syncs);
            } else if matches!(change.content, Content::Unheld) && change.done_at.is_some() {
                // The disk may have it all the same: only what somebody was told is durable is written over it.
                self.lose(seq, |older| older.told == RingLeg::Durable);
            }
        }
        for seq in open {
            let Some(mut change) = self.changes.edit(seq) else { continue };
            // Who waits for whom is found anew: of what nobody holds and is in flight as well.
            change.heir_of.clear();
            if matches!(change.content, Content::Unheld) {
                continue;
            }
            (change.left, change.heirs, change.done_at, change.needs_flush) = (0, 0, None, false);
            again.push((seq, change.range.clone()));
        }
        let past: Vec<SyncId> = std::mem::take(&mut self.past).into_iter().map(|(_, sync)| sync).collect();
        self.lose_syncs(&past);
        if self.lost_acked > lost_before || was_owed {
            // Nobody may be told that all is well before the disk has shown that it flushes again.
            self.changes.remove(FLUSH_OWED);
            self.begin_unknown(FLUSH_OWED);
            self.unknown_ended(FLUSH_OWED);
        }
        self.pending = RangeMap::new();
        self.writes.values_mut().for_each(|flying| flying.tainted = true);
        for (seq, range) in &again {
            for (part, flying) in self.flying.cut(range) {
                let parts = flying.and_then(|id| self.writes.get(&id)).map(|w| w.parts.clone()).unwrap_or_default();
                // What is in flight for this change is still to come.
                let mut mine = RangeMap::new();
                for (r, _) in parts.iter().filter(|(_, s)| s == seq) {
                    let _ = mine.insert(r.start.max(part.start)..r.end.min(part.end).max(r.start.max(part.start)), ());
                }
                for (piece, flies) in mine.cut(&part) {
                    self.wait_again(*seq, piece, flies.is_some());
                }
            }
        }
        for (seq, _) in &again {
            self.settle(*seq);
            self.disk_refuses(*seq);
        }
        self.start(0..u64::MAX)
    }

    pub(super) fn wait_again(&mut self, seq: Seq, piece: Range<u64>, flies: bool) {
        for (part, newest) in self.newest.cut(&piece) {
            let bytes = part.end - part.start;
            let heir = newest.filter(|n| *n != seq && self.changes.get(n).is_some_and(|c| !c.on_disk));
            let Some(mut change) = self.changes.edit(seq) else { return };
            if flies {
                change.left += bytes;
            } else if newest == Some(seq) {
                change.left += bytes;
                let _ = self.pending.insert(part, seq);
            } else if let Some(heir) = heir {
                change.left += bytes;
                drop(change);
                self.inherit(seq, heir, bytes);
            }
        }
    }

    /// One of the things a sync waits for is durable.
    pub(super) fn closer(&mut self, sync: SyncId, by_ring: bool) {
        let Some(state) = self.syncs.get_mut(&sync) else { return };
        state.open -= 1;
        state.by_ring |= by_ring;
        if state.open == 0 {
            self.effects.push(Effect::Synced { sync, by_ring: state.by_ring });
            self.syncs.remove(&sync);
        }
    }

    pub(super) fn lose_syncs(&mut self, lost: &[SyncId]) {
        for &sync in lost {
            if self.syncs.remove(&sync).is_some() {
                self.effects.push(Effect::SyncLost { sync });
                for seq in self.waited_for(sync) {
                    if let Some(mut change) = self.changes.edit(seq) {
                        change.syncs.retain(|s| *s != sync);
                    }
                }
            }
        }
    }

    /// Changes that a sync waits for and the ring was not asked for, oldest first.
    pub(crate) fn unasked(&self, sync: SyncId) -> Vec<Seq> {
        let of =
            |c: &Change| c.syncs.contains(&sync) && c.ring == RingLeg::None && !matches!(c.content, Content::Unheld);
        self.changes.open().filter(|(_, c)| of(c)).map(|(seq, _)| seq).collect()
    }

    /// Changes a sync waits for, oldest first.
    pub(crate) fn waited_for(&self, sync: SyncId) -> Vec<Seq> {
        self.changes.open().filter(|(_, c)| c.syncs.contains(&sync)).map(|(seq, _)| seq).collect()
    }

    /// Whether something acknowledged is not held and not durable: the ring cannot help a sync now.
    pub(crate) fn has_unheld(&self) -> bool {
        self.changes.open().any(|(_, c)| c.acked && matches!(c.content, Content::Unheld))
    }

    /// Whether a sync can still be made durable by the ring: everything it waits for is there, or on its way.
    pub(crate) fn ring_can_help(&self, sync: SyncId) -> bool {
        let stuck = |c: &&Change| {
            c.syncs.contains(&sync) && (matches!(c.content, Content::Unheld) || c.ring == RingLeg::Refused)
        };
        !self.changes.open().any(|(_, c)| stuck(&c))
    }
}
