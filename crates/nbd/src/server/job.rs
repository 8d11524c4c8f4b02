//! One request under way: what is asked of the cell, and what came of it.
//!
//! Never knows the connection; never fails without an errno.

use super::transmission::Link;
use crate::codec::{Command, Cookie, Errno, StatusExtent};
use crate::context::{ContextSet, MetaContext, STATE_HOLE, STATE_ZERO, TierFlags};
use cell::{Extent, RequestError, Tier, ZeroFlags};
use device::{Bufs, SharedBufs};
use std::sync::Arc;

/// A long READ is served in pieces of this many bytes: what the cell serves in one go, and what one reply chunk holds.
pub(super) const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Most extents in one BLOCK_STATUS answer per context: 8 KiB of reply.
const EXTENTS_MAX: usize = 1024;

/// The number of a long READ on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LongId(pub(super) u32);

/// What is to be done. Memory is in hand, except for the pieces of a long READ, which wait for theirs holding nothing.
pub(super) enum Job {
    /// `whole`: the reply is one chunk.
    Read {
        cookie: Cookie,
        offset: u64,
        bufs: Bufs,
        whole: bool,
    },
    ReadPiece {
        long: LongId,
        cookie: Cookie,
        offset: u64,
        len: u32,
    },
    Write {
        cookie: Cookie,
        offset: u64,
        data: SharedBufs,
        fua: bool,
    },
    Flush {
        cookie: Cookie,
    },
    Trim {
        cookie: Cookie,
        offset: u64,
        len: u32,
        fua: bool,
    },
    WriteZeroes {
        cookie: Cookie,
        offset: u64,
        len: u32,
        flags: ZeroFlags,
    },
    Cache {
        cookie: Cookie,
        offset: u64,
        len: u32,
    },
    Status {
        cookie: Cookie,
        offset: u64,
        len: u32,
        one: bool,
    },
}

/// What came of it.
pub(super) struct Finished {
    pub(super) cookie: Cookie,
    pub(super) command: Command,
    /// The first byte it was about.
    pub(super) offset: u64,
    /// Payload bytes it was charged with.
    pub(super) bytes: usize,
    pub(super) long: Option<LongId>,
    /// The data goes in one chunk.
    pub(super) whole: bool,
    pub(super) outcome: Result<Yield, RequestError>,
}

/// What a successful request yields.
pub(super) enum Yield {
    Nothing,
    Data(SharedBufs),
    Extents(Vec<Extent>),
}

/// Do it. Runs to its end whether or not the client is still there.
pub(super) async fn perform(link: Arc<Link>, job: Job) -> Finished {
    let session = &link.session;
    match job {
        Job::Read { cookie, offset, bufs, whole } => {
            let bytes = bufs.len_bytes();
            let outcome = read(&link, offset, bufs).await;
            Finished { cookie, command: Command::Read, offset, bytes, long: None, whole, outcome }
        }
        Job::ReadPiece { long, cookie, offset, len } => {
            let bufs = link.arena.alloc(len as usize).await;
            let outcome = read(&link, offset, bufs).await;
            Finished {
                cookie,
                command: Command::Read,
                offset,
                bytes: len as usize,
                long: Some(long),
                whole: false,
                outcome,
            }
        }
        Job::Write { cookie, offset, data, fua } => {
            let bytes = data.len_bytes();
            let outcome = session.write(offset, data, fua).await.map(|()| Yield::Nothing);
            Finished { cookie, command: Command::Write, offset, bytes, long: None, whole: false, outcome }
        }
        Job::Flush { cookie } => bare(cookie, Command::Flush, 0, session.flush().await),
        Job::Trim { cookie, offset, len, fua } => {
            bare(cookie, Command::Trim, offset, session.trim(offset, u64::from(len), fua).await)
        }
        Job::WriteZeroes { cookie, offset, len, flags } => {
            let result = session.write_zeroes(offset, u64::from(len), flags).await;
            bare(cookie, Command::WriteZeroes, offset, result)
        }
        Job::Cache { cookie, offset, len } => {
            bare(cookie, Command::Cache, offset, session.prefetch(offset, u64::from(len)).await)
        }
        Job::Status { cookie, offset, len, one } => {
            let extents_max = if one { 1 } else { EXTENTS_MAX };
            let outcome = session.extents(offset, u64::from(len), extents_max).await.map(Yield::Extents);
            Finished { cookie, command: Command::BlockStatus, offset, bytes: 0, long: None, whole: false, outcome }
        }
    }
}

async fn read(link: &Link, offset: u64, bufs: Bufs) -> Result<Yield, RequestError> {
    let (result, bufs) = link.session.read(offset, bufs).await;
    result.map(|()| Yield::Data(bufs.freeze()))
}

fn bare(cookie: Cookie, command: Command, offset: u64, result: Result<(), RequestError>) -> Finished {
    Finished { cookie, command, offset, bytes: 0, long: None, whole: false, outcome: result.map(|()| Yield::Nothing) }
}

/// The errno the protocol names for what went wrong.
pub(super) fn errno_of(error: RequestError, command: Command) -> Errno {
    match error {
        RequestError::Io => Errno::Io,
        RequestError::NoSpace => Errno::NoSpc,
        RequestError::OutOfRange if matches!(command, Command::Write | Command::WriteZeroes) => Errno::NoSpc,
        RequestError::OutOfRange => Errno::Inval,
        RequestError::ReadOnly => Errno::Perm,
        RequestError::NotSupported => Errno::NotSup,
        RequestError::Stopping => Errno::Shutdown,
    }
}

/// What each context says of `extents`, neighbours that say the same merged.
pub(super) fn status_of(extents: &[Extent], contexts: ContextSet) -> Vec<(u32, Vec<StatusExtent>)> {
    let says = |context: MetaContext, extent: &Extent| match context {
        MetaContext::Allocation if extent.hole => STATE_HOLE | STATE_ZERO,
        MetaContext::Allocation | MetaContext::Instance => 0,
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
