//! Durability of the log: group commit of records, and the housekeeping of open chunks.
//!
//! One sync runs at a time; whoever comes meanwhile is covered by the next. Never waits for a range or for memory.

use crate::base::counters::add;
use crate::base::regions::{Candidate, RegionKey};
use crate::base::sabotage::Sabotage;
use crate::format::{HeadKind, Record, SegmentLife};
use crate::log::{NoSpace, Parity, RECORD_RESERVE_SEGMENTS, WRITE_RESERVE_SEGMENTS};
use crate::member::{Member, MemberError};
use device::sync::lock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pages that wait for a flush before the log asks for one by itself: recovery after a crash writes the headers of that much again, and
/// after a failed flush all of it is. 128 MiB.
const UNFLUSHED_PAGES_MAX: u64 = 32 << 10;

/// What a sync covers.
struct Covered {
    through: (u64, u64),
    writes: BTreeSet<u64>,
    headers: Vec<(SegmentLife, Parity)>,
}

/// How much a sync may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// It leaves a segment to reclaim.
    Ordinary,
    /// It may take the last segment, unless reclaim is about to need it, and waits when there is none.
    Destage,
    /// The same, and nobody will ever make room: without a segment the member fails.
    Last,
    /// The same, and what is clean, too, is on flash then.
    All,
}

/// Held by the one that flushes, who has set `syncing`: the next may when it is dropped.
pub(crate) struct SyncTurn<'a>(pub(crate) &'a Member);

impl Drop for SyncTurn<'_> {
    fn drop(&mut self) {
        lock(&self.0.log).syncing = false;
        self.0.changed.notify_all();
    }
}

/// How a sync goes on.
enum Begun {
    /// It is done already.
    Durable,
    /// The chunks are on their way: wait for them.
    Lead(Covered),
    /// Another is under way, or there is no room: look again when something has changed.
    Wait,
}

impl Member {
    /// Records and dirty data appended before this call are durable on flash when it returns; of clean data what has been written. Waits for
    /// reclaim when segments are short.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn sync(self: &Arc<Self>) -> Result<(), MemberError> {
        self.sync_as(Need::Ordinary).await
    }

    /// The same for records that say what has been destaged: reclaim may have nothing to free before they are durable, so
    /// they may take the last segment where it does not free one.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn sync_destaged(self: &Arc<Self>) -> Result<(), MemberError> {
        self.sync_as(Need::Destage).await
    }

    /// The same for those that others wait for (reclaim): they may take the last segment.
    ///
    /// # Errors
    /// The member has failed: when there is no segment left, now.
    pub(crate) async fn sync_at_last(self: &Arc<Self>) -> Result<(), MemberError> {
        self.sync_as(Need::Last).await
    }

    /// The same of everything (recovery, stop).
    ///
    /// # Errors
    /// As [`Member::sync_at_last`].
    pub(crate) async fn sync_all(self: &Arc<Self>) -> Result<(), MemberError> {
        self.sync_as(Need::All).await?;
        // The witnesses, too: nothing may be written behind whoever gives the device to another.
        loop {
            if self.has_failed() {
                return Err(self.error());
            }
            let ticket = self.changed.ticket();
            if lock(&self.log).is_witnessed() {
                return Ok(());
            }
            self.changed.wait(ticket).await;
        }
    }

    async fn sync_as(self: &Arc<Self>, need: Need) -> Result<(), MemberError> {
        let want = lock(&self.log).appended;
        self.sync_through(want, need).await
    }

    /// The first `want` things appended are durable when it returns. Nothing is done where they are.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn sync_through(self: &Arc<Self>, want: u64, need: Need) -> Result<(), MemberError> {
        loop {
            if self.has_failed() {
                return Err(self.error());
            }
            let ticket = self.changed.ticket();
            // Reclaim makes no room any more once the member stops.
            let stops = self.stopping.load(Ordering::Acquire) && need != Need::All;
            let need = if stops { Need::Last } else { need };
            match self.begin_sync(want, need)? {
                Begun::Durable => return Ok(()),
                Begun::Lead(covered) => {
                    self.lead_sync(covered).await?;
                    if need == Need::All {
                        // What others append meanwhile is not waited for.
                        return Ok(());
                    }
                }
                Begun::Wait => self.changed.wait(ticket).await,
            }
        }
    }

    /// Close the chunks of a sync and issue them, unless one is under way or there is no room.
    fn begin_sync(self: &Arc<Self>, want: u64, need: Need) -> Result<Begun, MemberError> {
        let mut writes = Vec::new();
        let begun = {
            let mut log = lock(&self.log);
            let is_closed = need != Need::All || !log.has_open_chunk() && log.writes_outstanding.is_empty();
            if log.synced >= want && is_closed {
                return Ok(Begun::Durable);
            }
            if log.syncing {
                return Ok(Begun::Wait);
            }
            let leaves = need == Need::Ordinary || (need == Need::Destage && log.reclaims);
            let reserve = if leaves { RECORD_RESERVE_SEGMENTS } else { 0 };
            let closed = match need {
                Need::All => log.close_all(reserve, &mut writes),
                _ => log.close_for_records(reserve, &mut writes),
            };
            closed.map(|()| {
                log.syncing = true;
                let (through, headers) = (log.covered(), log.unwitnessed());
                Covered { through, headers, writes: log.writes_outstanding.clone() }
            })
        };
        self.issue(writes);
        match begun {
            Ok(covered) => Ok(Begun::Lead(covered)),
            Err(NoSpace) if matches!(need, Need::Last | Need::All) => {
                self.fail("no segment left for the records of the log".to_owned());
                Err(self.error())
            }
            Err(NoSpace) if lock(&self.log).is_spent() => {
                self.fail("2^32 segments opened since the cell was started: a restart counts anew".to_owned());
                Err(self.error())
            }
            Err(NoSpace) => {
                add(&self.counters.space_waits, 1);
                Ok(Begun::Wait)
            }
        }
    }

    /// See a sync to its end, and let the next one begin.
    async fn lead_sync(self: &Arc<Self>, covered: Covered) -> Result<(), MemberError> {
        let _turn = SyncTurn(self);
        self.finish_sync(covered).await
    }

    /// Wait until these writes have completed.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn await_written(&self, writes: &BTreeSet<u64>) -> Result<(), MemberError> {
        loop {
            if self.has_failed() {
                return Err(self.error());
            }
            let ticket = self.changed.ticket();
            if lock(&self.log).writes_outstanding.is_disjoint(writes) {
                return Ok(());
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Wait for the chunks of a sync and flush the device.
    async fn finish_sync(self: &Arc<Self>, covered: Covered) -> Result<(), MemberError> {
        let Covered { through, writes, headers } = covered;
        self.await_written(&writes).await?;
        let provable = lock(&self.log).provable();
        self.flush().await?;
        let witnesses = {
            let mut log = lock(&self.log);
            log.prove(&provable);
            log.set_synced(through);
            log.witness(headers)
        };
        // Nobody waits for them: only a power cut can lose them, and a later header says the same.
        self.issue_witnesses(witnesses);
        Ok(())
    }

    /// The writes of these regions are on the disk's medium: once their invalidations are durable, the marks go.
    pub(crate) async fn settle(self: &Arc<Self>, list: Vec<Candidate>) -> usize {
        // Marks may stay where segments are short.
        let scarce = lock(&self.log).free.len() <= WRITE_RESERVE_SEGMENTS && !self.stopping.load(Ordering::Acquire);
        if scarce || self.sync().await.is_err() {
            return 0;
        }
        let mut settled = 0;
        for candidate in list {
            let RegionKey { slot, region } = candidate.key;
            let Some(name) = self.disk_name(slot) else { continue };
            let clear = Record::Mark { disk: name.id, generation: name.generation, region, set: false };
            if self.regions.settle(candidate, || lock(&self.log).append_record(clear)) {
                settled += 1;
            }
        }
        add(&self.counters.settles, settled as u64);
        settled
    }

    /// Write out chunks that have waited long enough; ends when the member stops or fails.
    pub(crate) async fn run_chunk_writer(self: Arc<Self>) {
        loop {
            let ticket = self.changed.ticket();
            if self.has_failed() || self.stopping.load(Ordering::Acquire) {
                return;
            }
            let (before, unflushed_pages, copies) = {
                let log = lock(&self.log);
                let before = if log.staged.is_empty() { None } else { Some(log.appended) };
                (before, log.undurable.pages(), log.open_chunk(HeadKind::DirtyLasting))
            };
            // Where there is no room for that, it is for later: this task never waits for reclaim, which waits for chunks.
            if unflushed_pages >= UNFLUSHED_PAGES_MAX
                && let Ok(Begun::Lead(covered)) = self.begin_sync(u64::MAX, Need::Ordinary)
                && self.lead_sync(covered).await.is_err()
            {
                return;
            }
            let Some(before) = before else {
                self.changed.wait(ticket).await;
                continue;
            };
            self.world.clock.sleep(self.config.chunk_age).await;
            let mut writes = Vec::new();
            {
                let mut log = lock(&self.log);
                // Readers wait for copies of dirty data, and nobody sends those before the chunk is full.
                let is_same = copies.is_some() && log.open_chunk(HeadKind::DirtyLasting) == copies;
                if is_same && !self.sabotaged(Sabotage::CopiesWaitForCompany) {
                    log.close_chunk(HeadKind::DirtyLasting, &mut writes);
                }
                // Whatever was appended within the last period may wait for company, unless it has waited already.
                if log.appended == before || log.staged.len() as u32 >= crate::log::CHUNK_DATA_PAGES_MAX / 2 {
                    // What finds no room waits for reclaim.
                    let _ = log.close_all(RECORD_RESERVE_SEGMENTS, &mut writes);
                }
            }
            self.issue(writes);
        }
    }
}
