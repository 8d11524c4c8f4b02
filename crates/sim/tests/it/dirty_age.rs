//! Goal: how long the oldest write of a grid disk has been on flash alone is told of each grid disk by itself. Method: two grid disks in
//! write-back, written to at different times, on a cell that destages nothing by itself.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::metrics::{ProcessUse, Sample, samples};
use cell::{Cell, CellConfig, Context};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::Memory;
use device::{Device, World};
use sim::plain::{cell_on, full_of, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NAMES: [&str; 2] = ["EARLY", "LATE"];

async fn rig(world: &World) -> Arc<Cell> {
    let devices: [Device; 2] = [Memory::new(256 * MIB), Memory::new(128 * MIB)];
    let config = CellConfig { settle_every: Duration::from_secs(100_000), ..CellConfig::default() };
    let cell = cell_on(&devices, &[("CD", Role::Disk), ("FD", Role::Flash)], config, world).await;
    cell.create_flash_cache(None, &[]).await.unwrap();
    let home = cell.store().catalog().member_named("CD").unwrap().0;
    for name in NAMES {
        let spec = GridDiskSpec {
            caching_mode: CachingMode::WriteBack,
            ..GridDiskSpec::new(name, home, 64 * MIB, world.clock.wall())
        };
        cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
    }
    cell
}

async fn write(cell: &Cell, name: &str) {
    let session = cell.grid_disk(name).unwrap().open_session(Context::default());
    session.write(0, full_of(4096, 7), true).await.unwrap();
}

/// The ages, in seconds.
fn ages(cell: &Cell) -> [u64; 2] {
    let samples = samples(cell, "cell", &[], &ProcessUse::default(), &[]);
    NAMES.map(|name| {
        let of = |it: &&Sample| it.definition.name == "GD_FC_DIRTY_AGE" && &*it.object == name;
        samples.iter().find(of).unwrap().value / 1_000_000_000
    })
}

#[test]
fn the_age_of_dirty_data_is_told_of_each_grid_disk() {
    in_a_world(async |_, world| {
        let cell = rig(&world).await;
        let pause = Duration::from_secs(1000);
        assert_eq!(ages(&cell), [0, 0], "nothing is dirty");
        write(&cell, NAMES[0]).await;
        world.clock.sleep(pause).await;
        write(&cell, NAMES[1]).await;
        assert_eq!(ages(&cell), [1000, 0]);
        world.clock.sleep(pause).await;
        assert_eq!(ages(&cell), [2000, 1000], "each has its own");
        cell.flush_flash_cache(&[NAMES[0].to_owned()], &mut |_, _| ()).await.unwrap();
        assert_eq!(ages(&cell)[0], 0, "the disk has it");
    });
}
