//! Metrics of the time that the flash cache saves, see [`crate::base::service_times`].

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric};

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    counter!(GridDisk, "GD_FC_IO_RQ_R", Requests, "reads of a grid disk served whole from the flash cache", |c| c
        .cache_hits
        .requests
        .get()),
    metric!(
        GridDisk,
        "GD_FC_TM_R_DISK",
        Nanoseconds,
        "time of one read from disk that the flash cache missed, in the mean since start",
        Formula::Gauge(Reading::GridDisk(|c| c.times.disk.mean_ns().unwrap_or(0)))
    ),
    metric!(
        GridDisk,
        "GD_FC_TM_R_FLASH",
        Nanoseconds,
        "time of one read served from the flash cache, in the mean since start",
        Formula::Gauge(Reading::GridDisk(|c| c.times.flash.mean_ns().unwrap_or(0)))
    ),
    metric!(
        GridDisk,
        "GD_FC_TM_SAVED",
        Nanoseconds,
        "time saved by the flash cache: hits times the difference of the two means",
        Formula::Gauge(Reading::GridDisk(|c| c.times.saved_ns(c.cache_hits.requests.get())))
    ),
];
