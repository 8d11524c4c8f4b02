//! Goal: a grid disk waits for nothing that belonged to those before it on its cell disk. Method: a cell in virtual time; the label
//! cannot be written while the last grid disk, which flash has dirty data of, is dropped; another takes its place.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context};
use celldisk::layout::{LABEL_OFFSET, LABEL_SECTION_BYTES, Place, Slot};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Bufs, Device, FailKind, Verb};
use sim::plain::{cell_on, in_an_executor, process_of};

const MIB: u64 = 1 << 20;

#[test]
fn a_grid_disk_waits_for_nothing_of_those_before_it() {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let disk = Faults::new(Memory::new(256 * MIB), world.spawn.clone());
        let devices: Vec<Device> = vec![disk.clone(), Memory::new(128 * MIB)];
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        let spec = |name: &str| GridDiskSpec {
            caching_mode: CachingMode::WriteBack,
            ..GridDiskSpec::new(name, home, 16 * MIB, world.clock.wall())
        };
        let first = cell.create_grid_disk(spec("FIRST"), &mut |_, _| ()).await.unwrap();
        let mut data = Buf::zeroed(4096);
        data.fill(1);
        first.open_session(Context::default()).write(0, Bufs::from(data).freeze(), true).await.unwrap();
        let is_whole = || cell.store().cell_disk(home).unwrap().label().is_whole();
        assert!(!is_whole(), "it waits for flash");
        for (slot, mirror) in Slot::BOTH.into_iter().flat_map(|slot| [(slot, false), (slot, true)]) {
            let at = Place { slot, mirror }.offset() + LABEL_OFFSET;
            let refuses = Fault::every(Verb::Write, Action::Fail(FailKind::Media));
            disk.add(Fault { range: Some(at..at + LABEL_SECTION_BYTES), ..refuses });
        }
        cell.drop_grid_disk("FIRST", true).await.unwrap();
        assert!(!is_whole(), "its label could not be written");
        assert!(cell.create_grid_disk(spec("SECOND"), &mut |_, _| ()).await.is_err(), "it would wait for what is gone");
        disk.clear();
        cell.create_grid_disk(spec("SECOND"), &mut |_, _| ()).await.unwrap();
        assert!(is_whole(), "nothing of it is on flash");
        cell.drop_flash_cache().await.unwrap();
        process.kill();
        let (_process, world) = process_of(executor);
        let (cell, report) = Cell::open(devices, CellConfig::default(), world).await.unwrap();
        let second = cell.grid_disk("SECOND").unwrap();
        assert!(second.offline().is_none(), "{:?}", report.notes);
        cell.create_flash_cache(None, &[]).await.unwrap();
    });
}
