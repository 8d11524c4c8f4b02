//! A device that keeps un-flushed writes in the memory of this process only: killing the process loses exactly them,
//! as a power cut does with a disk's volatile cache. For crash loops with the real binary.
//!
//! Reads see what was written. A flush, or a FUA write, brings the bytes to the device below. What does not fit
//! [`Forgetful::new`]'s bound is written below at once, without a flush: remembering is always allowed.
//! Never for production: it exists to lose data.

use crate::buf::{Buf, Bufs, SharedBufs};
use crate::io::{Completed, Completion, Device, DeviceExtent, FailKind, Geometry, Io, Op, Outcome};
use crate::spawn::Spawn;
use crate::sync::{Semaphore, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The unit of remembering.
const PAGE_BYTES: u64 = 4096;
/// The finest part of a page that can be remembered by itself.
const SECTOR_BYTES: u64 = 512;
/// Largest request to the device below when the overlay is written out.
const RUN_BYTES_MAX: usize = 1 << 20;
/// Longest zeroing kept in memory; longer ones go below at once.
const ZEROES_BYTES_MAX: u64 = 16 << 20;

/// See the module's head.
pub struct Forgetful(Arc<Shared>);

struct Shared {
    inner: Device,
    spawn: Arc<dyn Spawn>,
    pages_max: usize,
    overlay: Mutex<Overlay>,
    /// Held by whoever writes below, so that an older version never lands after a newer one.
    below: Semaphore,
}

#[derive(Default)]
struct Overlay {
    /// Written since the last flush began.
    fresh: Pages,
    /// On its way below.
    leaving: Pages,
}

type Pages = BTreeMap<u64, Page>;

/// A page of which some sectors are known.
struct Page {
    bytes: Box<[u8]>,
    known: u8,
}

impl Page {
    fn empty() -> Page {
        Page { bytes: vec![0; PAGE_BYTES as usize].into(), known: 0 }
    }
}

/// The sectors of `page` in `offset..end`, as a bit mask and a range of bytes within the page.
fn part(page: u64, offset: u64, end: u64) -> (u8, std::ops::Range<usize>) {
    let start = page * PAGE_BYTES;
    let low = offset.max(start) - start;
    let high = end.min(start + PAGE_BYTES) - start;
    let mask = (low / SECTOR_BYTES..high / SECTOR_BYTES).fold(0, |m, s| m | 1 << s);
    (mask, low as usize..high as usize)
}

fn pages_of(offset: u64, end: u64) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)
}

impl Overlay {
    /// Remember `bytes` (or zeroes) from `offset` to `end`.
    fn put(&mut self, offset: u64, end: u64, bytes: Option<&SharedBufs>) {
        for page in pages_of(offset, end) {
            let (mask, within) = part(page, offset, end);
            let entry = self.fresh.entry(page).or_insert_with(Page::empty);
            entry.known |= mask;
            let into = &mut entry.bytes[within.clone()];
            match bytes {
                None => into.fill(0),
                Some(bytes) => {
                    let from = (page * PAGE_BYTES + within.start as u64 - offset) as usize;
                    let mut at = 0;
                    bytes.for_each(from..from + into.len(), |stretch| {
                        into[at..at + stretch.len()].copy_from_slice(stretch);
                        at += stretch.len();
                    });
                }
            }
        }
    }

    /// Forget what is known of `offset..end`: the device below has something newer.
    fn drop_range(&mut self, offset: u64, end: u64) {
        for pages in [&mut self.fresh, &mut self.leaving] {
            let touched: Vec<u64> = pages.range(pages_of(offset, end)).map(|(page, _)| *page).collect();
            for page in touched {
                let (mask, _) = part(page, offset, end);
                if let Some(entry) = pages.get_mut(&page) {
                    entry.known &= !mask;
                    if entry.known == 0 {
                        pages.remove(&page);
                    }
                }
            }
        }
    }

    /// Known stretches of `offset..end`: where, and the bytes. The newer after the older, so that it wins.
    fn known(&self, offset: u64, end: u64) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        for pages in [&self.leaving, &self.fresh] {
            for (page, entry) in pages.range(pages_of(offset, end)) {
                let (mask, _) = part(*page, offset, end);
                for sector in (0..8).filter(|s| entry.known & mask & 1 << s != 0) {
                    let start = sector * SECTOR_BYTES as usize;
                    let bytes = entry.bytes[start..start + SECTOR_BYTES as usize].to_vec();
                    found.push((page * PAGE_BYTES + start as u64, bytes));
                }
            }
        }
        found
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.leaving.is_empty()
    }
}

impl Forgetful {
    /// Keep at most `bytes_max` of un-flushed writes of `inner`. Its logical unit must be at least 512 bytes.
    ///
    /// # Panics
    /// When the logical unit is smaller: that is no disk.
    #[must_use]
    pub fn new(inner: Device, spawn: Arc<dyn Spawn>, bytes_max: u64) -> Arc<Forgetful> {
        assert!(inner.geometry().logical_bytes as u64 >= SECTOR_BYTES, "a disk's unit is at least a sector");
        let pages_max = usize::try_from(bytes_max / PAGE_BYTES).unwrap_or(usize::MAX).max(1);
        let (overlay, below) = (Mutex::default(), Semaphore::new(1));
        Arc::new(Forgetful(Arc::new(Shared { inner, spawn, pages_max, overlay, below })))
    }

    /// Bytes that a kill would lose now, counted in whole pages.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        let overlay = lock(&self.0.overlay);
        (overlay.fresh.len() + overlay.leaving.len()) as u64 * PAGE_BYTES
    }

    fn run(&self, work: impl Future<Output = Completed> + Send + 'static) -> Completion {
        let (completer, completion) = Completion::pair();
        self.0.spawn.spawn(Box::pin(async move { completer.complete(work.await) }));
        completion
    }

    fn refusal(&self, op: &Op) -> Option<FailKind> {
        let geometry = self.0.inner.geometry();
        let (offset, len) = op.range();
        let unit = u64::from(geometry.logical_bytes);
        let fits = offset.is_multiple_of(unit)
            && len.is_multiple_of(unit)
            && offset.checked_add(len).is_some_and(|end| end <= geometry.size_bytes);
        (!fits).then_some(FailKind::Invalid)
    }
}

impl Shared {
    fn is_full(&self) -> bool {
        lock(&self.overlay).fresh.len() >= self.pages_max
    }

    /// Write the overlay below, without a flush. `below` is held. On failure it is all known again.
    async fn write_out(&self) -> Outcome {
        let runs = {
            let mut overlay = lock(&self.overlay);
            // Nothing is leaving: only the holder of `below` moves pages there, and it empties it again.
            overlay.leaving = std::mem::take(&mut overlay.fresh);
            join(overlay.known(0, u64::MAX))
        };
        let mut outcome = Outcome::Done;
        for (offset, buf) in runs {
            let written = self.inner.write(offset, buf.freeze().into(), false).await;
            if written.outcome != Outcome::Done {
                outcome = written.outcome;
                break;
            }
        }
        let mut overlay = lock(&self.overlay);
        let leaving = std::mem::take(&mut overlay.leaving);
        if outcome != Outcome::Done {
            restore(&mut overlay.fresh, leaving);
        }
        outcome
    }

    async fn flush(&self) -> Outcome {
        let _below = self.below.acquire(1).await;
        match self.write_out().await {
            Outcome::Done => self.inner.flush().await.outcome,
            failed => failed,
        }
    }

    /// Make what is remembered of a range durable: the newest of it, whoever wrote it.
    async fn write_through(&self, offset: u64, end: u64) -> Outcome {
        let _below = self.below.acquire(1).await;
        let known = join(lock(&self.overlay).known(offset, end));
        let mut covered = 0;
        for (at, buf) in known {
            covered += buf.len() as u64;
            let outcome = self.inner.write(at, buf.freeze().into(), true).await.outcome;
            if outcome != Outcome::Done {
                return outcome;
            }
        }
        // What is no longer remembered was written below by a flush, which may have failed after that.
        if covered < end - offset { self.inner.flush().await.outcome } else { Outcome::Done }
    }

    /// Hand a long zeroing or a discard below.
    async fn pass(&self, op: Op) -> Completed {
        let (offset, len) = op.range();
        let _below = self.below.acquire(1).await;
        let completed = self.inner.submit(op).await;
        if completed.outcome == Outcome::Done {
            lock(&self.overlay).drop_range(offset, offset + len);
        }
        completed
    }

    /// Keep within the bound: what is too much goes below.
    async fn make_room(&self) -> Outcome {
        let _below = self.below.acquire(1).await;
        if self.is_full() { self.write_out().await } else { Outcome::Done }
    }
}

/// Put pages back beneath what is newer.
fn restore(fresh: &mut Pages, leaving: Pages) {
    for (page, old) in leaving {
        let Some(new) = fresh.get_mut(&page) else {
            fresh.insert(page, old);
            continue;
        };
        for sector in (0..8).filter(|s| old.known & !new.known & 1 << s != 0) {
            let within = sector * SECTOR_BYTES as usize..(sector + 1) * SECTOR_BYTES as usize;
            new.bytes[within.clone()].copy_from_slice(&old.bytes[within]);
        }
        new.known |= old.known;
    }
}

/// Sectors in ascending order as few long writes.
fn join(sectors: Vec<(u64, Vec<u8>)>) -> Vec<(u64, Buf)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (at, bytes) in sectors {
        match runs.last_mut() {
            Some((from, run)) if *from + run.len() as u64 == at && run.len() < RUN_BYTES_MAX => run.extend(bytes),
            _ => runs.push((at, bytes)),
        }
    }
    runs.into_iter().map(|(at, bytes)| (at, Buf::padded(&bytes, 1))).collect()
}

impl Io for Forgetful {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.0.inner.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        if let Some(kind) = self.refusal(&op) {
            return Completion::failed(kind, op);
        }
        let shared = self.0.clone();
        let (offset, len) = op.range();
        let end = offset + len;
        match op {
            Op::Read { offset, bufs } => {
                // Taken now: what is on its way below must be seen whether or not it has got there.
                let known = lock(&shared.overlay).known(offset, end);
                let inner = shared.inner.submit(Op::Read { offset, bufs });
                if known.is_empty() {
                    return inner;
                }
                Completion::future(async move {
                    let mut completed = inner.await;
                    if completed.outcome == Outcome::Done {
                        patch(&mut completed.bufs, offset, &known);
                    }
                    completed
                })
            }
            Op::Write { data, fua, .. } => {
                lock(&shared.overlay).put(offset, end, Some(&data));
                self.settle(offset, end, fua)
            }
            Op::WriteZeroes { fua, .. } if len <= ZEROES_BYTES_MAX => {
                lock(&shared.overlay).put(offset, end, None);
                self.settle(offset, end, fua)
            }
            op @ (Op::WriteZeroes { .. } | Op::Discard { .. }) => self.run(async move { shared.pass(op).await }),
            Op::Flush => self.run(async move { Completed::bare(shared.flush().await) }),
            Op::Status { .. } => {
                if lock(&shared.overlay).is_empty() {
                    return shared.inner.submit(Op::Status { offset, len });
                }
                let extents = vec![DeviceExtent { len, hole: false }];
                Completion::ready(Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents })
            }
        }
    }
}

impl Forgetful {
    /// The end of a write that is in the overlay.
    fn settle(&self, offset: u64, end: u64, fua: bool) -> Completion {
        let shared = self.0.clone();
        if fua {
            return self.run(async move { Completed::bare(shared.write_through(offset, end).await) });
        }
        if shared.is_full() {
            return self.run(async move { Completed::bare(shared.make_room().await) });
        }
        Completion::ready(Completed::bare(Outcome::Done))
    }
}

fn patch(bufs: &mut Bufs, offset: u64, known: &[(u64, Vec<u8>)]) {
    for (at, bytes) in known {
        bufs.copy_in((at - offset) as usize, bytes);
    }
}
