//! Goal: no page is stale, foreign or lost, whatever comes together; waits account for all of the time; the flash cache takes what the
//! vendor's takes. Method: sessions at random over slow devices in the virtual world, against a table of versions, with broken builds that
//! must be caught; and the same code in the real world.

#![expect(clippy::unwrap_used, reason = "tests")]

use buffercache::{
    BufferCache, CacheParts, Config, Figures, FlashCache, Keep, Objects, PageNumber, RedoLog, Sabotage, Stamped,
    Version, Waits,
};
use device::layers::Memory;
use device::sync::one_shot;
use device::{Clock, Completion, Device, Geometry, Io, Op, Prng, Runtime, RuntimeConfig, Verb, World};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: usize = 8192;
const PAGES: u64 = 60;

/// A device in memory whose reads and writes take their time: writes happen at their end.
struct Slow {
    memory: Arc<Memory>,
    clock: Arc<dyn Clock>,
    read: Duration,
    write: Duration,
}

impl Slow {
    fn of(bytes: u64, world: &World, read_us: u64, write_us: u64) -> Device {
        let (read, write) = (Duration::from_micros(read_us), Duration::from_micros(write_us));
        Arc::new(Slow { memory: Memory::new(bytes), clock: world.clock.clone(), read, write })
    }
}

impl Io for Slow {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn submit(&self, op: Op) -> Completion {
        let time = if op.verb() == Verb::Read { self.read } else { self.write };
        let (memory, clock) = (self.memory.clone(), self.clock.clone());
        Completion::future(async move {
            clock.sleep(time).await;
            memory.submit(op).await
        })
    }
}

struct Rig {
    cache: Arc<BufferCache<Stamped>>,
    data: Device,
    flash: Device,
    world: World,
}

struct Times {
    disk_us: (u64, u64),
    flash_us: (u64, u64),
    redo_us: u64,
}

const TIMES: Times = Times { disk_us: (5_000, 4_000), flash_us: (100, 300), redo_us: 400 };

fn rig(world: &World, times: &Times, flash_pages: u64, config: Config) -> Rig {
    let data = Slow::of(PAGES * PAGE as u64, world, times.disk_us.0, times.disk_us.1);
    let flash = Slow::of(64 * PAGE as u64, world, times.flash_us.0, times.flash_us.1);
    let redo = RedoLog::new(Slow::of(1 << 20, world, times.redo_us, times.redo_us));
    let parts = CacheParts {
        format: Stamped::new(PAGE),
        data: data.clone(),
        redo: Some(redo),
        flash: (flash_pages > 0).then(|| FlashCache::new(flash.clone(), Some(flash_pages * PAGE as u64), PAGE)),
        world: world.clone(),
    };
    Rig { cache: BufferCache::start(config, parts), data, flash, world: world.clone() }
}

/// The version each page has.
type Truth = Arc<Vec<AtomicU64>>;

fn truth() -> Truth {
    Arc::new((0..PAGES).map(|_| AtomicU64::new(0)).collect())
}

/// One client: what it found wrong.
async fn client(rig: Arc<Rig>, truth: Truth, mut prng: Prng, steps: u64) -> (Option<String>, Waits) {
    let mut session = rig.cache.session();
    let mut wrong = None;
    for _ in 0..steps {
        // Half of the references to a sixth of the pages.
        let among = if prng.chance(1, 2) { PAGES / 6 } else { PAGES };
        let page = PageNumber(prng.below(among));
        let now = |page: PageNumber| truth[page.0 as usize].load(Ordering::SeqCst);
        let before = now(page);
        let mut check = |page: PageNumber, before: u64, found: Version| {
            if found.0 < before || found.0 > now(page) {
                wrong.get_or_insert(format!("page {}: {} instead of {before}", page.0, found.0));
            }
        };
        match prng.below(20) {
            0..10 => match session.get(page).await {
                Ok(found) => check(page, before, found),
                Err(error) => return (Some(error.to_string()), session.waits()),
            },
            10..18 => {
                let edit = |version: &mut Version| {
                    version.0 += 1;
                    truth[page.0 as usize].fetch_add(1, Ordering::SeqCst);
                };
                session.change(page, edit).await.unwrap();
                if prng.chance(1, 2) {
                    session.commit().await.unwrap();
                }
            }
            18 => {
                let from = prng.below(PAGES - 10);
                let before: Vec<u64> = (0..PAGES).map(|n| now(PageNumber(n))).collect();
                let each = |page: PageNumber, found: &Version| check(page, before[page.0 as usize], *found);
                if let Err(error) = session.scan(from..from + 10, each).await {
                    return (Some(error.to_string()), session.waits());
                }
            }
            _ => session.compute(Duration::from_micros(prng.below(9_000))).await,
        }
    }
    (wrong, session.waits())
}

/// Clients at random; then everything is written, and the data file must have it.
async fn at_random(world: &World, seed: u64, sabotage: Option<Sabotage>) -> Result<Figures, String> {
    let prng = Prng::new(seed);
    let mut draw = prng.fork("config");
    let config = Config {
        checkpoint_changes: draw.chance(1, 2).then_some(20),
        objects: Objects::new().with(0..5, Keep::Keep).with(20..25, Keep::None),
        touch_every: Duration::from_millis(20),
        sabotage,
        ..Config::new(16)
    };
    let rig = Arc::new(rig(world, &TIMES, 12, config));
    let (truth, mut ends) = (truth(), Vec::new());
    for n in 0..4 {
        let (sender, receiver) = one_shot();
        let work = client(rig.clone(), truth.clone(), prng.fork(&format!("client {n}")), 300);
        rig.world.spawn.spawn(Box::pin(async move { sender.send(work.await.0) }));
        ends.push(receiver);
    }
    let mut wrong = None;
    for end in ends {
        wrong = wrong.or(end.await.ok_or("a client died")?);
    }
    if !rig.cache.checkpoint().await {
        return Err("the checkpoint failed".to_owned());
    }
    let figures = rig.cache.figures();
    rig.cache.stop().await;
    for page in 0..PAGES {
        let read = rig.data.read(page * PAGE as u64, device::Buf::zeroed(PAGE).into()).await;
        let found = buffercache::PageFormat::unpack(&Stamped::new(PAGE), PageNumber(page), read.bufs.view(0..PAGE));
        let expected = Some(Version(truth[page as usize].load(Ordering::SeqCst)));
        if found != expected {
            wrong.get_or_insert(format!("page {page}: {found:?} in the data file instead of {expected:?}"));
        }
    }
    if figures.unwritten_redo > 0 {
        wrong.get_or_insert("pages were written before their redo".to_owned());
    }
    wrong.map_or(Ok(figures), Err)
}

fn in_virtual_time(seed: u64, sabotage: Option<Sabotage>) -> Result<Figures, String> {
    sim::plain::in_a_world(async |_, world| at_random(&world, seed, sabotage).await)
}

#[test]
fn nothing_is_stale_foreign_or_lost() {
    for seed in 0..60 {
        let figures = in_virtual_time(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let flash = figures.flash.unwrap();
        assert!(flash.hits > 0 && flash.invalidated > 0 && flash.inserts > 0, "seed {seed}: {figures:?}");
        assert!(figures.dirty == 0 && figures.reads > 100, "seed {seed}: {figures:?}");
    }
}

#[test]
fn broken_builds_are_caught() {
    for sabotage in [Sabotage::StaleFlash, Sabotage::LostChange, Sabotage::DataBeforeRedo, Sabotage::ReusesDirty] {
        let caught = (0..20).filter(|seed| in_virtual_time(*seed, Some(sabotage)).is_err()).count();
        assert!(caught >= 10, "{sabotage:?} was caught {caught} times of 20");
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    assert_eq!(in_virtual_time(7, None), in_virtual_time(7, None));
    assert_ne!(in_virtual_time(7, None), in_virtual_time(8, None));
}

#[test]
fn the_same_code_works_in_the_real_world() {
    let runtime = Runtime::new(RuntimeConfig { threads: 2, ..RuntimeConfig::default() }).unwrap();
    let world = runtime.world(1);
    let figures = runtime.block_on(async move { at_random(&world, 3, None).await });
    assert!(figures.unwrap().flash.unwrap().inserts > 0);
}

#[test]
fn waits_account_for_all_of_the_time() {
    sim::plain::in_a_world(async |_, world| {
        let rig = Arc::new(rig(&world, &TIMES, 12, Config::new(16)));
        let begun = world.clock.now();
        let (wrong, waits) = client(rig.clone(), truth(), Prng::new(1), 500).await;
        assert_eq!(wrong, None);
        assert_eq!(waits.total_ns(), world.clock.now().ns_since(begun), "{waits:?}");
        rig.cache.stop().await;
    });
}

/// Reads over twice the buffers; what the flash cache did.
fn fed(
    objects: Objects,
    flash_pages: u64,
    pages: std::ops::Range<u64>,
    rounds: u64,
    think_us: u64,
) -> (Figures, Vec<bool>) {
    sim::plain::in_a_world(async |_, world| {
        let rig = rig(&world, &TIMES, flash_pages, Config { objects, ..Config::new(16) });
        let mut session = rig.cache.session();
        for _ in 0..rounds {
            for page in pages.clone() {
                assert_eq!(session.get(PageNumber(page)).await, Ok(Version(0)));
                session.compute(Duration::from_micros(think_us)).await;
            }
        }
        let held = (0..PAGES).map(|page| rig.cache.flash().unwrap().holds(PageNumber(page))).collect();
        let figures = rig.cache.figures();
        rig.cache.stop().await;
        (figures, held)
    })
}

#[test]
fn what_leaves_memory_is_read_from_flash() {
    let (figures, _) = fed(Objects::new(), 64, 0..40, 4, 1_000);
    // The first round comes from the data file, all others from flash.
    assert_eq!(figures.reads, 40);
    assert_eq!(figures.flash.unwrap().hits, 3 * 40);
}

#[test]
fn keep_is_kept_and_none_is_not_there() {
    let objects = Objects::new().with(0..8, Keep::Keep).with(20..30, Keep::None);
    let (figures, held) = fed(objects, 12, 0..60, 3, 1_000);
    assert!(held[0..8].iter().all(|is_held| *is_held), "KEEP stays: {held:?}");
    assert!(!held[20..30].iter().any(|is_held| *is_held), "NONE is not there: {held:?}");
    let flash = figures.flash.unwrap();
    assert!(flash.skipped_none > 0 && flash.pushed_out > 0, "{flash:?}");
}

/// Goal: the vendor's rule. Method: changes faster than the data file takes them; the writer has no time for flash.
#[test]
fn a_busy_writer_does_not_feed() {
    let run = |changes: bool| {
        sim::plain::in_a_world(async |_, world| {
            let rig = rig(&world, &TIMES, 64, Config::new(16));
            let mut session = rig.cache.session();
            let mut prng = Prng::new(1);
            for _ in 0..2_000 {
                let page = PageNumber(prng.below(PAGES));
                if changes && prng.chance(9, 10) {
                    session.change(page, |version| version.0 += 1).await.unwrap();
                } else {
                    session.get(page).await.unwrap();
                }
            }
            let (waits, figures) = (session.waits(), rig.cache.figures());
            rig.cache.stop().await;
            (waits, figures.flash.unwrap())
        })
    };
    let ((_, idle), (waits, busy)) = (run(false), run(true));
    assert!(busy.skipped_overloaded > 10 * idle.skipped_overloaded, "{busy:?} against {idle:?}");
    assert!(waits.ns(buffercache::Wait::FreeBuffer) > 0, "{waits:?}");
}

#[test]
fn a_damaged_copy_is_read_from_the_data_file() {
    sim::plain::in_a_world(async |_, world| {
        let rig = rig(&world, &TIMES, 64, Config::new(16));
        let mut session = rig.cache.session();
        let get_all = async |session: &mut buffercache::Session<Stamped>| {
            for page in 0..40 {
                assert_eq!(session.get(PageNumber(page)).await, Ok(Version(0)));
            }
        };
        get_all(&mut session).await;
        let rot = sim::plain::full_of(PAGE, 0x55);
        for slot in 0..64 {
            rig.flash.write(slot * PAGE as u64, rot.clone(), false).await;
        }
        get_all(&mut session).await;
        assert!(rig.cache.figures().flash.unwrap().damaged > 0);
        rig.cache.stop().await;
    });
}

#[test]
fn sessions_that_commit_together_share_a_write() {
    sim::plain::in_a_world(async |_, world| {
        let rig = Arc::new(rig(&world, &TIMES, 0, Config::new(32)));
        let done = Arc::new(Mutex::new(0));
        let mut ends = Vec::new();
        for n in 0..10 {
            let (sender, receiver) = one_shot();
            let (rig, done) = (rig.clone(), done.clone());
            world.spawn.spawn(Box::pin(async move {
                let mut session = rig.cache.session();
                session.change(PageNumber(n), |version| version.0 += 1).await.unwrap();
                session.commit().await.unwrap();
                *done.lock().unwrap() += 1;
                sender.send(session.waits().ns(buffercache::Wait::LogFileSync));
            }));
            ends.push(receiver);
        }
        for end in ends {
            // Its own write, or the one after the one under way.
            assert!(end.await.unwrap() <= 2 * TIMES.redo_us * 1_000);
        }
        rig.cache.stop().await;
    });
}
