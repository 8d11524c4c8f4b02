//! Range locks over the blocks of one grid disk.
//!
//! A request takes all its blocks at once: either every block is free of conflicting holders and earlier waiters, or the
//! request queues at each of its blocks in the order of arrival. As queueing is atomic, all queues agree on one order and
//! nobody can wait in a circle. First come, first served: a stream of readers cannot starve a writer.
//!
//! Never held by a task: the guard belongs to the I/O and moves with it.

use device::sync::lock;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

/// Whether others may hold the same blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// With other shared holders.
    Shared,
    /// Alone.
    Exclusive,
}

/// The most blocks one guard may cover: long requests are served in pieces, so a queue entry per block stays cheap.
pub(crate) const LOCK_BLOCKS_MAX: u64 = 4096;

/// The lock table of one grid disk.
#[derive(Debug, Default)]
pub(crate) struct RangeLock(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next_ticket: u64,
    /// Holders and waiters of a block in order of arrival.
    queues: BTreeMap<u64, VecDeque<u64>>,
    tickets: BTreeMap<u64, Ticket>,
    /// Who waits for all tickets below a number to be gone.
    drains: Vec<(u64, Waker)>,
}

#[derive(Debug)]
struct Ticket {
    blocks: Range<u64>,
    mode: LockMode,
    /// At how many of its blocks somebody in front conflicts.
    blocked: u64,
    waker: Option<Waker>,
}

/// Blocks held; released when dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    lock: Arc<RangeLock>,
    ticket: u64,
}

impl RangeLock {
    /// A table with nothing held.
    #[must_use]
    pub(crate) fn new() -> RangeLock {
        RangeLock::default()
    }

    /// Hold `blocks`.
    ///
    /// # Panics
    /// When `blocks` is empty or longer than [`LOCK_BLOCKS_MAX`].
    pub(crate) async fn acquire(self: &Arc<Self>, blocks: Range<u64>, mode: LockMode) -> RangeGuard {
        assert!(blocks.start < blocks.end, "a lock covers at least one block");
        assert!(blocks.end - blocks.start <= LOCK_BLOCKS_MAX, "a lock covers at most LOCK_BLOCKS_MAX blocks");
        let ticket = lock(&self.0).enqueue(blocks, mode);
        // From here on dropping the future gives up the place in the queue.
        let guard = RangeGuard { lock: self.clone(), ticket };
        std::future::poll_fn(|cx| {
            let mut table = lock(&self.0);
            let Some(entry) = table.tickets.get_mut(&ticket) else {
                unreachable!("a ticket lives until its guard is dropped");
            };
            if entry.blocked == 0 {
                return Poll::Ready(());
            }
            entry.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        guard
    }

    /// Hold `blocks` if nobody in front conflicts.
    ///
    /// # Panics
    /// As [`RangeLock::acquire`].
    #[must_use]
    pub(crate) fn try_acquire(self: &Arc<Self>, blocks: Range<u64>, mode: LockMode) -> Option<RangeGuard> {
        assert!(blocks.start < blocks.end, "a lock covers at least one block");
        assert!(blocks.end - blocks.start <= LOCK_BLOCKS_MAX, "a lock covers at most LOCK_BLOCKS_MAX blocks");
        let ticket = lock(&self.0).enqueue(blocks, mode);
        let guard = RangeGuard { lock: self.clone(), ticket };
        let free = lock(&self.0).tickets.get(&ticket).is_some_and(|entry| entry.blocked == 0);
        free.then_some(guard)
    }

    /// Wait until every guard that is held or waited for now has been released.
    pub(crate) async fn drain(&self) {
        let before = lock(&self.0).next_ticket;
        std::future::poll_fn(|cx| {
            let mut table = lock(&self.0);
            if table.tickets.first_key_value().is_none_or(|(&oldest, _)| oldest >= before) {
                return Poll::Ready(());
            }
            table.drains.push((before, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// How many guards are held or waited for.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).tickets.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Table {
    fn enqueue(&mut self, blocks: Range<u64>, mode: LockMode) -> u64 {
        let id = self.next_ticket;
        self.next_ticket += 1;
        let mut blocked = 0;
        for block in blocks.clone() {
            let queue = self.queues.entry(block).or_default();
            let conflict = match mode {
                LockMode::Exclusive => !queue.is_empty(),
                LockMode::Shared => queue.iter().any(|t| self.tickets[t].mode == LockMode::Exclusive),
            };
            blocked += u64::from(conflict);
            queue.push_back(id);
        }
        self.tickets.insert(id, Ticket { blocks, mode, blocked, waker: None });
        id
    }

    fn release(&mut self, id: u64) -> Vec<Waker> {
        let Some(gone) = self.tickets.remove(&id) else { unreachable!("released once") };
        let mut wakers = Vec::new();
        if !self.drains.is_empty() {
            let oldest = self.tickets.first_key_value().map_or(u64::MAX, |(&oldest, _)| oldest);
            let (done, rest) = std::mem::take(&mut self.drains).into_iter().partition(|&(before, _)| oldest >= before);
            self.drains = rest;
            let done: Vec<(u64, Waker)> = done;
            wakers.extend(done.into_iter().map(|(_, waker)| waker));
        }
        for block in gone.blocks {
            let Some(queue) = self.queues.get_mut(&block) else {
                unreachable!("a ticket queues at each of its blocks")
            };
            let Some(at) = queue.iter().position(|&t| t == id) else {
                unreachable!("a ticket queues at each of its blocks")
            };
            queue.remove(at);
            if queue.is_empty() {
                self.queues.remove(&block);
                continue;
            }
            // Whoever conflicted with the one that left, and with nobody else in front, is free at this block.
            let mut exclusive_in_front = false;
            for (position, &other) in queue.iter().enumerate() {
                let Some(entry) = self.tickets.get_mut(&other) else { unreachable!("queues hold live tickets") };
                let conflicts_now = match entry.mode {
                    LockMode::Exclusive => position > 0,
                    LockMode::Shared => exclusive_in_front,
                };
                let conflicted_before = position >= at
                    && match entry.mode {
                        LockMode::Exclusive => true,
                        LockMode::Shared => exclusive_in_front || gone.mode == LockMode::Exclusive,
                    };
                if conflicted_before && !conflicts_now {
                    entry.blocked -= 1;
                    if entry.blocked == 0 {
                        wakers.extend(entry.waker.take());
                    }
                }
                if entry.mode == LockMode::Exclusive {
                    exclusive_in_front = true;
                    if position > at {
                        break;
                    }
                }
            }
        }
        wakers
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let wakers = lock(&self.lock.0).release(self.ticket);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: mutual exclusion, fairness and freedom from deadlock. Method: random operations against a naive model that
    //! keeps the arrival order in a list and grants a ticket when nothing in front of it conflicts.
    use super::*;
    use device::Prng;

    fn conflicts(a: &Ticket, b: &Ticket) -> bool {
        a.blocks.start < b.blocks.end
            && b.blocks.start < a.blocks.end
            && (a.mode == LockMode::Exclusive || b.mode == LockMode::Exclusive)
    }

    #[test]
    fn agrees_with_a_naive_queue() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut table = Table::default();
            let mut order: Vec<u64> = Vec::new();
            for _ in 0..200 {
                if order.is_empty() || prng.chance(1, 2) {
                    let start = prng.below(8);
                    let mode = if prng.chance(1, 2) { LockMode::Shared } else { LockMode::Exclusive };
                    order.push(table.enqueue(start..start + 1 + prng.below(4), mode));
                } else {
                    let at = prng.below(order.len() as u64) as usize;
                    let id = order.remove(at);
                    let _ = table.release(id);
                }
                for (i, id) in order.iter().enumerate() {
                    let ticket = &table.tickets[id];
                    let free = !order[..i].iter().any(|other| conflicts(&table.tickets[other], ticket));
                    assert_eq!(ticket.blocked == 0, free, "seed {seed}, ticket {id}");
                }
            }
            for id in order.drain(..) {
                let _ = table.release(id);
            }
            assert!(table.queues.is_empty() && table.tickets.is_empty());
        }
    }
}
