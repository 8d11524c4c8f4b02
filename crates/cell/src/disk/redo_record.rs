//! Redo writes as they are answered, for `flashcell redo record`: how long each took and who was first.
//!
//! Never looks at a request for nobody: the recorder says whether somebody asks.

use crate::base::recorder::{Kept, Recorder};
use crate::base::request::Context;
use crate::disk::grid_disk::GridDisk;
use device::{Completion, Instant, Op, WallTime};
use flashlog::{Answered, Verdict};
use std::sync::Arc;

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

impl Kept for RedoWrite {
    /// It is kept when it has been answered.
    fn under_way_since(&self) -> Option<Instant> {
        None
    }
}

/// A redo write that is recorded when it is answered.
pub(crate) struct Recording {
    record: Arc<Recorder<RedoWrite>>,
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
        let record = self.records.get().map(|records| &records.redo).filter(|record| record.is_on())?;
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
