//! Goal: a device that was dropped is closed, so that it can be used again while the cell serves. Method: a cell in virtual time whose
//! flash carries a cache with dirty data and a flash log; they and the cell disk are dropped, and a moment later nothing may
//! hold the device.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::Device;
use device::layers::{Faults, Memory};
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn nothing_holds_a_dropped_device() {
    in_a_world(async |_process, world| {
        let flash = Faults::new(Memory::new(768 << 20), world.spawn.clone());
        let held = Arc::downgrade(&flash);
        let devices: Vec<Device> = vec![Memory::new(256 << 20), flash];
        let names = [("CD_disk01", Role::Disk), ("FD_00", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        drop(devices);
        cell.create_flash_log(None, &[]).await.unwrap();
        cell.create_flash_cache(None, &[]).await.unwrap();
        let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let spec = GridDiskSpec {
            caching_mode: CachingMode::WriteBack,
            ..GridDiskSpec::new("DATA", cell_disk, 64 << 20, world.clock.wall())
        };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = disk.open_session(Context::default());
        for block in 0..64 {
            session.write(block * 65536, full_of(65536, 7), false).await.unwrap();
        }
        session.flush().await.unwrap();
        assert!(held.strong_count() > 0, "it is in use");
        cell.drop_flash_cache().await.unwrap();
        cell.drop_flash_log(false).await.unwrap();
        cell.drop_cell_disk("FD_00", false).await.unwrap();
        // As long as a new opening waits for the lock of an old one.
        world.clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(held.strong_count(), 0, "it is closed, though a client of the grid disk is still there");
        session.write(0, full_of(4096, 8), true).await.unwrap();
    });
}
