//! Goal: of three flash devices two fail, one after the other; what was on these alone has a grid disk wait, and what the third has of
//! others on the same disk is not given up with it. Method: a cell in virtual time with two grid disks in write-back, of which one has
//! data everywhere and one in few places, over a disk that takes nothing meanwhile; the process dies and all devices are well again.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context};
use celldisk::layout::DATA_OFFSET;
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Bufs, Device, FailKind, SharedBufs, Spawn, Verb};
use sim::plain::{cell_on, in_an_executor, process_of};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const NAMES: [(&str, Role); 4] =
    [("CD1", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash), ("FD3", Role::Flash)];
const WIDE: &str = "WIDE";
const NARROW: &str = "NARROW";

fn page_of(fill: u8) -> SharedBufs {
    let mut buf = Buf::zeroed(PAGE);
    buf.fill(fill);
    Bufs::from(buf).freeze()
}

/// Where each has data: regions of the cache are 1 MiB, and each has two flash devices of its own.
fn places(name: &str) -> impl Iterator<Item = u64> + use<> {
    (0..if name == WIDE { 32 } else { 1 }).map(|n| n * MIB)
}

/// Which grid disks are offline after two have failed.
fn offline_after(first: usize, second: usize) -> Vec<&'static str> {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let sizes = [256, 128, 128, 128];
        let all = sizes.map(|mib| Faults::new(Memory::new(mib * MIB), world.spawn.clone()));
        let devices: Vec<Device> = all.iter().map(|device| device.clone() as Device).collect();
        let cell = cell_on(&devices, &NAMES, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        for name in [WIDE, NARROW] {
            let caching_mode = CachingMode::WriteBack;
            let spec = GridDiskSpec { caching_mode, ..GridDiskSpec::new(name, home, 32 * MIB, world.clock.wall()) };
            let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
            all[0].add(Fault { range: Some(DATA_OFFSET..u64::MAX), ..Fault::every(Verb::Write, Action::Stall) });
            let session = disk.open_session(Context::default());
            for at in places(name) {
                session.write(at, page_of(7), false).await.unwrap();
            }
            session.flush().await.unwrap();
        }
        for flash in [first, second] {
            all[flash].add(Fault::every(Verb::Write, Action::Fail(FailKind::Media)));
            all[flash].add(Fault::every(Verb::Flush, Action::Fail(FailKind::Media)));
            // Whoever writes there finds out; of some nobody ever hears again.
            for at in places(WIDE) {
                let wide = cell.grid_disk(WIDE).unwrap().open_session(Context::default());
                process.spawn(Box::pin(async move {
                    let _ = wide.write(at, page_of(7), false).await;
                }));
            }
            world.clock.sleep(Duration::from_secs(2)).await;
        }
        let is_offline = |name: &&str| cell.grid_disk(name).unwrap().offline().is_some();
        let offline: Vec<&str> = [WIDE, NARROW].into_iter().filter(is_offline).collect();

        process.kill();
        all.iter().for_each(|device| device.clear());
        let (_process, world) = process_of(executor);
        let (cell, report): (Arc<Cell>, _) = Cell::open(devices, CellConfig::default(), world).await.unwrap();
        for name in [WIDE, NARROW] {
            let session = cell.grid_disk(name).unwrap().open_session(Context::default());
            for at in places(name) {
                let (outcome, bytes) = session.read(at, Buf::zeroed(PAGE).into()).await;
                assert_eq!(outcome, Ok(()), "{name} at {at}: {:?}", report.notes);
                assert_eq!(bytes.freeze().to_vec(0..1), [7], "{name} at {at}: {:?}", report.notes);
            }
        }
        offline
    })
}

#[test]
fn what_the_third_has_is_there_when_the_process_dies() {
    for (first, second) in [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
        assert_eq!(offline_after(first, second), [WIDE, NARROW], "they wait for flash {second}");
    }
}
