//! Sequential streams of a grid disk, found over the requests of all its connections: the kernel spreads one scan over several, its
//! read-ahead comes out of order, and parallel workers take turns.
//!
//! A table holds the ends of the most recent streams. A request that begins near an end, before or behind it, belongs to that stream; how
//! much of a stream has been asked for is counted a part (4 KiB) at a time, so that what is sorted but sparse (a checkpoint) is none, nor what
//! asks for the same again. A stream beyond the cut-off is a *scan*. bcache and Open CAS go by requests that begin exactly where another
//! ended, which read-ahead out of order defeats, and bypass whatever is in order, a log on a data disk and sorted writes of a page cache too
//! (Open CAS issue 1592); from Open CAS comes that it matters only where the cache is full.
//!
//! A scan that comes back and fits is worth caching after all. Its ghosts prove that: which windows (1 MiB) scans were refused lately, and
//! how many others since; for large caches of every n-th window only, as in SHARDS.
//!
//! Decides only: no I/O, no waiting. Memory is allocated once, for the ghosts, when a grid disk refuses its first scan.

use crate::base::counters::SMALL_BYTES_MAX;
use crate::base::units::PART_BYTES;
use device::sync::lock;
use std::ops::Range;
use std::sync::Mutex;

/// Streams of each direction that are remembered: more parallel workers than a table is usually scanned by.
const STREAMS_MAX: usize = 64;
/// Parts a request may lie before or behind the end of its stream: 1 MiB, eight requests of the kernel's read-ahead.
const WINDOW_PARTS: u64 = (1 << 20) / PART_BYTES;
/// A stream's parts that left its window are halved beyond this (32 MiB), so that what it does now counts.
const SPAN_PARTS_MAX: u64 = (32 << 20) / PART_BYTES;
/// At least three of four parts were asked for.
const DENSITY: (u64, u64) = (3, 4);
/// Turns of the hand that finds room for a new stream a long one survives at most.
const CREDIT_MAX: u8 = 16;
/// The longest writes of a log.
const LOG_WRITE_BYTES_MAX: u64 = 64 << 10;
/// A log is flushed at least once in so much.
const LOG_FLUSH_PARTS: u64 = (1 << 20) / PART_BYTES;
/// The window of a ghost.
const GHOST_BYTES: u64 = 1 << 20;
/// Ghosts of a grid disk: 40 KiB.
const GHOSTS_MAX: usize = 2048;
/// Places a ghost may have.
const GHOST_WAYS: usize = 4;
/// As many sampled windows stand for the whole cache: half of the places, so that few lose theirs.
const GHOSTS_WANTED: u64 = GHOSTS_MAX as u64 / 2;
/// How sure it is, at most, that what is between two sampled windows comes back like them.
const PROOF_MAX: u8 = 4;

/// Whether a request is a scan of its own: single-block access never asks for so much, read-ahead and copies do.
pub(crate) fn is_large(parts: &Range<u64>) -> bool {
    (parts.end - parts.start) * PART_BYTES > SMALL_BYTES_MAX
}

/// A large request, or a stream beyond the cut-off: which, so that a second one over the same windows is told from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    id: u32,
    /// It has been found to come back: what it hits is worth more for it.
    pub(crate) returns: bool,
}

/// A bit for each part of a window; the lowest is the stream's last part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits {
    low: u128,
    high: u128,
}

impl Bits {
    fn count(self) -> u64 {
        u64::from(self.low.count_ones() + self.high.count_ones())
    }

    /// Move up by `by`; how many set bits fall off.
    fn shift(&mut self, by: u64) -> u64 {
        let before = self.count();
        *self = match by {
            0 => *self,
            1..128 => Bits { low: self.low << by, high: self.high << by | self.low >> (128 - by) },
            128..256 => Bits { low: 0, high: self.low << (by - 128) },
            _ => Bits::default(),
        };
        before - self.count()
    }

    /// Set the bits of a range within 256.
    fn set(&mut self, range: Range<u64>) {
        let below = |n: u64| if n >= 128 { u128::MAX } else { (1 << n) - 1 };
        self.low |= below(range.end) & !below(range.start);
        self.high |= below(range.end.saturating_sub(128)) & !below(range.start.saturating_sub(128));
    }
}

/// One stream; all in parts.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    id: u32,
    first: u64,
    end: u64,
    /// What of the window before `end` was asked for.
    window: Bits,
    /// Parts that have left the window, and those of them that were asked for.
    left: u64,
    left_asked: u64,
    /// Parts asked for since it began, each once.
    asked: u64,
    /// Written since the last flush.
    unflushed: u64,
    /// It was flushed in time.
    is_log: bool,
    /// See [`Scan::returns`].
    returns: bool,
}

impl Stream {
    fn begin(id: u32, parts: &Range<u64>) -> Stream {
        let mut stream = Stream { id, first: parts.start, end: parts.start, ..Stream::default() };
        stream.take(parts);
        stream
    }

    fn inside(&self) -> u64 {
        (self.end - self.first).min(WINDOW_PARTS)
    }

    /// A request belongs to it.
    fn take(&mut self, parts: &Range<u64>) {
        let before = self.window.count();
        let mut fell = 0;
        self.first = if self.end - self.first < WINDOW_PARTS { self.first.min(parts.start) } else { self.first };
        if parts.end > self.end {
            let inside = self.inside();
            let by = parts.end - self.end;
            fell = self.window.shift(by);
            // What is longer than the window leaves it at once.
            fell += (parts.end.saturating_sub(WINDOW_PARTS)).saturating_sub(parts.start.max(self.end));
            self.end = parts.end;
            self.left += (inside + by).saturating_sub(self.inside());
            self.left_asked += fell;
        }
        let low = self.end - parts.end;
        let high = (self.end - parts.start).min(WINDOW_PARTS);
        if low < high {
            self.window.set(low..high);
        }
        self.asked += (self.window.count() + fell).saturating_sub(before);
        if self.left > SPAN_PARTS_MAX {
            (self.left, self.left_asked) = (self.left / 2, self.left_asked / 2);
        }
    }

    fn is_dense(&self) -> bool {
        let (asked, span) = (self.left_asked + self.window.count(), self.left + self.inside());
        asked * DENSITY.1 >= span * DENSITY.0
    }

    fn is_scan(&self, cutoff_parts: u64) -> bool {
        self.asked >= cutoff_parts && self.is_dense()
    }

    fn credit(&self) -> u8 {
        (self.asked.max(1).ilog2() as u8 * 2).min(CREDIT_MAX)
    }
}

/// The recent streams of one direction.
#[derive(Debug)]
struct Table {
    /// Where each ends, apart so that the search reads little; unused ones end where no request begins.
    ends: [u64; STREAMS_MAX],
    credits: [u8; STREAMS_MAX],
    streams: [Stream; STREAMS_MAX],
    hand: usize,
    ids: u32,
}

/// No request begins near this.
const NO_END: u64 = u64::MAX;

impl Default for Table {
    fn default() -> Table {
        Table {
            ends: [NO_END; STREAMS_MAX],
            credits: [0; STREAMS_MAX],
            streams: [Stream::default(); STREAMS_MAX],
            hand: 0,
            ids: 0,
        }
    }
}

impl Table {
    /// The stream whose end is nearest to where a request begins, if it is near enough.
    fn find(&self, start: u64) -> Option<usize> {
        let mut nearest = (WINDOW_PARTS + 1, 0);
        for (place, end) in self.ends.iter().enumerate() {
            let distance = end.abs_diff(start);
            if distance < nearest.0 {
                nearest = (distance, place);
            }
        }
        (nearest.0 <= WINDOW_PARTS).then_some(nearest.1)
    }

    /// Count a request; its stream.
    fn take(&mut self, parts: &Range<u64>) -> &mut Stream {
        let place = match self.find(parts.start) {
            Some(place) => {
                self.streams[place].take(parts);
                place
            }
            None => {
                let place = self.room();
                self.ids = self.ids.wrapping_add(1);
                self.streams[place] = Stream::begin(self.ids, parts);
                place
            }
        };
        self.ends[place] = self.streams[place].end;
        self.credits[place] = self.streams[place].credit();
        &mut self.streams[place]
    }

    /// A place for a new stream. Long ones stay for some turns: single requests come in between by the hundred.
    fn room(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % STREAMS_MAX;
            match self.credits[place].checked_sub(1) {
                Some(rest) if self.ends[place] != NO_END => self.credits[place] = rest,
                _ => return place,
            }
        }
    }
}

/// A window that a scan was refused in, or admitted to.
#[derive(Clone, Copy, Debug, Default)]
struct Ghost {
    window: u32,
    /// Which scan was there last; 0: the place is free.
    scan: u32,
    /// How many windows scans had been in before.
    at: u32,
    admitted: bool,
}

/// Where scans were lately.
#[derive(Debug)]
struct Ghosts {
    places: Box<[Ghost; GHOSTS_MAX]>,
    /// Windows entered so far.
    entered: u32,
    /// Of what is between sampled windows.
    proof: u8,
}

impl Ghosts {
    fn new() -> Ghosts {
        Ghosts { places: Box::new([Ghost::default(); GHOSTS_MAX]), entered: 0, proof: 0 }
    }

    /// Whether a scan has come back to a window before it was elsewhere in more than the cache takes.
    fn returns(&mut self, scan: u32, window: u64, cache_bytes: u64) -> bool {
        let windows = cache_bytes / GHOST_BYTES;
        let one_in = windows.div_ceil(GHOSTS_WANTED).max(1);
        // Fibonacci hashing.
        let hash = window.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if !hash.is_multiple_of(one_in) {
            return self.proof > 0;
        }
        // An eighth is left to those who were there.
        let fits = u32::try_from((windows - windows / 8) / one_in).unwrap_or(u32::MAX);
        let window = window as u32;
        let set = (hash / one_in) as usize % (GHOSTS_MAX / GHOST_WAYS) * GHOST_WAYS;
        let entered = self.entered;
        let ways = &mut self.places[set..set + GHOST_WAYS];
        let found = ways.iter_mut().find(|ghost| ghost.scan != 0 && ghost.window == window);
        if let Some(ghost) = &found
            && ghost.scan == scan
        {
            return ghost.admitted;
        }
        let admitted = found.as_ref().is_some_and(|ghost| entered.wrapping_sub(ghost.at) <= fits);
        let age = |ghost: &Ghost| if ghost.scan == 0 { u32::MAX } else { entered.wrapping_sub(ghost.at) };
        let oldest = || (0..GHOST_WAYS).max_by_key(|way| age(&self.places[set + way])).unwrap_or(0);
        let place = match self.places[set..set + GHOST_WAYS].iter().position(|g| g.scan != 0 && g.window == window) {
            Some(way) => set + way,
            None => set + oldest(),
        };
        self.places[place] = Ghost { window, scan, at: entered, admitted };
        self.entered = entered.wrapping_add(1);
        self.proof = if admitted { (self.proof + 1).min(PROOF_MAX) } else { self.proof.saturating_sub(1) };
        admitted
    }
}

/// What is known of a grid disk's streams.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    /// 0: nothing is a scan.
    cutoff_parts: u64,
    reads: Mutex<Table>,
    writes: Mutex<Table>,
    ghosts: Mutex<Option<Ghosts>>,
}

impl StreamWatch {
    /// Streams are scans beyond so many bytes; 0: none is.
    pub(crate) fn new(cutoff_bytes: u64) -> StreamWatch {
        StreamWatch {
            cutoff_parts: cutoff_bytes.div_ceil(PART_BYTES),
            reads: Mutex::default(),
            writes: Mutex::default(),
            ghosts: Mutex::default(),
        }
    }

    /// A read of these parts begins: the scan it belongs to, if it does.
    pub(crate) fn reads(&self, parts: &Range<u64>) -> Option<Scan> {
        if self.cutoff_parts == 0 {
            return None;
        }
        let mut table = lock(&self.reads);
        let stream = table.take(parts);
        (is_large(parts) || stream.is_scan(self.cutoff_parts))
            .then_some(Scan { id: stream.id, returns: stream.returns })
    }

    /// A write of these parts begins: whether it belongs to a scan, and to no log.
    pub(crate) fn writes(&self, parts: &Range<u64>) -> bool {
        if self.cutoff_parts == 0 {
            return false;
        }
        let mut table = lock(&self.writes);
        let stream = table.take(parts);
        let len = parts.end - parts.start;
        stream.unflushed += len;
        let is_log = stream.is_log && stream.unflushed <= LOG_FLUSH_PARTS && len * PART_BYTES <= LOG_WRITE_BYTES_MAX;
        is_large(parts) || stream.is_scan(self.cutoff_parts) && !is_log
    }

    /// A FLUSH begins: streams that were written to just before it are logs.
    pub(crate) fn flushes(&self) {
        if self.cutoff_parts == 0 {
            return;
        }
        for stream in &mut lock(&self.writes).streams {
            if stream.unflushed > 0 {
                stream.is_log = stream.unflushed <= LOG_FLUSH_PARTS;
                stream.unflushed = 0;
            }
        }
    }

    /// A scan has missed where a fill would push others out: whether it has been there before, and all that scans were in since fits a
    /// cache of so many bytes.
    pub(crate) fn returns(&self, scan: Scan, first_part: u64, cache_bytes: u64) -> bool {
        let window = first_part * PART_BYTES / GHOST_BYTES;
        let returns = lock(&self.ghosts).get_or_insert_with(Ghosts::new).returns(scan.id, window, cache_bytes);
        if returns != scan.returns
            && let Some(stream) = lock(&self.reads).streams.iter_mut().find(|stream| stream.id == scan.id)
        {
            stream.returns = returns;
        }
        returns
    }
}

#[cfg(test)]
mod tests;
