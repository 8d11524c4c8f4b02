//! The metrics of KEEP data, by the vendor's names.
//!
//! Never keeps a value: read from the cache's totals when asked.

use crate::metrics::{Base, CacheTotals, Definition, Formula, MetricObject, Reading};

/// The metrics of KEEP data in the flash cache.
pub(crate) const ROWS: &[Definition] = &[
    row(
        "FC_BYKEEP_DIRTY",
        Base::Bytes,
        "KEEP data in the cache that is newer than on disk",
        gauge(|c| c.keep_usage().dirty_bytes),
    ),
    row(
        "FC_BYKEEP_OVERWR",
        Base::Bytes,
        "KEEP data that left the cache since the space for KEEP data ran out",
        counter(|c| c.member("keep_overwritten_bytes")),
    ),
    row(
        "FC_BYKEEP_OVERWR_SEC",
        Base::Bytes,
        "KEEP data that left the cache since the space for KEEP data ran out, a second",
        Formula::PerSecond("FC_BYKEEP_OVERWR"),
    ),
    row("FC_BYKEEP_USED", Base::Bytes, "valid data in the space for KEEP data", gauge(|c| c.keep_usage().used_bytes)),
    row("FC_IO_BYKEEP_R", Base::Bytes, "bytes of KEEP data read from the cache", counter(|c| c.keep_hits().1)),
    row(
        "FC_IO_BYKEEP_R_SEC",
        Base::Bytes,
        "bytes of KEEP data read from the cache, a second",
        Formula::PerSecond("FC_IO_BYKEEP_R"),
    ),
    row(
        "FC_IO_BYKEEP_W",
        Base::Bytes,
        "bytes filled into the space for KEEP data",
        counter(|c| c.member("keep_fill_bytes")),
    ),
    row(
        "FC_IO_BYKEEP_W_SEC",
        Base::Bytes,
        "bytes filled into the space for KEEP data, a second",
        Formula::PerSecond("FC_IO_BYKEEP_W"),
    ),
    row(
        "FC_IO_RQKEEP_R",
        Base::Requests,
        "reads of KEEP data served whole from the cache",
        counter(|c| c.keep_hits().0),
    ),
    row(
        "FC_IO_RQKEEP_R_SEC",
        Base::Requests,
        "reads of KEEP data served whole from the cache, a second",
        Formula::PerSecond("FC_IO_RQKEEP_R"),
    ),
    row(
        "FC_IO_RQKEEP_R_MISS",
        Base::Requests,
        "reads of KEEP data that needed the disk, part or all",
        counter(|c| c.keep_misses().0),
    ),
    row(
        "FC_IO_RQKEEP_R_MISS_SEC",
        Base::Requests,
        "reads of KEEP data that needed the disk, part or all, a second",
        Formula::PerSecond("FC_IO_RQKEEP_R_MISS"),
    ),
    row(
        "FC_IO_RQKEEP_W",
        Base::Requests,
        "4 KiB parts filled into the space for KEEP data",
        counter(|c| c.member("keep_fills")),
    ),
    row(
        "FC_IO_RQKEEP_W_SEC",
        Base::Requests,
        "4 KiB parts filled into the space for KEEP data, a second",
        Formula::PerSecond("FC_IO_RQKEEP_W"),
    ),
    row(
        "FC_IO_RQKEEP_W_SKIP_SHARE",
        Base::Requests,
        "blocks of KEEP data cached as DEFAULT data since the space for KEEP data was full",
        counter(|c| c.member("keep_skips_share")),
    ),
];

const fn row(name: &'static str, base: Base, description: &'static str, formula: Formula) -> Definition {
    Definition { name, description, object: MetricObject::FlashCache, base, formula }
}

const fn counter(read: fn(&CacheTotals) -> u64) -> Formula {
    Formula::Counter(Reading::FlashCache(read))
}

const fn gauge(read: fn(&CacheTotals) -> u64) -> Formula {
    Formula::Gauge(Reading::FlashCache(read))
}
