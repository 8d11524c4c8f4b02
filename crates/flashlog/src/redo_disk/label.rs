//! What the label of the disk says of rings and lives, as the owner of the labels tells it.
//!
//! Never lets what somebody was told depend on a record that the label does not count.

use super::{RedoDisk, State};
use crate::ledger::{RingLeg, Seq};
use crate::legs::{Place, Standing};
use crate::ranges::RangeMap;
use crate::ring::LIFE_SHIFT;
use device::sync::lock;
use futures_util::future::select;
use std::pin::pin;
use std::sync::atomic::Ordering;

impl RedoDisk {
    /// Nothing of a ring is ever replayed to this disk: the disk's label says so.
    pub fn ring_is_void(&self, ring: usize) {
        self.ring_stands(ring, Standing::Void);
    }

    /// A ring has failed, and the disk's label cannot be told: whoever waits for that is answered.
    pub fn ring_stays(&self, ring: usize) {
        self.ring_stands(ring, Standing::Refused);
        self.label_refuses();
    }

    /// The disk's label cannot be told that nothing in the rings counts: whoever waits for that is answered.
    pub fn label_refuses(&self) {
        self.label_refuses.store(true, Ordering::Release);
        {
            let mut state = lock(&self.state);
            for seq in std::mem::take(&mut state.stranded) {
                if state.ledger.change(seq).is_some_and(|change| change.must_ring) {
                    state.ledger.cannot_be_safe(seq);
                }
            }
            self.pump(&mut state);
        }
        self.changed.notify_all();
    }

    pub(super) fn ring_stands(&self, ring: usize, standing: Standing) {
        if standing == Standing::Void {
            self.label_refuses.store(false, Ordering::Release);
        }
        {
            let mut state = lock(&self.state);
            state.standing.set(ring, standing);
            if standing == Standing::Void {
                state.in_ring[ring] = RangeMap::new();
                state.legs.values_mut().for_each(|legs| {
                    legs.rings.remove(&ring);
                    legs.doubtful.retain(|doubtful| *doubtful != ring);
                });
            }
            self.look_at_all_legs(&mut state);
            self.look_at_stranded(&mut state);
        }
        self.changed.notify_all();
    }

    fn look_at_all_legs(&self, state: &mut State) {
        let all: Vec<Seq> = state.legs.keys().copied().collect();
        all.into_iter().for_each(|seq| self.look_at_legs(state, seq));
    }

    /// Wait until everything that somebody was told is on flash is there without this ring, or on the disk. From then on nobody
    /// is told anything that depends on it, until [`RedoDisk::ring_is_void`] or [`RedoDisk::ring_stays`]. False: the log has
    /// stopped, or the disk refuses.
    pub async fn is_safe_without(&self, ring: usize) -> bool {
        let mut safe = false;
        let ended = self.until(|state| {
            let elsewhere = |(seq, leg): (Seq, RingLeg)| {
                state.legs.get(&seq).is_some_and(|legs| legs.is_safe_without(ring, leg, &state.standing))
            };
            safe = state.ledger.on_flash_alone().all(elsewhere);
            if safe {
                state.standing.leaves(ring);
            }
            safe || state.ledger.is_held_back()
        });
        ended.await && safe
    }

    /// Wait until everything that somebody was told is on flash is there in a later life than this one, or on the disk. From then on
    /// nobody is told anything that depends on it, until [`RedoDisk::life_is_void`] or [`RedoDisk::life_stays`]. False: the log
    /// has stopped, or (unless `patient`) the disk refuses.
    pub async fn is_safe_without_life(&self, life: u64, patient: bool) -> bool {
        let mut safe = false;
        let ended = self.until(|state| {
            let refused = !patient && (state.ledger.is_held_back() || state.ledger.is_paused());
            let later = |(seq, _): (Seq, RingLeg)| state.legs.get(&seq).is_some_and(|legs| legs.is_after(life));
            safe = !refused && state.ledger.on_flash_alone().all(later);
            if safe {
                state.standing.dies(life);
            }
            safe || refused
        });
        ended.await && safe
    }

    /// Wait until something is so; false: the log has stopped.
    pub(super) async fn until(&self, mut is_so: impl FnMut(&mut State) -> bool) -> bool {
        loop {
            let ticket = self.changed.ticket();
            if is_so(&mut lock(&self.state)) {
                return true;
            }
            if self.stopping.load(Ordering::Acquire) {
                return false;
            }
            match self.nudge_flush() {
                // A device that is gone refuses at once.
                Some(pause) => {
                    select(pin!(self.changed.wait(ticket)), self.log.world.clock.sleep(pause)).await;
                }
                None => self.changed.wait(ticket).await,
            }
        }
    }

    /// Nothing of this life or an earlier one is ever replayed to this disk: the disk's label says so.
    pub fn life_is_void(&self, life: u64) {
        self.label_refuses.store(false, Ordering::Release);
        {
            let mut state = lock(&self.state);
            for map in &mut state.in_ring {
                map.drop_where(|place| matches!(place, Place::Batch(number) if number >> LIFE_SHIFT <= life));
            }
            state.standing.has_died(life, true);
            self.look_at_all_legs(&mut state);
            self.look_at_stranded(&mut state);
        }
        self.changed.notify_all();
    }

    /// The disk's label says nothing of a life after all.
    pub fn life_stays(&self, life: u64) {
        {
            let mut state = lock(&self.state);
            state.standing.has_died(life, false);
            self.look_at_all_legs(&mut state);
            self.pump(&mut state);
        }
        self.changed.notify_all();
    }
}
