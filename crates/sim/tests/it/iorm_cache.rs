//! Goal: what the I/O resource plan says of the flash cache holds for whole databases: a size is never exceeded, what is guaranteed
//! stays under the flood of another, a limit counts while the cache is full, and without the plan everybody grows again; a restart
//! goes by the plan from the beginning. Method: a whole cell in virtual time, clients on connections tagged with databases, the
//! cache looked at every few milliseconds; each claim has a control arm without the plan.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests, and the figures they go by")]

use cell::PlanChange;
use cell::metrics::{ProcessUse, samples};
use cell::plan::{Directive, Subject};
use cell::{Cell, CellConfig, Context, Session};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Delay, Memory, Model};
use device::{Buf, Bufs, Clock, Device, Prng, Spawn, World};
use sim::executor::Process;
use sim::plain::{cell_on, in_a_world};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 1 << 30;
const CACHE_BYTES: u64 = 32 * MIB;
const DATA_BYTES: u64 = 256 * MIB;
const READ_BYTES: u64 = 16 << 10;

struct Fixture {
    cell: Arc<Cell>,
    devices: Vec<Device>,
    process: Process,
}

fn config() -> CellConfig {
    let mut config = CellConfig::default();
    config.cache.segment_bytes = 256 << 10;
    config
}

impl Fixture {
    async fn new(mode: CachingMode, process: &Process, world: &World) -> Fixture {
        let device = |name: &str, size_bytes, model| -> Device {
            let prng = world.prng.fork(name);
            Delay::new(Memory::new(size_bytes), model, world.clock.clone(), world.spawn.clone(), prng)
        };
        let disk = device("disk", DISK_BYTES, Model::fixed(1_000_000, 16));
        let devices = vec![disk, device("flash", 128 * MIB, Model::fixed(50_000, 16))];
        let roles = [("CD_disk01", Role::Disk), ("FD_00", Role::Flash)];
        let cell = cell_on(&devices, &roles, config(), world).await;
        cell.create_flash_cache(Some(CACHE_BYTES), &[]).await.unwrap();
        let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let spec =
            GridDiskSpec { caching_mode: mode, ..GridDiskSpec::new("DATA", cell_disk, DATA_BYTES, world.clock.wall()) };
        cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        Fixture { cell, devices, process: process.clone() }
    }

    fn session(&self, database: &str) -> Arc<Session> {
        let context = Context { database: Some(Arc::from(database)), ..Context::default() };
        Arc::new(self.cell.grid_disk("DATA").unwrap().open_session(context))
    }

    async fn plan(&self, directives: Vec<Directive>) {
        self.cell.alter_iorm_plan(PlanChange { directives: Some(directives), ..PlanChange::default() }).await.unwrap();
    }

    fn bytes_of(&self, database: &str) -> u64 {
        let tenant = self.cell.iorm().tenant_of(database);
        tenant.map_or(0, |tenant| self.cell.flash_cache().unwrap().tenant_bytes(tenant))
    }

    /// Clients that ask for random blocks of a stretch of the grid disk.
    fn clients(&self, database: &str, from: u64, bytes: u64, write: bool) -> Clients {
        let clients = Clients { over: Arc::default(), done: Arc::default(), running: Arc::default() };
        let session = self.session(database);
        for n in 0..16 {
            let mut prng: Prng = self.process.handle().prng(&format!("{database} {n}"));
            let (session, clients) = (session.clone(), clients.clone());
            clients.running.fetch_add(1, Ordering::Relaxed);
            self.process.spawn(Box::pin(async move {
                let mut buf: Bufs = Buf::zeroed(READ_BYTES as usize).into();
                while !clients.over.load(Ordering::Relaxed) {
                    let at = from + prng.below(bytes / READ_BYTES) * READ_BYTES;
                    if write && prng.chance(1, 2) {
                        let data = Bufs::from(Buf::zeroed(READ_BYTES as usize)).freeze();
                        session.write(at, data, false).await.unwrap();
                    } else {
                        let (result, back) = session.read(at, buf).await;
                        result.unwrap();
                        buf = back;
                    }
                    clients.done.fetch_add(1, Ordering::Relaxed);
                }
                clients.running.fetch_sub(1, Ordering::Relaxed);
            }));
        }
        clients
    }

    /// So long, looking every two milliseconds.
    async fn watch(&self, time: Duration, mut look: impl FnMut(&Fixture)) {
        let clock: &(dyn Clock + 'static) = &self.process;
        let end = clock.now().after(time);
        while clock.now() < end {
            clock.sleep(Duration::from_millis(2)).await;
            look(self);
        }
        assert_eq!(self.cell.flash_cache().unwrap().miscounted(), None);
    }

    async fn stop(&self, clients: Clients) {
        clients.over.store(true, Ordering::Relaxed);
        while clients.running.load(Ordering::Relaxed) > 0 {
            self.watch(Duration::from_millis(2), |_| ()).await;
        }
    }

    /// The metric of a database.
    fn metric(&self, database: &str) -> u64 {
        let all = samples(&self.cell, "cell", &[], &ProcessUse::default(), &[]);
        let mine = all.iter().find(|s| s.definition.name == "DB_FC_BY_ALLOCATED" && &*s.object == database);
        mine.map_or(0, |sample| sample.value)
    }

    fn counter(&self, name: &str) -> u64 {
        let cache = self.cell.flash_cache().unwrap();
        let all = cache.members().flat_map(|member| member.counters.snapshot());
        all.filter(|(counter, _)| *counter == name).map(|(_, value)| value).sum()
    }
}

#[derive(Clone)]
struct Clients {
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
}

fn of(name: &str) -> Directive {
    Directive::of(Subject::Database(name.to_owned()))
}

fn size(name: &str, bytes: u64) -> Directive {
    Directive { flash_cache_size_bytes: Some(bytes), ..of(name) }
}

const SHORT: Duration = Duration::from_millis(1500);

#[test]
fn a_size_is_never_exceeded_whoever_writes_or_reads() {
    for mode in [CachingMode::WriteThrough, CachingMode::WriteBack] {
        in_a_world(async |process, world| {
            let fixture = Fixture::new(mode, &process, &world).await;
            fixture.plan(vec![size("A", 4 * MIB)]).await;
            let a = fixture.clients("A", 0, 20 * MIB, true);
            let b = fixture.clients("B", 128 * MIB, 8 * MIB, true);
            let mut most = 0;
            fixture.watch(SHORT, |fixture| most = most.max(fixture.bytes_of("A"))).await;
            eprintln!(
                "{mode:?}: A at most {most}, B {}, {} requests of A, {} of its blocks left, {} fills and {} writes refused",
                fixture.bytes_of("B"),
                a.done.load(Ordering::Relaxed),
                fixture.counter("quota_evictions"),
                fixture.counter("fill_skips_quota"),
                fixture.counter("dirty_skips_quota")
            );
            assert!(most <= 4 * MIB && most > 3 * MIB, "{most}");
            assert!(fixture.bytes_of("B") > 5 * MIB, "and others do not suffer: {}", fixture.bytes_of("B"));
            assert_eq!(fixture.metric("A"), fixture.bytes_of("A"));
            // Lower: what is too much leaves, with I/O running; what is dirty when the disk has it.
            fixture.plan(vec![size("A", 8 * MIB)]).await;
            fixture.watch(SHORT, |fixture| assert!(fixture.bytes_of("A") <= 8 * MIB)).await;
            let before = fixture.bytes_of("A");
            assert!(before > 6 * MIB, "{before}");
            fixture.plan(vec![size("A", 4 * MIB)]).await;
            fixture.watch(Duration::from_secs(7), |_| ()).await;
            fixture
                .watch(SHORT, |fixture| assert!(fixture.bytes_of("A") <= 4 * MIB, "{}", fixture.bytes_of("A")))
                .await;
            fixture.plan(Vec::new()).await;
            fixture.watch(2 * SHORT, |_| ()).await;
            let after = fixture.bytes_of("A");
            eprintln!("{mode:?}: {before} with 8 MiB, {after} without a plan");
            assert!(after > 6 * MIB, "without a plan it grows: {after}");
            fixture.stop(a).await;
            fixture.stop(b).await;
            fixture.cell.stop().await.unwrap();
        });
    }
}

/// What A has, and how little it ever had, while B floods the cache.
fn under_a_flood(plan: Vec<Directive>) -> (u64, u64) {
    in_a_world(async move |process, world| {
        let fixture = Fixture::new(CachingMode::WriteThrough, &process, &world).await;
        fixture.plan(plan).await;
        let a = fixture.clients("A", 0, 8 * MIB, false);
        fixture.watch(Duration::from_secs(2), |_| ()).await;
        fixture.stop(a).await;
        let (had, mut least) = (fixture.bytes_of("A"), u64::MAX);
        let b = fixture.clients("B", 128 * MIB, 128 * MIB, false);
        fixture.watch(Duration::from_secs(8), |fixture| least = least.min(fixture.bytes_of("A"))).await;
        fixture.stop(b).await;
        assert!(fixture.counter("reclaims") > 100, "no flood");
        fixture.cell.stop().await.unwrap();
        (had, least)
    })
}

#[test]
fn what_is_guaranteed_stays_under_a_flood_of_another() {
    let (had, least) = under_a_flood(vec![Directive { flash_cache_min_bytes: Some(8 * MIB), ..of("A") }]);
    let (reserved_had, reserved) = under_a_flood(vec![size("A", 8 * MIB)]);
    let (free_had, free) = under_a_flood(Vec::new());
    eprintln!(
        "guaranteed: {least} of {had}; a size as reservation: {reserved} of {reserved_had}; nothing: {free} of {free_had}"
    );
    assert!(had > 7 * MIB && least == had, "{least} of {had}");
    assert!(reserved_had > 7 * MIB && reserved == reserved_had, "{reserved} of {reserved_had}");
    assert!(free * 4 < free_had, "the control arm: {free} of {free_had}");
}

#[test]
fn a_limit_is_exceeded_only_while_there_is_room() {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(CachingMode::WriteThrough, &process, &world).await;
        fixture.plan(vec![Directive { flash_cache_limit_bytes: Some(6 * MIB), ..of("A") }]).await;
        let a = fixture.clients("A", 0, 16 * MIB, false);
        fixture.watch(SHORT, |_| ()).await;
        let alone = fixture.bytes_of("A");
        assert!(alone > 12 * MIB, "nobody else wants it: {alone}");
        let b = fixture.clients("B", 128 * MIB, 128 * MIB, false);
        fixture.watch(SHORT, |_| ()).await;
        let mut most = 0;
        fixture.watch(Duration::from_secs(5), |fixture| most = most.max(fixture.bytes_of("A"))).await;
        eprintln!("limit of 6 MiB: {alone} alone, {most} at most in a full cache");
        assert!(most <= 6 * MIB && most > 4 * MIB, "{most}");
        fixture.stop(a).await;
        fixture.stop(b).await;
        fixture.cell.stop().await.unwrap();
    });
}

#[test]
fn a_restart_goes_by_the_plan_and_the_rest_is_one() {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(CachingMode::WriteThrough, &process, &world).await;
        fixture
            .plan(vec![
                size("A", 4 * MIB),
                Directive { flash_cache_size_bytes: Some(5 * MIB), ..Directive::of(Subject::Other) },
            ])
            .await;
        let a = fixture.clients("A", 0, 64 * MIB, false);
        fixture.watch(SHORT, |_| ()).await;
        fixture.stop(a).await;
        assert!(fixture.bytes_of("A") > 3 * MIB);
        fixture.cell.stop().await.unwrap();
        let (cell, report) = Cell::open(fixture.devices.clone(), config(), world.clone()).await.unwrap();
        assert!(report.notes.iter().all(|note| !note.contains("plan")), "{:?}", report.notes);
        let fixture = Fixture { cell, ..fixture };
        assert_eq!(fixture.bytes_of("A"), 0, "nobody knows whose it was");
        let all: Vec<Clients> = ["A", "B", "C"]
            .into_iter()
            .enumerate()
            .map(|(n, name)| fixture.clients(name, n as u64 * 64 * MIB, 64 * MIB, false))
            .collect();
        let mut most = (0, 0);
        let rest = |fixture: &Fixture| fixture.bytes_of("B") + fixture.bytes_of("C");
        let look = |fixture: &Fixture| most = (most.0.max(fixture.bytes_of("A")), most.1.max(rest(fixture)));
        fixture.watch(SHORT, look).await;
        eprintln!("after a restart: A at most {}, the others together {}", most.0, most.1);
        assert!(most.0 <= 4 * MIB && most.0 > 3 * MIB && most.1 <= 5 * MIB && most.1 > 4 * MIB, "{most:?}");
        for clients in all {
            fixture.stop(clients).await;
        }
        fixture.cell.stop().await.unwrap();
    });
}

#[test]
fn a_plan_beyond_the_cache_is_refused_and_one_of_a_larger_cache_is_cut() {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(CachingMode::WriteThrough, &process, &world).await;
        let least = |bytes| vec![Directive { flash_cache_min_bytes: Some(bytes), ..of("A") }];
        let change = PlanChange { directives: Some(least(26 * MIB)), ..PlanChange::default() };
        let error = fixture.cell.alter_iorm_plan(change).await.unwrap_err().to_string();
        assert!(error.contains("hint: state less") && error.contains(&(26 * MIB).to_string()), "{error}");
        assert!(fixture.cell.iorm().plan().directives().is_empty(), "nothing has changed");
        fixture.plan(least(25 * MIB)).await;
        fixture.cell.drop_flash_cache().await.unwrap();
        fixture.cell.create_flash_cache(Some(CACHE_BYTES / 2), &[]).await.unwrap();
        assert!(fixture.cell.alerts().iter().any(|alert| alert.contains("guarantees less than it states")));
        fixture.cell.stop().await.unwrap();
    });
}
