//! Goal: grid disk commands do what they say, refuse what they must, and new space reads as zeroes.

use crate::slices::{create, spec};
use crate::support::{Fault, MIB, TestDisk, Whole, cell, open, options, read, run, write};
use celldisk::layout::{CACHING_RANGES_MAX, DATA_OFFSET, EXTENTS_MAX, GRID_DISKS_UNPACKED_MAX};
use celldisk::{
    CachingMode, CachingPolicy, CatalogError, CellDisk, CellStore, DeviceId, Extent, FillStrategy, FlashCacheSpec,
    FlashLogSpec, GridDiskError, GridDiskId, Purpose, Role, Stamp,
};
use device::{FailKind, Outcome, Verb, WallTime};
use futures_executor::LocalPool;
use futures_util::task::LocalSpawnExt;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const AU: u64 = 512 << 10;

fn one_disk() -> (Arc<CellStore>, Vec<Arc<TestDisk>>) {
    let (store, media) = cell(1, 0, 64 * MIB);
    // Whatever was there before: space that is not zeroed on purpose would show it.
    media[0].patch(DATA_OFFSET, &vec![0xdd; (64 * MIB - DATA_OFFSET) as usize]);
    (store, media)
}

fn nothing(_: u64, _: u64) {}

#[test]
fn created_space_is_zero_and_sizes_are_those_asked_for() {
    let (store, media) = one_disk();
    let mut steps = Vec::new();
    let big = run(store.create_grid_disk(
        spec(&store, "CD_01_c1", "DATA_CD_00_c1", 40 * MIB - (64 << 10)),
        &mut |done, total| {
            steps.push((done, total));
        },
    ))
    .whole();
    let size = 40 * MIB - (64 << 10);
    assert_eq!(steps, [(16 * MIB, size), (32 * MIB, size), (size, size)]);
    assert_eq!((big.size_bytes, big.id, big.cache_generation), (size, GridDiskId(1), 1));
    let slice = store.slice(big.id).unwrap();
    for at in (0..32).step_by(8) {
        assert!(read(&*slice, at * MIB, (8 * MIB) as usize).unwrap().iter().all(|&b| b == 0));
    }
    assert_eq!(device::Io::geometry(&*slice).size_bytes, size, "nothing beyond the end can be reached");
    let small = create(&store, "small", 1);
    assert_eq!(small.size_bytes, 64 << 10, "whole blocks of the flash cache, however large");
    // It grows within its unit, whose rest reads as zeroes whatever lay there.
    let grown = run(store.resize_grid_disk(small.id, 192 << 10, &mut nothing)).whole();
    assert_eq!((grown.size_bytes, &grown.extents), (192 << 10, &small.extents));
    let slice = store.slice(small.id).unwrap();
    assert!(read(&*slice, 0, 192 << 10).unwrap().iter().all(|&b| b == 0));
    let again = open(&media, 2).unwrap();
    assert_eq!(again.store.catalog().grid_disks, store.catalog().grid_disks, "state survives a restart");
}

#[test]
fn devices_without_write_zeroes_get_zeroes_written() {
    let (store, media) = one_disk();
    media[0].fail(|verb, _, _| (verb == Verb::WriteZeroes).then_some(Fault::Fail(FailKind::Unsupported)));
    let g = create(&store, "g", 3 * MIB);
    let slice = store.slice(g.id).unwrap();
    assert!(read(&*slice, 0, (3 * MIB) as usize).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn names_and_limits() {
    let (store, _media) = one_disk();
    create(&store, "Data", AU);
    let make = |name: &str, size| run(store.create_grid_disk(spec(&store, "CD_01_c1", name, size), &mut nothing));
    assert!(matches!(make("DATA", AU), Err(GridDiskError::Invalid(CatalogError::NameTaken { .. }))));
    assert!(matches!(make("a@b", AU), Err(GridDiskError::Invalid(CatalogError::Name { .. }))));
    assert!(matches!(make(&"x".repeat(31), AU), Err(GridDiskError::Invalid(CatalogError::Name { .. }))));
    assert!(matches!(make("zero", 0), Err(GridDiskError::TooSmall { .. })));
    let Err(GridDiskError::NoSpace { name, free_bytes, wanted_bytes }) = make("huge", u64::MAX) else {
        panic!("no space")
    };
    assert_eq!((name.as_str(), free_bytes), ("CD_01_c1", 119 * AU));
    assert!(wanted_bytes > free_bytes);
    assert_eq!(store.catalog().grid_disks.len(), 1, "refusals leave nothing behind");
    assert_eq!(make("rest", 119 * AU).whole().size_bytes, 119 * AU, "nor reserve anything");
    let mut elsewhere = spec(&store, "CD_01_c1", "y", AU);
    elsewhere.cell_disk = DeviceId(99);
    assert!(matches!(run(store.create_grid_disk(elsewhere, &mut nothing)), Err(GridDiskError::NoSuch)));
}

#[test]
fn ids_are_never_reused_and_space_is() {
    let (store, media) = one_disk();
    let a = create(&store, "a", 100 * AU);
    assert_eq!(write(&*store.slice(a.id).unwrap(), 0, &[0xaa; 4096], true), Outcome::Done);
    run(store.drop_grid_disk(a.id)).whole();
    assert_eq!(run(store.drop_grid_disk(a.id)), Err(GridDiskError::NoSuch));
    let store = open(&media, 2).unwrap().store;
    let b = create(&store, "a", 100 * AU);
    assert_eq!((b.id, &b.extents), (GridDiskId(2), &a.extents));
    assert!(read(&*store.slice(b.id).unwrap(), 0, 4096).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn growth_prefers_its_place_and_reads_as_zeroes() {
    let (store, _media) = one_disk();
    let a = create(&store, "a", 2 * AU);
    let b = create(&store, "b", AU);
    let slice = store.slice(a.id).unwrap();
    assert_eq!(write(&*slice, 0, &vec![7; 2 * AU as usize], true), Outcome::Done);
    let grown = run(store.resize_grid_disk(a.id, 3 * AU + 17, &mut nothing)).whole();
    assert_eq!(grown.extents, [Extent { start_au: 0, count_au: 2 }, Extent { start_au: 3, count_au: 2 }]);
    assert_eq!(grown.cache_generation, a.cache_generation, "growth voids nothing");
    run(store.drop_grid_disk(b.id)).whole();
    let more = run(store.resize_grid_disk(a.id, 6 * AU, &mut nothing)).whole();
    assert_eq!(more.extents, [Extent { start_au: 0, count_au: 2 }, Extent { start_au: 3, count_au: 4 }]);
    assert!(read(&*slice, 0, 2 * AU as usize).unwrap().iter().all(|&b| b == 7), "what was there stays");
    assert!(read(&*slice, 2 * AU, 4 * AU as usize).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn a_shrink_raises_the_generation_and_stops_at_nothing() {
    let (store, _media) = one_disk();
    let a = create(&store, "a", 4 * AU);
    let slice = store.slice(a.id).unwrap();
    assert_eq!(write(&*slice, 3 * AU, &[9; 512], true), Outcome::Done);
    let cut = run(store.resize_grid_disk(a.id, 2 * AU, &mut nothing)).whole();
    assert_eq!((cut.size_bytes, cut.cache_generation), (2 * AU, 2));
    assert!(matches!(run(store.resize_grid_disk(a.id, 0, &mut nothing)), Err(GridDiskError::TooSmall { .. })));
    let same = run(store.resize_grid_disk(a.id, 2 * AU, &mut nothing)).whole();
    assert_eq!(same.cache_generation, 2, "no change, no news");
    run(store.resize_grid_disk(a.id, 4 * AU, &mut nothing)).whole();
    assert_eq!(read(&*slice, 3 * AU, 512).unwrap(), [0; 512], "cut off is gone");
}

#[test]
fn fragments_are_used_up_to_the_limit() {
    let (store, _media) = cell(1, 0, 400 * MIB);
    let au = store.cell_disks()[0].au_bytes();
    let count = store.catalog().free_au(DeviceId(1));
    assert_eq!((au, count), (4 * MIB, 99));
    // A comb: every other unit free, fewer than the limit of extents.
    let comb: Vec<_> = (0..count).map(|n| create(&store, &format!("x{n}"), au)).collect();
    for g in comb.iter().step_by(2) {
        run(store.drop_grid_disk(g.id)).whole();
    }
    let all = create(&store, "all", 50 * au);
    assert_eq!(all.extents.len(), 50);
    const { assert!(50 < EXTENTS_MAX) };
    assert_eq!(store.catalog().free_au(DeviceId(1)), 0);
}

#[test]
fn pinned_ranges_survive_and_end_with_their_place() {
    let (store, media) = one_disk();
    let a = create(&store, "a", 2 * AU);
    let pin = |store: &CellStore, bytes: std::ops::Range<u64>, policy| {
        run(store.set_caching_range(a.id, bytes, Some(policy)))
    };
    let ranges = |g: &celldisk::GridDisk| {
        g.caching_ranges.iter().map(|r| (r.start_bytes, r.end_bytes, r.policy)).collect::<Vec<_>>()
    };
    pin(&store, 0..8192, CachingPolicy::Keep).whole();
    pin(&store, AU - 4096..2 * AU, CachingPolicy::None).whole();
    let pinned = pin(&store, 4096..AU, CachingPolicy::Keep).whole();
    let all = [(0, AU, CachingPolicy::Keep), (AU, 2 * AU, CachingPolicy::None)];
    assert_eq!((ranges(&pinned), pinned.cache_generation), (all.to_vec(), 1));
    let beyond = 2 * AU - 4096..2 * AU + 4096;
    for bad in [0..0, 0..100, 100..4096, beyond] {
        assert!(matches!(pin(&store, bad, CachingPolicy::Keep), Err(GridDiskError::Range { .. })));
    }
    let altered = run(store.alter_grid_disk(a.id, |g| g.caching_ranges.clear()));
    assert!(matches!(altered, Err(GridDiskError::Fixed { field: "pinned ranges" })));
    let again = open(&media, 2).unwrap().store;
    assert_eq!(ranges(&again.catalog().grid_disks[&a.id]), all);
    run(again.resize_grid_disk(a.id, AU, &mut nothing)).whole();
    assert_eq!(ranges(&again.catalog().grid_disks[&a.id]), all[..1]);
    let unpinned = run(again.set_caching_range(a.id, 4096..AU, None)).whole();
    assert_eq!(ranges(&unpinned), [(0, 4096, CachingPolicy::Keep)]);
    let unpinned = run(again.set_caching_range(a.id, 0..AU, None)).whole();
    assert!(unpinned.caching_ranges.is_empty());
    let b = create(&again, "b", 5 * AU);
    for n in 0..=CACHING_RANGES_MAX as u64 {
        let pinned = run(again.set_caching_range(b.id, n * 8192..n * 8192 + 4096, Some(CachingPolicy::Default)));
        assert_eq!(pinned.is_ok(), n < CACHING_RANGES_MAX as u64, "{n}");
    }
    assert_eq!(again.catalog().grid_disks[&b.id].caching_ranges.len(), CACHING_RANGES_MAX);
}

#[test]
fn attributes() {
    let (store, media) = one_disk();
    let a = create(&store, "a", AU);
    let altered = run(store.alter_grid_disk(a.id, |g| {
        g.name = "b".to_owned();
        g.comment = "für Müller".to_owned();
        g.available_to = "db1,db2".to_owned();
        g.purpose = Purpose::Redo;
        g.asm.insert("asmDiskgroupName".to_owned(), "DATA".to_owned());
        g.caching_policy = CachingPolicy::Keep;
    }))
    .whole();
    assert_eq!((altered.cache_generation, altered.size_bytes), (1, AU));
    let none = run(store.alter_grid_disk(a.id, |g| g.caching_policy = CachingPolicy::None)).whole();
    assert_eq!(none.cache_generation, 2, "none stops hits at once");
    type Change = fn(&mut celldisk::GridDisk);
    let fixed: [(Change, &str); 5] = [
        (|g| g.id.0 += 1, "id"),
        (|g| g.size_bytes -= 4096, "size"),
        (|g| g.extents[0].start_au += 1, "extents"),
        (|g| g.cache_generation -= 1, "cache generation"),
        (|g| g.created.0 += 1, "creation time"),
    ];
    for (change, field) in fixed {
        assert_eq!(run(store.alter_grid_disk(a.id, change)), Err(GridDiskError::Fixed { field }));
    }
    let long = run(store.alter_grid_disk(a.id, |g| g.comment = "x".repeat(129)));
    assert!(matches!(long, Err(GridDiskError::Invalid(CatalogError::Limit { what: "comment", .. }))));
    assert_eq!(run(store.raise_cache_generation(a.id)).whole(), 3);
    run(store.alter_cell(|cell| {
        cell.attributes.insert("flashCacheMode".to_owned(), "WriteThrough".to_owned());
        cell.iorm_plan = "objective=auto\n".to_owned();
        cell.instance_stamp = Stamp(77);
    }))
    .whole();
    assert!(matches!(run(store.alter_cell(|cell| cell.grid_disks.clear())), Err(GridDiskError::Fixed { .. })));
    let again = open(&media, 2).unwrap().store.catalog();
    assert!(again.same_content(&store.catalog()));
    assert_eq!(again.grid_disk_named("B").unwrap().comment, "für Müller");
}

#[test]
fn a_mode_switch_is_a_state_of_its_own() {
    let (store, media) = one_disk();
    let id = create(&store, "a", AU).id;
    assert!(matches!(run(store.finish_mode_switch(id)), Err(GridDiskError::Switch { .. })));
    assert!(matches!(run(store.begin_mode_switch(id, CachingMode::WriteThrough)), Err(GridDiskError::Switch { .. })));
    run(store.begin_mode_switch(id, CachingMode::WriteBack)).whole();
    assert!(matches!(run(store.begin_mode_switch(id, CachingMode::None)), Err(GridDiskError::Switch { .. })));
    let direct = run(store.alter_grid_disk(id, |g| g.caching_mode = CachingMode::None));
    assert_eq!(direct, Err(GridDiskError::Fixed { field: "caching mode" }));
    let store = open(&media, 2).unwrap().store;
    let switch = store.catalog().grid_disks[&id].mode_switch.unwrap();
    assert_eq!((switch.from, switch.to), (CachingMode::WriteThrough, CachingMode::WriteBack));
    assert_eq!(run(store.finish_mode_switch(id)).whole().caching_mode, CachingMode::WriteBack);
    run(store.begin_mode_switch(id, CachingMode::None)).whole();
    run(store.cancel_mode_switch(id)).whole();
    run(store.begin_mode_switch(id, CachingMode::None)).whole();
    let none = run(store.finish_mode_switch(id)).whole();
    assert_eq!((none.caching_mode, none.cache_generation, none.mode_switch), (CachingMode::None, 2, None));
}

#[test]
fn a_journal_comes_and_goes_with_its_mode() {
    let (store, media) = one_disk();
    let g = create(&store, "g", 4 * MIB);
    let free = store.catalog().free_bytes(DeviceId(1));
    assert!(matches!(store.journal_slice(g.id), Err(GridDiskError::NoSuch)));
    let space = store.reserve_journal(g.id, MIB + 1).unwrap();
    assert_eq!(device::Io::geometry(&*space.device()).size_bytes, 3 * AU, "rounded up to whole units");
    write(&*space.device(), 0, &[7; 4096], true);
    let other = create(&store, "other", AU);
    assert_eq!(other.extents[0].start_au, 11, "what is set aside is not given out");
    let taken = run(store.take_journal(space, CachingPolicy::Keep)).whole();
    assert_eq!((taken.caching_mode, taken.caching_policy), (CachingMode::WriteBackOrdered, CachingPolicy::Keep));
    assert!(matches!(store.reserve_journal(g.id, 1), Err(GridDiskError::Exists { .. })));
    assert!(matches!(
        run(store.alter_grid_disk(g.id, |g| g.journal.clear())),
        Err(GridDiskError::Fixed { field: "journal" })
    ));
    let again = open(&media, 2).unwrap().store;
    let journal = again.journal_slice(g.id).unwrap();
    assert_eq!(read(&*journal, 0, 4096).unwrap(), [7; 4096], "it survives a restart");
    assert_eq!(read(&*again.slice(g.id).unwrap(), 0, 4096).unwrap(), [0; 4096], "beside the grid disk");
    let freed = run(again.free_journal(g.id, CachingMode::WriteThrough, CachingPolicy::None, true)).whole();
    assert_eq!((freed.cache_generation, freed.journal.len()), (2, 0));
    assert!(journal.is_closed());
    assert_eq!(again.catalog().free_bytes(DeviceId(1)), free - AU);
    let space = again.reserve_journal(g.id, 1).unwrap();
    let _taken = run(again.take_journal(space, CachingPolicy::Default)).whole();
    assert!(!again.journal_slice(g.id).unwrap().is_closed(), "another one, while somebody still has the old one");
}

#[test]
fn creations_at_the_same_time_never_share_space() {
    let (store, media) = one_disk();
    media[0].hold();
    let mut pool = LocalPool::new();
    let made = Rc::new(RefCell::new(Vec::new()));
    for n in 0..8 {
        let (store, made) = (store.clone(), made.clone());
        let task = async move {
            let spec = spec(&store, "CD_01_c1", &format!("g{n}"), 15 * AU);
            let one = store.create_grid_disk(spec, &mut nothing).await;
            made.borrow_mut().push(one);
        };
        pool.spawner().spawn_local(task).unwrap();
    }
    for _ in 0..100 {
        pool.run_until_stalled();
        media[0].release();
        media[0].hold();
    }
    media[0].release();
    pool.run_until_stalled();
    assert_eq!(made.borrow().len(), 8);
    assert!(made.borrow().iter().all(Result::is_ok), "120 units are 8 times 15");
    store.catalog().validate().unwrap();
    assert_eq!(store.catalog().free_au(DeviceId(1)), 0);
}

#[test]
fn space_that_may_still_be_zeroed_is_not_given_out() {
    let (store, media) = one_disk();
    media[0].fail(|verb, _, _| (verb == Verb::WriteZeroes).then_some(Fault::Unknown));
    let failed = run(store.create_grid_disk(spec(&store, "CD_01_c1", "a", AU), &mut nothing));
    assert!(matches!(failed, Err(GridDiskError::Zeroing { .. })));
    media[0].mend();
    assert_eq!(create(&store, "b", AU).extents[0].start_au, 1);
    media[0].fail(|verb, _, _| (verb == Verb::WriteZeroes).then_some(Fault::Fail(FailKind::Media)));
    assert!(run(store.create_grid_disk(spec(&store, "CD_01_c1", "c", AU), &mut nothing)).is_err());
    media[0].mend();
    assert_eq!(create(&store, "d", AU).extents[0].start_au, 2, "a zeroing that failed for certain leaves no trace");
    let store = open(&media, 2).unwrap().store;
    assert_eq!(create(&store, "e", AU).extents[0].start_au, 0, "after a restart nothing is under way");
}

#[test]
fn a_thousand_grid_disks_with_every_text_full_fit() {
    let medium = TestDisk::new(200 * MIB);
    let mut small = options(1, Role::Disk);
    small.au_bytes = Some(64 << 10);
    let disk = run(CellDisk::format(medium.device(), small)).unwrap();
    let store = run(CellStore::create("c1", vec![disk], WallTime(1), Stamp(1), Stamp(2))).unwrap();
    run(store.change(|catalog| {
        for n in 0..GRID_DISKS_UNPACKED_MAX as u64 {
            let mut g = celldisk::GridDisk {
                id: GridDiskId(n + 1),
                name: format!("{n:x>30}"),
                cell_disk: DeviceId(1),
                extents: (0..2).map(|e| Extent { start_au: (2 * n + e) as u32, count_au: 1 }).collect(),
                size_bytes: 128 << 10,
                purpose: Purpose::Temp,
                caching_mode: CachingMode::WriteBackOrdered,
                mode_switch: None,
                caching_policy: CachingPolicy::Keep,
                fill: FillStrategy::default(),
                caching_ranges: Vec::new(),
                flash_log_mode: celldisk::FlashLogMode::Auto,
                journal: Vec::new(),
                cache_generation: u32::MAX,
                given_up: false,
                inactive: false,
                redo_behind: false,
                read_only: false,
                available_to: "a".repeat(128),
                comment: "c".repeat(128),
                created: WallTime(u64::MAX),
                asm: std::collections::BTreeMap::new(),
            };
            for key in ["a", "b"] {
                g.asm.insert(key.repeat(26), "v".repeat(100));
            }
            catalog.grid_disks.insert(g.id, g);
        }
        catalog.next_grid_disk_id = GridDiskId(GRID_DISKS_UNPACKED_MAX as u64 + 1);
        Ok::<(), std::convert::Infallible>(())
    }))
    .whole();
    let again = open(&[medium], 3).unwrap().store;
    assert_eq!(again.catalog().grid_disks.len(), GRID_DISKS_UNPACKED_MAX);
}

#[test]
fn flash_cache_and_log_share_the_flash_with_grid_disks() {
    let (store, media) = cell(1, 2, 64 * MIB);
    let flash = [DeviceId(2), DeviceId(3)];
    let log = run(store.create_flash_log(FlashLogSpec {
        id: Stamp(1),
        devices: Vec::new(),
        size_per_device_bytes: 4 * MIB,
        outlier_ms: 500,
        created: WallTime(1),
    }))
    .whole();
    assert_eq!(log.regions.keys().copied().collect::<Vec<_>>(), flash);
    run(store.create_grid_disk(spec(&store, "FD_02_c1", "on_flash", 8 * MIB), &mut nothing)).whole();
    let cache_spec = |id| FlashCacheSpec {
        id: Stamp(id),
        devices: Vec::new(),
        size_per_device_bytes: None,
        segment_bytes: 2 << 20,
        block_bytes: 16 << 10,
        created: WallTime(2),
    };
    let cache = run(store.create_flash_cache(cache_spec(2))).whole();
    assert_eq!(cache.size_per_device_bytes, 48 * MIB, "what the fuller one has left, in whole segments");
    assert!(matches!(run(store.create_flash_cache(cache_spec(3))), Err(GridDiskError::Exists { .. })));
    for id in flash {
        assert_eq!(store.cell_disk(id).unwrap().label().cache_era, 1);
    }
    let slice = store.flash_cache_slice(flash[0]).unwrap();
    assert_eq!(slice.size_bytes(), 48 * MIB);
    assert_eq!(write(&*slice, 0, &[5; 4096], true), Outcome::Done);
    assert!(matches!(store.flash_cache_slice(DeviceId(1)), Err(GridDiskError::NoSuch)));
    assert_eq!(store.flash_log_slice(flash[1]).unwrap().size_bytes(), 4 * MIB);

    run(store.drop_flash_cache()).whole();
    assert!(slice.is_closed());
    run(store.create_flash_cache(cache_spec(4))).whole();
    assert!(slice.is_closed(), "a new cache in the same place is another device");
    assert_eq!(store.cell_disk(flash[1]).unwrap().label().cache_era, 3, "dropped and made again");
    let again = open(&media, 2).unwrap().store;
    assert_eq!(again.catalog().flash_cache.as_ref().unwrap().id, Stamp(4));
    run(again.drop_flash_log()).whole();
    assert_eq!(run(again.drop_flash_log()), Err(GridDiskError::NoSuch));
}

/// Goal: devices join and leave the flash cache in one change of the catalog, and their areas as devices follow it. Method: a
/// cache on one of two flash devices moves to the other and back.
#[test]
fn members_of_the_flash_cache_change() {
    let (store, media) = cell(1, 2, 64 * MIB + DATA_OFFSET);
    let flash: Vec<DeviceId> =
        store.cell_disks().iter().filter(|disk| disk.role() == Role::Flash).map(|disk| disk.id()).collect();
    let spec = FlashCacheSpec {
        id: Stamp(7),
        devices: vec![flash[0]],
        size_per_device_bytes: Some(16 * MIB),
        segment_bytes: 1 << 20,
        block_bytes: 16 << 10,
        created: WallTime(1),
    };
    assert!(matches!(store.reserve_flash_cache(&flash[1..], None), Err(GridDiskError::NoSuch)), "there is no cache");
    run(store.create_flash_cache(spec)).whole();
    assert!(matches!(store.reserve_flash_cache(&flash[..1], None), Err(GridDiskError::Exists { .. })));
    let old = store.flash_cache_slice(flash[0]).unwrap();
    let space = store.reserve_flash_cache(&flash[1..], None).unwrap();
    let new = space.device(flash[1]).unwrap();
    assert_eq!(write(&*new, 0, &[6; 4096], true), Outcome::Done, "it is a device before the catalog names it");
    let free_bytes = store.catalog().free_bytes(flash[1]);
    let cache = run(store.change_flash_cache(space, &flash[..1])).whole();
    assert_eq!(cache.regions.keys().copied().collect::<Vec<_>>(), flash[1..]);
    assert!(old.is_closed() && !new.is_closed());
    assert!(Arc::ptr_eq(&store.flash_cache_slice(flash[1]).unwrap(), &new), "and the same device afterwards");
    assert_eq!(store.catalog().free_bytes(flash[1]), free_bytes - 16 * MIB);
    let space = store.reserve_flash_cache(&[], None).unwrap();
    assert!(run(store.change_flash_cache(space, &flash[1..])).is_err(), "none would be left");
    assert!(!new.is_closed());
    let space = store.reserve_flash_cache(&flash[..1], None).unwrap();
    space.release();
    assert_eq!(store.catalog().free_bytes(flash[0]), 64 * MIB);
    let again = open(&media, 2).unwrap().store;
    assert_eq!(again.catalog().flash_cache.as_ref().unwrap().regions.len(), 1);
}
