//! Waiting between tasks of one world: fair, bounded by their users, no time-outs of their own.
//!
//! The internal locks are held for memory work only, never across an await.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Lock a mutex that guards plain data: a panic elsewhere ends the process, so poisoning carries no news.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One value from one task to another.
#[derive(Debug)]
pub struct OneShot<T>(Arc<Mutex<OneShotState<T>>>);

#[derive(Debug)]
enum OneShotState<T> {
    Waiting(Option<Waker>),
    Sent(T),
    Over,
}

/// The sending end of [`one_shot`]; dropped without sending, the receiver gets `None`.
#[derive(Debug)]
pub struct Sender<T>(OneShot<T>);

/// The receiving end of [`one_shot`].
#[derive(Debug)]
pub struct Receiver<T>(OneShot<T>);

/// A channel for one value.
#[must_use]
pub fn one_shot<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(OneShotState::Waiting(None)));
    (Sender(OneShot(state.clone())), Receiver(OneShot(state)))
}

impl<T> Sender<T> {
    /// Deliver.
    pub fn send(self, value: T) {
        self.0.finish(OneShotState::Sent(value));
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.finish(OneShotState::Over);
    }
}

impl<T> OneShot<T> {
    fn finish(&self, with: OneShotState<T>) {
        let waker = {
            let mut state = lock(&self.0);
            let OneShotState::Waiting(waker) = &mut *state else { return };
            let waker = waker.take();
            *state = with;
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0.0);
        match std::mem::replace(&mut *state, OneShotState::Over) {
            OneShotState::Sent(value) => Poll::Ready(Some(value)),
            OneShotState::Over => Poll::Ready(None),
            OneShotState::Waiting(_) => {
                *state = OneShotState::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// An event that many tasks may wait for, again and again: wait for a change of something looked at under a lock.
///
/// Take a [`Notify::ticket`] before looking, wait on it after: no wake-up between the two is lost.
#[derive(Debug, Default)]
pub struct Notify(Mutex<NotifyState>);

#[derive(Debug, Default)]
struct NotifyState {
    round: u64,
    /// In the order they came: that is the order they are woken in.
    wakers: Vec<Waker>,
    /// Which these are, once there are more than [`WAKERS_SEARCHED_MAX`].
    known: BTreeSet<(usize, usize)>,
}

/// Fewer tasks that wait are looked through; of thousands, each look would take as long as all of its work.
const WAKERS_SEARCHED_MAX: usize = 32;

/// What a waker is told by: two of one identity wake the same task.
fn identity(waker: &Waker) -> (usize, usize) {
    (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
}

impl NotifyState {
    fn add(&mut self, waker: &Waker) {
        let is_new = if self.wakers.len() < WAKERS_SEARCHED_MAX {
            !self.wakers.iter().any(|w| w.will_wake(waker))
        } else {
            if self.known.is_empty() {
                self.known.extend(self.wakers.iter().map(identity));
            }
            self.known.insert(identity(waker))
        };
        if is_new {
            self.wakers.push(waker.clone());
        }
    }
}

impl Notify {
    /// A new event.
    #[must_use]
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wake all who wait now.
    pub fn notify_all(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.round += 1;
            state.known.clear();
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The present round.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        lock(&self.0).round
    }

    /// Ready once somebody has notified after `ticket` was taken.
    pub async fn wait(&self, ticket: u64) {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.0);
            if state.round != ticket {
                return Poll::Ready(());
            }
            state.add(cx.waker());
            Poll::Pending
        })
        .await;
    }
}

/// Requests under way, and a wait for those that are now. Clones count the same ones.
#[derive(Clone, Debug, Default)]
pub struct UnderWay(Arc<UnderWayShared>);

#[derive(Debug, Default)]
struct UnderWayShared {
    numbers: Mutex<Numbers>,
    changed: Notify,
}

/// Bounded by the requests under way.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// One request under way, until this is dropped.
#[derive(Debug)]
pub struct Turn {
    of: UnderWay,
    number: u64,
}

impl UnderWay {
    /// A request begins.
    #[must_use]
    pub fn begin(&self) -> Turn {
        let mut numbers = lock(&self.0.numbers);
        let number = numbers.next;
        numbers.next += 1;
        numbers.under_way.insert(number);
        Turn { of: self.clone(), number }
    }

    /// Wait until those have ended that are under way now.
    pub async fn ended(&self) {
        let next = lock(&self.0.numbers).next;
        loop {
            let ticket = self.0.changed.ticket();
            if lock(&self.0.numbers).under_way.first().is_none_or(|&oldest| oldest >= next) {
                return;
            }
            self.0.changed.wait(ticket).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.of.0.numbers).under_way.remove(&self.number);
        self.of.0.changed.notify_all();
    }
}

/// A condition that holds or does not, cheap to look at, and for whose turning tasks may wait. At first it does not hold.
#[derive(Debug, Default)]
pub struct Flag {
    holds: AtomicBool,
    turned: Notify,
}

impl Flag {
    /// From now on it holds, or does not.
    pub fn set(&self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
        self.turned.notify_all();
    }

    /// Whether it holds.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }

    /// Wait until it holds, or does not.
    pub async fn until(&self, holds: bool) {
        while self.is_set() != holds {
            let ticket = self.turned.ticket();
            if self.is_set() != holds {
                self.turned.wait(ticket).await;
            }
        }
    }
}

/// Permits handed out first come, first served; they never exceed the number it was made with.
#[derive(Clone, Debug)]
pub struct Semaphore(Arc<SemaphoreShared>);

#[derive(Debug)]
struct SemaphoreShared {
    state: Mutex<SemaphoreState>,
}

#[derive(Debug)]
struct SemaphoreState {
    free: u64,
    total: u64,
    next_id: u64,
    waiters: VecDeque<(u64, u64, Option<Waker>)>,
}

/// Permits held; given back when dropped.
#[derive(Debug)]
pub struct Permits {
    semaphore: Semaphore,
    count: u64,
}

impl Semaphore {
    /// A semaphore of `total` permits.
    #[must_use]
    pub fn new(total: u64) -> Semaphore {
        let state = SemaphoreState { free: total, total, next_id: 0, waiters: VecDeque::new() };
        Semaphore(Arc::new(SemaphoreShared { state: Mutex::new(state) }))
    }

    /// `count` permits, in the order of the calls. More than there are in all is cut to all.
    pub async fn acquire(&self, count: u64) -> Permits {
        let count = count.min(lock(&self.0.state).total);
        Acquire { semaphore: self, count, id: None }.await
    }

    /// `count` permits now, or none when there are too few or somebody waits already.
    #[must_use]
    pub fn try_acquire(&self, count: u64) -> Option<Permits> {
        let mut state = lock(&self.0.state);
        if !state.waiters.is_empty() || state.free < count {
            return None;
        }
        state.free -= count;
        Some(Permits { semaphore: self.clone(), count })
    }

    /// Permits nobody holds.
    #[must_use]
    pub fn free(&self) -> u64 {
        lock(&self.0.state).free
    }

    fn wake_front(&self) {
        let waker = {
            let mut state = lock(&self.0.state);
            let free = state.free;
            match state.waiters.front_mut() {
                Some((_, count, waker)) if *count <= free => waker.take(),
                _ => None,
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        lock(&self.semaphore.0.state).free += self.count;
        self.semaphore.wake_front();
    }
}

struct Acquire<'a> {
    semaphore: &'a Semaphore,
    count: u64,
    id: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = Permits;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permits> {
        let (count, id) = (self.count, self.id);
        let mut state = lock(&self.semaphore.0.state);
        let first = match id {
            None => state.waiters.is_empty(),
            Some(id) => state.waiters.front().is_some_and(|w| w.0 == id),
        };
        if first && state.free >= count {
            state.free -= count;
            if id.is_some() {
                state.waiters.pop_front();
            }
            drop(state);
            let permits = Permits { semaphore: self.semaphore.clone(), count };
            self.id = None;
            self.count = 0;
            // What is left may be enough for the next in the queue.
            permits.semaphore.wake_front();
            return Poll::Ready(permits);
        }
        match id {
            None => {
                let id = state.next_id;
                state.next_id += 1;
                state.waiters.push_back((id, count, Some(cx.waker().clone())));
                drop(state);
                self.id = Some(id);
            }
            Some(id) => {
                if let Some(entry) = state.waiters.iter_mut().find(|w| w.0 == id) {
                    entry.2 = Some(cx.waker().clone());
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            lock(&self.semaphore.0.state).waiters.retain(|w| w.0 != id);
            self.semaphore.wake_front();
        }
    }
}
