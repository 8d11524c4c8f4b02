//! How many segments a member of so many writes to at a time and keeps free.

use crate::format::HeadKind;

/// Segments from which on copies have heads of their own: below, their open segments would take what they gain.
const CLASSES_SEGMENTS_MIN: u32 = 128;
/// Free segments below which reclaim runs, in a small cache.
pub(crate) const FREE_SEGMENTS_LOW: usize = 4;

/// The same in a cache that keeps what it writes by how long it lasts: a segment for each of the copies under way, and for what comes meanwhile.
const FREE_SEGMENTS_LOW_BY_CLASS: u32 = 6;
/// One in so many segments is free in a large one.
const FREE_SEGMENTS_ONE_IN: u32 = 50;

/// Free segments below which reclaim of so many runs.
pub(crate) fn free_segments_low(segments: u32) -> u32 {
    if !has_classes(segments) {
        return FREE_SEGMENTS_LOW as u32;
    }
    (segments / FREE_SEGMENTS_ONE_IN).max(FREE_SEGMENTS_LOW_BY_CLASS)
}

/// Whether a cache of so many segments keeps what it writes apart by how long it lasts.
pub(crate) fn has_classes(segments: u32) -> bool {
    segments >= CLASSES_SEGMENTS_MIN
}

/// Segments being appended to.
pub(crate) fn open_heads(segments: u32) -> usize {
    if has_classes(segments) { HeadKind::COUNT } else { 4 }
}
