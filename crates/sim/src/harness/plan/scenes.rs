//! Scenes: short lists of steps in an order that chance alone would hardly ever take, each ending in a crash and in
//! reading again what it was about. Each is aimed at one mechanism; clients go on elsewhere before and after it.
//!
//! Nothing but steps: a scene is made shorter like any other list. Never knows what the cell will make of it.

use super::AU_BYTES;
use super::steps::Steps;
use super::{Admin, Between, Caching, Crash, End, Io, Mishap, Pass, Step, Verb, caching, pick};
use celldisk::{CachingMode, CachingPolicy};
use std::time::Duration;

/// Reads of one round that push others out of the cache: some caches' worth at the sizes of the harness.
const CHURN_READS_MAX: u64 = 40;
/// Bytes of such a read: well below what is too large to be cached.
const CHURN_READ_BYTES: u64 = 64 << 10;

/// Ranges of one grid disk.
struct Place {
    disk: u64,
    ranges: Vec<(u64, u64)>,
}

impl Steps<'_> {
    /// One of them.
    pub(super) fn scene(&mut self) {
        if self.setup.ordered && self.prng.chance(1, 2) {
            return self.all_flash_lost();
        }
        match self.prng.below(13) {
            0..=2 => self.unflushed_copy(),
            3..=5 => self.generation(),
            6..=7 => self.churn(),
            8..=10 => self.first_write(),
            11 => self.restored(),
            _ => self.mid_command(),
        }
    }

    fn rest(&mut self, time: Duration) {
        self.steps.push(Step::Rest(time));
    }

    fn all_done(&mut self) {
        self.rest(Duration::ZERO);
    }

    /// Ranges of whole pages of a grid disk, the first more often than others because it is cached from the start.
    fn place(&mut self, ranges: usize) -> Place {
        let prng = &mut *self.prng;
        let count = self.setup.grid_disks.len() as u64;
        let disk = if prng.chance(1, 2) { 0 } else { prng.below(count) };
        let pages = self.setup.grid_disks[disk as usize].size_bytes / 4096;
        let mut range = || {
            let len_pages = pick(prng, &[1, 1, 2, 4, 16]).min(pages);
            (prng.below(pages - len_pages + 1) * 4096, len_pages * 4096)
        };
        let ranges = (0..ranges).map(|_| range()).collect();
        Place { disk, ranges }
    }

    fn each(&mut self, place: &Place, verb: Verb) {
        for &(offset, len) in &place.ranges {
            let io = Io { disk: place.disk, verb, offset, len, odd_memory: false, think_ns: 0 };
            self.steps.push(Step::Io(io));
        }
    }

    fn flush(&mut self, disk: u64) {
        self.steps.push(Step::Io(Io { disk, verb: Verb::Flush, offset: 0, len: 0, odd_memory: false, think_ns: 0 }));
    }

    fn set_caching(&mut self, disk: u64, mode: CachingMode, policy: CachingPolicy) {
        self.all_done();
        self.steps.push(Step::Admin(Admin::SetCaching { disk, caching: Caching { mode, policy } }));
        self.all_done();
    }

    fn cached(&mut self, disk: u64) {
        let mode = pick(self.prng, &[CachingMode::WriteThrough, CachingMode::WriteAround]);
        self.set_caching(disk, mode, CachingPolicy::Default);
    }

    fn end(&mut self, end: End, delay_ns: u64, between: Vec<Between>, pass: Pass) {
        let crash = Crash { end, delay_ns, between, broken_opens: Vec::new(), pass, evict: false, in_flush: None };
        self.steps.push(Step::Crash(crash));
    }

    /// Time for what was filled to be on its way to flash, and, mostly, not for the disk to be flushed.
    fn until_on_flash(&mut self) {
        let time = self.setup.chunk_age * self.prng.between(1, 4) as u32 + Duration::from_micros(500);
        self.rest(time);
    }

    /// No region is marked: what is cached is not compared with the disk after a crash.
    fn settled(&mut self, disk: u64) {
        self.flush(disk);
        self.rest(self.setup.settle_every * 3 + Duration::from_millis(20));
    }

    /// What is cached of them is gone, one way or another.
    fn uncached(&mut self, disk: u64) {
        self.all_done();
        let flash = self.prng.below(64);
        match self.prng.below(8) {
            0 => self.steps.push(Step::Admin(Admin::DropFlashCache)),
            1 => self.end(End::Kill, 0, vec![Between::FlashBlank { flash }], Pass::Nothing),
            2 => self.steps.push(Step::Mishap(Mishap::FlashVanishes { flash })),
            _ => self.steps.push(Step::Admin(Admin::Evict { disk })),
        }
        self.all_done();
    }

    /// A flash cache for what follows, if it was dropped.
    fn cache_again(&mut self) {
        self.all_done();
        let size_bytes = self.setup.flash_cache_bytes;
        self.steps.push(Step::Admin(Admin::CreateFlashCache { all: true, size_bytes }));
    }

    /// Flash has a copy of writes that no flush covered, the power goes and takes them from the disk: the first answer
    /// after it is final, whichever it is, with the copy and without.
    fn unflushed_copy(&mut self) {
        let place = self.place(12);
        self.cached(place.disk);
        self.each(&place, Verb::Write { fua: false });
        self.all_done();
        self.flush(place.disk);
        self.all_done();
        self.each(&place, Verb::Write { fua: false });
        self.all_done();
        self.each(&place, Verb::Read);
        self.until_on_flash();
        let end = pick(self.prng, &[End::PowerCut, End::PowerCut, End::PowerCut, End::Kill]);
        self.end(end, 0, Vec::new(), Pass::Nothing);
        self.all_done();
        self.each(&place, Verb::Read);
        if self.prng.chance(1, 3) {
            self.until_on_flash();
            self.end(End::Kill, 0, Vec::new(), Pass::Nothing);
            self.all_done();
            self.each(&place, Verb::Read);
        }
        self.uncached(place.disk);
        self.each(&place, Verb::Read);
        self.cache_again();
    }

    /// What was cached before a time without a cache is of a former generation, in RAM and after a crash: the writes
    /// of that time ended no copy.
    fn generation(&mut self) {
        let place = self.place(12);
        self.cached(place.disk);
        self.settled(place.disk);
        self.each(&place, Verb::Read);
        self.until_on_flash();
        self.each(&place, Verb::Read);
        let (mode, policy) = pick(
            self.prng,
            &[
                (CachingMode::WriteThrough, CachingPolicy::None),
                (CachingMode::None, CachingPolicy::Default),
                (CachingMode::WriteAround, CachingPolicy::None),
            ],
        );
        self.set_caching(place.disk, mode, policy);
        self.each(&place, Verb::Write { fua: false });
        if self.prng.chance(1, 2) {
            self.all_done();
            self.flush(place.disk);
        }
        let crash_first = self.prng.chance(1, 3);
        if !crash_first {
            self.cached(place.disk);
        }
        if self.prng.chance(1, 3) {
            self.each(&place, Verb::Read);
            self.until_on_flash();
        }
        self.all_done();
        let end = pick(self.prng, &[End::Kill, End::PowerCut]);
        let delay_ns = pick(self.prng, &[0, 0, 1_000_000]);
        self.end(end, delay_ns, Vec::new(), Pass::Nothing);
        if crash_first {
            self.cached(place.disk);
        }
        self.all_done();
        self.each(&place, Verb::Read);
        self.all_done();
    }

    /// Segments are reclaimed and reused while copies in them, and what ended these copies, are of different age.
    fn churn(&mut self) {
        let disk = self.place(1).disk;
        self.cached(disk);
        let rounds = self.prng.between(2, 4);
        for _ in 0..rounds {
            let place = Place { disk, ..self.place(16) };
            self.each(&place, Verb::Read);
            self.all_done();
            self.each(&place, Verb::Write { fua: false });
            self.all_done();
            for _ in 0..self.prng.between(4, CHURN_READS_MAX) {
                let disk = self.prng.below(self.setup.grid_disks.len() as u64);
                let size = self.setup.grid_disks[disk as usize].size_bytes;
                let offset = self.prng.below(size / CHURN_READ_BYTES) * CHURN_READ_BYTES;
                let io = Io { disk, verb: Verb::Read, offset, len: CHURN_READ_BYTES, odd_memory: false, think_ns: 0 };
                self.steps.push(Step::Io(io));
            }
            if self.prng.chance(1, 3) {
                self.until_on_flash();
            }
        }
        let end = pick(self.prng, &[End::Kill, End::Kill, End::PowerCut]);
        let delay_ns = self.prng.below(3_000_000);
        self.end(end, delay_ns, Vec::new(), Pass::Everything { step_bytes: 64 << 10 });
        self.all_done();
    }

    /// The first writes after all regions have been settled, each waiting for its mark on flash; the end comes early.
    fn first_write(&mut self) {
        let place = self.place(4);
        self.cached(place.disk);
        self.settled(place.disk);
        let end = pick(self.prng, &[End::PowerCut, End::Kill]);
        let bound_ns = pick(self.prng, &[60_000, 250_000, 600_000]);
        let delay_ns = self.prng.below(bound_ns);
        // The writes begin when the end has been called for.
        self.end(end, delay_ns, Vec::new(), Pass::Nothing);
        self.each(&place, Verb::Write { fua: false });
        self.all_done();
        self.each(&place, Verb::Read);
        self.uncached(place.disk);
        self.each(&place, Verb::Read);
        self.cache_again();
    }

    /// Flash is put back to what it was before stamps were last renewed, with writes since then and no opening.
    fn restored_in_a_life(&mut self, place: &Place, flash: u64, every: Duration) {
        self.each(place, Verb::Read);
        self.until_on_flash();
        self.settled(place.disk);
        self.steps.push(Step::Mishap(Mishap::FlashSnapshot { flash }));
        for _ in 0..2 {
            self.each(place, Verb::Write { fua: false });
            self.all_done();
            self.rest(every * 2);
        }
        self.flush(place.disk);
        let end = pick(self.prng, &[End::Kill, End::PowerCut]);
        self.end(end, 0, vec![Between::FlashStale { flash }], Pass::Everything { step_bytes: 64 << 10 });
        self.all_done();
        self.each(place, Verb::Read);
        self.uncached(place.disk);
        self.each(place, Verb::Read);
        self.cache_again();
    }

    /// A device is put back to what it was a life ago, with writes since then.
    fn restored(&mut self) {
        let place = self.place(8);
        let device = self.prng.below(64);
        let of_disk = self.prng.chance(1, 2);
        self.cached(place.disk);
        if let Some(every) = self.setup.stamps_every.filter(|_| !of_disk) {
            return self.restored_in_a_life(&place, device, every);
        }
        let kept =
            if of_disk { Mishap::DiskSnapshot { disk: device } } else { Mishap::FlashSnapshot { flash: device } };
        self.steps.push(Step::Mishap(kept));
        self.each(&place, Verb::Read);
        self.until_on_flash();
        let end = pick(self.prng, &[End::Kill, End::PowerCut]);
        self.end(end, 0, Vec::new(), Pass::Nothing);
        self.all_done();
        self.each(&place, Verb::Write { fua: false });
        self.each(&place, Verb::Read);
        self.flush(place.disk);
        self.until_on_flash();
        let back = if of_disk { Between::DiskStale { disk: device } } else { Between::FlashStale { flash: device } };
        let end = pick(self.prng, &[End::Kill, End::PowerCut]);
        self.end(end, 0, vec![back], Pass::Everything { step_bytes: 64 << 10 });
        self.all_done();
        self.each(&place, Verb::Read);
        self.uncached(place.disk);
        self.each(&place, Verb::Read);
        self.cache_again();
    }

    /// All flash is lost at some moment of a life in flush order: the disk alone is the grid disk of one moment, and goes on
    /// from there.
    fn all_flash_lost(&mut self) {
        let disk = if self.prng.chance(2, 3) { 0 } else { self.place(1).disk };
        // All flash is there, takes dirty data, and no FLUSH of before holds on.
        self.end(End::Kill, 0, vec![Between::FlashBack { flash: 0 }, Between::DiskBack], Pass::Nothing);
        self.cache_again();
        // Becomes flush order.
        self.set_caching(disk, CachingMode::WriteThrough, CachingPolicy::Default);
        let rounds = self.prng.between(2, 8);
        for _ in 0..rounds {
            let ranges = self.prng.between(2, 12) as usize;
            let place = Place { disk, ..self.place(ranges) };
            let fua = self.prng.chance(1, 8);
            self.each(&place, Verb::Write { fua });
            if self.prng.chance(2, 3) {
                self.all_done();
                self.flush(disk);
            }
            if self.prng.chance(1, 2) {
                let share = self.prng.between(1, 12) as u32;
                self.rest(self.setup.settle_every * share / 4);
            }
        }
        let end = pick(self.prng, &[End::PowerCut, End::PowerCut, End::Kill]);
        let bound_ns = pick(self.prng, &[2_000_000, 20_000_000, 3 * self.setup.settle_every.as_nanos() as u64]);
        let delay_ns = if self.prng.chance(2, 3) {
            // In the middle of the batch that this makes: of single pages, one after the other, all over the grid disk.
            self.all_done();
            let pages = self.setup.grid_disks[disk as usize].size_bytes / 4096;
            for _ in 0..self.prng.between(6, 20) {
                let page = self.prng.below(pages);
                self.each(&Place { disk, ranges: vec![(page * 4096, 4096)] }, Verb::Write { fua: false });
                self.all_done();
            }
            self.flush(disk);
            self.all_done();
            self.steps.push(Step::Admin(Admin::Flush { disk, cancel: false }));
            let bound_ns = pick(self.prng, &[3_000_000, 10_000_000, 30_000_000]);
            self.prng.below(bound_ns)
        } else {
            self.prng.below(bound_ns)
        };
        self.end(end, delay_ns, vec![Between::AllFlashAbsent], Pass::Nothing);
        // The end has been called for: these are under way, or never begun.
        let place = Place { disk, ..self.place(12) };
        self.each(&place, Verb::Write { fua: false });
        self.all_done();
        for disk in 0..self.setup.grid_disks.len() as u64 {
            self.steps.push(Step::Admin(Admin::AcceptStale { disk }));
        }
        self.all_done();
        self.each(&place, Verb::Read);
        self.each(&place, Verb::Write { fua: false });
        self.all_done();
        if self.prng.chance(1, 2) {
            self.flush(disk);
            self.all_done();
        }
        let back = vec![Between::FlashBack { flash: 0 }, Between::DiskBack];
        let end = pick(self.prng, &[End::PowerCut, End::Kill]);
        self.end(end, 0, back, Pass::Everything { step_bytes: 64 << 10 });
        self.all_done();
        self.set_caching(disk, CachingMode::WriteThrough, CachingPolicy::Default);
        self.all_done();
    }

    /// A command under way, nothing else.
    fn mid_command(&mut self) {
        self.all_done();
        let prng = &mut *self.prng;
        let disk = prng.below(64);
        let size_bytes = AU_BYTES * prng.between(1, 16);
        let admin = match prng.below(5) {
            0 => Admin::Create { home: prng.below(8), size_bytes, caching: caching(prng), redo: None },
            1 => Admin::Drop { disk },
            2 => Admin::Resize { disk, size_bytes },
            3 => Admin::Rename { disk },
            _ => Admin::SetCaching { disk, caching: caching(prng) },
        };
        let end = pick(prng, &[End::PowerCut, End::Kill]);
        let bound_ns = pick(prng, &[300_000, 3_000_000, 30_000_000]);
        let delay_ns = prng.below(bound_ns);
        self.steps.push(Step::Admin(admin));
        self.end(end, delay_ns, Vec::new(), Pass::Some { ranges: 10 });
        self.all_done();
    }
}
