//! Any bytes as the block of a claim: no panic, and a stamp that decodes is what would have been written for it.
//!
//! The first byte says whether the checksum is repaired (bit 0), so that the fields behind it are reached.
#![no_main]

use celldisk::claim::{Found, decode};
use celldisk::layout::CLAIM_HOST_NAME_BYTES_MAX;
use libfuzzer_sys::fuzz_target;

const SECTOR_BYTES: usize = 512;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if mode & 1 != 0 {
        bytes.resize(SECTOR_BYTES, 0);
        bytes[12..16].fill(0);
        let checksum = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    match decode(&bytes) {
        Found::Nothing => assert!(bytes[..SECTOR_BYTES].iter().all(|&b| b == 0)),
        Found::Unreadable => {}
        Found::Stamp(stamp) => {
            assert!(stamp.holder.host_name.len() <= CLAIM_HOST_NAME_BYTES_MAX);
            assert_eq!(decode(&stamp.encode()), Found::Stamp(stamp));
        }
    }
});
