//! The time in which the process ran.
//!
//! A process that is stopped (SIGSTOP, a paused virtual machine, a frozen control group) sees all its time-outs at once when it
//! goes on, and with them devices that seem not to have answered. So the clock of a runtime stands still while nothing of the
//! process runs: a thread of its own moves a limit on every [`BEAT_EVERY`], and time never passes it by itself. Every deadline is
//! read from that clock; there is nothing to stretch. Wall time goes on: what another host may have done meanwhile is judged by that.
//!
//! The price: a pause counts for up to [`AHEAD_MAX`] and a unit, and a machine so busy that the thread does not come to run for longer
//! than that slows the clock down. Never goes back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the limit is moved on.
pub(crate) const BEAT_EVERY: Duration = Duration::from_millis(100);
/// How far ahead of the last beat the clock may run.
const AHEAD_MAX: Duration = Duration::from_millis(500);
/// A unit of the limit and of what is left out: 2^27 ns, 134 ms. 2^32 of them are 18 years.
const UNIT_SHIFT: u32 = 27;

/// See the module's head.
pub(crate) struct RunningClock {
    start: Instant,
    /// The limit (upper half) and what is left out (lower half), in units, in one word so that both are read as of one moment.
    state: AtomicU64,
}

impl RunningClock {
    pub(crate) fn new() -> RunningClock {
        RunningClock { start: Instant::now(), state: AtomicU64::new(first()) }
    }

    /// Nanoseconds since the start in which the process ran.
    pub(crate) fn now_ns(&self) -> u64 {
        // Before the time is read: what was read before a pause must not be held against what is known after it.
        let state = self.state.load(Ordering::Acquire);
        shown_ns(state, self.elapsed_ns())
    }

    /// Move the limit on. One thread calls it.
    pub(crate) fn beat(&self) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(beaten(state, self.elapsed_ns()), Ordering::Release);
    }

    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn parts(state: u64) -> (u64, u64) {
    (state >> 32 << UNIT_SHIFT, (state & u64::from(u32::MAX)) << UNIT_SHIFT)
}

fn state_of(limit_ns: u64, left_out_ns: u64) -> u64 {
    let units = |ns: u64| (ns >> UNIT_SHIFT).min(u64::from(u32::MAX));
    units(limit_ns) << 32 | units(left_out_ns)
}

fn first() -> u64 {
    beaten(state_of(u64::MAX, 0), 0)
}

/// What the clock shows `elapsed_ns` after its start.
fn shown_ns(state: u64, elapsed_ns: u64) -> u64 {
    let (limit_ns, left_out_ns) = parts(state);
    elapsed_ns.min(limit_ns).saturating_sub(left_out_ns)
}

/// The state after a beat. What lies beyond the old limit is left out, in whole units rounded down: the clock goes on from there.
fn beaten(state: u64, elapsed_ns: u64) -> u64 {
    let (limit_ns, left_out_ns) = parts(state);
    let left_out_ns = left_out_ns + (elapsed_ns.saturating_sub(limit_ns) >> UNIT_SHIFT << UNIT_SHIFT);
    let ahead_ns = AHEAD_MAX.as_nanos() as u64 + (1 << UNIT_SHIFT) - 1;
    state_of(elapsed_ns.saturating_add(ahead_ns), left_out_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const BEAT: u64 = BEAT_EVERY.as_nanos() as u64;
    /// What of a pause may count.
    const COUNTED_MAX: u64 = AHEAD_MAX.as_nanos() as u64 + (2 << UNIT_SHIFT);

    #[test]
    fn a_process_that_runs_has_all_its_time() {
        let mut state = first();
        for beat in 0..1_000 {
            for part in 0..5 {
                let elapsed = beat * BEAT + part * BEAT / 5;
                assert_eq!(shown_ns(state, elapsed), elapsed);
            }
            state = beaten(state, (beat + 1) * BEAT);
        }
    }

    #[test]
    fn a_pause_is_nobodys_time_and_the_clock_never_goes_back() {
        let mut state = first();
        let (mut elapsed, mut ran, mut last) = (0, 0, 0);
        for (pause, rounds) in [(63 * SECOND, 7), (SECOND, 30), (86_400 * SECOND, 3), (SECOND / 5, 10)] {
            for _ in 0..rounds {
                elapsed += BEAT;
                ran += BEAT;
                state = beaten(state, elapsed);
            }
            let before = shown_ns(state, elapsed);
            elapsed += pause;
            // Read by another thread before the one that beats has come to run, and after.
            let early = shown_ns(state, elapsed);
            state = beaten(state, elapsed);
            let late = shown_ns(state, elapsed);
            assert!(last <= before && before <= early && early <= late, "{last} {before} {early} {late}");
            assert!(late - before <= COUNTED_MAX.min(pause), "{pause}: {}", late - before);
            last = late;
        }
        assert!(last >= ran, "nothing in which it ran is left out");
    }

    #[test]
    fn years_are_no_overflow() {
        let state = beaten(state_of(u64::MAX, u64::MAX), u64::MAX);
        assert!(shown_ns(state, u64::MAX) < u64::MAX);
    }
}
