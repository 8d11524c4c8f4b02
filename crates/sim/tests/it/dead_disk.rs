//! Goal: with the disk dead and the log of the flash full, every request ends: a FLUSH succeeds, or fails, and never waits for room that only
//! the disk could make. Method: a whole cell in virtual time with a small cache; the disk fails every request while a client
//! overwrites and flushes; each request has a time limit far above every time-out of the cell.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context, RequestError, Session};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::io::{FailKind, Verb};
use device::layers::{Action, Delay, Fault, Faults, Memory, Model};
use device::{Device, Prng, World};
use futures_util::future::{Either, select};
use sim::plain::{cell_on, full_of, in_a_world};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 64 * MIB;
const PART: u64 = 4096;
const SEGMENT_BYTES: u32 = 256 << 10;
/// Longer than any deadline of the cell.
const LIMIT: Duration = Duration::from_secs(900);

/// What a request comes to.
async fn ended<T>(what: &str, world: &World, request: impl Future<Output = T>) -> T {
    match select(Box::pin(request), world.clock.sleep(LIMIT)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => panic!("{what} has not ended"),
    }
}

/// Writes of a client, one behind the other, with a FLUSH after some. How many requests failed.
async fn client(session: &Session, world: &World, prng: &mut Prng, writes: u64, parts: u64) -> u64 {
    let mut failed = 0;
    let mut count = |result: Result<(), RequestError>| failed += u64::from(result.is_err());
    for n in 0..writes {
        let offset = prng.below(parts) * PART;
        let fua = prng.chance(1, 20);
        count(ended("a write", world, session.write(offset, full_of(PART as usize, n as u8), fua)).await);
        if prng.chance(1, 8) {
            count(ended("a FLUSH", world, session.flush()).await);
        }
    }
    failed
}

fn every_request_ends(mode: CachingMode, death: FailKind, segments: u64, seed: u64) {
    in_a_world(async |_, world| {
        let delayed = |name: &str, bytes, ns| -> Device {
            let prng = world.prng.fork(name);
            Delay::new(Memory::new(bytes), Model::fixed(ns, 16), world.clock.clone(), world.spawn.clone(), prng)
        };
        let faults = Faults::new(delayed("disk", 256 * MIB, 2_000_000), world.spawn.clone());
        let flash = delayed("flash", 64 * MIB, 50_000);
        let devices: Vec<Device> = vec![faults.clone(), flash];
        let mut config = CellConfig { journal_bytes: Some(16 * MIB), ..CellConfig::default() };
        config.cache.segment_bytes = SEGMENT_BYTES;
        let cell = cell_on(&devices, &[("CD1", Role::Disk), ("FD1", Role::Flash)], config, &world).await;
        cell.create_flash_cache(Some(segments * u64::from(SEGMENT_BYTES)), &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD1").unwrap().0;
        let spec =
            GridDiskSpec { caching_mode: mode, ..GridDiskSpec::new("DATA", home, DATA_BYTES, world.clock.wall()) };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = disk.open_session(Context::default());
        let mut prng = Prng::new(seed);
        let before = client(&session, &world, &mut prng, 300, DATA_BYTES / PART).await;
        assert_eq!(before, 0);
        faults.add(Fault { verbs: Vec::new(), ..Fault::every(Verb::Read, Action::Fail(death)) });
        for parts in [DATA_BYTES / PART, 64, DATA_BYTES / PART] {
            client(&session, &world, &mut prng, 400, parts).await;
            // Another client, which has seen no loss.
            let session = disk.open_session(Context::default());
            client(&session, &world, &mut prng, 100, parts).await;
        }
    });
}

#[test]
fn every_request_ends_with_a_dead_disk_and_a_full_log() {
    for mode in [CachingMode::WriteBack, CachingMode::WriteBackOrdered] {
        for death in [FailKind::Gone, FailKind::Media] {
            for (segments, seed) in [(16, 1), (24, 2), (40, 3)] {
                every_request_ends(mode, death, segments, seed);
            }
        }
    }
}
