//! The executor of one thread: a run queue, a table of tasks, timers, and a driver that sleeps in the kernel.
//!
//! A turn polls what is ready (and what that makes ready, up to [`POLLS_PER_TURN_MAX`]), then hands everything that was
//! submitted to the kernel in one call. A task stays on its thread; a wake from the same thread is a push to a queue,
//! one from another thread a push under a lock, with a system call only when the thread sleeps. Never spins.

use super::driver::{Driver, Wait};
use super::inbox::{Inbox, Message};
use super::runtime::Shared;
use super::timers::Timers;
use crate::spawn::Task;
use slab::Slab;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Polls between two looks at the kernel: enough to send a whole batch of requests at once, few enough that
/// completions do not wait behind a long chain of tasks waking each other.
pub(crate) const POLLS_PER_TURN_MAX: usize = 256;

/// One task. Its waker is a clone of the `Arc`: waking allocates nothing.
pub(crate) struct TaskCell {
    home: Arc<Inbox>,
    /// In a run queue, or about to be: a second wake has nothing to do.
    scheduled: AtomicBool,
    key: usize,
    /// Touched by the home thread only.
    future: UnsafeCell<Option<Task>>,
}

// SAFETY: `future` is accessed only by the thread that owns the task (see `Local::poll` and `Local::clear`), which is
// the one that created this cell; all other fields are Sync. The future itself is Send, so it may be dropped anywhere.
unsafe impl Sync for TaskCell {}
// SAFETY: as above.
unsafe impl Send for TaskCell {}

impl Wake for TaskCell {
    fn wake(self: Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            schedule(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            schedule(self.clone());
        }
    }
}

fn schedule(task: Arc<TaskCell>) {
    let local = LOCAL.get();
    // SAFETY: the pointer is set for the time `Local::run` holds the value it points to, on this thread only.
    if let Some(local) = unsafe { local.as_ref() }
        && Arc::ptr_eq(&local.inbox, &task.home)
    {
        // A task that wakes itself yields: the kernel and the others come first.
        if ptr::eq(local.polling.get(), Arc::as_ptr(&task)) {
            local.yielded.borrow_mut().push(task);
        } else {
            local.ready.borrow_mut().push_back(task);
        }
    } else {
        let home = task.home.clone();
        home.wake(task);
    }
}

thread_local! {
    static LOCAL: Cell<*const Local> = const { Cell::new(ptr::null()) };
}

/// The state of the executor thread that runs this code.
pub(crate) struct Local {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) driver: RefCell<Driver>,
    ready: RefCell<VecDeque<Arc<TaskCell>>>,
    yielded: RefCell<Vec<Arc<TaskCell>>>,
    tasks: RefCell<Slab<Arc<TaskCell>>>,
    polling: Cell<*const TaskCell>,
    stopping: Cell<bool>,
}

/// Call `f` with the state of this thread if it is an executor thread of `shared`'s runtime.
pub(crate) fn with_local<T>(shared: &Arc<Shared>, f: impl FnOnce(&Local) -> T) -> Option<T> {
    // SAFETY: as in `schedule`.
    let local = unsafe { LOCAL.get().as_ref() }?;
    if Arc::ptr_eq(&local.shared, shared) { Some(f(local)) } else { None }
}

/// Whether this is an executor thread of any runtime.
pub(crate) fn on_executor() -> bool {
    !LOCAL.get().is_null()
}

impl Local {
    pub(crate) fn new(shared: Arc<Shared>, inbox: Arc<Inbox>, driver: Driver) -> Local {
        Local {
            shared,
            inbox,
            timers: RefCell::default(),
            driver: RefCell::new(driver),
            ready: RefCell::default(),
            yielded: RefCell::default(),
            tasks: RefCell::default(),
            polling: Cell::new(ptr::null()),
            stopping: Cell::new(false),
        }
    }

    /// Adopt a task: it is polled in this turn or the next.
    pub(crate) fn spawn(&self, future: Task) {
        if self.stopping.get() {
            return;
        }
        let task = {
            let mut tasks = self.tasks.borrow_mut();
            let entry = tasks.vacant_entry();
            let task = Arc::new(TaskCell {
                home: self.inbox.clone(),
                scheduled: AtomicBool::new(true),
                key: entry.key(),
                future: UnsafeCell::new(Some(future)),
            });
            entry.insert(task.clone());
            task
        };
        self.ready.borrow_mut().push_back(task);
    }

    /// Run until told to stop; true when every request to a device has completed.
    pub(crate) fn run(&self) -> bool {
        LOCAL.set(self);
        let mut wakes = Vec::new();
        let mut messages = Vec::new();
        while !self.stopping.get() {
            self.take_inbox(&mut wakes, &mut messages);
            self.fire_timers();
            for _ in 0..POLLS_PER_TURN_MAX {
                let task = self.ready.borrow_mut().pop_front();
                let Some(task) = task else { break };
                self.poll(&task);
            }
            self.ready.borrow_mut().extend(self.yielded.borrow_mut().drain(..));
            let wait = if !self.ready.borrow().is_empty() || self.stopping.get() {
                Wait::No
            } else {
                match self.timers.borrow().next_ns() {
                    Some(at_ns) => Wait::For(Duration::from_nanos(at_ns.saturating_sub(self.shared.now_ns()))),
                    None => Wait::Forever,
                }
            };
            Driver::turn(self, wait);
        }
        let idle = self.stop();
        LOCAL.set(ptr::null());
        idle
    }

    fn take_inbox(&self, wakes: &mut Vec<Arc<TaskCell>>, messages: &mut Vec<Message>) {
        self.inbox.take(wakes, messages);
        self.ready.borrow_mut().extend(wakes.drain(..));
        for message in messages.drain(..) {
            match message {
                Message::Spawn(task) => self.spawn(task),
                Message::Start(request) => Driver::start(self, request),
                Message::Timer(at_ns, waker) => {
                    self.timers.borrow_mut().insert(at_ns, waker);
                }
                Message::TimerGone(key) => {
                    let waker = self.timers.borrow_mut().remove(key);
                    drop(waker);
                }
                Message::Forget(slot) => self.driver.borrow_mut().forget(&slot),
                Message::Stop => self.stopping.set(true),
            }
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().next_ns().is_none() {
            return;
        }
        let now_ns = self.shared.now_ns();
        loop {
            let due = self.timers.borrow_mut().pop_due(now_ns);
            let Some(waker) = due else { break };
            waker.wake();
        }
    }

    fn poll(&self, task: &Arc<TaskCell>) {
        // Before the poll: a wake during it counts. AcqRel pairs with the swap of the waker, so what the waker's
        // thread wrote before is seen by the future.
        task.scheduled.swap(false, Ordering::AcqRel);
        // SAFETY: only the home thread gets here, and a poll never polls another task, so this is the only access.
        let future = unsafe { &mut *task.future.get() };
        let Some(running) = future else { return };
        let waker = Waker::from(task.clone());
        self.polling.set(Arc::as_ptr(task));
        let done = running.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(()) = done {
            *future = None;
            self.polling.set(ptr::null());
            let cell = self.tasks.borrow_mut().remove(task.key);
            drop(cell);
        }
        self.polling.set(ptr::null());
    }

    /// Drop the tasks, cancel the network, wait for the devices until the runtime's deadline.
    fn stop(&self) -> bool {
        loop {
            let cells: Vec<_> = self.tasks.borrow_mut().drain().collect();
            if cells.is_empty() {
                break;
            }
            for cell in cells {
                // SAFETY: this is the home thread and nothing is being polled.
                let future = unsafe { &mut *cell.future.get() }.take();
                drop(future);
            }
        }
        self.ready.borrow_mut().clear();
        self.yielded.borrow_mut().clear();
        let timers = self.timers.borrow_mut().clear();
        drop(timers);
        self.inbox.close();
        self.driver.borrow_mut().cancel_network();
        loop {
            if self.driver.borrow().is_idle() {
                return true;
            }
            let left_ns = self.shared.deadline_ns().saturating_sub(self.shared.now_ns());
            if left_ns == 0 {
                return false;
            }
            // Short naps: a completion may free buffers or tasks on other threads, but no wake comes here any more.
            Driver::turn(self, Wait::For(Duration::from_nanos(left_ns.min(10_000_000))));
            self.ready.borrow_mut().clear();
        }
    }
}

/// Start a request on this thread's driver; it comes back when this is not an executor thread of `shared`'s runtime.
pub(crate) fn start_here(shared: &Arc<Shared>, request: super::request::Request) -> Option<super::request::Request> {
    let mut request = Some(request);
    with_local(shared, |local| {
        if let Some(request) = request.take() {
            Driver::start(local, request);
        }
    });
    request
}
