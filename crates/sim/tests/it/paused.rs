//! Goal: a pause of the process costs nothing: no time-out counts it. Method: a cell whose flash holds a request when the process is
//! paused for longer than the hard limit; the flash answers a moment after it. With a clock that goes on meanwhile (`pause-counts`)
//! the same flash must be found failed. Timers, and the order of what wakes, are checked by themselves.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Clock, Device, Io, Spawn, Verb};
use sim::executor::PausedClock;
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(63);
const MOMENT: Duration = Duration::from_secs(1);

/// What came of a write and of the flash that held it.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    is_answered: bool,
    has_failed: bool,
}

/// How it is after a pause, when the flash answers a moment after that what it had been asked before.
fn after_a_pause(clock: PausedClock) -> Outcome {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let memory = Memory::with_geometry(Memory::new(768 << 20).geometry(), true);
        let flash = Faults::new(memory, world.spawn.clone());
        let devices: Vec<Device> = vec![Memory::new(256 << 20), flash.clone()];
        let names = [("CD_disk01", Role::Disk), ("FD_00", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let spec = GridDiskSpec {
            caching_mode: CachingMode::WriteBack,
            ..GridDiskSpec::new("DATA", cell_disk, 64 << 20, world.clock.wall())
        };
        let disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = Arc::new(disk.open_session(Context::default()));
        flash.add(Fault::next(Verb::Write, Action::Stall));
        let answered = Arc::new(AtomicBool::new(false));
        let (writer, done) = (session.clone(), answered.clone());
        process.spawn(Box::pin(async move {
            let written = writer.write(0, full_of(4096, 7), false).await;
            done.store(written.is_ok(), Ordering::SeqCst);
        }));
        let root = executor.root();
        let root: &dyn Clock = &root;
        root.sleep(MOMENT).await;
        assert_eq!(flash.stalled(), 1, "the flash holds the write");
        process.pause(clock);
        root.sleep(PAUSE).await;
        process.resume();
        root.sleep(MOMENT / 10).await;
        flash.release();
        root.sleep(MOMENT).await;
        let has_failed = cell.flash_cache().unwrap().members().any(|member| member.has_failed());
        Outcome { is_answered: answered.load(Ordering::SeqCst), has_failed }
    })
}

#[test]
fn a_pause_is_no_time_out_of_the_flash() {
    assert_eq!(after_a_pause(PausedClock::StandsStill), Outcome { is_answered: true, has_failed: false });
}

#[test]
fn the_broken_build_pause_counts_is_caught() {
    assert!(after_a_pause(PausedClock::GoesOn).has_failed, "a clock that counts the pause has the flash failed");
}

#[test]
fn nothing_of_a_paused_process_runs_and_its_timers_move() {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        let (began, clock) = (world.clock.now(), world.clock.clone());
        let woken = Arc::new(AtomicBool::new(false));
        let set = woken.clone();
        process.spawn(Box::pin(async move {
            clock.sleep(MOMENT * 2).await;
            set.store(true, Ordering::SeqCst);
        }));
        let root = executor.root();
        let root: &dyn Clock = &root;
        root.sleep(MOMENT).await;
        process.pause(PausedClock::StandsStill);
        root.sleep(PAUSE).await;
        assert_eq!(world.clock.now(), began.after(MOMENT), "its clock stands still");
        process.resume();
        root.sleep(MOMENT / 2).await;
        assert!(!woken.load(Ordering::SeqCst), "half a moment is left of its sleep");
        root.sleep(MOMENT).await;
        assert!(woken.load(Ordering::SeqCst));
        assert_eq!(world.clock.now(), began.after(MOMENT * 5 / 2));
        let wall_ns = world.clock.wall().0 - root.wall().0;
        assert_eq!(wall_ns, 0, "wall time is the same for all");
    });
}
