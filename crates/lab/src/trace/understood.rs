//! What was understood of a trace: told before anything is made of it, so that a misreading is seen.

use super::{Op, Request, Unit};
use std::fmt;

/// Counted over the requests of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Understood {
    reads: u64,
    writes: u64,
    flushes: u64,
    unknown: u64,
    amount: u128,
    devices: u32,
    end: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    untimed: u64,
    backwards: u64,
}

/// So much of the requests may begin before the one in front of them: recorders of several processors mix them a little.
const BACKWARDS_ONE_IN: u64 = 100;

impl Understood {
    /// Count a request.
    pub fn add(&mut self, request: &Request) {
        match request.op {
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            Op::Flush => self.flushes += 1,
            Op::Unknown => self.unknown += 1,
        }
        self.amount += u128::from(request.count);
        self.devices = self.devices.max(request.device + 1);
        self.end = self.end.max(request.start.saturating_add(request.count));
        match request.time_ns {
            None => self.untimed += 1,
            Some(time) => {
                let first = *self.first_ns.get_or_insert(time);
                self.first_ns = Some(first.min(time));
                self.backwards += u64::from(time < self.last_ns);
                self.last_ns = self.last_ns.max(time);
            }
        }
    }

    /// Requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.unknown
    }

    /// In words, of a trace that counts in such units.
    #[must_use]
    pub fn told(&self, unit: Unit) -> String {
        let mut text = format!("{} requests", self.requests());
        match (self.reads, self.writes, self.unknown) {
            (0, 0, _) => text.push_str(" (not told what reads and what writes: all count as reads)"),
            (reads, writes, 0) if self.flushes > 0 => {
                text.push_str(&format!(" ({reads} read, {writes} write, {} flush)", self.flushes));
            }
            (reads, writes, 0) => text.push_str(&format!(" ({reads} read, {writes} write)")),
            (reads, writes, unknown) => {
                text.push_str(&format!(" ({reads} read, {writes} write, {unknown} count as reads)"))
            }
        }
        match unit {
            Unit::Bytes => text.push_str(&format!(" of {}, up to {}", Size(self.amount), Size(u128::from(self.end)))),
            Unit::Blocks => text.push_str(&format!(" for {} blocks of the trace's own", self.amount)),
            Unit::Objects => text.push_str(", each for an object that counts as a block"),
        }
        text.push_str(&format!(", {} device{}", self.devices, if self.devices == 1 { "" } else { "s" }));
        match self.first_ns {
            Some(first) if self.untimed == 0 => {
                text.push_str(&format!(", span {}", Span(self.last_ns - first)));
                if self.backwards > self.requests() / BACKWARDS_ONE_IN {
                    text.push_str(&format!(
                        "; {} of them begin before the one in front: is it one file of several (blktrace: merge with blkparse -d), or unsorted?",
                        self.backwards
                    ));
                }
            }
            _ => text.push_str(", times not told"),
        }
        text
    }
}

struct Size(u128);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => write!(f, "{}.{} {unit}", self.0 >> shift, ((self.0 * 10) >> shift) % 10),
            None => write!(f, "{} B", self.0),
        }
    }
}

struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        match seconds {
            0..60 => write!(f, "{}.{:03} s", seconds, self.0 / 1_000_000 % 1000),
            60..7200 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            7200..172_800 => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}
