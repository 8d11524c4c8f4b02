//! Goal: a flash device that fails, stalls, rots or refuses a verb costs what it must and no more: what is clean is a miss, what is dirty
//! is read from its mirror or said to be lost, and writes go on once a label says so. Method: caches on memory devices with faults on
//! demand, one fault at a time, each looked at in answers and counters.

#![expect(clippy::unwrap_used, reason = "tests")]

mod headless;
mod links;
mod mirrors;
mod openings;
mod overtaken;
mod own_crc;
mod rig;
mod tails;
mod undurable;
mod unreadable;
mod verified;

use device::io::{FailKind, Verb};
use device::layers::{Action, Fault, Faults};
use device::spawn::yield_now;
use device::{Device, Geometry, World};
use flashcache::format::Owner;
use flashcache::{
    CacheConfig, CachedDisk, DirtyRefused, FlashCache, HitError, MemberDevice, MemberError, Residence, Sabotage,
};
use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::running::{next_life, run};
use rig::*;

#[test]
fn a_device_that_cannot_be_read_is_given_up_and_writes_wait_for_the_label() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.filled(0).await;
        rig.filled(1).await;
        let hit = rig.hit(0);
        rig.faults[0].add(Fault::next(Verb::Read, Action::Fail(FailKind::Gone)));
        assert_eq!(rig.read(hit).await, Err(HitError::Failed));
        assert_eq!((rig.member().has_failed(), rig.counters()["errors"]), (true, 1));
        assert!(rig.member().failure().unwrap().starts_with("read at "));
        assert!(rig.misses(0) && rig.misses(1) && rig.member().entries() == 0);
        assert_eq!(rig.offer(2), flashcache::FillReport { crowded: 1, ..Default::default() });
        // Nothing was dirty, so nothing is lost.
        assert!(!rig.cache.has_lost(&rig.disk) && !rig.cache.has_lost_any());
        // A write waits for the label of its disk.
        let mut write = Box::pin(rig.cache.begin_write(&rig.disk, parts(0)));
        for _ in 0..50 {
            assert!(write.as_mut().now_or_never().is_none());
            yield_now().await;
        }
        assert_eq!(rig.cache.next_failure(&BTreeSet::new()).await, Some(0));
        rig.cache.expulsion_refused(0, HOME + 1);
        assert!(write.as_mut().now_or_never().is_none(), "the label of another disk");
        rig.cache.expulsion_refused(0, HOME);
        assert!(write.await.is_err());
        assert_eq!(rig.cache.member_of(&rig.disk, 0), Some(0));
        let before = rig.cache.membership();
        rig.cache.confirm_expelled(0, HOME);
        assert!(rig.cache.membership() > before);
        assert_eq!(rig.cache.member_of(&rig.disk, 0), None);
        let ticket = rig.cache.begin_write(&rig.disk, parts(0)).await.unwrap();
        rig.cache.end_write(ticket);
        assert_eq!(rig.dirty(0).await, Err(DirtyRefused::Failed));
    });
}

#[test]
fn failures_are_told_once_and_not_while_it_leaves() {
    run(|world| async move {
        let rig = Rig::new(2, world).await;
        let none = BTreeSet::new();
        assert!(rig.cache.next_failure(&none).now_or_never().is_none());
        assert!(rig.cache.failure_among(&[0, 1]).now_or_never().is_none());
        rig.cache.members().nth(1).unwrap().fail("a test".to_owned());
        assert_eq!(rig.cache.next_failure(&none).now_or_never(), Some(Some(1)));
        assert_eq!(rig.cache.failure_among(&[0, 1]).now_or_never(), Some(1));
        assert!(rig.cache.failure_among(&[0]).now_or_never().is_none());
        assert!(rig.cache.next_failure(&[1].into()).now_or_never().is_none(), "known already");
        rig.cache.set_members_leaving(&[1], true);
        assert!(rig.cache.next_failure(&none).now_or_never().is_none());
        rig.cache.set_members_leaving(&[1], false);
        rig.cache.set_leaving(true);
        assert!(rig.cache.next_failure(&none).now_or_never().is_none());
        rig.cache.set_leaving(false);
        assert_eq!(rig.cache.next_failure(&none).now_or_never(), Some(Some(1)));
        // Dropped: nobody waits for a label any more.
        let mut write = Box::pin(rig.cache.begin_write(&rig.disk, parts(0)));
        assert!(write.as_mut().now_or_never().is_none());
        rig.cache.set_void();
        let ticket = write.await.unwrap();
        rig.cache.end_write(ticket);
        assert_eq!(rig.cache.member_of(&rig.disk, 0), None);
        rig.cache.stop().await;
        assert_eq!(rig.cache.next_failure(&none).await, None);
    });
}

#[test]
fn what_was_dirty_on_it_alone_is_lost_and_said_so() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        assert!(rig.cache.takes_dirty() && !rig.cache.has_dirty(&rig.disk));
        rig.dirty(3).await.unwrap();
        let hit = rig.hit(3);
        assert!(hit.is_dirty());
        assert_eq!(rig.cache.all_dirty_bytes(), (BLOCK_BYTES as u64, 0));
        rig.faults[0].add(Fault::next(Verb::Read, Action::Fail(FailKind::Gone)));
        assert_eq!(rig.read(hit).await, Err(HitError::Lost));
        assert!(rig.member().has_failed() && !rig.member().is_covered());
        assert!(rig.cache.has_lost(&rig.disk) && rig.cache.has_lost_any());
        assert_eq!(rig.cache.all_dirty_bytes(), (0, BLOCK_BYTES as u64));
        assert!(rig.cache.sync(&rig.disk).await.is_err());
        // Another grid disk had nothing there.
        let other = rig.cache.disk(CachedDisk { id: 8, ..DISK });
        assert!(!rig.cache.has_lost(&other) && !rig.cache.has_dirty(&other));
    });
}

#[test]
fn what_was_dirty_on_the_first_of_two_to_fail_is_covered() {
    run(|world| async move {
        let rig = Rig::new(2, world).await;
        rig.dirty(3).await.unwrap();
        let bytes = BLOCK_BYTES as u64;
        let place = rig.cache.member_of(&rig.disk, 12).unwrap();
        let members: Vec<_> = rig.cache.members().cloned().collect();
        assert_eq!((members[0].dirty_bytes(), members[1].dirty_bytes()), (bytes, bytes));
        assert_eq!((rig.cache.dirty_bytes(&rig.disk), rig.cache.all_dirty_bytes()), (bytes, (bytes, 0)));
        members[place].fail("a test".to_owned());
        assert!(members[place].is_covered() && rig.cache.is_short_of_members() && !rig.cache.takes_dirty());
        assert!(!rig.cache.has_lost(&rig.disk) && rig.cache.has_dirty(&rig.disk));
        assert_eq!(rig.cache.all_dirty_bytes(), (bytes, 0));
        assert_eq!(rig.read(rig.hit(3)).await, Ok(()), "before any label says so");
        rig.cache.confirm_expelled(place, HOME);
        assert_eq!(rig.dirty(4).await, Err(DirtyRefused::NoRoom), "nothing new becomes dirty");
        rig.cache.write_dirty(&rig.disk, parts(3), &data(3), true).await.unwrap();
        rig.cache.sync(&rig.disk).await.unwrap();
        members[1 - place].fail("a test".to_owned());
        assert!(!members[1 - place].is_covered() && rig.cache.has_lost(&rig.disk));
        assert_eq!(rig.cache.all_dirty_bytes(), (0, bytes));
    });
}

#[test]
fn a_device_that_is_there_alone_covers_nothing() {
    run(|world| async move {
        let rig = Rig::new(2, world).await;
        rig.dirty(3).await.unwrap();
        let rig = rig.again().await;
        let bytes = BLOCK_BYTES as u64;
        assert_eq!(rig.cache.all_dirty_bytes(), (bytes, 0));
        // Its mirror is not there at the next start.
        rig.cache.stop().await;
        let faults = Faults::new(rig.media[0].clone() as Device, rig.world.clone().spawn);
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let members = vec![MemberDevice { device: faults, owner, life: next_life(), durable: true, checkpoint: None }];
        let config = CacheConfig { mirrored: true, ..config() };
        let (cache, _) = FlashCache::open(config, members, &[DISK], rig.world.clone()).await.unwrap();
        let disk = cache.disk(DISK);
        assert!(!cache.takes_dirty() && cache.is_short_of_members() && cache.has_dirty(&disk));
        assert_eq!((cache.dirty_bytes(&disk), cache.all_dirty_bytes()), (bytes, (bytes, 0)));
        assert_eq!(cache.write_dirty(&disk, parts(5), &data(5), false).await, Err(DirtyRefused::NoRoom));
        cache.members().next().unwrap().fail("a test".to_owned());
        assert!(cache.has_lost(&disk) && cache.all_dirty_bytes() == (0, bytes));
    });
}

#[test]
fn a_slow_device_serves_what_is_dirty_alone_until_it_is_quick_again() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.filled(0).await;
        rig.filled(1).await;
        let stall = rig.faults[0].add(Fault::every(Verb::Read, Action::Stall));
        assert_eq!(rig.read(rig.hit(0)).await, Err(HitError::Slow));
        assert!(rig.member().is_slow() && !rig.member().has_failed());
        assert!(rig.misses(0) && rig.misses(1), "nothing dirty: it is not asked");
        assert_eq!(rig.offer(9).crowded, 1);
        rig.dirty(3).await.unwrap();
        assert!(rig.hit(3).is_dirty() && rig.misses(0), "what is dirty is nowhere else");
        rig.faults[0].remove(stall);
        // The one that waits comes back, and the next probe is quick.
        rig.faults[0].release();
        rig.until(|rig| !rig.member().is_slow()).await;
        assert_eq!(rig.read(rig.hit(0)).await, Ok(()));
        assert_eq!(rig.read(rig.hit(3)).await, Ok(()));
        assert_eq!(rig.counters()["errors"], 0);
    });
}

#[test]
fn beyond_the_hard_limit_it_is_given_up() {
    for verb in [Verb::Read, Verb::Write, Verb::Flush] {
        run(move |world| async move {
            let rig = Rig::with(geometry(), impatient(), 1, world).await;
            rig.filled(0).await;
            rig.faults[0].add(Fault::every(verb, Action::Stall));
            match verb {
                // The probe is waited for, not the client's read.
                Verb::Read => assert_eq!(rig.read(rig.hit(0)).await, Err(HitError::Slow)),
                _ => {
                    rig.offer(1);
                    assert!(rig.cache.sync_all().await.is_err());
                }
            }
            rig.until(|rig| rig.member().has_failed()).await;
            let why = rig.member().failure().unwrap();
            let what =
                ["read", "write", "flush"][[Verb::Read, Verb::Write].iter().position(|v| *v == verb).unwrap_or(2)];
            assert_eq!(why, format!("a {what} took longer than the hard limit"));
        });
        // What is dirty is waited for by whoever reads it.
        run(|world| async move {
            let rig = Rig::with(geometry(), impatient(), 1, world).await;
            rig.dirty(0).await.unwrap();
            let hit = rig.hit(0);
            rig.faults[0].add(Fault::every(Verb::Read, Action::Stall));
            assert_eq!(rig.read(hit).await, Err(HitError::Lost));
            assert!(rig.member().has_failed());
        });
    }
}

#[test]
fn one_unreadable_sector_costs_its_part_and_not_the_device() {
    run(|world| async move {
        let rig = Rig::new(1, world.clone()).await;
        rig.filled(0).await;
        rig.filled(1).await;
        rig.dirty(2).await.unwrap();
        rig.dirty(3).await.unwrap();
        let unreadable = || rig.faults[0].add(Fault::next(Verb::Read, Action::Fail(FailKind::Media)));
        unreadable();
        assert_eq!(rig.read(rig.hit(0)).await, Err(HitError::Rot), "the disk has it");
        assert!(rig.misses(0), "it is not asked again");
        assert_eq!(rig.read(rig.hit(1)).await, Ok(()));
        unreadable();
        assert_eq!(rig.read(rig.hit(2)).await, Err(HitError::Lost), "nobody else has it");
        assert_eq!(rig.residence(2), [(4, Residence::Dirty)], "it does not become the disk's");
        assert_eq!(rig.read(rig.hit(3)).await, Ok(()));
        assert_eq!((rig.member().has_failed(), rig.counters()["errors"]), (false, 2));
        assert!(!rig.cache.has_lost(&rig.disk), "the grid disk stays online");
        rig.on_flash().await;
        let rig = rig.again().await;
        assert!(rig.misses(0), "over a crash");

        let rig = Rig::new(2, world).await;
        rig.dirty(2).await.unwrap();
        let place = rig.cache.member_of(&rig.disk, 8).unwrap();
        rig.faults[place].add(Fault::next(Verb::Read, Action::Fail(FailKind::Media)));
        assert_eq!(rig.read(rig.hit(2)).await, Ok(()), "its mirror has it");
        assert!(rig.cache.members().all(|member| !member.has_failed()));
    });
}

#[test]
fn what_a_device_is_short_of_for_a_moment_is_tried_again() {
    for errno in [11, 12] {
        run(move |world| async move {
            let rig = Rig::new(1, world).await;
            rig.filled(0).await;
            let short = |verb| Fault { count: 3, ..Fault::every(verb, Action::Fail(FailKind::Errno(errno))) };
            rig.faults[0].add(short(Verb::Read));
            assert_eq!(rig.read(rig.hit(0)).await, Ok(()));
            rig.faults[0].add(short(Verb::Write));
            rig.offer(1);
            rig.cache.sync_all().await.unwrap();
            assert_eq!(rig.read(rig.hit(1)).await, Ok(()));
            assert_eq!((rig.member().has_failed(), rig.counters()["errors"]), (false, 6));
            rig.faults[0].add(Fault::every(Verb::Read, Action::Fail(FailKind::Errno(errno))));
            assert_eq!(rig.read(rig.hit(0)).await, Err(HitError::Failed), "not for ever");
            assert!(rig.member().has_failed());
        });
    }
}

#[test]
fn a_device_whose_reads_all_fail_is_given_up() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        for block in 0..17 {
            rig.filled(block).await;
        }
        rig.faults[0].add(Fault { count: 15, ..Fault::every(Verb::Read, Action::Fail(FailKind::Media)) });
        for block in 0..15 {
            assert_eq!(rig.read(rig.hit(block)).await, Err(HitError::Rot));
        }
        assert_eq!(rig.read(rig.hit(15)).await, Ok(()), "one that succeeds ends the row");
        rig.faults[0].add(Fault::every(Verb::Read, Action::Fail(FailKind::Media)));
        for _ in 0..15 {
            rig.filled(0).await;
            assert_eq!(rig.read(rig.hit(0)).await, Err(HitError::Rot));
        }
        assert_eq!(rig.read(rig.hit(16)).await, Err(HitError::Failed));
        assert!(rig.member().failure().unwrap().starts_with("16 reads in a row failed"));
    });
}

#[test]
fn a_write_that_finds_a_bad_sector_is_tried_again_in_its_place() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.faults[0].add(Fault::next(Verb::Write, Action::Fail(FailKind::Media)));
        rig.dirty(0).await.unwrap();
        assert_eq!((rig.member().has_failed(), rig.counters()["errors"]), (false, 1));
        let rig = rig.again().await;
        assert_eq!(rig.residence(0), [(4, Residence::Dirty)], "over a crash");
    });
}

/// A dirty write, and a flush, on a device that fails the first requests of these verbs. Whether the device is given up.
async fn is_given_up(verb: Verb, action: Action, count: u64, sabotage: Option<Sabotage>, world: World) -> bool {
    let rig = Rig::with(geometry(), CacheConfig { sabotage, ..config() }, 1, world).await;
    rig.faults[0].add(Fault { count, ..Fault::every(verb, action) });
    let written = rig.dirty(0).await;
    let durable = rig.cache.sync_all().await;
    if rig.member().has_failed() {
        return true;
    }
    assert_eq!((written, durable), (Ok(()), Ok(())));
    let rig = rig.again().await;
    assert_eq!(rig.residence(0), [(4, Residence::Dirty)]);
    assert_eq!(rig.read(rig.hit(0)).await, Ok(()));
    false
}

#[test]
fn a_device_without_room_for_a_while_or_whose_answer_is_lost_is_not_given_up() {
    let no_room = Action::Fail(FailKind::NoSpace);
    let (lost, told) = (Action::Unknown { carried_out: false }, Action::Unknown { carried_out: true });
    let all = [
        (Verb::Write, no_room, 8),
        (Verb::Flush, no_room, 8),
        (Verb::Write, lost, 1),
        (Verb::Write, told, 1),
        (Verb::Flush, lost, 1),
    ];
    for (verb, action, count) in all {
        run(move |world| async move {
            assert!(!is_given_up(verb, action, count, None, world.clone()).await, "{verb:?} {action:?}");
            let sabotage = Some(Sabotage::NoRoomGivesUp);
            assert!(is_given_up(verb, action, count, sabotage, world).await, "{verb:?} {action:?} is caught");
        });
    }
}

#[test]
fn a_device_that_never_has_room_is_given_up() {
    run(|world| async move {
        let rig = Rig::with(geometry(), impatient(), 1, world).await;
        rig.faults[0].add(Fault::every(Verb::Write, Action::Fail(FailKind::NoSpace)));
        assert_eq!(rig.dirty(0).await, Err(DirtyRefused::Failed));
        assert!(rig.member().failure().unwrap().contains("NoSpace"));
    });
}

#[test]
fn a_segment_that_may_be_written_to_late_is_not_reused() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.faults[0].add(Fault::next(Verb::Write, Action::Unknown { carried_out: true }));
        rig.filled(0).await;
        let written = rig.media[0].read_at(0).await;
        assert_ne!(written, [0; 4096]);
        for n in 1..SEGMENTS * 40 {
            rig.offer(n);
            rig.on_flash().await;
        }
        assert!(rig.counters()["reclaims"] > SEGMENTS, "{:?}", rig.counters());
        assert_eq!(rig.media[0].read_at(0).await, written);
        assert_eq!(rig.read(rig.hit(0)).await, Ok(()));
    });
}

#[test]
fn a_device_with_the_only_copy_of_something_is_waited_for() {
    run(|world| async move {
        let rig = Rig::with(geometry(), impatient(), 1, world.clone()).await;
        rig.dirty(0).await.unwrap();
        let hit = rig.hit(0);
        rig.faults[0].add(Fault::next(Verb::Read, Action::Stall));
        let mut read = Box::pin(rig.read(hit));
        assert!(read.as_mut().now_or_never().is_none());
        world.clock.sleep(2 * impatient().hard_limit).await;
        assert!(!rig.member().has_failed(), "a controller that is reset");
        rig.faults[0].release();
        assert_eq!(read.await, Ok(()));
    });
}

#[test]
fn a_failed_write_or_flush_gives_it_up() {
    for (verb, what) in [(Verb::Write, "write of "), (Verb::Flush, "flush: ")] {
        run(move |world| async move {
            let rig = Rig::new(1, world).await;
            rig.faults[0].add(Fault::next(verb, Action::Fail(FailKind::Gone)));
            rig.offer(0);
            let error = rig.cache.sync_all().await.unwrap_err();
            assert!(matches!(error, MemberError::Failed(_)));
            let why = rig.member().failure().unwrap();
            assert!(why.starts_with(what), "{why}");
            assert_eq!(rig.counters()["errors"], 1);
            assert!(rig.misses(0));
        });
    }
}

#[test]
fn a_rotten_part_is_forgotten_for_good_and_its_neighbours_are_not() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.filled(2).await;
        rig.rot(0, 10).await;
        assert_eq!(rig.read(rig.hit(2)).await, Err(HitError::Rot));
        assert_eq!((rig.counters()["rot_parts"], rig.member().has_failed()), (1, false));
        let left = [(2, Residence::Cached), (1, Residence::Disk), (1, Residence::Cached)];
        assert_eq!(rig.residence(2), left);
        assert_eq!(rig.member().used_bytes(), 3 * 4096);
        rig.on_flash().await;
        let rig = rig.again().await;
        assert_eq!(rig.residence(2), left, "over a crash");
    });
}

#[test]
fn a_rotten_dirty_part_is_read_from_its_mirror_if_there_is_one() {
    run(|world| async move {
        let rig = Rig::new(1, world.clone()).await;
        rig.dirty(2).await.unwrap();
        rig.rot(0, 9).await;
        assert_eq!(rig.read(rig.hit(2)).await, Err(HitError::Lost));
        assert_eq!(rig.residence(2), [(4, Residence::Dirty)], "nobody has it: it does not become the disk's");
        assert_eq!(rig.counters()["rot_parts"], 1);

        let rig = Rig::new(2, world).await;
        rig.dirty(2).await.unwrap();
        let place = rig.cache.member_of(&rig.disk, 8).unwrap();
        rig.rot(place, 9).await;
        assert_eq!(rig.read(rig.hit(2)).await, Ok(()));
        let first = rig.cache.members().nth(place).unwrap();
        assert!(first.counters.snapshot().contains(&("rot_parts", 1)), "it is asked once");
        let mirror = rig.cache.members().nth(1 - place).unwrap();
        assert_eq!(
            mirror.counters.snapshot().into_iter().find(|(name, _)| *name == "mirror_reads"),
            Some(("mirror_reads", 4))
        );
        rig.rot(1 - place, 9).await;
        assert_eq!(rig.read(rig.hit(2)).await, Err(HitError::Lost));
    });
}

#[test]
fn a_read_waits_for_what_a_crash_could_still_undo_and_for_no_more() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.faults[0].add(Fault::next(Verb::Write, Action::Stall));
        let mut write = Box::pin(rig.dirty(1));
        assert!(write.as_mut().now_or_never().is_none());
        yield_now().await;
        assert_eq!(rig.faults[0].stalled(), 1);
        let mut read = Box::pin(rig.read(rig.hit(1)));
        assert!(read.as_mut().now_or_never().is_none(), "it is not on the device");
        // Another comes behind it, and stays on its way.
        rig.faults[0].release();
        rig.faults[0].add(Fault::next(Verb::Write, Action::Stall));
        let mut other = Box::pin(rig.dirty(2));
        assert!(other.as_mut().now_or_never().is_none());
        for _ in 0..50 {
            yield_now().await;
        }
        assert_eq!(rig.faults[0].stalled(), 1);
        assert_eq!(write.as_mut().now_or_never(), Some(Ok(())));
        assert_eq!(read.as_mut().now_or_never(), Some(Ok(())));
        assert!(other.as_mut().now_or_never().is_none());
        rig.faults[0].release();
        assert_eq!(other.await, Ok(()));
    });
}

#[test]
fn nothing_goes_on_behind_a_member_that_stops_or_fails() {
    for fails in [false, true] {
        run(move |world| async move {
            let rig = Rig::new(1, world.clone()).await;
            rig.filled(0).await;
            let member = Arc::downgrade(rig.member());
            if fails {
                rig.member().fail("a test".to_owned());
            } else {
                rig.cache.stop().await;
            }
            drop(rig);
            for _ in 0..200 {
                if member.upgrade().is_none() {
                    return;
                }
                world.clock.sleep(Duration::from_millis(1)).await;
            }
            panic!("somebody still works for it");
        });
    }
}

#[test]
fn a_segment_that_is_read_from_is_not_reused() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.filled(0).await;
        let hit = rig.hit(0);
        // Enough to have all of it reclaimed more than once.
        for block in 1..1200 {
            rig.offer(block);
            for _ in 0..4 {
                yield_now().await;
            }
            if rig.counters()["reader_waits"] > 0 {
                break;
            }
            rig.until(|rig| rig.member().segments().free > 3 || rig.counters()["reader_waits"] > 0).await;
        }
        assert_eq!((rig.counters()["reader_waits"], rig.member().segments().reclaiming), (1, 1));
        for _ in 0..200 {
            yield_now().await;
        }
        assert_eq!(rig.member().segments().reclaiming, 1, "still");
        let before = rig.counters()["reclaims"];
        assert_eq!(rig.read(hit).await, Ok(()), "what it was promised");
        rig.until(|rig| rig.counters()["reclaims"] > before).await;
    });
}

/// Offer more than the cache holds, as far as it goes.
async fn flood(rig: &Rig) {
    for block in 0..900 {
        rig.offer(block);
        for _ in 0..4 {
            yield_now().await;
        }
        if rig.member().has_failed() {
            return;
        }
        rig.until(|rig| rig.member().segments().free > 3 || rig.member().has_failed()).await;
    }
}

#[test]
fn what_has_left_does_not_come_back_and_what_is_there_does() {
    run(|world| async move {
        // Nothing is discarded: what a segment held can still be read.
        let geometry = Geometry { discard_bytes: 0, ..geometry() };
        let rig = Rig::with(geometry, config(), 1, world).await;
        for block in 0..900 {
            rig.offer(block);
            for _ in 0..4 {
                yield_now().await;
            }
            // Some are asked for again and again, and written again at reclaim.
            (0..=block).step_by(7).filter(|_| block % 40 == 0).for_each(|block| {
                let _ = rig.cache.lookup(&rig.disk, parts(block));
            });
            rig.until(|rig| rig.member().segments().free > 3).await;
        }
        rig.on_flash().await;
        let shown = |rig: &Rig| (0..900).filter(|block| rig.residence(*block) == [(4, Residence::Cached)]).collect();
        let before: Vec<u64> = shown(&rig);
        let counters = rig.counters();
        assert!(counters["moves"] > 20 && counters["reclaims"] > 20, "{counters:?}");
        assert_eq!(counters["move_bytes"], counters["moves"] * BLOCK_BYTES as u64);
        assert_eq!(counters["fills"] / BLOCK_PARTS, counters["evictions"] + before.len() as u64);
        assert_eq!(
            (rig.member().entries(), rig.member().used_bytes()),
            (before.len(), (before.len() * BLOCK_BYTES) as u64)
        );
        let before_by_state = rig.member().segments();
        let rig = rig.again().await;
        let after: Vec<u64> = shown(&rig);
        assert_eq!(after, before);
        let after_by_state = rig.member().segments();
        // What only segments that are free said is written again, in one more perhaps.
        assert!(after_by_state.free + 1 >= before_by_state.free, "{after_by_state:?} {before_by_state:?}");
        assert_eq!(after_by_state.all(), SEGMENTS as u32);
        for block in after.into_iter().step_by(9) {
            assert_eq!(rig.read(rig.hit(block)).await, Ok(()));
        }
    });
}

#[test]
fn segments_are_discarded_before_reuse_where_that_works() {
    run(|world| async move {
        let rig = Rig::new(1, world.clone()).await;
        flood(&rig).await;
        let counters = rig.counters();
        assert!(counters["reclaims"] > 10, "{counters:?}");
        assert_eq!(counters["discards"], counters["reclaims"]);
        assert_eq!(counters["discard_bytes"], counters["discards"] * u64::from(SEGMENT_BYTES));
        // One without the verb is never asked.
        let without = Geometry { discard_bytes: 0, ..geometry() };
        let rig = Rig::with(without, config(), 1, world.clone()).await;
        rig.faults[0].add(Fault::every(Verb::Discard, Action::Unknown { carried_out: false }));
        flood(&rig).await;
        assert!(rig.counters()["reclaims"] > 10 && rig.counters()["discards"] == 0);
        // One that refuses is reused all the same.
        let rig = Rig::new(1, world.clone()).await;
        rig.faults[0].add(Fault::every(Verb::Discard, Action::Fail(FailKind::Unsupported)));
        flood(&rig).await;
        assert!(rig.counters()["reclaims"] > 10);
        assert_eq!((rig.counters()["discards"], rig.counters()["discard_failures"]), (0, rig.counters()["reclaims"]));
        // One of which nobody knows whether it will happen may not be.
        for (action, why) in [
            (Action::Unknown { carried_out: true }, "nobody knows whether a discard has happened or will"),
            (Action::Stall, "a discard took longer than the hard limit"),
        ] {
            let rig = Rig::with(geometry(), impatient(), 1, world.clone()).await;
            rig.faults[0].add(Fault::next(Verb::Discard, action));
            flood(&rig).await;
            assert_eq!(rig.member().failure().as_deref(), Some(why));
            assert_eq!(rig.counters()["reclaims"], 0);
        }
    });
}

#[test]
fn a_segment_that_has_lost_its_end_is_not_given_up_for_what_came_before() {
    run(|world| async move {
        // The footer alone: chunks say the same. With chunks before it: who knows what they said was dead.
        for (lost_pages, survives) in [(1, true), (20, false)] {
            let rig = Rig::new(1, world.clone()).await;
            for block in 0..20 {
                rig.filled(block).await;
            }
            let segment_pages = u64::from(SEGMENT_BYTES) / 4096;
            for page in segment_pages - lost_pages..segment_pages {
                rig.media[0].write_at(page * 4096, &[0; 4096]).await;
            }
            flood(&rig).await;
            let failure = rig.member().failure();
            let expected = (!survives).then_some("the records of segment 0 cannot be read back");
            assert_eq!(failure.as_deref(), expected, "{lost_pages} pages");
        }
    });
}

#[test]
fn recovery_gives_up_what_it_cannot_read_or_what_has_lost_what_was_durable() {
    run(|world| async move {
        let rig = Rig::new(1, world.clone()).await;
        for block in 0..40 {
            rig.filled(block).await;
        }
        let rig = rig.again().await;
        let found = rig.recovered[0].as_ref().unwrap();
        assert_eq!((found.entries, found.dirty_parts, found.torn_parts, found.torn_footers), (40, 0, 0, 0));
        assert!((0..40).all(|block| rig.residence(block) == [(4, Residence::Cached)]));
        let media = rig.media.clone();
        drop(rig);

        // A segment that cannot be read: what it held may be what ends something elsewhere.
        let faults = Faults::new(media[0].clone() as Device, world.spawn.clone());
        faults.add(Fault {
            range: Some(0..u64::from(SEGMENT_BYTES)),
            ..Fault::every(Verb::Read, Action::Fail(FailKind::Media))
        });
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let members = vec![MemberDevice { device: faults, owner, life: next_life(), durable: true, checkpoint: None }];
        let (cache, recovered) = FlashCache::open(config(), members, &[DISK], world.clone()).await.unwrap();
        assert_eq!(recovered[0], Err(MemberError::Failed("recovery: read at 0: Failed(Media)".to_owned())));
        assert!(cache.members().next().unwrap().has_failed());

        // A segment that others say was durable is gone.
        for page in (0..u64::from(SEGMENT_BYTES)).step_by(4096) {
            media[0].write_at(u64::from(SEGMENT_BYTES) + page, &[0; 4096]).await;
        }
        let rig = Rig::on(media, config(), world).await;
        let error = rig.recovered[0].as_ref().unwrap_err().to_string();
        assert!(error.contains("was acknowledged as durable and is not there"), "{error}");
        assert!(rig.misses(0));
    });
}

#[test]
fn dirty_data_that_was_torn_before_it_was_durable_was_never_written() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        rig.dirty(1).await.unwrap();
        rig.on_flash().await;
        rig.dirty(2).await.unwrap();
        rig.rot(0, 10).await;
        let rig = rig.again().await;
        let found = rig.recovered[0].as_ref().unwrap();
        assert_eq!((found.dirty_parts, found.torn_parts), (7, 1));
        assert_eq!((rig.counters()["dirty_torn"], rig.counters()["dirty_recovered"]), (1, 7));
        let torn = [(2, Residence::Dirty), (1, Residence::Disk), (1, Residence::Dirty)];
        assert_eq!((rig.residence(1), rig.residence(2)), (vec![(4, Residence::Dirty)], torn.to_vec()));
        assert_eq!(rig.read(rig.hit(1)).await, Ok(()), "what is written again goes where it was");
        // It is not torn again: what is there is durable now, and what is not is dead.
        let rig = rig.again().await;
        let found = rig.recovered[0].as_ref().unwrap();
        assert_eq!((found.dirty_parts, found.torn_parts, rig.residence(2)), (7, 0, torn.to_vec()));
    });
}

#[test]
fn what_dirty_data_replaced_is_there_as_long_as_its_successor_may_be_torn() {
    // What is left of a block after its overwrite has reached the device, and was lost with a power cut before a flush.
    let left = |sabotage| {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(move |world| async move {
            let config = CacheConfig { sabotage, ..config() };
            let rig = Rig::with(geometry(), config, 1, world).await;
            rig.dirty(1).await.unwrap();
            rig.on_flash().await;
            rig.cache.write_dirty(&rig.disk, parts(1), &data(2), false).await.unwrap();
            rig.dirty(3).await.unwrap();
            for part in parts(2) {
                rig.rot(0, part).await;
            }
            let rig = rig.again().await;
            assert_eq!(rig.recovered[0].as_ref().unwrap().torn_parts, 4);
            let left = rig.residence(1);
            if left == [(4, Residence::Dirty)] {
                assert_eq!(rig.read(rig.hit(1)).await, Ok(()), "what was acknowledged as durable");
            }
            sender.send(left).unwrap();
        });
        receiver.recv().unwrap()
    };
    assert_eq!(left(None), [(4, Residence::Dirty)]);
    assert_eq!(left(Some(Sabotage::DirtyDeathTooEarly)), [(4, Residence::Disk)]);
}
