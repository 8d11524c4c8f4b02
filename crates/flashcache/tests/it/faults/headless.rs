//! A segment whose first page cannot be read back: its footer says the same, and one that has none is not taken for one that was never
//! there.

use super::rig::*;
use crate::running::run;
use device::io::{FailKind, Verb};
use device::layers::{Action, Fault};
use flashcache::format::{self, Owner};
use flashcache::{CacheConfig, Recovered, Residence, Sabotage};
use std::collections::BTreeMap;

const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };
const UNIT: u64 = 4096;

/// Segments that hold an opening, and whether it has a footer.
async fn segments(rig: &Rig) -> BTreeMap<u64, bool> {
    let mut found = BTreeMap::new();
    for segment in 0..SEGMENTS {
        let start = segment * u64::from(SEGMENT_BYTES);
        let first = rig.media[0].read_at(start).await;
        let last = rig.media[0].read_at(start + u64::from(SEGMENT_BYTES) - UNIT).await;
        if let Ok((header, _)) = format::decode_chunk(&first, &OWNER) {
            let trailer = format::decode_trailer(&last[last.len() - format::TRAILER_BYTES..], &OWNER);
            found.insert(segment, trailer.is_ok_and(|trailer| trailer.life == header.life));
        }
    }
    found
}

/// Blocks that are dirty, others that were and have been written anew, all of it durable.
async fn filled(world: device::World) -> Rig {
    let rig = Rig::new(1, world).await;
    // Those of the first region are compared with the disk after a crash.
    for block in (0..20).chain(300..340) {
        rig.filled(block).await;
    }
    for block in 100..130 {
        rig.dirty(block).await.unwrap();
    }
    // Records that end entries elsewhere.
    for block in 0..20 {
        let ticket = rig.cache.begin_write(&rig.disk, parts(block)).await.unwrap();
        rig.cache.end_write(ticket);
    }
    rig.cache.sync(&rig.disk).await.unwrap();
    rig
}

/// Which of them are where.
fn state(rig: &Rig) -> Vec<Vec<(u64, Residence)>> {
    (0..340).map(|block| rig.residence(block)).collect()
}

async fn rot(rig: &Rig, segments: impl Iterator<Item = u64>) {
    for segment in segments {
        let start = segment * u64::from(SEGMENT_BYTES);
        let mut page = rig.media[0].read_at(start).await;
        page[20] ^= 1;
        rig.media[0].write_at(start, &page).await;
    }
}

#[test]
fn the_footer_says_what_a_rotten_first_page_said() {
    for sabotage in [None, Some(Sabotage::RottenSegmentVanishes)] {
        run(move |world| async move {
            let rig = filled(world).await;
            let before = state(&rig);
            let full: Vec<u64> = segments(&rig).await.into_iter().filter(|(_, full)| *full).map(|(id, _)| id).collect();
            assert!(full.len() >= 4, "{full:?}");
            rot(&rig, full.iter().copied()).await;
            let rig = rig.again_with(CacheConfig { sabotage, ..config() }).await;
            let same = rig.recovered[0].is_ok() && state(&rig) == before;
            assert_eq!(same, sabotage.is_none());
            if sabotage.is_none() {
                let found = rig.recovered[0].clone().unwrap();
                assert!(matches!(found, Recovered { headless, .. } if headless == full.len() as u64), "{found:?}");
                let rig = rig.again().await;
                assert_eq!(state(&rig), before, "over another crash");
            }
        });
    }
}

/// A device may lose a discard with the write that came after it.
#[test]
fn the_footer_counts_where_a_first_page_is_of_an_earlier_opening() {
    for sabotage in [None, Some(Sabotage::EarlierFirstPageCounts)] {
        run(move |world| async move {
            let rig = filled(world).await;
            let opening_of =
                |page: &[u8]| format::decode_chunk(page, &OWNER).map_or(0, |(header, _)| header.life.opening.0);
            let mut earlier = BTreeMap::new();
            for id in segments(&rig).await.into_keys() {
                earlier.insert(id, rig.media[0].read_at(id * u64::from(SEGMENT_BYTES)).await);
            }
            for block in 1000..1800 {
                let _ = rig.offer(block);
                rig.on_flash().await;
            }
            rig.cache.sync(&rig.disk).await.unwrap();
            let all = |rig: &Rig| (0..1800).map(|block| rig.residence(block)).collect::<Vec<_>>();
            let (before, mut count) = (all(&rig), 0);
            for (id, is_full) in segments(&rig).await {
                let start = id * u64::from(SEGMENT_BYTES);
                let now = rig.media[0].read_at(start).await;
                if let Some(page) = earlier.get(&id).filter(|page| is_full && opening_of(page) < opening_of(&now)) {
                    rig.media[0].write_at(start, page).await;
                    count += 1;
                }
            }
            assert!(count >= 3, "{count} segments were opened again and are full");
            let rig = rig.again_with(CacheConfig { sabotage, ..config() }).await;
            let Ok(found) = rig.recovered[0].clone() else {
                assert!(sabotage.is_some());
                return;
            };
            assert!(sabotage.is_none(), "nothing can be believed with it");
            assert_eq!((found.headless, all(&rig) == before), (count, true), "{found:?}");
            // Each is read once more where it is reclaimed.
            for block in 2000..2200 {
                let _ = rig.offer(block);
                rig.on_flash().await;
            }
            assert!(!rig.member().has_failed());
        });
    }
}

#[test]
fn a_first_page_that_cannot_be_read_costs_nothing() {
    run(|world| async move {
        let rig = filled(world).await;
        let before = state(&rig);
        let (&id, _) = segments(&rig).await.iter().find(|(_, full)| **full).unwrap();
        let start = id * u64::from(SEGMENT_BYTES);
        let media = rig.media.clone();
        let world = rig.world.clone();
        let _ = rig.again().await;
        // As a device that cannot read that one page.
        let rig = Rig::on_faulty(media, config(), world, |faults| {
            let bad = Fault::every(Verb::Read, Action::Fail(FailKind::Media));
            faults.add(Fault { range: Some(start..start + UNIT), ..bad });
        })
        .await;
        assert!(rig.recovered[0].is_ok(), "{:?}", rig.recovered);
        assert_eq!(state(&rig), before);
    });
}

/// What it said of others is lost: clean copies that it ended would be served.
#[test]
fn a_beginning_that_is_lost_with_a_durable_chunk_behind_it_is_damage() {
    for sabotage in [None, Some(Sabotage::RottenSegmentVanishes)] {
        run(move |world| async move {
            let rig = Rig::new(1, world).await;
            for block in 0..4 {
                rig.dirty(block).await.unwrap();
                rig.cache.sync(&rig.disk).await.unwrap();
            }
            let open: Vec<u64> = segments(&rig).await.into_iter().filter(|(_, full)| !full).map(|(id, _)| id).collect();
            assert_eq!(open.len(), 1);
            rig.on_flash().await;
            rot(&rig, open.iter().copied()).await;
            // With it the beginning would be made again.
            let witness = (open[0] + 1) * u64::from(SEGMENT_BYTES) - UNIT;
            rig.media[0].write_at(witness, &[0; 4096]).await;
            let rig = rig.again_with(CacheConfig { sabotage, ..config() }).await;
            let why = rig.recovered[0].as_ref().err().map(ToString::to_string).unwrap_or_default();
            assert_eq!(why.contains("was acknowledged as durable and is not there"), sabotage.is_none(), "{why}");
        });
    }
}

#[test]
fn a_segment_that_has_vanished_is_missed_after_what_linked_to_it_was_reclaimed() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        // The segment that stays is full of what is dirty; all that was written after it is reclaimed many times.
        for block in 100..130 {
            rig.dirty(block).await.unwrap();
        }
        rig.cache.sync(&rig.disk).await.unwrap();
        for round in 0..30_u64 {
            for block in 0..60 {
                let _ = rig.offer(1000 + round * 60 + block);
                rig.on_flash().await;
            }
        }
        assert!(rig.counters()["reclaims"] > 40, "{:?}", rig.member());
        let before: Vec<u64> = segments(&rig).await.into_iter().filter(|(_, full)| *full).map(|(id, _)| id).collect();
        // The first one that holds dirty data.
        let mut vanished = None;
        for id in before {
            let first = rig.media[0].read_at(id * u64::from(SEGMENT_BYTES)).await;
            let (header, _) = format::decode_chunk(&first, &OWNER).unwrap();
            if header.life.head.is_dirty() {
                vanished = Some(id);
                break;
            }
        }
        let start = vanished.unwrap() * u64::from(SEGMENT_BYTES);
        for page in (0..u64::from(SEGMENT_BYTES)).step_by(4096) {
            rig.media[0].write_at(start + page, &[0; 4096]).await;
        }
        let rig = rig.again().await;
        let why = rig.recovered[0].as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(why.contains("was acknowledged as durable and is not there"), "{why}");
    });
}
