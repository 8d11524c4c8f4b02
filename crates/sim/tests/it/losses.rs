//! Goal: whatever a device may have dropped, no connection to a grid disk on it goes on as if it were there (I6). Method: a cell in
//! virtual time whose disk fails one flush, durable write or durable zero at a moment the test chooses; what each of several
//! connections hears, in every order that clients can bring about.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, GridDisk, RequestError, Session, ZeroFlags};
use celldisk::{CachingMode, FlashLogMode, GridDiskSpec, Purpose, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Device, FailKind, Geometry, Io, Op, Verb, World};
use sim::plain::{cell_on, full_of, in_a_world, in_an_executor, process_of};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DISK_BYTES: u64 = 256 << 20;
const DATA_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
/// Long enough for everything that can go on to have done so.
const A_WHILE: Duration = Duration::from_millis(10);

/// Memory that says it has a volatile cache, as nearly every disk does.
struct Volatile(Arc<Memory>);

impl Io for Volatile {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.0.geometry() }
    }
    fn submit(&self, op: Op) -> device::Completion {
        self.0.submit(op)
    }
}

/// A cell on a disk of two layers of faults: `holds` above `fails`, so that a request can be held first and then fail.
struct Rig {
    holds: Arc<Faults>,
    fails: Arc<Faults>,
    disk: Arc<GridDisk>,
    world: World,
    _cell: Arc<Cell>,
}

type Answer = Arc<Mutex<Option<Result<(), RequestError>>>>;

impl Rig {
    async fn new(world: &World) -> Rig {
        let fails = Faults::new(Arc::new(Volatile(Memory::new(DISK_BYTES))), world.spawn.clone());
        let holds = Faults::new(fails.clone(), world.spawn.clone());
        let devices: Vec<Device> = vec![holds.clone()];
        let cell = cell_on(&devices, &[("CD_disk01", Role::Disk)], CellConfig::default(), world).await;
        let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let spec = GridDiskSpec::new("DATA", cell_disk, DATA_BYTES, world.clock.wall());
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        Rig { holds, fails, disk, world: world.clone(), _cell: cell }
    }

    fn connect(&self) -> Arc<Session> {
        Arc::new(self.disk.open_session(Context::default()))
    }

    async fn a_while(&self) {
        self.world.clock.sleep(A_WHILE).await;
    }

    /// Begin a request, and give it time to come as far as it can.
    async fn begin<F>(&self, request: F) -> Answer
    where
        F: Future<Output = Result<(), RequestError>> + Send + 'static,
    {
        let answer: Answer = Arc::default();
        let into = answer.clone();
        self.world.spawn.spawn(Box::pin(async move { *into.lock().unwrap() = Some(request.await) }));
        self.a_while().await;
        answer
    }

    async fn begin_flush(&self, session: &Arc<Session>) -> Answer {
        let session = session.clone();
        self.begin(async move { session.flush().await }).await
    }

    /// The next request of this verb is held, and fails when it is let go.
    fn hold_and_fail(&self, verb: Verb) {
        self.holds.add(Fault::next(verb, Action::Stall));
        self.fails.add(Fault::next(verb, Action::Fail(FailKind::Media)));
    }
}

fn told(answer: &Answer) -> Option<Result<(), RequestError>> {
    *answer.lock().unwrap()
}

async fn write(session: &Session, block: u64, fua: bool) -> Result<(), RequestError> {
    session.write(block * BLOCK as u64, full_of(BLOCK, 7), fua).await
}

async fn read(session: &Session, block: u64) -> Result<(), RequestError> {
    session.read(block * BLOCK as u64, device::Buf::zeroed(BLOCK).into()).await.0
}

const LOST: Option<Result<(), RequestError>> = Some(Err(RequestError::Io));

/// All of `sessions` fail whatever they ask, and a connection that is made now is served.
async fn only_a_new_connection_is_served(rig: &Rig, sessions: &[&Arc<Session>]) {
    for session in sessions {
        assert_eq!(read(session, 0).await, Err(RequestError::Io));
        assert_eq!(write(session, 0, false).await, Err(RequestError::Io));
        assert_eq!(session.flush().await, Err(RequestError::Io));
    }
    let late = rig.connect();
    assert_eq!(read(&late, 0).await, Ok(()));
    assert_eq!(write(&late, 0, false).await, Ok(()));
    assert_eq!(late.flush().await, Ok(()));
}

#[test]
fn a_flush_that_waits_behind_a_failing_one_fails() {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world).await;
        let (a, b, c) = (rig.connect(), rig.connect(), rig.connect());
        write(&a, 0, false).await.unwrap();
        a.flush().await.unwrap();
        write(&b, 16, false).await.unwrap();
        rig.hold_and_fail(Verb::Flush);
        let first = rig.begin_flush(&a).await;
        let (second, third) = (rig.begin_flush(&b).await, rig.begin_flush(&c).await);
        assert_eq!((told(&first), told(&second), told(&third)), (None, None, None));
        rig.holds.release();
        rig.a_while().await;
        assert_eq!(told(&first), LOST);
        assert_eq!(told(&second), LOST, "the write of this connection may be gone");
        assert_eq!(told(&third), LOST, "FLUSH speaks for the writes of all connections");
        only_a_new_connection_is_served(&rig, &[&a, &b, &c]).await;
    });
}

#[test]
fn a_loss_of_nothing_acknowledged_breaks_no_connection() {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world).await;
        let (a, b) = (rig.connect(), rig.connect());
        write(&a, 0, false).await.unwrap();
        a.flush().await.unwrap();
        rig.fails.add(Fault::next(Verb::Flush, Action::Fail(FailKind::Media)));
        assert_eq!(a.flush().await, Err(RequestError::Io), "its own flush has failed");
        assert_eq!(read(&b, 0).await, Ok(()));
        assert_eq!(write(&a, 1, true).await, Ok(()));
        assert_eq!(a.flush().await, Ok(()));
        // A durable write leaves nothing to lose.
        write(&b, 2, true).await.unwrap();
        rig.fails.add(Fault::next(Verb::Flush, Action::Fail(FailKind::Media)));
        assert_eq!(a.flush().await, Err(RequestError::Io));
        assert_eq!(read(&b, 0).await, Ok(()));
    });
}

#[test]
fn a_failed_durable_write_or_zero_is_a_loss() {
    for verb in [Verb::Write, Verb::WriteZeroes] {
        in_a_world(async move |_process, world| {
            let rig = Rig::new(&world).await;
            let (a, b, c) = (rig.connect(), rig.connect(), rig.connect());
            // What earlier lives may have left in the disk's cache is no question here.
            a.flush().await.unwrap();
            write(&b, 16, false).await.unwrap();
            rig.fails.add(Fault::next(verb, Action::Fail(FailKind::Media)));
            let failed = match verb {
                Verb::Write => write(&a, 0, true).await,
                _ => a.write_zeroes(0, BLOCK as u64, ZeroFlags { fua: true, ..ZeroFlags::default() }).await,
            };
            assert_eq!(failed, Err(RequestError::Io));
            assert_eq!(b.flush().await, Err(RequestError::Io), "the kernel's one report has gone to another");
            only_a_new_connection_is_served(&rig, &[&a, &b, &c]).await;
        });
    }
}

#[test]
fn what_is_refused_before_it_is_issued_loses_nothing() {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world).await;
        let (a, b) = (rig.connect(), rig.connect());
        write(&b, 16, false).await.unwrap();
        rig.fails.add(Fault::next(Verb::WriteZeroes, Action::Fail(FailKind::Unsupported)));
        let flags = ZeroFlags { fua: true, fast: true, ..ZeroFlags::default() };
        assert_eq!(a.write_zeroes(0, BLOCK as u64, flags).await, Err(RequestError::NotSupported));
        assert_eq!(b.flush().await, Ok(()));
        assert_eq!(read(&a, 0).await, Ok(()));
    });
}

#[test]
fn a_flush_is_not_answered_before_durable_writes_that_began_before_its_end() {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world).await;
        let (a, b) = (rig.connect(), rig.connect());
        write(&b, 16, false).await.unwrap();
        rig.hold_and_fail(Verb::Write);
        let durable = {
            let a = a.clone();
            rig.begin(async move { write(&a, 0, true).await }).await
        };
        // The device has carried it out; who got its report of a lost write shows only when the durable write ends.
        let flush = rig.begin_flush(&b).await;
        assert_eq!((told(&durable), told(&flush)), (None, None));
        rig.holds.release();
        rig.a_while().await;
        assert_eq!((told(&durable), told(&flush)), (LOST, LOST));
        only_a_new_connection_is_served(&rig, &[&a, &b]).await;
    });
}

#[test]
fn a_read_under_way_at_a_loss_fails_too() {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world).await;
        let (a, b) = (rig.connect(), rig.connect());
        write(&a, 0, false).await.unwrap();
        rig.holds.add(Fault::next(Verb::Read, Action::Stall));
        let reading = {
            let b = b.clone();
            rig.begin(async move { read(&b, 0).await }).await
        };
        rig.fails.add(Fault::next(Verb::Flush, Action::Fail(FailKind::Media)));
        assert_eq!(a.flush().await, Err(RequestError::Io));
        rig.holds.release();
        rig.a_while().await;
        assert_eq!(told(&reading), LOST, "judged when it is answered");
    });
}

/// What the first page of a grid disk is full of.
async fn first_page(session: &Session) -> u8 {
    let (result, bufs) = session.read(0, device::Buf::zeroed(BLOCK).into()).await;
    result.unwrap();
    bufs.to_vec(0..1)[0]
}

/// A cell with flash log and flash cache, and a grid disk behind both of which the log holds nothing.
async fn behind_flash_log(devices: &[Device], world: &World) -> (Arc<Cell>, Arc<GridDisk>) {
    let names = [("CD_disk01", Role::Disk), ("FD_00", Role::Flash)];
    let cell = cell_on(devices, &names, CellConfig::default(), world).await;
    cell.create_flash_log(None, &[]).await.unwrap();
    cell.create_flash_cache(None, &[]).await.unwrap();
    let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
    let spec = GridDiskSpec {
        purpose: Purpose::Redo,
        caching_mode: CachingMode::WriteThrough,
        ..GridDiskSpec::new("REDO", cell_disk, DATA_BYTES, world.clock.wall())
    };
    let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
    cell.set_flash_log_mode("REDO", FlashLogMode::Off).await.unwrap();
    (cell, disk)
}

/// The flash log counts what it does not hold as lost with the first loss. The disk may have it all the same, show it, and drop it with the
/// second one: nothing more is lost to a client, and what was cached in between is not what the disk has any more.
#[test]
fn a_loss_of_nothing_the_flash_log_knows_ends_what_is_cached_of_it() {
    in_a_world(async |_process, world| {
        let memory = Memory::with_geometry(Memory::new(DISK_BYTES).geometry(), true);
        let fails = Faults::new(memory.clone(), world.spawn.clone());
        let holds = Faults::new(fails.clone(), world.spawn.clone());
        let devices: Vec<Device> = vec![holds.clone(), Memory::new(3 * DISK_BYTES)];
        let (cell, disk) = behind_flash_log(&devices, &world).await;
        let rig = Rig { holds, fails, disk, world: world.clone(), _cell: cell };
        let writer = rig.connect();
        write(&writer, 0, false).await.unwrap();
        writer.flush().await.unwrap();
        // Zeroes are not cached when they are written.
        writer.write_zeroes(0, BLOCK as u64, ZeroFlags::default()).await.unwrap();
        rig.hold_and_fail(Verb::Flush);
        let flush = rig.begin_flush(&writer).await;
        rig.hold_and_fail(Verb::Flush);
        rig.holds.release();
        // The comparison looks at the disk once a second at the latest.
        let until = rig.world.clock.now().after(Duration::from_secs(2));
        while rig.holds.stalled() == 0 && rig.world.clock.now() < until {
            rig.a_while().await;
        }
        assert_eq!(
            (told(&flush), rig.holds.stalled()),
            (LOST, 1),
            "the comparison of what is cached begins with a flush"
        );
        let reader = rig.connect();
        assert_eq!(first_page(&reader).await, 0, "the disk shows it still");
        let hits = || rig.disk.counters.cache_hits.requests.get();
        let before = hits();
        assert_eq!((first_page(&reader).await, hits()), (0, before + 1), "it is cached");
        memory.power_cut();
        rig.holds.release();
        rig.a_while().await;
        assert_eq!(first_page(&rig.connect()).await, 7, "the disk has dropped it");
    });
}

/// A failed write that the disk has, shows, and the flash log knows nothing of: the cache does not keep it longer than the disk.
#[test]
fn a_failed_write_that_was_cached_goes_with_the_power_as_on_the_disk() {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let memory = Memory::with_geometry(Memory::new(DISK_BYTES).geometry(), true);
        let fails = Faults::new(memory.clone(), world.spawn.clone());
        let devices: Vec<Device> = vec![fails.clone(), Memory::new(3 * DISK_BYTES)];
        let (cell, disk) = behind_flash_log(&devices, &world).await;
        let session = disk.open_session(Context::default());
        write(&session, 0, false).await.unwrap();
        session.flush().await.unwrap();
        world.clock.sleep(Duration::from_secs(30)).await;
        fails.add(Fault::next(Verb::Write, Action::Unknown { carried_out: true }));
        assert!(session.write(0, full_of(BLOCK, 9), false).await.is_err());
        let session = disk.open_session(Context::default());
        assert_eq!((first_page(&session).await, first_page(&session).await), (9, 9), "read from the disk, and cached");
        // Where what is cached has settled, nothing is compared with the disk after a crash; a mark elsewhere makes that durable.
        world.clock.sleep(Duration::from_secs(60)).await;
        write(&session, 4096, false).await.unwrap();
        process.kill();
        memory.power_cut();
        let (_process, world) = process_of(executor);
        let cell_again = Cell::open(devices, CellConfig::default(), world.clone()).await.unwrap().0;
        cell_again.index_is_whole().await;
        let session = cell_again.grid_disk("REDO").unwrap().open_session(Context::default());
        let answered = first_page(&session).await;
        cell_again.drop_flash_cache().await.unwrap();
        assert_eq!(answered, first_page(&session).await, "from the cache, and from the disk");
        drop(cell);
    });
}

/// The comparison of what is cached begins with a flush, which the flash log answers without the disk; the failed flush of the disk begins
/// another comparison.
#[test]
fn a_disk_that_is_pulled_behind_the_flash_log_is_not_asked_without_a_pause() {
    in_a_world(async |_process, world| {
        let data = Faults::new(Arc::new(Volatile(Memory::new(DISK_BYTES))), world.spawn.clone());
        let flushes = Faults::new(data.clone(), world.spawn.clone());
        let devices: Vec<Device> = vec![flushes.clone(), Memory::new(3 * DISK_BYTES)];
        let (cell, redo) = behind_flash_log(&devices, &world).await;
        cell.set_flash_log_mode("REDO", FlashLogMode::Flash).await.unwrap();
        let session = redo.open_session(Context::default());
        write(&session, 0, false).await.unwrap();
        session.flush().await.unwrap();
        cell.set_flash_log_mode("REDO", FlashLogMode::Race).await.unwrap();
        // Replaces that durably, so that nothing of it is to be written again; zeroes are not cached, so that nothing is to be read for the comparison.
        session.write_zeroes(0, BLOCK as u64, ZeroFlags { fua: true, ..ZeroFlags::default() }).await.unwrap();
        let gone = |verb| Fault::every(verb, Action::Fail(FailKind::Gone));
        [Verb::Read, Verb::Write, Verb::WriteZeroes].into_iter().for_each(|verb| _ = data.add(gone(verb)));
        flushes.add(gone(Verb::Flush));
        session.flush().await.unwrap();
        world.clock.sleep(Duration::from_secs(10)).await;
        let asked = flushes.struck();
        assert!((2..50).contains(&asked), "{asked} flushes in 10 s");
    });
}
