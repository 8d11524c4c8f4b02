//! What passes to each cell disk, and what flash holds for it. Small is up to 128 KiB, large is more.
//!
//! Never keeps a value: read when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric, time, utilisation};

/// Time spent on requests of one kind and how long one took.
macro_rules! latency {
    ($name:literal, $requests:literal, $of:literal, $read:expr) => {
        time!(CellDisk, $name, $requests, concat!("time of ", $of), concat!("time of one of ", $of), $read)
    };
}

/// Time in which requests were under way and its share of the time that passed.
macro_rules! busy {
    ($name:literal, $time:literal, $of:literal, $read:expr) => {
        utilisation!(
            CellDisk,
            $time,
            $name,
            concat!("time in which ", $of, " were under way"),
            concat!("share of the time in which ", $of, " were under way"),
            $read
        )
    };
}

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        CellDisk,
        "CD_BY_FC_DIRTY",
        Bytes,
        "data in the flash cache that is newer than on a cell disk, of its grid disks",
        Formula::Gauge(Reading::HeldOfCellDisk(|it| it.dirty_bytes))
    ),
    counter!(CellDisk, "CD_IO_BY_R_LG", Bytes, "bytes of large reads from a cell disk", |d| d.read_large.bytes),
    counter!(CellDisk, "CD_IO_BY_R_SM", Bytes, "bytes of small reads from a cell disk", |d| d.read_small.bytes),
    counter!(CellDisk, "CD_IO_BY_W_LG", Bytes, "bytes of large writes to a cell disk", |d| d.write_large.bytes),
    counter!(CellDisk, "CD_IO_BY_W_SM", Bytes, "bytes of small writes to a cell disk", |d| d.write_small.bytes),
    metric!(
        CellDisk,
        "CD_IO_ERRS",
        Count,
        "requests to a cell disk that failed",
        Formula::Counter(Reading::CellDisk(|d| d.errors))
    ),
    metric!(
        CellDisk,
        "CD_IO_ERRS_MIN",
        Count,
        "requests to a cell disk that failed, a minute",
        Formula::PerMinute("CD_IO_ERRS")
    ),
    counter!(CellDisk, "CD_IO_FLUSH", Requests, "flushes of a cell disk", |d| d.flush.requests),
    metric!(
        CellDisk,
        "CD_IO_LOAD",
        Count,
        "requests to a cell disk under way",
        Formula::Gauge(Reading::CellDisk(|d| d.in_flight))
    ),
    counter!(CellDisk, "CD_IO_RQ_R_LG", Requests, "large reads from a cell disk", |d| d.read_large.requests),
    counter!(CellDisk, "CD_IO_RQ_R_SM", Requests, "small reads from a cell disk", |d| d.read_small.requests),
    counter!(CellDisk, "CD_IO_RQ_W_LG", Requests, "large writes to a cell disk", |d| d.write_large.requests),
    counter!(CellDisk, "CD_IO_RQ_W_SM", Requests, "small writes to a cell disk", |d| d.write_small.requests),
    latency!("CD_IO_TM_FLUSH", "CD_IO_FLUSH", "flushes of a cell disk", |d| d.flush.busy_ns),
    latency!("CD_IO_TM_R_LG", "CD_IO_RQ_R_LG", "large reads from a cell disk", |d| d.read_large.busy_ns),
    latency!("CD_IO_TM_R_SM", "CD_IO_RQ_R_SM", "small reads from a cell disk", |d| d.read_small.busy_ns),
    latency!("CD_IO_TM_W_LG", "CD_IO_RQ_W_LG", "large writes to a cell disk", |d| d.write_large.busy_ns),
    latency!("CD_IO_TM_W_SM", "CD_IO_RQ_W_SM", "small writes to a cell disk", |d| d.write_small.busy_ns),
    busy!("CD_IO_UTIL", "CD_IO_TM_UTIL", "requests to a cell disk", |d| d.utilised_ns),
    busy!("CD_IO_UTIL_LG", "CD_IO_TM_UTIL_LG", "large requests to a cell disk", |d| d.utilised_large_ns),
    busy!("CD_IO_UTIL_SM", "CD_IO_TM_UTIL_SM", "small requests to a cell disk", |d| d.utilised_small_ns),
];
