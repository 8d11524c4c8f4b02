//! Goal: a power cut between any two requests of any command leaves the old or the new catalog, never a mix; what was
//! acknowledged is there, whichever devices come back; and the first answer after the cut is final.
//! Method: every command on cells of 1, 2 and 3 devices, cut after each of its requests, several fates of the volatile
//! cache for each; then again with a second cut while opening.

use crate::slices::spec;
use crate::support::{
    CELL, Image, MIB, Power, TestDisk, Whole, cell, geometry, open_options, options, read, restarted, run,
};
use celldisk::layout::DATA_OFFSET;
use celldisk::{
    CachingMode, CachingPolicy, Catalog, CellDisk, CellStore, Changed, DeviceId, FlashCacheSpec, GridDiskId,
    GridDiskSpec, Purpose, Role, Stamp, StoreError,
};
use device::{Device, Io, Prng, WallTime};
use std::pin::Pin;
use std::sync::Arc;

const SIZE: u64 = 16 * MIB;
const AU: u64 = 128 << 10;
const FATES: u64 = 12;

/// The devices that did not take an acknowledged change; none when it was not acknowledged.
type Acknowledged = Option<Vec<DeviceId>>;
type Done<'a> = Pin<Box<dyn Future<Output = Acknowledged> + 'a>>;

fn acknowledged<T, E>(result: Result<Changed<T>, E>) -> Acknowledged {
    result.ok().map(|changed| changed.failed.iter().map(|failure| failure.device_id).collect())
}

/// A command.
struct Command {
    name: &'static str,
    flash: bool,
    run: fn(&CellStore) -> Done<'_>,
}

fn nothing(_: u64, _: u64) {}

fn on(store: &CellStore, name: &str, size_bytes: u64) -> GridDiskSpec {
    spec(store, "CD_01_c1", name, size_bytes)
}

const COMMANDS: &[Command] = &[
    Command {
        name: "create",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.create_grid_disk(on(s, "new", 3 * AU), &mut nothing).await) }),
    },
    Command {
        name: "drop",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.drop_grid_disk(GridDiskId(1)).await) }),
    },
    Command {
        name: "grow",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.resize_grid_disk(GridDiskId(1), 9 * AU, &mut nothing).await) }),
    },
    Command {
        name: "shrink",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.resize_grid_disk(GridDiskId(1), AU, &mut nothing).await) }),
    },
    Command {
        name: "alter",
        flash: false,
        run: |s| {
            Box::pin(async {
                let altered = s.alter_grid_disk(GridDiskId(2), |g| {
                    g.name = "renamed".to_owned();
                    g.purpose = Purpose::Redo;
                });
                acknowledged(altered.await)
            })
        },
    },
    Command {
        name: "pin",
        flash: false,
        run: |s| {
            Box::pin(async {
                acknowledged(s.set_caching_range(GridDiskId(1), 4096..AU, Some(CachingPolicy::Keep)).await)
            })
        },
    },
    Command {
        name: "raise generation",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.raise_cache_generation(GridDiskId(1)).await) }),
    },
    Command {
        name: "switch",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.begin_mode_switch(GridDiskId(1), CachingMode::WriteBack).await) }),
    },
    Command {
        name: "big plan",
        flash: false,
        // Several pages, and larger than the transfer limit below: several requests for each copy.
        run: |s| Box::pin(async { acknowledged(s.alter_cell(|cell| cell.iorm_plan = "plan ".repeat(5000)).await) }),
    },
    Command {
        name: "create flash cache",
        flash: true,
        run: |s| {
            Box::pin(async {
                let spec = FlashCacheSpec {
                    id: Stamp(5),
                    devices: Vec::new(),
                    size_per_device_bytes: Some(4 * MIB),
                    segment_bytes: 1 << 20,
                    block_bytes: 16 << 10,
                    created: WallTime(3),
                };
                acknowledged(s.create_flash_cache(spec).await)
            })
        },
    },
    Command {
        name: "rename cell disk",
        flash: false,
        run: |s| Box::pin(async { acknowledged(s.rename_cell_disk(DeviceId(1), "CD_09_c1").await) }),
    },
];

/// A cell with two grid disks, full of old data wherever nothing is allocated, stopped; its devices.
fn base(disks: u128, flashes: u128) -> Vec<Image> {
    let (store, media) = cell(disks, flashes, SIZE);
    for (medium, offset) in media.iter().map(|medium| (medium, DATA_OFFSET)) {
        medium.patch(offset, &vec![0xdd; (SIZE - DATA_OFFSET) as usize]);
    }
    run(store.create_grid_disk(on(&store, "one", 3 * AU), &mut nothing)).whole();
    run(store.create_grid_disk(on(&store, "two", AU), &mut nothing)).whole();
    media.iter().map(|medium| medium.visible()).collect()
}

fn small_transfers() -> device::Geometry {
    device::Geometry { transfer_bytes_max: 16 << 10, ..geometry(SIZE) }
}

fn start(images: &[Image], power: &Power) -> (Vec<Arc<TestDisk>>, Arc<CellStore>) {
    let media = restarted(images, &small_transfers(), power);
    let devices = media.iter().map(TestDisk::device).collect();
    let store = run(CellStore::open(devices, open_options(100))).unwrap().store;
    (media, store)
}

fn reopen(
    images: &[Image],
    term_stamp: u128,
    power: &Power,
) -> (Vec<Arc<TestDisk>>, Result<Arc<CellStore>, StoreError>) {
    let media = restarted(images, &small_transfers(), power);
    let devices: Vec<Device> = media.iter().map(TestDisk::device).collect();
    let opened = run(CellStore::open(devices, open_options(term_stamp)));
    (media, opened.map(|opened| opened.store))
}

/// Everything allocated to a grid disk that nobody has written reads as zeroes.
fn assert_zero(store: &CellStore, what: &str) {
    for g in store.catalog().grid_disks.values() {
        let slice = store.slice(g.id).unwrap();
        let piece = u64::from(slice.geometry().transfer_bytes_max);
        for offset in (0..g.size_bytes).step_by(piece as usize) {
            let bytes = read(&*slice, offset, piece.min(g.size_bytes - offset) as usize).unwrap();
            assert!(bytes.iter().all(|&b| b == 0), "{what}: {} at {offset}", g.name);
        }
    }
}

/// Sets of devices that may come back: all, each alone, each missing.
fn survivors(count: usize) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..count).collect();
    let mut sets = vec![all.clone()];
    for n in 0..count {
        sets.push(vec![n]);
        sets.push(all.iter().copied().filter(|other| *other != n).collect());
    }
    sets.retain(|set| !set.is_empty());
    sets.sort();
    sets.dedup();
    sets
}

fn cut_everywhere(disks: u128, flashes: u128) {
    let images = base(disks, flashes);
    let (mut cuts, mut olds, mut news) = (0, 0, 0);
    for command in COMMANDS.iter().filter(|command| !command.flash || flashes > 0) {
        let (old, new, requests) = {
            let power = Power::default();
            let (_media, store) = start(&images, &power);
            let (old, before) = (store.catalog(), power.requests());
            assert_eq!(run((command.run)(&store)), Some(Vec::new()), "{}", command.name);
            (old, store.catalog(), power.requests() - before)
        };
        assert!(!old.same_content(&new) && requests > 1, "{}", command.name);
        for cut in 0..=requests {
            let power = Power::default();
            let (media, store) = start(&images, &power);
            power.cut_after(cut);
            let answer = run((command.run)(&store));
            // Perhaps a little earlier: one copy on each device is durable, the other is not yet.
            assert!(answer.is_some() || cut < requests, "{} is acknowledged when all is done", command.name);
            for fate in 0..FATES {
                let mut prng = Prng::new(cut * FATES + fate);
                let after: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
                for set in survivors(images.len()) {
                    let what = format!("{} cut after {cut} of {requests}, fate {fate}, devices {set:?}", command.name);
                    let back: Vec<Image> = set.iter().map(|n| after[*n].clone()).collect();
                    // Any device that took an acknowledged change is enough to know it.
                    let has_it =
                        |failed: &Vec<DeviceId>| set.iter().any(|n| !failed.contains(&DeviceId(*n as u128 + 1)));
                    let first = check_one(&back, &old, &new, answer.as_ref().is_some_and(has_it), &what);
                    cuts += 1;
                    if first.same_content(&old) { olds += 1 } else { news += 1 }
                }
            }
        }
    }
    assert!(olds > 50 && news > 100, "both sides of the commit were reached: {olds} and {news} of {cuts}");
}

fn check_one(images: &[Image], old: &Catalog, new: &Catalog, must_be_new: bool, what: &str) -> Arc<Catalog> {
    let power = Power::default();
    let (media, opened) = reopen(images, 200, &power);
    let store = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    let first = store.catalog();
    assert!(first.same_content(old) || first.same_content(new), "{what}: a mix");
    assert!(!must_be_new || first.same_content(new), "{what}: forgotten");
    if store.cell_disk(DeviceId(1)).is_some() {
        assert_zero(&store, what);
    }
    // A second restart answers the same.
    let again: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut Prng::new(1))).collect();
    let (_media, opened) = reopen(&again, 300, &Power::default());
    assert!(opened.unwrap().catalog().same_content(&first), "{what}: it changed its mind");
    first
}

#[test]
fn on_one_device() {
    cut_everywhere(1, 0);
}

#[test]
fn on_two_devices() {
    cut_everywhere(1, 1);
}

#[test]
fn on_three_devices() {
    cut_everywhere(2, 1);
}

#[test]
fn a_second_cut_while_opening() {
    let images = base(2, 1);
    let (old, new) = {
        let (_media, store) = start(&images, &Power::default());
        let old = store.catalog();
        run(store.drop_grid_disk(GridDiskId(1))).whole();
        (old, store.catalog())
    };
    let mut restarts = 0;
    for cut in 0..=6 {
        for fate in 0..4 {
            let mut prng = Prng::new(cut * 100 + fate);
            let power = Power::default();
            let (media, store) = start(&images, &power);
            power.cut_after(cut);
            let acknowledged = run(store.drop_grid_disk(GridDiskId(1))).is_ok();
            let after: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
            for second in 0.. {
                let power = Power::default();
                power.cut_after(second);
                let (media, opened) = reopen(&after, 200, &power);
                let answered = opened.ok().filter(|_| !power.is_off()).map(|store| store.catalog());
                let again: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
                let last = check_one(&again, &old, &new, acknowledged, &format!("cut {cut}, then {second}"));
                restarts += 1;
                if let Some(answered) = answered {
                    assert!(last.same_content(&answered), "what was served once is not taken back");
                    break;
                }
            }
        }
    }
    assert!(restarts > 500, "{restarts}");
}

#[test]
fn a_new_cell_is_there_or_not() {
    let make = |devices: Vec<Device>| async move {
        let mut disks = Vec::new();
        for (index, device) in devices.into_iter().enumerate() {
            let role = if index == 0 { Role::Disk } else { Role::Flash };
            disks.push(CellDisk::format(device, options(index as u128 + 1, role)).await.ok()?);
        }
        CellStore::create("c1", disks, WallTime(1), Stamp(1), Stamp(2)).await.ok()
    };
    let blank = vec![Image::default(); 2];
    let (mut nothing, mut whole) = (0, 0);
    for cut in 0.. {
        let power = Power::default();
        power.cut_after(cut);
        let media = restarted(&blank, &geometry(SIZE), &power);
        let made = run(make(media.iter().map(TestDisk::device).collect())).is_some();
        for fate in 0..FATES {
            let mut prng = Prng::new(cut * FATES + fate);
            let after: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
            let (_media, opened) = reopen(&after, 9, &Power::default());
            match opened {
                Ok(store) => {
                    assert_eq!((store.cell_id(), store.catalog().members.len()), (CELL, 2));
                    whole += 1;
                }
                Err(error) => {
                    assert!(!made, "{error}");
                    nothing += 1;
                }
            }
        }
        if made {
            break;
        }
    }
    assert!(nothing > 20 && whole > FATES, "{nothing} {whole}");
}

#[test]
fn adding_and_removing_a_device() {
    let images = base(1, 0);
    let fresh = {
        let medium = TestDisk::new(SIZE);
        run(CellDisk::format(medium.device(), options(2, Role::Flash))).unwrap();
        medium.visible()
    };
    let images = vec![images[0].clone(), fresh];
    for cut in 0..=5 {
        for fate in 0..FATES {
            let power = Power::default();
            let media = restarted(&images, &small_transfers(), &power);
            let store = run(CellStore::open(vec![media[0].device()], open_options(100))).unwrap().store;
            let new = run(CellDisk::open(media[1].device())).unwrap();
            power.cut_after(cut);
            let added = run(store.add(new)).is_ok();
            let mut prng = Prng::new(cut * FATES + fate);
            let after: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
            let (media, opened) = reopen(&after, 200, &Power::default());
            let store = opened.unwrap();
            let count = store.catalog().members.len();
            assert_eq!(store.cell_disks().len(), count);
            assert!(count == 2 || !added);
            if count == 2 {
                assert!(run(store.remove(DeviceId(1))).is_err(), "grid disks lie on it");
                run(store.remove(DeviceId(2))).whole();
                let after: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
                let (_media, opened) = reopen(&after, 300, &Power::default());
                assert_eq!(opened.unwrap().catalog().members.len(), 1);
            }
        }
    }
}
