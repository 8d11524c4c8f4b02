//! When the legs of a sync begin: one of them at once.

use crate::estimate::Estimate;
use std::time::Duration;

/// How a redo grid disk uses the flash log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mode {
    /// Flash at once while it is clearly quicker than the disk, else as [`Mode::Hedge`]. Where it takes less than half as long,
    /// the disk's leg is the hedge.
    #[default]
    Auto,
    /// Both at once.
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
/// The disk's leg of a sync begins when flash takes twice as long as it did for this share of the recent ones, in thousandths.
const FLASH_LATE_PER_MILLE: u64 = 950;

/// How long flash takes of late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlashTimes {
    /// Median of a write that may still lie in the flash's volatile cache; of a durable one where there are too few of those.
    write_ns: Option<u64>,
    /// Median of what a sync waits for.
    sync_ns: Option<u64>,
    /// So long does a step of it take but now and then.
    long_ns: Option<u64>,
    /// Syncs of which it says that.
    syncs: u64,
}

/// When the disk's leg of a sync begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskLeg {
    /// At once.
    Now,
    /// With others before long; at once when flash has not answered after this.
    Late(Duration),
    /// In the background, whoever waits.
    Background,
}

impl FlashTimes {
    pub(crate) fn of(writes: &Estimate, syncs: &Estimate) -> FlashTimes {
        let sync_ns = syncs.quantile(500);
        let write_ns = if writes.samples() < LEARN_SAMPLES { sync_ns } else { writes.quantile(500) };
        FlashTimes { write_ns, sync_ns, long_ns: syncs.quantile(FLASH_LATE_PER_MILLE), syncs: syncs.samples() }
    }

    /// Of two rings that both take a record.
    pub(crate) fn slower(self, other: FlashTimes) -> FlashTimes {
        let (write_ns, sync_ns) = (self.write_ns.max(other.write_ns), self.sync_ns.max(other.sync_ns));
        FlashTimes { write_ns, sync_ns, long_ns: self.long_ns.max(other.long_ns), syncs: self.syncs.max(other.syncs) }
    }
}

fn is_clearly_quicker(flash_ns: Option<u64>, disk_ns: Option<u64>) -> bool {
    // By a fifth: less is noise, and the write costs flash its life.
    matches!((flash_ns, disk_ns), (Some(flash), Some(disk)) if flash.saturating_mul(5) <= disk.saturating_mul(4))
}

/// After how long the flash leg of a sync begins. `flash` is asked only in a mode that goes by it.
pub(crate) fn sync_delay(mode: Mode, disk: &Estimate, flash: impl FnOnce() -> FlashTimes, per_mille: u64) -> Duration {
    let hedge = || Duration::from_nanos(disk.quantile(per_mille).unwrap_or(0));
    match mode {
        Mode::Race | Mode::Flash => Duration::ZERO,
        Mode::Hedge => hedge(),
        Mode::Auto | Mode::Off => {
            let flash = flash();
            let knows = disk.samples() >= LEARN_SAMPLES && flash.syncs >= LEARN_SAMPLES;
            if !knows || is_clearly_quicker(flash.sync_ns, disk.quantile(500)) { Duration::ZERO } else { hedge() }
        }
    }
}

/// Whether a sync follows each write, as after the records of a commit: flash then makes a write durable as it takes it, in one step
/// instead of two. A write that nothing follows costs it a flush more.
#[derive(Debug, Default)]
pub(crate) struct SyncHabit {
    writes: u32,
    /// Goes up with a sync of one write, down four times as far with one of several.
    score: u32,
}

impl SyncHabit {
    const SCORE_MAX: u32 = 16;

    /// A write has come. Whether a sync of it alone is to be expected.
    pub(crate) fn wrote(&mut self) -> bool {
        self.writes = self.writes.saturating_add(1);
        self.writes == 1 && self.score >= Self::SCORE_MAX / 2
    }

    /// A sync has come.
    pub(crate) fn synced(&mut self) {
        self.score = match std::mem::take(&mut self.writes) {
            0 => self.score,
            1 => (self.score + 1).min(Self::SCORE_MAX),
            _ => self.score.saturating_sub(4),
        };
    }
}

/// When the disk's leg of a sync that flash is asked for begins. In mode auto it waits where flash takes less than half as long: the
/// disk would be first all but never, and a flush for every commit keeps it from everything else. `waits` are those of syncs that
/// flash has answered, from when it was asked: with others before them in the ring they are longer than what it takes itself. `flash` is
/// asked only in a mode that goes by it.
pub(crate) fn disk_leg(mode: Mode, disk: &Estimate, waits: &Estimate, flash: impl FnOnce() -> FlashTimes) -> DiskLeg {
    match mode {
        Mode::Flash => DiskLeg::Background,
        Mode::Race | Mode::Hedge | Mode::Off => DiskLeg::Now,
        Mode::Auto => {
            let flash = flash();
            let knows = disk.samples() >= LEARN_SAMPLES && flash.syncs >= LEARN_SAMPLES;
            let long_ns = flash.long_ns.max(waits.quantile(FLASH_LATE_PER_MILLE));
            match (flash.sync_ns, long_ns, disk.quantile(500)) {
                // No sync waits for flash longer than the disk takes before the disk is asked.
                (Some(ns), Some(long_ns), Some(disk_ns)) if knows && ns.saturating_mul(2) <= disk_ns => {
                    DiskLeg::Late(Duration::from_nanos(long_ns.saturating_mul(2).min(disk_ns)))
                }
                _ => DiskLeg::Now,
            }
        }
    }
}

/// After how long a write that nobody has synced yet is given to the ring as well: at once where flash is clearly quicker at writes, and at a
/// write and its sync together, as on a volume of a network, whose cache is a round trip away. What the disk's syncs take does not
/// say it alone: after a write that took all the time they take none. Else when a cache should have taken it. `syncs` are those of the disk: whoever waits for one that long is served by flash, and a
/// write is not waited for any longer. `flash` is asked only in a mode that goes by it.
pub(crate) fn write_delay(
    mode: Mode,
    writes: &Estimate,
    syncs: &Estimate,
    flash: impl FnOnce() -> FlashTimes,
    per_mille: u64,
) -> Duration {
    match mode {
        Mode::Flash => return Duration::ZERO,
        Mode::Race | Mode::Auto => {
            let flash = flash();
            let both = |write: Option<u64>, sync: Option<u64>| Some(write?.saturating_add(sync?));
            let (write_ns, sync_ns) = (writes.quantile(500), syncs.quantile(500));
            let races =
                mode == Mode::Race || is_clearly_quicker(both(flash.write_ns, flash.sync_ns), both(write_ns, sync_ns));
            let knows_writes = writes.samples() >= LEARN_SAMPLES && flash.syncs >= LEARN_SAMPLES;
            if races && knows_writes && is_clearly_quicker(flash.write_ns, write_ns) {
                return Duration::ZERO;
            }
        }
        Mode::Hedge | Mode::Off => {}
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

    /// Flash that writes in `write_ns` and syncs in `sync_ns`, so many times.
    fn flash(write_ns: u64, sync_ns: u64, times: u64) -> FlashTimes {
        let of = |ns| {
            let mut estimate = Estimate::default();
            (0..times).for_each(|_| estimate.add(ns));
            estimate
        };
        FlashTimes::of(&of(write_ns), &of(sync_ns))
    }

    #[test]
    fn auto_races_only_where_flash_is_a_fifth_quicker() {
        let disk = disk(1_000_000);
        let delay = |mode, ns, times| sync_delay(mode, &disk, || flash(ns, ns, times), 950);
        assert_eq!(delay(Mode::Auto, 500_000, 100), Duration::ZERO);
        assert!(delay(Mode::Auto, 950_000, 100) > Duration::from_micros(900));
        assert_eq!(delay(Mode::Auto, 950_000, 3), Duration::ZERO, "to learn");
        assert_eq!(delay(Mode::Race, 950_000, 100), Duration::ZERO);
        assert!(delay(Mode::Hedge, 1, 100) > Duration::from_micros(900));
    }

    #[test]
    fn the_disk_is_the_hedge_where_flash_takes_less_than_half_as_long() {
        let disk = disk(1_000_000);
        let none = Estimate::default();
        let leg = |mode, ns, times| disk_leg(mode, &disk, &none, || flash(ns, ns, times));
        let late = |leg| matches!(leg, DiskLeg::Late(after) if after > Duration::from_micros(700) && after < Duration::from_micros(900));
        assert!(late(leg(Mode::Auto, 400_000, 100)));
        assert_eq!(leg(Mode::Auto, 600_000, 100), DiskLeg::Now, "the disk may well be first");
        assert_eq!(leg(Mode::Auto, 400_000, 3), DiskLeg::Now, "to learn");
        assert_eq!(disk_leg(Mode::Auto, &none, &none, || flash(1, 1, 100)), DiskLeg::Now, "to learn");
        assert_eq!((leg(Mode::Race, 1, 100), leg(Mode::Hedge, 1, 100)), (DiskLeg::Now, DiskLeg::Now));
        assert_eq!(leg(Mode::Flash, 1, 100), DiskLeg::Background);
        // Several sessions: a sync waits for the batches of others.
        let mut waits = Estimate::default();
        (0..100).for_each(|_| waits.add(220_000));
        let leg_of = disk_leg(Mode::Auto, &disk, &waits, || flash(100_000, 100_000, 100));
        assert!(matches!(leg_of, DiskLeg::Late(after) if after > Duration::from_micros(400)), "{leg_of:?}");
        // Flash that takes longer than the disk now and then.
        let mut uneven = Estimate::default();
        (0..90).for_each(|_| uneven.add(100_000));
        (0..10).for_each(|_| uneven.add(50_000_000));
        let leg = disk_leg(Mode::Auto, &disk, &none, || FlashTimes::of(&uneven, &uneven));
        assert!(matches!(leg, DiskLeg::Late(after) if after < Duration::from_micros(1_100)), "{leg:?}");
    }

    #[test]
    fn a_sync_is_expected_where_it_has_followed_each_write() {
        let mut habit = SyncHabit::default();
        let mut commit = |writes: u32| {
            let expected = (0..writes).map(|_| habit.wrote()).fold(false, |any, one| any | one);
            habit.synced();
            expected
        };
        assert!((0..8).all(|_| !commit(1)), "nothing is known");
        assert!((0..100).all(|_| commit(1)));
        assert!(
            (0..3).map(|_| commit(5)).filter(|expected| *expected).count() == 3,
            "what has long been so, again and again"
        );
        assert!((0..20).all(|_| !commit(5)), "no more");
        assert!(!commit(1) && (0..20).map(|_| commit(1)).filter(|expected| *expected).count() > 10);
    }

    #[test]
    fn writes_are_hedged_after_a_sync_at_most() {
        let none = FlashTimes::default;
        let delay = |writes, syncs| write_delay(Mode::Auto, &disk(writes), &disk(syncs), none, 950);
        assert!(
            delay(20_000, 500_000) > Duration::from_micros(450) && delay(20_000, 500_000) < Duration::from_micros(550)
        );
        assert!(delay(2_000_000, 500_000) > Duration::from_millis(3), "a slow write is no stall");
        assert_eq!(delay(20_000_000, 500_000), WRITE_DELAY_UNKNOWN);
        assert_eq!(write_delay(Mode::Auto, &disk(20_000), &Estimate::default(), none, 950), WRITE_DELAY_UNKNOWN);
        assert_eq!(write_delay(Mode::Flash, &disk(20_000), &disk(20_000), none, 950), Duration::ZERO);
    }

    #[test]
    fn writes_are_raced_where_flash_is_clearly_quicker_at_them() {
        let (writes, syncs) = (disk(1_000_000), disk(500_000));
        let races = |mode, flash| write_delay(mode, &writes, &syncs, || flash, 950).is_zero();
        assert!(races(Mode::Race, flash(100_000, 450_000, 100)) && races(Mode::Auto, flash(100_000, 100_000, 100)));
        assert!(!races(Mode::Hedge, flash(100_000, 100_000, 100)));
        assert!(!races(Mode::Race, flash(900_000, 100_000, 100)), "the disk takes writes as quickly");
        assert!(races(Mode::Auto, flash(100_000, 450_000, 100)), "both together");
        assert!(!races(Mode::Auto, flash(100_000, 1_200_000, 100)), "its sync would wait for the disk");
        assert!(!races(Mode::Race, flash(100_000, 100_000, 3)), "nothing is known");
        // Each write is durable, or nearly: a sync behind it finds nothing to do.
        let at_once = |ns| write_delay(Mode::Auto, &writes, &disk(1_000), || flash(ns, ns, 100), 950).is_zero();
        assert!(at_once(100_000) && !at_once(600_000), "two steps of flash take longer than the disk");
    }

    #[test]
    fn of_two_rings_the_slower_counts() {
        let both = flash(100_000, 200_000, 50).slower(flash(300_000, 100_000, 40));
        let near = |got: Option<u64>, want: u64| got.is_some_and(|got| got.abs_diff(want) * 16 <= want);
        assert!(near(both.write_ns, 300_000) && near(both.sync_ns, 200_000) && both.syncs == 50);
    }
}
