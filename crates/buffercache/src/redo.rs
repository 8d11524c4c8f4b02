//! Redo: what a commit waits for. Sessions that commit at the same time share a write.
//!
//! It has the order and the cost of redo, not its content: nothing is ever replayed from it.

use device::sync::{Notify, lock};
use device::{Buf, Bufs, Device, FailKind, SharedBufs};
use std::sync::Mutex;

/// The longest single write of redo.
const WRITE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default)]
struct State {
    /// Changes made so far: each has a number, from 1.
    made: u64,
    /// Bytes of redo of those that are not being written.
    waiting_bytes: u64,
    /// The last change whose redo is durable.
    durable: u64,
    is_writing: bool,
    offset: u64,
    failed: Option<FailKind>,
    writes: u64,
}

/// See the module.
pub struct RedoLog {
    device: Device,
    unit_bytes: u64,
    /// What is written, again and again.
    content: SharedBufs,
    state: Mutex<State>,
    done: Notify,
}

/// The writer of redo is this task: when it ends, however it does, another may be.
struct Writing<'a>(&'a RedoLog);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).is_writing = false;
        self.0.done.notify_all();
    }
}

impl RedoLog {
    /// A log on this device, from its beginning on, round and round.
    #[must_use]
    pub fn new(device: Device) -> RedoLog {
        let geometry = device.geometry();
        let unit_bytes = u64::from(geometry.logical_bytes.max(geometry.page_bytes)).max(512);
        let content = Bufs::from(Buf::zeroed(WRITE_BYTES_MAX as usize)).freeze();
        RedoLog { device, unit_bytes, content, state: Mutex::default(), done: Notify::new() }
    }

    /// A change with so many bytes of redo; its number.
    pub(crate) fn append(&self, bytes: u64) -> u64 {
        let mut state = lock(&self.state);
        state.made += 1;
        state.waiting_bytes += bytes;
        state.made
    }

    /// The number of the last change.
    pub(crate) fn last(&self) -> u64 {
        lock(&self.state).made
    }

    /// The number of the last change whose redo is durable.
    pub(crate) fn durable(&self) -> u64 {
        lock(&self.state).durable
    }

    /// Writes so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        lock(&self.state).writes
    }

    /// Ready when the redo of this change, and of all before it, is durable.
    pub(crate) async fn force(&self, change: u64) -> Result<(), FailKind> {
        loop {
            let ticket = self.done.ticket();
            let (upto, offset, bytes) = {
                let mut state = lock(&self.state);
                if let Some(kind) = state.failed {
                    return Err(kind);
                }
                if state.durable >= change {
                    return Ok(());
                }
                if state.is_writing {
                    (0, 0, 0)
                } else {
                    state.is_writing = true;
                    state.writes += 1;
                    let bytes = state.waiting_bytes.max(1).next_multiple_of(self.unit_bytes);
                    if state.offset + bytes > self.device.geometry().size_bytes {
                        state.offset = 0;
                    }
                    let offset = state.offset;
                    state.offset += bytes;
                    state.waiting_bytes = 0;
                    (state.made, offset, bytes)
                }
            };
            if bytes == 0 {
                self.done.wait(ticket).await;
                continue;
            }
            let writing = Writing(self);
            let (mut outcome, mut written) = (Ok(()), 0);
            while written < bytes && outcome.is_ok() {
                let piece = (bytes - written).min(WRITE_BYTES_MAX);
                let data = self.content.slice(0..piece as usize);
                outcome = self.device.write(offset + written, data, true).await.outcome.ok();
                written += piece;
            }
            {
                let mut state = lock(&self.state);
                match outcome {
                    Ok(()) => state.durable = upto,
                    Err(kind) => state.failed = Some(kind),
                }
            }
            drop(writing);
        }
    }
}

impl std::fmt::Debug for RedoLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedoLog({:?})", lock(&self.state))
    }
}
