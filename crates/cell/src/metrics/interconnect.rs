//! What each client host has sent and received, as the front end counts it.
//!
//! Never keeps a value: read when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter};

/// What one client host has sent and received. The front end bounds how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Its address.
    pub name: String,
    /// Bytes it was sent: what it read.
    pub sent_bytes: u64,
    /// Bytes received from it: what it wrote.
    pub received_bytes: u64,
    /// Its connections that were closed because they held more than their share, made no progress, and others waited.
    pub cut_off: u64,
}

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    counter!(ClientHost, "N_MB_RECEIVED", Bytes, "data received from a client host: what it wrote", |h| h
        .received_bytes),
    counter!(ClientHost, "N_MB_SENT", Bytes, "data sent to a client host: what it read", |h| h.sent_bytes),
];
