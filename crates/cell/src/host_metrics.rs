//! What the host of the cell has in use, and what flash holds of each grid disk that its disk has not.
//!
//! Never keeps a value: read when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, metric, milli_percent};

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        Cell,
        "CL_CPUT",
        MilliPercent,
        "processor time of the host in use, of all its processors",
        Formula::ShareOfTime("CL_CPU_TM")
    ),
    metric!(
        Cell,
        "CL_CPU_TM",
        Nanoseconds,
        "processor time of the host in use, in the mean of its processors",
        Formula::Counter(Reading::Cell(|u| u.host_cpu_ns))
    ),
    metric!(
        Cell,
        "CL_MEMUT",
        MilliPercent,
        "memory of the host in use: what is not to be had without swapping",
        Formula::Gauge(Reading::Cell(|u| milli_percent(u.host_memory_used_bytes, u.host_memory_bytes)))
    ),
    metric!(
        Cell,
        "CL_SWAP_USAGE",
        MilliPercent,
        "swap space of the host in use",
        Formula::Gauge(Reading::Cell(|u| milli_percent(u.host_swap_used_bytes, u.host_swap_bytes)))
    ),
    metric!(
        GridDisk,
        "GD_BY_FC_DIRTY",
        Bytes,
        "data of a grid disk in the cache that is newer than on disk",
        Formula::Gauge(Reading::ServedDisk(|disk| disk.dirty_bytes()))
    ),
];
