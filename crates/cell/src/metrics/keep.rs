//! The metrics of KEEP data, by the vendor's names.
//!
//! Never keeps a value: read from the cache's totals when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric};

/// The metrics of KEEP data in the flash cache.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        FlashCache,
        "FC_BYKEEP_DIRTY",
        Bytes,
        "KEEP data in the cache that is newer than on disk",
        Formula::Gauge(Reading::FlashCache(|c| c.keep_usage().dirty_bytes))
    ),
    counter!(
        FlashCache,
        "FC_BYKEEP_OVERWR",
        Bytes,
        "KEEP data that left the cache since the space for KEEP data ran out",
        |c| c.member("keep_overwritten_bytes")
    ),
    metric!(
        FlashCache,
        "FC_BYKEEP_USED",
        Bytes,
        "valid data in the space for KEEP data",
        Formula::Gauge(Reading::FlashCache(|c| c.keep_usage().used_bytes))
    ),
    counter!(FlashCache, "FC_IO_BYKEEP_R", Bytes, "bytes of reads of KEEP data that came from the cache", |c| c
        .keep_hits()
        .1),
    counter!(FlashCache, "FC_IO_BYKEEP_W", Bytes, "bytes filled into the space for KEEP data", |c| c
        .member("keep_fill_bytes")),
    counter!(FlashCache, "FC_IO_RQKEEP_R", Requests, "reads of KEEP data served whole from the cache", |c| c
        .keep_hits()
        .0),
    counter!(
        FlashCache,
        "FC_IO_RQKEEP_R_MISS",
        Requests,
        "reads of KEEP data that needed the disk, part or all",
        |c| c.keep_misses().0
    ),
    counter!(FlashCache, "FC_IO_RQKEEP_W", Requests, "4 KiB parts filled into the space for KEEP data", |c| c
        .member("keep_fills")),
    metric!(
        FlashCache,
        "FC_IO_RQKEEP_W_SKIP_SHARE",
        Requests,
        "blocks of KEEP data cached as DEFAULT data since the space for KEEP data was full",
        Formula::Counter(Reading::FlashCache(|c| c.member("keep_skips_share")))
    ),
];
