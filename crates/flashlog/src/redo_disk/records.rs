//! The records of changes in the rings: who is asked, how far each is, and what must be there but was not taken.
//!
//! Never forgets a record that replay may find before its release is durable.

use super::{IN_RING_SLACK, RedoDisk, State};
use crate::counters::Skip;
use crate::format::RecordKind;
use crate::ledger::{Change, Content, RingLeg, Seq};
use crate::legs::{Legs, Place, Standing};
use crate::log::COPIES;
use crate::mode::FlashTimes;
use crate::ranges::RangeMap;
use crate::ring::{RingClient, RingEvent, RingRecord};
use device::sync::lock;
use device::{Instant, SharedBufs};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl RedoDisk {
    /// How long flash takes: the slowest ring that a record goes to.
    pub(super) fn flash_times(&self) -> FlashTimes {
        let live = self.log.rings.iter().filter(|ring| !ring.has_failed());
        live.map(|ring| ring.times()).reduce(FlashTimes::slower).unwrap_or_default()
    }

    /// Give a change to the ring.
    pub(super) fn ask(&self, seq: Seq, durable: bool, must: bool) {
        let mut state = lock(&self.state);
        self.ask_locked(&mut state, seq, durable, must);
        self.pump(&mut state);
    }

    pub(super) fn ask_locked(&self, state: &mut State, seq: Seq, durable: bool, must: bool) {
        let Some(change) = state.ledger.change(seq).filter(|change| change.ring == RingLeg::None) else { return };
        let must = must || change.must_ring;
        let range = change.range.clone();
        let (kind, data) = match (state.ledger.record_of(seq), &change.content) {
            (Some(Content::Data(data)), _) => (RecordKind::Data, data),
            (Some(Content::Zeroes { may_unmap: false }), _) => (RecordKind::Zeroes, SharedBufs::new()),
            (Some(Content::Zeroes { may_unmap: true }), _) => (RecordKind::Unmapped, SharedBufs::new()),
            (None, Content::Unheld) => return,
            // The disk alone can have it: a newer change of the same bytes is there and nowhere else.
            (None, _) | (Some(Content::Unheld), _) => {
                state.legs.insert(seq, Legs { range, ..Legs::default() });
                return self.look_at_legs(state, seq);
            }
        };
        let over: Vec<usize> = if change.must_ring {
            (0..state.in_ring.len())
                .filter(|n| state.standing.counts(*n) && self.may_be_replayed_from(state, *n, &range))
                .collect()
        } else {
            Vec::new()
        };
        let legs = Legs { asked_at: self.now(), range: range.clone(), over: over.clone(), ..Legs::default() };
        let record =
            |client| RingRecord { seq, grid_disk: self.id, range: range.clone(), kind, data: data.clone(), client };
        state.legs.insert(seq, legs);
        let rings = self.log.rings_for(seq, Self::copies(state)).and_then(|mut rings| {
            for index in over {
                let ring = &self.log.rings[index];
                if !ring.has_failed() && rings.iter().all(|(other, _)| *other != index) {
                    rings.push((index, ring.clone()));
                }
            }
            let probe = record(self.arc() as Arc<dyn RingClient>);
            rings.iter().try_for_each(|(_, ring)| ring.would_take(&probe, must)).map(|()| rings)
        });
        for (index, ring) in rings.unwrap_or_default() {
            if ring.append(record(self.arc()), durable, must).is_ok()
                && let Some(legs) = state.legs.get_mut(&seq)
            {
                legs.rings.insert(index, crate::legs::Leg::default());
                let _ = state.in_ring[index].insert(range.clone(), Place::Asked(seq));
            }
        }
        self.look_at_legs(state, seq);
        self.forget_released(state);
    }

    /// How many rings a change has to be on: what a sync was told is durable survives the loss of one of them (I3).
    pub(super) fn copies(state: &State) -> usize {
        state.standing.all().iter().filter(|standing| **standing != Standing::Void).count().min(COPIES)
    }

    /// Tell the ledger how far a change is in the rings.
    pub(super) fn look_at_legs(&self, state: &mut State, seq: Seq) {
        let copies = Self::copies(state);
        let Some(legs) = state.legs.get(&seq) else { return };
        let mut rings = state.standing.all().iter().zip(&self.log.rings);
        let ring_failing = rings.any(|(standing, ring)| *standing == Standing::Counts && ring.has_failed());
        let leg = legs.leg(copies, ring_failing, &state.standing);
        let lies = !legs.rings.is_empty() || !legs.doubtful.is_empty();
        if !lies && leg == RingLeg::Refused {
            state.legs.remove(&seq);
        }
        let must = state.ledger.change(seq).is_some_and(|change| change.must_ring && change.ring != RingLeg::Refused);
        state.ledger.ring(seq, leg, lies);
        if leg == RingLeg::Refused && must {
            if !state.stranded.contains(&seq) {
                state.stranded.push(seq);
            }
            if !std::mem::replace(&mut state.watching, true) {
                self.watch_stranded();
            }
        }
    }

    /// Forget what is released: the maps stay as large as what is not.
    pub(super) fn forget_released(&self, state: &mut State) {
        if state.in_ring.iter().map(RangeMap::len).sum::<usize>() < 2 * state.in_ring_kept + IN_RING_SLACK {
            return;
        }
        for (ring, map) in state.in_ring.iter_mut().enumerate() {
            let tail = self.log.rings[ring].durable_tail();
            map.drop_where(|place| matches!(place, Place::Batch(number) if number < tail));
        }
        state.in_ring_kept = state.in_ring.iter().map(RangeMap::len).sum();
    }

    /// A write that has failed may lie on the disk over what a ring holds still: nobody can read there before the ring is rid of that.
    pub(super) fn watch_undone(&self, state: &mut State) {
        if !state.ledger.undone_by_replay().is_empty() && !std::mem::replace(&mut state.watching, true) {
            self.watch_stranded();
        }
    }

    /// Look again, whenever something is released for good, at what the ring did not take.
    pub(super) fn watch_stranded(&self) {
        let (me, begun) = (self.arc(), self.now());
        self.log.world.spawn.spawn(Box::pin(async move {
            let mut waiting = usize::MAX;
            loop {
                let ticket = me.changed.ticket();
                let released = me.log.changed.ticket();
                let (left, since) = {
                    let mut state = lock(&me.state);
                    me.look_at_stranded(&mut state);
                    // A disk that refuses may never take any of them. A label that refuses may never make replay harmless to those that
                    // were acknowledged; the others may find a ring yet that is only busy.
                    let held_back = state.ledger.is_held_back();
                    if held_back || me.label_refuses.load(Ordering::Acquire) {
                        me.give_up_stranded(&mut state, held_back);
                    }
                    let undone = state.ledger.undone_by_replay().len();
                    let left = state.stranded.len() + undone;
                    state.watching &= left > 0;
                    // Who cannot read has waited long enough.
                    (left, if undone > 0 { Instant::default() } else { begun })
                };
                if std::mem::replace(&mut waiting, left) != left {
                    me.changed.notify_all();
                }
                if left == 0 || me.stopping.load(Ordering::Acquire) {
                    return;
                }
                me.wait_for_releases(ticket, released, since).await;
            }
        }));
    }

    /// Give up changes that have to be in a ring and are in none: who waits for one is told that it has failed, and syncs of one that was
    /// acknowledged fail while it stays bound. Without `all` acknowledged changes alone.
    pub(super) fn give_up_stranded(&self, state: &mut State, all: bool) {
        let mut stranded = std::mem::take(&mut state.stranded);
        stranded.retain(|&seq| {
            let of_those = all || state.ledger.change(seq).is_some_and(Change::is_acked);
            if of_those && state.ledger.is_bound_to_ring(seq) {
                state.ledger.cannot_be_safe(seq);
            }
            state.ledger.is_bound_to_ring(seq)
        });
        state.stranded = stranded;
        self.pump(state);
    }

    /// Changes that had to be in a ring need not be where nothing can undo them any more, and what has failed there can be read.
    pub(super) fn look_at_stranded(&self, state: &mut State) {
        for piece in state.ledger.undone_by_replay() {
            if !self.may_be_replayed(state, &piece) {
                state.ledger.not_undone(&piece);
            }
        }
        for (seq, range) in state.ledger.bound_to_ring() {
            if !self.may_be_replayed(state, &range) {
                state.ledger.need_not_ring(seq);
            }
        }
        let State { stranded, ledger, .. } = state;
        stranded.retain(|&seq| ledger.is_bound_to_ring(seq));
        self.pump(state);
    }

    /// The disk has a change durably: its records may go, now or when they have arrived.
    pub(super) fn release(&self, state: &mut State, seq: Seq) {
        let Some(legs) = state.legs.get_mut(&seq) else { return };
        let rings = &self.log.rings;
        legs.rings.retain(|ring, leg| match leg.batch {
            Some(number) => {
                rings[*ring].release(number);
                false
            }
            None => true,
        });
        if legs.rings.is_empty() {
            state.legs.remove(&seq);
        }
    }

    pub(super) fn hear(&self, state: &mut State, seq: Seq, ring: usize, event: RingEvent) {
        let gone = state.ledger.change(seq).is_none();
        let copies = Self::copies(state);
        let Some(legs) = state.legs.get_mut(&seq) else { return };
        let lies = |batch: u64| move |place| if place == Place::Asked(seq) { Place::Batch(batch) } else { place };
        match event {
            RingEvent::Written(number) => {
                if let Some(leg) = legs.rings.get_mut(&ring) {
                    leg.batch = Some(number);
                }
                state.in_ring[ring].update(&legs.range, lies(number));
                if gone {
                    // The disk was quicker.
                    self.release(state, seq);
                    return;
                }
            }
            RingEvent::Durable => {
                if let Some(leg) = legs.rings.get_mut(&ring) {
                    leg.durable = true;
                }
                // As its release would have it: the disk was quicker.
                let all = legs.leg(copies, false, &state.standing) == RingLeg::Durable;
                if all && state.ledger.change(seq).is_some_and(|change| change.is_on_disk()) {
                    let late = self.log.is_outlier(self.now().ns_since(legs.asked_at));
                    self.counters.flash_only_outliers.add(u64::from(late));
                }
            }
            RingEvent::Refused(why) => {
                // What was written when the flash failed, nobody knows.
                let batch = if why == Skip::NoFlashDisk { u64::MAX } else { self.log.rings[ring].next_number() };
                state.in_ring[ring].update(&legs.range, lies(batch));
                if why == Skip::NoFlashDisk && state.standing.counts(ring) {
                    legs.doubtful.push(ring);
                }
                legs.rings.remove(&ring);
            }
        }
        self.look_at_legs(state, seq);
    }
}
