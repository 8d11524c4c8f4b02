//! How far a release is, at a terminal: the line of a FLUSH.

use crate::console::Progress;
use cell::Cell;
use device::World;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::time::Duration;

/// Between two looks; each walks over what is dirty.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Wait for `work` and show meanwhile how much flash alone has.
pub(super) async fn while_it_goes<T>(cell: &Cell, world: &World, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut progress = Progress::default();
    let shows = std::io::IsTerminal::is_terminal(&std::io::stderr());
    loop {
        match select(&mut work, pin!(world.clock.sleep(LOOK_EVERY))).await {
            Either::Left((done, _)) => {
                progress.clear();
                return done;
            }
            Either::Right(_) if shows => progress.show(|| Some(cell.dirty_bytes(&cell.grid_disks()))),
            Either::Right(_) => {}
        }
    }
}
