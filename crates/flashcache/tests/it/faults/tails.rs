//! A chunk that a power cut left behind the end of a segment never comes back: not even where a later life writes right up to it.

use super::rig::*;
use crate::running::run;
use device::World;
use flashcache::{CacheConfig, Sabotage};
use std::collections::BTreeMap;
use std::time::Duration;

/// Page number and content.
type Pages = BTreeMap<u64, Vec<u8>>;

async fn pages(rig: &Rig) -> Pages {
    let mut all = Pages::new();
    for page in 0..SEGMENTS * u64::from(SEGMENT_BYTES) / 4096 {
        all.insert(page, rig.media[0].read_at(page * 4096).await);
    }
    all
}

/// Whether a block that was overwritten on the disk is served from flash. Its region is marked. A second life compares it, writes
/// a clean chunk and, behind it, that the region is settled; the power cut takes the first of the two. In a third life a chunk as long goes
/// where that was, the block is overwritten, and the process dies before the death is on flash.
async fn is_served_stale(sabotage: Option<Sabotage>, world: World) -> bool {
    // Nothing is written because of its age.
    let config = CacheConfig { chunk_age: Duration::from_secs(3600), sabotage, ..config() };
    let rig = Rig::with(geometry(), config.clone(), 1, world).await;
    rig.filled(0).await;
    let ticket = rig.cache.begin_write(&rig.disk, parts(5)).await.unwrap();
    rig.cache.end_write(ticket);

    let rig = rig.again_with(config.clone()).await;
    assert!(rig.misses(0), "not compared yet");
    let before = pages(&rig).await;
    rig.filled(100).await;
    let lost: Pages = {
        let after = pages(&rig).await;
        before.into_iter().filter(|(page, content)| after[page] != *content).collect()
    };
    assert_eq!(lost.len(), 6, "a chunk of a header and four pages, and the witness of the flush behind it");
    for suspect in rig.cache.suspects(&rig.disk) {
        assert_eq!(rig.cache.suspect_parts(suspect), [parts(0)]);
        rig.cache.revalidate(&rig.disk, parts(0), data(0).view(0..BLOCK_BYTES));
        rig.cache.trusted(suspect);
    }
    assert!(!rig.misses(0), "the disk has the same");
    let list = rig.cache.settle_list(&rig.disk, &rig.cache.epochs(), usize::MAX);
    assert_eq!(rig.cache.settle(list).await, 1);
    rig.on_flash().await;
    for (page, content) in &lost {
        rig.media[0].write_at(page * 4096, content).await;
    }

    let rig = rig.again_with(config.clone()).await;
    assert!(rig.misses(0) && rig.misses(100), "the region is marked again, and the chunk is lost");
    rig.filled(101).await;
    let changed = pages(&rig).await;
    assert!(lost.iter().all(|(page, content)| changed[page] != *content), "the chunk has the place of the lost one");
    let ticket = rig.cache.begin_write(&rig.disk, parts(0)).await.unwrap();
    rig.cache.end_write(ticket);

    let rig = rig.again_with(config).await;
    assert!(!rig.misses(101));
    !rig.misses(0)
}

#[test]
fn what_a_lost_life_has_left_behind_the_end_of_a_segment_is_not_believed() {
    run(|world| async move { assert!(!is_served_stale(None, world).await) });
}

#[test]
fn a_tail_that_is_kept_is_caught() {
    run(|world| async move { assert!(is_served_stale(Some(Sabotage::TailKept), world).await) });
}
