//! Headers and footers that are lost while the cell is stopped: a start from a checkpoint does not need them, and the crash after it does. So
//! the member reads them in the background and writes again what is bad.

use super::rig::*;
use crate::running::run;
use device::layers::Memory;
use device::{Buf, Device, SharedBufs, World};
use flashcache::format::{self, Owner};
use flashcache::{CacheConfig, CheckpointPlace, Residence, Sabotage, Stretch};
use std::collections::BTreeMap;
use std::sync::Arc;

const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };
const PAGE: u64 = 4096;
const PAGES: u64 = SEGMENT_BYTES as u64 / PAGE;
const BLOCKS: u64 = 150;

/// What a client of the cache can see of a block: where each part is, and its first byte.
type Seen = BTreeMap<u64, (Vec<(u64, Residence)>, Vec<u8>)>;

/// A cache after a clean stop.
struct Stopped {
    media: Arc<Memory>,
    place: CheckpointPlace,
    seen: Seen,
    world: World,
}

fn version(block: u64, version: u8) -> SharedBufs {
    let bytes: Vec<u8> = parts(block).flat_map(|part| [part as u8 ^ (version * 83); 4096]).collect();
    SharedBufs::from(Buf::padded(&bytes, 4096).freeze())
}

async fn dirty(rig: &Rig, block: u64, number: u8) {
    rig.cache.write_dirty(&rig.disk, parts(block), &version(block, number), false).await.unwrap();
}

async fn seen(rig: &Rig) -> Seen {
    let mut seen = Seen::new();
    for block in 0..BLOCKS {
        let mut bytes = Vec::new();
        for stretch in rig.cache.lookup(&rig.disk, parts(block)) {
            let Stretch::Hit(hit) = stretch else { continue };
            let len = (hit.parts().end - hit.parts().start) as usize * 4096;
            let (result, back) = rig.cache.read_hit(hit, Buf::zeroed(len).into()).await;
            bytes.extend(result.map_or(vec![0xee], |()| back.unwrap().to_vec(0..len)).into_iter().step_by(4096));
        }
        seen.insert(block, (rig.residence(block), bytes));
    }
    seen
}

/// Clean blocks, some of which a write has ended; dirty ones in two versions, of which some have been destaged.
async fn stopped(world: World) -> Stopped {
    let media = Memory::with_geometry(geometry(), false);
    let rig = Rig::on(vec![media.clone()], config(), world.clone()).await;
    for block in 0..40 {
        assert_eq!(rig.offer(block).taken, 1);
        if block % 8 == 7 {
            rig.on_flash().await;
        }
    }
    for block in 50..BLOCKS {
        dirty(&rig, block, 1).await;
    }
    rig.on_flash().await;
    for block in (0..30).step_by(3) {
        let ticket = rig.cache.begin_write(&rig.disk, parts(block)).await.unwrap();
        rig.cache.end_write(ticket);
        dirty(&rig, 50 + block, 2).await;
    }
    rig.on_flash().await;
    for block in (1..30).step_by(4) {
        dirty(&rig, 50 + block, 3).await;
        let ticket = rig.cache.begin_write(&rig.disk, parts(block)).await.unwrap();
        rig.cache.end_write(ticket);
    }
    rig.on_flash().await;
    let list = rig.cache.settle_list(&rig.disk, &rig.cache.epochs(), usize::MAX);
    rig.cache.settle(list).await;
    let seen = seen(&rig).await;
    rig.cache.stop().await;
    let place = rig.cache.checkpoint().await[0].unwrap();
    Stopped { media, place, seen, world }
}

impl Stopped {
    /// A device with the same content.
    async fn copy(&self) -> Arc<Memory> {
        let copy = Memory::with_geometry(geometry(), false);
        let (from, to): (Device, Device) = (self.media.clone(), copy.clone());
        for segment in 0..SEGMENTS {
            let (at, bytes) = (segment * u64::from(SEGMENT_BYTES), Buf::zeroed(SEGMENT_BYTES as usize));
            let read = from.read(at, bytes.into()).await.bufs.to_vec(0..SEGMENT_BYTES as usize);
            if read.iter().all(|byte| *byte == 0) {
                continue;
            }
            to.write(at, Buf::padded(&read, 4096).freeze().into(), true).await;
        }
        copy
    }

    /// By segment with content: the pages of its headers, and the last one of its footer.
    async fn records(&self) -> BTreeMap<u64, (Vec<u64>, u64)> {
        let mut all: BTreeMap<u64, (Vec<u64>, u64)> = BTreeMap::new();
        for page in 0..SEGMENTS * PAGES {
            if format::decode_chunk(&self.media.read_at(page * PAGE).await, &OWNER).is_ok() {
                all.entry(page / PAGES).or_insert((Vec::new(), page / PAGES * PAGES + PAGES - 1)).0.push(page);
            }
        }
        all
    }
}

async fn rot_pages(media: &Arc<Memory>, pages: &[u64]) {
    for page in pages {
        let mut bytes = media.read_at(page * PAGE).await;
        // Within the fixed bytes of a header, and within those of a trailer.
        for at in [48, 4048] {
            bytes[at] ^= 1;
        }
        media.write_at(page * PAGE, &bytes).await;
    }
}

/// Start from the checkpoint, with these pages lost while the cell was stopped; clients change something else, and, where `verified`, all of
/// the log has been verified.
async fn started(stopped: &Stopped, lost: &[u64], config: CacheConfig, verified: bool) -> Rig {
    let media = stopped.copy().await;
    rot_pages(&media, lost).await;
    let rig = Rig::from_checkpoint(media, stopped.place, config, stopped.world.clone()).await;
    assert_eq!(rig.recovered[0].as_ref().unwrap().evidence, flashcache::Evidence::Checkpoint);
    for block in 160..165 {
        dirty(&rig, block, 1).await;
        rig.cache.sync(&rig.disk).await.unwrap();
    }
    if verified {
        rig.until(|rig| rig.member().unverified_bytes() == 0).await;
    }
    rig
}

/// The process dies, and the next one finds everything as it was.
async fn is_all_there(stopped: &Stopped, rig: Rig) -> bool {
    let rig = rig.again().await;
    rig.recovered[0].is_ok() && seen(&rig).await == stopped.seen
}

#[test]
fn one_page_of_a_segments_records_is_spared() {
    run(|world| async move {
        let stopped = stopped(world).await;
        for (headers, footer) in stopped.records().await.into_values() {
            for page in [headers[0], headers[headers.len() - 1], footer] {
                let rig = started(&stopped, &[page], config(), false).await;
                assert!(is_all_there(&stopped, rig).await, "page {page}");
            }
        }
    });
}

/// Of each segment its footer and one of its headers: the first, one in the middle, the last, in turn.
#[test]
fn both_copies_of_a_segments_records_are_made_again_from_the_index() {
    for sabotage in [None, Some(Sabotage::LogNotVerified)] {
        run(move |world| async move {
            let stopped = stopped(world).await;
            let mut lost = 0;
            for (n, (headers, footer)) in stopped.records().await.into_values().enumerate() {
                let page = headers[[0, headers.len() / 2, headers.len() - 1][n % 3]];
                let config = CacheConfig { sabotage, ..config() };
                let rig = started(&stopped, &[page, footer], config, sabotage.is_none()).await;
                if sabotage.is_none() {
                    assert_eq!((rig.counters()["log_repairs"], rig.counters()["log_damage"]), (1, 0));
                }
                let all = is_all_there(&stopped, rig).await;
                assert!(all || sabotage.is_some(), "page {page}");
                lost += u64::from(!all);
            }
            assert_eq!(lost > 0, sabotage.is_some());
        });
    }
}

/// The second copy is lost once the first has been verified.
#[test]
fn a_copy_that_is_written_again_stands_in_for_the_other() {
    run(|world| async move {
        let stopped = stopped(world).await;
        for (headers, footer) in stopped.records().await.into_values() {
            let header = headers[headers.len() / 2];
            for [first, second] in [[header, footer], [footer, header]] {
                let rig = started(&stopped, &[first], config(), true).await;
                assert_eq!((rig.counters()["log_repairs"], rig.counters()["log_damage"]), (1, 0));
                rot_pages(&rig.media[0], &[second]).await;
                assert!(is_all_there(&stopped, rig).await, "page {first}, then {second}");
            }
        }
    });
}

/// Recovery leaves the records of every segment in two places: where the footer is lost it writes one.
#[test]
fn a_segment_that_has_lost_its_footer_has_one_after_recovery() {
    for sabotage in [None, Some(Sabotage::FooterNotWrittenAgain)] {
        run(move |world| async move {
            let stopped = stopped(world).await;
            let mut lost = 0;
            for (headers, footer) in stopped.records().await.into_values() {
                let config = CacheConfig { sabotage, ..config() };
                let media = stopped.copy().await;
                rot_pages(&media, &[footer]).await;
                let rig = Rig::on(vec![media.clone()], config, stopped.world.clone()).await;
                assert_eq!(rig.recovered[0].as_ref().unwrap().walked, 1);
                rot_pages(&media, &[headers[headers.len() / 2]]).await;
                let all = is_all_there(&stopped, rig).await;
                assert!(all || sabotage.is_some(), "footer {footer}");
                lost += u64::from(!all);
            }
            assert_eq!(lost > 0, sabotage.is_some());
        });
    }
}
