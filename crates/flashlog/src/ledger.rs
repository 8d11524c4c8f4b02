//! The ledger of one redo grid disk: which change is where, and what follows from each event. No I/O, no time.
//!
//! A change is kept until the disk has it durably: until a disk flush that was issued after its write has succeeded. Of any
//! byte at most one disk write is in flight; what is newer waits in `pending`, the newest only, and an older change whose
//! bytes were replaced there is on the disk when its heirs are. The ring is the other way to be durable.
//!
//! Never decides when to hedge; never forgets a change because somebody stopped waiting for it.

mod changes;
mod disk;
mod show;
mod sync;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;

use crate::ranges::RangeMap;
use changes::Changes;
use device::SharedBufs;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Order of changes over all grid disks of the cell.
pub(crate) type Seq = u64;
/// A disk write by number.
pub(crate) type WriteId = u64;
/// A sync by number.
pub(crate) type SyncId = u64;

/// Disk writes of one grid disk in flight: as many as a deep disk queue takes; what is beyond waits and is merged.
pub(crate) const FLYING_MAX: usize = 64;
/// Stands for what was lost: a sync waits for a good flush. Changes have higher sequences.
const FLUSH_OWED: Seq = 0;
/// The longest write that is made of several changes: one stripe of what disks take at once.
pub(crate) const MERGED_BYTES_MAX: u64 = 1 << 20;

/// What a change does to its range.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Bytes, kept in memory reserved for that.
    Data(SharedBufs),
    /// Zeroes.
    Zeroes {
        /// Their space may be given back.
        may_unmap: bool,
    },
    /// Not kept: the disk alone can make it durable.
    Unheld,
}

/// Where a change is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RingLeg {
    /// Not asked.
    None,
    /// On its way.
    Asked,
    /// Completed on the flash devices it was given to: it survives the death of the process.
    Written,
    /// Durable there.
    Durable,
    /// Not taken, or the flash has failed.
    Refused,
}

/// A change that is not known to be durable on the disk.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) range: Range<u64>,
    pub(crate) content: Content,
    /// Bytes neither written to the disk nor replaced by a newer change.
    left: u64,
    /// Newer changes that replaced bytes of this one before they were written, and are not on the disk themselves.
    heirs: usize,
    /// Older changes that wait for this one as their heir.
    heir_of: SmallVec<[Seq; 2]>,
    /// Whose bytes were the newest before this one.
    over: SmallVec<[(Range<u64>, Seq); 2]>,
    /// The event at which the disk had all of it.
    done_at: Option<u64>,
    on_disk: bool,
    pub(crate) ring: RingLeg,
    /// How far it ever was in the rings: written or durable. Whoever was told so was told for good.
    told: RingLeg,
    /// It overlaps a ring record whose release is not durable: replay would undo it unless it is in the ring as well.
    pub(crate) must_ring: bool,
    /// It overlaps such a record, whether it has to be in the ring still or has been given up.
    over_record: bool,
    acked: bool,
    syncs: SmallVec<[SyncId; 2]>,
    /// Its disk write makes it durable.
    fua: bool,
    /// Some of it is on the disk, or was replaced, by a write that is not durable when it is done: a durable write of the rest
    /// says nothing of that.
    needs_flush: bool,
    /// The disk has refused it, or a flush that had to cover it: only the ring can make it durable for now.
    disk_failed: bool,
    /// A ring has a record of it, or may have: replay may bring it back.
    lies_in_ring: bool,
    /// The disk has been asked to write some of it.
    tried: bool,
    /// It fails as soon as nothing of it is in flight.
    doomed: bool,
    /// Who asked for it was told that it has failed. It is kept since replay may find it, or not.
    failed: bool,
}

impl Change {
    /// A change that has just begun.
    fn new(range: Range<u64>, content: Content) -> Change {
        Change {
            left: range.end - range.start,
            range,
            content,
            heirs: 0,
            heir_of: SmallVec::new(),
            over: SmallVec::new(),
            done_at: None,
            on_disk: false,
            ring: RingLeg::None,
            told: RingLeg::None,
            must_ring: false,
            over_record: false,
            acked: false,
            syncs: SmallVec::new(),
            fua: false,
            needs_flush: false,
            disk_failed: false,
            lies_in_ring: false,
            tried: false,
            doomed: false,
            failed: false,
        }
    }

    fn is_durable(&self) -> bool {
        self.ring == RingLeg::Durable || (self.on_disk && !self.must_ring)
    }

    /// The disk has all of it, and no flush has covered that.
    fn is_unflushed(&self) -> bool {
        self.done_at.is_some() && !self.on_disk
    }

    /// The disk has all of it, durably or not.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.done_at.is_some()
    }

    /// The client that asked for the change has its answer, good or bad.
    pub(crate) fn is_acked(&self) -> bool {
        self.acked
    }

    fn may_be_acked(&self) -> bool {
        self.ring >= RingLeg::Written && self.ring != RingLeg::Refused || (self.done_at.is_some() && !self.must_ring)
    }
}

/// A write to be given to the disk.
#[derive(Debug)]
pub(crate) struct DiskWrite {
    pub(crate) id: WriteId,
    pub(crate) range: Range<u64>,
    pub(crate) content: Content,
    pub(crate) fua: bool,
}

/// What has come of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The change may be acknowledged; `by_ring`: the disk has not completed it.
    Acked { seq: Seq, by_ring: bool },
    /// The disk does not take the change: the ring should have it.
    DiskFailed { seq: Seq },
    /// Neither the disk nor the ring takes the change: who asked for it is told. What is held of it is tried on.
    Failed { seq: Seq },
    /// Somebody waits for the disk alone: it is asked again, see [`Ledger::retry`].
    TryDisk,
    /// Every change of a sync is durable; `by_ring`: some of it on flash alone.
    Synced { sync: SyncId, by_ring: bool },
    /// A sync cannot succeed: the disk has lost or refused what it covers, and the ring does not have it.
    SyncLost { sync: SyncId },
    /// The disk has the change durably: its ring records are worth nothing any more.
    Released { seq: Seq },
}

#[derive(Debug)]
struct Flying {
    parts: SmallVec<[(Range<u64>, Seq); 1]>,
    fua: bool,
    /// The device has dropped what it had not made durable since this was issued: it counts as not written.
    tainted: bool,
}

#[derive(Debug)]
struct Sync {
    open: usize,
    by_ring: bool,
}

/// Where that is which a failed write may lie over on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// A change that is kept: it is shown, and written again. With the process it would be gone, unless a ring has it.
    Held,
    /// The disk had it durably, so that nobody holds it; a ring may have a record of it still, and replay would bring it back.
    Replayed,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    changes: Changes,
    /// Bytes that wait for their disk write, with the newest change of each.
    pending: RangeMap<Seq>,
    /// Bytes whose disk write is in flight.
    flying: RangeMap<WriteId>,
    writes: BTreeMap<WriteId, Flying>,
    /// The newest change of each byte that the disk does not have durably.
    newest: RangeMap<Seq>,
    /// Bytes over which a write that failed may lie on the disk, with where what came before it is, until the disk takes something
    /// there: what is shown of them could be another thing after the death of the process.
    overwritten: RangeMap<Before>,
    syncs: BTreeMap<SyncId, Sync>,
    /// Syncs that wait for a flush which begins at this event or later, of what went past the ledger: at most one entry for
    /// each sync.
    past: Vec<(u64, SyncId)>,
    event: u64,
    /// The disk is to have everything up to this change durably without delay.
    wanted: Option<Seq>,
    /// The disk is to have everything up to this change durably, as soon as it has all been written there.
    wanted_together: Option<Seq>,
    next_write: WriteId,
    next_sync: SyncId,
    /// The disk refuses writes: none is started until it is tried again.
    held_back: bool,
    /// Where the next trial of such a disk begins.
    retry_from: u64,
    /// No disk write is started until somebody says so.
    paused: bool,
    /// Acknowledged changes that nobody held and the disk has lost.
    lost_acked: u64,
    /// A completed write is durable: the disk has no volatile cache.
    write_through: bool,
    /// Deliberate fault: writes of the same bytes do not wait for each other.
    overlapping: bool,
    effects: Vec<Effect>,
}

impl Ledger {
    pub(crate) fn new(write_through: bool, overlapping: bool) -> Ledger {
        Ledger { write_through, overlapping, ..Ledger::default() }
    }

    /// What has come of the calls since.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn change(&self, seq: Seq) -> Option<&Change> {
        self.changes.get(&seq)
    }

    /// Whether a disk write of some of these bytes is in flight or waits.
    pub(crate) fn is_busy(&self, range: &Range<u64>) -> bool {
        self.flying.overlaps(range) || self.pending.overlaps(range)
    }

    /// Changes the disk has completed that no flush has covered.
    pub(crate) fn has_unflushed(&self) -> bool {
        !self.past.is_empty() || self.changes.first_unflushed().is_some()
    }

    /// The disk is asked for everything there is, whoever answers those who wait.
    pub(crate) fn want_on_disk(&mut self) {
        self.wanted = Some(self.last());
    }

    /// The disk is asked for everything there is by one flush, of what is being written now as well. Where that is asked again and has not
    /// come about, it is asked for what is there. Whether a flush is due now.
    pub(crate) fn want_together(&mut self) -> bool {
        if self.wanted_together.take().is_some() {
            self.want_on_disk();
            return true;
        }
        self.wanted_together = Some(self.last());
        self.is_together()
    }

    /// Whether what was wanted together has been written, and is wanted from now on. A write that the disk refuses does not
    /// hold up the others.
    pub(crate) fn is_together(&mut self) -> bool {
        let Some(last) = self.wanted_together else { return false };
        let flies = self.writes.values().any(|flying| flying.parts.iter().any(|(_, seq)| *seq <= last));
        let waits = || !self.held_back && !self.paused && self.pending.iter_from(0).any(|(_, seq)| seq <= last);
        let written = !flies && !waits();
        if written {
            self.wanted = self.wanted.max(Some(last));
            self.wanted_together = None;
        }
        written
    }

    /// Whether the disk has been asked for everything up to this change.
    pub(crate) fn is_wanted(&self, last: Seq) -> bool {
        self.wanted.max(self.wanted_together).is_some_and(|wanted| last <= wanted)
    }

    /// Whether a flush would bring a sync on: something it has asked for, or waits for, is complete and not durable. With
    /// `ring_serves` only what the ring does not take counts of that.
    pub(crate) fn flush_wanted(&self, ring_serves: impl FnOnce() -> bool) -> bool {
        if let (Some(first), Some(wanted)) = (self.changes.first_unflushed(), self.wanted)
            && first <= wanted
        {
            return true;
        }
        if self.syncs.is_empty() {
            return false;
        }
        let ring_serves = ring_serves();
        let left =
            |c: &Change| !ring_serves || matches!(c.ring, RingLeg::Refused) || matches!(c.content, Content::Unheld);
        let brings_on = |c: &Change| c.is_unflushed() && !c.syncs.is_empty() && left(c);
        !self.past.is_empty() || self.changes.open().any(|(_, c)| brings_on(c))
    }

    /// Take a change; what the disk shall write now, `first_write` if nothing is in its way. What is not held must not be busy
    /// ([`Ledger::is_busy`]).
    pub(crate) fn begin(
        &mut self,
        seq: Seq,
        range: Range<u64>,
        content: Content,
        first_write: Content,
        fua: bool,
        must_ring: bool,
    ) -> Vec<DiskWrite> {
        let over_record = must_ring;
        self.changes.insert(seq, Change { fua, must_ring, over_record, ..Change::new(range.clone(), content) });
        let over = self.newest.insert(range.clone(), seq);
        if let Some(mut change) = self.changes.edit(seq) {
            change.over = over;
        }
        let held = !matches!(self.changes[&seq].content, Content::Unheld);
        let busy = self.is_busy(&range) && !self.overlapping;
        assert!(held || !busy, "what is not held does not wait");
        assert!(held || !self.paused, "what is not held does not wait");
        if held && (busy || self.held_back || self.paused || self.writes.len() >= FLYING_MAX) {
            self.put_pending(seq, range.clone());
            if self.held_back {
                self.disk_refuses(seq);
            }
            return self.start(range);
        }
        // The usual case: the disk gets what the client gave, as one write.
        let id = self.fly(SmallVec::from_iter([(range.clone(), seq)]), range.clone(), fua);
        vec![DiskWrite { id, range, content: first_write, fua }]
    }

    /// Something was changed past the ledger before it took over, and perhaps not flushed: a sync has to wait for a flush that
    /// begins after [`Ledger::unknown_ended`].
    pub(crate) fn begin_unknown(&mut self, seq: Seq) {
        self.changes.insert(seq, Change { acked: true, ..Change::new(0..0, Content::Unheld) });
    }

    /// Whatever was changed past the ledger has reached the disk.
    pub(crate) fn unknown_ended(&mut self, seq: Seq) {
        self.event += 1;
        if let Some(mut change) = self.changes.edit(seq) {
            change.done_at = Some(self.event);
        }
    }

    /// Bytes of a change wait for the disk; what older ones lose by it is this one's to write.
    fn put_pending(&mut self, seq: Seq, range: Range<u64>) {
        for (piece, older) in self.pending.insert(range, seq) {
            if older != seq {
                self.inherit(older, seq, piece.end - piece.start);
            }
        }
    }

    fn inherit(&mut self, older: Seq, heir: Seq, bytes: u64) {
        let Some(mut change) = self.changes.edit(older) else { return };
        change.left -= bytes;
        change.needs_flush = true;
        drop(change);
        self.wait_for_heir(older, heir);
    }

    /// The disk has all of a change no sooner than all of a newer one.
    fn wait_for_heir(&mut self, older: Seq, heir: Seq) {
        if !self.changes.contains_key(&older) {
            return;
        }
        let Some(mut new) = self.changes.edit(heir) else { return };
        if !new.heir_of.contains(&older) {
            new.heir_of.push(older);
            drop(new);
            if let Some(mut change) = self.changes.edit(older) {
                change.heirs += 1;
            }
        }
    }

    fn fly(&mut self, parts: SmallVec<[(Range<u64>, Seq); 1]>, range: Range<u64>, fua: bool) -> WriteId {
        let id = self.next_write;
        self.next_write += 1;
        for (_, seq) in &parts {
            if let Some(mut change) = self.changes.edit(*seq) {
                change.tried = true;
            }
        }
        let displaced = self.flying.insert(range, id);
        assert!(displaced.is_empty() || self.overlapping, "two disk writes of one byte in flight");
        self.writes.insert(id, Flying { parts, fua, tainted: false });
        id
    }

    /// Start what waits within `near` and is not hindered by a write in flight: adjacent bytes in one write.
    fn start(&mut self, near: Range<u64>) -> Vec<DiskWrite> {
        let mut out = Vec::new();
        let mut at = near.start;
        while !self.held_back && !self.paused && self.writes.len() < FLYING_MAX {
            let Some((first, _)) = self.pending.overlapping(&(at..near.end)).find(|(r, _)| !self.flying.overlaps(r))
            else {
                break;
            };
            let write = self.start_at(first);
            at = write.range.end;
            out.push(write);
        }
        out
    }

    /// A write of the pending piece `first` and what follows it without a gap.
    fn start_at(&mut self, first: Range<u64>) -> DiskWrite {
        let mut end = first.start;
        let mut parts: SmallVec<[(Range<u64>, Seq); 1]> = SmallVec::new();
        for (range, seq) in self.pending.iter_from(first.start) {
            let zeroes = !matches!(self.changes[&seq].content, Content::Data(_));
            let joins = range.start == end && range.end - first.start <= MERGED_BYTES_MAX && !zeroes;
            if !parts.is_empty() && (!joins || self.flying.overlaps(&range)) {
                break;
            }
            end = range.end;
            parts.push((range, seq));
            if zeroes {
                break;
            }
        }
        let range = first.start..end;
        let _ = self.pending.remove(&range);
        let fua = parts.iter().any(|(_, seq)| self.changes[seq].fua);
        let content = self.content_of(&parts);
        let id = self.fly(parts, range.clone(), fua);
        DiskWrite { id, range, content, fua }
    }

    /// A change has been given to the ring, has got further there, or was refused; `lies`: a ring may have a record of it.
    pub(crate) fn ring(&mut self, seq: Seq, leg: RingLeg, lies: bool) {
        let Some(mut change) = self.changes.edit(seq) else { return };
        change.lies_in_ring = lies;
        if leg == RingLeg::Refused || leg > change.ring || change.ring == RingLeg::Refused {
            change.ring = leg;
        }
        if matches!(leg, RingLeg::Written | RingLeg::Durable) {
            change.told = change.told.max(leg);
        }
        let given_up = leg == RingLeg::Refused && change.disk_failed;
        drop(change);
        if given_up {
            return self.give_up(seq);
        }
        self.ack_if_possible(seq);
        self.check_durable(seq);
    }

    /// The releases of the ring records a change overlaps are durable: replay cannot undo it any more.
    pub(crate) fn need_not_ring(&mut self, seq: Seq) {
        let Some(mut change) = self.changes.edit(seq) else { return };
        (change.must_ring, change.over_record) = (false, false);
        drop(change);
        self.ack_if_possible(seq);
        self.check_durable(seq);
    }

    /// A change cannot come to be safe from replay: who asked for it is told, as soon as nothing of it is in flight. Of one that has been
    /// acknowledged, syncs alone are told: none ends well before [`Ledger::need_not_ring`].
    pub(crate) fn cannot_be_safe(&mut self, seq: Seq) {
        if let Some(mut change) = self.changes.edit(seq) {
            change.doomed = !change.acked;
            change.must_ring &= !change.failed;
        }
        self.give_up(seq);
        self.check_durable(seq);
    }
}

/// Who owns the bytes of `part`: `owner`, or in the place of `gone` whoever did so before it.
fn below(before: &[(Range<u64>, Seq)], part: Range<u64>, owner: Seq, gone: Seq) -> Vec<(Range<u64>, Seq)> {
    if owner != gone {
        return vec![(part, owner)];
    }
    let cut = before.iter().map(|(range, older)| (range.start.max(part.start)..range.end.min(part.end), *older));
    cut.filter(|(range, _)| range.start < range.end).collect()
}
