//! What is believed of clean data: marks settled, flushes of the disk that fail, comparisons with it, the operator's word, failed devices.

use super::{DISK_PARTS, DISKS, REGION_PARTS, Rig};
use flashcache::{Residence, Worth, WorthMap};
use std::collections::BTreeSet;

impl Rig {
    pub(super) async fn settle(&mut self) {
        for handle in self.handles.clone() {
            let list = self.cache.settle_list(&handle, &self.cache.epochs(), usize::MAX);
            self.cache.settle(list).await;
        }
        self.count("settles");
    }

    /// Nothing is left that a start would have to compare.
    pub(super) async fn settle_all(&mut self) {
        for _ in 0..100 {
            self.wait_for_segments().await;
            self.settle().await;
            if self.cache.members().all(|member| member.has_failed() || member.regions().is_empty()) {
                return;
            }
        }
        panic!("it does not come to that: {:?}", self.cache.members().map(|m| m.regions().len()).collect::<Vec<_>>());
    }

    /// A flush of the disk has failed: all of its unsettled regions are doubted.
    pub(super) fn distrust(&mut self) {
        let disk = self.prng.below(DISKS.len() as u64) as usize;
        self.cache.distrust(&self.handles[disk]);
        for (index, suspect) in self.cache.suspects(&self.handles[disk]) {
            if self.cache.member_of(&self.handles[disk], suspect.key.region * REGION_PARTS) != Some(index) {
                // It has marked the region while it served it.
                continue;
            }
            for part in suspect.key.region * REGION_PARTS..(suspect.key.region + 1) * REGION_PARTS {
                let residence = self.residence_of(disk, part);
                let known = if self.truth[disk].dirty[part as usize] { Residence::Dirty } else { Residence::Disk };
                assert_eq!(residence, known, "part {part} may not be what the disk has");
            }
        }
        self.count("distrusts");
    }

    /// Compare some of what is suspect with the disk.
    pub(super) fn revalidate(&mut self, all: bool) {
        for disk in 0..DISKS.len() {
            let suspects = self.cache.suspects(&self.handles[disk]);
            assert!(suspects.windows(2).all(|pair| pair[0].1.key <= pair[1].1.key), "in disk order");
            for at in suspects {
                if !all && self.prng.chance(1, 2) {
                    continue;
                }
                for parts in self.cache.suspect_parts(at) {
                    let region = at.1.key.region * REGION_PARTS..(at.1.key.region + 1) * REGION_PARTS;
                    assert!(region.start <= parts.start && parts.end <= region.end && parts.start < parts.end);
                    let data = self.disk_data(disk, parts.clone());
                    let len = data.len_bytes();
                    self.cache.revalidate(&self.handles[disk], parts, data.view(0..len));
                }
                assert_eq!(self.cache.suspect_parts(at), [], "all of them have been looked at");
                self.cache.trusted(at);
                self.count("revalidated");
            }
            assert!(!all || self.cache.suspects(&self.handles[disk]).is_empty());
        }
    }

    pub(super) fn set_worth(&mut self) {
        let disk = self.prng.below(DISKS.len() as u64) as usize;
        let whole = [Worth::Default, Worth::Default, Worth::Keep][self.prng.below(3) as usize];
        let start = self.prng.below(DISK_PARTS / 2);
        let (middle, end) = (start + self.prng.between(1, 100), start + 200);
        let map = match self.prng.below(3) {
            0 => WorthMap::default(),
            _ => WorthMap::new(whole, vec![(start..middle, Worth::None), (middle..end, Worth::Keep)]),
        };
        self.truth[disk].worth = map.clone();
        self.cache.set_worth(&self.handles[disk], map);
        self.count("worths");
    }

    /// One device fails, where there is another for what is dirty on it.
    pub(super) async fn fail(&mut self) {
        if self.flash.len() < 2 || self.failed.is_some() {
            return;
        }
        let index = self.prng.below(self.flash.len() as u64) as usize;
        assert!(self.cache.takes_dirty() && !self.cache.is_short_of_members());
        self.cache.members().nth(index).unwrap().fail("a test says so".to_owned());
        assert!(self.cache.is_short_of_members() && !self.cache.takes_dirty());
        assert_eq!(self.cache.next_failure(&BTreeSet::new()).await, Some(index));
        // What is dirty is still there, before any label says so.
        self.check();
        self.cache.confirm_expelled(index, 1);
        self.failed = Some(index);
        self.count("failures");
    }
}
