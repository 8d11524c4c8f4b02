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
/// A write that the disk's cache should take at once is hedged after this at the latest, and as long as nothing is known.
const WRITE_DELAY_UNKNOWN: Duration = Duration::from_millis(10);

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

/// After how long a write that nobody has synced yet, and that a cache should take at once, is given to the ring as well. `syncs`
/// are those of the disk: whoever waits for one that long is served by flash, and a write is not waited for any longer.
pub(crate) fn write_delay(mode: Mode, writes: &Estimate, syncs: &Estimate, per_mille: u64) -> Duration {
    if mode == Mode::Flash {
        return Duration::ZERO;
    }
    let knows = writes.samples() >= LEARN_SAMPLES && syncs.samples() >= LEARN_SAMPLES;
    let (Some(write_ns), Some(sync_ns), true) = (writes.quantile(990), syncs.quantile(per_mille), knows) else {
        return WRITE_DELAY_UNKNOWN;
    };
    Duration::from_nanos(write_ns.saturating_mul(2).max(sync_ns)).min(WRITE_DELAY_UNKNOWN)
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
    fn writes_are_hedged_after_a_sync_at_most() {
        let delay = |writes, syncs| write_delay(Mode::Auto, &disk(writes), &disk(syncs), 950);
        assert!(
            delay(20_000, 500_000) > Duration::from_micros(450) && delay(20_000, 500_000) < Duration::from_micros(550)
        );
        assert!(delay(2_000_000, 500_000) > Duration::from_millis(3), "a slow write is no stall");
        assert_eq!(delay(20_000_000, 500_000), WRITE_DELAY_UNKNOWN);
        assert_eq!(write_delay(Mode::Auto, &disk(20_000), &Estimate::default(), 950), WRITE_DELAY_UNKNOWN);
        assert_eq!(write_delay(Mode::Flash, &disk(20_000), &disk(20_000), 950), Duration::ZERO);
    }
}
