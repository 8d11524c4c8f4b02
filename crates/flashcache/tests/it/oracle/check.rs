//! What the cache says of itself, against the arrays; and its ends, with what comes back.

use super::{CLEANING, DISK_PARTS, DISKS, RANGE_BYTES, Rig, open};
use device::io::{FailKind, Verb};
use device::layers::{Action, Fault};
use flashcache::{Content, Evidence, PART_BYTES, Residence, Worth, WorthMap};
use std::collections::BTreeMap;

impl Rig {
    /// What the cache says of itself.
    pub(super) fn check(&self) {
        assert_eq!(self.cache.miscounted(), None);
        let copies = if self.flash.len() > 1 && self.failed.is_none() { 2 } else { 1 };
        let range_bytes: BTreeMap<u64, u64> = DISKS.iter().map(|id| (*id, RANGE_BYTES)).collect();
        let mut content: BTreeMap<(u64, u64), Content> = BTreeMap::new();
        for ((id, range, _), found) in self.cache.content(&range_bytes) {
            let sum = content.entry((id, range)).or_default();
            sum.cached_bytes += found.cached_bytes;
            sum.keep_bytes += found.keep_bytes;
            sum.dirty_bytes += found.dirty_bytes;
        }
        let mut all = 0;
        for (disk, truth) in self.truth.iter().enumerate() {
            let handle = &self.handles[disk];
            let dirty = truth.dirty.iter().filter(|dirty| **dirty).count() as u64 * PART_BYTES;
            all += dirty;
            let is_short = self.cache.is_short_of_members();
            if !is_short {
                assert_eq!(self.cache.dirty_bytes(handle), dirty);
            }
            let oldest = self.cache.dirty(handle).oldest;
            assert_eq!(oldest.is_some(), dirty > 0);
            let least = self.cache.members().filter_map(|member| member.oldest_dirty()).min();
            assert!(least <= oldest || oldest.is_none(), "the oldest of all is no younger than that of one disk");
            assert!(!self.cache.has_lost(handle));
            assert_eq!(self.cache.has_dirty(handle), dirty > 0);
            let runs = self.cache.residence(handle, 0..DISK_PARTS);
            assert!(runs.windows(2).any(|pair| pair[0].1 != pair[1].1) || runs.len() == 1);
            let of_parts: Vec<Residence> =
                runs.iter().flat_map(|(count, residence)| std::iter::repeat_n(*residence, *count as usize)).collect();
            for (part, residence) in of_parts.iter().enumerate() {
                assert_eq!(*residence == Residence::Dirty, truth.dirty[part], "part {part} of {disk}");
                let none = truth.worth.of(part as u64) == Worth::None;
                assert!(!none || matches!(residence, Residence::Disk | Residence::Dirty), "part {part}");
            }
            let plain = truth.worth == WorthMap::default() && self.cache.suspects(handle).is_empty();
            if is_short || self.flash.len() > 1 && dirty > 0 || !plain {
                continue;
            }
            for (range, parts) in of_parts.chunks((RANGE_BYTES / PART_BYTES) as usize).enumerate() {
                let bytes = |wanted: &dyn Fn(Residence) -> bool| {
                    parts.iter().filter(|residence| wanted(**residence)).count() as u64 * PART_BYTES
                };
                let expected = Content {
                    cached_bytes: bytes(&|r| r != Residence::Disk),
                    keep_bytes: bytes(&|r| r == Residence::Kept),
                    dirty_bytes: bytes(&|r| r == Residence::Dirty),
                };
                let found = content.get(&(DISKS[disk], range as u64)).copied().unwrap_or_default();
                assert_eq!(found, expected, "range {range} of {disk}");
            }
            let cached = of_parts.iter().filter(|residence| **residence != Residence::Disk).count() as u64;
            assert_eq!(self.cache.bytes_by_disk().get(&DISKS[disk]).copied().unwrap_or(0), cached * PART_BYTES);
        }
        if self.failed.is_none() && !self.cache.is_short_of_members() {
            let by_member: u64 = self.cache.members().map(|member| member.dirty_bytes()).sum();
            assert_eq!((by_member, self.cache.all_dirty_bytes()), (all * copies, (all, 0)));
        }
        for member in self.cache.members().filter(|member| !member.has_failed()) {
            let counts = member.segments();
            assert_eq!((u64::from(counts.all()), member.failure()), (self.plan.segments(), None));
            assert_eq!(member.oldest_dirty().is_some(), member.dirty_bytes() > 0);
        }
    }

    /// The process ends, by a stop or not; with `cut` the power does.
    pub(super) async fn restart(&mut self, how: u64) {
        if self.failed.is_some() {
            // Whoever comes back void has nothing of what others have as its mirror.
            self.destage(true).await;
        }
        let (clean, checkpoint) = (how == 0 || how == 1, how == 0);
        let mut places = vec![None; self.flash.len()];
        if clean {
            self.revalidate(true);
            self.settle_all().await;
            self.cache.stop().await;
            if checkpoint {
                places = self.cache.checkpoint().await;
            }
        } else if self.plan.forgets {
            // What nobody was told to be durable may be gone: nobody asks about that here.
            for handle in &self.handles {
                self.cache.sync(handle).await.unwrap();
            }
        }
        for faults in &self.faults {
            for verb in [Verb::Read, Verb::Write, Verb::Flush, Verb::Discard] {
                faults.add(Fault::every(verb, Action::Fail(FailKind::Gone)));
            }
        }
        for (i, flash) in self.flash.iter_mut().enumerate() {
            flash.memory.power_cut();
            flash.checkpoint = places[i];
            flash.era += u64::from(self.failed == Some(i));
        }
        for (name, n) in self.cache.members().flat_map(|member| member.counters.snapshot()) {
            if CLEANING.contains(&name) {
                *self.seen.entry(name).or_insert(0) += n;
            }
        }
        self.cache.stop().await;
        let (faults, cache, handles, evidence) = open(self.plan, &self.flash, &self.world).await;
        for (i, evidence) in evidence.into_iter().enumerate() {
            let known = if self.flash[i].checkpoint.is_some() { Evidence::Checkpoint } else { Evidence::Log };
            assert_eq!(evidence, known);
            self.seen
                .entry(if known == Evidence::Log { "by log" } else { "by checkpoint" })
                .and_modify(|n| *n += 1)
                .or_insert(1);
        }
        (self.faults, self.cache, self.handles, self.failed) = (faults, cache, handles, None);
        for (disk, truth) in self.truth.iter().enumerate() {
            self.cache.set_worth(&self.handles[disk], truth.worth.clone());
        }
        if checkpoint {
            // By the log a region may come back whose clearing was in a segment that has been reused: that costs a comparison.
            assert!(self.handles.iter().all(|handle| self.cache.suspects(handle).is_empty()), "all was settled");
        }
        self.check();
    }
}
