//! The request path of a grid disk: range locks, read-modify-write, the disk below.
//!
//! Order of waiting: memory, then the I/O plan, then range, then flash space, then device. Nobody waits for an earlier kind while holding
//! a later one: bounce buffers are taken before the lock.

use crate::backing::cached::end_change;
use crate::backing::ordered::{Passed, Placed};
use crate::base::range_lock::{LockMode, RangeGuard};
use crate::base::request::{Context, RequestError, ZeroFlags};
use crate::base::units::PART_BYTES;
use crate::base::units::cover;
use crate::disk::client_io::{ClientRead, ClientWrite, ReadSkip};
use crate::disk::grid_disk::{Binding, GridDisk};
use crate::disk::seat::Leave;
use crate::durability::losses::{Covered, Lost};
use device::{Bufs, Completion, FailKind, Instant, Op, Outcome, SharedBufs};
use flashlog::{Errand, RedoDisk, Skip};
use futures_util::future::join;
use std::ops::Range;
use std::sync::Arc;

/// What the outcome of the disk means to the client.
pub(crate) fn to_request_error(kind: FailKind) -> RequestError {
    match kind {
        FailKind::NoSpace => RequestError::NoSpace,
        FailKind::Unsupported => RequestError::NotSupported,
        FailKind::Media | FailKind::Gone | FailKind::Invalid | FailKind::Errno(_) => RequestError::Io,
    }
}

pub(crate) fn outcome_to_result(outcome: Outcome) -> Result<(), RequestError> {
    outcome.ok().map_err(to_request_error)
}

/// Whether a write was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Done,
    /// Everything has to be let go of first.
    NotNow,
}

fn aligned_in_memory(data: &SharedBufs, unit: usize) -> bool {
    data.pieces().iter().all(|p| p.as_ptr().addr().is_multiple_of(unit) && p.len().is_multiple_of(unit))
}

impl GridDisk {
    pub(crate) async fn lock_bytes(&self, offset: u64, len: u64, mode: LockMode) -> RangeGuard {
        let span = cover(offset, len, self.block_bytes);
        self.locks.acquire(span.start / self.block_bytes..span.end / self.block_bytes, mode).await
    }

    /// The same for a client's request, or for a piece of one. A drop or a shrink waits for the guards that were asked for before it: a piece
    /// that asks later must not reach space that is another grid disk's by then.
    pub(crate) async fn claim_bytes(&self, offset: u64, len: u64, mode: LockMode) -> Result<RangeGuard, RequestError> {
        let guard = self.lock_bytes(offset, len, mode).await;
        self.check(offset, len)?;
        Ok(guard)
    }

    pub(crate) async fn read_piece(
        &self,
        read: &mut ClientRead<'_>,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        let len = bufs.len_bytes() as u64;
        if len == 0 {
            return (Ok(()), bufs);
        }
        let cache = self.cache_for_read(read);
        // Cached data is checked a part at a time, so a request for less than a part needs the whole of it.
        let logical = self.logical_bytes;
        let unit = if cache.is_some() { logical.max(PART_BYTES) } else { logical };
        let span = cover(offset, len, unit);
        let aligned =
            |p: &device::Buf| p.as_ptr().addr().is_multiple_of(unit as usize) && p.len().is_multiple_of(unit as usize);
        if span == (offset..offset + len) && bufs.pieces().iter().all(aligned) {
            return self.read_aligned(read, cache, offset, bufs).await;
        }
        let bounce = self.arena.alloc((span.end - span.start) as usize).await;
        let (result, bounce) = self.read_aligned(read, cache, span.start, bounce).await;
        let mut bufs = bufs;
        if result.is_ok() {
            let skip = (offset - span.start) as usize;
            let mut at = 0;
            bounce.for_each(skip..skip + len as usize, |bytes| {
                bufs.copy_in(at, bytes);
                at += bytes.len();
            });
        }
        (result, bufs)
    }

    /// The cache that a read goes through. Past it, under its range, a read sees what is dirty all the same.
    fn cache_for_read(&self, read: &mut ClientRead<'_>) -> Option<Arc<Binding>> {
        let Some(cache) = self.serving_cache() else {
            read.skips(ReadSkip::Uncached);
            return None;
        };
        if read.context.is_past_flash_cache() {
            read.skips(ReadSkip::Plan);
            return None;
        }
        Some(cache)
    }

    async fn read_aligned(
        &self,
        read: &mut ClientRead<'_>,
        cache: Option<Arc<Binding>>,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        if let Some(binding) = cache {
            return self.read_cached(read, &binding, offset, bufs).await;
        }
        let len = bufs.len_bytes() as u64;
        let guard = match self.claim_bytes(offset, len, LockMode::Shared).await {
            Ok(guard) => guard,
            Err(error) => return (Err(error), bufs),
        };
        let answer = self.read_current(offset, bufs).await;
        drop(guard);
        answer
    }

    pub(crate) async fn read_disk(&self, offset: u64, bufs: Bufs) -> (Result<(), RequestError>, Bufs) {
        self.counters.disk_reads.count(bufs.len_bytes() as u64);
        let done = self.disk.read(offset, bufs).await;
        (outcome_to_result(done.outcome), done.bufs)
    }

    pub(crate) async fn write_piece(
        &self,
        write: &mut ClientWrite<'_>,
        leave: &mut Leave<'_>,
        offset: u64,
        data: SharedBufs,
        fua: bool,
    ) -> Result<(), RequestError> {
        let len = data.len_bytes() as u64;
        if len == 0 {
            return if fua { self.flush_for(write.context).await.map(drop) } else { Ok(()) };
        }
        let (mut offset, mut len, mut data) = (offset, len, data);
        loop {
            let unit = self.change_unit();
            let span = cover(offset, len, unit);
            let aligned = span == (offset..offset + len) && aligned_in_memory(&data, unit as usize);
            let bounce = if aligned { Bufs::new() } else { self.arena.alloc((span.end - span.start) as usize).await };
            let mut passed = self.pass(leave, span.end - span.start).await?;
            let guard = self.claim_change(leave, span.start, span.end - span.start).await?;
            if self.change_unit() > unit {
                // Some of it may go to flash since it was looked: there, parts are the smallest unit.
                continue;
            }
            self.changes.begins(span.clone());
            self.ordered.zeroed.begins(&span);
            let (at, whole) = if aligned {
                (offset, data.clone())
            } else {
                // Boxed: aligned writes do not carry it.
                (span.start, Box::pin(self.surround(write.context, span.clone(), unit, offset, &data, bounce)).await?)
            };
            let begun = write.context.enter_fence()?;
            let result = self.write_locked(write, &mut passed, at, whole, fua).await;
            drop(begun);
            drop(guard);
            if result? == Written::Done {
                return Ok(());
            }
            if let Some(done_bytes) = passed.map(|passed| passed.done_bytes).filter(|&done| done > 0) {
                write.kept(span.start..span.start + done_bytes);
                let done = span.start + done_bytes - offset;
                (offset, len, data) = (offset + done, len - done, data.slice(done as usize..len as usize));
            }
        }
    }

    /// Data that is not aligned, with what surrounds it: `bounce`, as long as `span`. The caller holds the range.
    async fn surround(
        &self,
        context: &Context,
        span: Range<u64>,
        unit: u64,
        offset: u64,
        data: &SharedBufs,
        bounce: Bufs,
    ) -> Result<SharedBufs, RequestError> {
        let edges = (offset, data.len_bytes() as u64);
        let mut bounce = self.read_around(context, span.clone(), unit, edges, bounce).await?;
        bounce.copy_in_rope((offset - span.start) as usize, data);
        Ok(bounce.freeze())
    }

    /// Write aligned data where it belongs: to flash in write-back, else to the disk, but what is dirty always to flash. The
    /// caller holds the range exclusively.
    async fn write_locked(
        &self,
        write: &mut ClientWrite<'_>,
        passed: &mut Option<Passed<'_>>,
        offset: u64,
        data: SharedBufs,
        fua: bool,
    ) -> Result<Written, RequestError> {
        self.check_not_lost()?;
        match passed {
            Some(passed) => match Box::pin(self.place(write.context, passed, offset, &data)).await? {
                Placed::NotNow => return Ok(Written::NotNow),
                Placed::Taken => {
                    write.kept(offset..offset + data.len_bytes() as u64);
                    if fua {
                        self.sync_dirty_redo().await?;
                    }
                }
                Placed::ToDisk => self.write_disk(write, false, offset, data, fua).await?,
            },
            // In flush order since it began.
            None if self.is_ordered() => return Ok(Written::NotNow),
            None => self.write_unordered(write, offset, data, fua).await?,
        }
        Ok(Written::Done)
    }

    async fn write_unordered(
        &self,
        write: &mut ClientWrite<'_>,
        offset: u64,
        data: SharedBufs,
        fua: bool,
    ) -> Result<(), RequestError> {
        let len = data.len_bytes() as u64;
        let is_scan = self.is_scanned(offset, len);
        // What is dirty already goes to flash all the same, below.
        let passes = write.context.is_past_flash_cache() || is_scan && !fua && self.passes_write_back(offset, len);
        if !passes && self.try_write_dirty(write.context, offset, &data, fua).await? {
            write.context.served_by_cache(len);
            write.kept(offset..offset + len);
            return if fua { self.sync_dirty_redo().await } else { Ok(()) };
        }
        let Some(stretches) = self.dirty_stretches(offset, len) else {
            return self.write_disk(write, is_scan, offset, data, fua).await;
        };
        let kept_bytes = write.kept_bytes();
        let first = offset / PART_BYTES;
        for (parts, dirty) in stretches {
            let at = |part: u64| ((part - first) * PART_BYTES) as usize;
            let piece = data.slice(at(parts.start)..at(parts.end));
            if dirty {
                if !Box::pin(self.overwrite_dirty(parts.clone(), &piece)).await? {
                    Box::pin(self.clear_dirty(offset, len)).await?;
                    write.keeps_but(kept_bytes);
                    return self.write_disk(write, is_scan, offset, data, fua).await;
                }
                write.kept(parts.start * PART_BYTES..parts.end * PART_BYTES);
            } else {
                self.write_disk(write, is_scan, parts.start * PART_BYTES, piece, fua).await?;
            }
        }
        if fua { self.sync_dirty().await } else { Ok(()) }
    }

    /// Write to the disk what is not dirty. The caller holds the range exclusively.
    async fn write_disk(
        &self,
        write: &mut ClientWrite<'_>,
        is_scan: bool,
        offset: u64,
        data: SharedBufs,
        fua: bool,
    ) -> Result<(), RequestError> {
        let len = data.len_bytes() as u64;
        let context = write.context;
        let edges = if is_scan { None } else { self.edges_to_keep(context, offset, len) };
        let to_disk = async {
            let begun = self.begin_change(context, offset, len).await?;
            self.counters.disk_writes.count(len);
            let op = Op::Write { offset, data: data.clone(), fua };
            Ok::<_, RequestError>((begun, self.submit_redo(context, op).await.outcome))
        };
        let (edges, written) = match edges {
            None => (None, to_disk.await),
            Some(edges) => {
                let (edges, written) = Box::pin(join(self.read_edges_on_flash(edges), to_disk)).await;
                (Some(edges), written)
            }
        };
        let (begun, outcome) = written?;
        self.wrote_to_disk(fua && outcome == Outcome::Done);
        self.served_by_disk(context, len);
        if outcome == Outcome::Done
            && let Some(begun) = &begun
        {
            self.fill_written(write, begun, is_scan, (offset, &data), edges);
        }
        end_change(begun, outcome);
        outcome_to_result(outcome)
    }

    pub(crate) async fn zero_piece(
        &self,
        context: &Context,
        leave: &mut Leave<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<(), RequestError> {
        let (mut offset, mut len) = (offset, len);
        loop {
            let unit = self.change_unit();
            let (start, end) = (offset.next_multiple_of(unit), (offset + len) / unit * unit);
            if start >= end || self.is_ordered() {
                return self.write_zero_bytes(context, leave, offset, len, flags.fua).await;
            }
            if offset < start {
                let mut edge = ClientWrite::new(context, offset, start - offset);
                self.write_piece(&mut edge, leave, offset, self.zeroes(start - offset), flags.fua).await?;
            }
            if end < offset + len {
                let mut edge = ClientWrite::new(context, end, offset + len - end);
                self.write_piece(&mut edge, leave, end, self.zeroes(offset + len - end), flags.fua).await?;
            }
            let guard = self.claim_change(leave, start, end - start).await?;
            if self.change_unit() > unit || self.is_ordered() {
                // What is zero already stays out: zeroed again, it could undo what was written and acknowledged since.
                (offset, len) = (start, end - start);
                continue;
            }
            self.changes.begins(start..end);
            self.ordered.zeroed.begins(&(start..end));
            let begun = context.enter_fence()?;
            let outcome = self.zero_locked(context, start, end - start, flags).await?;
            drop(begun);
            drop(guard);
            return match outcome {
                Outcome::Failed(FailKind::Unsupported) if !flags.fast => {
                    self.write_zero_bytes(context, leave, start, end - start, flags.fua).await
                }
                other => outcome_to_result(other),
            };
        }
    }

    /// Zero an aligned range: the disk where nothing is dirty, what is dirty by zeroes on flash. The caller holds it
    /// exclusively.
    async fn zero_locked(
        &self,
        context: &Context,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<Outcome, RequestError> {
        self.check_not_lost()?;
        let Some(stretches) = self.dirty_stretches(offset, len) else {
            return self.zero_disk(context, offset, len, flags).await;
        };
        for (parts, dirty) in stretches {
            if !dirty {
                let len = (parts.end - parts.start) * PART_BYTES;
                let outcome = self.zero_disk(context, parts.start * PART_BYTES, len, flags).await?;
                if outcome != Outcome::Done {
                    return Ok(outcome);
                }
                continue;
            }
            let mut at = parts.start;
            while at < parts.end {
                let end = parts.end.min(at + crate::base::units::PIECE_BYTES_MAX / PART_BYTES);
                if !self.overwrite_dirty(at..end, &self.zeroes((end - at) * PART_BYTES)).await? {
                    self.clear_dirty(offset, len).await?;
                    return self.zero_disk(context, offset, len, flags).await;
                }
                at = end;
            }
        }
        if flags.fua {
            self.sync_dirty().await?;
        }
        Ok(Outcome::Done)
    }

    async fn zero_disk(
        &self,
        context: &Context,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<Outcome, RequestError> {
        let begun = self.begin_change(context, offset, len).await?;
        let op = Op::WriteZeroes { offset, len, fua: flags.fua, may_unmap: !flags.no_hole };
        let outcome = self.submit_redo(context, op).await.outcome;
        self.wrote_to_disk(flags.fua && outcome == Outcome::Done);
        end_change(begun, outcome);
        Ok(outcome)
    }

    /// Zero a device that cannot: write the bytes.
    async fn write_zero_bytes(
        &self,
        context: &Context,
        leave: &mut Leave<'_>,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), RequestError> {
        // Counted as zeroes where they are asked for, and not among the writes.
        let mut write = ClientWrite::new(context, offset, len);
        let mut done = 0;
        while done < len {
            // Pieces end at piece borders, and what is odd at either end is one by itself: the others are zeroes alone.
            let (at, left) = (offset + done, len - done);
            let n = match PART_BYTES - at % PART_BYTES {
                PART_BYTES if left > PART_BYTES => (crate::base::units::PIECE_BYTES_MAX
                    - at % crate::base::units::PIECE_BYTES_MAX)
                    .min(left / PART_BYTES * PART_BYTES),
                to_border => to_border.min(left),
            };
            self.write_piece(&mut write, leave, at, self.zeroes(n), fua).await?;
            done += n;
        }
        Ok(())
    }

    /// Zeroes to write: one constant piece, so that nobody waits for memory while holding memory.
    fn zeroes(&self, len: u64) -> SharedBufs {
        self.zeroes.slice(0..len as usize).into()
    }

    /// Whether it is what [`GridDisk::zeroes`] gives.
    pub(crate) fn is_of_zeroes(&self, data: &SharedBufs) -> bool {
        let ours = self.zeroes.as_ptr_range();
        data.pieces().iter().all(|piece| ours.contains(&piece.as_ptr()))
    }

    /// Give the disk a change or a flush; redo that the plan keeps from the flash log waits for the disk alone.
    fn submit_redo(&self, context: &Context, op: Op) -> Completion {
        let redo = self.port.redo();
        let recording = self.record_redo(context, &op, redo.is_some());
        let submitted = match redo {
            None => self.disk.submit(op),
            Some(redo) => {
                let past = context.is_past_flash_log().then_some(Skip::IormPlan);
                if let Some(account) = context.account.as_ref().filter(|_| past.is_none()) {
                    account.given_to_flash_log(&op);
                }
                redo.submit_for(op, Errand { past, verdict: recording.as_ref().and_then(|r| r.verdict.clone()) })
            }
        };
        match recording {
            None => submitted,
            Some(recording) => recording.wrap(submitted),
        }
    }

    /// When a redo write begins, if there is a flash log to count it.
    fn redo_begins(&self) -> Option<(Arc<RedoDisk>, Instant)> {
        self.port.redo().map(|redo| {
            let begun = redo.now();
            (redo, begun)
        })
    }

    /// A redo write has ended that went to flash without the flash log.
    fn redo_went_to_flash(&self, begun: Option<(Arc<RedoDisk>, Instant)>) {
        if let Some((redo, begun)) = begun {
            self.redo_counters.went_past(Skip::LogOnFlash, redo.now().ns_since(begun));
        }
    }

    /// Make durable what a write with FUA has just made dirty.
    async fn sync_dirty_redo(&self) -> Result<(), RequestError> {
        let begun = self.redo_begins();
        self.sync_dirty().await?;
        self.redo_went_to_flash(begun);
        Ok(())
    }

    /// Make every acknowledged write durable, where it is: on flash, on the disk, or some of it on either.
    pub(crate) async fn flush_all(&self) -> Result<(), RequestError> {
        self.flush_for(&Context::default()).await.map(drop)
    }

    /// The same for a database.
    pub(crate) async fn flush_for(&self, context: &Context) -> Result<Covered, RequestError> {
        if self.sabotage == Some(flashcache::Sabotage::FlushNotWaiting) {
            return self.losses.covers_change(self.losses.epoch()).map_err(|Lost| RequestError::Io);
        }
        self.cut_at_flush().await;
        let begun = self.redo_begins();
        let (on_disk, on_flash) = futures_util::future::join(self.flush_disk(context), self.sync_dirty()).await;
        on_flash?;
        let (covered, flushed) = on_disk?;
        if !flushed {
            self.redo_went_to_flash(begun);
        }
        Ok(covered)
    }

    /// The same, and the disk itself: see [`GridDisk::flush_behind_redo`].
    pub(crate) async fn flush_what_disk_shows(&self) -> Result<(), RequestError> {
        self.flush_all().await?;
        outcome_to_result(self.flush_behind_redo().await)
    }

    /// Flush the disk; in write-back only if it was written to since it was last flushed. Whether it was flushed.
    async fn flush_disk(&self, context: &Context) -> Result<(Covered, bool), RequestError> {
        if self.on_flash().is_some()
            && let Some(covered) = self.losses.all_flushed()
        {
            return Ok((covered, false));
        }
        let begun = self.losses.begin_flush();
        match self.submit_redo(context, Op::Flush).await.outcome.ok() {
            Ok(()) => self.losses.flushed(&begun).map(|covered| (covered, true)).map_err(|Lost| RequestError::Io),
            Err(kind) => {
                if !self.losses.is_watched() {
                    self.latch_lost(false);
                }
                Err(to_request_error(kind))
            }
        }
    }
}
