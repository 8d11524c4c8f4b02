//! Goal: what is left of a long request does not reach the space of a grid disk that was dropped meanwhile, which may be another's by then
//! (I2). Method: a cell in virtual time whose disk holds the first piece back while the grid disk is dropped and another made in its place.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{CellConfig, Context, RequestError};
use celldisk::layout::DATA_OFFSET;
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Device, Verb};
use futures_util::future::{Either, join, select};
use sim::plain::{cell_on, full_of, in_a_world};
use std::pin::pin;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 8 * MIB;

#[test]
fn a_long_write_ends_with_the_grid_disk() {
    in_a_world(async |_, world| {
        let disk = Faults::new(Memory::new(64 * MIB), world.spawn.clone());
        let cell = cell_on(&[disk.clone() as Device], &[("CD", Role::Disk)], CellConfig::default(), &world).await;
        let home = cell.store().catalog().member_named("CD").unwrap().0;
        let spec = |name| GridDiskSpec {
            caching_mode: CachingMode::None,
            ..GridDiskSpec::new(name, home, SIZE_BYTES, world.clock.wall())
        };
        let old = cell.create_grid_disk(spec("OLD"), &mut |_, _| ()).await.unwrap().open_session(Context::default());
        disk.add(Fault { range: Some(DATA_OFFSET..u64::MAX), ..Fault::every(Verb::Write, Action::Stall) });
        let mut write = pin!(old.write(0, full_of(SIZE_BYTES as usize, 1), false));
        let held = select(write.as_mut(), world.clock.sleep(Duration::from_millis(10))).await;
        assert!(matches!(held, Either::Right(_)), "the disk holds the first piece");
        disk.clear();
        let mut drop = pin!(cell.drop_grid_disk("OLD", true));
        let waits = select(drop.as_mut(), world.clock.sleep(Duration::from_millis(10))).await;
        assert!(matches!(waits, Either::Right(_)), "a drop waits for what is under way");
        disk.release();
        let made = async {
            drop.await.unwrap();
            cell.create_grid_disk(spec("NEW"), &mut |_, _| ()).await.unwrap().open_session(Context::default())
        };
        let (written, new) = join(write, made).await;
        assert_eq!(written, Err(RequestError::Stopping));
        let (read, bytes) = new.read(0, Buf::zeroed(SIZE_BYTES as usize).into()).await;
        read.unwrap();
        assert!(bytes.freeze().to_vec(0..SIZE_BYTES as usize).iter().all(|byte| *byte == 0), "another's bytes");
    });
}
