//! Goal: a burst of writes in write-back through a cache that is full of clean data stays on flash. Method: virtual world; flash and disk that take
//! their time, a cache of few segments filled by reads, thirty-two sessions that write at once.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Delay, Memory, Model};
use device::{Buf, Bufs, Device, Prng, World};
use flashcache::CacheConfig;
use futures_util::future::join_all;
use sim::plain::{cell_on, full_of, in_a_world};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CACHE_BYTES: u64 = 12 * MIB;
const DATA_BYTES: u64 = 64 * MIB;
const PAGE_BYTES: u64 = 8 << 10;
const WRITES: u64 = 320;
const SESSIONS: u64 = 32;

fn slow(world: &World, size_bytes: u64, model: &str) -> Device {
    let prng = world.prng.fork(model);
    let model = model.parse::<Model>().unwrap();
    Delay::new(Memory::new(size_bytes), model, world.clock.clone(), world.spawn.clone(), prng)
}

#[test]
fn a_burst_through_a_full_cache_stays_on_flash() {
    in_a_world(async |_, world| {
        let devices = [
            slow(&world, DATA_BYTES + 64 * MIB, "fixed:8ms:4"),
            slow(&world, CACHE_BYTES + 16 * MIB, "fixed:100us:32"),
        ];
        let cache = CacheConfig { segment_bytes: 128 << 10, ..CacheConfig::default() };
        let config = CellConfig { cache, ..CellConfig::default() };
        let cell = cell_on(&devices, &[("CD", Role::Disk), ("FD", Role::Flash)], config, &world).await;
        cell.create_flash_cache(Some(CACHE_BYTES), &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD").unwrap().0;
        let spec = GridDiskSpec {
            caching_mode: CachingMode::WriteBack,
            ..GridDiskSpec::new("DATA", home, DATA_BYTES, world.clock.wall())
        };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let mut prng = Prng::new(16);
        let session = disk.open_session(Context::default());
        for _ in 0..3 * CACHE_BYTES / PAGE_BYTES {
            let at = prng.below(DATA_BYTES / PAGE_BYTES) * PAGE_BYTES;
            session.read(at, Bufs::from(Buf::zeroed(PAGE_BYTES as usize))).await.0.unwrap();
        }
        let to_disk = || disk.counters.disk_writes.requests.get() - disk.counters.destages.requests.get();
        let reclaims = || -> u64 {
            let of = |all: Vec<(&str, u64)>| all.into_iter().find(|(name, _)| *name == "reclaims").unwrap().1;
            cell.flash_cache().unwrap().members().map(|member| of(member.counters.snapshot())).sum()
        };
        let (before, begun, reclaims_before) = (to_disk(), world.clock.now(), reclaims());
        assert!(reclaims_before > 0, "the cache is full");
        let writers = (0..SESSIONS).map(|n| {
            let session = disk.open_session(Context::default());
            async move {
                for k in 0..WRITES / SESSIONS {
                    // No two writes share a block.
                    let at = (k * SESSIONS + n) * 11 % (DATA_BYTES / (16 << 10)) * (16 << 10);
                    session.write(at, full_of(PAGE_BYTES as usize, 1), false).await.unwrap();
                }
            }
        });
        join_all(writers).await;
        let took = Duration::from_nanos(world.clock.now().ns_since(begun));
        assert!(to_disk() - before <= WRITES / 20, "{} of {WRITES} writes went to the disk", to_disk() - before);
        assert!(
            reclaims() - reclaims_before > 10,
            "clean data has left for it: {} segments",
            reclaims() - reclaims_before
        );
        assert!(took < Duration::from_millis(500), "{WRITES} writes took {took:?}");
        cell.stop().await.unwrap();
    });
}
