//! Requests of clients under way, for the operator to look at: which, to where, how large.
//!
//! Costs a request two changes of one word and a few plain stores, and no look at the clock: who watches tells how long they have
//! been seen. Never holds a request up; those beyond the places of a connection are not listed.

use crate::base::request::{Context, Purpose};
use device::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Places of a connection: the bits of one word. Clients seldom have more under way, and 64 of one tell enough.
pub const ACTIVE_PER_SESSION_MAX: usize = 64;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActiveKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable.
    Flush,
    /// Give up content.
    Trim,
    /// Make zeroes.
    Zero,
    /// Bring into the cache.
    Prefetch,
}

impl ActiveKind {
    const ALL: [ActiveKind; 6] = [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero, Self::Prefetch];
}

/// A request under way. The three numbers together are its own, as long as the cell runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveRequest {
    /// Connection, place, and which request of that place.
    pub id: (u64, usize, u64),
    /// The database the connection is tagged with.
    pub database: Option<Arc<str>>,
    /// What it is for.
    pub purpose: Purpose,
    /// What it does.
    pub kind: ActiveKind,
    /// Bytes from the start of the grid disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

#[derive(Debug, Default)]
struct Place {
    /// Which request of this place: odd while its fields are being written.
    number: AtomicU64,
    offset: AtomicU64,
    /// Length, and the kind in the lowest three bits.
    len_and_kind: AtomicU64,
}

/// The requests of one session.
#[derive(Debug)]
pub(crate) struct Active {
    session: u64,
    database: Option<Arc<str>>,
    purpose: Purpose,
    taken: AtomicU64,
    places: [Place; ACTIVE_PER_SESSION_MAX],
}

/// Held while a request is under way.
pub(crate) struct Going<'a>(Option<(&'a Active, u32)>);

impl Drop for Going<'_> {
    fn drop(&mut self) {
        if let Some((active, place)) = self.0 {
            active.taken.fetch_and(!(1 << place), Ordering::Release);
        }
    }
}

impl Active {
    fn new(session: u64, context: &Context) -> Active {
        Active {
            session,
            database: context.database.clone(),
            purpose: context.purpose,
            taken: AtomicU64::new(0),
            places: std::array::from_fn(|_| Place::default()),
        }
    }

    /// A request begins.
    pub(crate) fn begin(&self, kind: ActiveKind, offset: u64, len: u64) -> Going<'_> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        let place = loop {
            let place = (!taken).trailing_zeros();
            if place as usize >= ACTIVE_PER_SESSION_MAX {
                return Going(None);
            }
            let before = self.taken.fetch_or(1 << place, Ordering::Acquire);
            if before & 1 << place == 0 {
                break place;
            }
            taken = before;
        };
        let at = &self.places[place as usize];
        let number = at.number.load(Ordering::Relaxed);
        // Odd: whoever looks now does not believe the fields.
        at.number.store(number + 1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        at.offset.store(offset, Ordering::Relaxed);
        at.len_and_kind.store(len << 3 | kind as u64, Ordering::Relaxed);
        at.number.store(number + 2, Ordering::Release);
        Going(Some((self, place)))
    }

    fn look(&self, found: &mut Vec<ActiveRequest>, max: usize) {
        let taken = self.taken.load(Ordering::Acquire);
        for (place, at) in self.places.iter().enumerate().filter(|(place, _)| taken & 1 << place != 0) {
            if found.len() >= max {
                return;
            }
            let number = at.number.load(Ordering::Acquire);
            let (offset, len_and_kind) = (at.offset.load(Ordering::Relaxed), at.len_and_kind.load(Ordering::Relaxed));
            std::sync::atomic::fence(Ordering::Acquire);
            let same = at.number.load(Ordering::Relaxed) == number && number.is_multiple_of(2) && number > 0;
            let kind = ActiveKind::ALL.get((len_and_kind & 7) as usize);
            // One that comes or goes at this moment is not listed.
            let (true, Some(kind)) = (same, kind) else { continue };
            found.push(ActiveRequest {
                id: (self.session, place, number / 2),
                database: self.database.clone(),
                purpose: self.purpose,
                kind: *kind,
                offset,
                len: len_and_kind >> 3,
            });
        }
    }
}

/// The sessions of a grid disk.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    last: AtomicU64,
    open: Mutex<Vec<Weak<Active>>>,
}

impl Sessions {
    /// One more.
    pub(crate) fn join(&self, context: &Context) -> Arc<Active> {
        let active = Arc::new(Active::new(self.last.fetch_add(1, Ordering::Relaxed) + 1, context));
        let mut open = lock(&self.open);
        open.retain(|session| session.strong_count() > 0);
        open.push(Arc::downgrade(&active));
        active
    }

    /// Requests under way, at most `max`.
    pub(crate) fn look(&self, max: usize) -> Vec<ActiveRequest> {
        let open: Vec<Arc<Active>> = lock(&self.open).iter().filter_map(Weak::upgrade).collect();
        let mut found = Vec::new();
        open.iter().for_each(|session| session.look(&mut found, max));
        found
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_seen_and_no_more() {
        let sessions = Sessions::default();
        let context = Context { database: Some("SALES".into()), ..Context::default() };
        let one = sessions.join(&context);
        let read = one.begin(ActiveKind::Read, 4096, 512);
        let write = one.begin(ActiveKind::Write, 8192, 1 << 40);
        let seen = sessions.look(10);
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].id, seen[0].kind, seen[0].offset, seen[0].len), ((1, 0, 1), ActiveKind::Read, 4096, 512));
        assert_eq!((seen[1].id, seen[1].kind, seen[1].len), ((1, 1, 1), ActiveKind::Write, 1 << 40));
        assert_eq!(seen[0].database.as_deref(), Some("SALES"));
        assert_eq!(sessions.look(1).len(), 1, "bounded");
        drop(read);
        let again = one.begin(ActiveKind::Flush, 0, 0);
        assert_eq!(sessions.look(10)[0].id, (1, 0, 2), "the place again, another request");
        drop((write, again));
        assert!(sessions.look(10).is_empty());
        drop(one);
        assert!(lock(&sessions.open).iter().all(|session| session.upgrade().is_none()));
    }

    #[test]
    fn beyond_the_places_requests_go_on_unlisted() {
        let sessions = Sessions::default();
        let one = sessions.join(&Context::default());
        let many: Vec<Going<'_>> = (0..100).map(|n| one.begin(ActiveKind::Read, n, 1)).collect();
        assert_eq!(sessions.look(1000).len(), ACTIVE_PER_SESSION_MAX);
        drop(many);
        assert!(sessions.look(1000).is_empty());
    }

    /// Threads that begin and end requests whose offset and length belong together, and one that looks: never a mixture.
    #[test]
    fn a_look_never_mixes_two_requests() {
        let sessions = Sessions::default();
        let one = sessions.join(&Context::default());
        // One that stays, so that every look sees something however the threads take turns.
        let standing = one.begin(ActiveKind::Write, 0, 7);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let one = &one;
                scope.spawn(move || {
                    for n in 0..100_000 {
                        let offset = n * 3 + thread;
                        drop(one.begin(ActiveKind::Write, offset, offset + 7));
                    }
                });
            }
            let mut seen = 0;
            for _ in 0..100_000 {
                for request in sessions.look(10) {
                    assert_eq!(request.len, request.offset + 7);
                    seen += 1;
                }
            }
            assert!(seen >= 100_000);
        });
        drop(standing);
        assert!(sessions.look(1).is_empty());
        assert_eq!(one.taken.load(Ordering::Relaxed), 0);
        assert_eq!(ActiveKind::ALL.len(), ActiveKind::ALL.iter().map(|kind| *kind as usize).max().unwrap() + 1);
    }
}
