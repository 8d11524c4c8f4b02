//! Goal: a device that stops to answer while a cell starts keeps offline only what needs it. Method: a cell with two disks and flash in virtual time;
//! it is stopped clean or killed, and started with one device that answers so many requests and then none, for every such number. The
//! start ends in time; what needs the device fails or is right, all else is served; and with the device back all is as it was.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory, StartDeadline, StartLimits};
use device::{Buf, Device, World};
use sim::executor::Executor;
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::sync::Arc;
use std::time::Duration;

const NAMES: [(&str, Role); 3] = [("CD_0", Role::Disk), ("CD_1", Role::Disk), ("FD_0", Role::Flash)];
/// Grid disk, its cell disk, its caching mode, and its number.
const GRID_DISKS: [(&str, usize, CachingMode, u8); 4] = [
    ("through0", 0, CachingMode::WriteThrough, 1),
    ("through1", 1, CachingMode::WriteThrough, 2),
    ("back0", 0, CachingMode::WriteBack, 3),
    ("back1", 1, CachingMode::WriteBack, 4),
];
const BLOCK: usize = 65536;
const BLOCKS: u64 = 8;
const LIMITS: StartLimits = StartLimits { tell_after: Duration::from_secs(2), give_up_after: Duration::from_secs(30) };
/// The one deadline, and what the rest of a start takes with devices that answer.
const START_MAX: Duration = Duration::from_secs(40);

/// How the cell ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Killed,
}

/// Fill every grid disk with ten times its number, and flush.
async fn fill(cell: &Arc<Cell>, world: &World) {
    cell.create_flash_cache(None, &[]).await.unwrap();
    for (name, on, caching_mode, byte) in GRID_DISKS {
        let cell_disk = cell.store().catalog().member_named(NAMES[on].0).unwrap().0;
        let spec = GridDiskSpec { caching_mode, ..GridDiskSpec::new(name, cell_disk, 16 << 20, world.clock.wall()) };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = disk.open_session(Context::default());
        for block in 0..BLOCKS {
            session.write(block * BLOCK as u64, full_of(BLOCK, 10 * byte), false).await.unwrap();
        }
        session.flush().await.unwrap();
    }
}

/// What a grid disk holds: a byte in each block, and others that the first block may hold.
struct Held {
    rest: u8,
    first: Vec<u8>,
}

/// Read all of a grid disk and write its first block anew. Whether it answers.
async fn serves(cell: &Arc<Cell>, name: &str, held: &mut Held) -> bool {
    let Some(disk) = cell.grid_disk(name) else { return false };
    let session = disk.open_session(Context::default());
    for block in 0..BLOCKS {
        let (read, bufs) = session.read(block * BLOCK as u64, Buf::zeroed(BLOCK).into()).await;
        if read.is_err() {
            return false;
        }
        let bytes = bufs.to_vec(0..BLOCK);
        let may_be = if block == 0 { held.first.clone() } else { vec![held.rest] };
        let is_one = |byte: &u8| bytes.iter().all(|there| there == byte);
        assert!(may_be.iter().any(is_one), "{name}: block {block} holds {}, not one of {may_be:?}", bytes[0]);
    }
    let next = held.first.iter().max().unwrap() + 1;
    held.first.push(next);
    let written = session.write(0, full_of(BLOCK, next), true).await.is_ok();
    if written {
        held.first = vec![next];
    }
    written
}

/// Start a cell on devices of which the one at `silent` answers so many requests of its start and then none. Whether it fell silent.
async fn start(executor: &Executor, memories: &[Device], held: &mut [Held], silent: usize, answers: u64) -> bool {
    let (process, world) = process_of(executor);
    let mut layers = Vec::new();
    let devices: Vec<Device> = memories
        .iter()
        .enumerate()
        .map(|(at, memory)| {
            let faults = Faults::new(memory.clone(), world.spawn.clone());
            if at == silent {
                faults.add(Fault {
                    verbs: Vec::new(),
                    range: None,
                    skip: answers,
                    count: u64::MAX,
                    action: Action::Stall,
                });
            }
            let tell = Arc::new(|_| ());
            let starting = StartDeadline::new(faults, world.clock.clone(), world.spawn.clone(), LIMITS, tell);
            layers.push(starting.clone());
            let device: Device = starting;
            device
        })
        .collect();
    let began = world.clock.now();
    let opened = Cell::open(devices, CellConfig::default(), world.clone()).await;
    let took = Duration::from_nanos(world.clock.now().ns_since(began));
    assert!(took < START_MAX, "the start took {took:?} after {answers} answers");
    let fell_silent = layers[silent].is_silent();
    assert!(!fell_silent || took >= LIMITS.give_up_after);
    let cell = match opened {
        Ok((cell, _)) => cell,
        // A disk in service has to take its label: a start that meets its silence there ends, and the next one does without it.
        Err(error) => {
            assert!(fell_silent && NAMES[silent].1 == Role::Disk, "after {answers} answers: {error}");
            process.kill();
            return true;
        }
    };
    if fell_silent {
        for ((name, on, mode, _), held) in GRID_DISKS.into_iter().zip(held) {
            let needs_it = on == silent || (silent == 2 && mode == CachingMode::WriteBack);
            let is_served = serves(&cell, name, held).await;
            assert!(is_served || needs_it, "{name} does not need {}", NAMES[silent].0);
        }
    }
    process.kill();
    fell_silent
}

/// Every number of answers, until the start needs no more of them.
fn every_number(silent: usize, end: End) -> u64 {
    for answers in 0.. {
        let fell_silent = in_an_executor(async |executor| {
            let memories: Vec<Device> = vec![Memory::new(128 << 20), Memory::new(128 << 20), Memory::new(256 << 20)];
            let (process, world) = process_of(executor);
            let cell = cell_on(&memories, &NAMES, CellConfig::default(), &world).await;
            fill(&cell, &world).await;
            if end == End::Stopped {
                cell.stop().await.unwrap();
            }
            process.kill();
            let mut held = GRID_DISKS.map(|(_, _, _, byte)| Held { rest: 10 * byte, first: vec![10 * byte] });
            let fell_silent = start(executor, &memories, &mut held, silent, answers).await;
            // The device is back, with what it had been given.
            let (_process, world) = process_of(executor);
            let (cell, _) = Cell::open(memories, CellConfig::default(), world).await.unwrap();
            for ((name, ..), held) in GRID_DISKS.into_iter().zip(&mut held) {
                assert!(serves(&cell, name, held).await, "{name} is served again after {answers} answers");
            }
            fell_silent
        });
        if !fell_silent {
            return answers;
        }
    }
    unreachable!("a start ends")
}

#[test]
fn flash_that_falls_silent_keeps_offline_only_what_needs_it() {
    for end in [End::Stopped, End::Killed] {
        let answers = every_number(2, end);
        assert!(answers > 10, "{end:?}: {answers} answers of the flash are no start");
    }
}

#[test]
fn a_disk_that_falls_silent_keeps_offline_only_what_needs_it() {
    for end in [End::Stopped, End::Killed] {
        let answers = every_number(1, end);
        assert!(answers > 10, "{end:?}: {answers} answers of the disk are no start");
    }
}
