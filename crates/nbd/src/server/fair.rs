//! Fair shares of what all connections use: request slots and payload memory.
//!
//! Every connection has a small part of its own, which nobody else can take. The rest is lent: a connection may borrow as much as
//! is left for others afterwards, so that a few borrowers leave much, and many leave something (the dynamic threshold of Choudhury
//! and Hahne for shared buffers, ToN 6(2), 1998, with alpha = 1). What comes back goes first to the one that waits and holds least.
//! Never takes anything back by itself; never hands out memory, only the right to it.

use device::sync::lock;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

/// One kind of thing that is shared.
pub(super) struct Pool {
    /// What each connection has of its own.
    own: usize,
    /// What is lent beyond that, at most.
    lendable: usize,
    lent: AtomicUsize,
    /// Places in the queue; read without its lock.
    waiting: AtomicUsize,
    queue: Mutex<BTreeMap<Place, Waiter>>,
    next: AtomicU64,
}

/// A place in the queue; the last is the first to be served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// It can be served once no more than this is lent: the less somebody holds, the more.
    lent_max: usize,
    serial: Reverse<u64>,
}

struct Waiter {
    waker: Waker,
    /// What it will borrow at least.
    borrows: usize,
}

impl Pool {
    /// `total` shared among `accounts_max` accounts, half of it as their own, in multiples of `unit`, one at least.
    pub(super) fn new(total: usize, accounts_max: usize, unit: usize) -> Pool {
        let own = (total / 2 / accounts_max / unit * unit).max(unit);
        assert!(own * accounts_max <= total, "every account can have its own part");
        Pool {
            own,
            lendable: total - own * accounts_max,
            lent: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    /// What an account may hold when `claimants` borrow or want to.
    pub(super) fn share(&self, claimants: usize) -> usize {
        self.own + self.lendable / claimants.max(1)
    }

    /// Whether an account that holds so much borrows.
    pub(super) fn is_borrowed(&self, held: usize) -> bool {
        held > self.own
    }

    /// As much as may be had between `least` and `most` by an account that holds `held`.
    pub(super) fn take(&self, held: &AtomicUsize, least: usize, most: usize) -> Option<usize> {
        let has = held.load(Ordering::Relaxed);
        let (own_left, borrowed) = (self.own.saturating_sub(has), has.saturating_sub(self.own));
        let mut taken = most.min(own_left);
        if most > own_left {
            let borrow = |lent: usize| {
                let left = self.lendable.saturating_sub(lent);
                let may = own_left + left.saturating_sub(borrowed) / 2;
                match may >= least {
                    true => Some(most.min(may) - own_left),
                    // Whoever holds nothing may have all that is left: there are requests that cannot be cut.
                    false => (has == 0 && least - own_left <= left).then_some(least - own_left),
                }
            };
            let lent = self.lent.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |lent| Some(lent + borrow(lent)?));
            taken = own_left + borrow(lent.ok()?)?;
        }
        held.fetch_add(taken, Ordering::Relaxed);
        Some(taken)
    }

    /// An account that holds `held` gives `count` back.
    pub(super) fn give_back(&self, held: &AtomicUsize, count: usize) {
        let had = held.fetch_sub(count, Ordering::Relaxed);
        let back = had.saturating_sub(self.own) - (had - count).saturating_sub(self.own);
        if back > 0 {
            self.lent.fetch_sub(back, Ordering::SeqCst);
            self.wake();
        }
    }

    /// As [`Pool::take`]; the task is woken when it is worth trying again. What the account itself gives back does not wake it.
    pub(super) fn poll_take(
        self: &Arc<Self>,
        held: &AtomicUsize,
        least: usize,
        most: usize,
        queued: &mut Option<Queued>,
        cx: &mut Context<'_>,
    ) -> Option<usize> {
        let mut taken = self.take(held, least, most);
        if taken.is_none() {
            self.queue(held.load(Ordering::Relaxed), least, queued, cx);
            // What came back before there was a place in the queue has woken nobody.
            taken = self.take(held, least, most);
        }
        if taken.is_some() {
            *queued = None;
        }
        taken
    }

    fn queue(self: &Arc<Self>, held: usize, least: usize, queued: &mut Option<Queued>, cx: &Context<'_>) {
        let (own_left, borrowed) = (self.own.saturating_sub(held), held.saturating_sub(self.own));
        let borrows = least - own_left.min(least);
        let left = if held == 0 { borrows } else { 2 * borrows + borrowed };
        let Some(lent_max) = self.lendable.checked_sub(left) else {
            // Beyond reach for as long as it holds what it does.
            *queued = None;
            return;
        };
        if let Some(place) = queued.as_ref().map(|queued| queued.place)
            && place.lent_max == lent_max
            && let Some(waiter) = lock(&self.queue).get_mut(&place)
        {
            waiter.waker.clone_from(cx.waker());
            return;
        }
        let place = Place { lent_max, serial: Reverse(self.next.fetch_add(1, Ordering::Relaxed)) };
        lock(&self.queue).insert(place, Waiter { waker: cx.waker().clone(), borrows });
        self.waiting.fetch_add(1, Ordering::SeqCst);
        *queued = Some(Queued { pool: self.clone(), place });
    }

    /// Wake those that can be served, the one that holds least first.
    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut woken = Vec::new();
        {
            let mut queue = lock(&self.queue);
            let mut lent = self.lent.load(Ordering::SeqCst);
            while let Some(first) = queue.last_entry().filter(|entry| entry.key().lent_max >= lent) {
                let waiter = first.remove();
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                lent += waiter.borrows;
                woken.push(waiter.waker);
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A place in a queue; dropping it gives it up.
pub(super) struct Queued {
    pool: Arc<Pool>,
    place: Place,
}

impl Drop for Queued {
    fn drop(&mut self) {
        if lock(&self.pool.queue).remove(&self.place).is_some() {
            self.pool.waiting.fetch_sub(1, Ordering::SeqCst);
        } else {
            // It was woken: what it did not take is for the next.
            self.pool.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Prng;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    fn held(count: usize) -> Vec<AtomicUsize> {
        (0..count).map(|_| AtomicUsize::new(0)).collect()
    }

    #[test]
    fn everybody_has_their_own_and_borrowers_leave_something() {
        let pool = Pool::new(1000, 50, 2);
        let accounts = held(50);
        // The first may have half of what is lent, the next half of the rest.
        assert_eq!(pool.take(&accounts[0], 1, 1000), Some(10 + 250));
        assert_eq!(pool.take(&accounts[1], 1, 1000), Some(10 + 125));
        assert_eq!(pool.take(&accounts[0], 1, 1000), None, "it has more than is left");
        for account in &accounts[2..] {
            while pool.take(account, 1, 7).is_some() {}
            assert!(account.load(Ordering::Relaxed) >= 10);
        }
        assert!(pool.lent.load(Ordering::Relaxed) <= 500);
        for account in &accounts {
            pool.give_back(account, account.load(Ordering::Relaxed));
        }
        assert_eq!(pool.lent.load(Ordering::Relaxed), 0);
        // What cannot be cut is had by one that holds nothing.
        assert_eq!(pool.take(&accounts[7], 510, 510), Some(510));
        assert_eq!(pool.take(&accounts[8], 11, 11), None);
        assert_eq!(pool.take(&accounts[8], 10, 11), Some(10));
    }

    struct Rings(AtomicBool);

    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn nobody_who_could_be_served_sleeps() {
        let mut prng = Prng::new(5);
        for _ in 0..200 {
            let pool = Arc::new(Pool::new(400, 8, 5));
            let accounts = held(8);
            let rings: Vec<Arc<Rings>> = (0..8).map(|_| Arc::new(Rings(AtomicBool::new(false)))).collect();
            let mut wants: Vec<Option<(usize, Option<Queued>)>> = (0..8).map(|_| None).collect();
            for _ in 0..200 {
                let i = prng.below(8) as usize;
                let has = accounts[i].load(Ordering::Relaxed);
                if wants[i].is_none() && prng.chance(1, 2) {
                    wants[i] = Some((1 + prng.below(60) as usize, None));
                    rings[i].0.store(true, Ordering::SeqCst);
                } else if prng.chance(1, 8) {
                    wants[i] = None;
                } else if has > 0 {
                    pool.give_back(&accounts[i], 1 + prng.below(has as u64) as usize);
                    rings[i].0.store(true, Ordering::SeqCst);
                }
                while let Some(i) = rings.iter().position(|ring| ring.0.swap(false, Ordering::SeqCst)) {
                    let Some((least, queued)) = &mut wants[i] else { continue };
                    let waker = Waker::from(rings[i].clone());
                    if pool.poll_take(&accounts[i], *least, *least, queued, &mut Context::from_waker(&waker)).is_some()
                    {
                        wants[i] = None;
                    }
                }
                for (account, want) in accounts.iter().zip(&wants) {
                    let Some((least, _)) = want else { continue };
                    assert_eq!(pool.take(account, *least, *least), None, "it waits and could be served");
                }
                let lent: usize = accounts.iter().map(|a| a.load(Ordering::Relaxed).saturating_sub(pool.own)).sum();
                assert_eq!(lent, pool.lent.load(Ordering::Relaxed));
                assert!(lent <= pool.lendable);
                assert_eq!(pool.waiting.load(Ordering::Relaxed), lock(&pool.queue).len());
            }
        }
    }
}
