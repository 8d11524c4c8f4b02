//! Which end belongs to which request of those that the kernel tells of: how long each took.
//!
//! A request is told as it is queued (`block_bio_queue`), and its end in one of two ways: of a disk whose driver takes requests that the
//! elevator has merged and split (`block_rq_complete`), or of a device that takes what is queued as it is (`block_bio_complete`: LVM, md,
//! zram). The kernel tells no number of a request, so that an end counts for the sectors it names, each once: for the request of the same kind
//! that waits for just these, else the oldest that waits for them. Requests that overlap while both are under way may have each other's end.
//! Memory is bounded, and none waits for ever: such a one goes on without a latency. Never changes the order.

use super::capture::Kind;
use super::kernel::{Done, KernelEvent, Queued};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// Requests under way that are remembered; of more the oldest goes on without a latency.
const UNDER_WAY_MAX: usize = 1 << 16;
/// Nothing waits for its end for longer than this.
const WAITED_NS: u64 = 1_000_000_000;
/// Requests that end behind a sector, which are looked at for the one that has it.
const LOOKED_AT: usize = 64;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Read,
    Write,
    Trim,
    Zero,
    Flush,
    /// A durable write whose data have been written: the flush behind it.
    Tail,
}

impl Side {
    fn of(kind: Option<Kind>) -> Side {
        match kind {
            Some(Kind::Read | Kind::Prefetch) => Side::Read,
            Some(Kind::Write) => Side::Write,
            Some(Kind::Trim) => Side::Trim,
            Some(Kind::Zero) => Side::Zero,
            Some(Kind::Flush) | None => Side::Flush,
        }
    }
}

/// Disk, what is waited for, the sector behind it (of a flush: its own), and which request.
type Key = ((u32, u32), Side, u64, u64);

struct Request {
    queued: Queued,
    /// What it waits for; none when it has ended.
    side: Option<Side>,
    /// Ranges of sectors that have not ended.
    left: Vec<Range<u64>>,
    latency_ns: Option<u64>,
}

impl Request {
    fn end(&self) -> u64 {
        self.queued.sector.saturating_add(self.queued.sectors)
    }

    /// The rest of what it waits for from that sector on, without a gap.
    fn left_from(&self, sector: u64) -> Option<Range<u64>> {
        self.left.iter().find(|range| range.contains(&sector)).map(|range| sector..range.end)
    }

    /// These, which are part of what it waits for, have ended.
    fn ended(&mut self, sectors: &Range<u64>) {
        let Some(at) = self.left.iter().position(|range| range.contains(&sectors.start)) else { return };
        let range = self.left.swap_remove(at);
        let around = [range.start..sectors.start, sectors.end..range.end];
        self.left.extend(around.into_iter().filter(|range| !range.is_empty()));
    }
}

/// See the module.
#[derive(Default)]
pub struct Pairs {
    /// Number of the first that is remembered.
    first: u64,
    requests: VecDeque<Request>,
    /// Those that have not ended.
    waiting: BTreeSet<Key>,
    newest_ns: u64,
}

impl Pairs {
    /// The kernel has told something.
    pub fn add(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Queued(queued) => self.queued(queued),
            KernelEvent::Done(done) => self.done(&done),
        }
    }

    /// The next request in the order they were queued, and how long it took; none while it is waited for. `now_ns`, of the clock of the
    /// events: up to then everything has been told; none: no more is known than the newest event. `last`: nothing is waited for.
    pub fn next(&mut self, now_ns: Option<u64>, last: bool) -> Option<(Queued, Option<u64>)> {
        let now_ns = self.newest_ns.max(now_ns.unwrap_or(0));
        let is_too_many = self.requests.len() > UNDER_WAY_MAX;
        let goes = |request: &Request| {
            let is_old = now_ns.saturating_sub(request.queued.time_ns) > WAITED_NS;
            last || is_too_many || is_old || request.side.is_none()
        };
        self.requests.front().filter(|request| goes(request))?;
        let request = self.requests.pop_front()?;
        if let Some(side) = request.side {
            self.waiting.remove(&(request.queued.disk, side, request.end(), self.first));
        }
        self.first += 1;
        Some((request.queued, request.latency_ns))
    }

    fn queued(&mut self, queued: Queued) {
        self.newest_ns = self.newest_ns.max(queued.time_ns);
        let side = Side::of(queued.kinds.iter().copied().find(|kind| *kind != Kind::Flush));
        let number = self.first + self.requests.len() as u64;
        let mut request = Request { left: Vec::new(), side: Some(side), latency_ns: None, queued };
        let end = request.end();
        request.left.push(request.queued.sector..end);
        self.waiting.insert((request.queued.disk, side, end, number));
        self.requests.push_back(request);
    }

    fn request(&mut self, number: u64) -> Option<&mut Request> {
        self.requests.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn done(&mut self, done: &Done) {
        self.newest_ns = self.newest_ns.max(done.time_ns);
        if done.sectors > 0 {
            self.done_sectors(done);
            return;
        }
        // The flush that the elevator makes of one or several requests: it tells the end of each besides.
        if done.kind.is_none() && !done.is_whole {
            return;
        }
        let disk = done.disk;
        let tails =
            self.behind(disk, Side::Tail, done.sector).filter(|(_, request)| request.queued.sector <= done.sector);
        let tail = tails.map(|(number, _)| number).min();
        let exactly = |side| {
            let of = self.waiting.range((disk, side, done.sector, 0)..=(disk, side, done.sector, u64::MAX));
            of.map(|key| key.3).next()
        };
        // A device may have moved what tells where a request begins on to its end.
        let moved = || exactly(Side::of(done.kind)).filter(|_| done.is_whole);
        if let Some(number) = tail.or_else(|| exactly(Side::Flush)).or_else(moved) {
            self.ends(number, None, done.time_ns);
        }
    }

    /// Those that end behind a sector, with their numbers.
    fn behind(&self, disk: (u32, u32), side: Side, sector: u64) -> impl Iterator<Item = (u64, &Request)> {
        let from = (disk, side, sector.saturating_add(1), 0);
        let found = self.waiting.range(from..=(disk, side, u64::MAX, u64::MAX)).take(LOOKED_AT);
        found.filter_map(|key| {
            let at = usize::try_from(key.3 - self.first).ok()?;
            Some((key.3, self.requests.get(at)?))
        })
    }

    fn done_sectors(&mut self, done: &Done) {
        let side = Side::of(done.kind);
        let mut rest = done.sector..done.sector.saturating_add(done.sectors);
        while !rest.is_empty() {
            let at = rest.start;
            let waiting = self.behind(done.disk, side, at).filter_map(|(number, request)| {
                let left = request.left_from(at)?;
                // All of a request that was neither merged nor split, or of one of those that were merged.
                let is_whole = request.queued.sector == at && left.end == request.end() && left.end <= rest.end;
                Some((!(is_whole && left.end == rest.end), !is_whole, number, left.end))
            });
            let Some((.., number, left_end)) = waiting.min() else {
                // Not seen as it was queued: on with the next that was.
                let starts = self.behind(done.disk, side, at).flat_map(|(_, request)| &request.left);
                let next = starts.map(|range| range.start).filter(|start| *start > at).min();
                rest.start = next.unwrap_or(rest.end);
                continue;
            };
            let ended = at..left_end.min(rest.end);
            rest.start = ended.end;
            let Some(request) = self.request(number) else { return };
            request.ended(&ended);
            if request.left.is_empty() {
                // The elevator takes the durability off what it writes where the disk does not know it, and flushes behind it.
                let has_tail = request.queued.is_durable() && !done.is_durable && !done.is_whole;
                self.ends(number, has_tail.then_some(Side::Tail), done.time_ns);
            }
        }
    }

    /// A request waits for that now, or for nothing any more.
    fn ends(&mut self, number: u64, then: Option<Side>, time_ns: u64) {
        let Some(request) = self.request(number) else { return };
        let (disk, end) = (request.queued.disk, request.end());
        let before = std::mem::replace(&mut request.side, then);
        if then.is_none() {
            request.latency_ns = Some(time_ns.saturating_sub(request.queued.time_ns));
        }
        self.waiting.extend(then.map(|side| (disk, side, end, number)));
        if let Some(side) = before {
            self.waiting.remove(&(disk, side, end, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::event;
    use super::*;
    use std::fmt::Write as _;

    /// What comes out of lines `microseconds event device letters …`, with what is left at the end.
    fn paired(lines: &str) -> String {
        fn told(pairs: &mut Pairs, last: bool, text: &mut String) {
            while let Some((queued, latency_ns)) = pairs.next(None, last) {
                let latency = latency_ns.map_or("-".to_owned(), |ns| format!("{} us", ns / 1000));
                let _ = writeln!(text, "{:?} {} + {}: {latency}", queued.kinds, queued.sector, queued.sectors);
            }
        }
        let mut pairs = Pairs::default();
        let mut text = String::new();
        for line in lines.trim().lines() {
            let Some((us, rest)) = line.trim().split_once(' ') else { unreachable!("{line}") };
            let us: u64 = us.parse().unwrap_or(0);
            let line = format!("x-1 [000] ..... {}.{:06}: block_{rest} [x]", us / 1_000_000, us % 1_000_000);
            let Ok(Some(event)) = event(line.as_bytes()) else { unreachable!("{line}") };
            pairs.add(event);
            told(&mut pairs, false, &mut text);
        }
        text.push_str("at the end:\n");
        told(&mut pairs, true, &mut text);
        assert!(pairs.waiting.is_empty() && pairs.requests.is_empty(), "nothing is left");
        text
    }

    /// As Linux 6.18 tells of a loop device: requests split and merged, a durable write, a flush.
    #[test]
    fn requests_of_a_disk() {
        let got = paired(
            "10 bio_queue: 7,1 R 0 + 16
             20 rq_complete: 7,1 R () 0 + 8 be,0,4
             40 rq_complete: 7,1 R () 8 + 8 be,0,4
             50 bio_queue: 7,1 WS 64 + 8
             51 bio_queue: 7,1 WS 72 + 8
             60 rq_complete: 7,1 WS () 64 + 16 be,0,4
             70 bio_queue: 7,1 WFS 800 + 8
             80 rq_complete: 7,1 WS () 800 + 8 be,0,4
             90 rq_complete: 7,1 FF () 18446744073709551615 + 0 none,0,0
             91 rq_complete: 7,1 WS () 800 + 0 be,0,4
             100 bio_queue: 7,1 FWS 0 + 0
             110 rq_complete: 7,1 FF () 18446744073709551615 + 0 none,0,0
             112 rq_complete: 7,1 WS () 0 + 0 be,0,4
             120 bio_queue: 7,1 DS 2048 + 2048
             121 bio_queue: 7,1 NS 4096 + 2048
             130 rq_complete: 7,1 NS () 4096 + 2048 be,0,4
             140 rq_complete: 7,1 DS () 2048 + 2048 be,0,4",
        );
        expect_test::expect![[r"
            [Read] 0 + 16: 30 us
            [Write] 64 + 8: 10 us
            [Write] 72 + 8: 9 us
            [Write, Flush] 800 + 8: 21 us
            [Flush] 0 + 0: 12 us
            [Trim] 2048 + 2048: 20 us
            [Zero] 4096 + 2048: 9 us
            at the end:
        "]]
        .assert_eq(&got);
    }

    /// A disk that knows durable writes, and a device that takes what is queued: with the place it began at, or moved on to its end.
    #[test]
    fn other_devices() {
        let got = paired(
            "10 bio_queue: 259,0 FWFS 800 + 8
             20 rq_complete: 259,0 WFS () 800 + 8 be,0,4
             21 rq_complete: 259,0 WFS () 800 + 0 be,0,4
             30 bio_queue: 253,1 WFS 64 + 8
             33 bio_complete: 253,1 WFS 64 + 8
             40 bio_queue: 253,1 R 64 + 8
             44 bio_complete: 253,1 R 72 + 0
             50 bio_queue: 253,1 FWS 0 + 0
             55 bio_complete: 253,1 FWS 0 + 0",
        );
        expect_test::expect![[r"
            [Flush, Write, Flush] 800 + 8: 10 us
            [Write, Flush] 64 + 8: 3 us
            [Read] 64 + 8: 4 us
            [Flush] 0 + 0: 5 us
            at the end:
        "]]
        .assert_eq(&got);
    }

    /// The oldest of several at one place first, in the order they were queued; ends that nobody waits for are nobody's; another disk's and
    /// another kind's too; one that does not end is waited for and goes on without.
    #[test]
    fn what_belongs_to_nothing() {
        let got = paired(
            "10 bio_queue: 7,1 R 0 + 8
             11 bio_queue: 7,1 R 0 + 8
             12 rq_complete: 7,2 R () 0 + 8 be,0,4
             13 rq_complete: 7,1 W () 0 + 8 be,0,4
             14 rq_complete: 7,1 R () 96 + 8 be,0,4
             20 rq_complete: 7,1 R () 0 + 8 be,0,4
             30 rq_complete: 7,1 R () 0 + 8 be,0,4
             40 bio_queue: 7,1 R 8 + 8
             41 bio_queue: 7,1 R 32 + 8
             50 rq_complete: 7,1 R () 24 + 16 be,0,4
             999000 bio_queue: 7,1 R 64 + 8
             1000041 bio_queue: 7,1 FWS 0 + 0",
        );
        expect_test::expect![[r"
            [Read] 0 + 8: 10 us
            [Read] 0 + 8: 19 us
            [Read] 8 + 8: -
            [Read] 32 + 8: 9 us
            at the end:
            [Read] 64 + 8: -
            [Flush] 0 + 0: -
        "]]
        .assert_eq(&got);
    }

    /// Requests that overlap while they are under way: each has an end, whichever, and none is counted twice.
    #[test]
    fn requests_that_overlap() {
        let got = paired(
            "10 bio_queue: 7,1 R 0 + 16
             11 bio_queue: 7,1 R 8 + 16
             12 bio_queue: 7,1 R 8 + 8
             20 rq_complete: 7,1 R () 8 + 8 be,0,4
             30 rq_complete: 7,1 R () 8 + 16 be,0,4
             40 rq_complete: 7,1 R () 4 + 12 be,0,4
             50 rq_complete: 7,1 R () 0 + 4 be,0,4",
        );
        expect_test::expect![[r"
            [Read] 0 + 16: 40 us
            [Read] 8 + 16: 19 us
            [Read] 8 + 8: 8 us
            at the end:
        "]]
        .assert_eq(&got);
    }

    #[test]
    fn memory_is_bounded() {
        let mut pairs = Pairs::default();
        let read = |sector| Queued { time_ns: 1, disk: (7, 0), kinds: vec![Kind::Read], sector, sectors: 8 };
        for n in 0..UNDER_WAY_MAX as u64 {
            pairs.add(KernelEvent::Queued(read(8 * n)));
        }
        assert_eq!(pairs.next(None, false), None);
        pairs.add(KernelEvent::Queued(read(0)));
        assert_eq!(pairs.next(None, false), Some((read(0), None)));
        assert_eq!((pairs.next(None, false), pairs.waiting.len()), (None, UNDER_WAY_MAX));
        assert_eq!(pairs.next(Some(WAITED_NS + 2), false), Some((read(8), None)), "and the time");
    }
}
