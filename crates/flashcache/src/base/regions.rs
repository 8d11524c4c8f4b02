//! Unsettled regions: where writes may not have reached the medium of the slow disk, or where invalidations may not be
//! durable. After an unclean stop, cached blocks there are compared with the disk before they are served.
//!
//! Pure state; the marks' durability is the log's business.

use crate::base::units::DiskSlot;
use device::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A region of a grid disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionKey {
    /// The grid disk.
    pub slot: DiskSlot,
    /// Region number: offset / [`crate::REGION_BYTES`].
    pub region: u64,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    mark: Mark,
    /// Writes issued and not completed.
    in_flight: u32,
    /// Raised by every write that begins: settling is void when it has moved.
    epoch: u64,
    /// Found marked at recovery, or a flush of the disk has failed, and not yet compared with the disk: when that was, in
    /// distrusts.
    suspect: Option<u64>,
}

impl Region {
    fn is_quiet(&self) -> bool {
        self.mark == Mark::Durable && self.in_flight == 0 && self.suspect.is_none()
    }
}

/// A region whose blocks have to be compared with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Which region.
    pub key: RegionKey,
    since: u64,
}

/// How far a region's mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// Nobody has appended one: that of an older cache generation does not count.
    None,
    /// Appended as the mark with this number, not known to be durable.
    Pending(u64),
    Durable,
}

/// A region that may be settled if nothing is written to it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Which region.
    pub key: RegionKey,
    epoch: u64,
}

/// The unsettled regions of one member.
#[derive(Debug, Default)]
pub struct Regions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    regions: BTreeMap<RegionKey, Region>,
    epoch: u64,
    /// How often blocks have become suspect.
    distrusts: u64,
}

/// What a write that begins has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The mark is durable and the write is counted: go on.
    Counted,
    /// The mark with this number is in the log: wait until it is durable, tell [`Regions::mark_durable`], begin again.
    AwaitMark(u64),
}

impl Regions {
    /// `append_mark` runs under the lock when the region needs a mark: whoever awaits it finds it in the log.
    pub(crate) fn begin_write(&self, key: RegionKey, append_mark: impl FnOnce()) -> Begin {
        let mut state = lock(&self.0);
        state.epoch += 1;
        let epoch = state.epoch;
        let fresh = Region { mark: Mark::None, in_flight: 0, epoch, suspect: None };
        let region = state.regions.entry(key).or_insert(fresh);
        match region.mark {
            Mark::None => {
                region.mark = Mark::Pending(epoch);
                append_mark();
                Begin::AwaitMark(epoch)
            }
            Mark::Pending(number) => Begin::AwaitMark(number),
            Mark::Durable => {
                region.in_flight += 1;
                region.epoch = epoch;
                Begin::Counted
            }
        }
    }

    /// Whether a write there has to append a mark first.
    pub(crate) fn needs_mark(&self, key: RegionKey) -> bool {
        lock(&self.0).regions.get(&key).is_none_or(|region| region.mark == Mark::None)
    }

    /// The mark with this number is durable. It may be gone: others have waited for it, too, and the region may have been settled and
    /// marked again since.
    pub(crate) fn mark_durable(&self, key: RegionKey, number: u64) {
        if let Some(region) = lock(&self.0).regions.get_mut(&key)
            && region.mark == Mark::Pending(number)
        {
            region.mark = Mark::Durable;
        }
    }

    pub(crate) fn end_write(&self, key: RegionKey) {
        let mut state = lock(&self.0);
        if let Some(region) = state.regions.get_mut(&key) {
            assert!(region.in_flight > 0, "a write ends once");
            region.in_flight -= 1;
        }
    }

    pub(crate) fn restore(&self, key: RegionKey) {
        let region = Region { mark: Mark::Durable, in_flight: 0, epoch: 0, suspect: Some(0) };
        lock(&self.0).regions.insert(key, region);
    }

    /// Whether the region's mark is in force, so that its record must be kept.
    pub(crate) fn is_marked(&self, key: RegionKey) -> bool {
        lock(&self.0).regions.contains_key(&key)
    }

    /// Regions whose mark is in force, ascending.
    pub(crate) fn keys(&self) -> Vec<RegionKey> {
        lock(&self.0).regions.keys().copied().collect()
    }

    /// Its blocks have been compared with the disk since `suspect` was listed; void when it became suspect anew.
    pub(crate) fn trusted(&self, suspect: Suspect) {
        if let Some(region) = lock(&self.0).regions.get_mut(&suspect.key)
            && region.suspect == Some(suspect.since)
        {
            region.suspect = None;
        }
    }

    /// Regions of a grid disk whose blocks have still to be compared with the disk, in disk order.
    #[must_use]
    pub fn suspects(&self, slot: DiskSlot) -> Vec<Suspect> {
        let range = RegionKey { slot, region: 0 }..=RegionKey { slot, region: u64::MAX };
        let state = lock(&self.0);
        state.regions.range(range).filter_map(|(&key, r)| Some(Suspect { key, since: r.suspect? })).collect()
    }

    /// Regions of all grid disks whose blocks have still to be compared with the disk.
    #[must_use]
    pub fn suspect_count(&self) -> usize {
        lock(&self.0).regions.values().filter(|r| r.suspect.is_some()).count()
    }

    /// The blocks of these regions are not believed any more: a flush of their disk has failed.
    pub(crate) fn distrust(&self, slot: DiskSlot) -> Vec<RegionKey> {
        let range = RegionKey { slot, region: 0 }..=RegionKey { slot, region: u64::MAX };
        let mut state = lock(&self.0);
        state.distrusts += 1;
        let since = state.distrusts;
        let mut keys = Vec::new();
        for (&key, region) in state.regions.range_mut(range) {
            region.suspect = Some(since);
            keys.push(key);
        }
        keys
    }

    /// Regions of a grid disk without writes in flight and with trusted blocks, at most `max`, last written before `epoch`.
    pub(crate) fn candidates(&self, slot: DiskSlot, before: u64, max: usize) -> Vec<Candidate> {
        let range = RegionKey { slot, region: 0 }..=RegionKey { slot, region: u64::MAX };
        let state = lock(&self.0);
        let quiet = state.regions.range(range).filter(|(_, r)| r.is_quiet() && r.epoch < before);
        quiet.take(max).map(|(&key, r)| Candidate { key, epoch: r.epoch }).collect()
    }

    /// The number that tells older writes from newer ones.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.0).epoch
    }

    /// Settle a candidate unless it was written to meanwhile; `append_clear` runs under the lock, so that no new mark
    /// can come before the clearing record.
    pub(crate) fn settle(&self, candidate: Candidate, append_clear: impl FnOnce()) -> bool {
        let mut state = lock(&self.0);
        let quiet = state.regions.get(&candidate.key).is_some_and(|r| r.is_quiet() && r.epoch == candidate.epoch);
        if quiet {
            state.regions.remove(&candidate.key);
            append_clear();
        }
        quiet
    }

    /// Forget every region of a grid disk: its entries are void, and so are its marks. Writes in flight stay counted.
    pub(crate) fn forget(&self, slot: DiskSlot) {
        lock(&self.0).regions.retain(|key, region| {
            if key.slot == slot {
                (region.mark, region.suspect) = (Mark::None, None);
            }
            key.slot != slot || region.in_flight > 0
        });
    }

    /// Whether any region of a grid disk is unsettled.
    pub(crate) fn any(&self, slot: DiskSlot) -> bool {
        let all = RegionKey { slot, region: 0 }..=RegionKey { slot, region: u64::MAX };
        lock(&self.0).regions.range(all).next().is_some()
    }

    /// Unsettled regions now.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.0).regions.len()
    }

    /// Whether everything is settled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RegionKey = RegionKey { slot: DiskSlot(3), region: 7 };

    /// Two writers wait for a mark. One goes on and ends, the region is settled and marked anew: the other one's news is of the old mark.
    #[test]
    fn news_of_an_old_mark_does_not_make_a_new_one_durable() {
        let regions = Regions::default();
        let Begin::AwaitMark(first) = regions.begin_write(KEY, || ()) else { panic!("it has no mark yet") };
        assert_eq!(regions.begin_write(KEY, || panic!("once")), Begin::AwaitMark(first));
        regions.mark_durable(KEY, first);
        assert_eq!(regions.begin_write(KEY, || panic!("once")), Begin::Counted);
        regions.end_write(KEY);
        let quiet = regions.candidates(KEY.slot, u64::MAX, 1);
        assert!(regions.settle(quiet[0], || ()));
        let Begin::AwaitMark(second) = regions.begin_write(KEY, || ()) else { panic!("the old mark is cleared") };
        regions.mark_durable(KEY, first);
        assert_eq!(regions.begin_write(KEY, || panic!("once")), Begin::AwaitMark(second));
        regions.mark_durable(KEY, second);
        assert_eq!(regions.begin_write(KEY, || panic!("once")), Begin::Counted);
    }
}
