//! What is compared: where the data lies, and what came of a run there. Shared by the virtual and the real world.

use super::driver::{Pace, Tally};
use crate::devices::DeviceModel;
use celldisk::CachingMode;
use std::sync::Arc;

/// Beside what is asked of a device, for labels, catalog and claims.
const LABELS_BYTES: u64 = 64 << 20;
/// A cache is cut into so many segments, unless they would be larger or smaller than these.
const SEGMENTS: u64 = 512;
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = (512 << 10)..=(2 << 20);
/// Segments a cache must have.
pub(super) const SEGMENTS_MIN: u64 = 16;

/// Where the data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// On the disk, with nothing in front.
    Disk,
    /// On the disk, with a flash cache of so many bytes.
    Cached { mode: CachingMode, flash_bytes: u64 },
    /// On flash.
    Flash,
}

impl Placement {
    pub(super) fn is_cached(self) -> bool {
        matches!(self, Placement::Cached { .. })
    }

    pub(super) fn name(self) -> String {
        match self {
            Placement::Disk => "disk alone".to_owned(),
            Placement::Flash => "all on flash".to_owned(),
            Placement::Cached { mode, .. } => format!("cache, {}", mode_name(mode)),
        }
    }
}

/// The word of the command line for a mode.
pub(crate) fn mode_name(mode: CachingMode) -> &'static str {
    match mode {
        CachingMode::WriteThrough => "write-through",
        CachingMode::WriteBack => "write-back",
        CachingMode::WriteBackOrdered => "write-back-ordered",
        CachingMode::WriteAround => "write-around",
        CachingMode::None => "none",
    }
}

/// What every run has in common.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) disk: Arc<DeviceModel>,
    pub(super) flash: Arc<DeviceModel>,
    pub(super) block_bytes: u32,
    /// By the size of the cache when not given.
    pub(super) segment_bytes: Option<u32>,
    pub(super) pace: Pace,
    /// There and back between client and cell, for each request.
    pub(super) way_ns: u64,
    /// The trace is run through once before what is measured.
    pub(super) warm: bool,
}

impl Setting {
    /// Bytes of a segment of a cache of so many bytes.
    pub(super) fn segment_bytes(&self, flash_bytes: u64) -> u32 {
        let by_size = (flash_bytes / SEGMENTS).max(1);
        let by_size = (1 << by_size.ilog2()).clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end());
        self.segment_bytes.unwrap_or(by_size as u32)
    }

    /// Bytes of the flash cache: whole segments.
    pub(super) fn cache_bytes(&self, flash_bytes: u64) -> u64 {
        flash_bytes.next_multiple_of(u64::from(self.segment_bytes(flash_bytes)))
    }
}

/// Bytes of a device that has room for so many.
pub(super) fn device_bytes(content_bytes: u64) -> u64 {
    content_bytes.next_multiple_of(16 << 20) + LABELS_BYTES
}

/// Counters of the cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Reads served whole from the cache.
    pub(super) hits: u64,
    /// Reads that needed the disk.
    pub(super) misses: u64,
    /// Reads that went past the cache.
    pub(super) skips: u64,
    /// Bytes written to the flash device.
    pub(super) flash_bytes: u64,
    /// Pages written to flash and programmed by it, where what goes on inside is modelled.
    pub(super) inside: (u64, u64),
}

impl Counts {
    pub(super) fn since(self, before: Counts) -> Counts {
        Counts {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            skips: self.skips - before.skips,
            flash_bytes: self.flash_bytes - before.flash_bytes,
            inside: (self.inside.0 - before.inside.0, self.inside.1 - before.inside.1),
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) placement: Placement,
    pub(super) tally: Tally,
    pub(super) counts: Counts,
    /// Requests that the cache did not serve or keep for a reason of its own, most first: how many, and why; in virtual time only.
    pub(super) passed: Vec<(u64, &'static str)>,
}

impl Run {
    /// Reads served whole from the cache, of all, in millionths; none without a cache or without reads.
    pub(super) fn hit_ppm(&self) -> Option<u64> {
        let Counts { hits, misses, skips, .. } = self.counts;
        if self.placement.is_cached() { (hits * 1_000_000).checked_div(hits + misses + skips) } else { None }
    }

    pub(super) fn waited_ns(&self) -> u64 {
        self.tally.waited.iter().map(super::driver::Waited::all_ns).sum()
    }
}
