//! The waiting primitives and the completion, with threads: nothing is lost, nobody overtakes.

#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::Buf;
use device::io::{Completed, Completion, FailKind, Op, Outcome};
use device::prng::Prng;
use device::sync::{Flag, Notify, Semaphore, lock, one_shot};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Run a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn one_shot_delivers_across_threads_or_says_that_nobody_will() {
    for round in 0..5000_u32 {
        let (sender, receiver) = one_shot();
        let thread = std::thread::spawn(move || if round % 3 == 0 { drop(sender) } else { sender.send(round) });
        let expected = if round % 3 == 0 { None } else { Some(round) };
        assert_eq!(block_on(receiver), expected);
        thread.join().unwrap();
    }
}

#[test]
fn whoever_waits_for_a_flag_sees_it_turn() {
    for _ in 0..5000 {
        let flag = Arc::new(Flag::default());
        let other = flag.clone();
        let thread = std::thread::spawn(move || {
            block_on(other.until(true));
            other.set(false);
        });
        assert!(!flag.is_set());
        flag.set(true);
        block_on(flag.until(false));
        thread.join().unwrap();
    }
}

#[test]
fn completions_deliver_across_threads_whatever_happens_to_the_driver() {
    for round in 0..5000_u64 {
        let (completer, completion) = Completion::pair();
        let thread = std::thread::spawn(move || match round % 3 {
            0 => drop(completer),
            _ => completer.complete(Completed::bare(Outcome::Short(round))),
        });
        let expected = if round % 3 == 0 { Outcome::Unknown } else { Outcome::Short(round) };
        if round % 5 == 0 {
            drop(completion);
        } else {
            assert_eq!(block_on(completion).outcome, expected);
        }
        thread.join().unwrap();
    }
    let read = Op::Read { offset: 0, bufs: Buf::zeroed(512).into() };
    let refused = block_on(Completion::failed(FailKind::Invalid, read));
    assert_eq!((refused.outcome.ok(), refused.bufs.len_bytes()), (Err(FailKind::Invalid), 512));
}

#[test]
fn outcomes_other_than_done_are_not_success() {
    assert_eq!(Outcome::Done.ok(), Ok(()));
    assert_eq!(Outcome::Short(512).ok(), Err(FailKind::Media));
    assert_eq!(Outcome::Unknown.ok(), Err(FailKind::Gone));
    assert_eq!(Outcome::Failed(FailKind::NoSpace).ok(), Err(FailKind::NoSpace));
}

/// Each thread moves the counter on only when it is its turn; a lost wake-up would hang it.
#[test]
fn notify_loses_no_wake_up() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 3000;
    let (notify, counter) = (Notify::new(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (notify, counter) = (&notify, &counter);
            scope.spawn(move || {
                block_on(async {
                    for round in 0..ROUNDS {
                        loop {
                            let ticket = notify.ticket();
                            if counter.load(Ordering::SeqCst) == round * THREADS + me {
                                break;
                            }
                            notify.wait(ticket).await;
                        }
                        counter.fetch_add(1, Ordering::SeqCst);
                        notify.notify_all();
                    }
                });
            });
        }
    });
    assert_eq!(counter.load(Ordering::SeqCst), THREADS * ROUNDS);
}

#[test]
fn permits_are_never_exceeded_and_all_come_back() {
    const TOTAL: u64 = 7;
    let semaphore = Semaphore::new(TOTAL);
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (semaphore, held) = (&semaphore, &held);
            scope.spawn(move || {
                let mut prng = Prng::new(thread);
                for _ in 0..5000 {
                    let count = prng.between(1, TOTAL);
                    let permits = if prng.chance(1, 4) {
                        let Some(permits) = semaphore.try_acquire(count) else { continue };
                        permits
                    } else {
                        block_on(semaphore.acquire(count))
                    };
                    let now = held.fetch_add(count, Ordering::SeqCst) + count;
                    assert!(now <= TOTAL, "{now} permits out of {TOTAL}");
                    held.fetch_sub(count, Ordering::SeqCst);
                    drop(permits);
                }
            });
        }
    });
    assert_eq!(semaphore.free(), TOTAL);
}

#[test]
fn a_large_request_is_not_overtaken_and_a_dropped_one_is_forgotten() {
    let semaphore = Semaphore::new(4);
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    let held = block_on(semaphore.acquire(2));
    let mut large = Box::pin(semaphore.acquire(4));
    let mut small = Box::pin(semaphore.acquire(1));
    assert!(large.as_mut().poll(&mut cx).is_pending());
    assert!(small.as_mut().poll(&mut cx).is_pending(), "two are free, but the large one is first");
    assert!(semaphore.try_acquire(1).is_none());
    drop(large);
    let Poll::Ready(one) = small.as_mut().poll(&mut cx) else { panic!("nobody is in front any more") };
    assert_eq!(semaphore.free(), 1);
    drop((held, one));
    // More than there are is cut to all: it must not wait for ever.
    let all = block_on(semaphore.acquire(100));
    assert_eq!(semaphore.free(), 0);
    drop(all);
    assert_eq!(semaphore.free(), 4);
}

#[test]
fn waiters_get_their_turn_in_order() {
    let semaphore = Semaphore::new(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = block_on(semaphore.acquire(1));
    let waiting = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            // One after the other into the queue.
            while waiting.load(Ordering::SeqCst) < thread {
                std::hint::spin_loop();
            }
            let (semaphore, order, waiting) = (&semaphore, order.clone(), &waiting);
            scope.spawn(move || {
                let mut acquire = pin!(semaphore.acquire(1));
                let mut counted = false;
                let permits = block_on(std::future::poll_fn(|cx| {
                    let polled = acquire.as_mut().poll(cx);
                    if !counted {
                        counted = true;
                        waiting.fetch_add(1, Ordering::SeqCst);
                    }
                    polled
                }));
                order.lock().unwrap().push(thread);
                drop(permits);
            });
        }
        while waiting.load(Ordering::SeqCst) < 8 {
            std::hint::spin_loop();
        }
        drop(first);
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A task that notes when it is woken.
struct Noted(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Noted {
    fn wake(self: Arc<Noted>) {
        lock(&self.1).push(self.0);
    }
}

#[test]
fn many_who_wait_are_woken_once_each_in_the_order_they_came() {
    let (notify, woken) = (Notify::new(), Arc::<Mutex<Vec<usize>>>::default());
    let wakers: Vec<Waker> = (0..100).map(|n| Waker::from(Arc::new(Noted(n, woken.clone())))).collect();
    for round in 0..3 {
        let ticket = notify.ticket();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(notify.wait(ticket))).collect();
        for _ in 0..2 {
            for (n, waker) in wakers.iter().enumerate().rev() {
                assert!(waiting[n].as_mut().poll(&mut Context::from_waker(waker)).is_pending());
            }
        }
        notify.notify_all();
        assert_eq!(std::mem::take(&mut *lock(&woken)), (0..100).rev().collect::<Vec<_>>(), "round {round}");
        assert!(waiting[0].as_mut().poll(&mut Context::from_waker(&wakers[0])).is_ready());
    }
}
