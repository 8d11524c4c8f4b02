//! What the label of the disk says of rings and lives, as the owner of the labels tells it.
//!
//! Never lets what somebody was told depend on a record that the label does not count.

use super::change::Refusals;
use super::{RedoDisk, State};
use crate::ledger::{RingLeg, Seq};
use crate::legs::{Place, Standing};
use crate::ranges::RangeMap;
use crate::ring::LIFE_SHIFT;
use device::sync::lock;
use futures_util::future::select;
use std::pin::pin;
use std::sync::atomic::Ordering;

/// How a wait for what makes a record superfluous goes on.
enum Wait {
    Over,
    InVain,
    ForDisk,
}

impl State {
    /// Whether everything that somebody was told is on flash is there without this ring, or on the disk.
    fn is_safe_without(&self, ring: usize) -> bool {
        let elsewhere = |(seq, leg): (Seq, RingLeg)| {
            self.legs.get(&seq).is_some_and(|legs| legs.is_safe_without(ring, leg, &self.standing))
        };
        self.ledger.on_flash_alone().all(elsewhere)
    }

    /// The same in a later life than this one.
    fn is_safe_without_life(&self, life: u64) -> bool {
        let later = |(seq, _): (Seq, RingLeg)| self.legs.get(&seq).is_some_and(|legs| legs.is_after(life));
        self.ledger.on_flash_alone().all(later)
    }
}

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
        self.give_up_stranded(&mut lock(&self.state), true);
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

    /// Wait until everything that somebody was told is on flash is there without this ring, or on the disk. False: the log has
    /// stopped, or the disk refuses, asked once more.
    pub async fn is_safe_without(&self, ring: usize) -> bool {
        self.until(|state| if state.is_safe_without(ring) { Wait::Over } else { Wait::ForDisk }).await
    }

    /// The label is about to be told that nothing counts on a ring: if that is safe, nobody is told anything from now on that depends on
    /// it, until [`RedoDisk::ring_is_void`] or [`RedoDisk::ring_stays`]. False: it is not safe any more.
    pub fn leaves_ring(&self, ring: usize) -> bool {
        let mut state = lock(&self.state);
        let safe = state.is_safe_without(ring);
        if safe {
            state.standing.leaves(ring);
        }
        safe
    }

    /// The label is not told that after all.
    pub fn ring_leaves_not(&self, ring: usize) {
        let standing = lock(&self.state).standing.all()[ring];
        self.ring_stands(ring, standing);
    }

    /// Wait until everything that somebody was told is on flash is there in a later life than this one, or on the disk. False:
    /// the log has stopped, the disk refuses, asked once more, or nothing is to be given to it.
    pub async fn is_safe_without_life(&self, life: u64) -> bool {
        self.until(|state| match () {
            () if state.ledger.is_paused() => Wait::InVain,
            () if state.is_safe_without_life(life) && !state.ledger.is_held_back() => Wait::Over,
            () => Wait::ForDisk,
        })
        .await
    }

    /// Whether the disk has refused a write and has not been asked since.
    #[must_use]
    pub fn disk_refuses(&self) -> bool {
        lock(&self.state).ledger.is_held_back()
    }

    /// The label is about to be told that nothing of a life counts: if that is safe, nobody is told anything from now on that depends
    /// on it, until [`RedoDisk::life_is_void`] or [`RedoDisk::life_stays`]. False: it is not safe any more.
    pub fn leaves_life(&self, life: u64) -> bool {
        let mut state = lock(&self.state);
        let safe = state.is_safe_without_life(life);
        if safe {
            state.standing.dies(life);
        }
        safe
    }

    /// Wait until something is so; false: it will not be, the disk refuses, asked once more, or the log has stopped.
    async fn until(&self, so: impl Fn(&State) -> Wait) -> bool {
        let mut refused = Refusals::since(self.now());
        loop {
            let ticket = self.changed.ticket();
            {
                let mut state = lock(&self.state);
                match so(&state) {
                    Wait::Over => return true,
                    Wait::InVain => return false,
                    Wait::ForDisk if self.refuses_write(&mut state, &mut refused) => return false,
                    // Asked again it may have been given nothing, and nothing would come of that: there is nothing any more.
                    Wait::ForDisk if matches!(so(&state), Wait::Over) => return true,
                    Wait::ForDisk => {}
                }
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
            self.look_at_stranded(&mut state);
        }
        self.changed.notify_all();
    }
}
