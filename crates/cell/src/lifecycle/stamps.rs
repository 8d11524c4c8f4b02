//! New open stamps while a cell serves, so that flash which is put back to an earlier moment of this life is found out at the next open.
//!
//! An open renews stamps once, so that flash of earlier lives is void (DESIGN I5). A life may last for months, and a flash volume that is
//! restored from last night's snapshot is of the same life: a renewal every minute voids that flash too. Flash of a moment after the last
//! renewal is still believed.
//!
//! The task never renews when no client has changed anything since the last renewal: idle disks are left alone.

use crate::lifecycle::cell::Cell;
use celldisk::FlashPatience;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two renewals, unless the configuration says otherwise. A renewal writes the label of each disk twice and that of each
/// flash device once.
pub const EVERY: Duration = Duration::from_secs(60);

/// Renewals of a life.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Cell {
    /// Renewals of open stamps in this life, begun and ended well: flash of a moment at which fewer had begun than have ended now is not
    /// believed any more.
    #[must_use]
    pub fn stamp_renewals(&self) -> (u64, u64) {
        (self.renewals.begun.load(Ordering::Acquire), self.renewals.done.load(Ordering::Acquire))
    }

    /// Writes, trims and write-zeroes that clients have asked for, of all grid disks.
    fn changes(&self) -> u64 {
        let of = |disk: &Arc<crate::disk::grid_disk::GridDisk>| {
            let counters = &disk.counters;
            let (writes, others) = (&counters.writes, [&counters.trims, &counters.zeroes]);
            writes.small.requests.get()
                + writes.large.requests.get()
                + others.map(|it| it.requests.get()).iter().sum::<u64>()
        };
        self.grid_disks().iter().map(of).sum()
    }

    /// Renews the stamps of all pairs, until the cell stops.
    pub(crate) async fn run_stamps(self: Arc<Self>) {
        let Some(every) = self.config.stamps_every else { return };
        let mut prng = self.world.prng.fork("stamps in service");
        let (mut seen, mut failing) = (self.changes(), false);
        while !self.stop.sleep(&self.world, every).await {
            let changes = self.changes();
            if changes == seen || self.flash_cache().is_none() && self.flash_log().is_none() {
                continue;
            }
            let Ok(_turn) = self.turn().await else { return };
            self.renewals.begun.fetch_add(1, Ordering::AcqRel);
            let patience = FlashPatience { clock: &self.world.clock, limit: self.config.cache.hard_limit };
            let is_sabotaged = self.config.disk_sabotage == Some(celldisk::Sabotage::StampsNotRenewed);
            // A disk that waits for its flash keeps the stamp which that knows.
            let pairs = self.store().matching_pairs();
            let is_whole = self.store().left_out_of_renewal(&pairs).is_empty();
            let failed = match is_sabotaged {
                true => Vec::new(),
                false => self.store().renew_in_service(&pairs, patience, &mut prng).await,
            };
            match failed.first() {
                None => {
                    self.renewals.done.fetch_add(u64::from(is_whole), Ordering::AcqRel);
                    seen = changes;
                }
                Some(failure) if !failing => {
                    self.alert(format!("flash that is put back in time may not be found out: {failure}"));
                }
                Some(_) => {}
            }
            failing = !failed.is_empty();
        }
    }
}
