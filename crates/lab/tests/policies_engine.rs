//! Goal: `lab policies` tells what the cell does: it runs the production cache's policy and accounting, not copies. Method:
//! the same references, as reads and writes through a cell's request path over memory devices, and through the replay.

#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CachingMode, Context, GridDisk, GridDiskParts};
use device::layers::Memory;
use device::spawn::yield_now;
use device::sync::Notify;
use device::{Arena, Buf, Io, Prng, Runtime, RuntimeConfig, World};
use flashcache::format::Owner;
use flashcache::model::LogModel;
use flashcache::policy::AdaptiveLog;
use flashcache::{CacheConfig, CachedDisk, FlashCache, MemberDevice};
use lab::policies::PoliciesOptions;
use lab::policies::log::Layout;
use lab::trace::TraceReader;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BLOCK_BYTES: u32 = 4096;

/// What one way to run a trace gave.
struct Figures {
    misses: u64,
    written_bytes: u64,
}

/// Of a reference: it writes its block.
const WRITES: u32 = 1 << 31;

fn replayed(blocks: &[u32], distinct: u32, layout: &Layout) -> Figures {
    let mut log = LogModel::new(Arc::new(AdaptiveLog::new(layout.shape.cache)), layout.shape, distinct);
    let mut misses = 0;
    for block in blocks {
        if block & WRITES == 0 {
            misses += u64::from(!log.read(*block));
        } else {
            log.write(block & !WRITES);
        }
    }
    Figures { misses, written_bytes: layout.bytes_of(log.written().all()) }
}

/// A cell's cache over memory, its devices as if they were infinitely fast.
struct AtWork {
    cache: Arc<FlashCache>,
    grid_disk: Arc<GridDisk>,
    flash: Arc<Memory>,
}

/// Each opening is a life of its own, later than those before.
static LIVES: AtomicU64 = AtomicU64::new(1);

impl AtWork {
    async fn open(world: &World, flash: Arc<Memory>, distinct: u32, segment_bytes: u32) -> AtWork {
        let disk_bytes = (u64::from(distinct) * u64::from(BLOCK_BYTES)).next_multiple_of(1 << 20);
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        // Chunks are not closed by age: the replay knows no time.
        let chunk_age = Duration::from_secs(3600);
        let config = CacheConfig { block_bytes: BLOCK_BYTES, segment_bytes, chunk_age, ..CacheConfig::default() };
        let life = LIVES.fetch_add(1, Ordering::Relaxed);
        let members = vec![MemberDevice { device: flash.clone(), owner, life, durable: true, checkpoint: None }];
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
            sequential_cutoff_bytes: 0,
            sabotage: None,
        });
        let handle = cache.disk(named);
        grid_disk.set_cache(Some((cache.clone(), handle)), CachingMode::WriteThrough);
        AtWork { cache, grid_disk, flash }
    }

    /// Read blocks, or write them, one after the other; how many that were read were not on flash.
    async fn misses(&self, blocks: &[u32]) -> u64 {
        let hits_before = self.grid_disk.counters.cache_hits.requests.get();
        let session = self.grid_disk.open_session(Context::default());
        let mut buf = Arena::new(1 << 20).alloc(BLOCK_BYTES as usize).await;
        for block in blocks {
            let offset = u64::from(block & !WRITES) * u64::from(BLOCK_BYTES);
            if block & WRITES == 0 {
                let (result, back) = session.read(offset, buf).await;
                result.unwrap();
                buf = back;
            } else {
                session.write(offset, Buf::zeroed(BLOCK_BYTES as usize).freeze().into(), false).await.unwrap();
            }
            // Whatever the request has set going ends before the next.
            for turns in 0..1000 {
                let idle = |m: &Arc<flashcache::Member>| m.segments().reclaiming == 0 && m.segments().free > 4;
                if turns >= 4 && self.cache.members().all(idle) {
                    break;
                }
                yield_now().await;
            }
        }
        let reads = blocks.iter().filter(|&block| block & WRITES == 0).count() as u64;
        reads - (self.grid_disk.counters.cache_hits.requests.get() - hits_before)
    }

    /// What its flash holds now, as the death of the process would leave it.
    async fn flash_now(&self) -> Arc<Memory> {
        let bytes = self.flash.geometry().size_bytes;
        let copy = Memory::new(bytes);
        for at in (0..bytes).step_by(1 << 20) {
            let read = <dyn Io>::read(&*self.flash, at, Buf::zeroed((bytes - at).min(1 << 20) as usize).into()).await;
            <dyn Io>::write(&*copy, at, read.bufs.freeze(), false).await;
        }
        copy
    }
}

fn in_a_world<F>(f: impl FnOnce(World) -> F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
    let world = runtime.world(1);
    runtime.block_on(f(world))
}

fn through_a_cell(blocks: &[u32], distinct: u32, size_blocks: u64, segment_bytes: u32) -> Figures {
    let blocks = blocks.to_vec();
    in_a_world(async move |world| {
        let flash = Memory::new(size_blocks * u64::from(BLOCK_BYTES));
        let cell = AtWork::open(&world, flash, distinct, segment_bytes).await;
        let misses = cell.misses(&blocks).await;
        cell.cache.stop().await;
        let written_bytes = cell.cache.members().map(|m| m.counters.flash_bytes_written.load(Ordering::Relaxed)).sum();
        Figures { misses, written_bytes }
    })
}

fn compare(name: &str, blocks: &[u32], distinct: u32, size_blocks: u64, segment_bytes: u32) {
    let layout = Layout::real(size_blocks, BLOCK_BYTES, segment_bytes).unwrap();
    let references = blocks.len() as u64;
    let replay = replayed(blocks, distinct, &layout);
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

/// How much more is missed after the death of the process, in 1/1000: in the next 2,000 references, and in as many as the cache has
/// blocks.
fn cost_of_a_crash(name: &str, blocks: &[u32], distinct: u32, size_blocks: u64) -> [u64; 2] {
    let segment_bytes = 1 << (size_blocks * u64::from(BLOCK_BYTES) / 64).ilog2();
    let spans = [2_000, size_blocks as usize];
    let blocks = blocks.to_vec();
    let ratios = in_a_world(async move |world| {
        let flash = Memory::new(size_blocks * u64::from(BLOCK_BYTES));
        let cell = AtWork::open(&world, flash, distinct, segment_bytes).await;
        let (mut alive, mut risen) = ([0; 2], [0; 2]);
        for span in blocks.chunks(size_blocks as usize * 2).skip(1).filter(|span| span.len() > spans[1]) {
            let after = AtWork::open(&world, cell.flash_now().await, distinct, segment_bytes).await;
            for n in 0..2 {
                let part = if n == 0 { 0..spans[0] } else { spans[0]..spans[1] };
                alive[n] += cell.misses(&span[part.clone()]).await;
                risen[n] += after.misses(&span[part]).await;
            }
            cell.misses(&span[spans[1]..]).await;
        }
        [risen[0] * 1000 / alive[0], (risen[0] + risen[1]) * 1000 / (alive[0] + alive[1])]
    });
    #[expect(clippy::print_stderr, reason = "figures for people")]
    {
        eprintln!("{name}: missed after a crash, in 1/1000 of what would have been: {ratios:?}");
    }
    ratios
}

fn mixture() -> (Vec<u32>, u32) {
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
    (blocks, distinct)
}

/// Zipf's law with exponent 0.9, by inverting its integral.
fn zipf(references: usize, distinct: u32) -> Vec<u32> {
    let mut prng = Prng::new(6);
    let mut order: Vec<u32> = (0..distinct).collect();
    for n in (1..distinct).rev() {
        order.swap(n as usize, prng.below(u64::from(n) + 1) as usize);
    }
    let (power, end) = (0.1_f64, f64::from(distinct));
    let mut draw = || {
        let even = prng.below(1 << 53) as f64 / (1_u64 << 53) as f64;
        let rank = (even * (end.powf(power) - 1.0) + 1.0).powf(1.0 / power) as usize;
        order[rank.clamp(1, distinct as usize) - 1]
    };
    (0..references).map(|_| draw()).collect()
}

/// References of a trace and how many differ; or it is told that it is not there.
fn trace(name: &str) -> Option<(Vec<u32>, u32)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces").join(name);
    if !path.exists() {
        #[expect(clippy::print_stderr, reason = "what was skipped is told")]
        {
            eprintln!("skipped 1 of 1 traces: no {}", path.display());
        }
        return None;
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
    Some((blocks, ids.len() as u32))
}

#[test]
fn a_cell_misses_what_the_replay_says_on_a_mixture() {
    let (blocks, distinct) = mixture();
    compare("mixture", &blocks, distinct, 10_000, 512 << 10);
}

#[test]
fn a_cell_misses_what_the_replay_says_on_a_real_trace() {
    let Some((blocks, distinct)) = trace("arc-OLTP.lis.zst") else { return };
    compare("arc-OLTP", &blocks, distinct, u64::from(distinct) / 10, 1 << 20);
}

/// Half of the references write. `size_blocks` in segments of 512 KiB: 128 of them or more, so that what lasts is kept apart.
fn overwritten(size_blocks: u64, distinct: u32, references: usize) {
    let mut prng = Prng::new(7);
    let all: Vec<u32> = (0..distinct).chain(zipf(references, distinct)).collect();
    let writes = |(n, block)| if n >= distinct as usize && prng.chance(1, 2) { block | WRITES } else { block };
    let blocks: Vec<u32> = all.into_iter().enumerate().map(writes).collect();
    compare(&format!("overwritten, {distinct} of {size_blocks}"), &blocks, distinct, size_blocks, 512 << 10);
}

#[test]
fn a_cell_writes_what_the_replay_says_when_all_fits() {
    // Nearly as many as nothing has to leave for: 84 % of what the segments can hold.
    overwritten(32_768, 26_000, 150_000);
}

#[test]
fn a_cell_misses_what_the_replay_says_when_it_is_written_and_does_not_fit() {
    overwritten(20_000, 40_000, 150_000);
}

/// Goal: what fits stays, whatever writes: with 120 % of the footprint nothing is missed twice. Method: the shared traces that have writes.
#[test]
fn with_more_flash_than_is_used_nothing_is_missed_twice() {
    let names = [
        "disksim-hp-ajw.1week.converted.txt.zst",
        "disksim-ssd-iozone-100K.trace.zst",
        "msr-cut-10k.rw_20_80.105.trace",
        "nbd-integrity-test.tr",
        "ms-DTRS100M.trace.zst",
    ];
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let traces: Vec<_> = names.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect();
    #[expect(clippy::print_stderr, reason = "what was skipped is told")]
    if traces.len() < names.len() {
        eprintln!("skipped {} of {} traces: not in {}", names.len() - traces.len(), names.len(), dir.display());
    }
    let options = PoliciesOptions {
        traces,
        sizes: vec!["120%".parse().unwrap()],
        block_bytes: BLOCK_BYTES,
        segment_bytes: None,
        policies: vec!["flashcell".to_owned(), "lru/log".to_owned()],
        format: None,
        columns: None,
        json: None,
        plot: None,
    };
    let rows = lab::policies::replay(&options, &mut std::io::sink()).unwrap();
    for row in rows {
        assert_eq!(row.misses, row.distinct, "{} with {}", row.trace, row.policy);
        assert!(row.written.overwrites > 0 && row.written.headers > 0, "{} with {}", row.trace, row.policy);
    }
}

#[test]
fn a_crash_costs_little_warmth() {
    let distinct = 40_000;
    let [soon, later] = cost_of_a_crash("zipf", &zipf(240_000, distinct), distinct, 20_000);
    assert!(soon <= 1050 && later <= 1050, "zipf: {soon}, {later}");
    let Some((blocks, distinct)) = trace("arc-OLTP.lis.zst") else { return };
    let [soon, later] = cost_of_a_crash("arc-OLTP", &blocks[..400_000], distinct, u64::from(distinct) / 10);
    assert!(soon <= 1050 && later <= 1050, "arc-OLTP: {soon}, {later}");
}
