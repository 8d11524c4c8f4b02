//! Writers that wait for reclaim to make room, and for how long.
//!
//! Reclaim keeps some segments free and begins when there are fewer; a burst takes them sooner than it can follow. What waits a moment for it stays
//! on flash; what does not goes to the disk, or is not cached.

use crate::copy::has_classes;
use crate::format::HeadKind;
use crate::log::{DIRTY_RESERVE_SEGMENTS, FILL_RESERVE_SEGMENTS};
use crate::mechanism::Mechanism;
use crate::member::Member;
use device::sync::lock;
use futures_util::future::select;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A write waits so long at most for cleaning to make room: some segments' worth.
const CLEANING_WAIT_MAX: Duration = Duration::from_millis(200);
/// A write that would be dirty waits so long at most where clean data has to leave for it: about what the disk would take. Reclaim of one segment
/// takes some milliseconds, and makes room for a hundred writes.
const EVICTING_WAIT_MAX: Duration = Duration::from_millis(10);

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A write to the disk that will be cached. Not for clean data to leave: then it is not cached.
    Through,
    /// A write of so many pages that will be dirty.
    Dirty { pages: u32 },
}

/// What writers and reclaim know of each other.
#[derive(Debug, Default)]
pub(crate) struct Room {
    waiting: AtomicUsize,
    /// Reclaim has found nothing to free when it looked last, so that only the disk, or a reader, can help; or a writer has waited in vain since
    /// it freed a segment.
    stuck: AtomicBool,
}

/// Counts as waiting until it is dropped.
struct Waiting<'a>(&'a Room);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Room {
    fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self)
    }

    /// Segments that reclaim frees beyond those it keeps: in a small cache it keeps no more than dirty data leaves.
    pub(crate) fn wanted_segments(&self) -> usize {
        usize::from(self.waiting.load(Ordering::Acquire) > 0)
    }

    /// What reclaim has found.
    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }
}

impl Member {
    /// Wait until there is room for a write, as long as reclaim may make it. Never long.
    pub(crate) async fn wait_for_room(&self, who: Waiter) {
        let cleans = has_classes(self.shape.segments) && !self.is_without(Mechanism::Cleaning);
        if who == Waiter::Through && !cleans {
            return;
        }
        let begun = self.world.clock.now();
        let mut waiting = None;
        loop {
            let ticket = self.changed.ticket();
            let limit = match who {
                _ if cleans && self.is_roomy() => CLEANING_WAIT_MAX,
                Waiter::Dirty { .. } => EVICTING_WAIT_MAX,
                Waiter::Through => return,
            };
            let waited = Duration::from_nanos(self.world.clock.now().ns_since(begun));
            let ends = self.room.stuck.load(Ordering::Acquire) || self.stopping.load(Ordering::Acquire);
            if self.has_room_for(who) || ends || self.has_failed() {
                return;
            }
            if waited >= limit {
                // Who comes next does not wait for what is too slow.
                self.room.set_stuck(true);
                return;
            }
            if waiting.is_none() {
                waiting = Some(self.room.wait());
                self.changed.notify_all();
                continue;
            }
            let rung = std::pin::pin!(self.changed.wait(ticket));
            let _ = select(rung, self.world.clock.sleep(limit - waited)).await;
        }
    }

    /// Whether a write has room now, or gets none from reclaim whatever that does.
    fn has_room_for(&self, who: Waiter) -> bool {
        let log = lock(&self.log);
        match who {
            Waiter::Through => log.free.len() > FILL_RESERVE_SEGMENTS + 1,
            Waiter::Dirty { pages } => {
                log.free.len() > log.left_by(HeadKind::Dirty, DIRTY_RESERVE_SEGMENTS + 1)
                    || log.open_takes(HeadKind::Dirty, pages)
                    || log.dirty_segments() >= self.dirty_segments_max()
            }
        }
    }
}
