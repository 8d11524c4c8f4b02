//! Goal: no segment of dirty data is free before what took its place is durable, whichever part of one flush survives a power cut. Method: a
//! flash cache of 128 segments in virtual time, overwritten in order, with a FLUSH now and then. Cleaning begins when the data is all there is
//! in the segments of dirty data but for one, so that it takes segments right after their last page was overwritten. The power goes within a
//! flush of the flash device that is drawn, and each 4 KiB page that no flush has covered survives with a chance of one half. After the
//! start every block that a FLUSH has covered has a version that is no older, on flash.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::io::{Completed, Io, Op, Outcome};
use device::layers::Memory;
use device::sync::lock;
use device::{Buf, Completer, Completion, Device, Geometry, Prng, SharedBufs, World};
use flashcache::format::Owner;
use flashcache::{CacheConfig, CachedDisk, DirtyRefused, DiskHandle, FlashCache, MemberDevice, Sabotage, Stretch};
use sim::plain::{in_an_executor, process_of};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: usize = 4096;
const SEGMENT_BYTES: u32 = 256 << 10;
/// From so many on, cleaning takes segments of dirty data.
const SEGMENTS: u64 = 128;
/// Parts overwritten, one at a time, each with a header of its own: 31 fill a segment. Cleaning begins at 45 segments of dirty data.
const PARTS: [u64; 3] = [1345, 1375, 1405];
const ROUNDS: u64 = 6;
const FLUSH_EVERY: u64 = 1000;
/// Flushes of the flash device, one of which is the last.
const FLUSHES_MAX: u64 = 150;
const SEEDS: u64 = 24;
const DISK: CachedDisk = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };

/// A flash device whose volatile cache keeps all until a flush. The power goes within a flush that is drawn.
struct Cut {
    visible: Arc<Memory>,
    durable: Arc<Memory>,
    held: Mutex<Vec<(u64, SharedBufs)>>,
    /// Flushes before the last one.
    left: Mutex<u64>,
    is_off: AtomicBool,
    prng: Mutex<Prng>,
    /// What got no answer.
    unanswered: Mutex<Vec<Completer>>,
}

impl Cut {
    fn new(seed: u64) -> Arc<Cut> {
        let plain: Device = Memory::new(SEGMENTS * u64::from(SEGMENT_BYTES));
        let geometry = Geometry { volatile_cache: true, discard_bytes: 0, ..plain.geometry() };
        let medium = || Memory::with_geometry(geometry.clone(), false);
        let mut prng = Prng::new(seed).fork("cut");
        let left = Mutex::new(prng.below(FLUSHES_MAX));
        let (held, prng, unanswered) = (Mutex::default(), Mutex::new(prng), Mutex::default());
        let (visible, durable) = (medium(), medium());
        Arc::new(Cut { visible, durable, held, left, is_off: AtomicBool::new(false), prng, unanswered })
    }

    fn is_off(&self) -> bool {
        self.is_off.load(Ordering::SeqCst)
    }

    /// All of what is held becomes durable, or of each page what a coin says.
    fn settle(&self, is_whole: bool) {
        let mut prng = lock(&self.prng);
        for (offset, data) in lock(&self.held).drain(..) {
            for at in (0..data.len_bytes()).step_by(PAGE) {
                if is_whole || prng.chance(1, 2) {
                    let data = data.slice(at..at + PAGE);
                    drop(self.durable.submit(Op::Write { offset: offset + at as u64, data, fua: true }));
                }
            }
        }
    }

    fn no_answer(&self) -> Completion {
        let (completer, completion) = Completion::pair();
        lock(&self.unanswered).push(completer);
        completion
    }
}

impl Io for Cut {
    fn geometry(&self) -> Geometry {
        self.visible.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if self.is_off() {
            return self.no_answer();
        }
        match &op {
            Op::Flush => {
                let mut left = lock(&self.left);
                let is_last = *left == 0;
                *left = left.saturating_sub(1);
                self.settle(!is_last);
                if is_last {
                    self.is_off.store(true, Ordering::SeqCst);
                    return self.no_answer();
                }
                return Completion::ready(Completed::bare(Outcome::Done));
            }
            Op::Write { offset, data, .. } => lock(&self.held).push((*offset, data.clone())),
            Op::WriteZeroes { .. } | Op::Discard { .. } => unreachable!("the log of a device without TRIM only writes"),
            Op::Read { .. } | Op::Status { .. } => {}
        }
        self.visible.submit(op)
    }
}

async fn opened(device: Device, life: u64, sabotage: Option<Sabotage>, world: &World) -> (Arc<FlashCache>, DiskHandle) {
    let config = CacheConfig {
        segment_bytes: SEGMENT_BYTES,
        chunk_age: Duration::from_millis(1),
        sabotage,
        ..CacheConfig::default()
    };
    let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
    let member = MemberDevice { device, owner, life, durable: true, checkpoint: None };
    let (cache, recovered) = FlashCache::open(config, vec![member], &[DISK], world.clone()).await.unwrap();
    assert!(recovered[0].is_ok(), "{recovered:?}");
    let disk = cache.disk(DISK);
    (cache, disk)
}

/// What a write leaves: each page says of which part and version it is.
fn version(parts: std::ops::Range<u64>, version: u64) -> SharedBufs {
    let pages = parts.flat_map(|part| [part, version].map(u64::to_le_bytes).concat().repeat(PAGE / 16));
    SharedBufs::from(Buf::padded(&pages.collect::<Vec<u8>>(), PAGE).freeze())
}

/// By part: the last version that was begun, that was acknowledged, and that a FLUSH has covered; 0: none.
#[derive(Clone, Copy, Default)]
struct Book {
    begun: u64,
    acknowledged: u64,
    flushed: u64,
}

/// Overwrite it all in order, again and again.
async fn client(cache: Arc<FlashCache>, disk: DiskHandle, books: Arc<Mutex<Vec<Book>>>, world: World) {
    let count = lock(&books).len() as u64;
    for number in 0..ROUNDS * count {
        let (round, part) = (number / count + 1, number % count);
        let parts = part..part + 1;
        lock(&books)[part as usize].begun = round;
        let data = version(parts.clone(), round);
        let again = cache.is_dirty(&disk, &parts);
        while let Err(refused) = cache.write_dirty(&disk, parts.clone(), &data, again).await {
            assert_eq!(refused, DirtyRefused::NoRoom);
            world.clock.sleep(Duration::from_millis(1)).await;
        }
        lock(&books)[part as usize].acknowledged = round;
        if number % FLUSH_EVERY == FLUSH_EVERY - 1 {
            let covered: Vec<u64> = lock(&books).iter().map(|book| book.acknowledged).collect();
            cache.sync(&disk).await.unwrap();
            lock(&books).iter_mut().zip(covered).for_each(|(book, covered)| book.flushed = covered);
        }
    }
}

/// Pages that a FLUSH had covered and that are older after the power cut, or gone. How many dirty segments had been cleaned until then.
fn lost(seed: u64, sabotage: Option<Sabotage>) -> (u64, u64) {
    in_an_executor(async |executor| {
        let device = Cut::new(seed);
        let books = Arc::new(Mutex::new(vec![Book::default(); PARTS[seed as usize % PARTS.len()] as usize]));
        let (process, world) = process_of(executor);
        let (cache, disk) = opened(device.clone(), 2, sabotage, &world).await;
        let ended = Arc::new(AtomicBool::new(false));
        let (over, client) = (ended.clone(), client(cache.clone(), disk, books.clone(), world.clone()));
        device::Spawn::spawn(
            &process,
            Box::pin(async move {
                client.await;
                over.store(true, Ordering::SeqCst);
            }),
        );
        let root = executor.root();
        while !device.is_off() && !ended.load(Ordering::SeqCst) {
            let clock: &(dyn device::Clock + 'static) = &root;
            clock.sleep(Duration::from_micros(100)).await;
        }
        let cleans =
            cache.members().next().unwrap().counters.snapshot().into_iter().find(|(name, _)| *name == "cleans");
        process.kill();
        device.settle(false);

        let (_process, world) = process_of(executor);
        let (cache, disk) = opened(device.durable.clone(), 3, None, &world).await;
        let mut lost = 0;
        let books = lock(&books).clone();
        for (part, book) in (0..).zip(books) {
            let mut found = cache.lookup(&disk, part..part + 1);
            let Some(Stretch::Hit(hit)) = found.pop() else {
                lost += u64::from(book.flushed > 0);
                continue;
            };
            let (result, back) = cache.read_hit(hit, Buf::zeroed(PAGE).into()).await;
            result.unwrap();
            let bytes = back.unwrap().to_vec(0..PAGE);
            let seen = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            assert_eq!(bytes, version(part..part + 1, seen).to_vec(0..PAGE));
            assert!(seen <= book.begun, "part {part}: version {seen} was never written");
            lost += u64::from(seen < book.flushed);
        }
        (lost, cleans.unwrap().1)
    })
}

/// By seed: pages lost, and dirty segments cleaned before the cut.
fn cuts(sabotage: Option<Sabotage>) -> Vec<(u64, u64)> {
    (0..SEEDS).map(|seed| lost(seed, sabotage)).collect()
}

#[test]
fn a_power_cut_within_a_flush_costs_nothing_that_a_flush_had_covered() {
    let cuts = cuts(None);
    assert!(cuts.iter().all(|(lost, _)| *lost == 0), "{cuts:?}");
    assert!(cuts.iter().filter(|(_, cleans)| *cleans > 0).count() as u64 > SEEDS / 2, "{cuts:?}");
}

#[test]
fn a_segment_that_is_freed_before_its_successors_is_caught() {
    let cuts = cuts(Some(Sabotage::FreedBeforeSuccessors));
    assert!(cuts.iter().any(|(lost, _)| *lost > 0), "{cuts:?}");
}
