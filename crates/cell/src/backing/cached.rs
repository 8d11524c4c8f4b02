//! The request path through the flash cache: hits without a range lock, misses under one, writes that mark and invalidate.
//!
//! A hit needs no lock: it reads what was valid when it looked, which a concurrent write may or may not have replaced. A
//! miss holds its blocks exclusively from before it reads the disk until its fill is in the index, so concurrent misses
//! read the disk once and no fill lands after a later write. Nobody holds a pin on flash while waiting for a range.

use crate::backing::edges::EdgeData;
use crate::base::counters::SMALL_BYTES_MAX;
use crate::base::range_lock::LockMode;
use crate::base::request::{CachingMode, Context, RequestError};
use crate::base::streams::{Scan, is_large};
use crate::base::units::PART_BYTES;
use crate::base::units::cover;
use crate::disk::client_io::{ClientRead, ClientWrite, FillSkip, ReadSkip, WriteSkip};
use crate::disk::early::EarlyWrites;
use crate::disk::grid_disk::{Binding, GridDisk};
use crate::fill::feed::{Feeder, Filling};
use device::{Buf, Bufs, Outcome, SharedBufs, View};
use flashcache::{DiskHandle, FillCause, FillReport, Hit, HitError, Stretch, Tenant, WriteTicket};
use futures_util::future::join_all;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A change to the disk under way.
pub(crate) enum Change {
    /// Announced to the cache.
    Announced { binding: Arc<Binding>, ticket: WriteTicket, permit: FillPermit },
    /// To be announced when the index is whole.
    Early { writes: Arc<EarlyWrites>, range: Range<u64> },
}

/// What a fill is good for: data that was read, or a write that was begun, when this was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillPermit {
    membership: u64,
    /// See [`crate::durability::losses::Losses::drops`].
    pub(crate) disk_drops: u64,
    /// Whose it will be.
    tenant: Tenant,
}

/// What becomes of what a read has missed.
enum Fill {
    Not,
    Now,
    Later(Feeder),
}

/// Tell the cache what became of a change.
pub(crate) fn end_change(change: Option<Change>, outcome: Outcome) {
    match change {
        // It may still happen: its regions stay unsettled until the next start compares them.
        Some(Change::Announced { ticket, .. }) if outcome == Outcome::Unknown => std::mem::forget(ticket),
        Some(Change::Announced { binding, ticket, .. }) => binding.cache.end_write(ticket),
        Some(Change::Early { writes, range }) if outcome == Outcome::Unknown => writes.note_unknown(&range),
        Some(Change::Early { .. }) | None => {}
    }
}

/// What reading a stretch gave: the flash could not answer it.
struct NotFromFlash;

impl GridDisk {
    /// Read from disk what the cache has not, and time it.
    pub(crate) async fn read_disk_timed(
        &self,
        binding: &Binding,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        let begun = binding.cache.now();
        let (result, bufs) = self.read_current(offset, bufs).await;
        if result.is_ok() {
            self.counters.times.disk.count(begun, binding.cache.now());
        }
        (result, bufs)
    }
}

impl GridDisk {
    /// Read whole parts through the cache. The NBD server moves the future of every request, which is as large as its largest branch: this
    /// function boxes the branches that a hit does not take.
    pub(crate) async fn read_cached(
        &self,
        read: &mut ClientRead<'_>,
        binding: &Binding,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        let len = bufs.len_bytes() as u64;
        let parts = offset / PART_BYTES..(offset + len) / PART_BYTES;
        let scan = self.watch.reads(&parts);
        if binding.cache.is_keep(&binding.disk, &parts) {
            read.is_of_keep();
        }
        let stretches = binding.cache.lookup(&reader(read.context, binding, scan), parts.clone());
        if stretches.iter().all(|s| matches!(s, Stretch::Hit(_))) {
            let begun = self.counters.times.hit_begins(&binding.cache);
            let timer = binding.time_hit(parts.start, len, begun);
            if let Some(sent) = self.diverts(binding, timer, &stretches) {
                drop(stretches);
                return Box::pin(self.read_diverted(read, binding, scan, sent, offset, bufs)).await;
            }
            return match self.read_stretches(binding, stretches, bufs).await {
                (Ok(()), bufs) => {
                    let ended = self.counters.times.hit_ended(begun, &binding.cache);
                    if let Some(timer) = timer {
                        timer.ended(ended.unwrap_or_else(|| binding.cache.now()));
                    }
                    read.served_by_flash(offset..offset + len);
                    (Ok(()), bufs)
                }
                (Err(NotFromFlash), bufs) => {
                    read.skips(ReadSkip::Flash);
                    Box::pin(self.read_missed(read, binding, scan, offset, bufs)).await
                }
            };
        }
        // Pins are let go before waiting for the range: a range holder may wait for space that pins hold back.
        drop(stretches);
        Box::pin(self.read_missed(read, binding, scan, offset, bufs)).await
    }

    /// Read under the range lock: what is on flash by now from there, the rest from disk, and offer it to the cache.
    pub(crate) async fn read_missed(
        &self,
        read: &mut ClientRead<'_>,
        binding: &Binding,
        scan: Option<Scan>,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        let len = bufs.len_bytes() as u64;
        let parts = offset / PART_BYTES..(offset + len) / PART_BYTES;
        let fill = self.worth_filling(read, binding, scan, &parts);
        // What is fed or offered later takes the range alone then.
        let mode = if matches!(fill, Fill::Now) { LockMode::Exclusive } else { LockMode::Shared };
        let guard = match self.claim_bytes(offset, len, mode).await {
            Ok(guard) => guard,
            Err(error) => return (Err(error), bufs),
        };
        let permit = self.fill_permit(read.context, binding);
        // Looked at again under the lock: who takes the cache away waits for the locks held from before.
        let Some(binding) = &self.serving_cache().filter(|now| Arc::ptr_eq(&now.cache, &binding.cache)) else {
            return self.read_current(offset, bufs).await;
        };
        let stretches = binding.cache.lookup(&reader(read.context, binding, scan), parts.clone());
        let misses: SmallVec<[Range<u64>; 2]> = miss_ranges(&stretches, parts.start);
        if let Err(error) = self.check_not_lost() {
            return (Err(error), bufs);
        }
        let is_late = misses.iter().any(|parts| binding.cache.is_on_slow_flash(&binding.disk, parts.clone()));
        let fill = if is_late { Fill::Not } else { fill };
        if is_late {
            read.skips(ReadSkip::Flash);
        }
        let mut bufs = bufs;
        if misses.is_empty() {
            // Somebody else's miss has filled it while this one waited.
            let (result, back) = self.read_stretches(binding, stretches, bufs).await;
            bufs = back;
            if result.is_ok() {
                read.served_by_flash(offset..offset + len);
                drop(guard);
                return (Ok(()), bufs);
            }
            read.skips(ReadSkip::Flash);
        } else if misses.len() == 1 && stretches.len() > 1 {
            let (result, back) = self.read_partly(binding, stretches, offset, bufs).await;
            bufs = back;
            match result {
                Ok(Ok(())) => {
                    let missed = &misses[0];
                    read.served_by_flash(offset..missed.start * PART_BYTES);
                    read.served_by_flash(missed.end * PART_BYTES..offset + len);
                    let bufs = self.offer(read, binding, parts.start, &misses, (&fill, permit), bufs);
                    drop(guard);
                    return (Ok(()), bufs);
                }
                Ok(Err(error)) => return (Err(error), bufs),
                // Flash could not answer: all from disk, below.
                Err(NotFromFlash) => read.skips(ReadSkip::Flash),
            }
        } else {
            drop(stretches);
        }
        let (result, bufs) = self.read_disk_timed(binding, offset, bufs).await;
        if let Err(error) = result {
            return (Err(error), bufs);
        }
        let bufs = self.offer(read, binding, parts.start, &misses, (&fill, permit), bufs);
        drop(guard);
        (Ok(()), bufs)
    }

    /// Offer the missed ranges to the cache. The data is copied there; the request keeps its buffers.
    fn offer(
        &self,
        read: &mut ClientRead<'_>,
        binding: &Arc<Binding>,
        first_part: u64,
        misses: &[Range<u64>],
        (fill, permit): (&Fill, FillPermit),
        bufs: Bufs,
    ) -> Bufs {
        for miss in misses {
            let at = ((miss.start - first_part) * PART_BYTES) as usize;
            let len = ((miss.end - miss.start) * PART_BYTES) as usize;
            let data = bufs.view(at..at + len);
            match fill {
                Fill::Not => {}
                Fill::Now => {
                    if self.fill(binding, miss.clone(), data, FillCause::ReadMiss, permit).taken > 0 {
                        read.populates();
                    }
                }
                Fill::Later(feeder) => {
                    let bytes = miss.start * PART_BYTES..miss.end * PART_BYTES;
                    self.feed(feeder, self.note_held(binding, bytes, permit), data);
                }
            }
        }
        bufs
    }

    /// To be taken before data is read from disk or a write is marked, and before the look whether fills are allowed.
    pub(crate) fn fill_permit(&self, context: &Context, binding: &Binding) -> FillPermit {
        FillPermit { membership: binding.cache.membership(), disk_drops: self.losses.drops(), tenant: context.tenant() }
    }

    /// Offer data to the cache unless it may not be what the disk holds any more.
    pub(crate) fn fill(
        &self,
        binding: &Binding,
        parts: Range<u64>,
        data: View<'_>,
        cause: FillCause,
        permit: FillPermit,
    ) -> FillReport {
        let report = binding.cache.fill(&binding.disk.of(permit.tenant), parts.clone(), data, cause, permit.membership);
        // After the fill, so that a loss is either seen here or finds the filled blocks to distrust.
        if self.losses.drops() != permit.disk_drops {
            binding.cache.end_copies(&binding.disk, parts);
            return FillReport { stale: true, ..FillReport::default() };
        }
        report
    }

    /// Whether what a miss reads is worth keeping.
    fn worth_filling(
        &self,
        read: &mut ClientRead<'_>,
        binding: &Binding,
        scan: Option<Scan>,
        parts: &Range<u64>,
    ) -> Fill {
        if binding.cache.is_refused(&binding.disk, parts) {
            read.skips(ReadSkip::Uncached);
        }
        // KEEP data the operator wants in flash however it is read.
        let passes = || {
            scan.is_some_and(|scan| self.is_passing(binding, scan, parts))
                && !binding.cache.is_keep(&binding.disk, parts)
        };
        let is_large = is_large(parts);
        if is_large && passes() {
            read.skips(ReadSkip::Large);
            return Fill::Not;
        }
        match self.filling() {
            Filling::Evict => Fill::Not,
            Filling::Feed(feeder) => Fill::Later(feeder),
            Filling::Read if binding.declines_fill(parts.start) => {
                read.skips_fill(FillSkip::Busy);
                Fill::Not
            }
            Filling::Read if !is_large && passes() => {
                read.skips_fill(FillSkip::Scan);
                Fill::Not
            }
            Filling::Read => Fill::Now,
        }
    }

    /// Whether what a scan misses is not kept: it would push out others, and the scan has not shown that it comes back.
    fn is_passing(&self, binding: &Binding, scan: Scan, parts: &Range<u64>) -> bool {
        let cache = &binding.cache;
        cache.would_displace(&binding.disk, parts.start)
            && !self.watch.returns(scan, parts.start, cache.data_bytes_max())
    }

    /// Read stretches that are all hits.
    async fn read_stretches(
        &self,
        binding: &Binding,
        stretches: SmallVec<[Stretch; 4]>,
        bufs: Bufs,
    ) -> (Result<(), NotFromFlash>, Bufs) {
        let mut hits = stretches.into_iter().map(|stretch| match stretch {
            Stretch::Hit(hit) => hit,
            Stretch::Miss(_) => unreachable!("the caller passes hits"),
        });
        if hits.len() == 1
            && let Some(hit) = hits.next()
        {
            let bytes = bufs.len_bytes();
            let (result, back) = binding.cache.read_hit(hit, bufs).await;
            return self.take_back(bytes, result, back);
        }
        Box::pin(self.read_hits(binding, hits, bufs)).await
    }

    async fn read_hits(
        &self,
        binding: &Binding,
        hits: impl Iterator<Item = Hit>,
        bufs: Bufs,
    ) -> (Result<(), NotFromFlash>, Bufs) {
        let mut rest = bufs;
        let reads: Vec<_> = hits
            .map(|hit| {
                let parts = hit.parts();
                let bytes = ((parts.end - parts.start) * PART_BYTES) as usize;
                let read = binding.cache.read_hit(hit, rest.split_to(bytes));
                async move { (bytes, read.await) }
            })
            .collect();
        let mut all = Bufs::new();
        let mut result = Ok(());
        for (bytes, (one, back)) in join_all(reads).await {
            let (one, back) = self.take_back(bytes, one, back);
            result = result.and(one);
            all.append(back);
        }
        (result, all)
    }

    /// A buffer that is lost to a slow flash is replaced, so that the request can go to the disk.
    ///
    /// Never waits: the request may hold a range, and those who hold memory may wait for that range. When the arena has
    /// nothing left the heap gives as much as the flash keeps: at most what the requests under way have reserved.
    fn take_back(
        &self,
        bytes: usize,
        result: Result<(), HitError>,
        back: Option<Bufs>,
    ) -> (Result<(), NotFromFlash>, Bufs) {
        (result.map_err(|_| NotFromFlash), back.unwrap_or_else(|| self.replacement(bytes)))
    }

    /// For a buffer that a slow device keeps, see [`GridDisk::take_back`].
    pub(crate) fn replacement(&self, bytes: usize) -> Bufs {
        self.arena.try_alloc(bytes).unwrap_or_else(|| Buf::zeroed(bytes).into())
    }

    /// Read one missed stretch from disk and the hits around it from flash, at the same time.
    async fn read_partly(
        &self,
        binding: &Binding,
        stretches: SmallVec<[Stretch; 4]>,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<Result<(), RequestError>, NotFromFlash>, Bufs) {
        let mut rest = bufs;
        let mut at = offset;
        let mut reads = Vec::new();
        for stretch in stretches {
            let bytes = stretch.parts() as usize * PART_BYTES as usize;
            let piece = rest.split_to(bytes);
            let place = at;
            at += bytes as u64;
            reads.push(async move {
                match stretch {
                    Stretch::Miss(_) => {
                        let (result, back) = self.read_disk(place, piece).await;
                        (Ok(result), back)
                    }
                    Stretch::Hit(hit) => {
                        let (result, back) = binding.cache.read_hit(hit, piece).await;
                        let (result, back) = self.take_back(bytes, result, back);
                        (result.map(Ok), back)
                    }
                }
            });
        }
        let mut all = Bufs::new();
        let mut result = Ok(Ok(()));
        for (one, back) in join_all(reads).await {
            all.append(back);
            result = match (result, one) {
                (Err(flash), _) | (_, Err(flash)) => Err(flash),
                (Ok(Err(error)), _) | (_, Ok(Err(error))) => Ok(Err(error)),
                (Ok(Ok(())), Ok(Ok(()))) => Ok(Ok(())),
            };
        }
        (result, all)
    }

    /// Before the disk is changed: the cache marks the region durably and ends its copies.
    ///
    /// # Errors
    /// A flash device has failed and the label of the disk cannot say so: the disk must not be changed.
    pub(crate) async fn begin_change(
        &self,
        context: &Context,
        offset: u64,
        len: u64,
    ) -> Result<Option<Change>, RequestError> {
        let Some(binding) = self.cache() else {
            let range = offset..offset + len;
            let early = self.early.note(&range);
            return Ok(early.then(|| Change::Early { writes: self.early.clone(), range }));
        };
        let span = cover(offset, len, PART_BYTES);
        let permit = self.fill_permit(context, &binding);
        let begun = binding.cache.begin_write(&binding.disk, span.start / PART_BYTES..span.end / PART_BYTES).await;
        let ticket = begun.map_err(|_| RequestError::Io)?;
        // A member that failed while this waited for its mark is waited for, with its clean blocks, if it has dirty data.
        if let Err(lost) = self.check_not_lost() {
            binding.cache.end_write(ticket);
            return Err(lost);
        }
        Ok(Some(Change::Announced { binding, ticket, permit }))
    }

    /// Whether what is written to the disk is kept in the cache, as far as the grid disk is asked.
    pub(crate) fn keeps_written(&self, binding: &Binding) -> bool {
        let keeps = binding.mode == CachingMode::WriteThrough || binding.mode.is_write_back();
        keeps && !self.is_barred() && matches!(self.filling(), Filling::Read)
    }

    /// A write has reached the disk: its whole parts are worth keeping, and those it covers in part where `edges` has the rest.
    pub(crate) fn fill_written(
        &self,
        write: &mut ClientWrite<'_>,
        change: &Change,
        is_scan: bool,
        (offset, data): (u64, &SharedBufs),
        edges: Option<EdgeData>,
    ) {
        let Change::Announced { binding, permit, .. } = change else { return };
        let len = data.len_bytes() as u64;
        if !self.keeps_written(binding) {
            return;
        }
        if write.context.is_past_flash_cache() {
            return write.skips(WriteSkip::Plan);
        }
        let (start, whole, permit) = match edges.filter(|edges| edges.is_of(binding)) {
            Some(edges) => {
                // Older than that of the change: what was lost since the edges were looked up voids them.
                let permit = edges.permit;
                let (start, whole) = edges.around(offset, data);
                (start, whole, permit)
            }
            None => {
                let (start, end) = (offset.next_multiple_of(PART_BYTES), (offset + len) / PART_BYTES * PART_BYTES);
                let is_any = start < end;
                let whole = || data.slice((start - offset) as usize..(end - offset) as usize);
                (start, if is_any { whole() } else { SharedBufs::new() }, *permit)
            }
        };
        if whole.is_empty() {
            return;
        }
        let parts = start / PART_BYTES..(start + whole.len_bytes() as u64) / PART_BYTES;
        if binding.declines_fill(parts.start) {
            write.skips(WriteSkip::Busy);
        } else if is_scan
            && binding.cache.would_displace(&binding.disk, parts.start)
            && !binding.cache.is_keep(&binding.disk, &(offset / PART_BYTES..(offset + len).div_ceil(PART_BYTES)))
        {
            write.skips(if len > SMALL_BYTES_MAX { WriteSkip::Large } else { WriteSkip::Scan });
        } else {
            let end = parts.end * PART_BYTES;
            let report = self.fill(binding, parts, whole.view(0..whole.len_bytes()), FillCause::Write, permit);
            // The report counts blocks; which of several were refused it does not tell.
            let blocks = u64::from(report.taken + report.there);
            let span = cover(start, end - start, self.block_bytes);
            let all = blocks * self.block_bytes >= span.end - span.start;
            write.kept(start..if all { end } else { end.min(start + blocks * self.block_bytes) });
        }
    }

    /// Bring a range into the cache. Whether anything was.
    pub(crate) async fn prefetch_piece(&self, context: &Context, offset: u64, len: u64) -> Result<bool, RequestError> {
        let Some(binding) = self.cache() else { return Ok(false) };
        if context.is_past_flash_cache() {
            return Ok(false);
        }
        let span = cover(offset, len, PART_BYTES);
        let parts = span.start / PART_BYTES..span.end / PART_BYTES;
        if binding.declines_fill(parts.start) {
            self.counters.cache_fill_skips_busy.count(span.end - span.start);
            return Ok(false);
        }
        let bufs = self.arena.alloc((span.end - span.start) as usize).await;
        let guard = self.lock_bytes(span.start, span.end - span.start, LockMode::Exclusive).await;
        let permit = self.fill_permit(context, &binding);
        let serving = self.serving_cache().filter(|now| Arc::ptr_eq(&now.cache, &binding.cache));
        let Some(binding) = serving else { return Ok(false) };
        let misses = miss_ranges(&binding.cache.lookup(&binding.disk, parts.clone()), parts.start);
        self.check_not_lost()?;
        if misses.is_empty() {
            return Ok(false);
        }
        let (result, bufs) = self.read_current(span.start, bufs).await;
        result?;
        let mut read = ClientRead::new(context, offset, len);
        self.offer(&mut read, &binding, parts.start, &misses, (&Fill::Now, permit), bufs);
        drop(guard);
        Ok(read.has_populated())
    }

    /// Compare one stretch of suspect blocks with the disk.
    pub(crate) async fn revalidate(&self, binding: &Binding, parts: Range<u64>) -> Result<(), RequestError> {
        let (offset, len) = (parts.start * PART_BYTES, (parts.end - parts.start) * PART_BYTES);
        let bufs = self.arena.alloc(len as usize).await;
        let guard = self.lock_bytes(offset, len, LockMode::Exclusive).await;
        let drops = self.losses.drops();
        let (result, bufs) = self.read_disk(offset, bufs).await;
        result?;
        binding.cache.revalidate(&binding.disk, parts, bufs.view(0..len as usize));
        if self.losses.drops() != drops {
            // What was compared may have been lost since.
            binding.cache.distrust(&binding.disk);
            return Err(RequestError::Io);
        }
        drop(guard);
        Ok(())
    }
}

/// On whose behalf a read looks: what a scan finds is not worth more for it.
fn reader(context: &Context, binding: &Binding, scan: Option<Scan>) -> DiskHandle {
    let disk = binding.disk.of(context.tenant());
    if scan.is_some_and(|scan| !scan.returns) { disk.passing() } else { disk }
}

/// The missed ranges of a look-up, in parts.
fn miss_ranges(stretches: &[Stretch], first_part: u64) -> SmallVec<[Range<u64>; 2]> {
    let mut at = first_part;
    let mut misses = SmallVec::new();
    for stretch in stretches {
        let end = at + u64::from(stretch.parts());
        if matches!(stretch, Stretch::Miss(_)) {
            misses.push(at..end);
        }
        at = end;
    }
    misses
}
