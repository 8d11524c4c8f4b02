//! Goal: what may not be what the disk has is not shown until it has been compared, comparing takes back what is good and ends what is not,
//! and marks say for how long. Method: a cache on a memory device, parts filled by hand, writes that no flush covers, flushes that fail,
//! crashes.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use device::io::{FailKind, Verb};
use device::layers::{Action, Fault, Faults, Memory, Trace};
use device::{Buf, Device, SharedBufs, World};
use flashcache::format::Owner;
use flashcache::{
    CacheConfig, CachedDisk, DiskHandle, FillCause, FlashCache, Member, MemberDevice, PART_BYTES, Residence,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const SEGMENT_BYTES: u32 = 256 << 10;
const DISK: CachedDisk = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };

struct Rig {
    cache: Arc<FlashCache>,
    disk: DiskHandle,
    memory: Arc<Memory>,
    faults: Arc<Faults>,
    world: World,
}

/// What the disk has: each part its number.
fn data(parts: Range<u64>) -> SharedBufs {
    let bytes: Vec<u8> = parts.flat_map(|part| part.to_le_bytes().repeat(PART_BYTES as usize / 8)).collect();
    SharedBufs::from(Buf::padded(&bytes, 4096).freeze())
}

impl Rig {
    async fn new(block_bytes: u32, world: World) -> Rig {
        Rig::on(Memory::new(32 * u64::from(SEGMENT_BYTES)), block_bytes, world).await
    }

    async fn on(memory: Arc<Memory>, block_bytes: u32, world: World) -> Rig {
        let chunk_age = Duration::from_millis(1);
        let config = CacheConfig { segment_bytes: SEGMENT_BYTES, block_bytes, chunk_age, ..CacheConfig::default() };
        let faults = Faults::new(memory.clone() as Device, world.spawn.clone());
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let members =
            vec![MemberDevice { device: faults.clone(), owner, life: next_life(), durable: true, checkpoint: None }];
        let (cache, _) = FlashCache::open(config, members, &[DISK], world.clone()).await.unwrap();
        let disk = cache.disk(DISK);
        Rig { cache, disk, memory, faults, world }
    }

    /// The process dies, and another opens the device as it is.
    async fn again(self) -> Rig {
        let gone = Action::Fail(FailKind::Gone);
        let block_bytes = self.member().block_bytes();
        self.faults.add(Fault { verbs: Vec::new(), range: None, skip: 0, count: u64::MAX, action: gone });
        self.cache.stop().await;
        Rig::on(self.memory, block_bytes, self.world).await
    }

    fn member(&self) -> &Arc<Member> {
        self.cache.members().next().unwrap()
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.member().counters.snapshot().into_iter().collect()
    }

    fn fill(&self, parts: Range<u64>) {
        let data = data(parts.clone());
        let view = data.view(0..data.len_bytes());
        self.cache.fill(&self.disk, parts, view, FillCause::ReadMiss, self.cache.membership());
    }

    /// A write that the disk has perhaps not: its region is marked.
    async fn write(&self, part: u64) {
        let ticket = self.cache.begin_write(&self.disk, part..part + 1).await.unwrap();
        self.cache.end_write(ticket);
    }

    fn revalidate(&self, parts: Range<u64>, found: &SharedBufs) {
        self.cache.revalidate(&self.disk, parts, found.view(0..found.len_bytes()));
    }

    /// Parts that are shown.
    fn shown(&self, parts: Range<u64>) -> Vec<u64> {
        parts.filter(|p| self.cache.residence(&self.disk, *p..p + 1) == [(1, Residence::Cached)]).collect()
    }

    /// Doubted parts, from and to, by region.
    fn doubted(&self) -> Vec<(u64, Vec<(u64, u64)>)> {
        let ends = |at| self.cache.suspect_parts(at).into_iter().map(|parts| (parts.start, parts.end)).collect();
        self.cache.suspects(&self.disk).into_iter().map(|at| (at.1.key.region, ends(at))).collect()
    }

    fn settle_list(&self) -> flashcache::SettleList {
        self.cache.settle_list(&self.disk, &self.cache.epochs(), usize::MAX)
    }
}

#[test]
fn comparing_takes_back_what_is_good_and_ends_what_is_not() {
    run(|world| async move {
        let rig = Rig::new(16 << 10, world).await;
        // Two whole blocks and half of one, alone; and one of another region.
        for parts in [0..4, 4..8, 13..15, 100..104, 300..304] {
            rig.fill(parts);
        }
        rig.write(40).await;
        rig.cache.distrust(&rig.disk);
        assert_eq!(rig.shown(0..400), (300..304).collect::<Vec<_>>(), "its region was not written to");
        assert_eq!(rig.doubted(), [(0, vec![(0, 8), (13, 15), (100, 104)])]);
        assert_eq!(rig.cache.suspect_bytes(), 1 << 20);
        // Less than a block says nothing of it.
        rig.revalidate(0..3, &data(0..3));
        assert_eq!((rig.counters()["revalidated_good"], rig.counters()["revalidated_stale"]), (0, 0));
        // The disk has something else in part 5.
        let mut found = data(0..8).to_vec(0..8 * 4096);
        found[5 * 4096 + 77] ^= 1;
        rig.revalidate(0..8, &SharedBufs::from(Buf::padded(&found, 4096).freeze()));
        assert_eq!((rig.counters()["revalidated_good"], rig.counters()["revalidated_stale"]), (1, 1));
        assert_eq!(rig.shown(0..100), [0, 1, 2, 3, 4, 6, 7]);
        rig.revalidate(12..16, &data(12..16));
        rig.revalidate(101..104, &data(101..104));
        assert_eq!(rig.doubted(), [(0, vec![(100, 104)])]);
        rig.revalidate(100..104, &data(100..104));
        assert_eq!((rig.counters()["revalidated_good"], rig.counters()["revalidated_stale"]), (3, 1));
        assert_eq!(rig.shown(0..200), [0, 1, 2, 3, 4, 6, 7, 13, 14, 100, 101, 102, 103]);
        let listed = rig.cache.suspects(&rig.disk);
        rig.cache.trusted(listed[0]);
        assert_eq!((listed.len(), rig.cache.suspect_bytes()), (1, 0));
        // What is offered anew is compared as well: the same is taken back by whoever compares, another replaces it.
        rig.cache.distrust(&rig.disk);
        let mut other = data(100..104).to_vec(0..4 * 4096);
        other[0] ^= 1;
        let other = SharedBufs::from(Buf::padded(&other, 4096).freeze());
        rig.cache.fill(&rig.disk, 100..104, other.view(0..4 * 4096), FillCause::ReadMiss, rig.cache.membership());
        assert_eq!(rig.counters()["revalidated_stale"], 2);
        assert_eq!(rig.shown(100..104), [100], "three are as they were, and still doubted");
    });
}

#[test]
fn coarse_and_fine_blocks_are_doubted_by_region() {
    for block_bytes in [4096, 64 << 10] {
        run(move |world| async move {
            let rig = Rig::new(block_bytes, world).await;
            let block = u64::from(block_bytes) / PART_BYTES;
            for first in [0, 256 - block, 256, 512 - block, 512] {
                rig.fill(first..first + block);
            }
            rig.write(300).await;
            rig.cache.distrust(&rig.disk);
            assert_eq!(rig.doubted(), [(1, vec![(256, 256 + block), (512 - block, 512)])]);
            assert_eq!(rig.shown(0..600).len() as u64, 3 * block);
        });
    }
}

#[test]
fn after_a_crash_marked_regions_are_doubted_and_settled_ones_are_not() {
    run(|world| async move {
        let rig = Rig::new(16 << 10, world).await;
        for parts in [0..4, 300..304, 600..604] {
            rig.fill(parts);
        }
        rig.write(40).await;
        rig.write(340).await;
        assert_eq!((rig.member().regions().len(), rig.counters()["marks"]), (2, 2));
        rig.write(341).await;
        assert_eq!(rig.counters()["marks"], 2, "once for a region");
        // Of the three only what was written before is settled.
        let before = rig.cache.epochs();
        rig.write(41).await;
        let list = rig.cache.settle_list(&rig.disk, &before, usize::MAX);
        assert!(!list.is_empty());
        rig.write(342).await;
        assert_eq!(rig.cache.settle(list).await, 0, "it has been written to meanwhile");
        assert_eq!(rig.cache.settle(rig.cache.settle_list(&rig.disk, &rig.cache.epochs(), 1)).await, 1);
        assert_eq!((rig.counters()["settles"], rig.member().regions().len()), (1, 1));
        assert!(rig.cache.settle_list(&rig.disk, &before, usize::MAX).is_empty(), "the other was written to since");
        // A write under way is not settled.
        let ticket = rig.cache.begin_write(&rig.disk, 343..344).await.unwrap();
        assert!(rig.settle_list().is_empty());
        rig.cache.sync_all().await.unwrap();
        rig.cache.end_write(ticket);

        let rig = rig.again().await;
        assert_eq!(rig.shown(0..1000), (0..4).chain(600..604).collect::<Vec<_>>());
        assert_eq!(rig.doubted(), [(1, vec![(300, 304)])]);
        assert!(rig.settle_list().is_empty(), "not before it has been compared");
        rig.revalidate(300..304, &data(300..304));
        let at = rig.cache.suspects(&rig.disk)[0];
        // Doubted anew since it was listed.
        rig.cache.distrust(&rig.disk);
        rig.cache.trusted(at);
        assert_eq!(rig.doubted(), [(1, vec![(300, 304)])]);
        rig.revalidate(300..304, &data(300..304));
        rig.cache.trusted(rig.cache.suspects(&rig.disk)[0]);
        assert_eq!((rig.doubted(), rig.shown(0..1000).len()), (vec![], 12));
        assert_eq!(rig.cache.settle(rig.settle_list()).await, 1);
        assert!(rig.member().regions().is_empty());
        rig.cache.sync_all().await.unwrap();
        let rig = rig.again().await;
        assert_eq!((rig.doubted(), rig.shown(0..1000).len()), (vec![], 12));
    });
}

#[test]
fn a_write_over_regions_marks_each_and_ends_copies_of_its_parts_alone() {
    run(|world| async move {
        let rig = Rig::new(16 << 10, world).await;
        for parts in [252..256, 256..260, 508..512, 512..516] {
            rig.fill(parts);
        }
        let ticket = rig.cache.begin_write(&rig.disk, 255..513).await.unwrap();
        assert_eq!((rig.member().regions().len(), rig.counters()["marks"]), (3, 3));
        assert_eq!(rig.shown(0..600), [252, 253, 254, 513, 514, 515]);
        assert_eq!(rig.counters()["invalidations"], 4);
        rig.cache.end_write(ticket);
        assert_eq!(rig.cache.settle(rig.settle_list()).await, 3);
        rig.cache.sync_all().await.unwrap();
        let rig = rig.again().await;
        assert_eq!(rig.shown(0..600), [252, 253, 254, 513, 514, 515], "they stay dead over a crash");
    });
}

/// On a device that discards, the page of a lost write may read as what was written, and the next time as something else: what is believed
/// of it is written again, whole.
#[test]
fn what_is_not_known_to_be_durable_and_is_believed_is_written_again() {
    run(|world| async move {
        let rig = Rig::new(16 << 10, world.clone()).await;
        let data = data(0..4);
        rig.cache.write_dirty(&rig.disk, 0..4, &data, false).await.unwrap();
        let trace = Trace::new(rig.memory.clone(), world.clock.clone(), 1000);
        let gone = Action::Fail(FailKind::Gone);
        rig.faults.add(Fault { verbs: Vec::new(), range: None, skip: 0, count: u64::MAX, action: gone });
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let members =
            vec![MemberDevice { device: trace.clone(), owner, life: next_life(), durable: true, checkpoint: None }];
        let config = CacheConfig { segment_bytes: SEGMENT_BYTES, ..CacheConfig::default() };
        let (_, recovered) = FlashCache::open(config, members, &[DISK], world).await.unwrap();
        assert_eq!(recovered[0].as_ref().unwrap().dirty_parts, 4);
        let writes: Vec<(u64, u64)> =
            trace.recent().into_iter().filter(|op| op.verb == Verb::Write).map(|op| (op.offset, op.len)).collect();
        assert_eq!(writes[..2], [(0, 4096), (4096, 16 << 10)], "the header, and the data in one");
    });
}
