//! The ledger of one redo grid disk: which change is where, and what follows from each event. No I/O, no time.
//!
//! A change is kept until the disk has it durably: until a disk flush that was issued after its write has succeeded. Of any
//! byte at most one disk write is in flight; what is newer waits in `pending`, the newest only, and an older change whose
//! bytes were replaced there is on the disk when its heirs are. The ring is the other way to be durable.
//!
//! Never decides when to hedge; never forgets a change because somebody stopped waiting for it.

use crate::ranges::RangeMap;
use device::{Buf, SharedBufs};
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
    acked: bool,
    syncs: SmallVec<[SyncId; 2]>,
    /// Its disk write makes it durable.
    fua: bool,
    /// The disk has refused it, or a flush that had to cover it: only the ring can make it durable for now.
    disk_failed: bool,
    /// A ring has a record of it, or may have: replay may bring it back.
    lies_in_ring: bool,
    /// The disk has been asked to write some of it.
    tried: bool,
    /// It fails as soon as nothing of it is in flight.
    doomed: bool,
}

impl Change {
    fn is_durable(&self) -> bool {
        self.ring == RingLeg::Durable || (self.on_disk && !self.must_ring)
    }

    /// The disk has all of it, durably or not.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.done_at.is_some()
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

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    changes: BTreeMap<Seq, Change>,
    /// Bytes that wait for their disk write, with the newest change of each.
    pending: RangeMap<Seq>,
    /// Bytes whose disk write is in flight.
    flying: RangeMap<WriteId>,
    writes: BTreeMap<WriteId, Flying>,
    /// The newest change of each byte that the disk does not have durably.
    newest: RangeMap<Seq>,
    syncs: BTreeMap<SyncId, Sync>,
    /// Syncs that wait for a flush which begins at this event or later, of what went past the ledger: at most one entry for
    /// each sync.
    past: Vec<(u64, SyncId)>,
    event: u64,
    next_write: WriteId,
    next_sync: SyncId,
    /// The disk refuses writes: none is started until it is tried again.
    held_back: bool,
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
        !self.past.is_empty() || self.changes.values().any(|c| c.done_at.is_some() && !c.on_disk)
    }

    /// Whether a flush would bring a sync on: something it waits for is complete and not durable.
    pub(crate) fn flush_wanted(&self) -> bool {
        let brings_on = |c: &Change| c.done_at.is_some() && !c.on_disk && !c.syncs.is_empty() && !c.is_durable();
        !self.syncs.is_empty() && (!self.past.is_empty() || self.changes.values().any(brings_on))
    }

    /// Changes that are not on the disk although they may be acknowledged: saved redo, while the disk refuses them.
    pub(crate) fn saved_bytes(&self) -> u64 {
        if !self.held_back {
            return 0;
        }
        self.changes.values().map(|c| c.left).sum()
    }

    // --- changes ----------------------------------------------------------------------------------------------------

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
        let len = range.end - range.start;
        self.changes.insert(
            seq,
            Change {
                range: range.clone(),
                content,
                left: len,
                heirs: 0,
                heir_of: SmallVec::new(),
                over: SmallVec::new(),
                done_at: None,
                on_disk: false,
                ring: RingLeg::None,
                told: RingLeg::None,
                must_ring,
                acked: false,
                syncs: SmallVec::new(),
                fua,
                disk_failed: false,
                lies_in_ring: false,
                tried: false,
                doomed: false,
            },
        );
        let over = self.newest.insert(range.clone(), seq);
        if let Some(change) = self.changes.get_mut(&seq) {
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
        self.changes.insert(
            seq,
            Change {
                range: 0..0,
                content: Content::Unheld,
                left: 0,
                heirs: 0,
                heir_of: SmallVec::new(),
                over: SmallVec::new(),
                done_at: None,
                on_disk: false,
                ring: RingLeg::None,
                told: RingLeg::None,
                must_ring: false,
                acked: true,
                syncs: SmallVec::new(),
                fua: false,
                disk_failed: false,
                lies_in_ring: false,
                tried: false,
                doomed: false,
            },
        );
    }

    /// Whatever was changed past the ledger has reached the disk.
    pub(crate) fn unknown_ended(&mut self, seq: Seq) {
        self.event += 1;
        if let Some(change) = self.changes.get_mut(&seq) {
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
        let Some(change) = self.changes.get_mut(&older) else { return };
        change.left -= bytes;
        let Some(new) = self.changes.get_mut(&heir) else { return };
        if !new.heir_of.contains(&older) {
            new.heir_of.push(older);
            if let Some(change) = self.changes.get_mut(&older) {
                change.heirs += 1;
            }
        }
    }

    fn fly(&mut self, parts: SmallVec<[(Range<u64>, Seq); 1]>, range: Range<u64>, fua: bool) -> WriteId {
        let id = self.next_write;
        self.next_write += 1;
        for (_, seq) in &parts {
            if let Some(change) = self.changes.get_mut(seq) {
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

    fn content_of(&self, parts: &[(Range<u64>, Seq)]) -> Content {
        let mut all = SharedBufs::new();
        for (range, seq) in parts {
            match self.piece(*seq, range) {
                Content::Data(data) => all.append(data),
                other => return other,
            }
        }
        Content::Data(all)
    }

    /// Some bytes of a change.
    fn piece(&self, seq: Seq, range: &Range<u64>) -> Content {
        let change = &self.changes[&seq];
        match &change.content {
            Content::Data(data) => {
                let at = (range.start - change.range.start) as usize;
                Content::Data(data.slice(at..at + (range.end - range.start) as usize))
            }
            other => other.clone(),
        }
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
                    self.lose(seq);
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
        for (piece, seq) in flying.parts {
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            change.left -= piece.end - piece.start;
            if change.doomed {
                self.give_up(seq);
            }
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            if flying.fua && change.left == 0 && change.heirs == 0 {
                change.on_disk = true;
            }
            self.settle(seq);
        }
        let more = self.start(range);
        if more.is_empty() && self.writes.len() < FLYING_MAX { self.start(0..u64::MAX) } else { more }
    }

    /// Bytes that could not be written wait again, where nothing newer waits.
    fn back_to_pending(&mut self, seq: Seq, piece: Range<u64>) {
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
    fn settle(&mut self, seq: Seq) {
        let mut look = vec![seq];
        while let Some(seq) = look.pop() {
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            if change.left > 0 || change.heirs > 0 || change.done_at.is_some() {
                continue;
            }
            change.done_at = Some(self.event);
            change.disk_failed = false;
            change.on_disk |= self.write_through;
            for older in std::mem::take(&mut change.heir_of) {
                if let Some(older_change) = self.changes.get_mut(&older) {
                    older_change.heirs -= 1;
                }
                look.push(older);
            }
            self.ack_if_possible(seq);
            self.check_durable(seq);
        }
    }

    fn ack_if_possible(&mut self, seq: Seq) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        if !change.acked && change.may_be_acked() {
            change.acked = true;
            let by_ring = change.done_at.is_none();
            self.effects.push(Effect::Acked { seq, by_ring });
        }
    }

    /// Tell syncs of a change that is durable, and forget one that the disk has.
    fn check_durable(&mut self, seq: Seq) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        if !change.is_durable() {
            return;
        }
        let (by_ring, released) = (!change.on_disk, change.on_disk && change.acked);
        for sync in std::mem::take(&mut change.syncs) {
            self.closer(sync, by_ring);
        }
        if released {
            self.forget(seq);
            self.effects.push(Effect::Released { seq });
        }
    }

    /// One of the things a sync waits for is durable.
    fn closer(&mut self, sync: SyncId, by_ring: bool) {
        let Some(state) = self.syncs.get_mut(&sync) else { return };
        state.open -= 1;
        state.by_ring |= by_ring;
        if state.open == 0 {
            self.effects.push(Effect::Synced { sync, by_ring: state.by_ring });
            self.syncs.remove(&sync);
        }
    }

    fn forget(&mut self, seq: Seq) {
        let Some(change) = self.changes.remove(&seq) else { return };
        for (part, owner) in self.newest.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.newest.remove(&part);
            }
        }
    }

    /// A change that nobody holds did not reach the disk, or was lost there.
    fn lose(&mut self, seq: Seq) {
        let Some(change) = self.changes.get(&seq) else { return };
        let (acked, syncs) = (change.acked, change.syncs.clone());
        self.forget(seq);
        self.lost_acked += u64::from(acked);
        if !acked {
            self.effects.push(Effect::Failed { seq });
        }
        self.lose_syncs(&syncs);
    }

    fn lose_syncs(&mut self, lost: &[SyncId]) {
        for &sync in lost {
            if self.syncs.remove(&sync).is_some() {
                self.effects.push(Effect::SyncLost { sync });
                self.changes.values_mut().for_each(|change| change.syncs.retain(|s| *s != sync));
            }
        }
    }

    /// Take a change back that nobody was told of: what was newest before it is so again, and is written where it waited behind
    /// this one. A failed write that could be read, and were gone after the death of the process, would be worse than none.
    fn withdraw(&mut self, seq: Seq) {
        let Some(change) = self.changes.remove(&seq) else { return };
        for newer in self.changes.range_mut(seq..).map(|(_, newer)| newer) {
            if newer.over.iter().any(|(_, owner)| *owner == seq) {
                let all = std::mem::take(&mut newer.over);
                newer.over = all.into_iter().flat_map(|(part, owner)| below(&change.over, part, owner, seq)).collect();
            }
        }
        for (part, owner) in self.newest.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.newest.remove(&part);
                for (piece, older) in below(&change.over, part, seq, seq) {
                    if self.changes.contains_key(&older) {
                        let _ = self.newest.insert(piece, older);
                    }
                }
            }
        }
        for (part, owner) in self.pending.cut(&change.range) {
            if owner == Some(seq) {
                let _ = self.pending.remove(&part);
                for (piece, older) in below(&change.over, part, seq, seq) {
                    self.restore(older, piece);
                }
            }
        }
        for older in change.heir_of {
            if let Some(older_change) = self.changes.get_mut(&older) {
                older_change.heirs -= 1;
            }
            self.settle(older);
        }
    }

    /// Bytes of a change are what the disk has to get after all, unless they are on their way or there.
    fn restore(&mut self, seq: Seq, piece: Range<u64>) {
        for (part, id) in self.flying.cut(&piece) {
            let parts = id.and_then(|id| self.writes.get(&id)).map(|w| w.parts.clone()).unwrap_or_default();
            let mut mine = RangeMap::new();
            for (r, _) in parts.iter().filter(|(r, s)| *s == seq && r.start < part.end && r.end > part.start) {
                let _ = mine.insert(r.start.max(part.start)..r.end.min(part.end), ());
            }
            for (rest, flies) in mine.cut(&part) {
                let waits = |c: &&mut Change| c.done_at.is_none() && !matches!(c.content, Content::Unheld);
                if flies.is_none()
                    && let Some(change) = self.changes.get_mut(&seq).filter(waits)
                {
                    change.left += rest.end - rest.start;
                    let _ = self.pending.insert(rest, seq);
                }
            }
        }
    }

    /// The disk has refused a change: the ring is asked, and if that has refused it too, who waits is told.
    fn disk_refuses(&mut self, seq: Seq) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        change.disk_failed = true;
        match change.ring {
            RingLeg::None => self.effects.push(Effect::DiskFailed { seq }),
            RingLeg::Refused => self.give_up(seq),
            RingLeg::Asked | RingLeg::Written | RingLeg::Durable => {}
        }
    }

    /// Neither the disk nor the ring takes a change. Whoever was told that it is taken keeps it; whoever was not is told so, as
    /// soon as nothing of it is in flight.
    fn give_up(&mut self, seq: Seq) {
        let flies = self.writes.values().any(|flying| flying.parts.iter().any(|(_, s)| *s == seq));
        let Some(change) = self.changes.get_mut(&seq) else { return };
        let syncs = change.syncs.clone();
        if !change.acked && flies {
            return;
        }
        if !change.acked && !change.tried && !change.doomed && self.held_back {
            change.disk_failed = false;
            self.effects.push(Effect::TryDisk);
            return;
        }
        if !change.acked {
            change.acked = true;
            self.effects.push(Effect::Failed { seq });
            if !change.lies_in_ring {
                self.withdraw(seq);
            }
        }
        self.lose_syncs(&syncs);
    }

    // --- the ring ---------------------------------------------------------------------------------------------------

    /// A change has been given to the ring, has got further there, or was refused; `lies`: a ring may have a record of it.
    pub(crate) fn ring(&mut self, seq: Seq, leg: RingLeg, lies: bool) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        change.lies_in_ring = lies;
        if leg == RingLeg::Refused || leg > change.ring || change.ring == RingLeg::Refused {
            change.ring = leg;
        }
        if matches!(leg, RingLeg::Written | RingLeg::Durable) {
            change.told = change.told.max(leg);
        }
        if leg == RingLeg::Refused && change.disk_failed {
            return self.give_up(seq);
        }
        self.ack_if_possible(seq);
        self.check_durable(seq);
    }

    /// The releases of the ring records a change overlaps are durable: replay cannot undo it any more.
    pub(crate) fn need_not_ring(&mut self, seq: Seq) {
        let Some(change) = self.changes.get_mut(&seq) else { return };
        change.must_ring = false;
        self.ack_if_possible(seq);
        self.check_durable(seq);
    }

    /// Changes that have to be in a ring, with their ranges.
    pub(crate) fn bound_to_ring(&self) -> Vec<(Seq, Range<u64>)> {
        self.changes.iter().filter(|(_, c)| c.must_ring).map(|(seq, c)| (*seq, c.range.clone())).collect()
    }

    pub(crate) fn has_bound_to_ring(&self) -> bool {
        self.changes.values().any(|c| c.must_ring)
    }

    /// A change cannot come to be safe from replay: who asked for it is told, as soon as nothing of it is in flight.
    pub(crate) fn cannot_be_safe(&mut self, seq: Seq) {
        if let Some(change) = self.changes.get_mut(&seq) {
            (change.doomed, change.must_ring) = (!change.acked, !change.acked);
        }
        self.give_up(seq);
        self.check_durable(seq);
    }

    /// In words, for who looks for what it waits for.
    pub(crate) fn told(&self) -> String {
        let one = |(seq, c): (&Seq, &Change)| {
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

    /// Changes that a sync waits for and the ring was not asked for, oldest first.
    pub(crate) fn unasked(&self, sync: SyncId) -> Vec<Seq> {
        let of =
            |c: &Change| c.syncs.contains(&sync) && c.ring == RingLeg::None && !matches!(c.content, Content::Unheld);
        self.changes.iter().filter(|(_, c)| of(c)).map(|(seq, _)| *seq).collect()
    }

    /// Changes a sync waits for, oldest first.
    pub(crate) fn waited_for(&self, sync: SyncId) -> Vec<Seq> {
        self.changes.iter().filter(|(_, c)| c.syncs.contains(&sync)).map(|(seq, _)| *seq).collect()
    }

    /// Whether something acknowledged is not held and not durable: the ring cannot help a sync now.
    pub(crate) fn has_unheld(&self) -> bool {
        self.changes.values().any(|c| c.acked && !c.is_durable() && matches!(c.content, Content::Unheld))
    }

    /// The newest change that is known.
    pub(crate) fn last(&self) -> Seq {
        self.changes.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    /// The oldest change that the disk does not have durably.
    pub(crate) fn first_off_disk(&self) -> Option<Seq> {
        self.changes.iter().find(|(_, c)| !c.on_disk).map(|(seq, _)| *seq)
    }

    /// Whether a sync can still be made durable by the ring: everything it waits for is there, or on its way.
    pub(crate) fn ring_can_help(&self, sync: SyncId) -> bool {
        let stuck = |c: &&Change| {
            c.syncs.contains(&sync) && (matches!(c.content, Content::Unheld) || c.ring == RingLeg::Refused)
        };
        !self.changes.values().any(|c| stuck(&c))
    }

    // --- syncs and flushes --------------------------------------------------------------------------------------------

    /// A sync of every acknowledged change (of `only`, if given); none when there is nothing to wait for.
    pub(crate) fn begin_sync(&mut self, only: Option<Seq>) -> Option<SyncId> {
        let id = self.next_sync;
        let mut open = 0;
        let mut by_ring = false;
        for (seq, change) in &mut self.changes {
            if only.map_or(change.acked, |only| only == *seq) {
                if change.is_durable() {
                    by_ring |= !change.on_disk;
                } else if change.range.is_empty() && change.done_at.is_none() {
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
        let refused = |c: &&mut Change| c.disk_failed && c.ring == RingLeg::Refused && c.syncs.contains(&id);
        if self.held_back && self.changes.values_mut().filter(refused).map(|c| c.disk_failed = false).count() > 0 {
            self.effects.push(Effect::TryDisk);
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
        let complete: Vec<Seq> = self.changes.iter().filter(|(_, c)| covered(c)).map(|(seq, _)| *seq).collect();
        let past: Vec<SyncId> = self.past.extract_if(.., |(at, _)| *at <= begun_at).map(|(_, sync)| sync).collect();
        past.into_iter().for_each(|sync| self.closer(sync, false));
        for seq in complete {
            if let Some(change) = self.changes.get_mut(&seq) {
                change.on_disk = true;
            }
            self.check_durable(seq);
        }
        Vec::new()
    }

    /// The disk may have dropped whatever it had not made durable: of each byte the newest change is written again.
    fn write_again(&mut self) -> Vec<DiskWrite> {
        let lost_before = self.lost_acked;
        let open: Vec<Seq> = self.changes.iter().filter(|(_, c)| !c.on_disk).map(|(seq, _)| *seq).collect();
        let mut again = Vec::new();
        for seq in open {
            let Some(change) = self.changes.get_mut(&seq) else { continue };
            if change.range.is_empty() {
                // What went past the ledger: some of it may still be under way.
                let syncs = change.syncs.clone();
                self.lost_acked += 1;
                self.lose_syncs(&syncs);
            } else if !matches!(change.content, Content::Unheld) {
                (change.left, change.heirs, change.done_at) = (0, 0, None);
                change.heir_of.clear();
                again.push((seq, change.range.clone()));
            } else if change.done_at.is_some() {
                self.lose(seq);
            }
        }
        let past: Vec<SyncId> = std::mem::take(&mut self.past).into_iter().map(|(_, sync)| sync).collect();
        self.lose_syncs(&past);
        if self.lost_acked > lost_before {
            // Nobody may be told that all is well before the disk has shown that it flushes again.
            self.changes.remove(&FLUSH_OWED);
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

    fn wait_again(&mut self, seq: Seq, piece: Range<u64>, flies: bool) {
        for (part, newest) in self.newest.cut(&piece) {
            let bytes = part.end - part.start;
            let heir = newest.filter(|n| *n != seq && self.changes.get(n).is_some_and(|c| !c.on_disk));
            let Some(change) = self.changes.get_mut(&seq) else { return };
            if flies {
                change.left += bytes;
            } else if newest == Some(seq) {
                change.left += bytes;
                let _ = self.pending.insert(part, seq);
            } else if let Some(heir) = heir {
                change.left += bytes;
                self.inherit(seq, heir, bytes);
            }
        }
    }

    /// Acknowledged changes that were lost so far.
    pub(crate) fn lost_acked(&self) -> u64 {
        self.lost_acked
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

    /// Changes of which somebody may have been told that flash has them, how far, and that the disk does not have as far.
    pub(crate) fn on_flash_alone(&self) -> impl Iterator<Item = (Seq, RingLeg)> + '_ {
        let alone = |c: &Change| match c.told {
            RingLeg::Durable => !c.on_disk,
            RingLeg::Written => c.done_at.is_none(),
            RingLeg::None | RingLeg::Asked | RingLeg::Refused => false,
        };
        self.changes.iter().filter(move |(_, c)| alone(c)).map(|(seq, c)| (*seq, c.told))
    }

    /// Try a disk that has refused writes again.
    pub(crate) fn retry(&mut self) -> Vec<DiskWrite> {
        self.held_back = false;
        self.start(0..u64::MAX)
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back
    }

    // --- reading ------------------------------------------------------------------------------------------------------

    /// What lies over the disk in a range: bytes whose disk write has not completed, ascending. What is not held is left out:
    /// nobody has been told of it.
    pub(crate) fn overlay(&self, range: &Range<u64>) -> Vec<(Range<u64>, Content)> {
        let mut out = Vec::new();
        for (part, waiting) in self.pending.cut(range) {
            if let Some(seq) = waiting {
                out.push((part.clone(), self.piece(seq, &part)));
                continue;
            }
            for (piece, id) in self.flying.cut(&part) {
                let Some(flying) = id.and_then(|id| self.writes.get(&id)) else { continue };
                for (r, seq) in &flying.parts {
                    let hit = r.start.max(piece.start)..r.end.min(piece.end);
                    if hit.start < hit.end && !matches!(self.changes[seq].content, Content::Unheld) {
                        out.push((hit.clone(), self.piece(*seq, &hit)));
                    }
                }
            }
        }
        out
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
