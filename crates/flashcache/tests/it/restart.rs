//! Goal: after a clean stop the checkpoint gives back what the log would, and nothing when it cannot be believed; after a crash
//! that left no segment free the log goes on, and what lay behind its last chunk is not believed later. Method: caches on memory
//! devices, filled by hand; a crashed log made of the format's own encoders.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use device::layers::Memory;
use device::spawn::yield_now;
use device::{Arena, Buf, Device, Outcome, World};
use flashcache::checkpoint::PART_BYTES;
use flashcache::format::{self, BlockName, ChunkHeader, EntryKind, HeadKind, Owner, Record, SegmentLife};
use flashcache::units::{Opening, Position, SegmentId};
use flashcache::{
    CacheConfig, CachedDisk, CheckpointPlace, DiskHandle, Evidence, FillCause, FlashCache, MemberDevice, MemberError,
    Recovered, Residence,
};
use std::sync::Arc;
use std::time::Duration;

const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };

fn disk(id: u64) -> CachedDisk {
    CachedDisk { id, generation: 1, home: 1, is_home_there: true }
}

struct Open {
    cache: Arc<FlashCache>,
    handle: DiskHandle,
    recovered: Result<Recovered, MemberError>,
}

async fn open(
    device: &Device,
    (segment_bytes, block_bytes): (u32, u32),
    checkpoint: Option<CheckpointPlace>,
    disks: &[CachedDisk],
    world: &World,
) -> Open {
    let chunk_age = Duration::from_millis(1);
    let config = CacheConfig { segment_bytes, block_bytes, chunk_age, ..CacheConfig::default() };
    let members =
        vec![MemberDevice { device: device.clone(), owner: OWNER, life: next_life(), durable: true, checkpoint }];
    let (cache, mut recovered) = FlashCache::open(config, members, disks, world.clone()).await.unwrap();
    let handle = cache.disk(disks[0]);
    Open { cache, handle, recovered: recovered.remove(0) }
}

/// Which of the first blocks are cached, without counting hits.
fn cached(open: &Open, blocks: u64, parts: u64) -> Vec<u64> {
    let is = |block: &u64| {
        let residence = open.cache.residence(&open.handle, block * parts..(block + 1) * parts);
        residence.iter().all(|(_, residence)| *residence != Residence::Disk)
    };
    (0..blocks).filter(is).collect()
}

async fn bytes_of(device: &Device) -> Vec<u8> {
    let size = device.geometry().size_bytes;
    let mut bytes = Vec::new();
    for offset in (0..size).step_by(1 << 20) {
        let len = (size - offset).min(1 << 20) as usize;
        let done = device.read(offset, Buf::zeroed(len).into()).await;
        assert_eq!(done.outcome, Outcome::Done);
        bytes.extend(done.bufs.to_vec(0..len));
    }
    bytes
}

async fn device_of(bytes: &[u8]) -> Device {
    let device: Device = Memory::new(bytes.len() as u64);
    for (n, piece) in bytes.chunks(1 << 20).enumerate() {
        let done = device.write((n as u64) << 20, Buf::padded(piece, 4096).freeze().into(), false).await;
        assert_eq!(done.outcome, Outcome::Done);
    }
    device
}

#[test]
fn a_checkpoint_says_what_the_log_says_and_is_not_believed_when_it_cannot_be() {
    run(|world| async move {
        const SHAPE: (u32, u32) = (256 << 10, 16 << 10);
        const BLOCKS: u64 = 400;
        let device: Device = Memory::new(32 * u64::from(SHAPE.0));
        let first = open(&device, SHAPE, None, &[disk(7)], &world).await;
        let data = Arena::new(1 << 20).alloc(16 << 10).await;
        for block in 0..BLOCKS {
            let view = data.view(0..16 << 10);
            let cache = &first.cache;
            cache.fill(&first.handle, block * 4..block * 4 + 4, view, FillCause::ReadMiss, cache.membership());
            yield_now().await;
        }
        // A write that ends a part of each tenth block, settled.
        for block in (0..BLOCKS).step_by(10) {
            let ticket = first.cache.begin_write(&first.handle, block * 4..block * 4 + 1).await.unwrap();
            first.cache.end_write(ticket);
        }
        let list = first.cache.settle_list(&first.handle, &first.cache.epochs(), usize::MAX);
        assert!(first.cache.settle(list).await > 0);
        first.cache.stop().await;
        let there = cached(&first, BLOCKS, 1);
        let place = first.cache.checkpoint().await[0].unwrap();
        assert!(first.cache.members().next().unwrap().entries() > 100);
        let entries = first.cache.members().next().unwrap().entries() as u64;
        let image = bytes_of(&device).await;

        let by_log = open(&device_of(&image).await, SHAPE, None, &[disk(7)], &world).await;
        assert_eq!(by_log.recovered.as_ref().unwrap().evidence, Evidence::Log);
        let by_checkpoint = open(&device_of(&image).await, SHAPE, Some(place), &[disk(7)], &world).await;
        let found = by_checkpoint.recovered.as_ref().unwrap();
        assert_eq!((found.evidence, found.entries, found.unsettled_regions), (Evidence::Checkpoint, entries, 0));
        let by_whom = Recovered { evidence: Evidence::Log, walked: 0, reopened: 0, ..*found };
        assert_eq!(by_whom, Recovered { walked: 0, reopened: 0, ..by_log.recovered.clone().unwrap() });
        for open in [&by_log, &by_checkpoint] {
            assert_eq!(cached(open, BLOCKS, 1), there);
        }

        // One that is rotten, one of another stop, and one that does not know a grid disk.
        let at = place.segment as usize * SHAPE.0 as usize;
        for part in 0..2 {
            let mut bad = image.clone();
            bad[at + part * PART_BYTES + 100] ^= 1;
            let open = open(&device_of(&bad).await, SHAPE, Some(place), &[disk(7)], &world).await;
            assert_eq!(open.recovered.as_ref().unwrap().evidence, Evidence::LogForCheckpoint, "part {part}");
            assert_eq!(cached(&open, BLOCKS, 1), there);
        }
        let other = CheckpointPlace { token: place.token ^ 1, ..place };
        let open_other = open(&device_of(&image).await, SHAPE, Some(other), &[disk(7)], &world).await;
        assert_eq!(open_other.recovered.as_ref().unwrap().evidence, Evidence::LogForCheckpoint);
        let open_more = open(&device_of(&image).await, SHAPE, Some(place), &[disk(7), disk(8)], &world).await;
        assert_eq!(open_more.recovered.as_ref().unwrap().evidence, Evidence::LogForCheckpoint);
        assert_eq!(cached(&open_more, BLOCKS, 1), there);
    });
}

#[test]
fn a_checkpoint_of_several_parts_says_it_all() {
    run(|world| async move {
        const SHAPE: (u32, u32) = (1 << 20, 4096);
        const BLOCKS: u64 = 12_000;
        let device: Device = Memory::new(80 * u64::from(SHAPE.0));
        let first = open(&device, SHAPE, None, &[disk(7)], &world).await;
        let data = Arena::new(1 << 20).alloc(256 << 10).await;
        for block in (0..BLOCKS).step_by(64) {
            let blocks = block..(block + 64).min(BLOCKS);
            let view = data.view(0..(blocks.end - blocks.start) as usize * 4096);
            let report = first.cache.fill(&first.handle, blocks, view, FillCause::ReadMiss, first.cache.membership());
            assert_eq!(report.crowded, 0);
            yield_now().await;
        }
        first.cache.stop().await;
        let place = first.cache.checkpoint().await[0].unwrap();
        let there = cached(&first, BLOCKS, 1);
        assert_eq!(there.len() as u64, BLOCKS);
        let again = open(&device, SHAPE, Some(place), &[disk(7)], &world).await;
        let found = again.recovered.as_ref().unwrap();
        assert_eq!((found.evidence, found.entries), (Evidence::Checkpoint, BLOCKS));
        assert_eq!(cached(&again, BLOCKS, 1), there);
    });
}

/// A record of a block of one part, all zeroes.
fn entry(block: u64, position: u32) -> Record {
    Record::Entry {
        kind: EntryKind::Clean,
        name: BlockName { disk: 7, generation: 1, block },
        mask: 1,
        position: Position(position),
        sums: [format::part_sum(7, 1, block, &[0; 4096])].into_iter().collect(),
    }
}

#[test]
fn a_log_without_a_free_segment_goes_on_in_one_without_a_footer() {
    const PAGES: usize = 16;
    const SHAPE: (u32, u32) = (PAGES as u32 * 4096, 4096);
    let mut image = vec![0; 8 * PAGES * 4096];
    let put = |image: &mut [u8], life: SegmentLife, position: u32, sequence: u64, blocks: &[u64]| {
        let pages = 1 + blocks.len() as u32;
        let header = ChunkHeader { owner: OWNER, life, position: Position(position), pages, sequence, durable: 0 };
        let records: Vec<Record> = blocks.iter().zip(position + 1..).map(|(&block, at)| entry(block, at)).collect();
        let from = (life.segment.0 as usize * PAGES + position as usize) * 4096;
        format::encode_chunk(&header, &records, &mut image[from..from + 4096]);
        records
    };
    for n in 0..8 {
        let life = SegmentLife { segment: SegmentId(n), opening: Opening::new(1, n + 1), head: HeadKind::Small };
        // Block 1 comes twice, and nothing says that the older is dead: recovery has to.
        let sequence = u64::from(n) + 1;
        let mut records = vec![Record::Chunk { position: Position(0), sequence }];
        records.extend(put(&mut image, life, 0, sequence, &[[1, 1, 2, 3, 4, 5, 6, 7][n as usize]]));
        if n == 7 {
            // The chunk at page 2 was lost. This one lies where a walk will get to.
            put(&mut image, life, 3, sequence + 2, &[200]);
        } else {
            let footer = format::encode_footer(OWNER, life, sequence, 0, &records, 4096);
            let end = (n as usize + 1) * PAGES * 4096;
            image[end - footer.len()..end].copy_from_slice(&footer);
        }
    }
    run(|world| async move {
        let device = device_of(&image).await;
        let first = open(&device, SHAPE, None, &[disk(7)], &world).await;
        // As a crash would leave it, before reclaim has done anything.
        let crashed = bytes_of(&device).await;
        let found = first.recovered.unwrap();
        assert_eq!((found.reopened, found.entries), (1, 7));
        let at = (7 * PAGES + 2) * 4096;
        let (header, records) = format::decode_chunk(&crashed[at..at + 4096], &OWNER).unwrap();
        assert_eq!((header.life.opening, header.position, header.pages), (Opening::new(1, 8), Position(2), 1));
        let dead = |record: &Record| matches!(record, Record::Invalidation { segment: SegmentId(0), .. });
        assert!(records.iter().any(dead), "{records:?}");

        let again = open(&device_of(&crashed).await, SHAPE, None, &[disk(7)], &world).await;
        assert_eq!(again.recovered.as_ref().unwrap().entries, 7);
        assert_eq!(cached(&again, 300, 1), [1, 2, 3, 4, 5, 6, 7], "block 200 was behind what was lost");
    });
}
