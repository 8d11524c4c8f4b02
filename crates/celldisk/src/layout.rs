//! Where everything lies on a device: every offset and size of format version 1, derived from a few choices.
//!
//! `docs/internals/disk-format.md` draws it; a test compares its table with these constants. Nothing here reads or writes.

/// The format this code writes. A device with a newer one is refused.
pub const FORMAT_VERSION: u32 = 1;

/// The format of a catalog with more than [`GRID_DISKS_UNPACKED_MAX`] grid disks. Others are written as [`FORMAT_VERSION`], which every
/// release reads; a release that does not know this one refuses the device as one of a newer release.
pub const CATALOG_PACKED_VERSION: u32 = 2;

/// Unit of all metadata writes: the page every drive since 2010 writes whole, and the strictest O_DIRECT alignment.
pub const PAGE_BYTES: u64 = 4096;

/// Largest true page supported: sections of different age never share one, so a torn page harms only its own section.
pub const TRUE_PAGE_BYTES_MAX: u64 = 64 << 10;

/// Superblock slots. Two: one is written after the other, so that one is whole whenever the power goes.
pub const SLOTS: usize = 2;

/// Copies of each slot, written together. A torn write is answered by the other slot; once a change is acknowledged all places
/// of both slots hold it, and any two may be lost.
pub const COPIES: usize = 2;

/// From one place (slot and copy) to the next. The order is A, B, mirror of A, mirror of B, so that an `mkfs` or a `dd` of
/// two MiB leaves both mirrors. Not at the end of the device, because volumes grow while the cell is down and the end
/// would then not be found.
pub const PLACE_STRIDE_BYTES: u64 = 1 << 20;

/// The first page of a place is left zero: boot sectors, partition tables and most signatures are looked for there.
pub const LABEL_OFFSET: u64 = PAGE_BYTES;

/// The catalog section starts on a true-page border of its own.
pub const CATALOG_OFFSET: u64 = TRUE_PAGE_BYTES_MAX;

/// Room for the label section.
pub const LABEL_SECTION_BYTES: u64 = CATALOG_OFFSET - LABEL_OFFSET;

/// The claim: at the end of the first place, on a true page of its own, since it is written every few seconds. One copy: what is
/// lost of it is written anew.
pub const CLAIM_OFFSET: u64 = PLACE_STRIDE_BYTES - TRUE_PAGE_BYTES_MAX;

/// The claim's record: the process that took the device last. At the end of the second place, on a true page of its own.
pub const CLAIM_RECORD_OFFSET: u64 = CLAIM_OFFSET + PLACE_STRIDE_BYTES;

/// Longest name of a host in a claim: host names are cut there by the kernel.
pub const CLAIM_HOST_NAME_BYTES_MAX: usize = 64;

/// Room for the catalog section: up to the claim's page.
pub const CATALOG_SECTION_BYTES: u64 = CLAIM_OFFSET - CATALOG_OFFSET;

/// First byte of allocation unit 0: all places lie before it, and it is aligned to every erase block in use (2 MiB).
pub const DATA_OFFSET: u64 = (SLOTS * COPIES) as u64 * PLACE_STRIDE_BYTES;

/// The header in front of each section's payload.
pub const HEADER_BYTES: usize = 128;

/// Largest catalog payload.
pub const CATALOG_PAYLOAD_BYTES_MAX: usize = CATALOG_SECTION_BYTES as usize - HEADER_BYTES;

/// The allocation unit where there is room for it: the vendor's 16 MiB.
pub const AU_BYTES: u64 = 16 << 20;

/// Smallest allocation unit: one largest true page.
pub const AU_BYTES_MIN: u64 = TRUE_PAGE_BYTES_MAX;

/// Largest allocation unit a label may record.
pub const AU_BYTES_MAX: u64 = 1 << 30;

/// A device gets the largest unit up to [`AU_BYTES`] that leaves it this many, so that small devices can be divided too.
pub const AU_COUNT_WANTED: u64 = 64;

/// Longest cell or cell disk name.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest grid disk name (the vendor's limit).
pub const GRID_DISK_NAME_BYTES_MAX: usize = 30;

/// Flash devices of a cell: four times what the largest vendor cell carries.
pub const FLASH_MEMBERS_MAX: usize = 64;

/// Disks of a cell, and so entries of a flash device's stamp table: the largest enclosures take 102.
pub const DISKS_MAX: usize = 128;

/// Devices of a cell.
pub const MEMBERS_MAX: usize = FLASH_MEMBERS_MAX + DISKS_MAX;

/// One entry of the flash member table.
pub const FLASH_MEMBER_BYTES: usize = 64;

/// One entry of the disk stamp table.
pub const DISK_STAMP_BYTES: usize = 64;

/// Bits of the coarse dirty bitmap: 8 KiB, so that a label write stays one small transfer; 256 MiB each on a 16 TiB disk.
pub const DIRTY_BITS: usize = 1 << 16;

/// Smallest stretch one bit stands for (the cache's region).
pub const DIRTY_GRANULE_BYTES_MIN: u64 = 1 << 20;

/// Label payload: offset of the name.
pub const LABEL_NAME_OFFSET: usize = 128;

/// Label payload: offset of what says that it is an adopted volume.
pub const LABEL_ADOPTED_OFFSET: usize = LABEL_NAME_OFFSET + NAME_BYTES_MAX;

/// Label payload: offset of the flash member table.
pub const LABEL_MEMBERS_OFFSET: usize = 256;

/// Label payload: offset of the disk stamp table.
pub const LABEL_STAMPS_OFFSET: usize = LABEL_MEMBERS_OFFSET + FLASH_MEMBERS_MAX * FLASH_MEMBER_BYTES;

/// Label payload: offset of the dirty bitmap.
pub const LABEL_DIRTY_OFFSET: usize = LABEL_STAMPS_OFFSET + DISKS_MAX * DISK_STAMP_BYTES;

/// Label payload: all of it, the same for disks and flash.
pub const LABEL_PAYLOAD_BYTES: usize = LABEL_DIRTY_OFFSET + DIRTY_BITS / 8;

/// Grid disks of a cell (the vendor's cells carry some tens).
pub const GRID_DISKS_MAX: usize = 16_384;

/// Up to so many are written in format 1.
pub const GRID_DISKS_UNPACKED_MAX: usize = 1024;

/// Of the room for the catalog, so much is for what takes no more of it, and for a start, which remembers one term more: whatever is
/// full, a cell starts, and its grid disks can be dropped and altered.
pub const CATALOG_RESERVE_BYTES: usize = 16 << 10;

/// Extents of one grid disk or flash region: growth that needs more asks for a compacter layout first.
pub const EXTENTS_MAX: usize = 64;

/// Extents of the journal of one grid disk: it is small, and read and written from end to end.
pub const JOURNAL_EXTENTS_MAX: usize = 8;

/// Ranges of one grid disk with a caching policy of their own: a table or index is a few stretches of its file, and those
/// that are pinned by hand are few. Looked up on each request of such a grid disk.
pub const CACHING_RANGES_MAX: usize = 256;

/// One such range: start, end, policy.
pub const CACHING_RANGE_BYTES: usize = 8 + 8 + 1;

/// Longest comment.
pub const COMMENT_BYTES_MAX: usize = 128;

/// Longest `availableTo` list.
pub const AVAILABLE_TO_BYTES_MAX: usize = 128;

/// ASM attributes of one grid disk: the vendor shows six.
pub const ASM_ATTRIBUTES_MAX: usize = 8;

/// All ASM attributes of one grid disk as encoded (two length bytes each): six names of thirty bytes and their values.
pub const ASM_BYTES_MAX: usize = 256;

/// Longest I/O resource plan, as text: 32 databases with every directive take about a third of it.
pub const IORM_PLAN_BYTES_MAX: usize = 32 << 10;

/// Attributes of the cell.
pub const CELL_ATTRIBUTES_MAX: usize = 256;

/// Longest name of an attribute.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 64;

/// Longest value of a cell attribute.
pub const ATTRIBUTE_TEXT_BYTES_MAX: usize = 1024;

/// All cell attributes as encoded.
pub const CELL_ATTRIBUTES_BYTES_MAX: usize = 64 << 10;

/// Earlier terms a catalog remembers, to tell a copy that is merely old from one that went its own way.
pub const TERMS_MAX: usize = 64;

/// One grid disk with every bounded text full and eight extents.
const GRID_DISK_BYTES_FULL: usize = 8
    + (1 + GRID_DISK_NAME_BYTES_MAX)
    + 16
    + 8
    + 1
    + 1
    + 2
    + 1
    + 4
    + 8
    + (1 + COMMENT_BYTES_MAX)
    + (1 + AVAILABLE_TO_BYTES_MAX)
    + (1 + ASM_BYTES_MAX)
    + 1
    + 8 * 8
    + 8;

/// One grid disk of a packed catalog with a name of 24 bytes, in one extent: id, name, cell disk, size (a TiB), creation (three days after
/// the one before), word, first AU, AUs.
const GRID_DISK_BYTES_PACKED: usize = 1 + (1 + 24) + 1 + 4 + 7 + 2 + 4 + 3;

/// Everything else with every bounded text full and four extents for each flash region.
const REST_BYTES_FULL: usize = 512
    + TERMS_MAX * 32
    + MEMBERS_MAX * (40 + NAME_BYTES_MAX)
    + 2 * (128 + FLASH_MEMBERS_MAX * (16 + 1 + 4 * 8))
    + 4
    + IORM_PLAN_BYTES_MAX
    + CELL_ATTRIBUTES_BYTES_MAX;

const _: () = {
    assert!(LABEL_OFFSET.is_multiple_of(PAGE_BYTES) && CATALOG_OFFSET.is_multiple_of(TRUE_PAGE_BYTES_MAX));
    assert!(HEADER_BYTES + LABEL_PAYLOAD_BYTES <= LABEL_SECTION_BYTES as usize, "the label fits its section");
    assert!(PLACE_STRIDE_BYTES.is_multiple_of(TRUE_PAGE_BYTES_MAX), "places share no true page");
    assert!(CLAIM_OFFSET.is_multiple_of(TRUE_PAGE_BYTES_MAX), "the claim shares no true page");
    assert!(CLAIM_RECORD_OFFSET.is_multiple_of(TRUE_PAGE_BYTES_MAX), "nor does its record");
    assert!(DATA_OFFSET.is_multiple_of(2 << 20), "allocation units start on an erase block");
    assert!(
        GRID_DISKS_UNPACKED_MAX * GRID_DISK_BYTES_FULL + REST_BYTES_FULL + CATALOG_RESERVE_BYTES
            <= CATALOG_PAYLOAD_BYTES_MAX,
        "as many as are not packed fit with full texts"
    );
    assert!(
        GRID_DISKS_MAX * GRID_DISK_BYTES_PACKED + REST_BYTES_FULL + CATALOG_RESERVE_BYTES <= CATALOG_PAYLOAD_BYTES_MAX,
        "a full house of packed grid disks fits"
    );
    assert!(GRID_DISKS_MAX <= u16::MAX as usize && MEMBERS_MAX <= u8::MAX as usize, "counted so in a packed catalog");
    assert!(TERMS_MAX * 32 <= CATALOG_RESERVE_BYTES, "terms fit the reserve");
    assert!(AU_BYTES_MIN >= PAGE_BYTES && AU_BYTES_MIN.is_power_of_two() && AU_BYTES.is_power_of_two());
    assert!(EXTENTS_MAX <= u8::MAX as usize && TERMS_MAX <= u8::MAX as usize, "counted in a byte");
    assert!(NAME_BYTES_MAX <= u8::MAX as usize);
    assert!(COMMENT_BYTES_MAX <= u8::MAX as usize);
    assert!(AVAILABLE_TO_BYTES_MAX <= u8::MAX as usize);
    assert!(ATTRIBUTE_NAME_BYTES_MAX <= u8::MAX as usize);
    assert!(ATTRIBUTE_TEXT_BYTES_MAX <= u16::MAX as usize);
};

/// One of the two superblock slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The one at the start of the device.
    A,
    /// The one after it.
    B,
}

impl Slot {
    /// Both, in the order of their place.
    pub const BOTH: [Slot; SLOTS] = [Slot::A, Slot::B];

    /// 0 or 1, as headers carry it.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Slot::A => 0,
            Slot::B => 1,
        }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Slot {
        match self {
            Slot::A => Slot::B,
            Slot::B => Slot::A,
        }
    }

    /// Where its two copies are.
    #[must_use]
    pub fn places(self) -> [Place; COPIES] {
        [Place { slot: self, mirror: false }, Place { slot: self, mirror: true }]
    }
}

/// Where one copy of a slot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The slot.
    pub slot: Slot,
    /// The second copy.
    pub mirror: bool,
}

impl Place {
    /// All four, in the order of the device.
    pub const ALL: [Place; SLOTS * COPIES] = [
        Place { slot: Slot::A, mirror: false },
        Place { slot: Slot::B, mirror: false },
        Place { slot: Slot::A, mirror: true },
        Place { slot: Slot::B, mirror: true },
    ];

    /// First byte on the device.
    #[must_use]
    pub fn offset(self) -> u64 {
        (usize::from(self.mirror) * SLOTS + self.slot.index()) as u64 * PLACE_STRIDE_BYTES
    }
}

/// The allocation unit for a device of `size_bytes`: the largest power of two in
/// [`AU_BYTES_MIN`]..=[`AU_BYTES`] that gives at least [`AU_COUNT_WANTED`] of them, else the smallest.
#[must_use]
pub fn au_bytes_for(size_bytes: u64) -> u64 {
    let data_bytes = size_bytes.saturating_sub(DATA_OFFSET);
    let mut au_bytes = AU_BYTES;
    while au_bytes > AU_BYTES_MIN && data_bytes / au_bytes < AU_COUNT_WANTED {
        au_bytes /= 2;
    }
    au_bytes
}

/// How many allocation units of `au_bytes` a device of `size_bytes` holds. They are counted in 32 bits; a larger device
/// is used as far as that goes.
#[must_use]
pub fn au_count_for(size_bytes: u64, au_bytes: u64) -> u32 {
    u32::try_from(size_bytes.saturating_sub(DATA_OFFSET) / au_bytes.max(1)).unwrap_or(u32::MAX)
}

/// How many bytes one bit of the dirty bitmap stands for on a device of `size_bytes`.
#[must_use]
pub fn dirty_granule_bytes_for(size_bytes: u64) -> u64 {
    let mut granule_bytes = DIRTY_GRANULE_BYTES_MIN;
    while size_bytes.div_ceil(granule_bytes) > DIRTY_BITS as u64 {
        granule_bytes *= 2;
    }
    granule_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_shrinks_with_the_device() {
        assert_eq!(au_bytes_for(DATA_OFFSET + (1 << 30)), AU_BYTES);
        assert_eq!(au_bytes_for(DATA_OFFSET + (1 << 30) - 1), AU_BYTES / 2);
        assert_eq!(au_bytes_for(16 << 20), 128 << 10);
        assert_eq!(au_bytes_for(0), AU_BYTES_MIN);
        assert_eq!(au_count_for(DATA_OFFSET, AU_BYTES), 0);
        assert_eq!(au_count_for(DATA_OFFSET + AU_BYTES * 3 - 1, AU_BYTES), 2);
        assert_eq!(au_count_for(u64::MAX, AU_BYTES_MIN), u32::MAX);
    }

    #[test]
    fn the_dirty_bitmap_covers_every_size() {
        assert_eq!(dirty_granule_bytes_for(1), DIRTY_GRANULE_BYTES_MIN);
        assert_eq!(dirty_granule_bytes_for(64 << 30), DIRTY_GRANULE_BYTES_MIN);
        assert_eq!(dirty_granule_bytes_for((64 << 30) + 1), 2 * DIRTY_GRANULE_BYTES_MIN);
        assert_eq!(dirty_granule_bytes_for(16 << 40), 256 << 20);
        assert!(u64::MAX.div_ceil(dirty_granule_bytes_for(u64::MAX)) <= DIRTY_BITS as u64);
    }
}
