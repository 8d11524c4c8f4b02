//! The way of dirty data to the disk, with what may come between: overwritten after it was listed, or after the disk was given it.

use super::{DISK_PARTS, DISKS, Rig};
use device::Buf;
use flashcache::{DestagedList, DirtyRefused, DirtyRun, Member, PART_BYTES, Residence, RunLimits};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl Rig {
    /// Give the disk what is dirty; with `all` nothing is left out or overwritten meanwhile.
    pub(super) async fn destage(&mut self, all: bool) {
        // What cleaning copies between the list and the disk's flush is listed in another round.
        for round in 0.. {
            let mut listed = vec![BTreeSet::new(); DISKS.len()];
            for (disk, listed) in listed.iter_mut().enumerate() {
                let failed = self.failed;
                for index in (0..self.flash.len()).filter(|index| failed != Some(*index)) {
                    self.destage_of(disk, index, all, listed).await;
                }
            }
            if !all || self.handles.iter().all(|handle| !self.cache.has_dirty(handle)) {
                break;
            }
            assert!(round < 10, "cleaning lets go of what the disk waits for");
        }
        if all {
            // Each part that was dirty has been listed: else it would be still.
            for (disk, truth) in self.truth.iter().enumerate() {
                assert!(truth.dirty.iter().all(|dirty| !dirty) && !self.cache.has_dirty(&self.handles[disk]));
            }
        }
        self.count("destages");
    }

    pub(super) async fn destage_of(&mut self, disk: usize, index: usize, all: bool, listed: &mut BTreeSet<u64>) {
        let block_parts = u64::from(self.plan.block_bytes) / PART_BYTES;
        let limits = RunLimits {
            parts_max: self.prng.between(16, 200),
            runs_max: self.prng.between(1, 20) as usize,
            run_parts_max: self.prng.between(16, 64),
        };
        let before = self.truth[disk].dirty.clone();
        let mut from = Some(0);
        while let Some(block) = from {
            let (mut runs, next) = self.cache.dirty_runs(index, &self.handles[disk], block, limits);
            from = next;
            let mut at = block * block_parts;
            for run in &runs {
                assert!(run.parts.start >= at && run.parts.start < run.parts.end, "in disk order");
                assert!(run.parts.end - run.parts.start <= limits.run_parts_max);
                at = run.parts.end;
                for part in run.parts.clone() {
                    assert!(before[part as usize] && listed.insert(part), "part {part} is dirty and listed once");
                }
            }
            assert!(next.is_none_or(|next| next * block_parts >= at));
            let parts: u64 = runs.iter().map(|run| run.parts.end - run.parts.start).sum();
            assert!(parts < limits.parts_max + block_parts);
            assert!(runs.len() < limits.runs_max + block_parts as usize);
            // A round of the cell holds nothing until a stretch has its turn.
            let lets_go = !all && self.prng.chance(1, 2);
            if lets_go {
                runs.iter_mut().for_each(DirtyRun::let_go);
                self.count("let go");
            }
            self.cache.prepare_destage(index).await.unwrap();
            if !all && self.prng.chance(1, 3) && !runs.is_empty() {
                // Overwritten after it was listed.
                let run = runs.swap_remove(self.prng.below(runs.len() as u64) as usize);
                let part = run.parts.start;
                let overwritten = self.write_again(disk, part).await;
                let mut run = run;
                let is_current = self.cache.confirm_current(&mut run);
                assert!(!is_current || !overwritten, "it is not what counts any more");
                assert!(is_current || overwritten || lets_go, "cleaning leaves what is held where it is");
            }
            let mut list = DestagedList::default();
            for mut run in runs {
                if !all && self.prng.chance(1, 4) || !self.cache.confirm_current(&mut run) {
                    assert!(!all);
                    continue;
                }
                self.give(disk, run, &mut list, lets_go).await;
            }
            let given: Vec<u64> = listed
                .iter()
                .copied()
                .filter(|&p| self.truth[disk].disk[p as usize] == self.truth[disk].now[p as usize])
                .collect();
            let mut overwritten = None;
            if !all && self.prng.chance(1, 3) && !given.is_empty() {
                // Overwritten after the disk was given it, before that is recorded.
                let part = given[self.prng.below(given.len() as u64) as usize];
                if self.truth[disk].dirty[part as usize] && self.write_again(disk, part).await {
                    overwritten = Some(part);
                }
            }
            self.cache.commit_destaged(index, &list).await.unwrap();
            self.believe(disk, overwritten);
            self.wait_for_segments().await;
        }
    }

    /// Of a part that is dirty: whether it was taken.
    pub(super) async fn write_again(&mut self, disk: usize, part: u64) -> bool {
        let version = self.version();
        let data = self.data(disk, part..part + 1, |_| version);
        match self.cache.write_dirty(&self.handles[disk], part..part + 1, &data, true).await {
            Ok(()) => self.truth[disk].now[part as usize] = version,
            Err(DirtyRefused::NoRoom) => return false,
            Err(DirtyRefused::Failed) => panic!("somebody is left"),
        }
        true
    }

    /// One run to the disk.
    pub(super) async fn give(&mut self, disk: usize, mut run: DirtyRun, list: &mut DestagedList, lets_go: bool) {
        let parts = run.parts.clone();
        if !lets_go {
            list.push(&run);
        }
        let mut at = parts.start;
        for hit in run.hits.drain(..) {
            assert_eq!(hit.parts().start, at);
            let (start, end) = (at, hit.parts().end);
            let len = ((end - start) * PART_BYTES) as usize;
            let (result, back) = self.cache.read_hit(hit, Buf::zeroed(len).into()).await;
            assert_eq!(result, Ok(()));
            let now = self.data(disk, start..end, |part| self.truth[disk].now[part as usize]);
            assert!(back.unwrap().to_vec(0..len) == now.to_vec(0..len));
            at = end;
        }
        assert_eq!(at, parts.end);
        if lets_go {
            run.let_go();
            list.push(&run);
        }
        for part in parts {
            self.truth[disk].disk[part as usize] = self.truth[disk].now[part as usize];
        }
    }

    /// What the cache says is clean has to be on the disk; entries end whole, so an overwritten part leaves its neighbours dirty.
    pub(super) fn believe(&mut self, disk: usize, overwritten: Option<u64>) {
        assert!(overwritten.is_none_or(|part| self.residence_of(disk, part) == Residence::Dirty));
        for part in 0..DISK_PARTS {
            let is_dirty = self.residence_of(disk, part) == Residence::Dirty;
            let truth = &mut self.truth[disk];
            assert!(truth.dirty[part as usize] || !is_dirty, "part {part} does not become dirty by itself");
            assert!(is_dirty || truth.disk[part as usize] == truth.now[part as usize], "part {part} is nowhere");
            truth.dirty[part as usize] = is_dirty;
        }
    }

    pub(super) fn residence_of(&self, disk: usize, part: u64) -> Residence {
        self.cache.residence(&self.handles[disk], part..part + 1)[0].1
    }

    pub(super) async fn wait_for_segments(&self) {
        for _ in 0..2000 {
            let short = |m: &Arc<Member>| !m.has_failed() && m.segments().free <= 3;
            if !self.cache.members().any(short) {
                return;
            }
            self.world.clock.sleep(Duration::from_millis(1)).await;
        }
    }
}
