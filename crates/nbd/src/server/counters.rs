//! What the front end has done, in numbers.
//!
//! Sessions tally their requests by themselves and add them up here once per batch, so that threads do not fight for
//! the same cache lines with every request.

use super::hosts::Traffic;
use crate::codec::{Command, Errno};
use std::sync::atomic::{AtomicU64, Ordering};

/// Commands by kind; the last is for unknown ones.
const KINDS: usize = 9;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) connections_closed: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) cut_off: AtomicU64,
    pub(super) tls: AtomicU64,
    pub(super) tls_failed: AtomicU64,
    requests: [AtomicU64; KINDS],
    errors: [AtomicU64; Errno::ALL.len()],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    replies: AtomicU64,
    batches: AtomicU64,
}

/// A reading of the front end's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontEndStats {
    /// Connections accepted.
    pub connections: u64,
    /// Of those, open now (handshake included).
    pub connections_open: u64,
    /// Failed accepts (out of descriptors).
    pub accept_errors: u64,
    /// Connections closed because their bytes were not the protocol.
    pub malformed: u64,
    /// Connections closed by a time-out.
    pub timed_out: u64,
    /// Connections closed because they held more than their share, made no progress, and others waited.
    pub cut_off: u64,
    /// Connections over which TLS came about.
    pub tls: u64,
    /// Connections closed because it did not.
    pub tls_failed: u64,
    /// Requests: READ.
    pub reads: u64,
    /// Requests: WRITE.
    pub writes: u64,
    /// Requests: FLUSH.
    pub flushes: u64,
    /// Requests: TRIM.
    pub trims: u64,
    /// Requests: CACHE.
    pub caches: u64,
    /// Requests: WRITE_ZEROES.
    pub write_zeroes: u64,
    /// Requests: BLOCK_STATUS.
    pub block_statuses: u64,
    /// Requests: DISC.
    pub disconnects: u64,
    /// Requests with an unknown command.
    pub unknown: u64,
    /// Error replies by errno, in the order of [`Errno::ALL`].
    pub errors: [u64; Errno::ALL.len()],
    /// Bytes of successful reads.
    pub bytes_read: u64,
    /// Bytes of successful writes.
    pub bytes_written: u64,
    /// Replies sent.
    pub replies: u64,
    /// Calls it took to send them.
    pub batches: u64,
}

impl FrontEndStats {
    /// Requests of all kinds.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads
            + self.writes
            + self.flushes
            + self.trims
            + self.caches
            + self.write_zeroes
            + self.block_statuses
            + self.disconnects
            + self.unknown
    }

    /// Error replies with `errno`.
    #[must_use]
    pub fn errors_of(&self, errno: Errno) -> u64 {
        self.errors[index(errno)]
    }
}

fn index(errno: Errno) -> usize {
    Errno::ALL.iter().position(|e| *e == errno).unwrap_or(0)
}

fn kind(command: Command) -> usize {
    match command {
        Command::Unknown(_) => KINDS - 1,
        known => usize::from(known.to_wire()),
    }
}

/// One session's counts since it last added them up.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: [u32; KINDS],
    errors: [u32; Errno::ALL.len()],
    bytes_read: u64,
    bytes_written: u64,
    replies: u64,
    batches: u64,
}

impl Tally {
    pub(super) fn request(&mut self, command: Command) {
        self.requests[kind(command)] += 1;
    }
    pub(super) fn error(&mut self, errno: Errno) {
        self.errors[index(errno)] += 1;
    }
    pub(super) fn read(&mut self, bytes: u64) {
        self.bytes_read += bytes;
    }
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.bytes_written += bytes;
    }
    pub(super) fn batch(&mut self, replies: u64) {
        self.replies += replies;
        self.batches += 1;
    }

    /// Add everything to the totals, those of the client's host too, and start again.
    pub(super) fn add_to(&mut self, counters: &Counters, host: &Traffic) {
        let add = |total: &AtomicU64, n: u64| {
            if n > 0 && cfg!(not(uncounted)) {
                total.fetch_add(n, Ordering::Relaxed);
            }
        };
        for (total, n) in counters.requests.iter().zip(&self.requests) {
            add(total, u64::from(*n));
        }
        for (total, n) in counters.errors.iter().zip(&self.errors) {
            add(total, u64::from(*n));
        }
        host.add(self.bytes_read, self.bytes_written);
        add(&counters.bytes_read, self.bytes_read);
        add(&counters.bytes_written, self.bytes_written);
        add(&counters.replies, self.replies);
        add(&counters.batches, self.batches);
        *self = Tally::default();
    }
}

impl Counters {
    pub(super) fn snapshot(&self) -> FrontEndStats {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let requests = |command| load(&self.requests[kind(command)]);
        let connections_closed = load(&self.connections_closed);
        let connections = load(&self.connections);
        FrontEndStats {
            connections,
            connections_open: connections.saturating_sub(connections_closed),
            accept_errors: load(&self.accept_errors),
            malformed: load(&self.malformed),
            timed_out: load(&self.timed_out),
            cut_off: load(&self.cut_off),
            tls: load(&self.tls),
            tls_failed: load(&self.tls_failed),
            reads: requests(Command::Read),
            writes: requests(Command::Write),
            flushes: requests(Command::Flush),
            trims: requests(Command::Trim),
            caches: requests(Command::Cache),
            write_zeroes: requests(Command::WriteZeroes),
            block_statuses: requests(Command::BlockStatus),
            disconnects: requests(Command::Disconnect),
            unknown: requests(Command::Unknown(u16::MAX)),
            errors: std::array::from_fn(|i| load(&self.errors[i])),
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            replies: load(&self.replies),
            batches: load(&self.batches),
        }
    }
}
