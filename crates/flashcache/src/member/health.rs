//! What a failed request says of a flash device: some bytes of it cannot be read, it is short of something just now, or it is gone.
//!
//! Only the last gives the device up: in write-back that takes every grid disk offline whose only copy of something is there. Never
//! decides what becomes of the bytes.

use crate::base::counters::add;
use crate::base::sabotage::Sabotage;
use crate::member::Member;
use device::{FailKind, Instant, Outcome};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Tries of a request that a device is short of something for (EAGAIN, ENOMEM), and of a write that it could not place.
pub(crate) const TRIES_MAX: u32 = 6;
/// Pause before the second try; doubled before each further one, so that all take less than a second.
const PAUSE: Duration = Duration::from_millis(10);
/// Reads that fail one after the other without one that succeeds: the device is gone, whatever it says of each.
const BAD_READS_MAX: u32 = 16;
/// Where a device holds the only copy of something it is waited for so many times the hard limit: a controller that is reset takes
/// longer than a cache is worth waiting for, and less than a database that has to be recovered.
const SOLE_COPY_PATIENCE: u32 = 6;

/// What a failed request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// These bytes cannot be read or written.
    Part,
    /// It may work in a moment.
    Again,
    /// The device is gone.
    Gone,
}

/// Whether a write or a flush that has failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// A few times.
    Briefly,
    /// As long as the device is waited for at all: nothing is wrong with it, there is no room below it.
    UntilRoom,
    /// A few times, and a write may take effect late: its segment is not reused before a restart.
    InDoubt,
    /// The device is gone.
    Never,
}

/// What a write or a flush with this outcome asks for, other than `Done`.
pub(crate) fn retry(outcome: Outcome) -> Retry {
    match outcome {
        Outcome::Failed(FailKind::NoSpace) => Retry::UntilRoom,
        Outcome::Unknown => Retry::InDoubt,
        _ if trouble(outcome) == Trouble::Gone => Retry::Never,
        _ => Retry::Briefly,
    }
}

/// What an outcome other than `Done` says of the device.
pub(crate) fn trouble(outcome: Outcome) -> Trouble {
    match outcome {
        Outcome::Failed(FailKind::Media) | Outcome::Short(_) => Trouble::Part,
        Outcome::Failed(FailKind::Errno(_) | FailKind::NoSpace) => Trouble::Again,
        Outcome::Done | Outcome::Unknown => Trouble::Gone,
        Outcome::Failed(FailKind::Gone | FailKind::Unsupported | FailKind::Invalid) => Trouble::Gone,
    }
}

impl Member {
    /// A read has succeeded.
    pub(crate) fn read_well(&self) {
        if self.bad_reads.load(Ordering::Relaxed) != 0 {
            self.bad_reads.store(0, Ordering::Relaxed);
        }
    }

    /// A read has failed for the `tries`-th time: what that says of the device. One that is gone is given up.
    pub(crate) fn read_badly(&self, at: u64, outcome: Outcome, tries: u32) -> Trouble {
        add(&self.counters.errors, 1);
        let in_a_row = self.bad_reads.fetch_add(1, Ordering::Relaxed) + 1;
        match trouble(outcome) {
            Trouble::Again if tries < TRIES_MAX => Trouble::Again,
            Trouble::Part if in_a_row < BAD_READS_MAX => Trouble::Part,
            Trouble::Part => {
                self.fail(format!("{in_a_row} reads in a row failed, the last at {at}: {outcome:?}"));
                Trouble::Gone
            }
            Trouble::Again | Trouble::Gone => {
                self.fail(format!("read at {at}: {outcome:?}"));
                Trouble::Gone
            }
        }
    }

    /// Whether a write that was first issued then, or a flush, is tried again after it has failed for the `tries`-th time. A write goes to the
    /// same place: a device that has found a sector bad puts another in its place when that is written.
    pub(crate) fn tries_again(&self, outcome: Outcome, tries: u32, since: Instant) -> bool {
        add(&self.counters.errors, 1);
        let waits = || u128::from(self.world.clock.now().ns_since(since)) < self.patience().as_nanos();
        let again = match retry(outcome) {
            _ if self.sabotaged(Sabotage::NoRoomGivesUp) => retry(outcome) != Retry::InDoubt && tries < TRIES_MAX,
            Retry::Briefly | Retry::InDoubt => tries < TRIES_MAX,
            Retry::UntilRoom => tries < TRIES_MAX || waits(),
            Retry::Never => false,
        };
        again && !self.has_failed()
    }

    /// Wait before the next try, after `tries`.
    pub(crate) async fn pause(&self, tries: u32) {
        self.world.clock.sleep(PAUSE * (1 << tries.saturating_sub(1).min(TRIES_MAX))).await;
    }

    /// How long a request to the device is waited for before the device is given up.
    pub(crate) fn patience(&self) -> Duration {
        let sole_copy = self.dirty.pages() > 0 && !self.is_mirrored();
        if sole_copy { self.config.hard_limit * SOLE_COPY_PATIENCE } else { self.config.hard_limit }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each outcome means one thing. Method: all of them.
    use super::*;

    #[test]
    fn every_outcome_says_one_thing() {
        let part = [Outcome::Failed(FailKind::Media), Outcome::Short(512)];
        let again = [
            Outcome::Failed(FailKind::Errno(11)),
            Outcome::Failed(FailKind::Errno(12)),
            Outcome::Failed(FailKind::NoSpace),
        ];
        let gone = [Outcome::Unknown, Outcome::Failed(FailKind::Gone), Outcome::Failed(FailKind::Invalid)];
        assert!(part.iter().all(|&outcome| trouble(outcome) == Trouble::Part));
        assert!(again.iter().all(|&outcome| trouble(outcome) == Trouble::Again));
        assert!(gone.iter().all(|&outcome| trouble(outcome) == Trouble::Gone));
        let retries = part.iter().chain(&again).chain(&gone).map(|&outcome| retry(outcome));
        use Retry::{Briefly, InDoubt, Never, UntilRoom};
        assert_eq!(retries.collect::<Vec<_>>(), [Briefly, Briefly, Briefly, Briefly, UntilRoom, InDoubt, Never, Never]);
    }
}
