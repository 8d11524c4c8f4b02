//! How many connections a listener of the admin service has, and whose they are: administrators have places that nobody else takes, other
//! known users have theirs, and strangers, who have not shown yet who they are, have a few in turn.
//!
//! A stranger is never refused: where there are [`STRANGERS_MAX`], the one that has been there longest of the host with most of them is
//! cut off. An administrator's handshake takes a few milliseconds, in which a crowd would have to come. Never looks into a request.

use super::access::Role;
use device::sync::lock;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections of administrators at a time on one listener: people and tools, not a crowd. Further ones wait.
const ADMINISTRATORS_MAX: usize = 64;
/// Those of others who are known; further ones are refused.
const OTHERS_MAX: usize = 32;
/// Those of strangers: at ten thousand new ones in a second each has some 13 ms.
pub(super) const STRANGERS_MAX: usize = 128;

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    administrators: Arc<Semaphore>,
    others: Arc<Semaphore>,
    strangers: Mutex<Strangers>,
}

#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    here: BTreeMap<u64, (IpAddr, Arc<Notify>)>,
}

impl Strangers {
    /// Whose turn it is to leave.
    fn crowding(&self) -> Option<u64> {
        if self.here.len() < STRANGERS_MAX {
            return None;
        }
        let mut hosts: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
        for (id, (host, _)) in &self.here {
            hosts.entry(*host).or_insert((0, *id)).0 += 1;
        }
        hosts.into_values().max_by_key(|(count, _)| *count).map(|(_, oldest)| oldest)
    }
}

impl Places {
    pub(super) fn new() -> Arc<Places> {
        Arc::new(Places {
            administrators: Arc::new(Semaphore::new(ADMINISTRATORS_MAX)),
            others: Arc::new(Semaphore::new(OTHERS_MAX)),
            strangers: Mutex::default(),
        })
    }

    /// A place for whoever comes next, as if it were an administrator; clients wait in the backlog until there is one.
    pub(super) async fn next(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed, so there is always one to come.
        self.administrators.clone().acquire_owned().await.ok()
    }

    /// What a known user holds; `next` is what came with the connection. None: there are too many.
    pub(super) fn known(
        &self,
        role: &Role,
        next: Option<OwnedSemaphorePermit>,
    ) -> Option<Option<OwnedSemaphorePermit>> {
        if *role == Role::Administrator {
            return Some(next);
        }
        self.others.clone().try_acquire_owned().ok().map(Some)
    }

    /// The place of a stranger from this host; another one may have to leave for it.
    pub(super) fn stranger(self: &Arc<Self>, host: IpAddr) -> Arc<Place> {
        let mut strangers = lock(&self.strangers);
        let leaving = strangers.crowding().and_then(|id| strangers.here.remove(&id));
        let (id, cut) = (strangers.next, Arc::new(Notify::new()));
        strangers.next += 1;
        strangers.here.insert(id, (host.to_canonical(), cut.clone()));
        drop(strangers);
        if let Some((_, cut)) = leaving {
            cut.notify_one();
        }
        Arc::new(Place { places: self.clone(), id, cut, settled: Mutex::default() })
    }
}

/// The place of a connection that came as a stranger.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    cut: Arc<Notify>,
    /// What it holds since it is known.
    settled: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Place {
    /// Ready when it has to leave.
    pub(super) async fn cut(&self) {
        self.cut.notified().await;
    }

    /// Its client is known: it is no stranger any more. False: there are too many like it.
    pub(super) async fn settle(&self, role: &Role) -> bool {
        let next = if *role == Role::Administrator { self.places.next().await } else { None };
        let Some(held) = self.places.known(role, next) else { return false };
        *lock(&self.settled) = held;
        lock(&self.places.strangers).here.remove(&self.id);
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places.strangers).here.remove(&self.id);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: a crowd of strangers crowds out itself and takes nobody else's place. Method: places asked for without connections.
    use super::*;

    fn is_cut(place: &Place) -> bool {
        let mut cut = Box::pin(place.cut());
        let waker = std::task::Waker::noop();
        cut.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready()
    }

    #[tokio::test]
    async fn a_crowd_crowds_out_its_own() {
        let places = Places::new();
        let (crowd, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let quiet = places.stranger(other);
        let known = places.stranger(crowd);
        assert!(known.settle(&Role::Administrator).await);
        let mut strangers: Vec<_> = (0..STRANGERS_MAX * 2).map(|_| places.stranger(crowd)).collect();
        assert!(!is_cut(&quiet), "another host's");
        assert!(!is_cut(&known), "an administrator's");
        let late = places.stranger(other);
        assert!(!is_cut(&late) && !is_cut(&quiet));
        let cut = strangers.iter().filter(|place| is_cut(place)).count();
        assert_eq!(cut, STRANGERS_MAX * 2 + 2 - STRANGERS_MAX, "the oldest of the crowd");
        assert!(!is_cut(strangers.last().unwrap()));
        strangers.clear();
        assert_eq!(lock(&places.strangers).here.len(), 2);
    }

    #[tokio::test]
    async fn those_who_are_known_have_places_of_their_own() {
        let places = Places::new();
        let host: IpAddr = "::1".parse().unwrap();
        let monitors: Vec<_> = (0..OTHERS_MAX).map(|_| places.stranger(host)).collect();
        for place in &monitors {
            assert!(place.settle(&Role::Monitor).await);
        }
        let more = places.stranger(host);
        assert!(!more.settle(&Role::Database("X".to_owned())).await, "one too many");
        assert!(more.settle(&Role::Administrator).await, "administrators always get in");
        drop(monitors);
        assert!(places.stranger(host).settle(&Role::Monitor).await);
    }
}
