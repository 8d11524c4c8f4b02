//! The metrics of write-back in flush order. The age of the oldest write that is not on disk is FC_DIRTY_AGE, as in plain
//! write-back.
//!
//! Never keeps a value: read from the counters of the grid disk when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter};

/// The metrics of batches.
pub(crate) const ROWS: &[&[Definition]] = &[
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_BATCH",
        Requests,
        "batches of what was dirty at one moment that the disk has got whole (write-back-ordered)",
        |c| c.ordered_batches.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_BATCH_FLUSH",
        Requests,
        "moments for batches that a FLUSH of a client has set (write-back-ordered)",
        |c| c.ordered_cuts_at_flush.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_BY_JOURNAL",
        Bytes,
        "bytes written to the journal of the grid disk (write-back-ordered)",
        |c| c.journal_bytes.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_WHOLE",
        Requests,
        "times the disk had everything, so that writes went to it (write-back-ordered)",
        |c| c.ordered_wholes.get()
    ),
];
