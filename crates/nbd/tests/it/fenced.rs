//! Clients that come again. Goal: no change of a connection that has ended lands after a later change of the same client was acknowledged. Method: a slow
//! disk, changes that wait before they begin (for a slot, for memory, for a range), a connection that ends, and another that writes to the same
//! place; the same with the parts of the mechanism left out, which must be noticed.

use crate::raw::*;
use device::sync::lock;
use nbd::codec::*;
use nbd::{FrontEndLimits, Sabotage};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the first change is written to, which is in the device when its connection ends.
const BEGUN: u64 = 0;
/// What those are written to that wait.
const PLACE: u64 = 1 << 20;
/// The same; nobody else writes here.
const ALONE: u64 = 2 << 20;
const SLOW: Duration = Duration::from_millis(50);
/// As the protocol has it.
const EIO: u32 = 5;
const QUICK: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    Slot,
    Memory,
    Range,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newcomer {
    /// Connects when the other has ended.
    Later,
    /// Was there before.
    Early,
}

fn bench_of_kind(seed: u64, kind: WaitsFor, sabotage: Option<Sabotage>) -> Bench {
    let slots = if kind == WaitsFor::Slot { 1 } else { 64 };
    let arena = if kind == WaitsFor::Memory { 1 << 20 } else { 4 << 20 };
    let limits = FrontEndLimits { requests_per_connection_max: slots, sabotage, ..FrontEndLimits::default() };
    bench_with(seed, &["data"], arena, limits)
}

/// What is left of a story: the first bytes of [`PLACE`] and [`ALONE`] when all is over, and that of [`BEGUN`] when the newcomer was answered.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    begun: u8,
    place: u8,
    alone: u8,
}

const RIGHT: Left = Left { begun: 1, place: 3, alone: 0 };

fn story(seed: u64, kind: WaitsFor, newcomer: Newcomer, sabotage: Option<Sabotage>) -> Left {
    let b = bench_of_kind(seed, kind, sabotage);
    let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
    *lock(&disk.latency) = SLOW;
    b.w.executor.block_on(async move {
        let connect = async || {
            let mut raw = Raw::connect(net.clone()).await;
            raw.go("data", false, &[]).await;
            raw
        };
        let mut early = if newcomer == Newcomer::Early { Some(connect().await) } else { None };
        let first = connect().await;
        match kind {
            WaitsFor::Slot => first.write(1, BEGUN, &[1; 4096], NONE).await,
            // As much as there is, and more.
            WaitsFor::Memory => {
                first.write(1, BEGUN, &[1; 4096], NONE).await;
                for i in 0..32 {
                    first.request(Command::Read, NONE, 10 + i, (4 << 20) + (i << 16), 64 << 10).await;
                }
            }
            // The range of those that follow too.
            WaitsFor::Range => {
                first.write(1, BEGUN, &[1; 4096], NONE).await;
                first.request(Command::Read, NONE, 5, PLACE, 4096).await;
                first.request(Command::Read, NONE, 6, ALONE, 4096).await;
            }
        }
        clock.sleep(QUICK).await;
        first.write(2, PLACE, &[2; 4096], NONE).await;
        first.write(3, ALONE, &[2; 512], NONE).await;
        first.request(Command::WriteZeroes, NONE, 4, PLACE, 4096).await;
        clock.sleep(10 * QUICK).await;
        first.0.close();
        *lock(&disk.latency) = QUICK;
        clock.sleep(QUICK).await;
        let mut second = match early.take() {
            Some(early) => early,
            None => connect().await,
        };
        second.write(7, PLACE, &[3; 4096], NONE).await;
        assert_eq!(second.simple().await, (0, 7));
        let begun = disk.content()[BEGUN as usize];
        clock.sleep(20 * SLOW).await;
        let content = disk.content();
        front.stop().await;
        Left { begun, place: content[PLACE as usize], alone: content[ALONE as usize] }
    })
}

#[test]
fn a_later_connection_of_a_client_has_the_last_word() {
    for seed in 0..20 {
        for kind in [WaitsFor::Slot, WaitsFor::Memory, WaitsFor::Range] {
            for newcomer in [Newcomer::Later, Newcomer::Early] {
                assert_eq!(story(seed, kind, newcomer, None), RIGHT, "seed {seed}, {kind:?}, {newcomer:?}");
            }
        }
    }
}

#[test]
fn broken_builds_are_noticed() {
    for sabotage in [Sabotage::DeadClientsGoOn, Sabotage::NewcomersDoNotWait] {
        let left = story(1, WaitsFor::Slot, Newcomer::Later, Some(sabotage));
        assert_ne!(left, RIGHT, "{sabotage:?}");
    }
}

/// A client that has sent all it has to say hears of all of it, and what it writes on another connection comes after.
#[test]
fn a_half_closed_connection_is_answered_and_comes_first() {
    for sabotage in [None, Some(Sabotage::NewcomersDoNotWait)] {
        let b = bench_of_kind(3, WaitsFor::Slot, sabotage);
        let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
        *lock(&disk.latency) = SLOW;
        b.w.executor.block_on(async move {
            let mut first = Raw::connect(net.clone()).await;
            first.go("data", false, &[]).await;
            first.write(1, BEGUN, &[1; 4096], NONE).await;
            first.write(2, PLACE, &[2; 4096], NONE).await;
            net.finish_sending();
            clock.sleep(QUICK).await;
            let mut second = Raw::connect(net.clone()).await;
            second.go("data", false, &[]).await;
            second.write(3, PLACE, &[3; 4096], NONE).await;
            assert_eq!(second.simple().await, (0, 3));
            for cookie in [1, 2] {
                assert_eq!(first.simple().await, (0, cookie), "what it sent is answered");
            }
            assert!(first.ended().await, "and then it is closed");
            clock.sleep(SLOW).await;
            let expected = if sabotage.is_none() { 3 } else { 2 };
            assert_eq!(disk.content()[PLACE as usize], expected, "{sabotage:?}");
            front.stop().await;
        });
    }
}

/// What does not end is not waited for for ever: the newcomer hears an error, and its order is not lost.
#[test]
fn a_newcomer_hears_an_error_when_its_predecessor_does_not_end() {
    let limits = FrontEndLimits { requests_per_connection_max: 1, ..FrontEndLimits::default() };
    let limit = limits.predecessor_timeout;
    let b = bench_with(5, &["data"], 4 << 20, limits);
    let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
    *lock(&disk.latency) = 2 * limit;
    b.w.executor.block_on(async move {
        let mut first = Raw::connect(net.clone()).await;
        first.go("data", false, &[]).await;
        first.write(1, PLACE, &[1; 4096], NONE).await;
        clock.sleep(QUICK).await;
        first.0.close();
        *lock(&disk.latency) = QUICK;
        let mut second = Raw::connect(net.clone()).await;
        second.go("data", true, &[]).await;
        second.write(2, ALONE, &[2; 4096], NONE).await;
        let (done, kind, cookie, payload) = second.chunk().await;
        assert_eq!((done, kind, cookie), (true, 1 << 15 | 1, 2));
        assert!(String::from_utf8_lossy(&payload).contains("an earlier connection of this client"), "{payload:?}");
        // The others of its requests are not hindered.
        second.request(Command::Read, NONE, 3, ALONE, 512).await;
        while !second.chunk().await.0 {}
        // It waits again, and the first ends.
        second.write(4, PLACE, &[4; 4096], NONE).await;
        assert_eq!(second.simple().await, (0, 4));
        let content = disk.content();
        assert_eq!((content[PLACE as usize], content[ALONE as usize]), (4, 0));
        front.stop().await;
    });
}

/// Whoever says goodbye leaves what it has asked for to be done, and its next connection comes after that.
#[test]
fn a_goodbye_is_no_death() {
    let b = bench_of_kind(6, WaitsFor::Slot, None);
    let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
    *lock(&disk.latency) = SLOW;
    b.w.executor.block_on(async move {
        let mut first = Raw::connect(net.clone()).await;
        first.go("data", false, &[]).await;
        first.write(1, PLACE, &[1; 4096], NONE).await;
        first.request(Command::Disconnect, NONE, 2, 0, 0).await;
        clock.sleep(2 * SLOW).await;
        first.0.close();
        let mut second = Raw::connect(net.clone()).await;
        second.go("data", false, &[]).await;
        second.write(3, ALONE, &[3; 4096], NONE).await;
        assert_eq!(second.simple().await, (0, 3));
        let content = disk.content();
        assert_eq!((content[PLACE as usize], content[ALONE as usize]), (1, 3));
        front.stop().await;
    });
}

/// A goodbye counts though the client has closed its connection before the server read it, and has come again by then. Without one, what has begun is done
/// before the newcomer's change, and the rest never.
#[test]
fn a_goodbye_counts_that_is_read_after_the_connection_was_closed() {
    const WRITES: u64 = 8;
    let mut dropped = 0;
    for seed in 0..40 {
        for goodbye in [true, false] {
            let b = bench_of_kind(seed, WaitsFor::Range, None);
            let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
            *lock(&disk.latency) = QUICK;
            let left = b.w.executor.block_on(async move {
                let mut first = Raw::connect(net.clone()).await;
                first.go("data", false, &[]).await;
                for block in 0..WRITES {
                    first.write(block, PLACE + block * 4096, &[2; 4096], NONE).await;
                }
                if goodbye {
                    first.request(Command::Disconnect, NONE, WRITES, 0, 0).await;
                }
                first.0.close();
                let mut second = Raw::connect(net.clone()).await;
                second.go("data", false, &[]).await;
                second.write(0, PLACE, &[3; 4096], NONE).await;
                assert_eq!(second.simple().await, (0, 0));
                let blocks = || (0..WRITES).map(|block| disk.content()[(PLACE + block * 4096) as usize]).collect();
                let then: Vec<u8> = blocks();
                clock.sleep(SLOW).await;
                let later: Vec<u8> = blocks();
                assert_eq!(then, later, "seed {seed}, goodbye {goodbye}: nothing of the first connection begins");
                front.stop().await;
                later
            });
            assert_eq!(left[0], 3, "seed {seed}, goodbye {goodbye}: {left:?}");
            let done = left[1..].iter().filter(|byte| **byte == 2).count() as u64;
            assert!(!goodbye || done == WRITES - 1, "seed {seed}: {left:?}");
            dropped += u64::from(done < WRITES - 1);
        }
    }
    assert!(dropped > 0, "no connection ended before all of its changes had begun");
}

/// A client that was away when the device lost its writes hears of that at the first FLUSH of its next connection, once, unless it compares the stamp of the
/// instance anyway.
#[test]
fn a_client_that_was_away_is_told_of_a_loss_once() {
    for (contexts, lost, wanted) in
        [(&[][..], true, [EIO, 0]), (&[], false, [0, 0]), (&["flashcell:instance:"], true, [0, 0])]
    {
        let b = bench_of_kind(8, WaitsFor::Range, None);
        let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
        let answers = b.w.executor.block_on(async move {
            let mut first = Raw::connect(net.clone()).await;
            first.go("data", false, &[]).await;
            first.write(1, PLACE, &[1; 4096], NONE).await;
            assert_eq!(first.simple().await, (0, 1));
            *lock(&disk.latency) = SLOW;
            disk.fail_flushes.store(lost, Ordering::SeqCst);
            disk.drop_on_failed_flush.store(true, Ordering::SeqCst);
            first.request(Command::Flush, NONE, 2, 0, 0).await;
            clock.sleep(QUICK).await;
            first.0.close();
            clock.sleep(2 * SLOW).await;
            disk.fail_flushes.store(false, Ordering::SeqCst);
            assert_eq!(disk.content()[PLACE as usize], u8::from(!lost));
            let mut second = Raw::connect(net.clone()).await;
            second.go("data", !contexts.is_empty(), contexts).await;
            let mut answers = Vec::new();
            for cookie in [3, 4] {
                second.request(Command::Flush, NONE, cookie, 0, 0).await;
                answers.push(second.simple().await.0);
            }
            front.stop().await;
            answers
        });
        assert_eq!(answers, wanted, "{contexts:?}, lost {lost}");
    }
}

/// Connections side by side do not wait for each other.
#[test]
fn connections_side_by_side_are_free() {
    let b = bench_of_kind(7, WaitsFor::Range, None);
    let (net, clock, disk, front) = (b.w.net.clone(), b.w.clock.clone(), b.disk.clone(), b.front.clone());
    *lock(&disk.latency) = SLOW;
    b.w.executor.block_on(async move {
        let mut first = Raw::connect(net.clone()).await;
        first.go("data", false, &[]).await;
        let mut second = Raw::connect(net.clone()).await;
        second.go("data", false, &[]).await;
        first.write(1, PLACE, &[1; 4096], NONE).await;
        clock.sleep(QUICK).await;
        *lock(&disk.latency) = QUICK;
        second.write(2, ALONE, &[2; 4096], NONE).await;
        assert_eq!(second.simple().await, (0, 2));
        assert_eq!(disk.content()[PLACE as usize], 0, "the first is still under way");
        assert_eq!(first.simple().await, (0, 1));
        front.stop().await;
    });
}
