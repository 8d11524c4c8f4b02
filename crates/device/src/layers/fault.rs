//! Faults on demand: failures, short transfers, lost answers and stalls, by verb, range and count.
//!
//! Never random by itself: a test that wants chance draws it from its own seed and programs the result.

use crate::buf::SharedBufs;
use crate::io::{Completed, Completer, Completion, Device, FailKind, Geometry, Io, Op, Outcome, Verb};
use crate::spawn::Spawn;
use crate::sync::lock;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Programmed faults at a time: a test programs a handful.
pub const FAULTS_MAX: usize = 1024;

/// What happens to a request that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It fails and the device below never sees it.
    Fail(FailKind),
    /// Only so many bytes are transferred, cut to whole logical units. For reads and writes; others pass.
    Short(u64),
    /// Its answer is lost: it is carried out or not, and its outcome is unknown.
    Unknown {
        /// Carry it out.
        carried_out: bool,
    },
    /// It waits for [`Faults::release`], then passes.
    Stall,
}

/// One programmed fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which verbs it strikes; empty for all.
    pub verbs: Vec<Verb>,
    /// Requests that touch a byte of this; none for all. Flushes touch no byte.
    pub range: Option<Range<u64>>,
    /// Matching requests that pass first.
    pub skip: u64,
    /// How many are struck then; `u64::MAX` for all.
    pub count: u64,
    /// What happens.
    pub action: Action,
}

impl Fault {
    /// Strike every request of `verb`.
    #[must_use]
    pub fn every(verb: Verb, action: Action) -> Fault {
        Fault { verbs: vec![verb], range: None, skip: 0, count: u64::MAX, action }
    }

    /// Strike the next request of `verb`.
    #[must_use]
    pub fn next(verb: Verb, action: Action) -> Fault {
        Fault { count: 1, ..Fault::every(verb, action) }
    }

    fn matches(&self, op: &Op) -> bool {
        let (offset, len) = op.range();
        let touches = |r: &Range<u64>| offset < r.end && r.start < offset.saturating_add(len);
        (self.verbs.is_empty() || self.verbs.contains(&op.verb())) && self.range.as_ref().is_none_or(touches)
    }
}

/// The name of a programmed fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

/// See the module's head.
pub struct Faults {
    inner: Device,
    spawn: Arc<dyn Spawn>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    faults: Vec<(FaultId, Fault)>,
    struck: u64,
    /// Bounded by the requests in flight above.
    stalled: Vec<(Op, Completer)>,
}

impl Faults {
    /// A layer over `inner` without any fault yet.
    #[must_use]
    pub fn new(inner: Device, spawn: Arc<dyn Spawn>) -> Arc<Faults> {
        Arc::new(Faults { inner, spawn, state: Mutex::default() })
    }

    /// Program a fault. The first that matches a request counts it.
    ///
    /// # Panics
    /// Beyond [`FAULTS_MAX`].
    pub fn add(&self, fault: Fault) -> FaultId {
        let mut state = lock(&self.state);
        assert!(state.faults.len() < FAULTS_MAX, "no more than {FAULTS_MAX} faults at a time");
        let id = FaultId(state.next);
        state.next += 1;
        state.faults.push((id, fault));
        id
    }

    /// Take a fault back. What it has stalled stays stalled.
    pub fn remove(&self, id: FaultId) {
        lock(&self.state).faults.retain(|(other, _)| *other != id);
    }

    /// Take every fault back.
    pub fn clear(&self) {
        lock(&self.state).faults.clear();
    }

    /// Requests struck so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        lock(&self.state).struck
    }

    /// Requests that are stalled now.
    #[must_use]
    pub fn stalled(&self) -> usize {
        lock(&self.state).stalled.len()
    }

    /// Let every stalled request go on, in the order they came.
    pub fn release(&self) {
        self.release_within(0..u64::MAX);
    }

    /// The same for those that begin within a range.
    pub fn release_within(&self, range: Range<u64>) {
        let released: Vec<(Op, Completer)> = {
            let mut state = lock(&self.state);
            let stalled = std::mem::take(&mut state.stalled).into_iter();
            let (released, kept) = stalled.partition(|(op, _)| range.contains(&op.range().0));
            state.stalled = kept;
            released
        };
        for (op, completer) in released {
            let inner = self.inner.submit(op);
            self.spawn.spawn(Box::pin(async move { completer.complete(inner.await) }));
        }
    }

    fn strike(&self, op: &Op) -> Option<Action> {
        let mut state = lock(&self.state);
        let (_, fault) = state.faults.iter_mut().find(|(_, f)| f.count > 0 && f.matches(op))?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        if fault.count != u64::MAX {
            fault.count -= 1;
        }
        let action = fault.action;
        state.struck += 1;
        Some(action)
    }

    fn short(&self, op: Op, bytes: u64) -> Completion {
        let unit = u64::from(self.inner.geometry().logical_bytes.max(1));
        let bytes = bytes - bytes % unit;
        match op {
            Op::Read { offset, mut bufs } if bytes < bufs.len_bytes() as u64 => {
                let head = bufs.split_to(bytes as usize);
                let inner = self.inner.submit(Op::Read { offset, bufs: head });
                Completion::future(async move {
                    let mut completed = inner.await;
                    completed.bufs.append(bufs);
                    if completed.outcome == Outcome::Done {
                        completed.outcome = Outcome::Short(bytes);
                    }
                    completed
                })
            }
            Op::Write { offset, data, fua } if bytes < data.len_bytes() as u64 => {
                let head: SharedBufs = data.slice(0..bytes as usize);
                let inner = self.inner.submit(Op::Write { offset, data: head, fua });
                Completion::future(async move {
                    let mut completed = inner.await;
                    if completed.outcome == Outcome::Done {
                        completed.outcome = Outcome::Short(bytes);
                    }
                    completed
                })
            }
            other => self.inner.submit(other),
        }
    }
}

impl Io for Faults {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        match self.strike(&op) {
            None => self.inner.submit(op),
            Some(Action::Fail(kind)) => Completion::failed(kind, op),
            Some(Action::Short(bytes)) => self.short(op, bytes),
            Some(Action::Unknown { carried_out: false }) => {
                let bufs = op.into_bufs();
                Completion::ready(Completed { outcome: Outcome::Unknown, bufs, extents: Vec::new() })
            }
            Some(Action::Unknown { carried_out: true }) => {
                let inner = self.inner.submit(op);
                Completion::future(async move { Completed { outcome: Outcome::Unknown, ..inner.await } })
            }
            Some(Action::Stall) => {
                let (completer, completion) = Completion::pair();
                lock(&self.state).stalled.push((op, completer));
                completion
            }
        }
    }
}
