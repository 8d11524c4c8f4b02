//! Goal: the I/O resource plan does what it says: shares hold under saturation, limits are never exceeded, nobody starves, what is
//! idle goes to others, redo does not wait, and who needs no plan does not feel one. Method: a whole cell in virtual time over
//! disks whose speed is known, clients on connections tagged with databases; each claim has a control arm without the plan, in which it
//! must not hold.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests, and the figures they go by")]

use cell::PlanChange;
use cell::plan::{Directive, Objective, Subject};
use cell::{Cell, CellConfig, Context, Session};
use celldisk::{CachingMode, GridDiskSpec, Purpose, Role};
use device::layers::{Delay, Memory, Model};
use device::{Buf, Bufs, Clock, Device, Prng, Spawn, World};
use sim::executor::Process;
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DISK_BYTES: u64 = 1 << 30;
const FLASH_BYTES: u64 = 512 << 20;
const DATA_BYTES: u64 = 256 << 20;
const READ_BYTES: u64 = 8 << 10;
const MS: u64 = 1_000_000;
const WARM_UP: Duration = Duration::from_secs(2);

/// One request at a time, a millisecond each.
fn serial() -> Model {
    Model::fixed(MS, 1)
}

/// A network volume: 4 ms, 64 at a time.
fn volume() -> Model {
    Model::fixed(4 * MS, 64)
}

struct Fixture {
    cell: Arc<Cell>,
    devices: Vec<Device>,
    world: World,
}

impl Fixture {
    async fn new(disk: Model, with_flash: bool, world: &World) -> Fixture {
        let device = |name: &str, size_bytes, model| -> Device {
            let prng = world.prng.fork(name);
            Delay::new(Memory::new(size_bytes), model, world.clock.clone(), world.spawn.clone(), prng)
        };
        let mut devices = vec![device("disk", DISK_BYTES, disk)];
        let mut roles = vec![("CD_disk01", Role::Disk)];
        if with_flash {
            devices.push(device("flash", FLASH_BYTES, Model::fixed(MS / 10, 8)));
            roles.push(("FD_00", Role::Flash));
        }
        let cell = cell_on(&devices, &roles, CellConfig::default(), world).await;
        let made = Fixture { cell, devices, world: world.clone() };
        made.grid_disk("DATA", Purpose::Data, CachingMode::WriteThrough).await;
        made
    }

    async fn grid_disk(&self, name: &str, purpose: Purpose, caching_mode: CachingMode) {
        let cell_disk = self.cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let spec = GridDiskSpec {
            purpose,
            caching_mode,
            ..GridDiskSpec::new(name, cell_disk, DATA_BYTES, self.world.clock.wall())
        };
        self.cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
    }

    fn session(&self, grid_disk: &str, database: &str) -> Arc<Session> {
        let context = Context { database: Some(Arc::from(database)), ..Context::default() };
        Arc::new(self.cell.grid_disk(grid_disk).unwrap().open_session(context))
    }

    async fn plan(&self, directives: Vec<Directive>) {
        self.cell.alter_iorm_plan(PlanChange { directives: Some(directives), ..PlanChange::default() }).await.unwrap();
    }

    async fn aim(&self, objective: Objective) {
        self.cell.alter_iorm_plan(PlanChange { objective: Some(objective), ..PlanChange::default() }).await.unwrap();
    }
}

fn of(name: &str) -> Directive {
    let subject = match name {
        "other" => Subject::Other,
        "default" => Subject::Default,
        name => Subject::Database(name.to_owned()),
    };
    Directive::of(subject)
}

fn share(name: &str, share: u32) -> Directive {
    Directive { share: Some(share), ..of(name) }
}

fn limit(name: &str, limit: u32) -> Directive {
    Directive { limit: Some(limit), ..of(name) }
}

/// Clients of one database: each asks again as soon as it has its answer.
struct Clients {
    /// When each request was answered.
    answers: Arc<Mutex<Vec<u64>>>,
    /// How long each took.
    times: Arc<Mutex<Vec<u64>>>,
    under_way: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Clients {
    fn read(process: &Process, session: &Arc<Session>, clients: u64, bytes: u64) -> Clients {
        Clients::start(process, session, clients, bytes, false)
    }

    fn start(process: &Process, session: &Arc<Session>, clients: u64, bytes: u64, write: bool) -> Clients {
        let made =
            Clients { answers: Arc::default(), times: Arc::default(), under_way: Arc::default(), over: Arc::default() };
        for n in 0..clients {
            let (answers, times, over) = (made.answers.clone(), made.times.clone(), made.over.clone());
            let (session, under_way, process_clock) = (session.clone(), made.under_way.clone(), process.clone());
            let mut prng: Prng = process.handle().prng(&format!("{:?} {n}", session.context().database));
            process.spawn(Box::pin(async move {
                let clock: &(dyn Clock + 'static) = &process_clock;
                let mut buf: Bufs = Buf::zeroed(bytes as usize).into();
                while !over.load(Ordering::Relaxed) {
                    let at = prng.below(DATA_BYTES / bytes) * bytes;
                    let begun = clock.now();
                    under_way.fetch_add(1, Ordering::Relaxed);
                    if write {
                        session.write(at, full_of(bytes as usize, 7), false).await.unwrap();
                    } else {
                        let (result, back) = session.read(at, buf).await;
                        result.unwrap();
                        buf = back;
                    }
                    under_way.fetch_sub(1, Ordering::Relaxed);
                    let now = clock.now();
                    answers.lock().unwrap().push(now.0);
                    times.lock().unwrap().push(now.ns_since(begun));
                }
            }));
        }
        made
    }

    fn count(&self) -> u64 {
        self.answers.lock().unwrap().len() as u64
    }

    /// Answers, and time of the slowest but one in a hundred, from now on.
    async fn measure(&self, process: &Process, time: Duration) -> (u64, u64) {
        let clock: &(dyn Clock + 'static) = process;
        let before = self.count();
        clock.sleep(time).await;
        let mut times: Vec<u64> = self.times.lock().unwrap()[before as usize..].to_vec();
        times.sort_unstable();
        let p99 = times.get(times.len().saturating_sub(1 + times.len() / 100)).copied().unwrap_or(u64::MAX);
        (times.len() as u64, p99)
    }

    async fn stop(self, process: &Process) {
        let clock: &(dyn Clock + 'static) = process;
        self.over.store(true, Ordering::Relaxed);
        while self.under_way.load(Ordering::Relaxed) > 0 {
            clock.sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Answers of two databases in ten seconds, with so many clients each.
fn race(disk: Model, plan: &[Directive], clients: [u64; 2], bytes: [u64; 2]) -> [u64; 2] {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(disk, false, &world).await;
        fixture.plan(plan.to_vec()).await;
        let a = Clients::read(&process, &fixture.session("DATA", "A"), clients[0], bytes[0]);
        let b = Clients::read(&process, &fixture.session("DATA", "B"), clients[1], bytes[1]);
        world.clock.sleep(WARM_UP).await;
        let (of_a, of_b) = futures_util::future::join(
            a.measure(&process, Duration::from_secs(10)),
            b.measure(&process, Duration::from_secs(10)),
        )
        .await;
        a.stop(&process).await;
        b.stop(&process).await;
        [of_a.0, of_b.0]
    })
}

fn per_mille(of: [u64; 2]) -> u64 {
    of[0] * 1000 / (of[0] + of[1]).max(1)
}

fn thirty_seventy() -> Vec<Directive> {
    vec![share("A", 3), share("B", 7)]
}

/// Within five per cent of 30 %.
fn is_thirty(per_mille: u64) -> bool {
    (285..=315).contains(&per_mille)
}

#[test]
fn shares_hold_under_saturation_on_every_medium() {
    for (name, disk) in [("serial", serial()), ("volume", volume()), ("7200", "sata-7200".parse().unwrap())] {
        let shared = race(disk.clone(), &thirty_seventy(), [128, 128], [READ_BYTES; 2]);
        let free = race(disk, &[], [128, 128], [READ_BYTES; 2]);
        eprintln!(
            "{name}: with the plan {} ‰ ({shared:?}), without {} ‰ ({free:?})",
            per_mille(shared),
            per_mille(free)
        );
        assert!(is_thirty(per_mille(shared)), "{name}: {shared:?}");
        assert!(!is_thirty(per_mille(free)), "{name}: the control arm must not hold: {free:?}");
        let (all, all_free) = (shared[0] + shared[1], free[0] + free[1]);
        eprintln!("{name}: throughput {all} with, {all_free} without");
        assert!(all * 100 >= all_free * 90, "{name}: a plan that divides leaves what it divides: {all} of {all_free}");
    }
}

#[test]
fn a_profile_gives_its_shares_to_each_that_has_it() {
    // A has the profile, B and C a directive each: 7 of 14 shares; then C has it too, at once: 7 of 19, of which A and B see 12.
    let figures = in_a_world(async |process, world| {
        let fixture = Fixture::new(serial(), false, &world).await;
        let gold = Directive { subject: Subject::Profile("gold".to_owned()), ..share("", 7) };
        let give = |database: &str| vec![(database.to_owned(), Some("GOLD".to_owned()))];
        let change = PlanChange {
            directives: Some(vec![gold, share("B", 5), share("default", 2)]),
            profiles: give("a"),
            ..PlanChange::default()
        };
        fixture.cell.alter_iorm_plan(change).await.unwrap();
        let clients =
            ["A", "B", "C"].map(|name| Clients::read(&process, &fixture.session("DATA", name), 64, READ_BYTES));
        let mut figures = Vec::new();
        for change in [Vec::new(), give("c")] {
            fixture.cell.alter_iorm_plan(PlanChange { profiles: change, ..PlanChange::default() }).await.unwrap();
            world.clock.sleep(WARM_UP).await;
            let before: Vec<u64> = clients.iter().map(Clients::count).collect();
            world.clock.sleep(Duration::from_secs(10)).await;
            figures.push(clients.iter().zip(before).map(|(one, before)| one.count() - before).collect::<Vec<_>>());
        }
        for one in clients {
            one.stop(&process).await;
        }
        figures
    });
    eprintln!("A with the profile, B with 5 shares, C with 2, then with the profile too: {figures:?}");
    for (found, shares) in figures.iter().zip([[7, 5, 2], [7, 5, 7]]) {
        let (all, sum): (u64, u64) = (found.iter().sum(), shares.iter().sum());
        for (count, share) in found.iter().zip(shares) {
            assert!(count * sum * 100 >= all * share * 95 && count * sum * 100 <= all * share * 105, "{figures:?}");
        }
    }
}

#[test]
fn who_asks_more_gets_no_more() {
    let greedy = race(serial(), &thirty_seventy(), [1000, 30], [READ_BYTES; 2]);
    let free = race(serial(), &[], [1000, 30], [READ_BYTES; 2]);
    eprintln!("1000 clients against 30: {} ‰ with the plan, {} ‰ without", per_mille(greedy), per_mille(free));
    assert!(is_thirty(per_mille(greedy)), "{greedy:?}");
    assert!(per_mille(free) > 900, "{free:?}");
}

#[test]
fn levels_give_what_is_left_to_those_below() {
    let level = |name, level, allocation| Directive { level: Some(level), allocation: Some(allocation), ..of(name) };
    let plan = [level("A", 1, 30), level("B", 2, 80), level("other", 3, 100)];
    // Nobody else wants what level 2 leaves: A and B share it as 30 to 56.
    let both = per_mille(race(serial(), &plan, [64, 64], [READ_BYTES; 2]));
    assert!(both.abs_diff(349) <= 17, "{both}");
}

#[test]
fn what_is_idle_goes_to_others() {
    let plan = [share("A", 1), share("B", 31)];
    let alone = race(serial(), &plan, [64, 0], [READ_BYTES; 2]);
    let free = race(serial(), &[], [64, 0], [READ_BYTES; 2]);
    eprintln!("one of 32 shares, the other idle: {} of {}", alone[0], free[0]);
    assert!(alone[0] * 100 >= free[0] * 98, "{alone:?} against {free:?}");
    let both = race(serial(), &plan, [64, 64], [READ_BYTES; 2]);
    assert!(both[0] * 20 < free[0], "and it is a small share when it is not: {both:?}");
}

#[test]
fn nobody_starves() {
    // One client against 31 shares with a thousand of them, and with large requests.
    let worst = |plan: &[Directive], bytes: u64| {
        let plan = plan.to_vec();
        in_a_world(async move |process, world| {
            let fixture = Fixture::new(serial(), false, &world).await;
            fixture.plan(plan).await;
            let crowd = Clients::read(&process, &fixture.session("DATA", "B"), 1000, bytes);
            world.clock.sleep(WARM_UP).await;
            let one = Clients::read(&process, &fixture.session("DATA", "A"), 1, READ_BYTES);
            one.measure(&process, Duration::from_secs(20)).await;
            let worst = one.times.lock().unwrap().iter().copied().max().unwrap();
            one.stop(&process).await;
            crowd.stop(&process).await;
            worst / MS
        })
    };
    let plan = [share("A", 1), share("B", 31)];
    let (small, large, free) = (worst(&plan, READ_BYTES), worst(&plan, 1 << 20), worst(&[], READ_BYTES));
    eprintln!(
        "the slowest of a client with one of 32 shares: {small} ms, against large ones {large} ms, no plan {free} ms"
    );
    // A 32nd of 1000 a second, and what is under way.
    assert!(small <= 32 + 8 + 2 && large <= 42);
    assert!(free > 900, "without a plan it waits for all of them: {free} ms");
}

/// Requests answered in the fullest window of each length, of all in 30 s.
fn fullest(answers: &[u64], window_ns: u64) -> u64 {
    let (mut low, mut most) = (0, 0);
    for (high, at) in answers.iter().enumerate() {
        while answers[low] + window_ns <= *at {
            low += 1;
        }
        most = most.max(high - low + 1);
    }
    most as u64
}

#[test]
fn a_limit_is_never_exceeded_and_is_used_up() {
    for (name, disk, all_in_a_second) in [("serial", serial(), 1000), ("volume", volume(), 16_000)] {
        let answers = |plan: &[Directive], others: u64| {
            let (plan, disk) = (plan.to_vec(), disk.clone());
            in_a_world(async move |process, world| {
                let fixture = Fixture::new(disk, false, &world).await;
                fixture.aim(Objective::HighThroughput).await;
                fixture.plan(plan).await;
                let a = Clients::read(&process, &fixture.session("DATA", "A"), 128, READ_BYTES);
                let b = Clients::read(&process, &fixture.session("DATA", "B"), others, READ_BYTES);
                world.clock.sleep(Duration::from_secs(30)).await;
                let answers = a.answers.lock().unwrap().clone();
                a.stop(&process).await;
                b.stop(&process).await;
                answers
            })
        };
        for others in [0, 128] {
            let limited = answers(&[limit("A", 20)], others);
            for window_ms in [1000, 3000, 10_000] {
                let most = fullest(&limited, window_ms * MS);
                // 20 % of what the disk can do in that time, and what the limit's period holds.
                let allowed = all_in_a_second * (window_ms + 50) / 5000 + 40;
                eprintln!("{name}, {others} others: at most {most} of {allowed} in {window_ms} ms");
                assert!(most <= allowed, "{name}: {most} in {window_ms} ms, {allowed} allowed");
            }
            if others == 0 {
                let all = limited.len() as u64;
                // A fifth of what it can do; on a volume nobody knows what that is before it is tried, which nobody does who may
                // not: of what 32 at a time can do then.
                let least = if name == "serial" { 5_800 } else { 24_000 };
                eprintln!("{name}: {all} in 30 s");
                assert!(all >= least, "{name}: an idle disk's limit is used: {all}");
            }
        }
        let free = answers(&[], 0);
        assert!(
            fullest(&free, 1000 * MS) * 10 >= all_in_a_second * 9,
            "the control arm: {}",
            fullest(&free, 1000 * MS)
        );
    }
}

#[test]
fn redo_does_not_wait_in_the_plan() {
    let p99 = |grid_disk: &'static str| {
        in_a_world(async move |process, world| {
            let fixture = Fixture::new(serial(), false, &world).await;
            fixture.grid_disk("REDO", Purpose::Redo, CachingMode::WriteThrough).await;
            fixture.plan(vec![share("A", 1), share("B", 31)]).await;
            let crowd = Clients::read(&process, &fixture.session("DATA", "B"), 128, READ_BYTES);
            let commits = Clients::start(&process, &fixture.session(grid_disk, "A"), 1, READ_BYTES, true);
            world.clock.sleep(WARM_UP).await;
            let (_, p99) = commits.measure(&process, Duration::from_secs(20)).await;
            commits.stop(&process).await;
            crowd.stop(&process).await;
            p99 / MS
        })
    };
    let (redo, data) = (p99("REDO"), p99("DATA"));
    eprintln!("p99 of writes beside a saturated disk: {redo} ms to redo, {data} ms to data");
    assert!(redo <= 10, "the requests under way, no more: {redo} ms");
    assert!(data >= 25, "the control arm: {data} ms");
}

#[test]
fn a_plan_that_holds_back_nobody_is_not_felt() {
    let p99 = |plan: &[Directive], removed: bool| {
        let plan = plan.to_vec();
        in_a_world(async move |process, world| {
            let fixture = Fixture::new("sata-7200".parse().unwrap(), false, &world).await;
            fixture.plan(plan).await;
            if removed {
                fixture.plan(Vec::new()).await;
            }
            let a = Clients::read(&process, &fixture.session("DATA", "A"), 4, READ_BYTES);
            let b = Clients::read(&process, &fixture.session("DATA", "B"), 3, READ_BYTES);
            world.clock.sleep(WARM_UP).await;
            let (_, p99) = a.measure(&process, Duration::from_secs(120)).await;
            a.stop(&process).await;
            b.stop(&process).await;
            p99
        })
    };
    let (never, with, removed) = (p99(&[], false), p99(&thirty_seventy(), false), p99(&thirty_seventy(), true));
    eprintln!("p99 without a plan {never} ns, with one {with} ns, with one removed {removed} ns");
    assert!(with.abs_diff(never) * 50 <= never && removed.abs_diff(never) * 50 <= never);
}

#[test]
fn who_waits_under_a_plan_goes_when_it_ends() {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(serial(), false, &world).await;
        fixture.plan(vec![limit("A", 1)]).await;
        let a = Clients::read(&process, &fixture.session("DATA", "A"), 64, READ_BYTES);
        world.clock.sleep(WARM_UP).await;
        assert!(a.count() < 40 && fixture.cell.iorm().waiting() >= 60, "{} answered", a.count());
        fixture.plan(Vec::new()).await;
        assert_eq!(fixture.cell.iorm().waiting(), 0);
        let (answered, _) = a.measure(&process, Duration::from_secs(1)).await;
        assert!(answered >= 950, "{answered}");
        a.stop(&process).await;
    });
}

#[test]
fn who_is_held_back_is_told_so_and_others_are_not() {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(serial(), false, &world).await;
        fixture.plan(vec![limit("A", 1)]).await;
        let (a, b) = (fixture.session("DATA", "A"), fixture.session("DATA", "B"));
        let small = Clients::read(&process, &a, 64, READ_BYTES);
        world.clock.sleep(Duration::from_millis(100)).await;
        assert!(!a.is_held_back(), "half a megabyte");
        let large = Clients::read(&process, &a, 16, 1 << 20);
        world.clock.sleep(Duration::from_millis(100)).await;
        assert!(a.is_held_back() && !b.is_held_back());
        fixture.plan(Vec::new()).await;
        small.stop(&process).await;
        large.stop(&process).await;
        assert!(!a.is_held_back(), "what goes is forgotten");
    });
}

#[test]
fn a_plan_outlives_the_cell() {
    in_a_world(async |process, world| {
        let fixture = Fixture::new(serial(), false, &world).await;
        fixture.plan(vec![limit("A", 10)]).await;
        fixture.aim(Objective::LowLatency).await;
        let plan = fixture.cell.iorm().plan();
        fixture.cell.stop().await.unwrap();
        let (cell, report) = Cell::open(fixture.devices.clone(), CellConfig::default(), world.clone()).await.unwrap();
        assert_eq!((cell.iorm().plan(), report.notes.len()), (plan, 0), "{:?}", report.notes);
        let again = Fixture { cell, ..fixture };
        let a = Clients::read(&process, &again.session("DATA", "a"), 64, READ_BYTES);
        let (answered, _) = a.measure(&process, Duration::from_secs(5)).await;
        assert!(answered <= 520, "{answered} of 5000");
        a.stop(&process).await;
    });
}

async fn read(session: &Session, at: u64) -> u8 {
    let (result, buf) = session.read(at, Buf::zeroed(READ_BYTES as usize).into()).await;
    result.unwrap();
    buf.to_vec(0..1)[0]
}

#[test]
fn flash_is_switched_for_a_database_at_once_and_never_stale() {
    for mode in [CachingMode::WriteThrough, CachingMode::WriteBack] {
        in_a_world(async |_process, world| {
            let fixture = Fixture::new(serial(), true, &world).await;
            fixture.cell.create_flash_cache(None, &[]).await.unwrap();
            fixture.grid_disk("MINE", Purpose::Data, mode).await;
            let (a, b) = (fixture.session("MINE", "A"), fixture.session("MINE", "B"));
            let disk = fixture.cell.grid_disk("MINE").unwrap();
            let is_back = mode == CachingMode::WriteBack;
            let hits = || disk.counters.cache_hits.requests.get();
            let switch =
                async |on| fixture.plan(vec![Directive { flash_cache: Some(on), ..of("A") }, of("other")]).await;
            let write = async |session: &Session, at, fill| {
                session.write(at, full_of(READ_BYTES as usize, fill), false).await.unwrap();
            };
            write(&a, 0, 1).await;
            world.clock.sleep(Duration::from_millis(50)).await;
            assert_eq!((read(&a, 0).await, hits()), (1, 1), "cached by its write");
            switch(false).await;
            assert_eq!((read(&a, 0).await, hits()), (1, 1), "cached, and not read from the cache");
            assert_eq!((read(&b, 0).await, hits()), (1, 2), "others go on");
            // Its writes go past the cache and end what is there; what is dirty stays so.
            write(&a, 0, 2).await;
            assert_eq!((read(&a, 0).await, read(&b, 0).await), (2, 2));
            write(&a, 1 << 20, 3).await;
            let dirty = disk.dirty_bytes();
            assert_eq!(dirty > 0, is_back, "{dirty}");
            write(&b, 2 << 20, 4).await;
            assert_eq!(disk.dirty_bytes() > dirty, is_back, "others write to flash");
            assert_eq!(read(&a, 2 << 20).await, 4, "what only flash has is read there");
            assert!(disk.counters.cache_read_skips_plan.requests.get() >= 3);
            if !is_back {
                let before = hits();
                read(&a, 1 << 20).await;
                world.clock.sleep(Duration::from_millis(50)).await;
                read(&b, 1 << 20).await;
                assert_eq!(hits(), before, "nothing of what it wrote or read was kept");
            }
            switch(true).await;
            read(&a, 1 << 20).await;
            world.clock.sleep(Duration::from_millis(50)).await;
            let before = hits();
            assert_eq!((read(&a, 1 << 20).await, hits()), (3, before + 1), "cached again");
            let used = fixture.cell.iorm().accounts();
            let a = used.iter().find(|account| account.name() == "A").unwrap();
            assert!(a.cache_requests.all() >= 2 && a.disk.requests.all() >= 4);
            fixture.cell.stop().await.unwrap();
        });
    }
}

#[test]
fn redo_goes_past_the_flash_log_for_a_database_that_is_kept_from_it() {
    in_a_world(async |_process, world| {
        let fixture = Fixture::new(serial(), true, &world).await;
        fixture.cell.create_flash_log(Some(64 << 20), &[]).await.unwrap();
        fixture.grid_disk("REDO", Purpose::Redo, CachingMode::WriteThrough).await;
        let disk = fixture.cell.grid_disk("REDO").unwrap();
        let skipped = || disk.redo_counters.skipped(flashlog::Skip::IormPlan);
        let (spot, other) = (fixture.session("REDO", "SPOT"), fixture.session("REDO", "OTHER"));
        let commit = async |session: &Session| {
            for n in 0..20 {
                session.write(n * READ_BYTES, full_of(READ_BYTES as usize, 5), n % 2 == 0).await.unwrap();
                session.flush().await.unwrap();
            }
        };
        let switch = async |on| {
            let flash_log = Some(on);
            let others = Directive { flash_log: Some(true), ..of("other") };
            fixture.plan(vec![Directive { flash_log, ..of("SPOT") }, others]).await;
        };
        switch(true).await;
        commit(&spot).await;
        let first = disk.redo_counters.flash_first.get();
        assert!(first >= 20 && skipped() == 0, "{first} on flash first, {} skipped", skipped());
        switch(false).await;
        commit(&spot).await;
        assert_eq!(disk.redo_counters.flash_first.get(), first, "none of it on flash");
        assert!(skipped() >= 20, "{}", skipped());
        let before = skipped();
        commit(&other).await;
        assert!(disk.redo_counters.flash_first.get() >= first + 20 && skipped() == before, "others use it");
        switch(true).await;
        commit(&spot).await;
        assert_eq!(skipped(), before);
        fixture.cell.stop().await.unwrap();
    });
}
