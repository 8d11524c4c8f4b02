//! Goal: `lab policies` tells what the cell does: it runs the production cache's policy and accounting, not copies. Method:
//! the same references, as reads through a cell's request path over memory devices, and through the replay.

#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CachingMode, Context, GridDisk, GridDiskParts};
use device::layers::Memory;
use device::spawn::yield_now;
use device::sync::Notify;
use device::{Arena, Prng, Runtime, RuntimeConfig};
use flashcache::format::Owner;
use flashcache::policy::AdaptiveLog;
use flashcache::{CacheConfig, CachedDisk, FlashCache, MemberDevice, PolicyKind};
use lab::policies::log::{Layout, LogReplay};
use lab::trace::TraceReader;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK_BYTES: u32 = 4096;

/// What one way to run a trace gave.
struct Figures {
    misses: u64,
    written_bytes: u64,
}

fn replayed(blocks: &[u32], distinct: u32, layout: &Layout) -> Figures {
    let mut log = LogReplay::new(Arc::new(AdaptiveLog::new(layout.shape)), layout.clone(), distinct);
    let misses = blocks.iter().filter(|&&block| !log.access(block)).count() as u64;
    Figures { misses, written_bytes: log.flash_bytes_written() }
}

fn through_a_cell(blocks: Vec<u32>, distinct: u32, size_blocks: u64, segment_bytes: u32) -> Figures {
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
    let world = runtime.world(1);
    runtime.block_on(async move {
        let disk_bytes = (u64::from(distinct) * u64::from(BLOCK_BYTES)).next_multiple_of(1 << 20);
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        // Chunks are not closed by age: the replay knows no time.
        let chunk_age = Duration::from_secs(3600);
        let config = CacheConfig {
            block_bytes: BLOCK_BYTES,
            segment_bytes,
            chunk_age,
            policy: PolicyKind::Adaptive,
            ..CacheConfig::default()
        };
        let flash = Memory::new(size_blocks * u64::from(BLOCK_BYTES));
        let members = vec![MemberDevice { device: flash, owner, durable: true, checkpoint: None }];
        let named = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
        let (cache, _) = FlashCache::open(config, members, &[named], world.clone()).await.unwrap();
        let grid_disk = GridDisk::new(GridDiskParts {
            id: 7,
            name: "TRACE".to_owned(),
            disk: Memory::new(disk_bytes),
            size_bytes: disk_bytes,
            arena: Arena::new(16 << 20),
            block_bytes: u64::from(BLOCK_BYTES),
            alarm: Arc::new(Notify::new()),
            sabotage: None,
        });
        let handle = cache.disk(named);
        grid_disk.set_cache(Some((cache.clone(), handle)), CachingMode::WriteThrough);
        let session = grid_disk.open_session(Context::default());
        let mut buf = Arena::new(1 << 20).alloc(BLOCK_BYTES as usize).await;
        for block in &blocks {
            let (result, back) = session.read(u64::from(*block) * u64::from(BLOCK_BYTES), buf).await;
            result.unwrap();
            buf = back;
            // As if devices were infinitely fast: whatever the request has set going ends before the next.
            for turns in 0..1000 {
                let idle = |m: &Arc<flashcache::Member>| m.segments().reclaiming == 0 && m.segments().free > 4;
                if turns >= 4 && cache.members().all(idle) {
                    break;
                }
                yield_now().await;
            }
        }
        let hits = grid_disk.counters.cache_hits.requests.get();
        cache.stop().await;
        let written_bytes = cache.members().map(|m| m.counters.flash_bytes_written.load(Ordering::Relaxed)).sum();
        Figures { misses: blocks.len() as u64 - hits, written_bytes }
    })
}

fn compare(name: &str, blocks: Vec<u32>, distinct: u32, size_blocks: u64) {
    let layout = Layout::of(size_blocks, BLOCK_BYTES);
    let segment_bytes = layout.segment_bytes.unwrap();
    let references = blocks.len() as u64;
    let replay = replayed(&blocks, distinct, &layout);
    let cell = through_a_cell(blocks, distinct, size_blocks, segment_bytes);
    #[expect(clippy::print_stderr, reason = "figures for people")]
    {
        eprintln!("{name}: {references} references, misses {} replayed, {} in a cell", replay.misses, cell.misses);
        eprintln!("{name}: written {} replayed, {} in a cell", replay.written_bytes, cell.written_bytes);
    }
    assert!(replay.misses * 20 > references && replay.misses < references, "{name}: the trace tells hits from misses");
    assert!(
        replay.misses.abs_diff(cell.misses) * 200 <= replay.misses,
        "{name}: miss ratios differ by more than 0.5 %"
    );
    let written = replay.written_bytes.abs_diff(cell.written_bytes);
    assert!(written * 50 <= replay.written_bytes, "{name}: bytes written differ by more than 2 %");
}

#[test]
fn a_cell_misses_what_the_replay_says_on_a_mixture() {
    let mut prng = Prng::new(5);
    let distinct = 80_000;
    let mut scan = 0;
    let mut blocks = Vec::new();
    while blocks.len() < 250_000 {
        match prng.below(10) {
            0 => {
                blocks.extend((0..20).map(|i| (scan + i) % distinct));
                scan += 20;
            }
            1..5 => blocks.push(prng.below(4_000) as u32),
            _ => blocks.push(prng.below(u64::from(distinct) / 3) as u32),
        }
    }
    compare("mixture", blocks, distinct, 10_000);
}

#[test]
fn a_cell_misses_what_the_replay_says_on_a_real_trace() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/arc-OLTP.lis.zst");
    if !path.exists() {
        #[expect(clippy::print_stderr, reason = "what was skipped is told")]
        {
            eprintln!("skipped 1 of 1 traces: no {}", path.display());
        }
        return;
    }
    let reader = TraceReader::open(&path, None).unwrap();
    let unit = reader.unit();
    let mut ids = BTreeMap::new();
    let mut blocks = Vec::new();
    for request in reader {
        for block in request.unwrap().blocks(unit, 4096) {
            let next = ids.len() as u32;
            blocks.push(*ids.entry(block).or_insert(next));
        }
    }
    compare("arc-OLTP", blocks, ids.len() as u32, ids.len() as u64 / 10);
}
