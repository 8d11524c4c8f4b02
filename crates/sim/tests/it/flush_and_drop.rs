//! Goal: FLUSH has a known end and starves nobody, CANCEL FLUSH and DROP FLASHCACHE are quick (S6). Method: a cell in virtual time on
//! models of a 7200-rpm disk and of flash; how long the disk itself takes for the same blocks in its order, at its best
//! depth and under the same reads, is measured beside it.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, GridDisk, Session};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Delay, Memory, Model};
use device::{Buf, Bufs, Clock, Device, Instant, Prng, Spawn, World};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sim::executor::Process;
use sim::plain::{cell_on, full_of, in_a_world};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DISK_BYTES: u64 = 2 << 30;
const FLASH_BYTES: u64 = 1 << 30;
const DATA_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 16 << 10;
/// 256 MiB of random blocks: a flush of some seconds.
const DIRTY_BLOCKS: usize = 16_384;
/// Requests under way at the disk alone, and writes between two flushes: its best counts.
const WAYS: [(usize, usize); 5] = [(1, usize::MAX), (4, 1024), (32, 1024), (8, usize::MAX), (32, usize::MAX)];
/// Reads of others that reach the disk, one after the other, so long apart.
const THINK: Duration = Duration::from_millis(50);

fn since(now: Instant, begun: Instant) -> Duration {
    Duration::from_nanos(now.ns_since(begun))
}

fn modelled(name: &str, size_bytes: u64, world: &World) -> Device {
    let prng = world.prng.fork(name);
    Delay::new(Memory::new(size_bytes), name.parse::<Model>().unwrap(), world.clock.clone(), world.spawn.clone(), prng)
}

async fn open(world: &World, mode: CachingMode) -> (Arc<Cell>, Arc<GridDisk>) {
    let devices = vec![modelled("sata-7200", DISK_BYTES, world), modelled("pcie-flash", FLASH_BYTES, world)];
    let names = [("CD_disk01", Role::Disk), ("FD_00", Role::Flash)];
    let cell = cell_on(&devices, &names, CellConfig::default(), world).await;
    cell.create_flash_cache(None, &[]).await.unwrap();
    let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
    let spec =
        GridDiskSpec { caching_mode: mode, ..GridDiskSpec::new("DATA", cell_disk, DATA_BYTES, world.clock.wall()) };
    let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
    (cell, disk)
}

/// Different blocks, in no order.
fn dirty_blocks() -> Vec<u64> {
    let mut prng = Prng::new(3);
    let mut seen = BTreeSet::new();
    let mut blocks = Vec::new();
    while blocks.len() < DIRTY_BLOCKS {
        // Every block of the first half is written or left; the second is read.
        let block = prng.below(DATA_BYTES / 2 / BLOCK_BYTES);
        if seen.insert(block) {
            blocks.push(block);
        }
    }
    blocks
}

/// No zeroes, which disks and cells take more cheaply.
async fn write_all(session: &Session) {
    for block in dirty_blocks() {
        let data = full_of(BLOCK_BYTES as usize, 7);
        session.write(block * BLOCK_BYTES, data, false).await.unwrap();
    }
}

/// Somebody who reads now and then where nothing is cached, or whoever stands for the disk.
enum Target {
    Bare(Device),
    Cell(Session),
}

struct Reader {
    times_ns: Arc<Mutex<Vec<u64>>>,
    over: Arc<AtomicBool>,
}

impl Reader {
    fn begin(process: &Process, target: Target, name: &str) -> Reader {
        let reader = Reader { times_ns: Arc::default(), over: Arc::default() };
        let (times_ns, over) = (reader.times_ns.clone(), reader.over.clone());
        let mut prng = process.handle().prng(name);
        let clock: Arc<dyn Clock> = Arc::new(process.clone());
        process.spawn(Box::pin(async move {
            while !over.load(Ordering::Relaxed) {
                let offset = DATA_BYTES / 2 + prng.below(DATA_BYTES / 2 / BLOCK_BYTES) * BLOCK_BYTES;
                let begun = clock.now();
                let buf: Bufs = Buf::zeroed(4096).into();
                match &target {
                    Target::Bare(device) => drop(device.read(offset, buf).await),
                    Target::Cell(session) => drop(session.read(offset, buf).await),
                }
                times_ns.lock().unwrap().push(clock.now().0 - begun.0);
                clock.sleep(THINK).await;
            }
        }));
        reader
    }

    /// The 99th percentile in nanoseconds of all reads.
    fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let mut times = self.times_ns.lock().unwrap().clone();
        times.sort_unstable();
        assert!(times.len() >= 100, "{} reads", times.len());
        times[times.len() * 99 / 100]
    }
}

/// What the disk takes for the blocks in its order, and one flush.
async fn bare_disk(process: &Process, world: &World, (depth, flush_every): (usize, usize), reads: bool) -> Duration {
    let device = modelled("sata-7200", DISK_BYTES, world);
    let reader = reads.then(|| Reader::begin(process, Target::Bare(device.clone()), "beside the bare disk"));
    let begun = world.clock.now();
    let mut blocks = dirty_blocks();
    blocks.sort_unstable();
    // As anybody would: what lies side by side is one write.
    let runs = blocks.chunk_by(|a, b| a + 1 == *b);
    let mut under_way = FuturesUnordered::new();
    for (n, run) in runs.enumerate() {
        if n % flush_every == flush_every - 1 {
            while under_way.next().await.is_some() {}
            device.flush().await.outcome.ok().unwrap();
        }
        if under_way.len() >= depth {
            under_way.next().await.unwrap();
        }
        let data = full_of(run.len() * BLOCK_BYTES as usize, 7);
        under_way.push(device.write(run[0] * BLOCK_BYTES, data, false));
    }
    while under_way.next().await.is_some() {}
    device.flush().await.outcome.ok().unwrap();
    let took = since(world.clock.now(), begun);
    if let Some(reader) = reader {
        reader.over.store(true, Ordering::Relaxed);
    }
    took
}

#[test]
fn flush_takes_what_the_disk_takes_and_others_go_on() {
    let took = |reads: bool| {
        let at = |way| in_a_world(async |process, world| bare_disk(&process, &world, way, reads).await);
        let all = WAYS.map(at);
        all.into_iter().min().unwrap()
    };
    let (alone, beside_reads) = (took(false), took(true));
    let flush = |reads: bool| {
        in_a_world(async |process, world| {
            let (cell, disk) = open(&world, CachingMode::WriteBack).await;
            let session = disk.open_session(Context::default());
            let quiet = if reads {
                let reader = Reader::begin(&process, Target::Cell(disk.open_session(Context::default())), "quiet");
                world.clock.sleep(Duration::from_secs(30)).await;
                reader.end()
            } else {
                0
            };
            write_all(&session).await;
            let reader = reads.then(|| {
                Reader::begin(&process, Target::Cell(disk.open_session(Context::default())), "beside the flush")
            });
            let dirty = cell.dirty_bytes(std::slice::from_ref(&disk));
            let begun = world.clock.now();
            let mut reports = Vec::new();
            cell.flush_flash_cache(&[], &mut |done, all| reports.push((done, all))).await.unwrap();
            let flushed = since(world.clock.now(), begun);
            assert_eq!(cell.dirty_bytes(std::slice::from_ref(&disk)), 0);
            assert!(reports.is_sorted() && reports.last() == Some(&(dirty, dirty)), "progress only grows, to its end");
            let busy = reader.map_or(0, Reader::end);
            cell.stop().await.unwrap();
            (flushed, dirty, quiet, busy)
        })
    };
    let (flushed, dirty, _, _) = flush(false);
    let (flushed_beside, dirty_beside, quiet_ns, busy_ns) = flush(true);
    #[expect(clippy::print_stderr, reason = "figures for people")]
    {
        eprintln!("the disk alone: {alone:?}, beside reads {beside_reads:?}");
        eprintln!(
            "flush of {} MiB: {flushed:?}; beside reads of {} MiB {flushed_beside:?}",
            dirty >> 20,
            dirty_beside >> 20
        );
        eprintln!(
            "p99 of reads from the disk: {} ms, during the flush {} ms",
            quiet_ns / 1_000_000,
            busy_ns / 1_000_000
        );
    }
    assert!(flushed <= alone * 12 / 10, "{flushed:?} for what the disk does in {alone:?}");
    assert!(flushed_beside <= beside_reads * 12 / 10, "{flushed_beside:?} for what the disk does in {beside_reads:?}");
    assert!(busy_ns <= 2 * quiet_ns, "{busy_ns} ns, {quiet_ns} ns without a flush");
}

#[test]
fn cancel_is_quick_and_what_was_done_stays_done() {
    in_a_world(async |process, world| {
        let (cell, disk) = open(&world, CachingMode::WriteBack).await;
        write_all(&disk.open_session(Context::default())).await;
        let before = cell.dirty_bytes(std::slice::from_ref(&disk));
        let (flushing, clock) = (cell.clone(), process.clone());
        let ended = Arc::new(Mutex::new(None));
        let seen = ended.clone();
        process.spawn(Box::pin(async move {
            let result = flushing.flush_flash_cache(&[], &mut |_, _| ()).await;
            *seen.lock().unwrap() = Some((clock.now(), result));
        }));
        world.clock.sleep(Duration::from_secs(2)).await;
        let cancelled = world.clock.now();
        cell.cancel_flush(&[]).await.unwrap();
        assert!(since(world.clock.now(), cancelled) <= Duration::from_secs(1));
        world.clock.sleep(Duration::from_secs(1)).await;
        let (at, result) = ended.lock().unwrap().take().expect("it ends within a second");
        assert!(since(at, cancelled) <= Duration::from_secs(1));
        assert!(result.unwrap_err().to_string().contains("cancel"));
        let after = cell.dirty_bytes(std::slice::from_ref(&disk));
        assert!(after > 0 && after < before, "{after} of {before}");
        cell.stop().await.unwrap();
    });
}

#[test]
fn a_clean_cache_is_dropped_at_once() {
    in_a_world(async |_, world| {
        let (cell, disk) = open(&world, CachingMode::WriteThrough).await;
        write_all(&disk.open_session(Context::default())).await;
        world.clock.sleep(Duration::from_secs(10)).await;
        let begun = world.clock.now();
        cell.drop_flash_cache().await.unwrap();
        let took = since(world.clock.now(), begun);
        assert!(took <= Duration::from_secs(1), "{took:?}");
        cell.stop().await.unwrap();
    });
}
