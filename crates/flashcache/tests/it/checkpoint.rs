//! Goal: the checkpoint's version 3 never changes by accident, no bytes make the decoder panic, and no part of another
//! checkpoint, device, era or place is believed. Method: round trips of random items over several parts, single-bit flips,
//! truncations, and a fixture committed as hex.

use device::Prng;
use flashcache::checkpoint::*;
use flashcache::format::{FormatError, HeadKind, Owner};
use flashcache::units::{Opening, SegmentId};

const BINDING: Binding = Binding {
    owner: Owner { cell_id: 0x1111_2222_3333_4444, device_id: 0xaaaa_bbbb, era: 3 },
    token: 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
};

fn items() -> Vec<Item<'static>> {
    let item = |n, opening, fate, aged, last_sequence| {
        let opening = Opening(opening);
        Item::Segment(SegmentItem { segment: SegmentId(n), opening, fate, aged, last_sequence })
    };
    vec![
        Item::Disk { number: 0, generation: 2, id: 9 },
        Item::Disk { number: 4095, generation: u32::MAX, id: u64::MAX },
        item(5, 3 << 32 | 7, Fate::Free, false, 0),
        item(6, u64::MAX, Fate::Sealed(HeadKind::Main), true, u64::MAX),
        item(0, 1, Fate::Sealed(HeadKind::Dirty), false, 8),
        Item::Region { disk: 4095, region: u64::MAX },
    ]
}

fn entry(prng: &mut Prng) -> (IndexItem<'static>, Vec<u32>) {
    let mask = prng.between(1, 0xffff) as u16;
    let valid = mask & prng.between(1, 0xffff) as u16;
    let valid = if valid == 0 { mask } else { valid };
    let (disk, block) = (prng.below(4096) as u16, prng.below(1 << 44));
    let mut item = IndexItem::new(disk, block, prng.next_u64() as u32, [mask, valid], prng.below(4) as u8);
    (item.dirty, item.aged) = (prng.chance(1, 2), prng.chance(1, 2));
    (item, (0..mask.count_ones()).map(|_| prng.next_u64() as u32).collect())
}

type Said = (String, Vec<u32>);

fn said(item: &Item<'_>) -> Said {
    match item {
        Item::Index(i) => {
            let bare = format!(
                "{} {} {} {:x} {:x} {} {} {}",
                i.disk, i.block, i.page, i.mask, i.valid, i.frequency, i.dirty, i.aged
            );
            (bare, i.sums().collect())
        }
        other => (format!("{other:?}"), Vec::new()),
    }
}

/// Some parts, and what they say.
fn parts(entries: usize) -> (Vec<(u32, Vec<u8>)>, Vec<Said>) {
    let mut prng = Prng::new(7);
    let mut writer = Writer::new(BINDING);
    let (mut parts, mut expected) = (Vec::new(), Vec::new());
    // The fixture is older than the policy's note.
    for item in items().into_iter().chain((entries > 100).then_some(Item::PolicyNote(7))) {
        parts.extend(writer.push(&item));
        expected.push(said(&item));
    }
    for _ in 0..entries {
        let (item, sums) = entry(&mut prng);
        parts.extend(writer.push_entry(IndexOut { item, sums: &sums }));
        expected.push((said(&Item::Index(item)).0, sums));
    }
    assert_eq!(writer.parts() as usize, parts.len() + 2, "these, the one under way, and the first");
    parts.push(writer.end());
    (parts, expected)
}

#[test]
fn items_come_back_as_they_were_from_as_many_parts_as_it_takes() {
    let (parts, expected) = parts(5_000);
    assert!(parts.len() > 3);
    let mut found = Vec::new();
    for (n, (index, bytes)) in parts.iter().enumerate() {
        assert_eq!((*index as usize, bytes.len()), (n + 1, PART_BYTES));
        assert_eq!(visit_part(&BINDING, *index, bytes, &mut |item| found.push(said(&item))), Ok(()));
    }
    assert!(found == expected);
}

#[test]
fn the_first_part_comes_back_as_it_was() {
    for count in [1, 2, CHECKPOINT_SEGMENTS_MAX] {
        let segments = (0..count as u32).map(|n| SegmentId(n * 3)).collect();
        let root = Root { parts: 17, shape: [100, 512, 4], sequence: 1 << 40, segments };
        let bytes = encode_root(&BINDING, &root);
        assert_eq!(bytes.len(), PART_BYTES);
        assert_eq!(decode_root(&BINDING, &bytes), Ok(root));
    }
}

#[test]
fn nothing_of_another_device_era_token_or_place_is_believed() {
    let (parts, _) = parts(10);
    let (index, bytes) = &parts[0];
    let owner = BINDING.owner;
    for other in [
        Binding { token: BINDING.token + 1, ..BINDING },
        Binding { owner: Owner { era: 4, ..owner }, ..BINDING },
        Binding { owner: Owner { device_id: 1, ..owner }, ..BINDING },
        Binding { owner: Owner { cell_id: 1, ..owner }, ..BINDING },
    ] {
        assert!(visit_part(&other, *index, bytes, &mut |_| {}).is_err());
    }
    assert!(visit_part(&BINDING, index + 1, bytes, &mut |_| {}).is_err());
    assert!(decode_root(&BINDING, bytes).is_err(), "nor is it the first part");
}

#[test]
fn a_flipped_bit_is_never_believed_nor_a_truncation() {
    let (parts, _) = parts(40);
    let (index, bytes) = &parts[0];
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    for bit in 0..used * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(visit_part(&BINDING, *index, &bad, &mut |_| {}).is_err(), "bit {bit}");
    }
    for len in 0..used {
        assert!(visit_part(&BINDING, *index, &bytes[..len], &mut |_| {}).is_err(), "length {len}");
    }
}

/// The two parts of a fixture.
fn parts_of(fixture: &str) -> [Vec<u8>; 2] {
    let mut pieces = fixture.split("\n\n").map(|piece| {
        let hex: String = piece.lines().collect();
        let byte = |n: usize| u8::from_str_radix(&hex[n * 2..n * 2 + 2], 16).expect("hex");
        let mut bytes: Vec<u8> = (0..hex.len() / 2).map(byte).collect();
        bytes.resize(PART_BYTES, 0);
        bytes
    });
    [(); 2].map(|()| pieces.next().expect("a part"))
}

#[test]
fn the_fixture_means_what_it_meant() {
    let (parts, expected) = parts(2);
    let root = Root { parts: 2, shape: [8, 512, 4], sequence: 77, segments: vec![SegmentId(3), SegmentId(1)] };
    let mut text = String::new();
    for bytes in [encode_root(&BINDING, &root), parts[0].1.clone()] {
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        for line in bytes[..used].chunks(32) {
            line.iter().for_each(|byte| text += &format!("{byte:02x}"));
            text.push('\n');
        }
        text.push('\n');
    }
    let fixture = include_str!("../fixtures/checkpoint_v4.hex");
    assert_eq!(text, fixture, "what is on flash must stay readable");
    let [first, second] = parts_of(fixture);
    assert_eq!(decode_root(&BINDING, &first), Ok(root));
    let mut found = Vec::new();
    assert_eq!(visit_part(&BINDING, 1, &second, &mut |item| found.push(said(&item))), Ok(()));
    assert!(found == expected);
    // Recovery goes by the log then: version 1 did not say which chunk of a segment is its last, version 2 had generations of segments, the
    // checksums of version 3 were CRCs.
    let refused = [
        include_str!("../fixtures/checkpoint_v1.hex"),
        include_str!("../fixtures/checkpoint_v2.hex"),
        include_str!("../fixtures/checkpoint_v3.hex"),
    ];
    for (version, old) in refused.iter().enumerate() {
        let [first, second] = parts_of(old);
        let refused = FormatError::Version(version as u16 + 1);
        assert_eq!(decode_root(&BINDING, &first), Err(refused));
        assert_eq!(visit_part(&BINDING, 1, &second, &mut |_| {}), Err(refused));
    }
}
