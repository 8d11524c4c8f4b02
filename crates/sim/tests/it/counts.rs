//! Goal: the counts of the flash cache add up. Of reads, hits, misses and skips are disjoint and their sum is what clients asked of the
//! grid disks, in requests and in bytes; so are writes kept and writes gone past. Method: a whole cell in virtual time, grid disks of
//! every caching mode and policy, clients of a database that may use the flash and of one that may not; random requests of any length
//! and place, one at a time and many at once; the sums are looked at through the metrics an operator sees, and the disk's part of them
//! is compared with what was really read from the disk.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::PlanChange;
use cell::metrics::{ProcessUse, samples};
use cell::plan::{Directive, Subject};
use cell::{Cell, CellConfig, Context, GridDisk, Session};
use celldisk::{CachingMode, CachingPolicy, FillStrategy, GridDiskSpec, Role};
use device::layers::{Action, Delay, Fault, Faults, Memory, Model};
use device::{Buf, Bufs, Device, Prng, Spawn, Verb, World};
use sim::executor::Process;
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 64 * MIB;
/// Less than the grid disks together: blocks leave while others come.
const CACHE_BYTES: u64 = 48 * MIB;

struct Fixture {
    cell: Arc<Cell>,
    flash: Arc<Faults>,
    world: World,
}

impl Fixture {
    async fn new(world: &World) -> Fixture {
        let device = |name: &str, size_bytes, model| -> Device {
            let prng = world.prng.fork(name);
            Delay::new(Memory::new(size_bytes), model, world.clock.clone(), world.spawn.clone(), prng)
        };
        let disk = device("disk", 1 << 30, Model::fixed(1_000_000, 16));
        let flash = Faults::new(device("flash", 128 * MIB, Model::fixed(50_000, 16)), world.spawn.clone());
        let devices: [Device; 2] = [disk, flash.clone()];
        let mut config = CellConfig::default();
        config.cache.segment_bytes = 256 << 10;
        let cell = cell_on(&devices, &[("CD_disk01", Role::Disk), ("FD_00", Role::Flash)], config, world).await;
        cell.create_flash_cache(Some(CACHE_BYTES), &[]).await.unwrap();
        Fixture { cell, flash, world: world.clone() }
    }

    async fn grid_disk(&self, name: &str, change: impl FnOnce(&mut GridDiskSpec)) -> Arc<GridDisk> {
        let cell_disk = self.cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let mut spec = GridDiskSpec::new(name, cell_disk, DATA_BYTES, self.world.clock.wall());
        change(&mut spec);
        self.cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap()
    }

    fn session(&self, grid_disk: &str, database: &str) -> Session {
        let context = Context { database: Some(Arc::from(database)), ..Context::default() };
        self.cell.grid_disk(grid_disk).unwrap().open_session(context)
    }

    fn metrics(&self) -> impl Fn(&str) -> u64 {
        let all = samples(&self.cell, "cell", &[], &ProcessUse::default(), &[]);
        move |name: &str| {
            assert!(all.iter().any(|s| s.definition.name == name), "no metric {name}");
            all.iter().filter(|s| s.definition.name == name).map(|s| s.value).sum()
        }
    }

    fn counts(&self) -> Counts {
        let sum = self.metrics();
        Counts {
            asked: [sum("GD_IO_RQ_R_SM") + sum("GD_IO_RQ_R_LG"), sum("GD_IO_BY_R_SM") + sum("GD_IO_BY_R_LG")],
            hit: [sum("FC_IO_RQ_R"), sum("FC_IO_BY_R")],
            missed: [sum("FC_IO_RQ_R_MISS"), sum("FC_IO_BY_R_MISS")],
            skipped: [sum("FC_IO_RQ_R_SKIP"), sum("FC_IO_BY_R_SKIP")],
            partial: sum("FC_IO_RQ_R_PARTIAL"),
            written: [sum("GD_IO_RQ_W_SM") + sum("GD_IO_RQ_W_LG"), sum("GD_IO_BY_W_SM") + sum("GD_IO_BY_W_LG")],
            cached: [sum("FC_IO_RQ_W"), sum("FC_IO_BY_W")],
            populated: [sum("FC_IO_RQ_W_POPULATE"), sum("FC_IO_BY_W_POPULATE")],
            inserted: sum("GD_FC_IO_RQ_INSERT"),
            went_past: [sum("FC_IO_RQ_W_SKIP"), sum("FC_IO_BY_W_SKIP")],
        }
    }
}

/// Requests and bytes.
#[derive(Clone, Copy, Debug)]
struct Counts {
    asked: [u64; 2],
    hit: [u64; 2],
    missed: [u64; 2],
    skipped: [u64; 2],
    partial: u64,
    written: [u64; 2],
    cached: [u64; 2],
    populated: [u64; 2],
    inserted: u64,
    went_past: [u64; 2],
}

impl Counts {
    /// Grown since `before`: of reads hits, misses, skips in bytes.
    fn read_since(&self, before: &Counts) -> [u64; 3] {
        [self.hit[1] - before.hit[1], self.missed[1] - before.missed[1], self.skipped[1] - before.skipped[1]]
    }

    /// The same in requests.
    fn reads_since(&self, before: &Counts) -> [u64; 3] {
        [self.hit[0] - before.hit[0], self.missed[0] - before.missed[0], self.skipped[0] - before.skipped[0]]
    }

    fn check(&self, when: &str) {
        for (i, what) in ["requests", "bytes"].into_iter().enumerate() {
            let read = self.hit[i] + self.missed[i] + self.skipped[i];
            assert_eq!(read, self.asked[i], "{what} of reads, {when}: {self:?}");
        }
        assert!(self.partial <= self.missed[0] + self.skipped[0], "{when}: {self:?}");
        // What is written to the cache is what writes bring, what misses bring, and what is fed.
        let kept = self.cached[0] - self.populated[0] - self.inserted;
        assert_eq!(kept + self.went_past[0], self.written[0], "requests of writes, {when}: {self:?}");
        if self.inserted == 0 {
            let kept = self.cached[1] - self.populated[1];
            assert_eq!(kept + self.went_past[1], self.written[1], "bytes of writes, {when}: {self:?}");
        }
    }
}

async fn read(session: &Session, at: u64, len: u64) {
    session.read(at, Bufs::from(Buf::zeroed(len as usize))).await.0.unwrap();
}

async fn write(session: &Session, at: u64, len: u64, fua: bool) {
    session.write(at, full_of(len as usize, 7), fua).await.unwrap();
}

/// One of any length, mostly in places that were asked for before.
async fn random_request(session: &Session, prng: &mut Prng) {
    let len = match prng.below(6) {
        0 => 512 * (1 + prng.below(16)),
        1 => 4 * KIB * (1 + prng.below(32)),
        2 => 16 * KIB,
        3 => 1 + prng.below(40_000),
        4 => 256 * KIB,
        _ => 4 * KIB * (1 + prng.below(700)),
    };
    let unit = [1, 512, 4096, 16 * KIB][prng.below(4) as usize];
    let area = if prng.chance(3, 4) { 8 * MIB } else { DATA_BYTES };
    let at = prng.below(area) / unit * unit;
    let len = len.min(DATA_BYTES - at);
    match prng.below(12) {
        0..8 => read(session, at, len).await,
        8..10 => write(session, at, len, false).await,
        10 => write(session, at, len, true).await,
        _ => session.trim(at, len, false).await.unwrap(),
    }
}

async fn all_kinds(world: &World) -> (Fixture, Vec<Session>) {
    let fixture = Fixture::new(world).await;
    for (name, mode) in
        [("WT", CachingMode::WriteThrough), ("WB", CachingMode::WriteBack), ("WO", CachingMode::WriteBackOrdered)]
    {
        fixture.grid_disk(name, |spec| spec.caching_mode = mode).await;
    }
    fixture.grid_disk("NONE", |spec| spec.caching_policy = CachingPolicy::None).await;
    fixture.grid_disk("KEEP", |spec| spec.caching_policy = CachingPolicy::Keep).await;
    fixture.grid_disk("EVICT", |spec| spec.fill = FillStrategy::Evict).await;
    let directives = vec![
        Directive { flash_cache: Some(false), ..Directive::of(Subject::Database("BARRED".to_owned())) },
        Directive::of(Subject::Other),
    ];
    fixture.cell.alter_iorm_plan(PlanChange { directives: Some(directives), ..PlanChange::default() }).await.unwrap();
    let mut sessions = Vec::new();
    for name in ["WT", "WB", "WO", "NONE", "KEEP", "EVICT"] {
        sessions.extend(["MINE", "BARRED"].map(|database| fixture.session(name, database)));
    }
    (fixture, sessions)
}

#[test]
fn hits_misses_and_skips_add_up_whatever_is_asked() {
    in_a_world(async |_, world| {
        let (fixture, sessions) = all_kinds(&world).await;
        let mut prng = Prng::new(26);
        for n in 0..6_000 {
            // The database that may use the flash asks more often.
            let which = prng.below(sessions.len() as u64) as usize;
            let session = &sessions[if prng.chance(2, 3) { which / 2 * 2 } else { which }];
            random_request(session, &mut prng).await;
            if n % 20 == 0 {
                fixture.counts().check(&format!("after {n}"));
            }
        }
        let counts = fixture.counts();
        counts.check("in the end");
        for (what, of) in [("hit", counts.hit), ("missed", counts.missed), ("skipped", counts.skipped)] {
            assert!(of[0] > 200, "{what}: {counts:?}");
        }
        assert!(counts.partial > 100 && counts.went_past[0] > 100 && counts.populated[0] > 100, "{counts:?}");
    });
}

#[test]
fn they_add_up_with_many_requests_at_once() {
    in_a_world(async |process: Process, world| {
        let (fixture, sessions) = all_kinds(&world).await;
        let going = Arc::new(AtomicU64::new(0));
        for (n, session) in sessions.into_iter().enumerate() {
            let session = Arc::new(session);
            for m in 0..4 {
                let (session, going) = (session.clone(), going.clone());
                going.fetch_add(1, Ordering::Relaxed);
                let mut prng = process.handle().prng(&format!("{n} {m}"));
                process.spawn(Box::pin(async move {
                    for _ in 0..60 {
                        random_request(&session, &mut prng).await;
                    }
                    going.fetch_sub(1, Ordering::Relaxed);
                }));
            }
        }
        while going.load(Ordering::Relaxed) > 0 {
            world.clock.sleep(Duration::from_millis(50)).await;
        }
        fixture.counts().check("in the end");
    });
}

/// What the disk has read is what was missed or went past, and nothing else: aligned reads of data that is not dirty.
#[test]
fn flash_claims_no_byte_that_the_disk_has_served() {
    in_a_world(async |_, world| {
        let fixture = Fixture::new(&world).await;
        let disk = fixture.grid_disk("WT", |_| ()).await;
        let session = fixture.session("WT", "MINE");
        // Every other 64 KiB of 32 MiB.
        for at in (0..32 * MIB).step_by(128 << 10) {
            read(&session, at, 64 * KIB).await;
        }
        for (len, what) in [(MIB, "1 MiB"), (256 * KIB, "256 KiB")] {
            let (before, from_disk) = (fixture.counts(), disk.counters.disk_reads.bytes.get());
            for at in (0..32 * MIB).step_by(len as usize) {
                read(&session, at, len).await;
            }
            let counts = fixture.counts();
            counts.check(what);
            let [hit, missed, skipped] = counts.read_since(&before);
            let from_disk = disk.counters.disk_reads.bytes.get() - from_disk;
            assert_eq!((missed + skipped, hit), (from_disk, 32 * MIB - from_disk), "{what}: {counts:?}");
        }
        // A stretch that is cached but for its end: both serve their part.
        read(&session, 40 * MIB, 64 * KIB).await;
        world.clock.sleep(Duration::from_millis(100)).await;
        let before = fixture.counts();
        read(&session, 40 * MIB, 96 * KIB).await;
        let counts = fixture.counts();
        assert_eq!(counts.read_since(&before), [64 * KIB, 32 * KIB, 0]);
        assert_eq!(counts.reads_since(&before), [0, 1, 0]);
        assert_eq!(counts.partial - before.partial, 1);
        let mut prng = Prng::new(3);
        for _ in 0..2_000 {
            let len = 4 * KIB * (1 + prng.below(64));
            let at = prng.below((DATA_BYTES - len) / (4 * KIB)) * 4 * KIB;
            let (before, from_disk) = (fixture.counts(), disk.counters.disk_reads.bytes.get());
            read(&session, at, len).await;
            let [hit, missed, skipped] = fixture.counts().read_since(&before);
            let from_disk = disk.counters.disk_reads.bytes.get() - from_disk;
            assert_eq!((missed + skipped, hit), (from_disk, len - from_disk), "{len} bytes at {at}");
        }
    });
}

#[test]
fn a_request_is_one_and_as_long_as_it_was_asked_for() {
    in_a_world(async |_, world| {
        let fixture = Fixture::new(&world).await;
        fixture.grid_disk("WT", |_| ()).await;
        fixture.grid_disk("WB", |spec| spec.caching_mode = CachingMode::WriteBack).await;
        let (through, back) = (fixture.session("WT", "MINE"), fixture.session("WB", "MINE"));
        let settle = || world.clock.sleep(Duration::from_millis(100));
        let grown = |before: &Counts| {
            let now = fixture.counts();
            (now.reads_since(before), now.read_since(before))
        };
        // 512 bytes are 512 bytes, missed and hit.
        let before = fixture.counts();
        read(&through, 512, 512).await;
        assert_eq!(grown(&before), ([0, 1, 0], [0, 512, 0]));
        settle().await;
        let before = fixture.counts();
        read(&through, 512, 512).await;
        assert_eq!(grown(&before), ([1, 0, 0], [512, 0, 0]));
        // A miss of 64 KiB is one request that populates; served from flash it populates nothing.
        let before = fixture.counts();
        read(&through, MIB, 64 * KIB).await;
        settle().await;
        read(&through, MIB, 64 * KIB).await;
        let now = fixture.counts();
        assert_eq!(now.populated[0] - before.populated[0], 1, "requests that populate");
        assert_eq!(now.populated[1] - before.populated[1], 64 * KIB, "bytes that populate");
        assert_eq!(now.cached[0] - before.cached[0], 1, "requests that write to the cache");
        // So is a write, in both modes, and a read of three pieces.
        for session in [&through, &back] {
            let before = fixture.counts();
            write(session, 2 * MIB, 64 * KIB, false).await;
            let now = fixture.counts();
            assert_eq!([now.cached[0] - before.cached[0], now.cached[1] - before.cached[1]], [1, 64 * KIB]);
            assert_eq!(now.went_past, before.went_past);
            let before = fixture.counts();
            write(session, 8 * MIB, MIB, false).await;
            let now = fixture.counts();
            assert_eq!([now.cached[0] - before.cached[0], now.cached[1] - before.cached[1]], [1, MIB], "there is room");
            assert_eq!(now.went_past, before.went_past);
        }
        let before = fixture.counts();
        read(&through, 20 * MIB, 3 * MIB).await;
        assert_eq!(grown(&before), ([0, 1, 0], [0, 3 * MIB, 0]));
        fixture.counts().check("in the end");
    });
}

/// While flash is late its clean data is read from the disk: skipped for that reason, and not missed; nothing of it is offered again.
#[test]
fn reads_of_what_late_flash_holds_are_no_misses() {
    in_a_world(async |_, world| {
        let fixture = Fixture::new(&world).await;
        fixture.grid_disk("WT", |_| ()).await;
        let session = fixture.session("WT", "MINE");
        let all = (0..4 * MIB).step_by(64 << 10);
        for at in all.clone() {
            read(&session, at, 64 * KIB).await;
        }
        world.clock.sleep(Duration::from_secs(1)).await;
        let stall = fixture.flash.add(Fault::every(Verb::Read, Action::Stall));
        let (before, refused) = (fixture.counts(), fixture.metrics()("FC_IO_RQ_W_SKIP_SLOW"));
        for at in all.clone() {
            read(&session, at, 64 * KIB).await;
        }
        // Half of this is cached: one request, skipped, of bytes that all come from the disk.
        read(&session, 4 * MIB - 64 * KIB, 128 * KIB).await;
        let now = fixture.counts();
        now.check("late");
        assert_eq!(now.reads_since(&before), [0, 0, 65]);
        assert_eq!(now.read_since(&before), [0, 0, 4 * MIB + 128 * KIB]);
        assert_eq!(fixture.metrics()("FC_IO_RQ_R_SKIP_FC_THROTTLE"), 65);
        assert_eq!(fixture.metrics()("FC_IO_RQ_W_SKIP_SLOW"), refused, "it is there: nothing is offered");
        // A read of uncached data is a miss, and the late flash refuses the fill that the cell offers.
        let before = now;
        read(&session, 8 * MIB, 64 * KIB).await;
        assert_eq!(fixture.counts().reads_since(&before), [0, 1, 0]);
        assert_eq!(fixture.metrics()("FC_IO_RQ_W_SKIP_SLOW"), refused + 1);
        fixture.flash.remove(stall);
        fixture.flash.release();
        // The probe that was held is late, the next is quick at once.
        world.clock.sleep(Duration::from_millis(1)).await;
        let before = fixture.counts();
        for at in all {
            read(&session, at, 64 * KIB).await;
        }
        assert_eq!(fixture.counts().reads_since(&before), [64, 0, 0]);
    });
}
