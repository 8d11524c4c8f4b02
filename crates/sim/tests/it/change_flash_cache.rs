//! Goal: flash that fails while the members of the flash cache are being changed stays expelled, whatever comes of the change.
//! Method: a cell in virtual time whose only member fails while the device that joins does not answer; then the change fails.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context};
use celldisk::{FlashState, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Bufs, Device, FailKind, Spawn, Verb};
use sim::plain::{cell_on, in_a_world};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NAMES: [(&str, Role); 4] = [("CD1", Role::Disk), ("CD2", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash)];

#[test]
fn flash_that_is_expelled_while_another_joins_is_not_taken_in_again() {
    in_a_world(async |process, world| {
        let device = |mib| Faults::new(Memory::new(mib * MIB), world.spawn.clone());
        let [first, second, old, new] = [device(256), device(256), device(128), device(128)];
        let devices: Vec<Device> = vec![first.clone(), second.clone(), old.clone(), new.clone()];
        let cell = cell_on(&devices, &NAMES, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &["FD1".to_owned()]).await.unwrap();
        let catalog = cell.store().catalog();
        let (home, flash) = (catalog.member_named("CD1").unwrap().0, catalog.member_named("FD1").unwrap().0);
        let spec = GridDiskSpec::new("DATA", home, 64 * MIB, world.clock.wall());
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = disk.open_session(Context::default());
        let state = || cell.store().cell_disk(home).unwrap().label().flash_members.get(&flash).map(|m| m.state);
        assert_eq!(state(), Some(FlashState::Clean));

        new.add(Fault::every(Verb::Write, Action::Stall));
        let failed = Arc::new(AtomicBool::new(false));
        let (changing, ended) = (cell.clone(), failed.clone());
        process.spawn(Box::pin(async move {
            let changed = changing.change_flash_cache(&["FD2".to_owned()], &mut |_, _| ()).await;
            ended.store(changed.is_err(), Ordering::Release);
        }));
        while new.stalled() == 0 {
            world.clock.sleep(Duration::from_millis(1)).await;
        }
        old.add(Fault::every(Verb::Write, Action::Fail(FailKind::Media)));
        for block in 0..64 {
            let (outcome, _) = session.read(block * MIB, Bufs::from(Buf::zeroed(64 << 10))).await;
            outcome.unwrap();
            if state() == Some(FlashState::Expelled) {
                break;
            }
            world.clock.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(state(), Some(FlashState::Expelled), "it cannot be filled");
        second.add(Fault::every(Verb::Write, Action::Fail(FailKind::Media)));
        old.clear();
        new.clear();
        new.release();
        world.clock.sleep(Duration::from_secs(10)).await;
        assert!(failed.load(Ordering::Acquire), "a label could not be written");
        assert_eq!(state(), Some(FlashState::Expelled), "a crash now must not find it in order");
    });
}

/// Goal: flash in the place of all there was is used whole where the cache had all of the old, less the room of a flash log that was
/// there too; where the operator had left room beside it, or others stay, it keeps its size.
#[test]
fn larger_flash_in_the_place_of_all_others_is_used_whole() {
    in_a_world(async |_, world| {
        let memory = |mib: u64| -> Device { Memory::new(mib * MIB) };
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash), ("FD3", Role::Flash)];
        for (cache_mib, log_mib, expected) in
            [(None, None, None), (None, Some(16), Some(16)), (Some(64), None, Some(0))]
        {
            let devices = [memory(256), memory(128), memory(512), memory(512)];
            let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
            let only = |name: &str| [name.to_owned()];
            if let Some(mib) = log_mib {
                cell.create_flash_log(Some(mib * MIB), &only("FD1")).await.unwrap();
            }
            cell.create_flash_cache(cache_mib.map(|mib| mib * MIB), &only("FD1")).await.unwrap();
            let size = || cell.store().catalog().flash_cache.as_ref().unwrap().size_per_device_bytes;
            let free = |name: &str| {
                let catalog = cell.store().catalog();
                catalog.free_bytes(catalog.member_named(name).unwrap().0)
            };
            let home = cell.store().catalog().member_named("CD1").unwrap().0;
            let spec = GridDiskSpec::new("DATA", home, 16 * MIB, world.clock.wall());
            let session = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap().open_session(Context::default());
            session.write(0, sim::plain::full_of(64 << 10, 7), true).await.unwrap();
            let before = size();
            cell.change_flash_cache(&only("FD2"), &mut |_, _| ()).await.unwrap();
            match expected {
                // The operator had left room beside the cache.
                Some(0) => assert_eq!(size(), before),
                Some(log_mib) => {
                    assert!(size() > 3 * before, "{before} became {}", size());
                    assert!((log_mib * MIB..(log_mib + 4) * MIB).contains(&free("FD2")), "{} are free", free("FD2"));
                }
                None => assert!(size() > 3 * before && free("FD2") < 4 * MIB, "{before} became {}", size()),
            }
            // Another joins: as much on each as on the one that stays.
            let size_of_one = size();
            cell.change_flash_cache(&["FD2".to_owned(), "FD3".to_owned()], &mut |_, _| ()).await.unwrap();
            assert_eq!(size(), size_of_one);
            let (read, bufs) = session.read(0, Bufs::from(Buf::zeroed(64 << 10))).await;
            read.unwrap();
            assert!(bufs.to_vec(0..64 << 10).iter().all(|byte| *byte == 7));
            cell.stop().await.unwrap();
        }
    });
}

/// Goal: a flash cache on all flash is as large as it was asked for, where one device is out of service as well; a device that is
/// named twice is one. Method: what the catalog says of the size on each device, and on which.
#[test]
fn a_cache_is_as_large_as_asked_for_beside_flash_that_is_out_of_service() {
    in_a_world(async |_, world| {
        let memory = |mib: u64| -> Device { Memory::new(mib * MIB) };
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash), ("FD2", Role::Flash)];
        let cell = cell_on(&[memory(256), memory(128), memory(128)], &names, CellConfig::default(), &world).await;
        let made = || {
            let record = cell.store().catalog().flash_cache.clone().unwrap();
            (record.regions.len(), record.size_per_device_bytes / MIB)
        };
        cell.create_flash_cache(Some(96 * MIB), &[]).await.unwrap();
        assert_eq!(made(), (2, 48));
        cell.drop_flash_cache().await.unwrap();
        cell.create_flash_cache(Some(96 * MIB), &["FD1".to_owned(), "FD1".to_owned()]).await.unwrap();
        assert_eq!(made(), (1, 96));
        cell.drop_flash_cache().await.unwrap();
        let id = cell.store().catalog().member_named("FD2").unwrap().0;
        cell.store().take_out(id, "it hangs");
        cell.create_flash_cache(Some(96 * MIB), &[]).await.unwrap();
        assert_eq!(made(), (1, 96));
    });
}
