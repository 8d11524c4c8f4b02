//! Goal: what a device has lost is heard whichever of its writers gets the report, the claim on it too (I6). Method: a cell in virtual
//! time on devices with a volatile cache and a claim that is renewed, as a server stacks them; nothing but the claim flushes, and
//! its flush fails. With the claim below the place that hears of losses, as it was, each check must fail.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, CellDevice, Context, GridDisk, NewDevice, RequestError};
use celldisk::claim::{Claimed, Holder, RENEW_EVERY};
use celldisk::layout::CLAIM_OFFSET;
use celldisk::{CachingMode, GridDiskSpec, Purpose, Role};
use device::layers::{Action, Fault, Faults, Memory, WatchedDevice};
use device::{Device, FailKind, Io, Verb, World};
use sim::plain::{full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const DISK_BYTES: u64 = 256 << 20;
const FLASH_BYTES: u64 = 3 * DISK_BYTES;
const BLOCK: usize = 4096;

/// Where the claim lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    /// Above the watch, as a server has it.
    AsServed,
    /// The broken build `claim-below-the-watch`: the watch hears what the cell asks for only.
    ClaimBelow,
}

struct Rig {
    disk_faults: Arc<Faults>,
    flash_faults: Arc<Faults>,
    cell: Arc<Cell>,
    disk: Arc<GridDisk>,
    world: World,
    claims: Vec<Arc<Claimed>>,
}

impl Rig {
    async fn new(world: &World, stack: Stack) -> Rig {
        let faults = |bytes| {
            let memory = Memory::with_geometry(Memory::new(bytes).geometry(), true);
            Faults::new(memory, world.spawn.clone())
        };
        let (disk_faults, flash_faults) = (faults(DISK_BYTES), faults(FLASH_BYTES));
        let (mut devices, mut claims) = (Vec::new(), Vec::new());
        for below in [&disk_faults, &flash_faults] {
            let watched = WatchedDevice::new(below.clone(), world.spawn.clone());
            let claimed = Claimed::new(&watched, world);
            let device: Device = claimed.clone();
            devices.push(match stack {
                Stack::AsServed => CellDevice::new(device, watched.losses().clone()),
                Stack::ClaimBelow => CellDevice::from(device),
            });
            claims.push(claimed);
        }
        let names = [("CD_disk01", Role::Disk), ("FD_00", Role::Flash)];
        let new = devices.iter().zip(names).map(|(device, (name, role))| NewDevice::new(device.clone(), name, role));
        drop(Cell::create("cell", new.collect(), false, world).await.unwrap());
        let cell = Cell::open(devices, CellConfig::default(), world.clone()).await.unwrap().0;
        cell.create_flash_log(None, &[]).await.unwrap();
        let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let spec = GridDiskSpec {
            purpose: Purpose::Data,
            caching_mode: CachingMode::None,
            ..GridDiskSpec::new("DATA", cell_disk, 64 << 20, world.clock.wall())
        };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        // From here on nobody else has a reason to flush.
        world.clock.sleep(Duration::from_secs(60)).await;
        Rig { disk_faults, flash_faults, cell, disk, world: world.clone(), claims }
    }

    /// Take the claims, and let them be renewed.
    async fn claim(&self) {
        for (number, claimed) in self.claims.iter().enumerate() {
            let holder = Holder {
                host: 1,
                boot: 1,
                instance: 10 + number as u128,
                process: 1,
                process_started: 1,
                host_name: "host1".to_owned(),
            };
            claimed.take(holder, |_| false, |_| ()).await.unwrap();
            let (claimed, clock) = (Arc::downgrade(claimed), self.world.clock.clone());
            self.world.spawn.spawn(Box::pin(async move { drop(Claimed::renew(claimed, clock).await) }));
        }
    }

    async fn renewed(&self) {
        self.world.clock.sleep(RENEW_EVERY + Duration::from_secs(1)).await;
    }
}

/// What a connection is answered to its FLUSH after the flush of the disk's claim has failed.
fn flush_after_a_failed_claim(stack: Stack) -> Result<(), RequestError> {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world, stack).await;
        rig.claim().await;
        let session = rig.disk.open_session(Context::default());
        session.write(0, full_of(BLOCK, 7), false).await.unwrap();
        rig.disk_faults.add(Fault::next(Verb::Flush, Action::Fail(FailKind::Media)));
        rig.renewed().await;
        session.flush().await
    })
}

/// Whether the flash log has given its ring up after the flush of the flash device's claim has failed.
fn ring_after_a_failed_claim(stack: Stack) -> bool {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world, stack).await;
        rig.claim().await;
        let log = rig.cell.flash_log().unwrap();
        rig.flash_faults.add(Fault::next(Verb::Flush, Action::Fail(FailKind::Media)));
        rig.renewed().await;
        log.failures()[0].is_some()
    })
}

#[test]
fn a_loss_that_the_claim_is_told_of_reaches_the_client() {
    assert_eq!(flush_after_a_failed_claim(Stack::AsServed), Err(RequestError::Io));
}

#[test]
fn a_loss_that_the_claim_is_told_of_gives_the_ring_up() {
    assert!(ring_after_a_failed_claim(Stack::AsServed));
}

#[test]
fn the_broken_build_claim_below_the_watch_is_caught() {
    assert_eq!(flush_after_a_failed_claim(Stack::ClaimBelow), Ok(()), "a FLUSH is acknowledged over lost data");
    assert!(!ring_after_a_failed_claim(Stack::ClaimBelow), "a ring goes on whose records may be gone");
}

/// The claim's own page: nobody else has lost anything.
#[test]
fn a_claim_whose_sector_cannot_be_written_costs_no_client_anything() {
    in_a_world(async |_process, world| {
        let rig = Rig::new(&world, Stack::AsServed).await;
        rig.claim().await;
        let session = rig.disk.open_session(Context::default());
        session.write(0, full_of(BLOCK, 7), false).await.unwrap();
        let bad = Fault::every(Verb::Write, Action::Fail(FailKind::Media));
        rig.disk_faults.add(Fault { range: Some(CLAIM_OFFSET..CLAIM_OFFSET + 4096), ..bad });
        for _ in 0..4 {
            rig.renewed().await;
            session.write(0, full_of(BLOCK, 8), false).await.unwrap();
        }
        session.flush().await.unwrap();
    });
}
