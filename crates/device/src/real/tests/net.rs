//! Sockets: echo with many connections, short sends, addresses in use, ends of streams, no descriptors left.

use super::{Directory, runtimes};
use crate::World;
use crate::buf::{Buf, SharedBuf, SharedBufs};
use crate::net::{Address, Conn, Listener, NetError};
use crate::prng::Prng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn serve_echo(world: &World, listener: Arc<dyn Listener>) {
    let (spawn, inner) = (world.spawn.clone(), world.spawn.clone());
    spawn.spawn(Box::pin(async move {
        let mut next = 0;
        while let Ok(conn) = listener.accept().await {
            next += 1;
            inner.spawn_on(next, Box::pin(echo(conn)));
        }
    }));
}

async fn echo(conn: Arc<dyn Conn>) {
    let mut room = Buf::zeroed(64 << 10);
    loop {
        let (received, mut buf) = conn.receive(room).await;
        let Ok(count @ 1..) = received else { break };
        let rest = buf.split_off(count);
        // Two pieces, so that the vectored path is taken as well.
        let second = buf.split_off(count / 2);
        let mut data = SharedBufs::from(buf.freeze());
        data.push(second.freeze());
        if conn.send(data).await.is_err() {
            break;
        }
        room = if rest.len() < 4096 { Buf::zeroed(64 << 10) } else { rest };
    }
    conn.close();
}

async fn exchange(conn: Arc<dyn Conn>, seed: u64, rounds: usize) {
    let mut prng = Prng::new(seed);
    for _ in 0..rounds {
        let mut bytes = vec![0; prng.between(1, 20_000) as usize];
        prng.fill(&mut bytes);
        conn.send(SharedBufs::from(SharedBuf::from(bytes.clone()))).await.unwrap();
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            let (received, buf) = conn.receive(Buf::zeroed(bytes.len() - got.len())).await;
            let count = received.unwrap();
            assert!(count > 0, "the echo ended early");
            got.extend_from_slice(&buf[..count]);
        }
        assert!(got == bytes);
    }
}

fn addresses(directory: &Directory) -> [Address; 2] {
    [Address::Unix(directory.file("s")), Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }]
}

#[test]
fn echo_with_many_connections() {
    const CONNECTIONS: u64 = 300;
    let directory = Directory::new(true);
    for runtime in runtimes(2) {
        for address in addresses(&directory) {
            let world = runtime.world(1);
            let listening = world.clone();
            let listener = runtime.block_on(async move { listening.net.listen(&address).await.unwrap() });
            let address = listener.address();
            serve_echo(&world, listener.clone());
            let (done_in, done) = mpsc::channel();
            for seed in 0..CONNECTIONS {
                let (world, address, done) = (world.clone(), address.clone(), done_in.clone());
                let spawn = world.spawn.clone();
                spawn.spawn_on(
                    seed as usize,
                    Box::pin(async move {
                        let conn = world.net.connect(&address).await.unwrap();
                        exchange(conn.clone(), seed, 5).await;
                        conn.close();
                        done.send(()).unwrap();
                    }),
                );
            }
            for _ in 0..CONNECTIONS {
                done.recv_timeout(Duration::from_secs(60)).unwrap();
            }
            listener.close();
        }
    }
}

/// Far more than a socket buffer holds, in thousands of pieces: short sends are continued, lists are cut to IOV_MAX.
#[test]
fn a_large_send_in_many_pieces_arrives_whole() {
    let directory = Directory::new(true);
    for runtime in runtimes(2) {
        for address in addresses(&directory) {
            let world = runtime.world(1);
            runtime.block_on(async move {
                let listener = world.net.listen(&address).await.unwrap();
                let conn = world.net.connect(&listener.address()).await.unwrap();
                let other = listener.accept().await.unwrap();
                let mut bytes = vec![0; 8 << 20];
                Prng::new(9).fill(&mut bytes);
                let mut data = SharedBufs::new();
                for part in bytes.chunks(3001) {
                    data.push(SharedBuf::from(part.to_vec()));
                }
                world.spawn.spawn_on(1, Box::pin(async move { other.send(data).await.unwrap() }));
                let mut got = Vec::new();
                while got.len() < bytes.len() {
                    let (received, buf) = conn.receive(Buf::zeroed(1 << 20)).await;
                    got.extend_from_slice(&buf[..received.unwrap()]);
                }
                assert!(got == bytes);
            });
        }
    }
}

#[test]
fn ends_of_streams_are_told() {
    let directory = Directory::new(true);
    for runtime in runtimes(2) {
        for address in addresses(&directory) {
            let world = runtime.world(1);
            runtime.block_on(async move {
                let listener = world.net.listen(&address).await.unwrap();
                let conn = world.net.connect(&listener.address()).await.unwrap();
                let other = listener.accept().await.unwrap();
                // A receive that waits ends when its own side closes.
                let (waiting, closing, clock) = (conn.clone(), conn.clone(), world.clock.clone());
                world.spawn.spawn(Box::pin(async move {
                    clock.sleep(Duration::from_millis(20)).await;
                    closing.close();
                }));
                let (received, buf) = waiting.receive(Buf::zeroed(100)).await;
                assert!(matches!(received, Ok(0) | Err(NetError::Closed)), "{received:?}");
                assert_eq!(buf.len(), 100);
                let (received, _) = other.receive(Buf::zeroed(10)).await;
                assert_eq!(received, Ok(0));
                let mut sent = Ok(());
                for _ in 0..100 {
                    sent = other.send(SharedBufs::from(SharedBuf::from(vec![1; 100_000]))).await;
                    if sent.is_err() {
                        break;
                    }
                }
                assert_eq!(sent, Err(NetError::Closed), "no signal, an error");
                // An accept that waits ends when the listener closes.
                let (closing, clock) = (listener.clone(), world.clock.clone());
                world.spawn.spawn(Box::pin(async move {
                    clock.sleep(Duration::from_millis(20)).await;
                    closing.close();
                }));
                assert!(matches!(listener.accept().await, Err(NetError::Closed)));
                let refused = world.net.connect(&listener.address()).await;
                assert!(matches!(refused, Err(NetError::Refused(_))));
            });
        }
    }
}

#[test]
fn a_dead_servers_socket_is_replaced_and_a_live_one_is_not() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new(true);
    for runtime in runtimes(1) {
        let world = runtime.world(1);
        let path = directory.file("s");
        let plain = directory.file("plain");
        std::fs::write(&plain, "precious").unwrap();
        // A server that died: bound, never removed, nobody listens.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let address = Address::Unix(path.clone());
        runtime.block_on(async move {
            let first = world.net.listen(&address).await.unwrap();
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "for the owner only");
            let second = world.net.listen(&address).await;
            assert!(matches!(second, Err(NetError::InUse(_))));
            first.close();
            assert!(!path.exists(), "a clean stop leaves nothing");
            let file = world.net.listen(&Address::Unix(plain.clone())).await;
            assert!(matches!(file, Err(NetError::Errno(_))));
            assert_eq!(std::fs::read_to_string(plain).unwrap(), "precious");
        });
    }
}

/// An accept that finds no descriptor waits and goes on; it neither spins nor gives up. In a process of its own, since
/// the limit is the process's.
#[test]
fn accept_survives_the_end_of_descriptors() {
    const CHILD: &str = "DEVICE_TEST_ACCEPT_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let test = "real::tests::net::accept_survives_the_end_of_descriptors";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--test-threads=1"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    // First of all: an accept that waits goes by the limit of its start.
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: reads a live struct. The hard limit goes down too: it is a child of the test.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let directory = Directory::new(true);
    for runtime in runtimes(1) {
        let world = runtime.world(1);
        let path = directory.file("s");
        let address = Address::Unix(path.clone());
        let accepted = Arc::new(AtomicU64::new(0));
        let count = accepted.clone();
        let listener = runtime.block_on(async move {
            let listener = world.net.listen(&address).await.unwrap();
            let accepting = listener.clone();
            world.spawn.spawn(Box::pin(async move {
                while let Ok(conn) = accepting.accept().await {
                    // Its descriptor is given back before it counts.
                    drop(conn);
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }));
            listener
        });
        let mut hoard = Vec::new();
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        while accepted.load(Ordering::SeqCst) < 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Use up every descriptor, but for one that the next client takes.
        while let Ok(file) = std::fs::File::open("/dev/null") {
            hoard.push(file);
        }
        hoard.pop();
        let second = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let before = cpu_ns();
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(accepted.load(Ordering::SeqCst), 1, "nothing to accept it with");
        assert!(cpu_ns() - before < 100_000_000, "waiting for descriptors must not spin");
        hoard.clear();
        for _ in 0..2000 {
            if accepted.load(Ordering::SeqCst) == 2 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(accepted.load(Ordering::SeqCst), 2, "the listener lives on");
        drop((client, second));
        listener.close();
    }
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a live struct.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
