//! Models of devices: what they hold, and what they cost.
//!
//! Integers only, and nothing drawn but the jitter of a network, by seed: the same requests at the same times take the same time on every machine.
//! What the figures are is said in `devices`.

pub(crate) mod bucket;
pub(crate) mod content;
pub(crate) mod disk;
pub(crate) mod elevator;
pub(crate) mod flash;
pub(crate) mod network;
pub(crate) mod quantiles;
pub(crate) mod raid;
pub(crate) mod sparse;
pub(crate) mod translated;

use content::Content;
use device::sync::lock;
use device::{Class, Completed, Completion, Device, DeviceExtent, FailKind, Geometry, Io, Op, Outcome, Verb};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Time until a request is done.
pub(crate) type Cost = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a request costs.
pub(crate) trait Timing: Send + Sync {
    /// A request begins now; ready at its end.
    fn take(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost;
    /// Seeks cost time.
    fn is_rotational(&self) -> bool;
    /// A completed write is durable only after a flush.
    fn has_volatile_cache(&self) -> bool;
    /// The page that it says it has, where that is part of the model.
    fn claimed_page_bytes(&self) -> Option<u32> {
        None
    }
}

/// Nothing costs anything: what does is in front.
pub(crate) struct Instantly;

impl Timing for Instantly {
    fn take(&self, _: Verb, _: u64, _: u64, _: bool) -> Cost {
        Box::pin(std::future::ready(()))
    }

    fn is_rotational(&self) -> bool {
        false
    }

    /// As of a file, which is what the same has in the real world.
    fn has_volatile_cache(&self) -> bool {
        true
    }
}

/// A device that keeps what another keeps, and takes as long as a model says.
pub(crate) struct Timed {
    inner: Device,
    timing: Arc<dyn Timing>,
}

impl Timed {
    /// `inner` answers at once.
    pub(crate) fn new(inner: Device, timing: Arc<dyn Timing>) -> Arc<Timed> {
        Arc::new(Timed { inner, timing })
    }
}

impl Io for Timed {
    fn geometry(&self) -> Geometry {
        let is_rotational = self.timing.is_rotational();
        let inner = self.inner.geometry();
        Geometry {
            rotational: is_rotational,
            volatile_cache: self.timing.has_volatile_cache(),
            discard_bytes: if is_rotational { 0 } else { 4096 },
            fast_zeroes: false,
            page_bytes: self.timing.claimed_page_bytes().unwrap_or(inner.page_bytes),
            ..inner
        }
    }

    fn submit(&self, op: Op) -> Completion {
        let (verb, (offset, len)) = (op.verb(), op.range());
        let size_bytes = self.inner.geometry().size_bytes;
        if offset.checked_add(len).is_none_or(|end| end > size_bytes) {
            return Completion::failed(FailKind::Invalid, op);
        }
        let is_durable = matches!(op, Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. });
        let (cost, inner) = (self.timing.take(verb, offset, len, is_durable), self.inner.clone());
        Completion::future(async move {
            cost.await;
            inner.submit(op).await
        })
    }
}

/// A device of the virtual world: content, and the time it takes.
pub(crate) struct Modelled {
    timing: Arc<dyn Timing>,
    /// None: reads answer zeroes, writes are forgotten.
    content: Option<Arc<Mutex<Content>>>,
    size_bytes: u64,
    /// Requests and bytes of reads, then of writes; writes that did not fill pages of 4 KiB.
    counts: Arc<[AtomicU64; 5]>,
}

/// What a device was asked for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
}

impl Asked {
    /// What was asked for since then.
    pub(crate) fn since(self, then: Asked) -> Asked {
        Asked {
            reads: self.reads - then.reads,
            read_bytes: self.read_bytes - then.read_bytes,
            writes: self.writes - then.writes,
            written_bytes: self.written_bytes - then.written_bytes,
        }
    }
}

impl Modelled {
    pub(crate) fn new(timing: Arc<dyn Timing>, size_bytes: u64, keeps_content: bool) -> Arc<Modelled> {
        let content = keeps_content.then(|| Arc::new(Mutex::new(Content::new(size_bytes))));
        Arc::new(Modelled { timing, content, size_bytes, counts: Arc::default() })
    }

    /// The same medium as a device.
    pub(crate) fn device(self: &Arc<Self>) -> Device {
        self.clone()
    }

    /// A database's pages are there from `offset` on, as they were first written.
    pub(crate) fn fill(&self, offset: u64, len: u64) {
        if let Some(content) = &self.content {
            lock(content).fill(offset, len);
        }
    }

    /// Writes so far that did not fill pages of 4 KiB.
    pub(crate) fn parts_of_pages(&self) -> u64 {
        self.counts[4].load(Ordering::Relaxed)
    }

    pub(crate) fn asked(&self) -> Asked {
        let of = |n: usize| self.counts[n].load(Ordering::Relaxed);
        Asked { reads: of(0), read_bytes: of(1), writes: of(2), written_bytes: of(3) }
    }
}

impl Io for Modelled {
    fn geometry(&self) -> Geometry {
        let is_rotational = self.timing.is_rotational();
        Geometry {
            size_bytes: self.size_bytes,
            logical_bytes: 512,
            page_bytes: self.timing.claimed_page_bytes().unwrap_or(if is_rotational { 512 } else { 4096 }),
            rotational: self.timing.is_rotational(),
            volatile_cache: self.timing.is_rotational() || self.timing.has_volatile_cache(),
            discard_bytes: if self.timing.is_rotational() { 0 } else { 4096 },
            fast_zeroes: false,
            transfer_bytes_max: 4 << 20,
            class: Class::Durable,
        }
    }

    fn submit(&self, op: Op) -> Completion {
        let (verb, (offset, len)) = (op.verb(), op.range());
        if offset % 512 != 0 || len % 512 != 0 || offset.checked_add(len).is_none_or(|end| end > self.size_bytes) {
            return Completion::failed(FailKind::Invalid, op);
        }
        if let Some(at) = [Verb::Read, Verb::Write].iter().position(|v| *v == verb) {
            self.counts[2 * at].fetch_add(1, Ordering::Relaxed);
            self.counts[2 * at + 1].fetch_add(len, Ordering::Relaxed);
        }
        if matches!(verb, Verb::Write | Verb::WriteZeroes) && (offset % 4096 != 0 || len % 4096 != 0) {
            self.counts[4].fetch_add(1, Ordering::Relaxed);
        }
        let is_durable = matches!(op, Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. });
        let cost = self.timing.take(verb, offset, len, is_durable);
        let content = self.content.clone();
        Completion::future(async move {
            cost.await;
            let mut completed = Completed::bare(Outcome::Done);
            match op {
                Op::Read { offset, mut bufs } => {
                    match &content {
                        Some(content) => lock(content).read(offset, &mut bufs),
                        None => bufs.fill_zero(0..bufs.len_bytes()),
                    }
                    completed.bufs = bufs;
                }
                Op::Write { offset, data, .. } => {
                    if let Some(content) = &content {
                        lock(content).write(offset, &data);
                    }
                }
                Op::WriteZeroes { offset, len, .. } | Op::Discard { offset, len } => {
                    if let Some(content) = &content {
                        lock(content).zero(offset, len);
                    }
                }
                Op::Flush => {}
                Op::Status { len, .. } => completed.extents = vec![DeviceExtent { len, hole: false }],
            }
            completed
        })
    }
}
