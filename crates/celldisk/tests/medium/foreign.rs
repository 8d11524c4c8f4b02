//! Goal: nobody's data is destroyed by mistake, and a cell disk is recognised whatever happened to part of it.

use crate::support::{Image, MIB, Power, TestDisk, geometry, options, run};
use celldisk::section::SectionKind;
use celldisk::{CellDisk, CellDiskError, DeviceId, Place, Probe, Role, Slot, probe};
use device::Prng;

const SIZE: u64 = 64 * MIB;

fn with(patches: &[(u64, &[u8])]) -> std::sync::Arc<TestDisk> {
    let medium = TestDisk::new(SIZE);
    for (offset, bytes) in patches {
        let start = offset / 512 * 512;
        let end = (offset + bytes.len() as u64).next_multiple_of(512);
        let mut sectors = medium.visible().read(start, (end - start) as usize);
        let at = (offset - start) as usize;
        sectors[at..at + bytes.len()].copy_from_slice(bytes);
        medium.patch(start, &sectors);
    }
    medium
}

#[test]
fn file_systems_and_unknown_data_are_refused_and_force_overrides() {
    let cases: [(u64, &[u8], &str); 9] = [
        (1080, &[0x53, 0xef], "an ext2/3/4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
        (4086, b"SWAPSPACE2", "a swap area"),
        (512, b"LABELONE", "an LVM physical volume"),
        (32, b"ORCLDISK", "an Oracle ASM disk"),
        (510, &[0x55, 0xaa], "an MBR partition table or boot sector"),
        (SIZE - 512, b"EFI PART", "a backup GPT partition table"),
        (MIB - 512, &[1], "unknown data"),
    ];
    for (offset, bytes, what) in cases {
        let medium = with(&[(offset, bytes)]);
        let before = medium.visible();
        assert_eq!(run(probe(&medium.device())).unwrap(), Probe::Foreign { what: what.to_owned() });
        let failed = run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap_err();
        assert_eq!(failed, CellDiskError::Foreign { what: what.to_owned() });
        assert!(failed.hint().unwrap().contains("--force"));
        assert!(run(CellDisk::open(medium.device())).is_err());
        assert!(medium.visible() == before, "refusing changes nothing");

        let mut force = options(1, Role::Disk);
        force.force = true;
        run(CellDisk::format(medium.device(), force)).unwrap();
        let again = TestDisk::with(geometry(SIZE), medium.after_power_cut(&mut Prng::new(1)), Power::default());
        assert!(matches!(run(probe(&again.device())).unwrap(), Probe::Flashcell(_)));
        assert!(
            again.visible().read(offset / 512 * 512, 512)[(offset % 512) as usize..].iter().all(|&b| b == 0)
                || (4096..MIB).contains(&offset),
            "no signature is left for other tools to find"
        );
    }
}

#[test]
fn blank_devices_of_every_size() {
    for size in [0, 4096, 10_000, MIB - 512, MIB, 4 * MIB, 4 * MIB + 512, SIZE] {
        let medium = TestDisk::with(geometry(size), Image::default(), Power::default());
        assert_eq!(run(probe(&medium.device())).unwrap(), Probe::Blank, "{size} bytes");
        assert_eq!(run(CellDisk::open(medium.device())).unwrap_err(), CellDiskError::Blank);
    }
}

#[test]
fn a_cell_disk_is_not_formatted_again_by_mistake() {
    let medium = TestDisk::new(SIZE);
    run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    let failed = run(CellDisk::format(medium.device(), options(2, Role::Disk))).unwrap_err();
    assert!(matches!(&failed, CellDiskError::InUse { name, .. } if name == "CD_01_c1"), "{failed}");
    let mut force = options(2, Role::Flash);
    force.force = true;
    let disk = run(CellDisk::format(medium.device(), force)).unwrap();
    assert_eq!((disk.id(), disk.catalog_replica()), (DeviceId(2), None));
}

#[test]
fn a_wiped_head_still_shows_a_cell_disk() {
    let medium = TestDisk::new(SIZE);
    let disk = run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    // dd if=/dev/zero bs=1M count=2: both first copies are gone.
    let mut image = medium.visible();
    image.zero(0, 2 * MIB);
    let wiped = TestDisk::with(geometry(SIZE), image, Power::default());
    assert_eq!(run(probe(&wiped.device())).unwrap(), Probe::Flashcell(Box::new((*disk.label()).clone())));
    assert_eq!(run(CellDisk::open(wiped.device())).unwrap().label(), disk.label());
}

#[test]
fn a_file_system_made_over_a_cell_disk_wins() {
    let medium = TestDisk::new(SIZE);
    run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    let mut sector = vec![0; 512];
    sector[56..58].copy_from_slice(&[0x53, 0xef]);
    medium.patch(1024, &sector);
    let what = "an ext2/3/4 file system over a former cell disk".to_owned();
    assert_eq!(run(probe(&medium.device())).unwrap(), Probe::Foreign { what: what.clone() });
    assert_eq!(run(CellDisk::open(medium.device())).unwrap_err(), CellDiskError::Foreign { what });
    // Rot in the unused page is not a file system.
    medium.patch(1024, &[0x11; 512]);
    assert!(run(CellDisk::open(medium.device())).is_ok());
}

#[test]
fn damage_and_newer_versions_are_told() {
    let medium = TestDisk::new(SIZE);
    run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    let good = medium.visible();
    let mut rotten = good.clone();
    for place in Place::ALL {
        let offset = SectionKind::Label.offset(place) + 512;
        rotten.write(offset, &[0xff; 512]);
    }
    let medium = TestDisk::with(geometry(SIZE), rotten, Power::default());
    let Probe::Damaged { why } = run(probe(&medium.device())).unwrap() else { panic!("damaged") };
    assert!(why.starts_with("at 0: checksum of the payload does not match; at 1048576: "), "{why}");
    assert!(matches!(run(CellDisk::open(medium.device())), Err(CellDiskError::Damaged { .. })));
    let failed = run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap_err();
    assert!(matches!(failed, CellDiskError::Damaged { .. }));

    // One header of version 2 is enough to keep hands off, whatever the other slot says.
    let mut newer = good;
    let offset = SectionKind::Label.offset(Place { slot: Slot::B, mirror: true });
    let mut header = newer.read(offset, 512);
    header[8] = 2;
    let crc = crc32c::crc32c(&header[..124]);
    header[124..128].copy_from_slice(&crc.to_le_bytes());
    newer.write(offset, &header);
    let medium = TestDisk::with(geometry(SIZE), newer, Power::default());
    let failed = run(CellDisk::open(medium.device())).unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the device was written by a newer release: format version 2 is newer than 1, the newest this release knows"
    );
    assert!(matches!(run(probe(&medium.device())).unwrap(), Probe::Newer(_)));
    assert!(matches!(run(CellDisk::format(medium.device(), options(1, Role::Disk))), Err(CellDiskError::Newer(_))));
}

#[test]
fn labels_of_two_devices_on_one_are_damage() {
    let (one, two) = (TestDisk::new(SIZE), TestDisk::new(SIZE));
    run(CellDisk::format(one.device(), options(1, Role::Disk))).unwrap();
    run(CellDisk::format(two.device(), options(2, Role::Disk))).unwrap();
    let offset = SectionKind::Label.offset(Place { slot: Slot::A, mirror: false });
    one.patch(offset, &two.visible().read(offset, 20 << 10));
    assert!(matches!(run(CellDisk::open(one.device())), Err(CellDiskError::Damaged { .. })));
}
