//! Goal: a read that flash answers late or wrongly finds on the disk what was destaged meanwhile. Method: a cell in virtual time whose
//! flash holds back the read of a dirty page while that is destaged, and has let it rot when it answers.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context};
use celldisk::{CachingMode, FillStrategy, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Device, Spawn, Verb};
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
/// More than the dirty page, so that disk and flash both serve it.
const READ_BYTES: usize = 512 << 10;
const DIRTY_AT: u64 = 64 << 10;

/// Destroy every page that is full of a byte. How many.
async fn rot(device: &Device, fill: u8) -> usize {
    let mut rotten = 0;
    for offset in (0..device.geometry().size_bytes).step_by(PAGE) {
        let read = device.read(offset, Buf::zeroed(PAGE).into()).await;
        if read.bufs.to_vec(0..PAGE).iter().all(|byte| *byte == fill) {
            assert!(device.write(offset, full_of(PAGE, fill + 1), false).await.outcome.ok().is_ok());
            rotten += 1;
        }
    }
    rotten
}

#[test]
fn what_was_destaged_while_flash_was_asked_for_it_is_read_from_the_disk() {
    in_a_world(async |process, world| {
        let medium: Device = Memory::new(128 * MIB);
        let flash = Faults::new(medium.clone(), world.spawn.clone());
        let devices: Vec<Device> = vec![Memory::new(256 * MIB), flash.clone()];
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        let spec = GridDiskSpec {
            caching_mode: CachingMode::WriteBack,
            // A read that fills nothing leaves the range to others that read, destaging among them.
            fill: FillStrategy::Evict,
            ..GridDiskSpec::new("DATA", home, 64 * MIB, world.clock.wall())
        };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        disk.open_session(Context::default()).write(DIRTY_AT, full_of(PAGE, 7), true).await.unwrap();

        flash.add(Fault { count: 1, ..Fault::every(Verb::Read, Action::Stall) });
        let (answer, told) = (Arc::new(Mutex::new(None)), disk.open_session(Context::default()));
        let answered = answer.clone();
        process.spawn(Box::pin(async move {
            let (outcome, bytes) = told.read(0, Buf::zeroed(READ_BYTES).into()).await;
            *answered.lock().unwrap() = Some(outcome.map(|()| bytes.freeze().to_vec(0..READ_BYTES)));
        }));
        while flash.stalled() == 0 {
            world.clock.sleep(Duration::from_micros(10)).await;
        }
        while cell.dirty_bytes(std::slice::from_ref(&disk)) > 0 {
            world.clock.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(rot(&medium, 7).await, 1, "where it was dirty");
        assert!(answer.lock().unwrap().is_none(), "flash has not answered");
        flash.release();
        world.clock.sleep(Duration::from_millis(1)).await;
        let read = answer.lock().unwrap().take().unwrap().unwrap();
        let at = DIRTY_AT as usize;
        assert!(read[at..at + PAGE].iter().all(|byte| *byte == 7), "what was written");
    });
}
