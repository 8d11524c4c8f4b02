//! Going on without a flash device that has failed (I3, I7): first durable in the label of every disk, then writes that
//! waited for its marks go on.
//!
//! Never takes a flash device back: that is for the next open, which voids its content.

use crate::cell::{CacheAtWork, Cell};
use crate::open::expel_from;
use celldisk::Role;
use device::sync::lock;
use std::sync::Arc;
use std::time::Duration;

/// Pause between attempts to write the label of a disk that refuses it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Cell {
    /// Expel members as they fail, until the cell stops or has another cache.
    pub(crate) async fn run_expel(self: Arc<Self>, at_work: CacheAtWork) {
        loop {
            let index = at_work.cache.next_failure().await;
            let current = lock(&self.state).cache.as_ref().is_some_and(|c| Arc::ptr_eq(&c.cache, &at_work.cache));
            if !current || self.stop.is_stopped() {
                return;
            }
            self.expel(&at_work, index).await;
        }
    }

    /// Expel one member. A disk whose label cannot be written keeps the writes to its grid disks waiting, or failing, by
    /// itself: it is tried until it takes the label or the cell stops.
    pub(crate) async fn expel(&self, at_work: &CacheAtWork, index: usize) {
        let id = at_work.devices[index];
        let why = at_work.cache.members().nth(index).and_then(|m| m.failure()).unwrap_or_default();
        self.alert(format!("flash {id} expelled: {why}"));
        let mut todo: Vec<_> = self.store().cell_disks().into_iter().filter(|d| d.role() == Role::Disk).collect();
        loop {
            let mut left = Vec::new();
            for disk in todo {
                if let Err(failure) = expel_from(&disk, &[id]).await {
                    self.alert(format!(
                        "cell disk {}: cannot record that flash {id} is expelled: {}",
                        failure.name, failure.error
                    ));
                    left.push(disk);
                }
            }
            if left.is_empty() {
                break;
            }
            todo = left;
            if self.stop.is_stopped() {
                return;
            }
            self.world.clock.sleep(RETRY_AFTER).await;
        }
        self.store().take_out(id, &why);
        at_work.cache.confirm_expelled(index);
    }
}
