//! The timers of one executor thread, and the future that waits for one.
//!
//! A timer that is dropped early leaves nothing behind: long time-outs of short requests cost no memory.

use super::executor;
use super::inbox::Message;
use super::runtime::Shared;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// When, and which of those at that instant.
pub(crate) type TimerKey = (u64, u64);

/// The timers of one thread, earliest first. Bounded by the tasks that wait.
#[derive(Default)]
pub(crate) struct Timers {
    map: BTreeMap<TimerKey, Waker>,
    next: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, at_ns: u64, waker: Waker) -> TimerKey {
        let key = (at_ns, self.next);
        self.next += 1;
        self.map.insert(key, waker);
        key
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.map.remove(&key)
    }

    /// Keep the waker of a waiting timer fresh; false when it has fired.
    pub(crate) fn refresh(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.map.get_mut(&key) {
            Some(old) => {
                if !old.will_wake(waker) {
                    old.clone_from(waker);
                }
                true
            }
            None => false,
        }
    }

    /// The earliest instant, in nanoseconds.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.map.first_key_value().map(|(key, _)| key.0)
    }

    /// Take one timer due at `now_ns`.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<Waker> {
        let first = self.map.first_entry()?;
        if first.key().0 > now_ns { None } else { Some(first.remove()) }
    }

    pub(crate) fn clear(&mut self) -> BTreeMap<TimerKey, Waker> {
        std::mem::take(&mut self.map)
    }
}

/// Ready at an instant.
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    at_ns: u64,
    /// Where it is queued: thread and key.
    place: Option<(usize, TimerKey)>,
}

impl Sleep {
    pub(crate) fn new(shared: Arc<Shared>, at_ns: u64) -> Sleep {
        Sleep { shared, at_ns, place: None }
    }

    fn leave(&mut self) {
        let Some((thread, key)) = self.place.take() else { return };
        let here = executor::with_local(&self.shared, |local| {
            if local.inbox.index == thread {
                // The waker is dropped outside the borrow: it may be the last handle of a task.
                let waker = local.timers.borrow_mut().remove(key);
                drop(waker);
                true
            } else {
                false
            }
        });
        if here != Some(true) {
            self.shared.inboxes[thread].send(Message::TimerGone(key));
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.now_ns() >= self.at_ns {
            self.leave();
            return Poll::Ready(());
        }
        let at_ns = self.at_ns;
        let place = executor::with_local(&self.shared, |local| {
            let thread = local.inbox.index;
            let mut timers = local.timers.borrow_mut();
            match self.place {
                Some((home, key)) if home == thread && timers.refresh(key, cx.waker()) => (thread, key),
                _ => (thread, timers.insert(at_ns, cx.waker().clone())),
            }
        });
        match place {
            Some(place) => {
                if self.place != Some(place) {
                    self.leave();
                    self.place = Some(place);
                }
            }
            None => self.shared.inboxes[0].send(Message::Timer(at_ns, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.leave();
    }
}
