//! A death names an opening of a segment, and no opening is used again: not even one whose chunks never reached flash.

use super::rig::*;
use crate::running::run;
use device::World;
use flashcache::{CacheConfig, FlashCache, MemberDevice, Residence, Sabotage};
use std::time::Duration;

/// Blocks that dirty data is lost of. A clean block is filled and ended: what says that it is dead goes to flash with a dirty chunk in another
/// segment, its own chunk does not. Then the process dies, and dirty data takes the same place of the same segment.
async fn lost(sabotage: Option<Sabotage>, world: World) -> Vec<u64> {
    // Nothing is written because of its age.
    let config = CacheConfig { chunk_age: Duration::from_secs(3600), sabotage, ..config() };
    let rig = Rig::with(geometry(), config.clone(), 1, world).await;
    assert_eq!(rig.offer(2).taken, 1);
    rig.cache.end_copies(&rig.disk, parts(2));
    rig.dirty(3).await.unwrap();
    let rig = rig.again_with(config.clone()).await;
    let written: Vec<u64> = (10..40).collect();
    for &block in &written {
        rig.dirty(block).await.unwrap();
    }
    rig.on_flash().await;
    let rig = rig.again_with(config).await;
    written.into_iter().filter(|&block| rig.residence(block) != [(4, Residence::Dirty)]).collect()
}

#[test]
fn a_death_in_an_opening_that_was_lost_ends_nothing_of_a_later_one() {
    run(|world| async move { assert_eq!(lost(None, world).await, []) });
}

#[test]
fn an_opening_used_again_is_caught() {
    run(|world| async move { assert_ne!(lost(Some(Sabotage::OpeningUsedAgain), world).await, []) });
}

#[test]
fn a_label_that_was_put_back_without_its_flash_is_found_out() {
    run(|world| async move {
        let rig = Rig::new(1, world.clone()).await;
        rig.filled(1).await;
        let members = vec![MemberDevice { life: 1, ..rig.as_member(2) }];
        let (_, recovered) = FlashCache::open(config(), members, &[DISK], world).await.unwrap();
        let why = recovered[0].as_ref().unwrap_err().to_string();
        assert!(why.contains("this is life 1: the label of the flash device was put back"), "{why}");
    });
}

#[test]
fn another_version_is_refused_by_its_number() {
    run(|world| async move {
        let rig = Rig::new(1, world.clone()).await;
        rig.filled(1).await;
        let mut page = rig.media[0].read_at(0).await;
        page[8] = 1;
        rig.media[0].write_at(0, &page).await;
        let rig = rig.again().await;
        let why = rig.recovered[0].as_ref().unwrap_err().to_string();
        assert!(why.contains("format version 1, and this release knows version 3 alone\nhint: "), "{why}");
    });
}
