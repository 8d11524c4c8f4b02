//! Changes of a redo disk from the request to its answer: what is kept of them, and what they wait for.
//!
//! Never waits for memory: what cannot be kept goes to the disk alone.

use super::sync::SyncBegun;
use super::{PLEAD_AFTER, RETRY_AFTER, RedoDisk, State};
use crate::counters::Skip;
use crate::errand::Errand;
use crate::format::{RECORD_DATA_BYTES_MAX, ZEROES_BYTES_MAX};
use crate::ledger::Content;
use crate::legs::Place;
use crate::mode::{self, DiskLeg, PROBE_EVERY};
use crate::sabotage::Sabotage;
use device::sync::{lock, one_shot};
use device::{FailKind, Instant, Outcome, SharedBufs};
use futures_util::future::{Either, select};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the disk has refused of that which somebody waits for. Asked once more, it decides.
pub(super) struct Refusals {
    since: Instant,
    write: bool,
    flush: Option<Instant>,
}

impl Refusals {
    pub(super) fn since(since: Instant) -> Refusals {
        Refusals { since, write: false, flush: None }
    }

    /// Whether the disk has refused a flush twice.
    fn flush_again(&mut self, state: &State) -> bool {
        let Some(at) = state.flush_refused.filter(|at| *at > self.since) else { return false };
        *self.flush.get_or_insert(at) < at
    }
}

impl RedoDisk {
    /// Whether the disk has refused a write twice; once, it is asked again.
    pub(super) fn refuses_write(&self, state: &mut State, refused: &mut Refusals) -> bool {
        if !state.ledger.is_held_back() {
            return false;
        }
        if std::mem::replace(&mut refused.write, true) {
            return true;
        }
        let writes = state.ledger.retry();
        self.issue(state, writes);
        self.pump(state);
        false
    }

    /// Keep what a change does, if there is memory: nobody waits for it, the disk can do without.
    pub(super) fn hold(&self, given: &Option<SharedBufs>, len: u64, may_unmap: bool) -> Result<Content, Skip> {
        let Some(data) = given else {
            return if len <= ZEROES_BYTES_MAX { Ok(Content::Zeroes { may_unmap }) } else { Err(Skip::Large) };
        };
        if data.len_bytes() > RECORD_DATA_BYTES_MAX {
            return Err(Skip::Large);
        }
        let mut zero = true;
        data.for_each(0..data.len_bytes(), |bytes| zero &= bytes.iter().all(|byte| *byte == 0));
        if zero {
            // A new segment of a write-ahead log is filled with them.
            return Ok(Content::Zeroes { may_unmap: false });
        }
        let Some(mut copy) = self.log.arena.try_alloc(data.len_bytes()) else { return Err(Skip::NoBuffer) };
        copy.copy_in_rope(0, data);
        Ok(Content::Data(copy.freeze()))
    }

    pub(super) async fn change(
        self: Arc<Self>,
        range: Range<u64>,
        given: Option<SharedBufs>,
        may_unmap: bool,
        fua: bool,
        errand: Errand,
    ) -> Outcome {
        let (mode, off) = self.in_force();
        let held = off.map_or_else(|| self.hold(&given, range.end - range.start, may_unmap), Err);
        // Held though it goes past flash: syncs of others may cover it.
        let skip = held.as_ref().err().copied().or(errand.past);
        // Without a volatile cache the write is what is waited for, and what is hedged.
        let is_sync = fua || self.write_through && off.is_none();
        let mut content = Some(held.unwrap_or(Content::Unheld));
        let begun = self.now();
        let (sender, acked) = one_shot();
        let mut sender = Some(sender);
        let mut refused = Refusals::since(begun);
        let (seq, must, durable, sync) = loop {
            let ticket = self.changed.ticket();
            let released = self.log.changed.ticket();
            {
                let mut state = lock(&self.state);
                let must = self.may_be_replayed(&state, &range) && !self.sabotaged(Sabotage::DiskOnlyOverRecord);
                let unheld = matches!(content, Some(Content::Unheld));
                if (!unheld || !(must || state.ledger.is_busy(&range) || state.ledger.is_paused()))
                    && let (Some(content), Some(sender)) = (content.take(), sender.take())
                {
                    let seq = self.log.next_sequence();
                    let first = given.clone().map_or(Content::Zeroes { may_unmap }, Content::Data);
                    let writes = state.ledger.begin(seq, range.clone(), content, first, fua, must);
                    state.acks.insert(seq, sender);
                    let sync = if is_sync { self.begin_sync(&mut state, Some(seq)) } else { None };
                    // Now and then not, to know what a write that is not durable takes.
                    let probe = self.changes_begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY);
                    let durable = is_sync || state.habit.wrote() && !probe;
                    self.issue(&mut state, writes);
                    self.pump(&mut state);
                    break (seq, must, durable, sync);
                }
                if self.refuses_write(&mut state, &mut refused) || refused.flush_again(&state) {
                    return Outcome::Failed(FailKind::Media);
                }
            }
            // Only what is not held waits here.
            if self.stopping.load(Ordering::Acquire) || self.label_refuses.load(Ordering::Acquire) {
                return Outcome::Failed(FailKind::Media);
            }
            self.wait_for_releases(ticket, released, begun).await;
        };
        self.start_settling();
        if must {
            self.ask(seq, durable, true);
        }
        if let Some((sync, answer)) = sync {
            if errand.past.is_some() && mode == mode::Mode::Flash {
                // The disk's flush would begin in the background else.
                self.kick_flush();
            }
            // Its disk write is a durable one, and has begun.
            let leg = if skip.is_none() && mode == mode::Mode::Flash { DiskLeg::Background } else { DiskLeg::Now };
            let begun = SyncBegun { sync, last: seq, at: begun, disk_at: Some(begun), leg };
            return self.finish_sync(begun, answer, skip, &errand).await;
        }
        let outcome = |answer: Option<Result<(), FailKind>>| match answer {
            Some(Ok(())) => Outcome::Done,
            Some(Err(kind)) => Outcome::Failed(kind),
            None => Outcome::Unknown,
        };
        if fua || skip.is_some() {
            return outcome(acked.await);
        }
        let delay = {
            let state = lock(&self.state);
            match self.is_disk_slow(&state) {
                true => Duration::ZERO,
                false => {
                    let (writes, syncs) = (&state.disk_writes, &state.disk_syncs);
                    mode::write_delay(mode, writes, syncs, || self.flash_times(), self.log.config.hedge_per_mille)
                }
            }
        };
        let timer = self.log.world.clock.sleep(delay);
        match select(acked, timer).await {
            Either::Left((answer, _)) => outcome(answer),
            Either::Right(((), acked)) => {
                self.ask(seq, durable, false);
                outcome(acked.await)
            }
        }
    }

    /// Whether replay may find something of these bytes that a newer write must not be undone by.
    pub(super) fn may_be_replayed(&self, state: &State, range: &Range<u64>) -> bool {
        (0..state.in_ring.len()).any(|ring| self.may_be_replayed_from(state, ring, range))
    }

    /// The same of one ring.
    pub(super) fn may_be_replayed_from(&self, state: &State, ring: usize, range: &Range<u64>) -> bool {
        let tail = self.log.rings[ring].durable_tail();
        state.in_ring[ring].overlapping(range).any(|(_, place)| match place {
            Place::Asked(_) => true,
            Place::Batch(number) => number >= tail,
        })
    }

    /// Wait for something to happen, seeing to it that the rings are told what the disk has. Whoever has waited `since` long
    /// asks to be rid of what they hold: redo of a disk that does not take it may keep them from releasing anything.
    pub(super) async fn wait_for_releases(&self, ticket: u64, released: u64, since: Instant) {
        let pause = self.nudge_flush();
        self.log.rings.iter().for_each(|ring| ring.want_release());
        let last = Instant(self.pleaded_ns.load(Ordering::Acquire).max(since.0));
        let patience = PLEAD_AFTER.saturating_sub(Duration::from_nanos(self.now().ns_since(last)));
        if patience.is_zero() {
            self.pleaded_ns.store(self.now().0, Ordering::Release);
            self.log.plead(self.id);
        }
        let patience = if patience.is_zero() { RETRY_AFTER } else { patience };
        let patience = pause.map_or(patience, |pause| patience.min(pause));
        let (mine, released) = (pin!(self.changed.wait(ticket)), pin!(self.log.changed.wait(released)));
        select(select(mine, released), self.log.world.clock.sleep(patience)).await;
    }
}
