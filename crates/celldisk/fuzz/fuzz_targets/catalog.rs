//! Any bytes as a catalog section: no panic, no allocation beyond the bytes at hand, and what decodes encodes back.
#![no_main]

mod common;

use celldisk::Catalog;
use celldisk::section::SectionKind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((place, bytes)) = common::section_of(data, SectionKind::Catalog, 0) else { return };
    if let Ok((device_id, catalog)) = Catalog::decode(place, &bytes) {
        assert!(catalog.validate().is_ok());
        for (id, member) in &catalog.members {
            assert!(catalog.free_au(*id) <= u64::from(member.au_count));
        }
        common::assert_same(&catalog.encode(device_id, place), &bytes);
    }
});
