//! Goal: what follows from a disk that refuses or loses. Method: one ledger, told of events by hand.

use super::*;
use device::Buf;

const PAGE: u64 = 512;

fn data(fill: u8) -> Content {
    Content::Data(Buf::padded(&[fill; PAGE as usize], PAGE as usize).freeze().into())
}

fn page(n: u64) -> Range<u64> {
    n * PAGE..(n + 1) * PAGE
}

/// A change of one page, held, that goes to the disk at once if it may.
fn write(ledger: &mut Ledger, seq: Seq, at: u64) -> Vec<DiskWrite> {
    ledger.begin(seq, page(at), data(seq as u8), data(seq as u8), false, false)
}

fn shown(ledger: &Ledger, at: u64) -> Option<u8> {
    let mut over = ledger.overlay(&page(at)).expect("nothing is in doubt");
    match over.pop()?.1 {
        Content::Data(bytes) => Some(bytes.to_vec(0..1)[0]),
        Content::Zeroes { .. } | Content::Unheld => None,
    }
}

#[test]
fn reads_show_what_is_held_until_a_flush_has_covered_it() {
    let mut ledger = Ledger::new(false, false);
    let id = write(&mut ledger, 1, 0)[0].id;
    assert_eq!(shown(&ledger, 0), Some(1), "on its way");
    assert!(ledger.disk_wrote(id, true).is_empty());
    assert_eq!(shown(&ledger, 0), Some(1), "a failed flush may have dropped it by now");
    let begun = ledger.flush_begins();
    assert!(ledger.flush_ended(begun, true).is_empty());
    assert_eq!(shown(&ledger, 0), None, "the disk has it for good");
    assert!(ledger.is_empty());
}

#[test]
fn a_disk_that_refuses_is_asked_for_each_change_in_turn() {
    let mut ledger = Ledger::new(false, false);
    let pages = 3 * FLYING_MAX as u64;
    let mut flying: Vec<WriteId> = Vec::new();
    // Not adjacent, so that none is merged with another.
    for n in 0..pages {
        flying.extend(write(&mut ledger, n + 1, 2 * n).into_iter().map(|write| write.id));
    }
    let mut tried = std::collections::BTreeSet::new();
    for _ in 0..4 {
        for id in std::mem::take(&mut flying) {
            assert!(ledger.disk_wrote(id, false).is_empty(), "held back");
        }
        let writes = ledger.retry();
        assert_eq!(writes.len(), FLYING_MAX);
        tried.extend(writes.iter().map(|write| write.range.start));
        flying.extend(writes.into_iter().map(|write| write.id));
    }
    assert_eq!(tried.len() as u64, pages, "each within as many trials as it takes");
}

#[test]
fn a_refused_write_ends_the_syncs_of_what_waits_for_it() {
    let mut ledger = Ledger::new(false, false);
    let first = write(&mut ledger, 1, 0)[0].id;
    assert!(ledger.disk_wrote(first, true).is_empty());
    assert!(ledger.flush_ended(0, false).len() == 1, "written again");
    // The older one's bytes are the newer one's to write, which is in a ring; the older one is not.
    assert!(write(&mut ledger, 2, 0).is_empty(), "one write of a byte at a time");
    ledger.ring(1, RingLeg::Refused, false);
    ledger.ring(2, RingLeg::Durable, true);
    ledger.take_effects();
    assert!(ledger.disk_wrote(1, false).is_empty());
    let sync = ledger.begin_sync(Some(1)).unwrap();
    ledger.take_effects();
    for write in ledger.retry() {
        assert!(ledger.disk_wrote(write.id, false).is_empty());
    }
    assert!(ledger.take_effects().contains(&Effect::SyncLost { sync }), "{}", ledger.told());
}

/// One copy of two was taken, so that replay may find it, and neither the other copy nor what it lies over can be had.
#[test]
fn no_sync_waits_for_what_was_refused_for_good() {
    for written_first in [false, true] {
        let mut ledger = Ledger::new(false, false);
        let id = ledger.begin(1, page(0), data(1), data(1), false, true)[0].id;
        ledger.ring(1, RingLeg::Asked, true);
        ledger.ring(1, RingLeg::Refused, true);
        if written_first {
            assert!(ledger.disk_wrote(id, true).is_empty());
        }
        assert!(ledger.take_effects().is_empty(), "replay of what is below it would undo it");
        ledger.cannot_be_safe(1);
        if !written_first {
            assert!(ledger.take_effects().is_empty(), "it may come to lie on the disk yet");
            assert!(ledger.disk_wrote(id, true).is_empty());
        }
        assert!(ledger.take_effects().contains(&Effect::Failed { seq: 1 }), "{}", ledger.told());
        let sync = ledger.begin_sync(None).unwrap();
        assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
        let effects = ledger.take_effects();
        assert!(effects.contains(&Effect::Synced { sync, by_ring: false }), "{effects:?} {}", ledger.told());
    }
}

#[test]
fn what_is_lost_is_written_over_only_by_what_somebody_was_told_is_durable() {
    for told in [false, true] {
        let mut ledger = Ledger::new(false, false);
        let id = write(&mut ledger, 1, 0)[0].id;
        assert!(ledger.disk_wrote(id, true).is_empty());
        if told {
            ledger.ring(1, RingLeg::Durable, true);
        }
        let unheld = ledger.begin(2, page(0), Content::Unheld, data(2), false, false);
        assert!(ledger.disk_wrote(unheld[0].id, true).is_empty());
        assert_eq!(shown(&ledger, 0), None, "the newest is the disk's alone");
        let again = ledger.flush_ended(ledger.flush_begins(), false);
        assert_eq!(ledger.lost_acked(), 1);
        assert_eq!(again.len(), usize::from(told), "the disk may have the newer one all the same");
        assert_eq!(shown(&ledger, 0), told.then_some(1));
    }
}

#[test]
fn a_write_that_fails_unheld_leaves_what_it_was_written_over_to_be_written_again() {
    let mut ledger = Ledger::new(false, false);
    let id = write(&mut ledger, 1, 0)[0].id;
    assert!(ledger.disk_wrote(id, true).is_empty());
    let unheld = ledger.begin(2, page(0), Content::Unheld, data(2), false, false);
    let again = ledger.disk_wrote(unheld[0].id, false);
    assert!(again.len() == 1 && again[0].range == page(0), "{}", ledger.told());
    assert!(ledger.overlay(&page(0)).is_err(), "what is read now must not go with the process");
    assert!(ledger.disk_wrote(again[0].id, true).is_empty());
    assert_eq!(shown(&ledger, 0), Some(1));
}

/// Memory alone has what was there before: it is read once the disk has it again, or at once where a ring has it.
#[test]
fn what_a_failed_write_may_lie_over_is_not_read_before_it_is_written_again() {
    for in_ring in [false, true] {
        let mut ledger = Ledger::new(false, false);
        let first = write(&mut ledger, 1, 0)[0].id;
        if in_ring {
            ledger.ring(1, RingLeg::Written, true);
        }
        assert!(ledger.disk_wrote(first, true).is_empty());
        let second = write(&mut ledger, 2, 0)[0].id;
        assert_eq!(shown(&ledger, 0), Some(2), "on its way");
        ledger.ring(2, RingLeg::Refused, false);
        assert!(ledger.disk_wrote(second, false).is_empty(), "held back");
        assert!(ledger.change(2).is_none(), "{}", ledger.told());
        if in_ring {
            assert_eq!(shown(&ledger, 0), Some(1));
        } else {
            assert!(ledger.overlay(&page(0)).is_err());
            assert!(ledger.overlay(&page(1)).is_ok(), "elsewhere nothing is in doubt");
        }
        let again = ledger.retry();
        assert_eq!(again.len(), 1, "{in_ring}");
        assert!(ledger.disk_wrote(again[0].id, true).is_empty());
        assert_eq!(shown(&ledger, 0), Some(1), "{in_ring}");
    }
}

/// A disk that refuses has taken, at last, what cannot be in a ring and must be: who asked for it is told that it has failed, and what it
/// was written over is flash's alone.
#[test]
fn what_a_failed_write_was_written_over_is_written_again_and_not_released_before() {
    let mut ledger = Ledger::new(false, false);
    let first = write(&mut ledger, 1, 0)[0].id;
    ledger.ring(1, RingLeg::Durable, true);
    assert!(ledger.disk_wrote(first, false).is_empty(), "held back");
    assert!(ledger.begin(2, page(0), data(2), data(2), true, true).is_empty());
    ledger.ring(2, RingLeg::Refused, false);
    let second = ledger.retry();
    assert_eq!(second.len(), 1, "{}", ledger.told());
    ledger.cannot_be_safe(2);
    let again = ledger.disk_wrote(second[0].id, true);
    assert!(ledger.take_effects().contains(&Effect::Failed { seq: 2 }));
    assert!(again.len() == 1 && again[0].range == page(0), "{}", ledger.told());
    assert_eq!(shown(&ledger, 0), Some(1), "a ring has it");
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert_eq!(shown(&ledger, 0), Some(1), "the disk has the other one");
    assert!(ledger.disk_wrote(again[0].id, true).is_empty());
    assert!(!ledger.take_effects().contains(&Effect::Released { seq: 1 }));
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert!(ledger.take_effects().contains(&Effect::Released { seq: 1 }), "{}", ledger.told());
    assert!(ledger.is_empty());
}

/// The disk has had what was there before durably, so that nobody holds it, and a ring is not rid of its record: replay would undo the
/// write that failed, so that nobody may read it.
#[test]
fn what_replay_may_undo_is_not_read_after_it_has_failed() {
    for (lies_in_ring, rid_by_write) in [(false, false), (false, true), (true, false)] {
        let mut ledger = Ledger::new(false, false);
        let id = ledger.begin(1, page(0), data(1), data(1), true, true)[0].id;
        ledger.ring(1, RingLeg::Refused, lies_in_ring);
        assert!(ledger.disk_wrote(id, true).is_empty());
        assert!(ledger.take_effects().is_empty(), "replay would undo it");
        ledger.cannot_be_safe(1);
        assert!(ledger.take_effects().contains(&Effect::Failed { seq: 1 }));
        assert!(ledger.is_empty(), "nobody holds it any more: {}", ledger.told());
        assert!(ledger.overlay(&page(0)).is_err(), "{lies_in_ring}");
        assert!(ledger.overlay(&page(1)).is_ok(), "elsewhere nothing is in doubt");
        assert_eq!(ledger.undone_by_replay(), [page(0)]);
        if rid_by_write {
            let second = write(&mut ledger, 2, 0)[0].id;
            assert!(ledger.disk_wrote(second, true).is_empty());
            assert_eq!(shown(&ledger, 0), Some(2));
        } else {
            ledger.not_undone(&page(0));
            assert_eq!(shown(&ledger, 0), None, "what the disk has");
        }
        assert!(ledger.undone_by_replay().is_empty());
    }
}

/// The same where the disk takes it only after it has failed.
#[test]
fn what_replay_may_undo_is_not_read_where_the_disk_takes_it_late() {
    let mut ledger = Ledger::new(false, false);
    let id = ledger.begin(1, page(0), data(1), data(1), true, true)[0].id;
    ledger.ring(1, RingLeg::Refused, true);
    assert!(ledger.disk_wrote(id, false).is_empty(), "held back");
    assert!(ledger.take_effects().contains(&Effect::Failed { seq: 1 }));
    ledger.cannot_be_safe(1);
    assert!(ledger.overlay(&page(0)).is_err());
    let again = ledger.retry();
    assert!(ledger.disk_wrote(again[0].id, true).is_empty());
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert!(ledger.is_empty(), "{}", ledger.told());
    assert!(ledger.overlay(&page(0)).is_err(), "the ring may have what came before, and not this");
}

/// A ring had it, so that it was acknowledged, and has failed since; what it lies over is in another ring still. The disk refuses it, and takes
/// it later: a sync ends well only when replay cannot undo it any more.
#[test]
fn what_was_acknowledged_is_not_durable_while_replay_may_undo_it() {
    let mut ledger = Ledger::new(false, false);
    let id = ledger.begin(1, page(0), data(1), data(1), false, true)[0].id;
    ledger.ring(1, RingLeg::Written, true);
    assert!(ledger.take_effects().contains(&Effect::Acked { seq: 1, by_ring: true }));
    ledger.ring(1, RingLeg::Refused, true);
    assert!(ledger.disk_wrote(id, false).is_empty(), "held back");
    let sync = ledger.begin_sync(None).unwrap();
    ledger.cannot_be_safe(1);
    assert!(ledger.take_effects().contains(&Effect::SyncLost { sync }));

    let again = ledger.retry();
    assert!(ledger.disk_wrote(again[0].id, true).is_empty());
    let sync = ledger.begin_sync(None).unwrap();
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert_eq!(ledger.take_effects(), [], "replay would undo it: {}", ledger.told());
    ledger.need_not_ring(1);
    let effects = ledger.take_effects();
    assert!(effects.contains(&Effect::Synced { sync, by_ring: false }), "{effects:?}");
    assert!(effects.contains(&Effect::Released { seq: 1 }) && ledger.is_empty(), "{}", ledger.told());
}

/// It was to fail as soon as its disk write had ended, and a ring took it before: that has acknowledged it.
#[test]
fn what_a_ring_takes_before_it_fails_stays_bound_to_it() {
    let mut ledger = Ledger::new(false, false);
    let id = ledger.begin(1, page(0), data(1), data(1), false, true)[0].id;
    ledger.ring(1, RingLeg::Refused, true);
    ledger.cannot_be_safe(1);
    assert!(ledger.take_effects().is_empty(), "it may come to lie on the disk yet");
    ledger.ring(1, RingLeg::Written, true);
    assert!(ledger.take_effects().contains(&Effect::Acked { seq: 1, by_ring: true }));
    assert!(ledger.disk_wrote(id, true).is_empty());
    ledger.ring(1, RingLeg::Refused, true);
    let sync = ledger.begin_sync(None).unwrap();
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert_eq!(ledger.take_effects(), [], "replay would undo it: {}", ledger.told());
    ledger.need_not_ring(1);
    assert!(ledger.take_effects().contains(&Effect::Synced { sync, by_ring: false }));
}

/// The one in the middle fails: what it had replaced is not on the disk before what has replaced it is.
#[test]
fn what_waits_for_a_write_that_fails_waits_for_what_has_replaced_that() {
    let mut ledger = Ledger::new(false, false);
    let first = write(&mut ledger, 1, 0)[0].id;
    ledger.ring(1, RingLeg::Durable, true);
    assert!(ledger.disk_wrote(first, false).is_empty(), "held back");
    for seq in [2, 3] {
        assert!(ledger.begin(seq, page(0), data(seq as u8), data(seq as u8), false, true).is_empty());
    }
    ledger.ring(2, RingLeg::Refused, false);
    ledger.cannot_be_safe(2);
    assert!(ledger.change(2).is_none(), "{}", ledger.told());
    assert!(!ledger.change(1).unwrap().is_on_disk(), "{}", ledger.told());
    let third = ledger.retry();
    assert!(ledger.disk_wrote(third[0].id, true).is_empty());
    assert!(ledger.change(1).unwrap().is_on_disk(), "{}", ledger.told());
}

/// What nobody holds is in flight over a change while two flushes fail: the change waits for it once, and gets what becomes of it.
#[test]
fn whoever_waits_for_what_nobody_holds_does_so_once() {
    for good in [true, false] {
        let mut ledger = Ledger::new(false, false);
        let first = write(&mut ledger, 1, 0)[0].id;
        assert!(ledger.disk_wrote(first, true).is_empty());
        let unheld = ledger.begin(2, page(0), Content::Unheld, data(2), false, false)[0].id;
        for _ in 0..2 {
            assert!(ledger.flush_ended(0, false).is_empty(), "one write of a byte at a time");
        }
        // Both flushes have failed since it was begun: what it wrote may be gone.
        let again = ledger.disk_wrote(unheld, good);
        assert_eq!(again.len(), 1, "{good}");
        let Content::Data(bytes) = &again[0].content else { panic!("{again:?}") };
        assert_eq!(bytes.to_vec(0..1), [1], "what was there before is written again");
        assert!(ledger.disk_wrote(again[0].id, true).is_empty());
        let begun = ledger.flush_begins();
        assert!(ledger.flush_ended(begun, true).is_empty());
        assert!(ledger.changes.iter().all(|(_, change)| change.on_disk), "{ledger:?}");
    }
}

/// Whatever happens in whatever order, what is kept beside the changes is true of them.
#[test]
fn tallies_follow_every_event() {
    let mut prng = device::Prng::new(7);
    for round in 0..200 {
        let mut ledger = Ledger::new(round % 3 == 0, false);
        let (mut seq, mut flying) = (0, Vec::new());
        let mut begun = None;
        for _ in 0..300 {
            let any = |prng: &mut device::Prng, seq| 1 + prng.below(seq);
            let mut more = Vec::new();
            match prng.below(12) {
                0..=3 => {
                    seq += 1;
                    let (at, must) = (prng.below(8), prng.below(4) == 0);
                    more = ledger.begin(seq, page(at), data(1), data(1), prng.below(4) == 0, must);
                }
                4 | 5 if !flying.is_empty() => {
                    let id = flying.swap_remove(prng.below(flying.len() as u64) as usize);
                    more = ledger.disk_wrote(id, prng.below(4) > 0);
                }
                6 if seq > 0 => {
                    let legs = [RingLeg::Asked, RingLeg::Written, RingLeg::Durable, RingLeg::Refused];
                    let (which, leg) = (any(&mut prng, seq), legs[prng.below(4) as usize]);
                    ledger.ring(which, leg, leg != RingLeg::Refused);
                }
                7 => {
                    let only = (seq > 0 && prng.below(2) == 0).then(|| any(&mut prng, seq));
                    ledger.begin_sync(only);
                }
                8 => begun = Some(ledger.flush_begins()),
                9 => {
                    if let Some(begun) = begun.take() {
                        more = ledger.flush_ended(begun, prng.below(4) > 0);
                    }
                }
                10 if seq > 0 => match prng.below(2) {
                    0 => ledger.need_not_ring(any(&mut prng, seq)),
                    _ => ledger.cannot_be_safe(any(&mut prng, seq)),
                },
                _ => more = ledger.retry(),
            }
            flying.extend(more.into_iter().map(|write| write.id));
            ledger.take_effects();
            ledger.changes.check();
        }
    }
}

const ZEROES: Content = Content::Zeroes { may_unmap: false };

fn pages(from: u64, to: u64) -> (Range<u64>, Content) {
    let len = ((to - from) * PAGE) as usize;
    (from * PAGE..to * PAGE, Content::Data(Buf::padded(&vec![7; len], PAGE as usize).freeze().into()))
}

/// Its last bytes go to the disk in one durable write with somebody else's, its first ones in a write that is not.
#[test]
fn a_durable_write_of_a_part_does_not_make_the_whole_durable() {
    let mut ledger = Ledger::new(false, false);
    let (all, bytes) = pages(0, 4);
    let in_the_way = ledger.begin(1, all, bytes.clone(), bytes, false, false).remove(0);
    let (most, bytes) = pages(0, 3);
    assert!(ledger.begin(2, most, bytes.clone(), bytes, false, false).is_empty());
    assert!(ledger.begin(3, page(1), ZEROES, ZEROES, false, false).is_empty());
    assert!(ledger.begin(4, page(3), data(4), data(4), true, false).is_empty());
    let writes = ledger.disk_wrote(in_the_way.id, true);
    let shown: Vec<(u64, bool)> = writes.iter().map(|write| (write.range.start / PAGE, write.fua)).collect();
    assert_eq!(shown, [(0, false), (1, false), (2, true)]);
    writes.iter().for_each(|write| assert!(ledger.disk_wrote(write.id, true).is_empty()));
    assert!(ledger.change(4).is_none(), "durable, and over");
    // A flush that has failed: the disk may have dropped the first page.
    let again = ledger.flush_ended(ledger.flush_begins(), false);
    assert!(again.iter().any(|write| write.range.start == 0), "{again:?}");
}

/// A durable write whose first page was replaced by something newer, which the disk has and may lose.
#[test]
fn a_durable_write_is_not_durable_by_what_has_replaced_it() {
    let mut ledger = Ledger::new(false, false);
    let (both, bytes) = pages(0, 2);
    let in_the_way = ledger.begin(1, both.clone(), bytes.clone(), bytes.clone(), false, false).remove(0);
    assert!(ledger.begin(2, both, bytes.clone(), bytes, true, false).is_empty());
    assert!(ledger.begin(3, page(0), ZEROES, ZEROES, false, false).is_empty());
    let sync = ledger.begin_sync(Some(2)).unwrap();
    for write in ledger.disk_wrote(in_the_way.id, true) {
        assert!(ledger.disk_wrote(write.id, true).is_empty());
    }
    let synced = |ledger: &mut Ledger| ledger.take_effects().contains(&Effect::Synced { sync, by_ring: false });
    assert!(!synced(&mut ledger) && ledger.flush_wanted(|| false), "a flush makes it so");
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert!(synced(&mut ledger) && ledger.is_empty());
}

#[test]
fn what_is_wanted_together_is_flushed_once_it_has_all_been_written() {
    let mut ledger = Ledger::new(false, false);
    let flying: Vec<WriteId> = (0..2).map(|at| write(&mut ledger, at + 1, at)[0].id).collect();
    assert!(write(&mut ledger, 3, 1).is_empty(), "waits for the one before it");
    assert!(!ledger.want_together());
    let newer = write(&mut ledger, 4, 9)[0].id;
    assert!(!ledger.is_together() && ledger.is_wanted(3) && !ledger.is_wanted(4));
    assert!(ledger.disk_wrote(flying[0], true).is_empty());
    assert!(!ledger.is_together() && !ledger.flush_wanted(|| true));
    let last = ledger.disk_wrote(flying[1], true)[0].id;
    assert!(!ledger.is_together() && !ledger.flush_wanted(|| true), "what waited is being written");
    assert!(ledger.disk_wrote(last, true).is_empty());
    assert!(ledger.is_together() && ledger.flush_wanted(|| true), "what came later is not waited for");
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert!(!ledger.is_together() && !ledger.flush_wanted(|| true), "once");
    // What the disk refuses is not waited for.
    let refused = write(&mut ledger, 5, 20)[0].id;
    assert!(!ledger.want_together());
    assert!(ledger.disk_wrote(newer, true).is_empty() && !ledger.is_together());
    assert!(ledger.disk_wrote(refused, false).is_empty());
    assert!(ledger.is_together() && ledger.flush_wanted(|| true));
    // What has not come about until it is asked for again is not waited for any longer.
    let mut ledger = Ledger::new(false, false);
    let flying: Vec<WriteId> = (0..3).map(|at| write(&mut ledger, at + 1, at)[0].id).collect();
    assert!(!ledger.want_together());
    assert!(ledger.disk_wrote(flying[1], true).is_empty());
    assert!(!ledger.flush_wanted(|| true));
    assert!(ledger.want_together() && ledger.flush_wanted(|| true));
    assert!(ledger.flush_ended(ledger.flush_begins(), true).is_empty());
    assert!(
        ledger.disk_wrote(flying[2], true).is_empty() && ledger.flush_wanted(|| true),
        "each as soon as it is there"
    );
}

/// A disk whose flushes fail loses what nobody holds once, and is not asked again for nobody.
#[test]
fn a_loss_is_counted_once_however_often_the_disk_refuses_to_flush() {
    let mut ledger = Ledger::new(false, false);
    let unheld = ledger.begin(1, page(0), Content::Unheld, data(1), false, false)[0].id;
    assert!(ledger.disk_wrote(unheld, true).is_empty());
    for seq in 2..5 {
        for write in ledger.flush_ended(ledger.flush_begins(), false) {
            assert!(ledger.disk_wrote(write.id, true).is_empty());
        }
        assert_eq!(ledger.lost_acked(), 1);
        let id = write(&mut ledger, seq, 5)[0].id;
        assert!(ledger.disk_wrote(id, true).is_empty());
        assert!(!ledger.flush_wanted(|| false), "nobody waits");
    }
    // It has shown nothing yet: a sync waits for that.
    assert!(ledger.begin_sync(None).is_some() && ledger.flush_wanted(|| false));
}

/// A flush fails while more waits than the disk is given at once, and the ring refuses what waits.
#[test]
fn what_the_disk_was_never_asked_to_write_does_not_fail() {
    let mut ledger = Ledger::new(false, false);
    let pages = FLYING_MAX as u64 + 2;
    let mut flying: Vec<WriteId> = Vec::new();
    for n in 0..pages {
        flying.extend(write(&mut ledger, n + 1, 2 * n).into_iter().map(|write| write.id));
    }
    assert!(ledger.flush_ended(ledger.flush_begins(), false).is_empty());
    ledger.take_effects();
    ledger.ring(pages, RingLeg::Refused, false);
    assert!(!ledger.take_effects().contains(&Effect::Failed { seq: pages }));
    for id in flying {
        end_well(&mut ledger, id);
    }
    assert!(ledger.take_effects().contains(&Effect::Acked { seq: pages, by_ring: false }));
}

/// A write ends well, and whatever is written after it.
fn end_well(ledger: &mut Ledger, id: WriteId) {
    let mut more = ledger.disk_wrote(id, true);
    while let Some(write) = more.pop() {
        more.extend(ledger.disk_wrote(write.id, true));
    }
}
