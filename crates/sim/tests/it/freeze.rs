//! Goal: grid disks that are frozen together are copies of one moment, which is no earlier than the freeze, whatever their modes. Method: a cell
//! in virtual time with two of them on slow disks of their own; clients write a number to the first and, once that has been answered, to the second.
//! On the frozen disks nothing of a number is on the second that is not whole on the first, and the first is at most one ahead. Where there is a
//! flash log clients write durably, as a database does.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::PlanChange;
use cell::plan::{Directive, Objective, Subject};
use cell::{Cell, CellConfig, Context};
use celldisk::layout::au_bytes_for;
use celldisk::{CachingMode, GridDiskSpec, Purpose, Role};
use device::layers::{Delay, Memory, Model};
use device::{Buf, Bufs, Device, SharedBufs, Spawn};
use futures_util::future::{Either, select};
use sim::plain::{cell_on, in_a_world};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 256 * MIB;
const PAGE: usize = 4096;
/// Of more than one block of the cache: a write that has not been answered may be there in part.
const WRITE_BYTES: usize = 192 << 10;
const CLIENTS: u64 = 24;
const FREEZES: u32 = 8;
const FROZEN_FOR: Duration = Duration::from_secs(30);
/// Far apart, so that a batch takes a while.
const STRIDE_BYTES: u64 = 2 * MIB;
const NAMES: [&str; 2] = ["WAL", "DATA"];
const RING_BYTES: u64 = 32 * MIB;

/// A write of a number.
fn write_of(number: u64) -> SharedBufs {
    let mut buf = Buf::zeroed(WRITE_BYTES);
    buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    Bufs::from(buf).freeze()
}

/// The least and the greatest number of a client on the disk of a grid disk, whatever flash has.
async fn on_the_disk(cell: &Cell, disk: &Device, name: &str, client: u64) -> (u64, u64) {
    let catalog = cell.store().catalog();
    let record = catalog.grid_disks.values().find(|record| record.name == name).unwrap();
    let start = record.extents[0].offset(au_bytes_for(DISK_BYTES));
    let read = disk.read(start + client * STRIDE_BYTES, Bufs::from(Buf::zeroed(WRITE_BYTES))).await;
    let number = |page: usize| u64::from_le_bytes(read.bufs.to_vec(page * PAGE..page * PAGE + 8).try_into().unwrap());
    let found = (0..WRITE_BYTES / PAGE).map(number);
    (found.clone().min().unwrap(), found.max().unwrap())
}

#[test]
fn grid_disks_that_are_frozen_together_are_of_one_moment() {
    use CachingMode::{None, WriteBack, WriteBackOrdered, WriteThrough};
    for modes in [
        [WriteBackOrdered, WriteBackOrdered],
        [None, WriteThrough],
        [WriteThrough, WriteBack],
        [WriteBackOrdered, WriteBack],
        [None, WriteBackOrdered],
    ] {
        let data = modes.map(|mode| (mode, Purpose::Data));
        frozen_together(data);
        if modes[0] == None {
            frozen_together([(None, Purpose::Redo), data[1]]);
        }
    }
}

fn frozen_together(kinds: [(CachingMode, Purpose); 2]) {
    in_a_world(async |process, world| {
        // Looked at past the delays: a read would wait behind the writes that should not be under way.
        let media: [Device; 2] = [Memory::new(DISK_BYTES), Memory::new(DISK_BYTES)];
        let slow = |at: usize, model: &str| -> Device {
            let (model, prng) = (model.parse::<Model>().unwrap(), world.prng.fork(NAMES[at]));
            Delay::new(media[at].clone(), model, world.clock.clone(), world.spawn.clone(), prng)
        };
        let has_log = kinds.iter().any(|(_, purpose)| *purpose == Purpose::Redo);
        // Their batches end at different times; redo is on flash long before its disk has it.
        let models = if has_log { ["fixed:40ms:24", "fixed:1ms:4"] } else { ["fixed:1ms:4", "fixed:9ms:2"] };
        let disks = [slow(0, models[0]), slow(1, models[1])];
        let devices = vec![disks[0].clone(), disks[1].clone(), Memory::new(256 * MIB) as Device];
        let names = [("CD1", Role::Disk), ("CD2", Role::Disk), ("FD1", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        if has_log {
            cell.create_flash_log(Some(RING_BYTES), &[]).await.unwrap();
        }
        cell.create_flash_cache(Option::None, &[]).await.unwrap();
        let mut grid_disks = Vec::new();
        for (at, home) in ["CD1", "CD2"].into_iter().enumerate() {
            let home = cell.store().catalog().member_named(home).unwrap().0;
            let (caching_mode, purpose) = kinds[at];
            let spec = GridDiskSpec {
                caching_mode,
                purpose,
                ..GridDiskSpec::new(NAMES[at], home, 96 * MIB, world.clock.wall())
            };
            grid_disks.push(cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap());
        }
        let answered: Arc<Vec<AtomicU64>> = Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect());
        for client in 0..CLIENTS {
            let sessions = [0, 1].map(|at: usize| grid_disks[at].open_session(Context::default()));
            let (answered, clock, mut prng) = (answered.clone(), world.clock.clone(), world.prng.fork("client"));
            process.spawn(Box::pin(async move {
                for number in 1_u64.. {
                    for session in &sessions {
                        // Nobody writes any more when the cell stops.
                        if session.write(client * STRIDE_BYTES, write_of(number), has_log).await.is_err() {
                            return;
                        }
                        clock.sleep(Duration::from_micros(prng.below(3_000))).await;
                    }
                    answered[client as usize].store(number, Ordering::Relaxed);
                }
            }));
        }
        for _ in 0..FREEZES {
            world.clock.sleep(Duration::from_millis(700)).await;
            let before: Vec<u64> = answered.iter().map(|number| number.load(Ordering::Relaxed)).collect();
            assert!(before.iter().all(|number| *number > 0), "every client writes");
            // One that is named twice is frozen once.
            let wanted = ["DATA", "WAL", "DATA"].map(str::to_owned);
            let asked = world.clock.wall();
            let frozen = cell.freeze(&wanted, FROZEN_FOR).await.unwrap();
            let told: Vec<_> = frozen.iter().map(|disk| (disk.name.as_str(), disk.writes_wait)).collect();
            let waits = kinds.map(|(mode, _)| mode != CachingMode::WriteBackOrdered);
            assert_eq!(told, [("DATA", waits[1]), ("WAL", waits[0])]);
            assert!(frozen.iter().all(|disk| disk.as_of >= asked), "{frozen:?}, asked at {asked:?}");
            let mut seen = Vec::new();
            for look in 0..2 {
                for client in 0..CLIENTS {
                    let first = on_the_disk(&cell, &media[0], NAMES[0], client).await;
                    let second = on_the_disk(&cell, &media[1], NAMES[1], client).await;
                    // A number goes to the second when the first has answered, and the next to the first when the second has.
                    match look {
                        0 => seen.push((first, second)),
                        _ => {
                            assert_eq!(seen[client as usize], (first, second), "client {client}: the disk has changed")
                        }
                    }
                    let in_order = second.1 <= first.0 && first.1 <= second.0 + 1;
                    assert!(in_order, "client {client}, look {look}: {first:?} and {second:?}");
                    assert!(
                        second.0 >= before[client as usize],
                        "client {client}: {second:?} is older than the freeze"
                    );
                }
                world.clock.sleep(Duration::from_secs(1)).await;
            }
            cell.thaw(&wanted).unwrap();
        }
        let counters = &grid_disks[0].redo_counters;
        assert!(
            !has_log || counters.flash_first.get() > counters.disk_first.get(),
            "redo is on flash first: {counters:?}"
        );
        cell.stop().await.unwrap();
    });
}

/// Goal: while a grid disk is frozen under an I/O plan, the writes of one database that wait keep no other database from the device. Method: many
/// clients of one write to the frozen grid disk, one of another reads a grid disk on the same cell disk. In flush order, where the writes
/// wait once the next batch is full, the other one writes to the same flash.
#[test]
fn writes_that_wait_keep_no_other_database_waiting() {
    for mode in [CachingMode::None, CachingMode::WriteBackOrdered] {
        in_a_world(async |process, world| {
            let model = "fixed:2ms:2".parse::<Model>().unwrap();
            let disk = Memory::new(DISK_BYTES);
            let disk: Device =
                Delay::new(disk, model, world.clock.clone(), world.spawn.clone(), world.prng.fork("disk"));
            let flash: Device = Memory::new(64 * MIB);
            let names = [("CD1", Role::Disk), ("FD1", Role::Flash)];
            let config = CellConfig { journal_bytes: Some(MIB), ..CellConfig::default() };
            let cell = cell_on(&[disk, flash], &names, config, &world).await;
            cell.create_flash_cache(None, &[]).await.unwrap();
            let home = cell.store().catalog().member_named("CD1").unwrap().0;
            for (name, caching_mode) in [("DATA", mode), ("OTHER", mode)] {
                let spec = GridDiskSpec { caching_mode, ..GridDiskSpec::new(name, home, 96 * MIB, world.clock.wall()) };
                cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
            }
            let of = |name: &str| Directive { share: Some(1), ..Directive::of(Subject::Database(name.to_owned())) };
            let directives = ["sales", "crm"].map(of).to_vec();
            let change = PlanChange {
                objective: Some(Objective::LowLatency),
                directives: Some(directives),
                ..PlanChange::default()
            };
            cell.alter_iorm_plan(change).await.unwrap();
            let session = |disk: &str, database: &str| {
                let context = Context { database: Some(Arc::from(database)), ..Context::default() };
                cell.grid_disk(disk).unwrap().open_session(context)
            };
            for client in 0..128 {
                let session = session("DATA", "sales");
                process.spawn(Box::pin(async move {
                    for at in 0.. {
                        let offset = (client * 13 + at * 577) % 1024 * (64 << 10);
                        let mut buf = Buf::zeroed(64 << 10);
                        buf.fill(1);
                        if session.write(offset, Bufs::from(buf).freeze(), false).await.is_err() {
                            return;
                        }
                    }
                }));
            }
            let other = session("OTHER", "crm");
            world.clock.sleep(Duration::from_secs(2)).await;
            cell.freeze(&["DATA".to_owned()], FROZEN_FOR).await.unwrap();
            let refused = cell.freeze(&["DATA".to_owned()], FROZEN_FOR).await.unwrap_err().to_string();
            assert!(refused.contains("is frozen"), "a second freeze: {refused}");
            let written = || cell.grid_disk("DATA").unwrap().counters.writes.small.requests.get();
            // A batch is full by then.
            world.clock.sleep(Duration::from_secs(2)).await;
            let (begun, before) = (world.clock.now(), written());
            for at in 0..500 {
                // In flush order it is flash that they share.
                let (outcome, _) = match mode {
                    CachingMode::None => other.read(at * 4096, Bufs::from(Buf::zeroed(PAGE))).await,
                    _ => {
                        (other.write(at % 16 * 4096, Bufs::from(Buf::zeroed(PAGE)).freeze(), false).await, Bufs::new())
                    }
                };
                outcome.unwrap();
            }
            let took = Duration::from_nanos(world.clock.now().ns_since(begun));
            assert!(took < Duration::from_secs(5), "{mode:?}: 500 requests of another database took {took:?}");
            assert_eq!(written(), before, "{mode:?}: writes wait");
            cell.thaw(&["DATA".to_owned()]).unwrap();
            let refused = cell.thaw(&["DATA".to_owned()]).unwrap_err().to_string();
            assert!(refused.contains("is not frozen"), "a second thaw: {refused}");
            world.clock.sleep(Duration::from_secs(2)).await;
            assert!(written() > before, "{mode:?}: writes go on");
            // One that somebody thaws while it is under way comes to nothing.
            let (names, freezer) = (["DATA".to_owned()], cell.clone());
            let (clock, thawed) = (world.clock.clone(), cell.clone());
            let freezing = async move { freezer.freeze(&names, FROZEN_FOR).await };
            let thawing = async move {
                loop {
                    let _ = thawed.thaw(&["DATA".to_owned()]);
                    clock.sleep(Duration::from_micros(100)).await;
                }
            };
            let (freezing, thawing) = (std::pin::pin!(freezing), std::pin::pin!(thawing));
            let Either::Left((frozen, _)) = select(freezing, thawing).await;
            assert!(frozen.unwrap_err().to_string().contains("thawed"), "{mode:?}: a thaw during a freeze");
            assert!(cell.grid_disk("DATA").unwrap().frozen_until().is_none());
            cell.end_freezes();
            assert!(cell.freeze(&["DATA".to_owned()], FROZEN_FOR).await.is_err(), "a cell that is about to stop");
            cell.stop().await.unwrap();
        });
    }
}
