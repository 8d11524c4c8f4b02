//! Goal: cleaning copies a dirty block, a client overwrites the block before the chunk with the copy is closed, and recovery after a crash
//! finds the client's version. Method: the device holds cleaning's reads back, so that one block is copied and the chunk stays open.

use super::rig::*;
use crate::running::run;
use device::Geometry;
use device::io::Verb;
use device::layers::{Action, Fault};
use device::spawn::yield_now;
use device::{Buf, SharedBufs, World};
use flashcache::{CacheConfig, Residence, Sabotage};
use futures_util::FutureExt;
use std::time::Duration;

/// Segments of a cache that is large enough to keep blocks apart by how long they last.
const MANY: u64 = 160;
const LASTING: u64 = 300;
const HOT: u64 = 100;

fn newer(block: u64) -> SharedBufs {
    let bytes: Vec<u8> = parts(block).flat_map(|part| [(part as u8) ^ 0x80; 4096]).collect();
    SharedBufs::from(Buf::padded(&bytes, 4096).freeze())
}

/// Let the stalled read go that comes first on the device.
fn release_first(rig: &Rig) {
    let stalled = rig.faults[0].stalled();
    for page in 0..MANY * u64::from(SEGMENT_BYTES) / 4096 {
        rig.faults[0].release_within(page * 4096..(page + 1) * 4096);
        if rig.faults[0].stalled() < stalled {
            return;
        }
    }
}

async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

/// Write dirty blocks, of which some last, until cleaning has copied one of those and waits for the reads of others.
async fn until_copied(rig: &Rig) {
    rig.faults[0].add(Fault::every(Verb::Read, Action::Stall));
    for n in 0..LASTING * 40 {
        let hot = LASTING + n * 7 % HOT;
        let block = if n % 4 == 0 && n / 4 < LASTING { n / 4 } else { hot };
        rig.cache.write_dirty(&rig.disk, parts(block), &data(block), n > LASTING * 4).await.unwrap();
        for _ in 0..1000 {
            settle().await;
            let copied = rig.counters()["dirty_copies"];
            match rig.faults[0].stalled() {
                0 if rig.member().segments().free > 6 => break,
                0 => rig.world.clock.sleep(Duration::from_millis(1)).await,
                1 => rig.faults[0].release(),
                _ => {
                    release_first(rig);
                    settle().await;
                    if rig.counters()["dirty_copies"] > copied && rig.faults[0].stalled() > 0 {
                        return;
                    }
                }
            }
        }
    }
    panic!("no copy: {:?}", rig.member());
}

/// Whether a block is not on flash yet: a read of it waits, and does not come to the device.
async fn is_under_way(rig: &Rig, block: u64) -> bool {
    let stalled = rig.faults[0].stalled();
    let mut read = Box::pin(rig.cache.read_hit(rig.hit(block), Buf::zeroed(BLOCK_BYTES).into()));
    assert!((&mut read).now_or_never().is_none());
    settle().await;
    rig.faults[0].stalled() == stalled
}

/// The blocks that come back in an older version than was durable.
async fn overtaken(sabotage: Option<Sabotage>, world: World) -> Vec<u64> {
    let geometry = Geometry { size_bytes: MANY * u64::from(SEGMENT_BYTES), ..geometry() };
    let long = Duration::from_secs(60);
    let config = CacheConfig { chunk_age: long, soft_limit: long, sabotage, ..config() };
    let rig = Rig::with(geometry, config.clone(), 1, world).await;
    until_copied(&rig).await;
    let mut copied = Vec::new();
    for block in (0..LASTING + HOT).filter(|&block| !rig.misses(block)).collect::<Vec<_>>() {
        if is_under_way(&rig, block).await {
            copied.push(block);
        }
    }
    assert!(!copied.is_empty() && copied.len() < 20, "{copied:?}");
    for &block in &copied {
        rig.cache.write_dirty(&rig.disk, parts(block), &newer(block), true).await.unwrap();
    }
    rig.cache.sync_all().await.unwrap();

    let rig = rig.again_with(config).await;
    let mut lost = Vec::new();
    for block in copied {
        assert_eq!(rig.residence(block), [(BLOCK_PARTS, Residence::Dirty)]);
        let (result, back) = rig.cache.read_hit(rig.hit(block), Buf::zeroed(BLOCK_BYTES).into()).await;
        assert_eq!(result, Ok(()));
        if back.unwrap().to_vec(0..BLOCK_BYTES) != newer(block).to_vec(0..BLOCK_BYTES) {
            lost.push(block);
        }
    }
    lost
}

#[test]
fn what_overtakes_the_copy_of_what_it_overwrites_is_what_counts() {
    run(|world| async move { assert_eq!(overtaken(None, world).await, []) });
}

#[test]
fn a_chunk_with_an_older_version_that_stays_open_is_caught() {
    let sabotage = Some(Sabotage::PredecessorLeftOpen);
    run(move |world| async move { assert!(!overtaken(sabotage, world).await.is_empty()) });
}

/// Whether a block that is not on flash yet gets there while others are written.
async fn arrives_under_a_trickle(rig: &Rig, block: u64) -> bool {
    let stalled = rig.faults[0].stalled();
    let mut read = Box::pin(rig.cache.read_hit(rig.hit(block), Buf::zeroed(BLOCK_BYTES).into()));
    for _ in 0..150 {
        assert!((&mut read).now_or_never().is_none(), "the device holds reads back");
        settle().await;
        if rig.faults[0].stalled() > stalled {
            return true;
        }
        rig.cache.write_dirty(&rig.disk, parts(LASTING), &data(LASTING), true).await.unwrap();
        rig.world.clock.sleep(Duration::from_millis(10)).await;
    }
    false
}

/// Whether a block whose copy is in an open chunk can be read while others write.
async fn is_read_under_a_trickle(sabotage: Option<Sabotage>, world: World) -> bool {
    let geometry = Geometry { size_bytes: MANY * u64::from(SEGMENT_BYTES), ..geometry() };
    let (chunk_age, soft_limit) = (Duration::from_millis(200), Duration::from_secs(60));
    let rig = Rig::with(geometry, CacheConfig { chunk_age, soft_limit, sabotage, ..config() }, 1, world).await;
    until_copied(&rig).await;
    for block in (0..LASTING + HOT).filter(|&block| block != LASTING && !rig.misses(block)).collect::<Vec<_>>() {
        if is_under_way(&rig, block).await {
            return arrives_under_a_trickle(&rig, block).await;
        }
    }
    panic!("no copy is under way: {:?}", rig.member());
}

#[test]
fn a_copy_of_dirty_data_is_read_while_others_write() {
    run(|world| async move { assert!(is_read_under_a_trickle(None, world).await) });
}

#[test]
fn a_chunk_with_copies_that_waits_for_company_for_ever_is_caught() {
    let sabotage = Some(Sabotage::CopiesWaitForCompany);
    run(move |world| async move { assert!(!is_read_under_a_trickle(sabotage, world).await) });
}
