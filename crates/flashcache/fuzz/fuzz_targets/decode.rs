//! Chunk headers, trailers and footers: no bytes may make the decoders panic, allocate without bound, or decode to
//! something that does not encode back to the same bytes.
//!
//! The first byte chooses the decoder. With its high bit set the checksum is made to fit, so that the records are reached.
#![no_main]

use flashcache::format::{
    CHUNK_FIXED_BYTES, Owner, TRAILER_BYTES, decode_chunk, decode_footer, decode_trailer, encode_chunk, encode_footer,
};
use libfuzzer_sys::fuzz_target;

const OWNER: Owner = Owner { cell_id: 0x1111_2222_3333_4444, device_id: 0xaaaa_bbbb, era: 3 };

fn own(fixed: &mut [u8]) {
    fixed[16..32].copy_from_slice(&OWNER.cell_id.to_le_bytes());
    fixed[32..48].copy_from_slice(&OWNER.device_id.to_le_bytes());
    fixed[48..56].copy_from_slice(&OWNER.era.to_le_bytes());
}

fn seal(fixed: &mut [u8], records: &[u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&fixed[8..CHUNK_FIXED_BYTES]), records);
    fixed[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn records_len(fixed: &[u8]) -> usize {
    u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]) as usize
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    let fit = choice & 0x80 != 0;
    if choice & 1 == 0 {
        if fit && bytes.len() >= CHUNK_FIXED_BYTES {
            let (fixed, rest) = bytes.split_at_mut(CHUNK_FIXED_BYTES);
            own(fixed);
            let len = records_len(fixed).min(rest.len());
            fixed[12..16].copy_from_slice(&(len as u32).to_le_bytes());
            seal(fixed, &rest[..len]);
        }
        if let Ok((header, records)) = decode_chunk(&bytes, &OWNER) {
            let mut page = vec![0; bytes.len()];
            encode_chunk(&header, &records, &mut page);
            let (again, records_again) = decode_chunk(&page, &OWNER).expect("what was encoded decodes");
            assert_eq!((again, records_again), (header, records));
        }
    } else {
        if fit && bytes.len() >= TRAILER_BYTES {
            let at = bytes.len() - TRAILER_BYTES;
            let (body, trailer) = bytes.split_at_mut(at);
            own(trailer);
            let len = records_len(trailer).min(body.len());
            trailer[12..16].copy_from_slice(&(len as u32).to_le_bytes());
            seal(trailer, &body[..len]);
        }
        let _ = decode_trailer(&bytes[bytes.len().saturating_sub(TRAILER_BYTES)..], &OWNER);
        if let Ok((trailer, records)) = decode_footer(&bytes, &OWNER) {
            let encoded = encode_footer(OWNER, trailer.life, trailer.sequence, trailer.durable, &records, 1);
            let (again, records_again) = decode_footer(&encoded, &OWNER).expect("what was encoded decodes");
            assert_eq!((again.life, again.sequence, records_again), (trailer.life, trailer.sequence, records));
        }
    }
});
