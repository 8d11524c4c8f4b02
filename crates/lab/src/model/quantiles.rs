//! A medium that costs what it was measured to cost: times by quantiles, a queue, stalls, and a penalty for what is smaller than its page.

use super::network::{WHOLE, draw};
use super::{Cost, Timing};
use device::sync::{Semaphore, lock};
use device::{Instant, Prng, Verb, World};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Quantiles of a time: parts of a billion, and nanoseconds there, in order, from the least to the most. Between two of them the time grows evenly.
pub(crate) type Quantiles = Vec<(u64, u64)>;

/// How a medium stalls: at random, so often and so long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalls {
    /// Between the end of one and the beginning of the next, in the mean.
    pub(crate) every: Duration,
    /// The shortest and the longest.
    pub(crate) length: (Duration, Duration),
    /// Reads and writes stall as well, not the flushes alone.
    pub(crate) all: bool,
}

/// What a medium costs.
#[derive(Clone, Debug)]
pub(crate) struct QuantileModel {
    /// A completed write is durable only after a flush.
    pub(crate) volatile_cache: bool,
    /// A read or a write.
    pub(crate) moves: Quantiles,
    /// A flush, or what makes a write durable; nothing: it takes no time.
    pub(crate) flush: Quantiles,
    /// Added for each KiB.
    pub(crate) ns_per_kib: u64,
    /// Requests it works on at once.
    pub(crate) parallel: u64,
    /// The page it says it has.
    pub(crate) claimed_page_bytes: u32,
    /// The page it has: less is read, changed and written, one at a time.
    pub(crate) page_bytes: u64,
    /// What that costs beside the write.
    pub(crate) part_of_page: Quantiles,
    pub(crate) stalls: Option<Stalls>,
}

struct State {
    prng: Prng,
    stall_prng: Prng,
    next_stall: u64,
    stalled_until: u64,
}

/// See the module.
pub(crate) struct Quantiled {
    me: Weak<Quantiled>,
    model: QuantileModel,
    world: World,
    state: Mutex<State>,
    lanes: Semaphore,
    part_lane: Semaphore,
}

impl Quantiled {
    pub(crate) fn new(model: QuantileModel, world: &World, prng: &Prng) -> Arc<Quantiled> {
        let mut stall_prng = prng.fork("stalls");
        let next_stall = model.stalls.map_or(u64::MAX, |stalls| exponential(&mut stall_prng, stalls.every));
        Arc::new_cyclic(|me| Quantiled {
            me: me.clone(),
            world: world.clone(),
            state: Mutex::new(State { prng: prng.fork("times"), stall_prng, next_stall, stalled_until: 0 }),
            lanes: Semaphore::new(model.parallel),
            part_lane: Semaphore::new(1),
            model,
        })
    }

    /// How long a stall still lasts, for a verb that stalls.
    fn stall_end(&self, is_flush: bool) -> Option<Instant> {
        let stalls = self.model.stalls.filter(|stalls| is_flush || stalls.all)?;
        let now = self.world.clock.now().0;
        let mut state = lock(&self.state);
        while state.next_stall <= now {
            let (low, high) = (stalls.length.0.as_nanos() as u64, stalls.length.1.as_nanos() as u64);
            let begun = state.next_stall;
            state.stalled_until = begun + state.stall_prng.between(low, high);
            state.next_stall = state.stalled_until + exponential(&mut state.stall_prng, stalls.every);
        }
        (state.stalled_until > now).then_some(Instant(state.stalled_until))
    }

    async fn work(self: Arc<Self>, verb: Verb, offset: u64, len: u64, fua: bool) {
        let Quantiled { model, world, .. } = &*self;
        if let Some(end) = self.stall_end(verb == Verb::Flush) {
            world.clock.sleep_until(end).await;
        }
        let writes = matches!(verb, Verb::Write | Verb::WriteZeroes);
        let flushes = verb == Verb::Flush || (writes && fua && model.volatile_cache);
        let mut ns = if flushes { self.draw(&model.flush) } else { 0 };
        if verb != Verb::Flush {
            ns += self.draw(&model.moves) + len * model.ns_per_kib / 1024;
        }
        if writes && !(offset.is_multiple_of(model.page_bytes) && len.is_multiple_of(model.page_bytes)) {
            let _alone = self.part_lane.acquire(1).await;
            let more = self.draw(&model.part_of_page);
            world.clock.sleep(Duration::from_nanos(more)).await;
        }
        let _lane = self.lanes.acquire(1).await;
        world.clock.sleep(Duration::from_nanos(ns)).await;
    }

    fn draw(&self, quantiles: &Quantiles) -> u64 {
        draw(quantiles, &mut lock(&self.state).prng)
    }
}

impl Timing for Quantiled {
    fn take(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        let Some(me) = self.me.upgrade() else { unreachable!("it is called through an Arc") };
        match verb {
            Verb::Discard | Verb::Status => Box::pin(std::future::ready(())),
            verb => Box::pin(me.work(verb, offset, len, fua)),
        }
    }

    fn is_rotational(&self) -> bool {
        false
    }

    fn has_volatile_cache(&self) -> bool {
        self.model.volatile_cache
    }

    fn claimed_page_bytes(&self) -> Option<u32> {
        Some(self.model.claimed_page_bytes)
    }
}

/// Times between events that know nothing of each other.
pub(crate) fn exponential(prng: &mut Prng, mean: Duration) -> u64 {
    let share = (prng.below(WHOLE) + 1) as f64 / WHOLE as f64;
    (-share.ln() * mean.as_nanos() as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_their_quantiles() {
        let quantiles: Quantiles = vec![(0, 100), (500_000_000, 200), (1_000_000_000, 1_000)];
        let mut prng = Prng::new(1);
        let mut all: Vec<u64> = (0..100_000).map(|_| draw(&quantiles, &mut prng)).collect();
        all.sort_unstable();
        assert!(all[50_000].abs_diff(200) < 4 && all[25_000].abs_diff(150) < 2 && all[75_000].abs_diff(600) < 10);
        assert!(all[0] >= 100 && all[99_999] <= 1_000);
        let mean = (0..100_000).map(|_| exponential(&mut prng, Duration::from_micros(1))).sum::<u64>() / 100_000;
        assert!(mean.abs_diff(1_000) < 20, "{mean}");
    }
}
