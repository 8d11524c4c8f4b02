//! Goal: of three flash devices two fail, one after the other; what was on these alone has a grid disk wait, and what the third has of
//! others on the same disk is not given up with it, nor overtaken by what a failed one comes back with. Method: a cell in virtual time
//! with two grid disks in write-back, of which one has data everywhere and one in few places, over a disk that takes nothing (of the
//! wide one) meanwhile; the process dies and all devices are well again.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context};
use celldisk::layout::DATA_OFFSET;
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Device, FailKind, Spawn, Verb};
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const NAMES: [(&str, Role); 4] =
    [("CD1", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash), ("FD3", Role::Flash)];
const WIDE: &str = "WIDE";
/// Larger than what goes to flash first.
const LARGE: usize = 1 << 20;
const WIDE_MIB: u64 = 32;
const NARROW: &str = "NARROW";

fn refusing(range: Range<u64>) -> Fault {
    Fault { range: Some(range), ..Fault::every(Verb::Write, Action::Fail(FailKind::Gone)) }
}

/// Where each has data: regions of the cache are 1 MiB, and each has two flash devices of its own.
fn places(name: &str) -> impl Iterator<Item = u64> + use<> {
    (0..if name == WIDE { WIDE_MIB } else { 1 }).map(|n| n * MIB)
}

/// Two flash devices fail while the disk takes nothing in `refused`. With the second, a large write to the narrow one begins. What was
/// acknowledged has to be there when the process has died and all devices are well; returned is who was offline before.
fn offline_after(first: usize, second: usize, refused: Range<u64>) -> Vec<&'static str> {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let sizes = [256, 128, 128, 128];
        let all = sizes.map(|mib| Faults::new(Memory::new(mib * MIB), world.spawn.clone()));
        let devices: Vec<Device> = all.iter().map(|device| device.clone() as Device).collect();
        let cell = cell_on(&devices, &NAMES, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        let spec = |name| GridDiskSpec::new(name, home, WIDE_MIB * MIB, world.clock.wall());
        for name in [WIDE, NARROW] {
            let spec = GridDiskSpec { caching_mode: CachingMode::WriteBack, ..spec(name) };
            let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
            all[0].add(refusing(refused.clone()));
            let session = disk.open_session(Context::default());
            for at in places(name) {
                session.write(at, full_of(PAGE, 7), false).await.unwrap();
            }
            session.flush().await.unwrap();
        }
        // What flash has of it is void when the second has failed: that is recorded first, and takes as long as a label does.
        cell.create_grid_disk(spec("THROUGH"), &mut |_, _| ()).await.unwrap();
        let fail = |flash: usize| {
            all[flash].add(Fault::every(Verb::Write, Action::Fail(FailKind::Gone)));
            all[flash].add(Fault::every(Verb::Flush, Action::Fail(FailKind::Gone)));
        };
        // Whoever writes there finds out; of some nobody ever hears again.
        let write_everywhere = |name: &str| {
            for at in places(name) {
                let session = cell.grid_disk(name).unwrap().open_session(Context::default());
                process.spawn(Box::pin(async move {
                    let _ = session.write(at, full_of(PAGE, 7), false).await;
                }));
            }
        };
        fail(first);
        write_everywhere(WIDE);
        world.clock.sleep(Duration::from_secs(2)).await;

        let label = all[0].add(Fault { range: Some(0..DATA_OFFSET), ..Fault::every(Verb::Write, Action::Stall) });
        fail(second);
        write_everywhere(WIDE);
        world.clock.sleep(Duration::from_millis(1)).await;
        // The cell has not yet recorded what follows from that.
        let narrow = cell.grid_disk(NARROW).unwrap().open_session(Context::default());
        let acked = Arc::new(AtomicBool::new(false));
        let heard = acked.clone();
        process.spawn(Box::pin(async move {
            let wrote = narrow.write(0, full_of(LARGE, 8), false).await;
            heard.store(wrote.is_ok(), Ordering::Release);
        }));
        world.clock.sleep(Duration::from_millis(1)).await;
        // A label is written to one slot after the other.
        all[0].remove(label);
        all[0].release_within(0..DATA_OFFSET);
        world.clock.sleep(Duration::from_secs(2)).await;
        let is_offline = |name: &&str| cell.grid_disk(name).unwrap().offline().is_some();
        let offline: Vec<&str> = [WIDE, NARROW].into_iter().filter(is_offline).collect();

        // What waits is not given to the disk either, now that it could be.
        all[0].clear();
        world.clock.sleep(Duration::from_secs(60)).await;
        let acked = acked.load(Ordering::Acquire);

        process.kill();
        all.iter().for_each(|device| device.clear());
        let (_process, world) = process_of(executor);
        let (cell, report): (Arc<Cell>, _) = Cell::open(devices, CellConfig::default(), world).await.unwrap();
        for name in [WIDE, NARROW] {
            let session = cell.grid_disk(name).unwrap().open_session(Context::default());
            for at in places(name) {
                let (outcome, bytes) = session.read(at, Buf::zeroed(PAGE).into()).await;
                assert_eq!(outcome, Ok(()), "{name} at {at}: {:?}", report.notes);
                let found = bytes.freeze().to_vec(0..1)[0];
                // The one that failed may have happened all the same.
                let may_be = if name == NARROW { 7 + u8::from(acked)..=8 } else { 7..=7 };
                assert!(may_be.contains(&found), "{name} at {at}: {found} of {may_be:?}, {:?}", report.notes);
            }
        }
        offline
    })
}

const ORDERS: [(usize, usize); 6] = [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)];

#[test]
fn what_the_third_has_is_there_when_the_process_dies() {
    for (first, second) in ORDERS {
        let offline = offline_after(first, second, DATA_OFFSET..u64::MAX);
        assert_eq!(offline, [WIDE, NARROW], "they wait for flash {second}");
    }
}

/// The narrow one is on its disk, then, and clean on flash: the second device comes back with that.
#[test]
fn what_waits_is_not_written_to_past_the_device_it_waits_for() {
    // The wide one comes first on the disk.
    for (first, second) in ORDERS {
        let offline = offline_after(first, second, DATA_OFFSET..DATA_OFFSET + WIDE_MIB * MIB);
        assert_eq!(offline, [WIDE, NARROW], "they wait for flash {second}");
    }
}
