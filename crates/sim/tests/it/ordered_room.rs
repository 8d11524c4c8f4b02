//! Goal: no more of a grid disk in flush order is dirty than its journal takes, whatever asks for batches at the same time. Method: a cell in
//! virtual time on a slow disk; a client writes as fast as flash takes it and flushes, while a command makes the disk whole.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Delay, Memory, Model};
use device::{Device, Spawn};
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const WRITE_BYTES: u64 = 64 << 10;
/// An allocation unit, the smallest.
const JOURNAL_BYTES: u64 = 16 * MIB;
/// Less than half of the journal: nobody wants a batch yet.
const FIRST: u64 = 80;
/// More than half, with those before.
const THEN: u64 = 160;

#[test]
fn a_batch_that_ends_takes_nothing_from_what_a_newer_cut_counts() {
    in_a_world(async |process, world| {
        let slow = Delay::new(
            Memory::new(256 * MIB),
            "sata-7200".parse::<Model>().unwrap(),
            world.clock.clone(),
            world.spawn.clone(),
            world.prng.fork("disk"),
        );
        let devices: Vec<Device> = vec![slow, Memory::new(256 * MIB)];
        let names = [("CD1", Role::Disk), ("FD1", Role::Flash)];
        let config = CellConfig { journal_bytes: Some(JOURNAL_BYTES), ..CellConfig::default() };
        let cell = cell_on(&devices, &names, config, &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        let caching_mode = CachingMode::WriteBackOrdered;
        let spec = GridDiskSpec { caching_mode, ..GridDiskSpec::new("DATA", home, 128 * MIB, world.clock.wall()) };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = disk.open_session(Context::default());
        let mut writes = 0..128 * MIB / WRITE_BYTES;
        let mut write = async |count: u64| {
            for n in writes.by_ref().take(count as usize) {
                session.write(n * WRITE_BYTES, full_of(WRITE_BYTES as usize, 7), false).await.unwrap();
                assert!(disk.dirty_bytes() <= JOURNAL_BYTES, "{} after write {n}", disk.dirty_bytes());
            }
        };
        // A grid disk that has nothing dirty begins on its disk.
        write(1).await;
        write(FIRST).await;
        let (done, whole) = (Arc::new(Mutex::new(None)), cell.clone());
        let ended = done.clone();
        process.spawn(Box::pin(async move {
            *ended.lock().unwrap() = Some(whole.set_caching("DATA", Some(CachingMode::WriteThrough), None).await);
        }));
        world.clock.sleep(Duration::from_millis(1)).await;
        write(THEN).await;
        // Somebody has seen by then that a batch is wanted.
        world.clock.sleep(Duration::from_millis(1)).await;
        let cuts = disk.counters.ordered_cuts_at_flush.get();
        session.flush().await.unwrap();
        assert_eq!((disk.counters.ordered_cuts_at_flush.get(), disk.counters.ordered_batches.get()), (cuts + 1, 0));
        while done.lock().unwrap().is_none() {
            write(1).await;
            world.clock.sleep(Duration::from_micros(1)).await;
        }
        done.lock().unwrap().take().unwrap().unwrap();
        assert_eq!(disk.dirty_bytes(), 0);
    });
}
