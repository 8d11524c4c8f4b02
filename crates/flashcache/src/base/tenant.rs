//! Whose the blocks of the cache are: a number for each database, and how much of the cache each has.
//!
//! The number is in the index entry and nowhere on flash: after a restart a block is nobody's until a database with a number
//! asks for it. The tally is kept by the index where it changes an entry, so it is what a walk over the index would count.
//! Never decides who may have how much: that is [`crate::admission::quota`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Bits of a tenant in an index entry.
pub(crate) const TENANT_BITS: u32 = 7;
/// Databases that are told apart: what the bits of an index entry hold, without nobody and the rest.
pub const TENANTS_MAX: u8 = 126;
/// All numbers, nobody's and the rest's included.
const NUMBERS: usize = 1 << TENANT_BITS;

/// A database as the cache knows it while the cell runs: small, so that index entries are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(u8);

impl Tenant {
    /// Not known, or of no interest: its blocks are not counted.
    pub const NOBODY: Tenant = Tenant(0);
    /// Those together that have no number of their own.
    pub const REST: Tenant = Tenant(TENANTS_MAX + 1);

    /// The database with this number, 1 to [`TENANTS_MAX`].
    #[must_use]
    pub fn new(number: u8) -> Option<Tenant> {
        (1..=TENANTS_MAX).contains(&number).then_some(Tenant(number))
    }

    /// Every number a database may have.
    pub fn all() -> impl Iterator<Item = Tenant> {
        (1..=TENANTS_MAX).map(Tenant)
    }

    /// Whether its blocks are counted.
    #[must_use]
    pub fn is_somebody(self) -> bool {
        self.0 != 0
    }

    /// As a number, 0 for nobody.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Of the lower bits of `bits`, of which there are as many as a number has.
    #[must_use]
    pub fn from_bits(bits: u8) -> Tenant {
        Tenant(bits & (NUMBERS as u8 - 1))
    }
}

/// Some databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantSet(u128);

impl TenantSet {
    /// Add one; nobody is in no set.
    pub fn insert(&mut self, tenant: Tenant) {
        if tenant.is_somebody() {
            self.0 |= 1 << tenant.0;
        }
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(self, tenant: Tenant) -> bool {
        self.0 >> tenant.0 & 1 == 1
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them, ascending.
    pub fn iter(self) -> impl Iterator<Item = Tenant> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| Tenant(left.trailing_zeros() as u8))?;
            left &= left - 1;
            Some(next)
        })
    }
}

impl FromIterator<Tenant> for TenantSet {
    fn from_iter<I: IntoIterator<Item = Tenant>>(all: I) -> TenantSet {
        let mut set = TenantSet::default();
        all.into_iter().for_each(|tenant| set.insert(tenant));
        set
    }
}

/// One count, in a cache line of its own: two databases do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// Valid parts of each tenant in the indexes of all members of a cache, clean and dirty. What is mirrored counts twice, as the
/// room it takes.
#[derive(Debug)]
pub(crate) struct Tally {
    counts: Box<[Count]>,
    /// Held from the look whether there is room to the entry that takes it, by those who have a size or a limit: two that come
    /// at once do not exceed it together. Before the lock of any log or index.
    turn: Mutex<()>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { counts: (0..NUMBERS).map(|_| Count::default()).collect(), turn: Mutex::default() }
    }
}

impl Tally {
    pub(crate) fn add(&self, tenant: Tenant, parts: u32) {
        if tenant.is_somebody() && parts > 0 {
            self.counts[usize::from(tenant.0)].0.fetch_add(u64::from(parts), Ordering::AcqRel);
        }
    }

    pub(crate) fn sub(&self, tenant: Tenant, parts: u32) {
        if tenant.is_somebody() && parts > 0 {
            let before = self.counts[usize::from(tenant.0)].0.fetch_sub(u64::from(parts), Ordering::AcqRel);
            assert!(before >= u64::from(parts), "a part leaves once");
        }
    }

    /// Parts of one; 0 of nobody.
    pub(crate) fn parts(&self, tenant: Tenant) -> u64 {
        self.counts[usize::from(tenant.0)].0.load(Ordering::Acquire)
    }

    /// Parts of some together.
    pub(crate) fn parts_of(&self, tenants: TenantSet) -> u64 {
        tenants.iter().map(|tenant| self.parts(tenant)).sum()
    }

    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for whoever holds a lock that others take in their turn: none, if it is somebody's.
    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_nobody_never() {
        let set: TenantSet = [3, 126, 1].into_iter().filter_map(Tenant::new).chain([Tenant::NOBODY]).collect();
        assert_eq!(set.iter().map(Tenant::bits).collect::<Vec<_>>(), [1, 3, 126]);
        assert!(!set.contains(Tenant::NOBODY) && !set.contains(Tenant::REST) && TenantSet::default().is_empty());
        assert_eq!((Tenant::new(0), Tenant::new(127)), (None, None));
        assert_eq!(Tenant::from_bits(Tenant::REST.bits()), Tenant::REST);
    }

    #[test]
    fn a_tally_counts_each_but_nobody() {
        let tally = Tally::default();
        let (a, b) = (Tenant::from_bits(1), Tenant::REST);
        assert!(a.is_somebody() && b.is_somebody() && !Tenant::NOBODY.is_somebody());
        assert_eq!(
            (Tenant::all().count(), Tenant::all().next(), Tenant::all().last()),
            (126, Some(a), Tenant::new(126))
        );
        tally.add(a, 5);
        tally.add(b, 7);
        tally.add(Tenant::NOBODY, 9);
        tally.sub(a, 2);
        tally.sub(Tenant::NOBODY, 100);
        let set: TenantSet = [a, b].into_iter().collect();
        assert!(set.contains(a) && set.contains(b) && !set.is_empty());
        assert_eq!((tally.parts(a), tally.parts(b), tally.parts(Tenant::NOBODY), tally.parts_of(set)), (3, 7, 0, 10));
        let turn = tally.try_turn();
        assert!(turn.is_some() && tally.try_turn().is_none(), "one at a time");
        drop(turn);
        assert!(tally.try_turn().is_some());
    }
}
