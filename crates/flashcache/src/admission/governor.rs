//! The endurance governor: what an operator lets be written to a flash device, as a budget of bytes, and who may still enter
//! when it runs low.
//!
//! A token bucket: bytes are earned with time at an even rate, kept up to some days' worth, and spent by every byte the
//! member writes to flash, headers and footers included. Fills and copies ask before they are made. What must be written
//! (marks, records of deaths, dirty data) never asks: it is spent all the same, into debt if need be, and earned back before
//! anything else enters. Never waits, never looks at a clock by itself, never computes with floats.

use crate::admission::lifetimes::Overwritten;
use crate::admission::policy::Admission;
use crate::base::counters::{Counters, add};
use crate::base::disk::FillCause;
use crate::base::units::BlockKey;
use crate::format::HeadKind;
use crate::member::Member;
use device::Instant;
use device::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Nanoseconds of a day.
const DAY_NS: u64 = 86_400_000_000_000;
/// Days of a year, as drives are rated.
pub const YEAR_DAYS: u64 = 365;
/// Years a rating in drive writes a day is for when nobody says: the usual warranty.
pub const RATED_YEARS: u64 = 5;
/// Days' worth the budget holds when nobody says. Ratings are by the day, and a day is the rhythm of most databases: what
/// the quiet hours leave, the batch may write at once. In any stretch of time at most this much is written beyond the rate: of
/// five years 0.05 %.
pub const BURST_DAYS: u64 = 1;
/// The most days' worth it may hold: a month's end. More would let a cache write for months what nobody expects.
pub const BURST_DAYS_MAX: u64 = 31;
/// What a member begins with: one part in so many of what the budget can hold. What was left is not kept over a restart; so
/// each costs at most this much beyond the rate, a restart every day with one day's budget a tenth.
const START_DIVISOR: u64 = 10;
/// Below one part in so many of what the budget can hold, only blocks that came back are written.
const LOW_DIVISOR: u64 = 2;
/// A longer life is not told: 100 years.
pub const LIFETIME_DAYS_MAX: u64 = 100 * YEAR_DAYS;

/// Why a budget cannot be made of what an operator states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnduranceError {
    /// Less than a byte a day.
    #[error("that allows no byte a day\nhint: state what the drive's data sheet says, or leave it out for no limit")]
    Nothing,
    /// No time.
    #[error("a lifetime of no time\nhint: \"5y\", or days as \"90d\"")]
    NoTime,
    /// Beyond 2^64 bytes a day or in all.
    #[error(
        "more bytes than can be counted\nhint: state what the drive's data sheet says, or leave it out for no limit"
    )]
    TooMuch,
    /// Burst out of its limits.
    #[error("a budget holds the worth of 1 to {BURST_DAYS_MAX} days")]
    Burst,
}

/// What may be written to a flash device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endurance {
    bytes_per_day: u64,
    rated_bytes: u64,
    burst_days: u64,
}

impl Endurance {
    /// From drive writes a day, in thousandths, of a drive of `capacity_bytes`, rated for so many days. The field's rule: 10
    /// a day of 700 GB are 7 TB a day.
    ///
    /// # Errors
    /// Nothing, or more than can be counted.
    pub fn of_drive_writes(
        milli_a_day: u64,
        capacity_bytes: u64,
        rated_days: u64,
    ) -> Result<Endurance, EnduranceError> {
        let bytes_per_day = u128::from(milli_a_day) * u128::from(capacity_bytes) / 1000;
        if rated_days == 0 {
            return Err(EnduranceError::NoTime);
        }
        let rated_bytes = bytes_per_day.checked_mul(u128::from(rated_days)).ok_or(EnduranceError::TooMuch)?;
        Endurance::of(bytes_per_day, rated_bytes)
    }

    /// From the bytes a drive is rated for in all and the days it shall last: an even share of them each day.
    ///
    /// # Errors
    /// Nothing, or no time.
    pub fn of_lifetime(rated_bytes: u64, days: u64) -> Result<Endurance, EnduranceError> {
        let bytes_per_day = rated_bytes.checked_div(days).ok_or(EnduranceError::NoTime)?;
        Endurance::of(bytes_per_day.into(), rated_bytes.into())
    }

    fn of(bytes_per_day: u128, rated_bytes: u128) -> Result<Endurance, EnduranceError> {
        let small = |n: u128| u64::try_from(n).map_err(|_| EnduranceError::TooMuch);
        let (bytes_per_day, rated_bytes) = (small(bytes_per_day)?, small(rated_bytes)?);
        if bytes_per_day == 0 {
            return Err(EnduranceError::Nothing);
        }
        Ok(Endurance { bytes_per_day, rated_bytes, burst_days: BURST_DAYS })
    }

    /// The same with a budget that holds so many days' worth.
    ///
    /// # Errors
    /// Not from 1 to [`BURST_DAYS_MAX`].
    pub fn with_burst_days(self, burst_days: u64) -> Result<Endurance, EnduranceError> {
        let known = (1..=BURST_DAYS_MAX).contains(&burst_days);
        if known { Ok(Endurance { burst_days, ..self }) } else { Err(EnduranceError::Burst) }
    }

    /// Bytes it earns in a day.
    #[must_use]
    pub fn bytes_per_day(&self) -> u64 {
        self.bytes_per_day
    }

    /// Bytes it earns in a second, less the fraction.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_day / 86_400
    }

    /// Bytes the device is rated for in all.
    #[must_use]
    pub fn rated_bytes(&self) -> u64 {
        self.rated_bytes
    }

    /// The most it holds, in bytes.
    #[must_use]
    pub fn budget_bytes_max(&self) -> u128 {
        u128::from(self.bytes_per_day) * u128::from(self.burst_days)
    }
}

/// Who may be written at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowance {
    /// Only what must be.
    MustOnly,
    /// Blocks that came back after they had left, and copies of those that were hit.
    Returning,
    /// Whatever the policy admits.
    All,
}

/// The budget of one member.
#[derive(Debug)]
pub struct Governor {
    endurance: Endurance,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    opened: Instant,
    /// Earned up to here.
    earned_to: Instant,
    /// Bytes; debt when below 0.
    left: i128,
    /// What was earned beyond whole bytes, in bytes times [`DAY_NS`].
    fraction: u128,
    spent: u64,
}

impl Governor {
    /// A budget that begins now, with a tenth of what it can hold.
    #[must_use]
    pub fn new(endurance: Endurance, now: Instant) -> Governor {
        let left = (endurance.budget_bytes_max() / u128::from(START_DIVISOR)).cast_signed();
        Governor {
            endurance,
            account: Mutex::new(Account { opened: now, earned_to: now, left, fraction: 0, spent: 0 }),
        }
    }

    /// What it was made of.
    #[must_use]
    pub fn endurance(&self) -> &Endurance {
        &self.endurance
    }

    /// So many bytes are written, whatever is left.
    pub fn spend(&self, bytes: u64, now: Instant) {
        let mut account = lock(&self.account);
        // First what time has brought: a full budget must not take in what it is about to give out.
        account.earn(&self.endurance, now);
        account.left -= i128::from(bytes);
        account.spent = account.spent.saturating_add(bytes);
    }

    /// Who may be written now.
    #[must_use]
    pub fn allowance(&self, now: Instant) -> Allowance {
        let mut account = lock(&self.account);
        account.earn(&self.endurance, now);
        let low = (self.endurance.budget_bytes_max() / u128::from(LOW_DIVISOR)).cast_signed();
        match account.left {
            left if left >= low => Allowance::All,
            left if left > 0 => Allowance::Returning,
            _ => Allowance::MustOnly,
        }
    }

    /// Bytes left; 0 when it is in debt.
    #[must_use]
    pub fn left_bytes(&self, now: Instant) -> u64 {
        let mut account = lock(&self.account);
        account.earn(&self.endurance, now);
        u64::try_from(account.left.max(0)).unwrap_or(u64::MAX)
    }

    /// Days a new drive would last at the rate since the member was opened, at most [`LIFETIME_DAYS_MAX`].
    #[must_use]
    pub fn lifetime_days(&self, now: Instant) -> u64 {
        let account = lock(&self.account);
        let spent = u128::from(account.spent).max(1) * u128::from(DAY_NS);
        let elapsed_ns = now.ns_since(account.opened);
        // Below 2^128: both are 64 bits.
        let days = u128::from(self.endurance.rated_bytes) * u128::from(elapsed_ns) / spent;
        if account.spent == 0 { LIFETIME_DAYS_MAX } else { days.min(u128::from(LIFETIME_DAYS_MAX)) as u64 }
    }
}

impl Account {
    fn earn(&mut self, endurance: &Endurance, now: Instant) {
        let elapsed_ns = now.ns_since(self.earned_to);
        self.earned_to = self.earned_to.max(now);
        // A product of two numbers of 64 bits leaves 2^65 below 2^128, the fraction is below 2^47.
        let earned = u128::from(elapsed_ns) * u128::from(endurance.bytes_per_day) + self.fraction;
        let (whole, fraction) = (earned / u128::from(DAY_NS), earned % u128::from(DAY_NS));
        let max = endurance.budget_bytes_max().cast_signed();
        // A whole number of bytes below 2^82.
        self.left += whole.cast_signed();
        self.fraction = fraction;
        if self.left >= max {
            (self.left, self.fraction) = (max, 0);
        }
    }
}

/// Whether a block may be written at this head: who came back goes to another than who is new.
#[must_use]
pub fn admits(allowance: Allowance, head: HeadKind) -> bool {
    match head {
        HeadKind::Small => allowance >= Allowance::All,
        HeadKind::Main | HeadKind::Keep | HeadKind::Hot | HeadKind::Warm | HeadKind::Cool | HeadKind::Cold => {
            allowance >= Allowance::Returning
        }
        // It is nowhere else.
        HeadKind::Dirty | HeadKind::DirtyLasting => true,
    }
}

/// Bytes written to flash for each byte of client data that came in by a fill or a write, in thousandths; none before the
/// first. Copies at reclaim, headers, footers and records are what makes it more than 1000.
#[must_use]
pub fn write_amplification_milli(counters: &Counters) -> Option<u64> {
    let count = |counter: &std::sync::atomic::AtomicU64| u128::from(counter.load(Ordering::Relaxed));
    let came_in = count(&counters.fill_bytes) + count(&counters.write_fill_bytes) + count(&counters.dirty_write_bytes);
    let milli = (count(&counters.flash_bytes_written) * 1000).checked_div(came_in)?;
    Some(u64::try_from(milli).unwrap_or(u64::MAX))
}

impl Member {
    /// Who may be written to its flash now. Without a budget everybody.
    pub(crate) fn allowance(&self) -> Allowance {
        self.governor.as_ref().map_or(Allowance::All, |governor| governor.allowance(self.world.clock.now()))
    }

    /// So many bytes are about to be written to its flash.
    pub(crate) fn spend(&self, bytes: u64) {
        if let Some(governor) = &self.governor {
            governor.spend(bytes, self.world.clock.now());
        }
    }

    /// Ask policy and budget where parts of a block go that are not cached; none is counted by its reason.
    /// `overwrites`: what is known of a block that was cached until this write.
    pub(crate) fn admit(
        &self,
        key: BlockKey,
        parts: u16,
        cause: FillCause,
        allowance: Allowance,
        overwrites: Option<Overwritten>,
    ) -> Option<HeadKind> {
        let pages = parts.count_ones();
        let class = overwrites.map(|overwritten| overwritten.class);
        let (head, granted) = match self.policy.admit(key, pages, overwrites.is_some()) {
            // The policy grants no pages to an overwrite.
            Admission::To(head) => (self.class_or(class, head), if overwrites.is_none() { pages } else { 0 }),
            // It displaces nothing.
            Admission::Refuse if self.is_roomy() => (self.class_or(class, HeadKind::Small), 0),
            Admission::Refuse => {
                add(&self.counters.fill_skips_policy, 1);
                return None;
            }
        };
        let earned = cause != FillCause::Write || self.earned(key, parts, allowance);
        if admits(allowance, head) && earned {
            return Some(head);
        }
        self.policy.refused(key, granted);
        let counters = &self.counters;
        add(if earned { &counters.fill_skips_endurance } else { &counters.overwrite_skips_endurance }, 1);
        None
    }

    /// Parts of a block are read from flash, or from the disk to be cached.
    pub(crate) fn was_read(&self, key: BlockKey, parts: u16) {
        if let Some(returns) = &self.returns {
            returns.read(key, parts);
        }
    }

    /// Whether parts of a block have earned that flash is written for them once more, which counts as done: below half of the budget by being read
    /// since the last time. Who else may be written is not asked here.
    pub(crate) fn earned(&self, key: BlockKey, parts: u16, allowance: Allowance) -> bool {
        match &self.returns {
            Some(returns) if allowance != Allowance::MustOnly => {
                returns.take(key, parts) || allowance == Allowance::All
            }
            _ => true,
        }
    }

    /// A copy at reclaim is not made for want of budget: the block leaves. The policy had granted it so many pages.
    pub(crate) fn refuse_copy(&self, key: BlockKey, granted_pages: u32) {
        self.policy.refused(key, granted_pages);
        add(&self.counters.move_skips_endurance, 1);
    }

    /// What it writes to its flash and what it may.
    #[must_use]
    pub fn endurance_figures(&self) -> EnduranceFigures {
        let now = self.world.clock.now();
        EnduranceFigures {
            written_bytes: self.counters.flash_bytes_written.load(Ordering::Relaxed),
            write_amplification_milli: write_amplification_milli(&self.counters),
            budget_left_bytes: self.governor.as_ref().map(|governor| governor.left_bytes(now)),
            lifetime_days: self.governor.as_ref().map(|governor| governor.lifetime_days(now)),
        }
    }
}

/// What a member writes to its flash and what it may, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnduranceFigures {
    /// Bytes written since it was opened, headers, footers and records included.
    pub written_bytes: u64,
    /// See [`write_amplification_milli`].
    pub write_amplification_milli: Option<u64>,
    /// Bytes that may be written at once; none without a budget.
    pub budget_left_bytes: Option<u64>,
    /// See [`Governor::lifetime_days`]; none without a budget, since then nobody has said what the drive is rated for.
    pub lifetime_days: Option<u64>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::admission::policy::{AdaptiveLog, CacheShape, Policy};
    use device::Prng;

    const SECOND_NS: u64 = 1_000_000_000;

    /// The example of the field: 700 GB rated 10 drive writes a day for 5 years.
    fn seven_tb_a_day() -> Endurance {
        Endurance::of_drive_writes(10_000, 700_000_000_000, RATED_YEARS * YEAR_DAYS).unwrap()
    }

    #[test]
    fn the_rule_of_the_field_exactly() {
        assert_eq!(seven_tb_a_day().bytes_per_day(), 7_000_000_000_000);
        assert_eq!(seven_tb_a_day().bytes_per_second(), 81_018_518, "81.0 MB/s");
        assert_eq!(seven_tb_a_day().rated_bytes(), 12_775_000_000_000_000, "7 TB a day for 5 years");
        let binary = Endurance::of_drive_writes(10_000, 700 << 30, 1825).unwrap();
        assert_eq!(binary.bytes_per_second(), 86_992_971);
        assert_eq!((binary.bytes_per_second() + (1 << 19)) >> 20, 83, "83 MiB/s when the GB are GiB");
        // The same stated as a lifetime.
        assert_eq!(Endurance::of_lifetime(12_775_000_000_000_000, 5 * YEAR_DAYS).unwrap(), seven_tb_a_day());
        // 0.3 of 3.84 TB.
        assert_eq!(Endurance::of_drive_writes(300, 3_840_000_000_000, 1).unwrap().bytes_per_day(), 1_152_000_000_000);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Endurance::of_drive_writes(0, 1 << 40, 1), Err(EnduranceError::Nothing));
        assert_eq!(Endurance::of_drive_writes(1000, 1 << 40, 0), Err(EnduranceError::NoTime));
        assert_eq!(Endurance::of_lifetime(1 << 50, 0), Err(EnduranceError::NoTime));
        assert_eq!(Endurance::of_lifetime(364, 365), Err(EnduranceError::Nothing));
        assert_eq!(Endurance::of_drive_writes(u64::MAX, u64::MAX, 1), Err(EnduranceError::TooMuch));
        assert_eq!(Endurance::of_drive_writes(1000, 1 << 60, u64::MAX), Err(EnduranceError::TooMuch));
        assert_eq!(seven_tb_a_day().with_burst_days(0), Err(EnduranceError::Burst));
        assert_eq!(seven_tb_a_day().with_burst_days(32), Err(EnduranceError::Burst));
    }

    /// Goal: no byte is lost or made by rounding, however often it is looked at. Method: two budgets, one looked at at odd
    /// moments, one only at the end.
    #[test]
    fn earning_does_not_depend_on_who_looks() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let endurance = Endurance::of_lifetime(prng.between(365, 1 << 50), 365).unwrap();
            let (often, once) = (Governor::new(endurance, Instant(5)), Governor::new(endurance, Instant(5)));
            // Empty both, so that the brim is not reached.
            let start = once.left_bytes(Instant(5));
            often.spend(start, Instant(5));
            once.spend(start, Instant(5));
            let mut now = 5;
            for _ in 0..1000 {
                now += prng.below(DAY_NS / 2000);
                let _ = often.allowance(Instant(now));
            }
            let earned = u128::from(endurance.bytes_per_day()) * u128::from(now - 5) / u128::from(DAY_NS);
            assert_eq!(u128::from(often.left_bytes(Instant(now))), earned, "seed {seed}");
            assert_eq!(u128::from(once.left_bytes(Instant(now))), earned, "seed {seed}");
        }
    }

    #[test]
    fn who_may_be_written_changes_exactly_at_half_and_at_nothing() {
        // A thousand bytes a day, three of them at most.
        let endurance = Endurance::of_lifetime(365_000, 365).unwrap().with_burst_days(3).unwrap();
        assert_eq!((endurance.budget_bytes_max(), endurance.rated_bytes()), (3_000, 365_000));
        let governor = Governor::new(endurance, Instant(0));
        assert_eq!((governor.left_bytes(Instant(0)), governor.endurance()), (300, &endurance));
        let day = |n: u64| Instant(n * DAY_NS);
        assert_eq!(governor.lifetime_days(day(1)), LIFETIME_DAYS_MAX, "nothing has been written");
        assert_eq!(governor.left_bytes(day(100)), 3_000, "no more than it holds");
        for (spent, left, allowance) in [
            (1_500, 1_500, Allowance::All),
            (1, 1_499, Allowance::Returning),
            (1_498, 1, Allowance::Returning),
            (1, 0, Allowance::MustOnly),
            (1_000, 0, Allowance::MustOnly),
        ] {
            governor.spend(spent, day(100));
            assert_eq!((governor.left_bytes(day(100)), governor.allowance(day(100))), (left, allowance));
        }
        // A thousand in debt: the first day pays that.
        assert_eq!((governor.left_bytes(day(101)), governor.left_bytes(day(102))), (0, 1_000));
        assert_eq!(governor.allowance(day(50)), Allowance::Returning, "time does not go back");
        // 4000 bytes in 100 days are 40 a day, of 365,000.
        assert_eq!(governor.lifetime_days(day(100)), 365_000 / 40);
        let table = [Allowance::MustOnly, Allowance::Returning, Allowance::All]
            .map(|allowance| HeadKind::ALL.map(|head| admits(allowance, head)));
        assert_eq!(
            table,
            [
                [false, false, false, true, false, false, false, false, true],
                [false, true, true, true, true, true, true, true, true],
                [true; 9],
            ]
        );
    }

    /// Goal: a week stays within its budget, a night's batch passes whole, and the longest time does not overflow.
    /// Method: seven days in steps of ten seconds; quiet days, then a batch each night that wants four fifths of a day's
    /// worth, then one day on which everything is wanted all the time.
    #[test]
    fn a_week_stays_within_its_budget_and_bursts_pass() {
        let per_day = seven_tb_a_day().bytes_per_day();
        let governor = Governor::new(seven_tb_a_day(), Instant(0));
        let step_ns = 10 * SECOND_NS;
        let wish_bytes = 20_000_000_000; // 2 GB/s for ten seconds
        let mut written = 0;
        let mut refused_in_batches = 0;
        for step in 0..7 * 8_640 {
            let (day, second) = (step / 8_640, step % 8_640 * 10);
            let now = Instant(step * step_ns);
            // From midnight, 280 steps of 20 GB: 5.6 TB, four fifths of 7 TB. On the first night it has not been earned yet.
            let batch = (1..6).contains(&day) && second < 2_800;
            let greedy = day == 6;
            if batch || greedy {
                let admitted = admits(governor.allowance(now), HeadKind::Main);
                if admitted {
                    governor.spend(wish_bytes, now);
                    written += wish_bytes;
                }
                refused_in_batches += u64::from(batch && !admitted);
            }
            let earned = u128::from(per_day) * u128::from(now.0) / u128::from(DAY_NS);
            let most = earned + u128::from(per_day) / 10 + u128::from(wish_bytes);
            assert!(u128::from(written) <= most, "{written} written, {most} allowed at step {step}");
        }
        assert_eq!(refused_in_batches, 0, "what was saved by day passes at night");
        assert!(written >= per_day * 6, "and the budget is used: {written}");
        assert_eq!(governor.lifetime_days(Instant(7 * DAY_NS)) / YEAR_DAYS, 5, "it lasts as rated");
        governor.spend(u64::MAX, Instant(u64::MAX));
        assert_eq!(governor.left_bytes(Instant(u64::MAX)), 0);
        assert_eq!(governor.lifetime_days(Instant(u64::MAX)), 147, "86.4 TB a day: a byte a nanosecond");
    }

    #[test]
    fn refuses_the_new_first_then_the_known_and_never_what_must_be() {
        let day = seven_tb_a_day().bytes_per_day();
        let governor = Governor::new(seven_tb_a_day(), Instant(0));
        let who = |now| {
            let allowance = governor.allowance(now);
            [HeadKind::Small, HeadKind::Main, HeadKind::Keep, HeadKind::Dirty].map(|head| admits(allowance, head))
        };
        let start = Instant(0);
        assert_eq!(governor.left_bytes(start), day / 10, "a restart costs a tenth of a day at most");
        assert_eq!(who(start), [false, true, true, true]);
        let noon = Instant(DAY_NS * 2 / 5);
        assert_eq!(who(Instant(noon.0 - SECOND_NS)), [false, true, true, true]);
        assert_eq!(who(noon), [true; 4], "half full");
        let late = Instant(DAY_NS * 30);
        assert_eq!(governor.left_bytes(late), day, "it holds a day's worth, whatever was earned");
        governor.spend(day / 2, late);
        assert_eq!(who(late), [true; 4]);
        governor.spend(1, late);
        assert_eq!(who(late), [false, true, true, true]);
        governor.spend(day / 2 - 1, late);
        assert_eq!(who(late), [false, false, false, true], "empty");
        // What must be written goes into debt, which is earned back first.
        governor.spend(day, late);
        let next = Instant(late.0 + DAY_NS);
        assert_eq!((governor.left_bytes(next), who(next)), (0, [false, false, false, true]));
        let after = Instant(next.0 + SECOND_NS);
        assert_eq!((governor.left_bytes(after), who(after)), (81_018_518, [false, true, true, true]));
    }

    #[test]
    fn a_clock_that_is_asked_late_takes_nothing_back() {
        let governor = Governor::new(seven_tb_a_day(), Instant(DAY_NS));
        let left = governor.left_bytes(Instant(DAY_NS * 2));
        assert_eq!(governor.left_bytes(Instant(DAY_NS)), left);
        assert_eq!(governor.lifetime_days(Instant(DAY_NS * 2)), LIFETIME_DAYS_MAX, "nothing written");
    }

    #[test]
    fn write_amplification_counts_what_came_in_once() {
        let counters = Counters::default();
        assert_eq!(write_amplification_milli(&counters), None);
        add(&counters.fill_bytes, 30_000);
        add(&counters.write_fill_bytes, 10_000);
        add(&counters.move_bytes, 5_000);
        add(&counters.flash_bytes_written, 46_000);
        assert_eq!(write_amplification_milli(&counters), Some(1150));
    }

    /// A refusal must not be forgotten: the block comes back as one that is known, and its copy is paid back to the purse.
    #[test]
    fn a_refused_block_is_known_when_it_comes_again() {
        let shape = CacheShape::of(64 << 20, 1 << 20, 16 << 10, 4096).unwrap();
        let policy = AdaptiveLog::new(shape);
        let key = BlockKey::new(crate::base::units::DiskSlot(1), 7);
        for head in [HeadKind::Small, HeadKind::Main, HeadKind::Main] {
            assert_eq!(policy.admit(key, 4, false), Admission::To(head));
            policy.refused(key, 4);
        }
    }
}
