//! Any bytes as a label section: no panic, no allocation beyond the bytes at hand, and what decodes encodes back.
#![no_main]

mod common;

use celldisk::Label;
use celldisk::layout::LABEL_PAYLOAD_BYTES;
use celldisk::section::SectionKind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((place, bytes)) = common::section_of(data, SectionKind::Label, LABEL_PAYLOAD_BYTES) else { return };
    if let Ok(label) = Label::decode(place, &bytes) {
        assert!(label.validate().is_ok());
        assert!(label.dirty.ranges().iter().all(|(offset, _)| *offset < label.size_bytes));
        common::assert_same(&label.encode(place), &bytes);
    }
});
