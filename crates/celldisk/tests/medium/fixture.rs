//! Goal: format version 1 stays what it is. A device of version 1, committed as text, must open, mean what it meant and be
//! written back byte for byte.
//!
//! `fixtures/format-1.hex` holds the lines of 16 bytes that are not all zero, `OFFSET: BYTES`. To write it anew, which only a
//! new format version may make necessary: `cargo test -p celldisk --test medium -- --ignored write_the_fixture`.

use crate::slices::spec;
use crate::support::{Image, MIB, Power, TestDisk, Whole, cell, geometry, open, restarted, run};
use celldisk::layout::DATA_OFFSET;
use celldisk::section::SectionKind;
use celldisk::{
    CachingMode, CachingPolicy, Catalog, CellDisk, CellId, DeviceId, Extent, FlashCacheSpec, FlashLogSpec, FlashState,
    GridDiskId, Label, Place, Purpose, Renewal, Role, Stamp, TermMark,
};
use device::{Class, Prng, WallTime};
use std::fmt::Write;
use std::sync::Arc;

const SIZE: u64 = 64 * MIB;
const DISK: &str = include_str!("../fixtures/format-1-disk.hex");
const FLASH: &str = include_str!("../fixtures/format-1-flash.hex");

/// A cell that uses every field of the format.
fn devices() -> Vec<Arc<TestDisk>> {
    let (_, media) = cell(1, 1, SIZE);
    let store = open(&media, 0x7e51).unwrap().store;
    let mut redo = spec(&store, "CD_01_c1", "REDO_CD_00_c1", 3 * MIB);
    redo.purpose = Purpose::Redo;
    redo.comment = "für Müller".to_owned();
    redo.available_to = "db1,db2".to_owned();
    run(store.create_grid_disk(redo, &mut |_, _| ())).whole();
    run(store.create_grid_disk(spec(&store, "CD_01_c1", "GONE", MIB), &mut |_, _| ())).whole();
    run(store.create_grid_disk(spec(&store, "CD_01_c1", "DATA_CD_00_c1", 10 * MIB), &mut |_, _| ())).whole();
    run(store.drop_grid_disk(GridDiskId(2))).whole();
    run(store.resize_grid_disk(GridDiskId(1), 6 * MIB, &mut |_, _| ())).whole();
    run(store.begin_mode_switch(GridDiskId(3), CachingMode::WriteBack)).whole();
    run(store.alter_grid_disk(GridDiskId(3), |g| {
        g.caching_policy = CachingPolicy::Keep;
        g.cache_generation = 77;
        g.asm.insert("asmDiskgroupName".to_owned(), "DATA".to_owned());
    }))
    .whole();
    let (devices, created) = (Vec::new(), WallTime(6));
    let log = FlashLogSpec {
        id: Stamp(0x106),
        devices: devices.clone(),
        size_per_device_bytes: 2 * MIB,
        outlier_ms: 500,
        created,
    };
    run(store.create_flash_log(log)).whole();
    let size_per_device_bytes = Some(16 * MIB);
    let (id, segment_bytes, block_bytes) = (Stamp(0xcac4e), 2 << 20, 16 << 10);
    let cache = FlashCacheSpec { id, devices, size_per_device_bytes, segment_bytes, block_bytes, created };
    run(store.create_flash_cache(cache)).whole();
    run(store.alter_cell(|cell| {
        cell.iorm_plan = "objective=auto".to_owned();
        cell.attributes.insert("flashCacheMode".to_owned(), "WriteBack".to_owned());
    }))
    .whole();
    let pairs = [(DeviceId(1), DeviceId(2))];
    assert!(run(store.renew_stamps(Renewal::Open, &pairs, &mut Prng::new(1))).is_empty());
    let disk = store.cell_disk(DeviceId(1)).unwrap();
    run(disk.update_label(|label| {
        label.flash_members.get_mut(&DeviceId(2)).unwrap().state = FlashState::Dirty;
        label.dirty.set(9 * MIB, 3 * MIB);
        label.ring_generation = 5;
        label.ring_generation_dead = 4;
        label.stamp_next = Stamp(0x4e87);
    }))
    .unwrap();
    let flash = store.cell_disk(DeviceId(2)).unwrap();
    run(flash.update_label(|label| {
        label.class = Class::Ephemeral;
        label.disk_stamps.get_mut(&DeviceId(1)).unwrap().next = Stamp(0x4e87);
    }))
    .unwrap();
    media
}

fn to_hex(image: &Image) -> String {
    let mut text = String::new();
    for offset in (0..DATA_OFFSET).step_by(512) {
        for (n, line) in image.read(offset, 512).chunks_exact(16).enumerate().filter(|(_, l)| l.iter().any(|&b| b != 0))
        {
            write!(text, "{:06x}:", offset as usize + n * 16).unwrap();
            line.iter().for_each(|byte| write!(text, " {byte:02x}").unwrap());
            text.push('\n');
        }
    }
    text
}

fn from_hex(text: &str) -> Image {
    let mut image = Image::default();
    for line in text.lines() {
        let (offset, bytes) = line.split_once(": ").unwrap();
        let offset = u64::from_str_radix(offset, 16).unwrap();
        let bytes: Vec<u8> = bytes.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let mut sector = image.read(offset / 512 * 512, 512);
        sector[offset as usize % 512..][..16].copy_from_slice(&bytes);
        image.write(offset / 512 * 512, &sector);
    }
    image
}

#[test]
#[ignore = "writes the fixture anew: only for a new format version"]
#[expect(clippy::disallowed_methods, reason = "a tool, not a test")]
fn write_the_fixture() {
    let media = devices();
    for (medium, name) in media.iter().zip(["disk", "flash"]) {
        let path = format!("{}/tests/fixtures/format-1-{name}.hex", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, to_hex(&medium.visible())).unwrap();
    }
}

/// The fuzzers' first byte: place 0, a payload follows.
const PAYLOAD: u8 = 0;
/// Place 0, a whole section follows, its checksums repaired.
const SECTION: u8 = 4;

/// Valid inputs for the fuzz targets, cut where only zeroes follow: label target, catalog target.
fn corpus() -> [Vec<(&'static str, Vec<u8>)>; 2] {
    let place = Place::ALL[0];
    let (mut labels, mut catalogs) = (Vec::new(), Vec::new());
    for (fixture, payload_name, section_name) in [(DISK, "disk", "disk-section"), (FLASH, "flash", "flash-section")] {
        let image = from_hex(fixture);
        for (kind, inputs) in [(SectionKind::Label, &mut labels), (SectionKind::Catalog, &mut catalogs)] {
            let bytes = image.read(kind.offset(place), 32 << 10);
            let end = 128 + u32::from_le_bytes(bytes[72..76].try_into().unwrap()) as usize;
            let mut payload = bytes[128..end].to_vec();
            if kind == SectionKind::Label {
                payload.truncate(payload.iter().rposition(|&b| b != 0).unwrap() + 1);
            }
            inputs.push((payload_name, [&[PAYLOAD][..], &payload].concat()));
            inputs.push((section_name, [&[SECTION][..], &bytes[..end]].concat()));
        }
    }
    [labels, catalogs]
}

#[test]
#[ignore = "writes the fuzzers' corpus anew"]
#[expect(clippy::disallowed_methods, reason = "a tool, not a test")]
fn write_the_corpus() {
    for (target, inputs) in ["label", "catalog"].iter().zip(corpus()) {
        for (name, bytes) in inputs {
            std::fs::write(format!("{}/fuzz/corpus/{target}/{name}", env!("CARGO_MANIFEST_DIR")), bytes).unwrap();
        }
    }
}

#[test]
fn the_fuzzers_start_from_valid_input() {
    let committed: [[&[u8]; 4]; 2] = [
        [
            include_bytes!("../../fuzz/corpus/label/disk"),
            include_bytes!("../../fuzz/corpus/label/disk-section"),
            include_bytes!("../../fuzz/corpus/label/flash"),
            include_bytes!("../../fuzz/corpus/label/flash-section"),
        ],
        [
            include_bytes!("../../fuzz/corpus/catalog/disk"),
            include_bytes!("../../fuzz/corpus/catalog/disk-section"),
            include_bytes!("../../fuzz/corpus/catalog/flash"),
            include_bytes!("../../fuzz/corpus/catalog/flash-section"),
        ],
    ];
    for (inputs, committed) in corpus().iter().zip(committed) {
        for ((name, bytes), committed) in inputs.iter().zip(committed) {
            assert!(bytes == committed, "{name}");
        }
    }
}

#[test]
fn the_code_still_writes_version_1() {
    for (medium, fixture) in devices().iter().zip([DISK, FLASH]) {
        assert!(to_hex(&medium.visible()) == fixture, "the bytes written for the same cell have changed");
        assert!(fixture.len() < 64 << 10);
    }
}

#[test]
fn the_fixture_means_what_it_meant() {
    let images = [from_hex(DISK), from_hex(FLASH)];
    let media = restarted(&images, &geometry(SIZE), &Power::default());
    let disk = run(CellDisk::open(media[0].device())).unwrap();
    let flash = run(CellDisk::open(media[1].device())).unwrap();
    assert_eq!((disk.damaged_count(), flash.damaged_count()), (0, 0));
    assert!(media[0].visible() == images[0], "opening a clean device writes nothing");

    let label = disk.label();
    assert_eq!((label.cell_id, label.device_id, label.device_generation), (CellId(0xce11), DeviceId(1), 1));
    assert_eq!((label.role, label.class, label.name.as_str()), (Role::Disk, Class::Durable, "CD_01_c1"));
    assert_eq!((label.size_bytes, label.page_bytes, label.au_bytes), (SIZE, 4096, 512 << 10));
    assert_eq!((label.created, label.sequence), (WallTime(1_700_000_000_000_000_000), 4));
    assert_eq!((label.stamp_next, label.clean_stop), (Stamp(0x4e87), false));
    assert_eq!((label.ring_generation, label.ring_generation_dead, label.cache_era), (5, 4, 0));
    assert_eq!(label.dirty.ranges(), [(9 * MIB, 3 * MIB)]);
    let member = label.flash_members[&DeviceId(2)];
    assert_eq!((member.generation, member.state, member.paired_stamp), (1, FlashState::Dirty, label.stamp));

    let flash_label = flash.label();
    assert_eq!((flash_label.role, flash_label.class, flash_label.cache_era), (Role::Flash, Class::Ephemeral, 1));
    let stamp = flash_label.disk_stamps[&DeviceId(1)];
    assert_eq!((stamp.current, stamp.next, stamp.generation), (label.stamp, Stamp(0x4e87), 1));
    assert!(Label::stamps_match(&label, &flash_label));

    let catalog = disk.catalog_replica().unwrap();
    assert_eq!(catalog, flash.catalog_replica().unwrap());
    assert_eq!((catalog.cell_name.as_str(), catalog.created, catalog.instance_stamp), ("c1", WallTime(1), Stamp(0xaa)));
    let now = TermMark { term: 2, stamp: Stamp(0x7e51), sequence: 12 };
    assert_eq!((catalog.lineage.now, catalog.lineage.changed), (now, now));
    assert_eq!(catalog.lineage.history, [TermMark { term: 1, stamp: Stamp(0xbb), sequence: 1 }]);
    assert_eq!(catalog.next_grid_disk_id, GridDiskId(4));
    let member = &catalog.members[&DeviceId(2)];
    assert_eq!((member.name.as_str(), member.au_bytes, member.au_count), ("FD_02_c1", 512 << 10, 120));
    let redo = catalog.grid_disk_named("redo_cd_00_c1").unwrap();
    assert_eq!((redo.id, redo.size_bytes, redo.purpose), (GridDiskId(1), 6 * MIB, Purpose::Redo));
    assert_eq!((redo.comment.as_str(), redo.available_to.as_str()), ("für Müller", "db1,db2"));
    assert_eq!(redo.extents, [Extent { start_au: 0, count_au: 8 }, Extent { start_au: 28, count_au: 4 }]);
    let data = &catalog.grid_disks[&GridDiskId(3)];
    assert_eq!((data.cache_generation, data.caching_policy), (77, CachingPolicy::Keep));
    assert_eq!(data.mode_switch.map(|s| (s.from, s.to)), Some((CachingMode::WriteThrough, CachingMode::WriteBack)));
    assert_eq!(data.asm["asmDiskgroupName"], "DATA");
    let cache = catalog.flash_cache.as_ref().unwrap();
    assert_eq!((cache.id, cache.size_per_device_bytes), (Stamp(0xcac4e), 16 * MIB));
    assert_eq!((cache.segment_bytes, cache.block_bytes), (2 << 20, 16 << 10));
    assert_eq!(cache.regions[&DeviceId(2)], [Extent { start_au: 4, count_au: 32 }]);
    assert_eq!(catalog.flash_log.as_ref().unwrap().regions[&DeviceId(2)], [Extent { start_au: 0, count_au: 4 }]);
    assert_eq!(
        (catalog.iorm_plan.as_str(), &catalog.attributes["flashCacheMode"][..]),
        ("objective=auto", "WriteBack")
    );
}

#[test]
fn every_section_is_written_back_byte_for_byte() {
    for fixture in [DISK, FLASH] {
        let image = from_hex(fixture);
        let mut again = Image::default();
        for place in Place::ALL {
            let room = |kind: SectionKind| image.read(kind.offset(place), kind.room_bytes() as usize);
            let label = Label::decode(place, &room(SectionKind::Label)).unwrap();
            again.write(SectionKind::Label.offset(place), &label.encode(place));
            let (device_id, catalog) = Catalog::decode(place, &room(SectionKind::Catalog)).unwrap();
            assert_eq!(device_id, label.device_id);
            again.write(SectionKind::Catalog.offset(place), &catalog.encode(device_id, place));
        }
        // A longer catalog that was there before may show behind the end of a shorter one; nothing else may.
        for place in Place::ALL {
            for kind in [SectionKind::Label, SectionKind::Catalog] {
                let written = again.read(kind.offset(place), 8192);
                let payload_bytes = u32::from_le_bytes(written[72..76].try_into().unwrap()) as usize;
                let len = (128 + payload_bytes).next_multiple_of(4096);
                assert!(again.read(kind.offset(place), len) == image.read(kind.offset(place), len), "{place:?}");
            }
        }
    }
}
