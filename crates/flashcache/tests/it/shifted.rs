//! A clock for tests that wait for days.

use device::{Clock, Instant, Timer, WallTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The real clock, moved on.
#[derive(Clone)]
pub(crate) struct Shifted {
    /// What it is moved on from.
    pub(crate) below: Arc<dyn Clock>,
    /// How far, in nanoseconds.
    pub(crate) by_ns: Arc<AtomicU64>,
}

impl Clock for Shifted {
    fn now(&self) -> Instant {
        Instant(self.below.now().0 + self.by_ns.load(Ordering::Acquire))
    }
    fn wall(&self) -> WallTime {
        self.below.wall()
    }
    fn sleep_until(&self, at: Instant) -> Timer {
        self.below.sleep_until(Instant(at.0.saturating_sub(self.by_ns.load(Ordering::Acquire))))
    }
}
