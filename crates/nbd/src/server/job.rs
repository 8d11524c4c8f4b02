//! One request under way: what is asked of the cell, and what came of it.
//!
//! Never knows the connection; never fails without an errno.

use super::account::Held;
use super::kin::Predecessors;
use super::transmission::Link;
use crate::codec::{Command, Cookie, Errno, StatusExtent};
use crate::context::{ContextSet, MetaContext, STATE_HOLE, STATE_ZERO, TierFlags};
use cell::{Allocation, Extent, RequestError, Tier, ZeroFlags};
use device::sync::lock;
use device::{Bufs, SharedBufs};
use std::sync::{Arc, Mutex};

/// A long READ is served in pieces of this many bytes: what the cell serves in one go, and what one reply chunk holds.
pub(super) const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Extents in a BLOCK_STATUS answer per slot that is held for it: what they take is counted with requests.
pub(super) const EXTENTS_PER_SLOT: usize = 64;
/// Most extents in one BLOCK_STATUS answer per context: 8 KiB of reply.
pub(super) const EXTENTS_MAX: usize = 1024;

/// A request that is served in parts. Its parts own it, and whoever holds the last handle ends it: no part, no request.
pub(super) struct Whole {
    pub(super) cookie: Cookie,
    pub(super) command: Command,
    /// Its slot.
    pub(super) held: Held,
    /// What went wrong first, and where.
    failed: Mutex<Option<(RequestError, u64)>>,
}

impl Whole {
    pub(super) fn new(cookie: Cookie, command: Command, held: Held) -> Arc<Whole> {
        Arc::new(Whole { cookie, command, held, failed: Mutex::new(None) })
    }

    /// A part from `offset` on has failed.
    pub(super) fn fail(&self, error: RequestError, offset: u64) {
        lock(&self.failed).get_or_insert((error, offset));
    }

    /// What went wrong first, and where.
    pub(super) fn failed(&self) -> Option<(RequestError, u64)> {
        *lock(&self.failed)
    }
}

/// Which request a job is for.
pub(super) enum Of {
    /// It is all of this one; its slot is held by the job.
    All { cookie: Cookie, command: Command },
    /// It is a part of this one.
    Part(Arc<Whole>),
}

/// One thing to do, and what is held for it.
pub(super) struct Job {
    pub(super) of: Of,
    pub(super) held: Held,
    /// The first byte it is about.
    pub(super) offset: u64,
    pub(super) task: Task,
    /// What has to be over before it begins.
    pub(super) after: Option<Box<Predecessors>>,
}

/// What is to be done. Memory is in hand.
pub(super) enum Task {
    /// `one_chunk`: the reply is not to be cut.
    Read {
        bufs: Bufs,
        one_chunk: bool,
    },
    Write {
        data: SharedBufs,
        fua: bool,
    },
    Flush,
    Trim {
        len: u32,
        fua: bool,
    },
    WriteZeroes {
        len: u32,
        flags: ZeroFlags,
    },
    Cache {
        len: u32,
    },
    Status {
        len: u32,
        extents_max: usize,
    },
}

/// What came of it.
pub(super) struct Finished {
    pub(super) of: Of,
    pub(super) held: Held,
    pub(super) offset: u64,
    pub(super) outcome: Result<Yield, RequestError>,
}

/// What a successful job yields.
pub(super) enum Yield {
    Nothing,
    /// So many bytes are written.
    Written(usize),
    /// `one_chunk`: not to be cut.
    Data {
        data: SharedBufs,
        one_chunk: bool,
    },
    Extents(Vec<Extent>),
}

/// Do it. Runs to its end whether or not the client is still there; a change that has not begun when the client's connection ends does nothing.
pub(super) async fn perform(link: Arc<Link>, job: Job) -> Finished {
    let session = &link.session;
    let Job { of, held, offset, task, after } = job;
    if let Some(after) = after
        && let Err(error) = after.over().await
    {
        return Finished { of, held, offset, outcome: Err(error) };
    }
    // The future of every request is as large as the largest branch here. A prefetch is rare, so its branch is boxed.
    let outcome = match task {
        Task::Read { bufs, one_chunk } => read(&link, offset, bufs, one_chunk).await,
        Task::Write { data, fua } => {
            let bytes = data.len_bytes();
            session.write(offset, data, fua).await.map(|()| Yield::Written(bytes))
        }
        Task::Flush => session.flush().await.map(|()| Yield::Nothing),
        Task::Trim { len, fua } => session.trim(offset, u64::from(len), fua).await.map(|()| Yield::Nothing),
        Task::WriteZeroes { len, flags } => {
            session.write_zeroes(offset, u64::from(len), flags).await.map(|()| Yield::Nothing)
        }
        Task::Cache { len } => Box::pin(session.prefetch(offset, u64::from(len))).await.map(|()| Yield::Nothing),
        Task::Status { len, extents_max } => {
            session.extents(offset, u64::from(len), extents_max).await.map(Yield::Extents)
        }
    };
    Finished { of, held, offset, outcome }
}

async fn read(link: &Link, offset: u64, bufs: Bufs, one_chunk: bool) -> Result<Yield, RequestError> {
    let (result, bufs) = link.session.read(offset, bufs).await;
    result.map(|()| Yield::Data { data: bufs.freeze(), one_chunk })
}

/// The errno the protocol names for what went wrong.
pub(super) fn errno_of(error: RequestError, command: Command) -> Errno {
    match error {
        RequestError::Io | RequestError::Predecessor => Errno::Io,
        RequestError::NoSpace => Errno::NoSpc,
        RequestError::OutOfRange if matches!(command, Command::Write | Command::WriteZeroes) => Errno::NoSpc,
        RequestError::OutOfRange => Errno::Inval,
        RequestError::ReadOnly => Errno::Perm,
        RequestError::NotSupported => Errno::NotSup,
        RequestError::Stopping | RequestError::Fenced => Errno::Shutdown,
    }
}

/// What each context says of `extents`, neighbours that say the same merged.
pub(super) fn status_of(extents: &[Extent], contexts: ContextSet) -> Vec<(u32, Vec<StatusExtent>)> {
    let says = |context: MetaContext, extent: &Extent| match context {
        MetaContext::Allocation => match extent.allocation {
            Allocation::Hole => STATE_HOLE | STATE_ZERO,
            Allocation::Zeroes => STATE_ZERO,
            Allocation::Data => 0,
        },
        MetaContext::Instance => 0,
        MetaContext::Tier => match extent.tier {
            Tier::Disk => TierFlags::Disk as u32,
            Tier::CachedClean => TierFlags::CachedClean as u32,
            Tier::CachedDirty => TierFlags::CachedDirty as u32,
            Tier::Kept => TierFlags::Kept as u32,
        },
    };
    contexts
        .iter()
        .map(|context| {
            let mut merged: Vec<StatusExtent> = Vec::new();
            for extent in extents {
                // Within the request, whose length is 32 bits.
                let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
                let flags = says(context, extent);
                match merged.last_mut() {
                    Some(last) if last.flags == flags => last.len = last.len.saturating_add(len),
                    _ => merged.push(StatusExtent { len, flags }),
                }
            }
            (context.id(), merged)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Transmission` moves the future of every request into its list of jobs. At 7,648 bytes those moves were a seventh of the server's
    /// user time for 4 KiB requests. Rare branches are boxed where they are awaited.
    const REQUEST_BYTES_MAX: usize = 3328;

    fn bytes<A, B, F: Future>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_request_takes_little_memory() {
        let bytes = bytes(perform);
        assert!(bytes <= REQUEST_BYTES_MAX, "{bytes} bytes of future for each request");
    }
}
