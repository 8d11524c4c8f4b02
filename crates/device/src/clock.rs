//! The time seam.
//!
//! Never decides anything by wall time: that is for display and for ages kept across restarts. (A holder of a claim looks at it
//! once more when wall time has jumped.)

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Monotonic time of one world, in nanoseconds since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

/// Wall time in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub u64);

impl Instant {
    /// This instant moved on by `d`.
    #[must_use]
    pub fn after(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
    /// Nanoseconds from `earlier` to this, 0 when it is later.
    #[must_use]
    pub fn ns_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A future that is ready at an instant.
pub type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The time seam.
pub trait Clock: Send + Sync {
    /// Monotonic now.
    fn now(&self) -> Instant;
    /// Wall clock now.
    fn wall(&self) -> WallTime;
    /// Ready at or after `at`.
    fn sleep_until(&self, at: Instant) -> Timer;
}

impl dyn Clock {
    /// Ready after `d`.
    pub fn sleep(&self, d: Duration) -> Timer {
        self.sleep_until(self.now().after(d))
    }
}
