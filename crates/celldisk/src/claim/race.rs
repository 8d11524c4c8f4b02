//! The race of several processes for one device: which of them may take it, without any assumption on time.
//!
//! Two pages are on the device: the *claim* (the stamp of the holder, renewed) and the *record* (the stamp of the process that took the
//! device last, written once in each race). A process that has judged that the instance in the record has ended races to
//! replace it. A race is a splitter (Moir and Anderson, "Wait-free algorithms for fast, long-lived renaming", 1995; the fast
//! path of Lamport, "A fast mutual exclusion algorithm", 1987):
//!
//! 1. write the own stamp to the claim;
//! 2. read the record: it names the ended instance still, or another process has come so far;
//! 3. write the own stamp to the record, and have both durable;
//! 4. read the record: the ended instance there means that the device has lost the write;
//! 5. read the claim: the own stamp is there still, or another process has come after.
//!
//! At most one process that replaces the same instance passes both 2 and 5, however long each request or process takes. Of two that pass 5 the
//! earlier one has read its own stamp in the claim before the later one wrote there. So the record no longer named the ended instance
//! when the later one read it. Possibly nobody passes: then both watch the pages, and race again.
//!
//! [`Race::after`] is the whole decision; it does no I/O. Its test walks every interleaving of three processes.

use super::Sabotage;

/// One of the two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Page {
    Claim,
    Record,
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Write the own stamp to the claim.
    Announce,
    /// Read the record.
    Check,
    /// Write the own stamp to the record, and flush.
    Record,
    /// Read the record.
    Verify,
    /// Read the claim.
    Confirm,
    End(End),
}

/// How a race has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// The device is taken.
    Won,
    /// Another process takes part: what the page named shows its stamp.
    Beaten(Page),
    /// The device has lost what it acknowledged.
    NotThere,
}

/// One process in a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Race {
    /// Its instance. No other race has the same.
    pub(super) us: u128,
    /// The instance that the record named when that was judged to have ended; 0: none.
    pub(super) over: u128,
}

impl Race {
    /// What follows on `step`; `named` is the instance in the page that was read, 0 for none and for a step that writes.
    pub(super) fn after(self, step: Step, named: u128, sabotage: Option<Sabotage>) -> Step {
        match step {
            Step::Announce => Step::Check,
            Step::Check if named == self.over || sabotage == Some(Sabotage::RecordUnread) => Step::Record,
            Step::Check => Step::End(End::Beaten(Page::Record)),
            Step::Record => Step::Verify,
            // Another process that has passed 2 may be named there. It does not pass 5 if this one does.
            Step::Verify if named != self.over => Step::Confirm,
            Step::Verify => Step::End(End::NotThere),
            Step::Confirm if named == self.us || sabotage == Some(Sabotage::ClaimUnread) => Step::End(End::Won),
            Step::Confirm => Step::End(End::Beaten(Page::Claim)),
            Step::End(end) => Step::End(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Found, Holder, Pages, Stamped, Start, judge_start};
    use super::*;
    use std::collections::BTreeSet;

    /// What a page holds, in short.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    struct Stamp {
        instance: u128,
        over: u128,
        released: bool,
    }

    /// Where a process is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum At {
        /// Nothing is read yet.
        Begins,
        /// The first page is read.
        HasRead(Stamp),
        /// Both pages are read, and a holder may be alive.
        Watches {
            record: Stamp,
            claim: Stamp,
        },
        Races(Race, Step),
        /// The process may change the device.
        Uses(Race),
        /// The own stamp was read in the claim, and is about to be written anew.
        Renews {
            race: Race,
            uses: bool,
        },
        /// The last look is too long ago: no changes.
        Overdue(Race),
        /// No changes any more; the released stamp is about to be written.
        GivesBack(Race),
        Ended,
    }

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        claim: Stamp,
        record: Stamp,
        processes: Vec<At>,
        /// By process: whether it was killed. The first instance of a process is `10 * (number + 1)`.
        gone: Vec<bool>,
    }

    /// The build that is tested, perhaps a broken one.
    #[derive(Clone, Copy, Default)]
    struct Build {
        sabotage: Option<Sabotage>,
        /// A released stamp counts whatever the record says.
        trusts_released: bool,
        /// The pages are read in the other order.
        claim_first: bool,
        /// A holder that is overdue goes on with its old stamp where that is still there.
        overdue_renews: bool,
    }

    fn holder(instance: u128) -> Holder {
        Holder { host: 1, boot: 1, instance, process: 1, process_started: 1, host_name: String::new() }
    }

    fn found(stamp: Stamp, build: Build) -> Found {
        if stamp == Stamp::default() {
            return Found::Nothing;
        }
        let over = (!build.trusts_released || !stamp.released).then_some(stamp.over);
        Found::Stamp(Stamped { holder: holder(stamp.instance), counter: 1, released: stamp.released, over })
    }

    fn is_user(at: &At) -> bool {
        matches!(at, At::Uses(_) | At::Renews { uses: true, .. })
    }

    impl World {
        fn users(&self) -> usize {
            self.processes.iter().zip(&self.gone).filter(|(at, gone)| is_user(at) && !**gone).count()
        }

        fn with(&self, number: usize, at: At) -> World {
            let mut next = self.clone();
            next.processes[number] = at;
            next
        }

        fn judge(&self, record: Stamp, claim: Stamp, build: Build) -> Start {
            let pages = Pages { claim: found(claim, build), record: found(record, build) };
            let is_alive = |other: &Holder| self.gone.get(other.instance as usize / 10 - 1).is_some_and(|gone| !gone);
            judge_start(&pages, &holder(1), is_alive)
        }

        /// Every step that may come next, of every process.
        fn next(&self, build: Build) -> Vec<World> {
            let mut all = Vec::new();
            for (number, &at) in self.processes.iter().enumerate() {
                if self.gone[number] || at == At::Ended {
                    continue;
                }
                let mut killed = self.clone();
                killed.gone[number] = true;
                all.push(killed);
                self.moves(number, at, build, &mut all);
            }
            all
        }

        fn moves(&self, number: usize, at: At, build: Build, all: &mut Vec<World>) {
            let first = 10 * (number as u128 + 1);
            let begin = |record: Stamp| {
                let race = Race { us: first, over: record.instance };
                At::Races(race, Step::Announce)
            };
            match at {
                At::Begins if build.claim_first => all.push(self.with(number, At::HasRead(self.claim))),
                At::Begins => all.push(self.with(number, At::HasRead(self.record))),
                At::HasRead(read) => {
                    let (record, claim) = if build.claim_first { (self.record, read) } else { (read, self.claim) };
                    let at = match self.judge(record, claim, build) {
                        Start::Take => begin(record),
                        Start::Watch(_) => At::Watches { record, claim },
                    };
                    all.push(self.with(number, at));
                }
                // Time: a process that has watched for long enough has seen a change, or every other use is overdue. So is a race that began before.
                At::Watches { record, claim } if (record, claim) != (self.record, self.claim) => {
                    all.push(self.with(number, At::Ended));
                }
                At::Watches { record, .. } => {
                    let mut next = self.with(number, begin(record));
                    for (other, at) in next.processes.iter_mut().enumerate() {
                        match *at {
                            At::Uses(race) => *at = At::Overdue(race),
                            At::Renews { race, .. } => *at = At::Renews { race, uses: false },
                            At::Races(race, Step::Verify | Step::Confirm) if other != number => *at = At::Overdue(race),
                            _ => {}
                        }
                    }
                    all.push(next);
                }
                At::Races(race, step) => {
                    let mut next = self.clone();
                    let stamp = Stamp { instance: race.us, over: race.over, released: false };
                    let named = match step {
                        Step::Announce => {
                            next.claim = stamp;
                            0
                        }
                        Step::Record => {
                            next.record = stamp;
                            0
                        }
                        Step::Check | Step::Verify => self.record.instance,
                        Step::Confirm => self.claim.instance,
                        Step::End(_) => unreachable!("it has ended"),
                    };
                    next.processes[number] = match race.after(step, named, build.sabotage) {
                        Step::End(End::Won) => At::Uses(race),
                        Step::End(_) => At::Ended,
                        step => At::Races(race, step),
                    };
                    all.push(next);
                }
                At::Uses(race) => {
                    all.push(self.with(number, At::GivesBack(race)));
                    if self.claim.instance == race.us {
                        all.push(self.with(number, At::Renews { race, uses: true }));
                    }
                }
                At::Renews { race, uses } => {
                    let mut next = self.with(number, if uses { At::Uses(race) } else { At::Overdue(race) });
                    next.claim = Stamp { instance: race.us, over: race.over, released: false };
                    all.push(next);
                }
                At::Overdue(race) if build.overdue_renews => {
                    if self.claim.instance == race.us {
                        all.push(self.with(number, At::Renews { race, uses: true }));
                    }
                }
                At::Overdue(race) => {
                    let own = |instance: u128| instance / 10 == race.us / 10;
                    // Two races of each process at most, so that the walk ends.
                    let again = Race { us: race.us + 1, over: self.record.instance };
                    let races = own(self.record.instance) && again.us % 10 < 2;
                    let at = if races { At::Races(again, Step::Announce) } else { At::Ended };
                    all.push(self.with(number, at));
                }
                At::GivesBack(race) => {
                    let mut next = self.with(number, At::Ended);
                    next.claim = Stamp { instance: race.us, over: race.over, released: true };
                    all.push(next);
                }
                At::Ended => {}
            }
        }
    }

    /// Every world that can come of `count` processes on a device that nobody has used, until two use it: that one, and how many won.
    fn walk(count: usize, build: Build) -> (Option<World>, usize) {
        let begins = World {
            claim: Stamp::default(),
            record: Stamp::default(),
            processes: vec![At::Begins; count],
            gone: vec![false; count],
        };
        let (mut seen, mut left, mut used) = (BTreeSet::from([begins.clone()]), vec![begins], 0);
        while let Some(world) = left.pop() {
            match world.users() {
                0 => {}
                1 => used += 1,
                _ => return (Some(world), used),
            }
            for next in world.next(build) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        (None, used)
    }

    #[test]
    fn whatever_the_order_one_process_uses_the_device() {
        for count in 1..=3 {
            let (two_users, used) = walk(count, Build::default());
            assert_eq!(two_users, None, "{count} processes");
            assert!(used > 0, "{count} processes: somebody may use it");
        }
    }

    #[test]
    fn every_part_of_it_is_needed() {
        let sound = Build::default();
        for (name, build) in [
            ("the record is not read", Build { sabotage: Some(Sabotage::RecordUnread), ..sound }),
            ("the claim is not read again", Build { sabotage: Some(Sabotage::ClaimUnread), ..sound }),
            ("a released stamp counts whatever the record says", Build { trusts_released: true, ..sound }),
            ("the claim is read before the record", Build { claim_first: true, ..sound }),
            ("one that is overdue renews", Build { overdue_renews: true, ..sound }),
        ] {
            assert!(walk(3, build).0.is_some(), "{name}: not caught");
        }
    }

    #[test]
    fn one_alone_takes_the_device() {
        let race = Race { us: 9, over: 4 };
        let (mut step, mut claim, mut record, mut steps) = (Step::Announce, 4, 4, 0);
        while !matches!(step, Step::End(_)) {
            let named = match step {
                Step::Announce => {
                    claim = 9;
                    0
                }
                Step::Record => {
                    record = 9;
                    0
                }
                Step::Check | Step::Verify => record,
                Step::Confirm | Step::End(_) => claim,
            };
            step = race.after(step, named, None);
            steps += 1;
        }
        assert_eq!((step, steps), (Step::End(End::Won), 5));
        assert_eq!(race.after(Step::Verify, 4, None), Step::End(End::NotThere), "the record was lost");
    }
}
