//! Pinning: ranges of a grid disk with a caching policy of their own, and what reads of KEEP data come to.
//!
//! Never serves a policy that the catalog does not have: a range that is not to be cached stops being hit, is recorded then, and
//! comes free after that.

use crate::disk::error::AdminError;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::cell::worth_map;
use celldisk::{CachingPolicy, GridDiskId};
use std::ops::Range;
use std::sync::Arc;

impl Cell {
    /// Give a range of a grid disk a caching policy of its own, with I/O running; without one that of the grid disk counts there
    /// again. To NONE: what is dirty of the grid disk goes to its disk first, then hits stop at once and the blocks come free.
    ///
    /// # Errors
    /// The range is not of whole pages within the grid disk, there are too many, dirty data cannot go to the disk, or a device
    /// fails.
    pub async fn pin(
        self: &Arc<Self>,
        name: &str,
        bytes: Range<u64>,
        policy: Option<CachingPolicy>,
    ) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let disk = self.named(name)?;
        // What will be refused shall not cost a flush.
        let narrows = policy == Some(CachingPolicy::None) && bytes.end <= disk.size_bytes();
        let drying = if narrows { self.dry(std::slice::from_ref(&disk)).await? } else { Vec::new() };
        let bar = narrows.then(|| disk.bar());
        if bar.is_some() {
            // Hits and fills stop; writes go on to invalidate.
            disk.drain().await;
        }
        let changed = self.store().set_caching_range(GridDiskId(disk.id()), bytes, policy).await;
        // Whatever happened, serve as the catalog says.
        if let (Some(record), Some(binding)) = (self.record(&disk), disk.cache()) {
            binding.cache.set_worth(&binding.disk, worth_map(&record));
        }
        drop(bar);
        drop(drying);
        let _ = self.stood(changed?);
        Ok(())
    }
}
