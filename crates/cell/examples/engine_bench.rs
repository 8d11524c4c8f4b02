//! What the engine costs without network and without devices: CPU time per 4 KiB read hit, copy included.
//!
//! `cargo run --release -p cell --example engine_bench [ENTRIES [READS]]`: a cache of ENTRIES 4 KiB blocks (default 100,000) on
//! memory devices is filled by reading, then random hits are read one after the other on one executor thread. Prints one
//! JSON line: nanoseconds of CPU per hit (CPU clock of the process), the same for the bare 4 KiB read of the memory device that
//! is part of it (so that a machine's memory can be told from the engine), and bytes of index per entry.

#![expect(clippy::print_stdout, reason = "a program for people")]
#![expect(clippy::unwrap_used, reason = "a program for people")]
#![expect(clippy::disallowed_methods, reason = "it measures real time")]

use cell::{CachingMode, Context, GridDisk, GridDiskParts};
use device::layers::Memory;
use device::sync::Notify;
use device::{Arena, Device, Outcome, Prng, Runtime, RuntimeConfig};
use flashcache::format::Owner;
use flashcache::{CacheConfig, CachedDisk, FlashCache, MemberDevice};
use std::sync::Arc;
use std::time::Instant;

/// CPU time of this process in nanoseconds, from the scheduler's accounting.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    let mut sum: u64 = text.split(' ').next().unwrap().parse().unwrap();
    // schedstat of the process is the main thread's only: add the others'.
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        if path.file_name().unwrap().to_string_lossy() != std::process::id().to_string() {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
            sum += text.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

fn main() {
    let entries: u64 = std::env::args().nth(1).map_or(100_000, |a| a.parse().unwrap());
    let reads: u64 = std::env::args().nth(2).map_or(1_000_000, |a| a.parse().unwrap());
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
    let world = runtime.world(1);
    let line = runtime.block_on(async move {
        let data_bytes = entries * 4096;
        let flash = Memory::new((data_bytes + data_bytes / 8).next_multiple_of(2 << 20) + (64 << 20));
        let disk = Memory::new(data_bytes.next_multiple_of(1 << 20));
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let config = CacheConfig { block_bytes: 4096, ..CacheConfig::default() };
        let members = vec![MemberDevice { device: flash.clone(), owner, life: 1, durable: true, checkpoint: None }];
        let bare: Device = flash;
        let (cache, _) = FlashCache::open(config, members, &[CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true }], world.clone()).await.unwrap();
        let grid_disk = GridDisk::new(GridDiskParts {
            id: 7,
            name: "BENCH".to_owned(),
            disk,
            size_bytes: data_bytes,
            arena: Arena::new(16 << 20),
            block_bytes: 4096,
            alarm: Arc::new(Notify::new()),
            sequential_cutoff_bytes: cell::SEQUENTIAL_CUTOFF_BYTES,
            sabotage: None,
        });
        let handle = cache.disk(CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true });
        grid_disk.set_cache(Some((cache.clone(), handle)), CachingMode::WriteThrough);
        let session = grid_disk.open_session(Context::default());
        let arena = Arena::new(4 << 20);
        let mut at = 0;
        while at < data_bytes {
            let len = (data_bytes - at).min(128 << 10);
            let (result, _) = session.read(at, arena.alloc(len as usize).await).await;
            result.unwrap();
            at += len;
            // Memory devices never make this task wait: let the chunk writers have their turn.
            device::spawn::yield_now().await;
        }
        // What is still in memory on its way to flash must get there, or this measures the wrong thing.
        world.clock.sleep(std::time::Duration::from_secs(1)).await;
        let mut prng = Prng::new(1);
        let hits = grid_disk.counters.cache_hits.requests.get();
        let (cpu, start) = (cpu_ns(), Instant::now());
        let mut bufs = arena.alloc(4096).await;
        for _ in 0..reads {
            let (result, back) = session.read(prng.below(entries) * 4096, bufs).await;
            result.unwrap();
            bufs = back;
        }
        let (cpu, wall) = (cpu_ns() - cpu, start.elapsed());
        let hits = grid_disk.counters.cache_hits.requests.get() - hits;
        let copy = cpu_ns();
        for _ in 0..reads {
            let done = bare.read(prng.below(entries) * 4096, bufs).await;
            assert_eq!(done.outcome, Outcome::Done);
            bufs = done.bufs;
        }
        let copy = cpu_ns() - copy;
        let index: u64 = cache.members().map(|m| m.index_bytes()).sum();
        format!(
            "{{\"entries\":{entries},\"reads\":{reads},\"hits\":{hits},\"cpu_ns_per_read\":{},\"copy_cpu_ns_per_read\":{},\"wall_ns_per_read\":{},\"index_bytes_per_entry\":{}}}",
            cpu / reads,
            copy / reads,
            wall.as_nanos() as u64 / reads,
            index / entries,
        )
    });
    println!("{line}");
}
