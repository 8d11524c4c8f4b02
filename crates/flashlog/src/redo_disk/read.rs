//! Reads, and what else is asked of the disk: overlaid with what the disk has not taken.
//!
//! Never shows older bytes than were acknowledged.

use super::RedoDisk;
use crate::ledger::Content;
use crate::sabotage::Sabotage;
use device::sync::lock;
use device::{Bufs, Completed, Completion, DeviceExtent, FailKind, Op, Outcome};
use std::sync::Arc;

impl RedoDisk {
    pub(super) fn read(&self, offset: u64, bufs: Bufs) -> Completion {
        let range = offset..offset + bufs.len_bytes() as u64;
        // In doubt until its disk takes something there, or its label says that nothing counts in the ring that failed.
        let Ok(mut over) = lock(&self.state).ledger.overlay(&range) else {
            return Completion::failed(FailKind::Media, Op::Read { offset, bufs });
        };
        if self.sabotaged(Sabotage::SavedRedoForgotten) {
            over.clear();
        }
        if over.is_empty() {
            return self.disk.read(offset, bufs);
        }
        let all = over.iter().map(|(r, _)| r.end - r.start).sum::<u64>() == range.end - range.start;
        let disk = self.disk.clone();
        Completion::future(async move {
            let mut done = if all {
                Completed { outcome: Outcome::Done, bufs, extents: Vec::new() }
            } else {
                disk.read(offset, bufs).await
            };
            if done.outcome == Outcome::Done {
                for (piece, content) in over {
                    let (at, len) = ((piece.start - offset) as usize, (piece.end - piece.start) as usize);
                    match content {
                        Content::Data(data) => done.bufs.copy_in_rope(at, &data),
                        _ => done.bufs.fill_zero(at..at + len),
                    }
                }
            }
            done
        })
    }

    /// What a client could find out from the disk may be old where a write has not arrived, and must not be found out where nobody may read.
    pub(super) fn status(&self, offset: u64, len: u64) -> Completion {
        let range = offset..offset + len;
        let is_unknown = {
            let state = lock(&self.state);
            state.ledger.is_busy(&range) || state.ledger.overlay(&range).is_err()
        };
        if is_unknown {
            let extents = vec![DeviceExtent { len, hole: false }];
            return Completion::ready(Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents });
        }
        self.disk.submit(Op::Status { offset, len })
    }

    /// A discarded range may read as anything: only what is in flight must not come after it.
    pub(super) async fn discard(self: Arc<Self>, offset: u64, len: u64) -> Outcome {
        loop {
            let ticket = self.changed.ticket();
            if !lock(&self.state).ledger.is_busy(&(offset..offset + len)) {
                return self.disk.discard(offset, len).await.outcome;
            }
            self.changed.wait(ticket).await;
        }
    }
}
