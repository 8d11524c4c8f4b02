//! Goal: a scan pushes nothing out of the cache, fills what is free, and is cached when it comes back and fits. Method: virtual world; a
//! grid disk over a small flash cache, read and written as databases do it; hits counted by the grid disk.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::SEQUENTIAL_CUTOFF_BYTES;
use cell::{CachingMode, CellConfig, Context, GridDisk, GridDiskParts, Session};
use celldisk::{GridDiskSpec, Role};
use device::layers::Memory;
use device::sync::Notify;
use device::{Arena, Buf, Bufs, Device, Prng, World};
use flashcache::format::Owner;
use flashcache::{CacheConfig, CachedDisk, FlashCache, MemberDevice};
use futures_util::future::join_all;
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 512 * MIB;
const FLASH_BYTES: u64 = 64 * MIB;
const SEGMENT_BYTES: u32 = 256 << 10;
/// A request of the kernel's read-ahead, and how many it has under way.
const AHEAD_BYTES: u64 = 128 << 10;
const AHEAD: u64 = 4;
const PAGE_BYTES: u64 = 8 << 10;

struct Rig {
    grid_disk: Arc<GridDisk>,
    cache: Arc<FlashCache>,
    session: Session,
    world: World,
}

impl Rig {
    async fn new(world: &World, mode: CachingMode, sequential_cutoff_bytes: u64) -> Rig {
        let flash: Device = Memory::new(FLASH_BYTES);
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let named = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
        let config = CacheConfig { segment_bytes: SEGMENT_BYTES, ..CacheConfig::default() };
        let members = vec![MemberDevice { device: flash, owner, life: 1, durable: true, checkpoint: None }];
        let (cache, recovered) = FlashCache::open(config, members, &[named], world.clone()).await.unwrap();
        assert!(recovered.iter().all(Result::is_ok));
        let grid_disk = GridDisk::new(GridDiskParts {
            id: 7,
            name: "SCANNED".to_owned(),
            disk: Memory::new(DATA_BYTES),
            size_bytes: DATA_BYTES,
            arena: Arena::new(16 << 20),
            block_bytes: 16 << 10,
            alarm: Arc::new(Notify::new()),
            sequential_cutoff_bytes,
            sabotage: None,
        });
        grid_disk.set_cache(Some((cache.clone(), cache.disk(named))), mode);
        let session = grid_disk.open_session(Context::default());
        Rig { grid_disk, cache, session, world: world.clone() }
    }

    async fn read(&self, offset: u64, len: u64) {
        self.session.read(offset, Bufs::from(Buf::zeroed(len as usize))).await.0.unwrap();
    }

    /// Read a table from its beginning to its end, as the kernel reads ahead; per cent of the requests that were hits.
    async fn scan(&self, from: u64, bytes: u64) -> u64 {
        let before = self.grid_disk.counters.cache_hits.requests.get();
        for at in (from..from + bytes).step_by((AHEAD * AHEAD_BYTES) as usize) {
            // Not in the order of their places.
            let order = [1, 0, 3, 2].map(|n| self.read(at + n * AHEAD_BYTES, AHEAD_BYTES));
            join_all(order).await;
            self.world.clock.sleep(Duration::from_millis(1)).await;
        }
        (self.grid_disk.counters.cache_hits.requests.get() - before) * 100 / (bytes / AHEAD_BYTES)
    }

    /// Read pages at random, `count` of them; per cent that were hits.
    async fn pages(&self, from: u64, bytes: u64, count: u64, prng: &mut Prng) -> u64 {
        let before = self.grid_disk.counters.cache_hits.requests.get();
        for n in 0..count {
            self.read(from + prng.below(bytes / PAGE_BYTES) * PAGE_BYTES, PAGE_BYTES).await;
            if n % 64 == 0 {
                self.world.clock.sleep(Duration::from_millis(1)).await;
            }
        }
        (self.grid_disk.counters.cache_hits.requests.get() - before) * 100 / count
    }

    fn cached_bytes(&self, parts: std::ops::Range<u64>) -> u64 {
        let disk = self.cache.disk(CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true });
        let found = self.cache.residence(&disk, parts);
        found.iter().filter(|(_, at)| *at != flashcache::Residence::Disk).map(|(parts, _)| parts * 4096).sum()
    }
}

/// What two scans of four times the cache leave of a hot table, per cent, and of what they read.
async fn hot_after_scans(world: &World, cutoff_bytes: u64) -> (u64, u64) {
    let rig = Rig::new(world, CachingMode::WriteThrough, cutoff_bytes).await;
    let mut prng = Prng::new(5);
    let hot_bytes = 32 * MIB;
    for _ in 0..3 {
        rig.pages(0, hot_bytes, 4 * hot_bytes / PAGE_BYTES, &mut prng).await;
    }
    assert!(rig.pages(0, hot_bytes, 1000, &mut prng).await >= 99, "the hot table is cached");
    for _ in 0..2 {
        rig.scan(128 * MIB, 4 * FLASH_BYTES).await;
    }
    rig.world.clock.sleep(Duration::from_secs(1)).await;
    let hot = rig.cached_bytes(0..hot_bytes / 4096) * 100 / hot_bytes;
    let scanned = rig.cached_bytes(128 * MIB / 4096..(128 * MIB + 4 * FLASH_BYTES) / 4096);
    if cutoff_bytes > 0 {
        let refused = rig.grid_disk.counters.cache_fill_skips_scan.bytes.get();
        assert!(refused > 6 * FLASH_BYTES, "{refused} bytes of scans were refused");
        assert!(rig.pages(0, hot_bytes, 1000, &mut prng).await >= 95, "hits on the hot table");
    }
    (hot, scanned)
}

#[test]
fn a_hot_table_stays_through_two_scans_of_four_times_the_cache_and_free_space_is_filled() {
    in_a_world(async |_, world| {
        let (hot, scanned) = hot_after_scans(&world, SEQUENTIAL_CUTOFF_BYTES).await;
        assert!(hot >= 95, "{hot} % of the hot table are cached");
        assert!(scanned >= 16 * MIB, "{scanned} bytes of the scans are where nothing was");
        // Without the cut-off they push it out: the test can fail.
        let (hot, _) = hot_after_scans(&world, 0).await;
        assert!(hot < 50, "{hot} % of the hot table are cached without a cut-off");
    });
}

/// Large requests anywhere, as a copy or a bulk load of many files makes them, are scans of their own.
#[test]
fn large_requests_fill_what_is_free_and_push_nothing_out() {
    in_a_world(async |_, world| {
        let rig = Rig::new(&world, CachingMode::WriteThrough, SEQUENTIAL_CUTOFF_BYTES).await;
        let mut prng = Prng::new(7);
        let hot_bytes = 32 * MIB;
        for _ in 0..3 {
            rig.pages(0, hot_bytes, 4 * hot_bytes / PAGE_BYTES, &mut prng).await;
        }
        let c = &rig.grid_disk.counters;
        for n in 0..4 * FLASH_BYTES / MIB {
            let at = 128 * MIB + prng.below(256) * MIB;
            if n % 2 == 0 {
                rig.read(at, MIB).await;
            } else {
                rig.session.write(at, full_of(MIB as usize, 3), false).await.unwrap();
            }
            if n == 0 {
                assert_eq!(rig.cached_bytes(at / 4096..(at + MIB) / 4096), MIB, "there is room for the first");
            }
            rig.world.clock.sleep(Duration::from_millis(10)).await;
        }
        let (read, written) = (c.cache_read_skips_large.bytes.get(), c.cache_write_skips_large.bytes.get());
        assert!(
            read > FLASH_BYTES && written > FLASH_BYTES,
            "{read} bytes of reads and {written} of writes were refused"
        );
        let filled = rig.cached_bytes(128 * MIB / 4096..384 * MIB / 4096);
        assert!(filled >= 8 * MIB, "{filled} bytes are where nothing was");
        let hot = rig.cached_bytes(0..hot_bytes / 4096) * 100 / hot_bytes;
        assert!(hot >= 95, "{hot} % of the hot table are cached");
    });
}

/// Hits of the passes of a scan over half of a cache that is full of what nobody asks for again, per cent.
async fn hits_of_passes(world: &World, cutoff_bytes: u64) -> Vec<u64> {
    let rig = Rig::new(world, CachingMode::WriteThrough, cutoff_bytes).await;
    let mut prng = Prng::new(6);
    rig.pages(256 * MIB, 256 * MIB, 4 * FLASH_BYTES / PAGE_BYTES, &mut prng).await;
    let mut hits = Vec::new();
    for _ in 0..5 {
        hits.push(rig.scan(0, FLASH_BYTES / 2).await);
        rig.world.clock.sleep(Duration::from_secs(1)).await;
    }
    hits
}

#[test]
fn a_scan_that_comes_back_and_fits_is_cached() {
    in_a_world(async |_, world| {
        let hits = hits_of_passes(&world, SEQUENTIAL_CUTOFF_BYTES).await;
        let without = hits_of_passes(&world, 0).await;
        assert!(hits[0] == 0 && hits[3] >= 90 && hits[4] >= 95, "hits of the passes, per cent: {hits:?}, {without:?}");
        // Refused once, it comes a pass later to what the policy makes of it.
        let late = |n: usize| hits[n] + 10 >= without[n - 1];
        assert!((1..5).all(late), "hits of the passes, per cent: {hits:?}, without a cut-off {without:?}");
    });
}

#[test]
fn in_write_back_a_restore_goes_to_the_disk_and_a_log_and_durable_writes_to_flash() {
    in_a_world(async |_, world| {
        let devices: Vec<Device> = vec![Memory::new(DATA_BYTES + 64 * MIB), Memory::new(FLASH_BYTES)];
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash)];
        let cache = CacheConfig { segment_bytes: SEGMENT_BYTES, ..CacheConfig::default() };
        let cell = cell_on(&devices, &names, CellConfig { cache, ..CellConfig::default() }, &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        let spec = GridDiskSpec {
            caching_mode: celldisk::CachingMode::WriteBack,
            ..GridDiskSpec::new("DATA", home, DATA_BYTES, world.clock.wall())
        };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = disk.open_session(Context::default());
        let mut prng = Prng::new(7);
        for n in 0..4 * FLASH_BYTES / PAGE_BYTES {
            let at = 256 * MIB + prng.below(256 * MIB / PAGE_BYTES) * PAGE_BYTES;
            session.read(at, Bufs::from(Buf::zeroed(PAGE_BYTES as usize))).await.0.unwrap();
            if n % 64 == 0 {
                world.clock.sleep(Duration::from_millis(1)).await;
            }
        }
        let refused = || disk.counters.cache_write_skips_scan.bytes.get();
        let to_disk = || disk.counters.disk_writes.bytes.get();
        // A long write goes to the disk, but not one that somebody waits for until it is durable.
        let long = 256 << 10;
        session.write(100 * MIB, full_of(long, 4), true).await.unwrap();
        assert_eq!(to_disk(), 0, "a durable write is on flash");
        session.write(110 * MIB, full_of(long, 5), false).await.unwrap();
        assert_eq!(to_disk(), long as u64, "another is on the disk");
        cell.flush_flash_cache(&[], &mut |_, _| ()).await.unwrap();
        assert_eq!(to_disk(), 2 * long as u64);
        // The end of a log on a data disk is flushed at every commit; whether or not, durable writes are.
        let mut before = to_disk();
        let page = || full_of(PAGE_BYTES as usize, 1);
        for n in 0..4096 {
            session.write(n * PAGE_BYTES, page(), false).await.unwrap();
            session.write(64 * MIB + n * PAGE_BYTES, page(), true).await.unwrap();
            if n % 100 == 99 {
                session.flush().await.unwrap();
            }
        }
        assert_eq!(refused(), 0, "of a log and of durable writes");
        // What is dirty still, is overwritten where it is, whoever writes.
        cell.flush_flash_cache(&[], &mut |_, _| ()).await.unwrap();
        before = to_disk() - before;
        // A block that is destaged between the writes of its pages goes whole again with the second.
        let most = 2 * 4096 * PAGE_BYTES;
        assert!(before <= most + most / 100, "{before} bytes to the disk: each page once, when it is destaged");
        let restore = async |from: u64| {
            for at in (from..from + 64 * MIB).step_by(128 << 10) {
                session.write(at, full_of(128 << 10, 2), false).await.unwrap();
            }
        };
        restore(128 * MIB).await;
        let refused_now = refused();
        assert!(refused_now >= 56 * MIB, "{refused_now} bytes of a restore were refused");
        for at in [128 * MIB, 191 * MIB] {
            let (read, bufs) = session.read(at, Bufs::from(Buf::zeroed(4096))).await;
            read.unwrap();
            assert!(bufs.to_vec(0..4096).iter().all(|byte| *byte == 2), "what was written last, at {at}");
        }
        session.flush().await.unwrap();
        cell.stop().await.unwrap();
    });
}
