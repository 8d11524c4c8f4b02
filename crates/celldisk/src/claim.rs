//! The claim on a device: a block of its own that says which process of which host uses it, renewed while it does, so that
//! two hosts that reach one device (an export of another server, a volume attached twice) do not both write to it.
//!
//! As ext4's multi-mount protection: the block is read again before each renewal, and a foreign stamp stops every later
//! write. A start waits only where another host or another boot has left its stamp without taking it back, or a process that
//! still lives: as long as a holder may be silent and still believe that the device is its own, or until it renews. (One that
//! lives and does not renew uses what this is a copy of.) Two starts in the same moment on a device that nobody holds are
//! told apart by reading back, and at the latest by the first renewal.
//!
//! [`judge_start`] and [`judge_renewal`] decide; they do no I/O. [`Claimed`] is the device that a cell gets. Never looks at
//! labels: who has found one takes the claim. Never logs.

mod block;
mod claimed;
mod sabotage;

pub use block::{Holder, Stamped, decode};
pub use claimed::{ClaimError, Claimed};
pub use sabotage::Sabotage;

use std::time::Duration;

/// How often a holder renews its stamp: one page read and written, too seldom to be seen on any medium.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);

/// A holder whose last look at its stamp is longer ago does not write before it has looked again: it was paused, or the
/// device did not answer. Three renewals: one may be late.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(15);

/// A start watches a foreign stamp for so long. Longer than [`OVERDUE_AFTER`] by one renewal: a holder that still works has
/// renewed by then, and one that is paused looks first when it goes on.
pub const WATCH_FOR: Duration = Duration::from_secs(20);

/// What the claim's block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes: formatted since, or never claimed.
    Nothing,
    /// Something else: torn, rotten, or a sector that cannot be read.
    Unreadable,
    /// A stamp.
    Stamp(Stamped),
}

/// How often a watched block is read.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What a start may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Take the claim.
    Take,
    /// Watch the block for [`WATCH_FOR`] first. The holder, where the block names one.
    Watch(Option<Holder>),
}

/// What has come of watching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Nobody has renewed the stamp.
    Still,
    /// It was given back meanwhile.
    Free,
    /// The device is used.
    Renewed(Holder),
}

/// What a holder may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Write its stamp anew.
    Renew,
    /// Never write to the device again.
    Lost(Holder),
}

/// Whether a process that starts may take the claim. `is_alive`: whether the process of a holder of this host and boot is.
#[must_use]
pub fn judge_start(found: &Found, us: &Holder, is_alive: impl Fn(&Holder) -> bool) -> Start {
    match found {
        Found::Nothing => Start::Take,
        Found::Unreadable => Start::Watch(None),
        Found::Stamp(stamp) if stamp.released => Start::Take,
        Found::Stamp(Stamped { holder, .. })
            if (holder.host, holder.boot) == (us.host, us.boot) && !is_alive(holder) =>
        {
            Start::Take
        }
        Found::Stamp(Stamped { holder, .. }) => Start::Watch(Some(holder.clone())),
    }
}

/// What a block that is watched tells: `before` is what it held at first.
#[must_use]
pub fn judge_watched(before: &Found, now: &Found) -> Watched {
    match now {
        Found::Stamp(stamp) if stamp.released => Watched::Free,
        Found::Stamp(stamp) if now != before => Watched::Renewed(stamp.holder.clone()),
        Found::Nothing | Found::Unreadable | Found::Stamp(_) => Watched::Still,
    }
}

/// Whether the process with the stamp `instance` still holds the claim. What is gone or cannot be read names nobody else: it
/// is written anew.
#[must_use]
pub fn judge_renewal(found: &Found, instance: u128) -> Renewal {
    match found {
        Found::Stamp(stamp) if stamp.holder.instance != instance => Renewal::Lost(stamp.holder.clone()),
        Found::Nothing | Found::Unreadable | Found::Stamp(_) => Renewal::Renew,
    }
}

const _: () = assert!(
    WATCH_FOR.as_secs() >= OVERDUE_AFTER.as_secs() + RENEW_EVERY.as_secs()
        && OVERDUE_AFTER.as_secs() >= 3 * RENEW_EVERY.as_secs(),
    "who watches sees a renewal, or the holder looks before it writes"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(host: u128, boot: u128, instance: u128) -> Holder {
        Holder { host, boot, instance, process: 7, process_started: 70, host_name: format!("host{host}") }
    }

    fn stamp(holder: Holder, counter: u64, released: bool) -> Found {
        Found::Stamp(Stamped { holder, counter, released })
    }

    #[test]
    fn every_start() {
        let us = holder(1, 1, 9);
        for alive in [false, true] {
            let judged = |found: &Found| judge_start(found, &us, |_| alive);
            assert_eq!(judged(&Found::Nothing), Start::Take);
            assert_eq!(judged(&Found::Unreadable), Start::Watch(None));
            for (host, boot) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
                let other = holder(host, boot, 5);
                assert_eq!(judged(&stamp(other.clone(), 3, true)), Start::Take, "a clean stop, whoever it was");
                let expected = match (host, boot) {
                    (1, 1) if !alive => Start::Take,
                    _ => Start::Watch(Some(other.clone())),
                };
                assert_eq!(judged(&stamp(other, 3, false)), expected, "host {host}, boot {boot}, alive {alive}");
            }
        }
    }

    #[test]
    fn every_end_of_watching() {
        let (a, b) = (holder(2, 2, 5), holder(3, 3, 6));
        let all = [
            Found::Nothing,
            Found::Unreadable,
            stamp(a.clone(), 3, false),
            stamp(a.clone(), 4, false),
            stamp(a, 4, true),
            stamp(b, 3, false),
        ];
        for before in &all {
            for now in &all {
                let expected = match now {
                    Found::Stamp(stamp) if stamp.released => Watched::Free,
                    Found::Stamp(stamp) if before != now => Watched::Renewed(stamp.holder.clone()),
                    _ => Watched::Still,
                };
                assert_eq!(judge_watched(before, now), expected, "{before:?}, then {now:?}");
            }
            assert!(!matches!(judge_watched(before, before), Watched::Renewed(_)), "nobody has renewed it");
        }
    }

    #[test]
    fn every_renewal() {
        assert_eq!(judge_renewal(&Found::Nothing, 9), Renewal::Renew);
        assert_eq!(judge_renewal(&Found::Unreadable, 9), Renewal::Renew);
        for released in [false, true] {
            // An older stamp of its own: an export that went back to what had been flushed.
            for counter in [0, 3, u64::MAX] {
                assert_eq!(judge_renewal(&stamp(holder(1, 1, 9), counter, released), 9), Renewal::Renew);
            }
            for (host, boot) in [(1, 1), (1, 2), (2, 2)] {
                let other = holder(host, boot, 5);
                assert_eq!(judge_renewal(&stamp(other.clone(), 3, released), 9), Renewal::Lost(other));
            }
        }
    }
}
