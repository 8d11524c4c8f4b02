//! Long work: how far it is, and its end.

use device::World;
use device::sync::Flag;
use futures_util::future::{Either, select};
use std::time::Duration;

/// Pause before another attempt where a device has refused: it costs nothing beside what a device takes to come back.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Ends background work.
#[derive(Debug, Default)]
pub struct StopSignal(Flag);

impl StopSignal {
    /// End it.
    pub fn stop(&self) {
        self.0.set(true);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_set()
    }

    /// Wait for the end.
    pub(crate) async fn ended(&self) {
        self.0.until(true).await;
    }

    /// Sleep for `d`, or less when the end comes; true at the end.
    pub(crate) async fn sleep(&self, world: &World, d: Duration) -> bool {
        if self.is_stopped() {
            return true;
        }
        let stop = std::pin::pin!(self.ended());
        matches!(select(stop, world.clock.sleep(d)).await, Either::Left(_))
    }
}

/// Calls back with bytes done and bytes in all.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);
