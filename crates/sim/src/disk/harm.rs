//! What a test does to a device: stall it, take it away, change its medium, break its sectors.

use super::faults::{Armed, FaultAtlas, FaultKind};
use super::medium::Medium;
use super::outcome::tell;
use super::{PART_BITS, PART_RELEASE, SECTOR_BYTES, STRUCK, SimDevice, Snapshot, Stall, State};
use device::sync::lock;
use device::{FailKind, Verb};
use std::ops::Range;
use std::time::Duration;

impl SimDevice {
    /// Hold back every completion of `verbs` (all of them when empty) until [`SimDevice::release`], or for `time`.
    /// Writes may or may not take effect meanwhile. A second stall takes the place of the first.
    pub fn stall(&self, verbs: &[Verb], time: Option<Duration>) {
        self.release();
        let Some(me) = self.me.upgrade() else { return };
        let mut state = lock(&self.state);
        let number = state.next_op;
        state.next_op += 1;
        let verbs = if verbs.is_empty() { Verb::ALL.to_vec() } else { verbs.to_vec() };
        let holds_effects = state.prng.chance(1, 2);
        state.stall = Some(Stall { number, verbs, holds_effects, held: Vec::new() });
        self.situations.hit("disk: stalled");
        self.trace.event("stall", [self.id, number, 0, 0]);
        drop(state);
        if let Some(time) = time {
            let at = self.handle.now().after(time);
            self.handle.schedule(at, me, number << PART_BITS | PART_RELEASE);
        }
    }

    /// End a stall: what was held back comes soon, in any order.
    pub fn release(&self) {
        let mut state = lock(&self.state);
        self.release_locked(&mut state);
    }

    pub(super) fn release_locked(&self, state: &mut State) {
        let (Some(stall), Some(me)) = (state.stall.take(), self.me.upgrade()) else { return };
        self.trace.event("release", [self.id, stall.held.len() as u64, 0, 0]);
        let now = self.handle.now();
        for token in stall.held {
            let at = now.after(Duration::from_nanos(state.prng.below(1_000_000)));
            self.handle.schedule(at, me.clone(), token);
        }
    }

    /// The device is gone: everything under way and everything submitted fails with [`device::FailKind::Gone`] (or is
    /// unknown). Its content stays as it is for [`SimDevice::reappear`].
    pub fn vanish(&self) {
        let mut state = lock(&self.state);
        state.gone = true;
        self.situations.hit("disk: vanished");
        self.trace.event("vanish", [self.id, 0, 0, 0]);
        let told = self.end_all(&mut state);
        drop(state);
        tell(told);
    }

    /// The device is back with what it held, its volatile cache included.
    pub fn reappear(&self) {
        lock(&self.state).gone = false;
        self.trace.event("reappear", [self.id, 0, 0, 0]);
    }

    /// Whether it is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        lock(&self.state).gone
    }

    /// A copy of what reads see now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let state = lock(&self.state);
        Snapshot { medium: state.medium.snapshot(), size_bytes: state.geometry.size_bytes }
    }

    /// Put another medium in: stale content (an older snapshot of this device) or a foreign one. Everything under way
    /// ends as in [`SimDevice::vanish`] and reaches the old medium at most.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.replace(snapshot.medium.clone(), "restore");
    }

    /// Put a blank medium in.
    pub fn blank(&self) {
        self.replace(Medium::default(), "blank");
    }

    /// Two devices change places with their content.
    pub fn swap(a: &SimDevice, b: &SimDevice) {
        let (of_a, of_b) = (a.snapshot(), b.snapshot());
        a.replace(of_b.medium, "swap");
        b.replace(of_a.medium, "swap");
    }

    fn replace(&self, medium: Medium, what: &'static str) {
        let mut state = lock(&self.state);
        self.trace.event(what, [self.id, 0, 0, 0]);
        let told = self.end_all(&mut state);
        state.medium = medium;
        drop(state);
        tell(told);
    }

    /// Change which faults may strike, from now on: the liveness phase of a run switches them off.
    pub fn set_atlas(&self, atlas: FaultAtlas) {
        let mut state = lock(&self.state);
        state.atlas = atlas;
        state.armed.clear();
    }

    /// Let a fault strike the next requests that match. False, and nothing happens, when the atlas forbids it.
    pub fn arm(&self, armed: Armed) -> bool {
        let mut state = lock(&self.state);
        let permitted = state.atlas.zone(armed.kind, &armed.range).is_some();
        if permitted {
            self.trace.event("arm", [self.id, armed.kind as u64, armed.range.start, armed.range.end]);
            state.armed.push(armed);
        }
        permitted
    }

    /// No request fails like this any more by a fault that was armed.
    pub fn disarm(&self, fail: FailKind) {
        lock(&self.state).armed.retain(|armed| armed.fail != fail);
    }

    /// Rot one sector of `range` (bytes, whole sectors). False when the atlas forbids it.
    pub fn rot(&self, range: Range<u64>) -> bool {
        self.damage(FaultKind::Rot, &range)
    }

    /// Make one sector of `range` (bytes, whole sectors) unreadable. False when the atlas forbids it.
    pub fn make_unreadable(&self, range: Range<u64>) -> bool {
        self.damage(FaultKind::Unreadable, &range)
    }

    fn damage(&self, kind: FaultKind, range: &Range<u64>) -> bool {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let permitted = !range.is_empty() && state.atlas.zone(kind, range).is_some();
        if permitted {
            self.situations.hit(STRUCK[kind as usize]);
            self.trace.event(STRUCK[kind as usize], [self.id, range.start, range.end, 0]);
            state.damage(kind, range);
        }
        permitted
    }

    /// Take every fault off the medium in `range`: lost writes are found, rot and unreadable sectors healed.
    pub fn repair(&self, range: Range<u64>) {
        let sectors = range.start / SECTOR_BYTES as u64..range.end.div_ceil(SECTOR_BYTES as u64);
        lock(&self.state).medium.repair(sectors);
    }

    /// Sectors that do not hold what they should.
    #[must_use]
    pub fn faulty_sectors(&self) -> usize {
        lock(&self.state).medium.wrong_sectors()
    }
}
