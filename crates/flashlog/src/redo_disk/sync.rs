//! Syncs: when the flash leg begins, who was first, and what that says of outliers.
//!
//! Never waits for flash longer than the disk takes.

use super::{RedoDisk, State, WATCHED_MAX, Watched};
use crate::counters::Skip;
use crate::errand::Errand;
use crate::ledger::{Seq, SyncId};
use crate::mode::{self, Mode, PROBE_EVERY};
use crate::sabotage::Sabotage;
use device::sync::{lock, one_shot};
use device::{FailKind, Instant, Outcome};
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

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
            let skip = state.ledger.has_unheld();
            let sync = self.begin_sync(&mut state, None);
            self.pump(&mut state);
            (sync, skip, state.ledger.has_flash_alone(), state.ledger.last())
        };
        let (mode, off) = self.in_force();
        let Some((sync, answer)) = sync else {
            // What its disk would have had to flush, flash took while it was being written.
            if by_flash && !self.write_through {
                if mode != Mode::Flash {
                    self.want_on_disk();
                }
                if let Some(verdict) = &errand.verdict {
                    verdict.tell(Some(true));
                }
                self.count_sync(begun, last, Some(true), None, true);
            }
            return Outcome::Done;
        };
        if mode != Mode::Flash || skip || errand.past.is_some() || self.log.is_half_full() {
            self.want_on_disk();
        }
        let skip = off.or(errand.past).or(skip.then_some(Skip::Large));
        self.finish_sync(sync, answer, begun, skip, &errand).await
    }

    /// The disk's leg of a sync: everything up to now is flushed, what is still being written as soon as it has been.
    fn want_on_disk(&self) {
        lock(&self.state).ledger.want_on_disk();
        self.kick_flush();
    }

    /// Wait for a sync, giving it to the ring in time.
    pub(super) async fn finish_sync(
        self: &Arc<Self>,
        sync: SyncId,
        answer: device::sync::Receiver<Option<bool>>,
        begun: Instant,
        skip: Option<Skip>,
        errand: &Errand,
    ) -> Outcome {
        let mode = self.in_force().0;
        let skip = skip.or_else(|| self.log.rings.iter().all(|ring| ring.has_failed()).then_some(Skip::NoFlashDisk));
        let (last, delay) = {
            let state = lock(&self.state);
            let delay =
                mode::sync_delay(mode, &state.disk_syncs, || self.flash_times(), self.log.config.hedge_per_mille);
            // What has begun earlier and takes too long already says how long this would take.
            (state.ledger.last(), if self.is_disk_slow(&state) { Duration::ZERO } else { delay })
        };
        let probe = self.syncs_begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY);
        let delay = if probe && mode == Mode::Auto { Duration::ZERO } else { delay };
        let mut asked = Ok(false);
        let answered = if skip.is_some() {
            answer.await
        } else if delay.is_zero() {
            asked = self.ask_for(sync);
            answer.await
        } else {
            match select(answer, self.log.world.clock.sleep(delay)).await {
                Either::Left((answered, _)) => answered,
                Either::Right(((), answer)) => {
                    asked = self.ask_for(sync);
                    answer.await
                }
            }
        };
        let skip = skip.or(asked.err());
        if let Some(verdict) = &errand.verdict {
            verdict.tell(answered.flatten());
        }
        self.count_sync(begun, last, answered.flatten(), skip, asked == Ok(true));
        match answered.flatten() {
            Some(_) => Outcome::Done,
            None => Outcome::Failed(FailKind::Media),
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

    pub(super) fn count_sync(
        &self,
        begun: Instant,
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
            state.watched.push_back(Watched { last, begun, saved: answered == Some(true) && !slow });
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
            let took_ns = now.ns_since(watched.begun);
            if !std::mem::replace(&mut counted, true) {
                state.disk_syncs.add(took_ns);
            }
            if watched.saved && self.log.is_outlier(took_ns) {
                self.counters.prevented_outliers.add(1);
            }
        }
    }
}
