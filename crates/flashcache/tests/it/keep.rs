//! Goal: KEEP data stays as long as it is used, within its share, and nothing stalls when it and dirty data are both at their
//! limit; NONE ranges are not served and come free. Method: a cache on memory devices, filled by hand, with a clock that is
//! moved on; the keep head is looked after whenever the operator's word changes, so tests wait for nothing else.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use crate::shifted::Shifted;
use device::layers::Memory;
use device::spawn::yield_now;
use device::{Arena, Bufs, Device, Instant, World};
use flashcache::format::Owner;
use flashcache::{
    CacheConfig, CachedDisk, DestagedList, DirtyRefused, DiskHandle, FillCause, FlashCache, Member, MemberDevice,
    Residence, RunLimits, Stretch, Worth, WorthMap,
};
use futures_util::future::{Either, select};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK_PARTS: u64 = 4;
const SEGMENT_BYTES: u32 = 256 << 10;
const SEGMENTS: u64 = 64;
/// Blocks of 16 KiB that a segment of 64 pages holds: a header, a footer, 15 blocks.
const SEGMENT_BLOCKS: u64 = 15;
const DAY: Duration = Duration::from_secs(24 * 3600);

struct Rig {
    cache: Arc<FlashCache>,
    /// With KEEP data, and without.
    keep: DiskHandle,
    other: DiskHandle,
    data: Bufs,
    clock: Shifted,
    world: World,
    device: Device,
}

impl Rig {
    async fn new(segments: u64, world: World) -> Rig {
        Rig::on(Memory::new(segments * u64::from(SEGMENT_BYTES)), world).await
    }

    async fn on(device: Device, mut world: World) -> Rig {
        let clock = Shifted { below: world.clock.clone(), by_ns: Arc::default() };
        world.clock = Arc::new(clock.clone());
        let chunk_age = Duration::from_millis(1);
        let config = CacheConfig { segment_bytes: SEGMENT_BYTES, chunk_age, ..CacheConfig::default() };
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let members =
            vec![MemberDevice { device: device.clone(), owner, life: next_life(), durable: true, checkpoint: None }];
        let disks = [7, 8].map(|id| CachedDisk { id, generation: 1, home: 1, is_home_there: true });
        let (cache, _) = FlashCache::open(config, members, &disks, world.clone()).await.unwrap();
        let [keep, other] = disks.map(|disk| cache.disk(disk));
        Rig { cache, keep, other, data: Arena::new(1 << 20).alloc(16 << 10).await, clock, world, device }
    }

    fn member(&self) -> Arc<Member> {
        self.cache.members().next().unwrap().clone()
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.member().counters.snapshot().into_iter().collect()
    }

    async fn offer(&self, disk: &DiskHandle, block: u64) {
        let data = self.data.view(0..16 << 10);
        self.cache.fill(disk, parts(block), data, FillCause::ReadMiss, self.cache.membership());
        for _ in 0..4 {
            yield_now().await;
        }
        // Reclaim keeps up: what is refused for want of space is another test's matter.
        self.until(|rig| rig.member().segments().free > 3).await;
    }

    async fn offer_all(&self, disk: &DiskHandle, blocks: Range<u64>) {
        for block in blocks {
            self.offer(disk, block).await;
        }
    }

    /// Traffic that is worth the main head: more blocks than there is room for, again and again.
    async fn ask_for_others(&self, times: u64) {
        for block in (0..times * SEGMENTS * SEGMENT_BLOCKS).map(|n| n % (SEGMENTS * SEGMENT_BLOCKS * 3 / 2)) {
            if !self.holds(&self.other, block) {
                self.offer(&self.other, block).await;
            }
        }
    }

    fn holds(&self, disk: &DiskHandle, block: u64) -> bool {
        self.cache.lookup(disk, parts(block)).iter().all(|stretch| matches!(stretch, Stretch::Hit(_)))
    }

    /// Without counting a hit.
    fn count(&self, disk: &DiskHandle, blocks: Range<u64>, wanted: Residence) -> usize {
        blocks.filter(|&block| self.cache.residence(disk, parts(block)) == [(BLOCK_PARTS, wanted)]).count()
    }

    async fn until(&self, done: impl Fn(&Rig) -> bool) {
        for _ in 0..10_000 {
            if done(self) {
                return;
            }
            let below = &self.clock.below;
            below.sleep_until(Instant(below.now().0 + 1_000_000)).await;
        }
        panic!("it does not come to that: {:?}", self.member());
    }

    /// Have the keep head looked after: the worth of a block that does not matter changes.
    async fn look(&self, whole: Worth, ranges: Vec<(Range<u64>, Worth)>, far: u64) {
        let mut ranges = ranges;
        ranges.push((1 << 40..(1 << 40) + far, Worth::Keep));
        self.cache.set_worth(&self.keep, WorthMap::new(whole, ranges));
        for _ in 0..400 {
            yield_now().await;
        }
    }
}

fn parts(block: u64) -> Range<u64> {
    block * BLOCK_PARTS..(block + 1) * BLOCK_PARTS
}

#[test]
fn default_traffic_never_evicts_what_is_kept() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.cache.set_worth(&rig.keep, WorthMap::new(Worth::Default, vec![(0..200 * BLOCK_PARTS, Worth::Keep)]));
        let is_keep = [(&rig.keep, 199), (&rig.keep, 200), (&rig.other, 0)];
        assert_eq!(is_keep.map(|(disk, block)| rig.cache.is_keep(disk, &parts(block))), [true, false, false]);
        rig.offer_all(&rig.keep, 0..200).await;
        rig.offer_all(&rig.other, 0..SEGMENTS * SEGMENT_BLOCKS * 4).await;
        assert_eq!(rig.count(&rig.keep, 0..200, Residence::Kept), 200);
        let counters = rig.counters();
        assert!(counters["evictions"] > 1000, "there was a reason to evict: {counters:?}");
        assert_eq!((counters["keep_fills"], counters["keep_overwritten_bytes"]), (200 * BLOCK_PARTS, 0));
        assert_eq!(rig.member().keep_usage().used_bytes, 200 * (16 << 10));
    });
}

#[test]
fn keep_takes_four_fifths_and_goes_with_the_others_beyond() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.cache.set_worth(&rig.keep, WorthMap::new(Worth::Keep, Vec::new()));
        let blocks = SEGMENTS * SEGMENT_BLOCKS * 2;
        rig.offer_all(&rig.keep, 0..blocks).await;
        let (segments, most) = rig.member().keep_segments();
        assert_eq!((segments, most), (51, SEGMENTS as usize * 4 / 5));
        let counters = rig.counters();
        assert!(counters["keep_skips_share"] > 0 && counters["fills"] > counters["keep_fills"], "{counters:?}");
        // Those that came first are kept; those that came last went with the others.
        assert_eq!(rig.count(&rig.keep, 0..700, Residence::Kept), 700);
        assert_eq!(rig.count(&rig.keep, blocks - 1..blocks, Residence::Cached), 1);
        // The rest of the cache is still there for others.
        rig.offer_all(&rig.other, 0..500).await;
        assert_eq!(rig.count(&rig.other, 499..500, Residence::Cached), 1);
        assert_eq!(rig.count(&rig.keep, 0..700, Residence::Kept), 700);
    });
}

#[test]
fn what_is_unused_ages_to_default_and_what_is_used_stays() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.look(Worth::Keep, Vec::new(), 1).await;
        rig.offer_all(&rig.keep, 0..10 * SEGMENT_BLOCKS).await;
        // Hits of before are no use of later.
        assert!((0..10 * SEGMENT_BLOCKS).all(|block| (0..3).all(|_| rig.holds(&rig.keep, block))));
        rig.look(Worth::Keep, Vec::new(), 2).await;
        rig.look(Worth::Keep, Vec::new(), 3).await;
        let by_ns = DAY.as_nanos() as u64;
        rig.clock.by_ns.fetch_add(by_ns - 60_000_000_000, Ordering::AcqRel);
        rig.look(Worth::Keep, Vec::new(), 4).await;
        assert_eq!(rig.counters()["keep_aged"], 0, "a day has not passed");
        let used = 0..3 * SEGMENT_BLOCKS;
        assert!(used.clone().all(|block| rig.holds(&rig.keep, block)));
        rig.look(Worth::Keep, Vec::new(), 5).await;
        rig.clock.by_ns.fetch_add(120_000_000_000, Ordering::AcqRel);
        rig.look(Worth::Keep, Vec::new(), 6).await;
        assert!((6..=7).contains(&rig.counters()["keep_aged"]), "{:?}", rig.counters());
        assert_eq!(rig.count(&rig.keep, used.clone(), Residence::Kept), used.clone().count());
        assert_eq!(rig.count(&rig.keep, 60..90, Residence::Cached), 30, "aged, not gone");
        // Default traffic evicts what has aged, and does not move it back.
        rig.ask_for_others(12).await;
        assert_eq!(rig.count(&rig.keep, used.clone(), Residence::Kept), used.count());
        assert_eq!(rig.count(&rig.keep, 60..90, Residence::Disk), 30);
        assert_eq!(rig.counters()["keep_moves"], 0);
    });
}

#[test]
fn what_is_unpinned_becomes_default_data() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        let pinned = |blocks: Range<u64>| (blocks.start * BLOCK_PARTS..blocks.end * BLOCK_PARTS, Worth::Keep);
        rig.look(Worth::Default, vec![pinned(0..300)], 1).await;
        rig.offer_all(&rig.keep, 0..300).await;
        rig.look(Worth::Default, vec![pinned(0..30)], 2).await;
        rig.until(|rig| rig.counters()["keep_released"] >= 17).await;
        assert_eq!(rig.count(&rig.keep, 0..30, Residence::Kept), 30);
        assert_eq!(rig.count(&rig.keep, 60..270, Residence::Cached), 210, "not gone, and no byte was written again");
        assert_eq!(rig.counters()["moves"], 0);
        rig.ask_for_others(6).await;
        assert_eq!(rig.count(&rig.keep, 0..30, Residence::Kept), 30);
        assert_eq!(rig.count(&rig.keep, 60..270, Residence::Disk), 210);
    });
}

#[test]
fn room_held_by_dead_blocks_is_made_for_others() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.look(Worth::Keep, Vec::new(), 1).await;
        rig.offer_all(&rig.keep, 0..SEGMENTS * SEGMENT_BLOCKS).await;
        // Two of three are overwritten: no segment is empty, none can be given up as it is.
        for block in (0..760).filter(|block| block % 3 > 0) {
            let ticket = rig.cache.begin_write(&rig.keep, parts(block)).await.unwrap();
            rig.cache.end_write(ticket);
        }
        let left = (0..760).filter(|block| block % 3 == 0).count();
        let kept = |rig: &Rig| {
            let third = (0..760).step_by(3);
            third.map(|b| rig.count(&rig.keep, b..b + 1, Residence::Kept)).sum::<usize>()
        };
        assert!(kept(&rig) + 10 >= left);
        let before = kept(&rig);
        rig.offer_all(&rig.keep, 2000..2050).await;
        rig.look(Worth::Keep, Vec::new(), 2).await;
        rig.until(|rig| rig.counters()["keep_cleans"] > 10).await;
        assert_eq!(kept(&rig), before, "what was kept was written again");
        assert!(rig.counters()["keep_moves"] > 0);
        rig.offer_all(&rig.keep, 3000..3200).await;
        assert_eq!(rig.count(&rig.keep, 3000..3200, Residence::Kept), 200);
    });
}

#[test]
fn keep_and_dirty_data_at_their_limits_do_not_stall() {
    for segments in [8, 9, 12, 16, 24, SEGMENTS] {
        run(move |world| async move {
            let rig = Rig::new(segments, world).await;
            rig.cache.set_worth(&rig.keep, WorthMap::new(Worth::Keep, Vec::new()));
            let clock = rig.clock.below.clone();
            let limit = clock.sleep_until(Instant(clock.now().0 + 30_000_000_000));
            let work = std::pin::pin!(crowd(&rig, segments));
            match select(work, limit).await {
                Either::Left(((), _)) => {}
                Either::Right(_) => panic!("{segments} segments: stalled: {:?}", rig.member()),
            }
            let (kept, most) = rig.member().keep_segments();
            assert!(kept <= most.max(1), "{segments} segments: {kept} of {most}");
            assert!(rig.member().failure().is_none(), "{:?}", rig.member().failure());
        });
    }
}

/// KEEP data to its share, dirty data until there is no room, writes that need marks, and again when the disk has it all.
async fn crowd(rig: &Rig, segments: u64) {
    let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
    for round in 0..3 {
        for block in 0..segments * SEGMENT_BLOCKS {
            let view = rig.data.view(0..16 << 10);
            rig.cache.fill(&rig.keep, parts(block), view, FillCause::ReadMiss, rig.cache.membership());
            yield_now().await;
        }
        let mut refused = false;
        for block in 0..segments * SEGMENT_BLOCKS {
            match rig.cache.write_dirty(&rig.keep, parts(5000 + block), &data, false).await {
                Ok(()) => {}
                Err(DirtyRefused::NoRoom) => refused = true,
                Err(DirtyRefused::Failed) => panic!("{:?}", rig.member().failure()),
            }
            // Writes elsewhere need marks, which need room.
            let ticket = rig.cache.begin_write(&rig.other, (block + round) * 512..(block + round) * 512 + 4).await;
            rig.cache.end_write(ticket.unwrap());
            let view = rig.data.view(0..16 << 10);
            rig.cache.fill(&rig.other, parts(block), view, FillCause::Write, rig.cache.membership());
        }
        assert!(refused, "dirty data came to its limit");
        destage(rig).await;
        assert_eq!(rig.cache.dirty_bytes(&rig.keep), 0);
    }
}

/// Nothing but dirty data, as much as it may take: marks have room all the same, before the disk has any of it. Whoever waits for one may
/// hold the very ranges that would have to be destaged.
#[test]
fn marks_have_room_when_all_there_is_is_dirty() {
    for segments in 8..16 {
        run(|world| async move {
            let rig = Rig::new(segments, world).await;
            let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
            let mut blocks = 0;
            while rig.cache.write_dirty(&rig.keep, parts(blocks), &data, false).await.is_ok() {
                blocks += 1;
            }
            // Some of each segment stays, so that none comes free unless cleaning copies that.
            let mut overwritten = (2..blocks as usize).take(8).flat_map(|step| (0..blocks).step_by(step));
            while let Some(block) = overwritten.next()
                && rig.cache.write_dirty(&rig.keep, parts(block), &data, true).await.is_ok()
            {}
            for region in 0..8 {
                let mark = std::pin::pin!(rig.cache.begin_write(&rig.other, region * 256..region * 256 + 4));
                let below = rig.clock.below.clone();
                match select(mark, below.sleep(Duration::from_secs(10))).await {
                    Either::Left((ticket, _)) => rig.cache.end_write(ticket.unwrap()),
                    Either::Right(_) => panic!("{segments} segments, region {region}: {:?}", rig.member()),
                }
            }
        });
    }
}

#[test]
fn nothing_stalls_while_somebody_holds_dirty_data_that_was_overwritten() {
    run(|world| async move {
        let rig = Rig::new(14, world).await;
        let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
        let write_all = async |again| {
            for block in 0..SEGMENT_BLOCKS {
                rig.cache.write_dirty(&rig.keep, parts(block), &data, again).await.unwrap();
            }
        };
        write_all(false).await;
        // An epoch holds what it was cut from, for as long as its disk is gone.
        let limits = RunLimits { parts_max: 1 << 20, runs_max: 16, run_parts_max: 1 << 20 };
        let (held, _) = rig.cache.dirty_runs(0, &rig.keep, 0, limits);
        assert!(!held.is_empty());
        // There is no clean data: segments come free as what is dirty is overwritten, or not at all.
        for _ in 0..40 {
            write_all(true).await;
            rig.until(|rig| rig.member().segments().free > 4).await;
        }
        let (reclaims, waits) = (rig.counters()["reclaims"], rig.counters()["reader_waits"]);
        assert!(reclaims >= 30 && waits == 0, "{reclaims} {waits}: {:?}", rig.member());
        let before = rig.member().segments().free;
        drop(held);
        destage(&rig).await;
        write_all(false).await;
        assert!(rig.member().segments().free >= before, "what nobody holds any more comes free: {:?}", rig.member());
    });
}

#[test]
fn cleaning_takes_what_a_round_of_destaging_has_let_go() {
    for lets_go in [false, true] {
        run(move |world| async move {
            let rig = Rig::new(SEGMENTS, world).await;
            let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
            for block in 0..150 {
                rig.cache.write_dirty(&rig.keep, parts(block), &data, false).await.unwrap();
            }
            // A round has listed them, and waits for its disk.
            let limits = RunLimits { parts_max: 1 << 20, runs_max: 1 << 10, run_parts_max: BLOCK_PARTS };
            let (mut runs, _) = rig.cache.dirty_runs(0, &rig.keep, 0, limits);
            assert_eq!(runs.len(), 150);
            if lets_go {
                runs.iter_mut().for_each(flashcache::DirtyRun::let_go);
            }
            // Most of them are overwritten meanwhile, until cleaning copies the others out of what has become garbage.
            for _ in 0..10 {
                for block in (0..150).filter(|block| block % 10 != 0) {
                    rig.cache.write_dirty(&rig.keep, parts(block), &data, true).await.unwrap();
                    rig.until(|rig| rig.member().segments().free > 4).await;
                }
            }
            let lasting = runs.iter_mut().filter(|run| run.parts.start % (10 * BLOCK_PARTS) == 0);
            let moved = lasting.filter_map(|run| (!rig.cache.confirm_current(run)).then_some(run.parts.clone()));
            let moved: Vec<Range<u64>> = moved.collect();
            assert_eq!(!moved.is_empty(), lets_go, "{:?}", rig.member());
            assert_eq!(rig.count(&rig.keep, 0..150, Residence::Dirty), 150, "nothing is lost by it");
            drop(runs);
            // A later round destages the blocks that cleaning has moved, or moves just now.
            for _ in 0..10 {
                destage(&rig).await;
            }
            assert!(!rig.cache.has_dirty(&rig.keep), "{:?}", rig.member());
        });
    }
}

#[test]
fn dirty_data_that_lasts_is_copied_apart_from_what_is_overwritten() {
    // Segments of a cache that is large enough to keep blocks apart by how long they last.
    const MANY: u64 = 160;
    const LASTING: u64 = 300;
    const HOT: u64 = 100;
    run(|world| async move {
        let rig = Rig::new(MANY, world).await;
        let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
        for n in 0..LASTING * 40 {
            // One that lasts among three that do not, to begin with; then only those.
            let hot = LASTING + n * 7 % HOT;
            let block = if n % 4 == 0 && n / 4 < LASTING { n / 4 } else { hot };
            rig.cache.write_dirty(&rig.keep, parts(block), &data, n > LASTING * 4).await.unwrap();
            rig.until(|rig| rig.member().segments().free > 4).await;
        }
        let copied = rig.counters()["dirty_copies"] / BLOCK_PARTS;
        assert_eq!(
            rig.count(&rig.keep, 0..LASTING + HOT, Residence::Dirty) as u64,
            LASTING + HOT,
            "nothing is lost by it"
        );
        assert!(copied > LASTING / 2 && copied < LASTING * 2, "{copied} copies of {LASTING} blocks that last");
    });
}

/// Until the disk has all of it: what cleaning copies between the list and its end is listed again.
async fn destage(rig: &Rig) {
    let limits = RunLimits { parts_max: 256, runs_max: 16, run_parts_max: 64 };
    let mut from = Some(0);
    while let Some(block) = from.or_else(|| (rig.cache.dirty_bytes(&rig.keep) > 0).then_some(0)) {
        let (runs, next) = rig.cache.dirty_runs(0, &rig.keep, block, limits);
        rig.cache.prepare_destage(0).await.unwrap();
        let mut list = DestagedList::default();
        runs.iter().for_each(|run| list.push(run));
        drop(runs);
        rig.cache.commit_destaged(0, &list).await.unwrap();
        from = next;
    }
}

#[test]
fn destaged_keep_data_moves_to_the_keep_head() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.cache.set_worth(&rig.keep, WorthMap::new(Worth::Keep, Vec::new()));
        let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
        for block in 0..150 {
            rig.cache.write_dirty(&rig.keep, parts(block), &data, false).await.unwrap();
        }
        assert_eq!(rig.member().keep_usage().dirty_bytes, 150 * (16 << 10));
        destage(&rig).await;
        rig.offer_all(&rig.other, 0..SEGMENTS * SEGMENT_BLOCKS * 4).await;
        let kept = rig.count(&rig.keep, 0..150, Residence::Kept);
        assert!(kept >= 135, "{kept}: all but what is left in the open segment and at reclaim's edge");
        let counters = rig.counters();
        assert!(counters["keep_adopted"] + counters["keep_moves"] > 0);
    });
}

#[test]
fn none_ranges_are_not_served_and_come_free() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world.clone()).await;
        rig.offer_all(&rig.keep, 0..100).await;
        let entries = rig.member().entries();
        let none = WorthMap::new(Worth::Default, vec![(10 * BLOCK_PARTS..20 * BLOCK_PARTS, Worth::None)]);
        rig.cache.set_worth(&rig.keep, none.clone());
        assert!((10..20).all(|block| !rig.holds(&rig.keep, block)), "at once");
        assert!((0..10).chain(20..100).all(|block| rig.holds(&rig.keep, block)));
        rig.until(|rig| rig.counters()["none_frees"] == 10).await;
        assert_eq!(rig.member().entries(), entries - 10);
        rig.offer_all(&rig.keep, 10..20).await;
        assert_eq!(rig.member().entries(), entries - 10, "and they are not filled");
        // What is dirty there is read until the disk has it.
        let data = Arena::new(1 << 20).alloc(16 << 10).await.freeze();
        rig.cache.write_dirty(&rig.keep, parts(15), &data, false).await.unwrap();
        assert!(rig.holds(&rig.keep, 15) && rig.cache.is_refused(&rig.keep, &parts(15)));
        destage(&rig).await;
        assert!(!rig.holds(&rig.keep, 15));
        rig.cache.stop().await;

        let again = Rig::on(rig.device.clone(), rig.world.clone()).await;
        again.cache.set_worth(&again.keep, none);
        assert!((10..20).all(|block| !again.holds(&again.keep, block)));
        assert!((0..10).chain(20..100).all(|block| again.holds(&again.keep, block)));
        again.cache.set_worth(&again.keep, WorthMap::default());
        assert!(!again.holds(&again.keep, 12), "what came free stays so over a restart");
    });
}

#[test]
fn keep_data_is_kept_over_a_restart() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.cache.set_worth(&rig.keep, WorthMap::new(Worth::Keep, Vec::new()));
        rig.offer_all(&rig.keep, 0..200).await;
        rig.cache.stop().await;
        let again = Rig::on(rig.device.clone(), rig.world.clone()).await;
        assert_eq!(
            again.member().keep_usage().used_bytes,
            200 * (16 << 10),
            "before anybody says that it is KEEP data"
        );
        again.cache.set_worth(&again.keep, WorthMap::new(Worth::Keep, Vec::new()));
        assert_eq!(again.count(&again.keep, 0..200, Residence::Kept), 200);
        again.offer_all(&again.other, 0..SEGMENTS * SEGMENT_BLOCKS * 3).await;
        assert_eq!(again.count(&again.keep, 0..200, Residence::Kept), 200);
    });
}

/// Segments that became ones of the keep head as they are have said so: nothing else on flash tells.
#[test]
fn what_the_keep_head_has_adopted_is_of_it_after_a_crash() {
    run(|world| async move {
        let rig = Rig::new(SEGMENTS, world).await;
        rig.offer_all(&rig.keep, 0..150).await;
        rig.cache.set_worth(&rig.keep, WorthMap::new(Worth::Keep, Vec::new()));
        assert_eq!(rig.count(&rig.keep, 0..150, Residence::Kept), 0);
        rig.offer_all(&rig.other, 0..SEGMENTS * SEGMENT_BLOCKS * 3).await;
        let adopted = rig.counters()["keep_adopted"];
        let kept = rig.count(&rig.keep, 0..150, Residence::Kept);
        assert!(adopted >= 9 && kept >= 135, "{adopted} segments, {kept} blocks");
        rig.cache.stop().await;
        let again = Rig::on(rig.device.clone(), rig.world.clone()).await;
        assert_eq!(again.count(&again.keep, 0..150, Residence::Kept), kept);
        assert_eq!(again.member().keep_usage().used_bytes, kept as u64 * (16 << 10));
    });
}
