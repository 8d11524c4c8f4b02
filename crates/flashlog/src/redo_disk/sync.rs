//! Syncs: when the legs begin, who was first, and what that says of outliers.
//!
//! Never waits for flash longer than the disk takes.

use super::{DISK_EVERY, RedoDisk, State, WATCHED_MAX, Watched};
use crate::counters::Skip;
use crate::errand::Errand;
use crate::ledger::{Seq, SyncId};
use crate::mode::{self, DiskLeg, Mode, PROBE_EVERY};
use crate::sabotage::Sabotage;
use device::sync::{lock, one_shot};
use device::{FailKind, Instant, Outcome};
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A sync that waits.
pub(super) struct SyncBegun {
    pub(super) sync: SyncId,
    /// The newest change there was.
    pub(super) last: Seq,
    pub(super) at: Instant,
    /// When the disk's leg began, if it did.
    pub(super) disk_at: Option<Instant>,
    pub(super) leg: DiskLeg,
}

impl RedoDisk {
    pub(super) fn begin_sync(
        &self,
        state: &mut State,
        only: Option<Seq>,
    ) -> Option<(SyncId, device::sync::Receiver<Option<bool>>)> {
        let sync = state.ledger.begin_sync(only)?;
        let (sender, receiver) = one_shot();
        state.syncs.insert(sync, sender);
        Some((sync, receiver))
    }

    pub(super) async fn sync(self: Arc<Self>, errand: Errand) -> Outcome {
        let begun = self.now();
        let (sync, skip, by_flash, last) = {
            let mut state = lock(&self.state);
            state.habit.synced();
            let skip = state.ledger.has_unheld();
            let sync = self.begin_sync(&mut state, None);
            self.pump(&mut state);
            (sync, skip, state.ledger.has_flash_alone(), state.ledger.last())
        };
        let skip = self.in_force().1.or(errand.past).or(skip.then_some(Skip::Large));
        let leg = if skip.is_some() { DiskLeg::Now } else { self.disk_leg(&lock(&self.state)) };
        let leg = if leg != DiskLeg::Now && self.log.is_half_full() { DiskLeg::Now } else { leg };
        let Some((sync, answer)) = sync else {
            // What its disk would have had to flush, flash took while it was being written.
            if by_flash && !self.write_through {
                let asked = self.begin_disk_leg(leg, begun);
                if let Some(verdict) = &errand.verdict {
                    verdict.tell(Some(true));
                }
                // A write that the plan keeps off flash may have had to be in the ring all the same, for replay.
                self.count_sync((begun, asked), last, Some(true), skip, skip.is_none());
            }
            return Outcome::Done;
        };
        let disk_at = self.begin_disk_leg(leg, begun);
        self.finish_sync(SyncBegun { sync, last, at: begun, disk_at, leg }, answer, skip, &errand).await
    }

    /// When the disk's leg of a sync that flash may take begins.
    pub(super) fn disk_leg(&self, state: &State) -> DiskLeg {
        mode::disk_leg(self.in_force().0, &state.disk_syncs, &state.flash_waits, || self.flash_times())
    }

    /// Flash serves all who wait: the disk is flushed when it is asked for everything.
    pub(super) fn ring_serves(&self, state: &State) -> bool {
        state.disk_waits == 0 && self.disk_leg(state) != DiskLeg::Now
    }

    /// Begin the disk's leg of a sync that has `begun`, or see that it begins before long. When it began, if it did.
    fn begin_disk_leg(&self, leg: DiskLeg, begun: Instant) -> Option<Instant> {
        match leg {
            DiskLeg::Now => self.want_on_disk(),
            DiskLeg::Late(_) if self.is_disk_due() => self.want_together(),
            DiskLeg::Late(_) | DiskLeg::Background => return None,
        }
        Some(begun)
    }

    /// Whether the disk was last asked long enough ago to be asked at once, by the caller. If not, it will be then.
    fn is_disk_due(&self) -> bool {
        let mut pause = {
            let mut state = lock(&self.state);
            let pause = self.until_due(&mut state);
            if pause.is_zero() || std::mem::replace(&mut state.pacing, true) {
                return pause.is_zero();
            }
            pause
        };
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move {
            while !pause.is_zero() {
                me.log.world.clock.sleep(pause).await;
                let mut state = lock(&me.state);
                // A sync may have asked the disk meanwhile.
                pause = me.until_due(&mut state);
                state.pacing = !pause.is_zero();
            }
            if !me.stopping.load(Ordering::Acquire) {
                me.want_together();
            }
        }));
        false
    }

    /// How long until the disk is to be asked again; where that is now, whoever asks is the one who does.
    fn until_due(&self, state: &mut State) -> Duration {
        let now = self.now();
        let pause = DISK_EVERY.saturating_sub(Duration::from_nanos(now.ns_since(state.disk_wanted)));
        if pause.is_zero() {
            state.disk_wanted = now;
        }
        pause
    }

    /// The disk's leg of syncs that somebody waits for: everything up to now is flushed, what is still being written as soon as it has
    /// been.
    fn want_on_disk(&self) {
        {
            let mut state = lock(&self.state);
            state.ledger.want_on_disk();
            self.disk_is_asked(&mut state);
        }
        self.kick_flush();
    }

    /// The disk's leg of syncs that flash answers: one flush, once everything up to now has been written.
    fn want_together(&self) {
        let due = {
            let mut state = lock(&self.state);
            self.disk_is_asked(&mut state);
            state.ledger.want_together()
        };
        if due {
            self.kick_flush();
        }
    }

    /// The disk legs of all syncs that have not begun do.
    fn disk_is_asked(&self, state: &mut State) {
        state.disk_wanted = self.now();
        let later = std::mem::take(&mut state.watched_later);
        for watched in state.watched.iter_mut().rev().filter(|watched| watched.begun.is_none()).take(later) {
            watched.begun = Some(state.disk_wanted);
        }
    }

    /// Wait for a sync, giving it to the ring in time, and to the disk when flash is late.
    pub(super) async fn finish_sync(
        self: &Arc<Self>,
        begun: SyncBegun,
        mut answer: device::sync::Receiver<Option<bool>>,
        skip: Option<Skip>,
        errand: &Errand,
    ) -> Outcome {
        let mode = self.in_force().0;
        let SyncBegun { sync, last, at, mut disk_at, leg } = begun;
        let skip = skip.or_else(|| self.log.rings.iter().all(|ring| ring.has_failed()).then_some(Skip::NoFlashDisk));
        let mut waits_for_disk = skip.is_some() || leg == DiskLeg::Now;
        let delay = {
            let mut state = lock(&self.state);
            state.disk_waits += usize::from(waits_for_disk);
            // What has begun earlier and takes too long already says how long this would take.
            let at_once = matches!(leg, DiskLeg::Late(_)) || self.is_disk_slow(&state);
            let (disk, per_mille) = (&state.disk_syncs, self.log.config.hedge_per_mille);
            if at_once { Duration::ZERO } else { mode::sync_delay(mode, disk, || self.flash_times(), per_mille) }
        };
        let probe = self.syncs_begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY);
        let delay = if probe && mode == Mode::Auto { Duration::ZERO } else { delay };
        let mut asked = Ok(false);
        let mut asked_at = at;
        let mut answered = None;
        if skip.is_none() {
            if !delay.is_zero() {
                answered = self.within(delay, &mut answer).await;
            }
            if answered.is_none() {
                asked_at = self.now();
                asked = self.ask_for(sync);
            }
            if let (DiskLeg::Late(after), Ok(true), None) = (leg, asked, answered) {
                answered = self.within(after, &mut answer).await;
            }
        }
        // Flash is late or does not take it, and the disk has not been asked.
        let late = skip.is_none() && answered.is_none() && matches!(leg, DiskLeg::Late(_));
        if late || skip.is_some() && leg != DiskLeg::Now {
            lock(&self.state).disk_waits += usize::from(!waits_for_disk);
            waits_for_disk = true;
            disk_at.get_or_insert(self.now());
            self.want_on_disk();
        }
        let answered = match answered {
            Some(answered) => answered,
            None => answer.await,
        };
        {
            let mut state = lock(&self.state);
            state.disk_waits -= usize::from(waits_for_disk);
            if asked == Ok(true) && answered.flatten() == Some(true) {
                let waited_ns = self.now().ns_since(asked_at);
                state.flash_waits.add(waited_ns);
            }
        }
        let skip = skip.or(asked.err());
        if let Some(verdict) = &errand.verdict {
            verdict.tell(answered.flatten());
        }
        self.count_sync((at, disk_at), last, answered.flatten(), skip, asked == Ok(true));
        match answered.flatten() {
            Some(_) => Outcome::Done,
            None => Outcome::Failed(FailKind::Media),
        }
    }

    /// The answer of a sync, if it comes within so long.
    async fn within(
        &self,
        time: Duration,
        answer: &mut device::sync::Receiver<Option<bool>>,
    ) -> Option<Option<Option<bool>>> {
        match select(answer, self.log.world.clock.sleep(time)).await {
            Either::Left((answered, _)) => Some(answered),
            Either::Right(((), _)) => None,
        }
    }

    /// Give the ring what a sync waits for. Whether it got any of it.
    pub(super) fn ask_for(&self, sync: SyncId) -> Result<bool, Skip> {
        let asked = self.try_ask_for(sync);
        if asked.is_err() {
            self.kick_flush();
        }
        asked
    }

    pub(super) fn try_ask_for(&self, sync: SyncId) -> Result<bool, Skip> {
        let mut state = lock(&self.state);
        if !state.ledger.ring_can_help(sync) {
            return Err(Skip::Large);
        }
        let unasked = state.ledger.unasked(sync);
        let mut any = false;
        for seq in &unasked {
            self.ask_locked(&mut state, *seq, true, false);
        }
        for seq in state.ledger.waited_for(sync) {
            any |= state.legs.contains_key(&seq);
        }
        self.pump(&mut state);
        drop(state);
        if any {
            self.log.rings.iter().for_each(|ring| ring.want_durable());
            if self.sabotaged(Sabotage::AckBeforeDurable) {
                self.pretend(sync);
            }
            Ok(true)
        } else {
            // The disk alone has it by now, or the ring took nothing.
            if unasked.is_empty() { Ok(false) } else { Err(Skip::Busy) }
        }
    }

    pub(super) fn pretend(&self, sync: SyncId) {
        if let Some(sender) = lock(&self.state).syncs.remove(&sync) {
            sender.send(Some(true));
        }
    }

    /// Count a sync that has begun, and its disk leg with it, if that has.
    fn count_sync(
        &self,
        (begun, disk_begun): (Instant, Option<Instant>),
        last: Seq,
        answered: Option<bool>,
        skip: Option<Skip>,
        asked: bool,
    ) {
        let took_ns = self.now().ns_since(begun);
        let slow = self.log.is_outlier(took_ns);
        let counters = &self.counters;
        if answered.is_some() {
            counters.redo_writes.add(1);
            counters.redo_time_us.add(took_ns / 1000);
        }
        if asked {
            counters.flash_writes.add(1);
        }
        match (answered, skip) {
            (None, _) => counters.failed.add(1),
            (Some(_), Some(why)) => {
                counters.skip(why);
                if slow {
                    counters.skip_outliers.add(1);
                }
            }
            (Some(true), None) => counters.flash_first.add(1),
            (Some(false), None) => counters.disk_first.add(1),
        }
        if slow && skip.is_none() && answered.is_some() {
            counters.actual_outliers.add(1);
        }
        let mut state = lock(&self.state);
        // In mode flash nobody asks the disk before the background does: what it takes says nothing of it.
        if state.watched.len() < WATCHED_MAX && self.in_force().0 != Mode::Flash {
            let meanwhile = || state.ledger.is_wanted(last).then(|| begun.max(state.disk_wanted));
            let disk_begun = disk_begun.or_else(meanwhile);
            let saved = answered == Some(true) && !slow;
            state.watched_later += usize::from(disk_begun.is_none());
            state.watched.push_back(Watched { last, begun: disk_begun, saved });
        }
        self.measure(&mut state);
    }

    /// Whether something that the disk has not answered takes longer than a sync does as a rule.
    pub(super) fn is_disk_slow(&self, state: &State) -> bool {
        let oldest = state.writing.values().next().copied().into_iter().chain(state.flush_begun).min();
        let usual = state.disk_syncs.quantile(self.log.config.hedge_per_mille);
        matches!((oldest, usual), (Some(begun), Some(ns)) if self.now().ns_since(begun) > ns)
    }

    /// Syncs whose every change the disk has by now: so long has the disk taken. Of those that end together the first counts for
    /// all: a stall is one event, however many syncs flash has served meanwhile.
    pub(super) fn measure(&self, state: &mut State) {
        let first_open = state.ledger.first_off_disk().unwrap_or(Seq::MAX);
        let now = self.now();
        let mut counted = false;
        while state.watched.front().is_some_and(|watched| watched.last < first_open) {
            let Some(watched) = state.watched.pop_front() else { return };
            // Flushed before it was asked: by somebody else's doing.
            let Some(begun) = watched.begun else {
                state.watched_later -= 1;
                continue;
            };
            let took_ns = now.ns_since(begun);
            if !std::mem::replace(&mut counted, true) {
                state.disk_syncs.add(took_ns);
            }
            if watched.saved && self.log.is_outlier(took_ns) {
                self.counters.prevented_outliers.add(1);
            }
        }
    }
}
