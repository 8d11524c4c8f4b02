//! Requests of clients in the order they begin, for `flashcell trace record`: what a policy is to be tried on, and how long each took.
//!
//! Never tells what was read or written, only where.

use crate::base::active::ActiveKind;
use crate::base::recorder::{Kept, Recorder};
use crate::base::request::Context;
use crate::disk::grid_disk::GridDisk;
use crate::disk::redo_record::RedoWrite;
use device::{Clock, Instant, WallTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One request of a client that was let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedRequest {
    /// When it began.
    pub at: WallTime,
    /// The grid disk's name.
    pub grid_disk: String,
    /// The database its connection is tagged with.
    pub database: Option<Arc<str>>,
    /// What it does.
    pub kind: ActiveKind,
    /// Bytes from the start of the grid disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    took: Took,
}

impl TracedRequest {
    /// How long it took, in nanoseconds; none while it is under way, and of one that has failed or was given up.
    #[must_use]
    pub fn latency_ns(&self) -> Option<u64> {
        Some(self.took.ns()).filter(|ns| *ns < NEVER)
    }
}

impl Kept for TracedRequest {
    fn under_way_since(&self) -> Option<Instant> {
        (self.took.ns() == UNDER_WAY).then_some(self.took.begun)
    }
}

/// In place of the nanoseconds that a request took.
const UNDER_WAY: u64 = u64::MAX;
/// It has ended without an answer that counts.
const NEVER: u64 = u64::MAX - 1;

/// A request and its record share this: the request writes how long it took.
#[derive(Clone, Debug)]
struct Took {
    begun: Instant,
    ns: Arc<AtomicU64>,
}

impl Took {
    fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }
}

impl PartialEq for Took {
    fn eq(&self, other: &Took) -> bool {
        (self.begun, self.ns()) == (other.begun, other.ns())
    }
}

impl Eq for Took {}

/// Held over a request. One that is let go without an answer has no latency. Empty where nobody records.
#[must_use]
#[derive(Debug)]
pub(crate) struct Begun(Option<Took>);

impl Begun {
    /// The request has been answered, and well.
    pub(crate) fn answered(mut self, disk: &GridDisk) {
        if let (Some(took), Some(records)) = (self.0.take(), disk.records.get()) {
            let ns = records.trace.clock.now().ns_since(took.begun);
            took.ns.store(ns.min(NEVER - 1), Ordering::Relaxed);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(took) = &self.0 {
            took.ns.store(NEVER, Ordering::Relaxed);
        }
    }
}

/// What a cell records for who asks.
pub(crate) struct Records {
    pub(crate) redo: Arc<Recorder<RedoWrite>>,
    pub(crate) trace: Recorder<TracedRequest>,
}

impl Records {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Arc<Records> {
        Arc::new(Records { redo: Arc::new(Recorder::new(clock.clone())), trace: Recorder::new(clock.clone()) })
    }
}

impl GridDisk {
    /// A request begins, if somebody wants to know.
    pub(crate) fn trace(&self, context: &Context, kind: ActiveKind, offset: u64, len: u64) -> Begun {
        let Some(trace) = self.records.get().map(|records| &records.trace).filter(|trace| trace.is_on()) else {
            return Begun(None);
        };
        let took = Took { begun: trace.clock.now(), ns: Arc::new(AtomicU64::new(UNDER_WAY)) };
        let (at, grid_disk, database) = (trace.clock.wall(), self.name(), context.database.clone());
        trace.keep(TracedRequest { at, grid_disk, database, kind, offset, len, took: took.clone() });
        Begun(Some(took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_let_go_has_ended_without_a_latency() {
        let took = Took { begun: Instant(7), ns: Arc::new(AtomicU64::new(UNDER_WAY)) };
        let (at, grid_disk, kind) = (WallTime(1), "data".to_owned(), ActiveKind::Read);
        let request = TracedRequest { at, grid_disk, database: None, kind, offset: 0, len: 512, took: took.clone() };
        assert_eq!((request.under_way_since(), request.latency_ns()), (Some(Instant(7)), None));
        let ended = request.clone();
        drop(Begun(Some(took.clone())));
        assert_eq!((ended.under_way_since(), ended.latency_ns()), (None, None));
        took.ns.store(250, Ordering::Relaxed);
        assert_eq!((request.under_way_since(), request.latency_ns()), (None, Some(250)));
    }
}
