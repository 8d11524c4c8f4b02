//! Goal: what is dirty and is overwritten soon costs the slow disk one write, and is still destaged in time. Method: a grid disk in write-back
//! of which one block is overwritten twice a second, and another each time once in ten seconds; writes of the slow disk are counted in virtual
//! time.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, GridDisk};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::Memory;
use device::{Device, World};
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const QUIET: Duration = Duration::from_secs(5);
const BUSY_MAX: u64 = 120;

async fn rig(world: &World, flash_mib: u64) -> (Arc<Cell>, Arc<GridDisk>) {
    let devices: [Device; 2] = [Memory::new(512 * MIB), Memory::new(flash_mib * MIB)];
    let config = CellConfig { settle_every: QUIET, ..CellConfig::default() };
    let cell = cell_on(&devices, &[("CD", Role::Disk), ("FD", Role::Flash)], config, world).await;
    cell.create_flash_cache(None, &[]).await.unwrap();
    let home = cell.store().catalog().member_named("CD").unwrap().0;
    let spec = GridDiskSpec {
        caching_mode: CachingMode::WriteBack,
        ..GridDiskSpec::new("G", home, 256 * MIB, world.clock.wall())
    };
    cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
    let disk = cell.grid_disk("G").unwrap();
    (cell, disk)
}

fn destaged(disk: &GridDisk) -> u64 {
    disk.counters.destages.requests.get()
}

fn dirty_bytes(cell: &Cell) -> u64 {
    cell.flash_cache().map_or(0, |cache| cache.all_dirty_bytes().0)
}

/// For some time: the first block overwritten, others from `cold` on written once.
async fn overwrite(disk: &Arc<GridDisk>, world: &World, seconds: u64, cold: u64) {
    let session = disk.open_session(Context::default());
    for n in 0..2 * seconds {
        session.write(0, full_of(8192, n as u8), false).await.unwrap();
        if n % 20 == 0 {
            session.write((cold + n / 20) * MIB, full_of(8192, 1), false).await.unwrap();
        }
        world.clock.sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn what_is_overwritten_is_destaged_once_in_two_minutes() {
    in_a_world(async |_, world| {
        let (_cell, disk) = rig(&world, 256).await;
        overwrite(&disk, &world, BUSY_MAX - 10, 1).await;
        assert_eq!(destaged(&disk), 0, "it may be overwritten yet");
        overwrite(&disk, &world, 3 * BUSY_MAX, 100).await;
        // Eleven others and 36, of which some may be dirty still; the block that is overwritten with them each time.
        let writes = destaged(&disk);
        assert!((11 + 24 + 3..=11 + 36 + 4).contains(&writes), "{writes} writes");
    });
}

#[test]
fn what_nobody_writes_to_any_more_is_clean_soon() {
    in_a_world(async |_, world| {
        let (cell, disk) = rig(&world, 256).await;
        overwrite(&disk, &world, 10, 1).await;
        assert!(dirty_bytes(&cell) > 0);
        world.clock.sleep(2 * QUIET).await;
        assert_eq!((dirty_bytes(&cell), destaged(&disk)), (0, 2));
    });
}

/// As when a database has its part of the cache full of dirty data: what it writes goes to the disk meanwhile.
#[test]
fn what_somebody_wants_room_of_is_destaged_while_it_is_written_to() {
    in_a_world(async |_, world| {
        let (cell, disk) = rig(&world, 256).await;
        overwrite(&disk, &world, 20, 1).await;
        assert_eq!(destaged(&disk), 0);
        cell.flash_cache().unwrap().dirty_wanted().notify_all();
        overwrite(&disk, &world, 1, 50).await;
        assert!(destaged(&disk) > 0);
    });
}

/// Each block once: a rate at which an eighth of the flash is dirty long before anything is old.
#[test]
fn much_that_is_dirty_is_destaged_before_it_crowds_the_cache() {
    in_a_world(async |_, world| {
        let (cell, disk) = rig(&world, 256).await;
        let session = disk.open_session(Context::default());
        let mut most = 0;
        for mib in 0..100 {
            for block in 0..16 {
                session.write(mib * MIB + block * 65536, full_of(65536, 7), false).await.unwrap();
            }
            world.clock.sleep(Duration::from_millis(500)).await;
            most = most.max(dirty_bytes(&cell));
        }
        assert!(destaged(&disk) > 0);
        assert!((20 * MIB..60 * MIB).contains(&most), "{} MiB of 256", most / MIB);
    });
}
