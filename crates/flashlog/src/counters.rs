//! What the flash log counts, in the words of the vendor's metrics (reference: exadata-facts section 3.2).

use std::sync::atomic::{AtomicU64, Ordering};

/// A count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why the flash leg of a sync was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// The ring is full of redo that is not on the disk yet, or the flash does not keep up.
    Busy,
    /// A write was longer than its share of the ring.
    Large,
    /// The memory for un-flushed redo is used up.
    NoBuffer,
    /// No flash device that may acknowledge is at work.
    NoFlashDisk,
    /// Switched off for the grid disk.
    DisabledGridDisk,
    /// What it writes goes to flash anyway.
    LogOnFlash,
    /// The I/O resource plan keeps its database from it.
    IormPlan,
}

impl Skip {
    /// Every reason.
    pub const ALL: [Skip; 7] = [
        Skip::Busy,
        Skip::Large,
        Skip::NoBuffer,
        Skip::NoFlashDisk,
        Skip::DisabledGridDisk,
        Skip::LogOnFlash,
        Skip::IormPlan,
    ];
}

/// Of one grid disk. A redo write is what a client waits for: a FLUSH, or a write with FUA.
#[derive(Debug, Default)]
pub struct Counters {
    /// Redo writes in all that were answered well (FL_RQ_W) and the time clients waited for them, in microseconds (FL_RQ_TM_W).
    pub redo_writes: Count,
    /// See `redo_writes`.
    pub redo_time_us: Count,
    /// Redo writes the disk answered first (FL_DISK_FIRST).
    pub disk_first: Count,
    /// Redo writes flash answered first (FL_FLASH_FIRST).
    pub flash_first: Count,
    /// Redo writes that did without flash, by reason (FL_IO_W_SKIP_…).
    pub skips: [Count; Skip::ALL.len()],
    /// Redo writes whose flash leg was begun (FL_IO_W).
    pub flash_writes: Count,
    /// Slow for the client (FL_ACTUAL_OUTLIERS).
    pub actual_outliers: Count,
    /// Slow on the disk, and flash answered in time (FL_PREVENTED_OUTLIERS).
    pub prevented_outliers: Count,
    /// Slow on flash, and the disk answered in time (FL_FLASH_ONLY_OUTLIERS).
    pub flash_only_outliers: Count,
    /// Slow, among those that had skipped flash (FL_SKIP_OUTLIERS).
    pub skip_outliers: Count,
    /// Failed disk writes and flushes (FL_DISK_IO_ERRS).
    pub disk_errors: Count,
    /// Bytes given to the disk (FL_IO_DB_BY_W).
    pub disk_bytes: Count,
    /// Bytes given to the ring, headers and padding included (FL_IO_FL_BY_W).
    pub flash_bytes: Count,
    /// Redo writes that failed.
    pub failed: Count,
}

impl Counters {
    /// Redo writes that did without flash for this reason.
    #[must_use]
    pub fn skipped(&self, why: Skip) -> u64 {
        self.skips[why as usize].get()
    }

    /// A redo write that never came to a flash log went well, in this time.
    pub fn went_past(&self, why: Skip, took_ns: u64) {
        self.redo_writes.add(1);
        self.redo_time_us.add(took_ns / 1000);
        self.skip(why);
    }

    pub(crate) fn skip(&self, why: Skip) {
        self.skips[why as usize].add(1);
    }
}
