//! What clients may use of the front end.

use crate::codec::{PAYLOAD_BYTES_MAX, UNFRAGMENTED_BYTES_MIN};
use device::buf::PAGE_BYTES;
use std::time::Duration;

/// What a connection has of the payload memory for itself, at least: two pages, so that a request at any offset can go on.
const OWN_BYTES_MIN: usize = 2 * PAGE_BYTES;

/// Limits of a [`super::FrontEnd`]. Whoever reaches one waits; only time-outs close a connection. The bytes in flight
/// over all connections are bounded by the arena. Half of the memory and of the requests belongs to connections in equal parts, the
/// rest is lent to those that want more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontEndLimits {
    /// Connections at a time; further ones wait in the backlog. Each costs some 20 KiB while idle,
    /// some 70 KiB over TLS. Fewer where there is little memory, so that each has some of its own.
    pub connections_max: usize,
    /// Of these, those at doors with TLS that have not shown a certificate yet: strangers cannot take the places of clients. A further one
    /// is taken, and the oldest of the host with most strangers is closed: an administrator's handshake is over before that.
    pub unproven_max: usize,
    /// Of these, those from elsewhere that show no certificate at all, at doors without TLS; further ones are refused. Two hosts with as
    /// many connections as the kernel's client opens at most.
    pub uncertified_max: usize,
    /// Requests under way on one connection: twice what fio, the kernel or qemu keep in flight.
    pub requests_per_connection_max: usize,
    /// Requests under way in all: bounds the memory of those that carry no payload.
    pub requests_max: usize,
    /// Longest READ or WRITE in bytes, announced as the maximum block size.
    pub payload_bytes_max: u32,
    /// For the whole handshake.
    pub handshake_timeout: Duration,
    /// For a batch of replies to be taken, or a payload begun to go on arriving.
    pub stall_timeout: Duration,
    /// For a client that holds more than its share of memory or requests while others wait for some: so long it may make no progress.
    pub borrower_timeout: Duration,
    /// For the last changes of a client's connections that have ended: a later change of the client waits so long for them at most, and fails then.
    pub predecessor_timeout: Duration,
    /// A broken build, for tests of the tests.
    pub sabotage: Option<Sabotage>,
}

/// Ways to be wrong, by name. Production never sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Changes of a connection that has ended begin all the same.
    DeadClientsGoOn,
    /// A client's change does not wait for those of its connections that have ended.
    NewcomersDoNotWait,
    /// A part of a long READ or WRITE ends where its memory does, also within a sector.
    PartsEndAnywhere,
}

impl Sabotage {
    /// Every fault.
    pub const ALL: [Sabotage; 3] =
        [Sabotage::DeadClientsGoOn, Sabotage::NewcomersDoNotWait, Sabotage::PartsEndAnywhere];

    /// The fault's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Sabotage::DeadClientsGoOn => "dead-clients-go-on",
            Sabotage::NewcomersDoNotWait => "newcomers-do-not-wait",
            Sabotage::PartsEndAnywhere => "parts-end-anywhere",
        }
    }
}

impl Default for FrontEndLimits {
    fn default() -> FrontEndLimits {
        FrontEndLimits {
            connections_max: 4096,
            unproven_max: 256,
            uncertified_max: 256,
            requests_per_connection_max: 256,
            requests_max: 16 << 10,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            handshake_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(120),
            borrower_timeout: Duration::from_secs(10),
            predecessor_timeout: Duration::from_secs(30),
            sabotage: None,
        }
    }
}

/// Places that nobody but administrators has: an operator and the tools of one.
const ADMINISTRATORS: usize = 64;

impl FrontEndLimits {
    /// Connections of clients that are neither administrators nor without a certificate: however many there are, an administrator gets in.
    pub(super) fn others_max(&self) -> usize {
        let kept = self.unproven_max + self.uncertified_max + ADMINISTRATORS.min(self.connections_max / 8);
        self.connections_max.saturating_sub(kept).max(1)
    }

    /// These limits as far as an arena of `arena_bytes` carries them: a request of the maximum size always leaves room
    /// for others.
    pub(super) fn fitted(mut self, arena_bytes: usize) -> FrontEndLimits {
        assert!(self.connections_max > 0, "a front end admits at least one connection");
        assert!(self.unproven_max > 0, "a front end lets somebody try to prove who they are");
        let carried = (arena_bytes / 2 / OWN_BYTES_MIN).min(self.requests_max / 2).max(1);
        self.connections_max = self.connections_max.min(carried);
        // Neither takes more than a quarter of all places.
        self.unproven_max = self.unproven_max.min(self.connections_max / 4).max(1);
        self.uncertified_max = self.uncertified_max.min(self.connections_max / 4).max(1);
        assert!(self.requests_per_connection_max > 0, "a connection may have at least one request under way");
        assert!(self.requests_max > 1, "two requests may be under way: one that somebody has and one to lend");
        let half = u32::try_from(arena_bytes / 2).unwrap_or(u32::MAX);
        // The protocol lets clients use 64 KiB without asking, and the smallest arena is larger than twice that.
        self.payload_bytes_max = self.payload_bytes_max.clamp(UNFRAGMENTED_BYTES_MIN, PAYLOAD_BYTES_MAX).min(half);
        self
    }
}
