//! Goal: format version 2 never changes by accident, and no bytes make the decoders panic or believe what is not whole.
//! Method: round trips of random values, every single-bit flip, every truncation, and a fixture committed as hex.

use device::Prng;
use flashcache::format::*;
use flashcache::units::{Opening, Position, SegmentId};
use smallvec::SmallVec;

const OWNER: Owner = Owner { cell_id: 0x1111_2222_3333_4444, device_id: 0xaaaa_bbbb, era: 3 };
const LIFE: SegmentLife =
    SegmentLife { segment: SegmentId(5), opening: Opening(0x0123_4567_89ab_cdef), head: HeadKind::Main };

fn record(prng: &mut Prng) -> Record {
    match prng.below(8) {
        0 => Record::Invalidation {
            segment: SegmentId(prng.next_u64() as u32),
            opening: Opening(prng.next_u64()),
            position: Position(prng.below(512) as u32),
            mask: prng.next_u64() as u16,
            cleaned: prng.chance(1, 2),
        },
        1 => Record::Mark {
            disk: prng.next_u64(),
            generation: prng.next_u64() as u32,
            region: prng.next_u64(),
            set: prng.chance(1, 2),
        },
        2 => Record::Free { segment: SegmentId(prng.next_u64() as u32), opening: Opening(prng.next_u64()) },
        3 if prng.chance(1, 2) => Record::Link {
            segment: SegmentId(prng.next_u64() as u32),
            opening: Opening(prng.next_u64()),
            sequence: prng.next_u64(),
            certain: prng.chance(1, 2),
        },
        3 if prng.chance(1, 4) => Record::Kept {
            segment: SegmentId(prng.next_u64() as u32),
            opening: Opening(prng.next_u64()),
            head: HeadKind::ALL[prng.below(HeadKind::COUNT as u64) as usize],
            sequence: prng.next_u64(),
        },
        3 if prng.chance(1, 4) => Record::PolicyNote { note: prng.next_u64() as u8 },
        3 => Record::Chunk { position: Position(prng.below(512) as u32), sequence: prng.next_u64() },
        n => {
            let kind = [EntryKind::Clean, EntryKind::Dirty, EntryKind::Zero, EntryKind::Trim][n as usize - 4];
            let mask = prng.between(1, 0xffff) as u16;
            let bare = matches!(kind, EntryKind::Zero | EntryKind::Trim);
            let sums: SmallVec<[u32; 4]> =
                (0..if bare { 0 } else { mask.count_ones() }).map(|_| prng.next_u64() as u32).collect();
            let name = BlockName { disk: prng.next_u64(), generation: prng.next_u64() as u32, block: prng.next_u64() };
            Record::Entry { kind, name, mask, position: Position(prng.below(512) as u32), sums }
        }
    }
}

fn chunk(prng: &mut Prng) -> (ChunkHeader, Vec<Record>, Vec<u8>) {
    let sequence = prng.between(1 << 40, 1 << 62);
    let header = ChunkHeader {
        owner: OWNER,
        life: LIFE,
        position: Position(prng.below(512) as u32),
        pages: prng.between(1, 64) as u32,
        sequence,
        durable: if prng.chance(1, 3) { 0 } else { sequence - prng.below((sequence & 0xffff_ffff) + 1) },
    };
    let mut records = Vec::new();
    let mut bytes = CHUNK_FIXED_BYTES;
    loop {
        let next = record(prng);
        bytes += next.encoded_bytes();
        if bytes > 4096 || prng.chance(1, 30) {
            break;
        }
        records.push(next);
    }
    let mut page = vec![0xee; 4096];
    encode_chunk(&header, &records, &mut page);
    (header, records, page)
}

#[test]
fn chunks_come_back_as_they_were() {
    let mut prng = Prng::new(1);
    for _ in 0..500 {
        let (header, records, page) = chunk(&mut prng);
        assert_eq!(decode_chunk(&page, &OWNER).expect("whole"), (header, records));
    }
}

#[test]
fn footers_come_back_as_they_were() {
    let mut prng = Prng::new(2);
    for n in 0..300 {
        let records: Vec<Record> = (0..n).map(|_| record(&mut prng)).collect();
        let bytes = encode_footer(OWNER, LIFE, 99, 90, &records, 4096);
        assert_eq!(bytes.len() % 4096, 0);
        let (trailer, back) = decode_footer(&bytes, &OWNER).expect("whole");
        assert_eq!((trailer.life, trailer.sequence), (LIFE, 99));
        assert_eq!(back, records);
        let again = decode_trailer(&bytes[bytes.len() - TRAILER_BYTES..], &OWNER).expect("whole");
        assert_eq!(footer_bytes(again.records_bytes, 4096), bytes.len());
    }
}

#[test]
fn a_witness_comes_back_as_it_was_and_is_no_footer_and_no_chunk() {
    let mut prng = Prng::new(7);
    for unit in [4096, 16 << 10] {
        let parity = (0..unit - TRAILER_BYTES).map(|_| prng.next_u64() as u8).collect();
        let (durable, last_sequence) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        let witness = Witness { life: LIFE, durable, headers: 7, last_sequence, parity };
        let page = encode_witness(OWNER, &witness);
        assert_eq!(page.len(), unit);
        assert_eq!(decode_witness(&page, &OWNER), Ok(witness));
        assert!(decode_trailer(&page[unit - TRAILER_BYTES..], &OWNER).is_err() && decode_chunk(&page, &OWNER).is_err());
        assert!(decode_witness(&page, &Owner { era: 4, ..OWNER }).is_err());
        for byte in 0..unit {
            let mut bad = page.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(decode_witness(&bad, &OWNER).is_err(), "byte {byte}");
            assert!(decode_witness(&page[..byte], &OWNER).is_err(), "{byte} bytes");
        }
    }
}

#[test]
fn no_more_records_are_read_than_a_footer_may_have() {
    let record = Record::Free { segment: SegmentId(1), opening: Opening(2) };
    let most = FOOTER_RECORDS_BYTES_MAX / record.encoded_bytes();
    assert_eq!(FOOTER_RECORDS_BYTES_MAX, (64 << 20) / 8, "an eighth of the largest segment");
    for (count, believed) in [(most, true), (most + 1, false)] {
        let bytes = encode_footer(OWNER, LIFE, 99, 90, &vec![record.clone(); count], 4096);
        let trailer = decode_trailer(&bytes[bytes.len() - TRAILER_BYTES..], &OWNER);
        assert_eq!(trailer.is_ok(), believed, "{count} records: {trailer:?}");
    }
}

#[test]
fn a_flipped_bit_is_never_believed() {
    let mut prng = Prng::new(3);
    for _ in 0..4 {
        let (_, records, page) = chunk(&mut prng);
        let used = CHUNK_FIXED_BYTES + records.iter().map(Record::encoded_bytes).sum::<usize>();
        for bit in 0..used * 8 {
            let mut bad = page.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_chunk(&bad, &OWNER).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn any_truncation_is_an_error() {
    let mut prng = Prng::new(4);
    let (_, records, page) = chunk(&mut prng);
    let used = CHUNK_FIXED_BYTES + records.iter().map(Record::encoded_bytes).sum::<usize>();
    for len in 0..used {
        assert!(decode_chunk(&page[..len], &OWNER).is_err(), "length {len}");
    }
}

#[test]
fn another_owner_or_era_is_not_believed() {
    let (_, _, page) = chunk(&mut Prng::new(5));
    for owner in [Owner { cell_id: 1, ..OWNER }, Owner { device_id: 1, ..OWNER }, Owner { era: 4, ..OWNER }] {
        assert_eq!(decode_chunk(&page, &owner), Err(FormatError::Checksum));
    }
}

#[test]
fn random_bytes_with_a_good_checksum_do_not_panic() {
    // Whole in form, arbitrary in content: the checksum is made to fit.
    let mut prng = Prng::new(6);
    for _ in 0..20_000 {
        let (_, _, mut page) = chunk(&mut prng);
        let at = prng.between(8, 200) as usize;
        page[at] = prng.next_u64() as u8;
        let len = u32::from_le_bytes(page[12..16].try_into().expect("4 bytes")) as usize;
        if let Some(records) = page.get(CHUNK_FIXED_BYTES..CHUNK_FIXED_BYTES + len.min(4000)) {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&page[8..CHUNK_FIXED_BYTES]), records);
            page[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = decode_chunk(&page, &OWNER);
    }
}

#[test]
fn version_2_is_what_it_was() {
    let header = ChunkHeader { owner: OWNER, life: LIFE, position: Position(12), pages: 3, sequence: 41, durable: 0 };
    let name = BlockName { disk: 9, generation: 2, block: 1000 };
    let records = vec![
        Record::Entry {
            kind: EntryKind::Clean,
            name,
            mask: 0b1010,
            position: Position(13),
            sums: SmallVec::from_slice(&[0xdead_beef, 0xfeed_face]),
        },
        Record::Entry { kind: EntryKind::Trim, name, mask: 0b0001, position: Position(0), sums: SmallVec::new() },
        Record::Invalidation {
            segment: SegmentId(3),
            opening: Opening(4 << 32 | 5),
            position: Position(20),
            mask: 0b11,
            cleaned: false,
        },
        Record::Mark { disk: 9, generation: 2, region: 77, set: true },
        Record::Free { segment: SegmentId(6), opening: Opening(4 << 32 | 8) },
        Record::Link { segment: SegmentId(7), opening: Opening(3 << 32 | 1), sequence: 40, certain: true },
        Record::Kept { segment: SegmentId(8), opening: Opening(2 << 32 | 9), head: HeadKind::Keep, sequence: 39 },
        Record::PolicyNote { note: 3 },
    ];
    let mut page = vec![0; 4096];
    encode_chunk(&header, &records, &mut page);
    let used = CHUNK_FIXED_BYTES + records.iter().map(Record::encoded_bytes).sum::<usize>();
    let hex: String = page[..used].iter().map(|b| format!("{b:02x}")).collect();
    let fixture = include_str!("../fixtures/chunk_v3.hex");
    assert_eq!(hex, fixture.split_whitespace().collect::<String>(), "format version 3 is frozen");
    assert_eq!(decode_chunk(&page, &OWNER).expect("whole"), (header, records));
}

/// Of the same owner: another owner's bytes are nobody's, whatever their version.
#[test]
fn version_1_is_refused_by_its_number() {
    let hex = include_str!("../fixtures/chunk_v1.hex").split_whitespace().collect::<String>();
    let digits: Vec<char> = hex.chars().collect();
    let byte = |pair: &[char]| pair.iter().fold(0, |byte, digit| byte << 4 | digit.to_digit(16).expect("hex") as u8);
    let mut page: Vec<u8> = digits.chunks(2).map(byte).collect();
    page.resize(4096, 0);
    assert_eq!(decode_chunk(&page, &OWNER), Err(FormatError::Version(1)));
    let other = Owner { era: OWNER.era + 1, ..OWNER };
    assert_eq!(decode_chunk(&page, &other), Err(FormatError::Checksum));
}
