//! Whether all of a grid disk is as it was at one moment (I10), and going on from there.
//!
//! Every write took effect at one moment between its begin and its end. A byte that holds write `x` was so at moment `t` only
//! if `x` had begun by `t`, and no write that came after `x` for certain had been acknowledged by `t`. Each stretch of bytes
//! gives the moments at which it can have been as it is; one must be common to all. Writes that a power cut may have taken
//! back say nothing about moments after it. (Weaker than what is true where reads have told more; every state of one moment
//! passes.)
//!
//! The versions of a grid disk put back like that are those it was found with, one for each byte.

use super::versions::{Kind, Moment, NEVER, OpInfo, Versions};
use super::{Invariant, Model, NEW, SECTOR_BYTES, Segment, Violation};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Moments, as ascending stretches without their ends.
type Moments = Vec<Range<Moment>>;

fn one(moments: Range<Moment>) -> Moments {
    vec![moments]
}

fn both(a: &Moments, b: &Moments) -> Moments {
    let mut out = Moments::new();
    for x in a {
        for y in b {
            let (low, high) = (x.start.max(y.start), x.end.min(y.end));
            if low < high {
                out.push(low..high);
            }
        }
    }
    out
}

fn either(a: Moments, b: Moments) -> Moments {
    let mut all: Moments = a.into_iter().chain(b).collect();
    all.sort_unstable_by_key(|r| (r.start, r.end));
    let mut out = Moments::new();
    for next in all {
        match out.last_mut() {
            Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
            _ => out.push(next),
        }
    }
    out
}

/// What happened to a grid disk besides requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// Moments at which what was not durable may have been lost, each with what was durable then; none: nothing was.
    losses: Vec<(Moment, Option<Moment>)>,
    /// Operations of a time that was given up.
    abandoned: Vec<Range<u32>>,
    /// Bytes from here on were cut off at that moment.
    cut_off: Vec<(u64, Moment)>,
}

impl Past {
    pub(super) fn lost(&mut self, now: Moment, flushed_before: Moment) {
        self.losses.push((now, Some(flushed_before)));
    }

    /// What was found then is all there is.
    fn given_up(&mut self, now: Moment) {
        self.losses.push((now, None));
    }

    pub(super) fn abandon(&mut self, ops: Range<u32>) {
        self.abandoned.push(ops);
    }

    pub(super) fn cut_off(&mut self, from: u64, now: Moment) {
        self.cut_off.push((from, now));
    }

    fn counts(&self, op: u32, info: &OpInfo, at: u64) -> bool {
        let void = self.cut_off.iter().any(|&(from, when)| at >= from && info.begin < when);
        op == NEW || !void && !self.abandoned.iter().any(|ops| ops.contains(&op))
    }

    /// When an acknowledged write may have been lost.
    fn loss_of(&self, info: &OpInfo) -> Moment {
        let mut after = self.losses.iter().filter(|(when, _)| *when >= info.acked);
        let lost = |flushed: &Option<Moment>| flushed.is_none_or(|flushed| !info.fua && info.acked >= flushed);
        after.find(|(_, flushed)| lost(flushed)).map_or(NEVER, |(when, _)| *when)
    }
}

impl Model {
    /// This moment.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.now
    }

    /// The last crash or power cut.
    #[must_use]
    pub fn last_end(&self) -> u64 {
        self.last_cut.max(self.last_kill)
    }

    /// `got` is all of the grid disk, found with nothing but its disk: it was so at one moment among `moments`. The last
    /// such moment there can be.
    ///
    /// # Errors
    /// A violation of I10.
    pub fn check_stale(&self, got: &[u8], moments: Range<u64>) -> Result<u64, Violation> {
        assert_eq!(got.len() as u64, self.size_bytes, "all of the grid disk");
        let mut common: Moments = vec![moments];
        for (range, ops) in self.pieces() {
            let bytes = &got[range.start as usize..range.end as usize];
            let mut here = Moments::new();
            for &op in &ops {
                if self.wrote(op, range.start, bytes) {
                    here = either(here, self.moments_of(op, &ops));
                }
            }
            let next = both(&common, &here);
            if next.is_empty() {
                let told =
                    |moments: &Moments| moments.iter().map(|r| format!("{r:?}")).collect::<Vec<_>>().join(" or ");
                let (_, found) = self.identify(range.start, bytes);
                return Err(Violation {
                    invariant: Invariant::Ordered,
                    range,
                    expected: vec![format!("the grid disk as it was at one moment among {}", told(&common))],
                    got: format!("{found}, as it was at {}", told(&here)),
                });
            }
            common = next;
        }
        Ok(common.last().map_or(0, |last| last.end - 1).min(self.now))
    }

    /// From here on the grid disk is what was found.
    pub fn go_on_from(&mut self, got: &[u8]) {
        assert_eq!(got.len() as u64, self.size_bytes, "all of the grid disk");
        let now = self.tick();
        self.past.given_up(now);
        let mut segments = BTreeMap::new();
        for (range, ops) in self.pieces() {
            let bytes = &got[range.start as usize..range.end as usize];
            let Some(&op) = ops.iter().rev().find(|&&op| self.wrote(op, range.start, bytes)) else { continue };
            segments.insert(range.start, Segment { end: range.end, versions: Versions::new(op) });
        }
        self.segments = segments;
        self.coalesce(0..self.size_bytes);
    }

    /// Stretches within a sector that the same operations have touched, with these.
    fn pieces(&self) -> Vec<(Range<u64>, BTreeSet<u32>)> {
        let mut borders: BTreeSet<u64> = (0..self.size_bytes).step_by(SECTOR_BYTES as usize).collect();
        let mut begins: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut ends: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (n, info) in self.ops.iter().enumerate().skip(1) {
            borders.extend([info.range.start, info.range.end].into_iter().filter(|&at| at < self.size_bytes));
            begins.entry(info.range.start).or_default().push(n as u32);
            ends.entry(info.range.end).or_default().push(n as u32);
        }
        borders.extend(self.past.cut_off.iter().map(|(from, _)| *from).filter(|&at| at < self.size_bytes));
        borders.insert(self.size_bytes);
        let borders: Vec<u64> = borders.into_iter().collect();
        let mut active: BTreeSet<u32> = BTreeSet::from([NEW]);
        let mut pieces = Vec::new();
        for pair in borders.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            for op in ends.get(&start).into_iter().flatten() {
                active.remove(op);
            }
            active.extend(begins.get(&start).into_iter().flatten());
            let here = active.iter().copied();
            let counting = here.filter(|&op| self.past.counts(op, &self.ops[op as usize], start)).collect();
            pieces.push((start..end, counting));
        }
        pieces
    }

    fn wrote(&self, op: u32, at: u64, bytes: &[u8]) -> bool {
        match self.ops[op as usize].kind {
            Kind::Data => self.content.matches(u64::from(op), at, bytes),
            Kind::Zeroes | Kind::Trim => bytes.iter().all(|&b| b == 0),
        }
    }

    /// When bytes that `ops` have touched may have been as operation `op` has left them.
    fn moments_of(&self, op: u32, ops: &BTreeSet<u32>) -> Moments {
        let info = &self.ops[op as usize];
        let begun = if op == NEW { 0 } else { info.begin + 1 };
        let mut left = one(begun..NEVER);
        for &other in ops.iter().filter(|&&other| other != op) {
            let later = &self.ops[other as usize];
            let certain = later.kind != Kind::Trim && later.acked != NEVER && later.begin > info.decided;
            if certain {
                let back = self.past.loss_of(later);
                let mut allowed = one(0..later.acked + 1);
                if back != NEVER {
                    allowed.push(back + 1..NEVER);
                }
                left = both(&left, &allowed);
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    //! Goal: a state of one moment passes and a torn one does not. Method: small histories with every mixture of their states.
    use super::*;

    const SIZE: u64 = 8 * 4096;

    fn write(model: &mut Model, at: u64) -> super::super::OpId {
        let op = model.begin_write(at..at + 4096, false);
        model.ack(op);
        op
    }

    fn put(model: &Model, bytes: &mut [u8], op: super::super::OpId) {
        let range = model.range(op);
        model.fill(op, range.start, &mut bytes[range.start as usize..range.end as usize]);
    }

    #[test]
    fn every_prefix_passes_and_nothing_else() {
        // Eight writes, one after the other, of three places: which subsets are a moment?
        let mut model = Model::new(5, SIZE);
        let places = [0, 4096, 0, 8192, 4096, 0, 8192, 4096];
        let ops: Vec<_> = places.iter().map(|&at| write(&mut model, at)).collect();
        let mut states = BTreeMap::new();
        for count in 0..=ops.len() {
            let mut bytes = vec![0; SIZE as usize];
            ops[..count].iter().for_each(|&op| put(&model, &mut bytes, op));
            states.insert(bytes, count);
        }
        let choices = |at: u64| -> Vec<Option<usize>> {
            let of = places.iter().enumerate().filter(move |(_, place)| **place == at);
            std::iter::once(None).chain(of.map(|(n, _)| Some(n))).collect()
        };
        let (mut good, mut torn) = (0, 0);
        for a in choices(0) {
            for b in choices(4096) {
                for c in choices(8192) {
                    let mut bytes = vec![0; SIZE as usize];
                    for n in [a, b, c].into_iter().flatten() {
                        put(&model, &mut bytes, ops[n]);
                    }
                    let passes = model.check_stale(&bytes, 0..u64::MAX);
                    assert_eq!(passes.is_ok(), states.contains_key(&bytes), "{a:?} {b:?} {c:?}: {passes:?}");
                    if passes.is_ok() { good += 1 } else { torn += 1 }
                }
            }
        }
        assert_eq!((good, torn), (9, 4 * 4 * 3 - 9));
        let old = vec![0; SIZE as usize];
        assert!(model.check_stale(&old, 1..u64::MAX).is_ok(), "before the first was acknowledged");
        let late = model.moment();
        assert_eq!(model.check_stale(&old, late..u64::MAX).unwrap_err().invariant.number(), "I10", "too old");
    }

    #[test]
    fn what_was_under_way_may_be_there_in_part() {
        let mut model = Model::new(5, SIZE);
        let open = model.begin_write(0..8192, false);
        let mut bytes = vec![0; SIZE as usize];
        model.fill(open, 4096, &mut bytes[4096..8192]);
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_ok());
        model.ack(open);
        let next = write(&mut model, 8192);
        put(&model, &mut bytes, next);
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_err(), "not once something later is there");
    }

    #[test]
    fn a_power_cut_excuses_what_no_flush_covered() {
        let mut model = Model::new(5, SIZE);
        let first = write(&mut model, 0);
        let second = write(&mut model, 4096);
        let mut bytes = vec![0; SIZE as usize];
        put(&model, &mut bytes, second);
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_err(), "the second without the first");
        let mut cut = model.clone();
        cut.power_cut();
        assert!(cut.check_stale(&bytes, 0..u64::MAX).is_ok(), "the power cut took the first");
        let before = 0..cut.last_end() + 1;
        assert!(cut.check_stale(&bytes, before).is_err(), "but it was no state of before");
        let flush = model.flush_begin();
        model.flush_ack(flush);
        model.power_cut();
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_err(), "it was durable");
        put(&model, &mut bytes, first);
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_ok());
    }

    #[test]
    fn it_goes_on_from_what_was_found() {
        let mut model = Model::new(5, SIZE);
        let first = write(&mut model, 0);
        let mut bytes = vec![0; SIZE as usize];
        put(&model, &mut bytes, first);
        let flush = model.flush_begin();
        model.flush_ack(flush);
        let second = write(&mut model, 0);
        let third = write(&mut model, 4096);
        let flush = model.flush_begin();
        model.flush_ack(flush);
        model.check_stale(&bytes, 0..u64::MAX).unwrap();
        model.go_on_from(&bytes);
        model.power_cut();
        let read = model.read_begin(0..SIZE);
        model.check_read(read, &bytes).unwrap();
        put(&model, &mut bytes, third);
        let read = model.read_begin(0..SIZE);
        assert!(model.clone().check_read(read, &bytes).is_err(), "what was given up is back");
        let again = write(&mut model, 8192);
        let mut bytes = vec![0; SIZE as usize];
        put(&model, &mut bytes, first);
        put(&model, &mut bytes, again);
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_ok(), "what was given up need not be there");
        let _ = second;
    }

    #[test]
    fn space_that_was_cut_off_has_a_new_past() {
        let mut model = Model::new(5, SIZE);
        let _gone = write(&mut model, SIZE - 4096);
        model.resize(SIZE - 8192);
        model.resize(SIZE);
        let late = write(&mut model, 0);
        let mut bytes = vec![0; SIZE as usize];
        put(&model, &mut bytes, late);
        assert!(model.check_stale(&bytes, 0..u64::MAX).is_ok());
    }
}
