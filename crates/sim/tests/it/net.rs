//! The simulated network: streams arrive whole and in order however they are cut up, and every way of losing a
//! connection is seen by each side as it would be.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::{Buf, SharedBuf};
use device::{Address, Clock, Conn, Net, NetError, Prng, SharedBufs, Spawn};
use sim::disk::Span;
use sim::executor::{Executor, ExecutorConfig, Process};
use sim::net::{NetConfig, SimNet};
use sim::situations::Situations;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

fn bytes(from: &[u8]) -> SharedBufs {
    SharedBuf::from(from.to_vec()).into()
}

fn unix() -> Address {
    Address::Unix("/run/cell/nbd.sock".into())
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

/// Everything until the end of the stream, or the error.
async fn drain(conn: &Arc<dyn Conn>, size: usize) -> (Vec<u8>, Result<(), NetError>) {
    let mut all = Vec::new();
    loop {
        let (n, buf) = conn.receive(Buf::zeroed(size)).await;
        match n {
            Ok(0) => return (all, Ok(())),
            Ok(n) => all.extend(&buf[..n]),
            Err(e) => return (all, Err(e)),
        }
    }
}

/// The output of `future` if it is ready within `time`.
async fn within<T>(clock: &(dyn Clock + 'static), time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut timer = clock.sleep(time);
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(out) => Poll::Ready(Some(out)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

struct Pair {
    executor: Executor,
    net: Arc<SimNet>,
    server: Process,
    situations: Situations,
    at_server: Arc<dyn Net>,
    at_client: Arc<dyn Net>,
}

fn pair(seed: u64, config: NetConfig) -> Pair {
    let executor = Executor::seeded(seed);
    let situations = Situations::new();
    let net = SimNet::new(config, &executor.handle(), &situations);
    let server = executor.process("server");
    let (at_server, at_client) = (net.host("cell01", &server), net.host("db01", &executor.root()));
    Pair { executor, net, server, situations, at_server, at_client }
}

/// Both ends of a new connection over TCP.
async fn connect(pair: &Pair, port: u16) -> (Arc<dyn Conn>, Arc<dyn Conn>) {
    let listener = pair.at_server.listen(&tcp("0.0.0.0", port)).await.unwrap();
    let client = pair.at_client.connect(&tcp("cell01", port)).await.unwrap();
    (client, listener.accept().await.unwrap())
}

#[test]
fn streams_arrive_whole_and_in_order_whatever_they_are_cut_into() {
    let mut sizes = [0; 2];
    for seed in 0..120 {
        let mut prng = Prng::new(seed);
        let config = NetConfig::random(&mut prng);
        let partial = config.partial_receives || config.packet_bytes_max < 100;
        let pair = pair(seed, config);
        let sent: Vec<u8> = (0..prng.between(1, 60_000)).map(|_| prng.next_u64() as u8).collect();
        let copy = sent.clone();
        pair.executor
            .run(async {
                let (client, server) = connect(&pair, 10809).await;
                // The server sends back what it gets, then closes.
                pair.server.spawn(Box::pin(async move {
                    loop {
                        let (n, buf) = server.receive(Buf::zeroed(4096)).await;
                        let n = n.unwrap();
                        if n == 0 {
                            break;
                        }
                        server.send(bytes(&buf[..n])).await.unwrap();
                    }
                }));
                let sender = client.clone();
                let total = copy.len();
                pair.executor.root().spawn(Box::pin(async move {
                    let mut prng = Prng::new(seed + 1);
                    let mut at = 0;
                    while at < copy.len() {
                        let n = prng.between(1, 20_000).min((copy.len() - at) as u64) as usize;
                        sender.send(bytes(&copy[at..at + n])).await.unwrap();
                        at += n;
                    }
                }));
                let mut back: Vec<u8> = Vec::new();
                let mut receives = 0;
                while back.len() < total {
                    let (n, buf) = client.receive(Buf::zeroed(4096)).await;
                    back.extend(&buf[..n.unwrap()]);
                    receives += 1;
                }
                assert!(back == sent, "seed {seed}");
                if partial && total > 30_000 {
                    sizes[usize::from(receives > total / 4096 + 10)] += 1;
                }
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(sizes[1] > 10, "few streams came in pieces: {sizes:?}");
}

#[test]
fn a_close_ends_the_stream_after_its_last_byte_and_refuses_what_comes_back() {
    for seed in 0..60 {
        let config = NetConfig { break_ppm: 0, ..NetConfig::random(&mut Prng::new(seed)) };
        let pair = pair(seed, config);
        let root = pair.executor.root();
        pair.executor
            .run(async {
                let clock: &dyn Clock = &root;
                let (client, server) = connect(&pair, 1).await;
                client.send(bytes(b"the last words")).await.unwrap();
                client.close();
                assert_eq!(client.send(bytes(b"x")).await, Err(NetError::Closed));
                assert_eq!(client.receive(Buf::zeroed(1)).await.0, Err(NetError::Closed));
                let (got, end) = drain(&server, 64).await;
                assert_eq!((got.as_slice(), end), (&b"the last words"[..], Ok(())));
                let mut refused = false;
                for _ in 0..2 {
                    refused |= server.send(bytes(b"anybody?")).await.is_err();
                    clock.sleep(Duration::from_secs(1)).await;
                }
                assert!(refused);
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_connection_breaks_at_the_byte_it_is_told_to() {
    for seed in 0..60 {
        let mut prng = Prng::new(seed);
        let pair = pair(seed, NetConfig::random(&mut prng));
        let at = prng.below(5000);
        pair.executor
            .run(async {
                let (client, server) = connect(&pair, 1).await;
                assert!(pair.net.break_after(pair.net.links()[0], 0, at));
                let sent: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8).collect();
                let copy = sent.clone();
                let sender = client.clone();
                pair.executor.root().spawn(Box::pin(async move {
                    let _ = sender.send(bytes(&copy)).await;
                }));
                let (got, end) = drain(&server, 700).await;
                assert_eq!((got.as_slice(), end), (&sent[..at as usize], Err(NetError::Closed)), "seed {seed}");
                assert_eq!(client.receive(Buf::zeroed(1)).await.0, Err(NetError::Closed));
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn connections_that_break_by_chance_deliver_a_prefix() {
    let situations = Situations::new();
    let mut broken = 0;
    for seed in 0..100 {
        let config = NetConfig { break_ppm: 50_000, ..NetConfig::random(&mut Prng::new(seed)) };
        let pair = pair(seed, config);
        pair.executor
            .run(async {
                let (client, server) = connect(&pair, 1).await;
                let sent: Vec<u8> = (0..9000_u32).map(|n| (n % 251) as u8).collect();
                let copy = sent.clone();
                pair.executor.root().spawn(Box::pin(async move {
                    let _ = client.send(bytes(&copy)).await;
                }));
                let (got, end) = drain(&server, 700).await;
                assert!(sent.starts_with(&got), "seed {seed}");
                assert_eq!(end.is_ok(), got.len() == sent.len(), "seed {seed}");
                broken += usize::from(end.is_err());
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        situations.merge(&pair.situations);
    }
    assert!(broken > 20 && broken < 100, "{broken} of 100");
    assert!(situations.count("net: connection broken") > 20);
}

#[test]
fn behind_a_partition_everything_waits_and_nobody_is_told() {
    for seed in 0..60 {
        let pair = pair(seed, NetConfig::random(&mut Prng::new(seed)));
        let root = pair.executor.root();
        pair.executor
            .run(async {
                let clock: &dyn Clock = &root;
                let (client, server) = connect(&pair, 1).await;
                pair.net.partition("cell01", "db01");
                client.send(bytes(b"hello")).await.unwrap();
                client.close();
                let hour = Duration::from_secs(3600);
                assert!(within(clock, hour, server.receive(Buf::zeroed(8))).await.is_none());
                let again = pair.at_client.connect(&tcp("cell01", 1));
                assert!(within(clock, hour, again).await.is_none());
                pair.net.heal("db01", "cell01");
                let (got, end) = drain(&server, 8).await;
                assert_eq!((got.as_slice(), end), (&b"hello"[..], Ok(())));
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_dark_host_leaves_connections_half_open_until_it_is_back() {
    for seed in 0..40 {
        let config = NetConfig { window_bytes: 4096, ..NetConfig::random(&mut Prng::new(seed)) };
        let pair = pair(seed, config);
        let root = pair.executor.root();
        pair.executor
            .run(async {
                let clock: &dyn Clock = &root;
                let (client, _server) = connect(&pair, 1).await;
                pair.net.host_down("cell01");
                pair.server.kill();
                client.send(bytes(b"into the dark")).await.unwrap();
                let hour = Duration::from_secs(3600);
                assert!(within(clock, hour, client.receive(Buf::zeroed(8))).await.is_none());
                // The window fills up.
                assert!(within(clock, hour, client.send(bytes(&[0; 8192]))).await.is_none());
                pair.net.host_up("cell01");
                assert_eq!(client.receive(Buf::zeroed(8)).await.0, Err(NetError::Closed));
                let refused = pair.at_client.connect(&tcp("cell01", 1)).await.err();
                assert_eq!(refused, Some(NetError::Refused(tcp("cell01", 1))));
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_killed_server_closes_its_connections_and_frees_its_address() {
    let mut ends = [0; 2];
    for seed in 0..60 {
        let pair = pair(seed, NetConfig::random(&mut Prng::new(seed)));
        pair.executor
            .run(async {
                let listener = pair.at_server.listen(&unix()).await.unwrap();
                let same_host = pair.net.host("cell01", &pair.executor.root());
                assert_eq!(same_host.listen(&unix()).await.err(), Some(NetError::InUse(unix())));
                let client = same_host.connect(&unix()).await.unwrap();
                let server = listener.accept().await.unwrap();
                // Another host does not see the socket.
                let refused = pair.at_client.connect(&unix()).await.err();
                assert_eq!(refused, Some(NetError::Refused(unix())));
                let kept = Arc::new(Mutex::new(Some((listener, server))));
                pair.server.kill();
                let (_, end) = drain(&client, 8).await;
                ends[usize::from(end.is_err())] += 1;
                let next = pair.executor.process("server");
                let reborn = pair.net.host("cell01", &next).listen(&unix()).await.unwrap();
                // What is left of the dead server's socket does not close the new one's.
                drop(kept.lock().unwrap().take());
                let (a, b) = (same_host.connect(&unix()).await.unwrap(), reborn.accept().await.unwrap());
                a.send(bytes(b"hi")).await.unwrap();
                assert_eq!(b.receive(Buf::zeroed(1)).await.0, Ok(1));
            })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(ends[0] > 10 && ends[1] > 10, "{ends:?}");
}

#[test]
fn a_listener_closes_and_any_port_is_another_each_time() {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let config = NetConfig { delay: Span::new(1000, 1000), ..NetConfig::plain() };
    let net = SimNet::new(config, &executor.handle(), &Situations::new());
    let host = net.host("a", &executor.root());
    let root = executor.root();
    executor
        .run(async {
            let (one, two) = (host.listen(&tcp("::", 0)).await.unwrap(), host.listen(&tcp("::", 0)).await.unwrap());
            assert_ne!(one.address(), two.address());
            assert!(host.listen(&tcp("elsewhere", 1)).await.is_err());
            let accept = one.accept();
            let waiting = one.clone();
            root.spawn(Box::pin(async move { waiting.close() }));
            assert_eq!(accept.await.err(), Some(NetError::Closed));
            assert_eq!(host.connect(&one.address()).await.err(), Some(NetError::Refused(one.address())));
            // Turned away before it was accepted.
            let client = host.connect(&two.address()).await.unwrap();
            two.close();
            assert_eq!(client.receive(Buf::zeroed(1)).await.0, Ok(0));
        })
        .unwrap();
}
