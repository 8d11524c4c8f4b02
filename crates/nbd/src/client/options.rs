//! How a remote disk behaves.

use super::{ClientOptions, Sabotage};
use crate::context::Lineage;
use device::Class;
use std::time::Duration;

/// How a remote disk behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Connections; more than one only when the server says they see each other's flushes.
    pub connections: usize,
    /// Memory for writes that no FLUSH has covered, in bytes; reserved at the start. A write that finds it full flushes.
    pub keep_bytes_max: usize,
    /// How long to try to connect again before everything fails.
    pub reconnect_for: Duration,
    /// Writes without an answer are sent again to a server of the same stamp too: for who has no two changes of a place under way.
    pub resend_unanswered: bool,
    /// Who this is to a cell, also after a restart of this process: each set of connections then takes the place of earlier ones of the same number. A
    /// number that nobody else knows.
    pub lineage: Option<u128>,
    /// While connecting again a refusal is tried again like a lost connection, and the export may have grown: a cell that starts may
    /// not serve all of its grid disks yet.
    pub patient: bool,
    /// What the server's disk is (DESIGN I1).
    pub class: Class,
    /// Of each connection.
    pub client: ClientOptions,
    /// A deliberate fault, for tests.
    pub sabotage: Option<Sabotage>,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            connections: 1,
            keep_bytes_max: 64 << 20,
            reconnect_for: Duration::from_secs(30),
            resend_unanswered: false,
            lineage: None,
            patient: false,
            class: Class::Durable,
            client: ClientOptions::default(),
            sabotage: None,
        }
    }
}

impl RemoteOptions {
    /// Of each connection of a set.
    pub(super) fn of_link(&self, link: u64) -> ClientOptions {
        let mut options = self.client.clone();
        options.contexts.extend(self.lineage.map(|client| Lineage { client, link }.query()));
        options
    }
}
