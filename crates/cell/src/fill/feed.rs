//! Filling by `feed`: what reads have missed waits in memory and is written to flash at a bounded rate, oldest first.
//!
//! A busy disk is not made busier by it, flash is not worn faster than it is told to, and reads do not wait for copies. What
//! does not come to its turn is let go of and counted. Never reads the disk for it.

use crate::base::work::StopSignal;
use crate::disk::grid_disk::GridDisk;
use crate::fill::note::Note;
use crate::fill::offer::Offered;
use celldisk::FillStrategy;
use device::sync::{Notify, lock};
use device::{Buf, Bufs, SharedBufs, View, World};
use futures_util::future::select;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How often the feeder looks: short enough that no burst of writes holds up reads from flash.
const EVERY: Duration = Duration::from_millis(100);
/// Streams of reads that are followed on one grid disk.
const STREAMS_MAX: usize = 16;
/// Reads in a row, each where the last has ended, that make a stream.
const STREAM_READS: u32 = 3;

/// How grid disks with this strategy are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedConfig {
    /// Bytes a second, at most.
    pub rate_bytes: u64,
    /// So many times that while the flash cache has not given up anything since it was opened.
    pub boost: u64,
    /// Leave out reads that follow one another, as a prefetch does.
    pub noprefetch: bool,
    /// Bytes that may wait.
    pub waiting_bytes_max: u64,
}

impl Default for FeedConfig {
    /// The rate, the boost and `noprefetch` are those of L2ARC's `l2arc_write_max` since OpenZFS 2.3, of its doubling while cold,
    /// and of `l2arc_noprefetch`.
    fn default() -> FeedConfig {
        FeedConfig { rate_bytes: 32 << 20, boost: 2, noprefetch: true, waiting_bytes_max: 32 << 20 }
    }
}

/// Data that waits for its turn.
#[derive(Debug)]
struct Waiting {
    disk: Weak<GridDisk>,
    note: Note,
    data: SharedBufs,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: u64,
}

/// What waits, of all grid disks of a cell.
#[derive(Debug)]
pub(crate) struct Feed {
    config: FeedConfig,
    queue: Mutex<Queue>,
    wake: Notify,
}

impl Feed {
    pub(crate) fn new(config: FeedConfig) -> Feed {
        Feed { config, queue: Mutex::default(), wake: Notify::new() }
    }

    /// A read has missed this: let it wait, and let go of the oldest where there is no room. False: there never is.
    fn add(&self, disk: &Weak<GridDisk>, note: Note, data: View<'_>) -> bool {
        let bytes = data.len_bytes() as u64;
        if bytes > self.config.waiting_bytes_max {
            return false;
        }
        // From the heap: it waits for longer than a request does, and is bounded by itself.
        let mut copy = Bufs::from(Buf::zeroed(data.len_bytes()));
        copy.copy_in_view(0, data);
        let waiting = Waiting { disk: disk.clone(), note, data: copy.freeze() };
        let mut queue = lock(&self.queue);
        while queue.bytes + bytes > self.config.waiting_bytes_max {
            let Some(oldest) = queue.waiting.pop_front() else { break };
            queue.bytes -= oldest.data.len_bytes() as u64;
            if let Some(disk) = oldest.disk.upgrade() {
                disk.counters.feed_overruns.one();
            }
        }
        queue.bytes += bytes;
        queue.waiting.push_back(waiting);
        drop(queue);
        self.wake.notify_all();
        true
    }

    fn next(&self) -> Option<Waiting> {
        let mut queue = lock(&self.queue);
        let next = queue.waiting.pop_front()?;
        queue.bytes -= next.data.len_bytes() as u64;
        Some(next)
    }

    /// Write what waits, for ever.
    pub(crate) async fn run(self: Arc<Self>, world: World, stop: Arc<StopSignal>) {
        // Below zero after a block that was larger than what was left.
        let mut allowance: i64 = 0;
        loop {
            let ticket = self.wake.ticket();
            if lock(&self.queue).waiting.is_empty() {
                let stopped = std::pin::pin!(stop.ended());
                let rung = std::pin::pin!(self.wake.wait(ticket));
                select(stopped, rung).await;
            }
            if stop.sleep(&world, EVERY).await {
                return;
            }
            let earned = |rate: u64| i64::try_from(rate / 10).unwrap_or(i64::MAX);
            let cold = self.is_cold();
            let rate = self.config.rate_bytes.saturating_mul(if cold { self.config.boost.max(1) } else { 1 });
            // Nothing is saved up: a quiet hour is no reason for a burst.
            allowance = allowance.min(0).saturating_add(earned(rate).max(1));
            while allowance > 0 {
                let Some(Waiting { disk, note, data }) = self.next() else { break };
                let Some(disk) = disk.upgrade() else { continue };
                let bytes = data.len_bytes() as i64;
                match disk.insert(note, data).await {
                    Offered::Inserted => {
                        disk.counters.fed.one();
                        allowance -= bytes;
                    }
                    // Flash is left alone for this turn.
                    Offered::WriterOverloaded => break,
                    Offered::Exists | Offered::NotCurrent | Offered::NotUseful => {}
                }
            }
        }
    }

    /// Whether the cache of what waits has not given up anything since it was opened.
    fn is_cold(&self) -> bool {
        let queue = lock(&self.queue);
        queue.waiting.front().is_some_and(|first| {
            let reclaimed =
                |m: &Arc<flashcache::Member>| m.counters.reclaims.load(std::sync::atomic::Ordering::Relaxed);
            first.note.binding.upgrade().is_some_and(|b| b.cache.members().all(|member| reclaimed(member) == 0))
        })
    }
}

/// Reads that follow one another, by where the next would begin.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<(u64, u32)>>);

impl Streams {
    /// A read of these bytes has missed; whether it belongs to a stream.
    fn follows(&self, bytes: &Range<u64>) -> bool {
        let mut streams = lock(&self.0);
        let at = streams.iter().position(|(next, _)| *next == bytes.start);
        let reads = at.map_or(0, |at| streams.remove(at).1) + 1;
        if streams.len() == STREAMS_MAX {
            streams.remove(0);
        }
        streams.push((bytes.end, reads));
        reads >= STREAM_READS
    }
}

/// How a grid disk is filled, with what that takes.
#[derive(Clone, Debug, Default)]
pub(crate) enum Filling {
    #[default]
    Read,
    Evict,
    Feed(Feeder),
}

/// Where what a grid disk's reads have missed waits.
#[derive(Clone, Debug)]
pub(crate) struct Feeder {
    feed: Arc<Feed>,
    disk: Weak<GridDisk>,
}

impl GridDisk {
    /// How it is filled.
    pub(crate) fn filling(&self) -> Filling {
        lock(&self.filling).clone()
    }

    /// Fill it like this from now on.
    pub(crate) fn set_filling(self: &Arc<Self>, strategy: FillStrategy, feed: &Arc<Feed>) {
        *lock(&self.filling) = match strategy {
            FillStrategy::Read => Filling::Read,
            FillStrategy::Evict => Filling::Evict,
            FillStrategy::Feed => Filling::Feed(Feeder { feed: feed.clone(), disk: Arc::downgrade(self) }),
        };
    }

    /// Let what a read has missed wait for the feeder. The caller holds the range, and has read it under that lock.
    pub(crate) fn feed(&self, feeder: &Feeder, note: Note, data: View<'_>) {
        if feeder.feed.config.noprefetch && self.streams.follows(&note.bytes()) {
            self.counters.feed_skips_prefetch.one();
        } else if !feeder.feed.add(&feeder.disk, note, data) {
            self.counters.feed_overruns.one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_follow_one_another_are_a_stream_and_others_are_not() {
        let streams = Streams::default();
        let read = |at: u64| streams.follows(&(at..at + 8));
        assert!(!read(0) && !read(8) && read(16) && read(24));
        assert!(!read(800) && !read(400));
        // Two at a time.
        assert!(!read(408) && read(32) && read(416) && read(40));
        // Forgotten among too many others.
        (0..STREAMS_MAX as u64).for_each(|n| assert!(!read(10_000 + 100 * n)));
        assert!(!read(48));
    }
}
