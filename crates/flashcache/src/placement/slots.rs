//! Which grid disk has which slot while the cell runs.
//!
//! Slots that were never used go first. That of a grid disk which is gone is used again when they are at an end, the one given back first
//! before others, and never while anything is left under it: see [`FlashCache::try_disk`].

use crate::base::disk::DiskHandle;
use crate::base::units::{DISK_SLOTS_MAX, DiskSlot};
use crate::member::DiskName;
use crate::placement::cache::FlashCache;
use device::sync::lock;
use std::collections::{BTreeMap, VecDeque};

/// The slots of all grid disks.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    by_id: BTreeMap<u64, DiskSlot>,
    /// This one and those above were never used.
    unused: u16,
    /// Of grid disks that are gone, oldest first.
    given_back: VecDeque<DiskSlot>,
}

impl Slots {
    /// That of a grid disk, by its id.
    pub(crate) fn of(&self, id: u64) -> Option<DiskSlot> {
        self.by_id.get(&id).copied()
    }

    /// Every grid disk with its slot.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, DiskSlot)> {
        self.by_id.iter().map(|(id, slot)| (*id, *slot))
    }

    /// Every grid disk by its slot.
    pub(crate) fn ids(&self) -> BTreeMap<DiskSlot, u64> {
        self.all().map(|(id, slot)| (slot, id)).collect()
    }

    /// That of a grid disk, a new one if it has none; none when there is none left, those given back that are not `clean` included.
    pub(crate) fn take(&mut self, id: u64, mut clean: impl FnMut(DiskSlot) -> bool) -> Option<DiskSlot> {
        if let Some(slot) = self.of(id) {
            return Some(slot);
        }
        let slot = if self.unused < DISK_SLOTS_MAX {
            self.unused += 1;
            DiskSlot(self.unused - 1)
        } else {
            let at = self.given_back.iter().position(|slot| clean(*slot))?;
            self.given_back.remove(at)?
        };
        self.by_id.insert(id, slot);
        Some(slot)
    }

    fn give_back(&mut self, id: u64) {
        self.given_back.extend(self.by_id.remove(&id));
    }
}

/// By which id and generation a member knows the grid disk of a slot: looked up for every record, whichever way.
#[derive(Debug, Default)]
pub(crate) struct DiskNames {
    by_slot: Vec<Option<DiskName>>,
    by_id: BTreeMap<u64, DiskSlot>,
}

impl DiskNames {
    pub(crate) fn set(&mut self, slot: DiskSlot, name: DiskName) {
        let index = usize::from(slot.0);
        if self.by_slot.len() <= index {
            self.by_slot.resize(index + 1, None);
        }
        if let Some(before) = self.by_slot[index].replace(name) {
            self.by_id.remove(&before.id);
        }
        self.by_id.insert(name.id, slot);
    }

    pub(crate) fn of(&self, slot: DiskSlot) -> Option<DiskName> {
        self.by_slot.get(usize::from(slot.0)).copied().flatten()
    }

    /// In the order of slots.
    pub(crate) fn by_slot(&self) -> &[Option<DiskName>] {
        &self.by_slot
    }

    pub(crate) fn slot_of(&self, name: DiskName) -> Option<DiskSlot> {
        self.by_id.get(&name.id).copied().filter(|slot| self.of(*slot) == Some(name))
    }
}

impl FlashCache {
    /// A grid disk is gone, and nobody will use a handle of it again: its slot may be another's.
    pub fn give_back(&self, disk: &DiskHandle) {
        self.worths.set(disk.slot, Default::default());
        lock(&self.disks).give_back(disk.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_given_back_is_used_when_all_were_and_only_when_it_is_clean() {
        let mut slots = Slots::default();
        let all = u64::from(DISK_SLOTS_MAX);
        for id in 0..all {
            assert_eq!(slots.take(id, |_| panic!("none is given back")), Some(DiskSlot(id as u16)));
            assert_eq!(slots.take(id, |_| panic!("it has one")), Some(DiskSlot(id as u16)));
        }
        assert_eq!(slots.take(all, |_| true), None);
        for id in [5, 3, 9] {
            slots.give_back(id);
        }
        slots.give_back(3);
        assert_eq!(slots.take(all, |slot| slot != DiskSlot(5)), Some(DiskSlot(3)), "the oldest that is clean");
        assert_eq!(slots.take(3, |_| true), Some(DiskSlot(5)), "its old one is another's");
        assert_eq!(slots.take(all + 1, |_| false), None);
        assert_eq!(slots.take(all + 1, |_| true), Some(DiskSlot(9)));
        assert_eq!((slots.of(all), slots.ids().get(&DiskSlot(3)).copied()), (Some(DiskSlot(3)), Some(all)));
        assert_eq!(slots.ids().len(), slots.by_id.len());
    }

    #[test]
    fn names_are_found_both_ways_and_only_in_the_generation_in_force() {
        let mut names = DiskNames::default();
        let name = |id, generation| DiskName { id, generation };
        names.set(DiskSlot(2), name(7, 1));
        names.set(DiskSlot(0), name(8, 3));
        assert_eq!(names.by_slot(), [Some(name(8, 3)), None, Some(name(7, 1))]);
        names.set(DiskSlot(2), name(7, 2));
        assert_eq!((names.slot_of(name(7, 1)), names.slot_of(name(7, 2))), (None, Some(DiskSlot(2))));
        names.set(DiskSlot(2), name(9, 1));
        assert_eq!((names.slot_of(name(7, 2)), names.slot_of(name(9, 1))), (None, Some(DiskSlot(2))));
        assert_eq!((names.of(DiskSlot(2)), names.of(DiskSlot(5))), (Some(name(9, 1)), None));
    }
}
