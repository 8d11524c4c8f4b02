//! The I/O seam: one device, a closed set of verbs, an outcome that tells the truth.
//!
//! A layer (delay, fault, stats, trace) is an [`Io`] over an [`Io`]: it sees every verb as one [`Op`]. No verb has a
//! default body, so a layer cannot forget one. A device never splits and never hides a short transfer;
//! what it tries again has not been answered yet.

use crate::buf::{Bufs, SharedBufs};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Whether what a device acknowledged as flushed survives a stop of the host (DESIGN I1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Survives a power cut of the whole machine.
    Durable,
    /// May be gone when the host stops (cloud instance store): may cache, acknowledges nothing alone.
    Ephemeral,
}

/// What a device is. Answered from the floor up; a layer may only narrow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Usable bytes.
    pub size_bytes: u64,
    /// Smallest unit of an offset or a length, and the alignment of memory: 512 or 4096 (or 1 for memory devices).
    pub logical_bytes: u32,
    /// The unit the medium really writes: records that must not be torn or cost a read-modify-write are padded to it.
    pub page_bytes: u32,
    /// Seeks cost time: sort and merge.
    pub rotational: bool,
    /// A completed write is durable only after a flush.
    pub volatile_cache: bool,
    /// Unit of discard, 0 when the device has none.
    pub discard_bytes: u32,
    /// `WriteZeroes` is much faster than writing zeroes (a hole punch, a zone reset).
    pub fast_zeroes: bool,
    /// Largest single transfer; longer ones are split by the caller.
    pub transfer_bytes_max: u32,
    /// Durability class.
    pub class: Class,
}

/// One request to a device. Offsets and lengths are bytes, multiples of [`Geometry::logical_bytes`].
#[derive(Debug)]
pub enum Op {
    /// Fill `bufs` from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Where to; comes back in [`Completed::bufs`], whatever the outcome.
        bufs: Bufs,
    },
    /// Write `data` at `offset`; with `fua` it is durable when done.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes, in order.
        data: SharedBufs,
        /// Durable before completion.
        fua: bool,
    },
    /// Make a range read as zeroes. `may_unmap`: the space may be given back.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Durable before completion.
        fua: bool,
        /// The space may be given back to the device.
        may_unmap: bool,
    },
    /// Tell the device that the content is dead. What it reads as afterwards is not promised.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Every write, zero and discard completed before this was issued is durable when done.
    Flush,
    /// Which parts of a range hold data, as far as the device can tell cheaply.
    Status {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// The kind of an [`Op`], for counters and layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// [`Op::Read`].
    Read,
    /// [`Op::Write`].
    Write,
    /// [`Op::WriteZeroes`].
    WriteZeroes,
    /// [`Op::Discard`].
    Discard,
    /// [`Op::Flush`].
    Flush,
    /// [`Op::Status`].
    Status,
}

impl Verb {
    /// Every verb, in declaration order.
    pub const ALL: [Verb; 6] = [Verb::Read, Verb::Write, Verb::WriteZeroes, Verb::Discard, Verb::Flush, Verb::Status];
}

impl Op {
    /// The verb of this request.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Op::Read { .. } => Verb::Read,
            Op::Write { .. } => Verb::Write,
            Op::WriteZeroes { .. } => Verb::WriteZeroes,
            Op::Discard { .. } => Verb::Discard,
            Op::Flush => Verb::Flush,
            Op::Status { .. } => Verb::Status,
        }
    }

    /// First byte and length in bytes; `(0, 0)` for a flush.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match self {
            Op::Read { offset, bufs } => (*offset, bufs.len_bytes() as u64),
            Op::Write { offset, data, .. } => (*offset, data.len_bytes() as u64),
            Op::WriteZeroes { offset, len, .. } | Op::Discard { offset, len } | Op::Status { offset, len } => {
                (*offset, *len)
            }
            Op::Flush => (0, 0),
        }
    }

    /// The buffers of a read, none for the rest: what a driver gives back when it refuses a request.
    #[must_use]
    pub fn into_bufs(self) -> Bufs {
        match self {
            Op::Read { bufs, .. } => bufs,
            _ => Bufs::new(),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailKind {
    /// The medium could not read or write it (EIO).
    #[error("medium error")]
    Media,
    /// No space (ENOSPC, EDQUOT): a sparse image on a full file system, a thin volume of a full pool. Nothing is wrong with the medium:
    /// the same request succeeds once there is room.
    #[error("no space left below the device")]
    NoSpace,
    /// The device does not have this verb.
    #[error("not supported by the device")]
    Unsupported,
    /// The device is gone (ENODEV, ENXIO, connection lost).
    #[error("device gone")]
    Gone,
    /// The request does not fit the device (alignment, range): a programmer error above.
    #[error("invalid request")]
    Invalid,
    /// Any other errno.
    #[error("errno {0}")]
    Errno(i32),
}

/// What became of a request. Anything but `Done` is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it happened.
    Done,
    /// Only the first so many bytes were transferred.
    Short(u64),
    /// It did not happen (a write may have been torn).
    Failed(FailKind),
    /// It may or may not have happened and may still happen.
    Unknown,
}

impl Outcome {
    /// `Ok` only for [`Outcome::Done`]. A short transfer counts as a medium error, an unknown outcome as a device gone.
    ///
    /// # Errors
    /// The kind of failure.
    pub fn ok(self) -> Result<(), FailKind> {
        match self {
            Outcome::Done => Ok(()),
            Outcome::Short(_) => Err(FailKind::Media),
            Outcome::Failed(kind) => Err(kind),
            Outcome::Unknown => Err(FailKind::Gone),
        }
    }
}

/// One stretch of [`Op::Status`]'s answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Bytes.
    pub len: u64,
    /// No space is allocated and it reads as zeroes.
    pub hole: bool,
}

/// A finished request.
#[derive(Debug)]
pub struct Completed {
    /// What became of it.
    pub outcome: Outcome,
    /// The buffers of a read; empty for other verbs. On failure their content is undefined.
    pub bufs: Bufs,
    /// The answer of [`Op::Status`], covering the range from its start; empty for other verbs.
    pub extents: Vec<DeviceExtent>,
}

impl Completed {
    /// A completion without buffers.
    #[must_use]
    pub fn bare(outcome: Outcome) -> Completed {
        Completed { outcome, bufs: Bufs::new(), extents: Vec::new() }
    }
}

/// A device: the seam. Any thread may submit.
pub trait Io: Send + Sync {
    /// What the device is. Cheap; may grow in size while open.
    fn geometry(&self) -> Geometry;
    /// Start a request. It is under way when this returns; dropping the completion does not cancel it, the driver
    /// owns its buffers until it is finished.
    fn submit(&self, op: Op) -> Completion;
}

/// A device as it is handed around.
pub type Device = Arc<dyn Io>;

impl dyn Io {
    /// Fill `bufs` from `offset`.
    pub fn read(&self, offset: u64, bufs: Bufs) -> Completion {
        self.submit(Op::Read { offset, bufs })
    }
    /// Write `data` at `offset`.
    pub fn write(&self, offset: u64, data: SharedBufs, fua: bool) -> Completion {
        self.submit(Op::Write { offset, data, fua })
    }
    /// Make durable what has completed.
    pub fn flush(&self) -> Completion {
        self.submit(Op::Flush)
    }
    /// Zero a range.
    pub fn write_zeroes(&self, offset: u64, len: u64, fua: bool, may_unmap: bool) -> Completion {
        self.submit(Op::WriteZeroes { offset, len, fua, may_unmap })
    }
    /// Tell that a range is dead.
    pub fn discard(&self, offset: u64, len: u64) -> Completion {
        self.submit(Op::Discard { offset, len })
    }
}

/// The future of a submitted request.
pub struct Completion(Inner);

enum Inner {
    Ready(Option<Completed>),
    Slot(Arc<Slot>),
    Future(Pin<Box<dyn Future<Output = Completed> + Send>>),
}

/// Shared between a driver and the one task that waits.
struct Slot(Mutex<SlotState>);

enum SlotState {
    Waiting(Option<Waker>),
    Finished(Option<Completed>),
}

/// The driver's end of a [`Completion`]: fulfil it exactly once. Dropping it unfulfilled answers [`Outcome::Unknown`].
pub struct Completer(Option<Arc<Slot>>);

impl Completion {
    /// Already finished.
    #[must_use]
    pub fn ready(completed: Completed) -> Completion {
        Completion(Inner::Ready(Some(completed)))
    }

    /// Finished with a failure, the buffers given back.
    #[must_use]
    pub fn failed(kind: FailKind, op: Op) -> Completion {
        Completion::ready(Completed { outcome: Outcome::Failed(kind), bufs: op.into_bufs(), extents: Vec::new() })
    }

    /// A pair: the driver keeps the completer.
    #[must_use]
    pub fn pair() -> (Completer, Completion) {
        let slot = Arc::new(Slot(Mutex::new(SlotState::Waiting(None))));
        (Completer(Some(slot.clone())), Completion(Inner::Slot(slot)))
    }

    /// A layer's own future. The future must make progress by itself only while polled, so a layer that must finish
    /// what it started whether or not anybody waits spawns a task and uses [`Completion::pair`].
    #[must_use]
    pub fn future(future: impl Future<Output = Completed> + Send + 'static) -> Completion {
        Completion(Inner::Future(Box::pin(future)))
    }
}

impl Completer {
    /// Deliver the result and wake who waits.
    pub fn complete(mut self, completed: Completed) {
        if let Some(slot) = self.0.take() {
            slot.finish(completed);
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.finish(Completed::bare(Outcome::Unknown));
        }
    }
}

impl Slot {
    fn finish(&self, completed: Completed) {
        let before = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, SlotState::Finished(Some(completed)))
        };
        match before {
            SlotState::Waiting(Some(waker)) => waker.wake(),
            SlotState::Waiting(None) => {}
            SlotState::Finished(_) => unreachable!("a request completes once"),
        }
    }
}

impl Future for Completion {
    type Output = Completed;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completed> {
        match &mut self.0 {
            Inner::Ready(done) => match done.take() {
                Some(completed) => Poll::Ready(completed),
                None => unreachable!("a completion is awaited once"),
            },
            Inner::Future(future) => future.as_mut().poll(cx),
            Inner::Slot(slot) => {
                let mut state = slot.0.lock().unwrap_or_else(PoisonError::into_inner);
                match &mut *state {
                    SlotState::Finished(done) => match done.take() {
                        Some(completed) => Poll::Ready(completed),
                        None => unreachable!("a completion is awaited once"),
                    },
                    SlotState::Waiting(waker) => {
                        match waker {
                            Some(old) if old.will_wake(cx.waker()) => {}
                            _ => *waker = Some(cx.waker().clone()),
                        }
                        Poll::Pending
                    }
                }
            }
        }
    }
}
