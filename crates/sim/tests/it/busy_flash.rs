//! Goal: flash that is busier than the disk behind it gets help from the disk, and only then (DESIGN section 3,
//! non-hierarchical caching). Method: virtual time; closed-loop readers over fully cached data, on a flash device and a disk
//! that serve so many requests at once, each for so long. The same readers on each device alone give what the two can do.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CachingMode, Context, GridDisk, GridDiskParts, Session};
use device::layers::{Delay, Memory, Model};
use device::sync::Notify;
use device::{Arena, Buf, Bufs, Clock, Completion, Device, FailKind, Geometry, Io, Op, Prng, Spawn, World};
use flashcache::format::Owner;
use flashcache::{BusyTuning, CacheConfig, CachedDisk, FlashCache, MemberDevice};
use futures_util::future::select;
use sim::executor::Process;
use sim::plain::in_a_world;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DATA_BYTES: u64 = 16 << 20;
const READ_BYTES: u64 = 4096;
const US: u64 = 1_000;
/// The share has settled after this.
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(2);

/// So many requests at once, each for so long.
#[derive(Clone, Copy, Debug)]
struct Medium {
    parallel: u32,
    ns: u64,
}

impl Medium {
    fn device(self, name: &str, size_bytes: u64, world: &World) -> Device {
        let model = Model::fixed(self.ns, self.parallel);
        let prng = world.prng.fork(name);
        Delay::new(Memory::new(size_bytes), model, world.clock.clone(), world.spawn.clone(), prng)
    }
}

/// What readers read.
#[derive(Clone)]
enum Target {
    Device(Device),
    GridDisk(Arc<Session>),
}

impl Target {
    async fn read(&self, offset: u64, buf: Bufs) -> Bufs {
        match self {
            Target::Device(device) => {
                let done = device.read(offset, buf).await;
                done.outcome.ok().unwrap();
                done.bufs
            }
            Target::GridDisk(session) => {
                let (result, buf) = session.read(offset, buf).await;
                result.unwrap();
                buf
            }
        }
    }
}

async fn reader(target: Target, mut prng: Prng, reads: Arc<AtomicU64>, over: Arc<AtomicBool>) {
    let mut buf: Bufs = Buf::zeroed(READ_BYTES as usize).into();
    while !over.load(Ordering::Relaxed) {
        buf = target.read(prng.below(DATA_BYTES / READ_BYTES) * READ_BYTES, buf).await;
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads that are given up while they are under way, as those of a client that dies.
async fn readers_that_die(process: &Process, session: &Arc<Session>, over: Arc<AtomicBool>) {
    for n in 0..256 {
        let (target, over) = (Target::GridDisk(session.clone()), over.clone());
        let (clock, mut prng) = (process.clone(), process.handle().prng(&format!("dying {n}")));
        process.spawn(Box::pin(async move {
            while !over.load(Ordering::Relaxed) {
                let offset = prng.below(DATA_BYTES / READ_BYTES) * READ_BYTES;
                let read = std::pin::pin!(target.read(offset, Buf::zeroed(READ_BYTES as usize).into()));
                let clock: &(dyn Clock + 'static) = &clock;
                // A whole one takes longer than that from the disk, and from flash that is busy.
                select(read, clock.sleep(Duration::from_nanos(prng.between(500 * US, 3_000 * US)))).await;
            }
        }));
    }
    let clock: &(dyn Clock + 'static) = process;
    clock.sleep(WARM_UP).await;
}

fn spawn_readers(process: &Process, target: &Target, count: u64) -> (Arc<AtomicU64>, Arc<AtomicBool>) {
    let (reads, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    for n in 0..count {
        let prng = process.handle().prng(&format!("reader {n}"));
        process.spawn(Box::pin(reader(target.clone(), prng, reads.clone(), over.clone())));
    }
    (reads, over)
}

/// Reads in the measured time.
async fn reads_of(process: &Process, target: Target, readers: u64) -> u64 {
    let clock: &(dyn Clock + 'static) = process;
    let (reads, over) = spawn_readers(process, &target, readers);
    clock.sleep(WARM_UP).await;
    let before = reads.load(Ordering::Relaxed);
    clock.sleep(MEASURED).await;
    let measured = reads.load(Ordering::Relaxed) - before;
    over.store(true, Ordering::Relaxed);
    clock.sleep(Duration::from_secs(1)).await;
    measured
}

/// A grid disk all of which is cached.
struct Cached {
    grid_disk: Arc<GridDisk>,
    cache: Arc<FlashCache>,
    session: Arc<Session>,
}

impl Cached {
    async fn new(flash: Medium, disk: Medium, busy: Option<BusyTuning>, world: &World) -> Cached {
        Cached::over(flash, disk.device("disk", DATA_BYTES, world), busy, world).await
    }

    async fn over(flash: Medium, disk: Device, busy: Option<BusyTuning>, world: &World) -> Cached {
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let named = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
        let config = CacheConfig { busy, ..CacheConfig::default() };
        let members = vec![MemberDevice {
            device: flash.device("flash", 128 << 20, world),
            owner,
            life: 1,
            durable: true,
            checkpoint: None,
        }];
        let (cache, _) = FlashCache::open(config, members, &[named], world.clone()).await.unwrap();
        let grid_disk = GridDisk::new(GridDiskParts {
            id: 7,
            name: "BUSY".to_owned(),
            disk,
            size_bytes: DATA_BYTES,
            arena: Arena::new(16 << 20),
            block_bytes: 16 << 10,
            alarm: Arc::new(Notify::new()),
            sequential_cutoff_bytes: cell::SEQUENTIAL_CUTOFF_BYTES,
            sabotage: None,
        });
        grid_disk.set_cache(Some((cache.clone(), cache.disk(named))), CachingMode::WriteThrough);
        let session = Arc::new(grid_disk.open_session(Context::default()));
        let mut buf: Bufs = Buf::zeroed(64 << 10).into();
        for at in (0..DATA_BYTES).step_by(64 << 10) {
            let (result, back) = session.read(at, buf).await;
            result.unwrap();
            buf = back;
        }
        world.clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(cache.members().next().unwrap().used_bytes(), DATA_BYTES, "all of it is cached");
        Cached { grid_disk, cache, session }
    }

    /// Readers of all of it, until told that it is over: their reads, and where to tell.
    fn readers(&self, process: &Process, count: u64) -> (Arc<AtomicU64>, Arc<AtomicBool>) {
        spawn_readers(process, &Target::GridDisk(self.session.clone()), count)
    }

    fn sent_to_disk(&self) -> u64 {
        self.grid_disk.counters.cache_read_skips_busy.requests.get()
    }
}

fn alone(medium: Medium, readers: u64) -> u64 {
    in_a_world(async |process, world| {
        let device = medium.device("alone", DATA_BYTES, &world);
        reads_of(&process, Target::Device(device), readers).await
    })
}

/// Reads of a cell, and how many of all hits the disk served.
fn of_cell(flash: Medium, disk: Medium, readers: u64, busy: Option<BusyTuning>) -> (u64, u64) {
    in_a_world(async |process, world| {
        let cached = Cached::new(flash, disk, busy, &world).await;
        let misses = cached.grid_disk.counters.disk_reads.requests.get();
        let reads = reads_of(&process, Target::GridDisk(cached.session.clone()), readers).await;
        let from_disk = cached.grid_disk.counters.disk_reads.requests.get() - misses;
        assert_eq!(from_disk, cached.sent_to_disk(), "the disk reads what it was sent");
        cached.cache.stop().await;
        (reads, from_disk)
    })
}

const FLASH: Medium = Medium { parallel: 4, ns: 200 * US };

#[test]
fn busy_flash_and_the_disk_together() {
    let volume = Medium { parallel: 64, ns: 4_000 * US };
    for (flash, disk, readers) in [
        (FLASH, volume, 256),
        (FLASH, volume, 1024),
        // The disk has a fifth of it, or the most of it.
        (FLASH, Medium { parallel: 8, ns: 2_000 * US }, 256),
        (Medium { parallel: 2, ns: 400 * US }, volume, 256),
    ] {
        let (on_flash, on_disk) = (alone(flash, readers), alone(disk, readers));
        let (without, sent) = of_cell(flash, disk, readers, None);
        assert_eq!(sent, 0);
        assert!(without * 100 <= on_flash * 102, "without help a cell is as quick as its flash: {without} {on_flash}");
        let (with, _) = of_cell(flash, disk, readers, Some(BusyTuning::default()));
        #[expect(clippy::print_stderr, reason = "figures for people")]
        {
            let percent = with * 100 / (on_flash + on_disk);
            eprintln!(
                "{readers} readers: flash {on_flash} disk {on_disk} cell {without}, with help {with}: {percent} %"
            );
        }
        assert!(
            with * 10 >= (on_flash + on_disk) * 9,
            "{flash:?} {disk:?} {readers}: {with} of {on_flash} + {on_disk}"
        );
    }
}

#[test]
fn healthy_flash_needs_no_help() {
    let volume = Medium { parallel: 64, ns: 4_000 * US };
    // Up to as many readers as flash serves at once, its queue is empty.
    for readers in [1, 4] {
        let on_flash = alone(FLASH, readers);
        let (reads, sent) = of_cell(FLASH, volume, readers, Some(BusyTuning::default()));
        assert_eq!(sent, 0, "{readers} readers");
        assert!(reads * 100 >= on_flash * 98, "{readers} readers: {reads} of {on_flash}");
    }
    // With a queue, but shorter than the disk's time, probes are all the disk sees.
    let (reads, sent) = of_cell(FLASH, volume, 32, Some(BusyTuning::default()));
    assert!(sent <= 20 && reads * 100 >= alone(FLASH, 32) * 98, "{reads} reads, {sent} from disk");
}

/// A disk that can be made to fail, or to answer nothing.
struct Ill {
    below: Device,
    fails: AtomicBool,
    stalls: AtomicBool,
}

impl Io for Ill {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if self.fails.load(Ordering::Relaxed) {
            return Completion::failed(FailKind::Media, op);
        }
        if self.stalls.load(Ordering::Relaxed) {
            return Completion::future(std::future::pending());
        }
        self.below.submit(op)
    }
}

/// A disk that falls ill while it helps: nobody gets an error, nobody waits for it, and it is left alone.
async fn disk_falls_ill(process: Process, world: World, how: fn(&Ill) -> &AtomicBool) {
    let clock: &(dyn Clock + 'static) = &process;
    let volume = Medium { parallel: 64, ns: 4_000 * US }.device("disk", DATA_BYTES, &world);
    let ill = Arc::new(Ill { below: volume, fails: AtomicBool::new(false), stalls: AtomicBool::new(false) });
    let cached = Cached::over(FLASH, ill.clone(), Some(BusyTuning::default()), &world).await;
    let (reads, over) = cached.readers(&process, 256);
    clock.sleep(WARM_UP).await;
    assert!(cached.sent_to_disk() > 10_000, "the disk helps");
    how(&ill).store(true, Ordering::Relaxed);
    clock.sleep(Duration::from_secs(3)).await;
    let (before, sent) = (reads.load(Ordering::Relaxed), cached.sent_to_disk());
    clock.sleep(Duration::from_secs(1)).await;
    // Flash alone does 20,000 a second.
    let in_a_second = reads.load(Ordering::Relaxed) - before;
    assert!(in_a_second >= 19_600, "{in_a_second} reads a second");
    assert!(cached.sent_to_disk() - sent <= 8, "probes at most");
    over.store(true, Ordering::Relaxed);
    clock.sleep(Duration::from_secs(1)).await;
    cached.cache.stop().await;
}

#[test]
fn a_disk_that_falls_ill_while_it_helps_holds_up_nobody() {
    in_a_world(async |process, world| disk_falls_ill(process, world, |ill| &ill.fails).await);
    in_a_world(async |process, world| disk_falls_ill(process, world, |ill| &ill.stalls).await);
}

#[test]
fn help_ends_with_the_load_and_fills_are_declined_meanwhile() {
    in_a_world(async |process, world| {
        let volume = Medium { parallel: 64, ns: 4_000 * US };
        let cached = Cached::new(FLASH, volume, Some(BusyTuning::default()), &world).await;
        let counters = &cached.grid_disk.counters;
        let write = async |at: u64| {
            let data = Bufs::from(Buf::zeroed(READ_BYTES as usize)).freeze();
            cached.session.write(at, data, false).await.unwrap();
        };
        write(0).await;
        assert_eq!(counters.cache_write_fill_skips_busy.requests.get(), 0, "healthy flash keeps what is written");
        let target = Target::GridDisk(cached.session.clone());
        let writes_while_busy = async {
            world.clock.sleep(WARM_UP).await;
            write(0).await;
            // What was written is a miss now, whose fill is declined as well.
            let (result, _) = cached.session.read(0, Buf::zeroed(READ_BYTES as usize).into()).await;
            result.unwrap();
        };
        futures_util::future::join(reads_of(&process, target, 256), writes_while_busy).await;
        assert_eq!(counters.cache_write_fill_skips_busy.requests.get(), 1);
        assert!(counters.cache_fill_skips_busy.requests.get() >= 1);
        // An hour later: the load is gone, and so is the reason.
        world.clock.sleep(Duration::from_secs(3600)).await;
        let sent = cached.sent_to_disk();
        write(0).await;
        assert_eq!(counters.cache_write_fill_skips_busy.requests.get(), 1, "kept again");
        reads_of(&process, Target::GridDisk(cached.session.clone()), 2).await;
        assert_eq!(cached.sent_to_disk(), sent);
        cached.cache.stop().await;
    });
}

#[test]
fn clients_that_die_while_the_disk_reads_for_them_do_not_end_its_help() {
    in_a_world(async |process, world| {
        let clock: &(dyn Clock + 'static) = &process;
        let volume = Medium { parallel: 64, ns: 4_000 * US };
        let cached = Cached::new(FLASH, volume, Some(BusyTuning::default()), &world).await;
        let (_, over) = cached.readers(&process, 256);
        clock.sleep(WARM_UP).await;
        let helped = cached.sent_to_disk();
        assert!(helped > 10_000, "the disk helps: {helped}");
        let dead = Arc::new(AtomicBool::new(false));
        readers_that_die(&process, &cached.session, dead.clone()).await;
        dead.store(true, Ordering::Relaxed);
        // A disk that was of no use is asked again after 16 s at the latest, and the share grows from little.
        clock.sleep(Duration::from_secs(40)).await;
        let before = cached.sent_to_disk();
        clock.sleep(WARM_UP).await;
        assert!(cached.sent_to_disk() - before > helped / 2, "the disk helps on: {}", cached.sent_to_disk() - before);
        over.store(true, Ordering::Relaxed);
        clock.sleep(Duration::from_secs(1)).await;
        cached.cache.stop().await;
    });
}
