//! Goal: before the index of the flash cache is whole, what the disk has is served from there, what flash alone has is waited for, and
//! nothing of that time is forgotten. Method: a cell in virtual time whose flash holds back what it is asked at an open.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, GridDisk, Session};
use celldisk::layout::DATA_OFFSET;
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Device, Verb, World};
use futures_util::future::{Either, select};
use sim::executor::{Executor, Process};
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;

fn config() -> CellConfig {
    CellConfig { index_wait: Some(Duration::from_millis(1)), ..CellConfig::default() }
}

/// A cell on one disk and one flash device with the grid disks THROUGH and BACK, whose first pages are full of ones.
struct Rig<'a> {
    executor: &'a Executor,
    process: Process,
    world: World,
    disk: Device,
    flash: Arc<Faults>,
    cell: Arc<Cell>,
}

impl<'a> Rig<'a> {
    async fn new(executor: &'a Executor) -> Rig<'a> {
        let (process, world) = process_of(executor);
        let disk: Device = Memory::new(256 * MIB);
        // Of a process of its own, which lives on.
        let flash = Faults::new(Memory::new(128 * MIB), process_of(executor).1.spawn);
        let devices = [disk.clone(), flash.clone() as Device];
        let cell = cell_on(&devices, &[("CD", Role::Disk), ("FD", Role::Flash)], config(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let home = cell.store().catalog().member_named("CD").unwrap().0;
        for (name, caching_mode) in [("THROUGH", CachingMode::WriteThrough), ("BACK", CachingMode::WriteBack)] {
            let spec = GridDiskSpec { caching_mode, ..GridDiskSpec::new(name, home, 64 * MIB, world.clock.wall()) };
            let made = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
            for page in 0..4 {
                made.open_session(Context::default()).write(page * PAGE as u64, full_of(PAGE, 1), true).await.unwrap();
            }
        }
        // Clean chunks wait for company for one or two periods of 200 ms; then what was filled is on flash. What is dirty is not yet on the disk.
        world.clock.sleep(Duration::from_millis(500)).await;
        Rig { executor, process, world, disk, flash, cell }
    }

    /// The process dies, and another opens the devices while flash says nothing of its log.
    async fn dies(&mut self) {
        self.process.kill();
        self.flash.clear();
        self.flash.release();
        self.flash.add(Fault { range: Some(DATA_OFFSET..u64::MAX), ..Fault::every(Verb::Read, Action::Stall) });
        self.opens().await;
        assert!(self.cell.is_opening());
    }

    async fn opens(&mut self) {
        let (process, world) = process_of(self.executor);
        let devices = vec![self.disk.clone(), self.flash.clone() as Device];
        let (cell, _) = Cell::open(devices, config(), world.clone()).await.unwrap();
        (self.process, self.world, self.cell) = (process, world, cell);
    }

    fn disk_of(&self, name: &str) -> Arc<GridDisk> {
        self.cell.grid_disk(name).unwrap()
    }

    fn session(&self, name: &str) -> Session {
        self.disk_of(name).open_session(Context::default())
    }

    async fn page(&self, name: &str, page: u64) -> u8 {
        let (outcome, bytes) = self.session(name).read(page * PAGE as u64, Buf::zeroed(PAGE).into()).await;
        outcome.unwrap();
        bytes.freeze().to_vec(0..1)[0]
    }

    fn hits(&self, name: &str) -> u64 {
        self.disk_of(name).counters.cache_hits.requests.get()
    }
}

#[test]
fn disks_serve_and_what_flash_alone_has_is_waited_for() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor).await;
        rig.dies().await;
        assert_eq!(rig.page("THROUGH", 0).await, 1);
        rig.session("THROUGH").write(0, full_of(PAGE, 2), true).await.unwrap();
        assert_eq!((rig.page("THROUGH", 0).await, rig.hits("THROUGH")), (2, 0), "from the disk");
        assert!(rig.disk_of("BACK").is_waiting_for_index());
        {
            let back = rig.session("BACK");
            let mut progress = |_, _| ();
            let (mut read, mut flush) =
                (pin!(back.read(0, Buf::zeroed(PAGE).into())), pin!(rig.cell.flush_flash_cache(&[], &mut progress)));
            let both = select(read.as_mut(), flush.as_mut());
            let while_waiting = rig.world.clock.sleep(Duration::from_millis(100));
            assert!(matches!(select(both, while_waiting).await, Either::Right(_)), "nobody knows what is dirty");
            rig.flash.clear();
            rig.flash.release();
            read.await.0.unwrap();
            flush.await.unwrap();
        }
        assert_eq!(rig.disk_of("BACK").dirty_bytes(), 0);
        rig.cell.index_is_whole().await;
        assert_eq!(rig.page("BACK", 0).await, 1);
        assert_eq!(rig.page("THROUGH", 0).await, 2, "the page on flash is an older one");
        let before = rig.hits("THROUGH");
        assert_eq!((rig.page("THROUGH", 1).await, rig.hits("THROUGH")), (1, before + 1), "warm");
        assert_eq!(rig.cell.written_early(), 1);
    });
}

#[test]
fn whoever_dies_before_the_index_is_whole_begins_cold() {
    in_an_executor(async |executor| {
        let mut rig = Rig::new(executor).await;
        rig.dies().await;
        rig.session("THROUGH").write(0, full_of(PAGE, 2), true).await.unwrap();
        rig.process.kill();
        rig.flash.clear();
        rig.flash.release();
        rig.opens().await;
        rig.cell.index_is_whole().await;
        assert_eq!(rig.page("THROUGH", 0).await, 2);
        assert_eq!((rig.page("THROUGH", 1).await, rig.hits("THROUGH")), (1, 0), "nobody knows what was written");
        assert_eq!(rig.page("BACK", 0).await, 1);
    });
}
