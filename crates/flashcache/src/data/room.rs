//! Writers that wait for reclaim to make room, and for how long.
//!
//! Reclaim keeps some segments free and begins when there are fewer; a burst takes them sooner than it can follow. What waits a moment for it stays
//! on flash; what does not goes to the disk, or is not cached.

use crate::base::mechanism::Mechanism;
use crate::data::write_back::{DIRTY_RECORD_BYTES_MAX, dirty_reserve};
use crate::format::HeadKind;
use crate::log::FILL_RESERVE_SEGMENTS;
use crate::log::sizing::has_classes;
use crate::member::Member;
use device::Instant;
use device::sync::lock;
use futures_util::future::select;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A write waits so long at most for cleaning to make room: some segments' worth.
const CLEANING_WAIT_MAX: Duration = Duration::from_millis(200);
/// A write that would be dirty waits so long at most where clean data has to leave for it: about what the disk would take. Reclaim of one segment
/// takes some milliseconds, and makes room for a hundred writes.
const EVICTING_WAIT_MAX: Duration = Duration::from_millis(10);

/// The kind of write that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A write to the disk that will be cached. Not for clean data to leave: then it is not cached.
    Through,
    /// A write of so many pages that will be dirty.
    Dirty { pages: u32 },
}

/// State that waiting writers and reclaim share.
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

    /// Reclaim has freed a segment or found none to free; or a writer has waited in vain.
    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }
}

/// The room that a writer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Room,
    /// None, and reclaim may make some.
    NotYet,
    /// None, whatever reclaim does.
    Never,
}

impl Member {
    /// Wait until there is room for a write, as long as reclaim may make it; never long after `begun`. Whether there is.
    pub(crate) async fn wait_for_room(&self, who: Waiter, begun: Instant) -> bool {
        let cleans = has_classes(self.shape.segments) && !self.is_without(Mechanism::Cleaning);
        if who == Waiter::Through && !cleans {
            return false;
        }
        match self.find_room(who) {
            Found::Room => true,
            Found::Never => false,
            // Boxed: writes that find room do not carry it.
            Found::NotYet => Box::pin(self.wait_while_none(who, begun, cleans)).await,
        }
    }

    async fn wait_while_none(&self, who: Waiter, begun: Instant, cleans: bool) -> bool {
        let mut waiting = None;
        loop {
            let ticket = self.changed.ticket();
            match self.find_room(who) {
                Found::Room => return true,
                Found::Never => return false,
                Found::NotYet => {}
            }
            let limit = match who {
                _ if cleans && self.is_roomy() => CLEANING_WAIT_MAX,
                Waiter::Dirty { .. } => EVICTING_WAIT_MAX,
                Waiter::Through => return false,
            };
            if self.room.stuck.load(Ordering::Acquire) || self.stopping.load(Ordering::Acquire) || self.has_failed() {
                return false;
            }
            let waited = Duration::from_nanos(self.world.clock.now().ns_since(begun));
            if waited >= limit {
                // Later writers do not wait for a reclaim that is too slow.
                self.room.set_stuck(true);
                return false;
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

    /// Whether it has no room at the moment and reclaim may make some.
    pub(crate) fn lacks_room(&self, who: Waiter) -> bool {
        self.find_room(who) == Found::NotYet
    }

    fn find_room(&self, who: Waiter) -> Found {
        let log = lock(&self.log);
        match who {
            Waiter::Through if log.free.len() > FILL_RESERVE_SEGMENTS + 1 => Found::Room,
            Waiter::Through => Found::NotYet,
            Waiter::Dirty { pages } => {
                let reserve = dirty_reserve(&log, false);
                // On two members at once only what each is sure to take is taken.
                let takes = if self.is_mirrored() {
                    log.surely_takes(HeadKind::Dirty, pages, DIRTY_RECORD_BYTES_MAX, reserve)
                } else {
                    log.free.len() > reserve || log.open_takes(HeadKind::Dirty, pages)
                };
                match takes {
                    _ if log.dirty_segments() >= self.dirty_segments_max() || self.index.is_full() => Found::Never,
                    true => Found::Room,
                    false => Found::NotYet,
                }
            }
        }
    }
}
