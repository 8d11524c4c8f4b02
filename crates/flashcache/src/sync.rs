//! Durability of the log: group commit of records, and the housekeeping of open chunks.
//!
//! One sync runs at a time; whoever comes meanwhile is covered by the next. Never waits for a range or for memory.

use crate::counters::add;
use crate::format::Record;
use crate::member::{Member, MemberError};
use crate::regions::{Candidate, RegionKey};
use device::Outcome;
use device::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Member {
    /// Everything appended before this call is durable on flash when it returns.
    ///
    /// # Errors
    /// The member has failed.
    pub(crate) async fn sync(self: &Arc<Self>) -> Result<(), MemberError> {
        let want = lock(&self.log).appended;
        loop {
            if self.has_failed() {
                return Err(self.error());
            }
            let ticket = self.changed.ticket();
            let lead = {
                let mut log = lock(&self.log);
                if log.synced >= want {
                    return Ok(());
                }
                !std::mem::replace(&mut log.syncing, true)
            };
            if lead {
                let result = self.sync_once().await;
                lock(&self.log).syncing = false;
                self.changed.notify_all();
                result?;
            } else {
                self.changed.wait(ticket).await;
            }
        }
    }

    async fn sync_once(self: &Arc<Self>) -> Result<(), MemberError> {
        let mut writes = Vec::new();
        let (through, ids) = {
            let mut log = lock(&self.log);
            let closed = log.close_all(&mut writes);
            if closed.is_err() {
                drop(log);
                self.issue(writes);
                self.fail("no segment left for the records of the log".to_owned());
                return Err(self.error());
            }
            (log.appended, log.writes_outstanding.clone())
        };
        self.issue(writes);
        loop {
            if self.has_failed() {
                return Err(self.error());
            }
            let ticket = self.changed.ticket();
            if lock(&self.log).writes_outstanding.is_disjoint(&ids) {
                break;
            }
            self.changed.wait(ticket).await;
        }
        let provable = lock(&self.log).provable();
        if self.config.device.geometry().volatile_cache {
            add(&self.counters.flash_flushes, 1);
            match self.within_hard_limit(self.config.device.flush()).await {
                Some(done) if done.outcome == Outcome::Done => {}
                Some(done) => {
                    add(&self.counters.errors, 1);
                    self.fail(format!("flush: {:?}", done.outcome));
                    return Err(self.error());
                }
                None => {
                    self.fail("a flush took longer than the hard limit".to_owned());
                    return Err(self.error());
                }
            }
        }
        let mut log = lock(&self.log);
        log.prove(&provable);
        log.synced = log.synced.max(through);
        Ok(())
    }

    /// The writes of these regions are on the disk's medium: once their invalidations are durable, the marks go.
    pub(crate) async fn settle(self: &Arc<Self>, list: Vec<Candidate>) -> usize {
        if self.sync().await.is_err() {
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
            let before = {
                let log = lock(&self.log);
                if log.staged.is_empty() { None } else { Some(log.appended) }
            };
            let Some(before) = before else {
                self.changed.wait(ticket).await;
                continue;
            };
            self.world.clock.sleep(self.config.chunk_age).await;
            let mut writes = Vec::new();
            {
                let mut log = lock(&self.log);
                // Whatever was appended within the last period may wait for company, unless it has waited already.
                if log.appended == before || log.staged.len() as u32 >= crate::log::CHUNK_DATA_PAGES_MAX / 2 {
                    let _ = log.close_all(&mut writes);
                }
            }
            self.issue(writes);
        }
    }
}
