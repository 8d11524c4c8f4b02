//! Flash with a translation layer (`sim::ftl`): what a request takes depends on what was written before, and TRIM counts.

use super::{Cost, Timing};
use device::sync::lock;
use device::{Instant, Verb, World};
use sim::ftl::{Ftl, FtlConfig, FtlFigures};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// See the module.
pub(crate) struct Translated {
    ftl: Mutex<Ftl>,
    controller_ns: u64,
    /// The controller has taken all requests so far then.
    taken_at: AtomicU64,
    world: World,
}

impl Translated {
    /// A drive whose controller takes so long for a request, one after another.
    pub(crate) fn new(config: FtlConfig, controller_ns: u64, world: &World) -> Arc<Translated> {
        let ftl = Mutex::new(Ftl::new(config));
        Arc::new(Translated { ftl, controller_ns, taken_at: AtomicU64::new(0), world: world.clone() })
    }

    pub(crate) fn figures(&self) -> FtlFigures {
        lock(&self.ftl).figures()
    }
}

impl Timing for Translated {
    fn take(&self, verb: Verb, offset: u64, len: u64, _fua: bool) -> Cost {
        let now = self.world.clock.now().0;
        let mut ftl = lock(&self.ftl);
        let now = match verb {
            Verb::Read | Verb::Write | Verb::WriteZeroes => {
                let taken_at = self.taken_at.load(Ordering::Relaxed).max(now) + self.controller_ns;
                self.taken_at.store(taken_at, Ordering::Relaxed);
                taken_at
            }
            Verb::Discard | Verb::Flush | Verb::Status => now,
        };
        let done = match verb {
            Verb::Read => ftl.read(now, offset, len),
            Verb::Write | Verb::WriteZeroes => ftl.write(now, offset, len),
            Verb::Discard => {
                ftl.trim(offset, len);
                now
            }
            Verb::Flush | Verb::Status => now,
        };
        self.world.clock.sleep_until(Instant(done))
    }

    fn is_rotational(&self) -> bool {
        false
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }
}
