//! Goal: the fuzz targets start from input that is valid in the format as it is: what an older version wrote reaches no record.
//! Method: the inputs are made here, decoded, and compared with those committed; with `-- --ignored` they are written anew.
#![expect(clippy::disallowed_methods, reason = "the corpus is files of the repository")]

use flashcache::checkpoint::{
    Binding, Fate, IndexItem, IndexOut, Item, PART_FIXED_BYTES, Root, SegmentItem, Writer, decode_root, encode_root,
    visit_part,
};
use flashcache::format::*;
use flashcache::units::{Opening, Position, SegmentId};
use smallvec::smallvec;

// As in the targets.
const OWNER: Owner = Owner { cell_id: 0x1111_2222_3333_4444, device_id: 0xaaaa_bbbb, era: 3 };
const BINDING: Binding = Binding { owner: OWNER, token: 77 };
/// The fuzzers' first byte: owner, length and checksum are made to fit.
const FIT: u8 = 0x80;
/// A footer instead of a chunk, a part with items instead of the first.
const SECOND: u8 = 1;

const LIFE: SegmentLife =
    SegmentLife { segment: SegmentId(5), opening: Opening(0x0000_0007_0000_0009), head: HeadKind::Main };

fn header() -> ChunkHeader {
    ChunkHeader { owner: OWNER, life: LIFE, position: Position(12), pages: 8, sequence: 41, durable: 37 }
}

fn name() -> BlockName {
    BlockName { disk: 9, generation: 2, block: 1000 }
}

/// One of each kind.
fn records() -> Vec<Record> {
    let entry = |kind, mask, sums| Record::Entry { kind, name: name(), mask, position: Position(13), sums };
    let (segment, opening) = (SegmentId(3), Opening(0x0000_0006_0000_0004));
    vec![
        entry(EntryKind::Clean, 0b1010, smallvec![0xdead_beef, 0xfeed_face]),
        entry(EntryKind::Dirty, 1, smallvec![1]),
        entry(EntryKind::Mirror, 1, smallvec![2]),
        entry(EntryKind::Zero, 0x000f, smallvec![]),
        entry(EntryKind::Trim, 0x8000, smallvec![]),
        entry(EntryKind::Redo, 1, smallvec![3]),
        Record::Invalidation { segment, opening, position: Position(20), mask: 3, cleaned: false },
        Record::Invalidation { segment, opening, position: Position(24), mask: 1, cleaned: true },
        Record::Mark { disk: 9, generation: 2, region: 77, set: true },
        Record::Free { segment, opening },
        Record::Link { segment, opening, sequence: 40, certain: true },
        Record::Kept { segment, opening, head: HeadKind::Keep, sequence: 38 },
        Record::PolicyNote { note: 3 },
        Record::Chunk { position: Position(12), sequence: 41 },
    ]
}

fn chunk(records: &[Record]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    encode_chunk(&header(), records, &mut page);
    let (found, seen) = decode_chunk(&page, &OWNER).expect("the chunk is whole");
    assert_eq!((found, &seen[..]), (header(), records));
    page.truncate(CHUNK_FIXED_BYTES + records.iter().map(Record::encoded_bytes).sum::<usize>());
    page
}

fn footer() -> Vec<u8> {
    let footer = encode_footer(OWNER, LIFE, 41, 37, &records(), 1);
    let (trailer, seen) = decode_footer(&footer, &OWNER).expect("the footer is whole");
    assert_eq!((trailer.life, seen), (LIFE, records()));
    footer
}

/// A part without the zeroes at its end.
fn cut(mut part: Vec<u8>) -> Vec<u8> {
    let len = u32::from_le_bytes([part[12], part[13], part[14], part[15]]) as usize;
    part.truncate(PART_FIXED_BYTES + len);
    part
}

fn root() -> Vec<u8> {
    let segments = vec![SegmentId(7), SegmentId(8)];
    let root = Root { parts: 3, shape: [64, 512, 4], sequence: 1000, segments };
    let part = encode_root(&BINDING, &root);
    assert_eq!(decode_root(&BINDING, &part), Ok(root));
    cut(part)
}

/// One of each kind.
fn items() -> Vec<u8> {
    let mut writer = Writer::new(BINDING);
    let (opening, last_sequence) = (LIFE.opening, 41);
    let sealed = Fate::Sealed(HeadKind::Keep);
    let others = [
        Item::Disk { number: 1, generation: 2, id: 9 },
        Item::Segment(SegmentItem { segment: SegmentId(5), opening, fate: sealed, aged: true, last_sequence }),
        Item::Segment(SegmentItem { segment: SegmentId(6), opening, fate: Fate::Free, aged: false, last_sequence: 0 }),
        Item::PolicyNote(3),
        Item::Region { disk: 1, region: 12 },
    ];
    others.iter().for_each(|item| assert!(writer.push(item).is_none()));
    let mut entry = IndexItem::new(1, 1000, 17, [0b1010, 0b0010], 2);
    (entry.dirty, entry.aged) = (true, true);
    assert!(writer.push_entry(IndexOut { item: entry, sums: &[99, 1] }).is_none());
    let (number, part) = writer.end();
    let mut seen = 0;
    visit_part(&BINDING, number, &part, &mut |_| seen += 1).expect("the part is whole");
    assert_eq!((number, seen), (1, others.len() + 1));
    cut(part)
}

/// Target, name, content.
fn corpus() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let with = |choice: u8, bytes: &[u8]| [&[choice][..], bytes].concat();
    let (all, footer, root, items) = (chunk(&records()), footer(), root(), items());
    vec![
        ("decode", "chunk", with(0, &all)),
        ("decode", "chunk_fit", with(FIT, &all)),
        ("decode", "empty_fit", with(FIT, &chunk(&[]))),
        ("decode", "footer", with(SECOND, &footer)),
        ("decode", "footer_fit", with(FIT | SECOND, &footer)),
        ("checkpoint", "root", with(0, &root)),
        ("checkpoint", "items", with(SECOND, &items)),
        // The target puts the fixed bytes before these.
        ("checkpoint", "root_fit", with(FIT, &root[PART_FIXED_BYTES..])),
        ("checkpoint", "items_fit", with(FIT | SECOND, &items[PART_FIXED_BYTES..])),
    ]
}

fn path_of(target: &str, name: &str) -> String {
    format!("{}/fuzz/corpus/{target}/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
#[ignore = "writes the fuzzers' corpus anew"]
fn write_the_corpus() {
    for (target, name, bytes) in corpus() {
        std::fs::write(path_of(target, name), bytes).expect("the corpus can be written");
    }
}

#[test]
fn the_fuzzers_start_from_valid_input() {
    for (target, name, bytes) in corpus() {
        assert!(std::fs::read(path_of(target, name)).is_ok_and(|found| found == bytes), "{target} {name}");
    }
}
