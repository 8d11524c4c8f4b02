//! Durable requests under way (FLUSH, and writes with FUA).
//!
//! A server reports a lost write once, to whichever durable request reaches it first. So the success of a FLUSH counts only after every
//! durable request that ran beside it has ended without a failure.

use device::sync::{Notify, lock};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Bounded by the requests under way.
#[derive(Default)]
pub(super) struct UnderWay {
    numbers: Mutex<Numbers>,
    changed: Notify,
}

#[derive(Default)]
struct Numbers {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// A durable request under way, until this is dropped.
pub(super) struct Turn<'a> {
    of: &'a UnderWay,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.of.numbers).under_way.remove(&self.number);
        self.of.changed.notify_all();
    }
}

impl UnderWay {
    /// A durable request begins.
    pub(super) fn begin(&self) -> Turn<'_> {
        let mut numbers = lock(&self.numbers);
        let number = numbers.next;
        numbers.next += 1;
        numbers.under_way.insert(number);
        Turn { of: self, number }
    }

    /// Wait for those that are under way now.
    pub(super) async fn ended(&self) {
        let next = lock(&self.numbers).next;
        loop {
            let ticket = self.changed.ticket();
            if lock(&self.numbers).under_way.first().is_none_or(|&oldest| oldest >= next) {
                return;
            }
            self.changed.wait(ticket).await;
        }
    }
}
