//! Goal: the index never grows past its limit (I8), and a cache whose index is full goes on taking what is read now.
//! Method: virtual world; parts of blocks read one by one, so that each is an entry of its own, with memory for a quarter of
//! those that the flash has room for; the same again after a restart with less.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CachingMode, Cell, CellConfig, Context, GridDisk, GridDiskParts, NewDevice};
use celldisk::Role;
use device::layers::Memory;
use device::sync::Notify;
use device::{Arena, Buf, Bufs, Device, World};
use flashcache::format::Owner;
use flashcache::{CacheConfig, CachedDisk, FlashCache, Member, MemberDevice, MemoryNeed};
use sim::plain::in_a_world;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const DATA_BYTES: u64 = 256 << 20;
const FLASH_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 16 << 10;
const SEGMENT_BYTES: u32 = 256 << 10;
const PART_BYTES: u64 = 4096;

/// Each opening is a life of its own, later than those before.
static LIVES: AtomicU64 = AtomicU64::new(1);

async fn open(flash: &Device, limit_bytes: u64, world: &World) -> (Arc<GridDisk>, Arc<FlashCache>) {
    let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
    let named = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
    let config =
        CacheConfig { memory_bytes_max: Some(limit_bytes), segment_bytes: SEGMENT_BYTES, ..CacheConfig::default() };
    let life = LIVES.fetch_add(1, Ordering::Relaxed);
    let members = vec![MemberDevice { device: flash.clone(), owner, life, durable: true, checkpoint: None }];
    let (cache, recovered) = FlashCache::open(config, members, &[named], world.clone()).await.unwrap();
    assert!(recovered.iter().all(Result::is_ok));
    let grid_disk = GridDisk::new(GridDiskParts {
        id: 7,
        name: "INDEX".to_owned(),
        disk: Memory::new(DATA_BYTES),
        size_bytes: DATA_BYTES,
        arena: Arena::new(16 << 20),
        block_bytes: BLOCK_BYTES,
        alarm: Arc::new(Notify::new()),
        sequential_cutoff_bytes: 0,
        sabotage: None,
    });
    grid_disk.set_cache(Some((cache.clone(), cache.disk(named))), CachingMode::WriteThrough);
    (grid_disk, cache)
}

fn check(member: &Member, limit_bytes: u64) {
    let need = member.memory_need();
    assert!(need.all_bytes() <= limit_bytes, "{need:?}");
    assert!(member.entries() as u64 <= need.entries_max, "{} entries, {need:?}", member.entries());
    assert!(member.index_bytes() <= need.index_bytes, "{} bytes, {need:?}", member.index_bytes());
}

/// Read parts one by one, from `first` on. How many were hits.
async fn read(grid_disk: &Arc<GridDisk>, member: &Member, limit_bytes: u64, first: u64, world: &World) -> u64 {
    let session = grid_disk.open_session(Context::default());
    let hits = || grid_disk.counters.cache_hits.requests.get();
    let before = hits();
    let mut buf: Bufs = Buf::zeroed(PART_BYTES as usize).into();
    for part in first..first + 2_000 {
        let (result, back) = session.read(part * PART_BYTES, buf).await;
        result.unwrap();
        buf = back;
        if part % 16 == 0 {
            check(member, limit_bytes);
            world.clock.sleep(Duration::from_millis(1)).await;
        }
    }
    world.clock.sleep(Duration::from_secs(1)).await;
    hits() - before
}

#[test]
fn the_index_keeps_to_its_memory_and_the_cache_goes_on() {
    in_a_world(async |_, world| {
        let flash: Device = Memory::new(FLASH_BYTES);
        let a_block = MemoryNeed::of(FLASH_BYTES, SEGMENT_BYTES, BLOCK_BYTES as u32, None);
        let limit_bytes = a_block.all_bytes();
        let (grid_disk, cache) = open(&flash, limit_bytes, &world).await;
        let member = cache.members().next().unwrap().clone();
        assert!(member.memory_need().entries_max < FLASH_BYTES / PART_BYTES / 3, "entries for a quarter of the pages");
        // Five times as many parts as the index takes.
        for first in (0..22_000).step_by(2_000) {
            read(&grid_disk, &member, limit_bytes, first, &world).await;
        }
        let now = read(&grid_disk, &member, limit_bytes, 20_000, &world).await;
        assert!(now > 1_500, "what was read last is cached: {now} hits of 2000");
        assert!(member.counters.reclaims.load(Ordering::Relaxed) > 0 && member.segments().free > 64, "not for space");
        let entries = member.entries() as u64;
        cache.stop().await;

        // With half of it: what does not fit is forgotten, durably.
        let half_bytes = limit_bytes - a_block.index_bytes / 2;
        let (grid_disk, cache) = open(&flash, half_bytes, &world).await;
        let member = cache.members().next().unwrap().clone();
        check(&member, half_bytes);
        let forgotten = member.entries() as u64;
        assert!(forgotten > 1_000 && forgotten < entries, "{forgotten} of {entries}");
        read(&grid_disk, &member, half_bytes, 30_000, &world).await;
        let now = read(&grid_disk, &member, half_bytes, 31_000, &world).await;
        assert!(now > 700, "{now} hits of 1000");
        cache.stop().await;

        // With all of it again: what was forgotten stays so.
        let kept = member.entries() as u64;
        let (_, cache) = open(&flash, limit_bytes, &world).await;
        let member = cache.members().next().unwrap();
        assert!(member.entries() as u64 <= kept, "{} entries, {kept} before", member.entries());
        cache.stop().await;
    });
}

/// Goal: a cache whose index would be too large gets coarser blocks, and is refused where none are coarse enough. Method: a
/// cell on devices in memory, opened with several limits.
#[test]
fn a_new_cache_has_blocks_whose_index_fits() {
    let need = |block| MemoryNeed::of(FLASH_BYTES, SEGMENT_BYTES, block, None).all_bytes();
    in_a_world(async |_, world| {
        for (limit_bytes, expected) in [
            (None, Some(16 << 10)),
            (Some(need(16 << 10)), Some(16 << 10)),
            (Some(need(32 << 10)), Some(32 << 10)),
            (Some(need(64 << 10)), Some(64 << 10)),
            (Some(need(64 << 10) / 2), None),
        ] {
            let devices: Vec<Device> = vec![Memory::new(DATA_BYTES), Memory::new(FLASH_BYTES)];
            let new = devices.iter().zip([("CD_disk01", Role::Disk), ("FD_00", Role::Flash)]);
            let new = new.map(|(device, (name, role))| NewDevice::new(device.clone(), name, role));
            drop(Cell::create("cell", new.collect(), false, &world).await.unwrap());
            let cache =
                CacheConfig { memory_bytes_max: limit_bytes, segment_bytes: SEGMENT_BYTES, ..CacheConfig::default() };
            let config = CellConfig { cache, ..CellConfig::default() };
            let (cell, report) = Cell::open(devices, config, world.clone()).await.unwrap();
            let noted = report.notes.iter().any(|note| note.contains("more than"));
            assert_eq!(noted, expected != Some(16 << 10), "{:?}", report.notes);
            let made = cell.create_flash_cache(None, &[]).await;
            assert_eq!(made.is_ok(), expected.is_some(), "{made:?}");
            if let Some(block_bytes) = expected {
                let recorded = cell.store().catalog().flash_cache.as_ref().unwrap().block_bytes;
                assert_eq!(recorded, block_bytes);
                assert_eq!(cell.other_blocks().is_some(), block_bytes != 16 << 10);
                // Bounce buffers, staging, and the list of what is hot.
                let besides_bytes = 97 << 20;
                assert!(cell.memory_bytes_max() <= limit_bytes.unwrap_or(u64::MAX).saturating_add(besides_bytes));
            } else {
                let text = made.unwrap_err().to_string();
                assert!(text.contains("bytes of memory") && text.contains("hint: raise index"), "{text}");
                // A part of the flash will do.
                cell.create_flash_cache(Some(4 << 20), &[]).await.unwrap();
            }
            cell.stop().await.unwrap();
        }
    });
}
