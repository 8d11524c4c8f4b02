//! Goal: flash content counts only with the disk it belongs to, and a renewal never parts a pair that belongs together.

use crate::support::{Fault, Image, MIB, Power, TestDisk, cell, geometry, open, open_options, restarted, run};
use celldisk::{CellStore, DeviceId, FlashState, Renewal};
use device::{FailKind, Prng, Verb};
use std::sync::Arc;

const SIZE: u64 = 64 * MIB;

fn all_pairs(disks: u128, flashes: u128) -> Vec<(DeviceId, DeviceId)> {
    (1..=disks).flat_map(|d| (disks + 1..=disks + flashes).map(move |f| (DeviceId(d), DeviceId(f)))).collect()
}

fn paired(disks: u128, flashes: u128) -> (Arc<CellStore>, Vec<Arc<TestDisk>>) {
    let (store, media) = cell(disks, flashes, SIZE);
    assert!(store.matching_pairs().is_empty(), "nothing matches before it was paired");
    let failed = run(store.renew_stamps(Renewal::Open, &all_pairs(disks, flashes), &mut Prng::new(1)));
    assert!(failed.is_empty());
    assert_eq!(store.matching_pairs(), all_pairs(disks, flashes));
    (store, media)
}

fn images(media: &[Arc<TestDisk>]) -> Vec<Image> {
    media.iter().map(|medium| medium.visible()).collect()
}

#[test]
fn a_disk_from_a_snapshot_or_used_elsewhere_is_recognised() {
    let (store, media) = paired(2, 1);
    run(store.renew_stamps(Renewal::CleanStop, &store.matching_pairs(), &mut Prng::new(2)));
    assert!(store.cell_disks().iter().all(|disk| disk.label().clean_stop));
    let snapshot = media[0].visible();
    let opened = open(&media, 3).unwrap().store;
    assert_eq!(opened.matching_pairs(), all_pairs(2, 1));
    run(opened.renew_stamps(Renewal::Open, &opened.matching_pairs(), &mut Prng::new(3)));
    assert!(opened.cell_disks().iter().all(|disk| !disk.label().clean_stop));
    // Disk 1 goes back to its snapshot.
    let mut after = images(&media);
    after[0] = snapshot;
    let back = open(&restarted(&after, &geometry(SIZE), &Power::default()), 4).unwrap().store;
    assert_eq!(back.matching_pairs(), [(DeviceId(2), DeviceId(3))]);
    // Disk 2 is used without its flash for a while.
    let alone = open(&media[1..2], 5).unwrap().store;
    run(alone.renew_stamps(Renewal::Open, &alone.matching_pairs(), &mut Prng::new(4)));
    let back = open(&media, 6).unwrap().store;
    assert_eq!(back.matching_pairs(), [(DeviceId(1), DeviceId(3))]);
    // Only the pair that still matches is carried on; the other is void for good.
    run(back.renew_stamps(Renewal::Open, &back.matching_pairs(), &mut Prng::new(5)));
    assert_eq!(back.matching_pairs(), [(DeviceId(1), DeviceId(3))]);
    // Declared void and paired anew by the layer above.
    run(back.renew_stamps(Renewal::Open, &all_pairs(2, 1), &mut Prng::new(6)));
    assert_eq!(back.matching_pairs(), all_pairs(2, 1));
}

#[test]
fn a_cut_never_parts_a_pair() {
    let (_store, media) = paired(2, 2);
    let base = images(&media);
    let mut restarts = 0;
    for first in 0.. {
        let power = Power::default();
        let media = restarted(&base, &geometry(SIZE), &power);
        let store = open(&media, 7).unwrap().store;
        let pairs = store.matching_pairs();
        assert_eq!(pairs, all_pairs(2, 2));
        power.cut_after(first);
        let done = run(store.renew_stamps(Renewal::Open, &pairs, &mut Prng::new(7))).is_empty();
        for fate in 0..3 {
            let mut prng = Prng::new(first * 10 + fate);
            let after: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
            // The next renewal is cut as well: it first finishes what the first one announced.
            for second in (0..40).step_by(3) {
                let power = Power::default();
                let media = restarted(&after, &geometry(SIZE), &power);
                let store = open(&media, 8).unwrap().store;
                assert_eq!(store.matching_pairs(), all_pairs(2, 2), "cut after {first}");
                power.cut_after(second);
                run(store.renew_stamps(Renewal::Open, &all_pairs(2, 2), &mut Prng::new(8)));
                let last: Vec<Image> = media.iter().map(|medium| medium.after_power_cut(&mut prng)).collect();
                let store = open(&restarted(&last, &geometry(SIZE), &Power::default()), 9).unwrap().store;
                assert_eq!(store.matching_pairs(), all_pairs(2, 2), "cut after {first}, then {second}");
                restarts += 1;
            }
        }
        if done {
            break;
        }
    }
    assert!(restarts > 300, "{restarts}");
}

#[test]
fn a_flash_that_cannot_be_written_keeps_its_pairs_until_given_up() {
    let (store, media) = paired(1, 2);
    media[2].fail(|verb, _, _| (verb == Verb::Write).then_some(Fault::Fail(FailKind::Media)));
    let failed = run(store.renew_stamps(Renewal::Open, &all_pairs(1, 2), &mut Prng::new(2)));
    assert_eq!(failed.iter().map(|f| f.device_id).collect::<Vec<_>>(), [DeviceId(3)]);
    assert_eq!(store.matching_pairs(), all_pairs(1, 2), "it may hold the only copy of something");
    let failed = run(store.renew_stamps(Renewal::Open, &all_pairs(1, 2), &mut Prng::new(3)));
    assert_eq!(failed.len(), 1);
    assert_eq!(store.matching_pairs(), all_pairs(1, 2));
    // Given up: the disk says so first, then goes on without it.
    let disk = store.cell_disk(DeviceId(1)).unwrap();
    run(disk.update_label(|label| {
        label.flash_members.get_mut(&DeviceId(3)).unwrap().state = FlashState::Expelled;
    }))
    .unwrap();
    assert_eq!(store.matching_pairs(), [(DeviceId(1), DeviceId(2))]);
    assert!(run(store.renew_stamps(Renewal::Open, &store.matching_pairs(), &mut Prng::new(4))).is_empty());
    media[2].mend();
    let store = run(CellStore::open(media.iter().map(TestDisk::device).collect(), open_options(5))).unwrap().store;
    assert_eq!(store.matching_pairs(), [(DeviceId(1), DeviceId(2))], "void for ever");
}

#[test]
fn a_formatted_or_renewed_flash_device_does_not_pass_for_the_old_one() {
    let (store, _media) = paired(1, 1);
    let flash = store.cell_disk(DeviceId(2)).unwrap();
    run(flash.update_label(|label| label.device_generation += 1)).unwrap();
    assert!(store.matching_pairs().is_empty());
    run(flash.update_label(|label| label.device_generation -= 1)).unwrap();
    assert_eq!(store.matching_pairs().len(), 1);
    let disk = store.cell_disk(DeviceId(1)).unwrap();
    run(disk.update_label(|label| label.device_generation += 1)).unwrap();
    assert!(store.matching_pairs().is_empty());
}
