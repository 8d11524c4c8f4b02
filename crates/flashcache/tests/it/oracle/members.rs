//! Other flash devices in place of those at work, while it runs: see the module `succession` for the order that makes it safe.

use super::{DISK_PARTS, DISKS, Flash, Rig, cached_disk};
use device::Device;
use device::layers::Faults;
use flashcache::{FillCause, FlashCache, Residence};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Rig {
    /// One leaves, one joins, or both; or it comes to nothing.
    pub(super) async fn change_members(&mut self) {
        let count = self.flash.len();
        let leaving: Vec<usize> = match self.failed {
            Some(failed) => vec![failed],
            None if count > 1 && self.prng.chance(1, 2) => vec![self.prng.below(count as u64) as usize],
            None => Vec::new(),
        };
        let joins = leaving.is_empty() || count == 1 || (count < 3 && self.prng.chance(1, 2));
        if count == 3 && leaving.is_empty() {
            return;
        }
        self.destage(true).await;
        let ids: BTreeSet<u128> = leaving.iter().map(|i| self.flash[*i].id).collect();
        assert_eq!(self.cache.places_of(&ids), leaving);
        self.cache.set_members_leaving(&leaving, true);
        let joining: Vec<(Flash, Arc<Faults>)> = (0..usize::from(joins)).map(|_| self.another()).collect();
        let devices = joining.iter().map(|(flash, faults)| flash.member(faults)).collect();
        let mirrored = count - leaving.len() + joining.len() > 1;
        let (next, report) = self.cache.successor(&leaving, devices, mirrored, None, &self.world).await.unwrap();
        assert_eq!(report.len(), joining.len());
        assert!(report.iter().all(|recovered| recovered.as_ref().is_ok_and(|r| r.entries == 0 && r.dirty_parts == 0)));
        next.end_what_others_serve().await;
        self.check_ended(&next, &leaving);
        if self.prng.chance(1, 4) {
            self.cache.abandon(&next);
            self.cache.set_members_leaving(&leaving, false);
            let stay = count - leaving.len();
            assert!(next.members().skip(stay).all(|member| member.has_failed()), "new ones end");
            assert!(!self.cache.is_retired());
            self.check();
            return self.count("abandoned");
        }
        self.retire(&next, &leaving).await;
        let keeps = |i: &usize| !leaving.contains(i);
        let mut at = 0..count;
        self.flash.retain(|_| at.next().is_some_and(|i| keeps(&i)));
        let mut at = 0..count;
        self.faults.retain(|_| at.next().is_some_and(|i| keeps(&i)));
        for (flash, faults) in joining {
            self.flash.push(flash);
            self.faults.push(faults);
        }
        (self.cache, self.failed) = (next, None);
        self.handles = DISKS.iter().map(|id| self.cache.disk(cached_disk(*id))).collect();
        let found: Vec<_> = (0..=self.flash.len()).map(|i| self.cache.device_id(i)).collect();
        let expected: Vec<_> = self.flash.iter().map(|flash| Some(flash.id)).chain([None]).collect();
        assert_eq!(found, expected, "those that stay come first");
        assert!(self.cache.takes_dirty());
        self.check();
        self.count("changes");
    }

    fn another(&mut self) -> (Flash, Arc<Faults>) {
        let flash = Flash::new(self.plan, u128::from(self.version()) << 64 | 7);
        let faults = Faults::new(flash.memory.clone() as Device, self.world.spawn.clone());
        (flash, faults)
    }

    /// Members that stay have nothing of what others serve in the next cache, and the rest of what they had.
    fn check_ended(&self, next: &FlashCache, leaving: &[usize]) {
        let (old, new): (Vec<_>, Vec<_>) = (self.cache.members().collect(), next.members().collect());
        for handle in &self.handles {
            for part in (0..DISK_PARTS).step_by(4) {
                let before = self.cache.member_of(handle, part).unwrap();
                let after = next.member_of(handle, part).unwrap();
                let moves = !Arc::ptr_eq(old[before], new[after]);
                if moves && !leaving.contains(&before) {
                    assert_eq!(self.cache.residence(handle, part..part + 1), [(1, Residence::Disk)], "part {part}");
                }
                assert!(moves || !leaving.contains(&before));
            }
        }
    }

    /// The one before shows nothing, takes nothing and waits for nobody.
    async fn retire(&mut self, next: &FlashCache, leaving: &[usize]) {
        let before = self.cache.membership();
        self.cache.retire(leaving, next);
        assert!(self.cache.is_retired() && self.cache.membership() != before);
        assert_eq!(self.cache.membership(), next.membership());
        let shown = self.cache.lookup(&self.handles[0], 3..300);
        assert!(matches!(shown[..], [flashcache::Stretch::Miss(297)]));
        for membership in [before, self.cache.membership()] {
            let data = self.disk_data(0, 0..4);
            let view = data.view(0..data.len_bytes());
            assert!(self.cache.fill(&self.handles[0], 0..4, view, FillCause::ReadMiss, membership).stale);
        }
        assert_eq!(self.cache.next_failure(&BTreeSet::new()).await, None);
        let left = leaving.iter().all(|i| self.cache.members().nth(*i).is_some_and(|member| member.has_failed()));
        assert!(left, "those that leave answer nothing more");
    }
}
