//! What one connection holds: request slots and payload memory.
//!
//! Whatever is held is a [`Held`], and gives back when it is dropped, wherever that happens: there is no way to lose a request's slot.
//! Never holds memory itself, only the count of it.

use super::fair::{Pool, Queued};
use device::buf::PAGE_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;

/// What is shared among connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Requests that are not over.
    Slots,
    /// Payload memory, in whole pages.
    Bytes,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Slots, Kind::Bytes];
}

/// The pools of a front end, by kind.
#[derive(Clone)]
pub(super) struct Pools([Arc<Pool>; 2]);

impl Pools {
    /// `slots` and `bytes` for `connections_max` connections.
    pub(super) fn new(slots: usize, bytes: usize, connections_max: usize) -> Pools {
        Pools([Pool::new(slots, connections_max, 1), Pool::new(bytes, connections_max, PAGE_BYTES)].map(Arc::new))
    }

    pub(super) fn of(&self, kind: Kind) -> &Arc<Pool> {
        &self.0[kind as usize]
    }
}

/// The account of one connection.
pub(super) struct Account {
    pools: Pools,
    held: [AtomicUsize; 2],
    /// It waits for some of this kind.
    waits: [AtomicBool; 2],
}

impl Account {
    pub(super) fn new(pools: Pools) -> Arc<Account> {
        Arc::new(Account { pools, held: Default::default(), waits: Default::default() })
    }

    /// How much is held.
    pub(super) fn held(&self, kind: Kind) -> usize {
        self.held[kind as usize].load(Ordering::Relaxed)
    }

    /// Whether it waits for others to give some back, or for its client to take replies.
    pub(super) fn waits(&self, kind: Kind) -> bool {
        self.waits[kind as usize].load(Ordering::Relaxed)
    }

    /// Whether it holds what is lent, or wants to.
    pub(super) fn claims(&self, kind: Kind) -> bool {
        self.waits(kind) || self.pools.of(kind).is_borrowed(self.held(kind))
    }

    /// As much as may be had between `least` and `most`.
    pub(super) fn take(self: &Arc<Self>, kind: Kind, least: usize, most: usize) -> Option<Held> {
        let taken = self.pools.of(kind).take(&self.held[kind as usize], least, most)?;
        Some(self.hold(kind, taken))
    }

    /// As much as may be had between `least` and `most`, or a place in the queue.
    pub(super) fn poll_take(
        self: &Arc<Self>,
        kind: Kind,
        (least, most): (usize, usize),
        queued: &mut Option<Queued>,
        cx: &mut Context<'_>,
    ) -> Option<Held> {
        let taken = self.pools.of(kind).poll_take(&self.held[kind as usize], least, most, queued, cx);
        self.waits[kind as usize].store(taken.is_none(), Ordering::Relaxed);
        taken.map(|taken| self.hold(kind, taken))
    }

    /// It waits for nothing any more.
    pub(super) fn wait_over(&self) {
        self.waits.iter().for_each(|waits| waits.store(false, Ordering::Relaxed));
    }

    fn hold(self: &Arc<Self>, kind: Kind, taken: usize) -> Held {
        let mut held = Held { account: self.clone(), amounts: [0; 2] };
        held.amounts[kind as usize] = taken;
        held
    }
}

/// Something held; dropping it gives it back.
pub(super) struct Held {
    account: Arc<Account>,
    amounts: [usize; 2],
}

impl Held {
    /// How much of this kind.
    pub(super) fn amount(&self, kind: Kind) -> usize {
        self.amounts[kind as usize]
    }

    /// Hold `other` too.
    pub(super) fn merge(&mut self, mut other: Held) {
        assert!(Arc::ptr_eq(&self.account, &other.account), "what is held together is of one account");
        for (mine, theirs) in self.amounts.iter_mut().zip(&mut other.amounts) {
            *mine += std::mem::take(theirs);
        }
    }

    /// Give back what is held of this kind.
    pub(super) fn give_back(&mut self, kind: Kind) {
        let amount = std::mem::take(&mut self.amounts[kind as usize]);
        if amount > 0 {
            self.account.pools.of(kind).give_back(&self.account.held[kind as usize], amount);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        Kind::ALL.into_iter().for_each(|kind| self.give_back(kind));
    }
}
