//! Redo writes as they are answered, for `flashcell redo record`: how long each took and who was first.
//!
//! Kept only while somebody asks, in bounded memory: who asks too seldom is told how many were missed. Never delays a request.

use crate::grid_disk::GridDisk;
use crate::request::Context;
use device::sync::lock;
use device::{Clock, Completion, Instant, Op, WallTime};
use flashlog::{Answered, Verdict};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Redo writes kept for who asks: seconds of them at 15,000 a second, of some hundred bytes each.
pub const RECORDED_MAX: usize = 1 << 16;
/// Nobody has asked for so long: nothing is kept any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

/// One redo write: a FLUSH, or a write that is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedoWrite {
    /// When it was answered.
    pub at: WallTime,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The grid disk's name.
    pub grid_disk: String,
    /// The database its connection is tagged with.
    pub database: Option<Arc<str>>,
    /// Who answered it.
    pub answered: Answered,
}

/// What has been recorded since somebody asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Ask with this the next time.
    pub next: u64,
    /// So many went unseen before the first of these.
    pub missed: u64,
    /// In the order they were answered.
    pub writes: Vec<RedoWrite>,
}

#[derive(Default)]
struct State {
    /// Number of the first that is kept.
    first: u64,
    writes: VecDeque<RedoWrite>,
    asked: Instant,
}

/// See the module.
pub(crate) struct RedoRecord {
    on: AtomicBool,
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

impl RedoRecord {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<RedoRecord> {
        Arc::new(RedoRecord { on: AtomicBool::new(false), state: Mutex::default(), clock })
    }

    /// What has come since `after`, which an earlier answer gave; none: begin with what comes from now on.
    pub(crate) fn since(&self, after: Option<u64>) -> Recorded {
        let mut state = lock(&self.state);
        state.asked = self.clock.now();
        self.on.store(true, Ordering::Release);
        let next = state.first + state.writes.len() as u64;
        // A number of another life of the cell says nothing here.
        let Some(after) = after.filter(|after| *after <= next) else {
            return Recorded { next, ..Recorded::default() };
        };
        let seen = after.saturating_sub(state.first) as usize;
        let missed = state.first.saturating_sub(after);
        Recorded { next, missed, writes: state.writes.iter().skip(seen).cloned().collect() }
    }

    fn keep(&self, write: RedoWrite) {
        let mut state = lock(&self.state);
        if self.clock.now().ns_since(state.asked) > FORGOTTEN_AFTER.as_nanos() as u64 {
            self.on.store(false, Ordering::Release);
            state.first += state.writes.len() as u64;
            state.writes = VecDeque::new();
            return;
        }
        if state.writes.len() == RECORDED_MAX {
            state.writes.pop_front();
            state.first += 1;
        }
        state.writes.push_back(write);
    }
}

/// A redo write that is recorded when it is answered.
pub(crate) struct Recording {
    record: Arc<RedoRecord>,
    begun: Instant,
    grid_disk: String,
    database: Option<Arc<str>>,
    /// None: the disk alone answers.
    pub(crate) verdict: Option<Arc<Verdict>>,
}

impl Recording {
    /// The same, recorded at its end.
    pub(crate) fn wrap(self, inner: Completion) -> Completion {
        Completion::future(async move {
            let done = inner.await;
            let answered = match &self.verdict {
                Some(verdict) => verdict.get(),
                None if done.outcome == device::Outcome::Done => Some(Answered::Disk),
                None => Some(Answered::Nobody),
            };
            if let Some(answered) = answered {
                let Recording { record, begun, grid_disk, database, .. } = self;
                let took_ns = record.clock.now().ns_since(begun);
                record.keep(RedoWrite { at: record.clock.wall(), took_ns, grid_disk, database, answered });
            }
            done
        })
    }
}

impl GridDisk {
    /// A redo write begins, if it is one and somebody wants to know; `logged`: the flash log says who answers it.
    pub(crate) fn record_redo(&self, context: &Context, op: &Op, logged: bool) -> Option<Recording> {
        let record = self.redo_record.get().filter(|record| record.on.load(Ordering::Acquire))?;
        if !self.carries_redo() {
            return None;
        }
        let volatile = self.disk.geometry().volatile_cache;
        let is_redo_write = match op {
            Op::Flush => volatile || logged,
            Op::Write { fua, .. } | Op::WriteZeroes { fua, .. } => *fua || !volatile,
            Op::Read { .. } | Op::Discard { .. } | Op::Status { .. } => false,
        };
        is_redo_write.then(|| Recording {
            record: record.clone(),
            begun: record.clock.now(),
            grid_disk: self.name(),
            database: context.database.clone(),
            verdict: logged.then(Arc::default),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Prng;

    #[derive(Default)]
    struct Hands(std::sync::atomic::AtomicU64);

    fn write(took_ns: u64) -> RedoWrite {
        let (at, answered) = (WallTime(1), Answered::Flash);
        RedoWrite { at, took_ns, grid_disk: "redo".to_owned(), database: None, answered }
    }

    impl Clock for Hands {
        fn now(&self) -> Instant {
            Instant(self.0.load(Ordering::Relaxed))
        }
        fn wall(&self) -> WallTime {
            WallTime(self.now().0)
        }
        fn sleep_until(&self, _: Instant) -> device::Timer {
            unreachable!("nobody sleeps here")
        }
    }

    #[test]
    fn each_asker_gets_what_came_since_and_hears_of_what_went_unseen() {
        let clock = Arc::new(Hands::default());
        let record = RedoRecord::new(clock.clone());
        let first = record.since(None);
        assert_eq!(first, Recorded::default());
        record.keep(write(1));
        record.keep(write(2));
        let got = record.since(Some(first.next));
        assert_eq!((got.next, got.missed, got.writes.len()), (2, 0, 2));
        assert_eq!(record.since(Some(2)).writes, []);
        let mut prng = Prng::new(1);
        let many = RECORDED_MAX as u64 + 1 + prng.below(100);
        (0..many).for_each(|n| record.keep(write(n)));
        let got = record.since(Some(2));
        assert_eq!((got.next, got.missed), (2 + many, many - RECORDED_MAX as u64));
        assert_eq!(got.writes.len(), RECORDED_MAX);
        assert_eq!(got.writes[0].took_ns, got.missed);
        assert_eq!(record.since(Some(u64::MAX)).writes, [], "of another life");
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let clock = Arc::new(Hands::default());
        let record = RedoRecord::new(clock.clone());
        record.since(None);
        record.keep(write(1));
        clock.0.store(FORGOTTEN_AFTER.as_nanos() as u64 + 1, Ordering::Relaxed);
        record.keep(write(2));
        assert!(!record.on.load(Ordering::Relaxed));
        let got = record.since(Some(0));
        assert_eq!((got.next, got.missed, got.writes.len()), (1, 1, 0), "what was kept is gone, and said so");
    }
}
