//! Goal: flash that is put back to an earlier moment of a life is not believed at the next open, when stamps have been renewed since; and is
//! where they are not renewed, so the test would notice. Method: a cell in write-through, killed, with the flash of before.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context};
use celldisk::{GridDiskSpec, Role, Sabotage};
use device::layers::Memory;
use device::{Buf, Device};
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const FLASH_BYTES: u64 = 64 * MIB;
/// Where what is written goes to flash with the word that the first region is settled.
const ELSEWHERE: u64 = 32 * MIB;

fn config(sabotage: Option<Sabotage>) -> CellConfig {
    let mut config = CellConfig {
        settle_every: Duration::from_millis(500),
        stamps_every: Some(Duration::from_secs(30)),
        disk_sabotage: sabotage,
        ..CellConfig::default()
    };
    config.cache.segment_bytes = 1 << 20;
    config
}

async fn copy(from: &Device) -> Device {
    let to: Device = Memory::new(FLASH_BYTES);
    for offset in (0..FLASH_BYTES).step_by(MIB as usize) {
        let read = from.read(offset, Buf::zeroed(MIB as usize).into()).await;
        let wrote = to.write(offset, read.bufs.freeze(), false).await;
        assert!(read.outcome == device::Outcome::Done && wrote.outcome == device::Outcome::Done);
    }
    to
}

async fn read(cell: &Arc<Cell>) -> u8 {
    let session = cell.grid_disk("DATA").unwrap().open_session(Context::default());
    let (outcome, bytes) = session.read(0, Buf::zeroed(PAGE).into()).await;
    outcome.unwrap();
    bytes.freeze().to_vec(0..1)[0]
}

/// What is read after flash has gone back to before the second of two writes. `gap`: from the second write to the death.
fn read_after(sabotage: Option<Sabotage>, gap: Duration) -> u8 {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let devices: [Device; 2] = [Memory::new(256 * MIB), Memory::new(FLASH_BYTES)];
        let cell = cell_on(&devices, &[("CD", Role::Disk), ("FD", Role::Flash)], config(sabotage), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD").unwrap().0;
        let spec = GridDiskSpec::new("DATA", home, 64 * MIB, world.clock.wall());
        let session = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap().open_session(Context::default());
        let write = async |offset, fill| session.write(offset, full_of(PAGE, fill), true).await.unwrap();
        write(0, 1).await;
        assert_eq!(read(&cell).await, 1);
        world.clock.sleep(Duration::from_secs(5)).await;
        write(ELSEWHERE, 1).await;
        world.clock.sleep(Duration::from_secs(1)).await;
        let before = copy(&devices[1]).await;
        write(0, 2).await;
        world.clock.sleep(gap).await;
        process.kill();

        let (_process, world) = process_of(executor);
        let devices = vec![devices[0].clone(), before];
        let (cell, _) = Cell::open(devices, config(sabotage), world.clone()).await.unwrap();
        read(&cell).await
    })
}

#[test]
fn flash_of_an_earlier_moment_of_a_life_is_not_believed() {
    let two_periods = Duration::from_secs(60);
    assert_eq!(read_after(None, two_periods), 2);
    assert_eq!(read_after(Some(Sabotage::StampsNotRenewed), two_periods), 1, "the test would notice");
}
