//! Several devices as one: striped, striped over pairs of mirrors, or striped with parity.
//!
//! A write of less than a row of a set with parity reads what is there and its parity, and writes both anew, one step after the other. No cache of a
//! controller is in the way. Of a pair of mirrors the one and the other read in turn; both write.

use super::disk::{Disk, DiskModel};
use super::{Cost, Timing};
use device::{Verb, World};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the members hold what the set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// RAID 0.
    Striped,
    /// RAID 1+0: pairs of members hold the same.
    Mirrored,
    /// RAID 5: in each row of stripes one has the parity of the others.
    Parity,
}

impl Level {
    /// The words of a description.
    pub(crate) const NAMES: [(&'static str, Level); 3] =
        [("0", Level::Striped), ("1+0", Level::Mirrored), ("5", Level::Parity)];

    /// Of so many members, how many hold what no other holds.
    pub(crate) fn data_members(self, members: u64) -> u64 {
        match self {
            Level::Striped => members,
            Level::Mirrored => members / 2,
            Level::Parity => members - 1,
        }
    }
}

/// See the module.
pub(crate) struct Raid {
    members: Vec<Arc<dyn Timing>>,
    level: Level,
    stripe_bytes: u64,
    /// Reads so far, for whose turn it is.
    reads: AtomicU64,
}

impl Raid {
    pub(crate) fn new(level: Level, stripe_bytes: u64, members: Vec<Arc<dyn Timing>>) -> Arc<Raid> {
        Arc::new(Raid { members, level, stripe_bytes, reads: AtomicU64::new(0) })
    }

    /// So many of a disk, striped.
    pub(crate) fn of_disks(model: DiskModel, count: usize, stripe_bytes: u64, world: &World) -> Arc<Raid> {
        let member = |_| Disk::new(model, world) as Arc<dyn Timing>;
        Raid::new(Level::Striped, stripe_bytes, (0..count).map(member).collect())
    }

    /// Pieces of a request, each within a stripe: the number of its stripe, where it begins in it, and its length.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let (mut at, end, stripe) = (offset, offset + len, self.stripe_bytes);
        std::iter::from_fn(move || {
            let len = (stripe - at % stripe).min(end - at);
            let piece = (at / stripe, at % stripe, len);
            at += len;
            (len > 0).then_some(piece)
        })
    }

    /// A set without parity: which members, and where on them.
    fn plain(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        let width = self.level.data_members(self.members.len() as u64);
        let mut costs = Vec::new();
        for (stripe, within, len) in self.pieces(offset, len) {
            let (column, place) = ((stripe % width) as usize, stripe / width * self.stripe_bytes + within);
            match (self.level, verb) {
                (Level::Mirrored, Verb::Read) => {
                    let turn = (self.reads.fetch_add(1, Ordering::Relaxed) % 2) as usize;
                    costs.push(self.members[2 * column + turn].take(verb, place, len, fua));
                }
                (Level::Mirrored, _) => {
                    let pair = self.members[2 * column..2 * column + 2].iter();
                    costs.extend(pair.map(|member| member.take(verb, place, len, fua)));
                }
                _ => costs.push(self.members[column].take(verb, place, len, fua)),
            }
        }
        Box::pin(async {
            join_all(costs).await;
        })
    }

    /// A write to a set with parity, row by row.
    fn with_parity(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        let (members, stripe) = (self.members.len() as u64, self.stripe_bytes);
        let (row_bytes, end) = ((members - 1) * stripe, offset + len);
        let mut rows: Vec<Cost> = Vec::new();
        let mut at = offset;
        while at < end {
            let row = at / row_bytes;
            let upto = ((row + 1) * row_bytes).min(end);
            let parity = (row % members) as usize;
            let mut touched: Vec<(usize, u64, u64)> = Vec::new();
            for (number, within, len) in self.pieces(at, upto - at) {
                touched.push((self.column(number, parity), row * stripe + within, len));
            }
            let (low, high) = touched
                .iter()
                .fold((u64::MAX, 0), |(low, high), (_, place, len)| (low.min(*place), high.max(place + len)));
            let is_whole = upto - at == row_bytes;
            touched.push((parity, low, high - low));
            let all: Vec<_> =
                touched.into_iter().map(|(n, place, len)| (self.members[n].clone(), place, len)).collect();
            rows.push(Box::pin(async move {
                if !is_whole {
                    join_all(all.iter().map(|(member, place, len)| member.take(Verb::Read, *place, *len, false))).await;
                }
                join_all(all.iter().map(|(member, place, len)| member.take(verb, *place, *len, fua))).await;
            }));
            at = upto;
        }
        Box::pin(async {
            join_all(rows).await;
        })
    }

    /// The member that has a stripe, where another one has the parity of its row.
    fn column(&self, stripe: u64, parity: usize) -> usize {
        let column = (stripe % (self.members.len() as u64 - 1)) as usize;
        column + usize::from(column >= parity)
    }

    fn read_beside_parity(&self, offset: u64, len: u64) -> Cost {
        let members = self.members.len() as u64;
        let pieces = self.pieces(offset, len).map(|(stripe, within, len)| {
            let row = stripe / (members - 1);
            let member = &self.members[self.column(stripe, (row % members) as usize)];
            member.take(Verb::Read, row * self.stripe_bytes + within, len, false)
        });
        let pieces: Vec<Cost> = pieces.collect();
        Box::pin(async {
            join_all(pieces).await;
        })
    }
}

impl Timing for Raid {
    fn take(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        match (verb, self.level) {
            (Verb::Flush, _) => {
                let all: Vec<Cost> = self.members.iter().map(|member| member.take(verb, 0, 0, false)).collect();
                Box::pin(async {
                    join_all(all).await;
                })
            }
            (Verb::Status | Verb::Discard, _) => Box::pin(async {}),
            (Verb::Read, Level::Parity) => self.read_beside_parity(offset, len),
            (Verb::Write | Verb::WriteZeroes, Level::Parity) => self.with_parity(verb, offset, len, fua),
            (Verb::Read | Verb::Write | Verb::WriteZeroes, _) => self.plain(verb, offset, len, fua),
        }
    }

    fn is_rotational(&self) -> bool {
        self.members.iter().any(|member| member.is_rotational())
    }

    fn has_volatile_cache(&self) -> bool {
        self.members.iter().any(|member| member.has_volatile_cache())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each member is asked for what it holds, and no place of a member is two places of the set. Method: members that write down what they
    //! are asked.
    use super::*;
    use device::sync::lock;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    type Asked = Arc<Mutex<Vec<(usize, Verb, u64, u64)>>>;

    struct Member(usize, Asked);

    impl Timing for Member {
        fn take(&self, verb: Verb, offset: u64, len: u64, _fua: bool) -> Cost {
            lock(&self.1).push((self.0, verb, offset, len));
            Box::pin(async {})
        }

        fn is_rotational(&self) -> bool {
            true
        }

        fn has_volatile_cache(&self) -> bool {
            false
        }
    }

    fn asked(level: Level, members: usize, requests: &[(Verb, u64, u64)]) -> Vec<(usize, Verb, u64, u64)> {
        let book = Asked::default();
        let made = (0..members).map(|n| Arc::new(Member(n, book.clone())) as Arc<dyn Timing>).collect();
        let raid = Raid::new(level, 64, made);
        for (verb, offset, len) in requests {
            futures_util::FutureExt::now_or_never(raid.take(*verb, *offset, *len, false));
        }
        lock(&book).clone()
    }

    #[test]
    fn small_writes_cost_what_their_level_says() {
        let read = |level, members| asked(level, members, &[(Verb::Read, 64, 32)]).len();
        let write = |level, members| asked(level, members, &[(Verb::Write, 64, 32)]).len();
        assert_eq!([read(Level::Striped, 4), read(Level::Mirrored, 4), read(Level::Parity, 4)], [1, 1, 1]);
        // Data and parity are read, then written.
        assert_eq!([write(Level::Striped, 4), write(Level::Mirrored, 4), write(Level::Parity, 4)], [1, 2, 4]);
        // A whole row needs no reads.
        let row = asked(Level::Parity, 4, &[(Verb::Write, 192, 192)]);
        assert!(
            row.len() == 4 && row.iter().all(|(_, verb, place, len)| (*verb, *place, *len) == (Verb::Write, 64, 64))
        );
        // Mirrors read in turn.
        let turns = asked(Level::Mirrored, 2, &[(Verb::Read, 0, 8), (Verb::Read, 0, 8)]);
        assert_eq!(turns.iter().map(|(member, ..)| *member).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn no_two_places_are_one() {
        for (level, members) in [(Level::Striped, 3), (Level::Mirrored, 4), (Level::Parity, 3), (Level::Parity, 5)] {
            let mut places = BTreeSet::new();
            for stripe in 0..60_u64 {
                let asked = asked(level, members, &[(Verb::Read, stripe * 64, 64)]);
                assert!(asked.len() == 1 && places.insert((asked[0].0, asked[0].2)), "{level:?} {members} {stripe}");
                if level == Level::Parity {
                    let parity = (stripe / (members as u64 - 1) % members as u64) as usize;
                    assert!(asked[0].0 != parity, "parity lies there");
                }
            }
        }
    }
}
