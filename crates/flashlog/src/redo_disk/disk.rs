//! The disk leg: writes, flushes, what is done when the disk refuses, and the end of it all.
//!
//! Never has two flushes in flight; never lets a flush count for what was not complete when it was issued.

use super::change::Refusals;
use super::{RETRY_AFTER, RedoDisk, SETTLE_AFTER, State};
use crate::format::RECORD_DATA_BYTES_MAX;
use crate::ledger::{Content, DiskWrite, Ledger, Seq};
use crate::sabotage::Sabotage;
use device::sync::lock;
use device::{Buf, FailKind, Outcome, SharedBufs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl RedoDisk {
    /// Begin disk writes; the state is locked.
    pub(super) fn issue(&self, state: &mut State, writes: Vec<DiskWrite>) {
        let now = self.now();
        for write in writes {
            state.writing.insert(write.id, now);
            let me = self.arc();
            self.log.world.spawn.spawn(Box::pin(async move { me.write_disk(write).await }));
        }
    }

    pub(super) async fn write_disk(self: Arc<Self>, write: DiskWrite) {
        let begun = self.now();
        let len = write.range.end - write.range.start;
        self.counters.disk_bytes.add(len);
        let outcome = match write.content {
            Content::Data(data) => self.disk.write(write.range.start, data, write.fua).await.outcome,
            Content::Zeroes { may_unmap } => self.zero_disk(&write.range, write.fua, may_unmap).await,
            Content::Unheld => Outcome::Failed(FailKind::Invalid),
        };
        let good = outcome == Outcome::Done;
        if !good {
            self.counters.disk_errors.add(1);
        }
        {
            let mut state = lock(&self.state);
            state.writing.remove(&write.id);
            // One after another: what a stall holds up counts once, however many writes that are.
            if begun >= state.write_counted {
                let now = self.now();
                state.disk_writes.add(now.ns_since(begun));
                state.write_counted = now;
            }
            let more = state.ledger.disk_wrote(write.id, good);
            self.issue(&mut state, more);
            self.pump(&mut state);
            self.measure(&mut state);
            if state.ledger.is_held_back() {
                self.retry_later(&mut state);
            }
        }
        self.changed.notify_all();
        let wanted = {
            let mut state = lock(&self.state);
            state.ledger.is_together() || state.ledger.flush_wanted(|| self.ring_serves(&state))
        };
        if wanted {
            self.kick_flush();
        }
    }

    pub(super) async fn zero_disk(&self, range: &Range<u64>, fua: bool, may_unmap: bool) -> Outcome {
        let (offset, len) = (range.start, range.end - range.start);
        match self.disk.write_zeroes(offset, len, fua, may_unmap).await.outcome {
            Outcome::Failed(FailKind::Unsupported) => {}
            outcome => return outcome,
        }
        let mut done = 0;
        while done < len {
            let n = (len - done).min(RECORD_DATA_BYTES_MAX as u64);
            let data: SharedBufs = Buf::zeroed(n as usize).freeze().into();
            let outcome = self.disk.write(offset + done, data, fua).await.outcome;
            if outcome != Outcome::Done {
                return outcome;
            }
            done += n;
        }
        Outcome::Done
    }

    pub(super) fn retry_later(&self, state: &mut State) {
        if std::mem::replace(&mut state.retrying, true) {
            return;
        }
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move {
            me.log.world.clock.sleep(RETRY_AFTER).await;
            let mut state = lock(&me.state);
            state.retrying = false;
            if !me.stopping.load(Ordering::Acquire) {
                let writes = state.ledger.retry();
                me.issue(&mut state, writes);
                me.pump(&mut state);
            }
        }));
    }

    /// Flush the disk, unless a flush is under way: then once more after it, if something waits for that.
    pub(super) fn kick_flush(&self) {
        {
            let mut state = lock(&self.state);
            if state.ledger.has_bound_to_ring() {
                // The disk alone does not make them durable: the ring does, or what it releases.
                self.log.rings.iter().for_each(|ring| {
                    ring.want_durable();
                    ring.want_release();
                });
            }
            if !state.ledger.has_unflushed() || std::mem::replace(&mut state.flushing, true) {
                return;
            }
        }
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move { me.flush_while_wanted().await }));
    }

    /// The same for somebody who waits as long as it takes: not again at once where the disk has just refused a flush. How long
    /// to wait then at most, before this is called again.
    pub(super) fn nudge_flush(&self) -> Option<Duration> {
        let refused = lock(&self.state).flush_refused;
        let pause = refused.map(|at| RETRY_AFTER.saturating_sub(Duration::from_nanos(self.now().ns_since(at))));
        let pause = pause.filter(|pause| !pause.is_zero());
        if pause.is_none() {
            self.kick_flush();
        }
        pause
    }

    pub(super) async fn flush_while_wanted(self: Arc<Self>) {
        loop {
            let begun_at = {
                let mut state = lock(&self.state);
                state.flush_begun = Some(self.now());
                state.ledger.flush_begins()
            };
            let good = self.disk.flush().await.outcome == Outcome::Done;
            let again = {
                let mut state = lock(&self.state);
                let covers =
                    if self.sabotaged(Sabotage::JoinedIssuedFlush) { state.ledger.flush_begins() } else { begun_at };
                if !good {
                    self.counters.disk_errors.add(1);
                }
                state.flush_refused = (!good).then(|| self.now());
                state.flush_begun = None;
                let heard = !good && self.log.config.told_of_losses && !self.leaves.load(Ordering::Acquire);
                let more = if heard { Vec::new() } else { state.ledger.flush_ended(covers, good) };
                self.issue(&mut state, more);
                self.pump(&mut state);
                self.measure(&mut state);
                let again = good
                    && (state.ledger.flush_wanted(|| self.ring_serves(&state))
                        || !state.stranded.is_empty() && state.ledger.has_unflushed());
                state.flushing = again;
                again
            };
            self.changed.notify_all();
            if !again {
                return;
            }
        }
    }

    /// See that what nobody syncs is flushed before long.
    pub(super) fn start_settling(&self) {
        if std::mem::replace(&mut lock(&self.state).settling, true) {
            return;
        }
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move {
            me.log.world.clock.sleep(SETTLE_AFTER).await;
            lock(&me.state).settling = false;
            me.kick_flush();
            let more = !lock(&me.state).ledger.is_empty() && !me.stopping.load(Ordering::Acquire);
            if more {
                me.start_settling();
            }
        }));
    }

    /// Give the disk everything, durably. False: the disk does not take it, asked once more, or the log has stopped.
    pub async fn settle(&self) -> bool {
        let mut flushed_once = false;
        let mut asked = Refusals::since(self.now());
        loop {
            let ticket = self.changed.ticket();
            self.kick_flush();
            let (empty, held_back) = {
                let mut state = lock(&self.state);
                // A label that refuses may never make replay harmless to the changes that wait for that.
                let bound = !state.stranded.is_empty() && self.label_refuses.load(Ordering::Acquire);
                let refused = self.refuses_write(&mut state, &mut asked) || state.ledger.is_paused() || bound;
                (state.ledger.is_empty(), refused || std::mem::take(&mut flushed_once) && state.flush_refused.is_some())
            };
            flushed_once = true;
            if empty {
                return true;
            }
            if held_back || self.stopping.load(Ordering::Acquire) {
                return false;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// What was written to the device before this took over has been completed: the next flush covers it.
    pub fn took_over(&self) {
        {
            let mut state = lock(&self.state);
            if let Some(seq) = state.unknown.take() {
                state.ledger.unknown_ended(seq);
            }
        }
        self.kick_flush();
    }

    /// Requests go past it from now on, and nobody tells it of failed flushes any more: for those that still wait in it, it goes by its own.
    pub fn leaves(&self) {
        self.leaves.store(true, Ordering::Release);
    }

    /// Begin no disk write from now on, and wait until none is in flight; [`RedoDisk::resume`] goes on.
    pub async fn quiesce(&self) {
        loop {
            let ticket = self.changed.ticket();
            {
                let mut state = lock(&self.state);
                // Nothing is to be begun by a pause.
                let _ = state.ledger.pause(true);
                if state.ledger.is_quiet() {
                    return;
                }
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Begin disk writes again.
    pub fn resume(&self) {
        let mut state = lock(&self.state);
        let writes = state.ledger.pause(false);
        self.issue(&mut state, writes);
        self.pump(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    /// What the disk does not have is nobody's any more: its records are worth nothing. Quiesced, and nothing is asked of it.
    pub fn abandon(&self) {
        self.stop();
        let mut state = lock(&self.state);
        let all: Vec<Seq> = state.legs.keys().copied().collect();
        all.into_iter().for_each(|seq| self.release(&mut state, seq));
        state.ledger = Ledger::new(false, false);
        state.acks.clear();
        state.syncs.clear();
    }

    /// The device has dropped what it had not made durable: what is held is written again. Whether something acknowledged was
    /// lost, that nobody held.
    pub fn disk_has_lost(&self) -> bool {
        self.losses.fetch_add(1, Ordering::AcqRel);
        let lost = {
            let mut state = lock(&self.state);
            let before = state.ledger.lost_acked();
            let writes = state.ledger.flush_ended(0, false);
            self.issue(&mut state, writes);
            self.pump(&mut state);
            state.ledger.lost_acked() > before
        };
        self.changed.notify_all();
        self.start_settling();
        lost
    }
}
