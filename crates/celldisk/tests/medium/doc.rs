//! Goal: the numbers in docs/internals/disk-format.md are those of the code.

use celldisk::layout as l;
use celldisk::section::SectionKind;
use celldisk::{Place, Slot};
use std::collections::BTreeMap;

const DOC: &str = include_str!("../../../../docs/internals/disk-format.md");

/// Rows `| NAME | number | …` with the name in backquotes.
fn table() -> BTreeMap<&'static str, u64> {
    let mut rows = BTreeMap::new();
    for line in DOC.lines() {
        let mut cells = line.split('|').map(str::trim);
        let (Some(""), Some(name), Some(value)) = (cells.next(), cells.next(), cells.next()) else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else { continue };
        if let Ok(value) = value.replace(' ', "").parse() {
            assert_eq!(rows.insert(name, value), None, "{name} is given twice");
        }
    }
    rows
}

#[test]
fn constants() {
    let place = |slot, mirror| Place { slot, mirror };
    let expected: BTreeMap<&str, u64> = [
        ("FORMAT_VERSION", u64::from(l::FORMAT_VERSION)),
        ("CATALOG_PACKED_VERSION", u64::from(l::CATALOG_PACKED_VERSION)),
        ("PAGE_BYTES", l::PAGE_BYTES),
        ("TRUE_PAGE_BYTES_MAX", l::TRUE_PAGE_BYTES_MAX),
        ("SLOTS", l::SLOTS as u64),
        ("COPIES", l::COPIES as u64),
        ("PLACE_STRIDE_BYTES", l::PLACE_STRIDE_BYTES),
        ("LABEL_OFFSET", l::LABEL_OFFSET),
        ("CATALOG_OFFSET", l::CATALOG_OFFSET),
        ("LABEL_SECTION_BYTES", l::LABEL_SECTION_BYTES),
        ("CATALOG_SECTION_BYTES", l::CATALOG_SECTION_BYTES),
        ("DATA_OFFSET", l::DATA_OFFSET),
        ("CLAIM_OFFSET", l::CLAIM_OFFSET),
        ("CLAIM_RECORD_OFFSET", l::CLAIM_RECORD_OFFSET),
        ("CLAIM_HOST_NAME_BYTES_MAX", l::CLAIM_HOST_NAME_BYTES_MAX as u64),
        ("HEADER_BYTES", l::HEADER_BYTES as u64),
        ("CATALOG_PAYLOAD_BYTES_MAX", l::CATALOG_PAYLOAD_BYTES_MAX as u64),
        ("AU_BYTES", l::AU_BYTES),
        ("AU_BYTES_MIN", l::AU_BYTES_MIN),
        ("AU_BYTES_MAX", l::AU_BYTES_MAX),
        ("AU_COUNT_WANTED", l::AU_COUNT_WANTED),
        ("NAME_BYTES_MAX", l::NAME_BYTES_MAX as u64),
        ("GRID_DISK_NAME_BYTES_MAX", l::GRID_DISK_NAME_BYTES_MAX as u64),
        ("FLASH_MEMBERS_MAX", l::FLASH_MEMBERS_MAX as u64),
        ("DISKS_MAX", l::DISKS_MAX as u64),
        ("MEMBERS_MAX", l::MEMBERS_MAX as u64),
        ("FLASH_MEMBER_BYTES", l::FLASH_MEMBER_BYTES as u64),
        ("DISK_STAMP_BYTES", l::DISK_STAMP_BYTES as u64),
        ("DIRTY_BITS", l::DIRTY_BITS as u64),
        ("DIRTY_GRANULE_BYTES_MIN", l::DIRTY_GRANULE_BYTES_MIN),
        ("LABEL_NAME_OFFSET", l::LABEL_NAME_OFFSET as u64),
        ("LABEL_ADOPTED_OFFSET", l::LABEL_ADOPTED_OFFSET as u64),
        ("LABEL_MEMBERS_OFFSET", l::LABEL_MEMBERS_OFFSET as u64),
        ("LABEL_STAMPS_OFFSET", l::LABEL_STAMPS_OFFSET as u64),
        ("LABEL_DIRTY_OFFSET", l::LABEL_DIRTY_OFFSET as u64),
        ("LABEL_PAYLOAD_BYTES", l::LABEL_PAYLOAD_BYTES as u64),
        ("GRID_DISKS_MAX", l::GRID_DISKS_MAX as u64),
        ("GRID_DISKS_UNPACKED_MAX", l::GRID_DISKS_UNPACKED_MAX as u64),
        ("CATALOG_RESERVE_BYTES", l::CATALOG_RESERVE_BYTES as u64),
        ("EXTENTS_MAX", l::EXTENTS_MAX as u64),
        ("CACHING_RANGES_MAX", l::CACHING_RANGES_MAX as u64),
        ("JOURNAL_EXTENTS_MAX", l::JOURNAL_EXTENTS_MAX as u64),
        ("COMMENT_BYTES_MAX", l::COMMENT_BYTES_MAX as u64),
        ("AVAILABLE_TO_BYTES_MAX", l::AVAILABLE_TO_BYTES_MAX as u64),
        ("ASM_ATTRIBUTES_MAX", l::ASM_ATTRIBUTES_MAX as u64),
        ("ASM_BYTES_MAX", l::ASM_BYTES_MAX as u64),
        ("IORM_PLAN_BYTES_MAX", l::IORM_PLAN_BYTES_MAX as u64),
        ("CELL_ATTRIBUTES_MAX", l::CELL_ATTRIBUTES_MAX as u64),
        ("ATTRIBUTE_NAME_BYTES_MAX", l::ATTRIBUTE_NAME_BYTES_MAX as u64),
        ("ATTRIBUTE_TEXT_BYTES_MAX", l::ATTRIBUTE_TEXT_BYTES_MAX as u64),
        ("CELL_ATTRIBUTES_BYTES_MAX", l::CELL_ATTRIBUTES_BYTES_MAX as u64),
        ("TERMS_MAX", l::TERMS_MAX as u64),
        ("label A", SectionKind::Label.offset(place(Slot::A, false))),
        ("catalog A", SectionKind::Catalog.offset(place(Slot::A, false))),
        ("label B", SectionKind::Label.offset(place(Slot::B, false))),
        ("catalog B", SectionKind::Catalog.offset(place(Slot::B, false))),
        ("label A mirror", SectionKind::Label.offset(place(Slot::A, true))),
        ("catalog A mirror", SectionKind::Catalog.offset(place(Slot::A, true))),
        ("label B mirror", SectionKind::Label.offset(place(Slot::B, true))),
        ("catalog B mirror", SectionKind::Catalog.offset(place(Slot::B, true))),
    ]
    .into();
    assert_eq!(table(), expected);
}

#[test]
fn magics_are_named() {
    for kind in [SectionKind::Label, SectionKind::Catalog] {
        let magic = kind.magic().escape_ascii().to_string();
        assert!(DOC.contains(&format!("\"{magic}\"")), "{magic}");
    }
}
