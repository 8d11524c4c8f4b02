//! Disks and flash of the virtual world that cost what they are told to cost: times from a table of quantiles, a queue, stalls, and a
//! penalty for what is smaller than the medium's page.
//!
//! Never keeps a byte: reads answer zeroes. What is measured here is time, what is kept is checked by `sim`.

use crate::model::network::WHOLE;
pub(super) use crate::model::network::draw;
use device::sync::{Semaphore, lock};
use device::{Class, Clock, Completed, Completion, DeviceExtent, Geometry, Instant, Io, Op, Outcome, Prng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Quantiles of a time: parts of a billion, and nanoseconds there. Between two of them the time grows evenly.
pub(super) type Quantiles = &'static [(u64, u64)];

/// How a medium stalls: at random, so often and so long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalls {
    /// Between the beginnings of two, in the mean.
    pub(super) every: Duration,
    /// The shortest and the longest.
    pub(super) length: (Duration, Duration),
    /// Writes that the cache takes stall as well, not the flushes alone.
    pub(super) writes: bool,
}

/// What a medium costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    /// A completed write is durable only after a flush.
    pub(super) volatile_cache: bool,
    /// A write.
    pub(super) write: Quantiles,
    /// A flush, or what makes a write durable.
    pub(super) flush: Quantiles,
    /// Added for each KiB.
    pub(super) ns_per_kib: u64,
    /// Requests it works on at once.
    pub(super) parallel: u64,
    /// The page it says it has.
    pub(super) claims_page_bytes: u32,
    /// The page it has: less is read, changed and written, one at a time.
    pub(super) page_bytes: u32,
    /// What that costs.
    pub(super) part_of_page: Quantiles,
    /// Stalls, if any.
    pub(super) stalls: Option<Stalls>,
}

struct State {
    prng: Prng,
    stall_prng: Prng,
    next_stall: u64,
    stalled_until: u64,
}

/// See the module.
pub(super) struct Medium {
    me: std::sync::Weak<Medium>,
    model: Model,
    size_bytes: u64,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    lanes: Semaphore,
    part_lane: Semaphore,
    parts: AtomicU64,
}

impl Medium {
    pub(super) fn new(model: Model, size_bytes: u64, clock: Arc<dyn Clock>, prng: &Prng) -> Arc<Medium> {
        let mut stall_prng = prng.fork("stalls");
        let next_stall = model.stalls.map_or(u64::MAX, |stalls| exponential(&mut stall_prng, stalls.every));
        Arc::new_cyclic(|me| Medium {
            me: me.clone(),
            model,
            size_bytes,
            clock,
            state: Mutex::new(State { prng: prng.fork("times"), stall_prng, next_stall, stalled_until: 0 }),
            lanes: Semaphore::new(model.parallel),
            part_lane: Semaphore::new(1),
            parts: AtomicU64::new(0),
        })
    }

    /// Writes so far that did not fill pages.
    pub(super) fn parts_of_pages(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }

    /// How long a stall still lasts, for a verb that stalls.
    fn stall_end(&self, is_flush: bool) -> Option<Instant> {
        let stalls = self.model.stalls.filter(|stalls| is_flush || stalls.writes)?;
        let now = self.clock.now().0;
        let mut state = lock(&self.state);
        while state.next_stall <= now {
            let (low, high) = (stalls.length.0.as_nanos() as u64, stalls.length.1.as_nanos() as u64);
            let begun = state.next_stall;
            state.stalled_until = begun + state.stall_prng.between(low, high);
            state.next_stall = state.stalled_until + exponential(&mut state.stall_prng, stalls.every);
        }
        (state.stalled_until > now).then_some(Instant(state.stalled_until))
    }

    async fn take(self: Arc<Self>, verb: Work) {
        if let Some(end) = self.stall_end(matches!(verb, Work::Flush)) {
            self.clock.sleep_until(end).await;
        }
        let (len, mut ns) = match verb {
            Work::Flush => (0, self.draw(self.model.flush)),
            Work::Read { len } => (len, self.draw(self.model.write)),
            Work::Write { len, fua, .. } => {
                let durable = if fua && self.model.volatile_cache { self.draw(self.model.flush) } else { 0 };
                (len, self.draw(self.model.write) + durable)
            }
        };
        ns += len * self.model.ns_per_kib / 1024;
        let page = u64::from(self.model.page_bytes);
        if let Work::Write { offset, len, .. } = verb
            && (offset % page != 0 || len % page != 0)
        {
            self.parts.fetch_add(1, Ordering::Relaxed);
            let _alone = self.part_lane.acquire(1).await;
            let more = self.draw(self.model.part_of_page);
            self.clock.sleep(Duration::from_nanos(more)).await;
        }
        let _lane = self.lanes.acquire(1).await;
        self.clock.sleep(Duration::from_nanos(ns)).await;
    }

    fn draw(&self, quantiles: Quantiles) -> u64 {
        draw(quantiles, &mut lock(&self.state).prng)
    }
}

#[derive(Clone, Copy)]
enum Work {
    Read { len: u64 },
    Write { offset: u64, len: u64, fua: bool },
    Flush,
}

/// Times between events that know nothing of each other.
pub(super) fn exponential(prng: &mut Prng, mean: Duration) -> u64 {
    let share = (prng.below(WHOLE) + 1) as f64 / WHOLE as f64;
    (-share.ln() * mean.as_nanos() as f64) as u64
}

impl Io for Medium {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            logical_bytes: 512,
            page_bytes: self.model.claims_page_bytes,
            rotational: false,
            volatile_cache: self.model.volatile_cache,
            discard_bytes: 0,
            fast_zeroes: false,
            transfer_bytes_max: 4 << 20,
            class: Class::Durable,
        }
    }

    fn submit(&self, op: Op) -> Completion {
        let Some(me) = self.me.upgrade() else { unreachable!("it is called through an Arc") };
        match op {
            Op::Read { offset: _, bufs } => Completion::future(async move {
                me.take(Work::Read { len: bufs.len_bytes() as u64 }).await;
                Completed { outcome: Outcome::Done, bufs, extents: Vec::new() }
            }),
            Op::Write { offset, data, fua } => {
                let len = data.len_bytes() as u64;
                Completion::future(async move {
                    me.take(Work::Write { offset, len, fua }).await;
                    Completed::bare(Outcome::Done)
                })
            }
            Op::WriteZeroes { offset, len, fua, .. } => Completion::future(async move {
                me.take(Work::Write { offset, len, fua }).await;
                Completed::bare(Outcome::Done)
            }),
            Op::Flush => Completion::future(async move {
                me.take(Work::Flush).await;
                Completed::bare(Outcome::Done)
            }),
            Op::Discard { .. } => Completion::future(async { Completed::bare(Outcome::Done) }),
            Op::Status { offset: _, len } => Completion::future(async move {
                let extents = vec![DeviceExtent { len, hole: false }];
                Completed { outcome: Outcome::Done, bufs: device::Bufs::new(), extents }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_their_quantiles() {
        let quantiles: Quantiles = &[(0, 100), (500_000_000, 200), (1_000_000_000, 1_000)];
        let mut prng = Prng::new(1);
        let mut all: Vec<u64> = (0..100_000).map(|_| draw(quantiles, &mut prng)).collect();
        all.sort_unstable();
        assert!(all[50_000].abs_diff(200) < 4 && all[25_000].abs_diff(150) < 2 && all[75_000].abs_diff(600) < 10);
        assert!(all[0] >= 100 && all[99_999] <= 1_000);
        let mean = (0..100_000).map(|_| exponential(&mut prng, Duration::from_micros(1))).sum::<u64>() / 100_000;
        assert!(mean.abs_diff(1_000) < 20, "{mean}");
    }
}
