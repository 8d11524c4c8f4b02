//! Clients that die: goal: their connection, request slots and memory come back, wherever in its session a client dies. Method: sessions
//! cut at every byte, with replies read and unread, beside limits so small that one leaked request would be noticed.

use crate::raw::*;
use crate::world::*;
use device::sync::lock;
use device::*;
use nbd::FrontEndLimits;
use nbd::codec::*;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything a dead client has under way takes, and shorter than every time-out.
const SOON: Duration = Duration::from_secs(2);

fn limits() -> FrontEndLimits {
    FrontEndLimits { requests_per_connection_max: 64, requests_max: 64, ..FrontEndLimits::default() }
}

/// Nothing is left of any client.
async fn all_is_back(b: &Watch) {
    b.clock.sleep(SOON).await;
    assert_eq!(b.front.stats().connections_open, 0, "{:?}", b.front.stats());
    assert_eq!(b.arena.free_bytes(), b.arena.size_bytes(), "all memory is back");
}

struct Watch {
    front: Arc<nbd::FrontEnd>,
    arena: Arena,
    clock: Arc<dyn Clock>,
}

/// Zeroes would be sent as holes, which nobody has to wait for.
fn filled(b: &Bench, latency: Duration) {
    let (net, data) = (b.w.net.clone(), pattern(SIZE, 9));
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", false, &[]).await;
        raw.write(1, 0, &data, NONE).await;
        assert_eq!(raw.simple().await, (0, 1));
        raw.request(Command::Disconnect, NONE, 2, 0, 0).await;
        assert!(raw.ended().await);
    });
    *lock(&b.disk.latency) = latency;
}

fn watch(b: &Bench) -> Watch {
    Watch { front: b.front.clone(), arena: b.arena.clone(), clock: b.w.clock.clone() }
}

#[test]
fn a_client_dies_with_long_reads_queued() {
    for seed in 0..10 {
        let b = bench_with(seed, &["data"], 64 << 20, limits());
        filled(&b, Duration::from_millis(1));
        let (net, watch) = (b.w.net.clone(), watch(&b));
        let front = b.front.clone();
        b.w.executor.block_on(async move {
            // More requests than there are slots, so that one lost with each client would stop the next.
            for _ in 0..4 {
                let mut dying = Raw::connect(net.clone()).await;
                dying.go("data", true, &[]).await;
                for i in 0..64 {
                    dying.request(Command::Read, NONE, i, (i % 3) << 21, 2 << 20).await;
                }
                watch.clock.sleep(Duration::from_millis(20)).await;
                dying.0.close();
                all_is_back(&watch).await;
            }
            let mut honest = Raw::connect(net).await;
            honest.go("data", false, &[]).await;
            for i in 0..64 {
                honest.request(Command::Read, NONE, i, 0, 512).await;
            }
            for _ in 0..64 {
                assert_eq!(honest.simple().await.0, 0);
                honest.take(512).await;
            }
            front.stop().await;
        });
    }
}

/// A write that the server has read and not begun is no later than what the same client writes on its next connection.
#[test]
fn what_a_broken_connection_had_asked_for_is_done_before_its_successor_is_read() {
    let limits = FrontEndLimits { requests_per_connection_max: 1, ..FrontEndLimits::default() };
    let place = 1 << 20;
    for seed in 0..20 {
        let b = bench_with(seed, &["data"], 64 << 20, limits.clone());
        filled(&b, Duration::from_millis(50));
        let (net, clock, front) = (b.w.net.clone(), b.w.clock.clone(), b.front.clone());
        b.w.executor.block_on(async move {
            let client = 0x0123_4567_89ab_cdef_u128 << seed;
            let query = |link| nbd::context::Lineage { client, link }.query();
            let mut first = Raw::connect(net.clone()).await;
            first.go("data", true, &[&query(7)]).await;
            // One at a time: the second is with the server, and waits.
            first.write(1, 0, &[1; 512], NONE).await;
            first.write(2, place, &[2; 512], NONE).await;
            clock.sleep(Duration::from_millis(10)).await;
            let mut second = Raw::connect(net.clone()).await;
            second.go("data", true, &[&query(8)]).await;
            second.write(3, place, &[4; 512], NONE).await;
            // It waits for the first when the next one comes: nothing of it is read.
            clock.sleep(Duration::from_millis(10)).await;
            let mut third = Raw::connect(net.clone()).await;
            third.go("data", true, &[&query(1)]).await;
            third.write(3, place, &[3; 512], NONE).await;
            assert_eq!(third.simple().await, (0, 3));
            assert!(second.ended().await, "its place is taken");
            // Of another client nobody waits for.
            clock.sleep(Duration::from_millis(500)).await;
            let mut reader = Raw::connect(net).await;
            reader.go("data", false, &[]).await;
            reader.request(Command::Read, NONE, 4, place, 512).await;
            assert_eq!(reader.simple().await, (0, 4));
            assert_eq!(reader.take(512).await, vec![3; 512], "the newer write is the last");
            front.stop().await;
        });
    }
}

/// A session with a request of every kind: long structured reads, a write, a refused write, and what follows them.
fn recorded() -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    ClientOption::StructuredReply.encode(&mut bytes);
    let queries = vec!["base:allocation".to_owned()];
    ClientOption::SetMetaContext { name: "data".into(), queries }.encode(&mut bytes);
    ClientOption::Go { name: "data".into(), requests: Vec::new() }.encode(&mut bytes);
    let mut cookie = 0;
    let mut request = |command, flags, offset, len, payload: &[u8]| {
        cookie += 1;
        bytes.extend_from_slice(&Request { flags, command, cookie: Cookie(cookie), offset, len }.encode());
        bytes.extend_from_slice(payload);
    };
    request(Command::Write, CommandFlags::FUA, 5, 300, &[7; 300]);
    request(Command::Read, NONE, 0, 3 << 20, &[]);
    request(Command::Read, NONE, 1000, (2 << 20) + 1, &[]);
    request(Command::Write, NONE, SIZE as u64, 100, &[8; 100]);
    request(Command::Flush, NONE, 0, 0, &[]);
    request(Command::Read, CommandFlags::DF, 0, 1 << 20, &[]);
    request(Command::BlockStatus, NONE, 0, SIZE as u32, &[]);
    request(Command::Read, NONE, 0, 4 << 20, &[]);
    request(Command::WriteZeroes, NONE, 0, 4096, &[]);
    request(Command::Trim, NONE, 0, 4096, &[]);
    request(Command::Cache, NONE, 0, 1 << 20, &[]);
    request(Command::Read, NONE, 1 << 20, 2 << 20, &[]);
    request(Command::Disconnect, NONE, 0, 0, &[]);
    bytes
}

#[test]
fn a_client_dies_at_every_byte() {
    let bytes = recorded();
    // Requests are read one by one as replies are taken: most are still to be read when a client that reads nothing dies.
    let limits = FrontEndLimits { requests_per_connection_max: 2, ..limits() };
    let b = bench_with(1, &["data"], 64 << 20, limits);
    filled(&b, Duration::from_micros(100));
    let (net, watch) = (b.w.net.clone(), watch(&b));
    b.w.executor.block_on(async move {
        for cut in 0..=bytes.len() {
            // It dies at once; when it has read for a moment; when what it asked for waits to be read.
            for (wait, reads) in [(false, false), (true, true), (true, false)] {
                let conn = net.connect(&unix("nbd")).await.unwrap();
                conn.send(SharedBuf::from(bytes[..cut].to_vec()).into()).await.unwrap();
                if reads {
                    for _ in 0..cut % 7 {
                        let late = watch.clock.sleep(Duration::from_millis(1));
                        let received = conn.receive(Buf::zeroed(8192));
                        futures_util::future::select(received, late).await;
                    }
                } else if wait {
                    watch.clock.sleep(Duration::from_millis(3)).await;
                }
                conn.close();
                watch.clock.sleep(SOON).await;
                assert_eq!(watch.front.stats().connections_open, 0, "dead after byte {cut}, {wait}, {reads}");
            }
        }
        all_is_back(&watch).await;
        watch.front.stop().await;
    });
}
