//! The metrics of the flash log, by the vendor's names.
//!
//! Never keeps a value: read from what grid disks and rings have counted when asked. Exactly one of `FL_DISK_FIRST`,
//! `FL_FLASH_FIRST` and the skips counts each redo write that was answered well.

use crate::lifecycle::cell::Cell;
use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric, time};
use device::sync::lock;
use flashlog::{RingTotals, Skip};

/// What all grid disks and rings of the flash log have counted, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTotals {
    redo_writes: u64,
    redo_time_us: u64,
    disk_first: u64,
    flash_first: u64,
    skips: [u64; Skip::ALL.len()],
    flash_writes: u64,
    actual_outliers: u64,
    prevented_outliers: u64,
    flash_only_outliers: u64,
    skip_outliers: u64,
    disk_errors: u64,
    disk_bytes: u64,
    saved_bytes: u64,
    rings: RingTotals,
    /// Outliers prevented and not prevented an hour ago, or at the start if that is later.
    hour_ago: (u64, u64),
}

impl LogTotals {
    pub(crate) fn of(cell: &Cell) -> LogTotals {
        let mut all =
            LogTotals { rings: cell.flash_log().map(|log| log.totals()).unwrap_or_default(), ..Self::default() };
        for disk in cell.grid_disks() {
            let c = &disk.redo_counters;
            all.redo_writes += c.redo_writes.get();
            all.redo_time_us += c.redo_time_us.get();
            all.disk_first += c.disk_first.get();
            all.flash_first += c.flash_first.get();
            for (sum, why) in all.skips.iter_mut().zip(Skip::ALL) {
                *sum += c.skipped(why);
            }
            all.flash_writes += c.flash_writes.get();
            all.actual_outliers += c.actual_outliers.get();
            all.prevented_outliers += c.prevented_outliers.get();
            all.flash_only_outliers += c.flash_only_outliers.get();
            all.skip_outliers += c.skip_outliers.get();
            all.disk_errors += c.disk_errors.get();
            all.disk_bytes += c.disk_bytes.get();
            all.saved_bytes += disk.redo().map_or(0, |redo| redo.saved_bytes());
        }
        let now_ns = cell.world.clock.now().0;
        all.hour_ago = lock(&cell.redo_hour).before(now_ns, (all.prevented_outliers, all.actual_outliers));
        all
    }

    fn skipped(&self, why: Skip) -> u64 {
        Skip::ALL.iter().zip(self.skips).find(|(one, _)| **one == why).map_or(0, |(_, count)| count)
    }

    /// Thousandths of one per cent of the outliers there would have been that flash has prevented; all, when there were none.
    #[must_use]
    pub fn efficiency_milli_percent(&self) -> u64 {
        efficiency(self.prevented_outliers, self.actual_outliers)
    }

    /// The same of the last hour. Grid disks that were dropped meanwhile took their counts along.
    #[must_use]
    pub fn hour_efficiency_milli_percent(&self) -> u64 {
        let (prevented, actual) = self.hour_ago;
        efficiency(self.prevented_outliers.saturating_sub(prevented), self.actual_outliers.saturating_sub(actual))
    }
}

fn efficiency(prevented: u64, actual: u64) -> u64 {
    let all = u128::from(prevented) + u128::from(actual);
    (u128::from(prevented) * 100_000).checked_div(all).unwrap_or(100_000) as u64
}

/// A counter without a rate.
macro_rules! count {
    ($name:literal, $base:ident, $description:literal, $read:expr) => {
        metric!(FlashLog, $name, $base, $description, Formula::Counter(Reading::FlashLog($read)))
    };
}

/// The metrics of the flash log.
pub(crate) const ROWS: &[&[Definition]] = &[
    count!(
        "FL_ACTUAL_OUTLIERS",
        Requests,
        "redo writes that were slow for the client: both disk and flash were",
        |c| c.actual_outliers
    ),
    metric!(
        FlashLog,
        "FL_BY_KEEP",
        Bytes,
        "saved redo: on flash since the disk does not take it",
        Formula::Gauge(Reading::FlashLog(|c| c.saved_bytes))
    ),
    count!("FL_DISK_FIRST", Requests, "redo writes that the disk answered first", |c| c.disk_first),
    count!("FL_DISK_IO_ERRS", Count, "writes and flushes of redo that a disk refused", |c| c.disk_errors),
    metric!(
        FlashLog,
        "FL_EFFICIENCY_PERCENTAGE",
        MilliPercent,
        "outliers prevented of those there would have been",
        Formula::Gauge(Reading::FlashLog(LogTotals::efficiency_milli_percent))
    ),
    metric!(
        FlashLog,
        "FL_EFFICIENCY_PERCENTAGE_HOUR",
        MilliPercent,
        "the same of the last hour",
        Formula::Gauge(Reading::FlashLog(LogTotals::hour_efficiency_milli_percent))
    ),
    count!("FL_FLASH_FIRST", Requests, "redo writes that flash answered first", |c| c.flash_first),
    count!("FL_FLASH_IO_ERRS", Count, "writes and flushes of a ring that failed", |c| c.rings.errors),
    count!(
        "FL_FLASH_ONLY_OUTLIERS",
        Requests,
        "redo writes that were slow on flash, and the disk answered in time",
        |c| c.flash_only_outliers
    ),
    counter!(FlashLog, "FL_IO_DB_BY_W", Bytes, "bytes of redo written to disks", |c| c.disk_bytes),
    counter!(FlashLog, "FL_IO_FL_BY_W", Bytes, "bytes written to rings, headers and padding included", |c| c
        .rings
        .bytes),
    time!(FlashLog, "FL_IO_TM_W", "FL_IO_FL_RQ_W", "time of writes to rings", |c| c.rings.write_ns),
    count!("FL_IO_FL_RQ_W", Requests, "writes to rings, each of one redo write or several", |c| c.rings.writes),
    count!("FL_IO_W", Requests, "redo writes that used the flash log", |c| c.flash_writes),
    &[
        Definition {
            name: "FL_IO_W_SKIP_BUSY",
            description: "redo writes that did without flash: the ring was full, or behind",
            object: MetricObject::FlashLog,
            base: Base::Requests,
            formula: Formula::Counter(Reading::FlashLog(|c| c.skipped(Skip::Busy))),
        },
        Definition {
            name: "FL_IO_W_SKIP_BUSY_MIN",
            description: "redo writes that did without flash since the ring was full, or behind, a minute",
            object: MetricObject::FlashLog,
            base: Base::Requests,
            formula: Formula::PerMinute("FL_IO_W_SKIP_BUSY"),
        },
    ],
    count!("FL_IO_W_SKIP_DISABLED_GD", Requests, "redo writes that did without flash: switched off", |c| c
        .skipped(Skip::DisabledGridDisk)),
    count!(
        "FL_IO_W_SKIP_IORM_PLAN",
        Requests,
        "redo writes that did without flash: the I/O plan keeps their database from it",
        |c| c.skipped(Skip::IormPlan)
    ),
    count!("FL_IO_W_SKIP_LARGE", Requests, "redo writes that did without flash: too large", |c| c.skipped(Skip::Large)),
    count!("FL_IO_W_SKIP_LOG_ON_FLASH", Requests, "redo writes that went to flash anyway", |c| c
        .skipped(Skip::LogOnFlash)),
    count!("FL_IO_W_SKIP_NO_BUFFER", Requests, "redo writes that did without flash: no memory for them", |c| c
        .skipped(Skip::NoBuffer)),
    count!("FL_IO_W_SKIP_NO_FL_DISKS", Requests, "redo writes that did without flash: no ring at work", |c| c
        .skipped(Skip::NoFlashDisk)),
    count!("FL_PREVENTED_OUTLIERS", Requests, "redo writes that were slow on disk, and flash answered in time", |c| c
        .prevented_outliers),
    time!(FlashLog, "FL_RQ_TM_W", "FL_RQ_W", "time clients waited for redo writes", |c| c
        .redo_time_us
        .saturating_mul(1_000)),
    count!("FL_RQ_W", Requests, "redo writes in all that went well", |c| c.redo_writes),
    count!("FL_SKIP_OUTLIERS", Requests, "redo writes that were slow, among those that did without flash", |c| c
        .skip_outliers),
];

#[cfg(test)]
mod tests {
    use super::efficiency;

    #[test]
    fn efficiency_is_whole_without_outliers() {
        assert_eq!((efficiency(0, 0), efficiency(3, 1)), (100_000, 75_000));
    }
}
