//! What other threads hand to an executor thread: wake-ups and messages, and the bell that ends its sleep.
//!
//! Never rings when the thread is awake or the caller is that thread itself: the system call is for sleepers only.

use super::executor::TaskCell;
use super::files::FixedSlot;
use super::request::Request;
use super::sys;
use crate::spawn::Task;
use crate::sync::lock;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// Something to be done on an executor thread.
pub(crate) enum Message {
    /// Adopt a task.
    Spawn(Task),
    /// Start a request that was made outside the executor threads.
    Start(Request),
    /// Wake at an instant, for a timer polled outside the executor threads.
    Timer(u64, Waker),
    /// A timer that moved to another thread or died there.
    TimerGone((u64, u64)),
    /// A device was closed: its place in the ring's table of files is free once every thread has dropped this.
    Forget(Arc<FixedSlot>),
    /// End the thread: drop its tasks, cancel its network, wait for its devices.
    Stop,
}

/// One executor thread as the other threads see it.
pub(crate) struct Inbox {
    /// The number of the thread.
    pub(crate) index: usize,
    state: Mutex<State>,
    /// Something was pushed and not yet taken.
    pending: AtomicBool,
    /// The thread is in the kernel, or about to be, and only the bell wakes it.
    sleeping: AtomicBool,
    bell: OwnedFd,
}

#[derive(Default)]
struct State {
    closed: bool,
    wakes: Vec<Arc<TaskCell>>,
    messages: Vec<Message>,
}

impl Inbox {
    /// An inbox for thread `index`.
    pub(crate) fn new(index: usize) -> std::io::Result<Inbox> {
        Ok(Inbox {
            index,
            state: Mutex::default(),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            bell: sys::eventfd()?,
        })
    }

    /// The eventfd that becomes readable when a sleeping thread is wanted.
    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Hand over a message; it is dropped when the thread has ended.
    pub(crate) fn send(&self, message: Message) {
        self.push(|state| state.messages.push(message));
    }

    /// Make a task of that thread ready.
    pub(crate) fn wake(&self, task: Arc<TaskCell>) {
        self.push(|state| state.wakes.push(task));
    }

    fn push(&self, add: impl FnOnce(&mut State)) {
        {
            let mut state = lock(&self.state);
            if state.closed {
                // What `add` holds is dropped after the lock: parameters outlive locals.
                return;
            }
            add(&mut state);
            self.pending.store(true, Ordering::SeqCst);
        }
        // With the order in `fall_asleep`: either the sleeper sees `pending`, or this sees `sleeping`.
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            sys::ring_bell(self.bell.as_raw_fd());
        }
    }

    /// Take everything; cheap when there is nothing.
    pub(crate) fn take(&self, wakes: &mut Vec<Arc<TaskCell>>, messages: &mut Vec<Message>) {
        if !self.pending.load(Ordering::Acquire) {
            return;
        }
        let mut state = lock(&self.state);
        self.pending.store(false, Ordering::SeqCst);
        std::mem::swap(&mut state.wakes, wakes);
        std::mem::swap(&mut state.messages, messages);
    }

    /// Announce sleep; false when there is something to do first.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.sleeping.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Back from the kernel.
    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Nothing is taken from now on: what is pushed later is dropped at once.
    pub(crate) fn close(&self) {
        let left = {
            let mut state = lock(&self.state);
            state.closed = true;
            (std::mem::take(&mut state.wakes), std::mem::take(&mut state.messages))
        };
        drop(left);
    }
}
