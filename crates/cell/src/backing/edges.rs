//! The edges of a change: the parts that it begins and ends in and covers only in part. What surrounds the change there is read from
//! flash where it is cached. A change that goes to flash needs it, since parts are the smallest unit there; a write that goes to the disk keeps
//! its edges cached with it: a partition that begins at an odd sector has two of them in every write.

use crate::backing::cached::FillPermit;
use crate::base::request::{Context, RequestError};
use crate::base::units::PART_BYTES;
use crate::disk::grid_disk::{Binding, GridDisk};
use device::{Bufs, SharedBufs};
use flashcache::{Hit, Stretch};
use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A change of so much is read whole when its edges have to be read from the disk: one request, where two would each wait for the disk to turn.
const READ_WHOLE_BYTES_MAX: u64 = 128 << 10;

/// The parts that a change covers in part: none, one or two.
fn edges_of(offset: u64, len: u64) -> SmallVec<[u64; 2]> {
    let end = offset + len;
    let head = (!offset.is_multiple_of(PART_BYTES)).then_some(offset / PART_BYTES);
    let tail = (!end.is_multiple_of(PART_BYTES)).then_some(end / PART_BYTES);
    head.into_iter().chain(tail.filter(|tail| head != Some(*tail))).collect()
}

/// Edges that are on flash, held there.
pub(crate) struct Edges {
    binding: Arc<Binding>,
    permit: FillPermit,
    hits: SmallVec<[(u64, Hit); 2]>,
    /// How many the change has, on flash or not.
    all: usize,
}

/// The same, read.
pub(crate) struct EdgeData {
    binding: Arc<Binding>,
    /// What a fill with it is good for.
    pub(crate) permit: FillPermit,
    parts: SmallVec<[(u64, Bufs); 2]>,
    /// How many the change has, read or not.
    all: usize,
}

impl Edges {
    fn is_whole(&self) -> bool {
        self.hits.len() == self.all
    }
}

impl EdgeData {
    /// Whether flash had every edge of the change.
    fn is_whole(&self) -> bool {
        self.parts.len() == self.all
    }

    /// Whether it was read from the cache of a binding.
    pub(crate) fn is_of(&self, binding: &Binding) -> bool {
        Arc::ptr_eq(&self.binding.cache, &binding.cache)
    }

    /// The whole parts that a write gives together with its edges: where they begin, in bytes, and what they hold after it. Parts whose edges
    /// were not on flash are left out.
    pub(crate) fn around(self, offset: u64, data: &SharedBufs) -> (u64, SharedBufs) {
        let end = offset + data.len_bytes() as u64;
        let (mut low, mut high) = (offset.next_multiple_of(PART_BYTES), end / PART_BYTES * PART_BYTES);
        let slice = |range: Range<u64>| data.slice((range.start - offset) as usize..(range.end - offset) as usize);
        let (mut before, mut after) = (SharedBufs::new(), SharedBufs::new());
        let (first_low, first_high) = (low, high);
        for (part, mut bufs) in self.parts {
            let (start, stop) = (part * PART_BYTES, (part + 1) * PART_BYTES);
            let changed = offset.max(start)..end.min(stop);
            bufs.copy_in_rope((changed.start - start) as usize, &slice(changed));
            if start < first_low {
                (low, before) = (start, bufs.freeze());
                high = high.max(stop);
            } else {
                (high, after) = (stop, bufs.freeze());
            }
        }
        let mut whole = before;
        if first_low < first_high {
            whole.append(slice(first_low..first_high));
        }
        whole.append(after);
        assert_eq!(whole.len_bytes() as u64, high.saturating_sub(low), "whole parts without a gap");
        (low, whole)
    }
}

impl GridDisk {
    /// The edges of a change that are on flash; none when there are none. The caller holds the range exclusively, and looks before the change
    /// ends what is cached.
    pub(crate) fn edges_on_flash(&self, context: &Context, offset: u64, len: u64) -> Option<Edges> {
        let parts = edges_of(offset, len);
        if parts.is_empty() || context.is_past_flash_cache() {
            return None;
        }
        let binding = self.serving_cache()?;
        // Before the look: what was lost after it is known by this. What was lost before it and not heard of yet is in no permit: a
        // block that this write ends is not there to be distrusted any more.
        let permit = self.fill_permit(context, &binding);
        if !self.losses.has_heard_of_drops(permit.disk_drops) {
            return None;
        }
        // The write counts as a hit by itself, and this is not one more.
        let looker = binding.disk.of(context.tenant()).passing();
        let all = parts.len();
        let hits: SmallVec<[(u64, Hit); 2]> = parts
            .into_iter()
            .filter_map(|part| match binding.cache.lookup(&looker, part..part + 1).pop() {
                Some(Stretch::Hit(hit)) => Some((part, hit)),
                Some(Stretch::Miss(_)) | None => None,
            })
            .collect();
        (!hits.is_empty()).then_some(Edges { binding, permit, hits, all })
    }

    /// The edges of a write to the disk that stay cached if they are read now. Not those of redo: nobody reads the log again.
    pub(crate) fn edges_to_keep(&self, context: &Context, offset: u64, len: u64) -> Option<Edges> {
        if edges_of(offset, len).is_empty() || self.port.redo().is_some() {
            return None;
        }
        let edges = self.edges_on_flash(context, offset, len)?;
        let is_kept = self.keeps_written(&edges.binding) && !edges.binding.declines_fill(offset / PART_BYTES);
        is_kept.then_some(edges)
    }

    /// Read them. Those that flash cannot answer are left out.
    pub(crate) async fn read_edges_on_flash(&self, edges: Edges) -> EdgeData {
        let Edges { binding, permit, hits, all } = edges;
        let reads = hits.into_iter().map(|(part, hit)| {
            let cache = &binding.cache;
            // Never waits for memory: the caller holds a range.
            let buf = self.replacement(PART_BYTES as usize);
            async move { (part, cache.read_hit(hit, buf).await) }
        });
        let read = join_all(reads).await;
        let answered = read.into_iter().filter_map(|(part, (result, back))| match (result, back) {
            (Ok(()), Some(bufs)) => Some((part, bufs)),
            _ => None,
        });
        let parts = answered.collect();
        EdgeData { binding, permit, parts, all }
    }

    /// Fill `bounce`, as long as `span` and made of `unit`s, where a change of `len` bytes at `offset` leaves its edges as they are. The rest of
    /// it is left undefined. The caller holds the range exclusively.
    pub(crate) async fn read_around(
        &self,
        context: &Context,
        span: Range<u64>,
        unit: u64,
        (offset, len): (u64, u64),
        bounce: Bufs,
    ) -> Result<Bufs, RequestError> {
        let (head, tail) = (offset > span.start, offset + len < span.end);
        if !head && !tail {
            // Only its memory is not aligned.
            return Ok(bounce);
        }
        let mut bounce = bounce;
        let on_flash = if unit == PART_BYTES { self.edges_on_flash(context, offset, len) } else { None };
        if let Some(edges) = on_flash.filter(Edges::is_whole) {
            let data = self.read_edges_on_flash(edges).await;
            self.check_not_lost()?;
            if data.is_whole() {
                for (part, bufs) in data.parts {
                    let mut at = (part * PART_BYTES - span.start) as usize;
                    bufs.for_each(0..PART_BYTES as usize, |bytes| {
                        bounce.copy_in(at, bytes);
                        at += bytes.len();
                    });
                }
                return Ok(bounce);
            }
        }
        let span_bytes = span.end - span.start;
        let is_one_end = head != tail && span_bytes > unit;
        if is_one_end || span_bytes > READ_WHOLE_BYTES_MAX.max(2 * unit) {
            return self.read_ends(span, unit, (head, tail), bounce).await;
        }
        let (result, bounce) = self.read_current(span.start, bounce).await;
        result.map(|()| bounce)
    }

    /// Read the first and the last unit of a span of several, as needed, at the same time.
    async fn read_ends(
        &self,
        span: Range<u64>,
        unit: u64,
        (head, tail): (bool, bool),
        bounce: Bufs,
    ) -> Result<Bufs, RequestError> {
        let mut rest = bounce;
        let first = rest.split_to(unit as usize);
        let middle_bytes = rest.len_bytes() - unit as usize;
        let middle = rest.split_to(middle_bytes);
        let read = async |wanted: bool, at: u64, bufs: Bufs| {
            if wanted { self.read_current(at, bufs).await } else { (Ok(()), bufs) }
        };
        let both = join(read(head, span.start, first), read(tail, span.end - unit, rest));
        let ((first_result, mut all), (last_result, last)) = both.await;
        first_result.and(last_result)?;
        all.append(middle);
        all.append(last);
        Ok(all)
    }
}
