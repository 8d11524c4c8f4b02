//! Pages that are rotten or cannot be read when recovery looks: what no flush has covered was never written, what one has covered is there
//! by its witness or says EIO for itself, and nothing else is given up.

use super::rig::*;
use crate::running::run;
use device::World;
use device::io::{FailKind, Verb};
use device::layers::{Action, Fault};
use flashcache::format::{self, Owner};
use flashcache::{CacheConfig, Residence, Sabotage};

const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };
const PAGE: u64 = 4096;

/// How a page comes to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// One bit of it has flipped.
    Rot,
    /// The device says that it cannot be read.
    Unreadable,
}

const LOSSES: [Loss; 2] = [Loss::Rot, Loss::Unreadable];

/// Blocks that overwrite one another, so that a version that is lost would let an older one through.
async fn filled(config: CacheConfig, world: World) -> Rig {
    let rig = Rig::with(geometry(), config, 1, world).await;
    for block in 100..103 {
        rig.dirty(block).await.unwrap();
        rig.cache.sync(&rig.disk).await.unwrap();
    }
    rig.on_flash().await;
    rig
}

/// Chunks that are there, by their sequence: the page of the header.
async fn headers(rig: &Rig) -> Vec<u64> {
    let mut all = Vec::new();
    for page in 0..SEGMENTS * u64::from(SEGMENT_BYTES) / PAGE {
        if let Ok((header, _)) = format::decode_chunk(&rig.media[0].read_at(page * PAGE).await, &OWNER) {
            all.push((header.sequence, page));
        }
    }
    all.sort_unstable();
    all.into_iter().map(|(_, page)| page).collect()
}

/// The page with the data of a part.
async fn page_of(rig: &Rig, part: u64) -> u64 {
    for page in 0..SEGMENTS * u64::from(SEGMENT_BYTES) / PAGE {
        if rig.media[0].read_at(page * PAGE).await == [(part as u8).wrapping_add(1); 4096] {
            return page;
        }
    }
    panic!("part {part} is on the device");
}

/// The process dies, pages are lost, and another process opens the device.
async fn lost(rig: Rig, pages: &[u64], loss: Loss, config: CacheConfig) -> Rig {
    if loss == Loss::Rot {
        for page in pages {
            let mut bytes = rig.media[0].read_at(page * PAGE).await;
            bytes[110] ^= 1;
            rig.media[0].write_at(page * PAGE, &bytes).await;
        }
    }
    let (media, world) = (rig.media.clone(), rig.world.clone());
    let _ = rig.faults[0].add(every(FailKind::Gone));
    rig.member().fail("the process has died".to_owned());
    rig.cache.stop().await;
    Rig::on_faulty(media, config, world, |faults| {
        for page in pages.iter().filter(|_| loss == Loss::Unreadable) {
            let bad = Fault::every(Verb::Read, Action::Fail(FailKind::Media));
            faults.add(Fault { range: Some(page * PAGE..(page + 1) * PAGE), ..bad });
        }
    })
    .await
}

/// The last page of the segment of a page: where an open segment has its witness.
fn last_of(page: u64) -> u64 {
    let pages = u64::from(SEGMENT_BYTES) / PAGE;
    page / pages * pages + pages - 1
}

async fn assert_all_read(rig: &Rig, blocks: std::ops::Range<u64>) {
    for block in blocks {
        assert_eq!(rig.residence(block), [(4, Residence::Dirty)], "block {block}");
        assert_eq!(rig.read(rig.hit(block)).await, Ok(()), "block {block}");
    }
}

#[test]
fn an_unreadable_part_that_no_flush_has_covered_was_never_written() {
    for sabotage in [None, Some(Sabotage::UnreadablePageEndsCache)] {
        run(move |world| async move {
            let rig = filled(config(), world).await;
            rig.dirty(103).await.unwrap();
            let page = page_of(&rig, 103 * BLOCK_PARTS + 2).await;
            let rig = lost(rig, &[page], Loss::Unreadable, CacheConfig { sabotage, ..config() }).await;
            assert_eq!(rig.recovered[0].is_ok(), sabotage.is_none(), "{:?}", rig.recovered);
            if let Ok(found) = &rig.recovered[0] {
                assert_eq!((found.dirty_parts, found.torn_parts), (15, 1));
                assert_all_read(&rig, 100..103).await;
                let torn = [(2, Residence::Dirty), (1, Residence::Disk), (1, Residence::Dirty)];
                assert_eq!(rig.residence(103), torn);
            }
        });
    }
}

#[test]
fn a_lost_header_that_no_flush_has_covered_ends_its_chunk_alone() {
    for loss in LOSSES {
        run(move |world| async move {
            let rig = filled(config(), world).await;
            rig.dirty(103).await.unwrap();
            let header = *headers(&rig).await.last().unwrap();
            let rig = lost(rig, &[header], loss, config()).await;
            let found = rig.recovered[0].as_ref().unwrap();
            assert_eq!(found.dirty_parts, 12, "{loss:?}");
            assert_all_read(&rig, 100..103).await;
            assert_eq!(rig.residence(103), [(4, Residence::Disk)]);
            // It goes on, and another start finds the same.
            rig.dirty(104).await.unwrap();
            rig.on_flash().await;
            let rig = rig.again().await;
            assert_all_read(&rig, 104..105).await;
            assert_eq!(rig.residence(103), [(4, Residence::Disk)]);
        });
    }
}

/// In each place of the segment, the first and the last included.
#[test]
fn a_header_that_a_flush_has_covered_is_made_again() {
    for (loss, which) in LOSSES.into_iter().flat_map(|loss| (0..3).map(move |which| (loss, which))) {
        for sabotage in [None, Some(Sabotage::WitnessNotWritten)] {
            run(move |world| async move {
                let rig = filled(CacheConfig { sabotage, ..config() }, world).await;
                let all = headers(&rig).await;
                let header = all[all.len() - 3 + which];
                let rig = lost(rig, &[header], loss, config()).await;
                let rebuilt = rig.recovered[0].as_ref().is_ok_and(|found| found.rebuilt_headers == 1);
                assert_eq!(rebuilt, sabotage.is_none(), "{loss:?} {which} {:?}", rig.recovered);
                if !rebuilt {
                    return;
                }
                assert_all_read(&rig, 100..103).await;
                if loss == Loss::Rot {
                    let rig = rig.again().await;
                    assert_eq!(rig.recovered[0].as_ref().unwrap().rebuilt_headers, 0, "it was written again");
                    assert_all_read(&rig, 100..103).await;
                }
            });
        }
    }
}

/// The oldest version is never shown in place of one that a flush has covered.
#[test]
fn a_part_that_a_flush_has_covered_and_that_is_lost_answers_eio() {
    for (loss, sabotage) in
        [(Loss::Rot, None), (Loss::Unreadable, None), (Loss::Rot, Some(Sabotage::WitnessNotWritten))]
    {
        run(move |world| async move {
            let rig = filled(CacheConfig { sabotage, ..config() }, world).await;
            let page = page_of(&rig, 102 * BLOCK_PARTS + 1).await;
            let rig = lost(rig, &[page], loss, config()).await;
            let found = rig.recovered[0].as_ref().unwrap();
            assert_eq!(found.torn_parts == 0, sabotage.is_none(), "{loss:?}");
            if sabotage.is_some() {
                return;
            }
            assert_eq!(rig.residence(102), [(4, Residence::Dirty)]);
            assert!(rig.read(rig.hit(102)).await.is_err(), "{loss:?}");
            assert!(!rig.member().has_failed());
            assert_all_read(&rig, 100..102).await;
        });
    }
}

#[test]
fn two_headers_of_one_open_segment_are_damage_and_said_to_be() {
    for loss in LOSSES {
        run(move |world| async move {
            let rig = filled(config(), world).await;
            let all = headers(&rig).await;
            let rig = lost(rig, &all[all.len() - 2..], loss, config()).await;
            let why = rig.recovered[0].as_ref().unwrap_err().to_string();
            assert!(why.contains("acknowledged as durable and is not there"), "{why}");
        });
    }
}

#[test]
fn a_lost_witness_costs_nothing() {
    for loss in LOSSES {
        run(move |world| async move {
            let rig = filled(config(), world).await;
            let witness = last_of(*headers(&rig).await.last().unwrap());
            let rig = lost(rig, &[witness], loss, config()).await;
            assert!(rig.recovered[0].is_ok(), "{:?}", rig.recovered);
            assert_all_read(&rig, 100..103).await;
        });
    }
}

/// A start after a crash leaves a witness too: nothing need be written for it.
#[test]
fn what_recovery_found_has_a_witness() {
    run(|world| async move {
        let rig = filled(config(), world).await;
        let rig = rig.again().await;
        let all = headers(&rig).await;
        let rig = lost(rig, &[all[0]], Loss::Rot, config()).await;
        assert_eq!(rig.recovered[0].as_ref().unwrap().rebuilt_headers, 1);
        assert_all_read(&rig, 100..103).await;
    });
}

/// Each segment says what it holds twice: a clean stop leaves none without a footer.
#[test]
fn a_clean_stop_seals_what_is_open() {
    run(|world| async move {
        let rig = filled(config(), world).await;
        rig.cache.stop().await;
        assert!(rig.cache.checkpoint().await[0].is_some());
        for page in headers(&rig).await {
            let last = rig.media[0].read_at(last_of(page) * PAGE).await;
            let trailer = format::decode_trailer(&last[last.len() - format::TRAILER_BYTES..], &OWNER);
            assert!(trailer.is_ok(), "{page}");
        }
        let all = headers(&rig).await;
        let rig = lost(rig, &all[..1], Loss::Rot, config()).await;
        assert!(rig.recovered[0].is_ok(), "{:?}", rig.recovered);
        assert_all_read(&rig, 100..103).await;
    });
}
