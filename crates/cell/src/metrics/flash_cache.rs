//! What the flash cache holds and does, of all its flash together.
//!
//! Of reads, FC_IO_…_R, FC_IO_…_R_MISS and FC_IO_…_R_SKIP are disjoint and their sum is GD_IO_…_R_SM and GD_IO_…_R_LG of all grid disks,
//! in requests (RQ) and in bytes (BY). So are, of writes, FC_IO_…_W without what misses and inserts bring, and FC_IO_…_W_SKIP.
//!
//! Never keeps a value: read when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric};

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        FlashCache,
        "FC_BY_ALLOCATED",
        Bytes,
        "flash given to the cache",
        Formula::Gauge(Reading::FlashCache(|c| c.size_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_DIRTY",
        Bytes,
        "data in the cache that is newer than on disk",
        Formula::Gauge(Reading::FlashCache(|c| c.dirty_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM",
        Bytes,
        "memory of the cache: index, checksums, names of blocks that left",
        Formula::Gauge(Reading::FlashCache(|c| c.memory_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM_INDEX",
        Bytes,
        "memory of the cache's index",
        Formula::Gauge(Reading::FlashCache(|c| c.index_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM_MAX",
        Bytes,
        "the most memory the cache may take",
        Formula::Gauge(Reading::FlashCache(|c| c.memory_bytes_max))
    ),
    metric!(
        FlashCache,
        "FC_ENTRIES",
        Count,
        "entries of the cache's index: one a block, or more where its parts came by themselves",
        Formula::Gauge(Reading::FlashCache(|c| c.entries))
    ),
    metric!(
        FlashCache,
        "FC_BY_MEM_INDEX_ENTRY",
        Bytes,
        "memory of the cache's index for each of its entries, rounded up",
        Formula::Gauge(Reading::FlashCache(|c| if c.entries == 0 { 0 } else { c.index_bytes.div_ceil(c.entries) }))
    ),
    metric!(
        FlashCache,
        "FC_BY_STALE_DIRTY",
        Bytes,
        "data newer than on disk on flash that has failed: its grid disks are offline",
        Formula::Gauge(Reading::FlashCache(|c| c.stale_dirty_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_SUSPECT",
        Bytes,
        "disk space that was being written to at a crash: what is cached of it is read from disk until it has been compared with the disk",
        Formula::Gauge(Reading::FlashCache(|c| c.suspect_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_UNVERIFIED",
        Bytes,
        "flash whose log has not been verified since the start from the checkpoint of a clean stop",
        Formula::Gauge(Reading::FlashCache(|c| c.unverified_bytes))
    ),
    metric!(
        FlashCache,
        "FC_BY_USED",
        Bytes,
        "valid data in the cache",
        Formula::Gauge(Reading::FlashCache(|c| c.used_bytes))
    ),
    metric!(
        FlashCache,
        "FC_DIRTY_AGE",
        Nanoseconds,
        "age of the oldest acknowledged write that is not on disk, at most",
        Formula::Gauge(Reading::FlashCache(|c| c.dirty_age_ns))
    ),
    counter!(FlashCache, "FC_IO_BY_DISK_WRITE", Bytes, "bytes destaged: newer than on disk, written there", |c| c
        .member("destage_bytes")),
    counter!(FlashCache, "FC_IO_RQ_DISK_WRITE", Requests, "writes to disk of what was newer on flash", |c| c
        .destages
        .requests),
    counter!(FlashCache, "FC_IO_RQ_W_FIRST", Requests, "4 KiB parts that a write made newer than on disk", |c| c
        .member("dirty_writes")
        .saturating_sub(c.member("dirty_overwrites"))),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_OVERWRITE",
        Requests,
        "4 KiB parts written again before they were destaged: writes the disk was spared",
        |c| c.member("dirty_overwrites")
    ),
    counter!(FlashCache, "FC_IO_BY_DISCARD", Bytes, "bytes of flash discarded before they were reused", |c| c
        .member("discard_bytes")),
    counter!(
        FlashCache,
        "FC_IO_BY_CARRY",
        Bytes,
        "bytes of records written again since their segment was reused",
        |c| c.member("carried_bytes")
    ),
    counter!(FlashCache, "FC_IO_BY_COPY", Bytes, "bytes of cached blocks copied to make room for what comes", |c| c
        .member("move_bytes")),
    counter!(FlashCache, "FC_IO_BY_FLASH_W", Bytes, "bytes written to flash, headers and records included", |c| c
        .member("flash_bytes_written")),
    counter!(FlashCache, "FC_IO_BY_R", Bytes, "bytes of reads that came from the cache", |c| c.hits.bytes
        + c.partial.bytes),
    counter!(
        FlashCache,
        "FC_IO_BY_R_MISS",
        Bytes,
        "bytes of reads that came from disk since they were not cached",
        |c| c.misses.bytes
    ),
    counter!(
        FlashCache,
        "FC_IO_BY_R_SKIP",
        Bytes,
        "bytes of reads that came from disk since they went past the cache",
        |c| c.read_skips.bytes
    ),
    counter!(
        FlashCache,
        "FC_IO_BY_R_SKIP_FC_BUSY",
        Bytes,
        "bytes of reads that were cached and came from disk since flash was busier",
        |c| c.read_skips_busy.bytes
    ),
    counter!(
        FlashCache,
        "FC_IO_BY_W",
        Bytes,
        "bytes put into the cache: by writes as clients wrote them, after read misses and by inserts in 4 KiB parts",
        |c| c.writes.bytes + c.member("fill_bytes") + c.member("insert_bytes")
    ),
    counter!(FlashCache, "FC_IO_BY_W_POPULATE", Bytes, "bytes filled after read misses, in 4 KiB parts", |c| c
        .member("fill_bytes")),
    counter!(
        FlashCache,
        "FC_IO_BY_W_POPULATE_SKIP_SCAN",
        Bytes,
        "bytes of reads whose misses were not kept in the cache since they belong to a scan and would have pushed out others",
        |c| c.fill_skips_scan.bytes
    ),
    counter!(
        FlashCache,
        "FC_IO_BY_W_SKIP_SCAN",
        Bytes,
        "bytes of writes not kept in the cache since they belong to a scan and would have pushed out others",
        |c| c.write_skips_scan.bytes
    ),
    counter!(FlashCache, "FC_IO_BY_W_SKIP", Bytes, "bytes of writes that went past the cache", |c| c.write_skips.bytes),
    metric!(
        FlashCache,
        "FC_IO_ERRS",
        Count,
        "I/O errors of flash",
        Formula::Counter(Reading::FlashCache(|c| c.member("errors")))
    ),
    metric!(
        FlashCache,
        "FC_IO_ROT",
        Count,
        "cached 4 KiB parts whose checksum did not match",
        Formula::Counter(Reading::FlashCache(|c| c.member("rot_parts")))
    ),
    metric!(
        FlashCache,
        "FC_IO_LOG_DAMAGE",
        Count,
        "segments of the log with corrupt records that could not be restored: the next crash may cost the flash device",
        Formula::Counter(Reading::FlashCache(|c| c.member("log_damage")))
    ),
    metric!(
        FlashCache,
        "FC_IO_LOG_REPAIR",
        Count,
        "corrupt headers and footers of the log found by verification and restored",
        Formula::Counter(Reading::FlashCache(|c| c.member("log_repairs")))
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_CLEAN",
        Requests,
        "segments cleaned: what was valid was copied, the garbage dropped",
        |c| c.member("cleans")
    ),
    counter!(FlashCache, "FC_IO_RQ_DISCARD", Requests, "segments discarded before they were reused", |c| c
        .member("discards")),
    counter!(FlashCache, "FC_IO_RQ_EVICT", Requests, "blocks that left the cache", |c| c.member("evictions")),
    counter!(FlashCache, "FC_IO_RQ_R", Requests, "reads served whole from the cache", |c| c.hits.requests),
    counter!(FlashCache, "FC_IO_RQ_R_MISS", Requests, "reads that needed the disk, part or all", |c| c.misses.requests),
    counter!(
        FlashCache,
        "FC_IO_RQ_R_PARTIAL",
        Requests,
        "reads served by cache and disk together: of FC_IO_RQ_R_MISS and FC_IO_RQ_R_SKIP",
        |c| c.partial.requests
    ),
    counter!(FlashCache, "FC_IO_RQ_R_SKIP", Requests, "reads that went past the cache, part or all", |c| c
        .read_skips
        .requests),
    counter!(
        FlashCache,
        "FC_IO_RQ_R_SKIP_FC_BUSY",
        Requests,
        "reads that were cached and came from disk since flash was busier",
        |c| c.read_skips_busy.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_R_SKIP_FC_THROTTLE",
        Requests,
        "reads that went past the cache since flash was slow or its content rotten",
        |c| c.read_skips_flash.requests
    ),
    counter!(FlashCache, "FC_IO_RQ_R_SKIP_LG", Requests, "reads that went past the cache since they are large", |c| c
        .read_skips_large
        .requests),
    metric!(
        FlashCache,
        "FC_IO_RQ_MOVE_SKIP_ENDURANCE",
        Requests,
        "blocks not written again at reclaim since the endurance budget was empty, or low and nobody read them",
        Formula::Counter(Reading::FlashCache(|c| c.member("move_skips_endurance")))
    ),
    metric!(
        FlashCache,
        "FC_IO_RQ_OVERWRITE_SKIP_ENDURANCE",
        Requests,
        "writes not cached since the endurance budget was low and nothing had been read since flash was last written for it",
        Formula::Counter(Reading::FlashCache(|c| c.member("overwrite_skips_endurance")))
    ),
    metric!(
        FlashCache,
        "FC_IO_RQ_REPLACEMENT_ATTEMPTED",
        Requests,
        "segments reclaimed to make room",
        Formula::Counter(Reading::FlashCache(|c| c.member("reclaims")))
    ),
    metric!(
        FlashCache,
        "FC_IO_RQ_REPLACEMENT_FAILED",
        Requests,
        "fills refused since no segment was free",
        Formula::Counter(Reading::FlashCache(|c| c.member("fill_skips_space")))
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_REWRITE",
        Requests,
        "writes to flash made again, since a flush of the device had failed after them",
        |c| c.member("written_again")
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W",
        Requests,
        "writes kept in the cache, reads whose misses were, and inserts",
        |c| c.writes.requests + c.populates + c.inserts
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_POPULATE",
        Requests,
        "reads, prefetches and blocks brought back of which something was filled",
        |c| c.populates
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_POPULATE_SKIP_FC_BUSY",
        Requests,
        "reads whose misses were not kept in the cache since flash was busier than the disk",
        |c| c.fill_skips_busy.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_POPULATE_SKIP_SCAN",
        Requests,
        "reads whose misses were not kept in the cache since they belong to a scan and would have pushed out others",
        |c| c.fill_skips_scan.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_REFILL",
        Requests,
        "blocks brought back to flash that came in the place of other flash",
        |c| c.refills
    ),
    counter!(FlashCache, "FC_IO_RQ_W_SKIP", Requests, "writes that went past the cache", |c| c.write_skips.requests),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_FC_BUSY",
        Requests,
        "writes not kept in the cache since flash was busier than the disk",
        |c| c.write_fill_skips_busy.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_IORM_SIZE",
        Requests,
        "blocks not written to the cache since their database had what the I/O plan lets it have",
        |c| c.member("fill_skips_quota") + c.member("dirty_skips_quota")
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_ENDURANCE",
        Requests,
        "blocks not filled since the endurance budget was low",
        |c| c.member("fill_skips_endurance")
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_INDEX",
        Requests,
        "blocks not written to the cache since the memory for its index was full",
        |c| c.member("fill_skips_index")
    ),
    counter!(FlashCache, "FC_IO_RQ_W_SKIP_LG", Requests, "writes that went past the cache since they are large", |c| c
        .write_skips_large
        .requests),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_MEM",
        Requests,
        "blocks not written to the cache since no memory was free for what is on its way to flash",
        |c| c.member("fill_skips_buffer")
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_POLICY",
        Requests,
        "new blocks not written to the cache since its policy lets in only some of them at present",
        |c| c.member("fill_skips_policy")
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_SCAN",
        Requests,
        "writes not kept in the cache since they belong to a scan and would have pushed out others",
        |c| c.write_skips_scan.requests
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_SLOW",
        Requests,
        "offers to the cache not taken since a request to flash was late",
        |c| c.member("fill_skips_slow")
    ),
    counter!(
        FlashCache,
        "FC_IO_RQ_W_SKIP_SPACE",
        Requests,
        "times that a block written in write-back found no room on flash: what is left of its request goes to the disk",
        |c| c.member("dirty_skips_space")
    ),
];
