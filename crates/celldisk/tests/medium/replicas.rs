//! Goal: the right catalog wins whichever devices are there, and a failing device harms only itself.

use crate::slices::create;
use crate::support::{
    CELL, Fault, Image, MIB, Power, TestDisk, Whole, cell, geometry, open, open_options, options, restarted, run,
};
use celldisk::{
    CellDisk, CellDiskError, CellId, CellStore, ChangeError, DeviceId, GridDiskError, MemberStatus, OpenOptions, Role,
    Stamp, StoreError,
};
use device::{Class, Device, FailKind, Verb, WallTime};
use futures_executor::LocalPool;
use futures_util::task::LocalSpawnExt;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

const SIZE: u64 = 64 * MIB;
const AU: u64 = 512 << 10;

fn plan(store: &CellStore, text: &str) -> Result<usize, ChangeError<Infallible>> {
    let change = store.change(|catalog| {
        text.clone_into(&mut catalog.iorm_plan);
        Ok::<(), Infallible>(())
    });
    run(change).map(|changed| changed.failed.len())
}

fn images(media: &[Arc<TestDisk>]) -> Vec<Image> {
    media.iter().map(|medium| medium.visible()).collect()
}

fn some(media: &[Arc<TestDisk>], which: &[usize]) -> Vec<Arc<TestDisk>> {
    which.iter().map(|n| media[*n].clone()).collect()
}

#[test]
fn order_of_devices_means_nothing() {
    let (store, media) = cell(2, 1, SIZE);
    create(&store, "g", AU);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let opened = open(&some(&media, &order), 2).unwrap();
        assert!(opened.store.catalog().same_content(&store.catalog()));
        assert_eq!(opened.report, celldisk::StoreReport::default());
    }
}

#[test]
fn missing_members_are_named_and_nothing_stops() {
    let (store, media) = cell(2, 1, SIZE);
    let g = create(&store, "g", AU);
    let opened = open(&some(&media, &[1]), 2).unwrap();
    assert_eq!(opened.report.missing, ["CD_01_c1", "FD_03_c1"]);
    assert!(matches!(opened.store.members()[&DeviceId(1)], MemberStatus::Missing));
    assert!(matches!(opened.store.members()[&DeviceId(2)], MemberStatus::InService(_)));
    assert_eq!(opened.store.slice(g.id).map(|_| ()), Err(GridDiskError::NotPresent { name: "CD_01_c1".to_owned() }));
    // A grid disk whose disk is missing can be dropped, not grown.
    let grown = run(opened.store.resize_grid_disk(g.id, 2 * AU, &mut |_, _| ()));
    assert_eq!(grown, Err(GridDiskError::NotPresent { name: "CD_01_c1".to_owned() }));
    run(opened.store.drop_grid_disk(g.id)).whole();
}

#[test]
fn an_absent_copy_does_not_come_back_to_life() {
    let (store, media) = cell(1, 1, SIZE);
    let g = create(&store, "g", AU);
    // The flash is away while the grid disk is dropped.
    let alone = open(&some(&media, &[0]), 2).unwrap().store;
    run(alone.drop_grid_disk(g.id)).whole();
    let opened = open(&media, 3).unwrap();
    assert!(opened.store.catalog().grid_disks.is_empty());
    assert_eq!(opened.report.stale, ["FD_02_c1"]);
    assert!(open(&media, 4).unwrap().report.stale.is_empty(), "it was brought up to date");
    // Now the flash alone knows as well.
    assert!(open(&some(&media, &[1]), 5).unwrap().store.catalog().grid_disks.is_empty());
}

#[test]
fn devices_that_lived_apart_are_kept_apart_until_told() {
    let (store, media) = cell(1, 1, SIZE);
    plan(&store, "both").unwrap();
    let left = open(&some(&media, &[0]), 2).unwrap().store;
    plan(&left, "left").unwrap();
    plan(&left, "left again").unwrap();
    let right = open(&some(&media, &[1]), 3).unwrap().store;
    plan(&right, "right").unwrap();
    let before = media[1].visible();

    let opened = open(&media, 4).unwrap();
    assert_eq!(opened.store.catalog().iorm_plan, "left again", "the same term, the higher sequence");
    assert_eq!(
        (&opened.report.diverged[..], &opened.report.missing[..]),
        (&["FD_02_c1".to_owned()][..], &["FD_02_c1".to_owned()][..])
    );
    assert!(media[1].visible() == before, "left untouched");

    let accept = OpenOptions { accept_diverged: true, ..open_options(5) };
    let opened = run(CellStore::open(media.iter().map(TestDisk::device).collect(), accept)).unwrap();
    assert_eq!(opened.report.diverged, ["FD_02_c1"]);
    assert!(opened.report.missing.is_empty());
    let opened = open(&some(&media, &[1]), 6).unwrap();
    assert_eq!(opened.store.catalog().iorm_plan, "left again");
}

#[test]
fn the_same_device_twice_and_devices_of_other_cells_are_refused() {
    let (_store, media) = cell(2, 0, SIZE);
    let copy = restarted(&images(&media[..1]), &geometry(SIZE), &Power::default());
    let error = open(&[media[0].clone(), media[1].clone(), copy[0].clone()], 2).unwrap_err();
    assert_eq!(error.to_string(), "devices 0 and 2 are both cell disk CD_01_c1");

    let other = TestDisk::new(SIZE);
    let mut foreign = options(7, Role::Disk);
    foreign.cell_id = CellId(0xbad);
    run(CellDisk::format(other.device(), foreign)).unwrap();
    let error = open(&[other.clone(), media[0].clone()], 2).unwrap_err();
    assert!(matches!(&error, StoreError::ForeignCell { index: 0, found: CellId(0xbad), expected: CELL, .. }));
    let any = OpenOptions { cell_id: None, ..open_options(2) };
    let error = run(CellStore::open(vec![media[0].device(), other.device()], any)).unwrap_err();
    assert!(matches!(&error, StoreError::ForeignCell { index: 1, .. }));
    assert!(error.hint().is_some());
}

#[test]
fn flash_that_is_there_twice_is_left_out_and_stops_nothing() {
    let (_store, media) = cell(1, 2, SIZE);
    let copy = restarted(&images(&media[1..2]), &geometry(SIZE), &Power::default());
    let opened = open(&[media[0].clone(), media[1].clone(), copy[0].clone(), media[2].clone()], 2).unwrap();
    let twin = || CellDiskError::Twin { name: "FD_02_c1".to_owned() };
    assert_eq!(opened.report.unusable, [(1, twin()), (2, twin())]);
    assert_eq!(opened.report.missing, ["FD_02_c1"]);
    assert_eq!(opened.store.cell_disks().len(), 2);
}

#[test]
fn unusable_devices_are_told_with_their_place() {
    let (_store, media) = cell(1, 0, SIZE);
    let blank = TestDisk::new(SIZE);
    let opened = open(&[blank.clone(), media[0].clone()], 2).unwrap();
    assert_eq!(opened.report.unusable, [(0, CellDiskError::Blank)]);
    let error = open(&[blank], 2).unwrap_err();
    assert_eq!(error.to_string(), "no device of the cell can be opened: device 0: the device is blank");
    let formatted = TestDisk::new(SIZE);
    run(CellDisk::format(formatted.device(), options(9, Role::Disk))).unwrap();
    assert_eq!(open(std::slice::from_ref(&formatted), 2).unwrap_err(), StoreError::NoCatalog);
    let opened = open(&[formatted, media[0].clone()], 3).unwrap();
    assert_eq!(opened.report.unlisted, ["CD_09_c1"]);
    assert_eq!(opened.store.cell_disks().len(), 1);
}

#[test]
fn a_device_that_misses_a_change_is_out_until_opened_anew() {
    for (fault, lands) in [
        (Fault::Fail(FailKind::Media), false),
        (Fault::FailLanded(FailKind::Media), true),
        (Fault::Short(4096), false),
        (Fault::Unknown, false),
    ] {
        let (store, media) = cell(1, 1, SIZE);
        media[1].fail(move |verb, _, _| (verb == Verb::Write).then_some(fault));
        let changed = run(store.change(|catalog| {
            "one".clone_into(&mut catalog.iorm_plan);
            Ok::<u8, Infallible>(7)
        }))
        .unwrap();
        assert_eq!((changed.value, changed.failed.len()), (7, 1));
        assert_eq!((changed.failed[0].device_id, changed.failed[0].name.as_str()), (DeviceId(2), "FD_02_c1"));
        assert!(changed.failed[0].to_string().starts_with("cell disk FD_02_c1: "));
        assert_eq!(store.catalog().iorm_plan, "one", "the change stands");
        assert!(matches!(&store.members()[&DeviceId(2)], MemberStatus::OutOfService(..)));
        media[1].mend();
        media[1].take_log();
        assert_eq!(plan(&store, "two").unwrap(), 0);
        assert!(media[1].take_log().is_empty(), "a device with a hole in its history gets no more of it");
        let opened = open(&media, 2).unwrap();
        assert_eq!(opened.store.catalog().iorm_plan, "two");
        assert_eq!(opened.report.stale, ["FD_02_c1"], "{fault:?} landed: {lands}");
        assert!(matches!(&opened.store.members()[&DeviceId(2)], MemberStatus::InService(_)));
    }
}

#[test]
fn a_device_that_hangs_is_waited_for_until_it_is_taken_out() {
    let (store, media) = cell(1, 1, SIZE);
    media[1].hold();
    let mut pool = LocalPool::new();
    let done = Rc::new(RefCell::new(None));
    let (changing, told) = (store.clone(), done.clone());
    let task = async move {
        let changed = changing.change(|catalog| {
            "one".clone_into(&mut catalog.iorm_plan);
            Ok::<(), Infallible>(())
        });
        let changed = changed.await.unwrap();
        *told.borrow_mut() = Some(changed.failed.len());
    };
    pool.spawner().spawn_local(task).unwrap();
    pool.run_until_stalled();
    assert_eq!((*done.borrow(), store.catalog().iorm_plan.as_str()), (None, ""));
    store.take_out(DeviceId(2), "it hangs");
    pool.run_until_stalled();
    assert_eq!((*done.borrow(), store.catalog().iorm_plan.as_str()), (Some(1), "one"));
    assert!(store.cell_disk(DeviceId(2)).unwrap().latched().is_some(), "the write may still land");
    assert!(matches!(&store.members()[&DeviceId(2)], MemberStatus::OutOfService(_, why) if why == "it hangs"));
    media[1].release();
    assert_eq!(plan(&store, "two").unwrap(), 0);
    assert_eq!(open(&media, 2).unwrap().store.catalog().iorm_plan, "two");
}

#[test]
fn without_a_durable_copy_there_is_no_change() {
    let ephemeral = device::Geometry { class: Class::Ephemeral, ..geometry(SIZE) };
    let media = [TestDisk::new(SIZE), TestDisk::with(ephemeral, Image::default(), Power::default())];
    let disk = run(CellDisk::format(media[0].device(), options(1, Role::Disk))).unwrap();
    let flash = run(CellDisk::format(media[1].device(), options(2, Role::Flash))).unwrap();
    let store = run(CellStore::create("c1", vec![disk, flash], WallTime(1), Stamp(1), Stamp(2))).unwrap();
    media[0].fail(|verb, _, _| (verb == Verb::Write).then_some(Fault::Fail(FailKind::Media)));
    let lost = plan(&store, "one").unwrap_err();
    let ChangeError::Lost { failed } = &lost else { panic!("{lost}") };
    assert_eq!(failed.len(), 1, "an ephemeral device is not enough, and is not asked");
    assert_eq!(store.catalog().iorm_plan, "");
    assert!(matches!(plan(&store, "two"), Err(ChangeError::Lost { .. })), "nor later");
    media[0].mend();
    // The medium is fine again: only opening anew puts it back.
    assert!(matches!(plan(&store, "three"), Err(ChangeError::Lost { .. })));
    let opened = open(&media, 2).unwrap();
    assert_eq!(opened.store.catalog().iorm_plan, "", "what was reported as lost is on no other device");
    assert_eq!(plan(&opened.store, "four").unwrap(), 0);

    // A cell that has nothing durable may still be used (a laboratory in a RAM disk).
    let ephemeral = device::Geometry { class: Class::Ephemeral, ..geometry(SIZE) };
    let medium = TestDisk::with(ephemeral, Image::default(), Power::default());
    let disk = run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    let store = run(CellStore::create("c1", vec![disk], WallTime(1), Stamp(1), Stamp(2))).unwrap();
    assert_eq!(plan(&store, "one").unwrap(), 0);
}

#[test]
fn refused_and_invalid_changes_write_nothing() {
    let (store, media) = cell(1, 0, SIZE);
    let g = create(&store, "g", AU);
    media[0].take_log();
    let before = store.catalog();
    assert_eq!(run(store.change(|_| Err::<(), _>("no"))).unwrap_err(), ChangeError::Refused("no"));
    let overlap = run(store.change(|catalog| {
        let mut twin = g.clone();
        twin.id = catalog.next_grid_disk_id;
        twin.name = "twin".to_owned();
        catalog.next_grid_disk_id.0 += 1;
        catalog.grid_disks.insert(twin.id, twin);
        Ok::<(), Infallible>(())
    }));
    assert!(overlap.unwrap_err().to_string().contains("overlap"));
    let reused = run(store.change(|catalog| {
        catalog.grid_disks.clear();
        catalog.next_grid_disk_id.0 = 1;
        Ok::<(), Infallible>(())
    }));
    assert!(matches!(reused, Err(ChangeError::Invalid(_))), "ids are never reused");
    let full = run(store.change(|catalog| {
        catalog.iorm_plan = "x".repeat(33 << 10);
        Ok::<(), Infallible>(())
    }));
    assert!(matches!(full, Err(ChangeError::Invalid(_))));
    assert_eq!(plan(&store, "").unwrap(), 0);
    assert!(media[0].take_log().is_empty());
    assert_eq!(store.catalog(), before);
}

#[test]
fn many_opens_keep_the_history_bounded() {
    let (store, media) = cell(1, 1, SIZE);
    plan(&store, "x").unwrap();
    for stamp in 0..100 {
        open(&media, 1000 + stamp).unwrap();
    }
    let catalog = open(&media, 5).unwrap().store.catalog();
    assert_eq!(catalog.lineage.history.len(), celldisk::layout::TERMS_MAX);
    assert_eq!((catalog.lineage.now.term, catalog.lineage.changed.term), (102, 1));
}

#[test]
fn a_grown_device_brings_its_space_into_the_catalog_at_open() {
    let (store, media) = cell(1, 0, SIZE);
    let before = store.catalog().free_bytes(DeviceId(1));
    media[0].grow(SIZE + 8 * MIB);
    let store = open(&media, 2).unwrap().store;
    assert_eq!(store.catalog().free_bytes(DeviceId(1)), before);
    run(store.cell_disks()[0].adopt_size()).unwrap();
    let store = open(&media, 3).unwrap().store;
    assert_eq!(store.catalog().free_bytes(DeviceId(1)), before + 8 * MIB);
    // Or at once.
    media[0].grow(SIZE + 10 * MIB);
    assert_eq!(run(store.adopt_size(DeviceId(1))).whole(), 120 + 20);
    create(&store, "g", before + 10 * MIB);
}

#[test]
fn futures_may_move_between_threads() {
    fn is_send<T: Send>(_: T) {}
    let (store, media) = cell(1, 1, SIZE);
    is_send(store.change(|_| Ok::<(), Infallible>(())));
    is_send(store.create_flash_log(celldisk::FlashLogSpec {
        id: Stamp(1),
        devices: Vec::new(),
        size_per_device_bytes: 1,
        outlier_ms: 500,
        created: WallTime(1),
    }));
    let devices: Vec<Device> = media.iter().map(TestDisk::device).collect();
    is_send(CellStore::open(devices, open_options(1)));
    is_send(CellDisk::format(media[0].device(), options(1, Role::Disk)));
    is_send(store.resize_grid_disk(celldisk::GridDiskId(1), 1, &mut |_, _| ()));
}
