//! Goal: a grid disk in flush order tells its clients what they have zeroed, and never calls zero what is not. Method: random writes,
//! zeroes and trims, with destaging and flushes between them; block status is compared with what was done, and with what is read.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Allocation, CellConfig, Context, Session, ZeroFlags};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::Memory;
use device::{Buf, Device, World};
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PART: u64 = 4096;
const PARTS: u64 = 512;

async fn ordered(world: &World) -> (Arc<cell::Cell>, Arc<cell::GridDisk>) {
    let devices: Vec<Device> = vec![Memory::new(256 * MIB), Memory::new(256 * MIB)];
    let names = [("CD1", Role::Disk), ("FD1", Role::Flash)];
    let config = CellConfig { journal_bytes: Some(16 * MIB), ..CellConfig::default() };
    let cell = cell_on(&devices, &names, config, world).await;
    cell.create_flash_cache(None, &[]).await.unwrap();
    let home = cell.store().catalog().member_named("CD1").unwrap().0;
    let caching_mode = CachingMode::WriteBackOrdered;
    let spec = GridDiskSpec { caching_mode, ..GridDiskSpec::new("DATA", home, 64 * MIB, world.clock.wall()) };
    let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
    (cell, disk)
}

/// What block status says of each part.
async fn told(session: &Session) -> Vec<Allocation> {
    let extents = session.extents(0, PARTS * PART, 10_000).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), PARTS * PART);
    let parts = extents.iter().flat_map(|extent| {
        assert!(extent.len.is_multiple_of(PART));
        (0..extent.len / PART).map(|_| extent.allocation)
    });
    parts.collect()
}

#[test]
fn what_is_zeroed_is_told_until_it_is_written_and_nothing_else() {
    in_a_world(async |_, world| {
        let (_cell, disk) = ordered(&world).await;
        let session = disk.open_session(Context::default());
        let mut prng = world.prng.fork("test");
        // The first change begins on the disk; flash takes the rest.
        session.write(0, full_of((PARTS * PART) as usize, 7), false).await.unwrap();
        session.write(0, full_of(PART as usize, 7), false).await.unwrap();
        let mut zeroed = vec![false; PARTS as usize];
        for _ in 0..300 {
            let first = prng.below(PARTS);
            let end = prng.between(first + 1, PARTS.min(first + 20));
            let (at, len) = (first * PART, (end - first) * PART);
            let zeroes = match prng.below(4) {
                0 => session.write_zeroes(at, len, ZeroFlags::default()).await.map(|()| Some(first..end)),
                // Odd at both ends: those parts hold something else too.
                1 if len > 2 * PART => {
                    let done = session.write_zeroes(at + 100, len - 300, ZeroFlags::default()).await;
                    zeroed[first as usize] &= false;
                    zeroed[end as usize - 1] &= false;
                    done.map(|()| Some(first + 1..end - 1))
                }
                1 => session
                    .write_zeroes(at, len, ZeroFlags { no_hole: true, ..ZeroFlags::default() })
                    .await
                    .map(|()| Some(first..end)),
                _ => session.write(at, full_of(len as usize, 7), false).await.map(|()| None),
            };
            match zeroes.unwrap() {
                Some(parts) => zeroed[parts.start as usize..parts.end as usize].fill(true),
                None => zeroed[first as usize..end as usize].fill(false),
            }
            if prng.chance(1, 20) {
                session.flush().await.unwrap();
            }
            if prng.chance(1, 20) {
                world.clock.sleep(Duration::from_secs(30)).await;
            }
            let expected = zeroed.iter().map(|&zero| if zero { Allocation::Zeroes } else { Allocation::Data });
            assert_eq!(told(&session).await, expected.collect::<Vec<_>>());
        }
        assert!(disk.counters.ordered_batches.get() > 3, "{}", disk.counters.ordered_batches.get());
        let (read, bufs) = session.read(0, Buf::zeroed((PARTS * PART) as usize).into()).await;
        read.unwrap();
        for (part, allocation) in told(&session).await.into_iter().enumerate() {
            let bytes = bufs.to_vec(part * PART as usize..(part + 1) * PART as usize);
            assert!(allocation == Allocation::Data || bytes.iter().all(|&b| b == 0), "part {part}");
        }
    });
}

#[test]
fn in_another_mode_the_disk_alone_tells() {
    in_a_world(async |_, world| {
        let (cell, disk) = ordered(&world).await;
        let session = disk.open_session(Context::default());
        session.write(0, full_of((PARTS * PART) as usize, 7), false).await.unwrap();
        session.write(0, full_of(PART as usize, 7), false).await.unwrap();
        session.write_zeroes(0, PARTS * PART, ZeroFlags::default()).await.unwrap();
        assert!(told(&session).await.iter().all(|&part| part == Allocation::Zeroes));
        cell.set_caching("DATA", Some(CachingMode::WriteThrough), None).await.unwrap();
        assert!(told(&session).await.iter().all(|&part| part == Allocation::Data));
    });
}
