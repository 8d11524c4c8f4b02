//! The task seam: single-threaded executors, one per ring or virtual thread.
//!
//! A task stays on the thread it was spawned on; its waker may be used from any thread.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A task as executors take it.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The task seam.
pub trait Spawn: Send + Sync {
    /// Run `task` on the calling executor thread, or on thread 0 when called from outside.
    fn spawn(&self, task: Task);
    /// Run `task` on executor thread `thread` (modulo their number).
    fn spawn_on(&self, thread: usize, task: Task);
    /// How many executor threads there are.
    fn threads(&self) -> usize;
}

/// Let other ready tasks run once: for loops that may be long.
pub async fn yield_now() {
    struct Yield(bool);
    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if self.0 {
                return Poll::Ready(());
            }
            self.0 = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    Yield(false).await;
}
