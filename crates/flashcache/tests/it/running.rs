//! Runs a test in a real runtime of its own, with a limit.

#![expect(clippy::unwrap_used, reason = "tests")]

use device::{Runtime, RuntimeConfig, World};
use futures_util::future::{Either, select};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(World) -> F) {
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
    let world = runtime.world(1);
    let clock = world.clock.clone();
    let test = Box::pin(test(world));
    runtime.block_on(async move {
        let limit = clock.sleep(Duration::from_secs(50));
        assert!(matches!(select(test, limit).await, Either::Left(_)), "it stands still");
    });
}

/// The life of a member: each is higher than those before, as the sequence of a label is. 1 is for what tests write by hand.
pub(crate) fn next_life() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
