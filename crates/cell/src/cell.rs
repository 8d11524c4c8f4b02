//! The cell: the set of grid disks it serves and its instance stamp.

use crate::grid_disk::GridDisk;
use device::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One cell.
#[derive(Debug)]
pub struct Cell {
    grid_disks: Mutex<BTreeMap<String, Arc<GridDisk>>>,
    instance_stamp: Mutex<u128>,
}

impl Cell {
    /// A cell that serves ready-made grid disks and nothing else: for tests and for the layers above.
    #[must_use]
    pub fn of_grid_disks(grid_disks: Vec<Arc<GridDisk>>, instance_stamp: u128) -> Arc<Cell> {
        let grid_disks = grid_disks.into_iter().map(|disk| (disk.name(), disk)).collect();
        Arc::new(Cell { grid_disks: Mutex::new(grid_disks), instance_stamp: Mutex::new(instance_stamp) })
    }

    /// Every grid disk, in the order of names.
    #[must_use]
    pub fn grid_disks(&self) -> Vec<Arc<GridDisk>> {
        lock(&self.grid_disks).values().cloned().collect()
    }

    /// The grid disk of that name.
    #[must_use]
    pub fn grid_disk(&self, name: &str) -> Option<Arc<GridDisk>> {
        lock(&self.grid_disks).get(name).cloned()
    }

    /// Changes whenever acknowledged but un-flushed data may be gone (I9).
    #[must_use]
    pub fn instance_stamp(&self) -> u128 {
        *lock(&self.instance_stamp)
    }
}
