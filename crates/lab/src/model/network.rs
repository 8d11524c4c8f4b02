//! A volume over the network: times that vary, a provider that lets through so many requests and bytes a second, and credits for more.
//!
//! A request waits for its turn, then takes a time drawn by quantiles. Draws come from a generator with a seed.

use super::bucket::{Bucket, time_ns};
use super::{Cost, Timing};
use device::sync::{Semaphore, lock};
use device::{Prng, Verb, World};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

/// Quantiles of a time: parts of a billion, and nanoseconds there. Between two of them the time grows evenly.
pub(crate) type Quantiles = [(u64, u64)];

/// All of it.
pub(crate) const WHOLE: u64 = 1_000_000_000;

/// A time by a table of quantiles.
pub(crate) fn draw(quantiles: &Quantiles, prng: &mut Prng) -> u64 {
    let at = prng.below(WHOLE);
    let above = quantiles.partition_point(|(share, _)| *share <= at);
    let Some(&(high_share, high)) = quantiles.get(above) else { return quantiles.last().map_or(0, |(_, ns)| *ns) };
    let Some(&(low_share, low)) = above.checked_sub(1).and_then(|n| quantiles.get(n)) else { return high };
    low + (u128::from(high - low) * u128::from(at - low_share) / u128::from(high_share - low_share)) as u64
}

/// Least, median, 99th percentile and most of a time, in nanoseconds.
pub(crate) type Jitter = [u64; 4];

fn quantiles([least, median, p99, most]: Jitter) -> [(u64, u64); 4] {
    [(0, least), (WHOLE / 2, median), (WHOLE / 100 * 99, p99), (WHOLE, most)]
}

/// What a volume is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkModel {
    pub(crate) read_ns: Jitter,
    pub(crate) write_ns: Jitter,
    /// Requests under way at once.
    pub(crate) parallel: u64,
    /// Requests a second that it sustains, and that credits are earned at.
    pub(crate) requests_per_s: u64,
    /// Requests a second at most, with credits.
    pub(crate) burst_requests_per_s: u64,
    /// Requests beyond what it sustains that it lets through, once they are earned.
    pub(crate) credits: u64,
    /// So many hundredths of them are there at the start.
    pub(crate) credits_percent: u64,
    pub(crate) bytes_per_s: u64,
    /// A longer request counts as several.
    pub(crate) request_bytes: u64,
}

/// The provider looks at requests and bytes over so long.
const WINDOW_NS: u64 = 10_000_000;

struct State {
    prng: Prng,
    sustained: Bucket,
    most: Bucket,
    bytes: Bucket,
}

/// See the module.
pub(crate) struct Network {
    model: NetworkModel,
    world: World,
    lanes: Semaphore,
    state: Mutex<State>,
}

impl Network {
    pub(crate) fn new(model: NetworkModel, world: &World, prng: Prng) -> Arc<Network> {
        let now = world.clock.now().0;
        // What is let through without credits is at least what one window holds.
        let credits_ns = time_ns(model.credits, model.requests_per_s).max(WINDOW_NS);
        let state = State {
            prng,
            sustained: Bucket::new(credits_ns, credits_ns / 100 * (100 - model.credits_percent.min(100)), now),
            most: Bucket::new(WINDOW_NS, 0, now),
            bytes: Bucket::new(WINDOW_NS, 0, now),
        };
        Arc::new(Network {
            model,
            world: world.clone(),
            lanes: Semaphore::new(model.parallel),
            state: Mutex::new(state),
        })
    }
}

impl Timing for Network {
    fn take(&self, verb: Verb, _offset: u64, len: u64, _fua: bool) -> Cost {
        let model = &self.model;
        let jitter = match verb {
            Verb::Read => model.read_ns,
            Verb::Write | Verb::WriteZeroes => model.write_ns,
            // What is acknowledged is durable there.
            Verb::Flush | Verb::Discard | Verb::Status => return Box::pin(async {}),
        };
        let now = self.world.clock.now().0;
        let requests = len.div_ceil(model.request_bytes).max(1);
        let (wait_ns, ns) = {
            let mut state = lock(&self.state);
            let sustained = state.sustained.take(now, time_ns(requests, model.requests_per_s));
            let most = state.most.take(now, time_ns(requests, model.burst_requests_per_s));
            let bytes = state.bytes.take(now, time_ns(len, model.bytes_per_s));
            (sustained.max(most).max(bytes), draw(&quantiles(jitter), &mut state.prng))
        };
        let (lanes, clock) = (self.lanes.clone(), self.world.clock.clone());
        Box::pin(async move {
            clock.sleep(Duration::from_nanos(wait_ns)).await;
            let _lane = lanes.acquire(1).await;
            clock.sleep(Duration::from_nanos(ns)).await;
        })
    }

    fn is_rotational(&self) -> bool {
        // To the engine it is a slow disk.
        true
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }
}
