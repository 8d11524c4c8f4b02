//! Who enters the flash, who stays: a small trait, and the default, an S3-FIFO shaped to a log of segments.
//!
//! A policy never does I/O and never sees data. It answers three questions: where a new block goes, which head gives up a
//! segment, and what becomes of each block in it.

use crate::format::HeadKind;
use crate::units::BlockKey;
use device::sync::lock;
use std::sync::Mutex;

/// Where a new block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// To this head.
    To(HeadKind),
    /// Not to flash at all.
    Refuse,
}

/// What becomes of a block whose segment is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves the cache.
    Evict,
    /// It is written again at this head, with this frequency.
    Move(HeadKind, u8),
}

/// Pages held by each of the two clean heads' segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HeadPages {
    /// Of the small head.
    pub small: u64,
    /// Of the main head.
    pub main: u64,
}

/// A replacement policy. Called from any thread.
pub trait Policy: Send + Sync {
    /// Its name, for reports.
    fn name(&self) -> &'static str;
    /// A block that is not cached was read or written.
    fn admit(&self, key: BlockKey) -> Admission;
    /// Space is needed: which head gives up its oldest segment.
    fn victim(&self, held: HeadPages) -> HeadKind;
    /// A block of the victim segment, with how often it was hit (0 to 3) since it was written there.
    fn judge(&self, head: HeadKind, key: BlockKey, frequency: u8) -> Verdict;
}

/// S3-FIFO (Yang et al., SOSP 2023) over segments: a small queue that new blocks must survive, a main queue with lazy
/// promotion, and a ghost table of blocks that left the small queue and go to the main queue at once when they return.
pub struct SegmentS3Fifo {
    ghosts: Mutex<Ghosts>,
    /// Share of the cache the small head aims at, in 1/1024.
    small_share: u64,
}

impl SegmentS3Fifo {
    /// A policy for a cache of about `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> SegmentS3Fifo {
        SegmentS3Fifo { ghosts: Mutex::new(Ghosts::new(blocks)), small_share: 102 }
    }
}

impl Policy for SegmentS3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo-log"
    }

    fn admit(&self, key: BlockKey) -> Admission {
        Admission::To(if lock(&self.ghosts).take(key) { HeadKind::Main } else { HeadKind::Small })
    }

    fn victim(&self, held: HeadPages) -> HeadKind {
        let all = held.small + held.main;
        if held.main == 0 || held.small * 1024 > all * self.small_share { HeadKind::Small } else { HeadKind::Main }
    }

    fn judge(&self, head: HeadKind, key: BlockKey, frequency: u8) -> Verdict {
        match (head, frequency) {
            (HeadKind::Small, 0) => {
                lock(&self.ghosts).put(key);
                Verdict::Evict
            }
            (HeadKind::Small, _) => Verdict::Move(HeadKind::Main, 0),
            (_, 0) => Verdict::Evict,
            (head, n) => Verdict::Move(head, n - 1),
        }
    }
}

/// Names of blocks that left, in a set-associative table of 4 bytes each: a tag and the age it was put at.
struct Ghosts {
    slots: Vec<Ghost>,
    /// Puts so far, in units of `step`.
    clock: u64,
    puts: u64,
    /// A ghost is believed until about this many further puts.
    window: u64,
}

#[derive(Clone, Copy, Default)]
struct Ghost {
    tag: u16,
    /// Low bits of the epoch it was put in; 0 is never used.
    epoch: u16,
}

const GHOST_WAYS: usize = 4;
/// Epochs per window: how finely age is told.
const GHOST_EPOCHS: u64 = 64;

impl Ghosts {
    fn new(blocks: u64) -> Ghosts {
        let window = blocks.max(64);
        let slots = (window as usize * 2).next_multiple_of(GHOST_WAYS);
        Ghosts { slots: vec![Ghost::default(); slots], clock: 1, puts: 0, window }
    }

    fn set(&self, key: BlockKey) -> (usize, u16) {
        let hash = key.hash();
        let sets = self.slots.len() / GHOST_WAYS;
        let set = ((u128::from(hash) * sets as u128) >> 64) as usize;
        (set * GHOST_WAYS, (hash & 0xffff) as u16)
    }

    fn age(&self, ghost: Ghost) -> u64 {
        if ghost.epoch == 0 { u64::MAX } else { u64::from((self.clock as u16).wrapping_sub(ghost.epoch)) }
    }

    fn put(&mut self, key: BlockKey) {
        self.puts += 1;
        if self.puts >= (self.window / GHOST_EPOCHS).max(1) {
            self.puts = 0;
            self.clock += 1;
            if self.clock as u16 == 0 {
                self.clock += 1;
            }
        }
        let (first, tag) = self.set(key);
        let set = first..first + GHOST_WAYS;
        let same = set.clone().find(|&i| self.slots[i].tag == tag && self.slots[i].epoch != 0);
        let at = same.or_else(|| set.max_by_key(|&i| self.age(self.slots[i])));
        if let Some(at) = at {
            self.slots[at] = Ghost { tag, epoch: self.clock as u16 };
        }
    }

    fn take(&mut self, key: BlockKey) -> bool {
        let (first, tag) = self.set(key);
        for i in first..first + GHOST_WAYS {
            if self.slots[i].tag == tag && self.age(self.slots[i]) <= GHOST_EPOCHS {
                self.slots[i] = Ghost::default();
                return true;
            }
        }
        false
    }
}
