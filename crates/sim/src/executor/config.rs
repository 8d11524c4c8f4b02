//! How an executor behaves: drawn from a seed for tests, plain for measurements.

use crate::trace::LOG_EVENTS_DEFAULT;
use device::Prng;

/// Which ready task of a thread runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The one that became ready first: what the real executor does.
    Oldest,
    /// The one that became ready last: starves the others for as long as it can.
    Newest,
    /// Any.
    Any,
}

/// How an executor behaves.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// Decides every choice.
    pub seed: u64,
    /// Virtual threads of each process, at least 1.
    pub threads: usize,
    /// Which ready task of a thread runs next.
    pub pick: Pick,
    /// A step (one poll of one task) takes 0 to this much time.
    pub step_ns_max: u64,
    /// A wake-up from another thread arrives 0 to this many steps late.
    pub wake_delay_steps_max: u64,
    /// Chance per million steps that the kernel takes a thread off the processor.
    pub park_ppm: u32,
    /// How many steps a thread stays off at most.
    pub park_steps_max: u64,
    /// Steps of one run before it counts as a runaway.
    pub steps_max: u64,
    /// Virtual time of one run before it counts as a runaway.
    pub time_ns_max: u64,
    /// Events kept in words for a failure report.
    pub log_events_max: usize,
    /// Wall time at virtual time 0, nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

/// 2026-01-01: a wall clock at which nothing is special.
const WALL_NS: u64 = 1_767_225_600_000_000_000;
/// Steps of a run: a seed of 2,000 operations takes well under a million.
const STEPS_MAX: u64 = 50_000_000;
/// A virtual week: timers that repeat for ever end here when nothing else happens.
const TIME_NS_MAX: u64 = 7 * 24 * 3600 * 1_000_000_000;

impl ExecutorConfig {
    /// One thread, first come first served, no time for computing: for measurements.
    #[must_use]
    pub fn plain(seed: u64) -> ExecutorConfig {
        ExecutorConfig {
            seed,
            threads: 1,
            pick: Pick::Oldest,
            step_ns_max: 0,
            wake_delay_steps_max: 0,
            park_ppm: 0,
            park_steps_max: 0,
            steps_max: STEPS_MAX,
            time_ns_max: TIME_NS_MAX,
            log_events_max: LOG_EVENTS_DEFAULT,
            wall_ns: WALL_NS,
        }
    }

    /// Everything drawn from the seed: 1 to 4 threads, any pick, late wake-ups, threads taken off the processor.
    #[must_use]
    pub fn seeded(seed: u64) -> ExecutorConfig {
        let mut prng = Prng::new(seed).fork("executor.config");
        ExecutorConfig {
            threads: prng.between(1, 4) as usize,
            pick: [Pick::Any, Pick::Any, Pick::Oldest, Pick::Newest][prng.below(4) as usize],
            step_ns_max: [0, 200, 2_000, 20_000][prng.below(4) as usize],
            wake_delay_steps_max: [0, 4, 32][prng.below(3) as usize],
            park_ppm: [0, 500, 5_000][prng.below(3) as usize],
            park_steps_max: 200,
            ..ExecutorConfig::plain(seed)
        }
    }
}
