//! Parts of a checkpoint: no bytes may make the decoders panic, allocate without bound, or give an item that cannot be.
//!
//! The first byte chooses the first part or another. With its high bit set owner, length and checksum are made to fit, so that
//! the items are reached.
#![no_main]

use flashcache::checkpoint::{
    Binding, CHECKPOINT_SEGMENTS_MAX, Item, PART_BYTES, PART_FIXED_BYTES, decode_root, encode_root, visit_part,
};
use flashcache::format::Owner;
use libfuzzer_sys::fuzz_target;

const BINDING: Binding =
    Binding { owner: Owner { cell_id: 0x1111_2222_3333_4444, device_id: 0xaaaa_bbbb, era: 3 }, token: 77 };

/// Make the fixed bytes of a part those of this checkpoint.
fn own(part: &mut [u8], index: u32) {
    let len = (part.len() - PART_FIXED_BYTES) as u32;
    // A part written by the production code has them all.
    let root = encode_root(&BINDING, &decode_root_of_nothing());
    part[..PART_FIXED_BYTES].copy_from_slice(&root[..PART_FIXED_BYTES]);
    part[12..16].copy_from_slice(&len.to_le_bytes());
    part[72..76].copy_from_slice(&index.to_le_bytes());
    let crc = crc32c::crc32c(&part[8..]);
    part[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn decode_root_of_nothing() -> flashcache::checkpoint::Root {
    flashcache::checkpoint::Root { parts: 1, shape: [8, 16, 4], sequence: 1, segments: Vec::new() }
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let mut part = bytes.to_vec();
    part.truncate(PART_BYTES);
    let index = u32::from(choice & 1);
    if choice & 0x80 != 0 {
        // Items alone: the fixed bytes go before them.
        part.truncate(PART_BYTES - PART_FIXED_BYTES);
        part.splice(0..0, [0; PART_FIXED_BYTES]);
        own(&mut part, index);
    }
    if index == 0 {
        if let Ok(root) = decode_root(&BINDING, &part) {
            assert!(root.segments.len() <= CHECKPOINT_SEGMENTS_MAX);
            let again = decode_root(&BINDING, &encode_root(&BINDING, &root)).expect("what was encoded decodes");
            assert_eq!(again, root);
        }
    } else {
        let _ = visit_part(&BINDING, index, &part, &mut |item| {
            if let Item::Index(entry) = item {
                assert!(entry.mask != 0 && entry.valid != 0 && entry.valid & !entry.mask == 0);
                assert_eq!(entry.sums().count(), entry.mask.count_ones() as usize);
            }
        });
    }
});
