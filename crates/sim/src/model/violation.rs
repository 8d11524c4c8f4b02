//! A broken promise, told so that it can be looked into.

use std::fmt::{self, Display};
use std::ops::Range;

/// The promise that was broken (DESIGN section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1: flushed data did not survive a power cut.
    Durable,
    /// I2: an older answer than the last acknowledged write, without any crash.
    Stale,
    /// I2: bytes of another place or of no write that was ever made here.
    Foreign,
    /// I2: the answer changed without a write.
    Flipping,
    /// I3: a request failed though nothing was declared to be offline there.
    Available,
    /// I4: bytes that nobody wrote.
    Rot,
    /// I9: the death of a process lost an acknowledged write.
    ProcessDeath,
    /// I10: without its flash a disk in flush order was torn, or older than it may be.
    Ordered,
}

impl Invariant {
    /// Its number in the design.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Invariant::Durable => "I1",
            Invariant::Stale | Invariant::Foreign | Invariant::Flipping => "I2",
            Invariant::Available => "I3",
            Invariant::Rot => "I4",
            Invariant::ProcessDeath => "I9",
            Invariant::Ordered => "I10",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Invariant::Durable => "durable data lost by a power cut",
            Invariant::Stale => "stale data",
            Invariant::Foreign => "foreign data",
            Invariant::Flipping => "the answer changed without a write",
            Invariant::Available => "a request failed where nothing is offline",
            Invariant::Rot => "bytes that nobody wrote",
            Invariant::ProcessDeath => "an acknowledged write lost by the death of a process",
            Invariant::Ordered => "the disk without its flash is not the grid disk of one moment",
        }
    }
}

/// An answer that is not permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub invariant: Invariant,
    /// The first bytes that are wrong, at most a sector.
    pub range: Range<u64>,
    /// Every answer that was permitted.
    pub expected: Vec<String>,
    /// What came.
    pub got: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(f, "{} broken, {}: bytes {start}..{end}", self.invariant.number(), self.invariant.words())?;
        write!(f, " (sector {}): got {}; permitted: ", start / 512, self.got)?;
        if self.expected.is_empty() { f.write_str("nothing") } else { f.write_str(&self.expected.join(", or ")) }
    }
}

impl std::error::Error for Violation {}
