//! What one connection holds: request slots and payload memory.
//!
//! Whatever is held is a [`Held`], and gives back when it is dropped, wherever that happens: there is no way to lose a request's slot.
//! Never holds memory itself, only the count of it.

use super::registry::Gate;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The account of one connection.
pub(super) struct Account {
    gate: Arc<Gate>,
    slots: AtomicUsize,
    bytes: AtomicUsize,
}

impl Account {
    pub(super) fn new(gate: Arc<Gate>) -> Arc<Account> {
        Arc::new(Account { gate, slots: AtomicUsize::new(0), bytes: AtomicUsize::new(0) })
    }

    /// Request slots held.
    pub(super) fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// Payload bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A request slot, if one is free.
    pub(super) fn take_slot(self: &Arc<Self>) -> Option<Held> {
        self.gate.try_enter().then(|| {
            self.slots.fetch_add(1, Ordering::Relaxed);
            Held { account: self.clone(), slots: 1, bytes: 0 }
        })
    }

    /// So much payload memory.
    pub(super) fn take_bytes(self: &Arc<Self>, bytes: usize) -> Held {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Held { account: self.clone(), slots: 0, bytes }
    }
}

/// Something held; dropping it gives it back.
pub(super) struct Held {
    account: Arc<Account>,
    slots: usize,
    bytes: usize,
}

impl Held {
    /// Hold `other` too.
    pub(super) fn merge(&mut self, mut other: Held) {
        assert!(Arc::ptr_eq(&self.account, &other.account), "what is held together is of one account");
        self.slots += std::mem::take(&mut other.slots);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Give the memory back and keep the slot.
    pub(super) fn give_back_bytes(&mut self) {
        self.account.bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.slots.fetch_sub(self.slots, Ordering::Relaxed);
        self.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.account.gate.leave(self.slots);
    }
}
