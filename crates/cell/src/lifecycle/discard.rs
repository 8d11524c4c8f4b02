//! TRIM of the areas of a new flash cache, so that the drive knows before the first fill that all of it is free.
//!
//! Only at creation, between the catalog's change and the first look at the area: nothing there is believed, whatever it
//! reads as afterwards. Never when a cache is dropped: before the drop is durable, a discard could take the record of a death
//! and leave the dead entry; afterwards the area belongs to nobody. Segments are discarded one by one before each reuse
//! (`flashcache::reclaim`), and the space of grid disks when they are made.

use crate::disk::error::AdminError;
use crate::lifecycle::cell::Cell;
use celldisk::{DeviceId, Slice};
use device::{Clock, Device, Outcome};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Discarded at a time: what a drive does well within a second, so that the time limit is kept to about that.
const PIECE_BYTES: u64 = 1 << 30;
/// The most time it may take: after that CREATE FLASHCACHE goes on with the rest as it is, which only makes it slower.
const TIME_MAX: Duration = Duration::from_secs(30);

impl Cell {
    /// Discard the areas of the flash cache that has just been created, as far as the devices do it.
    ///
    /// # Errors
    /// [`AdminError::FlashUncertain`]: a discard may still happen, and would fall upon what is written meanwhile. The device is
    /// out of service.
    pub(crate) async fn discard_flash_areas(&self, members: &BTreeSet<DeviceId>) -> Result<(), AdminError> {
        let areas = members.iter().filter_map(|id| Some((*id, self.store().flash_cache_slice(*id).ok()?)));
        self.discard_areas(areas).await
    }

    /// The same for areas that are about to be of it.
    ///
    /// # Errors
    /// The same.
    pub(crate) async fn discard_areas(
        &self,
        areas: impl Iterator<Item = (DeviceId, Arc<Slice>)>,
    ) -> Result<(), AdminError> {
        let clock = &self.world.clock;
        let discards = areas.map(|(id, area)| async move { (id, discard_all(&(area as Device), clock).await) });
        let mut refused = Ok(());
        for (id, _) in join_all(discards).await.into_iter().filter(|(_, done)| done.is_err()) {
            self.store().take_out(id, "a discard may still happen");
            let name = self.store().catalog().members.get(&id).map_or_else(|| id.to_string(), |m| m.name.clone());
            refused = Err(AdminError::FlashUncertain(name));
        }
        refused
    }
}

/// Nobody knows whether a discard has happened, or will.
#[derive(Debug, PartialEq, Eq)]
struct Uncertain;

/// Discard a device from its beginning, as far as it does it in time. Bytes discarded.
///
/// A piece is waited for without a limit, unlike everything else that is asked of flash: one that came late would fall upon
/// what has been written meanwhile.
async fn discard_all(device: &Device, clock: &Arc<dyn Clock>) -> Result<u64, Uncertain> {
    let geometry = device.geometry();
    let until = clock.now().after(TIME_MAX);
    let mut done_bytes = 0;
    while geometry.discard_bytes > 0 && done_bytes < geometry.size_bytes && clock.now() < until {
        let piece_bytes = PIECE_BYTES.min(geometry.size_bytes - done_bytes);
        match device.discard(done_bytes, piece_bytes).await.outcome {
            Outcome::Done => done_bytes += piece_bytes,
            Outcome::Unknown => return Err(Uncertain),
            Outcome::Failed(_) | Outcome::Short(_) => break,
        }
    }
    Ok(done_bytes)
}

#[cfg(test)]
mod tests {
    //! Goal: all of a device that discards is discarded, in pieces, and nothing is asked of one that does not. Method: a
    //! device that notes what it is asked.
    use super::*;
    use device::sync::lock;
    use device::{Completed, Completion, FailKind, Geometry, Io, Op, Runtime, RuntimeConfig, Verb};
    use std::sync::Mutex;

    struct Noting {
        geometry: Geometry,
        refuses_from: u64,
        asked: Mutex<Vec<(Verb, u64, u64)>>,
    }

    impl Io for Noting {
        fn geometry(&self) -> Geometry {
            self.geometry.clone()
        }
        fn submit(&self, op: Op) -> Completion {
            let (start, len) = op.range();
            lock(&self.asked).push((op.verb(), start, len));
            let refused = start >= self.refuses_from;
            Completion::future(async move {
                Completed::bare(if refused { Outcome::Failed(FailKind::Media) } else { Outcome::Done })
            })
        }
    }

    fn discard(discard_bytes: u32, refuses_from: u64) -> (u64, Vec<(Verb, u64, u64)>) {
        let memory = device::layers::Memory::new(1 << 20);
        let geometry = Geometry { size_bytes: (5 << 30) / 2, discard_bytes, ..device::Io::geometry(&*memory) };
        let noting = Arc::new(Noting { geometry, refuses_from, asked: Mutex::default() });
        let device: Device = noting.clone();
        let Ok(runtime) = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }) else {
            unreachable!("a runtime of one thread")
        };
        let clock = runtime.world(1).clock;
        let Ok(bytes) = runtime.block_on(async move { discard_all(&device, &clock).await }) else {
            unreachable!("it knows what it has done")
        };
        let asked = std::mem::take(&mut *lock(&noting.asked));
        (bytes, asked)
    }

    #[test]
    fn a_new_area_is_discarded_in_pieces() {
        let (g, half) = (1 << 30, 1 << 29);
        let all = vec![(Verb::Discard, 0, g), (Verb::Discard, g, g), (Verb::Discard, 2 * g, half)];
        assert_eq!(discard(4096, u64::MAX), (2 * g + half, all.clone()));
        assert_eq!(discard(0, u64::MAX), (0, Vec::new()), "a device that does not discard");
        assert_eq!(discard(4096, g), (g, all[..2].to_vec()), "a device that refuses");
    }
}
