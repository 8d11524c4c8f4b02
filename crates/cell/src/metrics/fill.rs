//! The metrics of filling by `evict` and `feed`, in the words of the database flash cache's statistics.
//!
//! Never keeps a value: read from the counters of the grid disk when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter};

/// The metrics of inserts.
pub(crate) const ROWS: &[&[Definition]] = &[
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_INSERT",
        Requests,
        "blocks that were offered by a buffer cache, or fed, and written to flash",
        |c| c.inserts.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_INSERT_SKIP_EXISTS",
        Requests,
        "blocks offered or fed that were on flash already",
        |c| c.insert_skips_exists.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_INSERT_SKIP_NOT_CURRENT",
        Requests,
        "blocks offered or fed that had changed since they were read",
        |c| c.insert_skips_not_current.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_INSERT_SKIP_OVERLOADED",
        Requests,
        "blocks not written to flash since the writer was overloaded: flash was busier than the disk, or had no room",
        |c| c.insert_skips_overloaded.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_INSERT_SKIP_NOT_USEFUL",
        Requests,
        "blocks offered or fed that are not to be cached, or would not be worth the wear",
        |c| c.insert_skips_not_useful.get()
    ),
    counter!(GridDisk, "GD_FC_IO_RQ_FEED", Requests, "blocks that were fed: of GD_FC_IO_RQ_INSERT", |c| c.fed.get()),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_FEED_OVERRUN",
        Requests,
        "blocks that were to be fed and made room in memory for younger ones",
        |c| c.feed_overruns.get()
    ),
    counter!(
        GridDisk,
        "GD_FC_IO_RQ_FEED_SKIP_PREFETCH",
        Requests,
        "blocks that were not fed since their reads followed one another",
        |c| c.feed_skips_prefetch.get()
    ),
];
