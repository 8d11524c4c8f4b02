//! A grid disk of a cell as a device: the cell as it is shipped, on two devices of the virtual world.

use crate::model::Modelled;
use cell::{Cell, CellConfig, Context, GridDisk};
use celldisk::{GridDiskSpec, Role};
use device::{Completed, Completion, Device, FailKind, Geometry, Io, Op, Outcome, World};
use sim::plain::cell_on;
use std::sync::Arc;

/// The member on disks, and the one on flash.
pub(super) const DISK: &str = "CD_00";
pub(super) const FLASH: &str = "FD_00";

/// A session as a device.
struct OnCell(Arc<cell::Session>, Geometry);

impl Io for OnCell {
    fn geometry(&self) -> Geometry {
        self.1.clone()
    }

    fn submit(&self, op: Op) -> Completion {
        let session = self.0.clone();
        Completion::future(async move {
            let failed = Outcome::Failed(FailKind::Media);
            let of = |ok: bool| Completed::bare(if ok { Outcome::Done } else { failed });
            match op {
                Op::Read { offset, bufs } => {
                    let (read, bufs) = session.read(offset, bufs).await;
                    Completed { bufs, ..of(read.is_ok()) }
                }
                Op::Write { offset, data, fua } => of(session.write(offset, data, fua).await.is_ok()),
                Op::Flush => of(session.flush().await.is_ok()),
                Op::WriteZeroes { .. } | Op::Discard { .. } | Op::Status { .. } => of(false),
            }
        })
    }
}

/// What is made.
pub(super) struct Wanted {
    pub(super) config: CellConfig,
    /// A flash cache of so many bytes, or on all of the flash.
    pub(super) cache: Option<Option<u64>>,
    /// On which member the grid disk is.
    pub(super) home: &'static str,
    pub(super) bytes: u64,
}

/// What was made: the grid disk as a device, itself, and the cell that must stay.
pub(super) struct Made {
    pub(super) device: Device,
    pub(super) grid_disk: Arc<GridDisk>,
    pub(super) cell: Arc<Cell>,
}

/// A cell on a disk and a flash, with one grid disk that is like `shape` wants it.
pub(super) async fn make(
    [disk, flash]: [&Device; 2],
    wanted: Wanted,
    shape: impl FnOnce(&mut GridDiskSpec),
    world: &World,
) -> Made {
    let Wanted { config, cache, home, bytes } = wanted;
    let under = if home == FLASH { flash } else { disk };
    let geometry = Geometry { size_bytes: bytes, ..under.geometry() };
    let names = [(DISK, Role::Disk), (FLASH, Role::Flash)];
    let cell = cell_on(&[disk.clone(), flash.clone()], &names, config, world).await;
    if let Some(size) = cache {
        let made = cell.create_flash_cache(size.map(|bytes| bytes.next_multiple_of(2 << 20)), &[]).await;
        assert!(made.is_ok(), "a flash cache is made: {made:?}");
    }
    let Some((home, _)) = cell.store().catalog().member_named(home) else { unreachable!("it was made") };
    let mut spec = GridDiskSpec::new("DATA", home, bytes, world.clock.wall());
    shape(&mut spec);
    let made = cell.create_grid_disk(spec, &mut |_, _| ()).await;
    let grid_disk = made.unwrap_or_else(|error| panic!("a grid disk is made: {error}"));
    let session = Arc::new(grid_disk.open_session(Context::default()));
    Made { device: Arc::new(OnCell(session, geometry)), grid_disk, cell }
}

impl Made {
    /// A database is found on the grid disk, which is on `disk`: nothing of it has been through the cell.
    pub(super) fn fill(&self, disk: &Modelled, bytes: u64) {
        let catalog = self.cell.store().catalog();
        let Some(record) = catalog.grid_disk_named("DATA") else { unreachable!("it was made") };
        let Some((_, member)) = catalog.member_named(DISK) else { unreachable!("it was made") };
        assert!(record.extents.len() == 1, "an empty disk has one free stretch");
        disk.fill(record.extents[0].offset(member.au_bytes), bytes);
    }
}
