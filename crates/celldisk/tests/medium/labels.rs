//! Goal: a label change is durable when it returns, all or nothing, whatever the medium does; and costs few writes.
//! Method: one device of `support`, torn, rotten, failing and slow on purpose.

use crate::support::{self, Fault, Image, MIB, Power, SECTOR, TestDisk, geometry, options, run};
use celldisk::layout::{DATA_OFFSET, PAGE_BYTES};
use celldisk::section::SectionKind;
use celldisk::{
    CellDisk, CellDiskError, CellStore, DeviceId, FlashMember, FlashState, Label, LabelError, OpenOptions, Place, Role,
    Sabotage, Slot, Stamp,
};
use device::{FailKind, Prng, Verb};
use futures_executor::LocalPool;
use futures_util::task::LocalSpawnExt;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const SIZE: u64 = 64 * MIB;

fn formatted() -> (Arc<TestDisk>, Arc<CellDisk>) {
    let medium = TestDisk::new(SIZE);
    let disk = run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    (medium, disk)
}

fn reopened(image: &Image) -> Result<Arc<CellDisk>, CellDiskError> {
    run(CellDisk::open(TestDisk::with(geometry(SIZE), image.clone(), Power::default()).device()))
}

#[test]
fn a_change_is_there_after_a_power_cut() {
    let (medium, disk) = formatted();
    assert_eq!((disk.label().sequence, disk.label().clean_stop), (1, true));
    run(disk.update_label(|label| label.ring_generation = 7)).unwrap();
    assert_eq!(disk.label().ring_generation, 7);
    for seed in 0..20 {
        let again = reopened(&medium.after_power_cut(&mut Prng::new(seed))).unwrap();
        assert_eq!(again.label(), disk.label());
        assert_eq!(again.damaged_count(), 0);
    }
}

/// The bytes of a label write that differ between two images, as one image with the first `sectors` sectors of the new one.
fn torn(old: &Image, new: &Image, slot: Slot, sectors: [u64; 2]) -> Image {
    let mut image = old.clone();
    for (place, sectors) in slot.places().into_iter().zip(sectors) {
        let offset = SectionKind::Label.offset(place);
        image.write(offset, &new.read(offset, (sectors * SECTOR) as usize));
    }
    image
}

#[test]
fn a_torn_write_falls_back_at_every_sector() {
    let (medium, disk) = formatted();
    let old_image = medium.visible();
    let old = disk.label();
    run(disk.update_label(|label| {
        label.ring_generation = 7;
        label.cache_era = 0;
        // Spread over the whole section, so that every torn prefix really differs.
        label.dirty.set(0, SIZE);
        label.stamp = Stamp(0x77);
    }))
    .unwrap();
    let new_image = medium.visible();
    let new = disk.label();
    // Both slots were written, B last: the next write begins with A.
    let slot = Slot::A;
    let total = (new.encode(Place { slot, mirror: false }).len() as u64) / SECTOR;
    let mut fell_back = 0;
    for sectors in 0..=total {
        // Both copies torn at the same place, or one not begun.
        for both in [[sectors, sectors], [sectors, 0], [0, sectors]] {
            let again = reopened(&torn(&old_image, &new_image, slot, both)).unwrap();
            let label = again.label();
            assert!(*label == *old || *label == *new, "torn at sector {sectors}");
            if both.contains(&total) {
                assert_eq!(*label, *new, "one whole copy is enough");
            }
            // The last sectors hold only padding: the section is whole before them.
            if *label == *old {
                fell_back += 1;
            }
        }
    }
    assert!(fell_back > total, "most torn writes are no writes");
}

#[test]
fn rot_of_one_copy_is_mended_and_loses_nothing() {
    let (medium, disk) = formatted();
    run(disk.update_label(|label| label.ring_generation = 7)).unwrap();
    for mirror in [false, true] {
        let mut image = medium.visible();
        let offset = SectionKind::Label.offset(Place { slot: Slot::A, mirror });
        let mut sector = image.read(offset, 512);
        sector[200] ^= 1;
        image.write(offset, &sector);
        let rotten = TestDisk::with(geometry(SIZE), image, Power::default());
        let again = run(CellDisk::open(rotten.device())).unwrap();
        assert_eq!(again.label(), disk.label());
        assert_eq!(again.damaged_count(), 1);
        assert!(rotten.visible() == medium.visible(), "the bad copy was written again");
    }
}

/// A flash device that holds dirty data and redo of the disk, as the label says it before the first acknowledgement.
fn restrict(label: &mut Label) {
    let member = FlashMember {
        generation: 1,
        state: FlashState::Dirty,
        redo_pending: Some(Stamp(0x4ed0)),
        paired_stamp: label.stamp,
    };
    label.flash_members.insert(DeviceId(7), member);
    label.dirty.set(3 * MIB, MIB);
}

#[test]
fn two_unreadable_copies_never_bring_back_a_label_without_dirty_and_redo_pending() {
    let (medium, disk) = formatted();
    run(disk.update_label(restrict)).unwrap();
    for [a, b] in pairs_of_places() {
        // Rot, and sectors that cannot be read.
        let mut image = medium.visible();
        for place in [a, b] {
            image.write(SectionKind::Label.offset(place), &[0x5a; SECTOR as usize]);
        }
        let again = reopened(&image).unwrap();
        assert_eq!(again.label(), disk.label(), "{a:?} and {b:?} are rotten");
        assert_eq!(again.damaged_count(), 2);

        let bad = TestDisk::with(geometry(SIZE), medium.visible(), Power::default());
        let unreadable = [a, b].map(|place| SectionKind::Label.offset(place));
        bad.fail(move |verb, offset, _| {
            (verb == Verb::Read && unreadable.contains(&offset)).then_some(Fault::Fail(FailKind::Media))
        });
        let again = run(CellDisk::open(bad.device())).unwrap();
        assert_eq!(again.label(), disk.label(), "{a:?} and {b:?} cannot be read");
        bad.mend();
        assert!(bad.visible() == medium.visible(), "the bad copies were written again");
    }
}

#[test]
fn the_broken_build_forgets_dirty_with_two_unreadable_copies() {
    let forgotten = |sabotage| {
        let (_, media) = support::cell(1, 0, SIZE);
        let options = OpenOptions { sabotage, ..support::open_options(100) };
        let devices = media.iter().map(TestDisk::device).collect();
        let disk = run(CellStore::open(devices, options)).unwrap().store.cell_disks().remove(0);
        run(disk.update_label(restrict)).unwrap();
        let lacks_dirty = |slot: &Slot| {
            let mut image = media[0].visible();
            for place in slot.places() {
                image.write(SectionKind::Label.offset(place), &[0x5a; SECTOR as usize]);
            }
            !reopened(&image).unwrap().label().is_dirty_on(&DeviceId(7))
        };
        Slot::BOTH.iter().any(lacks_dirty)
    };
    assert!(!forgotten(None));
    assert!(forgotten(Some(Sabotage::SecondSlotSkipped)), "the test above would notice");
}

/// Every two of the four.
fn pairs_of_places() -> Vec<[Place; 2]> {
    let all = Place::ALL;
    (0..4).flat_map(|a| (a + 1..4).map(move |b| [all[a], all[b]])).collect()
}

#[test]
fn after_a_cut_in_any_label_write_two_rotten_copies_bring_back_nothing_that_was_acknowledged_before() {
    let (mut old, mut new) = (0, 0);
    for cut in 0..=4 {
        for seed in 0..60 {
            let power = Power::default();
            let (medium, _) = formatted();
            let medium = TestDisk::with(geometry(SIZE), medium.visible(), power.clone());
            let disk = run(CellDisk::open(medium.device())).unwrap();
            run(disk.update_label(restrict)).unwrap();
            power.cut_after(cut);
            let acknowledged = run(disk.update_label(|label| label.ring_generation = 7)).is_ok();
            let image = medium.after_power_cut(&mut Prng::new(cut * 100 + seed));
            // What the first start after the cut shows is not taken back, whichever two copies rot then.
            let first = TestDisk::with(geometry(SIZE), image, Power::default());
            let shown = run(CellDisk::open(first.device())).unwrap().label();
            assert!(shown.is_dirty_on(&DeviceId(7)) && shown.has_redo_pending(), "cut {cut}, seed {seed}");
            assert!(!acknowledged || shown.ring_generation == 7, "cut {cut}, seed {seed}");
            if shown.ring_generation == 7 {
                new += 1
            } else {
                old += 1
            }
            for [a, b] in pairs_of_places() {
                let mut image = first.visible();
                for place in [a, b] {
                    image.write(SectionKind::Label.offset(place), &[0x5a; SECTOR as usize]);
                }
                assert_eq!(reopened(&image).unwrap().label(), shown, "cut {cut}, seed {seed}, {a:?} and {b:?}");
            }
        }
    }
    assert!(old > 10 && new > 10, "both sides of the commit: {old} and {new}");
}

#[test]
fn an_unreadable_copy_is_one_that_is_not_there() {
    let (medium, disk) = formatted();
    run(disk.update_label(|label| label.ring_generation = 7)).unwrap();
    let bad = SectionKind::Label.offset(Place { slot: Slot::A, mirror: false });
    medium.fail(move |verb, offset, _| {
        (offset == bad && matches!(verb, Verb::Read | Verb::Write)).then_some(Fault::Fail(FailKind::Media))
    });
    let again = run(CellDisk::open(medium.device())).unwrap();
    assert_eq!(again.label().ring_generation, 7);
    assert_eq!((again.damaged_count(), again.failed_copies()), (1, 1));
    run(again.update_label(|label| label.ring_generation = 8)).unwrap();
    run(again.update_label(|label| label.ring_generation = 9)).unwrap();
    assert_eq!(again.failed_copies(), 3, "one place of four takes no write");
    assert_eq!(run(CellDisk::open(medium.device())).unwrap().label().ring_generation, 9);
}

#[test]
fn what_was_read_at_open_is_durable_before_the_other_slot_is_overwritten() {
    // The process dies after its write reached the volatile cache; the machine goes on and the new process reads the new
    // label. A power cut during its first write must not lose both.
    let (medium, disk) = formatted();
    let before = disk.label();
    let durable = medium.visible();
    let newer = {
        let copy = TestDisk::with(geometry(SIZE), durable.clone(), Power::default());
        let disk = run(CellDisk::open(copy.device())).unwrap();
        run(disk.update_label(|label| label.ring_generation = 7)).unwrap();
        copy.visible()
    };
    for cut in 0..4 {
        for seed in 0..100 {
            let power = Power::default();
            let medium = TestDisk::with(geometry(SIZE), durable.clone(), power.clone());
            for place in Slot::A.places() {
                let offset = SectionKind::Label.offset(place);
                // Without FUA: visible, not durable.
                let bytes = newer.read(offset, 20 << 10);
                assert_eq!(support::write(&*medium, offset, &bytes, false), device::Outcome::Done);
            }
            let again = run(CellDisk::open(medium.device())).unwrap();
            assert_eq!(again.label().ring_generation, 7);
            power.cut_after(cut);
            let _ = run(again.update_label(|label| label.ring_generation = 8));
            let last = reopened(&medium.after_power_cut(&mut Prng::new(cut * 1000 + seed))).unwrap();
            assert!(last.label().ring_generation >= 7, "what was shown once is not taken back");
            assert!(last.label().sequence > before.sequence);
        }
    }
}

/// A crash between the writes of the two slots, then a start that cannot bring the other slot up to date: its older label is whole and readable. What
/// the newer one says (here "flash holds the only copy of something") must not count as written, or the loss of two
/// places brings the older one back.
#[test]
fn a_slot_that_cannot_be_healed_at_open_does_not_count_as_written() {
    for slot in [Slot::A, Slot::B] {
        for landed in [false, true] {
            let (medium, disk) = formatted();
            let before = medium.visible();
            run(disk.update_label(|label| label.ring_generation = 7)).unwrap();
            for place in slot.other().places() {
                let offset = SectionKind::Label.offset(place);
                medium.patch(offset, &before.read(offset, 20 << 10));
            }
            let of_the_other =
                move |offset: u64| slot.other().places().map(|it| SectionKind::Label.offset(it)).contains(&offset);
            medium.fail(move |verb, offset, _| {
                let fault = if landed { Fault::FailLanded(FailKind::Media) } else { Fault::Fail(FailKind::Media) };
                (verb == Verb::Write && of_the_other(offset)).then_some(fault)
            });
            let again = run(CellDisk::open(medium.device())).unwrap();
            assert_eq!((again.label().ring_generation, again.failed_copies()), (7, 2), "the newer one counts");
            assert!(!again.is_label_certain());
            let told = run(again.update_label(|label| label.ring_generation = 7));
            assert!(told.is_err(), "acknowledged while an older label is whole in the other slot");
            medium.mend();
            run(again.update_label(|label| label.ring_generation = 7)).unwrap();
            assert!(again.is_label_certain());
            // An acknowledged label stays when two places are lost, in whichever slot.
            for lost in [Slot::A, Slot::B] {
                let copy = TestDisk::with(geometry(SIZE), medium.after_power_cut(&mut Prng::new(1)), Power::default());
                for place in lost.places() {
                    copy.patch(SectionKind::Label.offset(place), &[0; 20 << 10]);
                }
                assert_eq!(run(CellDisk::open(copy.device())).unwrap().label().ring_generation, 7);
            }
        }
    }
}

#[test]
fn changes_that_arrive_during_a_write_share_the_next() {
    let (medium, disk) = formatted();
    medium.take_log();
    medium.hold();
    let mut pool = LocalPool::new();
    let done = Rc::new(RefCell::new(Vec::new()));
    for n in 0..50_u64 {
        let (disk, done) = (disk.clone(), done.clone());
        let task = async move {
            let result = disk
                .update_label(|label| {
                    label.ring_generation += 1;
                    label.ring_generation_dead = n;
                })
                .await;
            done.borrow_mut().push((n, result, disk.label().ring_generation));
        };
        pool.spawner().spawn_local(task).unwrap();
    }
    pool.run_until_stalled();
    assert!(done.borrow().is_empty());
    medium.release();
    pool.run_until_stalled();
    let done = done.borrow();
    assert_eq!(done.len(), 50);
    assert!(done.iter().all(|(_, result, _)| result.is_ok()));
    assert_eq!(disk.label().ring_generation, 50, "no change was lost");
    assert_eq!(disk.label().sequence, 3, "one write for the first, one for all others");
    let writes = medium.take_log().iter().filter(|(verb, ..)| *verb == Verb::Write).count();
    assert_eq!(writes, 8, "four copies each");
    assert!(done.iter().all(|(_, _, seen)| *seen >= 1), "durable before anybody is told");
}

#[test]
fn a_change_of_nothing_costs_no_write() {
    let (medium, disk) = formatted();
    medium.take_log();
    run(disk.update_label(|label| label.ring_generation = 0)).unwrap();
    assert!(medium.take_log().is_empty());
}

#[test]
fn a_failed_write_changes_nothing_and_may_be_tried_again() {
    for landed in [false, true] {
        let (medium, disk) = formatted();
        let before = disk.label();
        medium.fail(move |verb, _, _| {
            let kind = FailKind::Media;
            (verb == Verb::Write).then_some(if landed { Fault::FailLanded(kind) } else { Fault::Fail(kind) })
        });
        let failed = run(disk.update_label(|label| label.ring_generation = 1));
        assert!(matches!(failed, Err(CellDiskError::Io(_))), "{failed:?}");
        assert_eq!(disk.label(), before);
        medium.mend();
        run(disk.update_label(|label| label.ring_generation_dead = 2)).unwrap();
        assert_eq!(disk.label().ring_generation, 0, "the failed change is not in the next one");
        assert!(disk.label().sequence > before.sequence + 1, "newer than what may have landed");
        let again = reopened(&medium.after_power_cut(&mut Prng::new(1))).unwrap();
        assert_eq!(again.label(), disk.label());
    }
}

#[test]
fn what_a_label_says_already_is_written_anew_after_a_failed_write() {
    let (medium, disk) = formatted();
    run(disk.update_label(|label| label.ring_generation = 1)).unwrap();
    medium.take_log();
    run(disk.update_label(|label| label.ring_generation = 1)).unwrap();
    assert!(medium.take_log().is_empty(), "the device certainly has it");
    medium.fail(|verb, _, _| (verb == Verb::Write).then_some(Fault::FailLanded(FailKind::Media)));
    run(disk.update_label(|label| label.ring_generation = 0)).unwrap_err();
    // The device has what that write said: nobody may count on what the label in memory says.
    run(disk.update_label(|label| label.ring_generation = 1)).unwrap_err();
    medium.mend();
    run(disk.update_label(|label| label.ring_generation = 1)).unwrap();
    assert!(disk.is_label_certain());
    assert_eq!(reopened(&medium.after_power_cut(&mut Prng::new(1))).unwrap().label().ring_generation, 1);
}

#[test]
fn those_who_wait_behind_a_failed_write_are_told() {
    let (medium, disk) = formatted();
    medium.fail(|verb, _, _| (verb == Verb::Write).then_some(Fault::Short(512)));
    medium.hold();
    let mut pool = LocalPool::new();
    let failed = Rc::new(RefCell::new(0));
    for n in 1..=3 {
        let (disk, failed) = (disk.clone(), failed.clone());
        let task = async move {
            if disk.update_label(|label| label.ring_generation += n).await.is_err() {
                *failed.borrow_mut() += 1;
            }
        };
        pool.spawner().spawn_local(task).unwrap();
    }
    pool.run_until_stalled();
    medium.release();
    pool.run_until_stalled();
    assert_eq!(*failed.borrow(), 3);
    medium.mend();
    run(disk.update_label(|label| label.ring_generation += 100)).unwrap();
    assert_eq!(disk.label().ring_generation, 100);
}

#[test]
fn an_unknown_outcome_latches_until_reopened() {
    let (medium, disk) = formatted();
    medium.fail(|verb, _, _| (verb == Verb::Write).then_some(Fault::Unknown));
    let failed = run(disk.update_label(|label| label.ring_generation = 1));
    assert!(matches!(failed, Err(CellDiskError::Latched { .. })), "{failed:?}");
    medium.mend();
    medium.take_log();
    let failed = run(disk.update_label(|label| label.ring_generation = 2));
    assert!(matches!(failed, Err(CellDiskError::Latched { .. })), "{failed:?}");
    assert!(medium.take_log().is_empty(), "nothing may follow a write that may still land");
    assert!(disk.latched().is_some());
    run(run(CellDisk::open(medium.device())).unwrap().update_label(|label| label.ring_generation = 3)).unwrap();
}

#[test]
fn an_abandoned_write_latches() {
    let (medium, disk) = formatted();
    medium.hold();
    {
        let mut pool = LocalPool::new();
        let writer = disk.clone();
        let task = async move {
            let _ = writer.update_label(|label| label.ring_generation = 1).await;
        };
        pool.spawner().spawn_local(task).unwrap();
        pool.run_until_stalled();
    }
    let failed = run(disk.update_label(|label| label.ring_generation = 2));
    assert!(matches!(failed, Err(CellDiskError::Latched { .. })), "{failed:?}");
    medium.release();
}

#[test]
fn what_is_fixed_stays() {
    type Change = fn(&mut Label);
    let (medium, disk) = formatted();
    medium.take_log();
    let changes: [Change; 7] = [
        |label| label.cell_id.0 += 1,
        |label| label.device_id.0 += 1,
        |label| label.role = Role::Flash,
        |label| label.au_bytes *= 2,
        |label| label.created.0 += 1,
        |label| label.size_bytes -= 4096,
        |label| label.size_bytes += 4096,
    ];
    for change in changes {
        let failed = run(disk.update_label(change));
        assert!(matches!(failed, Err(CellDiskError::Label(LabelError::Fixed { .. }))), "{failed:?}");
    }
    let failed = run(disk.update_label(|label| label.name = "x".repeat(65)));
    assert!(matches!(failed, Err(CellDiskError::Label(LabelError::Name { .. }))), "{failed:?}");
    assert!(medium.take_log().is_empty());
}

#[test]
fn sizes() {
    let (medium, disk) = formatted();
    let label = disk.label();
    assert_eq!((label.size_bytes, label.au_bytes, label.au_count()), (SIZE, 512 << 10, 120));
    assert_eq!(disk.name(), "CD_01_c1");

    let shrunk = TestDisk::with(geometry(SIZE - 4096), medium.visible(), Power::default());
    let failed = run(CellDisk::open(shrunk.device())).unwrap_err();
    assert!(matches!(failed, CellDiskError::Shrunk { .. }), "{failed}");
    assert_eq!(failed.to_string(), "cell disk CD_01_c1 was made with 67108864 bytes, the device has 67104768");

    run(disk.update_label(|label| {
        label.dirty.set(3 * MIB, 1);
    }))
    .unwrap();
    medium.grow(SIZE + 10 * MIB + 777);
    let grown = run(CellDisk::open(medium.device())).unwrap();
    assert_eq!(grown.label().size_bytes, SIZE, "growth is taken when it is asked for");
    run(grown.adopt_size()).unwrap();
    assert_eq!((grown.label().size_bytes, grown.label().au_count()), (SIZE + 10 * MIB, 140));
    assert!(grown.label().dirty.is_dirty(3 * MIB, 1));

    let small = TestDisk::new(DATA_OFFSET + (64 << 10) - 1);
    let failed = run(CellDisk::format(small.device(), options(1, Role::Disk))).unwrap_err();
    assert!(matches!(failed, CellDiskError::TooSmall { .. }), "{failed}");
    let smallest = TestDisk::new(DATA_OFFSET + (64 << 10));
    assert_eq!(run(CellDisk::format(smallest.device(), options(1, Role::Disk))).unwrap().label().au_count(), 1);
}

#[test]
fn a_512_byte_claim_on_flash_is_not_believed() {
    for (role, claimed, recorded) in [(Role::Flash, 512, 4096), (Role::Disk, 512, 512), (Role::Flash, 16384, 16384)] {
        let mut geometry = geometry(SIZE);
        geometry.page_bytes = claimed;
        let medium = TestDisk::with(geometry, Image::default(), Power::default());
        let disk = run(CellDisk::format(medium.device(), options(1, role))).unwrap();
        assert_eq!(disk.label().page_bytes, recorded);
    }
    let mut odd = geometry(SIZE);
    odd.logical_bytes = 8192;
    let medium = TestDisk::with(odd, Image::default(), Power::default());
    let failed = run(CellDisk::open(medium.device())).unwrap_err();
    assert!(matches!(failed, CellDiskError::Geometry { .. }));
}

#[test]
fn writes_keep_to_their_slot_and_to_the_limits_of_the_device() {
    let mut small = geometry(SIZE);
    small.transfer_bytes_max = 4096;
    let medium = TestDisk::with(small, Image::default(), Power::default());
    let disk = run(CellDisk::format(medium.device(), options(1, Role::Disk))).unwrap();
    medium.take_log();
    run(disk.update_label(|label| label.ring_generation = 1)).unwrap();
    let log = medium.take_log();
    assert!(log.len() >= 20, "20 KiB in pieces of 4, four times");
    for (half, slot) in log.chunks(log.len() / 2).zip([Slot::A, Slot::B]) {
        let starts = slot.places().map(|place| SectionKind::Label.offset(place));
        for (verb, offset, len) in half {
            assert_eq!((*verb, *len), (Verb::Write, PAGE_BYTES));
            let within = |start: &u64| (*start..*start + SectionKind::Label.room_bytes()).contains(offset);
            assert!(starts.iter().any(within), "{slot:?} is written when the other is whole");
        }
    }
}

#[test]
fn an_erased_device_is_blank() {
    let (medium, disk) = formatted();
    run(disk.erase()).unwrap();
    assert_eq!(medium.after_power_cut(&mut Prng::new(1)).sectors().count(), 0);
    assert!(matches!(run(disk.update_label(|l| l.ring_generation = 1)), Err(CellDiskError::Latched { .. })));
    assert_eq!(run(CellDisk::open(medium.device())).unwrap_err(), CellDiskError::Blank);
}
