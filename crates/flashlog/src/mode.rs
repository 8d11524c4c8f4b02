//! When the flash leg of a sync begins.

use crate::estimate::Estimate;
use std::time::Duration;

/// How a redo grid disk uses the flash log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mode {
    /// At once while flash is clearly quicker than the disk, else as [`Mode::Hedge`].
    #[default]
    Auto,
    /// At once.
    Race,
    /// When the disk takes longer than it usually does.
    Hedge,
    /// Flash acknowledges, the disk gets it later.
    Flash,
    /// Not at all.
    Off,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 5] = [Mode::Auto, Mode::Race, Mode::Hedge, Mode::Flash, Mode::Off];

    /// As the operator writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Race => "race",
            Mode::Hedge => "hedge",
            Mode::Flash => "flash",
            Mode::Off => "off",
        }
    }

    pub(crate) fn of_code(code: u8) -> Mode {
        Mode::ALL[usize::from(code) % Mode::ALL.len()]
    }
}

/// Fewer samples than this say nothing: both legs run, to learn.
const LEARN_SAMPLES: u64 = 32;
/// One sync in so many runs both legs at once, to keep the figures of flash fresh.
pub(crate) const PROBE_EVERY: u64 = 64;
/// A write that the disk's cache should take at once is hedged only after this: it is not what clients wait for.
const WRITE_DELAY_MIN: Duration = Duration::from_millis(10);

fn is_clearly_quicker(flash_ns: Option<u64>, disk_ns: Option<u64>) -> bool {
    // By a fifth: less is noise, and the write costs flash its life.
    matches!((flash_ns, disk_ns), (Some(flash), Some(disk)) if flash.saturating_mul(5) <= disk.saturating_mul(4))
}

/// After how long the flash leg of a sync begins. `flash_ns` is the median of a durable ring write.
pub(crate) fn sync_delay(
    mode: Mode,
    disk: &Estimate,
    flash_ns: Option<u64>,
    flash_samples: u64,
    per_mille: u64,
) -> Duration {
    let hedge = || Duration::from_nanos(disk.quantile(per_mille).unwrap_or(0));
    match mode {
        Mode::Race | Mode::Flash => Duration::ZERO,
        Mode::Hedge => hedge(),
        Mode::Auto | Mode::Off => {
            let knows = disk.samples() >= LEARN_SAMPLES && flash_samples >= LEARN_SAMPLES;
            if !knows || is_clearly_quicker(flash_ns, disk.quantile(500)) { Duration::ZERO } else { hedge() }
        }
    }
}

/// After how long a write that nobody has synced yet is given to the ring as well.
pub(crate) fn write_delay(mode: Mode, disk: &Estimate, flash_ns: Option<u64>) -> Duration {
    if mode == Mode::Flash {
        return Duration::ZERO;
    }
    let median = disk.quantile(500);
    let slow = median.is_some_and(|ns| ns > 1_000_000);
    if mode == Mode::Auto && slow && disk.samples() >= LEARN_SAMPLES && is_clearly_quicker(flash_ns, median) {
        return Duration::ZERO;
    }
    Duration::from_nanos(disk.quantile(990).unwrap_or(0)).saturating_mul(2).max(WRITE_DELAY_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(ns: u64) -> Estimate {
        let mut estimate = Estimate::default();
        (0..100).for_each(|_| estimate.add(ns));
        estimate
    }

    #[test]
    fn auto_races_only_where_flash_is_a_fifth_quicker() {
        let disk = disk(1_000_000);
        assert_eq!(sync_delay(Mode::Auto, &disk, Some(500_000), 100, 950), Duration::ZERO);
        assert!(sync_delay(Mode::Auto, &disk, Some(950_000), 100, 950) > Duration::from_micros(900));
        assert_eq!(sync_delay(Mode::Auto, &disk, Some(950_000), 3, 950), Duration::ZERO, "to learn");
        assert_eq!(sync_delay(Mode::Race, &disk, Some(950_000), 100, 950), Duration::ZERO);
        assert!(sync_delay(Mode::Hedge, &disk, Some(1), 100, 950) > Duration::from_micros(900));
    }

    #[test]
    fn writes_are_hedged_at_once_only_on_a_slow_disk() {
        assert_eq!(write_delay(Mode::Auto, &disk(4_000_000), Some(100_000)), Duration::ZERO);
        assert_eq!(write_delay(Mode::Auto, &disk(50_000), Some(10_000)), WRITE_DELAY_MIN);
    }
}
