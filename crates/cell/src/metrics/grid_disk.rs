//! What clients ask of each grid disk, and what flash holds that its disk has not. Small is up to 128 KiB, large is more.
//!
//! Never keeps a value: read when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric};

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        GridDisk,
        "GD_BY_FC_DIRTY",
        Bytes,
        "data of a grid disk in the cache that is newer than on disk",
        Formula::Gauge(Reading::HeldOfGridDisk(|it| it.dirty_bytes))
    ),
    metric!(
        GridDisk,
        "GD_FC_DIRTY_AGE",
        Nanoseconds,
        "age of the oldest acknowledged write of a grid disk that is not on disk, at most",
        Formula::Gauge(Reading::HeldOfGridDisk(|it| it.dirty_age_ns))
    ),
    counter!(GridDisk, "GD_IO_BY_R_LG", Bytes, "bytes of large reads of a grid disk", |c| c.reads.large.bytes.get()),
    counter!(GridDisk, "GD_IO_BY_R_SM", Bytes, "bytes of small reads of a grid disk", |c| c.reads.small.bytes.get()),
    counter!(GridDisk, "GD_IO_BY_W_LG", Bytes, "bytes of large writes to a grid disk", |c| c.writes.large.bytes.get()),
    counter!(GridDisk, "GD_IO_BY_W_SM", Bytes, "bytes of small writes to a grid disk", |c| c.writes.small.bytes.get()),
    metric!(
        GridDisk,
        "GD_IO_ERRS",
        Count,
        "requests to a grid disk answered with an error",
        Formula::Counter(Reading::GridDisk(|c| c.errors.get()))
    ),
    metric!(
        GridDisk,
        "GD_IO_ERRS_MIN",
        Count,
        "requests to a grid disk answered with an error, a minute",
        Formula::PerMinute("GD_IO_ERRS")
    ),
    counter!(GridDisk, "GD_IO_FLUSH", Requests, "flushes of a grid disk", |c| c.flushes.get()),
    counter!(GridDisk, "GD_IO_RQ_R_LG", Requests, "large reads of a grid disk", |c| c.reads.large.requests.get()),
    counter!(GridDisk, "GD_IO_RQ_R_SM", Requests, "small reads of a grid disk", |c| c.reads.small.requests.get()),
    counter!(GridDisk, "GD_IO_RQ_W_LG", Requests, "large writes to a grid disk", |c| c.writes.large.requests.get()),
    counter!(GridDisk, "GD_IO_RQ_W_SM", Requests, "small writes to a grid disk", |c| c.writes.small.requests.get()),
];
