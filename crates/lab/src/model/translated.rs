//! Flash with a translation layer (`sim::ftl`): what a request takes depends on what was written before, and TRIM counts.

use super::{Cost, Timing};
use device::sync::lock;
use device::{Instant, Verb, World};
use sim::ftl::{Ftl, FtlConfig, FtlFigures};
use std::sync::{Arc, Mutex};

/// See the module.
pub(crate) struct Translated {
    ftl: Mutex<Ftl>,
    world: World,
}

impl Translated {
    pub(crate) fn new(config: FtlConfig, world: &World) -> Arc<Translated> {
        Arc::new(Translated { ftl: Mutex::new(Ftl::new(config)), world: world.clone() })
    }

    pub(crate) fn figures(&self) -> FtlFigures {
        lock(&self.ftl).figures()
    }
}

impl Timing for Translated {
    fn take(&self, verb: Verb, offset: u64, len: u64, _fua: bool) -> Cost {
        let now = self.world.clock.now().0;
        let mut ftl = lock(&self.ftl);
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
