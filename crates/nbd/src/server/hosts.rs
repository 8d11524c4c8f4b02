//! What each client host has sent and received: payload of reads and writes, since the start.
//!
//! A host is the address of a TCP client without its port; whoever comes through a unix socket is [`LOCAL_HOST`]. Never costs a
//! request anything: a connection looks its host up once, and adds what it has tallied once per batch. Never forgets a host, so that
//! counters only grow.

use cell::metrics::HostUse;
use device::sync::lock;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Hosts with figures of their own. Addresses come from clients, and each is an object of four metrics whose history is kept: as many
/// as a large cluster has nodes. More of them are counted as [`OTHER_HOST`].
pub const HOSTS_MAX: usize = 256;
/// The object of all that came after [`HOSTS_MAX`] others.
pub const OTHER_HOST: &str = "_OTHER_HOST_";
/// The object of clients that came through unix sockets.
pub const LOCAL_HOST: &str = "localhost";

/// Of one host.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    cut_off: AtomicU64,
}

impl Traffic {
    /// A connection of the host was closed because it kept from others what it had borrowed.
    pub(super) fn cut_off(&self) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add(&self, sent_bytes: u64, received_bytes: u64) {
        for (total, bytes) in [(&self.sent_bytes, sent_bytes), (&self.received_bytes, received_bytes)] {
            if bytes > 0 {
                total.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

/// Of all hosts.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    known: Mutex<BTreeMap<String, Arc<Traffic>>>,
    other: Arc<Traffic>,
}

impl Hosts {
    /// Where a connection of this peer counts.
    pub(super) fn of(&self, peer: &str) -> Arc<Traffic> {
        let name = name_of(peer);
        let mut known = lock(&self.known);
        if let Some(traffic) = known.get(&name) {
            return traffic.clone();
        }
        if known.len() >= HOSTS_MAX {
            return self.other.clone();
        }
        known.entry(name).or_default().clone()
    }

    /// In the order of names; the others last, once there are any.
    pub(super) fn snapshot(&self) -> Vec<HostUse> {
        let stats = |name: &str, traffic: &Traffic| HostUse {
            name: name.to_owned(),
            sent_bytes: traffic.sent_bytes.load(Ordering::Relaxed),
            received_bytes: traffic.received_bytes.load(Ordering::Relaxed),
            cut_off: traffic.cut_off.load(Ordering::Relaxed),
        };
        let known = lock(&self.known);
        let mut all: Vec<HostUse> = known.iter().map(|(name, traffic)| stats(name, traffic)).collect();
        if known.len() >= HOSTS_MAX {
            all.push(stats(OTHER_HOST, &self.other));
        }
        all
    }
}

/// `tcp:ADDRESS:PORT` is a host; everything else is a process of this one.
pub(super) fn name_of(peer: &str) -> String {
    let address = peer.strip_prefix("tcp:").and_then(|rest| rest.parse::<SocketAddr>().ok());
    // An IPv4 client of an IPv6 socket is the host it is on an IPv4 one.
    address.map_or_else(|| LOCAL_HOST.to_owned(), |address| address.ip().to_canonical().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_without_ports() {
        for (peer, expected) in [
            ("tcp:10.0.0.7:40000", "10.0.0.7"),
            ("tcp:[fd00::1]:40000", "fd00::1"),
            ("tcp:[::ffff:10.0.0.7]:1", "10.0.0.7"),
            ("unix:uid 0", LOCAL_HOST),
            ("", LOCAL_HOST),
        ] {
            assert_eq!(name_of(peer), expected, "{peer}");
        }
    }

    #[test]
    fn connections_of_a_host_are_one_and_those_beyond_the_limit_too() {
        let hosts = Hosts::default();
        for port in [1, 2] {
            hosts.of(&format!("tcp:10.0.0.1:{port}")).add(5, 7);
        }
        let first = HostUse { name: "10.0.0.1".to_owned(), sent_bytes: 10, received_bytes: 14, cut_off: 0 };
        assert_eq!(hosts.snapshot(), std::slice::from_ref(&first));
        for host in 0..2 * HOSTS_MAX {
            hosts.of(&format!("tcp:10.1.{}.{}:9", host / 256, host % 256)).add(1, 0);
        }
        let all = hosts.snapshot();
        assert_eq!((all.len(), &all[0]), (HOSTS_MAX + 1, &first), "and nobody is forgotten");
        let others = (HOSTS_MAX + 1) as u64;
        assert_eq!((all[HOSTS_MAX].name.as_str(), all[HOSTS_MAX].sent_bytes), (OTHER_HOST, others));
    }
}
