//! A medium and its volatile cache: what reads see, what survives a power cut, and what is between the two.
//!
//! `visible` is what reads return, `durable` what a cut leaves. Between them lie records, one for each part of a write
//! that took effect and is not durable yet, in the order they took effect. Destaging a sector of a record makes the
//! older records of that sector void, so nothing ever goes back; a cut keeps or loses every remaining sector of every
//! record by itself, which leaves any version from the durable one on: what a real disk may do.
//!
//! No time, no requests: those are the device's.

use super::SECTOR_BYTES;
use super::faults::{Overlays, Wrong};
use super::image::Image;
use crate::ranges::RangeSet;
use crate::situations::Situations;
use device::Prng;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Records the volatile cache holds; beyond that the oldest is destaged. A disk's cache has a size too.
pub(super) const CACHE_RECORDS_MAX: usize = 2048;
/// Bytes the volatile cache holds, with the same reason.
pub(super) const CACHE_BYTES_MAX: usize = 64 << 20;
/// Not completed yet.
const NOT_DONE: u64 = u64::MAX;

/// What a write leaves in its sectors.
#[derive(Clone)]
pub(super) enum What {
    /// The request's bytes, and where in them the first sector's are.
    Data(Arc<Vec<u8>>, usize),
    /// Zeroes.
    Zero,
    /// Nothing in particular.
    Discard,
}

impl What {
    /// The same for the sectors from `skip` on.
    fn skipping(&self, skip: u64) -> What {
        match self {
            What::Data(bytes, at) => What::Data(bytes.clone(), at + skip as usize * SECTOR_BYTES),
            other => other.clone(),
        }
    }

    fn bytes(&self, sectors: u64) -> usize {
        if matches!(self, What::Data(..)) { sectors as usize * SECTOR_BYTES } else { 0 }
    }
}

/// A part of a write that is visible and not durable.
#[derive(Clone)]
struct Record {
    op: u64,
    sectors: Range<u64>,
    what: What,
    /// When its request completed, in completions of the device.
    done: u64,
    /// Sectors destaged, or void because something newer was; empty: none.
    gone: Vec<bool>,
}

impl Record {
    fn mark_gone(&mut self, sectors: Range<u64>) {
        let (start, end) = (sectors.start.max(self.sectors.start), sectors.end.min(self.sectors.end));
        if start < end {
            if self.gone.is_empty() {
                self.gone = vec![false; (self.sectors.end - self.sectors.start) as usize];
            }
            self.gone[(start - self.sectors.start) as usize..(end - self.sectors.start) as usize].fill(true);
        }
    }

    /// The stretches of `within` that are neither destaged nor void.
    fn left(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let (start, end) = (within.start.max(self.sectors.start), within.end.min(self.sectors.end));
        let mut out: Vec<Range<u64>> = Vec::new();
        if start < end && self.gone.is_empty() {
            out.push(start..end);
            return out;
        }
        for s in start..end {
            if self.gone[(s - self.sectors.start) as usize] {
                continue;
            }
            match out.last_mut() {
                Some(last) if last.end == s => last.end = s + 1,
                _ => out.push(s..s + 1),
            }
        }
        out
    }

    fn is_void(&self) -> bool {
        !self.gone.is_empty() && self.gone.iter().all(|&g| g)
    }
}

/// Content and the sectors whose content was discarded.
#[derive(Clone, Default)]
struct Layer {
    image: Image,
    discarded: RangeSet,
}

impl Layer {
    fn apply(&mut self, sectors: Range<u64>, what: &What) {
        let (offset, len) =
            (sectors.start * SECTOR_BYTES as u64, (sectors.end - sectors.start) as usize * SECTOR_BYTES);
        match what {
            What::Data(bytes, at) => self.image.write(offset, &bytes[*at..*at + len]),
            What::Zero => self.image.zero(offset, len),
            What::Discard => return self.discarded.insert(sectors),
        }
        self.discarded.remove(sectors);
    }
}

/// Sectors of a page, as most caches of devices and kernels keep them.
const PAGE_SECTORS: u64 = 8;
const NO_PAGE: u64 = u64::MAX;

/// How a cut treats what was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    LoseAll,
    KeepAll,
    ByRecord,
    ByPage,
    BySector,
    /// The oldest are kept: an orderly disk.
    Prefix(usize),
    /// The newest are kept: the unkindest disk.
    Suffix(usize),
}

/// A medium with its cache.
#[derive(Clone, Default)]
pub(super) struct Medium {
    visible: Layer,
    durable: Layer,
    records: VecDeque<Record>,
    record_bytes: usize,
    wrong: Overlays,
}

impl Medium {
    /// Fill `into` from `sector` on; false when part of it is unreadable. Discarded sectors read as their old bytes,
    /// zeroes or garbage, anew each time.
    pub(super) fn read(&self, sector: u64, into: &mut [u8], prng: &mut Prng, situations: &Situations) -> bool {
        self.pristine(sector, into);
        let sectors = sector..sector + (into.len() / SECTOR_BYTES) as u64;
        for run in self.visible.discarded.within(sectors) {
            let at = (run.start - sector) as usize * SECTOR_BYTES..(run.end - sector) as usize * SECTOR_BYTES;
            match prng.below(3) {
                0 => situations.hit("disk: discarded sectors read as old data"),
                1 => {
                    into[at].fill(0);
                    situations.hit("disk: discarded sectors read as zeroes");
                }
                _ => {
                    prng.fill(&mut into[at]);
                    situations.hit("disk: discarded sectors read as garbage");
                }
            }
        }
        self.wrong.apply(sector, into)
    }

    /// What the sectors hold without faults and without regard to discards.
    pub(super) fn pristine(&self, sector: u64, into: &mut [u8]) {
        self.visible.image.read(sector * SECTOR_BYTES as u64, into);
    }

    /// See [`Image::hole_until`]; discarded ranges are no holes, they read as anything.
    pub(super) fn hole_until(&self, offset: u64) -> (bool, u64) {
        let (hole, end) = self.visible.image.hole_until(offset);
        let sectors = offset / SECTOR_BYTES as u64..end / SECTOR_BYTES as u64;
        (hole && self.visible.discarded.within(sectors).is_empty(), end)
    }

    /// A part of write `op` takes effect.
    pub(super) fn effect(&mut self, op: u64, sectors: Range<u64>, what: What) {
        self.visible.apply(sectors.clone(), &what);
        self.wrong.clear(sectors.clone());
        self.record_bytes += what.bytes(sectors.end - sectors.start);
        self.records.push_back(Record { op, sectors, what, done: NOT_DONE, gone: Vec::new() });
        while self.records.len() > CACHE_RECORDS_MAX || self.record_bytes > CACHE_BYTES_MAX {
            let Some(oldest) = self.records.pop_front() else { break };
            self.record_bytes -= oldest.what.bytes(oldest.sectors.end - oldest.sectors.start);
            self.destage(&oldest, oldest.sectors.clone());
        }
    }

    /// The same, but the medium keeps what reads saw there before: a lost write. With `elsewhere`, the bytes land
    /// there: a misdirected one.
    pub(super) fn effect_lost(&mut self, op: u64, sectors: Range<u64>, what: What, elsewhere: Option<u64>) {
        let mut seen = vec![0; (sectors.end - sectors.start) as usize * SECTOR_BYTES];
        self.pristine(sectors.start, &mut seen);
        let _readable = self.wrong.apply(sectors.start, &mut seen);
        self.effect(op, sectors.clone(), what.clone());
        let lay = |wrong: &mut Overlays, sector: u64, bytes: &[u8]| {
            let mut content = Box::new([0; SECTOR_BYTES]);
            content.copy_from_slice(bytes);
            wrong.set(sector, Wrong::Bytes(content));
        };
        for (s, bytes) in sectors.clone().zip(seen.chunks(SECTOR_BYTES)) {
            lay(&mut self.wrong, s, bytes);
        }
        if let (Some(target), What::Data(bytes, at)) = (elsewhere, &what) {
            for (n, bytes) in bytes[*at..].chunks(SECTOR_BYTES).take(seen.len() / SECTOR_BYTES).enumerate() {
                lay(&mut self.wrong, target + n as u64, bytes);
            }
        }
    }

    /// Request `op` completed as number `done`: flushes issued from now on cover it.
    pub(super) fn completed(&mut self, op: u64, done: u64) {
        self.records.iter_mut().rev().filter(|r| r.op == op).for_each(|r| r.done = done);
    }

    /// Make durable what request `op` wrote.
    pub(super) fn make_durable(&mut self, op: u64) {
        self.destage_where(|r| r.op == op);
    }

    /// Make durable what completed before completion number `before`.
    pub(super) fn flush(&mut self, before: u64) {
        self.destage_where(|r| r.done < before);
    }

    /// Whether a record of a completed write is not durable yet.
    pub(super) fn has_unflushed(&self) -> bool {
        self.records.iter().any(|r| r.done != NOT_DONE)
    }

    fn destage(&mut self, record: &Record, within: Range<u64>) {
        for run in record.left(within) {
            let what = record.what.skipping(run.start - record.sectors.start);
            self.durable.apply(run, &what);
        }
    }

    fn destage_where(&mut self, covered: impl Fn(&Record) -> bool) {
        if !self.records.iter().any(&covered) {
            return;
        }
        let mut kept: VecDeque<Record> = VecDeque::new();
        for record in std::mem::take(&mut self.records) {
            if covered(&record) {
                self.destage(&record, record.sectors.clone());
                kept.iter_mut().for_each(|older| older.mark_gone(record.sectors.clone()));
            } else {
                kept.push_back(record);
            }
        }
        self.replace_records(kept);
    }

    fn replace_records(&mut self, mut records: VecDeque<Record>) {
        records.retain(|r| !r.is_void());
        self.record_bytes = records.iter().map(|r| r.what.bytes(r.sectors.end - r.sectors.start)).sum();
        self.records = records;
    }

    /// The volatile cache destages some sectors of some record, as caches do.
    pub(super) fn destage_some(&mut self, prng: &mut Prng, situations: &Situations) {
        if self.records.is_empty() {
            return;
        }
        let at = prng.below(self.records.len() as u64) as usize;
        let mut record = self.records[at].clone();
        let count = record.sectors.end - record.sectors.start;
        let first = record.sectors.start + prng.below(count);
        let within = first..first + prng.between(1, record.sectors.end - first);
        self.destage(&record, within.clone());
        record.mark_gone(within.clone());
        self.records[at] = record;
        for older in self.records.iter_mut().take(at) {
            older.mark_gone(within.clone());
        }
        situations.hit("disk: cache destaged by itself");
        if at > 0 {
            situations.hit("disk: cache destaged out of order");
        }
        let records = std::mem::take(&mut self.records);
        self.replace_records(records);
    }

    /// The power goes: every sector of every record, and of the parts `in_flight` that had not taken effect (in the
    /// order given), is kept or lost by itself.
    pub(super) fn cut(&mut self, in_flight: Vec<(Range<u64>, What)>, prng: &mut Prng, situations: &Situations) {
        for (sectors, what) in in_flight {
            situations.hit("disk: power cut with a write in flight");
            self.records.push_back(Record { op: 0, sectors, what, done: NOT_DONE, gone: Vec::new() });
        }
        self.lose(prng, situations, |_| true);
        self.show_what_is_left();
    }

    /// The cache loses what completed and is not durable, as a failed flush may do; writes still under way stay.
    pub(super) fn lose_unflushed(&mut self, prng: &mut Prng, situations: &Situations) {
        self.lose(prng, situations, |r| r.done != NOT_DONE);
        self.show_what_is_left();
    }

    /// The same, but reads see what was lost until the power goes, or something is written there.
    pub(super) fn lose_unflushed_unseen(&mut self, prng: &mut Prng, situations: &Situations) {
        self.lose(prng, situations, |r| r.done != NOT_DONE);
    }

    fn lose(&mut self, prng: &mut Prng, situations: &Situations, affected: impl Fn(&Record) -> bool) {
        let records = std::mem::take(&mut self.records);
        let count = records.len();
        let way = match prng.below(12) {
            0 => Cut::LoseAll,
            1 => Cut::KeepAll,
            2..=4 => Cut::ByRecord,
            5 => Cut::ByPage,
            6 => Cut::Prefix(prng.below(count as u64 + 1) as usize),
            7 => Cut::Suffix(prng.below(count as u64 + 1) as usize),
            _ => Cut::BySector,
        };
        let (mut lost_one, mut order_broken) = (false, false);
        let mut staying = VecDeque::new();
        for (number, record) in records.into_iter().enumerate() {
            if !affected(&record) {
                staying.push_back(record);
                continue;
            }
            let whole = match way {
                Cut::LoseAll => Some(false),
                Cut::KeepAll => Some(true),
                Cut::ByRecord => Some(prng.chance(1, 2)),
                Cut::Prefix(n) => Some(number < n),
                Cut::Suffix(n) => Some(number >= n),
                Cut::ByPage | Cut::BySector => None,
            };
            let (mut kept, mut lost) = (0_u64, 0_u64);
            let mut page = (NO_PAGE, false);
            for run in record.left(record.sectors.clone()) {
                for s in run {
                    let survives = whole.unwrap_or_else(|| {
                        if way == Cut::BySector || page.0 != s / PAGE_SECTORS {
                            page = (s / PAGE_SECTORS, prng.chance(1, 2));
                        }
                        page.1
                    });
                    if survives {
                        self.durable.apply(s..s + 1, &record.what.skipping(s - record.sectors.start));
                        for older in &mut staying {
                            older.mark_gone(s..s + 1);
                        }
                        kept += 1;
                    } else {
                        lost += 1;
                    }
                }
            }
            order_broken |= lost_one && kept > 0;
            lost_one |= lost > 0;
            if kept > 0 && lost > 0 {
                situations.hit("disk: power cut tears a write");
            }
            if lost > 0 && record.done != NOT_DONE {
                situations.hit("disk: power cut loses a completed write");
            }
            if kept > 0 && record.done == NOT_DONE {
                situations.hit("disk: power cut keeps a write in flight");
            }
        }
        if order_broken {
            situations.hit("disk: power cut keeps a newer write and loses an older");
        }
        self.replace_records(staying);
    }

    /// Reads see what is durable, and what the cache still has.
    fn show_what_is_left(&mut self) {
        self.visible = self.durable.clone();
        for record in &self.records {
            for run in record.left(record.sectors.clone()) {
                let what = record.what.skipping(run.start - record.sectors.start);
                self.visible.apply(run, &what);
            }
        }
    }

    /// A copy of what reads see, as a medium at rest.
    pub(super) fn snapshot(&self) -> Medium {
        Medium {
            visible: self.visible.clone(),
            durable: self.visible.clone(),
            records: VecDeque::new(),
            record_bytes: 0,
            wrong: self.wrong.clone(),
        }
    }

    /// Flip some bits of one byte of `sector`.
    pub(super) fn rot(&mut self, sector: u64, prng: &mut Prng) {
        let at = prng.below(SECTOR_BYTES as u64) as u16;
        self.wrong.set(sector, Wrong::Rot { at, bits: prng.between(1, 255) as u8 });
    }

    /// `sector` cannot be read until it is written.
    pub(super) fn unreadable(&mut self, sector: u64) {
        self.wrong.set(sector, Wrong::Unreadable);
    }

    /// Take every fault of `sectors` away.
    pub(super) fn repair(&mut self, sectors: Range<u64>) {
        self.wrong.clear(sectors);
    }

    /// Sectors with something wrong.
    pub(super) fn wrong_sectors(&self) -> usize {
        self.wrong.len()
    }
}
