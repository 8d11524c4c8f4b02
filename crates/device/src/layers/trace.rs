//! The most recent requests of a device, with their times: for looking at what led up to something.
//!
//! Never keeps content, never grows beyond its capacity.

use crate::clock::{Clock, Instant};
use crate::io::{Completion, Device, Geometry, Io, Op, Outcome, Verb};
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Entries a trace may be asked to keep: 64 bytes each, 4 MiB.
pub const TRACE_ENTRIES_MAX: usize = 65_536;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Its number since the layer was made, from 0.
    pub sequence: u64,
    /// What.
    pub verb: Verb,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Durable before completion.
    pub fua: bool,
    /// When it was submitted.
    pub start: Instant,
    /// When it completed and how; none while under way.
    pub end: Option<(Instant, Outcome)>,
}

/// See the module's head.
pub struct Trace {
    inner: Device,
    clock: Arc<dyn Clock>,
    entries: Arc<Mutex<Entries>>,
}

struct Entries {
    capacity: usize,
    next: u64,
    /// Consecutive sequences; the last is `next - 1`.
    recent: VecDeque<TraceEntry>,
}

impl Trace {
    /// Keep the last `capacity` requests of `inner` (at most [`TRACE_ENTRIES_MAX`]).
    #[must_use]
    pub fn new(inner: Device, clock: Arc<dyn Clock>, capacity: usize) -> Arc<Trace> {
        let capacity = capacity.clamp(1, TRACE_ENTRIES_MAX);
        let entries = Entries { capacity, next: 0, recent: VecDeque::with_capacity(capacity) };
        Arc::new(Trace { inner, clock, entries: Arc::new(Mutex::new(entries)) })
    }

    /// The recent requests, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<TraceEntry> {
        lock(&self.entries).recent.iter().copied().collect()
    }
}

impl Io for Trace {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let (offset, len) = op.range();
        let fua = matches!(op, Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. });
        let (verb, start) = (op.verb(), self.clock.now());
        let sequence = {
            let mut entries = lock(&self.entries);
            let sequence = entries.next;
            entries.next += 1;
            if entries.recent.len() == entries.capacity {
                entries.recent.pop_front();
            }
            entries.recent.push_back(TraceEntry { sequence, verb, offset, len, fua, start, end: None });
            sequence
        };
        let inner = self.inner.submit(op);
        let (entries, clock) = (self.entries.clone(), self.clock.clone());
        Completion::future(async move {
            let completed = inner.await;
            let end = clock.now();
            let mut entries = lock(&entries);
            let first = entries.next - entries.recent.len() as u64;
            let place = sequence.checked_sub(first).and_then(|p| usize::try_from(p).ok());
            if let Some(entry) = place.and_then(|p| entries.recent.get_mut(p)) {
                entry.end = Some((end, completed.outcome));
            }
            drop(entries);
            completed
        })
    }
}
