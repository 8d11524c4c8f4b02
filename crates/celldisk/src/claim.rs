//! The claim on a device: a page that says which process of which host uses it, renewed while it does, so that
//! two hosts that reach one device (an export of another server, a volume attached twice) do not both write to it.
//!
//! A holder reads the claim before each renewal, as ext4's multi-mount protection does; a foreign stamp stops every later
//! write. A start watches the claim only where another host or another boot has left its stamp without giving it back, or a process that
//! still lives: for as long as a holder may be silent and still use the device, or until the stamp is renewed. (A process that
//! lives and does not renew uses what this is a copy of.) Then it races for the device with every other start: [`race`] says why
//! at most one of them takes it, whatever each request and each process takes. No start waits for that.
//!
//! Time decides one thing: when a holder that is silent has ended.
//!
//! - A holder changes the device for [`OVERDUE_AFTER`] after a look, which is: read the claim, write it anew, read it again. Time is that
//!   in which the process ran or wall time, whichever shows more. The look counts from its beginning, and only where the one before was not overdue
//!   at its end: nobody can have watched an unchanged claim for [`WATCH_FOR`] in between.
//! - A holder that is overdue, also one that was paused within a look, changes nothing and does not renew. It races again, to replace itself, under
//!   a new instance. A start that has watched its stamp races to replace the same instance, so one of the two at most has the device.
//! - A start that watches reads both pages. A change of one of them means that the other process lives.
//!
//! # What is promised
//!
//! Of several starts at one moment at most one changes the device. A holder that another process has replaced changes nothing from its
//! next look on. A change of the device that was submitted before the holder was overdue must arrive within
//! `WATCH_FOR - OVERDUE_AFTER`, 5 s. No claim on a disk can exclude a later one: a process that is paused between the check of its claim and the submission of a
//! write, and a write that is delayed in a network, arrive whenever they do. Only fencing by the storage excludes them (SCSI persistent
//! reservations), or a watchdog that resets the host (as sanlock has). Two processes of releases before the record existed, or one of
//! them and one of this release, are told apart at the first renewal only.
//!
//! The functions `judge_*` and [`race`] decide; they do no I/O. [`Claimed`] is the device that a cell gets. Never looks at
//! labels: who has found one takes the claim. Never logs.

mod block;
mod claimed;
mod race;
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

/// What the claim, or its record, holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes: formatted since, or never claimed.
    Nothing,
    /// Something else: torn, rotten, or a sector that cannot be read.
    Unreadable,
    /// A stamp.
    Stamp(Stamped),
}

impl Found {
    /// The holder in the stamp, where there is one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Found::Stamp(stamp) => Some(&stamp.holder),
            Found::Nothing | Found::Unreadable => None,
        }
    }

    /// The instance in the stamp; 0: there is none.
    #[must_use]
    pub fn instance(&self) -> u128 {
        self.holder().map_or(0, |holder| holder.instance)
    }
}

/// Both pages. The record is read first: what a start concludes from a record and an older claim may be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The stamp of the holder, or of a process that wants to be.
    pub claim: Found,
    /// The stamp of the process that took the device last.
    pub record: Found,
}

/// How often a watched block is read.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What a start may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Race for the device.
    Take,
    /// Watch the pages for [`WATCH_FOR`] first. The holder, where a page names one.
    Watch(Option<Holder>),
}

/// What has come of watching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Neither page has changed.
    Still,
    /// A page can be read that could not be, or a holder has given the device back, or a race has gone on: the time begins anew.
    Anew,
    /// The device is used.
    Renewed(Holder),
}

/// What a holder may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Write its stamp anew.
    Renew,
    /// The stamp of another race, which may have failed: the record says whether the holder was replaced.
    Replaced(Holder),
    /// Never write to the device again.
    Lost(Holder),
}

/// Whether a process that starts may race for the device. `is_alive`: whether the process of a holder of this host and boot is.
///
/// A stamp counts as the last one only where the record names the same process: a write that was delayed for long may have put it
/// over that of a successor.
#[must_use]
pub fn judge_start(pages: &Pages, us: &Holder, is_alive: impl Fn(&Holder) -> bool) -> Start {
    let Found::Stamp(stamp) = &pages.claim else {
        return match (&pages.claim, &pages.record) {
            (Found::Nothing, Found::Nothing) => Start::Take,
            _ => Start::Watch(pages.record.holder().cloned()),
        };
    };
    let holder = &stamp.holder;
    let is_gone = (holder.host, holder.boot) == (us.host, us.boot) && !is_alive(holder);
    let has_ended = match (stamp.over, &pages.record) {
        (None, _) | (Some(_), Found::Nothing) => stamp.released || is_gone,
        (Some(_), Found::Unreadable) => false,
        // One that is gone has ended before it wrote the record where that names the instance it was to replace.
        (Some(over), Found::Stamp(record)) => match record.holder.instance {
            instance if instance == holder.instance => stamp.released || is_gone,
            instance => is_gone && instance == over,
        },
    };
    if has_ended { Start::Take } else { Start::Watch(Some(holder.clone())) }
}

/// What pages that are watched tell: `before` is what they held at first. A page that cannot be read just now says nothing.
#[must_use]
pub fn judge_watched(before: &Pages, now: &Pages) -> Watched {
    let has_changed = |before: &Found, now: &Found| now != before && *now != Found::Unreadable;
    match &now.claim {
        Found::Stamp(stamp) if now.claim != before.claim && before.claim != Found::Unreadable && !stamp.released => {
            Watched::Renewed(stamp.holder.clone())
        }
        claim if has_changed(&before.claim, claim) || has_changed(&before.record, &now.record) => Watched::Anew,
        _ => Watched::Still,
    }
}

/// Whether a process still holds the claim; `is_own`: whether an instance is one of its own. What is gone or cannot be read names nobody else: it
/// is written anew.
#[must_use]
pub fn judge_renewal(claim: &Found, is_own: impl Fn(u128) -> bool) -> Renewal {
    match claim {
        Found::Stamp(stamp) if is_own(stamp.holder.instance) => Renewal::Renew,
        Found::Stamp(Stamped { holder, over: Some(_), .. }) => Renewal::Replaced(holder.clone()),
        Found::Stamp(Stamped { holder, over: None, .. }) => Renewal::Lost(holder.clone()),
        Found::Nothing | Found::Unreadable => Renewal::Renew,
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

    /// As a release without a record writes it.
    fn earlier(holder: Holder, counter: u64, released: bool) -> Found {
        Found::Stamp(Stamped { holder, counter, released, over: None })
    }

    fn stamp(holder: Holder, counter: u64, released: bool) -> Found {
        Found::Stamp(Stamped { holder, counter, released, over: Some(4) })
    }

    #[test]
    fn every_start_after_an_earlier_release() {
        let us = holder(1, 1, 9);
        // What the record holds is not what the last holder has written.
        for record in [Found::Nothing, Found::Unreadable, stamp(holder(3, 3, 3), 1, false)] {
            for alive in [false, true] {
                let judged = |claim: Found| judge_start(&Pages { claim, record: record.clone() }, &us, |_| alive);
                for (host, boot) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
                    let other = holder(host, boot, 5);
                    assert_eq!(judged(earlier(other.clone(), 3, true)), Start::Take, "a clean stop, whoever it was");
                    let expected = match (host, boot) {
                        (1, 1) if !alive => Start::Take,
                        _ => Start::Watch(Some(other.clone())),
                    };
                    assert_eq!(judged(earlier(other, 3, false)), expected, "host {host}, boot {boot}, alive {alive}");
                }
            }
        }
    }

    #[test]
    fn every_start() {
        let us = holder(1, 1, 9);
        let recorded = |instance| stamp(holder(3, 3, instance), 1, false);
        let judged = |claim, record, alive| judge_start(&Pages { claim, record }, &us, |_| alive);
        for alive in [false, true] {
            assert_eq!(judged(Found::Nothing, Found::Nothing, alive), Start::Take);
            assert_eq!(judged(Found::Unreadable, Found::Nothing, alive), Start::Watch(None));
            let first = Found::Stamp(Stamped { holder: us.clone(), counter: 1, released: true, over: Some(0) });
            assert_eq!(judged(first, Found::Unreadable, alive), Start::Watch(Some(us.clone())), "it may name another");
            let taken = Start::Watch(Some(holder(3, 3, 5)));
            assert_eq!(judged(Found::Nothing, recorded(5), alive), taken, "the claim was wiped under its holder");
            for (host, boot) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
                for released in [false, true] {
                    let other = holder(host, boot, 5);
                    let is_gone = (host, boot) == (1, 1) && !alive;
                    for (record, takes) in [
                        (Found::Nothing, released || is_gone),
                        (recorded(5), released || is_gone),
                        // It ended before it came to write the record.
                        (recorded(4), is_gone),
                        // Another has taken the device since.
                        (recorded(6), false),
                        (Found::Unreadable, false),
                    ] {
                        let claim = stamp(other.clone(), 3, released);
                        let found = judged(claim, record.clone(), alive);
                        let expected = if takes { Start::Take } else { Start::Watch(Some(other.clone())) };
                        assert_eq!(found, expected, "{host} {boot} {released} {alive}, {record:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_end_of_watching() {
        let (a, b) = (holder(2, 2, 5), holder(3, 3, 6));
        let claims = [
            Found::Nothing,
            Found::Unreadable,
            stamp(a.clone(), 3, false),
            stamp(a.clone(), 4, false),
            stamp(a, 4, true),
            stamp(b.clone(), 3, false),
        ];
        let records = [Found::Nothing, Found::Unreadable, stamp(b.clone(), 1, false)];
        let all = || claims.iter().flat_map(|claim| records.iter().map(move |record| (claim, record)));
        for (claim, record) in all() {
            let before = Pages { claim: claim.clone(), record: record.clone() };
            for (claim, record) in all() {
                let now = Pages { claim: claim.clone(), record: record.clone() };
                let is_new = |before: &Found, now: &Found| before != now && *now != Found::Unreadable;
                let expected = match claim {
                    Found::Stamp(stamp)
                        if *claim != before.claim && before.claim != Found::Unreadable && !stamp.released =>
                    {
                        Watched::Renewed(stamp.holder.clone())
                    }
                    _ if is_new(&before.claim, claim) || is_new(&before.record, record) => Watched::Anew,
                    _ => Watched::Still,
                };
                assert_eq!(judge_watched(&before, &now), expected, "{before:?}, then {now:?}");
            }
            assert_eq!(judge_watched(&before, &before), Watched::Still, "nobody has written");
        }
    }

    #[test]
    fn every_renewal() {
        let is_own = |instance| instance == 9;
        assert_eq!(judge_renewal(&Found::Nothing, is_own), Renewal::Renew);
        assert_eq!(judge_renewal(&Found::Unreadable, is_own), Renewal::Renew);
        for released in [false, true] {
            // An older stamp of its own: an export that went back to what had been flushed.
            for counter in [0, 3, u64::MAX] {
                assert_eq!(judge_renewal(&stamp(holder(1, 1, 9), counter, released), is_own), Renewal::Renew);
            }
            for (host, boot) in [(1, 1), (1, 2), (2, 2)] {
                let other = holder(host, boot, 5);
                let judged = |found| judge_renewal(&found, is_own);
                assert_eq!(judged(earlier(other.clone(), 3, released)), Renewal::Lost(other.clone()));
                assert_eq!(judged(stamp(other.clone(), 3, released)), Renewal::Replaced(other));
            }
        }
    }
}
