//! A grid disk as the cache knows it, and why data of it is at hand.

use crate::base::tenant::Tenant;
use crate::base::units::DiskSlot;

/// A grid disk as the cache knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskHandle {
    pub(crate) slot: DiskSlot,
    pub(crate) id: u64,
    pub(crate) home: u128,
    /// On whose behalf.
    pub(crate) tenant: Tenant,
    /// His size does not matter.
    pub(crate) beyond: bool,
    /// What is found is not worth more for it.
    pub(crate) passing: bool,
}

impl DiskHandle {
    /// Its slot.
    #[must_use]
    pub fn slot(&self) -> DiskSlot {
        self.slot
    }

    /// The same, for whoever passes by: what he finds counts no hit.
    #[must_use]
    pub fn passing(self) -> DiskHandle {
        DiskHandle { passing: true, ..self }
    }
}

/// Why the data is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillCause {
    /// It was read from disk.
    ReadMiss,
    /// It was written by a client.
    Write,
    /// It was read before, and has waited for the feeder or in a buffer cache.
    Insert,
}
