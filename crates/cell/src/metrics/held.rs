//! What flash holds that the disks do not have: by grid disk, and by the cell disk they lie on.
//!
//! Read once for all rows of a sample, since it is a walk over what is dirty. Never keeps a value.

use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use celldisk::Role;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of one grid disk, or of all on one cell disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub name: Arc<str>,
    /// Newer than what is on disk.
    pub dirty_bytes: u64,
    /// Age of the oldest of it, at most.
    pub dirty_age_ns: u64,
}

/// Of a cell.
pub(crate) struct AllHeld {
    /// Every grid disk served, in that order.
    pub(crate) grid_disks: Vec<Held>,
    /// Every hard disk of the catalog, in the order of their identities.
    pub(crate) cell_disks: Vec<Held>,
}

impl AllHeld {
    pub(crate) fn of(cell: &Cell, served: &[Arc<GridDisk>]) -> AllHeld {
        let now = cell.world.clock.now();
        let held = |disk: &Arc<GridDisk>| {
            let dirty = disk.dirty();
            let dirty_age_ns = dirty.oldest.map_or(0, |since| now.ns_since(since));
            Held { name: disk.name().into(), dirty_bytes: dirty.bytes, dirty_age_ns }
        };
        let grid_disks: Vec<Held> = served.iter().map(held).collect();
        let Some(catalog) = cell.store.as_ref().map(|store| store.catalog()) else {
            return AllHeld { grid_disks, cell_disks: Vec::new() };
        };
        let dirty: BTreeMap<&str, &Held> = grid_disks.iter().map(|it| (&*it.name, it)).collect();
        let disks = catalog.members.iter().filter(|(_, member)| member.role == Role::Disk);
        let on = disks.map(|(id, member)| {
            let own = catalog.grid_disks.values().filter(|record| record.cell_disk == *id);
            let mut sum = Held { name: member.name.as_str().into(), dirty_bytes: 0, dirty_age_ns: 0 };
            for held in own.filter_map(|record| dirty.get(record.name.as_str())) {
                sum.dirty_bytes += held.dirty_bytes;
                sum.dirty_age_ns = sum.dirty_age_ns.max(held.dirty_age_ns);
            }
            sum
        });
        let cell_disks = on.collect();
        AllHeld { grid_disks, cell_disks }
    }
}
