//! A slice: a device made of some extents of another, so that a grid disk or a flash region is an [`Io`] like any other.
//!
//! Adds an offset and nothing else while there is one extent. A request that crosses extents is split, all parts are under
//! way at once, and their outcomes are joined into the one that is true for the whole (see [`join_outcomes`]). Never
//! retries, never reorders, never completes a part early.

use crate::catalog::Extent;
use crate::label::Label;
use crate::layout::PAGE_BYTES;
use device::{Bufs, Class, Completed, Completion, Device, DeviceExtent, FailKind, Geometry, Io, Op, Outcome, Verb};
use futures_util::future::join_all;
use std::sync::{Arc, PoisonError, RwLock};

/// Where the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Map {
    /// Dropped, for ever.
    Closed,
    /// One extent: `offset + base`.
    One { base: u64, size_bytes: u64 },
    /// Several, ascending by `start`, without gaps, together `size_bytes`.
    Many { parts: Arc<[Part]>, size_bytes: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// First byte in the slice.
    start: u64,
    /// First byte on the device.
    base: u64,
    len: u64,
}

/// An [`Io`] over extents of a cell disk. Made by [`crate::CellStore`], which also grows, shrinks and closes it as the
/// catalog changes.
pub struct Slice {
    device: Device,
    /// The true page the label records: the operator may know better than the device.
    page_bytes: u32,
    /// The durability class the label records: likewise.
    class: Class,
    map: RwLock<Map>,
}

impl Slice {
    /// A slice of `device`, whose label is `label`. `extents` hold at least `size_bytes`.
    pub(crate) fn new(device: Device, label: &Label, au_bytes: u64, extents: &[Extent], size_bytes: u64) -> Slice {
        let (page_bytes, class) = (label.page_bytes, label.class);
        Slice { device, page_bytes, class, map: RwLock::new(map_of(au_bytes, extents, size_bytes)) }
    }

    /// Take the extents of a newer catalog. Requests submitted before keep the mapping they had.
    pub(crate) fn remap(&self, au_bytes: u64, extents: &[Extent], size_bytes: u64) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if *map != Map::Closed {
            *map = map_of(au_bytes, extents, size_bytes);
        }
    }

    /// Refuse all further requests.
    pub(crate) fn close(&self) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Map::Closed;
    }

    /// Whether the space it stood for was given up: every request fails with [`FailKind::Gone`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        *self.map.read().unwrap_or_else(PoisonError::into_inner) == Map::Closed
    }

    /// Bytes now; 0 when closed.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match &*self.map.read().unwrap_or_else(PoisonError::into_inner) {
            Map::Closed => 0,
            Map::One { size_bytes, .. } | Map::Many { size_bytes, .. } => *size_bytes,
        }
    }

    /// Where the byte at `offset` lies on the physical device; none beyond the end.
    #[must_use]
    pub fn physical(&self, offset: u64) -> Option<u64> {
        match self.place(offset, 1) {
            Place::At(at) => Some(at),
            Place::Split(_) | Place::Refused(_) => None,
        }
    }

    fn place(&self, offset: u64, len: u64) -> Place {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let size_bytes = match &*map {
            Map::Closed => return Place::Refused(FailKind::Gone),
            Map::One { size_bytes, .. } | Map::Many { size_bytes, .. } => *size_bytes,
        };
        if offset.checked_add(len).is_none_or(|end| end > size_bytes) {
            return Place::Refused(FailKind::Invalid);
        }
        match &*map {
            Map::Closed => Place::Refused(FailKind::Gone),
            Map::One { base, .. } => Place::At(base + offset),
            Map::Many { parts, .. } => {
                let index = parts.partition_point(|part| part.start + part.len <= offset).min(parts.len() - 1);
                let part = parts[index];
                if offset + len <= part.start + part.len {
                    Place::At(part.base + (offset - part.start))
                } else {
                    Place::Split(parts.clone())
                }
            }
        }
    }

    fn submit_split(&self, parts: &[Part], op: Op) -> Completion {
        let (offset, len) = op.range();
        let verb = op.verb();
        let mut rest = op;
        let mut lens = Vec::new();
        let mut completions = Vec::new();
        for part in parts {
            let start = offset.max(part.start);
            let end = (offset + len).min(part.start + part.len);
            if start < end {
                let piece = cut_front(&mut rest, start - offset, end - start, part.base + (start - part.start));
                lens.push(end - start);
                completions.push(self.device.submit(piece));
            }
        }
        Completion::future(async move {
            let done = join_all(completions).await;
            join_completed(verb, &lens, done)
        })
    }
}

enum Place {
    At(u64),
    Split(Arc<[Part]>),
    Refused(FailKind),
}

fn map_of(au_bytes: u64, extents: &[Extent], size_bytes: u64) -> Map {
    let mut parts: Vec<Part> = Vec::with_capacity(extents.len());
    let mut start = 0;
    for extent in extents {
        let len = extent.len_bytes(au_bytes).min(size_bytes - start);
        let base = extent.offset(au_bytes);
        match parts.last_mut() {
            Some(last) if last.base + last.len == base => last.len += len,
            _ => parts.push(Part { start, base, len }),
        }
        start += len;
    }
    assert!(start == size_bytes, "the extents hold the size: a validated catalog");
    match parts[..] {
        [one] => Map::One { base: one.base, size_bytes },
        _ => Map::Many { parts: parts.into(), size_bytes },
    }
}

/// The next `len` bytes of `op` as a request at `at` of the device; `done` bytes were cut before.
pub(crate) fn cut_front(op: &mut Op, done: u64, len: u64, at: u64) -> Op {
    match op {
        Op::Read { bufs, .. } => Op::Read { offset: at, bufs: bufs.split_to(len as usize) },
        Op::Write { data, fua, .. } => {
            let piece = data.slice(done as usize..(done + len) as usize);
            Op::Write { offset: at, data: piece, fua: *fua }
        }
        Op::WriteZeroes { fua, may_unmap, .. } => Op::WriteZeroes { offset: at, len, fua: *fua, may_unmap: *may_unmap },
        Op::Discard { .. } => Op::Discard { offset: at, len },
        Op::Status { .. } => Op::Status { offset: at, len },
        Op::Flush => Op::Flush,
    }
}

/// The outcome of the whole from those of its parts, in the order of their bytes:
///
/// 1. any part `Unknown`: `Unknown`, because some of it may still happen;
/// 2. else any part `Failed`: `Failed` with the kind of the first such part. A failed write may have been torn, and here it
///    may be torn at extent borders as well;
/// 3. else any part `Short`: for a read `Short` with the bytes up to the first gap; for anything else that only when the
///    gap is in the last part, because otherwise bytes after the gap were changed, which `Short` denies: then
///    `Failed(Media)`;
/// 4. else `Done`.
#[must_use]
pub fn join_outcomes(verb: Verb, parts: &[(u64, Outcome)]) -> Outcome {
    if parts.iter().any(|(_, outcome)| *outcome == Outcome::Unknown) {
        return Outcome::Unknown;
    }
    if let Some(failed) = parts.iter().find(|(_, outcome)| matches!(outcome, Outcome::Failed(_))) {
        return failed.1;
    }
    let mut before: u64 = 0;
    for (index, (len, outcome)) in parts.iter().enumerate() {
        if let Outcome::Short(done) = outcome {
            let last = index + 1 == parts.len();
            return if verb == Verb::Read || last {
                Outcome::Short(before + done)
            } else {
                Outcome::Failed(FailKind::Media)
            };
        }
        before += len;
    }
    Outcome::Done
}

pub(crate) fn join_completed(verb: Verb, lens: &[u64], done: Vec<Completed>) -> Completed {
    let outcomes: Vec<(u64, Outcome)> = lens.iter().zip(&done).map(|(len, c)| (*len, c.outcome)).collect();
    let outcome = join_outcomes(verb, &outcomes);
    let mut bufs = Bufs::new();
    let mut extents: Vec<DeviceExtent> = Vec::new();
    let mut gap = outcome != Outcome::Done;
    for (part, len) in done.into_iter().zip(lens) {
        bufs.append(part.bufs);
        let mut left = if gap { 0 } else { *len };
        for extent in part.extents {
            let len = extent.len.min(left);
            left -= len;
            match extents.last_mut() {
                Some(last) if last.hole == extent.hole => last.len += len,
                _ if len > 0 => extents.push(DeviceExtent { len, hole: extent.hole }),
                _ => {}
            }
        }
        // An answer covers the range from its start: behind a part that told less nothing can be told.
        gap |= left > 0;
    }
    Completed { outcome, bufs, extents }
}

impl Io for Slice {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.device.geometry();
        geometry.size_bytes = self.size_bytes();
        geometry.page_bytes = geometry.page_bytes.max(self.page_bytes);
        geometry.class = self.class;
        geometry
    }

    fn submit(&self, mut op: Op) -> Completion {
        if matches!(op, Op::Flush) {
            return if self.is_closed() { Completion::failed(FailKind::Gone, op) } else { self.device.submit(op) };
        }
        let (at, len) = op.range();
        match self.place(at, len) {
            Place::Refused(kind) => Completion::failed(kind, op),
            Place::At(physical) => {
                match &mut op {
                    Op::Read { offset, .. }
                    | Op::Write { offset, .. }
                    | Op::WriteZeroes { offset, .. }
                    | Op::Discard { offset, .. }
                    | Op::Status { offset, .. } => *offset = physical,
                    Op::Flush => {}
                }
                self.device.submit(op)
            }
            Place::Split(parts) => self.submit_split(&parts, op),
        }
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} B)", self.size_bytes())
    }
}

const _: () = assert!(crate::layout::AU_BYTES_MIN.is_multiple_of(PAGE_BYTES), "a border never splits a sector");
