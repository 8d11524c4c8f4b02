//! Flash: reads and programs cost differently, so many go at once, and what overwrites at random is paid for by the drive's own collection of
//! garbage, which sustains so many writes a second and no more.
//!
//! A write that goes on where another ended, or is as long as an erase block, makes no garbage that has to be copied.

use super::{Cost, Timing};
use device::sync::{Semaphore, lock};
use device::{Verb, World};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a drive is. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) struct FlashModel {
    pub(in crate::run) read_ns: u64,
    pub(in crate::run) read_ns_per_kib: u64,
    pub(in crate::run) write_ns: u64,
    pub(in crate::run) write_ns_per_kib: u64,
    /// Requests it works on at once.
    pub(in crate::run) channels: u64,
    /// Writes at random it sustains; none: as many as it takes.
    pub(in crate::run) random_writes_per_s: Option<u64>,
    /// Of those it takes so many ahead.
    pub(in crate::run) random_burst: u64,
}

/// Streams of writes it can tell apart.
const STREAMS_MAX: usize = 8;
const ERASE_BYTES: u64 = 256 << 10;

#[derive(Default)]
struct State {
    /// Where recent writes ended.
    ends: VecDeque<u64>,
    /// When the garbage of all writes so far is collected.
    collected_at: u64,
    /// The way to the host is busy until then.
    bus_at: u64,
}

/// See the module.
pub(in crate::run) struct Flash {
    model: FlashModel,
    world: World,
    lanes: Semaphore,
    state: Arc<Mutex<State>>,
}

impl Flash {
    pub(in crate::run) fn new(model: FlashModel, world: &World) -> Arc<Flash> {
        let lanes = Semaphore::new(model.channels);
        Arc::new(Flash { model, world: world.clone(), lanes, state: Arc::default() })
    }

    /// How long a write has to wait for the collection of garbage.
    fn collection_ns(&self, offset: u64, len: u64) -> u64 {
        let mut state = lock(&self.state);
        let found = state.ends.iter().position(|end| *end == offset);
        if let Some(at) = found {
            state.ends.remove(at);
        }
        state.ends.push_back(offset + len);
        if state.ends.len() > STREAMS_MAX {
            state.ends.pop_front();
        }
        let Some(rate) = self.model.random_writes_per_s.filter(|_| found.is_none() && len < ERASE_BYTES) else {
            return 0;
        };
        let (now, each) = (self.world.clock.now().0, 1_000_000_000 / rate);
        state.collected_at = state.collected_at.max(now) + each;
        (state.collected_at - now).saturating_sub(self.model.random_burst * each)
    }
}

impl Timing for Flash {
    fn take(&self, verb: Verb, offset: u64, len: u64, _fua: bool) -> Cost {
        let model = self.model;
        let (cell_ns, ns_per_kib, wait_ns) = match verb {
            Verb::Read => (model.read_ns, model.read_ns_per_kib, 0),
            Verb::Write | Verb::WriteZeroes => {
                (model.write_ns, model.write_ns_per_kib, self.collection_ns(offset, len))
            }
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
                state.bus_at = state.bus_at.max(clock.now().0) + len * ns_per_kib / 1024;
                device::Instant(state.bus_at)
            };
            clock.sleep_until(end).await;
        })
    }

    fn is_rotational(&self) -> bool {
        false
    }
}
