//! A client's read or write as it goes through the cell: on whose behalf, and which of its bytes flash has served or taken. What it was is
//! known and counted when it ends, once, with the bytes the client asked for, whatever it was cut into or rounded up to on the way.
//!
//! The counts of reads are disjoint and add up: a read is a hit (flash served all of it), skipped (something of it went past the cache
//! on purpose) or a miss, and each of its bytes came from flash, or was skipped or missed with its request. So do those of writes: kept on
//! flash, in part at least, or gone past. Never decides where anything goes.

use crate::base::counters::{GridDiskCounters, Traffic};
use crate::base::request::Context;
use crate::disk::grid_disk::GridDisk;
use std::ops::Range;

/// Why a read, or a part of it, goes past the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSkip {
    /// The range it reads is not cached, or not now.
    Uncached,
    /// The I/O plan keeps its database from flash.
    Plan,
    /// The read is large: its misses are not kept.
    Large,
    /// Flash was slow or its content rotten.
    Flash,
    /// Flash was busier than the disk.
    Busy,
}

/// Why what a read has missed is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillSkip {
    /// Flash is busier than the disk.
    Busy,
    /// It belongs to a scan and would push out others.
    Scan,
}

/// Why a write is not kept in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSkip {
    /// The I/O plan keeps its database from flash.
    Plan,
    /// It is large.
    Large,
    /// Flash is busier than the disk.
    Busy,
    /// It belongs to a scan and would push out others.
    Scan,
}

/// Which bytes of a request flash has served or taken.
#[derive(Debug)]
struct Share {
    asked: Range<u64>,
    flash_bytes: u64,
}

impl Share {
    fn new(offset: u64, len: u64) -> Share {
        Share { asked: offset..offset + len, flash_bytes: 0 }
    }

    /// Flash has served or taken this range, which may begin before what was asked for and end after it.
    fn add(&mut self, range: Range<u64>) {
        let (start, end) = (range.start.max(self.asked.start), range.end.min(self.asked.end));
        self.flash_bytes += end.saturating_sub(start);
    }

    fn len(&self) -> u64 {
        self.asked.end - self.asked.start
    }

    /// Bytes flash has, and the others.
    fn split(&self) -> (u64, u64) {
        let flash_bytes = self.flash_bytes.min(self.len());
        (flash_bytes, self.len() - flash_bytes)
    }
}

/// A client's read under way.
#[derive(Debug)]
pub(crate) struct ClientRead<'a> {
    pub(crate) context: &'a Context,
    share: Share,
    skip: Option<ReadSkip>,
    fill_skip: Option<FillSkip>,
    is_keep: bool,
    populates: bool,
}

impl ClientRead<'_> {
    pub(crate) fn new(context: &Context, offset: u64, len: u64) -> ClientRead<'_> {
        let share = Share::new(offset, len);
        ClientRead { context, share, skip: None, fill_skip: None, is_keep: false, populates: false }
    }

    /// Flash has served this range, in bytes; see [`Share::add`].
    pub(crate) fn served_by_flash(&mut self, range: Range<u64>) {
        self.share.add(range);
    }

    /// The read goes past the cache. The first reason is the one that counts.
    pub(crate) fn skips(&mut self, why: ReadSkip) {
        self.skip.get_or_insert(why);
    }

    /// The cache does not keep the misses of this read.
    pub(crate) fn skips_fill(&mut self, why: FillSkip) {
        self.fill_skip.get_or_insert(why);
    }

    /// It is, in part at least, of KEEP data.
    pub(crate) fn is_of_keep(&mut self) {
        self.is_keep = true;
    }

    /// Something it has missed is on flash now.
    pub(crate) fn populates(&mut self) {
        self.populates = true;
    }

    pub(crate) fn has_populated(&self) -> bool {
        self.populates
    }

    /// It has ended.
    pub(crate) fn count(self, disk: &GridDisk) {
        let c = &disk.counters;
        let len = self.share.len();
        let (from_flash, from_disk) = self.share.split();
        c.reads.count(len);
        if len > 0 && self.skip != Some(ReadSkip::Uncached) {
            disk.tally.count(disk.size_bytes(), self.share.asked.start, from_disk == 0);
        }
        if self.populates {
            c.cache_populates.one();
        }
        if len > 0 && from_disk == 0 {
            c.cache_hits.count(len);
            if self.is_keep {
                c.keep_hits.count(len);
            }
            self.context.served_by_cache(len);
            return;
        }
        disk.served_by_disk(self.context, len);
        if from_flash > 0 {
            c.cache_partial_hits.count(from_flash);
        }
        if self.is_keep {
            c.keep_misses.count(from_disk);
            c.keep_hits.bytes.add(from_flash);
        }
        match self.skip {
            None => c.cache_misses.count(from_disk),
            Some(why) => {
                c.cache_read_skips.count(from_disk);
                if let Some(traffic) = of_read_skip(c, why) {
                    traffic.count(from_disk);
                }
            }
        }
        match self.fill_skip {
            None => {}
            Some(FillSkip::Busy) => c.cache_fill_skips_busy.count(from_disk),
            Some(FillSkip::Scan) => c.cache_fill_skips_scan.count(from_disk),
        }
    }
}

fn of_read_skip(c: &GridDiskCounters, why: ReadSkip) -> Option<&Traffic> {
    match why {
        ReadSkip::Uncached => None,
        ReadSkip::Plan => Some(&c.cache_read_skips_plan),
        ReadSkip::Large => Some(&c.cache_read_skips_large),
        ReadSkip::Flash => Some(&c.cache_read_skips_flash),
        ReadSkip::Busy => Some(&c.cache_read_skips_busy),
    }
}

/// A client's write under way.
#[derive(Debug)]
pub(crate) struct ClientWrite<'a> {
    pub(crate) context: &'a Context,
    share: Share,
    skip: Option<WriteSkip>,
}

impl ClientWrite<'_> {
    pub(crate) fn new(context: &Context, offset: u64, len: u64) -> ClientWrite<'_> {
        ClientWrite { context, share: Share::new(offset, len), skip: None }
    }

    /// Flash keeps this range, in bytes; see [`Share::add`].
    pub(crate) fn kept(&mut self, range: Range<u64>) {
        self.share.add(range);
    }

    /// Bytes flash keeps of it so far: for [`ClientWrite::keeps_but`].
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.share.flash_bytes
    }

    /// Flash has not kept the bytes counted since then, after all.
    pub(crate) fn keeps_but(&mut self, kept_bytes: u64) {
        self.share.flash_bytes = kept_bytes;
    }

    /// The cache does not keep this write. The first reason is the one that counts.
    pub(crate) fn skips(&mut self, why: WriteSkip) {
        self.skip.get_or_insert(why);
    }

    /// It has ended.
    pub(crate) fn count(self, c: &GridDiskCounters) {
        let (kept, past) = self.share.split();
        c.writes.count(self.share.len());
        if kept > 0 {
            c.cache_writes.count(kept);
        }
        let reason = self.skip.map(|why| match why {
            WriteSkip::Plan => &c.cache_write_skips_plan,
            WriteSkip::Large => &c.cache_write_skips_large,
            WriteSkip::Busy => &c.cache_write_fill_skips_busy,
            WriteSkip::Scan => &c.cache_write_skips_scan,
        });
        for traffic in [Some(&c.cache_write_skips), reason].into_iter().flatten() {
            // A request of which something was kept counts there.
            if kept == 0 {
                traffic.requests.one();
            }
            traffic.bytes.add(past);
        }
    }
}
