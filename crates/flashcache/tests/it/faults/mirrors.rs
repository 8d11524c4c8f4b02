//! Two devices that do not agree after a crash, or of which one fails: who counts, and what the other gets.

use super::rig::*;
use crate::running::run;
use device::Buf;
use device::io::Verb;
use device::layers::{Action, Fault};
use device::spawn::yield_now;
use flashcache::{CacheConfig, DirtyRefused, Residence, Sabotage, Stretch};
use futures_util::FutureExt;
use std::sync::atomic::Ordering;

/// Of a block: the place of the member that serves it. Its mirror is the other.
fn server(rig: &Rig, block: u64) -> usize {
    rig.cache.member_of(&rig.disk, block * BLOCK_PARTS).unwrap()
}

/// A dirty write that reaches all devices but one, then a crash. That one has not written anything since, or `goes_on`.
async fn half_written(world: device::World, lacks: fn(usize) -> usize, before: bool, goes_on: bool) -> (Rig, usize) {
    let rig = Rig::new(2, world).await;
    let first = server(&rig, 2);
    if before {
        // An older version of it is on both: only its data is another.
        rig.cache.write_dirty(&rig.disk, parts(2), &data(60), false).await.unwrap();
        rig.on_flash().await;
    }
    let count = if goes_on { 1 } else { u64::MAX };
    rig.faults[lacks(first)].add(Fault { count, ..Fault::every(Verb::Write, Action::Stall) });
    let data = data(2);
    let mut write = Box::pin(rig.cache.write_dirty(&rig.disk, parts(2), &data, before));
    assert!(write.as_mut().now_or_never().is_none());
    for _ in 0..100 {
        yield_now().await;
    }
    assert!(write.as_mut().now_or_never().is_none(), "nobody was told that it is written");
    if goes_on {
        // Elsewhere in its log: more than a chunk.
        for block in (3..400).filter(|&block| server(&rig, block) == lacks(first)) {
            rig.offer(block);
        }
        for _ in 0..400 {
            yield_now().await;
        }
        let chunks = rig.cache.members().nth(lacks(first)).unwrap().counters.chunks.load(Ordering::Relaxed);
        assert!(chunks > 0, "behind the write that stands still");
    }
    drop(write);
    (rig.again().await, first)
}

/// The other may have failed before, and readers have seen what the mirror took; or it has lost what was acknowledged.
#[test]
fn what_only_the_mirror_has_or_has_later_counts() {
    for (before, goes_on) in [(false, false), (true, false), (false, true), (true, true)] {
        run(move |world| async move {
            let (rig, first) = half_written(world, |first| first, before, goes_on).await;
            let reads_it = async |rig: &Rig, member: usize, what: &str| {
                let mut found = rig.cache.lookup(&rig.disk, parts(2));
                let (Some(Stretch::Hit(hit)), 0) = (found.pop(), found.len()) else { panic!("one hit: {what}") };
                let (result, back) = rig.cache.read_hit(hit, Buf::zeroed(BLOCK_BYTES).into()).await;
                assert_eq!(result, Ok(()), "{what}");
                assert!(back.unwrap().to_vec(0..BLOCK_BYTES) == data(2).to_vec(0..BLOCK_BYTES), "{what}: {member}");
            };
            let bytes = BLOCK_BYTES as u64;
            assert_eq!(rig.cache.all_dirty_bytes(), (bytes, 0));
            reads_it(&rig, first, "the member that counts has been given it").await;
            let rig = rig.again().await;
            let each: Vec<u64> = rig.cache.members().map(|member| member.dirty_bytes()).collect();
            assert_eq!(each, [bytes, bytes], "over another crash");
            rig.cache.members().nth(first).unwrap().fail("a test".to_owned());
            reads_it(&rig, 1 - first, "and the mirror still has it").await;
        });
    }
}

#[test]
fn what_only_the_member_has_that_counts_is_given_to_its_mirror() {
    for before in [false, true] {
        run(move |world| async move {
            let (rig, first) = half_written(world, |first| 1 - first, before, false).await;
            assert_eq!(rig.residence(2), [(4, Residence::Dirty)]);
            let bytes = BLOCK_BYTES as u64;
            assert_eq!(rig.cache.all_dirty_bytes(), (bytes, 0));
            let each: Vec<u64> = rig.cache.members().map(|member| member.dirty_bytes()).collect();
            assert_eq!(each, [bytes, bytes]);
            rig.cache.members().nth(first).unwrap().fail("a test".to_owned());
            assert_eq!(rig.read(rig.hit(2)).await, Ok(()), "the mirror has what counted");
        });
    }
}

/// What counts there and what is a mirror there, of different regions, in one start.
#[test]
fn a_member_that_lacks_both_kinds_is_given_each_as_what_it_is() {
    for lacks in [0, 1] {
        run(move |world| async move {
            let rig = Rig::new(2, world).await;
            rig.faults[lacks].add(Fault::every(Verb::Write, Action::Stall));
            let served_by = |member| (1..).find(|&block| server(&rig, block) == member).unwrap();
            let blocks = [served_by(0), served_by(1)];
            let data = blocks.map(data);
            let write = |i: usize| rig.cache.write_dirty(&rig.disk, parts(blocks[i]), &data[i], false);
            let mut writes = Box::pin(futures_util::future::join(write(0), write(1)));
            for _ in 0..100 {
                assert!(writes.as_mut().now_or_never().is_none());
                yield_now().await;
            }
            drop(writes);
            let rig = rig.again().await;
            for block in blocks {
                assert_eq!(rig.residence(block), [(4, Residence::Dirty)]);
                assert_eq!(rig.read(rig.hit(block)).await, Ok(()));
            }
            assert_eq!(rig.cache.all_dirty_bytes(), (2 * BLOCK_BYTES as u64, 0));
            let rig = rig.again().await;
            rig.cache.members().nth(1 - lacks).unwrap().fail("a test".to_owned());
            for block in blocks {
                assert_eq!(rig.residence(block), [(4, Residence::Dirty)], "over another crash");
                assert_eq!(rig.read(rig.hit(block)).await, Ok(()), "the one that lacked it has it");
            }
        });
    }
}

/// The last chunk of a device has no witness: it vanishes without a word.
async fn vanished_from_the_first(sabotage: Option<Sabotage>, world: device::World) -> (Rig, bool) {
    let rig = Rig::new(2, world).await;
    let first = server(&rig, 2);
    rig.dirty(2).await.unwrap();
    rig.cache.sync(&rig.disk).await.unwrap();
    let media = rig.media[first].clone();
    let rig = {
        for page in 0..SEGMENTS * u64::from(SEGMENT_BYTES) / 4096 {
            media.write_at(page * 4096, &[0; 4096]).await;
        }
        rig.again_with(CacheConfig { sabotage, ..config() }).await
    };
    let there = rig.residence(2) == [(4, Residence::Dirty)];
    (rig, there)
}

#[test]
fn absence_never_kills_the_copy_of_the_mirror() {
    run(|world| async move {
        let (rig, there) = vanished_from_the_first(None, world).await;
        assert!(there);
        assert_eq!(rig.read(rig.hit(2)).await, Ok(()));
        let each: Vec<u64> = rig.cache.members().map(|member| member.dirty_bytes()).collect();
        assert_eq!(each, [BLOCK_BYTES as u64; 2], "both have it again");
    });
    run(|world| async move { assert!(!vanished_from_the_first(Some(Sabotage::AbsenceKillsMirror), world).await.1) });
}

#[test]
fn a_read_over_blocks_is_answered_by_the_mirror_as_a_whole() {
    run(|world| async move {
        let rig = Rig::new(2, world).await;
        let mut all = data(2);
        all.append(data(3));
        let len = all.len_bytes();
        rig.cache.write_dirty(&rig.disk, 8..16, &all, false).await.unwrap();
        rig.rot(server(&rig, 2), 13).await;
        let mut found = rig.cache.lookup(&rig.disk, 8..16);
        let (Some(Stretch::Hit(hit)), 0) = (found.pop(), found.len()) else { panic!("one hit") };
        assert_eq!(hit.parts(), 8..16);
        let (result, back) = rig.cache.read_hit(hit, Buf::zeroed(len).into()).await;
        assert_eq!(result, Ok(()));
        assert!(back.unwrap().to_vec(0..len) == all.to_vec(0..len));
    });
}

#[test]
fn an_expelled_member_serves_nothing_in_the_cache_that_follows() {
    run(|world| async move {
        let rig = Rig::new(2, world.clone()).await;
        rig.cache.members().nth(1).unwrap().fail("a test".to_owned());
        rig.cache.confirm_expelled(1, HOME);
        let another = Rig::new(1, world.clone()).await;
        let joining = another.as_member(77);
        let (next, report) = rig.cache.successor(&[], vec![joining], true, None, &world).await.unwrap();
        assert!(report.len() == 1 && report[0].is_ok());
        next.end_what_others_serve().await;
        rig.cache.retire(&[], &next);
        let disk = next.disk(DISK);
        let mut served = [0; 3];
        (0..300).for_each(|region| served[next.member_of(&disk, region * 256).unwrap()] += 1);
        assert!(served[1] == 0 && served[0] > 100 && served[2] > 100, "{served:?}");
        let ticket = next.begin_write(&disk, 0..10_000).await.unwrap();
        next.end_write(ticket);
        // It is short of members all the same.
        assert_eq!(next.write_dirty(&disk, parts(5), &data(5), false).await, Err(DirtyRefused::NoRoom));
    });
}
