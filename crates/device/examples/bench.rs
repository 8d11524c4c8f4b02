//! What the floor costs: nanoseconds per task wake, per 4 KiB read, and per served request (receive, read, send).
//!
//! `cargo run --release -p device --example bench [DIRECTORY]`: the file is made in DIRECTORY, by default `/dev/shm`.
//! The last rows have a client in this process on a thread of its own; CPU figures are those of the executor thread.

#![expect(clippy::print_stdout, reason = "a program for people")]
#![expect(clippy::unwrap_used, reason = "a program for people")]

use device::buf::{Arena, Buf, SharedBuf, SharedBufs};
use device::net::{Address, Conn};
use device::spawn::yield_now;
use device::sync::one_shot;
use device::{Backend, Device, OpenOptions, Prng, Runtime, RuntimeConfig, Space, World, create_file};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const FILE_BYTES: u64 = 256 << 20;
const DEPTH: usize = 32;

fn main() {
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".to_owned()));
    let path = directory.join(format!("device-bench-{}", std::process::id()));
    create_file(&path, FILE_BYTES, Space::Reserved).unwrap();
    for backend in [Backend::Uring, Backend::Threads] {
        let arena = Arena::new(64 << 20);
        let runtime = Runtime::new(RuntimeConfig { threads: 1, backend, arenas: vec![arena.clone()] }).unwrap();
        for fact in runtime.facts() {
            println!("# {fact}");
        }
        wakes(&runtime);
        let device = runtime.open(&path, &OpenOptions::default()).unwrap();
        reads(&runtime, &device, &arena);
        serve(&runtime, &device, &arena, &directory);
        drop(device);
    }
    std::fs::remove_file(&path).unwrap();
}

fn wakes(runtime: &Runtime) {
    const TASKS: u64 = 64;
    const ROUNDS: u64 = 50_000;
    let world = runtime.world(1);
    let elapsed = runtime.block_on(async move {
        let start = Instant::now();
        let mut ends = Vec::new();
        for _ in 0..TASKS {
            let (end, ended) = one_shot();
            ends.push(ended);
            world.spawn.spawn(Box::pin(async move {
                for _ in 0..ROUNDS {
                    yield_now().await;
                }
                end.send(());
            }));
        }
        for ended in ends {
            ended.await;
        }
        start.elapsed()
    });
    println!("task wake and poll            {:>8} ns", elapsed.as_nanos() as u64 / (TASKS * ROUNDS));
}

/// User and system time of the calling thread in nanoseconds.
fn cpu_ns() -> (u64, u64) {
    // SAFETY: zeroes are a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    (ns(usage.ru_utime), ns(usage.ru_stime))
}

fn report(what: &str, count: u64, elapsed_ns: u64, before: (u64, u64), after: (u64, u64)) {
    let (user, system) = ((after.0 - before.0) / count, (after.1 - before.1) / count);
    let rate = count * 1_000_000 / (elapsed_ns / 1_000).max(1);
    println!("{what} {:>8} ns, {rate:>8} a second, CPU {user} ns user, {system} ns system", elapsed_ns / count);
}

fn reads(runtime: &Runtime, device: &Device, arena: &Arena) {
    const COUNT: u64 = 40_000;
    let (device, arena, world) = (device.clone(), arena.clone(), runtime.world(1));
    let (elapsed_ns, before, after) = runtime.block_on(async move {
        let (before, start) = (cpu_ns(), Instant::now());
        let mut ends = Vec::new();
        for reader in 0..DEPTH as u64 {
            let (device, arena) = (device.clone(), arena.clone());
            let (end, ended) = one_shot();
            ends.push(ended);
            world.spawn.spawn(Box::pin(async move {
                let mut prng = Prng::new(reader);
                for _ in 0..COUNT {
                    let bufs = arena.alloc(4096).await;
                    device.read(prng.below(FILE_BYTES / 4096) * 4096, bufs).await.outcome.ok().unwrap();
                }
                end.send(());
            }));
        }
        for ended in ends {
            ended.await;
        }
        (start.elapsed().as_nanos() as u64, before, cpu_ns())
    });
    report("4 KiB random read, depth 32   ", COUNT * DEPTH as u64, elapsed_ns, before, after);
}

/// The shape of a block server: one task per connection that receives, one per request that reads and sends.
async fn session(conn: Arc<dyn Conn>, device: Device, arena: Arena, world: World) {
    let mut prng = Prng::new(1);
    let mut room = Buf::zeroed(64 << 10);
    loop {
        let (received, mut buf) = conn.receive(room).await;
        let Ok(count @ 1..) = received else { break };
        for _ in 0..count / REQUEST_BYTES {
            let offset = prng.below(FILE_BYTES / 4096) * 4096;
            let (conn, device, arena) = (conn.clone(), device.clone(), arena.clone());
            world.spawn.spawn(Box::pin(async move {
                let bufs = arena.alloc(4096).await;
                let read = device.read(offset, bufs).await;
                let mut reply = SharedBufs::from(SharedBuf::from(vec![0; 16]));
                reply.append(read.bufs.freeze());
                let _ = conn.send(reply).await;
            }));
        }
        let rest = buf.split_off(count);
        room = if rest.len() < 4096 { Buf::zeroed(64 << 10) } else { rest };
    }
}

const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 4096 + 16;

fn serve(runtime: &Runtime, device: &Device, arena: &Arena, directory: &Path) {
    const COUNT: u64 = 400_000;
    let path = directory.join(format!("device-bench-{}.sock", std::process::id()));
    let (world, address) = (runtime.world(1), Address::Unix(path.clone()));
    let (device, arena, listening) = (device.clone(), arena.clone(), world.clone());
    let listener = runtime.block_on(async move {
        let listener = listening.net.listen(&address).await.unwrap();
        let accepting = listener.clone();
        listening.spawn.clone().spawn(Box::pin(async move {
            while let Ok(conn) = accepting.accept().await {
                let task = session(conn, device.clone(), arena.clone(), listening.clone());
                listening.spawn.spawn(Box::pin(task));
            }
        }));
        listener
    });
    let mut stream = UnixStream::connect(&path).unwrap();
    let (before, start) = (runtime.block_on(async { cpu_ns() }), Instant::now());
    let (mut sent, mut received, mut partial) = (0_u64, 0_u64, 0);
    let mut replies = vec![0; REPLY_BYTES * DEPTH];
    while received < COUNT {
        // As many requests as there is room for in the depth, in one write.
        let batch = (DEPTH as u64 - (sent - received)).min(COUNT - sent) as usize;
        stream.write_all(&vec![1; batch * REQUEST_BYTES]).unwrap();
        sent += batch as u64;
        let count = stream.read(&mut replies).unwrap() + partial;
        received += (count / REPLY_BYTES) as u64;
        partial = count % REPLY_BYTES;
    }
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let after = runtime.block_on(async { cpu_ns() });
    report("receive + 4 KiB read + send   ", COUNT, elapsed_ns, before, after);
    drop(stream);
    listener.close();
}
