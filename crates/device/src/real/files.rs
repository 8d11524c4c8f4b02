//! A file or block device as an [`Io`]: transfers go to the calling thread's driver, blocking verbs to the device's
//! own lanes.
//!
//! Never splits, never bounces a buffer, tries again only what `again` says.

use super::again;
use super::exclusive::Held;
use super::executor;
use super::inbox::Message;
use super::request::Request;
use super::runtime::Shared;
use super::sys;
use super::uring::PIECES_MAX;
use super::worker::Lane;
use crate::buf::Bufs;
use crate::io::{Completed, Completer, Completion, DeviceExtent, FailKind, Geometry, Io, Op, Outcome};
use crate::sync::lock;
use smallvec::SmallVec;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Threads for zeroing, discarding and asking: one, they are rare and the medium runs them one by one anyway.
const SPACE_THREADS_MAX: usize = 1;
/// Threads for flushes: one, since at most one flush of a device is in flight (see the `flush_gate` layer).
const FLUSH_THREADS_MAX: usize = 1;
/// Threads for transfers in the `threads` back-end: the depth of one NCQ queue.
const TRANSFER_THREADS_MAX: usize = 32;

/// Longest transfer of a file in memory that is carried out at once, in the submitter's thread. Such files do not offer
/// io_uring a try without waiting, so each request would go through a kernel worker, at many times the price of the copy;
/// longer ones still do, so that one request does not hold up a thread.
const IN_MEMORY_BYTES_MAX: usize = 128 << 10;

/// What kind of file lies behind a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    Block,
}

/// A place in the rings' tables of files. Free again once every ring has forgotten it, hence counted.
pub(crate) struct FixedSlot {
    pub(crate) index: usize,
    shared: Weak<Shared>,
}

impl FixedSlot {
    pub(crate) fn new(index: usize, shared: &Arc<Shared>) -> FixedSlot {
        FixedSlot { index, shared: Arc::downgrade(shared) }
    }
}

impl Drop for FixedSlot {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.fixed_free).push(self.index);
        }
    }
}

/// An open device. Every request in flight holds it: it is closed, and its lock given up, after the last completion.
pub(crate) struct DeviceFile {
    pub(crate) name: String,
    fd: OwnedFd,
    kind: FileKind,
    direct: bool,
    read_only: bool,
    locked: bool,
    /// Of a block device; others find it busy as long as this is there.
    _exclusive: Option<Held>,
    in_memory: bool,
    fua_by_flush: bool,
    keeps_space: bool,
    /// As it was opened; its size by now is `size_bytes`.
    geometry: Geometry,
    size_bytes: AtomicU64,
    fixed: Option<Arc<FixedSlot>>,
    shared: Weak<Shared>,
    requests: AtomicU64,
    tried_again: AtomicU64,
    /// So many transfers more end as if the kernel had been short of memory.
    #[cfg(test)]
    pub(crate) shortages: AtomicU64,
    transfers: Lane,
    flushes: Lane,
    space: Lane,
}

/// What opening found out about a device.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) fd: OwnedFd,
    pub(crate) kind: FileKind,
    pub(crate) direct: bool,
    pub(crate) read_only: bool,
    pub(crate) locked: bool,
    pub(crate) exclusive: Option<Held>,
    /// Its content lives in memory: short transfers are carried out at once.
    pub(crate) in_memory: bool,
    /// A durable write is a write and a flush: the file system does not honour the flag.
    pub(crate) fua_by_flush: bool,
    /// Zeroing and discarding leave the space allocated to the file as it is.
    pub(crate) keeps_space: bool,
    pub(crate) geometry: Geometry,
}

impl DeviceFile {
    pub(crate) fn new(opened: Opened, fixed: Option<FixedSlot>, shared: &Arc<Shared>) -> DeviceFile {
        let Opened { name, fd, kind, direct, read_only, locked, exclusive, .. } = opened;
        let Opened { in_memory, fua_by_flush, keeps_space, geometry, .. } = opened;
        // Thread names are cut at 15 bytes by the kernel: the end of a path says more than its start.
        let tail = name.rsplit('/').next().unwrap_or_default();
        DeviceFile {
            transfers: Lane::new(&format!("io-{tail}"), TRANSFER_THREADS_MAX),
            flushes: Lane::new(&format!("flush-{tail}"), FLUSH_THREADS_MAX),
            space: Lane::new(&format!("space-{tail}"), SPACE_THREADS_MAX),
            name,
            fd,
            kind,
            direct,
            read_only,
            locked,
            _exclusive: exclusive,
            in_memory,
            fua_by_flush,
            keeps_space,
            size_bytes: AtomicU64::new(geometry.size_bytes),
            geometry,
            fixed: fixed.map(Arc::new),
            shared: Arc::downgrade(shared),
            requests: AtomicU64::new(0),
            tried_again: AtomicU64::new(0),
            #[cfg(test)]
            shortages: AtomicU64::new(0),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Acquire), ..self.geometry.clone() }
    }

    /// Look again how large it is. One that has become smaller stays as large as it was: what lies beyond its end fails.
    pub(crate) fn look_again(&self) -> io::Result<()> {
        let unit = u64::from(self.geometry.logical_bytes);
        let size_bytes = crate::probe::seek_end(self.fd.as_raw_fd())? / unit * unit;
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn fixed_slot(&self) -> Option<usize> {
        self.fixed.as_ref().map(|slot| slot.index)
    }

    /// Requests not yet answered.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    /// What a transfer's result counts as: itself, except in tests of what is tried again.
    pub(crate) fn result_of(&self, result: i32) -> i32 {
        #[cfg(test)]
        if self.shortages.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok() {
            return -libc::ENOMEM;
        }
        result
    }

    /// A request of it is about to be tried again.
    pub(crate) fn count_again(&self) {
        self.tried_again.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub(crate) fn tried_again(&self) -> u64 {
        self.tried_again.load(Ordering::Relaxed)
    }

    /// Count another try and wait for it, on a thread of the device's own.
    pub(crate) fn pause(&self, time: Duration) {
        self.count_again();
        std::thread::sleep(time);
    }

    /// The lane of transfers, for the `threads` back-end.
    pub(crate) fn transfers(&self) -> &Lane {
        &self.transfers
    }

    /// The lane of flushes, for the test of a stalled device.
    #[cfg(test)]
    pub(crate) fn flushes(&self) -> &Lane {
        &self.flushes
    }

    fn zero(&self, offset: u64, len: u64, fua: bool, may_unmap: bool) -> Outcome {
        let zero = || match self.kind {
            FileKind::Regular if may_unmap && !self.keeps_space => sys::punch_file(self.fd(), offset, len),
            FileKind::Regular => sys::zero_file(self.fd(), offset, len),
            FileKind::Block => sys::zero_block(self.fd(), offset, len),
        };
        let zeroed = again::done_patiently(zero, |time| self.pause(time));
        outcome_of(zeroed.and_then(|()| if fua { sys::fdatasync(self.fd()) } else { Ok(()) }))
    }

    fn discard(&self, offset: u64, len: u64) -> Outcome {
        let discard = || match self.kind {
            FileKind::Regular if self.keeps_space => Ok(()),
            FileKind::Regular => sys::punch_file(self.fd(), offset, len),
            FileKind::Block => sys::discard_block(self.fd(), offset, len),
        };
        outcome_of(again::done_patiently(discard, |time| self.pause(time)))
    }

    fn status(&self, offset: u64, len: u64) -> Completed {
        let extents = match self.kind {
            FileKind::Regular => sys::extents(self.fd(), offset, len),
            FileKind::Block => Ok(vec![DeviceExtent { len, hole: false }]),
        };
        match extents {
            Ok(extents) => Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents },
            Err(e) => Completed::bare(outcome_of(Err(e))),
        }
    }
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        if self.locked {
            sys::unlock_file(self.fd());
        }
        let Some(shared) = self.shared.upgrade() else { return };
        if let Some(slot) = self.fixed.take() {
            for inbox in &shared.inboxes {
                inbox.send(Message::Forget(slot.clone()));
            }
        }
    }
}

fn outcome_of(result: std::io::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(e) => sys::outcome_of_errno(-sys::negative(&e), true),
    }
}

/// A device held by a request in flight, counted.
pub(crate) struct InFlight(Arc<DeviceFile>);

impl InFlight {
    fn new(file: &Arc<DeviceFile>) -> InFlight {
        file.requests.fetch_add(1, Ordering::AcqRel);
        InFlight(file.clone())
    }

    /// The device itself.
    pub(crate) fn device(&self) -> Arc<DeviceFile> {
        self.0.clone()
    }
}

impl Deref for InFlight {
    type Target = DeviceFile;
    fn deref(&self) -> &DeviceFile {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The seam's view of a [`DeviceFile`].
pub(crate) struct FileDevice {
    shared: Arc<Shared>,
    file: Arc<DeviceFile>,
}

impl FileDevice {
    pub(crate) fn new(shared: Arc<Shared>, file: Arc<DeviceFile>) -> FileDevice {
        FileDevice { shared, file }
    }

    /// Why a request cannot be carried out as it is, if so.
    fn refusal(&self, op: &Op) -> Option<FailKind> {
        let geometry = &self.file.geometry;
        let (offset, len) = op.range();
        let unit = u64::from(geometry.logical_bytes);
        let pieces = match op {
            Op::Read { bufs, .. } => bufs.pieces().len(),
            Op::Write { data, .. } => data.pieces().len(),
            _ => 0,
        };
        let transfer = matches!(op, Op::Read { .. } | Op::Write { .. });
        let fits = offset.is_multiple_of(unit)
            && len.is_multiple_of(unit)
            && offset.checked_add(len).is_some_and(|end| end <= self.file.size_bytes.load(Ordering::Acquire))
            && (!transfer || (len <= u64::from(geometry.transfer_bytes_max) && pieces <= PIECES_MAX));
        if !fits {
            return Some(FailKind::Invalid);
        }
        let changes = matches!(op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard { .. });
        (changes && self.file.read_only).then_some(FailKind::Unsupported)
    }

    /// A short transfer of a file in memory, carried out here and now; others come back, and those that wait for something.
    fn at_once(&self, op: Op) -> Result<Completion, Op> {
        if !self.file.in_memory || op.range().1 > IN_MEMORY_BYTES_MAX as u64 {
            return Err(op);
        }
        let completed = match op {
            Op::Read { offset, mut bufs } => {
                let pieces: SmallVec<[libc::iovec; 4]> = bufs
                    .pieces_mut()
                    .iter_mut()
                    .map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() })
                    .collect();
                // SAFETY: the pieces are borrowed from buffers that only this function holds.
                let result = self.file.result_of(unsafe { sys::read_at(self.file.fd(), &pieces, offset) });
                if again::pause(result, 1).is_some() {
                    return Err(Op::Read { offset, bufs });
                }
                let outcome = sys::outcome_of_transfer(result, bufs.len_bytes(), false);
                Completed { outcome, bufs, extents: Vec::new() }
            }
            Op::Write { offset, data, fua } => {
                let pieces: SmallVec<[libc::iovec; 4]> = data
                    .pieces()
                    .iter()
                    .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
                    .collect();
                // SAFETY: the pieces are held by `data` and only read.
                let result = self.file.result_of(unsafe { sys::write_at(self.file.fd(), &pieces, offset, fua) });
                if again::pause(result, 1).is_some() && !fua {
                    return Err(Op::Write { offset, data, fua });
                }
                Completed::bare(sys::outcome_of_transfer(result, data.len_bytes(), true))
            }
            other => return Err(other),
        };
        Ok(Completion::ready(completed))
    }

    fn start(&self, request: Request) {
        if let Some(unsent) = executor::start_here(&self.shared, request) {
            self.shared.inboxes[0].send(Message::Start(unsent));
        }
    }

    /// A write under way, and a flush once it is done.
    fn then_flush(&self, written: Completion) -> Completion {
        let device = FileDevice::new(self.shared.clone(), self.file.clone());
        Completion::future(async move {
            let written = written.await;
            if written.outcome == Outcome::Done { device.submit(Op::Flush).await } else { written }
        })
    }

    fn block(&self, lane: &Lane, completer: Completer, work: impl FnOnce(&DeviceFile) -> Completed + Send + 'static) {
        let file = InFlight::new(&self.file);
        lane.submit(move || {
            let completed = work(&file);
            drop(file);
            completer.complete(completed);
        });
    }
}

impl Io for FileDevice {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if let Some(kind) = self.refusal(&op) {
            return Completion::failed(kind, op);
        }
        if op.range().1 == 0 && !matches!(op, Op::Flush) {
            return Completion::ready(Completed { outcome: Outcome::Done, bufs: op.into_bufs(), extents: Vec::new() });
        }
        let op = match self.at_once(op) {
            Ok(completion) => return completion,
            Err(op) => op,
        };
        let (completer, completion) = Completion::pair();
        let file = &self.file;
        match op {
            Op::Read { offset, bufs } => {
                self.start(Request::Read { file: InFlight::new(file), offset, bufs, completer });
            }
            Op::Write { offset, data, fua: true } if file.fua_by_flush => {
                self.start(Request::Write { file: InFlight::new(file), offset, data, fua: false, completer });
                return self.then_flush(completion);
            }
            Op::Write { offset, data, fua } => {
                self.start(Request::Write { file: InFlight::new(file), offset, data, fua, completer });
            }
            Op::WriteZeroes { offset, len, fua, may_unmap } => {
                self.block(&file.space, completer, move |file| Completed::bare(file.zero(offset, len, fua, may_unmap)))
            }
            Op::Discard { offset, len } => {
                self.block(&file.space, completer, move |file| Completed::bare(file.discard(offset, len)));
            }
            Op::Status { offset, len } => self.block(&file.space, completer, move |file| file.status(offset, len)),
            Op::Flush => {
                self.block(&file.flushes, completer, |file| Completed::bare(outcome_of(sys::fdatasync(file.fd()))));
            }
        }
        completion
    }
}
