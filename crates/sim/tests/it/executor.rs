//! The executor: same seed same run, every way of getting stuck is told, a killed process is gone at once.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::spawn::yield_now;
use device::sync::{Notify, one_shot};
use device::{Clock, Instant, Spawn};
use sim::executor::{Executor, ExecutorConfig, Process, Stuck};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tasks on all threads that sleep, yield, wake each other and write down who came when.
fn busy_run(seed: u64) -> (u64, Vec<u64>, u64) {
    let executor = Executor::seeded(seed);
    let process = executor.process("p");
    let order = Arc::new(Mutex::new(Vec::new()));
    let notify = Arc::new(Notify::new());
    let left = Arc::new(AtomicU64::new(20));
    for n in 0..20_u64 {
        let (order, notify, left, clock) = (order.clone(), notify.clone(), left.clone(), process.clone());
        process.spawn_on(
            n as usize,
            Box::pin(async move {
                for round in 0..5 {
                    yield_now().await;
                    let clock: &dyn Clock = &clock;
                    clock.sleep(Duration::from_nanos(n * 7 + round)).await;
                    order.lock().unwrap().push(n);
                    notify.notify_all();
                }
                left.fetch_sub(1, Ordering::Relaxed);
                notify.notify_all();
            }),
        );
    }
    executor
        .run(async {
            loop {
                let ticket = notify.ticket();
                if left.load(Ordering::Relaxed) == 0 {
                    return;
                }
                notify.wait(ticket).await;
            }
        })
        .unwrap();
    let order = order.lock().unwrap().clone();
    (executor.trace().hash(), order, executor.now().0)
}

#[test]
fn one_seed_is_one_run_and_seeds_differ() {
    let mut orders = BTreeSet::new();
    for seed in 0..40 {
        let first = busy_run(seed);
        assert_eq!(first, busy_run(seed), "seed {seed}");
        orders.insert(first.1);
    }
    assert!(orders.len() > 30, "only {} different orders in 40 seeds", orders.len());
}

#[test]
fn the_clock_jumps_to_the_next_timer() {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let root = executor.root();
    let clock: &dyn Clock = &root;
    let began = clock.wall();
    executor
        .run(async {
            clock.sleep(Duration::from_secs(3600)).await;
            assert_eq!(clock.now(), Instant(3_600_000_000_000));
            clock.sleep_until(Instant(5)).await;
            assert_eq!(clock.now(), Instant(3_600_000_000_000));
        })
        .unwrap();
    assert_eq!(clock.wall().0 - began.0, 3_600_000_000_000);
}

#[test]
fn a_dropped_timer_does_not_hold_the_clock() {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let root = executor.root();
    let clock: &dyn Clock = &root;
    executor
        .run(async {
            let mut long = clock.sleep(Duration::from_secs(100));
            std::future::poll_fn(|cx| {
                assert!(long.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            drop(long);
            clock.sleep(Duration::from_secs(1)).await;
        })
        .unwrap();
    assert_eq!(executor.now(), Instant(1_000_000_000));
    let stuck = executor.run(std::future::pending::<()>()).unwrap_err();
    assert_eq!(stuck, Stuck::Deadlock { at_ns: 1_000_000_000, tasks: 0, names: String::new() });
}

#[test]
fn a_deadlock_is_told_with_who_waits() {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let process = executor.process("cell");
    for _ in 0..3 {
        process.spawn(Box::pin(std::future::pending()));
    }
    let (_keep, receiver) = one_shot::<()>();
    let stuck = executor.run(receiver).unwrap_err();
    let Stuck::Deadlock { tasks: 3, names, .. } = &stuck else { panic!("{stuck}") };
    assert_eq!(names, "cell/0#1, cell/0#2, cell/0#3");
    // The executor lives on.
    assert_eq!(executor.run(async { 7 }).unwrap(), 7);
}

#[test]
fn a_runaway_a_timer_loop_and_a_panic_are_told() {
    let executor = Executor::new(ExecutorConfig { steps_max: 1000, ..ExecutorConfig::plain(1) });
    let stuck = executor.run(async {
        loop {
            yield_now().await;
        }
    });
    assert!(matches!(stuck, Err::<(), _>(Stuck::Runaway { steps: 1000, .. })));

    let executor = Executor::new(ExecutorConfig { time_ns_max: 1_000_000_000, ..ExecutorConfig::plain(1) });
    let ticker = executor.process("ticker");
    let clock = ticker.clone();
    ticker.spawn(Box::pin(async move {
        let clock: &dyn Clock = &clock;
        loop {
            clock.sleep(Duration::from_millis(10)).await;
        }
    }));
    let stuck = executor.run(std::future::pending::<()>());
    assert!(matches!(stuck, Err(Stuck::TimeUp { tasks: 1, .. })));

    let executor = Executor::seeded(1);
    executor.process("cell").spawn(Box::pin(async { panic!("the index is empty") }));
    match executor.run(std::future::pending::<()>()) {
        Err(Stuck::Panicked { message, task, .. }) => {
            assert_eq!(message, "the index is empty");
            assert!(task.starts_with("cell/0#"), "{task}");
        }
        other => panic!("{other:?}"),
    }
}

struct SaysWhenDropped(Arc<AtomicBool>, Process);

impl Drop for SaysWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        // A destructor that spawns: refused, the process is dead.
        let flag = self.0.clone();
        self.1.spawn(Box::pin(async move { flag.store(false, Ordering::Relaxed) }));
    }
}

#[test]
fn a_killed_process_is_gone_whole_and_at_once() {
    for seed in 0..50 {
        let executor = Executor::seeded(seed);
        let process = executor.process("cell");
        let dropped = Arc::new(AtomicBool::new(false));
        let ran_on = Arc::new(AtomicU64::new(0));
        let hook = Arc::new(AtomicBool::new(false));
        let guard = SaysWhenDropped(dropped.clone(), process.clone());
        let (ran, clock) = (ran_on.clone(), process.clone());
        process.spawn(Box::pin(async move {
            let _guard = guard;
            let clock: &dyn Clock = &clock;
            loop {
                clock.sleep(Duration::from_micros(1)).await;
                ran.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let own_end = process.clone();
        let clock = process.clone();
        let suicide = seed % 2 == 0;
        process.spawn(Box::pin(async move {
            let clock: &dyn Clock = &clock;
            clock.sleep(Duration::from_millis(1)).await;
            if suicide {
                own_end.kill();
            }
            yield_now().await;
            assert!(!suicide, "polled after its end");
            std::future::pending().await
        }));
        let (flag, order) = (hook.clone(), dropped.clone());
        process.on_kill(move || {
            assert!(!order.load(Ordering::Relaxed), "hooks come before destructors");
            flag.store(true, Ordering::Relaxed);
        });
        let root = executor.root();
        executor
            .run(async {
                let clock: &dyn Clock = &root;
                clock.sleep(Duration::from_millis(2)).await;
                if !suicide {
                    process.kill();
                }
                assert!(!process.alive() && process.tasks() == 0);
                assert!(dropped.load(Ordering::Relaxed) && hook.load(Ordering::Relaxed));
                let before = ran_on.load(Ordering::Relaxed);
                assert!(before > 0);
                clock.sleep(Duration::from_millis(2)).await;
                assert_eq!(ran_on.load(Ordering::Relaxed), before);
            })
            .unwrap();
    }
}

#[test]
fn late_wake_ups_and_parked_threads_reorder_what_one_thread_would_do_in_order() {
    // Two tasks on two threads are woken in order; over many seeds each comes first.
    let mut first = [0, 0];
    for seed in 0..100 {
        let config = ExecutorConfig { threads: 2, wake_delay_steps_max: 8, ..ExecutorConfig::seeded(seed) };
        let executor = Executor::new(config);
        let process = executor.process("p");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut senders = Vec::new();
        for n in 0..2 {
            let (sender, receiver) = one_shot::<()>();
            senders.push(sender);
            let order = order.clone();
            process.spawn_on(
                n,
                Box::pin(async move {
                    receiver.await;
                    order.lock().unwrap().push(n);
                }),
            );
        }
        let root = executor.root();
        executor
            .run(async {
                let clock: &dyn Clock = &root;
                clock.sleep(Duration::from_secs(1)).await;
                senders.into_iter().for_each(|s| s.send(()));
                clock.sleep(Duration::from_secs(1)).await;
            })
            .unwrap();
        first[order.lock().unwrap()[0]] += 1;
    }
    assert!(first[0] > 20 && first[1] > 20, "{first:?}");
}
