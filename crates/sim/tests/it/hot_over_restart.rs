//! Goal: what was hot on flash is brought back when the flash was lost while the cell was down, by the list an earlier life made.
//! Method: a cell in virtual time, blocks read more than once, a stop; then the next life has other flash, or the same one that the
//! cell has meanwhile done without.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, HotLists, NewDevice, Session};
use celldisk::{GridDiskSpec, Role};
use device::layers::Memory;
use device::{Buf, Bufs, Device, SharedBufs, World};
use sim::plain::{cell_on, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 16 << 10;
const HOT_BLOCKS: u64 = 200;

fn config() -> CellConfig {
    CellConfig { hot_every: Duration::from_secs(1), ..CellConfig::default() }
}

async fn read_hot(session: &Session) {
    for block in 0..HOT_BLOCKS {
        session.read(block * BLOCK, Bufs::from(Buf::zeroed(BLOCK as usize))).await.0.unwrap();
    }
}

/// A cell on one disk and one flash device, with hot blocks on the flash, stopped; what it knows of them.
async fn hot_cell(disk: &Device, flash: &Device, world: &World) -> HotLists {
    let names = [("CD", Role::Disk), ("FD", Role::Flash)];
    let cell = cell_on(&[disk.clone(), flash.clone()], &names, config(), world).await;
    cell.create_flash_cache(None, &[]).await.unwrap();
    let home = cell.store().catalog().member_named("CD").unwrap().0;
    let spec = GridDiskSpec::new("DATA", home, 64 * MIB, world.clock.wall());
    let session = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap().open_session(Context::default());
    // Filled by the first, found by the others.
    for _ in 0..3 {
        read_hot(&session).await;
        world.clock.sleep(Duration::from_secs(1)).await;
    }
    world.clock.sleep(Duration::from_secs(2)).await;
    let lists = cell.hot_lists();
    assert_eq!(lists.values().map(|list| list.len() as u64).collect::<Vec<_>>(), [HOT_BLOCKS]);
    cell.stop().await.unwrap();
    lists
}

async fn open(devices: &[&Device], world: &World) -> Arc<Cell> {
    let devices = devices.iter().map(|&device| device.clone()).collect();
    Cell::open(devices, config(), world.clone()).await.unwrap().0
}

/// Every hot block is on flash, without having been asked for.
async fn is_warm(cell: &Arc<Cell>, world: &World) {
    let before = world.clock.now();
    while cell.refilled_blocks() < HOT_BLOCKS {
        assert!(world.clock.now().ns_since(before) < 60_000_000_000, "{} blocks", cell.refilled_blocks());
        world.clock.sleep(Duration::from_millis(10)).await;
    }
    world.clock.sleep(Duration::from_secs(1)).await;
    let disk = cell.grid_disk("DATA").unwrap();
    let hits = || disk.counters.cache_hits.requests.get();
    let found_before = hits();
    read_hot(&disk.open_session(Context::default())).await;
    assert_eq!(hits() - found_before, HOT_BLOCKS);
}

#[test]
fn flash_that_was_replaced_while_the_cell_was_down_is_filled_again() {
    in_a_world(async |_, world| {
        let device = |mib| -> Device { Memory::new(mib * MIB) };
        let (disk, old, new) = (device(256), device(128), device(128));
        let lists = hot_cell(&disk, &old, &world).await;
        let cell = open(&[&disk], &world).await;
        assert_eq!(cell.remember_hot(lists.clone()), 0, "there is no flash yet");
        assert_eq!(cell.hot_lists(), lists, "kept for the flash that comes, over a further restart too");
        cell.create_cell_disk(NewDevice::new(new, "FD2", Role::Flash), false).await.unwrap();
        cell.change_flash_cache(&["FD2".to_owned()], &mut |_, _| ()).await.unwrap();
        is_warm(&cell, &world).await;
        cell.stop().await.unwrap();
    });
}

#[test]
fn flash_that_the_cell_did_without_for_a_life_is_filled_again() {
    in_a_world(async |_, world| {
        let device = |mib| -> Device { Memory::new(mib * MIB) };
        let (disk, flash) = (device(256), device(128));
        let lists = hot_cell(&disk, &flash, &world).await;
        let without = open(&[&disk], &world).await;
        let session = without.grid_disk("DATA").unwrap().open_session(Context::default());
        session.write(0, SharedBufs::from(Buf::zeroed(BLOCK as usize).freeze()), false).await.unwrap();
        without.stop().await.unwrap();
        let cell = open(&[&disk, &flash], &world).await;
        assert_eq!(cell.remember_hot(lists.clone()) as u64, HOT_BLOCKS, "nothing on it is believed any more");
        is_warm(&cell, &world).await;
        cell.stop().await.unwrap();

        // What is warm needs nothing; what the list says of flash that is of no cache is left out.
        let cell = open(&[&disk, &flash], &world).await;
        let strange = lists.values().map(|list| (celldisk::DeviceId(7), list.clone())).collect();
        assert_eq!((cell.remember_hot(lists), cell.remember_hot(strange)), (0, 0));
        assert_eq!((cell.hot_lists().len(), cell.refilled_blocks()), (1, 0));
        cell.drop_flash_cache().await.unwrap();
        assert!(cell.hot_lists().is_empty(), "a cache that is made anew begins empty");
        cell.stop().await.unwrap();
    });
}
