//! Goal: a cell has as many grid disks as it may, a device says which format its catalog is in, and a cell whose catalog is full still
//! starts, and drops and alters grid disks. Method: catalogs filled to each of the two limits.

use crate::slices::{create, spec};
use crate::support::{Image, MIB, TestDisk, Whole, open, options, run};
use celldisk::layout::{
    CATALOG_OFFSET, CATALOG_PACKED_VERSION, FORMAT_VERSION, GRID_DISKS_MAX, GRID_DISKS_UNPACKED_MAX, LABEL_OFFSET,
    Place, TERMS_MAX,
};
use celldisk::{
    CatalogError, CellDisk, CellDiskError, CellStore, ChangeError, Extent, GridDisk, GridDiskError, GridDiskId, Role,
    Stamp,
};
use device::WallTime;
use std::sync::Arc;

const AU: u64 = 64 << 10;
/// Grid disks are made three days apart.
const APART_NS: u64 = 3 * 86_400_000_000_000;

fn nothing(_: u64, _: u64) {}

fn one_disk() -> (Arc<CellStore>, Arc<TestDisk>) {
    let medium = TestDisk::new(1200 * MIB);
    let small = celldisk::FormatOptions { au_bytes: Some(AU), ..options(1, Role::Disk) };
    let disk = run(CellDisk::format(medium.device(), small)).unwrap();
    let store = run(CellStore::create("c1", vec![disk], WallTime(1), Stamp(1), Stamp(2))).unwrap();
    (store, medium)
}

/// Add grid disks up to `count`, as a copy of one that was made.
fn fill(store: &CellStore, count: usize, change: impl Fn(&mut GridDisk)) -> Result<(), ChangeError<()>> {
    let filled = run(store.change(|catalog| {
        let first = catalog.grid_disks.first_key_value().map(|(_, first)| first.clone()).ok_or(())?;
        let au_used = catalog.grid_disks.values().flat_map(|g| &g.extents).map(|e| e.end_au()).max().unwrap_or(0);
        for n in 0..(count - catalog.grid_disks.len()) as u64 {
            let id = catalog.next_grid_disk_id;
            let mut g = GridDisk { id, name: format!("{:x>24}", id.0), ..first.clone() };
            g.extents = vec![Extent { start_au: (au_used + n) as u32, count_au: 1 }];
            g.created = WallTime(first.created.0 + id.0 * APART_NS);
            change(&mut g);
            catalog.grid_disks.insert(id, g);
            catalog.next_grid_disk_id = GridDiskId(id.0 + 1);
        }
        Ok(())
    }));
    filled.map(|changed| assert!(changed.failed.is_empty()))
}

/// The formats of label and catalog in all places.
fn formats(image: &Image) -> [Vec<u32>; 2] {
    [LABEL_OFFSET, CATALOG_OFFSET].map(|section| {
        let word = |place: &Place| image.read(place.offset() + section, 512)[8..12].try_into().unwrap();
        Place::ALL.iter().map(word).map(u32::from_le_bytes).collect()
    })
}

#[test]
fn a_cell_has_sixteen_thousand_grid_disks_and_goes_back_to_the_old_format_with_fewer() {
    let (store, medium) = one_disk();
    create(&store, "first", AU);
    assert_eq!(formats(&medium.visible()), [[FORMAT_VERSION; 4]; 2]);
    fill(&store, GRID_DISKS_UNPACKED_MAX, |_| ()).unwrap();
    assert_eq!(formats(&medium.visible()), [[FORMAT_VERSION; 4]; 2], "as every release knows it");
    fill(&store, GRID_DISKS_MAX, |_| ()).unwrap();
    let packed = [[FORMAT_VERSION; 4], [CATALOG_PACKED_VERSION; 4]];
    assert_eq!(formats(&medium.visible()), packed, "other releases refuse it");
    let then = store.catalog();
    drop(store);
    let store = open(std::slice::from_ref(&medium), 3).unwrap().store;
    assert_eq!(store.catalog().grid_disks, then.grid_disks);
    let one_more = run(store.create_grid_disk(spec(&store, "CD_01_c1", "one_more", 1), &mut nothing));
    assert!(matches!(
        one_more,
        Err(GridDiskError::Invalid(CatalogError::Limit { what: "grid disks", max: GRID_DISKS_MAX }))
    ));
    run(store.drop_grid_disk(GridDiskId(2))).whole();
    let made = create(&store, "one_more", AU);
    assert_eq!((made.id, made.extents[0].start_au), (GridDiskId(GRID_DISKS_MAX as u64 + 1), 1), "in the gap");
    run(store.change(|catalog| {
        catalog.grid_disks.retain(|id, _| id.0 % 16 == 1);
        Ok::<(), ()>(())
    }))
    .whole();
    assert_eq!(store.catalog().grid_disks.len(), GRID_DISKS_UNPACKED_MAX + 1);
    assert_eq!(formats(&medium.visible()), packed);
    run(store.drop_grid_disk(made.id)).whole();
    assert_eq!(formats(&medium.visible()), [[FORMAT_VERSION; 4]; 2]);
    let then = store.catalog();
    drop(store);
    assert_eq!(open(&[medium], 4).unwrap().store.catalog().grid_disks, then.grid_disks);
}

#[test]
fn a_full_catalog_is_told_as_that_and_hinders_no_start_no_drop_and_no_change_that_takes_no_room() {
    let (mut store, medium) = one_disk();
    create(&store, "first", AU);
    let wordy = |g: &mut GridDisk| g.comment = "c".repeat(128);
    let (mut fits, mut count) = (1, GRID_DISKS_MAX);
    // Down to where one more does not fit.
    while fits + 1 < count {
        let middle = fits + (count - fits) / 2;
        match fill(&store, middle, wordy) {
            Ok(()) => fits = middle,
            Err(ChangeError::Invalid(CatalogError::Full { .. })) => count = middle,
            other => panic!("{other:?}"),
        }
    }
    assert!((4_000..8_000).contains(&fits), "{fits} of 150 to 200 bytes each");
    let full = run(store.create_grid_disk(
        celldisk::GridDiskSpec { comment: "c".repeat(128), ..spec(&store, "CD_01_c1", "one_more", AU) },
        &mut nothing,
    ));
    let Err(GridDiskError::Invalid(error @ CatalogError::Full { .. })) = full else { panic!("{full:?}") };
    assert!(error.hint().unwrap().contains("comments"));
    for term in 0..TERMS_MAX as u128 + 6 {
        drop(store);
        store = open(std::slice::from_ref(&medium), 3 + term).unwrap().store;
    }
    assert_eq!(store.catalog().lineage.history.len(), TERMS_MAX);
    let id = GridDiskId(7);
    run(store.alter_grid_disk(id, |g| g.read_only = false)).whole();
    run(store.alter_grid_disk(id, |g| g.comment = "d".repeat(128))).whole();
    let longer = run(store.alter_grid_disk(id, |g| g.available_to = "a".repeat(100)));
    assert!(matches!(longer, Err(GridDiskError::Invalid(CatalogError::Full { .. }))), "{longer:?}");
    run(store.drop_grid_disk(GridDiskId(8))).whole();
    // What starts have taken is not free again; a few more are.
    (9..40).for_each(|id| drop(run(store.drop_grid_disk(GridDiskId(id))).whole()));
    create(&store, "one_more", AU);
}

#[test]
fn a_catalog_of_a_newer_release_is_refused_as_that() {
    let (store, medium) = one_disk();
    create(&store, "first", AU);
    drop(store);
    let mut bytes = medium.visible().read(Place::ALL[1].offset() + CATALOG_OFFSET, 4096);
    bytes[8] = 3;
    crate::round_trip::repair(&mut bytes);
    medium.patch(Place::ALL[1].offset() + CATALOG_OFFSET, &bytes);
    let before = medium.visible();
    let refused = run(CellDisk::open(medium.device()));
    let Err(CellDiskError::Newer(error)) = refused else { panic!("{:?}", refused.map(|disk| disk.id())) };
    assert!(error.to_string().contains("3 is newer than 2"), "{error}");
    assert!(medium.visible() == before, "left as it is");
}
