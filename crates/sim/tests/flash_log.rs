//! Goal: the flash log of a whole cell loses nothing and brings nothing back, where a command or a device fails half-way. Method: a
//! cell in virtual time over disks and flash that refuse when they are told to; the process dies, and another is started.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, NewDevice, Session};
use celldisk::layout::DATA_OFFSET;
use celldisk::{CachingMode, CachingPolicy, FlashLogMode, GridDiskSpec, Purpose, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Bufs, Class, Device, FailKind, SharedBufs, Verb, World};
use futures_util::future::{Either, select};
use sim::executor::{Executor, ExecutorConfig};
use sim::plain::process_of;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
/// More writes than a drop takes of one disk.
const SKIPS_MAX: u64 = 6;

fn full_of(fill: u8) -> SharedBufs {
    let mut buf = Buf::zeroed(PAGE);
    buf.fill(fill);
    Bufs::from(buf).freeze()
}

fn session(cell: &Cell, name: &str) -> Session {
    cell.grid_disk(name).unwrap().open_session(Context::default())
}

async fn create(devices: &[Device], world: &World) -> Arc<Cell> {
    let names = [("CD1", Role::Disk), ("CD2", Role::Disk), ("FD1", Role::Flash)];
    let new = devices.iter().zip(names).map(|(device, (name, role))| NewDevice {
        class: Some(Class::Durable),
        ..NewDevice::new(device.clone(), name, role)
    });
    drop(Cell::create("cell", new.collect(), false, world).await.unwrap());
    let (cell, _) = Cell::open(devices.to_vec(), CellConfig::default(), world.clone()).await.unwrap();
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
    cell
}

/// Write and see whether it is acknowledged while its disk does nothing.
async fn is_acked(session: &Session, fill: u8, world: &World) -> bool {
    let write = session.write(0, full_of(fill), true);
    match select(pin!(write), world.clock.sleep(Duration::from_secs(5))).await {
        Either::Left((done, _)) => done.is_ok(),
        Either::Right(_) => false,
    }
}

async fn first_page(cell: &Cell, name: &str) -> u8 {
    let (outcome, bytes) = session(cell, name).read(0, Buf::zeroed(PAGE).into()).await;
    outcome.unwrap();
    bytes.freeze().to_vec(0..1)[0]
}

/// In write-back the flash log holds nothing of a grid disk, and what is given up is not what the flash cache holds.
#[test]
fn a_forced_drop_gives_up_nothing_that_the_flash_cache_holds() {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let test = async {
        let (process, world) = process_of(&executor);
        let disks: Vec<_> = (0..2).map(|_| Faults::new(Memory::new(256 * MIB), world.spawn.clone())).collect();
        let devices: Vec<Device> = vec![disks[0].clone(), disks[1].clone(), Memory::new(768 * MIB)];
        let cell = create(&devices, &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        cell.set_caching("REDO1", Some(CachingMode::WriteBack), Some(CachingPolicy::Default)).await.unwrap();
        session(&cell, "REDO1").write(0, full_of(2), true).await.unwrap();
        // Both copies of its label, once: what the log had of the disk cannot be called void, and then it can.
        let refuses = Fault::every(Verb::Write, Action::Fail(FailKind::Media));
        disks[0].add(Fault { range: Some(0..DATA_OFFSET), count: 2, ..refuses });
        cell.drop_flash_log(true).await.unwrap();
        assert_eq!(disks[0].struck(), 2);
        assert_eq!(first_page(&cell, "REDO1").await, 2);
        process.kill();
        let (_process, world) = process_of(&executor);
        let (cell, report) = Cell::open(devices, CellConfig::default(), world).await.unwrap();
        assert_eq!(first_page(&cell, "REDO1").await, 2, "{:?}", report.notes);
    };
    executor.run(test).unwrap_or_else(|stuck| panic!("{stuck}"));
}

/// Either is the one the log tells first, and has to tell anew.
#[test]
fn what_is_acknowledged_after_a_failed_drop_is_there_after_the_death_of_the_process() {
    let mut failed = 0;
    for (refuses, after) in (0..2).flat_map(|disk| (0..SKIPS_MAX).map(move |skip| (disk, skip))) {
        let executor = Executor::new(ExecutorConfig::plain(1));
        let test = async {
            let (process, world) = process_of(&executor);
            let disks: Vec<_> = (0..2).map(|_| Faults::new(Memory::new(256 * MIB), world.spawn.clone())).collect();
            let devices: Vec<Device> = vec![disks[0].clone(), disks[1].clone(), Memory::new(768 * MIB)];
            let cell = create(&devices, &world).await;
            let sessions = [session(&cell, "REDO1"), session(&cell, "REDO2")];
            for session in &sessions {
                session.write(0, full_of(1), true).await.unwrap();
            }
            disks[refuses].add(Fault { skip: after, ..Fault::every(Verb::Write, Action::Fail(FailKind::Media)) });
            if cell.drop_flash_log(false).await.is_ok() {
                return None;
            }
            disks[refuses].clear();
            for disk in &disks {
                disk.add(Fault::every(Verb::Write, Action::Stall));
                disk.add(Fault::every(Verb::Flush, Action::Stall));
            }
            let acked = [is_acked(&sessions[0], 2, &world).await, is_acked(&sessions[1], 2, &world).await];
            process.kill();
            disks.iter().for_each(|disk| disk.clear());
            let (_process, world) = process_of(&executor);
            let (cell, report) = Cell::open(devices, CellConfig::default(), world).await.unwrap();
            let found = [first_page(&cell, "REDO1").await, first_page(&cell, "REDO2").await];
            Some((acked, found, report.notes))
        };
        let told = executor.run(test).unwrap_or_else(|stuck| panic!("{stuck}"));
        let Some((acked, found, notes)) = told else { continue };
        failed += 1;
        assert!(acked[1 - refuses], "the log goes on where the label was told anew");
        for n in 0..2 {
            assert_eq!(found[n], if acked[n] { 2 } else { 1 }, "REDO{} of {acked:?}: {notes:?}", n + 1);
        }
    }
    assert!(failed >= 4, "{failed} drops failed, at every write of either label");
}

/// The flash fails with a write that it has carried out or not, and the disk's label cannot be told that nothing counts there.
#[test]
fn a_write_that_failed_is_there_or_not_and_stays_so() {
    for carried_out in [false, true] {
        failed_write(carried_out);
    }
}

fn failed_write(carried_out: bool) {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let test = async {
        let (process, world) = process_of(&executor);
        let device = |mib| Faults::new(Memory::new(mib * MIB), world.spawn.clone());
        let (disks, flash) = ([device(256), device(256)], device(768));
        let devices: Vec<Device> = vec![disks[0].clone(), disks[1].clone(), flash.clone()];
        let cell = create(&devices, &world).await;
        session(&cell, "REDO1").write(0, full_of(1), true).await.unwrap();
        for verb in [Verb::Write, Verb::Flush] {
            disks[0].add(Fault::every(verb, Action::Fail(FailKind::Media)));
        }
        flash.add(Fault::every(Verb::Write, Action::Unknown { carried_out }));
        assert!(session(&cell, "REDO1").write(0, full_of(2), false).await.is_err(), "nobody takes it");
        let buf: Bufs = Buf::zeroed(PAGE).into();
        let (outcome, bytes) = session(&cell, "REDO1").read(0, buf).await;
        let seen = outcome.ok().map(|()| bytes.freeze().to_vec(0..1)[0]);
        process.kill();
        disks[0].clear();
        flash.clear();
        let (_process, world) = process_of(&executor);
        let (cell, report) = Cell::open(devices, CellConfig::default(), world).await.unwrap();
        let found = first_page(&cell, "REDO1").await;
        assert!(seen.is_none_or(|seen| seen == found), "{seen:?}, then {found}: {:?}", report.notes);
    };
    executor.run(test).unwrap_or_else(|stuck| panic!("{stuck}"));
}
