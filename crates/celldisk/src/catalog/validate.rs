//! What a catalog must satisfy, whoever made it: a caller's change and bytes from a device pass the same gate.

use super::{Catalog, Extent, GridDisk};
use crate::ids::{DeviceId, GridDiskId};
use crate::label::Role;
use crate::layout::{
    ASM_ATTRIBUTES_MAX, ASM_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_TEXT_BYTES_MAX, AU_BYTES_MAX, AU_BYTES_MIN,
    AVAILABLE_TO_BYTES_MAX, CACHING_RANGES_MAX, CATALOG_PAYLOAD_BYTES_MAX, CATALOG_RESERVE_BYTES,
    CELL_ATTRIBUTES_BYTES_MAX, CELL_ATTRIBUTES_MAX, COMMENT_BYTES_MAX, EXTENTS_MAX, FLASH_MEMBERS_MAX,
    GRID_DISK_NAME_BYTES_MAX, GRID_DISKS_MAX, IORM_PLAN_BYTES_MAX, JOURNAL_EXTENTS_MAX, MEMBERS_MAX, NAME_BYTES_MAX,
    PAGE_BYTES, TERMS_MAX,
};
use crate::names::{check_name, check_text, folded};
use std::collections::{BTreeMap, BTreeSet};

/// A catalog that may not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// A name is not valid.
    #[error("{kind} name {name:?} {why}")]
    Name {
        /// What it names.
        kind: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two objects have the same name.
    #[error("{kind} name {name} is taken")]
    NameTaken {
        /// What it names.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// More of something than the format has room for.
    #[error("{what}: the limit is {max}")]
    Limit {
        /// What.
        what: &'static str,
        /// The limit, in entries or bytes.
        max: usize,
    },
    /// All together exceeds the room on the devices.
    #[error("the catalog is full: {bytes} bytes, room for {CATALOG_PAYLOAD_BYTES_MAX}")]
    Full {
        /// What it would need.
        bytes: usize,
    },
    /// A device that is no member, or whose role does not fit.
    #[error("{what} names device {device_id}, which the cell cannot use for it")]
    Device {
        /// What refers to it.
        what: &'static str,
        /// The device.
        device_id: DeviceId,
    },
    /// Extents overlap, lie beyond their device or do not fit the size.
    #[error("extents of {what} {why}")]
    Extents {
        /// What they belong to.
        what: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A field has no valid value.
    #[error("{what} has no valid value")]
    Value {
        /// Which.
        what: &'static str,
    },
}

impl CatalogError {
    /// A fixed word for the field at fault.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            CatalogError::Name { .. } | CatalogError::NameTaken { .. } => "name",
            CatalogError::Limit { what, .. } | CatalogError::Device { what, .. } | CatalogError::Value { what } => what,
            CatalogError::Full { .. } => "catalog",
            CatalogError::Extents { .. } => "extents",
        }
    }

    /// What the operator can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            CatalogError::Full { .. } => Some("drop grid disks, un-pin ranges, or shorten comments and the IORM plan"),
            CatalogError::Limit { what: "pinned ranges of a grid disk", .. } => {
                Some("un-pin ranges, or pin fewer and longer ones: those that touch count as one")
            }
            CatalogError::NameTaken { .. } => Some("names that differ only in case count as the same"),
            _ => None,
        }
    }
}

fn limit(what: &'static str, count: usize, max: usize) -> Result<(), CatalogError> {
    if count > max { Err(CatalogError::Limit { what, max }) } else { Ok(()) }
}

fn name(kind: &'static str, name: &str, bytes_max: usize) -> Result<(), CatalogError> {
    check_name(name, bytes_max).map_err(|why| CatalogError::Name { kind, name: name.to_owned(), why })
}

/// Ranges have one form: see [`super::ranges`].
fn check_ranges(g: &GridDisk) -> Result<(), CatalogError> {
    limit("pinned ranges of a grid disk", g.caching_ranges.len(), CACHING_RANGES_MAX)?;
    let good = |n: usize| {
        let range = g.caching_ranges[n];
        let before = n.checked_sub(1).map(|n| g.caching_ranges[n]);
        range.start_bytes < range.end_bytes
            && range.end_bytes <= g.size_bytes
            && range.start_bytes.is_multiple_of(PAGE_BYTES)
            && range.end_bytes.is_multiple_of(PAGE_BYTES)
            && before.is_none_or(|before| {
                before.end_bytes < range.start_bytes
                    || before.end_bytes == range.start_bytes && before.policy != range.policy
            })
    };
    if (0..g.caching_ranges.len()).all(good) {
        Ok(())
    } else {
        Err(CatalogError::Value { what: "pinned range of a grid disk" })
    }
}

/// Who claims allocation units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    GridDisk(GridDiskId),
    FlashCache,
    FlashLog,
}

/// The allocation units of each device that something claims: first, one past the last, whose.
type Claims = BTreeMap<DeviceId, Vec<(u64, u64, Owner)>>;

impl Catalog {
    /// Whether it can be written.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn validate(&self) -> Result<(), CatalogError> {
        self.check_fields()?;
        self.check_size().map(|_| ())
    }

    /// What it takes.
    fn check_size(&self) -> Result<usize, CatalogError> {
        let bytes = self.payload().len();
        if bytes > CATALOG_PAYLOAD_BYTES_MAX { Err(CatalogError::Full { bytes }) } else { Ok(bytes) }
    }

    /// Whether it can be written in the place of `base`: what grows leaves the reserve alone.
    pub(crate) fn validate_after(&self, base: &Catalog) -> Result<(), CatalogError> {
        self.check_fields()?;
        let bytes = self.check_size()?;
        if bytes > CATALOG_PAYLOAD_BYTES_MAX - CATALOG_RESERVE_BYTES && bytes > base.payload().len() {
            return Err(CatalogError::Full { bytes: bytes + CATALOG_RESERVE_BYTES });
        }
        Ok(())
    }

    /// All but the size of the whole.
    pub(super) fn check_fields(&self) -> Result<(), CatalogError> {
        name("cell", &self.cell_name, NAME_BYTES_MAX)?;
        limit("term history", self.lineage.history.len(), TERMS_MAX)?;
        if !self.lineage.history.is_sorted_by(|a, b| a.term < b.term && a.sequence <= b.sequence) {
            return Err(CatalogError::Value { what: "term history" });
        }
        self.check_members()?;
        limit("grid disks", self.grid_disks.len(), GRID_DISKS_MAX)?;
        let mut claims = Claims::new();
        let mut names = BTreeSet::new();
        for (id, grid_disk) in &self.grid_disks {
            if *id != grid_disk.id || *id == GridDiskId(0) || *id >= self.next_grid_disk_id {
                return Err(CatalogError::Value { what: "grid disk id" });
            }
            self.check_grid_disk(grid_disk)?;
            if !names.insert(folded(&grid_disk.name)) {
                return Err(CatalogError::NameTaken { kind: "grid disk", name: grid_disk.name.clone() });
            }
            self.claim(&mut claims, grid_disk.cell_disk, &grid_disk.extents, Owner::GridDisk(*id))?;
            limit("journal", grid_disk.journal.len(), JOURNAL_EXTENTS_MAX)?;
            self.claim(&mut claims, grid_disk.cell_disk, &grid_disk.journal, Owner::GridDisk(*id))?;
        }
        self.check_flash(&mut claims)?;
        for (_, mut spans) in claims {
            spans.sort_unstable();
            if let Some(pair) = spans.windows(2).find(|pair| pair[0].1 > pair[1].0) {
                return Err(CatalogError::Extents { what: self.owner_name(pair[1].2), why: "overlap with others" });
            }
        }
        limit("IORM plan", self.iorm_plan.len(), IORM_PLAN_BYTES_MAX)?;
        limit("cell attributes", self.attributes.len(), CELL_ATTRIBUTES_MAX)?;
        for (key, text) in &self.attributes {
            name("cell attribute", key, ATTRIBUTE_NAME_BYTES_MAX)?;
            limit("cell attribute", text.len(), ATTRIBUTE_TEXT_BYTES_MAX)?;
        }
        let attribute_bytes: usize = self.attributes.iter().map(|(key, text)| 3 + key.len() + text.len()).sum();
        limit("cell attributes in all", attribute_bytes, CELL_ATTRIBUTES_BYTES_MAX)
    }

    fn check_members(&self) -> Result<(), CatalogError> {
        limit("members", self.members.len(), MEMBERS_MAX)?;
        let flash_count = self.members.values().filter(|m| m.role == Role::Flash).count();
        limit("flash members", flash_count, FLASH_MEMBERS_MAX)?;
        let mut names = BTreeSet::new();
        for member in self.members.values() {
            name("cell disk", &member.name, NAME_BYTES_MAX)?;
            if !names.insert(folded(&member.name)) {
                return Err(CatalogError::NameTaken { kind: "cell disk", name: member.name.clone() });
            }
            if !member.au_bytes.is_power_of_two() || member.au_bytes < AU_BYTES_MIN || member.au_bytes > AU_BYTES_MAX {
                return Err(CatalogError::Value { what: "allocation unit" });
            }
        }
        Ok(())
    }

    fn check_grid_disk(&self, g: &GridDisk) -> Result<(), CatalogError> {
        name("grid disk", &g.name, GRID_DISK_NAME_BYTES_MAX)?;
        let Some(member) = self.members.get(&g.cell_disk) else {
            return Err(CatalogError::Device { what: "grid disk", device_id: g.cell_disk });
        };
        // At most 64 extents of 2^32 units of 2^30 bytes: fits 128 bits, and 64 where it fits the device.
        let room_bytes: u128 = g.extents.iter().map(|e| u128::from(e.count_au) * u128::from(member.au_bytes)).sum();
        let size_bytes = u128::from(g.size_bytes);
        if size_bytes == 0
            || !g.size_bytes.is_multiple_of(PAGE_BYTES)
            || size_bytes > room_bytes
            || room_bytes - size_bytes >= u128::from(member.au_bytes)
        {
            return Err(CatalogError::Extents { what: format!("grid disk {}", g.name), why: "do not fit its size" });
        }
        if !check_text(&g.comment, COMMENT_BYTES_MAX) {
            return Err(CatalogError::Limit { what: "comment", max: COMMENT_BYTES_MAX });
        }
        if !check_text(&g.available_to, AVAILABLE_TO_BYTES_MAX) {
            return Err(CatalogError::Limit { what: "availableTo", max: AVAILABLE_TO_BYTES_MAX });
        }
        check_ranges(g)?;
        limit("ASM attributes", g.asm.len(), ASM_ATTRIBUTES_MAX)?;
        for (key, text) in &g.asm {
            name("ASM attribute", key, ATTRIBUTE_NAME_BYTES_MAX)?;
            if !check_text(text, u8::MAX.into()) {
                return Err(CatalogError::Limit { what: "ASM attribute", max: u8::MAX.into() });
            }
        }
        let asm_bytes: usize = g.asm.iter().map(|(key, text)| 2 + key.len() + text.len()).sum();
        limit("ASM attributes in all", asm_bytes, ASM_BYTES_MAX)
    }

    fn check_flash(&self, claims: &mut Claims) -> Result<(), CatalogError> {
        if let Some(cache) = &self.flash_cache {
            let block_bytes = u64::from(cache.block_bytes);
            let segment_bytes = u64::from(cache.segment_bytes);
            if !block_bytes.is_power_of_two() || block_bytes < PAGE_BYTES || !segment_bytes.is_multiple_of(block_bytes)
            {
                return Err(CatalogError::Value { what: "flash cache block" });
            }
            if segment_bytes == 0 {
                return Err(CatalogError::Value { what: "flash cache segment" });
            }
            self.check_regions(claims, Owner::FlashCache, cache.size_per_device_bytes, &cache.regions)?;
        }
        if let Some(log) = &self.flash_log {
            if log.outlier_ms == 0 {
                return Err(CatalogError::Value { what: "outlier limit" });
            }
            self.check_regions(claims, Owner::FlashLog, log.size_per_device_bytes, &log.regions)?;
        }
        Ok(())
    }

    fn check_regions(
        &self,
        claims: &mut Claims,
        owner: Owner,
        size_bytes: u64,
        regions: &BTreeMap<DeviceId, Vec<Extent>>,
    ) -> Result<(), CatalogError> {
        let what = if owner == Owner::FlashCache { "flash cache" } else { "flash log" };
        limit(what, regions.len(), FLASH_MEMBERS_MAX)?;
        if size_bytes == 0 || regions.is_empty() {
            return Err(CatalogError::Value { what });
        }
        for (device_id, extents) in regions {
            let Some(member) = self.members.get(device_id).filter(|m| m.role == Role::Flash) else {
                return Err(CatalogError::Device { what, device_id: *device_id });
            };
            let room_bytes: u128 = extents.iter().map(|e| u128::from(e.count_au) * u128::from(member.au_bytes)).sum();
            let size_bytes = u128::from(size_bytes);
            if room_bytes < size_bytes || room_bytes - size_bytes >= u128::from(member.au_bytes) {
                return Err(CatalogError::Extents { what: what.to_owned(), why: "do not fit its size" });
            }
            self.claim(claims, *device_id, extents, owner)?;
        }
        Ok(())
    }

    /// Note what `extents` take of `device_id`.
    fn claim(
        &self,
        claims: &mut Claims,
        device_id: DeviceId,
        extents: &[Extent],
        owner: Owner,
    ) -> Result<(), CatalogError> {
        limit("extents", extents.len(), EXTENTS_MAX)?;
        let au_count = self.members.get(&device_id).map_or(0, |m| u64::from(m.au_count));
        let spans = claims.entry(device_id).or_default();
        for extent in extents {
            if extent.count_au == 0 || extent.end_au() > au_count {
                return Err(CatalogError::Extents { what: self.owner_name(owner), why: "lie beyond the device" });
            }
            spans.push((u64::from(extent.start_au), extent.end_au(), owner));
        }
        Ok(())
    }

    fn owner_name(&self, owner: Owner) -> String {
        match owner {
            Owner::GridDisk(id) => {
                format!("grid disk {}", self.grid_disks.get(&id).map_or("", |grid_disk| &grid_disk.name))
            }
            Owner::FlashCache => "the flash cache".to_owned(),
            Owner::FlashLog => "the flash log".to_owned(),
        }
    }
}
