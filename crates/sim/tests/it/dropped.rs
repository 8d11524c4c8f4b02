//! Goal: a grid disk that is dropped gives back what it took: its memory, its background work, and what the flash cache knew it by, which
//! another gets only when nobody can write to the old one any more. Method: a cell in virtual time, on which more grid disks are made and
//! dropped than the cache can tell apart; each is looked at for what those before it wrote.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, GridDisk, Session};
use celldisk::{GridDiskSpec, Role};
use device::layers::Memory;
use device::{Buf, Bufs, Device, World};
use flashcache::units::DISK_SLOTS_MAX;
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SETTLED: Duration = Duration::from_secs(2);

async fn rig(world: &World) -> Arc<Cell> {
    let devices: [Device; 2] = [Memory::new(32 * MIB), Memory::new(32 * MIB)];
    let config = CellConfig { settle_every: SETTLED / 4, ..CellConfig::default() };
    let cell = cell_on(&devices, &[("CD", Role::Disk), ("FD", Role::Flash)], config, world).await;
    cell.create_flash_cache(None, &[]).await.unwrap();
    cell
}

async fn make(cell: &Arc<Cell>, world: &World) -> Arc<GridDisk> {
    let home = cell.store().catalog().member_named("CD").unwrap().0;
    let spec = GridDiskSpec::new("G", home, MIB, world.clock.wall());
    cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap()
}

/// Its first page, which is the same byte throughout.
async fn first_page(session: &Session) -> u8 {
    let (read, bufs) = session.read(0, Bufs::from(Buf::zeroed(4096))).await;
    read.unwrap();
    let bytes = bufs.to_vec(0..4096);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn nothing_of_a_dropped_grid_disk_stays_when_its_last_session_has_ended() {
    in_a_world(async |_, world| {
        let cell = rig(&world).await;
        let disk = make(&cell, &world).await;
        let session = disk.open_session(Context::default());
        session.write(0, full_of(4096, 7), true).await.unwrap();
        let left = Arc::downgrade(&disk);
        drop(disk);
        cell.drop_grid_disk("G", true).await.unwrap();
        world.clock.sleep(SETTLED).await;
        assert!(left.strong_count() > 0, "its session has it");
        assert!(session.read(0, Bufs::from(Buf::zeroed(4096))).await.0.is_err());
        drop(session);
        assert_eq!(left.strong_count(), 0);
    });
}

#[test]
fn a_cell_makes_more_grid_disks_in_one_run_than_its_cache_can_tell_apart() {
    in_a_world(async |_, world| {
        let cell = rig(&world).await;
        // Nobody gets what this one is known by.
        let stays = make(&cell, &world).await.open_session(Context::default());
        cell.drop_grid_disk("G", true).await.unwrap();
        for made in 0..u32::from(DISK_SLOTS_MAX) + 40 {
            let disk = make(&cell, &world).await;
            let session = disk.open_session(Context::default());
            assert_eq!(first_page(&session).await, 0, "number {made} shows what another had");
            session.write(0, full_of(4096, 1 + (made % 250) as u8), true).await.unwrap();
            assert_eq!(first_page(&session).await, 1 + (made % 250) as u8);
            // The first read filled the block, or the write kept it there.
            assert!(disk.counters.cache_hits.requests.get() > 0, "number {made} is not cached: {:?}", cell.alerts());
            drop((session, disk));
            cell.drop_grid_disk("G", false).await.unwrap();
            if made % 20 == 0 {
                // Those that were dropped come to their end.
                world.clock.sleep(SETTLED).await;
            }
        }
        assert!(cell.alerts().is_empty(), "{:?}", cell.alerts());
        drop(stays);
    });
}
