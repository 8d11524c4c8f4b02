//! What a grid disk may answer: a reference model that knows every permitted answer for every byte.
//!
//! The harness tells it what clients do and see, in the order it happens: writes begin, are acknowledged or fail;
//! flushes begin and are acknowledged; reads begin and return bytes; processes die and power goes. For each byte the
//! model keeps every version that may be there. What it demands:
//!
//! - a read returns the last acknowledged write, or one that was under way at the same time, and two reads never
//!   disagree about the order of two writes (I2);
//! - a failed write, or one whose process died, happened or did not; the first read that tells is final (I2);
//! - the death of a process loses nothing acknowledged (I9);
//! - a power cut leaves any version not older than the last durable one: durable are writes with FUA when they are
//!   acknowledged, and writes acknowledged before a flush began that was acknowledged (I1). The first answer after a
//!   cut is final, also across the next cut (I2);
//! - a trim leaves zeroes or what was there, and the first read that tells is final;
//! - within a 512-byte sector a write is not torn.
//!
//! Content comes from the model ([`Model::fill`]): every word names its write and its place, so that a wrong answer is
//! explained. Offsets and lengths are bytes; any alignment. It never looks at a device, a clock or an engine.

mod content;
mod stale;
mod versions;
mod violation;

pub use violation::{Invariant, Violation};

use crate::ranges::RangeSet;
use content::{Content, OPS_MAX, Origin, SECTOR_BYTES, SECTORS_MAX, WORDS};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use versions::{Kind, Moment, NEVER, OpInfo, Ops, Version, Versions};

/// A write, zero or trim. Its number is in every word it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(u32);

/// A flush under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushId(Moment);

/// A read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(Moment);

impl OpId {
    /// Its number, from 1.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.0)
    }
}

#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    versions: Versions,
}

/// The model of one grid disk.
#[derive(Clone, Debug)]
pub struct Model {
    content: Content,
    size_bytes: u64,
    now: Moment,
    ops: Ops,
    /// Operations neither acknowledged nor failed.
    open: Vec<u32>,
    /// Start of each stretch whose bytes share their versions; they cover the grid disk without a gap.
    segments: BTreeMap<u64, Segment>,
    reads: BTreeMap<Moment, Range<u64>>,
    /// Reads that were under way when a device lost what it held: they may have seen either side, and tell nothing of what is there.
    reads_unchecked: BTreeMap<Moment, Range<u64>>,
    /// Begin of the last acknowledged flush: what was acknowledged before is durable.
    flushed_before: Moment,
    last_cut: Moment,
    last_kill: Moment,
    offline: RangeSet,
    past: stale::Past,
}

/// Operation 0: the zeroes a new grid disk reads as.
const NEW: u32 = 0;

impl Model {
    /// A new grid disk of `size_bytes`, which reads as zeroes. Models with different seeds write different bytes.
    ///
    /// # Panics
    /// When it is larger than 512 GiB.
    #[must_use]
    pub fn new(seed: u64, size_bytes: u64) -> Model {
        let new = OpInfo { kind: Kind::Zeroes, range: 0..u64::MAX, fua: true, begin: 0, decided: 0, acked: 0 };
        let mut model = Model {
            content: Content::new(seed),
            size_bytes: 0,
            now: 0,
            ops: vec![new],
            open: Vec::new(),
            segments: BTreeMap::new(),
            reads: BTreeMap::new(),
            reads_unchecked: BTreeMap::new(),
            flushed_before: 0,
            last_cut: 0,
            last_kill: 0,
            offline: RangeSet::default(),
            past: stale::Past::default(),
        };
        model.resize(size_bytes);
        model
    }

    /// Bytes of the grid disk.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The grid disk has a new size: what is cut off is gone, new space reads as zeroes and is durable so. No request
    /// may be under way in what is cut off.
    ///
    /// # Panics
    /// When it is larger than 512 GiB.
    pub fn resize(&mut self, size_bytes: u64) {
        assert!(size_bytes.div_ceil(SECTOR_BYTES) <= SECTORS_MAX, "a grid disk of at most 512 GiB");
        self.tick();
        if size_bytes < self.size_bytes {
            self.past.cut_off(size_bytes, self.now);
            self.split_at(size_bytes);
            drop(self.segments.split_off(&size_bytes));
        } else if size_bytes > self.size_bytes {
            self.segments.insert(self.size_bytes, Segment { end: size_bytes, versions: Versions::new(NEW) });
        }
        self.size_bytes = size_bytes;
    }

    /// A write of `range` is submitted; its bytes are [`Model::fill`]'s.
    ///
    /// # Panics
    /// When `range` is empty or beyond the end, here and in the other verbs.
    pub fn begin_write(&mut self, range: Range<u64>, fua: bool) -> OpId {
        self.begin(Kind::Data, range, fua)
    }

    /// A write of zeroes is submitted.
    pub fn begin_zeroes(&mut self, range: Range<u64>, fua: bool) -> OpId {
        self.begin(Kind::Zeroes, range, fua)
    }

    /// A trim is submitted: afterwards each sector reads as zeroes or as before.
    pub fn begin_trim(&mut self, range: Range<u64>, fua: bool) -> OpId {
        self.begin(Kind::Trim, range, fua)
    }

    /// The bytes that write `op` has from byte `at` of the grid disk on.
    pub fn fill(&self, op: OpId, at: u64, into: &mut [u8]) {
        self.content.fill(op.number(), at, into);
    }

    /// All bytes of write `op`.
    #[must_use]
    pub fn bytes(&self, op: OpId) -> Vec<u8> {
        let range = self.range(op);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.fill(op, range.start, &mut bytes);
        bytes
    }

    /// The range of an operation.
    #[must_use]
    pub fn range(&self, op: OpId) -> Range<u64> {
        self.ops[op.0 as usize].range.clone()
    }

    /// The operation was acknowledged.
    ///
    /// # Panics
    /// When it was acknowledged or failed before, or its process died.
    pub fn ack(&mut self, op: OpId) {
        let now = self.decide(op);
        self.ops[op.0 as usize].acked = now;
        self.tidy(self.range(op));
    }

    /// The operation failed: it happened or it did not, and will not happen any more.
    ///
    /// # Errors
    /// A violation of I3 when nothing in its range was declared offline; the model goes on all the same.
    ///
    /// # Panics
    /// As [`Model::ack`].
    pub fn fail(&mut self, op: OpId) -> Result<(), Violation> {
        self.decide(op);
        let range = self.range(op);
        self.may_fail(&range, "a failed write")
    }

    /// A flush is submitted.
    pub fn flush_begin(&mut self) -> FlushId {
        FlushId(self.tick())
    }

    /// The flush was acknowledged: what was acknowledged before it was submitted is durable.
    pub fn flush_ack(&mut self, flush: FlushId) {
        self.tick();
        // A flush of before the last cut says nothing about what came after.
        if flush.0 > self.last_cut {
            self.flushed_before = self.flushed_before.max(flush.0);
        }
    }

    /// The flush failed: nothing is promised, and nothing is lost by that alone. When the device dropped what it held,
    /// say so with [`Model::lose_unflushed`].
    pub fn flush_fail(&mut self, _flush: FlushId) {
        self.tick();
    }

    /// A read of `range` is submitted.
    pub fn read_begin(&mut self, range: Range<u64>) -> ReadId {
        self.check_range(&range);
        let now = self.tick();
        self.reads.insert(now, range);
        ReadId(now)
    }

    /// The read returned `got`: all bytes of its range.
    ///
    /// # Errors
    /// The first sector that holds what is not permitted. The model is then of no further use.
    ///
    /// # Panics
    /// When the read is not under way or `got` has another length.
    pub fn check_read(&mut self, read: ReadId, got: &[u8]) -> Result<(), Violation> {
        let unchecked = self.reads_unchecked.contains_key(&read.0);
        let range = self.end_read(read);
        assert!(got.len() as u64 == range.end - range.start, "a read returns its whole range");
        let now = self.tick();
        if unchecked {
            return self.check_beside_loss(&range, got);
        }
        let oldest = self.oldest_read();
        let mut at = range.start;
        while at < range.end {
            let Some((&start, segment)) = self.segments.range(..=at).next_back() else {
                unreachable!("the segments cover the grid disk")
            };
            let end = segment.end.min(range.end);
            let permitted = segment.versions.permitted(&self.ops, self.flushed_before, read.0);
            // The longest stretch of the segment whose sectors agree on what was seen.
            let mut seen: SmallVec<[usize; 4]> = SmallVec::new();
            let mut stretch = at;
            while stretch < end {
                let unit_end = end.min((stretch / SECTOR_BYTES + 1) * SECTOR_BYTES);
                let bytes = &got[(stretch - range.start) as usize..(unit_end - range.start) as usize];
                let list = &segment.versions.list;
                let same: SmallVec<[usize; 4]> =
                    permitted.iter().copied().filter(|&v| self.holds(&list[v], stretch, bytes)).collect();
                if same.is_empty() {
                    return Err(self.explain(segment, &permitted, stretch..unit_end, bytes));
                }
                if stretch > at && same != seen {
                    break;
                }
                seen = same;
                stretch = unit_end;
            }
            // Nothing to learn where there is only one version and it was seen before.
            let news = segment.versions.list.len() > 1;
            if news {
                if at > start {
                    self.split_at(at);
                }
                self.split_at(stretch);
            }
            let (ops, flushed) = (&self.ops, self.flushed_before);
            let start = if news { at } else { start };
            if let Some(segment) = self.segments.get_mut(&start)
                && news
            {
                segment.versions.seen(&seen, ops, flushed, read.0, now);
                segment.versions.prune(ops, flushed, oldest);
            }
            at = stretch;
        }
        self.coalesce(range);
        Ok(())
    }

    /// The read failed.
    ///
    /// # Errors
    /// A violation of I3 when nothing in its range was declared offline.
    pub fn read_failed(&mut self, read: ReadId) -> Result<(), Violation> {
        let range = self.end_read(read);
        self.tick();
        self.may_fail(&range, "a failed read")
    }

    /// The read begins between a loss and the moment at which its server is told of it: as one that was under way at the loss.
    pub fn read_beside_loss(&mut self, read: ReadId) {
        if let Some(range) = self.reads.remove(&read.0) {
            self.reads_unchecked.insert(read.0, range);
        }
    }

    /// The read's connection is gone: nobody saw its answer.
    pub fn read_dropped(&mut self, read: ReadId) {
        self.reads.remove(&read.0);
        self.reads_unchecked.remove(&read.0);
    }

    /// Requests that touch `range` may fail from now on.
    pub fn declare_offline(&mut self, range: Range<u64>) {
        self.offline.insert(range);
    }

    /// Requests within `range` may not fail any more.
    pub fn declare_online(&mut self, range: Range<u64>) {
        self.offline.remove(range);
    }

    /// The serving process died, and with it every request under way: writes happened or did not, reads are void.
    pub fn process_kill(&mut self) {
        let now = self.tick();
        self.last_kill = now;
        self.decide_all(now);
        self.reads.clear();
        self.reads_unchecked.clear();
    }

    /// The power went: requests under way ended as in [`Model::process_kill`], and what was not durable may be lost.
    pub fn power_cut(&mut self) {
        let now = self.tick();
        self.last_cut = now;
        self.decide_all(now);
        self.past.lost(now, self.flushed_before);
        self.reads.clear();
        self.reads_unchecked.clear();
        for segment in self.segments.values_mut() {
            segment.versions.cut(&self.ops, self.flushed_before, now, false, false);
        }
        self.coalesce(0..self.size_bytes);
    }

    /// What was not durable may be lost, without any process dying: a device dropped its cache, a server behind a
    /// network device restarted. Writes under way go on and may be lost as well; reads under way may see either side. Around the edges of writes under way, in the ranges `rewritten`, somebody may write what he
    /// had read before, so that what was lost comes back and is lost once more: there no answer is final before a flush.
    pub fn lose_unflushed(&mut self, rewritten: &[Range<u64>]) {
        let now = self.tick();
        self.reads_unchecked.append(&mut self.reads);
        self.last_cut = now;
        self.past.lost(now, self.flushed_before);
        let mut all = RangeSet::default();
        for range in rewritten {
            let range = range.start..range.end.min(self.size_bytes);
            self.split_at(range.start);
            self.split_at(range.end);
            all.insert(range);
        }
        for (&start, segment) in &mut self.segments {
            let rewritten = !all.within(start..segment.end).is_empty();
            segment.versions.cut(&self.ops, self.flushed_before, now, true, rewritten);
        }
        self.coalesce(0..self.size_bytes);
    }

    /// What was not durable may be lost of changes that no client was told are done: those that failed, whether or not a read has seen them, and those
    /// under way. Nothing that was acknowledged is lost besides where one of these was written. A device dropped its cache, and somebody above it
    /// holds what was acknowledged.
    pub fn lose_unacknowledged(&mut self) {
        let now = self.tick();
        self.reads_unchecked.append(&mut self.reads);
        let ops = &self.ops;
        for segment in self.segments.values_mut() {
            if segment.versions.list.iter().any(|v| v.ops.iter().any(|&op| ops[op as usize].acked == NEVER)) {
                segment.versions.cut(ops, self.flushed_before, now, true, true);
            }
        }
        self.coalesce(0..self.size_bytes);
    }

    /// The grid disk was put back to what it was when `self` was cloned, after it had lived on as `abandoned`. Numbers of
    /// operations go on from there, so that bytes of the abandoned time are told from those of the time to come.
    ///
    /// # Panics
    /// When `abandoned` did not begin as `self`.
    #[must_use]
    pub fn back_from(mut self, abandoned: &Model) -> Model {
        assert!(self.ops.len() <= abandoned.ops.len(), "a clone of an earlier moment");
        self.process_kill();
        let known = self.ops.len();
        self.now = self.now.max(abandoned.now) + 1;
        let now = self.now;
        self.ops.extend(abandoned.ops[known..].iter().cloned().map(|op| OpInfo { decided: op.decided.min(now), ..op }));
        self.last_kill = now;
        self.past.abandon(known as u32..self.ops.len() as u32);
        self
    }

    /// Every permitted content of the byte at `at`, for a message or a test.
    #[must_use]
    pub fn permitted(&self, at: u64) -> Vec<String> {
        let Some((_, segment)) = self.segments.range(..=at).next_back() else { return Vec::new() };
        let places = segment.versions.permitted(&self.ops, self.flushed_before, self.now + 1);
        self.describe(segment, &places)
    }

    /// Stretches the model keeps: a measure of what it costs.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn check_range(&self, range: &Range<u64>) {
        assert!(range.start < range.end && range.end <= self.size_bytes, "{range:?} of {} bytes", self.size_bytes);
    }

    fn begin(&mut self, kind: Kind, range: Range<u64>, fua: bool) -> OpId {
        self.check_range(&range);
        assert!((self.ops.len() as u64) < OPS_MAX, "at most {OPS_MAX} operations");
        let begin = self.tick();
        let op = self.ops.len() as u32;
        self.ops.push(OpInfo { kind, range: range.clone(), fua, begin, decided: NEVER, acked: NEVER });
        self.open.push(op);
        self.split_at(range.start);
        self.split_at(range.end);
        let oldest = self.oldest_read();
        for (_, segment) in self.segments.range_mut(range) {
            segment.versions.prune(&self.ops, self.flushed_before, oldest);
            segment.versions.add(op);
        }
        OpId(op)
    }

    fn decide(&mut self, op: OpId) -> Moment {
        let open = self.open.iter().position(|&o| o == op.0);
        let Some(open) = open else { panic!("operation {} is not under way", op.0) };
        self.open.swap_remove(open);
        let now = self.tick();
        self.ops[op.0 as usize].decided = now;
        now
    }

    fn decide_all(&mut self, now: Moment) {
        for op in std::mem::take(&mut self.open) {
            self.ops[op as usize].decided = now;
        }
    }

    fn end_read(&mut self, read: ReadId) -> Range<u64> {
        let range = self.reads.remove(&read.0).or_else(|| self.reads_unchecked.remove(&read.0));
        let Some(range) = range else { panic!("read {} is not under way", read.0) };
        range
    }

    /// A read beside a loss may return what the device held before it or holds after it, sector by sector: NBD promises nothing of
    /// what no FLUSH has covered, and the FLUSH that failed is the report. Bytes that were never written there are wrong all the same.
    fn check_beside_loss(&self, range: &Range<u64>, got: &[u8]) -> Result<(), Violation> {
        // Where what lies side by side may be of different operations.
        let ends = self.ops.iter().flat_map(|op| [op.range.start, op.range.end]);
        let mut borders: Vec<u64> = ends.filter(|at| range.contains(at)).collect();
        borders.sort_unstable();
        let mut at = range.start;
        while at < range.end {
            let border = borders.get(borders.partition_point(|&border| border <= at)).copied().unwrap_or(range.end);
            let end = border.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(range.end);
            let (found, text) = self.identify(at, &got[(at - range.start) as usize..(end - range.start) as usize]);
            let invariant = match found {
                Found::Here => None,
                Found::Elsewhere => Some(Invariant::Foreign),
                Found::Garbage => Some(Invariant::Rot),
            };
            if let Some(invariant) = invariant {
                let expected = vec!["bytes that were written there once".to_owned()];
                return Err(Violation { invariant, range: at..end, expected, got: text });
            }
            at = end;
        }
        Ok(())
    }

    /// When the oldest read still out began.
    fn oldest_read(&self) -> Moment {
        self.reads.keys().next().copied().unwrap_or(self.now + 1)
    }

    fn may_fail(&self, range: &Range<u64>, what: &str) -> Result<(), Violation> {
        if !self.offline.within(range.clone()).is_empty() {
            return Ok(());
        }
        Err(Violation {
            invariant: Invariant::Available,
            range: range.clone(),
            expected: vec!["success".to_owned()],
            got: what.to_owned(),
        })
    }

    fn split_at(&mut self, at: u64) {
        let Some((&start, segment)) = self.segments.range_mut(..at).next_back() else { return };
        if segment.end > at && start < at {
            let tail = Segment { end: segment.end, versions: segment.versions.clone() };
            segment.end = at;
            self.segments.insert(at, tail);
        }
    }

    /// Forget what cannot come back, and make equal neighbours one.
    fn tidy(&mut self, range: Range<u64>) {
        let oldest = self.oldest_read();
        for (_, segment) in self.segments.range_mut(range.clone()) {
            segment.versions.prune(&self.ops, self.flushed_before, oldest);
        }
        self.coalesce(range);
    }

    fn coalesce(&mut self, range: Range<u64>) {
        let first = self.segments.range(..range.start).next_back().map_or(range.start, |(&s, _)| s);
        let starts: Vec<u64> = self.segments.range(first..=range.end).map(|(&s, _)| s).collect();
        let Some((&head, rest)) = starts.split_first() else { return };
        let mut before = head;
        for &start in rest {
            let (Some(a), Some(b)) = (self.segments.get(&before), self.segments.get(&start)) else { continue };
            if a.versions == b.versions {
                let end = b.end;
                self.segments.remove(&start);
                if let Some(a) = self.segments.get_mut(&before) {
                    a.end = end;
                }
            } else {
                before = start;
            }
        }
    }

    fn holds(&self, version: &Version, at: u64, got: &[u8]) -> bool {
        if version.is_zero(&self.ops) {
            got.iter().all(|&b| b == 0)
        } else {
            self.content.matches(u64::from(version.ops[0]), at, got)
        }
    }

    fn describe(&self, segment: &Segment, places: &[usize]) -> Vec<String> {
        places.iter().map(|&p| self.describe_version(&segment.versions.list[p])).collect()
    }

    fn describe_version(&self, version: &Version) -> String {
        let mut out = version.ops.iter().map(|&op| self.describe_op(op)).collect::<Vec<_>>().join(" or ");
        if version.is_survivor() {
            out.push_str(" [survived the power cut]");
        }
        out
    }

    fn describe_op(&self, op: u32) -> String {
        if op == NEW {
            return "zeroes, never written".to_owned();
        }
        let info = &self.ops[op as usize];
        let kind = match info.kind {
            Kind::Data => "write",
            Kind::Zeroes => "zeroes",
            Kind::Trim => "trim",
        };
        let fua = if info.fua { " FUA" } else { "" };
        let state = match (info.acked, info.decided) {
            (NEVER, NEVER) => "under way".to_owned(),
            (NEVER, at) => format!("failed or cut off at {at}"),
            (at, _) if info.fua || at < self.flushed_before => format!("acknowledged at {at}, durable"),
            (at, _) => format!("acknowledged at {at}, not flushed"),
        };
        format!("op {op} ({kind}{fua} of {}..{}, begun at {}, {state})", info.range.start, info.range.end, info.begin)
    }

    /// Name the promise that `got` breaks at `range`.
    fn explain(&self, segment: &Segment, permitted: &[usize], range: Range<u64>, got: &[u8]) -> Violation {
        let (found, text) = self.identify(range.start, got);
        let list = &segment.versions.list;
        // The newest write that should have been seen, and whether an answer since the last crash settled it.
        let newest = permitted.iter().flat_map(|&p| &list[p].ops).map(|&op| &self.ops[op as usize]);
        let acked = newest.filter(|op| op.acked != NEVER).map(|op| op.acked).max().unwrap_or(0);
        let crash = self.last_cut.max(self.last_kill);
        let settled = crash > 0 && permitted.iter().any(|&p| list[p].seen_begin() > crash);
        let invariant = match found {
            Found::Garbage => Invariant::Rot,
            Found::Elsewhere => Invariant::Foreign,
            Found::Here if settled && crash >= acked => Invariant::Flipping,
            Found::Here if self.last_cut > acked => Invariant::Durable,
            Found::Here if self.last_kill > acked => Invariant::ProcessDeath,
            Found::Here => Invariant::Stale,
        };
        let expected = self.describe(segment, permitted);
        Violation { invariant, range, expected, got: text }
    }

    /// Whose bytes these are, read at byte `at`.
    fn identify(&self, at: u64, got: &[u8]) -> (Found, String) {
        if got.iter().all(|&b| b == 0) {
            return (Found::Here, "zeroes".to_owned());
        }
        let sector = at / SECTOR_BYTES;
        let skip = (at.next_multiple_of(8) - at) as usize;
        let words: Vec<(u64, u64)> = got
            .get(skip..)
            .unwrap_or_default()
            .chunks_exact(8)
            .zip((at + skip as u64..).step_by(8))
            .map(|(word, at)| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                (at, u64::from_le_bytes(bytes))
            })
            .collect();
        let mut found: Vec<(Found, String)> = Vec::new();
        let mut before: Option<Origin> = None;
        for (at, word) in words {
            let mut origin = self.content.origin(word);
            if Content::is_last(at) {
                // It is known by those before it, or by its place.
                let here = (1..self.ops.len() as u64).rev().map(|op| Origin { op, sector, word: WORDS - 1 });
                let known = before.into_iter().chain(here).find(|&origin| self.content.last_word(origin) == word);
                origin = known.map_or(Origin { op: 0, ..origin }, |known| Origin { word: WORDS - 1, ..known });
            }
            before = Some(origin).filter(|origin| origin.op > 0);
            let known = origin.op > 0 && origin.op < self.ops.len() as u64;
            let from = origin.sector * SECTOR_BYTES + origin.word * 8;
            let next = if word == 0 {
                (Found::Here, "zeroes".to_owned())
            } else if !known || from >= self.size_bytes.next_multiple_of(SECTOR_BYTES) {
                (Found::Garbage, "bytes that no operation wrote".to_owned())
            } else if from == at && self.ops[origin.op as usize].range.contains(&at) {
                (Found::Here, self.describe_op(origin.op as u32))
            } else {
                let text = format!("op {}'s data for sector {} found at sector {sector}", origin.op, origin.sector);
                (Found::Elsewhere, text)
            };
            if found.last() != Some(&next) {
                found.push(next);
            }
        }
        if found.is_empty() {
            // Fewer bytes than a word: look for an operation that has them here.
            let here = (1..self.ops.len() as u32).rev().find(|&op| {
                let info = &self.ops[op as usize];
                info.kind == Kind::Data && info.range.contains(&at) && self.content.matches(u64::from(op), at, got)
            });
            return match here {
                Some(op) => (Found::Here, self.describe_op(op)),
                None => (Found::Garbage, format!("bytes {got:02x?} that no operation wrote here")),
            };
        }
        let worst = found.iter().map(|(found, _)| *found).max().unwrap_or(Found::Garbage);
        let texts: Vec<String> = found.into_iter().take(4).map(|(_, text)| text).collect();
        let torn = if texts.len() > 1 { "torn within a sector: " } else { "" };
        (worst, format!("{torn}{}", texts.join(", then ")))
    }
}

/// What wrong bytes turned out to be, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// A version of these bytes.
    Here,
    /// A write's bytes for another place.
    Elsewhere,
    /// Nobody's bytes.
    Garbage,
}
