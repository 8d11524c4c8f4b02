//! Shares: goal: clients that take memory and request slots and give nothing back stop nobody else. Method: thousands of them beside
//! one honest client in virtual time, which passes only where somebody waits: what the honest client waits for is exact.

use crate::raw::*;
use crate::world::*;
use device::sync::lock;
use device::*;
use nbd::codec::*;
use nbd::server::{Client as NbdClient, Doorkeeper};
use nbd::tls::TlsError;
use nbd::{FrontEnd, FrontEndLimits};
use rustls::pki_types::CertificateDer;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Of each kind.
const HOSTILE: usize = 4000;
const EXPORT_BYTES: usize = 40 << 20;
/// What a cell has where nothing else is configured.
const ARENA_BYTES: usize = 160 << 20;
const LATENCY: Duration = Duration::from_millis(2);

/// What a hostile client does once it is connected.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Announces a WRITE of 32 MiB and sends 1,000 bytes of it.
    HalfWrite,
    /// Asks for 32 MiB and reads nothing.
    LongReads { structured: bool },
    /// Asks 256 times for 4 KiB and reads nothing.
    ManyReads,
    /// Asks 256 times for the status of something and reads nothing.
    ManyStatuses,
}

/// A grid disk full of data: zeroes would be sent as holes, which take no room in sockets.
fn full(seed: u64, arena_bytes: usize, limits: FrontEndLimits) -> Bench {
    let b = bench_of(seed, &["data"], EXPORT_BYTES, arena_bytes, limits);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", false, &[]).await;
        for part in 0..20 {
            raw.write(part, part << 21, &pattern(2 << 20, part as u8), NONE).await;
            assert_eq!(raw.simple().await, (0, part));
        }
        raw.request(Command::Disconnect, NONE, 99, 0, 0).await;
        assert!(raw.ended().await);
    });
    *lock(&b.disk.latency) = LATENCY;
    b
}

async fn hostile(net: Arc<TestNet>, kind: Kind) -> Raw {
    let mut raw = Raw::connect(net).await;
    let structured = matches!(kind, Kind::LongReads { structured: true } | Kind::ManyStatuses);
    let contexts: &[&str] = if matches!(kind, Kind::ManyStatuses) { &["base:allocation"] } else { &[] };
    raw.go("data", structured, contexts).await;
    // Not all at one place: this is about memory and slots, not about who waits for the same block.
    let request = |command, cookie: u64, len| {
        let offset = if len == 32 << 20 { 0 } else { cookie * 151_552 % EXPORT_BYTES as u64 };
        Request { flags: NONE, command, cookie: Cookie(cookie), offset, len }.encode().to_vec()
    };
    let many = |command, len| (0..256).flat_map(|cookie| request(command, cookie, len)).collect::<Vec<u8>>();
    let bytes = match kind {
        Kind::HalfWrite => [request(Command::Write, 1, 32 << 20), vec![7; 1000]].concat(),
        Kind::LongReads { .. } => request(Command::Read, 1, 32 << 20),
        Kind::ManyReads => many(Command::Read, 4096),
        Kind::ManyStatuses => many(Command::BlockStatus, 4096),
    };
    raw.send(&bytes).await;
    raw
}

/// What an honest client waits for each of its requests, in ns, ascending: reads and writes of 4 and 16 KiB, and a flush now and then.
async fn honest(net: Arc<TestNet>, clock: Arc<dyn Clock>, count: u64) -> Vec<u64> {
    let mut raw = Raw::connect(net).await;
    raw.go("data", false, &[]).await;
    let mut waited = Vec::new();
    for i in 0..count {
        let len = if i % 4 == 3 { 16_384 } else { 4096 };
        let offset = (i % 1000) * 16_384;
        let begun = clock.now();
        match i % 3 {
            0 => raw.write(i, offset, &pattern(len, i as u8), NONE).await,
            1 => raw.request(Command::Read, NONE, i, offset, len as u32).await,
            _ => raw.request(Command::Flush, NONE, i, 0, 0).await,
        }
        assert_eq!(raw.simple().await, (0, i));
        if i % 3 == 1 {
            raw.take(len).await;
        }
        waited.push(clock.now().ns_since(begun));
        clock.sleep(Duration::from_millis(40)).await;
    }
    raw.request(Command::Disconnect, NONE, count, 0, 0).await;
    assert!(raw.ended().await);
    waited.sort_unstable();
    waited
}

fn p99(waited: &[u64]) -> u64 {
    waited[waited.len() * 99 / 100]
}

/// An honest client beside `count` hostile ones of `kind`, for longer than borrowers may sit idle.
fn beside(kind: Kind, count: usize) {
    let b = full(7, ARENA_BYTES, FrontEndLimits::default());
    let (net, clock, front) = (b.w.net.clone(), b.w.clock.clone(), b.front.clone());
    b.w.executor.block_on(async move {
        let alone = honest(net.clone(), clock.clone(), 400).await;
        let mut enemies = Vec::new();
        for _ in 0..count {
            enemies.push(hostile(net.clone(), kind).await);
        }
        assert!(front.stats().connections_open >= count as u64);
        let together = honest(net, clock, 400).await;
        let (before, after) = (p99(&alone), p99(&together));
        assert!(after <= 3 * before, "{kind:?}: p99 {before} ns alone, {after} ns beside {count}");
        let most = together[together.len() - 1];
        assert!(most <= 3 * alone[alone.len() - 1], "{kind:?}: {most} ns at most");
        drop(enemies);
    });
}

#[test]
fn an_honest_client_beside_thousands_that_send_half_a_write() {
    beside(Kind::HalfWrite, HOSTILE);
}

#[test]
fn an_honest_client_beside_thousands_that_read_no_long_reply() {
    beside(Kind::LongReads { structured: false }, HOSTILE);
    beside(Kind::LongReads { structured: true }, HOSTILE);
}

#[test]
fn an_honest_client_beside_thousands_that_read_no_short_replies() {
    beside(Kind::ManyReads, HOSTILE);
}

#[test]
fn an_honest_client_beside_thousands_that_read_no_statuses() {
    beside(Kind::ManyStatuses, HOSTILE);
}

#[test]
fn a_few_hostile_clients_stop_nobody() {
    for count in [3, 5, 64] {
        beside(Kind::HalfWrite, count);
        beside(Kind::LongReads { structured: true }, count);
        beside(Kind::ManyReads, count);
    }
}

/// Everybody comes in, and those that are cut off are written down.
#[derive(Default)]
struct Door(Mutex<Vec<String>>);

impl Doorkeeper for Door {
    fn client_of(&self, _conn: &dyn Conn) -> NbdClient {
        NbdClient::anybody()
    }

    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        None
    }

    fn client_of_certificate(&self, _: &CertificateDer<'_>, _: &dyn Conn) -> Result<NbdClient, String> {
        Err("there is no TLS here".into())
    }

    fn tls_failed(&self, _: &dyn Conn, _: &TlsError) {}

    fn cut_off(&self, conn: &dyn Conn, who: &str, grid_disk: &str) {
        lock(&self.0).push(format!("{} {who} {grid_disk}", conn.peer()));
    }
}

#[test]
fn a_borrower_that_reads_nothing_is_cut_off_when_others_wait_and_not_before() {
    let b = full(3, 16 << 20, FrontEndLimits::default());
    let (net, clock, front) = (b.w.net.clone(), b.w.clock.clone(), b.front.clone());
    let door = Arc::new(Door::default());
    let keeper = door.clone();
    b.w.executor.block_on(async move {
        let listener = net.listen(&unix("nbd")).await.unwrap();
        front.serve_at(listener, keeper);
        // Nobody waits: it may take its time.
        let mut slow = hostile(net.clone(), Kind::LongReads { structured: false }).await;
        clock.sleep(Duration::from_secs(60)).await;
        assert_eq!((front.stats().cut_off, front.stats().timed_out), (0, 0));
        assert_eq!(slow.simple().await.0, 22, "longer than the maximum of so little memory");
        slow.request(Command::Read, NONE, 2, 0, 8 << 20).await;
        clock.sleep(Duration::from_secs(60)).await;
        assert_eq!((front.stats().cut_off, front.stats().timed_out), (0, 0));
        // Somebody who needs as much waits, and is served in time.
        let mut other = Raw::connect(net).await;
        other.go("data", false, &[]).await;
        let begun = clock.now();
        other.request(Command::Read, NONE, 1, 0, 8 << 20).await;
        assert_eq!(other.simple().await, (0, 1));
        other.take(8 << 20).await;
        let waited = clock.now().ns_since(begun) / 1_000_000_000;
        assert!((1..=12).contains(&waited), "{waited} s");
        assert_eq!(front.stats().cut_off, 1);
        let hosts = front.hosts();
        assert_eq!((hosts.len(), hosts[0].cut_off), (1, 1));
    });
    assert_eq!(*lock(&door.0), ["test anybody data"]);
}

#[test]
fn nobody_is_cut_off_for_waiting_or_for_being_slow() {
    let b = full(4, 8 << 20, FrontEndLimits::default());
    *lock(&b.disk.latency) = Duration::from_millis(200);
    let (net, clock, front) = (b.w.net.clone(), b.w.clock.clone(), b.front.clone());
    b.w.executor.block_on(async move {
        let mut all: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        // Each wants half of all memory at a time, several times over.
        for client in 0..12_u64 {
            let net = net.clone();
            all.push(Box::pin(async move {
                let mut raw = Raw::connect(net).await;
                raw.go("data", client % 2 == 0, &[]).await;
                for i in 0..4 {
                    let data = pattern(3 << 20, (client * 4 + i) as u8);
                    raw.write(i, client * (3 << 20) + 77, &data[..(3 << 20) - 77], NONE).await;
                    assert_eq!(raw.simple().await, (0, i));
                }
            }));
        }
        // It takes its replies at 30 KB/s.
        let (slow_net, slow_clock) = (net, clock.clone());
        all.push(Box::pin(async move {
            let mut raw = Raw::connect(slow_net).await;
            raw.go("data", false, &[]).await;
            for i in 0..20 {
                raw.request(Command::Read, NONE, i, i << 20, 60 << 10).await;
            }
            for _ in 0..20 {
                slow_clock.sleep(Duration::from_secs(2)).await;
                assert_eq!(raw.simple().await.0, 0);
                raw.take(60 << 10).await;
            }
        }));
        let all = futures_util::future::join_all(all);
        let late = clock.sleep(Duration::from_secs(300));
        if let futures_util::future::Either::Right(_) = futures_util::future::select(all, late).await {
            panic!("stuck: {:?}", front.stats());
        }
        assert_eq!((front.stats().cut_off, front.stats().timed_out), (0, 0));
    });
    let content = b.disk.content();
    for client in 0..12 {
        let data = pattern(3 << 20, (client * 4 + 3) as u8);
        let at = client * (3 << 20) + 77;
        assert!(content[at..at + (3 << 20) - 77] == data[..(3 << 20) - 77], "the last write of {client} is whole");
    }
    b.w.executor.settle();
    assert_eq!(b.arena.free_bytes(), b.arena.size_bytes(), "all memory is back");
}

#[test]
fn memory_is_taken_for_what_has_arrived() {
    let b = full(5, ARENA_BYTES, FrontEndLimits::default());
    let (net, clock, arena) = (b.w.net.clone(), b.w.clock.clone(), b.arena.clone());
    b.w.executor.block_on(async move {
        let raw = hostile(net, Kind::HalfWrite).await;
        clock.sleep(Duration::from_millis(1)).await;
        assert_eq!(arena.size_bytes() - arena.free_bytes(), 4096, "1,000 bytes have arrived");
        raw.send(&[7; 99_000]).await;
        clock.sleep(Duration::from_millis(1)).await;
        let taken = arena.size_bytes() - arena.free_bytes();
        assert!((100_000..=400_000).contains(&taken), "{taken} bytes for 100,000");
    });
}

#[test]
fn a_write_that_breaks_off_is_never_answered_as_done() {
    let b = full(6, 16 << 20, FrontEndLimits::default());
    let (net, front): (_, Arc<FrontEnd>) = (b.w.net.clone(), b.front.clone());
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", false, &[]).await;
        let request = Request { flags: NONE, command: Command::Write, cookie: Cookie(1), offset: 0, len: 4 << 20 };
        raw.send(&[request.encode().to_vec(), vec![1; 3 << 20]].concat()).await;
        // The server stops before the rest has come.
        let stopping = front.stop();
        let heard = async {
            let (errno, cookie) = raw.simple().await;
            assert_eq!((errno, cookie), (108, 1), "shutting down");
            assert!(raw.ended().await);
        };
        futures_util::future::join(stopping, heard).await;
    });
}
