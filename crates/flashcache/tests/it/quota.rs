//! Goal: what a database may have of the cache is what it has: a size is never exceeded, a limit not while the cache is full, what is
//! guaranteed stays under a flood, and the tally is what the index holds whatever happens. Method: a cache on a memory device, filled
//! by hand on behalf of two databases, looked at after every step; each claim has a control arm, and one broken build.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use device::layers::Memory;
use device::spawn::yield_now;
use device::{Arena, Bufs, Clock, Device, World};
use flashcache::format::Owner;
use flashcache::{
    CacheConfig, CachedDisk, DestagedList, DirtyRefused, DiskHandle, FillCause, FlashCache, Member, MemberDevice,
    Quota, Residence, RunLimits, Sabotage, Stretch, Tenant,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const BLOCK_PARTS: u64 = 4;
const BLOCK_BYTES: u64 = 16 << 10;
const SEGMENT_BYTES: u32 = 256 << 10;
const SEGMENTS: u64 = 64;
/// Blocks that a segment of 64 pages holds: a header, a footer, 15 blocks.
const SEGMENT_BLOCKS: u64 = 15;
/// Blocks the whole cache holds.
const BLOCKS: u64 = SEGMENTS * SEGMENT_BLOCKS;

struct Rig {
    cache: Arc<FlashCache>,
    a: DiskHandle,
    b: DiskHandle,
    nobody: DiskHandle,
    data: Bufs,
    world: World,
    device: Device,
    /// What A may have, checked after every step.
    cap: Option<u64>,
}

fn tenant(number: u8) -> Tenant {
    Tenant::new(number).unwrap()
}

fn of_a() -> Quota {
    Quota { tenants: [tenant(1)].into_iter().collect(), min_bytes: 0, limit_bytes: None, size_bytes: None }
}

fn parts(block: u64) -> Range<u64> {
    block * BLOCK_PARTS..(block + 1) * BLOCK_PARTS
}

impl Rig {
    async fn new(world: World) -> Rig {
        Rig::on(Memory::new(SEGMENTS * u64::from(SEGMENT_BYTES)), None, world).await
    }

    async fn on(device: Device, sabotage: Option<Sabotage>, world: World) -> Rig {
        let chunk_age = Duration::from_millis(1);
        let config = CacheConfig { segment_bytes: SEGMENT_BYTES, chunk_age, sabotage, ..CacheConfig::default() };
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let members =
            vec![MemberDevice { device: device.clone(), owner, life: next_life(), durable: true, checkpoint: None }];
        let disk = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
        let (cache, _) = FlashCache::open(config, members, &[disk], world.clone()).await.unwrap();
        let nobody = cache.disk(disk);
        let (a, b) = (nobody.of(tenant(1)), nobody.of(tenant(2)));
        let data = Arena::new(1 << 20).alloc(BLOCK_BYTES as usize).await;
        Rig { cache, a, b, nobody, data, world, device, cap: None }
    }

    fn set(&self, quota: Option<Quota>) {
        self.cache.config().quotas.set(quota.into_iter().collect());
    }

    fn member(&self) -> Arc<Member> {
        self.cache.members().next().unwrap().clone()
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.member().counters.snapshot().into_iter().collect()
    }

    fn blocks_of(&self, number: u8) -> u64 {
        self.cache.tenant_bytes(tenant(number)) / BLOCK_BYTES
    }

    fn check(&self) {
        assert!(self.cap.is_none_or(|cap| self.blocks_of(1) <= cap), "{} blocks", self.blocks_of(1));
    }

    async fn offer(&self, disk: &DiskHandle, block: u64) {
        let data = self.data.view(0..BLOCK_BYTES as usize);
        self.cache.fill(disk, parts(block), data, FillCause::ReadMiss, self.cache.membership());
        for _ in 0..4 {
            yield_now().await;
            self.check();
        }
        self.until(|rig| rig.member().segments().free > 3).await;
    }

    async fn offer_all(&self, disk: &DiskHandle, blocks: Range<u64>) {
        for block in blocks {
            self.offer(disk, block).await;
        }
        assert_eq!(self.cache.miscounted(), None);
    }

    fn hit(&self, disk: &DiskHandle, block: u64) -> bool {
        self.cache.lookup(disk, parts(block)).iter().all(|stretch| matches!(stretch, Stretch::Hit(_)))
    }

    fn hit_all(&self, blocks: Range<u64>) {
        for block in blocks {
            self.hit(&self.a, block);
        }
    }

    /// Without counting a hit.
    fn there(&self, blocks: Range<u64>) -> u64 {
        let is_there = |block: &u64| self.cache.residence(&self.a, parts(*block)) == [(BLOCK_PARTS, Residence::Cached)];
        blocks.filter(is_there).count() as u64
    }

    async fn until(&self, done: impl Fn(&Rig) -> bool) {
        for _ in 0..10_000 {
            if done(self) {
                return;
            }
            let clock: &Arc<dyn Clock> = &self.world.clock;
            clock.sleep(Duration::from_millis(1)).await;
            self.check();
        }
        panic!("it does not come to that: {:?}", self.member());
    }
}

#[test]
fn a_size_is_never_exceeded_and_what_is_hot_stays() {
    run(|world| async move {
        let mut rig = Rig::new(world).await;
        rig.set(Some(Quota { size_bytes: Some(100 * BLOCK_BYTES), ..of_a() }));
        rig.cap = Some(100);
        rig.offer_all(&rig.b, 100_000..100_300).await;
        rig.offer_all(&rig.a, 0..50).await;
        for round in 0..20 {
            rig.hit_all(0..50);
            rig.offer_all(&rig.a, 1000 + round * 50..1050 + round * 50).await;
        }
        let (counters, hot) = (rig.counters(), rig.there(0..50));
        assert!(counters["quota_evictions"] >= 800, "{counters:?}");
        assert!((80..=100).contains(&rig.blocks_of(1)), "it uses what it has: {}", rig.blocks_of(1));
        assert!(hot >= 40, "{hot} of 50 that were asked for again and again");
        // What A has made of segments is reclaimed before others give up theirs: 1350 blocks were written, 960 fit.
        rig.offer_all(&rig.a, 5000..6000).await;
        assert_eq!(rig.there(100_000..100_300), 300, "B has room: {counters:?}");
        rig.cap = None;
        rig.set(None);
        rig.offer_all(&rig.a, 7000..7300).await;
        assert!(rig.blocks_of(1) >= 300, "it grows again: {}", rig.blocks_of(1));
    });
}

#[test]
fn a_lower_size_counts_at_once() {
    run(|world| async move {
        let mut rig = Rig::new(world).await;
        rig.offer_all(&rig.a, 0..400).await;
        (0..3).for_each(|_| rig.hit_all(0..400));
        rig.offer_all(&rig.b, 1000..1100).await;
        assert_eq!((rig.blocks_of(1), rig.blocks_of(2)), (400, 100));
        rig.set(Some(Quota { size_bytes: Some(64 * BLOCK_BYTES), ..of_a() }));
        rig.until(|rig| rig.blocks_of(1) <= 64).await;
        rig.cap = Some(64);
        assert!(rig.blocks_of(1) >= 60 && rig.blocks_of(2) == 100);
        assert_eq!(rig.cache.miscounted(), None);
        rig.offer_all(&rig.a, 2000..2200).await;
        // What has left does not come back.
        rig.cache.stop().await;
        let again = Rig::on(rig.device.clone(), None, rig.world.clone()).await;
        assert!(again.there(0..3000) <= 164, "{}", again.there(0..3000));
    });
}

#[test]
fn a_limit_counts_while_the_cache_is_full() {
    run(|world| async move {
        let rig = Rig::new(world).await;
        rig.set(Some(Quota { limit_bytes: Some(200 * BLOCK_BYTES), ..of_a() }));
        rig.offer_all(&rig.a, 0..600).await;
        assert_eq!(rig.blocks_of(1), 600, "there is room for all of it");
        rig.offer_all(&rig.b, 10_000..10_000 + BLOCKS / 2).await;
        rig.until(|rig| rig.blocks_of(1) <= 200).await;
        assert!(rig.blocks_of(1) >= 100, "it is not emptied: {}", rig.blocks_of(1));
        let mut rig = rig;
        rig.cap = Some(200);
        rig.offer_all(&rig.a, 1000..1500).await;
        assert!(rig.counters()["quota_evictions"] > 400);
    });
}

#[test]
fn what_is_guaranteed_stays_under_a_flood() {
    let left = |min_bytes: u64| {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(|world| async move {
            let rig = Rig::new(world).await;
            rig.set(Some(Quota { min_bytes, ..of_a() }));
            // Among each other, so that segments hold both.
            for n in 0..400 {
                rig.offer(&rig.a, n).await;
                rig.offer(&rig.b, 20_000 + n).await;
            }
            rig.offer_all(&rig.b, 30_000..30_000 + 10 * BLOCKS).await;
            sender.send((rig.blocks_of(1), rig.there(0..400), rig.counters())).unwrap();
        });
        receiver.recv().unwrap()
    };
    let (blocks, there, counters) = left(400 * BLOCK_BYTES);
    assert_eq!((blocks, there), (400, 400), "{counters:?}");
    assert!(counters["quota_moves"] > 0 && counters["quota_overwrites"] == 0, "{counters:?}");
    let (blocks, there, counters) = left(200 * BLOCK_BYTES);
    assert!((200..=216).contains(&blocks) && there == blocks, "no more than that: {blocks}, {counters:?}");
    let (blocks, ..) = left(0);
    assert_eq!(blocks, 0, "the control arm");
}

#[test]
fn four_fifths_can_be_guaranteed_whatever_others_do() {
    run(|world| async move {
        let rig = Rig::new(world).await;
        let mine = BLOCKS * 7 / 10;
        rig.set(Some(Quota { min_bytes: mine * BLOCK_BYTES, ..of_a() }));
        rig.offer_all(&rig.a, 0..mine).await;
        rig.offer_all(&rig.b, 30_000..30_000 + 10 * BLOCKS).await;
        let counters = rig.counters();
        assert_eq!(rig.blocks_of(1), mine, "{counters:?}");
        assert!(counters["quota_keeps"] > 0 && rig.blocks_of(2) > 60, "others come and go: {counters:?}");
    });
}

#[test]
fn dirty_data_keeps_to_the_size_and_is_overwritten_as_before() {
    run(|world| async move {
        let mut rig = Rig::new(world).await;
        rig.set(Some(Quota { size_bytes: Some(100 * BLOCK_BYTES), ..of_a() }));
        rig.cap = Some(100);
        let data = Arena::new(1 << 20).alloc(BLOCK_BYTES as usize).await.freeze();
        rig.offer_all(&rig.a, 1000..1060).await;
        for block in 0..100 {
            let taken = rig.cache.write_dirty(&rig.a, parts(block), &data, false).await;
            // A hand that finds nothing near refuses one write.
            if taken == Err(DirtyRefused::NoRoom) {
                rig.cache.write_dirty(&rig.a, parts(block), &data, false).await.unwrap();
            }
            rig.check();
        }
        assert_eq!((rig.blocks_of(1), rig.there(1000..1060)), (100, 0), "what is clean has made room");
        assert_eq!(rig.cache.write_dirty(&rig.a, parts(100), &data, false).await, Err(DirtyRefused::NoRoom));
        assert!(rig.counters()["dirty_skips_quota"] > 0);
        for disk in [rig.a, rig.b, rig.nobody] {
            rig.cache.write_dirty(&disk, parts(7), &data, true).await.unwrap();
        }
        assert_eq!(rig.blocks_of(1), 100, "whoever overwrites it, it takes the same room");
        rig.cache.write_dirty(&rig.a, parts(8), &data, false).await.unwrap();
        rig.cache.write_dirty(&rig.b, parts(200), &data, false).await.unwrap();
        assert_eq!((rig.blocks_of(1), rig.blocks_of(2), rig.cache.miscounted()), (100, 1, None));
        rig.cap = None;
        rig.cache.write_dirty(&rig.a.beyond_size(), parts(300), &data, false).await.unwrap();
        assert_eq!(rig.blocks_of(1), 101, "where it can go nowhere else");
    });
}

#[test]
fn after_a_restart_a_block_is_whose_who_asks_for_it() {
    run(|world| async move {
        let rig = Rig::new(world).await;
        rig.offer_all(&rig.a, 0..50).await;
        rig.cache.stop().await;
        let rig = Rig::on(rig.device.clone(), None, rig.world.clone()).await;
        assert_eq!((rig.blocks_of(1), rig.there(0..50)), (0, 50));
        rig.set(Some(Quota { size_bytes: Some(20 * BLOCK_BYTES), ..of_a() }));
        (0..30).for_each(|block| assert!(rig.hit(&rig.a, block)));
        (10..40).for_each(|block| assert!(rig.hit(&rig.b, block)));
        assert_eq!((rig.blocks_of(1), rig.blocks_of(2)), (20, 20), "as much as A may have, and what was nobody's then");
        assert_eq!(rig.cache.miscounted(), None);
        rig.cache.disown(tenant(2)).await;
        assert_eq!((rig.blocks_of(2), rig.cache.miscounted()), (0, None));
    });
}

#[test]
fn a_build_that_forgets_whose_a_block_is_when_it_moves_is_caught() {
    let miscounted = |sabotage| {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(|world| async move {
            let rig = Rig::on(Memory::new(SEGMENTS * u64::from(SEGMENT_BYTES)), sabotage, world).await;
            for n in 0..3 * BLOCKS {
                rig.offer(&rig.a, n).await;
                rig.hit_all(0..60);
            }
            assert!(rig.counters()["moves"] > 0);
            sender.send(rig.cache.miscounted().is_some()).unwrap();
        });
        receiver.recv().unwrap()
    };
    assert!(miscounted(Some(Sabotage::TenantLostWhenMoved)));
    assert!(!miscounted(None));
}

#[test]
fn what_was_too_much_and_dirty_leaves_once_the_disk_has_it() {
    run(|world| async move {
        let rig = Rig::new(world).await;
        let data = Arena::new(1 << 20).alloc(BLOCK_BYTES as usize).await.freeze();
        for block in 0..20 {
            rig.cache.write_dirty(&rig.a, parts(block), &data, false).await.unwrap();
        }
        rig.set(Some(Quota { size_bytes: Some(10 * BLOCK_BYTES), ..of_a() }));
        // As long as the search for what may leave takes.
        for _ in 0..2000 {
            yield_now().await;
        }
        assert_eq!(rig.blocks_of(1), 20, "nobody else has it");
        let limits = RunLimits { parts_max: 1000, runs_max: 100, run_parts_max: 64 };
        let (mut runs, next) = rig.cache.dirty_runs(0, &rig.a, 0, limits);
        assert_eq!((runs.iter().map(|run| run.parts.end - run.parts.start).sum::<u64>(), next), (80, None));
        rig.cache.prepare_destage(0).await.unwrap();
        let mut list = DestagedList::default();
        runs.iter_mut().for_each(|run| assert!(rig.cache.confirm_current(run)));
        runs.iter().for_each(|run| list.push(run));
        drop(runs);
        rig.cache.commit_destaged(0, &list).await.unwrap();
        rig.until(|rig| rig.blocks_of(1) <= 10).await;
        assert_eq!(rig.cache.miscounted(), None);
    });
}

#[test]
fn what_is_too_much_leaves_coldest_first() {
    run(|world| async move {
        let rig = Rig::new(world).await;
        rig.offer_all(&rig.a, 0..40).await;
        (0..3).for_each(|_| (0..40).step_by(4).for_each(|block| assert!(rig.hit(&rig.a, block))));
        rig.set(Some(Quota { size_bytes: Some(10 * BLOCK_BYTES), ..of_a() }));
        rig.until(|rig| rig.blocks_of(1) <= 10).await;
        let left: Vec<u64> = (0..40).filter(|block| rig.there(*block..*block + 1) == 1).collect();
        assert_eq!(left, (0..40).step_by(4).collect::<Vec<_>>());
    });
}
