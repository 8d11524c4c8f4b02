//! The executor: timers in order, wakes from every side, panics that come out, sleep that costs nothing.

use super::{runtime, runtimes};
use crate::clock::Instant;
use crate::real::Backend;
use crate::spawn::yield_now;
use crate::sync::{Notify, one_shot};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[test]
fn timers_fire_in_order_and_never_early() {
    for runtime in runtimes(1) {
        let world = runtime.world(1);
        let order = runtime.block_on(async move {
            let order = Arc::new(Mutex::new(Vec::new()));
            let (done_in, done) = one_shot();
            let done_in = Mutex::new(Some(done_in));
            let left = Arc::new((AtomicU64::new(5), done_in));
            let start = world.clock.now();
            for ms in [40_u64, 10, 30, 20, 0] {
                let (clock, order, left) = (world.clock.clone(), order.clone(), left.clone());
                world.spawn.spawn(Box::pin(async move {
                    clock.sleep_until(start.after(Duration::from_millis(ms))).await;
                    assert!(clock.now().ns_since(start) >= ms * 1_000_000, "early");
                    order.lock().unwrap().push(ms);
                    drop(order);
                    if left.0.fetch_sub(1, Ordering::SeqCst) == 1 {
                        left.1.lock().unwrap().take().unwrap().send(());
                    }
                }));
            }
            done.await;
            Arc::try_unwrap(order).unwrap().into_inner().unwrap()
        });
        assert_eq!(order, [0, 10, 20, 30, 40]);
    }
}

#[test]
fn an_instant_in_the_past_is_ready_and_a_dropped_timer_is_forgotten() {
    for runtime in runtimes(1) {
        let clock = runtime.world(1).clock;
        runtime.block_on(async move {
            clock.sleep_until(Instant(0)).await;
            for _ in 0..1000 {
                let mut long = clock.sleep(Duration::from_secs(3600));
                let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(long.as_mut().poll(cx))).await;
                assert!(polled.is_pending());
            }
            // With a thousand timers left behind this would still pass, but the next line would not.
            clock.sleep(Duration::from_millis(1)).await;
        });
        runtime.shutdown(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn wake_storms_across_threads_lose_nothing() {
    const TASKS: usize = 64;
    const ROUNDS: u64 = 2000;
    for runtime in runtimes(4) {
        let world = runtime.world(1);
        let (done_in, done) = mpsc::channel();
        let notify = Arc::new(Notify::new());
        let counter = Arc::new(AtomicU64::new(0));
        for task in 0..TASKS {
            let (notify, counter, done) = (notify.clone(), counter.clone(), done_in.clone());
            world.spawn.spawn_on(
                task,
                Box::pin(async move {
                    // Each waits for the others to move on, and moves on itself: every wake crosses threads.
                    for round in 0..ROUNDS {
                        loop {
                            let ticket = notify.ticket();
                            if counter.load(Ordering::SeqCst) >= round * TASKS as u64 {
                                break;
                            }
                            notify.wait(ticket).await;
                        }
                        counter.fetch_add(1, Ordering::SeqCst);
                        notify.notify_all();
                    }
                    done.send(()).unwrap();
                }),
            );
        }
        for _ in 0..TASKS {
            done.recv_timeout(Duration::from_secs(120)).unwrap();
        }
        assert_eq!(counter.load(Ordering::SeqCst), ROUNDS * TASKS as u64);
    }
}

#[test]
fn ping_pong_between_sleeping_threads() {
    for runtime in runtimes(2) {
        let world = runtime.world(1);
        runtime.block_on(async move {
            for _ in 0..2000 {
                let (there, far) = one_shot();
                let (back_in, back) = one_shot();
                world.spawn.spawn_on(
                    1,
                    Box::pin(async move {
                        let value: Option<u32> = far.await;
                        back_in.send(value.unwrap() + 1);
                    }),
                );
                there.send(41);
                assert_eq!(back.await, Some(42));
            }
        });
    }
}

#[test]
fn tasks_stay_on_their_thread_and_yield_to_each_other() {
    for runtime in runtimes(3) {
        let world = runtime.world(1);
        assert_eq!(world.spawn.threads(), 3);
        let (done_in, done) = mpsc::channel();
        for thread in 0..6 {
            let (done, clock) = (done_in.clone(), world.clock.clone());
            world.spawn.spawn_on(
                thread,
                Box::pin(async move {
                    let home = std::thread::current().id();
                    for _ in 0..100 {
                        yield_now().await;
                        clock.sleep(Duration::from_micros(10)).await;
                        assert_eq!(std::thread::current().id(), home);
                    }
                    let name = std::thread::current().name().map(str::to_owned);
                    done.send((thread, name.unwrap())).unwrap();
                }),
            );
        }
        for _ in 0..6 {
            let (thread, name) = done.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!(name, format!("flashcell-{}", thread % 3));
        }
    }
}

#[test]
fn a_task_that_always_yields_does_not_hold_up_timers() {
    for runtime in runtimes(1) {
        let world = runtime.world(1);
        runtime.block_on(async move {
            world.spawn.spawn(Box::pin(async {
                loop {
                    yield_now().await;
                }
            }));
            world.clock.sleep(Duration::from_millis(5)).await;
        });
    }
}

#[test]
fn a_panic_of_the_outer_future_comes_out() {
    for runtime in runtimes(1) {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async { panic!("expected by the test") });
        }));
        assert!(caught.is_err());
        assert_eq!(runtime.block_on(async { 7 }), 7, "the runtime lives on");
    }
}

#[test]
fn shutdown_drops_tasks_and_what_they_hold() {
    struct Tell(mpsc::Sender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    for runtime in runtimes(2) {
        let world = runtime.world(1);
        let (dropped_in, dropped) = mpsc::channel();
        for thread in 0..2 {
            let (tell, clock) = (Tell(dropped_in.clone()), world.clock.clone());
            world.spawn.spawn_on(
                thread,
                Box::pin(async move {
                    clock.sleep(Duration::from_secs(3600)).await;
                    drop(tell);
                }),
            );
        }
        // So that the tasks have begun to wait.
        runtime.block_on(async {});
        runtime.shutdown(Duration::from_secs(5)).unwrap();
        dropped.recv_timeout(Duration::from_secs(1)).unwrap();
        dropped.recv_timeout(Duration::from_secs(1)).unwrap();
        // The world outlives its runtime: what is asked of it then is dropped.
        world.spawn.spawn(Box::pin(async { unreachable!("nobody runs it") }));
    }
}

#[test]
fn idle_threads_sleep() {
    for runtime in runtimes(2) {
        let clock = runtime.world(1).clock;
        let switches = runtime.block_on(async move {
            clock.sleep(Duration::from_millis(50)).await;
            let before = own_cpu_ns();
            clock.sleep(Duration::from_millis(300)).await;
            own_cpu_ns() - before
        });
        assert!(switches < 5_000_000, "an idle thread used {switches} ns in 300 ms");
    }
}

/// CPU time of the calling thread.
fn own_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a live struct.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[test]
fn the_facts_name_the_back_end() {
    assert!(runtime(1, Backend::Uring).facts().iter().any(|f| f.contains("io_uring")));
    assert!(runtime(1, Backend::Threads).facts().iter().any(|f| f.contains("threads, as configured")));
}
