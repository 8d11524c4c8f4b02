//! A process: tasks, threads and a clock that end together.

use super::state::{EventKey, Handle, PausedClock};
use device::{Clock, Instant, Net, Spawn, Task, Timer, WallTime, World};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A process of the virtual world: the [`Clock`] and [`Spawn`] of what runs in it. Clones are the same process.
///
/// [`Process::kill`] is `kill -9`: every task is dropped where it stands. Devices and links made for a process must
/// ask [`Process::alive`] before they take anything from it, because destructors that no real kill would run do run.
#[derive(Clone)]
pub struct Process {
    handle: Handle,
    id: usize,
}

impl Process {
    pub(super) fn new(handle: Handle, id: usize) -> Process {
        Process { handle, id }
    }

    /// The seams for an engine in this process.
    #[must_use]
    pub fn world(&self, net: Arc<dyn Net>, prng_name: &str) -> World {
        World { clock: Arc::new(self.clone()), spawn: Arc::new(self.clone()), net, prng: self.handle.prng(prng_name) }
    }

    /// The executor's side for hardware.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Its number, for messages and traces.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id as u64
    }

    /// End it now: hooks first, then every task and its future, in the order they were spawned. A task that kills its
    /// own process is dropped when its poll returns. Killing a dead process does nothing.
    ///
    /// # Panics
    /// When it is the main process.
    pub fn kill(&self) {
        self.handle.kill(self.id);
    }

    /// Stop it where it stands, as SIGSTOP, a paused virtual machine or a frozen control group does: nothing of it runs until
    /// [`Process::resume`], while devices and links go on, and so do requests that they have. Again, it changes nothing.
    ///
    /// # Panics
    /// When it is the main process.
    pub fn pause(&self, clock: PausedClock) {
        self.handle.pause(self.id, clock);
    }

    /// Let it go on.
    pub fn resume(&self) {
        self.handle.resume(self.id);
    }

    /// Not killed yet.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.handle.alive(self.id)
    }

    /// Tasks that are not done.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.handle.tasks_of(self.id)
    }

    /// Call `hook` when it is killed, before its tasks are dropped; at once when it is dead already.
    pub fn on_kill(&self, hook: impl FnOnce() + Send + 'static) {
        self.handle.on_kill(self.id, Box::new(hook));
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.id)
    }
}

impl Spawn for Process {
    fn spawn(&self, task: Task) {
        self.handle.spawn(self.id, None, task);
    }
    fn spawn_on(&self, thread: usize, task: Task) {
        self.handle.spawn(self.id, Some(thread), task);
    }
    fn threads(&self) -> usize {
        self.handle.threads()
    }
}

impl Clock for Process {
    fn now(&self) -> Instant {
        self.handle.now_of(self.id)
    }
    fn wall(&self) -> WallTime {
        WallTime(self.handle.wall_ns())
    }
    fn sleep_until(&self, at: Instant) -> Timer {
        Box::pin(Sleep { process: self.clone(), at, key: None })
    }
}

struct Sleep {
    process: Process,
    at: Instant,
    key: Option<EventKey>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (process, at) = (self.process.clone(), self.at);
        if process.handle.set_timer(process.id, at, &mut self.key, cx.waker()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.process.handle.drop_timer(key);
        }
    }
}
