//! Goal: a member with a budget writes no more than that, refuses in order and by reason, goes on marking and invalidating
//! when it is empty, and one without a budget knows none of it. Method: a cache on memory devices, filled by hand. Of 40 MB a
//! day a test of milliseconds earns a few bytes, so all there is to spend is what a start gives: a tenth.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use crate::shifted::Shifted;
use device::layers::Memory;
use device::spawn::yield_now;
use device::{Arena, Bufs};
use flashcache::format::Owner;
use flashcache::{CacheConfig, CachedDisk, DiskHandle, Endurance, FillCause, FlashCache, MemberDevice, Stretch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK_PARTS: u64 = 4;
const BUDGET_BYTES: u64 = 4_000_000;

struct Rig {
    cache: Arc<FlashCache>,
    disk: DiskHandle,
    data: Bufs,
}

impl Rig {
    async fn new(endurance: Option<Endurance>, size_bytes: u64, world: device::World) -> Rig {
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let chunk_age = Duration::from_millis(1);
        let config = CacheConfig { endurance, segment_bytes: 1 << 20, chunk_age, ..CacheConfig::default() };
        let members = vec![MemberDevice {
            device: Memory::new(size_bytes),
            owner,
            life: next_life(),
            durable: true,
            checkpoint: None,
        }];
        let named = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
        let (cache, _) = FlashCache::open(config, members, &[named], world).await.unwrap();
        let disk = cache.disk(named);
        Rig { cache, disk, data: Arena::new(1 << 20).alloc(16 << 10).await }
    }

    /// A block is missed and offered.
    async fn offer(&self, block: u64) {
        let parts = block * BLOCK_PARTS..(block + 1) * BLOCK_PARTS;
        self.cache.fill(&self.disk, parts, self.data.view(0..16 << 10), FillCause::ReadMiss, self.cache.membership());
        for _ in 0..4 {
            yield_now().await;
        }
    }

    /// A client writes a block in write-through.
    async fn write(&self, block: u64) {
        let parts = block * BLOCK_PARTS..(block + 1) * BLOCK_PARTS;
        let ticket = self.cache.begin_write(&self.disk, parts.clone()).await.unwrap();
        self.cache.fill(&self.disk, parts, self.data.view(0..16 << 10), FillCause::Write, self.cache.membership());
        self.cache.end_write(ticket);
        for _ in 0..4 {
            yield_now().await;
        }
    }

    fn holds(&self, block: u64) -> bool {
        let found = self.cache.lookup(&self.disk, block * BLOCK_PARTS..(block + 1) * BLOCK_PARTS);
        found.iter().all(|stretch| matches!(stretch, Stretch::Hit(_)))
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.cache.members().next().unwrap().counters.snapshot().into_iter().collect()
    }
}

/// A budget that begins with so many bytes.
fn that_begins_with(bytes: u64) -> Endurance {
    Endurance::of_drive_writes(1000, bytes * 10, 1825).unwrap()
}

#[test]
fn refuses_in_order_and_counts_why() {
    run(|world| async move {
        let rig = Rig::new(Some(that_begins_with(BUDGET_BYTES)), 64 << 20, world).await;
        // A start is below half full: nobody new is let in.
        for block in 0..500 {
            rig.offer(block).await;
        }
        let counters = rig.counters();
        assert_eq!((counters["fills"], counters["fill_skips_endurance"], counters["fill_skips_policy"]), (0, 500, 0));
        // Those that come back are, until the budget is empty.
        for block in 0..500 {
            rig.offer(block).await;
        }
        let counters = rig.counters();
        let (filled, refused) = (counters["fills"] / BLOCK_PARTS, counters["fill_skips_endurance"] - 500);
        assert_eq!(filled + refused, 500);
        assert!((200..=260).contains(&filled), "{filled} blocks of 16 KiB for {BUDGET_BYTES} bytes");
        let written = counters["flash_bytes_written"];
        let most = BUDGET_BYTES + (1 << 20);
        assert!((BUDGET_BYTES * 9 / 10..=most).contains(&written), "{written} written, {most} allowed");
        assert!(rig.holds(0) && !rig.holds(499));
        let member = rig.cache.members().next().unwrap().clone();
        let figures = member.endurance_figures();
        assert_eq!(figures.written_bytes, written);
        assert_eq!(figures.write_amplification_milli, Some(written * 1000 / (counters["fill_bytes"])));
        assert!((1015..1300).contains(&figures.write_amplification_milli.unwrap()));
        assert!(figures.budget_left_bytes.unwrap() < 10_000, "{figures:?}");
        assert_eq!(figures.lifetime_days, Some(0), "a tenth of a day's worth in less than a second");

        // An empty budget keeps no write from being marked and no copy from ending.
        let ticket = rig.cache.begin_write(&rig.disk, 0..BLOCK_PARTS).await.unwrap();
        assert!(!rig.holds(0));
        rig.cache.end_write(ticket);
        let after = rig.counters();
        assert_eq!((after["marks"], after["invalidations"]), (1, 1));
        assert!(after["flash_bytes_written"] > written, "its mark is on flash");
        // Refused, but not forgotten.
        rig.offer(0).await;
        assert!(!rig.holds(0));
        rig.cache.stop().await;
    });
}

/// Below half of the budget an overwrite goes to flash for a block that somebody reads; of one that nobody has read since flash was last written for
/// it the cached copy ends. What is read again comes back as any block does that has left.
#[test]
fn overwrites_of_what_nobody_reads_are_not_cached_when_it_is_low() {
    for budget in [None, Some(that_begins_with(40_000_000))] {
        run(move |world| async move {
            let rig = Rig::new(budget, 64 << 20, world).await;
            // New, and come back.
            for block in (0..100).chain(0..100) {
                rig.offer(block).await;
            }
            let filled = (0..100).filter(|block| rig.holds(*block)).count();
            assert_eq!(filled, 100);
            // All have been read, just now.
            for block in 0..100 {
                rig.write(block).await;
            }
            let held = |blocks: std::ops::Range<u64>| blocks.filter(|block| rig.holds(*block)).count();
            // Blocks share bits, a few of them; so it is below.
            let early = rig.counters()["overwrite_skips_endurance"];
            assert!(early <= if budget.is_some() { 3 } else { 0 }, "{early}");
            // Half of them are read again.
            let read = held(0..50);
            assert!(read + early as usize >= 50, "{read}");
            for block in 0..100 {
                rig.write(block).await;
            }
            let unread = 50 - held(50..100);
            assert!(if budget.is_some() { unread > 45 } else { unread == 0 }, "{unread}");
            assert!(held(0..50) + 5 > read, "{read}");
            let skips = rig.counters()["overwrite_skips_endurance"];
            assert!(skips + 3 >= unread as u64 && skips <= unread as u64 + 6, "{skips} of {unread}");
            // However often it is written it stays out; that it has left just now is no reason.
            for block in (0..4).flat_map(|_| 50..100) {
                rig.write(block).await;
            }
            let more = rig.counters()["overwrite_skips_endurance"] - skips;
            assert!(more >= 4 * unread as u64 && more <= if budget.is_some() { 200 } else { 0 }, "{more}");
            assert!(50 - held(50..100) >= unread);
            // A read that misses brings one back, and pays for its next overwrite.
            let gone = (50..100).find(|block| !rig.holds(*block));
            if let Some(block) = gone {
                rig.offer(block).await;
                assert!(rig.holds(block));
                rig.write(block).await;
                assert!(rig.holds(block));
            }
            rig.cache.stop().await;
        });
    }
}

#[test]
fn without_a_budget_nothing_is_limited() {
    run(|world| async move {
        let rig = Rig::new(None, 64 << 20, world).await;
        for block in 0..500 {
            rig.offer(block).await;
        }
        let counters = rig.counters();
        assert_eq!((counters["fills"], counters["fill_skips_endurance"]), (2000, 0));
        let figures = rig.cache.members().next().unwrap().endurance_figures();
        assert_eq!((figures.budget_left_bytes, figures.lifetime_days), (None, None));
        rig.cache.stop().await;
    });
}

/// A day later the budget is full: new blocks are let in down to its half. Then marks fill the log, beyond its end: segments of nothing but
/// old marks are reclaimed whatever the budget, and nothing that is cached leaves for them.
#[test]
fn garbage_that_costs_no_copy_is_reclaimed_when_it_is_empty() {
    let a_day = Endurance::of_drive_writes(1000, 20_000_000, 1825).unwrap();
    for budget in [None, Some(a_day)] {
        run(move |mut world| async move {
            let clock = Arc::new(Shifted { below: world.clock.clone(), by_ns: Arc::default() });
            world.clock = clock.clone();
            let rig = Rig::new(budget, 32 << 20, world).await;
            clock.by_ns.store(86_400_000_000_000, Ordering::Release);
            for block in 0..700 {
                rig.offer(block).await;
            }
            let filled = rig.counters()["fills"] / BLOCK_PARTS;
            if budget.is_some() {
                // Half of 20 MB, and what was on its way when it was reached.
                assert!((580..640).contains(&filled), "{filled}");
                assert_eq!(rig.counters()["fill_skips_endurance"], 700 - filled);
            }
            for n in 0..7000 {
                if n == 3000 {
                    let left = rig.cache.members().next().unwrap().endurance_figures().budget_left_bytes;
                    assert!(left.is_none_or(|left| left == 0), "{left:?}");
                    assert_eq!(rig.counters()["reclaims"], 0);
                    (0..filled).for_each(|block| assert!(rig.holds(block)));
                }
                // A region for itself, far from what is cached.
                let part = (1000 + n) * 256;
                let ticket = rig.cache.begin_write(&rig.disk, part..part + 1).await.unwrap();
                rig.cache.end_write(ticket);
            }
            let counters = rig.counters();
            assert!(counters["reclaims"] > 0, "{counters:?}");
            assert_eq!((counters["moves"], counters["evictions"]), (0, 0), "{counters:?}");
            (0..filled).for_each(|block| assert!(rig.holds(block)));
            rig.cache.stop().await;
        });
    }
}
