//! Units and bounds that every room counts with.

use std::ops::Range;

/// The unit of caching validity and of CRCs.
pub const PART_BYTES: u64 = 4096;

/// The largest grid disk: as many blocks of the smallest size as an index entry of the flash cache can name, 1 PiB.
pub(crate) const GRID_DISK_BYTES_MAX: u64 = flashcache::BLOCKS_MAX * flashcache::PART_BYTES;

/// The multiples of `unit` that cover a range.
pub(crate) fn cover(offset: u64, len: u64, unit: u64) -> Range<u64> {
    offset / unit * unit..(offset + len).next_multiple_of(unit)
}

/// The longest piece a request is served in: bounds memory per request and the blocks under one lock.
pub(crate) const PIECE_BYTES_MAX: u64 = 1 << 20;
/// The longest piece of a trim or write-zeroes, which moves no data.
pub(crate) const ZERO_PIECE_BYTES_MAX: u64 = 16 << 20;
