//! How many connections a listener of the admin service has, and whose they are: administrators have places that nobody else takes, other
//! known users have theirs, and strangers, who have not said yet what they want, have a few in turn.
//!
//! A connection is a stranger until the head of its request is there, whoever it may be: one that says nothing takes no place from those
//! who do. A stranger is never refused: where there are [`STRANGERS_MAX`], one of the host with most of them (of the user, on this host)
//! is cut off, the one that has come no further for longest; and further ones are then taken at the pace of [`CROWDED`], so that a crowd
//! that comes again as it is cut off neither takes the processor nor the time that a handshake needs. Never looks into a request.

use super::access::Role;
use device::sync::lock;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections of administrators at a time on one listener: people and tools, not a crowd. Further ones wait.
const ADMINISTRATORS_MAX: usize = 64;
/// Those of others who are known; further ones are refused.
const OTHERS_MAX: usize = 32;
/// Those of all who are known.
pub(super) const KNOWN_MAX: usize = ADMINISTRATORS_MAX + OTHERS_MAX;
/// Those of strangers.
pub(super) const STRANGERS_MAX: usize = 128;
/// After a stranger had to leave, before the next connection is taken: so each has half a second at least to go on, which is a hundred
/// handshakes, and those of a crowd of a thousand that come before wait for four seconds.
pub(super) const CROWDED: Duration = Duration::from_millis(4);

/// Where a stranger comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// A host, over TCP.
    Host(IpAddr),
    /// A user of this host.
    User(u32),
}

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    administrators: Arc<Semaphore>,
    others: Arc<Semaphore>,
    strangers: Mutex<Strangers>,
}

/// In the order in which they came, or came further.
#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    here: BTreeMap<u64, (Origin, Arc<Notify>)>,
}

impl Strangers {
    /// Whose turn it is to leave.
    fn crowding(&self) -> Option<u64> {
        if self.here.len() < STRANGERS_MAX {
            return None;
        }
        let mut origins: BTreeMap<Origin, (usize, u64)> = BTreeMap::new();
        for (id, (origin, _)) in &self.here {
            origins.entry(*origin).or_insert((0, *id)).0 += 1;
        }
        origins.into_values().max_by_key(|(count, _)| *count).map(|(_, oldest)| oldest)
    }

    /// The last in the order.
    fn insert(&mut self, origin: Origin, cut: Arc<Notify>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.here.insert(id, (origin, cut));
        id
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

    /// The place of a stranger from there, and whether another one had to leave for it.
    pub(super) fn stranger(self: &Arc<Self>, origin: Origin) -> (Arc<Place>, bool) {
        let origin = match origin {
            Origin::Host(host) => Origin::Host(host.to_canonical()),
            user @ Origin::User(_) => user,
        };
        let mut strangers = lock(&self.strangers);
        let leaving = strangers.crowding().and_then(|id| strangers.here.remove(&id));
        let cut = Arc::new(Notify::new());
        let id = Mutex::new(strangers.insert(origin, cut.clone()));
        drop(strangers);
        if let Some((_, cut)) = &leaving {
            cut.notify_one();
        }
        (Arc::new(Place { places: self.clone(), id, cut, settled: Mutex::default() }), leaving.is_some())
    }
}

/// The place of a connection.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    /// Among the strangers.
    id: Mutex<u64>,
    cut: Arc<Notify>,
    /// What it holds since it is known.
    settled: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Place {
    /// Ready when it has to leave.
    pub(super) async fn cut(&self) {
        self.cut.notified().await;
    }

    /// Its client has come further: others leave before it.
    pub(super) fn proceeds(&self) {
        let mut id = lock(&self.id);
        let mut strangers = lock(&self.places.strangers);
        if let Some((origin, cut)) = strangers.here.remove(&id) {
            *id = strangers.insert(origin, cut);
        }
    }

    /// Its client is known and has asked for something: it is no stranger any more. False: there are too many like it.
    pub(super) async fn settle(&self, role: &Role) -> bool {
        let held = if *role == Role::Administrator {
            // Never closed, so there is always one to come.
            self.places.administrators.clone().acquire_owned().await.ok()
        } else {
            let Ok(held) = self.places.others.clone().try_acquire_owned() else { return false };
            Some(held)
        };
        *lock(&self.settled) = held;
        self.leave_strangers();
        true
    }

    fn leave_strangers(&self) {
        let id = lock(&self.id);
        lock(&self.places.strangers).here.remove(&id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave_strangers();
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
        let host = |text: &str| Origin::Host(text.parse().unwrap());
        let (crowd, other) = (host("10.0.0.1"), host("10.0.0.2"));
        let (quiet, _) = places.stranger(other);
        let (known, _) = places.stranger(crowd);
        assert!(known.settle(&Role::Administrator).await);
        let mut strangers: Vec<_> = (0..STRANGERS_MAX * 2).map(|_| places.stranger(crowd).0).collect();
        assert!(!is_cut(&quiet), "another host's");
        assert!(!is_cut(&known), "an administrator's");
        let (late, crowded) = places.stranger(other);
        assert!(crowded);
        assert!(!is_cut(&late) && !is_cut(&quiet));
        let cut = strangers.iter().filter(|place| is_cut(place)).count();
        assert_eq!(cut, STRANGERS_MAX * 2 + 2 - STRANGERS_MAX, "the oldest of the crowd");
        assert!(!is_cut(strangers.last().unwrap()));
        strangers.clear();
        assert_eq!(lock(&places.strangers).here.len(), 2);
    }

    #[tokio::test]
    async fn the_silent_leave_before_those_who_go_on() {
        let places = Places::new();
        let root = Origin::User(0);
        let (speaking, _) = places.stranger(root);
        let (silent, _) = places.stranger(root);
        let _others: Vec<_> = (0..STRANGERS_MAX - 2).map(|_| places.stranger(root).0).collect();
        speaking.proceeds();
        let (_next, crowded) = places.stranger(root);
        assert!(crowded && is_cut(&silent) && !is_cut(&speaking));
        // Who has left stays away, whatever it says then.
        silent.proceeds();
        assert_eq!(lock(&places.strangers).here.len(), STRANGERS_MAX);
    }

    #[tokio::test]
    async fn those_who_are_known_have_places_of_their_own() {
        let places = Places::new();
        let host = Origin::User(7);
        let monitors: Vec<_> = (0..OTHERS_MAX).map(|_| places.stranger(host).0).collect();
        for place in &monitors {
            assert!(place.settle(&Role::Monitor).await);
        }
        let (more, _) = places.stranger(host);
        assert!(!more.settle(&Role::Database("X".to_owned())).await, "one too many");
        assert!(more.settle(&Role::Administrator).await, "administrators always get in");
        drop(monitors);
        assert!(places.stranger(host).0.settle(&Role::Monitor).await);
    }
}
