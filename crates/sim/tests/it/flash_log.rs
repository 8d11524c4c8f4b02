//! Goal: the flash log of a whole cell loses nothing and brings nothing back, where a command or a device fails half-way. Method: a
//! cell in virtual time over disks and flash that refuse when they are told to; the process dies, and another is started.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{AdminError, Cell, CellConfig, Context, Session};
use celldisk::layout::DATA_OFFSET;
use celldisk::{CachingMode, FlashLogMode, GridDisk as GridDiskRecord, GridDiskId, GridDiskSpec, Purpose, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Device, FailKind, Geometry, Io, Spawn, Verb, World};
use futures_util::future::{Either, select};
use sim::executor::{Executor, Process};
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
/// More writes than a drop takes of one disk.
const SKIPS_MAX: u64 = 6;

/// Two disks, each with a redo grid disk, and flash with the log.
struct Rig<'a> {
    executor: &'a Executor,
    process: Process,
    world: World,
    disks: [Arc<Faults>; 2],
    flash: Vec<Arc<Faults>>,
    cell: Arc<Cell>,
}

impl<'a> Rig<'a> {
    async fn new(executor: &'a Executor, flash: usize) -> Rig<'a> {
        Rig::over(executor, Memory::new, flash).await
    }

    async fn over(executor: &'a Executor, disk: fn(u64) -> Arc<Memory>, flash: usize) -> Rig<'a> {
        let (process, world) = process_of(executor);
        let device = |mib| Faults::new(Memory::new(mib * MIB), world.spawn.clone());
        let disks = [(); 2].map(|()| Faults::new(disk(256 * MIB), world.spawn.clone()));
        let flash: Vec<_> = (0..flash).map(|_| device(768)).collect();
        let names = [("CD1", Role::Disk), ("CD2", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash)];
        let devices: Vec<Device> = disks.iter().chain(&flash).map(|device| device.clone() as Device).collect();
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        cell.create_flash_log(None, &[]).await.unwrap();
        for n in 1..=2 {
            let home = cell.store().catalog().member_named(&format!("CD{n}")).unwrap().0;
            let spec = GridDiskSpec {
                purpose: Purpose::Redo,
                caching_mode: CachingMode::None,
                ..GridDiskSpec::new(&format!("REDO{n}"), home, 16 * MIB, world.clock.wall())
            };
            let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
            cell.set_flash_log_mode(&disk.name(), FlashLogMode::Flash).await.unwrap();
        }
        Rig { executor, process, world, disks, flash, cell }
    }

    /// The process dies, the devices work again, and another opens them. What it says of that.
    async fn dies(&mut self) -> Vec<String> {
        self.process.kill();
        self.disks.iter().chain(&self.flash).for_each(|device| device.clear());
        self.opens().await
    }

    async fn opens(&mut self) -> Vec<String> {
        let devices: Vec<Device> =
            self.disks.iter().chain(&self.flash).map(|device| device.clone() as Device).collect();
        let (process, world) = process_of(self.executor);
        let (cell, report) = Cell::open(devices, CellConfig::default(), world.clone()).await.unwrap();
        (self.process, self.world, self.cell) = (process, world, cell);
        report.notes
    }

    fn session(&self, name: &str) -> Session {
        self.cell.grid_disk(name).unwrap().open_session(Context::default())
    }

    /// The byte the first page of a grid disk is full of, where that can be read.
    async fn first_page(&self, name: &str) -> Option<u8> {
        let (outcome, bytes) = self.session(name).read(0, Buf::zeroed(PAGE).into()).await;
        outcome.ok().map(|()| bytes.freeze().to_vec(0..1)[0])
    }
}

fn with_volatile_cache(bytes: u64) -> Arc<Memory> {
    let geometry = Geometry { volatile_cache: true, ..Memory::new(bytes).geometry() };
    Memory::with_geometry(geometry, false)
}

/// Write and see whether it is acknowledged while its disk does nothing.
async fn is_acked(session: &Session, fill: u8, world: &World) -> bool {
    let write = session.write(0, full_of(PAGE, fill), true);
    match select(pin!(write), world.clock.sleep(Duration::from_secs(5))).await {
        Either::Left((done, _)) => done.is_ok(),
        Either::Right(_) => false,
    }
}

/// In write-back the flash log holds nothing of a grid disk, and what is given up is not what the flash cache holds. Such a grid disk is
/// one of an earlier build: the catalog is told so, and opened.
#[test]
fn a_forced_drop_gives_up_nothing_that_the_flash_cache_holds() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor, 1).await;
        rig.cell.create_flash_cache(None, &[]).await.unwrap();
        let id = GridDiskId(rig.cell.grid_disk("REDO1").unwrap().id());
        let write_back = |g: &mut GridDiskRecord| g.caching_mode = CachingMode::WriteBack;
        assert!(rig.cell.store().alter_grid_disk(id, write_back).await.unwrap().failed.is_empty());
        rig.dies().await;
        rig.session("REDO1").write(0, full_of(PAGE, 2), true).await.unwrap();
        // Both copies of its label, once: what the log had of the disk cannot be called void, and then it can.
        let refuses = Fault::every(Verb::Write, Action::Fail(FailKind::Media));
        rig.disks[0].add(Fault { range: Some(0..DATA_OFFSET), count: 2, ..refuses });
        rig.cell.drop_flash_log(true).await.unwrap();
        assert_eq!(rig.disks[0].struck(), 2);
        assert_eq!(rig.first_page("REDO1").await, Some(2));
        let notes = rig.dies().await;
        assert_eq!(rig.first_page("REDO1").await, Some(2), "{notes:?}");
    });
}

/// The disk refuses what it is given, and when it is asked once more, and takes it then. What comes meanwhile is not lost either.
#[test]
fn a_forced_drop_gives_up_nothing_that_the_disk_takes_when_asked_again() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor, 1).await;
        let refuses = Fault::every(Verb::Write, Action::Fail(FailKind::Media));
        rig.disks[0].add(Fault { range: Some(DATA_OFFSET..u64::MAX), count: 2, ..refuses });
        let session = rig.session("REDO1");
        session.write(0, full_of(PAGE, 2), true).await.unwrap();
        let cell = rig.cell.clone();
        let (dropped, written) =
            futures_util::future::join(cell.drop_flash_log(true), session.write(PAGE as u64, full_of(PAGE, 3), true))
                .await;
        dropped.unwrap();
        assert_eq!(rig.disks[0].struck(), 2);
        assert_eq!(rig.first_page("REDO1").await, Some(2));
        let notes = rig.dies().await;
        assert_eq!(rig.first_page("REDO1").await, Some(2), "{notes:?}");
        let (outcome, bytes) = rig.session("REDO1").read(PAGE as u64, Buf::zeroed(PAGE).into()).await;
        outcome.unwrap();
        assert!(written.is_err() || bytes.freeze().to_vec(0..1)[0] == 3, "{notes:?}");
    });
}

/// Either is the one the log tells first, and has to tell anew.
#[test]
fn what_is_acknowledged_after_a_failed_drop_is_there_after_the_death_of_the_process() {
    let all = (0..2).flat_map(|disk| (0..SKIPS_MAX).map(move |skip| (disk, skip)));
    let failed =
        all.filter(|&(refuses, after)| in_an_executor(async |executor| failed_drop(executor, refuses, after).await));
    assert!(failed.count() >= 4, "drops fail at every write of either label");
}

/// Whether a drop fails in which a disk refuses all writes after so many.
async fn failed_drop(executor: &Executor, refuses: usize, after: u64) -> bool {
    let mut rig = Rig::new(executor, 1).await;
    let sessions = [rig.session("REDO1"), rig.session("REDO2")];
    for session in &sessions {
        session.write(0, full_of(PAGE, 1), true).await.unwrap();
    }
    rig.disks[refuses].add(Fault { skip: after, ..Fault::every(Verb::Write, Action::Fail(FailKind::Media)) });
    if rig.cell.drop_flash_log(false).await.is_ok() {
        return false;
    }
    rig.disks[refuses].clear();
    for disk in &rig.disks {
        disk.add(Fault::every(Verb::Write, Action::Stall));
        disk.add(Fault::every(Verb::Flush, Action::Stall));
    }
    let acked = [is_acked(&sessions[0], 2, &rig.world).await, is_acked(&sessions[1], 2, &rig.world).await];
    let notes = rig.dies().await;
    assert!(acked[1 - refuses], "the log goes on where the label was told anew");
    for (n, acked) in acked.into_iter().enumerate() {
        let name = format!("REDO{}", n + 1);
        assert_eq!(rig.first_page(&name).await, Some(if acked { 2 } else { 1 }), "{name}: {acked}, {notes:?}");
    }
    true
}

/// The flash fails with a write that it has carried out or not, and the disk's label cannot be told that nothing counts there.
#[test]
fn a_write_that_failed_is_there_or_not_and_stays_so() {
    for carried_out in [false, true] {
        in_an_executor(async |executor| {
            let mut rig = Rig::new(executor, 1).await;
            rig.session("REDO1").write(0, full_of(PAGE, 1), true).await.unwrap();
            for verb in [Verb::Write, Verb::Flush] {
                rig.disks[0].add(Fault::every(verb, Action::Fail(FailKind::Media)));
            }
            rig.flash[0].add(Fault::every(Verb::Write, Action::Unknown { carried_out }));
            assert!(rig.session("REDO1").write(0, full_of(PAGE, 2), false).await.is_err(), "nobody takes it");
            let seen = rig.first_page("REDO1").await;
            let notes = rig.dies().await;
            let found = rig.first_page("REDO1").await;
            assert!(
                found.is_some() && seen.is_none_or(|seen| Some(seen) == found),
                "{seen:?}, then {found:?}: {notes:?}"
            );
        });
    }
}

/// Both rings of a record fail, the second while the disk's label is being told of the first.
#[test]
fn nothing_is_acknowledged_for_a_ring_that_the_label_is_about_to_leave() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor, 2).await;
        let sessions = [rig.session("REDO1"), rig.session("REDO2")];
        sessions[0].write(0, full_of(PAGE, 1), true).await.unwrap();
        rig.disks[0].add(Fault::every(Verb::Write, Action::Stall));
        rig.flash[1].add(Fault::every(Verb::Write, Action::Fail(FailKind::Media)));
        let acked = Arc::new(AtomicBool::new(false));
        let (told, first) = (acked.clone(), rig.session("REDO1"));
        rig.process.spawn(Box::pin(async move {
            told.store(first.write(0, full_of(PAGE, 2), false).await.is_ok(), Ordering::Release);
        }));
        // The write itself, and the label.
        while rig.disks[0].stalled() < 2 {
            rig.world.clock.sleep(Duration::from_millis(1)).await;
        }
        rig.flash[0].add(Fault::every(Verb::Write, Action::Fail(FailKind::Media)));
        sessions[1].write(0, full_of(PAGE, 3), false).await.unwrap();
        rig.world.clock.sleep(Duration::from_millis(10)).await;
        rig.disks[0].clear();
        rig.disks[0].add(Fault { range: Some(DATA_OFFSET..u64::MAX), ..Fault::every(Verb::Write, Action::Stall) });
        rig.disks[0].release_within(0..DATA_OFFSET);
        rig.world.clock.sleep(Duration::from_secs(1)).await;
        let acked = acked.load(Ordering::Acquire);
        let notes = rig.dies().await;
        let found = rig.first_page("REDO1").await;
        assert!(!acked || found == Some(2), "acknowledged, then {found:?}: {notes:?}");
    });
}

/// A disk takes nothing at a start and waits for its redo; the flash fails in that life. At the next start both are well: it is all there.
#[test]
fn a_disk_that_waits_for_redo_waits_on_when_the_flash_fails_once_more() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor, 1).await;
        let refuses = Fault::every(Verb::Write, Action::Fail(FailKind::Media));
        rig.disks[0].add(Fault { range: Some(DATA_OFFSET..u64::MAX), ..refuses.clone() });
        rig.session("REDO1").write(0, full_of(PAGE, 2), true).await.unwrap();
        rig.process.kill();
        let notes = rig.opens().await;
        assert!(notes.iter().any(|note| note.contains("REDO1 is offline")), "{notes:?}");
        rig.flash[0].add(refuses);
        rig.session("REDO2").write(0, full_of(PAGE, 3), true).await.unwrap();
        rig.world.clock.sleep(Duration::from_secs(10)).await;
        assert!(rig.cell.alerts().iter().any(|alert| alert.contains("is given up")), "{:?}", rig.cell.alerts());
        let notes = rig.dies().await;
        assert_eq!(rig.first_page("REDO1").await, Some(2), "{notes:?}");
        assert_eq!(rig.first_page("REDO2").await, Some(3), "{notes:?}");
    });
}

/// A disk comes back from a time when the log had redo of it; by now its grid disk is none of the log's. It waits all the same, at every
/// start, until it is told to go on without.
#[test]
fn a_disk_from_before_waits_for_redo_of_a_grid_disk_that_has_left_the_log() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor, 1).await;
        rig.disks[0].add(Fault {
            range: Some(DATA_OFFSET..u64::MAX),
            ..Fault::every(Verb::Write, Action::Fail(FailKind::Media))
        });
        rig.session("REDO1").write(0, full_of(PAGE, 2), true).await.unwrap();
        let len = (DATA_OFFSET + 64 * MIB) as usize;
        let disk: Device = rig.disks[0].clone();
        let past = disk.read(0, Buf::zeroed(len).into()).await.bufs.freeze();
        rig.dies().await;
        assert_eq!(rig.first_page("REDO1").await, Some(2));
        rig.cell.set_purpose("REDO1", Purpose::Data).await.unwrap();
        rig.session("REDO1").write(0, full_of(PAGE, 4), true).await.unwrap();
        rig.process.kill();
        assert_eq!(disk.write(0, past, true).await.outcome, device::Outcome::Done);
        for start in 1..=2 {
            let notes = rig.opens().await;
            assert!(notes.iter().any(|note| note.contains("REDO1 is offline")), "start {start}: {notes:?}");
            assert_eq!(rig.first_page("REDO1").await, None);
            assert!(rig.cell.set_purpose("REDO1", Purpose::Redo).await.is_err());
            rig.process.kill();
        }
        rig.opens().await;
        rig.cell.accept_stale("REDO1").await.unwrap();
        assert_eq!(rig.first_page("REDO1").await, Some(0), "as it was");
        rig.dies().await;
        assert_eq!(rig.first_page("REDO1").await, Some(0));
    });
}

/// What the log held when it was taken away is on the disk and no flush gets through: whoever writes there is told so.
#[test]
fn a_write_past_the_log_does_not_wait_for_ever_for_flushes_that_fail() {
    in_an_executor(async |executor| {
        let rig = Rig::over(executor, with_volatile_cache, 1).await;
        let session = rig.session("REDO1");
        session.write(0, full_of(PAGE, 1), false).await.unwrap();
        rig.disks[0].add(Fault::every(Verb::Flush, Action::Fail(FailKind::Media)));
        session.flush().await.unwrap();
        rig.cell.set_flash_log_mode("REDO1", FlashLogMode::Off).await.unwrap();
        let ended = async |attempt| {
            let limit = rig.world.clock.sleep(Duration::from_secs(10));
            match select(pin!(attempt), limit).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => panic!("it waits for ever"),
            }
        };
        assert!(ended(session.write(0, full_of(PAGE, 2), true)).await.is_err());
        // Nor does the command that takes the log away while somebody writes.
        rig.cell.set_flash_log_mode("REDO1", FlashLogMode::Flash).await.unwrap();
        let cell = rig.cell.clone();
        let (purpose, written) = futures_util::future::join(
            async { cell.set_purpose("REDO1", Purpose::Data).await.is_err() },
            ended(session.write(0, full_of(PAGE, 3), true)),
        )
        .await;
        assert!(purpose, "its disk does not take what the log holds");
        assert_eq!(rig.first_page("REDO1").await, Some(if written.is_ok() { 3 } else { 1 }));
        rig.disks[0].clear();
        session.write(0, full_of(PAGE, 4), true).await.unwrap();
        rig.cell.set_purpose("REDO1", Purpose::Data).await.unwrap();
        assert_eq!(rig.first_page("REDO1").await, Some(4));
    });
}

/// Goal: flash that is full says who has it, and the way out it offers makes room. Method: by reading the hint and doing what it says.
#[test]
fn a_flash_log_without_room_names_who_has_it_and_what_makes_room() {
    in_an_executor(async |executor| {
        let (_process, world) = process_of(executor);
        let devices: Vec<Device> = [256, 768, 64].map(|mib| Memory::new(mib * MIB) as Device).to_vec();
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        let on = |name: &str| [name.to_owned()];
        let refused = async |name: &str, size_bytes| {
            let error = cell.create_flash_log(size_bytes, &on(name)).await.unwrap_err().to_string();
            let (what, hint) = error.split_once("\nhint: ").unwrap();
            (what.to_owned(), hint.to_owned())
        };
        let flash = cell.store().catalog().member_named("FD1").unwrap().0;
        let grid_disk = |name: &str, mib| {
            let spec = GridDiskSpec::new(name, flash, mib * MIB, world.clock.wall());
            GridDiskSpec { caching_mode: CachingMode::None, ..spec }
        };
        cell.create_grid_disk(grid_disk("SSD", 200), &mut |_, _| ()).await.unwrap();
        cell.create_flash_cache(None, &on("FD1")).await.unwrap();
        // An eighth of the flash, as 512M would be most of it.
        let (what, hint) = refused("FD1", None).await;
        assert!(what.starts_with("the flash log needs 88M on cell disk FD1, which has "), "{what}");
        assert!(what.contains("the flash cache has 5") && what.ends_with("grid disk SSD has 200M"), "{what}");
        let size = hint
            .strip_prefix("ALTER FLASHCACHE cellDisk='FD1', size=")
            .and_then(|rest| rest.split_once("M "))
            .unwrap()
            .0;
        assert_eq!(
            hint,
            format!("ALTER FLASHCACHE cellDisk='FD1', size={size}M (it begins empty), then CREATE FLASHLOG again")
        );
        cell.drop_flash_cache().await.unwrap();
        cell.create_flash_cache(Some(size.parse::<u64>().unwrap() * MIB), &on("FD1")).await.unwrap();
        cell.create_flash_log(None, &on("FD1")).await.unwrap();
        let log_bytes = || cell.store().catalog().flash_log.as_ref().unwrap().size_per_device_bytes;
        assert_eq!(log_bytes(), 88 * MIB);
        cell.drop_flash_log(false).await.unwrap();
        cell.drop_flash_cache().await.unwrap();
        // Without a cache: a smaller log, or nothing but the grid disk.
        let (_, hint) = refused("FD1", Some(700 * MIB)).await;
        let size = hint.strip_prefix("CREATE FLASHLOG ALL size=").and_then(|size| size.strip_suffix('M')).unwrap();
        cell.create_flash_log(Some(size.parse::<u64>().unwrap() * MIB), &on("FD1")).await.unwrap();
        cell.drop_flash_log(false).await.unwrap();
        let free_mib = cell.store().catalog().free_bytes(flash) / MIB;
        cell.create_grid_disk(grid_disk("SSD2", free_mib - 1), &mut |_, _| ()).await.unwrap();
        let (_, hint) = refused("FD1", None).await;
        assert_eq!(hint, "move the data of grid disk SSD2 elsewhere, then DROP GRIDDISK SSD2");
        assert!(refused("FD2", Some(700 * MIB)).await.1.starts_with("CREATE FLASHLOG ALL size="));
    });
}

/// Goal: redo never is in write-back, whichever of the two comes first; what leaves either of them may take the other.
#[test]
fn redo_in_write_back_is_refused_with_the_way_out() {
    in_an_executor(async |executor| {
        let rig = Rig::new(executor, 1).await;
        rig.cell.create_flash_cache(Some(64 * MIB), &[]).await.unwrap();
        let home = rig.cell.store().catalog().member_named("CD1").unwrap().0;
        for mode in [CachingMode::WriteBack, CachingMode::WriteBackOrdered] {
            let spec = |name, purpose| GridDiskSpec {
                purpose,
                caching_mode: mode,
                ..GridDiskSpec::new(name, home, 16 * MIB, rig.world.clock.wall())
            };
            let refused = |result: Result<(), AdminError>| {
                let error = result.unwrap_err();
                assert!(matches!(error, AdminError::RedoInWriteBack(_)), "{error}");
                assert!(error.to_string().contains("hint: cachingMode=write-through"), "{error}");
            };
            let made = rig.cell.create_grid_disk(spec("NEW", Purpose::Redo), &mut |_, _| ()).await;
            refused(made.map(drop));
            refused(rig.cell.set_caching("REDO1", Some(mode), None).await);
            rig.cell.create_grid_disk(spec("DATA", Purpose::Data), &mut |_, _| ()).await.unwrap();
            refused(rig.cell.set_purpose("DATA", Purpose::Redo).await);
            rig.cell.set_caching("DATA", Some(CachingMode::WriteThrough), None).await.unwrap();
            rig.cell.set_purpose("DATA", Purpose::Redo).await.unwrap();
            rig.cell.set_purpose("DATA", Purpose::Data).await.unwrap();
            rig.cell.set_caching("DATA", Some(mode), None).await.unwrap();
            rig.cell.drop_grid_disk("DATA", false).await.unwrap();
        }
    });
}
