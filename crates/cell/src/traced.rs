//! Requests of clients as they begin, for `flashcell trace record`: what a policy is to be tried on.
//!
//! Never tells what was read or written, only where.

use crate::active::ActiveKind;
use crate::grid_disk::GridDisk;
use crate::recorder::Recorder;
use crate::redo::RedoWrite;
use crate::request::Context;
use device::{Clock, WallTime};
use std::sync::Arc;

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
    pub(crate) fn trace(&self, context: &Context, kind: ActiveKind, offset: u64, len: u64) {
        let Some(trace) = self.records.get().map(|records| &records.trace).filter(|trace| trace.is_on()) else {
            return;
        };
        let (at, grid_disk, database) = (trace.clock.wall(), self.name(), context.database.clone());
        trace.keep(TracedRequest { at, grid_disk, database, kind, offset, len });
    }
}
