//! The time the flash cache saves the clients of a grid disk: hits times the difference of what a read from disk and a read
//! from flash takes, both in the mean since the cell was started. It is the field's efficiency script, from sums instead of
//! assumed latencies.
//!
//! Of the disk every read for a whole miss is timed (not what housekeeping, prefetch and read-modify-write ask for: they read in
//! disk order or what nobody waits for), of flash one hit in sixteen: two looks at the clock cost some tens of nanoseconds each.
//! Reads of different lengths are taken together, as the script does. Never samples by chance, never waits.

use crate::base::counters::Counter;
use device::Instant;
use flashcache::FlashCache;
use std::sync::atomic::{AtomicU64, Ordering};

/// One hit in so many is timed.
const HITS_PER_SAMPLE: u64 = 16;

/// How long reads took.
#[derive(Debug, Default)]
pub struct Timed {
    /// Reads that were timed.
    pub reads: Counter,
    /// Their nanoseconds.
    pub ns: Counter,
}

impl Timed {
    /// Of one, in nanoseconds; none before the first.
    #[must_use]
    pub fn mean_ns(&self) -> Option<u64> {
        self.ns.get().checked_div(self.reads.get())
    }

    pub(crate) fn count(&self, from: Instant, to: Instant) {
        self.ns.add(to.ns_since(from));
        self.reads.one();
    }
}

/// Service times of a cached grid disk.
#[derive(Debug, Default)]
pub struct ServiceTimes {
    /// Reads of the disk for misses.
    pub disk: Timed,
    /// Hits, one in sixteen.
    pub flash: Timed,
    hits_begun: AtomicU64,
}

impl ServiceTimes {
    /// A hit begins: when, if it is one to be timed.
    pub(crate) fn hit_begins(&self, cache: &FlashCache) -> Option<Instant> {
        // Two that come at once count as one: that costs a sample, and no locked instruction.
        let hits = self.hits_begun.load(Ordering::Relaxed);
        self.hits_begun.store(hits.wrapping_add(1), Ordering::Relaxed);
        hits.is_multiple_of(HITS_PER_SAMPLE).then(|| cache.now())
    }

    /// It was served; when, if it is timed.
    pub(crate) fn hit_ended(&self, begun: Option<Instant>, cache: &FlashCache) -> Option<Instant> {
        let begun = begun?;
        let now = cache.now();
        self.flash.count(begun, now);
        Some(now)
    }

    /// Nanoseconds that one hit saves in the mean; 0 as [`ServiceTimes::saved_ns`] says.
    #[must_use]
    pub fn saved_ns_per_hit(&self) -> u64 {
        let (Some(disk), Some(flash)) = (self.disk.mean_ns(), self.flash.mean_ns()) else { return 0 };
        disk.saturating_sub(flash)
    }

    /// Nanoseconds saved by so many hits. 0 when flash is slower than the disk, and as long as one of the two is not known:
    /// a cell that has hit from the start has nothing to compare with.
    #[must_use]
    pub fn saved_ns(&self, hits: u64) -> u64 {
        hits.saturating_mul(self.saved_ns_per_hit())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: the time saved is what the clock says, and the clock is asked for one hit in sixteen. Method: a grid disk on
    //! devices that move the only clock there is, 4 ms a read from disk and 100 us a read from flash.
    use super::*;
    use crate::disk::grid_disk::GridDisk;
    use crate::{CachingMode, Context, GridDiskParts};
    use device::layers::Memory;
    use device::spawn::yield_now;
    use device::sync::Notify;
    use device::{
        Arena, Clock, Completion, Device, Geometry, Io, Op, Runtime, RuntimeConfig, Timer, Verb, WallTime, World,
    };
    use flashcache::format::Owner;
    use flashcache::{CacheConfig, CachedDisk, MemberDevice};
    use std::sync::Arc;
    use std::time::Duration;

    /// A clock that devices move.
    struct Hand {
        real: Arc<dyn Clock>,
        now_ns: AtomicU64,
        looks: AtomicU64,
    }

    impl Clock for Hand {
        fn now(&self) -> Instant {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Instant(self.now_ns.load(Ordering::Relaxed))
        }
        fn wall(&self) -> WallTime {
            self.real.wall()
        }
        fn sleep_until(&self, at: Instant) -> Timer {
            let left = at.0.saturating_sub(self.now_ns.load(Ordering::Relaxed));
            self.real.sleep(Duration::from_nanos(left))
        }
    }

    struct Slow {
        below: Device,
        read_ns: u64,
        hand: Arc<Hand>,
    }

    impl Io for Slow {
        fn geometry(&self) -> Geometry {
            self.below.geometry()
        }
        fn submit(&self, op: Op) -> Completion {
            if op.verb() == Verb::Read {
                self.hand.now_ns.fetch_add(self.read_ns, Ordering::Relaxed);
            }
            self.below.submit(op)
        }
    }

    const BLOCK_BYTES: u64 = 16 << 10;
    /// As many blocks as fill a chunk, so that it goes to flash without waiting for its age.
    const BLOCKS: u64 = 16;

    async fn reads_of_both(mut world: World) {
        let hand = Arc::new(Hand { real: world.clock.clone(), now_ns: AtomicU64::new(0), looks: AtomicU64::new(0) });
        world.clock = hand.clone();
        let slow = |read_ns, size_bytes| -> Device {
            Arc::new(Slow { below: Memory::new(size_bytes), read_ns, hand: hand.clone() })
        };
        let (disk, flash) = (slow(4_000_000, 8 << 20), slow(100_000, 64 << 20));
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let named = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
        let members = vec![MemberDevice { device: flash, owner, life: 1, durable: true, checkpoint: None }];
        let (cache, _) = FlashCache::open(CacheConfig::default(), members, &[named], world).await.unwrap();
        let grid_disk = GridDisk::new(GridDiskParts {
            id: 7,
            name: "TIMED".to_owned(),
            disk,
            size_bytes: 8 << 20,
            arena: Arena::new(1 << 20),
            block_bytes: BLOCK_BYTES,
            alarm: Arc::new(Notify::new()),
            sequential_cutoff_bytes: 0,
            sabotage: None,
        });
        grid_disk.set_cache(Some((cache.clone(), cache.disk(named))), CachingMode::WriteThrough);
        let session = grid_disk.open_session(Context::default());
        let mut buf = Arena::new(1 << 20).alloc(BLOCK_BYTES as usize).await;
        let times = &grid_disk.counters.times;
        for block in 0..BLOCKS {
            let (result, back) = session.read(block * BLOCK_BYTES, buf).await;
            result.unwrap();
            buf = back;
        }
        assert_eq!((times.disk.reads.get(), times.disk.mean_ns()), (BLOCKS, Some(4_000_000)));
        assert_eq!(times.saved_ns(BLOCKS), 0, "flash is not known yet");
        let member = cache.members().next().unwrap();
        for _ in 0..10_000 {
            if member.counters.chunks.load(Ordering::Relaxed) > 0 {
                break;
            }
            yield_now().await;
        }
        for _ in 0..10 {
            let looks = hand.looks.load(Ordering::Relaxed);
            for block in 0..BLOCKS {
                let (result, back) = session.read(block * BLOCK_BYTES, buf).await;
                result.unwrap();
                buf = back;
            }
            assert_eq!(hand.looks.load(Ordering::Relaxed) - looks, 2, "one of sixteen hits looks at the clock, twice");
        }
        let hits = grid_disk.counters.cache_hits.requests.get();
        assert_eq!((hits, times.flash.reads.get(), times.flash.mean_ns()), (160, 10, Some(100_000)));
        assert_eq!(times.saved_ns(hits), 160 * 3_900_000);
        cache.stop().await;
    }

    #[test]
    fn hits_save_what_the_clock_says() {
        let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
        let world = runtime.world(1);
        runtime.block_on(reads_of_both(world));
    }

    #[test]
    fn slow_flash_saves_nothing() {
        let times = ServiceTimes::default();
        assert_eq!((times.saved_ns(5), times.disk.mean_ns()), (0, None));
        times.disk.count(Instant(0), Instant(10));
        times.flash.count(Instant(0), Instant(11));
        assert_eq!(times.saved_ns(5), 0);
        times.disk.count(Instant(0), Instant(20));
        assert_eq!(times.saved_ns(5), 20);
        assert_eq!(times.saved_ns(u64::MAX), u64::MAX);
    }
}
