//! Goal: which flash device serves what never changes by accident; what a cache says of its members, fills and memory is so; content of
//! another generation, or beyond the memory it may take, is void for good. Method: caches on memory devices, filled by hand.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use device::layers::Memory;
use device::spawn::yield_now;
use device::{Buf, Class, Device, Geometry, SharedBufs, World};
use flashcache::format::Owner;
use flashcache::hot::{HOT_BLOCKS_MAX, HotBlock};
use flashcache::{
    CacheConfig, CachedDisk, DiskHandle, FillCause, FillReport, FlashCache, Member, MemberDevice, MemberError,
    PART_BYTES, Residence, Stretch, check_area,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const SEGMENT_BYTES: u32 = 256 << 10;
const BLOCK_BYTES: u64 = 16 << 10;
const DISKS: [CachedDisk; 2] = [cached_disk(7), cached_disk(8)];

const fn cached_disk(id: u64) -> CachedDisk {
    CachedDisk { id, generation: 1, home: 1, is_home_there: true }
}

struct Rig {
    cache: Arc<FlashCache>,
    disks: Vec<DiskHandle>,
}

fn config() -> CacheConfig {
    CacheConfig { segment_bytes: SEGMENT_BYTES, chunk_age: Duration::from_millis(1), ..CacheConfig::default() }
}

fn device(id: u128, device: Device) -> MemberDevice {
    MemberDevice {
        device,
        owner: Owner { cell_id: 1, device_id: id, era: 1 },
        life: next_life(),
        durable: true,
        checkpoint: None,
    }
}

fn fresh(id: u128) -> MemberDevice {
    device(id, Memory::new(32 * u64::from(SEGMENT_BYTES)))
}

fn parts(block: u64) -> Range<u64> {
    block * 4..block * 4 + 4
}

impl Rig {
    async fn new(config: CacheConfig, members: Vec<MemberDevice>, disks: &[CachedDisk], world: &World) -> Rig {
        let (cache, _) = FlashCache::open(config, members, disks, world.clone()).await.unwrap();
        let disks = disks.iter().map(|disk| cache.disk(*disk)).collect();
        Rig { cache, disks }
    }

    fn member(&self) -> &Arc<Member> {
        self.cache.members().next().unwrap()
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.member().counters.snapshot().into_iter().collect()
    }

    fn offer(&self, disk: usize, parts: Range<u64>, cause: FillCause) -> FillReport {
        let len = ((parts.end - parts.start) * PART_BYTES) as usize;
        let data = SharedBufs::from(Buf::zeroed(len).freeze());
        self.cache.fill(&self.disks[disk], parts, data.view(0..len), cause, self.cache.membership())
    }

    /// Some blocks, each on its way.
    async fn offer_all(&self, disk: usize, blocks: Range<u64>) {
        for block in blocks {
            self.offer(disk, parts(block), FillCause::ReadMiss);
            for _ in 0..4 {
                yield_now().await;
            }
        }
        self.cache.sync_all().await.unwrap();
    }

    fn count(&self, disk: usize, blocks: Range<u64>) -> usize {
        blocks.filter(|b| self.cache.residence(&self.disks[disk], parts(*b)) == [(4, Residence::Cached)]).count()
    }

    fn hit(&self, disk: usize, block: u64) -> bool {
        matches!(self.cache.lookup(&self.disks[disk], parts(block))[..], [Stretch::Hit(_)])
    }

    /// Who serves each of the first regions of a grid disk.
    fn servers(&self, regions: u64) -> Vec<u128> {
        let serves = |region| self.cache.member_of(&self.disks[0], region * 256).unwrap();
        (0..regions).map(|region| self.cache.device_id(serves(region)).unwrap()).collect()
    }
}

#[test]
fn regions_are_spread_evenly_and_move_only_with_their_device() {
    run(|world| async move {
        let ids = [3_u128, 1 << 64 | 9, 0x7777 << 100 | 5, 12];
        let open = async |ids: Vec<u128>| {
            Rig::new(config(), ids.into_iter().map(fresh).collect(), &DISKS, &world).await.servers(4000)
        };
        let all = open(ids.to_vec()).await;
        for id in ids {
            let share = all.iter().filter(|server| **server == id).count();
            assert!((900..1100).contains(&share), "{id:x} serves {share} of 4000");
        }
        assert_eq!(open(ids.iter().rev().copied().collect()).await, all, "whatever their order");
        let without = open(ids[1..].to_vec()).await;
        assert!(all.iter().zip(&without).all(|(before, after)| *before == ids[0] || before == after));
        // Flash outlives the program: a change here voids what is on it.
        let mut word = 0_u64;
        for server in all.iter().take(32) {
            word = word << 2 | ids.iter().position(|id| id == server).unwrap() as u64;
        }
        assert_eq!(format!("{word:016x}"), "59e3381a92b3315b");
    });
}

#[test]
fn a_range_is_cut_where_another_device_serves_and_shown_in_one() {
    run(|world| async move {
        let rig = Rig::new(config(), vec![fresh(3), fresh(4)], &DISKS, &world).await;
        let servers = rig.servers(40);
        let border = (1..40).find(|n| servers[*n] != servers[n - 1]).unwrap() as u64 * 256;
        let report = rig.offer(0, border - 6..border + 6, FillCause::ReadMiss);
        assert_eq!((report.taken, rig.cache.members().map(|m| m.entries()).collect::<Vec<_>>()), (4, vec![2, 2]));
        let found = rig.cache.lookup(&rig.disks[0], border - 8..border + 8);
        let shown: Vec<(bool, u32)> = found.iter().map(|s| (matches!(s, Stretch::Hit(_)), s.parts())).collect();
        // Each block lies by itself in its chunk's order: consecutive ones are one hit, but not over the border.
        assert_eq!(shown, [(false, 2), (true, 6), (true, 6), (false, 2)]);
        rig.cache.end_copies(&rig.disks[0], border - 1..border + 1);
        let left = [
            (2, Residence::Disk),
            (5, Residence::Cached),
            (2, Residence::Disk),
            (5, Residence::Cached),
            (2, Residence::Disk),
        ];
        assert_eq!(rig.cache.residence(&rig.disks[0], border - 8..border + 8), left);
        assert_eq!(rig.cache.bytes_by_disk(), [(7, 10 * PART_BYTES)].into());
        let places = rig.cache.places_of(&BTreeSet::from([4, 99]));
        assert_eq!(places, [1]);
        let each: Vec<u64> = rig.cache.members().map(|member| member.memory_bytes_max()).collect();
        assert_eq!(rig.cache.memory_bytes_max_without(&[]), each[0] + each[1]);
        assert_eq!(rig.cache.memory_bytes_max_without(&[0]), each[1]);
        assert_eq!(rig.cache.memory_bytes_max_without(&[0, 1]), 0);
    });
}

/// Members number their pages alike: that one page follows another says nothing where a request goes over the border of two regions.
#[test]
fn hits_of_two_devices_stay_two_where_page_follows_page() {
    run(|world| async move {
        let rig = Rig::new(config(), vec![fresh(3), fresh(4)], &DISKS, &world).await;
        let servers = rig.servers(40);
        let of = |server: u128| (0..40).find(|n| servers[*n] == server).unwrap() as u64 * 64;
        let border = (2..40).find(|n| servers[*n] != servers[n - 1] && of(servers[*n]) != *n as u64 * 64).unwrap();
        let before_it = border as u64 * 64 - 1;
        // The last block of a region on one device; on the other a block more, and then the first of the next region.
        rig.offer(0, parts(before_it), FillCause::ReadMiss);
        rig.offer(0, parts(of(servers[border])), FillCause::ReadMiss);
        rig.offer(0, parts(before_it + 1), FillCause::ReadMiss);
        rig.cache.sync_all().await.unwrap();
        let found = rig.cache.lookup(&rig.disks[0], parts(before_it).start..parts(before_it + 1).end);
        let shown: Vec<(bool, u32)> = found.iter().map(|s| (matches!(s, Stretch::Hit(_)), s.parts())).collect();
        assert_eq!(shown, [(true, 4), (true, 4)]);
        for stretch in found {
            let Stretch::Hit(hit) = stretch else { unreachable!() };
            let (result, back) = rig.cache.read_hit(hit, Buf::zeroed(4 * PART_BYTES as usize).into()).await;
            assert_eq!((result, back.is_some()), (Ok(()), true));
        }
    });
}

#[test]
fn fills_are_counted_by_cause_and_refused_by_reason() {
    run(|world| async move {
        let rig = Rig::new(config(), vec![fresh(3)], &DISKS, &world).await;
        let report = |taken, there, crowded| FillReport { taken, there, crowded, stale: false };
        assert_eq!(rig.offer(0, 0..5, FillCause::ReadMiss), report(2, 0, 0));
        assert_eq!(
            rig.offer(0, 3..9, FillCause::Write),
            report(2, 1, 0),
            "a part of the first is there, and of the second"
        );
        assert_eq!(rig.offer(0, 20..22, FillCause::Insert), report(1, 0, 0));
        let counters = rig.counters();
        let of = |name: &str| counters[name];
        assert_eq!((of("fills"), of("write_fills"), of("inserts"), of("fill_skips_exists")), (5, 4, 2, 1));
        for (parts, bytes) in
            [("fills", "fill_bytes"), ("write_fills", "write_fill_bytes"), ("inserts", "insert_bytes")]
        {
            assert_eq!(of(bytes), of(parts) * PART_BYTES);
        }
        assert_eq!(rig.member().used_bytes(), 11 * PART_BYTES);
        // Little memory on the way to flash.
        let short = CacheConfig { staging_bytes: 16 << 10, ..config() };
        let rig = Rig::new(short, vec![fresh(3)], &DISKS, &world).await;
        let some = rig.offer(0, 0..4 * 400, FillCause::ReadMiss);
        assert!((1..200).contains(&some.taken), "{some:?}");
        assert_eq!(some, report(some.taken, 0, 400 - some.taken));
        assert_eq!(rig.counters()["fill_skips_buffer"], u64::from(some.crowded));
        // Nothing of it once the cache stops.
        rig.cache.stop().await;
        assert_eq!(rig.offer(0, 8..12, FillCause::ReadMiss), report(0, 0, 1));
    });
}

#[test]
fn content_of_another_generation_is_void() {
    run(|world| async move {
        let memory: Device = Memory::new(32 * u64::from(SEGMENT_BYTES));
        let rig = Rig::new(config(), vec![device(3, memory.clone())], &DISKS, &world).await;
        rig.offer_all(0, 0..20).await;
        rig.offer_all(1, 0..10).await;
        let ticket = rig.cache.begin_write(&rig.disks[0], 4000..4001).await.unwrap();
        assert_eq!(rig.cache.disk(DISKS[0]), rig.disks[0]);
        assert_eq!((rig.count(0, 0..20), rig.count(1, 0..10), rig.member().regions().len()), (20, 10, 1));
        rig.cache.disk(CachedDisk { generation: 2, ..DISKS[0] });
        assert_eq!((rig.count(0, 0..20), rig.count(1, 0..10)), (0, 10));
        rig.cache.end_write(ticket);
        rig.cache.forget(&rig.disks[1]);
        assert_eq!((rig.count(1, 0..10), rig.member().entries()), (0, 0));
        rig.cache.stop().await;

        let next = [CachedDisk { generation: 2, ..DISKS[0] }, DISKS[1]];
        let again = Rig::new(config(), vec![device(3, memory)], &next, &world).await;
        // What was forgotten in memory alone is there: whoever forgets raises the generation before.
        assert_eq!((again.count(0, 0..20), again.count(1, 0..10)), (0, 10));
        assert!(again.cache.suspects(&again.disks[0]).is_empty(), "and so are marks");
    });
}

#[test]
fn what_finds_no_room_in_memory_is_void_for_good() {
    run(|world| async move {
        let memory: Device = Memory::new(64 * u64::from(SEGMENT_BYTES));
        let rig = Rig::new(config(), vec![device(3, memory.clone())], &DISKS, &world).await;
        // Parts by themselves: an entry each.
        for part in 0..800 {
            rig.offer(0, part * 4..part * 4 + 1, FillCause::ReadMiss);
            for _ in 0..4 {
                yield_now().await;
            }
        }
        rig.cache.sync(&rig.disks[0]).await.unwrap();
        let there = |rig: &Rig| {
            (0..800_u64)
                .filter(|n| rig.cache.residence(&rig.disks[0], n * 4..n * 4 + 1) != [(1, Residence::Disk)])
                .collect()
        };
        let all: Vec<u64> = there(&rig);
        assert_eq!((all.len(), rig.member().entries()), (800, 800));
        rig.cache.stop().await;

        // The least an index may have: a page of each of eight segments.
        let little = CacheConfig { memory_bytes_max: Some(1), ..config() };
        let rig = Rig::new(little.clone(), vec![device(3, memory.clone())], &DISKS, &world).await;
        assert_eq!(rig.member().memory_need().entries_max, 512);
        let some: Vec<u64> = there(&rig);
        assert_eq!(rig.member().entries(), some.len());
        assert!((450..=512).contains(&some.len()), "{}", some.len());
        assert!(rig.member().index_bytes() <= rig.member().memory_need().index_bytes);
        // Full: a new one is refused, and reclaim makes room.
        rig.cache.stop().await;
        let rig = Rig::new(config(), vec![device(3, memory)], &DISKS, &world).await;
        let left: Vec<u64> = there(&rig);
        assert!(left.iter().all(|n| some.contains(n)) && left.len() >= 300, "what was refused does not come back");
    });
}

#[test]
fn a_full_index_refuses_and_makes_room() {
    run(|world| async move {
        let little = CacheConfig { memory_bytes_max: Some(1), ..config() };
        let memory: Device = Memory::new(64 * u64::from(SEGMENT_BYTES));
        let rig = Rig::new(little, vec![device(3, memory)], &DISKS, &world).await;
        for part in 0..3000 {
            rig.offer(0, part * 4..part * 4 + 1, FillCause::ReadMiss);
            for _ in 0..4 {
                yield_now().await;
            }
            assert!(rig.member().entries() <= 512);
        }
        let counters = rig.counters();
        assert!(counters["fills"] > 2500, "{counters:?}");
        assert!(counters["reclaims"] > 5 && rig.member().segments().free > 20, "for want of entries, not of flash");
        assert!(rig.member().entries() > 300);
    });
}

#[test]
fn what_was_asked_for_is_hot() {
    run(|world| async move {
        let rig = Rig::new(config(), vec![fresh(3), fresh(4)], &DISKS, &world).await;
        for disk in [0, 1] {
            rig.offer_all(disk, 0..10).await;
        }
        for (disk, block, times) in [(0, 3, 1), (0, 9, 5), (1, 2, 2), (1, 1, 2)] {
            assert!((0..times).all(|_| rig.hit(disk, block)));
        }
        let hot = |disk, block, heat| HotBlock { disk, block, heat };
        let mut all = Vec::new();
        for index in 0..2 {
            let blocks = rig.cache.hot_blocks(index).await;
            assert!(blocks.windows(2).all(|pair| pair[0].heat >= pair[1].heat), "hottest first");
            all.extend(blocks);
        }
        flashcache::hot::in_heat_order(&mut all);
        assert_eq!(all, [hot(7, 9, 3), hot(8, 1, 2), hot(8, 2, 2), hot(7, 3, 1)]);
        let entries = rig.member().memory_need().entries_max;
        assert!(entries < HOT_BLOCKS_MAX as u64);
        assert_eq!(rig.member().hot_list_bytes_max(), entries * 24);
        rig.member().fail("a test".to_owned());
        assert_eq!(rig.cache.hot_blocks(0).await, []);
        assert_eq!(rig.cache.hot_blocks(2).await, []);
    });
}

#[test]
fn a_device_has_to_be_large_enough_and_of_a_shape_that_works() {
    let geometry = |segments: u64, page_bytes| Geometry {
        size_bytes: segments * u64::from(SEGMENT_BYTES),
        logical_bytes: 512,
        page_bytes,
        rotational: false,
        volatile_cache: false,
        discard_bytes: 0,
        fast_zeroes: false,
        transfer_bytes_max: 1 << 20,
        class: Class::Durable,
    };
    let check = |segments, page_bytes, segment_bytes, block_bytes: u64| {
        check_area(&geometry(segments, page_bytes), segment_bytes, block_bytes as u32)
    };
    assert_eq!(check(8, 4096, SEGMENT_BYTES, BLOCK_BYTES), Ok(()));
    let need = 8 * u64::from(SEGMENT_BYTES);
    assert_eq!(check(7, 4096, SEGMENT_BYTES, BLOCK_BYTES), Err(MemberError::TooSmall(need - need / 8, need)));
    for (page_bytes, segment_bytes, block_bytes, works) in [
        (512, SEGMENT_BYTES, BLOCK_BYTES, true),
        (16 << 10, SEGMENT_BYTES, BLOCK_BYTES, true),
        (32 << 10, SEGMENT_BYTES, BLOCK_BYTES, false),
        (64 << 10, 1 << 20, BLOCK_BYTES, true),
        (128 << 10, 4 << 20, BLOCK_BYTES, false),
        (12 << 10, 1 << 20, BLOCK_BYTES, false),
        (4096, 32 << 10, 4096, false),
        (4096, 64 << 10, 4096, true),
        (4096, 64 << 10, 32 << 10, true),
        (4096, 64 << 10, 64 << 10, false),
        (4096, 128 << 20, BLOCK_BYTES, false),
        (4096, 192 << 10, BLOCK_BYTES, false),
        (4096, SEGMENT_BYTES, 2048, false),
        (4096, SEGMENT_BYTES, 128 << 10, false),
        (4096, SEGMENT_BYTES, 12 << 10, false),
    ] {
        let result = check(1000, page_bytes, segment_bytes, block_bytes);
        assert_eq!(result.is_ok(), works, "{page_bytes} {segment_bytes} {block_bytes}: {result:?}");
    }
    assert!(check(64 * 16, 4096, 64 << 20, BLOCK_BYTES).is_err(), "four segments of 64 MiB");
}

#[test]
fn a_cache_has_one_to_64_members() {
    run(|world| async move {
        for (count, opens) in [(0_u128, false), (1, true), (64, true), (65, false)] {
            let small = || -> Device { Memory::new(8 * (64 << 10)) };
            let members = (0..count).map(|id| device(id, small())).collect();
            let config = CacheConfig { segment_bytes: 64 << 10, staging_bytes: 64 << 10, ..config() };
            let opened = FlashCache::open(config, members, &DISKS[..1], world.clone()).await;
            assert_eq!(opened.is_ok(), opens, "{count}");
        }
    });
}
