//! For how long something was under way: what a utilisation is made of.
//!
//! Lock-free and exact to a microsecond: how many are under way and since when there is any share one word. Never looks at a
//! clock itself.

use crate::clock::Instant;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of the moment, in microseconds: 2^40 are 12 days, half of which a time without a pause may last.
const SINCE_BITS: u32 = 40;
const SINCE_MASK: u64 = (1 << SINCE_BITS) - 1;

/// Time in which at least one request was under way.
#[derive(Default)]
pub struct BusyTime {
    /// Requests under way above, the microsecond since which there is one below.
    state: AtomicU64,
    /// Of the times that are over.
    over_us: AtomicU64,
}

fn micros(at: Instant) -> u64 {
    (at.0 / 1_000) & SINCE_MASK
}

fn between(since: u64, now: u64) -> u64 {
    let passed = now.wrapping_sub(since) & SINCE_MASK;
    // Who reads may have looked at the clock before it began.
    if passed > SINCE_MASK / 2 { 0 } else { passed }
}

impl BusyTime {
    /// A request begins.
    pub fn begin(&self, now: Instant) {
        let began = |state: u64| {
            let since = if state >> SINCE_BITS == 0 { micros(now) } else { state & SINCE_MASK };
            Some(((state >> SINCE_BITS) + 1) << SINCE_BITS | since)
        };
        let _ = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, began);
    }

    /// A request that began has ended.
    ///
    /// # Panics
    /// When none is under way.
    pub fn end(&self, now: Instant) {
        let ended = |state: u64| Some(state.checked_sub(1 << SINCE_BITS).expect("what ends has begun"));
        let Ok(before) = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ended) else { return };
        if before >> SINCE_BITS == 1 {
            self.over_us.fetch_add(between(before & SINCE_MASK, micros(now)), Ordering::Relaxed);
        }
    }

    /// Nanoseconds until now, what is still under way included.
    #[must_use]
    pub fn busy_ns(&self, now: Instant) -> u64 {
        // Two words: a time that ends between the two looks is counted by the next one.
        let over_us = self.over_us.load(Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        let under_way = if state >> SINCE_BITS == 0 { 0 } else { between(state & SINCE_MASK, micros(now)) };
        (over_us + under_way) * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_overlap_count_once() {
        let busy = BusyTime::default();
        let at = |us: u64| Instant(us * 1_000);
        busy.begin(at(10));
        busy.begin(at(20));
        busy.end(at(30));
        assert_eq!(busy.busy_ns(at(35)), 25_000, "one is under way");
        busy.end(at(40));
        assert_eq!(busy.busy_ns(at(50)), 30_000);
        busy.begin(at(SINCE_MASK));
        busy.end(at(SINCE_MASK + 5));
        assert_eq!(busy.busy_ns(at(SINCE_MASK + 9)), 35_000, "the clock's bits have wrapped");
    }

    #[test]
    fn threads_agree() {
        let (busy, clock) = (BusyTime::default(), AtomicU64::new(0));
        let turn = || {
            for _ in 0..10_000 {
                busy.begin(Instant(clock.fetch_add(1_000, Ordering::SeqCst)));
                busy.end(Instant(clock.fetch_add(1_000, Ordering::SeqCst)));
            }
        };
        std::thread::scope(|scope| {
            let all = [scope.spawn(turn), scope.spawn(turn)];
            all.into_iter().for_each(|one| one.join().unwrap_or_default());
        });
        let now = Instant(clock.load(Ordering::SeqCst));
        let shown = busy.busy_ns(now);
        assert!(shown > 0 && shown <= now.0, "{shown} of {}", now.0);
        assert_eq!(busy.busy_ns(Instant(now.0 + 1_000_000)), shown, "nothing is under way");
    }
}
