//! Flash: reads and programs cost differently, so many go at once, and what overwrites at random is paid for by the drive's own collection of
//! garbage, which sustains so many writes a second and no more.
//!
//! A write that goes on where another ended, or is as long as an erase block, makes no garbage that has to be copied. A drive that writes to a
//! part of its cells as if they held one bit takes writes quickly until that part is full, then as quickly as it empties it.

use super::bucket::{Bucket, moved_ns};
use super::{Cost, Timing};
use device::sync::{Semaphore, lock};
use device::{Verb, World};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a drive is. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlashModel {
    pub(crate) read_ns: u64,
    pub(crate) read_ns_per_kib: u64,
    pub(crate) write_ns: u64,
    pub(crate) write_ns_per_kib: u64,
    /// Requests it works on at once.
    pub(crate) channels: u64,
    /// Writes at random it sustains; none: as many as it takes.
    pub(crate) random_writes_per_s: Option<u64>,
    /// Of those it takes so many ahead.
    pub(crate) random_burst: u64,
    /// Its controller, one request after another.
    pub(crate) controller_ns: u64,
    /// What is written goes there first; none: at once to where it stays.
    pub(crate) cache: Option<WriteCache>,
}

/// Cells that take writes quickly, and are emptied to those that do not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteCache {
    /// Of them.
    pub(crate) bytes: u64,
    /// How quickly it is emptied.
    pub(crate) emptied_ns_per_kib: u64,
    /// So many hundredths of it are full at the start.
    pub(crate) full_percent: u64,
}

/// Streams of writes it can tell apart.
const STREAMS_MAX: usize = 8;
const ERASE_BYTES: u64 = 256 << 10;

struct State {
    /// Where recent writes ended.
    ends: VecDeque<u64>,
    /// The garbage of writes.
    garbage: Bucket,
    /// What is in the cache.
    cached: Bucket,
    /// The way to the host is busy until then.
    bus_at: u64,
}

/// See the module.
pub(crate) struct Flash {
    model: FlashModel,
    world: World,
    lanes: Semaphore,
    state: Arc<Mutex<State>>,
}

impl Flash {
    pub(crate) fn new(model: FlashModel, world: &World) -> Arc<Flash> {
        let lanes = Semaphore::new(model.channels);
        let now = world.clock.now().0;
        let burst_ns = model.random_writes_per_s.map_or(0, |rate| model.random_burst * (1_000_000_000 / rate));
        let cache = model.cache.unwrap_or(WriteCache { bytes: 0, emptied_ns_per_kib: 0, full_percent: 0 });
        let cache_ns = moved_ns(cache.bytes, cache.emptied_ns_per_kib);
        let state = State {
            ends: VecDeque::new(),
            garbage: Bucket::new(burst_ns, 0, now),
            cached: Bucket::new(cache_ns, cache_ns / 100 * cache.full_percent, now),
            bus_at: 0,
        };
        Arc::new(Flash { model, world: world.clone(), lanes, state: Arc::new(Mutex::new(state)) })
    }

    /// How long a write has to wait for the collection of garbage, and for room in the cache.
    fn wait_ns(&self, offset: u64, len: u64) -> u64 {
        let now = self.world.clock.now().0;
        let mut state = lock(&self.state);
        let found = state.ends.iter().position(|end| *end == offset);
        if let Some(at) = found {
            state.ends.remove(at);
        }
        state.ends.push_back(offset + len);
        if state.ends.len() > STREAMS_MAX {
            state.ends.pop_front();
        }
        let room_ns =
            self.model.cache.map_or(0, |cache| state.cached.take(now, moved_ns(len, cache.emptied_ns_per_kib)));
        match self.model.random_writes_per_s {
            Some(rate) if found.is_none() && len < ERASE_BYTES => {
                room_ns.max(state.garbage.take(now, 1_000_000_000 / rate))
            }
            _ => room_ns,
        }
    }
}

impl Timing for Flash {
    fn take(&self, verb: Verb, offset: u64, len: u64, _fua: bool) -> Cost {
        let model = self.model;
        let (cell_ns, ns_per_kib, wait_ns) = match verb {
            Verb::Read => (model.read_ns, model.read_ns_per_kib, 0),
            Verb::Write | Verb::WriteZeroes => (model.write_ns, model.write_ns_per_kib, self.wait_ns(offset, len)),
            Verb::Flush | Verb::Discard | Verb::Status => return Box::pin(async {}),
        };
        let (lanes, clock, state) = (self.lanes.clone(), self.world.clock.clone(), self.state.clone());
        Box::pin(async move {
            if wait_ns > 0 {
                clock.sleep(Duration::from_nanos(wait_ns)).await;
            }
            let _lane = lanes.acquire(1).await;
            clock.sleep(Duration::from_nanos(cell_ns)).await;
            // Transfers share the way to the host.
            let end = {
                let mut state = lock(&state);
                state.bus_at = state.bus_at.max(clock.now().0) + model.controller_ns + moved_ns(len, ns_per_kib);
                device::Instant(state.bus_at)
            };
            clock.sleep_until(end).await;
        })
    }

    fn is_rotational(&self) -> bool {
        false
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }
}
