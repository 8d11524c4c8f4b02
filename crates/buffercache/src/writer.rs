//! The database writer: one task that writes what stands in the way of others, then what a checkpoint wants, and feeds the flash cache when
//! there is nothing else to do.
//!
//! One batch at a time, and the next begins when all of it has ended, as with asynchronous I/O in the vendor's. A busy writer does not feed:
//! poor flash writes never slow down the data files. But while it feeds, it does not write.

use crate::Sabotage;
use crate::cache::BufferCache;
use crate::flash::{FlashCache, Inserting};
use crate::page::{PageFormat, packed};
use crate::pool::Job;
use device::sync::lock;
use futures_util::future::{join_all, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The writer's time-out: it looks again after so long, whoever calls it.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Pause after the data file has refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl<F: PageFormat> BufferCache<F> {
    pub(crate) async fn write_for_ever(self: Arc<Self>) {
        while !self.is_stopping.load(Ordering::SeqCst) {
            let ticket = self.work.ticket();
            if self.write_batch().await || self.feed_batch().await {
                continue;
            }
            let rung = pin!(self.work.wait(ticket));
            select(rung, self.world.clock.sleep(LOOK_EVERY)).await;
        }
        self.is_stopped.set(true);
    }

    /// Changes up to this one are due by a checkpoint.
    fn due(&self) -> u64 {
        let asked = self.checkpoint.load(Ordering::SeqCst);
        let old = self.config.checkpoint_changes.map_or(0, |age| self.last_change().saturating_sub(age));
        asked.max(old)
    }

    /// Write a batch to the data file; whether there was one.
    async fn write_batch(&self) -> bool {
        let jobs = {
            let mut pool = lock(&self.pool);
            pool.look_ahead(self.config.free_target);
            pool.begin_writes(self.config.batch_max, self.due())
        };
        let Some(newest) = jobs.iter().map(|job| job.changed).max() else { return false };
        let mut is_durable = true;
        if let Some(redo) = &self.redo {
            // Redo goes first: a page on disk whose change nobody can redo or undo is a page lost.
            if self.config.sabotage != Some(Sabotage::DataBeforeRedo) {
                is_durable = redo.force(newest).await.is_ok();
            }
            let early = jobs.iter().filter(|job| job.changed > redo.durable()).count() as u64;
            self.counters.unwritten_redo.fetch_add(if is_durable { early } else { 0 }, Ordering::Relaxed);
        }
        let write = |job: Job<F::Page>| async move {
            let data = packed(&self.format, job.number, &job.page);
            let written =
                is_durable && self.data.write(self.offset(job.number), data, false).await.outcome.ok().is_ok();
            // Each by itself: who waits for this page need not wait for the batch.
            lock(&self.pool).end_write(job.frame, written);
            self.freed.notify_all();
            written
        };
        let pages = jobs.len() as u64;
        let all = join_all(jobs.into_iter().map(write)).await.into_iter().all(|written| written);
        self.counters.writes.fetch_add(pages, Ordering::Relaxed);
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.write_failed.store(!all, Ordering::SeqCst);
        self.freed.notify_all();
        if !all {
            self.world.clock.sleep(RETRY_AFTER).await;
        }
        true
    }

    /// Write clean pages that are about to leave to flash; whether there were any.
    async fn feed_batch(&self) -> bool {
        let Some(flash) = &self.flash else { return false };
        let objects = &self.config.objects;
        let mut slots: Vec<Inserting<'_>> = Vec::new();
        let jobs = lock(&self.pool).begin_feed(self.config.feed_max, self.config.feed_window, |number| {
            if flash.holds(number) {
                return false;
            }
            let slot = flash.insert(number, objects.keep(number));
            let has_room = slot.is_some();
            slots.extend(slot);
            has_room
        });
        if jobs.is_empty() {
            return false;
        }
        join_all(jobs.into_iter().zip(slots).map(|(job, slot)| self.feed(flash, job, slot))).await;
        self.counters.feed_batches.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Write one page to flash.
    async fn feed(&self, flash: &FlashCache, job: Job<F::Page>, slot: Inserting<'_>) {
        let data = packed(&self.format, job.number, &job.page);
        let written = flash.device().write(slot.offset(), data, false).await.outcome.ok().is_ok();
        {
            // Under the pool's lock: no change comes between the end of the write and the copy being found.
            let mut pool = lock(&self.pool);
            if written {
                slot.done();
            } else {
                drop(slot);
            }
            pool.end_feed(job.frame);
        }
        self.freed.notify_all();
    }
}
