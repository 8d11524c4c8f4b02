//! What one stretch of bytes may hold: the versions that no answer so far rules out.
//!
//! Each write takes effect at one moment between its begin and its end; which moment is unknown, but answers narrow it
//! down. A version `x` lies before a version `y` for certain when `y` happened, and `y` was begun, or was read by a
//! read begun, after the last moment at which `x` can have happened. (With one value for each write this decides
//! exactly whether a history is possible: Gibbons and Korach, "Testing shared memories", 1997.)
//!
//! - A read may return `x` unless some `y` after `x` happened before the read began.
//! - A power cut may leave `x` unless some `y` after `x` is durable, or lies before a durable one.
//!
//! After a cut the versions left are *survivors*: one of them is the content, the first read says which, and that
//! answer is durable. Zeroes are the one value that many versions share: a read that may have seen several of them
//! makes them one.

use smallvec::SmallVec;

/// Logical time: every call of the model's is a moment of its own.
pub(super) type Moment = u64;
/// Not yet, or never.
pub(super) const NEVER: Moment = u64::MAX;

/// What an operation leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of its own.
    Data,
    /// Zeroes.
    Zeroes,
    /// Zeroes, or what was there before.
    Trim,
}

/// A write, zero or trim.
#[derive(Clone, Debug)]
pub(super) struct OpInfo {
    pub(super) kind: Kind,
    pub(super) range: std::ops::Range<u64>,
    pub(super) fua: bool,
    pub(super) begin: Moment,
    /// It cannot take effect after this.
    pub(super) decided: Moment,
    /// It was acknowledged.
    pub(super) acked: Moment,
}

/// One value the stretch may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Who wrote it; several only for zeroes.
    pub(super) ops: SmallVec<[u32; 2]>,
    /// Operations of survivors among what was made one: they say nothing about when it happened, but bytes next to each
    /// other whose zeroes have other histories must not be taken for one stretch.
    past: SmallVec<[u32; 2]>,
    /// Survivor of the cut at that moment.
    survivor: Option<Moment>,
    /// Being a survivor it may still be lost, until a flush that began since: somebody may have written it once more.
    rewritten: bool,
    /// Several versions made one.
    united: bool,
    /// One of them was a survivor: it may be as old as that.
    old: bool,
    /// End of the first read that returned it.
    seen_end: Moment,
    /// Begin of the last read that returned it.
    seen_begin: Moment,
    /// No read that is still out or will come can return it.
    overwritten: bool,
    /// No cut can leave it.
    buried: bool,
}

/// What is known of a version.
#[derive(Clone, Copy)]
struct Facts {
    begin: Moment,
    /// It cannot have happened after this.
    end: Moment,
    happened: bool,
    /// If it happened: at this moment it had. Earlier than `end` only where several zeroes were made one, since a read
    /// of zeroes says that one of them has happened and not that none of them will.
    happened_by: Moment,
    /// It was the content at this moment or later, if it happened.
    start: Moment,
    durable: bool,
}

/// The operations of a model, by number.
pub(super) type Ops = Vec<OpInfo>;

impl Version {
    pub(super) fn new(op: u32) -> Version {
        Version {
            ops: SmallVec::from_slice(&[op]),
            past: SmallVec::new(),
            survivor: None,
            rewritten: false,
            united: false,
            old: false,
            seen_end: NEVER,
            seen_begin: 0,
            overwritten: false,
            buried: false,
        }
    }

    /// Its bytes are zeroes.
    pub(super) fn is_zero(&self, ops: &Ops) -> bool {
        ops[self.ops[0] as usize].kind != Kind::Data
    }

    /// Begin of the last read that returned it, 0 for none.
    pub(super) fn seen_begin(&self) -> Moment {
        self.seen_begin
    }

    /// Left by a power cut.
    pub(super) fn is_survivor(&self) -> bool {
        self.survivor.is_some()
    }

    fn facts(&self, ops: &Ops, flushed_before: Moment) -> Facts {
        let seen = self.seen_end != NEVER;
        if let Some(cut) = self.survivor {
            return Facts {
                begin: 0,
                end: cut,
                happened: seen,
                happened_by: cut,
                start: self.seen_begin,
                durable: !self.rewritten || flushed_before > cut,
            };
        }
        let mut of = self.ops.iter().map(|&op| &ops[op as usize]);
        let (mut begin, mut decided, mut acked, mut fua, mut sure) = (NEVER, 0, 0, true, seen);
        for op in of.by_ref() {
            begin = begin.min(op.begin);
            decided = decided.max(op.decided);
            acked = acked.max(op.acked);
            fua &= op.fua;
            sure |= op.kind != Kind::Trim && op.acked != NEVER;
        }
        if self.old {
            begin = 0;
        }
        Facts {
            begin,
            end: if self.united { decided } else { decided.min(self.seen_end) },
            happened: sure,
            happened_by: if self.united { self.seen_end } else { decided.min(self.seen_end) },
            start: begin.max(self.seen_begin),
            durable: acked != NEVER && (fua || acked < flushed_before),
        }
    }
}

/// When the latest of some versions was the content, and the latest but one.
struct Latest {
    place: usize,
    start: Moment,
    second: Moment,
}

impl Latest {
    /// Of those that count.
    fn of(facts: &[Facts], counts: impl Fn(usize, &Facts) -> bool) -> Latest {
        let mut latest = Latest { place: usize::MAX, start: 0, second: 0 };
        for (place, known) in facts.iter().enumerate().filter(|(place, known)| counts(*place, known)) {
            if latest.place == usize::MAX || known.start > latest.start {
                latest = Latest { place, start: known.start, second: latest.start };
            } else {
                latest.second = latest.second.max(known.start);
            }
        }
        latest
    }

    /// When the latest of them was the content besides the version at `place`; 0 for none.
    fn beside(&self, place: usize) -> Moment {
        if place == self.place { self.second } else { self.start }
    }
}

/// The versions of one stretch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) list: SmallVec<[Version; 2]>,
}

impl Versions {
    pub(super) fn new(op: u32) -> Versions {
        Versions { list: SmallVec::from_iter([Version::new(op)]) }
    }

    pub(super) fn add(&mut self, op: u32) {
        self.list.push(Version::new(op));
    }

    /// The places of the versions a read begun at `began` may return now.
    pub(super) fn permitted(&self, ops: &Ops, flushed_before: Moment, began: Moment) -> SmallVec<[usize; 4]> {
        let facts: SmallVec<[Facts; 4]> = self.list.iter().map(|v| v.facts(ops, flushed_before)).collect();
        let covering = Latest::of(&facts, |_, y| y.happened && y.happened_by < began);
        let over = |x: usize| covering.beside(x) > facts[x].end;
        (0..self.list.len()).filter(|&x| !self.list[x].overwritten && !over(x)).collect()
    }

    /// A read from `began` to `now` returned what the versions at `places` hold: if there are several, they are one
    /// from now on.
    pub(super) fn seen(&mut self, places: &[usize], ops: &Ops, flushed_before: Moment, began: Moment, now: Moment) {
        let place = self.unite(places);
        let version = &mut self.list[place];
        if !version.united {
            version.seen_end = version.seen_end.min(now);
            version.seen_begin = version.seen_begin.max(began);
        } else if version.seen_end == NEVER || began > version.seen_begin {
            // Which of them was seen is not known: only what one and the same read says goes together.
            version.seen_end = now;
            version.seen_begin = began;
        }
        // What was decided before the read began, and begun after this version's last moment, would have covered it:
        // it never happened.
        let end = version.facts(ops, flushed_before).end;
        let mut at = 0;
        self.list.retain(|p| {
            let facts = p.facts(ops, flushed_before);
            let here = at;
            at += 1;
            here == place || facts.happened || facts.end >= began || facts.begin <= end
        });
    }

    fn unite(&mut self, places: &[usize]) -> usize {
        let (first, rest) = (places[0], &places[1..]);
        if rest.is_empty() {
            return first;
        }
        let all_survive = places.iter().all(|&p| self.list[p].survivor.is_some());
        let any_survives = places.iter().any(|&p| self.list[p].survivor.is_some() || self.list[p].old);
        let mut ops: SmallVec<[u32; 2]> = SmallVec::new();
        let mut past: SmallVec<[u32; 2]> = SmallVec::new();
        for &p in places {
            let v = &self.list[p];
            past.extend(v.past.iter().copied());
            if v.survivor.is_some() && !all_survive {
                past.extend(v.ops.iter().copied());
            }
            // A survivor's operations say nothing any more about when it happened.
            if all_survive || v.survivor.is_none() {
                ops.extend(v.ops.iter().copied().filter(|op| !ops.contains(op)).collect::<SmallVec<[u32; 2]>>());
            }
        }
        let rewritten = places.iter().any(|&p| self.list[p].rewritten);
        past.sort_unstable();
        past.dedup();
        let united = Version {
            ops,
            past,
            survivor: if all_survive { places.iter().filter_map(|&p| self.list[p].survivor).max() } else { None },
            rewritten,
            united: true,
            old: !all_survive && any_survives,
            seen_end: NEVER,
            seen_begin: 0,
            overwritten: false,
            buried: false,
        };
        self.list[first] = united;
        let mut at = 0;
        self.list.retain(|_| {
            at += 1;
            !rest.contains(&(at - 1))
        });
        first - rest.iter().filter(|&&p| p < first).count()
    }

    /// Forget versions that nothing can bring back; `oldest_read` is when the oldest read still out began.
    pub(super) fn prune(&mut self, ops: &Ops, flushed_before: Moment, oldest_read: Moment) {
        if self.list.len() == 1 {
            return;
        }
        let facts: SmallVec<[Facts; 4]> = self.list.iter().map(|v| v.facts(ops, flushed_before)).collect();
        let covering = Latest::of(&facts, |_, y| y.happened && y.happened_by < oldest_read);
        for (x, known) in facts.iter().enumerate() {
            self.list[x].overwritten |= covering.beside(x) > known.end;
        }
        self.bury(&facts);
        self.list.retain(|v| !(v.overwritten && v.buried));
    }

    /// Mark what lies before something durable, directly or through others.
    fn bury(&mut self, facts: &[Facts]) {
        loop {
            let covering = Latest::of(facts, |y, known| known.happened && (known.durable || self.list[y].buried));
            let mut changed = false;
            for (x, known) in facts.iter().enumerate() {
                if !self.list[x].buried && covering.beside(x) > known.end {
                    self.list[x].buried = true;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// The power goes at `now` (or, with `requests_live`, only what a cache held is lost: what is under way goes on, and
    /// with `rewritten` some of it writes these bytes as it had read them before).
    pub(super) fn cut(&mut self, ops: &Ops, flushed_before: Moment, now: Moment, requests_live: bool, rewritten: bool) {
        let facts: SmallVec<[Facts; 4]> = self.list.iter().map(|v| v.facts(ops, flushed_before)).collect();
        self.bury(&facts);
        self.list.retain(|v| !v.buried);
        for v in &mut self.list {
            let under_way = v.survivor.is_none() && v.ops.iter().any(|&op| ops[op as usize].decided == NEVER);
            // What has covered it may be what is lost.
            v.overwritten = false;
            // What was seen may be lost, and what it had covered be there again: of what is under way as well.
            v.seen_end = NEVER;
            v.seen_begin = 0;
            if requests_live && under_way {
                continue;
            }
            v.survivor = Some(now);
            v.rewritten = rewritten;
            v.united = false;
            v.old = false;
        }
    }
}
