//! Readings of the cell's own metrics and of processor time, and where the time went between two of them.

use super::report::Waits;
use crate::served::{Metrics, Server, ServerError, sum_milli};
use std::time::Duration;

/// How long a phase took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// All of it.
    pub(super) elapsed: Duration,
    /// The flush at its end, or those between.
    pub(super) flush: Duration,
    /// Sessions at a time.
    pub(super) sessions: usize,
}

/// One reading, or the difference of two. Times in microseconds, everything else in requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// By metric and object, in thousandths of the metric's unit.
    values: Metrics,
    /// Processor time of server and client.
    cpu_us: u64,
}

impl Meter {
    /// Read now.
    pub(super) fn read(server: &Server) -> Result<Meter, ServerError> {
        let values = server.metrics()?;
        let cpu_us = cpu_us(&server.pid().to_string()) + cpu_us("self");
        Ok(Meter { values, cpu_us })
    }

    /// What has grown since an earlier reading.
    pub(super) fn since(&self, before: &Meter) -> Meter {
        let grown = |(key, value): (&(String, String), &u64)| {
            (key.clone(), value.saturating_sub(before.values.get(key).copied().unwrap_or(0)))
        };
        Meter { values: self.values.iter().map(grown).collect(), cpu_us: self.cpu_us.saturating_sub(before.cpu_us) }
    }

    /// The sum of a metric over the objects whose names begin so, in whole units.
    fn sum(&self, name: &str, object: &str) -> u64 {
        sum_milli(&self.values, |found| found == name, object) / 1000
    }

    /// Reads served whole from the cache, in thousandths of those it was asked for; none when it was not asked.
    pub(super) fn hit_ratio_milli(&self) -> Option<u64> {
        let hits = self.sum("FC_IO_RQ_R", "FLASHCACHE");
        let asked = hits + self.sum("FC_IO_RQ_R_MISS", "FLASHCACHE") + self.sum("FC_IO_RQ_R_SKIP", "FLASHCACHE");
        (hits * 1000).checked_div(asked)
    }

    /// Where the time went. Each part is what all sessions spent, divided by their number, so that the parts add up to
    /// the time elapsed: I/O as the devices measured it, and the flushes, for which all wait; processor time of client and
    /// server; and what is left: queues, sockets, locks. Sessions wait for the writes and flushes of the disk, or of flash
    /// where that acknowledges them; the other is written behind their backs.
    pub(super) fn waits(&self, timing: &Timing, acknowledges_on_flash: bool) -> Waits {
        let (elapsed, flush, sessions) = (timing.elapsed, timing.flush, timing.sessions);
        let kinds = ["CD_IO_TM_R_SM", "CD_IO_TM_R_LG", "CD_IO_TM_W_SM", "CD_IO_TM_W_LG"];
        let (reads, all) = (&kinds[..2], &kinds[..]);
        let (disk_kinds, flash_kinds) = if acknowledges_on_flash { (reads, all) } else { (all, reads) };
        let disk_us: u64 = disk_kinds.iter().map(|kind| self.sum(kind, "CD_")).sum();
        let flash_us: u64 = flash_kinds.iter().map(|kind| self.sum(kind, "FD_")).sum();
        let flush_us = u64::try_from(flush.as_micros()).unwrap_or(u64::MAX);
        let (disk_flush_us, flash_flush_us) = if acknowledges_on_flash { (0, flush_us) } else { (flush_us, 0) };
        let all_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let each = |us: u64| us / sessions.max(1) as u64;
        let mut left_us = all_us;
        let mut take = |us: u64| {
            let us = us.min(left_us);
            left_us -= us;
            us
        };
        let disk_us = take(each(disk_us) + disk_flush_us);
        let flash_us = take(each(flash_us) + flash_flush_us);
        let cpu_us = take(each(self.cpu_us));
        Waits { disk_us, flash_us, cpu_us, other_us: left_us }
    }
}

/// Processor time of a process, user and system.
fn cpu_us(process: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    ticks(&stat) * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Fields 14 and 15; the name in parentheses before them may hold blanks.
fn ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time() {
        assert_eq!(ticks("1 (a ) b) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0"), 42);
        assert_eq!(ticks(""), 0);
    }

    fn meter(values: &[(&str, &str, u64)], cpu_us: u64) -> Meter {
        let values = values.iter().map(|(n, o, v)| (((*n).to_owned(), (*o).to_owned()), v * 1000)).collect();
        Meter { values, cpu_us }
    }

    #[test]
    fn parts_add_up_to_the_time_elapsed() {
        let used = meter(
            &[
                ("CD_IO_TM_R_SM", "CD_00_demo", 8_000),
                ("CD_IO_TM_W_SM", "CD_00_demo", 2_000),
                ("CD_IO_TM_R_SM", "FD_00_demo", 1_000),
                ("CD_IO_TM_W_SM", "FD_00_demo", 9_000),
            ],
            500,
        );
        let timing = |elapsed_us, flush_us| Timing {
            elapsed: Duration::from_micros(elapsed_us),
            flush: Duration::from_micros(flush_us),
            sessions: 2,
        };
        let waits = used.waits(&timing(6_100, 100), false);
        assert_eq!(waits, Waits { disk_us: 5_100, flash_us: 500, cpu_us: 250, other_us: 250 });
        let short = used.waits(&timing(5_100, 0), false);
        assert_eq!(short, Waits { disk_us: 5_000, flash_us: 100, cpu_us: 0, other_us: 0 }, "never more than elapsed");
        let on_flash = used.waits(&timing(20_000, 1_000), true);
        assert_eq!(on_flash, Waits { disk_us: 4_000, flash_us: 6_000, cpu_us: 250, other_us: 9_750 });
    }

    #[test]
    fn hit_ratio() {
        let asked = [("FC_IO_RQ_R", "FLASHCACHE", 3), ("FC_IO_RQ_R_MISS", "FLASHCACHE", 1)];
        assert_eq!(meter(&asked, 0).hit_ratio_milli(), Some(750));
        assert_eq!(Meter::default().hit_ratio_milli(), None);
        let before = meter(&[("FC_IO_RQ_R", "FLASHCACHE", 2)], 0);
        assert_eq!(meter(&asked, 0).since(&before).hit_ratio_milli(), Some(500));
    }
}
