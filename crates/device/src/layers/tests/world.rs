//! A virtual world for the layers' tests: tasks in the order they were woken, time that jumps to the next timer.

use crate::clock::{Clock, Instant, Timer, WallTime};
use crate::spawn::{Spawn, Task};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// See the module's head.
#[derive(Default)]
pub(super) struct World {
    now_ns: Mutex<u64>,
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    ready: Mutex<VecDeque<Arc<Cell>>>,
}

struct Cell {
    world: Weak<World>,
    task: Mutex<Option<Task>>,
}

impl Wake for Cell {
    fn wake(self: Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            world.ready.lock().unwrap().push_back(self);
        }
    }
}

/// The two seams of a world.
pub(super) struct Seam(pub(super) Arc<World>);

impl World {
    pub(super) fn new() -> (Arc<World>, Arc<dyn Clock>, Arc<dyn Spawn>) {
        let world = Arc::new(World::default());
        (world.clone(), Arc::new(Seam(world.clone())), Arc::new(Seam(world)))
    }

    pub(super) fn now_ns(&self) -> u64 {
        *self.now_ns.lock().unwrap()
    }

    /// Run what is ready until nothing is.
    pub(super) fn settle(&self) {
        loop {
            let Some(cell) = self.ready.lock().unwrap().pop_front() else { return };
            let task = cell.task.lock().unwrap().take();
            let Some(mut task) = task else { continue };
            let waker = Waker::from(cell.clone());
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                *cell.task.lock().unwrap() = Some(task);
            }
        }
    }

    /// Run until `future` is ready, jumping from timer to timer.
    ///
    /// Panics when nothing can make it ready any more.
    pub(super) fn block_on<T: Send + 'static>(self: &Arc<Self>, future: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let out = result.clone();
        Seam(self.clone()).spawn(Box::pin(async move {
            let value = future.await;
            *out.lock().unwrap() = Some(value);
        }));
        loop {
            self.settle();
            if let Some(value) = result.lock().unwrap().take() {
                return value;
            }
            let first = self.timers.lock().unwrap().pop_first();
            let ((at, _), waker) = first.expect("a future that nothing can make ready");
            let mut now = self.now_ns.lock().unwrap();
            *now = at.max(*now);
            drop(now);
            waker.wake();
        }
    }
}

impl Clock for Seam {
    fn now(&self) -> Instant {
        Instant(self.0.now_ns())
    }
    fn wall(&self) -> WallTime {
        WallTime(self.0.now_ns())
    }
    fn sleep_until(&self, at: Instant) -> Timer {
        let world = self.0.clone();
        Box::pin(std::future::poll_fn(move |cx| {
            if world.now_ns() >= at.0 {
                return Poll::Ready(());
            }
            let mut timers = world.timers.lock().unwrap();
            let next = timers.len() as u64 + timers.last_key_value().map_or(0, |(k, _)| k.1 + 1);
            timers.insert((at.0, next), cx.waker().clone());
            Poll::Pending
        }))
    }
}

impl Spawn for Seam {
    fn spawn(&self, task: Task) {
        let cell = Arc::new(Cell { world: Arc::downgrade(&self.0), task: Mutex::new(Some(task)) });
        self.0.ready.lock().unwrap().push_back(cell);
    }
    fn spawn_on(&self, _thread: usize, task: Task) {
        self.spawn(task);
    }
    fn threads(&self) -> usize {
        1
    }
}

/// Await all, in order.
pub(super) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    // Every future is polled from the start, so that those behind are under way.
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
